"""The parts of a rebuild that only read: pages of the dump, ranges of rows, and blocks. Several processes may share
them (`RebuildInput.in_order`): each function is called with the stores, as its process has opened them, and one piece
of work, and returns only what the rebuild needs to decide and to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.formats.dump_format import DumpPage, decode_payload
from nos_ec.core.ids import BlockId
from nos_ec.core.states import ObjectState
from nos_ec.engine.dump import rows
from nos_ec.engine.dump.rebuild_input import PAGE_ROWS, RebuildInput, prefetched
from nos_ec.engine.dump.recovered_entries import RecoveredBlock, recover_block
from nos_ec.ports.metadata import ObjectColumns, ObjectRow, PreparedRows

BLOCKS_AT_A_TIME = 8
"""Blocks that another process reads at the same time."""


@dataclass(frozen=True, slots=True)
class PageToLoad:
    """A page of the dump. page: None for objects, which are `prepared` if they are to be loaded. last_id: the greatest
    id of an object; 0 without objects."""

    table: str
    rows: int
    page: DumpPage | None
    prepared: PreparedRows | None = None
    last_id: int = 0


def page_to_load(stores: RebuildInput, work: tuple[bytes, bool]) -> PageToLoad:
    """Decode a page of the dump, given its payload and whether its objects are to be loaded. Raises Corrupt."""
    payload, is_new = work
    page = decode_payload(payload)
    if page.table != rows.OBJECTS:
        return PageToLoad(page.table, page.rows, page)
    if not (is_new and page.rows):
        return PageToLoad(page.table, page.rows, None)
    prepared = stores.metadata.prepare(list(rows.objects_of(page)))
    return PageToLoad(page.table, page.rows, None, prepared, max(page.columns["object_id"]))


@dataclass(frozen=True, slots=True)
class PlacesOfRange:
    """Where the objects of a range of ids are. blocks: the blocks with small objects. large: the ids of large objects.
    landed: how many objects have a landing copy."""

    after: int
    last: int
    blocks: frozenset[BlockId]
    large: Sequence[int]
    landed: int


def places_of_range(stores: RebuildInput, ids: tuple[int, int]) -> PlacesOfRange:
    """Read where the objects are whose ids are above the first and at most the second number. Raises Transient."""
    after, last = ids
    blocks, large, landed = set[BlockId](), list[int](), 0
    for page in stores.columns_between(after, last):
        blocks.update(block_id for block_id in set(page.block_id) if block_id is not None)
        large += page.of_state(ObjectState.LARGE)
        landed += sum(copy is not None for copy in page.landing_id)
    return PlacesOfRange(after, last, frozenset(blocks), large, landed)


Settled = tuple[list[ObjectRow], list[ObjectRow]]
"""Rows of a page of the dump: those in the trash, and noncurrent versions."""


def settled_rows(_stores: RebuildInput, work: tuple[bytes, int]) -> Settled:
    """Return the rows of a page of the dump that have times, given its payload and the time until which those in the
    trash stay at least (Unix milliseconds). Raises Corrupt."""
    payload, least_ms = work
    page = decode_payload(payload)
    if page.table != rows.OBJECTS:
        return [], []
    return list(rows.trashed_of(page, least_ms)), list(rows.noncurrent_of(page))


@dataclass(frozen=True, slots=True)
class ComparedPage:
    """A page of objects of the dump that was compared with the rows. last_id: its greatest id. changed: its objects
    about which something is uncertain: all except those that were current versions and still are."""

    last_id: int
    buckets: frozenset[str]
    changed: DumpPage | None


def compared_page(stores: RebuildInput, payload: bytes) -> ComparedPage | None:
    """Compare a page of the dump with the rows; None for a page without objects. Raises Corrupt, Transient."""
    page = decode_payload(payload)
    if page.table != rows.OBJECTS or not page.rows:
        return None
    ids, buckets = page.columns["object_id"], frozenset(page.columns["bucket"])
    unchanged = _unchanged(page, stores)
    if len(unchanged) == page.rows:
        return ComparedPage(max(ids), buckets, None)
    return ComparedPage(max(ids), buckets, rows.selected(page, (object_id not in unchanged for object_id in ids)))


def _unchanged(page: DumpPage, stores: RebuildInput) -> set[int]:
    """Return the ids of the objects of a page that were current versions and still are. Reads the rows between its
    least and its greatest id."""
    columns = page.tuples(object_id=..., bucket=..., name=..., version=..., trash_until_ms=None, is_noncurrent=0)
    ids = page.columns["object_id"]
    after, last = min(ids) - 1, max(ids)
    if _are_same(page, stores.metadata.columns_after(after, page.rows)):
        return set(ids)
    dumped = set(columns)
    unchanged: set[int] = set()
    while after < last and (now := stores.metadata.columns_after(after, PAGE_ROWS)).object_id:
        after = now.object_id[-1]
        keys = (now.object_id, now.bucket, now.name, now.version)
        rows_now = zip(*keys, now.trash_until_ms, now.is_noncurrent, strict=True)
        unchanged.update(one[0] for one in rows_now if one in dumped and one[4:] == (None, False))
    return unchanged


def _are_same(page: DumpPage, now: ObjectColumns) -> bool:
    """Return whether these rows are those of the page, all of them current versions then and now."""
    times = (*now.trash_until_ms, *page.columns.get("trash_until_ms", ()))
    if any(now.is_noncurrent) or any(page.columns.get("is_noncurrent", ())) or any(one is not None for one in times):
        return False
    return all(getattr(now, name) == page.columns[name] for name in ("object_id", "bucket", "name", "version"))


@dataclass(frozen=True, slots=True)
class BlockToRead:
    """A block of `stripes` stripes. The dump covers its first `known_stripes`, with `known_bytes` of data.
    is_known: its headers need not be read, because it cannot have changed since the dump. is_read: False if it is known
    that it cannot be read."""

    block_id: BlockId
    stripes: int
    known_stripes: int
    known_bytes: int
    is_known: bool = False
    is_read: bool = True

    def without_entries(self, *, is_read: bool) -> RecoveredBlock:
        """Return what the dump knows about the block."""
        return RecoveredBlock(self.block_id, self.known_stripes, self.known_bytes, 0, (), 0, None, None, is_read)


def recovered_block(stores: RebuildInput, block: BlockToRead) -> RecoveredBlock | None:
    """Recover the contents of a block, except the stripes that the dump knows; None if it is half deleted. Raises
    Transient."""
    if not block.is_read:
        return block.without_entries(is_read=False)
    try:
        if block.is_known:
            with suppress(Corrupt):
                stores.blocks.stripes(block.block_id)
            return block.without_entries(is_read=True)
        return recover_block(stores.blocks, block.block_id, block.stripes, block.known_stripes)
    except NotFound:
        return None
    except Corrupt:
        return block.without_entries(is_read=False)


def recovered_blocks(stores: RebuildInput, blocks: Sequence[BlockToRead | None]) -> list[RecoveredBlock | None]:
    """Recover several blocks at the same time. None, a block that does not exist, stays None. Raises Transient."""

    def look(number: int) -> RecoveredBlock | None:
        block = blocks[number]
        return None if block is None else recovered_block(stores, block)

    return [recovered for _, recovered in prefetched(look, range(len(blocks)))]
