"""A request as it was sent: nothing decoded, nothing normalised, because exactly this is what clients sign."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_to_bytes

from nos_ec.s3.errors import S3Error

TARGET_SIZE_MAX = 16 << 10
PARAMETERS_MAX = 200
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_TOKEN = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True)
class Request:
    """raw_path and raw_query: the two sides of the first `?` of the request's target. headers: (name in lower case,
    value), in the order sent, repeated ones repeated; as an ASGI server gives them. Read what may be sent once by
    `header` and `parameter`, which refuse repeats. scheme: `http` or `https`, by which it has come.

    Raises InvalidURI for a target that no client of S3 needs: each of its parameters is decoded before anyone knows
    who has sent it."""

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    scheme: str = "http"
    """`http` or `https`, as the client has asked."""

    def __post_init__(self) -> None:
        if len(self.raw_path) + len(self.raw_query) > TARGET_SIZE_MAX:
            raise S3Error("InvalidURI", f"The path and query have more than {TARGET_SIZE_MAX} bytes.")
        if self.raw_query.count(b"&") >= PARAMETERS_MAX:
            raise S3Error("InvalidURI", f"The query has more than {PARAMETERS_MAX} parameters.")

    @property
    def base(self) -> str:
        """Scheme and host of the server, as the client has named it."""
        return f"{self.scheme}://{self.header('host') or ''}"

    @cached_property
    def header_values(self) -> dict[bytes, list[bytes]]:
        """Each header's values in the order sent."""
        values: dict[bytes, list[bytes]] = {}
        for name, value in self.headers:
            values.setdefault(name, []).append(value)
        return values

    def header(self, name: str) -> str | None:
        """The value of a header that may be sent once, without the whitespace around it. Bytes that are not UTF-8 come
        as Latin-1. Raises InvalidRequest if it was sent twice, since a proxy in front may have seen the other one."""
        values = self.header_values.get(name.encode())
        if values is None:
            return None
        if len(values) > 1:
            raise S3Error("InvalidRequest", f"The header {name} was sent more than once.")
        return text_of(values[0].strip(b" \t"))

    @cached_property
    def query(self) -> dict[str, list[str]]:
        """The values of each parameter, decoded, in the order sent. `+` is a space, as in HTML forms. Raises InvalidURI
        for what is not UTF-8, and as `require_encoded`."""
        values: dict[str, list[str]] = {}
        require_encoded(self.raw_query)
        try:
            for name, value in decoded_query(self.raw_query):
                values.setdefault(name.decode(), []).append(value.decode())
        except UnicodeDecodeError:
            raise S3Error("InvalidURI", "The query is not UTF-8.") from None
        return values

    def parameter(self, name: str) -> str | None:
        """The value of a parameter that may be sent once. Raises InvalidArgument if it was sent twice: a signature does
        not cover the order of equal names."""
        values = self.query.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise S3Error("InvalidArgument", f"The query parameter {name} was sent more than once.", ArgumentName=name)
        return values[0]


def is_encoded(text: str) -> bool:
    """Return whether each `%` begins an encoded byte. Otherwise decoders disagree about what is meant."""
    return _STRAY_PERCENT.search(text) is None


def require_encoded(raw: bytes) -> None:
    """Raises InvalidURI unless each `%` of a path or query begins an encoded byte."""
    if not is_encoded(raw.decode("latin-1")):
        raise S3Error("InvalidURI", "Couldn't parse the specified URI: a % is not followed by two hexadecimal digits.")


def text_of(value: bytes) -> str:
    """What the bytes of a header say: UTF-8, or else Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def is_header_name(name: str) -> bool:
    """Whether a header may have this name, in lower case (RFC 9110, section 5.6.2)."""
    return _TOKEN.fullmatch(name) is not None


def require_header_name(name: str) -> None:
    """Raises InvalidArgument unless a header may have this name (RFC 9110, section 5.6.2), in lower case. For names
    that did not come as those of headers: the object would have a header that no answer can tell."""
    if not is_header_name(name):
        raise S3Error("InvalidArgument", f"{name!r} cannot be the name of a header.", ArgumentName=name)


def require_header_value(name: str, value: str) -> None:
    """Raises InvalidArgument unless a header may have this value (RFC 9110, section 5.5), for one that came otherwise.
    What is signed has a line for each header, so a line end would make two of one."""
    if _CONTROL.search(value):
        raise S3Error("InvalidArgument", f"{name} has a control character.", ArgumentName=name)


def decoded_query(raw_query: bytes) -> list[tuple[bytes, bytes]]:
    """(name, value) of each parameter, in the order sent. One without `=` has an empty value; empty ones are no
    parameters."""
    return [(name, value) for name, _, value in query_parts(raw_query)]


def query_parts(raw_query: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """(name, `=` or nothing, value) of each parameter, otherwise as `decoded_query`."""
    found = []
    for pair in raw_query.replace(b"+", b" ").split(b"&"):
        if pair:
            name, equals, value = pair.partition(b"=")
            found.append((unquote_to_bytes(name), equals, unquote_to_bytes(value)))
    return found
