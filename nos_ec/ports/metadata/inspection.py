"""Whole tables in the order of their keys, page by page, for checks of a store. Changes nothing.

The pages of one table are read in transactions of their own: between two of them rows change. Whoever finds what does
not fit looks at those rows again.
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
    """An object that waits to be packed, as the table of those says. `slot`: see core.slots."""

    landing_id: LandingId
    object_id: int
    slot: int
    due_ms: int
    state: ObjectState
    size: int


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of the deletion queue of landing copies. object_id, version: None while no object claims the copy; in
    quarantine, the version is 0. not_before_ms: when the reaper may settle it. doomed: it is verified."""

    landing_id: LandingId
    object_id: int | None
    version: int | None
    not_before_ms: int
    doomed: bool


class Inspection(Protocol):
    """See the module docstring. Each page costs what its rows cost, wherever in the table it is."""

    def objects_after(self, object_id: int, limit: int) -> list[ObjectRow]:
        """Rows of objects with a greater `object_id`, in that order. `extent` is None if the row lacks any part of
        it, whatever its state."""
        ...

    def objects_with(self, object_ids: Collection[int]) -> dict[int, ObjectRow]:
        """The rows of these objects, by `object_id`, as far as there are any."""
        ...

    def segments_of(self, object_ids: Collection[int]) -> dict[int, list[tuple[int, Segment]]]:
        """For each of these objects that has segments: (version, segment) in order of version and part."""
        ...

    def owners_after(self, object_id: int, limit: int) -> list[int]:
        """The greater ids of objects that segments belong to, in that order, whether there are such objects or not."""
        ...

    def blocks_known(self, block_ids: Collection[BlockId]) -> frozenset[BlockId]:
        """Those of these blocks that have a row."""
        ...

    def waiting_after(self, landing_id: LandingId | None, limit: int) -> list[WaitingRow]:
        """What waits with a greater landing id, in that order. None: from the beginning."""
        ...

    def waiting_with(self, landing_ids: Collection[LandingId]) -> dict[LandingId, WaitingRow]:
        """What waits with these landing ids, as far as there is anything."""
        ...

    def deletions_after(self, landing_id: LandingId | None, limit: int) -> list[QueueEntry]:
        """Entries of the deletion queue with a greater landing id, in that order. None: from the beginning."""
        ...
