"""`nos-ec bench gc` on an embedded store. The tests look at how the figures fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nos_ec.bench.bars import GC, GC_WORKERS, missed
from nos_ec.cli.app import run
from tests.service.conftest import CONFIG


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("nos_ec.bench.life.life_ways.DEVICE_BYTES", 0)
    path = tmp_path / "nos-ec.toml"
    path.write_text(CONFIG.replace("16MiB", "128MiB").replace("chunk_size = 16384", "chunk_size = 131072"))
    return path


def test_the_command_measures_gc_and_its_floor_and_leaves_nothing(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(config.parent.rglob("*"))
    arguments = ["--objects", "200", "--rounds", "1", "--reads", "10", "--json"]
    assert run(["--config", str(config), "bench", "gc", *arguments]) == 0
    found = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    rates = found["live_mb_per_s"]
    assert found["ours_over_floor"] == pytest.approx(rates["ours"] / rates["floor"])
    for way in ("safe", "same_io"):
        assert found[f"ours_over_{way}"] == pytest.approx(rates["ours"] / rates[way])
    assert found["safe_over_floor"] == pytest.approx(rates["safe"] / rates["floor"])
    assert 0 < found["header_bytes_over_block_bytes"] < 1
    assert found["gets"] > 0
    p99 = {when: one["p99"] for when, one in found["get_ms"].items()}
    assert found["get_p99_with_over_without"] == pytest.approx(p99["with_gc"] / p99["without_gc"])
    assert found["lanes"] == 4
    assert sorted(config.parent.rglob("*")) == before


def test_the_bars_of_gc() -> None:
    met = {"ours_over_floor": 0.8, "header_bytes_over_block_bytes": 0.005, "get_p99_with_over_without": 2.0}
    assert missed(GC, met) == []
    for name, worse in {
        "ours_over_floor": 0.79,
        "header_bytes_over_block_bytes": 0.0051,
        "get_p99_with_over_without": 2.1,
    }.items():
        (sentence,) = missed(GC, met | {name: worse})
        assert name in sentence


def test_several_workers_are_compared_with_one(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(config.parent.rglob("*"))
    arguments = ["--objects", "500", "--rounds", "1", "--workers", "3", "--json"]
    assert run(["--config", str(config), "bench", "gc-workers", *arguments]) == 0
    found = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    cpu = {way: found["cpu_ms_per_mb"][way]["total"] for way in ("one", "several")}
    ratios = found["several_over_one"]
    assert ratios["cpu_per_byte"] == pytest.approx(cpu["several"] / cpu["one"])
    assert ratios["live_bytes"] == pytest.approx(found["live_mb"]["several"] / found["live_mb"]["one"])
    space = found["space_over_target"]["several"]
    assert 1 - found["block_over_target"] - 0.1 < space["least"] <= space["most"] < 1.2
    assert found["workers"] == 3
    assert sorted(config.parent.rglob("*")) == before


def test_the_bars_of_gc_workers() -> None:
    met = {
        "several_over_one": {"cpu_per_byte": 1.1},
        "space_over_target": {"several": {"least": 0.99, "most": 1.01}},
    }
    assert missed(GC_WORKERS, met) == []
    (sentence,) = missed(GC_WORKERS, met | {"several_over_one": {"cpu_per_byte": 1.11}})
    assert "cpu_per_byte" in sentence
    for worse in ({"least": 0.99, "most": 1.02}, {"least": 0.98, "most": 0.99}):
        (sentence,) = missed(GC_WORKERS, met | {"space_over_target": {"several": worse}})
        assert "space_over_target" in sentence
