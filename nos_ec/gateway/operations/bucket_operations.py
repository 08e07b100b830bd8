"""Operations on buckets, and their documents with tags, public access blocks and ownership controls.

`BucketAccess` applies the effect of the last two on ACLs, and policies.py their effect on policies (docs/adr/0039).
"""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.errors import Conflict
from nos_ec.core.versions import Versioning
from nos_ec.engine.wide.listings import ListsUploads
from nos_ec.gateway.auth import acls
from nos_ec.gateway.auth.access import Access, no_bucket
from nos_ec.gateway.message.call import Call, denied, owner_named
from nos_ec.gateway.message.object_headers import refuse_unsupported
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.gateway.operations.policies import session_allows
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BucketRow, BucketState, CannedAcl, DocumentKind, Rights
from nos_ec.s3 import answers, documents
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.names import check_new_bucket
from nos_ec.s3.object_lock import LockConfiguration, lock_configuration_answer
from nos_ec.s3.public_access import Ownership, fields_of, ownership_controls, public_access_block
from nos_ec.s3.request import Request

BUCKETS_MAX = 10_000
BUCKET_TAGS_MAX = 50
_RECREATES = "us-east-1"
"""The region in which owners may create a bucket again (CreateBucket of the S3 API reference)."""

_REGIONS = {"EU": "eu-west-1", "US": "us-east-1"}
"""Old names of regions that clients still send as location constraints."""


class Homes(Protocol):
    """The directory of a store of several cells, as one of them sees it."""

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """Return a page of the buckets of an account, in all cells. Raises Transient."""

    def claim(self, bucket: str, owner: str) -> bool:
        """Make this cell the home of a bucket that is about to be created, and return whether it is. Raises
        Transient."""


class BucketOperations:
    """The operations on buckets. Safe to call from several threads."""

    def __init__(
        self,
        metadata: BucketState,
        uploads: ListsUploads,
        access: Access,
        clock: Clock,
        region: str,
        homes: Homes | None = None,
    ) -> None:
        """`homes` has the buckets of all cells, and decides in which cell a new one is; None for a store without
        cells."""
        self._homes = homes
        self._buckets_of = metadata.buckets_of if homes is None else homes.buckets_of
        self._metadata = metadata
        self._uploads = uploads
        self._access = access
        self._clock = clock
        self._region = region

    def list_buckets(self, call: Call) -> Reply:
        """Return a page of the buckets that the account owns."""
        account = call.require_account()
        prefix = call.request.parameter("prefix")
        limit = call.number("max-buckets", BUCKETS_MAX, BUCKETS_MAX + 1)
        if not 1 <= limit <= BUCKETS_MAX:
            raise invalid_argument(
                f"Argument max-buckets must be an integer between 1 and {BUCKETS_MAX}.",
                "max-buckets",
                call.request.parameter("max-buckets") or "",
            )
        after = call.request.parameter("continuation-token") or ""
        found: list[BucketRow] = []
        more = call.request.parameter("bucket-region") in (None, "", self._region)  # all buckets are in this one
        while more and len(found) <= limit:
            page = self._buckets_of(account, after, BUCKETS_MAX // 10)
            more = len(page) == BUCKETS_MAX // 10
            found += [row for row in page if row.name.startswith(prefix or "")]
            after = page[-1].name if page else after
        token = found[limit - 1].name if len(found) > limit else None
        listed = [(row.name, row.created_ms) for row in found[:limit]]
        return xml(
            answers.list_buckets(owner_named(account), listed, region=self._region, prefix=prefix, next_token=token)
        )

    def create_bucket(self, call: Call) -> Reply:
        """Create a bucket of the sender. In us-east-1, as in S3, its owner may create it again. Unlike S3, that changes
        nothing, and other settings are refused, as in radosgw."""
        account = call.require_account()
        check_new_bucket(call.bucket)
        refuse_unsupported(call.request)
        has_lock = _has_lock(call.request)
        acl = acls.acl_of_headers(call.request) or "private"
        kind = acls.kind_of_bucket_acl(acl)
        ownership = _ownership_of(call.request)
        if ownership is not None:
            require_acl_allows(ownership, acl, account)
        body = read_document(call, may_be_empty=True) if call.has_body else b""
        location, tags = documents.create_bucket(body, BUCKET_TAGS_MAX)
        self._require_location(location)
        if tags and not session_allows(call, call.operation, ["s3:PutBucketTagging"], call.bucket):
            raise denied()
        tag_set = answers.tagging(tags) if tags else None
        if self._homes is not None and not self._homes.claim(call.bucket, account):
            raise S3Error("OperationAborted", "Another request is creating this bucket. Please try again.")
        if self._metadata.bucket(call.bucket) is None:
            self._uploads.abort_all(call.bucket)  # uploads left over from an earlier bucket of this name
        first = CannedAcl.PRIVATE if kind is CannedAcl.GRANTS else kind
        made = self._metadata.create_bucket(call.bucket, account, first, self._clock.now_ms())
        if made and kind is CannedAcl.GRANTS:
            self._set_acl(call.bucket, acl)
        if made and ownership is not None:
            self._access.set_bucket_document(
                call.bucket, DocumentKind.OWNERSHIP, ownership.encode(), self._clock.now_ms()
            )
        if made and tag_set is not None:
            self._access.set_bucket_document(call.bucket, DocumentKind.TAGS, tag_set, self._clock.now_ms())
        if made and has_lock:
            self._enable_lock(call.bucket)
        self._access.forget_bucket(call.bucket)
        if not made:
            self._require_same_settings(call.bucket, account, acl, ownership, tag_set)
            if has_lock and self._access.bucket(call.bucket).lock is None:
                raise S3Error(
                    "InvalidBucketState",
                    "The bucket exists without object lock: enable its versioning, then put an object lock"
                    " configuration.",
                    BucketName=call.bucket,
                )
        return empty({"location": f"/{call.bucket}"})

    def _enable_lock(self, bucket: str) -> None:
        """Enable versioning and object lock. If the process dies before the end, the bucket has no lock, and a request
        to create it with one again is refused."""
        documents_of_lock = (
            (DocumentKind.VERSIONING, Versioning.ENABLED.encode()),
            (DocumentKind.OBJECT_LOCK, lock_configuration_answer(LockConfiguration())),
        )
        for kind, body in documents_of_lock:
            self._access.set_bucket_document(bucket, kind, body, self._clock.now_ms())

    def _require_location(self, location: str | None) -> None:
        """Raise InvalidLocationConstraint unless the region is the one in the settings."""
        if location is not None and _REGIONS.get(location, location) != self._region:
            raise S3Error(
                "InvalidLocationConstraint",
                f"The specified location-constraint is not valid: the region of this store is {self._region}.",
                LocationConstraint=location,
            )

    def _require_same_settings(
        self, bucket: str, account: str, acl: str, ownership: Ownership | None, tag_set: bytes | None
    ) -> None:
        """Raise an error unless an existing bucket is the same that this request would have created. Raises
        BucketAlreadyOwnedByYou, BucketAlreadyExists, and NoSuchBucket if it was deleted meanwhile."""
        existing = self._access.bucket(bucket)
        is_owners = existing.row.owner == account
        if is_owners and self._region != _RECREATES:
            raise S3Error("BucketAlreadyOwnedByYou", "You own this bucket already.", BucketName=bucket)
        has_tags = tag_set is None or tag_set == self._access.bucket_document(bucket, DocumentKind.TAGS)
        if not is_owners or existing.acl != acl or ownership not in (None, existing.ownership) or not has_tags:
            raise S3Error("BucketAlreadyExists", "The requested bucket name is not available.", BucketName=bucket)

    def head_bucket(self, call: Call) -> Reply:
        """Answer 200 if the bucket exists and the sender may list it."""
        call.require(Rights.LIST)
        return empty()

    def delete_bucket(self, call: Call) -> Reply:
        """Delete an empty bucket, and abort its uploads. Raises BucketNotEmpty."""
        call.require(Rights.OWNER)
        try:
            self._metadata.delete_bucket(call.bucket, self._clock.now_ms())
        except Conflict:
            raise S3Error(
                "BucketNotEmpty", "The bucket you tried to delete is not empty", BucketName=call.bucket
            ) from None
        finally:
            self._access.forget_bucket(call.bucket)
        self._uploads.abort_all(call.bucket)
        return empty(status=204)

    def get_location(self, call: Call) -> Reply:
        """Return the region in the settings."""
        call.require(Rights.LIST)
        return xml(answers.location(self._region))

    def get_versioning(self, call: Call) -> Reply:
        """Return the versioning of a bucket, which is empty if the bucket never had versions."""
        call.require(Rights.OWNER)
        status = self._metadata.bucket_document(call.bucket, DocumentKind.VERSIONING)
        return xml(answers.versioning(None if status is None else status.decode()))

    def put_versioning(self, call: Call) -> Reply:
        """Set the versioning to Enabled or Suspended. It can never be removed again."""
        call.require(Rights.OWNER)
        status = documents.versioning(read_document(call))
        if status != Versioning.ENABLED and self._metadata.bucket_document(call.bucket, DocumentKind.OBJECT_LOCK):
            raise S3Error(
                "InvalidBucketState",
                "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.",
            )
        self._access.set_bucket_document(call.bucket, DocumentKind.VERSIONING, status.encode(), self._clock.now_ms())
        return empty()

    def get_acl(self, call: Call) -> Reply:
        """Return the ACL of a bucket as grants."""
        call.require(Rights.READ_ACL)
        assert call.access is not None
        acl = call.access.effective(call.access.acl)
        return xml(answers.access_control(call.owner, acls.grants_of(acl, call.owner)))

    def put_acl(self, call: Call) -> Reply:
        """Set the ACL of a bucket, given as a canned ACL or as grants."""
        call.require(Rights.WRITE_ACL)
        acl = acl_of(call)
        assert call.access is not None
        self._set_acl(call.bucket, acl if call.access.has_acls else "private")
        return empty()

    def _set_acl(self, bucket: str, acl: str) -> None:
        kind = acls.kind_of_bucket_acl(acl)
        grants = acl.encode() if kind is CannedAcl.GRANTS else None
        try:
            if not self._metadata.set_bucket_acl(bucket, kind, self._clock.now_ms(), grants):
                raise no_bucket(bucket)
        finally:
            self._access.forget_bucket(bucket)


def _parse_tags(call: Call, _: Access) -> bytes:
    return answers.tagging(documents.tagging(read_document(call), BUCKET_TAGS_MAX))


BUCKET_TAGS = DocumentType(
    DocumentKind.TAGS,
    _parse_tags,
    ("NoSuchTagSet", "The TagSet does not exist"),
    get_reply=lambda _, stored: xml(answers.tagging(documents.tagging(stored, BUCKET_TAGS_MAX))),
    put_reply=lambda _: empty(status=204),
)


def _has_lock(request: Request) -> bool:
    """Return whether a request creates a bucket with object lock. Raises InvalidArgument."""
    word = request.header("x-amz-bucket-object-lock-enabled") or "false"
    if word.lower() not in ("true", "false"):
        raise invalid_argument("This header is true or false.", "x-amz-bucket-object-lock-enabled", word)
    return word.lower() == "true"


def _ownership_of(request: Request) -> Ownership | None:
    """Return the ownership that a request sets for its new bucket; None if it sets none. Raises InvalidArgument."""
    word = request.header("x-amz-object-ownership")
    if word is not None and word not in tuple(Ownership):
        raise invalid_argument(f"Invalid x-amz-object-ownership header: {word}", "x-amz-object-ownership", word)
    return None if word is None else Ownership(word)


def require_acl_allows(ownership: Ownership, acl: str, owner: str) -> None:
    """Raise InvalidBucketAclWithObjectOwnership if `ownership` disables ACLs while the ACL of the bucket grants
    something to anyone except its owner."""
    if ownership is Ownership.ENFORCED and not acls.is_owners_alone(acl, owner):
        raise S3Error(
            "InvalidBucketAclWithObjectOwnership",
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        )


def acl_of(call: Call) -> str:
    """Return the ACL that a request sets by its headers or its document, in its stored form (auth/acls.py). Raises
    S3Error, also if the bucket does not allow such an ACL."""
    refuse_unsupported(call.request)
    assert call.access is not None
    in_headers = acls.acl_of_headers(call.request)
    body = read_document(call, may_be_empty=True) if call.has_body else b""
    if in_headers is not None:
        if body:
            raise S3Error("UnexpectedContent", "This request sets an ACL by headers, so it cannot have a body.")
        call.access.require_acl(in_headers, in_headers=True)
        return in_headers
    if not body:
        raise S3Error("MissingSecurityHeader", "Your request sets an ACL, but has neither a header nor a body for it.")
    owner, grants = documents.access_control(body)
    if owner.id != call.owner.id:
        raise S3Error("AccessDenied", "The owner of a bucket or object cannot be changed.")
    acl = acls.stored_acl(grants, call.owner)
    call.access.require_acl(acl, in_headers=False)
    return acl


def _parse_block(call: Call, _: Access) -> bytes:
    body = read_document(call)
    public_access_block(body)
    return body


def _parse_ownership(call: Call, access: Access) -> bytes:
    ownership = ownership_controls(read_document(call))
    access.forget_bucket(call.bucket)  # another gateway may just have changed the ACL
    bucket = access.bucket(call.bucket)
    require_acl_allows(ownership, bucket.acl, bucket.row.owner)
    return ownership.encode()


PUBLIC_ACCESS = DocumentType(
    DocumentKind.PUBLIC_ACCESS,
    _parse_block,
    ("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found"),
    get_reply=lambda _, stored: xml(
        answers.configuration("PublicAccessBlockConfiguration", *fields_of(public_access_block(stored)))
    ),
)
"""A PUT keeps the ACLs and policies of the bucket; the block only decides whether they have an effect."""
OWNERSHIP = DocumentType(
    DocumentKind.OWNERSHIP,
    _parse_ownership,
    ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found"),
    get_reply=lambda _, stored: xml(answers.ownership_controls(stored.decode())),
)
"""A PUT cannot disable ACLs while the ACL of the bucket grants something to others. A DELETE enables ACLs again."""
