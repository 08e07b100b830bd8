"""The upkeep of the landing log: who does it, and that no PUT waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import google_crc32c
import pytest

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.landing_log import CLOSE_MS, LandingLog, LogOptions
from nos_ec.engine.landing.log_keeper import LogKeeper
from nos_ec.ports.segment_medium import SegmentWriter
from tests.rig import waiting
from tests.rig.fakes.clock import SetClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.fakes.memory_medium import MemoryMedium
from tests.rig.fakes.memory_segments import MemorySegments

pytestmark = pytest.mark.invariant(1, 8)

AGE_MS = 60_000
WAIT_S = 20
until = partial(waiting.until, wait_s=WAIT_S)


class Steps(SetClock):
    """The keeper's waits end when it is woken, or by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.step = threading.Event()

    def wait(self, stop: threading.Event, wait_ms: int) -> bool:
        if wait_ms != AGE_MS:
            return stop.wait()
        while not stop.wait(0.005) and not self.step.is_set():
            pass
        self.step.clear()
        return stop.is_set()


class Rig:
    """A log with a keeper, whose medium a test can stop."""

    def __init__(self, upkeep: Callable[[LandingLog], None] | None = None) -> None:
        self.clock = Steps()
        self.medium = MemoryMedium()
        self.segments = MemorySegments()
        self.faults = Faults()
        self.keeper = LogKeeper(self.clock, AGE_MS)
        self.told = 0
        self.log = LandingLog(
            faulty(self.segments, self.faults),
            self.medium,
            self.clock,
            Random(1).randbytes,
            LogOptions(open_segments=2, segment_age_ms=AGE_MS, lease_ttl_ms=30_000, wait_ms=10_000),
            upkeep=upkeep or self.tell,
        )

    def tell(self, log: LandingLog) -> None:
        self.told += 1
        self.keeper.wake(log)

    def put(self, size: int = 100) -> LandingId:
        data = bytes(size)
        landed = self.log.land([NewCopy(ObjectKey("b", "n"), data, google_crc32c.value(data))])
        (landing_id,) = landed.outcomes
        assert not isinstance(landing_id, NosError)
        self.segments.record([(landing_id, data)])
        landed.settle(())
        return landing_id

    def close(self) -> None:
        self.log.close()
        self.keeper.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_no_put_waits_for_a_seal_or_the_next_segment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the seal of one segment hangs, PUTs continue through many more segments."""
    hangs, go = threading.Event(), threading.Event()
    seal, create = rig.medium.seal, rig.medium.create
    creators: list[str] = []

    def hanging(*args: object) -> int:
        hangs.set()
        assert go.wait(WAIT_S)
        return seal(*args)  # type: ignore[arg-type]

    def noted(segment: SegmentId, epoch: int, first_lsn: int) -> SegmentWriter:
        creators.append(threading.current_thread().name)
        return create(segment, epoch, first_lsn)

    monkeypatch.setattr(rig.medium, "create", noted)
    for _ in range(4):
        rig.put(2000)
    assert len(rig.segments.rows) == 1
    rig.put(2000)
    until(lambda: len(rig.segments.rows) == 2)
    assert creators[1] == "landing-log"
    monkeypatch.setattr(rig.medium, "seal", hanging)
    for _ in range(5):
        rig.put(2000)
    assert hangs.wait(WAIT_S)
    for _ in range(30):
        rig.put(2000)
    assert len(rig.segments.rows) > 5
    assert {row.state for row in rig.segments.rows.values()} == {SegmentState.OPEN}
    go.set()
    until(lambda: rig.log.counters.sealed >= 4)


def test_an_idle_log_is_tended(rig: Rig) -> None:
    landing_id = rig.put()
    rig.clock.advance(AGE_MS)
    rig.clock.step.set()
    until(lambda: rig.segments.rows[segment_of(landing_id)].state is SegmentState.SEALED)


def test_the_keeper_is_woken_only_when_there_is_upkeep(rig: Rig) -> None:
    for _ in range(5):
        rig.put()
    assert rig.told == 1, "the first batch starts it"


def test_no_thread_starts_before_the_first_put_nor_after_the_end(rig: Rig) -> None:
    assert rig.keeper._thread is None
    rig.close()
    rig.keeper.wake(rig.log)
    assert rig.keeper._thread is None
    rig.keeper.close()


def test_a_bug_in_one_look_does_not_end_the_thread(rig: Rig) -> None:
    rig.put()
    rig.faults.before["seal_segments"] += [ZeroDivisionError("bug")]
    for _ in range(20):
        rig.put(2000)
    until(lambda: not rig.faults.before["seal_segments"])
    assert rig.log.counters.sealed == 0
    rig.clock.step.set()
    until(lambda: rig.log.counters.sealed >= 1)


def test_after_refusals_upkeep_comes_without_a_success() -> None:
    """Failing appends leave segments. Once too many wait to be sealed, no PUT succeeds until upkeep has sealed them."""
    rig = Rig(LandingLog.tend)

    def fail(segment: SegmentId) -> None:
        raise Transient("away")

    rig.medium.on_append = fail
    for _ in range(40):
        with pytest.raises(Transient):
            rig.put()
    assert rig.log.counters.sealed >= 100
    rig.medium.on_append = lambda segment: None
    rig.put()
    rig.close()


def test_closing_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A medium that is away costs one operation after another. What is left when the time is over is left to recovery,
    with the lease."""
    rig = Rig(lambda log: None)
    for _ in range(60):
        rig.put(2000)
    left = sum(row.state is SegmentState.OPEN for row in rig.segments.rows.values())
    tries = []

    def away(segment: SegmentId, *_: object) -> int:
        tries.append(segment)
        rig.clock.advance(10_000)
        raise Transient("time-out")

    monkeypatch.setattr(rig.medium, "seal", away)
    rig.close()
    assert left > 6
    assert len(tries) == CLOSE_MS // 10_000
    assert list(rig.segments.leases) == ["landing-log-0"]


def test_closing_does_not_wait_for_all_that_the_keeper_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper ends after the segment that it is sealing."""
    rig = Rig()
    hangs, go = threading.Event(), threading.Event()
    tries = []

    def away(segment: SegmentId, *_: object) -> int:
        tries.append(threading.current_thread().name)
        hangs.set()
        assert go.wait(WAIT_S)
        rig.clock.advance(CLOSE_MS)
        raise Transient("time-out")

    monkeypatch.setattr(rig.medium, "seal", away)
    for _ in range(60):
        rig.put(2000)
    assert hangs.wait(WAIT_S)
    closing = threading.Thread(target=rig.close)
    closing.start()
    until(lambda: rig.log._closed)
    go.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert tries == ["landing-log"]
