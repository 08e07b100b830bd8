"""Checks the counters of a whole store against what it really holds. The cost grows with the store: for tests only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nos_ec.core.ids import BlockId, LandingId, ObjectKey, in_log, log_of, record_offset, segment_of
from nos_ec.core.lifecycle import BlockKind, BlockState, ObjectState, SegmentState
from nos_ec.core.reclaim import account_block
from nos_ec.core.slots import ALL_SLOTS, LEASE_PREFIX
from nos_ec.engine import log_lease
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.recovery import live_entries
from nos_ec.engine.segment_pages import segment_pages
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import BlockRow, Blocks, LandingSegments, Metadata, ObjectRow, SegmentRow, Totals
from nos_ec.ports.segment_medium import SegmentMedium

_PAGE_ROWS = 500
_QUEUE_ROWS_MAX = 10_000_000
_EVER_MS = 2**60


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
        landing_deletions=len(metadata.due_deletions(_EVER_MS, _QUEUE_ROWS_MAX)),
        leases=sum(not lease.name.startswith(LEASE_PREFIX) for lease in metadata.list_leases("")),
    )


def all_segments(metadata: LandingSegments) -> Iterator[SegmentRow]:
    """Yield every row of a landing segment."""
    for page in segment_pages(metadata):
        yield from page


def problems(
    metadata: Metadata, blocks: BlockStore, landing: LandingStore, medium: SegmentMedium | None = None
) -> list[str]:
    """Return everything that does not add up; an empty list if rows and stores agree (invariants 3, 5, 6, 7, 8).
    medium: that of the landing log; None for a store without one."""
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
    found += _waiting_problems(metadata)
    if medium is not None:
        found += _segment_problems(metadata, medium)
    elif metadata.segment_totals():
        found.append("there are landing segments, but no landing log to look at")
    return found


def _totals_problems(metadata: Metadata) -> Iterator[str]:
    before, counted, totals = metadata.totals(), counted_totals(metadata), metadata.totals()
    if counted != totals == before:
        yield f"the totals are {totals}, but the rows sum up to {counted}"


def _waiting_problems(metadata: Metadata) -> Iterator[str]:
    """Every object in the landing store waits to be packed, and producers find it; nothing else waits. What waits
    besides them is in the totals."""
    before = _waiting(metadata)
    landed = {row.key: row for row in all_objects(metadata) if row.state.in_landing}
    if _waiting(metadata) != before:
        return
    for key in sorted(landed.keys() | before.keys()):
        if landed.get(key) != before.get(key):
            yield f"object {key} is {landed.get(key)}, but what waits is {before.get(key)}"
    copies = [row.landing_id for row in landed.values() if row.landing_id is not None]
    yield from (
        f"landing copy {copy.hex()} has an object that does not claim it"
        for copy in sorted(set(copies) - metadata.landing_needed(copies))
    )


def _waiting(metadata: Metadata) -> dict[ObjectKey, ObjectRow]:
    return {row.key: row for row in metadata.due_objects(_EVER_MS, _QUEUE_ROWS_MAX, ALL_SLOTS)}


def _segment_problems(metadata: Metadata, medium: SegmentMedium) -> Iterator[str]:
    """Rows of landing segments against the medium and the leases. A row comes before its segment and goes after it."""
    before = set(medium.segments())
    rows = {row.segment: row for row in all_segments(metadata)}
    held = {(lease.name, lease.epoch) for lease in metadata.list_leases(log_lease.LEASE_PREFIX)}
    stored = set(medium.segments())
    for segment in sorted(before & stored - rows.keys()):
        yield f"landing segment {segment.hex()} has no row"
    for row in rows.values():
        name, lease = (
            f"landing segment {row.segment.hex()} ({row.state.value})",
            f"{log_lease.LEASE_PREFIX}{log_of(row.segment)}",
        )
        if row.state is SegmentState.OPEN and (lease, row.epoch) not in held:
            yield f"{name}: no process holds the lease {lease!r} of its log"
        if row.state is SegmentState.SEALED and row.end and row.segment not in stored:
            yield f"{name}: not in the log, but it has {row.end} bytes"
    for copy, what in sorted(_copies(metadata)):
        if in_log(copy):
            found = rows.get(segment_of(copy))
            if found is None or segment_of(copy) not in stored or found.state is SegmentState.DOOMED:
                yield f"{what}: its landing copy {copy.hex()} lies in no landing segment"
            elif found.state is SegmentState.SEALED and record_offset(copy) >= found.end:
                yield f"{what}: its landing copy {copy.hex()} lies behind the end of its segment, {found.end}"


def _copies(metadata: Metadata) -> Iterator[tuple[LandingId, str]]:
    """Each landing copy that a row or an entry of the deletion queue refers to, and what does."""
    for row in all_objects(metadata):
        if row.state.in_landing and row.landing_id is not None:
            yield row.landing_id, f"object {row.key}"
    for entry in metadata.due_deletions(_EVER_MS, _QUEUE_ROWS_MAX):
        yield entry.landing_id, "an entry of the deletion queue"


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
