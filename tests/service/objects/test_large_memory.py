"""Large objects are written a block at a time, and read in windows; in memory is no more than that."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects import large_block
from nos_ec.engine.objects.large_block import WINDOW_BYTES, windows
from nos_ec.library.object_store import ObjectStore
from nos_ec.library.opening import open_store
from nos_ec.ports.metadata import Segment
from tests.service.conftest import STRIPE, WAIT_S_MAX, Bench

MIB = 1 << 20


def test_windows_are_the_range_and_end_at_multiples() -> None:
    assert list(windows(5, 5)) == []
    assert list(windows(5, 9)) == [(5, 4)]
    found = list(windows(4196, 2 * WINDOW_BYTES + 7))
    assert found == [(4196, WINDOW_BYTES - 4196), (WINDOW_BYTES, WINDOW_BYTES), (2 * WINDOW_BYTES, 7)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    """With blocks of 32 MiB."""
    with open_store(tmp_path / "store", create=True) as store:
        yield store


def _pieces(size: int) -> Iterator[bytes]:
    piece = bytes(range(256)) * (MIB // 256)
    return (piece for _ in range(size // MIB))


@pytest.mark.invariant(9)
def test_what_is_in_memory_while_large_objects_are_written_and_read(store: ObjectStore) -> None:
    """Counted by the byte, by what Python allocates, the coding of the embedded store included."""
    size = 72 * MIB
    tracemalloc.start()
    try:
        store.put("b/large", _pieces(size), size)
        written = tracemalloc.get_traced_memory()[1]
        with ExitStack() as stack:
            readers = [stack.enter_context(store.open_read("b/large")) for _ in range(3)]
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            crc32c = 0
            while part := readers[0].read(MIB):
                crc32c = google_crc32c.extend(crc32c, part)
                for reader in readers[1:]:
                    assert reader.read(MIB) == part
            read = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert crc32c == store.head("b/large").row.crc32c
    assert 32 * MIB < written < 56 * MIB, "a block, what is read ahead, and the coding of a window"
    assert 2 * WINDOW_BYTES < read < 6 * WINDOW_BYTES, "two readers have a window each; the third needs three to read"


MEMORY = """
import sys, threading
import nos_ec
size, piece = int(sys.argv[2]), bytes(1 << 20)
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
def get(store):
    with store.open_read("b/large") as reader:
        total = 0
        while part := reader.read(1 << 20):
            total += len(part)
    assert total == size
with nos_ec.open_store(sys.argv[1], create=True) as store:
    store.put("b/warm", piece)
    store.get("b/warm", 0, 10)
    before = peak()
    store.put("b/large", (piece for _ in range(size >> 20)), size)
    put = peak() - before
    readers = [threading.Thread(target=get, args=(store,)) for _ in range(4)]
    for reader in readers: reader.start()
    for reader in readers: reader.join()
    print(put, peak() - before)
"""


@pytest.mark.invariant(9)
def test_memory_does_not_grow_with_the_object(tmp_path: Path) -> None:
    """A PUT of 256 MiB and four GETs at once, as streams."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "store"), str(256 * MIB)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S_MAX)
    put, both = map(int, done.stdout.split())
    assert 32 * MIB < put < 96 * MIB
    assert both < 150 * MIB


def test_a_segment_with_another_crc_is_refused_before_its_last_window(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_block, "WINDOW_BYTES", 2 * STRIPE)
    key = bench.put(system, "large", bench.data(9 * STRIPE))
    store, data = system.client.store(), bench.acknowledged[key]
    (first, second) = system.metadata.segments(store.head(key).object_id, store.head(key).version)
    assert [len(window) for window in store.open(key)[1]][1:4] == [2 * STRIPE] * 3
    wrong = replace(first, crc32c=first.crc32c ^ 1)

    def segments(_: object, *__: int) -> list[Segment]:
        return [wrong, second]

    monkeypatch.setattr(type(system.metadata), "segments", segments)
    got = b""
    with pytest.raises(Corrupt, match="CRC32C") as error:  # noqa: PT012
        for window in store.open(key)[1]:
            got += window
    assert error.value.key == key
    assert got == data[: len(got)]
    assert first.extent.length - 2 * STRIPE <= len(got) < first.extent.length
    assert b"".join(store.open_range(key, 1, len(data))[1]) == data[1:], "only the CRC of a whole segment is known"
    assert store.get(ObjectKey("b", "large"), first.extent.length) == data[first.extent.length :]


def test_a_reader_whose_read_failed_compares_the_crc_of_the_segment_all_the_same(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading again must not make wrong bytes right, nor a passing failure switch the check off."""
    monkeypatch.setattr(large_block, "WINDOW_BYTES", 2 * STRIPE)
    key = bench.put(system, "large", bench.data(9 * STRIPE))
    data, row = bench.acknowledged[key], system.client.store().head(key)
    first, *others = system.metadata.segments(row.object_id, row.version)
    found = [replace(first, crc32c=first.crc32c ^ 1), *others]
    monkeypatch.setattr(type(system.metadata), "segments", lambda *_: found)
    got = bytearray()

    def read_on() -> None:
        while more := reader.read1(STRIPE):
            got.extend(more)

    with ObjectStore(system).open_read(key) as reader:
        got += reader.read1(STRIPE)
        with monkeypatch.context() as broken:
            broken.setattr(type(system.blocks), "read", _away)
            with pytest.raises(Transient):
                read_on()
        for _ in range(3):
            with pytest.raises(Corrupt, match="CRC32C"):
                read_on()
        assert got == data[: len(got)]
        assert STRIPE < len(got) < first.extent.length
        found[0] = first
        read_on()
    assert got == data


def _away(*_: object) -> bytes:
    raise Transient("block store: away")
