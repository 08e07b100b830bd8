"""Writes what users delete into the journal, in the transaction that deletes it (docs/adr/0065).

Functions that remove versions, put them into the trash, bring them back, add markers or change attributes call `add`
and its like under the lock of the rows. All entries of a transaction become one row, which is inserted last. So the
rows of a key get ascending ids in the order of its changes: a later change waits for the transaction of the earlier
one. Ids of different keys may be committed in any order, but a reader that sees a change of a key also sees the earlier
ones of that key.

While the table is full, entries are left out, and a row of `counters` says since when. Deletes never fail for it: they
are what frees the space without which the journal may not be written into the store either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from sqlalchemy import BigInteger, Connection, bindparam, delete, func, insert, select, update

from nos_ec.adapters.sql.driver.cursors import run_on_cursor
from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.rows import by_index
from nos_ec.adapters.sql.tables.schema import COUNTERS, JOURNAL
from nos_ec.core.formats.journal import EntryKind, JournalEntry, encode_entries
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.tails import hidden_prefix
from nos_ec.ports.metadata import ObjectRow

LOOK_S = 10
"""How often a process looks how full the table is, in seconds."""

_J, _C = JOURNAL.c, COUNTERS.c
NUMBER = "journal"
"""The row of `counters` with the number of the next object of the journal."""
GAP = "journal_gap"
"""The row of `counters` that says since when entries are left out (Unix milliseconds); 0 if none are."""
_IS_NUMBER, _IS_GAP = _C.name == NUMBER, _C.name == GAP
PAGE = (
    by_index(select(_J.journal_id, _J.body), JOURNAL, "PRIMARY")
    .where(_J.journal_id > bindparam("after", type_=BigInteger))
    .order_by(_J.journal_id)
    .limit(bindparam("rows_max"))
)
OLDEST = select(_J.created_ms).order_by(_J.journal_id).limit(1)
LEAST, GREATEST = select(func.min(_J.journal_id)), select(func.max(_J.journal_id))
_INSERT = insert(JOURNAL)
_FORGET = delete(JOURNAL).where(_J.journal_id == bindparam("shipped", type_=BigInteger))
_NEXT = (
    update(COUNTERS)
    .where(_IS_NUMBER, _C.value == bindparam("number", type_=BigInteger))
    .values(value=bindparam("number", type_=BigInteger) + 1)
)
_LEAVE_OUT = update(COUNTERS).where(_IS_GAP, _C.value == 0).values(value=bindparam("at_ms", type_=BigInteger))
_CLOSE = update(COUNTERS).where(_IS_GAP, _C.value == bindparam("since_ms", type_=BigInteger)).values(value=0)


class _Noted(threading.local):
    """The entries of the transaction that this thread runs on `connection`, which is None without a journal.

    `Connection.info` would do, but each use of it calls four functions, also for stores without a journal.
    """

    connection: Connection | None = None
    entries: list[JournalEntry]


_noted = _Noted()


class JournalWriter:
    """Inserts the entries of transactions. Safe to call from several threads."""

    def __init__(self, rows_max: int) -> None:
        """rows_max: with how many rows the table is full."""
        self._rows_max = rows_max
        self._look_s = 0.0
        self._is_full = False

    def begin(self, connection: Connection) -> None:
        """Begin to note the entries of a transaction."""
        _noted.connection, _noted.entries = connection, []

    def finish(self, connection: Connection) -> None:
        """Insert the entries, as the last step before COMMIT."""
        _noted.connection = None
        entries, _noted.entries = _noted.entries, []
        if not entries:
            return
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._look(connection)
        now_ms = time.time_ns() // 1_000_000
        if self._is_full:
            connection.execute(_LEAVE_OUT, {"at_ms": now_ms})
        else:
            for body in encode_entries(entries):
                self._insert(connection, now_ms, body)
        kill_point("metadata.journal_written.before_commit")

    def _look(self, connection: Connection) -> None:
        """Look how full the table is. Ids ascend, and the rows are removed in the order of their ids, so there are at
        most as many rows as ids between the least and the greatest."""
        least, greatest = connection.execute(LEAST).scalar(), connection.execute(GREATEST).scalar()
        self._is_full = least is not None and greatest - least + 1 >= self._rows_max

    def _insert(self, connection: Connection, now_ms: int, body: bytes) -> None:
        """Insert a row with the driver's own cursor: SQLAlchemy would add more to a DELETE than the row costs."""
        run_on_cursor(connection, _INSERT, {"created_ms": now_ms, "body": body})


def add(
    connection: Connection,
    kind: EntryKind,
    rows: Iterable[ObjectRow],
    at_ms: int = 0,
    until_ms: int = 0,
    attributes: bytes = b"",
) -> None:
    """Add an entry for each of these versions. Their rows must be locked. Versions in hidden buckets are left
    out: a rebuild finds out from the objects which of them are needed."""
    if _noted.connection is not connection:
        return
    _noted.entries += [
        JournalEntry(
            int(kind),
            row.key.bucket,
            row.key.name,
            row.version,
            row.created_ms,
            row.size,
            row.crc32c,
            row.md5,
            row.landing_id or b"",
            row.is_of_versions or row.is_noncurrent,
            False,
            at_ms,
            until_ms,
            attributes,
        )
        for row in rows
        if _is_of_users(row.key.bucket)
    ]


def add_markers(connection: Connection, markers: Iterable[tuple[ObjectKey, int, int, bool]]) -> None:
    """Add an entry for each new delete marker: (key, number, created_ms, whether it is a null marker)."""
    if _noted.connection is connection:
        _noted.entries += [
            JournalEntry(
                int(EntryKind.MARKER), key.bucket, key.name, number, created_ms, of_versions=True, is_null=is_null
            )
            for key, number, created_ms, is_null in markers
        ]


def remove_markers(connection: Connection, markers: Iterable[tuple[ObjectKey, int, int]]) -> None:
    """Add an entry for each removed delete marker: (key, number, created_ms)."""
    if _noted.connection is connection:
        _noted.entries += [
            JournalEntry(int(EntryKind.REMOVED), key.bucket, key.name, number, created_ms, of_versions=True)
            for key, number, created_ms in markers
        ]


def _is_of_users(bucket: str) -> bool:
    return not bucket.startswith(RESERVED_BUCKET) or (bucket != RESERVED_BUCKET and hidden_prefix(bucket) is None)


class SqlJournal(SqlPart):
    """`Journal` of the port."""

    def keep_journal(self, rows_max: int) -> None:
        self._transactions.journal = JournalWriter(rows_max)

    @reads
    def journal_after(self, connection: Connection, after: int, limit: int) -> list[tuple[int, bytes]]:
        return [(one, body) for one, body in connection.execute(PAGE, {"after": after, "rows_max": limit})]

    @reads
    def journal_number(self, connection: Connection) -> int:
        return int(connection.execute(select(_C.value).where(_IS_NUMBER)).scalar_one())

    @writes
    def forget_journal(self, connection: Connection, number: int, ids: Sequence[int], gap_ms: int = 0) -> None:
        connection.execute(_NEXT, {"number": number})
        if gap_ms:
            connection.execute(_CLOSE, {"since_ms": gap_ms})
        if ids:
            connection.execute(_FORGET, [{"shipped": one} for one in ids])
        kill_point("metadata.forget_journal.before_commit")

    @reads
    def journal_gap_ms(self, connection: Connection) -> int:
        return int(connection.execute(select(_C.value).where(_IS_GAP)).scalar_one())

    @reads
    def oldest_journal_ms(self, connection: Connection) -> int | None:
        found = connection.execute(OLDEST).scalar()
        return None if found is None else int(found)
