"""Notes, which are rows of `stored_totals` and are changed by compare-and-set of their whole text."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.schema import STORED_TOTALS

_T = STORED_TOTALS.c
_PREFIX = "note "


class SqlNotes(SqlPart):
    """`Notes` of the port."""

    @reads
    def note(self, connection: Connection, name: str) -> str | None:
        return connection.execute(select(_T.value).where(_T.name == _PREFIX + name)).scalar()

    @writes
    def store_note(self, connection: Connection, name: str, text: str, expected: str | None) -> bool:
        # Texts are compared here, because servers may ignore case. If two concurrent calls find no row, the second one
        # to insert fails as a duplicate and is run again.
        row = _T.name == _PREFIX + name
        found = connection.execute(select(_T.value).where(row).with_for_update()).scalar()
        if found != expected:
            return False
        if found is None:
            connection.execute(insert(STORED_TOTALS).values(name=_PREFIX + name, value=text))
        else:
            connection.execute(update(STORED_TOTALS).where(row).values(value=text))
        return True
