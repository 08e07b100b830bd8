"""What objects cost as landing copies and as records of segments on Ceph: put, read and deleted (docs/MEASUREMENTS.md).

Measures the two adapters alone, without metadata. Landing copies: as many callers as it takes to gather batches of the
given size on two lanes, each with one put under way. Segments: two lanes, each with one append of a batch under way.
The OSDs' processor time is taken from /proc, less what they use when idle. Prints medians as Markdown, and JSON.

    deploy/dev/ceph.sh start
    .venv/bin/python tests/soak/segment_medium.py --ceph var/dev/ceph
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.client.removal import remove_namespace
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.adapters.rados.segment_log import RadosSegmentLog
from nos_ec.bench.workloads import sizes
from nos_ec.core.formats.landing_format import footer_size
from nos_ec.core.ids import LandingId, SegmentId, new_segment_id

T = TypeVar("T")

POOL = "nos-ec-landing"
LANES = 2
READERS = 4
RUN_BYTES_MAX = 4 << 20
RECORD_BYTES = 128
"""Header and names of a record, about."""
SIZE_MAX = (1 << 20) - RECORD_BYTES
"""Larger objects are never records."""
IDLE_S = 2.0
SETTLE_S = 1.0
"""OSDs continue to work for a moment after the last answer."""


class Cpu:
    """Processor time of the OSDs of a cluster that deploy/dev/ceph.sh started, in seconds."""

    def __init__(self, folder: Path) -> None:
        self._pids = [int(file.read_text()) for file in folder.glob("run/osd.*.pid")]
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._idle: list[float] = []
        """Seconds in a second."""

    def look_at_idle(self) -> None:
        """Look at what is used while nothing is done."""
        before, begun_s = self._used_s(), time.monotonic()
        time.sleep(IDLE_S)
        self._idle.append((self._used_s() - before) / (time.monotonic() - begun_s))

    @contextmanager
    def measured(self) -> Iterator[Measured]:
        """Measure what is done within."""
        measured = Measured()
        osds, process, begun_s = self._used_s(), time.process_time(), time.monotonic()
        yield measured
        measured.wall_s = time.monotonic() - begun_s
        measured.client_s = time.process_time() - process
        time.sleep(SETTLE_S)
        measured.osds_s = self._used_s() - osds - fmean(self._idle) * (time.monotonic() - begun_s)

    def _used_s(self) -> float:
        fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self._pids]
        return self._tick_s * sum(int(each[11]) + int(each[12]) for each in fields)


class Measured:
    """What some work took, in seconds."""

    wall_s = client_s = osds_s = 0.0


class Copies:
    """One landing copy an object."""

    def __init__(self, cluster: RadosCluster, namespace: str, callers: int) -> None:
        self._store = RadosLandingStore(cluster, POOL, namespace)
        self._callers = callers
        self.ids: list[LandingId] = []

    def put(self, objects: Callable[[], list[bytes]], seconds: float) -> list[float]:
        """PUT for so long. Returns the time that each object took."""
        end_s, took_s = time.monotonic() + seconds, []

        def work(_: int) -> None:
            while time.monotonic() < end_s:
                for data in objects():
                    landing_id, begun_s = LandingId(os.urandom(16)), time.monotonic()
                    self._store.put(landing_id, data)
                    took_s.append(time.monotonic() - begun_s)
                    self.ids.append(landing_id)

        everywhere(work, self._callers)
        return took_s

    def read(self, seconds: float) -> int:
        """Read objects for so long, again from the first if need be. Returns their number."""
        return repeatedly(self.ids, seconds, lambda landing_id: len([self._store.read(landing_id)]))

    def delete(self) -> int:
        """Delete all; returns their number."""
        assert self._store.delete_many(self.ids) == {}
        return len(self.ids)

    def close(self) -> None:
        self._store.close()


class Segments:
    """Batches of records in segments."""

    def __init__(self, cluster: RadosCluster, namespace: str, batch: int) -> None:
        self._medium = RadosSegmentLog(cluster, POOL, bytes(16), namespace)
        self._batch = batch
        self.places: dict[SegmentId, list[tuple[int, int]]] = defaultdict(list)
        self.objects = self.batches = 0

    def put(self, objects: Callable[[], list[bytes]], seconds: float) -> list[float]:
        """PUT for so long. Returns the time that each object took, from the append on."""
        limits, end_s = self._medium.limits, time.monotonic() + seconds
        numbers, took_s, counting = itertools.count(1), [], threading.Lock()

        def work(lane: int) -> None:
            while time.monotonic() < end_s:
                segment, end = new_segment_id(next(numbers), lane), limits.start
                writer = self._medium.create(segment, 1, 1)
                places = self.places[segment]
                while time.monotonic() < end_s:
                    records: list[bytes] = []
                    while len(records) < self._batch and sum(len(data) for data in records) < limits.batch_bytes_max:
                        records += objects()
                    buffers, size = [], 0
                    for data in records:
                        places.append((end + size, len(data) + RECORD_BYTES))
                        buffers += [bytes(RECORD_BYTES), data]
                        size += len(data) + RECORD_BYTES
                    buffers.append(bytes(-size % limits.align))
                    size += -size % limits.align
                    if end + size > limits.segment_bytes:
                        del places[-len(records) :]
                        break
                    begun_s = time.monotonic()
                    writer.append(end, buffers)
                    took_s.extend([time.monotonic() - begun_s] * len(records))
                    end += size
                    with counting:
                        self.objects += len(records)
                        self.batches += 1
                self._medium.seal(segment, [bytes(footer_size(max(1, len(places)), limits.align))], len(places))

        everywhere(work, LANES)
        return took_s

    def read(self, seconds: float) -> int:
        """Read objects in runs for so long. Returns their number."""

        def read(wanted: tuple[SegmentId, tuple[int, int], list[tuple[int, int]]]) -> int:
            segment, run, records = wanted
            (data,) = self._medium.read(segment, [run])
            view = memoryview(data)
            return len([bytes(view[at - run[0] : at - run[0] + length]) for at, length in records])

        return repeatedly(list(self._runs()), seconds, read)

    def read_each(self, seconds: float) -> int:
        """Read objects one by one for so long. Returns their number."""
        places = [(segment, place) for segment, places in self.places.items() for place in places]
        return repeatedly(places, seconds, lambda wanted: len(self._medium.read(wanted[0], [wanted[1]])))

    def _runs(self) -> Iterator[tuple[SegmentId, tuple[int, int], list[tuple[int, int]]]]:
        """Records that are read at once: segment, range, places."""
        for segment, places in self.places.items():
            records: list[tuple[int, int]] = []
            for at, length in places:
                if records and at + length - records[0][0] > RUN_BYTES_MAX:
                    yield segment, run_of(records), records
                    records = []
                records.append((at, length))
            if records:
                yield segment, run_of(records), records

    def delete(self) -> int:
        """Release all; returns the number of objects."""
        assert self._medium.release(list(self.places)) == {}
        return self.objects

    def close(self) -> None:
        self._medium.close()


def run_of(records: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The range that holds these."""
    return records[0][0], records[-1][0] + records[-1][1] - records[0][0]


_taking = threading.Lock()


def repeatedly(wanted: Sequence[T], seconds: float, read: Callable[[T], int]) -> int:
    """Read all for so long, again from the first if need be, in several threads. Returns the number of objects."""
    left, end_s, counts = itertools.cycle(wanted), time.monotonic() + seconds, []

    def work(_: int) -> None:
        while time.monotonic() < end_s:
            with _taking:
                one = next(left)
            counts.append(read(one))

    everywhere(work, READERS)
    return sum(counts)


def everywhere(work: Callable[[int], object], threads: int) -> None:
    """Do it in this many threads at once."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def source(workload: str, seed: int) -> Callable[[], list[bytes]]:
    """Gives one object at a time, of incompressible bytes."""
    rng = random.Random(seed)
    content = rng.randbytes(2 << 20)
    drawn = (
        itertools.cycle([size for size in sizes("W1", 5000, rng, 4 << 20) if size <= SIZE_MAX])
        if workload == "W1"
        else itertools.repeat(int(workload.removesuffix("K")) << 10)
    )
    starts = itertools.cycle([rng.randrange(1 << 20) for _ in range(997)])

    def one() -> list[bytes]:
        with _taking:
            size, start = next(drawn), next(starts)
        return [content[start : start + size]]

    return one


def life(store: Copies | Segments, workload: str, options: argparse.Namespace, cpu: Cpu) -> dict[str, float]:
    """Put, read and delete. Milliseconds of the OSDs' processors an object, rates a second."""
    found: dict[str, float] = {}
    cpu.look_at_idle()
    with cpu.measured() as put:
        took_s = sorted(store.put(source(workload, options.seed), options.seconds))
    count = len(took_s)
    found |= {"puts": count / put.wall_s, "put_osd_ms": 1e3 * put.osds_s / count}
    found |= {"put_client_ms": 1e3 * put.client_s / count}
    found |= {"p50_ms": 1e3 * took_s[count // 2], "p99_ms": 1e3 * took_s[count * 99 // 100]}
    if isinstance(store, Segments):
        found["batch"] = store.objects / store.batches
        with cpu.measured() as reading:
            count = store.read_each(options.seconds / 2)
        found |= {"single_reads": count / reading.wall_s, "single_read_osd_ms": 1e3 * reading.osds_s / count}
    with cpu.measured() as reading:
        count = store.read(options.seconds / 2)
    found |= {"reads": count / reading.wall_s, "read_osd_ms": 1e3 * reading.osds_s / count}
    with cpu.measured() as deleting:
        count = store.delete()
    found |= {"delete_osd_ms": 1e3 * deleting.osds_s / count, "deletes": count / deleting.wall_s}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ceph", type=Path, required=True, help="folder of a cluster of deploy/dev/ceph.sh")
    parser.add_argument("--workloads", nargs="+", default=["4K", "64K", "W1"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 20])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cpu = Cpu(options.ceph)
    found: dict[tuple[str, int, str], list[dict[str, float]]] = defaultdict(list)
    access = RadosOptions(options.ceph / "ceph.conf", "client.admin", options.ceph / "admin.keyring", 60_000)
    with RadosCluster(access) as cluster:
        for _, workload, batch in itertools.product(range(options.rounds), options.workloads, options.batches):
            namespace = f"medium-{uuid.uuid4().hex[:8]}"
            RadosLandingStore.initialise(cluster, POOL, namespace)
            # With two batches under way, a third is gathered meanwhile.
            callers = (LANES + 1) * batch if batch > 1 else LANES
            for store in (Copies(cluster, namespace, callers), Segments(cluster, namespace, batch)):
                measured = life(store, workload, options, cpu)
                store.close()
                found[workload, batch, type(store).__name__].append(measured)
                print(json.dumps([workload, batch, type(store).__name__, measured]), flush=True)
            remove_namespace(cluster, POOL, namespace)
    print_tables(found, options)


def print_tables(found: dict[tuple[str, int, str], list[dict[str, float]]], options: argparse.Namespace) -> None:
    """Medians, and medians of the ratios within a round."""

    def middle(workload: str, batch: int, kind: str, name: str) -> float:
        return median(each[name] for each in found[workload, batch, kind])

    def ratio(workload: str, batch: int, name: str) -> float:
        """Copies over segments."""
        pairs = zip(found[workload, batch, "Copies"], found[workload, batch, "Segments"], strict=True)
        return median(one[name] / max(log[name], 1e-6) for one, log in pairs)

    print("| objects | batch | PUTs/s, segments / copies | OSD ms a PUT, copies / segments | client ms | p99 ms |")
    print("|---|---:|---:|---|---|---|")
    for workload, batch in itertools.product(options.workloads, options.batches):
        cell = [
            workload,
            f"{middle(workload, batch, 'Segments', 'batch'):.1f}",
            f"{1 / ratio(workload, batch, 'puts'):.1f} ({middle(workload, batch, 'Segments', 'puts'):,.0f})",
        ]
        for name in ("put_osd_ms", "put_client_ms", "p99_ms"):
            one, log = (middle(workload, batch, kind, name) for kind in ("Copies", "Segments"))
            cell.append(f"{ratio(workload, batch, name):.1f} ({one:.2f} -> {log:.2f})")
        print(f"| {' | '.join(cell)} |")
    print("\n| objects | batch | OSD ms: copies, records one by one, runs | reads/s | OSD ms: deletes, releases |")
    print("|---|---:|---|---|---|")
    for workload, batch in itertools.product(options.workloads, options.batches):
        one, each, runs = (
            middle(workload, batch, *which)
            for which in (
                ("Copies", "read_osd_ms"),
                ("Segments", "single_read_osd_ms"),
                ("Segments", "read_osd_ms"),
            )
        )
        rates = (middle(workload, batch, "Copies", "reads"), middle(workload, batch, "Segments", "reads"))
        gone = [middle(workload, batch, kind, "delete_osd_ms") for kind in ("Copies", "Segments")]
        print(
            f"| {workload} | {middle(workload, batch, 'Segments', 'batch'):.1f} | {one:.3f}, {each:.3f}, {runs:.3f}"
            f" | {rates[0]:,.0f} -> {rates[1]:,.0f} | {gone[0]:.3f} -> {gone[1]:.4f} |"
        )


if __name__ == "__main__":
    main()
