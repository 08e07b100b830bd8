"""Files and folders that survive a power cut, and what the operating system's errors mean to a caller.

A file is durable when its bytes were fsynced and the folder entry that names it was fsynced too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nos_ec.core.errors import NoSpace, Transient

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""EFBIG too: a file size limit of the process or the filesystem. Only the operator can give room."""


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Make a folder and the parents it lacks, durably; one that exists is left as it is. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def make_folders(parent: Path, names: Sequence[str]) -> None:
    """Make these folders in `parent` (made if it lacks) with one fsync for all. Raises OSError."""
    make_folder(parent)
    for name in names:
        (parent / name).mkdir(exist_ok=True)
    sync_folder(parent)


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file: durable on return, and the old or the new content after a crash. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_at(fd, [data], 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def write_at(fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    """Write all of the buffers one behind the other from `offset` (bytes). Raises OSError.

    A full disk first shows as a short write, and as ENOSPC only when the rest is tried.
    """
    rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while rest:
        written = os.pwritev(fd, rest, offset)
        offset += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn OSError into NoSpace or Transient whose message starts with `action` and says what to do."""
    try:
        yield
    except OSError as error:
        raise as_port_error(action, error) from error


def as_port_error(action: str, error: OSError) -> Transient:
    """The error a port declares for this one of the operating system."""
    if error.errno in NO_SPACE:
        return NoSpace(f"{action}: {error.strerror}; add space or let garbage collection make room")
    return Transient(f"{action}: {error.strerror or error}; check that the disk is there and writable, then try again")
