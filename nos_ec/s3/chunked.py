"""Bodies in aws-chunked encoding, decoded piece by piece as they arrive.

    chunk     size in hexadecimal [;chunk-signature=64 digits] CRLF data CRLF
    body      chunks of data, then one of size 0, which is `0[;chunk-signature=...]` CRLF
    end       CRLF; or trailers: lines `name:value` CRLF, [x-amz-trailer-signature:64 digits CRLF,] then CRLF

Sources, of the S3 API reference: "Transferring Payload in Multiple Chunks" (sigv4-streaming) and "Including Trailing
Headers" (sigv4-streaming-trailers). The example there ends a trailer with LF and has a blank line before its signature;
both forms are accepted. minio-go also ends an unsigned trailer with LF, and then sends an additional blank line. S3
answers IncompleteBody for every error of the framing.

The bytes of a chunk are returned before its signature is verified, so that a chunk may have any size. Therefore the
decoded bytes must not be used until `finish` has returned.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from enum import Enum, auto

from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request, text_of
from nos_ec.s3.signing import Payload, Signed, sign

CHUNK_SIZE_MIN = 8192
"""Least bytes of a signed chunk, except for the last chunk with data."""
LINE_SIZE_MAX = 1024
TRAILERS_SIZE_MAX = 4096
LENGTH_MAX = 1 << 53
_EMPTY = hashlib.sha256().hexdigest()
_SIGNED_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16});chunk-signature=([0-9a-f]{64})\r\n")
_UNSIGNED_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})\r\n")
_TRAILER = re.compile(rb"([0-9A-Za-z-]+):([\x20-\x7e]*)\r?\n")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class _State(Enum):
    CHUNK = auto()  # a line with the size of a chunk comes next
    DATA = auto()
    END_OF_DATA = auto()  # CRLF
    TRAILERS = auto()
    END = auto()  # CRLF
    DONE = auto()
    FAILED = auto()


def decoded_length_of(request: Request) -> int:
    """Return the size of the decoded body in bytes. Raises MissingContentLength or InvalidArgument."""
    text = request.header("x-amz-decoded-content-length")
    if text is None:
        raise S3Error("MissingContentLength", "A body in aws-chunked encoding needs x-amz-decoded-content-length.")
    if not re.fullmatch("[0-9]{1,16}", text) or int(text) > LENGTH_MAX:
        raise S3Error("InvalidArgument", "x-amz-decoded-content-length must be a number of bytes.")
    return int(text)


def trailers_announced(request: Request, payload: Payload) -> frozenset[str]:
    """Return the names, in lower case, of the trailers that `x-amz-trailer` announces. Raises InvalidRequest if a body
    of this `payload` type cannot have trailers."""
    names = frozenset(name.strip() for name in (request.header("x-amz-trailer") or "").lower().split(",")) - {""}
    if names and not payload.has_trailers:
        raise S3Error("InvalidRequest", "x-amz-trailer was sent, but x-amz-content-sha256 does not say -TRAILER.")
    return names


def content_encoding_of(request: Request, payload: Payload) -> str | None:
    """Return the Content-Encoding of the object: the header as it was sent, without `aws-chunked`, which belongs to the
    transfer. Raises InvalidRequest if a decoded length shows that the body is framed, but x-amz-content-sha256 does not
    declare it: the framing would become part of the object."""
    sent = text_of(b", ".join(request.header_values.get(b"content-encoding", [])))
    codings = [coding for part in sent.split(",") if (coding := part.strip(" \t"))]
    kept = [coding for coding in codings if coding.lower() != "aws-chunked"]
    if len(kept) < len(codings) and not payload.is_chunked and b"x-amz-decoded-content-length" in request.header_values:
        raise S3Error(
            "InvalidRequest", "Content-Encoding is aws-chunked, but x-amz-content-sha256 does not say STREAMING-."
        )
    return (sent if kept == codings else ", ".join(kept)) if kept else None


class ChunkedBody:
    """Decodes one body. Buffers at most LINE_SIZE_MAX + TRAILERS_SIZE_MAX bytes, whatever is sent."""

    def __init__(self, signed: Signed, decoded_length: int, announced: Collection[str]) -> None:
        """signed: the verified signature of the request. decoded_length: in bytes. announced: names of the trailers."""
        assert signed.payload.is_chunked
        self._signed = signed
        self._with_signatures = signed.payload is not Payload.CHUNKED_UNSIGNED_TRAILER
        self._with_trailers = signed.payload.has_trailers
        self._announced = frozenset(announced)
        self._state = _State.CHUNK
        self._line = b""
        self._left_in_body = decoded_length
        self._left_in_chunk = 0
        self._chunk_was_small = False
        self._sha256 = hashlib.sha256()
        self._claimed = ""
        self._previous = signed.signature
        self._trailers: dict[str, str] = {}
        self._trailer_bytes = 0
        self._blank_before_signature = False
        self._blank_may_follow = False
        """Whether a blank line may follow the end, as minio-go sends it."""

    def feed(self, data: bytes) -> list[memoryview]:
        """Decode the next bytes of the body. Returns views of `data`. Raises S3Error: IncompleteBody,
        MalformedTrailerError, InvalidChunkSizeError, SignatureDoesNotMatch; after that, feed nothing more."""
        try:
            return self._fed(data)
        except S3Error:
            self._state = _State.FAILED
            raise

    def finish(self) -> dict[str, str]:
        """Return the trailers by name after the whole body was fed. Raises IncompleteBody if it was not."""
        if self._state is not _State.DONE or self._line:
            raise _incomplete("It ended too early.")
        return self._trailers

    def _fed(self, data: bytes) -> list[memoryview]:
        pieces = []
        view, at = memoryview(data), 0
        while at < len(data):
            if self._state is _State.DATA:
                piece = view[at : at + self._left_in_chunk]
                pieces.append(piece)
                at += len(piece)
                self._left_in_chunk -= len(piece)
                if self._with_signatures:
                    self._sha256.update(piece)
                if not self._left_in_chunk:
                    self._check_chunk()
                    self._state = _State.END_OF_DATA
            else:
                if self._state is _State.DONE and not self._blank_may_follow:
                    raise _incomplete("Something follows its end.")
                line_end = data.find(b"\n", at) + 1
                end = line_end or len(data)
                if len(self._line) + end - at > LINE_SIZE_MAX:
                    raise _incomplete(f"It has a line of more than {LINE_SIZE_MAX} bytes.")
                self._line += data[at:end]
                at = end
                if line_end:
                    line, self._line = self._line, b""
                    self._take(line)
        return pieces

    def _take(self, line: bytes) -> None:
        if self._state is _State.CHUNK:
            self._take_chunk(line)
        elif self._state is _State.TRAILERS:
            self._take_trailer(line)
        elif self._state in (_State.END_OF_DATA, _State.END) and line == b"\r\n":
            self._state = _State.CHUNK if self._state is _State.END_OF_DATA else _State.DONE
        elif self._state is _State.DONE and line == b"\r\n":
            self._blank_may_follow = False
        else:
            raise _incomplete("A chunk is longer than it says, or something follows the last one.")

    def _take_chunk(self, line: bytes) -> None:
        match = (_SIGNED_CHUNK if self._with_signatures else _UNSIGNED_CHUNK).fullmatch(line)
        if not match:
            raise _incomplete("It is not in aws-chunked encoding.")
        size = int(match[1], 16)
        if size > self._left_in_body:
            raise _incomplete("It is longer than x-amz-decoded-content-length says.")
        if self._with_signatures:
            self._claimed = match[2].decode()
        if size:
            if self._with_signatures and self._chunk_was_small:
                raise S3Error(
                    "InvalidChunkSizeError", f"Only the last chunk may have less than {CHUNK_SIZE_MIN} bytes."
                )
            self._chunk_was_small = size < CHUNK_SIZE_MIN
            self._left_in_body -= size
            self._left_in_chunk = size
            self._state = _State.DATA
            return
        if self._left_in_body:
            raise _incomplete("It is shorter than x-amz-decoded-content-length says.")
        self._check_chunk()
        self._state = _State.TRAILERS if self._with_trailers else _State.END

    def _check_chunk(self) -> None:
        if self._with_signatures:
            kind = f"AWS4-HMAC-SHA256-PAYLOAD\n{self._signed.date}\n{self._signed.scope}"
            self._check_signature(f"{kind}\n{self._previous}\n{_EMPTY}\n{self._sha256.hexdigest()}", self._claimed)
            self._sha256 = hashlib.sha256()

    def _check_signature(self, to_sign: str, claimed: str) -> None:
        if not hmac.compare_digest(sign(self._signed.signing_key, to_sign), claimed):
            raise S3Error(
                "SignatureDoesNotMatch",
                "The signature of a chunk is not the one that this store computed.",
                AWSAccessKeyId=self._signed.access_key,
                StringToSign=to_sign,
                SignatureProvided=claimed,
            )
        self._previous = claimed

    def _take_trailer(self, line: bytes) -> None:
        signed_now = _TRAILER_SIGNATURE in self._trailers
        if line == b"\r\n":
            if self._with_signatures and not signed_now:
                if self._blank_before_signature:
                    raise _malformed_trailer("Its signature is missing.")
                self._blank_before_signature = True
            else:
                self._end_trailers()
            return
        match = _TRAILER.fullmatch(line)
        self._trailer_bytes += len(line)
        if not match or signed_now or self._trailer_bytes > TRAILERS_SIZE_MAX:
            raise _malformed_trailer("A line of it is wrong.")
        name = match[1].decode().lower()
        if name in self._trailers or (name not in self._announced and not self._is_signature(name)):
            raise _malformed_trailer(f"{name} was not announced, or was sent twice.")
        self._trailers[name] = match[2].decode().strip(" ")
        self._blank_may_follow = not self._with_signatures and not line.endswith(b"\r\n")

    def _is_signature(self, name: str) -> bool:
        return self._with_signatures and name == _TRAILER_SIGNATURE

    def _end_trailers(self) -> None:
        claimed = self._trailers.pop(_TRAILER_SIGNATURE, "")
        if self._trailers.keys() != self._announced:
            raise _malformed_trailer("A trailer that x-amz-trailer announces is missing.")
        if self._with_signatures:
            canonical = "".join([f"{name}:{value}\n" for name, value in sorted(self._trailers.items())])
            digest = hashlib.sha256(canonical.encode()).hexdigest()
            kind = f"AWS4-HMAC-SHA256-TRAILER\n{self._signed.date}\n{self._signed.scope}"
            self._check_signature(f"{kind}\n{self._previous}\n{digest}", claimed)
        self._state = _State.DONE


def _incomplete(reason: str) -> S3Error:
    return S3Error("IncompleteBody", f"The body of the request is incomplete or malformed. {reason}")


def _malformed_trailer(reason: str) -> S3Error:
    return S3Error("MalformedTrailerError", f"The trailer of the request is malformed. {reason}")
