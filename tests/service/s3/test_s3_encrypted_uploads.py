"""Multipart uploads whose parts the gateway encrypts (SSE-S3 and SSE-KMS)."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.encryption.envelope import ENVELOPE_ATTRIBUTE, PARTS
from nos_ec.core.errors import Encrypted
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import part_key, parts_bucket
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.library.object_store import ObjectStore
from nos_ec.ports.metadata import ObjectRow
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, refused, serving
from tests.service.s3.test_s3_multipart import begun, body_of, completed

PART = 5 << 20
AES = {"ServerSideEncryption": "AES256"}
RED = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "red"}
BODIES = {2: body_of(PART + 17, 2), 3: body_of(100_000, 3), 1: body_of(PART, 1)}
"""The last part is one segment, the others are several."""
WHOLE = BODIES[1] + BODIES[2] + BODIES[3]


def ring_of(system: System) -> KeyRing:
    return KeyRing(system.metadata, MASTERS, system.clock)


@pytest.fixture
def store(system: System) -> Store:
    return system.client.store()


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


def md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def composed_etag(bodies: Mapping[int, bytes]) -> str:
    return f'"{md5(b"".join(md5(bodies[number]) for number in sorted(bodies))).hex()}-{len(bodies)}"'


def uploaded(client: Any, key: str = "k", bodies: Mapping[int, bytes] = BODIES, **options: Any) -> Any:
    """Upload an object in parts with SSE-S3. Returns the answer to the completion."""
    upload_id, parts = begun(client, key, dict(bodies), **(options or AES))
    return completed(client, key, upload_id, parts)


def read(client: Any, key: str = "k", **options: Any) -> bytes:
    found: bytes = client.get_object(Bucket="photos", Key=key, **options)["Body"].read()
    return found


def row_of(store: Store, key: str = "k") -> ObjectRow:
    return store.head(ObjectKey("photos", key))


def part_row(store: Store, number: int, key: str = "k") -> ObjectRow:
    composition = row_of(store, key).composition
    assert composition is not None
    return store.head(part_key("photos", composition.upload_id, number))


def test_life_of_an_upload(ann: Any, store: Store) -> None:
    made = ann.create_multipart_upload(Bucket="photos", Key="k", Metadata={"a": "b"}, **AES)
    assert made["ServerSideEncryption"] == "AES256"
    of = {"Bucket": "photos", "Key": "k", "UploadId": made["UploadId"]}
    parts = []
    for number in sorted(BODIES):
        part = ann.upload_part(**of, PartNumber=number, Body=BODIES[number])
        assert (part["ETag"], part["ServerSideEncryption"]) == (f'"{md5(BODIES[number]).hex()}"', "AES256")
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    listed = ann.list_parts(**of)["Parts"]
    assert [(one["Size"], one["ETag"]) for one in listed] == [
        (len(BODIES[number]), f'"{md5(BODIES[number]).hex()}"') for number in sorted(BODIES)
    ]
    made = completed(ann, "k", of["UploadId"], parts)
    etag = composed_etag(BODIES)
    assert (made["ETag"], made["ServerSideEncryption"]) == (etag, "AES256")
    assert completed(ann, "k", of["UploadId"], parts)["ETag"] == etag, "it may be repeated"

    got = ann.get_object(Bucket="photos", Key="k")
    assert got["Body"].read() == WHOLE
    assert (got["ETag"], got["ServerSideEncryption"], got["Metadata"]) == (etag, "AES256", {"a": "b"})
    head = ann.head_object(Bucket="photos", Key="k", PartNumber=2)
    assert (head["ContentLength"], head["PartsCount"], head["ETag"]) == (PART + 17, 3, etag)
    assert ann.head_object(Bucket="photos", Key="k")["ContentLength"] == len(WHOLE)
    for number, body in BODIES.items():
        assert read(ann, PartNumber=number) == body
    (listed,) = ann.list_objects_v2(Bucket="photos")["Contents"]
    assert (listed["ETag"], listed["Size"]) == (etag, len(WHOLE))
    (listed,) = ann.list_object_versions(Bucket="photos")["Versions"]
    assert (listed["ETag"], listed["Size"]) == (etag, len(WHOLE))
    wanted = ["ETag", "ObjectSize", "ObjectParts"]
    found = ann.get_object_attributes(Bucket="photos", Key="k", ObjectAttributes=wanted)
    assert (found["ETag"], found["ObjectSize"]) == (etag.strip('"'), len(WHOLE))
    assert found["ObjectParts"]["TotalPartsCount"] == 3

    row = row_of(store)
    assert row.envelope is not None
    assert row.envelope.format == PARTS
    salts = set()
    for number, body in BODIES.items():
        part_stored = part_row(store, number)
        assert part_stored.envelope is not None
        salts.add(part_stored.envelope.salt)
        assert part_stored.md5 != md5(body)
        assert body[:16] not in b"".join(store.open_ciphertext(part_stored, 0, part_stored.size))
    assert len(salts) == 3
    assert composed_etag(BODIES)[1:33] not in repr(decode_attributes(row.attributes))


def test_ranges(ann: Any) -> None:
    """They begin and end where segments and parts meet."""
    uploaded(ann)
    for first in (0, 5000, PART - 1, PART, PART + 16_368, 2 * PART + 16, 2 * PART + 17, len(WHOLE) - 1):
        for length in (1, 20_000, PART + 20_000):
            got = ann.get_object(Bucket="photos", Key="k", Range=f"bytes={first}-{first + length - 1}")
            last = min(len(WHOLE), first + length) - 1
            assert got["ContentRange"] == f"bytes {first}-{last}/{len(WHOLE)}"
            assert got["Body"].read() == WHOLE[first : first + length]


def test_a_part_that_is_sent_again_gets_other_keys(ann: Any, store: Store) -> None:
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **AES)["UploadId"]
    of = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1}
    salts = []
    for body in (b"first", b"other"):
        part = ann.upload_part(**of, Body=body)
        envelope = store.head(part_key("photos", bytes.fromhex(upload_id), 1)).envelope  # type: ignore[arg-type]
        assert envelope is not None
        salts.append(envelope.salt)
    assert salts[0] != salts[1]
    completed(ann, "k", upload_id, [{"PartNumber": 1, "ETag": part["ETag"]}])
    assert read(ann) == b"other"


def test_the_bucket_or_the_setting_decides_when_the_upload_begins(system: System, gateway: Gateway, ann: Any) -> None:
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    early, _ = begun(ann, "early", {1: b"part"})
    of_early = {"Bucket": "photos", "Key": "early", "UploadId": early}
    ann.put_bucket_encryption(Bucket="photos", ServerSideEncryptionConfiguration=rules)
    # No plain bytes are stored silently.
    refused("InvalidRequest", 400, ann.upload_part, **of_early, PartNumber=1, Body=b"data")
    ann.put_object(Bucket="photos", Key="source", Body=b"data", **AES)
    refused("InvalidRequest", 400, ann.upload_part_copy, **of_early, PartNumber=1, CopySource="photos/source")
    parts = {"Parts": [{"PartNumber": 1, "ETag": f'"{md5(b"part").hex()}"'}]}
    refused("InvalidRequest", 400, ann.complete_multipart_upload, **of_early, MultipartUpload=parts)
    ann.abort_multipart_upload(**of_early)

    upload_id, listed = begun(ann, "k", {1: b"part"})
    ann.delete_bucket_encryption(Bucket="photos")
    assert completed(ann, "k", upload_id, listed)["ServerSideEncryption"] == "AES256"
    assert read(ann) == b"part"
    with serving(system, SETTINGS.model_copy(update={"encrypt": True})) as other:
        client = other.client("ann")
        assert uploaded(client, "by default", {1: b"part"}, Metadata={"a": "b"})["ServerSideEncryption"] == "AES256"
        assert read(client, "by default") == b"part"


def test_kms(gateway: Gateway, ann: Any, store: Store) -> None:
    made = ann.create_multipart_upload(Bucket="photos", Key="k", ServerSideEncryption="aws:kms")
    assert made["SSEKMSKeyId"] == "blue", "the KMS key that was added last"
    ring_of(gateway.system).add(os.urandom, "green")
    of = {"Bucket": "photos", "Key": "k", "UploadId": made["UploadId"]}
    part = ann.upload_part(**of, PartNumber=1, Body=b"part")
    assert (part["ServerSideEncryption"], part["SSEKMSKeyId"]) == ("aws:kms", "blue")
    assert part["ETag"] != f'"{md5(b"part").hex()}"'
    (listed,) = ann.list_parts(**of)["Parts"]
    assert (listed["ETag"], listed["Size"]) == (part["ETag"], 4)
    made = completed(ann, "k", of["UploadId"], [{"PartNumber": 1, "ETag": part["ETag"]}])
    assert made["SSEKMSKeyId"] == "blue"
    got = ann.get_object(Bucket="photos", Key="k")
    assert (got["Body"].read(), got["ETag"], got["SSEKMSKeyId"]) == (b"part", made["ETag"], "blue")
    (entry,) = ann.list_objects_v2(Bucket="photos")["Contents"]
    assert entry["ETag"] == made["ETag"]
    ann.put_object(Bucket="photos", Key="k", Body=b"new", IfMatch=made["ETag"])
    # The bucket's own KMS key counts when the upload begins.
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "red"}}
    ann.put_bucket_encryption(Bucket="photos", ServerSideEncryptionConfiguration={"Rules": [rule]})
    made = ann.create_multipart_upload(Bucket="photos", Key="k")
    assert made["SSEKMSKeyId"] == "red"


def client_with_headers(gateway: Gateway, headers: Mapping[str, str]) -> Any:
    """A client whose UploadPart has these headers, which boto3 cannot send."""
    client = gateway.client("ann")
    client.meta.events.register(
        "before-sign.s3.UploadPart", lambda request, **_: [request.headers.add_header(*one) for one in headers.items()]
    )
    return client


@pytest.mark.parametrize(
    ("begins", "part", "fits"),
    [
        (AES, {"x-amz-server-side-encryption": "AES256"}, True),
        (RED, {"x-amz-server-side-encryption": "aws:kms"}, True),
        (RED, {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "red"}, True),
        (RED, {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "b"}, False),
        (RED, {"x-amz-server-side-encryption": "AES256"}, False),
        (AES, {"x-amz-server-side-encryption": "aws:kms"}, False),
        ({}, {"x-amz-server-side-encryption": "AES256"}, False),
    ],
)
def test_parts_are_encrypted_as_their_upload(
    gateway: Gateway, ann: Any, begins: dict[str, str], part: dict[str, str], fits: bool
) -> None:
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **begins)["UploadId"]
    client = client_with_headers(gateway, part)
    of = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1, "Body": b"part"}
    if fits:
        client.upload_part(**of)
    else:
        refused("InvalidRequest", 400, client.upload_part, **of)


def test_refused_uploads(system: System) -> None:
    with serving(system) as gateway:  # without keys
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        refused("NotImplemented", 501, ann.create_multipart_upload, Bucket="photos", Key="k", **AES)
        refused("KMS.NotFoundException", 400, ann.create_multipart_upload, Bucket="photos", Key="k", **RED)


@pytest.mark.parametrize(("algorithm", "kind"), [("CRC32", "FULL_OBJECT"), ("CRC32", "COMPOSITE"), ("SHA256", None)])
def test_checksums(ann: Any, store: Store, algorithm: str, kind: str | None) -> None:
    options = {"ChecksumAlgorithm": algorithm} | ({"ChecksumType": kind} if kind else {})
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **options, **AES)["UploadId"]
    of = {"Bucket": "photos", "Key": "k", "UploadId": upload_id}

    def digest(data: bytes) -> bytes:
        return zlib.crc32(data).to_bytes(4, "big") if algorithm == "CRC32" else hashlib.sha256(data).digest()

    parts, field = [], f"Checksum{algorithm}"
    for number in sorted(BODIES):
        made = ann.upload_part(**of, PartNumber=number, Body=BODIES[number], ChecksumAlgorithm=algorithm)
        right = base64.b64encode(digest(BODIES[number])).decode()
        assert made[field] == right
        parts.append({"PartNumber": number, "ETag": made["ETag"], field: right})
        assert right not in repr(store.list_objects(parts_bucket("photos"), "", "", 9))
    assert [one[field] for one in ann.list_parts(**of)["Parts"]] == [one[field] for one in parts]
    wrong = [{**one, field: base64.b64encode(digest(b"?")).decode()} for one in parts]
    refused("InvalidPart", 400, completed, client=ann, key="k", upload_id=upload_id, parts=wrong)
    if kind == "FULL_OBJECT":
        right = base64.b64encode(digest(WHOLE)).decode()
    else:
        of_parts = b"".join(digest(BODIES[number]) for number in sorted(BODIES))
        right = f"{base64.b64encode(digest(of_parts)).decode()}-3"
    assert completed(ann, "k", upload_id, parts)[field] == right
    assert ann.head_object(Bucket="photos", Key="k", ChecksumMode="ENABLED")[field] == right
    assert right.partition("-")[0] not in repr(decode_attributes(row_of(store).attributes))
    head = ann.head_object(Bucket="photos", Key="k", ChecksumMode="ENABLED", PartNumber=2)
    assert head[field] == parts[1][field]
    wanted = ["Checksum", "ObjectParts"]
    found = ann.get_object_attributes(Bucket="photos", Key="k", ObjectAttributes=wanted)
    assert found["Checksum"][field] == right.partition("-")[0]
    if kind != "FULL_OBJECT":
        assert [one[field] for one in found["ObjectParts"]["Parts"]] == [one[field] for one in parts]
    assert read(ann) == WHOLE


def test_sizes_that_clients_send_are_plain(ann: Any) -> None:
    upload_id, parts = begun(ann, "k", BODIES, **AES)
    refused("InvalidRequest", 400, completed, client=ann, key="k", upload_id=upload_id, parts=parts,
            MpuObjectSize=len(WHOLE) + 1)  # fmt: skip
    completed(ann, "k", upload_id, parts, MpuObjectSize=len(WHOLE))
    short = {1: body_of(PART - 1, 1), 2: b"end"}  # its ciphertext has 5 MiB and more
    upload_id, parts = begun(ann, "short", short, **AES)
    error = refused("EntityTooSmall", 400, completed, client=ann, key="short", upload_id=upload_id, parts=parts)
    assert error.response["Error"]["ProposedSize"] == str(PART - 1)


def test_copies(ann: Any, store: Store) -> None:
    uploaded(ann)
    made = ann.copy_object(Bucket="photos", Key="plain", CopySource="photos/k")
    assert made["CopyObjectResult"]["ETag"] == f'"{md5(WHOLE).hex()}"'
    assert store.get(ObjectKey("photos", "plain")) == WHOLE
    ann.copy_object(
        Bucket="photos", Key="one piece", CopySource="photos/k", CopySourceIfMatch=composed_etag(BODIES), **AES
    )
    assert read(ann, "one piece") == WHOLE
    upload_id = ann.create_multipart_upload(Bucket="photos", Key="parts", **AES)["UploadId"]
    of = {"Bucket": "photos", "Key": "parts", "UploadId": upload_id, "CopySource": "photos/k"}
    bodies = {1: WHOLE[9 : PART + 100_000], 2: WHOLE[100:200]}
    parts = []
    for number, bounds in {1: f"bytes=9-{PART + 99_999}", 2: "bytes=100-199"}.items():
        copied = ann.upload_part_copy(**of, PartNumber=number, CopySourceRange=bounds)
        etag = copied["CopyPartResult"]["ETag"]
        assert (etag, copied["ServerSideEncryption"]) == (f'"{md5(bodies[number]).hex()}"', "AES256")
        parts.append({"PartNumber": number, "ETag": etag})
    assert completed(ann, "parts", upload_id, parts)["ETag"] == composed_etag(bodies)
    assert read(ann, "parts") == bodies[1] + bodies[2]
    # A copy onto itself becomes one piece, and stays encrypted.
    changed = {"MetadataDirective": "REPLACE", "Metadata": {"a": "b"}}
    assert (
        ann.copy_object(Bucket="photos", Key="k", CopySource="photos/k", **changed)["ServerSideEncryption"] == "AES256"
    )
    assert read(ann) == WHOLE


def test_conditions(ann: Any) -> None:
    etag = uploaded(ann)["ETag"]
    refused("304", 304, ann.get_object, Bucket="photos", Key="k", IfNoneMatch=etag)
    assert ann.get_object(Bucket="photos", Key="k", IfMatch=etag)["ContentLength"] == len(WHOLE)
    put = {"Bucket": "photos", "Key": "k", "Body": b"other"}
    refused("PreconditionFailed", 412, ann.put_object, **put, IfMatch=etag.replace("-3", "-2"))
    refused("PreconditionFailed", 412, ann.put_object, **put, IfNoneMatch=etag)
    upload_id, parts = begun(ann, "k", {1: b"new"}, **AES)
    refused("PreconditionFailed", 412, completed, client=ann, key="k", upload_id=upload_id, parts=parts,
            IfMatch=f'"{md5(b"?").hex()}"')  # fmt: skip
    new = completed(ann, "k", upload_id, parts, IfMatch=etag)["ETag"]
    ann.delete_object(Bucket="photos", Key="k", IfMatch=new, IfMatchSize=3)
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="k")


def test_ciphertext_is_never_returned(system: System, ann: Any, store: Store) -> None:
    uploaded(ann)
    key = ObjectKey("photos", "k")
    for get in (
        lambda: store.get(key),
        lambda: store.get(key, 5, 5),
        lambda: store.open(key),
        lambda: b"".join(store.open_version(row_of(store))),
        lambda: ObjectStore(system).get("photos/k"),
        lambda: ObjectStore(system).open_read("photos/k").read(1),
    ):
        with pytest.raises(Encrypted, match="over S3"):
            get()
    assert ObjectStore(system).head("photos/k").size == len(WHOLE)


def changed(gateway: Gateway, row: ObjectRow, attributes: Mapping[str, str]) -> None:
    assert gateway.system.metadata.set_attributes(row, encode_attributes(attributes))
    gateway.system.client.store().forget(row.key)


class TestTampering:
    """An attacker who can write rows of the metadata exchanges them, which is noticed, because all have other keys."""

    def test_parts_of_one_upload(self, gateway: Gateway, ann: Any, store: Store) -> None:
        bodies = {1: body_of(PART, 1), 2: body_of(PART, 2)}
        uploaded(ann, bodies=bodies)
        one, other = part_row(store, 1), part_row(store, 2)
        changed(gateway, one, decode_attributes(other.attributes))
        with serving(gateway.system) as fresh:
            client = fresh.client("ann")
            refused("InternalError", 500, client.get_object, Bucket="photos", Key="k", Range="bytes=0-9")
            assert read(client, Range=f"bytes={PART}-{PART + 9}") == bodies[2][:10]

    def test_an_older_part(self, gateway: Gateway, ann: Any, store: Store) -> None:
        """The row of the part gets the envelope, the size and the bytes of a PUT that was replaced before."""
        upload_id = ann.create_multipart_upload(Bucket="photos", Key="k", **AES)["UploadId"]
        of = {"Bucket": "photos", "Key": "k", "UploadId": upload_id, "PartNumber": 1}
        ann.upload_part(**of, Body=b"older")
        older = store.head(part_key("photos", bytes.fromhex(upload_id), 1))  # type: ignore[arg-type]
        part = ann.upload_part(**of, Body=b"newer")
        completed(ann, "k", upload_id, [{"PartNumber": 1, "ETag": part["ETag"]}])
        changed(gateway, part_row(store, 1), decode_attributes(older.attributes))
        with serving(gateway.system) as fresh:
            refused("InternalError", 500, fresh.client("ann").get_object, Bucket="photos", Key="k")

    @pytest.mark.parametrize("of_part", [True, False])
    def test_a_plain_part_or_object(self, gateway: Gateway, ann: Any, store: Store, of_part: bool) -> None:
        uploaded(ann)
        row = part_row(store, 1) if of_part else row_of(store)
        left = {name: text for name, text in decode_attributes(row.attributes).items() if name != ENVELOPE_ATTRIBUTE}
        changed(gateway, row, left)
        with serving(gateway.system) as fresh:
            refused("InternalError", 500, fresh.client("ann").get_object, Bucket="photos", Key="k")

    def test_the_object_of_another_upload(self, gateway: Gateway, ann: Any, store: Store) -> None:
        for key in ("k", "other"):
            uploaded(ann, key)
        row, other = row_of(store), row_of(store, "other")
        changed(gateway, row, decode_attributes(other.attributes))
        with serving(gateway.system) as fresh:
            refused("InternalError", 500, fresh.client("ann").get_object, Bucket="photos", Key="k")

    def test_another_size(self, gateway: Gateway, ann: Any, store: Store) -> None:
        uploaded(ann)
        row = row_of(store)
        assert row.envelope is not None
        text = replace(row.envelope, size=row.envelope.size - 1).encode()
        changed(gateway, row, decode_attributes(row.attributes) | {ENVELOPE_ATTRIBUTE: text})
        with serving(gateway.system) as fresh:
            refused("InternalError", 500, fresh.client("ann").get_object, Bucket="photos", Key="k", Range="bytes=0-9")

    def test_an_upload_without_its_encryption(self, gateway: Gateway, ann: Any) -> None:
        """Parts are all encrypted, or none, or the upload cannot be completed."""
        upload_id, parts = begun(ann, "k", {1: BODIES[1]}, **AES)
        metadata = gateway.system.metadata
        (row,) = metadata.list_uploads("photos", "", None, 9)
        metadata.restore_uploads([replace(row, attributes=b"")])
        plain = ann.upload_part(Bucket="photos", Key="k", UploadId=upload_id, PartNumber=2, Body=b"plain")
        parts.append({"PartNumber": 2, "ETag": plain["ETag"]})
        metadata.restore_uploads([replace(row, revision=2)])
        refused("InternalError", 500, completed, client=ann, key="k", upload_id=upload_id, parts=parts)
        refused("InternalError", 500, completed, client=ann, key="k", upload_id=upload_id, parts=parts[1:])
        refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="k")


def test_an_aborted_upload_is_deleted(gateway: Gateway, ann: Any, store: Store) -> None:
    upload_id, _ = begun(ann, "k", {1: BODIES[1]}, **AES)
    ann.abort_multipart_upload(Bucket="photos", Key="k", UploadId=upload_id)
    begun(ann, "k", {1: BODIES[1]}, **AES)
    assert len(store.list_objects(parts_bucket("photos"), "", "", 9)) == 2
    system = gateway.system
    system.clock = LaterClock(system.settings.s3.abort_uploads_ms + 60_000)
    gc_service(system).run_once()
    assert store.list_objects(parts_bucket("photos"), "", "", 9) == []
    assert system.metadata.uploads_after(None, 9) == []
