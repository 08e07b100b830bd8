"""The shipped alerts, their tests and their documentation name the same things."""

from __future__ import annotations

import re

import pytest

from nos_ec.monitoring.declarations.metric import Kind
from nos_ec.monitoring.declarations.metrics import METRICS
from tests.rig.prometheus import DEPLOY, LABELS_OF_TARGETS, RULES, TEST_FILES, compressed

MONITORING = (DEPLOY.parent / "docs" / "MONITORING.md").read_text()
TESTS = "".join((RULES.parent / name).read_text() for name in TEST_FILES)


def alerts() -> dict[str, str]:
    """{name: its part of rules.yml}"""
    parts = re.split(r"^ +- alert: (\w+)$", RULES.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def section(title: str) -> str:
    """The text below a heading, to the next heading."""
    found = re.search(rf"^#+ {title}\n\n(.*?)(?=^#|\Z)", MONITORING, re.M | re.S)
    return found[1] if found else ""


def test_each_alert_is_in_the_table_with_its_severity_and_time() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| (\w+) \| (.+) \|$", section("Alerts worth having"), re.M)
    assert [row[0] for row in rows] == list(alerts())
    for name, anchor, severity, when in rows:
        part = alerts()[name]
        assert anchor == name.lower()
        assert re.findall(r"severity: (\w+)", part) == [severity]
        waits = re.findall(r"^ +for: (\d+)([mh])$", part, re.M)
        said = re.findall(r"^for (\d+) ([mh])(?:inute|our)s?, ", when)
        assert said == waits, name


@pytest.mark.parametrize("name", alerts())
def test_each_alert_says_what_to_do(name: str) -> None:
    part = alerts()[name]
    assert f"runbook_url: docs/MONITORING.md#{name.lower()}\n" in part
    assert len(section(name).strip().splitlines()) >= 2
    for annotation in ("summary", "description"):
        assert part.count(f" {annotation}: ") == 1


@pytest.mark.parametrize("name", alerts())
def test_each_alert_fires_in_the_tests_and_clears(name: str) -> None:
    """That it does is what promtool finds out; here, that the tests ask."""
    tests = [test for test in TESTS.split("  - name: ") if f'alertname="{name}"' in test]
    assert tests, "no test expects it"
    assert any("exp_samples: []" in test.rpartition(f'alertname="{name}"')[2] for test in tests) or name in (
        "NosEcGroupsInactive",  # clears while another alert continues
        "NosEcMonitoringBlind",
    )


def test_alerts_ask_for_metrics_and_labels_that_exist() -> None:
    exposed = {metric.exposed_name: set(metric.labels) for metric in METRICS}
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            exposed[f"{metric.exposed_name}_bucket"] = {*metric.labels, "le"}
            exposed[f"{metric.exposed_name}_count"] = set(metric.labels)
    for text in (RULES.read_text(), TESTS):
        named = re.findall(r"(?<!\w)(nos_ec_\w+)(?:\{([^}]*)\})?", text)
        assert len(named) > 20
        for name, matchers in named:
            assert name in exposed
            assert set(re.findall(r"(\w+)=", matchers)) <= exposed[name] | LABELS_OF_TARGETS, name


def test_every_expression_takes_its_figures_per_store() -> None:
    """Without it, one store that packs would hide another one that does not."""
    for name, part in alerts().items():
        expression = part.partition("expr: |")[2].partition("labels:")[0]
        sums = re.findall(r"\b(?:sum|max|min|count)(?! by \(store)\b *(?:by|\()", expression)
        assert sums == [], name


def test_times_are_compressed_everywhere() -> None:
    text = """
      - alert: X
        expr: |
          rate(a[10m]) > 3600  # seconds
          and b[1d] > 5
        for: 1h
"""
    expected = """
      - alert: X
        expr: |
          rate(a[10000ms]) > 60.0  # seconds
          and b[1440000ms] > 5
        for: 60000ms
"""
    assert compressed(text, 60) == expected
    small = compressed(RULES.read_text(), 1000)
    durations = [int(found) for found in re.findall(r"(\d+)ms", small)]
    assert len(durations) > 20
    assert re.findall(r"\[\d+[smhd]\]|for: \d+[smhd]$", small, re.M) == []
    assert "  # seconds" in small
