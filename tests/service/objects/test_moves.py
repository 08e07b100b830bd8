"""Buckets that are moved from one cell to another, through the library and the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from botocore.exceptions import ClientError
from sqlalchemy import delete, update
from structlog.testing import capture_logs

from nos_ec import InvalidInput, open_store
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.tables.schema import DIRECTORY, MOVES, OBJECTS
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.app import run
from nos_ec.cli.commands import cell_moves
from nos_ec.cli.commands.cell_moves import _move, open_directory
from nos_ec.cli.commands.cells import fill_directory
from nos_ec.composition import worker_side
from nos_ec.composition.cells import open_cells, open_home
from nos_ec.composition.client_side import ClientSide
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import ConfigError, Conflict, Locked, Moved, NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode
from nos_ec.core.locking.lock_note import note_buckets
from nos_ec.core.parts import parts_bucket, parts_prefix
from nos_ec.core.versions import Versioning
from nos_ec.engine.moving import bucket_mover, keys, version_copier
from nos_ec.engine.moving.bucket_mover import BucketMover
from nos_ec.engine.moving.keys import key_of, trash_of, walk
from nos_ec.engine.moving.version_copier import VersionCopier
from nos_ec.engine.objects import large
from nos_ec.engine.objects.store import Store
from nos_ec.engine.upkeep import move_recovery
from nos_ec.engine.upkeep.move_recovery import CHECK_WAIT_MS, all_unfinished_moves, mover_lease, stalled_moves
from nos_ec.monitoring.gc_samples import move_samples
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    AddMarker,
    BucketRecord,
    BucketRow,
    BucketUsage,
    CannedAcl,
    DeleteVersion,
    DirectoryRow,
    DocumentKind,
    MarkerRow,
    MoveRow,
    MoveState,
    ObjectRow,
    PutRequest,
    Rights,
    Sums,
    UploadRow,
    VersionEntry,
    VersionPage,
)
from nos_ec.settings import Settings, load_settings
from nos_ec.settings.section import DAY
from nos_gc.assemble import gc_service
from tests.rig.fakes.clock import SetClock
from tests.rig.sql.sql_plans import caught
from tests.service.conftest import Bench
from tests.service.s3.cell_stores import cells_config, new_cells, serving_cells

pytestmark = pytest.mark.invariant(12)

KEPT_MS = 7_000_000_000_000
"""The end of a retention that outlasts these tests."""

MOVE_POINTS = [
    "moves.state_set.before_commit",
    "moving.arriving",
    "moves.state_set.before_commit:2",
    "moving.leaving",
    "moving.upload_opened",
    "moving.parts_copied",
    "moving.landed",
    "moving.copies_recorded.before_commit",
    "moving.copies_recorded",
    "moving.large_recorded.before_commit",
    "moving.large_recorded",
    "moving.lock_noted",
    "moving.compared",
    "moves.state_set.before_commit:3",
    "moving.closed",
    "moving.last_compared",
    "moving.bucket_copied",
    "moves.state_set.before_commit:4",
    "moving.gone",
    "moving.home_changed",
    "moves.state_set.before_commit:5",
    "moving.here",
]
CHANGED_POINTS = ["moving.names_compared", "moves.changes_forgotten.before_commit", "moving.upload_aborted"]
"""Points of a move during which names have changed."""
GIVE_UP_POINTS = ["moving.cancelled"]
SERVED_AGAIN_POINTS = ["moves.state_set.before_commit", "moves.served_again"]
"""While a daemon lets a bucket take changes again whose mover has died."""
SERVED_MOVED_POINTS = ["moves.home_changed", "moves.state_set.before_commit", "moves.served_moved"]
"""While a daemon serves a bucket whose mover has died after the moment of the move."""
LEFT_POINTS = ["moves.left"]
"""When a daemon of the old cell finds that the other one serves a bucket whose mover has died."""
BROUGHT_BACK_POINTS = [
    "moves.state_set.before_commit",
    "moving.key_removed.before_commit",
    "moving.copies_recorded",
    "moving.brought_back",
    "moves.state_set.before_commit:2",
]
"""While a bucket is completed from its old copies."""
PURGE_POINTS = ["moving.key_removed.before_commit", "moving.key_removed.before_commit:3", "moving.purged"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return new_cells(tmp_path, a=1, b=0, c=0)


@contextmanager
def cell(settings: Settings, name: str) -> Iterator[System]:
    """A cell, opened by a process that looks at what it has, whatever it serves."""
    with open_system(settings.of_cell(name)) as system:
        system.metadata.move_as(MoveRow("", MoveState.HERE, "", 0, 0, 0))
        yield system


def contents(system: System, bucket: str) -> list[tuple[object, ...]]:
    """All versions and markers of a bucket in a cell, with the bytes that are read."""
    store = system.client.store()

    def data(one: VersionEntry) -> bytes | None:
        return None if one.row is None else b"".join(store.open_ciphertext(one.row, 0, one.row.size))

    return [
        (key.name, *described, data(one))
        for key in walk(system.metadata, bucket)
        for described, one in zip(key.contents, key.versions, strict=True)
    ]


def fill(settings: Settings, bucket: str = "photos") -> list[tuple[object, ...]]:
    """Create a bucket with all kinds of objects in cell a, and return what it has."""
    with open_store(settings) as store:
        store.put(f"{bucket}/plain", b"1", attributes={"of": "x"})
        store.put(f"{bucket}/empty", b"")
        store.put(f"{bucket}/gone", b"2")
        store.put(f"{bucket}/d/ä", b"3" * 5000)
        store.delete(f"{bucket}/gone")
        system = store._cells.system("a")
        objects = system.client.store()
        objects.put(ObjectKey(bucket, "large"), BytesIO(bytes(range(256)) * 3000))
        compose(system, ObjectKey(bucket, "parts"), [bytes(range(255)) * 2000, b"last"])
        for name, times in (("versions", 3), ("hidden", 2), ("empty versions", 2)):
            for number in range(times):
                data = b"" if "empty" in name else name.encode() * (number + 1)
                objects.put(ObjectKey(bucket, name), BytesIO(data), versioning=Versioning.ENABLED)
        objects.put(ObjectKey(bucket, "versions"), BytesIO(b"null"), versioning=Versioning.SUSPENDED)
        objects.delete_versions([AddMarker(ObjectKey(bucket, "hidden"), Versioning.ENABLED)])
        row = objects.put(ObjectKey(bucket, "sealed"), BytesIO(b"ciphertext" * 20))
        metadata = system.metadata
        metadata.create_bucket(bucket, "ann", CannedAcl.PRIVATE, 5)
        metadata.set_bucket_owner(bucket, "ann", 5)
        metadata.grant(bucket, "bob", Rights.READ, 6)
        metadata.set_bucket_document(bucket, DocumentKind.TAGS, b"<tags/>", 7)
        assert row.size
        return contents(system, bucket)


def compose(system: System, key: ObjectKey, bodies: Sequence[bytes]) -> ObjectRow:
    """Store an object that is uploaded in these parts."""
    uploads = system.client.uploads()
    upload = uploads.create(key, "ann", b"")
    for number, body in enumerate(bodies, 1):
        uploads.put_part(upload, number, BytesIO(body), b"")
    return uploads.complete(upload, lambda stored: (stored, {"a": "b"}))


def begin_upload(system: System, name: str, *bodies: bytes) -> UploadRow:
    """Begin an upload, and store these parts."""
    uploads = system.client.uploads()
    upload = uploads.create(ObjectKey("photos", name), "ann", b"\1\1\0ab")
    for number, body in enumerate(bodies, 1):
        uploads.put_part(upload, number, BytesIO(body), b"\1\1\0cd")
    return upload


def parts_seen(system: System, upload: UploadRow) -> list[tuple[object, ...]]:
    """What clients see of the parts of an upload, and at last their bytes."""
    store = system.client.store()
    return [
        (row.key.name, row.version, row.created_ms, row.md5, row.attributes, store.get(row.key))
        for row in keys.parts_of(system.metadata, upload).values()
    ]


def move(settings: Settings, to: str, bucket: str = "photos") -> None:
    with open_directory(settings) as directory:
        _move(settings, directory, bucket, to, 0)


def home_of(settings: Settings, bucket: str = "photos") -> str | None:
    with open_home(settings, bucket) as system:
        return system.settings.cell


def dump(settings: Settings, name: str) -> None:
    config = Path(settings.of_cell(name).store.root).parent / "cells.toml"
    assert run(["--config", str(config), "--cell", name, "metadata", "dump"]) == 0


def test_a_bucket_is_moved_with_all_that_it_has(settings: Settings) -> None:
    before = fill(settings)
    assert len(before) >= 12
    move(settings, "b")
    assert home_of(settings) == "b"
    with cell(settings, "b") as there, cell(settings, "a") as here:
        assert contents(there, "photos") == before
        record = BucketRecord(
            there.metadata.bucket("photos"),  # type: ignore[arg-type]
            there.metadata.grants("photos"),
            there.metadata.bucket_documents("photos", list(DocumentKind)),
        )
        assert (record.row.owner, record.grants) == ("ann", {"bob": Rights.READ})
        assert record.documents == {DocumentKind.TAGS: b"<tags/>"}
        assert here.metadata.bucket_documents("photos", list(DocumentKind)) == {}
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"1"
        assert store.head("photos/plain").attributes == {"of": "x"}
        names = [info.key.name for info in store.list("photos")]
        assert names == ["d/ä", "empty", "empty versions", "large", "parts", "plain", "sealed", "versions"]
        assert [row.name for row in store._cells.buckets_of("ann", "", 10)] == ["photos"]
        store.put("photos/plain", b"new")
        assert store.get("photos/plain") == b"new"


def test_programs_that_know_the_old_cell_are_refused_once(settings: Settings) -> None:
    fill(settings)
    with open_store(settings) as store:
        calls: list[Any] = [
            lambda: store.put("photos/plain", b"late"),
            lambda: store.put("photos/huge", BytesIO(bytes(700_000))),
            lambda: store.put_many([("photos/plain", b"late")]),
            lambda: store.set_attributes("photos/plain", {"of": "late"}),
            lambda: store.delete("photos/plain"),
            lambda: store.delete_many(["photos/plain"]),
            lambda: store.head("photos/plain"),
            lambda: store.head("photos/none"),
            lambda: list(store.list("photos")),
            lambda: list(store.list_folder("photos")),
        ]
        assert store._cells.home("photos") == "a"
        move(settings, "b")
        with cell(settings, "b") as there:
            before = contents(there, "photos")
        for call in calls:
            store._cells._homes.clear()
            store._cells._homes["photos"] = DirectoryRow("photos", "a", "ann", 5)
            with pytest.raises(Moved, match="bucket photos was moved to cell b"):
                call()
            assert store._cells.home("photos") == "b"
        with cell(settings, "a") as here, cell(settings, "b") as there:
            assert contents(there, "photos") == contents(here, "photos") == before
        assert store.get("photos/plain") == b"1"


def test_one_bucket_that_was_moved_stops_no_other(settings: Settings) -> None:
    fill(settings)
    with open_store(settings) as store:
        store.put("other/k", b"1")
        move(settings, "b")
        objects = store._cells.system("a").client.store()
        news = [objects._new_object(PutRequest(ObjectKey(bucket, "k")), b"2") for bucket in ("photos", "other")]
        answers = objects._puts.batches.store_puts([(new, b"2") for new in news])
        assert isinstance(answers[0], Moved)
        assert not isinstance(answers[1], NosError)
        assert store.get("other/k") == b"2"
        rows = [store.head("other/k").row]
        with cell(settings, "a") as here:
            rows.append(here.metadata.get(ObjectKey("photos", "plain")))
        gone = store._cells.system("a").metadata.delete_unchanged(rows, 5)
        assert [row.key.bucket for row in gone] == ["other"]


@contextmanager
def new_mover(settings: Settings, of: str = "a", to: str = "b") -> Iterator[tuple[BucketMover, Callable[..., None]]]:
    """A mover of buckets between two cells, and a function that lets it move one of them and calls its argument with
    the name of each kill point."""
    with ExitStack() as stack:
        names = settings.store.directory or "", of, to
        directory, source, target = (stack.enter_context(open_system(settings.of_cell(name))) for name in names)
        mover = BucketMover(directory.metadata, source.client.moving(), target.client.moving(), number=7)
        records = target.client.access_records().record, source.client.access_records().record

        def run_move(point: Callable[[str], object], bucket: str = "photos") -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(bucket_mover, "kill_point", point)
                mover.move(bucket, *records)

        yield mover, run_move


@contextmanager
def interrupted(settings: Settings, at: str, of: str = "a", to: str = "b") -> Iterator[BucketMover]:
    """A mover of the bucket between two cells that is interrupted at this kill point."""

    class Stop(Exception):
        pass

    def point(name: str) -> None:
        if name == at:
            raise Stop

    with new_mover(settings, of, to) as (mover, run_move):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mover, "_serve_again", lambda *_: None)
            with pytest.raises(Stop):
                run_move(point)
        yield mover


def test_a_bucket_that_is_closed_is_read_and_not_changed(settings: Settings) -> None:
    before = fill(settings)
    with open_store(settings) as store, interrupted(settings, "moving.closed"):
        assert store.get("photos/plain") == b"1"
        assert len(list(store.list("photos"))) == 8
        changes: list[Any] = [lambda: store.put("photos/k", b"x"), lambda: store.delete("photos/plain")]
        for change in changes:
            with pytest.raises(Transient, match="bucket photos is being moved to cell b, and takes no changes"):
                change()
    move(settings, "a")  # gives up
    with open_store(settings) as store, cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(here, "photos") == before
        assert contents(there, "photos") == []
        store.put("photos/k", b"x")
    dump(settings, "b")
    move(settings, "b")
    assert home_of(settings) == "b"


@pytest.mark.parametrize("point", ["moving.compared", "moving.closed", "moving.bucket_copied"])
def test_a_command_that_is_interrupted_opens_the_bucket_again(settings: Settings, point: str) -> None:
    fill(settings)

    def interrupt(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt  # as SIGINT and SIGTERM do

    with new_mover(settings) as (_, run_move), pytest.raises(KeyboardInterrupt):
        run_move(interrupt)
    with open_store(settings) as store:
        store.put("photos/plain", b"changed")
    with cell(settings, "a") as here:
        row = here.metadata.move_row("photos")
        assert row is not None
        assert row.state is MoveState.HERE
        assert here.metadata.changed_names("photos", 1 << 62, 1) == []
    move(settings, "b")
    with cell(settings, "b") as there:
        assert any(one[0] == "plain" and one[-1] == b"changed" for one in contents(there, "photos"))


def test_changes_while_a_bucket_is_copied_are_moved(settings: Settings) -> None:
    fill(settings)
    with open_store(settings) as store, interrupted(settings, "moving.compared"):
        store.put("photos/plain", b"changed")
        store.put("photos/new", b"new")
        store.delete("photos/d/ä")
        store.set_attributes("photos/sealed", {"now": "1"})
        with cell(settings, "a") as here:
            before = contents(here, "photos")
        move(settings, "b")
    with cell(settings, "b") as there:
        assert contents(there, "photos") == before


def test_a_closed_bucket_reads_what_has_changed_and_nothing_else(settings: Settings) -> None:
    """So the time for which changes are refused does not depend on the size of the bucket."""
    small, large = (counted_while_closed(settings, f"of-{objects}", objects) for objects in (20, 400))
    assert small == large
    assert small[1] == 5 + 6, "versions of six names in both cells; one of them was deleted in the source"


def counted_while_closed(settings: Settings, bucket: str, objects: int) -> tuple[int, int]:
    """Move a bucket with this many objects, of which six change just before it is closed. Returns how many SQL
    statements then run in both cells, and how many versions they list, until it is gone."""
    entries: list[object] = []
    found: list[tuple[int, int]] = []
    with open_store(settings) as store, new_mover(settings) as (mover, run_move), ExitStack() as stack:
        store.put_many([(f"{bucket}/{number:03}", b"x") for number in range(objects)])
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        statements = []
        for side in (mover._source.metadata, mover._target.metadata):
            assert isinstance(side, SqlMetadata)
            statements.append(stack.enter_context(caught(side)))
            patch.setattr(side, "list_versions", partial(_listed, entries, side.list_versions))

        def point(name: str) -> None:
            if name == "moving.compared":
                store.put(f"{bucket}/010", b"changed")
            elif name == "moving.names_compared":  # it closes the bucket next
                store.put_many([(f"{bucket}/00{number}", b"changed") for number in range(5)])
                store.delete(f"{bucket}/009")
            elif name in ("moving.closed", "moving.gone"):
                found.append((sum(map(len, statements)), len(entries)))

        run_move(point, bucket)
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(there, bucket) == contents(here, bucket)
        assert len(contents(there, bucket)) == objects - 1
        assert here.metadata.last_change(bucket) == 0
    closed, gone = found
    return gone[0] - closed[0], gone[1] - closed[1]


def _listed(entries: list[object], listed: Callable[..., VersionPage], *args: Any) -> VersionPage:
    page = listed(*args)
    entries += page.entries
    return page


@pytest.mark.parametrize("limit", ["names", "bytes", "time"])
def test_a_bucket_is_opened_again_if_too_much_has_changed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    fill(settings)
    monkeypatch.setattr(bucket_mover, "CLOSED_NAMES_MAX", 3 if limit == "names" else 100)
    monkeypatch.setattr(bucket_mover, "CLOSED_BYTES_MAX", 30 if limit == "bytes" else 1 << 20)
    points: list[str] = []
    with open_store(settings) as store, new_mover(settings) as (mover, run_move):
        clock = SlowClock(mover._source.clock)
        mover._source = replace(mover._source, clock=clock)

        def point(name: str) -> None:
            points.append(name)
            closed = points.count("moving.closed")
            clock.step_ms = 400 if limit == "time" and closed == 1 else 0
            if name in ("moving.compared", "moving.names_compared") and closed < 2:
                for number in range(4):
                    store.put(f"photos/{number}", name.encode())
            if name == "moving.names_compared" and closed == 1:
                store.set_attributes("photos/plain", {"while": "open again"})
                assert store.get("photos/0") == b"moving.names_compared"

        monkeypatch.setattr(bucket_mover, "PASSES_MAX", 1)
        run_move(point)
    # The bytes and the names are as many at the second attempt as at the first one.
    assert points.count("moving.closed") == (2 if limit == "time" else 3)
    assert points.count("moving.last_compared") == 1
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(there, "photos") == contents(here, "photos")
        assert there.metadata.get(ObjectKey("photos", "plain")).attributes
        assert here.metadata.last_change("photos") == 0


class SlowClock:
    """A clock that advances by `step_ms` more whenever it is read."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._more_ms = clock, 0
        self.step_ms = 0

    def now_ms(self) -> int:
        self._more_ms += self.step_ms
        return self._clock.now_ms() + self._more_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        return self._clock.wait(stop, wait_ms)


def test_a_move_ends_if_too_much_changes_each_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings)
    monkeypatch.setattr(bucket_mover, "CLOSED_NAMES_MAX", 1)
    monkeypatch.setattr(bucket_mover, "PASSES_MAX", 2)
    monkeypatch.setattr(bucket_mover, "ROUNDS_MAX", 3)
    with open_store(settings) as store, new_mover(settings) as (_, run_move):

        def point(name: str) -> None:
            if name in ("moving.compared", "moving.names_compared"):
                store.put_many([("photos/1", b"1"), ("photos/2", b"2")])

        with pytest.raises(Transient, match="bucket photos was closed 3 times"):
            run_move(point)
        store.put("photos/plain", b"served")
    assert home_of(settings) == "a"
    with cell(settings, "a") as here:
        assert here.metadata.last_change("photos") == 0
        before = contents(here, "photos")
    monkeypatch.undo()
    move(settings, "b")
    with cell(settings, "b") as there:
        assert contents(there, "photos") == before


@pytest.mark.parametrize("is_changed", [True, False])
@pytest.mark.parametrize("name", ["plain", "large"])
def test_a_version_that_is_gone_when_it_is_read(settings: Settings, name: str, is_changed: bool) -> None:
    """If a user has removed it before it was read, or after the first bytes of a large one, its key is copied again.
    Otherwise it is damaged, and the move ends."""
    fill(settings)
    with open_store(settings) as store, new_mover(settings) as (_, run_move):
        read, refused = Store.open_ciphertext, list[str]()

        def missing(reads: Store, row: ObjectRow, offset: int, length: int) -> Iterator[bytes]:
            if row.key.name == name and not refused:
                refused.append(name)
                if is_changed:
                    store.put(f"photos/{name}", b"changed")
                if name == "plain":
                    raise NotFound("it is gone")
                yield next(read(reads, row, offset, length)) if not is_changed else b"first"
                raise Conflict("it is gone; read it again")
            yield from read(reads, row, offset, length)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "open_ciphertext", missing)
            if is_changed:
                run_move(lambda _: None)
            else:
                with pytest.raises(NotFound, match="it is gone"):
                    run_move(lambda _: None)
        assert refused
    assert home_of(settings) == ("b" if is_changed else "a")
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert (contents(there, "photos") == contents(here, "photos")) == is_changed


@pytest.mark.parametrize("what", ["purged", "changed", "lost"])
def test_a_version_in_the_trash_that_is_not_found(settings: Settings, what: str) -> None:
    """If a user has purged it, it is left out; if its row has changed, it is read again. Otherwise, the move ends."""
    fill(settings)
    with open_system(settings.of_cell("a")) as here, new_mover(settings) as (_, run_move):
        metadata, key = here.metadata, ObjectKey("photos", "large")
        metadata.delete(key, 6, KEPT_MS)
        read, tried = VersionCopier._read, list[ObjectRow]()

        def missing(copier: VersionCopier, row: ObjectRow) -> Iterator[bytes]:
            if row.key == key and not tried:
                tried.append(row)
                if what == "purged":
                    assert metadata.purge_trash([row], 7)
                    return read(copier, row)
                if what == "changed":  # as when its bytes are packed
                    with metadata._engine.begin() as connection:  # type: ignore[attr-defined]
                        of_row = OBJECTS.c.object_id == row.object_id
                        connection.execute(update(OBJECTS).where(of_row).values(created_ms=77))
                raise NotFound("it is gone")
            return read(copier, row)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VersionCopier, "_read", missing)
            if what == "lost":
                with pytest.raises(NotFound, match="it is gone"):
                    run_move(lambda _: None)
                assert home_of(settings) == "a"
                return
            run_move(lambda _: None)
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert [one[2] for one in trashed(there)] == ([77] if what == "changed" else [])
        assert trashed(there) == trashed(here)
        assert contents(there, "photos") == contents(here, "photos")


@pytest.mark.parametrize("versions", [1, 16, 17, 40])
def test_a_single_key_is_read_as_among_all(settings: Settings, versions: int) -> None:
    with open_system(settings.of_cell("a")) as system:
        for name in ("k", "k2", "k/3", "j"):
            for number in range(versions if name == "k" else 2):
                key = ObjectKey("photos", name)
                system.client.store().put(key, BytesIO(bytes(number)), versioning=Versioning.ENABLED)
        system.client.store().delete_versions([AddMarker(ObjectKey("photos", "k2"), Versioning.ENABLED)])
        for key_read in walk(system.metadata, "photos"):
            found = key_of(system.metadata, "photos", key_read.name)
            assert found is not None
            assert (found.name, found.contents) == (key_read.name, key_read.contents)
        for name in ("", "k/", "a", "z"):
            assert key_of(system.metadata, "photos", name) is None


@pytest.mark.parametrize("point", ["moving.compared", "moving.closed", "moving.bucket_copied"])
def test_an_earlier_mover_does_no_harm(settings: Settings, point: str) -> None:
    fill(settings)
    with interrupted(settings, point) as mover:
        move(settings, "b")
        with open_store(settings) as store:
            store.put("photos/plain", b"later")
        with cell(settings, "b") as there:
            before = contents(there, "photos")
        target = mover._target.metadata
        home = DirectoryRow("photos", "a", "ann", 5)
        changes: list[Any] = [
            lambda: mover._copy(home, MoveRow("photos", MoveState.LEAVING, "b", 1, 7, 0), lambda *_: None),
            lambda: target.remove_key("photos", "plain", 5),
            lambda: target.restore_buckets([BucketRecord(BucketRow("photos", "eve", 5), {}, {})]),
            lambda: target.record_markers([MarkerRow(ObjectKey("photos", "plain"), 5, 5, is_null=False)]),
            lambda: mover._directory.move_home("photos", "b", "a", 1),
        ]
        for change in changes:
            with pytest.raises((Conflict, Moved)):
                change()
        with cell(settings, "b") as there:
            assert contents(there, "photos") == before
    assert home_of(settings) == "b"


def let_die(settings: Settings, number: int = 7) -> None:
    """Let the leases of this mover end, as those of a process that does not renew them."""
    for name in settings.cells:
        with open_system(settings.of_cell(name)) as system:
            for lease in system.metadata.list_leases(mover_lease(number)):
                assert system.metadata.fence_lease(lease, lease.expires_ms)


def recover(settings: Settings, name: str = "a") -> int:
    """What the daemons of a cell do about moves. Returns how many buckets the cell serves again."""
    with open_system(settings.of_cell(name)) as system:
        return system.worker.move_recovery().run_once()


@pytest.mark.parametrize("point", ["moving.leaving", "moving.closed"])
def test_a_bucket_takes_changes_again_when_its_mover_has_died(settings: Settings, point: str) -> None:
    before = fill(settings)
    with interrupted(settings, point) as mover:
        with mover._source.new_lease(mover_lease(7)):
            assert recover(settings) == 0, "it lives"
        assert recover(settings) == 1
        with open_system(settings.of_cell("a")) as system:
            upload = system.client.uploads().create(ObjectKey("photos", "parts"), "ann", b"")
            system.metadata.abort_upload(upload.upload_id, 5)
            system.metadata.forget_upload(replace(upload, since_ms=5))
            assert [row.state for row in stalled_moves(system.metadata)] == []
        with open_system(settings.of_cell("b")) as system:
            assert [row.state for row in stalled_moves(system.metadata)] == [MoveState.ARRIVING]
    with open_store(settings) as store:
        store.put("photos/later", b"x")
    move(settings, "b")
    with cell(settings, "b") as there:
        assert len(contents(there, "photos")) == len(before) + 1
        assert stalled_moves(there.metadata) == []


def test_a_move_that_is_not_complete_is_not_given_back(settings: Settings, capsys: Any) -> None:
    fill(settings)
    with interrupted(settings, "moving.gone"):
        assert recover(settings) == 0
        with cell(settings, "a") as here, cell(settings, "b") as there:
            assert [row.state for row in stalled_moves(here.metadata)] == [MoveState.GONE]
            assert [row.state for row in stalled_moves(there.metadata)] == [MoveState.ARRIVING]
            (sample,) = move_samples(there.metadata)
            assert sample.value == 1
        config = Path(settings.of_cell("a").store.root).parent / "cells.toml"
        capsys.readouterr()
        assert run(["--config", str(config), "cells", "moves", "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)["moves"]
        assert [(one["state"], one["stalled"]) for one in listed] == [("gone", True), ("arriving", True)]
    move(settings, "b")
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert stalled_moves(here.metadata) == stalled_moves(there.metadata) == []


@contextmanager
def paused(at: str, meanwhile: Callable[[], object]) -> Iterator[list[str]]:
    """Does this when a mover first reaches a kill point, as if the mover was paused there. Returns the points at which
    that happened."""
    done: list[str] = []

    def point(name: str) -> None:
        if name == at and not done:
            done.append(name)
            meanwhile()

    with pytest.MonkeyPatch.context() as patch:
        for module in (bucket_mover, version_copier):
            patch.setattr(module, "kill_point", point)
        yield done


@pytest.mark.parametrize("point", ["moving.leaving", "moving.closed", "moving.bucket_copied"])
def test_a_mover_that_was_taken_for_dead_begins_again(settings: Settings, point: str) -> None:
    before = fill(settings)

    def meanwhile() -> None:
        end_leases(settings)
        assert recover(settings) == 1
        with open_store(settings) as store:
            store.put("photos/meanwhile", b"x")
            store.delete("photos/d/ä")

    with paused(point, meanwhile) as done:
        move(settings, "b")
    assert done
    with cell(settings, "b") as there:
        now = contents(there, "photos")
    assert {one[0] for one in now} == {one[0] for one in before} - {"d/ä"} | {"meanwhile"}
    assert home_of(settings) == "b"


def test_a_mover_that_lost_its_leases_while_it_copied_a_large_object_begins_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fill(settings)
    lost: list[str] = []

    def point(name: str) -> None:
        if name == "large.written" and not lost:
            for one in "ab":
                with cell(settings, one) as system:
                    for lease in system.metadata.list_leases(""):
                        lost.append(lease.name)
                        assert system.metadata.fence_lease(lease, lease.expires_ms)
            assert recover(settings) == 1

    monkeypatch.setattr(large, "kill_point", point)
    move(settings, "b")
    assert any(name.startswith("put-") for name in lost)
    with cell(settings, "b") as there:
        assert contents(there, "photos") == before
    assert home_of(settings) == "b"


def test_a_mover_that_was_taken_for_dead_forgets_no_changes(settings: Settings) -> None:
    fill(settings)
    points: list[str] = []
    with open_store(settings) as store, new_mover(settings) as (_, run_move):

        def point(name: str) -> None:
            points.append(name)
            if points.count("moving.leaving") == 1:
                if name == "moving.compared":
                    store.put("photos/plain", b"changed")
                elif name == "moving.names_compared":
                    let_die(settings, 7)
                    assert recover(settings) == 1
                    store.put("photos/plain", b"changed again")

        run_move(point)
    assert points.count("moving.leaving") == 2
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(there, "photos") == contents(here, "photos")
        assert any(one[0] == "plain" and one[-1] == b"changed again" for one in contents(there, "photos"))


def end_leases(settings: Settings) -> None:
    """Let the leases of all movers end."""
    with open_system(settings.of_cell("a")) as system:
        held = system.metadata.list_leases("move-")
    for lease in held:
        let_die(settings, int(lease.name.removeprefix("move-"), 16))


@pytest.mark.parametrize(
    ("point", "days"),
    [
        ("moving.arriving", 1),
        ("moving.copies_recorded", -1),
        ("moving.compared", 1),
        ("moving.bucket_copied", -1),
        ("moving.gone", 1),
    ],
)
def test_a_mover_that_continues_after_another_one_has_finished(settings: Settings, point: str, days: int) -> None:
    """It was paused for longer than any lease, and the clock of the host was set meanwhile."""
    fill(settings)
    after: list[tuple[object, ...]] = []
    now_ms = SystemClock.now_ms

    def meanwhile() -> None:
        end_leases(settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SystemClock, "now_ms", lambda clock: now_ms(clock) + days * DAY)
            recover(settings)
            move(settings, "b")
            with open_store(settings) as store:
                store.put("photos/plain", b"later")
                store.delete("photos/d/ä")
        with cell(settings, "b") as there:
            after.extend(contents(there, "photos"))

    with paused(point, meanwhile) as done, pytest.raises((Conflict, Transient)):
        move(settings, "b")
    assert done
    assert home_of(settings) == "b"
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(there, "photos") == after
        states = [system.metadata.move_row("photos") for system in (here, there)]
        assert [row.state for row in states if row is not None] == [MoveState.GONE, MoveState.HERE]
        assert stalled_moves(here.metadata) == stalled_moves(there.metadata) == []
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"later"


@pytest.mark.parametrize("command", ["move", "purge"])
@pytest.mark.parametrize("point", ["moving.gone", "moving.home_changed"])
def test_a_bucket_that_has_moved_is_served_when_its_mover_has_died(
    settings: Settings, point: str, command: str
) -> None:
    before = fill(settings)
    with interrupted(settings, point) as mover:
        with mover._target.new_lease(mover_lease(7)):
            assert recover(settings, "b") == 0, "it lives"
        assert recover(settings, "a") == 0, "only the new cell may serve it"
        assert [recover(settings, "b") for _ in range(2)] == [1, 0]
    assert home_of(settings) == "b"
    with cell(settings, "b") as there:
        assert contents(there, "photos") == before
        assert stalled_moves(there.metadata) == []
    with open_store(settings) as store:
        store.put("photos/plain", b"later")
    with cell(settings, "a") as here:
        assert [row.state for row in stalled_moves(here.metadata)] == [MoveState.GONE]
        assert recover(settings, "a") == 0
        assert stalled_moves(here.metadata) == [], "the other cell serves it"
        assert here.metadata.bucket_documents("photos", list(DocumentKind)), "a command removes them"
    if command == "move":
        move(settings, "b")
    else:
        dump(settings, "b")
        config = Path(settings.of_cell("a").store.root).parent / "cells.toml"
        assert run(["--config", str(config), "cells", "purge", "photos", "--from", "a"]) == 0
    with cell(settings, "a") as here:
        assert here.metadata.bucket_documents("photos", list(DocumentKind)) == {}
        assert all_unfinished_moves(here.metadata) == []
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"later"


@pytest.mark.parametrize("point", ["moving.gone", "moving.home_changed"])
def test_a_mover_that_was_paused_after_the_move_goes_on(settings: Settings, point: str) -> None:
    fill(settings)

    def meanwhile() -> None:
        end_leases(settings)
        assert recover(settings, "b") == 1
        with open_store(settings) as store:
            store.put("photos/plain", b"later")

    with paused(point, meanwhile) as done:
        move(settings, "b")
    assert done
    with cell(settings, "a") as here, cell(settings, "b") as there:
        states = [system.metadata.move_row("photos") for system in (here, there)]
        assert [row.state for row in states if row is not None] == [MoveState.GONE, MoveState.HERE]
        assert stalled_moves(here.metadata) == stalled_moves(there.metadata) == []
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"later"


@pytest.mark.parametrize("point", ["moving.closed", "moving.gone", "moving.home_changed", "moving.here"])
def test_a_bucket_is_listed_at_any_time_of_its_move(settings: Settings, point: str) -> None:
    fill(settings)
    with open_store(settings) as store:
        for name in ("before", "photos.2"):
            store.put(f"{name}/k", b"1")
        with interrupted(settings, point):
            assert list(store.buckets()) == ["before", "photos", "photos.2"]
        move(settings, "b")
        assert list(store.buckets()) == ["before", "photos", "photos.2"]
        with cell(settings, "b") as there:
            row = there.metadata.move_row("photos")
            assert row is not None
            there.metadata.move_as(row)
            for key in walk(there.metadata, "photos"):
                there.metadata.remove_key("photos", key.name, 5)
        assert list(store.buckets()) == ["before", "photos.2"], "old copies are not those of a bucket"


def test_a_bucket_that_moves_while_the_cells_are_read_is_listed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is also listed if it comes to a cell that was read before, and belongs in the middle of a page."""
    fill(settings)
    with open_store(settings) as store:
        for name in ("before", "photos.2", "photos.3"):
            store.put(f"{name}/k", b"1")
        first, then = (store._cells.system(name).metadata for name in "ba")
        list_first = first.list_buckets

        def listed(after: str, limit: int) -> list[str]:
            page = list_first(after, limit)
            move(settings, "b")
            monkeypatch.undo()
            return page

        monkeypatch.setattr(store._cells, "names", lambda: ["b", "a", "c"])
        monkeypatch.setattr(first, "list_buckets", listed)
        assert store._cells.list_buckets("", 2) == ["before", "photos"]
        assert store._cells.list_buckets("photos", 2) == ["photos.2", "photos.3"]
        assert then.list_buckets("", 9) == ["before", "photos.2", "photos.3"]


@pytest.mark.parametrize("point", ["moving.arriving", "moving.leaving", "moving.compared", "moving.closed"])
def test_copies_are_not_served_before_the_move(settings: Settings, point: str) -> None:
    fill(settings)
    with interrupted(settings, point):
        pass
    let_die(settings)
    assert recover(settings, "b") == 0
    with cell(settings, "b") as there:
        assert [row.state for row in stalled_moves(there.metadata)] == [MoveState.ARRIVING]
    assert home_of(settings) == "a"


def test_a_bucket_is_not_served_while_the_other_cell_is_away(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings)
    with interrupted(settings, "moving.gone"):
        pass
    let_die(settings)

    def fail(*_: object) -> None:
        raise Transient("no answer")

    with open_system(settings.of_cell("b")) as system:
        clock = SetClock(system.clock.now_ms())
        monkeypatch.setattr(system, "clock", clock)
        recovery = system.worker.move_recovery()
        with pytest.MonkeyPatch.context() as patch, capture_logs() as logged:
            patch.setattr(worker_side, "open_other_cell", fail)
            for _ in range(2):
                assert recovery.run_once() == 0
                clock.advance(CHECK_WAIT_MS)
        assert [line["error"] for line in logged] == ["cell a cannot be read: no answer"]
        clock.advance(worker_side.OTHER_CELL_WAIT_MS)
        assert recovery.run_once() == 1


def test_a_cell_that_does_not_answer_is_asked_once_a_minute(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question may take as long as a statement may. The loop shows that it lives before each."""
    with open_system(settings.of_cell("a")) as system:
        clock = SetClock(system.clock.now_ms())
        monkeypatch.setattr(system, "clock", clock)
        for bucket in ("one", "two"):
            system.metadata.set_move(MoveRow(bucket, MoveState.ARRIVING, "b", 1, 7, 0), None)
        recovery = system.worker.move_recovery()
        recovery.run_once()  # opens the other cell
        asked: list[str] = []

        def fail(_: SqlMetadata, bucket: str) -> MoveRow:
            asked.append(bucket)
            raise Transient("no answer")

        beats: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(SqlMetadata, "move_row", fail)
            for _ in range(worker_side.OTHER_CELL_WAIT_MS // CHECK_WAIT_MS):
                clock.advance(CHECK_WAIT_MS)
                recovery.run_once(beats.append)
            assert asked == ["one"]
            assert beats == [0, 0] * (worker_side.OTHER_CELL_WAIT_MS // CHECK_WAIT_MS)
            clock.advance(CHECK_WAIT_MS)
            recovery.run_once()
            assert asked == ["one", "one"]
        assert [row.bucket for row in stalled_moves(system.metadata)] == ["one", "two"]


@pytest.mark.parametrize("rows_max", [1, 10_000])
def test_names_that_a_dead_mover_has_left_are_forgotten(
    settings: Settings, rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(settings)
    monkeypatch.setattr(move_recovery, "FORGOTTEN_MAX", rows_max)
    with interrupted(settings, "moving.compared") as mover:
        with open_store(settings) as store:
            for name in ("plain", "later"):
                store.put(f"photos/{name}", b"new")
        with mover._source.new_lease(mover_lease(7)):
            recover(settings)
            with cell(settings, "a") as here:
                assert len(here.metadata.changed_names("photos", KEPT_MS, 9)) == 2, "it lives"
    for left in (1, 0) if rows_max == 1 else (0, 0):
        recover(settings)
        with cell(settings, "a") as here:
            assert len(here.metadata.changed_names("photos", KEPT_MS, 9)) == left
    move(settings, "b")
    with open_store(settings) as store:
        assert [store.get(f"photos/{name}") for name in ("plain", "later")] == [b"new", b"new"]


def lock(system: System, name: str, lock: Lock, *, bypass: bool = False) -> ObjectRow:
    """Change the lock of a version, and return its row."""
    row = system.metadata.get(ObjectKey("photos", name))
    system.client.locks().change(row, lock, bypass=bypass)
    return system.metadata.get(row.key)


def lock_some(settings: Settings) -> None:
    """Add locked versions to the bucket in cell a: with locks of their PUTs, and with later ones."""
    with open_system(settings.of_cell("a")) as system:
        system.metadata.set_bucket_document("photos", DocumentKind.OBJECT_LOCK, b"x", 5)
        kept = Lock(LockMode.COMPLIANCE, KEPT_MS)
        for name in ("kept", "extended", "held", "freed", "large kept"):
            request = PutRequest(ObjectKey("photos", name), versioning=Versioning.ENABLED, lock=kept)
            if name in ("held", "freed"):
                request = replace(request, lock=None)
            system.client.store().put_request(request, BytesIO(name.encode() * (90_000 if "large" in name else 1)))
        lock(system, "extended", replace(kept, until_ms=KEPT_MS + 1))
        lock(system, "large kept", replace(kept, until_ms=KEPT_MS + 2))
        lock(system, "held", Lock(hold=True))
        lock(system, "freed", Lock(hold=True))
        lock(system, "freed", Lock())
        request = PutRequest(ObjectKey("photos", "kept"), versioning=Versioning.ENABLED)
        system.client.store().put_request(request, BytesIO(b"makes it noncurrent"))


def locked_in(system: System) -> list[VersionEntry]:
    """The versions of the bucket that are locked, each of which the cell refuses to delete."""
    found = []
    for key in walk(system.metadata, "photos"):
        for one in key.versions:
            if one.row is not None and one.row.lock is not None and one.row.lock.protects(5):
                found.append(one)
                (refusal,) = system.client.store().delete_versions(
                    [DeleteVersion(one.key, None if one.is_null else one.version)]
                )
                assert isinstance(refusal, Locked)
    return found


@pytest.mark.invariant(11)
def test_locked_versions_are_moved_with_their_locks(settings: Settings) -> None:
    fill(settings)
    lock_some(settings)
    with interrupted(settings, "moving.compared"), open_system(settings.of_cell("a")) as system:
        lock(system, "large kept", Lock(LockMode.COMPLIANCE, KEPT_MS + 3))
        lock(system, "plain", Lock(hold=True))
        lock(system, "extended", Lock(LockMode.COMPLIANCE, KEPT_MS + 4))
    with open_system(settings.of_cell("a")) as here:
        before = contents(here, "photos")
        names = [one.key.name for one in locked_in(here)]
        assert names == ["extended", "held", "kept", "large kept", "plain"]
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there, cell(settings, "a") as here:
        assert contents(there, "photos") == contents(here, "photos") == before
        assert [one.key.name for one in locked_in(there)] == names
        assert there.metadata.bucket_document("photos", DocumentKind.OBJECT_LOCK) == b"x"

        def noted(system: System) -> list[tuple[object, ...]]:
            rows = [one for bucket in note_buckets() for one in system.metadata.list_objects(bucket, "", "", 100)]
            return [(row.key, row.size, row.crc32c) for row in rows]

        assert len(noted(there)) == 5
        assert noted(there) == noted(here), "so a rebuild finds the same locks"
    dump(settings, "b")
    config = Path(settings.of_cell("a").store.root).parent / "cells.toml"
    assert run(["--config", str(config), "cells", "purge", "photos", "--from", "a"]) == 0
    with open_system(settings.of_cell("b")) as there, cell(settings, "a") as here:
        assert contents(here, "photos") == []
        assert noted(here) == []
        assert contents(there, "photos") == before
        extended = lock(there, "extended", Lock(LockMode.COMPLIANCE, KEPT_MS + 5))
        assert extended.lock is not None
        assert extended.lock.until_ms == KEPT_MS + 5
        with pytest.raises(Locked):
            lock(there, "extended", Lock(LockMode.COMPLIANCE, KEPT_MS), bypass=True)


def trashed(system: System) -> list[tuple[object, ...]]:
    """The versions of the bucket in the trash of a cell, with their times and the bytes that are read."""
    store = system.client.store()
    rows = [row for page in trash_of(system.metadata, "photos") for row in page]
    return sorted(
        (row.key.name, row.version, row.created_ms, row.attributes, row.trash_until_ms, row.trashed_ms, data)
        for row in rows
        for data in [b"".join(store.open_ciphertext(row, 0, row.size))]
    )


def test_the_trash_of_a_bucket_is_moved(settings: Settings) -> None:
    fill(settings)
    kept_ms = KEPT_MS
    with open_system(settings.of_cell("a")) as system:
        metadata, objects = system.metadata, system.client.store()

        def delete(name: str, trashed_ms: int, until_ms: int, bucket: str = "photos") -> None:
            metadata.delete(ObjectKey(bucket, name), trashed_ms, until_ms)

        for name, ms in (("plain", 6), ("large", 6), ("sealed", 7), ("empty", 8), ("d/ä", 8)):
            delete(name, ms, kept_ms + ms)
        objects.put(ObjectKey("photos", "plain"), BytesIO(b"twice"))
        delete("plain", 9, kept_ms + 6)
        with interrupted(settings, "moving.compared"):
            metadata.undelete([system.client.trash().find(ObjectKey("photos", "sealed"))])
            metadata.purge_trash([system.client.trash().find(ObjectKey("photos", "empty"))], 10)
            objects.put(ObjectKey("photos", "over"), BytesIO(b"over"))
            delete("over", 11, 12)
        before, alive = trashed(system), contents(system, "photos")
        assert [one[0] for one in before] == ["d/ä", "large", "over", "plain", "plain"]
        objects.put(ObjectKey("other", "over"), BytesIO(b"over"))
        delete("over", 11, 12, bucket="other")
    move(settings, "b")
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert trashed(there) == trashed(here) == before
        assert contents(there, "photos") == contents(here, "photos") == alive
    with open_system(settings.of_cell("a")) as here:
        assert here.client.trash().expire().objects == 1, "the old copies are in nobody's way"
        assert trashed(here) == before
    with open_system(settings.of_cell("b")) as there:
        assert there.client.trash().expire().objects == 1
        can = there.client.trash()
        can.undelete(can.find(ObjectKey("photos", "large")))
    with open_store(settings) as store:
        assert store.get("photos/large") == bytes(range(256)) * 3000
    dump(settings, "b")
    config = Path(settings.of_cell("a").store.root).parent / "cells.toml"
    assert run(["--config", str(config), "cells", "purge", "photos", "--from", "a"]) == 0
    with cell(settings, "a") as here:
        assert trashed(here) == contents(here, "photos") == []


def fill_for_rebuild(settings: Settings) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Fill the bucket, also with locks, holds and a trash. Returns what it has, and what its trash has."""
    fill(settings)
    lock_some(settings)
    with open_system(settings.of_cell("a")) as system:
        for name in ("plain", "large"):
            system.metadata.delete(ObjectKey("photos", name), 6, KEPT_MS)
        before, in_trash = contents(system, "photos"), trashed(system)
    assert [one[0] for one in in_trash] == ["large", "plain"]
    return before, in_trash


def lose_and_rebuild(settings: Settings, folder: Path, name: str, *arguments: str) -> None:
    """Delete the database of a cell, and rebuild it and the directory."""
    for part in Path(settings.of_cell(name).store.root).glob("metadata.db*"):
        part.unlink()
    config, to_look_at = str(folder / "cells.toml"), str(folder / "list")
    rebuild = ["--cell", name, "metadata", "rebuild", "--list", to_look_at, *arguments]
    assert run(["--config", config, *rebuild]) == 0
    assert run(["--config", config, "cells", "rebuild-directory"]) == 0


def assert_has_all(system: System, before: list[tuple[object, ...]], in_trash: list[tuple[object, ...]]) -> None:
    """The cell has these versions, this trash, and the locks of `lock_some`."""
    assert contents(system, "photos") == before
    assert trashed(system) == in_trash
    assert [one.key.name for one in locked_in(system)] == ["extended", "held", "kept", "large kept"]


@pytest.mark.invariant(11)
def test_a_moved_bucket_is_as_it_was_when_its_new_database_was_rebuilt(settings: Settings, tmp_path: Path) -> None:
    """The database is rebuilt from the dump after the move, when the old copies are purged: with locks, holds and the
    trash."""
    before, in_trash = fill_for_rebuild(settings)
    move(settings, "b")
    dump(settings, "b")
    config = str(tmp_path / "cells.toml")
    assert run(["--config", config, "cells", "purge", "photos", "--from", "a"]) == 0
    lose_and_rebuild(settings, tmp_path, "b")
    assert home_of(settings) == "b"
    with open_system(settings.of_cell("b")) as there, cell(settings, "a") as here:
        assert_has_all(there, before, in_trash)
        assert contents(here, "photos") == trashed(here) == []


@pytest.mark.invariant(11)
@pytest.mark.parametrize(
    ("lost", "point"),
    [
        ("a", "moving.compared"),
        ("a", "moving.closed"),
        ("a", "moving.gone"),
        ("a", "moving.home_changed"),
        ("a", "moving.here"),
        ("b", "moving.compared"),
        ("b", "moving.closed"),
    ],
)
def test_a_move_continues_after_a_database_was_rebuilt(
    settings: Settings, tmp_path: Path, lost: str, point: str
) -> None:
    """The source has a dump from before the move, and the target has none."""
    before, in_trash = fill_for_rebuild(settings)
    dump(settings, "a")
    with interrupted(settings, point):
        pass
    lose_and_rebuild(settings, tmp_path, lost, *(["--without-dump"] if lost == "b" else []))
    move(settings, "b")
    assert home_of(settings) == "b"
    with open_system(settings.of_cell("b")) as there:
        assert_has_all(there, before, in_trash)


@pytest.mark.invariant(11)
@pytest.mark.parametrize(
    ("point", "rebuilt_from"),
    [
        ("moving.gone", "nothing"),
        ("moving.home_changed", "nothing"),
        ("moving.here", "nothing"),
        ("", "nothing"),
        ("", "a dump before the move"),
        ("", "a backup before the move"),
    ],
)
def test_a_bucket_is_completed_from_its_old_copies(
    settings: Settings, tmp_path: Path, capsys: Any, point: str, rebuilt_from: str
) -> None:
    """The database of its new cell was lost before a dump had the move. Nobody reads the bucket before it is whole."""
    before, in_trash = fill_for_rebuild(settings)
    config = ["--config", str(tmp_path / "cells.toml")]
    arguments = ["--without-dump"]
    if "dump" in rebuilt_from:
        dump(settings, "b")
        arguments = []
    elif "backup" in rebuilt_from:
        backup = str(tmp_path / "backup")
        assert run([*config, "--cell", "b", "metadata", "dump", "--to", backup]) == 0
        arguments = ["--from", backup]
    if point:
        with interrupted(settings, point):
            pass
        let_die(settings)
    else:
        move(settings, "b")
    lose_and_rebuild(settings, tmp_path, "b", *arguments)
    fill_directory(settings, as_json=False)
    assert home_of(settings) == "b"
    assert recover(settings, "b") == 0
    capsys.readouterr()
    with open_store(settings) as store, pytest.raises(Moved, match="must be completed from its old copies in cell a"):
        store.get("photos/sealed")
    assert run([*config, "cells", "moves"]) == 0
    assert "nos-ec cells move photos --to b" in capsys.readouterr().out
    assert run([*config, "cells", "move", "photos", "--to", "c"]) == 2
    assert "must be completed from its old copies first" in capsys.readouterr().err
    assert run([*config, "cells", "purge", "photos", "--from", "a"]) == 5
    assert run([*config, "cells", "move", "photos", "--to", "b"]) == 0
    with open_system(settings.of_cell("b")) as there, cell(settings, "a") as here:
        assert_has_all(there, before, in_trash)
        assert stalled_moves(here.metadata) == stalled_moves(there.metadata) == []
    dump(settings, "b")
    assert run([*config, "cells", "purge", "photos", "--from", "a"]) == 0
    lose_and_rebuild(settings, tmp_path, "b")
    with open_system(settings.of_cell("b")) as there, cell(settings, "a") as here:
        assert_has_all(there, before, in_trash)
        assert not bucket_mover.has_copies(here.metadata, "photos")
    capsys.readouterr()


@pytest.mark.parametrize("point", BROUGHT_BACK_POINTS)
def test_kill_the_command_that_completes_a_bucket_from_its_old_copies(bench: Bench, capsys: Any, point: str) -> None:
    settings = new_cells(bench.folder, a=1, b=0)
    bench.config = cells_config(bench.folder, a=1, b=0)
    before, in_trash = fill_for_rebuild(settings)
    move(settings, "b")
    lose_and_rebuild(settings, bench.folder, "b", "--without-dump")
    done = bench.run("cells", "move", "photos", "--to", "b", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    end_leases(settings)
    assert recover(settings, "b") == 0, "it may not be complete"
    done = bench.run("cells", "move", "photos", "--to", "b")
    assert done.returncode == 0, done.stderr
    with open_system(settings.of_cell("b")) as there:
        assert_has_all(there, before, in_trash)
    capsys.readouterr()


@pytest.mark.invariant(11)
@pytest.mark.parametrize(
    "point",
    [
        "moving.arriving",
        "moving.compared",
        "moving.closed",
        "moving.gone",
        "moving.home_changed",
        "moving.here",
    ],
)
def test_a_move_continues_after_the_directory_was_rebuilt(tmp_path: Path, capsys: Any, point: str) -> None:
    """The directory is in a third cell, and no dump has it."""
    settings = new_cells(tmp_path, c=0, a=1, b=0)
    before, in_trash = fill_for_rebuild(settings)
    with interrupted(settings, point):
        pass
    let_die(settings)
    lose_and_rebuild(settings, tmp_path, "c", "--without-dump")
    has_left = point in ("moving.gone", "moving.home_changed", "moving.here")
    assert home_of(settings) == ("b" if has_left else "a")
    for name in "ab":
        recover(settings, name)
    with open_store(settings) as store:
        assert store.get("photos/empty") == b""
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there, cell(settings, "a") as here:
        assert_has_all(there, before, in_trash)
        assert all_unfinished_moves(here.metadata) == all_unfinished_moves(there.metadata) == []
    capsys.readouterr()


@pytest.mark.parametrize("point", ["moving.compared", "moving.names_compared", "moving.gone", "moving.here"])
def test_what_was_changed_before_the_old_cell_was_lost_is_moved(tmp_path: Path, capsys: Any, point: str) -> None:
    """Its dump began before the changes, and its journal has them."""
    settings, _ = with_journal(tmp_path)
    fill(settings)
    dump(settings, "a")

    def change_some(name: str) -> None:
        if name == "moving.compared":
            with open_system(settings.of_cell("a")) as here:
                change(here)

    with new_mover(settings) as (mover, run_move), pytest.MonkeyPatch.context() as patch:
        patch.setattr(mover, "_serve_again", lambda *_: None)

        def stop(name: str) -> None:
            change_some(name)
            if name == point:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            run_move(stop)
    let_die(settings)
    with cell(settings, "a") as here:
        after = without_numbers(here)
    lose_and_rebuild(settings, tmp_path, "a")
    move(settings, "b")
    with cell(settings, "b") as there:
        assert without_numbers(there) == after
    capsys.readouterr()


def with_journal(folder: Path) -> tuple[Settings, Path]:
    """The settings of a new store with two cells that have journals of deletes, and their file."""
    new_cells(folder, a=1, b=0)
    file = folder / "cells.toml"
    file.write_text(file.read_text().replace("[store]\n", "[store]\njournal_rows_max = 1000\n"))
    return load_settings(file, {}), file


def change(system: System) -> None:
    """Change objects of the bucket in all ways that the journal of deletes knows, and write it into the store."""
    objects, key = system.client.store(), partial(ObjectKey, "photos")
    objects.delete(key("plain"))
    objects.delete(key("empty"))
    objects.put(key("sealed"), BytesIO(b"overwritten"))
    objects.put(key("new"), BytesIO(b"new"))
    system.metadata.set_attributes(system.metadata.get(key("d/ä")), encode_attributes({"of": "later"}))
    objects.delete_versions([AddMarker(key("versions"), Versioning.ENABLED)])
    hidden = key_of(system.metadata, "photos", "hidden")
    assert hidden is not None
    (marker,) = [one for one in hidden.versions if one.row is None]
    objects.delete_versions([DeleteVersion(key("hidden"), marker.version)])
    system.client.journal().ship()


def without_numbers(system: System) -> list[tuple[object, ...]]:
    """The contents of the bucket. What is recovered from a landing copy has the time of its PUT, not its number."""
    return [(name, *about) for name, _, _, *about in contents(system, "photos")]


@pytest.mark.parametrize("dumped", [False, True])
def test_what_was_changed_after_a_move_is_not_undone(tmp_path: Path, capsys: Any, dumped: bool) -> None:
    """The new cell, whose database is lost, has a journal."""
    settings, file = with_journal(tmp_path)
    fill(settings)
    move(settings, "b")
    if dumped:
        dump(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        change(there)
        after = without_numbers(there)
    lose_and_rebuild(settings, tmp_path, "b", *([] if dumped else ["--without-dump"]))
    with open_system(settings.of_cell("b")) as there:
        row = there.metadata.move_row("photos")
        assert row is not None
        assert row.state is (MoveState.HERE if dumped else MoveState.REBUILT)
    if not dumped:
        move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        assert without_numbers(there) == after
    dump(settings, "b")
    assert run(["--config", str(file), "cells", "purge", "photos", "--from", "a"]) == 0
    with open_store(settings) as store:
        assert store.get("photos/new") == b"new"
    capsys.readouterr()


@pytest.mark.invariant(11)
def test_a_lock_that_was_changed_after_a_move_is_not_undone(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    """The old copies have an earlier lock."""
    fill_for_rebuild(settings)
    move(settings, "b")
    longer = Lock(LockMode.COMPLIANCE, KEPT_MS + 9)
    with open_system(settings.of_cell("b")) as there:
        lock(there, "extended", longer)
        lock(there, "freed", Lock(hold=True))
    lose_and_rebuild(settings, tmp_path, "b", "--without-dump")
    move(settings, "b")
    with open_system(settings.of_cell("b")) as there:
        found = {one.key.name: one.row.lock for one in locked_in(there) if one.row is not None}
    locks = {name: replace(found_lock, note=0) for name, found_lock in found.items() if found_lock is not None}
    assert sorted(locks) == ["extended", "freed", "held", "kept", "large kept"]
    assert (locks["extended"], locks["freed"]) == (longer, Lock(hold=True))
    capsys.readouterr()


def test_the_cell_with_the_directory_was_lost_after_a_bucket_was_moved_to_it(
    settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    before = fill(settings)
    move(settings, "c")
    for name in "ac":
        dump(settings, name)
    assert run(["--config", str(tmp_path / "cells.toml"), "cells", "purge", "photos", "--from", "a"]) == 0
    dump(settings, "a")
    move(settings, "a")
    lose_and_rebuild(settings, tmp_path, "a")
    assert home_of(settings) == "a"
    with open_store(settings) as store, pytest.raises(Transient):
        store.get("photos/plain")
    move(settings, "a")
    with cell(settings, "a") as here:
        assert contents(here, "photos") == before
    capsys.readouterr()


def test_a_rebuilt_cell_is_not_served_while_it_cannot_be_known_what_it_lacks(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    fill(settings)
    move(settings, "b")
    of_a = settings.of_cell("a")

    def opened(settings: Settings) -> System:
        if settings.store.root == of_a.store.root:
            raise Transient("no answer")
        return open_system(settings)

    for part in Path(settings.of_cell("b").store.root).glob("metadata.db*"):
        part.unlink()
    config = ["--config", str(tmp_path / "cells.toml")]
    rebuild = ["--cell", "b", "metadata", "rebuild", "--without-dump", "--list", str(tmp_path / "list")]
    assert run([*config, *rebuild]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("nos_ec.composition.cells.open_system", opened)
        assert run([*config, "cells", "rebuild-directory"]) == 7
    assert "cell a, which may have old copies of them, cannot be read: no answer" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="rebuild-directory"):
        home_of(settings)
    fill_directory(settings, as_json=False)
    move(settings, "b")
    assert home_of(settings) == "b"
    capsys.readouterr()


def test_what_cannot_be_moved_is_refused_and_still_served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings)
    monkeypatch.setattr(keys, "VERSIONS_MAX", 3)
    with pytest.raises(InvalidInput, match="object photos/versions has more than 3 versions; delete old ones first"):
        move(settings, "b")
    assert home_of(settings) == "a"
    with open_store(settings) as store:
        store.put("photos/served", b"x")


def test_parts_are_deleted_from_a_cell_that_does_not_serve_their_bucket(settings: Settings) -> None:
    with open_system(settings.of_cell("a")) as system:
        uploads = system.client.uploads()
        upload = uploads.create(ObjectKey("photos", "parts"), "ann", b"")
        uploads.put_part(upload, 1, BytesIO(b"part"), b"")
        uploads.abort(upload.upload_id, upload.key)
        fill(settings)
        move(settings, "b")
        gc_service(system).run_once()
        assert system.metadata.upload(upload.upload_id) is None
        assert system.metadata.list_names(parts_bucket("photos"), parts_prefix(upload.upload_id), "", 9) == []


@pytest.mark.parametrize("is_restored", [False, True])
def test_the_directory_is_rebuilt_from_the_cells(settings: Settings, is_restored: bool, capsys: Any) -> None:
    fill(settings)
    move(settings, "c")
    if is_restored:  # from a backup before the move
        with open_system(settings.of_cell("a")) as system:
            old = system.metadata.directory_row("photos")
            assert old is not None
            assert (old.home, old.moves) == ("c", 1)
            with system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
                connection.execute(update(DIRECTORY).values(home="a", moves=0))
    fill_directory(settings, as_json=False)
    assert home_of(settings) == "c"
    with open_system(settings.of_cell("a")) as system:
        with system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
            connection.execute(delete(MOVES))  # rebuilt from an old dump
        fill_directory(settings, as_json=False)
        row = system.metadata.move_row("photos")
        assert row is not None
        assert (row.state, row.other, row.number) == (MoveState.GONE, "c", 1)
    capsys.readouterr()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("point", ["moving.gone", "moving.home_changed"])
def test_the_directory_is_restored_while_no_cell_serves_a_bucket(
    settings: Settings, tmp_path: Path, capsys: Any, point: str, is_known: bool
) -> None:
    """The backup is from before the bucket was created, or two moves before. What the daemons log and the commands
    print leads to a bucket that is served."""
    fill(settings)
    config = ["--config", str(tmp_path / "cells.toml")]
    for old, new in (("a", "c"), ("c", "a")):
        move(settings, new)
        dump(settings, new)
        assert run([*config, "cells", "purge", "photos", "--from", old]) == 0
        dump(settings, old)
    with cell(settings, "a") as here:
        before = contents(here, "photos")
    with interrupted(settings, point):
        pass
    let_die(settings)
    with open_system(settings.of_cell("a")) as system, system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(update(DIRECTORY).values(home="a", moves=0) if is_known else delete(DIRECTORY))
    with capture_logs() as logged:
        assert recover(settings, "b") == 0
    assert any("run `nos-ec cells rebuild-directory`" in str(line.get("error")) for line in logged)
    with pytest.raises(Conflict if is_known else NotFound):
        move(settings, "b")
    capsys.readouterr()
    assert run([*config, "cells", "moves"]) == 0
    assert "nos-ec cells rebuild-directory" in capsys.readouterr().out
    assert recover(settings, "b") == 0
    for _ in range(2):
        assert run([*config, "cells", "rebuild-directory"]) == 0
    assert recover(settings, "b") == 1
    assert home_of(settings) == "b"
    move(settings, "b")
    with cell(settings, "b") as there, cell(settings, "a") as here:
        assert contents(there, "photos") == before
        assert all_unfinished_moves(here.metadata) == all_unfinished_moves(there.metadata) == []
    capsys.readouterr()


def test_old_copies_are_deleted_after_a_dump(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    before = fill(settings)
    config = str(tmp_path / "cells.toml")

    def call(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert run(["--config", config, *words, "--json"]) == code
        found = capsys.readouterr()
        return json.loads(found.out) if not code else found.err

    moved = call("cells", "move", "photos", "--to", "b")["moved"]
    assert (moved["cell"], moved["versions"]) == ("b", len(before))
    (row,) = call("cells", "moves")["moves"]
    assert (row["bucket"], row["cell"], row["state"], row["other"]) == ("photos", "a", "gone", "b")
    assert run(["--config", config, "cells", "moves"]) == 0
    assert "nos-ec cells purge photos --from a" in capsys.readouterr().out
    assert "must be dumped" in call("cells", "purge", "photos", "--from", "a", code=2)
    assert "still has old copies" in call("cells", "move", "photos", "--to", "a", code=2)
    call("--cell", "b", "metadata", "dump")
    assert call("cells", "purge", "photos", "--from", "a")["purged"]["versions"] == len(before)
    assert call("cells", "moves")["moves"] == []
    assert "must be dumped before bucket photos can come back" in call("cells", "move", "photos", "--to", "a", code=2)
    call("--cell", "a", "metadata", "dump")
    call("cells", "move", "photos", "--to", "a")
    with cell(settings, "a") as here:
        assert contents(here, "photos") == before
    assert "there is no cell x" in call("cells", "move", "photos", "--to", "x", code=2)
    call("cells", "move", "nothing", "--to", "b", code=4)


def with_room(monkeypatch: pytest.MonkeyPatch, **rooms: int) -> None:
    """Let the cells have room for these numbers of bytes."""
    monkeypatch.setattr(ClientSide, "put_room", lambda side: rooms[side._adapters.settings.cell or ""])


def drained(folder: Path, capsys: Any, *words: str, code: int = 0) -> dict[str, str]:
    """Drain cell a, and return where each bucket was moved."""
    assert run(["--config", str(folder / "cells.toml"), "cells", "drain", "a", *words, "--json"]) == code
    return {one["bucket"]: one["cell"] for one in json.loads(capsys.readouterr().out)["moved"]}


def test_a_cell_is_drained(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    fill(settings)
    with open_store(settings) as store:
        for number in range(5):
            store.put(f"more-{number}/k", b"1")
    with open_system(settings.of_cell("b")) as system:
        system.client.store().put(ObjectKey("others", "large"), BytesIO(bytes(5 << 20)))
    config = str(cells_config(tmp_path, a=1, b=1, c=1))
    moved = drained(tmp_path, capsys)
    assert moved == dict.fromkeys([*(f"more-{number}" for number in range(5)), "photos"], "c"), "it stores less"
    with open_store(config) as store:
        assert all(store.get(f"more-{number}/k") == b"1" for number in range(5))
        assert {store._cells.home(bucket) for bucket in moved} == {"c"}


def test_a_bucket_goes_to_the_cell_with_the_most_room_that_may_take_it(
    settings: Settings, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(cells_config(tmp_path, a=1, b=1, c=0))
    names = ["first", "second", "third"]
    with open_store(settings) as store:
        for name in names:
            store.put(f"{name}/k", b"12345")
    with cell(settings, "c") as there:
        there.metadata.set_move(MoveRow("second", MoveState.ARRIVING, "b", 1, 9, 5), None)
    with_room(monkeypatch, b=1 << 30, c=2 << 30)
    assert run(["--config", config, "cells", "drain", "a", "--to", "b", "--to", "a"]) == 2
    assert run(["--config", config, "cells", "drain", "a", "--to", "x"]) == 2
    capsys.readouterr()
    assert drained(tmp_path, capsys, "--to", "b", "--to", "c") == {"first": "c", "second": "b", "third": "c"}
    with open_store(config) as store:
        assert all(store.get(f"{name}/k") == b"12345" for name in names)


def test_a_bucket_that_no_cell_may_take_is_named_and_the_others_are_moved(
    settings: Settings, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(cells_config(tmp_path, a=1, b=1, c=1))
    with open_store(settings) as store:
        for name in ("large", "other", "small"):
            store.put(f"{name}/k", bytes(5000))
    usage = BucketUsage("large", held=Sums(6000, 1), changed=Sums(6000, 1), since_ms=5, counted_ms=6)
    monkeypatch.setattr(SqlMetadata, "bucket_usage", lambda _, bucket: usage if bucket == "large" else None)
    for name in "bc":
        with cell(settings, name) as there:
            there.metadata.set_move(MoveRow("other", MoveState.HERE, "a", 1, 9, 5), None)
    with_room(monkeypatch, b=4 << 10, c=5 << 10)
    assert run(["--config", config, "cells", "drain", "a"]) == 7
    said = capsys.readouterr()
    assert "moving bucket small to cell c: 5.0 KiB free" in said.out
    assert "1 bucket moved, 2 buckets not moved: large, other" in said.out
    assert "bucket large was not moved: no cell may take it: b: cell b has room for 4.0 KiB" in said.err
    assert "bucket other was not moved: no cell may take it: b: cell b has bucket other already" in said.err
    assert home_of(settings, "small") == "c"
    assert home_of(settings, "other") == "a"


def test_cells_that_share_their_disks_have_the_same_room() -> None:
    def best(*rooms: tuple[str, int, int]) -> str:
        return cell_moves._roomiest([cell_moves._Room(*room) for room in rooms]).cell

    assert best(("b", 1000, 9), ("c", 999, 8), ("d", 949, 7)) == "c"
    assert best(("b", 1000, 9), ("c", 900, 8)) == "b"
    assert best(("c", 0, 9), ("b", 0, 9)) == "b"


def test_a_cell_that_cannot_be_drained_gets_no_further_copies(
    settings: Settings, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says what to do about each bucket that stays, and continues where it has begun."""
    fill(settings)
    cells_config(tmp_path, a=1, b=1, c=1)
    monkeypatch.setattr(keys, "VERSIONS_MAX", 3)
    with open_cells(settings, SystemClock()) as cells:
        wide = cells.state_of(cells.claim_wide("wide", "ann", ("b", "a", "c")))
        assert wide.create_bucket("wide", "ann", CannedAcl.PRIVATE, 1)
    for rooms in ({"b": 2 << 30, "c": 1 << 30}, {"b": 1 << 30, "c": 2 << 30}):
        with_room(monkeypatch, **rooms)
        assert run(["--config", str(tmp_path / "cells.toml"), "cells", "drain", "a"]) == 2
        said = capsys.readouterr().err
        assert "object photos/versions has more than 3 versions; delete old ones first" in said
        assert "cell b has slices of bucket wide already" in said
        assert "has bucket photos already" not in said
    for name, number in (("b", 1), ("c", 0)):
        with open_system(settings.of_cell(name)) as there:
            assert len(there.metadata.move_rows("", 9)) == number
    monkeypatch.setattr(keys, "VERSIONS_MAX", 4)
    assert run(["--config", str(tmp_path / "cells.toml"), "cells", "drain", "a"]) == 5, "the wide bucket stays"
    assert home_of(settings) == "b"
    capsys.readouterr()


@pytest.mark.parametrize("point", ["moving.arriving", "moving.leaving", "moving.compared"])
def test_copies_of_a_move_that_was_begun_to_another_cell_are_removed(
    settings: Settings, point: str, capsys: Any, tmp_path: Path
) -> None:
    before = fill(settings)
    with interrupted(settings, point):
        pass
    let_die(settings)
    recover(settings)
    move(settings, "c")
    with open_system(settings.of_cell("b")) as there:
        assert [row.other for row in stalled_moves(there.metadata)] == ["a"]
    assert run(["--config", str(tmp_path / "cells.toml"), "cells", "moves"]) == 0
    assert "nos-ec cells move photos --to c" in capsys.readouterr().out
    with pytest.raises(Conflict, match="nos-ec cells move photos --to c"):
        move(settings, "b")
    move(settings, "c")
    with cell(settings, "b") as there:
        assert contents(there, "photos") == []
        assert stalled_moves(there.metadata) == []
    with cell(settings, "c") as here:
        assert contents(here, "photos") == before
    for name in "bc":
        assert run(["--config", str(tmp_path / "cells.toml"), "--cell", name, "metadata", "dump"]) == 0
    move(settings, "b")
    with cell(settings, "b") as there:
        assert contents(there, "photos") == before
    capsys.readouterr()


def test_a_move_to_a_full_cell_says_what_to_do(
    settings: Settings, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket stays where it is, and the commands that are named continue the move and give it up."""
    before = fill(settings)
    config = ["--config", str(tmp_path / "cells.toml")]

    def full(*_: object) -> None:
        raise NoSpace("block store: 5 bytes free")

    with monkeypatch.context() as patch:
        patch.setattr(VersionCopier, "copy", full)
        assert run([*config, "cells", "move", "photos", "--to", "b"]) == 8
    said = capsys.readouterr().err
    assert "bucket photos was being moved from a to b: block store: 5 bytes free; then repeat the command" in said
    assert "nos-ec cells move photos --to a" in said
    assert run([*config, "cells", "moves"]) == 0
    assert "nos-ec cells move photos --to b" in capsys.readouterr().out
    assert run([*config, "cells", "move", "photos", "--to", "a"]) == 0
    assert capsys.readouterr().out == "bucket photos is in cell a\n"
    assert run([*config, "cells", "moves"]) == 0
    assert "photos" not in capsys.readouterr().out
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(here, "photos") == before
        assert contents(there, "photos") == []


def test_a_move_that_is_given_up_leaves_nothing(settings: Settings) -> None:
    before = fill(settings)
    with interrupted(settings, "moving.bucket_copied"):
        pass
    let_die(settings)
    move(settings, "a")
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(here, "photos") == before
        assert contents(there, "photos") == []
        assert there.metadata.bucket_documents("photos", list(DocumentKind)) == {}
        assert all_unfinished_moves(here.metadata) == all_unfinished_moves(there.metadata) == []


def test_a_move_is_given_up_before_the_old_cell_knows_it(settings: Settings) -> None:
    before = fill(settings)
    with interrupted(settings, "moving.arriving"):
        pass
    move(settings, "a")
    with open_system(settings.of_cell("b")) as there:
        assert stalled_moves(there.metadata) == []
    with cell(settings, "a") as here:
        assert contents(here, "photos") == before
    with pytest.raises(InvalidInput, match="is in cell a already"):
        move(settings, "a")


def test_a_move_is_given_up_while_a_third_cell_is_away(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    fill(settings)
    with interrupted(settings, "moving.leaving"):
        pass

    @contextmanager
    def opened(settings: Settings, name: str, directory: System | None = None) -> Iterator[System]:
        if name == "c":
            raise Transient("the database does not answer")
        with real(settings, name, directory) as system:
            yield system

    real = cell_moves._opened
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_moves, "_opened", opened)
        move(settings, "a")
    assert "cell c may have copies of bucket photos; repeat this later" in capsys.readouterr().err
    for name in "ab":
        with open_system(settings.of_cell(name)) as system:
            assert stalled_moves(system.metadata) == []


@pytest.mark.parametrize("point", ["moving.compared", "moving.here"])
def test_what_is_left_of_the_move_of_a_bucket_that_was_deleted(
    settings: Settings, point: str, tmp_path: Path, capsys: Any
) -> None:
    """Its operator can complete the move or give it up, and delete the old copies."""

    def call(*words: str) -> int:
        return run(["--config", str(tmp_path / "cells.toml"), *words])

    with serving_cells(settings) as (_, gateway):
        client = gateway.client("ann")
        client.create_bucket(Bucket="photos")
        client.put_object(Bucket="photos", Key="k", Body=b"1")
        with interrupted(settings, point):
            pass
        let_die(settings)
        recover(settings)
        client.delete_object(Bucket="photos", Key="k")
        client.delete_bucket(Bucket="photos")
    assert call("cells", "move", "photos", "--to", "c") == 4, "there is no such bucket"
    home = home_of(settings)
    assert home == ("b" if point == "moving.here" else "a")
    capsys.readouterr()
    assert call("cells", "moves") == 0
    following = "cells purge photos --from a" if home == "b" else "cells move photos --to a"
    assert f"nos-ec {following}\n" in capsys.readouterr().out
    assert call("cells", "move", "photos", "--to", home) == 0
    for name in "ab":
        with open_system(settings.of_cell(name)) as system:
            assert stalled_moves(system.metadata) == []
    if home == "b":
        assert call("--cell", "b", "metadata", "dump") == 0
        assert call("cells", "purge", "photos", "--from", "a") == 0
    for name in "abc":
        with cell(settings, name) as system:
            assert not bucket_mover.has_copies(system.metadata, "photos")
    capsys.readouterr()


@pytest.mark.parametrize("point", MOVE_POINTS)
def test_kill_a_move(bench: Bench, point: str) -> None:
    """The bucket is served, or the move can be completed; nothing is lost."""
    settings = new_cells(bench.folder, a=1, b=0)
    bench.config = cells_config(bench.folder, a=1, b=0)
    before = fill(settings)
    if point == "moving.lock_noted":
        lock_some(settings)
        with cell(settings, "a") as here:
            before = contents(here, "photos")
    with open_system(settings.of_cell("a")) as here:
        upload = begin_upload(here, "upload", bytes(range(253)) * 3000, b"last")
    done = bench.run("cells", "move", "photos", "--to", "b", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = bench.run("cells", "move", "photos", "--to", "b")
    assert done.returncode == 0, done.stderr
    with cell(settings, "b") as there, cell(settings, "a") as here:
        assert contents(there, "photos") == before
        assert there.metadata.upload(upload.upload_id) == here.metadata.upload(upload.upload_id)
        assert parts_seen(there, upload) == parts_seen(here, upload)
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"1"
        store.put("photos/plain", b"new")


@pytest.mark.parametrize("point", CHANGED_POINTS)
def test_kill_a_move_that_compares_changed_names(bench: Bench, point: str) -> None:
    settings = new_cells(bench.folder, a=1, b=0)
    bench.config = cells_config(bench.folder, a=1, b=0)
    fill(settings)
    with open_system(settings.of_cell("a")) as here:
        going, kept = (begin_upload(here, name, b"1", b"2") for name in ("going", "kept"))
    with open_store(settings) as store, interrupted(settings, "moving.compared"):
        store.put("photos/plain", b"changed")
        store.delete("photos/empty")
        with open_system(settings.of_cell("a")) as here:
            here.client.uploads().abort(going.upload_id, going.key)
            here.client.uploads().put_part(kept, 2, BytesIO(b"changed"), b"")
    done = bench.run("cells", "move", "photos", "--to", "b", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_store(settings) as store:
        store.put("photos/after", b"the kill")
    with cell(settings, "a") as here:
        before = contents(here, "photos")
    done = bench.run("cells", "move", "photos", "--to", "b")
    assert done.returncode == 0, done.stderr
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(there, "photos") == before
        assert here.metadata.last_change("photos") == here.metadata.last_change(parts_bucket("photos")) == 0
        assert [one.upload_id for one in there.metadata.list_uploads("photos", "", None, 9)] == [kept.upload_id]
        assert parts_seen(there, kept) == parts_seen(here, kept)


@pytest.mark.parametrize("point", PURGE_POINTS)
def test_kill_a_purge(bench: Bench, point: str) -> None:
    settings = new_cells(bench.folder, a=1, b=0)
    bench.config = cells_config(bench.folder, a=1, b=0)
    before = fill(settings)
    move(settings, "b")
    assert bench.run("--cell", "b", "metadata", "dump").returncode == 0
    done = bench.run("cells", "purge", "photos", "--from", "a", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = bench.run("cells", "purge", "photos", "--from", "a")
    assert done.returncode == 0, done.stderr
    with cell(settings, "a") as here, cell(settings, "b") as there:
        assert contents(here, "photos") == []
        assert contents(there, "photos") == before


@pytest.mark.parametrize("point", GIVE_UP_POINTS)
def test_kill_the_command_that_gives_a_move_up(bench: Bench, point: str) -> None:
    settings = new_cells(bench.folder, a=1, b=0)
    bench.config = cells_config(bench.folder, a=1, b=0)
    before = fill(settings)
    assert bench.run("cells", "move", "photos", "--to", "b", kill_at="moving.closed").returncode == -signal.SIGKILL
    done = bench.run("cells", "move", "photos", "--to", "a", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_store(settings) as store:
        store.put("photos/plain", b"new")
    done = bench.run("cells", "move", "photos", "--to", "b")
    assert done.returncode == 0, done.stderr
    with cell(settings, "b") as there:
        assert len(contents(there, "photos")) == len(before)
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"new"


@pytest.mark.parametrize(
    ("name", "died_at", "point"),
    [("a", "moving.closed", one) for one in SERVED_AGAIN_POINTS]
    + [("b", "moving.gone", one) for one in SERVED_MOVED_POINTS]
    + [("a", "moving.here", one) for one in LEFT_POINTS],
)
def test_kill_the_daemon_that_serves_a_bucket_whose_mover_died(
    bench: Bench, name: str, died_at: str, point: str
) -> None:
    settings = new_cells(bench.folder, a=1, b=0)
    bench.config = cells_config(bench.folder, a=1, b=0)
    before = fill(settings)
    assert bench.run("cells", "move", "photos", "--to", "b", kill_at=died_at).returncode == -signal.SIGKILL
    with open_system(settings.of_cell(name)) as system:
        row = system.metadata.move_row("photos")
    assert row is not None
    let_die(settings, row.mover)
    done = bench.run("--cell", name, "consumer", "--once", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = bench.run("--cell", name, "consumer", "--once")
    assert done.returncode == 0, done.stderr
    with cell(settings, name) as serving:
        assert contents(serving, "photos") == before
    with open_store(settings) as store:
        store.put("photos/plain", b"new")
    done = bench.run("cells", "move", "photos", "--to", "b")
    assert done.returncode == 0, done.stderr
    with cell(settings, "b") as there:
        assert len(contents(there, "photos")) == len(before)
    with open_store(settings) as store:
        assert store.get("photos/plain") == b"new"


@pytest.mark.parametrize("of", ["objects", "versions", "conditions", "some"])
def test_a_deletion_of_many_is_refused_as_a_whole_by_the_old_cell(settings: Settings, of: str) -> None:
    """S3 clients repeat a request that gets 503, but not keys that an answer with 200 lists."""
    with serving_cells(settings) as (cells, gateway):
        client = gateway.client("ann")
        client.create_bucket(Bucket="photos")
        if of == "versions":
            client.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
        objects = [{"Key": name, "ETag": put_x(client, name)} for name in ("1", "2")]
        if of == "some":
            objects[0]["ETag"] = '"other"'
        elif of != "conditions":
            objects = [{"Key": one["Key"]} for one in objects]
        move(settings, "b")
        cells._homes["photos"] = DirectoryRow("photos", "a", "ann", 5)
        with pytest.raises(ClientError, match="ServiceUnavailable"):
            client.delete_objects(Bucket="photos", Delete={"Objects": objects})
        assert client.list_objects_v2(Bucket="photos")["KeyCount"] == 2
        answer = client.delete_objects(Bucket="photos", Delete={"Objects": objects})
        deleted = ["2"] if of == "some" else ["1", "2"]
        assert [one["Key"] for one in answer["Deleted"]] == deleted
        assert client.list_objects_v2(Bucket="photos")["KeyCount"] == 2 - len(deleted)


def put_x(client: Any, name: str) -> str:
    """Store an object, and return its ETag."""
    return str(client.put_object(Bucket="photos", Key=name, Body=b"x")["ETag"])


def test_a_gateway_that_knows_the_old_cell_finds_the_new_one(settings: Settings) -> None:
    with serving_cells(settings) as (cells, gateway):
        client = gateway.client("ann")
        client.create_bucket(Bucket="photos")
        client.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
        first = client.put_object(Bucket="photos", Key="k", Body=b"1")["VersionId"]
        client.put_object(Bucket="photos", Key="k", Body=b"2")
        client.put_object(Bucket="photos", Key="hidden", Body=b"3")
        client.delete_object(Bucket="photos", Key="hidden")

        def versions() -> Any:
            found = client.list_object_versions(Bucket="photos")
            return [
                (one["Key"], one["VersionId"], one["IsLatest"], one["LastModified"])
                for one in (*found["Versions"], *found["DeleteMarkers"])
            ]

        before = versions()
        move(settings, "b")

        def put() -> Any:
            return client.put_object(Bucket="photos", Key="new", Body=b"4")

        def delete() -> Any:
            return client.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "new"}]})

        without_body: list[Any] = [
            versions,
            lambda: client.get_object(Bucket="photos", Key="k", VersionId=first)["Body"].read() == b"1",
            lambda: client.head_object(Bucket="photos", Key="k"),
            lambda: client.get_bucket_versioning(Bucket="photos")["Status"] == "Enabled",
            lambda: client.list_objects_v2(Bucket="photos"),
            lambda: client.delete_object(Bucket="photos", Key="k"),
        ]
        for call in [*without_body, put, delete]:
            cells._homes["photos"] = DirectoryRow("photos", "a", "ann", 5)
            if call not in without_body:
                with pytest.raises(ClientError, match="ServiceUnavailable"):
                    call()
            assert call()
            known = cells.known("photos")
            assert known is not None
            assert known.home == "b"
        assert {one[:2] for one in before} <= {one[:2] for one in versions()}
        assert client.list_buckets()["Buckets"][0]["Name"] == "photos"
        client.create_multipart_upload(Bucket="photos", Key="parts")
