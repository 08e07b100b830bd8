"""The trash: deleted versions whose rows are kept until a time that was fixed when they were deleted (docs/adr/0028).

What is in the trash has no key: a key may have a current version and any number of versions in the trash. All else goes
on as before the deletion: a version is packed, moved by GC and verified, and its bytes count as live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nos_ec.ports.metadata.objects import ObjectRow


class TrashMark(NamedTuple):
    """A place in the trash, whose rows are in the order of these values."""

    until_ms: int
    object_id: int


@dataclass(frozen=True, slots=True)
class TrashPage:
    """Rows of the trash. before: where the next page begins; None at the end."""

    rows: Sequence[ObjectRow]
    before: TrashMark | None


class Trash(Protocol):
    """See the module docstring. `Objects.delete` puts versions into the trash. Safe to call from several threads."""

    def trash_page(self, before: TrashMark | None, limit: int, bucket: str = "", prefix: str = "") -> TrashPage:
        """The next `limit` rows of the trash, what is kept longest first. With a bucket, those of them that are in it
        and whose names begin with `prefix`; so a page may be empty that is not the last one. None: from the beginning.

        Its cost depends on `limit`, not on how much there is in the trash or in the store.
        """
        ...

    def expired_trash(self, now_ms: int, limit: int, after: TrashMark | None = None) -> list[ObjectRow]:
        """Rows that have expired at `now_ms` and come behind `after`, what expired first."""
        ...

    def purge_trash(self, rows: Sequence[ObjectRow], now_ms: int) -> list[ObjectRow]:
        """Remove those of these rows that are in the trash until the same time, and release their bytes as
        `Objects.delete` does; all in one transaction of O(1) statements. Returns them. Called again after a Transient,
        it returns those that were still there."""
        ...

    def undelete(self, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        """Make these versions current again, each with its version, bytes and attributes. Returns them, in the order
        given.

        Passed over: a row that is not there any more, and one whose key has a current version, also by an earlier row
        of the same key. One that is current already is returned, so calling it again is safe. All in one transaction of
        O(1) statements.
        """
        ...
