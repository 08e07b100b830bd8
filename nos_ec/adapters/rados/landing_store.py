"""The landing store on a replicated Ceph pool: one RADOS object per landing copy, named by its id in hexadecimal.

One transaction creates the object, writes its bytes and sets its label (the xattr `nos_ec.object`). So a copy exists
completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.failures import NO_SPACE
from nos_ec.adapters.rados.client.steps import Buffer
from nos_ec.adapters.rados.landing_pool import LandingPool, mark_landing_pool
from nos_ec.core.errors import Conflict, Corrupt, NosError, NotFound, Transient
from nos_ec.core.ids import LandingId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.landing_store import LandingPut

COPY_BYTES_MAX = 4 << 20
"""The largest size of a copy: the size of a stripe group with the default geometry. If the pool has a quota of objects,
the free space in bytes is computed as if every further copy were that large."""
FIRST_READ_BYTES = 1 << 20
"""A copy shorter than this is read in one operation. It is less than COPY_BYTES_MAX, because librados counts the bytes
requested, not the bytes found, against its limit for data in flight (100 MB)."""
LABEL_XATTR = "nos_ec.object"
_LABEL_READS_MAX = 16
"""How many labels are read at a time."""


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

        Raises NoSpace, Transient, or ConfigError when the pool does not fit.
        """
        mark_landing_pool(cluster, pool_name, namespace)
        cls(cluster, pool_name, namespace).close()

    def put(self, landing_id: LandingId, data: Buffer, label: bytes = b"") -> None:
        """Create and write one copy in one transaction."""
        try:
            self._write(landing_id, *_steps_of(data, label), size_bytes=memoryview(data).nbytes, objects=1)
        except OSError as error:
            raise self._put_failure(landing_id, error) from error

    def put_many(self, copies: Sequence[LandingPut]) -> dict[LandingId, NosError]:
        """Create and write copies, one transaction each, several at a time."""
        writes = ((landing_id.hex(), _steps_of(data, label), len(data)) for landing_id, data, label in copies)
        failed: dict[LandingId, NosError] = {}
        for name, error in self._pool.write_many(writes).items():
            landing_id = LandingId(bytes.fromhex(name))
            if error.errno in NO_SPACE:
                self._free.refused()
            failed[landing_id] = self._put_failure(landing_id, error)
        stored = [len(data) for landing_id, data, _ in copies if landing_id not in failed]
        self._free.spent(sum(stored), objects=len(stored))
        return failed

    def _put_failure(self, landing_id: LandingId, error: OSError) -> NosError:
        if isinstance(error, FileExistsError):
            return Conflict(f"landing copy {landing_id.hex()} exists: use a new id", landing_id=landing_id)
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
        """Delete copies, several at a time. Raises ConfigError when the Ceph user lacks the caps or the pool is
        gone."""
        failed = self._objects.delete_many(landing_ids, beat)
        return {LandingId(landing_id): reason for landing_id, reason in failed.items()}

    def list_ids(self) -> Iterator[LandingId]:
        """Yield the id of every copy. Other objects of the pool are skipped."""
        return map(LandingId, self._objects.all_ids())

    def labels(self, landing_ids: Sequence[LandingId]) -> dict[LandingId, bytes]:
        """Read the labels of several copies, several at a time. Absent copies are left out."""
        with ThreadPoolExecutor(_LABEL_READS_MAX, thread_name_prefix="landing-labels") as executor:
            found = zip(landing_ids, executor.map(self._label, landing_ids), strict=True)
            return {landing_id: label for landing_id, label in found if label is not None}

    def _label(self, landing_id: LandingId) -> bytes | None:
        try:
            with self._objects.translated(landing_id):
                return self._pool.xattrs(landing_id.hex())[0].get(LABEL_XATTR, b"")
        except NotFound:
            return None


def _steps_of(data: Buffer, label: bytes) -> list[steps.Step]:
    write_data = [steps.write_full(data)] if memoryview(data).nbytes else []
    set_label = [steps.set_xattr(LABEL_XATTR, label)] if label else []
    return [steps.must_be_new(), *write_data, *set_label]
