"""A picture of all blocks: classes, the density grid, tiles, and how long it is shared."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import closing
from math import inf
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.console.blocks import LEVELS, density
from nos_ec.console.panels import Panels
from nos_ec.console.snapshot import (
    COLUMNS,
    PRICE_EMPTY,
    PRICE_NONE,
    ROWS,
    BlockSnapshot,
    Cells,
    Snapshots,
    age_class,
    age_ms_of,
    hole_class,
    kind_of,
    price_class,
    price_days_of,
    take_snapshot,
)
from nos_ec.core.gc.gc_policy import SealedBlock, break_even_days
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.ports.metadata import BlockFigures, Blocks
from tests.rig.fakes.clock import FakeClock

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
WAIT_S_MAX = 120.0


class ListedBlocks:
    """Blocks in the order of their ids, and how many pages were read."""

    def __init__(self, blocks: Sequence[BlockFigures]) -> None:
        self.blocks = sorted(blocks)
        self.pages = 0

    def list_block_figures(self, after: BlockId | None, limit: int) -> list[BlockFigures]:
        self.pages += 1
        return [block for block in self.blocks if after is None or block.block_id > after][:limit]


def source(*blocks: BlockFigures) -> Blocks:
    return cast(Blocks, ListedBlocks(blocks))


def block(
    number: int,
    live: int = 100,
    dead: int = 0,
    days: float = 1.0,
    kind: BlockKind = BlockKind.FRESH,
    state: BlockState = BlockState.SEALED,
) -> BlockFigures:
    since_ms = NOW_MS - round(days * DAY_MS)
    return BlockFigures(BlockId(number.to_bytes(16)), kind, state, live, dead, since_ms)


figures = st.builds(
    block,
    st.integers(1, 1 << 100),
    st.integers(0, 1 << 30),
    st.integers(0, 1 << 30),
    st.floats(-1, 10_000),
    st.sampled_from(BlockKind),
    st.sampled_from(BlockState),
)


def test_hole_ratios_have_256_classes_of_equal_width() -> None:
    assert [hole_class(*pair) for pair in [(0, 0), (1, 0), (255, 1), (1, 1), (1, 255), (0, 5)]] == [
        *(0, 0, 1, 128, 255, 255)
    ]


@given(st.floats(0, 1e12))
def test_an_age_is_within_its_class(age_ms: float) -> None:
    found = age_class(round(age_ms))
    assert age_ms_of(found) <= round(age_ms) * (1 + 1e-9)
    assert found == 255 or round(age_ms) <= age_ms_of(found + 1) * (1 + 1e-9)


def test_a_clock_that_was_set_back_makes_blocks_young() -> None:
    assert age_class(-5) == 0
    assert price_class(block(1, 1, 1, days=-3), NOW_MS) > PRICE_NONE


@given(figures)
def test_the_price_of_a_class_is_that_of_gc(one: BlockFigures) -> None:
    found = price_class(one, NOW_MS)
    days = price_days_of(found)
    if one.state is not BlockState.SEALED or not one.dead_bytes:
        assert (found, days) == (PRICE_NONE, None)
    elif not one.live_bytes:
        assert (found, days) == (PRICE_EMPTY, inf)
    elif one.kind is BlockKind.LARGE:
        assert found == PRICE_NONE
    else:
        age_days = (NOW_MS - one.since_ms) / DAY_MS
        price = break_even_days(SealedBlock(one.block_id, one.live_bytes, one.dead_bytes, age_days))
        assert days is not None
        assert days <= price * (1 + 1e-9)
        assert found == PRICE_EMPTY - 1 or price <= cast(float, price_days_of(found + 1)) * (1 + 1e-9)


@given(st.lists(figures, max_size=30, unique_by=lambda one: one.block_id))
def test_each_block_is_in_one_cell(blocks: list[BlockFigures]) -> None:
    found = take_snapshot(source(*blocks), NOW_MS)
    assert found.blocks == sum(found.cells) == sum(found.counts) == len(blocks)
    assert sum(found.dead_bytes) == sum(one.dead_bytes for one in blocks)
    for place, count in enumerate(found.cells):
        column, row = divmod(place, ROWS)
        chosen, whole = found.chosen(Cells(column, column, row, row), by_price=False, limit=99)
        assert len(chosen) == whole == count
    assert [found.block_id(index) for index in range(-1, len(blocks) + 1)] == [
        *(None, *sorted(one.block_id for one in blocks), None)
    ]
    for index, one in enumerate(sorted(blocks)):
        assert kind_of(found.kinds[index]) == (one.kind, one.state)


def test_the_dearest_blocks_come_first_by_price() -> None:
    blocks = [block(1, 99, 1), block(2, 1, 99), block(3, 50, 50), block(4, 100, 0), block(5, 50, 50)]
    found = take_snapshot(source(*blocks), NOW_MS)
    assert [*found.chosen(Cells(), by_price=True, limit=9)[0]] == [1, 2, 4, 0, 3]
    assert found.chosen(Cells(), by_price=True, limit=2)[1] == 5
    assert [*found.chosen(Cells(), by_price=False, limit=2)[0]] == [0, 1]


@pytest.mark.parametrize("by_price", [False, True])
@pytest.mark.parametrize(("limit", "count"), [(9, 5), (3, 3)])
def test_an_answer_has_eight_bytes_a_block(by_price: bool, limit: int, count: int) -> None:
    kinds = [*BlockKind, *BlockKind]
    blocks = [block(number, 100 - 20 * number, 20 * number, number, kinds[number]) for number in range(5)]
    found = take_snapshot(source(*blocks), NOW_MS, number=7)
    answer = found.tiles(Cells(), by_price=by_price, limit=limit)
    assert len(answer) == 12 + 8 * count <= 12 + 10 * count
    assert struct.unpack_from("<III", answer) == (7, count, 5)
    numbers = struct.unpack_from(f"<{count}I", answer, 12)
    columns = [answer[12 + (4 + n) * count : 12 + (5 + n) * count] for n in range(4)]
    for place, index in enumerate(numbers):
        assert [column[place] for column in columns] == [
            *(found.holes[index], found.kinds[index], found.ages[index], found.prices[index])
        ]


def test_a_picture_of_many_blocks_takes_20_bytes_a_block() -> None:
    blocks = [block(number, 100 - number % 90, number % 90, days=number % 300) for number in range(5000)]
    found = take_snapshot(source(*blocks), NOW_MS)
    columns = (found.ids, found.holes, found.kinds, found.ages, found.prices)
    assert sum(map(len, columns)) == 20 * 5000


def test_sessions_share_a_picture_and_its_ids_outlive_it() -> None:
    clock = FakeClock(NOW_MS)
    listed = ListedBlocks([block(1), block(2)])
    with closing(Panels(clock, WAIT_S_MAX)) as panels:
        snapshots = Snapshots(panels, cast(Blocks, listed), clock, 1000)

        def taken() -> BlockSnapshot:
            found = snapshots.read()
            assert found.value is not None
            assert not found.error
            return found.value

        first = taken()
        assert all(taken() is first for _ in range(20))
        assert listed.pages == 2, "one page with blocks, and one without"
        listed.blocks.insert(0, block(0))
        clock.advance(1001)
        second = taken()
        assert second.number == first.number + 1
        assert snapshots.block_id(first.number, 0) == block(1).block_id
        assert snapshots.block_id(second.number, 0) == block(0).block_id
        assert snapshots.block_id(second.number + 1, 0) is None
        for _ in range(2):
            clock.advance(1001)
            taken()
        assert snapshots.block_id(first.number, 0) is None, "the ids of three pictures are kept"


def test_a_picture_of_an_earlier_process_opens_no_block() -> None:
    clock = FakeClock(NOW_MS)
    with closing(Panels(clock, WAIT_S_MAX)) as panels:
        before, after = (Snapshots(panels, cast(Blocks, ListedBlocks([block(one)])), clock, 1000) for one in (1, 2))
        shown = before.read().value
        assert shown is not None
        clock.advance(2000)
        assert after.read().value is not None
        assert before.block_id(shown.number, 0) == block(1).block_id
        assert after.block_id(shown.number, 0) is None


def test_the_density_of_an_empty_store() -> None:
    found = density(take_snapshot(source(), NOW_MS))
    assert (found.blocks, found.cells, found.counts) == (0, [], [])
    assert {cell.level for row in found.table for cell in row} == {0}


def test_the_density_of_some_blocks() -> None:
    blocks = [block(number, 100, 0, days=3) for number in range(100)] + [block(100, 0, 5, days=3000)]
    blocks += [block(101, 0, 0, days=0, state=BlockState.OPEN, kind=BlockKind.SURVIVOR)]
    found = density(take_snapshot(source(*blocks), NOW_MS))
    assert [(cell.blocks, cell.dead_bytes, cell.level) for cell in found.cells] == [(1, 0, 1), (100, 0, 8), (1, 5, 1)]
    assert found.cells[0].age_ms_min == 0
    old = found.cells[-1]
    assert (old.hole_min, old.hole_max) == (31 / 32, 1)
    assert old.age_ms_min <= 3000 * DAY_MS < (old.age_ms_max or inf)
    assert sorted(found.counts) == [
        (BlockKind.FRESH, BlockState.SEALED, 101),
        (BlockKind.SURVIVOR, BlockState.OPEN, 1),
    ]
    assert (len(found.table), {len(row) for row in found.table}) == (4, {8})
    assert sum(cell.blocks for row in found.table for cell in row) == 102
    assert found.table[0][0].cells.last_row == ROWS - 1
    assert found.table[-1][-1].cells.last_column == COLUMNS - 1
    assert found.table[-1][-1].age_ms_max is None


@given(st.lists(figures, max_size=30, unique_by=lambda one: one.block_id))
def test_every_shade_exists(blocks: list[BlockFigures]) -> None:
    found = density(take_snapshot(source(*blocks), NOW_MS))
    shown = [*found.cells, *(cell for row in found.table for cell in row)]
    assert all((1 if cell.blocks else 0) <= cell.level <= LEVELS for cell in shown)
