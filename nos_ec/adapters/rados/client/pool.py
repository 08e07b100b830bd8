"""Operations on the objects of one pool: atomic writes of several steps, and reads of several ranges at once.

A write is one RADOS transaction: all of its steps (steps.py) are done on all replicas or shards, or none is. Failures
are raised as OSError with librados' errno; the stores decide what each means.

Each object has a version. Every transaction on the object raises it, and no later object of the same name gets the same
version again.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from nos_ec.adapters.rados.client import binding
from nos_ec.adapters.rados.client.binding import Completion, Ioctx, ListedObject, Rados
from nos_ec.adapters.rados.client.failures import rados_error
from nos_ec.adapters.rados.client.steps import Step, remove
from nos_ec.core.errors import ConfigError
from nos_ec.ports.clock import Beat, unwatched

READS_IN_FLIGHT_MAX = 32
READ_BYTES_IN_FLIGHT_MAX = 16 << 20
"""The maximum that one call for several ranges has in flight at a time, unless a single range is longer. The two limits
bound the memory of a call and its share of an OSD's queue."""

WRITES_IN_FLIGHT_MAX = 64
WRITE_BYTES_IN_FLIGHT_MAX = 16 << 20
"""The same limits for one call that writes several objects. A write that gets no answer stays in flight, and delays no
other write until that many are in flight."""

REMOVALS_IN_FLIGHT_MAX = 32
"""The maximum number of removals that one call has in flight at a time. They are small, and wait for the OSDs'
journals."""

_PROBE = "nos_ec.probe"
"""An object that need not exist. Looking it up shows whether this client has access."""


class Pool:
    """One namespace of one pool. Created by RadosCluster.open_pool. Safe to call from several threads.

    `op_timeout_s` is the connection's time limit for operations.
    """

    def __init__(self, rados: Rados, ioctx: Ioctx, name: str, namespace: str, op_timeout_s: int) -> None:
        self.name = name
        self._rados = rados
        self._namespace = namespace
        self._op_timeout_s = op_timeout_s
        self._ioctx = ioctx
        self._id = ioctx.get_pool_id()
        self._idle: list[Ioctx] = []
        self._closing = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all handles. Idempotent."""
        with self._closing:
            self._closed = True
            idle, self._idle = self._idle, []
        for ioctx in (self._ioctx, *idle):
            ioctx.close()

    @property
    def alignment(self) -> int:
        """Return the size in bytes that every append must be a multiple of; 0 if the pool accepts any size."""
        with self._errors():
            return self._ioctx.alignment() or 0

    def allocated_bytes(self) -> int:
        """Return the bytes allocated on all OSDs for all namespaces together, as last reported to the monitors (some
        seconds ago)."""
        with self._errors():
            return self._ioctx.get_stats()["num_bytes"]

    # --- writing --------------------------------------------------------------------------------------

    def write(self, name: str, *steps: Step) -> int:
        """Carry out all steps on object `name` in one transaction. Durable on return. Returns the object's new version.

        Raises OSError if nothing was done. ETIMEDOUT is the exception: the transaction may have been done, or may still
        be done later.
        """
        with self._errors(), self._own_ioctx() as ioctx, binding.load().WriteOpCtx() as operation:
            for step in steps:
                step(operation)
            ioctx.operate_write_op(operation, name, 0, binding.FULL_TRY)
            return ioctx.get_last_version()

    def write_many(self, writes: Iterable[tuple[str, Sequence[Step], int]]) -> dict[str, OSError]:
        """Carry out (name, steps, bytes of data), each in a transaction of its own as `write` does, several at a time.
        Durable on return. Returns the objects whose writes failed, each with the reason. Raises ConfigError when the
        pool itself is gone."""
        waiting: deque[tuple[str, Completion, int]] = deque()
        in_flight_bytes = 0
        failed: dict[str, OSError] = {}
        try:
            for name, doing, size_bytes in writes:
                while waiting and (
                    len(waiting) == WRITES_IN_FLIGHT_MAX or in_flight_bytes + size_bytes > WRITE_BYTES_IN_FLIGHT_MAX
                ):
                    in_flight_bytes -= self._collect_write(*waiting.popleft(), failed)
                try:
                    waiting.append((name, self._begin_write(name, doing), size_bytes))
                    in_flight_bytes += size_bytes
                except OSError as error:
                    failed[name] = error
            while waiting:
                self._collect_write(*waiting.popleft(), failed)
        finally:
            for _, write, _ in waiting:
                write.wait_for_complete()
        return failed

    def _begin_write(self, name: str, doing: Sequence[Step]) -> Completion:
        with self._errors(), binding.load().WriteOpCtx() as operation:
            for step in doing:
                step(operation)
            return self._ioctx.operate_aio_write_op(operation, name, flags=binding.FULL_TRY)

    def _collect_write(self, name: str, write: Completion, size_bytes: int, failed: dict[str, OSError]) -> int:
        """Wait for the end of a write. Returns its number of bytes."""
        write.wait_for_complete()
        try:
            with self._errors():
                _check(write)
        except OSError as error:
            failed[name] = error
        return size_bytes

    def remove_many(self, names: Sequence[str], beat: Beat = unwatched) -> dict[str, OSError]:
        """Remove objects, several at a time. Durable on return. Returns the objects that may still exist, each with the
        reason; a missing object is not a failure. `beat` is called for each object. Raises ConfigError when the pool
        itself is gone."""
        waiting: deque[tuple[str, Completion]] = deque()
        failed: dict[str, OSError] = {}
        try:
            for name in names:
                beat(0)
                if len(waiting) == REMOVALS_IN_FLIGHT_MAX:
                    self._collect_removal(*waiting.popleft(), failed)
                waiting.append((name, self._begin_write(name, [remove()])))
            while waiting:
                beat(0)
                self._collect_removal(*waiting.popleft(), failed)
        finally:
            for _, removal in waiting:
                removal.wait_for_complete()
        return failed

    def _collect_removal(self, name: str, removal: Completion, failed: dict[str, OSError]) -> None:
        removal.wait_for_complete()
        try:
            with self._errors():
                _check(removal)
        except FileNotFoundError:
            return
        except OSError as error:
            failed[name] = error

    # --- reading --------------------------------------------------------------------------------------

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return the bytes of a range, or fewer if the object ends earlier. Takes one operation. Raises OSError, and
        ValueError for an invalid range."""
        _check_range(offset, length)
        with self._errors():
            if not length:
                # To librados a length of 0 means the whole object.
                self._ioctx.stat(name)
                return b""
            return self._ioctx.read(name, length, offset)

    def read_many(self, name: str, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of these (offset, length) ranges, or fewer if the object ends earlier. Raises OSError, and,
        before anything is read, ValueError for an invalid range."""
        return list(self.each_read(name, extents))

    def each_read(self, name: str, extents: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Yields the results of `read_many` one after the other, so that the caller need not keep them. The caller must
        take all of them."""
        for offset, length in extents:
            _check_range(offset, length)
        if len(extents) == 1 or not any(length for _, length in extents):
            for offset, length in extents:
                yield self.read(name, offset, length)
            return
        waiting: deque[_Read] = deque()
        with self._errors():
            try:
                for offset, length in extents:
                    while waiting and not _has_room(waiting, length):
                        yield waiting.popleft().result()
                    waiting.append(_Read(self._ioctx, name, offset, length))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for read in waiting:
                    read.wait()

    def read_whole(self, name: str, first_read_bytes: int) -> bytes:
        """Return a whole object, which must not change meanwhile. Takes one operation if it is shorter than
        `first_read_bytes`, two if it is shorter than five times that, and so on. Raises OSError."""
        parts = [self.read(name, 0, first_read_bytes)]
        offset, asked = 0, first_read_bytes
        while len(parts[-1]) == asked:
            offset, asked = offset + asked, 4 * asked
            parts.append(self.read(name, offset, asked))
        return b"".join(parts)

    def size_of(self, name: str) -> int:
        """Return the size of an object in bytes. Raises OSError."""
        with self._errors():
            size, _ = self._ioctx.stat(name)
        return size

    def xattr(self, name: str, key: str) -> bytes:
        """Return the value of one xattr. Raises OSError: ENOENT without the object, ENODATA without the xattr."""
        with self._errors():
            return self._ioctx.get_xattr(name, key)

    def xattrs(self, name: str) -> tuple[dict[str, bytes], int]:
        """Return all xattrs of an object, and its version when it had them. Takes one operation. Raises OSError."""
        with self._errors(), self._own_ioctx() as ioctx:
            found = ioctx.get_xattrs(name)
            version = ioctx.get_last_version()
            return dict(found), version

    def names(self) -> Iterator[str]:
        """Yields the names of the objects of the namespace, in no order. Skips names that are not UTF-8, because they
        are not ours. Raises OSError."""
        with self._errors():
            listing = self._ioctx.list_objects()
        while (name := self._next_name(listing)) is not None:
            yield name
        self._check_listed(listing)

    def _next_name(self, listing: Iterator[ListedObject]) -> str | None:
        with self._errors():
            while True:
                try:
                    return next(listing).key
                except UnicodeDecodeError:
                    continue
                except StopIteration:
                    return None

    def _check_listed(self, listing: Iterator[ListedObject]) -> None:
        """Raise OSError unless the listing is complete. The binding ends a failed listing in the same way as a complete
        one.

        Therefore this requests the next name once more. A complete listing ends again at once. A failed one continues:
        it finds another name, or fails only after the time limit. Failures that come at once (a key without caps, a
        process on the blocklist, a deleted pool) affect every operation, so looking up the probe object fails as well.
        """
        begun = time.monotonic()
        more = self._next_name(listing)
        if more is not None or time.monotonic() - begun > self._op_timeout_s / 2:
            raise rados_error(-errno.ETIMEDOUT)
        try:
            self.size_of(_PROBE)
        except FileNotFoundError:
            return

    # --------------------------------------------------------------------------------------------------

    @contextmanager
    def _own_ioctx(self) -> Iterator[Ioctx]:
        """Lend a handle to one thread at a time, because a handle returns the version of its last operation."""
        try:
            ioctx = self._idle.pop()
        except IndexError:
            ioctx = self._rados.open_ioctx2(self._id)
            ioctx.set_namespace(self._namespace)
        try:
            yield ioctx
        finally:
            with self._closing:
                if not self._closed:
                    self._idle.append(ioctx)
            if self._closed:
                ioctx.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the binding's errors as OSError. Raises ConfigError when an object is missing because its pool is."""
        if self._closed:
            raise ValueError(f"pool {self.name} is closed")
        try:
            with binding.os_errors():
                yield
        except FileNotFoundError as error:
            if self._rados.pool_lookup(self.name) != self._id:
                raise ConfigError(
                    f"Ceph pool {self.name} was deleted or renamed while it was in use: restore it"
                ) from error
            raise


def _check_range(offset: int, length: int) -> None:
    """Raise ValueError for an invalid range, which is a bug in the caller and is not sent to the cluster."""
    if offset < 0 or length < 0:
        raise ValueError(f"range of {length} bytes at {offset}")


class _Read:
    """A read in flight."""

    def __init__(self, ioctx: Ioctx, name: str, offset: int, length: int) -> None:
        self.length = length
        self._found = b""
        # To librados a length of 0 means the whole object.
        self._completion = ioctx.aio_read(name, length, offset, self._take) if length else None

    def _take(self, completion: Completion, data: bytes | None) -> None:
        """Keep the result. Called in a thread of librados."""
        size = completion.get_return_value()
        if data is not None:
            # When 0 bytes were read, the binding passes on its whole buffer, which was never written to.
            self._found = data[:size]

    def wait(self) -> None:
        """Wait for the end of the read, at most the time limit of operations."""
        if self._completion is not None:
            self._completion.wait_for_complete_and_cb()

    def result(self) -> bytes:
        """Wait for the end of the read and return its bytes. Raises OSError."""
        self.wait()
        if self._completion is not None:
            _check(self._completion)
        return self._found


def _has_room(waiting: Collection[_Read], length: int) -> bool:
    in_flight_bytes = sum(read.length for read in waiting)
    return len(waiting) < READS_IN_FLIGHT_MAX and in_flight_bytes + length <= READ_BYTES_IN_FLIGHT_MAX


def _check(completion: Completion) -> None:
    if (code := completion.get_return_value()) < 0:
        raise rados_error(code)
