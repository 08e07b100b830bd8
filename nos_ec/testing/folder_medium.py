"""A medium of the landing log in a folder, for tests that kill processes. It syncs nothing: use it where no power is
cut.

    root/<segment id, hex>          the batches, each where it belongs, and the footer
    root/<segment id, hex>.sealed   once it is sealed: where the batches end, in decimal
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from nos_ec.core.errors import Conflict, NotFound, Transient
from nos_ec.core.ids import SegmentId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.segment_medium import Buffer, DeviceStates, MediumLimits
from nos_ec.testing.memory_medium import SMALL

_SEALED = ".sealed"
_FREE_BYTES = 1 << 40


class FolderMedium:
    """A `SegmentMedium`. Appends and seals of a segment lock its file."""

    def __init__(self, root: Path, limits: MediumLimits = SMALL) -> None:
        self._root = root
        self._limits = limits

    @property
    def limits(self) -> MediumLimits:
        """See the port."""
        return self._limits

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> FolderWriter:
        """See the port."""
        try:
            with self._path(segment).open("xb") as file:
                file.truncate(self._limits.start)
        except FileExistsError:
            raise Conflict(f"segment {segment.hex()} exists") from None
        return FolderWriter(self._path(segment))

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        """See the port."""
        try:
            with self._path(segment).open("rb") as file:
                return [os.pread(file.fileno(), length, offset) for offset, length in ranges]
        except FileNotFoundError:
            raise NotFound(f"segment {segment.hex()} is not there") from None

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """See the port."""
        path = self._path(segment)
        sealed = path.with_name(path.name + _SEALED)
        with _locked(path):
            if not sealed.exists():
                end = -(-path.stat().st_size // self._limits.align) * self._limits.align
                temporary = sealed.with_name(f"{sealed.name}.{os.getpid()}")
                temporary.write_text(str(end))
                temporary.rename(sealed)
                with path.open("r+b") as file:
                    os.pwrite(file.fileno(), b"".join(footer or ()), end)
        return int(sealed.read_text())

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """See the port."""
        for segment in segments:
            beat(0)
            path = self._path(segment)
            path.unlink(missing_ok=True)
            path.with_name(path.name + _SEALED).unlink(missing_ok=True)
        return {}

    def segments(self) -> Iterator[SegmentId]:
        """See the port."""
        return (SegmentId(bytes.fromhex(path.name)) for path in sorted(self._root.iterdir()) if "." not in path.name)

    def free_bytes(self) -> int:
        """See the port."""
        return _FREE_BYTES

    def raw_bytes(self) -> int:
        """See the port."""
        return sum(self._path(segment).stat().st_size for segment in self.segments())

    def devices(self) -> DeviceStates | None:
        """See the port."""
        return None

    def probe(self) -> None:
        """See the port."""

    def close(self) -> None:
        """See the port."""

    def _path(self, segment: SegmentId) -> Path:
        return self._root / segment.hex()


class FolderWriter:
    """A `SegmentWriter` of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, offset: int, batch: Sequence[Buffer]) -> None:
        """See the port."""
        try:
            with _locked(self._path) as fd:
                if self._path.with_name(self._path.name + _SEALED).exists():
                    raise Conflict(f"segment {self._path.name} was sealed")
                os.pwrite(fd, b"".join(batch), offset)
        except NotFound as error:
            raise Conflict(str(error)) from None

    def close(self) -> None:
        """See the port."""


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Lock a segment, whose file is open meanwhile. Raises NotFound."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"segment {path.name} is not there") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)
