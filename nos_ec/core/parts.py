"""Objects composed of parts (S3's multipart uploads).

A part is an object in a hidden bucket that belongs to the bucket of the upload. The composed object is an object, too:
its bytes are the manifest, which lists the parts, and an attribute describes the composition. So landing, packing, GC,
scrub and the rebuilding of metadata treat all of them as ordinary objects, and no byte of a part is copied when its
upload is completed (docs/adr/0032).

Manifest, little-endian:

    offset  size  content
         0     8  magic, b"NOSECMP1"
         8     4  number of parts, 1 to PARTS_MAX
        12    16  the id of the upload
        28        for each part, in order: number (2), size in bytes (8), CRC32C (4)

If the parts are encrypted, the magic is b"NOSECMP2", and the check of its envelope (core.encryption, 16) follows the
CRC32C of each part. So the object, which authenticates its manifest, has exactly these parts.

The limits are those of S3 ("Amazon S3 multipart upload limits" in its user guide).
"""

from __future__ import annotations

import hashlib
import re
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NewType

from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.encryption.envelope import ENVELOPE_ATTRIBUTE, PARTS, TAG_BYTES, Envelope, plain_size
from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.ids import BUCKET_BYTES_MAX, ObjectKey

UploadId = NewType("UploadId", bytes)
"""16 bytes, unique forever, made by `timed_id`."""

PARTS_MAX = 10_000
PARTS_BUCKET = ".nos_ec.parts."
"""Prefix of the names of the buckets of parts. The bucket of the upload follows, so that parts are packed near objects
of that bucket, which live about as long."""
RESERVED_ATTRIBUTES = "nos_ec:"
"""Prefix of the names of attributes that belong to the store."""
_COMPOSITION = "nos_ec:parts"
COMPOSED_MARK = _COMPOSITION.encode()
"""The encoded attributes of a composed object contain these bytes; other attributes rarely do."""
_ID = re.compile("[0-9a-f]{32}")
_MAGIC, _MAGIC_OF_ENCRYPTED = b"NOSECMP1", b"NOSECMP2"
_HEAD = struct.Struct("<8sI16s")
_PART = struct.Struct("<HQI")
_ENCRYPTED_PART = struct.Struct(f"<HQI{TAG_BYTES}s")


@dataclass(frozen=True, slots=True)
class Composition:
    """The composition of an object, as in its row: the upload, the size and CRC32C of the stored bytes of all parts,
    the number of parts, and the MD5 of the MD5s of their stored bytes, from which S3 makes the ETag of a plain one."""

    upload_id: UploadId
    size: int
    crc32c: int
    parts: int
    md5: bytes


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """A part: its number, 1 to PARTS_MAX, as in its name, its stored size in bytes and its CRC32C. `check` is that of
    its envelope; empty if it is not encrypted."""

    number: int
    size: int
    crc32c: int
    check: bytes = b""

    @property
    def users_size(self) -> int:
        """Return the number of bytes that users see. Raise Corrupt if an encrypted part cannot have its size."""
        return plain_size(self.size) if self.check else self.size


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parts of an object, in ascending order of their numbers. Raises Corrupt if only some of them are
    encrypted, or if encrypted ones cannot have their sizes."""

    upload_id: UploadId
    parts: Sequence[ManifestPart]
    starts: Sequence[int] = field(init=False, compare=False, repr=False)
    """Where each part begins in the object, as users see it, followed by the size of the object."""
    digest: bytes = field(init=False, compare=False, repr=False)
    """The SHA-256 of the bytes of the manifest, if the parts are encrypted."""

    def __post_init__(self) -> None:
        if len({bool(part.check) for part in self.parts}) > 1:
            raise Corrupt("manifest: some of its parts are encrypted, and others are not")
        object.__setattr__(self, "starts", list(accumulate((part.users_size for part in self.parts), initial=0)))
        digest = hashlib.sha256(encode_manifest(self)).digest() if self.is_encrypted else b""
        object.__setattr__(self, "digest", digest)

    @property
    def is_encrypted(self) -> bool:
        """Return whether the parts are encrypted: all of them, or none."""
        return bool(self.parts[0].check)

    @property
    def size(self) -> int:
        """Return the bytes of the object, as users see it."""
        return self.starts[-1]

    @property
    def stored_size(self) -> int:
        """Return the bytes in which all parts are stored."""
        return sum(part.size for part in self.parts)

    def index_at(self, offset: int) -> int:
        """Return the index of the part with the byte at `offset`, which must be below `size`."""
        return bisect_right(self.starts, offset) - 1


def parts_bucket(bucket: str) -> str:
    """Return the bucket of the parts of uploads into `bucket`. Raise InvalidInput if its name is too long."""
    name = PARTS_BUCKET + bucket
    if len(name.encode()) > BUCKET_BYTES_MAX:
        raise InvalidInput(
            f"bucket {bucket}: its name has more than {BUCKET_BYTES_MAX - len(PARTS_BUCKET)} bytes, which is too long"
            " for uploads in parts; put objects in one piece"
        )
    return name


def is_parts_bucket(bucket: str) -> bool:
    """Return whether the bucket is a result of `parts_bucket`."""
    return bucket.startswith(PARTS_BUCKET)


def bucket_of_parts(bucket: str) -> str:
    """Return the bucket of the uploads whose parts this bucket has; for any other bucket, itself."""
    return bucket.removeprefix(PARTS_BUCKET)


def parts_prefix(upload_id: UploadId) -> str:
    """Return the prefix of the names of the parts of an upload."""
    return upload_id.hex() + "/"


def part_key(bucket: str, upload_id: UploadId, number: int) -> ObjectKey:
    """Return the key of a part. `bucket` is that of the upload. Names are in the order of the numbers."""
    return ObjectKey(parts_bucket(bucket), f"{parts_prefix(upload_id)}{number:05}")


def upload_key(bucket: str, upload_id: UploadId) -> ObjectKey:
    """Return the key, in the bucket of the parts, that stands for an upload itself. No object has it."""
    return ObjectKey(parts_bucket(bucket), parts_prefix(upload_id))


def part_number(key: ObjectKey) -> int:
    """Return the number in the key of a part."""
    return int(key.name.rpartition("/")[2])


def upload_of_part(key: ObjectKey) -> UploadId | None:
    """Return the upload of a part, or None for an object that is not a part. `upload_key` counts as one."""
    text, slash, _ = key.name.partition("/")
    if not is_parts_bucket(key.bucket) or not slash or not _ID.fullmatch(text):
        return None
    return UploadId(bytes.fromhex(text))


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest (format above)."""
    magic = _MAGIC_OF_ENCRYPTED if manifest.is_encrypted else _MAGIC
    head = _HEAD.pack(magic, len(manifest.parts), manifest.upload_id)
    if manifest.is_encrypted:
        pack = _ENCRYPTED_PART.pack
        return head + b"".join([pack(part.number, part.size, part.crc32c, part.check) for part in manifest.parts])
    return head + b"".join([_PART.pack(part.number, part.size, part.crc32c) for part in manifest.parts])


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that `encode_manifest` encoded. Raise Corrupt, and nothing else, for any other bytes."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"manifest: {len(data)} bytes")
    magic, count, upload_id = _HEAD.unpack_from(data)
    form = {_MAGIC: _PART, _MAGIC_OF_ENCRYPTED: _ENCRYPTED_PART}.get(magic)
    if form is None or not 1 <= count <= PARTS_MAX or len(data) != _HEAD.size + count * form.size:
        raise Corrupt("manifest: not of this format, or cut short")
    parts = [ManifestPart(*fields) for fields in form.iter_unpack(data[_HEAD.size :])]
    numbers = [part.number for part in parts]
    if numbers != sorted(set(numbers)) or not 1 <= numbers[0] <= numbers[-1] <= PARTS_MAX:
        raise Corrupt("manifest: parts are out of order")
    return Manifest(UploadId(upload_id), parts)


def composed(attributes: Mapping[str, str], composition: Composition) -> bytes:
    """Return the attributes of a composed object with these attributes of its user. Raise InvalidInput if they are too
    many."""
    crc32c = f"{composition.crc32c:08x}"
    fields = [composition.upload_id.hex(), str(composition.size), crc32c, str(composition.parts), composition.md5.hex()]
    return encode_attributes({**attributes, _COMPOSITION: " ".join(fields)})


def may_be_composed(attributes: bytes | None) -> bool:
    """Return whether an object with these attributes is composed of parts. Attributes that cannot be read count."""
    try:
        return attributes is not None and composition_of(attributes) is not None
    except Corrupt:
        return True


def composition_of(attributes: bytes) -> Composition | None:
    """Return the composition of an object, or None if it is not composed. Raise Corrupt."""
    if COMPOSED_MARK not in attributes:
        return None
    text = decode_attributes(attributes).get(_COMPOSITION)
    if text is None:
        return None  # the text is in a value
    try:
        upload_id, size, crc32c, parts, md5 = text.split(" ")
        of_upload = UploadId(bytes.fromhex(upload_id))
        found = Composition(of_upload, int(size), int(crc32c, 16), int(parts), bytes.fromhex(md5))
    except ValueError:
        raise Corrupt(f"attribute {_COMPOSITION}: {text!r}") from None
    if len(found.upload_id) != 16 or len(found.md5) != 16 or found.size < 0 or found.parts < 1:
        raise Corrupt(f"attribute {_COMPOSITION}: {text!r}")
    return found


def require_space(attributes: Mapping[str, str], *, encrypted: bool = False) -> None:
    """Raise InvalidInput if an object could not have these attributes in addition to those of any composition, and to
    an envelope if it is `encrypted`."""
    if encrypted:
        attributes = {**attributes, ENVELOPE_ATTRIBUTE: Envelope(PARTS, 1, bytes(16), bytes(16), bytes(16)).encode()}
    composed(attributes, Composition(UploadId(bytes(16)), 2**63 - 1, 0, PARTS_MAX, bytes(16)))


def users_attributes(attributes: bytes) -> dict[str, str]:
    """Return the attributes that belong to users. Raise Corrupt."""
    found = decode_attributes(attributes)
    return {name: value for name, value in found.items() if not name.startswith(RESERVED_ATTRIBUTES)}


def with_stores_attributes(given: bytes, current: bytes) -> bytes:
    """Return the attributes that a user gives a version, together with the store's own in `current`. Raise InvalidInput
    for given attributes that belong to the store, or if they are too many."""
    refuse_reserved(given)
    if RESERVED_ATTRIBUTES.encode() not in current:
        return given
    own = {name: text for name, text in decode_attributes(current).items() if name.startswith(RESERVED_ATTRIBUTES)}
    return encode_attributes(decode_attributes(given) | own)


def refuse_reserved(given: bytes) -> None:
    """Raise InvalidInput for attributes that belong to the store."""
    if RESERVED_ATTRIBUTES.encode() in given:
        for name in decode_attributes(given):
            if name.startswith(RESERVED_ATTRIBUTES):
                raise InvalidInput(
                    f"attribute {name!r}: names that begin with {RESERVED_ATTRIBUTES} are the store's own"
                )
