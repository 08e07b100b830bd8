"""The side of a store for programs that store and read objects."""

from __future__ import annotations

from time import perf_counter

from nos_ec.composition.adapters import Adapters
from nos_ec.composition.landing import bypass_bytes, open_segments_of
from nos_ec.core.packing.packer import size_max
from nos_ec.engine.dump.access_records import AccessRecords
from nos_ec.engine.dump.journal import JournalShipper
from nos_ec.engine.dump.stored import StoredDumps
from nos_ec.engine.landing.copy_lander import CopyLander
from nos_ec.engine.landing.lander import Lander
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.moving.version_copier import CellSide
from nos_ec.engine.objects.large import LargeObjects
from nos_ec.engine.objects.large_lease import LargeLease
from nos_ec.engine.objects.object_locks import ObjectLocks
from nos_ec.engine.objects.put_batches import PutBatches
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.engine.objects.quotas import Quotas
from nos_ec.engine.objects.store import PutOptions, Store
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.engine.objects.uploads import MultipartUploads
from nos_ec.engine.space_reserve import require_put_space


class ClientSide:
    """Makes what stores and reads objects: the object store, uploads, the trash, dumps."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        counts = adapters.settings.store.count_usage
        self._quotas = Quotas(adapters.metadata, adapters.clock) if counts else None
        self._puts = self._put_parts(), self._put_queue()
        """The parts that the queue works with, and the queue."""
        self._leased: tuple[tuple[object, ...], LargeLease] | None = None
        """The parts that the lease of large PUTs works with, and the lease."""

    def store(self) -> Store:
        """Return the object store: PUT, GET, DELETE, LIST."""
        adapters, put = self._adapters, self._adapters.settings.put
        keep_ms = adapters.settings.trash.keep_ms
        options = PutOptions(put.min_age_ms, put.reservation_ms, size_max(adapters.geometry), keep_ms)
        return Store(
            adapters.metadata,
            adapters.landing,
            adapters.blocks,
            self._large(),
            adapters.clock,
            self.puts,
            options,
            adapters.locations,
            self._quotas,
        )

    def uploads(self, store: Store | None = None) -> MultipartUploads:
        """Return the multipart uploads. Their parts are stored by `store`, by default a new Store."""
        adapters = self._adapters
        return MultipartUploads(store or self.store(), adapters.metadata, adapters.clock, adapters.new_landing_id)

    def locks(self, store: Store | None = None) -> ObjectLocks:
        """Return what changes the locks of versions. Notes are stored by `store`, by default a new Store."""
        return ObjectLocks(store or self.store(), self._adapters.metadata, self._adapters.clock)

    def access_records(self) -> AccessRecords:
        """Return the writer of the records of buckets and access keys that a rebuild of the metadata needs."""
        adapters = self._adapters
        return AccessRecords(self.store(), adapters.metadata, adapters.clock, adapters.randomness)

    def journal(self) -> JournalShipper:
        """Return what writes the journal of deletes into the store, for a rebuild of the metadata."""
        adapters = self._adapters
        return JournalShipper(self.store(), adapters.metadata, adapters.clock)

    def trash(self) -> TrashCan:
        """Return the trash, from which deleted objects can be restored."""
        return TrashCan(self._adapters.metadata, self._adapters.clock)

    def dumps(self) -> StoredDumps:
        """Return the dumps of the metadata in the store itself."""
        return StoredDumps(self.store(), self._large())

    def moving(self) -> CellSide:
        """Return what a mover of buckets needs of this cell."""
        adapters, store = self._adapters, self.store()
        return CellSide(
            adapters.settings.cell or "",
            adapters.metadata,
            store,
            self.puts.batches.lander,
            self._large(),
            store.tails,
            adapters.clock,
            adapters.settings.put.min_age_ms,
            adapters.contended_lease,
        )

    def _large(self) -> LargeObjects:
        adapters = self._adapters
        return LargeObjects(
            adapters.metadata,
            adapters.blocks,
            adapters.clock,
            adapters.placement,
            self.large_lease,
            adapters.put_reserve,
            adapters.trail,
        )

    @property
    def puts(self) -> PutQueue:
        """The queue of PUTs that all stores in this process share. (A test that has exchanged a part of the system gets
        another queue.)"""
        if any(part is not now for part, now in zip(self._puts[0], self._put_parts(), strict=True)):
            self._puts = self._put_parts(), self._put_queue()
        return self._puts[1]

    def _put_parts(self) -> tuple[object, ...]:
        adapters = self._adapters
        return adapters.metadata, adapters.landing, adapters.medium, adapters.clock

    def _put_queue(self) -> PutQueue:
        adapters = self._adapters
        return PutQueue(PutBatches(self._lander(), adapters.metadata, adapters.clock, adapters.locations), perf_counter)

    def _lander(self) -> Lander:
        adapters, settings, medium = self._adapters, self._adapters.settings, self._adapters.medium
        copies = CopyLander(
            adapters.metadata,
            adapters.landing,
            adapters.clock,
            adapters.new_landing_id,
            settings.put.reservation_ms,
            adapters.put_reserve,
            adapters.trail,
        )
        if medium is None or settings.landing.mode != "log":
            return copies
        log = adapters.landing_log(medium, open_segments_of(medium))
        bypass = LogBypass(log, copies, bypass_bytes(medium.limits))
        adapters.stack.callback(bypass.close)
        return bypass

    @property
    def large_lease(self) -> LargeLease:
        """The lease that all stores in this process share for PUTs of large objects. (A test that has exchanged a part
        of the system gets another lease.)"""
        adapters = self._adapters
        parts = adapters.metadata, adapters.clock
        if self._leased is None or any(part is not now for part, now in zip(self._leased[0], parts, strict=True)):
            if self._leased is not None:
                self._leased[1].close()
            ttl_ms, randomness = adapters.settings.store.lease_ttl_ms, adapters.randomness
            lease = LargeLease(*parts, lambda: f"put-{randomness(16).hex()}", ttl_ms, adapters.held)
            adapters.stack.callback(lease.close)
            self._leased = parts, lease
        return self._leased[1]

    def require_put_space(self) -> None:
        """Raise NoSpace while PUTs are refused for lack of space, Transient if the free space is unknown."""
        require_put_space(self._adapters.blocks, self._adapters.landing, self._adapters.put_reserve)

    def put_room(self) -> int:
        """Return how many bytes of large objects PUTs may still store. Raises what `require_put_space` raises."""
        self.require_put_space()
        return self._adapters.blocks.free_bytes() - self._adapters.put_reserve
