"""S3 on a store of several cells."""

from __future__ import annotations

import io
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from sqlalchemy import delete

from nos_ec import ObjectStore
from nos_ec.adapters.sql.tables.schema import DIRECTORY
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.commands.cells import fill_directory
from nos_ec.composition.cells import Cells, enter_buckets, open_cells
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.gateway.auth.access import _Cache
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.server.cell_services import STALLED_S
from nos_ec.ports.metadata import ROOT_ACCOUNT, CannedAcl
from nos_ec.settings import Cell, load_settings
from tests.rig.waiting import WAIT_S_MAX
from tests.service.s3.cell_stores import cells_config, new_cells, serving_cells
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, refused

pytestmark = pytest.mark.invariant(12)

NAMES = [f"bucket-{number}" for number in range(12)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Cells, Gateway]]:
    with serving_cells(new_cells(tmp_path, a=1, b=1, c=2)) as found:
        yield found


def homes(cells: Cells) -> dict[str, str]:
    return {row.bucket: row.home for row in cells.directory.metadata.directory_page("", 1000) if not row.is_deleted}


def listed(client: Any) -> list[str]:
    return [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]


def test_buckets_are_spread_over_the_cells_and_served_alike(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann, bob = gateway.client("ann"), gateway.client("bob")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
        ann.put_object(Bucket=name, Key="k", Body=name.encode())
    assert set(homes(cells).values()) == {"a", "b", "c"}
    assert [bucket["Name"] for bucket in ann.list_buckets()["Buckets"]] == sorted(NAMES)
    assert bob.list_buckets()["Buckets"] == []
    for name in NAMES:
        assert ann.get_object(Bucket=name, Key="k")["Body"].read() == name.encode()
        assert [entry["Key"] for entry in ann.list_objects_v2(Bucket=name)["Contents"]] == ["k"]
        refused("AccessDenied", 403, bob.get_object, Bucket=name, Key="k")
        refused("BucketAlreadyExists", 409, bob.create_bucket, Bucket=name)
        of_home = cells.system(homes(cells)[name])
        assert of_home.client.store().get(ObjectKey(name, "k")) == name.encode()


def test_a_bucket_that_was_deleted_is_created_again_where_it_was(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann, bob = gateway.client("ann"), gateway.client("bob")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
    before = homes(cells)
    for name in NAMES:
        ann.delete_bucket(Bucket=name)
    assert homes(cells) == {}
    assert ann.list_buckets()["Buckets"] == []
    refused("NoSuchBucket", 404, ann.list_objects_v2, Bucket=NAMES[0])
    for name in NAMES:
        bob.create_bucket(Bucket=name)
    assert homes(cells) == before
    assert [bucket["Name"] for bucket in bob.list_buckets()["Buckets"]] == sorted(NAMES)


def test_a_bucket_that_is_not_empty_stays_in_the_directory(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    ann.create_bucket(Bucket="full")
    ann.put_object(Bucket="full", Key="k")
    refused("BucketNotEmpty", 409, ann.delete_bucket, Bucket="full")
    assert "full" in homes(cells)


def test_unknown_buckets(served: tuple[Cells, Gateway]) -> None:
    _, gateway = served
    ann = gateway.client("ann")
    refused("NoSuchBucket", 404, ann.get_object, Bucket="nothing", Key="k")
    refused("NoSuchBucket", 404, ann.put_object, Bucket="nothing", Key="k")
    refused("NoSuchBucket", 404, ann.delete_bucket, Bucket="nothing")
    assert gateway.raw("GET", "/nothing/k")[0] == 404
    assert gateway.raw("PUT", "/nothing2")[0] == 403
    refused("InvalidBucketName", 400, ann.create_bucket, Bucket="Not_Valid")


def test_objects_are_copied_between_cells(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann, bob = gateway.client("ann"), gateway.client("bob")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
    found = homes(cells)
    source = next(name for name in NAMES if found[name] == "b")
    target = next(name for name in NAMES if found[name] == "c")
    data = bytes(range(256)) * 30_000
    ann.put_object(Bucket=source, Key="k", Body=data, Metadata={"a": "1"}, Tagging="t=2")
    ann.copy_object(Bucket=target, Key="copy", CopySource=f"{source}/k")
    got = ann.get_object(Bucket=target, Key="copy")
    assert (got["Body"].read(), got["Metadata"]) == (data, {"a": "1"})
    assert ann.get_object_tagging(Bucket=target, Key="copy")["TagSet"] == [{"Key": "t", "Value": "2"}]
    refused("NoSuchKey", 404, ann.copy_object, Bucket=target, Key="copy", CopySource=f"{source}/none")
    refused("NoSuchBucket", 404, ann.copy_object, Bucket=target, Key="copy", CopySource="nothing/k")
    bob.create_bucket(Bucket="bobs")
    refused("AccessDenied", 403, bob.copy_object, Bucket="bobs", Key="k", CopySource=f"{source}/k")
    upload = ann.create_multipart_upload(Bucket=target, Key="parts")["UploadId"]
    of = {"Bucket": target, "Key": "parts", "UploadId": upload}
    part = ann.upload_part_copy(**of, PartNumber=1, CopySource=f"{source}/k", CopySourceRange="bytes=5-6000000")
    parts = [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]
    ann.complete_multipart_upload(**of, MultipartUpload={"Parts": parts})
    assert ann.get_object(Bucket=target, Key="parts")["Body"].read() == data[5:6_000_001]


def test_encrypted_objects_of_all_cells_have_keys_of_the_directory(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    KeyRing(cells.directory.metadata, MASTERS, cells.directory.clock).add(os.urandom)
    for name in NAMES:
        ann.create_bucket(Bucket=name)
        ann.put_object(Bucket=name, Key="k", Body=b"secret", ServerSideEncryption="AES256")
        assert ann.get_object(Bucket=name, Key="k")["Body"].read() == b"secret"
    assert set(homes(cells).values()) == {"a", "b", "c"}


def test_two_programs_create_one_bucket(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    clients = [gateway.client("ann"), gateway.client("bob"), gateway.client("cid")]
    for number in range(10):
        results: list[Any] = []

        def create(client: Any, name: str = f"same-{number}", results: list[Any] = results) -> None:
            try:
                client.create_bucket(Bucket=name)
                results.append("made")
            except Exception as error:
                results.append(str(error))

        threads = [threading.Thread(target=create, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results.count("made") <= 1, results
        name = f"same-{number}"
        held = [cell for cell, system in cells.opened().items() if system.metadata.bucket(name) is not None]
        assert held in ([], [homes(cells)[name]])


def test_a_creation_that_was_interrupted_is_completed(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    ann, bob = gateway.client("ann"), gateway.client("bob")

    def fail(*_: object) -> bool:
        raise Transient("the process dies here")

    for system in cells.opened().values():
        monkeypatch.setattr(system.metadata, "create_bucket", fail)
    refused("ServiceUnavailable", 503, ann.create_bucket, Bucket="half")
    refused("ServiceUnavailable", 503, ann.create_bucket, Bucket="ghost")
    monkeypatch.undo()
    assert listed(ann) == [], "the cells have confirmed neither"
    claimed = cells.directory.metadata.directory_row("half")
    assert claimed is not None
    home = claimed.home
    bob.create_bucket(Bucket="half")
    assert homes(cells) == {"half": home}
    assert cells.system(home).metadata.bucket("half") is not None
    assert listed(bob) == ["half"]
    refused("NoSuchBucket", 404, ann.delete_bucket, Bucket="ghost")
    assert listed(ann) == []


def test_a_creation_of_which_the_directory_was_not_told_is_listed_when_it_is_used(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    ann = gateway.client("ann")

    def fail(*_: object) -> bool:
        raise Transient("the directory went away after the claim")

    for name in ("used", "repeated"):
        monkeypatch.setattr(cells.directory.metadata, "record_in_directory", fail)
        refused("ServiceUnavailable", 503, ann.create_bucket, Bucket=name)
        monkeypatch.undo()
    assert listed(ann) == []
    ann.head_bucket(Bucket="used")
    ann.create_bucket(Bucket="repeated")
    assert listed(ann) == ["repeated", "used"]


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_bucket_that_exists_again_is_listed_when_it_is_used(served: tuple[Cells, Gateway], *, is_wide: bool) -> None:
    """A program that still remembers the home of a deleted bucket puts an object into it. It is the last owner's."""
    cells, gateway = served
    ann, bob = gateway.client("ann"), gateway.client("bob")
    if is_wide:
        cells.claim_wide("back", "ann", ("b", "c", "c"))
    ann.create_bucket(Bucket="back")
    row = cells.known("back")
    assert row is not None
    ann.delete_bucket(Bucket="back")
    refused("404", 404, ann.head_bucket, Bucket="back")
    assert listed(ann) == []
    name = next(f"k{number}" for number in range(100) if row.cell_of(f"k{number}") == row.cells[-1])
    cells.system(row.cell_of(name)).client.store().put(ObjectKey("back", name), io.BytesIO(b"x"), b"")
    refused("AccessDenied", 403, bob.get_object, Bucket="back", Key=name)
    assert ann.get_object(Bucket="back", Key=name)["Body"].read() == b"x"
    assert listed(ann) == ["back"]
    assert cells.known("back") is not None, "later requests need no look-up"
    ann.delete_object(Bucket="back", Key=name)
    refused("404", 404, ann.head_bucket, Bucket="back")
    assert listed(ann) == []


def test_a_bucket_that_was_never_created_is_listed_while_it_holds_objects(served: tuple[Cells, Gateway]) -> None:
    """It is gone with its last object, as in a store without cells."""
    cells, gateway = served
    root = gateway.client(ROOT_ACCOUNT)
    store = ObjectStore(cells)
    store.put("plain/k", b"x")
    assert listed(root) == ["plain"]
    store.delete("plain/k")
    refused("404", 404, root.head_bucket, Bucket="plain")
    assert listed(root) == []


def test_a_cell_without_weight_gets_no_bucket(tmp_path: Path) -> None:
    with serving_cells(new_cells(tmp_path, a=0, b=1)) as (cells, gateway):
        ann = gateway.client("ann")
        for name in NAMES:
            ann.create_bucket(Bucket=name)
        assert set(homes(cells).values()) == {"b"}


def test_without_weights_no_bucket_is_created(tmp_path: Path) -> None:
    """It was answered with 500, which blames a bug. What has a home is served."""
    settings = new_cells(tmp_path, a=1, b=0)
    with serving_cells(settings) as (_, gateway):
        gateway.client("ann").create_bucket(Bucket="there")
    none = settings.with_cells({name: Cell(cell.settings, 0) for name, cell in settings.cells.items()})
    with serving_cells(none) as (cells, gateway):
        ann = gateway.client("ann")
        with pytest.raises(ClientError, match="give one a weight above 0") as caught:
            ann.create_bucket(Bucket="new")
        assert caught.value.response["Error"]["Code"] == "ServiceUnavailable"
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
        assert set(homes(cells)) == {"there"}
        ann.put_object(Bucket="there", Key="k", Body=b"x")
        ann.create_bucket(Bucket="there")


def test_a_cell_that_cannot_be_opened_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.composition.cells.RETRY_MS", 50)
    settings = new_cells(tmp_path, a=1, b=1)
    with serving_cells(settings) as (cells, gateway):
        ann = gateway.client("ann")
        for name in NAMES:
            ann.create_bucket(Bucket=name)
            ann.put_object(Bucket=name, Key="k", Body=b"x")
        found = homes(cells)
    is_away = True

    def opened(of_cell: Any) -> System:
        if of_cell.cell == "b" and is_away:
            raise Transient("its database is away")
        return open_system(of_cell)

    monkeypatch.setattr("nos_ec.composition.cells.open_system", opened)
    with serving_cells(settings) as (_, gateway):
        ann = gateway.client("ann")
        assert len(ann.list_buckets()["Buckets"]) == len(NAMES)
        for name in NAMES:
            if found[name] == "a":
                assert ann.get_object(Bucket=name, Key="k")["Body"].read() == b"x"
            else:
                refused("ServiceUnavailable", 503, ann.get_object, Bucket=name, Key="k")
        ann.create_bucket(Bucket="new")
        is_away = False
        name = next(name for name in NAMES if found[name] == "b")
        for _ in range(100):
            try:
                ann.get_object(Bucket=name, Key="k")
                break
            except Exception:
                threading.Event().wait(0.1)
        assert ann.get_object(Bucket=name, Key="k")["Body"].read() == b"x"


def test_the_directory_must_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = new_cells(tmp_path, a=1, b=1)

    def opened(_: Any) -> System:
        raise Transient("its database is away")

    monkeypatch.setattr("nos_ec.composition.cells.open_system", opened)
    with pytest.raises(Transient, match="its database is away"):
        open_cells(settings, SystemClock())


def test_two_cells_of_one_database_are_refused(tmp_path: Path) -> None:
    settings = new_cells(tmp_path, a=1, b=1)
    file = cells_config(tmp_path, a=1, b=1)
    database = tmp_path / "a" / "metadata.db"
    file.write_text(file.read_text() + f'store.metadata_url = "sqlite:///{database}"\n')
    assert settings.of_cell("b").store.metadata_url is None
    with (
        open_cells(load_settings(file, {}), SystemClock()) as cells,
        pytest.raises(
            Transient, match="cell b is another store than the one of that name: its database is that of cell a"
        ),
    ):
        cells.system("b")


def test_buckets_that_are_known_need_no_directory(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
        ann.put_object(Bucket=name, Key="k", Body=b"x")
    others = [name for name in NAMES if homes(cells)[name] != "a"]

    def away(*_: object) -> Any:
        raise Transient("the directory is away")

    for method in ("directory_row", "claim_home", "record_in_directory", "access_key", "bucket"):
        monkeypatch.setattr(cells.directory.metadata, method, away)
    for name in others:
        assert ann.get_object(Bucket=name, Key="k")["Body"].read() == b"x"
    refused("ServiceUnavailable", 503, ann.get_object, Bucket="unknown", Key="k")


def test_the_directory_is_made_again_from_the_cells(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
    before = homes(cells)
    metadata: Any = cells.directory.metadata
    metadata._write(lambda connection: connection.execute(delete(DIRECTORY)))
    assert homes(cells) == {}
    fill_directory(cells.settings, as_json=True)
    assert homes(cells) == before
    assert [bucket["Name"] for bucket in ann.list_buckets()["Buckets"]] == sorted(NAMES)


def test_a_bucket_in_two_cells_stays_at_its_home(served: tuple[Cells, Gateway]) -> None:
    cells, _ = served
    for cell in ("a", "b"):
        cells.system(cell).metadata.create_bucket("twice", "ann", CannedAcl.PRIVATE, 1)
    assert homes(cells)["twice"] == "a"
    row = cells.system("b").metadata.bucket("twice")
    assert row is not None
    assert [other.home for other in enter_buckets(cells.directory, cells.system("b"), [row])] == ["a"]


def test_a_stale_key_is_used_while_keys_cannot_be_read() -> None:
    class Now:
        ms = 0

        def now_ms(self) -> int:
            return self.ms

    clock, calls = Now(), []
    cache: _Cache[int] = _Cache(clock, 10, stale_ms=1000)  # type: ignore[arg-type]

    def away(_: str) -> int:
        calls.append(1)
        raise Transient("away")

    assert cache.find("k", lambda _: 7) == 7
    clock.ms = 500
    assert cache.find("k", away) == 7
    assert cache.find("k", away) == 7
    assert len(calls) == 1
    with pytest.raises(Transient):
        cache.find("other", away)
    clock.ms = 1001
    with pytest.raises(Transient):
        cache.find("k", away)


def test_a_cell_that_stalls_leaves_threads_to_the_others(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nos_ec.gateway.server.cell_services.STALLED_S", 0.3)
    cells, gateway = served
    ann = gateway.client("ann")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
        ann.put_object(Bucket=name, Key="k", Body=b"x")
    found = homes(cells)
    stalled, other = (next(name for name in NAMES if found[name] == cell) for cell in "bc")
    goes_on, waiting = threading.Event(), threading.Semaphore(0)
    real = cells.system("b").metadata.bucket

    def wait(name: str) -> Any:
        waiting.release()
        goes_on.wait(WAIT_S_MAX)
        return real(name)

    monkeypatch.setattr(cells.system("b").metadata, "bucket", wait)
    codes: list[str] = []

    def get(client: Any) -> None:
        try:
            client.get_object(Bucket=stalled, Key="k")
            codes.append("served")
        except Exception as error:
            codes.append(str(error))

    clients = [gateway.client("ann") for _ in range(4)]  # half of the threads of SETTINGS
    threads = [threading.Thread(target=get, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    assert all(waiting.acquire(timeout=WAIT_S_MAX) for _ in threads)
    threading.Event().wait(0.5)
    refused("ServiceUnavailable", 503, ann.get_object, Bucket=stalled, Key="k")
    assert ann.get_object(Bucket=other, Key="k")["Body"].read() == b"x"
    goes_on.set()
    for thread in threads:
        thread.join()
    assert codes == ["served"] * 4
    assert ann.get_object(Bucket=stalled, Key="k")["Body"].read() == b"x"


def test_a_name_is_not_given_away_while_a_cell_is_not_entered(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    ann, bob = gateway.client("ann"), gateway.client("bob")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
    stays = homes(cells)
    metadata: Any = cells.directory.metadata
    metadata._write(lambda connection: connection.execute(delete(DIRECTORY)))
    real = open_system

    def opened(of_cell: Any) -> System:
        if of_cell.cell == "b":
            raise Transient("its database is away")
        return real(of_cell)

    monkeypatch.setattr("nos_ec.cli.commands.cells.open_system", opened)
    with pytest.raises(Transient, match="its database is away"):
        fill_directory(cells.settings, as_json=True)
    cells._homes.clear()
    of_b = next(name for name, home in stays.items() if home == "b")
    refused("ServiceUnavailable", 503, bob.create_bucket, Bucket=of_b)
    refused("ServiceUnavailable", 503, ann.list_objects_v2, Bucket=of_b)
    monkeypatch.undo()
    fill_directory(cells.settings, as_json=True)
    assert homes(cells) == stays
    refused("BucketAlreadyExists", 409, bob.create_bucket, Bucket=of_b)


def test_the_directory_forgets_what_is_gone(served: tuple[Cells, Gateway]) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    ann.create_bucket(Bucket="gone")
    row = cells.directory.metadata.directory_row("gone")
    assert row is not None
    ann.delete_bucket(Bucket="gone")
    cells.directory.metadata.record_in_directory(row)  # as a restored backup would
    assert len(ann.list_buckets()["Buckets"]) == 1
    fill_directory(cells.settings, as_json=True)
    assert ann.list_buckets()["Buckets"] == []


def test_documents_can_be_changed_while_the_directory_is_away(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
    other = next(name for name in NAMES if homes(cells)[name] != "a")

    def away(*_: object) -> Any:
        raise Transient("the directory is away")

    for method in ("directory_row", "record_in_directory", "access_key", "note"):
        monkeypatch.setattr(cells.directory.metadata, method, away)
    ann.put_bucket_versioning(Bucket=other, VersioningConfiguration={"Status": "Enabled"})
    assert ann.get_bucket_versioning(Bucket=other)["Status"] == "Enabled"


def test_a_cell_that_gives_requests_up_gets_no_more_threads_for_it(
    served: tuple[Cells, Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nos_ec.gateway.server.cell_services.STALLED_S", 0.3)
    cells, gateway = served
    ann = gateway.client("ann")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
    stalled = next(name for name, home in homes(cells).items() if home == "b")
    hangs_s, waiting, most = 0.5, 0, 0
    lock = threading.Lock()

    def give_up(name: str) -> Any:
        nonlocal waiting, most
        with lock:
            waiting += 1
            most = max(most, waiting)
        threading.Event().wait(hangs_s)
        with lock:
            waiting -= 1
        raise Transient("the database does not answer")

    def ask() -> None:
        for _ in range(4):
            refused("ServiceUnavailable", 503, gateway.client("ann").get_object, Bucket=stalled, Key="k")

    monkeypatch.setattr(cells.system("b").metadata, "bucket", give_up)
    refused("ServiceUnavailable", 503, ann.get_object, Bucket=stalled, Key="k")
    most = 0
    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 4  # half of the threads of SETTINGS
    monkeypatch.undo()
    refused("NoSuchKey", 404, ann.get_object, Bucket=stalled, Key="k")


def test_a_busy_cell_that_answers_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's time advances by a step with each request that begins or ends, however slow the machine is. All
    threads together cannot begin as many requests without an answer as would take STALLED_S / 4, and all of the
    requests take many times STALLED_S."""
    step_s = STALLED_S / 4 / (4 * SETTINGS.threads)
    steps = itertools.count()
    monkeypatch.setattr("tests.service.s3.cell_stores.perf_counter", lambda: next(steps) * step_s)
    with serving_cells(new_cells(tmp_path, a=1, b=1)) as (_, gateway):
        gateway.client("ann").create_bucket(Bucket="busy")
        failures: list[str] = []

        def ask() -> None:
            client = gateway.client("ann")
            for number in range(15):
                try:
                    client.put_object(Bucket="busy", Key=f"k{number}", Body=b"x")
                    client.get_object(Bucket="busy", Key=f"k{number}")
                except Exception as error:
                    failures.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert next(steps) * step_s > 5 * STALLED_S
