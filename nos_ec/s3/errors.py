"""Error codes of S3, and the HTTP status of each.

Source: "Error responses" of the S3 API reference (ErrorResponses), and the operations' own pages. Messages are ours.
"""

from __future__ import annotations

_CODES = {
    304: "NotModified",
    400: "AccessControlListNotSupported AuthorizationHeaderMalformed AuthorizationQueryParametersError BadDigest"
    " BadRequest EntityTooLarge EntityTooSmall ExpiredToken IdempotencyParameterMismatch"
    " IllegalLocationConstraintException IllegalVersioningConfigurationException IncompleteBody InvalidArgument"
    " InvalidBucketAclWithObjectOwnership InvalidBucketName InvalidDigest InvalidLocationConstraint InvalidPart"
    " InvalidPartOrder InvalidPolicyDocument InvalidRedirectLocation InvalidRequest InvalidRetentionPeriod InvalidTag"
    " InvalidToken InvalidURI KeyTooLongError MalformedACLError MalformedPOSTRequest MalformedPolicy"
    " MalformedTrailerError MalformedXML MaxMessageLengthExceeded MaxPostPreDataLengthExceededError MetadataTooLarge"
    " MissingSecurityHeader MissingRequestBodyError RequestTimeout TooManyBuckets UnexpectedContent"
    " UnresolvableGrantByEmailAddress XAmzContentChecksumMismatch XAmzContentSHA256Mismatch InvalidStorageClass"
    " InvalidEncryptionAlgorithmError InvalidTargetBucketForLogging"
    # of the Key Management Service
    " KMS.NotFoundException"
    # of the Security Token Service
    " InvalidAction MalformedPolicyDocument MissingAction PackedPolicyTooLarge Throttling ValidationError",
    403: "AccessDenied AccessForbidden InvalidAccessKeyId InvalidChunkSizeError InvalidClientTokenId"
    " MissingAuthenticationToken QuotaExceeded RequestTimeTooSkewed SignatureDoesNotMatch",
    404: "NoSuchBucket NoSuchBucketPolicy NoSuchCORSConfiguration NoSuchConfiguration NoSuchKey"
    " NoSuchObjectLockConfiguration NoSuchLifecycleConfiguration NoSuchPublicAccessBlockConfiguration NoSuchTagSet"
    " NoSuchUpload NoSuchVersion NoSuchWebsiteConfiguration ObjectLockConfigurationNotFoundError"
    " OwnershipControlsNotFoundError ReplicationConfigurationNotFoundError"
    " ServerSideEncryptionConfigurationNotFoundError",
    405: "MethodNotAllowed",
    409: "BucketAlreadyExists BucketAlreadyOwnedByYou BucketNotEmpty ConditionalRequestConflict InvalidBucketState"
    " OperationAborted",
    411: "MissingContentLength",
    412: "PreconditionFailed",
    416: "InvalidRange",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable SlowDown",
}
"""The codes of each status."""
STATUS_OF = {code: status for status, codes in _CODES.items() for code in codes.split()}


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
