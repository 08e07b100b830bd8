"""Answers requests for bucket configurations that this store does not support, as S3 does for a bucket without them.

Programs that read the whole configuration of a bucket, such as infrastructure tools, ask for these, and delete them
before they delete a bucket; some are deleted by putting an empty one. Any other PUT is refused with 501. Source: the
errors and response syntax of each operation in the S3 API reference.
"""

from __future__ import annotations

from collections.abc import Mapping

from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.operations.bucket_documents import read_document
from nos_ec.ports.metadata import Rights
from nos_ec.s3 import answers, documents
from nos_ec.s3.errors import S3Error

_NOT_FOUND = {
    "GetBucketAnalyticsConfiguration": "NoSuchConfiguration",
    "GetBucketIntelligentTieringConfiguration": "NoSuchConfiguration",
    "GetBucketInventoryConfiguration": "NoSuchConfiguration",
    "GetBucketMetricsConfiguration": "NoSuchConfiguration",
    "GetBucketReplication": "ReplicationConfigurationNotFoundError",
}
_NONE_LISTED = (("IsTruncated", "false"),)
_EMPTY: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "GetBucketAccelerateConfiguration": ("AccelerateConfiguration", ()),
    "GetBucketRequestPayment": ("RequestPaymentConfiguration", (("Payer", "BucketOwner"),)),
    "ListBucketAnalyticsConfigurations": ("ListBucketAnalyticsConfigurationResult", _NONE_LISTED),
    "ListBucketIntelligentTieringConfigurations": ("ListBucketIntelligentTieringConfigurationsOutput", _NONE_LISTED),
    "ListBucketInventoryConfigurations": ("ListInventoryConfigurationsResult", _NONE_LISTED),
    "ListBucketMetricsConfigurations": ("ListMetricsConfigurationsResult", _NONE_LISTED),
}
_NOTHING_TO_DELETE = ("DeleteBucketReplication",)
_PUT_UNCHANGED = ("PutBucketRequestPayment",)
ABSENT_CONFIGURATIONS: Mapping[str, None] = dict.fromkeys([*_NOT_FOUND, *_EMPTY, *_NOTHING_TO_DELETE, *_PUT_UNCHANGED])
"""The operations on these configurations."""


def absent_configuration(call: Call) -> Reply:
    """Answer an operation on one of these configurations. Raises AccessDenied unless the owner sends it, and the error
    of S3 for a missing configuration."""
    call.require(Rights.OWNER)
    code = _NOT_FOUND.get(call.operation)
    if code is not None:
        raise S3Error(code, "The bucket has no such configuration.", BucketName=call.bucket)
    if call.operation in _EMPTY:
        root, fields = _EMPTY[call.operation]
        return xml(answers.configuration(root, *fields))
    if call.operation in _PUT_UNCHANGED:
        _require_unchanged(call)
        return empty()
    return empty(status=204)


def _require_unchanged(call: Call) -> None:
    """Raise NotImplemented unless the document is the one that a GET returns. Raises the S3Errors of
    `read_document`."""
    root, fields = _EMPTY[call.operation.replace("Put", "Get", 1)]
    sent = documents.parse(read_document(call), root)
    if tuple((child.name, child.text.strip()) for child in sent.children) != fields:
        raise S3Error("NotImplemented", f"{call.operation} is supported only for a {root} that changes nothing.")
