"""ACLs with grants, of buckets and of objects, in documents and in headers."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec.core.errors import Transient
from nos_ec.gateway.auth.acls import grants_of, stored_acl
from nos_ec.ports.metadata import CannedAcl, Rights
from nos_ec.s3.answers import ALL_USERS, AUTHENTICATED_USERS, Grant, Owner
from tests.service.s3.s3_gateway import Gateway, refused

NAMED = {"Bucket": "photos", "Key": "k"}
ANN = {"ID": "ann", "DisplayName": "ann"}
PERMISSIONS = ["READ", "WRITE", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"]


def grant(permission: str, account: str = "", uri: str = "") -> dict[str, Any]:
    if uri:
        return {"Grantee": {"Type": "Group", "URI": uri}, "Permission": permission}
    grantee = {"Type": "CanonicalUser", "ID": account, "DisplayName": account}
    return {"Grantee": grantee, "Permission": permission}


def policy(*grants: dict[str, Any], owner: dict[str, str] = ANN) -> dict[str, Any]:
    return {"Owner": owner, "Grants": list(grants)}


def may(call: Any, **arguments: Any) -> bool:
    """Whether the call is not refused with AccessDenied."""
    try:
        call(**arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] != "AccessDenied":
            raise
        return False
    return True


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_grants_of_a_bucket(gateway: Gateway, ann: Any, permission: str) -> None:
    bob, cid, nobody = gateway.client("bob"), gateway.client("cid"), gateway.client(None)
    ann.put_object(**NAMED, Body=b"x")
    grants = [grant("FULL_CONTROL", "ann"), grant(permission, "bob")]
    ann.put_bucket_acl(Bucket="photos", AccessControlPolicy=policy(*grants))
    assert ann.get_bucket_acl(Bucket="photos")["Grants"] == grants
    assert ann.get_bucket_acl(Bucket="photos")["Owner"] == ANN
    has = PERMISSIONS[:4] if permission == "FULL_CONTROL" else [permission]
    for client, rights in ((bob, has), (cid, []), (nobody, [])):
        assert may(client.list_objects_v2, Bucket="photos") is ("READ" in rights)
        assert may(client.put_object, Bucket="photos", Key="new", Body=b"y") is ("WRITE" in rights)
        assert may(client.get_bucket_acl, Bucket="photos") is ("READ_ACP" in rights)
        assert not may(client.get_object, **NAMED)
        assert not may(client.get_bucket_tagging, Bucket="photos")
    assert not may(cid.put_bucket_acl, Bucket="photos", ACL="public-read")
    assert may(bob.put_bucket_acl, Bucket="photos", ACL="public-read") is ("WRITE_ACP" in has)
    assert may(nobody.list_objects_v2, Bucket="photos") is ("WRITE_ACP" in has)
    assert not may(bob.delete_bucket, Bucket="photos")


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_grants_of_an_object(gateway: Gateway, ann: Any, permission: str) -> None:
    bob, cid, nobody = gateway.client("bob"), gateway.client("cid"), gateway.client(None)
    ann.put_object(**NAMED, Body=b"x", Tagging="a=1")
    grants = [grant("FULL_CONTROL", "ann"), grant(permission, "bob")]
    ann.put_object_acl(**NAMED, AccessControlPolicy=policy(*grants))
    assert ann.get_object_acl(**NAMED)["Grants"] == grants
    has = PERMISSIONS[:4] if permission == "FULL_CONTROL" else [permission]
    for client, rights in ((bob, has), (cid, []), (nobody, [])):
        assert may(client.get_object, **NAMED) is ("READ" in rights)
        assert may(client.get_object_acl, **NAMED) is ("READ_ACP" in rights)
        assert not may(client.put_object, **NAMED, Body=b"y")
        assert not may(client.delete_object, **NAMED)
        assert not may(client.put_object_tagging, **NAMED, Tagging={"TagSet": []})
    assert not may(cid.put_object_acl, **NAMED, ACL="public-read")
    assert may(bob.put_object_acl, **NAMED, ACL="public-read") is ("WRITE_ACP" in has)
    assert may(nobody.get_object, **NAMED) is ("WRITE_ACP" in has)


def test_groups(gateway: Gateway, ann: Any) -> None:
    bob, nobody = gateway.client("bob"), gateway.client(None)
    ann.put_object(**NAMED, Body=b"x")
    for uri, anybody in ((ALL_USERS, True), (AUTHENTICATED_USERS, False)):
        ann.put_object_acl(**NAMED, AccessControlPolicy=policy(grant("READ_ACP", uri=uri)))
        assert may(bob.get_object_acl, **NAMED)
        assert may(nobody.get_object_acl, **NAMED) is anybody
        assert not may(bob.get_object, **NAMED)
        ann.put_bucket_acl(Bucket="photos", AccessControlPolicy=policy(grant("WRITE", uri=uri)))
        assert may(bob.put_object, Bucket="photos", Key="l", Body=b"y")
        assert may(nobody.put_object, Bucket="photos", Key="l", Body=b"y") is anybody
    elsewhere = "http://acs.amazonaws.com/groups/s3/LogDelivery"
    refused(
        "InvalidArgument",
        400,
        ann.put_bucket_acl,
        Bucket="photos",
        AccessControlPolicy=policy(grant("WRITE", uri=elsewhere)),
    )


def test_grants_in_headers(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    headers = {
        "GrantFullControl": 'id="bob"',
        "GrantRead": f'id=bob, uri="{ALL_USERS}"',
        "GrantReadACP": "id=bob",
        "GrantWriteACP": "id=cid",
    }
    expected = [
        grant("READ", "bob"),
        grant("READ", uri=ALL_USERS),
        grant("READ_ACP", "bob"),
        grant("WRITE_ACP", "cid"),
        grant("FULL_CONTROL", "bob"),
    ]
    ann.put_object(**NAMED, Body=b"x", **headers)
    assert ann.get_object_acl(**NAMED)["Grants"] == expected
    ann.copy_object(Bucket="photos", Key="copy", CopySource="photos/k", **headers)
    assert ann.get_object_acl(Bucket="photos", Key="copy")["Grants"] == expected
    ann.create_bucket(Bucket="music", **headers, GrantWrite="id=bob")
    assert ann.get_bucket_acl(Bucket="music")["Grants"] == [*expected[:2], grant("WRITE", "bob"), *expected[2:]]
    assert may(bob.put_object, Bucket="music", Key="k", Body=b"x")
    ann.put_bucket_acl(Bucket="music", ACL="private")
    assert not may(bob.put_object, Bucket="music", Key="k", Body=b"x")
    assert ann.get_bucket_acl(Bucket="music")["Grants"] == [grant("FULL_CONTROL", "ann")]
    put = {**NAMED, "Body": b"y"}
    refused("InvalidRequest", 400, ann.put_object, **put, ACL="private", GrantRead="id=bob")
    refused("InvalidArgument", 400, ann.put_object, **put, GrantRead="bob")
    refused("InvalidArgument", 400, ann.put_object, **put, GrantRead='id="b o"')
    refused("InvalidArgument", 400, ann.put_object, **put, GrantRead="id=~all")
    by_mail = {"GrantRead": 'emailAddress="bob@example.com"'}
    refused("UnresolvableGrantByEmailAddress", 400, ann.put_object, **put, **by_mail)
    many = ",".join(f"id=account{number}" for number in range(101))
    refused("MalformedACLError", 400, ann.put_object, **put, GrantRead=many)
    gateway.accounts.grant("photos", "bob", Rights.WRITE | Rights.READ)
    assert ann.get_object(**NAMED)["Body"].read() == b"x"
    cid = gateway.client("cid")
    bob.put_object(**put)
    refused("403", 403, cid.head_object, **NAMED)
    bob.put_object(**put, GrantRead="id=cid")
    assert may(cid.head_object, **NAMED)


def test_owners_stay_and_keep_their_rights(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    for documents in (policy(), policy(grant("READ", "bob"))):
        ann.put_bucket_acl(Bucket="photos", AccessControlPolicy=documents)
        ann.put_object_acl(**NAMED, AccessControlPolicy=documents)
        assert ann.get_object(**NAMED)["Body"].read() == b"x"
        ann.put_object(Bucket="photos", Key="l", Body=b"y")
    theirs = policy(grant("FULL_CONTROL", "bob"), owner={"ID": "bob"})
    refused("AccessDenied", 403, ann.put_bucket_acl, Bucket="photos", AccessControlPolicy=theirs)
    refused("AccessDenied", 403, ann.put_object_acl, **NAMED, AccessControlPolicy=theirs)


def test_an_account_that_was_granted_all_copies(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    ann.put_object(**NAMED, Body=b"foo")
    full = policy(grant("FULL_CONTROL", "ann"), grant("FULL_CONTROL", "bob"))
    ann.put_object_acl(**NAMED, AccessControlPolicy=full)
    ann.put_bucket_acl(Bucket="photos", AccessControlPolicy=full)
    bob.copy_object(Bucket="photos", Key="copy", CopySource="photos/k")
    assert ann.get_object(Bucket="photos", Key="copy")["Body"].read() == b"foo"


def test_an_acl_with_grants_is_set_in_one_write(gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So whenever the gateway dies, the bucket has the old ACL or the new one."""
    metadata = gateway.system.metadata
    set_acl = metadata.set_bucket_acl
    ann.put_bucket_acl(Bucket="photos", AccessControlPolicy=policy(grant("READ", "bob")))

    def fails(*_: Any) -> bool:
        raise Transient("the database is away")

    def fails_behind(*arguments: Any) -> bool:
        set_acl(*arguments)
        raise Transient("the answer was lost")

    bob, cid = gateway.client("bob"), gateway.client("cid")
    new = {"Bucket": "photos", "AccessControlPolicy": policy(grant("WRITE", "cid"))}
    monkeypatch.setattr(metadata, "set_bucket_document", fails)
    monkeypatch.setattr(metadata, "set_bucket_acl", fails)
    refused("ServiceUnavailable", 503, ann.put_bucket_acl, **new)
    assert ann.get_bucket_acl(Bucket="photos")["Grants"] == [grant("READ", "bob")]
    assert may(bob.list_objects_v2, Bucket="photos")
    monkeypatch.setattr(metadata, "set_bucket_acl", fails_behind)
    refused("ServiceUnavailable", 503, ann.put_bucket_acl, **new)
    assert ann.get_bucket_acl(Bucket="photos")["Grants"] == [grant("WRITE", "cid")]
    assert not may(bob.list_objects_v2, Bucket="photos")
    assert may(cid.put_object, **NAMED, Body=b"x")


def test_a_bucket_whose_grants_are_lost_is_private(gateway: Gateway, ann: Any) -> None:
    gateway.system.metadata.set_bucket_acl("photos", CannedAcl.GRANTS, 5)
    refused("AccessDenied", 403, gateway.client("bob").list_objects_v2, Bucket="photos")
    assert ann.get_bucket_acl(Bucket="photos")["Grants"] == [grant("FULL_CONTROL", "ann")]


@pytest.mark.parametrize("acl", ["private", "public-read", "public-read-write", "authenticated-read"])
def test_what_a_canned_acl_grants_is_stored_as_it(acl: str) -> None:
    owner = Owner("ann", "ann")
    assert stored_acl(grants_of(acl, owner), owner) == acl
    more = [*grants_of(acl, owner), Grant("READ", Owner("bob", "bob"))]
    assert grants_of(stored_acl(more, owner), owner) == more
