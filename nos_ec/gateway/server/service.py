"""Serves requests: finds the operation, authenticates the sender, evaluates the bucket policy, runs the operation.

Every failure is answered with an error code of S3, and is logged unless the client caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol
from urllib.parse import unquote

from nos_ec.core.errors import NosError
from nos_ec.core.notifications.origin import Origin, caused_by
from nos_ec.core.quotas.quota import ANONYMOUS
from nos_ec.gateway.auth.access import Access, Sender
from nos_ec.gateway.message.body import BodyWanted, Source
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.failures import headers_of_error, to_s3_error
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.absent_configurations import ABSENT_CONFIGURATIONS, absent_configuration
from nos_ec.gateway.operations.bucket_documents import BucketDocuments, DocumentType
from nos_ec.gateway.operations.bucket_logging import BucketLogging, LogObject
from nos_ec.gateway.operations.bucket_operations import BUCKET_TAGS, OWNERSHIP, PUBLIC_ACCESS, BucketOperations
from nos_ec.gateway.operations.cors import CORS, Cors
from nos_ec.gateway.operations.lifecycle import LIFECYCLE
from nos_ec.gateway.operations.listings import Listings
from nos_ec.gateway.operations.multipart_operations import MultipartOperations
from nos_ec.gateway.operations.notifications import origin_of
from nos_ec.gateway.operations.object_locks import OBJECT_LOCK, ObjectLockOperations
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import POLICY, POLICY_STATUS, apply_policy, require_in_session
from nos_ec.gateway.operations.post_forms import PostForms
from nos_ec.gateway.operations.renames import RenameOperations
from nos_ec.gateway.operations.security_tokens import SecurityTokens
from nos_ec.gateway.operations.websites import WEBSITE, Websites, error_page
from nos_ec.gateway.server.rate_limits import RateLimits
from nos_ec.gateway.server.record import Record
from nos_ec.ports.clock import Clock
from nos_ec.s3.answers import error_answer
from nos_ec.s3.errors import S3Error
from nos_ec.s3.hoisted import with_hoisted
from nos_ec.s3.names import addressed, bucket_of_host
from nos_ec.s3.operations import POST_FORM, PREFLIGHT, operation_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Signed, read_claim, unsigned, verify
from nos_ec.s3.signing_v2 import read_claim_v2, verify_v2
from nos_ec.s3.sts import is_sts

_WITHOUT_BUCKET = frozenset(["ListBuckets", "CreateBucket"])
"""Operations that do not require a bucket to exist."""


class Answers(Protocol):
    """Answers the requests of a gateway. Safe to call from several threads."""

    def answer(self, request: Request, source: Source, record: Record) -> Reply:
        """Return the answer to a request, and fill in its record. Raises only BodyWanted."""

    def refuse(self, request: Request, error: S3Error, record: Record) -> Reply:
        """Return the answer to a request that failed before it was parsed."""

    def store_log(self, log: LogObject) -> None:
        """Store a part of the access log of a bucket. Raises what `BucketLogging.store` raises."""


class Service:
    """The answers from one store. Safe to call from several threads."""

    def __init__(
        self,
        access: Access,
        buckets: BucketOperations,
        listings: Listings,
        objects: ObjectOperations,
        renames: RenameOperations,
        multipart: MultipartOperations,
        locks: ObjectLockOperations,
        documents: BucketDocuments,
        encryption: DocumentType,
        notifications: DocumentType,
        websites: Websites,
        logging: BucketLogging,
        cors: Cors,
        forms: PostForms,
        tokens: SecurityTokens,
        clock: Clock,
        domains: Collection[str],
        region: str,
        limits: RateLimits | None = None,
    ) -> None:
        self._access = access
        self.limits = limits
        self.objects = objects
        self.logging = logging
        self._region = region
        self._cors = cors
        self._websites = websites
        self._forms = forms
        self._tokens = tokens
        self._clock = clock
        self._domains = domains
        self._operations: Mapping[str, Callable[[Call], Reply]] = {
            "ListBuckets": buckets.list_buckets,
            "CreateBucket": buckets.create_bucket,
            "HeadBucket": buckets.head_bucket,
            "DeleteBucket": buckets.delete_bucket,
            "GetBucketLocation": buckets.get_location,
            "GetBucketVersioning": buckets.get_versioning,
            "PutBucketVersioning": buckets.put_versioning,
            "GetBucketAcl": buckets.get_acl,
            "PutBucketAcl": buckets.put_acl,
            "GetBucketTagging": partial(documents.get, BUCKET_TAGS),
            "PutBucketTagging": partial(documents.put, BUCKET_TAGS),
            "DeleteBucketTagging": partial(documents.delete, BUCKET_TAGS),
            "GetBucketCors": partial(documents.get, CORS),
            "PutBucketCors": partial(documents.put, CORS),
            "DeleteBucketCors": partial(documents.delete, CORS),
            "GetBucketPolicy": partial(documents.get, POLICY),
            "GetBucketPolicyStatus": partial(documents.get, POLICY_STATUS),
            "PutBucketPolicy": partial(documents.put, POLICY),
            "DeleteBucketPolicy": partial(documents.delete, POLICY),
            "GetPublicAccessBlock": partial(documents.get, PUBLIC_ACCESS),
            "PutPublicAccessBlock": partial(documents.put, PUBLIC_ACCESS),
            "DeletePublicAccessBlock": partial(documents.delete, PUBLIC_ACCESS),
            "GetBucketOwnershipControls": partial(documents.get, OWNERSHIP),
            "PutBucketOwnershipControls": partial(documents.put, OWNERSHIP),
            "DeleteBucketOwnershipControls": partial(documents.delete, OWNERSHIP),
            "GetBucketLifecycleConfiguration": partial(documents.get, LIFECYCLE),
            "PutBucketLifecycleConfiguration": partial(documents.put, LIFECYCLE),
            "DeleteBucketLifecycle": partial(documents.delete, LIFECYCLE),
            "GetBucketEncryption": partial(documents.get, encryption),
            "PutBucketEncryption": partial(documents.put, encryption),
            "DeleteBucketEncryption": partial(documents.delete, encryption),
            "GetBucketNotificationConfiguration": partial(documents.get, notifications),
            "PutBucketNotificationConfiguration": partial(documents.put, notifications),
            "GetBucketWebsite": partial(documents.get, WEBSITE),
            "PutBucketWebsite": partial(documents.put, WEBSITE),
            "DeleteBucketWebsite": partial(documents.delete, WEBSITE),
            "GetBucketLogging": partial(documents.get, logging.document),
            "PutBucketLogging": partial(documents.put, logging.document),
            "ListObjects": listings.list_objects,
            "ListObjectsV2": listings.list_objects_v2,
            "ListObjectVersions": listings.list_object_versions,
            "GetObject": objects.get_object,
            "HeadObject": objects.head_object,
            "GetObjectAttributes": objects.get_attributes,
            "PutObject": objects.put_object,
            "CopyObject": objects.copy_object,
            "RenameObject": renames.rename_object,
            "DeleteObject": objects.delete_object,
            "DeleteObjects": objects.delete_objects,
            "GetObjectTagging": objects.get_tagging,
            "PutObjectTagging": objects.put_tagging,
            "DeleteObjectTagging": objects.delete_tagging,
            **dict.fromkeys(ABSENT_CONFIGURATIONS, absent_configuration),
            "GetObjectAcl": objects.get_acl,
            "PutObjectAcl": objects.put_acl,
            "CreateMultipartUpload": multipart.create_upload,
            "UploadPart": multipart.upload_part,
            "UploadPartCopy": multipart.upload_part_copy,
            "ListParts": multipart.list_parts,
            "CompleteMultipartUpload": multipart.complete_upload,
            "AbortMultipartUpload": multipart.abort_upload,
            "ListMultipartUploads": multipart.list_uploads,
            "GetObjectLockConfiguration": partial(documents.get, OBJECT_LOCK),
            "PutObjectLockConfiguration": partial(documents.put, OBJECT_LOCK),
            "GetObjectRetention": locks.get_retention,
            "PutObjectRetention": locks.put_retention,
            "GetObjectLegalHold": locks.get_legal_hold,
            "PutObjectLegalHold": locks.put_legal_hold,
        }

    def share_keys(self, other: Service) -> None:
        """Remember access keys and sessions together with the service of another cell."""
        self._access.share_keys(other._access)

    def answer(self, request: Request, source: Source, record: Record) -> Reply:
        """Return the answer to a request, and fill in its record. Raises only BodyWanted."""
        try:
            reply = self._answer(request, source, record)
        except BodyWanted:
            raise
        except Exception as error:
            refused = to_s3_error(error, request_id=record.request_id)
            reply = _refusal(request, refused, record)
            if refused.status < 500:
                self._find_log(record)
        if record.operation == "HeadBucket":
            self._name_region(reply, record.bucket)
        if b"origin" in request.header_values and request.method != "OPTIONS":
            self._allow_origin(request, reply)
        if self.limits is not None and record.paid_by is not None and request.method != "HEAD":
            self.limits.charge(record.paid_by, reply.size)
        return _finished(request, reply, record)

    def store_log(self, log: LogObject) -> None:
        """Store a part of the access log of a bucket. Raises what `BucketLogging.store` raises."""
        self.logging.store(log)

    def _find_log(self, record: Record) -> None:
        """Find the access log of a request that was answered before its bucket was looked up: a refused one, a form,
        one that a browser sends first, or one to a website."""
        if record.logged is None and record.bucket and record.operation not in _WITHOUT_BUCKET:
            with suppress(S3Error, NosError):  # the bucket does not exist, or its log misses a line
                access = self._access.bucket(record.bucket)
                record.logged = None if access.logging is None else access

    def _name_region(self, reply: Reply, bucket: str) -> None:
        """Add the region even if the request is refused, because clients look up the region of a bucket without an
        access key."""
        with suppress(S3Error, NosError):  # leave the answer as it is; the bucket may not exist
            self._access.bucket(bucket)
            reply.headers["x-amz-bucket-region"] = self._region

    def _allow_origin(self, request: Request, reply: Reply) -> None:
        """Add the CORS headers, also to a refusal, so that the web page can read it."""
        with suppress(S3Error, NosError):  # leave the answer as it is; a browser then hides it from the page
            bucket = self._websites.bucket_of(request)
            if bucket is None:
                bucket, _ = addressed(request.raw_path, request.header("host"), self._domains)
            if bucket is not None:
                reply.headers.update(self._cors.answer_headers(request, bucket))

    def refuse(self, request: Request, error: S3Error, record: Record) -> Reply:
        """Return the answer to a request that failed before it was parsed."""
        return refusal(request, error, record)

    def _answer(self, request: Request, source: Source, record: Record) -> Reply:
        if (site := self._websites.bucket_of(request)) is not None:
            return self._answer_website(request, site, source, record)
        sent, request = request, with_hoisted(request)
        bucket, key = addressed(request.raw_path, request.header("host"), self._domains)
        record.bucket, record.key = bucket or "", key or ""
        if bucket is None and is_sts(request):
            return self._answer_tokens(request, source, record)
        operation = record.operation = operation_of(request, bucket, key)
        if operation == PREFLIGHT:
            self._find_log(record)
            return self._cors.preflight(request, bucket or "")
        if operation == POST_FORM:
            self._find_log(record)
            with caused_by(Origin("s3:ObjectCreated:Post", "", record.remote, record.request_id)):
                return self._forms.post(request, bucket or "", source, partial(self._admit, request, record))
        run = self._operations.get(operation)
        if run is None:
            raise S3Error("NotImplemented", f"{operation} is not supported yet.")
        now_ms = self._clock.now_ms()
        sender, signed = self._sender(sent, now_ms)
        record.account = None if sender is None else sender.account
        self._admit(request, record, record.account)
        if operation == "HeadBucket":
            # Another gateway may just have deleted it, and clients use HeadBucket to check that.
            self._access.forget_bucket(bucket or "")
        access = None if operation in _WITHOUT_BUCKET else self._access.bucket(bucket or "")
        call = Call(request, operation, bucket or "", key or "", sender, signed, source, access, now_ms)
        if access is None:
            require_in_session(call)
        else:
            if access.logging is not None:
                record.logged = access
            access.require_owner(request.header("x-amz-expected-bucket-owner"))
            apply_policy(call)
        origin = origin_of(call, record.remote, record.request_id)
        if origin is None:
            return run(call)
        with caused_by(origin):
            return run(call)

    def _answer_website(self, request: Request, bucket: str, source: Source, record: Record) -> Reply:
        record.bucket, record.key = bucket, unquote(request.raw_path.decode("latin-1"), errors="replace")[1:]
        record.is_website = True
        if request.method == PREFLIGHT:
            record.operation = PREFLIGHT
            try:
                reply = self._cors.preflight(request, bucket)
            except S3Error as error:
                reply = error_page(error, record.key, record.request_id)
            return self._finished_website(reply, record)
        record.operation = "HeadObject" if request.method == "HEAD" else "GetObject"
        self._admit(request, record, None)
        reply = self._websites.answer(request, bucket, source, self._clock.now_ms(), record.request_id)
        return self._finished_website(reply, record)

    def _finished_website(self, reply: Reply, record: Record) -> Reply:
        record.code = reply.headers.get("x-amz-error-code", "")
        if record.code != "NoSuchBucket":
            self._find_log(record)
        return reply

    def _answer_tokens(self, request: Request, source: Source, record: Record) -> Reply:
        admit = partial(self._admit, request, record)
        answer = self._tokens.answer(request, source, record.request_id, admit)
        record.operation = answer.action or record.operation
        record.account, record.code = answer.account, answer.code
        return answer.reply

    def _admit(self, request: Request, record: Record, account: str | None) -> None:
        """Take a request of this account, None for an anonymous one, from its rates. Raises S3Error (SlowDown). A
        request that is answered again, because its body was wanted, is taken once."""
        if self.limits is not None and record.paid_by is None:
            payer = ANONYMOUS if account is None else account
            self.limits.admit(payer, _body_length(request))
            record.paid_by = payer

    def _sender(self, request: Request, now_ms: int) -> tuple[Sender | None, Signed | None]:
        """Return who signed the request, None for an anonymous one, and the verified signature."""
        old = read_claim_v2(request, now_ms)
        if old is not None:
            sender = self._access.sender(old.access_key, None)
            host_bucket = bucket_of_host(request.header("host"), self._domains)
            return sender, verify_v2(request, old, None if sender is None else sender.secret, host_bucket)
        claim = read_claim(request, now_ms)
        if claim is None:
            return None, unsigned(request)
        sender = self._access.sender(claim.access_key, claim.token)
        return sender, verify(request, claim, None if sender is None else sender.secret)


def _body_length(request: Request) -> int:
    length = request.header("content-length") or ""
    return int(length) if length.isdecimal() else 0


def refusal(request: Request, error: S3Error, record: Record) -> Reply:
    """Return the answer to a request that no service has answered."""
    return _finished(request, _refusal(request, error, record), record)


def _finished(request: Request, reply: Reply, record: Record) -> Reply:
    record.status = reply.status
    reply.headers["x-amz-request-id"] = record.request_id
    if request.method == "HEAD":
        reply.length, reply.body = reply.size, b""
    return reply


def _refusal(request: Request, error: S3Error, record: Record) -> Reply:
    record.code = error.code
    headers = {"content-type": "application/xml", **headers_of_error(error)}
    resource = unquote(request.raw_path.decode("latin-1"), errors="replace")
    return Reply(error.status, headers, error_answer(error, resource, record.request_id, ""))
