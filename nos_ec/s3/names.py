"""Names of buckets and objects, and the ones that a request addresses.

Sources: "General purpose bucket naming rules", "Naming Amazon S3 objects" and "Virtual hosting of general purpose
buckets" of the S3 user guide.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote, unquote_to_bytes

from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import is_encoded, require_encoded

KEY_SIZE_MAX = 1024
"""Bytes of UTF-8."""
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9.-]{1,61})[a-z0-9]")
_POSSIBLE_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Matches all possible buckets, also those not created by S3's rules, but never the store's own buckets."""
_PORT = re.compile("[0-9]{0,5}")
_LIKE_AN_ADDRESS = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def check_new_bucket(name: str) -> None:
    """Raise InvalidBucketName unless a bucket with this name may be created."""
    if (
        not _BUCKET.fullmatch(name)
        or ".." in name
        or ".-" in name
        or "-." in name
        or _LIKE_AN_ADDRESS.fullmatch(name)
        or name.startswith(_RESERVED_STARTS)
        or name.endswith(_RESERVED_ENDS)
    ):
        raise S3Error(
            "InvalidBucketName",
            "A bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens, begins and ends with a letter or"
            " digit, has no two dots in a row and no dot next to a hyphen, is not an IP address, and has no"
            " reserved prefix.",
            BucketName=name,
        )


def check_key(key: str) -> None:
    """Raise KeyTooLongError, or InvalidArgument for a key with NUL, which would end the name in some stores."""
    size = len(key.encode())
    if size > KEY_SIZE_MAX:
        raise S3Error("KeyTooLongError", "Your key is too long.", Size=str(size), MaxSizeAllowed=str(KEY_SIZE_MAX))
    if "\0" in key:
        raise invalid_argument("A key cannot contain NUL.", "Key")


def check_version_id(version: str | None) -> None:
    """Raise InvalidArgument for an empty version id, which must not be taken for a missing one."""
    if version == "":
        raise invalid_argument("Version id cannot be the empty string.", "versionId")


def addressed(raw_path: bytes, host: str | None, domains: Collection[str] = ()) -> tuple[str | None, str | None]:
    """Return the (bucket, key) that a request addresses; None for the one that it does not name.

    raw_path: as sent. host: the Host header, with or without a port. domains: the domains of the store, in lower case.
    The host `BUCKET.DOMAIN` names a bucket, and then the whole path is the key; the longest matching domain counts.
    With any other host, or a domain itself, the path names the bucket, so path style always works.

    Keys are not normalised: `//`, `.` and `..` are parts of names. Raises InvalidURI for a path that is not UTF-8 or
    does not begin with `/`; InvalidBucketName for a name that a bucket cannot have; KeyTooLongError;
    InvalidArgument; InvalidRequest for a host that is not valid."""
    path = raw_path or b"/"
    if not path.startswith(b"/"):
        raise S3Error("InvalidURI", "The path of a request begins with a slash.")
    bucket = bucket_of_host(host, domains)
    if bucket is None:
        raw_bucket, _, raw_key = path[1:].partition(b"/")
        bucket = _decoded(raw_bucket) or None
        if bucket is None and raw_key:
            raise S3Error("InvalidBucketName", "The path names no bucket.", BucketName="")
    else:
        raw_key = path[1:]
    if bucket is not None:
        _check_bucket(bucket)
    key = _decoded(raw_key)
    check_key(key)
    return bucket, key or None


def bucket_of_host(host: str | None, domains: Collection[str]) -> str | None:
    """Return the bucket that the Host header names (see `addressed`), or None. Raises InvalidBucketName for a name that
    a bucket cannot have, and InvalidRequest for a port that is not a number, which a redirect to the same host would
    otherwise repeat."""
    if not host or not domains or host.startswith("["):
        return None
    name, _, port = host.lower().partition(":")
    name = name.rstrip(".")
    for domain in sorted(domains, key=len, reverse=True):
        if name == domain:
            return None
        if name.endswith("." + domain):
            if not _PORT.fullmatch(port):
                raise S3Error("InvalidRequest", "The port in the header Host is not a number.")
            bucket = name[: -len(domain) - 1]
            _check_bucket(bucket)
            return bucket
    return None


def _check_bucket(name: str) -> None:
    if not _POSSIBLE_BUCKET.fullmatch(name):
        raise S3Error("InvalidBucketName", "No bucket can have this name.", BucketName=name)


def copy_source(text: str) -> tuple[str, str, str | None]:
    """Return the (bucket, key, version id) of the header `x-amz-copy-source`: `/bucket/key?versionId=...`, URL-encoded,
    with or without the first slash. Raises InvalidArgument, KeyTooLongError; NotImplemented for access points."""
    path, mark, query = text.partition("?")
    version = None
    if mark:
        name, _, sent = query.partition("=")
        version = unquote(sent)
        if name != "versionId" or not version or "&" in sent or not is_encoded(sent):
            raise _bad_source()
    if path.startswith("arn:"):
        raise S3Error("NotImplemented", "Copying from an access point is not supported.")
    try:
        source = _decoded(path.encode())
    except S3Error:
        raise _bad_source() from None
    bucket, _, key = source.removeprefix("/").partition("/")
    if not _POSSIBLE_BUCKET.fullmatch(bucket) or not key:
        raise _bad_source()
    check_key(key)
    return bucket, key, version


def _bad_source() -> S3Error:
    return invalid_argument(
        "x-amz-copy-source must be bucket/key, URL-encoded, followed by ?versionId=ID to copy a version.",
        "x-amz-copy-source",
    )


def _decoded(raw: bytes) -> str:
    require_encoded(raw)
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "The path is not UTF-8.") from None
