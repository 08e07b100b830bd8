"""The bars of docs/PACKING.md, and what the simulation counts."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from nos_ec.bench.simulate import SimulationResult, read_sizes, simulate
from nos_ec.bench.workloads import WORKLOADS, sizes
from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.splits import SPLIT_BYTES
from nos_ec.settings.sections import ConsumerSettings

GEOMETRY = Geometry()
SPLIT = ("W4", "W5")
"""Workloads whose objects are split."""


def no_clock() -> float:
    return 0.0


def consumer(window: int = 1000, policy: str = "best", split_bytes: int = SPLIT_BYTES) -> ConsumerSettings:
    values = {"policy": policy, "window_objects": window, "split_bytes": split_bytes}
    return ConsumerSettings().model_copy(update=values)


def run(
    workload: str,
    objects: int,
    policy: str = "best",
    window: int = 1000,
    names: bool = False,
    streams: int = 1,
    split_bytes: int = SPLIT_BYTES,
) -> SimulationResult:
    drawn = sizes(workload, objects, random.Random(1), size_max(GEOMETRY))
    return simulate(
        drawn, consumer(window, policy, split_bytes), GEOMETRY, timer=no_clock, names=names, streams=streams
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_bars_of_the_default_policy(workload: str) -> None:
    result = run(workload, 30_000)
    bars = {"W1": 0.997, "W2": 0.993, "W3": 0.991, "W4": 0.98, "W5": 0.955, "W7": 0.996}
    if workload in bars:
        assert result.utilisation >= bars[workload]
    else:
        assert result.utilisation >= result.bound - 0.002
    assert result.utilisation <= result.bound
    assert result.cost >= result.cost_bound
    assert (result.single_chunk_ratio == 1.0) == (workload not in SPLIT)
    assert (result.extra_reads == 0.0) == (workload not in SPLIT)
    assert result.max_wait_windows <= 2.5


@pytest.mark.parametrize("workload", SPLIT)
def test_nothing_is_split_at_the_price_of_a_chunk(workload: str) -> None:
    result = run(workload, 10_000, split_bytes=GEOMETRY.chunk_size)
    assert result.bound - 0.001 <= result.utilisation <= result.bound
    assert result.single_chunk_ratio == 1.0
    assert result.extra_reads == 0.0
    assert result.cost_bound <= result.cost <= 1.002 * result.cost_bound


def test_the_bounds_of_policy_nos_know_that_it_never_splits() -> None:
    result = run("W4", 10_000, policy="nos", split_bytes=SPLIT_BYTES)
    assert result.bound - 0.01 <= result.utilisation <= result.bound
    assert result.cost_bound <= result.cost <= 1.02 * result.cost_bound


@pytest.mark.parametrize(
    ("size", "utilisation"),
    [
        (16_384, 0.98),
        (43_700, 0.985),
        (70_000, 0.98),
        (90_000, 0.98),
        (100_000, 0.97),
        (200_000, 0.98),
        (512 << 10, 0.98),
        (700_000, 0.985),
        (1 << 20, 0.965),
        (2 << 20, 0.965),
        (3 << 20, 0.965),
        (4_000_000, 0.97),
    ],
)
@pytest.mark.parametrize("price_kib", [4, 16, 64])
def test_objects_of_one_size_cost_as_little_as_possible(size: int, utilisation: float, price_kib: int) -> None:
    result = simulate([size] * 6000, consumer(split_bytes=price_kib * 1024), GEOMETRY, timer=no_clock, names=False)
    assert result.cost_bound - 1e-3 <= result.cost <= 1.02 * result.cost_bound + 60
    assert price_kib == 64 or result.utilisation >= utilisation


def test_groups_are_long_only_where_that_saves_space() -> None:
    rng = random.Random(1)
    mixed = [rng.choice([1 << 20, 2 << 20, rng.randint(1, 128 << 10)]) for _ in range(4000)]
    found = simulate(mixed, consumer(), GEOMETRY, timer=no_clock, names=False)
    assert found.stripes > 15 * found.groups
    assert found.utilisation > 0.985
    for workload in ("W1", "W2", "W3", "W7"):
        result = run(workload, 10_000)
        assert result.stripes <= 4.4 * result.groups, workload


def test_a_higher_price_never_splits_more() -> None:
    results = [run("W4", 6000, split_bytes=price) for price in (0, 4096, 16_384, 65_536, 131_072)]
    assert sorted(results, key=lambda one: one.extra_reads, reverse=True) == results
    assert results[0].extra_reads > results[-1].extra_reads == 0.0
    assert all(one.shard_reads == 1 + one.extra_reads for one in results)


@pytest.mark.parametrize("workload", ["W1", "W2", "W7"])
def test_bars_with_a_window_of_30(workload: str) -> None:
    """At most 30 objects wait: test_packer_waits.py."""
    result = run(workload, 15_000, window=30)
    assert 0.985 <= result.utilisation <= result.bound
    assert result.single_chunk_ratio == 1.0
    assert result.max_wait_windows <= 2.0


@pytest.mark.parametrize("workload", ["W1", "W2", "W7"])
def test_four_streams_lose_at_most_two_tenths_of_a_point(workload: str) -> None:
    one, four = run(workload, 30_000), run(workload, 30_000, streams=4)
    assert one.utilisation - 0.002 <= four.utilisation <= four.bound
    assert four.single_chunk_ratio == 1.0


def test_waits_end_when_an_object_is_placed() -> None:
    """An object is placed in the open group or, with the published policy, in a group that is handed out."""
    best = run("W6", 5_000, window=30)
    assert best.max_wait_windows <= 2.0 < 10 < best.max_hold_windows, "a stripe holds far more than the window"
    nos = run("W3", 5_000, window=100, policy="nos")
    assert 0 < nos.max_hold_windows <= nos.max_wait_windows, "those left in the list count as well"


@pytest.mark.parametrize("workload", ["W1", "W2", "W3", "W7"])
def test_published_policy_is_worse_and_valid(workload: str) -> None:
    result = run(workload, 8_000, policy="nos")
    assert 0.5 < result.utilisation < run(workload, 8_000).utilisation
    assert result.single_chunk_ratio == 1.0


def test_names_cost_room() -> None:
    result = run("W2", 8_000, names=True)
    assert result.utilisation_with_names is not None
    assert 0.99 < result.utilisation_with_names < result.utilisation


def test_every_size_is_accounted_for() -> None:
    ticks = count()
    objects = [0, 5_000_000, *([100_000] * 3000), 0]
    result = simulate(objects, consumer(100), GEOMETRY, timer=lambda: float(next(ticks)))
    assert (result.skipped_empty, result.skipped_large) == (2, 1)
    assert result.objects + result.left_waiting == 3000
    assert result.objects_per_s > 0
    assert result.user_bytes == result.objects * 100_000
    assert not result.flushed


def test_a_list_too_short_for_a_group_is_flushed() -> None:
    result = simulate([100_000] * 4, consumer(), GEOMETRY, timer=no_clock)
    assert result.flushed
    assert (result.objects, result.stripes, result.left_waiting) == (4, 1, 0)


def test_nothing_to_pack_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nothing to pack: give at least one size between 1 and"):
        simulate([0, 1 << 30], consumer(), GEOMETRY, timer=no_clock)
    with pytest.raises(InvalidInput, match="cannot be negative"):
        simulate([-5], consumer(), GEOMETRY, timer=no_clock)
    with pytest.raises(InvalidInput, match="unknown packing policy"):
        simulate([5], consumer(policy="worst"), GEOMETRY, timer=no_clock)


def test_read_sizes(tmp_path: Path) -> None:
    path = tmp_path / "sizes"
    path.write_text("# bytes\n10\n\n  20 \r\n0\n")
    assert read_sizes(path) == [10, 20, 0]


@pytest.mark.parametrize("line", ["-3", "1.5", "4K", "٣", "9" * 19])
def test_read_sizes_names_the_bad_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "sizes"
    path.write_text(f"10\n\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"line 3: .* is not a size; write bytes as digits"):
        read_sizes(path)


def test_read_sizes_refuses_unusable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        read_sizes(tmp_path / "missing")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(InvalidInput, match="contains no sizes"):
        read_sizes(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not a text file"):
        read_sizes(tmp_path / "binary")
