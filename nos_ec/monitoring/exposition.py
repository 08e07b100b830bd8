"""Converts the counters of services to the text format of Prometheus.

Nothing is counted here. Every scrape calls the sources, which read the services' own counters. So each figure has one
source, and a process that is never scraped has no costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from nos_ec.core.errors import NosError
from nos_ec.core.histogram import Histogram
from nos_ec.monitoring.declarations.metric import Kind, Metric
from nos_ec.monitoring.declarations.metrics import SOURCE_FAILURES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric; `labels` are the values of the metric's labels, in the same order."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Sample]]
SampleSums = dict[tuple[str, tuple[str, ...]], Sample]
"""Sums of samples, by the name of the metric and the labels."""


def summed(samples: Iterable[Sample]) -> Iterable[Sample]:
    """Return the sums of samples, by metric and labels."""
    sums: SampleSums = {}
    add_samples(sums, samples)
    return sums.values()


def add_samples(sums: SampleSums, samples: Iterable[Sample]) -> None:
    """Add samples to sums by metric and labels."""
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


class Exposition(Collector):
    """The sources of one process, in a separate registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._sources: dict[str, Source] = {}
        self._failures: dict[str, int] = {}
        registry.register(self)

    def add(self, name: str, source: Source) -> None:
        """Call `source` at every scrape, on the scraper's thread. It must only read. Logs and metrics show its name."""
        self._sources[name] = source
        self._failures[name] = 0

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus (CONTENT_TYPE)."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yields all metrics; prometheus_client calls it at a scrape. A source that fails is left out and counted."""
        families: dict[str, Family] = {}
        for sample in self.samples():
            family = families.setdefault(sample.metric.name, _family(sample.metric))
            _add(family, sample)
        yield from families.values()

    def samples(self) -> Iterator[Sample]:
        """Yields the current samples of all sources."""
        for name, source in list(self._sources.items()):
            try:
                yield from list(source())
            except NosError as error:
                self._failures[name] += 1
                _log.warning("figures cannot be read", source=name, error=str(error))
        for name, count in self._failures.items():
            yield Sample(SOURCE_FAILURES, count, (name,))


def _family(metric: Metric) -> Family:
    kinds: dict[Kind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.meaning, labels=metric.labels)


def _add(family: Family, sample: Sample) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(sample.value, Histogram)
        counts = sample.value.cumulative()
        bounds = [*(str(float(bound)) for bound in sample.value.bounds), "+Inf"]
        family.add_metric(sample.labels, list(zip(bounds, counts, strict=True)), sample.value.sum)
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        assert not isinstance(sample.value, Histogram)
        family.add_metric(sample.labels, sample.value)
