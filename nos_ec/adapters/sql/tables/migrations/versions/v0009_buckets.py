"""Buckets: tables for their owners, what accounts may do in them, their documents, and access keys (docs/adr/0030).

They start empty: a bucket that holds objects and has no row belongs to the account `root`. A process of the previous
release, running beside new ones, does not know them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}


def _binary(size: int) -> Any:
    return sa.LargeBinary(size).with_variant(mysql.VARBINARY(size), "mysql", "mariadb")


def _word(size: int) -> Any:
    return sa.String(size).with_variant(mysql.VARCHAR(size, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")


def upgrade() -> None:
    """Create the tables: what a migration that was cut off has left to do."""
    _create(
        "buckets",
        sa.Column("bucket", _binary(255), primary_key=True),
        sa.Column("owner", _binary(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("acl", _word(20), nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
    )
    if "buckets_by_owner" not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("buckets")}:
        op.create_index("buckets_by_owner", "buckets", ["owner", "bucket"])
    _create(
        "bucket_documents",
        sa.Column("bucket", _binary(255), primary_key=True),
        sa.Column("kind", _word(20), primary_key=True),
        sa.Column("body", _binary(32768), nullable=False),
    )
    _create(
        "bucket_grants",
        sa.Column("bucket", _binary(255), primary_key=True),
        sa.Column("account", _binary(64), primary_key=True),
        sa.Column("rights", sa.SmallInteger, nullable=False),
    )
    _create(
        "access_keys",
        sa.Column("access_key", _binary(128), primary_key=True),
        sa.Column("account", _binary(64), nullable=False),
        sa.Column("secret", _binary(512), nullable=False),
        sa.Column("state", _word(10), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("note", _binary(255), nullable=False),
    )


def downgrade() -> None:
    """Always refused: owners and access keys would be lost."""
    raise NotImplementedError("buckets and access keys would be lost; restore a backup instead")


def _create(name: str, *parts: Any) -> None:
    if name not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(name, *parts, **_OPTIONS)
