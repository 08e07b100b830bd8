"""The lease with which a process writes large objects. All PUTs share it, and it is held until the process ends.

A separate lease would cost each PUT two more transactions. But recovery takes over blocks that a PUT left OPEN only
after their lease was released. So a PUT that leaves OPEN blocks retires the lease: the next PUT acquires another one,
and the retired lease is released when the last PUT with it has ended.

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
    """A lease, and the number of running PUTs with it."""

    def __init__(self, held: HeldLease) -> None:
        self.held = held
        self.puts = 0

    @property
    def lease(self) -> Lease:
        """The lease to write with."""
        return self.held.lease


class Loan:
    """The lease of one PUT, which it may exchange for another one."""

    def __init__(self, lender: LargeLease, lent: LentLease) -> None:
        self._lender = lender
        self.lent = lent

    @property
    def lease(self) -> Lease:
        """The lease to write with."""
        return self.lent.lease

    def exchange(self) -> None:
        """Take another lease, because this one was lost before the PUT allocated a block with it. Raises Conflict,
        Transient."""
        old = self.lent
        self._lender.retire(old)
        self.lent = self._lender.lend()
        self._lender.take_back(old)

    def renew(self) -> bool:
        """Return whether the lease is still held."""
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
        """Yields the lease for one PUT. After an error, the next PUT gets another one. Raises Conflict, Transient."""
        loan = Loan(self, self.lend())
        try:
            yield loan
        except BaseException:
            loan.retire()
            raise
        finally:
            self.take_back(loan.lent)

    def retire(self, lent: LentLease) -> None:
        """Stop lending this lease, because it has OPEN blocks that will not be written."""
        with self._lock:
            if self._current is lent:
                self._current = None

    def close(self) -> None:
        """Release the lease, or let the last PUT release it. A later PUT acquires another one."""
        with self._lock:
            lent, self._current = self._current, None
            unused = lent is not None and lent.puts == 0
        if lent is not None and unused:
            lent.held.__exit__(None, None, None)

    def lend(self) -> LentLease:
        """Lend the lease to one more PUT. Raises Conflict, Transient."""
        with self._lock:
            lent = self._current
            # An expired lease may be fenced: the process was suspended, or the metadata store was unreachable.
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
        """Take the lease back from a PUT. Releases a retired lease after its last PUT."""
        with self._lock:
            lent.puts -= 1
            over = lent.puts == 0 and self._current is not lent
        if over:
            lent.held.__exit__(None, None, None)
