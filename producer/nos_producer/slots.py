"""The slots that a producer holds: the share of the objects that only this producer publishes.

A producer owns a slot by holding its lease. A daemon also holds a lease that shows that it is alive. From these leases
each producer computes the number of producers and the size of its share (`core.publishing.slots.plan_slots`). Producers
do not communicate in any other way.

A slot is given up only between batches, when all rows published from it are marked. So the next holder does not publish
them again. Only a producer that stalls for longer than its leases last may publish rows that another producer has
published in the meantime, which is harmless (invariant 5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

import structlog

from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import NosError
from nos_ec.core.killpoints import kill_point
from nos_ec.core.publishing.slots import (
    ALL_SLOTS,
    LEASE_PREFIX,
    SlotPlan,
    is_member_lease,
    leased_slot,
    member_lease,
    plan_slots,
    slot_lease,
)
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Lease, Leases

_log = structlog.get_logger(__name__)

ROUNDS_PER_TTL = 3
"""Rounds of renewal in the lifetime of a lease. A lease survives two failed rounds."""
RETRY_WAIT_MS = 1000
"""The wait after a failed renewal in the background, if it is shorter than a round."""


class HeldSlots:
    """The slots of one producer. One thread calls `keep`, `renewed` and `release`; any thread may read `slots`.

    Without a `member` name the producer takes all free slots and does not share them. This is for short runs.
    """

    def __init__(
        self,
        metadata: Leases,
        clock: Clock,
        ttl_ms: int,
        member: str | None,
        on_fenced: Callable[[Sequence[str]], object] = lambda _: None,
    ) -> None:
        """on_fenced: takes the names of the leases that were fenced, and must not raise."""
        self._metadata = metadata
        self._on_fenced = on_fenced
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._wait_ms = max(1, ttl_ms // ROUNDS_PER_TTL)
        self._member = None if member is None else member_lease(member)
        self._next_ms = 0
        self._leases: dict[str, Lease] = {}
        self._fenced: list[str] = []

    def slots(self) -> frozenset[int]:
        """Return the slots from which only this producer may publish now. Leaves out slots whose lease expired without
        renewal, and those whose lease was taken or renewed before the clock was set back, until it is renewed again."""
        now_ms = self._clock.now_ms()
        leases = self._leases.values()
        held = {leased_slot(lease.name) for lease in leases if waits(lease.expires_ms, now_ms, self._ttl_ms)}
        return ALL_SLOTS & held

    def rest_ms(self) -> int:
        """Return the milliseconds until `keep` must be called again."""
        return min(max(1, self._next_ms - self._clock.now_ms()), self._wait_ms)

    def keep(self) -> None:
        """Renew the leases and move towards a fair share, if that is due. Do not call it in the middle of a batch.

        While the number of producers does not change, it takes two transactions with three statements in total, however
        many slots are held. Raises Transient.
        """
        now_ms = self._clock.now_ms()
        if waits(self._next_ms, now_ms, self._wait_ms):
            return
        self._renew(now_ms)
        if self._member is not None and self._member not in self._leases:
            self._take([self._member], now_ms)
        try:
            self._rebalance(self._metadata.list_leases(LEASE_PREFIX), now_ms)
            self._next_ms = now_ms + self._wait_ms
        finally:
            self._report_fenced()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the leases in the background during a batch, because publishing to a log that does not answer takes
        longer than leases last, although the producer is alive.

        A producer that hangs in its batch for LEASE_MS_MAX counts as dead: its leases are no longer renewed.
        """
        stop = Event()
        thread = Thread(target=self._renew_until, args=(stop,), name="producer-slots", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _renew_until(self, stop: Event) -> None:
        end_ms = self._clock.now_ms() + LEASE_MS_MAX
        wait_ms = self.rest_ms()
        while not self._clock.wait(stop, wait_ms):
            now_ms, wait_ms = self._clock.now_ms(), self._wait_ms
            end_ms = min(end_ms, now_ms + LEASE_MS_MAX)  # the clock may have been set back
            if now_ms >= end_ms:
                _log.error("leases no longer renewed: a batch has lasted too long", batch_ms_max=LEASE_MS_MAX)
                return
            try:
                self._renew(now_ms)
            except NosError as failure:
                _log.warning("leases not renewed; trying again", error=str(failure))
                wait_ms = min(wait_ms, RETRY_WAIT_MS)
            except Exception:
                # The thread continues after a bug in one renewal. Otherwise the next batch would lose its slots.
                _log.exception("leases not renewed; trying again")

    def release(self) -> None:
        """Give up all leases, so that other producers do not have to wait until they expire."""
        try:
            self._give_up(list(self._leases))
        except NosError as failure:
            _log.warning("leases not released; they will expire", error=str(failure))

    def _renew(self, now_ms: int) -> None:
        renewed = self._metadata.renew_leases(list(self._leases.values()), now_ms, self._ttl_ms)
        lost = self._leases.keys() - {lease.name for lease in renewed}
        self._leases = {lease.name: lease for lease in renewed}
        if lost:
            _log.warning("leases lost: the metadata store did not answer, or this process stalled", leases=sorted(lost))

    def _rebalance(self, found: Collection[Lease], now_ms: int) -> None:
        expired = {lease.name: lease for lease in found if not waits(lease.expires_ms, now_ms, LEASE_MS_MAX)}
        self._fence((lease for lease in expired.values() if is_member_lease(lease.name)), now_ms)
        taken = {leased_slot(lease.name) for lease in found if lease.name not in expired}
        members = [lease.name for lease in found if is_member_lease(lease.name) and lease.name not in expired]
        plan = self._plan(ALL_SLOTS - taken, members)
        if plan.give_up:
            self._give_up([slot_lease(slot) for slot in plan.give_up])
        if plan.take:
            names = [slot_lease(slot) for slot in plan.take]
            self._fence((expired[name] for name in names if name in expired), now_ms)
            self._take(names, now_ms)
        if self._member is not None and (plan.give_up or plan.take):
            _log.info("slots held", slots=sorted(self.slots()), producers=len(members))

    def _plan(self, free: frozenset[int], members: list[str]) -> SlotPlan:
        if self._member is None:
            return SlotPlan((), tuple(sorted(free)))
        if self._member not in members:
            return SlotPlan((), ())  # its lease was just fenced; the next round takes it again
        return plan_slots(self.slots(), free, members.index(self._member), len(members))

    def _fence(self, expired: Iterable[Lease], now_ms: int) -> None:
        for lease in expired:
            if self._metadata.fence_lease(lease, now_ms):
                self._fenced.append(lease.name)
                _log.info("lease of a dead producer fenced", lease=lease.name, epoch=lease.epoch)
                kill_point("producer.lease_fenced")

    def _report_fenced(self) -> None:
        """Report the leases that were fenced. It may take longer than leases last, while the database is slow."""
        if self._fenced:
            with self.renewed():
                self._on_fenced(self._fenced)
            self._fenced = []

    def _take(self, names: list[str], now_ms: int) -> None:
        taken = self._metadata.acquire_leases(names, now_ms, self._ttl_ms)
        kill_point("producer.leases_taken")
        self._leases = self._leases | {lease.name: lease for lease in taken}

    def _give_up(self, names: list[str]) -> None:
        # Forget the leases even if the call fails. They will then expire.
        released = [self._leases[name] for name in names]
        self._leases = {name: lease for name, lease in self._leases.items() if name not in names}
        self._metadata.release_leases(released)
        kill_point("producer.leases_released")
