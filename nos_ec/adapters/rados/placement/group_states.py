"""The number of placement groups of the store's pools that lack an OSD, by the monitors' `pg dump pgs_brief`, and the
OSDs that are down, by their `osd dump`.

The OSDs decode and recover without telling their clients, so this is how a lost OSD shows. A separate thread sends the
commands, at most once per STALE_AFTER_S and only when somebody asks: a process whose metrics are not scraped sends
nothing. No caller waits for a monitor that hangs.

While Ceph moves groups between OSDs, each is inactive for a moment, when it peers. Operations hardly notice, but in a
cluster that rebalances there is often one such group. So a group that was active counts as before until it is inactive
in two consecutive answers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.placement.cluster_map import osds_down, with_groups
from nos_ec.core.errors import NosError, Transient
from nos_ec.core.placement import ClusterMap, GroupState, group_state

_log = structlog.get_logger(__name__)

STALE_AFTER_S = 5.0
"""The interval at which the manager's figures change (mgr_stats_period). More frequent requests would return the same
ones."""
FRESH_WAIT_S = 1.0
"""A caller that finds the figures stale waits this long for new ones, which usually takes milliseconds."""
KNOWN_FOR_S = 60.0
"""Figures that could not be renewed for this long are not returned any more: by then they may be wrong."""

States = Mapping[str, Mapping[GroupState, int]]


class GroupStates:
    """A `PlacementGroups` on Ceph pools (see nos_ec.ports.placement_groups for the contract).

    `pools` is {what a pool holds: its name}. Close it before the cluster that it sends commands to.
    """

    def __init__(self, cluster: RadosCluster, pools: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._pools = pools
        self._changed = threading.Condition()
        self._last: tuple[States, Sequence[int]] | None = None
        """The states and the OSDs that are down, of the last answer."""
        self._of_groups: dict[str, dict[int, GroupState]] = {}
        """The state of each group in the last answer, by what its pool holds. Used only by the requesting thread."""
        self._answered_s = self._ask_from_s = 0.0
        self._asking: threading.Thread | None = None
        self._failure: NosError | None = None
        self._closed = False

    def states(self) -> States:
        """See the port."""
        return self._answer()[0]

    def osds_down(self) -> Sequence[int]:
        """See the port."""
        return self._answer()[1]

    def _answer(self) -> tuple[States, Sequence[int]]:
        with self._changed:
            self._ask_if_stale()
            self._changed.wait_for(lambda: self._asking is None, FRESH_WAIT_S)
            if self._last is None or time.monotonic() > self._answered_s + KNOWN_FOR_S:
                raise self._failure or Transient("the Ceph monitors do not report their placement groups: try again")
            return self._last

    def close(self) -> None:
        """Stop asking. Idempotent. Waits for a request in flight, at most its own time limit."""
        with self._changed:
            self._closed = True
            asking = self._asking
        if asking is not None:
            asking.join()

    def _ask_if_stale(self) -> None:
        if self._closed:
            raise ValueError("the states of placement groups are closed")
        if self._asking is None and time.monotonic() >= self._ask_from_s:
            self._asking = threading.Thread(target=self._ask, name="group-states", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        found, failure = None, None
        try:
            down = osds_down(self._cluster.command("osd dump"))
            brief = self._cluster.command("pg dump", dumpcontents=["pgs_brief"])
            found = {what: self._count(brief, what) for what in self._pools}, down
        except NosError as error:
            failure = error
        except Exception as error:
            # A bug must not leave the callers waiting for a thread that is gone.
            _log.exception("cannot count placement groups")
            failure = Transient(f"Ceph's placement groups cannot be counted ({error!r})")
        now_s = time.monotonic()
        with self._changed:
            self._failure = failure
            if found is not None:
                self._last, self._answered_s = found, now_s
            self._ask_from_s = now_s + STALE_AFTER_S
            self._asking = None
            self._changed.notify_all()

    def _count(self, brief: object, what: str) -> dict[GroupState, int]:
        groups = with_groups(ClusterMap(1, 1), brief, self._cluster.pool_id(self._pools[what])).groups
        before = self._of_groups.get(what, {})
        now = self._of_groups[what] = {number: group_state(group) for number, group in groups.items()}
        found = Counter(
            before.get(number, state) if state is GroupState.INACTIVE else state for number, state in now.items()
        )
        return {state: found[state] for state in GroupState}
