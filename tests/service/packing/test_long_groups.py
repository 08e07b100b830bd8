"""Groups of more stripes than a window has: they are written in windows, and committed once (invariants 3, 5, 7, 8)."""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections.abc import Callable, Container, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt, LeaseLost, NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockState, ObjectState
from nos_ec.engine.header_scan import read_names, scan_headers
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.group_bytes import GroupPlace, assemble, window_bytes
from nos_ec.engine.packing.long_group import item_at
from nos_ec.engine.packing.stripe_writer import APPEND_TRIES, LONG_GROUP_MS_MAX
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.read_threads import LateByRequest
from tests.rig.long_groups import STRIPES, TINY_CONFIG, WINDOW, long_bench, long_plan, put_for
from tests.rig.long_packing import packing_long_groups
from tests.rig.preloaded import Preloaded
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import TTL_OVER_MS, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.packing.test_stripe_writer import Writer, _finish

WINDOWS = STRIPES // WINDOW

LONG_GROUP_POINTS = [
    "writer.appended",
    "block_store.shard_written:20",
    "writer.window_appended",
    "writer.before_append:3",
    "writer.window_appended:3",
    "writer.appended:4",
    "metadata.commit_group.before_commit",
    "writer.committed",
]
"""While a group of four windows is written to a new block. The second append is torn in one case."""
LONG_GROUP_BEHIND_POINTS = [
    "writer.appended:2",
    "block_store.shard_written:31",
    "writer.window_appended",
    "writer.before_append:4",
    "writer.window_appended:3",
    "writer.appended:5",
    "metadata.commit_group.before_commit:2",
    "writer.committed:2",
]
"""The same after a short group."""


@pytest.fixture
def bench(tmp_path: Path, preloaded: Preloaded) -> Bench:
    return long_bench(tmp_path, preloaded)


@pytest.fixture
def writer(bench: Bench) -> Iterator[Writer]:
    with bench.open() as system:
        yield Writer(bench, system)


def planned(writer: Writer, stripes: int = STRIPES, prefix: str = "long") -> GroupPlan[Packable]:
    keys = put_for(writer.bench, writer.system, stripes, prefix)
    plan = long_plan(writer.system, keys, stripes)
    assert plan.stripe_count == stripes
    return plan


def begin_in(writer: Writer, plan: GroupPlan[Packable], window: int) -> list[Packable]:
    """The objects that begin in a window."""
    size = writer.system.geometry.group_size_max
    return [placed.candidate.payload for placed in plan.placed if placed.offset // size == window]


def expected(writer: Writer, plan: GroupPlan[Packable], block_id: BlockId, at_stripe: int) -> bytes:
    """The bytes of the group, as if it were written at once."""
    packables = [placed.candidate.payload for placed in plan.placed]
    place = GroupPlace(block_id, at_stripe, plan.stripe_count, writer.lease.epoch, writer.clock.now_ms())
    items = [item_at(placed.offset, placed.candidate.payload) for placed in plan.placed]
    data = [writer.bench.acknowledged[packable.key] for packable in packables]
    return assemble(writer.system.geometry, place, items, data)


def assert_written(writer: Writer, plan: GroupPlan[Packable], block_id: BlockId, at_stripe: int) -> None:
    blocks, size = writer.system.blocks, writer.system.geometry.stripe_size
    assert blocks.read(block_id, at_stripe * size, plan.stripe_count * size) == expected(
        writer, plan, block_id, at_stripe
    )
    header = scan_headers(blocks, block_id, at_stripe + plan.stripe_count).headers[-1]
    assert (header.first_stripe, header.stripe_count) == (at_stripe, plan.stripe_count)
    keys = [placed.candidate.payload.key for placed in plan.placed]
    assert [(name.bucket, name.name) for name in read_names(blocks, header)] == [(key.bucket, key.name) for key in keys]


def test_a_window_has_the_parts_of_objects_that_lie_in_it_and_refuses_objects_that_overlap() -> None:
    """It is copied once: librados would copy anything but `bytes` once more."""
    found = window_bytes(4, 12, [(0, b"a" * 6), (8, b"b" * 8), (16, b"c")])
    assert (found, type(found)) == (b"aa\0\0bbbb", bytes)
    with pytest.raises(ValueError, match="overlaps the next object"):
        window_bytes(4, 12, [(0, b"a" * 6), (5, b"b")])


@pytest.mark.parametrize("behind", [0, 3])
def test_a_long_group_is_written_in_windows_and_committed_once(writer: Writer, behind: int) -> None:
    if behind:
        assert writer.writer.write(planned(writer, behind, "first")).packed
    writer.blocks.calls.clear()
    writer.metadata.calls.clear()
    plan = planned(writer, STRIPES - behind)
    size = writer.system.geometry.group_size_max
    assert any(one.offset // size != (one.offset + one.candidate.size - 1) // size for one in plan.placed)
    result = writer.writer.write(plan)
    assert (len(result.packed), result.retry, result.cause, result.retry_short) == (len(plan.placed), [], None, False)
    assert result.stripe_count == plan.stripe_count
    calls = writer.blocks.calls
    assert (calls["create"], calls["append"]) == ((0, WINDOWS) if behind else (1, WINDOWS - 1))
    assert calls["read"] == WINDOWS, "each window is read back by itself"
    assert writer.metadata.calls["commit_group"] == 1
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.stripes, block.dead_bytes) == (BlockState.SEALED, STRIPES, 0)
    assert_written(writer, plan, block.block_id, behind)
    assert {writer.system.client.store().head(one.key).state for one in result.packed} == {ObjectState.PACKED}
    writer.bench.assert_readable(writer.system)
    _finish(writer)


def test_a_group_of_a_window_is_written_at_once(writer: Writer) -> None:
    plan = planned(writer, WINDOW)
    assert len(writer.writer.write(plan).packed) == len(plan.placed)
    assert (writer.blocks.calls["create"], writer.blocks.calls["append"]) == (1, 0)
    (block,) = all_blocks(writer.system.metadata)
    assert_written(writer, plan, block.block_id, 0)
    _finish(writer)


def test_a_front_longer_than_a_window(tmp_path: Path, preloaded: Preloaded) -> None:
    bench = long_bench(tmp_path, preloaded, TINY_CONFIG)
    with bench.open() as system:
        writer = Writer(bench, system)
        plan = long_plan(system, bench.put_some(system, 500, size_max=900), 60)
        assert len(plan.placed) == 500
        assert plan.header_length > system.geometry.group_size_max
        assert len(writer.writer.write(plan).packed) == 500
        assert writer.blocks.calls["append"] == plan.stripe_count - 1
        (block,) = all_blocks(system.metadata)
        assert_written(writer, plan, block.block_id, 0)
        bench.assert_readable(system)
        _finish(writer)


# --- sources --------------------------------------------------------------------------------------------------


def before_reading(patch: pytest.MonkeyPatch, writer: Writer, victim: Packable, act: Callable[[], None]) -> None:
    """Call `act` before the landing copy of an object is read."""
    landing = type(writer.system.landing)
    read = landing.read_range

    def read_range(self: LandingStore, landing_id: LandingId, offset: int, length: int) -> bytes:
        if landing_id == victim.source:
            act()
        return read(self, landing_id, offset, length)

    patch.setattr(landing, "read_range", read_range)


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("window", range(WINDOWS))
@pytest.mark.parametrize(
    "error", [Transient("away"), NotFound("gone"), Corrupt("damaged")], ids=["away", "gone", "bad"]
)
def test_a_source_that_cannot_be_read(writer: Writer, window: int, error: NosError) -> None:
    """In the first window nothing is written. Later on the block is given up, so that nothing follows the bytes
    that are missing."""
    assert writer.writer.write(planned(writer, 1, "first")).packed
    plan = planned(writer, STRIPES - 1)
    victim = begin_in(writer, plan, window)[-1]
    with pytest.MonkeyPatch.context() as patch:
        before_reading(patch, writer, victim, raising(error))
        result = writer.writer.write(plan)
    lost = result.unread if isinstance(error, Transient) else result.failed
    assert [failure.packable for failure in lost] == [victim]
    assert len(result.retry) == len(plan.placed) - 1
    assert (result.packed, result.cause, result.retry_short) == ((), None, window > 0)
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.stripes) == (BlockState.FENCED if window else BlockState.OPEN, 1)
    assert writer.system.blocks.stripes(block.block_id) == 1 + WINDOW * window
    assert len(writer.writer.write(plan).packed) == len(plan.placed)
    assert len(list(all_blocks(writer.system.metadata))) == (2 if window else 1)
    _finish(writer)


def test_no_source_of_a_window_can_be_read(writer: Writer) -> None:
    """The whole store may be away, so planning should pause."""
    plan = planned(writer)
    writer.landing.before["read_range"] = [Transient("away")] * len(begin_in(writer, plan, 0))
    result = writer.writer.write(plan)
    assert isinstance(result.cause, Transient)
    assert (len(result.unread) + len(result.retry), result.retry_short) == (len(plan.placed), False)
    assert list(all_blocks(writer.system.metadata)) == []
    _finish(writer)


@pytest.mark.parametrize("window", [0, 2])
def test_a_source_that_is_slow_is_waited_for_once_the_group_is_begun(writer: Writer, window: int) -> None:
    """A read that is left behind costs the block then."""
    plan = planned(writer)
    victim = begin_in(writer, plan, window)[0]

    def answer_late() -> None:
        threads.hang()
        time.sleep(0.5)

    with closing(LateByRequest(4)) as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer.writer._sources, "_threads", threads)
        before_reading(patch, writer, victim, answer_late)
        result = writer.writer.write(plan)
    if window:
        assert len(result.packed) == len(plan.placed)
    else:
        assert [failure.packable for failure in result.unread] == [victim]
        assert not result.retry_short
    _finish(writer)


def test_a_group_that_takes_too_long_is_given_up(writer: Writer) -> None:
    """Otherwise a consumer that loses partitions would wait for longer than its message log does."""
    writer.clock = clock = FakeClock(writer.system.clock.now_ms())
    writer.writer = writer.make(writer.lease)
    plan = planned(writer)
    victim = begin_in(writer, plan, 2)[0]
    with pytest.MonkeyPatch.context() as patch:
        before_reading(patch, writer, victim, lambda: clock.advance(LONG_GROUP_MS_MAX))
        result = writer.writer.write(plan)
    assert "takes longer" in str(result.cause)
    assert (len(result.retry), result.retry_short) == (len(plan.placed), True)
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, writer.system.blocks.stripes(block.block_id)) == (BlockState.FENCED, 2 * WINDOW)
    _finish(writer)


# --- appends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("window", range(1, WINDOWS))
@pytest.mark.parametrize("behind", [0, 3], ids=["new", "used"])
def test_a_later_append_that_fails(writer: Writer, behind: int, window: int, when: str) -> None:
    """It may have taken effect or not: the block is given up, and no other one is tried with as many bytes."""
    if behind:
        assert writer.writer.write(planned(writer, behind, "first")).packed
    writer.blocks.calls.clear()
    plan = planned(writer, STRIPES - behind)
    appends_before = window if behind else window - 1

    def fail(method: str) -> None:
        if method == "append" and writer.blocks.calls["append"] == appends_before + 1:
            getattr(writer.blocks, when)["append"] = [Transient("time-out")]

    writer.blocks.hook = fail
    result = writer.writer.write(plan)
    writer.blocks.hook = lambda _method: None
    assert isinstance(result.cause, Transient)
    assert (len(result.retry), result.retry_short, result.packed) == (len(plan.placed), True, ())
    assert writer.blocks.calls["append"] == appends_before + 1
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.stripes) == (BlockState.FENCED, behind)
    written = min(STRIPES, behind + WINDOW * (window + (when == "after")))
    assert writer.system.blocks.stripes(block.block_id) == written
    assert len(writer.writer.write(plan).packed) == len(plan.placed)
    _finish(writer)


@pytest.mark.parametrize("failures", range(1, APPEND_TRIES + 1))
def test_other_blocks_are_tried_for_the_first_window(writer: Writer, failures: int) -> None:
    writer.blocks.before["create"] = [Transient("time-out")] * failures
    plan = planned(writer)
    result = writer.writer.write(plan)
    blocks = list(all_blocks(writer.system.metadata))
    if failures == APPEND_TRIES:
        assert (len(result.retry), result.retry_short) == (len(plan.placed), True)
        assert {row.state for row in blocks} == {BlockState.FENCED}
    else:
        assert len(result.packed) == len(plan.placed)
        (block,) = [row for row in blocks if row.stripes]
        assert_written(writer, plan, block.block_id, 0)
        assert len(blocks) == failures + 1
    _finish(writer)


@pytest.mark.parametrize("behind", [0, 3], ids=["new", "used"])
def test_no_space_for_a_later_window(writer: Writer, behind: int) -> None:
    """The block exists in the store, although nothing is committed in it: recovery must find its row."""
    if behind:
        assert writer.writer.write(planned(writer, behind, "first")).packed
    plan = planned(writer, STRIPES - behind)
    first = writer.blocks.calls["append"] + (behind > 0)

    def fail(method: str) -> None:
        if method == "append" and writer.blocks.calls["append"] == first + 1:
            writer.blocks.before["append"] = [NoSpace("full")]

    writer.blocks.hook = fail
    result = writer.writer.write(plan)
    writer.blocks.hook = lambda _method: None
    assert isinstance(result.cause, NoSpace)
    assert (len(result.retry), result.retry_short) == (len(plan.placed), True)
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.stripes) == (BlockState.FENCED, behind)
    assert set(writer.system.blocks.list_blocks()) == {block.block_id}
    _finish(writer)


def test_no_space_for_the_first_window_leaves_nothing_behind(writer: Writer) -> None:
    plan = planned(writer)
    writer.blocks.before["create"] = [NoSpace("over a quota")]
    assert isinstance(writer.writer.write(plan).cause, NoSpace)
    assert list(all_blocks(writer.system.metadata)) == []
    assert list(writer.system.blocks.list_blocks()) == []
    _finish(writer)


def test_room_for_the_whole_group_is_asked_for(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    size = writer.system.geometry.stripe_size
    monkeypatch.setattr(type(writer.system.blocks), "free_bytes", lambda _self: (STRIPES - 1) * size)
    result = writer.writer.write(planned(writer))
    assert isinstance(result.cause, NoSpace)
    assert list(all_blocks(writer.system.metadata)) == []
    assert writer.writer.write(planned(writer, STRIPES - 1, "shorter")).packed
    monkeypatch.undo()
    _finish(writer)


@pytest.mark.invariant(8)
def test_a_writer_that_is_fenced_between_windows_stops(writer: Writer) -> None:
    plan = planned(writer)
    victim = begin_in(writer, plan, 2)[0]

    def fence() -> None:
        assert writer.system.metadata.fence_lease(writer.lease, writer.lease.expires_ms + 1)

    with pytest.MonkeyPatch.context() as patch:
        before_reading(patch, writer, victim, fence)
        with pytest.raises(LeaseLost):
            writer.writer.write(plan)
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.stripes) == (BlockState.FENCED, 0)
    assert writer.system.blocks.stripes(block.block_id) == 2 * WINDOW, "no window is written for nothing"
    _finish(writer)


def test_a_database_that_is_away_between_windows_stops_nothing(writer: Writer) -> None:
    writer.metadata.before["block"] = [Transient("away")] * (WINDOWS - 1)
    plan = planned(writer)
    assert len(writer.writer.write(plan).packed) == len(plan.placed)
    assert writer.metadata.before["block"] == []
    _finish(writer)


@pytest.mark.invariant(8)
def test_a_block_that_comes_after_it_was_collected_is_removed(writer: Writer) -> None:
    """Its writer stalled before it created it. Two windows are in it when it learns that."""
    plan = planned(writer)

    def collect(method: str) -> None:
        if method == "create":
            (row,) = all_blocks(writer.system.metadata)
            assert writer.system.metadata.fence_lease(writer.lease, writer.lease.expires_ms + 1)
            writer.metadata.before["block"] = [Transient("away")]
            assert writer.system.metadata.seal_reconciled(row.block_id, 0, 0, 0, 0, 0)
            writer.system.metadata.condemn_block(row.block_id, 0)
            writer.system.metadata.forget_block(row.block_id)

    writer.blocks.hook = collect
    result = writer.writer.write(plan)
    assert isinstance(result.cause, NotFound)
    assert list(all_blocks(writer.system.metadata)) == []
    assert list(writer.system.blocks.list_blocks()) == []
    _finish(writer)


def test_a_block_whose_place_goes_bad_in_the_middle_is_finished(writer: Writer) -> None:
    plan = planned(writer, 10)
    victim = begin_in(writer, plan, 1)[0]
    with pytest.MonkeyPatch.context() as patch:
        before_reading(patch, writer, victim, lambda: writer.placement.bad.update(writer.placement.given))
        assert len(writer.writer.write(plan).packed) == len(plan.placed)
    assert writer.writer.write(planned(writer, 1, "next")).packed
    blocks = {block.block_id: block for block in all_blocks(writer.system.metadata)}
    first, second = (blocks[block_id] for block_id in writer.placement.given)
    assert (first.state, first.stripes, second.state) == (BlockState.SEALED, 10, BlockState.OPEN)
    _finish(writer)


@pytest.mark.invariant(5)
def test_an_object_that_is_deleted_while_a_long_group_is_written(writer: Writer) -> None:
    plan = planned(writer)
    victim = begin_in(writer, plan, 0)[0]
    writer.metadata.hook = lambda name: (
        writer.bench.delete(writer.system, victim.key) if name == "commit_group" else None
    )
    result = writer.writer.write(plan)
    assert list(result.superseded) == [victim]
    assert len(result.packed) == len(plan.placed) - 1
    writer.metadata.hook = lambda _name: None
    _finish(writer)


# --- reading --------------------------------------------------------------------------------------------------


@pytest.mark.invariant(3)
@pytest.mark.parametrize("window", range(WINDOWS))
def test_a_window_that_reads_back_differently_commits_nothing(writer: Writer, window: int) -> None:
    plan = planned(writer)
    reads: list[int] = []
    read = type(writer.system.blocks).read

    def other(self: BlockStore, block_id: BlockId, offset: int, length: int) -> bytes:
        reads.append(length)
        data = read(self, block_id, offset, length)
        return data if len(reads) <= window else bytes(length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(writer.system.blocks), "read", other)
        result = writer.writer.write(plan)
    assert isinstance(result.cause, Corrupt)
    assert (len(result.retry), result.retry_short) == (len(plan.placed), True)
    assert reads == [writer.system.geometry.group_size_max] * (window + 1)
    assert "commit_group" not in writer.metadata.calls
    assert {row.state for row in all_blocks(writer.system.metadata)} == {BlockState.FENCED}
    _finish(writer)


def test_objects_of_every_window_can_be_read_with_m_shards_lost(writer: Writer) -> None:
    plan = planned(writer)
    assert writer.writer.write(plan).packed
    (block,) = all_blocks(writer.system.metadata)
    name = block.block_id.hex()
    shards = sorted((writer.bench.folder / "store" / "blocks").glob(f"shard-*/{name[-1]}/{name}"))
    for path in shards[1:4]:
        path.unlink()
    store = writer.system.client.store()
    for placed in plan.placed:
        key = placed.candidate.payload.key
        assert store.head(key).state is ObjectState.PACKED
        assert store.get(key) == writer.bench.acknowledged[key]
    assert writer.system.blocks.counters().degraded_reads
    writer.release()


def test_survivors_are_moved_in_a_long_group(writer: Writer) -> None:
    """GC writes them in this way: it reads them from other blocks, and reads back what it has written."""
    keys = put_for(writer.bench, writer.system, STRIPES)
    for number in range(0, len(keys), 8):
        assert writer.writer.write(long_plan(writer.system, keys[number : number + 8], WINDOW)).packed
    before = set(writer.system.blocks.list_blocks())
    plan = long_plan(writer.system, [key for key in keys if writer.system.client.store().head(key).extent], STRIPES)
    assert plan.stripe_count > 2 * WINDOW
    assert len(writer.writer.write(plan).packed) == len(plan.placed)
    (block_id,) = set(writer.system.blocks.list_blocks()) - before
    assert_written(writer, plan, block_id, 0)
    _finish(writer)


@pytest.mark.invariant(9)
def test_a_window_and_what_begins_in_it_are_in_memory(writer: Writer) -> None:
    """No more is in memory, however long the group is. Coding chunks, and what is read back, belong to the store."""
    plan, long = planned(writer, WINDOW, "short"), planned(writer, STRIPES)
    peaks = []
    for one in (plan, long):
        tracemalloc.start()
        assert writer.writer.write(one).packed
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + writer.system.geometry.group_size_max // 2, "half a window is the largest object"
    _finish(writer)


# --- services -------------------------------------------------------------------------------------------------


def test_a_life_of_objects_in_long_groups(bench: Bench) -> None:
    """Packed, read, deleted, collected: with a packer that plans groups of up to a block."""
    with bench.open() as system, packing_long_groups():
        keys = bench.put_some(system, 400)
        bench.pack(system)
        assert longest(system) > 2 * WINDOW
        bench.assert_readable(system)
        for index, key in enumerate(keys):
            if index % 8 not in (0, 1):
                bench.delete(system, key)
        before = set(system.blocks.list_blocks())
        assert gc_service(system).run_once().objects_moved
        assert longest(system, before) > WINDOW
        bench.assert_readable(system)
        assert check(system, read_share=1.0) == []
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def longest(system: System, without: Container[BlockId] = ()) -> int:
    """Stripes of the longest group."""
    rows = [row for row in all_blocks(system.metadata) if row.block_id not in without]
    scans = [scan_headers(system.blocks, row.block_id, row.stripes) for row in rows]
    return max(header.stripe_count for scan in scans for header in scan.headers)


# --- kill -9 --------------------------------------------------------------------------------------------------

killed = pytest.mark.parametrize(
    ("where", "point"),
    [("new", point) for point in LONG_GROUP_POINTS] + [("used", point) for point in LONG_GROUP_BEHIND_POINTS],
)


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def kill_writer(bench: Bench, where: str, point: str) -> None:
    with bench.open() as system:
        put_for(bench, system, STRIPES)
    done = bench.run_python("-m", "tests.rig.long_groups", str(bench.config), where, kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"


def assert_settles(bench: Bench, ahead_ms: int) -> None:
    with bench.open() as system:
        system.clock = LaterClock(ahead_ms)
        bench.assert_readable(system)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_balanced(system)


@pytest.mark.timed
@pytest.mark.invariant(1)
@killed
def test_writer_of_a_long_group_killed(bench: Bench, where: str, point: str) -> None:
    kill_writer(bench, where, point)
    assert_settles(bench, TTL_OVER_MS)
    assert_settles(bench, 2 * TTL_OVER_MS)
    with bench.open() as system:
        system.clock = LaterClock(3 * TTL_OVER_MS)
        assert check(system, read_share=1.0) == []
        bench.assert_at_rest(system)


@pytest.mark.timed
@pytest.mark.invariant(7)
@killed
def test_the_database_is_lost_with_the_writer(bench: Bench, cli: Cli, where: str, point: str) -> None:
    """A row points only at bytes that were written: all of a group that was written as a whole, nothing of another."""
    kill_writer(bench, where, point)
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli, "--without-dump")
    whole = point.partition(":")[0] in ("metadata.commit_group.before_commit", "writer.committed") or point in (
        "writer.appended:4" if where == "new" else "writer.appended:5",
    )
    assert (said["unfinished_blocks"], said["unread_blocks"], said["unreadable"]) == (not whole, 0, [])
    assert to_look_at["block"] == set()
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        packed = sum(row.state is ObjectState.PACKED for row in all_objects(system.metadata))
        assert (packed > 3) == whole
        bench.assert_readable(system)
    assert_settles(bench, TTL_OVER_MS)
    assert_settles(bench, 2 * TTL_OVER_MS)
