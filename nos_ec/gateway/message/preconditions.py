"""Parses and checks the conditions and ranges of requests.

Sources: RFC 9110, sections 13 and 14; "PutObject" and "GetObject" of the S3 API reference. PutObject of S3 has
`If-None-Match: *` and `If-Match` with an ETag. Like Ceph's RGW, the gateway also accepts the other two forms of RFC
9110: `If-Match: *` and `If-None-Match` with an ETag.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from nos_ec.core.conditions import ABSENT, PRESENT, Condition
from nos_ec.gateway.message.object_headers import parsed_date
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import Request

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
_ETAG = re.compile(r"([0-9a-fA-F]{32})(?:-([0-9]{1,5}))?")
_OF_NO_OBJECT = b""
"""The MD5 in a condition on an ETag that no object can have."""


def check_read(request: Request, etag: str, created_ms: int, start: str = "") -> None:
    """Raise PreconditionFailed or NotModified if a condition of a GET or HEAD does not hold for an object with this
    ETag, without quotes. `start` is the prefix of the names of the headers; with `x-amz-copy-source-`, every failure is
    a PreconditionFailed."""
    changed_s = created_ms // 1000
    match, unmodified = request.header(start + "if-match"), parsed_date(request.header(start + "if-unmodified-since"))
    none_match, modified = (
        request.header(start + "if-none-match"),
        parsed_date(request.header(start + "if-modified-since")),
    )
    if match is not None:
        if not _names(match, etag):
            raise _failed("If-Match")
    elif unmodified is not None and changed_s > unmodified:
        raise _failed("If-Unmodified-Since")
    not_modified = _failed("If-None-Match") if start else S3Error("NotModified", "Not modified.")
    if none_match is not None:
        if _names(none_match, etag):
            raise not_modified
    elif modified is not None and changed_s <= modified:
        raise not_modified


def _names(header: str, etag: str) -> bool:
    if header.strip() == "*":
        return True
    return etag in [tag.strip().removeprefix("W/").strip('"').lower() for tag in header.split(",")]


def write_condition(request: Request) -> Condition | None:
    """Return the condition of a PUT; None without one. Raises NotImplemented for several conditions."""
    match, none_match = request.header("if-match"), request.header("if-none-match")
    if match is not None and none_match is not None:
        raise S3Error("NotImplemented", "If-Match and If-None-Match cannot be combined.")
    if none_match is not None:
        return ABSENT if none_match == "*" else replace(etag_condition(none_match), negated=True)
    return None if match is None else etag_condition(match)


def etag_condition(etag: str) -> Condition:
    """Return the condition that the current version has this ETag, or exists for `*`. Raises NotImplemented for a list
    of ETags."""
    if etag == "*":
        return PRESENT
    if "," in etag:
        raise S3Error("NotImplemented", "A condition of a PUT or DELETE must be one ETag.")
    plain = etag.strip().strip('"')
    match = _ETAG.fullmatch(plain)
    if match is None:
        return Condition(_OF_NO_OBJECT)
    return Condition(bytes.fromhex(match[1]), None if match[2] is None else int(match[2]))


def delete_condition(etag: str | None, modified: str | None, size: str | None) -> Condition | None:
    """Return the condition of a DELETE on ETag, time of storage and size, each as sent or None; None without any.
    Raises InvalidArgument, NotImplemented."""
    if etag is None and modified is None and size is None:
        return None
    condition = PRESENT if etag is None else etag_condition(etag)
    if modified is not None:
        condition = replace(condition, modified_s=_time_of(modified))
    if size is not None:
        if not size.isascii() or not size.isdigit() or len(size) > 18:
            raise invalid_argument("The size must be a number.", "size", size)
        condition = replace(condition, size=int(size))
    return condition


def _time_of(text: str) -> int:
    """Return a date, in the form of a header or of ISO 8601, as seconds since 1970. Raises InvalidArgument."""
    seconds = parsed_date(text)
    if seconds is None:
        try:
            seconds = int(datetime.fromisoformat(text.strip()).timestamp())
        except (ValueError, OverflowError):
            raise invalid_argument("The last modified time is not a valid date.", "last-modified-time") from None
    return seconds


def range_of(request: Request, size: int) -> tuple[int, int] | None:
    """Return (first byte, length) of the range that a GET asks for. Return None for the whole object: without a valid
    range of bytes, or for several ranges, which S3 does not support. Raises InvalidRange."""
    header = request.header("range")
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = min(int(match[2]), size)
        first = size - length
    else:
        first, last = int(match[1]), int(match[2]) if match[2] else size - 1
        if match[2] and last < first:
            return None
        length = min(last, size - 1) - first + 1
    if length <= 0 or first >= size:
        raise S3Error("InvalidRange", "The requested range is not satisfiable", ActualObjectSize=str(size))
    return first, length


def _failed(condition: str) -> S3Error:
    return S3Error(
        "PreconditionFailed", "At least one of the pre-conditions you specified did not hold", Condition=condition
    )
