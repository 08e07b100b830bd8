"""What the monitors of a real Ceph push, and what its development cluster takes from the machine."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import pytest

from nos_ec.adapters.rados.client.cluster import RadosCluster
from tests.rig.ceph_cluster import CephCluster
from tests.rig.dev_servers import DevServer

pytestmark = pytest.mark.real

WAIT_S_MAX = 60
HEARD_S = 5
"""Much longer than a push takes."""
AIO_PLACES = 65_536
"""/proc/sys/fs/aio-max-nr of Linux by default."""
AIO_EVENT = 32
"""Bytes of one event in a ring of io_setup(2)."""

Entry = tuple[str, str, str]


def await_entry(ceph: CephCluster, entries: Queue[Entry]) -> None:
    """Write entries until one is pushed: entries that are written before the monitor knows of the watch are not
    pushed."""
    said: set[Entry] = set()
    deadline = time.monotonic() + WAIT_S_MAX
    heard: Entry | None = None
    while heard not in said:
        assert time.monotonic() < deadline, "none of the entries was pushed"
        said.add(("cluster", "[INF]", say(ceph)))
        with suppress(Empty):
            while (heard := entries.get(timeout=HEARD_S)) not in said:
                assert heard[0] in ("audit", "cluster"), heard


def say(ceph: CephCluster) -> str:
    """Write an entry to the cluster's log; returns its text."""
    text = f"test {uuid.uuid4().hex}"
    ceph.admin.command("log", logtext=[text], level="info")
    return text


def test_the_log_is_pushed_until_its_watch_is_closed(ceph: CephCluster) -> None:
    entries: Queue[Entry] = Queue()
    with RadosCluster(ceph.options("consumer")) as cluster:
        watch = cluster.watch_log(lambda *entry: entries.put(entry))
        with pytest.raises(ValueError, match="already being watched"):
            cluster.watch_log(lambda *entry: entries.put(entry))
        await_entry(ceph, entries)
        watch.close()
        watch.close()
        while not entries.empty():
            entries.get()
        say(ceph)
        with pytest.raises(Empty):
            entries.get(timeout=3)
        cluster.watch_log(lambda *entry: entries.put(entry))
        await_entry(ceph, entries)


def test_a_cluster_that_is_closed_ends_the_watch_of_its_log(ceph: CephCluster) -> None:
    entries: Queue[Entry] = Queue()
    with RadosCluster(ceph.options("producer")) as cluster:
        watch = cluster.watch_log(lambda *entry: entries.put(entry))
        say(ceph)
        entries.get(timeout=WAIT_S_MAX)
    watch.close()
    with pytest.raises(ValueError, match="closed"):
        cluster.watch_log(lambda *entry: entries.put(entry))


def test_the_osds_leave_room_for_those_of_other_clusters(ceph_server: DevServer) -> None:
    """All processes of a machine share 65,536 places for asynchronous I/O, unless its administrator gave them more."""
    osds = list((ceph_server.folder / "run").glob("osd.*.pid"))
    assert len(osds) >= 11
    places = sum(aio_places(int(pid_file.read_text())) for pid_file in osds)
    assert 0 < places < AIO_PLACES / 4


def aio_places(pid: int) -> int:
    """The places that a process has reserved: half of those in its rings, as Linux maps them."""
    ends = [
        line.split()[0].split("-") for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "[aio]" in line
    ]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ends) // AIO_EVENT // 2
