"""Taking shards away for a while, to show that nothing is lost with them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nos_ec.backends import admin_cluster
from nos_ec.core.errors import Transient
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.adapters.rados.cluster import RadosCluster

OSD_WAIT_S_MAX = 60.0


@contextmanager
def shards_lost(settings: Settings, rng: random.Random) -> Iterator[list[int] | None]:
    """As many shards as reads can do without are gone inside; gives their numbers, or None when none may be taken.

    Embedded: m shard folders. Ceph: m - 1 OSDs, the most with which every placement group stays active (min_size is
    k + 1); only with `ceph.admin_keyring_file`, which says that the cluster is one for development.
    """
    k, m = settings.geometry.k, settings.geometry.m
    if settings.store.backend == "local":
        shards = sorted(rng.sample(range(k + m), m))
        with _folders_renamed(settings, shards):
            yield shards
    elif settings.ceph.admin_keyring_file is None:
        yield None
    else:
        with admin_cluster(settings) as cluster:
            up = [osd["osd"] for osd in _osds(cluster) if osd["up"]]
            osds = sorted(rng.sample(up, min(m - 1, len(up))))
            with _osds_down(cluster, osds):
                yield osds


@contextmanager
def _folders_renamed(settings: Settings, shards: list[int]) -> Iterator[None]:
    folders = [settings.store.root / "blocks" / f"shard-{shard:02}" for shard in shards]
    for folder in folders:
        folder.rename(folder.with_name(folder.name + ".lost"))
    try:
        yield
    finally:
        for folder in folders:
            folder.with_name(folder.name + ".lost").rename(folder)


@contextmanager
def _osds_down(cluster: RadosCluster, osds: list[int]) -> Iterator[None]:
    """The monitors count these OSDs as down, and do not let them up again before the end."""
    names = [f"osd.{osd}" for osd in osds]
    cluster.command("osd set-group", flags="noup", who=names)
    try:
        cluster.command("osd down", ids=names)
        _await(lambda: not any(osd["up"] for osd in _osds(cluster) if osd["osd"] in osds), "go down")
        yield
    finally:
        cluster.command("osd unset-group", flags="noup", who=names)
    _await(lambda: all(osd["up"] for osd in _osds(cluster) if osd["osd"] in osds), "come up again")


def _osds(cluster: RadosCluster) -> list[dict[str, int]]:
    found: list[dict[str, int]] = cluster.command("osd dump")["osds"]
    return found


def _await(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + OSD_WAIT_S_MAX
    while not happened():
        if time.monotonic() > deadline:
            raise Transient(
                f"OSDs do not {what}; see `ceph osd tree`, and `ceph osd unset-group noup` if they stay down"
            )
        time.sleep(0.2)
