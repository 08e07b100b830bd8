"""Objects that are encrypted with KMS keys (SSE-KMS)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError, Corrupt, InvalidInput, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.key_service import find_key_service
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessKey, KeyState
from nos_ec.settings import S3Settings
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused, serving

RED = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "red"}
BLUE = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "blue"}


def ring_of(system: System, masters: MasterKeys = MASTERS) -> KeyRing:
    return KeyRing(system.metadata, masters, system.clock)


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    ring = ring_of(system)
    assert [ring.add(os.urandom, name) for name in (None, "red", "blue")] == [1, 2, 3]
    with serving(system) as found:
        yield found


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    client = gateway.client("ann")
    client.create_bucket(Bucket="photos")
    return client


def number_of(system: System, name: str) -> int | None:
    envelope = system.client.store().head(ObjectKey("photos", name)).envelope
    return None if envelope is None else envelope.number


def configured(**default: str) -> dict[str, Any]:
    rule = {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}
    return {"Bucket": "photos", "ServerSideEncryptionConfiguration": {"Rules": [rule]}}


@pytest.mark.parametrize("size", [0, 9, 300_000, 9_000_000])
def test_put_and_get(system: System, ann: Any, size: int) -> None:
    data = os.urandom(size)
    made = ann.put_object(Bucket="photos", Key="a", Body=data, ChecksumAlgorithm="SHA256", **RED)
    assert (made["ServerSideEncryption"], made["SSEKMSKeyId"]) == ("aws:kms", "red")
    row = system.client.store().head(ObjectKey("photos", "a"))
    assert made["ETag"] == f'"{row.md5.hex()}"'
    if size:
        assert row.md5 != hashlib.md5(data).digest()
    got = ann.get_object(Bucket="photos", Key="a", ChecksumMode="ENABLED")
    assert got["Body"].read() == data
    assert (got["ServerSideEncryption"], got["SSEKMSKeyId"], got["BucketKeyEnabled"]) == ("aws:kms", "red", True)
    assert (got["ETag"], got["ChecksumSHA256"]) == (made["ETag"], made["ChecksumSHA256"])
    head = ann.head_object(Bucket="photos", Key="a")
    assert (head["ETag"], head["SSEKMSKeyId"], head["ContentLength"]) == (made["ETag"], "red", size)
    (listed,) = ann.list_objects_v2(Bucket="photos")["Contents"]
    assert (listed["ETag"], listed["Size"]) == (made["ETag"], size)
    if size > 9:
        assert ann.get_object(Bucket="photos", Key="a", Range="bytes=5-20005")["Body"].read() == data[5:20006]
    refused("304", 304, ann.get_object, Bucket="photos", Key="a", IfNoneMatch=made["ETag"])
    refused("PreconditionFailed", 412, ann.put_object, Bucket="photos", Key="a", Body=b"", IfMatch='"' + "0" * 32 + '"')
    ann.put_object(Bucket="photos", Key="a", Body=b"new", IfMatch=made["ETag"])


def test_each_kms_key_has_keys_of_its_own(system: System, ann: Any) -> None:
    ann.put_object(Bucket="photos", Key="red", Body=b"data", **RED)
    ann.put_object(Bucket="photos", Key="blue", Body=b"data", **BLUE)
    ann.put_object(Bucket="photos", Key="newest", Body=b"data", ServerSideEncryption="aws:kms")
    ann.put_object(Bucket="photos", Key="aes", Body=b"data", ServerSideEncryption="AES256")
    assert [number_of(system, name) for name in ("red", "blue", "newest", "aes")] == [2, 3, 3, 1]
    assert ring_of(system).add(os.urandom, "red") == 4
    with serving(system) as other:
        client = other.client("ann")
        client.put_object(Bucket="photos", Key="second", Body=b"data", **RED)
        assert number_of(system, "second") == 4
        assert client.get_object(Bucket="photos", Key="red")["Body"].read() == b"data"
        assert ann.get_object(Bucket="photos", Key="second")["SSEKMSKeyId"] == "red"  # which it does not know yet


def test_the_default_of_a_bucket(ann: Any) -> None:
    ann.put_bucket_encryption(**configured(SSEAlgorithm="aws:kms", KMSMasterKeyID="red"))
    (rule,) = ann.get_bucket_encryption(Bucket="photos")["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "red"}
    assert rule["BucketKeyEnabled"] is True
    assert ann.put_object(Bucket="photos", Key="a", Body=b"data")["SSEKMSKeyId"] == "red"
    of_header = ann.put_object(Bucket="photos", Key="b", Body=b"data", ServerSideEncryption="aws:kms")
    assert of_header["SSEKMSKeyId"] == "red"
    assert ann.put_object(Bucket="photos", Key="c", Body=b"data", **BLUE)["SSEKMSKeyId"] == "blue"
    assert ann.create_multipart_upload(Bucket="photos", Key="d")["SSEKMSKeyId"] == "red"
    ann.put_bucket_encryption(**configured(SSEAlgorithm="aws:kms"))
    (rule,) = ann.get_bucket_encryption(Bucket="photos")["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms"}
    wrong = configured(SSEAlgorithm="aws:kms", KMSMasterKeyID="green")
    refused("KMS.NotFoundException", 400, ann.put_bucket_encryption, **wrong)
    refused("NotImplemented", 501, ann.put_bucket_encryption, **configured(SSEAlgorithm="aws:kms:dsse"))


def test_a_policy_may_forbid_other_keys(gateway: Gateway, ann: Any) -> None:
    """It sees the headers of requests, as in S3, and CreateMultipartUpload decides for the parts."""
    one = {"Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::photos/*"}
    name = "s3:x-amz-server-side-encryption"
    kms_key = f"{name}-aws-kms-key-id"
    denied: tuple[dict[str, Any], ...] = (
        {"StringNotEquals": {kms_key: "red"}, "Null": {kms_key: "false"}},
        {"Null": {f"{name}-customer-algorithm": "false"}},
    )
    statements = [{"Effect": "Allow", **one}, *({"Effect": "Deny", "Condition": that, **one} for that in denied)]
    ann.put_bucket_policy(Bucket="photos", Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    ben = gateway.client("ben")
    named = {"Bucket": "photos", "Key": "a"}
    refused("AccessDenied", 403, ben.put_object, **named, **BLUE)
    refused("AccessDenied", 403, ben.create_multipart_upload, **named, **BLUE)
    algorithm = {"SSECustomerAlgorithm": "AES256"}
    refused("AccessDenied", 403, ben.put_object, **named, **algorithm, SSECustomerKey=os.urandom(32))
    ben.put_object(**named, **RED)
    refused("AccessDenied", 403, ben.copy_object, **named, **BLUE, CopySource="photos/a")
    upload = ben.create_multipart_upload(**named, **RED)["UploadId"]
    assert ben.upload_part(**named, UploadId=upload, PartNumber=1, Body=b"data")["SSEKMSKeyId"] == "red"
    ben.put_object(**named)


def test_copies(system: System, ann: Any) -> None:
    data = os.urandom(200_000)
    ann.put_object(Bucket="photos", Key="a", Body=data, **RED)
    made = ann.copy_object(Bucket="photos", Key="b", CopySource="photos/a", **BLUE)
    assert (made["SSEKMSKeyId"], number_of(system, "b")) == ("blue", 3)
    assert made["CopyObjectResult"]["ETag"] == ann.head_object(Bucket="photos", Key="b")["ETag"]
    assert ann.get_object(Bucket="photos", Key="b")["Body"].read() == data
    ann.copy_object(Bucket="photos", Key="plain", CopySource="photos/a")
    assert number_of(system, "plain") is None
    same = ann.copy_object(Bucket="photos", Key="a", CopySource="photos/a", MetadataDirective="REPLACE")
    assert (same["ServerSideEncryption"], same["SSEKMSKeyId"]) == ("aws:kms", "red")
    assert ann.get_object(Bucket="photos", Key="a")["Body"].read() == data


def test_a_new_master_key_keeps_them(system: System, gateway: Gateway) -> None:
    new = MasterKeys(["34" * 32, "12" * 32])
    before = ring_of(system).newest_of_kms("red")
    assert gateway.accounts.encrypt_again(new) == 3
    ring = ring_of(system, MasterKeys(["34" * 32]))
    assert (ring.newest_of_kms("red"), ring.kms_key(2), ring.kms_key(1)) == (before, "red", None)
    assert ring.newest_of_kms("green") is None


def test_records_and_names_that_are_not_understood(system: System) -> None:
    ring = ring_of(system)
    for wrong in ("", "a b", "a/b", "-a", "a.", "x" * 65, "ä"):
        with pytest.raises(InvalidInput, match="is not the name of a KMS key"):
            ring.add(os.urandom, wrong)
    assert ring.newest() is ring.newest_of_kms(None) is None
    name = "nos_ec:objects:00001"
    sealed = MASTERS.seal(name, "hsm red " + "12" * 32, os.urandom(12))
    system.metadata.add_access_key(AccessKey(name, ROOT_ACCOUNT, sealed, KeyState.DISABLED, 0, ""))
    with pytest.raises(Corrupt, match="a newer version"):
        ring_of(system).kms_key(1)


def test_a_wrapped_key_without_its_key_service(system: System) -> None:
    name = "nos_ec:objects:00001"
    sealed = MASTERS.seal(name, "service red vault:v1:abcd", os.urandom(12))
    system.metadata.add_access_key(AccessKey(name, ROOT_ACCOUNT, sealed, KeyState.DISABLED, 0, ""))
    ring = ring_of(system)
    assert (ring.kms_key(1), ring.newest(), ring.has_keys()) == ("red", None, True)
    for use in (lambda: ring.key(1), lambda: ring.newest_of_kms("red"), lambda: ring.wrap_again(os.urandom)):
        with pytest.raises(ConfigError, match=r"set s3\.kms_url"):
            use()
    assert ring.add(os.urandom) == 2
    assert ring.newest() == (2, ring.key(2))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("kms_url", "http://10.0.0.1:8200", "pattern"),  # the token would be sent in clear
        ("kms_url", "https://bao:8200/transit?a=b", "pattern"),
        ("kms_url", "https://token@bao:8200", "pattern"),
    ],
)
def test_urls_that_are_refused(setting: str, value: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        S3Settings.model_validate({setting: value})


def test_key_services_that_cannot_be_used(tmp_path: Path) -> None:
    clock = SystemClock()
    assert find_key_service(S3Settings(), clock) is None
    with pytest.raises(ConfigError, match=r"needs s3\.kms_token_file"):
        find_key_service(S3Settings(kms_url="https://bao:8200"), clock)
    token = tmp_path / "token"
    token.touch(mode=0o600)
    settings = S3Settings(kms_url="http://127.0.0.1:1/kms", kms_token_file=token)
    service = find_key_service(settings, clock)
    assert service is not None
    for _ in range(2):  # the second one fails at once
        with pytest.raises(Transient, match="cannot be reached"):
            service.unwrap("red", "vault:v1:abcd")
    with pytest.raises(ConfigError, match=r"s3\.kms_url"):
        find_key_service(settings.model_copy(update={"kms_url": "https://bao:99999"}), clock)
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="every user"):
        find_key_service(settings, clock)
