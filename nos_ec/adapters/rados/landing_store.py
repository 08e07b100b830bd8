"""The landing store on a replicated Ceph pool: one RADOS object a landing copy, named by its id in hexadecimal.

A put is one transaction that also creates the object, so a copy is there in whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nos_ec.adapters.rados import pool as steps
from nos_ec.adapters.rados.cluster import RadosCluster
from nos_ec.adapters.rados.failures import port_error
from nos_ec.adapters.rados.free_space import FreeSpace
from nos_ec.adapters.rados.pool import Buffer
from nos_ec.adapters.rados.pool_checks import check_landing_pool
from nos_ec.adapters.rados.store_mark import make_mark, read_mark
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NotFound, Transient
from nos_ec.core.ids import LandingId

STORE_OBJECT = "nos_ec.landing"
FORMAT = "nos_ec.format"
FORMAT_VALUE = b"1"
FIRST_READ_BYTES = 128 << 10
"""A copy up to this size is read in one operation, a longer one in two."""

_COPY_NAME = re.compile("[0-9a-f]{32}")


class RadosLandingStore:
    """A `LandingStore` on a Ceph pool (see nos_ec.ports.landing_store for the contract).

    Opening raises ConfigError when the pool is missing, does not fit or was not initialised; Transient. `namespace`
    keeps several stores in one pool apart. Closing leaves the cluster connected.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, namespace: str = "") -> None:
        self._pool = cluster.open_pool(pool_name, namespace)
        try:
            check_landing_pool(cluster, self._pool)
            self._check_store()
        except BaseException:
            self._pool.close()
            raise
        self._free = FreeSpace(cluster, pool_name)

    @classmethod
    def initialise(cls, cluster: RadosCluster, pool_name: str, namespace: str = "") -> None:
        """Mark a pool, or a namespace of it, as a landing store. Durable and idempotent.

        Raises ConfigError when the pool does not fit, NoSpace, Transient.
        """
        with cluster.open_pool(pool_name, namespace) as pool:
            check_landing_pool(cluster, pool)
            make_mark(pool, STORE_OBJECT, FORMAT, FORMAT_VALUE)
        cls(cluster, pool_name, namespace).close()

    def put(self, landing_id: LandingId, data: Buffer) -> None:
        """Create and write one copy in one transaction."""
        view = memoryview(data).cast("B")
        with self._translated(landing_id):
            try:
                content = [steps.write_full(data if isinstance(data, bytes) else view)] if len(view) else []
                self._pool.write(_name(landing_id), steps.must_be_new(), *content)
            except FileExistsError as error:
                raise Conflict(f"landing copy {landing_id.hex()} exists: use a new id") from error
        self._free.spent(len(view))

    def read(self, landing_id: LandingId) -> bytes:
        """The whole copy."""
        with self._translated(landing_id):
            return self._pool.read_whole(_name(landing_id), FIRST_READ_BYTES)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        if offset < 0 or length < 0:
            raise ValueError(f"range of {length} bytes at {offset}")
        with self._translated(landing_id):
            (data,) = self._pool.read_many(_name(landing_id), [(offset, length)])
        if len(data) < length:
            raise Corrupt(f"landing copy {landing_id.hex()}: {length} bytes at {offset} are past its end")
        return data

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy."""
        try:
            with self._translated(landing_id):
                self._pool.write(_name(landing_id), steps.remove())
        except NotFound:
            return

    def delete_many(self, landing_ids: Sequence[LandingId]) -> dict[LandingId, Transient]:
        """Delete copies, several at a time. Raises ConfigError when this user may not, or the pool is gone."""
        failed: dict[LandingId, Transient] = {}
        for name, error in self._pool.remove_many([_name(landing_id) for landing_id in landing_ids]).items():
            translated = port_error(f"landing copy {name} in Ceph pool {self._pool.name}", error)
            if not isinstance(translated, Transient):
                raise translated from error
            failed[LandingId(bytes.fromhex(name))] = translated
        return failed

    def list_ids(self) -> Iterator[LandingId]:
        """Every copy; other objects of the pool are passed over."""
        try:
            for name in self._pool.names():
                if _COPY_NAME.fullmatch(name):
                    yield LandingId(bytes.fromhex(name))
        except OSError as error:
            raise port_error(f"listing Ceph pool {self._pool.name}", error) from error

    def free_bytes(self) -> int:
        """By the monitors' estimate, some seconds old, less what this store put since."""
        return self._free.value()

    def raw_bytes(self) -> int:
        """Bytes allocated on all OSDs for the whole pool, other namespaces included; some seconds old."""
        try:
            return self._pool.allocated_bytes()
        except OSError as error:
            raise port_error(f"Ceph pool {self._pool.name}", error) from error

    def close(self) -> None:
        """Close the pool; the cluster stays connected."""
        self._pool.close()

    def _check_store(self) -> None:
        """Raise ConfigError unless the namespace was initialised."""
        stored = read_mark(self._pool, STORE_OBJECT, FORMAT)
        if stored != FORMAT_VALUE:
            raise ConfigError(
                f"the landing store in Ceph pool {self._pool.name} has format {stored[:20]!r}, this program knows"
                f" {FORMAT_VALUE!r}: open it with the program that wrote it"
            )

    @contextmanager
    def _translated(self, landing_id: LandingId) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"landing copy {landing_id.hex()} does not exist") from error
        except OSError as error:
            action = f"landing copy {landing_id.hex()} in Ceph pool {self._pool.name}"
            raise port_error(action, error) from error


def _name(landing_id: LandingId) -> str:
    return landing_id.hex()
