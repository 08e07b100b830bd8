"""Floors of version numbers: a table for the greatest number that was removed from a key (docs/adr/0034).

It starts empty. A process of the previous release, running beside new ones, removes versions without noting their
numbers, so stop all processes first.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TABLE, _INDEX = "version_floors", "version_floors_by_version"
_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}


def _binary(size: int) -> Any:
    return sa.LargeBinary(size).with_variant(mysql.VARBINARY(size), "mysql", "mariadb")


def upgrade() -> None:
    """Create the table, if an interrupted migration has not already done so."""
    if _TABLE not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            _TABLE,
            sa.Column("bucket", _binary(255), primary_key=True),
            sa.Column("name", _binary(1024), primary_key=True),
            sa.Column("version", sa.BigInteger, nullable=False),
            **_OPTIONS,
        )
    if _INDEX not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(_TABLE)}:
        op.create_index(_INDEX, _TABLE, ["version"])


def downgrade() -> None:
    """Refuse to downgrade, because that was never tested."""
    raise NotImplementedError("there is no way back from floors of version numbers; restore a backup instead")
