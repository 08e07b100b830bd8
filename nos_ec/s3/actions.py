"""The S3 actions that bucket policies name, and the actions that each operation needs.

Source: "Required permissions for Amazon S3 API operations" of the S3 user guide; "Actions, resources, and condition
keys for Amazon S3" of the service authorization reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType


def _each(actions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {operation: (action,) for action, operations in actions.items() for operation in operations.split()}


BUCKET_ACTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    _each(
        {
            "s3:DeleteBucket": "DeleteBucket",
            "s3:DeleteBucketPolicy": "DeleteBucketPolicy",
            "s3:DeleteBucketWebsite": "DeleteBucketWebsite",
            "s3:GetAccelerateConfiguration": "GetBucketAccelerateConfiguration",
            "s3:GetAnalyticsConfiguration": "GetBucketAnalyticsConfiguration ListBucketAnalyticsConfigurations",
            "s3:GetBucketAcl": "GetBucketAcl",
            "s3:GetBucketCORS": "GetBucketCors",
            "s3:GetBucketLocation": "GetBucketLocation",
            "s3:GetBucketLogging": "GetBucketLogging",
            "s3:GetBucketNotification": "GetBucketNotificationConfiguration",
            "s3:GetBucketObjectLockConfiguration": "GetObjectLockConfiguration",
            "s3:GetBucketOwnershipControls": "GetBucketOwnershipControls",
            "s3:GetBucketPolicy": "GetBucketPolicy",
            "s3:GetBucketPolicyStatus": "GetBucketPolicyStatus",
            "s3:GetBucketPublicAccessBlock": "GetPublicAccessBlock",
            "s3:GetBucketRequestPayment": "GetBucketRequestPayment",
            "s3:GetBucketTagging": "GetBucketTagging",
            "s3:GetBucketVersioning": "GetBucketVersioning",
            "s3:GetBucketWebsite": "GetBucketWebsite",
            "s3:GetEncryptionConfiguration": "GetBucketEncryption",
            "s3:GetIntelligentTieringConfiguration": "GetBucketIntelligentTieringConfiguration"
            " ListBucketIntelligentTieringConfigurations",
            "s3:GetInventoryConfiguration": "GetBucketInventoryConfiguration ListBucketInventoryConfigurations",
            "s3:GetLifecycleConfiguration": "GetBucketLifecycleConfiguration",
            "s3:GetMetricsConfiguration": "GetBucketMetricsConfiguration ListBucketMetricsConfigurations",
            "s3:GetReplicationConfiguration": "GetBucketReplication",
            "s3:ListBucket": "HeadBucket ListObjects ListObjectsV2",
            "s3:ListBucketMultipartUploads": "ListMultipartUploads",
            "s3:ListBucketVersions": "ListObjectVersions",
            "s3:PutBucketAcl": "PutBucketAcl",
            "s3:PutBucketCORS": "PutBucketCors DeleteBucketCors",
            "s3:PutBucketLogging": "PutBucketLogging",
            "s3:PutBucketObjectLockConfiguration": "PutObjectLockConfiguration",
            "s3:PutBucketNotification": "PutBucketNotificationConfiguration",
            "s3:PutBucketOwnershipControls": "PutBucketOwnershipControls DeleteBucketOwnershipControls",
            "s3:PutBucketPolicy": "PutBucketPolicy",
            "s3:PutBucketPublicAccessBlock": "PutPublicAccessBlock DeletePublicAccessBlock",
            "s3:PutBucketRequestPayment": "PutBucketRequestPayment",
            "s3:PutBucketTagging": "PutBucketTagging DeleteBucketTagging",
            "s3:PutBucketVersioning": "PutBucketVersioning",
            "s3:PutBucketWebsite": "PutBucketWebsite",
            "s3:PutEncryptionConfiguration": "PutBucketEncryption DeleteBucketEncryption",
            "s3:PutLifecycleConfiguration": "PutBucketLifecycleConfiguration DeleteBucketLifecycle",
            "s3:PutReplicationConfiguration": "DeleteBucketReplication",
        }
    )
)
"""By operation on a bucket. The resource is the bucket."""

OBJECT_ACTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    _each(
        {
            "s3:AbortMultipartUpload": "AbortMultipartUpload",
            "s3:DeleteObject": "DeleteObject",
            "s3:DeleteObjectTagging": "DeleteObjectTagging",
            "s3:GetObject": "GetObject HeadObject",
            "s3:GetObjectAcl": "GetObjectAcl",
            "s3:GetObjectLegalHold": "GetObjectLegalHold",
            "s3:GetObjectRetention": "GetObjectRetention",
            "s3:GetObjectTagging": "GetObjectTagging",
            "s3:ListMultipartUploadParts": "ListParts",
            "s3:PutObject": "PutObject PostObject CopyObject RenameObject CreateMultipartUpload UploadPart"
            " UploadPartCopy CompleteMultipartUpload",
            "s3:PutObjectAcl": "PutObjectAcl",
            "s3:PutObjectLegalHold": "PutObjectLegalHold",
            "s3:PutObjectRetention": "PutObjectRetention",
            "s3:PutObjectTagging": "PutObjectTagging",
        }
    )
    | {"GetObjectAttributes": ("s3:GetObject", "s3:GetObjectAttributes")}
)
"""By operation on an object. The resource is the object."""

BY_KEY: Mapping[str, str] = MappingProxyType({"DeleteObjects": "DeleteObject"})
"""Operations on several objects, each with the single-object operation whose action every object needs."""
WITHOUT_ACTION = frozenset(["ListBuckets", "CreateBucket"])
"""Operations that a bucket policy cannot allow or deny."""
OF_VERSION: Mapping[str, str] = MappingProxyType(
    {
        "s3:DeleteObject": "s3:DeleteObjectVersion",
        "s3:DeleteObjectTagging": "s3:DeleteObjectVersionTagging",
        "s3:GetObject": "s3:GetObjectVersion",
        "s3:GetObjectAcl": "s3:GetObjectVersionAcl",
        "s3:GetObjectAttributes": "s3:GetObjectVersionAttributes",
        "s3:GetObjectTagging": "s3:GetObjectVersionTagging",
        "s3:PutObjectAcl": "s3:PutObjectVersionAcl",
        "s3:PutObjectTagging": "s3:PutObjectVersionTagging",
    }
)
"""The actions that are needed instead when the request names a version."""
_OTHERS_ON_OBJECTS = (
    "BypassGovernanceRetention GetObjectTorrent GetObjectVersionTorrent ObjectOwnerOverrideToBucketOwner"
    " ReplicateDelete ReplicateObject ReplicateTags RestoreObject"
)
_OTHERS = (
    "CreateBucket ListAllMyBuckets PutAccelerateConfiguration PutAnalyticsConfiguration"
    " PutIntelligentTieringConfiguration PutInventoryConfiguration PutMetricsConfiguration"
)


def _in_lower_case(actions: Iterable[tuple[str, ...]], others: str) -> frozenset[str]:
    return frozenset(one.lower() for several in actions for one in several) | {
        f"s3:{one.lower()}" for one in others.split()
    }


ACTIONS_ON_OBJECTS = _in_lower_case([*OBJECT_ACTIONS.values(), tuple(OF_VERSION.values())], _OTHERS_ON_OBJECTS)
ACTIONS_ON_BUCKETS = _in_lower_case(BUCKET_ACTIONS.values(), _OTHERS)
KNOWN_ACTIONS = ACTIONS_ON_OBJECTS | ACTIONS_ON_BUCKETS
"""All actions that a policy may name, in lower case. Others are refused: a misspelt name would have no effect."""
