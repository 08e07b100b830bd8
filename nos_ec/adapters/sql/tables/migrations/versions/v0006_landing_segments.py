"""Segments of the landing log: a table of their own (docs/adr/0021).

A process of the previous release, running beside new ones, does not know it, and opens no segments.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_INDEX = "landing_segments_by_log"
_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}


def upgrade() -> None:
    """Create the table and its index, unless a migration that was cut off has done so."""
    found = sa.inspect(op.get_bind())
    if "landing_segments" not in found.get_table_names():
        op.create_table(
            "landing_segments",
            sa.Column(
                "segment_id", sa.LargeBinary(8).with_variant(mysql.BINARY(8), "mysql", "mariadb"), primary_key=True
            ),
            sa.Column("log", sa.Integer, nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column(
                "state",
                sa.String(10).with_variant(
                    mysql.VARCHAR(10, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
                ),
                nullable=False,
            ),
            sa.Column("opened_ms", sa.BigInteger, nullable=False),
            sa.Column("sealed_ms", sa.BigInteger, nullable=True),
            sa.Column("end_bytes", sa.BigInteger, nullable=False),
            sa.Column("records", sa.BigInteger, nullable=False),
            **_OPTIONS,
        )
    if _INDEX not in {one["name"] for one in sa.inspect(op.get_bind()).get_indexes("landing_segments")}:
        op.create_index(_INDEX, "landing_segments", ["state", "log"])


def downgrade() -> None:
    """Always refused: rows of objects may refer to segments."""
    raise NotImplementedError("landing copies may lie in segments; drain the log, then restore a backup instead")
