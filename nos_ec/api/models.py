"""Answer models. Sizes and offsets are in bytes, times in milliseconds since the Unix epoch.

Ids of blocks and landing copies are 32 hexadecimal digits. Ratios are from 0 to 1, or null while there is no data.
"""

from __future__ import annotations

from pydantic import Field

from nos_ec.api.answer import EXAMPLE_BLOCK_ID as _BLOCK
from nos_ec.api.answer import Answer as _Answer
from nos_ec.api.answer import Bytes, Count, HexId, Ratio, UnixMs
from nos_ec.api.answer import example as _example
from nos_ec.api.cost_models import Cost
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.geometry import STRIPES_PER_BLOCK_MAX, Geometry
from nos_ec.core.quotas.quota import Quota
from nos_ec.core.states import BlockKind, BlockState, ObjectState, SegmentState
from nos_ec.engine.figures.daemons import Daemon
from nos_ec.engine.figures.events import StoreEvent
from nos_ec.monitoring.health import HIDDEN
from nos_ec.ports.metadata import ScrubPass, WaitReason


class Problem(_Answer):
    """An error as RFC 9457 defines it. `type` identifies its class; `detail` explains what happened and what to do.

    The other fields identify the object, block, landing copy or settings concerned. Unknown fields are missing.
    """

    model_config = _example(
        type="urn:nos-ec:problem:not-found", title="Not found", status=404,
        detail="object photos/a.jpg does not exist", bucket="photos", name="a.jpg",
    )  # fmt: skip
    type: str
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    bucket: str | None = Field(None, description="Bucket of the object.")
    name: str | None = Field(None, description="Name of the object in its bucket.")
    block: HexId | None = None
    landing: HexId | None = Field(None, description="Id of the landing copy.")
    settings: list[str] | None = Field(None, max_length=1000, description="Dotted names of the settings to look at.")


class BlockCount(_Answer):
    """The number of blocks of one kind in one state."""

    kind: BlockKind
    state: BlockState
    count: Count


class SegmentCount(_Answer):
    """The landing segments in one state."""

    state: SegmentState
    count: Count
    bytes: Bytes = Field(description="Bytes of the batches in them; 0 for open ones.")


class LandingDevices(_Answer):
    """The devices of the landing log."""

    working: Count
    lost: list[str] = Field(max_length=64, description="For each lost device, its name and the reason.")
    unreadable_slots: Count = Field(description="Slots whose headers cannot be read; `nos-ec check` names them.")


class LandingLogModel(_Answer):
    """The contents of the landing log."""

    segments: list[SegmentCount] = Field(max_length=16)
    free_bytes: Bytes | None = Field(description="Bytes of further landing segments that fit; null while unknown.")
    devices: LandingDevices | None = Field(description="Null on Ceph.")


class ScrubModel(_Answer):
    """The progress of scrubs over all processes."""

    current: ScrubPass | None = Field(description="The pass in progress; null between passes.")
    last: ScrubPass | None = Field(description="The last finished pass; null before the first.")


class Status(_Answer):
    """The whole store. live + dead + overhead = stripes x stripe size; utilisation = live / that sum."""

    model_config = _example(
        geometry={"k": 8, "m": 3, "chunk_size": 131072, "stripes_per_block": 32, "stripes_per_group_max": 4},
        utilisation=0.9884, hole_ratio=0.0012, dead_ratio=0.0012, overhead_ratio=0.0104, stripes=448,
        live_bytes=464323993, dead_bytes=557000, overhead_bytes=4881055, raw_bytes=645922816,
        raw_bytes_per_user_byte=1.391104, space_amplification=1.0012, target_space_amplification=1.2,
        gc_behind=None,
        cost={
            "raw_bytes_per_live_byte": 1.391104,
            "parts": {"live": 1.0, "coding": 0.375, "headers": 0.010118, "padding": 0.004336, "undivided": 0.0,
                      "dead_sealed": 0.00165, "dead_open": 0.0, "dead_condemned": 0.0},
            "headers_surveyed_ms": 1763690000000, "padding_bytes": 1464000,
            "landing_bytes_per_live_byte": 0.0213,
            "break_even_space_amplification": 2.171306,
            "usage": {"day": {"span_ms": 86400000, "user_bytes": 40000000, "copied_bytes": 8000000,
                              "write_amplification": 1.2, "space_amplification": 1.19}, "week": None},
        },
        packed_objects=46317, large_objects=2, large_bytes=38800000, trash_objects=310, trash_bytes=2900000,
        landing_deletions=1000, leases=1,
        blocks=[{"kind": "fresh", "state": "sealed", "count": 14}],
        free_bytes=91268055040, landing_free_bytes=33185873920, computed_at_ms=1763700000000,
        landing_log={
            "segments": [{"state": "sealed", "count": 9, "bytes": 600000000}],
            "free_bytes": 1543503872,
            "devices": {"working": 2, "lost": [], "unreadable_slots": 0},
        },
        scrub={
            "current": None,
            "last": {"began_ms": 1763650000000, "ended_ms": 1763660000000, "blocks": 14, "read_bytes": 645922816,
                     "found": 1, "mended": 1, "unread": 0},
        },
        newest_dump_ms=1763690000000, osds_down=[],
    )  # fmt: skip
    geometry: Geometry
    utilisation: Ratio | None
    hole_ratio: Ratio | None = Field(description="dead / (live + dead), which excludes headers and padding.")
    dead_ratio: Ratio | None = Field(description="Dead share of all stripes.")
    overhead_ratio: Ratio | None
    stripes: Count
    live_bytes: Bytes
    dead_bytes: Bytes
    overhead_bytes: Bytes
    raw_bytes: Bytes = Field(description="Size of the blocks on all shards: stripes x (k + m) chunks.")
    raw_bytes_per_user_byte: float | None = Field(ge=0, description="raw_bytes / live_bytes; null without live bytes.")
    space_amplification: float | None = Field(
        ge=1, description="(live + dead) / live, without condemned blocks; null without live bytes."
    )
    target_space_amplification: float | None = Field(
        gt=1, description="gc.space_amp from the configuration of the API; null unless gc.policy is space-target."
    )
    gc_behind: Behind | None = Field(
        description="Why the last GC run did not do all that its policy requires; null if it did or has not run yet."
    )
    cost: Cost
    packed_objects: Count = Field(description="Objects packed into stripes; excludes large objects.")
    large_objects: Count = Field(description="Large objects, each in its own blocks.")
    large_bytes: Bytes = Field(description="Bytes of the large objects; part of live_bytes.")
    trash_objects: Count = Field(description="Deleted objects in the trash; the other counts include them.")
    trash_bytes: Bytes = Field(
        description="Bytes of the objects in the trash; part of the live bytes, or not packed yet."
    )
    landing_deletions: Count = Field(description="Landing copies in the deletion queue.")
    leases: Count = Field(description="Writers with a lease that has not expired, whether or not they still run.")
    blocks: list[BlockCount] = Field(max_length=16)
    free_bytes: Bytes | None = Field(
        description="User bytes that still fit in the block store; null while a shard is missing."
    )
    landing_free_bytes: Bytes | None = Field(
        description="User bytes that still fit in the landing store; null while unknown."
    )
    computed_at_ms: UnixMs
    landing_log: LandingLogModel | None = Field(description="Null for a store without a landing log.")
    scrub: ScrubModel | None = Field(description="Null before the first scrub.")
    newest_dump_ms: UnixMs | None = Field(
        description="When the newest dump of the metadata in the store began; null without one."
    )
    osds_down: list[Count] | None = Field(
        max_length=100_000,
        description="The numbers of all OSDs of the cluster that are down; empty without Ceph, null while unknown.",
    )


class Backlog(_Answer):
    """Objects that wait to be packed."""

    model_config = _example(
        landed_objects=120, landed_bytes=3145728, queued_objects=880, queued_bytes=25165824, lag_messages=880,
        landing_deletions=4000, computed_at_ms=1763700000000,
    )  # fmt: skip
    landed_objects: Count = Field(description="Objects in the landing store that are not yet published.")
    landed_bytes: Bytes
    queued_objects: Count = Field(description="Objects published but not yet packed.")
    queued_bytes: Bytes
    lag_messages: Count | None = Field(
        description="Messages that the consumer group has not committed; null while the message log does not answer."
    )
    landing_deletions: Count
    computed_at_ms: UnixMs


class Events(_Answer):
    """The last events of the store."""

    model_config = _example(
        events=[
            {"kind": "gc", "outcome": "done", "at_ms": 1763700000000, "first_ms": 1763700000000, "times": 1,
             "took_ms": 42000, "process": "process 812 on host1",
             "text": "freed 4.0 GiB (128 blocks), copied 1.1 GiB (12,345 objects)"},
        ],
    )  # fmt: skip
    events: list[StoreEvent] = Field(max_length=1000)


class Daemons(_Answer):
    """The daemons that are recorded: for a day or longer also those that are not alive any more. One that has not
    stopped (`ended_ms` is null), and was not seen for three minutes, is dead or cannot reach the metadata."""

    model_config = _example(
        daemons=[
            {"service": "consumer", "process": "process 812 on host1", "version": "0.1.0", "started_ms": 1763600000000,
             "seen_ms": 1763700000000, "ended_ms": None, "parked": 1,
             "items": [{"what": "object", "name": "photos/2026/a.jpg", "reason": "the landing copy cannot be read",
                        "since_ms": 1763690000000, "failures": 7}]},
        ],
    )  # fmt: skip
    daemons: list[Daemon] = Field(max_length=1000)


class Bucket(_Answer):
    """Blocks whose ratio is above the previous bucket's bound and at most this bucket's bound."""

    up_to: Ratio
    blocks: Count
    stripes: Count


class Histograms(_Answer):
    """How full blocks are, and how many holes they have. Blocks without a stripe are left out."""

    model_config = _example(
        blocks=14, stripes=448,
        utilisation=[{"up_to": 0.95, "blocks": 1, "stripes": 20}, {"up_to": 1.0, "blocks": 13, "stripes": 428}],
        hole_ratio=[{"up_to": 0.0, "blocks": 12, "stripes": 384}, {"up_to": 0.1, "blocks": 2, "stripes": 64}],
        computed_at_ms=1763700000000,
    )  # fmt: skip
    blocks: Count
    stripes: Count
    utilisation: list[Bucket] = Field(max_length=64, description="live bytes / size of the block")
    hole_ratio: list[Bucket] = Field(max_length=64, description="dead / (live + dead) of the block")
    computed_at_ms: UnixMs


class Block(_Answer):
    """A block and the accounting of its bytes."""

    block: HexId
    kind: BlockKind
    state: BlockState
    writer: str
    epoch: int
    stripes: Count
    live_bytes: Bytes
    dead_bytes: Bytes
    overhead_bytes: Bytes
    live_objects: Count
    utilisation: Ratio | None
    hole_ratio: Ratio
    created_ms: UnixMs
    delete_after_ms: UnixMs | None


_EXAMPLE_BLOCK = {
    "block": _BLOCK, "kind": "fresh", "state": "sealed", "writer": "consumer-host-1-77aa", "epoch": 12, "stripes": 32,
    "live_bytes": 33166000, "dead_bytes": 40000, "overhead_bytes": 348432, "live_objects": 3311,
    "utilisation": 0.988424,
    "hole_ratio": 0.001205, "created_ms": 1763700000000, "delete_after_ms": None,
}  # fmt: skip


class BlockPage(_Answer):
    """Blocks in order of id. With a filter, a page may be short or empty without being the last one."""

    model_config = _example(blocks=[_EXAMPLE_BLOCK], next_after=_BLOCK)
    blocks: list[Block] = Field(max_length=1000)
    next_after: HexId | None = Field(description="`after` for the next page; null: this is the last page.")


class Group(_Answer):
    """A stripe group, as its header describes it."""

    stripe: Count = Field(description="First stripe of the group in the block.")
    stripe_count: Count
    header_bytes: Bytes
    names_bytes: Bytes
    data_bytes: Bytes
    front_bytes: Bytes = Field(
        description="Empty bytes before the first object: header, names, and padding after them."
    )
    gap_bytes: Bytes = Field(description="Empty bytes between objects, and after the last object in its last chunk.")
    end_bytes: Bytes = Field(description="Bytes of the chunks after that chunk.")
    entries: Count
    live_entries: Count
    writer_epoch: Count
    written_at_ms: UnixMs


class BlockDetail(_Answer):
    """A block decoded from its headers and compared with the rows. Only the headers are read."""

    model_config = _example(
        block=_EXAMPLE_BLOCK, damaged_stripes=[], unfinished_stripes=[], unconfirmed_objects=0,
        header_bytes_read=131072,
        groups=[{"stripe": 0, "stripe_count": 1, "header_bytes": 4096, "names_bytes": 900, "data_bytes": 1043400,
                 "front_bytes": 5120, "gap_bytes": 56, "end_bytes": 0,
                 "entries": 104, "live_entries": 103, "writer_epoch": 12, "written_at_ms": 1763700000000}],
    )  # fmt: skip
    block: Block
    groups: list[Group] = Field(max_length=STRIPES_PER_BLOCK_MAX)
    damaged_stripes: list[int] = Field(
        max_length=STRIPES_PER_BLOCK_MAX, description="Stripes without a readable header."
    )
    unfinished_stripes: list[int] = Field(
        max_length=STRIPES_PER_BLOCK_MAX,
        description="Stripes of a group that its writer did not finish, so it holds no object.",
    )
    unconfirmed_objects: Count = Field(description="Objects that rows place here, but no readable header confirms.")
    header_bytes_read: Bytes


class EntryModel(_Answer):
    """One object in a block. Names come from the rows, so objects that are not live have no name."""

    offset: Bytes = Field(description="Offset from the start of the block.")
    length: Bytes
    version: int
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")
    key_md5: HexId
    live: bool = Field(description="A row points here: key, version, offset and length all match.")
    in_header: bool = Field(description="False: only a row places it here; no readable header confirms it.")
    bucket: str | None
    name: str | None


class EntryPage(_Answer):
    """The contents of a block, in order of offset."""

    model_config = _example(
        entries=[{"offset": 131072, "length": 65536, "version": 1763700000000000, "crc32c": "e3069283",
                  "key_md5": "9e107d9d372bb6826bd81d3542a419d6", "live": True, "in_header": True, "bucket": "photos",
                  "name": "2026/a.jpg"}],
        next_after=131072,
    )  # fmt: skip
    entries: list[EntryModel] = Field(max_length=1000)
    next_after: Bytes | None = Field(description="`after` for the next page; null: this is the last page.")


class Place(_Answer):
    """A range of bytes in a block. `chunks`: the number of chunks it touches, which is the number of shards that a read
    needs."""

    block: HexId
    offset: Bytes
    length: Bytes
    chunks: Count


class ObjectDetail(_Answer):
    """An object and where its bytes are: in a landing copy, in blocks, or (if it is empty) nowhere."""

    model_config = _example(
        bucket="photos", name="2026/a.jpg", version=1763700000000000, size=65536, crc32c="e3069283",
        md5="9e107d9d372bb6826bd81d3542a419d6", state="packed", created_ms=1763700000000,
        attributes={"content-type": "image/jpeg"}, landing=None,
        places=[{"block": _BLOCK, "offset": 131072, "length": 65536, "chunks": 1}], places_left_out=0,
    )  # fmt: skip
    bucket: str
    name: str
    version: int
    size: Bytes
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")
    md5: HexId
    state: ObjectState
    created_ms: UnixMs
    attributes: dict[str, str] = Field(description="Attributes that its PUT set.")
    landing: HexId | None
    places: list[Place] = Field(
        max_length=1000, description="Places in the order of the bytes; more than one for a large object."
    )
    places_left_out: Count = Field(description="Number of further places of a very large object.")


class GcBlock(_Answer):
    """A block that GC considers. `unconfirmed` counts its live objects that are known only from rows."""

    block: HexId
    hole_ratio: Ratio
    waste_ratio: Ratio = Field(
        description="Share of the whole block that no object uses: dead bytes, headers, padding."
    )
    size_bytes: Bytes
    live_objects: Count
    live_bytes: Bytes
    unconfirmed: Count
    header_bytes_read: Bytes
    price_days: float | None = Field(
        ge=0,
        description="Break-even price of its dead bytes, or, if a run now would repack it, of its padding (docs/GC.md);"
        " null: it has no live bytes.",
    )
    bytes_to_write: Bytes | None = Field(
        description="Bytes that its live objects will take, if a run now would collect it."
    )
    padding_bytes_to_free: Bytes = Field(
        description="Headers and padding that rewriting it frees, if a run now would repack it for them."
    )
    collect: bool = Field(description="True if a run now would collect it.")


class GcWaiting(_Answer):
    """Blocks whose dead bytes a GC run cannot free now, grouped by reason."""

    reason: WaitReason = Field(
        description="open: not sealed yet; fenced: must be recovered first; set_aside: cooling down after a failure,"
        " or, with the policy threshold, packed densely; too_full: wastes less than gc.hole_ratio_min; condemned:"
        " emptied, and still in its grace period."
    )
    blocks: Count
    dead_bytes: Bytes = Field(description="For condemned blocks, their whole size.")
    until_ms: UnixMs | None = Field(description="When the first of them stops waiting, if a time decides that.")


class GcPlan(_Answer):
    """What a GC run would do now, like `nos-ec gc plan`. The sums cover all candidates; `blocks` lists the emptiest."""

    model_config = _example(
        candidates=1, victims=1, space_amplification=1.2143, space_amplification_after=1.1907,
        target_space_amplification=1.2, behind=None, bytes_to_rewrite=2097152, bytes_to_write=2207528,
        padding_bytes_to_free=0,
        bytes_to_reclaim=33554432, header_bytes_read=131072, block_bytes_examined=33554432,
        computed_at_ms=1763700000000,
        blocks=[{"block": _BLOCK, "hole_ratio": 0.9367, "waste_ratio": 0.9375, "size_bytes": 33554432,
                 "live_objects": 31, "live_bytes": 2097152, "unconfirmed": 0,
                 "header_bytes_read": 131072, "price_days": 51.4, "bytes_to_write": 2207528,
                 "padding_bytes_to_free": 0, "collect": True}],
        waiting=[{"reason": "open", "blocks": 1, "dead_bytes": 29360128, "until_ms": None}],
        trash_objects=310, trash_bytes=2900000,
    )  # fmt: skip
    candidates: Count
    victims: Count
    space_amplification: float | None = Field(ge=1, description="Stored / live bytes now; null without live bytes.")
    space_amplification_after: float | None = Field(ge=1, description="The same, once the victims are collected.")
    target_space_amplification: float | None = Field(
        gt=1, description="gc.space_amp; null unless gc.policy is space-target."
    )
    behind: Behind | None = Field(
        description="Why a run would not collect all that the policy requires. budget: gc.copy_bytes_max; blocks:"
        " gc.blocks_max_per_run; price: gc.price_days, or not sealed; set_aside: cooling down; gain: rewriting"
        " frees nothing; null: it would. Only finished runs report space and stopped."
    )
    bytes_to_rewrite: Bytes = Field(description="Live bytes of the victims, which a run reads.")
    bytes_to_write: Bytes = Field(description="Estimated bytes that they will take, with headers and padding.")
    padding_bytes_to_free: Bytes = Field(description="Headers and padding that repacking some of the victims frees.")
    bytes_to_reclaim: Bytes
    header_bytes_read: Bytes
    block_bytes_examined: Bytes
    blocks: list[GcBlock] = Field(max_length=1000)
    waiting: list[GcWaiting] = Field(max_length=5, description="Other dead bytes that cannot be freed now.")
    trash_objects: Count = Field(description="Deleted objects in the trash, which are live until they expire.")
    trash_bytes: Bytes
    computed_at_ms: UnixMs


class Use(_Answer):
    """What a metered bucket, or the buckets of an account, hold: versions, current and noncurrent, and parts of
    uploads, as they are stored. Includes each change that was acknowledged."""

    model_config = _example(
        name="photos", bytes=4509715660, objects=120000,
        quota={"soft_bytes": None, "hard_bytes": 5368709120, "soft_objects": None, "hard_objects": 1000000,
               "requests_per_s": None, "bytes_per_s": None},
        share=0.84,
    )  # fmt: skip
    name: str
    bytes: Bytes | None = Field(description="Null while the objects of a bucket are being counted.")
    objects: Count | None
    quota: Quota | None = Field(description="Its limits, null where there is none; null: no quota.")
    share: float | None = Field(
        ge=0,
        description="The greater share of the limits of bytes and objects that is used, which may exceed 1. A soft"
        " limit counts where there is no hard one. Null: not limited, or not counted yet.",
    )


class UsagePage(_Answer):
    """One page of buckets or accounts, by name."""

    model_config = _example(
        usage=[{"name": "photos", "bytes": 4509715660, "objects": 120000, "quota": None, "share": None}],
        next_after=None, computed_at_ms=1763700000000,
    )  # fmt: skip
    usage: list[Use] = Field(max_length=1000)
    next_after: str | None
    computed_at_ms: UnixMs


class HealthModel(_Answer):
    """The health of the process. `problems` has an entry for each unhealthy part. Its text only refers to the log,
    because this route needs no token and reasons may name servers; the endpoints of the daemons give the reason."""

    model_config = _example(ok=False, problems={"message log": HIDDEN})
    ok: bool
    problems: dict[str, str] = Field(max_length=64)
