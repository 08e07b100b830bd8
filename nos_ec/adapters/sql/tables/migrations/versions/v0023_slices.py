"""The slices of wide buckets, in the directory of a store that is divided into cells.

The program before this one can work beside until the first wide bucket is created: it does not know the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import DIRECTORY

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Add the column, unless the store is new or an interrupted migration has added it."""
    existing = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(DIRECTORY.name)}
    if DIRECTORY.c.slices.name not in existing:
        op.add_column(DIRECTORY.name, sa.Column("slices", DIRECTORY.c.slices.type, nullable=True))


def downgrade() -> None:
    """Drop the column. A store with wide buckets cannot be served any more."""
    op.drop_column(DIRECTORY.name, "slices")
