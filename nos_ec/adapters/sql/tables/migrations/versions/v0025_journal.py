"""The journal: what users have deleted, until GC has written it into the store.

Two rows of `counters` have the number of its next object, and since when entries were left out.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import COUNTERS, JOURNAL

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
beside_older = False

_ROWS = {"journal": 1, "journal_gap": 0}


def upgrade() -> None:
    """Create the table and insert the rows, unless the store is new or an interrupted migration has done so."""
    connection = op.get_bind()
    JOURNAL.create(connection, checkfirst=True)
    for name, value in _ROWS.items():
        if connection.scalar(sa.select(COUNTERS.c.value).where(COUNTERS.c.name == name)) is None:
            connection.execute(sa.insert(COUNTERS).values(name=name, value=value))


def downgrade() -> None:
    """Drop the table, with entries that are not in the store yet, and delete the rows."""
    op.drop_table(JOURNAL.name)
    op.execute(sa.delete(COUNTERS).where(COUNTERS.c.name.in_(_ROWS)))
