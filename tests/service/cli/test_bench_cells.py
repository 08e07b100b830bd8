"""`nos-ec bench cells` on an embedded store: real gateways of a store of three cells and of one without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nos_ec.bench.bars import cells_bars, missed
from nos_ec.bench.s3.cells_bench import (
    BUCKET,
    CELLS,
    LISTED,
    ONE,
    STEPS,
    CellsBench,
    CellsOptions,
    Step,
    cells_figures,
    cells_ways,
)
from nos_ec.bench.stack import AdminKey
from nos_ec.cli.app import run
from nos_ec.core.errors import Transient
from nos_ec.settings import load_settings
from tests.service.conftest import STORE_CONFIG

FEW = CellsOptions(objects=10, size=1000, pairs=2, rounds=1, callers=2, seed=1)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "nos-ec.toml"
    path.write_text(STORE_CONFIG)
    return path


def test_the_command_compares_both_and_leaves_nothing(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(config.parent.rglob("*"))
    assert (
        run(["--config", str(config), "bench", "cells", "--objects", "10", "--pairs", "1", "--rounds", "1", "--json"])
        == 0
    )
    found = json.loads(capfd.readouterr().out)
    assert sorted(config.parent.rglob("*")) == before
    assert found["ways"] == [ONE, CELLS]
    for way in (ONE, CELLS):
        assert list(found[way]["per_s"]) == list(found[way]["cpu_ms"]) == list(STEPS)
        assert all(value > 0 for part in found[way].values() for value in part.values())
    for step in STEPS:
        ratio = found["cells_over_one"]["cpu"][step]
        assert ratio == pytest.approx(found[CELLS]["cpu_ms"][step] / found[ONE]["cpu_ms"][step])


def test_requests_go_to_a_cell_without_the_directory(config: Path) -> None:
    with cells_ways(load_settings(config, {}), AdminKey("client.admin", None)) as found:
        CellsBench(found, FEW, lambda *_: None).run()
        with found.pair() as ways:
            for way in ways.values():
                way.client.put(BUCKET, "left", b"x")
                way.client.head(BUCKET, "left")
                assert way.client.get(BUCKET, "left") == b"x"
                with pytest.raises(Transient, match="404"):
                    way.client.head(BUCKET, "000000001.bin")
        listed = {name: system.metadata.list_objects(BUCKET, "", "", 200) for name, system in found.systems.items()}
    assert {name: [row.key.name for row in rows] for name, rows in listed.items()} == {
        ONE: ["left", *LISTED],
        "a": [],
        "b": ["left", *LISTED],
        "c": [],
    }


def test_ratios_are_medians_of_the_rounds_and_means_of_the_pairs() -> None:
    def turn(seconds: float, cpu_s: float) -> dict[str, Step]:
        return dict.fromkeys(STEPS, Step(10, seconds, cpu_s))

    rounds = {ONE: [turn(1, 0.1), turn(2, 0.2), turn(1, 0.1)], CELLS: [turn(1, 0.102), turn(2, 0.204), turn(9, 0.9)]}
    other = {ONE: [turn(1, 0.1)] * 3, CELLS: [turn(1, 0.104)] * 3}
    figures = cells_figures([rounds, other])
    assert figures["cells_over_one"]["cpu"] == pytest.approx(dict.fromkeys(STEPS, 1.03))
    figures = cells_figures([rounds])
    assert figures["cells_over_one"]["cpu"] == pytest.approx(dict.fromkeys(STEPS, 1.02))
    assert figures["cells_over_one"]["per_s"] == dict.fromkeys(STEPS, 1.0)
    assert figures[ONE]["per_s"]["get"] == 10
    assert figures[CELLS]["cpu_ms"]["get"] == pytest.approx(20.4)
    assert missed(cells_bars(STEPS), figures) == []
    figures["cells_over_one"]["cpu"]["head"] = 1.04
    figures["cells_over_one"]["per_s"]["put"] = 0.96
    assert [sentence.split(" is ")[0] for sentence in missed(cells_bars(STEPS), figures)] == [
        "cells_over_one.cpu.head",
        "cells_over_one.per_s.put",
    ]
