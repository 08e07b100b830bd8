"""The landing store on a replicated Ceph pool: one RADOS object per landing copy, named by its id in hexadecimal.

A put is one transaction that also creates the object, so a copy exists completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nos_ec.adapters.rados import pool as steps
from nos_ec.adapters.rados.cluster import RadosCluster
from nos_ec.adapters.rados.failures import NO_SPACE
from nos_ec.adapters.rados.free_space import FreeSpace, pool_room
from nos_ec.adapters.rados.named_objects import NamedObjects
from nos_ec.adapters.rados.pool import Buffer
from nos_ec.adapters.rados.pool_checks import check_landing_pool
from nos_ec.adapters.rados.store_mark import make_mark, read_mark
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, Transient
from nos_ec.core.ids import LandingId
from nos_ec.ports.clock import Beat, unwatched

STORE_OBJECT = "nos_ec.landing"
FORMAT = "nos_ec.format"
FORMAT_VALUE = b"1"
COPY_BYTES_MAX = 4 << 20
"""The size of a stripe group of the default geometry, which is the most that one copy takes. Converts a quota of
objects to bytes."""
FIRST_READ_BYTES = 1 << 20
"""A copy shorter than this is read in one operation. It is not the size of the longest copy, because librados counts
the bytes requested, not those found, against its limit for data in flight (100 MB)."""


class RadosLandingStore:
    """A `LandingStore` on a Ceph pool (see nos_ec.ports.landing_store for the contract).

    Opening raises Transient, or ConfigError when the pool is missing, does not fit or was not initialised. `namespace`
    separates several stores in one pool. Closing leaves the cluster connected.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, namespace: str = "") -> None:
        self._pool = cluster.open_pool(pool_name, namespace)
        self._copies = NamedObjects(self._pool, "landing copy")
        try:
            check_landing_pool(cluster, self._pool)
            self._check_store()
        except BaseException:
            self._pool.close()
            raise
        self._free = FreeSpace(pool_name, lambda: pool_room(cluster, pool_name), COPY_BYTES_MAX)

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
        size_bytes = memoryview(data).nbytes
        with self._copies.translated(landing_id):
            try:
                content = [steps.write_full(data)] if size_bytes else []
                self._pool.write(landing_id.hex(), steps.must_be_new(), *content)
            except FileExistsError as error:
                raise Conflict(
                    f"landing copy {landing_id.hex()} exists: use a new id", landing_id=landing_id
                ) from error
            except OSError as error:
                if error.errno in NO_SPACE:
                    self._free.refused()
                raise
        self._free.spent(size_bytes, objects=1)

    def read(self, landing_id: LandingId) -> bytes:
        """Return the whole copy."""
        with self._copies.translated(landing_id):
            return self._pool.read_whole(landing_id.hex(), FIRST_READ_BYTES)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        with self._copies.translated(landing_id):
            data = self._pool.read(landing_id.hex(), offset, length)
        if len(data) < length:
            raise Corrupt(
                f"landing copy {landing_id.hex()}: {length} bytes at {offset} are past its end", landing_id=landing_id
            )
        return data

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy."""
        self._copies.delete(landing_id)

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> dict[LandingId, Transient]:
        """Delete copies, several at a time. Raises ConfigError when the user lacks the caps or the pool is gone."""
        failed: dict[LandingId, Transient] = {}
        for name, error in self._pool.remove_many([one.hex() for one in landing_ids], beat).items():
            landing_id = LandingId(bytes.fromhex(name))
            translated = self._copies.failure(landing_id, error)
            if not isinstance(translated, Transient):
                raise translated from error
            failed[landing_id] = translated
        return failed

    def list_ids(self) -> Iterator[LandingId]:
        """Yield every copy. Other objects of the pool are skipped."""
        return map(LandingId, self._copies.all_ids())

    def free_bytes(self) -> int:
        """The free space by the monitors' last estimate, less what this store has put since. The estimate is some
        seconds old, and older while the monitors do not answer."""
        return self._free.value()

    def probe(self) -> None:
        """Read the store's mark from the OSDs, the way a copy is read. The monitors are not asked."""
        self._check_store()

    def raw_bytes(self) -> int:
        """The bytes allocated on all OSDs for the whole pool, including other namespaces. Some seconds old."""
        return self._copies.allocated_bytes()

    def close(self) -> None:
        """Close the pool; the cluster stays connected."""
        self._free.close()
        self._pool.close()

    def _check_store(self) -> None:
        """Raise ConfigError unless the namespace was initialised."""
        stored = read_mark(self._pool, STORE_OBJECT, FORMAT)
        if stored != FORMAT_VALUE:
            raise ConfigError(
                f"the landing store in Ceph pool {self._pool.name} has format {stored[:20]!r}, but this program knows"
                f" {FORMAT_VALUE!r}: use the program that wrote it"
            )
