"""`bench read` compares GETs of small packed objects with a bare read of the same bytes plus one indexed row look-up.

The two ways alternate after each read, each with its own random choice of objects, so that neither benefits more often
from bytes that the other has cached. The sizes follow W2, or all objects have the same size. Every object is packed
first; none is read from its landing copy.

If all objects have the same size, GETs of split objects are compared with GETs of the others, in turns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nos_consumer.assemble import drain
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.bench.figures import latency_ms
from nos_ec.bench.meter import Instruments, spent_s
from nos_ec.bench.objects import Objects
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import PAGE
from nos_ec.core.packing.packer import size_max
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectRow
from nos_producer.assemble import producer_service

WORKLOAD = "W2"
"""The workload, unless all objects have the same size."""
LOOK_UP = "SELECT block_id, block_offset, size FROM objects WHERE trashed = '' AND bucket = %s AND name = %s"
WARM_UP_READS = 50
TURN_READS = 20
"""CPU time is measured over this many GETs of split objects, or of others."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of `bench read`. `drawn` is the name of a workload, or the size of every object in bytes. `objects` are
    packed, and `reads` GETs are timed in each way. The reading OSDs are counted for `sample` GETs."""

    drawn: str | int
    objects: int
    reads: int
    sample: int
    seed: int


class ReadBench:
    """A run on an empty store. It is not cleaned up, because it is removed entirely."""

    def __init__(self, system: System, instruments: Instruments, options: ReadOptions) -> None:
        self._system = system
        self._instruments = instruments
        self._options = options
        self._rng = random.Random(options.seed)

    def run(self) -> dict[str, Any]:
        """Run the benchmark, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        rows, drawn = self.packed_rows(), self._options.drawn
        ceph = self._system.settings.ceph
        with self._instruments.cluster.bare_pools(ceph.namespace, ceph.blocks_pool) as (blocks,):
            figures = self._timed(blocks, rows)
        figures |= self._counted(rows)
        if isinstance(drawn, int):
            figures |= self.split_over_whole(rows)
        return {
            "size": drawn if isinstance(drawn, int) else None,
            "objects": len(rows),
            "seed": self._options.seed,
        } | figures

    def packed_rows(self) -> list[ObjectRow]:
        """Put and pack the objects, and return their rows. Raises NosError."""
        drawn = sizes(self._options.drawn, self._options.objects, self._rng, size_max(self._system.geometry))
        keys = [row.key for row in Objects(self._system, self._rng).land(list(drawn))]
        with producer_service(self._system) as producer:
            producer.drain()
        drain(self._system)
        rows = [self._system.metadata.get(key) for key in keys]
        if any(row.state is not ObjectState.PACKED for row in rows):
            raise Transient("bench: not all objects were packed; see the log")
        return rows

    def _timed(self, blocks: Any, rows: Sequence[ObjectRow]) -> dict[str, Any]:
        store, timer = self._system.client.store(), self._instruments.timer
        ours_s: list[float] = []
        bare_s: list[float] = []
        engine = make_engine(self._system.settings.store.url())
        try:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                cursor = connection.connection.cursor()
                for _ in range(WARM_UP_READS + self._options.reads):
                    first, second = self._rng.choice(rows), self._rng.choice(rows)
                    started_s = timer()
                    store.get(first.key)
                    between_s = timer()
                    _bare_get(cursor, blocks, second)
                    bare_s.append(timer() - between_s)
                    ours_s.append(between_s - started_s)
        finally:
            engine.dispose()
        ours, bare = latency_ms(ours_s[WARM_UP_READS:]), latency_ms(bare_s[WARM_UP_READS:])
        return {
            "reads": self._options.reads,
            "ours_ms": ours,
            "bare_ms": bare,
            "p50_over_bare": ours["p50"] / bare["p50"],
        }

    def split_over_whole(self, rows: Sequence[ObjectRow]) -> dict[str, Any]:
        """Return the CPU time that GETs of split objects cost this process, over the CPU time for the others. `rows`
        are packed objects of the same size."""
        store, geometry, rng = self._system.client.store(), self._system.geometry, self._rng
        of_kind: dict[str, list[ObjectRow]] = {"split": [], "whole": []}
        for row in rows:
            assert row.extent is not None
            of_kind["split" if geometry.is_split(row.extent.offset, row.size) else "whole"].append(row)
        found: dict[str, Any] = {"split_objects": len(of_kind["split"])}
        if not all(of_kind.values()):
            return found
        cpu_s = dict.fromkeys(of_kind, 0.0)
        turns = 1 + self._options.reads // TURN_READS
        for turn in range(turns):
            for kind in sorted(of_kind, reverse=turn % 2 == 0):
                keys = [row.key for row in rng.choices(of_kind[kind], k=TURN_READS)]
                before = self._instruments.processes.cpu_s()
                for key in keys:
                    store.get(key)
                spent = spent_s(self._instruments.processes, before)["client"]
                assert spent is not None
                if turn:  # the first one warms up
                    cpu_s[kind] += spent
        reads = (turns - 1) * TURN_READS
        found["client_cpu_ms_per_get"] = {kind: spent * 1000 / reads for kind, spent in cpu_s.items()}
        return found | {"split_over_whole": cpu_s["split"] / cpu_s["whole"]}

    def _counted(self, rows: Sequence[ObjectRow]) -> dict[str, Any]:
        """Measure the work of single GETs on the OSDs, from their counters. The pools must not be used otherwise
        meanwhile."""
        store, cluster = self._system.client.store(), self._instruments.cluster
        osds: list[int] = []
        read_bytes = page_bytes = rounded_bytes = 0
        before = cluster.counters()
        for row in self._rng.sample(rows, min(self._options.sample, len(rows))):
            store.get(row.key)
            after = cluster.counters()
            osds.append(sum(after.store_reads[osd] > reads for osd, reads in before.store_reads.items()))
            read_bytes += after.read_bytes - before.read_bytes
            page_bytes += _pages_bytes(row)
            rounded_bytes += -(-row.size // PAGE) * PAGE
            before = after
        return {
            "sample": len(osds),
            "osds_per_get": sorted(osds)[len(osds) // 2],
            "osds_per_get_mean": sum(osds) / len(osds),
            "read_bytes_over_pages": read_bytes / page_bytes,
            "read_bytes_over_rounded": read_bytes / rounded_bytes,
        }


def _pages_bytes(row: ObjectRow) -> int:
    """Return the size of the pages that the object touches. An object that begins in the middle of a page may touch one
    page more than its size requires."""
    assert row.extent is not None
    first, end = row.extent.offset // PAGE, -(-(row.extent.offset + row.size) // PAGE)
    return (end - first) * PAGE


def _bare_get(cursor: Any, blocks: Any, row: ObjectRow) -> None:
    cursor.execute(LOOK_UP, (row.key.bucket.encode(), row.key.name.encode()))
    block_id, offset, size = cursor.fetchone()
    found = blocks.read(block_id.hex(), size, offset)
    if len(found) != row.size:
        raise Transient(f"bench: {len(found)} bytes read instead of {row.size}")
