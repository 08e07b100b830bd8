"""How many requests and how much work all processes of a store do, how long these take, and how many fail.

Everything is computed by Prometheus, from the processes whose `nos_ec_info` has the id of the store. It adds up the
buckets of histograms before it estimates a quantile, so that quantiles are never averaged, and handles counters that
start at 0 again. All figures of a time come with one query: each expression gets a label with its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from nos_ec.console.rates.prometheus import Prometheus, reading_answers
from nos_ec.console.svg import HOUR_MS, Area, lines, stacked_area
from nos_ec.core.errors import Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.monitoring.declarations import library_metrics as of_library
from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations import s3_metrics as of_s3
from nos_ec.monitoring.declarations.metric import Metric

NOW = "5m"
"""The time over which the present rates are taken."""
DAY_POINT_MS, MONTH_POINT_MS = HOUR_MS, 12 * HOUR_MS
"""The distance of the points of the last day and of the last month."""
COVERED = "1h"
"""What each point covers: quantiles over whole days would take Prometheus too long."""
MONTH_DAYS = 32
_FIGURE = "figure"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of requests or work: the names of the metrics that count it, its bytes and its errors, with the label
    matchers of each, and the histogram of its seconds, if there is one. `total` is how values of several processes are
    put together: those of the whole store are the same in each."""

    name: str
    definition: str
    count: str
    size: str
    matchers: str
    errors: str
    error_matchers: str
    seconds: Metric | None
    total: str = "sum"


def _of_s3(name: str, definition: str, size: Metric, matchers: str) -> Kind:
    seconds = of_s3.S3_SECONDS
    failed = f'{matchers},status=~"5.."'
    count, errors = f"{seconds.name}_count", of_s3.S3_ERRORS.exposed_name
    return Kind(name, definition, count, size.exposed_name, matchers, errors, failed, seconds)


def _of_programs(name: str, definition: str, matchers: str) -> Kind:
    seconds = of_library.REQUEST_SECONDS
    failed = f'{matchers},kind=~"corrupt|no_space|transient|other"'
    count, size, errors = f"{seconds.name}_count", f"{of_library.REQUEST_BYTES.name}_sum", of_library.REQUEST_FAILURES
    return Kind(name, definition, count, size, matchers, errors.exposed_name, failed, seconds)


KINDS = {
    "s3-put": _of_s3(
        "PUT by S3",
        "Objects and parts that clients of the S3 gateway stored. The time includes that of sending the body. Errors"
        " have a status of 500 or more.",
        of_s3.S3_RECEIVED_BYTES,
        'operation=~"PutObject|UploadPart"',
    ),
    "s3-get": _of_s3(
        "GET by S3",
        "Objects that clients of the S3 gateway read. The time includes that of reading the body. Errors have a status"
        " of 500 or more.",
        of_s3.S3_SENT_BYTES,
        'operation="GetObject"',
    ),
    "put": _of_programs(
        "PUT by programs",
        "Objects that programs stored by the Python API. The time is without that of their source. Errors are those"
        " that the user did not make.",
        'operation="put"',
    ),
    "get": _of_programs(
        "GET by programs",
        "Objects that programs read by the Python API. The time is until their first bytes. Errors are those that the"
        " user did not make.",
        'operation="get"',
    ),
    "pack": Kind(
        "Packing",
        "Objects that consumers packed. The time is that of a stripe group, from reading its objects to its commit."
        " Errors are objects that are tried again.",
        m.PACKED_OBJECTS.exposed_name,
        m.PACKED_BYTES.exposed_name,
        "",
        m.RETRIED_OBJECTS.exposed_name,
        "",
        m.GROUP_WRITE_SECONDS,
    ),
    "gc": Kind(
        "Copied by GC",
        "Live objects that GC rewrote. GC counts them at the end of a run. Errors are runs that failed.",
        m.GC_MOVED_OBJECTS.exposed_name,
        m.GC_MOVED_BYTES.exposed_name,
        "",
        m.GC_FAILURES.exposed_name,
        "",
        None,
        "max",
    ),
}
"""The kinds in the order of the page, by the name of their colour."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The figures of a kind, per second. The quantiles are None if nothing of the kind happened."""

    count: float
    size_bytes: float | None
    p50_s: float | None
    p99_s: float | None
    errors: float


@dataclass(frozen=True, slots=True)
class Rates:
    """The present figures of all kinds that some process exports. `answered` of the processes that answered Prometheus
    in the last hour have answered it just now; of the others nothing is counted."""

    kinds: Mapping[str, Rate]
    answered: int
    known: int


@dataclass(frozen=True, slots=True)
class Span:
    """The MiB per second and the p99 in milliseconds, of one span of time."""

    sizes: Area
    p99: Area


@dataclass(frozen=True, slots=True)
class RateHistory:
    """The last day and month. `points` has the figures of the kinds at each time, latest first."""

    day: Span
    month: Span
    points: Sequence[tuple[int, Mapping[str, Rate]]]


def expression(store_id: str, window: str) -> str:
    """Return the PromQL expression of all figures over a window. The label `figure` of each series has its name: the
    kind, a colon, and the field of Rate."""
    info = f'{m.INFO.name}{{store_id="{store_id}"}}'

    def rate(name: str, matchers: str) -> str:
        return f"(rate({name}{{{matchers}}}[{window}]) and on (job, instance) {info})"

    found: dict[str, str] = {}
    for key, kind in KINDS.items():
        found[f"{key}:count"] = f"{kind.total}{rate(kind.count, kind.matchers)}"
        found[f"{key}:size_bytes"] = f"{kind.total}{rate(kind.size, kind.matchers)}"
        found[f"{key}:errors"] = f"{kind.total}{rate(kind.errors, kind.error_matchers)}"
        if kind.seconds is not None:
            buckets = f"sum by (le) {rate(f'{kind.seconds.name}_bucket', kind.matchers)}"
            found[f"{key}:p50_s"] = f"histogram_quantile(0.5, {buckets})"
            found[f"{key}:p99_s"] = f"histogram_quantile(0.99, {buckets})"
    return _united(found)


def _united(found: Mapping[str, str]) -> str:
    return " or ".join(f'label_replace({one}, "{_FIGURE}", "{name}", "", "")' for name, one in found.items())


def read_rates(prometheus: Prometheus, store_id: str) -> Rates:
    """Return the present rates. Raises Transient."""
    info = f'{m.INFO.name}{{store_id="{store_id}"}}'
    processes = {
        "answered": f"count(count by (job, instance) ({info}))",
        "known": f"count(count by (job, instance) (last_over_time({info}[1h])))",
    }
    with reading_answers():
        series = prometheus.query(f"{expression(store_id, NOW)} or {_united(processes)}")
        found = {labels[_FIGURE]: value for labels, value in series if _is_possible(value)}
        if "known" not in found:
            raise Transient(_UNKNOWN_STORE)
        return Rates(_rates(found), int(found.get("answered", 0)), int(found["known"]))


def _is_possible(value: float) -> bool:
    """Return whether it is a number. The quantile of nothing is none."""
    return isfinite(value) and value >= 0


def _rates(found: Mapping[str, float]) -> dict[str, Rate]:
    """Return the kinds that were counted. Counters of errors begin with the first error."""
    return {
        key: Rate(
            found[f"{key}:count"],
            found.get(f"{key}:size_bytes"),
            found.get(f"{key}:p50_s"),
            found.get(f"{key}:p99_s"),
            found.get(f"{key}:errors", 0.0),
        )
        for key in KINDS
        if f"{key}:count" in found
    }


def read_rate_history(prometheus: Prometheus, store_id: str, now_ms: int) -> RateHistory:
    """Return the rates of the last day and month. Raises Transient."""
    day = _points(prometheus, store_id, now_ms, DAY_MS, DAY_POINT_MS)
    month = _points(prometheus, store_id, now_ms, MONTH_DAYS * DAY_MS, MONTH_POINT_MS)
    points = sorted((dict(month) | dict(day)).items(), reverse=True)
    return RateHistory(_span(day, 2 * DAY_POINT_MS), _span(month, 2 * MONTH_POINT_MS), points)


def _points(
    prometheus: Prometheus, store_id: str, now_ms: int, span_ms: int, step_ms: int
) -> list[tuple[int, dict[str, Rate]]]:
    """Return the figures at whole multiples of the step, oldest first."""
    start_ms, found = -(-(now_ms - span_ms) // step_ms) * step_ms, dict[int, dict[str, float]]()
    with reading_answers():
        asked = expression(store_id, COVERED)
        for labels, values in prometheus.query_range(asked, start_ms // 1000, now_ms // 1000, step_ms // 1000):
            for at_ms, value in values:
                if _is_possible(value) and start_ms <= at_ms <= now_ms and at_ms % step_ms == 0:
                    found.setdefault(at_ms, {})[labels[_FIGURE]] = value
    return [(at_ms, _rates(values)) for at_ms, values in sorted(found.items())]


def _span(points: Sequence[tuple[int, Mapping[str, Rate]]], gap_ms: int) -> Span:
    used = used_kinds(kinds for _, kinds in points)
    sizes, p99 = list[tuple[int, dict[str, float]]](), list[tuple[int, dict[str, float | None]]]()
    for at_ms, kinds in points:
        mib = {key: (kinds[key].size_bytes or 0.0) / (1 << 20) if key in kinds else 0.0 for key in used}
        sizes.append((at_ms, mib))
        p99.append((at_ms, {key: _ms(kinds[key].p99_s) if key in kinds else None for key in used}))
    return Span(stacked_area(sizes, gap_ms), lines(p99, gap_ms))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def used_kinds(found: Iterable[Mapping[str, Rate]]) -> list[str]:
    """Return the kinds that occur, in the order of KINDS."""
    used = {key for kinds in found for key in kinds}
    return [key for key in KINDS if key in used]


# --- alert rules ---------------------------------------------------------------------------------------------------
class Told(StrEnum):
    """What Prometheus says about an alert rule."""

    FIRING = "firing"
    PENDING = "pending"
    """What the rule looks for is there, but not for as long as the rule demands."""
    INACTIVE = "inactive"


def read_rules(prometheus: Prometheus, store_id: str) -> dict[str, Told]:
    """Return what Prometheus says about each rule that it has evaluated without an error, for this store. Raises
    Transient."""
    with reading_answers():
        label = _label_of(prometheus, store_id)
        found: dict[str, Told] = {}
        for rule in prometheus.rules():
            if rule["health"] == "ok":
                # An alert without the label is about all stores: no process of any of them is scraped.
                alerts = [one for one in rule["alerts"] if one["labels"].get("store", label) == label]
                states = {Told(one["state"]) for one in alerts} | {
                    Told.INACTIVE,
                    found.get(rule["name"], Told.INACTIVE),
                }
                found[rule["name"]] = next(told for told in Told if told in states)
        return found


def _label_of(prometheus: Prometheus, store_id: str) -> str:
    """Return the label `store` of the processes of this store; alerts have it."""
    series = prometheus.query(f'count by (store) ({m.INFO.name}{{store_id="{store_id}"}})')
    names = sorted({labels.get("store", "") for labels, _ in series})
    if not names:
        raise Transient(_UNKNOWN_STORE)
    if len(names) > 1:
        raise Transient(
            f"the processes of this store have several labels `store` in Prometheus: {', '.join(names)[:200]}; give all"
            " the same in its scrape configuration"
        )
    return names[0]


_UNKNOWN_STORE = "Prometheus gets no figures from any process of this store; check its scrape configuration"

assert all(re.fullmatch("[a-z0-9-]+", key) for key in KINDS)
