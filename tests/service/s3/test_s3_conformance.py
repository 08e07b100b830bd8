"""Small print of the S3 API reference: what requests are refused with, and what must not be passed over in silence."""

from __future__ import annotations

import base64
import http.client
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from nos_ec.composition.wiring import System
from nos_ec.s3 import checksums
from nos_ec.s3.checksums import Algorithm
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, refused, serving

pytestmark = pytest.mark.every_time

NAMED = {"Bucket": "photos", "Key": "k"}


def with_headers(client: Any, operation: str, **headers: str) -> None:
    """Send these headers with the operation."""

    def add(request: Any, **_: Any) -> None:
        for name, value in headers.items():
            request.headers[name.replace("_", "-")] = value

    client.meta.events.register(f"before-sign.s3.{operation}", add)


def error_of(body: bytes) -> dict[str, str]:
    return {child.tag: child.text or "" for child in ElementTree.fromstring(body)}


def opened(ann: Any) -> dict[str, str]:
    """An upload into NAMED."""
    return {**NAMED, "UploadId": ann.create_multipart_upload(**NAMED)["UploadId"]}


# --- objects --------------------------------------------------------------------------------------
def ask_attributes(gateway: Gateway, *values: str) -> tuple[int, bytes]:
    """GetObjectAttributes with a header for each value, signed as SDKs do that send it so. botocore sends one."""
    made = gateway.accounts.create_key(MASTERS, "ann")
    headers = {"x-amz-object-attributes": ",".join(values), "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    request = AWSRequest("GET", f"{gateway.url}/photos/k?attributes", headers=headers)
    S3SigV4Auth(Credentials(made.key.access_key, made.secret), "s3", "eu-north-1").add_auth(request)
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("GET", "/photos/k?attributes")
    for name, value in request.headers.items():
        for one in values if name == "x-amz-object-attributes" else [value]:
            connection.putheader(name, one)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_attributes_in_several_headers(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"abc")
    status, body = ask_attributes(gateway, "ETag", "ObjectSize")
    assert (status, b"<ObjectSize>3</ObjectSize>" in body, b"<ETag>" in body, b"<Storage" in body) == (
        200,
        True,
        True,
        False,
    )
    status, body = ask_attributes(gateway, "ETag", "Colour")
    assert (status, error_of(body)["Code"]) == (400, "InvalidArgument")
    status, body = ask_attributes(gateway, "")
    assert (status, error_of(body)["Code"]) == (400, "InvalidRequest")


def test_the_owner_that_is_expected_of_a_source(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"abc")
    copy = {"Bucket": "photos", "Key": "copy", "CopySource": "photos/k"}
    refused("AccessDenied", 403, ann.copy_object, **copy, ExpectedSourceBucketOwner="bob")
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="copy")
    ann.copy_object(**copy, ExpectedSourceBucketOwner="ann")
    part = {**opened(ann), "PartNumber": 1, "CopySource": "photos/k"}
    refused("AccessDenied", 403, ann.upload_part_copy, **part, ExpectedSourceBucketOwner="bob")
    ann.upload_part_copy(**part, ExpectedSourceBucketOwner="ann")


@pytest.mark.parametrize("number", [-3, 0, 10_001])
def test_part_numbers_are_looked_at_first(ann: Any, number: int) -> None:
    """They are checked before the object and the upload, which do not exist."""
    of_upload = {**NAMED, "UploadId": "0" * 32, "PartNumber": number}
    refused("InvalidArgument", 400, ann.get_object, **NAMED, PartNumber=number)
    refused("400", 400, ann.head_object, **NAMED, PartNumber=number)
    refused("InvalidArgument", 400, ann.upload_part, **of_upload, Body=b"x")
    refused("InvalidArgument", 400, ann.upload_part_copy, **of_upload, CopySource="photos/k")
    parts = {"Parts": [{"PartNumber": number, "ETag": "0" * 32}]}
    refused("InvalidArgument", 400, ann.complete_multipart_upload, **opened(ann), MultipartUpload=parts)


def test_a_copy_source_belongs_to_copies(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"abc")
    with_headers(ann, "*", x_amz_copy_source="photos/k")
    refused("InvalidArgument", 400, ann.put_object_tagging, **NAMED, Tagging={"TagSet": []})
    refused("InvalidArgument", 400, ann.create_multipart_upload, **NAMED)
    refused("InvalidArgument", 400, ann.delete_object, **NAMED)
    copied = gateway.client("ann").copy_object(Bucket="photos", Key="copy", CopySource="photos/k")
    assert copied["CopyObjectResult"]["ETag"]


def test_an_unknown_algorithm_is_told_before_the_source_is_looked_for(ann: Any) -> None:
    copy = {"Bucket": "photos", "Key": "copy", "CopySource": "photos/none"}
    refused("InvalidRequest", 400, ann.copy_object, **copy, ChecksumAlgorithm="CRC16")
    refused("NoSuchKey", 404, ann.copy_object, **copy, ChecksumAlgorithm="CRC32")


def test_methods_that_are_not_allowed_name_what_they_were_for(gateway: Gateway) -> None:
    for target, kind in (("/", "SERVICE"), ("/photos", "BUCKET"), ("/photos/k", "OBJECT"), ("/photos?acl", "BUCKET")):
        status, body, _ = gateway.raw("PATCH", target)
        error = error_of(body)
        assert (status, error["Code"], error["Method"], error["ResourceType"]) == (
            405,
            "MethodNotAllowed",
            "PATCH",
            kind,
        )


def test_times_are_the_same_wherever_they_are_told(ann: Any) -> None:
    """Otherwise `aws s3 sync --exact-timestamps` downloads everything again."""
    ann.put_object(**NAMED, Body=b"abc")
    told = ann.head_object(**NAMED)["LastModified"]
    for listed in (ann.list_objects, ann.list_objects_v2):
        assert listed(Bucket="photos")["Contents"][0]["LastModified"] == told
    assert ann.list_object_versions(Bucket="photos")["Versions"][0]["LastModified"] == told
    copied = ann.copy_object(Bucket="photos", Key="copy", CopySource="photos/k")["CopyObjectResult"]["LastModified"]
    assert ann.head_object(Bucket="photos", Key="copy")["LastModified"] == copied
    part = ann.upload_part_copy(**opened(ann), PartNumber=1, CopySource="photos/k")["CopyPartResult"]["LastModified"]
    assert part.microsecond == 0


@pytest.mark.parametrize("storage_class", ["STANDARD", "STANDARD_IA"])
def test_a_copy_onto_itself_may_set_any_storage_class(ann: Any, storage_class: str) -> None:
    ann.put_object(**NAMED, Body=b"abc", StorageClass="STANDARD_IA", Metadata={"a": "b"})
    refused("InvalidRequest", 400, ann.copy_object, **NAMED, CopySource="photos/k")
    ann.copy_object(**NAMED, CopySource="photos/k", StorageClass=storage_class)
    head = ann.head_object(**NAMED)
    assert (head.get("StorageClass", "STANDARD"), head["Metadata"]) == (storage_class, {"a": "b"})


def test_a_stray_percent_sign_is_refused(gateway: Gateway, ann: Any) -> None:
    for bad in ("k=%zz", "k=%", "k=a%2", "%=v"):
        refused("InvalidArgument", 400, ann.put_object, **NAMED, Body=b"x", Tagging=bad)
    ann.put_object(**NAMED, Body=b"x", Tagging="k=%25zz")
    assert ann.get_object_tagging(**NAMED)["TagSet"] == [{"Key": "k", "Value": "%zz"}]
    for target in ("/photos/%zz", "/photos/k%", "/photos?prefix=%zz", "/%zz"):
        status, body, _ = gateway.raw("GET", target)
        assert (status, error_of(body)["Code"]) == (400, "InvalidURI"), target
    copy = gateway.client("ann")
    with_headers(copy, "PutObject", x_amz_copy_source="photos/%zz")
    refused("InvalidArgument", 400, copy.put_object, Bucket="photos", Key="copy")


# --- uploads --------------------------------------------------------------------------------------
def test_a_condition_of_an_abort_is_not_passed_over(gateway: Gateway, ann: Any) -> None:
    upload = opened(ann)
    strict = gateway.client("ann")
    with_headers(strict, "AbortMultipartUpload", x_amz_if_match_initiated_time="Mon, 07 Jul 2014 00:00:00 GMT")
    refused("NotImplemented", 501, strict.abort_multipart_upload, **upload)
    assert len(ann.list_multipart_uploads(Bucket="photos")["Uploads"]) == 1
    ann.abort_multipart_upload(**upload)


def test_a_checksum_of_an_object_that_is_none(ann: Any) -> None:
    made = ann.create_multipart_upload(**NAMED, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    upload = {**NAMED, "UploadId": made["UploadId"]}
    part = ann.upload_part(**upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="CRC32")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    complete = {**upload, "MultipartUpload": parts}
    for bad in ("abc", "AAAAAA==-", "AAAAAA==-x"):
        refused("InvalidRequest", 400, ann.complete_multipart_upload, **complete, ChecksumCRC32=bad)
    two = {"ChecksumCRC32": part["ChecksumCRC32"], "ChecksumCRC32C": "AAAAAA=="}
    refused("InvalidRequest", 400, ann.complete_multipart_upload, **complete, **two)
    refused("BadDigest", 400, ann.complete_multipart_upload, **complete, ChecksumCRC32="AAAAAA==")
    assert ann.complete_multipart_upload(**complete, ChecksumCRC32=part["ChecksumCRC32"])["ETag"]


def test_a_marker_that_is_no_upload(ann: Any) -> None:
    opened(ann)
    listing = {"Bucket": "photos", "KeyMarker": "a"}
    refused("InvalidArgument", 400, ann.list_multipart_uploads, **listing, UploadIdMarker="none")
    assert len(ann.list_multipart_uploads(**listing)["Uploads"]) == 1
    assert len(ann.list_multipart_uploads(Bucket="photos", UploadIdMarker="none")["Uploads"]) == 1, "it has no key"


# --- buckets --------------------------------------------------------------------------------------
def test_an_acl_comes_in_one_way(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"abc")
    document = {"Owner": {"ID": "ann"}, "Grants": []}
    for put, named in ((ann.put_bucket_acl, {"Bucket": "photos"}), (ann.put_object_acl, NAMED)):
        refused("MissingSecurityHeader", 400, put, **named)
        refused("UnexpectedContent", 400, put, **named, ACL="public-read", AccessControlPolicy=document)
        refused("UnexpectedContent", 400, put, **named, GrantRead="id=bob", AccessControlPolicy=document)
        put(**named, ACL="private")
        put(**named, AccessControlPolicy=document)
    assert gateway.raw("GET", "/photos/k")[0] == 403


def test_an_owner_creates_a_bucket_again(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"abc")
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    for acl in ({}, {"ACL": "private"}):
        ann.create_bucket(Bucket="photos", **acl)
    ann.create_bucket(Bucket="music", GrantRead="id=bob", ObjectOwnership="ObjectWriter")
    ann.create_bucket(Bucket="music", GrantRead="id=bob")
    for bucket, other in (
        ("photos", {"ACL": "public-read"}),
        ("photos", {"GrantRead": "id=bob"}),
        ("photos", {"ObjectOwnership": "ObjectWriter"}),
        ("music", {}),
        ("music", {"GrantRead": "id=bob", "ObjectOwnership": "BucketOwnerPreferred"}),
    ):
        refused("BucketAlreadyExists", 409, ann.create_bucket, Bucket=bucket, **other)
    refused("BucketAlreadyExists", 409, gateway.client("bob").create_bucket, Bucket="photos")
    refused("BucketAlreadyExists", 409, gateway.client("root").create_bucket, Bucket="photos")
    assert ann.get_object(**NAMED)["Body"].read() == b"abc"
    assert ann.get_bucket_versioning(Bucket="photos")["Status"] == "Enabled"
    assert gateway.raw("GET", "/photos")[0] == 403


def test_tags_of_a_new_bucket(gateway: Gateway, ann: Any) -> None:
    tags = [{"Key": "team", "Value": "a b"}, {"Key": "cost", "Value": ""}]
    created = {"Bucket": "music", "CreateBucketConfiguration": {"Tags": tags}}
    for _ in range(2):
        ann.create_bucket(**created)
    assert ann.get_bucket_tagging(Bucket="music")["TagSet"] == tags
    ann.create_bucket(Bucket="music")
    assert ann.get_bucket_tagging(Bucket="music")["TagSet"] == tags
    for bucket, other in (("photos", tags), ("music", tags[:1])):
        refused("BucketAlreadyExists", 409, ann.create_bucket, Bucket=bucket, CreateBucketConfiguration={"Tags": other})
    for wrong in (tags[:1] * 2, [{"Key": f"k{n}", "Value": "v"} for n in range(51)]):
        refused("InvalidTag", 400, ann.create_bucket, Bucket="new", CreateBucketConfiguration={"Tags": wrong})
    refused("404", 404, ann.head_bucket, Bucket="new")


def test_an_owner_creates_a_bucket_again_elsewhere(system: System) -> None:
    with serving(system, SETTINGS.model_copy(update={"region": "eu-north-1"})) as gateway:
        ann = gateway.client("ann")
        location = {"CreateBucketConfiguration": {"LocationConstraint": "eu-north-1"}}
        ann.create_bucket(Bucket="photos", **location)
        refused("BucketAlreadyOwnedByYou", 409, ann.create_bucket, Bucket="photos", **location)
        refused("BucketAlreadyExists", 409, gateway.client("bob").create_bucket, Bucket="photos", **location)


@pytest.mark.parametrize("allowed", ["READ", "WRITE"])
def test_who_may_list_a_bucket_may_ask_whether_it_is_there(gateway: Gateway, ann: Any, allowed: str) -> None:
    ann.put_bucket_acl(Bucket="photos", **{f"Grant{allowed.title()}": "id=bob"})
    bob = gateway.client("bob")
    if allowed == "READ":
        bob.head_bucket(Bucket="photos")
    else:
        refused("403", 403, bob.head_bucket, Bucket="photos")


def test_ownership_of_a_new_bucket(ann: Any) -> None:
    refused("InvalidArgument", 400, ann.create_bucket, Bucket="music", ObjectOwnership="Mine")
    open_to_all = {"Bucket": "music", "ACL": "public-read"}
    enforced = {"ObjectOwnership": "BucketOwnerEnforced"}
    refused("InvalidBucketAclWithObjectOwnership", 400, ann.create_bucket, **open_to_all, **enforced)
    ann.create_bucket(Bucket="music", ACL="private", **enforced)
    ann.create_bucket(Bucket="films", ACL="public-read", ObjectOwnership="BucketOwnerPreferred")
    for bucket, ownership in (("music", "BucketOwnerEnforced"), ("films", "BucketOwnerPreferred")):
        (rule,) = ann.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]["Rules"]
        assert rule == {"ObjectOwnership": ownership}


def test_buckets_are_listed_with_their_region(gateway: Gateway, ann: Any) -> None:
    assert [(row["Name"], row["BucketRegion"]) for row in ann.list_buckets()["Buckets"]] == [
        ("photos", SETTINGS.region)
    ]
    for limit in (0, 10_001):
        lax = gateway.client("ann", parameter_validation=False)
        refused("InvalidArgument", 400, lax.list_buckets, MaxBuckets=limit)


def test_buckets_of_another_region_are_not_listed(ann: Any) -> None:
    assert [row["Name"] for row in ann.list_buckets(BucketRegion=SETTINGS.region)["Buckets"]] == ["photos"]
    assert ann.list_buckets(BucketRegion="eu-north-1")["Buckets"] == []


def test_a_new_bucket_is_in_the_region_of_the_store(system: System, gateway: Gateway) -> None:
    ann = gateway.client("ann")
    create = {"Bucket": "music", "CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}}
    refused("InvalidLocationConstraint", 400, ann.create_bucket, **create)
    refused("404", 404, ann.head_bucket, Bucket="music")
    ann.create_bucket(Bucket="music", CreateBucketConfiguration={"LocationConstraint": SETTINGS.region})
    with serving(system, SETTINGS.model_copy(update={"region": "eu-west-1"})) as other:
        bob = other.client("bob")
        for number, location in enumerate(("eu-west-1", "EU")):
            bob.create_bucket(Bucket=f"films{number}", CreateBucketConfiguration={"LocationConstraint": location})
        bob.create_bucket(Bucket="films3")


def test_the_region_of_a_bucket_is_told_to_whoever_asks(gateway: Gateway, ann: Any) -> None:
    """SDKs look it up like this, without an access key, and the answer may be a refusal."""
    status, _, headers = gateway.raw("HEAD", "/photos")
    assert (status, headers["x-amz-bucket-region"]) == (403, SETTINGS.region)
    denial = refused("403", 403, gateway.client("bob").head_bucket, Bucket="photos")
    forged = refused("403", 403, gateway.client_of("nobody", "x" * 40).head_bucket, Bucket="photos")
    other = refused("403", 403, ann.head_bucket, Bucket="photos", ExpectedBucketOwner="bob")
    for error in (denial, forged, other):
        assert error.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-bucket-region"] == SETTINGS.region
    assert ann.head_bucket(Bucket="photos")["BucketRegion"] == SETTINGS.region
    status, _, headers = gateway.raw("HEAD", "/nothing")
    assert (status, "x-amz-bucket-region" in headers) == (404, False)


@pytest.mark.parametrize("acl", ["public-read", "public-read-write", "authenticated-read"])
def test_the_owner_of_a_canned_acl_comes_first(ann: Any, acl: str) -> None:
    ann.put_object(**NAMED, Body=b"abc", ACL=acl)
    ann.put_bucket_acl(Bucket="photos", ACL=acl)
    for grants in (ann.get_object_acl(**NAMED)["Grants"], ann.get_bucket_acl(Bucket="photos")["Grants"]):
        assert (grants[0]["Grantee"].get("ID"), grants[0]["Permission"]) == ("ann", "FULL_CONTROL")
        assert {grant["Grantee"]["Type"] for grant in grants[1:]} == {"Group"}


def test_names_in_cross_origin_requests(gateway: Gateway, ann: Any) -> None:
    rule = {"AllowedOrigins": ["http://a.example"], "AllowedMethods": ["GET"], "AllowedHeaders": ["x-*"]}
    ann.put_bucket_cors(Bucket="photos", CORSConfiguration={"CORSRules": [rule]})
    asked = {"Origin": "http://a.example", "Access_Control_Request_Method": "GET"}
    assert gateway.raw("OPTIONS", "/photos/k", None, **asked, Access_Control_Request_Headers="x-one, X-Two")[0] == 200
    for more in ({"Access_Control_Request_Method": "FETCH"}, {"Access_Control_Request_Headers": "x-one, x(two)"}):
        status, body, _ = gateway.raw("OPTIONS", "/photos/k", None, **asked | more)
        assert (status, error_of(body)["Code"]) == (400, "BadRequest")
    for name in ("AllowedHeaders", "ExposeHeaders"):
        bad = {"CORSRules": [rule | {name: ["not a name"]}]}
        refused("InvalidRequest", 400, ann.put_bucket_cors, Bucket="photos", CORSConfiguration=bad)


def test_conditions_on_the_target_of_a_copy(ann: Any) -> None:
    etag = ann.put_object(**NAMED, Body=b"x")["ETag"]
    copy = {"Bucket": "photos", "Key": "c", "CopySource": "photos/k"}
    refused("NoSuchKey", 404, ann.copy_object, **copy, IfMatch=etag)
    ann.copy_object(**copy, IfNoneMatch="*")
    refused("PreconditionFailed", 412, ann.copy_object, **copy, IfNoneMatch="*")
    refused("PreconditionFailed", 412, ann.copy_object, **copy, IfMatch='"0123"')
    ann.copy_object(**copy, IfMatch=etag)
    refused("PreconditionFailed", 412, ann.copy_object, **copy, IfMatch=etag, CopySourceIfNoneMatch=etag)


@pytest.mark.parametrize("algorithm", ["MD5", "SHA512", "XXHASH64", "XXHASH3", "XXHASH128"])
def test_checksums_that_not_every_client_knows(gateway: Gateway, algorithm: str) -> None:
    """The test compares the checksum of an object, and that of an upload, which is computed from the checksums of its
    parts."""
    header, body = f"x-amz-checksum-{algorithm.lower()}", b"part"

    def sending(operation: str, **headers: str) -> Any:
        client = gateway.client("ann", request_checksum_calculation="when_required")
        with_headers(client, operation, **headers)
        return client

    def checksum(data: bytes) -> str:
        digest = checksums.new_digest(Algorithm(algorithm))
        digest.update(data)
        return checksums.in_base64(digest.digest())

    def stored() -> str | None:
        found = gateway.client("ann").head_object(**NAMED, ChecksumMode="ENABLED")
        text: str | None = found["ResponseMetadata"]["HTTPHeaders"].get(header)
        return text

    gateway.client("ann").create_bucket(Bucket="photos")
    refused("BadDigest", 400, sending("PutObject", **{header: checksum(b"")}).put_object, **NAMED, Body=body)
    sending("PutObject", **{header: checksum(body)}).put_object(**NAMED, Body=body)
    assert stored() == checksum(body)
    creating = sending("CreateMultipartUpload", x_amz_checksum_algorithm=algorithm)
    upload = {**NAMED, "UploadId": creating.create_multipart_upload(**NAMED)["UploadId"]}
    uploading = sending("UploadPart", **{header: checksum(body)})
    etag = uploading.upload_part(**upload, PartNumber=1, Body=body)["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    creating.complete_multipart_upload(**upload, MultipartUpload=parts)
    whole = checksum(base64.b64decode(checksum(body)))
    assert stored() == whole + "-1"
    shown = gateway.client("ann").get_object_attributes(**NAMED, ObjectAttributes=["Checksum", "ObjectParts"])
    assert shown["Checksum"] == {f"Checksum{algorithm}": whole, "ChecksumType": "COMPOSITE"}
    assert [part[f"Checksum{algorithm}"] for part in shown["ObjectParts"]["Parts"]] == [checksum(body)]
