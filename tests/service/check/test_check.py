"""A check names exactly what was damaged, and nothing in a sound store, also while others work on it."""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest
from sqlalchemy import create_engine, text

from nos_consumer.assemble import drain
from nos_ec.cli.app import run as start
from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import Transient
from nos_ec.core.findings import REPAIRS, Finding, FindingKind
from nos_ec.core.formats.operator_plan import Action, Step
from nos_ec.core.ids import BlockId, ObjectKey, in_log, new_segment_id
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.check import copies
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.checker import Checked, Checker, Unfinished
from nos_ec.engine.check.repairs import Repairer, planned
from nos_ec.engine.header_scan import scan_headers
from nos_ec.ports.metadata import BlockRow, WaitingRow
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import LaterClock, come_to_rest, end_log
from tests.rig.fakes.audit import all_blocks
from tests.rig.sql.sql_plans import caught
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench, damage_slots

K = FindingKind


def checker(system: System, *, read_share: float = 0.0, wait_ms: int = 10) -> Checker:
    checked = Checked(system.metadata, system.blocks, system.landing, system.medium, system.clock)
    return Checker(checked, ReadShare(read_share), wait_ms=wait_ms)


def check(system: System, *, read_share: float = 0.0) -> list[Finding]:
    """Everything that a complete check finds."""
    made = checker(system, read_share=read_share)
    found = list(made.findings())
    assert made.unfinished == []
    return found


def fill(bench: Bench, system: System) -> None:
    """Objects in every state: packed, with holes between them, large, empty, waiting in log and landing store."""
    keys = bench.put_some(system, 120)
    bench.put(system, "large", bench.data(5 * STRIPE))
    bench.put(system, "empty", b"")
    bench.pack(system)
    for key in keys[::5]:
        bench.delete(system, key)
    bench.put_some(system, 20, prefix="waits")
    bench.put(system, "alone", bench.data(3 * STRIPE))
    end_log(system)


def run(bench: Bench, statement: str) -> None:
    """Bypasses the store, because none of its operations would do this."""
    engine = create_engine(f"sqlite:///{bench.folder / 'store' / 'metadata.db'}")
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()


FIRST_PACKED = "(SELECT min(object_id) FROM objects WHERE state = 'packed')"
FIRST_WAITING = "(SELECT min(object_id) FROM waiting)"
LARGE = "(SELECT min(object_id) FROM objects WHERE state = 'large')"
FRESH = "(SELECT min(block_id) FROM blocks WHERE kind = 'fresh')"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (f"UPDATE blocks SET dead_bytes = dead_bytes + 1 WHERE block_id = {FRESH}", [K.BLOCK_COUNTERS]),
        (
            f"UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1 WHERE block_id = {FRESH}",
            [K.BLOCK_COUNTERS],
        ),
        (f"UPDATE blocks SET live_objects = live_objects + 1 WHERE block_id = {FRESH}", [K.BLOCK_COUNTERS]),
        (
            f"UPDATE blocks SET stripes = stripes - 1, live_bytes = live_bytes - {STRIPE} WHERE block_id = {FRESH}",
            [K.BLOCK_LENGTH],
        ),
        (
            f"UPDATE blocks SET stripes = stripes + 1, dead_bytes = dead_bytes + {STRIPE} WHERE block_id = {FRESH}",
            [K.BLOCK_LENGTH],
        ),
        (f"UPDATE blocks SET state = 'open' WHERE block_id = {FRESH}", [K.BLOCK_WITHOUT_WRITER]),
        (f"UPDATE blocks SET state = 'condemned', delete_after_ms = 1 WHERE block_id = {FRESH}", [K.BLOCK_CONDEMNED]),
        (f"DELETE FROM blocks WHERE block_id = {FRESH}", [K.BLOCK_ROW_MISSING]),
        (
            f"UPDATE objects SET block_offset = block_offset + 1 WHERE object_id = {FIRST_PACKED}",
            [K.EXTENT_UNCONFIRMED],
        ),
        (f"UPDATE objects SET size = size + 1 WHERE object_id = {FIRST_PACKED}", [K.EXTENT_UNCONFIRMED]),
        (f"UPDATE objects SET version = version + 1 WHERE object_id = {FIRST_PACKED}", [K.EXTENT_UNCONFIRMED]),
        (
            f"UPDATE objects SET name = CAST(name || 'x' AS BLOB) WHERE object_id = {FIRST_PACKED}",
            [K.EXTENT_UNCONFIRMED],
        ),
        (
            "INSERT INTO objects (bucket, name, version, size, crc32c, md5, state, block_id, block_offset, created_ms)"
            " SELECT bucket, CAST(name || 'x' AS BLOB), version, size, crc32c, md5, state, block_id, block_offset, 1"
            f" FROM objects WHERE object_id = {FIRST_PACKED}",
            [K.EXTENT_UNCONFIRMED],
        ),
        (
            f"UPDATE objects SET block_id = zeroblob(16) WHERE object_id = {FIRST_PACKED}",
            [K.BLOCK_COUNTERS, K.BLOCK_ROW_MISSING],
        ),
        (f"UPDATE objects SET state = 'queued' WHERE object_id = {FIRST_PACKED}", [K.ROW_INVALID]),
        ("UPDATE objects SET size = 7 WHERE state = 'empty'", [K.ROW_INVALID]),
        (f"DELETE FROM objects WHERE object_id = {FIRST_PACKED}", [K.BLOCK_COUNTERS]),
        (
            f"UPDATE segments SET length = length - 1 WHERE object_id = {LARGE} AND part = 0",
            [K.EXTENT_UNCONFIRMED, K.PARTS_WRONG],
        ),
        (f"UPDATE objects SET size = size + 1 WHERE object_id = {LARGE}", [K.PARTS_WRONG]),
        (f"DELETE FROM segments WHERE object_id = {LARGE} AND part = 0", [K.BLOCK_COUNTERS, K.PARTS_WRONG]),
        (f"UPDATE objects SET crc32c = crc32c - 1 WHERE object_id = {LARGE}", [K.PARTS_WRONG]),
        (
            "INSERT INTO segments SELECT object_id + 1000, version, part, block_id, block_offset, length, crc32c"
            " FROM segments WHERE part = 0",
            [K.PARTS_WITHOUT_OBJECT],
        ),
        (
            "INSERT INTO segments SELECT object_id, version - 1, part, block_id, block_offset, length, crc32c"
            " FROM segments WHERE part = 0",
            [K.PARTS_WITHOUT_OBJECT],
        ),
        (
            "INSERT INTO versions SELECT bucket, name, 7, object_id, 0, created_ms FROM objects"
            f" WHERE object_id = {FIRST_PACKED}",
            [K.VERSION_WITHOUT_OBJECT],
        ),
        (f"DELETE FROM waiting WHERE object_id = {FIRST_WAITING}", [K.NOT_WAITING]),
        (f"UPDATE waiting SET size = size + 1 WHERE object_id = {FIRST_WAITING}", [K.WAITS_FOR_NOTHING]),
        (f"UPDATE waiting SET state = 'queued' WHERE object_id = {FIRST_WAITING}", [K.WAITS_FOR_NOTHING]),
        (f"UPDATE waiting SET object_id = 999999 WHERE object_id = {FIRST_WAITING}", [K.WAITS_FOR_NOTHING]),
        (
            "INSERT INTO waiting SELECT randomblob(16), object_id, slot, due_ms, state, size, NULL, 0 FROM waiting"
            " LIMIT 1",
            [K.WAITS_FOR_NOTHING],
        ),
        (
            "INSERT INTO landing_deletions SELECT landing_id, NULL, NULL, 1, 0 FROM waiting"
            f" WHERE object_id = {FIRST_WAITING}",
            [K.COPY_QUEUED],
        ),
        ("UPDATE landing_segments SET state = 'open', end_bytes = 0", [K.LANDING_SEGMENT_WITHOUT_WRITER]),
        ("UPDATE landing_segments SET state = 'doomed'", [K.LANDING_SEGMENT_DOOMED]),
        ("UPDATE landing_segments SET end_bytes = 4096", [K.LANDING_SEGMENT_END]),
        ("DELETE FROM landing_segments", [K.LANDING_SEGMENT_WITHOUT_ROW]),
    ],
)
def test_rows_that_are_wrong(bench: Bench, statement: str, expected: list[FindingKind]) -> None:
    with bench.open() as system:
        fill(bench, system)
        assert check(system, read_share=1.0) == []
        run(bench, statement)
        found = check(system)
        assert sorted(finding.kind for finding in found) == expected, found
        found = check_beside_work(bench, system, expected)
        mended = K.LANDING_SEGMENT_WITHOUT_WRITER in expected  # by the next writer of the log
        assert sorted(finding.kind for finding in found) == ([] if mended else expected), found


CHANGED_BY_SERVICES = {
    K.BLOCK_CONDEMNED,
    K.WAITS_FOR_NOTHING,
    K.COPY_QUEUED,
    K.COPY_WITHOUT_OWNER,
    K.LANDING_SEGMENT_WITHOUT_WRITER,
    K.LANDING_SEGMENT_DOOMED,
    K.LANDING_SEGMENT_END,
    K.LANDING_SEGMENT_WITHOUT_ROW,
}
"""What consumers and GC mend or delete when they meet it."""


def check_beside_work(bench: Bench, system: System, expected: Iterable[FindingKind]) -> list[Finding]:
    """What a check finds while clients work on the same store, and daemons, unless they would change what it finds."""
    with Works(bench, services=CHANGED_BY_SERVICES.isdisjoint(expected)) as works:
        while not works.rounds and not works.errors:
            time.sleep(0.01)
        found = list(checker(system, wait_ms=50).findings())
    assert works.errors == []
    return found


def test_a_damaged_index_of_keys(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = system.metadata.objects_after(0, 1)[0]
    leave_the_index(bench, f"UPDATE objects SET name = CAST('moved' AS BLOB) WHERE object_id = {row.object_id}")
    with bench.open() as system:
        (lost,) = [finding for finding in check(system) if finding.kind is K.KEY_NOT_FOUND]
        assert (lost.what, lost.evidence["found"]) == (f"object {row.key.bucket}/moved", None)
    with sqlite3.connect(bench.folder / "store" / "metadata.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() != ("ok",)
        database.execute("REINDEX")
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    with bench.open() as system:
        assert K.KEY_NOT_FOUND not in [finding.kind for finding in check(system)]
        assert system.metadata.get(ObjectKey(row.key.bucket, "moved")).object_id == row.object_id


def leave_the_index(bench: Bench, statement: str) -> None:
    """Run a statement without changing the index of keys, as a lost write of one of its pages would."""
    database = sqlite3.connect(bench.folder / "store" / "metadata.db", isolation_level=None)
    index = "objects_by_trash_key"
    of_index = database.execute("SELECT * FROM sqlite_master WHERE name = ?", [index]).fetchone()
    database.execute("PRAGMA writable_schema = ON")
    database.execute("DELETE FROM sqlite_master WHERE name = ?", [index])
    database.close()
    for work in (statement, of_index):
        database = sqlite3.connect(bench.folder / "store" / "metadata.db", isolation_level=None)
        if isinstance(work, str):
            assert database.execute(work).rowcount == 1
        else:
            database.execute("PRAGMA writable_schema = ON")
            database.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", work)
        database.close()


def test_segments_in_the_wrong_order(bench: Bench) -> None:
    with bench.open() as system:
        bench.put(system, "large", bench.data(16 * STRIPE))
        assert check(system) == []
        run(bench, "UPDATE segments SET part = 99 WHERE part = 0")
        assert [finding.kind for finding in check(system)] == [K.PARTS_WRONG]


# --- stores that are damaged --------------------------------------------------------------------------


def a_block(system: System) -> BlockRow:
    """A sealed block with small objects."""
    return next(row for row in all_blocks(system.metadata) if row.kind is BlockKind.FRESH and row.live_objects)


def a_copy(system: System) -> WaitingRow:
    """What waits in the landing store."""
    return next(one for one in system.metadata.waiting_after(None, 1000) if not in_log(one.landing_id))


def rewrite(system: System, row: BlockRow, at: int) -> None:
    """Exchange a byte of a block, with shards that fit."""
    data = bytearray(system.blocks.read(row.block_id, 0, row.size_bytes))
    data[at] ^= 0xFF
    system.blocks.delete(row.block_id)
    system.blocks.create(row.block_id, data)
    system.blocks.seal(row.block_id)


def lose_block(_bench: Bench, system: System) -> None:
    system.blocks.delete(a_block(system).block_id)


def leak_block(_bench: Bench, system: System) -> None:
    system.blocks.create(system.new_block_id(), bytes(STRIPE))


def damage_header(_bench: Bench, system: System) -> None:
    row = a_block(system)
    header = scan_headers(system.blocks, row.block_id, row.stripes).headers[0]
    rewrite(system, row, header.first_stripe * STRIPE + 40)


def damage_data(_bench: Bench, system: System) -> None:
    row = a_block(system)
    rewrite(system, row, system.metadata.placed_in(row.block_id)[0].extent.offset)


def lose_shards_of_a_block(bench: Bench, system: System) -> None:
    name = a_block(system).block_id.hex()
    shards = sorted((bench.folder / "store" / "blocks").glob(f"*/{name[-1]}/{name}"))
    assert len(shards) == 11
    for path in shards[2:4]:
        path.unlink()


def lose_copy(_bench: Bench, system: System) -> None:
    system.landing.delete(a_copy(system).landing_id)


def leak_copy(_bench: Bench, system: System) -> None:
    system.landing.put(system.new_landing_id(), b"nobody's")


def change_copy(_bench: Bench, system: System) -> None:
    one = a_copy(system)
    system.landing.delete(one.landing_id)
    system.landing.put(one.landing_id, bytes(one.size))


def cut_copy(_bench: Bench, system: System) -> None:
    one = a_copy(system)
    data = system.landing.read(one.landing_id)
    system.landing.delete(one.landing_id)
    system.landing.put(one.landing_id, data[:-1])


def lose_segment(_bench: Bench, system: System) -> None:
    assert system.medium is not None
    waiting = [one.landing_id for one in system.metadata.waiting_after(None, 1000) if in_log(one.landing_id)]
    assert waiting
    assert system.medium.release(list(system.medium.segments())) == {}


def leak_segment(_bench: Bench, system: System) -> None:
    assert system.medium is not None
    system.medium.create(new_segment_id(system.clock.now_ms(), 7), 1, 0).close()


@pytest.mark.parametrize(
    ("damage", "expected", "with_data"),
    [
        (lose_block, {K.BLOCK_MISSING: 1}, {K.BLOCK_MISSING: 1}),
        (leak_block, {K.BLOCK_WITHOUT_ROW: 1}, {K.BLOCK_WITHOUT_ROW: 1}),
        (damage_header, {K.HEADER_DAMAGED: 1}, {K.HEADER_DAMAGED: 1}),
        (damage_data, {}, {K.DATA_DAMAGED: 1}),
        (lose_shards_of_a_block, {K.BLOCKS_SHORT: 1}, {K.BLOCKS_SHORT: 1}),
        (lose_copy, {K.COPY_MISSING: 1}, {K.COPY_MISSING: 1}),
        (leak_copy, {K.COPY_WITHOUT_OWNER: 1}, {K.COPY_WITHOUT_OWNER: 1}),
        (change_copy, {}, {K.COPY_DAMAGED: 1}),
        (cut_copy, {}, {K.COPY_DAMAGED: 1}),
        (lose_segment, {K.LANDING_SEGMENT_MISSING: 1, K.COPY_MISSING: 20}, None),
        (leak_segment, {K.LANDING_SEGMENT_WITHOUT_ROW: 1}, {K.LANDING_SEGMENT_WITHOUT_ROW: 1}),
    ],
)
def test_stores_that_are_damaged(
    bench: Bench,
    damage: Callable[[Bench, System], None],
    expected: dict[FindingKind, int],
    with_data: dict[FindingKind, int] | None,
) -> None:
    with bench.open() as system:
        fill(bench, system)
        damage(bench, system)
        assert _counted(check(system)) == expected
        if with_data is not None:
            assert _counted(check(system, read_share=1.0)) == with_data
        assert _counted(check_beside_work(bench, system, expected)) == expected


def _counted(found: list[Finding]) -> dict[FindingKind, int]:
    kinds = [finding.kind for finding in found]
    return {kind: kinds.count(kind) for kind in kinds}


def test_a_finding_tells_what_was_seen(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        lose_shards_of_a_block(bench, system)
        (short,) = check(system)
        block = a_block(system).block_id.hex()
        assert short.evidence == {"blocks": 1, "lack": [{"shards": [2, 3], "blocks": 1}], "named": [block]}
        run(bench, f"UPDATE objects SET version = 7 WHERE object_id = {FIRST_PACKED}")
        wrong = next(finding for finding in check(system) if finding.kind is K.EXTENT_UNCONFIRMED)
        assert wrong.what.startswith("object bucket-")
        assert wrong.evidence["version"] == 7
    assert set(REPAIRS) == set(FindingKind)


def test_bytes_without_a_header_that_recovery_counted_are_normal(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        lease = system.metadata.acquire_lease("dead", 0, 1)
        block_id = system.new_block_id()
        system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, system.clock.now_ms())
        system.blocks.create(block_id, bytes(STRIPE))
        assert check(system) == []
        system.worker.housekeeping().run_once()
        row = system.metadata.block(block_id)
        assert (row.state, row.dead_bytes) == (BlockState.SEALED, STRIPE)
        assert check(system) == []


# --- sound stores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["log", "store"])
def test_nothing_is_wrong_at_any_time_of_a_busy_life(bench: Bench, mode: str) -> None:
    bench.config.write_text(bench.config.read_text().replace('mode = "log"', f'mode = "{mode}"'))
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        condemned = 0
        for life in range(3):
            keys = bench.put_some(system, 100, prefix=f"life-{life % 2}")
            bench.put(system, "large", bench.data(5 * STRIPE))
            bench.put(system, "empty", b"" if life % 2 else b"not now")
            assert check(system, read_share=1.0) == []
            bench.produce(system)
            bench.consume(system)
            assert check(system, read_share=1.0) == []
            bench.pack(system)
            for key in keys[::2]:
                bench.delete(system, key)
            assert check(system, read_share=1.0) == []
            condemned += gc_service(system).run_once().blocks_condemned
            assert check(system, read_share=1.0) == []
        assert condemned
        assert come_to_rest(system) == []
        assert check(system, read_share=1.0) == []
        bench.assert_readable(system)


class Works:
    """Overwrites the same few objects, deletes them, packs and collects, until it is stopped."""

    def __init__(self, bench: Bench, *, services: bool = True) -> None:
        self._bench = bench
        self._stop = Event()
        self.rounds = 0
        self.errors: list[Exception] = []
        works = (self._clients, self._services) if services else (self._clients,)
        self._threads = [Thread(target=self._guard, args=(work,)) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S_MAX)
            assert not thread.is_alive()

    def _guard(self, work: Callable[[System, random.Random], None]) -> None:
        try:
            with self._bench.open() as system:
                rng = random.Random(work.__name__)
                while not self._stop.is_set():
                    work(system, rng)
        except Exception as error:
            self.errors.append(error)

    def _clients(self, system: System, rng: random.Random) -> None:
        store = system.client.store()
        for number in range(30):
            key = ObjectKey("busy", f"{rng.randrange(12)}")
            store.put(key, BytesIO(rng.randbytes(rng.choice((0, 100, CHUNK, 3 * STRIPE, 5 * STRIPE)))))
            if number % 5 == 0:
                store.delete(key)
        store.put_many([(ObjectKey("many", str(number)), rng.randbytes(2000)) for number in range(40)])
        self.rounds += 1

    def _services(self, system: System, _rng: random.Random) -> None:
        with producer_service(system) as producer:
            producer.drain()
        drain(system)
        gc_service(system).run_once()


@pytest.mark.parametrize("mode", ["log", "store"])
def test_no_false_alarm_beside_a_working_store(bench: Bench, mode: str) -> None:
    bench.config.write_text(bench.config.read_text().replace('mode = "log"', f'mode = "{mode}"'))
    with bench.open() as system, Works(bench) as works:
        complete = 0
        for _ in range(100):
            made = checker(system, read_share=1.0, wait_ms=50)
            assert list(made.findings()) == []
            complete += not made.unfinished  # blocks that changed all the time are not judged
            if works.errors or (complete >= 5 and works.rounds >= 5):
                break
        assert works.errors == []
        assert complete >= 5


# --- what cannot be looked at -------------------------------------------------------------------------


def test_a_check_that_could_not_see_everything_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as system:
        fill(bench, system)

        def away(*_: object) -> None:
            raise Transient("no answer")

        for part, port, method in (
            ("block store", system.blocks, "list_blocks"),
            ("landing copies", system.landing, "list_ids"),
            ("landing log", system.medium, "segments"),
            ("objects", system.metadata, "columns_after"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(type(port), method, away)
                made = checker(system)
                assert list(made.findings()) == []
            assert made.unfinished[-1] == Unfinished(part, "no answer")
        row = a_block(system)
        stripes = type(system.blocks).stripes

        def one_away(blocks: object, block_id: BlockId) -> int:
            if block_id == row.block_id:
                raise Transient("no answer")
            return stripes(system.blocks, block_id)

        monkeypatch.setattr(type(system.blocks), "stripes", one_away)
        made = checker(system)
        assert list(made.findings()) == []
        assert [one.part for one in made.unfinished] == [f"block {row.block_id.hex()}"]


@pytest.mark.parametrize(
    ("statement", "parts", "reason"),
    [
        (f"UPDATE blocks SET state = 'odd' WHERE block_id = {FRESH}", ["blocks"], "not a valid BlockState"),
        (f"UPDATE objects SET state = 'odd' WHERE object_id = {FIRST_WAITING}", ["objects", "landing copies"], "'odd'"),
        (f"UPDATE objects SET name = x'ff' WHERE object_id = {FIRST_PACKED}", ["block ", "objects"], "not UTF-8"),
        (f"UPDATE objects SET landing_id = x'01' WHERE object_id = {FIRST_WAITING}", ["objects"], "1 bytes"),
    ],
)
def test_rows_that_cannot_be_read(bench: Bench, statement: str, parts: list[str], reason: str) -> None:
    with bench.open() as system:
        fill(bench, system)
        run(bench, statement)
        made = checker(system)
        list(made.findings())
        unfinished = [(part.part, part.reason) for part in made.unfinished]
        for part in parts:
            assert any(name.startswith(part) and reason in text for name, text in unfinished), unfinished


def test_a_shard_that_is_away(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        shard = bench.folder / "store" / "blocks" / "shard-03"
        shard.rename(shard.with_name("away"))
        made = checker(system)
        (short,) = made.findings()
        assert short.kind is K.BLOCKS_SHORT
        assert [one.part for one in made.unfinished] == ["block store"]


def test_a_block_that_changes_all_the_time_is_not_judged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as system:
        fill(bench, system)
        run(bench, f"UPDATE blocks SET live_objects = live_objects + 1 WHERE block_id = {FRESH}")
        row = a_block(system)
        placed_in = type(system.metadata).placed_in

        def changing(metadata: object, block_id: BlockId) -> object:
            if block_id == row.block_id:
                run(bench, f"UPDATE blocks SET epoch = epoch + 1 WHERE block_id = x'{row.block_id.hex()}'")
            return placed_in(system.metadata, block_id)

        monkeypatch.setattr(type(system.metadata), "placed_in", changing)
        made = checker(system)
        assert list(made.findings()) == []
        assert [one.part for one in made.unfinished] == [f"block {row.block_id.hex()}"]


# --- the command --------------------------------------------------------------------------------------


def test_the_command(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    with bench.open() as system:
        fill(bench, system)
        blocks = len(list(all_blocks(system.metadata)))
        data = cli("check", "--read-data", "100%")
        assert (data["problems"], data["problems_found"], data["kinds"]) == ([], 0, {})
        assert (data["complete"], data["unfinished"]) == (True, [])
        looked_at = data["looked_at"]
        assert (looked_at["blocks"], looked_at["objects"]) == (blocks, len(bench.acknowledged))
        assert (looked_at["copies"], looked_at["waiting"]) == (2, 21), "the first one, and that of the empty object"
        assert looked_at["data_bytes"] == sum(map(len, bench.acknowledged.values()))
        text = cli.text("check")
        assert "left to daemons" in text
        assert re.search(r"problems +none$", text, re.MULTILINE)
        leak_copy(bench, system)
        run(bench, f"UPDATE objects SET version = 7 WHERE object_id = {FIRST_PACKED}")
        assert cli("check", exits=13)["error"] == "ProblemsFound"
        assert start(["--config", str(bench.config), "check", "--json"]) == 13
        data = json.loads(capfd.readouterr().out)
        assert data["kinds"] == {"copy-without-owner": 1, "extent-unconfirmed": 1}
        assert [problem.keys() for problem in data["problems"]] == [{"kind", "what", "evidence", "repair"}] * 2
        assert data["complete"]
        assert start(["--config", str(bench.config), "check"]) == 13
        out, err = capfd.readouterr()
        assert "extent-unconfirmed: object bucket-" in out
        assert "2 problems found" in err


def test_the_command_when_not_all_could_be_looked_at(
    bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open() as system:
        fill(bench, system)

        def away(*_: object) -> None:
            raise Transient("no answer")

        monkeypatch.setattr(type(system.blocks), "list_blocks", away)
    capfd.readouterr()
    assert start(["--config", str(bench.config), "check", "--json"]) == 7
    out, err = capfd.readouterr()
    assert json.loads(out)["unfinished"] == [{"part": "block store", "reason": "no answer"}]
    assert not json.loads(out)["complete"]
    assert "the check is incomplete" in json.loads(err.splitlines()[-1])["message"]


@pytest.mark.parametrize("share", ["0", "101%", "-1", "much", "nan", ""])
def test_a_share_that_is_none(bench: Bench, capfd: pytest.CaptureFixture[str], share: str) -> None:
    assert "give a percentage" in Cli(bench, capfd)("check", f"--read-data={share}", exits=2)["message"]


def test_every_kind_of_problem_is_documented() -> None:
    documented = (Path(__file__).parents[3] / "docs/CHECK.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", documented, re.MULTILINE)) >= {kind.value for kind in K}


# --- cost ---------------------------------------------------------------------------------------------


def test_statements_are_for_pages_and_blocks_not_for_objects(bench: Bench) -> None:
    with bench.open() as system:
        counts = []
        for number, prefix in ((20, "few"), (400, "many")):
            bench.put_some(system, number, 100, prefix=prefix)
            end_log(system)
            with caught(system.metadata) as statements:  # type: ignore[arg-type]
                assert check(system) == []
            counts.append(len(statements))
        assert counts[0] <= counts[1] <= counts[0] + 2  # one landing segment more


@pytest.mark.landing("store")
def test_ids_of_copies_are_held_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
        lose_copy(bench, system)
        monkeypatch.setattr(copies.CopyCheck.__init__, "__defaults__", (7,))
        assert [finding.kind for finding in check(system)] == [K.COPY_MISSING]
        leak_copy(bench, system)
        assert sorted(finding.kind for finding in check(system)) == [K.COPY_MISSING, K.COPY_WITHOUT_OWNER]


# --- slots of the landing log that cannot be read -----------------------------------------------------


def fill_the_log(bench: Bench, system: System) -> None:
    """PUT in batches until the log has no room for another one, and a few times more."""
    assert system.medium is not None
    for number in range(1000):
        bench.put_some(system, 20, prefix=f"more-{number}")
        if system.medium.free_bytes() == 0:
            return
    raise AssertionError("the log has room for ever")


@pytest.mark.invariant(1)
def test_a_flipped_bit_of_a_slot_frees_no_acknowledged_objects(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
        end_log(system)
        segments = [row.segment for row in system.metadata.list_segments(None, 100)]
    damage_slots(bench, segments)
    with bench.open() as system:
        fill_the_log(bench, system)
        bench.assert_readable(system)
        end_log(system)
    with bench.open() as system:
        bench.assert_readable(system)
        found = check(system, read_share=1.0)
        assert _counted(found) == {K.LANDING_SLOT_UNREADABLE: len(segments)}
        assert {one.evidence["segment"] for one in found} == {segment.hex() for segment in segments}
        assert all(one.evidence["state"] == "sealed" and one.evidence["named"] for one in found)
        bench.pack(system)
        bench.assert_readable(system)
        assert check(system, read_share=1.0) == [], "the headers are written again by a row"


def test_a_plan_writes_the_header_of_a_slot_again(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
        end_log(system)
        (row,) = system.metadata.list_segments(None, 100)
    damage_slots(bench, [row.segment])
    with bench.open() as system:
        step = step_for(system)
        assert step.action is Action.RESTORE_SLOT
        assert repairer(system).apply(step)
        assert not repairer(system).apply(step)
        assert check(system, read_share=1.0) == []
        bench.assert_readable(system)


def test_a_plan_frees_a_slot_that_no_row_needs(bench: Bench) -> None:
    with bench.open() as system:
        keys = bench.put_some(system, 60)
        end_log(system)
        (row,) = system.metadata.list_segments(None, 100)
    damage_slots(bench, [row.segment])
    run(bench, "DELETE FROM landing_segments")
    with bench.open() as system:
        assert system.medium is not None
        (found,) = check_slots(system)
        named = found.evidence["named"]
        assert isinstance(named, list)
        assert set(named) <= {str(key) for key in keys}
        assert planned(found) is None, "it may be from after the backup that the metadata was restored from"
        system.clock = LaterClock(QUARANTINE_MS + 60_000)
        step = step_for(system)
        assert step.action is Action.FREE_SLOT
        lease = system.metadata.acquire_lease("landing-log-7", 0, 1)
        missing = new_segment_id(system.clock.now_ms(), 7)
        system.metadata.open_segment(missing, lease, 0)
        assert not repairer(system).apply(step), "a landing segment is nowhere: it may be there"
        run(bench, "DELETE FROM landing_segments")
        assert repairer(system).apply(step)
        assert list(system.medium.segments()) == []
        assert check_slots(system) == []


def check_slots(system: System) -> list[Finding]:
    return [one for one in checker(system).findings() if one.kind is K.LANDING_SLOT_UNREADABLE]


def step_for(system: System) -> Step:
    (found,) = check_slots(system)
    step = planned(found)
    assert step is not None
    return step


def repairer(system: System) -> Repairer:
    checked = Checked(system.metadata, system.blocks, system.landing, system.medium, system.clock)
    return Repairer(checked, system.operator.planned_mending(), lambda _block_id: False)


@pytest.mark.parametrize("shards", [1, 4, 10])
def test_a_block_whose_creation_was_killed_lacks_no_shard(bench: Bench, system: System, shards: int) -> None:
    """Recovery seals the block with the shards that it has, and without stripes: no disk has lost anything."""
    bench.put_some(system, 20)
    end_log(system)
    bench.produce(system)
    killed = bench.run("consumer", "--once", kill_at=f"block_store.shard_created:{shards}")
    assert killed.returncode == -signal.SIGKILL
    bench.end_leases()
    system.worker.housekeeping().run_once()
    (row,) = system.metadata.list_blocks(None, 9)
    assert (row.state, row.stripes) == (BlockState.SEALED, 0)
    assert check(system) == []
