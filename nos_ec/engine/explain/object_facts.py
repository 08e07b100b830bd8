"""What is found out about an object, before it is judged. Sizes in bytes, times in Unix milliseconds, ids in hex."""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.states import BlockKind, BlockState, SegmentState


@dataclass(frozen=True, slots=True)
class ObjectOptions:
    """Settings by which producers, consumers and the reaper decide. packing_reserve_bytes: space that packing leaves
    free. put_ms_max: the longest duration of a PUT. stream_cuts_days: what separates the streams; empty for a single
    one."""

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
    """A partition, and the member of the consumer group that owns it; None when nobody does, or it is not known."""

    partition: int
    member: str | None


@dataclass(frozen=True, slots=True)
class Publishing:
    """How an object that waits gets to the consumers.

    slot_held_until_ms: the end of the lease of a producer on the slot; None when nobody holds it. producers: the
    daemons that are alive. due_ms: when the producer looks at the object next; None when its row is missing.
    published_ms: the latest time at which its event was published; None when no event is in the log. holders: of the
    partition of the bucket, or of all when the event was spread. members_known: whether the message log was asked who
    they are, which is done for an object with an event, and answered. passed_ms: no event from before then waits there.
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
    """A landing copy. medium: "store" or "log". The segment is that of the landing log.

    queued: it is in the deletion queue, from which it may be taken at delete_after_ms. doomed: its packed bytes are
    verified, and it is about to go. readable: None when that was not tried, or a store did not answer. problem: what
    reading it failed with.
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
    """Bytes of the object in a block."""

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
    """The parts of a composed object, which are objects of their own: how many it has, how many of its upload are
    there, and how many of these are in each state. Parts that its upload left out are among them for a while. waiting:
    the first that is not packed, to be explained by itself; None when there is none."""

    parts: int
    there: int
    landed: int
    queued: int
    packed: int
    large: int
    waiting: str | None
