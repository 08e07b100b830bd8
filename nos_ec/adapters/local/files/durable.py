"""Writes files and folders that survive a power cut, and translates the operating system's errors for callers.

A file is durable when both its bytes and the folder entry that names it were fsynced.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nos_ec.adapters.file_system import NO_SPACE, READ_ONLY, make_one_folder, open_new, reason
from nos_ec.core.errors import FREE_SPACE, NoSpace, Transient
from nos_ec.core.ids import BlockId

_DENIED = frozenset({errno.EACCES, errno.EPERM})


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, durably. An existing folder is not changed. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    make_one_folder(path)
    sync_folder(path.parent)


def make_folders(parent: Path, names: Sequence[str]) -> None:
    """Create these folders in `parent` with one fsync for all. Creates `parent` if it is missing. Raises OSError."""
    make_folder(parent)
    for name in names:
        make_one_folder(parent / name)
    sync_folder(parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep out other processes that lock this folder, after waiting for them. The end of the process releases the lock,
    too. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file. Durable on return; after a crash it has either the old or the new content. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    fd = open_new(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        write_at(fd, [data], 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def write_at(fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    """Write all buffers one after another, starting at byte `offset`. Raises OSError.

    A full disk first causes a short write; ENOSPC comes only when the rest is tried.
    """
    rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while rest:
        written = os.pwritev(fd, rest, offset)
        offset += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Return the bytes of a range, or fewer if the file ends earlier. Raises OSError.

    A damaged disk first causes a short read; EIO comes only when the rest is tried.
    """
    found = bytearray()
    while len(found) < length and (piece := os.pread(fd, length - len(found), offset + len(found))):
        found += piece
    return bytes(found)


@contextmanager
def translated(action: str, block_id: BlockId | None = None) -> Iterator[None]:
    """Translate OSError into NoSpace or Transient, with a message that starts with `action` and includes advice."""
    try:
        yield
    except OSError as error:
        raise as_port_error(action, error, block_id) from error


def as_port_error(action: str, error: OSError, block_id: BlockId | None = None) -> Transient:
    """Return the error that a port declares for this error of the operating system."""
    if error.errno in NO_SPACE:
        why = error.strerror if error.filename is None else reason(error, Path(os.fsdecode(error.filename)))
        return NoSpace(f"{action}: {why}; {FREE_SPACE}, or add space", block_id=block_id)
    advice = "check that the disk is mounted and writable, then try again"
    if error.errno == errno.EROFS:
        advice = READ_ONLY
    if error.errno in _DENIED:
        what = error.filename or "it"
        advice = f"check owner and mode of {what} and of its folders, and which user runs this process"
    return Transient(f"{action}: {error.strerror or error}; {advice}", block_id=block_id)
