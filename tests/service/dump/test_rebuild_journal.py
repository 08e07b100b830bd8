"""The database is lost after deletes that no dump has: what the journal in the store names stays deleted."""

from __future__ import annotations

import re
from hashlib import md5
from io import BytesIO

import pytest

from nos_ec.adapters.sql.objects import journal as sql_journal
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.errors import NotFound
from nos_ec.core.formats.journal import journal_key
from nos_ec.core.ids import JOURNAL_BUCKET, ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata import AddMarker, DeleteVersion, ObjectRow, PutRequest, VersionEntry
from nos_gc.assemble import gc_service
from tests.rig.at_rest import end_log
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild, there
from tests.service.dump.test_rebuild_kills import kill

pytestmark = [pytest.mark.timed, pytest.mark.invariant(7)]

KEY = ObjectKey("versions", "k")
BODIES = {md5(data).digest(): data for data in (*(b"version %d" % number for number in range(9)), b"later")}


@pytest.fixture(autouse=True)
def keep_journal(bench: Bench) -> None:
    configure(bench, 1_000_000)


def configure(bench: Bench, rows_max: int) -> None:
    """Keep the journal from the next `bench.open` on, with at most this many rows."""
    config = re.sub("journal_rows_max = .*\n", "", bench.config.read_text())
    bench.config.write_text(config.replace("[store]\n", f"[store]\njournal_rows_max = {rows_max}\n"))


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def ship(system: System) -> int:
    return system.client.journal().ship()


def parts(system: System) -> list[str]:
    return system.metadata.list_names(JOURNAL_BUCKET, "", "", 1000)


def put(system: System, data: bytes, versioning: Versioning | None = Versioning.ENABLED) -> ObjectRow:
    return system.client.store().put(KEY, BytesIO(data), versioning=versioning)


def delete_version(system: System, version: int | None) -> None:
    (answer,) = system.client.store().delete_versions([DeleteVersion(KEY, version)])
    assert isinstance(answer, VersionEntry), answer


def of_key(system: System) -> list[ObjectRow]:
    """The versions of KEY, the newest first."""
    page = system.client.store().list_versions(KEY.bucket, "", "", ("", None), 100, 10_000)
    return [one.row for one in page.entries if isinstance(one, VersionEntry) and one.row is not None]


def versions(system: System) -> list[tuple[bytes | None, bool]]:
    """The bytes of the versions of KEY, None for a marker, and whether each is the latest; the newest first."""
    page = system.client.store().list_versions(KEY.bucket, "", "", ("", None), 100, 10_000)
    found = [one for one in page.entries if isinstance(one, VersionEntry)]
    return [(None if one.row is None else BODIES[one.row.md5], one.is_latest) for one in found]


@pytest.mark.parametrize("packed", [True, False])
def test_deletes_since_the_dump_stay_deleted(bench: Bench, cli: Cli, packed: bool) -> None:
    """The deleted objects are small and large, older and newer than the dump, and deleted one by one and in bulk."""
    with bench.open() as system:
        keys = bench.put_some(system, 60)
        keys += [bench.put(system, f"large-{n}", bench.data(3 * STRIPE + n), "large") for n in range(3)]
        if packed:
            bench.pack(system)
        cli("metadata", "dump")
        keys += bench.put_some(system, 60, prefix="new")
        keys += [bench.put(system, f"new-{n}", bench.data(3 * STRIPE + n), "large") for n in range(3)]
        if packed:
            bench.pack(system)
        bench.delete(system, keys[0])
        gone = [*keys[1::3], keys[-1]]
        assert len(system.client.store().delete_many(gone)) == len(gone)
        for key in gone:
            del bench.acknowledged[key]
        bench.put(system, keys[1].name, b"put again", keys[1].bucket)
        assert ship(system) > 0
        assert parts(system) == [journal_key(1).name]
        assert ship(system) == 0
        end_log(system)
    lose_database(bench)
    said, listed = rebuild(bench, cli)
    assert said["deleted"] == len(gone) + 1
    assert listed["journal"] == set()
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        bench.assert_readable_besides_dumps(system)
        assert system.metadata.journal_number() == 2


@pytest.mark.landing("store")
def test_what_a_deleted_object_had_replaced_stays_away(bench: Bench, cli: Cli) -> None:
    """It stays away even if only the bytes of the older object are left."""
    with bench.open() as system:
        keys = bench.put_some(system, 2)
        bench.pack(system)
        cli("metadata", "dump")
        for key in keys:
            bench.put(system, key.name, b"newer", key.bucket)
            bench.delete(system, key)
        system.worker.housekeeping().run_once()
        bench.put(system, keys[1].name, b"newest", keys[1].bucket)
        ship(system)
    lose_database(bench)
    _, listed = rebuild(bench, cli)
    with bench.open() as system:
        assert there(system) == {str(keys[1])}
        bench.assert_readable_besides_dumps(system)
    assert any(str(keys[0]) in one for one in listed["replaced"])


@pytest.mark.parametrize("between", [True, False])
def test_an_older_version_that_was_undeleted_last_is_there(bench: Bench, cli: Cli, between: bool) -> None:
    """Its key had got another object meanwhile, which was deleted."""
    with bench.open() as system:
        key = bench.put(system, "o", b"older")
        bench.pack(system)
        cli("metadata", "dump")
        now_ms = system.clock.now_ms()
        system.metadata.delete(key, now_ms, now_ms + 10**9)
        (row,) = system.metadata.trash_page(None, 9).rows
        bench.put(system, "o", b"newer")
        system.metadata.delete(key, now_ms)
        if between:
            ship(system)
        system.client.trash().undelete(row)
        ship(system)
        end_log(system)
        bench.acknowledged[key] = b"older"
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)


def test_what_was_not_shipped_comes_back(bench: Bench, cli: Cli) -> None:
    """The daemon ships each minute: only deletes of the last minute are lost. GC from cron ships first, and there is a
    command."""
    with bench.open() as system:
        keys = bench.put_some(system, 9)
        bench.pack(system)
        cli("metadata", "dump")
        system.client.store().delete(keys[0])
        assert cli("metadata", "ship-journal")["shipped"]["rows"] == 1
        system.client.store().delete(keys[1])
        cli("gc", "run", "--apply")
        system.client.store().delete(keys[2])
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert there(system) == {str(key) for key in keys[2:]}


def test_the_journal_begins_at_the_dump_and_goes_on_after_a_rebuild(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        keys = bench.put_some(system, 9)
        bench.pack(system)
        bench.delete(system, keys[0])
        ship(system)
        first = cli("metadata", "dump", "--keep", "2")
        assert parts(system) == []
        bench.delete(system, keys[1])
        ship(system)
        cli("metadata", "dump", "--keep", "2")
        assert parts(system) == [journal_key(2).name], "the first dump needs it"
        bench.delete(system, keys[2])
        ship(system)
        bench.put(system, keys[1].name, b"again", keys[1].bucket)
        end_log(system)
        assert first["dumped"]["rows"]["journal_number"] == 1
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)
        bench.delete(system, keys[3])
        ship(system)
        assert parts(system) == [journal_key(2).name, journal_key(3).name, journal_key(4).name]
        end_log(system)
    lose_database(bench)
    _, listed = rebuild(bench, cli)
    assert listed["journal"] == set()
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)


def test_a_full_journal_is_listed(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes continue, and what was left out may come back. Later ones have entries again."""
    monkeypatch.setattr(sql_journal, "LOOK_S", 0)
    configure(bench, 2)
    with bench.open() as system:
        keys = bench.put_some(system, 9)
        bench.pack(system)
        cli("metadata", "dump")
        for key in keys[:4]:
            bench.delete(system, key)
        assert ship(system) == 2
        assert parts(system) == [journal_key(1).name, journal_key(2).name]
        assert system.metadata.journal_gap_ms() == 0
        bench.delete(system, keys[4])
        assert ship(system) == 1
        end_log(system)
    lose_database(bench)
    _, listed = rebuild(bench, cli)
    (about,) = listed["journal"]
    assert "it was full" in about
    with bench.open() as system:
        assert there(system) == {str(key) for key in (*keys[2:4], *keys[5:])}
        assert system.metadata.journal_number() == 4


@pytest.mark.parametrize("point", ["journal.shipped", "metadata.forget_journal.before_commit"])
def test_killed_while_shipping_that_it_was_full(bench: Bench, cli: Cli, point: str) -> None:
    configure(bench, 1)
    with bench.open() as system:
        keys = bench.put_some(system, 9)
        bench.pack(system)
        cli("metadata", "dump")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sql_journal, "LOOK_S", 0)
            for key in keys[:2]:
                bench.delete(system, key)
    kill(bench, f"{point}:2", "metadata", "ship-journal")
    with bench.open() as system:
        assert system.metadata.journal_gap_ms() > 0
        assert ship(system) == 0
        assert system.metadata.journal_gap_ms() == 0
        assert system.metadata.journal_number() == 3
        assert ship(system) == 0
        end_log(system)
    lose_database(bench)
    _, listed = rebuild(bench, cli)
    assert len(listed["journal"]) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_trash(bench: Bench, cli: Cli, packed: bool) -> None:
    """Objects that went into the trash are in the trash again, and can be brought back; those that were brought back
    are there; those that were removed from the trash are gone."""
    with bench.open() as system:
        keys = bench.put_some(system, 9)
        if packed:
            bench.pack(system)
        now_ms = system.clock.now_ms()
        before = system.metadata.delete(keys[0], now_ms, now_ms + 10**9)
        cli("metadata", "dump")
        in_trash = [system.metadata.delete(key, now_ms, now_ms + 10**9) for key in keys[1:5]]
        ship(system)
        back, purged = system.metadata.trash_page(None, 99).rows, []
        assert len(back) == 5
        by_key = {row.key: row for row in back}
        system.client.trash().undelete(by_key[keys[0]])
        system.client.trash().undelete(by_key[keys[1]])
        purged = system.metadata.purge_trash([by_key[keys[2]]], now_ms)
        assert len(purged) == 1
        ship(system)
        end_log(system)
        assert (before.key, len(in_trash)) == (keys[0], 4)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert there(system) == {str(key) for key in (*keys[:2], *keys[5:])}
        kept = system.metadata.trash_page(None, 99).rows
        assert {row.key for row in kept} == set(keys[3:5])
        system.client.trash().undelete_many(kept)
        for key in (keys[2],):
            del bench.acknowledged[key]
        bench.assert_readable_besides_dumps(system)
        assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dump_at", [0, 3])
def test_versions(bench: Bench, cli: Cli, packed: bool, dump_at: int) -> None:
    """Markers are back, and versions that were deleted are gone, also noncurrent ones and those that a marker hid."""
    with bench.open() as system:
        rows = []
        for number in range(5):
            if number == dump_at:
                cli("metadata", "dump")
            rows.append(put(system, b"version %d" % number, Versioning.ENABLED if number else None))
        if packed:
            bench.pack(system)
        delete_version(system, rows[4].version)
        delete_version(system, rows[2].version)
        (marker,) = system.client.store().delete_versions([AddMarker(KEY, Versioning.ENABLED)])
        assert isinstance(marker, VersionEntry)
        expected = [(None, True), (b"version 3", False), (b"version 1", False), (b"version 0", False)]
        assert versions(system) == expected
        ship(system)
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert versions(system) == expected
        delete_version(system, marker.version)
        assert versions(system) == [(data, not at) for at, (data, _) in enumerate(expected[1:])]
        ship(system)
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert versions(system) == [(data, not at) for at, (data, _) in enumerate(expected[1:])]
        later = put(system, b"later")
        assert later.version > rows[4].version
        assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("packed", [True, False])
def test_changed_attributes(bench: Bench, cli: Cli, packed: bool) -> None:
    """Those that were changed last are back, of current and noncurrent versions, whatever blocks and copies say."""
    with bench.open() as system:
        store = system.client.store()
        rows = [put(system, b"version %d" % number) for number in range(3)]
        if packed:
            bench.pack(system)
        cli("metadata", "dump")
        rows += [put(system, b"version %d" % number) for number in range(3, 6)]
        if packed:
            bench.pack(system)
        for row in (rows[0], rows[2], rows[5]):
            for value in ("first", "second"):
                current = system.metadata.version(row.key, row.version).row
                assert current is not None
                assert store.set_attributes_of(current, encode_attributes({"tag": value}))
                if row is rows[2]:
                    ship(system)
        expected = {row.version: row.attributes for row in of_key(system)}
        assert [decode_attributes(one).get("tag") for one in expected.values()].count("second") == 3
        ship(system)
        end_log(system)
    lose_database(bench)
    said, _ = rebuild(bench, cli)
    with bench.open() as system:
        found = {row.md5: row.attributes for row in of_key(system)}
        assert found == {row.md5: expected[row.version] for row in rows}
        assert check(system, read_share=1.0) == []
    assert said["attributes"] >= 3


def test_same_bytes_put_again(bench: Bench, cli: Cli) -> None:
    """An object that was put again with the same bytes, within the millisecond or later, is there."""
    with bench.open() as system:
        cli("metadata", "dump")
        for turn in range(20):
            for _ in range(turn % 3 + 1):
                bench.put(system, f"o-{turn}", b"the same bytes")
                bench.delete(system, ObjectKey("b", f"o-{turn}"))
            if turn % 2:
                bench.put(system, f"o-{turn}", b"the same bytes")
            if turn % 5 == 0:
                ship(system)
        ship(system)
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_part_missing_in_the_middle(bench: Bench, cli: Cli, damage: str) -> None:
    """What it names may have come back. It is listed, and the rest of the journal is applied."""
    with bench.open() as system:
        keys = bench.put_some(system, 9)
        bench.pack(system)
        cli("metadata", "dump")
        for key in keys[:3]:
            bench.delete(system, key)
            ship(system)
        part = journal_key(2)
        system.metadata.delete(part, system.clock.now_ms())
        if damage == "torn":
            system.client.store().put_record(PutRequest(part), BytesIO(b"torn"))
        bench.pack(system)
        cli("metadata", "dump", "--to", str(bench.folder / "later"))
    lose_database(bench)
    system_rebuild(bench, cli, keys, damage)


def system_rebuild(bench: Bench, cli: Cli, keys: list[ObjectKey], damage: str) -> None:
    _, listed = rebuild(bench, cli)
    if damage == "torn":
        (about,) = listed["journal"]
        assert about.startswith("part 2, ")
    with bench.open() as system:
        found = there(system)
        assert str(keys[0]) not in found
        assert str(keys[2]) not in found


def test_deleted_while_gc_moves_it(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is found in its new block, and stays deleted."""
    with bench.open() as system:
        keys = bench.put_some(system, 90)
        bench.pack(system)
        cli("metadata", "dump")
        for key in keys[::2]:
            bench.delete(system, key)
        commit = system.metadata.commit_group
        moved: list[ObjectKey] = []

        def late(*args: object, **kwargs: object) -> object:
            if not moved:
                moved.append(keys[1])
                bench.delete(system, keys[1])
            return commit(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(system.metadata, "commit_group", late)
        for block in system.metadata.list_blocks(None, 99):
            gc_service(system).rewrite(block.block_id)
        assert moved
        ship(system)
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)


SHIP_POINTS = ["put.landed", "put.recorded", "journal.shipped", "metadata.forget_journal.before_commit"]
SHIP_POINTS += ["journal.forgotten"]
"""Kill points while the journal is written into the store."""
DELETE_JOURNAL_POINTS = ["metadata.journal_written.before_commit"]
"""Kill points while an object is deleted."""
PRUNE_POINTS = ["journal.pruned"]
"""Kill points while a dump is made after the journal was shipped."""
JOURNAL_REBUILD_POINTS = [
    "rebuild.journal_applied",
    "rebuild.journal_applied:2",
    "rebuild.journal_applied:3",
    "rebuild.deleted_removed",
    "rebuild.trash_settled",
    "rebuild.journal_applied:4",
    "rebuild.journal_applied:5",
    "rebuild.versions_replayed",
    "rebuild.versions_ordered",
    "rebuild.attributes_restored",
]
"""Kill points while a rebuild applies the journal, in two passes over its three objects."""


@pytest.mark.parametrize("point", SHIP_POINTS)
def test_killed_while_shipping(bench: Bench, cli: Cli, point: str) -> None:
    """Each row is in an object of the journal, also if the database is lost at once or the next process continues."""
    with bench.open() as system:
        keys = bench.put_some(system, 20)
        bench.pack(system)
        cli("metadata", "dump")
        for key in keys[:5]:
            bench.delete(system, key)
    kill(bench, point, "metadata", "ship-journal")
    with bench.open() as system:
        bench.delete(system, keys[5])
        ship(system)
        assert system.metadata.journal_after(0, 9) == []
        end_log(system)
    lose_database(bench)
    _, listed = rebuild(bench, cli)
    assert listed["journal"] == set()
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)


@pytest.mark.parametrize("point", DELETE_JOURNAL_POINTS)
def test_killed_before_a_delete_is_committed(bench: Bench, cli: Cli, point: str) -> None:
    with bench.open() as system:
        key = bench.put(system, "o", b"data")
    kill(bench, point, "rm", str(key))
    with bench.open() as system:
        assert system.metadata.journal_after(0, 9) == []
        bench.assert_readable(system)


@pytest.mark.parametrize("point", PRUNE_POINTS)
def test_killed_while_pruning(bench: Bench, cli: Cli, point: str) -> None:
    with bench.open() as system:
        keys = bench.put_some(system, 20)
        bench.pack(system)
        bench.delete(system, keys[0])
        ship(system)
    kill(bench, point, "metadata", "dump")
    with bench.open() as system:
        assert parts(system) == []
        bench.delete(system, keys[1])
        ship(system)
        end_log(system)
    lose_database(bench)
    _, listed = rebuild(bench, cli)
    assert listed["journal"] == set()
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)


@pytest.mark.parametrize("point", JOURNAL_REBUILD_POINTS)
def test_rebuild_killed_while_it_applies_the_journal(bench: Bench, cli: Cli, point: str) -> None:
    """Run again, it ends as one that was not killed: versions, markers and the trash are as they were."""
    with bench.open() as system:
        keys = bench.put_some(system, 20)
        rows = [put(system, b"version %d" % number) for number in range(4)]
        bench.pack(system)
        now_ms = system.clock.now_ms()
        until_ms = now_ms + 10**10
        cli("metadata", "dump")
        bench.delete(system, keys[0])
        system.metadata.delete(keys[1], now_ms, until_ms)
        delete_version(system, rows[1].version)
        ship(system)
        system.client.store().delete_versions([AddMarker(KEY, Versioning.ENABLED)])
        system.metadata.delete(keys[2], now_ms, until_ms)
        system.metadata.delete_versions([DeleteVersion(KEY, rows[2].version)], now_ms, until_ms)
        ship(system)
        (row,) = (row for row in system.metadata.trash_page(None, 9).rows if row.key == keys[1])
        system.client.trash().undelete(row)
        del bench.acknowledged[keys[2]]
        ship(system)
        expected = versions(system)
        assert expected == [(None, True), (b"version 3", False), (b"version 0", False)]
        end_log(system)
    lose_database(bench)
    kill(bench, point, "metadata", "rebuild")
    _, listed = rebuild(bench, cli)
    assert listed["journal"] == set()
    with bench.open() as system:
        assert versions(system) == expected
        in_trash = {(row.key, row.version) for row in system.metadata.trash_page(None, 9).rows}
        assert (KEY, rows[2].version) in in_trash
        assert {key for key, _ in in_trash} == {KEY, keys[2]}
        with pytest.raises(NotFound):
            system.client.store().get(KEY)
        assert check(system, read_share=1.0) == []
