"""The S3 gateway on an embedded store, with a real client over HTTP: botocore."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.exceptions import ClientError

from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.server import http_server
from nos_ec.gateway.server.http_protocol import GatewayProtocol
from nos_ec.gateway.server.http_server import GatewayServer, make_service, open_gateway_listener
from nos_ec.gateway.server.workers import Workers
from nos_ec.ports.metadata import KeyState, Rights
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, health_of, refused

LARGE = 5 * STRIPE
"""More than a stripe group of the test's geometry, so that the object gets blocks of its own."""


# --- buckets --------------------------------------------------------------------------------------
def test_life_of_a_bucket(gateway: Gateway) -> None:
    ann, bob, root = gateway.client("ann"), gateway.client("bob"), gateway.client("root")
    assert ann.list_buckets()["Buckets"] == []
    for name in ("photos", "music"):
        ann.create_bucket(Bucket=name)
    refused("BucketAlreadyExists", 409, bob.create_bucket, Bucket="photos")
    refused("InvalidBucketName", 400, ann.create_bucket, Bucket="Photos")
    listed = ann.list_buckets()
    assert [bucket["Name"] for bucket in listed["Buckets"]] == ["music", "photos"]
    assert listed["Owner"]["ID"] == "ann"
    assert bob.list_buckets()["Buckets"] == []
    first = ann.list_buckets(MaxBuckets=1)
    assert [bucket["Name"] for bucket in first["Buckets"]] == ["music"]
    rest = ann.list_buckets(MaxBuckets=1, ContinuationToken=first["ContinuationToken"])
    assert [bucket["Name"] for bucket in rest["Buckets"]] == ["photos"]
    assert "ContinuationToken" not in rest
    assert [bucket["Name"] for bucket in ann.list_buckets(Prefix="ph")["Buckets"]] == ["photos"]
    ann.head_bucket(Bucket="photos")
    root.head_bucket(Bucket="photos")
    refused("403", 403, bob.head_bucket, Bucket="photos")
    refused("404", 404, ann.head_bucket, Bucket="nothing")
    assert ann.get_bucket_location(Bucket="photos")["LocationConstraint"] is None
    assert "Status" not in ann.get_bucket_versioning(Bucket="photos")
    ann.put_object(Bucket="photos", Key="k", Body=b"x")
    refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="photos")
    refused("AccessDenied", 403, bob.delete_bucket, Bucket="music")
    ann.delete_bucket(Bucket="music")
    refused("NoSuchBucket", 404, ann.delete_bucket, Bucket="music")
    refused("NoSuchBucket", 404, ann.put_object, Bucket="music", Key="k", Body=b"x")
    refused("InvalidBucketName", 400, ann.list_objects_v2, Bucket=".nos_ec")


def test_a_gateway_that_remembers_buckets_sees_at_once_that_one_is_deleted(
    gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ACCESS_CACHE_MS", 60_000)
    service, listener = make_service(gateway.system, MASTERS, SETTINGS), open_gateway_listener(SETTINGS)
    with GatewayServer(service, SETTINGS, lambda: "1", listener, health_of(gateway.system)) as server:
        other = Gateway(gateway.system, server.url).client("ann")
        refused("404", 404, other.head_bucket, Bucket="music")
        ann.create_bucket(Bucket="music")
        other.head_bucket(Bucket="music")
        ann.delete_bucket(Bucket="music")
        refused("404", 404, other.head_bucket, Bucket="music")
        refused("NoSuchBucket", 404, other.put_object, Bucket="music", Key="k", Body=b"x")


def test_acl_and_tags_of_a_bucket(gateway: Gateway, ann: Any) -> None:
    refused("NoSuchTagSet", 404, ann.get_bucket_tagging, Bucket="photos")
    tags = [{"Key": "a", "Value": "<b>"}, {"Key": "c", "Value": ""}]
    ann.put_bucket_tagging(Bucket="photos", Tagging={"TagSet": tags})
    assert ann.get_bucket_tagging(Bucket="photos")["TagSet"] == tags
    ann.delete_bucket_tagging(Bucket="photos")
    refused("NoSuchTagSet", 404, ann.get_bucket_tagging, Bucket="photos")
    nobody = gateway.client(None)
    refused("AccessDenied", 403, nobody.list_objects_v2, Bucket="photos")
    for acl, may_list, may_write in (("public-read", True, False), ("public-read-write", True, True)):
        ann.put_bucket_acl(Bucket="photos", ACL=acl)
        assert nobody.list_objects_v2(Bucket="photos")["KeyCount"] == 0
        if may_write:
            nobody.put_object(Bucket="photos", Key="k", Body=b"x")
            nobody.delete_object(Bucket="photos", Key="k")
        else:
            refused("AccessDenied", 403, nobody.put_object, Bucket="photos", Key="k", Body=b"x")
        shown = ann.get_bucket_acl(Bucket="photos")
        assert shown["Grants"][0]["Permission"] == "FULL_CONTROL"
        ann.put_bucket_acl(Bucket="photos", AccessControlPolicy={"Owner": shown["Owner"], "Grants": shown["Grants"]})
        assert ann.get_bucket_acl(Bucket="photos")["Grants"] == shown["Grants"]
        assert may_list
    ann.put_bucket_acl(Bucket="photos", ACL="authenticated-read")
    gateway.client("bob").list_objects_v2(Bucket="photos")
    refused("AccessDenied", 403, nobody.list_objects_v2, Bucket="photos")
    refused("InvalidArgument", 400, ann.put_bucket_acl, Bucket="photos", ACL="nonsense")


# --- objects --------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 1, CHUNK, LARGE])
def test_an_object_comes_back_as_it_was_put(bench: Bench, gateway: Gateway, ann: Any, size: int) -> None:
    data = bench.data(size)
    put = ann.put_object(
        Bucket="photos",
        Key="ä/b c+d%2F?#&=",
        Body=data,
        ContentType="text/plain",
        CacheControl="no-cache",
        ContentDisposition="attachment",
        ContentLanguage="de",
        ContentEncoding="gzip",
        Metadata={"colour": "blue", "x": "1"},
        Tagging="a=1&b=%20",
    )
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    assert put["ETag"] == f'"{md5}"'
    got = ann.get_object(Bucket="photos", Key="ä/b c+d%2F?#&=", ChecksumMode="ENABLED")
    assert got["Body"].read() == data
    head = ann.head_object(Bucket="photos", Key="ä/b c+d%2F?#&=", ChecksumMode="ENABLED")
    for found in (got, head):
        assert (found["ETag"], found["ContentLength"], found["ContentType"]) == (f'"{md5}"', size, "text/plain")
        assert (found["CacheControl"], found["ContentDisposition"]) == ("no-cache", "attachment")
        assert (found["ContentLanguage"], found["ContentEncoding"]) == ("de", "gzip")
        assert found["Metadata"] == {"colour": "blue", "x": "1"}
        assert found["ChecksumCRC32"] == put["ChecksumCRC32"]
        assert found["ChecksumType"] == "FULL_OBJECT"
    assert got["TagCount"] == 2
    bench.settle(gateway.system)
    assert ann.get_object(Bucket="photos", Key="ä/b c+d%2F?#&=")["Body"].read() == data
    attributes = ann.get_object_attributes(
        Bucket="photos", Key="ä/b c+d%2F?#&=", ObjectAttributes=["ETag", "Checksum", "ObjectSize", "StorageClass"]
    )
    assert (attributes["ETag"], attributes["ObjectSize"], attributes["StorageClass"]) == (md5, size, "STANDARD")
    assert attributes["Checksum"]["ChecksumCRC32"] == put["ChecksumCRC32"]
    ann.delete_object(Bucket="photos", Key="ä/b c+d%2F?#&=")
    ann.delete_object(Bucket="photos", Key="ä/b c+d%2F?#&=")
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="ä/b c+d%2F?#&=")
    refused("404", 404, ann.head_object, Bucket="photos", Key="ä/b c+d%2F?#&=")


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_checksums(bench: Bench, gateway: Gateway, ann: Any, algorithm: str, size: int) -> None:
    data = bench.data(size)
    put = ann.put_object(Bucket="photos", Key="k", Body=data, ChecksumAlgorithm=algorithm)
    got = ann.get_object(Bucket="photos", Key="k", ChecksumMode="ENABLED")
    assert got["Body"].read() == data
    assert got[f"Checksum{algorithm}"] == put[f"Checksum{algorithm}"]


@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_a_body_that_is_not_as_it_says_is_not_stored(bench: Bench, gateway: Gateway, ann: Any, size: int) -> None:
    data = bench.data(size)
    ann.put_object(Bucket="photos", Key="k", Body=b"before")
    wrong = {"Bucket": "photos", "Key": "k", "Body": data}
    refused("BadDigest", 400, ann.put_object, **wrong, ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")
    refused("BadDigest", 400, ann.put_object, **wrong, ChecksumSHA256="47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
    refused("InvalidDigest", 400, ann.put_object, **wrong, ContentMD5="nonsense")
    refused("InvalidRequest", 400, ann.put_object, **wrong, ChecksumCRC32="nonsense")
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"before"


def test_ranges(bench: Bench, gateway: Gateway, ann: Any) -> None:
    for size in (CHUNK, LARGE):
        data = bench.data(size)
        ann.put_object(Bucket="photos", Key="k", Body=data)
        for asked, first, last in (
            ("bytes=0-0", 0, 0),
            ("bytes=5-", 5, size - 1),
            ("bytes=-7", size - 7, size - 1),
            (f"bytes=3-{size * 2}", 3, size - 1),
            (f"bytes=-{size * 2}", 0, size - 1),
        ):
            got = ann.get_object(Bucket="photos", Key="k", Range=asked)
            assert got["Body"].read() == data[first : last + 1]
            assert got["ContentRange"] == f"bytes {first}-{last}/{size}"
            assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        for ignored in ("bytes=5-3", "bytes=a-b", "bytes=0-1,3-4", "lines=1-2"):
            assert ann.get_object(Bucket="photos", Key="k", Range=ignored)["Body"].read() == data
        for impossible in (f"bytes={size}-", "bytes=-0"):
            refused("InvalidRange", 416, ann.get_object, Bucket="photos", Key="k", Range=impossible)


def test_conditions(gateway: Gateway, ann: Any) -> None:
    named = {"Bucket": "photos", "Key": "k"}
    refused("NoSuchKey", 404, ann.put_object, **named, Body=b"1", IfMatch='"00000000000000000000000000000000"')
    first = ann.put_object(**named, Body=b"1", IfNoneMatch="*")["ETag"]
    refused("PreconditionFailed", 412, ann.put_object, **named, Body=b"2", IfNoneMatch="*")
    second = ann.put_object(**named, Body=b"2", IfMatch=first)["ETag"]
    refused("PreconditionFailed", 412, ann.put_object, **named, Body=b"3", IfMatch=first)
    assert ann.get_object(**named, IfMatch=second)["Body"].read() == b"2"
    refused("PreconditionFailed", 412, ann.get_object, **named, IfMatch=first)
    refused("304", 304, ann.get_object, **named, IfNoneMatch=second)
    modified = ann.head_object(**named)["LastModified"]
    refused("304", 304, ann.get_object, **named, IfModifiedSince=modified)
    assert ann.get_object(**named, IfUnmodifiedSince=modified)["Body"].read() == b"2"
    refused("PreconditionFailed", 412, ann.get_object, **named, IfUnmodifiedSince=modified.replace(year=2001))
    refused("PreconditionFailed", 412, ann.delete_object, **named, IfMatch=first)
    ann.delete_object(**named, IfMatch=second)
    refused("NoSuchKey", 404, ann.delete_object, **named, IfMatch=second)


def test_of_many_that_create_an_object_one_succeeds(gateway: Gateway, ann: Any) -> None:
    outcomes: list[int] = []

    def write(number: int) -> None:
        try:
            ann.put_object(Bucket="photos", Key="k", Body=b"%d" % number, IfNoneMatch="*")
            outcomes.append(200)
        except ClientError as error:
            outcomes.append(error.response["ResponseMetadata"]["HTTPStatusCode"])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == [200, *[412] * 15]


def test_copies(bench: Bench, gateway: Gateway, ann: Any) -> None:
    for size in (CHUNK, LARGE):
        data = bench.data(size)
        ann.put_object(
            Bucket="photos", Key="ä b", Body=data, Metadata={"a": "1"}, Tagging="t=1", ContentType="text/plain"
        )
        source = {"Bucket": "photos", "Key": "ä b"}
        etag = ann.copy_object(Bucket="photos", Key="copy", CopySource=source)["CopyObjectResult"]["ETag"]
        got = ann.get_object(Bucket="photos", Key="copy")
        assert (got["Body"].read(), got["ETag"]) == (data, etag)
        assert (got["Metadata"], got["ContentType"], got["TagCount"]) == ({"a": "1"}, "text/plain", 1)
        replaced = {"MetadataDirective": "REPLACE", "Metadata": {"b": "2"}, "TaggingDirective": "REPLACE"}
        ann.copy_object(Bucket="photos", Key="copy", CopySource=source, **replaced)
        got = ann.get_object(Bucket="photos", Key="copy")
        assert (got["Metadata"], got["ContentType"]) == ({"b": "2"}, "binary/octet-stream")
        assert "TagCount" not in got
        refused("InvalidRequest", 400, ann.copy_object, Bucket="photos", Key="ä b", CopySource=source)
        ann.copy_object(Bucket="photos", Key="ä b", CopySource=source, MetadataDirective="REPLACE", Metadata={"c": "3"})
        got = ann.get_object(Bucket="photos", Key="ä b")
        assert (got["Body"].read(), got["Metadata"]) == (data, {"c": "3"})
        refused(
            "PreconditionFailed",
            412,
            ann.copy_object,
            Bucket="photos",
            Key="copy",
            CopySource=source,
            CopySourceIfNoneMatch=got["ETag"],
        )
    refused("NoSuchKey", 404, ann.copy_object, Bucket="photos", Key="k", CopySource="photos/nothing")
    refused("NoSuchBucket", 404, ann.copy_object, Bucket="photos", Key="k", CopySource="nothing/k")
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="bobs")
    refused("AccessDenied", 403, bob.copy_object, Bucket="bobs", Key="k", CopySource=source)


def test_many_are_deleted_at_once(gateway: Gateway, ann: Any) -> None:
    names = [f"k{number:03}" for number in range(120)]
    for name in names:
        ann.put_object(Bucket="photos", Key=name, Body=b"x")
    etag = ann.head_object(Bucket="photos", Key="k001")["ETag"]
    objects: list[dict[str, str]] = [{"Key": name} for name in names[2:]] + [{"Key": "nothing"}]
    objects += [{"Key": "k000", "ETag": '"00000000000000000000000000000000"'}, {"Key": "k001", "ETag": etag}]
    done = ann.delete_objects(Bucket="photos", Delete={"Objects": objects})
    assert {one["Key"] for one in done["Deleted"]} == {*names[1:], "nothing"}
    assert [(one["Key"], one["Code"]) for one in done["Errors"]] == [("k000", "PreconditionFailed")]
    assert [one["Key"] for one in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["k000"]
    quiet = ann.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "k000"}], "Quiet": True})
    assert "Deleted" not in quiet


def test_listings(gateway: Gateway, ann: Any) -> None:
    names = ["a", "a/b", "a/c", "b/", "b/x/y", "c", "é", "é/1", "\U0001f600"]
    for name in names:
        ann.put_object(Bucket="photos", Key=name, Body=name.encode())
    for limit in (1, 2, 1000):
        for version, token in (("list_objects_v2", "ContinuationToken"), ("list_objects", "Marker")):
            pager = ann.get_paginator(version)
            pages = list(pager.paginate(Bucket="photos", PaginationConfig={"PageSize": limit}))
            assert [row["Key"] for page in pages for row in page.get("Contents", [])] == names, token
            pages = list(pager.paginate(Bucket="photos", Delimiter="/", PaginationConfig={"PageSize": limit}))
            assert [row["Key"] for page in pages for row in page.get("Contents", [])] == ["a", "c", "é", "\U0001f600"]
            folders = [row["Prefix"] for page in pages for row in page.get("CommonPrefixes", [])]
            assert folders == ["a/", "b/", "é/"]
        pages = list(
            ann.get_paginator("list_object_versions").paginate(Bucket="photos", PaginationConfig={"PageSize": limit})
        )
        found = [row for page in pages for row in page.get("Versions", [])]
        assert [(row["Key"], row["VersionId"], row["IsLatest"]) for row in found] == [(n, "null", True) for n in names]
    page = ann.list_objects_v2(Bucket="photos", Prefix="a/", StartAfter="a/b", FetchOwner=True)
    assert [(row["Key"], row["Size"], row["Owner"]["ID"]) for row in page["Contents"]] == [("a/c", 3, "ann")]
    assert (page["KeyCount"], page["IsTruncated"], page["StartAfter"]) == (1, False, "a/b")
    assert ann.list_objects_v2(Bucket="photos", MaxKeys=0)["KeyCount"] == 0
    refused("InvalidArgument", 400, ann.list_objects_v2, Bucket="photos", ContinuationToken="?")
    refused("InvalidArgument", 400, ann.list_objects, Bucket="photos", EncodingType="utf")


def test_tags_and_acl_of_an_object(bench: Bench, gateway: Gateway, ann: Any) -> None:
    nobody, bob = gateway.client(None), gateway.client("bob")
    data = bench.data(CHUNK)
    named = {"Bucket": "photos", "Key": "k"}
    ann.put_object(**named, Body=data, Metadata={"a": "1"})
    modified = ann.head_object(**named)["LastModified"]
    assert ann.get_object_tagging(**named)["TagSet"] == []
    for settled in (False, True):
        if settled:
            bench.settle(gateway.system)
        tags = [{"Key": "a", "Value": f"{settled} &"}, {"Key": "b", "Value": ""}]
        ann.put_object_tagging(**named, Tagging={"TagSet": tags[::-1]})
        assert ann.get_object_tagging(**named)["TagSet"] == tags
        ann.delete_object_tagging(**named)
        assert ann.get_object_tagging(**named)["TagSet"] == []
        refused("AccessDenied", 403, nobody.get_object, **named)
        refused("AccessDenied", 403, bob.get_object, **named)
        ann.put_object_acl(**named, ACL="authenticated-read")
        refused("AccessDenied", 403, nobody.get_object, **named)
        assert bob.get_object(**named)["Body"].read() == data
        ann.put_object_acl(**named, ACL="public-read")
        assert nobody.get_object(**named)["Body"].read() == data
        assert len(ann.get_object_acl(**named)["Grants"]) == 2
        refused("AccessDenied", 403, bob.put_object_acl, **named, ACL="private")
        ann.put_object_acl(**named, ACL="private")
    got = ann.get_object(**named)
    assert (got["Body"].read(), got["Metadata"], got["LastModified"]) == (data, {"a": "1"}, modified)


# --- who may do what ------------------------------------------------------------------------------
def test_rights_are_granted_and_taken_away(gateway: Gateway, ann: Any) -> None:
    bob, nobody = gateway.client("bob"), gateway.client(None)
    named = {"Bucket": "photos", "Key": "k"}
    ann.put_object(**named, Body=b"x")
    calls: dict[Rights, Callable[[], Any]] = {
        Rights.READ: lambda: bob.get_object(**named),
        Rights.LIST: lambda: bob.list_objects_v2(Bucket="photos"),
        Rights.WRITE: lambda: bob.put_object(**named, Body=b"x"),
        Rights.OWNER: lambda: bob.get_bucket_acl(Bucket="photos"),
    }
    for given in (Rights.NONE, *calls):
        gateway.accounts.grant("photos", "bob", given)
        for right, call in calls.items():
            if right in given or given is Rights.OWNER:
                call()
            else:
                refused("AccessDenied", 403, call)
    gateway.accounts.grant("photos", "bob", Rights.NONE)
    gateway.accounts.grant("photos", "bob", Rights.WRITE)
    bob.put_object(**named, Body=b"y", ACL="public-read")
    nobody.head_object(**named)
    refused("AccessDenied", 403, bob.put_object_acl, **named, ACL="public-read")
    bob.put_object(**named, Body=b"x")
    bob.put_object_tagging(**named, Tagging={"TagSet": []})
    gateway.accounts.grant("photos", "bob", Rights.NONE)
    refused("AccessDenied", 403, bob.get_object, Bucket="photos", Key="nothing")
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="nothing")
    for call in (nobody.get_object, nobody.delete_object, nobody.head_object):
        with pytest.raises(ClientError):
            call(**named)
    refused("AccessDenied", 403, nobody.list_buckets)
    refused("AccessDenied", 403, nobody.create_bucket, Bucket="mine")
    refused("AccessDenied", 403, nobody.delete_objects, Bucket="photos", Delete={"Objects": [{"Key": "k"}]})
    assert ann.get_object(**named)["Body"].read() == b"x"


def test_only_the_right_secret_of_an_active_key_is_accepted(gateway: Gateway) -> None:
    made = gateway.accounts.create_key(MASTERS, "ann")
    name = made.key.access_key
    good = gateway.client_of(name, made.secret)
    good.list_buckets()
    refused("SignatureDoesNotMatch", 403, gateway.client_of(name, made.secret + "x").list_buckets)
    refused("InvalidAccessKeyId", 403, gateway.client_of("NOBODY", made.secret).list_buckets)
    gateway.accounts.set_key_state(name, KeyState.DISABLED)
    refused("InvalidAccessKeyId", 403, good.list_buckets)
    gateway.accounts.set_key_state(name, KeyState.ACTIVE)
    good.list_buckets()
    rotated = gateway.accounts.rotate_key(MASTERS, name)
    refused("SignatureDoesNotMatch", 403, good.list_buckets)
    gateway.client_of(name, rotated.secret).list_buckets()
    gateway.accounts.remove_key(name)
    refused("InvalidAccessKeyId", 403, gateway.client_of(name, rotated.secret).list_buckets)


def test_presigned_urls(bench: Bench, gateway: Gateway, ann: Any) -> None:
    data = bench.data(CHUNK)
    put = ann.generate_presigned_url("put_object", {"Bucket": "photos", "Key": "k"}, 60)
    target = put.removeprefix(gateway.url)
    assert gateway.raw("PUT", target, data)[0] == 200
    get = ann.generate_presigned_url(
        "get_object", {"Bucket": "photos", "Key": "k", "ResponseContentType": "text/html"}, 60
    ).removeprefix(gateway.url)
    status, body, headers = gateway.raw("GET", get)
    assert (status, body, headers["content-type"]) == (200, data, "text/html")
    other = get.replace("response-content-type", "response-content-length")
    assert gateway.raw("GET", other)[0] == 403
    assert gateway.raw("GET", get.replace("/photos/k", "/photos/l"))[0] == 403
    assert gateway.raw("DELETE", get.replace("response-content-type=text%2Fhtml&", ""))[0] == 403
    status, body, _ = gateway.raw("GET", get.replace("X-Amz-Expires=60", "X-Amz-Expires=600"))
    assert status == 403
    assert b"SignatureDoesNotMatch" in body


def test_virtual_hosts(gateway: Gateway, ann: Any) -> None:
    ann.put_object(Bucket="photos", Key="photos/k", Body=b"x", ACL="public-read")
    status, body, _ = gateway.raw("GET", "/photos/k", Host="photos.s3.example.com")
    assert (status, body) == (200, b"x")
    status, body, _ = gateway.raw("GET", "/photos/photos/k", Host="s3.example.com")
    assert (status, body) == (200, b"x")


# --- attacks --------------------------------------------------------------------------------------
def test_requests_that_are_not_s3(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    for method, target, status, code in (
        ("GET", "/photos?nonsense", 200, b"ListBucketResult"),
        ("PUT", "/photos/k?encryption", 501, b"NotImplemented"),
        ("PUT", "/photos/k?nonsense", 501, b"NotImplemented"),
        ("POST", "/photos/k?select&select-type=2", 501, b"NotImplemented"),
        ("PATCH", "/photos/k", 405, b"MethodNotAllowed"),
        ("GET", "/photos/" + "k" * 1025, 400, b"KeyTooLongError"),
        ("GET", "/photos/%00", 400, b"InvalidArgument"),
        ("GET", "/photos/%ff", 400, b"InvalidURI"),
        ("GET", "/photos/a/../../secret", 400, b"InvalidArgument"),
        ("GET", "/.nos_ec/x", 400, b"InvalidBucketName"),
        ("GET", "//k", 400, b"InvalidBucketName"),
        ("GET", "/photos/?max-keys=-1", 400, b"InvalidArgument"),
        ("GET", "/photos/?max-keys=1&max-keys=2", 400, b"InvalidArgument"),
        ("GET", "/photos/k?versionId=1", 400, b"InvalidArgument"),
    ):
        found, body, headers = gateway.raw(method, target)
        assert (found, code in body) == (status, True), (method, target, found, body)
        assert headers["x-amz-request-id"]
    assert gateway.raw("PUT", "/photos/k", b"1\r\nx\r\n0\r\n\r\n", Transfer_Encoding="chunked")[0] == 411
    bomb = b'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaa">]><Delete><Object><Key>&a;</Key></Object></Delete>'
    assert gateway.raw("POST", "/photos?delete", bomb)[0] == 400
    assert gateway.raw("POST", "/photos?delete", b"<Delete>" + b" " * (3 << 20))[0] == 400
    assert ann.list_objects_v2(Bucket="photos")["KeyCount"] == 0


@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_a_client_that_goes_away_stores_nothing(bench: Bench, gateway: Gateway, ann: Any, size: int) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("PUT", "/photos/k")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    connection.send(bench.data(size - 1))
    connection.close()
    ann.put_object(Bucket="photos", Key="other", Body=b"x")
    assert [row["Key"] for row in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["other"]


def test_a_large_body_that_is_refused_is_answered(bench: Bench, gateway: Gateway, ann: Any) -> None:
    data = bench.data(2 << 20)
    status, body, _ = gateway.raw("PUT", f"/photos/{quote('k')}", data)
    assert (status, b"AccessDenied" in body) == (403, True)
    assert gateway.raw("PUT", "/photos/k", data[: 1 << 19])[0] == 403


def test_uploads_that_stall_hold_up_nobody(gateway: Gateway, ann: Any) -> None:
    ann.put_object(Bucket="photos", Key="k", Body=b"x", ACL="public-read")
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    parts = urlsplit(gateway.url)
    stalled = []
    for number in range(2 * SETTINGS.threads):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        connection.putrequest("PUT", f"/photos/slow{number}")
        connection.putheader("Content-Length", "300000")
        connection.endheaders(b"abc")
        stalled.append(connection)
    for _ in range(3):
        assert gateway.raw("GET", "/photos/k")[:2] == (200, b"x")
    for connection in stalled:
        connection.close()
    assert [row["Key"] for row in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["k"]


def test_what_an_anonymous_request_says_of_its_body_holds(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    body = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n"
    said = {
        "x_amz_content_sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x_amz_decoded_content_length": "5",
        "x_amz_trailer": "x-amz-checksum-crc32",
    }
    status, answer, _ = gateway.raw("PUT", "/photos/k", body % b"AAAAAA==", **said)
    assert (status, b"BadDigest" in answer) == (400, True)
    status, answer, _ = gateway.raw("PUT", "/photos/k", b"hello", x_amz_content_sha256="0" * 64)
    assert (status, b"XAmzContentSHA256Mismatch" in answer) == (400, True)
    signed = {**said, "x_amz_content_sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}
    assert gateway.raw("PUT", "/photos/k", body % b"AAAAAA==", **signed)[0] == 403
    assert ann.list_objects_v2(Bucket="photos")["KeyCount"] == 0
    assert gateway.raw("PUT", "/photos/k", body % b"NhCmhg==", **said)[0] == 200
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"hello"


def test_an_acl_shows_the_object_and_no_more(gateway: Gateway, ann: Any) -> None:
    nobody = gateway.client(None)
    named = {"Bucket": "photos", "Key": "k"}
    ann.put_object(**named, Body=b"x", ACL="public-read", Tagging="secret=1")
    assert nobody.get_object(**named)["Body"].read() == b"x"
    refused("AccessDenied", 403, nobody.get_object_tagging, **named)
    refused("AccessDenied", 403, nobody.get_object_attributes, **named, ObjectAttributes=["ETag"])
    refused("AccessDenied", 403, nobody.put_object_tagging, **named, Tagging={"TagSet": []})
    refused("AccessDenied", 403, nobody.get_object_acl, **named)
    assert gateway.raw("GET", "/photos/k", Range="bytes=0-" + "9" * 5000)[:2] == (200, b"x")
    refused("403", 403, ann.head_object, **named, ExpectedBucketOwner="bob")
    ann.head_object(**named, ExpectedBucketOwner="ann")


def test_a_reader_that_goes_away_ends_the_reading(
    bench: Bench, gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    given: list[int] = []

    def pieces(*_: Any) -> Iterator[bytes]:
        try:
            for _piece in range(10_000):
                given.append(1)
                yield bytes(1 << 20)
        finally:
            ended.set()

    ann.put_object(Bucket="photos", Key="k", Body=b"x", ACL="public-read")
    row = gateway.system.client.store().head(ObjectKey("photos", "k"))
    large = replace(row, size=10_000 << 20, state=ObjectState.LARGE, landing_id=None)
    monkeypatch.setattr(Store, "head", lambda *_: large)
    monkeypatch.setattr(Store, "open_version", pieces)
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request("GET", "/photos/k")
    connection.getresponse().read(1000)
    connection.close()
    assert ended.wait(WAIT_S_MAX)
    assert len(given) < 1000


def test_a_small_object_takes_one_turn_of_a_thread(gateway: Gateway, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn costs as much as a third of the reading."""
    turns: list[object] = []
    run = Workers.run

    def counting(workers: Workers, *call: Any) -> Any:
        turns.append(call[0])
        return run(workers, *call)

    ann.put_object(Bucket="photos", Key="k", Body=b"hello")
    monkeypatch.setattr(Workers, "run", counting)
    assert ann.get_object(Bucket="photos", Key="k")["Body"].read() == b"hello"
    assert len(turns) == 1


def test_answers_do_not_wait_for_acknowledgements_of_the_client(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body comes in another packet than the headers before it, which a client acknowledges after 40 ms."""
    seen: list[int] = []
    connection_made = GatewayProtocol.connection_made

    def look(protocol: GatewayProtocol, transport: Any) -> None:
        accepted = transport.get_extra_info("socket")
        seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        connection_made(protocol, transport)

    monkeypatch.setattr(GatewayProtocol, "connection_made", look)
    assert gateway.raw("GET", "/")[0] == 403
    assert seen
    assert all(seen)
