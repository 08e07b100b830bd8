"""Attributes of objects: a column that is NULL for objects without any (docs/adr/0023).

MariaDB and MySQL 8.0.29 and newer add it at once; older MySQL copies the table. SQLite adds it at once. A process of
the previous release, running beside new ones, does not know it: objects that it overwrites keep the attributes of their
previous versions, so all of them must be stopped first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SIZE_MAX = 8192


def upgrade() -> None:
    """Add the column, unless a migration that was cut off has done so."""
    if "attributes" not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns("objects")}:
        kind = sa.LargeBinary(_SIZE_MAX).with_variant(mysql.VARBINARY(_SIZE_MAX), "mysql", "mariadb")
        op.add_column("objects", sa.Column("attributes", kind, nullable=True))


def downgrade() -> None:
    """Always refused: attributes would be lost."""
    raise NotImplementedError("objects may have attributes; restore a backup instead")
