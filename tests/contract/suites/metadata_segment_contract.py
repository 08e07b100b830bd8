"""What every metadata store must do for the landing log: at least one test for each sentence of
`nos_ec.ports.metadata.landing_segments`. Part of `MetadataContract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nos_ec.core.errors import Conflict, LeaseLost, NotFound, Transient
from nos_ec.core.ids import (
    LandingId,
    ObjectKey,
    SegmentId,
    ids_in_segment,
    log_of,
    new_segment_id,
    record_id,
    record_ids_between,
    timed_id,
)
from nos_ec.core.states import ObjectState, SegmentState
from nos_ec.ports.metadata import LandedMove, Lease, NewObject, ObjectRow, PutRequest, SegmentRow
from tests.rig.fakes.metadata_bench import MetadataBench

MIB = 1 << 20


class SegmentBench:
    """A log with the number `log` and the segments that it opens, on a metadata store."""

    def __init__(self, bench: MetadataBench, log: int = 1) -> None:
        self.bench = bench
        self.metadata = bench.metadata
        self.log = log
        self.lease: Lease = bench.lease(f"landing-log-{log}")
        self._opened_ms = bench.now_ms
        self._records = 0

    def new_id(self) -> SegmentId:
        """The id of a segment that was never used."""
        self._opened_ms += 1
        return new_segment_id(self._opened_ms, self.log)

    def segment(self) -> SegmentId:
        """Open a segment."""
        segment = self.new_id()
        self.metadata.open_segment(segment, self.lease, self.bench.now_ms)
        return segment

    def sealed(self) -> SegmentId:
        """Open and seal a segment."""
        segment = self.segment()
        self.seal(segment)
        return segment

    def seal(self, *segments: SegmentId) -> None:
        """Seal segments of 1 MiB with 7 records."""
        self.metadata.seal_segments([(segment, MIB, 7) for segment in segments], self.bench.now_ms)

    def record(self, segment: SegmentId) -> LandingId:
        """The id of a further record."""
        self._records += 1
        return record_id(segment, 4096 + 64 * self._records, self._records.to_bytes(4, "big"))

    def new(self, segment: SegmentId, name: str, size: int = 1000) -> NewObject:
        """An object whose copy is a record of the segment."""
        key = ObjectKey("bucket", name)
        return NewObject(PutRequest(key), size, size * 7 + 1, bytes(16), self.record(segment), self.bench.now_ms)

    def put(self, segment: SegmentId, *names: str) -> list[ObjectRow]:
        """PUT objects whose copies are records of the segment."""
        return self.bench.record([self.new(segment, name) for name in names])

    def states(self) -> dict[SegmentId, SegmentState]:
        """All segments and their states."""
        return {row.segment: row.state for row in self.metadata.list_segments(None, 1000)}

    def forget_entries(self) -> frozenset[LandingId]:
        """Do what the reaper does with all queue entries whose packed bytes are intact. Returns those that stay."""
        due = self.bench.deletions().values()
        places = {one.landing_id: one.row.extent.block_id if one.row and one.row.extent else None for one in due}
        return self.metadata.forget_landing(sorted(self.metadata.doom_landing(places)))


def copy_of(one: ObjectRow | NewObject) -> LandingId:
    """The landing copy of a row or a new object that has one."""
    assert one.landing_id is not None
    return one.landing_id


class SegmentSuite:
    """Base of the suites on segments."""

    @pytest.fixture
    def log(self, bench: MetadataBench) -> SegmentBench:
        """A log on the metadata store under test."""
        return SegmentBench(bench)


class LifeContract(SegmentSuite):
    """open_segment, seal_segments, open_segments_of_log, list_segments, segment_totals."""

    def test_a_segment_is_opened_once(self, log: SegmentBench) -> None:
        segment = log.new_id()
        for _ in range(2):
            log.metadata.open_segment(segment, log.lease, 5)
        assert log.metadata.list_segments(None, 9) == [
            SegmentRow(segment, SegmentState.OPEN, log.lease.epoch, 5, None, 0, 0)
        ]

    @pytest.mark.invariant(8)
    def test_only_the_holder_of_the_lease_opens_segments(self, log: SegmentBench) -> None:
        segment = log.segment()
        log.metadata.fence_lease(log.lease, log.lease.expires_ms)
        for refused in (log.new_id(), segment):
            with pytest.raises(LeaseLost):
                log.metadata.open_segment(refused, log.lease, 5)
        log.lease = log.bench.lease(log.lease.name)
        with pytest.raises(Conflict, match="epoch"):
            log.metadata.open_segment(segment, log.lease, 5)
        assert log.states() == {segment: SegmentState.OPEN}

    def test_a_segment_is_sealed_once(self, log: SegmentBench) -> None:
        first, second, third = (log.segment() for _ in range(3))
        log.metadata.seal_segments([(second, 500, 2), (first, 400, 1)], 77)
        log.metadata.seal_segments([(second, 9, 9), (log.new_id(), 9, 9)], 99)
        log.metadata.seal_segments([], 99)
        epoch, now_ms = log.lease.epoch, log.bench.now_ms
        assert log.metadata.list_segments(None, 9) == [
            SegmentRow(first, SegmentState.SEALED, epoch, now_ms, 77, 400, 1),
            SegmentRow(second, SegmentState.SEALED, epoch, now_ms, 77, 500, 2),
            SegmentRow(third, SegmentState.OPEN, epoch, now_ms, None, 0, 0),
        ]

    def test_the_row_says_until_when_records_are_to_be_made_void(self, log: SegmentBench) -> None:
        first, doomed = log.segment(), log.segment()
        log.metadata.seal_segments([(first, 400, 1), (doomed, 500, 2)], None)
        assert log.metadata.doom_segment(doomed)
        epoch, now_ms = log.lease.epoch, log.bench.now_ms
        for sealed_ms, at_ms in ((None, None), (77, 77), (77, None), (77, 99)):
            log.metadata.seal_segments([(first, 400, 1), (doomed, 500, 2)], at_ms)
            assert log.metadata.list_segments(None, 9) == [
                SegmentRow(first, SegmentState.SEALED, epoch, now_ms, sealed_ms, 400, 1),
                SegmentRow(doomed, SegmentState.DOOMED, epoch, now_ms, None, 500, 2),
            ]

    def test_a_doomed_segment_stays_doomed(self, log: SegmentBench) -> None:
        segment = log.sealed()
        assert log.metadata.doom_segment(segment)
        log.seal(segment)
        log.metadata.open_segment(segment, log.lease, 5)
        assert log.states() == {segment: SegmentState.DOOMED}

    def test_what_a_dead_process_left_open(self, log: SegmentBench) -> None:
        left = [log.segment(), log.segment()]
        log.sealed()
        other = SegmentBench(log.bench, 1_023)
        others = other.segment()
        assert (log_of(left[0]), log_of(others)) == (1, 1_023)
        log.metadata.release_lease(log.lease)
        epoch = log.lease.epoch
        log.lease = log.bench.lease(log.lease.name)
        later = log.segment()
        assert [row.segment for row in log.metadata.open_segments_of_log(1, epoch)] == left
        assert log.metadata.open_segments_of_log(1, epoch - 1) == []
        assert [row.segment for row in log.metadata.open_segments_of_log(1, log.lease.epoch)] == [*left, later]
        assert [row.segment for row in log.metadata.open_segments_of_log(1_023, 2**60)] == [others]

    def test_segments_are_listed_in_pages(self, log: SegmentBench) -> None:
        made = [log.segment() for _ in range(5)]
        pages: list[SegmentId] = []
        while page := log.metadata.list_segments(pages[-1] if pages else None, 2):
            assert len(page) <= 2
            pages += [row.segment for row in page]
        assert pages == sorted(made)

    def test_totals_by_state(self, log: SegmentBench) -> None:
        assert log.metadata.segment_totals() == {}
        log.segment()
        doomed, *_ = (log.sealed() for _ in range(3))
        assert log.metadata.doom_segment(doomed)
        assert log.metadata.segment_totals() == {
            SegmentState.OPEN: (1, 0),
            SegmentState.SEALED: (2, 2 * MIB),
            SegmentState.DOOMED: (1, MIB),
        }


class RecordContract(SegmentSuite):
    """record_puts of records, and forget_landing, which keeps what it needs."""

    def test_a_record_needs_no_reservation(self, log: SegmentBench) -> None:
        new = log.new(log.segment(), "n", 123)
        (row,) = log.bench.record([new])
        assert row == log.bench.get("n")
        assert (row.state, row.landing_id, row.size) == (ObjectState.LANDED, new.landing_id, 123)
        assert log.bench.deletions() == {}
        with pytest.raises(ValueError, match="not reserved"):
            log.metadata.reserve_landing([copy_of(row)], 5)

    def test_copies_of_both_kinds_in_one_batch(self, log: SegmentBench) -> None:
        first, second = log.segment(), log.segment()
        new = [log.new(first, "a"), log.bench.new("b"), log.new(second, "c"), log.bench.new("d"), log.new(first, "a")]
        rows = log.bench.record(new)
        assert [row.landing_id for row in rows] == [one.landing_id for one in new]
        assert [log.bench.get(name) for name in "bcda"] == rows[1:]
        assert list(log.bench.deletions()) == [new[0].landing_id], "the later PUT of a key overwrites the earlier"

    @pytest.mark.parametrize("state", [SegmentState.SEALED, SegmentState.DOOMED, None])
    @pytest.mark.invariant(2)
    def test_nothing_is_recorded_in_a_segment_that_is_not_open(
        self, log: SegmentBench, state: SegmentState | None
    ) -> None:
        segment = log.segment()
        late, other = log.new(segment, "late"), log.new(log.segment(), "other")
        log.seal(segment)
        if state is not SegmentState.SEALED:
            assert log.metadata.doom_segment(segment)
        if state is None:
            log.metadata.forget_segments([segment])
        with pytest.raises(Transient, match="its landing segment was sealed"):
            log.metadata.record_puts([other, late], log.bench.now_ms, together=True)
        recorded, refused = log.metadata.record_puts([other, late], log.bench.now_ms)
        assert isinstance(refused, Transient)
        assert "its landing segment was sealed" in str(refused)
        assert refused.key == late.key
        assert recorded == log.bench.get("other")
        with pytest.raises(NotFound):
            log.bench.get("late")

    @pytest.mark.parametrize("sealed", [False, True])
    @pytest.mark.invariant(5)
    def test_recording_a_record_again_changes_nothing(self, log: SegmentBench, sealed: bool) -> None:
        segment = log.segment()
        new = log.new(segment, "n")
        first = log.bench.record([new])
        if sealed:
            log.seal(segment)
        assert log.bench.record([new], later_ms=5) == first
        log.bench.pack(first)
        (again,) = log.bench.record([new], later_ms=5)
        assert again == log.bench.get("n")
        assert again.state is ObjectState.PACKED

    @pytest.mark.invariant(5)
    def test_recording_a_record_again_does_not_bring_it_back_from_the_trash(self, log: SegmentBench) -> None:
        """Neither while it waits there, nor when it is packed."""
        segment = log.segment()
        new, other = log.new(segment, "n"), log.new(segment, "other")
        (first,) = log.bench.record([new])
        log.bench.delete_into_trash("n", 5)
        again, recorded = log.bench.record([new, other], later_ms=5)
        assert (again.object_id, again.version) == (first.object_id, first.version)
        assert recorded == log.bench.get("other")
        log.bench.pack([first])
        (again,) = log.bench.record([new], later_ms=5)
        assert (again.object_id, again.version) == (first.object_id, first.version)
        assert [row.key.name for row in log.metadata.list_objects("bucket", "", "", 9)] == ["other"]
        assert [row.object_id for row in log.metadata.trash_page(None, 9).rows] == [first.object_id]
        log.bench.check_counters()

    @pytest.mark.parametrize("reaped", [False, True])
    @pytest.mark.invariant(5)
    def test_recording_a_record_again_does_not_bring_it_back(self, log: SegmentBench, reaped: bool) -> None:
        """The reaper may have come by, while the segment is OPEN."""
        new = log.new(log.segment(), "n")
        (first,) = log.bench.record([new])
        (newer,) = log.put(log.segment(), "n")
        if reaped:
            assert log.forget_entries() == {new.landing_id}
        other = log.new(log.segment(), "other")
        again, recorded = log.bench.record([new, other], later_ms=5)
        assert (again.object_id, again.version) == (first.object_id, first.version)
        assert log.bench.get("n") == newer
        assert log.bench.get("other") == recorded
        log.bench.delete("n")
        log.bench.record([new], later_ms=5)
        with pytest.raises(NotFound):
            log.bench.get("n")

    def test_entries_of_open_segments_are_not_forgotten(self, log: SegmentBench) -> None:
        open_one, sealed = log.segment(), log.segment()
        rows = [*log.put(open_one, "a"), *log.put(sealed, "b"), log.bench.put("c")]
        for name in "abc":
            log.bench.delete(name)
        log.seal(sealed)
        assert log.forget_entries() == {rows[0].landing_id}
        assert [one.doomed for one in log.bench.deletions().values()] == [True]
        assert log.metadata.forget_landing([copy_of(row) for row in rows]) == {rows[0].landing_id}
        assert log.metadata.forget_landing([]) == frozenset()
        log.seal(open_one)
        assert log.metadata.forget_landing([copy_of(row) for row in rows]) == frozenset()
        assert log.bench.deletions() == {}

    @pytest.mark.invariant(2)
    def test_packed_bytes_that_are_lost_go_back_to_the_record(self, log: SegmentBench) -> None:
        segment = log.segment()
        (row,) = log.put(segment, "n")
        log.bench.pack([row])
        log.seal(segment)
        (deletion,) = log.bench.deletions().values()
        assert log.metadata.revert_to_landing(deletion, log.bench.now_ms)
        assert log.bench.get("n").landing_id == row.landing_id
        assert log.bench.deletions() == {}
        assert not log.metadata.doom_segment(segment)


class FindContract(SegmentSuite):
    """queued_copy, oldest_landing_id, landing_known and landing_needed of records."""

    def test_the_queued_record_of_a_packed_object(self, log: SegmentBench) -> None:
        """It is looked for in segments that were OPEN at the PUT."""
        bench = log.bench
        earlier = log.segment()
        log.put(earlier, "earlier")
        log.seal(earlier)
        bench.now_ms += 120_000
        segment, beside = log.segment(), log.segment()
        rows = [*log.put(segment, "n"), *log.put(beside, "beside")]
        bench.pack([bench.get("earlier"), *rows])
        packed, copy = bench.get("n"), copy_of(rows[0])
        ever = record_ids_between(0, bench.now_ms + 1000)
        for sealed in (False, True):
            if sealed:
                log.seal(segment)
            assert log.metadata.queued_copy(packed, *ever) == copy
            assert log.metadata.queued_copy(packed, copy, copy) == copy
            assert log.metadata.queued_copy(packed, copy, ever[1]) == copy
            assert log.metadata.queued_copy(packed, *ids_in_segment(beside)) is None
            assert log.metadata.queued_copy(packed, ids_in_segment(beside)[0], ever[1]) is None
            assert log.metadata.queued_copy(packed, *record_ids_between(0, bench.now_ms - 120_000)) is None
        assert log.metadata.queued_copy(bench.get("earlier"), *ever) is not None

    def test_the_oldest_of_both_kinds(self, log: SegmentBench) -> None:
        bench, ids = log.bench, (LandingId(timed_id(now_ms, bytes(10))) for now_ms in (1_000, 2**46))
        old, new = (replace(bench.new("store"), landing_id=landing_id) for landing_id in ids)
        log.metadata.reserve_landing([copy_of(old), copy_of(new)], 2**50)
        (row,) = log.put(log.segment(), "log")
        assert log.metadata.oldest_landing_id() == row.landing_id, "no other waits"
        bench.record([old])
        assert log.metadata.oldest_landing_id() == old.landing_id
        bench.record([new])
        assert log.metadata.oldest_landing_id() == row.landing_id
        bench.delete("log")
        assert log.metadata.oldest_landing_id() == new.landing_id

    def test_known_and_needed_records(self, log: SegmentBench) -> None:
        segment = log.segment()
        landed, gone = log.put(segment, "landed", "gone")
        bench, stranger = log.bench, log.record(segment)
        stored = bench.put("stored")
        bench.delete("gone")
        known = {copy_of(one) for one in (landed, gone, stored)}
        assert log.metadata.landing_known([*known, stranger]) == known
        assert log.metadata.landing_needed([*known, stranger]) == known
        assert log.metadata.doom_landing(dict.fromkeys(known)) == {gone.landing_id}
        assert log.metadata.landing_known([*known, stranger]) == known
        assert log.metadata.landing_needed([*known, stranger]) == known - {gone.landing_id}


class TrimContract(SegmentSuite):
    """releasable_segments, doom_segment, forget_segments."""

    def test_only_a_sealed_segment_is_doomed(self, log: SegmentBench) -> None:
        open_one, sealed, absent = log.segment(), log.sealed(), log.new_id()
        assert log.metadata.releasable_segments([absent, sealed, open_one]) == {sealed}
        assert log.metadata.releasable_segments([]) == frozenset()
        assert not log.metadata.doom_segment(absent)
        assert not log.metadata.doom_segment(open_one)
        for _ in range(2):
            assert log.metadata.doom_segment(sealed), "also when it was doomed before"
        assert log.states() == {open_one: SegmentState.OPEN, sealed: SegmentState.DOOMED}
        assert log.metadata.releasable_segments([sealed, open_one]) == {sealed}

    @pytest.mark.parametrize("at", [0, -1])
    @pytest.mark.invariant(2)
    def test_a_segment_is_kept_while_a_row_or_an_entry_refers_to_it(self, log: SegmentBench, at: int) -> None:
        """Its first and its last record count, too; its neighbours' records do not."""
        before, segment, behind = (log.segment() for _ in range(3))
        new = replace(log.new(segment, "n"), landing_id=ids_in_segment(segment)[at])
        (row,) = log.bench.record([new])
        log.seal(before, segment, behind)

        def kept() -> None:
            assert log.metadata.releasable_segments([before, segment, behind]) == {before, behind}
            assert not log.metadata.doom_segment(segment)

        kept()
        log.metadata.mark_published([row], log.bench.now_ms)
        kept()
        block_id = log.bench.pack([row])
        kept()
        assert log.metadata.doom_landing({copy_of(row): block_id}) == {row.landing_id}
        kept()
        assert log.metadata.forget_landing([copy_of(row)]) == frozenset()
        assert log.metadata.releasable_segments([before, segment, behind]) == {before, segment, behind}
        assert all(map(log.metadata.doom_segment, (before, segment, behind)))

    def test_many_segments_are_asked_about_at_once(self, log: SegmentBench) -> None:
        segments = [log.segment() for _ in range(120)]
        pinned = segments[3::7]
        for i, segment in enumerate(pinned):
            log.put(segment, f"n{i}")
        log.bench.delete("n5")
        log.seal(*segments)
        assert log.metadata.releasable_segments(segments) == frozenset(segments).difference(pinned)

    def test_only_doomed_segments_are_forgotten(self, log: SegmentBench) -> None:
        open_one, sealed, doomed = log.segment(), log.sealed(), log.sealed()
        assert log.metadata.doom_segment(doomed)
        for _ in range(2):
            log.metadata.forget_segments([open_one, sealed, doomed])
        log.metadata.forget_segments([])
        assert log.states() == {open_one: SegmentState.OPEN, sealed: SegmentState.SEALED}


class StragglerContract(SegmentSuite):
    """objects_in_segment, make_due, move_landed."""

    def test_what_lives_in_a_segment(self, log: SegmentBench) -> None:
        segment, other = log.segment(), log.segment()
        rows = log.put(segment, "c", "a", "b", "gone", "packed")
        log.put(other, "other")
        log.bench.delete("gone")
        log.bench.pack([rows[-1]])
        log.metadata.mark_published(rows[:1], 5)
        live = [log.bench.get(name) for name in "cab"]
        assert log.metadata.objects_in_segment(segment, None, 9) == live
        assert log.metadata.objects_in_segment(segment, None, 2) == live[:2]
        assert log.metadata.objects_in_segment(segment, live[1].landing_id, 9) == live[2:]

    def test_the_first_possible_record_is_found(self, log: SegmentBench) -> None:
        segment = log.segment()
        new = replace(log.new(segment, "n"), landing_id=ids_in_segment(segment)[0])
        rows = log.bench.record([new])
        assert log.metadata.objects_in_segment(segment, None, 9) == rows

    def test_what_waits_for_its_age_is_made_due(self, log: SegmentBench) -> None:
        now_ms = log.bench.now_ms
        segment = log.segment()
        waits_ms = {"young": 10, "due": -10, "queued": 10, "overwritten": 10, "deleted": 10, "packed": 10}
        new = [replace(log.new(segment, name), due_ms=now_ms + wait_ms) for name, wait_ms in waits_ms.items()]
        rows = log.bench.record([*new, replace(log.new(segment, "other"), due_ms=now_ms + 10)])
        log.metadata.mark_published([rows[2]], now_ms + 20)
        log.bench.record([replace(log.new(segment, "overwritten"), due_ms=now_ms + 30)])
        log.bench.delete("deleted")
        log.bench.pack([rows[5]])
        for changed in (1, 0):
            assert log.metadata.make_due(rows[:-1], now_ms) == changed
            due = {row.key.name: row.due_ms for row in log.metadata.due_objects(now_ms + 99, 99, range(16))}
            assert due == {
                "young": now_ms,
                "due": now_ms - 10,
                "queued": now_ms + 20,
                "overwritten": now_ms + 30,
                "other": now_ms + 10,
            }
        assert log.metadata.make_due([], now_ms) == 0

    def test_copies_move(self, log: SegmentBench) -> None:
        """The copies are those of a row, of a queue entry, of a row that has changed, of one that is gone, and one that
        was moved before."""
        segment = log.segment()
        rows = log.put(segment, "landed", "packed", "overwritten", "deleted", "doomed")
        block_id = log.bench.pack([rows[1]])
        log.seal(segment)
        log.bench.put("overwritten")
        log.bench.delete("deleted")
        log.metadata.forget_landing([copy_of(row) for row in rows[2:4]])
        log.bench.delete("doomed")
        assert log.metadata.doom_landing({copy_of(rows[4]): None})
        target = log.segment()
        moves = [LandedMove(row.object_id, row.version, copy_of(row), log.record(target)) for row in rows]
        for _ in range(2):
            assert log.metadata.move_landed(moves) == {moves[0].target, moves[1].target}
        assert log.bench.get("landed") == replace(rows[0], landing_id=moves[0].target)
        entries = log.bench.deletions()
        assert entries.keys() == {moves[1].target, rows[4].landing_id}
        assert entries[moves[1].target].row == log.bench.get("packed")
        assert log.metadata.move_landed([]) == frozenset()
        log.seal(target)
        assert log.metadata.doom_landing({moves[1].target: block_id}) == {moves[1].target}

    def test_what_moved_is_packed_from_where_it_is(self, log: SegmentBench) -> None:
        segment = log.segment()
        (row,) = log.put(segment, "n")
        log.seal(segment)
        move = LandedMove(row.object_id, row.version, copy_of(row), log.record(log.segment()))
        assert log.metadata.move_landed([move]) == {move.target}
        assert log.metadata.doom_segment(segment)
        assert [one.landing_id for one in log.metadata.due_objects(2**60, 9, range(16))] == [move.target]
        log.bench.pack([row])
        assert list(log.bench.deletions()) == [move.target]

    @pytest.mark.invariant(2)
    def test_nothing_moves_into_a_segment_that_is_not_open(self, log: SegmentBench) -> None:
        segment = log.segment()
        rows = log.put(segment, "a", "b")
        log.seal(segment)
        targets = [log.record(log.segment()), log.record(log.sealed())]
        moves = [
            LandedMove(row.object_id, row.version, copy_of(row), target)
            for row, target in zip(rows, targets, strict=True)
        ]
        with pytest.raises(Transient, match="sealed"):
            log.metadata.move_landed(moves)
        assert [log.bench.get(row.key.name) for row in rows] == rows

    def test_impossible_moves_are_a_bug(self, log: SegmentBench) -> None:
        """A PUT that is recorded again must find its record where it was; a copy in the landing store needs a
        reservation."""
        (row,) = log.put(log.segment(), "n")
        stored = log.bench.put("stored")
        impossible: Sequence[LandedMove] = (
            LandedMove(row.object_id, row.version, copy_of(row), log.record(log.segment())),
            LandedMove(stored.object_id, stored.version, copy_of(stored), copy_of(log.bench.put("other"))),
        )
        for move in impossible:
            with pytest.raises(ValueError, match="can only move"):
                log.metadata.move_landed([move])
        assert log.bench.get("n") == row


class LandingSegmentContract(LifeContract, RecordContract, FindContract, TrimContract, StragglerContract):
    """See the module."""
