"""Brings a store to rest: every service works until nothing is left over."""

from __future__ import annotations

import time
from threading import Event

from nos_consumer.assemble import drain
from nos_ec.composition.log_on_demand import LogOnDemand
from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import EMPTY_COPY_MS
from nos_ec.core.ids import LandingId
from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.leases import HeldLeases
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.fakes.audit import problems

HOUR_MS = 3_600_000
"""By then, every lease, reservation, wait, grace period and republishing wait of a test's configuration is over."""
GC_RUNS_MAX = 3
ROUNDS_MAX = 4
"""What one round moves leaves a block for the next round to delete, which may leave another one."""


class LaterClock:
    """The system's time plus `ahead_ms`. Waits take no longer; only readings of the time are changed."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """See Clock."""
        return stop.wait(wait_ms / 1000)


def landing_log_of(system: System) -> LandingLog | None:
    """The landing log that a system's PUTs go to; None in the other modes."""
    lander = system.client.puts.batches.lander
    return lander.log if isinstance(lander, LogBypass) and isinstance(lander.log, LandingLog) else None


def end_log(system: System) -> None:
    """End the landing log of the system's own PUTs, as at the end of its process: its segments are sealed, so that all
    that lies in them can be reaped. So does the lease of large PUTs. The next PUTs open another log, and take another
    lease. No PUT may be under way."""
    system.client.large_lease.close()
    log = landing_log_of(system)
    if log is not None:
        log.close()
        system.client._puts = system.client._put_parts(), system.client._put_queue()


def settle(system: System) -> None:
    """Let every service do all the work that there is, as it would in time. Raises Transient."""
    end_log(system)
    system.worker.housekeeping().run_once()
    with producer_service(system) as producer:
        producer.drain()
    drain(system)
    for _ in range(GC_RUNS_MAX):
        result = gc_service(system).run_once()
        if not result.blocks_condemned and not result.blocks_deleted:
            break


def come_to_rest(system: System) -> list[str]:
    """Settle round after round, each an hour later than the one before, until nothing is left over.

    Returns what is still left over after the last round. The system's clock stays ahead. Raises Transient.
    """
    end_log(system)  # with another clock, the system has another log
    left: list[str] = []
    for hours in range(1, ROUNDS_MAX + 1):
        _restart(system, LaterClock(hours * HOUR_MS))
        settle(system)
        left = left_over(system)
        if not left:
            break
    return left


def _restart(system: System, clock: LaterClock) -> None:
    """Give the system another clock, as if its process had ended and another one began: it no longer keeps the leases
    of its housekeeping, and its message log has that clock. With an earlier one, the log would say that a new event may
    still wait for a consumer."""
    system.clock = clock
    system.held = HeldLeases()
    system.messages = LogOnDemand(system.settings, clock)


def left_over(system: System) -> list[str]:
    """Return all that does not balance, and all that a store at rest does not have: leases, queues, landing copies,
    landing segments, blocks that are not sealed. Empty for a store at rest."""
    found = problems(system.metadata, system.blocks, system.landing, system.medium)
    totals = system.metadata.totals()
    kept = _kept_copies(system)
    for what, count in (
        ("leases", totals.leases),
        ("landing copies queued for deletion", totals.landing_deletions - len(kept)),
        ("objects landed", totals.landed_objects),
        ("objects queued", totals.queued_objects),
        ("landing copies", len(set(system.landing.list_ids()) - kept)),
        ("rows of landing segments", sum(count for count, _ in system.metadata.segment_totals().values())),
        ("landing segments", 0 if system.medium is None else sum(1 for _ in system.medium.segments())),
    ):
        if count:
            found.append(f"{count} {what}")
    segments = system.metadata.segment_totals().items()
    found += [f"{count} landing segments {state.value}" for state, (count, _) in segments]
    found += [f"{count} blocks {state.value}" for (_, state), count in totals.blocks.items() if state.value != "sealed"]
    return found


def _kept_copies(system: System) -> set[LandingId]:
    """The copies of empty objects, which stay for EMPTY_COPY_MS."""
    kept: set[LandingId] = set()
    after: LandingId | None = None
    while page := system.metadata.deletions_after(after, 1000):
        after = page[-1].landing_id
        late_ms = system.clock.now_ms() + EMPTY_COPY_MS // 2
        kept.update(one.landing_id for one in page if one.object_id is not None and one.not_before_ms > late_ms)
    return kept
