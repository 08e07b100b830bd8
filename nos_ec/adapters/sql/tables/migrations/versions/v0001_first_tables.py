"""The first schema.

MySQL commits after every DDL statement, so a migration may be interrupted in the middle. Each table and index is
created only if it does not exist, so running the migration again completes it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}


def upgrade() -> None:
    """Create every table, its indexes and the row of the epoch counter."""
    _create_objects()
    _create_segments()
    _create_blocks()
    _create_leases()
    _create_landing_deletions()
    _table(
        "store_info", sa.Column("name", sa.String(32), primary_key=True), sa.Column("value", sa.Text, nullable=False)
    )


def downgrade() -> None:
    """Always refused: going back would drop every table."""
    raise NotImplementedError("the first schema has no predecessor; restore a backup instead")


def _create_objects() -> None:
    _table(
        "objects",
        sa.Column("object_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("bucket", _binary(255), nullable=False),
        sa.Column("name", _binary(1024), nullable=False),
        _bigint("version"),
        _bigint("size"),
        _bigint("crc32c"),
        sa.Column("md5", _id(), nullable=False),
        sa.Column("state", _word(), nullable=False),
        sa.Column("landing_id", _id()),
        sa.Column("block_id", _id()),
        _bigint("block_offset", nullable=True),
        _bigint("due_ms", nullable=True),
        _bigint("created_ms"),
        sa.UniqueConstraint("bucket", "name", name="objects_by_key"),
        sqlite_autoincrement=True,
    )
    _index("objects_by_due", "objects", "due_ms", "object_id", partial=True)
    _index("objects_by_block", "objects", "block_id", "block_offset", partial=True)
    _index("objects_by_landing", "objects", "landing_id", partial=True)


def _create_segments() -> None:
    _table(
        "segments",
        sa.Column("object_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("block_id", _id(), nullable=False),
        _bigint("block_offset"),
        _bigint("length"),
        _bigint("crc32c"),
    )
    _index("segments_by_block", "segments", "block_id")


def _create_blocks() -> None:
    data = sa.column("live_bytes", sa.BigInteger) + sa.column("dead_bytes", sa.BigInteger)
    holes = sa.case((data == 0, 1_000_000), else_=sa.column("dead_bytes", sa.BigInteger) * 1_000_000 // data)
    _table(
        "blocks",
        sa.Column("block_id", _id(), primary_key=True),
        sa.Column("kind", _word(), nullable=False),
        sa.Column("state", _word(), nullable=False),
        sa.Column("writer", _binary(255), nullable=False),
        _bigint("epoch"),
        _bigint("stripes"),
        _bigint("live_bytes"),
        _bigint("dead_bytes"),
        _bigint("overhead_bytes"),
        _bigint("live_objects"),
        sa.Column("hole_ppm", sa.BigInteger, sa.Computed(holes, persisted=True)),
        _bigint("created_ms"),
        _bigint("sealed_ms", nullable=True),
        _bigint("delete_after_ms", nullable=True),
        sa.CheckConstraint(
            "live_bytes >= 0 AND dead_bytes >= 0 AND overhead_bytes >= 0 AND live_objects >= 0",
            name="blocks_count_right",
        ),
    )
    _index("blocks_by_holes", "blocks", "state", "hole_ppm")
    _index("blocks_by_grace", "blocks", "state", "delete_after_ms")
    _index("blocks_by_writer", "blocks", "writer", "epoch", "state")


def _create_leases() -> None:
    _table("leases", sa.Column("name", _binary(255), primary_key=True), _bigint("epoch"), _bigint("expires_ms"))
    _index("leases_by_expiry", "leases", "expires_ms")
    _table("counters", sa.Column("name", sa.String(32), primary_key=True), _bigint("value"))
    counters = sa.table("counters", sa.column("name"), sa.column("value"))
    if op.get_bind().scalar(sa.select(sa.func.count()).select_from(counters)) == 0:
        op.bulk_insert(counters, [{"name": "lease_epoch", "value": 0}])


def _create_landing_deletions() -> None:
    _table(
        "landing_deletions",
        sa.Column("landing_id", _id(), primary_key=True),
        _bigint("object_id", nullable=True),
        _bigint("version", nullable=True),
        _bigint("not_before_ms"),
        sa.Column("doomed", sa.Boolean(create_constraint=False), nullable=False),
    )
    _index("landing_deletions_by_time", "landing_deletions", "not_before_ms", "landing_id")


def _table(name: str, *parts: Any, **options: Any) -> None:
    if not sa.inspect(op.get_bind()).has_table(name):
        op.create_table(name, *parts, **_OPTIONS, **options)


def _index(name: str, table: str, *columns: str, partial: bool = False) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        where: dict[str, Any] = {"sqlite_where": sa.column(columns[0]).is_not(None)} if partial else {}
        op.create_index(name, table, list(columns), **where)


def _bigint(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _binary(bytes_max: int) -> Any:
    return sa.LargeBinary(bytes_max).with_variant(mysql.VARBINARY(bytes_max), "mysql", "mariadb")


def _id() -> Any:
    return sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")


def _word() -> Any:
    return sa.String(10).with_variant(mysql.VARCHAR(10, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
