"""Facts about an object from which its state is explained. Sizes in bytes, times in Unix milliseconds, ids in hex."""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.states import BlockKind, BlockState, SegmentState


@dataclass(frozen=True, slots=True)
class ObjectOptions:
    """Settings by which producers, consumers and the reaper decide. packing_reserve_bytes: space that packing leaves
    free. put_ms_max: the longest duration of a PUT. stream_cuts_days: the lifetimes that separate the streams; empty
    for a single stream."""

    min_age_ms: int
    republish_ms: int
    partitions: int
    linger_ms: int
    linger_ms_max: int
    packing_reserve_bytes: int
    put_ms_max: int
    stream_cuts_days: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """A partition, and the member of the consumer group that owns it; None if it has no owner or that is unknown."""

    partition: int
    member: str | None


@dataclass(frozen=True, slots=True)
class Publishing:
    """How a waiting object gets to the consumers.

    slot_held_until_ms: the end of a producer's lease on the slot; None if no producer holds it. producers: the daemons
    that are alive. due_ms: when a producer looks at the object next; None if its row in the waiting table is missing.
    published_ms: the latest time at which its event was published; None if the log has no event. holders: the owners of
    the bucket's partition, or of all partitions if the event was spread. members_known: whether the message log was
    asked for the owners (only for an object with an event) and answered. passed_ms: the partitions have no waiting
    event from before this time.
    """

    slot: int
    slot_held_until_ms: int | None
    producers: list[str]
    due_ms: int | None
    published_ms: int | None
    spread: bool
    holders: list[Holder]
    members_known: bool
    passed_ms: int | None


@dataclass(frozen=True, slots=True)
class Copy:
    """A landing copy. medium: "store" or "log". The segment fields describe its landing segment; its
    state is None once it was freed.

    queued: whether it is in the deletion queue, and may be deleted from delete_after_ms on. doomed: its packed bytes
    are verified, and it will be deleted soon. readable: None if it was not read, or a store did not answer. problem:
    the error of reading it.
    """

    landing: str
    medium: str
    segment: str | None = None
    segment_state: SegmentState | None = None
    segment_opened_ms: int | None = None
    segment_sealed_ms: int | None = None
    segment_bytes: int | None = None
    queued: bool = False
    delete_after_ms: int | None = None
    doomed: bool = False
    readable: bool | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceInBlock:
    """The location of bytes of an object in a block."""

    block: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ItsBlock:
    """The block of a packed object."""

    block: str
    kind: BlockKind
    state: BlockState
    writer: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class ItsParts:
    """The parts of a composed object, which are objects of their own. parts: how many it has. there: how many parts of
    its upload exist, including, for a while, parts that it left out; landed, queued, packed and large count them by
    state. waiting: the first part that is not packed, which can be explained separately; None if all are."""

    parts: int
    there: int
    landed: int
    queued: int
    packed: int
    large: int
    waiting: str | None
