"""Locates the bytes of a large object: its segments and its tail."""

from __future__ import annotations

from collections.abc import Sequence

from nos_ec.core.errors import NotFound
from nos_ec.core.ids import Extent
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import tail_place
from nos_ec.ports.metadata import ObjectRow, Objects


def own_extents(metadata: Objects, row: ObjectRow) -> list[Extent]:
    """Return the extents of an object in order, without the tail of a large one. An object that is not packed yet has
    none. Raises Transient."""
    if row.extent is not None:
        return [row.extent]
    if row.state is not ObjectState.LARGE:
        return []
    return [segment.extent for segment in metadata.segments(row.object_id, row.version)]


def tail_of(metadata: Objects, row: ObjectRow, extents: Sequence[Extent]) -> ObjectRow | None:
    """Return the row of the tail of a large object with these segments, or None. Raises Transient."""
    place = tail_place(row.size, [(extent.block_id, extent.length) for extent in extents])
    if place is None:
        return None
    try:
        return metadata.get(place[0])
    except NotFound:
        return None  # the object was deleted meanwhile; otherwise `check` reports that its tail is missing


def with_tail(extents: Sequence[Extent], tail: ObjectRow | None) -> list[Extent]:
    """Return these extents and the extent of the tail, unless the tail is not packed yet."""
    return [*extents] if tail is None or tail.extent is None else [*extents, tail.extent]
