"""The object that says: this pool, or this namespace of it, is a store, and of what kind.

It has no content, as an erasure-coded pool takes only whole stripes; what it says is one xattr.
"""

from __future__ import annotations

import errno

from nos_ec.adapters.rados import pool as steps
from nos_ec.adapters.rados.failures import port_error
from nos_ec.adapters.rados.pool import Pool
from nos_ec.core.errors import ConfigError


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
