"""Prometheus' programs, its rules with compressed times, and what a running server says about them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.rig.dev_servers import MISSING, SCRIPTS, START_S_MAX, ServerFailed, ServerMissing

DEPLOY = SCRIPTS.parent
RULES = DEPLOY / "prometheus" / "rules.yml"
VITESS_RULES = DEPLOY / "prometheus" / "vitess_rules.yml"
TEST_FILES = ("rules_test.yml", "rules_of_days_test.yml", "vitess_rules_test.yml")
DASHBOARD = DEPLOY / "grafana" / "nos-ec.json"
LABELS_OF_TARGETS = {"store", "instance", "job"}
"""Labels that the daemons do not export, but Prometheus adds."""
ANSWER_S_MAX = 60
PROMTOOL_S_MAX = 180
"""The tests of the rules take 10 to 20 s of CPU time, of which the other tests leave it a third of a core."""
_SECONDS_OF = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@cache
def promtool() -> Path:
    """The program, installed if need be. Raises ServerMissing, ServerFailed."""
    command = [str(SCRIPTS / "prometheus.sh"), "programs"]
    ran = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=START_S_MAX, check=False)
    if ran.returncode == MISSING:
        raise ServerMissing(ran.stderr.strip())
    if ran.returncode != 0:
        raise ServerFailed(ran.stderr.strip())
    return Path(ran.stdout.splitlines()[1])


def run_promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it."""
    command = [str(promtool()), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROMTOOL_S_MAX, check=False)


def compressed(rules: str, factor: int) -> str:
    """The rules for a store whose daemons' own times are `factor` times shorter: each `for`, range and number
    of seconds in an expression (it has the comment "# seconds") is divided by it."""

    def duration(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) * _SECONDS_OF[match[3]] * 1000 // factor}ms{match[4]}"

    rules = re.sub(r"^( +for: )(\d+)([smhd])($)", duration, rules, flags=re.M)
    rules = re.sub(r"(\[)(\d+)([smhd])(\])", duration, rules)
    return re.sub(r"\b(\d+)(?=  # seconds$)", lambda match: f"{int(match[1]) / factor}", rules, flags=re.M)


def dashboard_expressions() -> list[str]:
    """The queries of all panels."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts = self._ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def ever_firing(self) -> set[str]:
        """The names of all alerts that have fired since the server started."""
        found = self.query('max_over_time(ALERTS{alertstate="firing"}[1d])')
        return {series["metric"]["alertname"] for series in found}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query: `metric` has the labels, `value` time and value."""
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The value of the only series; None without any."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def healthy_targets(self) -> int:
        """How many targets answered their last scrape."""
        return sum(target["health"] == "up" for target in self._ask("targets")["activeTargets"])

    def _ask(self, what: str, **query: str | float) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def history(self, metric: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """The series of a metric, one value a second: `metric` has the labels, `values` (time, value)."""
        found: list[dict[str, Any]] = self._ask("query_range", query=metric, start=start_s, end=end_s, step="1")[
            "result"
        ]
        return found


def recorded(server: Prometheus, marks_s: Sequence[float], factor: int) -> str:
    """A test for promtool in uncompressed time, with what a server has scraped once a second and the rules ask for.

    marks_s: when the record begins; then when alerts are compared: with the server's own, at that time.
    """
    first_s, last_s = marks_s[0], marks_s[-1]
    names = sorted({*re.findall(r"\bnos_ec_\w+", RULES.read_text()), "up", "process_start_time_seconds"})
    lines = [
        f"      - {{series: '{_name(one['metric'])}', values: '{_values(one, first_s, last_s, factor)}'}}"
        for name in names
        for one in server.history(name, first_s, last_s)
    ]
    interval = f"{factor}s"
    head = [
        f"# Recorded by tests/real/faults/test_alerts.py: one sample a second, written as one every {interval}.",
        f"rule_files: [rules.yml]\nevaluation_interval: {interval}\ntests:",
        f"  - name: recorded\n    interval: {interval}\n    input_series:",
    ]
    return "\n".join([*head, *lines, "    promql_expr_test:", *_expected(server, marks_s, factor)]) + "\n"


def _expected(server: Prometheus, marks_s: Sequence[float], factor: int) -> Iterator[str]:
    for mark_s in marks_s[1:]:
        at = f"@ {mark_s:.3f}"
        firing = sorted({one["metric"]["alertname"] for one in server.query(f'ALERTS{{alertstate="firing"}} {at}')})
        samples = ", ".join(f"{{labels: '{{alertname=\"{name}\"}}', value: 1}}" for name in firing)
        minutes = int(mark_s - marks_s[0]) * factor // 60
        query = """'group by (alertname) (ALERTS{alertstate="firing"})'"""
        yield f"      - {{expr: {query}, eval_time: {minutes}m, exp_samples: [{samples}]}}"


def _name(labels: dict[str, str]) -> str:
    """Of a series in promtool's notation."""
    matchers = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
    return f"{labels['__name__']}{{{matchers}}}"


def _values(series: dict[str, Any], first_s: float, last_s: float, factor: int) -> str:
    """In promtool's notation. Times since the start and durations are those of an uncompressed store."""
    name = series["metric"]["__name__"]
    found = {round(at_s - first_s): float(value) for at_s, value in series["values"]}
    values: list[str] = []
    for second in range(int(last_s - first_s) + 1):
        if second not in found:
            values.append("_" if not values or values[-1] in ("_", "stale") else "stale")
        elif name.endswith(("_timestamp_seconds", "_time_seconds")):
            values.append(f"{max(0.0, (found[second] - first_s) * factor) if found[second] else 0:.0f}")
        else:
            values.append(f"{found[second] * (factor if '_seconds' in name else 1):.10g}")
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return " ".join(value if count == 1 else f"{value}x{count - 1 if value != '_' else count}" for value, count in runs)
