"""Narrow rows: columns and indexes of `objects` as wide as their values (docs/adr/0040).

MySQL and MariaDB copy each table once, in one statement that either ends or changes nothing. Processes of the previous
release must be stopped: between the two statements, MariaDB tells their GC offsets as decimals.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_BY_BLOCK = "objects_by_block"
_SEGMENTS = """
ALTER TABLE segments
  MODIFY block_offset INT UNSIGNED NOT NULL,
  MODIFY crc32c INT UNSIGNED NOT NULL
"""
"""Because they are read in one UNION with those of `objects`."""
_OBJECTS = """
ALTER TABLE objects
  MODIFY crc32c INT UNSIGNED NOT NULL,
  MODIFY state ENUM('landed', 'queued', 'packed', 'large', 'empty') CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  MODIFY block_offset INT UNSIGNED,
  DROP INDEX objects_by_block,
  ADD INDEX objects_by_block (block_id(8))
"""


def upgrade() -> None:
    """Change the tables that an earlier attempt did not change."""
    if op.get_bind().dialect.name != "sqlite":
        for table, narrow in (("segments", _SEGMENTS), ("objects", _OBJECTS)):
            if isinstance(_type_of_crc32c(table), sa.BigInteger):
                op.execute(sa.text(narrow))
        return
    # SQLite's numbers are as wide as their values anyway.
    op.drop_index(_BY_BLOCK, "objects")
    op.create_index(_BY_BLOCK, "objects", ["block_id"], sqlite_where=sa.text("block_id IS NOT NULL"))


def downgrade() -> None:
    """Always refused: it was never tried."""
    raise NotImplementedError("there is no way back from narrow rows; restore a backup instead")


def _type_of_crc32c(table: str) -> sa.types.TypeEngine[object]:
    columns = sa.inspect(op.get_bind()).get_columns(table)
    return next(column["type"] for column in columns if column["name"] == "crc32c")
