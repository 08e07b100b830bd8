"""Sealing segments that are not there (invariant 8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.formats.audit_trail import AuditEntry
from nos_ec.core.ids import SegmentId, new_segment_id
from nos_ec.engine.landing.segment_seal import SegmentSeal
from nos_ec.ports.audit_trail import NoTrail
from nos_ec.ports.metadata import Lease
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.fakes.memory_medium import JOINED, MemoryMedium
from tests.rig.fakes.memory_segments import MemorySegments

pytestmark = pytest.mark.invariant(8)

SEGMENT = new_segment_id(1000, 7)


class KeptEntries(NoTrail):
    """An audit trail in memory."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def record(self, entries: Sequence[AuditEntry]) -> bool:
        """See the port."""
        self.entries += entries
        return True


class Rig:
    """Rows, a medium, and a writer of another process that has not begun SEGMENT."""

    def __init__(self) -> None:
        self.segments = MemorySegments()
        self.lease: Lease = self.segments.acquire_lease("landing-log-7", 0, 1000)
        self.writers = MemoryMedium(limits=JOINED)
        self.writer = self.writers.create(SEGMENT, self.lease.epoch, 0)
        self.medium = self.writers.reopened()

    def there(self) -> list[SegmentId]:
        return list(self.medium.segments())

    def append(self) -> None:
        self.writer.append(JOINED.start, [bytes(JOINED.align)])


@pytest.fixture
def rig() -> Rig:
    return Rig()


def open_row(rig: Rig) -> None:
    rig.segments.open_segment(SEGMENT, rig.lease, 0)


def sealed_row(rig: Rig) -> None:
    open_row(rig)
    rig.segments.seal_segments([(SEGMENT, 0, 0)], 0)


def doomed_row(rig: Rig) -> None:
    sealed_row(rig)
    assert rig.segments.doom_segment(SEGMENT)


@pytest.mark.parametrize("row", [open_row, sealed_row])
def test_the_trimmer_gives_back_what_has_a_row(rig: Rig, row: Callable[[Rig], None]) -> None:
    row(rig)
    for _ in range(2):
        assert SegmentSeal(rig.segments, rig.medium).seal(SEGMENT, None, 5) == 0
        assert rig.there() == [SEGMENT]
        with pytest.raises(Conflict):
            rig.append()


@pytest.mark.parametrize("row", [lambda rig: None, doomed_row], ids=["forgotten", "doomed"])
def test_who_was_overtaken_gives_it_back(rig: Rig, row: Callable[[Rig], None]) -> None:
    """The trimmer has released it, or releases it again."""
    row(rig)
    trail = KeptEntries()
    for done in (1, 2):
        assert SegmentSeal(rig.segments, rig.medium, trail).seal(SEGMENT) == 0
        assert rig.there() == []
        assert [entry.segments for entry in trail.entries] == [(SEGMENT.hex(),)] * done


@pytest.mark.parametrize("call", ["seal", "landing_segment", "release"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_failed_is_repeated(rig: Rig, call: str, when: str) -> None:
    faults = Faults()
    getattr(faults, when)[call] += [Transient("away")]
    sealing = SegmentSeal(faulty(rig.segments, faults), faulty(rig.medium, faults))
    with pytest.raises(Transient, match="away"):
        sealing.seal(SEGMENT)
    assert sealing.seal(SEGMENT) == 0
    assert rig.there() == []


def test_a_segment_with_batches_is_kept_without_a_row(rig: Rig) -> None:
    """The metadata may be older than the log."""
    rig.append()
    assert SegmentSeal(rig.segments, rig.medium).seal(SEGMENT) == JOINED.start + JOINED.align
    assert rig.there() == [SEGMENT]


def test_nothing_is_put_where_creating_is_a_write_of_its_own(rig: Rig) -> None:
    medium = MemoryMedium()
    assert SegmentSeal(rig.segments, medium).seal(SEGMENT) == 0
    assert list(medium.segments()) == []
