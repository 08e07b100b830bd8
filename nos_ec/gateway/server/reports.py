"""What a process of the gateway reports to its supervisor every second: its samples, whether its loops turn, and what
it lacks. One line of JSON over a socket of their own.

The supervisor adds up the last reports. It asks nobody, so that a process that hangs delays no scrape. What a process
had counted stays in the sums when it ends, because a counter that shrinks looks to Prometheus like one that began at 0.
At most the last second of a process that is killed is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nos_ec.core.histogram import Histogram
from nos_ec.monitoring.declarations.metric import Kind, Metric
from nos_ec.monitoring.declarations.metrics import INFO, METRICS, SOURCE_FAILURES
from nos_ec.monitoring.exposition import Sample

REPORT_MS = 1000

_METRICS = {metric.name: metric for metric in METRICS}
_Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Report:
    """stalled: of its loops. problems: what it lacks to be ready, by name; empty when it is. See `health.Answer`."""

    store_id: str
    samples: list[Sample]
    stalled: Mapping[str, str]
    problems: Mapping[str, str]

    def line(self) -> bytes:
        """As it is sent."""
        data = {
            "store_id": self.store_id,
            "samples": [_encoded(sample) for sample in self.samples if _is_reported(sample)],
            "stalled": dict(self.stalled),
            "problems": dict(self.problems),
        }
        return json.dumps(data).encode() + b"\n"


def report_of(line: bytes) -> Report:
    """The report that was sent."""
    data = json.loads(line)
    return Report(data["store_id"], list(map(_decoded, data["samples"])), data["stalled"], data["problems"])


class Sums:
    """The samples of a gateway, over all its processes."""

    def __init__(self) -> None:
        self._ended: dict[_Key, Sample] = {}

    def bury(self, report: Report) -> None:
        """Keep what a process had counted that has ended."""
        _add(self._ended, (sample for sample in report.samples if sample.metric.kind is not Kind.GAUGE))

    def samples(self, reports: Iterable[Report]) -> Iterator[Sample]:
        """reports: the last ones of the processes that run."""
        found: dict[_Key, Sample] = {}
        _add(found, self._ended.values())
        for report in reports:
            _add(found, report.samples)
        yield from found.values()


def _add(sums: dict[_Key, Sample], samples: Iterable[Sample]) -> None:
    for sample in samples:
        key = sample.metric.name, sample.labels
        known = sums.get(key)
        sums[key] = sample if known is None else Sample(sample.metric, _sum(known.value, sample.value), sample.labels)


def _sum(first: float | Histogram, second: float | Histogram) -> float | Histogram:
    if isinstance(first, Histogram):
        assert isinstance(second, Histogram)
        return first.plus(second)
    assert not isinstance(second, Histogram)
    return first + second


def _is_reported(sample: Sample) -> bool:
    """The supervisor says who it is by itself."""
    return sample.metric is not INFO and (sample.metric, sample.labels) != (SOURCE_FAILURES, ("process",))


def _encoded(sample: Sample) -> list[Any]:
    value: Any = sample.value
    if isinstance(value, Histogram):
        value = {"bounds": value.bounds, "counts": value.counts, "sum": value.sum}
    return [sample.metric.name, sample.labels, value]


def _decoded(data: list[Any]) -> Sample:
    name, labels, value = data
    metric: Metric = _METRICS[name]
    if isinstance(value, dict):
        value = Histogram.of(value["bounds"], value["counts"], value["sum"])
    return Sample(metric, value, tuple(labels))
