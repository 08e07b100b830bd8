"""Notes: rows of `stored_totals`, changed by compare-and-set of their whole text."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from nos_ec.adapters.sql.schema import STORED_TOTALS

_T = STORED_TOTALS.c
PREFIX = "note "


def find(connection: Connection, name: str) -> str | None:
    """See `Metadata.note`."""
    return connection.execute(select(_T.value).where(_T.name == PREFIX + name)).scalar()


def store(connection: Connection, name: str, text: str, expected: str | None) -> bool:
    """See `Metadata.store_note`. Two calls at once meet at the primary key, and the loser runs again."""
    if expected is None:
        if find(connection, name) is not None:
            return False
        connection.execute(insert(STORED_TOTALS).values(name=PREFIX + name, value=text))
        return True
    if text == expected:  # MySQL does not count a row that would not change
        return find(connection, name) == expected
    same = (_T.name == PREFIX + name, _T.value == expected)
    return connection.execute(update(STORED_TOTALS).where(*same).values(value=text)).rowcount == 1
