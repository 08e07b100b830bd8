"""The acceptance bars of the GC policies, by simulation (docs/GC.md).

The first command takes about half an hour of one processor, the second a quarter. With --object-bytes, objects are
packed as a store packs them, and what they leave empty counts.

    .venv/bin/python tests/soak/gc_bars.py --seeds 3 --block-objects 64
    .venv/bin/python tests/soak/gc_bars.py --seeds 1 --blocks 4000 --object-bytes 1048576
"""

from __future__ import annotations

import argparse
import sys

from tests.rig.gc_bars import BARS, measure, measure_packed


def main() -> int:
    """Print the table. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Measure what the bars of docs/GC.md ask for.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--block-objects", type=int, default=64)
    parser.add_argument("--object-bytes", type=int, help="pack objects of this size as a store does, padding counted")
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    if given.object_bytes is None:
        found = measure(BARS, seeds, {"blocks": given.blocks, "block_bytes": given.block_objects})
    else:
        found = measure_packed(BARS, seeds, given.blocks, given.object_bytes)
    print("| workload | target | SA | WA | bar | met |\n|---|---:|---:|---:|---:|---|", flush=True)
    missed = 0
    for one in found:
        bar = f"{one.most:.2f}" if not one.least else f"{one.least:.2f} to {one.most:.2f}"
        if one.share is not None:
            bar = f"{one.share:.2f} of its copies, at most {bar}"
        met = "yes" if one.is_met else "NO"
        missed += not one.is_met
        measured = f"{one.space_amplification:.3f} | {one.write_amplification:.3f}"
        print(f"| {one.title} | {one.space_amp:.2f} | {measured} | {bar} | {met} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
