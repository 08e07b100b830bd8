"""Makes the entries of the audit trail for everything that the engine deletes or replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nos_ec.core.formats.audit_trail import COPIES_MAX, SEGMENTS_MAX, AuditEntry, AuditKind, CopyEntry
from nos_ec.core.ids import BlockId, LandingId, SegmentId
from nos_ec.ports.metadata import BlockRow, LandedMove, LandingDeletion, ObjectRow, SegmentRow
from nos_ec.ports.shard_store import RebuiltBlock

VERIFIED = "the packed bytes were read back and match their CRC"
UNNEEDED = "no object has this version any more, or an earlier run has verified its packed bytes"


def block_deleted(row: BlockRow, why: str) -> AuditEntry:
    """Return the entry for a condemned block that GC deletes."""
    seen = {
        "kind": row.kind.value,
        "writer": row.writer,
        "epoch": row.epoch,
        "stripes": row.stripes,
        "live_bytes": row.live_bytes,
        "dead_bytes": row.dead_bytes,
        "overhead_bytes": row.overhead_bytes,
        "live_objects": row.live_objects,
        "created_ms": row.created_ms,
        "delete_after_ms": row.delete_after_ms,
    }
    return AuditEntry(AuditKind.BLOCK_DELETED, why, block=row.block_id.hex(), seen=seen)


def late_block(block_id: BlockId, why: str) -> AuditEntry:
    """Return the entry for a block without references that its own writer deletes."""
    return AuditEntry(AuditKind.BLOCK_DELETED, why, block=block_id.hex())


def copies_deleted(
    deletions: Iterable[LandingDeletion], verified: Mapping[LandingId, BlockId | None]
) -> list[AuditEntry]:
    """Return the entries for copies that the reaper deletes. verified: the block in which this run verified the packed
    bytes; None if it did not."""
    by_block: dict[BlockId | None, list[CopyEntry]] = {}
    for deletion in deletions:
        by_block.setdefault(verified[deletion.landing_id], []).append(_copy(deletion))
    entries: list[AuditEntry] = []
    for block_id, copies in by_block.items():
        if block_id is None:
            entries += _of_copies(AuditKind.COPIES_DELETED, UNNEEDED, copies)
        else:
            entries += _of_copies(AuditKind.COPIES_DELETED, VERIFIED, copies, block_id.hex())
    return entries


def _of_copies(kind: AuditKind, why: str, copies: Sequence[CopyEntry], block: str | None = None) -> list[AuditEntry]:
    return [
        AuditEntry(kind, why, block=block, copies=tuple(copies[first : first + COPIES_MAX]))
        for first in range(0, len(copies), COPIES_MAX)
    ]


def _copy(deletion: LandingDeletion) -> CopyEntry:
    row, landing = deletion.row, deletion.landing_id.hex()
    if row is None:
        return CopyEntry(landing, None, deletion.object_id, deletion.version)
    extent = row.extent
    if extent is None:
        return CopyEntry(landing, str(row.key), row.object_id, row.version)
    return CopyEntry(landing, str(row.key), row.object_id, row.version, extent.offset, extent.length, row.crc32c)


def abandoned_copies(landing_ids: Iterable[LandingId]) -> list[AuditEntry]:
    """Return the entries for copies without references that a failed PUT deletes."""
    copies = [CopyEntry(landing_id.hex()) for landing_id in landing_ids]
    return _of_copies(AuditKind.COPIES_DELETED, "their PUT failed, and no object has them", copies)


def copies_moved(rows: Iterable[ObjectRow], moves: Mapping[int, LandedMove]) -> list[AuditEntry]:
    """Return the entries for records that were written again. moves: by object_id."""
    copies = [
        CopyEntry(
            move.source.hex(),
            str(row.key),
            row.object_id,
            row.version,
            length=row.size,
            crc32c=row.crc32c,
            moved_to=move.target.hex(),
        )
        for row in rows
        if (move := moves.get(row.object_id)) is not None
    ]
    return _of_copies(AuditKind.COPIES_MOVED, "their landing segment holds little else", copies)


def segments_released(
    segments: Sequence[SegmentId], rows: Mapping[SegmentId, SegmentRow], why: str
) -> list[AuditEntry]:
    """Return the entries for landing segments that are deleted. rows: their last rows; a segment may have none."""
    return [
        _released(segments[first : first + SEGMENTS_MAX], rows, why) for first in range(0, len(segments), SEGMENTS_MAX)
    ]


def _released(segments: Sequence[SegmentId], rows: Mapping[SegmentId, SegmentRow], why: str) -> AuditEntry:
    ends = {
        segment.hex(): {
            "bytes": row.end,
            "records": row.records,
            "opened_ms": row.opened_ms,
            "sealed_ms": row.sealed_ms,
        }
        for segment in segments
        if (row := rows.get(segment)) is not None
    }
    return AuditEntry(
        AuditKind.SEGMENTS_RELEASED, why, segments=tuple(segment.hex() for segment in segments), seen=ends
    )


def object_reverted(deletion: LandingDeletion, row: ObjectRow, damage: Exception | str) -> AuditEntry:
    """Return the entry for an object that is reverted to its landing copy."""
    block = None if row.extent is None else row.extent.block_id.hex()
    return AuditEntry(AuditKind.OBJECT_REVERTED, str(damage), block=block, copies=(_copy(deletion),))


def shards_written(block_id: BlockId, done: RebuiltBlock) -> list[AuditEntry]:
    """Return the entry for rebuilt shards of a block; no entry if none was rebuilt."""
    if not (done.missing or done.replaced):
        return []
    seen = {"missing": list(done.missing), "replaced": list(done.replaced), "damaged": list(done.damaged)}
    why = "shards of the block were missing or damaged"
    return [AuditEntry(AuditKind.SHARDS_WRITTEN, why, block=block_id.hex(), seen=seen)]
