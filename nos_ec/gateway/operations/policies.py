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
from typing import NamedTuple

from nos_ec.gateway.auth.access import Access, BucketAccess
from nos_ec.gateway.message.call import Call, Decide, denied
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.message.request_facts import RequestFacts
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
    **dict.fromkeys(["PutObject", "PostObject", "CopyObject", "RenameObject", "DeleteObject"], Rights.WRITE),
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
    "BypassGovernanceRetention": Required(("s3:BypassGovernanceRetention",), True, Rights.OWNER),
    **{name: Required(actions, False, _RIGHTS.get(name, Rights.OWNER)) for name, actions in BUCKET_ACTIONS.items()},
    **{name: Required(actions, True, _RIGHTS.get(name, Rights.OWNER)) for name, actions in OBJECT_ACTIONS.items()},
}
"""Requirements by operation, and of the bypass that a header of some operations requests. Operations in BY_KEY are
checked for each key."""


class Permission(NamedTuple):
    """The rights that a policy adds. If that depends on what is not known yet, `decide` returns them, and until then
    there are none."""

    rights: Rights
    decide: Decide | None


def apply_policy(call: Call) -> None:
    """Let the policy of the bucket add the rights that it allows for the operation of a request. Raises AccessDenied if
    it denies one of the actions that the operation needs, or the session of the sender does not allow one."""
    assert call.access is not None
    if call.access.policy is not None or _session_policy(call) is not None:
        more = _actions_of_headers(call.request) if call.operation in _STORES else []
        version = call.request.parameter("versionId")
        call.allowed, call.decide = _permission(call, call.access, call.operation, call.key, version, more)


def permission_on(call: Call, access: BucketAccess, operation: str, key: str, version: str | None = None) -> Permission:
    """Return all rights of the sender for one operation on one object of any bucket. For requests that concern several
    objects. Raises AccessDenied if a policy denies it."""
    own = access.rights_of(call.account, with_acl=not (version is not None and operation == "DeleteObject"))
    rights, decide = _permission(call, access, operation, key, version)
    return Permission(own | rights, decide)


def rights_on(
    call: Call,
    access: BucketAccess,
    operation: str,
    key: str,
    version: str | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    sent: Mapping[str, str] | None = None,
) -> Rights:
    """Like `permission_on`, for an operation that depends neither on tags nor on a lock, or with the tags of the object
    and what it is given (`RequestFacts.sent`). Raises AccessDenied if a policy denies it, or depends on tags that are
    not given."""
    rights, decide = permission_on(call, access, operation, key, version)
    if decide is None:
        return rights
    if tags is None:
        raise denied()
    return rights | decide(tags, sent or {})


def require_service_allowed(call: Call, service: str, source: str, owner: str) -> None:
    """Raise AccessDenied if the policy of the bucket denies an operation to a service of the gateway, which acts for
    the bucket `source` of this owner. The service needs no consent, because it acts for the owner of both buckets."""
    assert call.access is not None
    policy, required = call.access.policy, REQUIRED[call.operation]
    if policy is None:
        return
    facts = replace(
        _facts(call, call.operation, call.access.row.owner, None),
        account=None,
        existing_tags={},
        source=(source, owner),
    )
    resource = f"{call.bucket}/{call.key}"
    if any(policy.verdict(service, action, resource, facts) is Verdict.DENY for action in required.actions):
        raise denied()


def require_in_session(call: Call) -> None:
    """Raise AccessDenied unless the session of the sender allows an operation without a bucket that exists."""
    if call.operation == "ListBuckets":
        allows = session_allows(call, "ListBuckets", ["s3:ListAllMyBuckets"], "")
    else:
        more = ["s3:PutBucketAcl"] * _sets_acl(call.request)
        more += ["s3:PutBucketOwnershipControls"] * (call.request.header("x-amz-object-ownership") is not None)
        if call.request.header("x-amz-bucket-object-lock-enabled") is not None:
            more += ["s3:PutBucketVersioning", "s3:PutBucketObjectLockConfiguration"]
        allows = session_allows(call, call.operation, ["s3:CreateBucket", *more], call.bucket)
    if not allows:
        raise denied()


def session_allows(call: Call, judged: str, actions: Sequence[str], resource: str, owner: str | None = None) -> bool:
    """Return whether the session policy of the sender allows all of these actions of the operation `judged`, or the
    sender has none. `owner` is that of the bucket, if it exists. Not for operations that depend on tags or locks."""
    policy = _session_policy(call)
    if policy is None:
        return True
    facts = replace(_facts(call, judged, owner, None), of_session=True)
    return all(_verdict(policy, action, resource, facts) is Verdict.ALLOW for action in actions)


def _session_policy(call: Call) -> Policy | None:
    return None if call.sender is None else call.sender.policy


def _facts(call: Call, judged: str, owner: str | None, version: str | None) -> RequestFacts:
    return RequestFacts(
        request=call.request,
        operation=call.operation,
        judged=judged,
        account=call.account,
        signed=call.signed,
        owner=owner,
        received_ms=call.received_ms,
        version=version,
    )


def _permission(
    call: Call, access: BucketAccess, operation: str, key: str, version: str | None, more: Sequence[str] = ()
) -> Permission:
    required, session = REQUIRED.get(operation), _session_policy(call)
    if required is None or (access.policy is None and session is None):
        return Permission(Rights.NONE, None)
    facts = _facts(call, operation, access.row.owner, version)
    actions = [*required.actions, *more]

    def decide(tags: Mapping[str, str], sent: Mapping[str, str]) -> Rights:
        known = replace(facts, existing_tags=tags, sent=sent)
        rights = _allowed(access, session, required, actions, key, known)
        if rights is None:
            raise denied()
        return rights

    found = _allowed(access, session, required, actions, key, facts)
    return Permission(Rights.NONE, decide) if found is None else Permission(found, None)


def _allowed(
    access: BucketAccess,
    session: Policy | None,
    required: Required,
    actions: Sequence[str],
    key: str,
    facts: RequestFacts,
) -> Rights | None:
    """Return the rights that the policy of the bucket adds; None if that depends on what is not known yet. Raises
    AccessDenied if it denies an action, or the policy of the session does not allow one. Source: "Session policies" of
    the IAM user guide: a session has no right that its policy does not allow."""
    resource = f"{access.row.name}/{key}" if required.on_object else access.row.name
    in_session = replace(facts, of_session=True)
    of_session = {Verdict.ALLOW if session is None else _verdict(session, one, resource, in_session) for one in actions}
    if not of_session <= {Verdict.ALLOW, Verdict.UNDECIDED}:
        raise denied()
    policy, is_repair = access.policy, facts.judged in _REPAIRS
    is_owner = facts.account in (access.row.owner, ROOT_ACCOUNT)
    if policy is None or (is_repair and is_owner):
        return None if Verdict.UNDECIDED in of_session else Rights.NONE
    verdicts = {_verdict(policy, action, resource, facts) for action in actions}
    if Verdict.DENY in verdicts:
        raise denied()
    if Verdict.UNDECIDED in verdicts | of_session:
        return None
    if access.public_access.restrict_buckets and policy.is_public and not is_owner:
        return Rights.NONE
    # A policy that allows every action still does not allow changes of the policy: S3 reserves these to the owner.
    return required.rights if verdicts == {Verdict.ALLOW} and not is_repair else Rights.NONE


def _verdict(policy: Policy, action: str, resource: str, facts: RequestFacts) -> Verdict:
    """Return the verdict on an action. A version that a request names may be the current one, so a policy that denies
    the action on the current version denies it, too."""
    of_object = policy.verdict(facts.account, action, resource, facts)
    if facts.version is None or action not in OF_VERSION or of_object in (Verdict.DENY, Verdict.UNDECIDED):
        return of_object
    return policy.verdict(facts.account, OF_VERSION[action], resource, facts)


def _actions_of_headers(request: Request) -> list[str]:
    """Return the additional actions that the headers of a PUT need."""
    names = request.header_values.keys()
    found = ["s3:PutObjectTagging"] * (b"x-amz-tagging" in names)
    found += ["s3:PutObjectRetention"] * (b"x-amz-object-lock-mode" in names)
    found += ["s3:PutObjectLegalHold"] * (b"x-amz-object-lock-legal-hold" in names)
    return [*found, *["s3:PutObjectAcl"] * _sets_acl(request)]


def _sets_acl(request: Request) -> bool:
    names = request.header_values.keys()
    return any(name == b"x-amz-acl" or name.startswith(b"x-amz-grant-") for name in names)


def _parse(call: Call, access: Access) -> bytes:
    body = read_document(call, may_be_empty=True)
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
