"""Public access blocks and ownership controls: what clients read back, and what they keep from whom."""

from __future__ import annotations

import http.client
import json
import os
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.auth.acls import is_owners_alone, is_public, without_groups
from nos_ec.ports.metadata import DocumentKind, Rights
from nos_ec.s3.errors import S3Error
from nos_ec.s3.public_access import (
    BLOCK_EVERYTHING,
    BLOCK_NOTHING,
    Ownership,
    PublicAccessBlock,
    ownership_controls,
    public_access_block,
)
from tests.rig.fakes.clock import FakeClock
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused
from tests.service.s3.test_s3_acls import may
from tests.service.s3.test_s3_policy import policy, statement

NAMED = {"Bucket": "photos", "Key": "k"}
PHOTOS = {"Bucket": "photos"}
SETTINGS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"


def block(ann: Any, *settings: str) -> None:
    """Put a public access block with these settings on."""
    said = {name: name in settings for name in SETTINGS}
    ann.put_public_access_block(**PHOTOS, PublicAccessBlockConfiguration=said)


def own(ann: Any, ownership: str) -> None:
    ann.put_bucket_ownership_controls(**PHOTOS, OwnershipControls={"Rules": [{"ObjectOwnership": ownership}]})


def test_a_public_access_block_comes_back_as_it_was_put(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    code = "NoSuchPublicAccessBlockConfiguration"
    refused(code, 404, ann.get_public_access_block, **PHOTOS)
    for settings in ((), SETTINGS[:1], SETTINGS[1:3], SETTINGS):
        block(ann, *settings)
        found = ann.get_public_access_block(**PHOTOS)["PublicAccessBlockConfiguration"]
        assert found == {name: name in settings for name in SETTINGS}
    ann.put_public_access_block(**PHOTOS, PublicAccessBlockConfiguration={"IgnorePublicAcls": True})
    found = ann.get_public_access_block(**PHOTOS)["PublicAccessBlockConfiguration"]
    assert [name for name in SETTINGS if found[name]] == ["IgnorePublicAcls"], "what is left out is off"
    for call in (bob.get_public_access_block, bob.delete_public_access_block):
        refused("AccessDenied", 403, call, **PHOTOS)
    refused("AccessDenied", 403, bob.put_public_access_block, **PHOTOS, PublicAccessBlockConfiguration={})
    ann.delete_public_access_block(**PHOTOS)
    ann.delete_public_access_block(**PHOTOS)
    refused(code, 404, ann.get_public_access_block, **PHOTOS)
    refused("NoSuchBucket", 404, ann.put_public_access_block, Bucket="none", PublicAccessBlockConfiguration={})


def test_ownership_controls_come_back_as_they_were_put(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    refused("OwnershipControlsNotFoundError", 404, ann.get_bucket_ownership_controls, **PHOTOS)
    for ownership in Ownership:
        own(ann, ownership)
        found = ann.get_bucket_ownership_controls(**PHOTOS)["OwnershipControls"]
        assert found == {"Rules": [{"ObjectOwnership": ownership}]}
    for call in (bob.get_bucket_ownership_controls, bob.delete_bucket_ownership_controls):
        refused("AccessDenied", 403, call, **PHOTOS)
    refused("AccessDenied", 403, partial(own, bob), ownership="ObjectWriter")
    refused("MalformedXML", 400, partial(own, ann), ownership="Mine")
    ann.delete_bucket_ownership_controls(**PHOTOS)
    ann.delete_bucket_ownership_controls(**PHOTOS)
    refused("OwnershipControlsNotFoundError", 404, ann.get_bucket_ownership_controls, **PHOTOS)


@pytest.mark.parametrize(
    "inside",
    [
        "<Other>true</Other>",
        "<BlockPublicAcls>yes</BlockPublicAcls>",
        "<BlockPublicAcls/>",
        "<BlockPublicAcls>true</BlockPublicAcls><BlockPublicAcls>false</BlockPublicAcls>",
        "<BlockPublicAcls><Is>true</Is></BlockPublicAcls>",
        "text",
    ],
)
def test_malformed_blocks(inside: str) -> None:
    text = f"<PublicAccessBlockConfiguration>{inside}</PublicAccessBlockConfiguration>"
    with pytest.raises(S3Error, match="MalformedXML"):
        public_access_block(text.encode())


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "<Rule/>",
        "<Rule><ObjectOwnership>bucketownerenforced</ObjectOwnership></Rule>",
        "<Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule>" * 2,
        "<Rule><ObjectOwnership>ObjectWriter</ObjectOwnership><Other/></Rule>",
        "<Other><ObjectOwnership>ObjectWriter</ObjectOwnership></Other>",
    ],
)
def test_malformed_ownership(inside: str) -> None:
    with pytest.raises(S3Error, match="MalformedXML"):
        ownership_controls(f"<OwnershipControls>{inside}</OwnershipControls>".encode())


def test_what_acls_grant_to_the_public() -> None:
    for acl in ("public-read", "public-read-write", "authenticated-read"):
        assert (is_public(acl), without_groups(acl), is_owners_alone(acl, "ann")) == (True, "private", False)
    for acl in ("private", "bucket-owner-read", "bucket-owner-full-control"):
        assert (is_public(acl), without_groups(acl), is_owners_alone(acl, "ann")) == (False, acl, True)
    assert without_groups("READ=bob READ=~all WRITE=~authenticated") == "READ=bob"
    assert without_groups("READ=~all") == "private"
    assert not is_public("READ=all FULL_CONTROL=authenticated")
    assert is_owners_alone("FULL_CONTROL=ann READ=ann", "ann")
    assert not is_owners_alone("FULL_CONTROL=ann READ=bob", "ann")


@pytest.mark.parametrize(
    "acl", [{"ACL": "public-read"}, {"ACL": "authenticated-read"}, {"GrantRead": f"uri={ALL_USERS}"}]
)
def test_public_acls_are_blocked(gateway: Gateway, ann: Any, acl: dict[str, str]) -> None:
    ann.put_object(**NAMED, Body=b"x")
    block(ann, "BlockPublicAcls")
    refused("AccessDenied", 403, ann.put_bucket_acl, **PHOTOS, **acl)
    refused("AccessDenied", 403, ann.put_object_acl, **NAMED, **acl)
    refused("AccessDenied", 403, ann.put_object, **NAMED, **acl, Body=b"y")
    refused("AccessDenied", 403, ann.copy_object, **PHOTOS, Key="copy", CopySource="photos/k", **acl)
    refused("AccessDenied", 403, ann.create_multipart_upload, **NAMED, **acl)
    refused("AccessDenied", 403, gateway.client("root").put_object, **NAMED, **acl, Body=b"y")
    grants = [{"Grantee": {"Type": "Group", "URI": ALL_USERS}, "Permission": "READ"}]
    document = {"Owner": {"ID": "ann"}, "Grants": grants}
    refused("AccessDenied", 403, ann.put_object_acl, **NAMED, AccessControlPolicy=document)
    refused("AccessDenied", 403, ann.put_bucket_acl, **PHOTOS, AccessControlPolicy=document)
    ann.put_object_acl(**NAMED, GrantRead="id=bob")
    ann.put_object(**NAMED, ACL="private", Body=b"z")
    assert ann.get_object(**NAMED)["Body"].read() == b"z"
    block(ann)
    ann.put_object_acl(**NAMED, **acl)


def test_public_acls_that_are_there_are_not_blocked_but_may_be_ignored(gateway: Gateway, ann: Any) -> None:
    bob, nobody = gateway.client("bob"), gateway.client(None)
    ann.put_object(**NAMED, Body=b"x", GrantRead=f'uri="{ALL_USERS}",id="cid"')
    ann.put_bucket_acl(**PHOTOS, ACL="public-read-write")
    block(ann, "BlockPublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    for client in (bob, nobody):
        assert may(client.get_object, **NAMED)
        assert may(client.list_objects_v2, **PHOTOS)
        assert may(client.put_object, **PHOTOS, Key="new", Body=b"y")
    block(ann, "IgnorePublicAcls")
    for client in (bob, nobody):
        assert not may(client.get_object, **NAMED)
        assert not may(client.list_objects_v2, **PHOTOS)
        assert not may(client.put_object, **PHOTOS, Key="new", Body=b"y")
    bob.create_bucket(Bucket="theirs")
    refused("AccessDenied", 403, bob.copy_object, Bucket="theirs", Key="copy", CopySource="photos/k")
    assert may(gateway.client("cid").get_object, **NAMED), "what it grants to one account counts"
    assert [one["Permission"] for one in ann.get_bucket_acl(**PHOTOS)["Grants"]] == ["FULL_CONTROL"]
    assert [one["Grantee"].get("ID") for one in ann.get_object_acl(**NAMED)["Grants"]] == ["cid"]
    ann.put_object_acl(**NAMED, ACL="public-read")
    assert not may(nobody.get_object, **NAMED), "it may be set, and does not count"
    ann.delete_public_access_block(**PHOTOS)
    assert may(nobody.get_object, **NAMED)
    assert may(bob.copy_object, Bucket="theirs", Key="copy", CopySource="photos/k")


def test_public_policies_are_blocked(gateway: Gateway, ann: Any) -> None:
    public, other = policy(statement("s3:GetObject")), policy(statement("s3:GetObject", who={"AWS": "bob"}))
    ann.put_object(**NAMED, Body=b"x")
    ann.put_bucket_policy(**public)
    block(ann, "BlockPublicPolicy")
    assert may(gateway.client(None).get_object, **NAMED), "one that is there stays"
    refused("AccessDenied", 403, ann.put_bucket_policy, **public)
    ann.put_bucket_policy(**other)
    assert ann.get_bucket_policy_status(**PHOTOS)["PolicyStatus"] == {"IsPublic": False}
    ann.put_bucket_policy(**policy(statement("s3:GetObject", effect="Deny")))
    ann.delete_public_access_block(**PHOTOS)
    ann.put_bucket_policy(**public)
    assert ann.get_bucket_policy_status(**PHOTOS)["PolicyStatus"] == {"IsPublic": True}


def test_public_policies_are_restricted_to_the_owner(gateway: Gateway, ann: Any) -> None:
    bob, cid, nobody, root = (gateway.client(name) for name in ("bob", "cid", None, "root"))
    ann.put_object(**NAMED, Body=b"x")
    to_bob = statement("s3:PutObject", who={"AWS": "bob"})
    no_delete = statement("s3:DeleteObject", effect="Deny")
    gateway.system.metadata.grant("photos", "cid", Rights.READ, 1)
    ann.put_bucket_policy(**policy(statement("s3:GetObject"), to_bob, no_delete))
    block(ann, "RestrictPublicBuckets")
    assert not may(nobody.get_object, **NAMED)
    assert not may(bob.get_object, **NAMED)
    assert not may(bob.put_object, **NAMED, Body=b"y"), "a public policy delegates nothing either"
    assert may(cid.get_object, **NAMED), "by a grant"
    for client in (ann, root):
        assert may(client.get_object, **NAMED)
        assert not may(client.delete_object, **NAMED), "what it denies, it denies"
    ann.put_bucket_policy(**policy(to_bob, no_delete))
    assert may(bob.put_object, **NAMED, Body=b"y"), "it is not public any more"
    assert not may(bob.get_object, **NAMED)


def test_acls_are_disabled_where_the_owner_is_enforced(gateway: Gateway, ann: Any) -> None:
    bob, nobody = gateway.client("bob"), gateway.client(None)
    ann.put_object(**NAMED, Body=b"x", ACL="public-read")
    own(ann, "BucketOwnerEnforced")
    assert not may(nobody.get_object, **NAMED), "the ACL is there, and does not count"
    grants = ann.get_object_acl(**NAMED)["Grants"]
    assert [(one["Grantee"]["ID"], one["Permission"]) for one in grants] == [("ann", "FULL_CONTROL")]
    code = "AccessControlListNotSupported"
    for acl in ({"ACL": "public-read"}, {"ACL": "private"}, {"GrantRead": "id=bob"}, {"GrantRead": "id=ann"}):
        refused(code, 400, ann.put_bucket_acl, **PHOTOS, **acl)
        refused(code, 400, ann.put_object_acl, **NAMED, **acl)
        refused(code, 400, ann.put_object, **NAMED, **acl, Body=b"y")
        refused(code, 400, ann.create_multipart_upload, **NAMED, **acl)
        refused(code, 400, ann.copy_object, **PHOTOS, Key="copy", CopySource="photos/k", **acl)
    full = {
        "Owner": {"ID": "ann"},
        "Grants": [{"Grantee": {"Type": "CanonicalUser", "ID": "ann"}, "Permission": "FULL_CONTROL"}],
    }
    to_bob = {
        **full,
        "Grants": [*full["Grants"], {"Grantee": {"Type": "CanonicalUser", "ID": "bob"}, "Permission": "READ"}],
    }
    for call, named in ((ann.put_object_acl, NAMED), (ann.put_bucket_acl, PHOTOS)):
        call(**named, ACL="bucket-owner-full-control")
        call(**named, GrantFullControl="id=ann")
        call(**named, AccessControlPolicy=full)
        refused(code, 400, call, **named, AccessControlPolicy=to_bob)
    ann.put_object(**NAMED, ACL="bucket-owner-full-control", Body=b"z")
    ann.put_object(**NAMED, Body=b"z")
    gateway.system.metadata.grant("photos", "bob", Rights.READ | Rights.WRITE, 1)
    ann.delete_bucket_ownership_controls(**PHOTOS)
    ann.put_object(**NAMED, Body=b"z", ACL="public-read")
    assert may(nobody.get_object, **NAMED)
    assert may(bob.put_object, **NAMED, Body=b"b", ACL="bucket-owner-full-control")


def test_acls_cannot_be_disabled_while_that_of_the_bucket_opens_it(gateway: Gateway, ann: Any) -> None:
    code = "InvalidBucketAclWithObjectOwnership"
    for acl in ({"ACL": "public-read"}, {"GrantRead": "id=bob"}):
        ann.put_bucket_acl(**PHOTOS, **acl)
        refused(code, 400, partial(own, ann), ownership="BucketOwnerEnforced")
        own(ann, "BucketOwnerPreferred")
    ann.put_bucket_acl(**PHOTOS, GrantFullControl="id=ann")
    own(ann, "BucketOwnerEnforced")
    refused(
        "InvalidBucketAclWithObjectOwnership",
        400,
        ann.create_bucket,
        Bucket="new",
        ObjectOwnership="BucketOwnerEnforced",
        GrantRead="id=bob",
    )
    assert gateway.system.metadata.bucket("new") is None


def test_forms_and_bodies_by_everybody(gateway: Gateway, ann: Any) -> None:
    """A form is held to the same as a PUT."""
    ann.put_bucket_acl(**PHOTOS, ACL="public-read-write")
    block(ann, "BlockPublicAcls")
    form = ann.generate_presigned_post(
        "photos", "form", Fields={"acl": "public-read"}, Conditions=[{"acl": "public-read"}]
    )
    edge = "x" * 20
    lines = [
        f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in form["fields"].items()
    ]
    lines.append(f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\ndata\r\n--{edge}--\r\n')
    parts = urlsplit(gateway.url)
    for status in (403, 204):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        content_type = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        connection.request("POST", "/photos", "".join(lines).encode(), content_type)
        assert connection.getresponse().status == status
        connection.close()
        block(ann)


def test_what_cannot_be_read_lets_nobody_in(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x", ACL="public-read")
    metadata = gateway.system.metadata
    access = Access(metadata, MASTERS, FakeClock(), 0, os.urandom)
    assert access.bucket("photos").public_access == BLOCK_NOTHING
    metadata.set_bucket_document("photos", DocumentKind.PUBLIC_ACCESS, b"damaged", 1)
    metadata.set_bucket_document("photos", DocumentKind.OWNERSHIP, b"damaged", 1)
    found = access.bucket("photos")
    assert (found.public_access, found.ownership) == (BLOCK_EVERYTHING, Ownership.ENFORCED)
    assert found.object_rights("public-read", None) == Rights.NONE
    assert found.object_rights("READ=bob", "bob") == Rights.NONE


def test_policies_may_speak_of_them(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    actions = ["s3:PutBucketPublicAccessBlock", "s3:PutBucketOwnershipControls", "s3:GetBucketPublicAccessBlock"]
    ann.put_bucket_policy(**policy(statement(actions, "arn:aws:s3:::photos", {"AWS": "bob"})))
    block(bob, "BlockPublicAcls")
    assert bob.get_public_access_block(**PHOTOS)["PublicAccessBlockConfiguration"]["BlockPublicAcls"]
    own(bob, "BucketOwnerEnforced")
    refused("AccessDenied", 403, bob.get_bucket_ownership_controls, **PHOTOS)
    assert json.loads(ann.get_bucket_policy(**PHOTOS)["Policy"])["Statement"]
    assert public_access_block(b"<PublicAccessBlockConfiguration/>") == PublicAccessBlock()
