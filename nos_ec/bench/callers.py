"""Runs a closed loop: callers that make their next call as soon as the last one has returned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from nos_ec.bench.bare import Timer

T = TypeVar("T")


def call_all(callers: int, items: Iterable[T], call: Callable[[T], object], timer: Timer) -> list[float]:
    """Call `call` with each item, from `callers` threads, and return the durations of the calls in seconds, in no
    particular order. After an error no further call is made, and the first error is raised."""
    shared = _Shared(items)
    threads = [_Caller(shared, call, timer) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if shared.error is not None:
        raise shared.error
    return [seconds for thread in threads for seconds in thread.seconds]


class _Shared:
    """The remaining items. Safe to use from several threads."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def take(self) -> Iterator[object]:
        """Yields items until none is left or a call has failed."""
        while True:
            with self._lock:
                if self.error is not None:
                    return
                try:
                    item = next(self._items)
                except StopIteration:
                    return
            yield item

    def fail(self, error: BaseException) -> None:
        """Record an error, which ends all callers."""
        with self._lock:
            self.error = self.error or error


class _Caller(threading.Thread):
    def __init__(self, shared: _Shared, call: Callable[..., object], timer: Timer) -> None:
        super().__init__(name="bench-caller", daemon=True)
        self._shared = shared
        self._call = call
        self._timer = timer
        self.seconds: list[float] = []

    def run(self) -> None:
        call, timer, seconds = self._call, self._timer, self.seconds
        try:
            for item in self._shared.take():
                started_s = timer()
                call(item)
                seconds.append(timer() - started_s)
        except BaseException as error:
            self._shared.fail(error)
