"""Packed objects are read back in few reads, and a block that does not answer delays no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import NoneType
from typing import cast

import google_crc32c
import pytest

from nos_ec.core.errors import Corrupt, NotFound, Transient
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.upkeep import verifier
from nos_ec.engine.upkeep.verifier import AWAY_MS, READ_BYTES_MAX, READS_MAX, Outcome, PackedObject, Verifier
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import unwatched
from nos_ec.ports.metadata import ObjectRow
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.read_threads import LateByRequest

LENGTH = 1000


class Blocks:
    """A block store in which every byte is its block's number. Some blocks fail or hang."""

    def __init__(self) -> None:
        self.reads: list[tuple[BlockId, int]] = []
        self.errors: dict[BlockId, Exception] = {}
        self.damaged: set[Extent] = set()
        self.hanging: set[BlockId] = set()
        self.threads = LateByRequest(READS_MAX)
        self.answer = threading.Event()
        self._lock = threading.Lock()
        self._in_flight = self.in_flight_max = 0

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """See BlockStore."""
        with self._lock:
            self.reads.append((block_id, len(extents)))
            self._in_flight += sum(length for _, length in extents)
            self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            if block_id in self.hanging:
                self.threads.hang()
                self.answer.wait()
                raise Transient("no answer at all")
            if block_id in self.errors:
                raise self.errors[block_id]
            if any(Extent(block_id, *extent) in self.damaged for extent in extents):
                raise Corrupt("a page is damaged")
            return [block_id[:1] * length for _, length in extents]
        finally:
            with self._lock:
                self._in_flight -= sum(length for _, length in extents)


@pytest.fixture
def blocks() -> Iterator[Blocks]:
    made = Blocks()
    with closing(made.threads):
        yield made
        made.answer.set()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def verify(blocks: Blocks, clock: FakeClock) -> Verifier:
    return Verifier(cast(BlockStore, blocks), blocks.threads, clock)


def block(number: int) -> BlockId:
    return BlockId(bytes([number]) * 16)


def packed(number: int, count: int, length: int = LENGTH) -> list[PackedObject]:
    """Objects that lie one after the other in a block."""
    data = bytes([number]) * length
    rows = [row(f"{number}-{index}", length, google_crc32c.value(data)) for index in range(count)]
    return [PackedObject(one, Extent(block(number), index * length, length)) for index, one in enumerate(rows)]


def row(name: str, size: int, crc32c: int) -> ObjectRow:
    return ObjectRow(1, ObjectKey("b", name), 1, size, crc32c, bytes(16), ObjectState.PACKED, None, None, 0)


def kinds(outcomes: Sequence[Outcome]) -> list[type[object]]:
    return [type(outcome) for outcome in outcomes]


def test_the_objects_of_a_block_are_one_read(blocks: Blocks, verify: Verifier) -> None:
    one, other = packed(1, 30), packed(2, 20)
    mixed = [*other[10:], *one, *other[:10]]
    assert verify.verify(mixed, unwatched) == [None] * 50
    assert sorted(blocks.reads) == [(block(1), 30), (block(2), 20)]


def test_reads_are_limited_in_objects_and_bytes(
    blocks: Blocks, verify: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "READ_EXTENTS_MAX", 7)
    assert verify.verify(packed(1, 20), unwatched) == [None] * 20
    assert [count for _, count in blocks.reads] == [7, 7, 6]
    blocks.reads.clear()
    third = READ_BYTES_MAX // 3
    objects = [one for number in range(1, READS_MAX + 3) for one in packed(number, 4, third)]
    assert verify.verify(objects, unwatched) == [None] * len(objects)
    assert max(count for _, count in blocks.reads) == 3
    assert blocks.in_flight_max <= READS_MAX * READ_BYTES_MAX


def test_a_damaged_object_is_found_among_the_others(blocks: Blocks, verify: Verifier) -> None:
    objects = packed(1, 5)
    blocks.damaged.add(objects[2].extent)
    wrong = objects[4]._replace(row=row("wrong", LENGTH, 12345))
    assert kinds(verify.verify([*objects[:4], wrong], unwatched)) == [NoneType, NoneType, Corrupt, NoneType, Corrupt]


def test_a_block_that_is_gone_says_so_for_all_its_objects(blocks: Blocks, verify: Verifier) -> None:
    blocks.errors[block(1)] = NotFound("no such block")
    found = verify.verify([*packed(1, 2), *packed(2, 2)], unwatched)
    assert kinds(found) == [NotFound, NotFound, NoneType, NoneType]


def test_blocks_that_hang_delay_no_other(blocks: Blocks, verify: Verifier, clock: FakeClock) -> None:
    blocks.hanging = {block(number) for number in range(1, 2 * READS_MAX)}
    hanging = [one for number in range(1, 2 * READS_MAX) for one in packed(number, 2)]
    fine = [one for number in range(10, 20) for one in packed(number, 2)]
    found = verify.verify([*hanging, *fine], unwatched)
    assert kinds(found) == [Transient] * len(hanging) + [NoneType] * len(fine)
    assert not blocks.answer.is_set(), "it waited for the blocks that hang"


def test_a_block_that_does_not_answer_is_asked_once_in_a_while(
    blocks: Blocks, verify: Verifier, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "READ_EXTENTS_MAX", 2)
    blocks.errors[block(1)] = Transient("no answer")
    assert kinds(verify.verify(packed(1, 9), unwatched)) == [Transient] * 9
    assert kinds(verify.verify(packed(1, 3), unwatched)) == [Transient] * 3
    assert len(blocks.reads) == 1
    clock.advance(AWAY_MS)
    blocks.errors.clear()
    assert verify.verify(packed(1, 3), unwatched) == [None] * 3


def test_every_turn_beats(blocks: Blocks, verify: Verifier) -> None:
    beats: list[int] = []
    objects = [one for number in range(1, 2 * READS_MAX + 1) for one in packed(number, 1)]
    verify.verify(objects, beats.append)
    assert beats == [0, 0]
