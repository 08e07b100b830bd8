"""`nos-ec bench space` on an embedded store: what it allocates, and what the simulation computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nos_ec.bench.space import SpaceBench, SpaceOptions
from nos_ec.bench.stack import AdminKey, bench_stores
from nos_ec.cli.app import run
from nos_ec.cli.terminal.errors import EXIT_BAR_MISSED, EXIT_USAGE
from nos_ec.core.geometry import PAGE
from nos_ec.settings import load_settings
from tests.service.conftest import STORE_CONFIG

FEW = ["--sizes", "4096,20000", "--workload", "W6", "--bytes", "2MiB"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "nos-ec.toml"
    path.write_text(STORE_CONFIG)
    return path


def figures(config: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["--config", str(config), "bench", "space", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_the_command_measures_what_blocks_allocate_and_leaves_nothing(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(config.parent.rglob("*"))
    found = figures(config, capfd, *FEW)
    assert sorted(config.parent.rglob("*")) == before
    assert (found["bytes"], found["ways"], found["osds"]) == (2 << 20, ["ours"], 0)
    assert found["database_bytes_per_object"] is None
    assert list(found["cells"]) == ["4096", "20000", "W6"]
    assert found["cells"]["4096"]["objects"] == 512
    for cell in found["cells"].values():
        raw = cell["raw_bytes_per_user_byte"]["ours"]
        assert 2 << 20 <= cell["bytes"] < (2 << 20) + 20_000
        assert raw > 11 / 8, "nothing is stored in less than its bytes and their coding chunks"
        assert cell["ours_over_simulation"] == pytest.approx(raw / cell["simulated_raw_bytes_per_user_byte"])
        assert 0.99 < cell["ours_over_simulation"] < 1.15, "a stripe more of 17, and two pages for 128 KiB of a shard"
        assert "ours_over_each" not in cell


def test_blocks_alone_count_and_whole_stripes(config: Path) -> None:
    """The landing copies are gone. Blocks allocate their stripes, and on each shard a page for its head and one for
    checksums."""
    with bench_stores({"space": load_settings(config, {})}, AdminKey("client.admin", None)) as stores:
        system = stores.systems["space"]
        ticks: list[tuple[str, int, int]] = []
        options = SpaceOptions([20_000], 1 << 20, 1)
        found = SpaceBench(system, stores.instruments, {}, options, lambda *tick: ticks.append(tick)).run()
        assert ticks == [("ours", 0, 1)]
        assert list(system.landing.list_ids()) == []
        blocks = [system.blocks.stripes(block_id) for block_id in system.blocks.list_blocks()]
        allocated = found["cells"]["20000"]["raw_bytes_per_user_byte"]["ours"] * found["cells"]["20000"]["bytes"]
        assert round(allocated) == system.geometry.raw_bytes(sum(blocks)) + len(blocks) * 11 * 2 * PAGE


def test_the_simulation_packs_as_the_consumer_is_configured(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    best = figures(config, capfd, *FEW)
    config.write_text(STORE_CONFIG.replace("[consumer]", "[consumer]\npolicy = 'nos'"))
    nos = figures(config, capfd, *FEW)
    for drawn, cell in nos["cells"].items():
        assert cell["bytes"] == best["cells"][drawn]["bytes"]
        assert cell["simulated_raw_bytes_per_user_byte"] > best["cells"][drawn]["simulated_raw_bytes_per_user_byte"]


def test_people_get_a_table_and_the_bars_that_are_missed(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--config", str(config), "bench", "space", "--sizes", "20000", "--bytes", "1MiB", "--check"]
    monkeypatch.setattr("nos_ec.bench.bars.OURS_OVER_SIMULATION", 1.3)
    assert run(arguments) == 0
    said = capfd.readouterr().out
    assert all(word in said for word in ("20000", "raw_bytes_per_user_byte.ours", "ours_over_simulation"))
    monkeypatch.setattr("nos_ec.bench.bars.OURS_OVER_SIMULATION", 0.5)
    assert run(arguments) == EXIT_BAR_MISSED
    assert "bar missed: cells.20000.ours_over_simulation is" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "W1,W9"], "unknown workload 'W9'"),
        (["--sizes", "4096,0"], "give at least 1 byte"),
        (["--sizes", "many"], "'many'"),
        (["--sizes", "64MiB"], "choose at most"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], said: str, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["--config", str(config), "bench", "space", *arguments]) == EXIT_USAGE
    assert said in capfd.readouterr().err
