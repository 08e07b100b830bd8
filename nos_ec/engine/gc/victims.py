"""Which blocks GC collects, decided from their books, rows and headers. Changes nothing.

10  an entry that cannot be read is never treated as a dead one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from nos_ec.core.errors import NotFound
from nos_ec.core.header import name_record_size
from nos_ec.core.ids import BlockId
from nos_ec.core.lifecycle import BlockKind, BlockState
from nos_ec.core.reclaim import Victim, account_block, pays, stripes_needed
from nos_ec.engine.header_scan import HeaderScan, scan_headers
from nos_ec.engine.recovery import live_entries
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Blocks, Placed

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """What GC found in one block, and what finding it cost.

    live_objects have to be rewritten before the block can go; `unconfirmed` of them are known from rows only.
    """

    block: BlockRow
    live_objects: int
    unconfirmed: int
    header_bytes_read: int

    @property
    def size_bytes(self) -> int:
        """Data-space bytes of the block as far as its row's books go."""
        return self.block.size_bytes


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The candidates, and those of them a run would collect. When rewriting gives nothing back, only empty ones go."""

    decisions: Sequence[BlockDecision]
    victims: Sequence[BlockRow]


@dataclass(frozen=True, slots=True)
class Choice:
    """Of the candidates with live objects those to rewrite, most wasteful first, with the stripes that takes, and those
    whose live objects are packed as densely as they can be: their waste is headers and unavoidable padding."""

    victims: Sequence[tuple[BlockRow, float]]
    dense: Sequence[BlockRow]


def choose(
    metadata: Blocks, blocks: BlockStore, candidates: Sequence[BlockRow], waste_ratio_min: float, density: float
) -> Choice:
    """Choose among candidates. The rows of a block are read when its dead bytes alone do not make it a victim.

    density: share of the stripes that the packing policy fills, of what is possible. In memory: the rows of one block
    at a time. Raises Transient.
    """
    victims: list[tuple[BlockRow, float]] = []
    dense: list[BlockRow] = []
    for block in candidates:
        if block.hole_ratio >= waste_ratio_min:
            # The same objects, by the same packer: survivors pack as densely as the block did, but for luck.
            victims.append((block, block.stripes * (1 - block.hole_ratio) / density))
            continue
        needs = _needs(blocks, metadata.placed_in(block.block_id)) / density
        if needs <= block.stripes * (1 - waste_ratio_min):
            victims.append((block, needs))
        else:
            dense.append(block)
    if not pays([Victim(block.stripes, needs) for block, needs in victims]):
        victims = []
    return Choice(victims, dense)


def _needs(blocks: BlockStore, placed: Sequence[Placed]) -> float:
    names_bytes = sum(name_record_size(one.key.bucket, one.key.name) for one in placed)
    return stripes_needed(blocks.geometry, [one.extent.length for one in placed], names_bytes)


def decide(metadata: Blocks, blocks: BlockStore, block: BlockRow) -> tuple[BlockDecision, list[Placed]]:
    """What lives in a block, which must not be a live one of a large object.

    Headers name what was written, rows say what of it lives: an entry lives only when a row has its key, version and
    extent. A row that no header confirms counts as live all the same, and is said aloud. Raises Transient.
    """
    if block.kind is BlockKind.LARGE:
        # It holds one segment of one object and is all live or all dead: its row says which.
        placed = metadata.placed_in(block.block_id)
        return BlockDecision(block, len(placed), 0, 0), placed
    scan = _scan(metadata, blocks, block)
    placed = metadata.placed_in(block.block_id)
    account = account_block(blocks.geometry, block.stripes, scan.headers, scan.damaged_stripes, live_entries(placed))
    if account.unconfirmed:
        _log.error(
            "rows point to bytes that no readable header confirms",
            block=block.block_id.hex(),
            objects=len(account.unconfirmed),
        )
    return BlockDecision(block, len(placed), len(account.unconfirmed), scan.bytes_read), placed


def _scan(metadata: Blocks, blocks: BlockStore, block: BlockRow) -> HeaderScan:
    """The headers; none at all for a block that the store lost, which the reads of its live objects then tell."""
    try:
        return scan_headers(blocks, block.block_id, block.stripes)
    except NotFound:
        if is_sealed(metadata, block.block_id):
            _log.error("block is not in the block store", block=block.block_id.hex())
        else:
            _log.info("block was collected by others meanwhile", block=block.block_id.hex())
        return HeaderScan((), tuple(range(block.stripes)), 0)


def is_sealed(metadata: Blocks, block_id: BlockId) -> bool:
    """Whether the block is still one that GC may collect. Raises Transient."""
    try:
        return metadata.block(block_id).state is BlockState.SEALED
    except NotFound:
        return False
