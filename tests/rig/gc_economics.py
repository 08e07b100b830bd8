"""What GC copies, and what space it leaves dead, in a real store and in the simulation, over the same objects.

The objects are those of workload B, of one size. All that live at the beginning are stored on the first day, and the
rest when they arrive. The store runs as it does in production, with producer, consumer, deletes and GC, one after the
other, whenever `tick_blocks` have arrived. Only its clock is ahead. Figures are those of the second half of the days,
from the rows of blocks, where each deletion of a block has added what was in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nos_consumer.assemble import drain
from nos_ec.bench.gc.events import EventLog, EventWorkload
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.simulation import GcResult, simulate_gc
from nos_ec.bench.gc.workloads import Life, Objects, gc_workload
from nos_ec.composition.wiring import System
from nos_ec.core.gc.gc_policy import SpaceTarget
from nos_ec.core.ids import ObjectKey
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import LaterClock

DAY_MS = 86_400_000
FILLED = 0.98
"""The share of a block that its objects take; the rest is headers, names and padding."""
_BATCH = 200
_LANDED_MAX = 2_000
"""Objects that land before they are packed: the landing space is small."""


@dataclass(frozen=True, slots=True)
class Scale:
    """blocks: live bytes, in blocks. object_bytes: the size of each object. days: of the run. tick_blocks: as many
    arrive between two cycles of GC."""

    blocks: int
    object_bytes: int
    days: float
    space_amp: float
    seed: int = 1
    tick_blocks: int = 1


@dataclass(frozen=True, slots=True)
class Books:
    """The figures of a store. shards: bytes on all shards per byte that its blocks have by their rows, at the end.

    pool_bytes: what the OSDs wrote into the pool of blocks, without parity; 0 for an embedded store.
    """

    space_amplification: float
    write_amplification: float
    user_bytes: int
    copied_bytes: int
    cycles: int
    shards: float
    pool_bytes: int


def settings_lines(scale: Scale) -> str:
    """The lines of the section [gc] of the store."""
    return (
        f'policy = "space-target"\nspace_amp = {scale.space_amp}\nprice_days = 0\nstreams = 1\n'
        "block_grace_ms = 0\nreserve_bytes = 0\n"
    )


def objects_of(scale: Scale, block_size: int) -> EventLog:
    """The trace."""
    workload, objects = gc_workload("B", scale.seed), Objects()
    block_objects = int(FILLED * block_size) // scale.object_bytes
    count = scale.blocks * block_objects
    workload.begin(objects, count)
    workload.arrive(objects, 0.0, scale.days, count / workload.mean_days)
    found = Objects()
    found.buckets = objects.buckets
    for n in range(len(objects)):
        life = Life(objects.bucket[n], objects.dies[n])
        found.add(max(0.0, objects.born[n]), life, scale.object_bytes)
    return EventLog(found, scale.days)


def simulated(scale: Scale, log: EventLog, block_size: int) -> GcResult:
    """What the simulation says."""
    policy = SpaceTarget(scale.space_amp, floor_days=0)
    block_bytes = int(FILLED * block_size) // scale.object_bytes * scale.object_bytes
    options = GcOptions(policy, streams=1, blocks=scale.blocks, block_bytes=block_bytes, seed=scale.seed)
    return simulate_gc(EventWorkload(log), options)


class StoreRun:
    """The run in a store, which must be empty. tell: is called after each cycle with the day. pool_bytes: what the OSDs
    have written so far."""

    def __init__(
        self,
        system: System,
        scale: Scale,
        log: EventLog,
        tell: Callable[[float], object],
        pool_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._system = system
        self._scale = scale
        self._log = log
        self._tell = tell
        self._pool_bytes = pool_bytes
        self._born = 0
        self._died = 0
        self._by_death = sorted(range(len(log.objects)), key=log.objects.dies.__getitem__)

    def run(self) -> Books:
        """The figures. Raises NosError."""
        workload = gc_workload("B", self._scale.seed)
        tick_days = workload.mean_days * self._scale.tick_blocks / self._scale.blocks
        day, cycles, seen = 0.0, 0, list[float]()
        before: tuple[int, int, int] | None = None
        while day < self._scale.days:
            day += tick_days
            self._system.clock = LaterClock(round(day * DAY_MS))
            self._put_until(day)
            self._delete_until(day)
            gc_service(self._system).run_once()
            totals = self._system.metadata.totals()
            if day > self._scale.days / 2:
                before = before or (totals.user_bytes_written, totals.copied_bytes_written, self._pool_bytes())
                seen.append(totals.space_amplification or 1.0)
                cycles += 1
            self._tell(day)
        assert before is not None
        user = totals.user_bytes_written - before[0]
        copied = totals.copied_bytes_written - before[1]
        raw = self._system.geometry.raw_bytes(totals.stripes)
        return Books(
            sum(seen) / len(seen),
            (user + copied) / user,
            user,
            copied,
            cycles,
            self._system.blocks.raw_bytes() / raw,
            self._pool_bytes() - before[2],
        )

    def living(self) -> list[ObjectKey]:
        """The objects that should be there at the end."""
        dead = set(self._by_death[: self._died])
        return [self._key(n) for n in range(self._born) if n not in dead]

    def data(self, key: ObjectKey) -> bytes:
        """The bytes of an object."""
        return f"{key}\n".encode().ljust(self._scale.object_bytes, b".")

    def _put_until(self, day: float) -> None:
        objects, first = self._log.objects, self._born
        while self._born < len(objects) and objects.born[self._born] < day:
            self._born += 1
        for begin in range(first, self._born, _LANDED_MAX):
            self._put_and_pack(range(begin, min(begin + _LANDED_MAX, self._born)))

    def _put_and_pack(self, numbers: range) -> None:
        for begin in range(0, len(numbers), _BATCH):
            keys = [self._key(n) for n in numbers[begin : begin + _BATCH]]
            self._system.client.store().put_many([(key, self.data(key)) for key in keys])
        with producer_service(self._system) as producer:
            producer.drain()
        drain(self._system)

    def _delete_until(self, day: float) -> None:
        objects, first = self._log.objects, self._died
        while self._died < len(objects) and objects.dies[self._by_death[self._died]] < day:
            self._died += 1
        for begin in range(first, self._died, _BATCH):
            numbers = self._by_death[begin : min(begin + _BATCH, self._died)]
            self._system.client.store().delete_many([self._key(n) for n in numbers])

    def _key(self, n: int) -> ObjectKey:
        return ObjectKey(self._log.objects.buckets[self._log.objects.bucket[n]], str(n))
