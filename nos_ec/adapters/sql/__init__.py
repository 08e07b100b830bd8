"""Metadata on SQLite, MySQL and MariaDB through SQLAlchemy."""

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.schema_version import migrate

__all__ = ["SqlMetadata", "migrate", "open_metadata"]
