"""The metrics of the devices that an embedded store keeps its landing log on."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import STORE, Declarations, Metric

_declared = Declarations()
_gauge = _declared.gauge

STORE_LANDING_LOG_DEVICES = _gauge(
    "store_landing_log_devices",
    STORE,
    "Devices of the landing log that work, and that are lost, as this process finds them. Not on Ceph.",
    "None should be `lost`: `nos-ec status` names it, and docs/RUNBOOKS.md says what to do.",
    "state",
)
STORE_LANDING_LOG_UNREADABLE_SLOTS = _gauge(
    "store_landing_log_unreadable_slots",
    STORE,
    "Slots of the landing log whose headers cannot be read, so that they take no new landing segment. Not on Ceph.",
    "Must be 0. Otherwise a disk is failing: `nos-ec check` names slots and objects, and plans the repair.",
)

DEVICE_METRICS: list[Metric] = _declared.metrics
"""In the order of the reference."""
