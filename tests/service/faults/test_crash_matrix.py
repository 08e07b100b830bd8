"""kill -9 at every named step of every write path, then a restart: nothing is lost, nothing leaks.

A case runs one real command in a process of its own with NOS_EC_KILL_AT set; a command that does not die of it
fails the test. Afterwards the services run as they would after a restart, and the store must hold every
acknowledged object, have block counters that add up (invariant 6) and nothing left over.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from threading import Event

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.ids import ObjectKey, new_segment_id
from nos_ec.core.notifications.configuration import Notification, encode
from nos_ec.core.states import ObjectState
from nos_ec.engine.figures.bucket_count import count_bucket
from nos_ec.engine.upkeep.usage_keeper import COUNT_AFTER_MS
from nos_ec.ports.metadata import CannedAcl, DocumentKind
from nos_gc.assemble import gc_service
from tests.rig import gathered_puts, long_packing
from tests.rig.at_rest import LaterClock, end_log
from tests.rig.device_log_work import KILL_POINTS as DEVICE_LOG_POINTS
from tests.rig.fakes.audit import all_blocks
from tests.rig.gathered_puts import data_of
from tests.service.check.test_check import check, rewrite
from tests.service.check.test_scrub import scrubber
from tests.service.conftest import CHUNK, STRIPE, TTL_OVER_MS, Bench, damage_slots
from tests.service.dump.test_rebuild_journal import (
    DELETE_JOURNAL_POINTS,
    JOURNAL_REBUILD_POINTS,
    PRUNE_POINTS,
    SHIP_POINTS,
)
from tests.service.dump.test_rebuild_kills import (
    ACCESS_DUMP_POINTS,
    ACCESS_POINTS,
    DUMP_FILE_POINTS,
    DUMP_POINTS,
    METADATA_REBUILD_POINTS,
)
from tests.service.dump.test_rebuild_refused import REFUSED_LARGE_POINTS, REFUSED_POINTS, UNRECORDED_POINTS
from tests.service.landing.test_landing_log_kills import JOINED_LOG_POINTS, LANDING_LOG_POINTS, SEGMENT_SEAL_POINTS
from tests.service.objects.test_cells import CELL_POINTS
from tests.service.objects.test_moves import (
    BROUGHT_BACK_POINTS,
    CHANGED_POINTS,
    GIVE_UP_POINTS,
    LEFT_POINTS,
    MOVE_POINTS,
    PURGE_POINTS,
    SERVED_AGAIN_POINTS,
    SERVED_MOVED_POINTS,
)
from tests.service.objects.test_moves_of_slices import SLICE_POINTS
from tests.service.objects.test_trash import TRASH_POINTS
from tests.service.packing.foreign import publish_named
from tests.service.s3.test_lifecycle_walk import LIFECYCLE_POINTS
from tests.service.s3.test_s3_rename import RENAME_POINTS
from tests.service.s3.test_s3_wide import WIDE_POINTS
from tests.service.s3.test_s3_wide_notifications import DOCUMENT_POINTS
from tests.service.s3.test_upload_kills import UPLOAD_POINTS
from tests.service.s3.test_version_kills import VERSION_POINTS

pytestmark = [pytest.mark.timed, pytest.mark.invariant(1)]

CONSUMER_POINTS = [
    "writer.allocated",
    "block_store.shard_created",
    "block_store.created",
    "writer.before_append",
    "block_store.shard_written",
    "writer.appended",
    "writer.appended:3",
    "metadata.commit_group.before_commit",
    "metadata.commit_group.before_commit:2",
    "writer.committed",
    "writer.committed:3",
    "consumer.before_offsets",
    "consumer.offsets_committed",
    "block_store.shard_sealed",
    "writer.store_sealed",
    "writer.sealed",
    "lock_clock.advanced",
    "reaper.doomed",
    "audit.written",
    "audit.recorded",
    "reaper.deleted",
]
COPY_POINTS = ["landing_store.unlinked", "landing_store.unlinked:20"]
"""While a consumer deletes the landing copies of what it has packed."""
AILING_CONSUMER_POINTS = [
    "writer.abandoned",
    "writer.allocated:2",
    "writer.before_append:2",
    "writer.appended",
    "writer.abandoned:2",
    "writer.allocated:3",
    "writer.appended:2",
    "metadata.commit_group.before_commit",
    "writer.committed",
    "writer.store_sealed",
    "writer.sealed",
]
"""While a group is written again to other blocks, and while a block is sealed because its place became worse."""
LONG_CONSUMER_POINTS = [
    "writer.appended",
    "writer.window_appended",
    "block_store.shard_written:20",
    "writer.appended:2",
    "metadata.commit_group.before_commit",
    "writer.committed",
    "writer.window_appended:2",
    "writer.appended:4",
    "consumer.before_offsets",
]
"""While groups are written in windows. One append of a second window is torn."""
LONG_GC_POINTS = [
    "writer.window_appended",
    "block_store.shard_written:20",
    "writer.appended:2",
    "writer.committed",
    "gc.rewritten",
]
FOREIGN_EVENT_POINTS = ["writer.appended", "writer.committed", "consumer.before_offsets"]
FULL_STORE_POINTS = ["block.forgotten", "writer.allocated:2"]
"""While the store refuses a new block."""
PRODUCER_POINTS = ["producer.leases_taken", "producer.published", "producer.marked", "producer.leases_released"]
SPREAD_POINTS = ["producer.published", "producer.marked", "producer.marked:2"]
"""While a batch is marked in two parts, because some events are not in their bucket's own partition."""
EVENT_PUT_POINTS = ["metadata.events_added.before_commit", "metadata.record_puts.before_commit", "put.landed"]
USAGE_PUT_POINTS = ["metadata.usage_changed.before_commit", "put.landed"]
USAGE_KEEP_POINTS = [
    "usage.metered",
    "metadata.usage_folded.before_sums",
    "metadata.usage_folded.before_commit",
    "usage.counted",
]
"""While a metered bucket changes, and while its usage is kept."""
EVENT_SEND_POINTS = ["producer.notifications_sent", "producer.notifications_forgotten"]
"""While a bucket with notifications changes, and while its events are sent."""
TAKEOVER_POINTS = ["producer.lease_fenced", "producer.lease_fenced:7", "event.recorded", "producer.leases_taken"]
PUT_POINTS = [
    "put.reserved",
    "landing_store.written",
    "landing_store.renamed",
    "put.landed",
    "metadata.record_puts.before_commit",
    "put.recorded",
]
GATHERED_POINTS = [
    "put.recorded",
    "put.reserved:2",
    "landing_store.written:2",
    "landing_store.written:4",
    "landing_store.renamed:4",
    "put.landed:2",
    "metadata.record_puts.before_commit:2",
    "put.recorded:2",
]
"""In the first batch of concurrent PUTs, while the others wait, and in the second, which has all others."""
LARGE_POINTS = [
    "large.allocated",
    "block_store.shard_written",
    "large.appended",
    "large.appended:2",
    "large.written",
    "put.landed",
    "metadata.record_puts.before_commit",
    "put.recorded",
    "large.tail_landed",
    "large.recorded",
]
"""Of an object of three blocks and a tail."""
AILING_LARGE_POINTS = ["large.allocated:2", "large.allocated:3", "large.appended:2", "large.written", "large.recorded"]
GC_POINTS = [
    "writer.allocated",
    "block_store.created",
    "writer.before_append",
    "block_store.shard_written",
    "writer.appended",
    "metadata.commit_group.before_commit",
    "writer.committed",
    "gc.rewritten",
    "gc.batch_drained",
    "gc.condemned",
    "gc.condemned:3",
    "audit.written",
    "audit.recorded",
    "audit.recorded:2",
    "block_store.shard_deleted",
    "gc.block_deleted",
    "gc.block_deleted:2",
    "gc.block_forgotten",
    "gc.run_noted",
    "gc.run_noted:2",
    "event.recorded",
]
GC_CONTROL_POINTS = ["gc.control_changed", "event.recorded"]
GC_EMPTY_POINTS = ["gc.empty_condemned", "gc.empty_condemned:2", "gc.tail_deleted"]
GC_SHORT_POINTS = ["gc.grace_cut", "gc.block_deleted:2", "gc.block_forgotten"]
"""While the grace period of condemned blocks is cut short for lack of space."""
GC_QUARANTINE_POINTS = ["gc.quarantine_ended", "audit.recorded", "gc.block_deleted"]
"""While a block is deleted whose time in quarantine is over."""
GC_LEFT_ALONE_POINTS = ["gc.cooled_down"]
RECOVERY_POINTS = ["recovery.fenced", "event.recorded", "recovery.store_sealed", "recovery.sealed"]
LOG_PUT_POINTS = [
    "landing_log.segment_opened",
    "device_log.superblock_written",
    "device_log.header_written",
    "landing_log.segment_created",
    "device_log.appended",
    "landing_log.appended",
    "put.landed",
    "metadata.record_puts.before_commit",
    "put.recorded",
    "device_log.footer_written",
    "device_log.sealed",
    "landing_log.sealed_in_medium",
    "landing_log.sealed",
]
"""A PUT through the landing log opens a segment, and seals it at the end of the process."""
LOG_GATHERED_POINTS = [
    "put.recorded",
    "put.reserved",
    "device_log.appended",
    "put.landed:2",
    "metadata.record_puts.before_commit:2",
    "put.recorded:2",
]
TRIMMER_POINTS = [
    "reaper.doomed",
    "reaper.deleted",
    "trimmer.doomed",
    "device_log.header_zeroed",
    "device_log.header_zeroed:2",
    "trimmer.released",
    "trimmer.forgotten",
]
LOG_RECOVERY_POINTS = ["recovery.fenced", "device_log.sealed", "recovery.segment_sealed", "recovery.segment_recorded"]
SLOT_POINTS = ["device_log.slot_settled"]
"""While the header of a landing segment is written again."""
LATE_SEGMENT_POINTS = ["device_log.sealed", "device_log.header_zeroed", "recovery.unknown_released"]
"""While a segment is given back that was created after its row was forgotten."""
FORWARD_POINTS = [
    "copy_forward.made_due",
    "device_log.appended",
    "copy_forward.landed",
    "copy_forward.moved",
    "trimmer.doomed",
]
"""While stragglers are written again."""
REPLACE_POINTS = ["device_log.file_written", "device_log.superblock_written", "device_log.replacement_recorded"]
OTHER_POINTS = ["delete.done", "reaper.reverted"]
INIT_POINTS = ["block_store.shard_made"]
REBUILD_POINTS = [
    "block_store.shard_sealed",
    "block_store.shard_sealed:9",
    "shard_rebuild.created",
    "shard_rebuild.created:2",
    "shard_rebuild.written",
    "shard_rebuild.written:2",
    "shard_rebuild.installed",
    "shard_rebuild.installed:2",
    "shard_rebuild.installed:3",
]
"""While two lost shards are rebuilt, and a damaged one in one of the blocks. One block is still open."""
SCRUB_POINTS = [
    "scrub.saved",
    "scrub.saved:2",
    "scrub.shards_mended",
    "scrub.shards_mended:2",
    "scrub.object_mended",
    "shard_rebuild.created",
    "shard_rebuild.written:2",
    "shard_rebuild.installed",
    "shard_rebuild.installed:2",
    "shard_rebuild.installed:3",
]
"""While two blocks with damaged shards are scrubbed. One of them also lacks a shard, and has a damaged object."""
REPAIR_POINTS = ["repairs.step_done", "repairs.step_done:2", "repairs.step_done:4"]
TRAIL_POINTS = ["audit.put_aside"]
"""While a file of the audit trail is full."""
TRAIL_AGE_POINTS = ["audit.old_deleted", "audit.old_deleted:2", "audit.notes_deleted"]
"""While files of the audit trail are too old, and were so at an earlier look."""


def kill(bench: Bench, point: str, *arguments: str, stdin: bytes = b"") -> None:
    """Run a command that must die at `point`."""
    done = bench.run(*arguments, kill_at=point, stdin=stdin)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"


def kill_ailing(bench: Bench, point: str, action: str, stdin: bytes = b"") -> None:
    """Run it on a store with some failing appends; it must die at `point`."""
    program = str(Path(__file__).with_name("ailing_store.py"))
    done = bench.run_python(program, str(bench.config), action, kill_at=point, stdin=stdin)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"


def kill_long(bench: Bench, point: str, action: str) -> None:
    """Run it with a packer that plans long groups; it must die at `point`."""
    program = long_packing.__file__
    done = bench.run_python(program, str(bench.config), action, kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"


def assert_recovers(bench: Bench, *, readable_at_once: bool = True) -> None:
    """The state of the store after a restart of all services, and another one, which seals what they wrote."""
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        if readable_at_once:
            bench.assert_readable(system)
        bench.settle(system)
    with bench.open() as system:
        system.clock = LaterClock(2 * TTL_OVER_MS)  # reservations of dead PUTs
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def publish_and_delete(bench: Bench) -> None:
    """Put objects, publish them, and delete some before they are packed."""
    with bench.open() as system:
        keys = bench.put_some(system, 220)
        bench.produce(system)
        for key in keys[::9]:
            bench.delete(system, key)


@pytest.mark.parametrize("point", CONSUMER_POINTS)
def test_consumer_killed(bench: Bench, point: str) -> None:
    _kill_consumer(bench, point)


@pytest.mark.landing("store")
@pytest.mark.parametrize("point", CONSUMER_POINTS + COPY_POINTS)
def test_consumer_of_copies_killed(bench: Bench, point: str) -> None:
    _kill_consumer(bench, point)


def _kill_consumer(bench: Bench, point: str) -> None:
    bench.prepare(publish_and_delete)
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("point", FOREIGN_EVENT_POINTS)
def test_consumer_killed_with_events_of_another_program(bench: Bench, point: str) -> None:
    """They name versions that no producer of ours has published. What the dead consumer packed is not packed again."""
    with bench.open() as system:
        keys = bench.put_some(system, 220)
        publish_named(system, [(key, system.client.store().head(key).version) for key in keys])
    kill(bench, point, "consumer", "--once")
    with bench.open() as system:
        packed = system.metadata.totals().packed_objects
        with consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)
        assert (consumer.counters.packed, consumer.counters.superseded) == (220 - packed, 0)
    assert_recovers(bench)


@pytest.mark.parametrize("point", AILING_CONSUMER_POINTS)
def test_consumer_killed_while_places_go_bad(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 220)
        bench.produce(system)
    kill_ailing(bench, point, "consumer")
    assert_recovers(bench)


@pytest.mark.parametrize("point", LONG_CONSUMER_POINTS)
def test_consumer_of_long_groups_killed(bench: Bench, point: str) -> None:
    bench.prepare(publish_and_delete)
    kill_long(bench, point, "consumer")
    assert_recovers(bench)


@pytest.mark.parametrize("point", LONG_GC_POINTS)
def test_gc_of_long_groups_killed(bench: Bench, point: str) -> None:
    bench.prepare(_packed_with_holes)
    kill_long(bench, point, "gc")
    assert_recovers(bench)


@pytest.mark.parametrize("point", FULL_STORE_POINTS)
def test_consumer_killed_while_the_store_is_full(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 220)
        bench.produce(system)
    kill_ailing(bench, point, "full")
    assert_recovers(bench)


@pytest.mark.parametrize("point", PRODUCER_POINTS)
def test_producer_killed(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
    kill(bench, point, "producer", "--once")
    assert_recovers(bench)


def _watched(bench: Bench) -> None:
    """Make a bucket with notifications, and three objects in it."""
    bench.config.write_text(bench.config.read_text() + '[s3]\nnotification_topics = "changes"\n')
    with bench.open() as system:
        system.metadata.create_bucket("b", "ann", CannedAcl.PRIVATE, system.clock.now_ms())
        document = encode([Notification("all", "changes", ("s3:ObjectCreated:*",))])
        system.metadata.set_bucket_document("b", DocumentKind.NOTIFICATION, document, system.clock.now_ms())
        for name in "xyz":
            bench.put(system, name, bench.data(CHUNK))


def _notified(bench: Bench) -> list[tuple[str, str]]:
    """(key, sequencer) of the events in the topic, without repetitions, in the order in which they arrived first."""
    path = bench.folder / "store" / "notifications" / "changes.jsonl"
    objects = [json.loads(line)["Records"][0]["s3"]["object"] for line in path.read_text().splitlines()]
    return list(dict.fromkeys((one["key"], one["sequencer"]) for one in objects))


@pytest.mark.parametrize("point", EVENT_PUT_POINTS)
def test_put_of_a_bucket_with_notifications_killed(bench: Bench, point: str) -> None:
    """Each object has its event, and nothing else has one."""
    _watched(bench)
    new = bench.data(CHUNK)
    kill(bench, point, "put", "b/victim", "-", stdin=new)
    _adopt_unacknowledged(bench, ObjectKey("b", "victim"), new)
    assert_recovers(bench)
    with bench.open() as system:
        rows = system.metadata.list_objects("b", "", "", 10)
    assert sorted(_notified(bench)) == sorted((row.key.name, f"{row.version:016X}") for row in rows)


@pytest.mark.parametrize("point", EVENT_SEND_POINTS)
def test_producer_killed_while_it_sends_notifications(bench: Bench, point: str) -> None:
    _watched(bench)
    kill(bench, point, "producer", "--once")
    bench.end_leases()
    assert_recovers(bench)
    assert [key for key, _ in _notified(bench)] == ["x", "y", "z"]


def _metered(bench: Bench) -> None:
    """Make a metered bucket with objects, and changes that are not folded. One more bucket is to be metered."""
    config = bench.config.read_text()
    bench.config.write_text(config.replace("[store]\n", "[store]\ncount_usage = true\n"))
    with bench.open() as system:
        bench.put(system, "before", bench.data(CHUNK))
        asked_ms = system.clock.now_ms() - COUNT_AFTER_MS
        for bucket in "bc":
            system.metadata.create_bucket(bucket, "ann", CannedAcl.PRIVATE, asked_ms)
            system.metadata.set_bucket_document(bucket, DocumentKind.QUOTA, b"{}", asked_ms)
        system.metadata.meter_bucket("b", asked_ms)
        for name in "xyz":
            bench.put(system, name, bench.data(CHUNK))


def _assert_usage_is_exact(bench: Bench) -> None:
    with bench.open() as system:
        system.clock = LaterClock(COUNT_AFTER_MS)
        bench.produce(system)
        found = system.metadata.bucket_usages("", 9)
        assert [one.bucket for one in found] == ["b", "c"]
        assert [one.held for one in found] == [count_bucket(system.metadata, one.bucket).sums for one in found]
        assert found[0].counted_ms is not None


@pytest.mark.parametrize("point", USAGE_PUT_POINTS)
def test_put_of_a_metered_bucket_killed(bench: Bench, point: str) -> None:
    _metered(bench)
    new = bench.data(CHUNK)
    kill(bench, point, "put", "b/victim", "-", stdin=new)
    _adopt_unacknowledged(bench, ObjectKey("b", "victim"), new)
    assert_recovers(bench)
    _assert_usage_is_exact(bench)


@pytest.mark.parametrize("point", USAGE_KEEP_POINTS)
def test_producer_killed_while_it_keeps_usage(bench: Bench, point: str) -> None:
    _metered(bench)
    kill(bench, point, "producer", "--once")
    bench.end_leases()
    assert_recovers(bench)
    _assert_usage_is_exact(bench)


@pytest.mark.parametrize("point", SPREAD_POINTS)
def test_producer_of_a_spread_bucket_killed(bench: Bench, point: str) -> None:
    """The next one does not spread it."""
    with bench.open() as system:
        bench.put_some(system, 60)
    config = bench.config.read_text()
    bench.config.write_text(config.replace("[log]\n", "[log]\nspread = 2\n"))
    kill(bench, point, "producer", "--once")
    bench.config.write_text(config)
    assert_recovers(bench)


@pytest.mark.parametrize("point", TAKEOVER_POINTS)
def test_producer_killed_while_it_takes_over_from_a_dead_one(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
    kill(bench, "producer.published", "producer", "--once")
    bench.end_leases()
    kill(bench, point, "producer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("existing", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("point", PUT_POINTS)
def test_put_killed(bench: Bench, point: str, existing: bool) -> None:
    key = ObjectKey("b", "victim")
    new = bench.data(CHUNK)
    if existing:
        with bench.open() as system:
            bench.put(system, "victim", bench.data(2 * CHUNK))
            bench.pack(system)
    kill(bench, point, "put", str(key), "-", stdin=new)
    _adopt_unacknowledged(bench, key, new)
    assert_recovers(bench)


@pytest.mark.landing("store")
@pytest.mark.parametrize("point", GATHERED_POINTS)
def test_gathered_puts_killed(bench: Bench, point: str) -> None:
    """Each of them happened or not; those that were acknowledged did. Two of them overwrite."""
    _kill_gathered(bench, point)
    assert_recovers(bench)


@pytest.mark.parametrize("existing", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("point", LARGE_POINTS)
def test_large_put_killed(bench: Bench, point: str, existing: bool) -> None:
    key = ObjectKey("b", "victim")
    new = bench.data(20 * STRIPE)
    if existing:
        with bench.open() as system:
            bench.put(system, "victim", bench.data(9 * STRIPE))
    kill(bench, point, "put", str(key), "-", stdin=new)
    _adopt_unacknowledged(bench, key, new)
    assert_recovers(bench)


@pytest.mark.parametrize("point", AILING_LARGE_POINTS)
def test_large_put_killed_while_places_go_bad(bench: Bench, point: str) -> None:
    key = ObjectKey("b", "victim")
    new = bench.data(20 * STRIPE)
    kill_ailing(bench, point, "put", stdin=new)
    _adopt_unacknowledged(bench, key, new)
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_POINTS)
def test_gc_killed(bench: Bench, point: str) -> None:
    bench.prepare(_packed_with_holes)
    kill(bench, point, "gc", "run", "--apply")
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_POINTS)
def test_gc_killed_between_two_workers(bench: Bench, point: str) -> None:
    """The first of them has collected its blocks, or the process dies with it. Afterwards, there is only one."""
    bench.prepare(_packed_with_holes)
    config = bench.config.read_text()
    bench.config.write_text(config.replace("[gc]\n", "[gc]\nworkers = 2\n"))
    kill(bench, point, "gc", "run", "--apply")
    bench.config.write_text(config)
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_EMPTY_POINTS)
def test_gc_killed_among_empty_blocks(bench: Bench, point: str) -> None:
    bench.prepare(_packed_with_holes)
    with bench.open() as system:
        large = bench.put(system, "large", bench.data(20 * STRIPE))
        bench.delete(system, large)
    kill(bench, point, "gc", "run", "--apply")
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_CONTROL_POINTS)
def test_killed_while_gc_is_paused_and_resumed(bench: Bench, point: str) -> None:
    """What was asked holds, and what a run has moved stays moved."""
    bench.prepare(_packed_with_holes)
    kill(bench, point, "gc", "pause")
    paused = bench.run("gc", "run", "--apply", "--json")
    assert json.loads(paused.stdout)["stopped"] == "paused"
    kill(bench, point, "gc", "resume")
    kill(bench, point, "gc", "limit", "--bytes-per-s", "1GiB")
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_SHORT_POINTS)
def test_gc_killed_while_space_is_short(bench: Bench, point: str) -> None:
    bench.prepare(_packed_with_holes)
    plenty = bench.config.read_text().replace("block_grace_ms = 0", "block_grace_ms = 5000")
    bench.config.write_text(plenty.replace("reserve_bytes = 0", 'reserve_bytes = "1024TiB"'))
    kill(bench, point, "gc", "run", "--apply")
    bench.config.write_text(plenty)
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_QUARANTINE_POINTS)
def test_gc_killed_while_it_ends_quarantine(bench: Bench, point: str) -> None:
    """The block is not released any more, and the next run deletes it."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        block_id, now_ms = system.new_block_id(), system.clock.now_ms()
        system.blocks.create(block_id, bytes(STRIPE))
        assert system.metadata.quarantine_block(block_id, 1, BlockAccount(0, STRIPE, 0, 0, ()), now_ms, now_ms)
    kill(bench, point, "gc", "run", "--apply")
    assert bench.run("quarantine", "release", block_id.hex()).returncode == 5
    assert_recovers(bench)


@pytest.mark.parametrize("point", GC_LEFT_ALONE_POINTS)
def test_gc_killed_when_it_leaves_a_block_alone(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 1000, size_max=20, prefix="a-name-that-is-much-longer-than-its-object")
        bench.pack(system)
    kill(bench, point, "gc", "run", "--apply")
    assert_recovers(bench)


@pytest.mark.parametrize("point", RECOVERY_POINTS)
def test_recovery_killed(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 220)
        bench.produce(system)
    kill(bench, "writer.appended:2", "consumer", "--once")
    bench.end_leases()
    kill(bench, point, "gc", "run", "--apply")
    assert_recovers(bench)


@pytest.mark.parametrize("victims", [1, 30])
def test_delete_killed(bench: Bench, victims: int) -> None:
    with bench.open() as system:
        keys = bench.put_some(system, 60)
        bench.pack(system)
        keys += bench.put_some(system, 20, prefix="landed")
    chosen = keys[-victims:]
    kill(bench, "delete.done", "rm", *map(str, chosen))
    for key in chosen:
        del bench.acknowledged[key]
    assert_recovers(bench)


def test_reaper_killed_after_reverting(bench: Bench) -> None:
    """Packed bytes that fail verification go back to their landing copy, also when the reaper dies right then."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.produce(system)
        bench.consume(system)
        _damage_shards(bench)
    kill(bench, "reaper.reverted", "gc", "run", "--apply")
    assert_recovers(bench, readable_at_once=False)


@pytest.mark.parametrize("point", INIT_POINTS)
def test_init_killed_while_it_recreates_a_shard(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
    shutil.rmtree(bench.folder / "store" / "blocks" / "shard-05")
    kill(bench, point, "init", "--new-shard", "5")
    refused = bench.run("init")
    assert refused.returncode == 3
    assert b"--new-shard 5" in refused.stderr
    assert bench.run("init", "--new-shard", "5").returncode == 0
    assert bench.run("init").returncode == 0
    assert_recovers(bench)


@pytest.mark.parametrize("point", REBUILD_POINTS)
def test_rebuild_of_shards_killed(bench: Bench, point: str) -> None:
    """What is unfinished counts as missing. The next run ends as one run would have, and any three shards may go."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        damaged = min(system.blocks.list_blocks())
        bench.put_some(system, 60, prefix="later")
        bench.produce(system)
    kill(bench, "writer.committed", "consumer", "--once")
    shards = bench.folder / "store" / "blocks"
    path = next(shards.glob(f"shard-00/*/{damaged.hex()}"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for lost in ("shard-05", "shard-09"):
        shutil.rmtree(shards / lost)
    assert bench.run("init", "--new-shard", "5", "--new-shard", "9").returncode == 0
    kill(bench, point, "shards", "rebuild")
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        bench.assert_readable(system)
    again = bench.run("shards", "rebuild")
    assert again.returncode == 0, again.stderr
    assert b"blocks short of a shard: 0" in again.stdout
    assert path.read_bytes() == whole
    assert not list(shards.glob("shard-*/*/*.new"))
    assert_recovers(bench)
    for lost in ("shard-00", "shard-03", "shard-10"):
        shutil.rmtree(shards / lost)
    with bench.open() as system:
        bench.assert_readable(system)


@pytest.mark.parametrize("point", SCRUB_POINTS)
def test_scrub_killed(bench: Bench, point: str) -> None:
    """The next run continues, and ends as one run would have."""
    with bench.open() as system:
        for prefix in ("first", "second"):
            bench.put_some(system, 40, prefix=prefix)
            end_log(system)
            bench.produce(system)
            bench.consume(system)
        rows = [row for row in all_blocks(system.metadata) if row.live_objects]
        victim = system.metadata.placed_in(rows[0].block_id)[-1]
        rewrite(system, rows[0], victim.extent.offset)
    files = (bench.folder / "store" / "blocks").rglob("shard-*/**/*")
    whole = {path: path.read_bytes() for path in files if path.is_file()}
    for row, shard in ((rows[0], 2), (rows[-1], 9)):
        path = next(path for path in whole if path.name == row.block_id.hex() and f"shard-{shard:02d}" in path.parts)
        path.write_bytes(whole[path][:-1] + bytes([whole[path][-1] ^ 1]))
    next(path for path in whole if path.name == rows[0].block_id.hex() and "shard-05" in path.parts).unlink()
    kill(bench, point, "scrub", "--rate", "0")
    for found_max in (4, 0):
        with bench.open() as system:
            system.clock = LaterClock(TTL_OVER_MS)
            result = scrubber(system).run_once(Event())
        assert (result.whole, result.left) == (True, 0)
        assert result.found <= found_max
        assert {path: path.read_bytes() for path in whole} == whole
    with bench.open() as system:
        moved = system.metadata.objects_with([victim.object_id])[victim.object_id]
        assert moved.state is ObjectState.LANDED
    assert not list((bench.folder / "store" / "blocks").glob("shard-*/*/*.new"))
    assert_recovers(bench)


@pytest.mark.parametrize("point", REPAIR_POINTS)
def test_apply_killed(bench: Bench, point: str) -> None:
    """What a killed run has done is passed over by the next one, which does the rest."""
    plan = bench.folder / "plan"
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        for _ in range(3):
            system.landing.put(system.new_landing_id(), b"nobody's")
        for _ in range(2):
            system.blocks.create(system.new_block_id(), bytes(STRIPE))
    assert bench.run("check", "--plan", str(plan)).returncode == 13
    kill(bench, point, "apply", str(plan))
    done = bench.run("apply", str(plan), "--json")
    assert json.loads(done.stdout)["done"] == 5 - int(point.partition(":")[2] or 1)
    assert bench.run("check").returncode == 0
    with bench.open() as system:
        system.clock = LaterClock(QUARANTINE_MS + TTL_OVER_MS)
        system.worker.housekeeping().run_once()
        assert gc_service(system).run_once().blocks_deleted == 2
        assert check(system) == []
    assert_recovers(bench)


@pytest.mark.parametrize("point", TRAIL_POINTS)
def test_killed_while_a_file_of_the_trail_is_put_aside(bench: Bench, point: str) -> None:
    bench.config.write_text(bench.config.read_text() + "[audit]\nsize_bytes_max = 1\n")
    with bench.open() as system:
        bench.put_some(system, 220)
        bench.produce(system)
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("point", TRAIL_AGE_POINTS)
def test_killed_while_old_files_of_the_trail_are_deleted(bench: Bench, point: str) -> None:
    folder = bench.folder / "store" / "audit"
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.produce(system)
    folder.mkdir(exist_ok=True)
    for name in ("trail-1500000000001.jsonl", "trail-1500000000002.jsonl", "old-1600000000000-1500000000002"):
        (folder / name).touch()
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)
    assert [path.name for path in folder.iterdir()] == ["trail.jsonl"]


# --- through the landing log --------------------------------------------------------------------------
@pytest.mark.parametrize("existing", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("point", LOG_PUT_POINTS)
def test_put_into_the_log_killed(bench: Bench, point: str, existing: bool) -> None:
    """Two objects: a single one would pass by the log. The overwritten version waits in another segment."""
    if existing:
        with bench.open() as system:
            bench.put(system, "other", bench.data(CHUNK))
            bench.put(system, "victim", bench.data(2 * CHUNK))
    new = _tree(bench, "other", "victim")
    kill(bench, point, "put", "-r", "b", str(bench.folder / "tree"))
    for key, data in new.items():
        _adopt_unacknowledged(bench, key, data)
    assert_recovers(bench)


@pytest.mark.parametrize("point", LOG_GATHERED_POINTS)
def test_gathered_puts_into_the_log_killed(bench: Bench, point: str) -> None:
    _kill_gathered(bench, point)
    assert_recovers(bench)


@pytest.mark.parametrize("point", TRIMMER_POINTS)
def test_killed_while_segments_are_given_back(bench: Bench, point: str) -> None:
    bench.prepare(publish_and_delete)
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("point", LOG_RECOVERY_POINTS)
def test_recovery_of_a_log_killed(bench: Bench, point: str) -> None:
    new = _tree(bench, "other", "victim")
    kill(bench, "put.recorded", "put", "-r", "b", str(bench.folder / "tree"))
    bench.acknowledged |= new
    bench.end_leases()
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("point", LATE_SEGMENT_POINTS)
def test_killed_while_a_segment_without_a_row_is_given_back(bench: Bench, point: str) -> None:
    with bench.open() as system:
        assert system.medium is not None
        system.medium.create(new_segment_id(system.clock.now_ms(), 7), 1, 0).close()
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("point", SLOT_POINTS)
def test_killed_while_a_header_is_written_again(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        end_log(system)
        segments = [row.segment for row in system.metadata.list_segments(None, 100)]
    damage_slots(bench, segments)
    kill(bench, point, "consumer", "--once")
    assert_recovers(bench)


@pytest.mark.parametrize("point", REPLACE_POINTS)
def test_killed_while_a_device_is_replaced(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.produce(system)
        bench.consume(system)
    device = bench.folder / "store" / "landing_log" / "device0"
    device.rename(bench.folder / "old")
    replace = ["init", "--new-device", "0"]
    kill(bench, point, *replace)
    if bench.run("init").returncode:
        assert bench.run(*replace).returncode == 0
    assert_recovers(bench)
    (bench.folder / "old").rename(device)
    assert b"was replaced by another one" in bench.run("init").stderr


@pytest.mark.parametrize("point", FORWARD_POINTS)
def test_killed_while_stragglers_are_written_again(bench: Bench, point: str) -> None:
    """One object in 16 is left of segments that were sealed long ago."""
    with bench.open() as system:
        system.clock = LaterClock(-TTL_OVER_MS)
        keys = bench.put_some(system, 440)
        for index, key in enumerate(keys):
            if index % 16:
                bench.delete(system, key)
    kill(bench, point, "gc", "run", "--apply")
    assert_recovers(bench)


def test_every_kill_point_is_in_the_matrix() -> None:
    """A new kill point has to be added here as well."""
    root = Path(__file__).parents[3]
    named = {
        name.strip('"')
        for folder in ("nos_ec", "producer", "consumer", "gc")
        for path in (root / folder).rglob("*.py")
        for name in re.findall(r"(?<!def )\bkill_point\((.*?)\)", path.read_text())
    }
    matrix = {
        point.partition(":")[0]
        for points in (
            CONSUMER_POINTS,
            COPY_POINTS,
            AILING_CONSUMER_POINTS,
            LONG_CONSUMER_POINTS,
            LONG_GC_POINTS,
            FOREIGN_EVENT_POINTS,
            FULL_STORE_POINTS,
            PRODUCER_POINTS,
            SPREAD_POINTS,
            TAKEOVER_POINTS,
            EVENT_PUT_POINTS,
            EVENT_SEND_POINTS,
            USAGE_PUT_POINTS,
            USAGE_KEEP_POINTS,
            PUT_POINTS,
            GATHERED_POINTS,
            LARGE_POINTS,
            AILING_LARGE_POINTS,
            GC_POINTS,
            GC_EMPTY_POINTS,
            GC_CONTROL_POINTS,
            GC_SHORT_POINTS,
            GC_QUARANTINE_POINTS,
            GC_LEFT_ALONE_POINTS,
            RECOVERY_POINTS,
            LOG_PUT_POINTS,
            LOG_GATHERED_POINTS,
            TRIMMER_POINTS,
            LOG_RECOVERY_POINTS,
            LATE_SEGMENT_POINTS,
            SLOT_POINTS,
            FORWARD_POINTS,
            REPLACE_POINTS,
            OTHER_POINTS,
            INIT_POINTS,
            REBUILD_POINTS,
            REPAIR_POINTS,
            SCRUB_POINTS,
            TRAIL_POINTS,
            TRAIL_AGE_POINTS,
            DEVICE_LOG_POINTS,
            LANDING_LOG_POINTS,
            JOINED_LOG_POINTS,
            SEGMENT_SEAL_POINTS,
            DUMP_POINTS,
            DUMP_FILE_POINTS,
            ACCESS_POINTS,
            ACCESS_DUMP_POINTS,
            METADATA_REBUILD_POINTS,
            SHIP_POINTS,
            DELETE_JOURNAL_POINTS,
            PRUNE_POINTS,
            JOURNAL_REBUILD_POINTS,
            REFUSED_POINTS,
            REFUSED_LARGE_POINTS,
            UNRECORDED_POINTS,
            TRASH_POINTS,
            UPLOAD_POINTS,
            VERSION_POINTS,
            RENAME_POINTS,
            LIFECYCLE_POINTS,
            CELL_POINTS,
            WIDE_POINTS,
            DOCUMENT_POINTS,
            MOVE_POINTS,
            SLICE_POINTS,
            BROUGHT_BACK_POINTS,
            CHANGED_POINTS,
            GIVE_UP_POINTS,
            SERVED_AGAIN_POINTS,
            SERVED_MOVED_POINTS,
            LEFT_POINTS,
            PURGE_POINTS,
        )
        for point in points
    }
    assert named - matrix == set(), "not in the matrix: add them to the list of a command that passes them"
    assert matrix - named == set(), "not in the code: remove them from the matrix"


def _kill_gathered(bench: Bench, point: str) -> None:
    with bench.open() as system:
        bench.put(system, "1-b", bench.data(CHUNK))
        bench.pack(system)
        bench.put(system, "2-c", bench.data(CHUNK))
    names = ["0-a", "1-b", "2-c", "3-d", "4-e", "5-f"]
    program = gathered_puts.__file__
    done = bench.run_python(program, str(bench.config), str(2 * CHUNK), kill_at=point, stdin="\n".join(names).encode())
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"
    acknowledged = done.stdout.decode().split()
    assert len(acknowledged) <= 1, "the first batch has one object, and the second is not acknowledged"
    for name in names:
        key, new = ObjectKey("b", name), data_of(name, 2 * CHUNK)
        if name in acknowledged:
            bench.acknowledged[key] = new
        else:
            _adopt_unacknowledged(bench, key, new)


def _tree(bench: Bench, *names: str) -> dict[ObjectKey, bytes]:
    """Files to PUT in one batch."""
    folder = bench.folder / "tree"
    folder.mkdir()
    new = {ObjectKey("b", name): bench.data(CHUNK) for name in names}
    for key, data in new.items():
        (folder / key.name).write_bytes(data)
    return new


def _adopt_unacknowledged(bench: Bench, key: ObjectKey, new: bytes) -> None:
    """A PUT that died before it answered may or may not have happened; either is right, and nothing in between."""
    with bench.open() as system:
        rows = system.client.store().list_objects(key.bucket, key.name, "", 1)
        found = system.client.store().get(key) if rows else None
    assert found in (new, bench.acknowledged.get(key))
    if found is not None:
        bench.acknowledged[key] = found


def _packed_with_holes(bench: Bench) -> None:
    with bench.open() as system:
        keys = bench.put_some(system, 400)
        bench.pack(system)
        for index, key in enumerate(keys):
            if index % 8:
                bench.delete(system, key)


def _damage_shards(bench: Bench) -> None:
    """Overwrite bytes on all shards but the one that holds the headers: beyond what coding can mend."""
    for path in (bench.folder / "store" / "blocks").rglob("shard-*/**/*"):
        if path.is_file() and "shard-00" not in path.parts and path.stat().st_size > 3 * CHUNK:
            data = bytearray(path.read_bytes())
            data[CHUNK // 2 : CHUNK // 2 + 512] = bytes(512)
            path.write_bytes(data)
