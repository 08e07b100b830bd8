"""GC keeps to its limits, and pauses, resumes and ends as it is asked to, without doing work twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.states import BlockKind
from nos_ec.engine.gc import throttling
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.gc.run.note import read_run
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.gc.run.speed import RunSpeed
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.survivor_writer import SurvivorWriter
from nos_ec.engine.packing.stripe_writer import WriteResult
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_gc.assemble import gc_service
from nos_gc.service import GcService
from tests.rig.at_rest import LaterClock
from tests.service.conftest import Bench
from tests.service.gc.test_gc import configure, dig_holes, sealed

pytestmark = pytest.mark.invariant(10)


class JumpingClock:
    """A clock on which the waits of one thread take no time, and are added up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = threading.current_thread()
        self.waited_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.waited_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        if threading.current_thread() is not self._thread:
            return self._clock.wait(stop, wait_ms)
        self.waited_ms += wait_ms
        return stop.is_set()


class CallingAfter:
    """A block store that calls `then` after this many appends and creations."""

    def __init__(self, blocks: BlockStore, count: int, then: Callable[[], object]) -> None:
        self._blocks = blocks
        self._left = count
        self._then = then

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._blocks, name)
        if name not in ("create", "append"):
            return method

        def counted(*arguments: Any) -> Any:
            found = method(*arguments)
            self._left -= 1
            if self._left == 0:
                self._then()
            return found

        return counted


def jumping(system: System) -> JumpingClock:
    clock = JumpingClock(system.clock)
    system.clock = cast(Any, clock)
    return clock


def holey(bench: Bench, system: System) -> int:
    """Blocks that are half empty. Returns how many bytes live in them."""
    dig_holes(bench, system, keep=2)
    return sum(block.live_bytes for block in sealed(system))


@pytest.fixture(autouse=True)
def half(bench: Bench) -> None:
    configure(bench, "gc", "hole_ratio_min = 0.4")


# --- limits ---------------------------------------------------------------------------------------
def test_a_run_keeps_to_the_bytes_per_second_of_the_settings(bench: Bench) -> None:
    configure(bench, "gc", "bytes_per_s = 1000000")
    with bench.open() as system:
        live_bytes = holey(bench, system)
        clock = jumping(system)
        result = gc_service(system).run_once()
        assert result.bytes_moved == live_bytes
        moved = live_bytes + result.header_bytes_read + result.stripes_written * system.geometry.stripe_size
        assert clock.waited_ms == pytest.approx(moved / 1000, rel=0.2)
        bench.assert_readable(system)


def test_a_run_keeps_to_the_operations_per_second(bench: Bench) -> None:
    configure(bench, "gc", "operations_per_s = 10")
    with bench.open() as system:
        holey(bench, system)
        clock = jumping(system)
        result = gc_service(system).run_once()
        assert clock.waited_ms >= result.objects_moved * 100 * 0.9


def test_limits_change_while_a_run_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first groups are written without a limit; then an operator sets one."""
    monkeypatch.setattr(throttling, "POLL_MS", 0)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system, bench.open() as operator:
        holey(bench, system)
        control = GcControl(operator.metadata)
        clock = jumping(system)
        system.blocks = cast(
            BlockStore,
            CallingAfter(system.blocks, 1, lambda: control.change(lambda one: replace(one, bytes_per_s=100_000))),
        )
        gc_service(system).run_once()
        assert clock.waited_ms > 10_000
        gc_service(system).run_once()
        assert clock.waited_ms > 10_000
        data = json.loads(bench.run("gc", "limit", "--json").stdout)
        assert data == {"bytes_per_s": 100_000, "operations_per_s": 0, "limits_of_settings": False}
        assert bench.run("gc", "limit", "--reset").returncode == 0
        assert GcControl(operator.metadata).read().bytes_per_s is None


def test_no_limit_holds_while_puts_are_refused_for_lack_of_space(bench: Bench) -> None:
    configure(bench, "gc", "bytes_per_s = 1000")
    with bench.open() as system:
        holey(bench, system)
    configure(bench, "gc", 'reserve_bytes = "1024TiB"')
    with bench.open() as system:
        clock = jumping(system)
        gc_service(system).run_once()
        assert clock.waited_ms < 10_000
        bench.assert_readable(system)


# --- pausing, and ending early --------------------------------------------------------------------
def run_stopped_by(bench: Bench, system: System, then: Callable[[], object]) -> CollectionResult:
    """A run during which `then` is called after the second group."""
    plain = system.blocks
    system.blocks = cast(BlockStore, CallingAfter(plain, 2, then))
    result = gc_service(system).run_once()
    system.blocks = plain
    return result


def test_a_paused_run_ends_and_the_next_one_goes_on_without_moving_anything_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "POLL_MS", 0)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system:
        holey(bench, system)
        result = run_stopped_by(bench, system, lambda: bench.run("gc", "pause"))
        assert result.stopped is Stopped.PAUSED
        assert 0 < result.objects_moved < len(bench.acknowledged)
        state = json.loads(bench.run("gc", "status", "--json").stdout)
        assert (state["running"], state["paused"]) == (False, True)
        assert state["run"]["stopped"] == "paused"
        assert state["run"]["objects_moved"] == result.objects_moved
        assert 0 < state["run"]["bytes_left"] < state["run"]["bytes_chosen"]
        bench.assert_readable(system)

        again = bench.run("gc", "run", "--apply", "--json")
        assert again.returncode == 0
        data = json.loads(again.stdout)
        assert (data["stopped"], data["objects_moved"], data["blocks_examined"]) == ("paused", 0, 0)
        assert b"paused" in bench.run("gc", "run", "--apply").stdout
        assert b"paused" in bench.run("gc", "status").stdout

        assert bench.run("gc", "resume").returncode == 0
        rest = gc_service(system).run_once()
        assert rest.stopped is None
        assert result.objects_moved + rest.objects_moved == len(bench.acknowledged)
        assert not [block for block in sealed(system) if block.kind is BlockKind.FRESH]
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_a_run_ends_after_its_longest_time(bench: Bench) -> None:
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system:
        holey(bench, system)
        late = LaterClock(0)
        system.clock = late

        def an_hour_later() -> None:
            late.ahead_ms += 3_600_000

        plain = system.blocks
        system.blocks = cast(BlockStore, CallingAfter(plain, 2, an_hour_later))
        result = gc_service(system).run_once(max_ms=1_800_000)
        assert result.stopped is Stopped.MAX_DURATION
        assert result.objects_moved < len(bench.acknowledged)
        system.blocks = plain
        rest = gc_service(system).run_once(max_ms=1_800_000)
        assert rest.stopped is None
        assert result.objects_moved + rest.objects_moved == len(bench.acknowledged)
        bench.assert_readable(system)


def test_a_loop_goes_on_within_seconds_after_a_pause(bench: Bench) -> None:
    with bench.open() as system:
        holey(bench, system)
        control, stop = GcControl(system.metadata), Event()
        control.change(lambda one: replace(one, paused=True))
        service: GcService = gc_service(system)
        rests: list[int] = []

        def beat(rest_ms: int) -> None:
            rests.append(rest_ms)
            if len(rests) == 200:
                pytest.fail("the loop does not continue")
            if service.counters.runs == 1:
                control.change(lambda one: replace(one, paused=False))
            if service.counters.collected.objects_moved:
                stop.set()

        jumping(system)
        service = gc_service(system)
        service.run(stop, 600_000, beat)
        assert service.counters.collected.objects_moved > 0
        assert service.counters.runs == 2


def test_the_state_of_a_finished_run(bench: Bench) -> None:
    with bench.open() as system:
        holey(bench, system)
        assert read_run(system.metadata) is None
        assert json.loads(bench.run("gc", "status", "--json").stdout)["run"] is None
        result = gc_service(system).run_once()
        state = read_run(system.metadata)
        assert state is not None
        assert (state.victims, state.victims_done) == (result.blocks_chosen, result.blocks_finished)
        assert state.victims == state.victims_done > 4
        assert (state.bytes_moved, state.bytes_left, state.stopped) == (result.bytes_moved, 0, None)
        assert state.ended_ms is not None
        assert bench.run("gc", "status").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("limit", "--reset", "--bytes-per-s", "1MiB"),
        ("limit", "--bytes-per-s", "fast"),
        ("limit", "--operations-per-s", "-1"),
        ("run", "--apply", "--loop", "--max-duration", "5"),
        ("run", "--apply", "--loop", "--retry"),
        ("run", "--retry"),
    ],
)
def test_wrong_limits_are_refused(bench: Bench, arguments: tuple[str, ...]) -> None:
    with bench.open():
        pass
    assert bench.run("gc", *arguments).returncode == 2


# --- sparing the reads of others ------------------------------------------------------------------
def test_a_run_rests_while_its_reads_are_slow_because_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed reads seem ten times slower while a group is under way. The timer is not the real one."""
    monkeypatch.setattr(throttling, "PROBE_S", 0.0)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system:
        holey(bench, system)
        clock = jumping(system)
        assert gc_rests(system, slow=True) > 0
        assert clock.waited_ms > 0
        bench.assert_readable(system)


def test_reads_are_timed_beside_groups_also_when_only_one_is_under_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy ones while at least one group is under way, quiet ones while none is."""
    monkeypatch.setattr(throttling, "PROBE_S", 0.0)
    monkeypatch.setattr(throttling, "REST_S_MIN", 0.001)
    configure(bench, "gc", "lanes = 1")
    under_way = 0
    busy, quiet = [], []
    real_submit, real_collect, real_withdraw = SurvivorWriter.submit, SurvivorWriter.collect, SurvivorWriter.withdraw

    def submit(self: SurvivorWriter, plan: Any) -> None:
        nonlocal under_way
        real_submit(self, plan)
        under_way += 1

    def collect(self: SurvivorWriter, wait_ms: int) -> list[WriteResult]:
        nonlocal under_way
        found = real_collect(self, wait_ms)
        under_way -= len(found)
        return found

    def withdraw(self: SurvivorWriter) -> Any:
        nonlocal under_way
        found = real_withdraw(self)
        under_way -= len(found)
        return found

    monkeypatch.setattr(SurvivorWriter, "submit", submit)
    monkeypatch.setattr(SurvivorWriter, "collect", collect)
    monkeypatch.setattr(SurvivorWriter, "withdraw", withdraw)
    monkeypatch.setattr(RunSpeed, "add_busy", lambda self, seconds: busy.append(under_way))
    monkeypatch.setattr(RunSpeed, "add_quiet", lambda self, seconds: quiet.append(under_way))
    monkeypatch.setattr(RunSpeed, "wants_quiet", property(lambda self: not quiet))
    with bench.open() as system:
        holey(bench, system)
        jumping(system)
        gc_service(system).run_once()
    assert busy
    assert min(busy) > 0
    assert quiet
    assert max(quiet) == 0


def gc_rests(system: System, *, slow: bool) -> float:
    """Collect with a back-off that is told that reads are slow. Returns how often the run rested."""
    rests = 0
    real_rest, real_busy = throttling.Throttle.rest, RunSpeed.add_busy

    def rest(self: throttling.Throttle) -> None:
        nonlocal rests
        rests += 1
        real_rest(self)

    def busy(self: RunSpeed, seconds: float) -> None:
        for _ in range(16):
            real_busy(self, 10 * seconds + 1 if slow else seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(throttling.Throttle, "rest", rest)
        patched.setattr(RunSpeed, "add_busy", busy)
        patched.setattr(throttling, "REST_S_MIN", 0.001)
        gc_service(system).run_once()
    return rests
