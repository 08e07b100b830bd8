"""Error codes of S3, and the HTTP status of each.

Source: "Error responses" of the S3 API reference (ErrorResponses), and the operations' own pages. Messages are ours.
"""

from __future__ import annotations

STATUS_OF = {
    "AccessControlListNotSupported": 400,
    "AccessDenied": 403,
    "AccessForbidden": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BadRequest": 400,
    "BucketAlreadyExists": 409,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "ConditionalRequestConflict": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IllegalLocationConstraintException": 400,
    "IllegalVersioningConfigurationException": 400,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketAclWithObjectOwnership": 400,
    "InvalidBucketName": 400,
    "InvalidChunkSizeError": 403,
    "InvalidDigest": 400,
    "InvalidLocationConstraint": 400,
    "InvalidPart": 400,
    "InvalidPartOrder": 400,
    "InvalidPolicyDocument": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidStorageClass": 400,
    "InvalidTag": 400,
    "InvalidToken": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedACLError": 400,
    "MalformedPOSTRequest": 400,
    "MalformedPolicy": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MaxMessageLengthExceeded": 400,
    "MaxPostPreDataLengthExceededError": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "MissingSecurityHeader": 400,
    "MissingRequestBodyError": 400,
    "NoSuchBucket": 404,
    "NoSuchBucketPolicy": 404,
    "NoSuchCORSConfiguration": 404,
    "NoSuchConfiguration": 404,
    "NoSuchKey": 404,
    "NoSuchLifecycleConfiguration": 404,
    "NoSuchPublicAccessBlockConfiguration": 404,
    "NoSuchTagSet": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NoSuchWebsiteConfiguration": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "ObjectLockConfigurationNotFoundError": 404,
    "OwnershipControlsNotFoundError": 404,
    "PreconditionFailed": 412,
    "ReplicationConfigurationNotFoundError": 404,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ServerSideEncryptionConfigurationNotFoundError": 404,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "TooManyBuckets": 400,
    "UnexpectedContent": 400,
    "UnresolvableGrantByEmailAddress": 400,
    "XAmzContentChecksumMismatch": 400,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """The error that a request is answered with. `fields` are further elements of the answer, by their S3 names;
    `headers` are further headers."""

    def __init__(self, code: str, message: str, **fields: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = STATUS_OF[code]
        self.fields = fields
        self.headers: dict[str, str] = {}


def invalid_argument(message: str, name: str, value: str | None = None) -> S3Error:
    """Return the error for a header, query parameter or form field of this name. `value` is the value that was sent."""
    sent = {} if value is None else {"ArgumentValue": value}
    return S3Error("InvalidArgument", message, ArgumentName=name, **sent)
