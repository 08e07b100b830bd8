"""Multipart uploads: a table for their rows (docs/adr/0032).

It starts empty. A process of the previous release, running beside new ones, would show the list of the parts of a
composed object instead of its bytes.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}
_ID = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
_STATE = sa.String(10).with_variant(mysql.VARCHAR(10, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
_INDEXES = {
    "uploads_by_key": ["state", "bucket", "name", "upload_id"],
    "uploads_by_time": ["state", "since_ms", "upload_id"],
}


def _binary(size: int) -> Any:
    return sa.LargeBinary(size).with_variant(mysql.VARBINARY(size), "mysql", "mariadb")


def upgrade() -> None:
    """Create the table: what a migration that was cut off has left to do."""
    if "uploads" not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            "uploads",
            sa.Column("upload_id", _ID, primary_key=True),
            sa.Column("bucket", _binary(255), nullable=False),
            sa.Column("name", _binary(1024), nullable=False),
            sa.Column("state", _STATE, nullable=False),
            sa.Column("since_ms", sa.BigInteger, nullable=False),
            sa.Column("revision", sa.BigInteger, nullable=False),
            sa.Column("owner", _binary(64), nullable=False),
            sa.Column("attributes", _binary(8192)),
            **_OPTIONS,
        )
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("uploads")}
    for name, columns in _INDEXES.items():
        if name not in there:
            op.create_index(name, "uploads", columns)


def downgrade() -> None:
    """Always refused: objects that are composed of parts would be lost."""
    raise NotImplementedError("objects that are composed of parts would be lost; restore a backup instead")
