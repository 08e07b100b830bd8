"""The landing store on a replicated Ceph pool: one RADOS object per landing copy, named by its id in hexadecimal.

A put is one transaction that also creates the object, so a copy exists completely or not at all. Its label is the xattr
`nos_ec.object`, set by that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from nos_ec.adapters.rados.client import pool as steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.failures import NO_SPACE
from nos_ec.adapters.rados.client.pool import Buffer
from nos_ec.adapters.rados.landing_pool import LandingPool, mark_landing_pool
from nos_ec.core.errors import Conflict, Corrupt, NosError, NotFound, Transient
from nos_ec.core.ids import LandingId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.landing_store import LandingPut

COPY_BYTES_MAX = 4 << 20
"""The largest size of a copy: that of a stripe group of the default geometry. It converts a quota of objects to
bytes."""
LABEL = "nos_ec.object"
_LABEL_THREADS = 16
FIRST_READ_BYTES = 1 << 20
"""A copy shorter than this is read in one operation. It is less than the size of the longest copy, because librados
counts the bytes requested, not the bytes found, against its limit for data in flight (100 MB)."""


class RadosLandingStore(LandingPool):
    """A `LandingStore` on a Ceph pool (see nos_ec.ports.landing_store for the contract).

    Opening raises Transient, or ConfigError when the pool is missing, does not fit or was not initialised. `namespace`
    separates several stores in one pool. Closing leaves the cluster connected.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, namespace: str = "") -> None:
        super().__init__(cluster, pool_name, namespace, "landing copy", COPY_BYTES_MAX)

    @classmethod
    def initialise(cls, cluster: RadosCluster, pool_name: str, namespace: str = "") -> None:
        """Mark a pool, or a namespace of it, as a landing store. Durable and idempotent.

        Raises ConfigError when the pool does not fit, NoSpace, Transient.
        """
        mark_landing_pool(cluster, pool_name, namespace)
        cls(cluster, pool_name, namespace).close()

    def put(self, landing_id: LandingId, data: Buffer, label: bytes = b"") -> None:
        """Create and write one copy in one transaction."""
        try:
            self._pool.write(landing_id.hex(), *_steps_of(data, label))
        except OSError as error:
            raise self._put_failure(landing_id, error) from error
        self._free.spent(memoryview(data).nbytes, objects=1)

    def put_many(self, copies: Sequence[LandingPut]) -> dict[LandingId, NosError]:
        """Create and write copies, one transaction each, several at a time."""
        writes = ((landing_id.hex(), _steps_of(data, label), len(data)) for landing_id, data, label in copies)
        failed: dict[LandingId, NosError] = {}
        for name, error in self._pool.write_many(writes).items():
            landing_id = LandingId(bytes.fromhex(name))
            failed[landing_id] = self._put_failure(landing_id, error)
        stored = [len(data) for landing_id, data, _ in copies if landing_id not in failed]
        self._free.spent(sum(stored), objects=len(stored))
        return failed

    def _put_failure(self, landing_id: LandingId, error: OSError) -> NosError:
        if isinstance(error, FileExistsError):
            return Conflict(f"landing copy {landing_id.hex()} exists: use a new id", landing_id=landing_id)
        if error.errno in NO_SPACE:
            self._free.refused()
        return self._objects.failure(landing_id, error)

    def read(self, landing_id: LandingId) -> bytes:
        """Return the whole copy."""
        with self._objects.translated(landing_id):
            return self._pool.read_whole(landing_id.hex(), FIRST_READ_BYTES)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        with self._objects.translated(landing_id):
            data = self._pool.read(landing_id.hex(), offset, length)
        if len(data) < length:
            raise Corrupt(
                f"landing copy {landing_id.hex()}: {length} bytes at {offset} are past its end", landing_id=landing_id
            )
        return data

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy."""
        self._objects.delete(landing_id)

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> dict[LandingId, Transient]:
        """Delete copies, several at a time. Raises ConfigError when the user lacks the caps or the pool is gone."""
        failed = self._objects.delete_many(landing_ids, beat)
        return {LandingId(landing_id): reason for landing_id, reason in failed.items()}

    def list_ids(self) -> Iterator[LandingId]:
        """Yields every copy. Other objects of the pool are skipped."""
        return map(LandingId, self._objects.all_ids())

    def labels(self, landing_ids: Sequence[LandingId]) -> dict[LandingId, bytes]:
        """Read the xattrs of several copies, several at a time."""
        with ThreadPoolExecutor(_LABEL_THREADS, thread_name_prefix="landing-labels") as pool:
            found = pool.map(self._label, landing_ids)
            return {one: label for one, label in zip(landing_ids, found, strict=True) if label is not None}

    def _label(self, landing_id: LandingId) -> bytes | None:
        try:
            with self._objects.translated(landing_id):
                return self._pool.xattrs(landing_id.hex())[0].get(LABEL, b"")
        except NotFound:
            return None


def _steps_of(data: Buffer, label: bytes) -> list[steps.Step]:
    content = [steps.write_full(data)] if memoryview(data).nbytes else []
    labelled = [steps.set_xattr(LABEL, label)] if label else []
    return [steps.must_be_new(), *content, *labelled]
