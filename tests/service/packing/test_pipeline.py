"""PUT -> producer -> consumer -> GET -> DELETE -> GC, in one process, through the real wiring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from io import BytesIO
from typing import Any, cast

import google_crc32c
import pytest
from msgspec.structs import asdict, replace
from structlog.testing import capture_logs

from nos_consumer.assemble import consumer_service, housekeeping_thread
from nos_consumer.service import ConsumerService
from nos_ec.adapters.local.message_log import LocalMessageLog
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, Corrupt, InvalidInput, NotFound, Transient
from nos_ec.core.formats.header import decode_names
from nos_ec.core.formats.messages import PackRequest, encode_pack_request
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.core.packing.packer import size_max
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.core.tails import tail_key
from nos_ec.engine.gc.workers import LEASE_NAME
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.engine.upkeep.housekeeping import Housekeeping
from nos_ec.engine.upkeep.reaper import Reaper
from nos_ec.engine.upkeep.recovery import Recovery
from nos_ec.monitoring.health import Heart
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.landing_store import LandingStore
from nos_gc.assemble import gc_service
from tests.rig.at_rest import HOUR_MS, LaterClock, end_log
from tests.rig.fakes.audit import all_blocks, problems
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.fakes.metadata_bench import pack_request
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

pytestmark = pytest.mark.every_time


def test_objects_are_packed_read_deleted_and_collected(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 400)
    bench.assert_readable(system)
    landed = {key: system.client.store().head(key).landing_id for key in keys}
    assert bench.produce(system) == 400
    bench.consume(system)
    bench.assert_readable(system)
    for key, landing_id in landed.items():
        assert landing_id is not None
        copy = system.landing.read(landing_id)
        assert copy == bench.acknowledged[key], "landing copies stay until the reaper has verified the stripes"
    assert system.metadata.totals().landing_deletions == 400
    end_log(system)
    system.worker.housekeeping().run_once()
    assert system.metadata.totals().landing_deletions == 0
    assert system.medium is not None
    assert list(system.medium.segments()) == []
    assert list(system.landing.list_ids()) == []
    bench.assert_readable(system)
    bench.assert_at_rest(system)

    stripes = system.metadata.totals().stripes
    for key in keys[: 400 * 9 // 10]:
        bench.delete(system, key)
    bench.assert_balanced(system)
    result = gc_service(system).run_once()
    assert result.blocks_deleted > 0
    assert result.unreadable == ()
    assert system.metadata.totals().stripes < stripes / 3
    bench.assert_readable(system)
    bench.assert_at_rest(system)


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        CHUNK - 4096,
        CHUNK - 1,
        CHUNK,
        CHUNK + 1,
        7 * CHUNK,
        7 * CHUNK + 1,
        STRIPE,
        4 * STRIPE - 4096,
        4 * STRIPE,
        4 * STRIPE + 1,
        8 * STRIPE,
        20 * STRIPE + 5,
    ],
)
def test_every_boundary_size_reads_back(bench: Bench, system: System, size: int) -> None:
    key = bench.put(system, "it", bench.data(size))
    bench.assert_readable(system)
    bench.pack(system)
    bench.assert_readable(system)
    row = system.client.store().head(key)
    packed_size_max = size_max(system.geometry)
    expected = ObjectState.EMPTY if size == 0 else ObjectState.PACKED if size <= packed_size_max else ObjectState.LARGE
    assert row.state is expected
    if row.state is ObjectState.PACKED and size <= CHUNK:
        assert row.extent is not None
        assert system.geometry.chunks_touched(row.extent.offset, size) == 1
    bench.assert_at_rest(system)
    bench.delete(system, key)
    bench.settle(system)
    assert list(system.blocks.list_blocks()) == [], "deleting the only object leaves no block"


def test_the_largest_packable_object_and_one_byte_more(bench: Bench, system: System) -> None:
    limit = size_max(system.geometry)
    a = bench.put(system, "a" * 1024, bench.data(limit))
    b = bench.put(system, "b", bench.data(limit + 1))
    bench.pack(system)
    assert system.client.store().head(a).state is ObjectState.PACKED
    assert system.client.store().head(b).state is ObjectState.LARGE
    bench.assert_readable(system)
    bench.assert_at_rest(system)


@pytest.mark.parametrize("first", [0, 100, CHUNK, 5 * STRIPE])
@pytest.mark.parametrize("second", [0, 101, CHUNK, 9 * STRIPE])
@pytest.mark.parametrize("packed", [False, True])
def test_overwriting(bench: Bench, system: System, first: int, second: int, packed: bool) -> None:
    key = bench.put(system, "it", bench.data(first))
    if packed:
        bench.pack(system)
    version = system.client.store().head(key).version
    bench.put(system, "it", bench.data(second))
    assert system.client.store().head(key).version > version
    bench.assert_readable(system)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_ranges(bench: Bench, system: System) -> None:
    keys = [bench.put(system, f"{size}", bench.data(size)) for size in (0, 10, 3 * CHUNK, 20 * STRIPE)]
    for packed in (False, True):
        if packed:
            bench.pack(system)
        for key in keys:
            data = bench.acknowledged[key]
            for offset in {0, len(data) // 3, max(0, len(data) - 1), len(data)}:
                for length in (0, 1, CHUNK, len(data) + 1):
                    _, pieces = system.client.store().open_range(key, offset, length)
                    assert b"".join(pieces) == data[offset : offset + length], (key.name, offset, length, packed)
            with pytest.raises(InvalidInput):
                system.client.store().open_range(key, len(data) + 1, 1)
            with pytest.raises(InvalidInput):
                system.client.store().open_range(key, -1, 1)


@pytest.mark.usefixtures("whole_chunks")
def test_a_small_get_reads_one_shard(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 200, size_max=CHUNK)
    bench.pack(system)
    before = system.blocks.counters()
    for key in keys:
        assert system.client.store().get(key) == bench.acknowledged[key]
    after = system.blocks.counters()
    assert after.shard_reads - before.shard_reads == len(keys)
    assert after.degraded_reads == before.degraded_reads


@pytest.mark.invariant(5)
def test_events_delivered_twice_and_stale_events_move_nothing(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 100)
    bench.produce(system)
    rows = [system.client.store().head(key) for key in keys]
    assert system.metadata.mark_published(rows, 0) == 100  # due at once, as if the events had been lost
    assert bench.produce(system) == 100
    bench.delete(system, keys[0])
    bench.put(system, keys[1].name, bench.data(77), bucket=keys[1].bucket)
    bench.consume(system)
    live = system.metadata.totals().live_bytes
    bench.settle(system)
    assert live > 0
    bench.assert_readable(system)
    bench.assert_at_rest(system)


@pytest.mark.invariant(7)
def test_events_that_disagree_with_their_rows_are_skipped(bench: Bench, system: System) -> None:
    """An object is packed under the name in its row, whatever the event says."""
    one, other = bench.put_some(system, 2)
    request = pack_request(system.client.store().head(one))
    for lie in (
        replace(request, key=other),
        replace(request, key=ObjectKey("elsewhere", one.name)),
        replace(request, landing_id=pack_request(system.client.store().head(other)).landing_id),
    ):
        publish(system, lie)
    assert bench.produce(system) == 2
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    assert (consumer.counters.stale, consumer.counters.packed, consumer.counters.failed) == (3, 2, 0)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def publish(system: System, request: PackRequest) -> None:
    fields = {field: value for field, value in asdict(request).items() if field != "v"}
    publisher = system.worker.publisher()
    publisher.publish([(request.key.bucket.encode(), encode_pack_request(**fields))])
    publisher.close()


def test_a_lost_event_is_published_again(bench: Bench, system: System) -> None:
    key = bench.put(system, "it", bench.data(10))
    row = system.client.store().head(key)
    due_ms = system.clock.now_ms() + HOUR_MS
    assert system.metadata.mark_published([row], due_ms) == 1  # published, as far as the row knows
    assert bench.produce(system) == 0
    system.clock = LaterClock(HOUR_MS)
    assert bench.produce(system) == 1
    bench.consume(system)
    assert system.client.store().head(key).state is ObjectState.PACKED


def test_a_poison_message_is_skipped(bench: Bench, system: System) -> None:
    publisher = system.worker.publisher()
    publisher.publish([(b"bucket-1", b"no json"), (b"bucket-1", b'{"v":99}')])
    publisher.close()
    bench.put_some(system, 30)
    bench.produce(system)
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    assert consumer.counters.poison == 2
    letters = LocalMessageLog(system.settings.store.root / "log.db").dead_letters()
    assert [letter.message.value for letter in letters] == [b"no json", b'{"v":99}']
    assert "version 99" in letters[1].reason
    assert consumer.counters.packed == 30
    bench.assert_readable(system)


def test_undecodable_messages_cause_a_few_log_lines_and_a_count(bench: Bench, system: System) -> None:
    """Every message is kept as a dead letter, and counted."""
    publisher = system.worker.publisher()
    publisher.publish([(b"bucket-1", b"rubbish %d" % number) for number in range(2000)])
    publisher.close()
    with capture_logs() as lines:
        with consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)
        skipped = [line for line in lines if line["event"].startswith("message skipped")]
    assert consumer.counters.poison == 2000
    assert sum(line.get("count", 1) for line in skipped) == 2000
    assert len(skipped) <= 100
    assert len(LocalMessageLog(system.settings.store.root / "log.db").dead_letters(3000)) == 2000


@pytest.mark.landing("store")
def test_a_damaged_landing_copy_is_left_out_and_reported(bench: Bench, system: System) -> None:
    """Its space becomes padding; the others are packed; its row stays in the landing store."""
    keys = bench.put_some(system, 60)
    victim = system.client.store().head(keys[5])
    assert victim.landing_id is not None
    paths = [p for p in (bench.folder / "store" / "landing").rglob("*") if victim.landing_id.hex() in p.name]
    assert len(paths) == 1
    paths[0].write_bytes(b"x" * victim.size)
    bench.produce(system)
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    assert consumer.counters.failed == 1
    assert consumer.counters.packed == 59
    assert system.client.store().head(keys[5]).state is ObjectState.QUEUED
    with pytest.raises(Corrupt):
        system.client.store().get(keys[5])
    bench.acknowledged.pop(keys[5])
    bench.assert_balanced(system)
    for key, data in bench.acknowledged.items():
        assert system.client.store().get(key) == data


@pytest.mark.landing("store")
def test_objects_of_a_plan_that_lost_most_of_its_bytes_are_planned_again(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 40)
    for key in keys[:30]:
        row = system.client.store().head(key)
        assert row.landing_id is not None
        system.landing.delete(row.landing_id)
        bench.acknowledged.pop(key)
    bench.produce(system)
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    assert (consumer.counters.failed, consumer.counters.packed) == (30, 10)
    for key, data in bench.acknowledged.items():
        assert system.client.store().get(key) == data
    found = problems(system.metadata, system.blocks, system.landing, system.medium)
    assert [line.partition(":")[0] for line in found] == ["copy-missing"] * 30


@pytest.mark.invariant(2)
def test_packed_bytes_that_fail_verification_go_back_to_the_landing_copy(bench: Bench, system: System) -> None:
    """The reaper reads back before it deletes; what does not match is packed again."""
    keys = bench.put_some(system, 60)
    bench.produce(system)
    bench.consume(system)
    victim = next(iter(all_blocks(system.metadata))).block_id
    for path in (bench.folder / "store" / "blocks").rglob(f"*{victim.hex()}*"):
        if path.is_file() and path.stat().st_size > CHUNK:
            data = bytearray(path.read_bytes())
            data[CHUNK // 4 : CHUNK // 2] = bytes(CHUNK // 4)
            path.write_bytes(data)
    reaped = system.worker.housekeeping().run_once().reaper
    assert reaped.reverted > 0
    bench.assert_readable(system)
    bench.settle(system)
    bench.assert_readable(system)
    assert len(keys) == len(bench.acknowledged)


def one_by_one() -> ReadThreads:
    """Threads with which a reaper reads one block at a time, so that its calls can be counted."""
    return ReadThreads(1, time.perf_counter, late_s=WAIT_S_MAX)


@pytest.mark.landing("store")
@pytest.mark.parametrize("last", ["read_many", "delete_many"])
def test_housekeeping_stops_before_its_next_call(bench: Bench, system: System, last: str) -> None:
    """A daemon that is asked to stop must not first delete a million landing copies, nor wait for many unresponsive
    blocks."""
    bench.put_some(system, 200)
    bench.produce(system)
    bench.consume(system)
    stop, faults = threading.Event(), Faults()
    faults.hook = lambda name: stop.set() if name == last else None
    blocks, landing = faulty(system.blocks, faults), faulty(system.landing, faults)
    with closing(one_by_one()) as threads:
        reaper = Reaper(system.metadata, landing, blocks, system.clock, 150, threads)
        Housekeeping(Recovery(system.metadata, blocks, system.clock), reaper, system.clock, wait_ms=1).run(stop)
    assert faults.calls[last] == 1
    assert len(list(system.landing.list_ids())) >= (200 if last == "read_many" else 50)
    bench.assert_readable(system)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


class SlowStore:
    """A block store on a `clock` whose operations take 10 s each, as when a part of it is away."""

    def __init__(self, port: object, clock: FakeClock) -> None:
        self._port = port
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def seal(self, _block_id: BlockId) -> int:
        self._clock.advance(10_000)
        raise Transient("no answer in time")

    def read_many(self, *arguments: Any) -> Any:
        self._clock.advance(10_000)
        return self._port.read_many(*arguments)  # type: ignore[attr-defined]

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> Any:
        failed: dict[LandingId, Transient] = {}
        for first in range(0, len(landing_ids), 50):
            beat(0)
            self._clock.advance(10_000)
            failed |= self._port.delete_many(landing_ids[first : first + 50])  # type: ignore[attr-defined]
        return failed


@pytest.mark.landing("store")
def test_housekeeping_counts_as_alive_while_every_call_waits(bench: Bench, system: System) -> None:
    """A part of the block store is away: the watchdog would kill a working consumer again and again."""
    bench.put_some(system, 200)
    bench.produce(system)
    bench.consume(system)
    with system.lease("dead", 30_000) as held:
        for _ in range(3):
            system.metadata.allocate_block(held.lease, system.new_block_id(), BlockKind.FRESH, 1)
    clock = FakeClock()
    blocks = cast(BlockStore, SlowStore(system.blocks, clock))
    landing = cast(LandingStore, SlowStore(system.landing, clock))
    threads = one_by_one()
    reaper = Reaper(system.metadata, landing, blocks, system.clock, 5000, threads)
    heart = Heart(clock, stall_ms_max=15_000)
    late: list[int] = []

    def beat(rest_ms: int) -> None:
        if heart.stalled():
            late.append(clock.now_ms())
        heart(rest_ms)

    with closing(threads):
        Housekeeping(Recovery(system.metadata, blocks, system.clock), reaper, system.clock, wait_ms=1).run_once(beat)
    assert list(system.landing.list_ids()) == []
    assert late == []


@pytest.mark.landing("store")
def test_a_landing_copy_that_cannot_be_deleted_does_not_hold_up_the_others(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 60)
    stuck = system.client.store().head(keys[7]).landing_id
    assert stuck is not None
    bench.produce(system)
    bench.consume(system)
    copy = bench.folder / "store" / "landing" / stuck.hex()[-2:] / stuck.hex()
    copy.unlink()
    copy.mkdir()
    reaped = system.worker.housekeeping().run_once().reaper
    assert (reaped.deleted, reaped.postponed) == (59, 1)
    assert list(system.landing.list_ids()) == [stuck]
    assert system.metadata.totals().landing_deletions == 1
    bench.assert_readable(system)


def test_gc_plan_reads_headers_only_and_changes_nothing(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 400)
    bench.pack(system)
    for key in keys[:360]:
        bench.delete(system, key)
    totals = system.metadata.totals()
    before = system.blocks.counters()
    plan = gc_service(system).plan()
    after = system.blocks.counters()
    assert plan.victims
    read = sum(decision.header_bytes_read for decision in plan.decisions)
    assert after.shard_bytes - before.shard_bytes == read, "nothing but headers is read"
    examined = sum(decision.size_bytes for decision in plan.decisions)
    assert read <= examined / 30
    assert system.metadata.totals() == totals


def test_survivors_are_kept_apart(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 400)
    bench.pack(system)
    for key in keys[:340]:
        bench.delete(system, key)
    gc_service(system).run_once()
    kinds = {
        system.metadata.block(row.extent.block_id).kind
        for key in keys[340:]
        if (row := system.client.store().head(key)).extent
    }
    assert BlockKind.SURVIVOR in kinds
    bench.assert_readable(system)


@pytest.mark.invariant(10)
def test_an_unreadable_live_object_keeps_its_block(bench: Bench, system: System) -> None:
    """Unreadable never means dead."""
    keys = bench.put_some(system, 200, size_max=CHUNK)
    bench.pack(system)
    victim = system.client.store().head(keys[3])
    assert victim.extent is not None
    block_id = victim.extent.block_id
    for key in keys:
        row = system.client.store().head(key)
        if key != keys[3] and row.extent is not None and row.extent.block_id == block_id:
            bench.delete(system, key)
    for path in (bench.folder / "store" / "blocks").rglob(f"*{block_id.hex()}*"):
        if path.is_file() and path.stat().st_size > CHUNK:
            data = bytearray(path.read_bytes())
            data[2048:] = bytes(len(data) - 2048)
            path.write_bytes(data)
    result = gc_service(system).run_once()
    assert result.unreadable_objects == len(result.unreadable) == 1
    assert str(keys[3]) in result.unreadable[0]
    assert system.metadata.block(block_id).state is BlockState.SEALED
    with pytest.raises(Corrupt):
        system.client.store().get(keys[3])


def test_a_block_that_the_block_store_lost_does_not_stop_gc(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 400)
    bench.pack(system)
    lost = system.client.store().head(keys[0]).extent
    assert lost is not None
    for index, key in enumerate(keys):
        if index // 5 % 10:  # in all buckets, each of which lies together
            bench.delete(system, key)
    system.blocks.delete(lost.block_id)
    result = gc_service(system).run_once()
    assert result.unreadable
    assert result.blocks_deleted > 0
    assert system.metadata.block(lost.block_id).state is BlockState.SEALED, "rows still point into it"
    gone = {placed.key for placed in system.metadata.placed_in(lost.block_id)}
    assert len(gone) == result.unreadable_objects
    for key, data in bench.acknowledged.items():
        if key not in gone:
            assert system.client.store().get(key) == data


class DeletesAllButOne:
    """A block store that does not delete the first block that it is asked to delete."""

    def __init__(self, port: BlockStore) -> None:
        self._port = port
        self.stuck: BlockId | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def delete(self, block_id: BlockId) -> None:
        self.stuck = self.stuck or block_id
        if block_id == self.stuck:
            raise Transient("its placement group is not active")
        self._port.delete(block_id)


def test_a_block_that_cannot_be_deleted_does_not_stop_gc(bench: Bench, system: System) -> None:
    """The run fails nevertheless, after everything else is done."""
    stored, system.blocks = system.blocks, cast(BlockStore, DeletesAllButOne(system.blocks))
    for prefix in ("first", "second"):
        keys = bench.put_some(system, 200, prefix=prefix)
        bench.pack(system)
        for key in keys[:190]:
            bench.delete(system, key)
        with pytest.raises(Transient, match="not active"):
            gc_service(system).run_once()
        blocks = all_blocks(system.metadata)
        assert [block.state for block in blocks].count(BlockState.CONDEMNED) == 1
        assert sum(block.dead_bytes for block in blocks if block.state is BlockState.SEALED) == 0
    system.blocks = stored
    gc_service(system).run_once()
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_one_gc_at_a_time(system: System) -> None:
    with system.lease(LEASE_NAME, 10_000), pytest.raises(Conflict):
        gc_service(system).run_once()


@pytest.mark.invariant(1, 4)
def test_readers_during_everything(bench: Bench, system: System) -> None:
    """GETs never fail and never return wrong bytes while objects are packed, reaped, moved and deleted."""
    keys = bench.put_some(system, 300)
    stable = keys[::10]
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            wrong.extend(str(key) for key in stable if system.client.store().get(key) != bench.acknowledged[key])

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        bench.pack(system)
        for key in keys:
            if key not in stable:
                bench.delete(system, key)
        gc_service(system).run_once()
        gc_service(system).run_once()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    bench.assert_readable(system)


@pytest.mark.invariant(7)
def test_the_blocks_alone_describe_what_they_hold(bench: Bench, system: System) -> None:
    """Names, versions, sizes, CRCs and bytes of every object, large ones too, without any row. The last block of a
    large object is the name of its tail."""
    bench.put_some(system, 80)
    bench.put(system, "large", bench.data(20 * STRIPE + 3))
    bench.pack(system)
    pieces: dict[ObjectKey, dict[int, bytes]] = {}
    whole_sizes: dict[ObjectKey, int] = {}
    tail_at: dict[ObjectKey, tuple[ObjectKey, int]] = {}
    for block_id in system.blocks.list_blocks():
        scan = scan_headers(system.blocks, block_id, system.blocks.stripes(block_id))
        assert scan.damaged_stripes == ()
        for header in scan.headers:
            start = header.first_stripe * system.geometry.stripe_size
            packed = system.blocks.read(block_id, start + header.names_offset, header.names_length)
            names = decode_names(packed, header.names_crc32c, len(header.entries))
            for entry, record in zip(header.entries, names, strict=True):
                key = ObjectKey(record.bucket, record.name)
                data = system.blocks.read(block_id, start + entry.offset, entry.length)
                assert (entry.key_md5, entry.crc32c) == (key.md5, google_crc32c.value(data))
                assert entry.object_version == system.client.store().head(key).version
                at, size = record.segment or (0, entry.length)
                pieces.setdefault(key, {})[at] = data
                if record.segment is not None and size > at + len(data):
                    tail_at[tail_key(block_id)] = key, at + len(data)
                whole_sizes[key] = max(whole_sizes.get(key, 0), size)
    assert len(tail_at) == 1
    for tail, (key, at) in tail_at.items():
        pieces[key][at] = pieces.pop(tail)[0]
        del whole_sizes[tail]
    rebuilt = {key: b"".join(data for _, data in sorted(parts.items())) for key, parts in pieces.items()}
    assert rebuilt == bench.acknowledged
    assert whole_sizes == {key: len(data) for key, data in bench.acknowledged.items()}


@pytest.mark.parametrize("linger", ["linger_ms = 1\nlinger_max_ms = 300", "linger_ms = 200\nlinger_max_ms = 200"])
def test_a_linger_deadline_packs_rare_events(bench: Bench, linger: str) -> None:
    bench.config.write_text(bench.config.read_text().replace("window_objects = 50", f"window_objects = 50\n{linger}"))
    with bench.open() as system:
        key = bench.put(system, "rare", bench.data(5))
        bench.produce(system)
        stop = threading.Event()
        with consumer_service(system) as consumer, housekeeping_thread(system):
            thread = threading.Thread(target=consumer.run, args=(stop,))
            thread.start()
            deadline = time.monotonic() + WAIT_S_MAX
            while system.client.store().head(key).state is not ObjectState.PACKED and time.monotonic() < deadline:
                time.sleep(0.05)
            stop.set()
            thread.join()
        assert system.client.store().head(key).state is ObjectState.PACKED
        bench.assert_readable(system)


def test_a_trickle_does_not_cost_one_stripe_per_object(bench: Bench) -> None:
    """Objects that arrive one after the other, each later than the first limit, share a stripe because of the second
    one."""
    setting = "window_objects = 50\nlinger_ms = 1\nlinger_max_ms = 3000000"
    bench.config.write_text(bench.config.read_text().replace("window_objects = 50", setting))
    with bench.open() as system:
        system.clock = clock = LaterClock(0)
        with consumer_service(system) as consumer:
            for number in range(20):
                bench.put(system, f"rare-{number}", bench.data(1000))
                bench.produce(system)
                _turns_until(consumer, lambda number=number: consumer.waiting_objects == number + 1)  # type: ignore[misc]
            assert system.metadata.totals().stripes == 0
            clock.ahead_ms = HOUR_MS
            _turns_until(consumer, lambda: consumer.counters.packed == 20)
        assert system.metadata.totals().stripes == 1
        bench.assert_readable(system)


def _turns_until(consumer: ConsumerService, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not reached():
        assert time.monotonic() < deadline
        consumer.turn(flush=False)


def test_reading_an_object_that_vanishes_is_not_found(bench: Bench, system: System) -> None:
    key = bench.put(system, "it", b"x")
    bench.delete(system, key)
    with pytest.raises(NotFound):
        system.client.store().get(key)
    with pytest.raises(NotFound):
        system.client.store().delete(key)


def test_a_short_stream_is_read_to_its_end(bench: Bench, system: System) -> None:
    class Trickle(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(7, size or 7))

    data = bench.data(1000)
    key = ObjectKey("b", "trickle")
    system.client.store().put(key, Trickle(data))
    assert system.client.store().get(key) == data
