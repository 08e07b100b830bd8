"""Listings of wide buckets: the pages of the slices, merged.

An object lies in one slice, with all its versions and uploads, so slices have at most folders in common. The page of a
slice that is cut off says nothing about the names after its last entry. So a merged page ends with the smallest of
these last entries, and the next one begins after it, in all slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from heapq import merge
from itertools import islice
from typing import Protocol, TypeVar

from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId
from nos_ec.ports.metadata import EntryPage, ObjectRow, ObjectSummary, UploadRow, VersionEntry, VersionPage

_Part = TypeVar("_Part")
_Answer = TypeVar("_Answer")
_Entry = TypeVar("_Entry", ObjectRow, ObjectSummary)


class Lists(Protocol):
    """Lists the objects and versions of buckets, as a Store does."""

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """See Store."""

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """See Store."""

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """See Store."""

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """See Store."""

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        """See Store."""

    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """See Store."""


class ListsUploads(Protocol):
    """Lists and aborts the uploads into a bucket, as MultipartUploads does."""

    def abort_all(self, bucket: str) -> None:
        """See MultipartUploads."""

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        """See MultipartUploads."""


Slices = Sequence[tuple[AbstractContextManager[object], _Part]]
"""What lists the objects in each cell of a bucket. It is asked within the context, which may be entered once."""


class MergedLists:
    """The listings of wide buckets, as of one store. Safe to call from several threads."""

    def __init__(self, slices: Callable[[], Slices[Lists]], of_name: Callable[[str], Lists]) -> None:
        """`slices` returns the stores of all cells, each once, and `of_name` the one with the objects of this name.
        Both raise Transient while a cell is away, so that no listing is shorter than it should be."""
        self._slices = slices
        self._of_name = of_name

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """See Store."""
        pages = _asked(self._slices(), lambda one: one.list_objects(bucket, prefix, after, limit))
        return list(islice(merge(*pages, key=lambda row: row.key.name.encode()), limit))

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """See Store."""
        pages = _asked(self._slices(), lambda one: one.list_names(bucket, prefix, after, limit))
        return list(islice(merge(*pages, key=str.encode), limit))

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """See Store. The time of a page is shared among the slices."""
        slices = self._slices()
        share_ms = max(1, budget_ms // len(slices))
        pages = _asked(slices, lambda one: one.list_entries(bucket, prefix, delimiter, after, limit, share_ms))
        return merged_entries(pages, limit, lambda row: row.key.name)

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """See Store. The time of a page is shared among the slices."""
        slices = self._slices()
        share_ms = max(1, budget_ms // len(slices))
        pages = _asked(slices, lambda one: one.list_summaries(bucket, prefix, delimiter, after, limit, share_ms))
        return merged_entries(pages, limit, lambda row: row.name)

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        """See Store. The time of a page is shared among the slices."""
        slices = self._slices()
        share_ms = max(1, budget_ms // len(slices))
        pages = _asked(slices, lambda one: one.list_versions(bucket, prefix, delimiter, after, limit, share_ms))
        return merged_versions(pages, limit)

    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """See Store."""
        return self._of_name(key.name).version(key, version)


class MergedUploads:
    """The uploads into wide buckets, as of one store. Safe to call from several threads."""

    def __init__(self, slices: Callable[[], Slices[ListsUploads]]) -> None:
        """`slices` as for MergedLists."""
        self._slices = slices

    def abort_all(self, bucket: str) -> None:
        """See MultipartUploads."""
        _asked(self._slices(), lambda one: one.abort_all(bucket))

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        """See MultipartUploads."""
        pages = _asked(self._slices(), lambda one: one.list_uploads(bucket, prefix, after, limit))
        return list(islice(merge(*pages, key=lambda row: (row.key.name.encode(), row.upload_id)), limit))


def _asked(slices: Slices[_Part], ask: Callable[[_Part], _Answer]) -> list[_Answer]:
    """Ask one cell after another."""
    answers: list[_Answer] = []
    for asking, one in slices:
        with asking:
            answers.append(ask(one))
    return answers


def merged_entries(
    pages: Sequence[EntryPage[_Entry]], limit: int, name_of: Callable[[_Entry], str]
) -> EntryPage[_Entry]:
    """Return one page of at most `limit` entries from those of all slices, which begin after the same name."""

    def place(entry: _Entry | str) -> bytes:
        return (entry if isinstance(entry, str) else name_of(entry)).encode()

    ends = [page.next_after for page in pages if page.next_after is not None]
    end = min(ends, key=str.encode) if ends else None
    found: list[_Entry | str] = []
    last = b""
    for entry in merge(*(page.entries for page in pages), key=place):
        at = place(entry)
        if found and at == last:
            continue  # a folder of several slices
        if end is not None and at > end.encode():
            break
        if len(found) == limit:
            return EntryPage(found, last.decode())
        found.append(entry)
        last = at
    return EntryPage(found, end)


def merged_versions(pages: Sequence[VersionPage], limit: int) -> VersionPage:
    """Like `merged_entries`, for versions. All versions of a name are in the page of one slice, in their order."""

    def name_of(entry: VersionEntry | str) -> bytes:
        return (entry if isinstance(entry, str) else entry.key.name).encode()

    ends = [page.next_after for page in pages if page.next_after is not None]
    end = min(ends, key=lambda one: one[0].encode()) if ends else None
    found: list[VersionEntry | str] = []
    for entry in merge(*(page.entries for page in pages), key=name_of):  # stable: keeps the order within a slice
        if isinstance(entry, str) and found and found[-1] == entry:
            continue  # a folder of several slices
        if end is not None and name_of(entry) > end[0].encode():
            break
        if len(found) == limit:
            return VersionPage(found, _after(found[-1]))
        found.append(entry)
    return VersionPage(found, end)


def _after(entry: VersionEntry | str) -> tuple[str, int | None]:
    return (entry, None) if isinstance(entry, str) else (entry.key.name, entry.version)
