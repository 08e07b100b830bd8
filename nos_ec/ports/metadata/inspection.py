"""Whole tables in the order of their keys, page by page, for checks of a store. Changes nothing.

Each page is read in a transaction of its own, so rows change between two pages. A caller that finds rows that do not
match must read those rows again before it reports them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import BlockId, LandingId
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


class Inspection(Protocol):
    """Reads pages of tables. See the module docstring. A page costs the same wherever in the table it is."""

    def objects_after(self, object_id: int, limit: int) -> list[ObjectRow]:
        """Return rows of objects with a greater `object_id`, in that order. `extent` is None if the row lacks any part
        of it, whatever its state."""

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
