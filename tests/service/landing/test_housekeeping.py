"""Recovery and reaper share a thread: neither waits for the other to finish or to succeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import SegmentId
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.landing.copy_forward import BACK_OFF, CopyForward, ForwardResult
from nos_ec.engine.landing.trimmer import Trimmer, TrimResult
from nos_ec.engine.log_throttle import LINES_MAX
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.upkeep.housekeeping import RECOVERY_WAIT_MS, TRIM_WAIT_MS, Housekeeping
from nos_ec.engine.upkeep.lock_clock import LockClock
from nos_ec.engine.upkeep.reaper import Reaper, ReapResult
from nos_ec.engine.upkeep.recovery import Recovery, RecoveryResult
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.metadata import LockTimes
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import Bench

pytestmark = pytest.mark.landing("store")

TTL_MS = 30_000


class SlowReaper(Reaper):
    """A reaper on a clock, each of whose batches takes as long as `batch` makes it; and it never comes to an end."""

    def __init__(self, batch: Callable[[], object], batches: int) -> None:
        self._batch = batch
        self._batches = batches
        self.done = 0

    def run_once(self, beat: Beat = unwatched) -> ReapResult:
        self.done += 1
        self._batch()
        return ReapResult(deleted=1) if self.done < self._batches else ReapResult()


def keep(system: System, reaper: Reaper, recovery: Recovery | None = None) -> Housekeeping:
    recovery = recovery or Recovery(system.metadata, system.blocks, system.clock)
    return Housekeeping(recovery, reaper, system.clock, wait_ms=5000)


def test_recovery_runs_between_the_batches_of_the_reaper(system: System, clock: FakeClock) -> None:
    lease = system.metadata.acquire_lease("dead", clock.now_ms(), 3 * RECOVERY_WAIT_MS)
    block_id = system.new_block_id()
    system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, clock.now_ms())
    sealed_after: list[int] = []

    def batch() -> None:
        clock.advance(RECOVERY_WAIT_MS)
        if system.metadata.block(block_id).state is BlockState.SEALED:
            sealed_after.append(reaper.done)

    reaper = SlowReaper(batch, batches=100)
    assert keep(system, reaper).run_once().recovery == RecoveryResult(1, 1)
    assert sealed_after[0] == 4, "its lease expires with the third batch"


def test_short_batches_do_not_look_for_expired_leases_each_time(system: System, clock: FakeClock) -> None:
    reaper = SlowReaper(lambda: clock.advance(RECOVERY_WAIT_MS // 10), batches=100)
    recovery = CountedRecovery()
    keep(system, reaper, cast(Recovery, recovery)).run_once()
    assert recovery.runs == 10


class CountedRecovery:
    """Stands in for Recovery: each run raises `error`, if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.runs = 0

    def run_once(self, _beat: object) -> RecoveryResult:
        self.runs += 1
        if self.error is not None:
            raise self.error
        return RecoveryResult()


@pytest.mark.parametrize("error", [Transient("no answer"), ZeroDivisionError("a bug")])
def test_a_failing_recovery_does_not_stop_the_reaper(bench: Bench, system: System, error: Exception) -> None:
    bench.put_some(system, 20)
    bench.produce(system)
    bench.consume(system)
    reaper = Reaper(system.metadata, system.landing, system.blocks, system.clock, 5, system.read_threads)
    failing = keep(system, reaper, cast(Recovery, CountedRecovery(error)))
    with pytest.raises(type(error)):
        failing.run_once()
    assert list(system.landing.list_ids()) == []
    assert failing.done.reaper.deleted == 20


def test_a_failing_reaper_does_not_stop_recovery(system: System, clock: FakeClock) -> None:
    def batch() -> None:
        clock.advance(TTL_MS)
        raise Transient("no answer")

    failing = keep(system, SlowReaper(batch, batches=9))
    system.metadata.acquire_lease("dead", clock.now_ms(), TTL_MS)
    with pytest.raises(Transient):
        failing.run_once()
    with pytest.raises(Transient):
        failing.run_once()
    assert failing.done.recovery.leases_fenced == 1


def test_what_the_reaper_left_out_of_the_log_is_counted_when_the_store_is_closed(bench: Bench) -> None:
    with capture_logs() as lines, bench.open() as system:
        housekeeping = system.worker.housekeeping()
        for _ in range(LINES_MAX + 3):
            housekeeping._reaper._errors.error("damaged")
    assert [line.get("count") for line in lines if line["event"].startswith("damaged")] == [None] * LINES_MAX + [3]


class Counted:
    """Stands in for the trimmer, or for what copies stragglers: counts its runs."""

    def __init__(self, result: Any, order: list[str], name: str) -> None:
        self.parked: RetryQueue[SegmentId] = RetryQueue(name, bytes.hex, FakeClock(), BACK_OFF, 1)
        self._result = result
        self._order = order
        self._name = name

    def run_once(self, _beat: Beat) -> Any:
        self._order.append(self._name)
        return self._result


def test_segments_are_trimmed_after_the_reaper_and_between_its_batches(system: System, clock: FakeClock) -> None:
    order: list[str] = []

    def batch() -> None:
        order.append("reaper")
        clock.advance(TRIM_WAIT_MS // 2)

    reaper = SlowReaper(batch, batches=4)
    reaper.parked = RetryQueue("copy", repr, clock, BACK_OFF, 1)
    trimmer = Counted(TrimResult(released=1), order, "trimmer")
    forward = Counted(ForwardResult(objects=7), order, "forward")
    recovery = Recovery(system.metadata, system.blocks, system.clock)
    keeping = Housekeeping(recovery, reaper, system.clock, 5000, cast(Trimmer, trimmer), cast(CopyForward, forward))
    result = keeping.run_once()
    assert order == ["reaper", "reaper", "trimmer", "reaper", "reaper", "trimmer", "forward"]
    assert (result.trimmer.released, result.forward.objects) == (2, 7)
    assert keeping.done == result
    assert {retry_queue.what for retry_queue in keeping.retry_queues} == {"fenced block", "copy", "trimmer", "forward"}


def test_a_lock_time_that_cannot_be_advanced_stops_nothing(
    system: System, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(system.metadata).lock_times
    looks: list[int] = []

    def fails_twice(self: object) -> LockTimes:
        looks.append(clock.now_ms())
        if len(looks) <= 2:
            raise Transient("the database does not answer")
        return real(system.metadata)

    monkeypatch.setattr(type(system.metadata), "lock_times", fails_twice)
    reaper = SlowReaper(lambda: clock.advance(RECOVERY_WAIT_MS), batches=4)
    lock_clock = LockClock(system.metadata, clock, lambda: clock.now_ms() / 1000)
    recovery = Recovery(system.metadata, system.blocks, clock)
    with capture_logs() as logs:
        Housekeeping(recovery, reaper, clock, wait_ms=5000, lock_clock=lock_clock).run_once()
    assert reaper.done == 4
    assert len(looks) == 4
    assert [line["error"] for line in logs if line["event"].startswith("lock time not advanced")] == [
        "the database does not answer"
    ] * 2
    assert real(system.metadata).lock_ms > 0
