"""Moves of buckets between cells: the table of their states, the row that counts its changes, and how often each bucket
was moved.

Programs before this one do not look whether a bucket was moved, so none of them may work on a store of several cells
once a bucket is being moved.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import COUNTERS, DIRECTORY, MOVES
from nos_ec.core.errors import ConfigError

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
beside_older = False

_NAME = "moves"


def upgrade() -> None:
    """Create the table, the row and the column, unless the store is new or an interrupted migration has done so."""
    connection = op.get_bind()
    MOVES.create(connection, checkfirst=True)
    if connection.scalar(sa.select(COUNTERS.c.value).where(COUNTERS.c.name == _NAME)) is None:
        connection.execute(sa.insert(COUNTERS).values(name=_NAME, value=0))
    if "moves" not in {one["name"] for one in sa.inspect(connection).get_columns(DIRECTORY.name)}:
        op.add_column(DIRECTORY.name, sa.Column("moves", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them. Raises ConfigError if a bucket was moved: older programs would serve it from its old cell."""
    if op.get_bind().scalar(sa.select(sa.func.count()).select_from(MOVES)):
        raise ConfigError("buckets were moved between cells; programs before schema 0024 would serve them wrongly")
    op.drop_column(DIRECTORY.name, "moves")
    op.execute(sa.delete(COUNTERS).where(COUNTERS.c.name == _NAME))
    op.drop_table(MOVES.name)
