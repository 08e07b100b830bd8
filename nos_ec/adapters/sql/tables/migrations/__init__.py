"""Migrations of the metadata schema, in alembic's layout. `nos_ec.adapters.sql.tables.migrate` runs them."""
