"""Bulk loading of files: small ones in batches, large ones as streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.store import Store

BATCH_OBJECTS_MAX = 256
BATCH_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class Loaded:
    """Totals of a bulk load."""

    objects: int = 0
    bytes: int = 0


def load_tree(
    store: Store, files: Iterable[tuple[ObjectKey, Path]], pool: ThreadPoolExecutor, on_file: Callable[[], object]
) -> Loaded:
    """PUT every file, and call `on_file` when it is durable. Raises InvalidInput naming a file that cannot be read.

    Memory: one batch of at most BATCH_BYTES_MAX plus one small object, or one block of a large one.
    """
    loaded = Loaded()
    batch: list[tuple[ObjectKey, bytes]] = []
    batch_bytes = 0

    def flush() -> None:
        nonlocal batch_bytes
        store.put_many(batch, pool)
        for _, data in batch:
            _note(loaded, len(data), on_file)
        batch.clear()
        batch_bytes = 0

    for key, path in files:
        try:
            with path.open("rb") as file:
                data = file.read(store.packed_size_max + 1)
                if len(data) > store.packed_size_max:
                    file.seek(0)
                    _note(loaded, store.put(key, file).size, on_file)
                    continue
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror}") from error
        batch.append((key, data))
        batch_bytes += len(data)
        if len(batch) >= BATCH_OBJECTS_MAX or batch_bytes >= BATCH_BYTES_MAX:
            flush()
    if batch:
        flush()
    return loaded


def _note(loaded: Loaded, size: int, on_file: Callable[[], object]) -> None:
    loaded.objects += 1
    loaded.bytes += size
    on_file()
