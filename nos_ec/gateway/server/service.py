"""Answers requests: who sends them, what they ask for, whether they may, and the operation.

Whatever fails is answered with the error codes of S3. What it was is logged, if it is not the client's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from urllib.parse import unquote

from nos_ec.core.errors import NosError
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.body import BodyWanted, Source
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.failures import translated
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.absent_configurations import ABSENT_CONFIGURATIONS, absent_configuration
from nos_ec.gateway.operations.bucket_operations import BucketOperations
from nos_ec.gateway.operations.cors import Cors
from nos_ec.gateway.operations.lifecycle import LifecycleOperations
from nos_ec.gateway.operations.listings import Listings
from nos_ec.gateway.operations.multipart_operations import MultipartOperations
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import PolicyOperations, allowed_rights
from nos_ec.gateway.operations.post_forms import PostForms
from nos_ec.gateway.operations.public_access import PublicAccessOperations
from nos_ec.gateway.server.record import Record
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Rights
from nos_ec.s3.answers import error_answer
from nos_ec.s3.errors import S3Error
from nos_ec.s3.hoisted import with_hoisted
from nos_ec.s3.names import addressed, bucket_of_host
from nos_ec.s3.operations import POST_FORM, PREFLIGHT, operation_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Signed, read_claim, unsigned, verify
from nos_ec.s3.signing_v2 import read_claim_v2, verify_v2

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
        multipart: MultipartOperations,
        cors: Cors,
        lifecycle: LifecycleOperations,
        policies: PolicyOperations,
        public_access: PublicAccessOperations,
        forms: PostForms,
        clock: Clock,
        domains: Collection[str],
        region: str,
    ) -> None:
        self._access = access
        self._region = region
        self._cors = cors
        self._forms = forms
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
            "GetBucketTagging": buckets.get_tagging,
            "PutBucketTagging": buckets.put_tagging,
            "DeleteBucketTagging": buckets.delete_tagging,
            "GetBucketCors": cors.get_configuration,
            "PutBucketCors": cors.put_configuration,
            "DeleteBucketCors": cors.delete_configuration,
            "GetBucketPolicy": policies.get_policy,
            "GetBucketPolicyStatus": policies.get_status,
            "PutBucketPolicy": policies.put_policy,
            "DeleteBucketPolicy": policies.delete_policy,
            "GetPublicAccessBlock": public_access.get_block,
            "PutPublicAccessBlock": public_access.put_block,
            "DeletePublicAccessBlock": public_access.delete_block,
            "GetBucketOwnershipControls": public_access.get_ownership,
            "PutBucketOwnershipControls": public_access.put_ownership,
            "DeleteBucketOwnershipControls": public_access.delete_ownership,
            "GetBucketLifecycleConfiguration": lifecycle.get_configuration,
            "PutBucketLifecycleConfiguration": lifecycle.put_configuration,
            "DeleteBucketLifecycle": lifecycle.delete_configuration,
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
        }

    def answer(self, request: Request, source: Source, record: Record) -> Reply:
        """Raises nothing but BodyWanted. Notes in the record what it finds out."""
        try:
            reply = self._answer(request, source, record)
        except BodyWanted:
            raise
        except Exception as error:
            reply = _refusal(request, translated(error, request_id=record.request_id), record)
        if record.operation == "HeadBucket":
            self._name_region(reply, record.bucket)
        if b"origin" in request.header_values and request.method != "OPTIONS":
            self._allow_origin(request, reply)
        return _finished(request, reply, record)

    def _name_region(self, reply: Reply, bucket: str) -> None:
        """Add the region, even if the request is refused: clients look up the region of a bucket without an access
        key."""
        with suppress(S3Error, NosError):  # the answer stays as it is; there may be no such bucket
            self._access.bucket(bucket)
            reply.headers["x-amz-bucket-region"] = self._region

    def _allow_origin(self, request: Request, reply: Reply) -> None:
        """Also of a refusal, so that the page can read it."""
        with suppress(S3Error, NosError):  # the answer stands, and a browser keeps it from the page
            bucket, _ = addressed(request.raw_path, request.header("host"), self._domains)
            if bucket is not None:
                reply.headers.update(self._cors.headers(request, bucket))

    def refuse(self, request: Request, error: S3Error, record: Record) -> Reply:
        """Answer a request that failed before it was looked at."""
        return _finished(request, _refusal(request, error, record), record)

    def _answer(self, request: Request, source: Source, record: Record) -> Reply:
        sent, request = request, with_hoisted(request)
        bucket, key = addressed(request.raw_path, request.header("host"), self._domains)
        record.bucket, record.key = bucket or "", key or ""
        operation = record.operation = operation_of(request, bucket, key)
        if operation == PREFLIGHT:
            return self._cors.preflight(request, bucket or "")
        if operation == POST_FORM:
            return self._forms.post(request, bucket or "", source)
        run = self._operations.get(operation)
        if run is None:
            raise S3Error("NotImplemented", f"{operation} is not supported yet.")
        account, signed = self._sender(sent)
        record.account = account
        if operation == "HeadBucket":
            # Another gateway may just have deleted it, and clients ask for that.
            self._access.forget_bucket(bucket or "")
        access = None if operation in _WITHOUT_BUCKET else self._access.bucket(bucket or "")
        if access is not None:
            access.require_owner(request.header("x-amz-expected-bucket-owner"))
        allowed = Rights.NONE if access is None else allowed_rights(access, operation, request, key or "", account)
        return run(Call(request, operation, bucket or "", key or "", account, signed, source, access, allowed))

    def _sender(self, request: Request) -> tuple[str | None, Signed | None]:
        """The account that has signed the request, and what it has signed; None for an anonymous one."""
        old = read_claim_v2(request, self._clock.now_ms())
        if old is not None:
            account = self._access.account(old.access_key)
            host_bucket = bucket_of_host(request.header("host"), self._domains)
            signed = verify_v2(request, old, None if account is None else account.secret, host_bucket)
            return None if account is None else account.name, signed
        claim = read_claim(request, self._clock.now_ms())
        if claim is None:
            return None, unsigned(request)
        account = self._access.account(claim.access_key)
        signed = verify(request, claim, None if account is None else account.secret)
        return None if account is None else account.name, signed


def _finished(request: Request, reply: Reply, record: Record) -> Reply:
    record.status = reply.status
    reply.headers["x-amz-request-id"] = record.request_id
    if request.method == "HEAD":
        reply.length, reply.body = reply.size, b""
    return reply


def _refusal(request: Request, error: S3Error, record: Record) -> Reply:
    record.code = error.code
    headers = {"content-type": "application/xml", **error.headers}
    if error.code == "InvalidRange":
        headers["content-range"] = f"bytes */{error.fields.get('ActualObjectSize', '*')}"
    if error.code in ("ServiceUnavailable", "SlowDown"):
        headers["retry-after"] = "1"
    resource = unquote(request.raw_path.decode("latin-1"), errors="replace")
    return Reply(error.status, headers, error_answer(error, resource, record.request_id, ""))
