"""The bars of `nos-ec simulate gc`, of docs/GC.md: the runs that they need, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.packer import PackerOptions
from nos_ec.bench.gc.simulation import GcResult, simulate_gc
from nos_ec.bench.gc.workloads import gc_workload, sized
from nos_ec.core.gc.gc_policy import Rank, SpaceTarget, break_even_days, hole_share
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.packer import size_max
from nos_ec.settings.sections import ConsumerSettings


@dataclass(frozen=True)
class Bar:
    """The mean write amplification may be at most `most` (and at least `least`), at a mean space amplification of at
    most the target."""

    workload: str
    space_amp: float
    most: float
    least: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Of its row."""
        names = {
            "sort_window_blocks": "fresh objects sorted in {} blocks",
            "hints": "expiry known",
            "min_age_days": "landing delay {} d",
        }
        return ", ".join(
            [self.workload, *(text.format(self.options[n]) for n, text in names.items() if n in self.options)]
        )


_SORTED = {"sort_window_blocks": 16}
_DELAYED = {"min_age_days": 1}
BARS = (
    Bar("A", 1.2, 3.30, 2.95),
    Bar("A", 1.4, 2.02, 1.85),
    Bar("B", 1.2, 2.50),
    Bar("B", 1.4, 1.70),
    Bar("B", 1.8, 1.32),
    Bar("B", 1.2, 2.25, options=_DELAYED),
    Bar("B", 1.4, 1.48, options=_DELAYED),
    Bar("C", 1.2, 3.20),
    Bar("C", 1.4, 2.10),
    Bar("D", 1.2, 2.00),
    Bar("D", 1.4, 1.55),
    Bar("D", 1.6, 1.32),
    Bar("D", 1.2, 1.82, options=_SORTED),
    Bar("D-mixed", 1.2, 1.80, options=_SORTED | {"hints": True}),
    Bar("E", 1.2, 1.57),
    Bar("E", 1.4, 1.20),
)
RELATIVE = {"B": 0.68, "D": 0.52, "E": 0.43}
"""(Write amplification - 1) at 1.2, as a share of what one stream and greedy collection need."""
GREEDY = {"streams": 1, "sort_survivors": False}
PACKED = 1.05
"""With the packer of a store, its padding counted, space and write amplification may be this many times what they may
be with objects that are written one after the other."""


@dataclass(frozen=True)
class Measured:
    """The mean of several seeds, and its bar. most: the bar of write amplification, or of the share."""

    title: str
    space_amp: float
    space_amplification: float
    write_amplification: float
    least: float
    most: float
    share: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the bar is met."""
        value = self.write_amplification if self.share is None else self.share
        return self.least <= value <= self.most and self.space_amplification <= self.space_amp


def run(workload: str, options: GcOptions) -> GcResult:
    """One run."""
    return simulate_gc(gc_workload(workload, options.seed), options)


def measure_packed(bars: Sequence[Bar], seeds: Sequence[int], blocks: int, object_bytes: int) -> Iterator[Measured]:
    """Run the bars with objects of that many bytes and the packer of a store with default settings, which has an order
    of its own: the bars for another order are left out. The space amplification is that with padding."""
    geometry = Geometry()
    packer = PackerOptions(geometry, ConsumerSettings())
    for bar in bars:
        if "sort_window_blocks" in bar.options:
            continue
        results = []
        for seed in seeds:
            workload = sized(gc_workload(bar.workload, seed), object_bytes, seed, size_max(geometry))
            policy = SpaceTarget(bar.space_amp, floor_days=0)
            options = GcOptions(
                policy, blocks=blocks, block_bytes=geometry.block_size, packer=packer, seed=seed, **bar.options
            )
            results.append(simulate_gc(workload, options))
        space = fmean(r.space_amplification_with_padding or 0 for r in results)
        written = fmean(r.write_amplification for r in results)
        yield Measured(bar.title, bar.space_amp * PACKED, space, written, bar.least / PACKED, bar.most * PACKED)


def measure(
    bars: Sequence[Bar], seeds: Sequence[int], size: dict[str, int], relative: dict[str, float] = RELATIVE
) -> Iterator[Measured]:
    """Run the bars one after the other, then the relative ones of the workloads among them."""
    found: dict[str, tuple[float, float]] = {}
    for bar in bars:
        space, written = _mean(bar.workload, bar.space_amp, seeds, size | bar.options)
        if bar.space_amp == 1.2 and not bar.options:
            found[bar.workload] = (space, written)
        yield Measured(bar.title, bar.space_amp, space, written, bar.least, bar.most)
    for workload, most in relative.items():
        if workload in found:
            space, greedy = _mean(workload, 1.2, seeds, size | GREEDY, hole_share)
            share = (found[workload][1] - 1) / (greedy - 1)
            yield Measured(f"{workload}, one stream and greedy", 1.2, space, greedy, 0, most, share)


def _mean(
    workload: str,
    space_amp: float,
    seeds: Sequence[int],
    options: dict[str, Any],
    rank: Rank = break_even_days,
) -> tuple[float, float]:
    policy = SpaceTarget(space_amp, floor_days=0, rank=rank)
    results = [run(workload, GcOptions(policy, seed=seed, **options)) for seed in seeds]
    return fmean(r.space_amplification for r in results), fmean(r.write_amplification for r in results)
