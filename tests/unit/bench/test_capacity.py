"""`nos-ec capacity`: its figures are those of the pages, it predicts what was measured, and docs/CAPACITY.md shows what
it prints."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from nos_ec.bench.capacity.figures import (
    COEFFICIENTS,
    Coefficient,
    Figure,
    Measured,
    coefficient_figures,
    read_measured,
)
from nos_ec.bench.capacity.plan import Plan, live_share_of, plan_of
from nos_ec.bench.gc.bound import amplification_at
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.simulation import simulate_gc
from nos_ec.bench.gc.workloads import gc_workload
from nos_ec.bench.workloads import sizes
from nos_ec.cli.app import run
from nos_ec.cli.measure.capacity import plan_text
from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.packer import size_max
from nos_ec.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
LIMIT = size_max(Geometry())
EXAMPLES = {
    "2 x 10^9": ["--objects", "2e9", "--mean-size", "90000", "--puts", "500", "--gets", "2000", "--deletes", "20%"],
    "10^10": [
        "--objects",
        "1e10",
        "--mean-size",
        "90000",
        "--puts",
        "22222",
        "--gets",
        "20000",
        "--deletes",
        "3.33e10",
    ],
}
Capacity = Callable[..., Any]


@pytest.fixture
def capacity(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capacity:
    """Run the command with default settings, and return its JSON."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, exits: int = 0) -> Any:
        assert run(["capacity", *arguments, "--json"]) == exits
        done = capfd.readouterr()
        return json.loads(done.err if exits else done.out)

    return call


def section_of(where: str) -> str:
    """The text below a heading of a page, with each space once and without emphasis."""
    page, heading = where.split(", ", 1)
    text = (DOCS / page).read_text()
    found = re.split(rf"^#+ {re.escape(heading)}\n", text, flags=re.M)
    assert len(found) == 2, f"{where}: no such section, or several"
    return re.sub(r"\s+", " ", re.split(r"^#+ ", found[1], maxsplit=1, flags=re.M)[0])


@pytest.mark.parametrize("coefficient", COEFFICIENTS, ids=lambda one: one.name)
def test_coefficients_are_those_of_the_pages(coefficient: Coefficient) -> None:
    section = section_of(coefficient.section)
    for quote in coefficient.quotes.values():
        assert re.search(re.escape(quote) + r"(?![\d.,]*\d\d)(?!\.\d)", section), f"{coefficient.section}: {quote}"
    assert list(coefficient.quotes) == sorted(coefficient.quotes)


def test_a_coefficient_is_a_line_between_sizes() -> None:
    line = Coefficient("x", "ms", "", {1000: "a 1.0", 2000: "b 3.0", 4000: "b 4.0"}, scale=2)
    assert [line.at(size) for size in (1000, 1500, 2000, 3000, 6000)] == pytest.approx([2, 4, 6, 7, 10])
    assert line.at(1) == 1, "never below half of the smallest"
    assert Coefficient("x", "", "", {0: "17,416"}).at(5) == 17_416


def test_the_mean_sizes_of_the_workloads_are_right() -> None:
    (packed,) = (one for one in COEFFICIENTS if one.name == "pack.osds")
    (put,) = (one for one in COEFFICIENTS if one.name == "put.osds")
    w2, w1 = (fmean(sizes(name, 50_000, random.Random(1), LIMIT)) for name in ("W2", "W1"))
    assert list(packed.quotes) == pytest.approx([w2, w1], rel=0.05)
    small = fmean(size for size in sizes("W1", 50_000, random.Random(1), LIMIT) if size < 1 << 20)
    assert list(put.quotes)[-1] == pytest.approx(small, rel=0.05)


@pytest.mark.parametrize(("group", "w1", "w2"), [("the client", 0.65, 0.23), ("OSDs", 1.81, 0.43)])
def test_a_line_through_two_workloads_predicts_other_sizes(group: str, w1: float, w2: float) -> None:
    """One table of docs/MEASUREMENTS.md has the figures of all sizes; docs/CAPACITY.md shows those of the two."""
    rows = re.findall(rf"\| of which {group} \|([^\n]*)\|", (DOCS / "MEASUREMENTS.md").read_text())
    (cells,) = ([cell.split("/")[-1] for cell in row.split("|")] for row in rows if len(row.split("|")) == 7)
    measured = [float(cell) for cell in cells]
    assert measured[:2] == [w1, w2]
    line = Coefficient("x", "ms", "", {22_937: f"{w2}", 262_144: f"{w1}"})
    assert line.at(70_000) == pytest.approx(fmean(measured[2:5]), rel=0.1)
    assert line.at(1 << 20) == pytest.approx(fmean(measured[5:]), rel=0.1)


@pytest.mark.parametrize(("mean_days", "space", "write"), [(100, 1.196, 3.13), (9, 1.325, 2.20)])
def test_amplification_is_that_of_the_simulation(mean_days: float, space: float, write: float) -> None:
    """The first is workload A of docs/GC.md. The second lives so briefly that the price floor binds."""
    live_share, limit = live_share_of(Settings(), mean_days)
    assert (limit.startswith("gc.price_days")) == (mean_days == 9)
    assert (amplification_at(live_share), 1 / (1 - live_share)) == pytest.approx((space, write), rel=0.03)
    if mean_days == 9:
        workload = gc_workload("A", 1)
        workload.mean_days = workload.history_days = mean_days
        workload.days, workload.measured_days = 3 * mean_days, 1.5 * mean_days
        result = simulate_gc(workload, GcOptions(streams=1, blocks=100, block_bytes=64))
        assert (result.space_amplification, result.write_amplification) == pytest.approx((space, write), rel=0.03)


def test_each_policy_of_gc_has_its_own_limit() -> None:
    settings = Settings()

    def share(**values: object) -> float:
        return live_share_of(settings.model_copy(update={"gc": settings.gc.model_copy(update=values)}), 100)[0]

    assert share(policy="threshold") == 1 - settings.gc.hole_ratio_min
    assert 0 < share(policy="threshold", hole_ratio_min=1.0) < 1e-6
    assert share(policy="price", price_days=5.0) > share(policy="price", price_days=50.0)
    assert share(space_amp=1.4) < share(space_amp=1.2)


def test_lines_name_all_that_they_stand_on(capacity: Capacity) -> None:
    """Whatever changes a line is in its basis, or in the basis of a line there."""
    found = capacity(*EXAMPLES["10^10"])
    plan = plan_of_json(found)

    def stands_on(name: str, on: str) -> bool:
        basis = plan.lines[name].basis
        return on in basis or any(one in plan.lines and stands_on(one, on) for one in basis)

    assert {name for line in plan.lines.values() for name in line.basis} <= {*plan.figures, *plan.lines}
    for figure, one in plan.figures.items():
        other = plan_of({**plan.figures, figure: replace(one, value=one.value * 1.7)})
        changed = {name for name, line in other.lines.items() if line.value != plan.lines[name].value}
        assert changed == {name for name in changed if stands_on(name, figure)}, figure
        assert one.source, figure


def plan_of_json(found: Any) -> Plan:
    """Compute the plan again from the figures of the JSON, which are rounded."""
    return plan_of({name: Figure(**values) for name, values in found["figures"].items()})


def test_the_limit_that_binds_determines_the_number_of_cells(capacity: Capacity) -> None:
    lines = capacity(*EXAMPLES["2 x 10^9"])["lines"]
    needs = {name: line["value"] for name, line in lines.items() if name.startswith("cells for ")}
    binding = max(needs, key=lambda name: needs[name])
    assert lines["cells"]["value"] == ceil(needs[binding])
    assert lines["cells"]["note"] == f"limited by{binding.removeprefix('cells for')}"
    assert lines["objects of a cell"]["value"] * lines["cells"]["value"] == pytest.approx(2e9)
    assert "memory of a database host" in lines["cells"]["note"]
    sooner = capacity(*EXAMPLES["2 x 10^9"], "--rebuild-hours", "6")["lines"]
    assert sooner["cells"]["value"] > lines["cells"]["value"]
    assert "a rebuild" in sooner["cells"]["note"]


def test_more_workers_of_gc_need_fewer_cells(capacity: Capacity, monkeypatch: pytest.MonkeyPatch) -> None:
    def needed() -> Any:
        return capacity(*EXAMPLES["10^10"])["lines"]

    one = needed()
    monkeypatch.setenv("NOS_EC_GC__WORKERS", "4")
    four, name = needed(), "cells for GC in 20 h a day"
    assert four[name]["value"] == pytest.approx(one[name]["value"] / 4, rel=1e-3)
    assert four["GC a day"]["value"] == pytest.approx(one["GC a day"]["value"] / 4, rel=1e-3)
    assert four["cores of GC"] == one["cores of GC"]


def test_measured_figures_replace_those_of_the_pages(capacity: Capacity, tmp_path: Path) -> None:
    def file(name: str, figures: object) -> list[str]:
        (tmp_path / name).write_text(json.dumps(figures))
        return ["--measured", name]

    small = {"size": 4096, "ways": ["store", "log"], "log": {"put_batch": 3.0}}
    large = {"size": 80_000, "ways": ["log"], "log": {"put_batch": 7.0, "cpu_ms_per_object": {"pack": {"client": 1.0}}}}
    gc = {"space_amplification": 1.5, "write_amplification": 1.25}
    space = {"cells": {"90000": {"ours_over_simulation": 1.02}}}
    files = [*file("s", small), *file("l", large), *file("gc", gc), *file("space", space)]
    figures = capacity(*EXAMPLES["2 x 10^9"], *files)["figures"]
    plain = capacity(*EXAMPLES["2 x 10^9"])["figures"]
    assert figures["put.batch"] == {"value": 7.0, "unit": "objects", "source": "l, measured with 80,000 bytes"}
    assert 1.0 < figures["pack.consumer"]["value"] < 1.2, "in proportion to the line of the page"
    assert figures["gc.space_amplification"] == {"value": 1.5, "unit": "", "source": "gc, simulate gc"}
    assert figures["space.over_simulation"]["value"] == 1.02
    assert figures["pack.consumer"]["source"] == "l, measured with 80,000 bytes, adjusted to 90,000"
    assert figures["pack.osds"] == plain["pack.osds"]
    assert coefficient_figures(4096, [Measured("l", 80_000, large)])["put.batch"].value == 7.0


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "not the output"), ("[1]", "not the output"), ('{"a": 1}', "no figure that"), (None, "No such")],
)
def test_files_without_figures_are_refused(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "figures"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_measured(path, LIMIT)


def test_bad_input_is_refused(capacity: Capacity, tmp_path: Path) -> None:
    start = ["--objects", "1e6", "--puts", "10"]
    for more, says in (
        ([], "--mean-size or --sizes"),
        (["--mean-size", "8MiB"], "are not packed"),
        (["--mean-size", "1000", "--deletes", "x%"], "--deletes"),
        (["--mean-size", "1000", "--deletes", "nan"], "--deletes"),
        (["--mean-size", "1000", "--gets", "inf"], "finite"),
    ):
        assert says in capacity(*start, *more, exits=2)["message"]


def test_sizes_come_from_a_file_and_nothing_has_to_be_deleted(capacity: Capacity, tmp_path: Path) -> None:
    (tmp_path / "sizes").write_text("3000\n5000\n" * 2000)
    found = capacity("--objects", "1e6", "--puts", "0", "--sizes", "sizes")
    assert found["figures"]["size"]["value"] == 4000
    assert found["figures"]["gc.write_amplification"]["source"] == "nothing is deleted"
    assert found["lines"]["GC copies"]["value"] == 0
    assert found["lines"]["cells"]["value"] == 1


def test_the_page_shows_what_the_command_computes(capacity: Capacity) -> None:
    """To write the table again, copy it from the message."""
    page = (DOCS / "CAPACITY.md").read_text()
    plans = []
    for arguments in EXAMPLES.values():
        assert f"nos-ec capacity {' '.join(arguments)}\n" in page
        plans.append(capacity(*arguments)["lines"])
    rows = [f"| | {' objects | '.join(EXAMPLES)} objects |", "|---|---|---|"]
    for part, names in groupby(plans[0], lambda name: plans[0][name]["part"]):
        rows.append(f"| **{part}** | | |")
        for name in names:
            cells = [plan_text(plan[name]["value"], plan[name]["unit"], plan[name]["note"]) for plan in plans]
            rows.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(rows)
    assert table in page, f"docs/CAPACITY.md lacks:\n{table}"
