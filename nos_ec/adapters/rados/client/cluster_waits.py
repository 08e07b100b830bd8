"""Waits for a cluster to reach a state. Operators' tools, the bench and tests use this after they have changed a
cluster.

Each check costs at least one command to the monitors, so checks run only a few times a second, and for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.core.errors import Transient

WAIT_S_MAX = 60.0
LOOK_S = 0.2


def osds_up(cluster: RadosCluster) -> set[int]:
    """Return the numbers of the OSDs that the monitors count as up. Raises ConfigError, Transient."""
    return {osd["osd"] for osd in cluster.command("osd dump")["osds"] if osd["up"]}


def await_down(cluster: RadosCluster, osds: Collection[int]) -> None:
    """Wait until none of these OSDs is up. Raises ConfigError, Transient."""
    await_state(lambda: not osds_up(cluster) & set(osds), f"OSDs {sorted(osds)} do not go down; see `ceph osd tree`")


def await_up(cluster: RadosCluster, osds: Collection[int]) -> None:
    """Wait until all of these OSDs are up. Raises ConfigError, Transient."""
    await_state(
        lambda: osds_up(cluster) >= set(osds),
        f"OSDs {sorted(osds)} do not come up; see `ceph osd tree`, and `ceph osd unset-group noup` if they stay down",
    )


def await_clean(cluster: RadosCluster) -> None:
    """Wait until every placement group is active and clean. Raises ConfigError, Transient."""
    await_state(
        lambda: _is_clean(cluster), "placement groups are not all active and clean; see `ceph health detail` for why"
    )


def await_figures(cluster: RadosCluster) -> None:
    """Make the OSDs that are up report how much they store, and wait until the monitors have these figures. Needs an
    administrator's caps. Raises ConfigError, Transient."""
    sequences = {osd: int(cluster.command_osd(osd, "flush_pg_stats")) for osd in osds_up(cluster)}
    await_state(
        lambda: all(_known_sequence(cluster, osd) >= sequence for osd, sequence in sequences.items()),
        "the monitors do not know what the OSDs store; check with `ceph -s` that a manager is running",
    )


def await_state(reached: Callable[[], bool], problem: str) -> None:
    """Wait until `reached` returns true. Raises Transient with `problem` after WAIT_S_MAX, and any error of
    `reached`."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not reached():
        if time.monotonic() > deadline:
            raise Transient(f"after {WAIT_S_MAX:.0f} s {problem}")
        time.sleep(LOOK_S)


def _known_sequence(cluster: RadosCluster, osd: int) -> int:
    # With format JSON, the monitors' answer to this command is empty. The plain answer is a number.
    return int(cluster.command("osd last-stat-seq", id=osd, format="plain"))


def _is_clean(cluster: RadosCluster) -> bool:
    states = cluster.command("pg stat")["pg_summary"]["num_pg_by_state"]
    return all(state["name"].startswith("active+clean") for state in states)
