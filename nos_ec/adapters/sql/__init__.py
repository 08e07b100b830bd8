"""The metadata store on SQLite, MySQL and MariaDB, using SQLAlchemy.

Each package may import those before it: `driver` (connections and transactions), `tables` (schema, migrations, rows),
`blocks`, `objects`, `buckets` or `operator`. metadata.py puts them together as the port `Metadata`: begin there, and
follow a method into the module that has its SQL. May import ports and core.
"""
