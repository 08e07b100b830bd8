"""Objects whose landing copies cannot be read now. They wait outside of the merge list, and hold up no other object.

Each has its own exponential back-off. When its time has come, its copy is read by a thread that does nothing else; an
object whose copy can be read goes back to the merge list. It stays parked until it is packed, so that a copy that is
read once and fails again waits longer each time.

9  the parking has a limit, and few copies are tried at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from nos_ec.core.errors import NosError
from nos_ec.engine.packable import Packable
from nos_ec.engine.parking import BackOff, Parking
from nos_ec.ports.clock import Clock

BACK_OFF = BackOff(first_ms=5_000, max_ms=600_000)
PARKED_MAX = 10_000
PROBES_MAX = 16
"""Copies tried at a time. Each may take as long as the landing store's time limit."""
HELD_FAILURES_MAX = 6
"""Failed tries, about five minutes, after which the event of an object counts as done: its partition's offset must not
stand still for ever. Its row stays queued, so that it is published again, and the object stays parked here."""

Probed = tuple[Packable, NosError | None]
"""An object that was tried, and what its copy failed with."""


class UnreadObjects:
    """Owned by the consumer's thread; `parking` may be read by any.

    read: the bytes of a source, or why it cannot be read; called by several threads.
    """

    def __init__(self, read: Callable[[Packable], bytes | NosError], clock: Clock) -> None:
        self.parking: Parking[Packable] = Parking("object", _name, clock, BACK_OFF, PARKED_MAX)
        self._read = read
        self._pool = ThreadPoolExecutor(PROBES_MAX, thread_name_prefix="probe")
        self._probes: dict[Future[NosError | None], Packable] = {}
        self._aside: set[Packable] = set()
        """Those of the parked ones that are not on the merge list or in a plan."""

    def __len__(self) -> int:
        """Objects that wait here, and nowhere else."""
        return len(self._aside)

    def __contains__(self, packable: Packable) -> bool:
        return packable in self._aside

    def park(self, packable: Packable, error: NosError) -> bool:
        """Set an object aside until its next try. False when there are too many."""
        if not self.parking.park(packable, error):
            return False
        self._aside.add(packable)
        return True

    def is_given_up(self, packable: Packable) -> bool:
        """Whether its event is to hold up the offsets no longer: with this failure, it has failed too often."""
        return self.parking.failures(packable) == HELD_FAILURES_MAX

    def leave(self, packable: Packable) -> None:
        """An object is on the merge list: it stays parked, and is not tried here."""
        if self._aside:
            self._aside.discard(packable)

    def release(self, packable: Packable) -> None:
        """Nothing is left to do for an object, which may never have been here."""
        if self.parking:
            self.parking.release(packable)
            self._aside.discard(packable)

    def forget(self, partitions: frozenset[int]) -> None:
        """Release what came from these partitions."""
        for packable, _ in self.parking:
            if any(partition in partitions for partition, _ in packable.tickets):
                self.release(packable)

    def due(self) -> list[Packable]:
        """What is to be tried now: as many as there are threads for. Each is to be tried, or released."""
        return self.parking.due(PROBES_MAX - len(self._probes)) if self._aside else []

    def probe(self, packables: Iterable[Packable]) -> None:
        """Try to read them."""
        for packable in packables:
            self._probes[self._pool.submit(self._failure, packable)] = packable

    def probed(self) -> list[Probed]:
        """What has been tried since the last call. A copy that can be read is waited for when it is read once more."""
        found: list[Probed] = []
        for probe in [probe for probe in self._probes if probe.done()]:
            packable, failure = self._probes.pop(probe), probe.result()
            if packable not in self._aside:
                continue  # forgotten meanwhile
            found.append((replace(packable, patient=True) if failure is None else packable, failure))
        return found

    def close(self) -> None:
        """Waits for the reads under way."""
        self._pool.shutdown(cancel_futures=True)

    def _failure(self, packable: Packable) -> NosError | None:
        outcome = self._read(packable)
        return outcome if isinstance(outcome, NosError) else None


def _name(packable: Packable) -> str:
    return f"{packable.key} v{packable.version}"
