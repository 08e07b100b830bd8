"""Time limits for whoever looks at a store that is whole, on a machine that is busy."""

from __future__ import annotations

from nos_ec.settings import Settings

PATIENCE_MS = 30_000


def patient(settings: Settings) -> Settings:
    """With time limits that a machine which is busy keeps to: short ones are for what goes on during a fault."""
    ceph = settings.ceph.model_copy(update={"op_timeout_ms": PATIENCE_MS})
    kafka = settings.kafka.model_copy(update={"request_timeout_ms": PATIENCE_MS})
    return settings.model_copy(update={"ceph": ceph, "kafka": kafka})
