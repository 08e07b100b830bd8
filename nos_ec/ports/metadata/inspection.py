"""Whole tables in the order of their keys, page by page, for checks of a store. Changes nothing.

Each page is read in a transaction of its own, so rows change between two pages. A caller that finds rows that do not
match must read those rows again before it reports them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Protocol

from nos_ec.core.gc.reclaim import LiveEntry
from nos_ec.core.ids import RESERVED_BUCKET, BlockId, LandingId
from nos_ec.core.parts import may_be_composed
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata.objects import ObjectRow, Segment


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """An object that waits to be packed, as its row in the table of waiting objects shows it. For `slot` see
    core.slots."""

    landing_id: LandingId
    object_id: int
    slot: int
    due_ms: int
    state: ObjectState
    size: int


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of the deletion queue of landing copies. `object_id` and `version` are None while no object claims the
    copy; in quarantine, the version is 0. From `not_before_ms` on, the reaper may settle the entry. `doomed` is set
    once the packed bytes have been verified."""

    landing_id: LandingId
    object_id: int | None
    version: int | None
    not_before_ms: int
    doomed: bool


@dataclass(frozen=True, slots=True)
class ObjectColumns:
    """Rows of objects as columns: each is a list with a value for each row. They mean the same as in `ObjectRow`, but
    `attributes` is None instead of empty, and an extent is `block_id` and `block_offset`, both of them None or
    neither."""

    object_id: Sequence[int]
    bucket: Sequence[str]
    name: Sequence[str]
    version: Sequence[int]
    size: Sequence[int]
    crc32c: Sequence[int]
    md5: Sequence[bytes]
    state: Sequence[ObjectState]
    landing_id: Sequence[LandingId | None]
    block_id: Sequence[BlockId | None]
    block_offset: Sequence[int | None]
    created_ms: Sequence[int]
    attributes: Sequence[bytes | None]
    trash_until_ms: Sequence[int | None]
    trashed_ms: Sequence[int | None]
    is_noncurrent: Sequence[bool]

    @classmethod
    def of(cls, rows: Sequence[ObjectRow]) -> ObjectColumns:
        """Return these rows as columns."""
        extents = [row.extent for row in rows]
        return cls(
            object_id=[row.object_id for row in rows],
            bucket=[row.key.bucket for row in rows],
            name=[row.key.name for row in rows],
            version=[row.version for row in rows],
            size=[row.size for row in rows],
            crc32c=[row.crc32c for row in rows],
            md5=[row.md5 for row in rows],
            state=[row.state for row in rows],
            landing_id=[row.landing_id for row in rows],
            block_id=[None if extent is None else extent.block_id for extent in extents],
            block_offset=[None if extent is None else extent.offset for extent in extents],
            created_ms=[row.created_ms for row in rows],
            attributes=[row.attributes or None for row in rows],
            trash_until_ms=[row.trash_until_ms for row in rows],
            trashed_ms=[row.trashed_ms for row in rows],
            is_noncurrent=[row.is_noncurrent for row in rows],
        )

    def uncommon(self) -> set[int]:
        """Return the ids of the large objects, of the composed ones, also if the attributes that would show it are
        damaged, and of those in hidden buckets."""
        hidden = {bucket for bucket in set(self.bucket) if bucket.startswith(RESERVED_BUCKET)}
        composed = {attributes for attributes in set(self.attributes) if may_be_composed(attributes)}
        if not hidden and not composed and ObjectState.LARGE not in self.state:
            return set()
        kinds = zip(self.object_id, self.bucket, self.attributes, self.state, strict=True)
        return {
            object_id
            for object_id, bucket, attributes, state in kinds
            if state is ObjectState.LARGE or bucket in hidden or attributes in composed
        }

    def of_state(self, state: ObjectState) -> list[int]:
        """Return the ids of the objects in this state."""
        return [one for one, other in zip(self.object_id, self.state, strict=True) if other is state]

    def up_to(self, object_id: int) -> ObjectColumns:
        """Return the rows whose id is at most `object_id`. The rows must be in the order of their ids."""
        rows = bisect_right(self.object_id, object_id)
        if rows == len(self.object_id):
            return self
        return ObjectColumns(*(getattr(self, field.name)[:rows] for field in fields(self)))

    def without(self, state: ObjectState) -> ObjectColumns:
        """Return the rows that are not in this state."""
        if state not in self.state:
            return self
        kept = [other is not state for other in self.state]
        return ObjectColumns(*(list(compress(getattr(self, field.name), kept)) for field in fields(self)))


class Inspection(Protocol):
    """Reads pages of tables. See the module docstring. A page costs the same wherever in the table it is."""

    def objects_after(self, object_id: int, limit: int) -> list[ObjectRow]:
        """Return rows of objects with a greater `object_id`, in that order. `extent` is None if the row lacks any part
        of it, whatever its state."""

    def columns_after(self, object_id: int, limit: int) -> ObjectColumns:
        """Return what `objects_after` returns, as columns, which takes a fraction of the time. Raises Corrupt for a
        damaged row."""

    def last_id_of_page(self, object_id: int, limit: int) -> int | None:
        """Return the last `object_id` of what `objects_after` returns; None if it returns nothing."""

    def uncommon_between(self, after: int, last: int) -> list[int]:
        """Return the ids above `after` and at most `last`, in that order, of the large objects, of those in hidden
        buckets, and of those whose attributes contain the name of the attribute of composed objects. The server
        examines all rows between, so choose `last` with `last_id_of_page`."""

    def keys_lead_to(self, after: int, last: int) -> bool:
        """Return whether the index of keys leads to each row whose `object_id` is above `after` and at most `last`, for
        the key and the mark of the trash that the row has."""

    def live_in(self, block_id: BlockId) -> list[LiveEntry]:
        """Return the objects and segments that `Blocks.placed_in` returns, in any order and in short, which takes a
        fraction of the time."""

    def live_bytes_in(self, block_id: BlockId) -> tuple[int, int]:
        """Return how many objects and segments `live_in` returns, and how many bytes they have together."""

    def objects_with(self, object_ids: Collection[int]) -> dict[int, ObjectRow]:
        """Return the rows of these objects that exist, by `object_id`."""

    def segments_of(self, object_ids: Collection[int]) -> dict[int, list[tuple[int, Segment]]]:
        """Return, for each of these objects that has segments, (version, segment) in order of version and part."""

    def owners_after(self, object_id: int, limit: int) -> list[int]:
        """Return the ids above `object_id` that segments name as their objects, in that order, whether those objects
        exist or not."""

    def blocks_known(self, block_ids: Collection[BlockId]) -> frozenset[BlockId]:
        """Return those of these blocks that have a row."""

    def waiting_after(self, landing_id: LandingId | None, limit: int) -> list[WaitingRow]:
        """Return waiting objects with a greater landing id, in that order. None: from the beginning."""

    def waiting_with(self, landing_ids: Collection[LandingId]) -> dict[LandingId, WaitingRow]:
        """Return the waiting objects that have one of these landing ids."""

    def deletions_after(self, landing_id: LandingId | None, limit: int) -> list[QueueEntry]:
        """Return entries of the deletion queue with a greater landing id, in that order. None: from the beginning."""
