"""Survival: a table of how long objects live, by bucket (docs/adr/0033).

It starts empty. A process of the previous release, running beside new ones, counts no deaths; that makes its objects
look longer-lived for a while, and nothing else depends on it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0011"
down_revision = "0010"
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
    """Create the table, unless a migration that was cut off has done so."""
    if "survival" not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            "survival",
            sa.Column("bucket", _binary(255), primary_key=True),
            sa.Column("counted_ms", sa.BigInteger, nullable=False),
            sa.Column("counts", _binary(272), nullable=False),
            **_OPTIONS,
        )


def downgrade() -> None:
    """Drop the table. What it says is learned again."""
    op.drop_table("survival")
