"""The metadata store: objects, blocks, writer leases, the landing-copy deletion queue.

Every method is one transaction: all of it is durable on return, or nothing of it happened. Every method may
raise Transient (lost connection, deadlock, lock wait): when it does, the outcome is unknown and calling it again
with the same arguments is safe, because every change is a compare-and-set or idempotent by its ids.

Invariants kept here (numbers of docs/INVARIANTS.md):
  2  a landing copy is doomed only through `doom_landing`, which checks the row it was verified for
  3  an extent is only written by `commit_group` and `record_large`, with the CRC of the row
  4  a block is condemned only when no row points into it
  5  a move that matches no row is counted dead, not an error
  6  live + dead + overhead = stripes x stripe_size after every method
  8  a commit checks the lease epoch and the block's state in its own transaction
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.lifecycle import BlockKind, BlockState, ObjectState
from nos_ec.core.messages import PackRequest


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """The current version of one object. `landing_id` is set when state.in_landing, `extent` when PACKED.

    `due_ms`: when the producer should publish it; only `due_objects` tells it.
    """

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    md5: bytes
    state: ObjectState
    landing_id: LandingId | None
    extent: Extent | None
    created_ms: int
    due_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NewObject:
    """A landed (or empty: landing_id None, size 0) object to record."""

    key: ObjectKey
    size: int
    crc32c: int
    md5: bytes
    landing_id: LandingId | None
    due_ms: int
    """When the producer should publish it (creation time plus min_age)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a large object: `extent` holds its bytes, `crc32c` is theirs. Parts are in order."""

    extent: Extent
    crc32c: int


@dataclass(frozen=True, slots=True)
class NewLargeObject:
    """A large object whose blocks have been written and acknowledged.

    `block_stripes` gives the stripes of each block, in part order (one segment per block).
    """

    key: ObjectKey
    version: int
    size: int
    crc32c: int
    md5: bytes
    segments: Sequence[Segment]
    block_stripes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Lease:
    """A writer's right to write. `epoch` is unique and increasing over the whole store, over all names."""

    name: str
    epoch: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block. Sizes in bytes; live + dead + overhead = stripes x stripe_size (invariant 6)."""

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
    """How often in a row GC could not collect it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its stripes."""
        return self.live_bytes + self.dead_bytes + self.overhead_bytes

    @property
    def hole_ratio(self) -> float:
        """dead / (live + dead); 1.0 for a block without data, which holds nothing worth keeping."""
        data = self.live_bytes + self.dead_bytes
        return self.dead_bytes / data if data else 1.0

    @property
    def waste_ratio(self) -> float:
        """(dead + overhead) / size: the share of its stripes that no object uses; 1.0 for a block without stripes."""
        return (self.dead_bytes + self.overhead_bytes) / self.size_bytes if self.size_bytes else 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """One object of a group: it moves from where the row says it is to `offset` of the group's block.

    `from_block` is None when it comes from its landing copy, else the block it is in now. `offset` is from the
    start of the block. The row is matched on (object_id, version, current location).
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
    """When it was written: a block that it fills is sealed at this time."""


@dataclass(frozen=True, slots=True)
class LandingDeletion:
    """A landing copy that may go at `not_before_ms`.

    object_id is None for a copy that no object claims yet (a PUT in flight, or an abandoned one).
    `row` is the object's row if it still is of `version`, else None.
    """

    landing_id: LandingId
    object_id: int | None
    version: int | None
    doomed: bool
    row: ObjectRow | None


@dataclass(frozen=True, slots=True)
class Placed:
    """What the rows say lies at one extent of a block: a packed object or a segment of a large one."""

    object_id: int
    key: ObjectKey
    version: int
    extent: Extent
    crc32c: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over block rows, and over the rows still in the landing store. Sizes in bytes."""

    blocks: Mapping[tuple[BlockKind, BlockState], int]
    stripes: int
    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    packed_objects: int
    """Objects in stripes with others; large ones, which have blocks of their own, are not among them."""
    large_objects: int
    large_bytes: int
    """Part of live_bytes."""
    landed_objects: int
    landed_bytes: int
    queued_objects: int
    queued_bytes: int
    landing_deletions: int
    leases: int
    """Those of writers; a producer's guard no blocks and do not count."""


class Metadata(Protocol):
    """See the module docstring. Safe to call from several threads."""

    # --- the store itself -------------------------------------------------------------------------
    def bind_geometry(self, geometry: Geometry) -> None:
        """Record the geometry on first use; afterwards raise ConfigError when it differs from the record."""
        ...

    # --- objects ----------------------------------------------------------------------------------
    def reserve_landing(self, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        """Queue landing ids for deletion *before* their bytes are written, so that a dead PUT leaks nothing."""
        ...

    def record_puts(self, objects: Sequence[NewObject], now_ms: int) -> list[ObjectRow]:
        """Make landed or empty objects the current versions of their keys, and release what they overwrite.

        Takes their landing ids off the deletion queue. The version is max(previous version + 1,
        now_ms * 1000). An overwritten landing copy is queued for deletion with `now_ms` as its time; an
        overwritten extent becomes dead bytes. Raises Transient when an id has been doomed meanwhile (the
        PUT took longer than its reservation); nothing is recorded then.
        """
        ...

    def next_version(self, key: ObjectKey, now_ms: int) -> int:
        """A version for a large PUT that starts now: max(current version + 1, now_ms * 1000)."""
        ...

    def record_large(self, new: NewLargeObject, lease: Lease, now_ms: int) -> bool:
        """Make a large object the current version of its key, seal its blocks, release what it overwrites.

        Returns False when a version that is at least as new has been recorded meanwhile: the two PUTs were
        concurrent, this one counts as the first, and its blocks are sealed as dead. Raises LeaseLost.
        """
        ...

    def get(self, key: ObjectKey) -> ObjectRow:
        """The current version. Raises NotFound."""
        ...

    def segments(self, object_id: int, version: int) -> list[Segment]:
        """Segments of a large object in part order; an empty list when that version is gone."""
        ...

    def delete(self, key: ObjectKey, now_ms: int) -> ObjectRow:
        """Remove the object and release its bytes as `record_puts` does. Raises NotFound."""
        ...

    def delete_many(self, keys: Sequence[ObjectKey], now_ms: int) -> list[ObjectRow]:
        """Remove several objects as `delete` does, all in one transaction of O(1) statements.

        Returns the rows there were, in the order of `keys`; a key without an object is no error, and one that is
        there twice counts once. Called again after a Transient it returns only what was still there.
        """
        ...

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """Objects of a bucket whose name starts with `prefix` and is greater than `after`, by UTF-8 byte order."""
        ...

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """Names of buckets that hold an object, greater than `after`, by UTF-8 byte order."""
        ...

    # --- producer ---------------------------------------------------------------------------------
    def due_objects(self, now_ms: int, limit: int, slots: Collection[int]) -> list[ObjectRow]:
        """LANDED and QUEUED rows of these slots whose due time has come, longest due first, with their `due_ms`; then
        those due later than WAIT_MS_MAX from now, which only a clock that was wrong can have set.

        A row's slot is that of its bucket (`core.slots.bucket_slot`). A slot where more than its part of `limit` waits
        leaves room for the others, even if its rows are due longer. What it costs depends on `limit` and the number
        of slots, not on how many rows wait.
        """
        ...

    def mark_published(self, rows: Sequence[ObjectRow], due_ms: int) -> int:
        """Set rows QUEUED and due again at `due_ms` (in case the event is lost), if still of that version and
        in the landing store. Returns how many matched."""
        ...

    def still_landed(self, requests: Sequence[PackRequest]) -> frozenset[PackRequest]:
        """Which of these are true: a row says the same in every field, and its bytes are in the landing store.

        One statement, whatever their number. That it is still so is a hint that saves work: the commit decides. That
        id, version and key belong together holds for ever, so headers name what rows name (invariant 7).
        """
        ...

    # --- leases -----------------------------------------------------------------------------------
    def acquire_lease(self, name: str, now_ms: int, ttl_ms: int, holder: str = "") -> Lease:
        """Take the lease `name`. Raises Conflict when it exists, expired or not: an expired one must be fenced
        first. `holder` says which process this is: it is what a Conflict tells whoever comes meanwhile."""
        ...

    def renew_lease(self, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
        """Extend it. Raises LeaseLost when it was fenced or released."""
        ...

    def release_lease(self, lease: Lease) -> None:
        """Give it up. Its OPEN blocks, if any, become FENCED for recovery. Idempotent."""
        ...

    def acquire_leases(self, names: Sequence[str], now_ms: int, ttl_ms: int) -> list[Lease]:
        """Take those of the leases that do not exist, in O(1) statements; returns what it took.

        The others are somebody's, expired or not, and no error.
        """
        ...

    def renew_leases(self, held: Sequence[Lease], now_ms: int, ttl_ms: int) -> list[Lease]:
        """Extend those of them that are still held, in O(1) statements; returns these. The others were fenced or
        released."""
        ...

    def release_leases(self, held: Sequence[Lease]) -> None:
        """Give them up as `release_lease` does, all in one transaction. Idempotent."""
        ...

    def list_leases(self, prefix: str) -> list[Lease]:
        """Leases whose names begin with `prefix`, in order of names, expired ones among them."""
        ...

    def expired_leases(self, now_ms: int) -> list[Lease]:
        """Leases that expired at or before `now_ms`, and those whose time lies more than LEASE_MS_MAX ahead of it
        (`nos_ec.core.deadlines`)."""
        ...

    def fence_lease(self, lease: Lease, now_ms: int) -> bool:
        """Revoke an expired lease and turn its OPEN blocks FENCED. False when it was renewed, released or fenced
        meanwhile."""
        ...

    # --- blocks -----------------------------------------------------------------------------------
    def allocate_block(self, lease: Lease, block_id: BlockId, kind: BlockKind, now_ms: int) -> None:
        """Record an OPEN, empty block of this writer, before it is created in the block store. Raises LeaseLost."""
        ...

    def commit_group(self, commit: GroupCommit) -> frozenset[int]:
        """The commit of one stripe group, in O(1) statements whatever the number of moves.

        Checks that the lease is held and that the block is OPEN, is this lease's, and ends at `at_stripe`;
        moves each row that still matches (winners become PACKED at their new extent); adds the winners' bytes
        to live, the others' to dead, the rest of the group to overhead; releases the winners' old places:
        landing copies are queued for deletion, old blocks' live bytes become dead. The group that fills the block
        up to stripes_per_block turns it SEALED, as it is in the block store then. Returns the object ids that
        won. Raises LeaseLost (lease or block was fenced), Conflict (the block does not end at `at_stripe`).
        Committing the same group again after a Transient: raises Conflict when the first try had succeeded;
        `block(block_id).stripes` then tells.
        """
        ...

    def seal_block(self, lease: Lease, block_id: BlockId, now_ms: int) -> None:
        """OPEN -> SEALED by its own writer, when every append so far was committed. Idempotent. Raises LeaseLost."""
        ...

    def fence_block(self, lease: Lease, block_id: BlockId) -> None:
        """OPEN -> FENCED by its own writer, after a failed append: recovery reconciles it. Idempotent."""
        ...

    def forget_unwritten(self, lease: Lease, block_id: BlockId) -> bool:
        """Remove the row of an OPEN block of this writer into which nothing was committed, after the block store
        refused to create it. False, and nothing changed, when there is no such row: it was fenced, or an earlier call
        removed it. Idempotent."""
        ...

    def fenced_blocks(self, limit: int) -> list[BlockRow]:
        """Blocks that wait for recovery."""
        ...

    def seal_reconciled(
        self, block_id: BlockId, stripes: int, live_bytes: int, dead_bytes: int, live_objects: int, now_ms: int
    ) -> bool:
        """FENCED -> SEALED with what recovery found in headers and rows; overhead is what remains.

        False, and nothing changed, when the block is not FENCED any more or the live bytes of its row are no
        longer `live_bytes` (an object was deleted meanwhile): look again.
        """
        ...

    def block(self, block_id: BlockId) -> BlockRow:
        """One block. Raises NotFound."""
        ...

    def list_blocks(self, after: BlockId | None, limit: int) -> list[BlockRow]:
        """All blocks in order of id: pages for status, checks and listings."""
        ...

    def placed_in(self, block_id: BlockId) -> list[Placed]:
        """What rows (and segments) say lies in the block, ordered by offset."""
        ...

    def empty_blocks(self, limit: int) -> list[BlockRow]:
        """SEALED blocks without a live object, in any order: what may be condemned with nothing to be written."""
        ...

    def gc_candidates(self, waste_ratio_min: float, now_ms: int, cool_down_ms_max: int, limit: int) -> list[BlockRow]:
        """SEALED blocks of that waste ratio or more that hold live objects, most wasteful first.

        Blocks of large objects are not among them, as they are all live or all dead; nor are blocks whose cool-down
        is not over. One that ends more than `cool_down_ms_max` from now was set by a clock that was wrong, and is.
        """
        ...

    def cool_down_block(self, block_id: BlockId, not_before_ms: int) -> None:
        """Leave a SEALED block out of the candidates until `not_before_ms`, and add 1 to its `gc_failures`."""
        ...

    def condemn_block(self, block_id: BlockId, delete_after_ms: int) -> bool:
        """SEALED -> CONDEMNED. False when a row or segment still points into it, or it is not SEALED."""
        ...

    def condemned_blocks(self, now_ms: int, limit: int) -> list[BlockRow]:
        """CONDEMNED blocks whose grace is over, or ends later than WAIT_MS_MAX from now (as for `due_objects`)."""
        ...

    def forget_block(self, block_id: BlockId) -> None:
        """Remove the row of a CONDEMNED block after its data is gone. Idempotent."""
        ...

    # --- landing copies ---------------------------------------------------------------------------
    def due_deletions(self, now_ms: int, limit: int) -> list[LandingDeletion]:
        """Queue entries whose time has come, with the row they belong to, longest due first; then those whose time is
        more than WAIT_MS_MAX from now (as for `due_objects`)."""
        ...

    def queued_copy(self, row: ObjectRow, first: LandingId, last: LandingId) -> LandingId | None:
        """The landing copy of that version which waits for its deletion, if its id is one from `first` to `last`.

        None when there is none, or it is doomed. What it costs grows with the queue's entries between the two ids.
        """
        ...

    def doom_landing(self, verified: Mapping[LandingId, BlockId | None]) -> frozenset[LandingId]:
        """Mark copies as about to be deleted; returns those that are (now or already) doomed.

        The value is the block the packed bytes were verified in, or None when the caller saw no row. An entry
        is doomed only if no row of its version exists, or the row is PACKED in exactly that block (invariant
        2). After this a PUT that reserved the id can no longer record it.
        """
        ...

    def revert_to_landing(self, deletion: LandingDeletion, now_ms: int) -> bool:
        """The packed bytes failed verification: PACKED -> LANDED with the landing copy, due now; the extent
        becomes dead bytes and the queue entry goes. False when the row moved on or the copy is doomed."""
        ...

    def postpone_deletion(self, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        """Try these later."""
        ...

    def forget_landing(self, landing_ids: Sequence[LandingId]) -> None:
        """Remove queue entries after their copies are gone. Idempotent."""
        ...

    def landing_known(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """Which of these ids a row or the deletion queue refers to: what a leak check asks."""
        ...

    def landing_needed(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """Those of the known ids that are not doomed. The others' copies may go: none of them can be recorded any more.

        One that is doomed must go by whoever wrote it late: the reaper may have deleted it before, and be about to
        forget it.
        """
        ...

    # --- health -----------------------------------------------------------------------------------
    def require_unblocked(self) -> None:
        """Raises Transient, saying for how long, while work of this process waits for a lock that another session of
        the database has held for seconds. Asks nobody."""
        ...

    # --- figures ----------------------------------------------------------------------------------
    def totals(self) -> Totals:
        """Sums for status. Cost grows with the number of blocks and of objects still landed, not of objects."""
        ...

    def close(self) -> None:
        """Release what is held open."""
        ...
