"""Checksums of bodies, computed while a body arrives and compared at its end with the checksums in the request.

Sources: "Checking object integrity" of the S3 user guide, and PutObject, CreateMultipartUpload and
CompleteMultipartUpload of the S3 API reference; RFC 1864 for Content-MD5. A checksum of an unknown algorithm is
refused, because ignoring it would acknowledge bytes that were not checked.

The CRCs come from one library (docs/adr/0029). XXHASH3 is the 64-bit variant of XXH3; checksums of XXHash are
big-endian, in the canonical form of the library.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, Protocol

import xxhash
from anycrc import Model

from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request

Piece = bytes | memoryview


class Algorithm(Enum):
    """The algorithms of `x-amz-checksum-*`, by the names that S3 gives them."""

    CRC32 = "CRC32"
    CRC32C = "CRC32C"
    CRC64NVME = "CRC64NVME"
    MD5 = "MD5"
    SHA1 = "SHA1"
    SHA256 = "SHA256"
    SHA512 = "SHA512"
    XXHASH64 = "XXHASH64"
    XXHASH3 = "XXHASH3"
    XXHASH128 = "XXHASH128"

    @property
    def header(self) -> str:
        """The name of the header or trailer with this checksum."""
        return "x-amz-checksum-" + self.value.lower()

    @property
    def size(self) -> int:
        """The size of a checksum in bytes."""
        return _SIZES[self]


class ChecksumType(Enum):
    """Whether the checksum of a multipart upload covers the whole object, or the checksums of its parts."""

    FULL_OBJECT = "FULL_OBJECT"
    COMPOSITE = "COMPOSITE"


_SIZES = {
    Algorithm.CRC32: 4,
    Algorithm.CRC32C: 4,
    Algorithm.CRC64NVME: 8,
    Algorithm.MD5: 16,
    Algorithm.SHA1: 20,
    Algorithm.SHA256: 32,
    Algorithm.SHA512: 64,
    Algorithm.XXHASH64: 8,
    Algorithm.XXHASH3: 8,
    Algorithm.XXHASH128: 16,
}
_MODELS = {
    Algorithm.CRC32: Model("CRC32"),
    Algorithm.CRC32C: Model("CRC32C"),
    Algorithm.CRC64NVME: Model("CRC64-NVME"),
}
_XXHASHES: dict[Algorithm, Callable[[], Digest]] = {
    Algorithm.XXHASH64: xxhash.xxh64,
    Algorithm.XXHASH3: xxhash.xxh3_64,
    Algorithm.XXHASH128: xxhash.xxh3_128,
}
_BY_HEADER = {algorithm.header: algorithm for algorithm in Algorithm}
_OTHER_HEADERS = {"x-amz-checksum-type", "x-amz-checksum-algorithm", "x-amz-checksum-mode"}


class Digest(Protocol):
    """A checksum that is being computed, with the interface of hashlib's objects."""

    def update(self, data: Piece, /) -> None:
        """Add the next bytes."""

    def digest(self) -> bytes:
        """Return the checksum of all bytes so far, big-endian as it is sent."""


class _Crc:
    def __init__(self, algorithm: Algorithm) -> None:
        self._calc: Callable[[Piece, int], int] = _MODELS[algorithm].calc
        self._size = algorithm.size
        self._value = 0

    def update(self, data: Piece, /) -> None:
        self._value = self._calc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


def crc64nvme(data: bytes) -> str:
    """Return the CRC64NVME of bytes in base64."""
    return in_base64(_MODELS[Algorithm.CRC64NVME].calc(data).to_bytes(8, "big"))


def new_digest(algorithm: Algorithm) -> Digest:
    """Return a digest of no bytes, to which bytes are added by `update`."""
    if algorithm in _MODELS:
        return _Crc(algorithm)
    if algorithm in _XXHASHES:
        return _XXHASHES[algorithm]()
    return hashlib.new(algorithm.value, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Expected:
    """The checksums that a request gives for its body. `algorithm` is the algorithm to compute and keep, `value` the
    checksum that the request gives for it: None if that follows in a trailer, or if the request gives none (`is_given`
    is False). `sha256` is hexadecimal and comes from the signature, `md5` from Content-MD5."""

    algorithm: Algorithm | None = None
    value: bytes | None = None
    sha256: str | None = None
    md5: bytes | None = None
    is_given: bool = True


@dataclass(frozen=True, slots=True)
class Computed:
    """The checksum of a whole body. `algorithm` and `checksum` are both None if no checksum had to be computed."""

    algorithm: Algorithm | None
    checksum: bytes | None


def expected_of(
    request: Request,
    announced: frozenset[str] = frozenset(),
    sha256: str | None = None,
    *,
    computed: Algorithm | None = None,
    of_object: bool = False,
) -> Expected:
    """Read the checksums of a body from the request. announced: the trailers in `x-amz-trailer`. sha256: the digest
    from the signature. computed: the algorithm to compute if the request names none. of_object: the checksum in the
    headers belongs to an object, as in CompleteMultipartUpload, and not to the body.

    Raises S3Error: InvalidDigest (a bad Content-MD5), InvalidRequest (a second checksum, an unknown trailer or
    algorithm, an invalid value), BadDigest (`x-amz-sdk-checksum-algorithm` names another algorithm)."""
    content_md5 = request.header("content-md5")
    md5 = None
    if content_md5 is not None:
        md5 = decoded(content_md5, 16)
        if md5 is None:
            raise S3Error("InvalidDigest", "Content-MD5 must be 16 bytes in base64.")
    found = None if of_object else checksum_of(request)
    others = announced - _BY_HEADER.keys()
    for name in sorted(others):
        _refuse(name, "The trailer")
    trailers = [_BY_HEADER[name] for name in announced]
    if len(trailers) + (found is not None) > 1:
        raise _several()
    algorithm, value = found or (trailers[0] if trailers else None, None)
    named = request.header("x-amz-sdk-checksum-algorithm")
    if named is not None:
        wanted = algorithm_named(named)
        if algorithm is None:
            raise S3Error(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm was sent, but no x-amz-checksum- header or trailer with a checksum.",
            )
        if algorithm is not wanted:
            raise S3Error("BadDigest", f"The checksum is {algorithm.value}, but the header names {wanted.value}.")
    if algorithm is None:
        return Expected(computed, None, sha256, md5, is_given=False)
    return Expected(algorithm, value, sha256, md5)


def checksum_of(request: Request) -> tuple[Algorithm, bytes] | None:
    """Return the algorithm and the checksum of the body from the headers, or None if they have none. Raises S3Error as
    `expected_of` does."""
    found = _sent(request)
    return None if found is None else (found[0], _require(*found, found[0].header + " header"))


def object_checksum_of(request: Request) -> tuple[Algorithm, str] | None:
    """Return the algorithm and the checksum of the object from the headers of CompleteMultipartUpload, or None if they
    have none. The checksum is the text as sent; a composite checksum may end with `-N`. Raises S3Error like
    `expected_of`."""
    found = _sent(request)
    if found is not None:
        checksum, dash, parts = found[1].partition("-")
        valid = not dash or (parts.isascii() and parts.isdigit())
        _require(found[0], checksum if valid else "", found[0].header + " header")
    return found


def _sent(request: Request) -> tuple[Algorithm, str] | None:
    """Return the algorithm and the text of the header that has a checksum, or None. Raises InvalidRequest if several
    headers have one, or for an unknown algorithm."""
    found = None
    for raw_name in request.header_values:
        name = raw_name.decode("latin-1")
        if not name.startswith("x-amz-checksum-") or name in _OTHER_HEADERS:
            continue
        algorithm = _BY_HEADER.get(name) or _refuse(name, "The header")
        if found:
            raise _several()
        found = (algorithm, request.header(name) or "")
    return found


def _require(algorithm: Algorithm, text: str, where: str) -> bytes:
    """Decode a checksum of this algorithm. Raises InvalidRequest for any other text."""
    value = decoded(text, algorithm.size)
    if value is None:
        raise S3Error("InvalidRequest", f"Value for {where} is invalid.")
    return value


def algorithm_named(name: str) -> Algorithm:
    """Return the algorithm with this S3 name, in upper or lower case. Raises InvalidRequest for an unknown name."""
    try:
        return Algorithm(name.upper())
    except ValueError:
        _refuse("x-amz-checksum-" + name.lower(), "The checksum algorithm of")


def type_of_upload(algorithm: Algorithm, name: str | None) -> ChecksumType:
    """Return the checksum type of a multipart upload. name: the value of `x-amz-checksum-type`. Without it, a CRC64NVME
    covers the whole object, and other checksums the parts. Raises InvalidRequest for types that S3 does not have: a
    CRC64NVME of parts, and an MD5, SHA or XXHash of the whole object, which cannot be computed from the checksums of
    its parts."""
    only = {Algorithm.CRC64NVME: ChecksumType.FULL_OBJECT}.get(algorithm)
    if algorithm not in _MODELS:
        only = ChecksumType.COMPOSITE
    if name is None:
        return only or ChecksumType.COMPOSITE
    try:
        wanted = ChecksumType(name.upper())
    except ValueError:
        raise S3Error("InvalidRequest", "x-amz-checksum-type must be FULL_OBJECT or COMPOSITE.") from None
    if only not in (None, wanted):
        raise S3Error("InvalidRequest", f"The {wanted.value} checksum type cannot be used with {algorithm.value}.")
    return wanted


def joined(algorithm: Algorithm, parts: Sequence[tuple[bytes, int]]) -> bytes:
    """Return the CRC of a whole object, computed from the CRCs of its parts. parts: (CRC, size in bytes) of each part,
    in order."""
    combine: Callable[[int, int, int], int] = _MODELS[algorithm].combine
    value = 0
    for checksum, size in parts:
        value = combine(value, int.from_bytes(checksum, "big"), size)
    return value.to_bytes(algorithm.size, "big")


def composite(algorithm: Algorithm, checksums: Sequence[bytes]) -> bytes:
    """Return the checksum of the checksums of an upload's parts, in order. S3 writes it in base64, followed by `-` and
    the number of parts."""
    digest = new_digest(algorithm)
    digest.update(b"".join(checksums))
    return digest.digest()


def in_base64(checksum: bytes) -> str:
    """Return the checksum in base64, as headers and answers contain it."""
    return b64encode(checksum).decode()


class BodyCheck:
    """Computes the checksums that `expected` needs, piece by piece."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._md5 = None if expected.md5 is None else hashlib.md5(usedforsecurity=False)
        self._sha256 = hashlib.sha256() if expected.sha256 is not None else None
        self._checksum: Digest | None = None
        if expected.algorithm is not None:
            # The signature and the checksum share one SHA-256.
            shared = self._sha256 if expected.algorithm is Algorithm.SHA256 else None
            self._checksum = shared or new_digest(expected.algorithm)

    def update(self, piece: Piece) -> None:
        """Add the next bytes, decoded."""
        if self._md5 is not None:
            self._md5.update(piece)
        if self._sha256 is not None:
            self._sha256.update(piece)
        if self._checksum is not None and self._checksum is not self._sha256:
            self._checksum.update(piece)

    def finish(self, trailers: Mapping[str, str]) -> Computed:
        """Compare the checksums at the end of the body. trailers: by name in lower case. Raises S3Error: BadDigest,
        InvalidRequest (a trailer that is not a checksum), XAmzContentSHA256Mismatch."""
        expected = self._expected
        if self._sha256 is not None and not hmac.compare_digest(self._sha256.hexdigest(), expected.sha256 or ""):
            raise S3Error(
                "XAmzContentSHA256Mismatch",
                "The provided x-amz-content-sha256 header does not match what was computed.",
                ClientComputedContentSHA256=expected.sha256 or "",
                S3ComputedContentSHA256=self._sha256.hexdigest(),
            )
        if self._md5 is not None and self._md5.digest() != expected.md5:
            raise S3Error(
                "BadDigest",
                "The Content-MD5 you specified did not match what we received.",
                ExpectedDigest=in_base64(expected.md5 or b""),
                CalculatedDigest=in_base64(self._md5.digest()),
            )
        if expected.algorithm is None or self._checksum is None:
            return Computed(None, None)
        value, computed = expected.value, self._checksum.digest()
        if not expected.is_given:
            return Computed(expected.algorithm, computed)
        if value is None:
            header = expected.algorithm.header
            value = _require(expected.algorithm, trailers[header], header + " trailing header")
        if value != computed:
            name = expected.algorithm.value
            raise S3Error("BadDigest", f"The {name} you specified did not match the calculated checksum.")
        return Computed(expected.algorithm, computed)


def decoded(text: str, size: int) -> bytes | None:
    """Decode a checksum from base64. Returns None if the text is not exactly `size` bytes in base64."""
    try:
        value = b64decode(text, validate=True)
    except (BadBase64, ValueError):
        return None
    return value if len(value) == size and in_base64(value) == text else None


def _several() -> S3Error:
    return S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header or trailer; several were sent.")


def _refuse(name: str, what: str) -> NoReturn:
    """Raise InvalidRequest for a header, trailer or algorithm that the gateway does not know."""
    known = ", ".join([algorithm.value for algorithm in Algorithm])
    raise S3Error("InvalidRequest", f"{what} {name} is not supported. Supported checksum algorithms: {known}.")
