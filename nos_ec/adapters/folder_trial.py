"""Why a folder cannot be written, found by writing there. SQLite's errors do not say it."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from nos_ec.core.errors import FREE_SPACE, NoSpace, Transient

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""EFBIG is a file size limit of the process or the filesystem; like a full disk, only an operator can change it."""

NO_INODES = "no free inodes (its file system takes no further file, whatever space is free)"
READ_ONLY = "its file system is read-only; mount it writable again"

_CONTENT = b"nos_ec probe".ljust(1 << 16)


def write_error(folder: Path) -> OSError | None:
    """Write to a file without a name, which disappears when it is closed, and read it back. Returns the error; None if
    the folder can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            written = file.write(_CONTENT)
            if written < len(_CONTENT):
                file.write(_CONTENT[written:])
            os.fsync(file.fileno())
            if os.pread(file.fileno(), len(_CONTENT) + 1, 0) != _CONTENT:
                raise OSError(errno.EIO, "a file reads back differently")
    except OSError as error:
        return error
    return None


def lacks_inodes(path: Path) -> bool:
    """Whether the file system of a file or folder can take no further file. Some file systems have no fixed number of
    inodes: then False."""
    with suppress(OSError):
        found = os.statvfs(path if path.exists() else path.parent)
        return bool(found.f_files) and not found.f_favail
    return False


def unwritable(what: str, path: Path) -> Transient | None:
    """Why SQLite could not write a file, if that is because its folder has no space, quota or inodes, or is read-only:
    SQLite reports these as others do. `what` begins the message. Returns NoSpace or Transient, or None."""
    error = write_error(path.parent)
    if error is not None and error.errno in NO_SPACE:
        return NoSpace(f"{what}: {reason(error, path.parent)}; {FREE_SPACE}, or add some there")
    return Transient(f"{what}: {READ_ONLY}") if error is not None and error.errno == errno.EROFS else None


def reason(error: OSError, path: Path) -> str:
    """What to say of an error of the operating system about `path`."""
    if error.errno == errno.ENOSPC and lacks_inodes(path):
        return NO_INODES
    return error.strerror or str(error)
