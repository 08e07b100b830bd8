"""Waiting: what waits to be packed becomes a table of its own, as small as the backlog (docs/adr/0020).

Two indexes and two columns of `objects` go. On MySQL and MariaDB the indexes covered all objects, nearly all of which
do not wait.

MySQL commits after every DDL statement, so this may be interrupted anywhere. Every step checks whether it is done, and
filling the table passes over the rows that it has, in batches, along the index that is dropped last. Processes of the
previous release must be stopped: once the columns are gone, their PUTs fail. What they have changed until then is put
right by a second pass. SQLite does all of it in one transaction.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BATCH_ROWS = 10_000
"""Rows that wait, or that are checked, by transaction."""

_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}
_ID = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
_BY_LANDING, _BY_DUE = "objects_by_landing", "objects_due_by_slot"
_OBJECTS = sa.table(
    "objects",
    *(sa.column(name) for name in ("object_id", "slot", "due_ms", "state", "size")),
    sa.column("landing_id", _ID),
)
_WAITING = sa.table(
    "waiting",
    sa.column("landing_id", _ID),
    *(sa.column(name) for name in ("object_id", "slot", "due_ms", "state", "size")),
)
_O, _W = _OBJECTS.c, _WAITING.c


def upgrade() -> None:
    """Create the table, fill it, and remove from `objects` what it replaces."""
    _create()
    if "due_ms" in _columns():
        _fill(_O.slot, sa.func.coalesce(_O.due_ms, 0))
        _drop_columns()
    if _BY_LANDING in _indexes("objects"):
        _remove_stale()
        # Whatever a process of the previous release has changed since: any slot serves, and it is due at once.
        _fill(sa.literal_column("0"), sa.literal_column("0"))
        op.drop_index(_BY_LANDING, "objects")


def downgrade() -> None:
    """Always refused: the previous release would not find columns that it needs."""
    raise NotImplementedError("there is no way back from waiting; restore a backup instead")


def _create() -> None:
    if not sa.inspect(op.get_bind()).has_table("waiting"):
        op.create_table(
            "waiting",
            sa.Column("landing_id", _ID, primary_key=True),
            sa.Column("object_id", sa.BigInteger, nullable=False),
            sa.Column("slot", sa.SmallInteger, nullable=False),
            sa.Column("due_ms", sa.BigInteger, nullable=False),
            sa.Column(
                "state",
                sa.String(10).with_variant(
                    mysql.VARCHAR(10, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
                ),
                nullable=False,
            ),
            sa.Column("size", sa.BigInteger, nullable=False),
            sqlite_with_rowid=False,
            **_OPTIONS,
        )
    if "waiting_by_due" not in _indexes("waiting"):
        op.create_index("waiting_by_due", "waiting", ["slot", "due_ms", "object_id"])


def _fill(slot: sa.ColumnElement[Any], due_ms: sa.ColumnElement[Any]) -> None:
    """Add the objects that wait and are not in the table, in order of landing id."""
    missing = sa.and_(
        _O.state.in_(["landed", "queued"]),
        ~sa.exists(sa.select(_W.landing_id).where(_W.landing_id == _O.landing_id)),
    )
    for first, last in _batches(_OBJECTS, _BY_LANDING):
        rows = _forced(sa.select(_O.landing_id, _O.object_id, slot, due_ms, _O.state, _O.size), _OBJECTS, _BY_LANDING)
        rows = rows.where(_O.landing_id >= first, _O.landing_id <= last, missing)
        columns = ["landing_id", "object_id", "slot", "due_ms", "state", "size"]
        op.execute(sa.insert(_WAITING).from_select(columns, rows))
        _commit()


def _remove_stale() -> None:
    """Remove rows whose object has gone, or has another landing copy or state."""
    holds = (_O.object_id == _W.object_id) & (_O.landing_id == _W.landing_id) & (_O.state == _W.state)
    stale = sa.select(_W.landing_id).where(~sa.exists(sa.select(_O.object_id).where(holds)))
    for first, last in _batches(_WAITING, "PRIMARY"):
        found = op.get_bind().execute(stale.where(_W.landing_id >= first, _W.landing_id <= last)).scalars().all()
        if found:
            op.execute(sa.delete(_WAITING).where(_W.landing_id.in_(found)))
            _commit()


def _batches(table: sa.TableClause, index: str) -> Any:
    """Yield the first and the last landing id of each batch of rows of the table."""
    landing_id = table.c.landing_id
    page = _forced(sa.select(landing_id), table, index).where(landing_id.is_not(None)).order_by(landing_id)
    after = b""
    while found := op.get_bind().execute(page.where(landing_id > after).limit(BATCH_ROWS)).scalars().all():
        yield found[0], found[-1]
        after = found[-1]


def _drop_columns() -> None:
    """The index goes first, in a statement of its own: servers that can drop a column without copying the table do so
    only for columns that no index has. The others copy it once for both columns."""
    if _BY_DUE in _indexes("objects"):
        op.drop_index(_BY_DUE, "objects")
    if op.get_bind().dialect.name == "sqlite":
        for name in ("slot", "due_ms"):
            op.drop_column("objects", name)
    else:
        op.execute(sa.text("ALTER TABLE objects DROP COLUMN slot, DROP COLUMN due_ms"))


def _forced(query: sa.Select[Any], table: sa.TableClause, index: str) -> sa.Select[Any]:
    for dialect in ("mysql", "mariadb"):
        query = query.with_hint(table, f"FORCE INDEX ({index})", dialect)
    return query


def _commit() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.execute("COMMIT")


def _columns() -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns("objects")}


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
