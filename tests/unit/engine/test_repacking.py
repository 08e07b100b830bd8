"""Which blocks are repacked: never those that the packer of the same settings has filled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from math import inf
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.bench.workloads import sizes
from nos_ec.composition.packing import collector_options
from nos_ec.core.gc.gc_policy import padding_days
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.packing.plan import GroupPlan, MergeList
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.gc.victims import ChosenBlock, repack
from nos_ec.engine.packable import Packable, survivor
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Blocks, Placed
from nos_ec.settings import Settings
from nos_ec.settings.sections import ConsumerSettings

SETTINGS = Settings()
GEOMETRY = SETTINGS.geometry.value()
OPTIONS = collector_options(SETTINGS)
BLOCK_ID = BlockId(bytes(16))
NEVER = Settings(consumer=ConsumerSettings(split_bytes=GEOMETRY.chunk_size))
STORE_BYTES = 5 * GEOMETRY.stripes_per_block * GEOMETRY.stripe_size


def placed(lengths: Iterator[int]) -> Iterator[Placed]:
    """Objects of these sizes, until they fill some blocks."""
    stored_bytes = 0
    for object_id, length in zip(count(1), lengths, strict=False):
        yield Placed(object_id, ObjectKey("b", f"photos/{object_id:06}"), 1, Extent(BLOCK_ID, 0, length), 0)
        stored_bytes += length
        if stored_bytes > STORE_BYTES or object_id == 20_000:
            return


def packed(objects: Iterator[Placed], settings: Settings) -> Iterator[tuple[int, list[Placed]]]:
    """The blocks into which a consumer packs the objects, but the last: stripes, and the objects in them."""
    stripes, inside = 0, list[Placed]()
    for plan in _plans(objects, collector_options(settings).new_merge_list()):
        if stripes + plan.stripe_count > GEOMETRY.stripes_per_block:
            yield stripes, inside
            stripes, inside = 0, []
        stripes += plan.stripe_count
        for one in plan.placed:
            packable = one.candidate.payload
            inside.append(Placed(packable.object_id, packable.key, 1, Extent(BLOCK_ID, 0, packable.size), 0))


def _plans(objects: Iterator[Placed], merge_list: MergeList[Packable]) -> Iterator[GroupPlan[Packable]]:
    for one in objects:
        merge_list.add(survivor(one, merge_list.size_max).candidate(0))
        while (plan := merge_list.plan(0)) is not None:
            yield plan
    while (plan := merge_list.plan(0, flush=True)) is not None:
        yield plan


class OneBlock:
    """Metadata, and the store of its block, of one block with these objects."""

    geometry = GEOMETRY

    def __init__(self, objects: Sequence[Placed]) -> None:
        self._objects = objects

    def placed_in(self, block_id: BlockId) -> Sequence[Placed]:
        assert block_id == BLOCK_ID
        return self._objects


def judged(stripes: int, objects: Sequence[Placed], dead_bytes: int = 0) -> ChosenBlock | None:
    live_bytes = sum(one.extent.length for one in objects)
    overhead_bytes = stripes * GEOMETRY.stripe_size - live_bytes - dead_bytes
    counts = (stripes, live_bytes, dead_bytes, overhead_bytes, len(objects))
    row = BlockRow(BLOCK_ID, BlockKind.FRESH, BlockState.SEALED, "w", 1, *counts, 0, None)
    block = OneBlock(objects)
    return repack(cast(Blocks, block), cast(BlockStore, block), OPTIONS, row)


def repeated(*lengths: int) -> Iterator[int]:
    rng = random.Random(3)
    while True:
        yield rng.choice(lengths)


def between(least: int, most: int) -> Iterator[int]:
    rng = random.Random(4)
    while True:
        yield rng.randint(least, most)


@pytest.mark.parametrize(
    "lengths",
    [
        repeated(70_000),
        repeated(120_000),
        repeated(1 << 20),
        repeated(70_000, 1 << 20),
        between(65_000, 70_000),
        between(30_000, 45_000),
        between(100_000, 4_000_000),
        between(2_000, 6_000),
        *(sizes(workload, 20_000, random.Random(5), 4_000_000) for workload in ("W1", "W2", "W3")),
    ],
)
def test_no_block_of_the_same_packer_is_repacked(lengths: Iterator[int]) -> None:
    blocks = list(packed(placed(lengths), SETTINGS))
    assert len(blocks) > 1
    for stripes, objects in blocks:
        assert judged(stripes, objects) is None


@pytest.mark.parametrize("lengths", [repeated(70_000), between(65_000, 70_000), between(67_000, 90_000)])
def test_blocks_of_a_packer_that_never_splits_are_repacked(lengths: Iterator[int]) -> None:
    for stripes, objects in packed(placed(lengths), NEVER):
        victim = judged(stripes, objects)
        assert victim is not None
        assert victim.needs < 0.8 * stripes
        assert victim.padding_freed_bytes == (stripes - victim.needs) * GEOMETRY.stripe_size
        assert victim.needs == int(victim.needs)


def test_dead_bytes_are_no_reason_to_repack() -> None:
    stripes, objects = next(packed(placed(between(30_000, 90_000)), SETTINGS))
    living = objects[: len(objects) // 2]
    dead_bytes = sum(one.extent.length for one in objects[len(living) :])
    assert judged(stripes, living) is not None
    assert judged(stripes, living, dead_bytes) is None


def test_a_block_without_live_objects_takes_no_stripe() -> None:
    victim = judged(GEOMETRY.stripes_per_block, [])
    assert victim is not None
    assert (victim.needs, victim.padding_days(0)) == (0, inf)


@given(st.floats(1e-3, 1e4), st.integers(0, 1 << 30), st.integers(1, 1 << 30))
def test_the_price_of_padding_grows_with_age_and_padding(age_days: float, padding_bytes: int, live_bytes: int) -> None:
    price = padding_days(age_days, padding_bytes, live_bytes)
    assert 0 <= price <= padding_days(age_days + 1, padding_bytes, live_bytes)
    assert price < padding_days(age_days, padding_bytes + 1, live_bytes)
    assert padding_days(-age_days, padding_bytes, live_bytes) == 0, "a clock that was set back"
    assert padding_days(10.0, 70, 35) == 20.0
