"""Versions of a key beside the current one, and delete markers (docs/adr/0034).

A key has a current version, or none. Beside it there may be any number of noncurrent ones, whose rows go on as if they
were current: they are packed, moved by GC and verified, and their bytes count as live. A delete marker has no row of an
object. Without a current version, the newest of the others is a delete marker. So whoever looks for current versions
alone never meets the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata.objects import ObjectRow


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version of a key. row: None for a delete marker. is_null: it has no id of its own."""

    key: ObjectKey
    version: int
    created_ms: int
    is_null: bool
    row: ObjectRow | None
    is_latest: bool = False


@dataclass(frozen=True, slots=True)
class VersionPage:
    """A page of a listing of versions: entries, and folders (core.folders). next_after: the name, or folder, and the
    version of the last one; None when this is the end."""

    entries: Sequence[VersionEntry | str]
    next_after: tuple[str, int | None] | None


@dataclass(frozen=True, slots=True)
class DeleteVersion:
    """Remove one version. version: None for the null version. condition: what must hold of it."""

    key: ObjectKey
    version: int | None
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class AddMarker:
    """Delete the object, in a bucket with versions. condition: what must hold of the current version. seen: the row of
    the current version, which must not have been overwritten since, nor its attributes changed."""

    key: ObjectKey
    versioning: Versioning
    condition: Condition | None = None
    seen: ObjectRow | None = None


@dataclass(frozen=True, slots=True)
class ExpireVersion:
    """Remove the noncurrent version, or marker, of this number, if it is still true that nobody needs it.

    seen: its row, whose attributes must not have been changed since; None for a marker. since_ms: it must have been
    noncurrent since then, or longer: since its successor was created, which is the next newer version or marker that is
    there. newer: so many noncurrent versions and markers of the key must be newer, at least.
    """

    key: ObjectKey
    version: int
    seen: ObjectRow | None
    since_ms: int
    newer: int = 0


@dataclass(frozen=True, slots=True)
class ExpireMarker:
    """Remove the delete marker of this number, if it is all that is left of its key."""

    key: ObjectKey
    version: int


VersionDeletion = DeleteVersion | AddMarker | ExpireVersion | ExpireMarker


@dataclass(frozen=True, slots=True)
class MarkerRow:
    """A delete marker, as dumps have it."""

    key: ObjectKey
    version: int
    created_ms: int
    is_null: bool


class Versions(Protocol):
    """See the module docstring. Safe to call from several threads.

    `Objects.record_puts` and `record_large` make versions noncurrent: with ENABLED whatever was current, otherwise a
    current version that has an id. Without any versioning, this is what programs do that know no versions.
    """

    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """One version, current or not, or a marker. None: the null version. Raises NotFound, which carries the key."""
        ...

    def latest_marker(self, key: ObjectKey) -> VersionEntry | None:
        """The newest of the noncurrent versions, if it is a delete marker: what a key without a current version has."""
        ...

    def same_version(self, row: ObjectRow) -> ObjectRow | None:
        """The row of this very version as it is now, current or noncurrent; None if it is gone or in the trash."""
        ...

    def list_versions(
        self,
        bucket: str,
        prefix: str,
        delimiter: str,
        after: tuple[str, int | None],
        limit: int,
        budget_ms: int,
    ) -> VersionPage:
        """Like `Objects.list_entries`, of all versions and delete markers: by name, and the newest first. after: a name
        and a version of it; None: behind all versions of the name, or behind the folder."""
        ...

    def delete_versions(
        self, deletions: Sequence[VersionDeletion], now_ms: int, until_ms: int | None = None
    ) -> list[VersionEntry | NosError | None]:
        """All in one transaction, in their order. Returns for each what was removed, or the marker that was made; None
        if there was no such version, or if it may not expire; NotFound or PreconditionFailed if its condition does not
        hold.

        DeleteVersion: what it holds is released as by `Objects.delete`, or goes into the trash until `until_ms`. When
        the current version is removed, or the last marker above a version, the next older one becomes current in the
        same transaction, unless it is a marker. AddMarker: the current version becomes noncurrent; with SUSPENDED, the
        null version is removed, and the marker is the null version. ExpireVersion: what it holds is released, or goes
        into the trash; no other version becomes current.
        """
        ...

    def markers_after(self, after: tuple[ObjectKey, int] | None, limit: int) -> list[MarkerRow]:
        """Delete markers in the order of bucket, name and age, the newest first; behind this key and version."""
        ...

    def restore_markers(self, rows: Sequence[MarkerRow]) -> None:
        """Write markers as they were. Running it again changes nothing."""
        ...

    def floors_after(self, after: ObjectKey | None, limit: int) -> list[tuple[ObjectKey, int]]:
        """Return the greatest number that was removed from each key in the last FLOOR_MS, in the order of the keys, for
        keys after this one. Whatever is added to a key with versions gets a greater number."""
        ...

    def restore_floors(self, found: Sequence[tuple[ObjectKey, int]]) -> None:
        """Load the result of `floors_after`. A greater number that already exists stays. Repeating it changes
        nothing."""
        ...

    def forget_floors(self, now_ms: int, limit: int) -> int:
        """Forget up to `limit` numbers that are older than FLOOR_MS. Returns how many were forgotten."""
        ...

    def settle_versions(self, rows: Sequence[ObjectRow]) -> None:
        """Make those of these rows noncurrent that are in the trash, in a rebuild. Running it again changes nothing."""
        ...

    def order_versions(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int) -> None:
        """Make the newest version of these keys current, unless it is a marker; then none is. Of several null versions
        of a key, markers included, the newest stays: the others were replaced, and go into the trash until `until_ms`.
        Used in a rebuild, whose sources date from different times. Running it again changes nothing."""
        ...

    def listed_as_noncurrent(self, rows: Sequence[ObjectRow]) -> frozenset[int]:
        """The object ids of those of these noncurrent versions that a listing of versions finds."""
        ...

    def noncurrent_after(
        self, after: tuple[ObjectKey, int] | None, limit: int
    ) -> list[tuple[ObjectKey, int, int | None]]:
        """(key, version, object id, or None for a marker) of all noncurrent versions, in the order of
        `markers_after`."""
        ...
