"""What the placement groups of a Ceph cluster say about lost OSDs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nos_ec.core.placement import GroupState


class PlacementGroups(Protocol):
    """The placement groups that hold the blocks and the landing copies. Safe to call from several threads."""

    def states(self) -> Mapping[str, Mapping[GroupState, int]]:
        """{"blocks" or "landing": {state: number of groups}}, each state included. Empty for a store that has no
        placement groups.

        Some seconds old. Waits a second at most, whatever the storage cluster does. Raises Transient when it has not
        answered for a minute, ConfigError.
        """
        ...
