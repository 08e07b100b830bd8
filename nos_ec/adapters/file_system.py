"""Files of an embedded store and of SQLite: the owner of new files, and the reason why a folder cannot be written. The
reason is found by writing to the folder, because SQLite's errors do not contain it."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nos_ec.core.errors import FREE_SPACE, NoSpace, Transient

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""EFBIG means a file size limit of the process or the file system. As with a full disk, only an operator can help."""

NO_INODES = "no free inodes (its file system accepts no more files, however much space is free)"
READ_ONLY = "its file system is read-only; mount it writable again"

_CONTENT = b"nos_ec probe".ljust(1 << 16)


def open_new(path: Path, flags: int) -> int:
    """Open a file. If it is missing, it is created, and handed over to the owner of its folder. A symbolic link is
    refused, because in a folder of another user it may point to any file. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = os.open(path.name, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
        try:
            hand_over(fd, folder)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        error.filename = str(path)  # the whole path instead of the name within the folder
        raise
    finally:
        os.close(folder)
    return fd


def hand_over(fd: int, folder: int) -> None:
    """Give a new file that root has created the owner and mode of its folder, because a command run as root must not
    lock out the daemons, which run as another user. An empty file of root, left by a crash, is handed over as well.
    `folder` is the descriptor of the folder in which the file was opened without following a link.

    No other file may be given away: its name in a folder of another user may be a link to any file. Raises OSError.
    """
    if os.geteuid():
        return
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not (status.st_uid or status.st_size):
        above = os.fstat(folder)
        os.fchmod(fd, above.st_mode & 0o666)
        with suppress(PermissionError):  # in some containers and on NFS, root may not give files away
            os.fchown(fd, above.st_uid, above.st_gid)


def make_one_folder(path: Path) -> None:
    """Create a folder unless it exists. A folder that root creates belongs to the owner of its parent folder. Raises
    OSError."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    if not os.geteuid():
        above = path.parent.stat()
        with suppress(PermissionError):
            os.chown(path, above.st_uid, above.st_gid, follow_symlinks=False)


def identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file, which distinguishes it from another file of the same name; None if it does not
    exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def require_same_file(what: str, path: Path, opened: tuple[int, int] | None) -> None:
    """Check that a file was not replaced (by a restored backup, for example) while it was open: writes would go to a
    file without a name, which disappears with the last process that has it open. `opened` is its identity when it was
    opened; None if that is not known. `what` begins the message. Raises Transient."""
    if opened is not None and identity(path) != opened:
        raise Transient(
            f"{what}: it was moved, deleted or replaced while this process had it open: put the right file there, and"
            " start this process again"
        )


def misfits(root: Path) -> Iterator[Path]:
    """Yields the files below `root` that the users of their folder may not use: files of another owner that the
    folder's group cannot write. Files that are deleted meanwhile are skipped. Raises Transient."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                above, status = path.parent.stat(), path.lstat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Transient(f"{path}: {error.strerror}") from error
            shared = above.st_mode & 0o060
            owned = status.st_uid == above.st_uid and status.st_mode & 0o600 == 0o600
            if not owned and (status.st_gid != above.st_gid or not shared & 0o020 or shared & ~status.st_mode):
                yield path


def write_error(folder: Path) -> OSError | None:
    """Write to a file without a name, which disappears when it is closed, and read it back. Returns the error; None if
    the folder can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            written = file.write(_CONTENT)
            if written < len(_CONTENT):
                file.write(_CONTENT[written:])
            os.fsync(file.fileno())
            file.seek(0)
            if file.readall() != _CONTENT:
                raise OSError(errno.EIO, "a file reads back differently")
    except OSError as error:
        return error
    return None


def lacks_inodes(path: Path) -> bool:
    """Return whether the file system of a file or folder has no inode left for another file. Returns False for file
    systems without a fixed number of inodes."""
    with suppress(OSError):
        found = os.statvfs(path if path.exists() else path.parent)
        return bool(found.f_files) and not found.f_favail
    return False


def unwritable(what: str, path: Path) -> Transient | None:
    """Return NoSpace or Transient if SQLite could not write a file because its folder has no space, quota or inodes, or
    is read-only, and None otherwise. SQLite reports these like other errors. `what` begins the message."""
    error = write_error(path.parent)
    if error is not None and error.errno in NO_SPACE:
        return NoSpace(f"{what}: {reason(error, path.parent)}; {FREE_SPACE}, or add some there")
    return Transient(f"{what}: {READ_ONLY}") if error is not None and error.errno == errno.EROFS else None


def reason(error: OSError, path: Path) -> str:
    """Return a description of an error of the operating system about `path`."""
    if error.errno == errno.ENOSPC and lacks_inodes(path):
        return NO_INODES
    return error.strerror or str(error)
