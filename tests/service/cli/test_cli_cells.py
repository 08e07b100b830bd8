"""Commands on a store of several cells that name none (docs/CELLS.md)."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from nos_ec.cli.app import run
from nos_ec.cli.terminal.errors import most_severe
from nos_ec.composition.audit import command_of
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.gc.workers import worker_lease
from nos_ec.settings import Settings, load_settings
from tests.service.conftest import CHUNK, CONFIG

NAMES = ["a", "bb", "c"]
CELLS = CONFIG.replace('root = "store"', 'directory = "bb"') + "".join(
    f'[cells.{name}]\nstore.root = "cell-{name}"\n' for name in NAMES
)
ORDER = ["bb", "a", "c"]
"""The cell of the directory comes first."""


class Cells:
    """Runs commands on a store of three cells, in this process."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.config = folder / "nos-ec.toml"
        self.config.write_text(CELLS)
        self.error = ""
        self._capfd = capfd

    def text(self, *arguments: str, exits: int = 0) -> list[str]:
        """Return the lines that a command prints. Its errors are in `error`."""
        self._capfd.readouterr()
        code = run(["--config", str(self.config), *arguments])
        out, self.error = self._capfd.readouterr()
        assert code == exits, f"exit {code}: {out} {self.error}"
        return out.splitlines()

    def json(self, *arguments: str, exits: int = 0) -> Any:
        """Return what a command prints as JSON."""
        (line,) = self.text(*arguments, "--json", exits=exits)
        return json.loads(line)

    def settings(self, name: str) -> Settings:
        return load_settings(self.config, {}).of_cell(name)

    def lose(self, name: str) -> None:
        """Let a cell have no database."""
        (self.folder / f"cell-{name}" / "metadata.db").unlink()


@pytest.fixture
def new(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cells:
    return Cells(tmp_path, capfd)


@pytest.fixture
def cells(new: Cells) -> Cells:
    new.text("init")
    return new


def store_id(settings: Settings) -> str:
    with open_system(settings) as system:
        return system.store_id


def pack_in(cells: Cells, name: str) -> str:
    """Pack an object in a cell, and return the id of its block."""
    with open_system(cells.settings(name)) as system:
        system.client.store().put(ObjectKey("photos", "a.jpg"), BytesIO(b"x" * CHUNK))
    assert cells.json("producer", "--once")["cells"][name]["published"] == 1
    assert cells.json("consumer", "--once")["cells"][name]["packed"] == 1
    found: str = cells.json("--cell", name, "stat", "photos/a.jpg")["location"]["block"]
    return found


def test_init_creates_all_cells_and_each_line_names_its_cell(new: Cells) -> None:
    lines = new.text("init")
    assert lines == [f"{name}:".ljust(4) + f"store ready in {new.folder}/cell-{name}" for name in ORDER]
    assert len({store_id(new.settings(name)) for name in NAMES}) == 3
    assert list(new.json("init")["cells"]) == ORDER  # safe to repeat


def test_init_creates_one_cell_if_it_is_named(new: Cells) -> None:
    new.text("--cell", "c", "init")
    assert sorted(path.name for path in new.folder.glob("cell-*")) == ["cell-c"]


def test_work_is_done_in_each_cell_and_figures_are_by_cell(cells: Cells) -> None:
    pack_in(cells, "c")
    status = cells.json("status", "--exact")["cells"]
    assert {name: one["packed_objects"] for name, one in status.items()} == {"bb": 0, "a": 0, "c": 1}
    assert cells.json("gc", "pause")["cells"].keys() == set(NAMES)
    assert {one["paused"] for one in cells.json("gc", "status")["cells"].values()} == {True}
    assert {line[:3] for line in cells.text("events")} == {"a: ", "bb:", "c: "}
    checks = cells.json("check")["cells"].values()
    assert [one["looked_at"]["blocks"] > 0 for one in checks] == [False, False, True]
    dumped = cells.json("metadata", "dump")["cells"].values()
    assert [one["dumped"]["rows"].get("objects", 0) for one in dumped] == [0, 0, 1]
    assert [len(one["dumps"]) for one in cells.json("metadata", "dumps")["cells"].values()] == [1, 1, 1]


def test_status_has_the_sum_of_the_cells(cells: Cells) -> None:
    pack_in(cells, "a")
    pack_in(cells, "c")
    found = cells.json("status", "--exact")
    one, total = found["cells"]["c"], found["sum"]
    for name in ("live_bytes", "raw_bytes", "stripes", "overhead_bytes"):
        assert total[name] == 2 * one[name] > 0
    assert (total["packed_objects"], total["landed_objects"], total["dead_bytes"]) == (2, 0, 0)
    for name in ("utilisation", "hole_ratio", "raw_bytes_per_user_byte"):
        assert total[name] == one[name]
    lines = [line for line in cells.text("status", "--exact") if line.startswith("*:  ")]
    assert lines[0].endswith("all cells")
    assert any("2 packed objects" in line for line in lines)
    cells.lose("a")
    assert cells.json("status", exits=3)["sum"]["packed_objects"] == 1
    assert "*:  all cells that answered" in cells.text("status", exits=3)
    cells.lose("c")
    cells.lose("bb")
    assert cells.json("status", exits=3)["sum"]["utilisation"] is None


def test_a_failure_in_one_cell_does_not_stop_the_others(cells: Cells) -> None:
    cells.lose("a")
    found = cells.json("status", exits=3)["cells"]
    assert [name for name, one in found.items() if one is None] == ["a"]
    error = json.loads(cells.error)
    assert (error["cell"], error["error"], error["exit_code"]) == ("a", "ConfigError", 3)
    lines = cells.text("gc", "status", exits=3)
    assert {line[:3] for line in lines} == {"bb:", "c: "}
    assert cells.error.startswith("error: cell a: there is no metadata store")


def test_a_cell_in_which_gc_runs_already_does_not_hide_that_another_one_fails(cells: Cells) -> None:
    with open_system(cells.settings("bb")) as system, system.contended_lease(worker_lease(0)):
        cells.text("gc", "run", "--apply", exits=5)
        cells.lose("c")
        cells.text("gc", "run", "--apply", exits=3)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([], 0), ([0, 0], 0), ([5, 0, 7], 7), ([7, 5], 7), ([5, 6, 3], 6), ([13, 1, 6], 1), ([5, 4], 4), ([0, 5], 5)],
)
def test_the_most_severe_failure_gives_the_exit_code(codes: list[int], code: int) -> None:
    assert most_severe(codes) == code


def test_buckets_of_cells_that_answer_are_listed(cells: Cells) -> None:
    pack_in(cells, "c")
    cells.lose("a")
    assert cells.text("ls", exits=7) == ["photos"]
    assert "error: cell a: cell a is not open yet: there is no metadata store" in cells.error
    assert cells.json("ls", exits=7) == {"buckets": ["photos"], "next_after": None}
    assert json.loads(cells.error.splitlines()[-1])["cell"] == "a"


def test_the_name_of_a_cell_is_not_empty(cells: Cells) -> None:
    for empty in (["--cell", ""], ["--cell="]):
        assert cells.text(*empty, "status", exits=2) == []
        assert "--cell needs the name of a cell" in cells.error


def test_the_gateway_serves_no_cell_alone(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cells.text("--cell", "a", "s3", "serve", exits=2) == []
    assert "the gateway serves all cells; leave out --cell" in cells.error
    monkeypatch.setenv("NOS_EC_CELL", "a")
    cells.text("s3", "serve", exits=2)


def test_commands_on_the_cells_of_a_store_say_why_they_are_refused(cells: Cells) -> None:
    assert cells.text("--cell", "a", "cells", "list", exits=2) == []
    assert "this is about all cells of a store; leave out --cell, and NOS_EC_CELL in its environment" in cells.error
    cells.config.write_text(CONFIG)
    assert cells.text("cells", "list", exits=2) == []
    assert "the settings have no [cells.NAME], so this store has no cells (docs/CELLS.md#add-a-cell)" in cells.error


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--cell", "gc", "producer", "--once"], "nos-ec producer"),
        (["--config", "file", "--cell", "a", "gc", "run", "--apply"], "nos-ec gc run"),
        (["--cell=a", "--config=b", "status"], "nos-ec status"),
        (["consumer"], "nos-ec consumer"),
    ],
)
def test_the_audit_trail_names_the_command_without_the_cell(arguments: list[str], command: str) -> None:
    assert command_of(["/opt/nos-ec/bin/nos-ec", *arguments]) == command


def test_errors_are_json_where_logs_are(cells: Cells) -> None:
    cells.config.write_text(cells.config.read_text() + '[logging]\nformat = "json"\n')
    cells.lose("a")
    cells.text("producer", "--once", exits=3)
    errors = [json.loads(line) for line in cells.error.splitlines()]
    assert [error["cell"] for error in errors if "exit_code" in error] == ["a"]


def test_the_configuration_of_cells_is_checked_and_shown(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = cells.text("config", "show")
    assert any(line.split() == ["cells.bb.weight", "1"] for line in lines)
    assert any(line.split() == ["cells.c.store.root", f"{cells.folder}/cell-c"] for line in lines)
    assert not any(line.startswith("cells.c.gc.") for line in lines)
    assert cells.json("config", "show")["cells"]["c"]["gc"]["workers"] == 1
    monkeypatch.setenv("NOS_EC_CELLS__C__API__TOKEN", "short")
    (problem,) = cells.json("config", "check", exits=3)["problems"]
    assert problem.startswith("cells.c.api: the token has 5 characters")
    monkeypatch.setenv("NOS_EC_API__TOKEN", "short")
    (problem,) = cells.json("config", "check", exits=3)["problems"]  # all cells have it in common
    assert problem.startswith("api: the token has 5 characters")


def test_a_named_cell_is_like_a_store_of_its_own(cells: Cells) -> None:
    pack_in(cells, "a")
    status = cells.json("--cell", "a", "status", "--exact")
    assert status["packed_objects"] == 1
    assert cells.json("--cell", "bb", "status", "--exact")["packed_objects"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "plan.txt"),
        ("check", "--plan", "plan.txt"),
        ("quarantine", "release", "0" * 32),
        ("metadata", "rebuild"),
        ("metadata", "dump", "--to", "a dump"),
        ("gc", "limit", "--bytes-per-s", "1MiB"),
        ("trash", "empty", "--yes"),
        ("init", "--new-shard", "3"),
    ],
)
def test_a_command_that_would_have_to_guess_names_what_to_type(cells: Cells, arguments: tuple[str, ...]) -> None:
    assert cells.text(*arguments, exits=2) == []
    words = " ".join(f"'{word}'" if " " in word else word for word in arguments)
    assert cells.error.splitlines()[1:] == [f"  nos-ec --config {cells.config} --cell {name} {words}" for name in NAMES]


def test_a_block_is_explained_by_the_cell_that_has_it(cells: Cells) -> None:
    block = pack_in(cells, "c")
    assert cells.json("explain", block)["block"] == block
    assert all(line.startswith("c: ") for line in cells.text("explain", block))
    cells.text("explain", "0" * 32, exits=4)
    assert "error" in cells.error
    cells.lose("a")
    cells.text("explain", block)
    cells.text("explain", "0" * 32, exits=3)  # it may be in the cell that did not answer


def test_keys_are_those_of_the_cell_of_the_directory(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOS_EC_S3__MASTER_KEY", "00" * 32)
    key = cells.json("s3", "key", "create", "alice")["access_key"]
    assert [one["access_key"] for one in cells.json("s3", "key", "list")["keys"]] == [key]
    assert [one["access_key"] for one in cells.json("--cell", "bb", "s3", "key", "list")["keys"]] == [key]
    cells.text("--cell", "a", "s3", "key", "list", exits=2)


def test_the_audit_trail_is_shown_by_cell_unless_all_cells_share_one(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(cells.json("audit")["cells"]) == ORDER
    monkeypatch.setenv("NOS_EC_AUDIT__FOLDER", str(cells.folder / "audit"))
    assert "entries" in cells.json("audit")


def test_long_output_of_a_cell_is_held_in_a_file(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.cli.terminal.streams._HELD_BYTES", 7)
    assert list(cells.json("gc", "status")["cells"]) == ORDER


def test_quotas_of_buckets_are_those_of_their_cell_and_those_of_accounts_are_in_each(cells: Cells) -> None:
    cells.config.write_text(cells.config.read_text().replace("[store]\n", "[store]\ncount_usage = true\n"))
    with open_system(cells.settings("c")) as system:
        system.client.store().put(ObjectKey("photos", "a.jpg"), BytesIO(b"x" * CHUNK))
    cells.text("cells", "rebuild-directory")
    assert cells.json("usage", "photos", "--start") == {"bucket": "photos", "metered": True}
    assert cells.json("s3", "quota", "set", "photos", "--objects", "9")["quota"]["hard_objects"] == 9
    found = cells.json("usage", "--exact")["cells"]
    assert {name: [one["bucket"] for one in found[name]["buckets"]] for name in NAMES} == {
        "a": [],
        "bb": [],
        "c": ["photos"],
    }
    limits = ("s3", "quota", "set", "--account", "ann", "--bytes", "1MiB")
    assert {name: one["quota"]["hard_bytes"] for name, one in cells.json(*limits)["cells"].items()} == dict.fromkeys(
        NAMES, 1 << 20
    )
    shown = cells.json("s3", "quota", "show", "--account", "ann")["cells"]
    assert [shown[name]["used"]["bytes"] for name in NAMES] == [0, 0, 0]
