"""Filling an empty metadata store with the rows of a store whose metadata was lost.

No geometry is recorded before `finish_rebuild`, so that no other process can open the store. Each method is one
transaction, and calling it again with the same arguments changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata.blocks import BlockRow
from nos_ec.ports.metadata.inspection import QueueEntry
from nos_ec.ports.metadata.landing_segments import SegmentRow
from nos_ec.ports.metadata.objects import ObjectRow, Segment


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A row to be written. `parts` are the segments of a LARGE object, in order. `instead_of` is the row with the same
    object_id that it replaces."""

    row: ObjectRow
    parts: Sequence[Segment] = ()
    instead_of: ObjectRow | None = None


UNSETTLED_MS = (1 << 48) - 1
"""The `trash_until_ms` of rows in the trash whose times are not known yet."""


class Rebuilding(Protocol):
    """Writes rebuilt rows. See the module docstring. Used by one thread of one process."""

    def rebuild_state(self) -> str | None:
        """Return the state that the last call of `load` or `begin_rebuild` stored; None if no rebuild has begun."""

    def begin_rebuild(self, state: str) -> None:
        """Begin a rebuild, and store its state. Raises Conflict unless the tables are empty."""

    def load(self, objects: Sequence[Rebuilt], deletions: Sequence[QueueEntry], state: str) -> None:
        """Add rows as they were dumped, and store `state`. Objects in the landing store wait to be packed, due now. A
        row replaces one of the same key that was loaded before; a row in the trash replaces one of the same key and
        version there. A copy that a row has is not queued for deletion."""

    def trash_of(self, named: Collection[tuple[ObjectKey, int]]) -> dict[tuple[ObjectKey, int], ObjectRow]:
        """Return the rows in the trash that have one of these keys and versions. Before `settle_trash`, their times are
        not known, and `trash_until_ms` is UNSETTLED_MS."""

    def settle_trash(self, rows: Sequence[ObjectRow]) -> None:
        """Set the times of those of these rows that are in the trash. Afterwards `trash_of` does not find them."""

    def last_object_id(self) -> int:
        """Return the greatest id of a row; 0 without rows."""

    def place(self, rebuilt: Sequence[Rebuilt], now_ms: int) -> None:
        """Write rows: current ones of different keys, and rows in the trash. The landing copy of a replaced row is
        queued for deletion, unless the new row has it, or has another copy of the same version: then the first copy no
        longer exists. A copy that a new row has leaves the queue. Objects in the landing store wait to be packed, due
        at `now_ms`."""

    def remove(self, rows: Sequence[ObjectRow], now_ms: int | None = None) -> None:
        """Remove rows, with everything that belongs to them. With `now_ms`, their copies in the landing store exist,
        and go into quarantine from that time on, because nothing else refers to them; with None, the copies do not
        exist."""

    def enter_blocks(self, blocks: Sequence[BlockRow]) -> None:
        """Write rows of blocks, in place of existing rows with these ids. SEALED blocks count as sealed when they were
        created."""

    def enter_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Write rows of landing segments, in place of existing rows with these ids."""

    def finish_rebuild(self, geometry: Geometry, epoch_min: int) -> None:
        """Let the epochs of leases begin above `epoch_min`, remove the state, and record the geometry, so that the
        store can be opened."""
