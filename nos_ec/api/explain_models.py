"""Answer models: why an object or a block is where it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nos_ec.api.answer import EXAMPLE_BLOCK_ID, Answer, Bytes, Count, HexId, Ratio, UnixMs, example
from nos_ec.core.states import BlockKind, BlockState, ObjectState, SegmentState
from nos_ec.engine.explain.block_reasons import BlockReason
from nos_ec.engine.explain.object_reasons import ObjectReason


class LandingCopy(Answer):
    """A landing copy. `medium` is the landing store or the landing log; the segment fields describe its segment of the
    log. If `queued`, the copy is in the deletion queue and may be deleted from `delete_after_ms` on. If `doomed`, the
    packed bytes of the object are verified."""

    landing: HexId
    medium: Literal["store", "log"]
    segment: str | None = Field(pattern="^[0-9a-f]{16}$")
    segment_state: SegmentState | None = Field(description="null: the segment was freed.")
    segment_opened_ms: UnixMs | None
    segment_sealed_ms: UnixMs | None
    segment_bytes: Bytes | None
    queued: bool
    delete_after_ms: UnixMs | None
    doomed: bool
    readable: bool | None = Field(description="Whether its bytes are intact; null: not read, or no answer.")
    problem: str | None = Field(description="The error with which reading it failed.")


class PartitionHolder(Answer):
    """A partition of the message log, and the consumer that owns it; null if no consumer does or it is unknown."""

    partition: Count
    member: str | None


class PublishingModel(Answer):
    """How the event of a waiting object reaches the consumers."""

    slot: Count
    slot_held_until_ms: UnixMs | None = Field(
        description="End of a producer's lease on the slot; null: no producer holds it."
    )
    producers: list[str] = Field(description="Producer daemons that are alive.")
    due_ms: UnixMs | None = Field(description="When the producer next examines it; null: damaged metadata.")
    published_ms: UnixMs | None = Field(
        description="Time of its latest event; null: the message log has no event of it."
    )
    spread: bool = Field(description="Whether its event can be in any partition.")
    holders: list[PartitionHolder] = Field(description="The partitions in which its event can be.")
    members_known: bool = Field(
        description="Whether the members of the consumer group could be read from the message log."
    )
    passed_ms: UnixMs | None = Field(description="No event older than this time waits in those partitions.")


class PlaceInBlock(Answer):
    """A range of bytes in a block."""

    block: HexId
    offset: Bytes
    length: Bytes


class BlockOfObject(Answer):
    """The block of a packed object."""

    block: HexId
    kind: BlockKind
    state: BlockState
    writer: str
    created_ms: UnixMs


class PartsOfObject(Answer):
    """The parts of a composed object: their number, how many of them exist, and how many are in each state."""

    parts: Count
    there: Count
    landed: Count
    queued: Count
    packed: Count
    large: Count
    waiting: str | None = Field(description="The first part that is not packed, as BUCKET/NAME.")


class ObjectExplanationModel(Answer):
    """Why an object is where it is, like `nos-ec explain`. docs/OPERATIONS.md lists the reasons."""

    model_config = example(
        bucket="photos", name="2026/a.jpg", version=1763700000000000, size=65536, state="queued",
        created_ms=1763700000000, age_ms=188000, reason="no_consumer",
        why="Its event was published 3 min 6 s ago (2025-11-21T04:40:02+00:00), and waits in partition 1, which no"
        " consumer holds.",
        next="It waits until a consumer runs.",
        advice="Start `nos-ec consumer`. One that has just started takes its partitions within seconds.",
        next_ms=None,
        publishing={"slot": 4, "slot_held_until_ms": 1763700240000, "producers": ["producer-host1-812-5d1c02aa"],
                    "due_ms": 1763700588000, "published_ms": 1763700002000, "spread": False,
                    "holders": [{"partition": 1, "member": None}], "members_known": True,
                    "passed_ms": 1763700001000},
        landing_copy={"landing": "81a2083f576604000000020070d38030", "medium": "log", "segment": "81a2083f57660400",
                      "segment_state": "sealed", "segment_opened_ms": 1763700000000,
                      "segment_sealed_ms": 1763700060000, "segment_bytes": 1515520, "queued": False,
                      "delete_after_ms": None, "doomed": False, "readable": True, "problem": None},
        places=[], places_left_out=0, block=None, chunks=None, chunks_min=None, shard_reads=None,
        half_life_days=41.5, stream=2, its_parts=None, unknown=[],
        explained_ms=1763700188000,
    )  # fmt: skip
    bucket: str
    name: str
    version: int
    size: Bytes
    state: ObjectState
    created_ms: UnixMs
    age_ms: Count
    reason: ObjectReason
    why: str
    next: str
    advice: str | None = Field(description="What to do if it is stuck; null: nothing.")
    next_ms: UnixMs | None = Field(description="When the next step happens, if a time decides that.")
    publishing: PublishingModel | None = Field(description="Set for an object that waits to be packed.")
    landing_copy: LandingCopy | None
    places: list[PlaceInBlock] = Field(max_length=1000)
    places_left_out: Count
    block: BlockOfObject | None = Field(description="Set for a packed object.")
    chunks: Count | None = Field(description="For a packed object, the number of chunks that hold its bytes.")
    chunks_min: Count | None = Field(
        description="The fewest chunks that can hold an object of its size; if less than `chunks`, the object is split."
    )
    shard_reads: Count | None = Field(
        description="Number of shard reads for a GET of it: one for each shard with its chunks."
    )
    half_life_days: float | None = Field(
        description="Days until half of the objects of this bucket and age are expected to be dead; a very large number"
        " while few deletions were observed. Null for large and empty objects, and with gc.streams = 1."
    )
    stream: int | None = Field(description="The stream that it belongs to; stream 0 has the shortest-lived objects.")
    its_parts: PartsOfObject | None = Field(
        description="Set for an object that was uploaded in parts; all other fields describe its list of parts."
    )
    unknown: list[str] = Field(description="Questions that could not be answered, with the reason.")
    explained_ms: UnixMs


class BlockLayoutModel(Answer):
    """The layout of a block's stripes according to its headers. Empty bytes hold no object: they lie before the first
    object of a group (header and names), between objects, and in the chunks after the last object."""

    groups: Count
    objects: Count = Field(description="Objects that were written, including dead ones.")
    split_objects: Count = Field(description="Objects that occupy one chunk more than the fewest possible.")
    front_bytes: Bytes
    gap_bytes: Bytes
    end_bytes: Bytes
    unread_stripes: Count = Field(
        description="Stripes without a readable header, or of an unfinished group; they are not counted above."
    )


class BlockExplanationModel(Answer):
    """Why a block is not collected, like `nos-ec explain`. docs/OPERATIONS.md lists the reasons."""

    model_config = example(
        block=EXAMPLE_BLOCK_ID, kind="fresh", state="condemned", writer="consumer-host2-4711-b4bb95ac", epoch=19,
        writer_until_ms=None, stripes=32, size_bytes=33554432, live_bytes=0, dead_bytes=31457280,
        overhead_bytes=2097152, live_objects=0, hole_ratio=1.0, waste_ratio=1.0, waste_ratio_min=0.75,
        created_ms=1763600000000, sealed_ms=1763600500000, delete_after_ms=1763700600000, grace_ms=412000,
        gc_not_before_ms=None, gc_failures=0, gc_runs=False,
        layout={"groups": 30, "objects": 3311, "split_objects": 12, "front_bytes": 1871872, "gap_bytes": 94208,
                "end_bytes": 131072, "unread_stripes": 0},
        stripes_needed=None, would_collect=False,
        reason="condemned",
        why="It is empty: it holds no object. It is kept for gc.block_grace_ms, for reads that began earlier.",
        next="The first GC run after its grace period, which ends in 6 min 52 s (2025-11-21T04:50:00+00:00), deletes"
        " it. When space is short, a run deletes it a minute after it was emptied.",
        advice=None, next_ms=1763700600000, unknown=[], explained_ms=1763700188000,
    )  # fmt: skip
    block: HexId
    kind: BlockKind
    state: BlockState
    writer: str
    epoch: int
    writer_until_ms: UnixMs | None = Field(description="End of its writer's lease; null: the lease has ended.")
    stripes: Count
    size_bytes: Bytes
    live_bytes: Bytes
    dead_bytes: Bytes
    overhead_bytes: Bytes
    live_objects: Count
    hole_ratio: Ratio
    waste_ratio: Ratio
    waste_ratio_min: Ratio = Field(description="gc.hole_ratio_min.")
    created_ms: UnixMs
    sealed_ms: UnixMs | None
    delete_after_ms: UnixMs | None
    grace_ms: Count | None = Field(description="Time left of its grace period, if it is condemned.")
    gc_not_before_ms: UnixMs | None = Field(description="GC does not collect it before this time.")
    gc_failures: Count
    gc_runs: bool = Field(description="Whether a GC run is in progress.")
    layout: BlockLayoutModel | None = Field(
        description="Null for a block of a large object, and if the headers cannot be read."
    )
    stripes_needed: float | None = Field(
        ge=0, description="Minimum number of stripes that the live objects of a candidate need."
    )
    would_collect: bool | None = Field(description="Whether a run now would collect it; null: unknown.")
    reason: BlockReason
    why: str
    next: str
    advice: str | None = Field(description="What to do if it is stuck; null: nothing.")
    next_ms: UnixMs | None = Field(description="When the next step happens, if a time decides that.")
    unknown: list[str] = Field(description="Questions that could not be answered, with the reason.")
    explained_ms: UnixMs
