"""Lifecycle configurations of buckets, as clients of the gateway set and see them."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from nos_ec.core.expiry import DAY_MS, ExpiryRule, encode_rules
from nos_ec.engine.expiry.lifecycle_bucket import WalkCounts
from nos_ec.engine.expiry.lifecycle_walk import LifecycleWalk
from nos_ec.ports.metadata import DocumentKind
from tests.rig.at_rest import LaterClock
from tests.service.s3.s3_gateway import Gateway, refused

NAMED = {"Bucket": "photos", "Key": "k"}


def rule(**more: Any) -> dict[str, Any]:
    actions = {"Expiration", "AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"}
    expires = {} if actions & more.keys() else {"Expiration": {"Days": 1}}
    where = {} if "Prefix" in more or "Filter" in more else {"Filter": {"Prefix": ""}}
    return {"Status": "Enabled", **where, **expires, **more}


def configuration(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"Bucket": "photos", "LifecycleConfiguration": {"Rules": list(rules)}}


def configure(ann: Any, *rules: dict[str, Any]) -> None:
    ann.put_bucket_lifecycle_configuration(**configuration(*rules))


def rules_of(ann: Any) -> Any:
    return ann.get_bucket_lifecycle_configuration(Bucket="photos")["Rules"]


def raw(ann: Any, text: str) -> Any:
    """PUT this document, as the client signs it."""

    def send(**_: Any) -> None:
        ann.meta.events.register_first("before-call.s3.PutBucketLifecycleConfiguration", replace_body)
        try:
            configure(ann, rule())
        finally:
            ann.meta.events.unregister("before-call.s3.PutBucketLifecycleConfiguration", replace_body)

    def replace_body(params: Any, **_: Any) -> None:
        params["body"] = text.encode()
        for name in [name for name in params["headers"] if "checksum" in name.lower() or name == "Content-MD5"]:
            del params["headers"][name]

    return send


def test_the_smallest_size_of_transitions_comes_back_as_it_was_put(gateway: Gateway, ann: Any) -> None:
    """Without transitions it has no effect, but terraform waits until it reads back what it has written."""
    name, default = "TransitionDefaultMinimumObjectSize", "all_storage_classes_128K"
    for asked in (None, "varies_by_storage_class", default):
        told = {} if asked is None else {name: asked}
        wanted = asked or default
        assert ann.put_bucket_lifecycle_configuration(**configuration(rule()), **told)[name] == wanted
        assert ann.get_bucket_lifecycle_configuration(Bucket="photos")[name] == wanted
    lax = gateway.client("ann", parameter_validation=False)
    refused(
        "InvalidArgument",
        400,
        lax.put_bucket_lifecycle_configuration,
        **configuration(rule()),
        TransitionDefaultMinimumObjectSize="1K",
    )
    stored = encode_rules([ExpiryRule("by an earlier release", days=1)])
    gateway.system.metadata.set_bucket_document("photos", DocumentKind.LIFECYCLE, stored, 1)
    assert ann.get_bucket_lifecycle_configuration(Bucket="photos")[name] == default


def test_a_configuration_comes_back_as_it_was_put(gateway: Gateway, ann: Any) -> None:
    refused("NoSuchLifecycleConfiguration", 404, ann.get_bucket_lifecycle_configuration, Bucket="photos")
    date = datetime(2031, 2, 3, tzinfo=UTC)
    tag, size = {"Key": "a&b", "Value": "<é>"}, {"ObjectSizeGreaterThan": 5}
    rules = [
        rule(ID="old", Prefix="a/&b/"),
        rule(ID="by date", Filter={}, Expiration={"Date": date}, Status="Disabled"),
        rule(ID="tag", Filter={"Tag": tag}),
        rule(ID="size", Filter=size),
        rule(ID="all", Filter={"And": {"Prefix": "p", "Tags": [tag, {"Key": "c", "Value": ""}], **size}}),
        rule(ID="uploads", Filter={"Prefix": "u/"}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 3}),
        rule(ID="versions", NoncurrentVersionExpiration={"NoncurrentDays": 3}),
        rule(ID="old ones", Prefix="a", NoncurrentVersionExpiration={"NoncurrentDays": 3}),
        rule(
            ID="but some", Filter={}, NoncurrentVersionExpiration={"NoncurrentDays": 9, "NewerNoncurrentVersions": 100}
        ),
        rule(ID="tagged", Filter={"Tag": tag}, NoncurrentVersionExpiration={"NoncurrentDays": 1}),
        rule(ID="markers", Expiration={"ExpiredObjectDeleteMarker": True}),
        rule(ID="no markers", Filter={"Prefix": "a"}, Expiration={"ExpiredObjectDeleteMarker": False}),
        rule(
            ID="everything",
            Expiration={"ExpiredObjectDeleteMarker": True},
            NoncurrentVersionExpiration={"NoncurrentDays": 1},
            AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1},
        ),
        rule(ID="both", Expiration={"Days": 7}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}),
    ]
    configure(ann, *rules)
    assert rules_of(ann) == rules
    configure(ann, rule(), rule(ID="rule-1", Prefix="x"), rule(Prefix="y"))
    assert [one["ID"] for one in rules_of(ann)] == ["rule-2", "rule-1", "rule-3"]
    bob = gateway.client("bob")
    refused("AccessDenied", 403, bob.get_bucket_lifecycle_configuration, Bucket="photos")
    refused("AccessDenied", 403, bob.delete_bucket_lifecycle, Bucket="photos")
    refused("AccessDenied", 403, bob.put_bucket_lifecycle_configuration, **configuration(rule()))
    ann.delete_bucket_lifecycle(Bucket="photos")
    ann.delete_bucket_lifecycle(Bucket="photos")
    refused("NoSuchLifecycleConfiguration", 404, ann.get_bucket_lifecycle_configuration, Bucket="photos")


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ("InvalidArgument", [rule(ID="a" * 256)]),
        ("InvalidArgument", [rule(ID="same"), rule(ID="same", Prefix="a")]),
        ("InvalidArgument", [rule(Expiration={"Days": 0})]),
        ("InvalidArgument", [rule(Expiration={"Days": -1})]),
        ("InvalidArgument", [rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 0})]),
        ("InvalidArgument", [rule(Expiration={"Date": datetime(2031, 2, 3, 4, tzinfo=UTC)})]),
        ("InvalidArgument", [rule(Filter={"ObjectSizeGreaterThan": -1})]),
        ("InvalidRequest", [rule(Filter={"And": {"ObjectSizeGreaterThan": 5, "ObjectSizeLessThan": 6}})]),
        ("InvalidRequest", [{"Status": "Enabled", "Prefix": ""}]),
        ("InvalidRequest", [rule(Prefix="a" * 1025)]),
        ("InvalidRequest", [rule(Filter={"Tag": {"Key": "k" * 129, "Value": ""}})]),
        ("InvalidRequest", [rule(Filter={"And": {"Tags": [{"Key": "k", "Value": "1"}, {"Key": "k", "Value": "2"}]}})]),
        (
            "InvalidRequest",
            [
                rule(
                    Filter={"Tag": {"Key": "k", "Value": ""}}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}
                )
            ],
        ),
        (
            "InvalidArgument",
            [rule(Transitions=[{"Date": datetime(2031, 2, 3, 4, tzinfo=UTC), "StorageClass": "GLACIER"}])],
        ),
        ("InvalidArgument", [rule(NoncurrentVersionExpiration={"NoncurrentDays": 0})]),
        ("InvalidArgument", [rule(NoncurrentVersionExpiration={"NoncurrentDays": 1, "NewerNoncurrentVersions": 0})]),
        ("InvalidArgument", [rule(NoncurrentVersionExpiration={"NoncurrentDays": 1, "NewerNoncurrentVersions": 101})]),
        (
            "InvalidRequest",
            [rule(Prefix="", NoncurrentVersionExpiration={"NoncurrentDays": 1, "NewerNoncurrentVersions": 1})],
        ),
        (
            "InvalidRequest",
            [rule(Filter={"Tag": {"Key": "k", "Value": ""}}, Expiration={"ExpiredObjectDeleteMarker": True})],
        ),
        ("InvalidRequest", [rule(Filter={"ObjectSizeLessThan": 9}, Expiration={"ExpiredObjectDeleteMarker": True})]),
        ("MalformedXML", [rule(Expiration={"Days": 1, "ExpiredObjectDeleteMarker": True})]),
        ("MalformedXML", [rule(Expiration={"Days": 1, "ExpiredObjectDeleteMarker": False})]),
        (
            "MalformedXML",
            [rule(Expiration={"Date": datetime(2031, 2, 3, tzinfo=UTC), "ExpiredObjectDeleteMarker": True})],
        ),
        ("MalformedXML", [rule(NoncurrentVersionExpiration={})]),
        ("MalformedXML", [rule(NoncurrentVersionExpiration={"NewerNoncurrentVersions": 1})]),
        ("MalformedXML", [rule(Status="enabled")]),
        ("MalformedXML", [rule(Expiration={})]),
        ("MalformedXML", [rule(Filter={"Prefix": "a"}, Prefix="a")]),
        ("MalformedXML", [{"Status": "Enabled", "Expiration": {"Days": 1}}]),
        ("MalformedXML", [rule(Expiration={"Days": 1, "Date": datetime(2031, 2, 3, tzinfo=UTC)})]),
        ("MalformedXML", []),
        ("MalformedXML", [rule()] * 1001),
    ],
)
def test_bad_configurations_are_refused(ann: Any, code: str, rules: list[dict[str, Any]]) -> None:
    refused(code, 400, ann.put_bucket_lifecycle_configuration, **configuration(*rules))
    refused("NoSuchLifecycleConfiguration", 404, ann.get_bucket_lifecycle_configuration, Bucket="photos")


@pytest.mark.parametrize(
    "more",
    [
        {"NoncurrentVersionTransitions": [{"NoncurrentDays": 1, "StorageClass": "GLACIER"}]},
        {"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]},
        {"Transitions": [{"Date": datetime(2031, 2, 3, tzinfo=UTC), "StorageClass": "GLACIER"}]},
    ],
)
def test_what_the_store_cannot_do_is_refused(ann: Any, more: dict[str, Any]) -> None:
    refused("NotImplemented", 501, ann.put_bucket_lifecycle_configuration, **configuration(rule(**more)))


@pytest.mark.parametrize(
    "inside",
    [
        "<Rule><ID>a</ID><ID>b</ID><Status>Enabled</Status><Prefix/><Expiration><Days>1</Days></Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Prefix/><Expiration><Days>one</Days></Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Prefix/><Expiration><Date>20310101</Date></Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Prefix/><Expiration><Date>2031-13-01</Date></Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Filter><Prefix/><Tag/></Filter><Expiration><Days>1</Days></Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Filter><And/></Filter><Expiration><Days>1</Days></Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Prefix/><Expiration><ExpiredObjectDeleteMarker>1</ExpiredObjectDeleteMarker>"
        "</Expiration></Rule>",
        "<Rule><Status>Enabled</Status><Prefix/><Other/><Expiration><Days>1</Days></Expiration></Rule>",
        "<Rule>text<Status>Enabled</Status><Prefix/><Expiration><Days>1</Days></Expiration></Rule>",
        "<Other/>",
    ],
)
def test_malformed_documents_are_refused(ann: Any, inside: str) -> None:
    text = f"<LifecycleConfiguration>{inside}</LifecycleConfiguration>"
    refused("MalformedXML", 400, raw(ann, text))


def test_objects_tell_when_they_expire(gateway: Gateway, ann: Any) -> None:
    configure(
        ann,
        rule(ID="three days/é", Prefix="", Expiration={"Days": 3}),
        rule(ID="soon", Filter={"Tag": {"Key": "soon", "Value": "1"}}, Expiration={"Days": 1}),
        rule(Filter={"Prefix": "u/"}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 2}),
    )
    put = ann.put_object(**NAMED, Body=b"x")
    created = int(ann.head_object(**NAMED)["LastModified"].timestamp() * 1000)
    due_ms = (created // DAY_MS + 4) * DAY_MS
    date = datetime.fromtimestamp(due_ms / 1000, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    said = f'expiry-date="{date}", rule-id="three%20days%2F%C3%A9"'
    assert put["Expiration"] == said
    assert ann.get_object(**NAMED)["Expiration"] == said
    assert ann.head_object(**NAMED)["Expiration"] == said
    ann.put_object_tagging(**NAMED, Tagging={"TagSet": [{"Key": "soon", "Value": "1"}]})
    assert 'rule-id="soon"' in ann.head_object(**NAMED)["Expiration"]
    copied = ann.copy_object(Bucket="photos", Key="copy", CopySource="photos/k")
    assert 'rule-id="soon"' in copied["Expiration"]
    upload = ann.create_multipart_upload(Bucket="photos", Key="u/1")
    assert upload["AbortRuleId"] == "rule-1"
    of_upload = {"Bucket": "photos", "Key": "u/1", "UploadId": upload["UploadId"]}
    assert ann.list_parts(**of_upload)["AbortDate"] == upload["AbortDate"]
    part = ann.upload_part(**of_upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    assert "three" in ann.complete_multipart_upload(**of_upload, MultipartUpload=parts)["Expiration"]
    ann.delete_bucket_lifecycle(Bucket="photos")
    assert "Expiration" not in ann.head_object(**NAMED)
    gateway.system.metadata.set_bucket_document("photos", DocumentKind.LIFECYCLE, b"damaged", 1)
    assert "Expiration" not in ann.put_object(**NAMED, Body=b"x"), "it is stored all the same"
    refused("InternalError", 500, ann.get_bucket_lifecycle_configuration, Bucket="photos")


def test_noncurrent_versions_do_not_tell_when_they_expire(ann: Any) -> None:
    configure(ann, rule(), rule(ID="r", NoncurrentVersionExpiration={"NoncurrentDays": 1}))
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    first, second = (ann.put_object(**NAMED, Body=b"x") for _ in range(2))
    assert 'rule-id="rule-1"' in first["Expiration"]
    assert "Expiration" not in ann.head_object(**NAMED, VersionId=first["VersionId"])
    assert ann.head_object(**NAMED, VersionId=second["VersionId"])["Expiration"] == second["Expiration"]


def test_a_bucket_is_empty_in_the_end(gateway: Gateway, ann: Any) -> None:
    """Clients set rules, and the walks of some days do the rest: then the bucket can be deleted."""
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    for number in range(3):
        ann.put_object(**NAMED, Body=b"%d" % number)
        ann.put_object(Bucket="photos", Key="kept", Body=b"%d" % number)
    everything = {"Expiration": {"Days": 2}, "NoncurrentVersionExpiration": {"NoncurrentDays": 2}}
    some = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 1}
    configure(
        ann, rule(Filter={"Prefix": "k"}, NoncurrentVersionExpiration=some), rule(ID="k", Prefix="k", **everything)
    )
    metadata = gateway.system.metadata

    def walk(days: int) -> WalkCounts:
        return LifecycleWalk(metadata, LaterClock(days * DAY_MS), DAY_MS, 0).run_once()

    assert walk(2).versions == 2, "one of two of each key"
    listed = ann.list_object_versions(Bucket="photos")
    assert [one["IsLatest"] for one in listed["Versions"]] == [True, False] * 2
    found = walk(4)
    assert (found.objects, found.versions) == (2, 2), "current ones, and what is noncurrent since the first day"
    refused("NoSuchKey", 404, ann.get_object, **NAMED)
    refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="photos")
    cleaning = {"Expiration": {"ExpiredObjectDeleteMarker": True}}
    configure(ann, rule(**everything | cleaning))
    left = [walk(days) for days in range(5, 10)]
    assert sum(one.versions for one in left) == sum(one.markers for one in left) == 2
    assert "DeleteMarkers" not in ann.list_object_versions(Bucket="photos")
    ann.delete_bucket(Bucket="photos")


def test_rules_that_do_not_fit_are_refused(ann: Any) -> None:
    rng = random.Random(1)
    rules = [rule(Prefix=rng.randbytes(500).hex()) for _ in range(100)]
    error = refused("InvalidRequest", 400, ann.put_bucket_lifecycle_configuration, **configuration(*rules))
    assert "32768" in str(error)


def test_a_date_that_no_clock_shows_is_refused(gateway: Gateway, ann: Any) -> None:
    late = (
        "<LifecycleConfiguration><Rule><ID>a</ID><Filter/><Status>Enabled</Status><Expiration>"
        "<Date>9999-12-31T23:00:00-01:00</Date></Expiration></Rule></LifecycleConfiguration>"
    )
    refused("InvalidArgument", 400, raw(ann, late))
