"""Presigned URLs: Signature Version 2, headers in the query, and times."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from botocore.config import Config
from botocore.session import Session

from tests.service.conftest import CHUNK, Bench
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused

NAMED = {"Bucket": "photos", "Key": "k"}


@pytest.fixture
def old(gateway: Gateway, ann: Any) -> Any:
    """A client of `ann` that presigns as botocore does in us-east-1: with Signature Version 2."""
    return presigner(gateway)


def presigner(gateway: Gateway, style: str = "path", url: str | None = None) -> Any:
    made = gateway.accounts.create_key(MASTERS, "ann")
    return Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=url or gateway.url,
        aws_access_key_id=made.key.access_key,
        aws_secret_access_key=made.secret,
        config=Config(signature_version="s3", s3={"addressing_style": style}),
    )


def target(gateway: Gateway, client: Any, operation: str, arguments: dict[str, Any], expires: int = 60) -> str:
    url: str = client.generate_presigned_url(operation, arguments, expires)
    return url.removeprefix(gateway.url)


@pytest.mark.parametrize("key", ["k", "ä/b c+d%2F?#&=", "a=b&c"])
def test_version_2_urls(bench: Bench, gateway: Gateway, ann: Any, old: Any, key: str) -> None:
    data = bench.data(CHUNK)
    named = {"Bucket": "photos", "Key": key}
    put = target(gateway, old, "put_object", {**named, "ContentType": "text/plain", "Metadata": {"a": "1 x"}})
    assert "AWSAccessKeyId=" in put
    assert gateway.raw("PUT", put, data, content_type="text/html")[0] == 403
    status, body, _ = gateway.raw("PUT", put, data, content_type="text/plain")
    assert (status, body) == (200, b"")
    head = ann.head_object(**named)
    assert (head["ContentType"], head["Metadata"]) == ("text/plain", {"a": "1 x"})
    get = target(gateway, old, "get_object", {**named, "ResponseContentType": "text/x; a=\u20ac"})
    status, body, headers = gateway.raw("GET", get)
    assert (status, body, headers["content-type"]) == (200, data, "text/x; a=\u20ac".encode().decode("latin-1"))
    assert gateway.raw("HEAD", target(gateway, old, "head_object", named))[0] == 200
    assert gateway.raw("GET", target(gateway, old, "get_object_tagging", named))[0] == 200
    assert gateway.raw("GET", target(gateway, old, "list_objects_v2", {"Bucket": "photos"}))[0] == 200
    assert gateway.raw("DELETE", target(gateway, old, "delete_object", named))[0] == 204
    refused("404", 404, ann.head_object, **named)


def test_version_2_urls_that_are_not_as_signed(gateway: Gateway, ann: Any, old: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    get = target(gateway, old, "get_object", NAMED)
    assert gateway.raw("GET", get)[0] == 200
    for other, code in (
        (get.replace("/photos/k", "/photos/l"), b"SignatureDoesNotMatch"),
        (get + "&acl", b"SignatureDoesNotMatch"),
        (get + "&response-content-type=text%2Fhtml", b"SignatureDoesNotMatch"),
        (get + "&x-amz-acl=public-read", b"SignatureDoesNotMatch"),
        (get.replace("Expires=1", "Expires=2"), b"SignatureDoesNotMatch"),
        (get.replace("AWSAccessKeyId=", "AWSAccessKeyId=X"), b"InvalidAccessKeyId"),
        (get.replace("Expires=", "Expired="), b"AccessDenied"),
        (get.replace("Signature=", "Signatur="), b"AccessDenied"),
        (get + "&Signature=x", b"InvalidArgument"),
        (get + "&x-amz-security-token=x", b"InvalidToken"),
        (target(gateway, old, "get_object", NAMED, -10), b"Request has expired"),
    ):
        status, body, _ = gateway.raw("GET", other)
        assert status in (400, 403), other
        assert code in body, (other, body)
    assert gateway.raw("DELETE", get)[0] == 403
    assert gateway.raw("PUT", get, b"y")[0] == 403
    assert gateway.raw("GET", get, x_amz_acl="public-read")[0] == 403
    assert gateway.raw("GET", get, authorization="AWS4-HMAC-SHA256 x")[0] == 400


ENCODED = ["%61cl", "a%63l=", "%74agging", "%76ersionId=null", "%70artNumber=1", "%72esponse-content-type=text/html"]
"""Parameters that are part of what is signed, with an encoded letter in their names."""


@pytest.mark.parametrize("added", ENCODED)
def test_version_2_urls_cover_parameters_however_they_are_encoded(
    gateway: Gateway, ann: Any, old: Any, added: str
) -> None:
    ann.put_object(**NAMED, Body=b"x")
    for operation, method in (("get_object", "GET"), ("put_object", "PUT"), ("delete_object", "DELETE")):
        status, body, _ = gateway.raw(method, target(gateway, old, operation, NAMED) + "&" + added, b"")
        if method == "GET":
            assert (status, b"SignatureDoesNotMatch" in body) == (403, True)
        assert status in (400, 403, 405, 501), operation
    assert ann.get_object(**NAMED)["Body"].read() == b"x"


@pytest.mark.parametrize(
    ("operation", "method", "added"),
    [("create_bucket", "PUT", "%70olicy"), ("create_bucket", "PUT", "%61cl"), ("head_bucket", "POST", "%64elete")],
)
def test_version_2_urls_of_buckets_cover_them_as_well(
    gateway: Gateway, ann: Any, old: Any, operation: str, method: str, added: str
) -> None:
    url = target(gateway, old, operation, {"Bucket": "photos"})
    status, body, _ = gateway.raw(method, f"{url}&{added}", b"<x/>")
    assert (status, b"SignatureDoesNotMatch" in body) == (403, True)


def test_a_parameter_in_the_value_of_another_one_is_refused(gateway: Gateway, ann: Any, old: Any) -> None:
    """Version 2 signs decoded values, joined by `&`."""
    ann.put_object(**NAMED, Body=b"x")
    version = {"ResponseContentType": "text/plain", "VersionId": "null"}
    url = target(gateway, old, "get_object", {**NAMED, **version})
    assert gateway.raw("GET", url)[0] == 200
    moved = url.replace("&versionId=null", "").replace("text/plain", "text/plain%26versionId%3Dnull")
    moved = moved.replace("text%2Fplain", "text%2Fplain%26versionId%3Dnull")
    assert moved.count("versionId") == 1
    status, body, _ = gateway.raw("GET", moved)
    assert (status, b"InvalidArgument" in body) == (400, True)
    plain = target(gateway, old, "get_object", {**NAMED, "ResponseContentDisposition": 'attachment; filename="a&b+c"'})
    status, _, headers = gateway.raw("GET", plain)
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="a&b+c"')


def test_no_value_of_a_query_becomes_two_headers(gateway: Gateway, ann: Any, old: Any) -> None:
    """Neither in an answer, nor in what is signed."""
    ann.put_object(**NAMED, Body=b"x")
    for client in (ann, old):
        for end in ("\r\n", "\n", "\r", "\0"):
            value = f"a{end}x-evil: 1"
            status, _, headers = gateway.raw(
                "GET", target(gateway, client, "get_object", {**NAMED, "ResponseContentDisposition": value})
            )
            assert (status, "x-evil" in headers) == (200, False)
    for name in ("x-amz-meta-a", "x-amz-tagging", "x-amz-storage-class", "x-amz-website-redirect-location"):
        for end in ("\r\n", "\n", "\r", "\0"):
            status, body, _ = gateway.raw("PUT", hoisted(gateway, {name: f"a{end}x-evil: 1"}), b"y")
            assert (status, b"InvalidArgument" in body) == (400, True), (name, end)
    signed = target(gateway, old, "put_object", {**NAMED, "Metadata": {"a": "1", "b": "2"}})
    moved = signed.replace("&x-amz-meta-b=2", "").replace("x-amz-meta-a=1", "x-amz-meta-a=1%0Ax-amz-meta-b:2")
    assert moved.count("x-amz-meta-b") == signed.count("x-amz-meta-b") == 1
    status, body, _ = gateway.raw("PUT", moved, b"y")
    assert (status, b"InvalidArgument" in body) == (400, True)
    assert ann.get_object(**NAMED)["Body"].read() == b"x"


def test_version_2_urls_of_virtual_hosts(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x")
    client = presigner(gateway, "virtual", "http://s3.example.com")
    url: str = client.generate_presigned_url("get_object", NAMED, 60)
    start = "http://photos.s3.example.com"
    assert url.startswith(start)
    assert gateway.raw("GET", url.removeprefix(start), Host="photos.s3.example.com")[:2] == (200, b"x")
    assert gateway.raw("GET", url.removeprefix(start), Host="other.s3.example.com")[0] == 403


@pytest.mark.parametrize("expires", [0, -7, 609_901])
def test_expiry_out_of_bounds(gateway: Gateway, ann: Any, expires: int) -> None:
    ann.put_object(**NAMED, Body=b"x")
    assert gateway.raw("GET", target(gateway, ann, "get_object", NAMED, 100_000))[0] == 200
    assert gateway.raw("GET", target(gateway, ann, "get_object", NAMED, expires))[0] == 403


def hoisted(gateway: Gateway, added: dict[str, str]) -> str:
    """The target of a presigned PUT with these headers in its query, as the SDK for JavaScript makes it."""
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    made = gateway.accounts.create_key(MASTERS, "ann")
    request = AWSRequest("PUT", f"{gateway.url}/photos/k?{urlencode(added, quote_via=quote)}")
    S3SigV4QueryAuth(Credentials(made.key.access_key, made.secret), "s3", "eu-north-1").add_auth(request)
    return str(request.url).removeprefix(gateway.url)


def test_headers_in_the_query_of_a_presigned_url_hold(gateway: Gateway, ann: Any) -> None:
    sha256 = base64.b64encode(hashlib.sha256(b"hello").digest()).decode()
    url = hoisted(
        gateway,
        {
            "x-amz-acl": "public-read",
            "x-amz-meta-Colour": "blue",
            "x-amz-tagging": "a=1&b=2",
            "x-amz-storage-class": "STANDARD_IA",
            "x-amz-checksum-sha256": sha256,
            "x-amz-sdk-checksum-algorithm": "SHA256",
        },
    )
    status, body, _ = gateway.raw("PUT", url, b"other")
    assert (status, b"BadDigest" in body) == (400, True)
    assert gateway.raw("PUT", url, b"hello", x_amz_acl="private")[0] in (400, 403)
    assert gateway.raw("PUT", url, b"hello")[0] == 200
    head = ann.head_object(**NAMED, ChecksumMode="ENABLED")
    assert (head["Metadata"], head["StorageClass"]) == ({"colour": "blue"}, "STANDARD_IA")
    assert head["ChecksumSHA256"] == sha256
    assert len(ann.get_object_tagging(**NAMED)["TagSet"]) == 2
    assert gateway.raw("GET", "/photos/k")[:2] == (200, b"hello")
    assert gateway.raw("PUT", url.replace("public-read", "private"), b"hello")[0] == 403


def test_a_header_of_a_copy_in_the_query_copies(gateway: Gateway, ann: Any) -> None:
    ann.put_object(Bucket="photos", Key="source", Body=b"x")
    status, body, _ = gateway.raw("PUT", hoisted(gateway, {"x-amz-copy-source": "photos/source"}), b"")
    assert (status, b"CopyObjectResult" in body) == (200, True)
    assert ann.get_object(**NAMED)["Body"].read() == b"x"


def test_a_checksum_of_no_body_in_the_query_is_passed_over(gateway: Gateway, ann: Any) -> None:
    url = hoisted(gateway, {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-sdk-checksum-algorithm": "CRC32"})
    assert gateway.raw("PUT", url, b"hello")[0] == 200
    assert ann.get_object(**NAMED)["Body"].read() == b"hello"
    for name in ("x-amz-meta-a b", "x-amz-meta-\u00fc", "x-amz-meta-a\r\nb"):
        assert gateway.raw("PUT", hoisted(gateway, {name: "v"}), b"x")[0] == 400
    assert gateway.raw("PUT", hoisted(gateway, {"x-amz-server-side-encryption": "AES256"}), b"x")[0] == 501


def test_headers_in_the_query_of_other_requests_are_not_looked_at(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    assert gateway.raw("PUT", "/photos/k?x-amz-meta-a=1", b"x")[0] == 200
    assert ann.head_object(**NAMED)["Metadata"] == {}
