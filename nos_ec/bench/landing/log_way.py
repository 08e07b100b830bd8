"""The landing log as a way of `bench landing`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from time import perf_counter
from typing import cast

import google_crc32c

from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.segment_log import RadosSegmentLog
from nos_ec.bench.callers import call_all
from nos_ec.bench.landing_ways import Copy
from nos_ec.bench.meter import Instruments
from nos_ec.bench.objects import Piece
from nos_ec.composition.backends import rados_options
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NosError, Transient
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import ObjectKey, SegmentId
from nos_ec.core.states import ObjectState
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.log_keeper import LogKeeper
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.objects.put_batches import PutBatches
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.ports.metadata import NewObject, ObjectRow, Objects, PutRequest
from nos_ec.ports.segment_medium import Buffer, Seal, SegmentMedium, SegmentWriter

APPENDS_MAX = 2
"""Concurrent appends, in one segment or in as many as needed. More of them make batches smaller."""
SEGMENT_AGE_MS = 60_000
DEVICE_SPARE_BYTES = 512 << 20
"""Space on the device in addition to the objects of a round, for segments that are sealed before they are full."""
SEGMENTS_MAX = 10_000
RUN_OBJECTS = 64
"""Records that a reader reads at once, in the order in which they were landed."""


class _NoRows:
    """Accepts the rows of PUTs without recording them."""

    def record_puts(
        self,
        objects: Sequence[NewObject],
        now_ms: int,
        *,
        together: bool = False,  # noqa: ARG002
    ) -> list[ObjectRow]:
        """See Objects."""
        return [
            ObjectRow(0, one.key, 1, one.size, one.crc32c, one.md5, ObjectState.LANDED, one.landing_id, None, now_ms)
            for one in objects
        ]


class CountedMedium:
    """A medium that records the size of each append."""

    def __init__(self, medium: SegmentMedium) -> None:
        self.inner = medium
        self.appends: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> SegmentWriter:
        """See the port."""
        return _CountedWriter(self.inner.create(segment, epoch, first_lsn), self.appends)


class _CountedWriter:
    def __init__(self, writer: SegmentWriter, appends: list[int]) -> None:
        self._writer = writer
        self._appends = appends

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """See the port."""
        self._writer.append(offset, batch, seal)
        self._appends.append(sum(map(len, batch)))

    def close(self) -> None:
        """See the port."""
        self._writer.close()


class InLog:
    """The landing log. The queue of PUTs groups the callers in batches."""

    def __init__(self, system: System, instruments: Instruments, medium: SegmentMedium) -> None:
        self._system = system
        self._timer = instruments.timer
        self._medium = CountedMedium(medium)
        self._reader = LogReader(medium)
        self._open_segments = max(1, APPENDS_MAX // medium.limits.writes_max)
        self._new_log()

    def _new_queue(self) -> PutQueue:
        clock = self._system.clock
        batches = PutBatches(self._log, cast(Objects, _NoRows()), clock, LocationCache(clock, 0, 0))
        return PutQueue(batches, perf_counter)

    def _new_log(self) -> None:
        """Open a log with its own keeper, as in every process that PUTs into the log."""
        options = LogOptions(
            open_segments=self._open_segments, segment_age_ms=SEGMENT_AGE_MS, lease_ttl_ms=30_000, wait_ms=30_000
        )
        medium, clock = cast(SegmentMedium, self._medium), self._system.clock
        self._keeper = LogKeeper(clock, SEGMENT_AGE_MS)
        self._log = LandingLog(self._system.metadata, medium, clock, os.urandom, options, upkeep=self._keeper.wake)
        self._queue = self._new_queue()

    def prepare(self) -> None:
        """Start a new log, and let it create its first segments."""
        self.close()
        self._new_log()
        for _ in range(self._open_segments):
            self.land(Piece(ObjectKey("bench", "first"), memoryview(b"first")))
        self._medium.appends.clear()

    def land(self, piece: Piece) -> Copy:
        """See LandingWay."""
        data = bytes(piece.view)
        new = NewObject(PutRequest(piece.key), len(data), google_crc32c.value(data), bytes(16), None, due_ms=0)
        row = self._queue.put(new, data)
        assert row.landing_id is not None
        return row.landing_id, len(data)

    def writes(self, callers: int) -> tuple[Sequence[int], int]:
        """See LandingWay."""
        appends = list(self._medium.appends)
        self._medium.appends.clear()
        return appends, min(callers, self._log.batches_max)

    def read_all(self, copies: Sequence[Copy]) -> None:
        """See LandingWay."""
        chosen = sorted(copies)
        runs = [chosen[first : first + RUN_OBJECTS] for first in range(0, len(chosen), RUN_OBJECTS)]
        call_all(self._system.settings.consumer.read_threads, runs, self._read, self._timer)

    def _read(self, run: Sequence[Copy]) -> None:
        for outcome in self._reader.read_records(run):
            if isinstance(outcome, NosError):
                raise outcome

    def delete_all(self, _copies: Sequence[Copy]) -> None:
        """See LandingWay."""
        self.close()
        segments = [row.segment for row in self._system.metadata.list_segments(None, SEGMENTS_MAX)]
        for segment in segments:
            if not self._system.metadata.doom_segment(segment):
                raise Transient(f"bench: segment {segment.hex()} is still in use")
        for error in self._medium.inner.release(segments).values():
            raise error
        self._system.metadata.forget_segments(segments)

    def close(self) -> None:
        """Seal the open segments. Idempotent."""
        self._log.close()
        self._keeper.close()


@contextmanager
def log_way(system: System, instruments: Instruments, round_bytes: int) -> Iterator[InLog]:
    """Yields the log: in the landing pool of a store on Ceph, or in a file next to an embedded store with space for
    `round_bytes` bytes of objects. Raises NosError."""
    with ExitStack() as stack:
        medium = stack.enter_context(closing(_medium(system, stack, round_bytes)))
        yield stack.enter_context(closing(InLog(system, instruments, medium)))


def _medium(system: System, stack: ExitStack, round_bytes: int) -> SegmentMedium:
    settings = system.settings
    if settings.store.backend == "ceph":
        cluster = stack.enter_context(RadosCluster(rados_options(settings)))
        ceph = settings.ceph
        return RadosSegmentLog(cluster, ceph.landing_pool, bytes.fromhex(system.store_id), ceph.namespace)
    folder = settings.store.root / "bench_log"  # next to the store's own log
    folder.mkdir()
    paths = [folder / "device"]
    device_bytes = (round_bytes + DEVICE_SPARE_BYTES) // PAGE * PAGE
    DeviceLog.initialise(folder, paths, system.store_id, file_bytes=device_bytes)
    return DeviceLog(folder, paths, system.store_id)
