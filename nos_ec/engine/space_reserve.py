"""Decides which work may use the last free space (invariant 10).

GC may use all of it. Packing stops at the reserve, so that GC can always rewrite survivors. PUT stops at twice the
reserve, so that packing can always turn landing copies into stripes. Each leaves space for the work that frees space.
"""

from __future__ import annotations

from nos_ec.core.errors import FREE_SPACE, NoSpace
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore

PACKING_RESERVES = 1
PUT_RESERVES = 2


def require_space(blocks: BlockStore, size: int, reserve_bytes: int) -> None:
    """Raise NoSpace if `size` bytes of stripes would leave less than the reserve, and Transient if the free space is
    unknown."""
    _require("block store", blocks.free_bytes(), size, reserve_bytes)


def require_landing_space(free_bytes: int, size: int, reserve_bytes: int) -> None:
    """Raise NoSpace if a landing copy of `size` bytes would leave less than the reserve in the landing store."""
    _require("landing store", free_bytes, size, reserve_bytes)


def require_put_space(blocks: BlockStore, landing: LandingStore, reserve_bytes: int) -> None:
    """Raise NoSpace while the block store refuses PUTs of large objects or the landing store those of other objects,
    and Transient if the free space is unknown."""
    require_landing_space(landing.free_bytes(), 0, reserve_bytes)
    require_space(blocks, 0, reserve_bytes)


def _require(place: str, free: int, size: int, reserve_bytes: int) -> None:
    if free - size < reserve_bytes:
        raise NoSpace(
            f"{place}: {free} bytes free, {size} needed and {reserve_bytes} kept in reserve; {FREE_SPACE}, or add space"
        )
