"""A landing log over a medium in memory, whose calls can be made to fail."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import google_crc32c

from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.lander import LandedBatch, NewCopy
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.log_reader import LogReader
from tests.rig.fakes.clock import SetClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.fakes.memory_medium import MemoryMedium
from tests.rig.fakes.memory_segments import MemorySegments

OPTIONS = LogOptions(open_segments=2, segment_age_ms=60_000, lease_ttl_ms=30_000, wait_ms=10_000)


def copies(*sizes: int, seed: int = 0) -> list[NewCopy]:
    chance = Random(f"{seed} {sizes}")
    return [new_copy(chance.randbytes(size), f"object {number}") for number, size in enumerate(sizes)]


def new_copy(data: bytes, name: str = "name") -> NewCopy:
    return NewCopy(ObjectKey("bucket", name), data, google_crc32c.value(data))


class Rig:
    """A log whose ports can be made to fail, and the other side of each port."""

    def __init__(self, medium: MemoryMedium | None = None, options: LogOptions = OPTIONS) -> None:
        self.clock = SetClock()
        self.medium = medium or MemoryMedium()
        self.segments = MemorySegments()
        self.faults = Faults()
        self.logs: list[LandingLog] = []
        self.options = options
        self.log = self.opened()

    def opened(self) -> LandingLog:
        chance = Random(len(self.logs))
        log = LandingLog(
            faulty(self.segments, self.faults),
            faulty(self.medium, self.faults),
            self.clock,
            chance.randbytes,
            self.options,
        )
        self.logs.append(log)
        return log

    def close(self) -> None:
        self.faults.before.clear()
        self.faults.after.clear()
        for log in self.logs:
            log.close()

    def land(self, new: Sequence[NewCopy]) -> tuple[LandedBatch, list[LandingId]]:
        landed = self.log.land(new)
        return landed, [outcome for outcome in landed.outcomes if not isinstance(outcome, NosError)]

    def put(self, new: Sequence[NewCopy]) -> list[LandingId]:
        """Land, record and settle."""
        landed, ids = self.land(new)
        assert len(ids) == len(new)
        try:
            self.segments.record([(landing_id, copy.data) for landing_id, copy in zip(ids, new, strict=True)])
        finally:
            landed.settle(())
        return ids

    def check(self) -> None:
        """Every record that was recorded reads back."""
        reader = LogReader(self.medium)
        wanted = [(landing_id, len(data)) for landing_id, data in self.segments.recorded.items()]
        assert reader.read_records(wanted) == list(self.segments.recorded.values())

    def states(self) -> list[SegmentState]:
        return [self.segments.rows[segment].state for segment in sorted(self.segments.rows)]

    def fence(self, number: int = 0) -> None:
        """What recovery does with a log whose lease has expired."""
        lease = self.segments.leases.pop(f"landing-log-{number}")
        rows = self.segments.open_segments_of_log(number, lease.epoch)
        self.segments.seal_segments([(row.segment, self.seal(row.segment), 0) for row in rows], self.clock.now_ms())

    def seal(self, segment: SegmentId) -> int:
        try:
            return self.medium.reopened().seal(segment, None, 0)
        except NotFound:
            return 0


def lose_lease(rig: Rig) -> None:
    """Others fence it, and this process learns of that before they have sealed anything."""
    held = rig.log._held
    assert held is not None
    del rig.segments.leases[held.lease.name]
    assert not held.renew()
