"""Version ids, and the headers and errors about versions (docs/adr/0034).

The id of a version is its number in 16 hexadecimal digits; the id of a null version is `null`.
"""

from __future__ import annotations

import re

from nos_ec.core.versions import VERSION_MAX, Versioning
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.object_headers import http_date
from nos_ec.ports.metadata import ObjectRow, VersionEntry
from nos_ec.s3.errors import S3Error, invalid_argument

NULL = "null"
_ID = re.compile("[0-9a-f]{16}")


def id_of(version: ObjectRow | VersionEntry) -> str:
    """Return the id of a version."""
    is_null = version.is_null if isinstance(version, VersionEntry) else not version.has_version_id
    return NULL if is_null else f"{version.version:016x}"


def number_of(text: str) -> int | None:
    """Return the number of the version with this id; None for the null version. Raises InvalidArgument."""
    if text == NULL:
        return None
    number = int(text, 16) if _ID.fullmatch(text) else 0
    if not 1 <= number <= VERSION_MAX:
        raise invalid_argument("Invalid version id specified", "versionId", text)
    return number


def version_headers(versioning: Versioning | None, row: ObjectRow) -> dict[str, str]:
    """Return the header with the id of a version; none in a bucket that never had versions."""
    return {} if versioning is None else {"x-amz-version-id": id_of(row)}


def stored_headers(versioning: Versioning | None, row: ObjectRow) -> dict[str, str]:
    """Return the header with the id of a version that the request stored. Only a bucket with versioning Enabled gives
    it an id of its own; other buckets have no such header."""
    return version_headers(versioning, row) if versioning is Versioning.ENABLED else {}


def source_headers(versioning: Versioning | None, row: ObjectRow) -> dict[str, str]:
    """Return the header with the id of the version that was copied."""
    return {} if versioning is None else {"x-amz-copy-source-version-id": id_of(row)}


def requested_version(call: Call) -> str | None:
    """Return the version id that the query names; None without one."""
    return call.request.parameter("versionId")


def no_such_version(key: str, version: str) -> S3Error:
    """Return the error for a version that does not exist."""
    return S3Error("NoSuchVersion", "The specified version does not exist.", Key=key, VersionId=version)


def no_such_key(key: str) -> S3Error:
    """Return the error for an object that does not exist."""
    return S3Error("NoSuchKey", "The specified key does not exist.", Key=key)


def no_such_key_for_read(key: str) -> S3Error:
    """Return the same error for a GET or HEAD, with a header that says that no delete marker hides the object, as in
    radosgw. S3 omits the header from answers with an object, and its reference does not mention others."""
    error = no_such_key(key)
    error.headers["x-amz-delete-marker"] = "false"
    return error


def hidden_by_marker(marker: VersionEntry) -> S3Error:
    """Return the error for an object whose newest version is a delete marker."""
    error = no_such_key(marker.key.name)
    error.headers |= {"x-amz-delete-marker": "true", "x-amz-version-id": id_of(marker)}
    return error


def marker_not_allowed(marker: VersionEntry) -> S3Error:
    """Return the error for a version id of a delete marker, which can only be deleted."""
    error = S3Error(
        "MethodNotAllowed",
        "The specified method is not allowed against this resource.",
        Method="GET",
        ResourceType="DeleteMarker",
    )
    error.headers |= {
        "x-amz-delete-marker": "true",
        "x-amz-version-id": id_of(marker),
        "last-modified": http_date(marker.created_ms),
        "allow": "DELETE",
    }
    return error
