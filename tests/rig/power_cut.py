"""Power cuts for the embedded stores: what a disk may hold when it loses everything that was not synced.

`Recorder` runs the real code of the adapters on a real folder, and records each change that they make there: entries of
folders (create, rename, link, unlink, mkdir), bytes written, and every fsync with its place in the code. `Disk` replays
a recording up to any operation. What was fsynced is durable, and so is each write to a file that was opened with
O_DSYNC. A `Fate` chooses what survives of the rest: nothing, everything, entries without bytes, or any random mixture.
POSIX promises no more: a file's fsync makes its bytes durable but not the entry that names it, and operations that were
not synced reach the disk in any order. `write_image` writes the result to a folder, on which a store is opened as after
the restart.

A site is a place in the code that syncs, named by the calls that lead there; for O_DSYNC, the last two calls that open
the file. `Disk(ignoring=...)` omits the syncs of one site, as if that line were removed. A suite of power cuts that
does not notice proves nothing for that line.

Kill -9 needs none of this: the operating system survives it, and so does everything that was written.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any, Self
from unittest.mock import patch

PAGE = 4096
ROOT = 0
"""The node number of the recorded folder itself, which exists from the beginning."""

_CODE = str(Path("nos_ec", "adapters")) + os.sep
_NOT_RECORDED = ("-shm",)
"""Memory that SQLite's connections share in a file. It is recreated after a restart."""

Site = tuple[str, ...]
"""`module:function:line` of each call inside the adapters that led to a sync, outermost first."""


# --- what was done to the disk --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Enter:
    """A folder gets an entry for a node: a new file or folder, or another name of a file."""

    parent: int
    name: str
    node: int
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """An entry is removed."""

    parent: int
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    """An entry gets another name in its folder and replaces what had that name, in one step of the file system."""

    parent: int
    name: str
    to_name: str
    node: int


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes are written to a file. site: if they are durable at once, the place that opened the file with O_DSYNC."""

    node: int
    offset: int
    data: bytes
    site: Site = ()


@dataclass(frozen=True, slots=True)
class Resize:
    """A file is truncated, or extended with zeros."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Everything done to a file's bytes, or to a folder's entries, is durable from here on."""

    node: int
    site: Site


Operation = Enter | Leave | Rename | Write | Resize | Sync


# --- what is left of it ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of unsynced operations: `entries` of folders and `pages` of files survive with these chances.

    With the chance `sizes`, a file's new size survives without its pages, which are then zeros."""

    name: str
    entries: float
    pages: float
    sizes: float

    def __str__(self) -> str:
        return self.name


NOTHING = Fate("nothing unsynced survives", 0, 0, 0)
EVERYTHING = Fate("everything survives", 1, 1, 1)
ENTRIES = Fate("entries survive without bytes", 1, 0, 0)
ZEROS = Fate("entries and sizes survive, bytes are zeros", 1, 0, 1)
BYTES = Fate("bytes survive without entries", 0, 1, 1)
MIXED = Fate("any mixture", 0.5, 0.5, 0.5)
FATES = (NOTHING, ENTRIES, ZEROS, BYTES, EVERYTHING, *[MIXED] * 7)
"""All fates, with several mixtures."""


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    pending: list[Write | Resize] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.content(EVERYTHING, Random(0))
        self.pending.clear()

    def content(self, fate: Fate, random: Random) -> bytes:
        if not self.pending:
            return self.durable
        found, whole = bytearray(self.durable), len(self.durable)
        for change in self.pending:
            if isinstance(change, Resize):
                whole = change.size
                if random.random() < fate.sizes:
                    _resize(found, change.size)
                continue
            whole = max(whole, change.offset + len(change.data))
            for start, end in _pages(change.offset, len(change.data)):
                if change.site or random.random() < fate.pages:
                    _resize(found, max(len(found), end))
                    found[start:end] = change.data[start - change.offset : end - change.offset]
        if len(found) < whole and random.random() < fate.sizes:
            _resize(found, whole)
        return bytes(found)


@dataclass(slots=True)
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Enter | Leave | Rename] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.entries(EVERYTHING, Random(0))
        self.pending.clear()

    def entries(self, fate: Fate, random: Random) -> dict[str, int]:
        found = dict(self.durable)
        for change in self.pending:
            if random.random() >= fate.entries:
                continue
            match change:
                case Enter():
                    found[change.name] = change.node
                case Leave():
                    found.pop(change.name, None)
                case Rename():
                    found.pop(change.name, None)
                    found[change.to_name] = change.node
        return found


class Disk:
    """The state of a disk after some operations: what is durable, and what is not yet."""

    def __init__(self, ignoring: Site | None = None) -> None:
        self._ignoring = ignoring
        self._nodes: dict[int, _File | _Folder] = {ROOT: _Folder()}

    def apply(self, operations: Sequence[Operation]) -> None:
        """Apply further operations."""
        for operation in operations:
            match operation:
                case Enter() | Leave() | Rename():
                    if isinstance(operation, Enter):
                        self._nodes.setdefault(operation.node, _Folder() if operation.folder else _File())
                    self._folder(operation.parent).pending.append(operation)
                case Write(site=site) if site and site == self._ignoring:
                    self._file(operation.node).pending.append(replace(operation, site=()))
                case Write() | Resize():
                    self._file(operation.node).pending.append(operation)
                case Sync() if operation.site != self._ignoring:
                    self._nodes[operation.node].sync()

    def write_image(self, root: Path, fate: Fate, seed: str) -> None:
        """Write to `root`, a new folder, what the disk may hold after a power cut now."""
        root.mkdir()
        self._write(root, ROOT, fate, Random(seed))

    def tree(self) -> dict[str, bytes | None]:
        """What exists while the power is on: the relative paths of files with their bytes, and of folders with None."""
        return dict(self._walk("", ROOT))

    def _write(self, path: Path, number: int, fate: Fate, random: Random) -> None:
        for name, child in self._folder(number).entries(fate, random).items():
            node = self._nodes[child]
            if isinstance(node, _Folder):
                (path / name).mkdir()
                self._write(path / name, child, fate, random)
            else:
                (path / name).write_bytes(node.content(fate, random))

    def _walk(self, prefix: str, number: int) -> Iterator[tuple[str, bytes | None]]:
        for name, child in self._folder(number).entries(EVERYTHING, Random(0)).items():
            node = self._nodes[child]
            yield prefix + name, None if isinstance(node, _Folder) else node.content(EVERYTHING, Random(0))
            if isinstance(node, _Folder):
                yield from self._walk(f"{prefix}{name}/", child)

    def _folder(self, number: int) -> _Folder:
        node = self._nodes[number]
        assert isinstance(node, _Folder)
        return node

    def _file(self, number: int) -> _File:
        node = self._nodes[number]
        assert isinstance(node, _File)
        return node


def points(operations: Sequence[Operation]) -> list[int]:
    """Where to cut: before and after each sync, and where an entry was removed or renamed.

    Between two of these points, cuts differ only in how much is unsynced, and fates choose from all of that.
    """
    near = {len(operations)}
    for position, operation in enumerate(operations):
        if isinstance(operation, Sync | Rename | Leave) or (isinstance(operation, Write) and operation.site):
            near |= {position, position + 1}
    return sorted(near)


def cuts(
    operations: Sequence[Operation],
    positions: Sequence[int],
    fates: Sequence[Fate],
    image: Path,
    check: Callable[[Path, int], None],
    ignoring: Site | None = None,
) -> None:
    """Cut the power after each number of operations in `positions` (ascending), with each fate of what is unsynced.

    check: gets the folder `image`, as a restart finds it, and the position. Its errors are raised with a note of the
    cut.
    """
    disk, applied = Disk(ignoring), 0
    for position in positions:
        disk.apply(operations[applied:position])
        applied = position
        for number, fate in enumerate(fates):
            disk.write_image(image, fate, seed=f"{position}/{number}")
            try:
                with patch.object(os, "fsync", lambda fd: None):  # a check is not cut itself
                    check(image, position)
            except Exception as error:
                error.add_note(f"power cut after operation {position} of {len(operations)}: {fate}")
                raise
            finally:
                shutil.rmtree(image)


@contextmanager
def memory_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory if there is one, because thousands of images are written, or else `otherwise`."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield otherwise
        return
    with TemporaryDirectory(prefix="nos-ec-power-cuts-", dir=memory) as made:
        yield Path(made)


def _pages(offset: int, length: int) -> Iterator[tuple[int, int]]:
    end = offset + length
    while offset < end:
        stop = min(end, offset // PAGE * PAGE + PAGE)
        yield offset, stop
        offset = stop


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


# --- recording ------------------------------------------------------------------------------------
class Recorder:
    """A context manager that records what this process does below `root`, an empty folder.

    It sees what Python code does through `os`, and what SQLite does through `sqlite_files`. `check` verifies that this
    was everything. Nothing is really synced meanwhile, because that costs time and proves nothing here.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._paths: dict[Path, int] = {self.root: ROOT}
        self._open: dict[int, int] = {}
        self._syncing: dict[int, Site] = {}
        self._nodes = ROOT
        self._submitted = threading.local()
        self._patches = ExitStack()

    @property
    def position(self) -> int:
        """The number of operations so far."""
        return len(self.operations)

    def sites(self) -> list[Site]:
        """Every place that synced, in the order of the first syncs."""
        return list(dict.fromkeys(op.site for op in self.operations if isinstance(op, Sync | Write) and op.site))

    def check(self) -> None:
        """Raise AssertionError if the folder holds anything that the recording does not account for."""
        disk = Disk()
        disk.apply(self.operations)
        found = {
            path.relative_to(self.root).as_posix(): path.read_bytes() if path.is_file() else None
            for path in self.root.rglob("*")
            if not path.name.endswith(_NOT_RECORDED)
        }
        told = disk.tree()
        odd = [name for name in sorted(found.keys() | told.keys()) if found.get(name, 0) != told.get(name, 0)]
        assert not odd, f"changed without being recorded: {odd[:5]}"

    def __enter__(self) -> Self:
        assert not any(self.root.iterdir())
        replaced = {name: getattr(self, f"_os_{name}") for name in _REPLACED}
        self._patches.enter_context(patch.multiple(os, **replaced))
        self._patches.enter_context(patch.object(ThreadPoolExecutor, "submit", self._submit()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    # --- what SQLite's files need ---------------------------------------------------------------------
    def created(self, path: Path) -> None:
        """A new, empty file."""
        with self._lock:
            if self._covers(path) and path not in self._paths:
                self._nodes += 1
                self._paths[path] = self._nodes
                self._add(Enter(self._paths[path.parent], path.name, self._nodes))

    def wrote(self, path: Path, offset: int, data: bytes) -> None:
        """Bytes were written to a file."""
        with self._lock:
            if path in self._paths:
                self._add(Write(self._paths[path], offset, data))

    def resized(self, path: Path, size: int) -> None:
        """A file was truncated or extended."""
        with self._lock:
            if path in self._paths:
                self._add(Resize(self._paths[path], size))

    def removed(self, path: Path) -> None:
        """A file was removed."""
        with self._lock:
            if path in self._paths:
                del self._paths[path]
                self._add(Leave(self._paths[path.parent], path.name))

    def synced(self, path: Path, site: Site) -> None:
        """A file or folder was synced."""
        with self._lock:
            if path in self._paths:
                self._add(Sync(self._paths[path], site))

    # --- replacements for functions of `os` -----------------------------------------------------------
    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            where = self._resolved(path if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / path)
            known = where is None or where in self._paths
            fd = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
            if where is not None and self._covers(where):
                if not known:
                    self.created(where)
                if flags & os.O_TRUNC and known:
                    self.resized(where, 0)
                self._open[fd] = self._paths[where]
                if flags & os.O_DSYNC:
                    self._syncing[fd] = self._site()[-2:]
            else:
                self._open.pop(fd, None)
            return int(fd)

    def _os_close(self, fd: int) -> None:
        with self._lock:
            self._open.pop(fd, None)
            self._syncing.pop(fd, None)
            _REAL["close"](fd)

    def _os_fsync(self, fd: int) -> None:
        with self._lock:
            if fd in self._open:
                self._add(Sync(self._open[fd], self._site()))
            else:
                _REAL["fsync"](fd)

    _os_fdatasync = _os_fsync

    def _os_pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        with self._lock:
            written = int(_REAL["pwritev"](fd, buffers, offset, flags))
            if fd in self._open:
                data = b"".join(bytes(buffer) for buffer in buffers)[:written]
                self._add(Write(self._open[fd], offset, data, self._syncing.get(fd, ())))
            return written

    def _os_rename(self, source: Any, target: Any, **options: Any) -> None:
        with self._lock:
            _REAL["rename"](source, target, **options)
            old, new = self._resolved(source), self._resolved(target)
            if old in self._paths:
                assert old.parent == new.parent, "a rename between folders needs the syncs of both: not modelled"
                node = self._paths[new] = self._paths.pop(old)
                self._add(Rename(self._paths[new.parent], old.name, new.name, node))

    _os_replace = _os_rename

    def _os_link(self, source: Any, target: Any, **options: Any) -> None:
        with self._lock:
            _REAL["link"](source, target, **options)
            old, new = self._resolved(source), self._resolved(target)
            if old in self._paths:
                self._paths[new] = self._paths[old]
                self._add(Enter(self._paths[new.parent], new.name, self._paths[old]))

    def _os_unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            _REAL["unlink"](path, dir_fd=dir_fd)
            if dir_fd is None:
                self.removed(self._resolved(path))

    _os_remove = _os_unlink

    def _os_rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            _REAL["rmdir"](path, dir_fd=dir_fd)
            if dir_fd is None:
                self.removed(self._resolved(path))

    def _os_mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            _REAL["mkdir"](path, mode, dir_fd=dir_fd)
            where = self._resolved(path)
            if dir_fd is None and self._covers(where):
                self._nodes += 1
                self._paths[where] = self._nodes
                self._add(Enter(self._paths[where.parent], where.name, self._nodes, folder=True))

    # --- parts ----------------------------------------------------------------------------------------
    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def _covers(self, path: Path) -> bool:
        return path.is_relative_to(self.root) and not path.name.endswith(_NOT_RECORDED)

    def _resolved(self, path: Any) -> Path:
        named = Path(os.fsdecode(path)).absolute()
        return named.parent.resolve() / named.name if named != self.root else named

    def _site(self) -> Site:
        inner = _calls(sys._getframe(2))
        return (*getattr(self._submitted, "calls", ()), *inner)

    def _submit(self) -> Callable[..., Future[Any]]:
        """A pool's `submit` that passes the caller's site on to the work."""
        submit, submitted = ThreadPoolExecutor.submit, self._submitted

        def told(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            calls = (*getattr(submitted, "calls", ()), *_calls(sys._getframe(1)))

            def run() -> Any:
                submitted.calls = calls
                try:
                    return work(*args, **kwargs)
                finally:
                    submitted.calls = ()

            return submit(pool, run)

        return told


_REPLACED = (
    "open",
    "close",
    "fsync",
    "fdatasync",
    "pwritev",
    "rename",
    "replace",
    "link",
    "unlink",
    "remove",
    "rmdir",
    "mkdir",
)
_REAL: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _REPLACED}


def _calls(frame: FrameType | None) -> Site:
    calls = []
    while frame is not None:
        if _CODE in frame.f_code.co_filename:
            name = Path(frame.f_code.co_filename).name
            calls.append(f"{name}:{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(calls))
