"""Ranges of objects never contain bytes that were not PUT, wherever the object is."""

from __future__ import annotations

from pathlib import Path

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, Corrupt, InvalidInput
from nos_ec.core.ids import ObjectKey
from tests.service.conftest import CHUNK, STRIPE, Bench

SIZE = 3 * CHUNK
RANGES = [(0, 10), (CHUNK, 100), (SIZE - 5, 5), (1, SIZE - 2)]


def _range(system: System, key: ObjectKey, offset: int, length: int) -> bytes:
    return b"".join(system.client.store().open_range(key, offset, length)[1])


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("at", [3, CHUNK + 50, SIZE - 2])
def test_a_range_of_a_damaged_landing_copy_is_refused(bench: Bench, system: System, at: int) -> None:
    key = bench.put(system, "landed", bench.data(SIZE))
    for offset, length in RANGES:
        assert _range(system, key, offset, length) == bench.acknowledged[key][offset : offset + length]
    (copy,) = (bench.folder / "store" / "landing").glob("??/*")
    _flip(copy, at)
    for offset, length in RANGES:
        with pytest.raises(Corrupt) as error:
            _range(system, key, offset, length)
        assert error.value.key == key


@pytest.mark.parametrize(("shards", "readable"), [(3, True), (11, False)])
def test_a_range_of_damaged_packed_bytes_is_decoded_or_refused(
    bench: Bench, system: System, shards: int, readable: bool
) -> None:
    key = bench.put(system, "packed", bench.data(SIZE))
    bench.pack(system)
    extent = system.client.store().head(key).extent
    assert extent is not None
    for shard in range(shards):
        (path,) = (bench.folder / "store" / "blocks" / f"shard-{shard:02}").glob(f"?/{extent.block_id.hex()}")
        for page in range(2, path.stat().st_size // 4096):
            _flip(path, page * 4096 + 7)
    for offset, length in RANGES:
        if readable:
            assert _range(system, key, offset, length) == bench.acknowledged[key][offset : offset + length]
        else:
            with pytest.raises(Corrupt, match="b/packed v") as error:
                _range(system, key, offset, length)
            assert (error.value.key, error.value.block_id) == (key, extent.block_id)


@pytest.mark.parametrize("size", [SIZE, 9 * STRIPE])
def test_a_range_may_go_to_the_end(bench: Bench, system: System, size: int) -> None:
    key = bench.put(system, "it", bench.data(size))
    store, data = system.client.store(), bench.acknowledged[key]
    for packed in (False, True):
        if packed:
            bench.pack(system)
        for offset in (0, 5, size - 1, size):
            assert store.get(key, offset) == data[offset:]
            assert b"".join(store.open_range(key, offset, None)[1]) == data[offset:]
            assert b"".join(store.open_version(store.head(key), offset)) == data[offset:]
        assert store.get(key, 3, 10) == data[3:13]
        with pytest.raises(InvalidInput, match=f"range {size + 1}\\+ of b/it"):
            store.get(key, size + 1)


@pytest.mark.invariant(4)
@pytest.mark.parametrize("size", [SIZE, 9 * STRIPE])
def test_a_version_is_read_wherever_it_is_and_no_other_in_its_place(bench: Bench, system: System, size: int) -> None:
    key = bench.put(system, "it", bench.data(size))
    store, data = system.client.store(), bench.acknowledged[key]
    row = store.resolve(key)
    bench.pack(system)
    bench.settle(system)  # the landing copy is deleted
    assert b"".join(store.open_version(row)) == data
    assert b"".join(store.read(row)[1]) == data
    bench.put(system, "it", b"new")
    for block in list(system.blocks.list_blocks()):
        system.blocks.delete(block)
    with pytest.raises(Conflict, match="deleted or overwritten"):
        b"".join(store.open_version(row))
    found, segments = store.read(row)
    assert (found, b"".join(segments)) == (store.head(key), b"new")
    bench.delete(system, key)
    with pytest.raises(Conflict, match="deleted or overwritten"):
        b"".join(store.open_version(row))
    again = bench.put(system, "it", b"again")
    assert again == key
    with pytest.raises(Conflict, match="deleted or overwritten"):
        b"".join(store.open_version(row))
