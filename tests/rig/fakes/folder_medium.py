"""A medium of the landing log in a folder, for tests that kill processes. It syncs nothing: use it where no power is
cut.

    root/<segment id, hex>          the batches, each where it belongs, and the footer
    root/<segment id, hex>.sealed   once it is sealed: where the batches end, in decimal

Where the limits say `appends_create_and_seal`, the file appears with its first batch, and with the mark if that is its
last.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nos_ec.core.errors import Conflict, NotFound, Transient
from nos_ec.core.ids import SegmentId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.segment_medium import Buffer, DeviceStates, MediumLimits, Seal, UnreadableSlot
from tests.rig.fakes.memory_medium import SMALL

_SEALED = ".sealed"
_FREE_BYTES = 1 << 40


class FolderMedium:
    """A `SegmentMedium`. Appends and seals of a segment lock its file."""

    def __init__(self, root: Path, limits: MediumLimits = SMALL) -> None:
        self._root = root
        self._limits = limits
        self._writers: dict[SegmentId, FolderWriter] = {}

    @property
    def limits(self) -> MediumLimits:
        """See the port."""
        return self._limits

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> FolderWriter:
        """See the port."""
        writer = self._writers[segment] = FolderWriter(self, segment)
        if not self._limits.appends_create_and_seal:
            self.begin(segment, b"")
        return writer

    def begin(self, segment: SegmentId, batch: bytes) -> None:
        """Make the file of a segment, with a batch. Raises Conflict when it exists."""
        path = self._path(segment)
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        temporary.write_bytes(bytes(self._limits.start) + batch)
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            raise Conflict(f"segment {segment.hex()} exists") from None
        finally:
            temporary.unlink()

    def append(self, segment: SegmentId, offset: int, batch: bytes) -> None:
        """Write a batch into the file of a segment. Raises Conflict when it is sealed or gone."""
        path = self._path(segment)
        try:
            with _locked(path) as fd:
                if path.with_name(path.name + _SEALED).exists():
                    raise Conflict(f"segment {path.name} was sealed")
                os.pwrite(fd, batch, offset)
        except NotFound as error:
            raise Conflict(str(error)) from None

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
        writer = self._writers.get(segment)
        if self._limits.appends_create_and_seal and not path.exists():
            if writer is not None and writer.end_before_first_append():
                return 0
            if writer is None or not writer.begun:
                with suppress(FileExistsError):
                    path.touch(exist_ok=False)
        self._writers.pop(segment, None)
        with _locked(path):
            if not sealed.exists():
                end = -(-path.stat().st_size // self._limits.align) * self._limits.align
                temporary = sealed.with_name(f"{sealed.name}.{os.getpid()}")
                temporary.write_text(str(end))
                temporary.rename(sealed)
                with path.open("r+b") as file:
                    os.pwrite(file.fileno(), b"".join(footer or ()), end)
        return int(sealed.read_text())

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """See the port."""
        with _locked(self._path(segment)) as fd:
            if os.pread(fd, len(new), offset) == expected:
                os.pwrite(fd, new, offset)

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """See the port."""
        for segment in segments:
            beat(0)
            path = self._path(segment)
            path.unlink(missing_ok=True)
            path.with_name(path.name + _SEALED).unlink(missing_ok=True)
        return {}

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:
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

    def settle_slot(self, found: UnreadableSlot, epoch: int | None) -> bool:
        """See the port."""
        return False

    def probe(self) -> None:
        """See the port."""

    def close(self) -> None:
        """See the port."""

    def _path(self, segment: SegmentId) -> Path:
        return self._root / segment.hex()


class FolderWriter:
    """A `SegmentWriter` of it."""

    def __init__(self, medium: FolderMedium, segment: SegmentId) -> None:
        self._medium = medium
        self._segment = segment
        self._lock = threading.Lock()
        self._tried = self._ended = False
        self.begun = False
        """Whether it has created its file."""

    def end_before_first_append(self) -> bool:
        """Refuse all appends, if none was tried. Returns whether that is so."""
        with self._lock:
            self._ended = self._ended or not self._tried
            return self._ended

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """See the port."""
        with self._lock:
            if self._ended:
                raise Conflict(f"segment {self._segment.hex()} was sealed")
            self._tried = True
        limits = self._medium.limits
        if limits.appends_create_and_seal and offset == limits.start:
            self._medium.begin(self._segment, b"".join(batch))
            self.begun = True
        else:
            self._medium.append(self._segment, offset, b"".join(batch))
        if seal is not None:
            self._medium.seal(self._segment, seal.footer, seal.records)

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
