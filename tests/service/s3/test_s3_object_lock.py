"""Object lock over the gateway: what S3 accepts and refuses, and that no request deletes a locked version."""

from __future__ import annotations

import datetime
import hashlib
import json
from base64 import b64encode
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.service.s3.s3_gateway import Gateway, refused

pytestmark = pytest.mark.invariant(11)

K = {"Bucket": "locked", "Key": "k"}
PLAIN = {"Bucket": "photos", "Key": "k"}
FAR = datetime.datetime(2096, 1, 1, tzinfo=datetime.UTC)
SOON = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
GOVERNANCE = {"Mode": "GOVERNANCE", "RetainUntilDate": FAR}
COMPLIANCE = {"Mode": "COMPLIANCE", "RetainUntilDate": FAR}
BYPASS = {"BypassGovernanceRetention": True}


@pytest.fixture
def locked(ann: Any) -> Any:
    """A client of the owner of a bucket with object lock."""
    ann.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    return ann


def configuration(**retention: Any) -> dict[str, Any]:
    """The lock configuration of a bucket with this default retention."""
    rule = {"Rule": {"DefaultRetention": retention}} if retention else {}
    return {"ObjectLockConfiguration": {"ObjectLockEnabled": "Enabled", **rule}}


def put(client: Any, **options: Any) -> dict[str, str]:
    """Store a version. Returns what names it."""
    return {**K, "VersionId": client.put_object(**K, Body=b"x", **options)["VersionId"]}


def is_there(client: Any, version: dict[str, str]) -> bool:
    try:
        return bool(client.get_object(**version)["Body"].read() == b"x")
    except ClientError:
        return False


# --- buckets --------------------------------------------------------------------------------------
def test_a_bucket_with_lock_has_versions_that_cannot_be_suspended(locked: Any) -> None:
    assert locked.get_object_lock_configuration(Bucket="locked")["ObjectLockConfiguration"] == {
        "ObjectLockEnabled": "Enabled"
    }
    assert locked.get_bucket_versioning(Bucket="locked")["Status"] == "Enabled"
    suspend = {"Bucket": "locked", "VersioningConfiguration": {"Status": "Suspended"}}
    refused("InvalidBucketState", 409, locked.put_bucket_versioning, **suspend)
    locked.put_bucket_versioning(Bucket="locked", VersioningConfiguration={"Status": "Enabled"})


def test_a_bucket_that_exists_without_lock_is_not_created_with_one(ann: Any) -> None:
    with pytest.raises(ClientError) as caught:
        ann.create_bucket(Bucket="photos", ObjectLockEnabledForBucket=True)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 409
    refused("ObjectLockConfigurationNotFoundError", 404, ann.get_object_lock_configuration, Bucket="photos")


def test_lock_is_enabled_for_a_bucket_with_versions(ann: Any) -> None:
    refused("InvalidBucketState", 409, ann.put_object_lock_configuration, Bucket="photos", **configuration())
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    given = configuration(Mode="GOVERNANCE", Days=3)
    ann.put_object_lock_configuration(Bucket="photos", **given)
    assert (
        ann.get_object_lock_configuration(Bucket="photos")["ObjectLockConfiguration"]
        == (given["ObjectLockConfiguration"])
    )


@pytest.mark.parametrize(
    ("retention", "code"),
    [
        ({"Mode": "GOVERNANCE", "Days": 1, "Years": 1}, "MalformedXML"),
        ({"Mode": "GOVERNANCE"}, "MalformedXML"),
        ({"Mode": "abc", "Years": 1}, "MalformedXML"),
        ({"Mode": "governance", "Years": 1}, "MalformedXML"),
        ({"Days": 1}, "MalformedXML"),
        ({"Mode": "GOVERNANCE", "Days": 0}, "InvalidRetentionPeriod"),
        ({"Mode": "COMPLIANCE", "Years": -1}, "InvalidRetentionPeriod"),
        ({"Mode": "COMPLIANCE", "Years": 101}, "InvalidRetentionPeriod"),
        ({"Mode": "COMPLIANCE", "Days": 10**9}, "InvalidRetentionPeriod"),
    ],
)
def test_configurations_that_are_refused(locked: Any, retention: dict[str, Any], code: str) -> None:
    refused(code, 400, locked.put_object_lock_configuration, Bucket="locked", **configuration(**retention))


def test_the_status_of_a_configuration_is_enabled(locked: Any) -> None:
    for status in ("Disabled", "enabled"):
        wrong = {"ObjectLockConfiguration": {"ObjectLockEnabled": status}}
        refused("MalformedXML", 400, locked.put_object_lock_configuration, Bucket="locked", **wrong)


@pytest.mark.parametrize(("unit", "days"), [({"Days": 2}, 2), ({"Years": 1}, 365)])
def test_new_versions_get_the_default_retention(locked: Any, unit: dict[str, int], days: int) -> None:
    locked.put_object_lock_configuration(Bucket="locked", **configuration(Mode="COMPLIANCE", **unit))
    now = datetime.datetime.now(datetime.UTC)
    copied = locked.copy_object(**K, CopySource=put(locked), MetadataDirective="REPLACE")
    upload = {**K, "UploadId": locked.create_multipart_upload(**K)["UploadId"]}
    etag = locked.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    parts = {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}}
    completed = locked.complete_multipart_upload(**upload, **parts)
    for version in (copied["VersionId"], completed["VersionId"]):
        found = locked.head_object(**K, VersionId=version)
        assert found["ObjectLockMode"] == "COMPLIANCE"
        length = found["ObjectLockRetainUntilDate"] - now
        assert datetime.timedelta(days) <= length <= datetime.timedelta(days + 1, minutes=2)
        refused("AccessDenied", 403, locked.delete_object, **K, VersionId=version, **BYPASS)
    held = put(locked, ObjectLockLegalHoldStatus="ON")
    assert locked.head_object(**held)["ObjectLockMode"] == "COMPLIANCE"
    own = put(locked, ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=FAR)
    assert locked.get_object_retention(**own)["Retention"] == GOVERNANCE


# --- headers of PUTs ------------------------------------------------------------------------------
LOCK_HEADERS = {
    "ObjectLockMode": "GOVERNANCE",
    "ObjectLockRetainUntilDate": FAR,
    "ObjectLockLegalHoldStatus": "ON",
}


def test_a_put_a_copy_and_an_upload_set_locks(locked: Any) -> None:
    made = [put(locked, **LOCK_HEADERS)["VersionId"]]
    replacing = {**K, "CopySource": K, "MetadataDirective": "REPLACE"}
    made.append(locked.copy_object(**replacing, **LOCK_HEADERS)["VersionId"])
    upload = {**K, "UploadId": locked.create_multipart_upload(**K, **LOCK_HEADERS)["UploadId"]}
    etag = locked.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    parts = {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}}
    made.append(locked.complete_multipart_upload(**upload, **parts)["VersionId"])
    for version in made:
        for found in (locked.head_object(**K, VersionId=version), locked.get_object(**K, VersionId=version)):
            assert {name: found[name] for name in LOCK_HEADERS} == LOCK_HEADERS
        assert locked.get_object_retention(**K, VersionId=version)["Retention"] == GOVERNANCE
        assert locked.get_object_legal_hold(**K, VersionId=version)["LegalHold"] == {"Status": "ON"}


def test_a_copy_does_not_take_the_lock_of_its_source(locked: Any) -> None:
    put(locked, **LOCK_HEADERS)
    copied = locked.copy_object(**K, CopySource=K, MetadataDirective="REPLACE")["VersionId"]
    assert not LOCK_HEADERS.keys() & locked.head_object(**K, VersionId=copied).keys()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"ObjectLockMode": "GOVERNANCE"}, "InvalidArgument"),
        ({"ObjectLockRetainUntilDate": FAR}, "InvalidArgument"),
        ({"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": PAST}, "InvalidArgument"),
        ({"ObjectLockMode": "x", "ObjectLockRetainUntilDate": FAR}, "InvalidArgument"),
        ({"ObjectLockLegalHoldStatus": "on"}, "InvalidArgument"),
    ],
)
def test_headers_that_are_refused(locked: Any, headers: dict[str, Any], code: str) -> None:
    refused(code, 400, locked.put_object, **K, Body=b"x", **headers)
    refused(code, 400, locked.create_multipart_upload, **K, **headers)
    assert "Versions" not in locked.list_object_versions(Bucket="locked")


def test_a_bucket_without_lock_takes_no_locks(ann: Any) -> None:
    ann.put_object(**PLAIN, Body=b"x")
    hold, retention = {"LegalHold": {"Status": "ON"}}, {"Retention": GOVERNANCE}
    refused("InvalidRequest", 400, ann.put_object, **PLAIN, Body=b"x", ObjectLockLegalHoldStatus="ON")
    refused("InvalidRequest", 400, ann.create_multipart_upload, **PLAIN, ObjectLockLegalHoldStatus="ON")
    refused("InvalidRequest", 400, ann.put_object_legal_hold, **PLAIN, **hold)
    refused("InvalidRequest", 400, ann.put_object_retention, **PLAIN, **retention)
    refused("InvalidRequest", 400, ann.get_object_legal_hold, **PLAIN)
    refused("InvalidRequest", 400, ann.get_object_retention, **PLAIN)


def test_a_put_with_a_lock_needs_a_checksum(locked: Any, gateway: Gateway) -> None:
    client = gateway.client("ann", request_checksum_calculation="when_required")
    refused("InvalidRequest", 400, client.put_object, **K, Body=b"x", ObjectLockLegalHoldStatus="ON")
    md5 = b64encode(hashlib.md5(b"x").digest()).decode()
    client.put_object(**K, Body=b"x", ObjectLockLegalHoldStatus="ON", ContentMD5=md5)
    client.put_object(**K, Body=b"x", ObjectLockLegalHoldStatus="ON", ChecksumAlgorithm="SHA256")


# --- retention and legal holds --------------------------------------------------------------------
def test_retentions(locked: Any) -> None:
    version = put(locked)
    refused("NoSuchObjectLockConfiguration", 404, locked.get_object_retention, **version)
    locked.put_object_retention(**version, Retention={"Mode": "GOVERNANCE", "RetainUntilDate": SOON})
    locked.put_object_retention(**version, Retention=GOVERNANCE)  # extended
    shorter = {"Mode": "GOVERNANCE", "RetainUntilDate": SOON}
    for refused_one in (shorter, {**COMPLIANCE}, {}):
        refused("AccessDenied", 403, locked.put_object_retention, **version, Retention=refused_one)
    locked.put_object_retention(**version, Retention=shorter, **BYPASS)
    assert locked.get_object_retention(**version)["Retention"] == shorter
    locked.put_object_retention(**version, Retention={}, **BYPASS)
    refused("NoSuchObjectLockConfiguration", 404, locked.get_object_retention, **version)
    locked.put_object_retention(**version, Retention=GOVERNANCE)
    locked.put_object_retention(**version, Retention=COMPLIANCE, **BYPASS)
    for refused_one in (GOVERNANCE, {"Mode": "COMPLIANCE", "RetainUntilDate": SOON}, {}):
        refused("AccessDenied", 403, locked.put_object_retention, **version, Retention=refused_one, **BYPASS)
    refused("AccessDenied", 403, locked.delete_object, **version, **BYPASS)
    assert is_there(locked, version)


@pytest.mark.parametrize(
    ("retention", "code"),
    [
        ({"Mode": "governance", "RetainUntilDate": FAR}, "MalformedXML"),
        ({"Mode": "GOVERNANCE"}, "MalformedXML"),
        ({"RetainUntilDate": FAR}, "MalformedXML"),
        ({"Mode": "GOVERNANCE", "RetainUntilDate": PAST}, "InvalidArgument"),
    ],
)
def test_retentions_that_are_refused(locked: Any, retention: dict[str, Any], code: str) -> None:
    version = put(locked)
    refused(code, 400, locked.put_object_retention, **version, Retention=retention)


def test_legal_holds(locked: Any) -> None:
    version = put(locked)
    refused("NoSuchObjectLockConfiguration", 404, locked.get_object_legal_hold, **version)
    for wrong in ("on", "abc"):
        refused("MalformedXML", 400, locked.put_object_legal_hold, **version, LegalHold={"Status": wrong})
    locked.put_object_legal_hold(**version, LegalHold={"Status": "ON"})
    refused("AccessDenied", 403, locked.delete_object, **version, **BYPASS)
    locked.put_object_retention(**version, Retention=GOVERNANCE)
    locked.put_object_legal_hold(**version, LegalHold={"Status": "OFF"})
    assert locked.get_object_legal_hold(**version)["LegalHold"] == {"Status": "OFF"}
    assert locked.get_object_retention(**version)["Retention"] == GOVERNANCE
    locked.delete_object(**version, **BYPASS)
    assert not is_there(locked, version)


def test_tags_and_acls_do_not_touch_a_lock(locked: Any) -> None:
    version = put(locked, **LOCK_HEADERS)
    locked.put_object_tagging(**version, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    locked.put_object_acl(**version, ACL="public-read")
    assert locked.get_object_retention(**version)["Retention"] == GOVERNANCE


# --- deletes --------------------------------------------------------------------------------------
def test_markers_are_added_and_versions_stay(locked: Any) -> None:
    version = put(locked, **LOCK_HEADERS)
    marker = locked.delete_object(**K)["VersionId"]
    assert is_there(locked, version)
    refused("BucketNotEmpty", 409, locked.delete_bucket, Bucket="locked")
    locked.delete_object(**K, VersionId=marker)  # markers are not locked
    assert is_there(locked, K)


def test_deletes_of_several_versions_are_judged_one_by_one(locked: Any) -> None:
    governed = put(locked, ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=FAR)
    held, free = put(locked, ObjectLockLegalHoldStatus="ON"), put(locked)
    listed = [{"Key": "k", "VersionId": one["VersionId"]} for one in (governed, held, free)]
    answer = locked.delete_objects(Bucket="locked", Delete={"Objects": listed})
    assert [one["VersionId"] for one in answer["Deleted"]] == [free["VersionId"]]
    assert {one["Code"] for one in answer["Errors"]} == {"AccessDenied"}
    assert len(answer["Errors"]) == 2
    answer = locked.delete_objects(Bucket="locked", Delete={"Objects": listed}, **BYPASS)
    assert [one["VersionId"] for one in answer["Errors"]] == [held["VersionId"]]
    assert is_there(locked, held)
    assert not is_there(locked, governed)


def test_who_may_bypass(locked: Any, gateway: Gateway) -> None:
    bob, root = gateway.client("bob"), gateway.client("root")
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam:::user/bob"},
        "Action": ["s3:DeleteObjectVersion", "s3:DeleteObject"],
        "Resource": "arn:aws:s3:::locked/*",
    }
    versions = [put(locked, ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=FAR) for _ in range(2)]
    refused("AccessDenied", 403, root.delete_object, **versions[0])  # without the header
    set_policy(locked, statement)
    refused("AccessDenied", 403, bob.delete_object, **versions[0], **BYPASS)
    set_policy(locked, {**statement, "Action": [*statement["Action"], "s3:BypassGovernanceRetention"]})
    bob.delete_object(**versions[0], **BYPASS)
    set_policy(locked, {**statement, "Effect": "Deny", "Principal": "*", "Action": "s3:BypassGovernanceRetention"})
    refused("AccessDenied", 403, root.delete_object, **versions[1], **BYPASS)
    locked.delete_bucket_policy(Bucket="locked")
    root.delete_object(**versions[1], **BYPASS)


def set_policy(client: Any, *statements: dict[str, Any]) -> None:
    document = {"Version": "2012-10-17", "Statement": list(statements)}
    client.put_bucket_policy(Bucket="locked", Policy=json.dumps(document))


def test_others_need_rights_for_locks(locked: Any, gateway: Gateway) -> None:
    version = put(locked, **LOCK_HEADERS)
    locked.put_object_acl(**version, ACL="public-read")
    bob = gateway.client("bob")
    assert not LOCK_HEADERS.keys() & bob.head_object(**version).keys()
    refused("AccessDenied", 403, bob.get_object_retention, **version)
    refused("AccessDenied", 403, bob.get_object_legal_hold, **version)
    refused("AccessDenied", 403, bob.put_object_retention, **version, Retention=COMPLIANCE)
    refused("AccessDenied", 403, bob.put_object_legal_hold, **version, LegalHold={"Status": "OFF"})


# --- conditions of policies -----------------------------------------------------------------------
def in_days(days: int) -> datetime.datetime:
    """Half a day before the end of the last of this many days."""
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days, hours=-12)


def deny(action: Any, condition: dict[str, Any]) -> dict[str, Any]:
    resource = "arn:aws:s3:::locked/*"
    return {"Effect": "Deny", "Principal": "*", "Action": action, "Resource": resource, "Condition": condition}


def test_a_policy_limits_how_long_a_retention_lasts(locked: Any) -> None:
    """The example in "Managing object retention" of the S3 user guide: at most ten days. There, too, a PUT with a
    retention needs the action PutObjectRetention."""
    version = put(locked)
    limit = deny("s3:PutObjectRetention", {"NumericGreaterThan": {"s3:object-lock-remaining-retention-days": "10"}})
    set_policy(locked, limit)
    for days, is_allowed in ((10, True), (11, False), (9_999, False)):
        for mode in ("GOVERNANCE", "COMPLIANCE"):
            retention = {"Mode": mode, "RetainUntilDate": in_days(days)}
            headers = {"ObjectLockMode": mode, "ObjectLockRetainUntilDate": in_days(days)}
            other = {**K, "Key": f"{mode}/{days}"}
            calls: list[tuple[Any, dict[str, Any]]] = [
                (locked.put_object_retention, {**put(locked), "Retention": retention}),
                (locked.put_object, {**other, "Body": b"x", **headers}),
                (locked.copy_object, {**other, "CopySource": version, **headers}),
                (locked.create_multipart_upload, {**other, **headers}),
            ]
            for call, arguments in calls:
                if is_allowed:
                    call(**arguments)
                else:
                    refused("AccessDenied", 403, call, **arguments)
    locked.put_object(**K, Body=b"x")
    locked.put_object_legal_hold(**version, LegalHold={"Status": "ON"})
    locked.put_object_retention(**version, Retention={})  # there is none to remove


def test_a_policy_requires_a_mode_and_a_date(locked: Any, gateway: Gateway) -> None:
    """What is not sent is missing: a negated operator holds, so every object needs the retention."""
    bob = gateway.client("bob")
    allow = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:PutObject", "s3:PutObjectRetention"],
        "Resource": "arn:aws:s3:::locked/*",
        "Condition": {"DateGreaterThan": {"s3:object-lock-retain-until-date": "2090-01-01T00:00:00Z"}},
    }
    mode = deny(["s3:PutObject", "s3:PutObjectRetention"], {"StringNotEquals": {"s3:object-lock-mode": "COMPLIANCE"}})
    set_policy(locked, allow, mode)
    headers = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": FAR}
    named = bob.put_object(**K, Body=b"x", **headers)["VersionId"]
    version = {**K, "VersionId": named}
    bob.put_object_retention(**version, Retention={**COMPLIANCE, "RetainUntilDate": FAR.replace(year=2098)})
    upload = bob.create_multipart_upload(**K, **headers)["UploadId"]
    bob.upload_part(**K, UploadId=upload, PartNumber=1, Body=b"x")
    for unsuitable in ({}, {**headers, "ObjectLockMode": "GOVERNANCE"}, {**headers, "ObjectLockRetainUntilDate": SOON}):
        refused("AccessDenied", 403, bob.put_object, **K, Body=b"x", **unsuitable)
        refused("AccessDenied", 403, bob.create_multipart_upload, **K, **unsuitable)
    for retention in (GOVERNANCE, {**COMPLIANCE, "RetainUntilDate": SOON}, {}):
        refused("AccessDenied", 403, bob.put_object_retention, **version, Retention=retention)
    refused("AccessDenied", 403, locked.put_object, **K, Body=b"x")  # the owner, too


def test_policies_about_legal_holds_and_bypasses(locked: Any, gateway: Gateway) -> None:
    version = put(locked, ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=FAR)
    on = {"StringEquals": {"s3:object-lock-legal-hold": "ON"}}
    short = {"DateLessThan": {"s3:object-lock-retain-until-date": "2092-01-01T00:00:00Z"}}
    set_policy(locked, deny("s3:PutObjectLegalHold", on), deny("s3:BypassGovernanceRetention", short))
    refused("AccessDenied", 403, locked.put_object_legal_hold, **version, LegalHold={"Status": "ON"})
    refused("AccessDenied", 403, locked.put_object, **K, Body=b"x", ObjectLockLegalHoldStatus="ON")
    locked.put_object_legal_hold(**version, LegalHold={"Status": "OFF"})
    shorter = {"Mode": "GOVERNANCE", "RetainUntilDate": SOON}
    refused("AccessDenied", 403, locked.put_object_retention, **version, Retention=shorter, **BYPASS)
    shorter = {"Mode": "GOVERNANCE", "RetainUntilDate": FAR.replace(year=2094)}
    refused("AccessDenied", 403, locked.put_object_retention, **version, Retention=shorter)
    locked.put_object_retention(**version, Retention=shorter, **BYPASS)

    def add_date(request: Any, **_: Any) -> None:
        request.headers["x-amz-object-lock-mode"] = "GOVERNANCE"
        request.headers["x-amz-object-lock-retain-until-date"] = "2091-01-01"

    root = gateway.client("root")
    root.meta.events.register("before-sign.s3.DeleteObject", add_date)
    root.delete_object(**version, **BYPASS)  # a deletion sets no date


def test_conditions_on_locks_that_no_request_of_the_action_has(locked: Any) -> None:
    for action, key in (
        ("s3:PutObjectLegalHold", "s3:object-lock-mode"),
        ("s3:PutObjectRetention", "s3:object-lock-legal-hold"),
        ("s3:GetObjectRetention", "s3:object-lock-retain-until-date"),
    ):
        with pytest.raises(ClientError, match="MalformedPolicy"):
            set_policy(locked, deny(action, {"Null": {key: "true"}}))
    with pytest.raises(ClientError, match="MalformedPolicy"):
        set_policy(locked, deny("s3:PutObject", {"NumericLessThan": {"s3:object-lock-retain-until-date": "10"}}))
