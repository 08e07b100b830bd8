"""Reports what SQLite itself writes, syncs and removes to a `power_cut.Recorder`.

SQLite accesses its files through a table of C functions, its VFS. `recorded` replaces the default table with a copy
whose functions for opening, writing, truncating, syncing and removing also report to the recorder. Everything else
stays SQLite's own.

One thing does not show in the table and is inferred from what SQLite's Unix VFS does: at the first sync of a new
journal or write-ahead log, it also syncs the folder, and likewise after a removal that asks for it.
"""

from __future__ import annotations

import _sqlite3
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rig.power_cut import Recorder

_OK = 0
_OPEN_CREATE = 0x4
_OF_JOURNALS = 0x800 | 0x4000 | 0x80000
"""SQLITE_OPEN_MAIN_JOURNAL, _SUPER_JOURNAL and _WAL."""

_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, ctypes.POINTER(_I))
_DELETE = ctypes.CFUNCTYPE(_I, _P, _S, _I)
_CLOSE = ctypes.CFUNCTYPE(_I, _P)
_WRITE = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_TRUNCATE = ctypes.CFUNCTYPE(_I, _P, _L)
_SYNC = ctypes.CFUNCTYPE(_I, _P, _I)


class _Vfs(ctypes.Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = [
        ("version", _I),
        ("file_size", _I),
        ("path_max", _I),
        ("next", _P),
        ("name", _S),
        ("data", _P),
        ("open", _P),
        ("delete", _P),
        ("others", _P * 14),
    ]


class _Methods(ctypes.Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = [
        ("version", _I),
        ("close", _P),
        ("read", _P),
        ("write", _P),
        ("truncate", _P),
        ("sync", _P),
        ("others", _P * 13),
    ]


_kept: list[object] = []
"""Tables that connections may point to until the process ends."""


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Report the files of connections that are opened meanwhile to the recorder.

    Raises OSError if SQLite's library cannot be reached (a Python with built-in SQLite).
    """
    library = _library()
    default = ctypes.cast(library.sqlite3_vfs_find(None), ctypes.POINTER(_Vfs))
    told = _ToldVfs(default, recorder)
    _kept.append(told)
    library.sqlite3_vfs_register(ctypes.byref(told.vfs), 1)
    try:
        yield
    finally:
        library.sqlite3_vfs_register(default, 1)
        library.sqlite3_vfs_unregister(ctypes.byref(told.vfs))


def _library() -> Any:
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    try:
        library.sqlite3_vfs_find.restype = _P
        library.sqlite3_vfs_register.argtypes = (_P, _I)
        library.sqlite3_vfs_unregister.argtypes = (_P,)
    except AttributeError as error:
        raise OSError("SQLite's library cannot be reached: it is part of this Python") from error
    return library


class _ToldVfs:
    def __init__(self, default: Any, recorder: Recorder) -> None:
        self._recorder = recorder
        self._paths: dict[int, Path] = {}
        self._new: set[int] = set()
        """Files whose first sync also syncs their folder."""
        self._methods: dict[int, _Methods] = {}
        self._real_open = _OPEN(default.contents.open)
        self._real_delete = _DELETE(default.contents.delete)
        self.vfs = _Vfs.from_buffer_copy(default.contents)
        self.vfs.name = b"nos-ec-recorded"
        self._functions: list[Any] = [_OPEN(self._open), _DELETE(self._delete)]
        self.vfs.open, self.vfs.delete = (ctypes.cast(one, _P).value for one in self._functions)

    def _open(self, vfs: int, name: int | None, file: int, flags: int, flags_out: Any) -> int:
        path = Path(ctypes.string_at(name).decode()) if name else None
        existed = path is not None and path.exists()
        result = self._real_open(vfs, name, file, flags, flags_out)
        methods = ctypes.cast(file, ctypes.POINTER(_P))
        if result == _OK and path is not None and methods[0]:
            if flags & _OPEN_CREATE and not existed:
                self._recorder.created(path)
                if flags & _OF_JOURNALS:
                    self._new.add(file)
            self._paths[file] = path
            methods[0] = ctypes.addressof(self._told(int(methods[0])))
        return int(result)

    def _told(self, address: int) -> _Methods:
        """The replacement for the table at `address`, which SQLite uses for a file."""
        if address not in self._methods:
            self._methods[address] = self._made(_Methods.from_address(address))
        return self._methods[address]

    def _made(self, real: _Methods) -> _Methods:
        recorder, paths = self._recorder, self._paths
        real_close, real_write = _CLOSE(real.close), _WRITE(real.write)
        real_truncate = _TRUNCATE(real.truncate)

        def close(file: int) -> int:
            paths.pop(file, None)
            self._new.discard(file)
            return int(real_close(file))

        def write(file: int, data: int, length: int, offset: int) -> int:
            result = real_write(file, data, length, offset)
            if result == _OK:
                recorder.wrote(paths[file], offset, ctypes.string_at(data, length))
            return int(result)

        def truncate(file: int, size: int) -> int:
            result = real_truncate(file, size)
            if result == _OK:
                recorder.resized(paths[file], size)
            return int(result)

        def sync(file: int, flags: int) -> int:
            path = paths[file]
            recorder.synced(path, (f"SQLite:{_kind(path)}",))
            if file in self._new:
                self._new.discard(file)
                recorder.synced(path.parent, ("SQLite:folder of a new journal",))
            return _OK

        functions = [_CLOSE(close), _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)]
        self._functions += functions
        made = _Methods.from_buffer_copy(real)
        made.close, made.write, made.truncate, made.sync = (ctypes.cast(one, _P).value for one in functions)
        return made

    def _delete(self, vfs: int, name: bytes, sync_folder: int) -> int:
        result = self._real_delete(vfs, name, sync_folder)
        if result == _OK:
            path = Path(name.decode())
            self._recorder.removed(path)
            if sync_folder:
                self._recorder.synced(path.parent, ("SQLite:folder after a removal",))
        return int(result)


def _kind(path: Path) -> str:
    _, dash, kind = path.name.rpartition("-")
    return kind if dash and kind in ("wal", "journal") else "database"
