"""Segments of the landing log are given back when nothing refers to them, and those of dead logs are sealed.

On SQLite's metadata and a medium in memory. Killed at any step, the next run completes what was begun.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn, cast

import google_crc32c
import pytest
from structlog.testing import capture_logs

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.errors import Conflict, NotFound, Transient
from nos_ec.core.ids import BlockId, LandingId, ObjectKey, SegmentId, in_log, new_segment_id, record_id
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing import log_recovery, trimmer, unknown_segments
from nos_ec.engine.landing.log_recovery import LOOK_MS, LogRecovery
from nos_ec.engine.landing.trimmer import BACK_OFF, Trimmer, TrimResult
from nos_ec.engine.landing.unknown_segments import UnknownSegments
from nos_ec.engine.upkeep import reaper as reaper_module
from nos_ec.engine.upkeep.reaper import Reaper, ReapResult
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Lease, Metadata, NewObject, ObjectRow, PutRequest
from nos_ec.ports.segment_medium import Buffer, MediumLimits
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.memory_medium import JOINED, SMALL, MemoryMedium
from tests.rig.fakes.metadata_bench import TTL_MS, MetadataBench
from tests.rig.fakes.read_threads import LateByRequest

pytestmark = pytest.mark.invariant(2)


PACKED = b"x" * 512
"""What the block store says about every object."""


class Killed(BaseException):
    """In place of kill -9: nothing catches it."""


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Metadata]:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    migrate(url)
    opened = open_metadata(url)
    yield opened
    opened.close()


class StuckMedium(MemoryMedium):
    """A medium some of whose segments do not answer."""

    def __init__(self, limits: MediumLimits = SMALL) -> None:
        super().__init__(limits=limits)
        self.stuck: set[SegmentId] = set()

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """See the port."""
        if segment in self.stuck:
            raise Transient(f"segment {segment.hex()}: no answer")
        return super().seal(segment, footer, records)

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """See the port."""
        failed = {segment: Transient("no answer") for segment in segments if segment in self.stuck}
        return failed | dict(super().release([segment for segment in segments if segment not in failed], beat))


class Log:
    """A log on a metadata store and a medium, and the two that clean up after it."""

    def __init__(self, metadata: Metadata, number: int = 1, limits: MediumLimits = SMALL) -> None:
        self.bench = MetadataBench(metadata)
        self.metadata = metadata
        self.medium = StuckMedium(limits)
        self.clock = FakeClock(self.bench.now_ms)
        self.lease: Lease = self.bench.lease(f"landing-log-{number}")
        self._number = number
        self._opened = 0
        self.trimmer = Trimmer(metadata, self.medium, self.clock)
        self.unknown = UnknownSegments(metadata, self.medium, self.clock)
        self.recovery = LogRecovery(metadata, self.medium, self.clock, self.unknown)

    def segment(self, names: Sequence[str] = (), *, created: bool = True) -> tuple[SegmentId, list[ObjectRow]]:
        """Open a segment in which these objects lie, of 512 bytes each."""
        self._opened += 1
        segment = new_segment_id(self.bench.now_ms + self._opened, self._number)
        self.metadata.open_segment(segment, self.lease, self.bench.now_ms)
        if created:
            start = self.medium.limits.start
            writer = self.medium.create(segment, self.lease.epoch, 0)
            for index, name in enumerate(names):
                writer.append(start + 512 * index, [name.encode().ljust(512)])
            writer.close()
        new = [self._new(segment, index, name) for index, name in enumerate(names)]
        return segment, self.bench.record(new)

    def _new(self, segment: SegmentId, index: int, name: str) -> NewObject:
        landing_id = record_id(segment, self.medium.limits.start + 512 * index, os.urandom(4))
        crc32c = google_crc32c.value(PACKED)
        request = PutRequest(ObjectKey("bucket", name))
        return NewObject(request, len(PACKED), crc32c, bytes(16), landing_id, self.bench.now_ms)

    def seal(self, segment: SegmentId) -> None:
        """Seal it, as its log does."""
        self.metadata.seal_segments([(segment, self.medium.seal(segment, [], 0), 1)], self.bench.now_ms)

    def reap(self, rows: Sequence[ObjectRow]) -> frozenset[LandingId]:
        """Pack, verify, doom and forget. Returns what cannot be forgotten yet."""
        block_id = self.bench.pack(rows)
        copies = [row.landing_id for row in rows if row.landing_id is not None and in_log(row.landing_id)]
        assert self.metadata.doom_landing(dict.fromkeys(copies, block_id)) == set(copies)
        return self.metadata.forget_landing(copies)

    def state(self, segment: SegmentId) -> SegmentState | None:
        """The state of its row."""
        return {row.segment: row.state for row in self.metadata.list_segments(None, 1000)}.get(segment)

    def die(self) -> None:
        """Its process ends, its lease expires, and another process fences it."""
        self.clock.advance(TTL_MS)
        assert self.metadata.fence_lease(self.lease, self.clock.now_ms())


@pytest.fixture
def log(metadata: Metadata) -> Log:
    return Log(metadata)


# --- the reaper, on entries of the log ------------------------------------------------------------------------------


class Blocks:
    """A block store that counts its reads."""

    def __init__(self) -> None:
        self.read = 0

    def read_many(self, _block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """See BlockStore."""
        self.read += len(extents)
        return [PACKED[:length] for _, length in extents]


class Landing:
    """A landing store that notes what it is asked to delete."""

    def __init__(self) -> None:
        self.deleted: list[LandingId] = []

    def delete_many(self, landing_ids: Sequence[LandingId], _beat: Beat) -> Mapping[LandingId, Transient]:
        """See LandingStore."""
        self.deleted += landing_ids
        return {}


def test_records_are_verified_and_forgotten_once_their_segment_is_sealed(log: Log) -> None:
    segment, rows = log.segment(["a", "b"])
    stored = log.bench.put("c", len(PACKED))
    log.bench.delete("c")
    log.bench.pack(rows)
    log.clock.advance(1000)
    blocks, landing = Blocks(), Landing()
    with closing(LateByRequest(2)) as threads:
        reaper = Reaper(log.metadata, cast(LandingStore, landing), cast(BlockStore, blocks), log.clock, 100, threads)
        assert reaper.run_once() == ReapResult(deleted=1, verified_bytes=2 * len(PACKED), held=2)
        assert landing.deleted == [stored.landing_id]
        assert reaper.run_once() == ReapResult(), "held entries were due again at once"
        assert len(reaper.parked) == 0
        log.clock.advance(reaper_module.BACK_OFF.first_ms)
        assert reaper.run_once() == ReapResult(held=2)
        log.seal(segment)
        assert log.trimmer.run_once() == TrimResult()
        log.clock.advance(reaper_module.BACK_OFF.first_ms)
        assert reaper.run_once() == ReapResult(deleted=2)
    assert blocks.read == 2, "what is doomed was verified again"
    assert landing.deleted == [stored.landing_id]
    assert log.trimmer.run_once().released == 1


# --- trim -----------------------------------------------------------------------------------------------------------


def test_a_segment_goes_when_its_last_entry_is_forgotten(log: Log) -> None:
    segment, rows = log.segment(["a", "b"])
    log.seal(segment)
    assert log.trimmer.run_once() == TrimResult()
    assert log.reap(rows[:1]) == frozenset()
    assert log.trimmer.run_once() == TrimResult()
    assert log.reap(rows[1:]) == frozenset()
    assert log.trimmer.run_once() == TrimResult(released=1, released_bytes=log.medium.limits.start + 1024)
    assert list(log.medium.segments()) == []
    assert log.state(segment) is None
    assert log.trimmer.run_once() == TrimResult()


def test_a_queued_entry_keeps_its_segment(log: Log) -> None:
    segment, rows = log.segment(["a"])
    log.seal(segment)
    log.bench.pack(rows)
    assert log.trimmer.run_once() == TrimResult()
    assert log.medium.read(segment, [(log.medium.limits.start, 1)]) == [b"a"]


def test_an_open_segment_stays_however_empty(log: Log) -> None:
    segment, rows = log.segment(["a"])
    assert len(log.reap(rows)) == 1
    assert log.trimmer.run_once() == TrimResult()
    assert log.state(segment) is SegmentState.OPEN


def test_a_segment_that_fails_is_parked_and_holds_up_no_other(log: Log) -> None:
    segments = [log.segment()[0] for _ in range(5)]
    for segment in segments:
        log.seal(segment)
    log.medium.stuck = {segments[1]}
    result = log.trimmer.run_once()
    assert (result.released, result.failed) == (4, 1)
    assert list(log.medium.segments()) == [segments[1]]
    log.medium.stuck.clear()
    assert log.trimmer.run_once() == TrimResult(), "it was asked for again at once"
    log.clock.advance(BACK_OFF.max_ms)
    assert log.trimmer.run_once().released == 1
    assert len(log.trimmer.parked) == 0


def test_a_parked_segment_that_another_process_gave_back_is_forgotten(log: Log) -> None:
    segment, _ = log.segment()
    log.seal(segment)
    log.medium.stuck = {segment}
    assert log.trimmer.run_once().failed == 1
    log.medium.stuck.clear()
    assert Trimmer(log.metadata, log.medium, log.clock).run_once().released == 1
    log.trimmer.run_once()
    assert len(log.trimmer.parked) == 0


def test_all_pages_are_looked_at(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimmer, "SEGMENTS_PER_PAGE", 3)
    for _ in range(10):
        log.seal(log.segment()[0])
    kept, _ = log.segment(["a"])
    log.seal(kept)
    assert log.trimmer.run_once().released == 10
    assert list(log.medium.segments()) == [kept]


@pytest.mark.parametrize("point", ["trimmer.doomed", "trimmer.released", "trimmer.forgotten"])
def test_a_run_that_was_killed_is_completed(log: Log, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    gone, rows = log.segment(["a"])
    log.seal(gone)
    log.reap(rows)
    kept, _ = log.segment(["b"])
    log.seal(kept)
    with monkeypatch.context() as patched:
        patched.setattr(trimmer, "kill_point", killer(point))
        with pytest.raises(Killed):
            log.trimmer.run_once()
    Trimmer(log.metadata, log.medium, log.clock).run_once()
    assert list(log.medium.segments()) == [kept]
    assert (log.state(gone), log.state(kept)) == (None, SegmentState.SEALED)


def killer(point: str) -> Callable[[str], None]:
    def kill_point(name: str) -> None:
        if name == point:
            raise Killed

    return kill_point


# --- recovery of dead logs ------------------------------------------------------------------------------------------


def test_the_segments_of_a_dead_log_are_sealed(log: Log) -> None:
    _, rows = log.segment(["a", "b"])
    assert log.recovery.run_once(unwatched, fenced=True) == 0, "its log is alive"
    log.die()
    assert log.recovery.run_once(unwatched, fenced=True) == 1
    (found,) = log.metadata.list_segments(None, 10)
    assert (found.state, found.end) == (SegmentState.SEALED, log.medium.limits.start + 1024)
    assert log.reap(rows) == frozenset()
    assert log.trimmer.run_once().released == 1
    assert list(log.medium.segments()) == []


def test_a_segment_that_was_never_created_is_sealed_as_empty(log: Log) -> None:
    segment, _ = log.segment(created=False)
    log.die()
    assert log.recovery.run_once(unwatched, fenced=True) == 1
    with pytest.raises(NotFound):
        log.medium.seal(segment, None, 0)
    assert log.trimmer.run_once().released == 1
    assert log.state(segment) is None


def test_a_log_that_was_not_dead_begins_no_segment_that_was_sealed(metadata: Metadata) -> None:
    """On a medium where the first append creates a segment: its row may still be OPEN when that comes, so a PUT in it
    would be recorded."""
    log = Log(metadata, limits=JOINED)
    segment, _ = log.segment(created=False)
    begun, _ = log.segment(["a"])
    writer = log.medium.reopened().create(segment, log.lease.epoch, 0)  # by its own process
    log.die()
    log.medium.stuck = {begun}
    assert log.recovery.run_once(unwatched, fenced=True) == 1
    (row,) = [row for row in metadata.list_segments(None, 10) if row.segment == segment]
    assert (row.state, row.end, row.records) == (SegmentState.SEALED, 0, 0)
    with pytest.raises(Conflict):
        writer.append(JOINED.start, [bytes(512)])
    assert log.trimmer.run_once().released == 1
    assert list(log.medium.segments()) == [begun]


def test_a_successor_of_the_log_keeps_its_segments(log: Log) -> None:
    old, _ = log.segment()
    log.die()
    log.bench.now_ms = log.clock.now_ms()
    log.lease = log.bench.lease(log.lease.name)
    new, _ = log.segment()
    assert log.recovery.run_once(unwatched, fenced=True) == 1
    assert (log.state(old), log.state(new)) == (SegmentState.SEALED, SegmentState.OPEN)


def test_orphans_are_looked_for_now_and_then_without_a_fenced_lease(log: Log) -> None:
    log.segment()
    assert log.recovery.run_once(unwatched, fenced=False) == 0
    log.die()  # fenced by a process that was killed before it sealed anything
    assert log.recovery.run_once(unwatched, fenced=False) == 0
    log.clock.advance(LOOK_MS)
    assert log.recovery.run_once(unwatched, fenced=False) == 1


def test_an_orphan_that_cannot_be_sealed_holds_up_no_other(log: Log) -> None:
    segments = [log.segment()[0] for _ in range(3)]
    log.die()
    log.medium.stuck = {segments[0]}
    assert log.recovery.run_once(unwatched, fenced=True) == 2
    assert log.state(segments[0]) is SegmentState.OPEN
    log.medium.stuck.clear()
    log.clock.advance(log_recovery.BACK_OFF.max_ms)
    assert log.recovery.run_once(unwatched, fenced=False) == 1
    assert len(log.recovery.parked) == 0


def test_an_orphan_whose_row_is_locked_fails_one_run(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is stopped in the middle of a transaction that records PUTs in the segment."""
    segments = [log.segment()[0] for _ in range(3)]
    log.die()
    seal = log.metadata.seal_segments

    def locked(ends: Sequence[tuple[SegmentId, int, int]], now_ms: int) -> None:
        if ends[0][0] == segments[0]:
            raise Transient("lock wait timeout")
        seal(ends, now_ms)

    with monkeypatch.context() as patched:
        patched.setattr(log.metadata, "seal_segments", locked)
        with pytest.raises(Transient, match="lock wait"):
            log.recovery.run_once(unwatched, fenced=True)
        assert log.recovery.run_once(unwatched, fenced=False) == 2
        assert log.state(segments[0]) is SegmentState.OPEN
    log.clock.advance(log_recovery.BACK_OFF.max_ms)
    assert log.recovery.run_once(unwatched, fenced=False) == 1
    assert len(log.recovery.parked) == 0


@pytest.mark.parametrize("trimmed", [False, True], ids=["sealed", "forgotten"])
def test_an_orphan_that_another_process_has_sealed_meanwhile_is_left_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch, trimmed: bool
) -> None:
    """A seal might create it anew, and then it would never be given back if the metadata failed right then."""
    segment, _ = log.segment(created=False)
    log.die()
    other = LogRecovery(log.metadata, log.medium, log.clock)

    def overtaken(_rest_ms: int) -> None:
        assert other.run_once(unwatched, fenced=True) == 1
        if trimmed:
            assert log.trimmer.run_once().released == 1
        monkeypatch.setattr(log.medium, "seal", failing)

    assert log.recovery.run_once(overtaken, fenced=True) == 0
    assert len(log.recovery.parked) == 0
    assert trimmed or log.state(segment) is SegmentState.SEALED


def test_an_orphan_whose_row_cannot_be_looked_up_is_sealed_by_the_next_run(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, _ = log.segment()
    log.die()
    recovery_fails(log, monkeypatch, "landing_segment")
    assert log.recovery.run_once(unwatched, fenced=False) == 0
    log.clock.advance(log_recovery.BACK_OFF.max_ms)
    assert log.recovery.run_once(unwatched, fenced=False) == 1
    assert log.state(segment) is SegmentState.SEALED


def test_a_look_for_orphans_that_failed_is_repeated_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.segment()
    log.die()
    recovery_fails(log, monkeypatch, "list_leases")
    assert log.recovery.run_once(unwatched, fenced=False) == 1


def recovery_fails(log: Log, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """One run, in which this call of the metadata fails."""
    with monkeypatch.context() as patched:
        patched.setattr(log.metadata, call, failing)
        with pytest.raises(Transient, match="away"):
            log.recovery.run_once(unwatched, fenced=True)


def failing(*_: object) -> NoReturn:
    raise Transient("away")


@pytest.mark.parametrize("point", ["recovery.segment_sealed", "recovery.segment_recorded"])
def test_a_recovery_that_was_killed_is_completed(log: Log, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    segments = [log.segment(["a"])[0], log.segment(["b"])[0]]
    log.die()
    with monkeypatch.context() as patched:
        patched.setattr(log_recovery, "kill_point", killer(point))
        with pytest.raises(Killed):
            log.recovery.run_once(unwatched, fenced=True)
    LogRecovery(log.metadata, log.medium, log.clock).run_once(unwatched, fenced=False)
    assert [log.state(segment) for segment in segments] == [SegmentState.SEALED] * 2


# --- segments that the metadata does not know -----------------------------------------------------------------------


def test_a_segment_that_was_created_after_its_row_was_forgotten_is_given_back(log: Log) -> None:
    kept, _ = log.segment(["a"])
    late, _ = log.segment(created=False)
    log.die()
    log.recovery.run_once(unwatched, fenced=True)
    assert log.trimmer.run_once().released == 1
    writer = log.medium.create(late, log.lease.epoch, 0)  # its log continues, and is killed
    assert log.unknown.run_once() == 0, "it was looked for again at once"
    log.clock.advance(unknown_segments.LOOK_MS)
    log.recovery.run_once(unwatched, fenced=False)
    assert list(log.medium.segments()) == [kept]
    with pytest.raises(Conflict):
        writer.append(log.medium.limits.start, [bytes(512)])


def test_an_open_segment_is_never_unknown(log: Log) -> None:
    """It has a row before it is created."""
    segment, _ = log.segment()
    assert log.unknown.run_once() == 0
    log.medium.create(new_segment_id(1, 9), 1, 0)
    log.clock.advance(unknown_segments.LOOK_MS)
    assert log.unknown.run_once() == 1
    assert list(log.medium.segments()) == [segment]
    assert log.state(segment) is SegmentState.OPEN


def test_records_without_a_row_are_kept_and_reported_once(log: Log) -> None:
    """The metadata was restored from a backup."""
    segment = new_segment_id(1, 9)
    log.medium.create(segment, 1, 0).append(log.medium.limits.start, [bytes(512)])
    with capture_logs() as lines:
        for _ in range(3):
            assert log.unknown.run_once() == 0
            log.clock.advance(unknown_segments.LOOK_MS)
    assert [line["segment"] for line in lines] == [segment.hex()]
    assert list(log.medium.segments()) == [segment]


def test_an_unknown_segment_that_does_not_answer_stops_no_recovery(log: Log) -> None:
    unknown = [new_segment_id(1, number) for number in (8, 9)]
    for segment in unknown:
        log.medium.create(segment, 1, 0)
    log.segment()
    log.die()
    log.medium.stuck = {unknown[0]}
    assert log.recovery.run_once(unwatched, fenced=True) == 1
    assert unknown[0] in log.medium.segments()
    assert unknown[1] not in log.medium.segments()
    log.medium.stuck.clear()
    log.clock.advance(unknown_segments.LOOK_MS)
    assert log.unknown.run_once() == 1


def test_a_killed_return_of_an_unknown_segment_is_completed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.medium.create(new_segment_id(1, 9), 1, 0)
    with monkeypatch.context() as patched:
        patched.setattr(unknown_segments, "kill_point", killer("recovery.unknown_released"))
        with pytest.raises(Killed):
            log.unknown.run_once()
    assert UnknownSegments(log.metadata, log.medium, log.clock).run_once() == 0
    assert list(log.medium.segments()) == []
