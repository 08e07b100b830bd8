"""Chooses the place of the next block from the known state of the cluster.

A block's id determines its placement group in the pool (adapters/rados/placement/object_hash.py); a group is on k + m
OSDs. So a writer chooses a place by drawing a few ids and keeping the best. This needs no directory and no
coordination. Writers with different information at worst choose worse places.

The order, best first:
  CLEAN     active and clean, all its OSDs up, none nearly full
  DEGRADED  takes writes, but OSDs are missing, data moves, or an OSD is nearly full: fewest missing first
  FULL      an OSD is full: Ceph refuses writes there
  INACTIVE  operations would wait until OSDs come back
Among equals within CLEAN and DEGRADED, the group whose fullest OSD is least full is best. If groups share their fullest
OSD, as most groups of a small cluster do, the next fullest decides.

A group that the map does not know counts as DEGRADED: it may work, but a group known to work is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from nos_ec.core.ids import BlockId

CANDIDATES = 8
"""Ids to draw for a block. With eight, one of them is in the best fifth of the groups 5 times in 6. More would hardly
fill the OSDs more evenly (docs/MEASUREMENTS.md)."""

NO_OSD = 0x7FFFFFFF
"""Ceph reports this number for a missing OSD of an erasure-coded group."""

_WRITABLE = "active"
_CLEAN = "clean"
_STALE = "stale"
"""The OSDs of the group have not reported for a while, so the other words of its state are out of date."""

_IMPAIRED = {"degraded", "inconsistent", "failed_repair"}
"""Objects lack a copy or chunk; a scrub found copies that differ; the OSDs could not repair them."""


class Fullness(IntEnum):
    """How close to its limit an OSD is, by the cluster's own ratios."""

    ROOMY = 0
    NEARLY = 1
    """nearfull or backfillfull: takes writes, but an operator should act."""
    FULL = 2


@dataclass(frozen=True, slots=True)
class Osd:
    """One OSD. `fill_ratio` is used / capacity. An OSD that is not `is_in` is being emptied."""

    is_up: bool
    is_in: bool
    fill_ratio: float = 0.0
    fullness: Fullness = Fullness.ROOMY


@dataclass(frozen=True, slots=True)
class Group:
    """One placement group: the words of its state, such as {"active", "clean"}, and its OSDs (NO_OSD for none)."""

    words: frozenset[str]
    acting: tuple[int, ...]


class GroupState(StrEnum):
    """How much of the data of a placement group is where it should be; better first."""

    COMPLETE = "complete"
    """The data is on all the OSDs where it should be."""
    DEGRADED = "degraded"
    """The group has all its OSDs, but some data is still missing on some of them, or differs between them."""
    UNDERSIZED = "undersized"
    """An OSD is missing."""
    INACTIVE = "inactive"
    """So many OSDs are missing that operations wait."""


def group_state(group: Group) -> GroupState:
    """Return the state of a group according to its words."""
    if _WRITABLE not in group.words or _STALE in group.words:
        return GroupState.INACTIVE
    if "undersized" in group.words or NO_OSD in group.acting:
        return GroupState.UNDERSIZED
    return GroupState.DEGRADED if group.words & _IMPAIRED else GroupState.COMPLETE


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """The known state of a pool: its groups by number, and their OSDs.

    `group_count` is the number of groups that object names are spread over (`pg_num`). A group takes writes while at
    least `writable_min` of its OSDs are up (`min_size`).
    """

    group_count: int
    writable_min: int
    osds: Mapping[int, Osd] = field(default_factory=dict)
    groups: Mapping[int, Group] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A block id that may be used, and its placement group."""

    block_id: BlockId
    group: int


class Grade(IntEnum):
    """The state of a place; lower is better."""

    CLEAN = 0
    DEGRADED = 1
    FULL = 2
    INACTIVE = 3


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """The condition of a place. Comparable; smaller is better. `missing` counts OSDs that it should have but lacks."""

    grade: Grade
    missing: int
    fills: tuple[float, ...]
    """Fill ratios of its OSDs that are up, the fullest first."""

    def worse_than(self, earlier: Condition) -> bool:
        """Return whether the grade is worse than before or more OSDs are missing. Becoming fuller within a grade does
        not count."""
        return (self.grade, self.missing) > (earlier.grade, earlier.missing)


UNKNOWN = Condition(Grade.DEGRADED, 0, ())


def condition(cluster: ClusterMap, group: int) -> Condition:
    """Return the condition of a group. OSD states take precedence over the group's own words, which change later."""
    found = cluster.groups.get(group)
    if found is None:
        return UNKNOWN
    osds = [osd for number in found.acting if (osd := cluster.osds.get(number)) is not None and osd.is_up]
    missing = len(found.acting) - len(osds)
    return Condition(
        _grade(found.words, osds, missing, cluster.writable_min),
        missing,
        tuple(sorted((osd.fill_ratio for osd in osds), reverse=True)),
    )


def _grade(words: frozenset[str], osds: Sequence[Osd], missing: int, writable_min: int) -> Grade:
    if _WRITABLE not in words or _STALE in words or len(osds) < writable_min:
        return Grade.INACTIVE
    fullness = max((osd.fullness for osd in osds), default=Fullness.ROOMY)
    if fullness is Fullness.FULL:
        return Grade.FULL
    strained = missing or fullness is not Fullness.ROOMY or not all(osd.is_in for osd in osds)
    return Grade.DEGRADED if strained or _CLEAN not in words else Grade.CLEAN


def choose(cluster: ClusterMap, candidates: Sequence[Place]) -> Place | None:
    """Return the best candidate, or the first of several equals; None if all are known to be inactive.

    Draw the candidates at random, so that equals are chosen at random. Raise ValueError without candidates (a bug).
    """
    if not candidates:
        raise ValueError("no candidates to choose from")
    conditions = [condition(cluster, place.group) for place in candidates]
    best = min(range(len(candidates)), key=lambda index: conditions[index])
    return None if conditions[best].grade is Grade.INACTIVE else candidates[best]
