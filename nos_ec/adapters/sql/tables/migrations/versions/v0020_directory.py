"""The directory of a store that is divided into cells. Its table is in the database of every cell, and used in one.

The program before this one can work beside: it neither reads nor writes the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import DIRECTORY

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Create the table, unless the store is new or an interrupted migration has created it."""
    if not sa.inspect(op.get_bind()).has_table(DIRECTORY.name):
        DIRECTORY.create(op.get_bind())


def downgrade() -> None:
    """Drop the table."""
    op.drop_table(DIRECTORY.name)
