"""Placement on a Ceph pool: picks, from a few random ids, the one whose placement group is in the best condition."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import structlog

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.placement.cluster_view import ClusterView
from nos_ec.adapters.rados.placement.object_hash import placement_group
from nos_ec.core.ids import BlockId
from nos_ec.core.placement import CANDIDATES, ClusterMap, Condition, Grade, Place, choose, condition

_log = structlog.get_logger(__name__)

FIRST_MAP_WAIT_S = 2.0
"""How long the first id of a process waits for the first map, which usually takes milliseconds."""
REMEMBERED_BLOCKS = 1024
"""The number of latest blocks whose condition at their start is remembered. Writers have far fewer open blocks."""


class RadosPlacement:
    """A `Placement` on a Ceph pool (see nos_ec.ports.placement for the contract).

    `new_id` draws an id at random. From the first id on, a separate thread sends commands to the monitors; a process
    that writes no blocks sends them none. Close it before the cluster.
    """

    def __init__(
        self,
        cluster: RadosCluster,
        pool_name: str,
        namespace: str,
        new_id: Callable[[], BlockId],
        candidates: int = CANDIDATES,
    ) -> None:
        self._cluster = cluster
        self._pool_name = pool_name
        self._namespace = namespace
        self._new_id = new_id
        self._candidates = candidates
        self._lock = threading.Lock()
        self._view: ClusterView | None = None
        self._closed = False
        self._begun_as: OrderedDict[BlockId, Condition] = OrderedDict()

    @property
    def alternatives(self) -> bool:
        """Return True: there are as many places as the pool has placement groups."""
        return True

    def new_block_id(self) -> BlockId:
        """Return the best of some random ids, or any id while there is no map."""
        known = self._opened_view().current_map(FIRST_MAP_WAIT_S)
        if known is None or not known.groups:
            return self._new_id()
        places = [self._place(known, self._new_id()) for _ in range(self._candidates)]
        chosen = choose(known, places)
        if chosen is None:
            # The map may be out of date. The append will show.
            _log.warning("none of the candidate placement groups accepts writes", pool=self._pool_name)
            chosen = places[0]
        self._remember(chosen.block_id, condition(known, chosen.group))
        return chosen.block_id

    def healthy(self, block_id: BlockId) -> bool:
        """Return whether the block's group is in as good a condition as it has ever been since the id was chosen."""
        view = self._view
        known = view.current_map() if view else None
        if known is None:
            return True
        now = condition(known, self._place(known, block_id).group)
        with self._lock:
            begun_as = self._begun_as.get(block_id)
        if begun_as is None:
            return now.grade <= Grade.DEGRADED
        if begun_as.worse_than(now):
            self._remember(block_id, now)
        return not now.worse_than(begun_as)

    def close(self) -> None:
        """End the thread that renews the map. Idempotent."""
        with self._lock:
            self._closed = True
            view = self._view
        if view is not None:
            view.close()

    def _opened_view(self) -> ClusterView:
        with self._lock:
            if self._view is None:
                if self._closed:
                    raise ValueError("the placement is closed")
                self._view = ClusterView(self._cluster, self._pool_name)
            return self._view

    def _place(self, known: ClusterMap, block_id: BlockId) -> Place:
        return Place(block_id, placement_group(block_id.hex(), self._namespace, known.group_count))

    def _remember(self, block_id: BlockId, now: Condition) -> None:
        with self._lock:
            self._begun_as[block_id] = now
            while len(self._begun_as) > REMEMBERED_BLOCKS:
                self._begun_as.popitem(last=False)
