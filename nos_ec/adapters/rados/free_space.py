"""How much a pool still takes."""

from __future__ import annotations

import threading
import time

from nos_ec.adapters.rados.cluster import RadosCluster
from nos_ec.core.errors import Transient

STALE_AFTER_S = 5.0
"""Ceph's own figures are about that old when they reach the monitors: asking more often tells nothing new."""


class FreeSpace:
    """User bytes a pool still takes, as the monitors estimate it; asked for at most every STALE_AFTER_S.

    Between two answers what was written meanwhile through `spent` is subtracted. Safe to call from several threads.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str) -> None:
        self._cluster = cluster
        self._pool_name = pool_name
        self._lock = threading.Lock()
        self._free_bytes = 0
        self._known_until = 0.0

    def spent(self, size_bytes: int) -> None:
        """Tell of bytes written."""
        with self._lock:
            self._free_bytes -= size_bytes

    def value(self) -> int:
        """User bytes, never negative. Raises Transient when the monitors do not tell."""
        with self._lock:
            if time.monotonic() >= self._known_until:
                self._free_bytes = self._ask()
                self._known_until = time.monotonic() + STALE_AFTER_S
            return max(0, self._free_bytes)

    def _ask(self) -> int:
        """max_avail is what the fullest OSD can take, less coding or replicas; a quota may be less."""
        for pool in self._cluster.command("df", detail="detail").get("pools", []):
            if pool.get("name") == self._pool_name:
                stats = pool["stats"]
                free = int(stats["max_avail"])
                quota = int(stats.get("quota_bytes", 0))
                return min(free, quota - int(stats.get("stored", 0))) if quota else free
        raise Transient(f"the Ceph monitors have no figures for pool {self._pool_name} yet: try again")
