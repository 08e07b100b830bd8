"""Metadata on SQLite, MySQL and MariaDB through SQLAlchemy."""
