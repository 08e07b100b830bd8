"""Reads what the panels of a page show, so that a panel fails alone.

Each panel has a source, which reads the store in one of a few threads. A page waits for its sources for a limited time.
A source that fails or is late leaves its panel with the previous value and its age, or without a value, and a reason.
So a page is complete while the database or Ceph does not answer, and slow servers cannot occupy all threads: what all
sessions share and what a single page asks for have threads of their own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import structlog

from nos_ec.core.errors import InvalidInput, NosError, NotFound
from nos_ec.monitoring.monitor import COST_SHARE
from nos_ec.ports.clock import Clock, waits

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)

THREADS = 8
"""The number of threads that read panels which all sessions share; as many again read what single pages show."""
WAIT_S_MAX = 3.0
"""How long a page waits for its panels."""
FAILED_MS = 3_000
"""How long a source that failed is not tried again."""
GOOD_MS_MAX = 600_000
"""The age at which a value is read again even if reading it took very long: a server may have hung meanwhile, or the
clock may have been set forward."""
ONCE_MAX = 32
"""The most sources of single pages that are under way or late."""
KEPT_MS = 60_000
LATE = "The store has not answered yet. Reload the page in a few seconds."
BUG = "This panel failed because of a mistake in the program; the log of the console has the details."


def status_of(error: NosError) -> HTTPStatus:
    """Return the status of a page whose only panel failed like that. A page about what cannot be read now is still the
    right page."""
    if isinstance(error, NotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(error, InvalidInput) else HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class Panel(Generic[_T]):
    """What a panel shows: the last value that was read and the time of that, and why there is no newer one ("": the
    value is current). `status` is that of a page about nothing else: it is not OK if what the page is about does not
    exist, or cannot."""

    value: _T | None = None
    at_ms: int | None = None
    error: str = ""
    status: HTTPStatus = HTTPStatus.OK


class _Threads:
    """Runs calls in up to THREADS threads. They are daemon threads: one that waits for a server that does not answer
    does not keep the process alive, as those of a ThreadPoolExecutor would."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._ends: list[Future[None]] = []
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Run a call, which must not raise, when a thread is free."""
        future: Future[None] = Future()
        self._calls.put((future, call))
        with self._lock:
            if len(self._ends) < THREADS:
                end: Future[None] = Future()
                name = f"panel-{len(self._ends)}"
                self._ends.append(end)
                threading.Thread(target=self._work, args=(end,), name=name, daemon=True).start()
        return future

    def close(self) -> list[Future[None]]:
        """Drop the waiting calls, and end the threads, each after its call. Returns what to wait for."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in range(THREADS):
            self._calls.put(None)
        with self._lock:
            return list(self._ends)

    def _work(self, end: Future[None]) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                call()
                future.set_result(None)
        end.set_result(None)


class Source(Generic[_T]):
    """Reads the value of a panel. It is read again when it is older than `age_ms_max` and than ten times as long as
    reading it took. `key` names what a source of a single page reads. Safe to call from several threads."""

    def __init__(
        self,
        make: Callable[[], _T],
        clock: Clock,
        threads: _Threads,
        age_ms_max: int,
        key: Hashable | None = None,
        is_partial: Callable[[_T], bool] | None = None,
    ) -> None:
        self.key = key
        self._is_partial = is_partial
        self._make = make
        self._clock = clock
        self._threads = threads
        self._age_ms_max = age_ms_max
        self._lock = threading.Lock()
        self._flight: Future[None] | None = None
        self._last: Panel[_T] = Panel()
        self._good_for_ms = 0
        self._good_until_ms = 0

    @property
    def last(self) -> Panel[_T]:
        """The result of the last attempt."""
        return self._last

    @property
    def is_late(self) -> bool:
        """Whether reading is under way."""
        return self._flight is not None

    def begin(self) -> Future[None] | None:
        """Begin to read, unless that is under way or the last result is still good. Returns what to wait for."""
        with self._lock:
            if self._flight is None and not waits(self._good_until_ms, self._clock.now_ms(), self._good_for_ms):
                self._flight = self._threads.submit(self._read)
            return self._flight

    def _read(self) -> None:
        started_ms = self._clock.now_ms()
        try:
            found, good_for_ms = Panel(self._make(), started_ms), self._age_ms_max
        except NosError as error:
            found, good_for_ms = self._failed(str(error), status_of(error)), FAILED_MS
        except Exception:
            _log.exception("a panel failed")
            found, good_for_ms = self._failed(BUG), FAILED_MS
        ended_ms = self._clock.now_ms()
        with self._lock:
            self._last = found
            if found.value is not None and self._is_partial is not None and self._is_partial(found.value):
                good_for_ms = FAILED_MS
            elif not found.error:
                good_for_ms = max(good_for_ms, min(COST_SHARE * (ended_ms - started_ms), GOOD_MS_MAX))
            self._good_for_ms = good_for_ms
            self._good_until_ms = ended_ms + self._good_for_ms
            self._flight = None

    def give_up(self) -> None:
        """Do not read any more if that has not begun yet."""
        with self._lock:
            if self._flight is not None and self._flight.cancel():
                self._last = self._failed(LATE)
                self._flight = None

    def _failed(self, why: str, status: HTTPStatus = HTTPStatus.OK) -> Panel[_T]:
        return Panel(self._last.value, self._last.at_ms, why, status)


class Panels:
    """Makes the sources of panels, and reads them."""

    def __init__(self, clock: Clock, wait_s_max: float = WAIT_S_MAX) -> None:
        self._clock = clock
        self._wait_s_max = wait_s_max
        self._shared, self._single = _Threads(), _Threads()
        self._once: OrderedDict[Hashable, Source[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._kept: list[Source[Any]] = []
        self._next_ms = 0
        self._close_with: list[Callable[[], object]] = []

    def source(
        self, make: Callable[[], _T], age_ms_max: int, is_partial: Callable[[_T], bool] | None = None
    ) -> Source[_T]:
        """Return a source whose value `make` reads for all sessions. A value that `is_partial` lacks what could not be
        read, and is read again as soon as one that failed."""
        return Source(make, self._clock, self._shared, age_ms_max, is_partial=is_partial)

    def once(self, key: Hashable, make: Callable[[], _T]) -> Source[_T]:
        """Return a source whose value `make` reads for a single page. `key` names what that is: if the same is still
        being read, or was late for an earlier page, it is that source, so that reloading a page shows its value."""
        with self._lock:
            source = self._once.get(key)
            if source is None:
                source = self._once[key] = Source(make, self._clock, self._single, 0, key)
                if len(self._once) > ONCE_MAX:
                    self._once.popitem(last=False)[1].give_up()
            return source

    def forget(self, key: Hashable) -> None:
        """Forget what was read for single pages under a key, because it has changed."""
        with self._lock:
            self._once.pop(key, None)

    def read(self, source: Source[_T]) -> Panel[_T]:
        """Return what a source has to show."""
        self.wait_for(source)
        return self.shown(source)

    def wait_for(self, *sources: Source[Any], beside: Collection[Source[Any]] = ()) -> None:
        """Read these sources at the same time, and wait for them, but not longer than a page may take. The sources of
        `beside` read servers that are not part of the store: if one failed the last time, it is read again, but not
        waited for, so that pages do not become slow with it."""
        failed = [source for source in beside if source.last.error]
        for source in failed:
            source.begin()
        waited = (*sources, *(source for source in beside if source not in failed))
        wait([flight for source in waited if (flight := source.begin()) is not None], self._wait_s_max)
        for source in sources:
            if source.key is not None and not source.is_late:
                with self._lock:
                    if self._once.get(source.key) is source:
                        del self._once[source.key]

    def shown(self, source: Source[_T]) -> Panel[_T]:
        """Return what a source has to show now. While it is late, that is its previous value."""
        is_late, last = source.is_late, source.last
        return Panel(last.value, last.at_ms, last.error or LATE) if is_late else last

    def keep_reading(self, source: Source[Any]) -> None:
        """Read a source every KEPT_MS even if nobody looks at its panel, because it remembers what it has read."""
        self._kept.append(source)

    def turn(self) -> None:
        """Begin what is due of `keep_reading`. The loop of the process calls this."""
        now_ms = self._clock.now_ms()
        if not waits(self._next_ms, now_ms, KEPT_MS):
            self._next_ms = now_ms + KEPT_MS
            for source in self._kept:
                source.begin()

    def close_with(self, close: Callable[[], object]) -> None:
        """Call `close`, which must not raise, when the panels are closed: for other work that pages have begun."""
        self._close_with.append(close)

    def close(self) -> None:
        """Stop reading. What is being read may use the store for as long as a page may take; a server that does not
        answer then is not waited for."""
        ends = [*self._shared.close(), *self._single.close()]
        for close in self._close_with:
            close()
        wait(ends, self._wait_s_max)
