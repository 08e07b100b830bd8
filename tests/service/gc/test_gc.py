"""GC: blocks that cannot be collected hold up no others, and waste of every kind is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from nos_ec.composition.packing import COOL_DOWN_MS_MAX
from nos_ec.composition.wiring import System
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.gc.run.progress import NAMED_MAX
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriteResult
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow
from nos_gc.assemble import gc_collector, gc_service
from tests.rig.at_rest import LaterClock
from tests.service.conftest import CHUNK, Bench
from tests.service.packing.test_stuck_items import FailingFor

pytestmark = pytest.mark.invariant(10)

DAY_MS = 86_400_000


def configure(bench: Bench, section: str, line: str) -> None:
    """Add a setting, or replace its value."""
    text, name = bench.config.read_text(), line.partition(" ")[0]
    kept = [one for one in text.splitlines() if not one.startswith(f"{name} =")]
    kept.insert(kept.index(f"[{section}]") + 1, line)
    bench.config.write_text("\n".join(kept) + "\n")


def sealed(system: System) -> list[BlockRow]:
    """Sealed blocks, in order of their ids."""
    return [block for block in system.metadata.list_blocks(None, 999) if block.state is BlockState.SEALED]


def dig_holes(bench: Bench, system: System, keep: int = 8) -> list[BlockRow]:
    """Pack objects, and delete all but every `keep`th. Returns the blocks that then consist mostly of holes."""
    keys = bench.put_some(system, 400)
    bench.pack(system)
    for index, key in enumerate(keys):
        if index % keep:
            bench.delete(system, key)
    return [block for block in sealed(system) if block.live_objects]


def fail(system: System, method: str, stuck: set[BlockId]) -> FailingFor:
    """Let `method` of the block store fail for these blocks."""
    failing = FailingFor(system.blocks, method, stuck)
    system.blocks = cast(BlockStore, failing)
    return failing


# --- one block that does not answer ---------------------------------------------------------------
@pytest.mark.parametrize("retry", [False, True])
def test_a_block_that_does_not_answer_is_set_aside_and_the_others_are_collected(bench: Bench, *, retry: bool) -> None:
    """It is tried again when its time has come, or when an operator asks for it after a repair."""
    with bench.open() as system:
        blocks = dig_holes(bench, system)
        assert len(blocks) > 4
        there, stuck = len(sealed(system)), blocks[2].block_id
        failing = fail(system, "read_many", {stuck})
        service = gc_service(system)
        result = service.run_once()
        left = {block.block_id for block in sealed(system) if block.kind is BlockKind.FRESH}
        assert left == {stuck}
        assert result.blocks_deleted == there - 1
        assert result.blocks_parked == 1
        assert stuck.hex() in result.parked[0]
        assert "no answer" in result.parked[0]
        (parked,) = service.retry_queues
        assert stuck in parked
        assert service.counters.collected.blocks_parked == 1

        failing.stuck.clear()
        asked = failing.asked
        assert service.run_once().blocks_condemned == 0, "it is left alone for a while"
        assert failing.asked == asked
        if not retry:
            system.clock = LaterClock(DAY_MS)
        gc_service(system, retry=retry).run_once()
        assert stuck not in {block.block_id for block in sealed(system)}
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_a_block_with_readable_headers_whose_objects_do_not_answer(bench: Bench) -> None:
    """By then its objects wait in the merge list beside those of other blocks.

    A third of the objects stay: three stripes of each block or more, so it is read more often than `after`.
    """
    configure(bench, "gc", "hole_ratio_min = 0.5")
    with bench.open() as system:
        blocks = dig_holes(bench, system, keep=3)
        stuck = blocks[1].block_id
        failing = FailingAfter(system.blocks, "read_many", {stuck}, after=2)
        failing_one = FailingFor(cast(BlockStore, failing), "read", {stuck})
        system.blocks = cast(BlockStore, failing_one)
        result = gc_service(system).run_once()
        assert failing.asked + failing_one.asked > 0
        assert result.blocks_parked == 1
        assert {block.block_id for block in sealed(system) if block.kind is BlockKind.FRESH} == {stuck}
        failing.stuck.clear()
        failing_one.stuck.clear()
        bench.assert_readable(system)
        bench.assert_balanced(system)


class FailingAfter(FailingFor):
    """Fails for stuck blocks, except for the first `after` calls for each."""

    def __init__(self, blocks: BlockStore, method: str, stuck: set[BlockId], after: int) -> None:
        super().__init__(blocks, method, stuck)
        self._allowed = dict.fromkeys(stuck, after)
        inner = self.__getattr__(method)
        self._inner = getattr(blocks, method)

        def read_many(block_id: BlockId, extents: object) -> object:
            if self._allowed.get(block_id, 0) > 0:
                self._allowed[block_id] -= 1
                return self._inner(block_id, extents)
            return inner(block_id, extents)

        self.read_many = read_many


def test_the_most_wasteful_blocks_do_not_starve_the_others(bench: Bench) -> None:
    configure(bench, "gc", "blocks_max_per_run = 2")
    with bench.open() as system:
        blocks = dig_holes(bench, system)
        worst = sorted(blocks, key=lambda block: block.waste_ratio)[-2:]
        failing = fail(system, "read_many", {block.block_id for block in worst})
        assert gc_service(system).run_once().blocks_parked == 2
        assert gc_service(system).run_once().blocks_deleted == 2, "a new process knows of it too"

        for minutes, asked_again in ((12, True), (24, False), (36, True)):
            asked = failing.asked
            system.clock = LaterClock(minutes * 60_000)
            gc_service(system).run_once()
            assert (failing.asked > asked) is asked_again, "its wait doubles with each failure in a row"


# --- objects that cannot be read ------------------------------------------------------------------
def test_unreadable_objects_are_counted_and_the_first_few_named(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 400, size_max=CHUNK // 4)
    bench.pack(system)
    extent = system.client.store().head(keys[0]).extent
    assert extent is not None
    placed = [one.key for one in system.metadata.placed_in(extent.block_id)]
    for key in [key for index, key in enumerate(placed) if index % 8]:
        bench.delete(system, key)
    system.blocks.delete(extent.block_id)
    result = gc_service(system).run_once()
    assert result.unreadable_objects == len(placed) // 8 + bool(len(placed) % 8) > NAMED_MAX
    assert len(result.unreadable) == NAMED_MAX
    assert gc_service(system).run_once().blocks_examined == 0, "the block is left alone for a while"


def test_the_exit_code_of_gc_reports_unreadable_objects(bench: Bench) -> None:
    with bench.open() as system:
        blocks = dig_holes(bench, system)
        system.blocks.delete(blocks[0].block_id)
    done = bench.run("gc", "run", "--apply")
    assert done.returncode == 6
    assert b"its block is kept, because this object cannot be read" in done.stdout


def test_objects_that_another_run_moved_are_not_unreadable(bench: Bench, system: System) -> None:
    dig_holes(bench, system)
    with system.lease("overlapping", 30_000) as held:
        writer = OvertakenBy(
            lambda: gc_service(system).run_once(), system.worker.writer(held.lease, BlockKind.SURVIVOR)
        )
        result = gc_collector(system).run(lambda: cast(StripeWriter, writer))
    assert writer.other is None, "the other run took place"
    assert (result.unreadable_objects, result.blocks_parked) == (0, 0)
    bench.assert_readable(system)
    bench.settle(system)
    bench.assert_at_rest(system)


class OvertakenBy:
    """A writer that runs something else before its first write."""

    def __init__(self, other: Callable[[], object], writer: StripeWriter) -> None:
        self.other: Callable[[], object] | None = other
        self._writer = writer

    def write(self, plan: GroupPlan[Packable]) -> WriteResult:
        other, self.other = self.other, None
        if other is not None:
            other()
        return self._writer.write(plan)

    def close(self) -> None:
        self._writer.close()


# --- padding and headers --------------------------------------------------------------------------
def test_nearly_empty_stripes_are_merged(bench: Bench, system: System) -> None:
    """20 objects that arrived one by one, each packed into a separate stripe."""
    for number in range(20):
        bench.put(system, f"trickle/{number:02}", bench.data(1000))
        bench.pack(system)
    assert sum(block.stripes for block in sealed(system)) == 20
    result = gc_service(system).run_once()
    assert result.objects_moved == 20
    (merged,) = sealed(system)
    assert (merged.stripes, merged.live_objects) == (1, 20)
    assert gc_service(system).run_once().objects_moved == 0, "a lone stripe is not copied again and again"
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_blocks_packed_as_densely_as_possible_are_left_alone(bench: Bench) -> None:
    """Most of a block of tiny objects is headers and names. Rewriting it would free nothing."""
    with bench.open() as system:
        for first in range(0, 4000, 1000):
            bench.put_some(system, 1000, size_max=20, prefix=f"a-name-that-is-much-longer-than-its-object/{first}")
        bench.pack(system)
        before = sealed(system)
        assert before[0].waste_ratio > 0.75
        assert gc_service(system).run_once().objects_moved == 0
        gc, now_ms = system.settings.gc, system.clock.now_ms()
        candidates = system.metadata.gc_candidates(gc.hole_ratio_min, now_ms, COOL_DOWN_MS_MAX, 9)
        assert before[0].block_id not in {block.block_id for block in candidates}, "its rows are not read in every run"
        assert sealed(system)[0].gc_failures == 0, "nothing has failed"
        for key in list(bench.acknowledged)[::20]:
            bench.delete(system, key)
        for key in [key for index, key in enumerate(bench.acknowledged) if index % 10]:
            bench.delete(system, key)
        system.clock = LaterClock(DAY_MS)
        assert gc_service(system).run_once().blocks_deleted > 0
        bench.assert_readable(system)


@pytest.mark.parametrize(("policy", "hole_ratio_min"), [("best", 0.05), ("nos", 0.5)])
def test_gc_comes_to_rest(bench: Bench, policy: str, hole_ratio_min: float) -> None:
    """With any trigger, each run leaves fewer stripes or rewrites nothing."""
    configure(bench, "consumer", f'policy = "{policy}"')
    configure(bench, "gc", f"hole_ratio_min = {hole_ratio_min}")
    with bench.open() as system:
        for number in range(5):
            bench.put_some(system, 60, size_max=5 * CHUNK, prefix=f"p{number}")
            bench.pack(system)
        for key in [key for index, key in enumerate(list(bench.acknowledged)) if index % 3]:
            bench.delete(system, key)
        stripes = sum(block.stripes for block in sealed(system))
        for _ in range(10):
            moved = gc_service(system).run_once().objects_moved
            now = sum(block.stripes for block in sealed(system))
            assert now < stripes or not moved
            stripes = now
            if not moved:
                break
        assert not moved
        bench.assert_readable(system)
        bench.assert_at_rest(system)


# --- empty blocks ---------------------------------------------------------------------------------
def test_empty_blocks_are_collected_without_a_writer(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 200)
    bench.put(system, "large", bench.data(40 * 8 * CHUNK))
    bench.pack(system)
    for key in [*keys, ObjectKey("b", "large")]:
        bench.delete(system, key)

    def no_writer() -> StripeWriter:
        raise AssertionError("nothing is to be written")

    result = gc_collector(system).run(no_writer)
    assert result.blocks_deleted > 2
    assert sealed(system) == []
    bench.assert_at_rest(system)


def test_a_condemned_block_that_cannot_be_deleted_does_not_stop_the_others(bench: Bench) -> None:
    configure(bench, "gc", "blocks_max_per_run = 2")
    with bench.open() as system:
        keys = bench.put_some(system, 400)
        bench.pack(system)
        for key in keys:
            bench.delete(system, key)
        blocks = sealed(system)
        stuck = {block.block_id for block in blocks[:3]}
        failing = fail(system, "delete", stuck)
        with pytest.raises(Exception, match="no answer"):
            gc_service(system).run_once()
        assert {block.block_id for block in system.metadata.list_blocks(None, 99)} == stuck
        failing.stuck.clear()
        bench.settle(system)
        bench.assert_at_rest(system)
