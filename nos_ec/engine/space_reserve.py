"""Who may use the last free space (invariant 10).

GC may use all of it. Packing stops at the reserve, so that GC can always rewrite survivors. PUT stops at twice the
reserve, so that packing can always turn landing copies into stripes. Each leaves room for the work that frees space.
"""

from __future__ import annotations

from nos_ec.core.errors import FREE_SPACE, NoSpace
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore

PACKING_RESERVES = 1
PUT_RESERVES = 2


def require_space(blocks: BlockStore, size: int, reserve_bytes: int) -> None:
    """Raises NoSpace when `size` bytes of stripes would leave less than the reserve; Transient if the free space is
    unknown."""
    _require("block store", blocks.free_bytes(), size, reserve_bytes)


def require_landing_space(free_bytes: int, size: int, reserve_bytes: int) -> None:
    """The same for a landing copy in a landing store with this much free space."""
    _require("landing store", free_bytes, size, reserve_bytes)


def require_put_space(blocks: BlockStore, landing: LandingStore, reserve_bytes: int) -> None:
    """Raises NoSpace while PUTs are refused: of large objects by the block store, or of others by the landing store.
    Raises Transient if the free space is unknown."""
    require_landing_space(landing.free_bytes(), 0, reserve_bytes)
    require_space(blocks, 0, reserve_bytes)


def _require(place: str, free: int, size: int, reserve_bytes: int) -> None:
    if free - size < reserve_bytes:
        raise NoSpace(
            f"{place}: {free} bytes free, {size} needed and {reserve_bytes} kept in reserve; {FREE_SPACE}, or add space"
        )
