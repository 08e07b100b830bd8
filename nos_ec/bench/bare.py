"""Does the same storage work without the product, with librados calls from Python only.

floor  reads landing copies and appends stripes, window by window, with the consumer's concurrency. No metadata, no
       log, no packing, no checksums, no layout: it appends constant bytes.
naive  one write_full per object into an erasure-coded pool, as an object store without packing does.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nos_ec.core.errors import Transient
from nos_ec.engine.texts import count_text

Timer = Callable[[], float]
"""Returns seconds since some fixed moment, and never decreases."""


@dataclass(frozen=True, slots=True)
class BareWindow:
    """One append and the reads before it. Each of `reads` is (name of a RADOS object, offset, length) in bytes;
    `stripe_count` is the number of stripes that the append writes."""

    reads: Sequence[tuple[str, int, int]]
    stripe_count: int


BareGroup = Sequence[BareWindow]
"""The windows of a stripe group, one after the other in the same block."""


class InFlight:
    """Runs at most `limit` asynchronous operations at the same time. `wait` raises their failures."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots = threading.Semaphore(limit)
        self._failed: list[str] = []

    def start(self, operation: Callable[..., Any], *arguments: Any) -> None:
        """Start `operation(*arguments, on_complete)` of the binding once fewer than `limit` operations are in
        flight."""
        self._slots.acquire()
        operation(*arguments, self._done)

    def wait(self) -> None:
        """Wait for all started operations. Raises Transient if one of them failed."""
        for _ in range(self._limit):
            self._slots.acquire()
        for _ in range(self._limit):
            self._slots.release()
        if self._failed:
            raise Transient(
                f"bench: {count_text(len(self._failed), 'operation')} failed, the first with {self._failed[0]}"
            )

    def _done(self, completion: Any, *_data: Any) -> None:
        # Runs on a librados thread.
        code = completion.get_return_value()
        if code < 0:
            self._failed.append(f"errno {-code}")
        self._slots.release()


def put_all(pool: Any, names: Sequence[str], datas: Iterable[bytes], in_flight_max: int) -> None:
    """Write each object with one write_full, at most `in_flight_max` at a time. Durable on return. Raises Transient."""
    running = InFlight(in_flight_max)
    for name, data in zip(names, datas, strict=True):
        running.start(lambda name, data, done: pool.aio_write_full(name, data, done), name, data)
    running.wait()


def remove_all(pool: Any, names: Sequence[str], in_flight_max: int) -> None:
    """Remove objects. Raises Transient."""
    running = InFlight(in_flight_max)
    for name in names:
        running.start(pool.aio_remove, name)
    running.wait()


class Floor:
    """Does the landing reads and stripe appends of groups, on `lanes` threads with `reads` reads in flight in total."""

    def __init__(self, landing: Any, blocks: Any, lanes: int, reads: int) -> None:
        self._landing = landing
        self._blocks = blocks
        self._lanes = lanes
        self._reads = max(1, reads // lanes)
        self._contents: dict[int, bytes] = {}
        self.block_names: list[str] = []

    def run(self, groups: Sequence[BareGroup], stripe_size: int, stripes_per_block: int, prefix: str) -> None:
        """Process the groups. Raises the error of a lane (Transient, or an error of the binding)."""
        waiting: queue.SimpleQueue[BareGroup] = queue.SimpleQueue()
        for group in groups:
            waiting.put(group)

        def lane(number: int) -> None:
            """Write one group at a time into blocks of this lane."""
            block, blocks, stripes = "", 0, stripes_per_block
            while not waiting.empty():
                with suppress(queue.Empty):
                    group = waiting.get_nowait()
                    stripe_count = sum(window.stripe_count for window in group)
                    if stripes + stripe_count > stripes_per_block:
                        block, blocks, stripes = f"{prefix}-{number}-{blocks}", blocks + 1, 0
                        self.block_names.append(block)
                    for window in group:
                        self.read_window(window)
                        self.append_stripes(block, self.stripe_bytes(window.stripe_count * stripe_size))
                    stripes += stripe_count

        with ThreadPoolExecutor(self._lanes, "floor") as pool:
            for _ in pool.map(lane, range(self._lanes)):
                pass

    def read_window(self, window: BareWindow) -> None:
        """Read the landing copies of a window and discard the bytes."""
        running = InFlight(self._reads)
        for name, offset, length in window.reads:
            running.start(self._landing.aio_read, name, length, offset)
        running.wait()

    def append_stripes(self, block: str, data: bytes) -> None:
        """Append `data` to a block. It is durable on return. Raises Transient."""
        completion = self._blocks.aio_append(block, data)
        completion.wait_for_complete()
        if (code := completion.get_return_value()) < 0:
            raise Transient(f"bench: an append failed with errno {-code}")

    def stripe_bytes(self, size_bytes: int) -> bytes:
        """Return bytes to append; always the same for the same size."""
        if size_bytes not in self._contents:
            self._contents[size_bytes] = random.Random(size_bytes).randbytes(size_bytes)
        return self._contents[size_bytes]
