"""After a long group has failed, its objects are written in groups of a window, with the packer's own long groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from nos_consumer.assemble import drain
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.formats.header import decode_header, peek_length
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import BlockState, ObjectState
from nos_ec.engine.header_scan import scan_headers
from nos_ec.ports.block_store import BlockStore
from nos_gc.assemble import gc_service
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.rig.long_groups import LONG_CONFIG, STRIPES, WINDOW, long_bench
from tests.rig.preloaded import Preloaded
from tests.service.conftest import STRIPE, Bench
from tests.service.gc.test_gc import configure
from tests.service.packing.test_long_groups import longest

OBJECTS = 100


class NoSecondWindow:
    """A block store in which all appends to a long group fail: it is too slow for them, say. failed: how many did."""

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._end: dict[BlockId, int] = {}
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def create(self, block_id: BlockId, data: bytes = b"") -> None:
        self._note(block_id, 0, data)
        self._blocks.create(block_id, data)

    def append(self, block_id: BlockId, at_stripe: int, data: bytes) -> None:
        if at_stripe < self._end.get(block_id, 0):
            self.failed += 1
            raise Transient("no answer")
        self._note(block_id, at_stripe, data)
        self._blocks.append(block_id, at_stripe, data)

    def _note(self, block_id: BlockId, at_stripe: int, data: bytes) -> None:
        if data:
            front = bytes(data[: peek_length(bytes(data[:4096]), block_id, at_stripe)])
            self._end[block_id] = at_stripe + decode_header(front, block_id, at_stripe).stripe_count


@pytest.fixture(params=[1, 4], ids=["one stream", "streams"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, preloaded: Preloaded) -> Bench:
    made = long_bench(tmp_path, preloaded, LONG_CONFIG)
    configure(made, "gc", f"streams = {request.param}")
    return made


@pytest.fixture
def published(bench: Bench) -> Iterator[System]:
    """A store with objects of one size, of which a short group holds few."""
    with bench.open() as system:
        for number in range(OBJECTS):
            bench.put(system, f"o/{number:03}", bench.data(STRIPE))
        bench.produce(system)
        yield system


def unfinished(system: System) -> int:
    """How many blocks end with an unfinished group. The services have recovered them."""
    rows = list(all_blocks(system.metadata))
    assert {row.state for row in rows} == {BlockState.SEALED}
    return sum(scan_headers(system.blocks, row.block_id, row.stripes).unfinished is not None for row in rows)


def test_the_packer_makes_long_groups_of_these_objects(bench: Bench, published: System) -> None:
    drain(published)
    assert longest(published) == STRIPES
    bench.assert_readable(published)


def test_a_consumer_whose_long_groups_all_fail_packs_everything(bench: Bench, published: System) -> None:
    plain, blocks = published.blocks, NoSecondWindow(published.blocks)
    published.blocks = cast(BlockStore, blocks)
    drain(published)
    published.blocks = plain
    assert {row.state for row in all_objects(published.metadata)} == {ObjectState.PACKED}
    assert 1 <= blocks.failed <= 2
    assert unfinished(published) == blocks.failed
    bench.settle(published)
    bench.assert_readable(published)
    assert longest(published) <= WINDOW
    bench.assert_at_rest(published)


def damage(bench: Bench, system: System, number: int) -> ObjectKey:
    key = ObjectKey("b", f"o/{number:03}")
    landing_id = system.client.store().head(key).landing_id
    assert landing_id is not None
    (path,) = (bench.folder / "store" / "landing").glob(f"*/{landing_id.hex()}*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return key


def test_a_damaged_source_costs_one_block(bench: Bench, published: System) -> None:
    key = damage(bench, published, 9)
    drain(published)
    states = {row.key: row.state for row in all_objects(published.metadata)}
    assert states.pop(key) is not ObjectState.PACKED
    assert set(states.values()) == {ObjectState.PACKED}
    assert unfinished(published) == 1


def test_a_gc_run_whose_long_groups_all_fail_moves_everything(bench: Bench, published: System) -> None:
    drain(published)
    keys = sorted(bench.acknowledged, key=lambda key: key.name)
    for index, key in enumerate(keys):
        if index % 5:
            bench.delete(published, key)
    plain, blocks = published.blocks, NoSecondWindow(published.blocks)
    published.blocks = cast(BlockStore, blocks)
    result = gc_service(published).run_once()
    published.blocks = plain
    assert 1 <= blocks.failed <= 2, "one group may wait when the first one fails"
    assert result.objects_moved == len(bench.acknowledged)
    bench.settle(published)
    bench.assert_readable(published)
    bench.assert_at_rest(published)
