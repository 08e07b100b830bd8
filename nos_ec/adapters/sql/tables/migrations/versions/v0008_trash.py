"""Trash: a column that marks deleted versions that are kept, and a unique index of keys that begins with it
(docs/adr/0028).

MariaDB and MySQL add the column at once. They build the index while objects are read and written, and only then drop
the one that it replaces, at once. SQLite copies the table in its transaction: the old index belongs to the table, and
cannot be dropped.

No process of the previous release may go on. Most of its statements fail on MariaDB and MySQL, because they name the
index that is gone. The others, and all of them on SQLite, take what is in the trash for current versions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_OLD, _NEW = "objects_by_key", "objects_by_trash_key"
_KEY = ["trashed", "bucket", "name"]
_MARK = sa.LargeBinary(20).with_variant(mysql.VARBINARY(20), "mysql", "mariadb")


def upgrade() -> None:
    """Add the column, and replace the index: what a migration that was cut off has left to do."""
    if "trashed" not in _columns():
        op.add_column("objects", sa.Column("trashed", _MARK, nullable=False, server_default=sa.text("x''")))
    if op.get_bind().dialect.name == "sqlite":
        _copy()
    else:
        if _NEW not in _indexes():
            op.create_index(_NEW, "objects", _KEY, unique=True)
        if _OLD in _indexes():
            op.drop_index(_OLD, "objects")


def downgrade() -> None:
    """Always refused: what is in the trash would be there again."""
    raise NotImplementedError("objects may be in the trash; restore a backup instead")


def _copy() -> None:
    """Make the table anew, without the constraint. The last id that it has used stays."""
    op.create_table(
        "objects_new",
        sa.Column("object_id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.LargeBinary, nullable=False) for name in ("bucket", "name")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("version", "size", "crc32c")),
        sa.Column("md5", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        *(sa.Column(name, sa.LargeBinary) for name in ("landing_id", "block_id")),
        sa.Column("block_offset", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("attributes", sa.LargeBinary),
        sa.Column("trashed", sa.LargeBinary, nullable=False, server_default=sa.text("x''")),
        sqlite_autoincrement=True,
    )
    names = ", ".join(_columns())
    op.execute(f"INSERT INTO objects_new ({names}) SELECT {names} FROM objects")  # noqa: S608 - our own names
    op.execute("DELETE FROM sqlite_sequence WHERE name = 'objects_new'")
    op.execute(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'objects_new', seq FROM sqlite_sequence WHERE name = 'objects'"
    )
    op.drop_table("objects")
    op.rename_table("objects_new", "objects")
    by_block = sa.column("block_id").is_not(None)
    op.create_index("objects_by_block", "objects", ["block_id", "block_offset"], sqlite_where=by_block)
    op.create_index(_NEW, "objects", _KEY, unique=True)


def _columns() -> list[str]:
    return [column["name"] for column in sa.inspect(op.get_bind()).get_columns("objects")]


def _indexes() -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("objects")}
