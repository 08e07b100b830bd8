"""The lease of a landing log. Its name contains the number of the log, which is also in the ids of its segments."""

from __future__ import annotations

from nos_ec.core.errors import Conflict, LeaseLost, Transient
from nos_ec.core.ids import LOGS_MAX
from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata.leases import Leases

LEASE_PREFIX = "landing-log-"
"""The names of the leases of logs begin with this, and the number of the log follows."""


def take_log_lease(metadata: Leases, clock: Clock, ttl_ms: int, among: HeldLeases | None) -> tuple[HeldLease, int]:
    """Take the lease of the first free number. Return the lease, which is held, and the number. Raise LeaseLost,
    Transient.

    The lease has no note about its holder: no process waits for a certain log, and gateways may not write such notes.
    """
    taken = {lease.name for lease in metadata.list_leases(LEASE_PREFIX)}
    for number in range(LOGS_MAX):
        name = f"{LEASE_PREFIX}{number}"
        if name in taken:
            continue
        held = HeldLease(metadata, clock, name, ttl_ms, among=among)
        try:
            held.__enter__()
        except LeaseLost:
            raise
        except Conflict:
            continue
        return held, number
    raise Transient(f"landing log: all {LOGS_MAX} logs are in use")
