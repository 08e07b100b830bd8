"""The metrics of a process that PUTs and GETs: its requests, exported in this form only by programs that use the Python
API, and its batches and landing log."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import S3, Declarations, Metric

LIBRARY = "library"
"""Programs that use the Python API and register the metrics of their store."""
_PUTTERS = (S3, LIBRARY)

_declared = Declarations()
_counter, _gauge, _histogram = _declared.counter, _declared.gauge, _declared.histogram

# --- requests of a store's users -----------------------------------------------------------------------------------
REQUEST_SECONDS = _histogram(
    "request_seconds",
    (LIBRARY,),
    "Seconds of successful requests, by operation (put, get, head, list, delete, set_attributes). A GET counts until"
    " its first bytes; a PUT until it is durable, without the time of its source; a LIST for each page.",
    "If the tail of `put` grows, check the landing store and the metadata store; if the tail of `get` grows, check the"
    " block store (`nos_ec_degraded_reads_total`).",
    "operation",
)
REQUEST_BYTES = _histogram(
    "request_object_bytes",
    (LIBRARY,),
    "Bytes that PUTs stored and GETs returned, by operation. A GET through a reader counts when the reader is closed.",
    "Its `_sum` is the throughput. The sizes of `put` are input for `nos-ec simulate packing --sizes`.",
    "operation",
)
REQUEST_FAILURES = _counter(
    "request_failures",
    (LIBRARY,),
    "Requests that failed, by operation and kind of error (PYTHON.md). `other` is an error from outside nos_ec, such"
    " as one of the stream that a PUT reads.",
    "`not_found`, `invalid_input`, `precondition_failed` and `quota_exceeded` are errors of the user. Alert on"
    " `corrupt`, on `no_space`, and on a steady rate of `transient`.",
    "operation",
    "kind",
)
PUT_BATCH_OBJECTS = _histogram(
    "put_batch_objects",
    _PUTTERS,
    "Objects in each batch of concurrent PUTs, which share transactions. Its `_count` is the number of batches, its"
    " `_sum` the number of objects. `put_many` does not count.",
    "1 while PUTs do not overlap. If the number is high and the tail of `put` grows, the landing store or the metadata"
    " store is at its limit.",
)
REQUESTS_UNDER_WAY = _gauge(
    "requests_under_way",
    (LIBRARY,),
    "Requests under way.",
    "At the limit of the program's threads, requests wait for each other.",
)


# --- the landing log of a process ----------------------------------------------------------------------------------
LOG_BATCHES = _counter(
    "landing_log_batches",
    _PUTTERS,
    "Batches of PUTs appended to landing segments. Only in a store with a landing log.",
    "Each is one append. Objects of 1 MiB or more are not in batches.",
)
LOG_RECORDS = _counter(
    "landing_log_records",
    _PUTTERS,
    "Objects in these batches.",
    "Divide by `nos_ec_landing_log_batches_total` to see how many objects share an append.",
)
LOG_BYTES = _counter(
    "landing_log_bytes",
    _PUTTERS,
    "Bytes of these batches, headers and padding included.",
    "Compare it with the throughput of the log's devices, or of the landing pool.",
)
LOG_FAILED_APPENDS = _counter(
    "landing_log_failed_appends",
    _PUTTERS,
    "Appends that failed. The batch is then appended to another landing segment, and fails after three tries.",
    "At a steady rate, a device of the log or a placement group of the landing pool does not answer: see the log.",
)
LOG_OPENED = _counter(
    "landing_log_opened_segments",
    _PUTTERS,
    "Landing segments that this process opened.",
    "One for each segment's worth of bytes, or each landing.segment_age_ms if there are few PUTs.",
)
LOG_SEALED = _counter(
    "landing_log_sealed_segments",
    _PUTTERS,
    "Landing segments that this process sealed.",
    "Follows the opened segments. If it lags far behind, the metadata store or the medium does not answer; soon no"
    " more are opened.",
)
LOG_PASSED_FULL = _counter(
    "landing_log_passed_full",
    _PUTTERS,
    "PUTs that went to the landing store because the landing log was full.",
    "Should be 0: they are durable, but slower. Packing or the reaper is too slow (`nos_ec_store_landing_segments`), or"
    " the log is too small for its load.",
)

LIBRARY_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
