"""Objects that say: this pool, or this namespace of it, is a store, of what kind, and whose metadata belongs to it.

They have no content, as an erasure-coded pool takes only whole stripes; what each says is one xattr.
"""

from __future__ import annotations

import errno

from nos_ec.adapters.rados import pool as steps
from nos_ec.adapters.rados.failures import port_error
from nos_ec.adapters.rados.pool import Pool
from nos_ec.core.errors import ConfigError

OWNER_OBJECT = "nos_ec.owner"
STORE_ID = "nos_ec.store_id"


def claim_for(pool: Pool, store_id: str, *, anew: bool) -> None:
    """Note, durably, that the data here is the one that the metadata with this id knows. `anew`: whatever was noted
    before. Raises ConfigError when it is another's, NoSpace, Transient."""
    if anew:
        try:
            pool.write(OWNER_OBJECT, steps.set_xattr(STORE_ID, store_id.encode()))
        except OSError as error:
            raise port_error(f"marking Ceph pool {pool.name} as a store", error) from error
    else:
        make_mark(pool, OWNER_OBJECT, STORE_ID, store_id.encode())
    require_owner(pool, store_id)


def require_owner(pool: Pool, store_id: str) -> None:
    """Raises ConfigError unless the data here belongs to the metadata with this id; Transient."""
    try:
        found = pool.xattr(OWNER_OBJECT, STORE_ID).decode(errors="replace")
    except FileNotFoundError:
        found = ""
    except OSError as error:
        raise port_error(f"opening the store in Ceph pool {pool.name}", error) from error
    if found != store_id:
        raise ConfigError(
            f"Ceph pool {pool.name} holds {f'another store ({found})' if found else 'no store'} there, and the metadata"
            f" is that of {store_id}: correct the pool, the namespace or the metadata URL"
        )


def make_mark(pool: Pool, name: str, key: str, value: bytes) -> None:
    """Make the mark, durably; one that exists is left as it is. Raises ConfigError, NoSpace, Transient."""
    try:
        pool.write(name, steps.must_be_new(), steps.set_xattr(key, value))
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise port_error(f"marking Ceph pool {pool.name} as a store", error) from error


def read_mark(pool: Pool, name: str, key: str) -> bytes:
    """What the mark says. Raises ConfigError when there is none, Transient."""
    try:
        return pool.xattr(name, key)
    except FileNotFoundError as error:
        raise ConfigError(
            f"Ceph pool {pool.name} has no mark of a store ({name}): run `nos-ec init` to make one, or correct the"
            " pool or namespace in the configuration"
        ) from error
    except OSError as error:
        raise port_error(f"opening the store in Ceph pool {pool.name}", error) from error
