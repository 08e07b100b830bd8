"""The block store on a Ceph erasure-coded pool: one RADOS object per block.

    object                 xattr                content
    <block id, hex>        nos_ec.geometry      "1 k=8 m=3 ...": the store's geometry; never changes
                           nos_ec.end           "open N" or "sealed N": N stripes are written
    nos_ec.store           nos_ec.geometry      no content; created by `initialise`

Invariants kept here:
  a  A block's end, seal and bytes change together in one RADOS transaction. Every change of an object raises its
     version, and the transaction first checks that the object still has the version that it had when the writer learned
     the block's end. So if two appends at the same end compete, or an append and a seal, one wins and the other writes
     nothing, no matter which processes they come from and how late one of them arrives.
  b  "sealed" is never undone.
  c  The object's size is N stripes. An append is always whole stripes, because nothing can follow a shorter one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.failures import NO_SPACE
from nos_ec.adapters.rados.client.named_objects import NamedObjects
from nos_ec.adapters.rados.client.steps import Buffer
from nos_ec.adapters.rados.free_space import FreeSpace, pool_room
from nos_ec.adapters.rados.known_ends import END_XATTR, BlockEnd, KnownEnd, KnownEnds
from nos_ec.adapters.rados.pool_checks import check_blocks_pool
from nos_ec.adapters.rados.read_cost import ReadCounter
from nos_ec.adapters.rados.store_mark import make_mark, read_mark
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.range_coalescing import cut_ranges, merged_ranges
from nos_ec.ports.block_store import ReadCounters

STORE_OBJECT = "nos_ec.store"
GEOMETRY_XATTR = "nos_ec.geometry"

GAP_MAX = 32 << 10
RUN_BYTES_MAX = 2 << 20
"""Ranges of a block are read in one run if the gaps between them have at most GAP_MAX bytes and the run has at most
RUN_BYTES_MAX. Measured (docs/MEASUREMENTS.md): reading the unneeded bytes of a gap of about 128 KiB or more (64 KiB if
the objects are of that size) costs OSDs and client more than another operation, and a run longer than 2 MiB saves
nothing."""

_VERSION_MISMATCH = frozenset({errno.ERANGE, errno.EOVERFLOW})
"""Error codes of a transaction whose expected version is not the object's version."""


class RadosBlockStore:
    """A `BlockStore` on a Ceph pool (see nos_ec.ports.block_store for the contract).

    Opening raises Transient, or ConfigError when the pool is missing, does not fit the geometry, or was not initialised
    for it. `namespace` separates several stores in one pool. Closing leaves the cluster connected.

    The store works while every placement group has k + 1 of its k + m OSDs (the pool's min_size). Operations on groups
    with fewer OSDs raise Transient after the time limit, and nothing is lost.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, geometry: Geometry, namespace: str = "") -> None:
        self._geometry = geometry
        self._pool = cluster.open_pool(pool_name, namespace)
        self._blocks = NamedObjects(self._pool, "block")
        self._known_ends = KnownEnds()
        try:
            self._counter = ReadCounter(check_blocks_pool(cluster, self._pool, geometry))
            self._check_store()
        except BaseException:
            self._pool.close()
            raise
        self._free = FreeSpace(pool_name, lambda: pool_room(cluster, pool_name), geometry.block_size)

    @classmethod
    def initialise(cls, cluster: RadosCluster, pool_name: str, geometry: Geometry, namespace: str = "") -> None:
        """Mark a pool, or a namespace of it, as a store of this geometry. Durable and idempotent.

        Raises NoSpace, Transient, or ConfigError when the pool does not fit or has a store of another geometry.
        """
        with cluster.open_pool(pool_name, namespace) as pool:
            check_blocks_pool(cluster, pool, geometry)
            make_mark(pool, STORE_OBJECT, GEOMETRY_XATTR, _geometry_value(geometry))
        cls(cluster, pool_name, geometry, namespace).close()

    @property
    def geometry(self) -> Geometry:
        """Return the geometry that the store was created with."""
        return self._geometry

    # --- writing --------------------------------------------------------------------------------------

    def create(self, block_id: BlockId, data: Buffer = b"") -> None:
        """Create a block with its first stripes, in one transaction."""
        content = [steps.append(data)] if data else []
        end = self._end_after(0, data) if data else BlockEnd(0, sealed=False)
        with self._translated(block_id):
            try:
                version = self._pool.write(
                    block_id.hex(),
                    steps.must_be_new(),
                    *content,
                    steps.set_xattr(GEOMETRY_XATTR, _geometry_value(self._geometry)),
                    steps.set_xattr(END_XATTR, end.encode()),
                )
            except FileExistsError as error:
                raise Conflict(f"block {block_id.hex()} exists", block_id=block_id) from error
        self._free.spent(0, objects=1)
        self._remember_write(block_id, KnownEnd(end, version), data)

    def append(self, block_id: BlockId, at_stripe: int, data: Buffer) -> None:
        """Append whole stripes at `at_stripe`, in one transaction (invariant a)."""
        end = self._end_after(at_stripe, data)
        known = self._known_ends.take_end(block_id) or self._look_up(block_id)
        if known.end.sealed:
            raise Conflict(f"block {block_id.hex()} is sealed", block_id=block_id)
        if known.end.stripes != at_stripe:
            raise Conflict(
                f"block {block_id.hex()} ends at stripe {known.end.stripes}, not at {at_stripe}: seal it",
                block_id=block_id,
            )
        version = self._try_change(block_id, known, steps.append(data), steps.set_xattr(END_XATTR, end.encode()))
        if version is None:
            self._look_up(block_id)  # raises NotFound if the block was deleted, which is not a conflict
            raise Conflict(
                f"block {block_id.hex()} was sealed or changed by another writer: seal it", block_id=block_id
            )
        self._remember_write(block_id, KnownEnd(end, version), data)

    def _end_after(self, at_stripe: int, data: Buffer) -> BlockEnd:
        """Return the end of a block after appending `data` at `at_stripe`. A block that is full then is also sealed.

        Raises ValueError unless `data` is whole stripes that fit into a block.
        """
        size_bytes, full = memoryview(data).nbytes, self._geometry.stripes_per_block
        count, rest = divmod(size_bytes, self._geometry.stripe_size)
        if rest or not count or at_stripe < 0 or at_stripe + count > full:
            raise ValueError(
                f"{size_bytes} bytes at stripe {at_stripe}: an append takes whole stripes of"
                f" {self._geometry.stripe_size} bytes, up to stripe {full}"
            )
        return BlockEnd(at_stripe + count, sealed=at_stripe + count == full)

    def _remember_write(self, block_id: BlockId, known: KnownEnd, data: Buffer) -> None:
        if not known.end.sealed:
            self._known_ends.remember_end(block_id, known)
        self._free.spent(memoryview(data).nbytes)

    def seal(self, block_id: BlockId) -> int:
        """Change "open N" to "sealed N". If an append moves the end meanwhile, try again with the new end. Each such
        append adds at least a stripe, so there are at most as many tries as a block has stripes, and one more."""
        self._known_ends.take_end(block_id)
        for _ in range(self._geometry.stripes_per_block + 1):
            known = self._look_up(block_id)
            stripes = known.end.stripes
            if known.end.sealed:
                return stripes
            sealed = BlockEnd(stripes, sealed=True)
            if self._try_change(block_id, known, steps.set_xattr(END_XATTR, sealed.encode())) is not None:
                return stripes
        raise Transient(f"block {block_id.hex()} keeps changing; try again", block_id=block_id)

    def delete(self, block_id: BlockId) -> None:
        """Delete a block in one transaction, so that it exists completely or not at all."""
        self._known_ends.take_end(block_id)
        self._blocks.delete(block_id)

    def _try_change(self, block_id: BlockId, known: KnownEnd, *change: steps.Step) -> int | None:
        """Make a change unless the block was changed or deleted since it had its known end (invariant a). Returns the
        object's new version, or None if the change was not made. Raises Conflict, NoSpace, Transient."""
        with self._translated(block_id):
            try:
                return self._pool.write(block_id.hex(), steps.must_have_version(known.version), *change)
            except OSError as error:
                if error.errno not in _VERSION_MISMATCH:
                    raise
        return None

    # --- reading --------------------------------------------------------------------------------------

    def read(self, block_id: BlockId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes."""
        with self._blocks.translated(block_id), self._counter.counting_time_outs():
            found = self._pool.read(block_id.hex(), offset, length)
        self._counter.count(offset, length)
        _check_length(block_id, offset, length, found)
        return found

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several (offset, length) ranges. Ranges close to each other are read by one operation,
        and `Pool.each_read` limits the operations in flight. The OSDs verify what they read against BlueStore's
        checksums, and reconstruct damaged data by decoding."""
        if not extents:
            return []
        runs = merged_ranges(extents, GAP_MAX, RUN_BYTES_MAX)
        spans = [(run.offset, run.length) for run in runs]
        with self._blocks.translated(block_id), self._counter.counting_time_outs():
            found = cut_ranges(extents, runs, self._pool.each_read(block_id.hex(), spans))
        for span in spans:
            self._counter.count(*span)
        for part, extent in zip(found, extents, strict=True):
            _check_length(block_id, *extent, part)
        return found

    def stripes(self, block_id: BlockId) -> int:
        """Return the number of stripes of a block, as its xattr records it. Raises Corrupt if the size of the object
        does not match (invariant c)."""
        end = self._look_up(block_id).end
        with self._translated(block_id):
            size = self._pool.size_of(block_id.hex())
        # The size is read after the xattr, so it may include a later append.
        if size < end.stripes * self._geometry.stripe_size or size % self._geometry.stripe_size:
            raise Corrupt(
                f"block {block_id.hex()} has {size} bytes, not the {end.stripes} stripes that its xattr records",
                block_id=block_id,
            )
        return end.stripes

    def list_blocks(self) -> Iterator[BlockId]:
        """Yield the id of every block. Other objects of the pool are skipped."""
        return map(BlockId, self._blocks.all_ids())

    def free_bytes(self) -> int:
        """Return the free bytes, rounded down to whole stripes, by the monitors' last estimate. It is some seconds old,
        and older while the monitors do not answer."""
        return self._free.free_bytes() // self._geometry.stripe_size * self._geometry.stripe_size

    def probe(self) -> None:
        """Read the store's mark from the OSDs, in the same way as a block. No request goes to the monitors."""
        self._check_store()

    def raw_bytes(self) -> int:
        """Return the bytes allocated on all OSDs for the whole pool, including other namespaces. The figure is some
        seconds old."""
        return self._blocks.allocated_bytes()

    def blocks_short(self) -> None:
        """Return None, because Ceph itself finds and repairs blocks that lack shards. `ceph status` shows its
        progress."""

    def missing_shards(self, block_id: BlockId) -> tuple[int, ...]:  # noqa: ARG002
        """Return no shards, because Ceph itself finds and repairs blocks that lack shards."""
        return ()

    def counters(self) -> ReadCounters:
        """Return the cost of `read` and `read_many` so far, computed from the ranges (see read_cost.py)."""
        return self._counter.counters()

    def close(self) -> None:
        """Close the pool; the cluster stays connected."""
        self._free.close()
        self._pool.close()

    # --------------------------------------------------------------------------------------------------

    def _look_up(self, block_id: BlockId) -> KnownEnd:
        """Return the end of a block, and its object's version. Raises NotFound, Corrupt, Transient, or ConfigError for
        a block of another geometry."""
        with self._translated(block_id):
            xattrs, version = self._pool.xattrs(block_id.hex())
        if END_XATTR not in xattrs or GEOMETRY_XATTR not in xattrs:
            raise Corrupt(
                f"block {block_id.hex()} has no xattr {END_XATTR} or {GEOMETRY_XATTR}: it was not created by this"
                " program",
                block_id=block_id,
            )
        if xattrs[GEOMETRY_XATTR] != _geometry_value(self._geometry):
            geometry = xattrs[GEOMETRY_XATTR].decode(errors="replace")
            raise ConfigError(f"block {block_id.hex()} was created for the geometry {geometry}", block_id=block_id)
        return KnownEnd(BlockEnd.decode(xattrs[END_XATTR]), version)

    def _check_store(self) -> None:
        """Raise ConfigError unless the namespace was initialised for this geometry."""
        stored = read_mark(self._pool, STORE_OBJECT, GEOMETRY_XATTR)
        wanted = _geometry_value(self._geometry)
        if stored != wanted:
            raise ConfigError(
                f"the block store in Ceph pool {self._pool.name} has the geometry {stored.decode(errors='replace')},"
                f" but the configuration says {wanted.decode()}: configure the store's geometry, or initialise a new"
                " store in another pool or namespace"
            )

    @contextmanager
    def _translated(self, block_id: BlockId) -> Iterator[None]:
        """Like `NamedObjects.translated`. Also notes that the pool is full, and raises Conflict for an append to an
        object that does not end with a whole stripe, which Ceph does not support."""
        with self._blocks.translated(block_id):
            try:
                yield
            except OSError as error:
                if error.errno in NO_SPACE:
                    self._free.refused()
                if error.errno == errno.EOPNOTSUPP:
                    raise Conflict(
                        f"block {block_id.hex()} does not end with a whole stripe: seal it", block_id=block_id
                    ) from error
                raise


def _check_length(block_id: BlockId, offset: int, length: int, found: bytes) -> None:
    """Raise Corrupt if fewer bytes were found than requested."""
    if len(found) != length:
        raise Corrupt(f"block {block_id.hex()}: range of {length} bytes at {offset} is past the end", block_id=block_id)


def _geometry_value(geometry: Geometry) -> bytes:
    return " ".join(["1", *(f"{name}={value}" for name, value in asdict(geometry).items())]).encode()
