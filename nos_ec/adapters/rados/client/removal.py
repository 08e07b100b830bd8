"""Removes a whole store from a pool."""

from __future__ import annotations

from itertools import islice

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.failures import port_error
from nos_ec.core.errors import ConfigError

_NAMES_PER_ROUND = 1000


def remove_namespace(cluster: RadosCluster, pool_name: str, namespace: str) -> None:
    """Remove every object of a namespace. Raises ConfigError, Transient; another call then continues."""
    if not namespace:
        raise ConfigError(f"refusing to remove all of Ceph pool {pool_name}; name a namespace")
    with cluster.open_pool(pool_name, namespace) as pool:
        try:
            while names := list(islice(pool.names(), _NAMES_PER_ROUND)):
                for error in pool.remove_many(names).values():
                    raise error
        except OSError as error:
            raise port_error(f"removing namespace {namespace} of Ceph pool {pool_name}", error) from error
