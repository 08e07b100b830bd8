"""What the gateway answers besides an object's bytes: 304, absent configurations, metadata of any bytes, errors."""

from __future__ import annotations

import http.client
import re
import threading
from email.header import decode_header, make_header
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.core.errors import Conflict, Corrupt, NosError, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.reading import READ_TRIES
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.message.encryption import Encryption
from nos_ec.gateway.operations import object_operations
from nos_ec.gateway.operations.attribute_changes import AttributeChanges
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.s3.s3_gateway import Gateway, refused

LARGE = 5 * STRIPE
_MD5_OF_NOTHING = "1B2M2Y8AsgTpgAmY7PhCfg=="
NAMED = {"Bucket": "photos", "Key": "k"}
WHEN = "when_required"
"""When clients of botocore compute or compare checksums, unlike their default."""


def test_not_modified_says_what_a_cache_needs(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x", ACL="public-read", CacheControl="max-age=5", ContentType="text/plain")
    _, _, found = gateway.raw("GET", "/photos/k")
    for method in ("GET", "HEAD"):
        status, body, headers = gateway.raw(method, "/photos/k", If_None_Match=found["etag"])
        assert (status, body) == (304, b"")
        for name in ("etag", "last-modified", "cache-control"):
            assert headers[name] == found[name]
        assert "content-type" not in headers
    assert gateway.raw("GET", "/photos/k", If_Modified_Since=found["last-modified"])[0] == 304


def test_conditions_of_get_object_attributes(ann: Any) -> None:
    etag = ann.put_object(**NAMED, Body=b"x")["ETag"]
    sent: dict[str, str] = {}

    def add_conditions(request: Any, **_: Any) -> None:
        for name, value in sent.items():
            request.headers[name] = value

    def attributes(conditions: dict[str, str]) -> Any:
        sent.clear()
        sent.update(conditions)
        return ann.get_object_attributes(**NAMED, ObjectAttributes=["ObjectSize"])

    ann.meta.events.register("before-sign.s3.GetObjectAttributes", add_conditions)
    answer = refused("304", 304, attributes, conditions={"If-None-Match": etag}).response
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    assert headers["etag"] == etag
    assert not headers.keys() & {"content-length", "content-type"}
    old, modified = "Thu, 01 Jan 1970 00:00:01 GMT", headers["last-modified"]
    refused("304", 304, attributes, conditions={"If-Modified-Since": modified})
    refused("PreconditionFailed", 412, attributes, conditions={"If-Match": '"other"'})
    refused("PreconditionFailed", 412, attributes, conditions={"If-Unmodified-Since": old})
    refused("304", 304, attributes, conditions={"If-None-Match": etag, "If-Modified-Since": old})
    for hold in (
        {"If-Match": etag, "If-Unmodified-Since": old},
        {"If-None-Match": '"other"', "If-Modified-Since": modified},
    ):
        assert attributes(hold)["ObjectSize"] == 1


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("get_bucket_policy", "NoSuchBucketPolicy"),
        ("get_bucket_policy_status", "NoSuchBucketPolicy"),
        ("get_bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration"),
        ("get_bucket_encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("get_public_access_block", "NoSuchPublicAccessBlockConfiguration"),
        ("get_bucket_ownership_controls", "OwnershipControlsNotFoundError"),
        ("get_object_lock_configuration", "ObjectLockConfigurationNotFoundError"),
        ("get_bucket_website", "NoSuchWebsiteConfiguration"),
        ("get_bucket_replication", "ReplicationConfigurationNotFoundError"),
        ("get_bucket_tagging", "NoSuchTagSet"),
    ],
)
def test_configurations_that_a_bucket_does_not_have(gateway: Gateway, ann: Any, operation: str, code: str) -> None:
    refused(code, 404, getattr(ann, operation), Bucket="photos")
    refused("NoSuchBucket", 404, getattr(ann, operation), Bucket="nothing")
    refused("AccessDenied", 403, getattr(gateway.client("bob"), operation), Bucket="photos")


def test_configurations_that_are_empty(ann: Any) -> None:
    assert "LoggingEnabled" not in ann.get_bucket_logging(Bucket="photos")
    assert "TopicConfigurations" not in ann.get_bucket_notification_configuration(Bucket="photos")
    assert "Status" not in ann.get_bucket_accelerate_configuration(Bucket="photos")
    assert ann.get_bucket_request_payment(Bucket="photos")["Payer"] == "BucketOwner"
    for kind in ("analytics", "intelligent_tiering", "inventory", "metrics"):
        listed = getattr(ann, f"list_bucket_{kind}_configurations")(Bucket="photos")
        assert listed["IsTruncated"] is False
        refused("NoSuchConfiguration", 404, getattr(ann, f"get_bucket_{kind}_configuration"), Bucket="photos", Id="one")
    ann.put_object(**NAMED, Body=b"x")
    refused("InvalidRequest", 400, ann.get_object_retention, **NAMED)
    refused("InvalidRequest", 400, ann.get_object_legal_hold, **NAMED)


def test_what_a_bucket_does_not_have_can_be_deleted_and_not_set(ann: Any) -> None:
    for kind in ("lifecycle", "encryption", "ownership_controls", "replication", "website"):
        getattr(ann, f"delete_bucket_{kind}")(Bucket="photos")
    ann.delete_public_access_block(Bucket="photos")
    replication = {"Role": "r", "Rules": [{"Status": "Enabled", "Destination": {"Bucket": "arn:aws:s3:::other"}}]}
    refused("NotImplemented", 501, ann.put_bucket_replication, Bucket="photos", ReplicationConfiguration=replication)


def test_documents_that_are_missing(gateway: Gateway, ann: Any) -> None:
    """S3 has an own code for them, and other answers where the operation has no schema of XML, or always had them."""
    ann.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    ann.put_object(Bucket="locked", Key="k", Body=b"x")
    upload = ann.create_multipart_upload(**NAMED)["UploadId"]

    def code(method: str, target: str) -> str:
        request = AWSRequest(method, f"{gateway.url}/{target}", data=b"", headers={"Content-MD5": _MD5_OF_NOTHING})
        S3SigV4Auth(ann._request_signer._credentials, "s3", "eu-north-1").add_auth(request)
        answer = gateway.raw(method, f"/{target}", b"", **dict(request.headers.items()))
        assert answer[0] == 400, target
        return re.search(rb"<Code>(.*)</Code>", answer[1])[1].decode()  # type: ignore[index]

    of_buckets = "cors encryption lifecycle logging notification object-lock ownershipControls publicAccessBlock"
    of_buckets += " requestPayment tagging versioning website"
    for name in of_buckets.split():
        assert code("PUT", f"locked?{name}") == "MissingRequestBodyError", name
    assert code("POST", "locked?delete") == "MissingRequestBodyError"
    assert code("PUT", "locked/k?tagging") == "MissingRequestBodyError"
    assert code("PUT", "locked/k?retention") == code("PUT", "locked/k?legal-hold") == "MalformedXML"
    assert code("POST", f"photos/k?uploadId={upload}") == "MalformedXML"
    assert code("PUT", "locked?policy") == "MalformedPolicy"
    assert code("PUT", "locked?acl") == code("PUT", "locked/k?acl") == "MissingSecurityHeader"


def test_a_configuration_may_be_set_to_what_it_is(gateway: Gateway, ann: Any) -> None:
    as_it_is, other = ({"RequestPaymentConfiguration": {"Payer": payer}} for payer in ("BucketOwner", "Requester"))
    ann.put_bucket_request_payment(Bucket="photos", **as_it_is)
    refused("NotImplemented", 501, ann.put_bucket_request_payment, Bucket="photos", **other)
    bob = gateway.client("bob")
    refused("AccessDenied", 403, bob.put_bucket_request_payment, Bucket="photos", **as_it_is)


@pytest.mark.parametrize("value", [b"caf\xe9", "caf\u00e9".encode(), b"\x80\xff", b"plain", b""])
def test_headers_come_back_byte_for_byte(gateway: Gateway, ann: Any, value: bytes) -> None:
    """The exception is metadata in UTF-8, which S3 answers as encoded words of RFC 2047."""
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("PUT", "/photos/k")
    connection.putheader("Content-Length", "1")
    connection.putheader("x-amz-acl", "private")
    connection.putheader("x-amz-meta-a", value)
    connection.putheader("x-amz-meta-b", "\u00fc".encode())
    connection.putheader("content-language", value or b"de")
    connection.putheader("content-encoding", (value or b"br") + b", aws-chunked")
    connection.endheaders(b"x")
    assert connection.getresponse().read() == b""
    connection.close()
    ann.copy_object(Bucket="photos", Key="copy", CopySource="photos/k")
    for key in ("k", "copy"):
        ann.put_object_acl(Bucket="photos", Key=key, ACL="public-read")
        _, body, headers = gateway.raw("GET", f"/photos/{key}")
        assert body == b"x"
        is_encoded = value == "caf\u00e9".encode()
        assert headers["x-amz-meta-a"].encode("latin-1") == (b"=?utf-8?b?Y2Fmw6k=?=" if is_encoded else value)
        assert headers["x-amz-meta-b"] == "=?utf-8?b?w7w=?="
        assert headers["content-language"].encode("latin-1") == (value or b"de")
        assert headers["content-encoding"].encode("latin-1") == (value or b"br")


def test_long_metadata_is_answered_in_ascii(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    text = "日本語 and ASCII, " * 20
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request("PUT", "/photos/k", b"x", {"x-amz-meta-a": text.encode(), "x-amz-acl": "public-read"})
    assert connection.getresponse().status == 200
    connection.close()
    for method in ("GET", "HEAD"):
        answered = gateway.raw(method, "/photos/k")[2]["x-amz-meta-a"]
        assert answered.isascii()
        assert all(len(word) <= 75 for word in answered.split(" "))
        assert str(make_header(decode_header(answered))) == text.strip()


def test_conditions_of_rfc_9110_on_a_put(ann: Any) -> None:
    refused("NoSuchKey", 404, ann.put_object, **NAMED, Body=b"1", IfMatch="*")
    refused("NoSuchKey", 404, ann.put_object, **NAMED, Body=b"1", IfMatch='"badetag"')
    refused("NoSuchKey", 404, ann.delete_object, **NAMED, IfMatch="*")
    first = ann.put_object(**NAMED, Body=b"1", IfNoneMatch='"badetag"')["ETag"]
    refused("PreconditionFailed", 412, ann.put_object, **NAMED, Body=b"2", IfMatch='"badetag"')
    refused("PreconditionFailed", 412, ann.put_object, **NAMED, Body=b"2", IfNoneMatch=first)
    second = ann.put_object(**NAMED, Body=b"2", IfMatch="*")["ETag"]
    ann.put_object(**NAMED, Body=b"3", IfNoneMatch=first)
    refused("PreconditionFailed", 412, ann.delete_object, **NAMED, IfMatch=second)
    assert ann.get_object(**NAMED)["Body"].read() == b"3"
    refused("NotImplemented", 501, ann.put_object, **NAMED, Body=b"4", IfMatch=f"{first}, {second}")
    ann.delete_object(**NAMED, IfMatch="*")
    refused("NoSuchKey", 404, ann.get_object, **NAMED)


def test_conditions_of_a_large_put(bench: Bench, ann: Any) -> None:
    data = bench.data(LARGE)
    refused("NoSuchKey", 404, ann.put_object, **NAMED, Body=data, IfMatch="*")
    etag = ann.put_object(**NAMED, Body=data, IfNoneMatch='"badetag"')["ETag"]
    refused("PreconditionFailed", 412, ann.put_object, **NAMED, Body=data, IfNoneMatch=etag)
    ann.put_object(**NAMED, Body=data, IfMatch="*")


def test_one_failing_deletion_ends_no_other(ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    etags = {name: ann.put_object(Bucket="photos", Key=name, Body=b"x")["ETag"] for name in "abcd"}
    delete = Store.delete

    def failing(self: Store, key: ObjectKey, **options: Any) -> Any:
        if key.name in "ab":
            raise Conflict("changed") if key.name == "a" else Transient("the database is away")
        return delete(self, key, **options)

    monkeypatch.setattr(Store, "delete", failing)
    objects = [{"Key": name, "ETag": etags[name]} for name in "abc"] + [{"Key": "d"}]
    done = ann.delete_objects(Bucket="photos", Delete={"Objects": objects})
    assert {one["Key"] for one in done["Deleted"]} == {"c", "d"}
    assert {one["Key"]: one["Code"] for one in done["Errors"]} == {
        "a": "ConditionalRequestConflict",
        "b": "ServiceUnavailable",
    }
    assert [row["Key"] for row in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["a", "b"]


def test_a_batch_of_deletions_that_fails_is_told_of_each_key(ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    etags = {name: ann.put_object(Bucket="photos", Key=name, Body=b"x")["ETag"] for name in "abc"}

    def failing(*_: Any, **__: Any) -> Any:
        raise Transient("the database is away")

    monkeypatch.setattr(Store, "delete_many", failing)
    objects = [{"Key": "a"}, {"Key": "b"}, {"Key": "c", "ETag": etags["c"]}]
    done = ann.delete_objects(Bucket="photos", Delete={"Objects": objects})
    assert [one["Key"] for one in done["Deleted"]] == ["c"]
    assert [(one["Key"], one["Code"]) for one in done["Errors"]] == [
        ("a", "ServiceUnavailable"),
        ("b", "ServiceUnavailable"),
    ]


@pytest.mark.parametrize("later", ["deleted", "overwritten"])
def test_a_large_put_whose_object_changes_at_once_succeeds(
    bench: Bench, gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """The last writer wins, and the one before it has succeeded all the same."""
    record = SqlMetadata.record_large

    def recorded(self: SqlMetadata, *given: Any) -> bool | NosError:
        answer = record(self, *given)
        if later == "deleted":
            ann.delete_object(**NAMED)
        else:
            ann.put_object(**NAMED, Body=b"later")
        return answer

    monkeypatch.setattr(SqlMetadata, "record_large", recorded)
    data = bench.data(LARGE)
    for checksum in ({}, {"ChecksumAlgorithm": "SHA256"}):
        put = ann.put_object(**NAMED, Body=data, **checksum)
        assert put["ResponseMetadata"]["HTTPStatusCode"] == 200
    monkeypatch.undo()
    if later == "deleted":
        refused("NoSuchKey", 404, ann.get_object, **NAMED)
    else:
        assert ann.get_object(**NAMED)["Body"].read() == b"later"


@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_a_bucket_that_goes_while_a_body_comes_does_not_come_back(
    bench: Bench, gateway: Gateway, ann: Any, size: int
) -> None:
    data = bench.data(max(size, 600_000))
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("PUT", "/photos/k")
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders(data[:-1])
    gateway.raw("GET", "/photos")
    ann.delete_bucket(Bucket="photos")
    connection.send(data[-1:])
    answer = connection.getresponse()
    assert (answer.status, b"NoSuchBucket" in answer.read()) == (404, True)
    connection.close()
    refused("404", 404, ann.head_bucket, Bucket="photos")


def test_changes_of_tags_wait_for_each_other_at_random(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    clock = FakeClock()
    monkeypatch.setattr(clock, "wait", lambda _, wait_ms: waits.append(wait_ms))
    store = gateway.system.client.store()
    monkeypatch.setattr(store, "set_attributes_of", lambda *_: False)
    changes = AttributeChanges(store, clock, iter([0.0, 0.5, *[1.0] * 20]).__next__)
    row = type("Row", (), {"key": ObjectKey("b", "k")})()
    with pytest.raises(Transient):
        changes.replace(lambda: (row, {}), ("a",), {})
    assert waits == [1, 4, 16, 32, 64, 128, 256, 500, 500]
    assert len(waits) == READ_TRIES - 1


def test_many_change_the_tags_of_one_object(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    outcomes: list[object] = []

    def tag(number: int) -> None:
        try:
            ann.put_object_tagging(**NAMED, Tagging={"TagSet": [{"Key": "n", "Value": str(number)}]})
            outcomes.append(number)
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=tag, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes, key=str) == list(range(8))
    assert int(ann.get_object_tagging(**NAMED)["TagSet"][0]["Value"]) in range(8)


@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_a_copy_gets_the_checksum_that_it_asks_for(bench: Bench, ann: Any, size: int) -> None:
    data = bench.data(size)
    put = ann.put_object(**NAMED, Body=data, ChecksumAlgorithm="SHA1")
    wanted = ann.put_object(Bucket="photos", Key="other", Body=data, ChecksumAlgorithm="SHA256")["ChecksumSHA256"]
    copy = {"Bucket": "photos", "Key": "copy", "CopySource": "photos/k"}
    assert ann.copy_object(**copy, ChecksumAlgorithm="SHA256")["CopyObjectResult"]["ChecksumSHA256"] == wanted
    head = ann.head_object(Bucket="photos", Key="copy", ChecksumMode="ENABLED")
    assert (head["ChecksumSHA256"], "ChecksumSHA1" in head) == (wanted, False)
    for asked in ({}, {"ChecksumAlgorithm": "SHA1"}):
        assert ann.copy_object(**copy, **asked)["CopyObjectResult"]["ChecksumSHA1"] == put["ChecksumSHA1"]
    refused("InvalidRequest", 400, ann.copy_object, **copy, ChecksumAlgorithm="CRC")


@pytest.mark.parametrize(("data", "right"), [(b"123456789", "rosUhgp5mIg="), (b"", "AAAAAAAAAAA=")])
def test_a_checksum_that_nobody_sent_is_computed_for_who_asks(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, data: bytes, right: str
) -> None:
    """The check value of CRC-64/NVME in the catalogue of CRCs, 0xAE8B14860A799888."""
    ann = gateway.client("ann", request_checksum_calculation=WHEN, response_checksum_validation=WHEN)
    ann.create_bucket(Bucket="photos")
    ann.put_object(**NAMED, Body=data)
    for read in (ann.get_object, ann.head_object):
        assert [name for name in read(**NAMED) if "Checksum" in name] == []
        found = read(**NAMED, ChecksumMode="ENABLED")
        assert (found["ChecksumCRC64NVME"], found["ChecksumType"]) == (right, "FULL_OBJECT")
        refused("304", 304, read, **NAMED, ChecksumMode="ENABLED", IfNoneMatch=found["ETag"])
    wanted = {"ObjectAttributes": ["Checksum"]}
    assert ann.get_object_attributes(**NAMED, **wanted)["Checksum"] == {
        "ChecksumCRC64NVME": right,
        "ChecksumType": "FULL_OBJECT",
    }
    if data:
        assert "ChecksumCRC64NVME" not in ann.get_object(**NAMED, ChecksumMode="ENABLED", Range="bytes=0-3")
        monkeypatch.setattr(object_operations, "CHECKSUM_BYTES_MAX", len(data) - 1)
        assert "ChecksumCRC64NVME" not in ann.head_object(**NAMED, ChecksumMode="ENABLED")
        assert "Checksum" not in ann.get_object_attributes(**NAMED, **wanted)
        assert ann.get_object(**NAMED, ChecksumMode="ENABLED")["ChecksumCRC64NVME"] == right
    ann.put_object(**NAMED, Body=data, ChecksumAlgorithm="SHA1")
    assert "ChecksumCRC64NVME" not in ann.get_object(**NAMED, ChecksumMode="ENABLED"), "it has one"


def test_a_head_answers_even_if_bytes_for_a_checksum_cannot_be_read(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = gateway.client("ann", request_checksum_calculation=WHEN)
    ann.create_bucket(Bucket="photos")
    ann.put_object(**NAMED, Body=b"data")

    def lost(*_: Any, **__: Any) -> None:
        raise Corrupt("the bytes are lost")

    monkeypatch.setattr(Encryption, "open", lost)
    assert "ChecksumCRC64NVME" not in ann.head_object(**NAMED, ChecksumMode="ENABLED")
    refused("InternalError", 500, ann.get_object, **NAMED, ChecksumMode="ENABLED")


def test_a_large_object_without_a_checksum_gets_none(bench: Bench, gateway: Gateway) -> None:
    ann = gateway.client("ann", request_checksum_calculation=WHEN)
    ann.create_bucket(Bucket="photos")
    ann.put_object(**NAMED, Body=bench.data(LARGE))
    for read in (ann.get_object, ann.head_object):
        assert "ChecksumCRC64NVME" not in read(**NAMED, ChecksumMode="ENABLED")


@pytest.mark.parametrize("later", ["PUT before it is recorded", "PUT", "DELETE"])
@pytest.mark.parametrize("versioning", [None, "Enabled", "Suspended"])
def test_the_answer_to_a_large_put_is_about_no_other_one(
    bench: Bench, gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch, versioning: str | None, later: str
) -> None:
    """This holds whatever others do with the key meanwhile."""
    expires = {"Filter": {"ObjectSizeGreaterThan": LARGE}, "Expiration": {"Days": 1}, "Status": "Enabled"}
    ann.put_bucket_lifecycle_configuration(Bucket="photos", LifecycleConfiguration={"Rules": [expires]})
    if versioning is not None:
        ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": versioning})
    data = bench.data(LARGE + 1)
    etag = ann.put_object(Bucket="photos", Key="source", Body=data)["ETag"]
    system, key, record_large = gateway.system, ObjectKey("photos", "k"), SqlMetadata.record_large
    kept = {"Enabled": Versioning.ENABLED, "Suspended": Versioning.SUSPENDED}.get(versioning or "")

    def meanwhile() -> None:
        monkeypatch.setattr(SqlMetadata, "record_large", record_large)
        if later == "DELETE":
            ann.delete_object(**NAMED)
        else:
            system.client.store().put(key, BytesIO(bytes(LARGE)), versioning=kept)

    def record(metadata: SqlMetadata, *arguments: Any) -> Any:
        if later == "PUT before it is recorded":
            meanwhile()
        outcome = record_large(metadata, *arguments)
        if later != "PUT before it is recorded":
            meanwhile()
        return outcome

    for options in ({"CopySource": "photos/source"}, {"Body": data}):
        monkeypatch.setattr(SqlMetadata, "record_large", record)
        before_ms = system.clock.now_ms()
        answer = ann.copy_object(**NAMED, **options) if "CopySource" in options else ann.put_object(**NAMED, **options)
        monkeypatch.setattr(SqlMetadata, "record_large", record_large)
        result = answer.get("CopyObjectResult", answer)
        assert result["ETag"] == etag
        assert ("VersionId" in answer) is (versioning == "Enabled")
        if versioning == "Enabled":
            assert ann.get_object(**NAMED, VersionId=answer["VersionId"])["Body"].read() == data
        else:
            assert "Expiration" in answer
        if "LastModified" in result:
            assert result["LastModified"].timestamp() * 1000 >= before_ms // 1000 * 1000
