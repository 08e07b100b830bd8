"""The first schema that a release has, with the number that the development version before it had reached.

It creates the tables as schema.py has them today. So in a new store, later migrations find the tables and columns that
they would add, and must check for them first. They need that check anyway: MySQL commits after every DDL statement, so
a migration may be interrupted in the middle, and running it again completes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import COUNTERS, METADATA

revision = "0015"
down_revision = None
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Create every table, its indexes and the row of the epoch counter, unless an interrupted migration has already
    done so."""
    connection = op.get_bind()
    for table in METADATA.sorted_tables:
        table.create(connection, checkfirst=True)
        existing = {index["name"] for index in sa.inspect(connection).get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in existing:
                index.create(connection)
    if connection.scalar(sa.select(sa.func.count()).select_from(COUNTERS)) == 0:
        connection.execute(sa.insert(COUNTERS).values(name="lease_epoch", value=0))


def downgrade() -> None:
    """Refuse to downgrade, because there is no schema before this one."""
    raise NotImplementedError("the first schema has no predecessor; restore a backup instead")
