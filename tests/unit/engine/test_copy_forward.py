"""Stragglers are written again when their segments hold too much that is no longer needed, and never otherwise.

These tests use SQLite's metadata and a medium in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import google_crc32c
import pytest

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.errors import Corrupt, NosError, NoSpace
from nos_ec.core.ids import (
    LandingId,
    ObjectKey,
    SegmentId,
    log_of,
    new_segment_id,
    record_id,
    record_offset,
    segment_of,
)
from nos_ec.engine.landing import copy_forward
from nos_ec.engine.landing.copy_forward import (
    BACK_OFF,
    DUE_MS,
    LOOK_MS,
    CopyForward,
    ForwardOptions,
    ForwardResult,
    record_bytes,
)
from nos_ec.engine.landing.lander import LandedBatch, NewCopy
from nos_ec.engine.landing.trimmer import Trimmer
from nos_ec.ports.metadata import Lease, Metadata, NewObject, ObjectRow, PutRequest
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.memory_medium import SMALL, MemoryMedium
from tests.rig.fakes.metadata_bench import MetadataBench

pytestmark = pytest.mark.invariant(1)

SIZE = 512
OBJECTS = 10
AGE_MS = 100_000
GROUP_OBJECTS = 50
LIMITS = replace(SMALL, segment_bytes=64 << 10)


class Killed(BaseException):
    """In place of kill -9: nothing catches it."""


class Landed:
    """A batch of `Log.land`."""

    def __init__(self, log: Log, segment: SegmentId, outcomes: Sequence[LandingId | NosError]) -> None:
        self._log = log
        self._segment = segment
        self.outcomes = outcomes

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:
        """See LandedBatch."""
        self._log.void |= set(refused)
        return []

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """See LandedBatch: seals the segment."""
        self._log.not_recorded |= set(not_recorded)
        self._log.seal(self._segment)


class Log:
    """A log that writes each batch to a segment of its own, without headers: a Lander, and a reader of records."""

    batches_max, batch_bytes_max, batch_objects_max = 1, 100 * SIZE, 4

    def __init__(self, bench: MetadataBench, medium: MemoryMedium, number: int) -> None:
        self._bench = bench
        self._medium = medium
        self._number = number
        self._lease: Lease = bench.lease(f"landing-log-{number}")
        self._segments = 0
        self.not_recorded: set[LandingId] = set()
        self.void: set[LandingId] = set()
        self.refusal: NosError | None = None
        self.damaged: set[LandingId] = set()
        self.copies: list[NewCopy] = []

    def land(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """See Lander."""
        if self.refusal is not None:
            raise self.refusal
        self.copies += batch
        self._segments += 1
        segment = new_segment_id(self._bench.now_ms + self._segments, self._number)
        self._bench.metadata.open_segment(segment, self._lease, self._bench.now_ms)
        offset = self._medium.limits.start
        self._medium.create(segment, 1, 0).append(offset, [copy.data for copy in batch])
        return Landed(self, segment, [record_id(segment, offset + SIZE * i, os.urandom(4)) for i in range(len(batch))])

    def seal(self, segment: SegmentId) -> None:
        """Seal it, as a log does."""
        end = self._medium.seal(segment, None, 0)
        self._bench.metadata.seal_segments([(segment, end, 1)], self._bench.now_ms)

    def read_records(self, wanted: Sequence[tuple[LandingId, int]]) -> list[bytes | NosError]:
        """See RecordReader."""
        return [Corrupt("damaged") if one in self.damaged else self.read(one, size) for one, size in wanted]

    def read(self, landing_id: LandingId, size: int) -> bytes:
        """The bytes of a record."""
        return self._medium.read(segment_of(landing_id), [(record_offset(landing_id), size)])[0]


class Stage:
    """A store with `segments` sealed segments of OBJECTS objects each or another number, in each of which `live` are
    not packed."""

    def __init__(self, metadata: Metadata) -> None:
        self.bench = MetadataBench(metadata)
        self.metadata = metadata
        self.medium = MemoryMedium(limits=LIMITS)
        self.clock = FakeClock(self.bench.now_ms)
        self.fresh = Log(self.bench, self.medium, 1)
        self.fresh.batch_objects_max = OBJECTS
        self.copies = Log(self.bench, self.medium, 2)
        self.trimmer = Trimmer(metadata, self.medium, self.clock)
        self.expected: dict[ObjectKey, bytes] = {}

    def segment(self, live: int, wait_ms: int = 0, attributes: bytes = b"", objects: int = OBJECTS) -> list[ObjectRow]:
        """Fill a segment, and pack and reap all but `live` of its objects, which are due after `wait_ms`. Returns
        these."""
        names = [f"{len(self.expected)}-{index}" for index in range(objects)]
        copies = []
        for name in names:
            data = os.urandom(SIZE)
            copies.append(NewCopy(ObjectKey("bucket", name), data, google_crc32c.value(data), attributes))
        landed = self.fresh.land(copies)
        rows = self.bench.record(
            [
                NewObject(
                    PutRequest(copy.key, attributes),
                    SIZE,
                    copy.crc32c,
                    bytes(16),
                    cast(LandingId, outcome),
                    self.bench.now_ms + wait_ms,
                )
                for copy, outcome in zip(copies, landed.outcomes, strict=True)
            ]
        )
        landed.settle(())
        self.expected.update({copy.key: copy.data for copy in copies[:live]})
        for first in range(live, objects, GROUP_OBJECTS):
            packed = rows[first : first + GROUP_OBJECTS]
            block_id = self.bench.pack(packed)
            ids = [row.landing_id for row in packed if row.landing_id is not None]
            self.metadata.doom_landing(dict.fromkeys(ids, block_id))
            assert self.metadata.forget_landing(ids) == frozenset()
        return rows[:live]

    def forward(self, allowance_bytes: int = 0) -> CopyForward:
        """What is tested, for a store that has grown old."""
        self.clock.advance(AGE_MS)
        options = ForwardOptions(AGE_MS, allowance_bytes)
        return CopyForward(self.metadata, self.copies, self.copies, self.clock, options)

    def assert_readable(self) -> None:
        """Every object that is not packed has its bytes where its row says."""
        for key, data in self.expected.items():
            row = self.metadata.get(key)
            assert row.landing_id is not None
            assert self.copies.read(row.landing_id, SIZE) == data


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    migrate(url)
    opened = open_metadata(url)
    yield Stage(opened)
    opened.close()


def test_the_last_objects_of_a_segment_are_copied_and_it_goes(stage: Stage) -> None:
    stage.segment(live=1)
    stage.segment(live=2)
    before = set(stage.medium.segments())
    assert stage.forward().run_once() == ForwardResult(objects=3, bytes=3 * SIZE, segments=2)
    stage.assert_readable()
    assert stage.trimmer.run_once().released == 2
    assert before.isdisjoint(stage.medium.segments())
    stage.assert_readable()
    assert stage.copies.not_recorded == set()


def test_a_copy_keeps_its_attributes_and_the_time_of_its_put(stage: Stage) -> None:
    """Otherwise a rebuild of lost rows would take it for a later PUT."""
    (row,) = stage.segment(live=1, attributes=b"some")
    assert stage.forward().run_once().objects == 1
    (again,) = stage.copies.copies
    assert (again.key, again.attributes) == (row.key, b"some")
    assert again.put_ms is not None
    assert 0 <= row.version - again.put_ms * 1000 < 1000
    assert stage.metadata.get(row.key).attributes == b"some"


def test_nothing_is_copied_within_the_allowance(stage: Stage) -> None:
    (row,) = stage.segment(live=1)
    excess = stage.metadata.list_segments(None, 1)[0].end - 2 * record_bytes(row)
    assert stage.forward(excess).run_once() == ForwardResult()
    assert stage.forward(excess - 1).run_once().objects == 1


def test_the_emptiest_segments_go_first_until_the_allowance_is_respected(stage: Stage) -> None:
    rows = [stage.segment(live)[0] for live in (2, 1, 2)]
    end = stage.metadata.list_segments(None, 1)[0].end
    assert stage.forward(2 * end - 8 * record_bytes(rows[0])).run_once() == ForwardResult(
        objects=1, bytes=SIZE, segments=1
    )
    moved = [stage.metadata.get(row.key).landing_id != row.landing_id for row in rows]
    assert moved == [False, True, False]


def test_one_straggler_in_a_hundred_keeps_little_and_is_copied_once(stage: Stage) -> None:
    """Bars of docs/MEASUREMENTS.md: segments hold at most 2.5 times what is live in them, and at most 2 % of all
    objects are copied."""
    segments, objects = 60, 100
    stage.fresh.batch_objects_max = stage.copies.batch_objects_max = objects
    forward = stage.forward()
    for number in range(segments):
        stage.segment(live=1, objects=objects)
        stage.clock.advance(AGE_MS)
        stage.bench.now_ms = stage.clock.now_ms()
        if number % 12 == 11:
            forward.run_once()
            stage.trimmer.run_once()
    rows = [stage.metadata.get(key) for key in stage.expected]
    kept = sum(row.end for row in stage.metadata.list_segments(None, segments))
    assert len(rows) == segments
    assert kept <= 2.5 * sum(map(record_bytes, rows))
    assert segments / 2 <= len(stage.copies.copies) <= 0.02 * segments * objects
    stage.assert_readable()


@pytest.mark.parametrize("live", [3, 5, OBJECTS])
def test_a_segment_with_a_quarter_or_more_alive_is_left_alone(stage: Stage, live: int) -> None:
    stage.segment(live)
    assert stage.forward().run_once() == ForwardResult()


def test_young_segments_and_empty_ones_are_left_alone(stage: Stage) -> None:
    stage.segment(live=0)
    forward = stage.forward()
    stage.bench.now_ms = stage.clock.now_ms()
    stage.segment(live=1)
    assert forward.run_once() == ForwardResult()
    stage.clock.advance(AGE_MS)
    assert forward.run_once().objects == 1


def test_a_segment_that_was_lost_before_it_was_sealed_stops_no_run(stage: Stage) -> None:
    rows = stage.segment(live=1)
    lost = new_segment_id(stage.bench.now_ms + 1_000, 1)
    stage.metadata.open_segment(lost, stage.bench.lease("landing-log-3"), stage.bench.now_ms)
    key, copy = ObjectKey("bucket", "lost"), record_id(lost, 512, bytes(4))
    stage.bench.record([NewObject(PutRequest(key), SIZE, 0, bytes(16), copy, stage.bench.now_ms)])
    stage.metadata.seal_segments([(lost, 0, 0)], stage.bench.now_ms)
    assert stage.forward().run_once().objects == len(rows)
    assert stage.metadata.get(key).landing_id == copy


def test_it_looks_once_in_a_while(stage: Stage) -> None:
    forward = stage.forward()
    assert forward.run_once() == ForwardResult()
    stage.segment(live=1)
    stage.clock.advance(LOOK_MS - 1)
    assert forward.run_once() == ForwardResult()
    stage.clock.advance(AGE_MS)
    assert forward.run_once().objects == 1


def test_what_waits_for_its_age_is_packed_before_it_is_copied(stage: Stage) -> None:
    rows = stage.segment(live=2, wait_ms=100 * AGE_MS)
    forward = stage.forward()
    made_ms = stage.clock.now_ms()
    assert forward.run_once() == ForwardResult()
    due = stage.metadata.due_objects(made_ms, 9, range(16))
    assert {(row.key, row.due_ms) for row in due} == {(row.key, made_ms) for row in rows}
    stage.clock.advance(DUE_MS - 1)
    assert forward.run_once() == ForwardResult(), "they had no time to be packed"
    stage.clock.advance(LOOK_MS)
    assert forward.run_once().objects == 2


def test_objects_are_made_due_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.segment(live=1, wait_ms=100 * AGE_MS)
    calls = []
    make_due = stage.metadata.make_due

    def counted(rows: Sequence[ObjectRow], now_ms: int) -> int:
        calls.append(len(rows))
        return make_due(rows, now_ms)

    monkeypatch.setattr(stage.metadata, "make_due", counted)
    forward = stage.forward()
    for _ in range(3):
        forward.run_once()
        stage.clock.advance(LOOK_MS)
    assert calls == [1]
    assert forward.run_once().objects == 1


def test_objects_that_a_consumer_has_to_pack_are_not_published_again(stage: Stage) -> None:
    """It may have parked them; their due time says when they were published."""
    (row,) = stage.segment(live=1)
    due_ms = stage.bench.now_ms + 100 * AGE_MS
    stage.metadata.mark_published([row], due_ms)
    assert stage.forward().run_once().objects == 1, "waiting would not help"
    (found,) = stage.metadata.due_objects(due_ms, 9, range(16))
    assert found.due_ms == due_ms


def test_an_object_that_cannot_be_read_is_left_where_it_is(stage: Stage) -> None:
    bad, good = stage.segment(live=2)
    assert bad.landing_id is not None
    stage.copies.damaged.add(bad.landing_id)
    forward = stage.forward()
    assert forward.run_once() == ForwardResult(objects=1, bytes=SIZE, failed=1)
    assert stage.metadata.get(bad.key).landing_id == bad.landing_id
    assert stage.metadata.get(good.key).landing_id != good.landing_id
    stage.clock.advance(LOOK_MS)
    assert len(forward.parked) == 1
    stage.copies.damaged.clear()
    stage.clock.advance(BACK_OFF.max_ms)
    assert forward.run_once().objects == 1
    assert len(forward.parked) == 0
    stage.assert_readable()


def test_a_full_log_is_no_failure_of_the_run(stage: Stage) -> None:
    stage.segment(live=2)
    stage.copies.refusal = NoSpace("no segment fits")
    assert stage.forward().run_once() == ForwardResult(failed=1)
    stage.assert_readable()


def test_an_object_that_was_overwritten_meanwhile_is_not_brought_back(stage: Stage) -> None:
    (row,) = stage.segment(live=1)
    land = stage.copies.land

    def overwrite(batch: Sequence[NewCopy]) -> LandedBatch:
        stage.bench.delete(row.key.name)
        return land(batch)

    stage.copies.land = overwrite  # type: ignore[method-assign]
    # The entry of the deleted version is moved in its place: the copy is referred to until the reaper forgets it.
    assert stage.forward().run_once().segments == 1
    assert stage.metadata.list_objects("bucket", row.key.name, "", 10) == []
    assert stage.copies.void == stage.copies.not_recorded


@pytest.mark.parametrize("point", ["copy_forward.made_due", "copy_forward.landed", "copy_forward.moved"])
def test_a_run_that_was_killed_is_completed(stage: Stage, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    stage.segment(live=1)
    stage.segment(live=2)
    forward = stage.forward()
    with monkeypatch.context() as patched:
        patched.setattr(copy_forward, "kill_point", killer(point))
        with pytest.raises(Killed):
            forward.run_once()
    stage.assert_readable()
    stage.forward().run_once()
    stage.trimmer.run_once()
    stage.assert_readable()
    moved_to = [stage.metadata.get(key).landing_id or LandingId(bytes(16)) for key in stage.expected]
    assert {log_of(segment_of(landing_id)) for landing_id in moved_to} == {2}


def killer(point: str) -> Callable[[str], None]:
    def kill_point(name: str) -> None:
        if name == point:
            raise Killed

    return kill_point
