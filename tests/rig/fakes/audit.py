"""Checks a whole store and sums up all its rows. The cost grows with the store: for tests only."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from threading import Event

from nos_ec.core.findings import FindingKind
from nos_ec.core.ids import BlockId
from nos_ec.core.publishing.slots import LEASE_PREFIX
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.core.tails import is_tail
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.checker import Checked, Checker
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import BlockRow, Blocks, Metadata, ObjectRow, Totals
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
    """Yield every object row, those in the trash as well."""
    after = 0
    while page := metadata.objects_after(after, _PAGE_ROWS):
        yield from page
        after = page[-1].object_id


_OF_USERS = (BlockKind.FRESH, BlockKind.LARGE)


def counted_totals(metadata: Metadata) -> Totals:
    """The totals, summed up row by row through the other methods: what `Metadata.totals` must return. Live bytes are
    those of the objects' own rows, not those of the counters of blocks."""
    blocks = list(all_blocks(metadata))
    objects: Counter[ObjectState] = Counter()
    sizes: Counter[ObjectState] = Counter()
    trashed = []
    tails = []
    deleted = json.loads(metadata.note("deleted bytes") or "[0, 0]")
    for row in all_objects(metadata):
        objects[row.state] += 1
        # The tail of a large object has a row of its own.
        parts = metadata.segments_of([row.object_id]).values() if row.state is ObjectState.LARGE else ()
        own = sum(part.extent.length for of_row in parts for version, part in of_row if version == row.version)
        sizes[row.state] += own if row.state is ObjectState.LARGE else row.size
        if row.trash_until_ms is not None:
            trashed.append(row.size)
        elif row.state is ObjectState.PACKED and is_tail(row.key):
            tails.append(row.size)
    return Totals(
        blocks=dict(Counter((block.kind, block.state) for block in blocks)),
        stripes=sum(block.stripes for block in blocks),
        live_bytes=sizes[ObjectState.PACKED] + sizes[ObjectState.LARGE],
        dead_bytes=sum(block.dead_bytes for block in blocks),
        overhead_bytes=sum(block.overhead_bytes for block in blocks),
        packed_objects=sum(block.live_objects for block in blocks if block.kind is not BlockKind.LARGE) - len(tails),
        large_objects=objects[ObjectState.LARGE],
        large_bytes=sum(block.live_bytes for block in blocks if block.kind is BlockKind.LARGE) + sum(tails),
        landed_objects=objects[ObjectState.LANDED],
        landed_bytes=sizes[ObjectState.LANDED],
        queued_objects=objects[ObjectState.QUEUED],
        queued_bytes=sizes[ObjectState.QUEUED],
        trash_objects=len(trashed),
        trash_bytes=sum(trashed),
        landing_deletions=len(metadata.due_deletions(_EVER_MS, _QUEUE_ROWS_MAX)),
        leases=sum(not lease.name.startswith(LEASE_PREFIX) for lease in metadata.list_leases("")),
        open_dead_bytes=sum(one.dead_bytes for one in blocks if one.state in (BlockState.OPEN, BlockState.FENCED)),
        condemned_dead_bytes=sum(one.dead_bytes for one in blocks if one.state is BlockState.CONDEMNED),
        user_bytes_written=deleted[0] + sum(one.live_bytes + one.dead_bytes for one in blocks if one.kind in _OF_USERS),
        copied_bytes_written=deleted[1]
        + sum(one.live_bytes + one.dead_bytes for one in blocks if one.kind is BlockKind.SURVIVOR),
    )


def problems(
    metadata: Metadata, blocks: BlockStore, landing: LandingStore, medium: SegmentMedium | None = None
) -> list[str]:
    """Return everything that `nos-ec check` finds or cannot look at, and totals that are wrong; an empty list if rows
    and stores agree (invariants 3, 5, 6, 7, 8). Blocks that lack a shard are left out: GC rewrites them in time.

    medium: that of the landing log; None for a store without one.
    """
    checker = Checker(Checked(metadata, blocks, landing, medium, _Impatient()), ReadShare())
    found = [
        f"{one.kind.value}: {one.what} {dict(one.evidence)}"
        for one in checker.findings()
        if one.kind is not FindingKind.BLOCKS_SHORT
    ]
    found += [f"{one.part} cannot be looked at: {one.reason}" for one in checker.unfinished]
    found += _totals_problems(metadata)
    if medium is None and metadata.segment_totals():
        found.append("there are landing segments, but no landing log to look at")
    return found


class _Impatient:
    """The time, without waiting: nobody works on the store."""

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """See Clock."""
        return stop.is_set()


def _totals_problems(metadata: Metadata) -> Iterator[str]:
    before, counted, totals = metadata.totals(), counted_totals(metadata), metadata.totals()
    if counted != totals == before:
        yield f"the totals are {totals}, but the rows sum up to {counted}"
