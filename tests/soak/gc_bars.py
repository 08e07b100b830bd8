"""The acceptance bars of the GC policies, by simulation (docs/GC.md). Takes about half an hour of one processor.

usage: .venv/bin/python tests/soak/gc_bars.py [SEEDS [BLOCK_OBJECTS]]
"""

from __future__ import annotations

import sys

from tests.rig.gc_bars import BARS, measure


def main() -> int:
    """Print the table. Returns 1 if a bar is missed."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    size = {"blocks": 2000, "block_bytes": int(sys.argv[2]) if len(sys.argv) > 2 else 64}
    print("| workload | target | SA | WA | bar | met |\n|---|---:|---:|---:|---:|---|", flush=True)
    missed = 0
    for one in measure(BARS, range(1, seeds + 1), size):
        bar = f"{one.most}" if not one.least else f"{one.least} to {one.most}"
        if one.share is not None:
            bar = f"{one.share:.2f} of its copies, at most {bar}"
        met = "yes" if one.is_met else "NO"
        missed += not one.is_met
        measured = f"{one.space_amplification:.3f} | {one.write_amplification:.3f}"
        print(f"| {one.title} | {one.space_amp} | {measured} | {bar} | {met} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
