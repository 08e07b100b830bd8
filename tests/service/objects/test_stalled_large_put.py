"""A PUT of a large object that stalls for longer than its lease, while others recover and collect its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import LeaseLost, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState
from nos_ec.library.object_store import ObjectStore
from nos_ec.ports.block_store import BlockStore
from nos_gc.assemble import gc_service
from tests.rig.at_rest import left_over
from tests.rig.fakes.clock import SetClock
from tests.service.conftest import STRIPE, Bench

KEY = ObjectKey("b", "large")


class Stalling:
    """A block store in which the caller stalls once: before `method`, `meanwhile` happens."""

    def __init__(self, blocks: BlockStore, method: str, meanwhile: Callable[[], object]) -> None:
        self._blocks = blocks
        self._method = method
        self._meanwhile = meanwhile
        self.stalled = 0

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._blocks, name)

        def late(*arguments: Any) -> Any:
            if not self.stalled:
                self.stalled += 1
                self._meanwhile()
            return method(*arguments)

        return late if name == self._method else method


@pytest.mark.parametrize("method", ["create", "seal"])
def test_a_stalled_large_put_reports_that_its_lease_was_lost(bench: Bench, system: System, method: str) -> None:
    system.clock = clock = SetClock(system.clock.now_ms())

    def recovered_and_collected() -> None:
        clock.advance(60_000)
        with bench.open() as other:
            other.clock = clock
            for _ in range(2):
                gc_service(other).run_once()
                clock.advance(1000)

    blocks = Stalling(system.blocks, method, recovered_and_collected)
    plain, system.blocks = system.blocks, cast(BlockStore, blocks)
    with pytest.raises(LeaseLost, match="PUT it again"):
        system.client.store().put(KEY, BytesIO(bench.data(9 * STRIPE)))
    assert blocks.stalled == 1
    system.blocks = plain
    with pytest.raises(NotFound):
        system.client.store().head(KEY)
    bench.settle(system)
    assert left_over(system) == []


def test_a_lease_that_was_lost_while_nothing_was_put_fails_no_put(bench: Bench, system: System) -> None:
    """Its holder does not know yet: the clock of another process may be ahead."""
    bench.put(system, "first", bench.data(9 * STRIPE))
    (lost,) = system.metadata.list_leases("put-")
    assert system.metadata.fence_lease(lost, system.clock.now_ms() + 10 * 60_000)
    bench.put(system, "second", bench.data(40 * STRIPE))
    (held,) = system.metadata.list_leases("put-")
    assert held.epoch != lost.epoch
    bench.assert_readable(system)


def test_large_puts_of_a_process_share_a_lease_and_failed_ones_leave_nothing(bench: Bench, system: System) -> None:
    """A PUT that continues holds the lease under which another one fails; the failed one's blocks are given up with
    it."""

    def body() -> Iterator[bytes]:
        yield bench.data(9 * STRIPE)
        (slow,) = system.metadata.list_leases("put-")
        with pytest.raises(ZeroDivisionError):
            ObjectStore(system).put("b/failed", (bytes(9 * STRIPE // (9 - n)) for n in range(10)))
        ObjectStore(system).put("b/later", bytes(9 * STRIPE))
        assert len(system.metadata.list_leases("put-")) == 2
        assert slow in system.metadata.list_leases("put-")
        yield bench.data(9 * STRIPE)

    store = ObjectStore(system)
    for _ in range(2):
        store.put("b/first", bytes(9 * STRIPE))
    (first,) = system.metadata.list_leases("put-")
    store.put("b/slow", body())
    (left,) = system.metadata.list_leases("put-")
    assert left.epoch > first.epoch, "the one under which nothing is left open"
    assert (store.head("b/slow").size, store.head("b/later").size) == (18 * STRIPE, 9 * STRIPE)
    with pytest.raises(NotFound):
        store.head("b/failed")
    states = {state for (_, state), count in system.metadata.totals().blocks.items() if count}
    assert states == {BlockState.SEALED, BlockState.FENCED}, "what the failed PUT wrote waits for recovery"
    bench.settle(system)
    assert left_over(system) == []


@pytest.mark.parametrize("size", [5 * STRIPE, 7 * STRIPE + 1])
def test_of_two_puts_into_a_block_each_the_one_whose_bytes_are_whole_last_wins(system: System, size: int) -> None:
    store = ObjectStore(system)

    def body() -> Iterator[bytes]:
        yield b"b" * (size - 1)
        store.put("b/large", b"a" * size)
        yield b"b"

    info = store.put("b/large", body())
    assert store.head("b/large") == info
    assert store.get("b/large") == b"b" * size
