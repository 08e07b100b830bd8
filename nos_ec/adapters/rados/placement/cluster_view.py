"""Keeps a map of the cluster up to date in the background. Placement uses it for its decisions.

Three commands renew the map, every REFRESH_S and soon after a relevant line in the cluster's log:

    osd dump    which OSDs are up; the map is published at once
    osd df      how full they are
    pg dump     the states of the placement groups; the map is published again

If a command fails, or the manager gives the monitors no new figures, the last values stay in the map. So while monitors
or the manager are down the map becomes outdated, but no operation fails.
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack, closing

import structlog

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.placement import cluster_map
from nos_ec.core.errors import NosError
from nos_ec.core.placement import ClusterMap

_log = structlog.get_logger(__name__)

_EMPTY_MAP = ClusterMap(group_count=1, writable_min=1)
"""Stands for the earlier map before the first one. `osd dump` replaces both numbers."""
REFRESH_S = 5.0
"""The interval at which the manager's figures change by default (mgr_stats_period). More frequent commands would return
the same figures."""
SETTLE_S = 0.1
"""How long to wait after a log line before renewing the map, because related failures are logged together."""

RELEVANT_LINE = re.compile(r"\bosd\.\d|\b(OSD|PG|POOL)_|\bpgs?\b|\bosds?\b")
"""Lines of the cluster's log after which the map may have changed: "osd.3 marked down", "Health check failed: 1 osds
down (OSD_DOWN)", "pgs degraded (PG_DEGRADED)"."""


class ClusterView:
    """The latest map of a cluster, which a thread of its own keeps up to date. Safe to call from several threads.

    `close` ends the thread. Close it before the cluster that it sends commands to.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, refresh_s: float = REFRESH_S) -> None:
        self._cluster = cluster
        self._pool_name = pool_name
        self._refresh_s = refresh_s
        self._map: ClusterMap | None = None
        self._first_attempt_ended = threading.Event()
        """Set once a map has been read or the attempt has failed. After that, no caller waits for the first map."""
        self._wake = threading.Event()
        """Ends the wait for the next renewal."""
        self._closing = threading.Event()
        self._failed = False
        """Whether the last attempt failed. An outage is logged only when it begins and ends."""
        self._thread = threading.Thread(target=self._run, name="cluster-view", daemon=True)
        self._thread.start()

    def current_map(self, first_wait_s: float = 0.0) -> ClusterMap | None:
        """Return the latest map without a request to the monitors; None before the first map. Waits at most
        `first_wait_s` for the first map, and never for a later one."""
        if self._map is None and first_wait_s:
            self._first_attempt_ended.wait(first_wait_s)
        return self._map

    def close(self) -> None:
        """Stop renewing the map. Idempotent. Waits for a command in flight, at most the cluster's time limit."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _on_log_line(self, _channel: str, _level: str, text: str) -> None:
        if RELEVANT_LINE.search(text):
            self._wake.set()

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(closing(self._cluster.watch_log(self._on_log_line)))
            except NosError as error:
                _log.warning(
                    "cannot watch the Ceph cluster's log; its map is renewed only at intervals", error=str(error)
                )
            self._renew_until_closed()

    def _renew_until_closed(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            self._renew()
            self._first_attempt_ended.set()
            if self._wake.wait(self._refresh_s):
                self._closing.wait(SETTLE_S)

    def _renew(self) -> None:
        """Send all commands once. Logs failures."""
        try:
            dump = self._cluster.command("osd dump")
            renewed = cluster_map.with_osds(self._map or _EMPTY_MAP, dump, self._pool_name)
            self._map = renewed
            renewed = cluster_map.with_fills(renewed, self._cluster.command("osd df"))
            groups = self._cluster.command("pg dump", dumpcontents=["pgs_brief"])
            self._map = cluster_map.with_groups(renewed, groups, cluster_map.pool_id(dump, self._pool_name))
        except NosError as error:
            if not self._failed:
                _log.warning("cannot renew the Ceph cluster's map; blocks are placed by the last one", error=str(error))
            self._failed = True
        except Exception:
            # A bug in one attempt must not end the thread: nothing would report that the map becomes outdated.
            _log.exception("cannot renew the Ceph cluster's map; blocks are placed by the last one")
            self._failed = True
        else:
            if self._failed:
                _log.info("the Ceph cluster's map is renewed again")
            self._failed = False
