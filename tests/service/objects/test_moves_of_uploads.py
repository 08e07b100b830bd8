"""Unfinished multipart uploads into buckets that are moved from one cell to another."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec import open_store
from nos_ec.cli.app import run
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import Moved, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import part_key, parts_bucket
from nos_ec.engine.moving import bucket_mover, keys
from nos_ec.engine.moving.version_copier import VersionCopier
from nos_ec.engine.upkeep.upload_reaper import UploadReaper
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.operations import multipart_operations
from nos_ec.ports.metadata import DirectoryRow, UploadRow, UploadState
from nos_ec.settings import Settings
from nos_ec.settings.section import DAY
from tests.rig.at_rest import LaterClock
from tests.service.check.test_check import check
from tests.service.objects.test_moves import (
    begin_upload,
    cell,
    compose,
    contents,
    dump,
    fill,
    home_of,
    interrupted,
    lose_and_rebuild,
    move,
    new_mover,
    parts_seen,
    recover,
)
from tests.service.objects.test_moves_of_parts import BODIES, CUSTOMERS, KINDS, collect, seen
from tests.service.s3.cell_stores import new_cells, serving_cells
from tests.service.s3.s3_gateway import MASTERS, SETTINGS
from tests.service.s3.test_s3_customer_keys import over_https

pytestmark = pytest.mark.invariant(12)

LARGE = bytes(range(253)) * 3000
"""A part with blocks of its own."""
LATER_MS = PARTS_GRACE_MS + 60_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return new_cells(tmp_path, a=1, b=0)


def key(name: str) -> ObjectKey:
    return ObjectKey("photos", name)


def complete(system: System, upload: UploadRow, parts: int = 9) -> None:
    system.client.uploads().complete(upload, lambda stored: (stored[:parts], {"a": "b"}))


Found = list[tuple[UploadRow, list[tuple[object, ...]]]]


def unfinished(system: System) -> Found:
    """The unfinished uploads into the bucket, each with what clients see of its parts, and at last their bytes."""
    return [(upload, parts_seen(system, upload)) for upload in system.metadata.list_uploads("photos", "", None, 99)]


def assert_same_uploads(settings: Settings) -> Found:
    """The cell b has the unfinished uploads that a had. Returns them."""
    with cell(settings, "a") as here, cell(settings, "b") as there:
        before = unfinished(here)
        assert unfinished(there) == before
        return before


def test_clients_continue_their_uploads(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the objects that they would have got without the move."""
    monkeypatch.setattr(multipart_operations, "PART_BYTES_MIN", 1)
    monkeypatch.setattr(keys, "PAGE_PARTS", 2)
    with open_system(settings.of_cell("a")) as directory:
        ring = KeyRing(directory.metadata, MASTERS, directory.clock)
        assert [ring.add(os.urandom, name) for name in (None, "red")] == [1, 2]
    with serving_cells(settings, SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1"})) as (cells, gateway):
        client = over_https(gateway.client("ann"))
        client.create_bucket(Bucket="photos")
        begun = {kind: begin_by_s3(client, kind) for kind in KINDS}

        def listed() -> list[object]:
            pages = [client.list_multipart_uploads(Bucket="photos")]
            pages += [client.list_parts(**of) for of in begun.values()]
            return [{name: page[name] for name in page if name != "ResponseMetadata"} for page in pages]

        before = listed()
        move(settings, "b")
        cells._homes["photos"] = DirectoryRow("photos", "a", "ann", 5)
        assert listed() == before
        for kind, of in begun.items():
            end_by_s3(client, kind, of)
        assert all(seen(client, kind)[0] == b"".join(BODIES.values()) for kind in KINDS)
        assert "Uploads" not in client.list_multipart_uploads(Bucket="photos")
    dump(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        assert check(there, read_share=1.0) == []


def begin_by_s3(client: Any, kind: str) -> dict[str, Any]:
    """Begin an upload of this kind, and store two of its parts, one of them to be replaced."""
    made = client.create_multipart_upload(Bucket="photos", Key=kind, Metadata={"of": "x"}, **KINDS[kind])
    of = {"Bucket": "photos", "Key": kind, "UploadId": made["UploadId"]}
    for number, body in ((2, BODIES[2]), (5, b"to be replaced"), (9, b"left out")):
        client.upload_part(**of, PartNumber=number, Body=body, **options_of_part(kind))
    return of


def options_of_part(kind: str) -> Any:
    return KINDS[kind] if kind in ("checksums", "sse-c") else {}


def end_by_s3(client: Any, kind: str, of: dict[str, Any]) -> None:
    """Store the other parts, and complete the upload."""
    for number in (5, 7):
        client.upload_part(**of, PartNumber=number, Body=BODIES[number], **options_of_part(kind))
    names = ("PartNumber", "ETag", "ChecksumSHA256") if kind == "checksums" else ("PartNumber", "ETag")
    stored = [part for part in client.list_parts(**of)["Parts"] if part["PartNumber"] in BODIES]
    parts = [{name: part[name] for name in names} for part in stored]
    customers = CUSTOMERS if kind == "sse-c" else {}
    client.complete_multipart_upload(**of, MultipartUpload={"Parts": parts}, **customers)


def test_a_gateway_that_knows_the_old_cell_is_refused_once(settings: Settings) -> None:
    """This holds for everything that a client does with its upload, even if the upload exists only in the new cell."""
    with serving_cells(settings) as (cells, gateway):
        client = gateway.client("ann")
        client.create_bucket(Bucket="photos")

        def answer(call: Callable[..., Any], is_refused: bool, **arguments: Any) -> Any:
            cells._homes["photos"] = DirectoryRow("photos", "a", "ann", 5)
            if is_refused:
                with pytest.raises(ClientError, match="ServiceUnavailable"):
                    call(**arguments)
            return call(**arguments)

        named = {"Bucket": "photos", "Key": "k"}
        old = {**named, "UploadId": client.create_multipart_upload(**named)["UploadId"]}
        client.upload_part(**old, PartNumber=1, Body=b"1")
        move(settings, "b")
        new = {**named, "UploadId": answer(client.create_multipart_upload, True, **named)["UploadId"]}
        for of in (new, old):
            answer(client.upload_part, True, **of, PartNumber=2, Body=b"2")
            numbers = [part["PartNumber"] for part in answer(client.list_parts, False, **of)["Parts"]]
            assert numbers == ([2] if of == new else [1, 2])
        assert len(answer(client.list_multipart_uploads, False, Bucket="photos")["Uploads"]) == 2
        (part,) = client.list_parts(**new)["Parts"]
        whole = {"Parts": [{name: part[name] for name in ("PartNumber", "ETag")}]}
        answer(client.complete_multipart_upload, True, **new, MultipartUpload=whole)
        answer(client.abort_multipart_upload, False, **old)
        assert client.get_object(**named)["Body"].read() == b"2"
        assert "Uploads" not in client.list_multipart_uploads(Bucket="photos")


@pytest.mark.parametrize("late", ["moving.compared", "moving.names_compared", "_abort_others"])
def test_what_users_do_with_uploads_while_their_bucket_is_copied(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The target has it, however late it is done."""
    fill(settings)
    names = ("gone", "whole", "deleted", "more", "renewed", "kept")
    with open_system(settings.of_cell("a")) as here, new_mover(settings) as (_, run_move):
        uploads = here.client.uploads()
        old = {name: begin_upload(here, name, LARGE, b"2", b"3") for name in names}
        done: list[str] = []

        def use() -> None:
            done.append(late)
            uploads.abort(old["gone"].upload_id, old["gone"].key)
            complete(here, old["whole"], 2)
            complete(here, old["deleted"])
            here.metadata.delete(key("deleted"), here.clock.now_ms())
            uploads.put_part(old["more"], 7, BytesIO(b"seventh"), b"")
            uploads.put_part(old["renewed"], 1, BytesIO(b"first"), b"")
            uploads.put_part(old["renewed"], 2, BytesIO(LARGE), b"")
            begin_upload(here, "empty")
            begin_upload(here, "new", b"1", LARGE)
            uploads.abort(begin_upload(here, "short", b"1").upload_id, key("short"))
            complete(here, begin_upload(here, "short and whole", b"1", b"2", b"3"), 2)

        def point(name: str) -> None:
            if name == late and not done:
                use()
            elif name == "moving.compared":
                here.client.store().put(key("plain"), BytesIO(b"so that names are compared"))

        if late == "_abort_others":  # just before the bucket is closed

            def then_use(*arguments: Any) -> None:
                abort_others(*arguments)
                if not done:
                    use()

            abort_others = bucket_mover.BucketMover._abort_others
            monkeypatch.setattr(bucket_mover.BucketMover, "_abort_others", then_use)
        monkeypatch.setattr(bucket_mover, "CLOSED_BYTES_MAX", 64 << 20)
        monkeypatch.setattr(bucket_mover, "CLOSED_MS_MAX", DAY)
        run_move(point)
        assert done == [late]
    before = assert_same_uploads(settings)
    assert [upload.key.name for upload, _ in before] == ["empty", "kept", "more", "new", "renewed"]
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(there, "photos") == contents(here, "photos")
        for row in there.metadata.list_objects("photos", "", "", 99):
            if row.composition is not None:
                whole = keys.parts_of(
                    there.metadata, UploadRow(row.composition.upload_id, row.key, UploadState.OPEN, 5)
                )
                assert len(whole) == row.composition.parts, "without those that the client has left out"
    with open_system(settings.of_cell("b")) as there:
        collect(there, LATER_MS)
        states = {row.state for row in there.metadata.uploads_after(None, 99)}
        assert states == {UploadState.OPEN, UploadState.COMPLETED}
        assert there.client.store().get(key("whole")) == LARGE + b"2"
    assert_same_uploads(settings)


def test_uploads_wait_only_while_their_bucket_is_closed(settings: Settings) -> None:
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        old = begin_upload(here, "old", b"1")
    with serving_cells(settings) as (cells, _), interrupted(settings, "moving.closed"):
        uploads = cells.system("a").client.uploads()
        changes: list[Callable[[], Any]] = [
            lambda: uploads.create(key("new"), "ann", b""),
            lambda: uploads.put_part(old, 2, BytesIO(b"2"), b""),
            lambda: uploads.put_part(old, 2, BytesIO(LARGE), b""),
            lambda: uploads.abort(old.upload_id, old.key),
            lambda: uploads.abort_all("photos"),
            lambda: uploads.complete(old, lambda stored: (stored, {})),
        ]
        for change in changes:
            with pytest.raises(Moved, match="takes no changes until that is done"):
                change()
        assert [part.number for part in uploads.list_parts(old, 0, 9)] == [1]
        assert UploadReaper(cells.system("a").metadata, LaterClock(9 * DAY), DAY).run_once().aborted == 0
        assert recover(settings) == 1
        uploads.put_part(old, 2, BytesIO(LARGE), b"")
        uploads.create(key("new"), "ann", b"")
    move(settings, "b")
    assert [(upload.key.name, len(parts)) for upload, parts in assert_same_uploads(settings)] == [
        ("new", 0),
        ("old", 2),
    ]


def test_a_large_part_that_was_begun_before_the_move_is_sent_again(settings: Settings) -> None:
    fill(settings)
    with serving_cells(settings) as (cells, _):
        uploads = cells.system("a").client.uploads()
        upload = begin_upload(cells.system("a"), "k", b"1")

        class MovedMeanwhile(BytesIO):
            is_moved = False

            def read(self, size: int | None = -1, /) -> bytes:
                if not self.is_moved and self.tell() > len(LARGE) // 2:
                    self.is_moved = True
                    move(settings, "b")
                return super().read(size)

        with pytest.raises(Moved, match="was moved to cell b"):
            uploads.put_part(upload, 2, MovedMeanwhile(LARGE), b"")
        assert len(assert_same_uploads(settings)) == 1
        there = cells.system("b")
        there.client.uploads().put_part(upload, 2, BytesIO(LARGE), b"")
        complete(there, upload)
        assert there.client.store().get(key("k")) == b"1" + LARGE


def test_old_uploads_are_aborted_where_their_bucket_is_served(settings: Settings) -> None:
    """They are as old in the new cell as they were, and the copies in the old cell wait for the purge."""

    def reap(name: str) -> int:
        with open_system(settings.of_cell(name)) as system:
            return UploadReaper(system.metadata, LaterClock(9 * DAY), 7 * DAY).run_once().aborted

    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        upload = begin_upload(here, "k", b"1", LARGE)
    with interrupted(settings, "moving.compared"):
        assert reap("b") == 0
        assert_same_uploads(settings)
    move(settings, "b")
    assert len(assert_same_uploads(settings)) == 1
    assert (reap("a"), reap("b")) == (0, 1)
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert len(unfinished(here)) == 1
        assert unfinished(there) == []
        assert keys.parts_of(there.metadata, upload) == {}
        assert there.metadata.upload(upload.upload_id) is None


@pytest.mark.parametrize("is_collected", [False, True])
def test_a_bucket_comes_back_with_its_uploads(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: Any, is_collected: bool
) -> None:
    """It does so even if GC deletes the old parts just before they are copied again."""
    config = Path(settings.of_cell("a").store.root).parent / "cells.toml"

    def call(*arguments: str) -> int:
        return run(["--config", str(config), *arguments])

    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        upload = begin_upload(here, "k", b"1", LARGE, b"3")
    move(settings, "b")
    dump(settings, "b")
    assert call("cells", "move", "photos", "--to", "a") != 0, "it has old copies"
    assert call("cells", "purge", "photos", "--from", "a") == 0
    with open_system(settings.of_cell("a")) as here:
        doomed = here.metadata.upload(upload.upload_id)
        assert doomed is not None
        assert (doomed.state, doomed.attributes) == (UploadState.DOOMED, b"")
        assert UploadReaper(here.metadata, here.clock, 0).run_once().parts == 0, "a listing may still read them"
    with open_system(settings.of_cell("b")) as there:
        there.client.uploads().put_part(upload, 1, BytesIO(b"first"), b"")
        there.metadata.delete(part_key("photos", upload.upload_id, 3), there.clock.now_ms())
    dump(settings, "a")
    if is_collected:

        def collect_and_open(*arguments: Any) -> None:
            with open_system(settings.of_cell("a")) as here:
                UploadReaper(here.metadata, LaterClock(LATER_MS), 0).run_once()
            open_upload(*arguments)

        open_upload = VersionCopier.open_upload
        monkeypatch.setattr(VersionCopier, "open_upload", collect_and_open)
    move(settings, "a")
    with open_system(settings.of_cell("a")) as here:
        collect(here, LATER_MS)
        (found,) = unfinished(here)
        assert [part[-1] for part in found[1]] == [b"first", LARGE]
        complete(here, upload)
        assert here.client.store().get(key("k")) == b"first" + LARGE
    capsys.readouterr()


def test_a_move_that_is_given_up_leaves_no_uploads(settings: Settings) -> None:
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        upload = begin_upload(here, "k", b"1", LARGE)
    with interrupted(settings, "moving.closed"):
        assert len(assert_same_uploads(settings)) == 1
    move(settings, "a")
    with open_system(settings.of_cell("b")) as there:
        collect(there, LATER_MS)
        assert there.metadata.uploads_after(None, 9) == []
        assert there.metadata.list_names(parts_bucket("photos"), "", "", 9) == []
    with open_system(settings.of_cell("a")) as here:
        collect(here, LATER_MS)
        complete(here, upload)
        assert here.client.store().get(key("k")) == b"1" + LARGE


@pytest.mark.parametrize("lost", ["a", "b"])
def test_uploads_are_moved_after_a_database_was_rebuilt(settings: Settings, tmp_path: Path, lost: str) -> None:
    """A rebuild without a dump takes the parts in the target for those of an unknown upload."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        begin_upload(here, "k", b"1", LARGE)
    dump(settings, "a")
    with interrupted(settings, "moving.closed"):
        pass
    lose_and_rebuild(settings, tmp_path, lost, *(["--without-dump"] if lost == "b" else []))
    move(settings, "b")
    assert home_of(settings) == "b"
    ((upload, parts),) = assert_same_uploads(settings)
    assert upload.key == key("k")
    assert [part[-1] for part in parts] == [b"1", LARGE]


def test_too_many_bytes_of_parts_open_the_bucket_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings)
    monkeypatch.setattr(bucket_mover, "CLOSED_BYTES_MAX", len(LARGE) - 1)
    points: list[str] = []
    with open_system(settings.of_cell("a")) as here, new_mover(settings) as (_, run_move):
        upload = begin_upload(here, "k", b"1")

        def point(name: str) -> None:
            points.append(name)
            if name == "moving.compared":
                here.client.uploads().put_part(upload, 1, BytesIO(b"first"), b"")
            elif name == "moving.names_compared" and points.count(name) == 1:
                here.client.uploads().put_part(upload, 2, BytesIO(LARGE), b"")

        monkeypatch.setattr(bucket_mover, "PASSES_MAX", 1)
        run_move(point)
        assert points.count("moving.closed") == 2
    ((_, parts),) = assert_same_uploads(settings)
    assert [part[-1] for part in parts] == [b"first", LARGE]
    with cell(settings, "a") as here:
        assert here.metadata.last_change(parts_bucket("photos")) == 0


def test_names_of_parts_that_a_dead_mover_has_left_are_forgotten(settings: Settings) -> None:
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        upload = begin_upload(here, "k", b"1")
        with interrupted(settings, "moving.compared"):
            here.client.uploads().put_part(upload, 1, BytesIO(b"2"), b"")
            assert here.metadata.last_change(parts_bucket("photos")) > 0
            assert recover(settings) == 1
        assert here.metadata.last_change(parts_bucket("photos")) == 0


def test_an_object_with_parts_that_is_put_again_while_it_is_copied(settings: Settings) -> None:
    """The parts of the older object are deleted in the target, too."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here, new_mover(settings) as (_, run_move):
        old = here.metadata.get(key("parts")).composition

        def point(name: str) -> None:
            if name == "moving.compared":
                compose(here, key("parts"), [LARGE, b"2"])

        run_move(point)
    with open_system(settings.of_cell("b")) as there:
        collect(there, LATER_MS)
        assert old is not None
        assert there.metadata.upload(old.upload_id) is None
        assert there.client.store().get(key("parts")) == LARGE + b"2"


@pytest.mark.invariant(11)
def test_uploads_are_brought_back_from_the_old_cell(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    """The database of the new cell was lost before a dump. What users did with uploads in the new cell is kept where a
    rebuild finds it: composed objects and later parts."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        going, whole, kept = (begin_upload(here, name, b"1", LARGE) for name in ("going", "whole", "kept"))
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        there.client.uploads().abort(going.upload_id, going.key)
        complete(there, whole)
        there.client.uploads().put_part(kept, 2, BytesIO(b"later"), b"")
        there.client.uploads().put_part(kept, 3, BytesIO(b"third"), b"")
    lose_and_rebuild(settings, tmp_path, "b", "--without-dump")
    with open_store(settings) as store, pytest.raises(Transient):
        store.get("photos/whole")
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        opened = there.metadata.list_uploads("photos", "", None, 9)
        assert sorted(upload.key.name for upload in opened) == ["going", "kept"], "an abort is undone, as are deletes"
        assert [body for *_, body in parts_seen(there, kept)] == [b"1", b"later", b"third"]
        assert there.client.store().get(key("whole")) == b"1" + LARGE
        complete(there, kept)
        assert there.client.store().get(key("kept")) == b"1laterthird"
    capsys.readouterr()
