"""Makes the packer that the settings ask for, with its streams, and the options of GC, which packs in the same way."""

from __future__ import annotations

import random
from math import inf

from nos_ec.core.gc.gc_policy import ANY_PRICE_DAYS, GcPolicy, Price, SpaceTarget
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS
from nos_ec.core.packing.merge_list import DENSITY, merge_list, split_price
from nos_ec.core.packing.plan import Linger, MergeList, P
from nos_ec.core.packing.streams import (
    GATHERED_WINDOWS,
    STREAM_BYTES_MIN,
    STREAM_STRIPES_MIN,
    StreamedMergeList,
    StreamOptions,
)
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.expiry.survival import ExpectedLifetimes, StreamSorting
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.objects.location_cache import LOCATION_CACHE_MS
from nos_ec.engine.packable import Packable
from nos_ec.engine.space_reserve import PUT_RESERVES
from nos_ec.ports.metadata import Survival
from nos_ec.settings import Settings
from nos_ec.settings.gc import GcSettings
from nos_ec.settings.sections import ConsumerSettings

LINGER_FILL_MIN = 0.5
"""The share of a stripe that must be filled for it to be written after consumer.linger_ms. With less, a stripe of 8+3
takes about as much space as three landing copies of the objects in it."""
BACKLOG_WINDOWS = 4
"""How many windows of objects a consumer holds before it stops polling. With this many, lanes never wait for a poll. If
more objects of one bucket wait, one consumer is not enough for the bucket."""
STREAMED_BACKLOG_WINDOWS = GATHERED_WINDOWS + BACKLOG_WINDOWS
"""The same with streams, for which objects are gathered first."""
GC_GATHERED_MAX = 32_768
"""How many survivors are sorted together: about 30 MB."""
NO_DEADLINE_MS = 365 * 86_400_000
"""Survivors wait for others without a deadline. At its end, a run writes the rest of them."""

FLOOR_BYTES = 16 << 20
"""Free space that GC leaves unused while it can, because the metadata database may be on the same disk and needs some
space to record what GC does."""
SHORT_GRACE_MS = 60_000
"""The grace period of emptied blocks when space is so short that GC could not continue, or that PUTs are refused,
unless gc.block_grace_ms is shorter. It must be longer than the longest read."""
COOL_DOWN_MS_MAX = 86_400_000
"""The longest time for which GC leaves a block alone that it could not collect, so that the others get their turn."""
HEADER_BLOCKS = 4
"""How many blocks' headers and rows GC reads at the same time, ahead of rewriting them: enough that writers do not wait
for them."""
GC_MEMORY_BYTES_MAX = 128 << 20
"""How many bytes of groups GC holds in memory. Where groups are so large that gc.lanes of them do not fit, fewer are
written at a time."""
GROUP_COPIES = 6
"""The most copies of the bytes of a group that GC writes, or of a window of a longer group, in memory at once: as they
were read, assembled, cut into shards with their coding chunks, and read back, with the object that continues in the
next window."""


def new_merge_list(
    settings: ConsumerSettings,
    geometry: Geometry,
    linger: Linger | int,
    rng: random.Random,
    *,
    window: int | None = None,
    names: bool = True,
) -> MergeList[P]:
    """Return an empty merge list as configured. The consumer, GC and simulations pack in the same way, and differ only
    in how long an object waits.

    window: how many objects to choose from; by default consumer.window_objects. names: whether to reserve space for
    names. Raises InvalidInput as `merge_list` does.
    """
    return merge_list(
        settings.policy,
        geometry,
        settings.window_objects if window is None else window,
        linger,
        rng,
        names=names,
        split_bytes=settings.split_bytes,
    )


class StreamedPacking:
    """Makes the merge lists of a consumer or of GC, with the streams that the settings ask for.

    gathered_max: how many objects are sorted together. period_ms: a stream that collects too little in a period of this
    length is folded; None for the lifetime of a merge list. bytes_max: see StreamOptions.
    """

    def __init__(
        self,
        settings: Settings,
        geometry: Geometry,
        metadata: Survival,
        known: KnownExpiry,
        linger: Linger | int,
        gathered_max: int,
        period_ms: int | None,
        bytes_max: int | None,
        rng: random.Random,
    ) -> None:
        self._consumer = settings.consumer
        self._geometry = geometry
        self._linger = linger
        self._rng = rng
        bytes_min = max(STREAM_BYTES_MIN, STREAM_STRIPES_MIN * geometry.stripe_size)
        self._options = StreamOptions(settings.gc.streams, gathered_max, period_ms, bytes_max, bytes_min)
        cuts_days = STREAM_CUTS_DAYS[settings.gc.streams - 1]
        self._sorting = StreamSorting(ExpectedLifetimes(metadata), cuts_days, known)
        self.newest: StreamedMergeList[Packable] | None = None
        """The newest merge list; None with a single stream."""

    @property
    def backlog_objects_max(self) -> int:
        """How many objects a consumer holds before it stops polling."""
        windows = BACKLOG_WINDOWS if self._options.streams == 1 else STREAMED_BACKLOG_WINDOWS
        return windows * self._consumer.window_objects

    def new_list(self) -> MergeList[Packable]:
        """Return an empty merge list."""
        window = self._consumer.window_objects
        if self._options.streams == 1:
            plain = self._plain(window)
            plain.set_window(window, self._options.window_bytes)
            return plain
        self.newest = StreamedMergeList(self._plain, self._sorting, window, self._linger, self._options)
        return self.newest

    def _plain(self, window: int) -> MergeList[Packable]:
        return new_merge_list(self._consumer, self._geometry, self._linger, self._rng, window=window)


def consumer_packing(
    settings: Settings, geometry: Geometry, metadata: Survival, known: KnownExpiry, rng: random.Random
) -> StreamedPacking:
    """Return the packing of a consumer."""
    consumer = settings.consumer
    fill_bytes_min = int(LINGER_FILL_MIN * geometry.stripe_size)
    linger = Linger(consumer.linger_ms, consumer.linger_max_ms, fill_bytes_min)
    gathered_max = GATHERED_WINDOWS * consumer.window_objects
    period_ms, bytes_max = max(1, consumer.linger_ms), consumer.merge_list_bytes_max
    return StreamedPacking(settings, geometry, metadata, known, linger, gathered_max, period_ms, bytes_max, rng)


def gc_packing(
    settings: Settings, geometry: Geometry, metadata: Survival, known: KnownExpiry, rng: random.Random
) -> StreamedPacking:
    """Return the packing of survivors by GC: the same packer as for the consumer, but without deadlines."""
    return StreamedPacking(settings, geometry, metadata, known, NO_DEADLINE_MS, GC_GATHERED_MAX, None, None, rng)


def collector_options(settings: Settings, *, retry: bool = False) -> CollectorOptions:
    """Return the options by which GC chooses blocks. retry: whether it also chooses those that it has set aside."""
    longest_read_ms = settings.ceph.op_timeout_ms + LOCATION_CACHE_MS if settings.store.backend == "ceph" else 0
    gc, consumer, geometry = settings.gc, settings.consumer, settings.geometry.value()
    copy_bytes_max = gc.copy_bytes_max or inf
    return CollectorOptions(
        policy=_policy(gc, copy_bytes_max),
        price_days_min=gc.price_days_min,
        waste_ratio_min=gc.hole_ratio_min,
        copy_bytes_max=copy_bytes_max,
        block_grace_ms=gc.block_grace_ms,
        block_grace_ms_min=max(SHORT_GRACE_MS, longest_read_ms),
        blocks_max=gc.blocks_max_per_run,
        floor_bytes=FLOOR_BYTES,
        short_bytes=PUT_RESERVES * gc.reserve_bytes,
        cool_down_ms_max=0 if retry else COOL_DOWN_MS_MAX,
        lanes=max(1, min(gc.lanes, GC_MEMORY_BYTES_MAX // (GROUP_COPIES * geometry.group_size_max))),
        header_blocks=HEADER_BLOCKS,
        bytes_per_s=gc.bytes_per_s,
        operations_per_s=gc.operations_per_s,
        slowdown_max=gc.read_slowdown_max,
        workers=gc.workers,
        density=DENSITY[consumer.policy],
        split_bytes=split_price(consumer.policy, geometry, consumer.split_bytes),
        new_merge_list=lambda: new_merge_list(consumer, geometry, NO_DEADLINE_MS, random.Random(0)),
    )


def _policy(gc: GcSettings, copy_bytes_max: float) -> GcPolicy | None:
    blocks_max = gc.workers * gc.blocks_max_per_run  # a plan has the victims of all workers
    if gc.policy == "space-target":
        return SpaceTarget(
            gc.space_amp,
            floor_days=gc.price_days_min,
            budget_bytes=copy_bytes_max,
            victims_max=blocks_max,
        )
    if gc.policy == "price":
        return Price(max(gc.price_days_min, ANY_PRICE_DAYS), copy_bytes_max, blocks_max)
    return None
