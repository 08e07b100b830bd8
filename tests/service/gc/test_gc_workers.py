"""Several GC workers in one store: each collects its own blocks, together they keep the target, and none can harm."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Event
from typing import Any, cast

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.composition import adapters
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, LeaseLost, NosError, Transient
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.gc.share import Share
from nos_ec.core.ids import BlockId, timed_id
from nos_ec.core.states import BlockKind
from nos_ec.engine.figures.events import read_events
from nos_ec.engine.gc import throttling
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.gc.run.note import read_run, write_run
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.workers import read_workers, worker_lease
from nos_ec.monitoring.gc_samples import worker_samples
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock, unwatched
from nos_gc.assemble import gc_collector, gc_service
from nos_gc.service import _is_unfinished
from tests.rig.at_rest import LaterClock
from tests.rig.sql.sql_plans import caught
from tests.service.conftest import Bench
from tests.service.gc.test_gc import configure, dig_holes, sealed
from tests.service.gc.test_gc_policies import DAY_MS, amplification, holey
from tests.service.gc.test_gc_throttling import CallingAfter, jumping


def workers(bench: Bench, count: int) -> None:
    configure(bench, "gc", f"workers = {count}")


@pytest.fixture(autouse=True)
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block ids that few blocks spread evenly over the workers. By chance, a worker might have none."""
    numbers = itertools.count(1)

    def new_id(clock: Clock) -> bytes:
        return timed_id(clock.now_ms(), os.urandom(8) + (next(numbers) * 40_503 % (1 << 16)).to_bytes(2))

    monkeypatch.setattr(adapters, "_new_id", new_id)


def fresh_ids(system: System) -> set[BlockId]:
    """The full blocks that no run has written. A short one may not be worth rewriting alone."""
    found = [block for block in sealed(system) if block.kind is BlockKind.FRESH]
    return {block.block_id for block in found if block.stripes == system.geometry.stripes_per_block}


def run_side_by_side(systems: list[System], runs: list[Callable[[System], Any]]) -> list[Any]:
    """Begin the runs at the same moment, each in a thread and a store of its own. Return what they return or raise."""
    together = Barrier(len(systems))

    def run(system: System, work: Callable[[System], Any]) -> Any:
        together.wait()
        try:
            return work(system)
        except NosError as error:
            return error

    with ThreadPoolExecutor(len(systems)) as pool:
        return list(pool.map(run, systems, runs))


def collect(system: System) -> CollectionResult:
    return gc_service(system).run_once()


# --- which worker runs ----------------------------------------------------------------------------
def test_each_worker_collects_its_own_blocks(bench: Bench) -> None:
    workers(bench, 2)
    with bench.open() as system:
        dig_holes(bench, system)
        before = fresh_ids(system)
        of_first = {block_id for block_id in before if Share(0, 2).owns(block_id)}
        with system.contended_lease(worker_lease(0)):
            result = collect(system)
            assert fresh_ids(system) == of_first
            assert result.blocks_condemned >= len(before - of_first) > 0
        with system.contended_lease(worker_lease(1)):
            collect(system)
            assert fresh_ids(system) == set()
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_one_process_runs_all_workers_one_after_the_other(bench: Bench) -> None:
    """No block waits for a process that nobody has started."""
    workers(bench, 3)
    with bench.open() as system:
        dig_holes(bench, system)
        service = gc_service(system)
        result = service.run_once()
        assert fresh_ids(system) == set()
        assert service.counters.runs == 3
        assert service.counters.collected.objects_moved == result.objects_moved > 0
        assert [one.run is not None for one in read_workers(system.metadata, 3, 0)] == [True] * 3
        bench.assert_readable(system)


def test_the_worker_comes_first_that_has_not_run_for_longest(bench: Bench) -> None:
    workers(bench, 3)
    with bench.open() as system:
        system.clock = late = LaterClock(0)
        order: list[str] = []
        took = system.contended_lease

        def noted(name: str) -> Any:
            order.append(name)
            return took(name)

        service = gc_service(system)
        service._new_lease = noted
        with system.contended_lease(worker_lease(1)):
            service.run_once()
        assert order == ["gc", "gc-2"]
        late.ahead_ms += 1000
        order.clear()
        service.run_once()
        assert order == ["gc-1", "gc", "gc-2"]
        order.clear()
        assert service.run_once(recent_ms=60_000) == CollectionResult()
        assert order == [], "a daemon leaves out what has just run"
        late.ahead_ms -= DAY_MS
        service.run_once(recent_ms=60_000)
        assert sorted(order) == ["gc", "gc-1", "gc-2"], "after the clock was set back, all are due"


def test_what_others_run_meanwhile_is_known_when_the_turn_of_a_worker_comes(bench: Bench) -> None:
    """Another process ends its run of worker 3, runs worker 1 and begins worker 2, while this one runs worker 0."""
    workers(bench, 4)
    with bench.open() as system, bench.open() as other, ExitStack() as held:
        collect(system)
        system.clock = other.clock = LaterClock(DAY_MS)
        order: list[str] = []
        service, elsewhere = gc_service(system), gc_service(other)
        took, ends = service._new_lease, other.contended_lease(worker_lease(3))
        ends.__enter__()

        def meanwhile(name: str) -> Any:
            if not order:
                ends.__exit__()
                elsewhere._run_worker(1, unwatched, None, None)
                held.enter_context(other.contended_lease(worker_lease(2)))
            order.append(name)
            return took(name)

        service._new_lease = meanwhile
        service.run_once(recent_ms=60_000)
        assert order == ["gc", "gc-2", "gc-3"]
        assert service.counters.runs == 2


def test_the_notes_of_all_workers_are_read_once_in_a_run(bench: Bench) -> None:
    """After that, a worker's own note is read before its turn: 4 + 3 of 4 workers. Reading all notes before each turn
    would take 4 times 4."""
    workers(bench, 4)
    with bench.open() as system:
        service = gc_service(system)
        service.run_once()
        with caught(cast(SqlMetadata, system.metadata)) as statements:
            assert len(list(service._workers_in_turn(system.clock.now_ms() + 1))) == 4
        tables = [text.partition("FROM ")[2].split()[0] for text, _ in statements]
        assert tables == ["leases"] + 7 * ["stored_totals"]


def test_a_process_too_many_is_told_that_all_workers_run(bench: Bench) -> None:
    workers(bench, 2)
    with bench.open() as system, system.contended_lease(worker_lease(0)), system.contended_lease(worker_lease(1)):
        with pytest.raises(Conflict, match="all 2 GC workers run in other processes"):
            collect(system)
        done = bench.run("gc", "run", "--apply")
        assert done.returncode == 5
        assert b"gc.workers" in done.stderr


def test_a_worker_that_another_process_takes_meanwhile_is_left_to_it(bench: Bench) -> None:
    workers(bench, 2)
    with bench.open() as system, bench.open() as other:
        dig_holes(bench, system)
        service = gc_service(system)
        took, held = service._new_lease, other.contended_lease(worker_lease(0))

        def too_late(name: str) -> Any:
            if name == worker_lease(0):
                held.__enter__()
            return took(name)

        service._new_lease = too_late
        service.run_once()
        assert all(Share(0, 2).owns(block_id) for block_id in fresh_ids(system))
        held.__exit__()
        assert service.counters.failures == 0


def test_a_worker_that_fails_does_not_stop_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    workers(bench, 3)
    with bench.open() as system:
        dig_holes(bench, system)
        service = gc_service(system)
        run_one = service._run_worker

        def failing(worker: int, *arguments: Any) -> CollectionResult:
            if worker == 1:
                raise Transient("metadata: away")
            return run_one(worker, *arguments)

        monkeypatch.setattr(service, "_run_worker", failing)
        with pytest.raises(Transient, match="away"):
            service.run_once()
        assert all(Share(1, 3).owns(block_id) for block_id in fresh_ids(system))
        assert (service.counters.runs, service.counters.failures) == (2, 1)


def test_only_worker_0_applies_expiry(bench: Bench) -> None:
    workers(bench, 2)
    with bench.open() as system:
        keys = bench.put_some(system, 20)
        now_ms = system.clock.now_ms()
        system.metadata.delete_many(keys, now_ms, now_ms)
        for key in keys:
            del bench.acknowledged[key]
        with system.contended_lease(worker_lease(0)):
            assert collect(system).expired_objects == 0
        assert collect(system).expired_objects == len(keys)


# --- the target -----------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [2, 3])
def test_workers_meet_the_target_one_after_the_other(bench: Bench, count: int) -> None:
    workers(bench, count)
    with holey(bench) as system:
        assert amplification(system) > 1.3
        result = collect(system)
        assert 1.15 < amplification(system) <= 1.2
        assert result.behind is None
        assert collect(system).blocks_examined == 0
        bench.assert_readable(system)
        bench.assert_balanced(system)


@pytest.mark.parametrize("count", [2, 3])
def test_workers_meet_the_target_side_by_side(bench: Bench, count: int) -> None:
    """Each has chosen its victims before another has rewritten any."""
    workers(bench, count)
    with holey(bench) as system:
        systems = [bench.open() for _ in range(count)]
        plans = Barrier(count)
        for one in systems:
            one.clock = LaterClock(100 * DAY_MS)
            one.blocks = cast(BlockStore, AfterChoice(one.blocks, plans))
        results = run_side_by_side(systems, [collect] * count)
        assert [result for result in results if isinstance(result, NosError)] == []
        assert 1.15 < amplification(system) <= 1.2
        assert sum(result.blocks_condemned > 0 for result in results) > 1
        bench.assert_readable(system)
        bench.assert_balanced(system)
        for one in systems:
            one.stack.close()


class AfterChoice:
    """A block store whose first read waits for those of the other stores: all have chosen by then. It waits a moment
    only, because a worker without victims reads nothing."""

    def __init__(self, blocks: BlockStore, together: Barrier) -> None:
        self._blocks = blocks
        self._together = together
        self._waited = False

    def __getattr__(self, name: str) -> Any:
        if name == "read" and not self._waited:
            self._waited = True
            with suppress(BrokenBarrierError):
                self._together.wait(5)
        return getattr(self._blocks, name)


# --- changed numbers of workers, lost leases, pauses ----------------------------------------------
@pytest.mark.invariant(4, 6, 10)
def test_processes_with_different_numbers_of_workers_do_no_harm(bench: Bench) -> None:
    """Worker 0 of a process with an old configuration has all blocks, and the others have the same blocks as well. Both
    rewrite some objects; only one copy of each counts."""
    with bench.open() as system:
        dig_holes(bench, system)
        systems = []
        for count in (1, 2, 3):
            workers(bench, count)
            systems.append(bench.open())
        runs: list[Callable[[System], Any]] = [collect, as_worker(1), as_worker(2)]
        results = run_side_by_side(systems, runs)
        assert [result for result in results if isinstance(result, NosError)] == []
        assert fresh_ids(system) == set()
        bench.assert_readable(system)
        bench.settle(system)
        bench.assert_balanced(system)
        for one in systems:
            one.stack.close()


def as_worker(worker: int) -> Callable[[System], CollectionResult]:
    """A run of this worker alone."""

    def run(system: System) -> CollectionResult:
        with system.contended_lease(worker_lease(worker)) as held:
            writer = lambda: system.worker.writer(held.lease, BlockKind.SURVIVOR)  # noqa: E731
            return gc_collector(system).run(writer, worker=worker)

    return run


@pytest.mark.invariant(8, 10)
def test_a_worker_that_loses_its_lease_stops_and_the_next_run_continues(bench: Bench) -> None:
    workers(bench, 2)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system, bench.open() as other:
        dig_holes(bench, system)

        def fence() -> None:
            (lease,) = [one for one in other.metadata.list_leases("gc") if one.name == "gc-1"]
            assert other.metadata.fence_lease(lease, lease.expires_ms)

        with other.contended_lease(worker_lease(0)):
            plain = system.blocks
            system.blocks = cast(BlockStore, CallingAfter(plain, 1, fence))
            with pytest.raises(LeaseLost):
                collect(system)
            system.blocks = plain
        bench.assert_readable(system)
        collect(other)
        assert fresh_ids(other) == set()
        bench.settle(other)
        bench.assert_readable(other)
        bench.assert_balanced(other)


def test_a_pause_ends_the_runs_of_all_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "POLL_MS", 0)
    workers(bench, 2)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system, bench.open() as other:
        dig_holes(bench, system)
        control = GcControl(other.metadata)
        plain = system.blocks
        system.blocks = cast(
            BlockStore, CallingAfter(plain, 1, lambda: control.change(lambda one: replace(one, paused=True)))
        )
        service = gc_service(system)
        assert service.run_once().stopped is Stopped.PAUSED
        assert service.counters.runs == 1, "the second worker did not begin"
        system.blocks = plain
        control.change(lambda one: replace(one, paused=False))
        collect(system)
        assert fresh_ids(system) == set()
        bench.assert_readable(system)


# --- limits and space -----------------------------------------------------------------------------
def test_the_limits_are_divided(bench: Bench) -> None:
    workers(bench, 2)
    configure(bench, "gc", "bytes_per_s = 1000000")
    configure(bench, "gc", "hole_ratio_min = 0.4")
    with bench.open() as system:
        dig_holes(bench, system, keep=2)
        clock = jumping(system)
        result = collect(system)
        moved = result.bytes_moved + result.header_bytes_read + result.stripes_written * system.geometry.stripe_size
        assert clock.waited_ms == pytest.approx(2 * moved / 1000, rel=0.2), "each worker has half of it"


@pytest.mark.invariant(10)
def test_worker_0_collects_alone_while_space_is_tight(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    workers(bench, 2)
    with bench.open() as system:
        geometry = system.geometry
        needed = 2 * (geometry.block_size + geometry.group_size_max) + (16 << 20)
        dig_holes(bench, system)
        before = fresh_ids(system)
        monkeypatch.setattr(type(system.blocks), "free_bytes", lambda _: needed - 1)
        with system.contended_lease(worker_lease(0)):
            result = collect(system)
            assert (result.stopped, result.objects_moved) == (Stopped.SPACE, 0)
            assert fresh_ids(system) == before
        with system.contended_lease(worker_lease(1)):
            assert collect(system).stopped is None
        assert fresh_ids(system) == set()
        bench.assert_readable(system)
        bench.assert_balanced(system)


@pytest.mark.invariant(10)
def test_a_worker_gives_way_when_space_becomes_tight(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "POLL_MS", 0)
    workers(bench, 2)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system:
        dig_holes(bench, system)
        plain = system.blocks

        def fill_up() -> None:
            monkeypatch.setattr(type(plain), "free_bytes", lambda _: 1 << 20)

        system.blocks = cast(BlockStore, CallingAfter(plain, 1, fill_up))
        with system.contended_lease(worker_lease(0)):
            result = collect(system)
        assert result.stopped is Stopped.SPACE
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_worker_0_returns_the_blocks_of_others_when_space_is_free_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers(bench, 2)
    configure(bench, "gc", "lanes = 1")
    with bench.open() as system:
        dig_holes(bench, system)
        geometry, plain = system.geometry, system.blocks
        room_bytes = (16 << 20) + geometry.group_size_max + geometry.stripe_size
        free = type(plain).free_bytes
        monkeypatch.setattr(type(plain), "free_bytes", lambda _: room_bytes)
        again = lambda: monkeypatch.setattr(type(plain), "free_bytes", free)  # noqa: E731
        system.blocks = cast(BlockStore, CallingAfter(plain, 1, again))
        with system.contended_lease(worker_lease(1)):
            collect(system)
        left = fresh_ids(system)
        assert left
        assert all(Share(1, 2).owns(block_id) for block_id in left)


# --- the daemon -----------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2])
def test_the_limit_of_blocks_is_no_ceiling_for_a_daemon(bench: Bench, count: int) -> None:
    """A run that it ended is followed by the next one at once."""
    workers(bench, count)
    with holey(bench, 'policy = "space-target"\nblocks_max_per_run = 1') as system:
        stop = Event()
        service = gc_service(system)

        def beat(rest_ms: int) -> None:
            if rest_ms:
                stop.set()

        service.run(stop, 600_000, beat)
        assert service.counters.runs > count
        assert 1.15 < amplification(system) <= 1.2


# --- what operators see ---------------------------------------------------------------------------
def test_operators_see_each_worker(bench: Bench) -> None:
    workers(bench, 2)
    with bench.open() as system:
        dig_holes(bench, system)
        with system.contended_lease(worker_lease(1)):
            collect(system)
            data = json.loads(bench.run("gc", "status", "--json").stdout)
            assert data["running"]
            assert [(one["worker"], one["running"]) for one in data["workers"]] == [(0, False), (1, True)]
            assert data["workers"][1]["run"] is None
            assert data["workers"][0]["run"] == data["run"]
            assert data["run"]["process"].startswith(f"process {os.getpid()} on ")
            text = bench.run("gc", "status").stdout.decode()
            assert "1 of 2 running" in text
            assert "worker 0" in text
            assert "never" in text
            found = {
                (one.metric.name, one.labels): one.value for one in worker_samples(system.metadata, 2, system.clock)
            }
            assert found["nos_ec_gc_worker_running", ("0",)] == 0
            assert found["nos_ec_gc_worker_running", ("1",)] == 1
            assert found["nos_ec_gc_worker_seen_timestamp_seconds", ("0",)] == data["run"]["seen_ms"] / 1000
            assert ("nos_ec_gc_worker_seen_timestamp_seconds", ("1",)) not in found


def test_the_end_of_a_killed_run_is_recorded_by_the_next_run_of_its_worker(bench: Bench) -> None:
    workers(bench, 2)
    with bench.open() as system:
        collect(system)
        run = read_run(system.metadata, 1)
        assert run is not None
        write_run(system.metadata, replace(run, process="process 7 on lost", ended_ms=None), 1)
        collect(system)
        (killed,) = [one for one in read_events(system.metadata) if one.outcome == "failed"]
        assert killed.process == "process 7 on lost"


def test_worker_0_alone_has_the_whole_of_the_limits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise more workers would make GC slower just when space is short."""
    workers(bench, 2)
    configure(bench, "gc", "bytes_per_s = 1000000")
    with bench.open() as system:
        geometry = system.geometry
        needed = 2 * (geometry.block_size + geometry.group_size_max) + (16 << 20)
        dig_holes(bench, system)
        monkeypatch.setattr(type(system.blocks), "free_bytes", lambda _: needed - 1)
        clock = jumping(system)
        result = collect(system)
        moved = result.bytes_moved + result.header_bytes_read + result.stripes_written * system.geometry.stripe_size
        assert moved
        assert clock.waited_ms == pytest.approx(moved / 1000, rel=0.2)
        assert result.space_amplification is not None, "worker 1 made no plan"


def test_a_daemon_runs_at_once_when_a_lack_of_space_has_ended_a_run() -> None:
    """Worker 0 then collects all blocks. It waits when there is nothing to free."""
    for stopped, condemned, is_due in ((Stopped.SPACE, 1, True), (Stopped.SPACE, 0, False), (None, 1, False)):
        assert _is_unfinished(CollectionResult(stopped=stopped, blocks_condemned=condemned)) is is_due
    for moved in (0, 1):
        result = CollectionResult(behind=Behind.BLOCKS, blocks_condemned=1, objects_moved=moved)
        assert _is_unfinished(result) is bool(moved), "condemning empty blocks alone does not count as progress"
