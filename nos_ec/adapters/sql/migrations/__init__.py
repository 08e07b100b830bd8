"""Migrations of the metadata schema, in alembic's layout; run by `nos_ec.adapters.sql.migrate`."""
