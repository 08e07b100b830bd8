"""The map of the cluster that placement uses for its decisions. It is kept up to date in the background.

    every REFRESH_S, and soon after `stale` was called:   osd dump    which OSDs are up; published at once
                                                           osd df      how full they are
                                                           pg dump     the state of the groups
    when the monitors push a line of the cluster's log about OSDs, groups or health: `stale`

Figures that the monitors do not renew keep their last values. While a monitor or the manager is down, the map becomes
outdated, but no operation fails.
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

REFRESH_S = 5.0
"""The interval at which the manager's figures change by default (mgr_stats_period). More frequent requests would return
the same ones."""
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
        self._complete = threading.Event()
        """Set once a map has been read or the attempt has failed. After that, no caller waits for the first map."""
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="cluster-view", daemon=True)
        self._thread.start()

    def current_map(self, first_wait_s: float = 0.0) -> ClusterMap | None:
        """Return the latest map without a request to the monitors; None before the first map. Waits only for the very
        first map, at most this long."""
        if self._map is None and first_wait_s:
            self._complete.wait(first_wait_s)
        return self._map

    def stale(self) -> None:
        """Request a new map soon, because something has happened."""
        self._wanted.set()

    def close(self) -> None:
        """Stop renewing the map. Idempotent. Waits for a command in flight, at most the cluster's time limit."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()

    def _on_log_line(self, _channel: str, _level: str, text: str) -> None:
        if RELEVANT_LINE.search(text):
            self.stale()

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
            self._wanted.clear()
            self._renew()
            self._complete.set()
            if self._wanted.wait(self._refresh_s):
                self._closing.wait(SETTLE_S)

    def _renew(self) -> None:
        """Send all commands once, and publish each answer as it comes."""
        try:
            dump = self._cluster.command("osd dump")
            known = cluster_map.with_osds(self._map or ClusterMap(1, 1), dump, self._pool_name)
            self._map = known
            known = cluster_map.with_fills(known, self._cluster.command("osd df"))
            brief = self._cluster.command("pg dump", dumpcontents=["pgs_brief"])
            self._map = cluster_map.with_groups(known, brief, cluster_map.pool_id(dump, self._pool_name))
        except NosError as error:
            if not self._failed:
                _log.warning("cannot renew the Ceph cluster's map; blocks are placed by the last one", error=str(error))
            self._failed = True
        except Exception:
            # A bug in one attempt must not end the thread, because then the map would become outdated without any
            # report.
            _log.exception("cannot renew the Ceph cluster's map; blocks are placed by the last one")
            self._failed = True
        else:
            if self._failed:
                _log.info("the Ceph cluster's map is renewed again")
            self._failed = False
