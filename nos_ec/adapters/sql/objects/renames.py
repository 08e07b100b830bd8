"""Removes the sources of renamed objects, in the transaction that records the objects under their new keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from nos_ec.adapters.sql.objects import make_noncurrent, object_rows, versions
from nos_ec.adapters.sql.objects.locks import locked_among
from nos_ec.adapters.sql.objects.outbox import EventWriter
from nos_ec.core.errors import Conflict, Locked, NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import AddMarker, ObjectRow, RenameOf


def refused(
    connection: Connection, renames: Sequence[RenameOf], current: Mapping[ObjectKey, ObjectRow]
) -> dict[ObjectKey, NosError]:
    """Return an error, by the key of the source, for each rename whose source was changed meanwhile (Conflict) or is
    locked (Locked). `current` has the current versions of the sources, which are locked."""
    found: dict[ObjectKey, NosError] = {}
    sources = []
    for one in renames:
        row = current.get(one.row.key)
        if row is None or not make_noncurrent.is_unchanged(one.row, row):
            found[one.row.key] = Conflict(f"object {one.row.key} was changed while it was renamed", key=one.row.key)
        else:
            sources.append(row)
    for row in locked_among(connection, sources):
        found[row.key] = Locked(f"object {row.key} is locked and cannot be renamed; nothing was changed", [row.key])
    return found


def remove_sources(
    connection: Connection, renames: Sequence[RenameOf], now_ms: int, events: EventWriter | None
) -> None:
    """Delete the sources of these renames, which `refused` has checked, as a DELETE without a version id does."""
    for one in renames:
        if one.versioning is None:
            object_rows.delete_current(connection, one.row.key, now_ms, one.until_ms, None, events)
        else:
            marker = AddMarker(one.row.key, one.versioning, seen=one.row)
            (answer,) = versions.delete_all(connection, [marker], now_ms, one.until_ms, {}, events)
            if isinstance(answer, NosError):
                raise answer
    if renames:
        kill_point("metadata.renamed.before_commit")
