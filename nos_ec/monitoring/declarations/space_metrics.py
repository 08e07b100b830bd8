"""The metrics of space: the space for landing copies, the space target of GC, the streams that help to reach it, and
the bytes that stripes leave empty."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import CONSUMER, STORE, Declarations, Metric

_declared = Declarations()
_counter, _gauge = _declared.counter, _declared.gauge

STORE_LANDING_FREE_BYTES = _gauge(
    "store_landing_free_bytes",
    STORE,
    "User bytes that still fit in the landing store; on Ceph, in the landing pool.",
    "PUTs are refused below 2 x gc.reserve_bytes; alert well above that.",
)
STORE_SPACE_AMPLIFICATION = _gauge(
    "store_space_amplification",
    STORE,
    "Stored / live bytes in blocks, condemned blocks, headers and padding not counted; 0 while there are no live"
    " objects.",
    "If it stays far above its target, `nos-ec gc plan` shows what prevents GC from reaching it.",
)
STORE_SPACE_AMPLIFICATION_TARGET = _gauge(
    "store_space_amplification_target",
    STORE,
    "gc.space_amp by the configuration of this process; 0 unless gc.policy is space-target.",
    "Compare with nos_ec_store_space_amplification.",
)
STREAMS_OPEN = _gauge(
    "consumer_streams_open",
    (CONSUMER,),
    "Streams into which objects are packed at present; the others are folded, because they collect too little.",
    "1 is normal in a store that takes less than a few MiB a second, and with gc.streams = 1.",
)
STREAM_BYTES = _counter(
    "consumer_stream_bytes",
    (CONSUMER,),
    "Bytes of the objects that the packer has received, by the stream of their expected lifetime; 0 is the"
    " shortest-lived.",
    "If all are in the last stream, no objects are known to die soon, as in a new store.",
    "stream",
)
SPLIT_OBJECTS = _counter(
    "consumer_split_objects",
    (CONSUMER,),
    "Objects written across one chunk border more than their size needs, so that a GET takes one more shard read.",
    "Divide by the packed and superseded objects. If the disks cannot spare the additional reads, raise"
    " consumer.split_bytes.",
)
EMPTY_BYTES = _counter(
    "consumer_empty_bytes",
    (CONSUMER,),
    "Bytes of the written stripes that do not belong to objects, by reason. front: header, names and the rest before"
    " the first object. gap: between objects, and in the last chunk that has one. end: chunks after it.",
    "Divide by `nos_ec_consumer_written_bytes_total`. If many are in gaps, lower consumer.split_bytes. If many are at"
    " the end, too few objects wait, or their sizes do not fit a group. If many are in front, objects are tiny, or few"
    " share a group.",
    "reason",
)
GC_SPLIT_OBJECTS = _counter(
    "gc_split_objects",
    STORE,
    "Live objects rewritten across one chunk border more than their size needs.",
    "Divide by `nos_ec_gc_moved_objects_total`; otherwise like `nos_ec_consumer_split_objects_total`.",
)
GC_EMPTY_BYTES = _counter(
    "gc_empty_bytes",
    STORE,
    "Bytes of the stripes written by GC that do not belong to objects, by reason as in"
    " `nos_ec_consumer_empty_bytes_total`.",
    "If many are at the end, runs rewrite too little at a time to fill groups.",
    "reason",
)

STORE_RAW_BYTES_PER_LIVE_BYTE = _gauge(
    "store_raw_bytes_per_live_byte",
    STORE,
    "Bytes on all shards per live byte in blocks, by part; the sum of the parts is the total. headers: with names."
    " undivided: headers and padding, before headers were first surveyed.",
    "If the sum is above 3, three replicas would be cheaper. If dead_sealed stays high, docs/OPERATIONS.md explains"
    " what to do.",
    "part",
)
STORE_LANDING_PER_LIVE_BYTE = _gauge(
    "store_landing_bytes_per_live_byte",
    STORE,
    "Bytes that wait to be packed, counting one landing copy of each object, per live byte in blocks; 0 while there"
    " are no live objects.",
    "Multiply by the copies that the landing store keeps. If it grows, packing is too slow, or put.min_age_ms is long.",
)
STORE_WRITE_AMPLIFICATION = _gauge(
    "store_write_amplification",
    STORE,
    "Bytes written to blocks per byte that users wrote, over the last day and week; 0 while it is unknown.",
    "If far above the value in docs/GC.md for gc.space_amp, raise gc.space_amp.",
    "span",
)
STORE_MEAN_SPACE_AMPLIFICATION = _gauge(
    "store_mean_space_amplification",
    STORE,
    "Stored / live bytes in blocks, as the mean of the last day and week; 0 while it is unknown.",
    "Compare with nos_ec_store_space_amplification_target.",
    "span",
)
GC_BEHIND = _gauge(
    "gc_behind",
    STORE,
    "1 for the reason why the last GC run did less than its policy asks for, else 0.",
    "docs/GC.md lists a remedy for each reason.",
    "reason",
)

SPACE_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
