"""Event payloads, versioned, and the partition an event belongs to.

A pack request says that a version of an object is in the landing store and waits to be packed. It is JSON, so that an
operator can read the log:

    {"v":1,"object_id":7,"bucket":"photos","name":"a.jpg","version":3,"size":512,"crc32c":99,"landing_id":"<32 hex>"}

An event is a hint, never a fact: the commit decides by compare-and-set on the row (invariant 5), so a stale field
does no harm. An *impossible* field is Corrupt: it means that the log holds something else.
Version 1 has exactly these fields. Adding or removing one makes a new version; unknown versions are refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.ids import LandingId, ObjectKey

PACK_REQUEST_VERSION = 1

_ID_MAX = 2**63 - 1
"""Row ids and versions are signed 64-bit columns."""
_U32_MAX = 2**32 - 1
"""Lengths and CRCs are four bytes in a header entry; nothing longer can be packed."""

_Id = Annotated[int, msgspec.Meta(ge=1, le=_ID_MAX)]


class PackRequest(msgspec.Struct, frozen=True):
    """One object version to pack. `size` in bytes, `landing_id` 16 bytes, `crc32c` of the object's bytes."""

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    landing_id: LandingId
    v: int = PACK_REQUEST_VERSION


class _PackRequestV1(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wire form of version 1, field for field. Never changed: a new version gets a struct of its own."""

    v: int
    object_id: _Id
    bucket: str
    name: str
    version: _Id
    size: Annotated[int, msgspec.Meta(ge=1, le=_U32_MAX)]
    crc32c: Annotated[int, msgspec.Meta(ge=0, le=_U32_MAX)]
    landing_id: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class _AnyVersion(msgspec.Struct):
    """What every version must have in common, to distinguish an unknown version from garbage."""

    v: int


_WHY_CHARS_MAX = 500
"""Most characters of the cause that an error quotes. The cause may quote the whole message."""

_encoder = msgspec.json.Encoder()
_decoder_v1 = msgspec.json.Decoder(_PackRequestV1)
_decoder_any = msgspec.json.Decoder(_AnyVersion)


def encode_pack_request(
    *, object_id: int, key: ObjectKey, version: int, size: int, crc32c: int, landing_id: LandingId
) -> bytes:
    """The event for one row, as UTF-8 JSON. Takes plain fields, so that this package needs no row class of a port.

    Checks nothing, because the arguments come from our own rows; `decode_pack_request` checks everything.
    """
    return _encoder.encode(
        _PackRequestV1(
            v=PACK_REQUEST_VERSION,
            object_id=object_id,
            bucket=key.bucket,
            name=key.name,
            version=version,
            size=size,
            crc32c=crc32c,
            landing_id=landing_id.hex(),
        )
    )


def decode_pack_request(data: bytes) -> PackRequest:
    """The request in `data`. Total: any bytes give a valid PackRequest or Corrupt, never another exception."""
    try:
        wire = _decoder_v1.decode(data)
        if wire.v != PACK_REQUEST_VERSION:
            raise Corrupt(_unknown_version(wire.v))
        key = ObjectKey(wire.bucket, wire.name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidInput) as error:
        raise Corrupt(_why_refused(data, error)) from error
    return PackRequest(
        object_id=wire.object_id,
        key=key,
        version=wire.version,
        size=wire.size,
        crc32c=wire.crc32c,
        landing_id=LandingId(bytes.fromhex(wire.landing_id)),
    )


def partition_for(bucket: str, partitions: int) -> int:
    """The partition, 0 to partitions - 1, of all events of one bucket. Raises ValueError without partitions."""
    return partition_for_key(bucket.encode(), partitions)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a message key, as Kafka's default partitioner chooses it.

    The rule is `toPositive(murmur2(keyBytes)) % numPartitions` of org.apache.kafka.clients.producer, where
    toPositive clears the sign bit. Every adapter follows this rule, so that the embedded log and Kafka agree.
    (librdkafka's own default is CRC32; with partitioner=murmur2_random it follows this rule.)
    """
    if partitions < 1:
        raise ValueError(f"{partitions} partitions; there must be at least 1")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's variant of MurmurHash2 (org.apache.kafka.common.utils.Utils.murmur2), as an unsigned 32-bit number.

    Seed 0x9747b28c; words are little-endian.
    """
    multiplier = 0x5BD1E995
    length = len(data)
    tail_start = length & ~3
    hash_ = 0x9747B28C ^ length
    for at in range(0, tail_start, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & _U32_MAX
        word = (word ^ word >> 24) * multiplier & _U32_MAX
        hash_ = hash_ * multiplier & _U32_MAX ^ word
    if tail_start < length:
        hash_ = (hash_ ^ int.from_bytes(data[tail_start:], "little")) * multiplier & _U32_MAX
    hash_ = (hash_ ^ hash_ >> 13) * multiplier & _U32_MAX
    return hash_ ^ hash_ >> 15


def _why_refused(data: bytes, error: Exception) -> str:
    try:
        version = _decoder_any.decode(data).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        version = PACK_REQUEST_VERSION
    if version != PACK_REQUEST_VERSION:
        return _unknown_version(version)
    return f"not a pack request of version {PACK_REQUEST_VERSION}: {str(error)[:_WHY_CHARS_MAX]}"


def _unknown_version(version: int) -> str:
    return (
        f"pack request of version {version}; this program knows version {PACK_REQUEST_VERSION} only:"
        " upgrade the consumers before the producers"
    )
