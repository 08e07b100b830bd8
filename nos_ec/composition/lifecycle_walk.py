"""What applies the lifecycle rules of buckets."""

from __future__ import annotations

from nos_ec.composition.wiring import System
from nos_ec.engine.expiry.lifecycle_walk import LifecycleWalk


def lifecycle_walk_of(system: System) -> LifecycleWalk:
    """That of an open store: what expires goes into the trash, if there is one."""
    settings = system.settings
    return LifecycleWalk(system.metadata, system.clock, settings.s3.lifecycle_day_ms, settings.trash.keep_ms)
