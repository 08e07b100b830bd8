"""Migrations of the metadata schema, in alembic's layout. `nos_ec.adapters.sql.migrate` runs them."""
