"""Translates the store's errors to S3 errors."""

from __future__ import annotations

import structlog

from nos_ec.core.errors import (
    Conflict,
    InvalidInput,
    LeaseLost,
    Locked,
    NosError,
    NoSpace,
    NoSuchUpload,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    Transient,
)
from nos_ec.s3.errors import S3Error

_log = structlog.get_logger(__name__)


def to_s3_error(error: Exception, **about: str) -> S3Error:
    """Return the S3 error for an exception. Logs the exception with the fields `about`, unless the client caused it."""
    if isinstance(error, S3Error):
        return error
    if isinstance(error, InvalidInput):
        return S3Error("InvalidArgument", str(error))
    if isinstance(error, PreconditionFailed):
        return S3Error("PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
    if isinstance(error, QuotaExceeded):
        return S3Error("QuotaExceeded", "The quota of the bucket, or of its owner, is used up.")
    if isinstance(error, NoSuchUpload):
        return no_such_upload()
    if isinstance(error, NotFound):
        return S3Error("NoSuchKey", "The specified key does not exist.")
    if isinstance(error, Locked):
        return S3Error("AccessDenied", "Access Denied because object protected by object lock.")
    if isinstance(error, Conflict) and not isinstance(error, LeaseLost):
        return S3Error("ConditionalRequestConflict", "The object was changed by another request meanwhile; try again.")
    if isinstance(error, Transient | LeaseLost):
        _log.warning("request not served", error=str(error), **about)
        if isinstance(error, NoSpace):
            return S3Error("ServiceUnavailable", "The store has no space left.")
        return S3Error("ServiceUnavailable", "Please try again.")
    if isinstance(error, NosError):
        _log.error("request failed", error=str(error), **about)
    else:
        _log.error("request failed", exc_info=error, **about)
    return S3Error("InternalError", "We encountered an internal error. Please try again.")


def headers_of_error(error: S3Error) -> dict[str, str]:
    """Return the headers of the answer to a request that failed with this error, except the headers about its body."""
    headers = dict(error.headers)
    if error.code == "InvalidRange":
        headers["content-range"] = f"bytes */{error.fields.get('ActualObjectSize', '*')}"
    if error.code in ("ServiceUnavailable", "SlowDown"):
        headers["retry-after"] = "1"
    return headers


def no_such_upload() -> S3Error:
    """Return the error for an upload that does not exist."""
    return S3Error(
        "NoSuchUpload",
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or"
        " completed.",
    )
