"""Read threads that leave behind only the reads that a test wants to be late, however busy the machine is."""

from __future__ import annotations

from threading import get_ident

from nos_ec.engine.read_threads import ReadThreads

_LATE_S = 0.01


class LateByRequest(ReadThreads):
    """Read threads whose time passes only while some reads hang, and each other read that has begun has ended."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots, self._look, _LATE_S, _LATE_S)
        self._now_s = 0.0
        self._maker = get_ident()
        self._reading: set[int] = set()
        self._hanging: set[int] = set()

    def hang(self) -> None:
        """Called by a read that does not answer from now on. It is abandoned as soon as all others have ended."""
        self._hanging.add(get_ident())
        self._reading.discard(get_ident())

    def free_slot(self) -> None:
        """See ReadThreads."""
        self._reading.discard(get_ident())
        super().free_slot()

    def _look(self) -> float:
        """Return the seconds. A thread that reads looks when a read begins or ends. The thread that waits for the
        reads, which has made this object, looks whether some are late."""
        if get_ident() != self._maker:
            self._reading.add(get_ident())
            self._hanging.discard(get_ident())
        elif self._hanging and not self._reading:
            self._now_s += 1.0
        return self._now_s
