"""Time limits for inspecting a healthy store on a busy machine."""

from __future__ import annotations

from nos_ec.settings import Settings
from nos_ec.settings.sections import REQUEST_TIMEOUT

PATIENCE_MS = 30_000


def patient(settings: Settings) -> Settings:
    """Return the settings with time limits that a busy machine can keep. Short limits are for work during a fault."""
    ceph = settings.ceph.model_copy(update={"op_timeout_ms": PATIENCE_MS})
    kafka = settings.kafka.model_copy(update={"options": settings.kafka.options | {REQUEST_TIMEOUT: PATIENCE_MS}})
    return settings.model_copy(update={"ceph": ceph, "kafka": kafka})
