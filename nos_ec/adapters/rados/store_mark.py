"""Objects that mark a pool, or a namespace of it, as a store, with its kind and the id of its metadata.

They have no content, because an erasure-coded pool accepts only whole stripes. Each has its value in one xattr.
"""

from __future__ import annotations

import errno

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.failures import port_error
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.core.errors import ConfigError

OWNER_OBJECT = "nos_ec.owner"
STORE_ID = "nos_ec.store_id"


def claim_for(pool: Pool, store_id: str) -> None:
    """Record, durably, that the data here belongs to the metadata with this id. Raises ConfigError when the data
    belongs to another store, NoSpace, Transient."""
    make_mark(pool, OWNER_OBJECT, STORE_ID, store_id.encode())
    require_owner(pool, store_id)


def require_owner(pool: Pool, store_id: str) -> None:
    """Raise ConfigError unless the data here belongs to the metadata with this id. Raises Transient."""
    found = find_owner(pool)
    if found != store_id:
        raise ConfigError(
            f"Ceph pool {pool.name} holds {f'another store ({found})' if found else 'no store'} there, but the metadata"
            f" belongs to store {store_id}: correct the pool, the namespace or the metadata URL"
        )


def find_owner(pool: Pool) -> str | None:
    """Return the id of the metadata that the data here belongs to; None if it is not marked. Raises Transient."""
    try:
        return pool.xattr(OWNER_OBJECT, STORE_ID).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise port_error(f"opening the store in Ceph pool {pool.name}", error) from error


def owner_of(pool: Pool) -> str:
    """Return the id of the metadata that the data here belongs to. Raises ConfigError, Transient."""
    return read_mark(pool, OWNER_OBJECT, STORE_ID).decode(errors="replace")


def make_mark(pool: Pool, name: str, key: str, value: bytes) -> None:
    """Create the mark, durably. An existing one is left as it is. Raises ConfigError, NoSpace, Transient."""
    try:
        pool.write(name, steps.must_be_new(), steps.set_xattr(key, value))
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise port_error(f"marking Ceph pool {pool.name} as a store", error) from error


def read_mark(pool: Pool, name: str, key: str) -> bytes:
    """Return the value of the mark. Raises ConfigError when there is no mark, Transient."""
    try:
        return pool.xattr(name, key)
    except FileNotFoundError as error:
        raise ConfigError(
            f"Ceph pool {pool.name} is not marked as a store ({name}): run `nos-ec init` to create one, or correct the"
            " pool or namespace in the configuration"
        ) from error
    except OSError as error:
        raise port_error(f"opening the store in Ceph pool {pool.name}", error) from error
