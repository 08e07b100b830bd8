"""The metrics of the target of space, which GC keeps a store within, and of the streams that help it."""

from __future__ import annotations

from nos_ec.monitoring.metric import CONSUMER, STORE, Declarations, Metric

_declared = Declarations()
_counter, _gauge = _declared.counter, _declared.gauge

STORE_SPACE_AMPLIFICATION = _gauge(
    "store_space_amplification",
    STORE,
    "Stored / live bytes in blocks, condemned blocks included, headers and padding not; 0 while nothing lives.",
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

SPACE_METRICS: list[Metric] = _declared.metrics
"""In the order of the reference."""
