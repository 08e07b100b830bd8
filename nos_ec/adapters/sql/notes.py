"""Notes: rows of `stored_totals`, changed by compare-and-set of their whole text.

Another row counts the bytes of deleted blocks, in the transactions that delete their rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from nos_ec.adapters.sql.schema import STORED_TOTALS
from nos_ec.core.lifecycle import BlockKind

_T = STORED_TOTALS.c
PREFIX = "note "


_DELETED = "deleted bytes"


@dataclass(frozen=True, slots=True)
class DeletedBytes:
    """Object bytes of all blocks that were deleted: written for users, and copied by GC."""

    user: int = 0
    copied: int = 0


def deleted_bytes(connection: Connection, *, lock: bool = False) -> DeletedBytes:
    """What was counted so far. A text that cannot be understood counts as nothing."""
    statement = select(_T.value).where(_T.name == PREFIX + _DELETED)
    text = connection.execute(statement.with_for_update() if lock else statement).scalar()
    return _loaded(text)


def count_deleted(connection: Connection, kind: BlockKind, size_bytes: int) -> None:
    """Count the object bytes of a block whose row is deleted in the same transaction, so that what was written to it
    stays known."""
    if not size_bytes:
        return
    before = deleted_bytes(connection, lock=True)
    copied = size_bytes if kind is BlockKind.SURVIVOR else 0
    text = json.dumps([before.user + size_bytes - copied, before.copied + copied])
    row = _T.name == PREFIX + _DELETED
    if connection.execute(select(_T.name).where(row)).scalar() is None:
        connection.execute(insert(STORED_TOTALS).values(name=PREFIX + _DELETED, value=text))
    else:
        connection.execute(update(STORED_TOTALS).where(row).values(value=text))


def _loaded(text: str | None) -> DeletedBytes:
    try:
        user, copied = json.loads(text or "")
    except (ValueError, TypeError, RecursionError):
        return DeletedBytes()
    return DeletedBytes(user, copied) if type(user) is int and type(copied) is int else DeletedBytes()


def find(connection: Connection, name: str) -> str | None:
    """See `Metadata.note`."""
    return connection.execute(select(_T.value).where(_T.name == PREFIX + name)).scalar()


def store(connection: Connection, name: str, text: str, expected: str | None) -> bool:
    """See `Metadata.store_note`. Texts are compared here, because servers may ignore case. Two calls at once that find
    nothing meet at the primary key, and the loser runs again."""
    row = _T.name == PREFIX + name
    found = connection.execute(select(_T.value).where(row).with_for_update()).scalar()
    if found != expected:
        return False
    if found is None:
        connection.execute(insert(STORED_TOTALS).values(name=PREFIX + name, value=text))
    else:
        connection.execute(update(STORED_TOTALS).where(row).values(value=text))
    return True
