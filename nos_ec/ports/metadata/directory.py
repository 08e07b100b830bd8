"""The directory of a store that is divided into cells: which cell holds which bucket (docs/CELLS.md).

The home of a bucket never changes, and outlives the bucket: a program that has looked it up, however long ago, reaches
the cell in which every other program looks for the bucket as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nos_ec.ports.metadata.buckets import BucketRow

CELL_BYTES_MAX = 32


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """A bucket, its home (the name of a cell), and whether it was deleted. `owner` and `created_ms` are those of the
    bucket's row in its home, or of the bucket that was deleted."""

    bucket: str
    home: str
    owner: str
    created_ms: int
    is_deleted: bool = False


class Directory(Protocol):
    """Rows of the directory. Safe to call from several threads."""

    def directory_row(self, bucket: str) -> DirectoryRow | None:
        """Return the row of a bucket; None if there never was such a bucket. One read by key."""

    def claim_home(self, bucket: str, owner: str, home: str, now_ms: int) -> DirectoryRow:
        """Return the row of a bucket that is about to be created: the row that it has, or a new one with this home. A
        deleted one gets this owner and time, and keeps its home. Of two calls at once, one decides."""

    def record_in_directory(self, row: DirectoryRow) -> DirectoryRow | None:
        """Make the directory say what this row says, and return None. If the bucket has another home there, return the
        row that the directory has, which is left alone."""

    def buckets_in_directory(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """Return a page of the buckets of an account that are not deleted, in the byte order of their names, from the
        first after this name."""

    def directory_page(self, after: str, limit: int) -> list[DirectoryRow]:
        """Return a page of all rows, in the byte order of the buckets' names, from the first after this name."""
