"""Facts about the whole store."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, insert, select

from nos_ec.adapters.sql.tables.schema import STORE_INFO
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry


def bind_geometry(connection: Connection, geometry: Geometry) -> None:
    """Bind a new store to this geometry. Raises ConfigError when the store is bound to another one."""
    if not has_geometry(connection, geometry):
        connection.execute(insert(STORE_INFO).values(name="geometry", value=json.dumps(asdict(geometry))))


def has_geometry(connection: Connection, geometry: Geometry) -> bool:
    """Return whether the store is bound to this geometry; False when it is new. Raises ConfigError when it is bound to
    another one."""
    bound = find_geometry(connection)
    if bound is not None and bound != geometry:
        raise ConfigError(
            f"this store was created with {bound}, but {geometry} is configured;"
            " correct the configuration, or create another store for that geometry"
        )
    return bound is not None


def find_geometry(connection: Connection) -> Geometry | None:
    """Return the geometry that the store is bound to, if any."""
    value = connection.execute(select(STORE_INFO.c.value).where(STORE_INFO.c.name == "geometry")).scalar()
    return None if value is None else Geometry(**json.loads(value))


def find_store_id(connection: Connection) -> str | None:
    """Return the id that distinguishes this store from all others, if it has one."""
    found = connection.execute(select(STORE_INFO.c.value).where(STORE_INFO.c.name == "store_id")).scalar()
    return None if found is None else str(found)


def claim_store_id(connection: Connection, store_id: str) -> str:
    """Return the store's id, after setting it to `store_id` if there is none yet. Of two concurrent calls, both return
    the id of the winner."""
    found = find_store_id(connection)
    if found is None:
        connection.execute(insert(STORE_INFO).values(name="store_id", value=store_id))
    return found or store_id
