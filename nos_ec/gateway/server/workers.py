"""Threads that run calls for an event loop.

A ThreadPoolExecutor makes two futures and takes several locks for each call, because any thread may submit calls and
wait for them. Here only the loop does, so a call needs just one future of the loop and one item in a queue.

9  a call that waits for its client lets another one run; the waiting calls hold at most ASIDE_BYTES_MAX in memory
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, TypeVar

ASIDE_BYTES_MAX = 128 << 20
"""How much memory all calls that have stepped aside may hold together."""
ASIDE_BYTES_EACH = 32 << 20
"""How much memory one of them may hold. The engine keeps one block of a body in memory."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Call:
    future: asyncio.Future[Any]
    run: Callable[..., Any]
    arguments: tuple[Any, ...]


class Workers:
    """Runs at most `count` calls at a time, not counting calls that have stepped aside. Threads are started when
    needed. Only the thread of the event loop calls `run`."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._turns = Semaphore(count)
        self._lock = Lock()
        self._closed = False
        self._under_way = 0
        """Number of calls that wait or run. Only the loop changes it."""
        self._aside = 0
        self._aside_bytes = 0

    def run(self, call: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Run a call when a thread is free. The future gets its result or its exception. A call is not run if its
        future is cancelled before its turn."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._calls.put(_Call(future, call, arguments))
        with self._lock:
            self._start_thread()
        return future

    @contextmanager
    def step_aside(self, held_bytes: int) -> Iterator[None]:
        """Let another call run during the block, and wait for a turn at its end. For a call that waits for its client
        and holds `held_bytes` in memory meanwhile. If that is too much, the call keeps its turn."""
        held_bytes = min(held_bytes, ASIDE_BYTES_EACH)
        with self._lock:
            keeps_turn = self._aside_bytes + held_bytes > ASIDE_BYTES_MAX
            if not keeps_turn:
                self._aside += 1
                self._aside_bytes += held_bytes
                self._start_thread()
        if keeps_turn:
            yield
            return
        self._turns.release()
        try:
            yield
        finally:
            self._turns.acquire()
            with self._lock:
                self._aside -= 1
                self._aside_bytes -= held_bytes

    def _start_thread(self) -> None:
        """Start a thread if more calls may run than there are threads. The caller holds the lock."""
        if not self._closed and len(self._threads) < min(self._under_way, self._count + self._aside):
            thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Drop the waiting calls, let the running ones finish, and end the threads. Call it when the loop has ended."""
        with self._lock:
            # From now on no thread may be started: it would take the None that ends another one.
            self._closed = True
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._turns:
                self._serve(call)
            del call  # the variable would keep the answer in memory until the next call

    def _serve(self, call: _Call) -> None:
        result, error = None, None
        if not call.future.cancelled():
            try:
                result = call.run(*call.arguments)
            except BaseException as raised:
                error = raised
        with suppress(RuntimeError):  # the loop has ended
            call.future.get_loop().call_soon_threadsafe(self._end, call.future, result, error)

    def _end(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._under_way -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
