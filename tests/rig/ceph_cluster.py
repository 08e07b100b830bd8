"""A cluster that deploy/dev/ceph.sh started, as tests use it: clients of each kind, and faults."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nos_ec.adapters.rados.block_store import RadosBlockStore
from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.client.cluster_waits import await_down, await_figures, await_state, await_up, osds_up
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.adapters.rados.pool_checks import check_blocks_pool
from nos_ec.adapters.rados.segment_log import RadosSegmentLog
from nos_ec.core.geometry import PAGE, Geometry
from tests.rig.dev_servers import kill_process, stop_process

POOL_BLOCKS = "nos-ec-blocks"
POOL_LANDING = "nos-ec-landing"
STORE_ID = bytes(range(16))
"""The id of the store, which segments record."""
FIGURE_LOOKS = 3
"""The number of readings of a figure that must agree. The OSDs report about once a second."""
CHANGES_S, CHANGES_S_USUAL = 0.1, 1.0
"""paxos_propose_interval of deploy/dev and Ceph's own."""


class CephCluster:
    """The cluster of one ceph.conf. `script` is deploy/dev/ceph.sh."""

    def __init__(self, conf_file: Path, script: Path) -> None:
        self.conf_file = conf_file
        self.folder = conf_file.parent
        self._script = script
        self.admin = RadosCluster(RadosOptions(conf_file, "client.admin", self.folder / "admin.keyring"))

    def close(self) -> None:
        """Close the administrator's connection."""
        self.admin.close()

    def options(self, role: str, op_timeout_ms: int = 30_000) -> RadosOptions:
        """How a client of this kind connects."""
        user = f"client.nos-ec-{role}"
        return RadosOptions(self.conf_file, user, self.folder / f"{user}.keyring", op_timeout_ms)

    # --- what the cluster knows -----------------------------------------------------------------------

    def reads_pages(self) -> bool:
        """Whether the OSDs of the blocks' pool read only the pages requested. Before Tentacle, or without its
        optimizations, they cannot."""
        with self.admin.open_pool(POOL_BLOCKS) as pool:
            return check_blocks_pool(self.admin, pool, Geometry()).granularity == PAGE

    def osds(self) -> list[int]:
        """The numbers of all OSDs."""
        return sorted(osd["osd"] for osd in self.admin.command("osd dump")["osds"])

    def osds_of(self, pool_name: str, namespace: str, object_name: str) -> list[int]:
        """The OSDs of an object's placement group, primary first."""
        found = self.admin.command("osd map", pool=pool_name, object=object_name, nspace=namespace)
        primary = found["acting_primary"]
        return [primary, *(osd for osd in found["acting"] if osd != primary)]

    def settled_figure(self, ask: Callable[[], int]) -> int:
        """A figure of what is stored, once all OSDs have reported and it has been the same FIGURE_LOOKS times. An
        acknowledged delete frees its space a moment later, when each shard drops what it could have rolled back to.
        """
        looks: list[int] = []

        def settled() -> bool:
            await_figures(self.admin)
            looks.append(ask())
            return len(looks) >= FIGURE_LOOKS and len(set(looks[-FIGURE_LOOKS:])) == 1

        await_state(settled, "what is stored keeps changing")
        return looks[-1]

    def store_reads(self) -> dict[int, tuple[int, int]]:
        """The (reads, bytes) of each OSD from its store so far."""
        found = {}
        for osd in self.osds():
            figures = self.admin.command_osd(osd, "perf dump")["bluestore"]
            size_bytes = sum(
                value for name, value in figures.items() if name.endswith(("buffer_hit_bytes", "buffer_miss_bytes"))
            )
            found[osd] = (int(figures["read_lat"]["avgcount"]), int(size_bytes))
        return found

    # --- faults ---------------------------------------------------------------------------------------

    def owned(self) -> bool:
        """Whether the script started the daemons, so that a test may kill some."""
        return "NOS_EC_DEV_CEPH_CONF" not in os.environ

    @contextmanager
    def maps_change_as_usual(self) -> Iterator[None]:
        """Let the monitors collect changes of the map for as long as by Ceph's default, not as briefly as deploy/dev
        sets it. For measurements."""
        self._gather_changes_for(CHANGES_S_USUAL)
        try:
            yield
        finally:
            self._gather_changes_for(CHANGES_S)

    def _gather_changes_for(self, interval_s: float) -> None:
        self.admin.command("config set", who="mon", name="paxos_propose_interval", value=str(interval_s))

    @contextmanager
    def osds_killed(self, osds: Sequence[int]) -> Iterator[None]:
        """Kill some OSDs (SIGKILL) and wait until the cluster has noticed. At the end they are back and all is
        clean."""
        try:
            for osd in osds:
                kill_process(self._pid(osd))
            await_down(self.admin, osds)
            yield
        finally:
            self._start()

    @contextmanager
    def osd_stopped(self, osd: int) -> Iterator[None]:
        """Hang an OSD (SIGSTOP) for less than the time after which other OSDs report it."""
        pid = self._pid(osd)
        try:
            stop_process(pid)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def osd_hung(self, osd: int) -> Iterator[None]:
        """Hang an OSD (SIGSTOP) for any length of time. At the end it continues, and all is clean again."""
        with self.osd_stopped(osd):
            yield
        # The OSD finds out that it was marked down, and comes back by itself.
        await_up(self.admin, [osd])
        self._start()

    @contextmanager
    def monitor_hung(self) -> Iterator[None]:
        """Hang the only monitor (SIGSTOP). The OSDs continue. At the end it answers again."""
        pid = int((self.folder / "run" / "mon.pid").read_text())
        try:
            stop_process(pid)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
            self.admin.command("osd dump")

    def is_up(self, osd: int) -> bool:
        """Whether the monitors count an OSD as up."""
        return osd in osds_up(self.admin)

    def await_down(self, osd: int) -> None:
        """Wait until the cluster has noticed that an OSD is gone."""
        await_down(self.admin, [osd])

    def await_map(self) -> None:
        """Wait until every placement group of the blocks uses the map that the monitors have now. The monitors send it
        to some OSDs, which send it to the others. An OSD then still has to write the map and to pass it to its
        groups."""
        dump = self.admin.command("osd dump")
        epoch = dump["epoch"]
        pool_id = next(pool["pool"] for pool in dump["pools"] if pool["pool_name"] == POOL_BLOCKS)
        await_state(
            lambda: all(known >= epoch for known in self._map_epochs(pool_id)),
            f"not all placement groups use the map of epoch {epoch}",
        )

    def _map_epochs(self, pool_id: int) -> Iterator[int]:
        """The epoch of the map that each placement group of a pool uses, as its primary OSD reports."""
        for group in self.admin.command("pg dump", dumpcontents=["pgs_brief"])["pg_stats"]:
            if group["pgid"].startswith(f"{pool_id}."):
                yield int(self.admin.command_osd(group["acting_primary"], "query", pgid=group["pgid"])["epoch"])

    def _pid(self, osd: int) -> int:
        return int((self.folder / "run" / f"osd.{osd}.pid").read_text())

    def _start(self) -> None:
        environment = os.environ | {"NOS_EC_DEV_DIR": str(self.folder.parent)}
        subprocess.run([str(self._script), "start"], env=environment, check=True, capture_output=True, timeout=180)


class _OwnStore:
    """A store with its own connection, as if in another process, whose figures are up to date."""

    def __init__(self, ceph: CephCluster, role: str, op_timeout_ms: int, *place: object) -> None:
        self._ceph = ceph
        self._connection = RadosCluster(ceph.options(role, op_timeout_ms))
        try:
            super().__init__(self._connection, *place)  # type: ignore[call-arg]  # that of the store
        except BaseException:
            self._connection.close()
            raise

    def raw_bytes(self) -> int:
        """Of the cluster's figures after they settled."""
        return self._ceph.settled_figure(super().raw_bytes)  # type: ignore[misc]  # that of the store

    def close(self) -> None:
        """Close the connection too."""
        super().close()  # type: ignore[misc]  # that of the store
        self._connection.close()


class OwnBlockStore(_OwnStore, RadosBlockStore):
    """A block store with its own connection."""

    def __init__(self, ceph: CephCluster, namespace: str, geometry: Geometry, op_timeout_ms: int = 30_000) -> None:
        super().__init__(ceph, "consumer", op_timeout_ms, POOL_BLOCKS, geometry, namespace)


class OwnLandingStore(_OwnStore, RadosLandingStore):
    """A landing store with its own connection."""

    def __init__(self, ceph: CephCluster, namespace: str, op_timeout_ms: int = 30_000) -> None:
        super().__init__(ceph, "front", op_timeout_ms, POOL_LANDING, namespace)


class OwnSegmentLog(_OwnStore, RadosSegmentLog):
    """A medium of the landing log with its own connection."""

    def __init__(self, ceph: CephCluster, namespace: str, op_timeout_ms: int = 30_000) -> None:
        super().__init__(ceph, "front", op_timeout_ms, POOL_LANDING, STORE_ID, namespace)
