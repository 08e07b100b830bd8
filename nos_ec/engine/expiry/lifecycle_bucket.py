"""Applies the lifecycle rules of one bucket: deletes expired objects and versions, and aborts uploads.

Each name below the outermost prefixes of the rules is examined once, however many rules there are. The transaction that
deletes an object checks that it has not changed since: an object that was overwritten or tagged anew stays, and so does
a version that became current, or a delete marker that is no longer alone.

In a bucket with versioning, Enabled or Suspended, an expired object gets a delete marker, as from a DELETE without a
version id. The walk then examines noncurrent versions and markers, too. It deletes those of one page from the oldest to
the newest, so that each still has its successor at its turn. Everything that is deleted goes into the trash, if it is
on.

9  memory holds one page of rows, however many versions a key has
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, TypeVar

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.expiry import NEWER_MAX, BucketRules, ExpiryRule, tags_of
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import UploadId
from nos_ec.core.versions import Versioning
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    AddMarker,
    Buckets,
    DocumentKind,
    ExpireMarker,
    ExpireVersion,
    ObjectRow,
    Objects,
    Uploads,
    VersionEntry,
    Versions,
)

PAGE_ROWS = 1_000
VERSIONS_AT_A_TIME = 100
"""The most versions that one transaction deletes or hides by markers, because each takes several statements."""
LIST_MS_MAX = 60_000
FAILURES_MAX = 3
"""After this many Transient failures in a row, the cause is not the keys, and the walk ends."""

_log = structlog.get_logger(__name__)


class _Keyed(Protocol):
    @property
    def key(self) -> ObjectKey: ...


_T = TypeVar("_T", bound=_Keyed)


class BucketMetadata(Objects, Uploads, Buckets, Versions, Protocol):
    """The parts of the metadata that the walk of a bucket uses."""


class Place(NamedTuple):
    """The position of a walk: the last entry that it examined."""

    name: str = ""
    """Empty at the start."""
    version: int | None = None
    """The version in a bucket with versioning; None if all versions of the name were examined."""


START = Place()


@dataclass(frozen=True, slots=True)
class Expired:
    """Counts of a walk."""

    examined: int = 0
    """Objects, versions and markers that were examined."""
    objects: int = 0
    """Expired objects that were deleted."""
    bytes: int = 0
    """The sizes of the deleted objects and versions."""
    uploads: int = 0
    """Uploads that were aborted."""
    failed: int = 0
    """Buckets whose walk failed."""
    versions: int = 0
    """Noncurrent versions that were removed."""
    markers: int = 0
    """Delete markers that were removed."""

    def __add__(self, other: Expired) -> Expired:
        return Expired(*(mine + its for mine, its in zip(_values(self), _values(other), strict=True)))


class _Due(NamedTuple):
    """An expired object, version or marker: how to remove it, and its row; None for a marker."""

    deletion: AddMarker | ExpireVersion | ExpireMarker
    row: ObjectRow | None

    @property
    def key(self) -> ObjectKey:
        """The key of the object."""
        return self.deletion.key

    @property
    def counts(self) -> Expired:
        """The counts to add when it has been removed."""
        if self.row is None:
            return Expired(markers=1)
        is_object = isinstance(self.deletion, AddMarker)
        return Expired(objects=is_object, bytes=self.row.users_size, versions=not is_object)


class BucketWalk:
    """One walk of one bucket. Belongs to one thread."""

    def __init__(
        self,
        metadata: BucketMetadata,
        clock: Clock,
        day_ms: int,
        trash_ms: int,
        bucket: str,
        rules: Sequence[ExpiryRule],
        *,
        dry_run: bool = False,
    ) -> None:
        """day_ms: the length of a day. trash_ms: how long the trash keeps deleted objects; 0 for no trash. dry_run:
        only count."""
        self._metadata = metadata
        self._clock = clock
        self._trash_ms = trash_ms
        self._bucket = bucket
        self._rules = BucketRules(rules, day_ms)
        self._dry_run = dry_run
        self._at_ms = clock.now_ms()
        self._failure: Transient | None = None
        self._failures = 0

    def walk(
        self, after: Place = START, on_page: Callable[[Place, Expired], bool] = lambda _place, _found: True
    ) -> Expired:
        """Abort uploads, if the walk begins at START; then delete what has expired after the position `after`.

        on_page: receives the new position and the counts of the page; it returns False to end the walk. A key that
        cannot be deleted is skipped. Raises Transient; for skipped keys at the end of the walk.
        """
        total = Expired(uploads=self._abort()) if after == START else Expired()
        if total.uploads and not on_page(START, total):
            return total
        has_versions = self._versioning() is not None
        prefixes = self._rules.walked_with_versions if has_versions else self._rules.walked
        for prefix in prefixes(self._at_ms):
            place = after if _utf8(after.name) >= _utf8(prefix) else START
            if place.name and not place.name.startswith(prefix):
                continue
            for last, found in self._versions(prefix, place) if has_versions else self._objects(prefix, place.name):
                total += found
                if not on_page(last, found):
                    return total
        if self._failure is not None:
            raise self._failure
        return total

    # --- without versions -------------------------------------------------------------------------
    def _objects(self, prefix: str, name: str) -> Iterator[tuple[Place, Expired]]:
        while page := self._metadata.list_objects(self._bucket, prefix, name, PAGE_ROWS):
            name = page[-1].key.name
            due = [row for row in page if self._is_due(row)]
            gone = due if self._dry_run else self._delete(due, self._delete_objects)
            yield Place(name), Expired(len(page), len(gone), sum(row.users_size for row in gone))
            if len(page) < PAGE_ROWS:
                return

    def _is_due(self, row: ObjectRow) -> bool:
        expiry = self._rules.expiry(row.key.name, row.users_size, lambda: tags_of(row.attributes), row.created_ms)
        return expiry is not None and expiry.due_ms <= self._at_ms

    def _delete_objects(self, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        versioning = self._versioning()
        if versioning is None:
            return self._metadata.delete_unchanged(rows, *self._now())
        # Versioning was enabled since the walk began.
        marked = [_Due(AddMarker(row.key, versioning, seen=row), row) for row in rows]
        return [due.row for due in self._delete_oldest_first(marked) if due.row is not None]

    # --- with versions ----------------------------------------------------------------------------
    def _versions(self, prefix: str, after: Place) -> Iterator[tuple[Place, Expired]]:
        key = _KeyWalk(after)
        place: Place | None = after
        while place is not None:
            page = self._metadata.list_versions(self._bucket, prefix, "", place, PAGE_ROWS, LIST_MS_MAX)
            entries = [one for one in page.entries if isinstance(one, VersionEntry)]
            place = None if page.next_after is None else Place(*page.next_after)
            if place is not None and len(entries) > 1 and _may_be_alone(entries[-1], entries[-2]):
                # The next entry decides whether this marker is alone, so the next page begins with the marker.
                place = Place(entries[-2].key.name, entries[-2].version)
                del entries[-1]
            if not entries:
                return
            due = self._due(entries, key)
            gone = due if self._dry_run else self._delete_oldest_first(due)
            found = sum((one.counts for one in gone), Expired(examined=len(entries)))
            yield place or Place(entries[-1].key.name, entries[-1].version), found

    def _due(self, entries: Sequence[VersionEntry], key: _KeyWalk) -> list[_Due]:
        """Return the expired entries of a page."""
        versioning, found = self._versioning(), list[_Due]()
        if versioning is None:
            return []  # the bucket was deleted since the walk began
        for number, entry in enumerate(entries, 1):
            key.enter(entry)
            row = entry.row
            if row is not None and not row.is_noncurrent:
                if self._is_due(row):
                    found.append(_Due(AddMarker(entry.key, versioning, seen=row), row))
            elif key.has_newer:
                since_ms, newer = key.noncurrent(entry)
                if (expire := self._overdue(entry, since_ms, newer)) is not None:
                    found.append(_Due(expire, row))
            elif row is None and (number == len(entries) or entries[number].key != entry.key):
                expiry = self._rules.lone_marker(entry.key.name, entry.created_ms)
                if expiry is not None and expiry.due_ms <= self._at_ms:
                    found.append(_Due(ExpireMarker(entry.key, entry.version), None))
            key.leave(entry)
        return found

    def _overdue(self, entry: VersionEntry, since_ms: int, newer: int) -> ExpireVersion | None:
        row = entry.row
        size, attributes = (0, b"") if row is None else (row.users_size, row.attributes)
        found = self._rules.overdue(entry.key.name, size, lambda: tags_of(attributes), since_ms, newer, self._at_ms)
        return None if found is None else ExpireVersion(entry.key, entry.version, row, found.since_ms, found.newer)

    def _delete_oldest_first(self, due: list[_Due]) -> list[_Due]:
        batches = (due[max(0, end - VERSIONS_AT_A_TIME) : end] for end in range(len(due), 0, -VERSIONS_AT_A_TIME))
        return [one for batch in batches for one in self._delete(batch[::-1], self._delete_versions)]

    def _delete_versions(self, due: Sequence[_Due]) -> list[_Due]:
        answers = self._metadata.delete_versions([one.deletion for one in due], *self._now())
        return [one for one, answer in zip(due, answers, strict=True) if isinstance(answer, VersionEntry)]

    # --- of both ----------------------------------------------------------------------------------
    def _delete(self, due: Sequence[_T], delete: Callable[[Sequence[_T]], list[_T]]) -> list[_T]:
        """Delete all at once or, if that fails, one by one. Returns those that were deleted."""
        if not due:
            return []
        try:
            gone = delete(due)
        except NosError as error:
            if len(due) == 1:
                self._skip(due[0].key, error)
                return []
            gone = [one for single in due for one in self._delete([single], delete)]
        else:
            self._failures = 0
        kill_point("lifecycle.deleted")
        return gone

    def _skip(self, key: ObjectKey, error: NosError) -> None:
        _log.error("expired object not deleted", key=str(key), error=str(error))
        if isinstance(error, Transient):
            self._failure = error
            self._failures += 1
            if self._failures == FAILURES_MAX:
                raise error

    def _abort(self) -> int:
        aborted = 0
        for prefix in self._rules.aborted():
            after: tuple[str, UploadId] | None = None
            while page := self._metadata.list_uploads(self._bucket, prefix, after, PAGE_ROWS):
                after = (page[-1].key.name, page[-1].upload_id)
                for row in page:
                    expiry = self._rules.abort(row.key.name, row.since_ms)
                    if expiry is not None and expiry.due_ms <= self._at_ms:
                        aborted += self._dry_run or self._metadata.abort_upload(row.upload_id, self._clock.now_ms())
                        kill_point("lifecycle.aborted")
        return aborted

    def _versioning(self) -> Versioning | None:
        document = self._metadata.bucket_document(self._bucket, DocumentKind.VERSIONING)
        return None if document is None else Versioning(document.decode())

    def _now(self) -> tuple[int, int | None]:
        """Return the time, and until when the trash keeps an object that is deleted now."""
        now_ms = self._clock.now_ms()
        return now_ms, now_ms + self._trash_ms if self._trash_ms else None


class _KeyWalk:
    """The versions of the current key that the walk has passed, from the newest to the oldest."""

    def __init__(self, after: Place) -> None:
        """When the walk begins in the middle of a key, the number and the times of newer versions are unknown. They are
        set so that the rules apply, and the transaction that deletes decides."""
        self._name = after.name
        self._seen = 0 if after.version is None else NEWER_MAX + 1
        self._successor_ms = 0

    def enter(self, entry: VersionEntry) -> None:
        """Begin with an entry; with the first entry of a key, forget the last key."""
        if entry.key.name != self._name:
            self._name, self._seen, self._successor_ms = entry.key.name, 0, 0

    def leave(self, entry: VersionEntry) -> None:
        """Count an entry that has been examined."""
        self._seen, self._successor_ms = self._seen + 1, entry.created_ms

    @property
    def has_newer(self) -> bool:
        """Whether the entry is not the first of its key."""
        return self._seen > 0

    def noncurrent(self, entry: VersionEntry) -> tuple[int, int]:
        """Return since when the entry has been noncurrent, and how many noncurrent versions are newer."""
        return max(self._successor_ms, entry.created_ms), self._seen - 1


def _may_be_alone(entry: VersionEntry, before: VersionEntry) -> bool:
    return entry.row is None and entry.key != before.key


def _values(found: Expired) -> tuple[int, ...]:
    return tuple(getattr(found, one.name) for one in fields(found))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
