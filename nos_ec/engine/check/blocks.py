"""Checks a block: its row against the block store, headers and the places of objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from nos_ec.core.errors import Corrupt, NotFound, Transient
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.gc.reclaim import BlockAccount, account_block
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockState
from nos_ec.engine.check.data import DataCheck
from nos_ec.engine.check.second_look import compare_steadily
from nos_ec.engine.header_scan import HeaderScan, live_entries, scan_headers
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Metadata, Placed

NAMED_MAX = 5
"""The evidence of a finding about many objects or blocks names at most this many of them."""


@dataclass(frozen=True, slots=True)
class ReadShare:
    """The blocks and landing copies whose data is read: a share from 0 to 1. Each salt selects other ones."""

    share: float = 0.0
    salt: bytes = b""

    def selects(self, name: bytes) -> bool:
        """Return whether the data of this block or copy is read."""
        return crc32(name + self.salt) < self.share * 2**32


@dataclass(slots=True)
class BlockFigures:
    """How many bytes a check of blocks has read."""

    header_bytes: int = 0
    data_bytes: int = 0


class BlockCheck:
    """Checks one block at a time."""

    def __init__(self, metadata: Metadata, blocks: BlockStore, read: ReadShare) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._read = read
        self._data = DataCheck(blocks)
        self.figures = BlockFigures()

    def findings(self, row: BlockRow) -> list[Finding] | None:
        """Return what is wrong with a block; None if it keeps changing, so that it cannot be checked. Every change to
        the contents of a block also changes its row. Raises Transient."""
        return compare_steadily(row, lambda: self.row(row.block_id), self._look)

    def account(self, row: BlockRow) -> BlockAccount | None:
        """Return the correct counters of a block; None unless its counters are the only thing wrong with it. The caller
        that sets them must check that the row has not changed. Raises Transient."""
        found = self._look(row)
        if [one.kind for one in found] != [FindingKind.BLOCK_COUNTERS]:
            return None
        scan = scan_headers(self._blocks, row.block_id, row.stripes)
        live = live_entries(self._metadata.placed_in(row.block_id))
        return account_block(self._blocks.geometry, row.stripes, scan.headers, scan.stripes_outside_groups, live)

    def row(self, block_id: BlockId) -> BlockRow | None:
        """Return the row of a block; None if it has none now."""
        try:
            return self._metadata.block(block_id)
        except NotFound:
            return None

    def _look(self, row: BlockRow) -> list[Finding]:
        if self._is_right(row):
            return []
        placed = self._metadata.placed_in(row.block_id)
        found = BlockFindings(row)
        if row.state is BlockState.CONDEMNED:  # it may be half deleted
            if placed:
                found.add(FindingKind.BLOCK_CONDEMNED, objects=len(placed), named=_names(placed))
        elif row.state is not BlockState.FENCED:  # recovery is about to compare fenced blocks itself
            self._compare(row, placed, found)
        return found.all

    def _is_right(self, row: BlockRow) -> bool:
        """Return whether nothing is wrong with a block, as nearly always: all its headers can be read, and confirm its
        rows and counters. If it is not certain, or if data is to be read, return False."""
        if row.state in (BlockState.CONDEMNED, BlockState.FENCED) or self._read.selects(row.block_id):
            return False
        live = self._metadata.live_in(row.block_id)
        try:
            stripes = self._blocks.stripes(row.block_id)
            if stripes < row.stripes or (stripes != row.stripes and row.state is BlockState.SEALED):
                return False
            scan = scan_headers(self._blocks, row.block_id, row.stripes)
        except NotFound:
            return False
        account = account_block(self._blocks.geometry, row.stripes, scan.headers, scan.stripes_outside_groups, live)
        if scan.damaged_stripes or account.unconfirmed or counters_in_row(row) != counters_counted(account):
            return False
        self.figures.header_bytes += scan.bytes_read
        return True

    def _compare(self, row: BlockRow, placed: Sequence[Placed], found: BlockFindings) -> None:
        try:
            stripes = self._blocks.stripes(row.block_id)
            if stripes < row.stripes or (stripes != row.stripes and row.state is BlockState.SEALED):
                found.add(FindingKind.BLOCK_LENGTH, row_stripes=row.stripes, stripes=stripes, named=_names(placed))
                return
            self._against_headers(row, placed, found)
        except NotFound:
            if row.stripes or placed or row.state is BlockState.SEALED:
                found.add(FindingKind.BLOCK_MISSING, objects=len(placed), named=_names(placed))

    def _against_headers(self, row: BlockRow, placed: Sequence[Placed], found: BlockFindings) -> None:
        """Compare rows with headers. A difference that an earlier finding explains is not reported again: counters are
        compared only if all headers can be read and confirm the rows.

        Bytes without a header that hold no object were left by a killed writer; recovery counted them as dead.
        """
        scan = scan_headers(self._blocks, row.block_id, row.stripes)
        self.figures.header_bytes += scan.bytes_read
        live = live_entries(list(placed))
        account = account_block(self._blocks.geometry, row.stripes, scan.headers, scan.stripes_outside_groups, live)
        unconfirmed = self._unconfirmed(account, placed)
        headless = {one for one in unconfirmed if self._lies_in(one, scan)}
        right = counters_in_row(row) == counters_counted(account)
        if scan.damaged_stripes and (headless or not right):
            stripes = list(scan.damaged_stripes)
            named = _names([one for one in unconfirmed if one in headless])
            found.add(FindingKind.HEADER_DAMAGED, stripes=stripes, objects=len(headless), named=named)
        elif not unconfirmed and not right:
            found.add(FindingKind.BLOCK_COUNTERS, row=counters_in_row(row), counted=counters_counted(account))
        for one in unconfirmed:
            if one not in headless:
                found.add_object(FindingKind.EXTENT_UNCONFIRMED, one)
        if self._read.selects(row.block_id):
            misplaced = set(unconfirmed) - headless
            for one, error in self._data.damaged_objects([one for one in placed if one not in misplaced]):
                found.add_object(FindingKind.DATA_DAMAGED, one, error=str(error))
            self.figures.data_bytes = self._data.bytes

    def _unconfirmed(self, account: BlockAccount, placed: Sequence[Placed]) -> list[Placed]:
        wrong = {(entry.key_md5, entry.offset, entry.length, entry.version) for entry in account.unconfirmed}
        if not wrong:
            return []
        return [one for one in placed if (one.key.md5, one.extent.offset, one.extent.length, one.version) in wrong]

    def _lies_in(self, one: Placed, scan: HeaderScan) -> bool:
        """Return whether the object lies in stripes without a readable header."""
        size = self._blocks.geometry.stripe_size
        first, last = one.extent.offset // size, (one.extent.offset + one.extent.length - 1) // size
        return all(stripe in scan.damaged_stripes for stripe in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class BlockLook:
    """What a look at a block has found: see `BlockCheck.findings`. missing: the shards that the block lacks, if nothing
    else is wrong with it. error: why it could not be examined. figures: what the look has read."""

    row: BlockRow
    found: Sequence[Finding] | None = ()
    missing: Sequence[int] = ()
    error: str | None = None
    figures: BlockFigures = field(default_factory=BlockFigures)


class BlockLooks:
    """Looks at blocks. Several processes may look at a part of them each."""

    def __init__(self, metadata: Metadata, blocks: BlockStore, read: ReadShare) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._read = read

    def look(self, row: BlockRow) -> BlockLook:
        """Look at a block, and at its shards unless something else is wrong."""
        check = BlockCheck(self._metadata, self._blocks, self._read)
        missing: Sequence[int] = ()
        try:
            found = check.findings(row)
            if row.state is BlockState.SEALED and row.stripes and not found:  # without stripes, it lacks no shard
                missing = self._blocks.missing_shards(row.block_id)
                if missing and check.row(row.block_id) != row:
                    missing = ()
        except (Transient, Corrupt) as error:
            return BlockLook(row, error=str(error), figures=check.figures)
        return BlockLook(row, found, missing, figures=check.figures)


class BlockFindings:
    """Collects findings about one block."""

    def __init__(self, row: BlockRow) -> None:
        self._row = row
        self.all: list[Finding] = []

    def add(self, kind: FindingKind, **evidence: object) -> None:
        """Add a finding about the block itself."""
        self.add_part(kind, block_name(self._row.block_id), **evidence)

    def add_part(self, kind: FindingKind, what: str, **evidence: object) -> None:
        """Add a finding about a part of the block."""
        row = self._row
        state = {
            "block": row.block_id.hex(),
            "kind": row.kind.value,
            "state": row.state.value,
            "bytes": row.size_bytes,
            "live": row.live_bytes,
        }
        self.all.append(Finding(kind, what, state | evidence))

    def add_object(self, kind: FindingKind, placed: Placed, **evidence: object) -> None:
        """Add a finding about an object, or about a segment of a large object, in the block."""
        extent = placed.extent
        where = {
            "block": extent.block_id.hex(),
            "offset": extent.offset,
            "length": extent.length,
            "version": placed.version,
            "crc32c": placed.crc32c,
        }
        self.all.append(Finding(kind, f"object {placed.key}", where | evidence))


def block_name(block_id: BlockId) -> str:
    """Return the name of a block in findings."""
    return f"block {block_id.hex()}"


def counters_in_row(row: BlockRow) -> dict[str, int]:
    """Return the counters in the row of a block, in the form that findings show."""
    return {"live": row.live_bytes, "dead": row.dead_bytes, "overhead": row.overhead_bytes, "objects": row.live_objects}


def counters_counted(account: BlockAccount) -> dict[str, int]:
    """Return the counters that headers and rows add up to, in the same form."""
    return {
        "live": account.live_bytes,
        "dead": account.dead_bytes,
        "overhead": account.overhead_bytes,
        "objects": account.live_objects,
    }


def _names(placed: Sequence[Placed]) -> list[str]:
    return [str(one.key) for one in placed[:NAMED_MAX]]
