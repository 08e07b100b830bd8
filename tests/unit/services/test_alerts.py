"""The shipped alerts, their tests and their documentation name the same things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nos_ec.monitoring.declarations.metric import Kind
from nos_ec.monitoring.declarations.metrics import METRICS
from tests.rig.prometheus import DEPLOY, LABELS_OF_TARGETS, RULES, TEST_FILES, VITESS_RULES, compressed

DOCS = DEPLOY.parent / "docs"
TESTS = "".join((RULES.parent / name).read_text() for name in TEST_FILES)
PAGES = {RULES: "MONITORING.md", VITESS_RULES: "VITESS.md"}
"""{rules: the page with what to do}"""
TABLES = [(RULES, "Alerts worth having"), (VITESS_RULES, "Alerts")]


def alerts(rules: Path = RULES) -> dict[str, str]:
    """{name: its part of the rules}"""
    parts = re.split(r"^ +- alert: (\w+)$", rules.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


ALERTS = [(rules, name) for rules in PAGES for name in alerts(rules)]


def section(page: str, title: str) -> str:
    """The text below a heading, to the next heading."""
    found = re.search(rf"^#+ {title}\n\n(.*?)(?=^#|\Z)", (DOCS / page).read_text(), re.M | re.S)
    return found[1] if found else ""


@pytest.mark.parametrize(("rules", "title"), TABLES, ids=["store", "vitess"])
def test_each_alert_is_in_the_table_with_its_severity_and_time(rules: Path, title: str) -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| (\w+) \| (.+) \|$", section(PAGES[rules], title), re.M)
    assert [row[0] for row in rows] == list(alerts(rules))
    for name, anchor, severity, when in rows:
        part = alerts(rules)[name]
        assert anchor == name.lower()
        assert re.findall(r"severity: (\w+)", part) == [severity]
        waits = re.findall(r"^ +for: (\d+)([mh])$", part, re.M)
        said = re.findall(r"^for (\d+) ([mh])(?:inute|our)s?, ", when)
        assert said == waits, name


@pytest.mark.parametrize(("rules", "name"), ALERTS, ids=[name for _, name in ALERTS])
def test_each_alert_says_what_to_do(rules: Path, name: str) -> None:
    part = alerts(rules)[name]
    page = PAGES[rules]
    assert re.search(rf"runbook_url: docs/{page}#{name.lower()}$", part, re.M)
    assert len(section(page, name).strip().splitlines()) >= (2 if rules is RULES else 1)
    for annotation in ("summary", "description"):
        assert part.count(f" {annotation}: ") == 1


@pytest.mark.parametrize("name", [name for _, name in ALERTS])
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
    for name, part in [*alerts().items(), *alerts(VITESS_RULES).items()]:
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
