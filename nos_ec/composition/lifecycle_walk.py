"""Makes the walk that applies the lifecycle rules of buckets."""

from __future__ import annotations

from nos_ec.composition.wiring import System
from nos_ec.core.expiry import DAY_MS
from nos_ec.engine.expiry.lifecycle_walk import LifecycleWalk


def lifecycle_walk_of(system: System) -> LifecycleWalk:
    """Return the lifecycle walk of an open store. Expired objects go into the trash if the store has one."""
    return LifecycleWalk(system.metadata, system.clock, DAY_MS, system.settings.trash.keep_ms)
