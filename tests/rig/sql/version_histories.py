"""Histories of what several callers asked of one key at the same time, and a search for an order that explains them.

A history is linearizable if its steps can be put into an order, each between its call and its return, in which a store
that takes one step after the other gives the same answers and ends in the same state. The search is that of J. M. Wing
and C. Gong (Testing and Verifying Concurrent Objects, 1993), which remembers what it has tried as that of G. Lowe
(Testing for Linearizability, 2017). Keys are searched one by one: a history is linearizable if that of each key is
(M. P. Herlihy and J. M. Wing, Linearizability, 1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.rig.sql.version_model import Answer, Get, GetVersion, Impossible, State, Step

STEPS_MAX = 20
"""Of a history. The search may look at each subset of the steps that overlap, which are those of a few callers."""


@dataclass(frozen=True, slots=True)
class Event:
    """A step that was called and answered at these times, in nanoseconds of a clock that never goes back. call: what
    the steps of one transaction share. They are taken in the order of the history."""

    step: Step
    answer: Answer
    called_ns: int
    answered_ns: int
    call: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The longest order of steps of which each may be followed by the next one, and the state after it. is_whole: all
    steps are in it, and the state is what was found."""

    order: Sequence[Event]
    state: State
    is_whole: bool


def explain(history: Sequence[Event], final: State) -> Explanation:
    """Search an order that explains the history of a key that was new, and in which this was found afterwards. Raises
    ValueError if it is longer than STEPS_MAX."""
    if len(history) > STEPS_MAX:
        raise ValueError(f"a history of {len(history)} steps; the search is meant for {STEPS_MAX} at most")
    places = range(len(history))
    before = [sum(1 << j for j in places if _precedes(history, j, i)) for i in places]
    best = Explanation((), State(), not history and final == State())
    tried = {(0, State())}
    unfinished: list[tuple[int, State, tuple[int, ...]]] = [(0, State(), ())]
    while unfinished and not best.is_whole:
        taken, state, order = unfinished.pop()
        for i, after in _next_steps(history, before, taken, state):
            reached = (taken | 1 << i, after)
            if reached in tried:
                continue
            tried.add(reached)
            longer = (*order, i)
            unfinished.append((*reached, longer))
            is_whole = len(longer) == len(history) and after.shown == final
            if is_whole or len(longer) > len(best.order):
                best = Explanation([history[j] for j in longer], after, is_whole)
    return best


def _next_steps(
    history: Sequence[Event], before: Sequence[int], taken: int, state: State
) -> Sequence[tuple[int, State]]:
    """The steps that may be next, and the state after each. One that changes nothing, whenever it comes, is as good now
    as later, so it is the only one."""
    found = []
    for i, event in enumerate(history):
        if taken >> i & 1 or before[i] & ~taken:
            continue
        try:
            after = event.step.follow(state, event.answer)
        except Impossible:
            continue
        if event.answer is None or isinstance(event.step, Get | GetVersion):
            return [(i, after)]
        found.append((i, after))
    return found


def _precedes(history: Sequence[Event], place: int, other_place: int) -> bool:
    """Whether one event was answered before the other one was called, or comes first in the same call."""
    one, other = history[place], history[other_place]
    return one.answered_ns < other.called_ns or (one.call == other.call and place < other_place)


def told(history: Sequence[Event], final: State) -> str:
    """A history for people: what was called when, in milliseconds, what the answers were, and what was found; how far
    an order explains it, and the state after that."""
    best = explain(history, final)
    begun = min((event.called_ns for event in history), default=0)
    lines = [
        f"{(event.called_ns - begun) / 1e6:9.3f} - {(event.answered_ns - begun) / 1e6:9.3f}  call {event.call}  "
        f"{event.step} -> {event.answer}"
        for event in sorted(history, key=lambda event: event.called_ns)
    ]
    lines += [f"found {final}", f"explained are {len(best.order)} of {len(history)} steps, in this order:"]
    lines += [f"  {event.step} -> {event.answer}" for event in best.order]
    return "\n".join([*lines, f"after them {best.state}"])
