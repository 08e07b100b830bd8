"""What a held lease does when its renewals fail."""

from __future__ import annotations

from threading import Event
from typing import cast

import pytest

from nos_ec.core.errors import LeaseLost, Transient
from nos_ec.engine.leases import HeldLease
from nos_ec.ports.metadata import Lease, Leases
from tests.rig.fakes.clock import FakeClock
from tests.rig.waiting import WAIT_S_MAX


class FailingRenewals:
    """Stands in for Leases: each renewal raises the next of `errors`."""

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors
        self.all_raised = Event()

    def acquire_lease(self, name: str, now_ms: int, ttl_ms: int, _holder: str) -> Lease:
        return Lease(name, 1, now_ms + ttl_ms)

    def renew_lease(self, _lease: Lease, _now_ms: int, _ttl_ms: int) -> Lease:
        error = self._errors.pop(0)
        if not self._errors:
            self.all_raised.set()
        raise error

    def release_lease(self, _lease: Lease) -> None:
        pass


def test_renewals_continue_after_an_error_that_is_a_bug() -> None:
    """Otherwise the fencing of the lease would go unnoticed: an idle consumer would keep running and never be ready
    again."""
    metadata = FailingRenewals([Transient("no answer"), AttributeError("of a driver"), LeaseLost("fenced")])
    with HeldLease(cast(Leases, metadata), FakeClock(), "one", 30_000) as held:
        assert metadata.all_raised.wait(WAIT_S_MAX)
    assert held.lost
    with pytest.raises(LeaseLost, match="start this process again"):
        held.require_not_lost()
