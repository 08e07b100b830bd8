"""Finds incomplete large objects and stray tails (nos_ec.core.tails) for a rebuild, when all objects are known."""

from __future__ import annotations

from collections.abc import Container, Sequence

from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import block_of_tail, is_tail, tail_place
from nos_ec.engine.dump.recovered_entries import RecoveredEntry, recovered_tail, whole_parts
from nos_ec.ports.metadata import Metadata, ObjectRow


def has_tail(parts: Sequence[RecoveredEntry]) -> bool:
    """Return whether these segments of a large object are complete except for a tail."""
    whole = whole_parts(parts)
    return whole is not None and recovered_tail(whole) is not None


def stray_tails(page: Sequence[ObjectRow], there: Container[BlockId | None]) -> list[ObjectRow]:
    """Return the tails among these whose block does not exist: their objects were deleted and collected."""
    return [row for row in page if is_tail(row.key) and block_of_tail(row.key) not in there]


def without_parts(page: Sequence[ObjectRow], metadata: Metadata, there: Container[BlockId]) -> list[ObjectRow]:
    """Return the large objects among these with a segment whose block does not exist. Raises Transient."""
    large = [row for row in page if row.state is ObjectState.LARGE]
    found = metadata.segments_of([row.object_id for row in large])
    return [
        row for row in large if any(segment.extent.block_id not in there for _, segment in found.get(row.object_id, ()))
    ]


def without_tail(page: Sequence[ObjectRow], metadata: Metadata) -> list[ObjectRow]:
    """Return the large objects among these whose tail has no row. Raises Transient."""
    large = [row for row in page if row.state is ObjectState.LARGE]
    found = metadata.segments_of([row.object_id for row in large])
    places: dict[int, tuple[ObjectKey, int]] = {}
    for row in large:
        parts = [segment.extent for version, segment in found.get(row.object_id, ()) if version == row.version]
        place = tail_place(row.size, [(extent.block_id, extent.length) for extent in parts])
        if place is not None:
            places[row.object_id] = place
    tails = metadata.rows_of([key for key, _ in places.values()])
    return [row for row in large if row.object_id in places and places[row.object_id][0] not in tails]
