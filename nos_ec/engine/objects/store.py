"""PUT, HEAD, DELETE and LIST of the object store. GET is in reading.py.

An acknowledged PUT reads back byte for byte, wherever its bytes are at the moment (1 of docs/INVARIANTS.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import google_crc32c

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import InvalidInput, Locked, NosError, Transient
from nos_ec.core.ids import ACCESS_BUCKET, JOURNAL_BUCKET, LOCKS_BUCKET, RESERVED_BUCKET, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.locking.lock import with_lock
from nos_ec.core.packing.packer import ATTRIBUTES_ROOM
from nos_ec.core.parts import is_parts_bucket, refuse_reserved, with_stores_attributes
from nos_ec.core.tails import hidden_prefix
from nos_ec.core.versions import Versioning, as_null_version, as_version
from nos_ec.engine.objects.large import LargeObjects, TailPuts
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.engine.objects.quotas import Quotas
from nos_ec.engine.objects.reading import READ_TRIES, ObjectReads, StoreMetadata
from nos_ec.engine.objects.streams import ByteStream, read_up_to
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import (
    AddMarker,
    CompletionOf,
    DeleteVersion,
    EntryPage,
    LockOf,
    NewObject,
    ObjectRow,
    ObjectSummary,
    PutRequest,
    RenameOf,
    Sums,
    VersionEntry,
    VersionPage,
)
from nos_ec.ports.metadata.buckets import NOTHING

T = TypeVar("T")
DELETE_BATCH_OBJECTS = 1000
"""Objects that one transaction deletes: enough to share its sync, but few enough that others do not wait long."""

VERSION_BATCH = 100
"""Versions that one transaction deletes, or markers that it adds: each takes several statements."""


@dataclass(frozen=True, slots=True)
class PutOptions:
    """The settings of a store. The producer publishes an object when it is `min_age_ms` old. A landing copy counts as
    abandoned when its PUT takes longer than `reservation_ms`. Objects of more than `packed_size_max` bytes go to blocks
    of their own; for objects with attributes the limit is ATTRIBUTES_ROOM lower. The trash keeps deleted objects for
    `trash_ms`; 0 disables it."""

    min_age_ms: int
    reservation_ms: int
    packed_size_max: int
    trash_ms: int = 0


class Store(ObjectReads):
    """The object store. Safe to call from several threads."""

    def __init__(
        self,
        metadata: StoreMetadata,
        landing: LandingStore,
        blocks: BlockStore,
        large: LargeObjects,
        clock: Clock,
        puts: PutQueue,
        options: PutOptions,
        locations: LocationCache,
        quotas: Quotas | None = None,
    ) -> None:
        super().__init__(metadata, landing, blocks, large, locations, options.reservation_ms)
        self._clock = clock
        self._puts = puts
        self._options = options
        self._quotas = quotas
        self._tails = TailPuts(self._put_small, options.packed_size_max)

    @property
    def packed_size_max(self) -> int:
        """The size in bytes of the largest object that is packed. Larger ones get blocks of their own."""
        return self._options.packed_size_max

    @property
    def tails(self) -> TailPuts:
        """Stores the tails of large objects, for `LargeObjects.put`."""
        return self._tails

    # --- writing ----------------------------------------------------------------------------------
    def put(
        self,
        key: ObjectKey,
        stream: ByteStream,
        attributes: bytes = b"",
        condition: Condition | None = None,
        versioning: Versioning | None = None,
    ) -> ObjectRow:
        """Store an object, durably on return. It overwrites the current version, unless the `versioning` of the bucket
        keeps that version (see `Versions` of the metadata). Holds at most one block in memory. attributes: see
        core.attributes. condition: judged on the version to be overwritten, in the transaction that records the object.

        Small objects that several threads store concurrently share transactions (nos_ec.engine.objects.put_queue).
        Raises InvalidInput (a reserved key or attribute), PreconditionFailed or NotFound (the condition does not hold),
        Locked (a lock protects the version to be overwritten), QuotaExceeded, NoSpace, Transient. After an error the
        old version, if any, is still current.
        """
        return self.put_request(PutRequest(key, attributes, condition, versioning), stream)

    def put_request(self, request: PutRequest, stream: ByteStream) -> ObjectRow:
        """Like `put`. The returned row has the MD5 of the bytes that were read, even if the object was overwritten
        meanwhile. Only a request with the `step` of an upload may have a reserved key and reserved
        attributes; it also raises NoSuchUpload, or Conflict (see `CompletionOf`)."""
        if request.step is None:
            _refuse_reserved(request.key)
            refuse_reserved(request.attributes)
        return self.put_record(request, stream)

    def rename(self, row: ObjectRow, request: PutRequest, put: Callable[[PutRequest], T]) -> T:
        """Store the bytes of this current version under the key of `request`, and delete it in the same transaction,
        as `delete` does. `put` stores the object with `put_request`, and gets the request to pass on. Returns what
        `put` returns.

        Raises Conflict if the version was overwritten, deleted or changed meanwhile, Locked if it is locked, and what
        `put` raises. After a Transient the outcome may be unknown.
        """
        _refuse_internal(row.key)
        _refuse_reserved(request.key)
        until_ms = self._until_ms(self._clock.now_ms(), permanently=False)
        try:
            return put(replace(request, step=RenameOf(row, request.versioning, until_ms)))
        finally:
            self._locations.forget_rows([row.key])

    def put_record(self, request: PutRequest, stream: ByteStream) -> ObjectRow:
        """Like `put_request`, for records of the store itself, which have reserved keys and attributes."""
        step = request.step
        # The parts of a completed upload are counted already, and a rename frees as many bytes as it stores, unless the
        # old version stays.
        needs_no_quota = isinstance(step, CompletionOf) or (isinstance(step, RenameOf) and step.versioning is None)
        if self._quotas is None or needs_no_quota:
            return self._put(request, stream)
        with self._quotas.admitted(request.key, request.length or 0) as admission:
            return self._put(request, stream if admission is None else admission.stream(stream))

    def _put(self, request: PutRequest, stream: ByteStream) -> ObjectRow:
        self._metadata.require_event_room([request.key.bucket])
        self._puts.wait_for_room()
        if request.versioning is not None:
            with_id = as_version if request.versioning is Versioning.ENABLED else as_null_version
            request = replace(request, attributes=with_id(request.attributes))
        if request.lock is not None:
            request = replace(request, attributes=with_lock(request.attributes, request.lock))
        has_attributes = request.attributes or request.envelope is not None
        small_max = self.record_bytes_max if has_attributes else self._options.packed_size_max
        head = read_up_to(stream, small_max + 1)
        request = request.with_envelope()
        return self._put_small(request, head) if len(head) <= small_max else self._put_large(request, head, stream)

    @property
    def record_bytes_max(self) -> int:
        """The size, in bytes, up to which an object with attributes is packed with others."""
        return self._options.packed_size_max - ATTRIBUTES_ROOM

    def put_many(self, objects: Sequence[tuple[ObjectKey, bytes]]) -> list[ObjectRow]:
        """Store several small objects without attributes as one batch, either all or none, for bulk loads.

        Raises InvalidInput if an object is larger than `packed_size_max` (use `put`) or its key is reserved,
        QuotaExceeded, NoSpace, Transient.
        """
        self._metadata.require_event_room({key.bucket for key, _ in objects})
        self.require_small(objects)
        puts = [(self._new_object(PutRequest(key), data), data) for key, data in objects]
        with ExitStack() as admitted:
            if self._quotas is not None:
                taken: dict[str, tuple[ObjectKey, Sums]] = {}
                for key, data in objects:
                    first, sums = taken.get(key.bucket, (key, NOTHING))
                    taken[key.bucket] = first, sums + Sums(len(data), 1)
                for first, sums in taken.values():
                    admitted.enter_context(self._quotas.admitted(first, sums.bytes, sums.objects))
            rows = self._puts.batches.store_puts(puts, together=True)
        return [row for row in rows if isinstance(row, ObjectRow)]

    def require_small(self, objects: Sequence[tuple[ObjectKey, bytes]]) -> None:
        """Raise InvalidInput if an object is too large for `put_many`, or its key is reserved."""
        for key, data in objects:
            _refuse_reserved(key)
            if len(data) > self._options.packed_size_max:
                raise InvalidInput(
                    f"{key}: {len(data)} bytes; put_many takes {self._options.packed_size_max} at most", key=key
                )

    def set_attributes(self, key: ObjectKey, attributes: bytes) -> ObjectRow:
        """Replace the attributes of the current version, durably. Its bytes and its version number stay. Returns its
        row. Raises InvalidInput (attributes that belong to the store), NotFound, Transient."""
        _refuse_internal(key)
        for _ in range(READ_TRIES):
            row = self._metadata.get(key)
            if self.set_attributes_of(row, attributes):
                return replace(row, attributes=with_stores_attributes(attributes, row.attributes))
        raise Transient(f"{key}: changed {READ_TRIES} times while its attributes were being set; try again", key=key)

    def set_attributes_of(self, row: ObjectRow, attributes: bytes) -> bool:
        """Like `set_attributes`, for exactly this version, current or not. Returns False and changes nothing if the
        version does not exist any more. Raises InvalidInput, Transient."""
        try:
            return self._metadata.set_attributes(row, with_stores_attributes(attributes, row.attributes))
        finally:
            self._locations.forget_rows([row.key])

    def forget(self, key: ObjectKey) -> None:
        """Forget the cached place of an object whose row was changed by other means."""
        self._locations.forget_rows([key])

    def delete(self, key: ObjectKey, *, permanently: bool = False, condition: Condition | None = None) -> ObjectRow:
        """Delete an object, durably. It moves to the trash, if there is one, unless `permanently` is set. Returns its
        last row. Raises InvalidInput (a part of an upload), NotFound, PreconditionFailed (the `condition` does not
        hold), Locked (a lock protects it)."""
        _refuse_internal(key)
        now_ms = self._clock.now_ms()
        try:
            row = self._metadata.delete(key, now_ms, self._until_ms(now_ms, permanently), condition)
        finally:
            self._locations.forget_rows([key])
        kill_point("delete.done")
        return row

    def delete_many(self, keys: Sequence[ObjectKey], *, permanently: bool = False) -> list[ObjectRow]:
        """Delete several objects as `delete` does, with one transaction per DELETE_BATCH_OBJECTS objects.

        Returns their last rows in the order of `keys`, and skips keys without an object. After a Transient, the batches
        before the failed one are deleted, and calling again is safe. Raises Locked at the end if locks protect some of
        the objects: those stay, and the others are deleted.
        """
        for key in keys:
            _refuse_internal(key)
        rows: list[ObjectRow] = []
        locked: Locked | None = None
        for first in range(0, len(keys), DELETE_BATCH_OBJECTS):
            batch = keys[first : first + DELETE_BATCH_OBJECTS]
            now_ms = self._clock.now_ms()
            try:
                rows += self._metadata.delete_many(batch, now_ms, self._until_ms(now_ms, permanently))
            except Locked as error:
                locked = error if locked is None else Locked(f"{locked}; {error}", [*locked.keys, *error.keys])
            finally:
                self._locations.forget_rows(batch)
            kill_point("delete.done")
        if locked is not None:
            raise locked
        return rows

    def delete_versions(self, deletions: Sequence[DeleteVersion | AddMarker]) -> list[VersionEntry | NosError | None]:
        """Delete versions and add delete markers, durably, in transactions of VERSION_BATCH. Returns the answers of
        `Versions.delete_versions`, and a Transient for each deletion of a failed transaction. Versions move to the
        trash if there is one. Raises InvalidInput."""
        for one in deletions:
            _refuse_reserved(one.key)
        answers: list[VersionEntry | NosError | None] = []
        for first in range(0, len(deletions), VERSION_BATCH):
            batch = deletions[first : first + VERSION_BATCH]
            now_ms = self._clock.now_ms()
            try:
                answers += self._metadata.delete_versions(batch, now_ms, self._until_ms(now_ms, permanently=False))
            except Transient as error:
                answers += [error] * len(batch)
            finally:
                self._locations.forget_rows([one.key for one in batch])
            kill_point("delete.done")
        return answers

    # --- looking up and listing -------------------------------------------------------------------
    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """Return a version or delete marker by its number; None names the null version. Raises NotFound, Transient."""
        return self._metadata.version(key, version)

    def latest_marker(self, key: ObjectKey) -> VersionEntry | None:
        """Return the delete marker of a key without a current version, or None. Raises Transient."""
        return self._metadata.latest_marker(key)

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        """Like `list_entries`, for all versions and delete markers. `after` is a name and the number of one of its
        versions; None means after all versions of the name, or after the folder."""
        return self._metadata.list_versions(bucket, prefix, delimiter, after, limit, budget_ms)

    def head(self, key: ObjectKey) -> ObjectRow:
        """Return the row of the current version, always from the metadata. Raises NotFound."""
        return self._metadata.get(key)

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """Return one page of a bucket in UTF-8 byte order of names, after the name `after`."""
        return self._metadata.list_objects(bucket, prefix, after, limit)

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """Like `list_objects`, but return only names, which is much cheaper in a large store."""
        return self._metadata.list_names(bucket, prefix, after, limit)

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """Return one page of the objects and folders of a bucket (core.folders), after the name or folder `after`. Each
        folder costs reading a few rows. After `budget_ms` the page may end with fewer than `limit` entries."""
        return self._metadata.list_entries(bucket, prefix, delimiter, after, limit, budget_ms)

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """Like `list_entries`, but return summaries of the objects, which is cheaper."""
        return self._metadata.list_summaries(bucket, prefix, delimiter, after, limit, budget_ms)

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """Return one page of the names of buckets that have an object, after the name `after`."""
        return self._metadata.list_buckets(after, limit)

    # --- parts ------------------------------------------------------------------------------------
    def _until_ms(self, now_ms: int, permanently: bool) -> int | None:
        keep_ms = self._options.trash_ms
        return now_ms + keep_ms if keep_ms and not permanently else None

    def _put_small(self, request: PutRequest, data: bytes) -> ObjectRow:
        return self._puts.put(self._new_object(request, data), data)

    def _new_object(self, request: PutRequest, data: bytes) -> NewObject:
        md5 = hashlib.md5(data, usedforsecurity=False).digest()
        due_ms = self._clock.now_ms() + self._options.min_age_ms
        return NewObject(request, len(data), google_crc32c.value(data), md5, None, due_ms)

    def _put_large(self, request: PutRequest, head: bytes, rest: ByteStream) -> ObjectRow:
        key = request.key
        step = request.step
        if isinstance(step, CompletionOf | LockOf) or (isinstance(step, RenameOf) and step.completion is not None):
            raise InvalidInput(f"{key} has too many parts for the stripes of this store; use larger ones", key=key)
        try:
            return self._large.put(request, head, rest, self._tails)
        finally:
            self._locations.forget_rows([key])


def _refuse_reserved(key: ObjectKey) -> None:
    """Raise InvalidInput for a key in one of the store's own buckets, in which users cannot store objects."""
    if key.bucket == RESERVED_BUCKET or hidden_prefix(key.bucket) is not None:
        raise InvalidInput(f"{key}: the bucket {key.bucket} is the store's own; use another name", key=key)


def _refuse_internal(key: ObjectKey) -> None:
    """Raise InvalidInput, with the reason, for an object that the store keeps for itself, such as a part of an upload.
    Users cannot delete or change it directly."""
    if is_parts_bucket(key.bucket):
        raise InvalidInput(f"{key} is a part of an upload; abort the upload, or delete its object", key=key)
    if key.bucket == ACCESS_BUCKET:
        raise InvalidInput(f"{key} is the store's own record of a bucket or access key", key=key)
    if key.bucket == JOURNAL_BUCKET:
        raise InvalidInput(f"{key} is a part of the store's own journal of deletes", key=key)
    if key.bucket.startswith(LOCKS_BUCKET):
        raise InvalidInput(f"{key} is the store's own note about a lock", key=key)
    if hidden_prefix(key.bucket) is not None:
        raise InvalidInput(f"{key} is the tail of a large object; delete that object", key=key)
