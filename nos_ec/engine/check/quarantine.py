"""Lists and releases blocks and landing copies in quarantine: nothing refers to them, and they will be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.states import BlockState
from nos_ec.ports.metadata import QUARANTINE, Metadata

PAGE_ROWS = 1000


class HeldKind(StrEnum):
    """The kinds of things in quarantine."""

    BLOCK = "block"
    COPY = "landing copy"


@dataclass(frozen=True, slots=True)
class Held:
    """A block or landing copy in quarantine. It may be deleted after `delete_after_ms` (Unix milliseconds). `stripes`
    is None for a copy."""

    kind: HeldKind
    id: bytes
    delete_after_ms: int
    stripes: int | None = None


def held(metadata: Metadata) -> Iterator[Held]:
    """Yield everything in quarantine, blocks first. Reads all rows of blocks and the whole deletion queue, in pages."""
    last_block: BlockId | None = None
    while blocks := metadata.list_blocks(last_block, PAGE_ROWS):
        last_block = blocks[-1].block_id
        for row in blocks:
            if row.writer == QUARANTINE and row.state is BlockState.CONDEMNED:
                yield Held(HeldKind.BLOCK, row.block_id, row.delete_after_ms or 0, row.stripes)
    last_copy: LandingId | None = None
    while entries := metadata.deletions_after(last_copy, PAGE_ROWS):
        last_copy = entries[-1].landing_id
        for entry in entries:
            if entry.object_id is None and entry.version is not None and not entry.doomed:
                yield Held(HeldKind.COPY, entry.landing_id, entry.not_before_ms)


def release(metadata: Metadata, held_id: bytes) -> bool:
    """Take a block or copy out of quarantine. It has no row afterwards, so the next check finds it again. Returns False
    if it is not in quarantine. Raises Conflict if it is being deleted."""
    return metadata.release_block(BlockId(held_id)) or metadata.release_copy(LandingId(held_id))
