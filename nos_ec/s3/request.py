"""A request as it was sent, neither decoded nor normalised, because clients sign exactly these bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_to_bytes

from nos_ec.s3.errors import S3Error, invalid_argument

TARGET_SIZE_MAX = 16 << 10
PARAMETERS_MAX = 200
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_TOKEN = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True)
class Request:
    """An HTTP request. `raw_path` and `raw_query` are the parts of the target before and after the first `?`. `headers`
    are pairs (name in lower case, value) in the order sent, with repeats, as an ASGI server passes them. Read headers
    and parameters that may be sent only once with `header` and `parameter`, which refuse repeats.

    Raises InvalidURI for a target larger than S3 clients need, because all parameters are decoded before the sender is
    authenticated."""

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    scheme: str = "http"
    """`http` or `https`: the scheme that the client used."""
    client: str | None = None
    """The address of the client; None if it is not known."""

    def __post_init__(self) -> None:
        if len(self.raw_path) + len(self.raw_query) > TARGET_SIZE_MAX:
            raise S3Error("InvalidURI", f"The path and query have more than {TARGET_SIZE_MAX} bytes.")
        if self.raw_query.count(b"&") >= PARAMETERS_MAX:
            raise S3Error("InvalidURI", f"The query has more than {PARAMETERS_MAX} parameters.")

    @property
    def base(self) -> str:
        """The scheme and host of the server, as the client named it."""
        return f"{self.scheme}://{self.header('host') or ''}"

    @cached_property
    def header_values(self) -> dict[bytes, list[bytes]]:
        """The values of each header, in the order sent."""
        values: dict[bytes, list[bytes]] = {}
        for name, value in self.headers:
            values.setdefault(name, []).append(value)
        return values

    def header(self, name: str) -> str | None:
        """Return the value of a header that may be sent once, without surrounding whitespace. A value that is not UTF-8
        is decoded as Latin-1. Raises InvalidRequest if it was sent twice, since a proxy may have used the other one."""
        values = self.header_values.get(name.encode())
        if values is None:
            return None
        if len(values) > 1:
            raise S3Error("InvalidRequest", f"The header {name} was sent more than once.")
        return text_of(values[0].strip(b" \t"))

    @cached_property
    def query(self) -> dict[str, list[str]]:
        """The decoded values of each parameter, in the order sent. `+` is a space, as in HTML forms. Raises InvalidURI
        if it is not UTF-8, or not properly encoded (see `require_encoded`)."""
        values: dict[str, list[str]] = {}
        require_encoded(self.raw_query)
        try:
            for name, value in decoded_query(self.raw_query):
                values.setdefault(name.decode(), []).append(value.decode())
        except UnicodeDecodeError:
            raise S3Error("InvalidURI", "The query is not UTF-8.") from None
        return values

    def parameter(self, name: str) -> str | None:
        """Return the value of a parameter that may be sent once. Raises InvalidArgument if it was sent twice, because a
        signature does not cover the order of equal names."""
        values = self.query.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise invalid_argument(f"The query parameter {name} was sent more than once.", name)
        return values[0]


def is_encoded(text: str) -> bool:
    """Return whether each `%` begins an encoded byte. Otherwise decoders disagree about the meaning."""
    return _STRAY_PERCENT.search(text) is None


def require_encoded(raw: bytes) -> None:
    """Raise InvalidURI unless each `%` of a path or query begins an encoded byte."""
    if not is_encoded(raw.decode("latin-1")):
        raise S3Error("InvalidURI", "Couldn't parse the specified URI: a % is not followed by two hexadecimal digits.")


def text_of(value: bytes) -> str:
    """Decode the value of a header as UTF-8, or else as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def is_header_name(name: str) -> bool:
    """Return whether a header may have this lower-case name (RFC 9110, section 5.6.2)."""
    return _TOKEN.fullmatch(name) is not None


def require_header_name(name: str) -> None:
    """Raise InvalidArgument unless a header may have this lower-case name (RFC 9110, section 5.6.2). For names that
    were not sent as headers: the object would otherwise get a header that no response can contain."""
    if not is_header_name(name):
        raise invalid_argument(f"{name!r} cannot be the name of a header.", name)


def require_header_value(name: str, value: str) -> None:
    """Raise InvalidArgument unless a header may have this value (RFC 9110, section 5.5). For values that were not sent
    as headers: the string to sign has one line per header, and a line end would turn one header into two."""
    if _CONTROL.search(value):
        raise invalid_argument(f"{name} has a control character.", name)


def decoded_query(raw_query: bytes) -> list[tuple[bytes, bytes]]:
    """Return the (name, value) of each parameter, in the order sent. A parameter without `=` has an empty value; empty
    ones are skipped."""
    return [(name, value) for name, _, value in query_parts(raw_query)]


def query_parts(raw_query: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return the (name, `=` or nothing, value) of each parameter, otherwise like `decoded_query`."""
    found = []
    for pair in raw_query.replace(b"+", b" ").split(b"&"):
        if pair:
            name, equals, value = pair.partition(b"=")
            found.append((unquote_to_bytes(name), equals, unquote_to_bytes(value)))
    return found
