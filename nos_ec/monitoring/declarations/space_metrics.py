"""The metrics of the space that landing copies have, of the target of space, which GC keeps a store within, of the
streams that help it, and of what stripes leave empty."""

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
    "Stored / live bytes in blocks, condemned blocks, headers and padding not counted; 0 while nothing lives.",
    "If far above its target for long, `nos-ec gc plan` says what keeps GC from it.",
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
    "Streams that objects are packed in at present; the others are folded, because they collect too little.",
    "1 is normal in a store that takes less than a few MiB a second, and with gc.streams = 1.",
)
STREAM_BYTES = _counter(
    "consumer_stream_bytes",
    (CONSUMER,),
    "Bytes of the objects taken up for packing, by the stream of their expected lifetime; 0 is the shortest-lived.",
    "All in the last stream: nothing is known to die soon, as in a new store.",
    "stream",
)
SPLIT_OBJECTS = _counter(
    "consumer_split_objects",
    (CONSUMER,),
    "Objects written across one chunk border more than their size needs, so that a read takes one more shard read.",
    "Divide by the packed and superseded objects. If it is more than the disks have reads to spare for, raise"
    " consumer.split_bytes.",
)
EMPTY_BYTES = _counter(
    "consumer_empty_bytes",
    (CONSUMER,),
    "Bytes of the stripes written that hold no object, by reason. front: header, names and the rest before the first"
    " object. gap: between objects, and in the last chunk with one. end: chunks after it.",
    "Divide by `nos_ec_consumer_written_bytes_total`. Many in gaps: lower consumer.split_bytes. Many at the end:"
    " too few objects wait, or their sizes do not fit a group. Many in front: objects are tiny, or few share a group.",
    "reason",
)
GC_SPLIT_OBJECTS = _counter(
    "gc_split_objects",
    STORE,
    "Live objects rewritten across one chunk border more than their size needs.",
    "As `nos_ec_consumer_split_objects_total`, divided by `nos_ec_gc_moved_objects_total`.",
)
GC_EMPTY_BYTES = _counter(
    "gc_empty_bytes",
    STORE,
    "Bytes of the stripes that GC wrote that hold no object, by reason as in `nos_ec_consumer_empty_bytes_total`.",
    "Many at the end: the runs rewrite too little at a time to fill groups.",
    "reason",
)

STORE_RAW_BYTES_PER_LIVE_BYTE = _gauge(
    "store_raw_bytes_per_live_byte",
    STORE,
    "Bytes on all shards per live byte in blocks, by part; their sum is the whole. headers: with names. undivided:"
    " headers and padding, before headers were first surveyed.",
    "Above 3, three replicas would be cheaper. If dead_sealed stays high, docs/OPERATIONS.md says what to do.",
    "part",
)
STORE_LANDING_PER_LIVE_BYTE = _gauge(
    "store_landing_bytes_per_live_byte",
    STORE,
    "Bytes that wait to be packed, one landing copy of each, per live byte in blocks; 0 while nothing lives.",
    "Multiply by the copies that the landing store keeps. If it grows, packing is behind, or put.min_age_ms is long.",
)
STORE_WRITE_AMPLIFICATION = _gauge(
    "store_write_amplification",
    STORE,
    "Bytes written to blocks per byte that users wrote, over the last day and week; 0 while nothing is known.",
    "If far above what docs/GC.md expects for gc.space_amp, raise gc.space_amp.",
    "span",
)
STORE_MEAN_SPACE_AMPLIFICATION = _gauge(
    "store_mean_space_amplification",
    STORE,
    "Stored / live bytes in blocks, the mean of the last day and week; 0 while nothing is known.",
    "Compare with nos_ec_store_space_amplification_target.",
    "span",
)
GC_BEHIND = _gauge(
    "gc_behind",
    STORE,
    "1 for the reason why the last GC run did not do all that its policy asks for, else 0.",
    "docs/GC.md lists what helps against each reason.",
    "reason",
)

SPACE_METRICS: list[Metric] = _declared.metrics
"""In the order of the reference."""
