"""Objects that were uploaded in parts, in buckets that are moved from one cell to another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.tables.schema import OBJECTS
from nos_ec.cli.app import run
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId, encode_manifest, part_key, parts_bucket, parts_prefix
from nos_ec.engine.moving import version_copier
from nos_ec.engine.moving.bucket_mover import BucketMover
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.operations import multipart_operations
from nos_ec.ports.metadata import ObjectRow, UploadRow, UploadState
from nos_ec.settings import Settings
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.service.check.test_check import check
from tests.service.objects.test_moves import (
    KEPT_MS,
    cell,
    compose,
    contents,
    dump,
    fill,
    home_of,
    interrupted,
    move,
    new_mover,
    recover,
    trashed,
)
from tests.service.s3.cell_stores import new_cells, serving_cells
from tests.service.s3.s3_gateway import MASTERS, SETTINGS
from tests.service.s3.test_s3_customer_keys import by_hand, over_https

pytestmark = pytest.mark.invariant(12)

CUSTOMERS = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
KINDS: dict[str, Mapping[str, str]] = {
    "plain": {},
    "checksums": {"ChecksumAlgorithm": "SHA256"},
    "sse-s3": {"ServerSideEncryption": "AES256"},
    "sse-kms": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "red"},
    "sse-c": CUSTOMERS,
}
BODIES = {2: bytes(range(256)) * 300, 5: b"small", 7: bytes(range(255)) * 2000}
KEY = ObjectKey("photos", "parts")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return new_cells(tmp_path, a=1, b=0)


def upload(client: Any, kind: str) -> None:
    """Upload an object of this kind in parts, the last one of them left out."""
    options = KINDS[kind]
    made = client.create_multipart_upload(Bucket="photos", Key=kind, Metadata={"of": "x"}, **options)
    of_upload = {"Bucket": "photos", "Key": kind, "UploadId": made["UploadId"]}
    of_part = options if kind in ("checksums", "sse-c") else {}
    parts = []
    for number, body in BODIES.items():
        part = client.upload_part(**of_upload, PartNumber=number, Body=body, **of_part)
        names = ("ETag", "ChecksumSHA256") if kind == "checksums" else ("ETag",)
        parts.append({"PartNumber": number, **{name: part[name] for name in names}})
    client.upload_part(**of_upload, PartNumber=9, Body=b"left out", **of_part)
    client.complete_multipart_upload(
        **of_upload, MultipartUpload={"Parts": parts}, **(CUSTOMERS if kind == "sse-c" else {})
    )


def seen(client: Any, kind: str) -> list[object]:
    """All that a client sees of such an object."""
    of = {"Bucket": "photos", "Key": kind, **(CUSTOMERS if kind == "sse-c" else {})}
    found: list[object] = []
    ranges: list[dict[str, Any]] = [{}, {"Range": "bytes=76790-76815"}]
    for reads in (*ranges, *({"PartNumber": number} for number in BODIES)):
        got = client.get_object(**of, **reads, ChecksumMode="ENABLED")
        found += [got.pop("Body").read(), {name: got[name] for name in got if name != "ResponseMetadata"}]
    names = ["ETag", "Checksum", "ObjectParts", "ObjectSize", "StorageClass"]
    by_key = {**of, **by_hand(b"k" * 32)} if kind == "sse-c" else of
    attributes = client.get_object_attributes(**by_key, ObjectAttributes=names)
    head = client.head_object(**of, ChecksumMode="ENABLED")
    return [*found, *({name: one[name] for name in one if name != "ResponseMetadata"} for one in (attributes, head))]


def parts_in(system: System, upload_id: UploadId) -> list[str]:
    prefix = parts_prefix(upload_id)
    names = system.metadata.list_names(parts_bucket("photos"), prefix, "", 9)
    return [name.removeprefix(prefix) for name in names]


def upload_of(row: ObjectRow) -> UploadId:
    assert row.composition is not None
    return row.composition.upload_id


def collect(system: System, later_ms: int = PARTS_GRACE_MS + 60_000) -> None:
    """What GC does later."""
    system.clock = LaterClock(later_ms)
    gc_service(system).run_once()


def test_clients_see_the_same_objects(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart_operations, "PART_BYTES_MIN", 1)
    monkeypatch.setattr(version_copier, "PAGE_PARTS", 2)
    with open_system(settings.of_cell("a")) as directory:
        ring = KeyRing(directory.metadata, MASTERS, directory.clock)
        assert [ring.add(os.urandom, name) for name in (None, "red")] == [1, 2]
    with serving_cells(settings, SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1"})) as (_, gateway):
        client = over_https(gateway.client("ann"))
        client.create_bucket(Bucket="photos")
        for kind in KINDS:
            upload(client, kind)
        before = {kind: seen(client, kind) for kind in KINDS}
        assert all(found[0] == b"".join(BODIES.values()) for found in before.values())
        move(settings, "b")
        assert {kind: seen(client, kind) for kind in KINDS} == before
    dump(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        rows = there.metadata.list_objects("photos", "", "", 9)
        assert [parts_in(there, upload_of(row)) for row in rows] == [["00002", "00005", "00007"]] * len(KINDS)
        assert check(there, read_share=1.0) == []


def test_parts_are_deleted_with_the_old_copies(settings: Settings) -> None:
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        upload_id = upload_of(here.metadata.get(KEY))
    move(settings, "b")
    with open_system(settings.of_cell("a")) as here, cell(settings, "b") as there:
        before = contents(there, "photos")
        collect(here)
        assert len(parts_in(here, upload_id)) == 2, "the copies are kept"
    dump(settings, "b")
    config = Path(settings.of_cell("a").store.root).parent / "cells.toml"
    assert run(["--config", str(config), "cells", "purge", "photos", "--from", "a"]) == 0
    with open_system(settings.of_cell("a")) as here:
        doomed = here.metadata.upload(upload_id)
        assert doomed is not None
        assert doomed.state is UploadState.DOOMED
    dump(settings, "a")
    move(settings, "a")
    with open_system(settings.of_cell("a")) as here:
        collect(here)
        assert contents(here, "photos") == before, "the parts came back before they were deleted"
    with open_system(settings.of_cell("b")) as there:
        assert there.metadata.upload(upload_id) is not None


def test_parts_that_are_not_needed_in_the_target_are_deleted(settings: Settings) -> None:
    """These are the parts of an object that was removed while its bucket was moved, and those of a move that was given
    up."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        kept, gone = upload_of(here.metadata.get(KEY)), upload_of(compose(here, replace(KEY, name="x"), [b"1", b"2"]))
        with interrupted(settings, "moving.compared"):
            here.metadata.delete(replace(KEY, name="x"), here.clock.now_ms())
        with cell(settings, "b") as there:
            assert (len(parts_in(there, kept)), len(parts_in(there, gone))) == (2, 2)
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        collect(there)
        assert (len(parts_in(there, kept)), len(parts_in(there, gone))) == (2, 0)
        assert [row.upload_id for row in there.metadata.uploads_after(None, 9)] == [kept]


def test_a_move_that_is_given_up_leaves_no_parts(settings: Settings) -> None:
    fill(settings)
    with interrupted(settings, "moving.compared"), cell(settings, "b") as there:
        key = replace(KEY, name="begun")
        assert there.metadata.upload(upload_of(there.metadata.get(KEY))) is not None
    move(settings, "a")
    with open_system(settings.of_cell("b")) as there:
        collect(there)
        assert there.metadata.uploads_after(None, 9) == []
        assert there.metadata.list_names(parts_bucket(key.bucket), "", "", 9) == []


def test_versions_that_go_into_the_trash_and_come_back(settings: Settings) -> None:
    """Between two movers. A version is never twice in the target, so the parts stay as long as their object does."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        metadata, can = here.metadata, here.client.trash()
        back, away, again = (replace(KEY, name=name) for name in ("back", "away", "again"))
        for key in (back, away, again):
            compose(here, key, [b"1" * 9, key.name.encode(), b""])

        def throw(key: ObjectKey, ms: int) -> None:
            metadata.delete(key, ms, KEPT_MS + ms)

        throw(back, 6)
        throw(again, 7)
        with interrupted(settings, "moving.closed"):
            assert recover(settings) == 1
        with cell(settings, "b") as there:
            assert [one[0] for one in trashed(there)] == ["again", "back"]
        metadata.undelete([can.find(back)])
        throw(away, 8)
        metadata.undelete([can.find(again)])
        throw(again, 9)
        before = contents(here, "photos"), trashed(here)
        assert [one[0] for one in before[1]] == ["again", "away"]
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        collect(there)
        assert (contents(there, "photos"), trashed(there)) == before
        assert {row.state for row in there.metadata.uploads_after(None, 9)} == {UploadState.COMPLETED}
        there.client.trash().undelete(there.client.trash().find(away))
        assert there.client.store().get(away) == b"1" * 9 + b"away"


def test_a_version_that_is_thrown_away_again_just_before_its_bucket_is_closed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has it in the trash until another time, with the same upload."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here, new_mover(settings) as (_, run_move):
        metadata, can, abort = here.metadata, here.client.trash(), BucketMover._abort_others
        metadata.delete(KEY, 6, KEPT_MS)

        def throw_again(*arguments: Any) -> None:
            if trashed(here)[0][4] == KEPT_MS:
                metadata.undelete([can.find(KEY)])
                metadata.delete(KEY, 7, KEPT_MS + 1)
            abort(*arguments)

        monkeypatch.setattr(BucketMover, "_abort_others", throw_again)
        run_move(lambda _: None)
        before = trashed(here)
        assert [one[4] for one in before] == [KEPT_MS + 1]
    with open_system(settings.of_cell("b")) as there:
        collect(there)
        assert trashed(there) == before


@pytest.mark.parametrize("in_trash", [False, True])
def test_two_versions_of_one_upload_are_refused(settings: Settings, in_trash: bool) -> None:
    """Only a rebuild of the metadata makes them."""
    fill(settings)
    twin = replace(KEY, name="twin")
    with open_system(settings.of_cell("a")) as here:
        objects = here.client.store()
        row = objects.head(KEY)
        manifest = objects.manifest(row)
        assert manifest is not None
        made = objects.put(twin, BytesIO(encode_manifest(manifest)))
        assert here.metadata.set_attributes(made, row.attributes)
        if in_trash:
            here.metadata.delete(twin, 6, KEPT_MS)
        with pytest.raises(InvalidInput, match="composed of one upload, and such objects cannot be moved"):
            move(settings, "b")
        assert home_of(settings) == "a"
        assert objects.get(KEY) == bytes(range(255)) * 2000 + b"last"
        objects.put(replace(KEY, name="served"), BytesIO(b"x"))


def test_parts_that_the_target_has_already(settings: Settings) -> None:
    """One that is the same is not copied again, and one that differs is replaced."""
    fill(settings)
    with interrupted(settings, "moving.compared") as mover, open_system(settings.of_cell("b")) as there:
        target = mover._target.metadata
        begun = UploadRow(upload_of(target.get(KEY)), KEY, UploadState.OPEN, there.clock.now_ms())
        keys = [part_key("photos", begun.upload_id, number) for number in (1, 2)]
        same = target.get(keys[0])
        assert target.remove_key(KEY.bucket, KEY.name, there.clock.now_ms()) == 1
        assert target.open_copied_upload(begun)
        assert isinstance(target, SqlMetadata)
        with target._engine.begin() as connection:
            connection.execute(update(OBJECTS).where(OBJECTS.c.name == keys[1].name).values(md5=bytes(16)))
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        collect(there)
        assert there.metadata.get(keys[0]).object_id == same.object_id
        assert there.client.store().get(KEY) == bytes(range(255)) * 2000 + b"last"


def test_a_part_that_is_lost_ends_the_move(settings: Settings) -> None:
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        key = part_key("photos", upload_of(here.metadata.get(KEY)), 2)
        here.metadata.delete(key, here.clock.now_ms())
    with pytest.raises(NotFound, match="part 2 is gone"):
        move(settings, "b")
    assert home_of(settings) == "a"
