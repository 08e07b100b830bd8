"""Identifiers: object keys, block and landing ids, extents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

from nos_ec.core.errors import InvalidInput

BUCKET_BYTES_MAX = 255
NAME_BYTES_MAX = 1024
"""Bytes of UTF-8; the same limit as an S3 object key."""
_UTF8_BYTES_MAX = 4
"""The most bytes of one character."""

RESERVED_BUCKET = ".nos_ec"
"""The bucket for the store's own data, such as dumps of its metadata. Clients may read it and delete from it."""
ACCESS_BUCKET = ".nos_ec.access"
"""Hidden: has a record of each bucket and access key that was changed (nos_ec.engine.dump.access_records)."""
JOURNAL_BUCKET = ".nos_ec.journal"
"""Hidden: has the journal, the deletes of users since the last dumps (nos_ec.engine.dump.journal)."""
LOCKS_BUCKET = ".nos_ec.locks."
"""Prefix of the names of the hidden buckets with notes about locks (nos_ec.core.locking.lock_note). A hexadecimal digit
follows: 16 buckets, so that producers and consumers share the notes."""

BlockId = NewType("BlockId", bytes)
"""16 bytes, unique forever; blocks are never renamed and ids never reused."""

LandingId = NewType("LandingId", bytes)
"""16 bytes, unique forever; names one landing copy. The top bit is set if the copy is a record of the landing log."""

SegmentId = NewType("SegmentId", bytes)
"""8 bytes, unique forever; names one segment of the landing log. The landing ids of its records begin with it."""

_TIME_BYTES = 6
_ID_BYTES = 16
SEGMENT_ID_BYTES = 8
_OF_LOG = 1 << (8 * _TIME_BYTES - 1)
LOGS_MAX = 1 << 10
"""The most logs of a store at a time: one or two for each process that PUTs."""
EPOCHS = 1 << 6
"""Epochs that the id of a segment can distinguish."""
RECORD_ALIGN = 8
"""Records of the landing log begin at multiples of this many bytes."""


def timed_id(now_ms: int, rest: bytes) -> bytes:
    """Return an id that begins with its time, so that ids of about the same time are close together in an index (as in
    a ULID).

    `now_ms` is in Unix milliseconds. `rest` are 10 random bytes.
    """
    return now_ms.to_bytes(_TIME_BYTES, "big") + rest


def time_of(timed: bytes) -> int:
    """Return the time at the beginning of an id from `timed_id`, in Unix milliseconds; for a record, when its segment
    was opened."""
    return int.from_bytes(timed[:_TIME_BYTES], "big") & ~_OF_LOG


def timed_ids_between(first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
    """Return the first and the last id that `timed_id` makes from `first_ms` to `last_ms`, both included."""
    rest = _ID_BYTES - _TIME_BYTES
    return timed_id(max(0, first_ms), bytes(rest)), timed_id(last_ms, b"\xff" * rest)


def new_segment_id(opened_ms: int, log: int, epoch: int = 0) -> SegmentId:
    """Return the id of a segment: 1 bit that is set, 47 bits for the time, 6 for the epoch, 10 for the log, big-endian.

    `opened_ms`, in Unix milliseconds, must rise from segment to segment of a lease. `log` is the number of the log,
    below LOGS_MAX. The lowest 6 bits of `epoch`, the epoch of the log's lease, distinguish segments that were opened in
    the same millisecond under another lease of that log, for example after the clock was set back.
    """
    assert 0 <= log < LOGS_MAX, f"log {log}"
    lease = epoch % EPOCHS * LOGS_MAX + log
    return SegmentId((opened_ms | _OF_LOG).to_bytes(_TIME_BYTES, "big") + lease.to_bytes(2, "big"))


def log_of(segment: SegmentId) -> int:
    """Return the number of the log that a segment belongs to."""
    return int.from_bytes(segment[_TIME_BYTES:], "big") % LOGS_MAX


def record_id(segment: SegmentId, offset: int, nonce: bytes) -> LandingId:
    """Return the id of a record. `offset`, where it begins in its segment, is a multiple of RECORD_ALIGN. `nonce` has 4
    random bytes, so that an id never names another record, even if the place is used again."""
    place, rest = divmod(offset, RECORD_ALIGN)
    assert not rest, f"a record at {offset}"
    return LandingId(segment + place.to_bytes(4, "big") + nonce)


def record_ids_between(first_ms: int, last_ms: int) -> tuple[LandingId, LandingId]:
    """Return the first and the last id of records in segments that were opened from `first_ms` to `last_ms`, both
    included."""
    first, last = new_segment_id(max(0, first_ms), 0), new_segment_id(last_ms, LOGS_MAX - 1, EPOCHS - 1)
    return ids_in_segment(first)[0], ids_in_segment(last)[1]


def in_log(landing_id: LandingId) -> bool:
    """Return whether the copy is a record of the landing log; otherwise it is in the landing store."""
    return landing_id[0] >= 0x80


def segment_of(landing_id: LandingId) -> SegmentId:
    """Return the segment of the record."""
    return SegmentId(landing_id[:SEGMENT_ID_BYTES])


def record_offset(landing_id: LandingId) -> int:
    """Return where the record begins in its segment, in bytes."""
    return int.from_bytes(landing_id[SEGMENT_ID_BYTES : SEGMENT_ID_BYTES + 4], "big") * RECORD_ALIGN


def ids_in_segment(segment: SegmentId) -> tuple[LandingId, LandingId]:
    """Return the first and the last id that a record of the segment can have."""
    rest = _ID_BYTES - SEGMENT_ID_BYTES
    return LandingId(segment + bytes(rest)), LandingId(segment + b"\xff" * rest)


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Bucket and name of an object. Raises InvalidInput for names that clients cannot use safely.

    A bucket has no '/', so `bucket/name` is unambiguous. A name may contain '/', but no path segment '.' or '..':
    clients that map names to paths would turn it into the name of another object.
    """

    bucket: str
    name: str

    def __post_init__(self) -> None:
        _check_bucket(self.bucket)
        name = _utf8("object name", self.name, NAME_BYTES_MAX)
        if b".." in name or name == b"." or name.startswith(b"./") or b"/./" in name or name.endswith(b"/."):
            parts = name.split(b"/")
            if b".." in parts or b"." in parts:
                raise InvalidInput(
                    f"object name {self.name!r}: path segments '.' and '..' are refused; use a plain name"
                )

    @property
    def md5(self) -> bytes:
        """Return the MD5 of `bucket/name`, 16 bytes, as headers contain it. A hint, never a proof of identity."""
        return hashlib.md5(f"{self.bucket}/{self.name}".encode(), usedforsecurity=False).digest()

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}"


def require_keys(buckets: Iterable[str], names: Sequence[str]) -> None:
    """Raise InvalidInput unless ObjectKey accepts each of the buckets and each of the names. For a page of names, it
    takes a twentieth of the time of making the keys."""
    for bucket in set(buckets):
        ObjectKey(bucket, "name")
    text = "/" + "/\n/".join(names) + "/"
    with suppress(UnicodeEncodeError):
        text.encode("utf-8")
        if not ("/./" in text or "/../" in text or "\0" in text):
            names = [name for name in names if not 0 < len(name) <= NAME_BYTES_MAX // _UTF8_BYTES_MAX]
    for name in names:
        ObjectKey("bucket", name)


@lru_cache(maxsize=1024)
def _check_bucket(bucket: str) -> None:
    """Check a bucket's name. Cached, because the objects of a listing, or of a message, mostly share one bucket."""
    encoded = _utf8("bucket", bucket, BUCKET_BYTES_MAX)
    if b"/" in encoded or bucket in (".", ".."):
        raise InvalidInput(f"bucket {bucket!r}: use a name without '/', and not '.' or '..'")


def _utf8(what: str, text: str, bytes_max: int) -> bytes:
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} {text!r} is not valid UTF-8 ({error.reason}); rename it") from error
    if not encoded:
        raise InvalidInput(f"{what} is empty; give it at least one character")
    if len(encoded) > bytes_max:
        raise InvalidInput(f"{what} is {len(encoded)} bytes of UTF-8; the maximum is {bytes_max}")
    if b"\0" in encoded:
        raise InvalidInput(f"{what} {text!r} contains a NUL character; remove it")
    return encoded


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Where an object's bytes are: `length` bytes from `offset` in a block (both in bytes)."""

    block_id: BlockId
    offset: int
    length: int
