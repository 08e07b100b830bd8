"""Another user than the store's: every command says what it may not read or write, and none ends with a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nos_ec.adapters.file_system import misfits
from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

PROGRAM = """
import contextlib, importlib, io, json, os, pkgutil, sys, traceback
from pathlib import Path
import nos_ec.cli
from nos_ec.cli.app import run

config, part, mode, commands = json.loads(sys.argv[1])
# The other user may not read our modules, nor those of Python.
for module in pkgutil.walk_packages(nos_ec.cli.__path__, "nos_ec.cli."):
    importlib.import_module(module.name)
for command in (["init"], ["status"], ["producer", "--once"], ["ls"]):
    assert run(["--config", config, *command]) == 0
os.chmod(part, mode)
os.setgroups([])
os.setegid(65534)
os.seteuid(65534)
for command in commands:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            code = run(["--config", config, *command, "--json"])
    except BaseException:
        code = 1
        traceback.print_exc(file=said)
    sys.__stderr__.write(json.dumps([command, code, said.getvalue()]) + "\\n")
"""


@pytest.fixture(autouse=True)
def root() -> None:
    if os.geteuid():
        reason = "only root can become another user"
        pytest.fail(reason) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)


@pytest.fixture
def store(bench: Bench, system: System) -> Path:
    """One with objects of each kind, which belongs to root and which others may read and write."""
    bench.put(system, "packed", bench.data(CHUNK))
    bench.pack(system)
    bench.put(system, "landed", bench.data(CHUNK))
    bench.put(system, "large", bench.data(6 * STRIPE))
    (bench.folder / "large").write_bytes(bench.data(6 * STRIPE))
    (bench.folder / "small").write_bytes(b"small")
    subprocess.run(["chmod", "-R", "a+rwX", str(bench.folder)], check=True)
    return bench.folder / "store"


def _as_nobody(bench: Bench, part: Path, mode: int, commands: list[list[str]]) -> Iterator[tuple[list[str], int, Any]]:
    """(command, exit code, error) of each command, run by a user whom `mode` of `part` keeps out."""
    arguments = json.dumps([str(bench.config), str(part), mode, commands])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments], capture_output=True, timeout=WAIT_S_MAX, cwd=bench.folder
    )
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"[[")]
    assert len(lines) == len(commands), done.stderr
    for command, code, said in lines:
        assert "Traceback" not in said, (command, said)
        yield command, code, json.loads(said.splitlines()[-1]) if code else None


READS = [["ls"], ["ls", "b"], ["stat", "b/landed"], ["status"], ["get", "b/landed", "-o", "copy"]]
WRITES = [["put", "b/new", "small"], ["put", "b/new", "large"], ["rm", "b/landed"], ["producer", "--once"]]
ALL = [*READS, *WRITES, ["consumer", "--once"], ["gc", "plan"], ["gc", "run", "--apply"], ["init"]]
NEEDED = {"": 3, "metadata.db": 3, "store-id": 7, "landing": 7, "landing/store.json": 7, "blocks": 7}
"""Parts of the store without which nothing works, and the exit code then."""


@pytest.mark.parametrize("mode", [0, 0o444], ids=oct)
@pytest.mark.parametrize("part", NEEDED)
def test_a_part_that_is_always_needed(bench: Bench, store: Path, part: str, mode: int) -> None:
    """A folder of mode 444 can be listed, but not entered; a file of mode 444 can be read."""
    denied = [NEEDED[part]] if mode == 0 or (store / part).is_dir() else [0, 3, 7]
    for command, code, error in _as_nobody(bench, store / part, mode, ALL):
        assert code in denied, (command, error)
        if len(denied) == 1:
            assert str(store / part) in error["message"], command
            assert "check" in error["message"], command


@pytest.mark.parametrize(
    ("part", "fails"),
    [
        ("blocks/shard-03", {"put b/new large", "consumer --once", "init"}),
        ("blocks/locks", {"put b/new large", "consumer --once", "init"}),
        ("log.db", {"producer --once", "consumer --once", "init"}),
    ],
)
def test_a_part_that_some_commands_need(bench: Bench, store: Path, part: str, fails: set[str]) -> None:
    ended = list(_as_nobody(bench, store / part, 0, [c for c in ALL if c[0] != "gc"]))
    assert {" ".join(command) for command, code, _ in ended if code} == fails
    assert {code for _, code, _ in ended} == {0, 3 if part == "log.db" else 7}
    assert all(str(store / part) in error["message"] for _, code, error in ended if code)


def test_a_configuration_that_may_not_be_read(bench: Bench, store: Path) -> None:
    for _, code, error in _as_nobody(bench, bench.config, 0, [["ls"], ["status"]]):
        assert code == 3
        assert f"{bench.config}: cannot be read (Permission denied); check its permissions" in error["message"]


def test_files_of_the_caller(bench: Bench, store: Path) -> None:
    """Folders of the command line that may not be entered."""
    (closed := bench.folder / "closed").mkdir()
    commands = [
        ["put", "b/new", "closed/file"],
        ["put", "-r", "b", "closed/folder"],
        ["get", "b/landed", "-o", "closed/file"],
        ["demo", "--source", "closed/folder"],
        ["demo", "--root", "closed/folder"],
        ["simulate", "--sizes", "closed/file"],
        ["metadata", "dump", "--to", "closed/file"],
        ["check", "--plan", "closed/file"],
        ["scrub", "--plan", "closed/file"],
    ]
    for command, code, error in _as_nobody(bench, closed, 0, commands):
        assert (code, "Permission denied" in error["message"]) == (2, True), (command, error)


def test_no_file_of_a_store_may_be_executed(store: Path) -> None:
    assert [path for path in store.rglob("*") if path.is_file() and path.stat().st_mode & 0o111] == []


def test_what_root_does_once_keeps_no_service_out(bench: Bench, store: Path) -> None:
    """Root's files take owner and mode of their folders, whatever root's umask is."""
    subprocess.run(["chown", "-R", "65534:65534", str(store)], check=True)
    subprocess.run(["chmod", "-R", "u=rwX,g=rX,o=", str(store)], check=True)
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config)]
    for words in (
        ["put", "b/small", "small"],
        ["put", "b/big", "large"],
        ["producer", "--once"],
        ["consumer", "--once"],
        ["rm", "b/packed"],
        ["gc", "run", "--apply"],
        ["put", "b/second", "small"],
        ["metadata", "dump"],
        ["init"],
    ):
        done = subprocess.run([*command, *words], cwd=bench.folder, umask=0o077, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    others = [path for path in [store, *store.rglob("*")] if (path.stat().st_uid, path.stat().st_gid) != (65534, 65534)]
    assert others == []
    assert list(misfits(store)) == []
    names = ("small", "big", "second", "large", "landed")
    reads = [["get", f"b/{name}", "-o", f"copy-{name}"] for name in names]
    rest = [["rm", *(f"b/{name}" for name in names)], ["consumer", "--once"], ["gc", "run", "--apply"], ["check"]]
    for said, code, error in _as_nobody(bench, bench.config, 0o644, [*reads, *rest]):
        assert code == 0, (said, error)


def test_files_of_another_user_are_named_and_deleted(bench: Bench, store: Path, system: System) -> None:
    """Deleting a file takes only the permission to write to its folder."""
    system.worker.housekeeping().run_once()
    key = ObjectKey("b", "packed")
    extent = system.client.store().head(key).extent
    assert extent is not None
    block = extent.block_id.hex()
    subprocess.run(["chown", "-R", "65534:65534", str(store)], check=True)
    shard = store / "blocks" / "shard-03" / block[-1] / block
    os.chown(shard, 0, 0)
    shard.chmod(0o600)
    found = bench.run("check", "--json")
    assert found.returncode == 13, found.stderr
    (finding,) = [json.loads(line) for line in found.stdout.splitlines() if b"files-unusable" in line][:1]
    assert str(shard) in json.dumps(finding)
    bench.delete(system, key)
    collect = [["gc", "run", "--apply"], ["gc", "run", "--apply"]]
    for said, code, error in _as_nobody(bench, bench.config, 0o644, collect):
        assert code == 0, (said, error)
    assert not list(store.glob(f"blocks/shard-*/?/{block}"))
