"""The metadata store as a whole: all of its protocols, the store's identity, its health and its totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.gc.raw_cost import RawCost, StoredParts, raw_cost
from nos_ec.core.geometry import Geometry
from nos_ec.core.ratios import hole_ratio, ratio
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.ports.metadata.blocks import Blocks
from nos_ec.ports.metadata.buckets import AccessChanges, AccessKeys, Buckets, Usage
from nos_ec.ports.metadata.directory import Directory, Moves
from nos_ec.ports.metadata.explanations import Explanations
from nos_ec.ports.metadata.inspection import Inspection
from nos_ec.ports.metadata.landing_queue import LandingQueue
from nos_ec.ports.metadata.landing_segments import LandingSegments
from nos_ec.ports.metadata.leases import Leases
from nos_ec.ports.metadata.locks import Locks
from nos_ec.ports.metadata.notes import Notes
from nos_ec.ports.metadata.objects import Objects
from nos_ec.ports.metadata.outbox import Outbox
from nos_ec.ports.metadata.rebuilding import Journal, Rebuilding
from nos_ec.ports.metadata.repairs import Repairs
from nos_ec.ports.metadata.scrubbing import Scrubbing
from nos_ec.ports.metadata.survival import Survival
from nos_ec.ports.metadata.trash import Trash
from nos_ec.ports.metadata.uploads import Uploads
from nos_ec.ports.metadata.versions import Versions


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rows of blocks, and over the rows of objects still in the landing store. Sizes are in bytes.

    Ratios are None while their denominator is 0.
    """

    blocks: Mapping[tuple[BlockKind, BlockState], int]
    stripes: int
    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    packed_objects: int
    """Objects that share stripes with others. Large objects have blocks of their own and are not counted here, nor are
    their tails."""
    large_objects: int
    large_bytes: int
    """Part of live_bytes. Includes packed tails."""
    landed_objects: int
    """Includes the tails of large objects, which wait like small objects."""
    landed_bytes: int
    queued_objects: int
    queued_bytes: int
    trash_objects: int
    """Deleted versions in the trash. They are counted among the other objects too."""
    trash_bytes: int
    landing_deletions: int
    leases: int
    """Leases of writers. Leases of producers guard no blocks and are not counted."""
    open_dead_bytes: int
    """Dead bytes in blocks that are not sealed yet."""
    condemned_dead_bytes: int
    """Dead bytes in condemned blocks, which are deleted after their grace period."""
    user_bytes_written: int
    """Object bytes ever written to blocks for users: to fresh blocks and to blocks of large objects, including blocks
    that have been deleted since. Counting began when the schema learned to keep the bytes of deleted blocks, so only
    differences are meaningful."""
    copied_bytes_written: int
    """The same for survivor blocks: the bytes that GC copied."""

    @property
    def rows(self) -> int:
        """Return the number of rows that these figures sum up. The cost of computing them grows with this number."""
        waiting = self.landed_objects + self.queued_objects + self.landing_deletions
        return sum(self.blocks.values()) + self.large_objects + waiting + self.trash_objects

    @property
    def hole_ratio(self) -> float | None:
        """Return the hole ratio (see core.ratios)."""
        return hole_ratio(self.live_bytes, self.dead_bytes)

    @property
    def space_amplification(self) -> float | None:
        """Return stored / live bytes, without condemned blocks, as GC counts them; None without live bytes."""
        return ratio(self.live_bytes + self.dead_bytes - self.condemned_dead_bytes, self.live_bytes)

    def raw_cost(self, geometry: Geometry, header_share: float | None = None) -> RawCost | None:
        """Return how many bytes on the disks a live byte in blocks costs, part by part; None without live bytes. For
        `header_share` see `StoredParts`."""
        sealed_dead_bytes = self.dead_bytes - self.open_dead_bytes - self.condemned_dead_bytes
        parts = StoredParts(
            self.live_bytes,
            sealed_dead_bytes,
            self.open_dead_bytes,
            self.condemned_dead_bytes,
            self.overhead_bytes,
            header_share,
        )
        return raw_cost(parts, geometry)

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the objects that wait to be packed: one landing copy of each."""
        return self.landed_bytes + self.queued_bytes

    def dead_ratio(self, geometry: Geometry) -> float | None:
        """Return the dead share of all stripes. With utilisation and overhead_ratio it adds up to 1."""
        return geometry.share(self.dead_bytes, self.stripes)

    def utilisation(self, geometry: Geometry) -> float | None:
        """Return the live share of all stripes."""
        return geometry.share(self.live_bytes, self.stripes)

    def overhead_ratio(self, geometry: Geometry) -> float | None:
        """Return the share of all stripes that headers, names and padding take."""
        return geometry.share(self.overhead_bytes, self.stripes)

    def raw_bytes_per_user_byte(self, geometry: Geometry) -> float | None:
        """Return the bytes on all shards per live byte."""
        return ratio(geometry.raw_bytes(self.stripes), self.live_bytes)


@dataclass(frozen=True, slots=True)
class StoredTotals:
    """Totals that one process computed and stored for all processes."""

    totals: Totals
    at_ms: int
    """When the computation began."""
    cost_ms: int
    """How long the computation took."""
    next_ms: int
    """When they are due to be computed again."""


class Metadata(
    Objects,
    Trash,
    Versions,
    Buckets,
    AccessKeys,
    Directory,
    Moves,
    AccessChanges,
    Uploads,
    Leases,
    Blocks,
    LandingQueue,
    LandingSegments,
    Inspection,
    Repairs,
    Explanations,
    Scrubbing,
    Notes,
    Survival,
    Locks,
    Outbox,
    Usage,
    Journal,
    Rebuilding,
    Protocol,
):
    """The whole metadata store. See the package docstring. Safe to call from several threads."""

    # --- identity ---------------------------------------------------------------------------------
    def bind_geometry(self, geometry: Geometry) -> None:
        """Record the geometry on first use; afterwards raise ConfigError when it differs from the record."""

    def is_new(self) -> bool:
        """Return True until a geometry is recorded: no object can have been stored with this metadata, even if it has
        an id."""

    def claim_store_id(self, store_id: str) -> str:
        """Make `store_id` the id of this store if it has none yet. Returns the id that the store has now. When two
        processes claim at once, both get the same id."""

    def find_store_id(self) -> str | None:
        """Return the id of this store; None when it has none yet."""

    # --- health -----------------------------------------------------------------------------------
    def require_unblocked(self) -> None:
        """Raise Transient, with the time waited so far, while work of this process waits for a lock that another
        session of the database has held for seconds. Does not query the database."""

    # --- totals -----------------------------------------------------------------------------------
    def totals(self) -> Totals:
        """Return exact sums. The cost grows with `Totals.rows`, not with the number of all objects."""

    def stored_totals(self) -> StoredTotals | None:
        """Return the totals that `store_totals` stored last; None if there are none. Looks up one row, whatever the
        store holds."""

    def store_totals(self, new: StoredTotals | None, expected: StoredTotals | None) -> bool:
        """Store `new` (None: remove the stored totals) if the stored totals equal `expected`. Returns whether it did:
        if several processes expect the same, only one gets True."""

    def close(self) -> None:
        """Release all open resources."""
