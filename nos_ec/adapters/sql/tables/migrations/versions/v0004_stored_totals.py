"""Stored totals: a table for the sums over the whole store that one process computes for all (docs/adr/0018).

It has a table of its own, and not a row in `store_info`, so that the daemons that compute the sums need no right to
change the store's geometry and id. A process of the previous release, running beside new ones, does not know it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("row_format", "DYNAMIC"))
}


def upgrade() -> None:
    """Create the table, unless a migration that was cut off has done so."""
    if "stored_totals" not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            "stored_totals",
            sa.Column("name", sa.String(32), primary_key=True),
            sa.Column("value", sa.Text, nullable=False),
            **_OPTIONS,
        )


def downgrade() -> None:
    """Remove the table. The sums can be computed again at any time."""
    op.drop_table("stored_totals")
