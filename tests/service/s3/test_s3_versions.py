"""Versioning over the gateway: ids, delete markers, suspended buckets, listings, and what becomes current again."""

from __future__ import annotations

import datetime
import re
from io import BytesIO
from typing import Any
from urllib.parse import unquote_plus

import pytest
from botocore.exceptions import ClientError

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from tests.rig.fakes.audit import problems
from tests.service.s3.s3_gateway import Gateway, refused

BUCKET = {"Bucket": "photos"}
K = {"Bucket": "photos", "Key": "k"}
PART = bytes(range(256)) * (5 << 12)


def set_versioning(ann: Any, status: str) -> None:
    ann.put_bucket_versioning(**BUCKET, VersioningConfiguration={"Status": status})


@pytest.fixture
def versioned(ann: Any) -> Any:
    set_versioning(ann, "Enabled")
    return ann


def put(ann: Any, body: bytes = b"v", key: str = "k", **options: Any) -> str | None:
    """Return the version's id, which only an Enabled bucket reports."""
    version: str | None = ann.put_object(Bucket="photos", Key=key, Body=body, **options).get("VersionId")
    return version


def body_of(ann: Any, version: str | None = None, key: str = "k") -> bytes:
    asked = {} if version is None else {"VersionId": version}
    body: bytes = ann.get_object(Bucket="photos", Key=key, **asked)["Body"].read()
    return body


def listed(ann: Any, **options: Any) -> list[tuple[str, str, bool, bool]]:
    """(key, version, whether it is the latest, whether it is a marker), in the order of the document."""
    documents: list[bytes] = []

    def keep(response_dict: Any, **_: Any) -> None:
        documents.append(response_dict["body"])

    ann.meta.events.register("before-parse.s3.ListObjectVersions", keep)
    page = ann.list_object_versions(**BUCKET, **options)
    ann.meta.events.unregister("before-parse.s3.ListObjectVersions", keep)
    found = {one["VersionId"] + one["Key"]: (one, False) for one in page.get("Versions", [])}
    found |= {one["VersionId"] + one["Key"]: (one, True) for one in page.get("DeleteMarkers", [])}
    (document,) = documents
    ids = re.findall("<VersionId>(.*?)</VersionId>", document.decode())
    keys = [unquote_plus(key) for key in re.findall("<Key>(.*?)</Key>", document.decode())]
    order = [found[version + key] for key, version in zip(keys, ids, strict=True)]
    return [(one["Key"], one["VersionId"], one["IsLatest"], is_marker) for one, is_marker in order]


def failed(call: Any, **arguments: Any) -> tuple[str, int, dict[str, str]]:
    """Code, status and headers of a refusal."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    response = caught.value.response
    return (
        response["Error"]["Code"],
        response["ResponseMetadata"]["HTTPStatusCode"],
        response["ResponseMetadata"]["HTTPHeaders"],
    )


def test_the_versioning_of_a_bucket(ann: Any, gateway: Gateway) -> None:
    assert "Status" not in ann.get_bucket_versioning(**BUCKET)
    assert "VersionId" not in ann.put_object(**K, Body=b"")
    assert "VersionId" not in ann.get_object(**K)
    for status in ("Enabled", "Suspended", "Enabled"):
        set_versioning(ann, status)
        assert ann.get_bucket_versioning(**BUCKET)["Status"] == status
    configure = ann.put_bucket_versioning
    refused("MalformedXML", 400, configure, **BUCKET, VersioningConfiguration={"Status": "Off"})
    refused("IllegalVersioningConfigurationException", 400, configure, **BUCKET, VersioningConfiguration={})
    with_mfa = {"Status": "Enabled", "MFADelete": "Enabled"}
    refused("NotImplemented", 501, configure, **BUCKET, VersioningConfiguration=with_mfa)
    configure(**BUCKET, VersioningConfiguration={"Status": "Enabled", "MFADelete": "Disabled"})
    bob = gateway.client("bob")
    refused("AccessDenied", 403, bob.put_bucket_versioning, **BUCKET, VersioningConfiguration={"Status": "Suspended"})
    refused("AccessDenied", 403, bob.get_bucket_versioning, **BUCKET)


def test_versions_of_an_object(ann: Any) -> None:
    ann.put_object(**K, Body=b"before")
    set_versioning(ann, "Enabled")
    first, second = put(ann, b"first", Metadata={"a": "1"}), put(ann, b"second" * 9)
    assert first != second
    assert (body_of(ann), body_of(ann, first), body_of(ann, "null")) == (b"second" * 9, b"first", b"before")
    assert ann.get_object(**K)["VersionId"] == second
    head = ann.head_object(**K, VersionId=first)
    assert (head["VersionId"], head["ContentLength"], head["Metadata"]) == (first, 5, {"a": "1"})
    assert ann.get_object(**K, VersionId=second, Range="bytes=6-8")["Body"].read() == b"sec"
    assert ann.head_object(**K, VersionId="null")["VersionId"] == "null"
    assert listed(ann) == [("k", second, True, False), ("k", first, False, False), ("k", "null", False, False)]
    assert [one["Key"] for one in ann.list_objects_v2(**BUCKET)["Contents"]] == ["k"]
    assert failed(ann.get_object, **K, VersionId="0000000000000001")[:2] == ("NoSuchVersion", 404)
    assert failed(ann.get_object, **K, VersionId="nonsense")[:2] == ("InvalidArgument", 400)
    attributes = ann.get_object_attributes(**K, VersionId=first, ObjectAttributes=["ObjectSize", "ETag"])
    assert (attributes["VersionId"], attributes["ObjectSize"]) == (first, 5)


def test_a_delete_marker(versioned: Any) -> None:
    version = put(versioned)
    gone = versioned.delete_object(**K)
    marker = gone["VersionId"]
    assert (gone["DeleteMarker"], marker not in (version, "null")) == (True, True)
    code, status, headers = failed(versioned.get_object, **K)
    assert (code, status, headers["x-amz-delete-marker"], headers["x-amz-version-id"]) == (
        *("NoSuchKey", 404, "true", marker),
    )
    _, status, headers = failed(versioned.head_object, **K)
    assert (status, headers["x-amz-delete-marker"]) == (404, "true")
    code, status, headers = failed(versioned.get_object, **K, VersionId=marker)
    assert (code, status, headers["x-amz-delete-marker"], headers["allow"]) == (
        "MethodNotAllowed",
        405,
        "true",
        "DELETE",
    )
    assert "last-modified" in headers
    for call in (versioned.get_object_tagging, versioned.get_object_acl, versioned.head_object):
        assert failed(call, **K, VersionId=marker)[1] == 405
    assert body_of(versioned, version) == b"v"
    assert "Contents" not in versioned.list_objects_v2(**BUCKET)
    assert listed(versioned) == [("k", marker, True, True), ("k", version, False, False)]
    again = versioned.delete_object(**K)["VersionId"]
    assert len(listed(versioned)) == 3
    back = versioned.delete_object(**K, VersionId=again)
    assert (back["DeleteMarker"], back["VersionId"]) == (True, again)
    versioned.delete_object(**K, VersionId=marker)
    assert body_of(versioned) == b"v"
    gone = versioned.delete_object(**K, VersionId=version)
    assert (gone.get("DeleteMarker", False), gone["VersionId"]) == (False, version)
    assert listed(versioned) == []
    assert versioned.delete_object(**K, VersionId=version)["VersionId"] == version, "again"
    code, status, headers = failed(versioned.get_object, **K)
    assert (code, status, headers["x-amz-delete-marker"]) == ("NoSuchKey", 404, "false")
    assert versioned.delete_object(Bucket="photos", Key="nothing")["DeleteMarker"], "also of a key that never was"


def test_the_next_older_version_becomes_current(versioned: Any) -> None:
    versions = [put(versioned, b"%d" % number) for number in range(4)]
    versioned.delete_object(**K, VersionId=versions[1])
    versioned.delete_object(**K, VersionId=versions[3])
    assert (body_of(versioned), listed(versioned)) == (
        b"2",
        [("k", versions[2], True, False), ("k", versions[0], False, False)],
    )
    versioned.delete_object(**K, VersionId=versions[2])
    assert body_of(versioned) == b"0"


def test_a_suspended_bucket_has_one_null_version(versioned: Any) -> None:
    version = put(versioned, b"kept")
    set_versioning(versioned, "Suspended")
    assert put(versioned, b"null 1") is None
    assert versioned.head_object(**K)["VersionId"] == "null"
    assert "VersionId" not in versioned.copy_object(**K, CopySource={**K, "VersionId": version})
    upload = {**K, "UploadId": versioned.create_multipart_upload(**K)["UploadId"]}
    etag = versioned.upload_part(**upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    assert "VersionId" not in versioned.complete_multipart_upload(**upload, MultipartUpload=parts)
    assert put(versioned, b"null 2") is None
    assert listed(versioned) == [("k", "null", True, False), ("k", version, False, False)]
    gone = versioned.delete_object(**K)
    assert (gone["DeleteMarker"], gone["VersionId"]) == (True, "null")
    assert listed(versioned) == [("k", "null", True, True), ("k", version, False, False)]
    assert body_of(versioned, version) == b"kept"
    assert put(versioned, b"null 3") is None
    set_versioning(versioned, "Enabled")
    newer = put(versioned, b"newer")
    assert [one[1] for one in listed(versioned)] == [newer, "null", version]
    versioned.delete_object(**K, VersionId="null")
    assert [one[1] for one in listed(versioned)] == [newer, version]
    assert failed(versioned.get_object, **K, VersionId="null")[:2] == ("NoSuchVersion", 404)


def test_tags_and_acls_of_versions(versioned: Any) -> None:
    first, second = put(versioned), put(versioned)
    tags = {"TagSet": [{"Key": "a", "Value": "1"}]}
    assert versioned.put_object_tagging(**K, VersionId=first, Tagging=tags)["VersionId"] == first
    assert versioned.get_object_tagging(**K, VersionId=first)["TagSet"] == tags["TagSet"]
    assert versioned.get_object_tagging(**K)["TagSet"] == []
    versioned.put_object_acl(**K, VersionId=first, ACL="public-read")
    assert len(versioned.get_object_acl(**K, VersionId=first)["Grants"]) == 2
    assert len(versioned.get_object_acl(**K, VersionId=second)["Grants"]) == 1
    assert versioned.delete_object_tagging(**K, VersionId=first)["VersionId"] == first
    assert versioned.get_object_tagging(**K, VersionId=first)["TagSet"] == []
    assert [one[1] for one in listed(versioned)] == [second, first]


def test_copies_of_versions(versioned: Any) -> None:
    first, second = put(versioned, b"first"), put(versioned, b"second")
    source = {"Bucket": "photos", "Key": "k", "VersionId": first}
    made = versioned.copy_object(Bucket="photos", Key="copy", CopySource=source)
    assert made["CopySourceVersionId"] == first
    assert body_of(versioned, made["VersionId"], "copy") == b"first"
    back = versioned.copy_object(**K, CopySource=source)
    assert back["VersionId"] not in (first, second)
    assert body_of(versioned) == b"first"
    upload = versioned.create_multipart_upload(**K)["UploadId"]
    part = versioned.upload_part_copy(
        **K, UploadId=upload, PartNumber=1, CopySource={"Bucket": "photos", "Key": "k", "VersionId": second}
    )
    assert part["CopySourceVersionId"] == second
    marker = versioned.delete_object(**K)["VersionId"]
    copy = versioned.copy_object
    source["VersionId"] = marker
    refused("InvalidRequest", 400, copy, Bucket="photos", Key="copy", CopySource=source)
    refused("NoSuchKey", 404, copy, Bucket="photos", Key="copy", CopySource="photos/k")


def test_conditions_in_a_versioned_bucket(versioned: Any) -> None:
    version = put(versioned, b"one", IfNoneMatch="*")
    refused("PreconditionFailed", 412, versioned.put_object, **K, Body=b"two", IfNoneMatch="*")
    etag = versioned.head_object(**K)["ETag"]
    put(versioned, b"two", IfMatch=etag)
    refused("PreconditionFailed", 412, versioned.put_object, **K, Body=b"three", IfMatch=etag)
    versioned.delete_object(**K)
    refused("NoSuchKey", 404, versioned.put_object, **K, Body=b"three", IfMatch=etag)
    put(versioned, b"three", IfNoneMatch="*")
    refused("PreconditionFailed", 412, versioned.delete_object, **K, IfMatch=etag)
    wrong = '"' + "0" * 32 + '"'
    refused("PreconditionFailed", 412, versioned.delete_object, **K, VersionId=version, IfMatch=wrong)
    versioned.delete_object(**K, VersionId=version, IfMatch=etag)
    assert len(listed(versioned)) == 3


@pytest.mark.parametrize("status", ["", "Enabled"])
def test_deletes_ask_for_time_and_size(ann: Any, status: str) -> None:
    if status:
        set_versioning(ann, status)
    ann.put_object(**K, Body=b"12345")
    modified = ann.head_object(**K)["LastModified"]
    other = modified + datetime.timedelta(seconds=7)
    delete = ann.delete_object
    refused("PreconditionFailed", 412, delete, **K, IfMatchSize=4)
    refused("PreconditionFailed", 412, delete, **K, IfMatchLastModifiedTime=other)
    refused("PreconditionFailed", 412, delete, **K, IfMatchSize=5, IfMatchLastModifiedTime=other)
    entry: dict[str, Any] = {"Key": "k", "Size": 4}
    answer = ann.delete_objects(**BUCKET, Delete={"Objects": [entry, {"Key": "k", "LastModifiedTime": other}]})
    assert [one["Code"] for one in answer["Errors"]] == ["PreconditionFailed"] * 2
    entry = {"Key": "k", "Size": 5, "LastModifiedTime": modified, "ETag": ann.head_object(**K)["ETag"]}
    answer = ann.delete_objects(**BUCKET, Delete={"Objects": [entry]})
    assert ([one["Key"] for one in answer["Deleted"]], "Errors" in answer) == (["k"], False)
    refused("NoSuchKey", 404, delete, **K, IfMatchSize=5)
    ann.put_object(**K, Body=b"12345")
    modified = ann.head_object(**K)["LastModified"]
    delete(**K, IfMatchSize=5, IfMatchLastModifiedTime=modified)
    assert "Contents" not in ann.list_objects_v2(**BUCKET)


def test_delete_objects_with_versions(versioned: Any) -> None:
    first, second = put(versioned), put(versioned)
    other = put(versioned, key="other")
    objects = [
        {"Key": "k", "VersionId": first},
        {"Key": "other"},
        {"Key": "never"},
        {"Key": "k", "VersionId": "0000000000000001"},
        {"Key": "k", "VersionId": "bad"},
    ]
    answer = versioned.delete_objects(**BUCKET, Delete={"Objects": objects})
    done = {(one["Key"], one.get("VersionId")): one for one in answer["Deleted"]}
    assert set(done) == {("k", first), ("other", None), ("never", None), ("k", "0000000000000001")}
    assert "DeleteMarker" not in done["k", first]
    marker = done["other", None]["DeleteMarkerVersionId"]
    assert done["other", None]["DeleteMarker"] is True
    assert [one["Code"] for one in answer["Errors"]] == ["InvalidArgument"]
    gone = versioned.delete_objects(**BUCKET, Delete={"Objects": [{"Key": "other", "VersionId": marker}]})
    (entry,) = gone["Deleted"]
    assert (entry["DeleteMarker"], entry["DeleteMarkerVersionId"], entry["VersionId"]) == (True, marker, marker)
    assert body_of(versioned, other, "other") == body_of(versioned, None, "other") == b"v"
    quiet = versioned.delete_objects(**BUCKET, Delete={"Objects": [{"Key": "k", "VersionId": second}], "Quiet": True})
    assert "Deleted" not in quiet
    assert failed(versioned.get_object, **K)[0] == "NoSuchKey"


def test_listings_of_versions(versioned: Any) -> None:
    names = ["a", "d/1", "d/2", "e f", "é"]
    for name in names:
        for _ in range(3):
            put(versioned, key=name)
    versioned.delete_object(Bucket="photos", Key="e f")
    everything = versioned.list_object_versions(**BUCKET)
    assert (len(everything["Versions"]), len(everything["DeleteMarkers"])) == (15, 1)
    assert [one["Key"] for one in everything["Versions"]] == [name for name in names for _ in range(3)]
    assert [one["IsLatest"] for one in everything["Versions"]] == [True, False, False] * 3 + [False] * 3 + [
        *[True, False, False]
    ]
    for limit in (1, 2, 3, 7):
        pages = versioned.get_paginator("list_object_versions").paginate(**BUCKET, PaginationConfig={"PageSize": limit})
        found, markers = [], []
        for page in pages:
            assert len(page.get("Versions", [])) + len(page.get("DeleteMarkers", [])) <= limit
            found += page.get("Versions", [])
            markers += page.get("DeleteMarkers", [])
        assert (found, markers) == (everything["Versions"], everything["DeleteMarkers"])
    folded = versioned.list_object_versions(**BUCKET, Delimiter="/")
    assert [one["Prefix"] for one in folded["CommonPrefixes"]] == ["d/"]
    assert len(folded["Versions"]) == 9
    first = versioned.list_object_versions(**BUCKET, Delimiter="/", MaxKeys=4)
    assert (first["NextKeyMarker"], first.get("NextVersionIdMarker"), first["IsTruncated"]) == ("d/", None, True)
    rest = versioned.list_object_versions(**BUCKET, Delimiter="/", KeyMarker="d/")
    assert {one["Key"] for one in rest["Versions"]} == {"e f", "é"}
    encoded = versioned.list_object_versions(**BUCKET, Prefix="e ", EncodingType="url")
    assert encoded["Versions"][0]["Key"] == "e%20f"
    refused("InvalidArgument", 400, versioned.list_object_versions, **BUCKET, VersionIdMarker="null")
    assert versioned.list_object_versions(**BUCKET, MaxKeys=0)["IsTruncated"] is False


def test_null_versions_in_markers(ann: Any) -> None:
    ann.put_object(**K, Body=b"")
    set_versioning(ann, "Enabled")
    version = put(ann)
    assert [one[1] for one in listed(ann, KeyMarker="k", VersionIdMarker=version)] == ["null"]
    assert listed(ann, KeyMarker="k", VersionIdMarker="null") == []
    assert listed(ann, KeyMarker="k") == []


def test_uploads_in_parts_make_versions(versioned: Any, system: System) -> None:
    versions = []
    for letter in (b"x", b"y"):
        upload = versioned.create_multipart_upload(**K)["UploadId"]
        parts = []
        for number, body in enumerate((PART, letter), 1):
            etag = versioned.upload_part(**K, UploadId=upload, PartNumber=number, Body=body)["ETag"]
            parts.append({"PartNumber": number, "ETag": etag})
        made = versioned.complete_multipart_upload(**K, UploadId=upload, MultipartUpload={"Parts": parts})
        versions.append(made["VersionId"])
    assert body_of(versioned, versions[0]) == PART + b"x"
    assert body_of(versioned) == PART + b"y"
    assert versioned.head_object(**K, VersionId=versions[0], PartNumber=2)["ContentLength"] == 1
    versioned.delete_object(**K)
    assert body_of(versioned, versions[1]) == PART + b"y"
    assert problems(system.metadata, system.blocks, system.landing, system.medium) == []
    versioned.delete_object(**K, VersionId=versions[0])
    assert failed(versioned.get_object, **K, VersionId=versions[0])[0] == "NoSuchVersion"


def test_large_versions(versioned: Any) -> None:
    first, second = put(versioned, PART + b"1"), put(versioned, PART + b"2")
    assert (body_of(versioned, first), body_of(versioned)) == (PART + b"1", PART + b"2")
    versioned.delete_object(**K, VersionId=second)
    assert body_of(versioned) == PART + b"1"


def test_a_bucket_with_versions_is_not_deleted(versioned: Any) -> None:
    version = put(versioned)
    marker = versioned.delete_object(**K)["VersionId"]
    refused("BucketNotEmpty", 409, versioned.delete_bucket, **BUCKET)
    versioned.delete_object(**K, VersionId=version)
    refused("BucketNotEmpty", 409, versioned.delete_bucket, **BUCKET)
    versioned.delete_object(**K, VersionId=marker)
    versioned.delete_bucket(**BUCKET)
    versioned.create_bucket(**BUCKET)
    assert "Status" not in versioned.get_bucket_versioning(**BUCKET)


def test_other_programs_keep_versions_with_ids(versioned: Any, system: System) -> None:
    version = put(versioned, b"kept")
    store, key = system.client.store(), ObjectKey("photos", "k")
    store.put(key, BytesIO(b"of Python"))
    assert (body_of(versioned), body_of(versioned, "null"), body_of(versioned, version)) == (
        *(b"of Python", b"of Python", b"kept"),
    )
    store.delete(key)
    assert listed(versioned) == [("k", "null", True, True), ("k", version, False, False)]
    assert store.list_objects("photos", "", "", 9) == []


def test_forms_make_versions_of_their_own(versioned: Any, gateway: Gateway) -> None:
    import http.client
    from urllib.parse import urlsplit

    form = versioned.generate_presigned_post("photos", "k")
    boundary = "x" * 20
    fields = [*form["fields"].items(), ("file", "of a form")]
    body = "".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields)
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    connection.request("POST", "/photos", f"{body}--{boundary}--\r\n".encode(), headers)
    answer = connection.getresponse()
    answer.read()
    version = answer.getheader("x-amz-version-id")
    connection.close()
    assert answer.status == 204
    assert body_of(versioned, version) == b"of a form"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_bucket_is_emptied_page_by_page(versioned: Any, size: int) -> None:
    """What becomes current because newer ones were deleted is on the next page."""
    for _ in range(4):
        put(versioned)
    versioned.delete_object(**K)
    set_versioning(versioned, "Suspended")
    versioned.put_object(**K, Body=b"null")
    put(versioned, key="l")
    pages = versioned.get_paginator("list_object_versions").paginate(**BUCKET, PaginationConfig={"PageSize": size})
    for page in pages:
        for one in page.get("Versions", []) + page.get("DeleteMarkers", []):
            versioned.delete_object(Bucket="photos", Key=one["Key"], VersionId=one["VersionId"])
    assert listed(versioned) == []
    versioned.delete_bucket(**BUCKET)


def test_a_marker_behind_the_prefix_shows_nothing(versioned: Any) -> None:
    put(versioned, key="b/x")
    newest = put(versioned, key="b/x")
    assert listed(versioned, Prefix="a/", KeyMarker="b/x", VersionIdMarker=newest) == []


def test_an_acl_lets_nobody_remove_versions(gateway: Gateway, versioned: Any) -> None:
    nobody = gateway.client(None)
    versioned.put_bucket_acl(**BUCKET, ACL="public-read-write")
    version = put(versioned)
    refused("AccessDenied", 403, nobody.delete_object, **K, VersionId=version)
    answer = nobody.delete_objects(**BUCKET, Delete={"Objects": [{"Key": "k", "VersionId": version}]})
    assert [one["Code"] for one in answer["Errors"]] == ["AccessDenied"]
    refused("AccessDenied", 403, nobody.get_bucket_versioning, **BUCKET)
    assert nobody.delete_object(**K)["DeleteMarker"]
    assert body_of(versioned, version) == b"v"
