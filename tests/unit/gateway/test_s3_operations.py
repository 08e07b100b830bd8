"""Which bucket, key and operation a request is about: over every operation of botocore's model of S3."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote, urlencode

import pytest
from botocore.serialize import create_serializer
from botocore.session import Session
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.gateway.server.service import Service
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import addressed, check_key, check_new_bucket, copy_source
from nos_ec.s3.operations import SERVED, operation_of, parameters_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing_v2 import string_to_sign


@cache
def model() -> Any:
    return Session().get_service_model("s3")


SAME_ON_THE_WIRE = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
}
"""Old names of operations."""
ELSEWHERE = "WriteGetObjectResponse"
"""Of another endpoint; its path is a bucket to us, and its method that of a form."""


def sent(operation: str, everything: bool = False) -> tuple[Request, str | None, str | None]:
    """The request of an operation, as botocore writes it with what is required, or with every parameter."""
    shape = model().operation_model(operation).input_shape
    parameters: dict[str, Any] = {}
    for name, member in (shape.members if shape else {}).items():
        location = member.serialization.get("location")
        if name in shape.required_members or (everything and location == "querystring"):
            parameters[name] = {"Bucket": "bucket", "Key": "a key/ü", "CopySource": "b/k"}.get(name, value(member))
    if operation == "ListDirectoryBuckets":
        parameters["MaxDirectoryBuckets"] = 1
    written = create_serializer("rest-xml", include_validation=False).serialize_to_request(
        parameters, model().operation_model(operation)
    )
    path, _, query = written["url_path"].partition("?")
    pairs = [(name, text) for name, text in dict(written["query_string"]).items() if text is not None]
    query = "&".join([part for part in (query, urlencode(pairs)) if part])
    headers = [(name.lower().encode(), str(text).encode()) for name, text in dict(written["headers"]).items()]
    request = Request(written["method"], path.encode(), query.encode(), headers)
    return request, *addressed(request.raw_path, None)


def value(member: Any) -> Any:
    if member.type_name in ("integer", "long", "timestamp"):
        return 1
    if member.type_name == "boolean":
        return True
    if member.type_name == "list":
        return [value(member.member)]
    return {} if member.type_name == "structure" else (member.enum[0] if getattr(member, "enum", None) else "v")


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("operation", [name for name in model().operation_names if name != ELSEWHERE])
def test_every_operation_of_the_model_is_itself_or_not_implemented(operation: str, everything: bool) -> None:
    request, bucket, key = sent(operation, everything)
    expected = SAME_ON_THE_WIRE.get(operation, operation)
    if expected in SERVED:
        assert operation_of(request, bucket, key) == expected
        given_names = set(request.query) - {operation[0].lower() + operation[1:]}
        uri: str = model().operation_model(operation).http["requestUri"]
        subresources = {part.partition("=")[0] for part in uri.partition("?")[2].split("&")}
        known = parameters_of(expected) | subresources
        assert given_names <= known
    else:
        assert code_and_message(request, bucket, key) == ("NotImplemented", f"{expected} is not supported.")


UNSIGNED_IN_VERSION_2 = {"ListObjectsV2", "GetObjectAttributes", "RenameObject"}
"""`list-type` changes how a listing looks, and the headers that name the attributes, or the source of a rename, are
signed. Without `renameObject`, a request with such a source is refused."""


@pytest.mark.parametrize("spelling", ["as sent", "encoded"])
@pytest.mark.parametrize("operation", sorted(SERVED - UNSIGNED_IN_VERSION_2))
def test_signature_version_2_covers_what_makes_it_another_operation(operation: str, spelling: str) -> None:
    """A presigned URL cannot be changed into another request."""
    request, bucket, key = sent(operation)
    if spelling == "encoded":
        names = (pair.partition(b"=") for pair in request.raw_query.split(b"&"))
        query = b"&".join(b"".join((b"%%%02X" % name[0] + name[1:], *rest)) for name, *rest in names if name)
        request = replace(request, raw_query=query)
    plain = replace(request, raw_query=b"")
    if request.raw_query and _operation_or_none(plain, bucket, key) != operation:
        assert string_to_sign(request, "1", "/b/k") != string_to_sign(plain, "1", "/b/k")


def _operation_or_none(request: Request, bucket: str | None, key: str | None) -> str | None:
    try:
        return operation_of(request, bucket, key)
    except S3Error:
        return None


def code_and_message(request: Request, bucket: str | None, key: str | None) -> tuple[str, str]:
    with pytest.raises(S3Error) as caught:
        operation_of(request, bucket, key)
    return caught.value.code, caught.value.message


def test_all_that_is_served_is_in_the_model() -> None:
    assert set(model().operation_names) >= SERVED
    assert len(model().operation_names) > 100


def test_the_gateway_runs_all_that_is_served() -> None:
    service = Service(*[MagicMock() for _ in range(18)])
    assert service._operations.keys() == SERVED


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "operation"),
    [
        ("GET", "/", "", {}, "ListBuckets"),
        ("GET", "/b", "", {}, "ListObjects"),
        ("GET", "/b/", "list-type=2&prefix=acl", {}, "ListObjectsV2"),
        ("GET", "/b", "x-id=ListObjects&foo=bar", {}, "ListObjects"),
        ("GET", "/b/acl", "", {}, "GetObject"),
        ("GET", "/b/k", "partNumber=3&versionId=null", {}, "GetObject"),
        ("PUT", "/b/k", "x-id=PutObject&X-Amz-Expires=5&x-mine=1", {}, "PutObject"),
        ("PUT", "/b/k", "x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32", {}, "PutObject"),
        ("PUT", "/b/k", "", {"x-amz-copy-source": "b/k"}, "CopyObject"),
        ("PUT", "/b/k", "renameObject", {"x-amz-rename-source": "a"}, "RenameObject"),
        ("PUT", "/b/k", "partNumber=1&uploadId=u", {"x-amz-copy-source": "b/k"}, "UploadPartCopy"),
        ("DELETE", "/b/k", "versionId=null", {}, "DeleteObject"),
        ("POST", "/b", "delete=", {}, "DeleteObjects"),
        ("OPTIONS", "/b/k", "X-Amz-Signature=x", {}, "OPTIONS"),
        ("OPTIONS", "/b", "acl", {}, "OPTIONS"),
        ("POST", "/b", "", {}, "PostObject"),
        ("POST", "/b/", "", {}, "PostObject"),
    ],
)
def test_operations(method: str, path: str, query: str, headers: dict[str, str], operation: str) -> None:
    request = Request(method, path.encode(), query.encode(), [(n.encode(), v.encode()) for n, v in headers.items()])
    assert operation_of(request, *addressed(request.raw_path, None)) == operation


@pytest.mark.parametrize(
    ("method", "path", "query", "code"),
    [
        ("PUT", "/", "", "MethodNotAllowed"),
        ("POST", "/b/k", "", "MethodNotAllowed"),
        ("PATCH", "/b/k", "", "MethodNotAllowed"),
        ("HEAD", "/b/k", "acl", "MethodNotAllowed"),
        ("DELETE", "/b", "acl", "MethodNotAllowed"),
        ("OPTIONS", "/", "", "MethodNotAllowed"),
        ("PUT", "/b/k", "a-new-subresource", "NotImplemented"),
        ("DELETE", "/b/k", "policy", "NotImplemented"),
        ("PUT", "/b", "replication", "NotImplemented"),
        ("GET", "/b", "acl&tagging", "InvalidArgument"),
        ("GET", "/b", "acl&acl", "InvalidArgument"),
        ("GET", "/b", "prefix=a&prefix=b", "InvalidArgument"),
        ("GET", "/b", "list-type=3", "InvalidArgument"),
        ("PUT", "/b/k", "partNumber=1", "InvalidArgument"),
        ("PUT", "/b/k", "uploadId=1", "InvalidArgument"),
        ("PUT", "/b/k", "versionId=1", "InvalidArgument"),
        ("DELETE", "/b/k", "versionId=", "InvalidArgument"),
        ("GET", "/b/k", "versionId", "InvalidArgument"),
    ],
)
def test_what_is_no_operation(method: str, path: str, query: str, code: str) -> None:
    request = Request(method, path.encode(), query.encode(), [])
    assert code_and_message(request, *addressed(request.raw_path, None))[0] == code


DOMAINS = ["s3.example.com", "example.com", "eu.s3.example.com"]


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("s3.example.com", "/", (None, None)),
        ("s3.example.com", "", (None, None)),
        ("s3.example.com:9000", "/b", ("b", None)),
        ("S3.Example.COM.", "/b/", ("b", None)),
        ("b.s3.example.com", "/", ("b", None)),
        ("b.s3.example.com:9000", "/k/l", ("b", "k/l")),
        ("my.b.s3.example.com", "/k", ("my.b", "k")),
        ("b.eu.s3.example.com", "/k", ("b", "k")),
        ("b.example.com", "/k", ("b", "k")),
        ("eu.s3.example.com", "/b/k", ("b", "k")),
        ("bs3.example.org", "/b/k", ("b", "k")),
        ("10.0.0.1:80", "/b/k", ("b", "k")),
        ("[::1]:80", "/b/k", ("b", "k")),
        (None, "/b/k", ("b", "k")),
        ("s3.example.com", "/b//k", ("b", "/k")),
        ("s3.example.com", "/b/../c/./", ("b", "../c/./")),
        ("s3.example.com", "/b/a%2Fb+c%20d%C3%BC", ("b", "a/b+c dü")),
        ("s3.example.com", "/b/%252F", ("b", "%2F")),
    ],
)
def test_path_style_and_virtual_hosts(host: str | None, path: str, expected: tuple[str | None, str | None]) -> None:
    assert addressed(path.encode(), host, DOMAINS) == expected


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("b/k", "InvalidURI"),
        ("/b/%FF", "InvalidURI"),
        ("//k", "InvalidBucketName"),
        ("/%01/1/2", "InvalidBucketName"),
        ("/../k", "InvalidBucketName"),
        ("/%20/k", "InvalidBucketName"),
        ("/a%2Fb/k", "InvalidBucketName"),
        ("/b/a%00b", "InvalidArgument"),
        ("/b/" + "k" * 1025, "KeyTooLongError"),
        ("/b/" + "%C3%BC" * 513, "KeyTooLongError"),
    ],
)
def test_bad_paths(path: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        addressed(path.encode(), None)
    assert caught.value.code == code


@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200))
def test_every_key_arrives(key: str) -> None:
    for safe in ("", "/~", "/!$&'()*+,:;=@"):
        assert addressed(f"/bucket/{quote(key, safe=safe)}".encode(), None) == ("bucket", key)
        assert addressed(f"/{quote(key, safe=safe)}".encode(), "bucket.s3.example.com", DOMAINS) == ("bucket", key)
        assert copy_source("/bucket/" + quote(key, safe=safe)) == ("bucket", key, None)


def test_the_longest_key() -> None:
    check_key("k" * 1024)
    assert addressed(b"/b/" + b"%C3%BC" * 512, None) == ("b", "ü" * 512)


@pytest.mark.parametrize("name", ["abc", "a-b", "a.b.c", "0" * 63, "my-bucket.2026", "1.2.3", "a--b"])
def test_good_bucket_names(name: str) -> None:
    check_new_bucket(name)


BAD_BUCKETS = ["", "ab", "a" * 64, "Abc", "a_b", "-abc", "abc-", ".abc", "abc.", "a..b", "192.168.5.4", "a b", "abc\n"]


@pytest.mark.parametrize("name", [*BAD_BUCKETS, "äbc", "xn--abc", "sthree-abc", "abc-s3alias", "abc--ol-s3", "a/b"])
def test_bad_bucket_names(name: str) -> None:
    with pytest.raises(S3Error, match="InvalidBucketName"):
        check_new_bucket(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b/k", ("b", "k", None)),
        ("/b/a%20b/c+d", ("b", "a b/c+d", None)),
        ("b/k?versionId=null", ("b", "k", "null")),
        ("b/k?versionId=a%2Fb", ("b", "k", "a/b")),
        ("b/k%3FversionId=x", ("b", "k?versionId=x", None)),
        ("%2Fb%2Fk", ("b", "k", None)),
    ],
)
def test_copy_sources(text: str, expected: tuple[str, str, str | None]) -> None:
    assert copy_source(text) == expected


@pytest.mark.parametrize(("method", "query"), [("PUT", ""), ("PUT", "acl"), ("GET", "")])
def test_the_source_of_a_rename_needs_a_rename(method: str, query: str) -> None:
    request = Request(method, b"/b/k", query.encode(), [(b"x-amz-rename-source", b"a")])
    assert code_and_message(request, "b", "k")[0] == "InvalidArgument"


@pytest.mark.parametrize("text", ["", "b", "b/", "/", "//k", "b/k?x=y", "b/k?versionId=", "b/k?", "b/%FF", "%01/k"])
def test_bad_copy_sources(text: str) -> None:
    with pytest.raises(S3Error, match="InvalidArgument"):
        copy_source(text)


def test_access_points_are_not_there() -> None:
    with pytest.raises(S3Error, match="NotImplemented"):
        copy_source("arn:aws:s3:eu-1:1:accesspoint/a/object/k")
