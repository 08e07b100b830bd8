"""Parks objects whose landing copies cannot be read now, so that they do not delay other objects.

A parked object has its own exponential back-off, until it is packed. At first it is also set aside: it is neither on
the merge list nor in a plan, and when its next try is due, a separate thread reads its copy. If the copy can be read,
the object returns to the merge list. It stays parked, so that the next wait is longer if its copy fails again.

9  the number of parked objects is limited, and so is the number of copies tried at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from nos_ec.core.errors import NosError
from nos_ec.engine.packable import Packable
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.clock import Clock

BACK_OFF = BackOff(first_ms=5_000, max_ms=600_000)
PARKED_MAX = 10_000
PROBES_MAX = 16
"""The most copies tried at a time. Each try may take as long as the landing store's time limit."""
HELD_FAILURES_MAX = 6
"""After this many failed tries (about five minutes) an object's event counts as done, so that the offset of its
partition advances. The object's row stays QUEUED, so it is published again, and the object stays parked here."""

Probed = tuple[Packable, NosError | None]
"""An object that was tried, and the error of reading its copy, or None."""


class UnreadObjects:
    """The parked objects. The consumer's thread owns it; any thread may read the figures of `retry_queue`.

    read: returns the bytes of an object's source, or the error of reading it. Several threads call it.
    """

    def __init__(self, read: Callable[[Packable], bytes | NosError], clock: Clock) -> None:
        self.retry_queue: RetryQueue[Packable] = RetryQueue("object", _name, clock, BACK_OFF, PARKED_MAX)
        self._read = read
        self._pool = ThreadPoolExecutor(PROBES_MAX, thread_name_prefix="probe")
        self._probes: dict[Future[NosError | None], Packable] = {}
        self._aside: set[Packable] = set()
        """The parked objects that are neither on the merge list nor in a plan."""

    def __len__(self) -> int:
        """Return the number of objects that are set aside."""
        return len(self._aside)

    def __contains__(self, packable: Packable) -> bool:
        """Return whether an object is set aside."""
        return packable in self._aside

    def park(self, packable: Packable, error: NosError) -> bool:
        """Park an object, and set it aside until its next try. Returns False if too many objects are parked already."""
        if not self.retry_queue.park(packable, error):
            return False
        self._aside.add(packable)
        return True

    def is_given_up(self, packable: Packable) -> bool:
        """Return whether the latest failure is the one after which the object's event no longer holds back the
        offsets."""
        return self.retry_queue.failures(packable) == HELD_FAILURES_MAX

    def resume(self, packable: Packable) -> None:
        """Let an object return to the merge list. It stays parked, but is not tried here meanwhile."""
        if self._aside:
            self._aside.discard(packable)

    def release(self, packable: Packable) -> None:
        """Remove an object that needs no more work. Objects that are not parked are ignored."""
        if self.retry_queue:
            self.retry_queue.release(packable)
            self._aside.discard(packable)

    def forget(self, partitions: frozenset[int]) -> None:
        """Remove the objects whose messages came from these partitions."""
        for packable, _ in self.retry_queue:
            if any(partition in partitions for partition, _ in packable.tickets):
                self.release(packable)

    def due(self) -> list[Packable]:
        """Return objects to try now, at most one per free thread. The caller must probe or release each of them."""
        return self.retry_queue.due(PROBES_MAX - len(self._probes)) if self._aside else []

    def probe(self, packables: Iterable[Packable]) -> None:
        """Start reading the copies of these objects."""
        for packable in packables:
            self._probes[self._pool.submit(self._failure, packable)] = packable

    def probed(self) -> list[Probed]:
        """Return the objects whose tries ended since the last call. If its copy could be read, an object is returned as
        `patient`, so that the stripe writer waits for its copy, however slow the read is."""
        found: list[Probed] = []
        for probe in [probe for probe in self._probes if probe.done()]:
            packable, failure = self._probes.pop(probe), probe.result()
            if packable not in self._aside:
                continue  # forgotten in the meantime
            found.append((replace(packable, patient=True) if failure is None else packable, failure))
        return found

    def close(self) -> None:
        """Let the reads in progress finish, and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _failure(self, packable: Packable) -> NosError | None:
        outcome = self._read(packable)
        return outcome if isinstance(outcome, NosError) else None


def _name(packable: Packable) -> str:
    return f"{packable.key} v{packable.version}"
