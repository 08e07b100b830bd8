"""Finds the operation of a request.

Source: the request syntax of each operation in the S3 API reference. Operations differ in their method, in whether they
name a bucket and a key, in one query parameter (the subresource, such as `?acl`), and a few in a header or in a further
parameter. S3 operations that are not supported are known by name and answered with NotImplemented, so that no request
is mistaken for another: a PUT with `?encryption` never stores an object.

Parameters that begin with `x-` never decide the operation. Headers in the query of a presigned URL must have been moved
to the headers before (nos_ec.s3.hoisted).
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from nos_ec.s3.actions import BUCKET_ACTIONS, BY_KEY, OBJECT_ACTIONS, WITHOUT_ACTION
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.hoisted import is_presigned
from nos_ec.s3.names import check_version_id
from nos_ec.s3.request import Request

POST_FORM = "PostObject"
"""An upload by a form, whose sender is named in its body."""
SERVED = frozenset([*BUCKET_ACTIONS, *OBJECT_ACTIONS, *BY_KEY, *WITHOUT_ACTION]) - {POST_FORM}
"""The operations that a gateway serves. All others in the tables below are answered with NotImplemented."""
PREFLIGHT = "OPTIONS"
"""The request that a browser sends before a cross-origin request."""


class _Place(Enum):
    SERVICE = "service"
    BUCKET = "bucket"
    KEY = "key"


_PLAIN = {
    ("GET", _Place.SERVICE): "ListBuckets",
    ("PUT", _Place.BUCKET): "CreateBucket",
    ("HEAD", _Place.BUCKET): "HeadBucket",
    ("DELETE", _Place.BUCKET): "DeleteBucket",
    ("GET", _Place.BUCKET): "ListObjects",
    ("POST", _Place.BUCKET): POST_FORM,
    ("GET", _Place.KEY): "GetObject",
    ("HEAD", _Place.KEY): "HeadObject",
    ("PUT", _Place.KEY): "PutObject",
    ("DELETE", _Place.KEY): "DeleteObject",
}
"""Operations without a subresource."""


def _operations(noun: str, methods: str = "GET PUT DELETE") -> dict[str, str]:
    """Return the operations of these methods on a subresource, such as GetBucketCors for BucketCors."""
    return {method: method.capitalize() + noun for method in methods.split()}


_SUBRESOURCES: dict[_Place, dict[str, dict[str, str]]] = {
    _Place.SERVICE: {},
    _Place.BUCKET: {
        "abac": _operations("BucketAbac", "GET PUT"),
        "accelerate": _operations("BucketAccelerateConfiguration", "GET PUT"),
        "acl": _operations("BucketAcl", "GET PUT"),
        "analytics": _operations("BucketAnalyticsConfiguration"),
        "cors": _operations("BucketCors"),
        "delete": {"POST": "DeleteObjects"},
        "encryption": _operations("BucketEncryption"),
        "intelligent-tiering": _operations("BucketIntelligentTieringConfiguration"),
        "inventory": _operations("BucketInventoryConfiguration"),
        "lifecycle": {
            "GET": "GetBucketLifecycleConfiguration",
            "PUT": "PutBucketLifecycleConfiguration",
            "DELETE": "DeleteBucketLifecycle",
        },
        "location": {"GET": "GetBucketLocation"},
        "logging": _operations("BucketLogging", "GET PUT"),
        "metadataAnnotationTable": {"PUT": "UpdateBucketMetadataAnnotationTableConfiguration"},
        "metadataConfiguration": {
            "GET": "GetBucketMetadataConfiguration",
            "POST": "CreateBucketMetadataConfiguration",
            "DELETE": "DeleteBucketMetadataConfiguration",
        },
        "metadataInventoryTable": {"PUT": "UpdateBucketMetadataInventoryTableConfiguration"},
        "metadataJournalTable": {"PUT": "UpdateBucketMetadataJournalTableConfiguration"},
        "metadataTable": {
            "GET": "GetBucketMetadataTableConfiguration",
            "POST": "CreateBucketMetadataTableConfiguration",
            "DELETE": "DeleteBucketMetadataTableConfiguration",
        },
        "metrics": _operations("BucketMetricsConfiguration"),
        "notification": _operations("BucketNotificationConfiguration", "GET PUT"),
        "object-lock": _operations("ObjectLockConfiguration", "GET PUT"),
        "ownershipControls": _operations("BucketOwnershipControls"),
        "policy": _operations("BucketPolicy"),
        "policyStatus": {"GET": "GetBucketPolicyStatus"},
        "publicAccessBlock": _operations("PublicAccessBlock"),
        "replication": _operations("BucketReplication"),
        "requestPayment": _operations("BucketRequestPayment", "GET PUT"),
        "session": {"GET": "CreateSession"},
        "tagging": _operations("BucketTagging"),
        "uploads": {"GET": "ListMultipartUploads"},
        "versioning": _operations("BucketVersioning", "GET PUT"),
        "versions": {"GET": "ListObjectVersions"},
        "website": _operations("BucketWebsite"),
    },
    _Place.KEY: {
        "acl": _operations("ObjectAcl", "GET PUT"),
        "annotation": _operations("ObjectAnnotation"),
        "attributes": {"GET": "GetObjectAttributes"},
        "encryption": {"PUT": "UpdateObjectEncryption"},
        "legal-hold": _operations("ObjectLegalHold", "GET PUT"),
        "renameObject": {"PUT": "RenameObject"},
        "restore": {"POST": "RestoreObject"},
        "retention": _operations("ObjectRetention", "GET PUT"),
        "select": {"POST": "SelectObjectContent"},
        "tagging": _operations("ObjectTagging"),
        "torrent": {"GET": "GetObjectTorrent"},
        "uploadId": {
            "GET": "ListParts",
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        },
        "uploads": {"POST": "CreateMultipartUpload"},
    },
}

_OF_AN_OBJECT = (
    "partNumber response-cache-control response-content-disposition response-content-encoding"
    " response-content-language response-content-type response-expires"
)
_PARAMETERS = {
    "ListBuckets": "max-buckets continuation-token prefix bucket-region",
    "ListObjects": "delimiter encoding-type marker max-keys prefix",
    "ListObjectsV2": "list-type delimiter encoding-type max-keys prefix continuation-token fetch-owner start-after",
    "ListObjectVersions": "versions delimiter encoding-type key-marker max-keys prefix version-id-marker",
    **{f"GetBucket{kind}Configuration": "id" for kind in ("Analytics", "IntelligentTiering", "Inventory", "Metrics")},
    **{
        f"ListBucket{kind}Configurations": "continuation-token"
        for kind in ("Analytics", "IntelligentTiering", "Inventory", "Metrics")
    },
    "ListMultipartUploads": "uploads delimiter encoding-type key-marker max-uploads prefix upload-id-marker",
    "GetObject": _OF_AN_OBJECT,
    "HeadObject": _OF_AN_OBJECT,
    "UploadPart": "partNumber uploadId",
    "UploadPartCopy": "partNumber uploadId",
    "ListParts": "uploadId max-parts part-number-marker",
    "CompleteMultipartUpload": "uploadId",
    "AbortMultipartUpload": "uploadId",
}
"""Parameters of operations that have more than a subresource and `versionId`."""

_CHANGES = frozenset(["CreateBucket", "DeleteBucket", "PutObject", "CopyObject", "DeleteObject"])
"""Operations without a subresource that change something. They refuse unknown parameters, because these may be new
subresources of S3. Names that begin with `x-` belong to the client, as in S3."""
_OF_VERSION_2 = frozenset(["AWSAccessKeyId", "Signature", "Expires", "content-md5", "content-type"])
"""Query parameters of presigned URLs of Signature Version 2."""
_NO_VERSION = frozenset(
    ["PutObject", "CopyObject", "RenameObject", "UploadPart", "UploadPartCopy", "CreateMultipartUpload"]
)


def operation_of(request: Request, bucket: str | None, key: str | None) -> str:
    """Return the name of the operation in the S3 API reference: one of SERVED, POST_FORM or PREFLIGHT. bucket, key: the
    result of `names.addressed`.

    Raises S3Error: NotImplemented for an unsupported operation; InvalidArgument for two subresources, a parameter that
    was sent twice, or an empty version id; MethodNotAllowed for a method that S3 does not have there."""
    if request.method == "OPTIONS" and bucket is not None:
        return PREFLIGHT
    name = _name_of(request, _place(bucket, key))
    if name not in SERVED and name != POST_FORM:
        raise S3Error("NotImplemented", f"{name} is not supported.")
    for parameter in parameters_of(name) & request.query.keys():
        request.parameter(parameter)
    check_version_id(request.parameter("versionId"))
    if name in _NO_VERSION and "versionId" in request.query:
        raise invalid_argument("This operation does not accept a version id.", "versionId")
    if name in _CHANGES:
        for parameter in request.query.keys() - {"versionId"} - (_OF_VERSION_2 if is_presigned(request) else set()):
            if not parameter.lower().startswith("x-"):
                raise S3Error("NotImplemented", f"The query parameter {parameter!r} is not supported.")
    return name


@cache
def parameters_of(operation: str) -> frozenset[str]:
    """Return the query parameters of an operation, each of which may be sent once."""
    return frozenset(_PARAMETERS.get(operation, "").split()) | {"versionId"}


def _place(bucket: str | None, key: str | None) -> _Place:
    if bucket is None:
        return _Place.SERVICE
    return _Place.BUCKET if key is None else _Place.KEY


def _name_of(request: Request, place: _Place) -> str:
    method, subresources = request.method, _SUBRESOURCES[place]
    asked = [name for name in request.query if name in subresources]
    if len(asked) > 1:
        raise S3Error("InvalidArgument", f"Conflicting query parameters: {', '.join(sorted(asked))}.")
    if asked:
        request.parameter(asked[0])
        name = _with_subresource(request, place, asked[0])
    else:
        found = _PLAIN.get((method, place))
        if found is None:
            raise _not_allowed(method, place)
        name = found
    if name == "ListBuckets" and "max-directory-buckets" in request.query:
        return "ListDirectoryBuckets"
    if name == "ListObjects" and (kind := request.parameter("list-type")) is not None:
        if kind != "2":
            raise invalid_argument("list-type must be 2.", "list-type", kind)
        return "ListObjectsV2"
    source = request.header("x-amz-copy-source")
    if name in ("PutObject", "UploadPart") and source is not None:
        return {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}[name]
    if source is not None:
        raise invalid_argument(
            "You can only specify a copy source header for copy requests.", "x-amz-copy-source", source
        )
    renamed = request.header("x-amz-rename-source")
    if renamed is not None and name != "RenameObject":
        # Signature Version 2 covers this header, but not the parameter that makes the request a rename.
        raise invalid_argument("x-amz-rename-source needs the parameter renameObject.", "x-amz-rename-source", renamed)
    if name == "PutObject":
        if "partNumber" in request.query:
            raise invalid_argument("partNumber needs an uploadId.", "uploadId")
        if request.header("x-amz-write-offset-bytes") is not None:
            raise S3Error("NotImplemented", "Appending to objects is not supported.")
    return name


def _with_subresource(request: Request, place: _Place, subresource: str) -> str:
    method = request.method
    name = _SUBRESOURCES[place][subresource].get(method)
    if name is None:
        raise _not_allowed(method, place)
    if name == "UploadPart" and "partNumber" not in request.query:
        raise invalid_argument("This operation needs a partNumber.", "partNumber")
    if method == "GET" and "id" not in request.query and subresource in _LISTED:
        return _LISTED[subresource]
    if name == "GetObjectAnnotation" and "annotationName" not in request.query:
        return "ListObjectAnnotations"
    return name


_LISTED = {
    "analytics": "ListBucketAnalyticsConfigurations",
    "intelligent-tiering": "ListBucketIntelligentTieringConfigurations",
    "inventory": "ListBucketInventoryConfigurations",
    "metrics": "ListBucketMetricsConfigurations",
}
"""The operations of a GET without an `id`."""


def _not_allowed(method: str, place: _Place) -> S3Error:
    return S3Error(
        "MethodNotAllowed",
        "The specified method is not allowed against this resource.",
        Method=method,
        ResourceType="OBJECT" if place is _Place.KEY else place.name,
    )
