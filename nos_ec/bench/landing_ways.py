"""Ways to make the bytes of PUTs durable, without rows, and bare writes of the same bytes."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from nos_ec.bench.bare import remove_all
from nos_ec.bench.callers import call_all
from nos_ec.bench.meter import Instruments
from nos_ec.bench.objects import Piece
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import LandingId
from nos_ec.engine.upkeep.reaper import BATCH_OBJECTS

BARE_FILE_BYTES = 256 << 20
BARE_OBJECT_BYTES = 16 << 20
"""A bare writer continues in another RADOS object after this many bytes."""
CLEANUP_IN_FLIGHT = 32

Copy = tuple[LandingId, int]
"""A landed copy and its size in bytes."""


class LandingWay(Protocol):
    """A way to land objects. `land` is called from several threads at once, the other methods from one thread."""

    def prepare(self) -> None:
        """Prepare a round. This is not measured. Raises NosError."""

    def land(self, piece: Piece) -> Copy:
        """Land an object; durable on return. Raises NosError."""

    def writes(self, callers: int) -> tuple[Sequence[int], int]:
        """Return the writes since the last call: the bytes of each write, and the maximum number of concurrent writes
        for this many callers."""

    def read_all(self, copies: Sequence[Copy]) -> None:
        """Read copies as a consumer does. Raises NosError."""

    def delete_all(self, copies: Sequence[Copy]) -> None:
        """Release the space of copies, as the reaper does. Raises Transient."""


class OneByOne:
    """The landing store: one RADOS object or one file for each PUT, written by its caller."""

    def __init__(self, system: System, instruments: Instruments) -> None:
        self._system = system
        self._landing = system.landing
        self._timer = instruments.timer
        self._sizes: list[int] = []

    def prepare(self) -> None:
        """See LandingWay."""

    def land(self, piece: Piece) -> Copy:
        """See LandingWay."""
        landing_id = self._system.new_landing_id()
        data = bytes(piece.view)
        self._landing.put(landing_id, data)
        self._sizes.append(len(data))
        return landing_id, len(data)

    def writes(self, callers: int) -> tuple[Sequence[int], int]:
        """See LandingWay."""
        sizes, self._sizes = self._sizes, []
        return sizes, callers

    def read_all(self, copies: Sequence[Copy]) -> None:
        """See LandingWay."""
        call_all(self._system.settings.consumer.read_threads, copies, self._read, self._timer)

    def _read(self, copy: Copy) -> None:
        landing_id, size = copy
        if len(self._landing.read(landing_id)) != size:
            raise Transient(f"bench: landing copy {landing_id.hex()} is not of {size} bytes")

    def delete_all(self, copies: Sequence[Copy]) -> None:
        """See LandingWay."""
        for first in range(0, len(copies), BATCH_OBJECTS):
            failed = self._landing.delete_many([landing_id for landing_id, _ in copies[first : first + BATCH_OBJECTS]])
            for error in failed.values():
                raise error


# --- bare writes --------------------------------------------------------------------------------------
class BareWriter(Protocol):
    """Writes bytes durably and does nothing else. `write` is called from several threads at once."""

    def write(self, data: bytes) -> None:
        """Write `data`; durable on return. Raises OSError."""

    def clear(self) -> None:
        """Remove everything written."""


class BareAppends:
    """Appends to RADOS objects; each thread has its own. `pool` is a handle of the binding."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._numbers = itertools.count()
        self._names: list[str] = []
        self._own = threading.local()

    def write(self, data: bytes) -> None:
        """See BareWriter."""
        own = self._own
        if getattr(own, "left", 0) < len(data):
            own.name, own.left = f"bare-{next(self._numbers)}", BARE_OBJECT_BYTES
            self._names.append(own.name)
        self._pool.append(own.name, data)
        own.left -= len(data)

    def clear(self) -> None:
        """See BareWriter."""
        names, self._names = self._names, []
        self._own = threading.local()
        remove_all(self._pool, names, CLEANUP_IN_FLIGHT)


class BareFile:
    """Writes whole pages to consecutive places of a preallocated file. `direct` is whether the file system can bypass
    the page cache, which is then done."""

    def __init__(self, path: Path) -> None:
        zeros = bytes(1 << 20)
        with path.open("wb") as file:
            for _ in range(BARE_FILE_BYTES // len(zeros)):
                file.write(zeros)
            file.flush()
            os.fsync(file.fileno())
        self.direct = True
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_DSYNC | os.O_DIRECT)
        except OSError:
            self.direct = False
            self._fd = os.open(path, os.O_WRONLY | os.O_DSYNC)
        self._lock = threading.Lock()
        self._end = 0
        self._own = threading.local()

    def write(self, data: bytes) -> None:
        """See BareWriter."""
        size = -(-len(data) // PAGE) * PAGE
        buffer = self._buffer(size)
        buffer[: len(data)] = data
        with self._lock:
            if self._end + size > BARE_FILE_BYTES:
                self._end = 0
            at, self._end = self._end, self._end + size
        with memoryview(buffer) as view, view[:size] as page:
            os.pwrite(self._fd, page, at)

    def _buffer(self, size: int) -> mmap.mmap:
        """Return page-aligned memory of this thread."""
        own = self._own
        if getattr(own, "size", 0) < size:
            own.buffer, own.size = mmap.mmap(-1, size), size
        found: mmap.mmap = own.buffer
        return found

    def clear(self) -> None:
        """See BareWriter."""
        with self._lock:
            self._end = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@contextmanager
def bare_writer(system: System, instruments: Instruments) -> Iterator[BareWriter]:
    """Yields a bare writer on the medium of the landing store of `system`: in its pool and namespace, or on its
    disk."""
    ceph = system.settings.ceph
    if instruments.osds is not None:
        with instruments.osds.bare_pools(ceph.namespace, ceph.landing_pool) as (pool,):
            yield BareAppends(pool)
        return
    path = system.settings.store.root / "bare"
    file = BareFile(path)
    try:
        yield file
    finally:
        file.close()
        with suppress(FileNotFoundError):
            path.unlink()
