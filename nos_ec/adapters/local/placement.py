"""Placement of the embedded block store: every block lies on all of its shards, so every place is equally good."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nos_ec.core.ids import BlockId
from nos_ec.core.placement import GroupState


class AnyPlace:
    """A `Placement` that takes ids as they come (see nos_ec.ports.placement for the contract)."""

    def __init__(self, new_id: Callable[[], BlockId]) -> None:
        self._new_id = new_id

    @property
    def alternatives(self) -> bool:
        """Always False: a disk that does not accept one block accepts no other."""
        return False

    def new_block_id(self) -> BlockId:
        """The next id."""
        return self._new_id()

    def healthy(self, block_id: BlockId) -> bool:  # noqa: ARG002 - the same for every block
        """Always True: a lost or full shard affects every block."""
        return True


class NoGroups:
    """A `PlacementGroups` of a store that has none (see nos_ec.ports.placement_groups for the contract)."""

    def states(self) -> Mapping[str, Mapping[GroupState, int]]:
        """Always empty."""
        return {}
