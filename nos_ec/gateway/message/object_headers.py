"""Converts headers of objects to attributes of a version, and back.

Attributes have the names of the headers, so that programs can set and read them with the Python library. Attributes
that do not correspond to one header have names that begin with `s3:`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.charset import BASE64, Charset
from email.header import Header
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import urlencode

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import InvalidInput
from nos_ec.core.expiry import TAGS_ATTRIBUTE
from nos_ec.core.parts import users_attributes
from nos_ec.gateway.auth.acls import acl_of_headers
from nos_ec.ports.metadata import ObjectRow, UploadRow
from nos_ec.s3 import answers, checksums, documents
from nos_ec.s3.checksums import ChecksumType
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from nos_ec.s3.website import require_location

META = "x-amz-meta-"
META_BYTES_MAX = 2048
KEPT = ("content-type", "cache-control", "content-disposition", "content-language", "expires")
ENCODING = "content-encoding"
TAGS, ACL, CHECKSUM, STORAGE_CLASS = TAGS_ATTRIBUTE, "s3:acl", "s3:checksum", "s3:storage-class"
REDIRECT = "x-amz-website-redirect-location"
RENAMED = "s3:renamed"
"""The rename that stored an object, by its client token."""
LATIN_1 = "s3:latin-1"
"""The names of headers that were not valid UTF-8, separated by commas. Clients get back the bytes that they sent."""
DEFAULT_TYPE = "binary/octet-stream"
STORAGE_CLASSES = ("STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING")
_ENCODED = Charset("utf-8")
"""S3 returns metadata that is not ASCII as encoded words of RFC 2047, and some clients can only read ASCII in headers.
Source: "Working with object metadata" of the S3 user guide."""
_ENCODED.header_encoding = BASE64
_UNSUPPORTED = re.compile(
    r"x-amz-(copy-source-)?server-side-encryption-(?!aws-kms-key-id$|bucket-key-enabled$|customer-)"
)

_WHY_NO_CONTEXT = (
    ": the key service of this store is not asked for each object, so it would neither check nor log an encryption"
    " context. The names of bucket and object are authenticated without it"
)
"""Source: docs/adr/0060."""


def refuse_unsupported(request: Request) -> None:
    """Raise NotImplemented if a header asks for a feature that the store lacks."""
    for raw in request.header_values:
        name = raw.decode("latin-1")
        if _UNSUPPORTED.match(name):
            why = _WHY_NO_CONTEXT if name.endswith("-context") else ""
            raise S3Error("NotImplemented", f"The header {name} is not supported{why}.")


def attributes_of_request(request: Request, encoding: str | None) -> dict[str, str]:
    """Return the attributes that the headers of a PUT set. `encoding` is the part of Content-Encoding to keep. Raises
    S3Error."""
    found = {name: value for name in KEPT if (value := request.header(name))}
    if encoding:
        found[ENCODING] = encoding
    latin_1 = {name for name in found if not _is_utf8(b",".join(request.header_values[name.encode()]))}
    size = 0
    for raw, values in request.header_values.items():
        name = raw.decode("latin-1")
        if name.startswith(META):
            joined = b",".join([value.strip(b" \t") for value in values])
            if not _is_utf8(joined):
                latin_1.add(name)
            found[name] = joined.decode("latin-1" if name in latin_1 else "utf-8")
            size += len(name) - len(META) + len(found[name].encode())
    if size > META_BYTES_MAX:
        raise S3Error("MetadataTooLarge", f"Your metadata headers exceed {META_BYTES_MAX} bytes.")
    if latin_1:
        found[LATIN_1] = ",".join(sorted(latin_1))
    tags = request.header("x-amz-tagging")
    if tags is not None:
        found |= tags_attribute(documents.tagging_header(tags))
    location = request.header(REDIRECT)
    if location is not None:
        require_location(location)
        found[REDIRECT] = location
    storage_class = request.header("x-amz-storage-class")
    if storage_class is not None:
        if storage_class not in STORAGE_CLASSES:
            raise S3Error("InvalidStorageClass", f"{storage_class!r} is not one of {', '.join(STORAGE_CLASSES)}.")
        if storage_class != "STANDARD":
            found[STORAGE_CLASS] = storage_class
    acl = acl_of_headers(request)
    if acl is not None:
        found |= acl_attribute(acl)
    return found


def tags_attribute(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the attribute with the tags; none without tags."""
    return {TAGS: urlencode(tags)} if tags else {}


def acl_attribute(acl: str) -> dict[str, str]:
    """Return the attribute with an ACL in its stored form (auth/acls.py); none for the default ACL."""
    return {} if acl == "private" else {ACL: acl}


def encoded(attributes: Mapping[str, str]) -> bytes:
    """Return attributes as a row stores them. Raises MetadataTooLarge."""
    try:
        return encode_attributes(attributes)
    except InvalidInput as error:
        raise S3Error("MetadataTooLarge", str(error)) from None


def attributes_of(row: ObjectRow | UploadRow) -> dict[str, str]:
    """Return the attributes of an object or an upload. Raises Corrupt."""
    return users_attributes(row.attributes)


def tags_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of an object."""
    return documents.tagging_header(attributes[TAGS]) if TAGS in attributes else {}


def checksum_of(attributes: Mapping[str, str]) -> answers.Checksum | None:
    """Return the checksum of an object; None if it has none. The checksum of a multipart upload may be composite."""
    algorithm, _, value = attributes.get(CHECKSUM, "").partition(" ")
    kind = ChecksumType.COMPOSITE if "-" in value else ChecksumType.FULL_OBJECT
    return answers.Checksum(algorithm, value, kind.value) if value else None


def checksum_attribute(algorithm: str, value: str) -> dict[str, str]:
    """Return the attribute with a checksum."""
    return {CHECKSUM: f"{algorithm} {value}"}


def sent_checksum(request: Request) -> dict[str, str]:
    """Return the attribute with the checksum that the headers of a request have; none without one. Raises S3Error."""
    sent = checksums.checksum_of(request)
    return {} if sent is None else checksum_attribute(sent[0].value, checksums.in_base64(sent[1]))


def etag(md5: bytes, parts: int | None) -> str:
    """Return an ETag, without quotes. `parts` is as in `ObjectRow.tag`."""
    return md5.hex() if parts is None else f"{md5.hex()}-{parts}"


def http_date(time_ms: int) -> str:
    """Return a time as in Last-Modified, which has no fractions of seconds."""
    return formatdate(time_ms // 1000, usegmt=True)


def parsed_date(text: str | None) -> int | None:
    """Return a date in a header as seconds since 1970; None without a header, or if it is not a valid date, which HTTP
    ignores."""
    if text is None:
        return None
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def headers_of(
    row: ObjectRow, attributes: Mapping[str, str], shown_etag: str, *, with_checksum: bool
) -> dict[str, str]:
    """Return the headers of an object in the answer to a GET or HEAD. `shown_etag` has no quotes."""
    found = {
        "etag": f'"{shown_etag}"',
        "last-modified": http_date(row.created_ms),
        "accept-ranges": "bytes",
        "content-type": attributes.get("content-type", DEFAULT_TYPE),
    }
    latin_1 = attributes.get(LATIN_1, "").split(",")
    for name, value in attributes.items():
        if name in latin_1:
            found[name] = value.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
        elif name.startswith(META):
            found[name] = value if value.isascii() else Header(value, _ENCODED, maxlinelen=75).encode(linesep="")
        elif name in KEPT or name in (ENCODING, REDIRECT):
            found[name] = value
    if TAGS in attributes:
        found["x-amz-tagging-count"] = str(len(tags_of(attributes)))
    if STORAGE_CLASS in attributes:
        found["x-amz-storage-class"] = attributes[STORAGE_CLASS]
    return found | checksum_headers(attributes) if with_checksum else found


def checksum_headers(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the checksum of an object; none if it has none."""
    checksum = checksum_of(attributes)
    if checksum is None:
        return {}
    return {
        f"x-amz-checksum-{checksum.algorithm.lower()}": checksum.value,
        "x-amz-checksum-type": checksum.kind or ChecksumType.FULL_OBJECT.value,
    }


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
