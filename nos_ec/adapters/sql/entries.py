"""Listing, with folders and without. With folders, it skips what it folds, from folder to folder.

It works by statements with literal bounds, each a short walk along the index of keys. SQLite could find all folders
with one recursive query, in a tenth of the time, but MariaDB scans the bucket for a MIN whose bound is computed.

A statement after a folder asks for FIRST_ROWS rows, because the next entry is likely to be a folder, too. While no
folder comes, each asks for GROWTH times as many as the one before. So at most FIRST_ROWS rows of a folder are read when
folders follow each other, and fewer than GROWTH times as many as plain names were, when one follows these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, LargeBinary, Select, bindparam

from nos_ec.adapters.sql.row_reading import RowsQuery, read_objects
from nos_ec.adapters.sql.rows import LIVE, by_index, prefix_end
from nos_ec.adapters.sql.schema import OBJECTS, utf8
from nos_ec.core.folders import folder_of
from nos_ec.ports.metadata import EntryPage, ObjectRow

FIRST_ROWS = 2
GROWTH = 8

_O = OBJECTS.c


@dataclass(frozen=True, slots=True)
class Start:
    """Where a walk begins: at the first name that is greater than `name`, or at `name` itself."""

    name: bytes
    itself: bool


def list_entries(
    connection: Connection,
    bucket: str,
    prefix: str,
    delimiter: str,
    after: str,
    limit: int,
    is_late: Callable[[], bool],
) -> EntryPage:
    """See `Metadata.list_entries`. is_late: whether the time for the page is over."""
    found: list[ObjectRow | str] = []
    start, end = start_of(prefix, delimiter, after), prefix_end(utf8(prefix))
    rows_max = FIRST_ROWS
    while len(found) <= limit:  # one more than is returned, to tell whether there are more
        asked = min(rows_max, limit + 1 - len(found))
        rows = _rows(connection, bucket, start, end, asked)
        folder = None
        for row in rows:
            folder = folder_of(row.key.name, prefix, delimiter)
            if folder is None:
                found.append(row)
            elif not found or found[-1] != folder:
                found.append(folder)
        if len(rows) < asked:
            break
        start = Start(utf8(rows[-1].key.name), itself=False) if folder is None else behind(folder)
        rows_max = rows_max * GROWTH if folder is None else FIRST_ROWS
        if len(found) <= limit and is_late():
            return EntryPage(found, next_after=_name(found[-1]))
    return EntryPage(found[:limit], next_after=_name(found[limit - 1]) if len(found) > limit else None)


def list_objects(connection: Connection, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
    """See `Metadata.list_objects`."""
    return _rows(connection, bucket, start_of(prefix, "", after), prefix_end(utf8(prefix)), limit)


def start_of(prefix: str, delimiter: str, after: str) -> Start:
    """Where a listing begins behind the name, or the folder, `after`."""
    folder = folder_of(after, prefix, delimiter)
    if folder is not None:
        return behind(folder)
    least, past = utf8(prefix), utf8(after)
    return Start(least, itself=True) if least > past else Start(past, itself=False)


def behind(folder: str) -> Start:
    """Behind all names of a folder. No byte of UTF-8 is 0xFF, so there always is a least string behind them."""
    end = prefix_end(utf8(folder))
    assert end is not None
    return Start(end, itself=True)


def _rows(connection: Connection, bucket: str, start: Start, end: bytes | None, limit: int) -> list[ObjectRow]:
    bounds: dict[str, Any] = {"in_bucket": bucket, "least": start.name, "rows_max": limit}
    if end is not None:
        bounds["end"] = end
    return read_objects(connection, bucket, _WALKS[start.itself, end is not None], bounds)


def _walk(rows: Select[Any], *, itself: bool, ends: bool) -> Select[Any]:
    least = bindparam("least", type_=LargeBinary)
    found = (
        by_index(rows, OBJECTS, "objects_by_trash_key")
        .where(_O.trashed == LIVE, _O.bucket == bindparam("in_bucket"), _O.name >= least if itself else _O.name > least)
        .order_by(_O.trashed, _O.bucket, _O.name)
        .limit(bindparam("rows_max"))
    )
    return found.where(_O.name < bindparam("end", type_=LargeBinary)) if ends else found


_WALKS = {
    (itself, ends): RowsQuery(partial(_walk, itself=itself, ends=ends))
    for itself in (False, True)
    for ends in (False, True)
}


def _name(entry: ObjectRow | str) -> str:
    return entry if isinstance(entry, str) else entry.key.name
