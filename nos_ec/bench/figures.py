"""Computes the figures of runs: rates, percentiles, medians over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one way in one round. `cpu_s` has CPU seconds by group of processes, None for a group on
    another machine. The OSDs counted client_writes, store_writes and allocated_bytes during the run."""

    objects: int
    bytes: int
    seconds: float
    cpu_s: Mapping[str, float | None]
    client_writes: int
    store_writes: int
    allocated_bytes: int

    @property
    def objects_per_s(self) -> float:
        """Objects stored per second."""
        return self.objects / self.seconds


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is at least as large as this percentage of the values (nearest rank). Raises
    ValueError if there are no values."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    rank = -(-percent * len(ordered) // 100)
    return ordered[max(0, int(rank) - 1)]


def summary(runs: Sequence[Run]) -> dict[str, object]:
    """Return the figures of all rounds of one way: medians of the rates, and costs per object over all rounds."""
    objects, size = sum(run.objects for run in runs), sum(run.bytes for run in runs)
    return {
        "objects_per_s": median(run.objects_per_s for run in runs),
        "mb_per_s": median(run.bytes / run.seconds / 1e6 for run in runs),
        "raw_bytes_per_user_byte": sum(run.allocated_bytes for run in runs) / size,
        "client_write_ops_per_object": sum(run.client_writes for run in runs) / objects,
        "osd_write_ops_per_object": sum(run.store_writes for run in runs) / objects,
        "cpu_ms_per_object": cpu_ms(runs),
        "rounds_objects_per_s": [run.objects_per_s for run in runs],
    }


def ratio(runs: Sequence[Run], others: Sequence[Run]) -> float:
    """Return how many times as fast as `others` the `runs` were, in objects/s, as the median over the rounds."""
    return median(run.objects_per_s / other.objects_per_s for run, other in zip(runs, others, strict=True))


def known_median(values: Sequence[float | None]) -> float | None:
    """Return the median; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return median(known) if len(known) == len(values) else None


def cpu_ms(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return CPU milliseconds per object over all runs, by group of processes, with a `total` of the known groups."""
    return cpu_ms_per([run.cpu_s for run in runs], sum(run.objects for run in runs))


def cpu_ms_per(cpu_s: Sequence[Mapping[str, float | None]], units: float) -> dict[str, float | None]:
    """Return CPU milliseconds per unit over all runs, by group of processes, with a `total` of the known groups.
    `cpu_s` has the CPU seconds of each run by group; a group is unknown (None) if it is unknown in any run."""
    found: dict[str, float | None] = {}
    for name in cpu_s[0]:
        seconds = [one[name] for one in cpu_s]
        known = [one for one in seconds if one is not None]
        found[name] = sum(known) * 1000 / units if len(known) == len(seconds) else None
    found["total"] = sum(value for value in found.values() if value is not None)
    return found


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    return {f"p{percent}": percentile(seconds, percent) * 1000 for percent in PERCENTILES}
