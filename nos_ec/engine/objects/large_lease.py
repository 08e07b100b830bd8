"""The lease under which a process writes large objects: one for all of them, held until the process ends.

A lease of its own would cost each PUT two transactions more. But blocks that a PUT has left OPEN are left to recovery
by releasing the lease that they are under. So a PUT that leaves some takes the lease out of use: the next PUT takes
another one, and this one is released when the PUTs that go on under it are over.

8  every block is OPEN under the lease of its PUT until it is recorded, or until that lease is released or lost
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Lease, Leases


class LentLease:
    """A lease, and how many PUTs are under way under it."""

    def __init__(self, held: HeldLease) -> None:
        self.held = held
        self.puts = 0

    @property
    def lease(self) -> Lease:
        """What writing takes."""
        return self.held.lease


class Loan:
    """What one PUT borrows: a lease, for which it may get another one."""

    def __init__(self, lender: LargeLease, lent: LentLease) -> None:
        self._lender = lender
        self.lent = lent

    @property
    def lease(self) -> Lease:
        """What writing takes."""
        return self.lent.lease

    def exchange(self) -> None:
        """Take another lease, because this one was lost before the PUT had anything under it. Raises Conflict,
        Transient."""
        old = self.lent
        self._lender.retire(old)
        self.lent = self._lender.lend()
        self._lender.take_back(old)

    def renew(self) -> bool:
        """Whether the lease is not lost."""
        return self.lent.held.renew()

    def retire(self) -> None:
        """See `LargeLease.retire`."""
        self._lender.retire(self.lent)


class LargeLease:
    """Lends the lease to PUTs. Safe to call from several threads."""

    def __init__(
        self, metadata: Leases, clock: Clock, new_name: Callable[[], str], ttl_ms: int, among: HeldLeases
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._new_name = new_name
        self._ttl_ms = ttl_ms
        self._among = among
        self._lock = threading.Lock()
        self._current: LentLease | None = None

    @contextmanager
    def lent(self) -> Iterator[Loan]:
        """The lease for one PUT. After an error, the next PUT gets another one. Raises Conflict, Transient."""
        loan = Loan(self, self.lend())
        try:
            yield loan
        except BaseException:
            loan.retire()
            raise
        finally:
            self.take_back(loan.lent)

    def retire(self, lent: LentLease) -> None:
        """Lend it no more: blocks are OPEN under it that nobody will write."""
        with self._lock:
            if self._current is lent:
                self._current = None

    def close(self) -> None:
        """Release the lease, or let the last PUT do it. A later PUT takes another one."""
        with self._lock:
            lent, self._current = self._current, None
            unused = lent is not None and lent.puts == 0
        if lent is not None and unused:
            lent.held.__exit__(None, None, None)

    def lend(self) -> LentLease:
        """The lease, for one PUT more. Raises Conflict, Transient."""
        with self._lock:
            lent = self._current
            # One that has expired may have been fenced: this process was suspended, or the metadata store was away.
            if lent is not None and not lent.held.left_ms():
                self._current = None
                if lent.puts == 0:
                    lent.held.__exit__(None, None, None)
            if self._current is None:
                held = HeldLease(self._metadata, self._clock, self._new_name(), self._ttl_ms, among=self._among)
                self._current = LentLease(held.__enter__())
            self._current.puts += 1
            return self._current

    def take_back(self, lent: LentLease) -> None:
        """One PUT less. Releases a lease that is no longer lent when its last PUT is over."""
        with self._lock:
            lent.puts -= 1
            over = lent.puts == 0 and self._current is not lent
        if over:
            lent.held.__exit__(None, None, None)
