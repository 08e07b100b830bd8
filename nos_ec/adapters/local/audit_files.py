"""The audit trail as files of a folder, which all processes of a host share (docs/adr/0025).

    trail.jsonl             the file to which entries are appended
    trail-TIME.jsonl        a full file; TIME is when the file was put aside, in Unix milliseconds
    old-SEEN-LAST           an empty file, a note: at SEEN, the full files up to LAST were too old

Entries are appended while the folder is locked, and synced before the lock is released. A full file is renamed. A crash
can tear the last line. The next process ends that line and appends after it.

The oldest files are deleted when the trail has too many bytes. A clock that jumps ahead makes every file look too old,
so two checks must agree before a file is deleted for its age: the first leaves a note (old-SEEN-LAST), and one at least
OLD_AGAIN_MS later, by the clock, deletes the files of the note that are still too old. If the clock is found to be
before SEEN, it was wrong at one of the checks: the note is dropped, and the wait begins anew. A file that was put aside
while the clock was ahead is kept for longer, never for less.

While a full file cannot be renamed, entries are still appended to it, until it has half the bytes of the trail.
Then they count as failures, until it can be renamed.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.files.durable import make_folder, sync_folder, write_at
from nos_ec.core.formats.audit_trail import AuditEntry, Recorded, audit_line, is_whole, read_line
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)

CURRENT = "trail.jsonl"
FILE_BYTES_MAX = 16 << 20
FILE_BYTES_MIN = 16 << 10
FILES = 8
"""At least this many files share the bytes of the trail, so that deleting the oldest one loses only a small part of
it."""
LOCK_S_MAX = 5.0
"""Longer than any process holds the lock, unless it is stopped."""
LOCK_AGAIN_S = 60.0
"""After LOCK_S_MAX without the lock, all entries count as failures for this long, so that deletions continue."""
LOG_WAIT_MS = 60_000
LINE_BYTES_MAX = 4 << 20
"""Longer than the longest line."""
PRUNE_WAIT_MS = 3_600_000
"""The interval of searches for old files. A search also takes place whenever a file is full."""
OLD_AGAIN_MS = 24 * 3_600_000
"""A file that is too old is deleted once it has looked too old for this long, which leaves time to correct a clock."""

_LOCK_WAIT_S = 0.005
_ROTATED = re.compile(r"trail-(\d{13,15})\.jsonl")
_NOTE = re.compile(r"old-(\d{13,15})-(\d{13,15})")


@dataclass(frozen=True, slots=True)
class TrailLimits:
    """The limits of the trail: `size_bytes_max` is the approximate size of all files together, `keep_ms` the time for
    which a full file is kept."""

    size_bytes_max: int
    keep_ms: int

    @property
    def file_bytes(self) -> int:
        """Return the size from which a file is full."""
        return max(FILE_BYTES_MIN, min(FILE_BYTES_MAX, self.size_bytes_max // FILES))


class AuditFiles:
    """An `AuditTrail` in files. Opens nothing before the first entry. `run` identifies this process in its entries."""

    def __init__(self, folder: Path, clock: Clock, run: str, limits: TrailLimits) -> None:
        self._folder = folder
        self._clock = clock
        self._run = run
        self._limits = limits
        self._mutex = threading.Lock()
        self._locked_until_s = 0.0
        """The time (monotonic, in seconds) until which no call waits for the lock again."""
        self._pruned_ms: int | None = None
        self._logged_ms: dict[str, int] = {}
        self.failures = 0
        """The number of calls whose entries were not written. Any thread may read it."""

    def record(self, entries: Sequence[AuditEntry]) -> bool:
        """See the port."""
        if not entries:
            return True
        is_written = False
        now_ms = self._clock.now_ms()
        with self._mutex:
            try:
                if time.monotonic() < self._locked_until_s:
                    raise BlockingIOError("another process holds the lock of the folder and is stopped")
                self._append(b"".join(audit_line(entry, now_ms, self._run) for entry in entries), now_ms)
                is_written = True
            except (OSError, ValueError) as error:  # ValueError: text that is not Unicode
                self.failures += 1
                kinds = sorted({entry.kind.value for entry in entries})
                event = "audit trail not written; deletions continue"
                self._report(event, error, now_ms, kinds=kinds, failures=self.failures)
        kill_point("audit.recorded")
        return is_written

    def _append(self, data: bytes, now_ms: int) -> None:
        make_folder(self._folder)
        with self._locked():
            path = self._folder / CURRENT
            if self._is_half_full(path, len(data)):
                self._put_aside(path, now_ms)
            fd = open_new(path, os.O_RDWR)
            try:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    data = b"\n" + data  # a crash has torn the last line
                _write(fd, data, size)
                kill_point("audit.written")
                os.fsync(fd)
            finally:
                os.close(fd)
            if not size:
                sync_folder(self._folder)
            try:
                self._tidy(path, size + len(data), now_ms)
            except OSError as error:
                self._report("audit trail written, but its full or old files remain", error, now_ms)

    def _is_half_full(self, path: Path, more_bytes: int) -> bool:
        """Return whether a full file, which could not be put aside, would take half the bytes of the trail. A larger
        file would be deleted too soon after it is put aside, and leave little of the trail."""
        size = path.stat().st_size if path.exists() else 0
        limits = self._limits
        return size >= limits.file_bytes and size + more_bytes > limits.size_bytes_max // 2

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out. A process that is stopped with the lock must not stop all the others, so after one
        wait in vain no call waits for LOCK_AGAIN_S. Raises OSError."""
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            end_s = time.monotonic() + LOCK_S_MAX
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end_s:
                        self._locked_until_s = time.monotonic() + LOCK_AGAIN_S
                        raise
                    time.sleep(_LOCK_WAIT_S)
            yield
        finally:
            os.close(fd)

    def _tidy(self, path: Path, size: int, now_ms: int) -> None:
        """Put a full file aside, and prune when it is time. Raises OSError."""
        is_full = size >= self._limits.file_bytes
        if is_full:
            self._put_aside(path, now_ms)
        if is_full or self._pruned_ms is None or not 0 <= now_ms - self._pruned_ms < PRUNE_WAIT_MS:
            self._prune(now_ms)

    def _put_aside(self, path: Path, now_ms: int) -> None:
        """Rename the full file. Its name sorts after the names of all earlier files, whatever the clock shows."""
        before = [time_ms for time_ms, _ in rotated(self._folder)]
        path.rename(self._folder / f"trail-{max([now_ms, *(one + 1 for one in before)]):013d}.jsonl")
        sync_folder(self._folder)
        kill_point("audit.put_aside")

    def _prune(self, now_ms: int) -> None:
        """Delete the oldest full files until the rest fits together with one more, and files that are too old."""
        self._pruned_ms = now_ms
        kept_bytes = self._limits.file_bytes
        for _, path in reversed(rotated(self._folder)):
            kept_bytes += path.stat().st_size
            if kept_bytes > self._limits.size_bytes_max:
                path.unlink(missing_ok=True)
        self._prune_old(now_ms)

    def _prune_old(self, now_ms: int) -> None:
        """Delete the files that are too old and were too old at an earlier check; note those that are too old only
        now."""
        old = [(time_ms, path) for time_ms, path in rotated(self._folder) if now_ms - time_ms > self._limits.keep_ms]
        notes = _notes(self._folder)
        if old and any(0 <= now_ms - seen_ms < OLD_AGAIN_MS for seen_ms, _, _ in notes):
            return
        agreed_ms = max((last_ms for seen_ms, last_ms, _ in notes if now_ms >= seen_ms), default=-1)
        for time_ms, path in old:
            if time_ms <= agreed_ms:
                path.unlink(missing_ok=True)
                kill_point("audit.old_deleted")
        for _, _, path in notes:
            path.unlink(missing_ok=True)
        kill_point("audit.notes_deleted")
        last_ms = max((time_ms for time_ms, _ in old), default=-1)
        if last_ms > agreed_ms:
            os.close(open_new(self._folder / f"old-{now_ms:013d}-{last_ms:013d}", os.O_RDONLY))

    def _report(self, event: str, error: Exception, now_ms: int, **more: object) -> None:
        """Log an error, each event at most once in LOG_WAIT_MS."""
        logged_ms = self._logged_ms.get(event)
        if logged_ms is not None and 0 <= now_ms - logged_ms < LOG_WAIT_MS:
            return
        self._logged_ms[event] = now_ms
        text = getattr(error, "strerror", None) or str(error)
        _log.error(event, folder=str(self._folder), error=text, **more)


class TrailReader:
    """Reads the entries of a folder, oldest first. `damaged` counts the lines that were skipped so far, because they
    are torn, damaged or written by a later version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.damaged = 0

    def entries(self, since_ms: int, wanted: Callable[[bytes], bool]) -> Iterator[Recorded]:
        """Yields entries whose line is `wanted`, from files that were full no sooner than `since_ms`. Holds one line in
        memory. Raises OSError; a folder that does not exist has no entries."""
        with suppress(FileNotFoundError), (self._folder / CURRENT).open("rb") as current:
            inode = os.fstat(current.fileno()).st_ino
            yield from self._full(since_ms, wanted, inode)
            yield from self._lines(current, wanted, is_current=True)
            return
        yield from self._full(since_ms, wanted, None)

    def _full(self, since_ms: int, wanted: Callable[[bytes], bool], inode: int | None) -> Iterator[Recorded]:
        for time_ms, path in rotated(self._folder):
            if time_ms < since_ms:
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:  # another process may just have pruned it
                if os.fstat(file.fileno()).st_ino != inode:
                    yield from self._lines(file, wanted, is_current=False)

    def _lines(self, file: BinaryIO, wanted: Callable[[bytes], bool], *, is_current: bool) -> Iterator[Recorded]:
        while line := file.readline(LINE_BYTES_MAX):
            if is_current and not line.endswith(b"\n"):
                return  # a process may be writing this line now
            if not wanted(line):
                self.damaged += not is_whole(line)
            elif (entry := read_line(line)) is None:
                self.damaged += 1
            else:
                yield entry


def rotated(folder: Path) -> list[tuple[int, Path]]:
    """Return the full files with their times, oldest first. Raises OSError; a folder that does not exist has none."""
    try:
        found = [(match, path) for path in folder.iterdir() if (match := _ROTATED.fullmatch(path.name))]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), path) for match, path in found)


def _notes(folder: Path) -> list[tuple[int, int, Path]]:
    """Return (SEEN, LAST, path) of each note. After a crash there may be no note, which costs one more wait. Raises
    OSError."""
    found = [(match, path) for path in folder.iterdir() if (match := _NOTE.fullmatch(path.name))]
    return [(int(match[1]), int(match[2]), path) for match, path in found]


def _write(fd: int, data: bytes, size: int) -> None:
    """Append all of the data, or none. Raises OSError."""
    try:
        write_at(fd, [data], size)
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise
