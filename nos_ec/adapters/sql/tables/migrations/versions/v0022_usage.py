"""The usage of buckets: their sums, and changes that are not folded into them yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import BUCKET_USAGE, USAGE_CHANGES

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Create the tables and their index, unless the store is new or an interrupted migration has done so."""
    connection = op.get_bind()
    for table in (BUCKET_USAGE, USAGE_CHANGES):
        table.create(connection, checkfirst=True)
        existing = {index["name"] for index in sa.inspect(connection).get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in existing:
                index.create(connection)


def downgrade() -> None:
    """Drop the tables. The buckets are counted again after an upgrade."""
    op.drop_table(USAGE_CHANGES.name)
    op.drop_table(BUCKET_USAGE.name)
