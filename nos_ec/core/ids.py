"""Identifiers: object keys, block and landing ids, extents."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NewType

from nos_ec.core.errors import InvalidInput

BUCKET_BYTES_MAX = 255
NAME_BYTES_MAX = 1024
"""Bytes of UTF-8; the same limit as an S3 object key."""

BlockId = NewType("BlockId", bytes)
"""16 bytes, unique forever; blocks are never renamed and ids never reused."""

LandingId = NewType("LandingId", bytes)
"""16 bytes, unique forever; names one landing copy."""


_TIME_BYTES = 6
_ID_BYTES = 16


def timed_id(now_ms: int, rest: bytes) -> bytes:
    """An id that begins with its time, so that ids of about the same time lie together in an index (as in a ULID).

    now_ms: Unix milliseconds. rest: 10 random bytes.
    """
    return now_ms.to_bytes(_TIME_BYTES, "big") + rest


def time_of(timed: bytes) -> int:
    """The time that an id of `timed_id` begins with, in Unix milliseconds."""
    return int.from_bytes(timed[:_TIME_BYTES], "big")


def timed_ids_between(first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
    """The first and the last id that `timed_id` makes from `first_ms` to `last_ms`, both included."""
    rest = _ID_BYTES - _TIME_BYTES
    return timed_id(max(0, first_ms), bytes(rest)), timed_id(last_ms, b"\xff" * rest)


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Bucket and name of an object. Raises InvalidInput for names that clients cannot use safely.

    A bucket has no '/', so `bucket/name` is unambiguous. A name may contain '/', but no path segment '.' or '..':
    clients that map names to paths would turn it into the name of another object.
    """

    bucket: str
    name: str

    def __post_init__(self) -> None:
        bucket = _utf8("bucket", self.bucket, BUCKET_BYTES_MAX)
        name = _utf8("object name", self.name, NAME_BYTES_MAX)
        if b"/" in bucket or self.bucket in (".", ".."):
            raise InvalidInput(f"bucket {self.bucket!r}: use a name without '/', and not '.' or '..'")
        if b".." in name or name == b"." or name.startswith(b"./") or b"/./" in name or name.endswith(b"/."):
            parts = name.split(b"/")
            if b".." in parts or b"." in parts:
                raise InvalidInput(
                    f"object name {self.name!r}: path segments '.' and '..' are refused; use a plain name"
                )

    @property
    def md5(self) -> bytes:
        """16 bytes: the MD5 of `bucket/name`, as headers carry it. A hint, never a proof of identity."""
        return hashlib.md5(f"{self.bucket}/{self.name}".encode(), usedforsecurity=False).digest()

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}"


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
    """Where an object's bytes are: `length` bytes from `offset` on in a block (both in bytes)."""

    block_id: BlockId
    offset: int
    length: int
