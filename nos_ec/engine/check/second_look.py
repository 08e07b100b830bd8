"""What seems wrong is looked at again a while later, because it may have been on its way.

9  at most DOUBTS_MAX things wait for their second look
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event

from nos_ec.core.findings import Finding
from nos_ec.ports.clock import Clock

DOUBTS_MAX = 1000
WAIT_MS = 2000
"""A PUT, a commit or a deletion that was under way is over by then, or is at another step."""

Look = Callable[[], Iterable[Finding]]


class SecondLook:
    """Collects what seems wrong, with a way to look again. Used by one thread.

    wait_ms: between the first look and the second one, for each thing.
    """

    def __init__(self, clock: Clock, wait_ms: int = WAIT_MS) -> None:
        self._clock = clock
        self._wait_ms = wait_ms
        self._doubts: list[tuple[Look, frozenset[Finding]]] = []

    def doubt(self, look: Look) -> Iterator[Finding]:
        """Look, and remember what is found, if anything. Yields what a second look at enough earlier things has
        confirmed."""
        seen = frozenset(look())
        if seen:
            self._doubts.append((look, seen))
        if len(self._doubts) >= DOUBTS_MAX:
            yield from self.settle()

    def settle(self) -> Iterator[Finding]:
        """Look again at all that waits for it. Yields what is still found."""
        doubts, self._doubts = self._doubts, []
        if doubts:
            self._clock.wait(Event(), self._wait_ms)
        for look, seen in doubts:
            yield from (finding for finding in look() if finding in seen)
