"""A table in shared memory that maps the slots of the landing log's devices to segments.

The headers of the slots on the devices are authoritative. The table is a file that every process maps, like the `-shm`
file of SQLite: the first user builds it anew from the headers, so that it need not survive anything. In addition to the
owner of each slot, it records whether the segment's writer may still append. Locks of its bytes (OFD locks, which end
with the process) are taken in this order:

- the lock of a segment: shared while its writer appends, exclusive while a process seals or releases it;
- the lock of the table, to change it, together with the headers on the devices;
- the lock of the users: shared while the log is open, so that the first and the last user know that they are alone.

A process that is killed while it changes headers leaves the table marked, and the next one that locks it reads them
again.

    offset                size  content
    0                     16    magic b"NLTB", zeros 4, counter of changes u64
    16                    1     1: a change is in progress
    17                    1     1: the superblocks do not record that all segments are sealed
    64 + d                1     1: the slots of device d are in the table
    4096 + d x 1 MiB      16 n  segment id (zeros: none), flags u64: 1 its writer may append; 2 header unreadable
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.devices.device_format import DEVICES_MAX, SLOTS_MAX
from nos_ec.adapters.local.files.durable import translated
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import SegmentId

LOCK_WAIT_S_MAX = 10.0
"""The longest wait for a lock. It is held for single writes, and while an unsealed segment is scanned for its end; a
longer wait means that a process was stopped in the middle of one."""

FILE = "slots-shm"

_MAGIC = b"NLTB"
_CHANGES = struct.Struct("<Q")
_CHANGES_AT = 8
_CHANGING_AT = 16
_UNCLEAN_AT = 17
_LOADED_AT = 64
_ENTRY = struct.Struct("<8sQ")
_NONE = bytes(8)
_WRITABLE = 1
_UNREADABLE = 2
_REGION = SLOTS_MAX * _ENTRY.size

_TABLE_LOCK = 0
_USERS_LOCK = 1
_FLOCK = struct.Struct("hhqqi4x")
_OFFSET_MAX = (1 << 63) - 1

Place = tuple[int, int]
"""The number of a device, and the number of a slot on it."""


class Slot(NamedTuple):
    """An entry of the table. `owner` is the segment in the slot; None when it is free or the owner is unknown.
    `is_unreadable` means that the header cannot be read, and the owner is the one of the first record in the slot."""

    owner: SegmentId | None
    is_writable: bool = False
    is_unreadable: bool = False

    @property
    def is_free(self) -> bool:
        """Return whether a segment may take the slot."""
        return self.owner is None and not self.is_unreadable


class SlotTable:
    """The mapped table of one open log. Safe to call from several threads. Methods that wait for a lock raise
    Transient."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        with translated(f"landing log {self.path}"):
            try:
                self._fd = open_new(self.path, os.O_RDWR)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                # Nothing writes to a read-only file system, so for reading a table private to this process is enough.
                self._fd = os.memfd_create(FILE, os.MFD_CLOEXEC)
                self.path = Path(f"/proc/self/fd/{self._fd}")
            try:
                size = PAGE + DEVICES_MAX * _REGION
                if os.fstat(self._fd).st_size < size:
                    os.ftruncate(self._fd, size)
                os.posix_fallocate(self._fd, 0, PAGE)
                self._map = mmap.mmap(self._fd, size)
            except BaseException:
                os.close(self._fd)
                raise

    def close(self) -> None:
        """Release the table and its locks."""
        self._map.close()
        os.close(self._fd)

    # --- users ------------------------------------------------------------------------------------
    def join(self) -> bool:
        """Become a user; the table must be locked. Returns True, and clears the table, when there is no other user."""
        alone = _try_lock(self._fd, fcntl.F_WRLCK, _USERS_LOCK)
        if alone or self._map[:4] != _MAGIC:
            self._map[: _LOADED_AT + DEVICES_MAX] = bytes(_LOADED_AT + DEVICES_MAX)
            self._map[:4] = _MAGIC
        _wait_for(self._fd, fcntl.F_RDLCK, _USERS_LOCK, self.path)
        return alone

    def leave(self) -> bool:
        """Return whether this is the last user; the table must be locked."""
        return _try_lock(self._fd, fcntl.F_WRLCK, _USERS_LOCK)

    # --- locks ------------------------------------------------------------------------------------
    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the table, to change it."""
        with self._held(fcntl.F_WRLCK, _TABLE_LOCK):
            yield

    @contextmanager
    def quiet(self, segment: SegmentId) -> Iterator[None]:
        """Hold the lock of a segment, which excludes its appends."""
        with self._held(fcntl.F_WRLCK, _lock_of(segment)):
            yield

    def append_lock(self, segment: SegmentId) -> AppendLock:
        """Return the lock that the segment's writer holds while it appends."""
        return AppendLock(self.path, segment)

    @contextmanager
    def _held(self, kind: int, what: int) -> Iterator[None]:
        # A separate open file description also excludes other threads.
        with translated(f"landing log {self.path}"):
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _wait_for(fd, kind, what, self.path)
            yield
        finally:
            os.close(fd)

    # --- changes ----------------------------------------------------------------------------------
    @contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the table while headers on the devices are changed; the table must be locked. An error leaves the
        mark."""
        self._map[_CHANGING_AT] = 1
        yield
        self._map[_CHANGING_AT] = 0

    @property
    def in_doubt(self) -> bool:
        """Return whether a change was begun and not completed; the table must be locked."""
        return bool(self._map[_CHANGING_AT])

    def settle(self) -> None:
        """Clear the mark, after all headers have been read again."""
        self._map[_CHANGING_AT] = 0

    @property
    def unclean(self) -> bool:
        """Return whether the superblocks record that segments are open."""
        return bool(self._map[_UNCLEAN_AT])

    @unclean.setter
    def unclean(self, value: bool) -> None:
        self._map[_UNCLEAN_AT] = value

    def is_loaded(self, device: int) -> bool:
        """Return whether the slots of a device are in the table."""
        return bool(self._map[_LOADED_AT + device])

    def load_device(self, device: int, slots: list[Slot]) -> None:
        """Enter the slots of a device as they were read; the table must be locked. Raises NoSpace."""
        with translated(f"landing log {self.path}"):  # a write to a hole of a mapped file on a full disk is fatal
            os.posix_fallocate(self._fd, _entry_at((device, 0)), len(slots) * _ENTRY.size)
        known = self.is_loaded(device)
        for number, slot in enumerate(slots):
            if not known:
                self.put_slot((device, number), Slot(None))
            self.enter_slot((device, number), slot)
        self._map[_LOADED_AT + device] = 1

    def unload_device(self, device: int) -> None:
        """Remove the slots of a device, which is a new one; the table must be locked."""
        self._map[_LOADED_AT + device] = 0

    def enter_slot(self, place: Place, found: Slot) -> None:
        """Enter a slot as it was read; the table must be locked. A segment's writer may append only if the table
        already allowed it."""
        before = self.slot(place)
        self.put_slot(place, found._replace(is_writable=before.is_writable and before.owner == found.owner))

    def put_slot(self, place: Place, slot: Slot) -> None:
        """Write the entry of a slot. The table must be locked."""
        at = _entry_at(place)
        flags = slot.is_writable * _WRITABLE | slot.is_unreadable * _UNREADABLE
        self._map[at : at + _ENTRY.size] = _ENTRY.pack(slot.owner or _NONE, flags)
        _CHANGES.pack_into(self._map, _CHANGES_AT, self.changes + 1)

    # --- looking up -------------------------------------------------------------------------------
    @property
    def changes(self) -> int:
        """Return a number that is different after each change."""
        (found,) = _CHANGES.unpack_from(self._map, _CHANGES_AT)
        return int(found)

    def slot(self, place: Place) -> Slot:
        """Return the entry of a slot."""
        return _slot_of(*_ENTRY.unpack_from(self._map, _entry_at(place)))

    def may_append(self, place: Place, segment: SegmentId) -> bool:
        """Return whether the slot belongs to the segment, and its writer was not fenced."""
        found = self.slot(place)
        return found.owner == segment and found.is_writable

    def find_segment(self, segment: SegmentId, device: int, slots: int) -> Place | None:
        """Return the place of a segment on a device with that many slots; None if it has none there."""
        first = at = _entry_at((device, 0))
        end = first + slots * _ENTRY.size
        while (at := self._map.find(segment, at, end)) >= 0:
            slot, rest = divmod(at - first, _ENTRY.size)
            if not rest:
                return device, slot
            at += 1
        return None

    def entries(self, device: int, slots: int) -> list[Slot]:
        """Return the entries of all slots of a device with that many slots."""
        first = _entry_at((device, 0))
        found = _ENTRY.iter_unpack(self._map[first : first + slots * _ENTRY.size])
        return [_slot_of(owner, flags) for owner, flags in found]


class AppendLock:
    """The lock of one segment for its writer. Not safe to call from several threads."""

    def __init__(self, path: Path, segment: SegmentId) -> None:
        self._path = path
        self._what = _lock_of(segment)
        with translated(f"landing log {path}"):
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def take(self) -> None:
        """Take the lock, which excludes processes that want to seal or release the segment. Raises Transient."""
        _wait_for(self._fd, fcntl.F_RDLCK, self._what, self._path)

    def drop(self) -> None:
        """Release the lock."""
        _set_lock(self._fd, fcntl.F_UNLCK, self._what)

    def close(self) -> None:
        """Release the lock, and close its file."""
        os.close(self._fd)


def _slot_of(owner: bytes, flags: int) -> Slot:
    return Slot(None if owner == _NONE else SegmentId(owner), bool(flags & _WRITABLE), bool(flags & _UNREADABLE))


def _entry_at(place: Place) -> int:
    device, slot = place
    return PAGE + device * _REGION + slot * _ENTRY.size


def _lock_of(segment: SegmentId) -> int:
    """Return the byte that represents a segment, far after the others. Locks need no bytes in the file, and 63 bits
    distinguish segments."""
    return min(max(int.from_bytes(segment, "big") & _OFFSET_MAX, _USERS_LOCK + 1), _OFFSET_MAX - 1)


def _set_lock(fd: int, kind: int, what: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, what, 1, 0))


def _try_lock(fd: int, kind: int, what: int) -> bool:
    try:
        _set_lock(fd, kind, what)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another process or thread holds it
        return False
    return True


def _wait_for(fd: int, kind: int, what: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S_MAX
    while not _try_lock(fd, kind, what):
        if time.monotonic() > deadline:
            raise Transient(f"landing log: a lock of {path} is held: look for a stopped process that uses this store")
        time.sleep(0.001)
