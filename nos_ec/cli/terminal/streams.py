"""Standard streams. Failures of standard input and output (a full disk, a closed pipe, a missing stdin) become ordinary
errors. Failures of standard error are ignored, because a side channel must not decide how the main work ends."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, TextIO

from nos_ec.core.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDERR = 2
_HELD_BYTES = 1024 * 1024
"""How much output of a cell is held in memory; the rest goes to a temporary file."""


class _SideChannel(io.FileIO):
    """A file whose writes never fail: data that cannot be written is dropped. Every write is tried, so that a log
    continues once its disk has space again."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of `data`; returns how many bytes were written or dropped."""
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written  # None: a non-blocking pipe is full


def protect_stderr() -> None:
    """Make sure that writing to sys.stderr never fails in this process, even if standard error is closed, on a full
    disk, or a pipe without a reader.

    A closed standard stream becomes /dev/null for the kernel. Otherwise the next file that is opened, such as a
    database, would get its descriptor, and C libraries would write their messages into that file.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(free, True)
    os.close(free)
    raw = _SideChannel(STDERR, "w", closefd=False)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=True)


class ReaderGone(Exception):
    """The reader of our standard output has closed it (`nos-ec ls | head`): stop silently."""


class StandardOutput:
    """Writes to whatever sys.stdout is at the time of each call. The methods raise ReaderGone, InvalidInput."""

    def __init__(self) -> None:
        self._cell: CellOutput | None = None

    @property
    def encoding(self) -> str:
        """Return the encoding of text."""
        return str(getattr(sys.stdout, "encoding", None) or "utf-8")

    def write(self, text: str) -> int:
        """Write text; it may be buffered. Characters that the terminal's encoding lacks are written as escapes."""
        self.write_bytes(text.encode(self.encoding, "backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> int:
        """Write all of `data`; it may be buffered.

        Without buffering (PYTHONUNBUFFERED), a single write may be short when the disk fills up or the reader goes
        away.
        """
        self.write_now(data if self._cell is None else self._cell.passed_on(data))
        return len(data)

    def write_now(self, data: bytes) -> None:
        """Write all of `data` as it is, also while a cell's output is marked or held back; it may be buffered."""
        with _translated():
            buffer = _opened().buffer
            rest = memoryview(data)
            while rest:
                rest = rest[buffer.write(rest) :]

    @contextmanager
    def of_cell(self, name: str, width: int, *, as_json: bool) -> Iterator[CellOutput]:
        """Attribute what is written in the block to a cell: each line begins with its name, padded to `width`
        characters. JSON is held back instead, for `write_json` at the end of the block."""
        with SpooledTemporaryFile[bytes](_HELD_BYTES) as held:
            self._cell = CellOutput(self, b"" if as_json else f"{name}:".ljust(width + 2).encode(), held)
            try:
                yield self._cell
            finally:
                self._cell = None

    def flush(self) -> None:
        """Flush all buffered output. Does nothing if stdout is closed."""
        if sys.stdout is not None:
            with _translated():
                sys.stdout.flush()

    def isatty(self) -> bool:
        """Return whether stdout is a terminal."""
        return sys.stdout is not None and sys.stdout.isatty()

    def fileno(self) -> int:
        """Return the file descriptor, which is needed to query a terminal's width."""
        return _opened().fileno()


class CellOutput:
    """What a command writes to standard output for one cell of a store."""

    def __init__(self, stdout: StandardOutput, prefix: bytes, held: SpooledTemporaryFile[bytes]) -> None:
        """Lines get this prefix. Without one, all output is held back in a file."""
        self._stdout = stdout
        self._prefix = prefix
        self._begins = True
        self._held = held

    def passed_on(self, data: bytes) -> bytes:
        """Return what is to be written now instead of `data`."""
        if not self._prefix:
            self._held.write(data)
            return b""
        lines = data.splitlines(keepends=True) if data else []
        found = b"".join(self._prefix * (number > 0 or self._begins) + line for number, line in enumerate(lines))
        if lines:
            self._begins = lines[-1].endswith(b"\n")
        return found

    def write_json(self, start: str, end: str) -> None:
        """Write the line of JSON that was held back between these texts, and null if the command failed before it had
        written a whole line."""
        size = self._held.tell()
        self._held.seek(max(0, size - 1))
        is_whole = self._held.read(1) == b"\n"
        self._held.seek(0)
        self._stdout.write_now(start.encode())
        for left in range(size - 1 if is_whole else 0, 0, -_HELD_BYTES):
            self._stdout.write_now(self._held.read(min(left, _HELD_BYTES)))
        self._stdout.write_now((end if is_whole else f"null{end}").encode())


def _opened() -> TextIO:
    if sys.stdout is None:
        raise InvalidInput("standard output is closed; give a file, or redirect it to /dev/null")
    return sys.stdout


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        _give_up()
        raise ReaderGone from error
    except OSError as error:
        _give_up()
        raise InvalidInput(f"standard output cannot be written: {error.strerror}") from error


def _give_up() -> None:
    """Redirect stdout to /dev/null; otherwise the interpreter would fail on the buffered output again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder or a link to one. Raises InvalidInput if it cannot be examined."""
    try:
        return path.is_dir()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error


class Source:
    """A file or stdin whose bytes are PUT; a context manager. Reading may raise an InvalidInput that names the file."""

    def __init__(self, path: Path) -> None:
        """Open `path`, which may be '-' for stdin. Raises InvalidInput if that fails."""
        self._name = "standard input" if path == Path("-") else str(path)
        self._file = self._open(path)

    def _open(self, path: Path) -> BinaryIO:
        if path == Path("-"):
            if sys.stdin is None:
                raise InvalidInput("standard input is closed; pipe the object in, or give a file")
            return sys.stdin.buffer
        with self._named():
            if path.is_dir():
                raise InvalidInput(f"{path} is a folder; to store every file below it, use -r")
            return path.open("rb")

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._name != "standard input":
            self._file.close()

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; an empty result means the end."""
        with self._named():
            return self._file.read(size)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidInput(f"{self._name}: {error.strerror}") from error
