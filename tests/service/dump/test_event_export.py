"""`export events`, and `simulate gc --events` with what it wrote."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.expiry import ExpiryRule, encode_rules
from nos_ec.core.gc.gc_events import Names, PutEvent
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.lifetimes import AGE_RANGES, Counts
from nos_ec.core.versions import Versioning
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.figures import event_export
from nos_ec.engine.figures.event_export import ExportOptions, exported_events
from nos_ec.ports.metadata import CannedAcl, DocumentKind
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CONFIG, Bench

DAY_MS = 86_400_000


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A store with a trash, and a known history of lifetimes."""
    bench.config.write_text(CONFIG + "[trash]\nkeep_days = 7\n")
    return bench


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def learn(system: System, counts: Counts) -> None:
    """Rows of the survival table: of the bucket b, and of all others."""
    others = next((row.counted_ms for row in system.metadata.survival() if row.bucket == ""), None)
    now_ms = system.clock.now_ms()
    assert system.metadata.count_survey({"": Counts([0.0] * AGE_RANGES, [9.0] * AGE_RANGES)}, others, now_ms)
    system.metadata.count_deaths({"b": counts}, now_ms)


def fill(bench: Bench, system: System) -> int:
    """Objects in every state, one in the trash, and rows of the survival table. Returns how many are in rows."""
    keys = bench.put_some(system, 60)
    bench.pack(system)
    bench.put(system, "folder/landed", b"abc", "b")
    bench.put(system, "folder/other", b"abcd", "b")
    bench.put(system, "empty", b"", "b")
    system.client.store().delete_many(keys[:1])
    bench.acknowledged.pop(keys[0])
    learn(system, Counts([1.0] * AGE_RANGES, [5.0] * AGE_RANGES))
    return 62


def test_export_tells_what_the_rows_tell(bench: Bench, system: System, cli: Cli) -> None:
    count = fill(bench, system)
    path = bench.folder / "events.jsonl.gz"
    told = cli("export", "events", "--to", str(path), "--names")["exported"]
    found = lines(gzip.decompress(path.read_bytes()))
    puts = [line for line in found if line["event"] == "put"]
    assert [line["event"] for line in found[:3]] == ["export", "survival", "survival"]
    assert told == {"file": str(path), "objects": count, "bytes": sum(line["size"] for line in puts)}
    assert len(puts) == count
    living = {(one["bucket"], one["name"]): one["size"] for one in puts if "deleted_ms" not in one}
    assert living == {(key.bucket, key.name): len(data) for key, data in bench.acknowledged.items() if data}
    (thrown,) = (one for one in puts if "deleted_ms" in one)
    assert thrown["deleted_ms"] - system.clock.now_ms() == pytest.approx(7 * DAY_MS, abs=DAY_MS / 24)
    known = {one["bucket"]: one for one in found if one["event"] == "survival"}
    assert known["b"]["deaths"] == pytest.approx([1.0] * AGE_RANGES, rel=1e-3)
    assert known[""]["exposure_days"] == pytest.approx([9.0] * AGE_RANGES, rel=1e-3)
    assert "exists" in cli("export", "events", "--to", str(path), exits=2)["message"]


@pytest.mark.parametrize("options", [(), ("--bucket", "b")])
def test_rules_say_when_objects_expire_and_noncurrent_versions_live_on(
    options: tuple[str, ...], bench: Bench, system: System, cli: Cli
) -> None:
    now_ms = system.clock.now_ms()
    rules = [ExpiryRule("r", prefix="logs/", days=30), ExpiryRule("past", prefix="old", date_ms=DAY_MS)]
    assert system.metadata.create_bucket("b", "root", CannedAcl.PRIVATE, now_ms)
    assert system.metadata.set_bucket_document("b", DocumentKind.LIFECYCLE, encode_rules(rules), now_ms)
    for name in ("logs/x", "old"):
        bench.put(system, name, b"abc", "b")
    stays = ObjectKey("b", "stays")
    versioned = [
        system.client.store().put(stays, BytesIO(data), versioning=Versioning.ENABLED) for data in (b"1", b"12")
    ]
    path = bench.folder / "events.jsonl"
    cli("export", "events", "--to", str(path), "--names", *options)
    puts = {one["name"]: one for one in lines(path.read_bytes()) if one["event"] == "put"}
    assert puts["logs/x"]["expires_ms"] - now_ms == pytest.approx(30.5 * DAY_MS, abs=DAY_MS)
    assert puts["old"]["expires_ms"] == pytest.approx(now_ms, abs=DAY_MS / 24), "at once"
    assert {name: one["size"] for name, one in puts.items() if name.startswith("stays")} == {
        "stays": 2,
        f"stays?{versioned[0].version}": 1,
    }
    assert all(
        one.keys() == {"event", "time_ms", "bucket", "name", "size"} for one in puts.values() if "stays" in one["name"]
    )


def test_names_are_hashed_by_default(bench: Bench, system: System, cli: Cli) -> None:
    fill(bench, system)
    path = bench.folder / "events"
    cli("export", "events", "--to", str(path))
    text = path.read_text()
    assert not any(key.name in text for key in bench.acknowledged if len(key.name) > 3)
    puts = [line for line in lines(text.encode()) if line["event"] == "put"]
    folders = {one["name"].rpartition("/")[0] for one in puts if one["size"] in (3, 4) and "/" in one["name"]}
    assert len(folders) == 1
    assert len({one["bucket"] for one in puts}) == len({key.bucket for key in bench.acknowledged})
    assert {one["bucket"] for one in lines(text.encode()) if one["event"] == "survival"} - {""} <= {
        one["bucket"] for one in puts
    }


def test_of_a_bucket_since_a_time_and_a_sample(bench: Bench, system: System, cli: Cli) -> None:
    fill(bench, system)
    path = bench.folder / "events"

    def names(*options: str) -> set[tuple[str, str]]:
        path.unlink(missing_ok=True)
        cli("export", "events", "--to", str(path), "--names", *options)
        return {(one["bucket"], one["name"]) for one in lines(path.read_bytes()) if one["event"] == "put"}

    everything = names()
    assert names("--bucket", "b") == {one for one in everything if one[0] == "b"}
    survival = [one for one in lines(path.read_bytes()) if one["event"] == "survival"]
    assert [one["bucket"] for one in survival] == ["b", ""]
    assert names("--since", "1h") == everything
    assert names("--since", "2100-01-01") == set()
    sample = names("--one-in", "3")
    assert sample == names("--one-in", "3")
    assert sample < everything
    assert 5 < len(sample) < 40
    assert cli("export", "events", "--to", str(bench.folder / "x"), "--bucket", "none", exits=4)
    assert not (bench.folder / "x").exists()


def test_pages_of_any_size_tell_the_same(bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page at a time: what is in memory does not depend on the store."""
    count = fill(bench, system)
    asked: list[int] = []
    inner = type(system.metadata).objects_after

    def counted(self: Any, after: int, limit: int) -> Any:
        asked.append(limit)
        return inner(self, after, limit)

    monkeypatch.setattr(type(system.metadata), "objects_after", counted)
    names = Names(system.store_id, keep=True)

    def puts() -> list[PutEvent]:
        events = exported_events(
            system.metadata, system.clock, names, ExportOptions(), KnownExpiry(system.metadata, DAY_MS)
        )
        return [event for event in events if isinstance(event, PutEvent)]

    whole = puts()
    monkeypatch.setattr(event_export, "PAGE_ROWS", 7)
    asked.clear()
    assert puts() == whole
    assert len(whole) == count
    assert set(asked) == {7}
    assert len(asked) == pytest.approx(count / 7 + 1, abs=2)


def test_to_stdout(bench: Bench, system: System) -> None:
    fill(bench, system)
    done = bench.run("export", "events", "--to", "-", "--names")
    assert done.returncode == 0, done.stderr
    assert {line["event"] for line in lines(done.stdout)} == {"export", "survival", "put"}
    assert b"62 objects" in done.stderr
    refused = bench.run("export", "events", "--to", "-", "--json")
    assert refused.returncode == 2


def test_a_simulation_goes_on_from_an_export(bench: Bench, system: System, cli: Cli) -> None:
    for n in range(300):
        bench.put(system, f"{n % 5}/{n}", bench.data(200 + n), "b")
    learn(system, Counts([4.0] * AGE_RANGES, [80.0] * AGE_RANGES))
    path = bench.folder / "events.gz"
    cli("export", "events", "--to", str(path))
    run = ("simulate", "gc", "--events", str(path), "--days", "20", "--space-amp", "1.2", "--floor-days", "0")
    assert "give --block-bytes" in cli(*run, exits=2)["message"]
    found = cli(*run, "--block-bytes", "4000")
    assert found["events"]["objects"] == 300
    assert found["events"]["is_export"]
    assert found["space_amplification"] < 1.3
    assert found["write_amplification"] > 1
    assert found["workload"] is None
    assert found == cli(*run, "--block-bytes", "4000")
    assert cli(*run, "--block-bytes", "4KiB") == cli(*run, "--block-bytes", "4096")
    for size in ("4kb", "0", "-1", ""):
        assert bench.run(*run, "--block-bytes", size).returncode == 2
    piped = bench.run(
        *run[:2], "--events", "-", *run[4:], "--block-bytes", "4000", stdin=gzip.decompress(path.read_bytes())
    )
    assert piped.returncode == 0, piped.stderr
    assert b"300 objects" in piped.stdout
    for wrong, says in (
        (("--workload", "B"), "--workload does nothing with --events"),
        (("--blocks", "30"), "--blocks does nothing with --events"),
    ):
        assert says in cli(*run, *wrong, exits=2)["message"]
    assert "without --events" in cli("simulate", "gc", "--block-bytes", "5", exits=2)["message"]


def test_a_trace_has_days_of_its_own(bench: Bench, cli: Cli) -> None:
    path = bench.folder / "trace"
    with path.open("w") as file:
        for n in range(3000):
            common = {"bucket": "b", "name": f"{n}"}
            file.write(json.dumps({"event": "put", "time_ms": n * DAY_MS // 10, "size": 100, **common}) + "\n")
            if n >= 500:
                common["name"] = f"{n - 500 + n % 400}"
                file.write(json.dumps({"event": "delete", "time_ms": n * DAY_MS // 10, **common}) + "\n")
    run = ("simulate", "gc", "--events", str(path), "--block-bytes", "1000")
    found = cli(*run, "--floor-days", "0")
    assert found["measured_days"] == pytest.approx(150, rel=0.01)
    assert not found["events"]["is_export"]
    assert found["events"]["unknown_deletes"] > 0
    assert "a trace determines its own days" in cli(*run, "--days", "5", exits=2)["message"]
    path.write_text(path.read_text() + "{\n")
    assert "line 5501: it is not JSON" in cli(*run, exits=2)["message"]


def test_a_row_of_no_bytes_is_no_event(bench: Bench, system: System) -> None:
    key = ObjectKey("b", "empty")
    bench.put(system, key.name, b"", key.bucket)
    names = Names(system.store_id, keep=True)
    events = exported_events(
        system.metadata, system.clock, names, ExportOptions(), KnownExpiry(system.metadata, DAY_MS)
    )
    assert not [event for event in events if isinstance(event, PutEvent)]
