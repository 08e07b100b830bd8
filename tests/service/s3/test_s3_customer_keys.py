"""Objects that the gateway encrypts with keys of customers (SSE-C), which it never stores."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from botocore.exceptions import ClientError

from nos_ec.composition.wiring import System
from nos_ec.core.attributes import decode_attributes
from nos_ec.core.errors import Encrypted
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.auth.key_ring import KeyRing
from tests.rig.at_rest import end_log
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, refused, serving
from tests.service.s3.test_s3_multipart import body_of

KEY, OTHER = b"k" * 31 + b"\xff", b"o" * 32
SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY}
WRONG = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": OTHER}
NAMED = {"Bucket": "photos", "Key": "a"}
SIZES = [0, 9, 128 << 10, (128 << 10) + 1, 9_000_000]


def of_source(key: bytes) -> dict[str, Any]:
    return {"CopySource": "photos/a", "CopySourceSSECustomerAlgorithm": "AES256", "CopySourceSSECustomerKey": key}


def md5_of(key: bytes) -> str:
    return base64.b64encode(hashlib.md5(key, usedforsecurity=False).digest()).decode()


def by_hand(key: bytes) -> dict[str, str]:
    """For the operations for which botocore neither encodes the key nor adds its MD5."""
    encoded = base64.b64encode(key).decode()
    return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": encoded, "SSECustomerKeyMD5": md5_of(key)}


@pytest.fixture
def store(system: System) -> Store:
    return system.client.store()


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    """Without keys of the store."""
    with serving(system, SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1", "access_log": True})) as found:
        yield found


def over_https(client: Any) -> Any:
    """A client behind a proxy that speaks HTTPS."""

    def add(request: Any, **_: Any) -> None:
        request.headers["X-Forwarded-Proto"] = "https"

    client.meta.events.register("before-send.s3", add)
    return client


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    client = over_https(gateway.client("ann"))
    client.create_bucket(Bucket="photos")
    return client


@pytest.mark.parametrize("size", SIZES)
def test_put_and_get(ann: Any, store: Store, size: int) -> None:
    data = os.urandom(size)
    made = ann.put_object(**NAMED, Body=data, ChecksumAlgorithm="SHA256", **SSE_C)
    assert (made["SSECustomerAlgorithm"], made["SSECustomerKeyMD5"]) == ("AES256", md5_of(KEY))
    row = store.head(ObjectKey("photos", "a"))
    assert made["ETag"] == f'"{row.md5.hex()}"'
    got = ann.get_object(**NAMED, ChecksumMode="ENABLED", **SSE_C)
    assert got["Body"].read() == data
    assert (got["SSECustomerAlgorithm"], got["SSECustomerKeyMD5"]) == ("AES256", md5_of(KEY))
    assert (got["ETag"], got["ContentLength"], got["ChecksumSHA256"]) == (made["ETag"], size, made["ChecksumSHA256"])
    assert "ServerSideEncryption" not in got
    head = ann.head_object(**NAMED, **SSE_C)
    assert (head["ETag"], head["ContentLength"], head["SSECustomerKeyMD5"]) == (made["ETag"], size, md5_of(KEY))
    (listed,) = ann.list_objects_v2(Bucket="photos")["Contents"]
    assert (listed["ETag"], listed["Size"]) == (made["ETag"], size)
    found = ann.get_object_attributes(**NAMED, ObjectAttributes=["ETag", "ObjectSize", "Checksum"], **by_hand(KEY))
    assert found["ObjectSize"] == size
    assert found["Checksum"]["ChecksumSHA256"] == made["ChecksumSHA256"]
    if size:
        got = ann.get_object(**NAMED, Range=f"bytes={size // 2}-{size // 2 + 20_000}", **SSE_C)
        assert got["Body"].read() == data[size // 2 : size // 2 + 20_001]
        assert row.md5 != hashlib.md5(data, usedforsecurity=False).digest()
    if size >= 16:
        assert data[:16] not in b"".join(store.open_ciphertext(row, 0, row.size))
    refused("304", 304, ann.get_object, **NAMED, IfNoneMatch=made["ETag"], **SSE_C)
    refused("PreconditionFailed", 412, ann.put_object, **NAMED, Body=b"", IfMatch='"' + "0" * 32 + '"', **SSE_C)
    ann.put_object(**NAMED, Body=b"new", IfMatch=made["ETag"])


@pytest.mark.parametrize("size", SIZES)
def test_a_wrong_key(ann: Any, size: int) -> None:
    ann.put_object(**NAMED, Body=os.urandom(size), **SSE_C)
    attributes = {"ObjectAttributes": ["ETag"]}
    refused("AccessDenied", 403, ann.get_object, **NAMED, **WRONG)
    refused("403", 403, ann.head_object, **NAMED, **WRONG)
    refused("AccessDenied", 403, ann.get_object_attributes, **NAMED, **attributes, **by_hand(OTHER))
    refused("AccessDenied", 403, ann.copy_object, Bucket="photos", Key="b", **of_source(OTHER))
    refused("InvalidRequest", 400, ann.get_object, **NAMED)
    refused("400", 400, ann.head_object, **NAMED)
    refused("InvalidRequest", 400, ann.get_object_attributes, **NAMED, **attributes)
    refused("InvalidRequest", 400, ann.copy_object, Bucket="photos", Key="b", CopySource="photos/a")
    if size:
        refused("AccessDenied", 403, ann.get_object, **NAMED, Range="bytes=0-0", **WRONG)
        refused("InvalidRequest", 400, ann.get_object, **NAMED, Range="bytes=0-0")
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="b")


def test_a_key_for_an_object_without_one(system: System, ann: Any) -> None:
    KeyRing(system.metadata, MASTERS, system.clock).add(os.urandom)
    ann.put_object(**NAMED, Body=b"plain")
    for _ in range(2):
        refused("InvalidRequest", 400, ann.get_object, **NAMED, **SSE_C)
        refused("400", 400, ann.head_object, **NAMED, **SSE_C)
        refused("InvalidRequest", 400, ann.copy_object, Bucket="photos", Key="b", **of_source(KEY))
        ann.put_object(**NAMED, Body=b"data", ServerSideEncryption="AES256")
    refused("InvalidArgument", 400, ann.put_object, **NAMED, Body=b"", ServerSideEncryption="AES256", **SSE_C)


def test_copies(ann: Any, store: Store) -> None:
    data = os.urandom(200_000)
    ann.put_object(**NAMED, Body=data, ChecksumAlgorithm="SHA256", **SSE_C)
    made = ann.copy_object(Bucket="photos", Key="b", **of_source(KEY), **WRONG)
    assert made["SSECustomerKeyMD5"] == md5_of(OTHER)
    assert ann.get_object(Bucket="photos", Key="b", **WRONG)["Body"].read() == data
    made = ann.copy_object(Bucket="photos", Key="plain", **of_source(KEY))
    assert store.get(ObjectKey("photos", "plain")) == data
    head = ann.head_object(Bucket="photos", Key="plain", ChecksumMode="ENABLED")
    assert head["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(data).digest()).decode()
    # A copy onto itself needs both keys, and may change them.
    replace = {"MetadataDirective": "REPLACE", "Metadata": {"a": "b"}}
    refused("InvalidRequest", 400, ann.copy_object, **NAMED, **of_source(KEY), **replace)
    ann.copy_object(**NAMED, **of_source(KEY), **WRONG)
    assert ann.get_object(**NAMED, **WRONG)["Body"].read() == data
    refused("AccessDenied", 403, ann.get_object, **NAMED, **SSE_C)
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="parts")["UploadId"]
    of = {"Bucket": "photos", "Key": "parts", "UploadId": upload_id, "PartNumber": 1}
    copied = ann.upload_part_copy(**of, CopySourceRange="bytes=5-9", **of_source(OTHER))
    assert copied["CopyPartResult"]["ETag"] == f'"{hashlib.md5(data[5:10], usedforsecurity=False).hexdigest()}"'
    refused("AccessDenied", 403, ann.upload_part_copy, **of, **of_source(KEY))


def test_what_needs_no_key(ann: Any, store: Store) -> None:
    ann.put_object(**NAMED, Body=b"data", ChecksumAlgorithm="SHA256", **SSE_C)
    tags = [{"Key": "a", "Value": "b"}]
    ann.put_object_tagging(**NAMED, Tagging={"TagSet": tags})
    assert ann.get_object_tagging(**NAMED)["TagSet"] == tags
    assert ann.get_object(**NAMED, **SSE_C)["Body"].read() == b"data"
    with pytest.raises(Encrypted):
        store.get(ObjectKey("photos", "a"))
    ann.delete_object(**NAMED)
    refused("NoSuchKey", 404, ann.get_object, **NAMED, **SSE_C)


def test_rows_that_were_exchanged_are_noticed(gateway: Gateway, ann: Any, store: Store) -> None:
    for name in "ab":
        ann.put_object(Bucket="photos", Key=name, Body=os.urandom(100), **SSE_C)
    a, b = (store.head(ObjectKey("photos", name)) for name in "ab")
    assert gateway.system.metadata.set_attributes(a, b.attributes)
    refused("AccessDenied", 403, ann.get_object, **NAMED, **SSE_C)  # the key does not fit the name


def raw_headers(client: Any, headers: dict[str, str]) -> Any:
    """The client's requests get these headers, which boto3 would not send."""

    def add(request: Any, **_: Any) -> None:
        for name, value in headers.items():
            del request.headers[name]
            request.headers[name] = value

    client.meta.events.register("before-sign.s3", add)
    return client


P = "x-amz-server-side-encryption-customer-"
K64 = base64.b64encode(KEY).decode()


@pytest.mark.parametrize(
    ("code", "headers"),
    [
        ("InvalidArgument", {f"{P}algorithm": "AES256"}),
        ("InvalidArgument", {f"{P}key": K64}),
        ("InvalidArgument", {f"{P}key-md5": md5_of(KEY)}),
        ("InvalidArgument", {f"{P}algorithm": "AES256", f"{P}key": K64}),
        ("InvalidArgument", {f"{P}algorithm": "AES256", f"{P}key-md5": md5_of(KEY)}),
        ("InvalidArgument", {f"{P}key": K64, f"{P}key-md5": md5_of(KEY)}),
        ("InvalidArgument", {f"{P}algorithm": "AES256", f"{P}key": K64, f"{P}key-md5": md5_of(OTHER)}),
        ("InvalidArgument", {f"{P}algorithm": "AES256", f"{P}key": "?" + K64, f"{P}key-md5": md5_of(KEY)}),
        ("InvalidArgument", {f"{P}algorithm": "AES256", f"{P}key": "MTIz", f"{P}key-md5": md5_of(b"123")}),
        ("InvalidEncryptionAlgorithmError", {f"{P}algorithm": "rot13", f"{P}key": K64, f"{P}key-md5": md5_of(KEY)}),
    ],
)
def test_refused_headers(gateway: Gateway, ann: Any, code: str, headers: dict[str, str]) -> None:
    client = raw_headers(over_https(gateway.client("root")), headers)
    error = refused(code, 400, client.put_object, **NAMED, Body=b"data")
    assert K64 not in repr(error.response)
    refused("NoSuchKey", 404, ann.get_object, **NAMED)


def test_refused_requests(gateway: Gateway, ann: Any) -> None:
    over_http = gateway.client("root")
    refused("InvalidRequest", 400, over_http.put_object, **NAMED, Body=b"data", **SSE_C)
    ann.put_object(**NAMED, Body=b"data", **SSE_C)
    refused("InvalidRequest", 400, over_http.get_object, **NAMED, **SSE_C)
    upload = {"Bucket": "photos", "Key": "u"}
    refused("NotImplemented", 501, ann.create_multipart_upload, **upload, **SSE_C)  # without a key of the store
    upload["UploadId"] = ann.create_multipart_upload(**upload)["UploadId"]
    refused("InvalidRequest", 400, ann.upload_part, **upload, PartNumber=1, Body=b"part", **SSE_C)
    url = ann.generate_presigned_url("get_object", Params=NAMED)
    path = url.removeprefix(gateway.url)
    status, body, _ = gateway.raw("GET", f"{path}&{P}key={K64}", X_Forwarded_Proto="https")
    assert (status, b"never in a URL" in body, K64.encode() in body) == (400, True, False)


def test_a_proxy_that_is_not_trusted_cannot_vouch_for_https(system: System, store: Store) -> None:
    for proxies in ("", "192.0.2.1"):
        with serving(system, SETTINGS.model_copy(update={"trusted_proxies": proxies})) as gateway:
            client = over_https(gateway.client("root"))
            if not proxies:
                client.create_bucket(Bucket="photos")
            refused("InvalidRequest", 400, client.put_object, **NAMED, Body=b"data", **SSE_C)
    assert store.list_names("photos", "", "", 1) == []


def test_keys_are_neither_logged_nor_shown_nor_stored(system: System) -> None:
    settings = SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1", "access_log": True})
    with structlog.testing.capture_logs() as logged, serving(system, settings) as gateway:
        ann = over_https(gateway.client("ann"))
        ann.create_bucket(Bucket="photos")
        for size in (9, 200_000):
            ann.put_object(**NAMED, Body=bytes(size), **SSE_C)
            ann.get_object(**NAMED, **SSE_C)["Body"].read()
            refused("AccessDenied", 403, ann.get_object, **NAMED, **WRONG)
        stranger = over_https(gateway.client_of(gateway.accounts.create_key(MASTERS, "bob").key.access_key, "wrong"))
        with pytest.raises(ClientError) as caught:
            stranger.get_object(**NAMED, **SSE_C)
        error = caught.value.response["Error"]
        assert error["Code"] == "SignatureDoesNotMatch"
        assert f"{P}key:..." in error["CanonicalRequest"]
        assert K64 not in repr(caught.value.response)
    assert K64 not in repr(logged)
    attributes = decode_attributes(system.client.store().head(ObjectKey("photos", "a")).attributes)
    end_log(system)
    for secret in (KEY.hex(), K64, md5_of(KEY), hashlib.md5(KEY, usedforsecurity=False).hexdigest()):
        assert secret not in repr(attributes)


class TestUploads:
    """Uploads in parts. CompleteMultipartUpload comes without the key, so they need a key of the store, too."""

    BODIES = (body_of(5 << 20, 1), body_of((5 << 20) + 17, 2), body_of(100_000, 3))
    WHOLE = b"".join(BODIES)

    @pytest.fixture(autouse=True)
    def _key_of_store(self, system: System) -> None:
        KeyRing(system.metadata, MASTERS, system.clock).add(os.urandom)

    def begun(self, ann: Any, key: dict[str, Any] = SSE_C, **options: Any) -> tuple[dict[str, Any], list[Any]]:
        made = ann.create_multipart_upload(**NAMED, **options, **key)
        assert made["SSECustomerKeyMD5"] == md5_of(key["SSECustomerKey"])
        of, parts = {**NAMED, "UploadId": made["UploadId"]}, []
        checksum = {name: text for name, text in options.items() if name == "ChecksumAlgorithm"}
        for number, body in enumerate(self.BODIES, 1):
            part = ann.upload_part(**of, PartNumber=number, Body=body, **checksum, **key)
            assert part["SSECustomerKeyMD5"] == md5_of(key["SSECustomerKey"])
            sums = {name: text for name, text in part.items() if name == "ChecksumCRC32"}
            parts.append({"PartNumber": number, "ETag": part["ETag"], **sums})
        return of, parts

    def completed(self, ann: Any, **options: Any) -> Any:
        of, parts = self.begun(ann)
        return ann.complete_multipart_upload(**of, MultipartUpload={"Parts": parts}, **options)

    @pytest.mark.parametrize("with_key", [True, False])
    def test_life(self, ann: Any, store: Store, with_key: bool) -> None:
        key = by_hand(KEY) if with_key else {}
        of, parts = self.begun(ann, ChecksumAlgorithm="CRC32")
        listed = ann.list_parts(**of, **key)["Parts"]
        assert [(one["Size"], one["ETag"]) for one in listed] == [
            (len(body), part["ETag"]) for body, part in zip(self.BODIES, parts, strict=True)
        ]
        assert [one.get("ChecksumCRC32") for one in listed] == [
            part["ChecksumCRC32"] if with_key else None for part in parts
        ]
        made = ann.complete_multipart_upload(**of, MultipartUpload={"Parts": parts}, **key)
        assert ann.complete_multipart_upload(**of, MultipartUpload={"Parts": parts}, **key)["ETag"] == made["ETag"]
        got = ann.get_object(**NAMED, ChecksumMode="ENABLED", **SSE_C)
        assert got["Body"].read() == self.WHOLE
        assert (got["ETag"], got["SSECustomerKeyMD5"]) == (made["ETag"], md5_of(KEY))
        assert got["ChecksumCRC32"] == made["ChecksumCRC32"]
        first = (5 << 20) - 9
        assert (
            ann.get_object(**NAMED, Range=f"bytes={first}-{first + 99}", **SSE_C)["Body"].read()
            == (self.WHOLE[first : first + 100])
        )
        head = ann.head_object(**NAMED, PartNumber=3, ChecksumMode="ENABLED", **SSE_C)
        assert (head["ContentLength"], head["ChecksumCRC32"]) == (100_000, parts[2]["ChecksumCRC32"])
        (entry,) = ann.list_objects_v2(Bucket="photos")["Contents"]
        assert (entry["ETag"], entry["Size"]) == (made["ETag"], len(self.WHOLE))
        found = ann.get_object_attributes(**NAMED, ObjectAttributes=["ObjectParts", "ObjectSize"], **by_hand(KEY))
        assert (found["ObjectSize"], found["ObjectParts"]["TotalPartsCount"]) == (len(self.WHOLE), 3)
        ann.copy_object(Bucket="photos", Key="plain", **of_source(KEY))
        assert store.get(ObjectKey("photos", "plain")) == self.WHOLE
        with pytest.raises(Encrypted):
            store.get(ObjectKey("photos", "a"))

    def test_a_wrong_key(self, ann: Any) -> None:
        self.completed(ann)
        for options in ({}, {"Range": "bytes=0-0"}, {"PartNumber": 2}):
            refused("AccessDenied", 403, ann.get_object, **NAMED, **options, **WRONG)
            refused("InvalidRequest", 400, ann.get_object, **NAMED, **options)
        refused("403", 403, ann.head_object, **NAMED, **WRONG)
        refused("400", 400, ann.head_object, **NAMED)
        refused("AccessDenied", 403, ann.copy_object, Bucket="photos", Key="b", **of_source(OTHER))

    def test_all_parts_have_the_key_of_the_upload(self, ann: Any) -> None:
        of, parts = self.begun(ann)
        part = {**of, "PartNumber": 1, "Body": b"part"}
        refused("InvalidRequest", 400, ann.upload_part, **part, **WRONG)
        refused("InvalidRequest", 400, ann.upload_part, **part)
        ann.put_object(Bucket="photos", Key="source", Body=b"data")
        copied = {**of, "PartNumber": 1, "CopySource": "photos/source"}
        refused("InvalidRequest", 400, ann.upload_part_copy, **copied)
        refused("InvalidRequest", 400, ann.upload_part_copy, **copied, **WRONG)
        refused("InvalidRequest", 400, ann.list_parts, **of, **by_hand(OTHER))
        listed = {"MultipartUpload": {"Parts": parts}}
        refused("InvalidRequest", 400, ann.complete_multipart_upload, **of, **listed, **by_hand(OTHER))
        etag = ann.upload_part_copy(**copied, **SSE_C)["CopyPartResult"]["ETag"]
        ann.complete_multipart_upload(**of, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
        assert ann.get_object(**NAMED, **SSE_C)["Body"].read() == b"data"

    def test_a_part_of_another_object(self, gateway: Gateway, ann: Any, store: Store) -> None:
        self.completed(ann)
        row = store.head(ObjectKey("photos", "a"))
        assert row.composition is not None
        prefix = row.composition.upload_id.hex()
        one, other = store.list_objects(".nos_ec.parts.photos", prefix, "", 2)
        assert gateway.system.metadata.set_attributes(one, other.attributes)
        store.forget(one.key)
        with serving(gateway.system, SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1"})) as fresh:
            refused("InternalError", 500, over_https(fresh.client("ann")).get_object, **NAMED, **SSE_C)
