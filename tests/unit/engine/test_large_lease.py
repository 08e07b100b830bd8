"""The lease that the PUTs of large objects in a process share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from threading import Barrier
from typing import cast

import pytest

from nos_ec.core.errors import LeaseLost, Transient
from nos_ec.engine.leases import HeldLeases
from nos_ec.engine.objects.large_lease import LargeLease
from nos_ec.ports.metadata import Lease, Leases
from tests.rig.fakes.clock import SetClock

TTL_MS = 30_000

pytestmark = pytest.mark.invariant(8)


class FewLeases:
    """Stands in for Leases. away: acquire_lease raises Transient."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.away = False
        self.lost: set[str] = set()

    def acquire_lease(self, name: str, now_ms: int, ttl_ms: int, _holder: str) -> Lease:
        if self.away:
            raise Transient("no answer")
        self.held.append(name)
        return Lease(name, len(self.held), now_ms + ttl_ms)

    def renew_lease(self, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
        if lease.name in self.lost:
            raise LeaseLost("fenced")
        return Lease(lease.name, lease.epoch, now_ms + ttl_ms)

    def release_lease(self, lease: Lease) -> None:
        self.held.remove(lease.name)


class Rig:
    def __init__(self) -> None:
        self.leases = FewLeases()
        self.clock = SetClock()
        self.among = HeldLeases()
        numbers = count(1)
        self.lease = LargeLease(
            cast(Leases, self.leases), self.clock, lambda: f"put-{next(numbers)}", TTL_MS, self.among
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.lease.close()
    assert rig.leases.held == []


def test_puts_share_a_lease_until_it_is_closed(rig: Rig) -> None:
    for _ in range(2):
        with rig.lease.lent() as one, rig.lease.lent() as other:
            assert one.lease == other.lease
            assert rig.among.renew(one.lease), "this process's recovery keeps it"
    assert rig.leases.held == ["put-1"]
    rig.lease.close()
    assert rig.leases.held == []
    with rig.lease.lent() as lent:
        assert lent.lease.name == "put-2"


def test_after_a_failure_the_lease_is_released_when_the_others_are_over(rig: Rig) -> None:
    with rig.lease.lent() as slow:
        with pytest.raises(ZeroDivisionError), rig.lease.lent() as failed:
            failed.lent.puts //= 0
        with rig.lease.lent() as later:
            assert (slow.lease.name, later.lease.name) == ("put-1", "put-2")
        assert rig.leases.held == ["put-1", "put-2"]
    assert rig.leases.held == ["put-2"]


def test_a_put_that_leaves_open_blocks_retires_its_lease(rig: Rig) -> None:
    with rig.lease.lent() as lent:
        lent.retire()
        lent.retire()
    assert rig.leases.held == []
    with rig.lease.lent() as later:
        assert later.lease.name == "put-2"
        lent.retire()  # the earlier one: no effect
    assert rig.leases.held == ["put-2"]


def test_a_lease_that_expired_or_was_fenced_is_not_lent(rig: Rig) -> None:
    with rig.lease.lent() as slow:
        slow.lent.held.abandon()  # as when the process is suspended: nothing renews it
        rig.clock.advance(TTL_MS)
        with rig.lease.lent() as lent:
            assert lent.lease.name == "put-2"
        rig.leases.lost.add("put-2")
        assert not lent.renew()
        with rig.lease.lent() as lent:
            assert lent.lease.name == "put-3"
        assert rig.leases.held == ["put-1", "put-3"]
    assert rig.leases.held == ["put-3"]


def test_a_put_exchanges_a_lease_that_was_lost_before_it_began(rig: Rig) -> None:
    """The others continue under the old one, as far as they can, and the last of them gives it back."""
    with rig.lease.lent() as slow:
        with rig.lease.lent() as loan:
            loan.exchange()
            assert (slow.lease.name, loan.lease.name) == ("put-1", "put-2")
            with rig.lease.lent() as later:
                assert later.lease.name == "put-2"
        assert rig.leases.held == ["put-1", "put-2"]
    assert rig.leases.held == ["put-2"]
    rig.leases.away = True
    with pytest.raises(Transient), rig.lease.lent() as loan:
        loan.exchange()
    assert rig.leases.held == []


def test_closing_leaves_the_release_to_puts_under_way(rig: Rig) -> None:
    with rig.lease.lent():
        rig.lease.close()
        assert rig.leases.held == ["put-1"]
    assert rig.leases.held == []


def test_nothing_is_lent_while_no_lease_can_be_taken(rig: Rig) -> None:
    rig.leases.away = True
    with pytest.raises(Transient, match="no answer"), ExitStack() as stack:
        stack.enter_context(rig.lease.lent())
    rig.leases.away = False
    with rig.lease.lent() as lent:
        assert lent.lent.puts == 1


def test_many_threads_take_one_lease(rig: Rig) -> None:
    together = Barrier(8)

    def put(_: int) -> str:
        with rig.lease.lent() as lent:
            together.wait(60)
            return lent.lease.name

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(put, range(8))) == {"put-1"}
