"""What every block store must do. Subclass the contract and define `open_blocks`. It uses the store's own geometry."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import pytest

from nos_ec.core.errors import Conflict, Corrupt, NotFound
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId
from nos_ec.ports.block_store import BlockStore
from tests.rig.waiting import WAIT_S_MAX


def new_block_id() -> BlockId:
    """Return a block id that was never used."""
    return BlockId(os.urandom(16))


class BlockStoreContract:
    """The promises of nos_ec.ports.block_store, as tests."""

    @pytest.fixture
    def open_blocks(self) -> Callable[[], BlockStore]:
        """Return a function that opens the same store at each call, as another process would. The tests close what they
        open.

        A block of the store must hold at least 4 stripes.
        """
        raise NotImplementedError

    @pytest.fixture
    def blocks(self, open_blocks: Callable[[], BlockStore]) -> Iterator[BlockStore]:
        blocks = open_blocks()
        yield blocks
        blocks.close()

    @pytest.fixture
    def other(self, open_blocks: Callable[[], BlockStore]) -> Iterator[BlockStore]:
        """A second handle on the store, as another process would have."""
        blocks = open_blocks()
        yield blocks
        blocks.close()

    @pytest.fixture
    def block_id(self, blocks: BlockStore) -> BlockId:
        """An empty block."""
        block_id = new_block_id()
        blocks.create(block_id)
        return block_id

    @staticmethod
    def stripes_of(blocks: BlockStore, count: int, seed: int = 0) -> bytes:
        """Return the bytes of `count` different stripes."""
        return Random(seed).randbytes(count * blocks.geometry.stripe_size)

    # --- create ---------------------------------------------------------------------------------------

    def test_a_new_block_is_empty_and_listed(self, blocks: BlockStore, other: BlockStore) -> None:
        block_id = new_block_id()
        assert block_id not in set(blocks.list_blocks())
        blocks.create(block_id)
        for handle in (blocks, other):
            assert handle.stripes(block_id) == 0
            assert block_id in set(handle.list_blocks())

    def test_create_is_exclusive(self, blocks: BlockStore, other: BlockStore, block_id: BlockId) -> None:
        data = self.stripes_of(blocks, 1)
        blocks.append(block_id, 0, data)
        for handle in (blocks, other):
            with pytest.raises(Conflict) as refused:
                handle.create(block_id)
            assert refused.value.block_id == block_id
        blocks.seal(block_id)
        with pytest.raises(Conflict):
            other.create(block_id)
        assert blocks.read(block_id, 0, len(data)) == data

    def test_one_of_two_creators_wins(self, blocks: BlockStore, other: BlockStore) -> None:
        for _ in range(8):
            block_id = new_block_id()
            outcome = _race(partial(blocks.create, block_id), partial(other.create, block_id))
            assert sorted(outcome) == ["Conflict", "done"]
            assert blocks.stripes(block_id) == 0

    def test_a_block_is_created_with_its_first_stripes(self, blocks: BlockStore, other: BlockStore) -> None:
        block_id, size = new_block_id(), blocks.geometry.stripe_size
        data = self.stripes_of(blocks, 3)
        blocks.create(block_id, memoryview(data)[: 2 * size])
        for handle in (blocks, other):
            assert handle.stripes(block_id) == 2
            with pytest.raises(Conflict):
                handle.create(block_id, data[:size])
        blocks.append(block_id, 2, data[2 * size :])
        assert other.read(block_id, 0, len(data)) == data

    def test_a_block_can_be_created_only_with_whole_stripes(self, blocks: BlockStore) -> None:
        block_id, size = new_block_id(), blocks.geometry.stripe_size
        for data in (bytes(1), bytes(size - 1), bytes(size * blocks.geometry.stripes_per_block + size)):
            with pytest.raises(ValueError, match="whole stripes"):
                blocks.create(block_id, data)
        assert block_id not in set(blocks.list_blocks())

    # --- append ---------------------------------------------------------------------------------------

    def test_what_was_appended_reads_back(self, blocks: BlockStore, other: BlockStore, block_id: BlockId) -> None:
        data = self.stripes_of(blocks, 4)
        size = blocks.geometry.stripe_size
        blocks.append(block_id, 0, data[:size])
        blocks.append(block_id, 1, bytearray(data[size : 3 * size]))
        blocks.append(block_id, 3, memoryview(data)[3 * size :])
        for handle in (blocks, other):
            assert handle.stripes(block_id) == 4
            assert handle.read(block_id, 0, len(data)) == data

    def test_a_block_is_filled_by_one_append_and_takes_no_more(self, blocks: BlockStore, block_id: BlockId) -> None:
        count = blocks.geometry.stripes_per_block
        data = self.stripes_of(blocks, count)
        blocks.append(block_id, 0, data)
        assert blocks.stripes(block_id) == count
        assert blocks.read(block_id, 0, len(data)) == data
        with pytest.raises(ValueError, match="stripe"):
            blocks.append(block_id, count, self.stripes_of(blocks, 1))
        assert blocks.seal(block_id) == count

    def test_a_block_created_full_accepts_no_append(self, blocks: BlockStore, other: BlockStore) -> None:
        block_id, count = new_block_id(), blocks.geometry.stripes_per_block
        data = self.stripes_of(blocks, count)
        blocks.create(block_id, data)
        for handle in (blocks, other):
            for at_stripe in (0, count - 1):
                with pytest.raises(Conflict):
                    handle.append(block_id, at_stripe, self.stripes_of(blocks, 1))
            assert handle.seal(block_id) == count
            assert handle.read(block_id, 0, len(data)) == data

    @pytest.mark.parametrize("at_stripe", [0, 1, 3, 4])
    def test_an_append_anywhere_but_at_the_end_is_refused(
        self, blocks: BlockStore, other: BlockStore, block_id: BlockId, at_stripe: int
    ) -> None:
        data = self.stripes_of(blocks, 2)
        blocks.append(block_id, 0, data)
        for handle in (blocks, other):
            with pytest.raises(Conflict) as refused:
                handle.append(
                    block_id, at_stripe % blocks.geometry.stripes_per_block, self.stripes_of(blocks, 1, seed=1)
                )
            assert refused.value.block_id == block_id
        assert blocks.stripes(block_id) == 2
        assert blocks.read(block_id, 0, len(data)) == data

    def test_an_append_of_partial_stripes_is_a_bug(self, blocks: BlockStore, block_id: BlockId) -> None:
        size = blocks.geometry.stripe_size
        for data in (
            b"",
            bytes(1),
            bytes(size - 1),
            bytes(size + PAGE),
            bytes(size * blocks.geometry.stripes_per_block + size),
        ):
            with pytest.raises(ValueError, match="stripe"):
                blocks.append(block_id, 0, data)
        with pytest.raises(ValueError, match="stripe"):
            blocks.append(block_id, -1, bytes(size))
        assert blocks.stripes(block_id) == 0

    def test_appending_to_a_missing_block_is_not_found(self, blocks: BlockStore) -> None:
        with pytest.raises(NotFound):
            blocks.append(new_block_id(), 0, self.stripes_of(blocks, 1))

    def test_one_of_two_appenders_at_the_same_end_wins(
        self, blocks: BlockStore, other: BlockStore, block_id: BlockId
    ) -> None:
        for at_stripe in range(min(4, blocks.geometry.stripes_per_block)):
            tries = [self.stripes_of(blocks, 1, seed=seed) for seed in (1, 2)]
            outcome = _race(
                partial(blocks.append, block_id, at_stripe, tries[0]),
                partial(other.append, block_id, at_stripe, tries[1]),
            )
            assert sorted(outcome) == ["Conflict", "done"]
            size = blocks.geometry.stripe_size
            assert blocks.read(block_id, at_stripe * size, size) == tries[outcome.index("done")]

    def test_threads_append_to_separate_blocks(self, blocks: BlockStore) -> None:
        size = blocks.geometry.stripe_size

        def fill(seed: int) -> BlockId:
            block_id = new_block_id()
            blocks.create(block_id)
            for stripe in range(4):
                blocks.append(block_id, stripe, self.stripes_of(blocks, 1, seed=seed * 10 + stripe))
                assert blocks.read(block_id, stripe * size, size) == self.stripes_of(blocks, 1, seed=seed * 10 + stripe)
            return block_id

        with ThreadPoolExecutor(4) as pool:
            block_ids = list(pool.map(fill, range(8)))
        for seed, block_id in enumerate(block_ids):
            assert blocks.seal(block_id) == 4
            for stripe in range(4):
                assert blocks.read(block_id, stripe * size, size) == self.stripes_of(blocks, 1, seed=seed * 10 + stripe)

    # --- read -----------------------------------------------------------------------------------------

    def test_any_range_reads_back_exactly(self, blocks: BlockStore, block_id: BlockId) -> None:
        data = self.stripes_of(blocks, 3)
        blocks.append(block_id, 0, data)
        chunk, stripe = blocks.geometry.chunk_size, blocks.geometry.stripe_size
        edges = [0, 1, PAGE - 1, PAGE, chunk - 1, chunk, chunk + 1, stripe - 1, stripe, stripe + chunk + 7, 2 * stripe]
        ranges = [(a, b - a) for a in edges for b in [*edges, len(data)] if a <= b]
        random = Random(7)
        for _ in range(60):
            a, b = sorted((random.randrange(len(data)), random.randrange(len(data))))
            ranges.append((a, b - a))
        for offset, length in ranges:
            assert blocks.read(block_id, offset, length) == data[offset : offset + length], (offset, length)
        assert blocks.read_many(block_id, ranges) == [data[a : a + n] for a, n in ranges]
        assert blocks.read_many(block_id, []) == []
        assert blocks.counters().degraded_reads == 0

    def test_a_read_past_the_end_is_corrupt(self, blocks: BlockStore, block_id: BlockId) -> None:
        data = self.stripes_of(blocks, 1)
        with pytest.raises(Corrupt):
            blocks.read(block_id, 0, 1)
        blocks.append(block_id, 0, data)
        for offset, length in [(len(data), 1), (len(data) - 1, 2), (0, len(data) + 1), (blocks.geometry.block_size, 1)]:
            with pytest.raises(Corrupt) as refused:
                blocks.read(block_id, offset, length)
            assert refused.value.block_id == block_id
            with pytest.raises(Corrupt):
                blocks.read_many(block_id, [(0, 1), (offset, length)])
        assert blocks.read(block_id, len(data) - 1, 1) == data[-1:]

    def test_a_negative_range_is_a_bug(self, blocks: BlockStore, block_id: BlockId) -> None:
        for offset, length in [(-1, 1), (0, -1)]:
            with pytest.raises(ValueError, match="range"):
                blocks.read(block_id, offset, length)

    def test_a_missing_id_is_not_found(self, blocks: BlockStore) -> None:
        block_id = new_block_id()
        for ask in (
            lambda: blocks.read(block_id, 0, 1),
            lambda: blocks.read(block_id, 0, 0),
            lambda: blocks.read(block_id, blocks.geometry.block_size, 1),
            lambda: blocks.read_many(block_id, [(0, 1), (5, 5)]),
            lambda: blocks.seal(block_id),
            lambda: blocks.stripes(block_id),
        ):
            with pytest.raises(NotFound) as refused:
                ask()
            assert refused.value.block_id == block_id

    def test_threads_read_while_others_append(self, blocks: BlockStore) -> None:
        block_id, busy_id = new_block_id(), new_block_id()
        blocks.create(block_id)
        blocks.create(busy_id)
        data = self.stripes_of(blocks, 2)
        blocks.append(block_id, 0, data)

        def read(seed: int) -> bool:
            random = Random(seed)
            pairs = [sorted((random.randrange(len(data)), random.randrange(len(data)))) for _ in range(40)]
            return all(blocks.read(block_id, a, b - a) == data[a:b] for a, b in pairs)

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read, seed) for seed in range(6)]
            for stripe in range(4):
                blocks.append(busy_id, stripe, self.stripes_of(blocks, 1))
            assert all(reader.result() for reader in readers)

    # --- what a read costs ----------------------------------------------------------------------------

    @pytest.mark.parametrize("stripe", [0, 1])
    def test_a_range_inside_a_chunk_is_one_shard_read(self, blocks: BlockStore, block_id: BlockId, stripe: int) -> None:
        blocks.append(block_id, 0, self.stripes_of(blocks, 2))
        chunk = blocks.geometry.chunk_size
        length = chunk // 2
        for column in range(blocks.geometry.k):
            before = blocks.counters()
            blocks.read(block_id, stripe * blocks.geometry.stripe_size + column * chunk + PAGE, length)
            after = blocks.counters()
            assert after.shard_reads - before.shard_reads == 1
            assert after.shard_bytes - before.shard_bytes == length
            assert after.degraded_reads == before.degraded_reads

    def test_reads_cost_whole_pages(self, blocks: BlockStore, block_id: BlockId) -> None:
        blocks.append(block_id, 0, self.stripes_of(blocks, 1))
        for offset, length, pages in [(0, 1, 1), (PAGE - 1, 2, 2), (100, PAGE, 2), (PAGE, PAGE, 1)]:
            before = blocks.counters().shard_bytes
            blocks.read(block_id, offset, length)
            assert blocks.counters().shard_bytes - before == pages * PAGE

    def test_a_longer_range_reads_each_shard_once(self, blocks: BlockStore, block_id: BlockId) -> None:
        geometry = blocks.geometry
        blocks.append(block_id, 0, self.stripes_of(blocks, 3))
        for offset, length, shards in [
            (geometry.chunk_size - 1, 2, 2),
            (0, geometry.stripe_size, geometry.k),
            (1, 3 * geometry.stripe_size - 2, geometry.k),
            (geometry.stripe_size - 1, 2, 2),
        ]:
            before = blocks.counters().shard_reads
            blocks.read(block_id, offset, length)
            assert blocks.counters().shard_reads - before == shards

    # --- seal -----------------------------------------------------------------------------------------

    def test_a_sealed_block_accepts_no_append(self, blocks: BlockStore, other: BlockStore, block_id: BlockId) -> None:
        data = self.stripes_of(blocks, 2)
        blocks.append(block_id, 0, data)
        assert other.seal(block_id) == 2
        assert blocks.seal(block_id) == 2, "sealing is idempotent"
        for handle in (blocks, other):
            with pytest.raises(Conflict):
                handle.append(block_id, 2, self.stripes_of(blocks, 1))
            assert handle.stripes(block_id) == 2
            assert handle.read(block_id, 0, len(data)) == data

    def test_an_empty_block_can_be_sealed(self, blocks: BlockStore, block_id: BlockId) -> None:
        assert blocks.seal(block_id) == 0
        assert blocks.stripes(block_id) == 0
        with pytest.raises(Conflict):
            blocks.append(block_id, 0, self.stripes_of(blocks, 1))

    def test_a_seal_stops_an_appender_and_counts_all_acknowledged_stripes(
        self, blocks: BlockStore, other: BlockStore
    ) -> None:
        for turn in range(6):
            block_id = new_block_id()
            blocks.create(block_id)
            acknowledged: list[int] = []
            begun = threading.Event()

            def append_until_sealed(block_id: BlockId, acknowledged: list[int], begun: threading.Event) -> str:
                try:
                    for stripe in range(blocks.geometry.stripes_per_block):
                        blocks.append(block_id, stripe, self.stripes_of(blocks, 1, seed=stripe))
                        acknowledged.append(stripe)
                        begun.set()
                except Conflict:
                    return "stopped"
                return "filled"

            with ThreadPoolExecutor(1) as pool:
                appender = pool.submit(append_until_sealed, block_id, acknowledged, begun)
                assert begun.wait(WAIT_S_MAX)
                sealed = other.seal(block_id)
                assert appender.result() == "stopped" or sealed == blocks.geometry.stripes_per_block, turn
            assert sealed == len(acknowledged), "an append that failed with Conflict wrote nothing"
            size = blocks.geometry.stripe_size
            for stripe in acknowledged:
                assert other.read(block_id, stripe * size, size) == self.stripes_of(blocks, 1, seed=stripe)

    # --- delete, lists, sums --------------------------------------------------------------------------

    def test_a_deleted_block_is_gone_and_the_others_stay(
        self, blocks: BlockStore, other: BlockStore, block_id: BlockId
    ) -> None:
        kept = new_block_id()
        data = self.stripes_of(blocks, 1)
        blocks.create(kept)
        for each in (block_id, kept):
            blocks.append(each, 0, data)
        blocks.seal(block_id)
        for _ in range(2):
            other.delete(block_id)
            assert set(blocks.list_blocks()) == {kept}
            with pytest.raises(NotFound):
                blocks.read(block_id, 0, 1)
            with pytest.raises(NotFound):
                blocks.append(block_id, 1, data)
            with pytest.raises(NotFound):
                blocks.seal(block_id)
            with pytest.raises(NotFound):
                blocks.stripes(block_id)
        assert blocks.read(kept, 0, len(data)) == data
        blocks.append(kept, 1, data)

    def test_deleting_a_missing_block_is_no_error(self, blocks: BlockStore) -> None:
        blocks.delete(new_block_id())

    def test_a_reader_of_a_block_being_deleted_gets_bytes_or_not_found(self, blocks: BlockStore) -> None:
        data = self.stripes_of(blocks, 1)
        for _ in range(10):
            block_id = new_block_id()
            blocks.create(block_id)
            blocks.append(block_id, 0, data)
            with ThreadPoolExecutor(1) as pool:
                deleted = pool.submit(blocks.delete, block_id)
                try:
                    while True:
                        assert blocks.read(block_id, 0, len(data)) == data
                except NotFound:
                    deleted.result()

    def test_raw_bytes_count_all_shards(self, blocks: BlockStore, block_id: BlockId) -> None:
        geometry = blocks.geometry
        before = blocks.raw_bytes()
        blocks.append(block_id, 0, self.stripes_of(blocks, 3))
        grown = blocks.raw_bytes() - before
        least = 3 * (geometry.k + geometry.m) * geometry.chunk_size
        assert least <= grown <= least * 1.2
        blocks.delete(block_id)
        assert blocks.raw_bytes() < before + least

    def test_a_probe_changes_nothing(self, blocks: BlockStore, block_id: BlockId) -> None:
        before = set(blocks.list_blocks())
        for _ in range(3):
            blocks.probe()
        assert set(blocks.list_blocks()) == before
        assert blocks.stripes(block_id) == 0

    def test_free_bytes_are_whole_stripes(self, blocks: BlockStore) -> None:
        assert blocks.free_bytes() >= blocks.geometry.stripe_size
        assert blocks.free_bytes() % blocks.geometry.stripe_size == 0


def _race(*acts: Callable[[], object]) -> list[str]:
    """Run all calls at once. Returns "done" or "Conflict" for each."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> str:
        start.wait(WAIT_S_MAX)
        try:
            act()
        except Conflict:
            return "Conflict"
        return "done"

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))
