"""Measures time, CPU and OSD counters between two moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nos_ec.bench.bare import Timer
from nos_ec.bench.figures import Run
from nos_ec.bench.servers.cluster import BenchCluster, OsdCounters
from nos_ec.bench.servers.processes import Processes

NO_COUNTERS = OsdCounters(0, 0, 0, {}, 0)


@dataclass(frozen=True, slots=True)
class Instruments:
    """The instruments of a benchmark. `osds` is None if the store is not on Ceph; the counters of OSDs are then 0."""

    timer: Timer
    processes: Processes
    osds: BenchCluster | None

    @property
    def cluster(self) -> BenchCluster:
        """The cluster, for benchmarks that need Ceph."""
        assert self.osds is not None
        return self.osds


class Meter:
    """Measures one run: call `prepare`, `start` (may be repeated; the last call counts) and `stop`, then read `run`.

    As a context manager, it measures the `with` block.
    """

    def __init__(self, instruments: Instruments, drawn: Sequence[int]) -> None:
        """Measure a run that stores objects of the sizes `drawn`, in bytes."""
        self._instruments = instruments
        self._objects = len(drawn)
        self._bytes = sum(drawn)
        self._before: OsdCounters | None = None
        self._after: OsdCounters | None = None
        self._cpu_s: Mapping[str, float | None] = {}
        self._started_s = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        self.prepare()
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def into(self, runs: dict[str, Run], step: str) -> Iterator[None]:
        """Measure the `with` block, and keep the measurements as those of a step."""
        with self:
            yield
        runs[step] = self.run

    def prepare(self) -> None:
        """Wait until the OSDs are at rest, then record their counters."""
        osds = self._instruments.osds
        self._before = NO_COUNTERS if osds is None else osds.settled_counters()

    def start(self) -> None:
        """Start or restart the measurement."""
        self._cpu_s = self._instruments.processes.cpu_s()
        self._started_s = self._instruments.timer()

    def stop(self) -> None:
        """End the measurement."""
        self._seconds = self._instruments.timer() - self._started_s
        self._cpu_s = spent_s(self._instruments.processes, self._cpu_s)
        osds = self._instruments.osds
        self._after = NO_COUNTERS if osds is None else osds.counters()

    @property
    def run(self) -> Run:
        """The measurements."""
        before, after = self._before, self._after
        assert before is not None
        assert after is not None
        return Run(
            objects=self._objects,
            bytes=self._bytes,
            seconds=self._seconds,
            cpu_s=self._cpu_s,
            client_writes=after.client_writes - before.client_writes,
            store_writes=after.store_writes - before.store_writes,
            allocated_bytes=after.allocated_bytes - before.allocated_bytes,
        )


def spent_s(processes: Processes, before: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the CPU seconds that each group has used since `cpu_s` returned `before`; None if they are unknown."""
    return {name: _less(after, before[name]) for name, after in processes.cpu_s().items()}


def _less(value: float | None, before: float | None) -> float | None:
    return None if value is None or before is None else value - before
