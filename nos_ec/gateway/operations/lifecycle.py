"""Operations on the lifecycle configuration of a bucket, and the headers that tell a client when an object expires or
an upload is aborted. GC applies the rules (engine/expiry/lifecycle_walk.py)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from nos_ec.core.expiry import BucketRules, Expiry, decode_rules, encode_rules, transition_minimum_of
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.object_headers import http_date, tags_of
from nos_ec.gateway.message.reply import empty, xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.gateway.operations.lifecycle_xml import rules_of, xml_of
from nos_ec.ports.metadata import DocumentKind, ObjectRow, UploadRow
from nos_ec.ports.metadata.buckets import DOCUMENT_BYTES_MAX
from nos_ec.s3.errors import S3Error, invalid_argument

_MINIMUM_SIZE_HEADER = "x-amz-transition-default-minimum-object-size"
_MINIMUM_SIZES = ("all_storage_classes_128K", "varies_by_storage_class")
"""The allowed values of that header; the first one is the default of S3. The header is about transitions between
storage classes, which this store does not support. It is stored all the same, because clients wait until a GET returns
the value that they have set."""
_EXPIRY_MS_MAX = 253_402_214_400_000
"""9999-12-31T00:00:00Z. Objects expire at midnight, and a date in a header has a year of four digits."""


def _parse(call: Call, _: Access) -> bytes:
    minimum = call.request.header(_MINIMUM_SIZE_HEADER) or _MINIMUM_SIZES[0]
    if minimum not in _MINIMUM_SIZES:
        raise invalid_argument(
            f"{_MINIMUM_SIZE_HEADER} must be one of {', '.join(_MINIMUM_SIZES)}.", _MINIMUM_SIZE_HEADER, minimum
        )
    stored = encode_rules(rules_of(read_document(call)), minimum)
    if len(stored) > DOCUMENT_BYTES_MAX:
        raise S3Error(
            "InvalidRequest",
            f"The rules have {len(stored)} bytes when compressed; the maximum is {DOCUMENT_BYTES_MAX}.",
        )
    return stored


def _minimum_size_header(stored: bytes) -> dict[str, str]:
    return {_MINIMUM_SIZE_HEADER: transition_minimum_of(stored) or _MINIMUM_SIZES[0]}


LIFECYCLE = DocumentType(
    DocumentKind.LIFECYCLE,
    _parse,
    ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    get_reply=lambda _, stored: xml(xml_of(decode_rules(stored)), _minimum_size_header(stored)),
    put_reply=lambda stored: empty(_minimum_size_header(stored)),
)
"""Rules without an id get a generated one in a PUT, and GET returns it."""


def expiry_headers(rules: BucketRules | None, row: ObjectRow, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the header `x-amz-expiration`, or no header if the object does not expire. `attributes` are the attributes
    of the object. A noncurrent version has no such header, because its expiry depends on newer versions."""
    if rules is None or row.is_noncurrent:
        return {}
    expiry = rules.expiry(row.key.name, row.users_size, lambda: tags_of(attributes), row.created_ms)
    if expiry is None:
        return {}
    return {"x-amz-expiration": f'expiry-date="{_date(expiry)}", rule-id="{quote(expiry.rule_id, safe="")}"'}


def abort_headers(rules: BucketRules | None, upload: UploadRow) -> dict[str, str]:
    """Return the headers `x-amz-abort-date` and `x-amz-abort-rule-id`, or no headers if no rule aborts the upload."""
    expiry = None if rules is None else rules.upload_expiry(upload.key.name, upload.since_ms)
    if expiry is None:
        return {}
    return {"x-amz-abort-date": _date(expiry), "x-amz-abort-rule-id": quote(expiry.rule_id, safe="")}


def _date(expiry: Expiry) -> str:
    return http_date(min(expiry.due_ms, _EXPIRY_MS_MAX))
