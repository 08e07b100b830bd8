"""The trash: deleted versions whose rows are kept until a time that was fixed when they were deleted (docs/adr/0028).

A version in the trash does not occupy its key: a key may have a current version and any number of versions in the
trash. Otherwise it is treated as before the deletion: it is packed, moved by GC and verified, and its bytes count as
live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nos_ec.ports.metadata.objects import ObjectRow


class TrashMark(NamedTuple):
    """A position in the trash, whose rows are ordered by these values."""

    until_ms: int
    object_id: int


@dataclass(frozen=True, slots=True)
class TrashPage:
    """A page of rows of the trash. `before` is the position where the next page begins; None at the end."""

    rows: Sequence[ObjectRow]
    before: TrashMark | None


@dataclass(frozen=True, slots=True)
class Undeleted:
    """The versions that are current after an undelete, and the object ids of those that were current before it."""

    rows: list[ObjectRow]
    already: frozenset[int]


class Trash(Protocol):
    """Rows of the trash. See the module docstring. `Objects.delete` puts versions into the trash. Safe to call from
    several threads."""

    def trash_page(self, before: TrashMark | None, limit: int, bucket: str = "", prefix: str = "") -> TrashPage:
        """Return the next `limit` rows of the trash, latest expiry first. With a bucket, only those of the `limit` rows
        that are in it and whose names begin with `prefix`; so a page that is not the last one may be empty. `before` is
        None for the first page.

        The cost depends on `limit`, not on the number of rows in the trash or in the store.
        """

    def expired_trash(self, now_ms: int, limit: int, after: TrashMark | None = None) -> list[ObjectRow]:
        """Return rows that have expired at `now_ms` and come after `after`, earliest expiry first."""

    def purge_trash(self, rows: Sequence[ObjectRow], now_ms: int) -> list[ObjectRow]:
        """Remove those of these rows that are in the trash until the same time, and release their bytes as
        `Objects.delete` does; all in one transaction of O(1) statements. Returns the removed rows; locked ones stay.
        Called again after a Transient, it returns the rows that were still there."""

    def undelete(self, rows: Sequence[ObjectRow]) -> Undeleted:
        """Make these versions current again, each with its version, bytes and attributes. Returns them in the order
        given, with those that were current already: somebody else, or a call that ended with a Transient, has brought
        them back.

        Skips a row that does not exist any more, and a row whose key has another current version, even one from an
        earlier row of this call. All in one transaction of O(1) statements.
        """
