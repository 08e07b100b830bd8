"""The drill on Ceph, Kafka and MySQL: the database is dropped, and the rows come back from a dump in the block store
and from what blocks and the landing log tell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import pytest

from nos_ec.adapters.sql.driver.databases import create_database, drop_database
from nos_ec.composition.rebuilding import open_lost
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import open_system
from nos_ec.core.formats.dump_format import DumpHead
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.core.tails import is_tail
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.checker import Checked, Checker
from nos_ec.engine.dump.dumper import dump_pages
from nos_ec.engine.dump.rebuilder import Rebuilder
from nos_ec.engine.dump.stored import newest_dump
from nos_ec.engine.dump.uncertain import uncertain
from nos_ec.settings import Settings, load_settings
from tests.rig.at_rest import end_log, settle
from tests.rig.fakes.audit import all_objects

pytestmark = pytest.mark.real

SETTINGS = {
    "NOS_EC_REAPER__LANDING_GRACE_MS": "0",
    "NOS_EC_GC__BLOCK_GRACE_MS": "0",
    "NOS_EC_GC__POLICY": "threshold",
    "NOS_EC_GC__RESERVE_BYTES": "0",
    "NOS_EC_LANDING__MODE": "log",
}


@pytest.fixture
def scratch(stack_config: Path, tmp_path: Path) -> Iterator[Settings]:
    with scratch_store(load_settings(stack_config, SETTINGS), tmp_path / "root", "rebuild") as scratch:
        yield scratch


def test_drill(scratch: Settings) -> None:
    rng = random.Random(3)
    alive: dict[ObjectKey, bytes] = {}
    with open_system(scratch) as system:

        def put(prefix: str, count: int) -> list[ObjectKey]:
            new = [
                (ObjectKey("bucket", f"{prefix}/{n:04}"), rng.randbytes(rng.randint(1, 20_000))) for n in range(count)
            ]
            system.client.store().put_many(new)
            alive.update(new)
            return [key for key, _ in new]

        def put_large(name: str) -> None:
            key, data = ObjectKey("large", name), rng.randbytes(5 * system.geometry.stripe_size)
            system.client.store().put(key, BytesIO(data))
            alive[key] = data

        packed = put("packed", 500)
        put_large("before")
        settle(system)
        waiting = put("waits", 200)
        system.client.store().delete(waiting[0])
        del alive[waiting[0]]
        head = DumpHead(system.store_id, system.clock.now_ms(), asdict(system.geometry))
        dump, _ = system.client.dumps().write(head, dump_pages(system.metadata))
        deleted = packed[::2] + waiting[1:20]
        system.client.store().delete_many(deleted)
        for key in deleted:
            del alive[key]
        put("packed", 50)
        put_large("since")
        settle(system)
        put("late", 200)
        end_log(system)
    url = scratch.store.url()
    drop_database(url)
    create_database(url)
    with open_lost(scratch) as (lost, store_id):
        source = newest_dump(lost.blocks, lost.clock.now_ms(), lambda *_: None)
        assert source is not None
        assert (source.name, source.head.store_id) == (str(dump.key), store_id)
        rebuilder = Rebuilder(lost, source, lambda *_: None)
        rebuilder.run()
        to_look_at = list(uncertain(lost, source))
        rebuilder.finish()
    with open_system(scratch) as system:
        checked = Checked(system.metadata, system.blocks, system.landing, system.medium, system.clock)
        checker = Checker(checked, ReadShare(1.0), wait_ms=100)
        assert (list(checker.findings()), checker.unfinished) == ([], [])
        for key, data in alive.items():
            assert system.client.store().get(key) == data, str(key)
        rows = all_objects(system.metadata)
        there = {row.key for row in rows if row.key.bucket != RESERVED_BUCKET and not is_tail(row.key)}
        back = there - alive.keys()
        assert back <= set(deleted)
        gone = {one.about for one in to_look_at if one.what == "gone"}
        assert gone == {str(key) for key in deleted if key not in alive and key not in back}
        assert not [one for one in to_look_at if one.what == "copy"]
        system.client.store().delete_many([*back, dump.key])
        settle(system)
        for key, data in alive.items():
            assert system.client.store().get(key) == data, str(key)
