"""What every landing store must do. Subclass the contract and define `open_landing`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from nos_ec.core.errors import Conflict, Corrupt, NotFound
from nos_ec.core.ids import LandingId
from nos_ec.ports.landing_store import LABEL_SIZE_MAX, LandingPut, LandingStore
from tests.rig.waiting import WAIT_S_MAX


def new_landing_id() -> LandingId:
    """Return the landing id of a copy that was never used."""
    return LandingId(b"\x01" + os.urandom(15))


class LandingStoreContract:
    """The promises of nos_ec.ports.landing_store, as tests."""

    @pytest.fixture
    def open_landing(self) -> Callable[[], LandingStore]:
        """Return a function that opens the same store at each call, as another process would. The tests close it."""
        raise NotImplementedError

    @pytest.fixture
    def landing(self, open_landing: Callable[[], LandingStore]) -> Iterator[LandingStore]:
        landing = open_landing()
        yield landing
        landing.close()

    @pytest.fixture
    def other(self, open_landing: Callable[[], LandingStore]) -> Iterator[LandingStore]:
        """A second handle on the store, as another process would have."""
        landing = open_landing()
        yield landing
        landing.close()

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000, 4 << 20])
    def test_what_was_put_reads_back(self, landing: LandingStore, other: LandingStore, size: int) -> None:
        landing_id, data = new_landing_id(), Random(size).randbytes(size)
        landing.put(landing_id, data)
        for handle in (landing, other):
            assert handle.read(landing_id) == data
            assert list(handle.list_ids()) == [landing_id]

    def test_any_buffer_can_be_put(self, landing: LandingStore) -> None:
        for data in (b"abcdef", bytearray(b"abcdef"), memoryview(b"abcdef"), memoryview(b"__abcdef__")[2:-2]):
            landing_id = new_landing_id()
            landing.put(landing_id, data)
            assert landing.read(landing_id) == b"abcdef"

    def test_an_id_can_be_used_only_once(self, landing: LandingStore, other: LandingStore) -> None:
        landing_id = new_landing_id()
        landing.put(landing_id, b"first")
        for handle in (landing, other):
            with pytest.raises(Conflict) as refused:
                handle.put(landing_id, b"second")
            assert refused.value.landing_id == landing_id
        assert landing.read(landing_id) == b"first"

    def test_one_of_two_puts_with_the_same_id_wins(self, landing: LandingStore, other: LandingStore) -> None:
        for _ in range(20):
            landing_id = new_landing_id()
            start = threading.Barrier(2)

            def put(handle: LandingStore, data: bytes, landing_id: LandingId, start: threading.Barrier) -> bytes | None:
                start.wait(WAIT_S_MAX)
                try:
                    handle.put(landing_id, data)
                except Conflict:
                    return None
                return data

            with ThreadPoolExecutor(2) as pool:
                puts = [pool.submit(put, h, d, landing_id, start) for h, d in ((landing, b"a" * 9999), (other, b"b"))]
                winners = [data for each in puts if (data := each.result()) is not None]
            assert winners == [landing.read(landing_id)]

    def test_put_many(self, landing: LandingStore, other: LandingStore) -> None:
        copies = {new_landing_id(): Random(number).randbytes(number * 997) for number in range(100)}
        assert landing.put_many([LandingPut(*copy) for copy in copies.items()]) == {}
        for handle in (landing, other):
            assert {landing_id: handle.read(landing_id) for landing_id in handle.list_ids()} == copies
        assert landing.put_many([]) == {}

    def test_a_copy_that_fails_does_not_stop_the_others(self, landing: LandingStore) -> None:
        taken = [new_landing_id() for _ in range(3)]
        for landing_id in taken:
            landing.put(landing_id, b"first")
        free = [new_landing_id() for _ in range(20)]
        failed = landing.put_many(
            [LandingPut(one, b"second") for one in (taken[0], *free[:10], taken[1], *free[10:], taken[2])]
        )
        assert failed.keys() == set(taken)
        for landing_id, error in failed.items():
            assert isinstance(error, Conflict)
            assert error.landing_id == landing_id
        assert all(landing.read(landing_id) == b"first" for landing_id in taken)
        assert all(landing.read(landing_id) == b"second" for landing_id in free)
        (alone,) = landing.put_many([LandingPut(taken[0], b"second")]).values()
        assert isinstance(alone, Conflict)

    def test_ranges(self, landing: LandingStore) -> None:
        landing_id, data = new_landing_id(), Random(1).randbytes(10_000)
        landing.put(landing_id, data)
        for offset, length in [(0, 0), (0, 1), (0, 10_000), (4095, 2), (9_999, 1), (10_000, 0), (123, 7_777)]:
            assert landing.read_range(landing_id, offset, length) == data[offset : offset + length]
        for offset, length in [(0, 10_001), (10_000, 1), (9_999, 2), (1 << 40, 1)]:
            with pytest.raises(Corrupt) as refused:
                landing.read_range(landing_id, offset, length)
            assert refused.value.landing_id == landing_id
        for offset, length in [(-1, 1), (0, -1)]:
            with pytest.raises(ValueError, match="range"):
                landing.read_range(landing_id, offset, length)

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000, 4 << 20])
    def test_a_label_stays_beside_the_data(self, landing: LandingStore, other: LandingStore, size: int) -> None:
        data = Random(size).randbytes(size)
        given = {new_landing_id(): Random(length).randbytes(length) for length in (0, 1, 100, 4096, LABEL_SIZE_MAX)}
        for number, (landing_id, label) in enumerate(given.items()):
            if number % 2:
                landing.put(landing_id, data, label)
            else:
                assert landing.put_many([LandingPut(landing_id, data, label)]) == {}
        for handle in (landing, other):
            assert handle.labels([*given, new_landing_id()]) == given
            for landing_id in given:
                assert handle.read(landing_id) == data
                assert handle.read_range(landing_id, size // 2, size - size // 2) == data[size // 2 :]
                for offset, length in [(0, size + 1), (size, 1), (size + 5, 1)]:
                    with pytest.raises(Corrupt):
                        handle.read_range(landing_id, offset, length)
        assert landing.labels([]) == {}
        for landing_id in given:
            landing.delete(landing_id)
        assert landing.labels(list(given)) == {}

    def test_many_labels(self, landing: LandingStore) -> None:
        copies = [LandingPut(new_landing_id(), b"copy", b"label %d" % number) for number in range(200)]
        assert landing.put_many(copies) == {}
        assert landing.labels(list(landing.list_ids())) == {copy.landing_id: copy.label for copy in copies}

    def test_a_missing_id_is_not_found(self, landing: LandingStore) -> None:
        landing_id = new_landing_id()
        with pytest.raises(NotFound) as refused:
            landing.read(landing_id)
        assert refused.value.landing_id == landing_id
        with pytest.raises(NotFound) as refused:
            landing.read_range(landing_id, 0, 1)
        assert refused.value.landing_id == landing_id

    def test_a_probe_changes_nothing(self, landing: LandingStore) -> None:
        landing_id = new_landing_id()
        landing.put(landing_id, b"copy")
        for _ in range(3):
            landing.probe()
        assert list(landing.list_ids()) == [landing_id]
        assert landing.read(landing_id) == b"copy"

    def test_delete(self, landing: LandingStore, other: LandingStore) -> None:
        gone, kept = new_landing_id(), new_landing_id()
        landing.put(gone, b"gone")
        landing.put(kept, b"kept")
        for _ in range(2):
            other.delete(gone)
            with pytest.raises(NotFound):
                landing.read(gone)
            assert list(landing.list_ids()) == [kept]
        landing.delete(new_landing_id())
        assert landing.read(kept) == b"kept"

    def test_delete_many(self, landing: LandingStore, other: LandingStore) -> None:
        ids = [new_landing_id() for _ in range(30)]
        for landing_id in ids:
            landing.put(landing_id, b"copy")
        gone, kept = ids[:20], ids[20:]
        for _ in range(2):
            assert other.delete_many([*gone, new_landing_id()]) == {}
            assert sorted(landing.list_ids()) == sorted(kept)
        assert landing.delete_many([]) == {}
        beats: list[int] = []
        landing.delete_many(gone, beats.append)
        assert beats
        assert set(beats) == {0}
        assert all(landing.read(landing_id) == b"copy" for landing_id in kept)

    def test_threads_put_read_and_delete(self, landing: LandingStore) -> None:
        def work(seed: int) -> list[LandingId]:
            random, kept = Random(seed), []
            for number in range(20):
                landing_id, data = new_landing_id(), random.randbytes(random.randrange(20_000))
                landing.put(landing_id, data)
                assert landing.read(landing_id) == data
                if number % 2:
                    landing.delete(landing_id)
                else:
                    kept.append(landing_id)
            return kept

        with ThreadPoolExecutor(4) as pool:
            kept = [landing_id for ids in pool.map(work, range(4)) for landing_id in ids]
        assert sorted(landing.list_ids()) == sorted(kept)

    def test_raw_bytes_follow_puts_and_deletes(self, landing: LandingStore) -> None:
        ids = [new_landing_id() for _ in range(5)]
        before = landing.raw_bytes()  # a pool's figure includes other stores in it
        for landing_id in ids:
            landing.put(landing_id, bytes(range(256)) * 400)
        assert landing.raw_bytes() >= before + 5 * 102_400
        for landing_id in ids:
            landing.delete(landing_id)
        assert landing.raw_bytes() == before
