"""The directory of a store that is divided into cells: which cell holds which bucket (docs/CELLS.md). Also the states
of buckets that are moved from one cell to another, as one cell sees them.

The home of a bucket outlives the bucket. Only a move changes it (docs/adr/0066): then the old home refuses a program
that has looked it up before, however long ago. The objects of a wide bucket lie in several cells, by a hash of their
names (docs/adr/0068). A move takes all slices that a cell has of it to a cell that has none (docs/adr/0071).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

from nos_ec.core.ids import LandingId
from nos_ec.ports.metadata.buckets import BucketRow
from nos_ec.ports.metadata.leases import Lease
from nos_ec.ports.metadata.objects import NewLargeObject, ObjectRow
from nos_ec.ports.metadata.uploads import UploadRow
from nos_ec.ports.metadata.versions import MarkerRow

CELL_BYTES_MAX = 32
SLICES_MAX = 32
"""Maximum number of slices of a wide bucket."""
SLICES_BYTES_MAX = SLICES_MAX * (CELL_BYTES_MAX + 1)


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """A bucket, its home (the name of a cell), and whether it was deleted, or not created yet. `owner` and `created_ms`
    are those of the bucket's row in its home, or of the bucket that was deleted or is to be created. `slices` are the
    cells of a wide bucket, its home first; a cell may have several slices. It is empty for other buckets. `moves` is
    how often the bucket was moved to another home. The slices of a wide bucket are counted one by one in `slice_moves`,
    which is empty if none was ever moved; `moves` is the greatest of these numbers."""

    bucket: str
    home: str
    owner: str
    created_ms: int
    is_deleted: bool = False
    slices: tuple[str, ...] = ()
    moves: int = 0
    slice_moves: tuple[int, ...] = ()

    def cell_of(self, name: str) -> str:
        """Return the cell in which an object of this name lies."""
        return self.slices[slice_of(name, len(self.slices))] if self.slices else self.home

    @property
    def cells(self) -> Sequence[str]:
        """Return all cells in which objects of the bucket may lie, its home first."""
        return tuple(dict.fromkeys(self.slices)) or (self.home,)

    @property
    def counted_slices(self) -> Sequence[tuple[str, int]]:
        """Return the cell of each slice, and how often the slice was moved."""
        return tuple(zip(self.slices, self.slice_moves or [0] * len(self.slices), strict=True))

    @property
    def slices_text(self) -> str:
        """Return the slices as one text: the cells, each with how often its slice was moved if it was."""
        return ",".join(f"{cell}:{moves}" if moves else cell for cell, moves in self.counted_slices)

    def moves_of(self, cell: str) -> int:
        """Return how often what a cell has of the bucket was moved; `moves` for a cell that has nothing of it."""
        return next((moves for held_by, moves in self.counted_slices if held_by == cell), self.moves)

    def moved(self, source: str, target: str, number: int) -> DirectoryRow:
        """Return the row after a move of this number, of what `source` has to `target`."""
        if not self.slices:
            return replace(self, home=target, moves=number) if self.home == source else self
        return self.with_slices([(target, number) if one[0] == source else one for one in self.counted_slices])

    def with_slices(self, counted: Sequence[tuple[str, int]]) -> DirectoryRow:
        """Return the row of a wide bucket with these `counted_slices`."""
        slices, counts = tuple(cell for cell, _ in counted), tuple(moves for _, moves in counted)
        most = max(counts)
        return replace(self, home=slices[0], slices=slices, moves=most, slice_moves=counts if most else ())


def places_of(cell: str, slices: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the slices that a cell has."""
    return tuple(number for number, held_by in enumerate(slices) if held_by == cell)


def slice_of(name: str, slices: int) -> int:
    """Return the number of the slice, from 0, to which an object of a wide bucket belongs. It never changes."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % slices


def encode_slices(slices: Sequence[str]) -> bytes:
    """Return the document WIDE of a wide bucket with these slices. Each cell of the bucket has it. What it says about
    the slices of other cells may be out of date, because it is not changed when these are moved."""
    return ",".join(slices).encode()


def decode_slices(mark: bytes | None) -> tuple[str, ...]:
    """Return the slices that a document WIDE names; none for a bucket without this document."""
    return () if mark is None else tuple(mark.decode().split(","))


class Directory(Protocol):
    """Rows of the directory. Safe to call from several threads."""

    def directory_row(self, bucket: str) -> DirectoryRow | None:
        """Return the row of a bucket; None if there never was such a bucket. One read by key."""

    def claim_home(self, bucket: str, owner: str, home: str, now_ms: int, slices: Sequence[str] = ()) -> DirectoryRow:
        """Return the row of a bucket that is about to be created: the row that it has, or a new one with this home and
        these slices. The bucket counts as deleted until `record_in_directory` says that its home has it. Of two calls
        at once, one decides."""

    def record_in_directory(self, row: DirectoryRow) -> DirectoryRow:
        """Make the directory say what this row says, and return the row that it has then. If the bucket has another
        home there, to which it was moved as often, or more often, its row is left alone. Of a wide bucket, each slice
        is in the cell of the row by which it was moved more often. A bucket becomes wide if its home is one of the
        cells, because that cell was entered before the others."""

    def move_home(self, bucket: str, source: str, target: str, number: int) -> None:
        """Make the directory say that what a bucket has in the cell `source`, all of it or slices, is in the cell
        `target`, by the move of this number. May be repeated. Raises Conflict if it was moved more often, or more than
        one move is missing, or `target` has other slices."""

    def buckets_in_directory(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """Return a page of the buckets of an account that are not deleted, in the byte order of their names, from the
        first after this name."""

    def directory_page(self, after: str, limit: int) -> list[DirectoryRow]:
        """Return a page of all rows, in the byte order of the buckets' names, from the first after this name."""


class MoveState(StrEnum):
    """What a cell does with a bucket. A bucket without a row is served, as in HERE."""

    HERE = "here"
    """It is served."""
    LEAVING = "leaving"
    """It is being copied to another cell. It is served. Each transaction that changes objects or uploads also writes
    their names down (`Moves.changed_names`)."""
    CLOSED = "closed"
    """The last changes are being copied. It is read, and not changed."""
    GONE = "gone"
    """Another cell has it."""
    ARRIVING = "arriving"
    """It is being copied to this cell, which does not serve it yet."""
    REBUILT = "rebuilt"
    """It was moved to this cell, whose database was then lost, and rebuilt without a dump that has the move. What it
    lacks must come from the old cell before this one serves it."""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """The state of a bucket in a cell. `other` is the cell to or from which it is or was moved, `number` what
    `DirectoryRow.moves` is after this move, `mover` a random number of the process that moves it, `since_ms` when the
    state began, by the clock of that process."""

    bucket: str
    state: MoveState
    other: str
    number: int
    mover: int
    since_ms: int

    @property
    def arrives(self) -> bool:
        """Return whether this cell gets the bucket, and does not serve it yet."""
        return self.state in (MoveState.ARRIVING, MoveState.REBUILT)

    @property
    def moves(self) -> int:
        """Return what `DirectoryRow.moves` is until the move is made."""
        return self.number - 1 if self.state in (MoveState.LEAVING, MoveState.CLOSED) else self.number


class ChangedName(NamedTuple):
    """A name that users have changed while its bucket was LEAVING. Each change has an id of its own."""

    change_id: int
    name: str


@dataclass(frozen=True, slots=True)
class CopiedVersion:
    """A version to be recorded in the cell to which its bucket is moved. `row` is the row in the other cell, `copy` the
    landing copy of its bytes in this one."""

    row: ObjectRow
    copy: LandingId
    due_ms: int


class Moves(Protocol):
    """Moves of buckets. Safe to call from several threads."""

    def obey_moves(self, moved: Callable[[str], object]) -> None:
        """From now on, refuse with Moved what concerns a bucket that this cell does not serve, or not in this way
        (MoveState), and call `moved` with the bucket before. Call this before anything else."""

    def move_as(self, row: MoveRow) -> None:
        """From now on, refuse all changes with Conflict unless this cell has exactly this row, and write no journal.
        Use this in an object that serves only a mover."""

    def move_row(self, bucket: str) -> MoveRow | None:
        """Return the row of a bucket, or None."""

    def move_rows(self, after: str, limit: int) -> list[MoveRow]:
        """Return a page of all rows, in the byte order of the buckets' names, from the first after this name."""

    def unfinished_moves(self, after: str, limit: int) -> list[MoveRow]:
        """Return a page of the rows of moves that are not complete, in the byte order of the buckets' names, from the
        first after this name: those that are LEAVING, CLOSED, ARRIVING or REBUILT, and those that are GONE while this
        cell still has the row of the bucket."""

    def set_move(self, row: MoveRow, known: MoveRow | None) -> None:
        """Replace the row `known` of a bucket. Waits for transactions that change what users see in this cell, and
        keeps new ones waiting meanwhile. Raises Conflict if the cell has another row."""

    def last_change(self, bucket: str) -> int:
        """Return the greatest id of the changed names of a bucket; 0 if there are none. A transaction that has not
        ended may write down a name with a lower one."""

    def next_changed(self, after: str) -> str | None:
        """Return the first bucket after this name, in byte order, that has changed names; None if there is none. One
        look-up."""

    def changed_names(self, bucket: str, last: int, limit: int) -> list[ChangedName]:
        """Return the first `limit` changes of names whose ids are at most `last`, in the order of their ids. Since the
        bucket became LEAVING, each committed change is among them until it is forgotten. If a read that follows shows a
        name as it is in the target, its change may be forgotten: a later one has another id.

        Changes of parts, and of uploads (`upload_key`), are among those of the hidden bucket that has the parts."""

    def forget_changes(self, row: MoveRow, changes: Collection[ChangedName]) -> None:
        """Forget these changes. May be repeated. Raises Conflict unless this cell has exactly this row of the bucket:
        another mover has not compared the names."""

    def open_copied_upload(self, new: UploadRow) -> bool:
        """Write this row of an OPEN upload, so that copies of its parts can be recorded in the cell to which its bucket
        is moved, and collectors leave them alone. Returns False, and changes nothing, if it is COMPLETED: then this
        cell has a version that is composed of it. May be repeated."""

    def record_copies(self, copies: Sequence[CopiedVersion], now_ms: int) -> None:
        """Record small and empty versions whose copies have landed, with their numbers, times and attributes, as
        current or noncurrent ones, or in the trash until the same times. Their keys have no such versions. The uploads
        become COMPLETED of which they are composed. Raises Transient if a copy was not in time, or if one of these
        uploads, or the upload of a part, was aborted meanwhile; then nothing is recorded."""

    def record_large_copy(self, new: NewLargeObject, lease: Lease, row: ObjectRow, now_ms: int) -> None:
        """Record the copy `new` of a large version, whose row in the other cell is `row`. Its upload changes as with
        `record_copies`. Raises LeaseLost, NotFound, as `record_large` does, and Transient if the upload was aborted."""

    def record_markers(self, markers: Sequence[MarkerRow]) -> None:
        """Record delete markers of keys that have none of these numbers."""

    def remove_key(self, bucket: str, name: str, now_ms: int) -> int:
        """Remove all versions and markers of a key, current and noncurrent, and release their bytes. They do not go
        into the trash. Returns how many there were. Raises Locked if one of the versions is locked, but not in a cell
        where the bucket is ARRIVING, REBUILT or GONE: there they are copies, and the lock protects the version in the
        other cell."""

    def unserved_bucket(self, bucket: str) -> tuple[BucketRow | None, bytes | None]:
        """Return the row of a bucket, as `bucket` does, and its document WIDE, also if this cell does not serve it."""

    def forget_bucket(self, bucket: str) -> None:
        """Remove the row of a bucket, its documents and grants, as if it had never been there. The document WIDE stays:
        it says which slices of the bucket were in this cell."""
