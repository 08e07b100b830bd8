"""PUT, GET, HEAD, DELETE and LIST: what users of the object store see.

1  an acknowledged PUT reads back byte for byte, wherever its bytes are at the moment
4  a reader that finds its bytes gone looks the row up again and retries; if packed bytes are lost or damaged, it reads
   the landing copy while there is one
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import google_crc32c

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import Conflict, Corrupt, InvalidInput, NosError, NotFound, Transient
from nos_ec.core.ids import ACCESS_BUCKET, RESERVED_BUCKET, ObjectKey, in_log
from nos_ec.core.killpoints import kill_point
from nos_ec.core.packing.packer import ATTRIBUTES_ROOM
from nos_ec.core.parts import Composition, Manifest, is_parts_bucket, refuse_reserved, with_stores_attributes
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import hidden_prefix
from nos_ec.core.versions import Versioning, as_null_version, as_version
from nos_ec.engine.objects.composed import Manifests, manifest_in, read_parts, row_of_part
from nos_ec.engine.objects.large import LargeObjects, TailPuts
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.engine.objects.second_copy import SecondCopies
from nos_ec.engine.objects.streams import ByteStream, read_up_to
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import (
    AddMarker,
    Completes,
    DeleteVersion,
    EntryPage,
    LandingQueue,
    NewObject,
    ObjectRow,
    Objects,
    ObjectSummary,
    PutRequest,
    VersionEntry,
    VersionPage,
    Versions,
)

DELETE_BATCH_OBJECTS = 1000
"""Objects deleted by one transaction: many objects for one sync, but no transaction that others wait long for."""

VERSION_BATCH = 100
"""Versions deleted, and markers made, by one transaction: each takes several statements."""

_TO_THE_END = 2**63 - 1
"""A length beyond the end of any object."""
READ_TRIES = 10
"""Each further try means that the object was packed, collected or overwritten during the previous one."""


@dataclass(frozen=True, slots=True)
class PutOptions:
    """min_age_ms: how old an object must be before the producer publishes it. reservation_ms: how long a PUT may
    take before its landing copy counts as abandoned. packed_size_max: larger objects go to blocks of their own. It is
    ATTRIBUTES_ROOM less for objects with attributes. trash_ms: how long the trash keeps what is deleted; 0 for no
    trash."""

    min_age_ms: int
    reservation_ms: int
    packed_size_max: int
    trash_ms: int = 0


class StoreMetadata(Objects, Versions, LandingQueue, Protocol):
    """The parts of the metadata that the store uses."""


class Store:
    """The object store over its ports. Safe to call from several threads."""

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
    ) -> None:
        self._metadata = metadata
        self._landing = landing
        self._blocks = blocks
        self._large = large
        self._clock = clock
        self._puts = puts
        self._options = options
        self._locations = locations
        self._tails = TailPuts(self._put_small, options.packed_size_max)
        self._manifests = Manifests()
        self._second_copies = SecondCopies(metadata, landing, options.reservation_ms)

    @property
    def packed_size_max(self) -> int:
        """Bytes of the largest object that is packed; larger ones get blocks of their own."""
        return self._options.packed_size_max

    # --- writing ----------------------------------------------------------------------------------
    def put(
        self,
        key: ObjectKey,
        stream: ByteStream,
        attributes: bytes = b"",
        condition: Condition | None = None,
        versioning: Versioning | None = None,
    ) -> ObjectRow:
        """Store an object; durable on return. Overwrites, unless the `versioning` of its bucket keeps what was current
        (see `Versions` of the metadata). Holds at most one block in memory. attributes: see
        core.attributes. condition: what must hold of the version that it would overwrite, judged in the transaction
        that records it.

        Small objects that several threads store at the same time share transactions (nos_ec.engine.objects.put_queue).
        Raises InvalidInput (a key of the reserved bucket), PreconditionFailed, or NotFound (the condition does not
        hold), NoSpace, Transient. After an error the old version, if any, is still current.
        """
        return self.put_request(PutRequest(key, attributes, condition, versioning), stream)

    def put_request(self, request: PutRequest, stream: ByteStream) -> ObjectRow:
        """Like `put`. The MD5 of the row is always that of the bytes that were read, even if the object was overwritten
        meanwhile. Only a request with a `step` may have reserved keys and attributes; it also raises NoSuchUpload, or
        Conflict (see `Completes`)."""
        if request.step is None:
            _refuse_reserved(request.key)
            refuse_reserved(request.attributes)
        return self.put_record(request, stream)

    def put_record(self, request: PutRequest, stream: ByteStream) -> ObjectRow:
        """Like `put_request`, for records of the store itself, which have reserved keys and attributes."""
        self._puts.wait_for_room()
        if request.versioning is not None:
            with_id = as_version if request.versioning is Versioning.ENABLED else as_null_version
            request = replace(request, attributes=with_id(request.attributes))
        small_max = self._options.packed_size_max - (ATTRIBUTES_ROOM if request.attributes else 0)
        head = read_up_to(stream, small_max + 1)
        return self._put_small(request, head) if len(head) <= small_max else self._put_large(request, head, stream)

    def put_many(self, objects: Sequence[tuple[ObjectKey, bytes]]) -> list[ObjectRow]:
        """Store several small objects without attributes as one batch, for bulk loads: all of them or none.

        Raises InvalidInput when one is over `packed_size_max` (use `put`), NoSpace, Transient.
        """
        for key, data in objects:
            _refuse_reserved(key)
            if len(data) > self._options.packed_size_max:
                raise InvalidInput(
                    f"{key}: {len(data)} bytes; put_many takes {self._options.packed_size_max} at most", key=key
                )
        puts = [(self._new_object(PutRequest(key), data), data) for key, data in objects]
        rows = self._puts.batches.store(puts, together=True)
        return [row for row in rows if isinstance(row, ObjectRow)]

    def set_attributes(self, key: ObjectKey, attributes: bytes) -> ObjectRow:
        """Replace the attributes of the current version, durably; its bytes and its version stay. Returns its row.
        Raises InvalidInput (attributes that belong to the store), NotFound, Transient."""
        _refuse_parts(key)
        for _ in range(READ_TRIES):
            row = self._metadata.get(key)
            if self.set_attributes_of(row, attributes):
                return replace(row, attributes=with_stores_attributes(attributes, row.attributes))
        raise Transient(f"{key}: changed {READ_TRIES} times while its attributes were being set; try again", key=key)

    def set_attributes_of(self, row: ObjectRow, attributes: bytes) -> bool:
        """Like `set_attributes`, for exactly this version, current or not. Returns False, and changes nothing, if it is
        not there any more. Raises InvalidInput, Transient."""
        try:
            return self._metadata.set_attributes(row, with_stores_attributes(attributes, row.attributes))
        finally:
            self._locations.forget([row.key])

    def delete(self, key: ObjectKey, *, permanently: bool = False, condition: Condition | None = None) -> ObjectRow:
        """Delete an object, durably: into the trash if there is one, and not `permanently`. Returns the row it had.
        Raises InvalidInput (a part of an upload), NotFound, PreconditionFailed (the `condition` does not hold)."""
        _refuse_parts(key)
        now_ms = self._clock.now_ms()
        try:
            row = self._metadata.delete(key, now_ms, self._until_ms(now_ms, permanently), condition)
        finally:
            self._locations.forget([key])
        kill_point("delete.done")
        return row

    def delete_many(self, keys: Sequence[ObjectKey], *, permanently: bool = False) -> list[ObjectRow]:
        """Delete several objects, as `delete` does, with one transaction per DELETE_BATCH_OBJECTS of them.

        Returns the rows they had, in the order of `keys`; skips keys without an object. Raises Transient: the batches
        before the failed one are then deleted, and calling again is safe.
        """
        for key in keys:
            _refuse_parts(key)
        rows: list[ObjectRow] = []
        for first in range(0, len(keys), DELETE_BATCH_OBJECTS):
            batch = keys[first : first + DELETE_BATCH_OBJECTS]
            now_ms = self._clock.now_ms()
            try:
                rows += self._metadata.delete_many(batch, now_ms, self._until_ms(now_ms, permanently))
            finally:
                self._locations.forget(batch)
            kill_point("delete.done")
        return rows

    def delete_versions(self, deletions: Sequence[DeleteVersion | AddMarker]) -> list[VersionEntry | NosError | None]:
        """Delete in buckets with versions, durably, VERSION_BATCH with one transaction. The answers are those of
        `Versions.delete_versions`; Transient for what a failed transaction left. Versions go into the trash if there is
        one. Raises InvalidInput."""
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
                self._locations.forget([one.key for one in batch])
            kill_point("delete.done")
        return answers

    # --- reading ----------------------------------------------------------------------------------
    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """A version, or a delete marker; None: the null version. Raises NotFound, Transient."""
        return self._metadata.version(key, version)

    def latest_marker(self, key: ObjectKey) -> VersionEntry | None:
        """The delete marker of a key without a current version. Raises Transient."""
        return self._metadata.latest_marker(key)

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        """Like `list_entries`, of all versions and delete markers, after a name and a version of it."""
        return self._metadata.list_versions(bucket, prefix, delimiter, after, limit, budget_ms)

    def head(self, key: ObjectKey) -> ObjectRow:
        """The row of the current version, always from the metadata. Raises NotFound."""
        return self._metadata.get(key)

    def get(self, key: ObjectKey, offset: int = 0, length: int | None = None) -> bytes:
        """A whole object in memory, or a range as of `open_range`; use `open` for objects that may be large. Raises
        InvalidInput, NotFound, Corrupt, Transient."""
        whole = offset == 0 and length is None
        for _ in range(READ_TRIES):
            try:
                _, segments = self.open(key) if whole else self.open_range(key, offset, length)
                return b"".join(segments)
            except Conflict:
                continue  # a large object was overwritten or deleted halfway: start again with the current version
        raise _changed_too_often(key)

    def open(self, key: ObjectKey) -> tuple[ObjectRow, Iterator[bytes]]:
        """The current version and its bytes: a small object in one piece, checked against its CRC32C, a large one in
        windows. The last window of each of its segments is returned only if the CRC32C of the segment is right.

        Small objects, and the first window of large ones, have been read when this returns. Further windows are read on
        demand; that raises Conflict when the version was deleted or overwritten in the meantime
        and its blocks are gone. Raises NotFound, Corrupt, Transient.
        """
        return self._read(self.find(key), 0, None)

    def open_range(self, key: ObjectKey, offset: int, length: int | None) -> tuple[ObjectRow, Iterator[bytes]]:
        """Like `open`, for the bytes [offset, offset + length), cut off at the object's end; None: all up to the end.

        For an object in blocks only the range is read, and the block store verifies it (`BlockStore.read`). A landing
        store verifies nothing, and the CRC covers the whole object. So a landed object, of at most `packed_size_max`
        bytes, is read and checked as a whole. Raises InvalidInput when offset or length is negative or the range
        starts past the end, NotFound, Corrupt, Transient.
        """
        row = self.find(key)
        if offset > row.users_size:
            row = self._locations.look_up(key, self._metadata.get)
        _require_range(row, offset, length)
        return self._read(row, offset, _TO_THE_END if length is None else length)

    def find(self, key: ObjectKey) -> ObjectRow:
        """The row that a GET would start from: that of the current version, or a remembered one
        (get.location_cache_ms). Raises NotFound, Transient."""
        return self._locations.find(key, self._metadata.get)

    def follow(self, row: ObjectRow) -> tuple[ObjectRow, Iterator[bytes]]:
        """Like `open`, when the object's row is known. If its version is gone, this is the current one."""
        return self._read(row, 0, None)

    def open_version(self, row: ObjectRow, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes of exactly this version, wherever they are now; the range is as of `open_range`.

        Raises Conflict when the version was deleted or overwritten and its bytes are gone, InvalidInput, Corrupt,
        Transient.
        """
        _require_range(row, offset, length)
        reach = _TO_THE_END if length is None else length
        try:
            found, segments = self._read(row, offset, reach if offset or reach < row.users_size else None)
        except NotFound:
            raise _gone(row) from None
        if (found.object_id, found.version) != (row.object_id, row.version):
            raise _gone(row)
        return segments

    def resume_version(self, row: ObjectRow, offset: int) -> Iterator[bytes]:
        """The bytes of exactly this version from `offset` on, for a reader whose last read failed. Begins with the
        segment of a large object, or with the part of a composed one, in which `offset` lies, so that its CRC is
        compared too. Raises what `open_version` does."""
        start = offset
        if 0 < offset < row.size and row.state is ObjectState.LARGE:
            try:
                start = self._large.segment_start(row, offset)
            except NotFound:
                raise _gone(row) from None
        manifest = self.manifest(row)
        if manifest is not None and 0 < offset < manifest.size:
            start = manifest.starts[manifest.index_at(offset)]
        pieces = self.open_version(row, start)
        return pieces if start == offset else _without(pieces, offset - start)

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """One page of a bucket, in UTF-8 byte order of names, after the name `after`."""
        return self._metadata.list_objects(bucket, prefix, after, limit)

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """The names alone of such a page: much cheaper in a large store."""
        return self._metadata.list_names(bucket, prefix, after, limit)

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """One page of the objects and folders of a bucket (core.folders), after the name or folder `after`. It costs a
        few rows for each folder, and may end after `budget_ms`, with fewer than `limit` entries."""
        return self._metadata.list_entries(bucket, prefix, delimiter, after, limit, budget_ms)

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """As `list_entries`, with summaries of the objects, which is cheaper."""
        return self._metadata.list_summaries(bucket, prefix, delimiter, after, limit, budget_ms)

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """One page of the buckets that hold an object."""
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
        if isinstance(request.step, Completes):
            raise InvalidInput(f"{key} has too many parts for the stripes of this store; use larger ones", key=key)
        try:
            return self._large.put(request, head, rest, self._tails)
        finally:
            self._locations.forget([key])

    def _read(self, row: ObjectRow, offset: int, length: int | None) -> tuple[ObjectRow, Iterator[bytes]]:
        """The bytes of a range, of the version of `row`, or of the current one if that is gone."""
        for _ in range(READ_TRIES):
            composition = row.composition
            if composition is None:
                found, windows = self._read_own(row, offset, length)
                if found.composition is None:
                    return found, windows
                row = found  # it was overwritten meanwhile by one that is composed
                continue
            try:
                return row, self._composed(row, composition, offset, length)
            except NotFound as error:
                seen, row = row, self._look_again(row)
                if (row.object_id, row.version) == (seen.object_id, seen.version):
                    raise Corrupt(str(error), key=row.key) from error
        raise _changed_too_often(row.key)

    def _composed(self, row: ObjectRow, composition: Composition, offset: int, length: int | None) -> Iterator[bytes]:
        manifest = self._manifest(row, composition)
        end = composition.size if length is None else min(composition.size, offset + length)
        windows = read_parts(
            row,
            manifest,
            offset,
            end,
            lambda part: row_of_part(row, manifest, part, self._metadata.get),
            lambda part, first, count: self._read_part(part, first, count),
        )
        first = deque(islice(windows, 1))
        return self._continued(row, first, windows) if first else iter([])

    def _read_part(self, part: ObjectRow, first: int, count: int) -> Iterator[bytes]:
        found, windows = self._read_own(part, first, None if (first, count) == (0, part.size) else count)
        if (found.object_id, found.version) != (part.object_id, part.version):
            raise NotFound(f"{part.key} v{part.version} is gone", key=part.key)
        return windows

    def _manifest(self, row: ObjectRow, composition: Composition) -> Manifest:
        """Raises NotFound when the version is gone, Corrupt, Transient."""
        manifest = self._manifests.find(composition)
        if manifest is None:
            found, windows = self._read_own(row, 0, None)
            if (found.object_id, found.version) != (row.object_id, row.version):
                raise NotFound(f"{row.key} v{row.version} was deleted or overwritten; read it again", key=row.key)
            manifest = manifest_in(b"".join(windows), row, composition)
            self._manifests.keep(composition, manifest)
        return manifest

    def manifest(self, row: ObjectRow) -> Manifest | None:
        """The parts of a composed object; None for one that is not. Raises Conflict when the version is gone, Corrupt,
        Transient."""
        composition = row.composition
        try:
            return None if composition is None else self._manifest(row, composition)
        except NotFound:
            raise _gone(row) from None

    def _read_own(self, row: ObjectRow, offset: int, length: int | None) -> tuple[ObjectRow, Iterator[bytes]]:
        """The object's own bytes, which are a manifest if it is composed. Read from where the row says. When the bytes
        are gone or damaged there, look the row up again: the object may have moved (invariant 4), or the remembered row
        was too old. If the row is unchanged, read the landing copy while there is one."""
        for _ in range(READ_TRIES):
            try:
                return row, self._segments(row, offset, length)
            except (Corrupt, NotFound) as error:
                seen, row = row, self._look_again(row)
                if row != seen:
                    continue
                copy = None if row.extent is None else self._second_copies.read(row)
                if copy is not None:
                    data = copy[offset:] if length is None else copy[offset : offset + length]
                    return row, iter([data] if data else [])
                if isinstance(error, Corrupt):
                    raise _named(row, error) from error
                raise Corrupt(
                    f"{row.key} v{row.version}: its {row.state.value} bytes are missing", key=row.key
                ) from None
        raise _changed_too_often(row.key)

    def _segments(self, row: ObjectRow, offset: int, length: int | None) -> Iterator[bytes]:
        """The bytes of the range. It may start past the end, if a new version appeared after the caller read the
        row."""
        if row.state is not ObjectState.LARGE:
            data = self._read_small(row, offset, length)
            return iter([data] if data else [])
        rest = row.size - offset
        count = max(0, rest if length is None else min(length, rest))
        segments = self._large.read(row, offset, count, self._read_tail)
        first = deque(islice(segments, 1))
        return self._continued(row, first, segments) if first else iter([])

    def _read_tail(self, key: ObjectKey, size: int, first: int, count: int) -> Iterator[bytes]:
        """Bytes of the tail of a large object, which must have `size` bytes. A tail never gets another version. Raises
        NotFound, Corrupt, Transient."""
        tail = self._locations.find(key, self._metadata.get)
        if tail.size != size:
            raise Corrupt(f"{key}: a tail of {tail.size} bytes instead of {size}", key=key)
        _, windows = self._read_own(tail, first, None if (first, count) == (0, size) else count)
        return windows

    def _continued(self, row: ObjectRow, first: deque[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
        """first: the first window, which is not held after it has been taken."""
        yield first.popleft()
        try:
            yield from rest
        except Corrupt as error:
            raise _named(row, error) from error
        except NotFound as error:
            if self._is_current(row):
                raise Corrupt(f"{row.key} v{row.version}: a segment of it is missing: {error}", key=row.key) from error
            raise _gone(row) from error

    def _look_again(self, row: ObjectRow) -> ObjectRow:
        """The row of this version as it is now, or else that of the current one. Raises NotFound."""
        try:
            current = self._locations.look_up(row.key, self._metadata.get)
        except NotFound:
            found = self._metadata.same_version(row)
            if found is None:
                raise
            return found
        if (current.object_id, current.version) == (row.object_id, row.version):
            return current
        return self._metadata.same_version(row) or current

    def _is_current(self, row: ObjectRow) -> bool:
        try:
            current = self._look_again(row)
        except NotFound:
            return False
        return (current.object_id, current.version) == (row.object_id, row.version)

    def _read_small(self, row: ObjectRow, offset: int, length: int | None) -> bytes:
        whole = length is None
        count = row.size if length is None else max(0, min(length, row.size - offset))
        if count == 0:
            return b""
        if row.extent is not None:
            data = self._blocks.read(row.extent.block_id, row.extent.offset + offset, count)
        elif row.landing_id is None:
            raise Corrupt(f"{row.key} v{row.version}: its row says {row.state.value} but has no location", key=row.key)
        elif whole:
            # A record is read with one operation if its size is known.
            record = in_log(row.landing_id)
            data = self._landing.read_range(row.landing_id, 0, count) if record else self._landing.read(row.landing_id)
        else:
            copy = self._landing.read_range(row.landing_id, 0, row.size)
            return _checked(row, copy)[offset : offset + count]
        return _checked(row, data) if whole else data


def _without(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The pieces without their first `count` bytes."""
    for piece in pieces:
        if len(piece) > count:
            yield piece[count:]
        count = max(0, count - len(piece))
        del piece  # not held while the next one is read


def _refuse_reserved(key: ObjectKey) -> None:
    if key.bucket == RESERVED_BUCKET or hidden_prefix(key.bucket) is not None:
        raise InvalidInput(f"{key}: the bucket {key.bucket} is the store's own; use another name", key=key)


def _refuse_parts(key: ObjectKey) -> None:
    if is_parts_bucket(key.bucket):
        raise InvalidInput(f"{key} is a part of an upload; abort the upload, or delete its object", key=key)
    if key.bucket == ACCESS_BUCKET:
        raise InvalidInput(f"{key} is the store's own record of a bucket or access key", key=key)
    if hidden_prefix(key.bucket) is not None:
        raise InvalidInput(f"{key} is the tail of a large object; delete that object", key=key)


def _checked(row: ObjectRow, data: bytes) -> bytes:
    return crc_checked(data, row.size, row.crc32c, row.key, f"{row.key} v{row.version}")


def _named(row: ObjectRow, error: Corrupt) -> Corrupt:
    """The same error with the name of the object, because a store knows only its blocks and copies."""
    if error.key is not None:
        return error
    name = f"{row.key} v{row.version}"
    return Corrupt(f"{name}: {error}", key=row.key, block_id=error.block_id, landing_id=error.landing_id)


def _require_range(row: ObjectRow, offset: int, length: int | None) -> None:
    if offset < 0 or offset > row.users_size or (length is not None and length < 0):
        asked = f"{offset}+{'' if length is None else length}"
        size = row.users_size
        raise InvalidInput(f"range {asked} of {row.key}: it must start within its {size} bytes", key=row.key)


def _gone(row: ObjectRow) -> Conflict:
    return Conflict(
        f"{row.key} v{row.version}: deleted or overwritten while it was being read; read it again", key=row.key
    )


def _changed_too_often(key: ObjectKey) -> Transient:
    return Transient(f"{key}: changed {READ_TRIES} times while it was being read; try again", key=key)
