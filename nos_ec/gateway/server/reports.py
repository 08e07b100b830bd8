"""The reports that a process of the gateway sends to its supervisor every second: samples of metrics, stalled loops,
and problems. A report is one line of JSON on a socket pair.

The supervisor adds up the last reports. It does not query the processes, so a process that hangs does not delay a
scrape. The counters of a process that has ended stay in the sums, because Prometheus takes a counter that shrinks for
one that was reset. If a process is killed, at most its last second is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nos_ec.core.histogram import Histogram
from nos_ec.monitoring.declarations.metric import Kind, Metric
from nos_ec.monitoring.declarations.metrics import INFO, METRICS, SOURCE_FAILURES
from nos_ec.monitoring.exposition import Sample, SampleSums, add_samples

REPORT_MS = 1000

_METRICS = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one process. `stalled` has an entry for each stalled loop. `problems` has an entry for each reason
    why the process is not ready, and is empty when it is. See `health.Answer`."""

    store_id: str
    samples: list[Sample]
    stalled: Mapping[str, str]
    problems: Mapping[str, str]

    def line(self) -> bytes:
        """Return the report as one line of JSON."""
        data = {
            "store_id": self.store_id,
            "samples": [_encoded(sample) for sample in self.samples if _is_reported(sample)],
            "stalled": dict(self.stalled),
            "problems": dict(self.problems),
        }
        return json.dumps(data).encode() + b"\n"


def report_of(line: bytes) -> Report:
    """Return the report in a line of JSON."""
    data = json.loads(line)
    return Report(data["store_id"], list(map(_decoded, data["samples"])), data["stalled"], data["problems"])


class Sums:
    """The sums of the samples of all processes of a gateway."""

    def __init__(self) -> None:
        self._ended: SampleSums = {}

    def add_ended(self, report: Report) -> None:
        """Keep the counters of a process that has ended, from its last report."""
        add_samples(self._ended, (sample for sample in report.samples if sample.metric.kind is not Kind.GAUGE))

    def samples(self, reports: Iterable[Report]) -> Iterator[Sample]:
        """Yield the sums. `reports` are the last reports of the running processes."""
        found: SampleSums = {}
        add_samples(found, self._ended.values())
        for report in reports:
            add_samples(found, report.samples)
        yield from found.values()


def _is_reported(sample: Sample) -> bool:
    """Return whether a sample is reported. The supervisor exposes the build info and its own failures itself."""
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
