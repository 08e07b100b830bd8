"""Decodes and checks the body of a request while the engine reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nos_ec.s3.checksums import Algorithm, BodyCheck, Computed, expected_of
from nos_ec.s3.chunked import ChunkedBody, decoded_length_of, trailers_announced
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Payload, Signed

OBJECT_BYTES_MAX = 5 << 30


class Source(Protocol):
    """The bytes of a body as they arrive from the client."""

    def next_piece(self) -> bytes:
        """Return the next bytes; none at the end. Raises S3Error if the client disconnects or is too slow."""


class BodyWanted(Exception):
    """An operation reads a body that the client has not been asked to send (Expect: 100-continue)."""


class Unasked(Source):
    """Stands for such a body until it is requested."""

    def next_piece(self) -> bytes:
        """Raise BodyWanted."""
        raise BodyWanted


def length_of(request: Request, signed: Signed | None) -> int:
    """Return the length of the decoded body in bytes; OBJECT_BYTES_MAX if it is unknown. Raises MissingContentLength,
    InvalidArgument, EntityTooLarge."""
    if signed is not None and signed.payload.is_chunked:
        length = decoded_length_of(request)
    else:
        if _is_of_unknown_length(request, signed):
            return OBJECT_BYTES_MAX
        text = request.header("content-length")
        if text is None or not text.isascii() or not text.isdigit():
            raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
        length = int(text)
    if length > OBJECT_BYTES_MAX:
        raise S3Error(
            "EntityTooLarge",
            "Your proposed upload exceeds the maximum allowed size",
            ProposedSize=str(length),
            MaxSizeAllowed=str(OBJECT_BYTES_MAX),
        )
    return length


def _is_of_unknown_length(request: Request, signed: Signed | None) -> bool:
    """Return whether the body has HTTP chunks and no length. That is accepted only if its SHA-256 is signed, which
    detects a truncated body. S3 always requires a length; Ceph's RGW does not."""
    return (
        signed is not None
        and signed.payload is Payload.SHA256
        and request.header("content-length") is None
        and b"transfer-encoding" in request.header_values
    )


class CheckedBody:
    """A binary stream of the decoded body. It returns the last bytes only after length, signatures and checksums of the
    whole body were verified, so that the engine never commits a bad body."""

    def __init__(
        self,
        request: Request,
        signed: Signed | None,
        source: Source,
        at_end: Callable[[], None] = lambda: None,
        *,
        computed: Algorithm | None = None,
        of_object: bool = False,
    ) -> None:
        """`at_end` is called once the body has arrived and is verified; if it raises an error, the last bytes are not
        returned either. `computed` and `of_object` are passed to `checksums.expected_of`. Raises the S3Errors of that
        and of `length_of`."""
        self.length = length_of(request, signed)
        """Length in bytes; the maximum if the length is unknown."""
        self._is_exact = not _is_of_unknown_length(request, signed)
        self.computed: Computed | None = None
        """Set at the end."""
        self.algorithm: Algorithm | None
        """Algorithm of the checksum that is computed."""
        announced = frozenset[str]()
        self._chunked: ChunkedBody | None = None
        if signed is not None:
            announced = trailers_announced(request, signed.payload)
            if signed.payload.is_chunked:
                self._chunked = ChunkedBody(signed, self.length, announced)
        sha256 = None if signed is None else signed.sha256
        expected = expected_of(request, announced, sha256, computed=computed, of_object=of_object)
        self.algorithm = expected.algorithm
        self._check = BodyCheck(expected)
        self._source = source
        self._at_end = at_end
        self._taken = 0
        self._buffer = bytearray()

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`. Raises S3Error."""
        while self.computed is None and len(self._buffer) <= size:
            self._fetch()
        found = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return found

    def _fetch(self) -> None:
        raw = self._source.next_piece()
        if not raw:
            self._finish()
            return
        for piece in [raw] if self._chunked is None else self._chunked.feed(raw):
            self._taken += len(piece)
            if self._taken > self.length:
                raise S3Error("IncompleteBody", "The body is longer than its declared length.")
            self._check.update(piece)
            self._buffer += piece

    def _finish(self) -> None:
        trailers = {} if self._chunked is None else self._chunked.finish()
        if self._is_exact and self._taken != self.length:
            raise S3Error("IncompleteBody", f"The body has {self._taken} bytes instead of {self.length}.")
        computed = self._check.finish(trailers)
        self._at_end()
        self.computed = computed
