"""The landing log where its first append creates a segment, and the last one can seal it (invariants 1, 8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nos_ec.core.errors import Conflict, NoSpace, Transient
from nos_ec.core.formats.landing_format import decode_footer
from nos_ec.core.ids import LandingId, SegmentId, record_offset, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.lander import LandedBatch
from nos_ec.engine.landing.log_segment import RETRY_WAIT_MS
from tests.rig.fakes.memory_medium import JOINED, MemoryMedium
from tests.unit.engine.landing_rig import OPTIONS, Rig, copies, lose_lease

pytestmark = pytest.mark.invariant(1, 8)


@pytest.fixture
def joined() -> Iterator[Rig]:
    """A log on a medium whose segments are created by their first append and can be sealed by their last: Ceph's."""
    rig = Rig(MemoryMedium(limits=JOINED))
    yield rig
    rig.close()


def put_full_batches(rig: Rig, batches: int) -> list[LandingId]:
    """Batches of about the size that a batch should have."""
    return [one for number in range(batches) for one in rig.put(copies(1800, 1700, seed=number))]


def test_creating_and_sealing_are_no_writes_of_their_own(joined: Rig) -> None:
    ids = put_full_batches(joined, 12)
    of = [segment_of(landing_id) for landing_id in ids]
    assert joined.medium.appends == 12
    assert joined.faults.calls["seal"] == 0
    assert joined.states()[:4] == [SegmentState.SEALED] * 4
    for segment in sorted(set(of))[:4]:
        row = joined.segments.rows[segment]
        footer = joined.medium.read(segment, [(row.end, 16 << 10)])[0]
        found = [entry.landing_id for entry in decode_footer(footer, segment, row.end)]
        assert found == [landing_id for landing_id in ids if segment_of(landing_id) == segment]
        assert len(found) == row.records == joined.medium._disk[segment].records
        with pytest.raises(Conflict):
            joined.medium.append(segment, joined.medium._disk[segment], row.end, [bytes(512)])
    joined.check()


def test_a_segment_takes_batches_as_long_as_a_full_one_fits(joined: Rig) -> None:
    limits = joined.medium.limits
    ids = [one for number in range(60) for one in joined.put(copies(300, seed=number))]
    for segment in sorted({segment_of(landing_id) for landing_id in ids})[:-1]:
        row = joined.segments.rows[segment]
        footer = joined.medium.read(segment, [(row.end, 16 << 10)])[0]
        assert footer, "it was sealed by an append"
        last = max(record_offset(landing_id) for landing_id in ids if segment_of(landing_id) == segment)
        assert last + limits.batch_bytes_max <= limits.segment_bytes < row.end + limits.batch_bytes_max + 2048
    assert joined.faults.calls["seal"] == 0


def test_a_row_is_sealed_only_after_the_last_batch_is_settled(joined: Rig) -> None:
    put_full_batches(joined, 2)
    landed, ids = joined.land(copies(1800, 1800, seed=9))
    segment = segment_of(ids[0])
    assert joined.medium._disk[segment].sealed is not None
    joined.log.tend()
    put_full_batches(joined, 1)
    assert joined.segments.rows[segment].state is SegmentState.OPEN
    joined.segments.record([(ids[0], copies(1800, 1800, seed=9)[0].data)])
    landed.settle(ids[1:])
    assert joined.segments.rows[segment].state is SegmentState.SEALED
    joined.check()


@pytest.mark.parametrize("batches", [0, 2], ids=["the first", "the last"])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_an_append_that_creates_or_seals_may_fail(joined: Rig, batches: int, done: bool) -> None:
    before = put_full_batches(joined, batches)
    failing = [Transient("time-out")]

    def fail(segment: SegmentId) -> None:
        if failing:
            raise failing.pop()

    joined.medium.on_append, joined.medium.tear = fail, lambda size: size if done else 0
    after = joined.put(copies(1800, 1700, seed=50))
    assert not {segment_of(landing_id) for landing_id in before} & {segment_of(landing_id) for landing_id in after}
    assert joined.medium.refused == 0
    failed = min(joined.segments.rows)
    row = joined.segments.rows[failed]
    assert row.state is SegmentState.SEALED
    assert row.records == len(before)
    batch_bytes = 4096
    assert row.end == (512 + batch_bytes * (batches + done) if batches or done else 0)
    joined.check()
    joined.log.close()
    assert set(joined.states()) == {SegmentState.SEALED}


def test_a_full_medium_leaves_a_segment_of_nothing(joined: Rig) -> None:
    joined.put(copies(100))

    def full(segment: SegmentId) -> None:
        raise NoSpace("full")

    joined.medium.on_append = full
    joined.clock.advance(OPTIONS.segment_age_ms)
    joined.log.tend()
    with pytest.raises(NoSpace):
        joined.log.land(copies(100))
    joined.medium.on_append = lambda segment: None
    joined.log.close()
    assert set(joined.states()) == {SegmentState.SEALED}
    joined.check()


def test_a_segment_that_recovery_sealed_before_its_first_batch_takes_none(joined: Rig) -> None:
    """The process hangs right before it appends to a segment made ahead, and others fence it."""
    joined.put(copies(100))
    joined.clock.advance(OPTIONS.segment_age_ms)
    joined.log.tend()
    fenced: list[SegmentId] = []

    def others(segment: SegmentId) -> None:
        joined.medium.on_append = lambda segment: None
        fenced.append(segment)
        joined.fence()

    joined.medium.on_append = others
    (after,) = joined.put(copies(100, seed=1))
    assert joined.segments.rows[segment_of(after)].epoch == 2
    (row,) = [joined.segments.rows[segment] for segment in fenced]
    assert (row.state, row.end, row.epoch) == (SegmentState.SEALED, 0, 1)
    assert joined.medium.read(row.segment, [(0, 1 << 20)]) == [b""]
    assert joined.log.counters.failed == 1
    joined.check()


def test_an_expired_lease_is_renewed_before_a_batch_is_begun(joined: Rig) -> None:
    """So a process that was stopped begins no segment that others have sealed and given back."""
    joined.put(copies(100))
    joined.clock.advance(OPTIONS.segment_age_ms)
    joined.log.tend()
    others_give_back_all(joined)
    joined.clock.advance(OPTIONS.lease_ttl_ms)
    appended: list[SegmentId] = []
    joined.medium.on_append = appended.append
    (after,) = joined.put(copies(100, seed=1))
    assert appended == [segment_of(after)]
    assert joined.segments.rows[segment_of(after)].epoch == 2
    joined.check()


def others_give_back_all(rig: Rig) -> None:
    """They fence the log, seal its segments and forget them; nothing in them is needed any more."""
    rig.fence()
    rig.segments.recorded.clear()
    for segment in list(rig.segments.rows):
        assert rig.segments.doom_segment(segment)
        rig.medium.release([segment])
        rig.segments.forget_segments([segment])


def begin_late(rig: Rig) -> tuple[LandedBatch, list[LandingId]]:
    """Stop the process right before it appends to a segment made ahead, until others have given everything back."""
    rig.put(copies(100))
    rig.clock.advance(OPTIONS.segment_age_ms)
    rig.log.tend()

    def others(segment: SegmentId) -> None:
        rig.medium.on_append = lambda segment: None
        others_give_back_all(rig)

    rig.medium.on_append = others
    return rig.land(copies(100, seed=1))


@pytest.mark.parametrize("by", ["the renewal of the lease", "the refused PUT", "the end of the process"])
def test_a_segment_that_is_begun_after_it_was_given_back_is_given_back_again(joined: Rig, by: str) -> None:
    landed, ids = begin_late(joined)
    assert list(joined.medium.segments()) == [segment_of(ids[0])]
    with pytest.raises(Transient):
        joined.segments.record([(ids[0], b"")])
    if by == "the renewal of the lease":
        held = joined.log._held
        assert held is not None
        assert not held.renew()  # in the background
        joined.log.tend()
        assert list(joined.medium.segments()) == [segment_of(ids[0])], "its batch is not settled"
    elif by == "the end of the process":
        joined.log._upkeep = lambda log: None
    landed.settle(ids)
    if by == "the end of the process":
        assert list(joined.medium.segments()) == [segment_of(ids[0])]
        joined.log.close()
    assert list(joined.medium.segments()) == []


def test_a_refused_put_costs_a_statement_only_in_a_segment_without_others(joined: Rig) -> None:
    landed, ids = joined.land(copies(100))
    joined.faults.calls.clear()
    landed.settle(ids)
    assert joined.faults.calls["renew_lease"] == 1
    joined.put(copies(100, seed=1))
    landed, ids = joined.land(copies(100, seed=2))
    landed.settle(ids)
    assert joined.faults.calls["renew_lease"] == 1
    joined.check()


def test_giving_back_what_was_begun_late_is_tried_again(joined: Rig) -> None:
    landed, ids = begin_late(joined)
    joined.log._renew_or_give_up()
    joined.faults.before["landing_segment"] += [Transient("away")]
    joined.faults.before["release"] += [Transient("away")]
    landed.settle(ids)
    for wait_ms in (0, RETRY_WAIT_MS):
        assert list(joined.medium.segments()) == [segment_of(ids[0])]
        joined.clock.advance(wait_ms)
        joined.log.tend()
    joined.clock.advance(2 * RETRY_WAIT_MS)
    assert joined.log._sealer.is_due()
    joined.log.tend()
    assert list(joined.medium.segments()) == []
    assert not joined.log._sealer.is_due()


@pytest.mark.parametrize("call", ["landing_segment", "release"])
def test_the_end_of_a_log_that_was_overtaken_leaves_nothing_behind(joined: Rig, call: str) -> None:
    """No process would look for a sealed, empty segment without a row."""

    def fails_once(segment: SegmentId) -> None:
        joined.medium.on_append = lambda segment: None
        raise Transient("time-out")

    joined.medium.on_append = fails_once
    joined.land(copies(100))
    others_give_back_all(joined)
    joined.faults.before[call] += [Transient("away")]
    joined.log.close()
    assert list(joined.medium.segments()) == []


def test_acknowledged_puts_are_not_given_back_with_a_lost_lease(joined: Rig) -> None:
    """Somebody has restored older metadata under a running process: its segments have no rows, but are needed."""
    ids = joined.put(copies(100))
    landed, more = joined.land(copies(100, seed=1))
    assert segment_of(more[0]) == segment_of(ids[0])
    joined.segments.leases.clear()
    joined.segments.rows.clear()
    joined.log._renew_or_give_up()
    landed.settle(more)
    joined.log.tend()
    joined.log.close()
    assert segment_of(ids[0]) in set(joined.medium.segments())


def test_a_segment_of_a_lost_lease_that_has_a_row_is_left_to_others(joined: Rig) -> None:
    landed, ids = joined.land(copies(100))
    lose_lease(joined)
    joined.log.tend()
    landed.settle(ids)
    joined.log.tend()
    assert segment_of(ids[0]) in set(joined.medium.segments())
    assert joined.segments.rows[segment_of(ids[0])].state is SegmentState.OPEN
    assert not joined.log._sealer.is_due()
