"""The block store on a Ceph erasure-coded pool: one RADOS object a block.

    object                 xattr                content
    <block id, hex>        nos_ec.geometry      "1 k=8 m=3 ...": what it was created for; never changes
                           nos_ec.end           "open N" or "sealed N": N stripes are written
    nos_ec.store           nos_ec.geometry      no content; made by `initialise`

Invariants kept here:
  a  The end of a block, its seal and its bytes change in one RADOS transaction that first compares `nos_ec.end` with
     what the writer believes. So of two appends at one end, or of an append and a seal, one wins and the other writes
     nothing, in whatever process they are and however late a delayed one arrives.
  b  "sealed" is never taken back.
  c  The object's size is N stripes. An append is always whole stripes: a shorter one would be the block's last.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Self

from nos_ec.adapters.rados import pool as steps
from nos_ec.adapters.rados.cluster import RadosCluster
from nos_ec.adapters.rados.failures import port_error
from nos_ec.adapters.rados.free_space import FreeSpace
from nos_ec.adapters.rados.pool import Buffer
from nos_ec.adapters.rados.pool_checks import check_blocks_pool
from nos_ec.adapters.rados.read_cost import ReadCounter
from nos_ec.adapters.rados.store_mark import make_mark, read_mark
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NotFound, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId
from nos_ec.ports.block_store import ReadCounters

STORE_OBJECT = "nos_ec.store"
GEOMETRY = "nos_ec.geometry"
END = "nos_ec.end"

_BLOCK_NAME = re.compile("[0-9a-f]{32}")
_END_VALUE = re.compile(rb"(open|sealed) (0|[1-9][0-9]{0,3})")
_CHANGED = frozenset({errno.ECANCELED, errno.ENODATA})
"""What a comparison that fails gives."""


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Where a block ends, as its xattr says it."""

    stripes: int
    sealed: bool

    def encode(self) -> bytes:
        """The value of the xattr."""
        return b"%s %d" % (b"sealed" if self.sealed else b"open", self.stripes)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises Corrupt for anything that `encode` does not give."""
        match = _END_VALUE.fullmatch(value)
        if match is None:
            raise Corrupt(f"xattr {END} is {value[:40]!r}: it was not written by this program")
        return cls(int(match[2]), match[1] == b"sealed")


class RadosBlockStore:
    """A `BlockStore` on a Ceph pool (see nos_ec.ports.block_store for the contract).

    Opening raises ConfigError when the pool is missing, does not fit the geometry, or was not initialised for it;
    Transient. `namespace` keeps several stores in one pool apart. Closing leaves the cluster connected.

    Works while every placement group has k + 1 of its k + m OSDs (the pool's min_size); below that, operations on the
    groups concerned raise Transient after the time limit, and nothing is lost.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, geometry: Geometry, namespace: str = "") -> None:
        self._geometry = geometry
        self._pool = cluster.open_pool(pool_name, namespace)
        try:
            self._counter = ReadCounter(check_blocks_pool(cluster, self._pool, geometry))
            self._check_store()
        except BaseException:
            self._pool.close()
            raise
        self._free = FreeSpace(cluster, pool_name)

    @classmethod
    def initialise(cls, cluster: RadosCluster, pool_name: str, geometry: Geometry, namespace: str = "") -> None:
        """Mark a pool, or a namespace of it, as a store of this geometry. Durable and idempotent.

        Raises ConfigError when the pool does not fit or is a store of another geometry; NoSpace, Transient.
        """
        with cluster.open_pool(pool_name, namespace) as pool:
            check_blocks_pool(cluster, pool, geometry)
            make_mark(pool, STORE_OBJECT, GEOMETRY, _geometry_value(geometry))
        cls(cluster, pool_name, geometry, namespace).close()

    @property
    def geometry(self) -> Geometry:
        """Geometry the store was created with."""
        return self._geometry

    # --- writing --------------------------------------------------------------------------------------

    def create(self, block_id: BlockId) -> None:
        """Create an empty block."""
        with self._translated(block_id):
            try:
                self._pool.write(
                    _name(block_id),
                    steps.must_be_new(),
                    steps.set_xattr(GEOMETRY, _geometry_value(self._geometry)),
                    steps.set_xattr(END, BlockEnd(0, sealed=False).encode()),
                )
            except FileExistsError as error:
                raise Conflict(f"block {block_id.hex()} exists") from error

    def append(self, block_id: BlockId, at_stripe: int, data: Buffer) -> None:
        """Append whole stripes behind stripe `at_stripe`, in one transaction (invariant a)."""
        view = memoryview(data).cast("B")
        count, rest = divmod(len(view), self._geometry.stripe_size)
        if rest or not count or at_stripe < 0 or at_stripe + count > self._geometry.stripes_per_block:
            raise ValueError(
                f"{len(view)} bytes at stripe {at_stripe}: needed are whole stripes of {self._geometry.stripe_size}"
                f" bytes, up to stripe {self._geometry.stripes_per_block}"
            )
        with self._translated(block_id):
            try:
                self._pool.write(
                    _name(block_id),
                    steps.must_exist(),
                    steps.xattr_must_be(GEOMETRY, _geometry_value(self._geometry)),
                    steps.xattr_must_be(END, BlockEnd(at_stripe, sealed=False).encode()),
                    steps.append(data if isinstance(data, bytes) else view),
                    steps.set_xattr(END, BlockEnd(at_stripe + count, sealed=False).encode()),
                )
            except OSError as error:
                if error.errno in _CHANGED:
                    raise self._refused(block_id, at_stripe) from error
                raise
        self._free.spent(len(view))

    def seal(self, block_id: BlockId) -> int:
        """Turn "open N" into "sealed N". An append that comes in between makes it look again: at most once for each
        stripe a block can hold."""
        for _ in range(self._geometry.stripes_per_block + 1):
            end = self._end(block_id)
            if end.sealed:
                return end.stripes
            if self._sealed_at(block_id, end):
                return end.stripes
        raise Transient(f"block {block_id.hex()} changes all the time; try again")

    def _sealed_at(self, block_id: BlockId, end: BlockEnd) -> bool:
        with self._translated(block_id):
            try:
                self._pool.write(
                    _name(block_id),
                    steps.must_exist(),
                    steps.xattr_must_be(END, end.encode()),
                    steps.set_xattr(END, BlockEnd(end.stripes, sealed=True).encode()),
                )
            except OSError as error:
                if error.errno in _CHANGED:
                    return False
                raise
        return True

    def delete(self, block_id: BlockId) -> None:
        """Delete a block: one transaction, so it is there or it is not."""
        try:
            with self._translated(block_id):
                self._pool.write(_name(block_id), steps.remove())
        except NotFound:
            return

    # --- reading --------------------------------------------------------------------------------------

    def read(self, block_id: BlockId, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes."""
        return self.read_many(block_id, [(offset, length)])[0]

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several ranges, as few operations as the limits of nos_ec.adapters.rados.pool allow. OSDs verify what
        they read against BlueStore's checksums and decode what is damaged."""
        for offset, length in extents:
            if offset < 0 or length < 0:
                raise ValueError(f"range of {length} bytes at {offset}")
        if not extents:
            return []
        with self._translated(block_id):
            found = self._pool.read_many(_name(block_id), extents)
        self._counter.count(extents)
        for part, (offset, length) in zip(found, extents, strict=True):
            if len(part) != length:
                raise Corrupt(f"block {block_id.hex()}: range of {length} bytes at {offset} is past the end")
        return found

    def stripes(self, block_id: BlockId) -> int:
        """What the block's end says. Raises Corrupt when its size says otherwise (invariant c)."""
        end = self._end(block_id)
        with self._translated(block_id):
            size = self._pool.size_of(_name(block_id))
        if size < end.stripes * self._geometry.stripe_size or size % self._geometry.stripe_size:
            raise Corrupt(f"block {block_id.hex()} has {size} bytes, which are not the {end.stripes} stripes it claims")
        return end.stripes

    def list_blocks(self) -> Iterator[BlockId]:
        """Every block; other objects of the pool are passed over."""
        try:
            for name in self._pool.names():
                if _BLOCK_NAME.fullmatch(name):
                    yield BlockId(bytes.fromhex(name))
        except OSError as error:
            raise port_error(f"listing Ceph pool {self._pool.name}", error) from error

    def free_bytes(self) -> int:
        """Whole stripes that fit by the monitors' estimate, which is some seconds old."""
        return self._free.value() // self._geometry.stripe_size * self._geometry.stripe_size

    def raw_bytes(self) -> int:
        """Bytes allocated on all OSDs for the whole pool, other namespaces included; some seconds old."""
        try:
            return self._pool.allocated_bytes()
        except OSError as error:
            raise port_error(f"Ceph pool {self._pool.name}", error) from error

    def counters(self) -> ReadCounters:
        """Cost of `read` and `read_many` so far, computed from the ranges (see read_cost.py)."""
        return self._counter.value()

    def close(self) -> None:
        """Close the pool; the cluster stays connected."""
        self._pool.close()

    # --------------------------------------------------------------------------------------------------

    def _end(self, block_id: BlockId) -> BlockEnd:
        with self._translated(block_id):
            try:
                return BlockEnd.decode(self._pool.xattr(_name(block_id), END))
            except OSError as error:
                if error.errno == errno.ENODATA:
                    raise Corrupt(
                        f"block {block_id.hex()} has no xattr {END}: it was not made by this program"
                    ) from error
                raise

    def _refused(self, block_id: BlockId, at_stripe: int) -> Conflict | ConfigError:
        """Why an append was refused."""
        end = self._end(block_id)
        if end.sealed:
            return Conflict(f"block {block_id.hex()} is sealed")
        if end.stripes != at_stripe:
            return Conflict(f"block {block_id.hex()} ends at stripe {end.stripes}, not at {at_stripe}: seal it")
        with self._translated(block_id):
            geometry = self._pool.xattr(_name(block_id), GEOMETRY)
        if geometry != _geometry_value(self._geometry):
            return ConfigError(
                f"block {block_id.hex()} was created for the geometry {geometry.decode(errors='replace')}"
            )
        return Conflict(f"block {block_id.hex()} changed during the append: seal it")

    def _check_store(self) -> None:
        """Raise ConfigError unless the namespace was initialised for this geometry."""
        stored = read_mark(self._pool, STORE_OBJECT, GEOMETRY)
        wanted = _geometry_value(self._geometry)
        if stored != wanted:
            raise ConfigError(
                f"the block store in Ceph pool {self._pool.name} has the geometry {stored.decode(errors='replace')},"
                f" the configuration says {wanted.decode()}: set the configuration to the store's geometry, or"
                " initialise a new store in another pool or namespace"
            )

    @contextmanager
    def _translated(self, block_id: BlockId) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"block {block_id.hex()} does not exist") from error
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise Conflict(f"block {block_id.hex()} does not end at a whole stripe: seal it") from error
            raise port_error(f"block {block_id.hex()} in Ceph pool {self._pool.name}", error) from error


def _name(block_id: BlockId) -> str:
    return block_id.hex()


def _geometry_value(geometry: Geometry) -> bytes:
    return " ".join(["1", *(f"{name}={value}" for name, value in asdict(geometry).items())]).encode()
