"""Simulates how evenly blocks fill OSDs of unequal size or fill level, with chosen and with random places.

Groups get their OSDs as CRUSH would assign them: k + m different ones, each drawn with a chance by its weight, which is
its size. A block adds its shards to the OSDs of its group. The map that the choice uses is as old as in production: it
is renewed only after a number of blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from nos_ec.core.ids import BlockId
from nos_ec.core.placement import CANDIDATES, ClusterMap, Group, Osd, Place, choose

CLEAN = frozenset({"active", "clean"})
SHARDS = 11
SHARD_BYTES = 4 << 20
"""The bytes of a full block of the default geometry on each OSD."""
BLOCKS_PER_MAP = 20
"""Blocks between two maps: 5 s of four writers at 32 MiB/s each."""


@dataclass(frozen=True, slots=True)
class Disk:
    """An OSD at the start. Sizes are in bytes. CRUSH's weight is the size."""

    size: int
    used: int = 0


@dataclass(frozen=True, slots=True)
class Skew:
    """Fill ratios at the end: their mean, the fullest OSD's divided by the mean, and the standard deviation, in
    points of the ratio."""

    mean: float
    max_over_mean: float
    deviation: float


def skew(disks: Sequence[Disk], groups: int, blocks: int, candidates: int = CANDIDATES, seed: int = 1) -> Skew:
    """Fill the disks with `blocks` blocks. `candidates` 1 is random placement. The same seed gives the same groups."""
    rng = random.Random(seed)
    cluster = ClusterMap(
        group_count=groups,
        writable_min=SHARDS - 2,
        osds={number: Osd(is_up=True, is_in=True) for number in range(len(disks))},
        groups={number: Group(CLEAN, _acting(disks, rng)) for number in range(groups)},
    )
    used = [disk.used for disk in disks]
    for block in range(blocks):
        if block % BLOCKS_PER_MAP == 0:
            cluster = _renewed(cluster, disks, used)
        places = [Place(BlockId(bytes(16)), rng.randrange(groups)) for _ in range(candidates)]
        chosen = choose(cluster, places)
        assert chosen is not None
        for number in cluster.groups[chosen.group].acting:
            used[number] += SHARD_BYTES
    fills = [taken / disk.size for taken, disk in zip(used, disks, strict=True)]
    return Skew(fmean(fills), max(fills) / fmean(fills), pstdev(fills))


def _acting(disks: Sequence[Disk], rng: random.Random) -> tuple[int, ...]:
    """Each disk draws a random straw, which tends to be shorter the heavier the disk is. The shortest straws win."""
    straws = sorted(range(len(disks)), key=lambda number: rng.expovariate(disks[number].size))
    return tuple(straws[:SHARDS])


def _renewed(cluster: ClusterMap, disks: Sequence[Disk], used: Sequence[int]) -> ClusterMap:
    osds = {number: replace(osd, fill_ratio=used[number] / disks[number].size) for number, osd in cluster.osds.items()}
    return replace(cluster, osds=osds)
