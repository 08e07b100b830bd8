"""Runs a closed loop: callers that make their next call as soon as the last one has returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event, Lock
from typing import TypeVar

from nos_ec.bench.bare import Timer

T = TypeVar("T")


def call_all(callers: int, items: Iterable[T], call: Callable[[T], object], timer: Timer) -> list[float]:
    """Call `call` with each item, from `callers` threads, and return the durations of the calls in seconds, in no
    particular order. After an error no further call is made, and the first error is raised."""
    rest, lock, ended = iter(items), Lock(), Event()
    errors: list[BaseException] = []

    def make_calls() -> list[float]:
        seconds: list[float] = []
        try:
            while not ended.is_set():
                with lock:
                    taken = list(islice(rest, 1))
                if not taken:
                    break
                started_s = timer()
                call(taken[0])
                seconds.append(timer() - started_s)
        except BaseException as error:
            errors.append(error)
            ended.set()
        return seconds

    with ThreadPoolExecutor(callers, "bench-caller") as pool:
        try:
            found = [seconds for made in pool.map(lambda _: make_calls(), range(callers)) for seconds in made]
        finally:
            ended.set()
    if errors:
        raise errors[0]
    return found
