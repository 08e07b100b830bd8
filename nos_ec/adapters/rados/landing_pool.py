"""A namespace of the landing pool, its mark, and its free space: the common base of landing store and landing log."""

from __future__ import annotations

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.failures import NO_SPACE
from nos_ec.adapters.rados.client.named_objects import Kind, NamedObjects
from nos_ec.adapters.rados.client.steps import Step
from nos_ec.adapters.rados.free_space import FreeSpace, pool_room
from nos_ec.adapters.rados.pool_checks import check_landing_pool
from nos_ec.adapters.rados.store_mark import make_mark, read_mark
from nos_ec.core.errors import ConfigError

STORE_OBJECT = "nos_ec.landing"
FORMAT = "nos_ec.format"
FORMAT_VALUE = b"1"


def mark_landing_pool(cluster: RadosCluster, pool_name: str, namespace: str) -> None:
    """Mark a pool, or a namespace of it, as a landing store. Durable and idempotent.

    Raises ConfigError when the pool does not fit, NoSpace, Transient.
    """
    with cluster.open_pool(pool_name, namespace) as pool:
        check_landing_pool(cluster, pool)
        make_mark(pool, STORE_OBJECT, FORMAT, FORMAT_VALUE)


class LandingPool:
    """The objects of one kind in a namespace of a landing pool.

    Opening raises Transient, or ConfigError when the pool is missing, does not fit or was not initialised. Closing
    leaves the cluster connected. `object_bytes_max` is the largest size of an object; it converts a quota of objects to
    bytes.
    """

    def __init__(
        self, cluster: RadosCluster, pool_name: str, namespace: str, kind: Kind, object_bytes_max: int
    ) -> None:
        self._pool = cluster.open_pool(pool_name, namespace)
        self._objects = NamedObjects(self._pool, kind)
        try:
            check_landing_pool(cluster, self._pool)
            self.probe()
        except BaseException:
            self._pool.close()
            raise
        self._free = FreeSpace(pool_name, lambda: pool_room(cluster, pool_name), object_bytes_max)

    def _write(self, object_id: bytes, *steps: Step, size_bytes: int, objects: int = 0) -> int:
        """Carry out all steps on an object in one transaction, which adds `size_bytes` and `objects` to the pool.
        Returns the object's new version. Raises OSError."""
        try:
            version = self._pool.write(self._objects.name_of(object_id), *steps)
        except OSError as error:
            if error.errno in NO_SPACE:
                self._free.refused()
            raise
        self._free.spent(size_bytes, objects)
        return version

    def free_bytes(self) -> int:
        """Return the free space by the monitors' last estimate, less the bytes written here since. The estimate is some
        seconds old, and older while the monitors do not answer."""
        return self._free.free_bytes()

    def raw_bytes(self) -> int:
        """Return the bytes allocated on all OSDs for the whole pool, including other namespaces. The figure is some
        seconds old."""
        return self._objects.allocated_bytes()

    def probe(self) -> None:
        """Read the store's mark from the OSDs, in the same way as an object. No request goes to the monitors. Raises
        ConfigError unless the namespace was initialised, Transient."""
        stored = read_mark(self._pool, STORE_OBJECT, FORMAT)
        if stored != FORMAT_VALUE:
            raise ConfigError(
                f"the landing store in Ceph pool {self._pool.name} has format {stored[:20]!r}, but this program knows"
                f" {FORMAT_VALUE!r}: use the program that wrote it"
            )

    def close(self) -> None:
        """Close the pool; the cluster stays connected."""
        self._free.close()
        self._pool.close()
