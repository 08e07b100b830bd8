"""The commit protocol of one writer when something fails in the middle of it (invariants 3, 5, 8)."""

from __future__ import annotations

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, LeaseLost, NoSpace, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.merge_list import BestFitMergeList
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.source_reader import SourceReader
from nos_ec.engine.packing.stripe_writer import APPEND_TRIES, STREAM_IDLE_MS, StripeWriter, WriterOptions
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Lease
from tests.rig.fakes.audit import all_blocks
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.service.conftest import CHUNK, Bench

pytestmark = pytest.mark.landing("store")

TTL_MS = 60_000


class Ailing:
    """A `Placement` whose places go bad when a test asks for it."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.given: list[BlockId] = []
        self.bad: set[BlockId] = set()
        self.alternatives = True

    def new_block_id(self) -> BlockId:
        self.given.append(self._system.new_block_id())
        return self.given[-1]

    def healthy(self, block_id: BlockId) -> bool:
        return block_id not in self.bad


class Writer:
    """A StripeWriter on faulty ports, and plans for it."""

    def __init__(self, bench: Bench, system: System) -> None:
        self.bench = bench
        self.system = system
        self.metadata = Faults()
        self.blocks = Faults()
        self.landing = Faults()
        self.placement = Ailing(system)
        self.clock: Clock = _NoWait()
        self.lease = system.metadata.acquire_lease("writer", system.clock.now_ms(), TTL_MS)
        self.writer = self.make(self.lease)

    def make(self, lease: Lease) -> StripeWriter:
        metadata = faulty(self.system.metadata, self.metadata)
        blocks = faulty(self.system.blocks, self.blocks)
        sources = SourceReader(faulty(self.system.landing, self.landing), blocks, self.system.read_threads)
        options = WriterOptions(BlockKind.FRESH, reserve_bytes=0, landing_grace_ms=0, read_back=True)
        return StripeWriter(metadata, blocks, sources, self.clock, lease, self.placement, options)

    def plan(self, count: int, prefix: str = "o") -> GroupPlan[Packable]:
        merge_list = BestFitMergeList[Packable](self.system.geometry, 1000, 0)
        for key in self.bench.put_some(self.system, count, size_max=CHUNK // 2, prefix=prefix):
            row = self.system.client.store().head(key)
            assert row.landing_id is not None
            packable = Packable(row.object_id, key, row.version, row.size, row.crc32c, row.landing_id)
            merge_list.add(packable.candidate(0))
        plan = merge_list.plan(0, flush=True)
        assert plan is not None
        assert len(plan.placed) == count
        return plan

    def release(self) -> None:
        self.writer.close()
        self.system.metadata.release_lease(self.lease)


class _NoWait:
    """Retries follow at once; time does not matter here."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def wait(self, stop: object, wait_ms: int) -> bool:
        return False


@pytest.fixture
def writer(bench: Bench, system: System) -> Writer:
    return Writer(bench, system)


def _finish(writer: Writer) -> None:
    """Whatever happened before: release, settle, and everything must be there and in balance."""
    writer.release()
    writer.bench.settle(writer.system)
    writer.bench.assert_readable(writer.system)
    writer.bench.assert_balanced(writer.system)


def test_a_group_is_written(writer: Writer) -> None:
    result = writer.writer.write(writer.plan(20))
    assert len(result.packed) == 20
    assert (result.superseded, result.failed, result.retry, result.cause) == ([], [], [], None)
    overhead = writer.system.metadata.totals().overhead_bytes
    assert result.empty.front + result.empty.gap + result.empty.end == overhead
    writer.bench.assert_readable(writer.system)
    _finish(writer)


def test_a_commit_that_failed_is_tried_again(writer: Writer) -> None:
    writer.metadata.before["commit_group"] = [Transient("deadlock"), Transient("deadlock")]
    assert len(writer.writer.write(writer.plan(20)).packed) == 20
    assert writer.metadata.calls["commit_group"] == 3
    _finish(writer)


def test_the_outcome_of_a_commit_without_an_answer_is_looked_up(writer: Writer) -> None:
    writer.metadata.after["commit_group"] = [Transient("connection lost")]
    result = writer.writer.write(writer.plan(20))
    assert len(result.packed) == 20, "it had been committed; nothing may be written again"
    assert writer.system.metadata.totals().dead_bytes == 0
    _finish(writer)


def test_a_commit_that_keeps_failing_abandons_the_block(writer: Writer) -> None:
    writer.metadata.before["commit_group"] = [Transient("down")] * 5
    plan = writer.plan(20)
    result = writer.writer.write(plan)
    assert len(result.retry) == 20
    assert isinstance(result.cause, Transient)
    (block,) = all_blocks(writer.system.metadata)
    assert block.state is BlockState.FENCED
    again = writer.writer.write(plan)
    assert len(again.packed) == 20
    assert len(list(all_blocks(writer.system.metadata))) == 2, "never appended to the first one again"
    _finish(writer)


@pytest.mark.parametrize("error", [Conflict("sealed"), NoSpace("full")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_that_would_fail_anywhere_abandons_the_block(writer: Writer, error: Exception, when: str) -> None:
    """It may have taken effect or not: the bytes are never relied on, and the group is planned again."""
    assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
    getattr(writer.blocks, when)["append"] = [error]
    plan = writer.plan(20, "second")
    result = writer.writer.write(plan)
    assert len(result.retry) == 20
    assert result.cause is error
    assert len(writer.writer.write(plan).packed) == 20
    states = sorted(block.state.value for block in all_blocks(writer.system.metadata))
    assert states == ["fenced", "open"]
    _finish(writer)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failures", range(1, APPEND_TRIES))
def test_a_group_that_failed_is_written_again_to_another_block(writer: Writer, when: str, failures: int) -> None:
    """The failed write may have taken effect or not: there is one commit, and the content of the failed blocks is
    dead."""
    getattr(writer.blocks, when)["create"] = [Transient("time-out")] * failures
    plan = writer.plan(20)
    result = writer.writer.write(plan)
    assert (len(result.packed), result.retry, result.cause) == (20, [], None)
    assert writer.metadata.calls["commit_group"] == 1
    states = sorted(block.state.value for block in all_blocks(writer.system.metadata))
    assert states == ["fenced"] * failures + ["open"]
    assert len(set(writer.placement.given)) == failures + 1
    writer.release()
    writer.system.worker.housekeeping().run_once()
    blocks = {block.block_id: block for block in all_blocks(writer.system.metadata)}
    assert {block.state for block in blocks.values()} == {BlockState.SEALED}
    written = plan.data_length if when == "after" else 0
    assert [(blocks[failed].live_bytes, blocks[failed].dead_bytes) for failed in writer.placement.given[:-1]] == [
        (0, written)
    ] * failures
    _finish(writer)


def test_an_append_that_fails_in_the_middle_of_a_block_keeps_what_is_in_it(writer: Writer) -> None:
    assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
    writer.blocks.after["append"] = [Transient("time-out")]
    assert len(writer.writer.write(writer.plan(10, "second")).packed) == 10
    first, second = all_blocks(writer.system.metadata)
    assert (first.state, second.state) == (BlockState.FENCED, BlockState.OPEN)
    assert (first.live_objects, second.live_objects) == (10, 10)
    _finish(writer)


def test_appends_that_keep_failing_return_the_group(writer: Writer) -> None:
    writer.blocks.before["create"] = [Transient("time-out")] * APPEND_TRIES
    plan = writer.plan(20)
    result = writer.writer.write(plan)
    assert len(result.retry) == 20
    assert isinstance(result.cause, Transient)
    assert writer.blocks.calls["create"] == APPEND_TRIES
    assert {block.state for block in all_blocks(writer.system.metadata)} == {BlockState.FENCED}
    assert len(writer.writer.write(plan).packed) == 20
    _finish(writer)


def test_no_second_block_is_tried_where_all_blocks_lie_in_the_same_place(writer: Writer) -> None:
    writer.placement.alternatives = False
    writer.blocks.before["create"] = [Transient("read-only")] * 2
    plan = writer.plan(20)
    for failures in (1, 2):
        assert len(writer.writer.write(plan).retry) == 20
        assert writer.blocks.calls["create"] == failures
    assert len(writer.writer.write(plan).packed) == 20
    _finish(writer)


@pytest.mark.invariant(8)
def test_a_writer_fenced_while_it_writes_again_stops(writer: Writer) -> None:
    """Another place does not help a writer that has lost its lease."""
    plan = writer.plan(10)
    writer.blocks.before["create"] = [Transient("time-out")]

    def fence(method: str) -> None:
        if method == "create":
            assert writer.system.metadata.fence_lease(writer.lease, writer.lease.expires_ms + 1)

    writer.blocks.hook = fence
    with pytest.raises(LeaseLost):
        writer.writer.write(plan)
    assert writer.blocks.calls["create"] == 1
    _finish(writer)


@pytest.mark.parametrize(("method", "message"), [("create", "exists"), ("append", "sealed")])
def test_a_write_that_comes_late_finds_its_block_sealed(writer: Writer, method: str, message: str) -> None:
    """A write that may still take effect after its time-out: by then, recovery has sealed the block or counts the
    bytes."""
    late: list[tuple[BlockId, *tuple[int | bytes, ...]]] = []
    write = getattr(writer.system.blocks, method)

    def lose(block_id: BlockId, *arguments: int | bytes) -> None:
        if not late:
            late.append((block_id, *arguments))
            raise Transient("time-out")
        write(block_id, *arguments)

    if method == "append":
        assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(writer.system.blocks), method, lambda _self, *arguments: lose(*arguments))
        assert len(writer.writer.write(writer.plan(10, "second")).packed) == 10
    writer.system.worker.housekeeping().run_once()
    (arguments,) = late
    with pytest.raises(Conflict, match=message):
        write(*arguments)
    _finish(writer)


def test_the_group_that_fills_a_block_seals_it(writer: Writer) -> None:
    for number in range(writer.system.geometry.stripes_per_block):
        assert len(writer.writer.write(writer.plan(1, f"group-{number}")).packed) == 1
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.stripes) == (BlockState.SEALED, writer.system.geometry.stripes_per_block)
    assert "seal" not in writer.blocks.calls
    assert "seal_block" not in writer.metadata.calls
    assert len(writer.writer.write(writer.plan(1, "next")).packed) == 1
    assert len(list(all_blocks(writer.system.metadata))) == 2
    _finish(writer)


def test_a_block_whose_place_went_bad_is_left(writer: Writer) -> None:
    assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
    writer.placement.bad.update(writer.placement.given)
    assert len(writer.writer.write(writer.plan(10, "second")).packed) == 10
    assert len(writer.writer.write(writer.plan(10, "third")).packed) == 10
    blocks = {block.block_id: block for block in all_blocks(writer.system.metadata)}
    first, second = (blocks[block_id] for block_id in writer.placement.given)
    assert (first.state, first.live_objects) == (BlockState.SEALED, 10)
    assert (second.state, second.live_objects) == (BlockState.OPEN, 20)
    _finish(writer)


@pytest.mark.parametrize("port", ["blocks", "metadata"])
def test_a_block_that_cannot_be_sealed_is_left_to_recovery(writer: Writer, port: str) -> None:
    assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
    writer.placement.bad.update(writer.placement.given)
    getattr(writer, port).before["seal" if port == "blocks" else "seal_block"] = [Transient("inactive")]
    assert len(writer.writer.write(writer.plan(10, "second")).packed) == 10
    states = sorted(block.state.value for block in all_blocks(writer.system.metadata))
    assert states == ["fenced", "open"]
    _finish(writer)


@pytest.mark.parametrize("method", ["create", "seal"])
def test_a_block_store_that_fails_to_create_or_seal(writer: Writer, method: str) -> None:
    for round_ in range(4):
        writer.blocks.after[method] = [Transient("lost")]
        assert len(writer.writer.write(writer.plan(12, f"round-{round_}")).packed) == 12
    _finish(writer)


@pytest.mark.invariant(3)
def test_a_read_back_that_differs_commits_nothing(writer: Writer) -> None:
    writer.blocks.before["read"] = [Transient("cannot read")]
    result = writer.writer.write(writer.plan(10))
    assert len(result.retry) == 10
    assert writer.system.metadata.totals().packed_objects == 0
    _finish(writer)


@pytest.mark.invariant(8)
def test_a_fenced_writer_commits_nothing(writer: Writer) -> None:
    """A zombie that resumes after its lease was revoked."""
    assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
    plan = writer.plan(10, "second")
    assert writer.system.metadata.fence_lease(writer.lease, writer.lease.expires_ms + 1)
    with pytest.raises(LeaseLost):
        writer.writer.write(plan)
    rows = [
        writer.system.client.store().head(key) for key in writer.bench.acknowledged if key.name.startswith("second")
    ]
    assert {row.state for row in rows} == {ObjectState.LANDED}
    _finish(writer)


def test_a_writer_fenced_between_append_and_commit(writer: Writer) -> None:
    plan = writer.plan(10)

    def fence(method: str) -> None:
        if method == "commit_group":
            assert writer.system.metadata.fence_lease(writer.lease, writer.lease.expires_ms + 1)
            writer.system.worker.housekeeping().run_once()  # recovery seals the block under the writer's feet

    writer.metadata.hook = fence
    with pytest.raises(LeaseLost):
        writer.writer.write(plan)
    writer.metadata.hook = lambda _method: None
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, block.live_bytes) == (BlockState.SEALED, 0)
    assert block.dead_bytes == plan.data_length
    _finish(writer)


@pytest.mark.parametrize("change", ["delete", "overwrite"])
@pytest.mark.invariant(5)
def test_objects_that_change_while_they_are_packed(writer: Writer, change: str) -> None:
    """The compare-and-set loses, which leaves a hole and is not an error."""
    plan = writer.plan(10)
    victim = sorted(writer.bench.acknowledged)[0]

    def interfere(method: str) -> None:
        if method == "create":
            if change == "delete":
                writer.bench.delete(writer.system, victim)
            else:
                writer.bench.put(writer.system, victim.name, b"newer", bucket=victim.bucket)

    writer.blocks.hook = interfere
    result = writer.writer.write(plan)
    assert [packable.key for packable in result.superseded] == [victim]
    assert len(result.packed) == 9
    assert writer.system.metadata.totals().dead_bytes > 0
    _finish(writer)


def test_a_source_that_cannot_be_read_now_is_returned_alone(writer: Writer) -> None:
    plan = writer.plan(20)
    writer.landing.before["read_range"] = [Transient("away")]
    result = writer.writer.write(plan)
    assert (len(result.packed), len(result.unread), result.cause) == (19, 1, None)
    empty, written = result.empty, result.stripe_count * writer.system.geometry.stripe_size
    packed = sum(packable.size for packable in result.packed)
    assert empty.front + empty.gap + empty.end + packed == written, "what is not there leaves a gap"
    _finish(writer)


def test_no_room_for_a_block(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(writer.system.blocks), "free_bytes", lambda _self: 0)
    result = writer.writer.write(writer.plan(5))
    assert isinstance(result.cause, NoSpace)
    assert len(result.retry) == 5
    assert list(all_blocks(writer.system.metadata)) == []
    monkeypatch.undo()
    _finish(writer)


def test_a_block_refused_for_lack_of_space_leaves_nothing_behind(writer: Writer) -> None:
    """A quota on objects that `free_bytes` does not show yet refuses blocks like this. No other block is tried."""
    plan = writer.plan(5)
    for _ in range(3):
        writer.blocks.before["create"] = [NoSpace("over a quota")]
        allocated = writer.metadata.calls["allocate_block"]
        result = writer.writer.write(plan)
        assert isinstance(result.cause, NoSpace)
        assert writer.metadata.calls["allocate_block"] == allocated + 1
        assert list(all_blocks(writer.system.metadata)) == []
    assert len(writer.writer.write(plan).packed) == 5
    _finish(writer)


def test_a_row_that_cannot_be_removed_is_left_to_recovery(writer: Writer) -> None:
    writer.blocks.before["create"] = [NoSpace("over a quota")]
    writer.metadata.before["forget_unwritten"] = [Transient("away")]
    plan = writer.plan(5)
    assert isinstance(writer.writer.write(plan).cause, NoSpace)
    assert [block.state for block in all_blocks(writer.system.metadata)] == [BlockState.OPEN]
    assert len(writer.writer.write(plan).packed) == 5
    _finish(writer)


def test_a_block_that_has_groups_is_left_to_recovery_when_there_is_no_space(writer: Writer) -> None:
    assert len(writer.writer.write(writer.plan(5, "first")).packed) == 5
    writer.blocks.before["append"] = [NoSpace("over a quota")]
    assert isinstance(writer.writer.write(writer.plan(5, "second")).cause, NoSpace)
    assert [block.state for block in all_blocks(writer.system.metadata)] == [BlockState.FENCED]
    _finish(writer)


def test_closing_seals_the_block(writer: Writer) -> None:
    writer.writer.write(writer.plan(5))
    writer.writer.close()
    (block,) = all_blocks(writer.system.metadata)
    assert block.state is BlockState.SEALED
    writer.writer.close()
    _finish(writer)


def test_closing_while_the_block_store_is_away_leaves_the_block_to_recovery(writer: Writer) -> None:
    writer.writer.write(writer.plan(5))
    writer.blocks.before["seal"] = [Transient("away")]
    writer.writer.close()
    _finish(writer)
    assert {block.state for block in all_blocks(writer.system.metadata)} == {BlockState.SEALED}


def test_groups_fill_a_block_to_its_last_stripe(writer: Writer) -> None:
    sizes = [writer.writer.write(writer.plan(20, f"round-{round_}")).stripe_count for round_ in range(12)]
    per_block = writer.system.geometry.stripes_per_block
    blocks = list(all_blocks(writer.system.metadata))
    assert sum(block.stripes for block in blocks) == sum(sizes)
    assert all(block.stripes <= per_block for block in blocks)
    assert all(block.stripes > per_block - max(sizes) for block in blocks[:-1])
    _finish(writer)


def test_groups_of_different_streams_go_to_different_blocks(writer: Writer) -> None:
    system, bench = writer.system, writer.bench
    for turn, stream in enumerate((0, 3, 0, 3, 1)):
        plan = writer.plan(3, prefix=f"turn{turn}")._replace(stream=stream)
        assert len(writer.writer.write(plan).packed) == 3
    blocks = {row.block_id: row for row in all_blocks(system.metadata)}
    assert len(blocks) == 3, "one for each stream"
    assert {row.state for row in blocks.values()} == {BlockState.OPEN}
    of_turn = [
        {placed.key.name[4] for placed in system.metadata.placed_in(block_id)} for block_id in writer.placement.given
    ]
    assert of_turn == [{"0", "2"}, {"1", "3"}, {"4"}]
    writer.release()
    assert {row.state for row in all_blocks(system.metadata)} == {BlockState.SEALED}
    bench.assert_balanced(system)


def test_a_failed_append_ends_the_block_of_its_stream_alone(writer: Writer) -> None:
    system = writer.system
    for stream in (0, 1):
        assert writer.writer.write(writer.plan(3, prefix=f"first{stream}")._replace(stream=stream)).packed
    writer.blocks.before["append"] = [Transient("away")]
    writer.placement.alternatives = False
    assert writer.writer.write(writer.plan(3, prefix="second")._replace(stream=0)).cause is not None
    states = {row.block_id: row.state for row in all_blocks(system.metadata)}
    assert [states[block_id] for block_id in writer.placement.given] == [BlockState.FENCED, BlockState.OPEN]
    assert writer.writer.write(writer.plan(3, prefix="third")._replace(stream=1)).packed
    writer.release()


def test_the_block_of_a_stream_that_is_idle_is_sealed(writer: Writer) -> None:
    system, bench = writer.system, writer.bench
    writer.clock = clock = FakeClock(system.clock.now_ms())
    writer.writer = writer.make(writer.lease)
    for stream in (0, 1):
        assert writer.writer.write(writer.plan(3, prefix=f"first{stream}")._replace(stream=stream)).packed
    clock.advance(STREAM_IDLE_MS - 1)
    assert writer.writer.write(writer.plan(3, prefix="second")._replace(stream=1)).packed
    assert {row.state for row in all_blocks(system.metadata)} == {BlockState.OPEN}
    clock.advance(1)
    assert writer.writer.write(writer.plan(3, prefix="third")._replace(stream=1)).packed
    states = {row.block_id: row.state for row in all_blocks(system.metadata)}
    assert [states[block_id] for block_id in writer.placement.given] == [BlockState.SEALED, BlockState.OPEN]
    assert writer.writer.write(writer.plan(3, prefix="fourth")._replace(stream=0)).packed, "in a new block"
    writer.release()
    bench.assert_balanced(system)
