"""put -r, get -r, rm -r and ls --summarize: what they do, what they leave out and say so, and where they stop."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from nos_ec.cli.app import run
from nos_ec.cli.files.local_files import TargetFolder
from nos_ec.cli.terminal.item_counter import NAMED_MAX
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NoSpace, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from tests.rig.at_rest import come_to_rest
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench


class Cli:
    """Runs commands in this process."""

    def __init__(self, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
        self._bench = bench
        self._capfd = capfd

    def __call__(self, *arguments: str, exits: int = 0) -> dict[str, Any]:
        """Run with --json; returns what it printed on stdout, or else the error."""
        out, err = self.run(*arguments, "--json", exits=exits)
        return dict(json.loads((out or err).splitlines()[-1]))

    def run(self, *arguments: str, exits: int = 0) -> tuple[str, str]:
        """stdout and stderr."""
        self._capfd.readouterr()
        code = run(["--config", str(self._bench.config), *arguments])
        out, err = self._capfd.readouterr()
        assert code == exits, f"exit {code}: {out} {err}"
        return out, err


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.fixture
def tree(tmp_path: Path, bench: Bench) -> Path:
    """Files of every size in folders."""
    (folder := tmp_path / "tree").mkdir()
    for name, size in {"a": 0, "b/c": 10, "b/d": CHUNK, "e/f/g": 5 * STRIPE, "new\nline": 7}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bench.data(size))
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _put(bench: Bench, system: System, names: Sequence[str], bucket: str = "b") -> None:
    for name in names:
        bench.put(system, name, name.encode(), bucket)


# --- put -r ---------------------------------------------------------------------------------------
def test_put_refuses_what_is_no_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert (
        "is not a folder; to store a single file, leave out -r"
        in cli.run("put", "-r", "b", str(tmp_path / "file"), exits=2)[1]
    )
    assert "no such folder" in cli.run("put", "-r", "b", str(tmp_path / "none"), exits=2)[1]


def test_put_names_what_it_cannot_store_and_stores_the_rest(cli: Cli, tree: Path, system: System) -> None:
    good = _files(tree)
    bad = tree / os.fsdecode(b"bad\xff")
    bad.write_bytes(b"x")
    deep = tree / "/".join(["d" * 200] * 6)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x")
    (tree / "link").symlink_to("a")
    (tree / "loop").symlink_to(".")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        folder = os.open(tree, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        told = cli("put", "-r", "docs/in", str(tree), exits=12)
    assert {name: told[name] for name in ("objects", "bytes", "not_stored", "left_out", "changed", "complete")} == {
        "objects": len(good),
        "bytes": sum(map(len, good.values())),
        "not_stored": 2,
        "left_out": 4,
        "changed": 0,
        "complete": True,
    }
    reasons = {Path(problem["what"]).name: problem["reason"] for problem in told["problems"]}
    assert reasons.keys() == {"bad\udcff", "file", "link", "loop", "pipe", "socket"}
    assert "UTF-8" in reasons["bad\udcff"]
    assert "1024" in reasons["file"]
    assert "symbolic link" in reasons["loop"]
    assert {
        row.key.name: system.client.store().get(row.key)
        for row in system.client.store().list_objects("docs", "", "", 99)
    } == {f"in/{name}": data for name, data in good.items()}


def test_what_is_left_out_alone_is_no_failure(cli: Cli, tree: Path) -> None:
    (tree / "link").symlink_to("a")
    out, err = cli.run("put", "-r", "docs", str(tree))
    assert "5 objects" in out
    assert "1 left out" in out
    assert err == f"{tree}/link: left out: is a symbolic link\n"


def test_folders_and_files_that_may_not_be_read(bench: Bench, system: System, tree: Path) -> None:
    """The test runs as another user, whom modes keep out. The modules are loaded before."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    subprocess.run(["chmod", "-R", "a+rwX", str(bench.folder)], check=True)
    (tree / "b").chmod(0)
    (tree / "e/f/g").chmod(0)
    program = (
        "import os, sys; from nos_ec.cli.app import run; run(['--config', sys.argv[1], 'ls']);"
        "os.setgroups([]); os.seteuid(65534);"
        "sys.exit(run(['--config', sys.argv[1], 'put', '-r', 'docs', sys.argv[2], '--json']))"
    )
    done = bench.run_python("-c", program, str(bench.config), str(tree))
    assert done.returncode == 12, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["objects"], told["not_stored"]) == (2, 2)
    denied = "not stored: Permission denied"
    assert told["problems"] == [{"what": str(tree / name), "reason": denied} for name in ("b", "e/f/g")]


def test_problems_are_bounded_and_counted(cli: Cli, tmp_path: Path) -> None:
    for index in range(NAMED_MAX + 20):
        (tmp_path / os.fsdecode(b"%03d\xff" % index)).touch()
    told = cli("put", "-r", "docs", str(tmp_path), exits=12)
    assert (len(told["problems"]), told["not_stored"]) == (NAMED_MAX, NAMED_MAX + 20)
    _, err = cli.run("put", "-r", "docs", str(tmp_path), exits=12)
    assert err.count("UTF-8") == NAMED_MAX
    assert "further ones are only counted" in err


@pytest.mark.parametrize("size", [CHUNK + 1, 8 * STRIPE])
def test_a_file_that_changes_or_vanishes(
    cli: Cli, tree: Path, system: System, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The file changes while it is read. The other files are stored."""
    from nos_ec.library import tree as loading

    read = loading._SourceFile.read

    def changing(file: Any, count: int) -> bytes:
        data: bytes = read(file, count)
        if len(data) == min(size, count):
            (tree / "b/h").write_bytes(b"shorter now")
            (tree / "z").unlink(missing_ok=True)
        return data

    (tree / "b/h").write_bytes(bytes(size))
    (tree / "z").write_bytes(b"vanishes")
    monkeypatch.setattr(loading._SourceFile, "read", changing)
    told = cli("put", "-r", "docs", str(tree), exits=12)
    assert (told["objects"], told["changed"], told["not_stored"]) == (6, 1, 1)
    assert [problem["reason"].split(":")[0] for problem in told["problems"]] == [
        "changed while it was read",
        "not stored",
    ]
    assert system.client.store().head(ObjectKey("docs", "b/h")).size <= size


@pytest.mark.parametrize(("error", "code"), [(NoSpace("full"), 8), (Transient("the server is away"), 7)])
def test_put_ends_early_with_totals(
    cli: Cli, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch, error: Transient, code: int
) -> None:
    (tree := tmp_path / "tree").mkdir()
    for index in range(600):
        (tree / f"{index:03}").write_bytes(b"12")
    put_many, calls = Store.put_many, []

    def failing(store: Store, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise error
        return put_many(store, *arguments)

    monkeypatch.setattr(Store, "put_many", failing)
    told = cli("put", "-r", "b", str(tree), exits=code)
    assert (told["objects"], told["bytes"], told["complete"]) == (256, 512, False)
    calls.clear()
    out, err = cli.run("put", "-r", "b", str(tree), exits=code)
    assert out == ""
    assert "ended early: 256 objects, 512 B, stored under b/" in err
    assert len(system.client.store().list_objects("b", "", "", 1000)) == 256


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_put_can_be_ended_at_any_time(bench: Bench, system: System, tmp_path: Path, number: signal.Signals) -> None:
    """Each object that is there is whole, and nothing else is left for good."""
    files = {f"{index % 9}/{index:04}": bench.data(200 + index) for index in range(3000)}
    files |= {f"{digit}/large": bench.data(6 * STRIPE) for digit in range(9)}
    for name, data in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(data)
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "put", "-r", "b", str(tmp_path / "tree")]
    cut_off = 0
    for objects in (1, 300, 600):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + WAIT_S_MAX
        while len(_stored(system)) < objects and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(number)
        process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode in (-number, 0)
        stored = _stored(system)
        cut_off += process.returncode == -number and len(stored) < len(files)
        assert all(system.client.store().get(ObjectKey("b", name)) == files[name] for name in stored)
    assert cut_off, "no round was ended in the middle"
    assert come_to_rest(system) == []
    assert {name: system.client.store().get(ObjectKey("b", name)) == files[name] for name in stored} == dict.fromkeys(
        stored, True
    )


def _stored(system: System) -> list[str]:
    return [row.key.name for row in system.client.store().list_objects("b", "", "", 10_000)]


# --- get -r ---------------------------------------------------------------------------------------
def test_a_tree_comes_back(cli: Cli, tree: Path, tmp_path: Path, bench: Bench, system: System) -> None:
    files = _files(tree)
    cli("put", "-r", "docs/in", str(tree))
    bench.pack(system)
    copy = tmp_path / "a/copy"
    odd = files.pop("new\nline")
    told = cli("get", "-r", "docs/in", str(copy), exits=12)
    assert (told["objects"], told["bytes"], told["not_written"]) == (len(files), sum(map(len, files.values())), 1)
    assert "control characters" in told["problems"][0]["reason"]
    assert _files(copy) == files
    cli("rm", "docs/in/new\nline")
    assert len(odd) == 7

    (copy / "b/c").write_bytes(b"x" * 10)
    (copy / "e/f/g").unlink()
    before = (copy / "b/d").stat().st_ino
    again = cli("get", "-r", "docs/in/", str(copy), "--skip-existing")
    assert (again["objects"], again["unchanged"]) == (2, 2), "one of another MD5, one missing"
    assert (copy / "b/d").stat().st_ino == before
    assert _files(copy) == files


def test_files_of_objects_in_parts_are_not_written_again(
    cli: Cli, tmp_path: Path, bench: Bench, system: System
) -> None:
    uploads, sizes = system.client.uploads(), (3 * CHUNK, 700, 1)
    upload = uploads.create(ObjectKey("b", "dir/parts"), "ann", b"")
    bodies = [bench.data(size) for size in sizes]
    for number, body in zip((2, 5, 9), bodies, strict=True):
        uploads.put_part(upload, number, BytesIO(body), b"")
    uploads.complete(upload, lambda stored: (stored, {}))
    file = tmp_path / "out/dir/parts"
    assert cli("get", "-r", "b", str(tmp_path / "out"))["objects"] == 1
    assert file.read_bytes() == b"".join(bodies)
    before = file.stat().st_ino
    again = cli("get", "-r", "b", str(tmp_path / "out"), "--skip-existing")
    assert (again["objects"], again["unchanged"]) == (0, 1)
    assert file.stat().st_ino == before
    for at in (0, 3 * CHUNK + 5, -1):
        data = bytearray(b"".join(bodies))
        data[at] ^= 1
        file.write_bytes(data)
        assert cli("get", "-r", "b", str(tmp_path / "out"), "--skip-existing")["objects"] == 1
        assert file.read_bytes() == b"".join(bodies)


def test_names_that_cannot_be_files(cli: Cli, tmp_path: Path, bench: Bench, system: System) -> None:
    good = ["ok", "x" * 255, "p/.hidden", "ä/ö", "a", "back\\slash", "-rf"]
    bad = ["a/b", "y" * 256, "tab\t", "trail/", "/lead", "dou//ble", "del\x7f"]
    _put(bench, system, [*good, *bad])
    (tmp_path / "out").mkdir()
    told = cli("get", "-r", "b", str(tmp_path / "out"), exits=12)
    assert {problem["what"].removeprefix("b/") for problem in told["problems"]} == set(bad)
    assert _files(tmp_path / "out") == {name: name.encode() for name in good}


def test_get_writes_nothing_outside_its_folder(cli: Cli, tmp_path: Path, bench: Bench, system: System) -> None:
    """Links that lie there are not followed; a link in the place of a file is replaced."""
    _put(bench, system, ["dir/file", "file", "inner/x/y"])
    (outside := tmp_path / "outside").mkdir()
    (outside / "target").write_bytes(b"kept")
    (out := tmp_path / "out").mkdir()
    (out / "dir").symlink_to(outside)
    (out / "file").symlink_to(outside / "target")
    (out / "inner").mkdir()
    (out / "inner/x").symlink_to("../../outside")
    told = cli("get", "-r", "b", str(out), exits=12)
    assert {problem["what"] for problem in told["problems"]} == {"b/dir/file", "b/inner/x/y"}
    assert _files(outside) == {"target": b"kept"}
    assert (out / "file").read_bytes() == b"file"
    assert not (out / "file").is_symlink()


def test_get_replaces_no_folder(cli: Cli, tmp_path: Path, bench: Bench, system: System) -> None:
    _put(bench, system, ["a", "z"])
    (tmp_path / "out/a/inside").mkdir(parents=True)
    told = cli("get", "-r", "b", str(tmp_path / "out"), exits=12)
    assert told["problems"] == [{"what": "b/a", "reason": "not written: a folder is in its place"}]
    assert (tmp_path / "out/a/inside").is_dir()
    assert _names(tmp_path / "out") == ["a", "z"], "no unfinished file is left"


@pytest.mark.landing("store")
def test_a_damaged_object_does_not_stop_the_others(cli: Cli, tmp_path: Path, bench: Bench, system: System) -> None:
    _put(bench, system, ["a", "b", "c"])
    landing_id = system.client.store().head(ObjectKey("b", "b")).landing_id
    assert landing_id is not None
    (path,) = (bench.folder / "store/landing").glob(f"*/{landing_id.hex()}")
    path.write_bytes(b"?")
    told = cli("get", "-r", "b", str(tmp_path / "out"), exits=6)
    assert (told["objects"], told["not_written"]) == (2, 1)
    assert _names(tmp_path / "out") == ["a", "c"]


def test_get_ends_early_where_nothing_can_be_written(cli: Cli, tmp_path: Path, bench: Bench, system: System) -> None:
    """The disk has 64 KiB."""
    (out := tmp_path / "out").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(out)], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted; run as root")
    try:
        for index in range(9):
            bench.put(system, f"{index}", bench.data(CHUNK))
        told = cli("get", "-r", "b", str(out), exits=2)
        assert (told["objects"], told["complete"]) == (4, False)
        assert _names(out) == ["0", "1", "2", "3"]
    finally:
        subprocess.run(["umount", "--lazy", str(out)], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_get_can_be_ended_and_continued(bench: Bench, system: System, tmp_path: Path, number: signal.Signals) -> None:
    """Each file that exists is whole."""
    objects = {f"{index % 7}/{index:03}": bench.data(2000) for index in range(400)}
    system.client.store().put_many([(ObjectKey("b", name), data) for name, data in objects.items()])
    out = tmp_path / "out"
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "get", "-r", "b", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + WAIT_S_MAX
    while len(list(out.glob("*/???"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    process.communicate(timeout=WAIT_S_MAX)
    assert process.returncode == -number
    found = {name: data for name, data in _files(out).items() if not name.endswith(".part")}
    assert found.items() <= objects.items()
    assert number is signal.SIGKILL or not list(out.rglob("*.part"))
    done = bench.run("get", "-r", "b", str(out), "--skip-existing", "--json")
    told = json.loads(done.stdout)
    assert (told["unchanged"], told["objects"]) == (len(found), len(objects) - len(found))
    assert _files(out).items() >= objects.items()


def test_an_interrupt_right_behind_an_open_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is where Python raises KeyboardInterrupt for a signal that came during the call."""
    really_open = os.open

    def interrupted(path: str, *arguments: int, dir_fd: int | None = None) -> int:
        os.close(really_open(path, *arguments, dir_fd=dir_fd))
        if path.endswith(".part"):
            raise KeyboardInterrupt
        return really_open(path, *arguments, dir_fd=dir_fd)

    with TargetFolder(tmp_path) as target:
        monkeypatch.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            target.write_file("a/b", [b"data"])
        monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


# --- rm -r ----------------------------------------------------------------------------------------
def test_rm_deletes_below_a_prefix_only(cli: Cli, bench: Bench, system: System) -> None:
    below = [f"2026/{index}" for index in range(5)] + ["2026//x", "2026/a\nb"]
    beside = ["2026", "2026x", "2026-", "2025/a", "/2026/a"]
    _put(bench, system, [*below, *beside])
    assert "--yes" in cli("rm", "-r", "b/2026", exits=2)["message"], "nobody can be asked here"
    told = cli("rm", "-r", "b/2026", "--yes")
    assert told == {
        "objects": len(below),
        "bytes": sum(len(name) for name in below),
        "not_deleted": 0,
        "problems": [],
        "complete": True,
    }
    assert {row.key.name for row in system.client.store().list_objects("b", "", "", 99)} == set(beside)
    assert cli("rm", "-r", "b/2026", "--yes", exits=4)["error"] == "NotFound"
    assert cli("rm", "-r", "b//", "--yes")["objects"] == 1, "what begins with a slash, not the whole bucket"
    assert cli("rm", "-r", "b", "--yes")["objects"] == 4
    assert "one" in cli("rm", "-r", "b", "c", "--yes", exits=2)["message"]


def test_rm_deletes_more_than_a_batch(cli: Cli, bench: Bench, system: System) -> None:
    system.client.store().put_many([(ObjectKey("b", f"p/{index}"), b"") for index in range(2500)])
    _put(bench, system, ["q"])
    assert cli("rm", "-r", "b/p/", "--yes")["objects"] == 2500
    assert [row.key.name for row in system.client.store().list_objects("b", "", "", 99)] == ["q"]


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 2), (b"\n", 2), (b"\x04", 2), (b"\x03", 130)])
def test_rm_asks_on_a_terminal(bench: Bench, system: System, answer: bytes, code: int) -> None:
    _put(bench, system, ["p/1", "p/2", "q"])
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "rm", "-r", "b/p"]
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += terminal.read(1000)
        terminal.write(answer)
        assert process.wait(timeout=WAIT_S_MAX) == code
    assert b"2 objects (6 B) below b/p/" in said
    assert len(system.client.store().list_objects("b", "", "", 9)) == (1 if code == 0 else 3)


# --- ls -------------------------------------------------------------------------------------------
def test_ls_sums_up(cli: Cli, bench: Bench, system: System) -> None:
    _put(bench, system, ["a/1", "a/22", "b"])
    told = cli("ls", "b/a", "--summarize")
    assert (told["total_objects"], told["total_bytes"], len(told["objects"])) == (2, 7, 2)
    told = cli("ls", "b", "--summarize", "--limit", "1")
    assert (told["total_objects"], told["total_bytes"], told["next_after"]) == (3, 8, "a/1")
    assert [row["name"] for row in told["objects"]] == ["a/1"]
    assert cli.run("ls", "b", "--summarize")[0].splitlines()[-1] == "total: 3 objects, 8 bytes (8 B)"
    assert "total_objects" not in cli("ls", "b")
    assert "BUCKET" in cli("ls", "--summarize", exits=2)["message"]


def test_ls_shows_sizes_where_asked(cli: Cli, bench: Bench, system: System) -> None:
    _put(bench, system, ["a/1", "a/22"])
    assert cli("ls", "b")["objects"] == [{"bucket": "b", "name": "a/1"}, {"bucket": "b", "name": "a/22"}]
    assert cli.run("ls", "b")[0] == "b/a/1\nb/a/22\n"
    assert [(row["name"], row["size"]) for row in cli("ls", "b", "-l")["objects"]] == [("a/1", 3), ("a/22", 4)]
    out, err = cli.run("ls", "b", "--long", "--limit", "1")
    assert out == "           3  landed  b/a/1\n"
    assert "ls -l --after=a/1 --limit=1 b" in err
    assert "BUCKET" in cli("ls", "-l", exits=2)["message"]


def test_ls_looks_up_rows_only_where_they_are_shown(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(bench, system, ["a"])
    reads = []
    list_objects = Store.list_objects

    def counted(*asked: Any) -> Any:
        reads.append(asked)
        return list_objects(*asked)

    monkeypatch.setattr(Store, "list_objects", counted)
    assert run(["--config", str(bench.config), "ls", "b"]) == 0
    assert reads == []
    assert run(["--config", str(bench.config), "ls", "b", "-l"]) == 0
    assert len(reads) == 1


@pytest.mark.parametrize("limit", [1, 999, 1000, 1001, 2000, 2001, 5000])
def test_ls_across_pages(cli: Cli, system: System, limit: int) -> None:
    names = [f"{index:04}" for index in range(2001)]
    system.client.store().put_many([(ObjectKey("b", name), b"") for name in names])
    for more in ((), ("-l",), ("--summarize",)):
        told = cli("ls", "b", "--limit", str(limit), *more)
        assert [row["name"] for row in told["objects"]] == names[:limit]
        assert told["next_after"] == (names[limit - 1] if limit < 2001 else None)
    out, err = cli.run("ls", "b", "--limit", str(limit))
    assert [line.split("/")[-1] for line in out.splitlines()] == names[:limit]
    assert ("there are more" in err) is (limit < 2001)


def test_ls_of_a_bucket_without_objects(cli: Cli, bench: Bench, system: System) -> None:
    _put(bench, system, ["a"])
    assert cli("ls", "nobucket", exits=4) == {
        "error": "NotFound",
        "message": "bucket nobucket has no objects",
        "exit_code": 4,
    }
    assert cli("ls", "nobucket/p", exits=4)["error"] == "NotFound"
    assert cli("ls", "b/none")["objects"] == []
    assert cli("ls", "b", "--after", "z")["objects"] == []


def test_options_that_do_not_go_together(cli: Cli, tmp_path: Path) -> None:
    for wrong in (
        ("get", "-r", "b"),
        ("get", "-r", "b", "out", "-o", "file"),
        ("get", "-r", "b", "out", "--range", "0-1"),
        ("get", "b/a", "out"),
        ("get", "b/a", "--skip-existing"),
    ):
        assert "-r" in cli(*wrong, exits=2)["message"]


def test_the_bytes_that_come_back_are_those_that_were_put(cli: Cli, tree: Path, tmp_path: Path) -> None:
    """`ls` shows their `md5`, by which --skip-existing decides."""
    cli("put", "-r", "docs", str(tree))
    md5 = {row["name"]: row["md5"] for row in cli("ls", "docs", "-l")["objects"]}
    assert md5 == {name: hashlib.md5(data).hexdigest() for name, data in _files(tree).items()}
