"""The states of the placement groups of a Ceph cluster, and the OSDs that are down. They show where lost OSDs leave
objects at risk, and which ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def osds_down(self) -> Sequence[int]:
        """Return the numbers of all OSDs of the cluster that are down, in order, whether or not they hold such a group;
        empty for a store that has no placement groups. They are of the same answer as `states`, with the same errors.
        """
