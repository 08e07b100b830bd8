"""Wide buckets: buckets whose objects lie in several cells, by a hash of their names."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from botocore.exceptions import ClientError
from sqlalchemy import delete

from nos_ec import InvalidInput, open_store
from nos_ec.adapters.sql.tables.schema import DIRECTORY
from nos_ec.cli.app import run
from nos_ec.cli.commands.cells import enter_cell, fill_directory
from nos_ec.composition import worker_side
from nos_ec.composition.cells import Cells, slices_by_weight
from nos_ec.composition.ownership import open_other_cell
from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.expiry import DAY_MS, ExpiryRule, encode_rules
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.expiry import known_expiry, lifecycle_walk
from nos_ec.engine.expiry.lifecycle_bucket import WalkCounts
from nos_ec.gateway.operations.bucket_logging import LogObject
from nos_ec.gateway.server.cell_services import CellServices
from nos_ec.ports.metadata import CannedAcl, DirectoryRow, DocumentKind
from nos_ec.settings import load_settings
from tests.rig.at_rest import LaterClock
from tests.service.conftest import Bench
from tests.service.s3.cell_stores import cells_config, new_cells, serving_cells
from tests.service.s3.s3_gateway import MASTERS, Gateway, refused
from tests.service.s3.test_s3_website import WITH_WEBSITES

pytestmark = pytest.mark.invariant(12)

WEIGHTS = {"a": 1, "b": 1, "c": 1}
SLICES = ("b", "c", "c")
"""The directory is in cell a, the documents are in b."""
KEYS = [f"folder-{number % 4}/{number}" for number in range(24)]
DELETE = """
import sys
from pathlib import Path
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.cells import open_cells
from nos_ec.settings import load_settings
with open_cells(load_settings(Path(sys.argv[1]), {}), SystemClock()) as cells:
    cells.state_of(cells.place("wide")).delete_bucket("wide", 5)
"""
WIDE_POINTS = ["wide.slice_created", "wide.first_deleted", "wide.slice_deleted"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Cells, Gateway]]:
    with serving_cells(new_cells(tmp_path, **WEIGHTS)) as found:
        yield found


@pytest.fixture
def cells(served: tuple[Cells, Gateway]) -> Cells:
    return served[0]


@pytest.fixture
def ann(served: tuple[Cells, Gateway]) -> Any:
    create(served[0])
    return served[1].client("ann")


def create(cells: Cells, owner: str = "ann") -> DirectoryRow:
    row = cells.claim_wide("wide", owner, SLICES)
    assert cells.state_of(row).create_bucket("wide", owner, CannedAcl.PRIVATE, 5)
    return row


def row_of(cells: Cells) -> DirectoryRow:
    row = cells.directory.metadata.directory_row("wide")
    assert row is not None
    return row


def keys_in(cells: Cells, cell: str) -> list[str]:
    return cells.system(cell).client.store().list_names("wide", "", "", 1000)


def key_in(cells: Cells, cell: str) -> str:
    return next(key for key in KEYS if row_of(cells).cell_of(key) == cell)


def listed(client: Any, **wanted: Any) -> tuple[list[str], list[str]]:
    keys: list[str] = []
    folders: list[str] = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="wide", **wanted):
        keys += [one["Key"] for one in page.get("Contents", [])]
        folders += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
    return keys, folders


def fill(client: Any) -> None:
    for key in KEYS:
        client.put_object(Bucket="wide", Key=key, Body=key.encode())


def test_objects_lie_in_their_slices_and_are_listed_together(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, gateway = served
    fill(ann)
    assert sorted(keys_in(cells, "b") + keys_in(cells, "c")) == sorted(KEYS)
    assert keys_in(cells, "a") == []
    assert all(row_of(cells).cell_of(key) == cell for cell in "bc" for key in keys_in(cells, cell))
    assert len(keys_in(cells, "c")) > len(keys_in(cells, "b")) > 0
    for size in (1, 3, 1000):
        paged = {"PaginationConfig": {"PageSize": size}}
        assert listed(ann, **paged) == (sorted(KEYS), [])
        assert listed(ann, Delimiter="/", **paged) == ([], [f"folder-{number}/" for number in range(4)])
        assert listed(ann, Prefix="folder-2/", Delimiter="/", **paged)[0] == sorted(KEYS[2::4])
    for key in KEYS:
        assert ann.get_object(Bucket="wide", Key=key)["Body"].read() == key.encode()
    assert [bucket["Name"] for bucket in ann.list_buckets()["Buckets"]] == ["wide"]
    bob = gateway.client("bob")
    refused("AccessDenied", 403, bob.list_objects_v2, Bucket="wide")
    for cell in "bc":
        refused("AccessDenied", 403, bob.get_object, Bucket="wide", Key=key_in(cells, cell))


def test_what_the_documents_say_holds_in_all_slices(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, gateway = served
    fill(ann)
    ann.put_bucket_versioning(Bucket="wide", VersioningConfiguration={"Status": "Enabled"})
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::wide/*"}
    ann.put_bucket_policy(Bucket="wide", Policy=json.dumps({"Version": "2012-10-17", "Statement": [allow]}))
    nobody = gateway.client(None)
    for cell in "bc":
        key = key_in(cells, cell)
        assert nobody.get_object(Bucket="wide", Key=key)["Body"].read() == key.encode()
        assert ann.put_object(Bucket="wide", Key=key, Body=b"new")["VersionId"] != "null"
    found = ann.list_object_versions(Bucket="wide", MaxKeys=1000)["Versions"]
    assert [one["Key"] for one in found] == sorted([*KEYS, key_in(cells, "b"), key_in(cells, "c")])
    pages = ann.get_paginator("list_object_versions").paginate(Bucket="wide", PaginationConfig={"PageSize": 2})
    assert [one["VersionId"] for page in pages for one in page["Versions"]] == [one["VersionId"] for one in found]


@pytest.mark.parametrize("versioned", [False, True])
def test_many_objects_are_deleted_in_all_slices(served: tuple[Cells, Gateway], ann: Any, versioned: bool) -> None:
    if versioned:
        ann.put_bucket_versioning(Bucket="wide", VersioningConfiguration={"Status": "Enabled"})
    fill(ann)
    answer = ann.delete_objects(Bucket="wide", Delete={"Objects": [{"Key": key} for key in KEYS[:20]]})
    assert sorted(one["Key"] for one in answer["Deleted"]) == sorted(KEYS[:20])
    assert "Errors" not in answer
    assert listed(ann)[0] == sorted(KEYS[20:])
    assert len(ann.list_object_versions(Bucket="wide").get("DeleteMarkers", [])) == (20 if versioned else 0)


def test_copies_uploads_and_renames(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, _ = served
    fill(ann)
    source, target = key_in(cells, "b"), key_in(cells, "c")
    ann.copy_object(Bucket="wide", Key=target, CopySource=f"wide/{source}")
    assert ann.get_object(Bucket="wide", Key=target)["Body"].read() == source.encode()
    uploads = [ann.create_multipart_upload(Bucket="wide", Key=key) for key in KEYS]
    for size in (1, 5, 1000):
        pages = ann.get_paginator("list_multipart_uploads").paginate(Bucket="wide", PaginationConfig={"PageSize": size})
        assert [one["Key"] for page in pages for one in page["Uploads"]] == sorted(KEYS)
    named = {"Bucket": "wide", "Key": KEYS[0], "UploadId": uploads[0]["UploadId"]}
    part = ann.upload_part_copy(**named, PartNumber=1, CopySource=f"wide/{target}")["CopyPartResult"]
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
    ann.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    assert ann.get_object(Bucket="wide", Key=KEYS[0])["Body"].read() == source.encode()
    assert "different slices" in str(
        refused("NotImplemented", 501, ann.rename_object, Bucket="wide", Key=target, RenameSource=source)
    )
    other = next(f"new/{number}" for number in range(100) if row_of(cells).cell_of(f"new/{number}") == "b")
    ann.rename_object(Bucket="wide", Key=other, RenameSource=source)
    assert ann.get_object(Bucket="wide", Key=other)["Body"].read() == source.encode()
    refused("NoSuchKey", 404, ann.get_object, Bucket="wide", Key=source)


def test_each_cell_counts_for_the_quota_of_the_account(tmp_path: Path) -> None:
    config = cells_config(tmp_path, **WEIGHTS)
    config.write_text(config.read_text().replace("[store]\n", "[store]\ncount_usage = true\n"))
    settings = load_settings(config, {})
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    assert run(["--config", str(config), "s3", "quota", "set", "--account", "ann", "--objects", "90"]) == 0
    with serving_cells(settings) as (cells, gateway):
        create(cells)
        fill(gateway.client("ann"))
        for cell in "bc":
            usage = cells.system(cell).metadata.bucket_usage("wide")
            assert usage is not None
            assert usage.changed.objects == len(keys_in(cells, cell))


def test_websites_and_logs(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, _ = served
    with serving_cells(cells.settings, WITH_WEBSITES) as (others, gateway):
        owner = gateway.client("ann")
        owner.put_bucket_acl(Bucket="wide", ACL="public-read")
        website = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"}}
        owner.put_bucket_website(Bucket="wide", WebsiteConfiguration=website)
        pages = ["error.html", *(f"{number}/index.html" for number in range(6))]
        assert {row_of(cells).cell_of(page) for page in pages} == {"b", "c"}
        for page in pages:
            owner.put_object(Bucket="wide", Key=page, Body=page.encode(), ACL="public-read")
        host = f"wide.{WITH_WEBSITES.website_domains}"
        for page in pages[1:]:
            assert gateway.raw("GET", f"/{page.removesuffix('index.html')}", Host=host)[:2] == (200, page.encode())
        assert gateway.raw("GET", "/none", Host=host)[:2] == (404, b"error.html")
        service = CellServices(others, MASTERS, WITH_WEBSITES, perf_counter)
        for key in KEYS:
            service.store_log(LogObject("source", "ann", "wide", key, b"line"))
        assert all(owner.get_object(Bucket="wide", Key=key)["Body"].read() == b"line" for key in KEYS)


def test_a_quota_of_a_wide_bucket_is_refused(cells: Cells, ann: Any) -> None:
    buckets = cells.state_of(row_of(cells))
    with pytest.raises(InvalidInput, match="wide bucket"):
        buckets.set_bucket_document("wide", DocumentKind.QUOTA, b"{}", 5)
    assert buckets.set_bucket_document("wide", DocumentKind.QUOTA, None, 5)


def ruled(client: Any, **action: Any) -> None:
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "folder-1/"}, "Expiration": {"Days": 1}, **action}
    client.put_bucket_lifecycle_configuration(Bucket="wide", LifecycleConfiguration={"Rules": [rule]})


def walked(cells: Cells, cell: str) -> WalkCounts:
    system = cells.system(cell)
    system.clock = LaterClock(2 * DAY_MS)
    return system.worker.lifecycle_walk().run_once()


@pytest.mark.parametrize("versioned", [False, True])
def test_the_rules_of_the_first_cell_hold_in_all_slices(cells: Cells, ann: Any, versioned: bool) -> None:
    if versioned:
        ann.put_bucket_versioning(Bucket="wide", VersioningConfiguration={"Status": "Enabled"})
    fill(ann)
    uploads = [ann.create_multipart_upload(Bucket="wide", Key=key_in(cells, cell)) for cell in "bc"]
    assert "x-amz-abort-date" not in uploads[0]["ResponseMetadata"]["HTTPHeaders"]
    metadata: Any = cells.system("c").metadata
    metadata.set_bucket_document("wide", DocumentKind.WIDE, None, 5)  # as a deletion that was cut off leaves it
    ruled(ann, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1}, Filter={"Prefix": "folder-"})
    assert (
        "x-amz-expiration" in ann.head_object(Bucket="wide", Key=key_in(cells, "c"))["ResponseMetadata"]["HTTPHeaders"]
    )
    ruled(ann, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})
    due = {cell: [key for key in keys_in(cells, cell) if key.startswith("folder-1/")] for cell in "bc"}
    for cell in "bc":
        assert walked(cells, cell).objects == len(due[cell]) > 0
    assert walked(cells, "a") == WalkCounts()
    assert listed(ann)[0] == [key for key in sorted(KEYS) if not key.startswith("folder-1/")]
    markers = ann.list_object_versions(Bucket="wide").get("DeleteMarkers", [])
    assert len(markers) == (6 if versioned else 0)
    left = ann.list_multipart_uploads(Bucket="wide").get("Uploads", [])
    assert len(left) == sum(not upload["Key"].startswith("folder-1/") for upload in uploads)


def test_nothing_expires_by_rules_that_cannot_be_read(cells: Cells, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(ann)
    ruled(ann)
    system, before = cells.system("c"), keys_in(cells, "c")
    system.metadata.create_bucket("zzz", "ann", CannedAcl.PRIVATE, 5)
    system.client.store().put(ObjectKey("zzz", "k"), io.BytesIO())
    system.metadata.set_bucket_document("zzz", DocumentKind.LIFECYCLE, encode_rules([ExpiryRule("r", days=1)]), 5)
    monkeypatch.setattr(lifecycle_walk, "FAILURES_MAX", 1)  # the failures of another cell do not count

    def fail(*_: Any) -> Any:
        raise Transient("the database is away")

    monkeypatch.setattr(worker_side, "open_other_cell", fail)
    found = walked(cells, "c")
    assert (found.failed, found.objects) == (1, 1)
    assert keys_in(cells, "c") == before
    assert dict(system.worker.lifecycle_walk().rules)["wide"] is None
    monkeypatch.undo()
    ann.delete_bucket_lifecycle(Bucket="wide")
    system.clock = LaterClock(3 * DAY_MS)
    assert system.worker.lifecycle_walk().run_once().objects == 0
    assert keys_in(cells, "c") == before
    other: Any = cells.system("a").metadata
    with pytest.raises(ConfigError, match="not that of this cell"):
        open_other_cell(
            cells.settings.of_cell("b").model_copy(update={"store": cells.settings.of_cell("c").store}), other
        )


def test_packers_know_the_rules_in_all_slices(cells: Cells, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packer of another cell knows no rules while the first cell is away."""

    def expiring(cell: str) -> list[str]:
        system = cells.system(cell)
        known, now_ms = system.worker.known_expiry(), system.clock.now_ms()
        rows = system.metadata.list_objects("wide", "", "", 100)
        return [row.key.name for row in rows if known.expires_ms(row, row.created_ms, now_ms) is not None]

    monkeypatch.setattr(known_expiry, "FIRST_WAIT_S", 60)
    fill(ann)
    ruled(ann)
    due = {cell: [key for key in keys_in(cells, cell) if key.startswith("folder-1/")] for cell in "bc"}
    assert {cell: expiring(cell) for cell in "bc"} == due
    assert all(due.values())

    def fail(*_: Any) -> Any:
        raise Transient("the database is away")

    monkeypatch.setattr(worker_side, "open_other_cell", fail)
    assert {cell: expiring(cell) for cell in "bc"} == due | {"c": []}


@pytest.mark.parametrize("cell", ["b", "c"])
def test_a_bucket_is_deleted_only_if_all_slices_are_empty(served: tuple[Cells, Gateway], ann: Any, cell: str) -> None:
    cells, gateway = served
    key = key_in(cells, cell)
    ann.put_object(Bucket="wide", Key=key, Body=b"x")
    upload = ann.create_multipart_upload(Bucket="wide", Key=key_in(cells, "c"))
    refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="wide")
    marks = {one: cells.system(one).metadata.bucket_document("wide", DocumentKind.WIDE) for one in "bc"}
    assert set(marks.values()) == {b"b,c,c"}
    ann.put_object(Bucket="wide", Key=key_in(cells, "b"))
    for one in "bc":
        ann.delete_object(Bucket="wide", Key=key_in(cells, one))
    ann.delete_bucket(Bucket="wide")
    assert row_of(cells) == DirectoryRow("wide", "b", "ann", 5, is_deleted=True, slices=SLICES)
    assert all(cells.system(one).metadata.bucket("wide") is None for one in "abc")
    refused("NoSuchBucket", 404, ann.put_object, Bucket="wide", Key=key)
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="wide")
    assert (row_of(cells).owner, row_of(cells).slices) == ("bob", SLICES)
    fill(bob)
    assert listed(bob)[0] == sorted(KEYS)
    assert "Uploads" not in bob.list_multipart_uploads(Bucket="wide")
    refused("NoSuchUpload", 404, bob.list_parts, Bucket="wide", Key=upload["Key"], UploadId=upload["UploadId"])


def test_a_bucket_exists_again_with_an_object_in_any_slice(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, gateway = served
    key = key_in(cells, "c")
    ann.delete_bucket(Bucket="wide")
    cells.system("c").client.store().put(ObjectKey("wide", key), io.BytesIO())
    assert listed(ann)[0] == [key]
    refused("BucketAlreadyExists", 409, gateway.client("bob").create_bucket, Bucket="wide")
    refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="wide")
    ann.delete_object(Bucket="wide", Key=key)
    gateway.client("bob").create_bucket(Bucket="wide")


def test_a_cell_that_is_away_makes_no_listing_shorter(
    served: tuple[Cells, Gateway], ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, _ = served
    fill(ann)

    def fail(*_: Any, **__: Any) -> Any:
        raise Transient("the database is away")

    for method in ("list_summaries", "list_versions", "list_uploads", "get", "delete_bucket", "delete_many"):
        monkeypatch.setattr(cells.system("c").metadata, method, fail)
    for call in (ann.list_objects_v2, ann.list_objects, ann.list_object_versions, ann.list_multipart_uploads):
        refused("ServiceUnavailable", 503, call, Bucket="wide")
    refused("ServiceUnavailable", 503, ann.delete_bucket, Bucket="wide")
    refused("ServiceUnavailable", 503, ann.get_object, Bucket="wide", Key=key_in(cells, "c"))
    key = key_in(cells, "b")
    assert ann.get_object(Bucket="wide", Key=key)["Body"].read() == key.encode()
    answer = ann.delete_objects(Bucket="wide", Delete={"Objects": [{"Key": one} for one in KEYS]})
    assert {one["Key"] for one in answer["Deleted"]} == {key for key in KEYS if row_of(cells).cell_of(key) == "b"}
    assert {one["Code"] for one in answer["Errors"]} == {"ServiceUnavailable"}


@pytest.mark.parametrize(("stalled", "method"), [("b", "bucket"), ("c", "list_summaries")])
def test_a_cell_that_stalls_leaves_threads_to_the_others(
    served: tuple[Cells, Gateway], ann: Any, monkeypatch: pytest.MonkeyPatch, stalled: str, method: str
) -> None:
    """The first cell, which every request asks; and another one, which listings ask."""
    monkeypatch.setattr("nos_ec.gateway.server.cell_services.STALLED_S", 0.3)
    cells, gateway = served
    fill(ann)
    kept = {}
    for cell in "abc":
        cells.claim(f"plain-{cell}", "ann", cell)
        ann.create_bucket(Bucket=f"plain-{cell}")
        kept[cell] = f"plain-{cell}"
        ann.put_object(Bucket=kept[cell], Key="k", Body=b"x")
    goes_on, waiting, metadata = threading.Event(), threading.Semaphore(0), cells.system(stalled).metadata
    real = getattr(metadata, method)

    def wait(*given: Any, **named: Any) -> Any:
        waiting.release()
        goes_on.wait(60)
        return real(*given, **named)

    monkeypatch.setattr(metadata, method, wait)
    codes: list[str] = []

    def ask(client: Any) -> None:
        try:
            if method == "bucket":
                client.get_object(Bucket="wide", Key=key_in(cells, "c"))
            else:
                client.list_objects_v2(Bucket="wide")
            codes.append("served")
        except ClientError as error:
            codes.append(str(error))

    clients = [gateway.client("ann") for _ in range(4)]  # half of the threads of SETTINGS
    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    assert all(waiting.acquire(timeout=30) for _ in threads)
    threading.Event().wait(0.5)
    refused("ServiceUnavailable", 503, ann.list_objects_v2, Bucket="wide")
    for cell in {*"abc"} - {stalled}:
        assert ann.get_object(Bucket=kept[cell], Key="k")["Body"].read() == b"x"
    goes_on.set()
    for thread in threads:
        thread.join()
    assert codes == ["served"] * 4
    assert listed(ann)[0] == sorted(KEYS)


def test_the_directory_is_made_again_from_any_cell(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, _ = served
    before = row_of(cells)
    cells.system("c").client.store().put(ObjectKey("wide", key_in(cells, "c")), io.BytesIO())
    for lost in ("", "b", "c"):
        if lost == "c":  # an interrupted deletion has removed its row there, but it holds an object
            metadata: Any = cells.system("c").metadata
            metadata.set_bucket_document("wide", DocumentKind.WIDE, None, 5)
        metadata = cells.directory.metadata
        metadata._write(lambda connection: connection.execute(delete(DIRECTORY)))
        assert metadata.directory_page("", 10) == []
        fill_directory(cells.settings, as_json=True)
        assert row_of(cells) == before
    fill_directory(cells.settings, as_json=True)
    assert row_of(cells) == before
    assert [bucket["Name"] for bucket in ann.list_buckets()["Buckets"]] == ["wide"]


def test_a_name_that_was_used_elsewhere_cannot_become_wide(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    gateway.client("ann").create_bucket(Bucket="plain")
    with pytest.raises(InvalidInput, match="even after a deletion"):
        cells.claim_wide("plain", "ann", SLICES)
    for slices in ((), ("a",), ("a", "a"), ("a", "b") * 17):
        with pytest.raises(InvalidInput, match="2 to 32 slices"):
            cells.claim_wide("new", "ann", slices)
    with pytest.raises(InvalidInput, match="no cell x"):
        cells.claim_wide("new", "ann", ("a", "x"))
    assert cells.directory.metadata.directory_row("new") is None


def test_the_library_finds_the_objects_of_a_wide_bucket(served: tuple[Cells, Gateway], ann: Any) -> None:
    cells, _ = served
    with open_store(cells.settings) as store:
        for key in KEYS:
            store.put(f"wide/{key}", key.encode())
        assert [info.key.name for info in store.list("wide")] == sorted(KEYS)
        assert [info.key.name for info in store.list("wide", "folder-1/", after="folder-1/13")] == [
            key for key in sorted(KEYS[1::4]) if key > "folder-1/13"
        ]
        assert list(store.list_folder("wide")) == [f"folder-{number}/" for number in range(4)]
        assert store.get(f"wide/{KEYS[3]}") == KEYS[3].encode()
        assert list(store.buckets()) == ["wide"]
        with pytest.raises(InvalidInput, match="these objects are in several cells"):
            store.put_many([(f"wide/{key}", b"") for key in KEYS])
        store.put_many([(f"wide/{key_in(cells, 'c')}", b"1"), ("new/k", b"2")])
        assert len(store.delete_many([f"wide/{key}" for key in KEYS])) == len(KEYS)
    assert listed(ann) == ([], [])


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_cells(tmp_path, **WEIGHTS)
    config, source = cells_config(tmp_path, **WEIGHTS), tmp_path / "source"
    source.write_bytes(b"x")

    def call(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(["--config", str(config), *words]) == code, capsys.readouterr().err
        found = capsys.readouterr()
        return found.err if code else found.out

    made = json.loads(call("cells", "create-wide", "wide", "--owner", "ann", "--slices", "b,c,c", "--json"))
    assert made == {"bucket": "wide", "owner": "ann", "slices": ["b", "c", "c"]}
    assert "b, c, c" in call("cells", "create-wide", "wide", "--owner", "ann", "--slices", "b,c,c")
    assert "belongs to ann" in call("cells", "create-wide", "wide", "--slices", "b,c,c", code=2)
    assert "even after a deletion" in call("cells", "create-wide", "wide", "--slices", "b,c", code=2)
    assert "a, b, c" in call("cells", "create-wide", "even")
    assert "has 3 to 63 lower-case letters" in call("cells", "create-wide", "no_dns", code=2)
    counted = {one["cell"]: one["wide_buckets"] for one in json.loads(call("cells", "list", "--json"))["cells"]}
    assert counted == {"a": 1, "b": 2, "c": 2}
    assert call("cells", "list").splitlines()[1].split()[:4] == ["a", "1", "0", "1"]
    for key in KEYS:
        call("put", f"wide/{key}", str(source))
    assert json.loads(call("stat", f"wide/{KEYS[0]}", "--json"))["size"] == 1
    assert KEYS[0] in call("explain", f"wide/{KEYS[0]}")
    call("get", f"wide/{KEYS[0]}", "-o", str(tmp_path / "copy"))
    assert "--cell b and --cell c" in call("ls", "wide", code=2)
    assert len(call("--cell", "b", "ls", "wide").split() + call("--cell", "c", "ls", "wide").split()) == len(KEYS)
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20):
        (files / str(number)).write_bytes(bytes(100_000 if number % 5 else number))
    refused = " ".join(call("--cell", "b", "put", "-r", "wide", str(files), code=2).split())
    assert "each object belongs in one of the cells b and c, by its name; leave out --cell" in refused
    other = call("--cell", "a", "put", f"wide/{KEYS[0]}", str(source), code=2)
    assert f"wide/{KEYS[0]} belongs in cell" in other
    assert json.loads(call("put", "-r", "wide/d", str(files), "--json"))["objects"] == 20
    listed = [call("--cell", name, "ls", "wide/d/").split() for name in "bc"]
    assert sorted(name for names in listed for name in names) == sorted(f"wide/d/{number}" for number in range(20))
    assert all(listed)
    for number in (3, 5):
        assert json.loads(call("stat", f"wide/d/{number}", "--json"))["size"] == (100_000 if number % 5 else number)
    call("s3", "grant", "wide", "bob", "read")
    call("s3", "bucket", "give", "wide", "cid")
    settings = load_settings(config, {})
    for cell in "bc":
        with open_system(settings.of_cell(cell)) as system:
            row = system.metadata.bucket("wide")
            assert row is not None
            assert row.owner == "cid"
    call("rm", *(f"wide/{key}" for key in KEYS))
    assert "no such object" in call("rm", f"wide/{KEYS[0]}", code=4)


def test_slices_by_weight(tmp_path: Path) -> None:
    def slices(**weights: int) -> str:
        return "".join(slices_by_weight(load_settings(cells_config(tmp_path, **weights), {})))

    assert slices(a=1, b=1, c=0) == "ab"
    assert slices(a=2, b=4, c=6) == "abbccc"
    assert len(slices(a=1, b=1000)) <= 32
    assert set(slices(a=1, b=1000)) == {"a", "b"}


@pytest.mark.parametrize("point", WIDE_POINTS)
def test_kill_the_creation_and_the_deletion(bench: Bench, point: str) -> None:
    """Both may be repeated, the creation by anybody; until then, nobody sees a bucket that is there in part."""
    settings = new_cells(bench.folder, **WEIGHTS)
    bench.config = cells_config(bench.folder, **WEIGHTS)
    create_ = ["cells", "create-wide", "wide", "--slices", ",".join(SLICES), "--owner"]
    if point == "wide.slice_created":
        done = bench.run(*create_, "bob", kill_at=point)
        assert done.returncode == -signal.SIGKILL, done.stderr
    else:
        assert bench.run(*create_, "ann").returncode == 0
        done = bench.run_python("-c", DELETE, str(bench.config), kill_at=point)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with serving_cells(settings) as (cells, gateway):
        ann = gateway.client("ann")
        for key in KEYS:
            refused("NoSuchBucket", 404, ann.put_object, Bucket="wide", Key=key)
        refused("404", 404, ann.head_bucket, Bucket="wide")
        ann.create_bucket(Bucket="wide")
        fill(ann)
        refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="wide")
        assert listed(ann)[0] == sorted(KEYS)
        for cell in "bc":
            row = cells.system(cell).metadata.bucket("wide")
            assert row is not None
            assert row.owner == "ann"
            assert cells.system(cell).metadata.bucket_document("wide", DocumentKind.WIDE) == b"b,c,c"
        ann.delete_objects(Bucket="wide", Delete={"Objects": [{"Key": key} for key in KEYS]})
        ann.delete_bucket(Bucket="wide")
        refused("NoSuchBucket", 404, ann.list_objects_v2, Bucket="wide")
        assert cells.directory.metadata.buckets_in_directory("ann", "", 10) == []
