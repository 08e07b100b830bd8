"""States of objects and blocks, and the only legal transitions. Every state that is written comes from `advance_*`.

Objects:

    (new) --LAND--> LANDED --PUBLISH--> QUEUED --PACK--> PACKED --PACK--> PACKED (GC moved it)
                      |  ^                 |                |
                      |  +---- REVERT -----|----------------+   the packed bytes failed verification
                      +------- PACK -------+--> PACKED          (an event can be consumed before the row is marked)
    (new) --STORE--> LARGE        (new) --KEEP--> EMPTY

A delete or an overwrite is legal in every state and removes the version; it never waits for packing or GC.

Blocks:

    (new) --ALLOCATE--> OPEN --SEAL--> SEALED --CONDEMN--> CONDEMNED --(deleted, row gone)
                          |\\-FENCE--> FENCED --SEAL--> SEALED
                          |\\-APPEND--> OPEN (not full yet)
                          \\--(the store refused to create it, row gone)

Segments of the landing log:

    (new) --OPEN--> OPEN --SEAL--> SEALED --DOOM--> DOOMED --(released, row gone)
"""

from __future__ import annotations

from enum import StrEnum

from nos_ec.core.errors import Conflict


class ObjectState(StrEnum):
    """Where the bytes of the current version of an object are."""

    LANDED = "landed"
    """In the landing store, not yet published (or to be published again)."""
    QUEUED = "queued"
    """In the landing store; its event is in the message log."""
    PACKED = "packed"
    """In a stripe, at the row's extent."""
    LARGE = "large"
    """In blocks of its own, one segment per block."""
    EMPTY = "empty"
    """The object has no bytes; the row is the object."""

    @property
    def in_landing(self) -> bool:
        """Return whether the landing copy is the object's only copy."""
        return self is ObjectState.LANDED or self is ObjectState.QUEUED


class ObjectEvent(StrEnum):
    """Events of the current version of an object. The first three make a version."""

    LAND = "land"
    STORE = "store"
    KEEP = "keep"
    PUBLISH = "publish"
    PACK = "pack"
    REVERT = "revert"


class BlockState(StrEnum):
    """The states of a block."""

    OPEN = "open"
    """The one writer that allocated it appends to it."""
    FENCED = "fenced"
    """Taken from a dead writer; recovery reconciles it with the rows. No commit into it can succeed."""
    SEALED = "sealed"
    """Never written again; the only state in which GC collects it."""
    CONDEMNED = "condemned"
    """No row points into it; it is deleted after its grace period."""


class BlockEvent(StrEnum):
    """Events of a block."""

    ALLOCATE = "allocate"
    APPEND = "append"
    FENCE = "fence"
    SEAL = "seal"
    CONDEMN = "condemn"
    QUARANTINE = "quarantine"
    """The block store has the block, but nothing refers to it."""


class BlockKind(StrEnum):
    """What a block was written for. GC survivors are kept apart from fresh objects, because their lifetimes differ."""

    FRESH = "fresh"
    SURVIVOR = "survivor"
    LARGE = "large"


class SegmentState(StrEnum):
    """The states of a segment of the landing log."""

    OPEN = "open"
    """Its log may append to it and record its PUTs. The log seals the row only after every PUT in it is recorded or
    given up."""
    SEALED = "sealed"
    """Nothing is appended to it, and no more PUTs in it can be recorded."""
    DOOMED = "doomed"
    """No row and no queue entry refers to a record of it; its space is about to be released."""


class SegmentEvent(StrEnum):
    """Events of a segment."""

    OPEN = "open"
    SEAL = "seal"
    DOOM = "doom"


_OBJECT_TABLE: dict[tuple[ObjectState | None, ObjectEvent], ObjectState] = {
    (None, ObjectEvent.LAND): ObjectState.LANDED,
    (None, ObjectEvent.STORE): ObjectState.LARGE,
    (None, ObjectEvent.KEEP): ObjectState.EMPTY,
    (ObjectState.LANDED, ObjectEvent.PUBLISH): ObjectState.QUEUED,
    (ObjectState.QUEUED, ObjectEvent.PUBLISH): ObjectState.QUEUED,
    (ObjectState.LANDED, ObjectEvent.PACK): ObjectState.PACKED,
    (ObjectState.QUEUED, ObjectEvent.PACK): ObjectState.PACKED,
    (ObjectState.PACKED, ObjectEvent.PACK): ObjectState.PACKED,
    (ObjectState.PACKED, ObjectEvent.REVERT): ObjectState.LANDED,
}

_BLOCK_TABLE: dict[tuple[BlockState | None, BlockEvent], BlockState] = {
    (None, BlockEvent.ALLOCATE): BlockState.OPEN,
    (None, BlockEvent.QUARANTINE): BlockState.CONDEMNED,
    (BlockState.OPEN, BlockEvent.APPEND): BlockState.OPEN,
    (BlockState.OPEN, BlockEvent.FENCE): BlockState.FENCED,
    (BlockState.FENCED, BlockEvent.FENCE): BlockState.FENCED,
    (BlockState.OPEN, BlockEvent.SEAL): BlockState.SEALED,
    (BlockState.FENCED, BlockEvent.SEAL): BlockState.SEALED,
    (BlockState.SEALED, BlockEvent.CONDEMN): BlockState.CONDEMNED,
}

_SEGMENT_TABLE: dict[tuple[SegmentState | None, SegmentEvent], SegmentState] = {
    (None, SegmentEvent.OPEN): SegmentState.OPEN,
    (SegmentState.OPEN, SegmentEvent.SEAL): SegmentState.SEALED,
    (SegmentState.SEALED, SegmentEvent.DOOM): SegmentState.DOOMED,
}


def advance_object(state: ObjectState | None, event: ObjectEvent) -> ObjectState:
    """Return the state after `event`; a new version has no state before it. Raise Conflict if the table has no such
    transition."""
    try:
        return _OBJECT_TABLE[state, event]
    except KeyError:
        raise Conflict(f"an object that is {_name_of(state)} cannot {event.value}") from None


def advance_block(state: BlockState | None, event: BlockEvent) -> BlockState:
    """Return the state after `event`; a new block has no state before it. Raise Conflict if the table has no such
    transition."""
    try:
        return _BLOCK_TABLE[state, event]
    except KeyError:
        raise Conflict(f"a block that is {_name_of(state)} cannot {event.value}") from None


def advance_segment(state: SegmentState | None, event: SegmentEvent) -> SegmentState:
    """Return the state after `event`; a new segment has no state before it. Raise Conflict if the table has no such
    transition."""
    try:
        return _SEGMENT_TABLE[state, event]
    except KeyError:
        raise Conflict(f"a segment that is {_name_of(state)} cannot {event.value}") from None


def _name_of(state: ObjectState | BlockState | SegmentState | None) -> str:
    return "new" if state is None else state.value


def object_sources(event: ObjectEvent) -> frozenset[ObjectState]:
    """Return the states in which `event` is legal: a compare-and-set has them in its WHERE clause."""
    return frozenset(state for state, legal in _OBJECT_TABLE if legal is event and state is not None)
