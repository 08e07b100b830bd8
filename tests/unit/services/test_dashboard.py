"""The Grafana dashboard shows every metric, and only metrics that exist."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from nos_ec.monitoring.dashboard import ROW_WIDTH, dashboard
from nos_ec.monitoring.declarations.metric import Kind
from nos_ec.monitoring.declarations.metrics import METRICS
from tests.rig.prometheus import DASHBOARD, LABELS_OF_TARGETS, dashboard_expressions

SHOWN: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in SHOWN["panels"] if panel["type"] != "row"]


def test_the_dashboard_is_up_to_date() -> None:
    assert DASHBOARD.read_text() == dashboard(), "run `make reference`"


def test_every_metric_has_a_panel_and_every_panel_shows_metrics_that_exist() -> None:
    exposed = {f"{metric.exposed_name}{'_bucket' * (metric.kind is Kind.HISTOGRAM)}" for metric in METRICS}
    named = {name for expression in dashboard_expressions() for name in re.findall(r"\bnos_ec_\w+", expression)}
    assert named == exposed


def test_panels_select_by_labels_that_exist() -> None:
    labels = {label for metric in METRICS for label in metric.labels} | LABELS_OF_TARGETS
    labels |= {"le", "alertname", "alertstate"}
    for expression in dashboard_expressions():
        assert 'store=~"$store"' in expression
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert set(group.split(", ")) <= labels, expression


def test_panels_say_what_they_show_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in SHOWN["panels"]}) == len(SHOWN["panels"])
    assert all(panel["title"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in SHOWN["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(ROW_WIDTH))
    tops = [panel["gridPos"]["y"] for panel in SHOWN["panels"]]
    assert all(before <= after for before, after in pairwise(tops))


def test_units_follow_from_names() -> None:
    units = {panel["title"]: panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS}
    assert units["store_free_bytes"] == "bytes"
    assert units["consumer_packed_bytes_total, per second"] == "Bps"
    assert units["consumer_packed_objects_total, per second"] == "cps"
    assert units["consumer_lane_busy_seconds_max"] == units["consumer_group_write_seconds"] == "s"
    assert units["store_utilisation_ratio"] == "percentunit"
    assert units["time since gc_last_run_timestamp_seconds"] == "s"
