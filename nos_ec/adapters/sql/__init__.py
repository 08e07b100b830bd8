"""The metadata store on SQLite, MySQL and MariaDB, using SQLAlchemy.

Each package may import those before it: `driver` (connections and transactions), `tables` (schema, migrations, rows),
`blocks`, `objects`, `buckets` or `operator`. The class of each part of the port is next to its SQL; tables/base.py has
their base class. metadata.py combines them as the port `Metadata`: begin there. May import ports and core.
"""
