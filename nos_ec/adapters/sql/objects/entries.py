"""Lists objects, with folders and without. A listing with folders skips the objects in them, from folder to folder.

It runs statements with literal bounds, each a short walk along the index of keys. SQLite could find all folders with
one recursive query, in a tenth of the time, but MariaDB scans the bucket for a MIN whose bound is computed.

A statement after a folder reads FIRST_ROWS rows, because the next entry is probably a folder as well. While there are
no folders, each statement reads GROWTH times as many rows as the last. So at most FIRST_ROWS rows of a folder are read
if it follows another one, and fewer than GROWTH times the number of plain names if it follows those.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

from sqlalchemy import Connection, LargeBinary, Select, bindparam

from nos_ec.adapters.sql.tables.base import SqlPart
from nos_ec.adapters.sql.tables.row_reading import SUMMARY, WHOLE, RowsQuery, Shape
from nos_ec.adapters.sql.tables.rows import LIVE, by_index, prefix_end
from nos_ec.adapters.sql.tables.schema import OBJECTS, utf8
from nos_ec.core.folders import folder_of
from nos_ec.ports.metadata import EntryPage, ObjectRow, ObjectSummary

FIRST_ROWS = 2
GROWTH = 8

_O = OBJECTS.c
_Object = TypeVar("_Object", ObjectRow, ObjectSummary)


@dataclass(frozen=True, slots=True)
class Start:
    """The place where a walk begins: `name` itself if `itself`, otherwise the first name that is greater."""

    name: bytes
    itself: bool


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The parameters of a page. At `end_s` (time.monotonic), the time for it is over."""

    bucket: str
    prefix: str
    delimiter: str
    after: str
    limit: int
    end_s: float


class SqlListings(SqlPart):
    """Listings of `Objects` of the port."""

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        start, end = start_of(prefix, "", after), prefix_end(utf8(prefix))
        return self._read_in(bucket, partial(_rows, WHOLE), bucket, start, end, limit)

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        page = PageRequest(bucket, prefix, delimiter, after, limit, end_of(budget_ms))
        return self._read_in(bucket, _list_entries, page)

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        page = PageRequest(bucket, prefix, delimiter, after, limit, end_of(budget_ms))
        return self._read_in(bucket, _list_summaries, page)


def end_of(budget_ms: int) -> float:
    """Return the time when a page that begins now must end (time.monotonic)."""
    return time.monotonic() + budget_ms / 1000


def _list_entries(connection: Connection, page: PageRequest) -> EntryPage[ObjectRow]:
    return _page(page, partial(_rows, WHOLE, connection, page.bucket), lambda row: row.key.name)


def _list_summaries(connection: Connection, page: PageRequest) -> EntryPage[ObjectSummary]:
    return _page(page, partial(_rows, SUMMARY, connection, page.bucket), lambda summary: summary.name)


def _page(
    page: PageRequest,
    read: Callable[[Start, bytes | None, int], list[_Object]],
    name_of: Callable[[_Object], str],
) -> EntryPage[_Object]:
    """Collect a page. `read` returns the next objects from a start to an end, at most as many as given."""
    found: list[_Object | str] = []
    prefix, delimiter, limit = page.prefix, page.delimiter, page.limit
    start, end = start_of(prefix, delimiter, page.after), prefix_end(utf8(prefix))
    rows_max = FIRST_ROWS if delimiter else limit + 1
    while len(found) <= limit:  # one extra entry, to detect the end
        count = min(rows_max, limit + 1 - len(found))
        rows = read(start, end, count)
        folder = None
        for row in rows:
            folder = folder_of(name_of(row), prefix, delimiter)
            if folder is None:
                found.append(row)
            elif not found or found[-1] != folder:
                found.append(folder)
        if len(rows) < count:
            break
        start = Start(utf8(name_of(rows[-1])), itself=False) if folder is None else after_folder(folder)
        rows_max = rows_max * GROWTH if folder is None else FIRST_ROWS
        if len(found) <= limit and time.monotonic() >= page.end_s:
            return EntryPage(found, next_after=_name(found[-1], name_of))
    return EntryPage(found[:limit], next_after=_name(found[limit - 1], name_of) if len(found) > limit else None)


def start_of(prefix: str, delimiter: str, after: str) -> Start:
    """Return the start of a listing that continues after the name, or the folder, `after`."""
    folder = folder_of(after, prefix, delimiter)
    if folder is not None:
        return after_folder(folder)
    least, past = utf8(prefix), utf8(after)
    return Start(least, itself=True) if least > past else Start(past, itself=False)


def after_folder(folder: str) -> Start:
    """Return the start after all names of a folder. It exists, because UTF-8 has no byte 0xFF."""
    end = prefix_end(utf8(folder))
    assert end is not None
    return Start(end, itself=True)


def _rows(
    shape: Shape[_Object], connection: Connection, bucket: str, start: Start, end: bytes | None, limit: int
) -> list[_Object]:
    bounds: dict[str, Any] = {"in_bucket": bucket, "least": start.name, "rows_max": limit}
    if end is not None:
        bounds["end"] = end
    return _walk(shape, itself=start.itself, ends=end is not None).read(connection, bucket, bounds)


@cache
def _walk(shape: Shape[_Object], *, itself: bool, ends: bool) -> RowsQuery[_Object]:
    return RowsQuery(shape, partial(_narrowed, itself=itself, ends=ends))


def _narrowed(rows: Select[Any], *, itself: bool, ends: bool) -> Select[Any]:
    least = bindparam("least", type_=LargeBinary)
    found = (
        by_index(rows, OBJECTS, "objects_by_trash_key")
        .where(_O.trashed == LIVE, _O.bucket == bindparam("in_bucket"), _O.name >= least if itself else _O.name > least)
        .order_by(_O.trashed, _O.bucket, _O.name)
        .limit(bindparam("rows_max"))
    )
    return found.where(_O.name < bindparam("end", type_=LargeBinary)) if ends else found


def _name(entry: _Object | str, name_of: Callable[[_Object], str]) -> str:
    return entry if isinstance(entry, str) else name_of(entry)
