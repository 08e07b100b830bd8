"""The command line as a user meets it: output, errors that say what to do, exit codes (docs/CLI.md)."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nos_ec.cli.app import run
from nos_ec.cli.operator import status
from nos_ec.cli.operator.status import status_data
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.demo.losses import _shards_to_lose
from nos_ec.demo.s3 import Access, s3_gateway
from nos_ec.engine.figures import store_totals
from nos_ec.engine.objects.store import Store
from nos_ec.ports.metadata import Totals
from nos_ec.settings import without_settings
from tests.rig.at_rest import end_log
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

HALTING = Path(__file__).with_name("halting.py")


class Cli:
    """Runs commands in this process."""

    def __init__(self, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
        self._bench = bench
        self._capfd = capfd

    def __call__(self, *arguments: str, exits: int = 0) -> Any:
        """Run with --json; returns what it printed, or the error it reported."""
        self._capfd.readouterr()
        code = run(["--config", str(self._bench.config), *arguments, "--json"])
        out, err = self._capfd.readouterr()
        assert code == exits, f"exit {code}: {out} {err}"
        return json.loads((err if exits else out).splitlines()[-1])

    def text(self, *arguments: str) -> str:
        """Run without --json; returns stdout."""
        self._capfd.readouterr()
        assert run(["--config", str(self._bench.config), *arguments]) == 0
        return self._capfd.readouterr().out


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.fixture
def file(tmp_path: Path, bench: Bench) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(bench.data(3 * CHUNK))
    return path


def test_the_whole_life_of_an_object(cli: Cli, file: Path, tmp_path: Path) -> None:
    put = cli("put", "photos/2026/a.jpg", str(file))
    assert (put["bucket"], put["name"], put["size"], put["state"]) == ("photos", "2026/a.jpg", 3 * CHUNK, "landed")
    assert "landing" in cli("stat", "photos/2026/a.jpg")["location"]
    assert cli("producer", "--once") == {"published": 1, "slots_of_others": 0}
    assert cli("consumer", "--once")["packed"] == 1
    stat = cli("stat", "photos/2026/a.jpg")
    assert stat["state"] == "packed"
    assert stat["location"]["chunks"] == 3
    assert cli("ls")["buckets"] == ["photos"]
    assert [o["name"] for o in cli("ls", "photos/2026")["objects"]] == ["2026/a.jpg"]
    copy = tmp_path / "copy.jpg"
    assert cli("get", "photos/2026/a.jpg", "-o", str(copy))["bytes_written"] == 3 * CHUNK
    assert copy.read_bytes() == file.read_bytes()
    cli("get", "photos/2026/a.jpg", "-o", str(copy), "--range", "10-19")
    assert copy.read_bytes() == file.read_bytes()[10:20]
    cli("get", "photos/2026/a.jpg", "-o", str(copy), "--range", "-5")
    assert copy.read_bytes() == file.read_bytes()[-5:]
    status = cli("status")
    assert status["packed_objects"] == 1
    assert 0 < status["utilisation"] < 1
    assert cli("rm", "photos/2026/a.jpg") == {"deleted": ["photos/2026/a.jpg"], "missing": [], "trash_days": 0}
    assert cli("gc", "plan")["blocks"][0]["hole_ratio"] == 1.0
    assert cli("gc", "run")["blocks"], "without --apply a run is only a plan"
    assert cli("gc", "run", "--apply")["blocks_deleted"] == 1
    assert cli("status")["stripes"] == 0


def test_status_counts_this_store_whatever_else_its_pool_holds(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put_some(system, 100)
    bench.put(system, "large", bench.data(20 * STRIPE))
    bench.pack(system)
    monkeypatch.setattr(type(system.blocks), "raw_bytes", lambda _store: 10**15)
    shown, _ = status_data(system, exact=False)
    assert (shown["packed_objects"], shown["large_objects"], shown["large_bytes"]) == (100, 1, 20 * STRIPE)
    assert shown["live_bytes"] == sum(map(len, bench.acknowledged.values()))
    geometry = system.geometry
    assert shown["raw_bytes"] == shown["stripes"] * (geometry.k + geometry.m) * geometry.chunk_size
    assert shown["raw_bytes_per_user_byte"] == round(shown["raw_bytes"] / shown["live_bytes"], 6)
    assert shown["stored_raw_bytes"] == 10**15, "the pool's figure is shown as well"


def test_status_shows_where_a_quota_on_the_landing_store_refuses_puts(
    bench: Bench, system: System, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(system.landing), "free_bytes", lambda _store: 5 << 20)
    monkeypatch.setattr(type(system.blocks), "free_bytes", lambda _store: 7 << 30)
    shown, _ = status_data(system, exact=False)
    assert (shown["free_bytes"], shown["landing_free_bytes"]) == (7 << 30, 5 << 20)
    assert "7.0 GiB in the block store, 5.0 MiB in the landing store" in " ".join(cli.text("status").split())


def test_status_says_how_old_the_sums_of_a_large_store_are(
    bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_totals, "CHEAP_ROWS_MAX", 0)
    with bench.open() as system:
        bench.put(system, "a", b"x")
        before_ms = system.clock.now_ms()
        system.operator.store_totals().keep()
        bench.put(system, "b", b"x")
    assert cli("status")["landed_objects"] == 1
    assert before_ms <= cli("status")["computed_at_ms"] <= before_ms + 60_000
    assert cli("status", "--exact")["landed_objects"] == 2
    assert cli("status", "--exact")["computed_at_ms"] > cli("status")["computed_at_ms"]
    assert "--exact" not in cli.text("status", "--exact")
    monkeypatch.setattr(status, "SHOWN_AGE_MS", 0)
    assert "s ago; --exact computes them now" in cli.text("status")


def test_rm_deletes_existing_objects_and_names_the_others(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        for name in ("a", "b", "c"):
            bench.put(system, name, b"x")
    found = cli("rm", "b/c", "b/none", "b/a", "b/c", exits=4)
    assert found["message"] == "no such object: b/none"
    assert [o["name"] for o in cli("ls", "b")["objects"]] == ["b"]


def test_output_is_text_unless_json_is_asked_for(cli: Cli, file: Path) -> None:
    assert "photos/a" in cli.text("put", "photos/a", str(file))
    assert "photos" in cli.text("ls")
    assert "photos/a" in cli.text("ls", "photos")
    assert "utilisation" in cli.text("status")
    assert "0 blocks" in cli.text("gc", "plan")
    assert "add --apply" in cli.text("gc", "run")
    assert "the configuration is fine" in cli.text("config", "check")
    assert "consumer.window_objects" in cli.text("config", "show")


def test_recursive_put(cli: Cli, tmp_path: Path, bench: Bench, system: System) -> None:
    tree = tmp_path / "tree"
    sizes = {"a": 0, "b/c": 10, "b/d": CHUNK, "e/f/g": 5 * STRIPE}
    for name, size in sizes.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(bench.data(size))
    (tree / "link").symlink_to("a")
    told = cli("put", "-r", "docs/in", str(tree))
    assert (told["objects"], told["bytes"]) == (4, sum(sizes.values()))
    assert {o["name"]: o["size"] for o in cli("ls", "-l", "docs")["objects"]} == {
        f"in/{k}": v for k, v in sizes.items()
    }
    for row in system.client.store().list_objects("docs", "", "", 10):
        assert system.client.store().get(row.key) == (tree / row.key.name.removeprefix("in/")).read_bytes()


COMMANDS = [
    (),
    ("dead-letters",),
    *(
        (name,)
        for name in (
            "init",
            "put",
            "get",
            "rm",
            "ls",
            "stat",
            "producer",
            "consumer",
            "status",
            "simulate",
            "capacity",
            "demo",
        )
    ),
    *(("gc", name) for name in ("plan", "run")),
    *(("simulate", name) for name in ("packing", "gc")),
    *(("config", name) for name in ("check", "show")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "-h"):
        assert run([*command, option]) == 0
        text = capfd.readouterr().out
        assert "Usage:" in text
        assert not command or "--json" in text


def test_names_with_control_characters_are_escaped_for_people(cli: Cli, bench: Bench, system: System) -> None:
    bench.put(system, "red\x1b[31m\nx", b"x")
    assert "red\\x1b[31m\\nx" in cli.text("ls", "b")
    assert cli("ls", "b")["objects"][0]["name"] == "red\x1b[31m\nx"


def test_listing_pages(cli: Cli, bench: Bench, system: System) -> None:
    for index in range(5):
        bench.put(system, f"{index}", b"x")
    page = cli("ls", "b", "--limit", "2")
    assert ([o["name"] for o in page["objects"]], page["next_after"]) == (["0", "1"], "1")
    assert cli("ls", "b", "--after", "b/1") == cli("ls", "b", "--after", "1"), "as listed, or the name alone"
    assert cli("ls", "b", "--limit", "5")["next_after"] is None, "a full page that is the last one"
    assert cli("ls") == {"buckets": ["b"], "next_after": None}
    rest = cli("ls", "b", "--after", "1")
    assert ([o["name"] for o in rest["objects"]], rest["next_after"]) == (["2", "3", "4"], None)


def test_listing_folders(cli: Cli, bench: Bench, system: System) -> None:
    for name in ("2026/01/a", "2026/01/b", "2026/02/a", "2026/plain", "2027/x"):
        bench.put(system, name, b"x")
    page = cli("ls", "b/2026/", "--delimiter", "/")
    assert page["folders"] == [{"bucket": "b", "name": "2026/01/"}, {"bucket": "b", "name": "2026/02/"}]
    assert page["objects"] == [{"bucket": "b", "name": "2026/plain"}]
    assert page["next_after"] is None
    assert cli.text("ls", "b/2026/", "--delimiter", "/", "--limit", "2") == "b/2026/01/\nb/2026/02/\n"
    rest = cli("ls", "b/2026/", "--delimiter", "/", "--after", "2026/01/", "-l")
    assert [[o["name"] for o in rest[kind]] for kind in ("folders", "objects")] == [["2026/02/"], ["2026/plain"]]
    assert [line.split()[:2] for line in cli.text("ls", "b", "-l", "--delimiter", "/").splitlines()] == [
        ["folder", "b/2026/"],
        ["folder", "b/2027/"],
    ]
    cli("ls", "--delimiter", "/", exits=2)
    cli("ls", "b", "--delimiter", "/", "--summarize", exits=2)
    cli("ls", "c", "--delimiter", "/", exits=4)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bucket", "BUCKET/NAME"),
        ("bucket/", "empty"),
        ("/name", "bucket is empty"),
        ("b/" + "x" * 1025, "1025 bytes"),
        ("b/" + "ä" * 513, "1026 bytes"),
        ("b/a\0b", "NUL"),
        ("b/../etc/passwd", "'..'"),
        ("b/a/./b", "'.'"),
        ("../name", "bucket '..'"),
        ("b/\udcff", "UTF-8"),
        ("x" * 256 + "/a", "256 bytes"),
    ],
)
def test_bad_names_are_refused(cli: Cli, file: Path, name: str, says: str, system: System) -> None:
    """The command line refuses them with a sentence that says what is wrong, and stores nothing."""
    for arguments in (("put", name, str(file)), ("get", name, "-o", "x"), ("rm", name), ("stat", name)):
        error = cli(*arguments, exits=2)
        assert error["error"] == "InvalidInput"
        assert says in error["message"]
    assert list(system.landing.list_ids()) == []


def test_unusual_names_are_accepted(bench: Bench, system: System) -> None:
    for name in (
        "ä" * 512,
        "a//b",
        "/lead",
        "trail/",
        "..a",
        "a..",
        "...",
        " ",
        "%",
        "_",
        "'\";--",
        "\U0001f600",
        "a\nb",
    ):
        bench.put(system, name, name.encode())
    bench.pack(system)
    bench.assert_readable(system)
    assert [row.key.name for row in system.client.store().list_objects("b", "%", "", 10)] == ["%"]
    assert [row.key.name for row in system.client.store().list_objects("b", "_", "", 10)] == ["_"]


def test_errors_say_what_to_do(cli: Cli, tmp_path: Path, file: Path) -> None:
    error = cli("get", "b/no", "-o", "x", exits=4)
    assert "not exist" in error["message"]
    assert (error["bucket"], error["name"]) == ("b", "no")
    error = cli("rm", "b/no", exits=4)
    assert error == {"error": "NotFound", "message": error["message"], "exit_code": 4}
    assert str(tmp_path / "none") in cli("put", "b/a", str(tmp_path / "none"), exits=2)["message"]
    assert "not a folder" in cli("put", "-r", "b", str(file), exits=2)["message"]
    assert "use -r" in cli("put", "b/a", str(tmp_path), exits=2)["message"]
    assert "--output" in cli("get", "b/a", exits=2)["message"]
    cli("put", "b/a", str(file))
    assert "FIRST-LAST" in cli("get", "b/a", "-o", str(tmp_path / "x"), "--range", "a-b", exits=2)["message"]
    endless = f"0-{'9' * 5000}"
    assert "FIRST-LAST" in cli("get", "b/a", "-o", str(tmp_path / "x"), "--range", endless, exits=2)["message"]
    assert "before FIRST" in cli("get", "b/a", "-o", str(tmp_path / "x"), "--range", "5-4", exits=2)["message"]
    past = cli("get", "b/a", "-o", str(tmp_path / "x"), "--range", f"{10 * CHUNK}-", exits=2)
    assert "within" in past["message"]
    assert not (tmp_path / "x").exists()
    assert cli("simulate", exits=2)["error"] == "InvalidInput"
    assert "W1" in cli("simulate", "--workload", "W9", exits=2)["message"]


def test_a_demo_of_empty_files_only(tmp_path: Path, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "empty"
    source.mkdir()
    (source / "a").touch()
    assert run(["--config", str(bench.config), "demo", "--source", str(source), "--root", str(tmp_path / "d")]) == 0
    assert "1 object," in capfd.readouterr().out


def test_a_range_past_the_end_is_refused(cli: Cli, bench: Bench, system: System, tmp_path: Path) -> None:
    bench.put(system, "six", b"abcdef")
    for wrong in ("6-9", "-0", "7-"):
        assert "6 bytes" in cli("get", "b/six", "-o", str(tmp_path / "x"), "--range", wrong, exits=2)["message"]
    cli("get", "b/six", "-o", str(tmp_path / "x"), "--range", "4-9")
    assert (tmp_path / "x").read_bytes() == b"ef"


def test_a_corrupt_object_is_named(cli: Cli, bench: Bench, system: System, tmp_path: Path) -> None:
    bench.put(system, "it", bench.data(3 * CHUNK))
    bench.pack(system)
    for shard in range(4):
        (bench.folder / "store" / "blocks" / f"shard-{shard:02}").rename(bench.folder / f"gone-{shard}")
    message = cli("get", "b/it", "-o", str(tmp_path / "x"), exits=7)["message"]
    assert "shard" in message
    for shard in range(4):
        (bench.folder / f"gone-{shard}").rename(bench.folder / "store" / "blocks" / f"shard-{shard:02}")
    for path in (bench.folder / "store" / "blocks").rglob("*"):
        if path.is_file() and path.stat().st_size > CHUNK:
            path.write_bytes(bytes(path.stat().st_size))
    error = cli("get", "b/it", "-o", str(tmp_path / "x"), exits=6)
    assert "b/it" in error["message"]
    assert (error["name"], error["block"]) == ("it", cli("stat", "b/it")["location"]["block"])


def test_usage_errors_exit_2(bench: Bench) -> None:
    assert run(["no-such-command"]) == 2
    assert run(["ls", "--limit", "0"]) == 2


def test_an_uninitialised_store(cli: Cli, bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace('"store"', '"elsewhere"'))
    error = cli("status", exits=3)
    assert "nos-ec init" in error["message"]
    cli("init")
    assert cli("status")["stripes"] == 0
    cli("init")


def test_a_different_geometry_is_refused(cli: Cli, bench: Bench, system: System) -> None:
    bench.put_some(system, 10)
    text = bench.config.read_text()
    for wrong in ("chunk_size = 32768", "chunk_size = 16384\nk = 4"):
        bench.config.write_text(text.replace("chunk_size = 16384", wrong))
        for command in (("init",), ("status",), ("consumer", "--once")):
            assert "geometry" in cli(*command, exits=3)["message"].lower()
    bench.config.write_text(text)
    bench.assert_readable(system)


def test_every_wrong_key_and_value_is_named(cli: Cli, bench: Bench) -> None:
    bench.config.write_text("[consumer]\nwindw_objects = 5\nlanes = 0\n[geometri]\nk = 8\n")
    error = cli("status", exits=3)
    message = error["message"]
    assert error["settings"] == ["consumer.lanes"]
    for place in ("windw_objects", "window_objects", "consumer.lanes", "geometri", "geometry"):
        assert place in message


def test_config_check_lists_problems(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.config.write_text("[consumer]\nlanes = 0\n[nope]\n")
    assert run(["--config", str(bench.config), "config", "check", "--json"]) == 3
    told = capfd.readouterr()
    problems = json.loads(told.out)["problems"]
    assert "2 problems in the configuration" in told.err
    assert len(problems) == 2


def test_simulate(cli: Cli, tmp_path: Path) -> None:
    result = cli("simulate", "--workload", "W2", "--objects", "5000", "--window", "100")
    for figure in (
        "utilisation",
        "bound",
        "single_chunk_ratio",
        "max_wait_windows",
        "objects_per_s",
        "header_overhead",
    ):
        assert result[figure] > 0
    assert result["utilisation"] <= result["bound"] <= 1
    path = tmp_path / "sizes"
    path.write_text("100\n4000\n\n700\n" * 300)
    assert cli("simulate", "--sizes", str(path), "--policy", "nos")["policy"] == "nos"
    named = cli("simulate", "packing", "--sizes", str(path), "--policy", "nos")
    assert named["utilisation"] == cli("simulate", "--sizes", str(path), "--policy", "nos")["utilisation"]
    for before in (("--workload", "W1"), ("--seed", "1")):
        refused = cli("simulate", *before, "gc", exits=2)
        assert "after it" in refused["message"]
    path.write_text("100\nx\n")
    assert "line 2" in cli("simulate", "--sizes", str(path), exits=2)["message"]


def test_simulate_gc_with_sizes_and_with_the_packer_of_the_store(cli: Cli, bench: Bench) -> None:
    arguments = ["simulate", "gc", "--workload", "B", "--blocks", "20", "--days", "200", "--sizes", "W2"]
    plain, packed = cli(*arguments), cli(*arguments, "--packer")
    assert plain["packer"] is None
    assert packed["packer"] == {"policy": "best", "window": 50, "split_bytes": 0, "lanes": 1}, "as configured"
    for found in (plain, packed):
        assert (found["sizes"], found["block_objects"]) == ("W2", None)
        with bench.open() as system:
            assert found["block_bytes"] == system.geometry.block_size
        assert found["space_amplification"] <= 1.2
        assert found["write_amplification"] > 1
    assert plain["space_amplification_with_padding"] is None
    assert 1.005 < packed["space_amplification_with_padding"] / packed["space_amplification"] < 1.5
    per_byte = packed["raw_bytes_per_live_byte"] / packed["space_amplification_with_padding"]
    assert per_byte == pytest.approx(plain["raw_bytes_per_live_byte"] / plain["space_amplification"], rel=1e-4)
    alike = cli(*arguments[:-1], "5KiB", "--packer")
    assert alike["sizes"] == 5120
    assert "--sizes W1" in cli("simulate", "gc", "--packer", exits=2)["message"]
    assert (
        "--sort-window does nothing with --packer"
        in cli(*arguments, "--packer", "--sort-window", "4", exits=2)["message"]
    )
    assert "--block-objects does nothing" in cli(*arguments, "--block-objects", "4", exits=2)["message"]
    assert "W1, W2" in cli("simulate", "gc", "--sizes", "W9", exits=2)["message"]


@pytest.mark.usefixtures("whole_chunks")
def test_demo(cli: Cli, tmp_path: Path, bench: Bench) -> None:
    """The whole demo on a folder of this test, small stripes and all; no byte may differ."""
    source = tmp_path / "source"
    for index in range(300):
        path = source / f"d{index % 4}" / f"f{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bench.data(bench.rng.randint(0, 2 * CHUNK)))
    (source / "top").write_bytes(bench.data(6 * STRIPE))
    (source / os.fsdecode(b"bad\xff")).write_bytes(b"x")
    root = tmp_path / "demo"
    report = cli("demo", "--source", str(source), "--root", str(root))
    assert report["objects"] == 301
    assert report["skipped_files"] == 1
    assert report["verify"]["mismatches"] == 0
    assert report["small_get"]["shard_reads_mean"] == 1.0
    assert report["utilisation"] <= report["bound"]
    assert report["single_chunk_ratio"] == 1.0
    assert report["gc"]["header_bytes_read"] <= report["gc"]["block_bytes_examined"] / 30
    assert report["gc"]["bytes_reclaimed"] > 0
    assert report["lost_shards"]["degraded_reads"] > 0
    assert set(report["lost_shards"]["shards"]) <= set(range(8)), "data shards"
    assert report["verify"]["unanswered"] == 0
    assert not root.exists()
    assert "not empty" in cli("demo", "--source", str(source), "--root", str(source), exits=2)["message"]
    assert "not a folder" in cli("demo", "--source", str(tmp_path / "none"), exits=2)["message"]


def test_a_demo_shows_no_warning_and_its_gc_collects_every_block(
    tmp_path: Path, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    """This holds even if more lands than the configured landing log holds, and some blocks have more survivors than
    others."""
    source, root = tmp_path / "source", tmp_path / "demo"
    for index in range(1500):
        path = source / f"d{index % 4}" / f"f{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bench.data(CHUNK if index % 2 else 2 * CHUNK))
    options = ["--delete-share", "0.65", "--json"]
    capfd.readouterr()
    assert run(["--config", str(bench.config), "demo", "--source", str(source), "--root", str(root), *options]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    report = json.loads(said.out)
    assert report["bytes"] > 2 * bench.settings().landing.device_bytes
    assert report["gc"]["utilisation_after"] > 0.9 * report["utilisation"]
    assert report["gc"]["stripes_after"] < 0.4 * report["gc"]["stripes_before"]


def test_demo_through_s3(tmp_path: Path, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """The demo uses botocore. Afterwards, the commands work with the environment that it prints."""
    source, root = tmp_path / "source", tmp_path / "demo"
    for index in range(60):
        path = source / f"Folder {index % 3}" / f"f{index} ä"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bench.data(bench.rng.randint(0, 2 * CHUNK)))
    (source / "top").write_bytes(bench.data(6 * STRIPE))
    arguments = ["demo", "--source", str(source), "--root", str(root), "--s3", "--keep", "--json"]
    assert run(["--config", str(bench.config), *arguments, "--delete-share", "0.5"]) == 0
    said = capfd.readouterr()
    report = json.loads(said.out)
    assert report["s3"] == {"puts": 61, "gets": 61}
    assert (report["verify"]["mismatches"], report["verify"]["changed"]) == (0, 0)
    assert report["verify"]["reads"] > 2 * 61
    assert stat.S_IMODE((root / "s3-master-key").stat().st_mode) == 0o600
    told = dict(re.findall(r"export (\w+)=(\S+)", said.err))
    assert told["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9488"
    access = Access(told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"])
    with s3_gateway(root / "nos-ec.toml", access) as objects:
        listed = objects._client.list_objects_v2(Bucket="demo")["Contents"]
    assert 0 < len(listed) == 61 - report["deleted_objects"]


def test_a_demo_through_s3_says_how_to_get_its_client(
    tmp_path: Path, bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nos_ec.demo.s3.find_spec", lambda _: None)
    refused = cli("demo", "--source", str(tmp_path), "--root", str(tmp_path / "d"), "--s3", exits=3)
    assert "-m pip install 'botocore>=1.43'" in refused["message"]
    assert not (tmp_path / "d").exists()


def test_a_demo_waits_no_longer_for_a_gateway_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = "import sys, time; print('it hangs', file=sys.stderr, flush=True); time.sleep(3600)"
    monkeypatch.setattr("nos_ec.demo.s3._command", lambda _: [sys.executable, "-c", hangs])
    monkeypatch.setattr("nos_ec.demo.s3.START_S_MAX", 2)
    with pytest.raises(Transient, match="did not start"), s3_gateway(tmp_path / "nos-ec.toml", Access("key", "secret")):
        pytest.fail("it has not started")


@pytest.mark.parametrize(("k", "m", "coding"), [(4, 2, 0), (8, 3, 0), (2, 3, 1), (1, 2, 1)])
def test_the_demo_loses_data_shards(k: int, m: int, coding: int) -> None:
    """Reads need no coding shards as long as all data shards are there."""
    for seed in range(20):
        lost = _shards_to_lose(k, m, random.Random(seed))
        assert len(set(lost)) == m
        assert len([shard for shard in lost if shard >= k]) == coding
        assert max(lost) < k + m


def test_a_demo_distinguishes_unanswered_reads_from_mismatches(
    tmp_path: Path, bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for index in range(20):
        (source / f"f{index}").write_bytes(bench.data(2000))
    opened, reads = Store.open, itertools.count()

    def time_out(store: Store, key: ObjectKey) -> Any:
        if next(reads) == 5:
            raise Transient("no answer for 3 s")
        return opened(store, key)

    monkeypatch.setattr(Store, "open", time_out)
    arguments = ["demo", "--source", str(source), "--root", str(tmp_path / "demo"), "--json"]
    assert run(["--config", str(bench.config), *arguments]) == 7
    said = capfd.readouterr()
    verify = json.loads(said.out)["verify"]
    assert (verify["mismatches"], verify["unanswered"]) == (0, 1)
    assert "1 read failed" in said.err
    assert "no answer for 3 s" in said.err


def test_unreadable_shards(cli: Cli, bench: Bench, system: System) -> None:
    """Reads survive the loss of m shards, and name the bytes that are lost with one more."""
    bench.put_some(system, 60)
    bench.pack(system)
    blocks = bench.folder / "store" / "blocks"
    for shard in (0, 4, 9):
        (blocks / f"shard-{shard:02}").rename(blocks / f"gone-{shard:02}")
    with bench.open() as reopened:
        for key, data in bench.acknowledged.items():
            assert reopened.client.store().get(key) == data
        (blocks / "shard-05").rename(blocks / "gone-05")
        lost = [key for key in bench.acknowledged if _is_lost(reopened, key)]
        assert 0 < len(lost) < len(bench.acknowledged)
        (blocks / "gone-05").rename(blocks / "shard-05")
        for key, data in bench.acknowledged.items():
            assert reopened.client.store().get(key) == data


def test_split_objects_survive_the_loss_of_any_shards(bench: Bench, system: System) -> None:
    """If an object lies in two chunks, either or both of them may have to be decoded."""
    for number in range(60):
        bench.put(system, f"thumbnail-{number}", bench.data(CHUNK * 9 // 16))
    bench.pack(system)
    geometry, rows = system.blocks.geometry, system.client.store().list_objects("b", "", "", 100)
    split = [row for row in rows if row.extent and geometry.chunks_touched(row.extent.offset, row.extent.length) == 2]
    assert len(split) > 20
    blocks = bench.folder / "store" / "blocks"
    shards = geometry.k + geometry.m
    for first in range(shards):
        lost = [(first + step) % shards for step in range(geometry.m)]
        for shard in lost:
            (blocks / f"shard-{shard:02}").rename(blocks / f"gone-{shard:02}")
        with bench.open() as reopened:
            bench.assert_readable(reopened)
        for shard in lost:
            (blocks / f"gone-{shard:02}").rename(blocks / f"shard-{shard:02}")


def _is_lost(system: System, key: ObjectKey) -> bool:
    try:
        system.client.store().get(key)
    except Corrupt:
        return True
    return False


def test_writing_with_a_shard_folder_missing_loses_nothing(cli: Cli, bench: Bench, system: System) -> None:
    bench.put_some(system, 60)
    end_log(system)
    bench.produce(system)
    blocks = bench.folder / "store" / "blocks"
    (blocks / "shard-03").rename(blocks / "gone-03")
    error = cli("consumer", "--once", exits=7)
    assert "shard-03" in error["message"]
    bench.assert_readable(system)
    (blocks / "gone-03").rename(blocks / "shard-03")
    cli("consumer", "--once")
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_a_gc_run_names_the_process_that_is_already_running_one(cli: Cli, system: System) -> None:
    with system.contended_lease("gc"):
        message = cli("gc", "run", "--apply", exits=5)["message"]
    assert f"lease 'gc' is held by process {os.getpid()} on " in message
    assert "let the holder finish, or stop it" in message
    cli("gc", "run", "--apply")


@pytest.mark.parametrize("service", ["producer", "consumer", "gc"])
def test_sigterm_stops_a_daemon_and_loses_nothing(bench: Bench, system: System, service: str) -> None:
    """Graceful stop: exit 0, no lease and no open block are left, and the next run continues the work."""
    bench.put_some(system, 300)
    end_log(system)
    if service != "producer":
        bench.produce(system)
    arguments = ["gc", "run", "--apply", "--loop"] if service == "gc" else [service]
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), *arguments]
    before = system.metadata.totals()
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        if service == "gc":
            assert daemon.stderr is not None
            lines = [daemon.stderr.readline() for _ in range(3)]  # the lock time starts, and a scrub ends
            assert any(b"collected" in line for line in lines), lines
        else:
            _wait_for_work(system, before)
        daemon.send_signal(signal.SIGTERM)
        _, err = daemon.communicate(timeout=WAIT_S_MAX)
    finally:
        daemon.kill()
        daemon.wait()
    assert daemon.returncode == 0, err.decode()
    assert system.metadata.totals().leases == 0
    assert system.metadata.fenced_blocks(10) == []
    bench.assert_balanced(system)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def _wait_for_work(system: System, before: Totals) -> None:
    """Wait (bounded) until the daemon works at full speed: something was published, or some of it packed."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        totals = system.metadata.totals()
        if (totals.queued_objects, totals.packed_objects) != (before.queued_objects, before.packed_objects):
            break
        time.sleep(0.02)


def _wait_until_halted(process: subprocess.Popen[bytes]) -> None:
    """However fast the daemon is, it cannot finish before it is stopped."""
    deadline = time.monotonic() + WAIT_S_MAX
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, "it ended before it came there"
        assert time.monotonic() < deadline, "it never came there"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_with_once_can_be_stopped_early(bench: Bench, system: System, number: signal.Signals) -> None:
    """Groups in flight are finished and the lease is released; the next run packs the rest."""
    bench.put_some(system, 1000, size_max=CHUNK // 4)
    end_log(system)
    bench.produce(system)
    command = [sys.executable, str(HALTING), "--config", str(bench.config), "consumer", "--once"]
    environment = without_settings(os.environ) | {"NOS_EC_KILL_AT": "writer.committed:2"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        _wait_until_halted(process)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=WAIT_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, (out, err)
    assert system.metadata.totals().leases == 0
    assert system.metadata.fenced_blocks(10) == []
    assert system.metadata.totals().queued_objects > 0, "it was ended in the middle"
    bench.assert_balanced(system)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_daemon_packs_what_arrives(bench: Bench, system: System) -> None:
    """Producer and consumer run as daemons while a client writes; the rest is packed by the deadline."""
    bench.config.write_text(
        bench.config.read_text().replace(
            "window_objects = 50", "window_objects = 50\nlinger_ms = 300\nlinger_max_ms = 300"
        )
    )
    commands = [
        [sys.executable, "-m", "nos_ec", "--config", str(bench.config), name] for name in ("producer", "consumer")
    ]
    daemons = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    try:
        for round_ in range(3):
            bench.put_some(system, 60, prefix=f"round-{round_}")
        deadline = time.monotonic() + WAIT_S_MAX
        while system.metadata.totals().packed_objects < 180 and time.monotonic() < deadline:
            time.sleep(0.1)
        states = {system.client.store().head(key).state for key in bench.acknowledged}
        assert states == {ObjectState.PACKED}
        bench.assert_readable(system)
    finally:
        for daemon in daemons:
            daemon.terminate()
        codes = [daemon.wait(timeout=WAIT_S_MAX) for daemon in daemons]
    assert codes == [0, 0]
    bench.settle(system)
    bench.assert_at_rest(system)
