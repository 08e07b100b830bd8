"""Who may use the last free space (invariant 10).

GC may use all of it. Packing stops at the reserve, so that GC can always rewrite survivors. PUT stops at twice the
reserve, so that packing can always turn landing copies into stripes. Each leaves room for the work that frees space.
"""

from __future__ import annotations

from nos_ec.core.errors import FREE_SPACE, NoSpace
from nos_ec.ports.block_store import BlockStore

PACKING_RESERVES = 1
PUT_RESERVES = 2


def require_room(blocks: BlockStore, size: int, reserve_bytes: int) -> None:
    """Raises NoSpace when `size` bytes of stripes would leave less than the reserve; Transient if the free space is
    unknown."""
    free = blocks.free_bytes()
    if free - size < reserve_bytes:
        raise NoSpace(
            f"block store: {free} bytes free, {size} needed and {reserve_bytes} kept in reserve; {FREE_SPACE}, or add"
            " space"
        )
