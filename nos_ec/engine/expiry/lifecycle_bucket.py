"""Applies the lifecycle rules of one bucket: deletes expired objects and versions, and aborts uploads.

Each name below the outermost prefixes of the rules is examined once, however many rules there are. The transaction that
deletes an object checks that it has not changed since it was examined: an object that was overwritten or whose tags
were changed stays, and so does a version that became current, or a delete marker that is no longer alone.

In a bucket with versioning, Enabled or Suspended, an expired object gets a delete marker, as from a DELETE without a
version id. There, the walk also examines noncurrent versions and delete markers. It deletes those of a page from the
oldest to the newest: an older one expires by the time of its successor, which must still exist. Deleted objects and
versions go into the trash, if the trash is on.

9  memory holds one page of rows, however many versions a key has
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.expiry import NEWER_MAX, BucketRules, ExpiryRule, tags_of
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.notifications.origin import LIFECYCLE, Origin, caused_by
from nos_ec.core.parts import UploadId
from nos_ec.core.sums import Summed
from nos_ec.core.versions import Versioning
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    AddMarker,
    Buckets,
    BucketState,
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
"""How long the search for one page of versions may take. A page ends early after that."""
FAILURES_MAX = 3
"""After this many Transient failures in a row the walk ends, because the cause is hardly the single keys."""

_log = structlog.get_logger(__name__)
_ORIGIN = Origin(LIFECYCLE)


class _Keyed(Protocol):
    @property
    def key(self) -> ObjectKey: ...


_T = TypeVar("_T", bound=_Keyed)


class BucketMetadata(Objects, Uploads, Buckets, Versions, Protocol):
    """The parts of the metadata that the walk of a bucket uses."""


class WalkPosition(NamedTuple):
    """How far a walk has come: the last entry that it examined."""

    name: str = ""
    """Empty at the start."""
    version: int | None = None
    """The version in a bucket with versioning; None if all versions of the name were examined."""


START = WalkPosition()


@dataclass(frozen=True, slots=True)
class WalkCounts(Summed):
    """What a walk examined and deleted."""

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
    """Noncurrent versions that were deleted."""
    markers: int = 0
    """Delete markers that were deleted."""


class _Due(NamedTuple):
    """An expired object, version or delete marker. `row` is None for a marker."""

    deletion: AddMarker | ExpireVersion | ExpireMarker
    row: ObjectRow | None

    @property
    def key(self) -> ObjectKey:
        """The key of the object."""
        return self.deletion.key

    @property
    def counts(self) -> WalkCounts:
        """The counts to add when it has been deleted."""
        if self.row is None:
            return WalkCounts(markers=1)
        if isinstance(self.deletion, AddMarker):
            return WalkCounts(objects=1, bytes=self.row.users_size)
        return WalkCounts(versions=1, bytes=self.row.users_size)


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
        documents: BucketState | None = None,
    ) -> None:
        """day_ms: the length of a day. trash_ms: how long the trash keeps deleted objects; 0 for no trash. dry_run:
        only count. documents: where those of the bucket are, if not in `metadata`."""
        self._metadata = metadata
        self._documents = metadata if documents is None else documents
        self._clock = clock
        self._trash_ms = trash_ms
        self._bucket = bucket
        self._rules = BucketRules(rules, day_ms)
        self._dry_run = dry_run
        self._at_ms = clock.now_ms()
        self._skipped_for: Transient | None = None
        """The last Transient failure for which a key was skipped."""
        self._failures = 0
        """The number of Transient failures in a row."""

    def walk(
        self,
        after: WalkPosition = START,
        on_page: Callable[[WalkPosition, WalkCounts], bool] = lambda _position, _counts: True,
    ) -> WalkCounts:
        """Abort uploads, if the walk begins at START; then delete what has expired after the position `after`.

        on_page: called with the new position and the counts of each page, and of the aborted uploads; it returns False
        to end the walk. A key that cannot be deleted is skipped. If the reason was Transient, it is raised at the end
        of the walk, or at once after FAILURES_MAX in a row. Raises Transient if the metadata cannot be read.
        """
        total = WalkCounts(uploads=self._abort_uploads()) if after == START else WalkCounts()
        if total.uploads and not on_page(START, total):
            return total
        has_versions = self._versioning() is not None
        prefixes = self._rules.version_prefixes if has_versions else self._rules.object_prefixes
        walk_prefix = self._walk_versions if has_versions else self._walk_objects
        for prefix in prefixes(self._at_ms):
            # Prefixes and names are in the same order, so `after` lies before this prefix, in it, or after it.
            begin = after if _utf8(after.name) >= _utf8(prefix) else START
            if begin.name and not begin.name.startswith(prefix):
                continue  # after it: an earlier run has walked this prefix
            for position, counts in walk_prefix(prefix, begin):
                total += counts
                if not on_page(position, counts):
                    return total
        if self._skipped_for is not None:
            raise self._skipped_for
        return total

    # --- without versions -------------------------------------------------------------------------
    def _walk_objects(self, prefix: str, after: WalkPosition) -> Iterator[tuple[WalkPosition, WalkCounts]]:
        name = after.name
        while page := self._metadata.list_objects(self._bucket, prefix, name, PAGE_ROWS):
            name = page[-1].key.name
            due = [row for row in page if self._is_due(row)]
            deleted = due if self._dry_run else self._delete(due, self._delete_objects)
            size = sum(row.users_size for row in deleted)
            yield WalkPosition(name), WalkCounts(examined=len(page), objects=len(deleted), bytes=size)
            if len(page) < PAGE_ROWS:
                return

    def _is_due(self, row: ObjectRow) -> bool:
        expiry = self._rules.expiry(row.key.name, row.users_size, lambda: tags_of(row.attributes), row.created_ms)
        return expiry is not None and expiry.due_ms <= self._at_ms

    def _delete_objects(self, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        versioning = self._versioning()
        if versioning is None:
            return self._metadata.delete_unchanged(rows, *self._deletion_times())
        # Versioning was enabled since the walk began.
        marked = [_Due(AddMarker(row.key, versioning, seen=row), row) for row in rows]
        return [due.row for due in self._delete_oldest_first(marked) if due.row is not None]

    # --- with versions ----------------------------------------------------------------------------
    def _walk_versions(self, prefix: str, after: WalkPosition) -> Iterator[tuple[WalkPosition, WalkCounts]]:
        passed = _PassedVersions(after)
        next_after: WalkPosition | None = after
        while next_after is not None:
            page = self._metadata.list_versions(self._bucket, prefix, "", next_after, PAGE_ROWS, LIST_MS_MAX)
            entries = [one for one in page.entries if isinstance(one, VersionEntry)]
            next_after = None if page.next_after is None else WalkPosition(*page.next_after)
            if next_after is not None and len(entries) > 1 and _may_be_alone(entries[-1], entries[-2]):
                # The next entry decides whether this marker is alone, so the next page begins with the marker.
                next_after = _position_of(entries[-2])
                del entries[-1]
            if not entries:
                return
            due = self._due(entries, passed)
            deleted = due if self._dry_run else self._delete_oldest_first(due)
            counts = sum((one.counts for one in deleted), WalkCounts(examined=len(entries)))
            yield next_after or _position_of(entries[-1]), counts

    def _due(self, entries: Sequence[VersionEntry], passed: _PassedVersions) -> list[_Due]:
        """Return the expired entries of a page."""
        versioning = self._versioning()
        if versioning is None:
            return []  # the bucket was deleted since the walk began
        found: list[_Due] = []
        for next_index, entry in enumerate(entries, 1):
            passed.enter(entry)
            row = entry.row
            if row is not None and not row.is_noncurrent:
                if self._is_due(row):
                    found.append(_Due(AddMarker(entry.key, versioning, seen=row), row))
            elif passed.has_newer:
                deletion = self._expire_version(entry, passed.noncurrent_since_ms(entry), passed.newer_noncurrent)
                if deletion is not None:
                    found.append(_Due(deletion, row))
            elif row is None and (next_index == len(entries) or entries[next_index].key != entry.key):
                expiry = self._rules.lone_marker_expiry(entry.key.name, entry.created_ms)
                if expiry is not None and expiry.due_ms <= self._at_ms:
                    found.append(_Due(ExpireMarker(entry.key, entry.version), None))
            passed.leave(entry)
        return found

    def _expire_version(self, entry: VersionEntry, since_ms: int, newer: int) -> ExpireVersion | None:
        """Return the request that deletes a noncurrent version or marker, or None if it has not expired."""
        row = entry.row
        size, attributes = (0, b"") if row is None else (row.users_size, row.attributes)
        found = self._rules.overdue(entry.key.name, size, lambda: tags_of(attributes), since_ms, newer, self._at_ms)
        return None if found is None else ExpireVersion(entry.key, entry.version, row, found.since_ms, found.newer)

    def _delete_oldest_first(self, due: list[_Due]) -> list[_Due]:
        """Delete entries, which are in the order of the listing: of each key, the newest comes first."""
        batches = (due[max(0, end - VERSIONS_AT_A_TIME) : end] for end in range(len(due), 0, -VERSIONS_AT_A_TIME))
        return [one for batch in batches for one in self._delete(batch[::-1], self._delete_versions)]

    def _delete_versions(self, due: Sequence[_Due]) -> list[_Due]:
        answers = self._metadata.delete_versions([one.deletion for one in due], *self._deletion_times())
        return [one for one, answer in zip(due, answers, strict=True) if isinstance(answer, VersionEntry)]

    # --- with and without versions ----------------------------------------------------------------
    def _delete(self, due: Sequence[_T], delete: Callable[[Sequence[_T]], list[_T]]) -> list[_T]:
        """Delete all at once or, if that fails, one by one. Returns those that were deleted."""
        if not due:
            return []
        try:
            with caused_by(_ORIGIN):
                deleted = delete(due)
        except NosError as error:
            if len(due) == 1:
                self._skip(due[0].key, error)
                return []
            deleted = [one for single in due for one in self._delete([single], delete)]
        else:
            self._failures = 0
        kill_point("lifecycle.deleted")
        return deleted

    def _skip(self, key: ObjectKey, error: NosError) -> None:
        _log.error("expired object not deleted", key=str(key), error=str(error))
        if isinstance(error, Transient):
            self._skipped_for = error
            self._failures += 1
            if self._failures == FAILURES_MAX:
                raise error

    def _abort_uploads(self) -> int:
        aborted = 0
        for prefix in self._rules.upload_prefixes():
            after: tuple[str, UploadId] | None = None
            while page := self._metadata.list_uploads(self._bucket, prefix, after, PAGE_ROWS):
                after = (page[-1].key.name, page[-1].upload_id)
                for row in page:
                    expiry = self._rules.upload_expiry(row.key.name, row.since_ms)
                    if expiry is not None and expiry.due_ms <= self._at_ms:
                        if self._dry_run or self._metadata.abort_upload(row.upload_id, self._clock.now_ms()):
                            aborted += 1
                        kill_point("lifecycle.aborted")
        return aborted

    def _versioning(self) -> Versioning | None:
        document = self._documents.bucket_document(self._bucket, DocumentKind.VERSIONING)
        return None if document is None else Versioning(document.decode())

    def _deletion_times(self) -> tuple[int, int | None]:
        """Return the time now, and until when the trash keeps an object that is deleted now; None without a trash."""
        now_ms = self._clock.now_ms()
        return now_ms, now_ms + self._trash_ms if self._trash_ms else None


class _PassedVersions:
    """The versions and delete markers of the current name that the walk has passed. They are newer than the entry that
    it examines, because a listing returns those of a name from the newest to the oldest."""

    def __init__(self, after: WalkPosition) -> None:
        """When the walk begins in the middle of a name, the number and the times of its newer versions are unknown.
        They are then assumed such that the rules apply, because the transaction that deletes checks them again."""
        self._name = after.name
        self._count = 0 if after.version is None else NEWER_MAX + 1
        self._successor_ms = 0

    def enter(self, entry: VersionEntry) -> None:
        """Begin to examine an entry. Forgets the passed versions if it has another name."""
        if entry.key.name != self._name:
            self._name, self._count, self._successor_ms = entry.key.name, 0, 0

    def leave(self, entry: VersionEntry) -> None:
        """Add an entry that was examined to the passed ones."""
        self._count, self._successor_ms = self._count + 1, entry.created_ms

    @property
    def has_newer(self) -> bool:
        """Whether there are newer versions or markers than the entry."""
        return self._count > 0

    @property
    def newer_noncurrent(self) -> int:
        """How many noncurrent versions and markers are newer: all passed ones except the first, which is current."""
        return self._count - 1

    def noncurrent_since_ms(self, entry: VersionEntry) -> int:
        """Return since when the entry has been noncurrent. That is when its successor was created, or itself if that
        was later by the clock."""
        return max(self._successor_ms, entry.created_ms)


def _position_of(entry: VersionEntry) -> WalkPosition:
    return WalkPosition(entry.key.name, entry.version)


def _may_be_alone(entry: VersionEntry, before: VersionEntry) -> bool:
    """Return whether the last entry of a page, which follows `before`, is a marker that may be alone."""
    return entry.row is None and entry.key != before.key


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
