"""Times that decide when a lock ends, and changes of locks (docs/adr/0053).

Every method that deletes a version raises Locked, or leaves the version out, while its lock protects it. It compares
the end of the lock with the times that `lock_times` returns, and with no clock of a caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Two clocks that do not depend on each other, both in Unix milliseconds. `lock_ms` is the lock time, which is
    stored in the metadata and never jumps ahead; 0 before it was started. `database_ms` is the time of the database."""

    lock_ms: int
    database_ms: int

    @property
    def passed_ms(self) -> int:
        """Return the time that has passed for certain: locks that end later still protect their versions."""
        return min(self.lock_ms, self.database_ms)


class Locks(Protocol):
    """Lock times. See the module docstring. Safe to call from several threads."""

    def lock_times(self) -> LockTimes:
        """Return both times."""

    def advance_lock_time(self, seen_ms: int, to_ms: int) -> bool:
        """Set the lock time to `to_ms` if it still is `seen_ms`. Returns whether it was; of several callers that have
        seen the same time, one gets True."""
