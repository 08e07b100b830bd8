"""The lifecycle configuration of a bucket, and the headers with the date when an object expires. GC applies the rules
(engine/expiry/lifecycle_walk.py)."""

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
from nos_ec.s3.errors import S3Error

_MINIMUM = "x-amz-transition-default-minimum-object-size"
_MINIMA = ("all_storage_classes_128K", "varies_by_storage_class")
"""The values of that header; the first one is the default of S3. It concerns transitions, which the store does not
support, but clients wait until they read back the value that they have set."""
_TIME_MS_MAX = 253_402_214_400_000
"""The end of the year 9999, the last date that a header can contain."""


def _parse(call: Call, _: Access) -> bytes:
    minimum = call.request.header(_MINIMUM) or _MINIMA[0]
    if minimum not in _MINIMA:
        raise S3Error(
            "InvalidArgument",
            f"{_MINIMUM} must be one of {', '.join(_MINIMA)}.",
            ArgumentName=_MINIMUM,
            ArgumentValue=minimum,
        )
    stored = encode_rules(rules_of(read_document(call)), minimum)
    if len(stored) > DOCUMENT_BYTES_MAX:
        raise S3Error(
            "InvalidRequest",
            f"The rules have {len(stored)} bytes when compressed; the maximum is {DOCUMENT_BYTES_MAX}.",
        )
    return stored


def _minimum_header(stored: bytes) -> dict[str, str]:
    return {_MINIMUM: transition_minimum_of(stored) or _MINIMA[0]}


LIFECYCLE = DocumentType(
    DocumentKind.LIFECYCLE,
    _parse,
    ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    shown=lambda _, stored: xml(xml_of(decode_rules(stored)), _minimum_header(stored)),
    done=lambda stored: empty(_minimum_header(stored)),
)
"""GET returns the rules with the ids that were generated for rules without one."""


def expiry_headers(rules: BucketRules | None, row: ObjectRow, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the header `x-amz-expiration`; none if the object does not expire. `attributes` are those of the object.
    Noncurrent versions have no such header, because their expiry depends on newer versions."""
    if rules is None or row.is_noncurrent:
        return {}
    expiry = rules.expiry(row.key.name, row.users_size, lambda: tags_of(attributes), row.created_ms)
    if expiry is None:
        return {}
    return {"x-amz-expiration": f'expiry-date="{_date(expiry)}", rule-id="{quote(expiry.rule_id, safe="")}"'}


def abort_headers(rules: BucketRules | None, upload: UploadRow) -> dict[str, str]:
    """Return the headers `x-amz-abort-date` and `x-amz-abort-rule-id`; none if no rule aborts the upload."""
    expiry = None if rules is None else rules.upload_expiry(upload.key.name, upload.since_ms)
    if expiry is None:
        return {}
    return {"x-amz-abort-date": _date(expiry), "x-amz-abort-rule-id": quote(expiry.rule_id, safe="")}


def _date(expiry: Expiry) -> str:
    return http_date(min(expiry.due_ms, _TIME_MS_MAX))
