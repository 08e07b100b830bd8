"""Local files: walks the files to be stored, writes objects to files below a folder, and writes reports."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from nos_ec.adapters.local.files.durable import sync_folder
from nos_ec.core.errors import InvalidInput, NoSpace
from nos_ec.core.killpoints import kill_point

SEGMENT_BYTES_MAX = 255
_HASHED_BYTES = 1 << 20
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""Errors that would also occur for every other file."""


def files_below(
    folder: Path, on_problem: Callable[[str, str], object], on_other: Callable[[str, str], object]
) -> Iterator[Path]:
    """Yields the regular files below a folder, in the order of their names within each folder.

    Calls `on_problem` with the path and the reason for everything that cannot be read, and `on_other` in the same way
    for everything that is not a file: links, pipes, sockets and devices. Keeps in memory the names in all folders on
    the path to the current file.
    """
    way = [_entries(folder, on_problem)]
    while way:
        entry = next(way[-1], None)
        if entry is None:
            way.pop()
            continue
        try:
            if entry.is_symlink():
                on_other(entry.path, "is a symbolic link")
            elif entry.is_dir(follow_symlinks=False):
                way.append(_entries(Path(entry.path), on_problem))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                on_other(entry.path, "is a pipe, socket or device")
        except OSError as error:
            on_problem(entry.path, str(error.strerror))


def _entries(folder: Path, on_problem: Callable[[str, str], object]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return iter(sorted(found, key=lambda entry: entry.name))
    except OSError as error:
        on_problem(str(folder), str(error.strerror))
        return iter(())


def require_new(path: Path, what: str) -> None:
    """Raise InvalidInput if the file exists, or if this user may not search its folder. `what` is the option's name."""
    try:
        exists = path.exists()
    except OSError as error:
        raise InvalidInput(f"{what} {path}: {error.strerror}") from error
    if exists:
        raise InvalidInput(f"{what} {path}: the file exists; name a new one")


@contextmanager
def report_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """Yields a file to write to, which gets its name once it is complete and on the disk. After an error it is removed.
    `what` is the option's name, for messages. Raises NoSpace, InvalidInput."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        kill_point("report_file.written")
        partial.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{what} {path}: {error.strerror}; name a file on another disk") from error
        raise InvalidInput(f"{what} {path}: {error.strerror}") from error


class CannotBeFile(Exception):
    """An object's name cannot be a path on this machine, or another item is in its place; the text gives the reason."""


class TargetFolder:
    """A folder below which objects are written as files. Nothing is written outside it: no link below it is followed.

    It is a context manager, and not safe to use from several threads.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder if it is missing. Raises InvalidInput."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInput(f"{folder}: {error.strerror}; give a folder to write to") from error
        self._folder = folder
        self._parent: tuple[tuple[str, ...], int] | None = None
        self._draft = f".nos-ec-{os.getpid()}.part"

    def __enter__(self) -> TargetFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_parent()
        os.close(self._root)

    def has_file(self, name: str, size: int, md5: bytes, part_sizes: Callable[[], Sequence[int]] | None = None) -> bool:
        """Return whether a regular file of this name has this size in bytes and this MD5. For a multipart object, whose
        MD5 is the MD5 of the MD5s of its parts, `part_sizes` returns the sizes of the parts; it is called only if the
        size matches, and its errors are passed on."""
        *folders, last = _segments(name)
        with suppress(OSError, CannotBeFile):
            parent = self._enter(tuple(folders), make=False)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(last, flags, dir_fd=parent), "rb", buffering=0) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                    return False
                if part_sizes is None:
                    return _md5(file, size) == md5
                of_parts = b"".join([_md5(file, part) for part in part_sizes()])
                return hashlib.md5(of_parts, usedforsecurity=False).digest() == md5
        return False

    def write_file(self, name: str, segments: Iterable[bytes]) -> int:
        """Write a file, which appears once it is complete and replaces an earlier one. Returns its size in bytes.

        Raises CannotBeFile, and InvalidInput if the disk accepts no more data. Errors of `segments` are passed on.
        """
        *folders, last = _segments(name)
        with self._translated(name):
            parent = self._enter(tuple(folders), make=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:  # an interrupt may come right after the call that creates the draft
            with self._translated(name):
                fd = os.open(self._draft, flags, 0o666, dir_fd=parent)
            with open(fd, "wb") as file:
                written = 0
                for segment in segments:
                    with self._translated(name):
                        written += file.write(segment)
                with self._translated(name):
                    file.flush()
            with self._translated(name):
                os.rename(self._draft, last, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(self._draft, dir_fd=parent)
            raise
        return written

    def _enter(self, folders: tuple[str, ...], *, make: bool) -> int:
        """Return the descriptor of a folder below the root. Each segment is opened separately, so that no link is
        followed. Raises OSError, CannotBeFile."""
        if self._parent is not None and self._parent[0] == folders:
            return self._parent[1]
        self._leave_parent()
        fd = os.dup(self._root)
        try:
            for segment in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(segment, dir_fd=fd)
                fd, left = _step(fd, segment), fd
                os.close(left)
        except BaseException:
            os.close(fd)
            raise
        self._parent = folders, fd
        return fd

    def _leave_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _translated(self, name: str) -> _Translated:
        return _Translated(self._folder, name)


class _Translated:
    """Turns OSError into CannotBeFile, or into InvalidInput if it would occur for every file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            if error.errno in _DISK:
                raise InvalidInput(f"{self._folder / self._name} cannot be written: {error.strerror}") from error
            reason = "a folder is in its place" if isinstance(error, IsADirectoryError) else str(error.strerror)
            raise CannotBeFile(reason) from error


def _step(fd: int, segment: str) -> int:
    try:
        return os.open(segment, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise CannotBeFile(f"{segment!r} of its path is a file or a link, not a folder") from error
        raise


def _md5(file: FileIO, size: int) -> bytes:
    """Return the MD5 of the next `size` bytes, or of the rest of the file if it is shorter."""
    digest = hashlib.md5(usedforsecurity=False)
    while size > 0 and (piece := file.read(min(size, _HASHED_BYTES))):
        digest.update(piece)
        size -= len(piece)
    return digest.digest()


def _segments(name: str) -> list[str]:
    segments = name.split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            raise CannotBeFile(
                "a segment of its path is empty" if not segment else f"a segment of its path is {segment}"
            )
        try:
            size = len(os.fsencode(segment))
        except UnicodeEncodeError as error:
            raise CannotBeFile("this machine's encoding of file names cannot represent it") from error
        if size > SEGMENT_BYTES_MAX:
            raise CannotBeFile(f"a segment of its path has {size} bytes, more than {SEGMENT_BYTES_MAX}")
        if any(ord(char) < 32 or ord(char) == 127 for char in segment):
            raise CannotBeFile("it contains control characters")
    return segments
