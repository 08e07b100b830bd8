"""Mends one damaged shard or object in a block, as planned by a check or a scrub, if it is still damaged."""

from __future__ import annotations

from dataclasses import replace

from nos_ec.core.errors import NotFound
from nos_ec.core.findings import FindingKind
from nos_ec.core.ids import BlockId
from nos_ec.engine.check.checker import Checked
from nos_ec.engine.scrub.blocks import BlockScrub, Look, shard_name
from nos_ec.engine.scrub.mending import Mending
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.metadata import BlockRow
from nos_ec.ports.shard_store import ShardStore


class PlannedMending:
    """A `Mender` that reads the damaged block again, and mends only the damage of the finding."""

    def __init__(
        self, checked: Checked, shards: ShardStore | None, put_ms_max: int, trail: AuditTrail = NO_TRAIL
    ) -> None:
        """put_ms_max: the longest duration of a PUT in milliseconds."""

        def rate_limit(_: int) -> None:
            """Do nothing: one block needs no limit."""

        self._metadata = checked.metadata
        self._scrub = BlockScrub(checked.metadata, checked.blocks, shards, rate_limit)
        self._mending = Mending(checked.metadata, checked.landing, shards, checked.clock, put_ms_max, rate_limit, trail)

    def mend(self, block_id: BlockId, kind: FindingKind, what: str) -> bool:
        """See `Mender`."""
        found = self._look(block_id)
        if found is None:
            return False
        row, look = found
        done, _ = self._mending.mend(row, _only(row, look, kind, what))
        return any(one.mended for one in done)

    def finds(self, block_id: BlockId, kind: FindingKind, what: str) -> bool:
        """See `Mender`."""
        found = self._look(block_id)
        return found is not None and any((one.kind, one.what) == (kind, what) for one in found[1].findings)

    def _look(self, block_id: BlockId) -> tuple[BlockRow, Look] | None:
        """Return the row of the block and a look at it; None if the block is gone or keeps changing."""
        try:
            row = self._metadata.block(block_id)
        except NotFound:
            return None
        look = self._scrub.look(row)
        return None if look is None else (row, look)


def _only(row: BlockRow, look: Look, kind: FindingKind, what: str) -> Look:
    """Return the look, reduced to this finding."""

    def same(finding_kind: FindingKind, finding_what: str) -> bool:
        return (finding_kind, finding_what) == (kind, what)

    damaged = tuple(one for one in look.shards.damaged if same(FindingKind.SHARD_DAMAGED, shard_name(row, one.shard)))
    return replace(
        look,
        findings=tuple(one for one in look.findings if same(one.kind, one.what)),
        shards=replace(look.shards, missing=(), damaged=damaged),
        lost=tuple((one, placed) for one, placed in look.lost if same(one.kind, one.what)),
        torn=(),
    )
