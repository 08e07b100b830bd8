"""The metadata store on SQLite, MySQL and MariaDB, using SQLAlchemy."""
