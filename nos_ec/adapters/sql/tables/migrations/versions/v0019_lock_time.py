"""A row with the lock time, which decides when object locks end. It is 0 until a daemon starts it.

Programs before this one delete locked versions, so none of them may work on the same store.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import COUNTERS

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
beside_older = False

_NAME = "lock_time"


def upgrade() -> None:
    """Insert the row, unless an interrupted migration has done so."""
    connection = op.get_bind()
    if connection.scalar(sa.select(COUNTERS.c.value).where(COUNTERS.c.name == _NAME)) is None:
        connection.execute(sa.insert(COUNTERS).values(name=_NAME, value=0))


def downgrade() -> None:
    """Delete the row."""
    op.execute(sa.delete(COUNTERS).where(COUNTERS.c.name == _NAME))
