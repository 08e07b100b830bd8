"""Objects that the gateway encrypts: as clients see them, as they are stored, and everything that must be refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete

from nos_ec.adapters.sql.tables.schema import ACCESS_KEYS
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.encryption.envelope import ENVELOPE_ATTRIBUTE
from nos_ec.core.errors import ConfigError, Conflict, Encrypted, NotFound
from nos_ec.core.ids import ACCESS_BUCKET, ObjectKey
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.library.object_store import ObjectStore
from nos_ec.ports.metadata import DocumentKind
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, refused, serving

AES = {"ServerSideEncryption": "AES256"}
RULES = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
SIZES = [0, 9, 128 << 10, (128 << 10) + 1, 300_000, 9_000_000]


def add_key(system: System, masters: MasterKeys = MASTERS) -> int:
    return KeyRing(system.metadata, masters, system.clock).add(os.urandom)


@pytest.fixture
def store(system: System) -> Store:
    return system.client.store()


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    add_key(system)
    with serving(system) as found:
        yield found


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    client = gateway.client("ann")
    client.create_bucket(Bucket="photos")
    return client


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def stored(store: Store, name: str) -> bytes:
    row = store.head(ObjectKey("photos", name))
    return b"".join(store.open_ciphertext(row, 0, row.size))


@pytest.mark.parametrize("size", SIZES)
def test_put_and_get(ann: Any, store: Store, size: int) -> None:
    data = os.urandom(size)
    made = ann.put_object(Bucket="photos", Key="a", Body=data, **AES)
    assert (made["ETag"], made["ServerSideEncryption"]) == (etag(data), "AES256")
    got = ann.get_object(Bucket="photos", Key="a")
    assert got["Body"].read() == data
    assert (got["ETag"], got["ServerSideEncryption"], got["ContentLength"]) == (etag(data), "AES256", size)
    head = ann.head_object(Bucket="photos", Key="a")
    assert (head["ETag"], head["ContentLength"]) == (etag(data), size)
    (listed,) = ann.list_objects_v2(Bucket="photos")["Contents"]
    assert (listed["ETag"], listed["Size"]) == (etag(data), size)
    (listed,) = ann.list_object_versions(Bucket="photos")["Versions"]
    assert (listed["ETag"], listed["Size"]) == (etag(data), size)
    got = ann.get_object_attributes(Bucket="photos", Key="a", ObjectAttributes=["ETag", "ObjectSize"])
    assert (got["ETag"], got["ObjectSize"]) == (etag(data).strip('"'), size)
    for first in {0, size // 2, max(0, size - 1)} if size else ():
        got = ann.get_object(Bucket="photos", Key="a", Range=f"bytes={first}-{first + 20_000}")
        assert got["Body"].read() == data[first : first + 20_001]
        assert got["ContentRange"] == f"bytes {first}-{min(size - 1, first + 20_000)}/{size}"
    if size:
        got = ann.get_object(Bucket="photos", Key="a", PartNumber=1)
        assert got["Body"].read() == data
    if size >= 16:
        row = store.head(ObjectKey("photos", "a"))
        assert data[:16] not in stored(store, "a")
        assert hashlib.md5(data).digest() != row.md5
        assert row.size <= size * 1.001 + 16


@pytest.mark.parametrize("value", ["AES256", "aws:kms"])
def test_a_read_that_names_an_encryption_is_refused(gateway: Gateway, ann: Any, value: str) -> None:
    ann.put_object(Bucket="photos", Key="a", Body=b"data", **AES)
    ann.put_object(Bucket="photos", Key="plain", Body=b"data")
    client = gateway.client("root")
    client.meta.events.register(
        "before-sign.s3", lambda request, **_: request.headers.add_header("x-amz-server-side-encryption", value)
    )
    for key in ("a", "plain"):
        refused("InvalidArgument", 400, client.get_object, Bucket="photos", Key=key)
        refused("400", 400, client.head_object, Bucket="photos", Key=key)


def test_nothing_is_stored_in_clear(ann: Any, store: Store) -> None:
    data = b"a secret that must not be stored"
    ann.put_object(Bucket="photos", Key="a", Body=data, ChecksumAlgorithm="SHA256", **AES)
    row = store.head(ObjectKey("photos", "a"))
    text = repr(decode_attributes(row.attributes))
    assert base64.b64encode(hashlib.sha256(data).digest()).decode() not in text
    assert hashlib.md5(data).hexdigest() not in text
    assert data not in stored(store, "a")


@pytest.mark.parametrize("size", [100, 9_000_000])
def test_checksums(ann: Any, size: int) -> None:
    data = os.urandom(size)
    right = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    made = ann.put_object(Bucket="photos", Key="a", Body=data, ChecksumCRC32=right, **AES)
    assert made["ChecksumCRC32"] == right
    assert ann.head_object(Bucket="photos", Key="a", ChecksumMode="ENABLED")["ChecksumCRC32"] == right
    got = ann.get_object_attributes(Bucket="photos", Key="a", ObjectAttributes=["Checksum"])
    assert got["Checksum"]["ChecksumCRC32"] == right
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    ann.put_object_tagging(Bucket="photos", Key="a", Tagging=tags)  # which writes the attributes again
    assert ann.head_object(Bucket="photos", Key="a", ChecksumMode="ENABLED")["ChecksumCRC32"] == right
    assert ann.get_object(Bucket="photos", Key="a")["Body"].read() == data
    ann.copy_object(Bucket="photos", Key="plain", CopySource="photos/a")
    assert ann.head_object(Bucket="photos", Key="plain", ChecksumMode="ENABLED")["ChecksumCRC32"] == right


def test_a_computed_checksum_is_that_of_the_plain_bytes(gateway: Gateway, ann: Any) -> None:
    client = gateway.client("ann", request_checksum_calculation="when_required")
    client.put_object(Bucket="photos", Key="a", Body=b"123456789", **AES)
    for read in (client.get_object, client.head_object):
        assert read(Bucket="photos", Key="a", ChecksumMode="ENABLED")["ChecksumCRC64NVME"] == "rosUhgp5mIg="
    got = client.get_object_attributes(Bucket="photos", Key="a", ObjectAttributes=["Checksum"])
    assert got["Checksum"]["ChecksumCRC64NVME"] == "rosUhgp5mIg="


def test_the_encryption_of_a_bucket(ann: Any, store: Store) -> None:
    refused("ServerSideEncryptionConfigurationNotFoundError", 404, ann.get_bucket_encryption, Bucket="photos")
    ann.put_bucket_encryption(Bucket="photos", ServerSideEncryptionConfiguration=RULES)
    found = ann.get_bucket_encryption(Bucket="photos")["ServerSideEncryptionConfiguration"]
    assert found["Rules"][0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert ann.put_object(Bucket="photos", Key="a", Body=b"data")["ServerSideEncryption"] == "AES256"
    assert store.head(ObjectKey("photos", "a")).envelope is not None
    ann.delete_bucket_encryption(Bucket="photos")
    assert "ServerSideEncryption" not in ann.put_object(Bucket="photos", Key="b", Body=b"data")
    assert ann.get_object(Bucket="photos", Key="a")["Body"].read() == b"data"
    refused("ServerSideEncryptionConfigurationNotFoundError", 404, ann.get_bucket_encryption, Bucket="photos")


def test_only_the_owner_sets_it(gateway: Gateway, ann: Any) -> None:
    ben = gateway.client("ben")
    refused("AccessDenied", 403, ben.get_bucket_encryption, Bucket="photos")
    refused("AccessDenied", 403, ben.put_bucket_encryption, Bucket="photos", ServerSideEncryptionConfiguration=RULES)
    refused("AccessDenied", 403, ben.delete_bucket_encryption, Bucket="photos")


def test_a_configuration_that_cannot_be_read_refuses_puts(gateway: Gateway, ann: Any) -> None:
    metadata = gateway.system.metadata
    assert metadata.set_bucket_document("photos", DocumentKind.ENCRYPTION, b"\xff", 5)
    with serving(gateway.system) as other:
        client = other.client("root")
        refused("InternalError", 500, client.put_object, Bucket="photos", Key="a", Body=b"data")
        client.put_bucket_encryption(Bucket="photos", ServerSideEncryptionConfiguration=RULES)
        client.put_object(Bucket="photos", Key="a", Body=b"data")


def test_encryption_by_default(system: System, store: Store) -> None:
    add_key(system)
    with serving(system, SETTINGS.model_copy(update={"encrypt": True})) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        assert ann.put_object(Bucket="photos", Key="a", Body=b"data")["ServerSideEncryption"] == "AES256"
        assert store.head(ObjectKey("photos", "a")).envelope is not None
        found = ann.get_bucket_encryption(Bucket="photos")["ServerSideEncryptionConfiguration"]
        assert found["Rules"][0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}


def test_without_a_key_nothing_is_encrypted(system: System) -> None:
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        refused("NotImplemented", 501, ann.put_object, Bucket="photos", Key="a", Body=b"data", **AES)
        configuration = {"ServerSideEncryptionConfiguration": RULES}
        refused("NotImplemented", 501, ann.put_bucket_encryption, Bucket="photos", **configuration)
        refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="a")


@pytest.mark.parametrize(
    ("code", "status", "headers"),
    [
        ("NotImplemented", 501, {"ServerSideEncryption": "aws:kms"}),  # without a KMS key
        ("NotImplemented", 501, {"ServerSideEncryption": "aws:kms:dsse"}),
        ("KMS.NotFoundException", 400, {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "a"}),
        ("NotImplemented", 501, {"ServerSideEncryption": "aws:kms", "SSEKMSEncryptionContext": "e30="}),
        ("InvalidArgument", 400, {"ServerSideEncryption": "AES256", "SSEKMSKeyId": "a"}),
        ("InvalidArgument", 400, {"SSEKMSKeyId": "a"}),
        ("InvalidArgument", 400, {"ServerSideEncryption": "rot13"}),
    ],
)
def test_refused_kinds(ann: Any, code: str, status: int, headers: dict[str, str]) -> None:
    refused(code, status, ann.put_object, Bucket="photos", Key="a", Body=b"data", **headers)


def test_the_refusal_of_an_encryption_context_says_why(ann: Any) -> None:
    context = {"ServerSideEncryption": "aws:kms", "SSEKMSEncryptionContext": "e30="}
    for call, more in (
        (ann.put_object, {"Body": b"data"}),
        (ann.copy_object, {"CopySource": "photos/a"}),
        (ann.create_multipart_upload, {}),
    ):
        error = refused("NotImplemented", 501, call, Bucket="photos", Key="a", **context, **more)
        assert "neither check nor log an encryption context" in str(error)


@pytest.mark.parametrize(
    ("code", "status", "rules"),
    [
        ("NotImplemented", 501, [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]),
        ("MalformedXML", 400, [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "rot13"}}]),
        ("MalformedXML", 400, [{"BucketKeyEnabled": True}]),
        ("MalformedXML", 400, []),
        ("MalformedXML", 400, [*RULES["Rules"], *RULES["Rules"]]),
    ],
)
def test_refused_configurations(ann: Any, code: str, status: int, rules: list[Any]) -> None:
    configuration = {"ServerSideEncryptionConfiguration": {"Rules": rules}}
    refused(code, status, ann.put_bucket_encryption, Bucket="photos", **configuration)


def test_copies(ann: Any, store: Store) -> None:
    data = os.urandom(200_000)
    ann.put_object(Bucket="photos", Key="a", Body=data, **AES)
    made = ann.copy_object(Bucket="photos", Key="plain", CopySource="photos/a")
    assert made["CopyObjectResult"]["ETag"] == etag(data)
    assert store.get(ObjectKey("photos", "plain")) == data
    made = ann.copy_object(Bucket="photos", Key="b", CopySource="photos/plain", **AES)
    assert (made["CopyObjectResult"]["ETag"], made["ServerSideEncryption"]) == (etag(data), "AES256")
    ann.copy_object(Bucket="photos", Key="c", CopySource="photos/b", **AES)
    assert stored(store, "c") != stored(store, "b")
    for name in "abc":
        assert ann.get_object(Bucket="photos", Key=name)["Body"].read() == data
    condition = {"CopySourceIfMatch": etag(data)}
    ann.copy_object(Bucket="photos", Key="d", CopySource="photos/b", **condition)
    refused("InvalidRequest", 400, ann.copy_object, Bucket="photos", Key="plain", CopySource="photos/plain")
    ann.copy_object(Bucket="photos", Key="plain", CopySource="photos/plain", **AES)
    assert store.head(ObjectKey("photos", "plain")).envelope is not None
    assert ann.get_object(Bucket="photos", Key="plain")["Body"].read() == data


@pytest.mark.parametrize("size", [10, 9_000_000])
def test_conditions(ann: Any, size: int) -> None:
    data = os.urandom(size)
    ann.put_object(Bucket="photos", Key="a", Body=data, **AES)
    other = {"Bucket": "photos", "Key": "a", "Body": b"other"}
    refused("PreconditionFailed", 412, ann.put_object, **other, IfMatch=etag(b"?"))
    refused("PreconditionFailed", 412, ann.put_object, **other, IfNoneMatch=etag(data))
    refused("304", 304, ann.get_object, Bucket="photos", Key="a", IfNoneMatch=etag(data))
    assert ann.get_object(Bucket="photos", Key="a", IfMatch=etag(data))["Body"].read() == data
    refused("PreconditionFailed", 412, ann.delete_object, Bucket="photos", Key="a", IfMatch=etag(b"?"))
    ann.put_object(**other, IfMatch=etag(data), **AES)
    ann.delete_object(Bucket="photos", Key="a", IfMatch=etag(b"other"), IfMatchSize=5)
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="a")
    ann.put_object(Bucket="photos", Key="a", Body=data, **AES)
    wanted = {"Objects": [{"Key": "a", "ETag": etag(data), "Size": size}]}
    assert [one["Key"] for one in ann.delete_objects(Bucket="photos", Delete=wanted)["Deleted"]] == ["a"]


def test_versions(ann: Any) -> None:
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    versions = {}
    for size in (10, 9_000_000):
        data = os.urandom(size)
        versions[ann.put_object(Bucket="photos", Key="a", Body=data, **AES)["VersionId"]] = data
    for version, data in versions.items():
        got = ann.get_object(Bucket="photos", Key="a", VersionId=version)
        assert (got["Body"].read(), got["ETag"]) == (data, etag(data))
    listed = ann.list_object_versions(Bucket="photos")["Versions"]
    assert {one["VersionId"]: (one["ETag"], one["Size"]) for one in listed} == {
        version: (etag(data), len(data)) for version, data in versions.items()
    }


@pytest.mark.parametrize("size", [10, 9_000_000])
def test_ciphertext_is_never_returned(system: System, ann: Any, store: Store, size: int) -> None:
    ann.put_object(Bucket="photos", Key="a", Body=os.urandom(size), **AES)
    key = ObjectKey("photos", "a")
    row = store.head(key)
    for read in (
        lambda: store.get(key),
        lambda: store.get(key, 1, 2),
        lambda: store.open(key),
        lambda: store.open_version(row),
        lambda: store.resume_version(row, 1),
        lambda: ObjectStore(system).get("photos/a"),
        lambda: ObjectStore(system).open_read("photos/a").read(1),
    ):
        with pytest.raises(Encrypted, match="over S3"):
            read()
    assert ObjectStore(system).head("photos/a").size == size


def test_rows_that_were_exchanged_are_noticed(gateway: Gateway, ann: Any, store: Store) -> None:
    for name in "ab":
        ann.put_object(Bucket="photos", Key=name, Body=os.urandom(100), **AES)
    a, b = (store.head(ObjectKey("photos", name)) for name in "ab")
    assert gateway.system.metadata.set_attributes(a, b.attributes)
    refused("InternalError", 500, ann.get_object, Bucket="photos", Key="a")
    assert ann.get_object(Bucket="photos", Key="b")["ContentLength"] == 100


def test_keys(gateway: Gateway, ann: Any) -> None:
    system = gateway.system
    ann.put_object(Bucket="photos", Key="old", Body=b"old", **AES)
    assert add_key(system) == 2
    with serving(system) as other:
        client = other.client("ann")
        client.put_object(Bucket="photos", Key="new", Body=b"new", **AES)
        assert client.get_object(Bucket="photos", Key="old")["Body"].read() == b"old"
        assert ann.get_object(Bucket="photos", Key="new")["Body"].read() == b"new"  # its key was not looked up yet
    envelopes = [gateway.system.client.store().head(ObjectKey("photos", name)).envelope for name in ("old", "new")]
    assert [envelope and envelope.number for envelope in envelopes] == [1, 2]
    new_masters = MasterKeys(["34" * 32, "12" * 32])
    accounts = gateway.accounts
    assert [key.account for key in accounts.keys(10)] == ["ann", "ann"]
    for name in ("nos_ec:objects:00001", "nos_ec:objects:00002"):
        for change in (accounts.remove_key, lambda name: accounts.rotate_key(MASTERS, name)):
            with pytest.raises(NotFound):
                change(name)
        with pytest.raises(NotFound):
            accounts.set_key_state(name, system.metadata.access_keys("", 1)[0].state)
    assert accounts.encrypt_again(new_masters) == 4
    ring = KeyRing(system.metadata, MasterKeys(["34" * 32]), system.clock)
    newest = ring.newest()
    assert newest is not None
    assert newest[0] == 2
    assert ring.key(1) != newest[1]


def test_a_lost_master_key(gateway: Gateway, ann: Any, store: Store) -> None:
    ann.put_object(Bucket="photos", Key="a", Body=b"data", **AES)
    ann.put_object(Bucket="photos", Key="b", Body=b"plain")
    wrong = KeyRing(gateway.system.metadata, MasterKeys(["56" * 32]), gateway.system.clock)
    with pytest.raises(Exception, match="another master key"):
        wrong.newest()
    with pytest.raises(Exception, match="another master key"):
        wrong.key(1)
    with pytest.raises(ConfigError, match="another master key"):
        wrong.require_all()
    with pytest.raises(ConfigError, match="key 1 cannot be opened"):
        wrong.add(os.urandom)
    assert wrong.add(os.urandom, despite_unreadable=True) == 2
    newest = wrong.newest()
    assert newest is not None
    assert newest[0] == 2
    with pytest.raises(Exception, match="key 7 of the store is missing"):
        wrong.key(7)


def test_a_damaged_envelope_does_not_hide_other_objects(gateway: Gateway, ann: Any, store: Store) -> None:
    ann.put_object(Bucket="photos", Key="a", Body=os.urandom(200_000), **AES)
    ann.put_object(Bucket="photos", Key="b", Body=b"plain")
    row = store.head(ObjectKey("photos", "a"))
    envelope = row.envelope
    assert envelope is not None
    damaged = replace(envelope, check=bytes(16)).encode()
    assert gateway.system.metadata.set_attributes(
        row, row.attributes.replace(envelope.encode().encode(), damaged.encode())
    )
    assert [one["Key"] for one in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["a", "b"]
    row = store.head(ObjectKey("photos", "a"))
    cut = encode_attributes({**decode_attributes(row.attributes), ENVELOPE_ATTRIBUTE: "?"})
    assert gateway.system.metadata.set_attributes(row, cut)
    assert [one["Size"] for one in ann.list_objects_v2(Bucket="photos")["Contents"]] == [row.size, 5]
    assert [one["Size"] for one in ann.list_object_versions(Bucket="photos")["Versions"]] == [row.size, 5]
    refused("InternalError", 500, ann.get_object, Bucket="photos", Key="a")


@pytest.mark.parametrize("lost", [1, 2])
def test_the_number_of_a_lost_key_is_not_used_again(system: System, store: Store, lost: int) -> None:
    """The database was restored from a backup that is older than the key, but the store has a record of it."""
    assert [add_key(system) for _ in range(2)] == [1, 2]
    name = f"nos_ec:objects:{lost:05}"
    record = store.get(ObjectKey(ACCESS_BUCKET, f"key/{name}"))
    with system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(delete(ACCESS_KEYS).where(ACCESS_KEYS.c.access_key == name))
    with pytest.raises(ConfigError, match=f"lost key {lost}.*rebuild the metadata, or restore the key"):
        add_key(system)
    assert KeyRing(system.metadata, MASTERS, system.clock).add(os.urandom, despite_unreadable=True) == 3
    assert store.get(ObjectKey(ACCESS_BUCKET, f"key/{name}")) == record


def test_conditions_on_plain_objects_need_no_key(system: System) -> None:
    add_key(system, MasterKeys(["56" * 32]))
    with serving(system) as gateway:
        client = gateway.client("ann")
        client.create_bucket(Bucket="photos")
        client.put_object(Bucket="photos", Key="a", Body=b"one")
        client.put_object(Bucket="photos", Key="a", Body=b"two", IfMatch=etag(b"one"))
        refused("PreconditionFailed", 412, client.delete_object, Bucket="photos", Key="a", IfMatch=etag(b"one"))
        client.delete_object(Bucket="photos", Key="a", IfMatch=etag(b"two"))
        refused("InternalError", 500, client.put_object, Bucket="photos", Key="a", Body=b"one", **AES)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("old", "new"), [(AES, AES), ({}, AES), (AES, {})])
def test_a_condition_is_on_the_version_that_a_delete_names(
    ann: Any, old: dict[str, str], new: dict[str, str], many: bool
) -> None:
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    kept = {"Bucket": "photos", "Key": "a", "VersionId": ""}
    for body in (b"same", b"other"):  # the current version has the same bytes as the old one, or others
        version = ann.put_object(Bucket="photos", Key="a", Body=b"same", **old)["VersionId"]
        ann.put_object(Bucket="photos", Key="a", Body=body, **new)
        kept["VersionId"] = version
        refused("PreconditionFailed", 412, ann.delete_object, **kept, IfMatch=etag(b"?"))
        if many:
            wanted = {"Objects": [{"Key": "a", "VersionId": version, "ETag": etag(b"same")}]}
            assert [one["VersionId"] for one in ann.delete_objects(Bucket="photos", Delete=wanted)["Deleted"]] == [
                version
            ]
        else:
            ann.delete_object(**kept, IfMatch=etag(b"same"))
        refused("NoSuchVersion", 404, ann.get_object, **kept)


def test_a_plain_version_that_an_encrypted_one_replaced_is_gone(ann: Any, store: Store) -> None:
    ann.put_object(Bucket="photos", Key="a", Body=b"plain")
    row = store.head(ObjectKey("photos", "a"))
    ann.put_object(Bucket="photos", Key="a", Body=b"encrypted", **AES)
    with pytest.raises(Conflict):
        store.open_version(replace(row, crc32c=row.crc32c ^ 1))  # as if its bytes had been overwritten


def test_a_copy_onto_itself_stays_encrypted(ann: Any, store: Store) -> None:
    ann.put_object(Bucket="photos", Key="a", Body=b"data", **AES)
    changed = {"MetadataDirective": "REPLACE", "Metadata": {"a": "b"}}
    made = ann.copy_object(Bucket="photos", Key="a", CopySource="photos/a", **changed)
    assert made["ServerSideEncryption"] == "AES256"
    assert store.head(ObjectKey("photos", "a")).envelope is not None
    got = ann.get_object(Bucket="photos", Key="a")
    assert (got["Body"].read(), got["Metadata"]) == (b"data", {"a": "b"})


def test_a_policy_that_requires_encryption(gateway: Gateway, ann: Any) -> None:
    unless = {"StringNotEquals": {"s3:x-amz-server-side-encryption": "AES256"}}
    one = {"Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::photos/*"}
    statements = [{"Effect": "Allow", **one}, {"Effect": "Deny", "Condition": unless, **one}]
    ann.put_bucket_policy(Bucket="photos", Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    ben = gateway.client("ben")
    refused("AccessDenied", 403, ben.put_object, Bucket="photos", Key="a", Body=b"data")
    ben.put_object(Bucket="photos", Key="a", Body=b"data", **AES)
