"""Adds the table of names that users change while their bucket is copied to another cell (docs/adr/0070).

Programs of earlier releases do not write these rows, so they must not change a bucket that is being moved.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import CHANGED_NAMES

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Create the table, unless the store is new or an interrupted migration has done so."""
    connection = op.get_bind()
    CHANGED_NAMES.create(connection, checkfirst=True)
    existing = {index["name"] for index in sa.inspect(connection).get_indexes(CHANGED_NAMES.name)}
    for index in CHANGED_NAMES.indexes:
        if index.name not in existing:
            index.create(connection)


def downgrade() -> None:
    """Drop the table. No row is needed later: a mover that starts anew compares all names first."""
    op.drop_table(CHANGED_NAMES.name)
