"""Compares things that change meanwhile, and checks a second time, a little later, what seems wrong: an operation may
have been under way.

9  at most DOUBTS_MAX things wait for their second look
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import TypeVar

from nos_ec.core.findings import Finding
from nos_ec.ports.clock import Clock

DOUBTS_MAX = 1000
WAIT_MS = 2000
"""A PUT, a commit or a deletion that was under way has ended by then, or has reached another step."""

TRIES = 10
"""How often a thing is compared until its row is the same before and after. One comparison takes milliseconds."""

Look = Callable[[], Iterable[Finding]]
_Row = TypeVar("_Row")


def compare_steadily(
    before: _Row | None, read: Callable[[], _Row | None], compare: Callable[[_Row], Iterable[Finding]]
) -> list[Finding] | None:
    """Compare a thing with its row until `read` returns the same row after the comparison as before it. Returns the
    findings, none if the row is gone; None if the row keeps changing."""
    for _ in range(TRIES):
        if before is None:
            return []
        found = list(compare(before))
        after = read()
        if after == before:
            return found
        before = after
    return None


class SecondLook:
    """Collects what seems wrong, each with a function that looks again. Used by one thread.

    wait_ms: milliseconds between the first and the second look at each thing.
    """

    def __init__(self, clock: Clock, wait_ms: int = WAIT_MS) -> None:
        self._clock = clock
        self._wait_ms = wait_ms
        self._doubts: list[tuple[Look, frozenset[Finding]]] = []

    def doubt(self, look: Look) -> Iterator[Finding]:
        """Call `look` and remember its findings, if any. If enough things wait, look at them again and yield the
        findings that the second look confirms."""
        seen = frozenset(look())
        if seen:
            self._doubts.append((look, seen))
        if len(self._doubts) >= DOUBTS_MAX:
            yield from self.settle()

    def settle(self) -> Iterator[Finding]:
        """Look again at all things that wait for it. Yields the findings that both looks made."""
        doubts, self._doubts = self._doubts, []
        if doubts:
            self._clock.wait(Event(), self._wait_ms)
        for look, seen in doubts:
            yield from (finding for finding in look() if finding in seen)
