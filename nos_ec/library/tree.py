"""Loads many files: small ones in batches, large ones as streams."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from nos_ec.core.errors import Conflict, InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.streams import read_up_to

BATCH_OBJECTS_MAX = 256
BATCH_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class Loaded:
    """Totals of a bulk load."""

    objects: int = 0
    bytes: int = 0


def load_tree(
    store_of: Callable[[ObjectKey], Store],
    files: Iterable[tuple[ObjectKey, Path]],
    on_file: Callable[[int], object],
    on_problem: Callable[[Path, str], object] | None = None,
    on_changed: Callable[[Path], object] = lambda _: None,
) -> Loaded:
    """PUT every file, and call `on_file` with its size in bytes when it is durable.

    store_of: returns the store of an object. The objects of a wide bucket are in several stores. on_problem: called
    with the path of each file that cannot be read, and the reason. Without it, the first such file raises InvalidInput.
    on_changed: called with the path of each file that changed while it was read; the object has the bytes as they were
    read. Raises NoSpace, Transient.

    Keeps batches of at most BATCH_BYTES_MAX in all plus one small object in memory, or one block of a large object.
    """
    return _Load(store_of, on_file, on_problem, on_changed).run(files)


class _SourceFailed(InvalidInput):
    """A file could not be read to its end. As a NosError, it makes a large PUT clean up at once."""


class _SourceFile:
    """A regular file. Reading raises _SourceFailed."""

    def __init__(self, path: Path) -> None:
        """Open the file without waiting for a pipe or following a link. Raises OSError, _SourceFailed."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._file = FileIO(fd, "rb")
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self._file.close()
            raise _SourceFailed("is no longer a regular file")
        self._opened = self._state()

    def __enter__(self) -> _SourceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`."""
        try:
            return self._file.read(size) or b""
        except OSError as error:
            raise _SourceFailed(str(error.strerror)) from error

    def rewind(self) -> None:
        """Read from the start again."""
        self._file.seek(0)

    def changed(self) -> bool:
        """Return whether the file was written to since it was opened."""
        return self._state() != self._opened

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


class _Load:
    """One bulk load."""

    def __init__(
        self,
        store_of: Callable[[ObjectKey], Store],
        on_file: Callable[[int], object],
        on_problem: Callable[[Path, str], object] | None,
        on_changed: Callable[[Path], object],
    ) -> None:
        self._store_of = store_of
        self._on_file = on_file
        self._on_problem = on_problem
        self._on_changed = on_changed
        self._loaded = Loaded()
        self._batches: defaultdict[Store, list[tuple[ObjectKey, bytes]]] = defaultdict(list)
        self._batch_objects = self._batch_bytes = 0

    def run(self, files: Iterable[tuple[ObjectKey, Path]]) -> Loaded:
        for key, path in files:
            try:
                with _SourceFile(path) as file:
                    self._load_file(key, file)
                    if file.changed():
                        self._on_changed(path)
            except FileNotFoundError:
                self._refuse(path, "has vanished")
            except OSError as error:
                self._refuse(path, str(error.strerror))
            except (_SourceFailed, Conflict) as error:
                self._refuse(path, str(error))
        self._flush()
        return self._loaded

    def _load_file(self, key: ObjectKey, file: _SourceFile) -> None:
        store = self._store_of(key)
        data = read_up_to(file, store.packed_size_max + 1)
        if len(data) > store.packed_size_max:
            file.rewind()
            self._count(store.put(key, file).size)
            return
        self._batches[store].append((key, data))
        self._batch_objects += 1
        self._batch_bytes += len(data)
        if self._batch_objects >= BATCH_OBJECTS_MAX or self._batch_bytes >= BATCH_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        for store, batch in self._batches.items():
            store.put_many(batch)
            for _, data in batch:
                self._count(len(data))
        self._batches.clear()
        self._batch_objects = self._batch_bytes = 0

    def _count(self, size: int) -> None:
        self._loaded.objects += 1
        self._loaded.bytes += size
        self._on_file(size)

    def _refuse(self, path: Path, reason: str) -> None:
        if self._on_problem is None:
            raise InvalidInput(f"{path}: {reason}")
        self._on_problem(path, reason)
