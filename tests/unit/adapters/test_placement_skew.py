"""Chosen places fill unequal OSDs more evenly than random ones; the figures are in docs/MEASUREMENTS.md."""

from __future__ import annotations

import pytest

from tests.rig.placement_skew import Disk, Skew, skew

GIB = 1 << 30


@pytest.mark.parametrize(
    ("disks", "deviation_ratio_max"),
    [
        ([Disk(size * GIB) for size in (2, 4, 8)] * 6, 0.6),
        ([Disk(2 * GIB, GIB // 5 * (number % 5)) for number in range(18)], 0.8),
    ],
    ids=["unequal sizes", "unequal fill"],
)
def test_chosen_against_random(disks: list[Disk], deviation_ratio_max: float) -> None:
    blind: Skew = skew(disks, 64, 300, candidates=1)
    chosen: Skew = skew(disks, 64, 300)
    assert chosen.deviation < deviation_ratio_max * blind.deviation
    assert chosen.max_over_mean < blind.max_over_mean
