"""Leases: the right of a writer to write, and of a producer to publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a writer to write. `epoch` is unique and increasing over the whole store, across all names."""

    name: str
    epoch: int
    expires_ms: int


class Leases(Protocol):
    """Leases by name. See the package docstring. Safe to call from several threads."""

    # --- one lease --------------------------------------------------------------------------------
    def acquire_lease(self, name: str, now_ms: int, ttl_ms: int, holder: str = "") -> Lease:
        """Take the lease `name`. Raises Conflict when it exists, expired or not: an expired one must be fenced
        first. `holder` names this process in the Conflict that others get while it has the lease."""

    def renew_lease(self, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
        """Extend a lease. Raises LeaseLost when it was fenced or released."""

    def release_lease(self, lease: Lease) -> None:
        """Give up a lease. Its OPEN blocks, if any, become FENCED for recovery. Idempotent."""

    # --- several at once --------------------------------------------------------------------------
    def acquire_leases(self, names: Sequence[str], now_ms: int, ttl_ms: int) -> list[Lease]:
        """Take the leases among `names` that do not exist, in O(1) statements, and return them.

        A lease that exists, expired or not, is left out without an error.
        """

    def renew_leases(self, held: Sequence[Lease], now_ms: int, ttl_ms: int) -> list[Lease]:
        """Extend the leases that are still held, in O(1) statements, and return them. The others were fenced or
        released."""

    def release_leases(self, held: Sequence[Lease]) -> None:
        """Give up leases as `release_lease` does, all in one transaction. Idempotent."""

    def list_leases(self, prefix: str) -> list[Lease]:
        """Return leases whose names begin with `prefix`, in order of names, including expired ones."""

    # --- leases of dead processes -----------------------------------------------------------------
    def expired_leases(self, now_ms: int) -> list[Lease]:
        """Return leases that expired at or before `now_ms`, and leases that expire more than LEASE_MS_MAX after it
        (`nos_ec.core.deadlines`)."""

    def fence_lease(self, lease: Lease, now_ms: int) -> bool:
        """Revoke an expired lease and turn its OPEN blocks FENCED. Returns False when it was renewed, released or
        fenced meanwhile."""
