"""Placement of the embedded block store: every block is on all shards, so every place is equally good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nos_ec.core.ids import BlockId
from nos_ec.core.placement import GroupState


class AnyPlace:
    """A `Placement` that does not choose between ids (see nos_ec.ports.placement for the contract)."""

    def __init__(self, new_id: Callable[[], BlockId]) -> None:
        self._new_id = new_id

    @property
    def alternatives(self) -> bool:
        """Return False: a disk that does not accept one block accepts no other."""
        return False

    def new_block_id(self) -> BlockId:
        """Return a new id."""
        return self._new_id()

    def healthy(self, block_id: BlockId) -> bool:  # noqa: ARG002 - the same for every block
        """Return True: a lost or full shard affects every block."""
        return True


class NoGroups:
    """The `PlacementGroups` of a store without any (see nos_ec.ports.placement_groups for the contract)."""

    def states(self) -> Mapping[str, Mapping[GroupState, int]]:
        """Return an empty mapping."""
        return {}

    def osds_down(self) -> Sequence[int]:
        """Return nothing."""
        return ()
