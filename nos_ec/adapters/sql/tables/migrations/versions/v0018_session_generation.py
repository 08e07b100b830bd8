"""A column with the generation of an access key, which temporary credentials name.

A program before this one does not change it, so it would not end the sessions of a key to which it gives a new secret.
"""

from __future__ import annotations

from os import urandom

import sqlalchemy as sa
from alembic import op

from nos_ec.adapters.sql.tables.schema import ACCESS_KEYS
from nos_ec.ports.metadata.buckets import GENERATION_BYTES

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
beside_older = False


def upgrade() -> None:
    """Add the column, unless the store is new or an interrupted migration has added it."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("access_keys")}
    if "generation" not in there:
        op.add_column("access_keys", sa.Column("generation", ACCESS_KEYS.c.generation.type))
    # A fixed value would be the same again after the way back to the program before this one.
    op.execute(sa.update(ACCESS_KEYS).values(generation=urandom(GENERATION_BYTES)))


def downgrade() -> None:
    """Drop the column. The program before this one accepts no temporary credentials."""
    op.drop_column("access_keys", "generation")
