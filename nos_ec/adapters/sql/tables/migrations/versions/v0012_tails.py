"""Tails of large objects: no table changes (docs/adr/0027).

The number keeps processes of earlier releases out of a store that may have tails: they would return a large object
without its tail.
"""

from __future__ import annotations

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing."""


def downgrade() -> None:
    """Change nothing. Earlier releases must not be run on a store that has tails."""
