"""Version ids, and what headers say of versions (docs/adr/0034).

The id of a version is its number, in 16 hexadecimal digits; `null` is that of a null version.
"""

from __future__ import annotations

import re

from nos_ec.core.versions import VERSION_MAX, Versioning
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.object_headers import http_date
from nos_ec.ports.metadata import ObjectRow, VersionEntry
from nos_ec.s3.errors import S3Error

NULL = "null"
_ID = re.compile("[0-9a-f]{16}")


def id_of(version: ObjectRow | VersionEntry) -> str:
    """The id of a version."""
    is_null = version.is_null if isinstance(version, VersionEntry) else not version.has_version_id
    return NULL if is_null else f"{version.version:016x}"


def number_of(text: str) -> int | None:
    """The number of the version with this id; None for the null version. Raises InvalidArgument."""
    if text == NULL:
        return None
    number = int(text, 16) if _ID.fullmatch(text) else 0
    if not 1 <= number <= VERSION_MAX:
        raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId", ArgumentValue=text)
    return number


def version_headers(versioning: Versioning | None, row: ObjectRow) -> dict[str, str]:
    """The header with the id of a version; none in a bucket that never had versions."""
    return {} if versioning is None else {"x-amz-version-id": id_of(row)}


def stored_headers(versioning: Versioning | None, row: ObjectRow) -> dict[str, str]:
    """What a request is told that has stored this version. Only an Enabled bucket makes one with an id of its own."""
    return version_headers(versioning, row) if versioning is Versioning.ENABLED else {}


def source_headers(versioning: Versioning | None, row: ObjectRow) -> dict[str, str]:
    """The header with the id of the version that was copied."""
    return {} if versioning is None else {"x-amz-copy-source-version-id": id_of(row)}


def asked_version(call: Call) -> str | None:
    """The version id that the query names."""
    return call.request.parameter("versionId")


def no_such_version(key: str, version: str) -> S3Error:
    """What is answered when there is no such version."""
    return S3Error("NoSuchVersion", "The specified version does not exist.", Key=key, VersionId=version)


def no_such_key(key: str) -> S3Error:
    """What is answered when there is no such object."""
    return S3Error("NoSuchKey", "The specified key does not exist.", Key=key)


def not_there(key: str) -> S3Error:
    """The same to a GET or HEAD, and that no delete marker hides the object, as radosgw answers it. S3 leaves the
    header out of answers with an object, and says nothing of others."""
    error = no_such_key(key)
    error.headers["x-amz-delete-marker"] = "false"
    return error


def hidden_by(marker: VersionEntry) -> S3Error:
    """What is answered for an object whose newest version is a delete marker."""
    error = no_such_key(marker.key.name)
    error.headers |= {"x-amz-delete-marker": "true", "x-amz-version-id": id_of(marker)}
    return error


def is_marker(marker: VersionEntry) -> S3Error:
    """What is answered when the id is that of a delete marker, which can only be deleted."""
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
