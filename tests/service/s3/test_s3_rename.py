"""RenameObject over the gateway: what moves, what is refused, and that no one sees the object twice or not at all."""

from __future__ import annotations

import base64
import os
import signal
import zlib
from collections.abc import Callable
from io import BytesIO
from threading import Event, Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import Conflict, Locked
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import parts_bucket
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import MultipartUploads
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.ports.metadata import ObjectRow, PutRequest, RenameOf, UploadRow, UploadState
from nos_ec.settings.section import DAY
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.clock import SetClock
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused, serving
from tests.service.s3.test_s3_customer_keys import raw_headers
from tests.service.s3.test_s3_encryption import add_key
from tests.service.s3.test_s3_notifications import SETTINGS, configuration, configure, named, sent

RENAME_POINTS = ["metadata.renamed.before_commit"]
B = {"Bucket": "photos"}
SIZES = [0, 5, CHUNK + 1, 5 * STRIPE + 5]
PROGRAM = """
import os
import sys
from io import BytesIO
from pathlib import Path
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata import PutRequest
from nos_ec.settings import load_settings
with open_system(load_settings(Path(sys.argv[1]), os.environ)) as system:
    store = system.client.store()
    row = store.head(ObjectKey("b", "old"))
    data = store.get(row.key)
    versioning = Versioning.ENABLED if sys.argv[2] == "versions" else None
    request = PutRequest(ObjectKey("b", "new"), versioning=versioning)
    store.rename(row, request, lambda sent: store.put_request(sent, BytesIO(data)))
"""
PROGRAM_OF_PARTS = """
import os
import sys
from pathlib import Path
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings
from tests.service.s3.test_s3_rename import store_parts_again
with open_system(load_settings(Path(sys.argv[1]), os.environ)) as system:
    row = system.client.store().head(ObjectKey("photos", "old"))
    store_parts_again(system, row, ObjectKey("photos", "new"), lambda: None)
"""


def rename(client: Any, new: str, old: str, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.rename_object(**B, Key=new, RenameSource=old, **options)
    return answer


def keys(client: Any) -> list[str]:
    return [one["Key"] for one in client.list_objects_v2(**B).get("Contents", [])]


def body(client: Any, key: str) -> bytes:
    data: bytes = client.get_object(**B, Key=key)["Body"].read()
    return data


# --- what moves -----------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES)
def test_everything_moves(bench: Bench, ann: Any, size: int) -> None:
    data, about = bench.data(size), {"Metadata": {"a": "b"}, "ContentType": "text/x", "Tagging": "t=1"}
    put = ann.put_object(**B, Key="old", Body=data, ACL="public-read", StorageClass="STANDARD_IA", **about)
    before = ann.head_object(**B, Key="old", ChecksumMode="ENABLED")
    rename(ann, "new/name", "old")
    assert keys(ann) == ["new/name"]
    assert body(ann, "new/name") == data
    after = ann.head_object(**B, Key="new/name", ChecksumMode="ENABLED")
    same = ("ETag", "ContentLength", "ContentType", "Metadata", "StorageClass", "ChecksumCRC32")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["ETag"] == put["ETag"]
    assert ann.get_object_tagging(**B, Key="new/name")["TagSet"] == [{"Key": "t", "Value": "1"}]
    assert len(ann.get_object_acl(**B, Key="new/name")["Grants"]) == 2
    refused("NoSuchKey", 404, rename, client=ann, new="again", old="old")


@pytest.mark.parametrize("source", ["old%20name%2B", "/photos/old%20name%2B", "/photos/old name+"])
def test_the_source_is_a_key_or_a_path(ann: Any, source: str) -> None:
    ann.put_object(**B, Key="old name+", Body=b"x")
    rename(ann, "new", source)
    assert keys(ann) == ["new"]


def test_an_object_at_the_destination_is_replaced(bench: Bench, system: System, ann: Any) -> None:
    ann.put_object(**B, Key="old", Body=b"one")
    ann.put_object(**B, Key="new", Body=bench.data(5 * STRIPE))
    rename(ann, "new", "old")
    assert (keys(ann), body(ann, "new")) == (["new"], b"one")
    bench.settle(system)
    assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("size", [5, 5 * STRIPE + 5])
def test_versions_stay_under_the_old_key(bench: Bench, ann: Any, size: int) -> None:
    ann.put_bucket_versioning(**B, VersioningConfiguration={"Status": "Enabled"})
    data = bench.data(size)
    first = ann.put_object(**B, Key="old", Body=data)["VersionId"]
    kept = ann.put_object(**B, Key="new", Body=b"kept")["VersionId"]
    made = rename(ann, "new", "old")["ResponseMetadata"]["HTTPHeaders"]["x-amz-version-id"]
    listed = ann.list_object_versions(**B)
    assert [(one["Key"], one["VersionId"], one["IsLatest"]) for one in listed["Versions"]] == [
        ("new", made, True),
        ("new", kept, False),
        ("old", first, False),
    ]
    assert [(one["Key"], one["IsLatest"]) for one in listed["DeleteMarkers"]] == [("old", True)]
    assert body(ann, "new") == data
    assert ann.get_object(**B, Key="old", VersionId=first)["Body"].read() == data


def test_a_suspended_bucket(ann: Any) -> None:
    for status in ("Enabled", "Suspended"):
        ann.put_bucket_versioning(**B, VersioningConfiguration={"Status": status})
        ann.put_object(**B, Key="old", Body=status.encode())
    rename(ann, "new", "old")
    listed = ann.list_object_versions(**B)
    assert [(one["Key"], one["VersionId"] == "null", one["IsLatest"]) for one in listed["Versions"]] == [
        ("new", True, True),
        ("old", False, False),
    ]
    assert body(ann, "new") == b"Suspended"


@pytest.mark.parametrize("size", [5, 5 * STRIPE + 5])
def test_an_encrypted_object_is_encrypted_for_its_new_key(bench: Bench, system: System, size: int) -> None:
    add_key(system)
    with serving(system) as gateway:
        ann, data = gateway.client("ann"), bench.data(size)
        ann.create_bucket(**B)
        put = ann.put_object(**B, Key="old", Body=data, ServerSideEncryption="AES256")
        rename(ann, "new", "old")
        found = ann.get_object(**B, Key="new", ChecksumMode="ENABLED")
        assert (found["Body"].read(), found["ETag"], found["ServerSideEncryption"]) == (data, put["ETag"], "AES256")
        assert found["ChecksumCRC32"] == put["ChecksumCRC32"]


@pytest.mark.parametrize("source", [{}, {"ServerSideEncryption": "AES256"}])
@pytest.mark.parametrize(
    "sent",
    [
        {"x-amz-server-side-encryption": "aws:kms"},
        {"x-amz-server-side-encryption": "AES256"},
        {"x-amz-server-side-encryption-aws-kms-key-id": "red"},
        {"x-amz-server-side-encryption-customer-algorithm": "AES256"},
        {"x-amz-copy-source-server-side-encryption-customer-algorithm": "AES256"},
    ],
)
def test_a_rename_that_asks_for_another_encryption_is_refused(
    system: System, source: dict[str, str], sent: dict[str, str]
) -> None:
    """It would keep the encryption of the object, although a policy was content with the header."""
    add_key(system)
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        ann.put_object(**B, Key="old", Body=b"x", **source)
        client = raw_headers(gateway.client("root"), sent)
        refused("InvalidRequest", 400, rename, client=client, new="new", old="old")
        assert keys(ann) == ["old"]


@pytest.mark.parametrize("size", [5, 5 * STRIPE + 5])
def test_a_plain_object_gets_the_encryption_of_its_bucket(bench: Bench, system: System, size: int) -> None:
    add_key(system)
    with serving(system) as gateway:
        ann, data = gateway.client("ann"), bench.data(size)
        ann.create_bucket(**B)
        put = ann.put_object(**B, Key="old", Body=data)
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        ann.put_bucket_encryption(**B, ServerSideEncryptionConfiguration={"Rules": [rule]})
        rename(ann, "new", "old")
        found = ann.get_object(**B, Key="new")
        assert (found["Body"].read(), found["ETag"], found["ServerSideEncryption"]) == (data, put["ETag"], "AES256")


# --- conditions and repetitions -------------------------------------------------------------------
def test_conditions(ann: Any) -> None:
    etag = ann.put_object(**B, Key="old", Body=b"x")["ETag"]
    other = ann.put_object(**B, Key="new", Body=b"y")["ETag"]
    for failing in (
        {"SourceIfMatch": other},
        {"SourceIfNoneMatch": etag},
        {"SourceIfNoneMatch": "*"},
        {"SourceIfModifiedSince": "2099-01-01"},
        {"SourceIfUnmodifiedSince": "2000-01-01"},
        {"DestinationIfMatch": etag},
        {"DestinationIfNoneMatch": "*"},
        {"DestinationIfNoneMatch": other},
    ):
        refused("PreconditionFailed", 412, rename, client=ann, new="new", old="old", **failing)
    for dated in ("DestinationIfModifiedSince", "DestinationIfUnmodifiedSince"):
        refused("NotImplemented", 501, rename, client=ann, new="new", old="old", **{dated: "2000-01-01"})
    refused("NoSuchKey", 404, rename, client=ann, new="none", old="old", DestinationIfMatch=etag)
    assert (keys(ann), body(ann, "old"), body(ann, "new")) == (["new", "old"], b"x", b"y")
    rename(ann, "new", "old", SourceIfMatch=etag, DestinationIfMatch=other, SourceIfModifiedSince="2000-01-01")
    assert (keys(ann), body(ann, "new")) == (["new"], b"x")


def test_a_repetition_with_the_same_token_changes_nothing(ann: Any) -> None:
    ann.put_object(**B, Key="old", Body=b"x")
    for _ in range(2):
        rename(ann, "new", "old", ClientToken="t-1")
    ann.put_object(**B, Key="old", Body=b"later")
    rename(ann, "new", "old", ClientToken="t-1")
    assert (keys(ann), body(ann, "new")) == (["new", "old"], b"x")
    refused("IdempotencyParameterMismatch", 400, rename, client=ann, new="new", old="other", ClientToken="t-1")
    refused("InvalidArgument", 400, rename, client=ann, new="new", old="old", ClientToken="t" * 65)
    rename(ann, "new", "old", ClientToken="t-2")
    assert (keys(ann), body(ann, "new")) == (["new"], b"later")


@pytest.mark.parametrize("source", ["", "%ff", "a%00b", "/photos/"])
def test_bad_sources(ann: Any, source: str) -> None:
    refused("InvalidArgument", 400, rename, client=ann, new="new", old=source)


def test_an_object_is_not_renamed_to_itself(ann: Any) -> None:
    ann.put_object(**B, Key="old", Body=b"x")
    refused("InvalidRequest", 400, rename, client=ann, new="old", old="old")
    assert keys(ann) == ["old"]


# --- objects that were uploaded in parts ----------------------------------------------------------
BODIES = {2: bytes(range(256)) * (5 << 12), 5: b"the last part"}
"""The bodies of the parts, by number."""


def uploaded(client: Any, key: str, **options: Any) -> dict[str, Any]:
    """The answer to the completion of an upload of BODIES."""
    began = client.create_multipart_upload(**B, Key=key, ChecksumAlgorithm="CRC32", **options)
    upload = {**B, "Key": key, "UploadId": began["UploadId"]}
    made = {n: client.upload_part(**upload, PartNumber=n, Body=data) for n, data in BODIES.items()}
    parts = [{"PartNumber": n, "ETag": one["ETag"], "ChecksumCRC32": one["ChecksumCRC32"]} for n, one in made.items()]
    answer: dict[str, Any] = client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    return answer


@pytest.mark.parametrize("options", [{}, {"ServerSideEncryption": "AES256"}], ids=["plain", "encrypted"])
def test_an_object_in_parts_stays_one(bench: Bench, system: System, options: dict[str, str]) -> None:
    add_key(system)
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        made = uploaded(ann, "old", Metadata={"a": "b"}, Tagging="t=1", **options)
        rename(ann, "new", "old", ClientToken="t-1")
        rename(ann, "new", "old", ClientToken="t-1")
        assert keys(ann) == ["new"]
        found = ann.get_object(**B, Key="new", ChecksumMode="ENABLED")
        assert found["Body"].read() == b"".join(BODIES.values())
        assert (found["ETag"], found["ChecksumCRC32"]) == (made["ETag"], made["ChecksumCRC32"])
        assert (found["Metadata"], found["TagCount"]) == ({"a": "b"}, 1)
        assert found.get("ServerSideEncryption") == options.get("ServerSideEncryption")
        last = ann.get_object(**B, Key="new", PartNumber=5, ChecksumMode="ENABLED")
        assert (last["Body"].read(), last["PartsCount"]) == (BODIES[5], 2)
        assert last["ChecksumCRC32"] == base64.b64encode(zlib.crc32(BODIES[5]).to_bytes(4, "big")).decode()
        assert "Uploads" not in ann.list_multipart_uploads(**B)
    bench.settle(system)
    assert check(system, read_share=1.0) == []
    assert len(left_parts(system)) == 4
    later = SetClock(system.clock.now_ms() + PARTS_GRACE_MS + 60_000)
    assert [one.key.name for one in system.metadata.doomed_uploads(later.now_ms(), 9)] == ["old"]


def left_parts(system: System) -> list[str]:
    return system.client.store().list_names(parts_bucket("photos"), "", "", 99)


def test_a_rename_of_parts_that_is_refused_leaves_no_upload(ann: Any, system: System) -> None:
    etag = uploaded(ann, "old")["ETag"]
    ann.put_object(**B, Key="new", Body=b"kept")
    refused("PreconditionFailed", 412, rename, client=ann, new="new", old="old", DestinationIfNoneMatch="*")
    assert "Uploads" not in ann.list_multipart_uploads(**B)
    assert (keys(ann), body(ann, "new"), ann.head_object(**B, Key="old")["ETag"]) == (["new", "old"], b"kept", etag)


def test_versions_in_parts_stay_under_the_old_key(ann: Any, system: System) -> None:
    ann.put_bucket_versioning(**B, VersioningConfiguration={"Status": "Enabled"})
    first = uploaded(ann, "old")["VersionId"]
    rename(ann, "new", "old")
    whole = b"".join(BODIES.values())
    assert (keys(ann), body(ann, "new")) == (["new"], whole)
    assert ann.get_object(**B, Key="old", VersionId=first)["Body"].read() == whole
    assert system.metadata.doomed_uploads(system.clock.now_ms() + 2 * PARTS_GRACE_MS, 9) == []


def test_a_part_of_another_request_is_not_taken(ann: Any, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """ListMultipartUploads shows the upload while parts are renamed. The gateway begins again."""
    etag, complete = uploaded(ann, "old")["ETag"], MultipartUploads.complete
    begun: list[UploadRow] = []

    def complete_later(uploads: MultipartUploads, upload: UploadRow, *rest: Any) -> ObjectRow:
        begun.append(upload)
        if len(begun) == 1:
            uploads.put_part(upload, 5, BytesIO(b"of another request"), b"")
        return complete(uploads, upload, *rest)

    monkeypatch.setattr(MultipartUploads, "complete", complete_later)
    rename(ann, "new", "old")
    assert (body(ann, "new"), ann.head_object(**B, Key="new")["ETag"]) == (b"".join(BODIES.values()), etag)
    states = [row.state for one in begun if (row := system.metadata.upload(one.upload_id)) is not None]
    assert states == [UploadState.DOOMED, UploadState.COMPLETED]


def store_parts_again(system: System, row: ObjectRow, to: ObjectKey, change: Callable[[], object]) -> ObjectRow:
    """Rename an object in parts as a gateway does, with a change before the transaction."""
    store = system.client.store()
    uploads, manifest = system.client.uploads(store), store.manifest(row)
    assert manifest is not None
    upload = uploads.create(to, "ann", b"")

    def put(request: PutRequest) -> ObjectRow:
        for index, part in enumerate(manifest.parts):
            data = b"".join(store.open_version(row, manifest.starts[index], part.size))
            uploads.put_part(upload, part.number, BytesIO(data), b"")
        change()
        assert isinstance(request.step, RenameOf)
        return uploads.complete(upload, lambda stored: (stored, {}), rename=request.step)

    try:
        return store.rename(row, PutRequest(to), put)
    finally:
        found = system.metadata.upload(upload.upload_id)
        assert found is not None
        is_renamed = store.list_names("photos", "new", "", 1) == ["new"]
        assert found.state is (UploadState.COMPLETED if is_renamed else UploadState.OPEN)


@pytest.mark.invariant(1)
def test_an_upload_is_not_completed_for_a_source_that_was_changed(bench: Bench, system: System, ann: Any) -> None:
    uploaded(ann, "old")
    store, old, new = system.client.store(), ObjectKey("photos", "old"), ObjectKey("photos", "new")
    changed = encode_attributes({"a": "b"})
    with pytest.raises(Conflict):
        store_parts_again(system, store.head(old), new, lambda: store.set_attributes(old, changed))
    store_parts_again(system, store.head(old), new, lambda: None)
    assert body(ann, "new") == b"".join(BODIES.values())
    bench.settle(system)
    assert check(system, read_share=1.0) == []


@pytest.mark.timed
@pytest.mark.invariant(1)
@pytest.mark.parametrize("point", [*RENAME_POINTS, "upload.completed"])
def test_killed_while_parts_are_renamed(bench: Bench, point: str) -> None:
    with bench.open() as system, serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        uploaded(ann, "old")
    done = bench.run_python("-c", PROGRAM_OF_PARTS, str(bench.config), kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with bench.open() as system:
        store = system.client.store()
        assert store.list_names("photos", "", "", 5) == ["new" if point == "upload.completed" else "old"]
        (name,) = store.list_names("photos", "", "", 5)
        assert store.get(ObjectKey("photos", name)) == b"".join(BODIES.values())
        bench.settle(system)
        assert check(system, read_share=1.0) == []


@pytest.mark.invariant(11)
def test_a_locked_object_is_not_renamed(ann: Any) -> None:
    ann.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    ann.put_object(Bucket="locked", Key="old", Body=b"x", ObjectLockLegalHoldStatus="ON", ChecksumAlgorithm="CRC32")
    refused("AccessDenied", 403, ann.rename_object, Bucket="locked", Key="new", RenameSource="old")
    assert [one["Key"] for one in ann.list_objects_v2(Bucket="locked")["Contents"]] == ["old"]
    ann.put_object_legal_hold(Bucket="locked", Key="old", LegalHold={"Status": "OFF"})
    ann.rename_object(Bucket="locked", Key="new", RenameSource="old")
    assert [one["Key"] for one in ann.list_objects_v2(Bucket="locked")["Contents"]] == ["new"]


# --- rights ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("missing", ["s3:GetObject", "s3:DeleteObject", "s3:PutObject"])
def test_the_rights_that_a_rename_needs(gateway: Gateway, ann: Any, missing: str) -> None:
    ann.put_object(**B, Key="old", Body=b"x")
    actions = ["s3:GetObject", "s3:DeleteObject", "s3:PutObject"]
    principal = {"AWS": "arn:aws:iam::bob:root"}
    bob = gateway.client("bob")

    def allow(allowed: list[str]) -> None:
        statement = {"Effect": "Allow", "Principal": principal, "Action": allowed, "Resource": "arn:aws:s3:::photos/*"}
        document = str({"Version": "2012-10-17", "Statement": [statement]}).replace("'", '"')
        ann.put_bucket_policy(**B, Policy=document)

    allow([one for one in actions if one != missing])
    refused("AccessDenied", 403, rename, client=bob, new="new", old="old")
    assert keys(ann) == ["old"]
    allow(actions)
    rename(bob, "new", "old")
    assert keys(ann) == ["new"]


# --- others at the same time ----------------------------------------------------------------------
def renaming(
    store: Store, row: ObjectRow, to: ObjectKey, versioning: Versioning | None = None, data: bytes = b"x"
) -> ObjectRow:
    return store.rename(row, PutRequest(to, versioning=versioning), lambda sent: store.put_request(sent, BytesIO(data)))


@pytest.mark.parametrize("size", [5, 5 * STRIPE + 5])
def test_a_source_that_was_changed_is_not_deleted(bench: Bench, system: System, size: int) -> None:
    store, old, new = system.client.store(), ObjectKey("b", "old"), ObjectKey("b", "new")
    changes: list[Callable[[], object]] = [
        lambda: store.put(old, BytesIO(b"other")),
        lambda: store.set_attributes(old, b"\x81\xa1a\xa1b"),
        lambda: store.delete(old),
    ]
    for change in changes:
        row = store.put(old, BytesIO(bench.data(size)))
        change()
        with pytest.raises(Conflict):
            renaming(store, row, new, data=bench.data(size))
        assert store.list_names("b", "new", "", 1) == []
    bench.settle(system)
    assert check(system, read_share=1.0) == []


def test_readers_find_the_object_under_one_key(system: System, gateway: Gateway, ann: Any) -> None:
    ann.put_object(**B, Key="k0", Body=b"x")
    stop, seen, store = Event(), set[tuple[str, ...]](), system.client.store()

    def look() -> None:
        while not stop.is_set():
            seen.add(tuple(store.list_names("photos", "", "", 5)))

    looker = Thread(target=look)
    looker.start()
    try:
        for turn in range(20):
            rename(ann, f"k{(turn + 1) % 2}", f"k{turn % 2}")
    finally:
        stop.set()
        looker.join()
    assert seen == {("k0",), ("k1",)}


def test_renames_of_one_object_at_the_same_time(gateway: Gateway, ann: Any) -> None:
    """One of them wins; the others find no source."""
    ann.put_object(**B, Key="old", Body=b"x")
    outcomes: list[str] = []

    def run(number: int) -> None:
        try:
            rename(gateway.client("ann"), f"new{number}", "old")
            outcomes.append("done")
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["NoSuchKey"] * 3 + ["done"]
    assert len(keys(ann)) == 1


def test_the_trash_keeps_the_old_object(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text() + "[trash]\nkeep_days = 3\n")
    with bench.open() as system:
        store = system.client.store()
        renaming(store, store.put(ObjectKey("b", "old"), BytesIO(b"x")), ObjectKey("b", "new"))
        (kept,) = system.metadata.trash_page(None, 10).rows
        assert kept.key.name == "old"


def test_a_locked_source_below_the_gateway(system: System, ann: Any) -> None:
    ann.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    ann.put_object(Bucket="locked", Key="old", Body=b"x", ObjectLockLegalHoldStatus="ON", ChecksumAlgorithm="CRC32")
    store = system.client.store()
    with pytest.raises(Locked):
        renaming(store, store.head(ObjectKey("locked", "old")), ObjectKey("locked", "new"), Versioning.ENABLED)


def test_notifications(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text() + SETTINGS)
    with bench.open() as system, serving(system, system.settings.s3) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        ann.put_object(**B, Key="old", Body=b"x")
        configure(ann, configuration())
        rename(ann, "new", "old")
        assert sorted(named(sent(bench, system))) == [
            ("ObjectCreated:Copy", "new"),
            ("ObjectRemoved:Delete", "old"),
        ]


# --- kill -9 --------------------------------------------------------------------------------------
@pytest.mark.timed
@pytest.mark.invariant(1)
@pytest.mark.parametrize("size", [5, 5 * STRIPE + 5])
@pytest.mark.parametrize("kind", ["plain", "versions"])
@pytest.mark.parametrize("point", ["put.landed", *RENAME_POINTS, "put.recorded"])
def test_killed(bench: Bench, size: int, kind: str, point: str) -> None:
    """The object is under the old key or under the new one."""
    is_renamed = point == "put.recorded"
    if size > 5:
        point = {"put.landed": "large.written", "put.recorded": "large.recorded"}.get(point, point)
    versioning = Versioning.ENABLED if kind == "versions" else None
    data = bench.data(size)
    with bench.open() as system:
        system.client.store().put(ObjectKey("b", "old"), BytesIO(data), versioning=versioning)
    done = bench.run_python("-c", PROGRAM, str(bench.config), kind, kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with bench.open() as system:
        store = system.client.store()
        (name,) = store.list_names("b", "", "", 5)
        assert name == ("new" if is_renamed else "old")
        assert store.get(ObjectKey("b", name)) == data
        bench.settle(system)
        assert check(system, read_share=1.0) == []


# --- afterwards -----------------------------------------------------------------------------------
def test_parts_in_the_trash_are_others_than_those_of_the_new_object(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text() + "[trash]\nkeep_days = 3\n")
    data = b"".join(BODIES.values())
    with bench.open() as system, serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        etag = uploaded(ann, "old", Tagging="t=1")["ETag"]
        rename(ann, "new", "old")
        bench.settle(system)
        trash = system.client.trash()
        trash.undelete(trash.find(ObjectKey("photos", "old")))
        for key in ("old", "new"):
            assert (body(ann, key), ann.head_object(**B, Key=key)["ETag"]) == (data, etag)
            assert ann.get_object(**B, Key=key, PartNumber=5)["Body"].read() == BODIES[5]
        assert len(left_parts(system)) == 4
        system.client.store().delete(ObjectKey("photos", "old"), permanently=True)
        system.clock = LaterClock(4 * DAY)
        bench.settle(system)
        gc_service(system).run_once()
        assert (keys(ann), body(ann, "new"), len(left_parts(system))) == (["new"], data, 2)
        assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_kms_key_stays(bench: Bench, system: System, is_in_parts: bool) -> None:
    ring = KeyRing(system.metadata, MASTERS, system.clock)
    for name in ("red", "blue"):
        ring.add(os.urandom, name)
    red, blue = ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": name} for name in ("red", "blue"))
    data = b"".join(BODIES.values())
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        for key, options in (("old", red), ("plain", {})):
            if is_in_parts:
                uploaded(ann, key, **options)
            else:
                ann.put_object(**B, Key=key, Body=data, **options)
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "blue"}}
        ann.put_bucket_encryption(**B, ServerSideEncryptionConfiguration={"Rules": [rule]})
        rename(ann, "new", "old")
        rename(ann, "of-bucket", "plain")
        for key, options in (("new", red), ("of-bucket", blue)):
            found = ann.get_object(**B, Key=key)
            assert {name: found[name] for name in options} == options
            assert found["Body"].read() == data
            assert ann.get_object(**B, Key=key, IfMatch=found["ETag"], Range="bytes=7-9")["Body"].read() == data[7:10]
    bench.settle(system)
    assert check(system, read_share=1.0) == []


@pytest.mark.invariant(7)
@pytest.mark.parametrize("dumped", ["before", "never"])
def test_a_rebuild_has_the_new_objects(bench: Bench, capfd: pytest.CaptureFixture[str], dumped: str) -> None:
    """Without a dump that was made afterwards, the old names may come back, with their bytes."""
    cli, small = Cli(bench, capfd), b"small"
    with bench.open() as system:
        add_key(system)
        with serving(system) as gateway:
            ann = gateway.client("ann")
            ann.create_bucket(**B)
            etag = uploaded(ann, "parts", ServerSideEncryption="AES256")["ETag"]
            ann.put_object(**B, Key="one", Body=small, Metadata={"a": "b"}, Tagging="t=1")
            ann.put_object(**B, Key="replaced", Body=b"gone")
        bench.settle(system)
    if dumped == "before":
        cli("metadata", "dump")
    with bench.open() as system:
        with serving(system) as gateway:
            root = gateway.client("root")
            rename(root, "new/parts", "parts")
            rename(root, "replaced", "one")
        bench.settle(system)
    lose_database(bench)
    rebuild(bench, cli, *(["--without-dump"] if dumped == "never" else []))
    with bench.open() as system, serving(system) as gateway:
        root = gateway.client("root")
        assert (body(root, "replaced"), body(root, "new/parts")) == (small, b"".join(BODIES.values()))
        assert root.head_object(**B, Key="new/parts")["ETag"] == etag
        assert root.get_object(**B, Key="new/parts", PartNumber=5)["Body"].read() == BODIES[5]
        found = root.get_object(**B, Key="replaced")
        assert (found["Metadata"], found["TagCount"]) == ({"a": "b"}, 1)
        old = {"one": small, "parts": b"".join(BODIES.values())}
        back = set(keys(root)) - {"replaced", "new/parts"}
        assert back <= old.keys()
        assert {key: body(root, key) for key in back} == {key: old[key] for key in back}
        assert check(system, read_share=1.0) == []
