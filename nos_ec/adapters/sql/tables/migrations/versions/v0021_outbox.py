"""The outbox: events of buckets with notifications, until producers have sent them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import OUTBOX

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Create the table and its index, unless the store is new or an interrupted migration has done so."""
    connection = op.get_bind()
    OUTBOX.create(connection, checkfirst=True)
    existing = {index["name"] for index in sa.inspect(connection).get_indexes(OUTBOX.name)}
    for index in OUTBOX.indexes:
        if index.name not in existing:
            index.create(connection)


def downgrade() -> None:
    """Drop the table, with events that were not sent."""
    op.drop_table(OUTBOX.name)
