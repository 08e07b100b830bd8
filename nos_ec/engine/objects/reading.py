"""GET in two steps: resolve a key to the row of a version, then read the bytes of that row wherever they are.

4  a reader that finds its bytes gone looks the row up again and retries; if packed bytes are lost or damaged, it reads
   the landing copy while there is one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from nos_ec.core.errors import Conflict, Corrupt, Encrypted, InvalidInput, NotFound, Transient
from nos_ec.core.ids import ObjectKey, in_log
from nos_ec.core.parts import Composition, Manifest
from nos_ec.core.states import ObjectState
from nos_ec.engine.objects.composed import Manifests, manifest_in, read_parts, row_of_part
from nos_ec.engine.objects.large import LargeObjects
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.objects.second_copy import SecondCopies
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import LandingQueue, ObjectRow, Objects, Outbox, Versions

_TO_THE_END = 2**63 - 1
"""A length beyond the end of any object."""
ReadPart = Callable[[ObjectRow, int, int], Iterator[bytes]]
"""Reads bytes of a part: (row, first byte, length)."""
DecryptPart = Callable[[ObjectRow, int, int, Callable[[int, int], Iterator[bytes]]], Iterator[bytes]]
"""Decrypts bytes of a part, given what reads its stored bytes: (row, first plain byte, length, read)."""
READ_TRIES = 10
"""Each further try means that the object was packed, collected or overwritten during the previous one."""


class Opened(NamedTuple):
    """A version and its bytes, or a range of them, in windows."""

    row: ObjectRow
    windows: Iterator[bytes]


class StoreMetadata(Objects, Versions, LandingQueue, Outbox, Protocol):
    """The parts of the metadata that the store uses."""


class ObjectReads:
    """Reads objects. Safe to call from several threads."""

    def __init__(
        self,
        metadata: StoreMetadata,
        landing: LandingStore,
        blocks: BlockStore,
        large: LargeObjects,
        locations: LocationCache,
        put_ms_max: int,
    ) -> None:
        """put_ms_max: the longest duration of a PUT."""
        self._metadata = metadata
        self._landing = landing
        self._blocks = blocks
        self._large = large
        self._locations = locations
        self._second_copies = SecondCopies(metadata, landing, put_ms_max)
        self._manifests = Manifests()

    # --- GET ----------------------------------------------------------------------------------------
    def get(self, key: ObjectKey, offset: int = 0, length: int | None = None) -> bytes:
        """Return a whole object, or a range as of `open_range`, in memory. Use `open` for objects that may be large.
        Raises InvalidInput, NotFound, Corrupt, Transient."""
        whole = offset == 0 and length is None
        for _ in range(READ_TRIES):
            try:
                opened = self.open(key) if whole else self.open_range(key, offset, length)
                return b"".join(opened.windows)
            except Conflict:
                continue  # a large object was overwritten or deleted halfway: start again with the current version
        raise _changed_too_often(key)

    def open(self, key: ObjectKey) -> Opened:
        """Open the current version: a small object in one piece, checked against its CRC32C, a large one in windows.
        The last window of each of its segments is returned only if the CRC32C of the segment is right. Raises what
        `read` does."""
        return self.read(self.resolve(key))

    def open_range(self, key: ObjectKey, offset: int, length: int | None) -> Opened:
        """Open the bytes [offset, offset + length) of the current version, or all from `offset` if length is None. The
        range may end past the end of the object.

        For an object in blocks only the range is read, and the block store verifies it (`BlockStore.read`). A landing
        store verifies nothing, and the CRC covers the whole object. So a landed object, of at most `packed_size_max`
        bytes, is read and checked as a whole. Raises InvalidInput when offset or length is negative or the range
        starts past the end, and what `read` raises.
        """
        row = self.resolve(key, offset)
        _require_range(row, offset, length)
        return self.read(row, offset, _TO_THE_END if length is None else length)

    def open_version(self, row: ObjectRow, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Return the bytes of exactly this version, wherever they are now. The range is as of `open_range`.

        Raises Conflict when the version was deleted or overwritten and its bytes are gone, InvalidInput, Corrupt,
        Transient.
        """
        _require_range(row, offset, length)
        reach = _TO_THE_END if length is None else length
        return self._read_version(row, offset, reach if offset or reach < row.users_size else None)

    def open_ciphertext(self, row: ObjectRow, offset: int, length: int) -> Iterator[bytes]:
        """Like `open_version`, for the stored bytes of an encrypted version, by offsets in these. The range must lie in
        the object."""
        whole = offset == 0 and length == row.size
        return self._read_version(row, offset, None if whole else length, as_stored=True)

    def open_parts(
        self, row: ObjectRow, manifest: Manifest, offset: int, length: int, decrypt: DecryptPart
    ) -> Iterator[bytes]:
        """Like `open_version`, for the plain bytes of an encrypted version that is composed of the parts in its
        manifest. The caller has authenticated the manifest; `decrypt` returns bytes of a part."""

        def read(part: ObjectRow, first: int, count: int) -> Iterator[bytes]:
            return decrypt(part, first, count, partial(self._read_part, part))

        try:
            return self._read_composed(row, manifest, offset, min(manifest.size, offset + length), read)
        except NotFound as error:
            if self._is_there(row):
                raise Corrupt(str(error), key=row.key) from error
            raise _gone(row) from error

    def _read_version(
        self, row: ObjectRow, offset: int, length: int | None, *, as_stored: bool = False
    ) -> Iterator[bytes]:
        try:
            opened = self.read(row, offset, length, as_stored=as_stored)
        except NotFound:
            raise _gone(row) from None
        except Encrypted:
            if row.envelope is None:
                raise _gone(row) from None  # it was overwritten meanwhile by an encrypted object
            raise
        if not _is_same(opened.row, row):
            raise _gone(row)
        return opened.windows

    def resume_version(self, row: ObjectRow, offset: int) -> Iterator[bytes]:
        """Return the bytes of exactly this version from `offset` on, for a reader whose last read failed. Reading
        begins with the segment of a large object, or the part of a composed one, that contains `offset`, so that its
        CRC is checked too. Raises what `open_version` does."""
        start = self._segment_start(row, offset)
        pieces = self.open_version(row, start)
        return pieces if start == offset else _without(pieces, offset - start)

    def manifest(self, row: ObjectRow) -> Manifest | None:
        """Return the manifest of a composed object, or None for any other object. Raises Conflict when the version is
        gone, Corrupt, Transient."""
        composition = row.composition
        try:
            return None if composition is None else self._manifest(row, composition)
        except NotFound:
            raise _gone(row) from None

    def _segment_start(self, row: ObjectRow, offset: int) -> int:
        """Return where the segment or part begins that contains `offset`; `offset` itself for a small object."""
        manifest = self.manifest(row)
        if manifest is not None:
            return manifest.starts[manifest.index_at(offset)] if 0 < offset < manifest.size else offset
        if row.state is not ObjectState.LARGE or not 0 < offset < row.size:
            return offset
        try:
            return self._large.segment_start(row, offset)
        except NotFound:
            raise _gone(row) from None

    # --- step 1: which version, and where it is -----------------------------------------------------
    def resolve(self, key: ObjectKey, reach: int = 0) -> ObjectRow:
        """Return the row of the current version, or a cached one (LOCATION_CACHE_MS). If the cached object has
        fewer than `reach` bytes, the row is looked up again. Raises NotFound, Transient."""
        row = self._locations.find_row(key, self._metadata.get)
        return row if reach <= row.users_size else self._locations.look_up_row(key, self._metadata.get)

    def _resolve_again(self, row: ObjectRow) -> ObjectRow:
        """Return the row of this version as it is now, or else the row of the current version. Raises NotFound."""
        try:
            current = self._locations.look_up_row(row.key, self._metadata.get)
        except NotFound:
            found = self._metadata.same_version(row)
            if found is None:
                raise
            return found
        return current if _is_same(current, row) else self._metadata.same_version(row) or current

    # --- step 2: its bytes ----------------------------------------------------------------------------
    def read(self, row: ObjectRow, offset: int = 0, length: int | None = None, *, as_stored: bool = False) -> Opened:
        """Read `length` bytes from `offset` of the version of `row`, or of the current version if that one is gone.
        length: None for the whole object, which is then checked against its CRC32C. as_stored: the caller decrypts the
        bytes of an encrypted object; without it, such an object is refused with Encrypted.

        Small objects, and the first window of large ones, have been read when this returns. Further windows are read on
        demand, which raises Conflict if the version was deleted or overwritten in the meantime and its blocks are gone.
        Raises NotFound, Corrupt, Transient.
        """
        for _ in range(READ_TRIES):
            composition = row.composition
            if not as_stored:
                _refuse_encrypted(row)
            if composition is None:
                opened = self._read_own(row, offset, length)
                if opened.row.composition is None:
                    if not as_stored:
                        _refuse_encrypted(opened.row)
                    return opened
                row = opened.row  # it was overwritten meanwhile by a composed object
                continue
            try:
                manifest = self._manifest(row, composition)
                end = manifest.size if length is None else min(manifest.size, offset + length)
                return Opened(row, self._read_composed(row, manifest, offset, end, self._read_part))
            except NotFound as error:
                seen, row = row, self._resolve_again(row)
                if _is_same(row, seen):
                    raise Corrupt(str(error), key=row.key) from error
        raise _changed_too_often(row.key)

    # --- composed objects -----------------------------------------------------------------------------
    def _read_composed(
        self, row: ObjectRow, manifest: Manifest, offset: int, end: int, read: ReadPart
    ) -> Iterator[bytes]:
        find = partial(row_of_part, row, manifest, get=self._metadata.get)
        return self._first_read(row, read_parts(row, manifest, offset, end, find, read))

    def _read_part(self, part: ObjectRow, first: int, count: int) -> Iterator[bytes]:
        opened = self._read_own(part, first, None if (first, count) == (0, part.size) else count)
        if not _is_same(opened.row, part):
            raise NotFound(f"{part.key} v{part.version} is gone", key=part.key)
        return opened.windows

    def _manifest(self, row: ObjectRow, composition: Composition) -> Manifest:
        """Raises NotFound when the version is gone, Corrupt, Transient."""
        manifest = self._manifests.find_manifest(composition)
        if manifest is None:
            opened = self._read_own(row, 0, None)
            if not _is_same(opened.row, row):
                raise NotFound(f"{row.key} v{row.version} was deleted or overwritten; read it again", key=row.key)
            manifest = manifest_in(b"".join(opened.windows), row, composition)
            self._manifests.keep_manifest(composition, manifest)
        return manifest

    # --- the object's own bytes -------------------------------------------------------------------------
    def _read_own(self, row: ObjectRow, offset: int, length: int | None) -> Opened:
        """Read the object's own bytes, which are a manifest if it is composed, from where the row says they are.

        If they are gone or damaged there, look the row up again: the object may have moved (invariant 4), or the cached
        row was too old. If the row is unchanged, read the landing copy while there is one.
        """
        for _ in range(READ_TRIES):
            try:
                return Opened(row, self._windows(row, offset, length))
            except (Corrupt, NotFound) as error:
                seen, row = row, self._resolve_again(row)
                if row != seen:
                    continue
                copy = None if row.extent is None else self._second_copies.read(row)
                if copy is not None:
                    data = copy[offset:] if length is None else copy[offset : offset + length]
                    return Opened(row, iter([data] if data else []))
                if isinstance(error, Corrupt):
                    raise _named(row, error) from error
                raise Corrupt(
                    f"{row.key} v{row.version}: its {row.state.value} bytes are missing", key=row.key
                ) from None
        raise _changed_too_often(row.key)

    def _windows(self, row: ObjectRow, offset: int, length: int | None) -> Iterator[bytes]:
        """Read the range where the row says it is. The range may start past the end, if a new version appeared after
        the caller read the row."""
        if row.state is not ObjectState.LARGE:
            data = self._read_small(row, offset, length)
            return iter([data] if data else [])
        rest = row.size - offset
        count = max(0, rest if length is None else min(length, rest))
        return self._first_read(row, self._large.read(row, offset, count, self._read_tail))

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

    def _read_tail(self, key: ObjectKey, size: int, first: int, count: int) -> Iterator[bytes]:
        """Read bytes of the tail of a large object, which must have `size` bytes. A tail never gets another version.
        Raises NotFound, Corrupt, Transient."""
        tail = self._locations.find_row(key, self._metadata.get)
        if tail.size != size:
            raise Corrupt(f"{key}: a tail of {tail.size} bytes instead of {size}", key=key)
        return self._read_own(tail, first, None if (first, count) == (0, size) else count).windows

    def _first_read(self, row: ObjectRow, windows: Iterator[bytes]) -> Iterator[bytes]:
        """Read the first window now, and return all of them."""
        first = deque(islice(windows, 1))
        return self._continued(row, first, windows) if first else iter([])

    def _continued(self, row: ObjectRow, first: deque[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
        """first: the first window, which is not held after it has been taken."""
        yield first.popleft()
        try:
            yield from rest
        except Corrupt as error:
            raise _named(row, error) from error
        except NotFound as error:
            if self._is_there(row):
                raise Corrupt(f"{row.key} v{row.version}: a segment of it is missing: {error}", key=row.key) from error
            raise _gone(row) from error

    def _is_there(self, row: ObjectRow) -> bool:
        try:
            return _is_same(self._resolve_again(row), row)
        except NotFound:
            return False


def _gone(row: ObjectRow) -> Conflict:
    return Conflict(
        f"{row.key} v{row.version}: deleted or overwritten while it was being read; read it again", key=row.key
    )


def _refuse_encrypted(row: ObjectRow) -> None:
    if row.attributes and row.envelope is not None:
        raise Encrypted(f"{row.key} is encrypted; read it over S3, with a gateway that has the master key", key=row.key)


def _changed_too_often(key: ObjectKey) -> Transient:
    return Transient(f"{key}: changed {READ_TRIES} times while it was being read; try again", key=key)


def _require_range(row: ObjectRow, offset: int, length: int | None) -> None:
    if offset < 0 or offset > row.users_size or (length is not None and length < 0):
        asked = f"{offset}+{'' if length is None else length}"
        size = row.users_size
        raise InvalidInput(f"range {asked} of {row.key}: it must start within its {size} bytes", key=row.key)


def _without(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    """Yield the pieces without their first `count` bytes."""
    for piece in pieces:
        if len(piece) > count:
            yield piece[count:]
        count = max(0, count - len(piece))
        del piece  # not held while the next one is read


def _is_same(row: ObjectRow, other: ObjectRow) -> bool:
    """Whether both rows are of one version."""
    return (row.object_id, row.version) == (other.object_id, other.version)


def _checked(row: ObjectRow, data: bytes) -> bytes:
    return crc_checked(data, row.size, row.crc32c, row.key, f"{row.key} v{row.version}")


def _named(row: ObjectRow, error: Corrupt) -> Corrupt:
    """Return the same error with the name of the object, because a store knows only its blocks and copies."""
    if error.key is not None:
        return error
    name = f"{row.key} v{row.version}"
    return Corrupt(f"{name}: {error}", key=row.key, block_id=error.block_id, landing_id=error.landing_id)
