"""The landing log over a medium in memory: batches, segments, failures of every call, and threads (invariants 1, 8)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from nos_ec.bench.pipeline import bare_reads
from nos_ec.core.errors import Conflict, InvalidInput, LeaseLost, NosError, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import TYPE_PUT, decode_footer, decode_names, is_void, scan
from nos_ec.core.ids import LandingId, SegmentId, log_of, record_offset, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.landed_in_log import LandedInLog
from nos_ec.engine.landing.lander import LandedBatch, NewCopy
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.landing.log_recovery import BACK_OFF, LogRecovery
from nos_ec.engine.landing.log_segment import RETRY_WAIT_MS, LogSegment
from nos_ec.engine.landing.segment_maker import LEFT_MAX
from nos_ec.engine.landing.segment_seal import SegmentSeal
from nos_ec.ports.metadata import Lease
from nos_ec.ports.segment_medium import MediumLimits
from tests.rig.fakes.clock import SetClock
from tests.rig.fakes.faulty import faulty
from tests.rig.fakes.memory_medium import JOINED, SMALL, MemoryMedium, MemoryWriter
from tests.rig.waiting import WAIT_S_MAX
from tests.unit.engine.landing_rig import OPTIONS, Rig, copies, lose_lease, new_copy

pytestmark = pytest.mark.invariant(1, 8)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


# --- batches ------------------------------------------------------------------------------------------


def test_what_landed_reads_back(rig: Rig) -> None:
    new = copies(1, 8, 100, 3000)
    ids = rig.put(new)
    reader = LogReader(rig.medium)
    assert [reader.read(landing_id) for landing_id in ids] == [copy.data for copy in new]
    assert [log_of(segment_of(landing_id)) for landing_id in ids] == [0] * 4
    assert rig.medium.appends == 1
    rig.check()


def test_a_lone_put_costs_one_append_and_no_statement(rig: Rig) -> None:
    rig.put(copies(100))
    rig.faults.calls.clear()
    for number in range(5):
        rig.put(copies(100, seed=number))
    assert {name: calls for name, calls in rig.faults.calls.items() if calls} == {}
    assert rig.medium.appends == 6


def test_nothing_happens_before_the_first_put(rig: Rig) -> None:
    rig.log.tend()
    assert not rig.segments.leases
    assert not rig.segments.rows
    rig.log.close()
    with pytest.raises(Transient, match="closed"):
        rig.log.land(copies(1))


def test_records_carry_their_names(rig: Rig) -> None:
    (landing_id,) = rig.put([new_copy(b"data", "a/é")])
    segment = segment_of(landing_id)
    (found,) = scan(lambda at, size: rig.medium.read(segment, [(at, size)])[0], segment, 512, 16 << 10)
    assert (found.header.landing_id, found.data) == (landing_id, b"data")
    assert decode_names(found.names)[:2] == ("bucket", "a/é")


def test_a_batch_too_large_for_one_segment_takes_several(rig: Rig) -> None:
    new = copies(*[5000] * 9)
    ids = rig.put(new)
    assert len({segment_of(landing_id) for landing_id in ids}) == 3
    rig.check()


def test_a_record_too_large_for_any_segment_is_refused_alone(rig: Rig) -> None:
    landed, ids = rig.land(copies(100, 16 << 10, 200))
    assert [isinstance(outcome, InvalidInput) for outcome in landed.outcomes] == [False, True, False]
    assert len(ids) == 2
    landed.settle(())
    with pytest.raises(InvalidInput):
        rig.log.land(copies(16 << 10))


# --- segments -----------------------------------------------------------------------------------------


def test_a_full_segment_is_sealed_and_the_next_one_is_there_already(rig: Rig) -> None:
    made_while_landing = []
    for number in range(40):
        rig.faults.calls.clear()
        landed, ids = rig.land(copies(2000, seed=number))
        made_while_landing.append(rig.faults.calls["create"])
        rig.segments.record([(ids[0], copies(2000, seed=number)[0].data)])
        landed.settle(())
    assert made_while_landing == [1] + [0] * 39
    states = rig.states()
    assert states.count(SegmentState.OPEN) <= 2
    assert states.count(SegmentState.SEALED) >= 5
    rig.check()


def test_a_sealed_segment_has_a_footer_of_its_records(rig: Rig) -> None:
    ids = [landing_id for number in range(8) for landing_id in rig.put(copies(900, 30, seed=number))]
    rig.log.close()
    found = []
    for row in rig.segments.list_segments(None, 100):
        assert row.state is SegmentState.SEALED
        data = rig.medium.read(row.segment, [(row.end, 16 << 10)])[0]
        entries = decode_footer(data, row.segment, row.end) if row.records else []
        assert len(entries) == row.records
        found += [(entry.landing_id, entry.length) for entry in entries]
    assert found == [(landing_id, len(rig.segments.recorded[landing_id])) for landing_id in sorted(ids)]
    assert not rig.segments.leases


def test_records_are_numbered_in_the_order_of_the_log(rig: Rig) -> None:
    for number in range(8):
        rig.put(copies(900, 30, seed=number))
    rig.log.close()
    numbers = []
    for segment, row in sorted(rig.segments.rows.items()):

        def read(at: int, size: int, segment: SegmentId = segment) -> bytes:
            return rig.medium.read(segment, [(at, size)])[0]

        numbers += [one.header.lsn for one in scan(read, segment, 512, row.end)]
    assert len(numbers) == 16
    assert numbers == sorted(set(numbers))


def test_a_segment_with_a_failed_append_gets_no_footer(rig: Rig) -> None:
    """Its end is unknown: what failed may have been written, and a footer would lie over it or after a gap."""
    rig.put(copies(100))
    failing = [Transient("time-out")]

    def fail(segment: SegmentId) -> None:
        if failing:
            raise failing.pop()

    rig.medium.on_append = fail
    footers = {}
    seal = rig.medium.seal

    def sealed(segment: SegmentId, footer: Sequence[object] | None, records: int) -> int:
        footers[segment] = footer
        return seal(segment, footer, records)  # type: ignore[arg-type]

    rig.medium.seal = sealed  # type: ignore[method-assign]
    (first,) = sorted(rig.segments.rows)
    rig.put(copies(100, seed=1))
    rig.log.close()
    assert footers.pop(first) is None
    assert footers


def test_a_segment_is_sealed_in_the_metadata_only_when_its_batches_are_settled(rig: Rig) -> None:
    first, ids = rig.land(copies(2000))
    for number in range(10):
        rig.put(copies(2000, seed=number))
    row = rig.segments.rows[segment_of(ids[0])]
    assert row.state is SegmentState.OPEN
    with pytest.raises(Conflict):  # but it is sealed on the medium
        rig.medium.append(row.segment, rig.medium._disk[row.segment], 512, [bytes(512)])
    rig.segments.record([(ids[0], copies(2000)[0].data)])
    first.settle(())
    assert rig.segments.rows[row.segment].state is SegmentState.SEALED
    first.settle(())  # counts once
    rig.check()


def test_an_old_segment_is_sealed_after_its_batch_and_also_when_no_put_comes(rig: Rig) -> None:
    (first,) = rig.put(copies(100))
    rig.clock.advance(OPTIONS.segment_age_ms)
    (second,) = rig.put(copies(100, seed=1))
    assert segment_of(first) == segment_of(second)
    assert rig.segments.rows[segment_of(first)].state is SegmentState.SEALED
    rig.faults.calls.clear()
    (third,) = rig.put(copies(100, seed=2))
    assert not rig.faults.calls["create"], "the next one was made ahead"
    rig.clock.advance(OPTIONS.segment_age_ms)
    rig.log.tend()
    assert rig.segments.rows[segment_of(third)].state is SegmentState.SEALED


def test_a_young_segment_is_sealed_on_request_once_its_puts_are_recorded(rig: Rig) -> None:
    landed, (landing_id,) = rig.land(copies(100))
    row = rig.segments.rows[segment_of(landing_id)]
    rig.log.seal()
    assert row.state is SegmentState.OPEN
    rig.segments.record([(landing_id, copies(100)[0].data)])
    landed.settle(())
    assert rig.segments.rows[row.segment].state is SegmentState.SEALED
    sealed = rig.log.counters.sealed
    rig.log.seal()
    assert rig.log.counters.sealed == sealed, "a segment without PUTs stays"
    rig.check()


def test_parallel_batches_open_a_second_segment_and_a_lone_one_does_not(rig: Rig) -> None:
    rig.put(copies(100))
    assert len(rig.segments.rows) == 1
    under_way, go = threading.Semaphore(0), threading.Event()

    def hold(segment: SegmentId) -> None:
        under_way.release()
        assert go.wait(WAIT_S_MAX)

    rig.medium.on_append = hold
    with ThreadPoolExecutor(5) as pool:
        puts = [pool.submit(rig.put, copies(100, seed=number)) for number in range(5)]
        for _ in range(4):
            assert under_way.acquire(timeout=WAIT_S_MAX)
        assert not under_way.acquire(timeout=0.2), "more appends than the medium allows"
        go.set()
        ids = [put.result()[0] for put in puts]
    assert len({segment_of(landing_id) for landing_id in ids}) == 2
    assert rig.log.batches_max == 4
    rig.check()


# --- failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [0, 100, 1 << 20])
def test_a_failed_append_is_repeated_in_another_segment(rig: Rig, torn: int) -> None:
    (before,) = rig.put(copies(100))
    failing = [Transient("time-out")] * 2

    def fail(segment: SegmentId) -> None:
        if failing:
            raise failing.pop()

    rig.medium.on_append, rig.medium.tear = fail, lambda size: min(size, torn)
    ids = rig.put(copies(700, 800))
    assert segment_of(ids[0]) != segment_of(before)
    assert rig.medium.refused == 0
    assert rig.log.counters.failed == 2
    rig.check()
    rig.log.close()
    assert set(rig.states()) == {SegmentState.SEALED}


def test_a_third_failure_is_the_callers(rig: Rig) -> None:
    rig.put(copies(100))
    tries = []

    def fail(segment: SegmentId) -> None:
        tries.append(segment)
        raise Transient("time-out")

    rig.medium.on_append = fail
    with pytest.raises(Transient, match="time-out"):
        rig.land(copies(100))
    assert len(set(tries)) == 3


def test_no_space_after_an_append_that_may_be_done_is_not_the_answer(rig: Rig) -> None:
    """Otherwise another lander would take the batch, and the records that may be there would be forgotten."""
    calls = iter([Transient("time-out"), NoSpace("full")])

    def fail(segment: SegmentId) -> None:
        raise next(calls)

    rig.medium.on_append = fail
    with pytest.raises(Transient, match="outcome of an append is unknown"):
        rig.log.land(copies(10))


def test_records_that_cannot_be_made_void_when_their_segment_is_sealed_are_later(rig: Rig) -> None:
    rig.put(copies(10))
    landed, (refused,) = rig.land(copies(20))
    rig.faults.before["overwrite"] = [Transient("a device is away")] * 2
    assert list(landed.void([refused])) == [refused]
    landed.settle([refused])
    rig.log.seal()
    assert SegmentState.SEALED in rig.states()
    assert not is_void_record(rig, refused)
    LogRecovery(rig.segments, rig.medium, rig.clock).run_once(lambda _: None, fenced=True)
    assert is_void_record(rig, refused)
    sealed = [row for row in rig.segments.list_segments(None, 10) if row.state is SegmentState.SEALED]
    assert None not in [row.sealed_ms for row in sealed]
    rig.check()


def test_a_record_that_cannot_be_made_void_does_not_keep_the_others_from_it(rig: Rig) -> None:
    rig.put(copies(10))
    _, ids = rig.land(copies(*[20] * 5))
    (segment,) = {segment_of(one) for one in ids}
    rig.faults.before["overwrite"] = [Transient("first"), Transient("second")]
    sealing = SegmentSeal(rig.segments, faulty(rig.medium, rig.faults))
    end = rig.medium.seal(segment, None, 0)
    rig.segments.seal_segments([(segment, end, 0)], None)
    with pytest.raises(Transient, match="first"):
        sealing.void_unrecorded(segment, end, 0, rig.clock, lambda: True)
    assert [is_void_record(rig, one) for one in ids] == [False, False, True, True, True]
    assert rig.segments.rows[segment].sealed_ms is None
    sealing.void_unrecorded(segment, end, 0, rig.clock, lambda: True)
    assert all(is_void_record(rig, one) for one in ids)
    assert rig.segments.rows[segment].sealed_ms == rig.clock.now_ms()


@pytest.mark.parametrize(("each_ms", "tries"), [(0, 5), (4_000, 3), (30_000, 1)])
def test_a_store_that_does_not_answer_is_not_asked_about_each_record(rig: Rig, each_ms: int, tries: int) -> None:
    _, ids = rig.land(copies(*[20] * 5))
    segment = segment_of(ids[0])
    end = rig.medium.seal(segment, None, 0)
    rig.segments.seal_segments([(segment, end, 0)], None)
    rig.faults.before["overwrite"] = [Transient("time-out") for _ in ids]
    rig.faults.hook = lambda name: rig.clock.advance(each_ms if name == "overwrite" else 0)
    with pytest.raises(Transient, match="time-out"):
        SegmentSeal(rig.segments, faulty(rig.medium, rig.faults)).void_unrecorded(
            segment, end, 0, rig.clock, lambda: True
        )
    assert rig.faults.calls["overwrite"] == tries


def test_records_that_cannot_be_made_void_wait_for_longer_and_longer(rig: Rig) -> None:
    """They also do so while another segment is parked."""
    landed, (refused,) = rig.land(copies(20))
    landed.settle([refused])
    rig.clock.advance(OPTIONS.segment_age_ms)
    faults = rig.faults
    faults.before["overwrite"] = [Transient("a device is away")] * 4
    rig.log.seal()
    rig.put(copies(10))
    lose_lease(rig)
    faults.before["seal"] = [Transient("no answer")] * 100
    recovery = LogRecovery(faulty(rig.segments, faults), faulty(rig.medium, faults), rig.clock)
    tries, looks = [], []
    for _ in range(8):
        before = faults.calls.copy()
        recovery.run_once(lambda _: None, fenced=False)
        tries.append(faults.calls["overwrite"] - before["overwrite"])
        looks.append(int(faults.calls["list_segments"] > before["list_segments"]))
        rig.clock.advance(BACK_OFF.first_ms)
    assert tries == [1, 1, 0, 1, 0, 0, 0, 1]
    assert looks == tries, "it looks at the rows when something is due"
    assert is_void_record(rig, refused)
    assert rig.segments.rows[segment_of(refused)].sealed_ms is not None
    assert segment_of(refused) not in recovery.parked


def test_a_segment_that_others_have_made_void_is_no_longer_parked(rig: Rig) -> None:
    landed, (refused,) = rig.land(copies(20))
    landed.settle([refused])
    rig.clock.advance(OPTIONS.segment_age_ms)
    rig.faults.before["overwrite"] = [Transient("a device is away")] * 2
    rig.log.seal()
    recovery = LogRecovery(rig.segments, faulty(rig.medium, rig.faults), rig.clock)
    recovery.run_once(lambda _: None, fenced=True)
    assert [segment for segment, _ in recovery.parked] == [segment_of(refused)]
    LogRecovery(rig.segments, rig.medium, rig.clock).run_once(lambda _: None, fenced=True)
    rig.clock.advance(BACK_OFF.first_ms)
    recovery.run_once(lambda _: None, fenced=False)
    assert not recovery.parked


def is_void_record(rig: Rig, landing_id: LandingId) -> bool:
    segment, limits = segment_of(landing_id), rig.medium.limits
    read = lambda at, size: rig.medium.read(segment, [(at, size)])[0]  # noqa: E731
    found = [one for one in scan(read, segment, limits.start, limits.segment_bytes) if one.header.type == TYPE_PUT]
    (names,) = [one.names for one in found if one.header.landing_id == landing_id]
    return is_void(names)


def test_no_space_is_not_repeated(rig: Rig) -> None:
    rig.put(copies(100))
    tries = []

    def fail(segment: SegmentId) -> None:
        tries.append(segment)
        raise NoSpace("full")

    rig.medium.on_append = fail
    with pytest.raises(NoSpace):
        rig.land(copies(100))
    assert len(tries) == 1


def test_no_room_for_a_segment_is_no_space_and_asks_no_database(rig: Rig) -> None:
    small = Rig(MemoryMedium(segments_max=2))
    for number in range(4):
        small.put(copies(3000, 3000, seed=number))
    small.faults.calls.clear()
    for _ in range(3):
        with pytest.raises(NoSpace, match="no room"):
            small.log.land(copies(3000, 3000))
    assert small.faults.calls["open_segment"] == 0
    small.medium.release([next(iter(sorted(small.segments.rows)))])
    small.segments.recorded.clear()
    with pytest.raises(NoSpace, match="trying again"):
        small.log.land(copies(3000, 3000))
    small.clock.advance(60_000)
    small.put(copies(3000, 3000))
    small.close()


def test_a_log_that_is_full_again_and_again_warns_once_a_minute() -> None:
    small = Rig(MemoryMedium(segments_max=2))

    def fill() -> None:
        for number in range(5):
            small.put(copies(3000, 3000, seed=number))

    with capture_logs() as lines:
        for _ in range(9):
            with pytest.raises(NoSpace):
                fill()
            small.medium.release([next(iter(sorted(small.segments.rows)))])
            small.segments.recorded.clear()
            small.clock.advance(10_000)
    assert [line["event"] for line in lines] == ["could not open a landing segment"] * 2
    small.close()


CALLS = ["list_leases", "acquire_lease", "open_segments_of_log", "open_segment", "create", "seal", "seal_segments"]


@pytest.mark.parametrize("limits", [SMALL, JOINED], ids=["writes of their own", "joined"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [Transient("lost"), NoSpace("full")])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_may_fail(call: str, error: NosError, when: str, limits: MediumLimits) -> None:
    """Whatever fails, and whether or not it was done: nothing acknowledged is lost, and all is put right later."""
    rig = Rig(MemoryMedium(limits=limits))
    refused = 0
    for number in range(30):
        if number in (0, 4, 11, 17):
            getattr(rig.faults, when)[call] += [type(error)(str(error))]
        try:
            rig.put(copies(1500, 1500, seed=number))
        except type(error):
            refused += 1
        rig.check()
        rig.clock.advance(1500)
    assert refused <= 8
    assert len(rig.segments.recorded) == 2 * (30 - refused)
    rig.clock.advance(120_000)
    rig.log.tend()
    rig.close()
    left = [row for row in rig.segments.rows.values() if row.state is SegmentState.OPEN]
    if left:  # its lease was taken and the answer lost, or something could not be sealed: recovery is next
        assert rig.segments.leases
    for name in list(rig.segments.leases):
        rig.fence(int(name.rpartition("-")[2]))
    assert set(rig.states()) == {SegmentState.SEALED}
    rig.check()


@pytest.mark.parametrize("limits", [SMALL, JOINED], ids=["writes of their own", "joined"])
def test_a_segment_whose_row_was_not_inserted_leaves_nothing(limits: MediumLimits) -> None:
    """This holds although the metadata is away until the log ends: without a row, the segment would never be given
    back."""
    rig = Rig(MemoryMedium(limits=limits))
    rig.put(copies(100))
    for call in ("open_segment", "seal_segments", "landing_segment"):
        rig.faults.before[call] += [Transient("away")] * 1000
    for number in range(20):
        with suppress(Transient):
            rig.put(copies(3000, seed=number))
        rig.log.tend()
        rig.clock.advance(30_000)
    rig.log.close()
    assert rig.faults.calls["open_segment"] > 1
    assert set(rig.medium.segments()) <= rig.segments.rows.keys()


def test_what_cannot_be_sealed_at_the_end_is_left_to_recovery(rig: Rig) -> None:
    rig.put(copies(100))
    rig.faults.before["seal_segments"] += [Transient("away")]
    rig.log.close()
    assert list(rig.segments.leases) == ["landing-log-0"], (
        "the lease expires, and the process that fences it seals the segment"
    )
    assert rig.states() == [SegmentState.OPEN]
    rig.fence()
    assert rig.states() == [SegmentState.SEALED]


def test_a_batch_that_is_never_settled_keeps_its_segment_open(rig: Rig) -> None:
    _, ids = rig.land(copies(100))
    rig.log.close()
    assert rig.segments.leases
    assert rig.segments.rows[segment_of(ids[0])].state is SegmentState.OPEN
    rig.fence()
    with pytest.raises(Transient):
        rig.segments.record([(ids[0], b"")])


def test_segments_that_cannot_be_sealed_are_bounded(rig: Rig) -> None:
    rig.faults.before["seal"] = [Transient("away")] * 10_000
    batches = (copies(*[1500] * 8, seed=number) for number in range(3 * LEFT_MAX))
    with pytest.raises(Transient, match="wait to be sealed"):
        deque(map(rig.put, batches), maxlen=0)
    assert len(rig.segments.rows) <= LEFT_MAX + 4
    rig.faults.before.clear()
    rig.clock.advance(60_000)
    rig.log.tend()
    rig.put(copies(100))


def test_an_interrupted_append_leaves_its_segment(rig: Rig) -> None:
    (before,) = rig.put(copies(100))

    def interrupt(segment: SegmentId) -> None:
        rig.medium.on_append = lambda segment: None
        raise KeyboardInterrupt

    rig.medium.on_append = interrupt
    with pytest.raises(KeyboardInterrupt):
        rig.land(copies(100))
    (after,) = rig.put(copies(100))
    assert segment_of(before) != segment_of(after)
    rig.log.close()
    assert set(rig.states()) == {SegmentState.SEALED}


# --- leases -------------------------------------------------------------------------------------------


def test_each_log_has_a_number_of_its_own(rig: Rig) -> None:
    first = rig.put(copies(1))
    rig.log = rig.opened()
    second = rig.put(copies(1))
    assert [log_of(segment_of(ids[0])) for ids in (first, second)] == [0, 1]
    rig.logs[0].close()
    rig.log = rig.opened()
    assert log_of(segment_of(rig.put(copies(1))[0])) == 0
    rig.check()


def test_the_lease_of_a_log_has_no_note_of_its_holder(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways have no right to write such notes."""
    holders: list[str] = []
    acquire = rig.segments.acquire_lease

    def noting(name: str, now_ms: int, ttl_ms: int, holder: str = "") -> Lease:
        holders.append(holder)
        return acquire(name, now_ms, ttl_ms, holder)

    monkeypatch.setattr(rig.segments, "acquire_lease", noting)
    rig.put(copies(1))
    assert holders == [""]


def test_no_segment_id_is_given_twice_while_the_clock_stands_still(rig: Rig) -> None:
    """The segment of the first log was released and forgotten, so only its id distinguishes it from the next log's
    segment."""
    (before,) = rig.put(copies(1))
    rig.logs[0].close()
    segment = segment_of(before)
    rig.medium.release([segment])
    del rig.segments.rows[segment]
    rig.log = rig.opened()
    (after,) = rig.put(copies(1))
    assert log_of(segment_of(after)) == log_of(segment) == 0
    assert segment_of(after) != segment


def test_a_fenced_log_goes_on_under_a_new_lease(rig: Rig) -> None:
    (before,) = rig.put(copies(100))
    late, ids = rig.land(copies(100, seed=1))
    rig.fence()
    (after,) = rig.put(copies(100, seed=2))
    assert segment_of(after) != segment_of(before)
    assert rig.segments.leases["landing-log-0"].epoch == 2
    with pytest.raises(Transient):
        rig.segments.record([(ids[0], b"")])
    late.settle(ids)
    rig.check()
    assert rig.log.counters.failed == 1


def test_a_log_that_knows_its_lease_is_lost_appends_to_no_old_segment(rig: Rig) -> None:
    (before,) = rig.put(copies(100))
    lose_lease(rig)
    (after,) = rig.put(copies(100, seed=1))
    assert segment_of(after) != segment_of(before)
    assert rig.segments.rows[segment_of(after)].epoch == 2
    assert rig.log.counters.failed == 0


def test_upkeep_parts_a_log_from_a_lost_lease(rig: Rig) -> None:
    (before,) = rig.put(copies(100))
    lose_lease(rig)
    rig.log.tend()
    rig.log.seal()
    assert rig.segments.rows[segment_of(before)].state is SegmentState.OPEN, (
        "the process that fenced the lease seals it"
    )
    assert rig.faults.calls["seal"] == 0


def test_a_segment_that_was_made_under_a_lost_lease_is_not_used(rig: Rig) -> None:
    rig.put(copies(100))
    made: list[SegmentId] = []
    make = rig.log._maker.make_segment

    def make_late(take_lease: Callable[[], tuple[Lease, int]], first_lsn: int) -> LogSegment:
        segment = make(take_lease, first_lsn)
        made.append(segment.id)
        lose_lease(rig)
        rig.log._give_up(rig.log._held)  # type: ignore[arg-type]
        return segment

    rig.log._maker.make_segment = make_late  # type: ignore[method-assign]
    for index in range(OPTIONS.open_segments):
        rig.log._open_segments[index] = None
    rig.log._make_ahead()
    rig.log._maker.make_segment = make  # type: ignore[method-assign]
    (after,) = rig.put(copies(100, seed=1))
    assert len(made) == 1
    assert segment_of(after) not in made
    assert rig.segments.rows[segment_of(after)].epoch == 2


def test_a_spare_segment_of_an_earlier_lease_is_not_used(rig: Rig) -> None:
    rig.put(copies(100))
    held = rig.log._held
    assert held is not None
    for epoch, taken in ((held.lease.epoch - 1, 0), (held.lease.epoch, 1)):
        segment = LogSegment(
            SegmentId(bytes(8)), rig.medium.create(SegmentId(bytes([epoch] * 8)), epoch, 0), SMALL, epoch
        )
        spares = len(rig.log._spares)
        with rig.log._changed:
            rig.log._add_spare(segment)
        assert len(rig.log._spares) == spares + taken
        assert (segment.writer is not None) == bool(taken), "its file was left open"
    rig.log._spares.clear()


def test_a_segment_is_not_sealed_while_an_append_is_under_way() -> None:
    """Another append in it has failed, so that it takes no further batch."""
    rig = Rig(options=replace(OPTIONS, open_segments=1))
    go, entered = threading.Event(), threading.Event()

    def hold(segment: SegmentId) -> None:
        if entered.is_set():
            rig.medium.on_append = lambda segment: None
            raise Transient("away")
        entered.set()
        assert go.wait(WAIT_S_MAX)

    rig.medium.on_append = hold
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rig.put, copies(100))
        assert entered.wait(WAIT_S_MAX)
        try:
            rig.put(copies(100, seed=1))
            rig.log.tend()
            assert rig.faults.calls["seal"] == 0
        finally:
            go.set()
        (held,) = first.result()
    rig.log.tend()
    assert rig.segments.rows[segment_of(held)].state is SegmentState.SEALED
    rig.close()
    rig.check()


def test_sealing_is_tried_again_after_a_while(rig: Rig) -> None:
    (landing_id,) = rig.put(copies(100))
    rig.clock.advance(OPTIONS.segment_age_ms)
    rig.faults.before["seal"] += [Transient("away")] * 2
    for wait_ms in (RETRY_WAIT_MS, 2 * RETRY_WAIT_MS):
        rig.log.tend()
        calls = rig.faults.calls["seal"]
        rig.clock.advance(wait_ms - 1)
        rig.log.tend()
        assert rig.faults.calls["seal"] == calls, "it was tried again too soon"
        assert not rig.log._sealer.is_due()
        rig.clock.advance(1)
        assert rig.log._sealer.is_due()
    rig.log.tend()
    assert rig.segments.rows[segment_of(landing_id)].state is SegmentState.SEALED


def test_a_lease_that_is_lost_while_a_segment_is_made(rig: Rig) -> None:
    rig.put(copies(100))
    rig.faults.before["open_segment"] += [LeaseLost("fenced")]
    for number in range(10):
        rig.put(copies(3000, seed=number))
    rig.check()
    rig.log.close()
    for row in rig.segments.rows.values():
        assert row.state is SegmentState.SEALED or row.epoch == 1


def test_a_segment_that_is_created_too_late_is_not_left_behind(rig: Rig) -> None:
    """The process is stopped before it creates it. Meanwhile others fence the log, and forget the row."""
    create = rig.medium.create

    def create_late(segment: SegmentId, epoch: int, first_lsn: int) -> MemoryWriter:
        rig.medium.create = create  # type: ignore[method-assign]
        rig.segments.leases.clear()
        rig.segments.rows.clear()
        return create(segment, epoch, first_lsn)

    rig.medium.create = create_late  # type: ignore[method-assign]
    rig.put(copies(100))
    assert set(rig.medium.segments()) == set(rig.segments.rows)
    rig.check()


def test_what_an_earlier_holder_of_the_number_left_is_sealed(rig: Rig) -> None:
    rig.put(copies(100))
    rig.segments.leases.clear()  # and recovery dies before it seals
    rig.log = rig.opened()
    rig.put(copies(100, seed=1))
    assert rig.states()[0] is SegmentState.SEALED
    rig.check()


def test_a_clock_that_was_set_back_gives_no_id_twice(rig: Rig) -> None:
    clock = rig.clock
    ids = rig.put(copies(100))
    rig.log.close()
    rig.clock = SetClock(clock.now_ms())  # the same time again
    rig.log = rig.opened()
    ids += rig.put(copies(100, seed=1))
    assert len({segment_of(landing_id) for landing_id in ids}) == 2
    rig.check()


# --- threads ------------------------------------------------------------------------------------------


def test_many_threads(rig: Rig) -> None:
    """8 threads put batches while appends fail at random, and try again later; sealing never comes before settling."""
    chance, lock = Random(7), threading.Lock()
    unsettled: dict[SegmentId, int] = {}
    too_early: list[SegmentId] = []

    def sealing(segment: SegmentId) -> None:
        with lock:
            if unsettled.get(segment, 0):
                too_early.append(segment)

    def fail(segment: SegmentId) -> None:
        with lock:
            if chance.random() < 0.05:
                raise Transient("time-out")

    rig.segments.on_seal = sealing
    rig.medium.on_append, rig.medium.tear = fail, lambda size: size // 2

    def land(new: Sequence[NewCopy]) -> tuple[LandedBatch, list[LandingId]]:
        while True:
            try:
                return rig.land(new)
            except Transient:
                rig.clock.advance(RETRY_WAIT_MS)
                rig.log.tend()

    def work(thread: int) -> None:
        for number in range(40):
            new = copies(*[Random(f"{thread} {number}").randrange(1, 2000)] * 3, seed=thread)
            landed, ids = land(new)
            with lock:
                for segment in {segment_of(landing_id) for landing_id in ids}:
                    unsettled[segment] = unsettled.get(segment, 0) + 1
            rig.segments.record([(landing_id, copy.data) for landing_id, copy in zip(ids, new, strict=True)])
            with lock:
                for segment in {segment_of(landing_id) for landing_id in ids}:
                    unsettled[segment] -= 1
            landed.settle(())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(rig.segments.recorded) == 3 * 8 * 40
    assert not too_early
    rig.check()
    rig.log.close()
    assert set(rig.states()) == {SegmentState.SEALED}
    assert not rig.segments.leases


def test_a_busy_log_is_waited_for_only_so_long() -> None:
    rig = Rig(MemoryMedium(limits=replace(SMALL, writes_max=1)), replace(OPTIONS, open_segments=1, wait_ms=50))
    go, entered = threading.Event(), threading.Event()

    def hold(segment: SegmentId) -> None:
        entered.set()
        assert go.wait(WAIT_S_MAX)

    rig.medium.on_append = hold
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rig.put, copies(100))
        assert entered.wait(WAIT_S_MAX)
        with pytest.raises(Transient, match="no open segment"):
            rig.land(copies(100))
        go.set()
        first.result()
    rig.close()
    rig.check()


def test_changes_do_not_prolong_the_wait_for_an_open_segment() -> None:
    rig = Rig(MemoryMedium(limits=replace(SMALL, writes_max=1)), replace(OPTIONS, open_segments=1))
    go, entered = threading.Event(), threading.Event()

    def hold(segment: SegmentId) -> None:
        entered.set()
        assert go.wait(WAIT_S_MAX)

    rig.medium.on_append = hold
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rig.put, copies(100))
        assert entered.wait(WAIT_S_MAX)
        second = pool.submit(rig.land, copies(100))
        try:
            for _ in range(4):
                while not rig.log._changed._waiters and not second.done():  # type: ignore[attr-defined]
                    time.sleep(0.001)
                rig.clock.advance(OPTIONS.wait_ms // 4)
                with rig.log._changed:
                    rig.log._changed.notify_all()
            with pytest.raises(Transient, match="no open segment"):
                second.result(OPTIONS.wait_ms / 2000)
        finally:
            go.set()
        first.result()
    rig.close()
    rig.check()


# --- reading ------------------------------------------------------------------------------------------


class CountedReads(MemoryMedium):
    """Counts reads, and damages them."""

    def __init__(self, copies: int = 1) -> None:
        super().__init__(limits=replace(SMALL, segment_bytes=1 << 20, copies=copies))
        self.reads: list[tuple[SegmentId, list[tuple[int, int]], int]] = []
        self.damage: Callable[[bytes, int], bytes] = lambda data, copy: data

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        self.reads.append((segment, list(ranges), copy))
        return [self.damage(data, copy) for data in super().read(segment, ranges, copy)]


def test_a_record_is_read_with_one_operation() -> None:
    medium = CountedReads()
    rig = Rig(medium)
    new = copies(100, 200_000, 5)
    ids = rig.put(new)
    reader = LogReader(medium)
    for landing_id, copy in zip(ids, new, strict=True):
        medium.reads.clear()
        size = len(copy.data)
        assert reader.read_range(landing_id, 0, size) == copy.data
        assert reader.read_range(landing_id, 3, 2) == copy.data[3:5]
        assert reader.read_range(landing_id, size, 0) == b""
        assert len(medium.reads) == 3
        assert reader.read(landing_id) == copy.data
        assert len(medium.reads) == (5 if size > 64 << 10 else 4)
        for offset, length in ((0, size + 1), (size, 1), (size + 500, 0)):
            with pytest.raises(NosError, match="bytes, not") as refused:
                reader.read_range(landing_id, offset, length)
            assert refused.value.landing_id == landing_id
        with pytest.raises(ValueError, match="range of"):
            reader.read_range(landing_id, -1, 1)
    rig.close()


def test_records_are_read_in_runs() -> None:
    medium = CountedReads()
    rig = Rig(medium)
    ids, data = [], []
    for number in range(6):
        new = copies(*[3000] * 5, seed=number)
        ids += rig.put(new)
        data += [copy.data for copy in new]
    order = Random(1).sample(range(30), 30)
    medium.reads.clear()
    wanted = [(ids[i], 3000) for i in order]
    assert LogReader(medium).read_records(wanted) == [data[i] for i in order]
    assert len(medium.reads) == 1
    assert len(medium.reads[0][1]) == 1
    assert LogReader(medium).read_records([]) == []
    rig.close()


def test_the_floor_of_bench_pipeline_reads_the_same_runs() -> None:
    medium = CountedReads()
    rig = Rig(medium)
    sizes = [3000, 200_000, 5, 70_000, 3000] * 12
    ids = [one for number, size in enumerate(sizes) for one in rig.put(copies(size, seed=number))]
    wanted = list(zip(ids, sizes, strict=True))[::2]
    medium.reads.clear()
    LogReader(medium).read_records(wanted)
    read = [(f"log.{segment.hex()}", *place) for segment, ranges, _ in medium.reads for place in ranges]
    assert bare_reads(wanted) == read
    assert 1 < len(read) < len(wanted)
    rig.close()


def test_another_copy_is_read_where_one_is_damaged() -> None:
    medium = CountedReads(copies=2)
    rig = Rig(medium)
    new = copies(100, 300)
    ids = rig.put(new)
    reader = LogReader(medium)
    for at in (20, 70):
        medium.damage = (
            lambda data, copy, at=at: (  # type: ignore[misc]
                data if copy else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if len(data) > at else data
            )
        )
        assert reader.read_records([(ids[0], 100), (ids[1], 300)]) == [copy.data for copy in new]
        assert reader.read(ids[0]) == new[0].data
        assert reader.read_range(ids[0], 0, 100) == new[0].data
    medium.damage = lambda data, copy: b"x" + data[1:]
    first, second = reader.read_records([(ids[0], 100), (ids[1], 300)])
    assert isinstance(first, NosError)
    assert "no magic" in str(first)
    assert second == new[1].data
    with pytest.raises(NosError, match="no magic"):
        reader.read(ids[0])
    rig.close()


def test_a_read_never_gives_another_records_bytes(rig: Rig) -> None:
    (landing_id,) = rig.put(copies(100))
    reader, segment, place = LogReader(rig.medium), segment_of(landing_id), record_offset(landing_id)
    other_nonce = LandingId(landing_id[:-4] + b"none")
    with pytest.raises(NosError, match="in its place"):
        reader.read(other_nonce)
    log = rig.log
    log.close()
    rig.medium.release([segment])
    with pytest.raises(NotFound) as gone:
        reader.read(landing_id)
    assert gone.value.landing_id == landing_id
    (outcome,) = reader.read_records([(landing_id, 100)])
    assert isinstance(outcome, NotFound)
    rig.log = rig.opened()
    rig.clock.advance(10)
    (other,) = rig.put(copies(100, seed=5))
    assert record_offset(other) == place
    rig.medium._disk[segment] = rig.medium._disk[segment_of(other)]  # a slot that is used again while it is read
    with pytest.raises(NotFound, match="has taken its place"):
        reader.read(landing_id)


def test_the_outcome_of_a_batch_without_copies() -> None:
    rig = Rig()
    landed = rig.log.land([])
    assert isinstance(landed, LandedInLog)
    assert landed.outcomes == []
    landed.settle(())
    rig.close()
