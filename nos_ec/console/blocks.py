"""The Blocks page: the density grid of all blocks, the same as a small table, and the tiles of some of its cells."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import floor, log2, log10
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System
from nos_ec.console.panels import Panels
from nos_ec.console.snapshot import (
    AGE_DECADES,
    COLUMNS,
    KINDS,
    ROWS,
    STATES,
    TILES_MAX,
    BlockSnapshot,
    Cells,
    Snapshots,
    age_ms_of,
    kind_of,
)
from nos_ec.console.view import View, query_choice, query_number, quoted
from nos_ec.core.errors import InvalidInput, Transient
from nos_ec.core.states import BlockKind, BlockState

LEVELS = 8
"""Shades of a cell."""
BAND_COLUMNS, BAND_ROWS = 8, 8
"""Cells that the table puts together, in each direction: it has 8 columns of ages and 4 rows of hole ratios."""
AGE_TICKS = {
    "1 min": 1,
    "10 min": 10,
    "1 h": 60,
    "1 day": 1440,
    "1 week": 10_080,
    "1 month": 43_200,
    "1 year": 525_600,
    "10 years": 5_256_000,
}
"""Ages at the axis of the grid, in minutes."""
_RANGE = re.compile(r"(\d{1,2})-(\d{1,2})")


class Order(StrEnum):
    """The order of tiles."""

    PLACE = "place"
    """In the order of the ids, which is about the order in which the blocks were allocated."""
    PRICE = "price"
    """The blocks that GC would collect first."""


class Colour(StrEnum):
    """The meaning of the colours of tiles."""

    HOLES = "holes"
    KIND = "kind"
    AGE = "age"


ORDER_WORDS = {Order.PLACE: "by place: as they were allocated", Order.PRICE: "by price: as GC would collect them"}
COLOUR_WORDS = {Colour.HOLES: "hole ratio", Colour.KIND: "kind", Colour.AGE: "age"}
KIND_TEXTS = {
    BlockKind.FRESH: "Consumers wrote it from landing copies.",
    BlockKind.SURVIVOR: "GC wrote it, from objects that outlived their blocks.",
    BlockKind.LARGE: "It holds a segment of a large object.",
}
STATE_TEXTS = {
    BlockState.OPEN: "Its writer still appends to it.",
    BlockState.FENCED: "It was taken from a dead writer; recovery has to seal it.",
    BlockState.SEALED: "It is never written again, and GC may collect it.",
    BlockState.CONDEMNED: "It is empty, and is deleted after its grace period.",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the grid, or of the table, with the blocks in it. `level` is its shade: 1 for a single block, up to
    LEVELS for the fullest cell, by the logarithm of their number; 0 without blocks. Ages are in milliseconds; the
    oldest column has no `age_ms_max`. Hole ratios are from `hole_min` to `hole_max`."""

    cells: Cells
    blocks: int
    dead_bytes: int
    level: int

    @property
    def query(self) -> str:
        """Return the query of the page with its tiles."""
        return cells_query(self.cells)

    @property
    def age_ms_min(self) -> float:
        """Return the least age of its blocks."""
        return age_ms_of(self.cells.first_column * 4)

    @property
    def age_ms_max(self) -> float | None:
        """Return the age that all of its blocks are below, or None for the oldest ones."""
        return age_ms_of((self.cells.last_column + 1) * 4) if self.cells.last_column + 1 < COLUMNS else None

    @property
    def hole_min(self) -> float:
        """Return the least hole ratio of its blocks."""
        return self.cells.first_row / ROWS

    @property
    def hole_max(self) -> float:
        """Return the greatest hole ratio of its blocks."""
        return (self.cells.last_row + 1) / ROWS


@dataclass(frozen=True, slots=True)
class Density:
    """The Blocks page. `cells` are the cells that hold blocks, column by column. `table` has a row for each band of
    hole ratios, greatest first, with a cell for each band of ages. `counts` counts the blocks by kind and state,
    without those that do not occur."""

    at_ms: int
    blocks: int
    dead_bytes: int
    cells: list[Cell]
    table: list[list[Cell]]
    counts: list[tuple[BlockKind, BlockState, int]]


def density(found: BlockSnapshot) -> Density:
    """Return the page of this picture."""
    fullest = max(found.cells, default=0)
    cells = [
        Cell(Cells(column, column, row, row), blocks, found.dead_bytes[place], _level(blocks, fullest))
        for place, blocks in enumerate(found.cells)
        if blocks
        for column, row in (divmod(place, ROWS),)
    ]
    counts = [(*kind_of(kind), count) for kind, count in enumerate(found.counts) if count]
    return Density(found.at_ms, found.blocks, sum(found.dead_bytes), cells, _table(found), counts)


def _table(found: BlockSnapshot) -> list[list[Cell]]:
    bands = [
        [_sum(found, Cells(column, column + BAND_COLUMNS - 1, row, row + BAND_ROWS - 1)) for column in _starts(COLUMNS)]
        for row in reversed(_starts(ROWS))
    ]
    fullest = max(cell.blocks for row in bands for cell in row)
    return [
        [Cell(cell.cells, cell.blocks, cell.dead_bytes, _level(cell.blocks, fullest)) for cell in row] for row in bands
    ]


def _starts(count: int) -> range:
    return range(0, count, BAND_COLUMNS if count == COLUMNS else BAND_ROWS)


def _sum(found: BlockSnapshot, cells: Cells) -> Cell:
    places = [
        column * ROWS + row
        for column in range(cells.first_column, cells.last_column + 1)
        for row in range(cells.first_row, cells.last_row + 1)
    ]
    return Cell(cells, sum(found.cells[place] for place in places), sum(found.dead_bytes[place] for place in places), 0)


def _level(blocks: int, fullest: int) -> int:
    if not blocks:
        return 0
    return 1 + min(LEVELS - 1, floor(log2(blocks) / log2(fullest + 1) * LEVELS)) if fullest > 1 else LEVELS


def age_ticks() -> list[tuple[str, float]]:
    """Return (text, place) of the ticks of the axis of ages; places are in columns of the grid."""
    return [(text, log10(minutes) / AGE_DECADES * COLUMNS) for text, minutes in AGE_TICKS.items()]


@dataclass(frozen=True, slots=True)
class Choice:
    """The tiles that a page shows, as its address names them."""

    cells: Cells
    order: Order
    colour: Colour

    @property
    def query(self) -> str:
        """Return the query of the address."""
        return f"{cells_query(self.cells)}&{urlencode({'order': self.order, 'colour': self.colour})}"


def choice_of(request: Request) -> Choice:
    """Return what a request asks for. Raises InvalidInput."""
    query = request.query_params
    first_column, last_column = _range("ages", query.get("ages"), COLUMNS)
    first_row, last_row = _range("holes", query.get("holes"), ROWS)
    order, colour = query_choice(request, "order", Order.PLACE), query_choice(request, "colour", Colour.HOLES)
    return Choice(Cells(first_column, last_column, first_row, last_row), order, colour)


def cells_query(cells: Cells) -> str:
    """Return the part of a query that names these cells."""
    ages, holes = f"{cells.first_column}-{cells.last_column}", f"{cells.first_row}-{cells.last_row}"
    return urlencode({"ages": ages, "holes": holes})


def _range(name: str, text: str | None, count: int) -> tuple[int, int]:
    if text is None:
        return 0, count - 1
    found = _RANGE.fullmatch(text)
    first, last = (int(found[1]), int(found[2])) if found else (1, 0)
    if not 0 <= first <= last < count:
        raise InvalidInput(
            f"{name}={quoted(text)}: give two numbers from 0 to {count - 1} with a hyphen, such as 0-{count - 1}"
        )
    return first, last


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the routes of the page and of its tiles."""
    snapshots = Snapshots(panels, system.metadata, system.clock, FIGURES_MS)

    def blocks(request: Request) -> Response:
        return view.page(
            request,
            "blocks.html",
            "Blocks",
            picture=snapshots.read(),
            density=density,
            ticks=age_ticks(),
            kinds=KIND_TEXTS,
            states=STATE_TEXTS,
        )

    def tiles(request: Request) -> Response:
        choice = choice_of(request)
        cell = Cell(choice.cells, 0, 0, 0)
        return view.page(
            request,
            "tiles.html",
            "Tiles of blocks",
            choice=choice,
            cell=cell,
            orders=list(Order),
            colours=list(Colour),
            order_words=ORDER_WORDS,
            colour_words=COLOUR_WORDS,
            kinds=KIND_TEXTS,
            age_step=age_ms_of(2 * 32) / age_ms_of(32),
        )

    def data(request: Request) -> Response:
        choice, found = choice_of(request), snapshots.read()
        if found.value is None:
            raise Transient(found.error)
        if choice.cells.is_all:
            # The browser puts them in order: sorting 300,000 here takes 14 times as long as the rest of the answer.
            answer = found.value.tiles(choice.cells, by_price=False, limit=found.value.blocks)
        else:
            answer = found.value.tiles(choice.cells, by_price=choice.order is Order.PRICE, limit=TILES_MAX)
        return Response(answer, media_type="application/octet-stream")

    def at(request: Request) -> Response:
        picture, index = (query_number(request, name) for name in ("picture", "block"))
        if picture is None or index is None:
            raise InvalidInput("a picture and a block are missing; open the tiles again")
        block_id = snapshots.block_id(picture, index)
        if block_id is None:
            text = "That picture of the store is over, because the store has changed since. Open the tiles again."
            return view.page(request, "error.html", "Picture is over", status=410, text=text)
        return RedirectResponse(f"{view.base}/blocks/{block_id.hex()}", 303)

    return [
        Route("/blocks", blocks),
        Route("/blocks/tiles", tiles),
        Route("/blocks/tiles.bin", data),
        Route("/blocks/at", at),
    ]


assert set(KINDS) == set(BlockKind)
assert set(STATES) == set(BlockState)
