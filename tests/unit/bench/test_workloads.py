"""The workloads match docs/PACKING.md, and are reproducible."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from nos_ec.bench.workloads import WORKLOADS, sizes
from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.packer import size_max

KIB = 1024
LIMIT = size_max(Geometry())
RANGES = {
    "W1": (1, LIMIT),
    "W2": (1, 128 * KIB),
    "W3": (1, 128 * KIB),
    "W4": (65 * KIB, 70 * KIB),
    "W5": (100 * KIB, 124 * KIB),
    "W6": (204, 4 * KIB),
    "W7": (4 * KIB, 600 * KIB),
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_sizes_are_in_range_and_repeat(workload: str) -> None:
    drawn = list(sizes(workload, 3000, random.Random(1), LIMIT))
    low, high = RANGES[workload]
    assert len(drawn) == 3000
    assert low <= min(drawn)
    assert max(drawn) <= high
    assert drawn == list(sizes(workload, 3000, random.Random(1), LIMIT))
    assert drawn != list(sizes(workload, 3000, random.Random(2), LIMIT))


def test_shares_and_means() -> None:
    w1 = list(sizes("W1", 20_000, random.Random(1), LIMIT))
    assert 0.78 < sum(size <= 128 * KIB for size in w1) / 20_000 < 0.82
    assert 0.04 < sum(size > 1024 * KIB for size in w1) / 20_000 < 0.06
    assert 21 * KIB < mean(sizes("W2", 20_000, random.Random(1), LIMIT)) < 24 * KIB


def test_objects_may_all_have_one_size() -> None:
    assert list(sizes(70_000, 3, random.Random(1), LIMIT)) == [70_000] * 3


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match=f"objects of {LIMIT + 1} bytes are not packed; choose at most {LIMIT}"):
        sizes(LIMIT + 1, 1, random.Random(1), LIMIT)
    with pytest.raises(InvalidInput, match="choose one of: W1, W2"):
        sizes("W8", 1, random.Random(1), LIMIT)
    with pytest.raises(InvalidInput, match="cannot be negative"):
        sizes("W2", -1, random.Random(1), LIMIT)
    with pytest.raises(InvalidInput, match="W1 has objects over 1 MiB"):
        sizes("W1", 1, random.Random(1), 500_000)
