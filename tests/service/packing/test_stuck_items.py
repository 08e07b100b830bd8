"""One item that never succeeds must not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.upkeep import recovery
from nos_ec.engine.upkeep.recovery import Recovery
from nos_ec.ports.block_store import BlockStore
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import Bench


class FailingFor:
    """A block store whose `method` gets no answer for some blocks, and counts the calls for those."""

    def __init__(self, blocks: BlockStore, method: str, stuck: set[BlockId]) -> None:
        self._blocks = blocks
        self._method = method
        self.stuck = stuck
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._blocks, name)
        if name != self._method:
            return method

        def guarded(block_id: BlockId, *arguments: Any) -> Any:
            if block_id in self.stuck:
                self.asked += 1
                raise Transient(f"block {block_id.hex()}: no answer")
            return method(block_id, *arguments)

        return guarded


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BLOCKS_PER_PAGE", 3)


@pytest.mark.usefixtures("small_pages")
def test_blocks_that_cannot_be_sealed_do_not_hold_up_those_behind_them(bench: Bench, system: System) -> None:
    clock = FakeClock(system.clock.now_ms())
    lease = system.metadata.acquire_lease("dead", clock.now_ms(), 1000)
    block_ids = [system.new_block_id() for _ in range(10)]
    for block_id in block_ids:
        system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, clock.now_ms())
    clock.advance(2000)
    first = {row.block_id for row in _fence(system, clock)[:7]}
    blocks = FailingFor(system.blocks, "seal", set(first))
    recovering = Recovery(system.metadata, cast(BlockStore, blocks), clock)

    assert recovering.run_once().blocks_sealed == 3
    assert len(recovering.parked) == 7
    asked = blocks.asked
    recovering.run_once()
    assert blocks.asked == asked, "a parked block was asked for again at once"

    blocks.stuck.clear()
    clock.advance(recovery.BLOCK_BACK_OFF.max_ms)
    assert recovering.run_once().blocks_sealed == 7
    assert len(recovering.parked) == 0
    states = {system.metadata.block(block_id).state for block_id in block_ids}
    assert states == {BlockState.SEALED}


def test_a_parked_block_that_others_recover_is_forgotten(system: System) -> None:
    clock = FakeClock(system.clock.now_ms())
    lease = system.metadata.acquire_lease("dead", clock.now_ms(), 1000)
    block_id = system.new_block_id()
    system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, clock.now_ms())
    clock.advance(2000)
    blocks = FailingFor(system.blocks, "seal", {block_id})
    recovering = Recovery(system.metadata, cast(BlockStore, blocks), clock)
    recovering.run_once()
    assert len(recovering.parked) == 1
    Recovery(system.metadata, system.blocks, clock).run_once()
    recovering.run_once()
    assert len(recovering.parked) == 0


def _fence(system: System, clock: FakeClock) -> list[Any]:
    for lease in system.metadata.expired_leases(clock.now_ms()):
        assert system.metadata.fence_lease(lease, clock.now_ms())
    return system.metadata.fenced_blocks(100)
