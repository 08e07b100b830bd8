"""The judges of the console agree with the alert rules, on the series that the rules are tested with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from nos_ec.console.alerts import HOUR_MS, RULES, Alert, Seen, Verdict, Work, alerts
from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations.metrics import METRICS
from nos_ec.monitoring.exposition import Sample
from tests.rig.prometheus import RULES as RULES_FILE
from tests.rig.prometheus import TEST_FILES

BY_NAME = {metric.exposed_name: metric for metric in METRICS}
JUDGED = {rule.name for rule in RULES if rule.judge is not None}
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
NOT_FROM_THE_STORE = {
    ("NosEcLandingCopiesPileUp", 155): "parked copies",
    ("NosEcLandingLogFull", 25): "PUTs that found it full",
    ("NosEcLandingLogFull", 90): "PUTs that found it full",
    ("NosEcShardLost", 18): "degraded reads",
    ("NosEcGcNotRunning", 52): "that no run has ended since the daemon started",
}
"""{(rule, minute): the part of the rule that the store does not show and that fires then}."""


def duration_ms(text: str) -> int:
    return sum(int(count) * UNITS_MS[unit] for count, unit in re.findall(r"(\d+)([smhd])", text))


def expanded(values: str) -> list[float | None]:
    """The values of a series in the notation of promtool."""
    found: list[float | None] = []
    for word in values.split():
        if word == "stale":
            found.append(None)
            continue
        match = re.fullmatch(r"(_|[-\d.e]+?)(?:([+-][\d.e]+))?(?:x(\d+))?", word)
        assert match, word
        start, step, count = match[1], float(match[2] or 0), int(match[3] or 0)
        found += [None if start == "_" else float(start) + step * n for n in range(count + (start != "_" or not count))]
    return found


KEPT = {"nos_ec_gc_last_run_timestamp_seconds", "nos_ec_gc_wait_seconds"}
"""What the console knows from the store and its settings, whether or not another process exports it."""


class Series:
    """The series of one test, for one store."""

    def __init__(self, test: dict[str, Any], store: str) -> None:
        self.interval_ms = duration_ms(test["interval"])
        self.series: list[tuple[str, dict[str, str], list[float | None]]] = []
        for one in test["input_series"]:
            name, labels = re.fullmatch(r"(\w+)\{(.*)\}", one["series"]).groups()  # type: ignore[union-attr]
            given = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if given.get("store") == store:
                self.series.append((name, given, expanded(one["values"])))

    def at(self, now_ms: int) -> Iterator[tuple[str, dict[str, str], float]]:
        index = now_ms // self.interval_ms
        for name, labels, values in self.series:
            known = [value for value in values[: index + 1] if value is not None]
            if name in KEPT and known:
                yield name, labels, known[-1]
            elif index < len(values) and (value := values[index]) is not None:
                yield name, labels, value

    def work(self, at_ms: int) -> Work:
        now = list(self.at(at_ms))
        packed = [value for name, _, value in now if name == "nos_ec_consumer_packed_bytes_total"]
        packed = packed or [value for name, _, value in now if name == "nos_ec_consumer_packed_objects_total"]
        queued = [value for name, _, value in now if name == "nos_ec_store_queued_bytes"]
        return Work(at_ms, int(max(queued, default=0)), int(sum(packed)))

    def seen(self, now_ms: int) -> Seen:
        samples = [
            Sample(metric, value, tuple(labels[label] for label in metric.labels))
            for name, labels, value in self.at(now_ms)
            if (metric := BY_NAME.get(name)) is not None and labels.keys() >= set(metric.labels)
        ]
        # The store shows the leases of slots even if there is none.
        samples.append(Sample(m.PRODUCER_SLOTS, 0))
        return Seen(samples, [self.work(at_ms) for at_ms in range(0, now_ms + 1, self.interval_ms)], now_ms)


def expectations() -> Iterator[Any]:
    """Each (test, time in ms, names of the alerts that fire in store a, or None if none may even be pending)."""
    for file in TEST_FILES:
        for test in yaml.safe_load((RULES_FILE.parent / file).read_text())["tests"]:
            for one in test.get("promql_expr_test", []):
                firing = set(re.findall(r'alertname="(\w+)"', str(one["exp_samples"]))) & JUDGED
                if firing or one["expr"] == "ALERTS":
                    at_ms = duration_ms(one["eval_time"])
                    yield pytest.param(test, at_ms, firing, id=f"{test['name'][:40]}-{one['eval_time']}")


@pytest.mark.parametrize(("test", "at_ms", "firing"), [*expectations()])
def test_a_judge_says_what_its_rule_says(test: dict[str, Any], at_ms: int, firing: set[str]) -> None:
    found = alerts(Series(test, "a").seen(at_ms))
    fires = {one.rule.name for one in found if one.verdict is Verdict.FIRING}
    expected = {name for name in firing if (name, at_ms // 60_000) not in NOT_FROM_THE_STORE}
    assert expected <= fires
    if not firing:
        assert fires == set()


def test_the_rules_are_those_of_prometheus_with_their_severity() -> None:
    text = RULES_FILE.read_text()
    names = re.findall(r"- alert: (\w+)", text)
    severities = re.findall(r"severity: (\w+)", text)
    assert [(rule.name, rule.severity.value) for rule in RULES] == list(zip(names, severities, strict=True))
    assert re.findall(r"runbook_url: (\S+)", text) == [rule.runbook for rule in RULES]


def test_every_judged_rule_fires_in_some_test() -> None:
    fired = {name for one in expectations() for name in one.values[2]}
    assert fired == JUDGED


def test_a_rule_that_lacks_its_figures_is_never_fine() -> None:
    assert {one.verdict for one in alerts(Seen([], [], HOUR_MS))} == {Verdict.UNKNOWN}


def test_what_fires_comes_first_and_critical_rules_before_warnings() -> None:
    seen = Seen([Sample(m.STORE_BLOCKS, 1, ("fresh", "fenced")), Sample(m.PRODUCER_SLOTS, 3)], [], HOUR_MS)
    found: list[Alert] = alerts(seen)
    assert [one.rule.name for one in found[:2]] == ["NosEcUnpublishedSlot", "NosEcBlocksWaitForRecovery"]
    assert [one.verdict for one in found[:3]] == [Verdict.FIRING, Verdict.FIRING, Verdict.UNKNOWN]
