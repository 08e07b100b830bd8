"""Alembic's entry point. It always gets a connection from the program: there is no alembic.ini and no offline mode."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
