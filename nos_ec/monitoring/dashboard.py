"""The Grafana dashboard: every metric has a panel. `make reference` writes deploy/grafana/nos-ec.json from it.

A metric's panel follows from its declaration: the name determines the unit and the row, the kind determines the query,
and meaning and advice form the description. Only the panels of the overview, which combine metrics, are defined here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations import space_metrics as of_space
from nos_ec.monitoring.declarations.metric import PREFIX, Kind, Metric
from nos_ec.monitoring.declarations.metric import STORE as STORE_SERVICES
from nos_ec.monitoring.declarations.metrics import METRICS

WIDTH, ROW_WIDTH, HEIGHT = 8, 24, 8
"""The width of a panel, the width of a row of panels, and the height of a panel, in units of Grafana's grid."""

STORE = 'store=~"$store"'
"""The selector of every query. While "All" is chosen, the variable also matches targets without the label."""

ROWS = {
    "The whole store": ("store_",),
    "Producers": ("producer_",),
    "Consumers": ("consumer_",),
    "GC": ("gc_", "rebuil", "blocks_short", "scrub_"),
    "Reaper, recovery and leases": (
        "reaper_",
        "recovery_",
        "lease_",
        "housekeeping_",
        "trimmer_",
        "copy_forward_",
        "audit_",
    ),
    "S3 gateways": ("s3_",),
    "Every process": ("",),
}
"""Rows after the overview, with prefixes of the names of their metrics. A metric is in the first row that matches."""

_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """A time series, or a table of current values. Each query is (PromQL, legend)."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    description: str = ""
    table: bool = False


def _overview() -> list[Panel]:
    """Return the panels to look at first. Each answers one question about each store."""

    def most(metric: Metric, more: str = "") -> str:
        return f"max by (store) ({metric.exposed_name}{{{STORE}{more}}})"

    def rate(metric: Metric) -> str:
        return f"sum by (store) (rate({metric.exposed_name}{{{STORE}}}[$__rate_interval]))"

    return [
        Panel(
            "Firing alerts",
            "short",
            [
                (
                    f'count by (store, alertname) (ALERTS{{alertname=~"NosEc.*",alertstate="firing",{STORE}}})',
                    "{{alertname}}",
                )
            ],
            "docs/MONITORING.md explains what to do about each.",
        ),
        Panel(
            "Objects per second",
            "ops",
            [
                (rate(m.PUBLISHED_OBJECTS), "published"),
                (rate(m.PACKED_OBJECTS), "packed"),
                (rate(m.REAPER_DELETED), "landing copies deleted"),
            ],
            "Packing follows publishing, and deleting follows packing after reaper.landing_grace_ms.",
        ),
        Panel(
            "Waiting objects",
            "short",
            [(most(m.STORE_LANDED_OBJECTS), "landed"), (most(m.STORE_QUEUED_OBJECTS), "queued")],
            "Landed objects wait for a producer, queued ones for a consumer.",
        ),
        Panel(
            "Waiting time of objects",
            "s",
            [
                (most(m.STORE_OLDEST_WAITING_SECONDS), "oldest object"),
                (most(m.STORE_WAITING_SECONDS_MAX), "on purpose, at most"),
                (most(m.STORE_OVERDUE_DELETION_SECONDS), "landing copy overdue"),
            ],
            "Objects may wait on purpose up to the limit shown. Above it, something is wrong.",
        ),
        Panel(
            "Free space",
            "bytes",
            [
                (most(m.STORE_FREE_BYTES), "free in the block store"),
                (most(of_space.STORE_LANDING_FREE_BYTES), "free in the landing store"),
                (f"4 * {most(m.STORE_RESERVE_BYTES)}", "alert"),
                (f"2 * {most(m.STORE_RESERVE_BYTES)}", "PUTs are refused"),
            ],
        ),
        Panel(
            "Space amplification",
            "short",
            [
                (most(of_space.STORE_SPACE_AMPLIFICATION), "stored / live bytes"),
                (most(of_space.STORE_SPACE_AMPLIFICATION_TARGET), "target of GC"),
            ],
            "GC works while the store is above its target. `nos-ec gc plan` shows what prevents GC from reaching it.",
        ),
        Panel(
            "Placement groups that are not complete",
            "short",
            [
                (
                    f"max by (store, holds, state) ({m.STORE_PLACEMENT_GROUPS.exposed_name}"
                    f'{{{STORE},state!="complete"}})',
                    "{{holds}} {{state}}",
                )
            ],
            "Only on Ceph. All should be 0.",
        ),
    ]


def _metric_panel(metric: Metric) -> Panel:
    """Return the panel of one metric."""
    name, title = metric.exposed_name, metric.exposed_name.removeprefix(PREFIX)
    whole = metric.services == STORE_SERVICES  # each of them exports the same figures of the store
    labels = ["store", *([] if whole else ["instance"]), *metric.labels]
    by, legend = ", ".join(labels), " ".join(f"{{{{{label}}}}}" for label in labels)
    about = f"{metric.meaning} {metric.advice}"
    if metric is m.INFO:
        return Panel(title, "short", [(f"max by ({by}) ({name}{{{STORE}}})", "")], about, table=True)
    if metric.kind is Kind.HISTOGRAM:
        buckets = f"sum by (le, {by}) (rate({name}_bucket{{{STORE}}}[$__rate_interval]))"
        quantiles = [(f"histogram_quantile({share}, {buckets})", f"{share} {legend}") for share in (0.5, 0.99)]
        return Panel(title, "s", quantiles, about)
    if metric.kind is Kind.COUNTER:
        unit = "Bps" if metric.name.endswith("_bytes") else "cps"
        return Panel(
            f"{title}, per second",
            unit,
            [(f"{'max' if whole else 'sum'} by ({by}) (rate({name}{{{STORE}}}[$__rate_interval]))", legend)],
            about,
        )
    if metric.name.endswith("_timestamp_seconds"):
        return Panel(f"time since {title}", "s", [(f"time() - max by ({by}) ({name}{{{STORE}}} > 0)", legend)], about)
    return Panel(title, _unit(metric.name), [(f"max by ({by}) ({name}{{{STORE}}})", legend)], about)


def _unit(name: str) -> str:
    for word, unit in (("_bytes", "bytes"), ("_seconds", "s"), ("_ratio", "percentunit")):
        if name.removesuffix("_max").endswith(word):
            return unit
    return "short"


def rows() -> Iterator[tuple[str, list[Panel]]]:
    """Yields (title, panels) of each row."""
    yield "Overview", _overview()
    left = list(METRICS)
    for title, beginnings in ROWS.items():
        own = [metric for metric in left if metric.name.removeprefix(PREFIX).startswith(beginnings)]
        left = [metric for metric in left if metric not in own]
        yield title, [_metric_panel(metric) for metric in own]


def _panel(panel: Panel, number: int, x: int, y: int) -> _Json:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": source,
            "expr": expression,
            "legendFormat": legend,
            **({"format": "table", "instant": True} if panel.table else {}),
        }
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "table" if panel.table else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": targets,
    }


def _panels() -> list[_Json]:
    found: list[_Json] = []
    y = 0
    for title, panels in rows():
        place = {"x": 0, "y": y, "w": ROW_WIDTH, "h": 1}
        found.append(
            {"id": len(found) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        for index, panel in enumerate(panels):
            line, column = divmod(index, ROW_WIDTH // WIDTH)
            found.append(_panel(panel, len(found) + 1, column * WIDTH, y + line * HEIGHT))
        y += -(-len(panels) * WIDTH // ROW_WIDTH) * HEIGHT
    return found


def dashboard() -> str:
    """Return deploy/grafana/nos-ec.json, for Grafana 9 or newer."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    stores = {
        "name": "store",
        "label": "Store",
        "type": "query",
        "datasource": source,
        "query": {"query": f"label_values({m.INFO.exposed_name}, store)", "refId": "store"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
    sources = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    made = {
        "uid": "nos-ec",
        "title": "nos_ec",
        "tags": ["nos_ec"],
        "schemaVersion": 37,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [sources, stores]},
        "panels": _panels(),
    }
    return json.dumps(made, indent=1) + "\n"
