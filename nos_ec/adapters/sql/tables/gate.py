"""The gate of a cell: keeps transactions from changing or reading a bucket that the cell does not serve any more.

A process remembers for as long as it likes which cell has a bucket, and a transaction may commit hours after it was
routed. So it is the transaction that must find out. The row `moves` of `counters` has a number that grows with every
change of the table `moves`:

  - A transaction that changes what users see locks that row in share mode, before it locks anything else, until it
    ends. `SqlMoves.set_move` changes it, and so waits for all these transactions. While a transaction holds the lock,
    the states are therefore those that it has read.
  - A read also reads the number, after all else or in the same snapshot. If that is the number at which the bucket was
    last known to be read here, no state has changed meanwhile. Otherwise the read is repeated.

While a bucket is LEAVING, the transaction also writes the names that it changes into the table `changed_names`. The
state was set after all earlier transactions had ended, so the table has each name that was changed since then. Parts
and uploads count as names of the hidden bucket that has the parts; the state of their upload's bucket decides.

While the number is 0, no bucket was ever moved, and no state is read. On SQLite, which has no row locks, a transaction
that writes excludes all others. Like all share locks, these hold on one node of a Galera cluster only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Protocol

from sqlalchemy import Connection, bindparam, insert, literal_column, select

from nos_ec.adapters.sql.driver.cursors import run_on_cursor
from nos_ec.adapters.sql.driver.primary import read_last
from nos_ec.adapters.sql.tables.schema import CHANGED_NAMES, COUNTERS, MOVES
from nos_ec.core.errors import Conflict, Moved
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import bucket_of_parts
from nos_ec.core.tails import hidden_prefix
from nos_ec.ports.metadata.directory import MoveRow, MoveState

_BUCKETS_MAX = 10_000
"""Buckets whose states a process remembers."""
NUMBER = "moves"
"""The name of the row of `counters`."""
NUMBER_TEXT = "(SELECT value FROM counters WHERE name = 'moves')"
"""A column of a SELECT: the number."""

_C, _M = COUNTERS.c, MOVES.c
READ_NUMBER = select(_C.value).where(_C.name == literal_column(f"'{NUMBER}'"))
LOCK_NUMBER = READ_NUMBER.with_for_update(read=True)
STATE = select(_M.state, _M.other).where(_M.bucket == bindparam("bucket"))
NUMBER_AND_STATE = select(
    READ_NUMBER.scalar_subquery().label("number"),
    select(_M.state).where(_M.bucket == bindparam("bucket")).scalar_subquery().label("state"),
    select(_M.other).where(_M.bucket == bindparam("bucket")).scalar_subquery().label("other"),
)
MOVE_ROW = select(_M.bucket, _M.state, _M.other, _M.number, _M.mover, _M.since_ms).where(
    _M.bucket == bindparam("bucket")
)
ELSEWHERE = select(_M.bucket).where(
    _M.bucket.in_(bindparam("buckets", expanding=True)),
    _M.state.in_([MoveState.GONE, MoveState.ARRIVING, MoveState.REBUILT]),
)
_CHANGED = frozenset([MoveState.HERE, MoveState.LEAVING])
_READ = _CHANGED | {MoveState.CLOSED}
_LOG = insert(CHANGED_NAMES)


class Gate(Protocol):
    """Decides which transactions may change or read which buckets. Safe to use from several threads.

    `read_here` has the number at which each bucket was last known to be read here. If a read from a bucket is followed
    by a read of the same number, or of 0, its result is what users see in the bucket.
    """

    @property
    def read_here(self) -> Mapping[str, int]:
        """Return the numbers, by bucket."""

    def require(
        self,
        connection: Connection,
        keys: Iterable[ObjectKey],
        buckets: Iterable[str] = (),
    ) -> None:
        """Raise unless this transaction, which has locked nothing yet, may change these keys, and what these buckets
        have apart from their objects and uploads. Keys may be those of parts and of uploads (`upload_key`). The mover
        of a bucket copies the keys that are named here, and no others, again."""

    def admit(self, connection: Connection, number: int, keys: Iterable[ObjectKey]) -> None:
        """Like `require`, for a transaction that has read and locked the number."""

    def guards_reads_of(self, bucket: str) -> bool:
        """Return whether reads from this bucket must be confirmed."""

    def look(self, connection: Connection, bucket: str) -> None:
        """Read the state of a bucket. Raises Moved if it is not read here."""


class UsersGate:
    """The gate for what users and daemons do."""

    def __init__(self, moved: Callable[[str], object]) -> None:
        """`moved` is called with a bucket before Moved is raised because of it."""
        self._moved = moved
        self._lock = Lock()
        self._known: OrderedDict[str, tuple[int, MoveState, str]] = OrderedDict()
        self.read_here: dict[str, int] = {}

    def require(
        self,
        connection: Connection,
        keys: Iterable[ObjectKey],
        buckets: Iterable[str] = (),
    ) -> None:
        """See Gate."""
        (number,) = run_on_cursor(connection, LOCK_NUMBER, {})
        self._admit(connection, number, keys, buckets)

    def admit(self, connection: Connection, number: int, keys: Iterable[ObjectKey]) -> None:
        """See Gate."""
        self._admit(connection, number, keys, ())

    def _admit(self, connection: Connection, number: int, keys: Iterable[ObjectKey], buckets: Iterable[str]) -> None:
        if not number:
            return
        changed: dict[str, set[ObjectKey]] = {bucket: set() for bucket in buckets}
        for key in keys:
            changed.setdefault(bucket_of_parts(key.bucket), set()).add(key)
        refused: dict[str, str] = {}
        leaving: list[dict[str, str]] = []
        for bucket in sorted(changed):
            if hidden_prefix(bucket) is not None:
                continue
            known = self._known.get(bucket)
            if known is None or known[0] != number:
                row = connection.execute(STATE, {"bucket": bucket}).first()
                state, other = (MoveState.HERE, "") if row is None else (row.state, row.other)
                known = self._keep(bucket, number, state, other)
            if known[1] not in _CHANGED:
                refused[bucket] = _refusal(bucket, known[1], known[2])
            elif known[1] is MoveState.LEAVING:
                leaving += [{"bucket": key.bucket, "name": key.name} for key in sorted(changed[bucket])]
        self._refuse(refused)
        if leaving:
            connection.execute(_LOG, leaving)

    def guards_reads_of(self, bucket: str) -> bool:
        """See Gate."""
        return hidden_prefix(bucket) is None

    def look(self, connection: Connection, bucket: str) -> None:
        """See Gate."""
        number, state, other = connection.execute(NUMBER_AND_STATE, {"bucket": bucket}).one()
        known = self._keep(bucket, number, state or MoveState.HERE, other or "")
        if known[1] not in _READ:
            self._refuse({bucket: _refusal(bucket, known[1], known[2])})

    def _keep(self, bucket: str, number: int, state: MoveState, other: str) -> tuple[int, MoveState, str]:
        known = number, state, other
        with self._lock:
            self._known[bucket] = known
            self._known.move_to_end(bucket)
            self.read_here.pop(bucket, None)
            if state in _READ:
                self.read_here[bucket] = number
            while len(self._known) > _BUCKETS_MAX:
                self.read_here.pop(self._known.popitem(last=False)[0], None)
        return known

    def _refuse(self, refused: dict[str, str]) -> None:
        if refused:
            for bucket in refused:
                self._moved(bucket)
            raise Moved("; ".join(refused.values()), refused)


class MoversGate:
    """The gate for a process that moves a bucket: it changes nothing after another process has taken over the move."""

    def __init__(self, row: MoveRow) -> None:
        self._row = row
        self.read_here: dict[str, int] = {}

    def require(
        self,
        connection: Connection,
        keys: Iterable[ObjectKey],  # noqa: ARG002
        buckets: Iterable[str] = (),  # noqa: ARG002
    ) -> None:
        """See Gate."""
        require_row(connection, self._row)

    def admit(self, connection: Connection, number: int, keys: Iterable[ObjectKey]) -> None:  # noqa: ARG002
        """See Gate."""
        require_row(connection, self._row)

    def guards_reads_of(self, bucket: str) -> bool:  # noqa: ARG002
        """Return False: a mover reads what there is."""
        return False

    def look(self, connection: Connection, bucket: str) -> None:
        """Do nothing."""


def read_number(connection: Connection) -> int:
    """Return how often a state was changed."""
    return int(read_last(connection, NUMBER_TEXT))


def require_row(connection: Connection, row: MoveRow) -> None:
    """Raise Conflict unless this cell has exactly this row, which then stays until the transaction ends."""
    connection.execute(LOCK_NUMBER)
    found = connection.execute(MOVE_ROW, {"bucket": row.bucket}).first()
    if found is None or MoveRow(*found) != row:
        raise taken_over(row.bucket)


def served_among(connection: Connection, buckets: Sequence[str]) -> list[str]:
    """Return those of these buckets that this cell serves, in their order."""
    gone = set(connection.execute(ELSEWHERE, {"buckets": list(buckets)}).scalars()) if buckets else set()
    return [bucket for bucket in buckets if bucket not in gone]


def taken_over(bucket: str) -> Conflict:
    """Return the error of a mover whose row another process has changed."""
    return Conflict(f"another process has begun to move bucket {bucket}; this one has stopped")


def _refusal(bucket: str, state: MoveState, other: str) -> str:
    match state:
        case MoveState.GONE:
            return f"bucket {bucket} was moved to cell {other}; try again"
        case MoveState.CLOSED:
            return f"bucket {bucket} is being moved to cell {other}, and takes no changes until that is done; try again"
        case MoveState.REBUILT:
            return (
                f"bucket {bucket} must be completed from its old copies in cell {other}; `nos-ec cells moves` shows the"
                " command"
            )
        case _:
            return f"bucket {bucket} is being moved from cell {other} to this one; try again"
