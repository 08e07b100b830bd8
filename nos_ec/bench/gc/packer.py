"""Packs the objects of a simulated store as consumers and GC pack objects of a real store.

Objects wait in merge lists, which sort by stream and packing order, and are laid out in groups of whole stripes. A
merge list chooses by size among a window of objects, so neighbours in packing order may be apart. Each lane fills a
block with consecutive groups (nos_ec/engine/packing/lanes.py). The lanes of a consumer are simulated separately,
because their blocks stay open; the lanes of GC count as one. Consumers always have a backlog, and no stream is folded.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nos_ec.bench.simulate import KEY_BYTES, groups_ready
from nos_ec.composition.packing import GC_GATHERED_MAX, NO_DEADLINE_MS, new_merge_list
from nos_ec.core.formats.header import NAME_RECORD_FIXED
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.lifetimes import ToPack
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList
from nos_ec.core.packing.streams import GATHERED_WINDOWS, StreamedMergeList, StreamOptions
from nos_ec.settings.sections import ConsumerSettings

_NOW_MS = 0


@dataclass(frozen=True, slots=True)
class PackerOptions:
    """The geometry of a store, and the settings of its consumer."""

    geometry: Geometry
    consumer: ConsumerSettings

    @property
    def figures(self) -> dict[str, Any]:
        """The options that the figures of a simulation include."""
        consumer = self.consumer
        return {
            "policy": consumer.policy,
            "window": consumer.window_objects,
            "split_bytes": consumer.split_bytes,
            "lanes": consumer.lanes,
        }


class StorePacker:
    """The merge lists of a store. Objects are given as (object, size in bytes)."""

    def __init__(self, options: PackerOptions, streams: int) -> None:
        self._options = options
        self._streams = streams
        self._rng = random.Random(0)
        self._fresh = self._new_list(GATHERED_WINDOWS * options.consumer.window_objects)

    def fresh(self, objects: Iterable[tuple[ToPack[int], int]]) -> Iterator[GroupPlan[ToPack[int]]]:
        """Add fresh objects to the waiting ones. Yields the groups that are ready."""
        return _groups(self._fresh, objects, flush=False)

    def survivors(self, objects: Iterable[tuple[ToPack[int], int]]) -> Iterator[GroupPlan[ToPack[int]]]:
        """Yields the groups of all survivors of a cycle."""
        return _groups(self._new_list(GC_GATHERED_MAX), objects, flush=True)

    def _new_list(self, gathered_max: int) -> MergeList[ToPack[int]]:
        window = self._options.consumer.window_objects
        if self._streams == 1:
            return self._plain(window)
        options = StreamOptions(self._streams, gathered_max, None, stream_bytes_min=0)
        return StreamedMergeList(self._plain, lambda one, _: one[:4], window, NO_DEADLINE_MS, options)

    def _plain(self, window: int) -> MergeList[ToPack[int]]:
        options = self._options
        return new_merge_list(options.consumer, options.geometry, NO_DEADLINE_MS, self._rng, window=window)


def _groups(
    waiting: MergeList[ToPack[int]], objects: Iterable[tuple[ToPack[int], int]], *, flush: bool
) -> Iterator[GroupPlan[ToPack[int]]]:
    for one, size in objects:
        waiting.add(Candidate(size, NAME_RECORD_FIXED + KEY_BYTES, one, _NOW_MS))
    return groups_ready(waiting, _NOW_MS, flush=flush)
