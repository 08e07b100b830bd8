"""Notifications of wide buckets: each cell of the bucket has a copy of the configuration, and sends its own events."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition import worker_side
from nos_ec.composition.cells import Cells
from nos_ec.composition.wiring import initialise
from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.ids import ObjectKey
from nos_ec.core.notifications.configuration import Notification, encode
from nos_ec.engine.wide.buckets import copy_documents
from nos_ec.ports.metadata import DocumentKind
from nos_ec.settings import Settings, load_settings
from nos_producer.assemble import producer_service
from tests.rig.at_rest import LaterClock
from tests.service.conftest import Bench
from tests.service.s3.cell_stores import cells_config, serving_cells
from tests.service.s3.s3_gateway import SETTINGS, Gateway, refused
from tests.service.s3.test_s3_notifications import configuration, configure
from tests.service.s3.test_s3_wide import DELETE, KEYS, SLICES, WEIGHTS, create, fill, key_in, keys_in, row_of, ruled

pytestmark = pytest.mark.invariant(12)

SERVING = SETTINGS.model_copy(update={"notification_topics": "changes"})
DOCUMENT_POINTS = ["wide.document_set", "wide.document_copied"]
OLD, NEW = (encode([Notification(name, "changes", ("s3:ObjectCreated:*",))]) for name in ("old", "new"))
SET = """
import sys
from pathlib import Path
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.cells import open_cells
from nos_ec.ports.metadata import DocumentKind
from nos_ec.settings import load_settings
with open_cells(load_settings(Path(sys.argv[1]), {}), SystemClock()) as cells:
    buckets = cells.state_of(cells.place("wide"))
    buckets.set_bucket_document("wide", DocumentKind.NOTIFICATION, sys.argv[2].encode() or None, 5)
"""


def notifying_config(folder: Path) -> Path:
    """A file with the cells of WEIGHTS, whose buckets may send to the topic."""
    file = cells_config(folder, **WEIGHTS)
    file.write_text(file.read_text() + '[s3]\nnotification_topics = "changes"\n')
    return file


def notifying_cells(folder: Path) -> Settings:
    settings = load_settings(notifying_config(folder), {})
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    return settings


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Cells, Gateway]]:
    with serving_cells(notifying_cells(tmp_path), SERVING) as found:
        yield found


@pytest.fixture
def cells(served: tuple[Cells, Gateway]) -> Cells:
    return served[0]


@pytest.fixture
def ann(served: tuple[Cells, Gateway]) -> Any:
    create(served[0])
    return served[1].client("ann")


def document(cells: Cells, cell: str) -> bytes | None:
    """The configuration, or its copy, in a cell."""
    return cells.system(cell).metadata.bucket_document("wide", DocumentKind.NOTIFICATION)


def owner_in(cells: Cells, cell: str) -> str:
    """Return the owner of the bucket, as a cell has it."""
    row = cells.system(cell).metadata.bucket("wide")
    assert row is not None
    return row.owner


def shown(client: Any) -> list[str]:
    """The ids in the configuration that a GET returns."""
    found = client.get_bucket_notification_configuration(Bucket="wide")
    return [one["Id"] for one in found.get("TopicConfigurations", [])]


def sent(cells: Cells, cell: str) -> list[tuple[str, str]]:
    """Let a producer of this cell send everything, and return (event, key) of all that it has ever sent."""
    with producer_service(cells.system(cell)) as producer:
        producer.drain()
    path = cells.settings.of_cell(cell).store.root / "notifications" / "changes.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [record for line in lines for record in json.loads(line)["Records"]]
    return [(one["eventName"], unquote_plus(one["s3"]["object"]["key"])) for one in records]


def walk(cells: Cells, cell: str, days: int = 2) -> int:
    """Run GC's walk of a later day in a cell. Returns how many buckets failed."""
    system = cells.system(cell)
    now, system.clock = system.clock, LaterClock(days * DAY_MS)
    failed = system.worker.lifecycle_walk().run_once().failed
    system.clock = now
    return failed


def test_each_cell_sends_the_events_of_its_slices(cells: Cells, ann: Any) -> None:
    configure(ann, configuration(), bucket="wide")
    assert document(cells, "b") == document(cells, "c") is not None
    assert document(cells, "a") is None
    assert shown(ann) == ["one"]
    fill(ann)
    ann.delete_objects(Bucket="wide", Delete={"Objects": [{"Key": key} for key in KEYS]})
    for cell in "bc":
        own = [key for key in KEYS if row_of(cells).cell_of(key) == cell]
        found = sent(cells, cell)
        assert {key for _, key in found} == set(own)
        for key in own:
            assert [event for event, of in found if of == key] == ["ObjectCreated:Put", "ObjectRemoved:Delete"]
    assert sent(cells, "a") == []
    configure(ann, bucket="wide")
    assert (document(cells, "b"), document(cells, "c"), shown(ann)) == (None, None, [])
    before = {cell: sent(cells, cell) for cell in "bc"}
    fill(ann)
    assert {cell: sent(cells, cell) for cell in "bc"} == before


def test_expired_objects_of_each_slice_and_changes_of_the_library(cells: Cells, ann: Any) -> None:
    configure(ann, configuration(), bucket="wide")
    ruled(ann)
    key = next(key for key in KEYS if key.startswith("folder-1/") and row_of(cells).cell_of(key) == "c")
    system = cells.system("c")
    system.client.store().put(ObjectKey("wide", key), io.BytesIO(b"x"))
    assert walk(cells, "c") == 0
    assert sent(cells, "c") == [("ObjectCreated:Put", key), ("LifecycleExpiration:Delete", key)]


def test_a_deletion_that_is_refused_leaves_the_copies(cells: Cells, ann: Any) -> None:
    configure(ann, configuration(), bucket="wide")
    for cell in "bc":
        ann.put_object(Bucket="wide", Key=key_in(cells, cell), Body=b"x")
        refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="wide")
        assert document(cells, "b") == document(cells, "c") is not None
        ann.delete_object(Bucket="wide", Key=key_in(cells, cell))
    ann.delete_bucket(Bucket="wide")
    assert [document(cells, cell) for cell in "bc"] == [None, None]
    ann.create_bucket(Bucket="wide")
    assert (document(cells, "b"), document(cells, "c"), shown(ann)) == (None, None, [])


def test_an_object_that_arrives_during_a_deletion(
    served: tuple[Cells, Gateway], ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket exists again, without its documents, and is found until somebody deletes the object."""
    cells, gateway = served
    configure(ann, configuration(), bucket="wide")
    first, key, store = cells.system("b").metadata, key_in(cells, "c"), cells.system("c").client.store()
    real = first.delete_bucket

    def delete(name: str, now_ms: int) -> bool:
        store.put(ObjectKey("wide", key), io.BytesIO(b"x"))
        return real(name, now_ms)

    monkeypatch.setattr(first, "delete_bucket", delete)
    ann.delete_bucket(Bucket="wide")
    monkeypatch.undo()
    assert [document(cells, cell) for cell in "bc"] == [None, None]
    assert [one["Key"] for one in ann.list_objects_v2(Bucket="wide")["Contents"]] == [key]
    refused("BucketAlreadyExists", 409, gateway.client("bob").create_bucket, Bucket="wide")
    ann.delete_object(Bucket="wide", Key=key)
    gateway.client("bob").create_bucket(Bucket="wide")
    assert owner_in(cells, "c") == "bob"


def test_a_bucket_that_is_created_during_a_deletion_gets_its_rows_again(
    served: tuple[Cells, Gateway], ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    other = cells.system("c").metadata
    real = other.delete_bucket

    def delete(name: str, now_ms: int) -> bool:
        monkeypatch.undo()
        bob = gateway.client("bob")
        bob.create_bucket(Bucket="wide")
        configure(bob, configuration(), bucket="wide")
        return real(name, now_ms)

    monkeypatch.setattr(other, "delete_bucket", delete)
    ann.delete_bucket(Bucket="wide")
    row = other.bucket("wide")
    assert row is not None
    assert (row.owner, other.bucket_document("wide", DocumentKind.WIDE)) == ("bob", b"b,c,c")
    assert document(cells, "b") == document(cells, "c") is not None


def test_a_deletion_that_removes_rows_of_a_bucket_that_is_being_created(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = create(cells)
    cells.state_of(row).delete_bucket("wide", 5)
    first, other = cells.system("b").metadata, cells.system("c").metadata
    real = first.create_bucket

    def create_bucket(*given: Any) -> bool:
        monkeypatch.undo()
        assert not cells.state_of(row).delete_bucket("wide", 5)
        return real(*given)

    monkeypatch.setattr(first, "create_bucket", create_bucket)
    create(cells, "bob")
    found = other.bucket("wide")
    assert found is not None
    assert (found.owner, other.bucket_document("wide", DocumentKind.WIDE)) == ("bob", b"b,c,c")


def test_the_row_of_a_deleted_bucket_that_is_left_does_no_harm(
    served: tuple[Cells, Gateway], ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    configure(ann, configuration(), bucket="wide")

    def fail(*_: Any) -> Any:
        raise Transient("the database is away")

    monkeypatch.setattr(cells.system("c").metadata, "delete_bucket", fail)
    ann.delete_bucket(Bucket="wide")
    monkeypatch.undo()
    assert (document(cells, "b"), document(cells, "c") is None) == (None, False)
    refused("404", 404, ann.head_bucket, Bucket="wide")
    assert walk(cells, "c") == 0
    assert document(cells, "c") is None
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="wide")
    fill(bob)
    assert sent(cells, "c") == []


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_cell_that_was_away_is_corrected(
    cells: Cells, ann: Any, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    configure(ann, configuration(entry_id="old"), bucket="wide")
    entries = [] if is_removed else [configuration(entry_id="new")]

    def fail(*_: Any) -> Any:
        raise Transient("the database is away")

    for method in ("set_bucket_document", "correct_document"):
        monkeypatch.setattr(cells.system("c").metadata, method, fail)
    refused("ServiceUnavailable", 503, lambda: configure(ann, *entries, bucket="wide"))
    assert shown(ann) == [one["Id"] for one in entries]
    assert document(cells, "b") != document(cells, "c")
    assert walk(cells, "c") == 1, "the bucket is tried again later that day"
    monkeypatch.undo()
    monkeypatch.setattr(worker_side, "open_other_cell", fail)
    assert walk(cells, "c", 3) == 1
    assert document(cells, "b") != document(cells, "c")
    monkeypatch.undo()
    assert walk(cells, "c", 4) == 0
    assert document(cells, "b") == document(cells, "c")
    assert (document(cells, "c") is None) == is_removed


def test_nothing_is_set_while_a_cell_is_closed(cells: Cells, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(ann, configuration(entry_id="old"), bucket="wide")
    real = cells.system

    def system(name: str) -> Any:
        if name == "c":
            raise Transient("cell c is not open yet")
        return real(name)

    monkeypatch.setattr(cells, "system", system)
    for entries in ([], [configuration(entry_id="new")]):
        refused("ServiceUnavailable", 503, partial(configure, ann, *entries, bucket="wide"))
        assert shown(ann) == ["old"]


def test_a_writer_that_was_overtaken_writes_again(cells: Cells, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two callers copy, the slower one does not leave what it has read before."""
    first, other = cells.system("b").metadata, cells.system("c").metadata
    first.set_bucket_document("wide", DocumentKind.NOTIFICATION, OLD, 5)
    real = first.bucket_documents

    def read(*given: Any) -> Any:
        found = real(*given)
        monkeypatch.undo()
        cells.state_of(row_of(cells)).set_bucket_document("wide", DocumentKind.NOTIFICATION, NEW, 5)
        return found

    monkeypatch.setattr(first, "bucket_documents", read)
    assert copy_documents(first, other, "wide", 5)
    assert document(cells, "b") == document(cells, "c") == NEW
    assert not copy_documents(first, other, "wide", 5)
    bodies = iter([OLD, NEW] * 20)
    monkeypatch.setattr(first, "bucket_documents", lambda *_: {DocumentKind.NOTIFICATION: next(bodies)})
    with pytest.raises(Transient, match="again and again"):
        copy_documents(first, other, "wide", 5)


def test_copies_of_a_bucket_without_a_row_are_not_written(cells: Cells, ann: Any) -> None:
    first, other = cells.system("b").metadata, cells.system("a").metadata
    first.set_bucket_document("wide", DocumentKind.NOTIFICATION, NEW, 5)
    assert not copy_documents(first, other, "wide", 5)
    assert document(cells, "a") is None


def begin(bench: Bench) -> Settings:
    """Make the bucket, with the old configuration in all of its cells."""
    settings = notifying_cells(bench.folder)
    bench.config = notifying_config(bench.folder)
    made = bench.run("cells", "create-wide", "wide", "--slices", ",".join(SLICES), "--owner", "ann")
    assert made.returncode == 0, made.stderr
    assert bench.run_python("-c", SET, str(bench.config), OLD.decode()).returncode == 0
    return settings


def killed(bench: Bench, point: str, *program: str) -> None:
    done = bench.run_python(*program, kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.stderr.decode()[-2000:]}"


@pytest.mark.parametrize(
    ("body", "heals"),
    [(NEW.decode(), "gc"), ("", "gc"), ("", "repeated")],
    ids=["changed-gc", "removed-gc", "removed-repeated"],
)
@pytest.mark.parametrize("point", DOCUMENT_POINTS)
def test_kill_a_change_of_the_configuration(bench: Bench, point: str, body: str, heals: str) -> None:
    """The first cell has it, and sooner or later the others, too."""
    settings, wanted = begin(bench), body.encode() or None
    killed(bench, point, "-c", SET, str(bench.config), body)
    if heals == "repeated":
        assert bench.run_python("-c", SET, str(bench.config), body).returncode == 0
    with serving_cells(settings, SERVING) as (cells, gateway):
        ann = gateway.client("ann")
        assert shown(ann) == (["new"] if body else [])
        if heals == "gc":
            assert walk(cells, "c") == 0
        assert document(cells, "b") == document(cells, "c") == wanted
        fill(ann)
        assert sorted(key for _, key in sent(cells, "c")) == (keys_in(cells, "c") if body else [])


@pytest.mark.parametrize(
    ("deletion", "creation"),
    [
        ("wide.first_deleted", ""),
        ("wide.slice_deleted", ""),
        ("wide.first_deleted", "wide.document_copied"),
        ("wide.first_deleted", "wide.slice_created"),
    ],
)
def test_a_bucket_that_is_created_again_has_no_old_configuration(bench: Bench, deletion: str, creation: str) -> None:
    """It does not matter where its deletion and an earlier creation were killed."""
    settings = begin(bench)
    killed(bench, deletion, "-c", DELETE, str(bench.config))
    if creation:
        made = "-m", "nos_ec", "--config", str(bench.config), "cells", "create-wide", "wide"
        killed(bench, creation, *made, "--slices", ",".join(SLICES), "--owner", "cid")
    with serving_cells(settings, SERVING) as (cells, gateway):
        bob = gateway.client("bob")
        bob.create_bucket(Bucket="wide")
        assert (document(cells, "b"), document(cells, "c"), shown(bob)) == (None, None, [])
        fill(bob)
        assert [sent(cells, cell) for cell in "bc"] == [[], []]
        assert owner_in(cells, "c") == "bob"
        with pytest.raises(Conflict):
            cells.state_of(row_of(cells)).delete_bucket("wide", 5)
