"""A clock that jumped forward and back leaves deadlines far in the future. They count as over."""

from __future__ import annotations

from contextlib import closing

import pytest

from nos_ec.composition.gc_status import gc_status_data
from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import LEASE_MS_MAX, WAIT_MS_MAX
from nos_ec.core.states import BlockKind
from nos_ec.engine.gc.workers import LEASE_NAME
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import end_log
from tests.rig.fakes.clock import SetClock
from tests.service.conftest import Bench

YEAR_MS = 365 * 24 * 3_600_000


def test_leases_taken_after_a_jump_are_fenced_when_the_clock_is_right_again(bench: Bench, system: System) -> None:
    now_ms = system.clock.now_ms()
    keys = bench.put_some(system, 20)
    end_log(system)
    with bench.open() as jumped:
        jumped.clock = SetClock(now_ms + YEAR_MS)
        leases = [jumped.metadata.acquire_lease(LEASE_NAME, jumped.clock.now_ms(), LEASE_MS_MAX)]
        with producer_service(jumped, shares=True) as producer:
            producer.turn()  # it takes its slots, and dies
            leases += jumped.metadata.list_leases("producer")
            block_id = jumped.new_block_id()
            jumped.metadata.allocate_block(leases[0], block_id, BlockKind.SURVIVOR, jumped.clock.now_ms())
            assert len(leases) > 16
            gc_service(system).run_once()
            assert system.metadata.list_blocks(None, 9) == [], "its writer's block was recovered and collected"
            assert system.metadata.list_leases("") == []
            bench.pack(system)
    totals = system.metadata.totals()
    assert totals.packed_objects == len(keys)
    bench.assert_readable(system)


def test_work_due_after_a_jump_is_done_when_the_clock_is_right_again(bench: Bench, system: System) -> None:
    """Objects due in a year, deletions of their copies in a year, blocks whose grace ends in a year: all of it goes its
    way with the clock that is right again."""
    ahead = SetClock(system.clock.now_ms() + YEAR_MS)
    with bench.open() as jumped:
        jumped.clock = ahead
        keys = bench.put_some(jumped, 20)
    assert bench.produce(system) == 20
    bench.produce(system)

    with bench.open() as jumped:
        jumped.clock = ahead
        bench.consume(jumped)
    assert system.metadata.totals().packed_objects == 20
    assert system.metadata.totals().landing_deletions == 20
    system.worker.housekeeping().run_once()
    assert system.metadata.totals().landing_deletions == 0
    assert list(system.landing.list_ids()) == []

    for key in keys:
        bench.delete(system, key)
    for block in system.metadata.list_blocks(None, 9):
        assert system.metadata.condemn_block(block.block_id, ahead.now_ms())
    gc_service(system).run_once()
    assert system.metadata.list_blocks(None, 9) == []
    bench.assert_at_rest(system)


def test_events_held_by_a_consumer_that_died_after_a_jump_are_packed(bench: Bench) -> None:
    """Once the dead one's session has ended."""
    bench.config.write_text(bench.config.read_text().replace("session_ms = 30000", "session_ms = 3000"))
    with bench.open() as system:
        _pack_what_a_dead_consumer_holds(bench, system)


def _pack_what_a_dead_consumer_holds(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 20)
    bench.produce(system)
    with bench.open() as jumped:
        jumped.clock = SetClock(system.clock.now_ms() + YEAR_MS)
        with closing(jumped.worker.log_consumer("dead")) as dead:
            dead.poll(1, 0)
            assert dead.assignment()
            bench.consume(system)
    assert system.metadata.totals().packed_objects == len(keys)


def test_gc_does_not_seem_to_run_after_a_jump(system: System) -> None:
    system.metadata.acquire_lease(LEASE_NAME, system.clock.now_ms() + YEAR_MS, LEASE_MS_MAX)
    assert not gc_status_data(system)["running"]


def test_a_deadline_within_the_maximum_counts(bench: Bench, system: System) -> None:
    soon = SetClock(system.clock.now_ms() + WAIT_MS_MAX - YEAR_MS // 365)
    with bench.open() as jumped:
        jumped.clock = soon
        bench.put_some(jumped, 3)
    assert bench.produce(system) == 0


def test_a_lease_of_the_longest_length_counts_until_it_is_over(system: System) -> None:
    now_ms = system.clock.now_ms()
    lease = system.metadata.acquire_lease("long", now_ms, LEASE_MS_MAX)
    assert system.metadata.expired_leases(now_ms) == []
    assert not system.metadata.fence_lease(lease, now_ms)
    assert system.metadata.expired_leases(now_ms - 1) == [lease]
    assert system.metadata.expired_leases(now_ms + LEASE_MS_MAX) == [lease]


def test_a_holder_does_not_trust_a_lease_from_before_its_clock_was_set_back(system: System) -> None:
    now_ms = system.clock.now_ms()
    ahead = SetClock(now_ms + YEAR_MS)
    system.clock = ahead
    with system.lease("mine", 30_000) as held:
        assert held.left_ms() == 30_000
        held._clock = SetClock(now_ms)
        assert held.left_ms() == 0
        assert held.renew()
        assert held.left_ms() == 30_000
        assert system.metadata.expired_leases(now_ms) == []


@pytest.mark.parametrize("ahead_ms", [0, LEASE_MS_MAX // 2])
def test_clocks_that_differ_by_less_than_the_longest_lease_fence_no_process(system: System, ahead_ms: int) -> None:
    now_ms = system.clock.now_ms()
    system.metadata.acquire_lease("w", now_ms + ahead_ms, 30_000)
    assert system.metadata.expired_leases(now_ms) == []
