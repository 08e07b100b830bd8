"""Event payloads, versioned, and the partition of an event.

A pack request reports that a version of an object is in the landing store and waits to be packed. It is JSON, so that
an operator can read the log. The producer writes version 3, which is version 1 plus the id of the store, so that a
consumer notices that two stores use one topic. Earlier releases wrote version 1. Other programs may write version 2,
which the consumer completes from the object's row:

    {"v":1,"object_id":7,"bucket":"photos","name":"a.jpg","version":3,"size":512,"crc32c":99,"landing_id":"<32 hex>"}
    {"v":2,"bucket":"photos","name":"a.jpg","version":3}
    {"v":3,"object_id":7, ... ,"landing_id":"<32 hex>","store":"<32 hex>"}

An event is a hint, never a fact: the commit decides by compare-and-set on the row (invariant 5), so a stale field does
no harm. An *impossible* field is Corrupt: it means that the log holds something else. Each version has exactly these
fields. Adding or removing one makes a new version; unknown versions are refused. The format is public: docs/MESSAGES.md
describes it, `nos_ec/core/schemas` has a JSON Schema of each version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.ids import LandingId, ObjectKey

FIRST_VERSION = 1
"""The version that producers of earlier releases wrote."""
NAMED_VERSION = 2
"""The version that other programs may write."""
PACK_REQUEST_VERSION = 3
"""The version that the producer writes."""

_ID_MAX = 2**63 - 1
"""Row ids and versions are signed 64-bit columns."""
_U32_MAX = 2**32 - 1
"""Lengths and CRCs are four bytes in a header entry; nothing longer can be packed."""

_Id = Annotated[int, msgspec.Meta(ge=1, le=_ID_MAX)]


class PackRequest(msgspec.Struct, frozen=True):
    """One object version to pack. `size` is in bytes, `landing_id` has 16 bytes, `crc32c` is that of the object's
    bytes. `store` is the id of the store that has the object, or empty if the event has none."""

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    landing_id: LandingId
    store: str = ""


class NamedVersion(msgspec.Struct, frozen=True):
    """A request of version 2: one object version to pack, by name. The consumer takes the rest from its row."""

    key: ObjectKey
    version: int


class _PackRequestV1(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wire form of version 1, field for field. It never changes: a new version gets a struct of its own."""

    v: int
    object_id: _Id
    bucket: str
    name: str
    version: _Id
    size: Annotated[int, msgspec.Meta(ge=1, le=_U32_MAX)]
    crc32c: Annotated[int, msgspec.Meta(ge=0, le=_U32_MAX)]
    landing_id: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class _PackRequestV3(_PackRequestV1, frozen=True, forbid_unknown_fields=True):
    """The wire form of version 3: that of version 1 plus one field. It never changes."""

    store: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class _PackRequestV2(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wire form of version 2, field for field. It never changes."""

    v: int
    bucket: str
    name: str
    version: _Id


class _AnyVersion(msgspec.Struct):
    """The field that all versions have in common, to distinguish an unknown version from garbage."""

    v: int


_WHY_CHARS_MAX = 500
"""The most characters of the cause that an error quotes. The cause may quote the whole message."""

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encoder = msgspec.json.Encoder()
_decoder_v1 = msgspec.json.Decoder(_PackRequestV1)
_decoder_v2 = msgspec.json.Decoder(_PackRequestV2)
_decoder_v3 = msgspec.json.Decoder(_PackRequestV3)
_decoder_any = msgspec.json.Decoder(_AnyVersion)


def encode_pack_request(
    *, object_id: int, key: ObjectKey, version: int, size: int, crc32c: int, landing_id: LandingId, store: str = ""
) -> bytes:
    """Return the event for one row, as UTF-8 JSON: version 3, or version 1 without a store. It takes plain fields, so
    that this package needs no row class of a port.

    It checks nothing, because the arguments come from our own rows; `decode_pack_request` checks everything.
    """
    landing, bucket, name = landing_id.hex(), key.bucket, key.name
    if not store:
        return _encoder.encode(_PackRequestV1(FIRST_VERSION, object_id, bucket, name, version, size, crc32c, landing))
    return _encoder.encode(
        _PackRequestV3(PACK_REQUEST_VERSION, object_id, bucket, name, version, size, crc32c, landing, store)
    )


def decode_pack_request(data: bytes) -> PackRequest | NamedVersion:
    """Return the request in `data`. Total: any bytes give a valid request or Corrupt, never another exception."""
    try:
        version = _version(data)
        if version == NAMED_VERSION:
            named = _decoder_v2.decode(data)
            return NamedVersion(ObjectKey(named.bucket, named.name), named.version)
        if version == PACK_REQUEST_VERSION:
            wire = _decoder_v3.decode(data)
            return msgspec.structs.replace(_complete(wire), store=wire.store)
        return _complete(_decoder_v1.decode(data))
    except (*_UNDECODABLE, InvalidInput) as error:
        raise Corrupt(_why_refused(data, error)) from error


def _complete(wire: _PackRequestV1) -> PackRequest:
    if wire.v not in (FIRST_VERSION, PACK_REQUEST_VERSION):
        raise Corrupt(_unknown_version(wire.v))
    return PackRequest(
        object_id=wire.object_id,
        key=ObjectKey(wire.bucket, wire.name),
        version=wire.version,
        size=wire.size,
        crc32c=wire.crc32c,
        landing_id=LandingId(bytes.fromhex(wire.landing_id)),
    )


def partition_for(bucket: str, partitions: int) -> int:
    """Return the home of a bucket: the partition, 0 to partitions - 1, of all its events unless it is spread
    (`core.publishing.spread`).

    Raise ValueError without partitions.
    """
    return partition_for_key(bucket.encode(), partitions)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a message key, as Kafka's default partitioner chooses it.

    The rule is `toPositive(murmur2(keyBytes)) % numPartitions` of org.apache.kafka.clients.producer, where toPositive
    clears the sign bit. Every adapter follows this rule, so that the embedded log and Kafka agree. (librdkafka's own
    default is CRC32; with partitioner=murmur2_random it follows this rule.)
    """
    if partitions < 1:
        raise ValueError(f"{partitions} partitions; there must be at least 1")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return Kafka's variant of MurmurHash2 (org.apache.kafka.common.utils.Utils.murmur2), as an unsigned 32-bit
    number.

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


def _version(data: bytes) -> int:
    """Return the version in `data`, or the first one if there is none."""
    try:
        return _decoder_any.decode(data).v
    except _UNDECODABLE:
        return FIRST_VERSION


def _why_refused(data: bytes, error: Exception) -> str:
    version = _version(data)
    if version not in (FIRST_VERSION, NAMED_VERSION, PACK_REQUEST_VERSION):
        return _unknown_version(version)
    return f"not a pack request of version {version}: {str(error)[:_WHY_CHARS_MAX]}"


def _unknown_version(version: int) -> str:
    return (
        f"pack request of version {version}; this program knows versions {FIRST_VERSION} to"
        f" {PACK_REQUEST_VERSION} only: upgrade the consumers before the producers"
    )
