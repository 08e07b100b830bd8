"""The metrics of the trash, from which GC removes expired objects."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import STORE, Declarations, Metric

_declared = Declarations()
_counter, _gauge = _declared.counter, _declared.gauge

STORE_TRASH_OBJECTS = _gauge(
    "store_trash_objects",
    STORE,
    "Deleted objects in the trash.",
    "They count as live in all other figures, until they expire (trash.keep_days) and GC removes them.",
)
STORE_TRASH_BYTES = _gauge(
    "store_trash_bytes",
    STORE,
    "Bytes of the deleted objects in the trash.",
    "When space is short, `nos-ec trash empty` deletes them early.",
)
GC_EXPIRED_OBJECTS = _counter(
    "gc_expired_objects",
    STORE,
    "Deleted objects that GC removed from the trash because they had expired.",
    "If it does not grow although objects expire, see the log of GC.",
)
GC_EXPIRED_BYTES = _counter(
    "gc_expired_bytes",
    STORE,
    "Bytes of the objects that GC removed from the trash.",
    "They are dead from then on; GC frees them with their blocks.",
)

TRASH_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
