"""Threads that run calls for an event loop.

A ThreadPoolExecutor makes two futures and takes several locks for each call, because any thread may hand it one and any
thread may wait for it. Here the loop alone does both, so a call is one future of the loop and one item of a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Call:
    future: asyncio.Future[Any]
    run: Callable[..., Any]
    arguments: tuple[Any, ...]


class Workers:
    """At most `count` threads, which are started as they are needed. Belongs to one event loop: only its thread calls
    `run`."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._under_way = 0
        """Calls that wait or run. The loop counts them."""

    def run(self, call: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Run a call when a thread is free. The future has what it returns or raises. A call whose future is cancelled
        before its turn comes is not run."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        if len(self._threads) < min(self._under_way, self._count):
            thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._calls.put(_Call(future, call, arguments))
        return future

    def close(self) -> None:
        """Drop the calls that wait, let those that run finish, and end the threads. For when the loop has ended."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._serve(call)
            del call  # it would keep the answer in memory until the next one

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
