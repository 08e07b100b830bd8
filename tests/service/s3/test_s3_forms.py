"""Uploads by POST forms, as browsers send them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from nos_ec.ports.metadata import Rights
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused

LARGE = 5 * STRIPE
BOUNDARY = "----boundary"
NAMED = {"Bucket": "photos", "Key": "k"}
Fields = dict[str, str]


def form(fields: Fields, data: bytes | None = b"bar", file_name: str = "foo.txt", behind: bytes = b"") -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    if data is not None:
        head = f'Content-Disposition: form-data; name="file"; filename="{file_name}"\r\nContent-Type: text/html\r\n\r\n'
        parts.append(f"--{BOUNDARY}\r\n{head}".encode() + data + b"\r\n")
    return b"".join(parts) + behind + f"--{BOUNDARY}--\r\n".encode()


class Poster:
    """Sends forms that an account has signed."""

    def __init__(self, gateway: Gateway, account: str = "ann") -> None:
        made = gateway.accounts.create_key(MASTERS, account)
        self.gateway, self.access_key, self.secret = gateway, made.key.access_key, made.secret

    def fields(self, *conditions: Any, seconds: int = 600, version: int = 2, **fields: Any) -> Fields:
        """The fields of a form whose policy is these conditions and all of its fields."""
        found = {name.replace("_", "-"): value for name, value in {"key": "k", **fields}.items()}
        if version == 4:
            day = f"{datetime.now(UTC):%Y%m%d}"
            found["x-amz-credential"] = f"{self.access_key}/{day}/eu-north-1/s3/aws4_request"
            found["x-amz-algorithm"], found["x-amz-date"] = "AWS4-HMAC-SHA256", f"{day}T000000Z"
        named = [{"bucket": "photos"}, *({name: value} for name, value in found.items())]
        document = {
            "expiration": f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}",
            "conditions": list(conditions) if conditions else named,
        }
        return found | self.signed(document, version)

    def signed(self, document: Any, version: int = 2) -> Fields:
        policy = base64.b64encode(json.dumps(document).encode()).decode()
        if version == 2:
            digest = hmac.digest(self.secret.encode(), policy.encode(), "sha1")
            return {"AWSAccessKeyId": self.access_key, "policy": policy, "signature": base64.b64encode(digest).decode()}
        key = f"AWS4{self.secret}".encode()
        for part in (f"{datetime.now(UTC):%Y%m%d}", "eu-north-1", "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return {"policy": policy, "x-amz-signature": hmac.digest(key, policy.encode(), "sha256").hex()}

    def post(self, fields: Fields, *given: Any, **more: Any) -> tuple[int, bytes, dict[str, str]]:
        return send(self.gateway, form(fields, *given, **more))


def send(gateway: Gateway, body: bytes, target: str = "/photos") -> tuple[int, bytes, dict[str, str]]:
    return gateway.raw("POST", target, body, Content_Type=f"multipart/form-data; boundary={BOUNDARY}")


def denied(answer: tuple[int, bytes, dict[str, str]], status: int, code: str) -> None:
    assert (answer[0], f"<Code>{code}</Code>".encode() in answer[1]) == (status, True), answer


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("size", [0, 3, CHUNK, LARGE])
def test_signed_forms(bench: Bench, gateway: Gateway, ann: Any, size: int, version: int) -> None:
    data = bench.data(size)
    poster = Poster(gateway)
    fields = poster.fields(
        version=version,
        acl="public-read",
        Content_Type="text/x",
        x_amz_meta_a="b \u00fc",
        x_amz_storage_class="STANDARD_IA",
    )
    status, body, headers = poster.post(fields, data)
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    assert (status, body, headers["etag"], headers["location"]) == (204, b"", f'"{md5}"', f"{gateway.url}/photos/k")
    got = ann.get_object(**NAMED)
    assert (got["Body"].read(), got["ContentType"], got["StorageClass"]) == (data, "text/x", "STANDARD_IA")
    assert got["Metadata"]["a"] == "=?utf-8?b?YiDDvA==?="
    assert gateway.raw("GET", "/photos/k")[:2] == (200, data)
    bench.settle(gateway.system)
    assert ann.get_object(**NAMED)["Body"].read() == data


def test_anonymous_forms(gateway: Gateway, ann: Any) -> None:
    denied(send(gateway, form({"key": "k"})), 403, "AccessDenied")
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    assert send(gateway, form({"key": "k"}))[0] == 204
    assert send(gateway, form({"key": "d/${filename}"}), "/photos/")[0] == 204
    assert ann.get_object(Bucket="photos", Key="d/foo.txt")["Body"].read() == b"bar"
    refused("403", 403, gateway.client(None).head_object, Bucket="photos", Key="k")
    assert send(gateway, form({"key": "k", "acl": "public-read"}))[0] == 204
    gateway.client(None).head_object(Bucket="photos", Key="k")
    denied(send(gateway, form({"key": "k"}), "/nothing"), 404, "NoSuchBucket")


def test_what_a_form_is_answered_with(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    for asked, status in (("200", 200), ("201", 201), ("204", 204), ("404", 204), ("", 204)):
        found, body, headers = send(gateway, form({"key": "a b", "success_action_status": asked}))
        assert (found, headers["location"]) == (status, f"{gateway.url}/photos/a%20b")
        assert (f"<PostResponse><Location>{gateway.url}/photos/a%20b</Location>".encode() in body) is (status == 201)
    etag = "%2237b51d194a7513e45b56f6524f2d51f2%22"
    for address, mark in (("http://example.com/x", "?"), ("https://example.com?a=b", "&")):
        found, _, headers = send(gateway, form({"key": "a b", "success_action_redirect": address}))
        assert (found, headers["location"]) == (303, f"{address}{mark}bucket=photos&key=a+b&etag={etag}")
    assert send(gateway, form({"key": "k", "success_action_redirect": "javascript:alert(1)"}))[0] == 204


def test_tags_and_checksums_of_a_form(gateway: Gateway, ann: Any) -> None:
    poster = Poster(gateway)
    tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>1 &amp; 2</Value></Tag></TagSet></Tagging>"
    sha256 = base64.b64encode(hashlib.sha256(b"bar").digest()).decode()
    fields = poster.fields(tagging=tagging, x_amz_checksum_sha256=sha256)
    assert poster.post(fields)[0] == 204
    assert ann.get_object_tagging(**NAMED)["TagSet"] == [{"Key": "a", "Value": "1 & 2"}]
    assert ann.head_object(**NAMED, ChecksumMode="ENABLED")["ChecksumSHA256"] == sha256
    denied(poster.post(fields, b"other"), 400, "BadDigest")
    fields = poster.fields() | {"x-amz-checksum-sha256": sha256}
    assert poster.post(fields)[0] == 204, "a checksum needs no condition"
    wrong = base64.b64encode(hashlib.sha256(b"").digest()).decode()
    denied(poster.post(fields | {"x-amz-checksum-sha256": wrong}), 400, "BadDigest")
    for nonsense in (sha256[::-1], "nonsense"):
        denied(poster.post(fields | {"x-amz-checksum-sha256": nonsense}), 400, "InvalidRequest")
    denied(poster.post(poster.fields(tagging="<Tagging>")), 400, "MalformedXML")
    denied(poster.post(poster.fields(x_amz_server_side_encryption="AES256")), 501, "NotImplemented")
    assert ann.get_object(**NAMED)["Body"].read() == b"bar"


def test_every_field_may_have_the_name_of_the_file(gateway: Gateway, ann: Any) -> None:
    poster = Poster(gateway)
    address = "http://example.com/${filename}"
    conditions = [{"bucket": "photos"}, {"key": "u/foo.txt"}, {"success_action_redirect": "http://example.com/foo.txt"}]
    conditions += [{"x-amz-meta-name": "a foo.txt"}, {"x-amz-tagging": "n=foo.txt"}]
    fields = poster.fields(
        *conditions,
        key="u/${filename}", x_amz_meta_name="a ${filename}", x_amz_tagging="n=${filename}",
    ) | {"success_action_redirect": address}  # fmt: skip
    status, _, headers = poster.post(fields)
    assert (status, headers["location"].partition("?")[0]) == (303, "http://example.com/foo.txt")
    named = {"Bucket": "photos", "Key": "u/foo.txt"}
    assert ann.head_object(**named)["Metadata"] == {"name": "a foo.txt"}
    assert ann.get_object_tagging(**named)["TagSet"] == [{"Key": "n", "Value": "foo.txt"}]


def test_conditions_of_a_policy(gateway: Gateway, ann: Any) -> None:
    poster = Poster(gateway)
    bucket, kind = {"bucket": "photos"}, ["starts-with", "$Content-Type", "text/"]
    good = [bucket, ["starts-with", "$key", "u/"], kind, ["content-length-range", 2, 4], ["eq", "$ACL", "private"]]
    sent: dict[str, Any] = {"key": "u/${filename}", "Content_Type": "text/plain", "acl": "private"}
    assert poster.post(poster.fields(*good, **sent, x_ignore_this="x"))[0] == 204
    assert ann.get_object(Bucket="photos", Key="u/foo.txt")["Body"].read() == b"bar"
    for data, code in ((b"1", "EntityTooSmall"), (b"12345", "EntityTooLarge")):
        denied(poster.post(poster.fields(*good, **sent), data), 400, code)
    assert poster.post(poster.fields(*good, **{**sent, "Content_Type": "text/plain, text/html"}))[0] == 204
    mixed = {"Content_Type": "text/plain, image/png"}
    changed: dict[str, Any]
    for changed in (
        mixed,
        {"key": "v/x"},
        {"Content_Type": "image/png"},
        {"acl": "public-read"},
        {"x_amz_meta_a": "1"},
    ):
        denied(poster.post(poster.fields(*good, **{**sent, **changed})), 403, "AccessDenied")
    denied(poster.post(poster.fields({"bucket": "other"}, *good[1:], **sent)), 403, "AccessDenied")
    denied(poster.post(poster.fields(*good[1:], **sent)), 403, "AccessDenied")
    denied(poster.post(poster.fields(*good, **sent, seconds=-10)), 403, "AccessDenied")
    assert [row["Key"] for row in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["u/foo.txt"]


@pytest.mark.parametrize(
    "document",
    [
        {"conditions": [{"bucket": "photos"}]},
        {"expiration": "soon", "conditions": [{"bucket": "photos"}]},
        {"expiration": "2100-01-01 00:00:00Z", "conditions": [{"bucket": "photos"}]},
        {"expiration": "2100-01-01T00:00:00+00:00", "conditions": [{"bucket": "photos"}]},
        {"expiration": "2100-01-01T00:00:00", "conditions": [{"bucket": "photos"}]},
        {"expiration": "2100-02-30T00:00:00Z", "conditions": [{"bucket": "photos"}]},
        {"expiration": "2100-01-01", "conditions": [{"bucket": "photos"}]},
        {"expiration": "2100-01-01T00:00:00Z"},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": []},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": [["content-length-range", 1]]},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": [["content-length-range", "a", 1]]},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": [["matches", "$key", "k"]]},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": [["eq", "key", "k"]]},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": [{"bucket": "photos", "key": "k"}]},
        {"expiration": "2100-01-01T00:00:00Z", "conditions": [{"bucket": "photos"}], "more": 1},
        ["expiration"],
        "x",
    ],
)
def test_policies_that_are_none(gateway: Gateway, ann: Any, document: Any) -> None:
    poster = Poster(gateway)
    denied(poster.post({"key": "k", **poster.signed(document)}), 400, "InvalidPolicyDocument")
    refused("404", 404, ann.head_object, **NAMED)


@pytest.mark.parametrize("version", [2, 4])
def test_signatures_of_forms(gateway: Gateway, ann: Any, version: int) -> None:
    poster = Poster(gateway)
    fields = poster.fields(version=version)
    name = "signature" if version == 2 else "x-amz-signature"
    denied(poster.post({**fields, name: "A" + fields[name][1:-2] + "x="}), 403, "SignatureDoesNotMatch")
    other = poster.fields(version=version, seconds=9000)["policy"]
    denied(poster.post({**fields, "policy": other}), 403, "SignatureDoesNotMatch")
    key = "AWSAccessKeyId" if version == 2 else "x-amz-credential"
    denied(poster.post({**fields, key: "X" + fields[key]}), 403, "InvalidAccessKeyId")
    for missing in {*fields} - {"key"}:
        status, body, _ = poster.post({field: value for field, value in fields.items() if field != missing})
        assert status in (400, 403), (missing, body)
    denied(poster.post({**fields, "x-amz-security-token": "t"}), 400, "InvalidToken")
    refused("404", 404, ann.head_object, **NAMED)
    bob = Poster(gateway, "bob")
    denied(bob.post(bob.fields(version=version)), 403, "AccessDenied")
    gateway.accounts.grant("photos", "bob", Rights.WRITE)
    assert bob.post(bob.fields(version=version))[0] == 204
    assert bob.post(bob.fields(version=version, acl="public-read"))[0] == 204


def test_bodies_that_are_no_forms(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    denied(gateway.raw("POST", "/photos", b"x", Content_Type="text/plain"), 412, "PreconditionFailed")
    denied(gateway.raw("POST", "/photos", b"x"), 412, "PreconditionFailed")
    denied(gateway.raw("POST", "/photos", b"x", Content_Type="multipart/form-data"), 412, "PreconditionFailed")
    denied(send(gateway, b"nothing of the kind"), 400, "MalformedPOSTRequest")
    denied(send(gateway, form({"key": "k"}, None)), 400, "InvalidArgument")
    denied(send(gateway, form({})), 400, "InvalidArgument")
    denied(send(gateway, form({"key": ""})), 400, "InvalidArgument")
    for name in ("x-amz-meta-a b", "x-amz-meta-\u00fc", "x-amz-meta-a:b"):
        denied(send(gateway, form({"key": "k", name: "v"})), 400, "InvalidArgument")
    denied(send(gateway, form({"key": "k" * 1025})), 400, "KeyTooLongError")
    denied(send(gateway, form({"key": "k", "x-amz-meta-a": "v" * 30_000})), 400, "MaxPostPreDataLengthExceededError")
    many = {"key": "k", **{f"x-ignore-{number}": "" for number in range(300)}}
    denied(send(gateway, form(many)), 400, "MaxPostPreDataLengthExceededError")
    twice = form({"key": "k"}, None).removesuffix(f"--{BOUNDARY}--\r\n".encode()) + form({"key": "l"})
    denied(send(gateway, twice), 400, "MalformedPOSTRequest")
    denied(send(gateway, form({"key": "k"}).removesuffix(b"--\r\n")), 400, "IncompleteBody")
    denied(send(gateway, form({"key": "k"})[:-18]), 400, "IncompleteBody")
    refused("404", 404, ann.head_object, **NAMED)


def test_what_is_behind_the_file_is_ignored(gateway: Gateway, ann: Any) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    behind = form({"key": "other", "x-amz-meta-a": "1"}, b"second").removesuffix(f"--{BOUNDARY}--\r\n".encode())
    assert send(gateway, form({"key": "k"}, behind=behind))[0] == 204
    got = ann.get_object(**NAMED)
    assert (got["Body"].read(), got["Metadata"]) == (b"bar", {})


@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_a_form_whose_client_goes_away_stores_nothing(bench: Bench, gateway: Gateway, ann: Any, size: int) -> None:
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    body = form({"key": "k"}, bench.data(size))
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("POST", "/photos")
    connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:-20])
    connection.close()
    ann.put_object(Bucket="photos", Key="other", Body=b"x")
    assert [row["Key"] for row in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["other"]


def test_forms_that_botocore_makes(gateway: Gateway, ann: Any) -> None:
    made = ann.generate_presigned_post("photos", "u/${filename}", ExpiresIn=60)
    assert send(gateway, form(made["fields"]))[0] == 204
    assert ann.get_object(Bucket="photos", Key="u/foo.txt")["Body"].read() == b"bar"
