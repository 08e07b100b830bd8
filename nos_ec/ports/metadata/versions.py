"""Noncurrent versions of a key, and delete markers (docs/adr/0034).

A key has one current version, or none. In addition it may have any number of noncurrent versions, whose rows are
treated as if they were current: they are packed, moved by GC and verified, and their bytes count as live. A delete
marker has no object row. If there is no current version, the newest of the others is a delete marker. Therefore code
that looks only for current versions never sees the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata.objects import ObjectRow


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version of a key. `row` is None for a delete marker. `is_null` marks a version without an id of its own."""

    key: ObjectKey
    version: int
    created_ms: int
    is_null: bool
    row: ObjectRow | None
    is_latest: bool = False


@dataclass(frozen=True, slots=True)
class VersionPage:
    """A page of a listing of versions: entries, and folders (core.folders). `next_after` is the name, or folder, and
    the version of the last entry; None at the end."""

    entries: Sequence[VersionEntry | str]
    next_after: tuple[str, int | None] | None


@dataclass(frozen=True, slots=True)
class DeleteVersion:
    """A request to remove one version. `version` is None for the null version, which has no id of its own. `condition`
    must hold for the version. With `bypass`, a retention in the mode GOVERNANCE does not protect it."""

    key: ObjectKey
    version: int | None
    condition: Condition | None = None
    bypass: bool = False


@dataclass(frozen=True, slots=True)
class AddMarker:
    """A request to delete the object of a key in a bucket with versions. `condition` must hold for the current version.
    `seen` is the row of the current version, which must not have been overwritten since, nor its attributes changed."""

    key: ObjectKey
    versioning: Versioning
    condition: Condition | None = None
    seen: ObjectRow | None = None


@dataclass(frozen=True, slots=True)
class ExpireVersion:
    """A request to remove the noncurrent version, or marker, with this number, if it may still expire.

    `seen` is its row, whose attributes must not have changed since; None for a marker. It must have been noncurrent
    since `since_ms` or longer: that begins when its successor is created, the next newer version or marker that exists.
    At least `newer` noncurrent versions and markers of the key must be newer.
    """

    key: ObjectKey
    version: int
    seen: ObjectRow | None
    since_ms: int
    newer: int = 0


@dataclass(frozen=True, slots=True)
class ExpireMarker:
    """A request to remove the delete marker with this number, if its key has nothing else left."""

    key: ObjectKey
    version: int


VersionDeletion = DeleteVersion | AddMarker | ExpireVersion | ExpireMarker


@dataclass(frozen=True, slots=True)
class MarkerRow:
    """A delete marker, as it is dumped."""

    key: ObjectKey
    version: int
    created_ms: int
    is_null: bool


class Versions(Protocol):
    """Rows of noncurrent versions and delete markers. See the module docstring. Safe to call from several threads.

    `Objects.record_puts` and `record_large` make versions noncurrent: with ENABLED any current version, otherwise a
    current version that has an id. A caller that passes no versioning does the latter; such callers do not know about
    versions.
    """

    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """Return one version, current or not, or a marker. None: the null version. Raises NotFound, which carries the
        key."""

    def latest_marker(self, key: ObjectKey) -> VersionEntry | None:
        """Return the newest of the noncurrent versions, if it is a delete marker: this is the latest version of a key
        that has no current version."""

    def same_version(self, row: ObjectRow) -> ObjectRow | None:
        """Return the row of exactly this version as it is now, current or noncurrent; None if it is gone or in the
        trash."""

    def list_versions(
        self,
        bucket: str,
        prefix: str,
        delimiter: str,
        after: tuple[str, int | None],
        limit: int,
        budget_ms: int,
    ) -> VersionPage:
        """Return one page of all versions and delete markers, like `Objects.list_entries`, by name, newest first.
        `after` is a name and one of its versions; the version None means after all versions of the name, or after the
        folder."""

    def delete_versions(
        self, deletions: Sequence[VersionDeletion], now_ms: int, until_ms: int | None = None
    ) -> list[VersionEntry | NosError | None]:
        """Carry out these requests in one transaction, in their order. Returns for each the version that was removed,
        or the marker that was added; None if there was no such version, or if it may not expire, such as a locked
        version; NotFound or PreconditionFailed if its condition does not hold; Locked if a lock protects a version that
        would be removed.

        DeleteVersion: the version's bytes are released as by `Objects.delete`, or it goes into the trash until
        `until_ms`. When the current version is removed, or the last marker above a version, the next older one becomes
        current in the same transaction, unless it is a marker. AddMarker: the current version becomes noncurrent; with
        SUSPENDED, the null version is removed, and the marker is the null version. ExpireVersion: the version's bytes
        are released, or it goes into the trash; no other version becomes current.
        """

    def markers_after(self, after: tuple[ObjectKey, int] | None, limit: int) -> list[MarkerRow]:
        """Return delete markers after this key and version, in the order of bucket, name and age, newest first."""

    def restore_markers(self, rows: Sequence[MarkerRow]) -> None:
        """Write markers as they were dumped. Calling it again changes nothing."""

    def floors_after(self, after: ObjectKey | None, limit: int, bucket: str = "") -> list[tuple[ObjectKey, int]]:
        """Return the greatest number that was removed from each key in the last FLOOR_MS, in the order of the keys, for
        keys after this one, and of this bucket if one is given. Any version that is later added to a key with versions
        gets a greater number."""

    def floors_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, int]:
        """Return the numbers of `floors_after` for those of these keys that have one."""

    def restore_floors(self, found: Sequence[tuple[ObjectKey, int]]) -> None:
        """Load the result of `floors_after`. A greater number that already exists stays. Repeating it changes
        nothing."""

    def forget_floors(self, now_ms: int, limit: int) -> int:
        """Forget up to `limit` numbers that are older than FLOOR_MS. Returns how many were forgotten."""

    def settle_versions(self, rows: Sequence[ObjectRow]) -> None:
        """Make those of these rows noncurrent that are in the trash, in a rebuild. Calling it again changes nothing."""

    def order_versions(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int) -> None:
        """Make the newest version of each of these keys current; if it is a marker, none is current. If a key has
        several null versions, markers included, the newest stays: it had replaced the others, which go into the trash
        until `until_ms`. Used in a rebuild, whose sources date from different times. Calling it again changes
        nothing."""

    def listed_as_noncurrent(self, rows: Sequence[ObjectRow]) -> frozenset[int]:
        """Return the object ids of those of these noncurrent versions that a listing of versions finds."""

    def noncurrent_after(
        self, after: tuple[ObjectKey, int] | None, limit: int
    ) -> list[tuple[ObjectKey, int, int | None]]:
        """Return (key, version, object id, or None for a marker) of all noncurrent versions, in the order of
        `markers_after`."""
