"""kill -9 at every step of a dump and of a rebuild: run again, it ends as one that was not killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from nos_ec.core.ids import ACCESS_BUCKET, ObjectKey
from nos_ec.engine.dump.rebuilder import TRASHED_MS_MIN
from nos_ec.ports.metadata import CannedAcl, ObjectRow, Rights
from tests.rig.at_rest import end_log
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild, there

pytestmark = [pytest.mark.timed, pytest.mark.invariant(7)]

DUMP_POINTS = [
    "large.allocated",
    "large.appended",
    "large.written",
    "large.recorded",
    "dump.stored",
    "dump.deleted",
    "event.recorded",
]
DUMP_FILE_POINTS = ["report_file.written"]
ACCESS_POINTS = ["access.changed", "put.landed", "put.recorded", "access.recorded"]
"""Kill points while a bucket is changed."""
ACCESS_DUMP_POINTS = ["access.forgotten"]
"""Kill points while a dump is made after a bucket was removed."""
METADATA_REBUILD_POINTS = [
    "rebuild.page_loaded",
    "rebuild.page_loaded:2",
    "rebuild.loaded",
    "rebuild.blocks_read",
    "rebuild.segments_read",
    "rebuild.returned_to_copies",
    "rebuild.gone_removed",
    "rebuild.copies_claimed",
    "rebuild.copies_set_aside",
    "rebuild.tails_settled",
    "rebuild.parts_chosen",
    "rebuild.trash_settled",
    "rebuild.versions_ordered",
    "rebuild.locks_applied",
    "rebuild.uploads_settled",
    "rebuild.access_loaded",
    "rebuild.gaps_added",
    "rebuild.counted",
    "rebuild.finished",
]


def kill(bench: Bench, point: str, *arguments: str) -> None:
    """Run a command that must die at `point`."""
    done = bench.run(*arguments, kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.mark.parametrize("point", DUMP_POINTS)
def test_dump_killed(bench: Bench, cli: Cli, point: str) -> None:
    """The last whole dump is used, and what the killed one left is collected."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
    whole = cli("metadata", "dump")["dumped"]["name"]
    kill(bench, point, "metadata", "dump", "--keep", "1")
    names = [one["name"] for one in cli("metadata", "dumps")["dumps"]]
    assert len(names) == (2 if point in ("large.recorded", "dump.stored") else 1)
    assert (names[0] == whole) == (point not in ("dump.deleted", "event.recorded"))
    lose_database(bench)
    said, _ = rebuild(bench, cli)
    if point == "large.allocated":
        assert said["dump"]["name"] == whole
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        assert there(system) == {str(key) for key in bench.acknowledged}
        for dump in system.client.dumps().all(system.clock.now_ms()):
            system.client.store().delete(dump.key)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.parametrize("point", DUMP_FILE_POINTS)
def test_dump_to_a_file_killed(bench: Bench, cli: Cli, point: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 60)
        end_log(system)
    path = bench.folder / "a.dump"
    kill(bench, point, "metadata", "dump", "--to", str(path))
    assert not path.exists()
    cli("metadata", "dump", "--to", str(path))
    assert path.exists()


def around_a_dump(bench: Bench, cli: Cli) -> set[str]:
    """Objects in every state before a dump and after it. Returns those of the dump that were deleted since."""
    with bench.open() as system:
        packed = bench.put_some(system, 120, prefix="packed")
        large = [bench.put(system, f"large-{n}", bench.data(5 * STRIPE), "large") for n in range(2)]
        bench.put(system, "empty", b"")
        bench.pack(system)
        now_ms = system.clock.now_ms()
        for key in packed[100::4]:
            system.metadata.delete(key, now_ms, now_ms + 10**9)
            del bench.acknowledged[key]
        waiting = bench.put_some(system, 60, prefix="waits")
        bench.delete(system, waiting.pop())  # its record is in a landing segment that the dump has as open
        cli("metadata", "dump")
        deleted = [*packed[1::2], *waiting[::5], large[0]]
        for key in deleted:
            bench.delete(system, key)
        for key in packed[2:10:4]:
            bench.put(system, key.name, bench.data(CHUNK), key.bucket)
        bench.put_some(system, 60, prefix="new")
        bench.put(system, "large-new", bench.data(9 * STRIPE), "large")
        bench.pack(system)
        bench.run("gc", "run", "--apply")
        bench.settle(system)
        bench.put_some(system, 40, prefix="late")
        end_log(system)
    return {str(key) for key in deleted}


def found(bench: Bench) -> tuple[list[Any], list[Any]]:
    """All rows of objects and blocks, as far as they do not depend on when a rebuild ran."""
    with bench.open() as system:
        objects = [
            (
                (row.key, row.version, _kept(row), row.size),
                (row.crc32c, row.md5, row.state, row.extent, row.landing_id),
            )
            for row in sorted(all_objects(system.metadata), key=lambda row: (row.key, row.version))
        ]
        blocks = [
            (row.block_id, row.kind, row.state, row.stripes, row.live_bytes, row.dead_bytes, row.live_objects)
            for row in all_blocks(system.metadata)
        ]
        return objects, blocks


def _kept(row: ObjectRow) -> int | bool:
    """Return until when the trash keeps it, if the dump has that time; otherwise whether it is there."""
    until_ms, trashed_ms = row.trash_until_ms, row.trashed_ms
    if until_ms is None or trashed_ms is None:
        return False
    return until_ms if until_ms - trashed_ms != TRASHED_MS_MIN else True


def test_rebuild_killed(bench: Bench, cli: Cli) -> None:
    deleted = around_a_dump(bench, cli)
    lose_database(bench)
    _, once = rebuild(bench, cli)
    rows = found(bench)
    assert once["gone"]
    assert once["gone"] <= deleted
    for point in METADATA_REBUILD_POINTS:
        lose_database(bench)
        kill(bench, point, "metadata", "rebuild")
        if point == "rebuild.finished":
            assert "has the metadata of a store" in cli("metadata", "rebuild", exits=3)["message"]
        else:
            assert "run `nos-ec init`" in cli("status", exits=3)["message"]
            _, again = rebuild(bench, cli)
            assert again == once, point
        assert found(bench) == rows, point
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        back = there(system) - {str(key) for key in bench.acknowledged}
        assert once["gone"] | back == deleted
        for key, data in bench.acknowledged.items():
            assert system.client.store().get(key) == data
        for name in back:
            system.client.store().delete(ObjectKey(*name.split("/", 1)))
        for dump in system.client.dumps().all(system.clock.now_ms()):
            system.client.store().delete(dump.key)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.parametrize("point", ACCESS_POINTS)
def test_change_of_access_killed(bench: Bench, cli: Cli, point: str) -> None:
    """A change that was not acknowledged is made again, and a rebuild then knows it."""
    with bench.open() as system:
        assert system.metadata.create_bucket("photos", "ann", CannedAcl.PRIVATE, 1)
        assert system.metadata.grant("photos", "bob", Rights.READ | Rights.WRITE, 1)
    cli("metadata", "dump")
    kill(bench, point, "s3", "grant", "photos", "bob", "read")
    with bench.open() as system:
        assert system.metadata.grants("photos") == {"bob": Rights.READ}, "refused from now on, whatever is recorded"
    cli("s3", "grant", "photos", "bob", "read")
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert system.metadata.grants("photos") == {"bob": Rights.READ}
        bench.settle(system)
        assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("point", ACCESS_DUMP_POINTS)
def test_dump_killed_while_it_forgets_records(bench: Bench, cli: Cli, point: str) -> None:
    """It forgets only those of buckets that were removed before the oldest dump that is kept."""
    with bench.open() as system:
        for name in ("removed", "kept"):
            assert system.metadata.create_bucket(name, "ann", CannedAcl.PRIVATE, 1)
        cli("metadata", "dump", "--keep", "1")
        assert system.metadata.delete_bucket("removed", 2)
        cli("metadata", "dump", "--keep", "2")
        names = system.metadata.list_names(ACCESS_BUCKET, "", "", 9)
        assert names == ["bucket/kept", "bucket/removed"], "the older dump needs it"
    kill(bench, point, "metadata", "dump", "--keep", "1")
    cli("metadata", "dump", "--keep", "1")
    with bench.open() as system:
        assert system.metadata.list_names(ACCESS_BUCKET, "", "", 9) == ["bucket/kept"]
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert [record.row.name for record in system.metadata.bucket_records("", 9)] == ["kept"]


def test_another_dump_cannot_continue_a_rebuild(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 40)
        end_log(system)
        cli("metadata", "dump", "--to", str(bench.folder / "first"))
        cli("metadata", "dump", "--to", str(bench.folder / "second"))
    lose_database(bench)
    kill(bench, "rebuild.loaded", "metadata", "rebuild", "--from", str(bench.folder / "first"))
    refused = cli("metadata", "rebuild", "--from", str(bench.folder / "second"), exits=5)
    assert "another dump" in refused["message"]
    rebuild(bench, cli, "--from", str(bench.folder / "first"))
    with bench.open() as system:
        bench.assert_readable(system)
