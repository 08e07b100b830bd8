"""Answers requests: who sends them, what they ask for, whether they may, and the operation.

Whatever fails is answered with the error codes of S3. What it was is logged, if it is not the client's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from urllib.parse import unquote

import structlog

from nos_ec.core.errors import (
    Conflict,
    InvalidInput,
    LeaseLost,
    NosError,
    NoSpace,
    NotFound,
    PreconditionFailed,
    Transient,
)
from nos_ec.gateway.access import Access
from nos_ec.gateway.body import Source
from nos_ec.gateway.bucket_operations import BucketOperations
from nos_ec.gateway.call import Call
from nos_ec.gateway.listings import Listings
from nos_ec.gateway.object_operations import ObjectOperations
from nos_ec.gateway.reply import Reply
from nos_ec.ports.clock import Clock
from nos_ec.s3.answers import error_answer
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import addressed
from nos_ec.s3.operations import operation_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Signed, read_claim, unsigned, verify

_log = structlog.get_logger(__name__)

_WITHOUT_BUCKET = frozenset(["ListBuckets", "CreateBucket"])
"""Operations that need no bucket to be there."""


class Service:
    """Safe to call from several threads."""

    def __init__(
        self,
        access: Access,
        buckets: BucketOperations,
        listings: Listings,
        objects: ObjectOperations,
        clock: Clock,
        domains: Collection[str],
    ) -> None:
        self._access = access
        self._clock = clock
        self._domains = domains
        self._operations: Mapping[str, Callable[[Call], Reply]] = {
            "ListBuckets": buckets.list_buckets,
            "CreateBucket": buckets.create_bucket,
            "HeadBucket": buckets.head_bucket,
            "DeleteBucket": buckets.delete_bucket,
            "GetBucketLocation": buckets.get_location,
            "GetBucketVersioning": buckets.get_versioning,
            "GetBucketAcl": buckets.get_acl,
            "PutBucketAcl": buckets.put_acl,
            "GetBucketTagging": buckets.get_tagging,
            "PutBucketTagging": buckets.put_tagging,
            "DeleteBucketTagging": buckets.delete_tagging,
            "ListObjects": listings.list_objects,
            "ListObjectsV2": listings.list_objects_v2,
            "ListObjectVersions": listings.list_object_versions,
            "GetObject": objects.get_object,
            "HeadObject": objects.head_object,
            "GetObjectAttributes": objects.get_attributes,
            "PutObject": objects.put_object,
            "CopyObject": objects.copy_object,
            "DeleteObject": objects.delete_object,
            "DeleteObjects": objects.delete_objects,
            "GetObjectTagging": objects.get_tagging,
            "PutObjectTagging": objects.put_tagging,
            "DeleteObjectTagging": objects.delete_tagging,
            "GetObjectAcl": objects.get_acl,
            "PutObjectAcl": objects.put_acl,
        }

    def answer(self, request: Request, source: Source, request_id: str) -> Reply:
        """Never raises."""
        try:
            reply = self._answer(request, source)
        except S3Error as error:
            reply = _refusal(request, error, request_id)
        except Exception as error:
            reply = _refusal(request, translated(error, request_id), request_id)
        return _finished(request, reply, request_id)

    def refuse(self, request: Request, error: S3Error, request_id: str) -> Reply:
        """Answer a request that failed before it was looked at."""
        return _finished(request, _refusal(request, error, request_id), request_id)

    def _answer(self, request: Request, source: Source) -> Reply:
        bucket, key = addressed(request.raw_path, request.header("host"), self._domains)
        operation = operation_of(request, bucket, key)
        run = self._operations.get(operation)
        if run is None:
            raise S3Error("NotImplemented", f"{operation} is not supported yet.")
        account, signed = self._sender(request)
        if operation == "HeadBucket":
            self._access.forget_bucket(
                bucket or ""
            )  # another gateway may just have deleted it, and clients ask for that
        access = None if operation in _WITHOUT_BUCKET else self._access.bucket(bucket or "")
        expected = request.header("x-amz-expected-bucket-owner")
        if access is not None and expected not in (None, access.row.owner):
            raise S3Error("AccessDenied", "The bucket has another owner than was expected.")
        return run(Call(request, operation, bucket or "", key or "", account, signed, source, access))

    def _sender(self, request: Request) -> tuple[str | None, Signed | None]:
        """The account that has signed the request, and what it has signed; None for an anonymous one."""
        claim = read_claim(request, self._clock.now_ms())
        if claim is None:
            return None, unsigned(request)
        account = self._access.account(claim.access_key)
        signed = verify(request, claim, None if account is None else account.secret)
        return None if account is None else account.name, signed


def _finished(request: Request, reply: Reply, request_id: str) -> Reply:
    reply.headers["x-amz-request-id"] = request_id
    if request.method == "HEAD":
        reply.length, reply.body = reply.size, b""
    return reply


def translated(error: Exception, request_id: str) -> S3Error:
    """What a failure of the store is answered with. Logs those that are not the client's fault."""
    if isinstance(error, InvalidInput):
        return S3Error("InvalidArgument", str(error))
    if isinstance(error, PreconditionFailed):
        return S3Error("PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
    if isinstance(error, NotFound):
        return S3Error("NoSuchKey", "The specified key does not exist.")
    if isinstance(error, Conflict) and not isinstance(error, LeaseLost):
        return S3Error("ConditionalRequestConflict", "The object was changed by another request meanwhile; try again.")
    if isinstance(error, Transient | LeaseLost):
        _log.warning("request not served", request_id=request_id, error=str(error))
        if isinstance(error, NoSpace):
            return S3Error("ServiceUnavailable", "The store has no space left.")
        return S3Error("ServiceUnavailable", "Please try again.")
    if isinstance(error, NosError):
        _log.error("request failed", request_id=request_id, error=str(error))
    else:
        _log.exception("request failed", request_id=request_id)
    return S3Error("InternalError", "We encountered an internal error. Please try again.")


def _refusal(request: Request, error: S3Error, request_id: str) -> Reply:
    headers = {"content-type": "application/xml"}
    if error.status == 304:
        return Reply(304, {})
    if error.code == "InvalidRange":
        headers["content-range"] = f"bytes */{error.fields.get('ActualObjectSize', '*')}"
    if error.code in ("ServiceUnavailable", "SlowDown"):
        headers["retry-after"] = "1"
    resource = unquote(request.raw_path.decode("latin-1"), errors="replace")
    return Reply(error.status, headers, error_answer(error, resource, request_id, ""))
