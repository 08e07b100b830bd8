"""Checks the counters of a whole store against what it really holds. The cost grows with the store: for tests only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nos_ec.core.ids import BlockId
from nos_ec.core.lifecycle import BlockKind, BlockState, ObjectState
from nos_ec.core.reclaim import account_block
from nos_ec.core.slots import LEASE_PREFIX
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.recovery import live_entries
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import BlockRow, Blocks, Metadata, ObjectRow, Totals

_PAGE_ROWS = 500
_QUEUE_ROWS_MAX = 10_000_000


def all_blocks(metadata: Blocks) -> Iterator[BlockRow]:
    """Yield every block row."""
    after: BlockId | None = None
    while page := metadata.list_blocks(after, _PAGE_ROWS):
        yield from page
        after = page[-1].block_id


def all_objects(metadata: Metadata) -> Iterator[ObjectRow]:
    """Yield every object row."""
    bucket = ""
    while buckets := metadata.list_buckets(bucket, _PAGE_ROWS):
        for bucket in buckets:
            after = ""
            while page := metadata.list_objects(bucket, "", after, _PAGE_ROWS):
                yield from page
                after = page[-1].key.name


def counted_totals(metadata: Metadata) -> Totals:
    """The totals, summed up row by row through the other methods: what `Metadata.totals` must return. Live bytes are
    those of the objects' own rows, not those of the counters of blocks."""
    blocks = list(all_blocks(metadata))
    objects: Counter[ObjectState] = Counter()
    sizes: Counter[ObjectState] = Counter()
    for row in all_objects(metadata):
        objects[row.state] += 1
        sizes[row.state] += row.size
    return Totals(
        blocks=dict(Counter((block.kind, block.state) for block in blocks)),
        stripes=sum(block.stripes for block in blocks),
        live_bytes=sizes[ObjectState.PACKED] + sizes[ObjectState.LARGE],
        dead_bytes=sum(block.dead_bytes for block in blocks),
        overhead_bytes=sum(block.overhead_bytes for block in blocks),
        packed_objects=sum(block.live_objects for block in blocks if block.kind is not BlockKind.LARGE),
        large_objects=objects[ObjectState.LARGE],
        large_bytes=sum(block.live_bytes for block in blocks if block.kind is BlockKind.LARGE),
        landed_objects=objects[ObjectState.LANDED],
        landed_bytes=sizes[ObjectState.LANDED],
        queued_objects=objects[ObjectState.QUEUED],
        queued_bytes=sizes[ObjectState.QUEUED],
        landing_deletions=len(metadata.due_deletions(2**60, _QUEUE_ROWS_MAX)),
        leases=sum(not lease.name.startswith(LEASE_PREFIX) for lease in metadata.list_leases("")),
    )


def problems(metadata: Metadata, blocks: BlockStore, landing: LandingStore) -> list[str]:
    """Return everything that does not add up; an empty list if rows and stores agree (invariants 3, 6, 7, 8)."""
    found: list[str] = []
    rows = {row.block_id: row for row in all_blocks(metadata)}
    stored = set(blocks.list_blocks())
    found += [f"block {block_id.hex()} has no row" for block_id in stored - rows.keys()]
    held = {(lease.name, lease.epoch) for lease in metadata.list_leases("")}
    orphans = (row for row in rows.values() if row.state is BlockState.OPEN and (row.writer, row.epoch) not in held)
    found += [f"block {row.block_id.hex()} is open, but no process holds its lease {row.writer!r}" for row in orphans]
    for row in rows.values():
        found += _block_problems(metadata, blocks, row, row.block_id in stored)
    copies = list(landing.list_ids())
    known = metadata.landing_known(copies)
    found += [f"landing copy {copy.hex()} belongs to no object" for copy in copies if copy not in known]
    found += _totals_problems(metadata)
    return found


def _totals_problems(metadata: Metadata) -> Iterator[str]:
    before, counted, totals = metadata.totals(), counted_totals(metadata), metadata.totals()
    if counted != totals == before:
        yield f"the totals are {totals}, but the rows sum up to {counted}"


def _block_problems(metadata: Blocks, blocks: BlockStore, row: BlockRow, stored: bool) -> Iterator[str]:
    name = f"block {row.block_id.hex()} ({row.kind.value}, {row.state.value})"
    geometry = blocks.geometry
    size = row.stripes * geometry.stripe_size
    if row.live_bytes + row.dead_bytes + row.overhead_bytes != size:
        yield f"{name}: live {row.live_bytes} + dead {row.dead_bytes} + overhead {row.overhead_bytes} is not {size}"
    placed = metadata.placed_in(row.block_id)
    if not stored:
        if placed or row.state is BlockState.SEALED:
            yield f"{name}: not in the store, but {len(placed)} rows point to it"
        return
    if row.state is BlockState.SEALED and blocks.stripes(row.block_id) != row.stripes:
        yield f"{name}: {blocks.stripes(row.block_id)} stripes in the store, but {row.stripes} in the row"
        return
    scan = scan_headers(blocks, row.block_id, row.stripes)
    account = account_block(geometry, row.stripes, scan.headers, scan.damaged_stripes, live_entries(placed))
    booked = (row.live_bytes, row.dead_bytes, row.overhead_bytes, row.live_objects)
    counted = (account.live_bytes, account.dead_bytes, account.overhead_bytes, account.live_objects)
    if booked != counted:
        yield f"{name}: the row says (live, dead, overhead, objects) {booked}, headers and rows say {counted}"
    if account.unconfirmed:
        yield f"{name}: {len(account.unconfirmed)} live rows that no header confirms"
