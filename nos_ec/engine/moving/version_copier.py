"""Copies the versions of keys from one cell to another.

Bytes are copied as they are stored: encrypted ones stay encrypted, with their envelope. They are checked against the
CRC32C of their row, and land in the other cell as the bytes of a PUT do. So they are packed there like all others, into
its pools and its geometry.

The parts of an object that was uploaded in parts are copied before it. Its upload is OPEN in the target meanwhile, and
the transaction that records the object makes it COMPLETED. So no reader finds an object without its parts. If the
object is never recorded, the upload is aborted, and GC deletes the parts. An upload that is OPEN in the source is
copied with its row, and stays OPEN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from nos_ec.core.errors import Conflict, Corrupt, InvalidInput, NosError, NotFound
from nos_ec.core.ids import LandingId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.locking.lock import with_lock
from nos_ec.core.packing.packer import ATTRIBUTES_ROOM
from nos_ec.core.parts import Manifest, UploadId, encode_manifest, part_key
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.landing.lander import Lander, NewCopy
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.moving.keys import PAGE_PARTS, Key, PartPair, differing_parts, parts_of
from nos_ec.engine.objects.composed import part_of
from nos_ec.engine.objects.large import LargeObjects, TailPuts
from nos_ec.engine.objects.object_locks import ObjectLocks
from nos_ec.engine.objects.store import Store
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    CopiedVersion,
    Lease,
    MarkerRow,
    Metadata,
    NewLargeObject,
    ObjectRow,
    UploadRow,
    UploadState,
)


class SharedUpload(InvalidInput):
    """The target has a version that is composed of the upload to be copied, or of that of the version to be copied.
    When one of two such versions is released, the parts of both are deleted, so a mover does not copy the second one. A
    version that was brought back from the trash is in the target twice until the trash is compared; otherwise, this
    happens only after a rebuild of the metadata."""


@dataclass(frozen=True, slots=True)
class CellSide:
    """A cell, and what a mover needs of it. `min_age_ms`: how old an object is when it is packed. `new_lease` makes a
    lease of the cell that is not taken yet."""

    name: str
    metadata: Metadata
    store: Store
    lander: Lander
    large: LargeObjects
    tails: TailPuts
    clock: Clock
    min_age_ms: int
    new_lease: Callable[[str], HeldLease]


class VersionCopier:
    """Copies versions. Belongs to one thread. Copies of small versions are recorded in batches: call `flush` at the
    end."""

    def __init__(self, source: CellSide, target: CellSide, spend: Callable[[int], object]) -> None:
        """`spend` is called with the bytes of each version or part after they were read."""
        self._spend = spend
        self._source = source
        self._target = target
        self._small: list[tuple[ObjectRow, bytes]] = []
        self._bytes = 0
        self._locks = ObjectLocks(target.store, target.metadata, target.clock)
        self._noted: list[ObjectRow] = []
        """Versions in the source whose copies get a lock with a note."""

    def copy(self, key: Key) -> int:
        """Copy all versions and markers of a key that the target does not have. Returns how many there are. Raises
        SharedUpload, NotFound if a version was removed meanwhile, Corrupt, Conflict if another process has taken over,
        Transient, NoSpace."""
        markers = [MarkerRow(one.key, one.version, one.created_ms, one.is_null) for one in key.versions if not one.row]
        for one in reversed(key.versions):
            row = one.row
            if row is None:
                continue
            self._copy(_without_note(row))
            if _has_note(row):
                self._noted.append(row)
            if len(self._noted) >= self._target.lander.batch_objects_max:
                self.flush()
        self._target.metadata.record_markers(markers)
        return len(key.versions)

    def copy_trash(self, row: ObjectRow) -> None:
        """Copy a version in the trash, which the trash of the target keeps until the same time. Its lock, if any, has
        ended, so its note is not copied. Raises what `copy` raises."""
        self._copy(row)

    def _copy(self, row: ObjectRow) -> None:
        composition = row.composition
        if composition is not None:
            self._copy_parts(row, composition.upload_id)
        self._copy_own(row)

    def open_upload(self, upload: UploadRow) -> None:
        """Make an upload OPEN in the target, with this row. Raises SharedUpload, Conflict, Transient."""
        self._land()  # so that the target knows a version of the same upload
        if not self._target.metadata.open_copied_upload(upload):
            raise SharedUpload(
                f"two versions of object {upload.key} are composed of one upload, and such objects cannot be moved to"
                " another cell; delete one of them, also from the trash",
                key=upload.key,
            )
        kill_point("moving.upload_opened")

    def copy_part(self, mine: ObjectRow | None, theirs: ObjectRow | None) -> None:
        """Make the target have a part of an OPEN upload as the source has it. Raises what `copy` raises."""
        if theirs is not None:
            bucket, name = theirs.key.bucket, theirs.key.name
            self._target.metadata.remove_key(bucket, name, self._target.clock.now_ms())
        if mine is not None:
            self._copy_own(mine)

    def _copy_parts(self, row: ObjectRow, upload_id: UploadId) -> None:
        """Copy the parts of an object that the target does not have yet, and remove others of its upload."""
        upload = UploadRow(upload_id, row.key, UploadState.OPEN, self._target.clock.now_ms())
        self.open_upload(upload)
        for mine, theirs in self._differing_parts(row, upload):
            self.copy_part(mine, theirs)
        self._land()
        kill_point("moving.parts_copied")

    def _differing_parts(self, row: ObjectRow, upload: UploadRow) -> Iterator[PartPair]:
        """Yield the parts of an object that an earlier mover has not copied, and what else the target has of its
        upload: parts that were copied before they were replaced, or left out of the object."""
        parts = self._manifest(row).parts
        theirs = parts_of(self._target.metadata, upload)
        for start in range(0, len(parts), PAGE_PARTS):
            page = parts[start : start + PAGE_PARTS]
            keys = {part_key(row.key.bucket, upload.upload_id, part.number): part for part in page}
            here = self._source.metadata.rows_of(keys)
            for key, part in keys.items():
                mine = here.get(key)
                if mine is None:
                    raise NotFound(f"{row.key} v{row.version}: part {part.number} is gone", key=row.key)
                if part_of(mine) != part:
                    raise Corrupt(
                        f"{row.key} v{row.version}: part {part.number} is not the one in the manifest", key=row.key
                    )
            yield from differing_parts(here, {key: theirs.pop(key) for key in keys if key in theirs})
        yield from differing_parts({}, theirs)

    def _copy_own(self, row: ObjectRow) -> None:
        """Copy the object's own bytes, which are a manifest if it is composed."""
        if row.size <= self._small_max(row):
            self._add(row)
        else:
            self._copy_large(row)
        self._spend(row.size)

    def flush(self) -> None:
        """Land and record the small versions that were added, and the notes about locks. Raises what `copy` raises."""
        self._land()
        self._copy_notes()

    def _copy_notes(self) -> None:
        """Give copies the locks of their versions, with notes, as they have in the source. A lock that is changed while
        its bucket is moved is copied twice, and a rebuild of the target may find both copies: it believes the note."""
        for row in self._noted:
            lock = row.lock
            assert lock is not None
            number = row.version if row.has_version_id else None
            copy = self._target.metadata.version(row.key, number).row
            assert copy is not None, "only versions with bytes have locks"
            self._locks.copy(copy, lock)
            kill_point("moving.lock_noted")
        self._noted.clear()

    def _land(self) -> None:
        if not self._small:
            return
        batch, self._small, self._bytes = self._small, [], 0
        target = self._target
        landed = target.lander.land(
            [NewCopy(row.key, data, row.crc32c, row.attributes, put_ms_of(row.version)) for row, data in batch]
        )
        kill_point("moving.landed")
        left = {place for place in landed.outcomes if isinstance(place, bytes)}
        try:
            for place in landed.outcomes:
                if isinstance(place, NosError):
                    raise place
            now_ms = target.clock.now_ms()
            copies = [
                CopiedVersion(row, LandingId(place), now_ms + target.min_age_ms)
                for (row, _), place in zip(batch, landed.outcomes, strict=True)
                if isinstance(place, bytes)
            ]
            target.metadata.record_copies(copies, now_ms)
            left = set()
        finally:
            landed.settle(left)
        kill_point("moving.copies_recorded")

    def drop(self) -> None:
        """Forget the small versions and notes that were added and have not been recorded. Their keys must be compared
        again."""
        self._small, self._bytes, self._noted = [], 0, []

    def _small_max(self, row: ObjectRow) -> int:
        return self._target.store.packed_size_max - (ATTRIBUTES_ROOM if row.attributes else 0)

    def _add(self, row: ObjectRow) -> None:
        lander = self._target.lander
        is_full = len(self._small) >= lander.batch_objects_max or self._bytes + row.size > lander.batch_bytes_max
        if self._small and is_full:
            self.flush()
        self._small.append((row, b"".join(self._read(row))))
        self._bytes += row.size

    def _read(self, row: ObjectRow) -> Iterator[bytes]:
        """Yield the object's own bytes. Raises NotFound when the version is gone."""
        if row.composition is not None:
            yield encode_manifest(self._manifest(row))
            return
        try:
            yield from self._source.store.open_ciphertext(row, 0, row.size)
        except Conflict as error:
            raise NotFound(str(error), key=row.key) from error

    def _manifest(self, row: ObjectRow) -> Manifest:
        try:
            manifest = self._source.store.manifest(row)
        except Conflict as error:
            raise NotFound(str(error), key=row.key) from error
        assert manifest is not None, "the object is composed"
        return manifest

    def _copy_large(self, row: ObjectRow) -> None:
        target = self._target
        record = partial(self._record_large, row)
        target.large.copy(row, b"", _Windows(self._read(row)), target.tails, record)
        kill_point("moving.large_recorded")

    def _record_large(self, row: ObjectRow, new: NewLargeObject, lease: Lease, now_ms: int) -> None:
        if (new.size, new.crc32c, new.md5) != (row.size, row.crc32c, row.md5):
            raise Corrupt(f"{row.key} v{row.version}: the bytes that were read are not those of its row", key=row.key)
        self._target.metadata.record_large_copy(new, lease, row, now_ms)


def _has_note(row: ObjectRow) -> bool:
    lock = row.lock
    return lock is not None and lock.note > 0


def _without_note(row: ObjectRow) -> ObjectRow:
    """Return the row with its lock, but without the number of a note. It gets that together with the note, so that a
    copy without its note differs from the version, and is made again."""
    lock = row.lock
    if lock is None or not lock.note:
        return row
    return replace(row, attributes=with_lock(row.attributes, replace(lock, note=0)))


def bytes_of(row: ObjectRow) -> int:
    """Return how many bytes a copy of a version has, with its parts."""
    composition = row.composition
    return row.size + (0 if composition is None else composition.size)


class _Windows:
    """The bytes of an object as a stream."""

    def __init__(self, windows: Iterator[bytes]) -> None:
        self._windows = windows
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        """Return 1 to `size` bytes; none only at the end."""
        while not self._rest:
            window = next(self._windows, None)
            if window is None:
                return b""
            self._rest = window
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
