"""Bucket policies, as clients of several accounts meet them."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.gateway.auth.access import Access
from nos_ec.ports.metadata import CannedAcl, DocumentKind, Rights
from nos_ec.s3.policy import Verdict
from tests.rig.fakes.clock import FakeClock
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused

NAMED = {"Bucket": "photos", "Key": "k"}
BUCKET, OBJECTS = "arn:aws:s3:::photos", "arn:aws:s3:::photos/*"


def statement(action: Any, resource: Any = OBJECTS, who: Any = "*", effect: str = "Allow") -> dict[str, Any]:
    return {"Effect": effect, "Principal": who, "Action": action, "Resource": resource}


def policy(*statements: dict[str, Any]) -> dict[str, str]:
    return {"Bucket": "photos", "Policy": json.dumps({"Version": "2012-10-17", "Statement": list(statements)})}


def test_a_policy_comes_back_as_it_was_put(gateway: Gateway, ann: Any) -> None:
    bob, root = gateway.client("bob"), gateway.client("root")
    refused("NoSuchBucketPolicy", 404, ann.get_bucket_policy, Bucket="photos")
    refused("NoSuchBucketPolicy", 404, ann.get_bucket_policy_status, Bucket="photos")
    told = policy(statement("s3:GetObject", who={"AWS": "arn:aws:iam::bob:root"}))
    ann.put_bucket_policy(**told)
    assert ann.get_bucket_policy(Bucket="photos")["Policy"] == told["Policy"]
    assert root.get_bucket_policy_status(Bucket="photos")["PolicyStatus"] == {"IsPublic": False}
    refused("AccessDenied", 403, bob.get_bucket_policy, Bucket="photos")
    refused("AccessDenied", 403, bob.get_bucket_policy_status, Bucket="photos")
    refused("AccessDenied", 403, bob.put_bucket_policy, **told)
    refused("AccessDenied", 403, bob.delete_bucket_policy, Bucket="photos")
    ann.put_bucket_policy(**policy(statement("s3:GetObject")))
    assert ann.get_bucket_policy_status(Bucket="photos")["PolicyStatus"] == {"IsPublic": True}
    condition = {**statement("s3:GetObject"), "Condition": {"StringEquals": {"aws:SourceVpc": "vpc-1"}}}
    refused("MalformedPolicy", 400, ann.put_bucket_policy, **policy(condition))
    refused("MalformedPolicy", 400, ann.put_bucket_policy, **policy(statement("s3:GetObjekt")))
    refused("MalformedPolicy", 400, ann.put_bucket_policy, **policy(statement("s3:GetObject", BUCKET)))
    refused("MalformedPolicy", 400, ann.put_bucket_policy, Bucket="photos", Policy="{")
    ann.delete_bucket_policy(Bucket="photos")
    ann.delete_bucket_policy(Bucket="photos")
    refused("NoSuchBucketPolicy", 404, ann.get_bucket_policy, Bucket="photos")


def test_a_policy_allows_what_it_names_and_nothing_else(gateway: Gateway, ann: Any) -> None:
    bob, cid, nobody = (gateway.client(name) for name in ("bob", "cid", None))
    ann.put_object(**NAMED, Body=b"x", Tagging="a=b")
    for client in (bob, cid, nobody):
        refused("AccessDenied", 403, client.get_object, **NAMED)
    ann.put_bucket_policy(
        **policy(
            statement(["s3:GetObject", "s3:PutObject"], who={"AWS": ["arn:aws:iam:::user/bob"]}),
            statement("s3:ListBucket", BUCKET, who={"AWS": "cid"}),
            statement("s3:GetObject", f"{OBJECTS[:-1]}public/*"),
        )
    )
    assert bob.get_object(**NAMED)["Body"].read() == b"x"
    bob.head_object(**NAMED)
    bob.put_object(Bucket="photos", Key="public/p", Body=b"p")
    assert nobody.get_object(Bucket="photos", Key="public/p")["Body"].read() == b"p"
    assert [one["Key"] for one in cid.list_objects_v2(Bucket="photos")["Contents"]] == ["k", "public/p"]
    upload = bob.create_multipart_upload(**NAMED)["UploadId"]
    of_upload = {**NAMED, "UploadId": upload}
    etag = bob.upload_part(**of_upload, PartNumber=1, Body=b"part")["ETag"]
    for call, arguments in (
        (bob.list_objects_v2, {"Bucket": "photos"}),
        (bob.delete_object, NAMED),
        (bob.get_object_tagging, NAMED),
        (bob.get_object_acl, NAMED),
        (bob.get_object_attributes, {**NAMED, "ObjectAttributes": ["ETag"]}),
        (bob.put_object, {**NAMED, "Body": b"", "Tagging": "a=b"}),
        (bob.put_object, {**NAMED, "Body": b"", "ACL": "public-read"}),
        (bob.list_parts, of_upload),
        (bob.abort_multipart_upload, of_upload),
        (bob.list_multipart_uploads, {"Bucket": "photos"}),
        (bob.delete_bucket, {"Bucket": "photos"}),
        (cid.get_object, NAMED),
        (cid.list_object_versions, {"Bucket": "photos"}),
        (nobody.get_object, NAMED),
        (nobody.put_object, {"Bucket": "photos", "Key": "public/q", "Body": b""}),
        (cid.copy_object, {"Bucket": "photos", "Key": "public/q", "CopySource": "photos/k"}),
    ):
        refused("AccessDenied", 403, call, **arguments)
    bob.complete_multipart_upload(**of_upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert ann.get_object(**NAMED)["Body"].read() == b"part"


def test_a_deny_beats_everything_and_the_owner_repairs_it(gateway: Gateway, ann: Any) -> None:
    bob, root = gateway.client("bob"), gateway.client("root")
    ann.put_object(**NAMED, Body=b"x", ACL="public-read")
    gateway.accounts.grant("photos", "bob", Rights.READ)
    bob.get_object(**NAMED)
    everything = "s3:*", [BUCKET, OBJECTS]
    ann.put_bucket_policy(**policy(statement(*everything), statement(*everything, effect="Deny")))
    for client in (ann, bob, root, gateway.client(None)):
        refused("AccessDenied", 403, client.get_object, **NAMED)
        refused("AccessDenied", 403, client.list_objects_v2, Bucket="photos")
    refused("AccessDenied", 403, ann.get_object, **NAMED, VersionId="null")
    refused("AccessDenied", 403, ann.get_bucket_policy_status, Bucket="photos")
    refused("AccessDenied", 403, bob.get_bucket_policy, Bucket="photos")
    assert "Deny" in ann.get_bucket_policy(Bucket="photos")["Policy"]
    ann.put_bucket_policy(**policy(statement("s3:DeleteObject", effect="Deny")))
    ann.get_object(**NAMED)
    refused("AccessDenied", 403, ann.delete_object, **NAMED)
    root.delete_bucket_policy(Bucket="photos")
    ann.delete_object(**NAMED)


def test_deletes_of_several_objects_are_decided_one_by_one(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    for name in ("a/1", "a/2", "b/1"):
        ann.put_object(Bucket="photos", Key=name, Body=b"x")
    listed = {"Objects": [{"Key": "a/1"}, {"Key": "a/2", "VersionId": "null"}, {"Key": "b/1"}]}
    refused("AccessDenied", 403, bob.delete_objects, Bucket="photos", Delete=listed)
    ann.put_bucket_policy(**policy(statement("s3:DeleteObject", f"{BUCKET}/a/*", who={"AWS": "bob"})))
    answer = bob.delete_objects(Bucket="photos", Delete=listed)
    assert [one["Key"] for one in answer["Deleted"]] == ["a/1"]
    assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [("a/2", "AccessDenied"), ("b/1", "AccessDenied")]
    versions = statement("s3:DeleteObjectVersion", f"{BUCKET}/a/*", who={"AWS": "bob"})
    ann.put_bucket_policy(**policy(versions))
    answer = bob.delete_objects(Bucket="photos", Delete=listed)
    assert [one["Key"] for one in answer["Deleted"]] == ["a/2"]


def test_sources_of_copies_have_policies_too(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    ann.put_object(**NAMED, Body=b"x")
    bob.create_bucket(Bucket="mine")
    copy = {"Bucket": "mine", "Key": "c", "CopySource": "photos/k"}
    refused("AccessDenied", 403, bob.copy_object, **copy)
    ann.put_bucket_policy(**policy(statement("s3:GetObject", who={"AWS": "bob"})))
    bob.copy_object(**copy)
    ann.put_object(**NAMED, Body=b"x", ACL="public-read")
    ann.put_bucket_policy(**policy(statement("s3:GetObject", effect="Deny")))
    refused("AccessDenied", 403, bob.copy_object, **copy)
    upload = bob.create_multipart_upload(Bucket="mine", Key="c")["UploadId"]
    refused("AccessDenied", 403, bob.upload_part_copy, **copy, UploadId=upload, PartNumber=1)


def test_a_policy_that_cannot_be_read_denies_everything(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    gateway.system.metadata.set_bucket_document("photos", DocumentKind.POLICY, b'{"Statement": "of later"}', 1)
    refused("AccessDenied", 403, ann.get_object, **NAMED)
    ann.put_bucket_policy(**policy(statement("s3:GetObject")))
    ann.get_object(**NAMED)


@pytest.mark.parametrize("remember_ms", [0, 2000])
def test_a_new_policy_is_seen_in_time(system: System, remember_ms: int) -> None:
    clock = FakeClock()
    access = Access(system.metadata, MASTERS, clock, remember_ms, os.urandom)
    system.metadata.create_bucket("photos", "ann", CannedAcl.PRIVATE, 1)
    assert access.bucket("photos").policy is None
    body = policy(statement("s3:GetObject"))["Policy"].encode()
    system.metadata.set_bucket_document("photos", DocumentKind.POLICY, body, 1)
    assert (access.bucket("photos").policy is None) is bool(remember_ms)
    clock.advance(remember_ms)
    found = access.bucket("photos").policy
    assert found is not None
    assert found.verdict(None, "s3:GetObject", "photos/k") is Verdict.ALLOW


def test_forms_need_the_action_of_a_put(gateway: Gateway, ann: Any) -> None:
    fields = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (("key", "in/k"), ("file", "data"))
    )
    form = (fields + "--x--\r\n").encode()

    def post() -> int:
        return gateway.raw("POST", "/photos", form, Content_Type="multipart/form-data; boundary=x")[0]

    assert post() == 403
    ann.put_bucket_policy(**policy(statement("s3:PutObject", f"{BUCKET}/in/*")))
    assert post() == 204
    assert ann.get_object(Bucket="photos", Key="in/k")["Body"].read() == b"data"
    ann.put_bucket_policy(**policy(statement("s3:*"), statement("s3:PutObject", f"{BUCKET}/in/*", effect="Deny")))
    assert post() == 403


def test_a_policy_gives_nobody_the_policy(gateway: Gateway, ann: Any) -> None:
    bob, nobody = gateway.client("bob"), gateway.client(None)
    ann.put_bucket_policy(**policy(statement("s3:*", [BUCKET, OBJECTS])))
    for client in (bob, nobody):
        refused("AccessDenied", 403, client.get_bucket_policy, Bucket="photos")
        refused("AccessDenied", 403, client.put_bucket_policy, **policy(statement("s3:*")))
        refused("AccessDenied", 403, client.delete_bucket_policy, Bucket="photos")
    nobody.list_objects_v2(Bucket="photos")


def test_a_copy_takes_only_tags_that_may_be_read(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="bobs")
    ann.put_object(**NAMED, Body=b"x", Tagging="secret=1", ACL="public-read")
    copy = {"Bucket": "bobs", "Key": "c", "CopySource": "photos/k"}
    refused("AccessDenied", 403, bob.copy_object, **copy)
    bob.copy_object(**copy, TaggingDirective="REPLACE")
    assert bob.get_object_tagging(Bucket="bobs", Key="c")["TagSet"] == []
    ann.put_bucket_policy(**policy(statement(["s3:GetObject", "s3:GetObjectTagging"], who={"AWS": "bob"})))
    bob.copy_object(**copy)
    assert bob.get_object_tagging(Bucket="bobs", Key="c")["TagSet"] == [{"Key": "secret", "Value": "1"}]


def test_who_may_only_read_learns_not_what_is_missing(gateway: Gateway, ann: Any) -> None:
    nobody = gateway.client(None)
    ann.put_bucket_policy(**policy(statement("s3:GetObject")))
    refused("AccessDenied", 403, nobody.get_object, **NAMED)
    ann.put_bucket_policy(**policy(statement("s3:GetObject"), statement("s3:ListBucket", BUCKET)))
    refused("NoSuchKey", 404, nobody.get_object, **NAMED)
