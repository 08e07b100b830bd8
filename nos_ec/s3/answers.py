"""The XML of responses, written with f-strings: a library takes ten times as long for a page of 1,000 keys.

Sources: the response syntax of each operation in the S3 API reference, and "Error responses" there.

Characters of a name that XML 1.0 does not allow are written as character references, as S3 does. Most parsers then
refuse the response instead of reading a wrong name; clients with such names use `encoding-type=url`. In errors, such
characters are replaced, so that every error can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote_plus

from nos_ec.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
AUTHENTICATED_USERS = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
_NOT_IN_XML = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
# A parser reads a CR as LF, so a CR needs a character reference, too.
_SPECIAL = re.compile(f'[&<>"\r{_NOT_IN_XML}]')
_INVALID = re.compile(f"[{_NOT_IN_XML}]")
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*").fullmatch
"""Matches names that encoding does not change. Most names are such, and `quote` would cost more than the rest of an
entry."""
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a bucket, an object or an upload."""

    id: str
    name: str = ""


class Listed(NamedTuple):
    """An object in a listing. `etag` has no quotes, and no characters that must be escaped. Only ListObjectVersions
    uses `version_id`, `latest` and `delete_marker`."""

    key: str
    modified_ms: int
    etag: str
    size: int
    storage_class: str = "STANDARD"
    checksum_algorithm: str | None = None
    checksum_type: str | None = None
    version_id: str = "null"
    latest: bool = True
    delete_marker: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """The fields that all listings of objects share. `folders` are the common prefixes. `encode` is set for
    `encoding-type=url`."""

    bucket: str
    prefix: str
    delimiter: str
    max_keys: int
    truncated: bool
    objects: Sequence[Listed]
    folders: Sequence[str]
    encode: bool


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum as text: `algorithm` by its S3 name, `value` in base64 with a suffix `-N` if it is composite, `kind`
    FULL_OBJECT or COMPOSITE."""

    algorithm: str
    value: str
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload or of an object."""

    number: int
    size: int
    modified_ms: int = 0
    etag: str = ""
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload in progress."""

    key: str
    upload_id: str
    initiated_ms: int
    initiator: Owner
    owner: Owner
    storage_class: str = "STANDARD"
    checksum_algorithm: str | None = None
    checksum_type: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant of an ACL. `permission` is FULL_CONTROL, READ, WRITE, READ_ACP or WRITE_ACP; `uri` names a group."""

    permission: str
    owner: Owner | None = None
    uri: str | None = None


def escape(text: str) -> str:
    """Escape text inside an element or attribute."""
    return _SPECIAL.sub(_escaped, text) if _SPECIAL.search(text) else text


def _escaped(match: re.Match[str]) -> str:
    return _ENTITIES.get(match[0]) or f"&#x{ord(match[0]):X};"


def time_of(time_ms: int) -> str:
    """Format a time as S3 does: ISO 8601 in UTC. It has whole seconds, so that clients find it equal to the header
    Last-Modified."""
    minutes, ms = divmod(time_ms, 60_000)
    day, minute = divmod(minutes, 1440)
    return f"{_date(day)}T{_hour_and_minute(minute)}:{ms // 1000:02}.000Z"


@lru_cache(maxsize=4096)
def _date(day: int) -> str:
    """Format a day counted from 1970. It is cached, because a page of 1,000 keys would spend most time in datetime."""
    return datetime.fromtimestamp(day * 86400, UTC).date().isoformat()


@lru_cache(maxsize=1440)
def _hour_and_minute(minute: int) -> str:
    """Format a minute of the day."""
    return f"{minute // 60:02}:{minute % 60:02}"


def error_answer(error: S3Error, resource: str, request_id: str, host_id: str) -> bytes:
    """Return the body of an error. resource: the decoded path of the request."""
    fields = {"Code": error.code, "Message": error.message, **error.fields}
    fields |= {"Resource": resource, "RequestId": request_id, "HostId": host_id}
    inside = "".join([f"<{name}>{escape(_INVALID.sub('�', text))}</{name}>" for name, text in fields.items()])
    return f"{DECLARATION}<Error>{inside}</Error>".encode()


def list_buckets(
    owner: Owner,
    buckets: Iterable[tuple[str, int]],
    *,
    region: str | None = None,
    prefix: str | None = None,
    next_token: str | None = None,
) -> bytes:
    """Answer ListBuckets. buckets: (name, creation time in ms). next_token: set only if the list is truncated."""
    in_region = "" if region is None else _element("BucketRegion", region)
    listed = [
        f"<Bucket><Name>{escape(name)}</Name><CreationDate>{time_of(created_ms)}</CreationDate>{in_region}</Bucket>"
        for name, created_ms in buckets
    ]
    return _answer(
        "ListAllMyBucketsResult",
        f"{_owner(owner)}<Buckets>{''.join(listed)}</Buckets>",
        _optional("Prefix", prefix),
        _optional("ContinuationToken", next_token),
    )


def list_objects(page: Page, marker: str, next_marker: str | None, owner: Owner) -> bytes:
    """Answer ListObjects. next_marker: set only if the page is truncated."""
    return _answer(
        "ListBucketResult",
        _page_head(page),
        _name("Marker", marker, page.encode),
        "" if next_marker is None else _name("NextMarker", next_marker, page.encode),
        _contents(page, owner),
    )


def list_objects_v2(
    page: Page,
    *,
    token: str | None,
    next_token: str | None,
    start_after: str | None,
    owner: Owner | None,
) -> bytes:
    """Answer ListObjectsV2. token, start_after: as in the request. owner: set if the request has `fetch-owner`."""
    return _answer(
        "ListBucketResult",
        _page_head(page),
        f"<KeyCount>{len(page.objects) + len(page.folders)}</KeyCount>",
        _optional("ContinuationToken", token),
        _optional("NextContinuationToken", next_token),
        "" if start_after is None else _name("StartAfter", start_after, page.encode),
        _contents(page, owner),
    )


def list_object_versions(
    page: Page,
    *,
    key_marker: str,
    version_marker: str,
    next_key_marker: str | None,
    next_version_marker: str | None,
    owner: Owner,
) -> bytes:
    """Answer ListObjectVersions. The next markers are set only if the page is truncated."""
    by = _owner(owner)
    entries = []
    for row in page.objects:
        head = (
            f"{_name('Key', row.key, page.encode)}<VersionId>{escape(row.version_id)}</VersionId>"
            f"<IsLatest>{_boolean(row.latest)}</IsLatest><LastModified>{time_of(row.modified_ms)}</LastModified>"
        )
        if row.delete_marker:
            entries.append(f"<DeleteMarker>{head}{by}</DeleteMarker>")
        else:
            entries.append(f"<Version>{head}{_facts(row)}{by}</Version>")
    return _answer(
        "ListVersionsResult",
        _page_head(page),
        _name("KeyMarker", key_marker, page.encode),
        _element("VersionIdMarker", version_marker),
        "" if next_key_marker is None else _name("NextKeyMarker", next_key_marker, page.encode),
        _optional("NextVersionIdMarker", next_version_marker),
        *entries,
        _folders(page.folders, page.encode),
    )


class Deleted(NamedTuple):
    """A deleted object. `version_id` is the one in the request, `marker_id` names the delete marker that was added or
    removed."""

    key: str
    version_id: str | None = None
    marker_id: str | None = None


def deleted(keys: Iterable[Deleted], errors: Iterable[tuple[str, str | None, S3Error]], *, quiet: bool) -> bytes:
    """Answer DeleteObjects. keys: the deleted objects. errors: (key, version id in the request, error) of the rest."""
    done = [
        f"<Deleted>{_element('Key', one.key)}{_optional('VersionId', one.version_id)}"
        f"{'' if one.marker_id is None else '<DeleteMarker>true</DeleteMarker>'}"
        f"{_optional('DeleteMarkerVersionId', one.marker_id)}</Deleted>"
        for one in ([] if quiet else keys)
    ]
    failed = [
        f"<Error>{_element('Key', key)}{_optional('VersionId', version_id)}{_element('Code', error.code)}"
        f"{_element('Message', error.message)}</Error>"
        for key, version_id, error in errors
    ]
    return _answer("DeleteResult", *done, *failed)


def copied(etag: str, modified_ms: int, checksum: Checksum | None, *, part: bool = False) -> bytes:
    """Answer CopyObject, or UploadPartCopy if `part` is set."""
    return _answer(
        "CopyPartResult" if part else "CopyObjectResult",
        f"<LastModified>{time_of(modified_ms)}</LastModified>{_etag(etag)}{_checksum(checksum)}",
    )


def posted(location: str, bucket: str, key: str, etag: str) -> bytes:
    """Answer the POST of a form. This document has no namespace."""
    inside = f"{_element('Location', location)}{_element('Bucket', bucket)}{_element('Key', key)}{_etag(etag)}"
    return f"{DECLARATION}<PostResponse>{inside}</PostResponse>".encode()


def upload_created(bucket: str, key: str, upload_id: str) -> bytes:
    """Answer CreateMultipartUpload."""
    return _answer("InitiateMultipartUploadResult", *_upload_head(bucket, key, upload_id))


def upload_completed(location: str, bucket: str, key: str, etag: str, checksum: Checksum | None) -> bytes:
    """Answer CompleteMultipartUpload. location: the URL of the object."""
    return _answer(
        "CompleteMultipartUploadResult",
        _element("Location", location),
        _element("Bucket", bucket),
        _element("Key", key),
        _etag(etag),
        _checksum(checksum),
    )


def list_parts(
    bucket: str,
    upload: Upload,
    parts: Sequence[Part],
    *,
    marker: int,
    max_parts: int,
    truncated: bool,
) -> bytes:
    """Answer ListParts. marker: the part number after which the page begins."""
    next_marker = f"<NextPartNumberMarker>{parts[-1].number}</NextPartNumberMarker>" if parts else ""
    listed = [
        f"<Part><PartNumber>{part.number}</PartNumber><LastModified>{time_of(part.modified_ms)}</LastModified>"
        f"{_etag(part.etag)}<Size>{part.size}</Size>{_checksum(part.checksum)}</Part>"
        for part in parts
    ]
    return _answer(
        "ListPartsResult",
        *_upload_head(bucket, upload.key, upload.upload_id),
        f"{_owner(upload.initiator, 'Initiator')}{_owner(upload.owner)}",
        _element("StorageClass", upload.storage_class),
        f"<PartNumberMarker>{marker}</PartNumberMarker>{next_marker}<MaxParts>{max_parts}</MaxParts>",
        f"<IsTruncated>{_boolean(truncated)}</IsTruncated>",
        _optional("ChecksumAlgorithm", upload.checksum_algorithm),
        _optional("ChecksumType", upload.checksum_type),
        *listed,
    )


def list_uploads(
    bucket: str,
    uploads: Sequence[Upload],
    folders: Sequence[str],
    *,
    prefix: str,
    delimiter: str,
    key_marker: str,
    id_marker: str,
    next_key_marker: str | None,
    next_id_marker: str | None,
    max_uploads: int,
    encode: bool,
) -> bytes:
    """Answer ListMultipartUploads. The next markers are set only if the page is truncated."""
    listed = [
        f"<Upload>{_name('Key', upload.key, encode)}{_element('UploadId', upload.upload_id)}"
        f"{_owner(upload.initiator, 'Initiator')}{_owner(upload.owner)}{_element('StorageClass', upload.storage_class)}"
        f"<Initiated>{time_of(upload.initiated_ms)}</Initiated>"
        f"{_optional('ChecksumAlgorithm', upload.checksum_algorithm)}"
        f"{_optional('ChecksumType', upload.checksum_type)}</Upload>"
        for upload in uploads
    ]
    return _answer(
        "ListMultipartUploadsResult",
        _element("Bucket", bucket),
        _name("KeyMarker", key_marker, encode),
        _element("UploadIdMarker", id_marker),
        "" if next_key_marker is None else _name("NextKeyMarker", next_key_marker, encode),
        _optional("NextUploadIdMarker", next_id_marker),
        _name("Prefix", prefix, encode),
        _name("Delimiter", delimiter, encode) if delimiter else "",
        "<EncodingType>url</EncodingType>" if encode else "",
        f"<MaxUploads>{max_uploads}</MaxUploads><IsTruncated>{_boolean(next_key_marker is not None)}</IsTruncated>",
        *listed,
        _folders(folders, encode),
    )


def tagging(tags: Mapping[str, str]) -> bytes:
    """Answer GetObjectTagging or GetBucketTagging."""
    pairs = [f"<Tag>{_element('Key', key)}{_element('Value', value)}</Tag>" for key, value in tags.items()]
    return _answer("Tagging", f"<TagSet>{''.join(pairs)}</TagSet>")


def object_attributes(
    *,
    etag: str | None = None,
    checksum: Checksum | None = None,
    storage_class: str | None = None,
    size: int | None = None,
    parts_count: int | None = None,
    parts: Sequence[Part] | None = None,
    marker: int = 0,
    max_parts: int = 1000,
    truncated: bool = False,
) -> bytes:
    """Answer GetObjectAttributes with the attributes that were requested. parts: only for an object whose parts have
    checksums."""
    in_parts = ""
    if parts_count is not None:
        in_parts = f"<PartsCount>{parts_count}</PartsCount>"
        if parts is not None:
            next_marker = parts[-1].number if parts else marker
            listed = [
                f"<Part><PartNumber>{part.number}</PartNumber><Size>{part.size}</Size>{_checksum(part.checksum)}</Part>"
                for part in parts
            ]
            in_parts += (
                f"<PartNumberMarker>{marker}</PartNumberMarker>"
                f"<NextPartNumberMarker>{next_marker}</NextPartNumberMarker><MaxParts>{max_parts}</MaxParts>"
                f"<IsTruncated>{_boolean(truncated)}</IsTruncated>{''.join(listed)}"
            )
        in_parts = f"<ObjectParts>{in_parts}</ObjectParts>"
    return _answer(
        "GetObjectAttributesResponse",
        _optional("ETag", etag),
        "" if checksum is None else f"<Checksum>{_checksum(checksum)}</Checksum>",
        in_parts,
        _optional("StorageClass", storage_class),
        "" if size is None else f"<ObjectSize>{size}</ObjectSize>",
    )


def access_control(owner: Owner, grants: Iterable[Grant]) -> bytes:
    """Answer GetBucketAcl or GetObjectAcl."""
    listed = []
    for grant in grants:
        if grant.owner is not None:
            kind, inside = "CanonicalUser", _owner_inside(grant.owner)
        else:
            kind, inside = "Group", _element("URI", grant.uri or "")
        listed.append(
            '<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
            f' xsi:type="{kind}">{inside}</Grantee>{_element("Permission", grant.permission)}</Grant>'
        )
    inside = f"{_owner(owner)}<AccessControlList>{''.join(listed)}</AccessControlList>"
    return _answer("AccessControlPolicy", inside)


def location(region: str) -> bytes:
    """Answer GetBucketLocation, which is empty for us-east-1."""
    inside = "" if region == "us-east-1" else escape(region)
    return f'{DECLARATION}<LocationConstraint xmlns="{NAMESPACE}">{inside}</LocationConstraint>'.encode()


def versioning(status: str | None) -> bytes:
    """Answer GetBucketVersioning. status: Enabled, Suspended, or None if versioning was never configured."""
    return _answer("VersioningConfiguration", _optional("Status", status))


def ownership_controls(ownership: str) -> bytes:
    """Answer GetBucketOwnershipControls."""
    return _answer("OwnershipControls", f"<Rule>{_element('ObjectOwnership', ownership)}</Rule>")


def configuration(root: str, *fields: tuple[str, str]) -> bytes:
    """Answer with a configuration of these elements (name, text). One that a bucket does not have is empty."""
    return _answer(root, *[_element(name, text) for name, text in fields])


def object_lock_configuration(default: tuple[str, str, str] | None) -> bytes:
    """Answer GetObjectLockConfiguration. default: the mode, `Days` or `Years`, and their number; None for a bucket
    without a default retention."""
    enabled = _element("ObjectLockEnabled", "Enabled")
    if default is None:
        return _answer("ObjectLockConfiguration", enabled)
    mode, unit, number = default
    retention = f"{_element('Mode', mode)}{_element(unit, number)}"
    rule = f"<Rule><DefaultRetention>{retention}</DefaultRetention></Rule>"
    return _answer("ObjectLockConfiguration", enabled, rule)


def encryption(algorithm: str, kms_key: str | None) -> bytes:
    """Answer GetBucketEncryption. `kms_key` is the name of a KMS key, empty for any one, None for another algorithm."""
    default, uses_kms = "ApplyServerSideEncryptionByDefault", "false" if kms_key is None else "true"
    fields = _element("SSEAlgorithm", algorithm) + (_element("KMSMasterKeyID", kms_key) if kms_key else "")
    rule = f"<{default}>{fields}</{default}>{_element('BucketKeyEnabled', uses_kms)}"
    return _answer("ServerSideEncryptionConfiguration", f"<Rule>{rule}</Rule>")


def _answer(root: str, *inside: str) -> bytes:
    text = f'{DECLARATION}<{root} xmlns="{NAMESPACE}">{"".join(inside)}</{root}>'
    try:
        return text.encode()
    except UnicodeEncodeError:  # pragma: no cover - a lone surrogate is escaped
        raise AssertionError("a name is not valid Unicode") from None


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


def _optional(name: str, text: str | None) -> str:
    return "" if text is None else f"<{name}>{escape(text)}</{name}>"


def _name(name: str, key: str, encode: bool) -> str:
    if not _PLAIN(key):
        key = quote(key, safe="/") if encode else escape(key)
    return f"<{name}>{key}</{name}>"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _etag(etag: str) -> str:
    return f"<ETag>&quot;{escape(etag)}&quot;</ETag>"


def _owner_inside(owner: Owner) -> str:
    return f"<ID>{escape(owner.id)}</ID><DisplayName>{escape(owner.name)}</DisplayName>"


def _owner(owner: Owner, element: str = "Owner") -> str:
    return f"<{element}>{_owner_inside(owner)}</{element}>"


def _checksum(checksum: Checksum | None) -> str:
    if checksum is None:
        return ""
    name = f"Checksum{checksum.algorithm}"
    return _element(name, checksum.value) + _optional("ChecksumType", checksum.kind)


def _upload_head(bucket: str, key: str, upload_id: str) -> tuple[str, str, str]:
    return _element("Bucket", bucket), _element("Key", key), _element("UploadId", upload_id)


def _prefix(page: Page) -> str:
    """Encode the prefix only if a client that decodes it would otherwise read a different one: botocore does not decode
    the prefix of ListObjects."""
    needed = unquote_plus(page.prefix) != page.prefix or _INVALID.search(page.prefix) is not None
    return _name("Prefix", page.prefix, page.encode and needed)


def _page_head(page: Page) -> str:
    return (
        f"{_element('Name', page.bucket)}{_prefix(page)}"
        f"{_name('Delimiter', page.delimiter, page.encode) if page.delimiter else ''}"
        f"<MaxKeys>{page.max_keys}</MaxKeys>{'<EncodingType>url</EncodingType>' if page.encode else ''}"
        f"<IsTruncated>{_boolean(page.truncated)}</IsTruncated>"
    )


def _facts(row: Listed) -> str:
    checksum = ""
    if row.checksum_algorithm is not None:
        checksum = (
            f"<ChecksumAlgorithm>{row.checksum_algorithm}</ChecksumAlgorithm>"
            f"{_optional('ChecksumType', row.checksum_type)}"
        )
    return (
        f"<ETag>&quot;{row.etag}&quot;</ETag>{checksum}<Size>{row.size}</Size>"
        f"<StorageClass>{escape(row.storage_class)}</StorageClass>"
    )


def _contents(page: Page, owner: Owner | None) -> str:
    by = "" if owner is None else _owner(owner)
    listed = [
        f"<Contents>{_name('Key', row.key, page.encode)}<LastModified>{time_of(row.modified_ms)}</LastModified>"
        f"{_facts(row)}{by}</Contents>"
        for row in page.objects
    ]
    return "".join(listed) + _folders(page.folders, page.encode)


def _folders(folders: Sequence[str], encode: bool) -> str:
    return "".join([f"<CommonPrefixes>{_name('Prefix', folder, encode)}</CommonPrefixes>" for folder in folders])
