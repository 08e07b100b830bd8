"""The lines of the access log of a bucket, in the format of S3's server access logs.

Source: "Amazon S3 server access log format" of the S3 user guide: 26 fields, separated by spaces, `-` for each that is
unknown or does not apply. Fields that clients choose are encoded so that none can end early or begin another line.
Unlike in S3, the signature and the session token of a presigned URL are left out, because a reader of the log could
repeat the request, and so is a key of a customer, which must not be in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, unquote_to_bytes

from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.server.record import Record
from nos_ec.s3.errors import S3Error
from nos_ec.s3.operations import PREFLIGHT
from nos_ec.s3.request import Request

FIELD_BYTES_MAX = 2048
"""Maximum length of the fields that clients choose, apart from the key and the target."""
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_SECRET = re.compile(
    rb"(x-amz-)?signature|x-amz-security-token|x-amz-(copy-source-)?server-side-encryption-customer-key.*", re.DOTALL
)
_IN_QUOTES = re.compile(rb'[\x00-\x1f"\x7f-\xff]')
_BETWEEN_SPACES = re.compile(rb'[\x00-\x20"\x7f-\xff]')
_WORDS = re.compile("(?<=[a-z0-9])(?=[A-Z])")
_VERBS = re.compile("Get|Put|Delete|List|Head|Create|Complete|Abort|Copy|Post|Rename|Restore|Select|Update")
_RESOURCES: Mapping[str, str] = {
    "AbortMultipartUpload": "UPLOAD",
    "CompleteMultipartUpload": "UPLOAD",
    "CopyObject": "OBJECT",
    "CreateMultipartUpload": "UPLOADS",
    "DeleteBucketLifecycle": "LIFECYCLE",
    "DeleteObjects": "MULTI_OBJECT_DELETE",
    "GetBucketLocation": "LOCATION",
    "GetBucketLogging": "LOGGING_STATUS",
    "GetBucketPolicy": "BUCKETPOLICY",
    "ListMultipartUploads": "UPLOADS",
    "ListObjectVersions": "BUCKETVERSIONS",
    "ListObjects": "BUCKET",
    "ListObjectsV2": "BUCKET",
    "ListParts": "UPLOAD",
    "PostObject": "OBJECT",
    "PutBucketLogging": "LOGGING_STATUS",
    "PutBucketPolicy": "BUCKETPOLICY",
    "DeleteBucketPolicy": "BUCKETPOLICY",
    "UploadPart": "PART",
    "UploadPartCopy": "PART",
    **{f"{verb}ObjectAcl": "ACL" for verb in ("Get", "Put")},
    **{f"{verb}ObjectRetention": "OBJECT_LOCK_RETENTION" for verb in ("Get", "Put")},
    **{f"{verb}ObjectLegalHold": "OBJECT_LOCK_LEGALHOLD" for verb in ("Get", "Put")},
}
"""The resources of operations whose names do not tell them."""
_COPIES = frozenset(["CopyObject", "UploadPartCopy"])
_READS = frozenset(["GetObject", "HeadObject"])
_STORES = frozenset(["PutObject", "UploadPart"])


def operation_name(operation: str, method: str, *, is_website: bool = False) -> str:
    """Return how logs of S3 name an operation, such as REST.GET.OBJECT for GetObject."""
    kind = "WEBSITE" if is_website else "REST"
    if operation == PREFLIGHT:
        return f"{kind}.OPTIONS.PREFLIGHT"
    resource = _RESOURCES.get(operation)
    if resource is None:
        noun = _VERBS.sub("", operation, count=1)
        if noun.startswith("Bucket") and noun != "Bucket":
            noun = noun.removeprefix("Bucket").removesuffix("Configuration")
        resource = _WORDS.sub("_", noun).upper()
    return f"{kind}.{'COPY' if operation in _COPIES else method}.{resource}"


def log_line(
    record: Record, request: Request, reply: Reply | None, received_ms: int, tls: tuple[str, str] | None, http: str
) -> bytes:
    """Return the line of a request to a bucket that is logged, with its line end. `reply` is None if there was none.
    `tls` has the cipher suite and the version of TLS; `http` is the version of HTTP."""
    assert record.logged is not None
    headers: Mapping[str, str] = {} if reply is None else reply.headers
    time = datetime.fromtimestamp(received_ms / 1000, UTC)
    query = _query(request)
    signature, kind = _authentication(request, query)
    version = headers.get("x-amz-version-id") or "".join(query.get("versionId", []))
    fields = [
        record.logged.row.owner.encode(),
        quote(record.bucket).encode(),
        f"[{time:%d}/{_MONTHS[time.month - 1]}/{time:%Y:%H:%M:%S} +0000]".encode(),
        _unquoted(record.remote.encode()),
        (record.account or "-").encode(),
        record.request_id.encode(),
        operation_name(record.operation, record.method, is_website=record.is_website).encode(),
        quote(record.key.encode("utf-8", "surrogateescape")).encode() or b"-",
        b'"%b %b HTTP/%b"' % (request.method.encode(), _IN_QUOTES.sub(_percent, _target(request)), http.encode()),
        b"%d" % record.status,
        record.code.encode() or b"-",
        _number(record.sent),
        _object_size(record, request, reply),
        b"%d" % round(record.whole_s * 1000),
        b"%d" % round(record.first_byte_s * 1000),
        b'"%b"' % _quoted(_header(request, b"referer")),
        b'"%b"' % _quoted(_header(request, b"user-agent")),
        _unquoted(version.encode("utf-8", "surrogateescape")),
        b"-",  # host id
        signature,
        b"-" if tls is None else tls[0].encode(),
        kind,
        _unquoted(_header(request, b"host")),
        b"-" if tls is None else tls[1].encode(),
        b"-",  # access point
        b"-",  # whether an ACL was required
    ]
    return b" ".join(fields) + b"\n"


def _target(request: Request) -> bytes:
    """Return path and query as they were sent, without the parts that authenticate a request."""
    if not request.raw_query:
        return request.raw_path
    shown = []
    for pair in request.raw_query.split(b"&"):
        name, equals, _ = pair.partition(b"=")
        is_secret = _SECRET.fullmatch(unquote_to_bytes(name.replace(b"+", b" ")).lower()) is not None
        shown.append(name + equals + b"REDACTED" if is_secret else pair)
    return request.raw_path + b"?" + b"&".join(shown)


def _authentication(request: Request, query: Collection[str]) -> tuple[bytes, bytes]:
    """Return the version of the signature, and where it was sent."""
    if "X-Amz-Signature" in query:
        return b"SigV4", b"QueryString"
    if "Signature" in query:
        return b"SigV2", b"QueryString"
    return (b"SigV4", b"AuthHeader") if b"authorization" in request.header_values else (b"-", b"-")


def _object_size(record: Record, request: Request, reply: Reply | None) -> bytes:
    """Return the size of the object that was read or stored."""
    if reply is None or record.code:
        return b"-"
    if record.operation in _READS:
        of_range = reply.headers.get("content-range", "").rpartition("/")[2]
        return of_range.encode() or (_number(reply.size) if reply.status == 200 else b"-")
    if record.operation in _STORES:
        decoded = _header(request, b"x-amz-decoded-content-length")
        return _unquoted(decoded) if decoded else _number(record.received)
    return b"-"


def _query(request: Request) -> Mapping[str, list[str]]:
    """Return the parameters; none of a query that cannot be read."""
    try:
        return request.query
    except S3Error:
        return {}


def _header(request: Request, name: bytes) -> bytes:
    return b" ".join(request.header_values.get(name, []))[:FIELD_BYTES_MAX]


def _number(number: int) -> bytes:
    return b"%d" % number if number else b"-"


def _quoted(text: bytes) -> bytes:
    return _IN_QUOTES.sub(_percent, text) or b"-"


def _unquoted(text: bytes) -> bytes:
    return _BETWEEN_SPACES.sub(_percent, text) or b"-"


def _percent(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
