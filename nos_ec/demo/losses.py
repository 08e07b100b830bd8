"""Temporarily removes shards, to show that no data is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nos_ec.composition.backends import admin_cluster
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.adapters.rados.client.cluster import RadosCluster


@contextmanager
def shards_lost(settings: Settings, rng: random.Random) -> Iterator[list[int] | None]:
    """Remove as many shards during the `with` block as reads can tolerate. Yields their numbers, or None if no shard
    may be removed.

    On an embedded store, these are m shard folders, data shards first: reads of intact data use no coding shards, so
    losing only those would prove nothing. On Ceph, these are m - 1 OSDs, the most that can be down while every
    placement group stays active (min_size is k + 1). This needs `ceph.admin_keyring_file`, which marks the cluster as a
    development cluster.
    """
    k, m = settings.geometry.k, settings.geometry.m
    if settings.store.backend == "local":
        shards = _shards_to_lose(k, m, rng)
        with _folders_renamed(settings, shards):
            yield shards
    elif settings.ceph.admin_keyring_file is None:
        yield None
    else:
        from nos_ec.adapters.rados.client.cluster_waits import osds_up

        with admin_cluster(settings) as cluster:
            up = sorted(osds_up(cluster))
            osds = sorted(rng.sample(up, min(m - 1, len(up))))
            with osds_down(cluster, osds):
                yield osds


def _shards_to_lose(k: int, m: int, rng: random.Random) -> list[int]:
    """Choose m of the k + m shards: data shards (the first k) before any others."""
    return sorted(rng.sample(range(k), min(k, m)) + rng.sample(range(k, k + m), max(0, m - k)))


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
def osds_down(cluster: RadosCluster, osds: list[int]) -> Iterator[None]:
    """Mark these OSDs as down during the `with` block, and do not let them come back up."""
    from nos_ec.adapters.rados.client.cluster_waits import await_down, await_up

    names = [f"osd.{osd}" for osd in osds]
    cluster.command("osd set-group", flags="noup", who=names)
    try:
        cluster.command("osd down", ids=names)
        await_down(cluster, osds)
        yield
    finally:
        cluster.command("osd unset-group", flags="noup", who=names)
    await_up(cluster, osds)
