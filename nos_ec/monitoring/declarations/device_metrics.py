"""The metrics of the devices of an embedded store's landing log."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import STORE, Declarations, Metric

_declared = Declarations()
_gauge = _declared.gauge

STORE_LANDING_LOG_DEVICES = _gauge(
    "store_landing_log_devices",
    STORE,
    "Working and lost devices of the landing log, as this process sees them. Not on Ceph.",
    "No device should be `lost`: `nos-ec status` names it, and docs/RUNBOOKS.md explains what to do.",
    "state",
)
STORE_LANDING_LOG_UNREADABLE_SLOTS = _gauge(
    "store_landing_log_unreadable_slots",
    STORE,
    "Slots of the landing log whose headers cannot be read, so that they cannot hold a new landing segment. Not on"
    " Ceph.",
    "Must be 0. Otherwise a disk is failing: `nos-ec check` names slots and objects, and plans the repair.",
)

DEVICE_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
