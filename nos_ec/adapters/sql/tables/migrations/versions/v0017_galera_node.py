"""A row that names the Galera node that writes to the store. It stays 0 on other servers.

Programs before this one do not compare the row, so none of them may write to the same store.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import COUNTERS

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
beside_older = False

_NAME = "galera_node"


def upgrade() -> None:
    """Insert the row, unless an interrupted migration has done so."""
    connection = op.get_bind()
    if connection.scalar(sa.select(COUNTERS.c.value).where(COUNTERS.c.name == _NAME)) is None:
        connection.execute(sa.insert(COUNTERS).values(name=_NAME, value=0))


def downgrade() -> None:
    """Delete the row."""
    op.execute(sa.delete(COUNTERS).where(COUNTERS.c.name == _NAME))
