"""Canned ACLs as lists of grants, and back."""

from __future__ import annotations

from collections.abc import Sequence

from nos_ec.ports.metadata import CannedAcl
from nos_ec.s3.answers import ALL_USERS, AUTHENTICATED_USERS, Grant, Owner
from nos_ec.s3.errors import S3Error

_GROUPS = {
    "private": (),
    "public-read": ((ALL_USERS, "READ"),),
    "public-read-write": ((ALL_USERS, "READ"), (ALL_USERS, "WRITE")),
    "authenticated-read": ((AUTHENTICATED_USERS, "READ"),),
}
_OWNERS = {"bucket-owner-read": "private", "bucket-owner-full-control": "private"}
"""The owner of a bucket owns its objects, so these say nothing more."""


def grants_of(acl: str, owner: Owner) -> list[Grant]:
    """What a canned ACL grants."""
    groups = _GROUPS[_OWNERS.get(acl, acl)]
    return [Grant("FULL_CONTROL", owner), *(Grant(permission, uri=uri) for uri, permission in groups)]


def canned(grants: Sequence[Grant], owner: Owner) -> str:
    """The canned ACL that grants just this. Raises NotImplemented for what none does."""
    groups = set()
    for grant in grants:
        if grant.uri is not None:
            groups.add((grant.uri, grant.permission))
        elif grant.owner is None or (grant.owner.id, grant.permission) != (owner.id, "FULL_CONTROL"):
            raise S3Error(
                "NotImplemented",
                "Grants to other accounts are made with `nos-ec s3 grant`; see canned ACLs for the rest.",
            )
    for acl, has in _GROUPS.items():
        if groups == set(has):
            return acl
    raise S3Error("NotImplemented", "Only the grants of a canned ACL are supported.")


def bucket_acl(name: str) -> CannedAcl:
    """Of a bucket. Raises InvalidArgument."""
    try:
        return CannedAcl(name)
    except ValueError:
        raise S3Error(
            "InvalidArgument", f"{name!r} is no canned ACL of a bucket.", ArgumentName="x-amz-acl", ArgumentValue=name
        ) from None
