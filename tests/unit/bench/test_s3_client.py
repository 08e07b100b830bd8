"""A real client against the whole package: botocore's requests are answered without a network, from a dict."""

from __future__ import annotations

import hashlib
import io
import time
from calendar import timegm
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session

from nos_ec.s3 import answers, documents
from nos_ec.s3.answers import Listed, Page
from nos_ec.s3.checksums import BodyCheck, expected_of
from nos_ec.s3.chunked import ChunkedBody, decoded_length_of, trailers_announced
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import addressed, check_new_bucket
from nos_ec.s3.operations import operation_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Payload, read_claim, verify

ACCESS_KEY, SECRET = "AKIDEXAMPLE", "secret"
DOMAINS = ["s3.example.com"]


class Raw(io.BytesIO):
    """What botocore reads an answer from."""

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        while piece := self.read(4096):
            yield piece


class Server:
    """Objects in a dict, served by the protocol."""

    def __init__(self, split: int = 1000) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.buckets: set[str] = set()
        self.payloads: list[Payload] = []
        self.damage = False
        self.split = split

    def answer(self, request: Any, **_: Any) -> AWSResponse:
        """A handler of botocore's event `before-send`."""
        url = urlsplit(request.url)
        headers = [(b"host", url.netloc.encode())]
        for name, value in request.headers.items():
            headers.append((name.lower().encode(), value if isinstance(value, bytes) else str(value).encode()))
        body = request.body or b""
        body = body if isinstance(body, bytes) else body.read()
        sent = Request(request.method, url.path.encode(), url.query.encode(), headers)
        more: dict[str, str] = {}
        try:
            status, answer = 200, self.serve(sent, body, more)
        except S3Error as error:
            status, answer = error.status, answers.error_answer(error, url.path, "1", "h")
        return AWSResponse(request.url, status, more, Raw(answer))

    def serve(self, request: Request, body: bytes, more: dict[str, str]) -> bytes:
        now_ms = timegm(time.strptime(request.header("x-amz-date") or "", "%Y%m%dT%H%M%SZ")) * 1000
        bucket, key = addressed(request.raw_path, request.header("host"), DOMAINS)
        operation = operation_of(request, bucket, key)
        claim = read_claim(request, now_ms)
        assert claim
        signed = verify(request, claim, SECRET if claim.access_key == ACCESS_KEY else None)
        self.payloads.append(signed.payload)
        if self.damage:
            body = body.replace(b"hello", b"hellO")
        announced = trailers_announced(request, signed.payload)
        check = BodyCheck(expected_of(request, announced, signed.sha256))
        trailers: dict[str, str] = {}
        pieces: list[bytes | memoryview] = [body]
        if signed.payload.is_chunked:
            chunked = ChunkedBody(signed, decoded_length_of(request), announced)
            parts = [body[at : at + self.split] for at in range(0, len(body), self.split)]
            pieces = [piece for part in parts for piece in chunked.feed(part)]
            trailers = chunked.finish()
        for piece in pieces:
            check.update(piece)
        check.finish(trailers)
        sent = b"".join(pieces)
        more["ETag"] = f'"{hashlib.md5(sent, usedforsecurity=False).hexdigest()}"'
        return self.operate(operation, bucket or "", key or "", sent, request)

    def operate(self, operation: str, bucket: str, key: str, body: bytes, request: Request) -> bytes:
        if operation == "CreateBucket":
            check_new_bucket(bucket)
            documents.create_bucket(body, documents.OBJECT_TAGS_MAX)
            self.buckets.add(bucket)
            return b""
        if bucket not in self.buckets:
            raise S3Error("NoSuchBucket", "There is no such bucket.", BucketName=bucket)
        if operation == "PutObject":
            self.objects[bucket, key] = body
            return b""
        if operation == "GetObject":
            if (bucket, key) not in self.objects:
                raise S3Error("NoSuchKey", "There is no such key.", Key=key)
            return self.objects[bucket, key]
        if operation == "DeleteObjects":
            found, quiet = documents.delete_objects(body)
            for row in found:
                self.objects.pop((bucket, row.key), None)
            return answers.deleted([answers.Deleted(row.key, row.version_id) for row in found], [], quiet=quiet)
        assert operation == "ListObjectsV2"
        rows = [Listed(name, 0, "e", len(data)) for (_, name), data in sorted(self.objects.items())]
        encode = request.parameter("encoding-type") == "url"
        page = Page(bucket, "", "", 1000, False, rows, [], encode)
        return answers.list_objects_v2(page, token=None, next_token=None, start_after=None, owner=None)


def client(server: Server, endpoint: str, secret: str = SECRET, access_key: str = ACCESS_KEY, **options: Any) -> Any:
    config = Config(signature_version="s3v4", retries={"max_attempts": 1, "mode": "standard"}, **options)
    made = Session().create_client(
        "s3",
        region_name="eu-north-1",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=config,
    )
    made.meta.events.register("before-send.s3", server.answer)
    return made


@pytest.mark.parametrize("style", ["path", "virtual"])
@pytest.mark.parametrize("endpoint", ["http://s3.example.com:9000", "https://s3.example.com"])
def test_a_client_puts_lists_gets_and_deletes(endpoint: str, style: str) -> None:
    server = Server()
    s3 = client(server, endpoint, s3={"addressing_style": style})
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-north-1"})
    keys = ["a", "a b+c", "ü/漢/..//%2F", "/first", "a\x01b", "~!*'()&=?#"]
    for key in keys:
        s3.put_object(Bucket="bucket", Key=key, Body=f"hello {key}".encode(), Metadata={"colour": "two  blanks"})
        assert s3.get_object(Bucket="bucket", Key=key)["Body"].read() == f"hello {key}".encode()
    listed = s3.list_objects_v2(Bucket="bucket", Prefix="", Delimiter="/")
    assert [row["Key"] for row in listed["Contents"]] == sorted(keys)
    plain = [key for key in keys if "\x01" not in key]
    assert len(s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in plain]})["Deleted"]) == 5
    assert list(server.objects) == [("bucket", "a\x01b")]
    assert Payload.SHA256 in server.payloads


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256", None])
@pytest.mark.parametrize("split", [1, 7, 100_000])
def test_chunked_bodies_of_a_client_over_tls(algorithm: str | None, split: int) -> None:
    server = Server(split)
    s3 = client(server, "https://s3.example.com")
    s3.create_bucket(Bucket="bucket")
    options = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    s3.put_object(Bucket="bucket", Key="k", Body=io.BytesIO(b"hello" * 300), **options)
    assert server.payloads[-1] is Payload.CHUNKED_UNSIGNED_TRAILER
    assert server.objects == {("bucket", "k"): b"hello" * 300}
    server.damage = True
    assert code_of(s3, Body=io.BytesIO(b"hello" * 300), **options) == "BadDigest"


def code_of(s3: Any, **options: Any) -> Any:
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="bucket", Key="other", **options)
    return caught.value.response["Error"]["Code"]


def test_damage_is_found_over_http() -> None:
    server = Server()
    s3 = client(server, "http://s3.example.com")
    s3.create_bucket(Bucket="bucket")
    server.damage = True
    assert code_of(s3, Body=b"hello") == "XAmzContentSHA256Mismatch"
    assert server.objects == {}


def test_a_client_reads_our_errors() -> None:
    server = Server()
    assert code_of(client(server, "http://s3.example.com"), Body=b"") == "NoSuchBucket"
    assert code_of(client(server, "http://s3.example.com", secret="wrong"), Body=b"") == "SignatureDoesNotMatch"
    assert code_of(client(server, "http://s3.example.com", access_key="OTHER"), Body=b"") == "InvalidAccessKeyId"
    s3 = client(server, "http://s3.example.com")
    with pytest.raises(s3.exceptions.ClientError, match="NotImplemented"):
        s3.put_bucket_accelerate_configuration(Bucket="bucket", AccelerateConfiguration={"Status": "Enabled"})
    s3.create_bucket(Bucket="bucket")
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket="bucket", Key="none")
