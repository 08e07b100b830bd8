"""The metrics of lifecycle rules, which GC applies."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import STORE, Declarations, Metric

_declared = Declarations()
_counter, _gauge = _declared.counter, _declared.gauge

LIFECYCLE_EXAMINED = _counter(
    "lifecycle_examined_objects",
    STORE,
    "Objects, versions and markers that GC has examined because of lifecycle rules.",
    "Each one below the prefix of a rule is examined once a day.",
)
LIFECYCLE_EXPIRED_OBJECTS = _counter(
    "lifecycle_expired_objects",
    STORE,
    "Objects that GC has deleted because they had expired.",
    "If more than expected, check the rules with `nos-ec s3 lifecycle list`.",
)
LIFECYCLE_EXPIRED_BYTES = _counter(
    "lifecycle_expired_bytes",
    STORE,
    "Bytes of these objects, and of expired noncurrent versions.",
    "They are dead from then on, or in the trash: GC frees them with their blocks.",
)
LIFECYCLE_EXPIRED_VERSIONS = _counter(
    "lifecycle_expired_versions",
    STORE,
    "Noncurrent versions that GC has deleted because of lifecycle rules.",
    "If more than expected, check NoncurrentDays of the rules with `nos-ec s3 lifecycle list`.",
)
LIFECYCLE_EXPIRED_MARKERS = _counter(
    "lifecycle_expired_markers",
    STORE,
    "Delete markers that GC has removed: noncurrent markers, and markers that were the last version of a key.",
    "A marker has no bytes, only a row.",
)
LIFECYCLE_ABORTED_UPLOADS = _counter(
    "lifecycle_aborted_uploads",
    STORE,
    "Multipart uploads that GC has aborted because of lifecycle rules.",
    "Uploads aborted by s3.abort_uploads_days do not count.",
)
LIFECYCLE_FAILED_BUCKETS = _counter(
    "lifecycle_failed_buckets",
    STORE,
    "How often the rules of a bucket could not be applied.",
    "If above 0, the log names the bucket. It is tried again after a minute, then less often.",
)
LIFECYCLE_WALK_DAY = _gauge(
    "lifecycle_walk_day_seconds",
    STORE,
    "Start (Unix time) of the day whose walk is under way or was the last to end; 0 before the first walk.",
    "If more than two days ago, GC does not run, or the walk takes longer than a day.",
)

LIFECYCLE_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
