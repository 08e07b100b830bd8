"""Each role works with exactly the rights that deploy/sql/grants.sh gives it, on MySQL and on MariaDB.

One life of a store, in which each role does all that it ever does, runs with these rights. Then the rights are compared
with what was used, so that nobody has more.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nos_consumer.assemble import consumer_service, drain
from nos_ec.adapters.sql.buckets.bucket_rows import TOMBSTONE_MS
from nos_ec.adapters.sql.connection_check import DatabaseCheck
from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.api.readings import Readings
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.conditions import ABSENT
from nos_ec.core.errors import ConfigError, PreconditionFailed
from nos_ec.core.expiry import ExpiryRule, encode_rules
from nos_ec.core.ids import BlockId, LandingId, ObjectKey, SegmentId, log_of, new_segment_id, record_id
from nos_ec.core.notifications.configuration import Notification, encode
from nos_ec.core.notifications.origin import LIFECYCLE, Origin, caused_by
from nos_ec.core.packing.lifetimes import OTHERS, Counts
from nos_ec.core.parts import parts_bucket
from nos_ec.core.publishing.slots import member_lease
from nos_ec.core.states import BlockKind
from nos_ec.core.versions import FLOOR_MS, Versioning
from nos_ec.engine.figures.bucket_count import count_bucket
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.landing.log_lease import take_log_lease
from nos_ec.engine.upkeep.move_recovery import MoveCells, MoveRecovery
from nos_ec.engine.wide.buckets import copy_documents
from nos_ec.ports.metadata import (
    AddMarker,
    CannedAcl,
    DeleteVersion,
    DocumentKind,
    ExpireMarker,
    ExpireVersion,
    LandedMove,
    Lease,
    MoveRow,
    MoveState,
    NewObject,
    PutRequest,
    StoredTotals,
    Sums,
    VersionEntry,
)
from nos_ec.ports.metadata import Rights as BucketRights
from nos_ec.settings import without_settings
from nos_gc.assemble import gc_collector, gc_service
from nos_producer.assemble import producer_service
from tests.rig.fakes.audit import problems
from tests.rig.sql.sql_roles import ROLES, RoleStore, TableRights

pytestmark = pytest.mark.real

SMALL, LARGE = 20_000, 800_000
"""Bytes of an object that is packed, and of one that gets blocks of its own."""
TABLES = [table.name for table in METADATA.sorted_tables]
NO_TABLE_RIGHT, NO_COLUMN_RIGHT = 1142, 1143


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleStore]:
    store = RoleStore(request.getfixturevalue(f"{request.param}_url"), tmp_path_factory.mktemp("roles"))
    with store.made():
        yield store


@pytest.fixture
def systems(store: RoleStore) -> Iterator[dict[str, System]]:
    with store.opened() as systems:
        yield systems


def key(name: str) -> ObjectKey:
    return ObjectKey("bucket", name)


def data(name: str, size: int) -> bytes:
    return (name.encode() * size)[:size]


def put(system: System, name: str, size: int = SMALL) -> None:
    system.client.store().put(key(name), BytesIO(data(name, size)))


def leave_block(system: System, writer: str) -> BlockId:
    """What a writer that is killed leaves: a lease that expires, and a block that is open."""
    lease = system.metadata.acquire_lease(writer, system.clock.now_ms() - 10, 1)
    block_id = system.new_block_id()
    system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, system.clock.now_ms())
    return block_id


def forget_refused(system: System) -> None:
    """What a writer does when the block store is full, in the time of a renewal."""
    lease = system.metadata.acquire_lease(f"full-{system.new_block_id().hex()}", system.clock.now_ms(), 60_000)
    lease = system.metadata.renew_lease(lease, system.clock.now_ms(), 60_000)
    block_id = system.new_block_id()
    system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, system.clock.now_ms())
    assert system.metadata.forget_unwritten(lease, block_id)
    system.metadata.release_lease(lease)


def keep_totals(system: System) -> None:
    """What a daemon does with the sums of a large store, and of one that has become small."""
    stored = StoredTotals(system.metadata.totals(), at_ms=1, cost_ms=1, next_ms=1)
    claimed = replace(stored, next_ms=2)
    for new, expected in ((stored, None), (claimed, stored), (None, claimed)):
        assert system.metadata.store_totals(new, expected)


def fill(front: System) -> None:
    for number in range(40):
        put(front, f"small-{number:02}")
    put(front, "small-00")
    put(front, "empty", 0)
    with pytest.raises(PreconditionFailed):
        front.client.store().put(key("empty"), BytesIO(b"refused"), condition=ABSENT)
    front.client.store().put_many([(key("many-1"), b"1"), (key("many-2"), b"2")])
    front.client.store().delete(key("many-1"))
    for name in ("large-1", "large-2", "large-2"):
        put(front, name, LARGE)
    front.client.store().delete(key("large-1"))
    for name, size in (("thrown-small", SMALL), ("thrown-large", LARGE), ("thrown-empty", 0)):
        put(front, name, size)
    now_ms = front.clock.now_ms()
    thrown = front.metadata.delete_many([key(f"thrown-{size}") for size in ("small", "large", "empty")], now_ms, now_ms)
    front.metadata.delete(front.metadata.undelete(thrown[2:]).rows[0].key, now_ms, now_ms)
    forget_refused(front)


def keep_buckets(front: System) -> None:
    """What a gateway does with buckets."""
    metadata, now_ms = front.metadata, front.clock.now_ms()
    for _ in range(2):
        assert metadata.create_bucket("made", "ann", CannedAcl.PRIVATE, now_ms)
        assert metadata.set_bucket_acl("made", CannedAcl.PUBLIC_READ, now_ms)
        assert metadata.set_bucket_document("made", DocumentKind.TAGS, b"tags", now_ms)
        assert metadata.grant("made", "bob", BucketRights.READ, now_ms)
        assert metadata.delete_bucket("made", now_ms)
    assert metadata.create_bucket("other", "ann", CannedAcl.PRIVATE, now_ms)
    claimed = metadata.claim_home("of-cells", "ann", "a", now_ms)
    gone = replace(claimed, owner="bob", is_deleted=True)
    assert metadata.record_in_directory(gone) == gone
    assert metadata.delete_bucket("other", now_ms + 2 * TOMBSTONE_MS)
    assert metadata.access_key("nobody") is None


def composed(front: System, name: str) -> None:
    """An object that is composed of parts, a small and a large one."""
    uploads = front.client.uploads()
    upload = uploads.create(key(name), "ann", b"")
    for number, size in enumerate((LARGE, SMALL), 1):
        uploads.put_part(upload, number, BytesIO(data(name, size)), b"")
    uploads.complete(upload, lambda stored: (stored, {}))


def upload_parts(front: System) -> None:
    """What a gateway does with multipart uploads."""
    composed(front, "composed")
    uploads = front.client.uploads()
    for name in ("aborted-1", "aborted-2"):
        upload = uploads.create(key(name), "ann", b"")
        uploads.put_part(upload, 1, BytesIO(b"part"), b"")
    uploads.abort(upload.upload_id, upload.key)
    uploads.abort_all("bucket")


def keep_versions(front: System) -> None:
    """What a gateway does in a bucket with versions."""
    for versioning in (Versioning.ENABLED, Versioning.ENABLED, Versioning.SUSPENDED):
        front.client.store().put(key("versioned"), BytesIO(b"v"), versioning=versioning)
    version = front.metadata.noncurrent_after(None, 1)[0][1]
    deletions: list[AddMarker | DeleteVersion] = [
        AddMarker(key("versioned"), Versioning.SUSPENDED),
        DeleteVersion(key("versioned"), version),
    ]
    assert None not in front.client.store().delete_versions(deletions)


def open_segment(system: System) -> tuple[Lease, SegmentId]:
    now_ms = system.clock.now_ms()
    held, log = take_log_lease(system.metadata, system.clock, 60_000, None)
    held.abandon()
    segment = new_segment_id(now_ms, log)
    system.metadata.open_segment(segment, held.lease, now_ms)
    return held.lease, segment


def trim(front: System, system: System) -> None:
    """What a gateway with a landing log does, and what housekeeping does with what it left."""
    now_ms, logged = system.clock.now_ms(), key("logged")
    finished, sealed = open_segment(front)
    front.metadata.seal_segments([(sealed, 4096, 0)], now_ms)
    dead, left = open_segment(front)
    copy = record_id(left, 4096, b"once")
    (row,) = front.metadata.record_puts(
        [NewObject(PutRequest(logged), 5, 5, bytes(16), copy, now_ms + 10**9)], now_ms, together=True
    )
    front.metadata.release_leases([finished, dead])
    metadata = system.metadata
    ends = [(one.segment, 4096, 1) for one in metadata.open_segments_of_log(log_of(left), dead.epoch)]
    metadata.seal_segments(ends, now_ms)
    lease, segment = open_segment(system)
    assert [one.key for one in metadata.objects_in_segment(left, None, 9)] == [logged]
    moved = record_id(segment, 4096, b"more")
    assert not isinstance(row, Exception)
    assert metadata.make_due([row], now_ms) == 1
    assert metadata.move_landed([LandedMove(row.object_id, row.version, copy, moved)]) == {moved}
    front.client.store().delete(logged)
    metadata.seal_segments([(segment, 4096, 1)], now_ms)
    assert metadata.doom_landing({moved: None}) == {LandingId(moved)}
    assert metadata.forget_landing([moved]) == frozenset()
    trimmed = [sealed, left, segment]
    assert metadata.releasable_segments(trimmed) == set(trimmed)
    assert all(map(metadata.doom_segment, trimmed))
    metadata.forget_segments(trimmed)
    assert metadata.list_segments(None, 9) == []
    metadata.release_lease(lease)


def publish(system: System) -> None:
    dead = member_lease("killed")
    system.metadata.acquire_lease(dead, system.clock.now_ms() - 10, 1)
    with producer_service(system, shares=True) as producer:
        assert producer.drain() > 0
        producer._held_slots._next_ms = 0
        producer._held_slots.keep()
    assert dead not in {lease.name for lease in system.metadata.list_leases("")}


def pack(system: System) -> None:
    leave_block(system, "killed consumer")
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    forget_refused(system)
    return_one(system)
    drain(system)


def return_one(system: System) -> None:
    """What the reaper does when a packed copy is damaged, and when an entry cannot be settled yet."""
    metadata, now_ms = system.metadata, system.clock.now_ms() + 1
    packed = [one for one in metadata.due_deletions(now_ms, 1000) if one.row is not None and one.row.extent is not None]
    assert metadata.revert_to_landing(packed[0], now_ms)
    metadata.postpone_deletion([packed[1].landing_id], now_ms)


def collect(front: System, system: System) -> None:
    leave_block(front, "killed put")
    for number in range(35):
        front.client.store().delete(key(f"small-{number:02}"))
    forget_refused(system)
    put(front, "thrown-late")
    composed(front, "thrown-composed")
    now_ms = front.clock.now_ms()
    front.metadata.delete_many([key("thrown-late"), key("thrown-composed")], now_ms, now_ms)
    expire(front, system)
    first = gc_service(system).run_once()
    second = gc_service(system).run_once()
    assert first.objects_moved > 0
    assert first.blocks_deleted + second.blocks_deleted > 0
    rows = system.metadata.list_blocks(None, 1)
    system.metadata.cool_down_block(rows[0].block_id, system.clock.now_ms(), failed=True)


def expire(front: System, system: System) -> None:
    """What GC does with objects that a lifecycle rule deletes, with and without a trash, and with versions."""
    metadata, now_ms = system.metadata, system.clock.now_ms()
    body = encode_rules([ExpiryRule("r", prefix="expired", days=1)])
    assert front.metadata.create_bucket("ruled", "ann", CannedAcl.PRIVATE, now_ms)
    assert front.metadata.set_bucket_document("ruled", DocumentKind.LIFECYCLE, body, now_ms)
    for until_ms in (None, now_ms):
        put(front, "expired-small")
        put(front, "expired-large", LARGE)
        composed(front, "expired-composed")
        rows = metadata.list_objects("bucket", "expired", "", 9)
        assert len(metadata.delete_unchanged(rows, now_ms, until_ms)) == 3
    put(front, "expired-with-versions")
    (row,) = metadata.list_objects("bucket", "expired", "", 9)
    for versioning in (Versioning.ENABLED, Versioning.SUSPENDED):
        found = row if versioning is Versioning.ENABLED else None
        (marker,) = metadata.delete_versions([AddMarker(row.key, versioning, seen=found)], now_ms)
        assert isinstance(marker, VersionEntry)
    for until_ms in (None, now_ms):
        first, _ = (
            front.client.store().put(key("expired-noncurrent"), BytesIO(b"v"), versioning=Versioning.ENABLED)
            for _ in range(2)
        )
        seen = metadata.version(first.key, first.version).row
        expired = ExpireVersion(first.key, first.version, seen, 2 * now_ms)
        assert None not in metadata.delete_versions([expired], now_ms, until_ms)
    marker = front.client.store().delete_versions([AddMarker(key("expired-marker"), Versioning.ENABLED)])[0]
    assert isinstance(marker, VersionEntry)
    assert None not in metadata.delete_versions([ExpireMarker(marker.key, marker.version)], now_ms)
    assert metadata.forget_floors(now_ms + 2 * FLOOR_MS, 9) > 0


def notify(front: System, gc: System, producer: System) -> None:
    """What they do with a bucket that has notifications: it changes and expires, and its events are sent."""
    now_ms, told = front.clock.now_ms(), ObjectKey("told", "k")
    document = encode([Notification("all", "changes", ("s3:ObjectCreated:*", "s3:LifecycleExpiration:*"))])
    assert front.metadata.create_bucket("told", "ann", CannedAcl.PRIVATE, now_ms)
    assert front.metadata.set_bucket_document("told", DocumentKind.NOTIFICATION, document, now_ms)
    row = front.client.store().put(told, BytesIO(b"1"))
    with caused_by(Origin(LIFECYCLE)):
        assert gc.metadata.delete_unchanged([row], now_ms) == [row]
    assert producer.metadata.outbox_size(9) == 2
    with producer_service(producer) as service:
        service.drain()
        assert service.notifications is not None
        assert service.notifications.counters.sent == 2


def correct(front: System, gc: System) -> None:
    """Let GC correct copies of a wide bucket's documents that differ from those in the first cell."""
    now_ms = front.clock.now_ms()
    assert front.metadata.create_bucket("wide", "ann", CannedAcl.PRIVATE, now_ms)
    for wanted in ({DocumentKind.NOTIFICATION: encode([])}, {}):
        first: Any = SimpleNamespace(bucket_documents=lambda *_, found=wanted: found)
        assert copy_documents(first, gc.metadata, "wide", now_ms, is_recorded=False)


def meter(front: System, gc: System, operator: System, producer: System) -> None:
    """What they do with metered buckets: they are changed and counted, and their changes are folded."""
    now_ms = front.clock.now_ms()
    for system in (front, gc, operator):
        system.metadata.count_usage()
    for name in ("metered", "asked", "other"):
        assert front.metadata.create_bucket(name, "ann", CannedAcl.PRIVATE, now_ms)
    assert front.metadata.meter_bucket("metered", now_ms)
    assert front.metadata.meter_bucket("other", now_ms)
    assert front.metadata.unmeter_bucket("other")
    rows = [front.client.store().put(ObjectKey("metered", name), BytesIO(b"1")) for name in "klm"]
    assert gc.metadata.delete_unchanged(rows[:1], now_ms) == rows[:1]
    deleted = front.metadata.delete(rows[1].key, now_ms, now_ms + 10**9)
    assert operator.metadata.undelete([operator.client.trash().find(deleted.key)]).rows
    metadata = producer.metadata
    assert metadata.fold_usage(100) == 6
    assert metadata.meter_bucket("asked", now_ms)
    assert metadata.settle_usage("asked", now_ms, Sums(), now_ms)
    assert metadata.unmeter_bucket("asked")
    found = metadata.bucket_usage("metered")
    assert found is not None
    assert found.held == count_bucket(metadata, "metered").sums == Sums(2, 2)
    front.client.store().delete_many([row.key for row in rows], permanently=True)


def learn(front: System, system: System) -> None:
    """What a gateway and a daemon count of lifetimes, when a bucket is folded."""
    metadata, now_ms = system.metadata, system.clock.now_ms()
    for _ in range(2):
        front.metadata.count_deaths({"folded": Counts()}, now_ms)
    previous_ms = next((row.counted_ms for row in metadata.survival() if row.bucket == OTHERS), None)
    surveyed_ms = now_ms if previous_ms is None else previous_ms
    metadata.count_survey({OTHERS: Counts()}, previous_ms, surveyed_ms)
    assert metadata.count_survey({system.member_name("bucket"): Counts()}, surveyed_ms, now_ms, ["folded"])
    assert metadata.living_between(1, metadata.last_object_id())


def serve_again(store: RoleStore, system: System) -> None:
    """What a daemon of a cell does about buckets whose movers have died. Moving them is the operator's work."""
    database = store.database
    store.sql(
        f"REPLACE INTO {database}.moves VALUES ('moved', 'closed', 'b', 1, 7, 5), ('here', 'arriving', 'b', 1, 7, 5),"
        " ('wide', 'arriving', 'b', 1, 7, 5)",
        f"REPLACE INTO {database}.directory (bucket, home, owner, created_ms, slices) VALUES"
        " ('here', 'b', 'ann', 5, NULL), ('wide', 'b', 'ann', 5, 'b,c')",
        f"INSERT INTO {database}.changed_names (bucket, name) VALUES ('moved', 'n')",
    )
    source: Any = SimpleNamespace(move_row=lambda bucket: MoveRow(bucket, MoveState.GONE, "a", 1, 7, 5))
    cells = MoveCells("a", lambda _: nullcontext(source), lambda: nullcontext(system.metadata))
    assert MoveRecovery(system.metadata, system.clock, cells).run_once() == 3
    assert system.metadata.changed_names("moved", 2**63 - 1, 9) == []


def look(system: System) -> None:
    """All that the API shows, and a reader's GETs."""
    readings = Readings(system, gc_collector(system), 0)
    readings.status()
    readings.backlog()
    readings.histograms()
    readings.gc_plan(10)
    page = readings.blocks(None, 10, None, None, 0)
    block_id = BlockId(bytes.fromhex(page.blocks[0].block))
    readings.block(block_id)
    readings.entries(block_id, -1, 10)
    assert readings.object(key("large-2")).places
    monitor = system.operator.monitor("api", writes=False)
    monitor.health.started()
    assert monitor.health.ready().problems == {}
    for name, size in (("small-39", SMALL), ("large-2", LARGE), ("empty", 0)):
        assert system.client.store().get(key(name)) == data(name, size)
    assert len(system.client.store().list_objects("bucket", "small-", "", 100)) == 5
    assert system.client.store().list_buckets("", 10) == ["bucket"]


def change(front: System, gc: System, operator: System) -> None:
    """What named operators do in the console."""
    put(front, "regretted", 1)
    now_ms = front.clock.now_ms()
    front.metadata.delete_many([key("regretted")], now_ms, now_ms + 60_000)
    changes, control = operator.operator.changes(), GcControl(operator.metadata)
    changes.undelete("ann", operator.client.trash().find(key("regretted")))
    for name, is_long_ago in (("marked", False), ("marked long ago", True)):
        front.client.store().put(key(name), BytesIO(b"v"), versioning=Versioning.ENABLED)
        version = front.metadata.get(key(name)).version
        front.metadata.delete_versions([AddMarker(key(name), Versioning.ENABLED)], now_ms)
        front.metadata.delete_versions([DeleteVersion(key(name), version)], now_ms, now_ms + 60_000)
        if is_long_ago:
            gc.metadata.forget_floors(now_ms + 2 * FLOOR_MS, 100)
        changes.undelete("ann", operator.client.trash().find(key(name), version))
    for wanted in (Control(paused=True), Control()):
        changes.control_gc("ann", control.read(), wanted)


def journal(front: System, gc: System, operator: System) -> None:
    """What they do with a journal of deletes: they add to it, also when it is full, and GC writes it into the store."""
    now_ms = front.clock.now_ms()
    for rows_max in (1000, 1):
        for system in (front, gc, operator):
            system.metadata.keep_journal(rows_max)
        rows = [front.client.store().put(key(f"journal-{n}"), BytesIO(b"1")) for n in range(2)]
        assert gc.metadata.delete_unchanged(rows[:1], now_ms) == rows[:1]
        if rows_max == 1:
            assert gc.metadata.journal_gap_ms() > 0
        deleted = front.metadata.delete(rows[1].key, now_ms, now_ms + 10**9)
        assert operator.metadata.undelete([operator.client.trash().find(deleted.key)]).rows
    assert gc.client.journal().ship() == 3
    assert front.metadata.journal_gap_ms() == 0


def leave(store: RoleStore, front: System, gc: System, operator: System) -> None:
    """What they do with a bucket that is being moved to another cell: they write down what they change."""
    now_ms = front.clock.now_ms()
    rows = [front.client.store().put(ObjectKey("leaving", name), BytesIO(b"1")) for name in "kl"]
    front.metadata.delete(rows[1].key, now_ms, now_ms + 10**9)
    store.sql(
        f"REPLACE INTO {store.database}.moves VALUES ('leaving', '{MoveState.LEAVING}', 'b', 1, 7, 5)",
        f"REPLACE INTO {store.database}.counters VALUES ('moves', 1000)",
    )
    for system in (front, gc, operator):
        system.metadata.obey_moves(lambda _: None)
    front.client.store().put(ObjectKey("leaving", "m"), BytesIO(b"1"))
    assert gc.metadata.delete_unchanged(rows[:1], now_ms) == rows[:1]
    assert operator.metadata.undelete([operator.client.trash().find(rows[1].key)]).rows
    assert [one.name for one in front.metadata.changed_names("leaving", 2**63 - 1, 9)] == ["m", "k", "l"]
    assert len(front.metadata.delete_many([ObjectKey("leaving", name) for name in "lm"], now_ms)) == 2
    uploads = front.client.uploads()
    upload = uploads.create(ObjectKey("leaving", "u"), "ann", b"")
    uploads.put_part(upload, 1, BytesIO(b"part"), b"")
    assert upload.upload_id in [one.upload_id for one in gc.metadata.old_uploads(now_ms + 10**6, 99)]
    assert gc.metadata.abort_upload(upload.upload_id, now_ms)
    assert len(front.metadata.changed_names(parts_bucket("leaving"), 2**63 - 1, 9)) == 3


def test_a_whole_life_needs_all_rights_and_no_others(store: RoleStore, systems: dict[str, System]) -> None:
    fill(systems["front"])
    keep_buckets(systems["front"])
    upload_parts(systems["front"])
    keep_versions(systems["front"])
    publish(systems["producer"])
    pack(systems["consumer"])
    publish(systems["producer"])
    drain(systems["consumer"])
    collect(systems["front"], systems["gc"])
    # GC's housekeeping does what the consumer's does.
    put(systems["front"], "late-1")
    put(systems["front"], "late-2")
    publish(systems["producer"])
    with consumer_service(systems["consumer"]) as consumer:
        consumer.drain(make_room=lambda: False)
    return_one(systems["gc"])
    gc_service(systems["gc"]).run_once()
    for role in ("consumer", "gc"):
        trim(systems["front"], systems[role])
        learn(systems["front"], systems[role])
        serve_again(store, systems[role])
    for role in ("producer", "consumer", "gc"):
        keep_totals(systems[role])
    change(systems["front"], systems["gc"], systems["operator"])
    notify(systems["front"], systems["gc"], systems["producer"])
    correct(systems["front"], systems["gc"])
    meter(systems["front"], systems["gc"], systems["operator"], systems["producer"])
    journal(systems["front"], systems["gc"], systems["operator"])
    leave(store, systems["front"], systems["gc"], systems["operator"])
    for role in ("reader", "api", "console", "operator"):
        look(systems[role])
    any_system = systems["reader"]
    assert problems(any_system.metadata, any_system.blocks, any_system.landing, any_system.medium) == []
    assert [(role, *one) for role in ROLES for one in unequal(store.rights[role], store.changes[role])] == []


LOCKS = [("versions", "UPDATE", frozenset({"created_ms"})), ("buckets", "UPDATE", frozenset({"deleted_ms"}))]
"""Rights of operators and of GC, who only lock such rows: MySQL demands a right to change for that."""


def unequal(granted: TableRights, used: TableRights) -> Iterator[tuple[str, str, str]]:
    """The rights to change rows that were given and not used, and the other way round."""
    for table in TABLES:
        may, did = granted[table], used[table]
        for verb in ("INSERT", "UPDATE", "DELETE"):
            if (table, verb, may.get(verb)) in LOCKS:
                continue
            if (verb in may) != (verb in did):
                yield table, verb, "not used" if verb in may else "not granted"
            elif verb in may and may[verb] and may[verb] != did[verb]:
                yield table, verb, f"used for {sorted(did[verb])}"


@pytest.mark.parametrize("role", ROLES)
def test_the_check_of_the_configuration_tells_the_rights_of_each_role(store: RoleStore, role: str) -> None:
    """`nos-ec config check --connect` names what the script grants, with its columns, and fails no role."""
    with closing(DatabaseCheck(store.settings(role).store.url(), replica=False)) as trial:
        trial.connect()
        assert trial.schema() is not None
        said = trial.rights()
    told: TableRights = {name: {} for name in TABLES}
    for part in said.removeprefix("allowed: ").removesuffix("; nothing else").split("; ")[1:]:
        verb, _, names = part.partition(" on ")
        for table, columns in re.findall(r"(\w+)(?: \(([^)]*)\))?", names):
            told[table][verb] = frozenset(columns.split(", ")) if columns else frozenset()
    assert said.startswith("allowed: SELECT on all tables; ")
    assert told == {name: store.rights[role][name] for name in TABLES}


@pytest.mark.parametrize("role", ROLES)
def test_the_server_refuses_everything_else(store: RoleStore, role: str) -> None:
    refused = 0
    for table in METADATA.sorted_tables:
        rights = store.rights[role][table.name]
        column = next(one.name for one in table.c if one.computed is None)
        for verb, statement in {
            "INSERT": f"INSERT INTO {table.name} ({column}) VALUES (1)",
            "DELETE": f"DELETE FROM {table.name} WHERE {column} IS NULL",
            "UPDATE": f"UPDATE {table.name} SET {column} = {column} WHERE {column} IS NULL",
        }.items():
            if verb not in rights or (rights[verb] and column not in rights[verb]):
                assert store.try_sql(role, statement) in (NO_TABLE_RIGHT, NO_COLUMN_RIGHT), (table.name, verb)
                refused += 1
        assert store.try_sql(role, f"SELECT * FROM {table.name} LIMIT 1") == 0
        assert store.try_sql(role, f"DROP TABLE {table.name}") == NO_TABLE_RIGHT
    assert refused == 3 * len(TABLES) if role in ("reader", "api", "console") else refused > 0


def refusals(systems: dict[str, System]) -> Iterator[tuple[str, Any]]:
    """What each role must not do, as calls."""
    now_ms = systems["reader"].clock.now_ms()
    for role in ("reader", "api", "producer", "console", "operator"):
        system = systems[role]
        yield role, lambda system=system: system.client.store().put(key("new"), BytesIO(b"x"))
        yield role, lambda system=system: system.client.store().delete(key("small-39"))
    for role in ("reader", "api", "console", "operator"):
        metadata = systems[role].metadata
        yield role, lambda metadata=metadata: metadata.acquire_lease("any", now_ms, 1000)
        yield role, lambda metadata=metadata: metadata.mark_published([metadata.get(key("many-2"))], now_ms)
    yield "producer", lambda: leave_block(systems["producer"], "producer")
    yield "consumer", lambda: systems["consumer"].client.store().delete(key("small-39"))
    collector, said = systems["gc"].metadata, encode_attributes({"a": "b"})
    yield "gc", lambda: collector.set_attributes(collector.get(key("small-39")), said)  # it may only move and remove


def test_a_refusal_is_an_error_of_the_configuration(systems: dict[str, System]) -> None:
    put(systems["front"], "small-39")
    put(systems["front"], "many-2", 1)
    tried = 0
    for role, call in refusals(systems):
        with pytest.raises(ConfigError, match=rf"denied to user 'nos-ec-{role}'.*deploy/sql/grants\.sh"):
            call()
        tried += 1
    assert tried == 21
    assert systems["reader"].client.store().get(key("small-39")) == data("small-39", SMALL)


@pytest.mark.parametrize(
    ("role", "command"),
    [("reader", ["rm", "bucket/kept"]), ("api", ["producer", "--once"]), ("producer", ["consumer", "--once"])],
)
def test_a_command_with_the_wrong_key_ends_with_3(store: RoleStore, role: str, command: list[str]) -> None:
    with store.open("front") as system:
        put(system, "kept")
    environment = without_settings(os.environ) | store.environment(role)
    done = subprocess.run(
        [sys.executable, "-m", "nos_ec", "--config", str(store.config), *command, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    said = json.loads(done.stderr.splitlines()[-1])
    assert f"denied to user 'nos-ec-{role}'" in said["message"]
    with store.open("reader") as system:
        assert system.client.store().get(key("kept")) == data("kept", SMALL)


def test_running_the_script_again_changes_no_password(store: RoleStore) -> None:
    urls = {role: (store.folder / role / "metadata-url").read_text() for role in ROLES}
    store.sql(*store.script().splitlines())
    assert {role: (store.folder / role / "metadata-url").read_text() for role in ROLES} == urls
    (store.folder / "gc" / "metadata-url").unlink()
    store.sql(*store.script("gc").splitlines())
    assert (store.folder / "gc" / "metadata-url").read_text() != urls["gc"]
    with store.open("gc") as system:
        assert system.metadata.find_store_id() is not None


def test_the_files_with_passwords_are_not_for_others(store: RoleStore) -> None:
    for role in ROLES:
        file = store.folder / role / "metadata-url"
        assert file.stat().st_mode & 0o777 == 0o640
        assert file.stat().st_gid == Path(file.parent).stat().st_gid
