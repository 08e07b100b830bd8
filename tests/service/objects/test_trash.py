"""The trash, on a whole store: a deleted object stays as it was, comes back with its bytes, or expires."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nos_ec.composition.wiring import System
from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.errors import Conflict, NotFound, Transient
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.dump.rebuilder import TRASHED_MS_MIN
from nos_ec.ports.metadata import ObjectRow
from nos_ec.settings.section import DAY
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock, end_log
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, CONFIG, STRIPE, TTL_OVER_MS, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild, there

TRASH_POINTS = ["metadata.purge_trash.before_commit", "trash.purged", "trash.undeleted"]
TRASH = CONFIG + "[trash]\nkeep_days = 7\n"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A store with a trash."""
    bench.config.write_text(TRASH)
    return bench


def throw(bench: Bench, system: System, *keys: ObjectKey) -> dict[ObjectKey, bytes]:
    """Delete objects into the trash. Returns what they were."""
    system.client.store().delete_many(keys)
    return {key: bench.acknowledged.pop(key) for key in keys}


def bring_back(bench: Bench, system: System, thrown: dict[ObjectKey, bytes]) -> None:
    """Undelete all of these."""
    can = system.client.trash()
    for key in thrown:
        can.undelete(can.find(key))
    bench.acknowledged |= thrown


def test_the_bytes_of_every_state_come_back(bench: Bench, system: System) -> None:
    """Thrown away while it is landed, packed, large or empty; then packed and collected like all others."""
    packed = bench.put_some(system, 60)
    bench.pack(system)
    landed = bench.put_some(system, 20, prefix="landed")
    large, empty = bench.put(system, "large", bench.data(20 * STRIPE)), bench.put(system, "empty", b"")
    thrown = throw(bench, system, *packed[::3], *landed[::2], large, empty)
    for key in thrown:
        bench.assert_absent(system, key)
    assert {row.key for page in system.client.trash().pages() for row in page} == thrown.keys()
    bench.pack(system)
    system.client.store().delete_many(packed[1::3], permanently=True)
    for key in packed[1::3]:
        del bench.acknowledged[key]
    for _ in range(3):
        gc_service(system).run_once()
    bench.assert_readable(system)
    bench.assert_balanced(system)
    states = {row.key: row.state for page in system.client.trash().pages() for row in page}
    assert {states[key] for key in [*packed[::3], *landed[::2]]} == {ObjectState.PACKED}
    bring_back(bench, system, thrown)
    bench.assert_at_rest(system)
    assert list(system.client.trash().pages()) == []


def test_a_get_finds_what_is_there_now(bench: Bench, system: System) -> None:
    """A store that remembers where objects are finds it, too."""
    store, can = system.client.store(), system.client.trash()
    key = bench.put(system, "n", b"first")
    assert store.get(key) == b"first"
    thrown = throw(bench, system, key)
    with pytest.raises(NotFound):
        store.get(key)
    first = can.undelete(can.find(key))
    assert store.get(key) == b"first"
    throw_again = {key: thrown[key]}
    system.client.store().delete(key)
    bench.put(system, "n", b"second")
    with pytest.raises(Conflict, match="is in use"):
        can.undelete(first)
    assert store.get(key) == b"second"
    system.client.store().delete(key, permanently=True)
    bring_back(bench, system, throw_again)
    assert store.get(key) == b"first"
    bench.assert_balanced(system)


def test_a_row_that_cannot_be_removed_does_not_keep_the_others(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not keep GC from collecting either, whatever is wrong with it."""
    keys = bench.put_some(system, 20)
    now_ms = system.clock.now_ms()
    rows = system.metadata.delete_many(keys, now_ms, now_ms)
    for key in keys:
        del bench.acknowledged[key]
    purge = system.metadata.purge_trash

    def refuse(listed: Sequence[ObjectRow], at_ms: int) -> list[ObjectRow]:
        if any(row.object_id == rows[7].object_id for row in listed):
            raise AssertionError("the counters of its block are wrong")
        return purge(listed, at_ms)

    monkeypatch.setattr(system.metadata, "purge_trash", refuse)
    monkeypatch.setattr("nos_ec.engine.objects.trash.PAGE_ROWS", 6)
    gc_service(system).run_once()
    assert [row.key for page in system.client.trash().pages() for row in page] == [keys[7]]
    monkeypatch.setattr(system.metadata, "purge_trash", _fail)
    more = bench.put_some(system, 3, prefix="more")
    system.metadata.delete_many(more, now_ms, now_ms)
    with capture_logs() as lines:
        gc_service(system).run_once()
    said = [line for line in lines if "trash" in line["event"]]
    assert {line["log_level"] for line in said} == {"warning"}, "a database that is away is not a bug"
    assert said[-1]["event"].endswith("collecting anyway")
    with pytest.raises(Transient):
        system.client.trash().expire()


def _fail(*_: object) -> list[ObjectRow]:
    raise Transient("metadata: away")


def test_what_has_expired_goes_with_the_next_collection(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 60)
    large = bench.put(system, "large", bench.data(20 * STRIPE))
    bench.pack(system)
    landed = bench.put(system, "landed", bench.data(CHUNK))
    now_ms = system.clock.now_ms()
    system.metadata.delete_many([*keys[:50], large, landed], now_ms, now_ms)
    kept = throw(bench, system, keys[50])
    for key in [*keys[:50], large, landed]:
        del bench.acknowledged[key]
    for _ in range(3):
        gc_service(system).run_once()
    assert [row.key for page in system.client.trash().pages() for row in page] == list(kept)
    assert system.metadata.totals().dead_bytes == 0
    bring_back(bench, system, kept)
    bench.assert_at_rest(system)


@pytest.mark.timed
@pytest.mark.invariant(1)
@pytest.mark.parametrize("point", TRASH_POINTS)
def test_killed(bench: Bench, point: str) -> None:
    """What was under way is done by the next run, and nothing else."""
    with bench.open() as system:
        keys = [*bench.put_some(system, 60), bench.put(system, "packed", b"p")]
        bench.pack(system)
        keys.append(bench.put(system, "landed", b"l"))
        expired = keys[:30] if point != "trash.undeleted" else []
        now_ms = system.clock.now_ms()
        system.metadata.delete_many(expired, now_ms, now_ms)
        for key in expired:
            del bench.acknowledged[key]
        kept = throw(bench, system, *keys[40:])
    command = ["gc", "run", "--apply"] if expired else ["undelete", "-r", "b"]
    done = bench.run(*command, kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.stderr.decode()[-2000:]}"
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        bench.settle(system)
        left = {row.key: row for page in system.client.trash().pages() for row in page}
        assert kept.keys() - left.keys() == (set() if expired else set(keys[-2:]))
        assert not left.keys() & set(expired)
        system.client.trash().undelete_many(list(left.values()))
        bench.acknowledged |= kept
        bench.assert_readable(system)
        bench.assert_balanced(system)


def put_in(bench: Bench, system: System, state: str, data: bytes) -> ObjectKey:
    """PUT an object and bring it into this state; a large one has other bytes."""
    key = bench.put(system, "n", bench.data(20 * STRIPE) if state == "large" else data)
    if state == "packed":
        bench.pack(system)
    return key


@pytest.mark.invariant(7)
@pytest.mark.parametrize("state", ["packed", "landed", "large"])
def test_a_rebuild_keeps_what_was_undeleted_since_the_dump(
    bench: Bench, capfd: pytest.CaptureFixture[str], state: str
) -> None:
    """Nothing shows that an older version is the current one again. So the other one must not be all that is left."""
    cli, dump = Cli(bench, capfd), bench.folder / "dump"

    with bench.open() as system:
        key = put_in(bench, system, state, b"before")
        before = system.client.store().head(key)
        cli("metadata", "dump", "--to", str(dump))
        first = bench.acknowledged[key]
        system.client.store().delete(key)
        put_in(bench, system, state, b"after")
        after, second = system.client.store().head(key), bench.acknowledged[key]
        system.client.store().delete(key)
        system.client.trash().undelete(system.client.trash().find(key, before.version))
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(dump))
    assert (to_look_at["since"], to_look_at["replaced"], to_look_at["gone"]) == ({str(key)}, {str(key)}, set())
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        assert system.client.store().get(key) == second, "the greater version"
        (kept,) = (row for page in system.client.trash().pages() for row in page)
        assert (kept.version, kept.size) == (before.version, before.size)
        assert kept.version < after.version
        system.client.store().delete(key, permanently=True)
        system.client.trash().undelete(kept)
        assert system.client.store().get(key) == first
        bench.acknowledged[key] = first
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.invariant(7)
@pytest.mark.parametrize("state", ["packed", "landed", "large"])
def test_a_rebuild_keeps_what_was_put_after_a_clock_was_set_back(
    bench: Bench, capfd: pytest.CaptureFixture[str], state: str
) -> None:
    """Its version is less than that of a deleted one."""
    cli, dump = Cli(bench, capfd), bench.folder / "dump"
    contents = []
    with bench.open() as system:
        cli("metadata", "dump", "--to", str(dump))
    for data, ahead_ms in ((b"ahead", 3_600_000), (b"right", 0)):
        with bench.open() as system:
            system.clock = LaterClock(ahead_ms)
            bench.put(system, "first", b"not in the log")
            key = put_in(bench, system, state, data)
            contents.append(bench.acknowledged[key])
            if ahead_ms:
                system.client.store().delete(key, permanently=True)
            end_log(system)
    lose_database(bench)
    rebuild(bench, cli, "--from", str(dump))
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        assert system.client.store().get(key) == contents[0], "nothing shows that it was deleted"
        versions = [row for page in system.client.trash().pages("b", "n") for row in page if row.key == key]
        system.client.store().delete(key, permanently=True)
        system.client.trash().undelete(versions[0])
        assert system.client.store().get(key) == contents[1]


@pytest.mark.invariant(7)
def test_a_rebuild_leaves_in_the_trash_what_was_there(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """This includes what GC and consumers have moved since the dump, and what has a current version with its key."""
    cli, dump = Cli(bench, capfd), bench.folder / "dump"
    with bench.open() as system:
        packed = bench.put_some(system, 200)
        large = [bench.put(system, f"large-{n}", bench.data(9 * STRIPE)) for n in range(2)]
        bench.pack(system)
        waiting = bench.put_some(system, 40, prefix="waits")
        thrown = throw(bench, system, *packed[::11], *waiting[::4], large[0], bench.put(system, "empty", b""))
        twice = bench.put(system, packed[0].name, b"stored again", packed[0].bucket)
        cli("metadata", "dump", "--to", str(dump))
        in_trash = {row.object_id: row for page in system.client.trash().pages() for row in page}
        untils = {row.object_id: row.trash_until_ms for row in in_trash.values()}
        gone = [key for key in packed[1:190] if key not in thrown]
        system.client.store().delete_many(gone, permanently=True)
        for key in gone:
            del bench.acknowledged[key]
        bench.pack(system)
        for _ in range(3):
            gc_service(system).run_once()
        moved = {row.object_id: row for page in system.client.trash().pages() for row in page}
        changed = [one for one in in_trash if in_trash[one].extent != moved[one].extent]
        assert len(changed) > len(waiting[::4]), "not only what was packed since"
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(dump))
    assert not to_look_at["gone"] & {str(key) for key in thrown}
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        acknowledged, returned = {str(key) for key in bench.acknowledged}, {str(key) for key in gone}
        assert acknowledged <= there(system) <= acknowledged | returned, "what GC has not collected may return"
        system.client.store().delete_many(gone, permanently=True)
        found = {row.object_id: row for page in system.client.trash().pages() for row in page}
        assert found.keys() == untils.keys()
        assert all((row.trash_until_ms or 0) >= (untils[one] or 0) for one, row in found.items())
        assert (
            min(row.trash_until_ms or 0 for row in found.values()) > system.clock.now_ms() + TRASHED_MS_MIN - 3_600_000
        )
        assert found == moved
        system.client.store().delete(twice, permanently=True)
        bring_back(bench, system, thrown)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_balanced(system)


@pytest.mark.invariant(7)
@pytest.mark.parametrize("condition", [None, ABSENT])
def test_a_rebuild_leaves_in_the_trash_what_was_copied_forward(
    bench: Bench, capfd: pytest.CaptureFixture[str], condition: Condition | None
) -> None:
    """Its record has the time of its PUT, from which the number of its version follows."""
    cli, dump, key = Cli(bench, capfd), bench.folder / "dump", ObjectKey("b", "n")
    with bench.open() as system:
        bench.put(system, "first", b"not in the log")
        system.client.store().put(key, BytesIO(b"some bytes"), condition=condition)
        system.client.store().delete(key)
        end_log(system)
        cli("metadata", "dump", "--to", str(dump))
        before = system.client.trash().find(key)
        bench.copy_forward(system)
        assert system.client.trash().find(key).landing_id != before.landing_id
    bench.end_leases()
    lose_database(bench)
    rebuild(bench, cli, "--from", str(dump))
    with bench.open() as system:
        assert there(system) == {"b/first"}
        assert [row.version for page in system.client.trash().pages("b", "n") for row in page] == [before.version]
        assert check(system, read_share=1.0) == []


def test_dumps_are_deleted_for_good(bench: Bench, system: System) -> None:
    bench.put_some(system, 5)
    for _ in range(3):
        assert bench.run("metadata", "dump", "--keep", "1").returncode == 0
    assert [row for page in system.client.trash().pages() for row in page if row.key.bucket == RESERVED_BUCKET] == []


def run_json(bench: Bench, *words: str, code: int = 0) -> dict[str, Any]:
    """What a command prints with --json."""
    done = bench.run(*words, "--json")
    assert done.returncode == code, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_commands(bench: Bench, tmp_path: Path) -> None:
    with bench.open() as system:
        for name in ("photos/a", "photos/b", "other"):
            bench.put(system, name, name.encode())
    assert run_json(bench, "rm", "-r", "b/photos", "--yes")["objects"] == 2
    listed = bench.run("trash", "list", "b")
    lines = listed.stdout.decode().splitlines()
    assert len(lines) == 3
    assert all(" deleted 2" in line and "days 23 h left) " in line and "b/photos/" in line for line in lines[:2])
    assert lines[2] == "in the trash: 2 objects, 16 B"
    found = run_json(bench, "trash", "list", "--limit", "1")
    assert (found["total_objects"], found["total_bytes"], len(found["objects"])) == (2, 16, 1)
    why = bench.run("explain", "b/photos/a")
    assert why.returncode == 0
    assert "the trash keeps it" in why.stdout.decode()
    assert run_json(bench, "explain", "b/photos/a")["reason"] == "in_trash"
    assert bench.run("explain", "b/none").returncode == 4
    assert run_json(bench, "undelete", "b/photos/a")["name"] == "photos/a"
    assert bench.run("get", "b/photos/a").stdout == b"photos/a"
    assert bench.run("undelete", "b/photos/a").returncode == 4
    assert "use -r" in bench.run("undelete", "b/photos").stderr.decode()
    assert b"in the trash for 7 days" in bench.run("rm", "b/photos/a").stdout
    with bench.open() as system:
        bench.put(system, "photos/a", b"again")
    refused = bench.run("undelete", "b/photos/a")
    assert (refused.returncode, "is in use" in refused.stderr.decode()) == (5, True)
    assert "nos-ec undelete b/photos/a --version" in refused.stderr.decode()
    assert run_json(bench, "status")["trash_objects"] == run_json(bench, "gc", "plan")["trash_objects"] == 2
    some = run_json(bench, "undelete", "-r", "b", code=12)
    assert (some["objects"], some["not_undeleted"], some["left_out"]) == (1, 1, 0)
    assert bench.run("get", "b/photos/b").stdout == b"photos/b"
    assert bench.run("undelete", "-r", "b/none").returncode == 4
    assert bench.run("rm", "b/other", "--permanently").returncode == 0
    for where, total in {"b": 1, "b/photos": 1, "b/photos/a": 1, "b/pho": 0, "b/photos/a/b": 0, "other": 0}.items():
        assert run_json(bench, "trash", "list", where)["total_objects"] == total, where
    assert run_json(bench, "trash", "empty", "b/pho", "--yes")["objects"] == 0
    assert bench.run("trash", "list", "/x").returncode == 2
    assert bench.run("trash", "empty").returncode == 2
    assert run_json(bench, "trash", "empty", "--yes")["objects"] == 1
    assert run_json(bench, "trash", "list")["objects"] == []
    assert run_json(bench, "check")["problems"] == []


def test_what_was_deleted_by_mistake_comes_back_and_what_was_not_stays(bench: Bench) -> None:
    """Objects are chosen by the time of the deletion. It is not a failure if an object that comes back has older
    versions."""
    with bench.open() as system:
        store, now_ms = system.client.store(), system.clock.now_ms()
        for age_h, names in ((50, ["old", "both"]), (2, ["mistake", "both"])):
            for name in names:
                row = store.put(ObjectKey("b", name), BytesIO(f"{name} {age_h}".encode()))
                at_ms = now_ms - age_h * 3_600_000
                system.metadata.delete(row.key, at_ms, at_ms + 7 * DAY)
    listed = run_json(bench, "trash", "list", "--since", "3h")
    assert [one["name"] for one in listed["objects"]] == ["both", "mistake"]
    assert run_json(bench, "trash", "list", "--until", "3h")["total_objects"] == 2
    assert bench.run("undelete", "b/old", "--since", "3h").returncode == 2
    assert bench.run("undelete", "-r", "b", "--since", "then").returncode == 2
    assert run_json(bench, "undelete", "-r", "b", "--since", "3h")["objects"] == 2
    assert bench.run("get", "b/both").stdout == b"both 2"
    assert bench.run("get", "b/old").returncode == 4
    again = run_json(bench, "undelete", "-r", "b", code=12)
    assert (again["objects"], again["not_undeleted"]) == (1, 1), "the current version was not brought back by this run"
    with bench.open() as system:
        system.client.store().delete_many([ObjectKey("b", name) for name in ("both", "mistake", "old")])
    all_back = run_json(bench, "undelete", "-r", "b")
    assert (all_back["objects"], all_back["older_versions_left"], all_back["not_undeleted"]) == (3, 1, 0)


def test_without_a_trash_deletes_are_permanent(bench: Bench) -> None:
    bench.config.write_text(CONFIG)
    with bench.open() as system:
        bench.put(system, "n", b"x")
    assert bench.run("rm", "b/n").returncode == 0
    assert run_json(bench, "trash", "list")["total_objects"] == 0
    assert b"the trash is off" in bench.run("trash", "list").stdout
    refused = bench.run("undelete", "b/n")
    assert (refused.returncode, b"the trash is off" in refused.stderr) == (4, True)
    assert bench.run("undelete", "-r", "b").returncode == 4
