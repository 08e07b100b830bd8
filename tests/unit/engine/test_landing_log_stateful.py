"""Random histories of landing logs: put, settle late, seal, lose power, fence, recover, trim (invariants 1, 2 and 8).

The medium keeps a batch only if its append was done, or tears it; or its appends create and seal segments. After each
step every recorded record reads back, no id was given twice, and no row of a segment is SEALED while its log may still
record PUTs in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import google_crc32c
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from nos_ec.core.errors import NosError, NoSpace, Transient
from nos_ec.core.formats.landing_format import decode_footer, scan
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.lander import LandedBatch, NewCopy
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.log_lease import LEASE_PREFIX
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.landing.segment_seal import SegmentSeal
from tests.rig.fakes.clock import SetClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.fakes.memory_medium import JOINED, SMALL, MemoryMedium
from tests.rig.fakes.memory_segments import MemorySegments

OPTIONS = LogOptions(open_segments=2, segment_age_ms=60_000, lease_ttl_ms=30_000, wait_ms=1_000)
CALLS = ["create", "seal", "open_segment", "seal_segments", "list_leases", "acquire_lease", "renew_lease"]
CALLS += ["landing_segment", "release"]
ERRORS = st.sampled_from([Transient, NoSpace])
SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=4)


@dataclass(eq=False)
class Process:
    """A process with a log. dead: lost power, so its log is never called again."""

    log: LandingLog
    faults: Faults
    medium: MemoryMedium
    dead: bool = False


@dataclass(eq=False)
class Batch:
    """A batch that landed and is not settled."""

    process: Process
    landed: LandedBatch
    records: list[tuple[LandingId, bytes]]


class LandingLogMachine(RuleBasedStateMachine):
    """The rules. Process 0 and 1 share medium and metadata; a dead one is replaced."""

    batches = Bundle("batches")
    limits = SMALL

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock()
        self.disk = MemoryMedium(limits=self.limits, segments_max=60)
        self.segments = MemorySegments()
        self.chance = Random(5)
        self.ids: set[LandingId] = set()
        self.unsettled: list[Batch] = []
        self.cut_off: set[SegmentId] = set()
        """Segments of batches that were not settled when their process ended. One that was fenced before such a batch
        was appended may leave a segment with records and without a row, which `UnknownSegments` keeps and reports."""
        self.fenced: set[int] = set()
        """Epochs of leases that recovery has taken away."""
        self.too_early: list[SegmentId] = []
        self.segments.on_seal = self.sealing
        self.every: list[Process] = []
        self.processes = [self.start(), self.start()]

    def start(self) -> Process:
        faults, medium = Faults(), self.disk.reopened()
        log = LandingLog(
            faulty(self.segments, faults), faulty(medium, faults), self.clock, self.chance.randbytes, OPTIONS
        )
        process = Process(log, faults, medium)
        self.every.append(process)
        return process

    def sealing(self, segment: SegmentId) -> None:
        """A log that has its lease seals a row only after all of its batches are settled."""
        if self.segments.rows[segment].epoch in self.fenced:
            return
        if any(segment_of(landing_id) == segment for batch in self.unsettled for landing_id, _ in batch.records):
            self.too_early.append(segment)

    # --- PUT ------------------------------------------------------------------------------------------
    @rule(target=batches, who=st.integers(0, 1), sizes=SIZES, torn=st.none() | st.integers(0, 4000))
    def land(self, who: int, sizes: list[int], torn: int | None) -> object:
        """Land a batch; if `torn` is given, its first append fails and leaves this many bytes."""
        process = self.processes[who]
        new = [
            NewCopy(ObjectKey("b", str(number)), data, google_crc32c.value(data))
            for number, data in enumerate(self.chance.randbytes(size) for size in sizes)
        ]
        if torn is not None:
            process.medium.tear = lambda size: min(size, torn)
            process.medium.on_append = lambda segment: self.fail_once(process)
        try:
            landed = process.log.land(new)
        except Transient:
            return multiple()
        finally:
            process.medium.on_append = lambda segment: None
        ids = [outcome for outcome in landed.outcomes if not isinstance(outcome, NosError)]
        assert len(ids) == len(new)
        assert not self.ids.intersection(ids), "an id was given twice"
        self.ids.update(ids)
        batch = Batch(process, landed, [(one, copy.data) for one, copy in zip(ids, new, strict=True)])
        self.unsettled.append(batch)
        return batch

    def fail_once(self, process: Process) -> None:
        process.medium.on_append = lambda segment: None
        raise Transient("time-out")

    @rule(batch=consumes(batches), answer=st.sampled_from(["recorded", "lost", "given up"]))
    def settle(self, batch: Batch, answer: str) -> None:
        """Record a batch and settle it; or the answer is lost and the caller gives up; or it never tries."""
        if batch.process.dead:
            return
        recorded = False
        if answer != "given up":
            try:
                self.segments.record(batch.records)
                recorded = answer == "recorded"
            except Transient:
                # Refused only when the log was fenced.
                segments = {segment_of(landing_id) for landing_id, _ in batch.records}
                assert any(
                    segment not in self.segments.rows or self.segments.rows[segment].epoch in self.fenced
                    for segment in segments
                )
        self.unsettled.remove(batch)
        batch.landed.settle(() if recorded else [landing_id for landing_id, _ in batch.records])

    # --- time and failures ----------------------------------------------------------------------------
    @rule(who=st.integers(0, 1), seconds=st.sampled_from([1, 20, 61]))
    def tend(self, who: int, seconds: int) -> None:
        """Let time pass, and let the log's own thread run."""
        self.clock.advance(1000 * seconds)
        self.processes[who].log.tend()

    @rule(
        who=st.integers(0, 1),
        call=st.sampled_from(CALLS),
        done=st.booleans(),
        error=st.sampled_from([Transient, NoSpace]),
    )
    def fail(self, who: int, call: str, done: bool, error: type[NosError]) -> None:
        """The next such call fails, after or before it is done."""
        faults = self.processes[who].faults
        (faults.after if done else faults.before)[call][:] = [error("not now")]

    # --- processes ------------------------------------------------------------------------------------
    def cut(self, process: Process) -> None:
        """Note which segments hold batches of a process that ends."""
        batches = [batch for batch in self.unsettled if batch.process is process]
        self.cut_off.update(segment_of(landing_id) for batch in batches for landing_id, _ in batch.records)

    @rule(who=st.integers(0, 1))
    def close(self, who: int) -> None:
        """A process ends in order, and another one starts."""
        self.cut(self.processes[who])
        self.processes[who].log.close()
        self.processes[who] = self.start()

    @rule(who=st.integers(0, 1))
    def crash(self, who: int) -> None:
        """A process loses power: what it had landed and not recorded belongs to no object."""
        process = self.processes[who]
        process.dead = True
        self.cut(process)
        self.unsettled = [batch for batch in self.unsettled if batch.process is not process]
        self.processes[who] = self.start()

    @rule(pick=st.integers(0, 5))
    def fence(self, pick: int) -> None:
        """Recovery takes a lease away, of a dead process or of one that stalled, and seals what it left."""
        leases = self.segments.list_leases(LEASE_PREFIX)
        if not leases:
            return
        lease = leases[pick % len(leases)]
        self.fenced.add(lease.epoch)
        del self.segments.leases[lease.name]
        for row in self.segments.open_segments_of_log(int(lease.name.removeprefix(LEASE_PREFIX)), lease.epoch):
            end = SegmentSeal(self.segments, self.disk).seal(row.segment)
            self.segments.seal_segments([(row.segment, end, 0)], self.clock.now_ms())

    # --- packing and trim -----------------------------------------------------------------------------
    @rule(share=st.floats(0, 1))
    def pack(self, share: float) -> None:
        """Some of what was recorded is packed and verified: nothing refers to its record any more."""
        for landing_id in list(self.segments.recorded):
            row = self.segments.rows[segment_of(landing_id)]
            if row.state is not SegmentState.OPEN and self.chance.random() < share:
                del self.segments.recorded[landing_id]

    @rule()
    def trim(self) -> None:
        """Give back what nothing refers to."""
        for row in self.segments.list_segments(None, 1000):
            if row.segment in self.segments.releasable_segments([row.segment]):
                assert self.segments.doom_segment(row.segment)
                self.disk.release([row.segment])
                self.segments.forget_segments([row.segment])

    # --- what must hold -------------------------------------------------------------------------------
    @invariant()
    def reads_back(self) -> None:
        recorded = self.segments.recorded
        found = LogReader(self.disk).read_records([(one, len(data)) for one, data in recorded.items()])
        assert found == list(recorded.values())

    @invariant()
    def sealed_only_when_settled(self) -> None:
        assert not self.too_early

    @invariant()
    def no_append_after_an_error(self) -> None:
        assert not any(process.medium.refused for process in self.every)

    def teardown(self) -> None:
        """In the end all is found by scans and footers, and nothing is left open."""
        for process in self.every:
            process.faults.before.clear()
            process.faults.after.clear()
        for process in self.processes:
            self.clock.advance(120_000)
            self.cut(process)
            process.log.close()
        while self.segments.leases:
            self.fence(0)
        for row in self.segments.rows.values():
            # A row whose opening was answered too late stays OPEN until the next log of this number.
            assert row.state is not SegmentState.OPEN or row.epoch not in self.fenced
        self.reads_back()
        by_scan: set[LandingId] = set()
        for segment in self.disk.segments():
            if segment in self.cut_off and segment not in self.segments.rows:
                continue
            assert segment in self.segments.rows, f"segment {segment.hex()} has no row: it is never given back"

            def read(offset: int, length: int, segment: SegmentId = segment) -> bytes:
                return self.disk.read(segment, [(offset, length)])[0]

            row = self.segments.rows[segment]
            found = {one.header.landing_id for one in scan(read, segment, 512, row.end)}
            by_scan |= found
            footer = read(row.end, 1 << 20)
            if footer:
                assert {entry.landing_id for entry in decode_footer(footer, segment, row.end)} == found
        assert set(self.segments.recorded) <= by_scan


class JoinedLogMachine(LandingLogMachine):
    """Where the first append creates a segment, and the last one can seal it."""

    limits = JOINED


TestLandingLog = LandingLogMachine.TestCase
TestLandingLog.settings = settings(deadline=None, max_examples=60, stateful_step_count=60)
TestLandingLog = pytest.mark.invariant(1, 2, 8)(TestLandingLog)
TestJoinedLog = JoinedLogMachine.TestCase
TestJoinedLog.settings = TestLandingLog.settings
TestJoinedLog = pytest.mark.invariant(1, 2, 8)(TestJoinedLog)
