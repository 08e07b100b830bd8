"""How evenly 2,000 blocks fill unequal OSDs: chosen places against random ones (docs/MEASUREMENTS.md)."""

from __future__ import annotations

import random
from statistics import fmean

from tests.rig.placement_skew import Disk, skew

GIB = 1 << 30
BLOCKS = 2000
SEEDS = 5


def scenarios() -> dict[str, tuple[list[Disk], int]]:
    """Disks and number of placement groups, by name."""
    rng = random.Random(7)
    return {
        "36 alike": ([Disk(5 * GIB)] * 36, 256),
        "36 of 2, 4 and 8 GiB": ([Disk(size * GIB) for size in (2, 4, 8)] * 12, 256),
        "36 alike, 10 to 50 % full": ([Disk(5 * GIB, int(5 * GIB * rng.uniform(0.1, 0.5))) for _ in range(36)], 256),
        "36 alike, 4 of them new": ([Disk(5 * GIB)] * 4 + [Disk(5 * GIB, 2 * GIB)] * 32, 256),
        "12 of 12 and 24 GiB": ([Disk(size * GIB) for size in (12, 24)] * 6, 32),
    }


def main() -> None:
    """Print the table."""
    print("| OSDs | candidates | mean fill | fullest / mean | standard deviation |\n|---|---:|---:|---:|---:|")
    for name, (disks, groups) in scenarios().items():
        for candidates in (1, 2, 4, 8, 16):
            found = [skew(disks, groups, BLOCKS, candidates, seed) for seed in range(SEEDS)]
            mean = fmean(each.mean for each in found)
            over = fmean(each.max_over_mean for each in found)
            deviation = fmean(each.deviation for each in found)
            print(f"| {name} | {candidates} | {mean:.3f} | {over:.3f} | {deviation:.4f} |")


if __name__ == "__main__":
    main()
