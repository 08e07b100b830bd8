"""Counts the bytes of deleted blocks in a row of `stored_totals`, in the transactions that delete their rows."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from nos_ec.adapters.sql.tables.schema import STORED_TOTALS
from nos_ec.core.states import BlockKind

_T = STORED_TOTALS.c
_NAME = "note deleted bytes"


@dataclass(frozen=True, slots=True)
class DeletedBytes:
    """The object bytes of all deleted blocks: those written for users, and those copied by GC."""

    user: int = 0
    copied: int = 0


def deleted_bytes(connection: Connection, *, lock: bool = False) -> DeletedBytes:
    """Return what was counted so far. A text that cannot be parsed counts as zero bytes."""
    statement = select(_T.value).where(_T.name == _NAME)
    text = connection.execute(statement.with_for_update() if lock else statement).scalar()
    return _loaded(text)


def count_deleted(connection: Connection, kind: BlockKind, size_bytes: int) -> None:
    """Count the object bytes of a block whose row is deleted in the same transaction, so that the totals of written
    bytes keep them."""
    if not size_bytes:
        return
    before = deleted_bytes(connection, lock=True)
    copied = size_bytes if kind is BlockKind.SURVIVOR else 0
    text = json.dumps([before.user + size_bytes - copied, before.copied + copied])
    row = _T.name == _NAME
    if connection.execute(select(_T.name).where(row)).scalar() is None:
        connection.execute(insert(STORED_TOTALS).values(name=_NAME, value=text))
    else:
        connection.execute(update(STORED_TOTALS).where(row).values(value=text))


def _loaded(text: str | None) -> DeletedBytes:
    try:
        user, copied = json.loads(text or "")
    except (ValueError, TypeError, RecursionError):
        return DeletedBytes()
    return DeletedBytes(user, copied) if type(user) is int and type(copied) is int else DeletedBytes()
