"""Conditions of bucket policies, as clients of several accounts meet them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.operations import policies
from nos_ec.ports.metadata import ObjectRow
from tests.service.s3.s3_gateway import SETTINGS, Gateway, refused, serving
from tests.service.s3.test_s3_presigned import hoisted

BUCKET, OBJECTS = "arn:aws:s3:::photos", "arn:aws:s3:::photos/*"
NAMED = {"Bucket": "photos", "Key": "k"}
EVERYTHING = {"Resource": [BUCKET, OBJECTS], "Action": "s3:*"}


def statement(condition: dict[str, Any], effect: Any = "Allow", **more: Any) -> dict[str, Any]:
    every = {"Effect": effect, "Principal": "*", "Action": "s3:GetObject", "Resource": OBJECTS}
    return {**every, "Condition": condition, **more}


def policy(*statements: dict[str, Any], bucket: str = "photos") -> dict[str, str]:
    return {"Bucket": bucket, "Policy": json.dumps({"Version": "2012-10-17", "Statement": list(statements)})}


def tagging(**tags: str) -> dict[str, Any]:
    return {"TagSet": [{"Key": key, "Value": value} for key, value in tags.items()]}


def with_headers(client: Any, operation: str, **headers: str) -> Any:
    """The client sends these signed headers with the operation."""

    def add(request: Any, **_: Any) -> None:
        for name, value in headers.items():
            del request.headers[name.replace("_", "-")]
            request.headers[name.replace("_", "-")] = value

    client.meta.events.register(f"before-sign.s3.{operation}", add)
    return client


def denied(call: Callable[..., Any], **arguments: Any) -> None:
    refused("AccessDenied", 403, call, **arguments)


ON_SECURITY = {"StringEquals": {"s3:ExistingObjectTag/security": "public"}}


@pytest.fixture
def tagged(ann: Any) -> Any:
    """A client whose bucket has three objects with different tags."""
    for key, tags in (("publictag", "security=public&foo=bar"), ("privatetag", "security=private"), ("other", "a=b")):
        ann.put_object(Bucket="photos", Key=key, Body=key.encode(), Tagging=tags)
    return ann


# --- cases of s3-tests ----------------------------------------------------------------------------
def test_case_get_obj_existing_tag(gateway: Gateway, tagged: Any) -> None:
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY)))
    bob = gateway.client("bob")
    assert bob.get_object(Bucket="photos", Key="publictag")["Body"].read() == b"publictag"
    bob.head_object(Bucket="photos", Key="publictag")
    for key in ("privatetag", "other"):
        denied(bob.get_object, Bucket="photos", Key=key)


def test_case_get_obj_tagging_existing_tag(gateway: Gateway, tagged: Any) -> None:
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, Action="s3:GetObjectTagging")))
    bob = gateway.client("bob")
    assert len(bob.get_object_tagging(Bucket="photos", Key="publictag")["TagSet"]) == 2
    denied(bob.get_object, Bucket="photos", Key="publictag")
    for key in ("privatetag", "other"):
        denied(bob.get_object_tagging, Bucket="photos", Key=key)


def test_case_put_obj_tagging_existing_tag(gateway: Gateway, tagged: Any) -> None:
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, Action="s3:PutObjectTagging")))
    bob = gateway.client("bob")
    public = tagging(security="public", foo="bar")
    bob.put_object_tagging(Bucket="photos", Key="publictag", Tagging=public)
    denied(bob.put_object_tagging, Bucket="photos", Key="privatetag", Tagging=public)
    bob.put_object_tagging(Bucket="photos", Key="publictag", Tagging=tagging(security="private"))
    denied(bob.put_object_tagging, Bucket="photos", Key="publictag", Tagging=public)


def test_case_get_obj_acl_existing_tag(gateway: Gateway, tagged: Any) -> None:
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, Action="s3:GetObjectAcl")))
    bob = gateway.client("bob")
    bob.get_object_acl(Bucket="photos", Key="publictag")
    denied(bob.get_object, Bucket="photos", Key="publictag")
    for key in ("privatetag", "other"):
        denied(bob.get_object_acl, Bucket="photos", Key=key)


def test_case_put_obj_copy_source(gateway: Gateway, ann: Any) -> None:
    """The case also reads the copies as the account that made them, but they belong to the owner of the bucket."""
    ann.create_bucket(Bucket="target")
    for key in ("public/foo", "public/bar", "private/foo"):
        ann.put_object(Bucket="photos", Key=key, Body=key.encode())
    ann.put_bucket_policy(**policy(statement({})))
    on_source = {"StringLike": {"s3:x-amz-copy-source": "photos/public/*"}}
    of_target = {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::target/*"}
    ann.put_bucket_policy(**policy(statement(on_source, **of_target), bucket="target"))
    bob = gateway.client("bob")
    bob.copy_object(Bucket="target", Key="new", CopySource={"Bucket": "photos", "Key": "public/foo"})
    encoded = with_headers(gateway.client("bob"), "CopyObject", x_amz_copy_source="/photos/public%2Fbar")
    encoded.copy_object(Bucket="target", Key="new2", CopySource="photos/ignored")
    assert ann.get_object(Bucket="target", Key="new2")["Body"].read() == b"public/bar"
    denied(bob.copy_object, Bucket="target", Key="new2", CopySource={"Bucket": "photos", "Key": "private/foo"})
    denied(bob.put_object, Bucket="target", Key="new2", Body=b"")
    upload = {
        "Bucket": "target",
        "Key": "u",
        "UploadId": ann.create_multipart_upload(Bucket="target", Key="u")["UploadId"],
    }
    bob.upload_part_copy(**upload, PartNumber=1, CopySource="photos/public/foo")
    denied(bob.upload_part_copy, **upload, PartNumber=1, CopySource="photos/private/foo")


def test_case_put_obj_copy_source_meta(gateway: Gateway, ann: Any) -> None:
    """This case is like the one before."""
    ann.create_bucket(Bucket="target")
    ann.put_object(**NAMED, Body=b"x")
    ann.put_bucket_policy(**policy(statement({})))
    directive = {"StringEquals": {"s3:x-amz-metadata-directive": "COPY"}}
    of_target = {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::target/*"}
    ann.put_bucket_policy(**policy(statement(directive, **of_target), bucket="target"))
    bob = gateway.client("bob")
    bob.copy_object(Bucket="target", Key="new", CopySource="photos/k", MetadataDirective="COPY")
    denied(bob.copy_object, Bucket="target", Key="new", CopySource="photos/k")
    denied(bob.copy_object, Bucket="target", Key="new", CopySource="photos/k", MetadataDirective="REPLACE")


def test_case_put_obj_acl(gateway: Gateway, ann: Any) -> None:
    on_acl = {"StringLike": {"s3:x-amz-acl": "public*"}}
    put = {"Action": ["s3:PutObject", "s3:PutObjectAcl"]}
    ann.put_bucket_policy(**policy(statement({}, **put), statement(on_acl, "Deny", Action="s3:PutObject")))
    bob = gateway.client("bob")
    bob.put_object(Bucket="photos", Key="private", Body=b"x")
    bob.put_object(Bucket="photos", Key="private", Body=b"x", ACL="authenticated-read")
    denied(bob.put_object, Bucket="photos", Key="public", Body=b"x", ACL="public-read")
    denied(ann.put_object, Bucket="photos", Key="public", Body=b"x", ACL="public-read-write")


def test_case_put_obj_grant(gateway: Gateway, ann: Any) -> None:
    """The case also expects that the owner of the bucket does not own an object without the grant."""
    full = {"StringEquals": {"s3:x-amz-grant-full-control": "id=ann"}}
    ann.put_bucket_policy(**policy(statement(full, Action=["s3:PutObject", "s3:PutObjectAcl"])))
    bob = gateway.client("bob")
    bob.put_object(**NAMED, Body=b"x", GrantFullControl="id=ann")
    denied(bob.put_object, **NAMED, Body=b"x")
    denied(bob.put_object, **NAMED, Body=b"x", GrantFullControl="id=bob")
    assert ann.get_object_acl(**NAMED)["Grants"][0]["Grantee"]["ID"] == "ann"


def test_case_put_obj_request_obj_tag(gateway: Gateway, ann: Any) -> None:
    on_tag = {"StringEquals": {"s3:RequestObjectTag/security": "public"}}
    ann.put_bucket_policy(**policy(statement(on_tag, Action=["s3:PutObject", "s3:PutObjectTagging"])))
    bob = gateway.client("bob")
    denied(bob.put_object, **NAMED, Body=b"x")
    denied(bob.put_object, **NAMED, Body=b"x", Tagging="security=private")
    bob.put_object(**NAMED, Body=b"x", Tagging="security=public")


def test_case_condition_operator_with_if_exists(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    ann.put_bucket_policy(**policy(statement({"StringLikeIfExists": {"aws:Referer": "http://www.example.com/*"}})))
    for referer, status in (
        ("http://www.example.com/", 200),
        ("http://www.example.com/index.html", 200),
        ("http://example.com", 403),
    ):
        assert gateway.raw("GET", "/photos/k", Referer=referer)[0] == status
    assert gateway.raw("GET", "/photos/k")[0] == 200


# --- where a request comes from -------------------------------------------------------------------
def test_addresses_and_schemes_behind_proxies(system: System) -> None:
    settings = SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.0/8, 10.0.0.0/8"})
    with serving(system, settings) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        ann.put_object(**NAMED, Body=b"x")
        secure = {"Bool": {"aws:SecureTransport": "true"}}
        ann.put_bucket_policy(**policy(statement({**secure, "IpAddress": {"aws:SourceIp": "198.51.100.0/24"}})))

        def status(address: str | None, scheme: str = "https") -> int:
            headers = {"X_Forwarded_Proto": scheme} | ({} if address is None else {"X_Forwarded_For": address})
            return gateway.raw("GET", "/photos/k", None, **headers)[0]

        assert status("198.51.100.7") == 200
        assert status("198.51.100.7, 10.1.1.1") == 200
        assert status("198.51.100.7", "http") == 403
        assert status("198.51.100.7, 203.0.113.1") == 403
        for unknown in (None, "unknown", "198.51.100.7, unknown"):
            assert status(unknown) == 403
        ann.put_bucket_policy(
            **policy(statement({}), statement({"IpAddress": {"aws:SourceIp": "203.0.113.0/24"}}, "Deny"))
        )
        assert [status(one) for one in ("198.51.100.7", "203.0.113.1", None, "x")] == [200, 403, 403, 403]
        denied(ann.get_object, **NAMED)
        ann.delete_bucket_policy(Bucket="photos")


def test_addresses_without_proxies(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    ann.put_bucket_policy(**policy(statement({"IpAddress": {"aws:SourceIp": "127.0.0.1"}})))
    assert gateway.raw("GET", "/photos/k", X_Forwarded_For="198.51.100.7")[0] == 200
    ann.put_bucket_policy(**policy(statement({"NotIpAddress": {"aws:SourceIp": "127.0.0.0/8"}})))
    assert gateway.raw("GET", "/photos/k", X_Forwarded_For="198.51.100.7")[0] == 403
    ann.put_bucket_policy(**policy(statement({"Bool": {"aws:SecureTransport": "false"}}, "Deny", **EVERYTHING)))
    denied(ann.get_object, **NAMED)
    ann.delete_bucket_policy(Bucket="photos")


def test_a_policy_for_known_addresses_is_not_public(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    ann.put_public_access_block(
        Bucket="photos",
        PublicAccessBlockConfiguration={"BlockPublicPolicy": True, "RestrictPublicBuckets": True},
    )
    ann.put_bucket_policy(**policy(statement({"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}})))
    assert ann.get_bucket_policy_status(Bucket="photos")["PolicyStatus"] == {"IsPublic": False}
    gateway.client(None).get_object(**NAMED)
    denied(ann.put_bucket_policy, **policy(statement({"Bool": {"aws:SecureTransport": "false"}})))


# --- who sends it, and how ------------------------------------------------------------------------
def test_names_of_accounts_in_keys(gateway: Gateway, ann: Any) -> None:
    home = {"Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{BUCKET}/home/${{aws:username}}/*"}
    lists = {"Action": "s3:ListBucket", "Resource": BUCKET}
    own = {"StringLike": {"s3:prefix": "home/${aws:username}/*"}, "NumericLessThanEquals": {"s3:max-keys": "10"}}
    ann.put_bucket_policy(**policy(statement({}, **home), statement(own, **lists)))
    bob, cid, nobody = (gateway.client(name) for name in ("bob", "cid", None))
    bob.put_object(Bucket="photos", Key="home/bob/a", Body=b"x")
    for client in (cid, nobody):
        denied(client.get_object, Bucket="photos", Key="home/bob/a")
    denied(nobody.get_object, Bucket="photos", Key="home/${aws:username}/a")
    assert bob.list_objects_v2(Bucket="photos", Prefix="home/bob/", MaxKeys=10)["KeyCount"] == 1
    bob.list_objects(Bucket="photos", Prefix="home/bob/x", MaxKeys=1)
    denied(bob.list_objects_v2, Bucket="photos", Prefix="home/bob/")
    denied(bob.list_objects_v2, Bucket="photos", Prefix="home/bob/", MaxKeys=11)
    denied(bob.list_objects_v2, Bucket="photos", Prefix="home/cid/", MaxKeys=10)
    denied(bob.list_objects_v2, Bucket="photos", Prefix="", MaxKeys=10)
    denied(bob.list_object_versions, Bucket="photos", Prefix="home/bob/", MaxKeys=10)
    denied(bob.get_object, Bucket="photos", Key="home/bob/missing")


def test_the_parameters_of_a_listing_are_not_those_of_a_get(gateway: Gateway, ann: Any) -> None:
    """Otherwise anybody could find out which keys exist."""
    lists = {"Action": "s3:ListBucket", "Resource": BUCKET}
    ann.put_bucket_policy(**policy(statement({}), statement({"StringEquals": {"s3:prefix": "a"}}, **lists)))
    assert gateway.raw("GET", "/photos?prefix=a")[0] == 200
    assert gateway.raw("GET", "/photos/missing?prefix=a")[0] == 403


def test_prefix_and_delimiter_that_were_not_sent_are_missing(gateway: Gateway, ann: Any) -> None:
    lists = {"Action": "s3:ListBucket", "Resource": BUCKET}
    ann.put_bucket_policy(**policy(statement({"StringEquals": {"s3:prefix": "", "s3:delimiter": "/"}}, **lists)))
    bob = gateway.client("bob")
    bob.list_objects_v2(Bucket="photos", Prefix="", Delimiter="/")
    denied(bob.list_objects_v2, Bucket="photos", Delimiter="/")
    denied(bob.list_objects_v2, Bucket="photos", Prefix="")
    denied(bob.list_objects_v2, Bucket="photos")


def test_no_spelling_of_max_keys_passes_a_bound(gateway: Gateway, ann: Any) -> None:
    """What the listing takes for a number is compared as this number, and an empty one is missing in both."""
    lists = {"Action": "s3:ListBucket", "Resource": BUCKET}
    missing, many = {"Null": {"s3:max-keys": "true"}}, {"NumericGreaterThan": {"s3:max-keys": "10"}}
    ann.put_bucket_policy(
        **policy(statement({}, **lists), statement(missing, "Deny", **lists), statement(many, "Deny", **lists))
    )
    for value, status in (("10", 200), ("010", 200), ("11", 403), ("0000000011", 403), ("", 403), ("%20", 400)):
        assert gateway.raw("GET", f"/photos?max-keys={value}")[0] == status, value
    for value in (
        "%2B1000",
        "1_000",
        "1e3",
        "0x3e8",
        "%EF%BC%91%EF%BC%90%EF%BC%90",
        "00000000000000000000100",
        "1000.5",
    ):
        assert gateway.raw("GET", f"/photos?max-keys={value}")[0] in (400, 403), value
    assert gateway.raw("GET", "/photos?max-keys=5&max-keys=1000")[0] == 400
    assert gateway.raw("GET", "/photos")[0] == 403


def test_how_a_request_is_signed(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    bob = gateway.client("bob")
    presigned = bob.generate_presigned_url("get_object", Params=NAMED).removeprefix(gateway.url)
    keys = {"s3:authType": "REST-QUERY-STRING", "s3:signatureversion": "AWS4-HMAC-SHA256"}
    young = {"NumericLessThan": {"s3:signatureAge": "600000"}}
    ann.put_bucket_policy(**policy(statement({"StringEquals": keys, **young})))
    assert gateway.raw("GET", presigned)[0] == 200
    denied(bob.get_object, **NAMED)
    assert gateway.raw("GET", "/photos/k")[0] == 403
    old = {"NumericGreaterThan": {"s3:signatureAge": "-1"}}
    ann.put_bucket_policy(**policy(statement({}), statement(old, "Deny")))
    assert gateway.raw("GET", presigned)[0] == 403
    assert gateway.raw("GET", "/photos/k")[0] == 200


def test_times_agents_and_accounts(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    bob = gateway.client("bob", user_agent="reader/1")
    for condition, allowed in (
        ({"DateLessThan": {"aws:CurrentTime": "2020-01-01"}}, False),
        ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01", "aws:EpochTime": "2020-01-01"}}, True),
        ({"StringLike": {"aws:UserAgent": "reader/*"}}, True),
        ({"StringNotLike": {"aws:UserAgent": "reader/*"}}, False),
        ({"ArnEquals": {"aws:PrincipalArn": "arn:aws:iam::bob:root"}}, True),
        ({"StringEquals": {"aws:userid": "bob", "aws:PrincipalAccount": "bob", "aws:PrincipalType": "Account"}}, True),
        ({"StringEquals": {"s3:ResourceAccount": "ann"}}, True),
        ({"StringEquals": {"s3:ResourceAccount": "${aws:username}"}}, False),
    ):
        ann.put_bucket_policy(**policy(statement(condition)))
        if allowed:
            bob.get_object(**NAMED)
        else:
            denied(bob.get_object, **NAMED)


# --- objects and their tags -----------------------------------------------------------------------
READS_OF_A_TAG: list[tuple[str, dict[str, Any]]] = [
    ("get_object", {}),
    ("head_object", {}),
    ("get_object_tagging", {}),
    ("get_object_acl", {}),
    ("get_object_attributes", {"ObjectAttributes": ["ETag"]}),
    ("put_object_tagging", {"Tagging": tagging(security="none")}),
    ("put_object_acl", {"ACL": "private"}),
    ("delete_object_tagging", {}),
]


@pytest.mark.parametrize(("operation", "more"), READS_OF_A_TAG)
def test_a_deny_by_tag_binds_everybody(gateway: Gateway, tagged: Any, operation: str, more: dict[str, Any]) -> None:
    """The tags are those of the version that is used, current or named. The deny binds the owner and root, too."""
    tagged.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    old = tagged.put_object(Bucket="photos", Key="v", Body=b"1", Tagging="security=private")["VersionId"]
    new = tagged.put_object(Bucket="photos", Key="v", Body=b"2", Tagging="security=public")["VersionId"]
    private = {"StringEquals": {"s3:ExistingObjectTag/security": "private"}}
    tagged.put_bucket_policy(**policy(statement(private, "Deny", **EVERYTHING)))
    for client in (tagged, gateway.client("root")):
        call = getattr(client, operation)
        code = "403" if operation == "head_object" else "AccessDenied"
        refused(code, 403, call, Bucket="photos", Key="privatetag", **more)
        refused(code, 403, call, Bucket="photos", Key="v", VersionId=old, **more)
    call(Bucket="photos", Key="other", **more)
    call(Bucket="photos", Key="v", VersionId=new, **more)


@pytest.mark.parametrize(("operation", "more"), READS_OF_A_TAG)
def test_an_allow_by_tag_is_not_enough_without_the_tag(
    gateway: Gateway, tagged: Any, operation: str, more: dict[str, Any]
) -> None:
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, Action="s3:*Object*")))
    call = getattr(gateway.client("bob"), operation)
    code = "403" if operation == "head_object" else "AccessDenied"
    for key in ("privatetag", "missing"):
        refused(code, 403, call, Bucket="photos", Key=key, **more)
    call(Bucket="photos", Key="publictag", **more)


def test_a_missing_object_has_no_tags(gateway: Gateway, tagged: Any) -> None:
    missing = {"Bucket": "photos", "Key": "missing"}
    refused("NoSuchKey", 404, tagged.get_object, **missing)
    untagged = {"Null": {"s3:ExistingObjectTag/security": "true"}}
    tagged.put_bucket_policy(**policy(statement(untagged, "Deny")))
    denied(tagged.get_object, **missing)
    denied(tagged.get_object, Bucket="photos", Key="other")
    tagged.get_object(Bucket="photos", Key="publictag")
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, "Deny")))
    refused("NoSuchKey", 404, tagged.get_object, **missing)


def test_keys_of_tags_ignore_case_where_that_is_clear(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x", Tagging="Security=a&SECURITY=b")
    bob = gateway.client("bob")
    for key, value in (("Security", "a"), ("SECURITY", "b"), ("security", "b")):
        ann.put_bucket_policy(**policy(statement({"StringEquals": {f"s3:ExistingObjectTag/{key}": value}})))
        bob.get_object(**NAMED)


def test_tags_in_documents(gateway: Gateway, tagged: Any) -> None:
    known = {"ForAllValues:StringEquals": {"s3:RequestObjectTagKeys": ["a", "b"]}}
    tagged.put_bucket_policy(**policy(statement(known, Action="s3:PutObjectTagging")))
    bob = gateway.client("bob")
    bob.put_object_tagging(Bucket="photos", Key="other", Tagging=tagging(a="1", b="2"))
    denied(bob.put_object_tagging, Bucket="photos", Key="other", Tagging=tagging(a="1", c="2"))
    secret = {"StringEquals": {"s3:RequestObjectTag/secret": "yes"}}
    tagged.put_bucket_policy(**policy(statement(secret, "Deny", **EVERYTHING)))
    denied(tagged.put_object_tagging, Bucket="photos", Key="other", Tagging=tagging(secret="yes"))
    tagged.put_object_tagging(Bucket="photos", Key="other", Tagging=tagging(secret="no"))


def test_tags_of_copies(gateway: Gateway, tagged: Any) -> None:
    """A copy has the tags of its source, unless it replaces them."""
    tagged.create_bucket(Bucket="target")
    secret = {"StringEquals": {"s3:RequestObjectTag/security": "private"}}
    inside = {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::target/*"}
    tagged.put_bucket_policy(**policy(statement(secret, "Deny", **inside), bucket="target"))
    copy = {"Bucket": "target", "Key": "c", "CopySource": "photos/privatetag"}
    denied(tagged.copy_object, **copy)
    denied(with_headers(gateway.client("ann"), "CopyObject", x_amz_tagging="security=none").copy_object, **copy)
    denied(tagged.copy_object, **copy, TaggingDirective="REPLACE", Tagging="security=private")
    tagged.copy_object(**copy, TaggingDirective="REPLACE", Tagging="security=none")
    tagged.copy_object(Bucket="target", Key="c", CopySource="photos/publictag")
    # The tags of a source decide who may copy it.
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, Action=["s3:GetObject", "s3:GetObjectTagging"])))
    tagged.put_bucket_policy(**policy(statement({}, **{**inside, "Action": "s3:Put*"}), bucket="target"))
    bob = gateway.client("bob")
    bob.copy_object(Bucket="target", Key="d", CopySource="photos/publictag")
    for key in ("privatetag", "other"):
        denied(bob.copy_object, Bucket="target", Key="d", CopySource=f"photos/{key}")


def test_a_change_is_judged_on_the_tags_that_it_replaces(
    gateway: Gateway, tagged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner takes the object from bob between the judgement and the change."""
    tagged.put_bucket_policy(**policy(statement(ON_SECURITY, Action="s3:PutObjectTagging")))
    bob, original, calls = gateway.client("bob"), Store.set_attributes_of, []

    def overtaken(store: Store, row: ObjectRow, attributes: bytes) -> bool:
        calls.append(row)
        if len(calls) == 1:
            tagged.put_object_tagging(Bucket="photos", Key="publictag", Tagging=tagging(security="private"))
        return original(store, row, attributes)

    monkeypatch.setattr(Store, "set_attributes_of", overtaken)
    denied(bob.put_object_tagging, Bucket="photos", Key="publictag", Tagging=tagging(security="public"))
    assert len(calls) == 2
    assert (
        tagged.get_object_tagging(Bucket="photos", Key="publictag")["TagSet"] == tagging(security="private")["TagSet"]
    )


# --- other operations -----------------------------------------------------------------------------
def test_deletes_of_several_objects(gateway: Gateway, ann: Any) -> None:
    for key in ("a", "b"):
        ann.put_object(Bucket="photos", Key=key, Body=b"x")
    browser = {"StringLike": {"aws:UserAgent": "browser/*"}}
    deletes = {"Action": "s3:DeleteObject", "Resource": f"{BUCKET}/a"}
    ann.put_bucket_policy(**policy(statement(browser, "Deny", **deletes)))
    both = {"Objects": [{"Key": "a"}, {"Key": "b"}]}
    answer = gateway.client("ann", user_agent="browser/1").delete_objects(Bucket="photos", Delete=both)
    assert ([one["Key"] for one in answer["Deleted"]], answer["Errors"][0]["Key"]) == (["b"], "a")
    assert "Errors" not in ann.delete_objects(Bucket="photos", Delete=both)


def test_version_ids(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    first, second = (ann.put_object(**NAMED, Body=b"x")["VersionId"] for _ in range(2))
    named = {"StringEquals": {"s3:VersionId": first}}
    ann.put_bucket_policy(**policy(statement(named, Action=["s3:GetObjectVersion", "s3:DeleteObjectVersion"])))
    bob = gateway.client("bob")
    bob.get_object(**NAMED, VersionId=first)
    denied(bob.get_object, **NAMED, VersionId=second)
    denied(bob.get_object, **NAMED)
    listed = {"Objects": [{"Key": "k", "VersionId": second}, {"Key": "k", "VersionId": first}]}
    answer = bob.delete_objects(Bucket="photos", Delete=listed)
    assert [one["VersionId"] for one in answer["Deleted"]] == [first]


def test_the_headers_of_an_upload_are_judged_when_it_is_created(gateway: Gateway, ann: Any) -> None:
    on_tag = {"StringEquals": {"s3:RequestObjectTag/a": "b"}}
    other_class = {"StringNotEquals": {"s3:x-amz-storage-class": "STANDARD_IA"}}
    puts = {"Action": ["s3:PutObject", "s3:PutObjectTagging"]}
    ann.put_bucket_policy(**policy(statement(on_tag, **puts), statement(other_class, "Deny", Action="s3:PutObject")))
    bob = gateway.client("bob")
    denied(bob.create_multipart_upload, **NAMED)
    denied(bob.create_multipart_upload, **NAMED, Tagging="a=b")
    upload = bob.create_multipart_upload(**NAMED, Tagging="a=b", StorageClass="STANDARD_IA")["UploadId"]
    etag = bob.upload_part(**NAMED, UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    bob.complete_multipart_upload(**NAMED, UploadId=upload, MultipartUpload=parts)
    assert ann.get_object_tagging(**NAMED)["TagSet"] == tagging(a="b")["TagSet"]


def test_objects_that_must_not_be_replaced(gateway: Gateway, ann: Any) -> None:
    """The example of the S3 user guide, "Enforce conditional writes on Amazon S3 buckets"."""
    unguarded = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
    ann.put_bucket_policy(**policy(statement(unguarded, "Deny", Action="s3:PutObject")))
    denied(ann.put_object, **NAMED, Body=b"x")
    ann.put_object(**NAMED, Body=b"x", IfNoneMatch="*")
    upload = {"Bucket": "photos", "Key": "u"}
    upload["UploadId"] = ann.create_multipart_upload(**upload)["UploadId"]
    etag = ann.upload_part(**upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    denied(ann.complete_multipart_upload, **upload, MultipartUpload=parts)
    ann.complete_multipart_upload(**upload, MultipartUpload=parts, IfNoneMatch="*")


def test_hoisted_headers_count(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_policy(
        **policy(statement({"StringLike": {"s3:x-amz-acl": "public*"}}, "Deny", Action="s3:PutObject"))
    )
    for acl, status in (("public-read", 403), ("private", 200)):
        assert gateway.raw("PUT", hoisted(gateway, {"x-amz-acl": acl}), b"x")[0] == status


def test_fields_of_forms_count(gateway: Gateway, ann: Any) -> None:
    def post(**fields: str) -> int:
        body = "".join(
            f'--x\r\nContent-Disposition: form-data; name="{name.replace("_", "-")}"\r\n\r\n{value}\r\n'
            for name, value in (*fields.items(), ("key", "k"), ("file", "data"))
        )
        headers = {"Content_Type": "multipart/form-data; boundary=x", "Referer": "http://example.com/form"}
        return gateway.raw("POST", "/photos", (body + "--x--\r\n").encode(), **headers)[0]

    condition = {
        "StringEquals": {"s3:x-amz-storage-class": "STANDARD_IA", "s3:RequestObjectTag/a": "b"},
        "StringLike": {"aws:Referer": "http://example.com/*"},
        "IpAddress": {"aws:SourceIp": "127.0.0.1"},
        "Null": {"s3:authType": "true"},
    }
    document = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    ann.put_bucket_policy(
        **policy(statement(condition, Action="s3:PutObject"), statement({}, Action="s3:PutObjectTagging"))
    )
    assert post(x_amz_storage_class="STANDARD_IA", tagging=document) == 204
    assert post(x_amz_storage_class="STANDARD_IA") == 403
    assert post(tagging=document) == 403


def test_policies_that_cannot_be_used_say_why(gateway: Gateway, ann: Any) -> None:
    for condition, action, reason in (
        ({"StringEquals": {"aws:SourceVpc": "vpc-1"}}, "s3:GetObject", "no condition key aws:SourceVpc"),
        ({"StringMatches": {"aws:UserAgent": "a"}}, "s3:GetObject", "no condition operator StringMatches"),
        ({"StringEquals": {"s3:prefix": "a"}}, "s3:GetObject", "s3:GetObject has no s3:prefix"),
    ):
        error = refused("MalformedPolicy", 400, ann.put_bucket_policy, **policy(statement(condition, Action=action)))
        assert reason in str(error)
    refused("NoSuchBucketPolicy", 404, ann.get_bucket_policy, Bucket="photos")


def test_a_bucket_without_a_policy_collects_no_facts(
    gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(**_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(policies, "RequestFacts", unexpected)
    ann.put_object(**NAMED, Body=b"x", Tagging="a=b")
    ann.get_object(**NAMED)
    ann.list_objects_v2(Bucket="photos")
    ann.copy_object(Bucket="photos", Key="c", CopySource="photos/k")
    ann.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "k"}]})
    refused("NoSuchKey", 404, ann.get_object, **NAMED)


# --- conditional deletions ------------------------------------------------------------------------
@pytest.mark.parametrize("value", ["etag", "*"])
def test_only_conditional_deletions_are_allowed(gateway: Gateway, ann: Any, value: str) -> None:
    """The examples in "Enforce conditional deletes on Amazon S3 buckets" of the S3 user guide."""
    needs = {"StringEquals": {"s3:if-match": "*"}} if value == "*" else {"Null": {"s3:if-match": "false"}}
    ann.put_bucket_policy(**policy(statement(needs, Action="s3:DeleteObject"), statement({})))
    bob, keys = gateway.client("bob"), ("one", "two", "three")
    etag = {key: ann.put_object(Bucket="photos", Key=key, Body=key.encode())["ETag"] for key in keys}
    for key in keys:
        denied(bob.delete_object, Bucket="photos", Key=key)
    if value == "*":
        denied(bob.delete_object, Bucket="photos", Key="one", IfMatch=etag["one"])
    bob.delete_object(Bucket="photos", Key="one", IfMatch="*" if value == "*" else etag["one"])
    listed = [{"Key": "two", "ETag": "*" if value == "*" else etag["two"].strip('"')}, {"Key": "three"}]
    found = bob.delete_objects(Bucket="photos", Delete={"Objects": listed})
    assert [one["Key"] for one in found["Deleted"]] == ["two"]
    assert [(one["Key"], one["Code"]) for one in found["Errors"]] == [("three", "AccessDenied")]
    denied(bob.delete_object, Bucket="photos", Key="three", VersionId="null", IfMatch=etag["three"])


def test_etags_in_conditions_have_no_quotes(gateway: Gateway, ann: Any) -> None:
    etag = ann.put_object(**NAMED, Body=b"x")["ETag"].strip('"')
    ann.put_bucket_policy(**policy(statement({"StringEquals": {"s3:if-match": etag}}, Action="s3:PutObject")))
    bob = gateway.client("bob")
    for sent in (etag, f'"{etag}"'):
        bob.put_object(**NAMED, Body=b"x", IfMatch=sent)
    for other in ("0" * 32, "*", f'"{"0" * 32}"'):
        denied(bob.put_object, **NAMED, Body=b"x", IfMatch=other)
    denied(bob.put_object, **NAMED, Body=b"x")
