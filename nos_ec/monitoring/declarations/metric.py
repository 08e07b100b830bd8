"""Defines metrics. `metrics.py` declares each of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "nos_ec_"
"""Prefix of the names of all metrics."""
PRODUCER, CONSUMER, GC, API, S3 = "producer", "consumer", "gc", "api", "s3"
STORE = (PRODUCER, GC, API)
"""Services that export the figures of the whole store. Consumers do not, because there may be many of them."""


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    """Only grows, and starts at 0 with the process, so use its rate."""
    GAUGE = "gauge"
    """The current value."""
    HISTOGRAM = "histogram"
    """Counts by size; the upper bounds are inclusive."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: `meaning` describes what is measured, `advice` what to do about it, and `services` lists the processes
    that export it."""

    name: str
    kind: Kind
    services: tuple[str, ...]
    labels: tuple[str, ...]
    meaning: str
    advice: str

    @property
    def exposed_name(self) -> str:
        """The name to use in queries."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


class Declarations:
    """Collects the metrics that a module declares, in order."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []

    def counter(self, name: str, services: tuple[str, ...], meaning: str, advice: str, *labels: str) -> Metric:
        """Declare a counter."""
        return self._declare(Kind.COUNTER, name, services, meaning, advice, labels)

    def gauge(self, name: str, services: tuple[str, ...], meaning: str, advice: str, *labels: str) -> Metric:
        """Declare a gauge."""
        return self._declare(Kind.GAUGE, name, services, meaning, advice, labels)

    def histogram(self, name: str, services: tuple[str, ...], meaning: str, advice: str, *labels: str) -> Metric:
        """Declare a histogram."""
        return self._declare(Kind.HISTOGRAM, name, services, meaning, advice, labels)

    def _declare(
        self, kind: Kind, name: str, services: tuple[str, ...], meaning: str, advice: str, labels: tuple[str, ...]
    ) -> Metric:
        metric = Metric(PREFIX + name, kind, services, labels, meaning, advice)
        assert all(metric.name != known.name for known in self.metrics), metric.name
        self.metrics.append(metric)
        return metric
