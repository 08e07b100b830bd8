"""The embedded landing store: one file per landing copy.

    root/store.json        format and version; written last, so a root that has it is complete
    root/00 .. ff/         last byte of the landing id
        <id, hex>          a copy, with its label in a footer (landing_footer.py)
        <id, hex>.put      the file of a put in flight, or of a killed put

A temporary file has its copy's id in its name. The deletion queue calls `delete` for every id that no object claims,
and `delete` removes the file of a killed put. There is no other clean-up, and there must be none: when the store is
opened, a put of another process may be in flight.

Version 1 of the store had no footers, and its processes would mistake one for data. So copies get footers only after
`initialise` has turned the store into version 2. Copies without a footer stay readable forever.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.files.durable import (
    as_port_error,
    locked,
    make_folder,
    make_folders,
    read_at,
    replace_file,
    sync_folder,
    translated,
    write_at,
)
from nos_ec.adapters.local.files.probe import probe_folder
from nos_ec.adapters.local.landing_footer import find_label, footer_of
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NosError, NotFound, Transient
from nos_ec.core.ids import LandingId, in_log
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.landing_store import LandingPut

_STORE_FILE = "store.json"
_VERSION = 2
_VERSION_WITHOUT_FOOTERS = 1
_FORMAT: dict[str, object] = {"format": "nos-ec local landing store", "version": _VERSION}
_FAN_OUT = [f"{number:02x}" for number in range(256)]
_PUT_SUFFIX = ".put"
_PUT_THREADS = 8
"""A put waits for two syncs. The file system's journal completes simultaneous syncs with one write."""
_DELETE_THREADS = 4
"""Unlinking and syncing wait for the disk, which handles several at a time: 2 to 5 times as fast as one thread."""


class LocalLandingStore:
    """A `LandingStore` on files (see nos_ec.ports.landing_store for the contract).

    Opening raises ConfigError when `root` was not initialised.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._putting: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._has_footers = _check_store(root) != _VERSION_WITHOUT_FOOTERS

    @classmethod
    def initialise(cls, root: Path) -> None:
        """Create the folders of a store, durably. Idempotent. If several processes call this, one creates the store and
        the others wait for it. A store of version 1 becomes one of this version. Raises ConfigError, NoSpace,
        Transient."""
        with translated(f"landing store {root}"):
            make_folder(root)
            with locked(root):
                exists = (root / _STORE_FILE).exists()
                is_current = exists and _check_store(root) != _VERSION_WITHOUT_FOOTERS
                make_folders(root, _FAN_OUT)
                if not is_current:
                    replace_file(root / _STORE_FILE, json.dumps(_FORMAT, indent=2).encode() + b"\n")

    def put(self, landing_id: LandingId, data: bytes | bytearray | memoryview, label: bytes = b"") -> None:
        """Store one copy: write and sync it under its temporary name, rename it, then sync the folder.

        The temporary name is created exclusively, so that no other put of the same id can come between the check and
        the rename.
        """
        path = self._path(landing_id)
        temporary = self._temporary(landing_id)
        footer = footer_of(landing_id, label) if self._has_footers else b""
        with translated(f"landing store {path.parent}"):
            fd = self._claim(landing_id, temporary)
            try:
                if path.exists():
                    raise Conflict(f"landing copy {landing_id.hex()} exists", landing_id=landing_id)
                write_at(fd, [memoryview(data).cast("B"), footer], 0)
                os.fsync(fd)
                kill_point("landing_store.written")
                temporary.rename(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            finally:
                os.close(fd)
            kill_point("landing_store.renamed")
            sync_folder(path.parent)

    def put_many(self, copies: Sequence[LandingPut]) -> dict[LandingId, NosError]:
        """Store copies on several threads, so that they share writes of the file system's journal."""
        run = map if len(copies) == 1 else self._threads().map
        failures = run(self._put_one, copies)
        return {copy.landing_id: failed for copy, failed in zip(copies, failures, strict=True) if failed is not None}

    def _put_one(self, copy: LandingPut) -> NosError | None:
        try:
            self.put(*copy)
        except NosError as error:
            return error
        return None

    def _threads(self) -> ThreadPoolExecutor:
        """Return the threads for puts. They are created for the first batch, because most processes that open the store
        put nothing."""
        with self._lock:
            if self._putting is None:
                self._putting = ThreadPoolExecutor(_PUT_THREADS, thread_name_prefix="landing-put")
            return self._putting

    def read(self, landing_id: LandingId) -> bytes:
        """Return the whole copy."""
        with self._opened(landing_id) as (fd, length, _):
            return read_at(fd, length, 0)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if offset < 0 or length < 0:
            raise ValueError(f"range of {length} bytes at {offset}")
        with self._opened(landing_id) as (fd, size, _):
            data = read_at(fd, max(0, min(length, size - offset)), offset)
        if len(data) < length:
            raise Corrupt(
                f"landing copy {landing_id.hex()}: {length} bytes at {offset} are past its end", landing_id=landing_id
            )
        return data

    @contextmanager
    def _opened(self, landing_id: LandingId) -> Iterator[tuple[int, int, bytes]]:
        """Open the file of a copy. Yields its descriptor, the size of the data, and the label."""
        path = self._path(landing_id)
        with translated(f"landing store {path.parent}"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise self._missing(landing_id) from error
            try:
                yield fd, *find_label(fd, landing_id)
            finally:
                os.close(fd)

    def labels(self, landing_ids: Sequence[LandingId]) -> dict[LandingId, bytes]:
        """Read the labels from the footers."""
        found: dict[LandingId, bytes] = {}
        for landing_id in landing_ids:
            with suppress(NotFound), self._opened(landing_id) as (_, _, label):
                found[landing_id] = label
        return found

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy, and the file that a killed put of it left.

        The folder is synced even if there was nothing to delete: an earlier call may have been killed before its sync.
        """
        folder = self._path(landing_id).parent
        with translated(f"landing store {folder}"):
            self._unlink(landing_id)
            sync_folder(folder)

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> dict[LandingId, Transient]:
        """Delete copies with one sync per folder that holds some of them, several folders at a time."""
        by_folder: dict[str, list[LandingId]] = {}
        for landing_id in landing_ids:
            by_folder.setdefault(landing_id[-1:].hex(), []).append(landing_id)
        failed: dict[LandingId, Transient] = {}
        with ThreadPoolExecutor(_DELETE_THREADS, thread_name_prefix="landing-delete") as pool:
            folders = [self._root / name for name in by_folder]
            for failures in pool.map(self._delete_in, folders, by_folder.values()):
                beat(0)
                failed |= failures
        return failed

    def _delete_in(self, folder: Path, landing_ids: Sequence[LandingId]) -> dict[LandingId, Transient]:
        failed: dict[LandingId, Transient] = {}
        for landing_id in landing_ids:
            try:
                self._unlink(landing_id)
            except OSError as error:
                failed[landing_id] = as_port_error(f"landing store {folder}", error)
            else:
                kill_point("landing_store.unlinked")
        try:
            sync_folder(folder)
        except OSError as error:
            return dict.fromkeys(landing_ids, as_port_error(f"landing store {folder}", error))
        return failed

    def _unlink(self, landing_id: LandingId) -> None:
        """Remove the temporary name first. Either a put in flight can then no longer rename it, or the put has already
        done so, and its copy is removed next."""
        path = self._path(landing_id)
        path.with_name(path.name + _PUT_SUFFIX).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def list_ids(self) -> Iterator[LandingId]:
        """Yields every whole copy. Puts in flight are not listed."""
        for entry in self._entries():
            with suppress(ValueError):
                landing_id = bytes.fromhex(entry.name)
                if len(landing_id) == 16:
                    yield LandingId(landing_id)

    def free_bytes(self) -> int:
        """Return the free space of the file system."""
        with translated(f"landing store {self._root}"):
            room = os.statvfs(self._root)
        return room.f_bavail * room.f_frsize

    def probe(self) -> None:
        """Write and read in one of the folders. All of them are on the same disk."""
        folder = self._root / _FAN_OUT[0]
        with translated(f"landing store {folder}"):
            probe_folder(folder)

    def raw_bytes(self) -> int:
        """Return the bytes allocated, including puts in flight. Runs stat on each file, so that puts need not keep a
        count."""
        total = 0
        for entry in self._entries():
            with suppress(FileNotFoundError):
                total += entry.stat().st_blocks * 512
        return total

    def close(self) -> None:
        """End the threads. No file is open between calls."""
        with self._lock:
            if self._putting is not None:
                self._putting.shutdown()
                self._putting = None

    def _path(self, landing_id: LandingId) -> Path:
        name = landing_id.hex()
        return self._root / name[-2:] / name

    def _temporary(self, landing_id: LandingId) -> Path:
        path = self._path(landing_id)
        return path.with_name(path.name + _PUT_SUFFIX)

    def _claim(self, landing_id: LandingId, temporary: Path) -> int:
        try:
            return open_new(temporary, os.O_WRONLY | os.O_EXCL)
        except FileExistsError as error:
            raise Conflict(
                f"landing copy {landing_id.hex()} is being written, or was left by a killed put: use a new id",
                landing_id=landing_id,
            ) from error

    def _missing(self, landing_id: LandingId) -> NotFound | Transient:
        """Return the error for a copy without a file. The copy counts as missing only if its folder exists, and if it
        is not a record of a landing log that this process does not know."""
        if in_log(landing_id):
            return Transient(
                f"landing copy {landing_id.hex()} is in the landing log, which was created after this process was"
                " started: restart the process",
                landing_id=landing_id,
            )
        folder = self._path(landing_id).parent
        if folder.is_dir():
            return NotFound(f"landing copy {landing_id.hex()} does not exist", landing_id=landing_id)
        return Transient(f"landing folder {folder} is missing: mount its disk, or run `nos-ec init` to create it")

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for name in _FAN_OUT:
            with translated(f"landing store {self._root / name}"), os.scandir(self._root / name) as entries:
                yield from entries


def _check_store(root: Path) -> int:
    """Return the version of the landing store in `root`. Raises ConfigError if there is no landing store."""
    path = root / _STORE_FILE
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{root} is not a landing store: run `nos-ec init` to create one, or mount its disk"
        ) from error
    except OSError as error:
        raise as_port_error(f"landing store {path}", error) from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): write {json.dumps(_FORMAT)} to it") from error
    for version in (_VERSION_WITHOUT_FOOTERS, _VERSION):
        if content == _FORMAT | {"version": version}:
            return version
    raise ConfigError(f"{path} does not have format version {_VERSION}: use the release that wrote it")
