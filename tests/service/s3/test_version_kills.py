"""kill -9 of a program at each step that makes or removes versions, and versions in a rebuild of the metadata."""

from __future__ import annotations

import signal
from io import BytesIO

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.ids import Extent, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata import AddMarker, CannedAcl, DeleteVersion, DocumentKind, VersionEntry
from tests.rig.at_rest import end_log
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild

pytestmark = [pytest.mark.timed, pytest.mark.invariant(1, 7)]

ENABLED, SUSPENDED = Versioning.ENABLED, Versioning.SUSPENDED
KEY = ObjectKey("b", "k")
PROGRAM = """
import os
import sys
from io import BytesIO
from pathlib import Path
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata import AddMarker, DeleteVersion
from nos_ec.settings import load_settings
key = ObjectKey("b", "k")
with open_system(load_settings(Path(sys.argv[1]), os.environ)) as system:
    store = system.client.store()
    if sys.argv[2] == "put":
        store.put(key, BytesIO(b"second"), versioning=Versioning.ENABLED)
    elif sys.argv[2] == "mark":
        store.delete_versions([AddMarker(key, Versioning.ENABLED)])
    else:
        store.delete_versions([DeleteVersion(key, store.head(key).version)])
"""
VERSION_POINTS = ["metadata.version_retired.before_commit", "metadata.delete_versions.before_commit"]


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def put(system: System, data: bytes, versioning: Versioning | None = ENABLED, key: ObjectKey = KEY) -> int:
    return system.client.store().put(key, BytesIO(data), versioning=versioning).version


def versions(system: System, key: ObjectKey = KEY) -> list[tuple[bytes | None, bool, bool]]:
    """(bytes, None for a marker; whether it is a null version; whether it is the latest), as listed."""
    store = system.client.store()
    page = store.list_versions(key.bucket, key.name, "", ("", None), 1000, 10_000)
    entries = [one for one in page.entries if isinstance(one, VersionEntry) and one.key == key]
    return [
        (None if one.row is None else b"".join(store.open_version(one.row)), one.is_null, one.is_latest)
        for one in entries
    ]


@pytest.mark.parametrize(
    ("point", "action"),
    [
        (VERSION_POINTS[0], "put"),
        (VERSION_POINTS[0], "mark"),
        (VERSION_POINTS[1], "mark"),
        (VERSION_POINTS[1], "remove"),
        ("metadata.record_puts.before_commit", "put"),
        ("put.recorded", "put"),
        ("delete.done", "mark"),
        ("delete.done", "remove"),
    ],
)
def test_killed(bench: Bench, point: str, action: str) -> None:
    with bench.open() as system:
        put(system, b"zero")
        put(system, b"first")
        before = versions(system)
    done = bench.run_python("-c", PROGRAM, str(bench.config), action, kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    older = [(body, is_null, False) for body, is_null, _ in before]
    after = {
        "put": [(b"second", False, True), *older],
        "mark": [(None, False, True), *older],
        "remove": [(b"zero", False, True)],
    }[action]
    with bench.open() as system:
        assert versions(system) == (after if point in ("put.recorded", "delete.done") else before)
        bench.settle(system)
        assert check(system, read_share=1.0) == []


def fill(bench: Bench, system: System) -> dict[ObjectKey, list[tuple[bytes | None, bool, bool]]]:
    """Keys with versions of all kinds."""
    assert system.metadata.create_bucket("b", "ann", CannedAcl.PRIVATE, 5)
    system.metadata.set_bucket_document("b", DocumentKind.VERSIONING, b"Enabled", 5)
    keys = [ObjectKey("b", name) for name in ("many", "marked", "large", "suspended", "promoted", "plain")]
    many, marked, large, suspended, promoted, plain = keys
    put(system, bench.data(CHUNK), None, many)
    for key in (many, many, marked, marked, suspended, promoted, promoted):
        put(system, bench.data(CHUNK), key=key)
    put(system, bench.data(5 * STRIPE), key=large)
    put(system, bench.data(6 * STRIPE), key=large)
    put(system, bench.data(CHUNK), SUSPENDED, suspended)
    put(system, bench.data(CHUNK), None, plain)
    store = system.client.store()
    store.delete_versions([AddMarker(marked, ENABLED), DeleteVersion(promoted, store.head(promoted).version)])
    return {key: versions(system, key) for key in keys}


def test_versions_come_back_from_a_dump(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        found = fill(bench, system)
        bench.pack(system)
        put(system, b"waits", key=KEY)
        put(system, b"waits, too", key=KEY)
        found[KEY] = versions(system)
        floors = system.metadata.floors_after(None, 9)
        assert [key.name for key, _ in floors] == ["promoted"]
        cli("metadata", "dump")
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert {key: versions(system, key) for key in found} == found
        assert check(system, read_share=1.0) == []
        assert system.metadata.bucket_document("b", DocumentKind.VERSIONING) == b"Enabled"
        assert system.metadata.floors_after(None, 9) == floors
        bench.settle(system)
        assert {key: versions(system, key) for key in found} == found


def test_what_became_noncurrent_since_the_dump_stays(bench: Bench, cli: Cli) -> None:
    other = ObjectKey("b", "other")
    with bench.open() as system:
        put(system, b"1" * 9000)
        put(system, b"null", None, other)
        bench.pack(system)
        cli("metadata", "dump")
        put(system, b"2" * 9000)
        put(system, b"3" * 9000)
        put(system, b"own", key=other)
        bench.pack(system)
        found = [versions(system), versions(system, other)]
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert [versions(system), versions(system, other)] == found
        assert check(system, read_share=1.0) == []


def test_without_a_dump_versions_with_ids_come_back(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        found = fill(bench, system)
        bench.pack(system)
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        for key in found:
            bodies = [body for body, *_ in versions(system, key)]
            told = [body for body, *_ in found[key] if body is not None]
            assert bodies[: len(told)] == told or set(told) <= set(bodies), key
        assert versions(system, ObjectKey("b", "marked"))[0][2], "the marker is lost, as it has no bytes"
        assert check(system, read_share=1.0) == []


def extents(system: System) -> dict[int, Extent | None]:
    """Where the packed noncurrent versions are, by object id."""
    ids = [object_id for *_, object_id in system.metadata.noncurrent_after(None, 1000) if object_id is not None]
    rows = system.metadata.objects_with(ids).values()
    return {row.object_id: row.extent for row in rows if row.state is ObjectState.PACKED}


def test_noncurrent_versions_are_moved_by_gc(bench: Bench) -> None:
    with bench.open() as system:
        found = fill(bench, system)
        filler = bench.put_some(system, 60)
        bench.pack(system)
        before = extents(system)
        for key in filler:
            bench.delete(system, key)
        bench.settle(system)
        after = extents(system)
        assert before.keys() == after.keys()
        assert before != after, "GC has moved some"
        assert {key: versions(system, key) for key in found} == found
        assert check(system, read_share=1.0) == []


def test_versions_that_were_packed_since_the_dump_come_back_once(bench: Bench, cli: Cli) -> None:
    """The older one was in the landing log when the dump was made, and both are in one block; the landing copy of the
    newer one, which records when its PUT was and not its version, is still there."""
    with bench.open() as system:
        system.metadata.create_bucket(KEY.bucket, "ann", CannedAcl.PRIVATE, 1)
        put(system, b"1" * 900)
        cli("metadata", "dump")
        put(system, b"2" * 900)
        put(system, b"3" * 900)
        end_log(system)
        bench.produce(system)
        bench.consume(system)
        before = versions(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert versions(system) == before
        assert check(system) == []


@pytest.mark.landing("store")
def test_copies_of_what_blocks_tell_have_an_owner(bench: Bench, cli: Cli) -> None:
    """A landing copy of a version that is also found in a block goes into quarantine."""
    with bench.open() as system:
        system.metadata.create_bucket(KEY.bucket, "ann", CannedAcl.PRIVATE, 1)
        put(system, b"1" * 900)
        cli("metadata", "dump")
        for number in range(2, 6):
            put(system, b"%d" % number * 900)
        bench.produce(system)
        bench.consume(system)
        before = versions(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert versions(system) == before
        assert check(system, read_share=1.0) == []
        bench.settle(system)
        assert versions(system) == before


def test_a_key_has_one_null_version_after_a_rebuild(bench: Bench, cli: Cli) -> None:
    """The bytes of null versions that were replaced since the dump are still in blocks."""
    marked = ObjectKey("b", "marked")
    with bench.open() as system:
        system.metadata.create_bucket(KEY.bucket, "ann", CannedAcl.PRIVATE, 1)
        put(system, b"0" * 900, None)
        put(system, b"1" * 900)
        put(system, b"0" * 900, None, marked)
        put(system, b"1" * 900, key=marked)
        system.client.store().delete_versions([AddMarker(marked, SUSPENDED)])
        bench.pack(system)
        cli("metadata", "dump")
        for key in (KEY, marked):
            for digit in (b"2", b"3"):
                put(system, digit * 900, SUSPENDED, key)
                bench.produce(system)
                bench.consume(system)
        found = [versions(system), versions(system, marked)]
        assert [sum(is_null for _, is_null, _ in one) for one in found] == [1, 1]
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert [versions(system), versions(system, marked)] == found
        assert check(system, read_share=1.0) == []
        bench.settle(system)
        assert [versions(system), versions(system, marked)] == found
