"""The cost of a read for the OSDs, computed by the client from the position of the range in the stripes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nos_ec.core.geometry import Geometry
from nos_ec.ports.block_store import ReadCounters


@dataclass(frozen=True, slots=True)
class ReadCost:
    """The cost of reads in a pool. `granularity` is the smallest number of bytes that an OSD reads: a page with
    Tentacle's `allow_ec_optimizations`, a chunk without it. Before Tentacle it is a stripe, because every read then
    goes to k OSDs."""

    geometry: Geometry
    granularity: int

    def of(self, offset: int, length: int) -> tuple[int, int]:
        """Return (number of OSDs that read, bytes that they read) for a range, assuming that no OSD is down."""
        if not length:
            return 0, 0
        step = self.granularity
        start, end = offset // step * step, -(-(offset + length) // step) * step
        return self.geometry.shards_touched(start, end - start), end - start


class ReadCounter:
    """Adds up the cost of reads. Safe to call from several threads."""

    def __init__(self, cost: ReadCost) -> None:
        self._cost = cost
        self._lock = threading.Lock()
        self._reads = 0
        self._bytes = 0
        self._timed_out = 0

    def count(self, offset: int, length: int) -> None:
        """Count the read of a range."""
        shards, size_bytes = self._cost.of(offset, length)
        with self._lock:
            self._reads += shards
            self._bytes += size_bytes

    @contextmanager
    def counting_time_outs(self) -> Iterator[None]:
        """Count an OSError that means that an operation got no answer in time."""
        try:
            yield
        except TimeoutError:
            with self._lock:
                self._timed_out += 1
            raise

    def counters(self) -> ReadCounters:
        """Return the sums so far. Ceph's OSDs decode without reporting it to clients, so degraded_reads is always 0."""
        with self._lock:
            return ReadCounters(self._reads, self._bytes, 0, self._timed_out)
