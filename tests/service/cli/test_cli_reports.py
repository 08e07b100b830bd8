"""What the command line says about a store and its configuration: figures, plans, settings, checks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec import __version__
from nos_ec.api.access import Token
from nos_ec.cli.app import run
from nos_ec.cli.operator.status import _percent
from nos_ec.cli.terminal.output import time_text
from nos_ec.cli.terminal.watching import keeping_presence
from nos_ec.composition.wiring import System
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.engine.gc.run.note import read_run, write_run
from nos_ec.engine.texts import printable, size_text
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.settings import without_settings
from nos_ec.settings.masking import MASK
from nos_gc.assemble import gc_service
from tests.rig.waiting import until
from tests.service.cli.test_api import AUTHORISED, TOKEN, Api, app_of, device_content, fill, serve
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, Bench


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def test_a_plan_says_where_dead_bytes_wait(cli: Cli, bench: Bench, system: System) -> None:
    """After nearly everything was deleted, "0 blocks" alone looks like a defect."""
    bench.config.write_text(bench.config.read_text().replace("block_grace_ms = 0", "block_grace_ms = 600000"))
    with consumer_service(system) as consumer:
        for name in "abcdefgh":
            bench.put(system, name, bench.data(STRIPE // 2))
        bench.produce(system)
        consumer.drain(make_room=lambda: False)
        for name in "abcdefg":
            system.client.store().delete(ObjectKey("b", name))
        text = cli.text("gc", "plan")
        assert "0 blocks" in text
        (line,) = [line for line in text.splitlines() if line.startswith("not now: ")]
        assert line.startswith(f"not now: {size_text(7 * STRIPE // 2)} dead in ")
        assert "still open: sealed when full, or when the writer ends" in line
    system.client.store().delete(ObjectKey("b", "h"))
    assert cli("gc", "plan")["waiting"] == []
    condemned = cli("gc", "run", "--apply")["blocks_condemned"]
    assert condemned
    (waiting,) = cli("gc", "plan")["waiting"]
    assert (waiting["reason"], waiting["blocks"]) == ("condemned", condemned)
    assert waiting["dead_bytes"] == cli("status")["stripes"] * STRIPE
    assert f"deleted by a run after the grace period, the first from {time_text(waiting['until_ms'])}" in cli.text(
        "gc", "plan"
    )


def test_a_loop_without_apply_is_refused(cli: Cli) -> None:
    assert "needs --apply" in cli("gc", "run", "--loop", exits=2)["message"]
    assert cli("gc", "run", "--once")["blocks"] == []


def test_the_hole_ratio_is_the_same_everywhere(cli: Cli, bench: Bench, system: System) -> None:
    fill(bench, system)
    status = cli("status")
    with serve(app_of(system, Token(TOKEN)), **AUTHORISED) as client:
        api = Api(client)
        found = api("/v1/status")
        pages = api("/v1/blocks", limit=1000)["blocks"]
        metrics = dict(re.findall(r"^nos_ec_store_(\w+)_bytes ([0-9.e+]+)$", client.get("/metrics").text, re.MULTILINE))
    live, dead = float(metrics["live"]), float(metrics["dead"])
    assert 0 < dead < live
    hole_ratio = round(dead / (live + dead), 6)
    assert (status["hole_ratio"], found["hole_ratio"]) == (hole_ratio, hole_ratio)
    assert hole_ratio == round(
        sum(b["dead_bytes"] for b in pages) / sum(b["live_bytes"] + b["dead_bytes"] for b in pages), 6
    )
    for page in pages:
        row = system.metadata.block(BlockId(bytes.fromhex(page["block"])))
        assert page["hole_ratio"] == round(row.hole_ratio, 6)
    parts = ("utilisation", "dead_ratio", "overhead_ratio")
    assert sum(status[part] for part in parts) == pytest.approx(1, abs=1e-5)
    assert [status[part] for part in parts] == [found[part] for part in parts]
    text = cli.text("status")
    size = live + dead + status["overhead_bytes"]
    assert f"{dead / size:.2%}  {size_text(dead)}, hole ratio {dead / (live + dead):.2%}" in text


def test_shares_are_rounded_once() -> None:
    assert f"{round(0.1234499996, 6):.2%}" == "12.35%", "what rounding to six digits first would make of it"
    assert _percent(1_234_499_996, 10**10) == "12.34%"
    assert _percent(0, 0) == "-"


def test_settings_are_shown_whole_and_without_passwords(
    cli: Cli, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not cut at the width in COLUMNS, because the output is not a terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    long = "/srv/" + "long-name-" * 30
    servers = ",".join(f"broker-{number}.example.org:9092" for number in range(20))
    monkeypatch.setenv("NOS_EC_STORE__ROOT", long)
    monkeypatch.setenv("NOS_EC_KAFKA__SERVERS", servers)
    monkeypatch.setenv("NOS_EC_KAFKA__OPTIONS", '{"x.[red]": "[bold]y", "ssl.key.pem": "hunter2"}')
    monkeypatch.setenv("NOS_EC_KAFKA__SECRETS", '{"sasl.password": "hunter2"}')
    monkeypatch.setenv("NOS_EC_API__TOKEN", "hunter2-hunter2-hunter2")
    monkeypatch.setenv(
        "NOS_EC_STORE__METADATA_URL", "mysql+pymysql://nos:hunter2@db.example.org:3306/nos_ec?ssl_ca=/a.pem"
    )
    text = cli.text("config", "show")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)
    assert lines["store.root"] == long
    assert lines["kafka.servers"] == servers
    assert lines["store.metadata_url"] == f"mysql+pymysql://nos:{MASK}@db.example.org:3306/nos_ec?ssl_ca=/a.pem"
    assert "'x.[red]': '[bold]y'" in lines["kafka.options"], "not taken for markup"
    assert "hunter2" not in text
    assert cli("config", "show")["store"]["metadata_url"] == lines["store.metadata_url"]
    assert "hunter2" not in str(cli("config", "show"))


@pytest.mark.parametrize(
    ("how", "given"), [("--config", ["--config", "nos-ec.toml"]), ("environment", []), ("default", []), ("system", [])]
)
def test_a_listing_is_continued_as_pasted(
    bench: Bench,
    system: System,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    given: list[str],
) -> None:
    """The printed command works in another shell and in another folder, whatever the names are."""
    names = ["-o 'x' $(id)", "a b", "red\x1b[31m\n'\\'e9", "äö", "z"]
    for bucket in ("-b", "c"):
        for name in names:
            bench.put(system, name, b"x", bucket=bucket)
    monkeypatch.chdir(bench.folder)
    if how == "environment":
        monkeypatch.setenv("NOS_EC_CONFIG", "nos-ec.toml")
    if how == "system":
        monkeypatch.chdir("/")
        monkeypatch.setattr("nos_ec.cli.terminal.context.DEFAULT_CONFIGS", (Path("nos-ec.toml"), bench.config))
    program = f"{shlex.quote(sys.executable)} -m nos_ec"
    environment = without_settings({name: value for name, value in os.environ.items() if name != "NOS_EC_CONFIG"})
    command = [*given, "ls", "--limit", "1", "--", "-b"]
    capfd.readouterr()
    assert run(command) == 0
    listed, hint = capfd.readouterr()
    found = [listed]
    while "continue with: " in hint:
        pasted = hint.strip().partition("continue with: ")[2].replace("nos-ec", program, 1)
        assert pasted.isprintable()
        done = subprocess.run(
            ["bash", "-c", pasted], env=environment, cwd="/", capture_output=True, text=True, check=True, timeout=60
        )
        found.append(done.stdout)
        hint = done.stderr
    assert found == [f"{printable(f'-b/{name}')}\n" for name in sorted(names)]
    assert run([*given, "ls", "--limit", "1"]) == 0
    assert f"nos-ec --config {bench.config} ls --after=-b --limit=1" in capfd.readouterr().err


def test_dead_letters_are_listed(cli: Cli, bench: Bench, system: System) -> None:
    assert cli("dead-letters") == {"dead_letters": []}
    assert cli.text("dead-letters") == "0 dead letters\n"
    with closing(system.worker.publisher()) as publisher:
        publisher.publish([(b"k\xff\x1b[31m", b"no pack request %d " % number + b"x" * 5000) for number in range(3)])
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    assert consumer.counters.poison == 3
    letters = cli("dead-letters")["dead_letters"]
    assert [(one["offset"], one["key"], one["key_bytes"]) for one in letters] == [
        (number, "k\\xff\x1b[31m", 7) for number in range(3)
    ]
    assert [one["value"][:17] for one in letters] == [f"no pack request {number}" for number in range(3)]
    assert {(len(one["value"]), one["value_bytes"]) for one in letters} == {(2000, 5018)}
    assert all(one["reason"] for one in letters)
    assert cli("dead-letters", "--limit", "1")["dead_letters"] == letters[-1:]
    text = cli.text("dead-letters")
    assert text.endswith("\n3 dead letters\n")
    assert "\x1b" not in text, "nothing that controls a terminal"
    for path in (bench.folder / "store").glob("log.db*"):
        path.unlink()
    assert "run `nos-ec init`" in cli("dead-letters", exits=3)["message"]


# --- config check --connect ------------------------------------------------------------------------------------------
EMBEDDED = [
    *("database", "database session", "database clock", "database schema", "database rights", "database store"),
    *("folder", "block store", "landing store", "landing log", "free space", "store identity", "message log"),
    "audit trail",
]


def tried(bench: Bench, capfd: pytest.CaptureFixture[str], exits: int) -> tuple[dict[str, str], dict[str, str], Any]:
    """({check: result}, {check: detail}, initialised) of a run that ends like this."""
    assert run(["--config", str(bench.config), "config", "check", "--connect", "--json"]) == exits
    data = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [one["name"] for one in data["checks"]] == EMBEDDED
    for one in data["checks"]:
        assert ("error" in one) == (one["result"] == "failed")
    return (
        {one["name"]: one["result"] for one in data["checks"]},
        {one["name"]: one["detail"] for one in data["checks"]},
        data["initialised"],
    )


def failures(results: dict[str, str]) -> list[str]:
    return [name for name, result in results.items() if result == "failed"]


def content(folder: Path) -> dict[str, bytes]:
    """All files below, but not those in which processes share what they read, nor what tries out a device."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "slots-shm"]
    return {
        str(path): device_content(path) if path.name == "device0" else path.read_bytes()
        for path in files
        if path.suffix not in (".db-shm", ".db-wal")
    }


def test_a_sound_store_passes_and_is_not_changed(cli: Cli, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    before = content(bench.folder)
    results, _, initialised = tried(bench, capfd, 0)
    assert (set(results.values()), initialised) == ({"ok"}, True)
    text = cli.text("config", "check", "--connect")
    assert [line[:2] for line in text.splitlines()[:-1]] == ["ok"] * len(EMBEDDED)
    assert text.splitlines()[-1] == f"{len(EMBEDDED)} checks: {len(EMBEDDED)} ok, 0 failed, 0 not tried"
    assert content(bench.folder) == before


def test_checks_before_init_create_nothing(cli: Cli, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.config.write_text(bench.config.read_text().replace('"store"', '"deep/elsewhere"'))
    results, details, initialised = tried(bench, capfd, 0)
    assert (failures(results), initialised, results["folder"]) == ([], False, "ok")
    assert "run `nos-ec init`" in details["database"]
    assert not (bench.folder / "deep").exists()
    assert "run `nos-ec init`" in cli.text("config", "check", "--connect").splitlines()[-1]
    cli("init")
    assert set(tried(bench, capfd, 0)[0].values()) == {"ok"}


def test_wrong_settings_are_reported_and_nothing_is_tried(
    cli: Cli, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.config.write_text("[consumer]\nlanes = 0\n")
    assert run(["--config", str(bench.config), "config", "check", "--connect", "--json"]) == 3
    data = json.loads(capfd.readouterr().out)
    assert (len(data["problems"]), data["checks"], data["initialised"]) == (1, [], None)


SECRET = "ab" * 32


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [("s3.master_key", "abc", "64 hexadecimal digits"), ("api.token", "abc", "at least 16 are needed")],
)
def test_a_secret_that_its_user_would_refuse(
    bench: Bench, capfd: pytest.CaptureFixture[str], setting: str, value: str, says: str
) -> None:
    section, _, key = setting.partition(".")
    before = bench.config.read_text()
    for more in ([], ["--connect"]):
        bench.config.write_text(f'{before}\n[{section}]\n{key} = "{value}"\n')
        assert run(["--config", str(bench.config), "config", "check", *more, "--json"]) == 3
        shown, errors = capfd.readouterr()
        (problem,) = json.loads(shown)["problems"]
        assert says in problem
        assert json.loads(errors.splitlines()[-1])["settings"][0] == setting
        bench.config.write_text(f'{before}\n[{section}]\n{key} = "{SECRET}"\n')
        assert run(["--config", str(bench.config), "config", "check", *more]) == 0
        capfd.readouterr()


def test_a_master_key_that_fits_no_access_key(
    bench: Bench, system: System, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOS_EC_S3__MASTER_KEY", SECRET)

    def found() -> dict[str, tuple[str, str]]:
        run(["--config", str(bench.config), "config", "check", "--connect", "--json"])
        checks = json.loads(capfd.readouterr().out.splitlines()[-1])["checks"]
        return {one["name"]: (one["result"], one["detail"]) for one in checks}

    accounts = Accounts(system.metadata, system.clock, os.urandom)
    assert found()["S3 master key"][0] == "ok", "there are no access keys"
    made = accounts.create_key(MasterKeys(["cd" * 32]), "ann")
    result, detail = found()["S3 master key"]
    assert (result, "another master key" in detail) == ("failed", True)
    accounts.rotate_key(MasterKeys([SECRET]), made.key.access_key)
    assert found()["S3 master key"] == ("ok", "it fits the access keys")
    KeyRing(system.metadata, MasterKeys(["cd" * 32]), system.clock).add(os.urandom)
    result, detail = found()["S3 master key"]
    assert (result, "a key that encrypts objects" in detail) == ("failed", True)


@pytest.mark.parametrize(
    ("settings", "check", "says"),
    [
        ('[s3]\ncertificate_file = "absent.pem"\nkey_file = "absent.key"', "S3 certificate", "absent.pem"),
        ('[s3]\nkey_file = "absent.key"', "S3 certificate", "s3.certificate_file"),
        ('[s3]\nmaster_key_file = "absent"', "S3 master key", "No such file"),
        ('[api]\ntoken_file = "absent"', "API token", "No such file"),
        ('[console]\ntoken_file = "absent"', "console token", "No such file"),
        ('[audit]\nfolder = "file/audit"', "audit trail", "Not a directory"),
    ],
)
def test_files_that_daemons_would_refuse(
    bench: Bench, capfd: pytest.CaptureFixture[str], settings: str, check: str, says: str
) -> None:
    (bench.folder / "file").touch()
    bench.config.write_text(f"{bench.config.read_text()}\n{settings}\n")
    assert run(["--config", str(bench.config), "config", "check"]) == 0, "only --connect looks at files"
    capfd.readouterr()
    assert run(["--config", str(bench.config), "config", "check", "--connect", "--json"]) in (3, 7)
    checks = json.loads(capfd.readouterr().out)["checks"]
    failed = {one["name"]: one["detail"] for one in checks if one["result"] == "failed"}
    assert list(failed) == [check]
    assert says in failed[check]


@pytest.mark.parametrize(
    ("old", "new", "failed", "code", "says"),
    [
        (
            "stripes_per_block = 8",
            "stripes_per_block = 16",
            ["database store", "block store"],
            3,
            "[settings: geometry, ",
        ),
        ("partitions = 3", "partitions = 4", ["message log"], 3, "set log.partitions to 3"),
        ("reserve_bytes = 0", 'reserve_bytes = "1024TiB"', ["free space"], 8, "PUTs are refused"),
    ],
)
def test_settings_that_do_not_fit_the_store(
    cli: Cli,
    bench: Bench,
    capfd: pytest.CaptureFixture[str],
    old: str,
    new: str,
    failed: list[str],
    code: int,
    says: str,
) -> None:
    bench.config.write_text(bench.config.read_text().replace(old, new))
    results, details, _ = tried(bench, capfd, code)
    assert failures(results) == failed
    assert says in details[failed[0]]


def _lose_metadata(store: Path) -> None:
    for path in store.glob("metadata.db*"):
        path.unlink()


def _damage_metadata(store: Path) -> None:
    _lose_metadata(store)
    (store / "metadata.db").write_bytes(b"no database" * 1000)


def _newer_schema(store: Path) -> None:
    with closing(sqlite3.connect(store / "metadata.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def _bare_database(store: Path) -> None:
    _lose_metadata(store)
    (store / "metadata.db").touch()


@pytest.mark.parametrize(
    ("spoil", "failed", "code", "says"),
    [
        (_lose_metadata, ["store identity"], 3, "the metadata is new and empty"),
        (_bare_database, ["store identity"], 3, "the metadata is new and empty"),
        (_damage_metadata, ["database"], 6, "restore the file from a backup"),
        (_newer_schema, ["database schema"], 3, "a newer release"),
        (lambda store: (store / "store-id").write_text("f" * 32), ["store identity"], 3, "holds another store"),
        (lambda store: (store / "store-id").unlink(), ["store identity"], 3, "holds no store"),
        (lambda store: shutil.rmtree(store / "blocks/shard-03"), ["block store"], 7, "--new-shard 3"),
        (lambda store: (store / "blocks/store.json").unlink(), ["block store"], 3, "is not a block store"),
        (lambda store: shutil.rmtree(store / "landing"), ["landing store"], 3, "is not a landing store"),
        (lambda store: (store / "log.db").write_bytes(b"no log" * 1000), ["message log"], 6, "remove it and run"),
    ],
)
def test_a_spoilt_store_is_told(
    cli: Cli,
    bench: Bench,
    capfd: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
    failed: list[str],
    code: int,
    says: str,
) -> None:
    spoil(bench.folder / "store")
    results, details, _ = tried(bench, capfd, code)
    assert failures(results) == failed
    assert says in details[failed[0]]


def test_a_lost_log_is_no_failure(cli: Cli, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (bench.folder / "store").glob("log.db*"):
        path.unlink()
    assert "is created when needed" in tried(bench, capfd, 0)[1]["message log"]
    assert not (bench.folder / "store/log.db").exists()


def test_a_writer_at_work_is_no_failure(cli: Cli, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """The checks that try rights wait for their turn, as every writer does."""
    with closing(sqlite3.connect(bench.folder / "store/metadata.db", check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(1, other.rollback)
        ending.start()
        results, _, _ = tried(bench, capfd, 0)
        ending.join()
    assert set(results.values()) == {"ok"}


def test_the_events_of_a_store_are_listed(bench: Bench, cli: Cli, system: System) -> None:
    assert cli("events") == {"events": []}
    assert cli.text("events") == "nothing is recorded\n"
    cli("gc", "pause")
    cli("gc", "resume")
    cli("gc", "limit", "--bytes-per-s", "1MiB")
    cli("gc", "run", "--apply")  # finds nothing to do
    fill(bench, system)
    for key in list(bench.acknowledged):
        bench.delete(system, key)
    cli("gc", "run", "--apply")
    cli("metadata", "dump")
    cli("scrub")
    cli("check")
    events = cli("events")["events"]
    assert [(one["kind"], one["outcome"]) for one in events] == [
        ("control", "done"),
        ("control", "done"),
        ("control", "done"),
        ("gc", "done"),
        ("dump", "done"),
        ("scrub", "done"),
        ("check", "done"),
    ]
    texts = [one["text"] for one in events]
    assert texts[0].startswith("GC paused, by ")
    assert texts[1].startswith("GC resumed, by ")
    assert texts[2].startswith("GC limited to 1.0 MiB/s, ")
    assert re.match(r"freed [\d.]+ \w+ \(\d+ blocks\), copied [\d.]+ \w+ \(\d+ objects\)", texts[3])
    assert "/metadata-dump-" in texts[4]
    assert texts[5].startswith("complete pass: ")
    assert texts[6] == "no problem"
    assert all(one["process"].startswith(f"process {os.getpid()} on ") for one in events)
    with serve(app_of(system, Token(TOKEN)), **AUTHORISED) as client:
        assert Api(client)("/v1/events")["events"] == sorted(events, key=lambda one: -one["at_ms"])
        assert Api(client)("/v1/events", since_ms=events[-1]["at_ms"] + 1) == {"events": []}
    assert [one["kind"] for one in cli("events", "--kind", "dump")["events"]] == ["dump"]
    line = cli.text("events", "--kind", "check")
    assert "  check    done after " in line
    assert ": no problem; process " in line


def test_a_killed_run_of_gc_is_an_event_of_the_next_run(bench: Bench, cli: Cli, system: System) -> None:
    fill(bench, system)
    cli("gc", "run", "--apply")
    run = read_run(system.metadata)
    assert run is not None
    write_run(system.metadata, replace(run, process="process 7 on lost", ended_ms=None))
    for _ in range(2):
        cli("gc", "run", "--apply")
    killed = [one for one in cli("events", "--kind", "gc")["events"] if one["outcome"] == "failed"]
    assert [(one["process"], one["at_ms"], one["times"]) for one in killed] == [("process 7 on lost", run.seen_ms, 1)]


def test_the_daemons_of_a_store_are_listed(cli: Cli, system: System) -> None:
    assert cli.text("daemons") == "no daemon is recorded\n"
    monitor = system.operator.monitor("gc", writes=True)
    gc_service(system, monitor)
    assert {"fenced block", "landing copy"} <= {queue.what for queues in monitor.parked for queue in queues()}
    with keeping_presence(system, monitor):
        until(lambda: cli("daemons")["daemons"])
        assert "gc        alive since " in cli.text("daemons")
        (alive,) = cli("daemons")["daemons"]
        assert (alive["service"], alive["version"], alive["parked"], alive["alive"]) == ("gc", __version__, 0, True)
    (gone,) = cli("daemons")["daemons"]
    assert gone["alive"] is False
    assert "gc        stopped " in cli.text("daemons")
    with serve(app_of(system, Token(TOKEN)), **AUTHORISED) as client:
        assert Api(client)("/v1/daemons")["daemons"] == [{k: v for k, v in gone.items() if k != "alive"}]
