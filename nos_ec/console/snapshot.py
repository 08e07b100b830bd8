"""A picture of all blocks of a store at one time, which all sessions share.

A picture holds arrays and no object per block: 20 bytes a block, 6 MB for 300,000 blocks. Each block has its id and
four bytes, from which the browser draws a tile:

    hole   the hole ratio in 256 classes of equal width (dead / (live + dead); 0 for a block without data)
    kind   the place of its kind in KINDS + 4 x the place of its state in STATES
    age    how long ago it was sealed, or allocated if it is open, in 256 classes (see `age_class`)
    price  the break-even price of collecting it in 256 classes (see `price_class`)

The density grid has a column for every 4 classes of age and a row for every 8 classes of the hole ratio, so that a
block belongs to exactly one of its 64 x 32 cells.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from math import floor, inf, log10

from nos_ec.console.panels import Panel, Panels
from nos_ec.core.gc.gc_policy import SealedBlock, break_even_days
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BlockFigures, Blocks

COLUMNS, ROWS = 64, 32
"""The size of the density grid: COLUMNS classes of age by ROWS classes of hole ratio."""
TILES_MAX = 4000
"""The most blocks of a cell that are drawn at once."""
KINDS = (BlockKind.FRESH, BlockKind.SURVIVOR, BlockKind.LARGE)
STATES = (BlockState.OPEN, BlockState.FENCED, BlockState.SEALED, BlockState.CONDEMNED)
AGE_MS_MIN = 60_000
AGE_DECADES = 7
"""Ages from a minute to 10^7 minutes, which is 19 years."""
PRICE_DAYS_MIN = 1e-3
PRICE_DECADES = 7
"""Prices from 10^-3 to 10^4 days."""
PRICE_NONE, PRICE_EMPTY = 0, 255
"""The classes of a block that GC would not copy (nothing is dead, or it is not sealed, or it holds a large object), and
of one without live bytes, which costs nothing to collect."""

_CLASSES = 256
_ID_BYTES = 16
_PAGE_BLOCKS = 2000
_KEPT = 3
_NUMBERS = 1 << 31
_AGE_PER_DECADE = _CLASSES / AGE_DECADES
_PRICE_CLASSES = PRICE_EMPTY - 1
_PRICE_PER_DECADE = _PRICE_CLASSES / PRICE_DECADES
_DAY_MS = 86_400_000
_ANSWER = struct.Struct("<III")
"""The first bytes of a tile answer: the number of the picture, the number of tiles, and of the blocks asked for."""

assert COLUMNS * 4 == ROWS * 8 == _CLASSES


@dataclass(frozen=True, slots=True)
class Cells:
    """A rectangle of cells of the density grid, both ends included. Rows count from the least hole ratio."""

    first_column: int = 0
    last_column: int = COLUMNS - 1
    first_row: int = 0
    last_row: int = ROWS - 1

    @property
    def is_all(self) -> bool:
        """Return whether it is the whole grid."""
        return self == Cells()


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """A picture of all blocks. `number` distinguishes it from other pictures, and `at_ms` is when its first row was
    read. `ids` has 16 bytes a block, `holes`, `kinds`, `ages` and `prices` one byte (see the module
    docstring); all are in the order of the ids, which is about the order in which the blocks were allocated.

    `cells` counts the blocks, and `dead_bytes` their dead bytes, by column x ROWS + row. `counts` counts the blocks by
    the byte of `kinds`.
    """

    number: int
    at_ms: int
    ids: bytes
    holes: bytes
    kinds: bytes
    ages: bytes
    prices: bytes
    cells: array[int]
    dead_bytes: array[int]
    counts: array[int]

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return len(self.holes)

    def block_id(self, index: int) -> BlockId | None:
        """Return the id of the block with this number, from 0; None if there is no such block."""
        return _id_at(self.ids, index)

    def chosen(self, cells: Cells, *, by_price: bool, limit: int) -> tuple[array[int], int]:
        """Return the numbers of the first `limit` blocks in a rectangle of cells, and how many blocks it has.

        They are the first ones by place, or those with the highest prices, highest first.
        """
        found = array("I", range(self.blocks) if cells.is_all else self._in_cells(cells))
        if by_price:
            prices = self.prices
            best = nlargest(limit, found, key=lambda index: (prices[index], -index))
            return array("I", best), len(found)
        return found[:limit], len(found)

    def _in_cells(self, cells: Cells) -> Iterator[int]:
        first_age, last_age = cells.first_column * 4, cells.last_column * 4 + 3
        first_hole, last_hole = cells.first_row * 8, cells.last_row * 8 + 7
        for index, (age, hole) in enumerate(zip(self.ages, self.holes, strict=True)):
            if first_age <= age <= last_age and first_hole <= hole <= last_hole:
                yield index

    def tiles(self, cells: Cells, *, by_price: bool, limit: int) -> bytes:
        """Return the answer that the browser draws from: 12 bytes, then for the chosen blocks all numbers (4 bytes
        each), all bytes of `holes`, of `kinds`, of `ages` and of `prices`. That is 8 bytes a block, little-endian."""
        chosen, found = self.chosen(cells, by_price=by_price, limit=limit)
        columns = [self.holes, self.kinds, self.ages, self.prices]
        if by_price or len(chosen) < self.blocks:
            columns = [bytes(map(column.__getitem__, chosen)) for column in columns]
        return b"".join([_ANSWER.pack(self.number, len(chosen), found), _little(chosen), *columns])


class Snapshots:
    """The picture that all sessions share. It is taken again when somebody asks and it is older than `age_ms_max` and
    ten times as long as it took. Safe to call from several threads."""

    def __init__(self, panels: Panels, blocks: Blocks, clock: Clock, age_ms_max: int) -> None:
        self._blocks = blocks
        self._clock = clock
        self._panels = panels
        self._numbers = 0
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._source = panels.source(self._take, age_ms_max)

    def read(self) -> Panel[BlockSnapshot]:
        """Return the current picture, or why there is none yet."""
        return self._panels.read(self._source)

    def block_id(self, number: int, index: int) -> BlockId | None:
        """Return the id of a block of a picture that a browser shows; None if the picture is too old, or has no such
        block. The ids of the last few pictures are kept for this."""
        for known, ids in list(self._recent):
            if known == number:
                return _id_at(ids, index)
        return None

    def _take(self) -> BlockSnapshot:
        now_ms = self._clock.now_ms()
        # Numbers follow the time, or a browser that shows a picture of an earlier process could open a wrong block.
        self._numbers = max(self._numbers + 1, now_ms // 1000 % _NUMBERS)
        found = take_snapshot(self._blocks, now_ms, self._numbers)
        self._recent.append((found.number, found.ids))
        return found


def take_snapshot(blocks: Blocks, now_ms: int, number: int = 1) -> BlockSnapshot:
    """Read the figures of all blocks, page by page. Raises Transient."""
    ids, holes, kinds, ages, prices = bytearray(), bytearray(), bytearray(), bytearray(), bytearray()
    cells, dead = array("I", bytes(4 * COLUMNS * ROWS)), array("Q", bytes(8 * COLUMNS * ROWS))
    counts = array("I", bytes(4 * 4 * len(STATES)))
    after: BlockId | None = None
    while page := blocks.list_block_figures(after, _PAGE_BLOCKS):
        after = page[-1].block_id
        for block in page:
            hole, age = hole_class(block.live_bytes, block.dead_bytes), age_class(now_ms - block.since_ms)
            kind = _KIND_BYTES[block.kind, block.state]
            cell = (age >> 2) * ROWS + (hole >> 3)
            cells[cell] += 1
            dead[cell] += block.dead_bytes
            counts[kind] += 1
            ids += block.block_id
            holes.append(hole)
            kinds.append(kind)
            ages.append(age)
            prices.append(price_class(block, now_ms))
    return BlockSnapshot(
        number, now_ms, bytes(ids), bytes(holes), bytes(kinds), bytes(ages), bytes(prices), cells, dead, counts
    )


def hole_class(live_bytes: int, dead_bytes: int) -> int:
    """Return the class of a hole ratio, 0 to 255; 0 for a block without data."""
    whole = live_bytes + dead_bytes
    return min(_CLASSES - 1, dead_bytes * _CLASSES // whole) if whole else 0


def age_class(age_ms: int) -> int:
    """Return the class of an age, 0 to 255, of equal widths in its logarithm: 0 up to a minute."""
    if age_ms <= AGE_MS_MIN:
        return 0
    return min(_CLASSES - 1, floor(log10(age_ms / AGE_MS_MIN) * _AGE_PER_DECADE))


def age_ms_of(age: float) -> float:
    """Return the least age of a class, in milliseconds."""
    return AGE_MS_MIN * 10 ** (age / _AGE_PER_DECADE) if age else 0


def price_class(block: BlockFigures, now_ms: int) -> int:
    """Return the class of the break-even price of a block (`core.gc.gc_policy.break_even_days`): 1 to 254, of equal
    widths in its logarithm; PRICE_NONE or PRICE_EMPTY."""
    if block.state is not BlockState.SEALED or not block.dead_bytes:
        return PRICE_NONE
    if not block.live_bytes:
        return PRICE_EMPTY
    if block.kind is BlockKind.LARGE:
        return PRICE_NONE
    age_days = (now_ms - block.since_ms) / _DAY_MS
    days = break_even_days(SealedBlock(block.block_id, block.live_bytes, block.dead_bytes, age_days))
    if days <= PRICE_DAYS_MIN:
        return 1
    return 1 + min(_PRICE_CLASSES - 1, floor(log10(days / PRICE_DAYS_MIN) * _PRICE_PER_DECADE))


def price_days_of(price: int) -> float | None:
    """Return the least price of a class in days: None for PRICE_NONE, infinite for PRICE_EMPTY."""
    if price in (PRICE_NONE, PRICE_EMPTY):
        return None if price == PRICE_NONE else inf
    return PRICE_DAYS_MIN * 10 ** ((price - 1) / _PRICE_PER_DECADE) if price > 1 else 0.0


_KIND_BYTES = {(kind, state): KINDS.index(kind) + 4 * STATES.index(state) for kind in BlockKind for state in BlockState}


def kind_of(kind: int) -> tuple[BlockKind, BlockState]:
    """Return the kind and the state of a block from its byte."""
    return KINDS[kind % 4], STATES[kind // 4]


def _id_at(ids: bytes, index: int) -> BlockId | None:
    if not 0 <= index < len(ids) // _ID_BYTES:
        return None
    return BlockId(ids[index * _ID_BYTES : (index + 1) * _ID_BYTES])


def _little(numbers: array[int]) -> bytes:
    """Return 32-bit numbers in little-endian order, whatever the machine's own order is."""
    return struct.pack(f"<{len(numbers)}I", *numbers)
