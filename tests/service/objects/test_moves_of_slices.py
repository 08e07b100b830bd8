"""Wide buckets, of which all slices in one cell are moved to another one."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from nos_ec import open_store
from nos_ec.adapters.sql.tables.schema import BUCKET_DOCUMENTS, DIRECTORY
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.app import run
from nos_ec.cli.commands.cell_moves import next_command
from nos_ec.composition.cells import open_cells, record_bucket
from nos_ec.composition.wiring import open_system
from nos_ec.core.errors import Conflict, Moved, NotFound, Transient
from nos_ec.core.expiry import ExpiryRule, encode_rules
from nos_ec.engine.moving import bucket_mover
from nos_ec.engine.upkeep.move_recovery import all_unfinished_moves
from nos_ec.ports.metadata import CannedAcl, DirectoryRow, DocumentKind, MoveState
from nos_ec.ports.metadata.directory import decode_slices, slice_of
from nos_ec.settings import Settings
from nos_ec.settings.section import DAY
from tests.rig.at_rest import LaterClock
from tests.service.conftest import Bench
from tests.service.objects.test_moves import (
    MOVE_POINTS,
    SERVED_MOVED_POINTS,
    cell,
    dump,
    interrupted,
    let_die,
    lose_and_rebuild,
    recover,
)
from tests.service.s3.cell_stores import cells_config, new_cells, serving_cells

pytestmark = pytest.mark.invariant(12)

SLICES = ("a", "b", "a")
NAMES = [f"k{number:02}" for number in range(40)]
"""There are more than ten of them in each slice."""
WEIGHTS = {"a": 1, "b": 1, "c": 0, "d": 0}
OF_OTHER_OBJECTS = re.compile(r"moving\.(upload_opened|parts_copied|large_recorded|lock_noted)")
"""Points that a move of small objects does not pass."""
SLICE_POINTS = ["moving.marked"]
"""Points that only a move of slices passes."""
KILL_POINTS = [*SLICE_POINTS, *(point for point in MOVE_POINTS if not OF_OTHER_OBJECTS.match(point))]
IN_MOVE = ["moving.arriving", "moving.marked", "moving.compared", "moving.closed", "moving.bucket_copied"]
AFTER_MOVE = ["moving.gone", "moving.home_changed", "moving.here", ""]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return new_cells(tmp_path, **WEIGHTS)


def fill(settings: Settings) -> None:
    """Create a wide bucket, and put an object of each name."""
    with open_cells(settings, SystemClock()) as cells:
        row = cells.claim_wide("photos", "ann", SLICES)
        state = cells.state_of(row)
        state.create_bucket("photos", "ann", CannedAcl.PRIVATE, 5)
        state.set_bucket_document("photos", DocumentKind.TAGS, b"<tags/>", 5)
        state.set_bucket_document("photos", DocumentKind.NOTIFICATION, b"{}", 5)
        state.set_bucket_document("photos", DocumentKind.LIFECYCLE, encode_rules([ExpiryRule("r", days=1)]), 5)
    with open_store(settings) as store:
        for name in NAMES:
            store.put(f"photos/{name}", name.encode())
        store.put("other/k", b"in a cell alone")


def names_in(held_by: str, slices: Sequence[str] = SLICES) -> list[str]:
    """The names that are in a cell."""
    return [name for name in NAMES if slices[slice_of(name, len(slices))] == held_by]


def assert_all_there(settings: Settings, added: Sequence[str] = ()) -> None:
    """Programs find each object once, and can change it."""
    with open_store(settings) as store:
        assert [one.key.name for one in store.list("photos")] == sorted([*NAMES, *added])
        for name in NAMES:
            assert store.get(f"photos/{name}") == name.encode()
            store.put(f"photos/{name}", name.encode())


def move(settings: Settings, of: str | None, to: str, code: int = 0) -> None:
    config = str(Path(settings.of_cell("a").store.root).parent / "cells.toml")
    words = ["cells", "move", "photos", "--to", to, *([] if of is None else ["--from", of])]
    assert run(["--config", config, *words]) == code


def purge(settings: Settings, of: str) -> None:
    """Delete the old copies in a cell, with the dumps before and after that are needed before it may get them back."""
    config = str(Path(settings.of_cell("a").store.root).parent / "cells.toml")
    for name in row_of(settings).cells:
        dump(settings, name)
    assert run(["--config", config, "cells", "purge", "photos", "--from", of]) == 0
    dump(settings, of)


def row_of(settings: Settings) -> DirectoryRow:
    """The row of the bucket in the directory."""
    assert settings.store.directory is not None
    with open_system(settings.of_cell(settings.store.directory)) as system:
        row = system.metadata.directory_row("photos")
    assert row is not None
    return row


def place_of(settings: Settings) -> list[tuple[str, int]]:
    return list(row_of(settings).counted_slices)


@pytest.mark.parametrize("of", ["a", "b"])
def test_what_a_cell_has_of_a_wide_bucket_is_moved(settings: Settings, of: str) -> None:
    """The first cell with its documents, or another one."""
    fill(settings)
    with open_store(settings) as stale:
        assert stale.get(f"photos/{NAMES[0]}") == NAMES[0].encode()
        move(settings, of, "c")
        assert place_of(settings) == [("c", 1) if one == of else (one, 0) for one in SLICES]
        with pytest.raises(Moved, match="was moved to cell c"):
            stale.get(f"photos/{names_in(of)[0]}")
        assert stale.get(f"photos/{names_in(of)[0]}")
        assert len(list(stale.list("photos"))) == len(NAMES)
    assert_all_there(settings)
    moved = row_of(settings)
    with cell(settings, "c") as there, cell(settings, of) as old:
        assert there.metadata.list_names("photos", "", "", 99) == names_in(of)
        mark = there.metadata.bucket_document("photos", DocumentKind.WIDE)
        assert mark is not None
        assert decode_slices(mark) == moved.slices
        assert there.metadata.bucket_document("photos", DocumentKind.NOTIFICATION) == b"{}"
        assert old.metadata.bucket("photos") is None or bucket_mover.has_copies(old.metadata, "photos")
        assert all_unfinished_moves(old.metadata) == all_unfinished_moves(there.metadata) == []
    with open_cells(settings, SystemClock()) as cells:
        state = cells.state_of(moved)
        assert state.bucket_document("photos", DocumentKind.TAGS) == b"<tags/>"
        assert state.create_bucket("photos", "bob", CannedAcl.PRIVATE, 6) is False
        with pytest.raises(Conflict, match="still holds objects"):
            state.delete_bucket("photos", 6)
    move(settings, of, "d", code=2)


def test_both_cells_of_a_wide_bucket_are_moved_and_one_comes_back(settings: Settings, tmp_path: Path) -> None:
    fill(settings)
    move(settings, "a", "c")
    move(settings, "b", "d")
    assert place_of(settings) == [("c", 1), ("d", 1), ("c", 1)]
    assert_all_there(settings)
    purge(settings, "a")
    move(settings, "c", "a")
    assert place_of(settings) == [("a", 2), ("d", 1), ("a", 2)]
    assert_all_there(settings)
    purge(settings, "c")
    with cell(settings, "c") as old:
        assert not bucket_mover.has_copies(old.metadata, "photos")
    for name in "ad":
        lose_and_rebuild(settings, tmp_path, name)
    assert place_of(settings) == [("a", 2), ("d", 1), ("a", 2)]
    assert_all_there(settings)


def test_slices_go_only_to_a_cell_where_nobody_looks_for_others(settings: Settings, capsys: Any) -> None:
    """A program that remembers since long ago which slices a cell had would put their objects there."""
    fill(settings)
    for of, to, said in (
        (None, "c", "name the cell whose slices are moved with --from: a, b"),
        ("d", "c", "bucket photos has nothing in cell d; it is in a, b"),
        ("a", "b", "cell b has slices of bucket photos already"),
    ):
        move(settings, of, to, code=2)
        assert said in capsys.readouterr().err
    move(settings, "a", "c")
    purge(settings, "a")
    capsys.readouterr()
    move(settings, "b", "a", code=2)
    assert "cell a may have had other slices of bucket photos than cell b has" in capsys.readouterr().err
    lose_and_rebuild(settings, Path(settings.of_cell("a").store.root).parent, "a", "--without-dump")
    assert place_of(settings) == [("c", 1), ("b", 0), ("c", 1)]
    with open_system(settings.of_cell("a")) as system, system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(delete(BUCKET_DOCUMENTS))  # as after a rebuild without the pool
    capsys.readouterr()
    for of in "bc":
        move(settings, of, "a", code=2)
        assert "cell a may have had other slices" in capsys.readouterr().err
    move(settings, "b", "d")
    assert_all_there(settings)


def test_a_move_of_slices_that_is_given_up_can_be_made_later(settings: Settings, capsys: Any) -> None:
    fill(settings)
    with interrupted(settings, "moving.compared", "a", "c"):
        move(settings, "b", "c", code=5)
        assert "that was not completed; give that up first" in capsys.readouterr().err
        move(settings, "b", "d")
        with cell(settings, "c") as there:
            assert there.metadata.move_row("photos") is not None
    move(settings, None, "a")
    with cell(settings, "c") as there:
        row = there.metadata.move_row("photos")
        assert row is not None
        assert row.state is MoveState.GONE
        assert not bucket_mover.has_copies(there.metadata, "photos")
    assert_all_there(settings)
    dump(settings, "c")
    move(settings, "a", "c")
    assert place_of(settings) == [("c", 1), ("d", 1), ("c", 1)]
    assert_all_there(settings)


def test_a_cell_with_slices_is_drained(settings: Settings, tmp_path: Path, capsys: Any) -> None:
    fill(settings)
    config = ["--config", str(cells_config(tmp_path, a=1, b=1, c=1, d=0))]
    assert run([*config, "cells", "drain", "b", "--json"]) == 0
    moved = json.loads(capsys.readouterr().out)["moved"]
    assert {one["bucket"]: one["cell"] for one in moved}["photos"] == "c"
    assert run([*config, "cells", "drain", "a", "--json"]) == 5
    (left,) = [one for one in json.loads(capsys.readouterr().out)["not_moved"] if one["bucket"] == "photos"]
    assert "c: cell c has slices of bucket photos already" in left["message"]
    assert "b: cell b may have had other slices" in left["message"]
    assert_all_there(settings)


def test_a_wide_bucket_is_deleted_and_created_again_after_a_move(settings: Settings) -> None:
    fill(settings)
    move(settings, "a", "c")
    with open_store(settings) as store:
        store.delete_many([f"photos/{name}" for name in NAMES])
        cells = store._cells
        row = row_of(settings)
        state = cells.state_of(row)
        assert state.delete_bucket("photos", 6)
        assert record_bucket(cells.directory, cells.system("c"), "photos") == row_of(settings)
        assert row_of(settings).is_deleted
    move(settings, "b", "d", code=4)
    with open_cells(settings, SystemClock()) as cells:
        again = cells.claim_wide("photos", "bob", ("c", "b", "c"))
        assert cells.state_of(again).create_bucket("photos", "bob", CannedAcl.PRIVATE, 7)
    move(settings, "b", "d")
    assert place_of(settings) == [("c", 1), ("d", 1), ("c", 1)]
    with open_store(settings) as store:
        assert list(store.list("photos")) == []
        for name in NAMES:
            store.put(f"photos/{name}", name.encode())
    assert_all_there(settings)


@pytest.mark.parametrize("slices", [("a", "b"), ("a", "b", "d")])
def test_a_deletion_that_the_first_cell_refuses_changes_nothing(settings: Settings, slices: Sequence[str]) -> None:
    """The rules of the bucket hold in all cells afterwards."""
    with open_cells(settings, SystemClock()) as cells:
        row = cells.claim_wide("photos", "ann", slices)
        state = cells.state_of(row)
        state.create_bucket("photos", "ann", CannedAcl.PRIVATE, 5)
        before = [cells.system(name).metadata.unserved_bucket("photos") for name in slices]
        with interrupted(settings, "moving.closed", "a", "c"), pytest.raises(Moved, match="takes no changes"):
            state.delete_bucket("photos", 6)
        after = [cells.system(name).metadata.unserved_bucket("photos") for name in slices]
    assert after == before


def test_a_bucket_is_deleted_while_slices_of_another_cell_are_closed(settings: Settings) -> None:
    """The move ends, and the bucket can be created again."""
    fill(settings)
    with open_store(settings) as store:
        store.delete_many([f"photos/{name}" for name in NAMES])
        with interrupted(settings, "moving.closed", "b", "c"):
            assert store._cells.state_of(row_of(settings)).delete_bucket("photos", 6)
            store._cells.record("a", "photos")
            let_die(settings)
    recover(settings, "b")
    move(settings, "b", "c", code=4)
    with open_cells(settings, SystemClock()) as cells:
        again = cells.claim_wide("photos", "bob", SLICES)
        assert cells.state_of(again).bucket("photos") is None
        assert cells.state_of(again).create_bucket("photos", "bob", CannedAcl.PRIVATE, 7)
    move(settings, "b", "c")
    with open_store(settings) as store:
        for name in NAMES:
            store.put(f"photos/{name}", name.encode())
    assert_all_there(settings)


@pytest.mark.parametrize("of", ["a", "b"])
def test_an_unfinished_move_of_a_bucket_that_was_deleted_is_given_up(settings: Settings, of: str) -> None:
    fill(settings)
    with interrupted(settings, "moving.compared", of, "c"):
        let_die(settings)
    recover(settings, of)
    with open_store(settings) as store:
        store.delete_many([f"photos/{name}" for name in NAMES])
        assert store._cells.state_of(row_of(settings)).delete_bucket("photos", 6)
        store._cells.record("a", "photos")
    with cell(settings, "c") as there:
        (left,) = all_unfinished_moves(there.metadata)
        words = next_command("c", left, True, row_of(settings)).split()
    config = str(Path(settings.of_cell("a").store.root).parent / "cells.toml")
    assert run(["--config", config, *words[1:]]) == 0
    with cell(settings, "c") as there:
        assert all_unfinished_moves(there.metadata) == []


def test_the_row_of_another_slice_that_is_missing_is_made_again(settings: Settings) -> None:
    """A deletion of the bucket that was cut off has removed it, and the bucket is there."""
    fill(settings)
    with open_store(settings) as store:
        store.delete_many([f"photos/{name}" for name in names_in("b")])
    with open_system(settings.of_cell("b")) as old:
        assert old.metadata.delete_bucket("photos", 6)
    move(settings, "b", "c")
    with open_system(settings.of_cell("c")) as there:
        row = there.metadata.bucket("photos")
        assert row is not None
        assert row.owner == "ann"
    with open_store(settings) as store:
        for name in names_in("b"):
            store.put(f"photos/{name}", name.encode())
    assert_all_there(settings)


@pytest.mark.parametrize("of", ["a", "b"])
@pytest.mark.parametrize("point", AFTER_MOVE)
def test_rules_hold_in_all_cells_after_a_move(settings: Settings, of: str, point: str) -> None:
    """Each cell finds the first one in the directory, and applies nothing while it does not serve the bucket."""
    fill(settings)
    if point:
        with interrupted(settings, point, of, "c"):
            pass
    else:
        move(settings, of, "c")
    found = {}
    for name in "abc":
        with open_system(settings.of_cell(name)) as system:
            system.clock = LaterClock(3 * DAY)
            found[name] = system.worker.lifecycle_walk().run_once()
    if point in ("", "moving.here"):
        assert sum(one.objects for one in found.values()) == len(NAMES)
        assert point or not any(one.failed for one in found.values()), "the old cell leaves the bucket alone"
        with open_store(settings) as store:
            assert list(store.list("photos")) == []
    else:
        assert found["a"].objects == (len(names_in("a")) if of == "b" else 0)
        assert found["b"].objects == found["c"].objects == 0


@pytest.mark.parametrize("of", ["a", "b"])
@pytest.mark.parametrize("point", IN_MOVE + AFTER_MOVE)
def test_a_move_of_slices_continues_after_the_directory_was_rebuilt(
    settings: Settings, capsys: Any, of: str, point: str
) -> None:
    fill(settings)
    if point:
        with interrupted(settings, point, of, "c"):
            pass
        let_die(settings)
    else:
        move(settings, of, "c")
    with open_system(settings.of_cell("a")) as system, system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(delete(DIRECTORY))
    with pytest.raises((Transient, NotFound)), open_store(settings) as store:
        store.get(f"photos/{NAMES[0]}")
    config = ["--config", str(Path(settings.of_cell("a").store.root).parent / "cells.toml")]
    for _ in range(2):
        assert run([*config, "cells", "rebuild-directory"]) == 0
        row = row_of(settings)
        to = "c" if point in AFTER_MOVE else of
        assert list(row.slices) == [to if one == of else one for one in SLICES]
        assert (row.owner, row.is_deleted) == ("ann", False)
    for name in settings.cells:
        recover(settings, name)
    assert_all_there(settings)
    move(settings, of if to == of else None, "c")
    assert place_of(settings) == [("c", 1) if one == of else (one, 0) for one in SLICES]
    assert_all_there(settings)
    capsys.readouterr()


@pytest.mark.invariant(11)
@pytest.mark.parametrize("of", ["a", "b"])
@pytest.mark.parametrize(("lost", "point"), [("source", "moving.closed"), ("source", "moving.here"), ("target", "")])
def test_a_move_of_slices_continues_after_a_database_was_rebuilt(
    tmp_path: Path, capsys: Any, of: str, lost: str, point: str
) -> None:
    """The directory is in another cell. A target that no dump has is completed from the old copies."""
    settings = new_cells(tmp_path, d=0, a=1, b=1, c=0)
    fill(settings)
    dump(settings, of)
    if point:
        with interrupted(settings, point, of, "c"):
            pass
        let_die(settings)
    else:
        move(settings, of, "c")
    arguments = ["--without-dump"] if lost == "target" else []
    lose_and_rebuild(settings, tmp_path, of if lost == "source" else "c", *arguments)
    move(settings, of if point == "moving.closed" else None, "c")
    assert place_of(settings) == [("c", 1) if one == of else (one, 0) for one in SLICES]
    assert_all_there(settings)
    purge(settings, of)
    lose_and_rebuild(settings, tmp_path, of)
    lose_and_rebuild(settings, tmp_path, "c")
    assert_all_there(settings)
    capsys.readouterr()


def test_old_copies_are_kept_while_the_new_cell_does_not_know_the_move(tmp_path: Path, capsys: Any) -> None:
    """Its database was lost, and the directory was not told yet."""
    settings = new_cells(tmp_path, d=0, a=1, b=1, c=0)
    fill(settings)
    move(settings, "a", "c")
    for part in Path(settings.of_cell("c").store.root).glob("metadata.db*"):
        part.unlink()
    config = ["--config", str(tmp_path / "cells.toml")]
    assert run([*config, "--cell", "c", "metadata", "rebuild", "--list", str(tmp_path / "l"), "--without-dump"]) == 0
    dump(settings, "c")
    capsys.readouterr()
    assert run([*config, "cells", "purge", "photos", "--from", "a"]) == 5
    assert "the move of bucket photos to cell c is not complete" in capsys.readouterr().err
    assert run([*config, "cells", "rebuild-directory"]) == 0
    move(settings, None, "c")
    assert_all_there(settings)


@pytest.mark.parametrize("point", KILL_POINTS)
def test_kill_a_move_of_slices(bench: Bench, point: str) -> None:
    settings = new_cells(bench.folder, **WEIGHTS)
    bench.config = cells_config(bench.folder, **WEIGHTS)
    fill(settings)
    done = bench.run("cells", "move", "photos", "--from", "a", "--to", "c", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    row = row_of(settings)
    source = [] if "c" in row.cells else ["--from", "a"]
    done = bench.run("cells", "move", "photos", *source, "--to", "c")
    assert done.returncode == 0, done.stderr
    assert place_of(settings) == [("c", 1), ("b", 0), ("c", 1)]
    assert_all_there(settings)


@pytest.mark.parametrize("point", ["", *SERVED_MOVED_POINTS])
def test_the_daemons_of_the_new_cell_serve_slices_whose_mover_died(bench: Bench, point: str) -> None:
    settings = new_cells(bench.folder, **WEIGHTS)
    bench.config = cells_config(bench.folder, **WEIGHTS)
    fill(settings)
    with interrupted(settings, "moving.gone", "a", "c"):
        let_die(settings)
        if point:
            done = bench.run("--cell", "c", "consumer", "--once", kill_at=point)
            assert done.returncode == -signal.SIGKILL, done.stderr
        done = bench.run("--cell", "c", "consumer", "--once")
        assert done.returncode == 0, done.stderr
    assert place_of(settings) == [("c", 1), ("b", 0), ("c", 1)]
    assert_all_there(settings)
    move(settings, None, "c")
    with cell(settings, "a") as old:
        assert all_unfinished_moves(old.metadata) == []


@pytest.fixture
def ann(settings: Settings) -> Iterator[Any]:
    fill(settings)
    with serving_cells(settings) as (_, gateway):
        yield gateway.client("ann")


@pytest.mark.parametrize("of", ["a", "b"])
def test_a_gateway_finds_slices_that_were_moved(settings: Settings, ann: Any, of: str) -> None:
    """Requests without a body are answered as if nothing had happened."""
    key = names_in(of)[0]
    other = names_in("b" if of == "a" else "a")[0]
    for to in "cd":
        assert ann.get_object(Bucket="photos", Key=key)["Body"].read() == key.encode()
        move(settings, row_of(settings).cell_of(key), to)
        assert ann.get_object(Bucket="photos", Key=key)["Body"].read() == key.encode()
        assert ann.head_object(Bucket="photos", Key=other)["ContentLength"] == len(other)
        listed = ann.list_objects_v2(Bucket="photos", MaxKeys=len(NAMES))
        assert [one["Key"] for one in listed["Contents"]] == NAMES
    ann.delete_object(Bucket="photos", Key=key)
    ann.put_object(Bucket="photos", Key=key, Body=BytesIO(key.encode()))
    assert_all_there(settings)


@pytest.mark.parametrize(
    ("bucket", "source"), [("plain", []), ("photos", ["--from", "a"]), ("photos", ["--from", "b"])]
)
def test_a_gateway_creates_a_bucket_again_that_was_moved_and_deleted(
    settings: Settings, ann: Any, bucket: str, source: list[str]
) -> None:
    """It remembers where the bucket was before, and another program has deleted it."""
    ann.create_bucket(Bucket="plain")
    with open_store(settings) as store:
        store.delete_many([info.key for info in store.list(bucket)])
    assert "Contents" not in ann.list_objects_v2(Bucket=bucket)
    config = str(Path(settings.of_cell("a").store.root).parent / "cells.toml")
    assert run(["--config", config, "cells", "move", bucket, *source, "--to", "c"]) == 0
    with open_cells(settings, SystemClock()) as cells:
        row = cells.place(bucket)
        assert row is not None
        assert cells.state_of(row).delete_bucket(bucket, 6)
        cells.record(row.home, bucket)
    ann.create_bucket(Bucket=bucket)
    ann.put_object(Bucket=bucket, Key="k01", Body=b"new")
    assert ann.get_object(Bucket=bucket, Key="k01")["Body"].read() == b"new"
