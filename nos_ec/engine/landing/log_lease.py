"""The lease of a landing log: its name says the number of the log, which the ids of its segments hold."""

from __future__ import annotations

from nos_ec.core.errors import Conflict, LeaseLost, Transient
from nos_ec.core.ids import LOGS_MAX
from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata.leases import Leases

LEASE_PREFIX = "landing-log-"
"""What the names of the leases of logs begin with; the number of the log follows."""


def take_log_lease(metadata: Leases, clock: Clock, ttl_ms: int, among: HeldLeases | None) -> tuple[HeldLease, int]:
    """Take the first free number. Returns the lease, which is held, and the number. Raises LeaseLost, Transient.

    The lease has no note of its holder: nobody waits for a certain log, and gateways may not write such notes.
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
