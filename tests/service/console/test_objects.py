"""The Objects page: listings a page at a time, one object's life, and names that are text whatever they contain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from urllib.parse import parse_qs

import pytest
from sqlalchemy import text

from nos_ec.composition.explaining import object_explainer
from nos_ec.composition.wiring import System
from nos_ec.console import object_page, objects
from nos_ec.console.app import create_app
from nos_ec.console.object_page import Life, find_life
from nos_ec.console.objects import Asked, Entry, Show, listing, trash_mark
from nos_ec.console.panels import Panels
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode
from nos_ec.core.parts import UploadId
from nos_ec.core.states import BlockState
from nos_ec.core.versions import Versioning
from nos_ec.engine.explain.objects import known_lock
from nos_ec.ports.metadata import PutRequest, UploadRow, UploadState
from nos_gc.assemble import gc_service
from tests.rig.sql.sql_plans import caught
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench
from tests.unit.console.test_console_security import Client

HOSTILE = "<script>alert(1)</script>\u202egpj.exe\x1b[31m\u2066" + "n" * 900


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        yield Client(create_app(system, panels, None, bytes))


def all_of(system: System, page: Asked) -> list[Entry]:
    """The entries of all pages of a listing."""
    found: list[Entry] = []
    while True:
        one = listing(system.metadata, page)
        assert len(one.entries) <= max(objects.PAGE_ROWS, objects.TRASH_ROWS)
        found += one.entries
        if one.after is None:
            return found
        page = Asked(page.bucket, page.prefix, page.show, one.after)


def life_of(system: System, name: str, version: int | None = None, trash: str = "") -> Life:
    return find_life(system, ObjectKey("b", name), version, trash_mark(trash))


def test_retention_and_hold_of_each_version_are_shown(system: System, client: Client) -> None:
    key, locks = ObjectKey("b", "locked"), system.client.locks()
    first = system.client.store().put_request(
        PutRequest(key, versioning=Versioning.ENABLED, lock=Lock(LockMode.COMPLIANCE, 4_000_000_000_000)), BytesIO(b"1")
    )
    second = system.client.store().put_request(PutRequest(key, versioning=Versioning.ENABLED), BytesIO(b"2"))
    assert life_of(system, "locked").lock is None
    assert life_of(system, "locked", first.version).lock == "until 2096-10-02T07:06:40+00:00 (COMPLIANCE)"
    for row in (first, second):
        found = system.metadata.same_version(row)
        assert found is not None
        known = found.lock or Lock()
        locks.change(found, replace(known, hold=True), bypass=False)
    both = "by a legal hold and until 2096-10-02T07:06:40+00:00 (COMPLIANCE)"
    assert life_of(system, "locked", first.version).lock == both
    assert object_explainer(system).explain(key).lock == life_of(system, "locked").lock == "by a legal hold"
    assert "by a legal hold" in client.get("/objects/one?bucket=b&name=locked").text
    damaged = system.metadata.same_version(first)
    assert damaged is not None
    unknown: list[str] = []
    assert known_lock(replace(damaged, attributes=encode_attributes({"nos_ec:lock": "?"})), unknown) is None
    assert unknown == ["how it is locked: attribute nos_ec:lock: '?'"]


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two entries."""
    monkeypatch.setattr(objects, "PAGE_ROWS", 2)
    monkeypatch.setattr(objects, "TRASH_ROWS", 2)


# --- listings -------------------------------------------------------------------------------------
@pytest.mark.usefixtures("short_pages")
def test_buckets_and_objects_with_their_folders_come_in_pages(bench: Bench, system: System) -> None:
    for name in ("a", "dir/a", "dir/b", "dir/sub/c", "e", "f"):
        bench.put(system, name, b"x")
    for bucket in ("c", "d"):
        bench.put(system, "a", b"x", bucket)
    assert [one.name for one in all_of(system, Asked())] == ["b", "c", "d"]
    assert [(one.name, one.is_folder) for one in all_of(system, Asked("b"))] == [
        *(("a", False), ("dir/", True), ("e", False), ("f", False))
    ]
    assert [one.name for one in all_of(system, Asked("b", "dir/"))] == ["dir/a", "dir/b", "dir/sub/"]
    (folder,) = [one for one in all_of(system, Asked("b")) if one.is_folder]
    assert parse_qs(folder.query) == {"bucket": ["b"], "prefix": ["dir/"], "show": ["objects"]}
    (found,) = [one for one in all_of(system, Asked("b")) if one.name == "a"]
    assert (found.size, found.what, found.at_ms is not None) == (1, "landed", True)


@pytest.mark.usefixtures("short_pages")
def test_versions_and_delete_markers_come_in_pages(system: System) -> None:
    key = ObjectKey("b", "a")
    for data in (b"1", b"22", b"333"):
        system.client.store().put_request(PutRequest(key, versioning=Versioning.ENABLED), BytesIO(data))
    system.client.store().put_request(PutRequest(ObjectKey("b", "dir/x"), versioning=Versioning.ENABLED), BytesIO(b"x"))
    system.client.store().put_request(PutRequest(ObjectKey("b", "z"), versioning=Versioning.ENABLED), BytesIO(b"zzzz"))
    found = all_of(system, Asked("b", show=Show.VERSIONS))
    assert [(one.name, one.size) for one in found] == [("a", 3), ("a", 2), ("a", 1), ("dir/", None), ("z", 4)]
    assert [one.what for one in found[:3]] == ["landed", "landed, noncurrent", "landed, noncurrent"]


@pytest.mark.usefixtures("short_pages")
def test_uploads_come_in_pages(system: System) -> None:
    for number in range(5):
        row = UploadRow(UploadId(bytes([number] * 16)), ObjectKey("b", f"o{number % 3}"), UploadState.OPEN, 5)
        system.metadata.create_upload(row)
    found = all_of(system, Asked("b", show=Show.UPLOADS))
    assert [one.name for one in found] == ["o0", "o0", "o1", "o1", "o2"]
    assert "upload 00000000000000000000000000000000" in found[0].what


@pytest.mark.usefixtures("short_pages")
def test_a_page_of_the_trash_says_how_far_it_looked(bench: Bench, system: System) -> None:
    now_ms = system.clock.now_ms()
    for number in range(5):
        key = bench.put(system, f"o{number}", b"x", "b" if number % 2 else "other")
        system.metadata.delete(key, now_ms, now_ms + 1000 * number)
    page = listing(system.metadata, Asked("b", show=Show.TRASH))
    assert ([one.name for one in page.entries], page.until_ms) == (["o3"], now_ms + 3000)
    found = all_of(system, Asked("b", show=Show.TRASH))
    assert [(one.name, one.until_ms) for one in found] == [("o3", now_ms + 3000), ("o1", now_ms + 1000)]
    assert all(one.at_ms == now_ms for one in found)


@pytest.mark.parametrize(
    ("show", "after"), [("versions", "x"), ("versions", "9999999999999999999/a"), ("uploads", "a/b"), ("trash", "1")]
)
def test_a_place_that_no_page_gave_is_refused(system: System, client: Client, show: str, after: str) -> None:
    with pytest.raises(InvalidInput):
        listing(system.metadata, Asked("b", show=Show(show), after=after))
    assert client.get("/objects", params={"bucket": "b", "show": show, "after": after}).status_code == 400


def test_a_number_that_no_version_can_have_is_refused(client: Client) -> None:
    query = {"bucket": "b", "name": "n", "version": "9" * 19}
    assert client.get("/objects/one", params=query).status_code == 400


@pytest.mark.parametrize("query", ["show=x", f"bucket={'b' * 256}", f"bucket=b&prefix={'n' * 1025}"])
def test_other_parameters_are_refused(client: Client, query: str) -> None:
    assert client.get(f"/objects?{query}").status_code == 400


# --- one object -----------------------------------------------------------------------------------
def test_the_life_of_an_object_from_its_put_to_gc(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace("block_grace_ms = 0", "block_grace_ms = 100000000"))
    with bench.open() as system:
        for name in "abcdefgh":
            bench.put(system, name, bench.data(CHUNK))
        found = life_of(system, "a")
        assert [event.what for event in found.events] == ["stored"]
        assert (found.is_current, found.places) == (True, [])
        bench.pack(system)
        found = life_of(system, "a")
        assert [event.what for event in found.events] == ["stored", "packed into its present block"]
        assert found.events[0].at_ms <= found.events[1].at_ms
        assert found.places == [system.metadata.get(found.key).extent]
        for name in "bcdefgh":
            bench.delete(system, ObjectKey("b", name))
        gc_service(system).run_once()
        assert [event.what for event in life_of(system, "a").events][1:] == ["moved by GC to its present block"]


def test_the_places_of_a_large_object(bench: Bench, system: System) -> None:
    bench.put(system, "large", bench.data(20 * STRIPE + 5))
    bench.pack(system)
    found = life_of(system, "large")
    assert sum(place.length for place in found.places) == 20 * STRIPE + 5
    assert found.places_left_out == 0


def test_versions_of_an_object_and_one_in_the_trash(bench: Bench, system: System) -> None:
    key = ObjectKey("b", "a")
    versioned = PutRequest(key, versioning=Versioning.ENABLED)
    old, new = (system.client.store().put_request(versioned, BytesIO(data)) for data in (b"old", b"new"))
    found = life_of(system, "a", old.version)
    assert (found.version, found.is_current, found.explained) == (old.version, False, None)
    assert [one.version for one in found.versions] == [new.version, old.version]
    assert life_of(system, "a", new.version).is_current
    with pytest.raises(NotFound):
        life_of(system, "a", 5)
    bench.put(system, "thrown", b"x")
    now_ms = system.clock.now_ms()
    row = system.metadata.delete(ObjectKey("b", "thrown"), now_ms, now_ms + 5000)
    found = life_of(system, "thrown", trash=f"{now_ms + 5000}-{row.object_id}")
    assert [event.what for event in found.events] == [
        *("stored", "deleted into the trash", "the trash keeps it until then")
    ]
    assert found.events[-1].at_ms == now_ms + 5000
    with pytest.raises(NotFound):
        life_of(system, "thrown", trash=f"{now_ms}-{row.object_id}")


def test_a_page_says_that_there_may_be_older_versions(
    system: System, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (b"1", b"22", b"333"):
        request = PutRequest(ObjectKey("b", "a?&"), versioning=Versioning.ENABLED)
        system.client.store().put_request(request, BytesIO(data))
    link = '<a href="/objects?bucket=b&amp;prefix=a%3F%26&amp;show=versions">Older versions</a>'
    assert link not in client.get("/objects/one", params={"bucket": "b", "name": "a?&"}).text
    monkeypatch.setattr(object_page, "VERSIONS_MAX", 2)
    page = client.get("/objects/one", params={"bucket": "b", "name": "a?&"}).text
    assert link in page
    assert "These are the latest 2." in page


def test_what_does_not_exist_is_not_found(bench: Bench, system: System, client: Client) -> None:
    bench.put(system, "here", b"x")
    expected = {
        "/objects/one?bucket=b&name=here": 200,
        "/objects/one?bucket=b&name=gone": 404,
        "/objects/one?bucket=b&name=here&version=7": 404,
        "/objects/one?bucket=b&name=here&trash=1-1": 404,
        f"/blocks/{'ab' * 16}": 404,
        "/objects?bucket=b&show=versions&after=odd": 400,
        "/objects?bucket=nothing": 200,
    }
    assert {path: client.get(path).status_code for path in expected} == expected
    assert "<h1>" in client.get("/objects/one?bucket=b&name=gone").text


def test_a_page_is_small_however_many_folders_lead_to_it(client: Client) -> None:
    page = client.get("/objects", params={"bucket": "b", "prefix": "/" * 1000})
    assert (page.status_code, len(page.text) < 100_000) == (200, True)
    few = client.get("/objects", params={"bucket": "b", "prefix": "a/b/"})
    assert "\N{HORIZONTAL ELLIPSIS}" not in few.text
    assert page.text.count("\N{HORIZONTAL ELLIPSIS}") == 1
    assert page.text.count('href="/objects?') == 1 + objects.FOLDERS_SHOWN


def test_hostile_names_are_text_on_every_page(bench: Bench, system: System, client: Client) -> None:
    key = bench.put(system, HOSTILE, bench.data(CHUNK))
    bench.put(system, "other", bench.data(CHUNK))
    bench.pack(system)
    row = system.metadata.get(key)
    assert row.extent is not None
    block = f"/blocks/{row.extent.block_id.hex()}"
    pages = [
        client.get("/objects", params={"bucket": "b", "prefix": HOSTILE}),
        client.get("/objects", params={"bucket": "b", "prefix": HOSTILE, "show": "versions"}),
        client.get("/objects/one", params={"bucket": "b", "name": HOSTILE}),
        client.get(f"{block}?at={row.extent.offset}"),
    ]
    bench.delete(system, key)
    pages.append(client.get(f"{block}?at={row.extent.offset}"))
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "&lt;script&gt;alert(1)" in page.text
        assert "\\u202egpj.exe\\x1b[31m\\u2066" in page.text


def test_a_page_costs_as_many_statements_however_many_blocks_there_are(
    bench: Bench, system: System, client: Client
) -> None:
    bench.put(system, "a", bench.data(CHUNK))
    bench.pack(system)
    (row,) = [one for one in system.metadata.list_blocks(None, 9) if one.state is BlockState.SEALED]
    paths = [f"/blocks/{row.block_id.hex()}", "/objects", "/objects?bucket=b", "/objects/one?bucket=b&name=a"]
    paths += ["/blocks/tiles"]
    counted: list[list[int]] = []
    for _ in range(2):
        counts = []
        for path in paths:
            with caught(system.metadata) as statements:  # type: ignore[arg-type]
                assert client.get(path).status_code == 200
            counts.append(len(statements))
        counted.append(counts)
        with system.metadata._transactions.engines[0].begin() as connection:  # type: ignore[attr-defined]
            made = (
                "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
                " INSERT INTO blocks (block_id, kind, state, writer, epoch, stripes, live_bytes, dead_bytes,"
                " overhead_bytes, live_objects, created_ms, gc_failures) SELECT randomblob(16),"
                " 'fresh', 'sealed', CAST('w' AS BLOB), 1, 8, 5, 5, 0, 1, 5, 0 FROM n"
            )
            connection.execute(text(made))
    assert counted[0] == counted[1]
