"""Operations on the objects of one pool: atomic writes of several steps, and reads of several ranges at once.

A write operation is one RADOS transaction: all of its steps are done on all replicas or shards, or none is.
Failures are raised as OSError with librados' errno; the stores say what each means.
"""

from __future__ import annotations

import ctypes as c
import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Self

from nos_ec.adapters.rados import librados
from nos_ec.adapters.rados.failures import rados_error
from nos_ec.core.errors import ConfigError

BATCH_EXTENTS_MAX = 128
BATCH_BYTES_MAX = 4 << 20
"""One read operation has at most so many ranges and, unless a single range is longer, bytes."""
READS_IN_FLIGHT_MAX = 4
"""Read operations one call has under way at a time; it bounds the memory of a call and its share of an OSD's queue."""

REMOVALS_IN_FLIGHT_MAX = 32
"""Removals one call has under way at a time. They are small, and wait for the OSDs' journals."""

XATTR_BYTES_MAX = 4096
"""Longest xattr that is read; ours have some 100 bytes."""

Buffer = bytes | bytearray | memoryview
Step = Callable[["librados.Library", "librados.Handle"], None]


class Pool:
    """One namespace of one pool. Made by RadosCluster.open_pool. Safe to call from several threads."""

    def __init__(self, library: librados.Library, cluster: librados.Handle, handle: librados.Handle, name: str) -> None:
        self._library = library
        self._cluster = cluster
        self._handle: librados.Handle | None = handle
        self._id: int = library.rados_ioctx_get_id(handle)
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.rados_ioctx_destroy(handle)

    @property
    def alignment(self) -> int:
        """Bytes that every append must be a multiple of; 0 when the pool takes any."""
        alignment = c.c_uint64()
        _check(self._library.rados_ioctx_pool_required_alignment2(self._open(), c.byref(alignment)))
        return alignment.value

    def allocated_bytes(self) -> int:
        """Bytes allocated on all OSDs, all namespaces together, as the monitors last heard (some seconds ago)."""
        stat = librados.PoolStat()
        _check(self._library.rados_ioctx_pool_stat(self._open(), c.byref(stat)))
        return int(stat.num_bytes)

    # --- writing --------------------------------------------------------------------------------------

    def write(self, name: str, *steps: Step) -> None:
        """Do all steps on object `name` in one transaction; durable on return. Raises OSError, and then did nothing -
        except for ETIMEDOUT, after which the transaction may have been done or may yet be."""
        operation = self._library.rados_create_write_op()
        try:
            for step in steps:
                step(self._library, operation)
            code = self._library.rados_write_op_operate(operation, self._open(), name.encode(), None, librados.FULL_TRY)
            self._check(code)
        finally:
            self._library.rados_release_write_op(operation)

    def remove_many(self, names: Sequence[str]) -> dict[str, OSError]:
        """Remove objects, several at a time; durable on return. Those that may still be there, each with the reason;
        one that was not there is no failure. Raises ConfigError when the pool itself is gone."""
        waiting: deque[_Removal] = deque()
        failed: dict[str, OSError] = {}
        try:
            for name in names:
                if len(waiting) == REMOVALS_IN_FLIGHT_MAX:
                    self._collect_removal(waiting, failed)
                waiting.append(_Removal(self._library, self._open(), name))
            while waiting:
                self._collect_removal(waiting, failed)
        finally:
            for removal in waiting:
                removal.finish()
        return failed

    def _collect_removal(self, waiting: deque[_Removal], failed: dict[str, OSError]) -> None:
        removal = waiting.popleft()
        try:
            self._check(removal.finish())
        except FileNotFoundError:
            return
        except OSError as error:
            failed[removal.name] = error

    # --- reading --------------------------------------------------------------------------------------

    def read_many(self, name: str, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """What lies at these (offset, length) ranges, shorter where the object ends. Raises OSError."""
        waiting: deque[_ReadBatch] = deque()
        found: list[bytes] = []
        try:
            for some in _batches(extents):
                if len(waiting) == READS_IN_FLIGHT_MAX:
                    self._collect(waiting, found)
                waiting.append(_ReadBatch(self._library, self._open(), name, some))
            while waiting:
                self._collect(waiting, found)
        finally:
            # librados writes into the buffers of what is under way: they must outlive it, whatever was raised.
            for batch in waiting:
                batch.finish()
        return found

    def _collect(self, waiting: deque[_ReadBatch], found: list[bytes]) -> None:
        batch = waiting.popleft()
        self._check(batch.finish())
        found.extend(batch.parts())

    def read_whole(self, name: str, first_read_bytes: int) -> bytes:
        """A whole object that nobody changes: one operation up to `first_read_bytes`, two for a longer one.
        Raises OSError."""
        size = c.c_uint64()
        with _ReadBatch(self._library, self._open(), name, [(0, first_read_bytes)], size) as batch:
            self._check(batch.finish())
            (start,) = batch.parts()
        if size.value <= first_read_bytes:
            return start
        return b"".join([start, *self.read_many(name, [(first_read_bytes, size.value - first_read_bytes)])])

    def size_of(self, name: str) -> int:
        """Bytes of an object. Raises OSError."""
        size = c.c_uint64()
        with _ReadBatch(self._library, self._open(), name, [], size) as batch:
            self._check(batch.finish())
        return size.value

    def xattr(self, name: str, key: str) -> bytes:
        """One xattr. Raises OSError: ENOENT without the object, ENODATA without the xattr."""
        buffer = c.create_string_buffer(XATTR_BYTES_MAX)
        length = self._library.rados_getxattr(self._open(), name.encode(), key.encode(), buffer, XATTR_BYTES_MAX)
        self._check(length)
        return buffer.raw[:length]

    def names(self) -> Iterator[str]:
        """The objects of the namespace, in no order. Raises OSError. Names that are no UTF-8 are not ours: skipped."""
        listing = librados.Handle()
        self._check(self._library.rados_nobjects_list_open(self._open(), c.byref(listing)))
        try:
            while (entry := self._next_name(listing)) is not None:
                try:
                    yield entry.decode()
                except UnicodeDecodeError:
                    continue
        finally:
            self._library.rados_nobjects_list_close(listing)

    def _next_name(self, listing: librados.Handle) -> bytes | None:
        entry, entry_size = c.c_void_p(), c.c_size_t()
        code = self._library.rados_nobjects_list_next2(
            listing, c.byref(entry), None, None, c.byref(entry_size), None, None
        )
        if code == -errno.ENOENT:
            return None
        self._check(code)
        return c.string_at(entry, entry_size.value)

    # --------------------------------------------------------------------------------------------------

    def _open(self) -> librados.Handle:
        if self._handle is None:
            raise ValueError(f"pool {self.name} is closed")
        return self._handle

    def _check(self, code: int) -> None:
        """Raise OSError for a negative code; ConfigError when an object is missing because its pool is."""
        if code == -errno.ENOENT and self._library.rados_pool_lookup(self._cluster, self.name.encode()) != self._id:
            raise ConfigError(f"Ceph pool {self.name} was deleted or renamed while it was in use: restore it")
        _check(code)


class _ReadBatch:
    """A read operation under way: some ranges of one object and, if asked for, its size."""

    def __init__(
        self,
        library: librados.Library,
        pool: librados.Handle,
        name: str,
        extents: Sequence[tuple[int, int]],
        size: c.c_uint64 | None = None,
    ) -> None:
        self._library = library
        lengths = [length for _, length in extents]
        self._starts = list(accumulate(lengths, initial=0))
        self._buffer = (c.c_char * max(1, self._starts[-1]))()
        self._got = (c.c_size_t * max(1, len(extents)))()
        self._codes = (c.c_int * (len(extents) + 1))()
        self._count = len(extents)
        self._size = size  # kept alive with the other buffers
        self._code: int | None = None
        self._operation = library.rados_create_read_op()
        self._completion = librados.Handle()
        library.rados_read_op_assert_exists(self._operation)
        if size is not None:
            library.rados_read_op_stat(self._operation, c.byref(size), None, self._address_of(self._codes, self._count))
        for number, (offset, length) in enumerate(extents):
            # To librados a length of zero means the whole object.
            if length:
                library.rados_read_op_read(
                    self._operation, offset, length, self._address_of(self._buffer, self._starts[number]),
                    self._address_of(self._got, number), self._address_of(self._codes, number),
                )  # fmt: skip
        _check(library.rados_aio_create_completion2(None, None, c.byref(self._completion)))
        code = library.rados_aio_read_op_operate(self._operation, pool, self._completion, name.encode(), 0)
        if code < 0:
            self._release(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> int:
        """Wait for the end; the return code. Idempotent. Bounded by the time limit of operations."""
        if self._code is None:
            self._library.rados_aio_wait_for_complete(self._completion)
            self._release(self._library.rados_aio_get_return_value(self._completion))
        assert self._code is not None
        return self._code

    def _release(self, code: int) -> None:
        self._code = code if code < 0 else min(self._codes, default=0)
        self._library.rados_aio_release(self._completion)
        self._library.rados_release_read_op(self._operation)

    @staticmethod
    def _address_of(array: c.Array[Any], number: int) -> int:
        return c.addressof(array) + number * c.sizeof(array) // len(array)

    def parts(self) -> list[bytes]:
        """What each range gave."""
        view = memoryview(self._buffer).cast("B")
        return [
            bytes(view[start : start + got])
            for start, got in zip(self._starts[: self._count], self._got[: self._count], strict=True)
        ]


class _Removal:
    """The removal of one object, under way."""

    def __init__(self, library: librados.Library, pool: librados.Handle, name: str) -> None:
        self.name = name
        self._library = library
        self._code: int | None = None
        self._operation = library.rados_create_write_op()
        self._completion = librados.Handle()
        library.rados_write_op_remove(self._operation)
        _check(library.rados_aio_create_completion2(None, None, c.byref(self._completion)))
        code = library.rados_aio_write_op_operate(
            self._operation, pool, self._completion, name.encode(), None, librados.FULL_TRY
        )
        if code < 0:
            self._release(code)

    def finish(self) -> int:
        """Wait for the end; the return code. Idempotent. Bounded by the time limit of operations."""
        if self._code is None:
            self._library.rados_aio_wait_for_complete(self._completion)
            self._release(self._library.rados_aio_get_return_value(self._completion))
        assert self._code is not None
        return self._code

    def _release(self, code: int) -> None:
        self._code = code
        self._library.rados_aio_release(self._completion)
        self._library.rados_release_write_op(self._operation)


# --- steps of a write -------------------------------------------------------------------------------------


def must_exist() -> Step:
    """Fail with ENOENT when the object is not there."""
    return lambda library, operation: library.rados_write_op_assert_exists(operation)


def must_be_new() -> Step:
    """Create the object; fail with EEXIST when it is there."""
    return lambda library, operation: library.rados_write_op_create(operation, librados.CREATE_EXCLUSIVE, None)


def xattr_must_be(key: str, value: bytes) -> Step:
    """Fail with ECANCELED when the xattr has another value (or, by Ceph's version, ENODATA when there is none)."""
    return lambda library, operation: library.rados_write_op_cmpxattr(
        operation, key.encode(), librados.COMPARE_EQUAL, value, len(value)
    )


def set_xattr(key: str, value: bytes) -> Step:
    """Set an xattr."""
    return lambda library, operation: library.rados_write_op_setxattr(operation, key.encode(), value, len(value))


def append(data: Buffer) -> Step:
    """Append bytes, which librados copies."""
    return lambda library, operation: library.rados_write_op_append(operation, _address(data), len(data))


def write_full(data: Buffer) -> Step:
    """Make these bytes the object's content."""
    return lambda library, operation: library.rados_write_op_write_full(operation, _address(data), len(data))


def remove() -> Step:
    """Remove the object; fail with ENOENT when it is not there."""
    return lambda library, operation: library.rados_write_op_remove(operation)


def _address(data: Buffer) -> bytes | c.Array[c.c_char]:
    """What ctypes takes for a pointer to the bytes. Only read-only views that are no bytes are copied."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data).cast("B")
    if view.readonly or not len(view):
        return bytes(view)
    return (c.c_char * len(view)).from_buffer(view)


def _batches(extents: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """In order, in as many as the limits ask for; one empty batch for no extents, as the object must still exist."""
    batch: list[tuple[int, int]] = []
    size_bytes = 0
    for extent in extents:
        if batch and (len(batch) == BATCH_EXTENTS_MAX or size_bytes + extent[1] > BATCH_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(extent)
        size_bytes += extent[1]
    yield batch


def _check(code: int) -> None:
    if code < 0:
        raise rados_error(code)
