"""Versions: a table for noncurrent versions and delete markers (docs/adr/0034).

It starts empty, and no row of an object changes. A process of the previous release, running beside new ones, overwrites
and deletes current versions as if no bucket had versioning, and takes noncurrent ones for rows in the trash: do not
enable versioning before all processes are new.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}


def _binary(size: int) -> Any:
    return sa.LargeBinary(size).with_variant(mysql.VARBINARY(size), "mysql", "mariadb")


def upgrade() -> None:
    """Create the table: what a migration that was cut off has left to do."""
    if "versions" not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            "versions",
            sa.Column("bucket", _binary(255), primary_key=True),
            sa.Column("name", _binary(1024), primary_key=True),
            sa.Column("age_rank", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("object_id", sa.BigInteger),
            sa.Column("is_null", sa.SmallInteger, nullable=False),
            sa.Column("created_ms", sa.BigInteger, nullable=False),
            **_OPTIONS,
        )
    if "versions_by_null" not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("versions")}:
        op.create_index(
            "versions_by_null", "versions", ["is_null", "bucket", "name"], sqlite_where=sa.text("is_null = 1")
        )


def downgrade() -> None:
    """Always refused: noncurrent versions would be lost."""
    raise NotImplementedError("noncurrent versions would be lost; restore a backup instead")
