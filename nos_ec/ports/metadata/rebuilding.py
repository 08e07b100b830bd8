"""Filling an empty metadata store with the rows of a store whose metadata was lost, and the journal of deletes, which
tells a rebuild what dumps do not have yet.

No geometry is recorded before `finish_rebuild`, so that no other process can open the store. Each method is one
transaction, and calling it again with the same arguments changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata.blocks import BlockRow
from nos_ec.ports.metadata.inspection import QueueEntry
from nos_ec.ports.metadata.landing_segments import SegmentRow
from nos_ec.ports.metadata.objects import ObjectRow, Segment
from nos_ec.ports.metadata.versions import MarkerRow


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A row to be written. `parts` are the segments of a LARGE object, in order. `instead_of` is the row with the same
    object_id that it replaces."""

    row: ObjectRow
    parts: Sequence[Segment] = ()
    instead_of: ObjectRow | None = None


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows in the form that the database takes, which only the adapter reads. Can be sent to another process."""

    rows: Any


@dataclass(frozen=True, slots=True)
class Replay:
    """Changes that the journal of deletes tells. removed: rows to remove, whose copies exist. trashed: current and
    noncurrent rows to put into the trash, with times, or without if they are settled later. restored: rows in the trash
    to make current; their keys have no current version. markers: delete markers to add. unmarked: keys and numbers of
    delete markers to remove, before any is added."""

    removed: list[ObjectRow]
    trashed: list[ObjectRow]
    restored: list[ObjectRow]
    markers: list[MarkerRow]
    unmarked: list[tuple[ObjectKey, int]]


UNSETTLED_MS = (1 << 48) - 1
"""The `trash_until_ms` of rows in the trash whose times are not known yet."""


class Journal(Protocol):
    """The journal: what users have deleted, until it is written into the store (docs/adr/0065). Safe to call from
    several threads and processes.

    With `keep_journal`, the methods that delete versions, put them into the trash, bring them back, add delete markers
    or change attributes add its rows, in their own transactions. Versions in hidden buckets are left out."""

    def keep_journal(self, rows_max: int) -> None:
        """From now on, add rows. With `rows_max` rows the journal is full: entries are left out, and no method fails.
        Each process looks every 10 s how many there are."""

    def journal_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return the first rows whose ids are greater than `after`, in order: id and body (core.formats.journal). The
        rows of a key are in the order of its changes, and none of them appears before an earlier one."""

    def journal_number(self) -> int:
        """Return the number of the next object of the journal."""

    def journal_gap_ms(self) -> int:
        """Return since when entries were left out (Unix milliseconds); 0 if none were."""

    def forget_journal(self, number: int, ids: Sequence[int], gap_ms: int = 0) -> None:
        """Remove the rows with these ids, which the object `number` of the journal has. If that is the next number, it
        rises by 1. With gap_ms, the object also shows that entries were left out since then, so `journal_gap_ms`
        becomes 0 if it was this. Called again, it changes nothing."""

    def oldest_journal_ms(self) -> int | None:
        """Return when the oldest row was added (Unix milliseconds); None without rows."""


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

    def prepare(self, objects: Sequence[Rebuilt]) -> PreparedRows:
        """Prepare a page of rows for `load_prepared`. Needs no connection, so any process may do this."""

    def load_prepared(self, prepared: PreparedRows, state: str) -> bool:
        """Do what `load` does with these rows. Return False, and change nothing, if a page before had one of their
        keys: then call `load`."""

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

    def replay(self, changes: Replay, now_ms: int, state: str) -> None:
        """Make these changes, and store `state`. The landing copies of removed rows are queued for deletion, due at
        `now_ms`. Unlike the other methods, it must not be called again with the same changes."""

    def enter_blocks(self, blocks: Sequence[BlockRow]) -> None:
        """Write rows of blocks, in place of existing rows with these ids. SEALED blocks count as sealed when they were
        created."""

    def enter_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Write rows of landing segments, in place of existing rows with these ids."""

    def finish_rebuild(self, geometry: Geometry, epoch_min: int, journal_number: int) -> None:
        """Let the epochs of leases begin above `epoch_min`, and give the next object of the journal this number.
        Remove the state, and record the geometry, so that the store can be opened."""
