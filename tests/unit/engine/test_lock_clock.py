"""The lock time never runs ahead of real time, whatever the clocks show."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.engine.upkeep.lock_clock import CATCH_UP, TICK_S, LockClock
from nos_ec.ports.metadata import LockTimes

START_MS = 1_700_000_000_000
TICK_MS = round(TICK_S * 1000)


@dataclass
class World:
    """Real time, and how far the clocks of a host and of the database are ahead of it. It is also the metadata."""

    real_ms: int = START_MS
    host_ahead_ms: int = 0
    database_ahead_ms: int = 0
    lock_ms: int = 0

    def now_ms(self) -> int:
        """The clock of the host."""
        return self.real_ms + self.host_ahead_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Nothing waits here."""
        raise AssertionError

    def timer(self) -> float:
        """A monotonic clock."""
        return (self.real_ms - START_MS) / 1000 + 7

    def lock_times(self) -> LockTimes:
        """See `Locks`."""
        return LockTimes(self.lock_ms, self.real_ms + self.database_ahead_ms)

    def advance_lock_time(self, seen_ms: int, to_ms: int) -> bool:
        """See `Locks`."""
        if self.lock_ms != seen_ms or to_ms <= seen_ms:
            return False
        self.lock_ms = to_ms
        return True

    def watched(self) -> LockClock:
        """A process that watches the lock time, which has started."""
        clock = LockClock(self, self, self.timer)
        clock.run_once()
        clock.run_once()
        return clock

    def pass_ms(self, ms: int, *clocks: LockClock) -> None:
        """Let time pass, and let each process look once."""
        self.real_ms += ms
        for clock in clocks:
            clock.run_once()


def test_it_starts_at_the_earlier_clock_and_follows_real_time() -> None:
    world = World(host_ahead_ms=5, database_ahead_ms=-3)
    clock = world.watched()
    assert world.lock_ms == START_MS - 3
    for _ in range(10):
        world.pass_ms(TICK_MS, clock)
    assert world.lock_ms == START_MS - 3 + 10 * TICK_MS


@pytest.mark.parametrize("ahead", ["host_ahead_ms", "database_ahead_ms"])
def test_a_clock_that_jumps_ahead_or_back_changes_nothing_or_stops_it(ahead: str) -> None:
    world = World()
    clock = world.watched()
    for jump_ms in (10**12, -(10**12)):
        setattr(world, ahead, jump_ms)
        world.pass_ms(TICK_MS, clock)
    assert START_MS + TICK_MS <= world.lock_ms <= world.real_ms


def test_both_clocks_jump_ahead() -> None:
    world = World()
    clock = world.watched()
    world.host_ahead_ms = world.database_ahead_ms = 10**12
    for _ in range(5):
        world.pass_ms(TICK_MS, clock)
    assert world.lock_ms == world.real_ms


def test_two_processes_count_no_moment_twice() -> None:
    world = World()
    one, two = world.watched(), LockClock(world, world, world.timer)
    for _ in range(20):
        world.pass_ms(TICK_MS // 2, one)
        world.pass_ms(TICK_MS // 2, two, one)
    assert world.real_ms - TICK_MS <= world.lock_ms <= world.real_ms


def test_a_gap_is_caught_up_slowly_and_not_exceeded() -> None:
    world = World()
    world.watched()
    gap_ms = TICK_MS // 2
    world.pass_ms(gap_ms)
    clock = world.watched()
    for round_number in range(1, CATCH_UP):
        world.pass_ms(TICK_MS, clock)
        behind_ms = world.real_ms - world.lock_ms
        assert behind_ms == max(0, gap_ms - round_number * (TICK_MS // CATCH_UP))


@given(
    st.lists(st.tuples(st.integers(1, 3 * TICK_MS), st.sampled_from([0, 10**9, -(10**9)]), st.booleans()), max_size=20)
)
def test_whatever_happens_it_runs_at_most_a_part_too_fast(moves: list[tuple[int, int, bool]]) -> None:
    world = World()
    clocks = [world.watched(), LockClock(world, world, world.timer)]
    for ms, ahead_ms, restarts in moves:
        world.host_ahead_ms = world.database_ahead_ms = ahead_ms
        before = world.lock_ms
        world.pass_ms(ms, *clocks)
        assert before <= world.lock_ms <= START_MS + (world.real_ms - START_MS) * (CATCH_UP + 1) // CATCH_UP
        if restarts:
            clocks[0] = LockClock(world, world, world.timer)
