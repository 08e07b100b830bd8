"""Ranges of objects never contain bytes that were not PUT, wherever the object is."""

from __future__ import annotations

from pathlib import Path

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import ObjectKey

from .conftest import CHUNK, Bench

SIZE = 3 * CHUNK
RANGES = [(0, 10), (CHUNK, 100), (SIZE - 5, 5), (1, SIZE - 2)]


def _range(system: System, key: ObjectKey, offset: int, length: int) -> bytes:
    return b"".join(system.store().open_range(key, offset, length)[1])


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
    extent = system.store().head(key).extent
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
