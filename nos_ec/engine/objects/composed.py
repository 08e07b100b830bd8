"""Reads objects that are composed of parts: first the manifest, then the parts, which have the bytes.

9  the cached manifests have at most MANIFEST_PARTS_MAX parts, and one window of a part is in memory
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock

from nos_ec.core.errors import Conflict, Corrupt, NotFound
from nos_ec.core.parts import Composition, Manifest, ManifestPart, decode_manifest, part_key, part_number
from nos_ec.ports.metadata import ObjectRow

MANIFEST_PARTS_MAX = 50_000
"""The number of parts in all cached manifests, about 10 MB."""


class Manifests:
    """A cache of the manifests that were read last. Its keys are the compositions in the rows and not the upload ids:
    after a rebuild, two objects may be composed of one upload, one of them in the trash. Safe to call from several
    threads."""

    def __init__(self, parts_max: int = MANIFEST_PARTS_MAX) -> None:
        self._parts_max = parts_max
        self._lock = Lock()
        self._known: OrderedDict[Composition, Manifest] = OrderedDict()
        self._parts = 0

    def find_manifest(self, composition: Composition) -> Manifest | None:
        """Return the manifest of an object if it is cached."""
        with self._lock:
            found = self._known.get(composition)
            if found is not None:
                self._known.move_to_end(composition)
            return found

    def keep_manifest(self, composition: Composition, manifest: Manifest) -> None:
        """Cache a manifest, and drop the least recently used ones."""
        with self._lock:
            if composition in self._known:
                return
            self._known[composition] = manifest
            self._parts += len(manifest.parts)
            while self._parts > self._parts_max:
                _, gone = self._known.popitem(last=False)
                self._parts -= len(gone.parts)


def manifest_in(data: bytes, row: ObjectRow, composition: Composition) -> Manifest:
    """Decode the manifest in the bytes of an object. Raises Corrupt with its key."""
    try:
        manifest = decode_manifest(data)
    except Corrupt as error:
        raise Corrupt(f"{row.key} v{row.version}: {error}", key=row.key) from error
    expected = (composition.upload_id, composition.size, composition.parts, row.envelope is not None)
    if expected != (manifest.upload_id, manifest.stored_size, len(manifest.parts), manifest.is_encrypted):
        raise Corrupt(f"{row.key} v{row.version}: its manifest does not match its attributes", key=row.key)
    return manifest


def read_parts(
    row: ObjectRow,
    manifest: Manifest,
    first: int,
    end: int,
    find: Callable[[ManifestPart], ObjectRow],
    read: Callable[[ObjectRow, int, int], Iterator[bytes]],
) -> Iterator[bytes]:
    """Yield the bytes [first, end) of a composed object in windows. find: looks up the row of a part. read(row, offset,
    length): reads bytes of a part, and decrypts them if it is encrypted. Raises NotFound when a part is gone, Corrupt,
    Transient."""
    at = first
    while at < end:
        index = manifest.index_at(at)
        part, start = manifest.parts[index], manifest.starts[index]
        stop = min(end, start + part.users_size)
        found = find(part)
        if part_of(found) != part:
            raise Corrupt(f"{row.key} v{row.version}: part {part.number} is not the one in the manifest", key=row.key)
        try:
            yield from read(found, at - start, stop - at)
        except Conflict:
            raise NotFound(f"{row.key} v{row.version}: part {part.number} is gone", key=row.key) from None
        at = stop


def part_of(row: ObjectRow) -> ManifestPart:
    """Return the entry of a manifest that describes this part. Raises Corrupt if its envelope is damaged."""
    envelope = row.envelope
    return ManifestPart(part_number(row.key), row.size, row.crc32c, b"" if envelope is None else envelope.check)


def row_of_part(row: ObjectRow, manifest: Manifest, part: ManifestPart, get: Callable[..., ObjectRow]) -> ObjectRow:
    """Return the row of a part. Raises NotFound with the key of the object."""
    try:
        return get(part_key(row.key.bucket, manifest.upload_id, part.number))
    except NotFound:
        raise NotFound(f"{row.key} v{row.version}: part {part.number} is gone", key=row.key) from None
