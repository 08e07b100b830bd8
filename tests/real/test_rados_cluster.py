"""What the monitors of a real Ceph push."""

from __future__ import annotations

import uuid
from queue import Empty, Queue

import pytest

from nos_ec.adapters.rados.cluster import RadosCluster
from nos_ec.testing.ceph_cluster import CephCluster

pytestmark = pytest.mark.real

WAIT_S_MAX = 30

Entry = tuple[str, str, str]


def say(ceph: CephCluster) -> str:
    """Write an entry to the cluster's log; returns its text."""
    text = f"test {uuid.uuid4().hex}"
    ceph.admin.command("log", logtext=[text], level="info")
    return text


def test_the_log_is_pushed_until_its_watch_is_closed(ceph: CephCluster) -> None:
    entries: Queue[Entry] = Queue()
    with RadosCluster(ceph.options("consumer")) as cluster:
        watch = cluster.watch_log(lambda *entry: entries.put(entry))
        with pytest.raises(ValueError, match="watched already"):
            cluster.watch_log(lambda *entry: entries.put(entry))
        text = say(ceph)
        while (entry := entries.get(timeout=WAIT_S_MAX)) != ("cluster", "[INF]", text):
            assert entry[0] in ("audit", "cluster"), entry
        watch.close()
        watch.close()
        while not entries.empty():
            entries.get()
        say(ceph)
        with pytest.raises(Empty):
            entries.get(timeout=3)
        cluster.watch_log(lambda *entry: entries.put(entry))
        text = say(ceph)
        while entries.get(timeout=WAIT_S_MAX)[2] != text:
            pass


def test_a_cluster_that_is_closed_ends_the_watch_of_its_log(ceph: CephCluster) -> None:
    entries: Queue[Entry] = Queue()
    with RadosCluster(ceph.options("producer")) as cluster:
        watch = cluster.watch_log(lambda *entry: entries.put(entry))
        say(ceph)
        entries.get(timeout=WAIT_S_MAX)
    watch.close()
    with pytest.raises(ValueError, match="closed"):
        cluster.watch_log(lambda *entry: entries.put(entry))
