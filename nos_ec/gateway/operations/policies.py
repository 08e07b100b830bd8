"""Policies of buckets: their documents, and the rights that they add to those from grants and ACLs.

An explicit Deny overrides everything, including the rights of the owner and of root, who can still read, replace and
delete the policy itself. If a bucket restricts public policies, a public policy allows nothing to other accounts than
the owner. A policy allows only the requested operation: if it does, the caller gets `Required.rights`, the rights that
this operation needs. In a session with a policy, a request needs the consent of that policy besides everything else,
even from the owner and from root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nos_ec.gateway.auth.access import Access, BucketAccess, Sender, account_of
from nos_ec.gateway.message.call import Call, denied
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.ports.metadata import ROOT_ACCOUNT, DocumentKind, Rights
from nos_ec.s3 import answers
from nos_ec.s3.actions import BUCKET_ACTIONS, BY_KEY, OBJECT_ACTIONS, OF_VERSION
from nos_ec.s3.errors import S3Error
from nos_ec.s3.policy import Policy, Verdict, policy_of
from nos_ec.s3.request import Request

_REPAIRS = frozenset(["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"])
"""Operations that no policy can deny to the owner."""
_RIGHTS = {
    **dict.fromkeys(["HeadBucket", "ListObjects", "ListObjectsV2", "ListObjectVersions"], Rights.LIST),
    **dict.fromkeys(["ListMultipartUploads", "GetBucketLocation"], Rights.LIST),
    **dict.fromkeys(["GetObject", "HeadObject", "GetObjectAttributes", "GetObjectTagging"], Rights.READ),
    **dict.fromkeys(["GetBucketAcl", "GetObjectAcl"], Rights.READ_ACL),
    **dict.fromkeys(["PutBucketAcl", "PutObjectAcl"], Rights.WRITE_ACL),
    **dict.fromkeys(["PutObject", "PostObject", "CopyObject", "DeleteObject"], Rights.WRITE),
    **dict.fromkeys(["PutObjectTagging", "DeleteObjectTagging"], Rights.WRITE),
    **dict.fromkeys(["CreateMultipartUpload", "UploadPart", "UploadPartCopy", "ListParts"], Rights.WRITE),
    **dict.fromkeys(["CompleteMultipartUpload", "AbortMultipartUpload"], Rights.WRITE),
}
"""The rights that an operation needs; operations not listed here need Rights.OWNER."""
_STORES = frozenset(["PutObject", "PostObject", "CopyObject", "CreateMultipartUpload"])


@dataclass(frozen=True, slots=True)
class Required:
    """The requirements of an operation. A policy must allow all `actions` on the bucket, or on the object if
    `on_object`. If it does not, the caller needs `rights` from grants or ACLs."""

    actions: tuple[str, ...]
    on_object: bool
    rights: Rights


REQUIRED: Mapping[str, Required] = {
    **{name: Required(actions, False, _RIGHTS.get(name, Rights.OWNER)) for name, actions in BUCKET_ACTIONS.items()},
    **{name: Required(actions, True, _RIGHTS.get(name, Rights.OWNER)) for name, actions in OBJECT_ACTIONS.items()},
}
"""Requirements by operation. Operations in BY_KEY are checked for each key."""


def allowed_rights(access: BucketAccess, operation: str, request: Request, key: str, sender: Sender | None) -> Rights:
    """Return the rights that the policy of a bucket adds for the operation of a request. Raises AccessDenied if the
    policy denies one of the actions that the operation needs."""
    more = _actions_of_headers(request) if operation in _STORES else []
    return _allowed(access, operation, key, sender, more, has_version="versionId" in request.query)


def rights_on(
    access: BucketAccess, operation: str, key: str, sender: Sender | None, *, has_version: bool = False
) -> Rights:
    """Return all rights of a sender for one operation on one object. For requests that concern several objects. Raises
    AccessDenied if a policy denies it."""
    own = access.rights_of(account_of(sender), with_acl=not (has_version and operation == "DeleteObject"))
    return own | _allowed(access, operation, key, sender, [], has_version=has_version)


def require_in_session(operation: str, request: Request, bucket: str, sender: Sender | None) -> None:
    """Raise AccessDenied unless the session of the sender allows an operation without a bucket that exists."""
    if operation == "ListBuckets":
        allows = session_allows(sender, ["s3:ListAllMyBuckets"], "")
    else:
        more = ["s3:PutBucketAcl"] * _sets_acl(request)
        more += ["s3:PutBucketOwnershipControls"] * (request.header("x-amz-object-ownership") is not None)
        allows = session_allows(sender, ["s3:CreateBucket", *more], bucket)
    if not allows:
        raise denied()


def session_allows(sender: Sender | None, actions: Sequence[str], resource: str, *, has_version: bool = False) -> bool:
    """Return whether the session policy of the sender allows all of these actions, or the sender has none. Source:
    "Session policies" of the IAM user guide: a session has no right that its policy does not allow."""
    if sender is None or sender.policy is None:
        return True
    policy, account = sender.policy, sender.account
    return all(
        _verdict(policy, account, action, resource, has_version=has_version) is Verdict.ALLOW for action in actions
    )


def _allowed(
    access: BucketAccess, operation: str, key: str, sender: Sender | None, more: Sequence[str], *, has_version: bool
) -> Rights:
    policy, required, account = access.policy, REQUIRED.get(operation), account_of(sender)
    if required is None or (policy is None and (sender is None or sender.policy is None)):
        return Rights.NONE
    resource = f"{access.row.name}/{key}" if required.on_object else access.row.name
    actions = [*required.actions, *more]
    if not session_allows(sender, actions, resource, has_version=has_version):
        raise denied()
    if policy is None:
        return Rights.NONE
    is_repair = operation in _REPAIRS
    if is_repair and account in (access.row.owner, ROOT_ACCOUNT):
        return Rights.NONE
    verdicts = [_verdict(policy, account, action, resource, has_version=has_version) for action in actions]
    if Verdict.DENY in verdicts:
        raise denied()
    if access.public_access.restrict_buckets and policy.is_public and account not in (access.row.owner, ROOT_ACCOUNT):
        return Rights.NONE
    # A policy that allows every action still does not allow changes of the policy: S3 reserves these to the owner.
    return required.rights if set(verdicts) == {Verdict.ALLOW} and not is_repair else Rights.NONE


def _verdict(policy: Policy, account: str | None, action: str, resource: str, *, has_version: bool) -> Verdict:
    """Return the verdict on an action. A version that a request names may be the current one, so a policy that denies
    the action on the current version denies it, too."""
    of_object = policy.verdict(account, action, resource)
    if not has_version or of_object is Verdict.DENY or action not in OF_VERSION:
        return of_object
    return policy.verdict(account, OF_VERSION[action], resource)


def _actions_of_headers(request: Request) -> list[str]:
    """Return the additional actions that the headers of a PUT need."""
    names = request.header_values.keys()
    found = ["s3:PutObjectTagging"] * (b"x-amz-tagging" in names)
    return [*found, *["s3:PutObjectAcl"] * _sets_acl(request)]


def _sets_acl(request: Request) -> bool:
    names = request.header_values.keys()
    return any(name == b"x-amz-acl" or name.startswith(b"x-amz-grant-") for name in names)


def _parse(call: Call, access: Access) -> bytes:
    body = read_document(call)
    is_public = policy_of(body, call.bucket, is_new=True).is_public
    access.forget_bucket(call.bucket)  # another gateway may just have blocked public policies
    if is_public and access.bucket(call.bucket).public_access.block_policy:
        raise S3Error("AccessDenied", "The public access block of the bucket does not allow public policies.")
    return body


def _status(call: Call, stored: bytes) -> Reply:
    is_public = policy_of(stored, call.bucket).is_public
    return xml(answers.configuration("PolicyStatus", ("IsPublic", str(is_public).lower())))


POLICY = DocumentType(
    DocumentKind.POLICY,
    _parse,
    ("NoSuchBucketPolicy", "The bucket policy does not exist"),
    get_reply=lambda _, stored: Reply(200, {"content-type": "application/json"}, stored),
    put_reply=lambda _: empty(status=204),
)
POLICY_STATUS = replace(POLICY, get_reply=_status)
"""GetBucketPolicyStatus: whether the policy allows anything to everybody."""

assert BY_KEY.keys().isdisjoint(REQUIRED)
assert set(_RIGHTS) <= REQUIRED.keys()
