"""Measures how much space a store occupies, once its figures have settled."""

from __future__ import annotations

import time
from collections.abc import Callable

from nos_ec.composition.backends import admin_cluster
from nos_ec.composition.wiring import System
from nos_ec.settings import Settings

REST_S, WAIT_S_MAX = 8, 60
"""Without an administrator's key, figures of a Ceph pool are used once they have not changed for REST_S seconds,
because OSDs report only every few seconds. The wait is limited to WAIT_S_MAX seconds."""


def allocated_bytes(settings: Settings, system: System, timer: Callable[[], float]) -> int:
    """Return the bytes allocated for blocks and landing copies together. For Ceph pools this includes all other stores
    in them.

    `timer` returns seconds since any fixed point. Raises ConfigError, Transient.
    """
    if settings.store.backend == "local":
        return _now(system)
    if settings.ceph.admin_keyring_file is None:
        return _at_rest(system, timer)
    from nos_ec.adapters.rados.client.cluster_waits import await_figures

    with admin_cluster(settings) as cluster:
        await_figures(cluster)
    return _now(system)


def _at_rest(system: System, timer: Callable[[], float]) -> int:
    found, since_s = _now(system), timer()
    deadline_s = since_s + WAIT_S_MAX
    while timer() < min(deadline_s, since_s + REST_S):
        time.sleep(1)
        if (now := _now(system)) != found:
            found, since_s = now, timer()
    return found


def _now(system: System) -> int:
    return system.blocks.raw_bytes() + system.landing.raw_bytes()
