"""Deletes what has expired in one bucket by the rules of its lifecycle, and aborts its uploads by them.

Every name below the outermost prefixes of the rules is looked at once, whatever the number of rules. What has expired
is deleted as it was looked at: an object that was overwritten or tagged anew meanwhile stays, and so does a version
that became current, or a marker that is not alone any more. That is decided in the transaction that deletes.

In a bucket with versions, Enabled or suspended, an object that has expired gets a delete marker, as a DELETE without a
version id gives it. There the walk goes along versions and markers, too. Those of one page are deleted from the oldest
on: so none loses its successor before it is its turn. What has expired goes where all that is deleted goes: into the
trash, if there is one.

9  a page of rows is in memory, however many versions a key has
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
"""Deleted, or hidden by markers, by one transaction: each takes several statements."""
LIST_MS_MAX = 60_000
FAILURES_MAX = 3
"""So many keys in succession that cannot be deleted are not the keys' fault."""

_log = structlog.get_logger(__name__)


class _Keyed(Protocol):
    @property
    def key(self) -> ObjectKey: ...


_T = TypeVar("_T", bound=_Keyed)


class BucketMetadata(Objects, Uploads, Buckets, Versions, Protocol):
    """The parts of the metadata that the walk of a bucket needs."""


class Place(NamedTuple):
    """What was looked at last: a name, and in a bucket with versions the number of the version; None for all versions
    of the name. No name: nothing yet."""

    name: str = ""
    version: int | None = None


START = Place()


@dataclass(frozen=True, slots=True)
class Expired:
    """examined: objects, versions and markers that were looked at. objects: how many had expired, and were deleted.
    bytes: of these, and of versions. uploads: how many were aborted. failed: buckets that failed. versions, markers:
    noncurrent versions and delete markers that were removed."""

    examined: int = 0
    objects: int = 0
    bytes: int = 0
    uploads: int = 0
    failed: int = 0
    versions: int = 0
    markers: int = 0

    def __add__(self, other: Expired) -> Expired:
        return Expired(*(mine + its for mine, its in zip(_values(self), _values(other), strict=True)))


class _Due(NamedTuple):
    """How something that has expired is removed, and the row of its object; None for a marker."""

    deletion: AddMarker | ExpireVersion | ExpireMarker
    row: ObjectRow | None

    @property
    def key(self) -> ObjectKey:
        """That of the object."""
        return self.deletion.key

    @property
    def gone(self) -> Expired:
        """What it counts for when it is removed."""
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
        """day_ms: the length of a day. trash_ms: how long the trash keeps what has expired; 0 for no trash. dry_run:
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
        """Delete what has expired, from behind `after` on, and abort uploads before that. on_page: is told what was
        looked at last and what the page had; False ends the walk.

        A key that cannot be deleted is passed over. Raises Transient, at the end for such keys.
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
        # It was enabled since the walk began.
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
                # What comes behind it says whether it is: it is the first of the next page.
                place = Place(entries[-2].key.name, entries[-2].version)
                del entries[-1]
            if not entries:
                return
            due = self._due(entries, key)
            gone = due if self._dry_run else self._delete_oldest_first(due)
            found = sum((one.gone for one in gone), Expired(examined=len(entries)))
            yield place or Place(entries[-1].key.name, entries[-1].version), found

    def _due(self, entries: Sequence[VersionEntry], key: _KeyWalk) -> list[_Due]:
        """What has expired of a page."""
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
        """All at once; if that fails for one of them, one by one. Returns what was deleted."""
        if not due:
            return []
        try:
            gone = delete(due)
        except NosError as error:
            if len(due) == 1:
                self._pass_over(due[0].key, error)
                return []
            gone = [one for single in due for one in self._delete([single], delete)]
        else:
            self._failures = 0
        kill_point("lifecycle.deleted")
        return gone

    def _pass_over(self, key: ObjectKey, error: NosError) -> None:
        _log.error("what has expired was not deleted", key=str(key), error=str(error))
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
        said = self._metadata.bucket_document(self._bucket, DocumentKind.VERSIONING)
        return None if said is None else Versioning(said.decode())

    def _now(self) -> tuple[int, int | None]:
        """The time, and until when the trash keeps what is deleted now."""
        now_ms = self._clock.now_ms()
        return now_ms, now_ms + self._trash_ms if self._trash_ms else None


class _KeyWalk:
    """What is known of the key whose versions are looked at, the newest first."""

    def __init__(self, after: Place) -> None:
        """In the middle of a key, any number may be newer, for any time: then the transaction decides alone."""
        self._name = after.name
        self._seen = 0 if after.version is None else NEWER_MAX + 1
        self._successor_ms = 0

    def enter(self, entry: VersionEntry) -> None:
        """Look at the next one."""
        if entry.key.name != self._name:
            self._name, self._seen, self._successor_ms = entry.key.name, 0, 0

    def leave(self, entry: VersionEntry) -> None:
        """It was looked at."""
        self._seen, self._successor_ms = self._seen + 1, entry.created_ms

    @property
    def has_newer(self) -> bool:
        """Whether the entry is not the first of its key."""
        return self._seen > 0

    def noncurrent(self, entry: VersionEntry) -> tuple[int, int]:
        """Since when the entry has been noncurrent, and how many noncurrent ones are newer."""
        return max(self._successor_ms, entry.created_ms), self._seen - 1


def _may_be_alone(entry: VersionEntry, before: VersionEntry) -> bool:
    return entry.row is None and entry.key != before.key


def _values(found: Expired) -> tuple[int, ...]:
    return tuple(getattr(found, one.name) for one in fields(found))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
