"""Access control lists (ACLs), canned or as lists of grants: reads them from requests, stores them, evaluates them.

The stored form is the name of a canned ACL, or a list of grants `PERMISSION=GRANTEE` separated by spaces. An object has
it as an attribute, a bucket as a document. A grantee is an account, `~all` or `~authenticated`; names of accounts
cannot begin with `~`.

Sources: "Access control list (ACL) overview" of the S3 user guide; PutBucketAcl and PutObjectAcl of the S3 API
reference. Unlike S3, an owner needs no grant: a bucket or object whose ACL has no grants is private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from nos_ec.core.errors import InvalidInput
from nos_ec.gateway.auth.accounts import require_account
from nos_ec.ports.metadata import CannedAcl, Rights
from nos_ec.s3.answers import ALL_USERS, AUTHENTICATED_USERS, Grant, Owner
from nos_ec.s3.documents import GRANTS_MAX, unknown_mail_address
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import Request

_GROUPS = {
    "private": (),
    "public-read": ((ALL_USERS, "READ"),),
    "public-read-write": ((ALL_USERS, "READ"), (ALL_USERS, "WRITE")),
    "authenticated-read": ((AUTHENTICATED_USERS, "READ"),),
}
_OWNERS = {"bucket-owner-read": "private", "bucket-owner-full-control": "private"}
"""The owner of a bucket owns its objects, so these mean the same as `private`."""
_NAME_OF_GROUP = {ALL_USERS: "~all", AUTHENTICATED_USERS: "~authenticated"}
_GROUP_OF_NAME = {name: uri for uri, name in _NAME_OF_GROUP.items()}
_HEADERS = {
    "x-amz-grant-read": "READ",
    "x-amz-grant-write": "WRITE",
    "x-amz-grant-read-acp": "READ_ACP",
    "x-amz-grant-write-acp": "WRITE_ACP",
    "x-amz-grant-full-control": "FULL_CONTROL",
}
_GRANTEE = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"([^"]*)"|([^",\s]*))\s*')
_ACL_RIGHTS = {"READ_ACP": Rights.READ_ACL, "WRITE_ACP": Rights.WRITE_ACL}
_ON_BUCKET = {"READ": Rights.LIST, "WRITE": Rights.WRITE, **_ACL_RIGHTS}
_ON_OBJECT = {"READ": Rights.READ, **_ACL_RIGHTS}


def grants_of(acl: str, owner: Owner) -> list[Grant]:
    """Return the grants of a stored ACL in their order; for a canned ACL, the owner's grant comes first."""
    if "=" in acl:
        return [_grant(*entry.partition("=")[::2]) for entry in acl.split(" ")]
    groups = _GROUPS.get(_OWNERS.get(acl, acl), ())
    return [Grant("FULL_CONTROL", owner), *(Grant(permission, uri=uri) for uri, permission in groups)]


@lru_cache(maxsize=1024)
def bucket_rights(acl: str, account: str | None) -> Rights:
    """Return what the stored ACL of a bucket allows to an account, or to anyone for None. It never allows reading
    objects; their own ACLs do."""
    return _rights(acl, account, _ON_BUCKET)


@lru_cache(maxsize=1024)
def object_rights(acl: str, account: str | None) -> Rights:
    """Return what the stored ACL of an object allows to an account, or to anyone for None."""
    return _rights(acl, account, _ON_OBJECT)


def _rights(acl: str, account: str | None, meaning: dict[str, Rights]) -> Rights:
    found = Rights.NONE
    # The owner needs no grant, so the name in the owner's entry of a canned ACL does not matter.
    for grant in grants_of(acl, Owner("~owner")):
        is_theirs = grant.uri == ALL_USERS if account is None else grant.uri is not None or _id(grant) == account
        if is_theirs and grant.permission == "FULL_CONTROL":
            for right in meaning.values():
                found |= right
        elif is_theirs:
            found |= meaning.get(grant.permission, Rights.NONE)
    return found


def _id(grant: Grant) -> str | None:
    return None if grant.owner is None else grant.owner.id


def _grant(permission: str, grantee: str) -> Grant:
    if grantee in _GROUP_OF_NAME:
        return Grant(permission, uri=_GROUP_OF_NAME[grantee])
    return Grant(permission, owner=Owner(grantee, grantee))


def stored_acl(grants: Sequence[Grant], owner: Owner) -> str:
    """Return the stored form of these grants, which is a canned ACL if one has the same grants. Raises InvalidArgument
    for an invalid grantee, MalformedACLError for too many grants."""
    if len(grants) > GRANTS_MAX:
        raise S3Error("MalformedACLError", f"An ACL may have at most {GRANTS_MAX} grants.")
    groups = {(grant.uri, grant.permission) for grant in grants if grant.uri is not None}
    accounts = {(_id(grant), grant.permission) for grant in grants if grant.uri is None}
    if accounts == {(owner.id, "FULL_CONTROL")}:
        for acl, has in _GROUPS.items():
            if groups == set(has):
                return acl
    return " ".join([f"{grant.permission}={_grantee(grant)}" for grant in grants]) or "private"


def _grantee(grant: Grant) -> str:
    if grant.uri is not None:
        if grant.uri not in _NAME_OF_GROUP:
            raise invalid_argument("Invalid group uri", "uri", grant.uri)
        return _NAME_OF_GROUP[grant.uri]
    account = _id(grant) or ""
    try:
        require_account(account)
    except InvalidInput:
        raise invalid_argument("Invalid id", "CanonicalUser/ID", account) from None
    return account


def acl_of_headers(request: Request) -> str | None:
    """Return the ACL that the headers of a request set, in its stored form; None if they set none. Raises
    InvalidRequest if they have both a canned ACL and grants, InvalidArgument, and the error of `unknown_mail_address`
    for a grantee given by mail address."""
    acl = request.header("x-amz-acl")
    grants = []
    for name, permission in _HEADERS.items():
        text = request.header(name)
        if text is not None:
            grants += [Grant(permission, owner, uri) for owner, uri in _grantees(name, text)]
    if acl is not None and grants:
        raise S3Error("InvalidRequest", "Specifying both Canned ACLs and Header Grants is not allowed")
    if acl is not None:
        return canned_acl(acl)
    return stored_acl(grants, Owner("~nobody")) if grants else None


def _grantees(name: str, text: str) -> Iterable[tuple[Owner | None, str | None]]:
    for part in text.split(","):
        match = _GRANTEE.fullmatch(part)
        kind = match[1].lower() if match else ""
        value = (match[2] or match[3] or "") if match else ""
        if kind == "id":
            yield Owner(value), None
        elif kind == "uri":
            yield None, value
        elif kind == "emailaddress":
            raise unknown_mail_address()
        else:
            raise invalid_argument('A grantee must be id="..." or uri="...".', name, part.strip())


def canned_acl(acl: str) -> str:
    """Return this name of a canned ACL. Raises InvalidArgument if no canned ACL has this name."""
    if acl not in _GROUPS and acl not in _OWNERS:
        raise invalid_argument(f"{acl!r} is not a canned ACL.", "x-amz-acl", acl)
    return acl


@lru_cache(maxsize=1024)
def without_groups(acl: str) -> str:
    """Return a stored ACL without its grants to groups: to everyone, or to everyone with an access key."""
    if "=" not in acl:
        return "private" if _GROUPS.get(acl) else acl
    kept = [entry for entry in acl.split(" ") if entry.partition("=")[2] not in _GROUP_OF_NAME]
    return " ".join(kept) or "private"


def is_public(acl: str) -> bool:
    """Return whether a stored ACL grants anything to everyone, or to everyone with an access key. Source: "The meaning
    of public" of the S3 user guide."""
    return without_groups(acl) != acl


def is_owners_alone(acl: str, owner: str) -> bool:
    """Return whether a stored ACL grants nothing to anyone except the owner."""
    return all(_id(grant) == owner for grant in grants_of(acl, Owner(owner)))


def is_full_control(acl: str, owner: str) -> bool:
    """Return whether a stored ACL grants full control to the owner and nothing to others, and was sent as such, by
    grants or by the canned ACL. Source: PutObject of the S3 API reference, about buckets whose owner is enforced."""
    return acl in (f"FULL_CONTROL={owner}", "bucket-owner-full-control")


def kind_of_bucket_acl(acl: str) -> CannedAcl:
    """Return how the row of a bucket stores this ACL. Raises InvalidArgument for a canned ACL of objects."""
    if "=" in acl:
        return CannedAcl.GRANTS
    if acl not in _GROUPS:
        raise invalid_argument(f"{acl!r} is not a canned ACL of a bucket.", "x-amz-acl", acl)
    return CannedAcl(acl)
