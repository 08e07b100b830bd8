"""`nos-ec bench` on embedded stores. The tests look at how the figures fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nos_ec.bench.life.life_bench import WHOLE_LIFE, LifeBench, LifeOptions
from nos_ec.bench.life.life_ways import Alone, life_stores
from nos_ec.bench.reads import ReadBench, ReadOptions
from nos_ec.bench.stack import AdminKey, bench_stores
from nos_ec.cli.app import run
from nos_ec.cli.terminal.errors import EXIT_USAGE
from nos_ec.core.errors import InvalidInput, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.copy_lander import CopyLander
from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.landing.trimmer import TrimResult
from nos_ec.settings import load_settings
from tests.service.conftest import CONFIG

STEPS = ["put", "get_landed", "publish", "pack", "reap", "get_packed", "delete"]
CALLED = ["put", "get_landed", "get_packed", "delete"]
KEY = AdminKey("client.admin", None)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("nos_ec.bench.life.life_ways.DEVICE_BYTES", 0)
    path = tmp_path / "nos-ec.toml"
    path.write_text(CONFIG.replace("16MiB", "32MiB"))
    return path


def options(drawn: str | int, objects: int = 40) -> LifeOptions:
    return LifeOptions(drawn, objects, rounds=2, callers=3, reads=5, seed=1)


def test_the_command_measures_every_step_and_leaves_nothing(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nos_ec.bench.life.life_bench.IDLE_S", 0.01)
    before = sorted(config.parent.rglob("*"))
    arguments = ["--size", "4096", "--objects", "100", "--rounds", "1", "--reads", "10", "--callers", "2", "--check"]
    assert run(["--config", str(config), "bench", "life", *arguments, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["workload"], found["size"], found["ways"]) == (None, 4096, ["single", "store", "log"])
    assert found["single"]["put_batch"] == 1
    for way in (found[name] for name in found["ways"]):
        assert list(way["objects_per_s"]) == STEPS
        assert list(way["cpu_ms_per_object"]) == STEPS
        for cpu in way["cpu_ms_per_object"].values():
            assert cpu["client"] == cpu["total"] > 0
        assert way["whole_life_cpu_ms_per_object"] == pytest.approx(
            sum(way["cpu_ms_per_object"][step]["total"] for step in WHOLE_LIFE)
        )
        assert 1 <= way["put_batch"] <= 2
        assert way["rounds_puts_per_s"] == [way["objects_per_s"]["put"]]
        for step in CALLED:
            assert way[f"{step}_ms"]["p50"] <= way[f"{step}_ms"]["p99"]
    for over in ("store_over_single", "log_over_single", "log_over_store"):
        assert list(found[over]["objects_per_s"]) == STEPS
    assert sorted(config.parent.rglob("*")) == before


def test_ways_take_turns_and_are_compared_round_by_round(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.bench.life.life_bench.IDLE_S", 0.01)
    settings = load_settings(config, {})
    with bench_stores({"store": settings, "other": settings}, KEY) as stores:
        assert stores.systems["store"].store_id != stores.systems["other"].store_id
        ticks: list[tuple[str, int, int]] = []
        found = LifeBench(stores, options("W3"), lambda *tick: ticks.append(tick)).run()
        assert [list(system.blocks.list_blocks()) for system in stores.systems.values()] == [[], []]
        assert [list(system.landing.list_ids()) for system in stores.systems.values()] == [[], []]
    assert ticks == [("rounds", done, 3) for done in range(3)]
    over = found["other_over_store"]
    assert list(over["objects_per_s"]) == STEPS
    assert [len(found[way]["rounds_puts_per_s"]) for way in ("store", "other")] == [2, 2]
    for step in CALLED:
        assert over[f"{step}_ms"].keys() == {"p50", "p90", "p99"}


def test_each_way_lands_where_it_should_and_a_life_leaves_no_segment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench writes nothing on devices of the configured store."""
    monkeypatch.setattr("nos_ec.bench.life.life_bench.IDLE_S", 0.01)
    settings = load_settings(config, {"NOS_EC_LANDING__DEVICES": str(config.parent / "absent" / "device")})
    with life_stores(settings, "both", KEY) as stores:
        found = LifeBench(stores, options(30_000, objects=100), lambda *_: None).run()
        for way, system in stores.systems.items():
            batches = system.client.puts.batches
            assert isinstance(batches.lander, LogBypass if way == "log" else Alone if way == "single" else CopyLander)
            totals = system.metadata.segment_totals()
            assert {state for state, (count, _) in totals.items() if count} <= {SegmentState.OPEN}
        log = stores.systems["log"].client.puts.batches.lander
        assert isinstance(log, LogBypass)
        assert isinstance(log.log, LandingLog)
        assert log.log.counters.records == 3 * 100 - 1, "the first object, alone in its batch, passes by"
        assert log.log.counters.sealed >= 3
    assert found["single"]["put_batch"] == 1
    assert list(config.parent.glob("absent")) == []


def test_segments_that_stay_end_the_bench(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.engine.landing.trimmer.Trimmer.run_once", lambda *_: TrimResult())
    with (
        life_stores(load_settings(config, {}), "log", KEY) as stores,
        pytest.raises(Transient, match="segment of the landing log was not released"),
    ):
        LifeBench(stores, options(1000), lambda *_: None).run()


def test_an_object_that_reads_back_wrong_ends_the_bench(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_stores({"store": load_settings(config, {})}, KEY) as stores:
        monkeypatch.setattr("nos_ec.engine.objects.store.Store.get", lambda _self, _key: b"something else")
        with pytest.raises(Transient, match="reads back wrong"):
            LifeBench(stores, options(1000), lambda *_: None).run()


def test_objects_that_are_not_published_end_the_bench(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_stores({"store": load_settings(config, {})}, KEY) as stores:
        bench = LifeBench(stores, options(1000), lambda *_: None)
        stores.systems["store"].client.store().put_many([(ObjectKey("bucket", "another"), b"landed before")])
        with pytest.raises(Transient, match="41 of 40 objects were published"):
            bench.run()


def test_objects_that_are_never_packed_are_refused(config: Path) -> None:
    with (
        bench_stores({"store": load_settings(config, {})}, KEY) as stores,
        pytest.raises(InvalidInput, match="choose at most"),
    ):
        LifeBench(stores, options(64 << 20), lambda *_: None).run()


@pytest.mark.parametrize("bench", ["life", "pipeline"])
def test_a_workload_and_a_size_exclude_each_other(bench: str, config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(config), "bench", bench, "--size", "1", "--workload", "W1"]) == EXIT_USAGE
    assert "choose one" in capfd.readouterr().err


def test_people_get_a_table_of_the_steps(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nos_ec.bench.life.life_bench.IDLE_S", 0.01)
    arguments = ["--workload", "W6", "--objects", "100", "--rounds", "1", "--reads", "10", "--callers", "2"]
    assert run(["--config", str(config), "bench", "life", *arguments]) == 0
    said = capfd.readouterr().out
    assert all(f"objects_per_s.{step}" in said for step in STEPS)
    heads = [line.split("┃")[2:-1] for line in said.splitlines() if "┃" in line]
    assert ["single", "store", "log"] in [[name.strip() for name in head] for head in heads]
    assert "rounds_puts_per_s" not in said


# --- reads ------------------------------------------------------------------------------------------
def test_gets_of_split_objects_are_compared_with_those_of_others_of_the_same_size(config: Path) -> None:
    settings = load_settings(config, {})
    with bench_stores({"read": settings}, KEY) as stores:
        bench = ReadBench(stores.systems["read"], stores.instruments, ReadOptions(9000, 100, 40, 5, 1))
        rows = bench.packed_rows()
        found = bench.split_over_whole(rows)
    geometry = settings.geometry.value()
    split = [row for row in rows if row.extent and geometry.is_split(row.extent.offset, row.size)]
    assert 0 < found["split_objects"] == len(split) < 100
    cpu_ms = found["client_cpu_ms_per_get"]
    assert found["split_over_whole"] == pytest.approx(cpu_ms["split"] / cpu_ms["whole"])


def test_where_no_object_is_split_there_is_nothing_to_compare(config: Path) -> None:
    with bench_stores({"read": load_settings(config, {})}, KEY) as stores:
        bench = ReadBench(stores.systems["read"], stores.instruments, ReadOptions(4096, 100, 40, 5, 1))
        assert bench.split_over_whole(bench.packed_rows()) == {"split_objects": 0}


# --- the S3 gateway ---------------------------------------------------------------------------------
def test_the_gateway_is_measured_beside_the_engine(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(config.parent.rglob("*"))
    few = ["--objects", "16", "--size", "20000", "--small-objects", "1001", "--reads", "20", "--pages", "2"]
    callers = ["--put-callers", "3", "--get-callers", "2", "--rounds", "1", "--processes", "2"]
    assert run(["--config", str(config), "bench", "s3", *few, *callers, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["ways"], found["processes"], found["size"]) == (["gateway", "engine"], 2, 20_000)
    for way, groups in (("gateway", {"client", "server", "total"}), ("engine", {"client", "total"})):
        figures = found[way]
        assert figures["per_s"].keys() == {"put", "publish", "pack", "get", "list"}
        assert all(rate > 0 for rate in figures["per_s"].values())
        assert all(cpu.keys() == groups for cpu in figures["cpu_ms_per_object"].values())
        put = figures["cpu_ms_per_object"]["put"]
        assert put["total"] == pytest.approx(sum(value for name, value in put.items() if name != "total"))
        assert figures["put_and_pack_cpu_ms_per_object"] > put["total"]
        assert figures["ms"]["list"]["p50"] > 0
    over = found["gateway_over_engine"]["per_s"]
    assert over["get"] == pytest.approx(found["gateway"]["per_s"]["get"] / found["engine"]["per_s"]["get"])
    assert sorted(config.parent.rglob("*")) == before


def test_radosgw_needs_ceph(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(config), "bench", "s3", "--radosgw"]) != 0
    assert "leave out --radosgw" in capfd.readouterr().err
