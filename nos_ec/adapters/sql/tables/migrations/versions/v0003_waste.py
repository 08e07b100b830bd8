"""Waste: GC finds blocks by all bytes that no object uses, including headers and padding, and may leave a block alone
for a while.

`hole_ppm`, the share of dead bytes in data bytes, is dropped together with its index. No data is computed: the new
figure is a generated column.

MySQL and MariaDB rebuild the table of blocks, in one statement that is done completely or not at all; blocks cannot be
changed meanwhile. SQLite does all of it in one transaction. Every step checks whether it is done, so the migration may
be interrupted anywhere and run again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SIZE = "(live_bytes + dead_bytes + overhead_bytes)"
_WASTE = f"CASE WHEN {_SIZE} = 0 THEN 1000000 ELSE (dead_bytes + overhead_bytes) * 1000000 %s {_SIZE} END"
_INDEX = "blocks_by_waste"
_OLD_INDEX = "blocks_by_holes"
_INDEXED = ["state", "waste_ppm", "gc_not_before_ms"]


def upgrade() -> None:
    """Add the columns and their index, and remove those that they replace."""
    if op.get_bind().dialect.name == "sqlite":
        _upgrade_sqlite()
    else:
        _upgrade_mysql()


def downgrade() -> None:
    """Always refused: the previous release would not find a column that it needs."""
    raise NotImplementedError("there is no way back from waste; restore a backup instead")


def _upgrade_mysql() -> None:
    columns, indexes = _found()
    steps = []
    if _OLD_INDEX in indexes:
        steps.append(f"DROP INDEX {_OLD_INDEX}")
    if "hole_ppm" in columns:
        steps.append("DROP COLUMN hole_ppm")
    if "waste_ppm" not in columns:
        steps.append(f"ADD COLUMN waste_ppm BIGINT GENERATED ALWAYS AS ({_WASTE % 'DIV'}) STORED")
    if "gc_not_before_ms" not in columns:
        steps.append("ADD COLUMN gc_not_before_ms BIGINT NULL")
    if "gc_failures" not in columns:
        steps.append("ADD COLUMN gc_failures BIGINT NOT NULL DEFAULT 0")
    if _INDEX not in indexes:
        steps.append(f"ADD INDEX {_INDEX} ({', '.join(_INDEXED)})")
    if steps:
        op.execute(sa.text(f"ALTER TABLE blocks {', '.join(steps)}"))


def _upgrade_sqlite() -> None:
    columns, indexes = _found()
    if _OLD_INDEX in indexes:
        op.drop_index(_OLD_INDEX, "blocks")
    if "hole_ppm" in columns:
        op.drop_column("blocks", "hole_ppm")
    if "waste_ppm" not in columns:
        # SQLite cannot add a stored generated column to a table. The index holds the values of a virtual one, too.
        op.execute(sa.text(f"ALTER TABLE blocks ADD COLUMN waste_ppm BIGINT AS ({_WASTE % '/'}) VIRTUAL"))
    if "gc_not_before_ms" not in columns:
        op.add_column("blocks", sa.Column("gc_not_before_ms", sa.BigInteger))
    if "gc_failures" not in columns:
        op.add_column("blocks", sa.Column("gc_failures", sa.BigInteger, nullable=False, server_default="0"))
    if _INDEX not in indexes:
        op.create_index(_INDEX, "blocks", _INDEXED)


def _found() -> tuple[set[str], set[str | None]]:
    """The columns and indexes of the table of blocks."""
    found = sa.inspect(op.get_bind())
    columns = {str(column["name"]) for column in found.get_columns("blocks")}
    return columns, {index["name"] for index in found.get_indexes("blocks")}
