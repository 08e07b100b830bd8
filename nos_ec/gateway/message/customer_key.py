"""The key that a customer sends with a request, and that is never stored (SSE-C).

Source: "Using server-side encryption with customer-provided keys (SSE-C)" of the S3 user guide.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field

from nos_ec.engine.encryption.ciphers import KEY_BYTES
from nos_ec.s3.documents import AES256
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import Request

_PREFIX = "x-amz-server-side-encryption-customer-"
OF_SOURCE = "x-amz-copy-source-"
"""What the names of the headers with the key of the source of a copy begin with."""
_WORDS = "algorithm", "key", "key-md5"
_NAMES = frozenset(f"{_PREFIX}{word}".encode() for word in _WORDS)
_NAMES_OF_SOURCE = frozenset(f"{OF_SOURCE}{_PREFIX.removeprefix('x-amz-')}{word}".encode() for word in _WORDS)


@dataclass(frozen=True, slots=True)
class CustomerKey:
    """A key of KEY_BYTES, and its MD5 in base64, as the client sent it."""

    key: bytes = field(repr=False)
    md5: str

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of an answer about an object that is encrypted with this key."""
        return {f"{_PREFIX}algorithm": AES256, f"{_PREFIX}key-md5": self.md5}


def customer_key(request: Request, *, of_source: bool = False) -> CustomerKey | None:
    """Return the key in the headers of a request, or with `of_source` the key of the source of a copy; None without
    one. No error has the key. Raises InvalidArgument, InvalidEncryptionAlgorithmError, and InvalidRequest for a request
    over HTTP."""
    if (_NAMES_OF_SOURCE if of_source else _NAMES).isdisjoint(request.header_values):
        return None
    prefix = OF_SOURCE + _PREFIX.removeprefix("x-amz-") if of_source else _PREFIX
    algorithm, text, md5 = (request.header(f"{prefix}{word}") for word in _WORDS)
    if request.scheme != "https":
        raise S3Error(
            "InvalidRequest",
            "Requests with a key of the customer must be made over HTTPS. This one came over HTTP, so the key may have"
            " been seen; do not use it any more.",
        )
    if algorithm is None:
        raise invalid_argument("A key of the customer needs the header with its algorithm.", f"{prefix}algorithm")
    if algorithm != AES256:
        raise S3Error(
            "InvalidEncryptionAlgorithmError",
            f"The encryption algorithm of a key of the customer must be {AES256}.",
        )
    if text is None or md5 is None:
        raise invalid_argument("The key of the customer, or its MD5, is missing.", f"{prefix}key")
    key = _decoded(text)
    if len(key) != KEY_BYTES:
        raise invalid_argument("The key of the customer must be 32 bytes, in base64.", f"{prefix}key")
    if _decoded(md5) != hashlib.md5(key, usedforsecurity=False).digest():
        raise invalid_argument("The MD5 of the key of the customer is not the one that was sent.", f"{prefix}key-md5")
    return CustomerKey(key, md5)


def refuse_customer_key(request: Request) -> None:
    """Raise NotImplemented for a request with a key of the customer."""
    if not _NAMES.isdisjoint(request.header_values):
        raise S3Error(
            "NotImplemented",
            "Forms cannot use keys of customers. PUT the object instead.",
        )


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
