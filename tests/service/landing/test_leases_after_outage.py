"""Leases that expired while the metadata store was away are renewed before another process fences them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import LeaseLost, NosError, Transient
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.leases import RETRY_WAIT_MS
from nos_ec.engine.upkeep.recovery import RENEW_WAIT_MS, Recovery, RecoveryResult
from nos_ec.ports.metadata import Metadata
from tests.rig.fakes.clock import FakeClock

pytestmark = pytest.mark.invariant(8)

TTL_MS = 30_000


class Away:
    """Metadata whose calls fail while `away`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.away = False

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._metadata, name)

        def call(*arguments: Any) -> Any:
            if self.away:
                raise Transient("no answer")
            return method(*arguments)

        return call


@pytest.fixture
def away(system: System) -> Away:
    metadata = Away(system.metadata)
    system.metadata = cast(Metadata, metadata)
    return metadata


def test_a_process_renews_its_own_lease_and_does_not_fence_it(system: System, clock: FakeClock) -> None:
    """It was not renewed for longer than it lasts: the database was away, or the machine stalled."""
    keeping = system.worker.housekeeping()
    with system.lease("mine", TTL_MS) as held:
        block_id = system.new_block_id()
        system.metadata.allocate_block(held.lease, block_id, BlockKind.FRESH, clock.now_ms())
        clock.advance(2 * TTL_MS)
        assert held.left_ms() == 0
        assert keeping.run_once().recovery == RecoveryResult()
        held.require()
        assert system.metadata.block(block_id).state is BlockState.OPEN
    clock.advance(2 * TTL_MS)
    assert keeping.run_once().recovery.blocks_sealed == 1, "given up: its block is recovery's like any other"


def test_a_lease_that_was_lost_is_not_renewed(system: System, clock: FakeClock) -> None:
    with system.lease("mine", TTL_MS) as held:
        clock.advance(2 * TTL_MS)
        Recovery(system.metadata, system.blocks, clock).run_once()  # of another process
        system.worker.housekeeping().run_once()
        held.renew()
        with pytest.raises(LeaseLost):
            held.require_not_lost()


def test_others_may_renew_before_they_are_fenced_when_the_metadata_store_is_back(
    system: System, clock: FakeClock, away: Away
) -> None:
    other = system.metadata.acquire_lease("other", clock.now_ms(), TTL_MS)
    dead = system.metadata.acquire_lease("dead", clock.now_ms(), TTL_MS)
    keeping = system.worker.housekeeping()
    away.away = True
    for _ in range(2):
        with pytest.raises(NosError):
            keeping.run_once()
        clock.advance(TTL_MS)
    away.away = False
    assert keeping.run_once().recovery.leases_fenced == 0
    clock.advance(RETRY_WAIT_MS)
    system.metadata.renew_lease(other, clock.now_ms(), TTL_MS)
    clock.advance(RENEW_WAIT_MS)
    assert keeping.run_once().recovery.leases_fenced == 1
    assert [lease.name for lease in system.metadata.list_leases("")] == ["other"]
    assert not system.metadata.fence_lease(dead, clock.now_ms())
