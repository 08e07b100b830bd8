"""Columns of their own for when a waiting object was published, and whether its event was spread.

Until now the due time held both in its low digits. Events that wait in the log while a store is upgraded are published
once more when their rows come due, which does no harm.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Add the columns, unless the store is new or an interrupted migration has added them."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("waiting")}
    is_spread = sa.Boolean(create_constraint=False)
    for column in (
        sa.Column("published_ms", sa.BigInteger),
        sa.Column("is_spread", is_spread, nullable=False, server_default="0"),
    ):
        if column.name not in there:
            op.add_column("waiting", column)


def downgrade() -> None:
    """Drop the columns. The program before this one publishes the waiting objects once more."""
    op.drop_column("waiting", "is_spread")
    op.drop_column("waiting", "published_ms")
