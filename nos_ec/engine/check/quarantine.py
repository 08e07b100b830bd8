"""What is in quarantine: blocks and landing copies that nothing refers to, until they are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.states import BlockState
from nos_ec.ports.metadata import QUARANTINE, Metadata

PAGE_ROWS = 1000


class HeldKind(StrEnum):
    """What is in quarantine."""

    BLOCK = "block"
    COPY = "landing copy"


@dataclass(frozen=True, slots=True)
class Held:
    """One thing in quarantine. delete_after_ms: when it may be deleted (Unix milliseconds). stripes: of a block."""

    kind: HeldKind
    id: bytes
    delete_after_ms: int
    stripes: int | None = None


def held(metadata: Metadata) -> Iterator[Held]:
    """Everything in quarantine, blocks first. Reads all rows of blocks and the whole deletion queue, in pages."""
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
    """Take a block or copy out of quarantine. Nothing is known of it afterwards, so a check finds it again. Returns
    False if it is not in quarantine. Raises Conflict if it is being deleted."""
    return metadata.release_block(BlockId(held_id)) or metadata.release_copy(LandingId(held_id))
