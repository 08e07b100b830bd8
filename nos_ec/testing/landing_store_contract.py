"""What every landing store must do. Subclass the contract and define `open_store`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from nos_ec.core.errors import Conflict, Corrupt, NotFound
from nos_ec.core.ids import LandingId
from nos_ec.ports.landing_store import LandingStore


def new_landing_id() -> LandingId:
    """A landing id that was never used."""
    return LandingId(os.urandom(16))


class LandingStoreContract:
    """The promises of nos_ec.ports.landing_store, as tests."""

    @pytest.fixture
    def open_store(self) -> Callable[[], LandingStore]:
        """A function that opens the same store each time, as another process would. The tests close what they open."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store: Callable[[], LandingStore]) -> Iterator[LandingStore]:
        store = open_store()
        yield store
        store.close()

    @pytest.fixture
    def other(self, open_store: Callable[[], LandingStore]) -> Iterator[LandingStore]:
        """A second handle, as if in another process."""
        store = open_store()
        yield store
        store.close()

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000, 4 << 20])
    def test_what_was_put_reads_back(self, store: LandingStore, other: LandingStore, size: int) -> None:
        landing_id, data = new_landing_id(), Random(size).randbytes(size)
        store.put(landing_id, data)
        for handle in (store, other):
            assert handle.read(landing_id) == data
            assert list(handle.list_ids()) == [landing_id]

    def test_any_buffer_will_do(self, store: LandingStore) -> None:
        for data in (b"abcdef", bytearray(b"abcdef"), memoryview(b"abcdef"), memoryview(b"__abcdef__")[2:-2]):
            landing_id = new_landing_id()
            store.put(landing_id, data)
            assert store.read(landing_id) == b"abcdef"

    def test_an_id_is_used_once(self, store: LandingStore, other: LandingStore) -> None:
        landing_id = new_landing_id()
        store.put(landing_id, b"first")
        for handle in (store, other):
            with pytest.raises(Conflict):
                handle.put(landing_id, b"second")
        assert store.read(landing_id) == b"first"

    def test_of_two_puts_of_one_id_one_wins(self, store: LandingStore, other: LandingStore) -> None:
        for _ in range(20):
            landing_id = new_landing_id()
            start = threading.Barrier(2)

            def put(handle: LandingStore, data: bytes, landing_id: LandingId, start: threading.Barrier) -> bytes | None:
                start.wait(30)
                try:
                    handle.put(landing_id, data)
                except Conflict:
                    return None
                return data

            with ThreadPoolExecutor(2) as pool:
                puts = [pool.submit(put, h, d, landing_id, start) for h, d in ((store, b"a" * 9999), (other, b"b"))]
                winners = [data for each in puts if (data := each.result()) is not None]
            assert winners == [store.read(landing_id)]

    def test_ranges(self, store: LandingStore) -> None:
        landing_id, data = new_landing_id(), Random(1).randbytes(10_000)
        store.put(landing_id, data)
        for offset, length in [(0, 0), (0, 1), (0, 10_000), (4095, 2), (9_999, 1), (10_000, 0), (123, 7_777)]:
            assert store.read_range(landing_id, offset, length) == data[offset : offset + length]
        for offset, length in [(0, 10_001), (10_000, 1), (9_999, 2), (1 << 40, 1)]:
            with pytest.raises(Corrupt):
                store.read_range(landing_id, offset, length)
        for offset, length in [(-1, 1), (0, -1)]:
            with pytest.raises(ValueError, match="range"):
                store.read_range(landing_id, offset, length)

    def test_what_does_not_exist_is_not_found(self, store: LandingStore) -> None:
        with pytest.raises(NotFound):
            store.read(new_landing_id())
        with pytest.raises(NotFound):
            store.read_range(new_landing_id(), 0, 1)

    def test_a_probe_changes_nothing(self, store: LandingStore) -> None:
        landing_id = new_landing_id()
        store.put(landing_id, b"copy")
        for _ in range(3):
            store.probe()
        assert list(store.list_ids()) == [landing_id]
        assert store.read(landing_id) == b"copy"

    def test_delete(self, store: LandingStore, other: LandingStore) -> None:
        gone, kept = new_landing_id(), new_landing_id()
        store.put(gone, b"gone")
        store.put(kept, b"kept")
        for _ in range(2):
            other.delete(gone)
            with pytest.raises(NotFound):
                store.read(gone)
            assert list(store.list_ids()) == [kept]
        store.delete(new_landing_id())
        assert store.read(kept) == b"kept"

    def test_delete_many(self, store: LandingStore, other: LandingStore) -> None:
        ids = [new_landing_id() for _ in range(30)]
        for landing_id in ids:
            store.put(landing_id, b"copy")
        gone, kept = ids[:20], ids[20:]
        for _ in range(2):
            assert other.delete_many([*gone, new_landing_id()]) == {}
            assert sorted(store.list_ids()) == sorted(kept)
        assert store.delete_many([]) == {}
        beats: list[int] = []
        store.delete_many(gone, beats.append)
        assert beats
        assert set(beats) == {0}
        assert all(store.read(landing_id) == b"copy" for landing_id in kept)

    def test_threads_put_read_and_delete(self, store: LandingStore) -> None:
        def work(seed: int) -> list[LandingId]:
            random, kept = Random(seed), []
            for number in range(20):
                landing_id, data = new_landing_id(), random.randbytes(random.randrange(20_000))
                store.put(landing_id, data)
                assert store.read(landing_id) == data
                if number % 2:
                    store.delete(landing_id)
                else:
                    kept.append(landing_id)
            return kept

        with ThreadPoolExecutor(4) as pool:
            kept = [landing_id for ids in pool.map(work, range(4)) for landing_id in ids]
        assert sorted(store.list_ids()) == sorted(kept)

    def test_raw_bytes_follow_puts_and_deletes(self, store: LandingStore) -> None:
        ids = [new_landing_id() for _ in range(5)]
        before = store.raw_bytes()  # a pool's figure includes other stores in it
        for landing_id in ids:
            store.put(landing_id, bytes(range(256)) * 400)
        assert store.raw_bytes() >= before + 5 * 102_400
        for landing_id in ids:
            store.delete(landing_id)
        assert store.raw_bytes() == before
