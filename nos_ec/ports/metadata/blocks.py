"""Rows of blocks, for writers, recovery and GC, and the commit of stripe groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from nos_ec.core.gc.gc_policy import SealedBlock, StoredBytes
from nos_ec.core.gc.share import WHOLE, Share
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.ratios import hole_ratio, ratio
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.ports.metadata.leases import Lease


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block. Sizes are in bytes; live + dead + overhead = stripes x stripe_size (invariant 6)."""

    block_id: BlockId
    kind: BlockKind
    state: BlockState
    writer: str
    epoch: int
    stripes: int
    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    live_objects: int
    created_ms: int
    delete_after_ms: int | None
    gc_failures: int = 0
    """The number of consecutive failed attempts of GC to collect the block."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its stripes."""
        return self.live_bytes + self.dead_bytes + self.overhead_bytes

    @property
    def hole_ratio(self) -> float:
        """Return the hole ratio (see core.ratios); 1.0 for a block without data, which holds nothing worth keeping."""
        found = hole_ratio(self.live_bytes, self.dead_bytes)
        return 1.0 if found is None else found

    @property
    def waste_ratio(self) -> float:
        """Return (dead + overhead) / size, the share of its stripes that no object uses; 1.0 for a block without
        stripes."""
        found = ratio(self.dead_bytes + self.overhead_bytes, self.size_bytes)
        return 1.0 if found is None else found


class BlockFigures(NamedTuple):
    """The figures of a block that a picture of the whole store shows. Sizes are in bytes. `since_ms` is when the block
    was sealed, or allocated if it was never sealed, in Unix milliseconds: GC counts its age from then.

    Such a picture takes every block of a store, so this is the kind of value that is fastest to create.
    """

    block_id: BlockId
    kind: BlockKind
    state: BlockState
    live_bytes: int
    dead_bytes: int
    since_ms: int


class WaitReason(StrEnum):
    """The reason why GC cannot free the dead bytes of a block now."""

    OPEN = "open"
    """Its writer still appends to it; only sealed blocks are collected."""
    FENCED = "fenced"
    """Its writer died; recovery seals it first."""
    SET_ASIDE = "set_aside"
    """GC failed to collect it, or found it packed as densely as possible, and its cool-down is not over."""
    TOO_FULL = "too_full"
    """Its waste ratio is below the minimum at which GC collects a block."""
    CONDEMNED = "condemned"
    """It has been emptied, and its grace period is not over."""


@dataclass(frozen=True, slots=True)
class WaitingBlocks:
    """The blocks whose dead bytes GC cannot free now for one reason. For condemned blocks, `dead_bytes` is their whole
    size. `until_ms` is the time when the first of them stops waiting, or None when that does not depend on time."""

    reason: WaitReason
    blocks: int
    dead_bytes: int
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """The object bytes in blocks, including large objects but not condemned blocks, which GC deletes anyway.
    `empty_bytes` are dead bytes in SEALED blocks without a live object."""

    stored_bytes: int
    live_bytes: int
    empty_bytes: int

    @property
    def with_empty(self) -> StoredBytes:
        """Return the bytes in all of these blocks."""
        return StoredBytes(self.stored_bytes, self.live_bytes)

    @property
    def without_empty(self) -> StoredBytes:
        """Return the bytes that remain once the empty blocks are condemned."""
        return StoredBytes(self.stored_bytes - self.empty_bytes, self.live_bytes)


@dataclass(frozen=True, slots=True)
class Move:
    """The move of one object of a group, from the place in its row to `offset` in the group's block.

    `from_block` is the block that holds the object now, or None when its bytes come from a landing copy. `offset` is
    from the start of the block. The row is matched on (object_id, version, current location).
    """

    object_id: int
    version: int
    from_block: BlockId | None
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A stripe group that the block store has acknowledged."""

    lease: Lease
    block_id: BlockId
    at_stripe: int
    stripe_count: int
    moves: Sequence[Move]
    landing_not_before_ms: int
    """Landing copies of the winners may be deleted from this time on."""
    written_ms: int
    """When the group was written. If it fills the block, the block is sealed as of this time."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A packed object, or a segment of a large one, that rows place at an extent of a block. `attributes` are empty for
    a segment, because segments are never moved. `trash_until_ms` is the time until which the trash keeps it, if it is
    in the trash."""

    object_id: int
    key: ObjectKey
    version: int
    extent: Extent
    crc32c: int
    attributes: bytes = b""
    trash_until_ms: int | None = None


class Blocks(Protocol):
    """Rows of blocks. See the package docstring. Safe to call from several threads."""

    # --- look-ups ---------------------------------------------------------------------------------
    def block(self, block_id: BlockId) -> BlockRow:
        """Return one block. Raises NotFound."""

    def list_blocks(self, after: BlockId | None, limit: int) -> list[BlockRow]:
        """Return one page of all blocks in order of id, for status, checks and listings."""

    def list_block_figures(self, after: BlockId | None, limit: int) -> list[BlockFigures]:
        """Return the same page as `list_blocks`, with only the figures that a picture of the store needs, for about
        half of the work."""

    def placed_in(self, block_id: BlockId) -> list[Placed]:
        """Return the objects and segments that rows place in the block, ordered by offset."""

    # --- writers ----------------------------------------------------------------------------------
    def allocate_block(self, lease: Lease, block_id: BlockId, kind: BlockKind, now_ms: int) -> None:
        """Record an OPEN, empty block of this writer, before it is created in the block store. Raises LeaseLost."""

    def commit_group(self, commit: GroupCommit) -> frozenset[int]:
        """Commit one stripe group, in O(1) statements whatever the number of moves. Returns the object ids that won.

        It checks that the lease is held and that the block is OPEN, belongs to this lease, and ends at `at_stripe`. It
        moves each row that still matches: these objects are the winners, now PACKED at their new extent. It adds the
        winners' bytes to live, the others' to dead, and the rest of the group to overhead. It releases the winners' old
        places: landing copies are queued for deletion, live bytes of old blocks become dead. A group that fills the
        block up to stripes_per_block also turns it SEALED, as the append did in the block store.

        Raises LeaseLost (lease or block was fenced), Conflict (the block does not end at `at_stripe`). Committing the
        same group again after a Transient raises Conflict if the first attempt had succeeded; `block(block_id).stripes`
        then shows whether it had.
        """

    def seal_block(self, lease: Lease, block_id: BlockId, now_ms: int) -> None:
        """Move a block from OPEN to SEALED for its own writer, when every append so far was committed. Idempotent.
        Raises LeaseLost."""

    def fence_block(self, lease: Lease, block_id: BlockId) -> None:
        """Move a block from OPEN to FENCED for its own writer after a failed append, so that recovery reconciles it.
        Idempotent."""

    def forget_unwritten(self, lease: Lease, block_id: BlockId) -> bool:
        """Remove the row of an OPEN block of this writer that has no committed group, after the block store refused to
        create it. Returns False and changes nothing when there is no such row, because the block was fenced or an
        earlier call removed the row. Idempotent."""

    # --- recovery ---------------------------------------------------------------------------------
    def fenced_blocks(self, limit: int) -> list[BlockRow]:
        """Return blocks that wait for recovery."""

    def seal_reconciled(
        self, block_id: BlockId, stripes: int, live_bytes: int, dead_bytes: int, live_objects: int, now_ms: int
    ) -> bool:
        """Move a block from FENCED to SEALED with the byte counts that recovery found in headers and rows; the other
        bytes are overhead.

        Returns False and changes nothing when the block is no longer FENCED, or when the live bytes of its row are no
        longer `live_bytes` because an object was deleted meanwhile. The caller must then read the rows again.
        """

    # --- GC: queries with a share return only blocks that belong to it ----------------------------
    def empty_blocks(self, limit: int, share: Share = WHOLE) -> list[BlockRow]:
        """Return SEALED blocks without a live object, in any order: they can be condemned without writing any data."""

    def gc_candidates(
        self,
        waste_ratio_min: float,
        now_ms: int,
        cool_down_ms_max: int,
        limit: int,
        share: Share = WHOLE,
        *,
        overhead_ratio_min: float = 0.0,
    ) -> list[BlockRow]:
        """Return SEALED blocks that hold live objects and have at least this waste ratio, most wasteful first. In each
        of them, headers and padding alone take at least the share `overhead_ratio_min`.

        Leaves out blocks of large objects, which are all live or all dead, and blocks whose cool-down is not over. A
        cool-down that ends more than `cool_down_ms_max` from now was set by a wrong clock and counts as over.
        """

    def padded_blocks(
        self,
        overhead_ratio_min: float,
        price_days: float,
        now_ms: int,
        cool_down_ms_max: int,
        limit: int,
        share: Share = WHOLE,
    ) -> list[BlockRow]:
        """Return SEALED blocks that hold live objects, and whose headers and padding take at least this share and are
        worth this price (`core.gc_policy.padding_days`), most wasteful first. Leaves out the same blocks as
        `gc_candidates`. The cost grows with the number of blocks of that waste ratio."""

    def space_use(self) -> SpaceUse:
        """Return the bytes that blocks store, and how many of them are live. The cost grows with the number of
        blocks."""

    def blocks_with_holes(
        self, after: BlockId | None, now_ms: int, cool_down_ms_max: int, limit: int
    ) -> list[SealedBlock]:
        """Return one page of SEALED blocks with live objects and dead bytes, in order of id, for the policies of GC.
        Leaves out blocks of large objects and blocks that cool down after a failure, as `gc_candidates` does. A block
        that cools down because it is packed densely is included: more of it may be dead by now."""

    def waiting_blocks(self, waste_ratio_min: float, now_ms: int, cool_down_ms_max: int) -> list[WaitingBlocks]:
        """Return the dead bytes that a run of `gc_candidates` with these arguments would not free, by reason, in the
        order of WaitReason and without reasons that apply to no block. Blocks without dead bytes are not counted,
        unless they are condemned. With a waste ratio of 0, which stands for `blocks_with_holes`, blocks that cool down
        because they are packed densely do not wait. The cost grows with the number of blocks."""

    def cool_down_block(self, block_id: BlockId, not_before_ms: int, *, failed: bool) -> None:
        """Leave a SEALED block out of the candidates until `not_before_ms`. With `failed`, add 1 to its `gc_failures`;
        otherwise reset them to 0."""

    def condemn_block(self, block_id: BlockId, delete_after_ms: int) -> bool:
        """Move a block from SEALED to CONDEMNED. Returns False when a row or segment still points into it, or it is not
        SEALED."""

    def condemned_blocks(self, now_ms: int, limit: int, share: Share = WHOLE) -> list[BlockRow]:
        """Return CONDEMNED blocks whose grace period is over, then those whose grace period ends later than WAIT_MS_MAX
        from now (as for `Objects.due_objects`)."""

    def blocks_in_grace(self, limit: int) -> list[BlockRow]:
        """Return CONDEMNED blocks in the order in which their grace periods end, whether over or not. Leaves out blocks
        in quarantine."""

    def forget_block(self, block_id: BlockId) -> None:
        """Remove the row of a CONDEMNED block after its data was deleted. Idempotent."""
