"""The states of the placement groups of a Ceph cluster, which show where lost OSDs leave objects at risk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nos_ec.core.placement import GroupState


class PlacementGroups(Protocol):
    """The placement groups that hold the blocks and the landing copies. Safe to call from several threads."""

    def states(self) -> Mapping[str, Mapping[GroupState, int]]:
        """Return {"blocks" or "landing": {state: number of groups}}, with every state included. Returns an empty
        mapping for a store that has no placement groups.

        The answer is some seconds old. Waits at most a second, whatever the storage cluster does. Raises Transient when
        the cluster has not answered for a minute, ConfigError.
        """
