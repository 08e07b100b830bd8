"""Requests as odd clients send them, and names of buckets."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from nos_ec.engine.objects.store import Store
from nos_ec.gateway.server.app import SMALL_BODY_BYTES
from nos_ec.ports.metadata import ObjectRow
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.s3.s3_gateway import SETTINGS, Gateway, refused

NAMED = {"Bucket": "photos", "Key": "k"}


def with_headers(client: Any, operation: str, **added: str) -> None:
    """Change the headers of an operation before it is signed."""

    def change(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update({name.replace("_", "-"): value for name, value in added.items()})

    client.meta.events.register(f"before-call.s3.{operation}", change)


def status_of(call: Any, **arguments: Any) -> tuple[int, str]:
    try:
        return call(**arguments)["ResponseMetadata"]["HTTPStatusCode"], ""
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({"Content_MD5": "YWJyYWNhZGFicmE="}, (400, "InvalidDigest")),
        ({"Content_MD5": "rL0Y20xC+Fzt72VPzMSk2A=="}, (400, "BadDigest")),
        ({"Content_MD5": ""}, (400, "InvalidDigest")),
        ({"Expect": "200"}, (200, "")),
        ({"Expect": ""}, (200, "")),
        ({"Content_Type": ""}, (200, "")),
        ({"Content_Type": "text/plain"}, (200, "")),
        ({"Date": "Mon, 07 Jul 2014 00:00:00 GMT"}, (200, "")),
        ({"x_amz_acl": "public-ready"}, (400, "InvalidArgument")),
        ({"x_amz_storage_class": "COLD"}, (400, "InvalidStorageClass")),
        ({"x_amz_tagging": "a=1&a=2"}, (400, "InvalidArgument")),
    ],
)
def test_headers_of_a_put(ann: Any, headers: dict[str, str], answer: tuple[int, str]) -> None:
    with_headers(ann, "PutObject", **headers)
    assert status_of(ann.put_object, **NAMED, Body=b"bar") == answer


def raw_put(gateway: Gateway, *headers: tuple[str, str], body: bytes = b"") -> tuple[int, bytes]:
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("PUT", "/photos/k")
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_lengths_of_a_put(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    assert raw_put(gateway, ("Content-Length", "-1"))[0] == 400
    assert raw_put(gateway, ("Content-Length", ""))[0] == 400
    status, body = raw_put(gateway)
    assert (status, b"MissingContentLength" in body) == (411, True)
    status, body = raw_put(gateway, ("Content-Length", str(6 << 30)))
    assert (status, b"EntityTooLarge" in body) == (400, True)
    refused("404", 404, ann.head_object, **NAMED)
    assert raw_put(gateway, ("Content-Length", "0"))[0] == 200


@pytest.mark.parametrize("size", [0, 3, CHUNK, 5 * STRIPE, 2 << 20])
def test_a_signed_body_in_chunks_of_http_needs_no_length(bench: Bench, ann: Any, size: int) -> None:
    data = bench.data(size)
    with_headers(ann, "PutObject", Transfer_Encoding="chunked")
    put = ann.put_object(**NAMED, Body=data)
    got = ann.get_object(**NAMED, ChecksumMode="ENABLED")
    assert (got["Body"].read(), got["ContentLength"]) == (data, size)
    assert got["ChecksumCRC32"] == put["ChecksumCRC32"]


def test_a_document_in_chunks_of_http_needs_no_length(ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    with_headers(ann, "DeleteObjects", Transfer_Encoding="chunked")
    assert ann.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "k"}]})["Deleted"] == [{"Key": "k"}]
    long = [{"Key": f"{number:0>1000}"} for number in range(3000)]
    refused("MaxMessageLengthExceeded", 400, ann.delete_objects, Bucket="photos", Delete={"Objects": long})


def test_a_body_of_unknown_length_needs_its_sha_256(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    for text, status in ((None, 411), ("UNSIGNED-PAYLOAD", 411), (b"other", 400), (b"x", 200)):
        said = hashlib.sha256(text).hexdigest() if isinstance(text, bytes) else text
        headers = {"Transfer_Encoding": "chunked"} | ({} if said is None else {"x_amz_content_sha256": said})
        assert gateway.raw("PUT", "/photos/k", b"1\r\nx\r\n0\r\n\r\n", **headers)[0] == status
    assert ann.get_object(**NAMED)["Body"].read() == b"x"


FORM = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
POSTED = b"".join([FORM % (b"key", b"k"), FORM % (b"file", b"posted"), b"--x--\r\n"])
UNSIGNED = [("PUT", "/photos/k", b"x"), ("PUT", "/photos/k", b"x" * 300_000), ("POST", "/photos", POSTED)]


class Asking:
    """An unsigned request whose client sends the body only after 100 Continue."""

    def __init__(self, gateway: Gateway, method: str, target: str, size: int) -> None:
        parts = urlsplit(gateway.url)
        self._connection = connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        connection.putrequest(method, target)
        connection.putheader("Content-Length", str(size))
        connection.putheader("Content-Type", "multipart/form-data; boundary=x")
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        assert connection.sock is not None
        self._answers = connection.sock.makefile("rb")
        self.first = self._status()

    def _status(self) -> int:
        return int(self._answers.readline().split()[1])

    def send(self, body: bytes) -> int:
        """Send the body that the gateway has asked for. Returns the status."""
        assert (self.first, self._answers.readline()) == (100, b"\r\n")
        self._connection.send(body)
        return self._status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._connection.close()


@pytest.mark.parametrize(("method", "target", "body"), UNSIGNED[:2])
def test_a_put_waits_for_100_continue(gateway: Gateway, ann: Any, method: str, target: str, body: bytes) -> None:
    with Asking(gateway, method, target, len(body)) as asking:
        assert asking.first == 403
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    with Asking(gateway, method, target, len(body)) as asking:
        assert asking.send(body) == 200
    assert ann.get_object(**NAMED)["Body"].read() == body


@pytest.mark.parametrize(("method", "target"), [("PUT", "/photos/k"), ("POST", "/photos")])
def test_strangers_that_send_no_body_hold_no_thread(gateway: Gateway, ann: Any, method: str, target: str) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    with ExitStack() as stack:
        for _ in range(3 * SETTINGS.threads):
            assert stack.enter_context(Asking(gateway, method, target, 100)).first == 100
        ann.put_object(**NAMED, Body=bytes(600_000))
    assert ann.head_object(**NAMED)["ContentLength"] == 600_000


@pytest.mark.parametrize(("method", "target", "body"), UNSIGNED)
def test_a_body_does_not_get_into_the_next_bucket_of_the_name(
    gateway: Gateway, ann: Any, method: str, target: str, body: bytes
) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    bob = gateway.client("bob")
    with Asking(gateway, method, target, len(body)) as asking:
        ann.delete_bucket(Bucket="photos")
        bob.create_bucket(Bucket="photos")
        assert asking.send(body) == (404 if len(body) > SMALL_BODY_BYTES else 403)
    assert bob.list_objects_v2(Bucket="photos")["KeyCount"] == 0


@pytest.mark.parametrize("size", [CHUNK, 5 * STRIPE])
def test_a_copy_does_not_get_into_the_next_bucket_of_the_name(
    gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    ann.create_bucket(Bucket="source")
    ann.put_object(Bucket="source", Key="k", Body=bytes(size))
    bob, read = gateway.client("bob"), Store.open_version
    deleted: list[ObjectRow] = []

    def slow(store: Store, row: ObjectRow, *place: int) -> Iterator[bytes]:
        for piece in read(store, row, *place):
            if not deleted:
                ann.delete_bucket(Bucket="photos")
                bob.create_bucket(Bucket="photos")
                deleted.append(row)
            yield piece

    monkeypatch.setattr(Store, "open_version", slow)
    refused("NoSuchBucket", 404, ann.copy_object, **NAMED, CopySource="source/k")
    assert bob.list_objects_v2(Bucket="photos")["KeyCount"] == 0


@pytest.mark.parametrize("value", ["", "AWS4-HMAC-SHA256", "AWS k:s", "Basic YTpi"])
def test_bad_authorization(gateway: Gateway, ann: Any, value: str) -> None:
    status, body, _ = gateway.raw("PUT", "/photos/k", b"x", Authorization=value)
    assert status in ((403,) if not value else (400, 403)), body
    status, _, _ = gateway.raw("PUT", "/new-bucket", None, Authorization=value)
    assert status in (400, 403)


@pytest.mark.parametrize(
    "name",
    ["_photos", "ab", "a", "a" * 64, "a" * 256, "192.168.5.123", "a_b", "photos-", "-photos", "a..b", "a.-b", "a-.b",
     "Photos", "xn--photos", "photos-s3alias", "a.b."],
)  # fmt: skip
def test_bad_names_of_buckets(gateway: Gateway, ann: Any, name: str) -> None:
    def rename(params: dict[str, Any], **_: Any) -> None:
        params["url_path"] = params["url_path"].replace("renamed", name)
        params["url"] = params["url"].replace("renamed", name)
        params["context"]["signing"]["bucket"] = name

    ann.meta.events.register("before-call.s3.CreateBucket", rename)
    refused("InvalidBucketName", 400, ann.create_bucket, Bucket="renamed")


@pytest.mark.parametrize("name", ["abc", "a" * 63, "0photos", "a.b.c", "a-b", "a--b", "1.2.3"])
def test_good_names_of_buckets(ann: Any, name: str) -> None:
    ann.create_bucket(Bucket=name)
    ann.put_object(Bucket=name, Key="k", Body=b"x")
    assert [row["Name"] for row in ann.list_buckets(Prefix=name)["Buckets"]] == [name]


def test_codings_of_the_transfer_are_not_kept(ann: Any) -> None:
    for sent, kept in (
        ("gzip", "gzip"),
        ("aws-chunked", None),
        ("aws-chunked, gzip", "gzip"),
        ("gzip,aws-chunked", "gzip"),
    ):
        ann.put_object(**NAMED, Body=b"x", ContentEncoding=sent)
        assert ann.head_object(**NAMED).get("ContentEncoding") == kept, sent


def test_metadata(ann: Any) -> None:
    for metadata in ({"meta1": "mymeta"}, {"meta1": ""}, {"a-b": "1,2", "x": " inner  space "}):
        ann.put_object(**NAMED, Body=b"bar", Metadata=metadata)
        kept = {name: value.strip() for name, value in metadata.items()}
        assert ann.get_object(**NAMED)["Metadata"] == kept
    ann.put_object(**NAMED, Body=b"bar")
    assert ann.get_object(**NAMED)["Metadata"] == {}
    ann.put_object(**NAMED, Body=b"x", Metadata={"a": "v" * 2047})
    refused("MetadataTooLarge", 400, ann.put_object, **NAMED, Body=b"x", Metadata={"a": "v" * 2048})
    when = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    ann.put_object(**NAMED, Body=b"x", Expires=when)
    assert ann.get_object(**NAMED)["ResponseMetadata"]["HTTPHeaders"]["expires"] == "Wed, 02 Jan 2030 03:04:05 GMT"


def test_tags_have_limits(ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x", Tagging="foo=bar&bar")
    tags = ann.get_object_tagging(**NAMED)["TagSet"]
    assert sorted((tag["Key"], tag["Value"]) for tag in tags) == [("bar", ""), ("foo", "bar")]
    assert ann.head_object(**NAMED)["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"] == "2"

    def put(*pairs: tuple[str, str]) -> None:
        tagging = {"TagSet": [{"Key": key, "Value": value} for key, value in pairs]}
        ann.put_object_tagging(**NAMED, Tagging=tagging)

    put(*[(f"{number}" + "k" * 126, "v" * 256) for number in range(10)])
    put(*[(chr(0x4E00 + number) * 128, "\u4e00" * 256) for number in range(2)])
    for bad in (
        [(str(number), "") for number in range(11)],
        [("k" * 129, "")],
        [("k", "v" * 257)],
        [("aws:k", "v")],
        [("k", "1"), ("k", "2")],
    ):
        refused("InvalidTag", 400, put_of(ann, bad))
    assert len(ann.get_object_tagging(**NAMED)["TagSet"]) == 2
    refused("NoSuchKey", 404, ann.get_object_tagging, Bucket="photos", Key="nothing")


def put_of(ann: Any, pairs: list[tuple[str, str]]) -> Any:
    tagging = {"TagSet": [{"Key": key, "Value": value} for key, value in pairs]}
    return lambda: ann.put_object_tagging(**NAMED, Tagging=tagging)


def test_more_than_a_thousand_deletions_are_refused(ann: Any) -> None:
    objects = [{"Key": f"k{number}"} for number in range(1001)]
    refused("MalformedXML", 400, ann.delete_objects, Bucket="photos", Delete={"Objects": objects})


OLD, NEW = datetime(1970, 1, 2, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def test_conditions_of_copies_on_their_source(ann: Any) -> None:
    """The pairs of "CopyObject" and "UploadPartCopy" of the S3 API reference among them."""
    etag = ann.put_object(**NAMED, Body=b"x")["ETag"]
    upload = ann.create_multipart_upload(Bucket="photos", Key="parts")["UploadId"]
    whole = {"Bucket": "photos", "CopySource": "photos/k", "Key": "copy"}
    part = {"Bucket": "photos", "CopySource": "photos/k", "Key": "parts", "UploadId": upload, "PartNumber": 1}
    hold = (
        {"Match": etag, "UnmodifiedSince": OLD},
        {"NoneMatch": '"other"', "ModifiedSince": OLD},
        {"Match": "*", "NoneMatch": '"other"'},
        {"UnmodifiedSince": NEW},
    )
    fail = (
        {"NoneMatch": etag, "ModifiedSince": OLD},
        {"Match": '"other"', "UnmodifiedSince": NEW},
        {"NoneMatch": "*"},
        {"ModifiedSince": ann.head_object(**NAMED)["LastModified"]},
        {"UnmodifiedSince": OLD},
    )
    for call, to in ((ann.copy_object, whole), (ann.upload_part_copy, part)):
        for conditions in fail:
            sent = {f"CopySourceIf{name}": value for name, value in conditions.items()}
            refused("PreconditionFailed", 412, call, **to, **sent)
        for conditions in hold:
            assert call(**to, **{f"CopySourceIf{name}": value for name, value in conditions.items()})
        refused("NoSuchKey", 404, call, **{**to, "CopySource": "photos/nothing"}, CopySourceIfMatch=etag)


def test_conditions_of_copies_on_their_target(ann: Any) -> None:
    etag = ann.put_object(**NAMED, Body=b"x")["ETag"]
    copy = {"Bucket": "photos", "CopySource": "photos/k", "Key": "copy"}
    refused("NoSuchKey", 404, ann.copy_object, **copy, IfMatch=etag)
    ann.copy_object(**copy, IfNoneMatch="*", CopySourceIfMatch=etag)
    refused("PreconditionFailed", 412, ann.copy_object, **copy, IfNoneMatch="*")
    refused("PreconditionFailed", 412, ann.copy_object, **copy, IfMatch='"other"')
    refused("PreconditionFailed", 412, ann.copy_object, **copy, IfMatch=etag, CopySourceIfMatch='"other"')
    refused("NotImplemented", 501, ann.copy_object, **copy, IfMatch=etag, IfNoneMatch="*")
    ann.copy_object(**copy, IfMatch=etag)
    refused("NoSuchKey", 404, ann.copy_object, **{**copy, "CopySource": "photos/nothing"}, IfNoneMatch="*")


def test_copies_that_are_refused(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x", ContentType="text/x")
    copy = {"Bucket": "photos", "CopySource": "photos/k"}
    refused("InvalidRequest", 400, ann.copy_object, **copy, Key="k")
    ann.copy_object(**copy, Key="k", MetadataDirective="REPLACE", Metadata={"a": "b"})
    refused("PreconditionFailed", 412, ann.copy_object, **copy, Key="l", CopySourceIfMatch="ABCORZ")
    ann.copy_object(**copy, Key="l", CopySourceIfNoneMatch="ABCORZ")
    ann.copy_object(**copy, Key="l", ACL="public-read", Metadata={"abc": "def"}, MetadataDirective="REPLACE")
    assert gateway.client(None).get_object(Bucket="photos", Key="l")["Metadata"] == {"abc": "def"}
    refused("InvalidArgument", 400, ann.copy_object, Bucket="photos", Key="l", CopySource="photos")
    refused("NoSuchKey", 404, ann.copy_object, Bucket="photos", Key="l", CopySource="photos/nothing")
    refused("NoSuchBucket", 404, ann.copy_object, Bucket="photos", Key="l", CopySource="nothing/k")
    refused("InvalidArgument", 400, ann.copy_object, **copy, Key="l", MetadataDirective="SOME")
    ann.put_object(Bucket="photos", Key="empty", Body=b"")
    ann.copy_object(Bucket="photos", Key="empty2", CopySource="photos/empty")
    assert ann.head_object(Bucket="photos", Key="empty2")["ContentLength"] == 0


def test_ranges_of_an_empty_object(ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"")
    refused("InvalidRange", 416, ann.get_object, **NAMED, Range="bytes=40-50")
    assert ann.get_object(**NAMED)["ContentLength"] == 0


@pytest.mark.parametrize(
    ("of_bucket", "of_object", "may"),
    [
        ("private", "private", ""),
        ("private", "public-read", "r"),
        ("private", "public-read-write", "r"),
        ("public-read", "private", "l"),
        ("public-read", "public-read", "rl"),
        ("public-read", "public-read-write", "rl"),
        ("public-read-write", "private", "lw"),
        ("public-read-write", "public-read", "rlw"),
        ("public-read-write", "public-read-write", "rlw"),
    ],
)
def test_canned_acls(gateway: Gateway, ann: Any, of_bucket: str, of_object: str, may: str) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL=of_bucket)
    ann.put_object(**NAMED, Body=b"x")
    ann.put_object_acl(**NAMED, ACL=of_object)
    ann.put_object(Bucket="photos", Key="other", Body=b"y")
    for client in (gateway.client("bob"), gateway.client(None)):
        assert status_of(client.get_object, **NAMED)[0] == (200 if "r" in may else 403)
        assert status_of(client.get_object, Bucket="photos", Key="other")[0] == 403
        for version in ("list_objects", "list_objects_v2"):
            assert status_of(getattr(client, version), Bucket="photos")[0] == (200 if "l" in may else 403)
        assert status_of(client.put_object, Bucket="photos", Key="new", Body=b"z")[0] == (200 if "w" in may else 403)
        assert status_of(client.put_object_acl, **NAMED, ACL="public-read")[0] == 403


@pytest.mark.parametrize("size", [CHUNK, 40 * STRIPE])
def test_a_reader_ends_with_the_object_that_it_began_with(bench: Bench, ann: Any, size: int) -> None:
    first, second = bench.data(size), bench.data(size)
    ann.put_object(**NAMED, Body=first)
    body = ann.get_object(**NAMED)["Body"]
    head = body.read(10)
    ann.put_object(**NAMED, Body=second)
    assert head + body.read() == first
    assert ann.get_object(**NAMED)["Body"].read() == second
