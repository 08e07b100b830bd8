"""Prometheus' programs, its rules with compressed times, and what a running server says about them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from tests.rig.dev_servers import MISSING, SCRIPTS, START_S_MAX, ServerFailed, ServerMissing

DEPLOY = SCRIPTS.parent
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "nos-ec.json"
LABELS_OF_TARGETS = {"store", "instance", "job"}
"""Labels that the daemons do not export, but Prometheus adds."""
ANSWER_S_MAX = 60
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
    return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False)


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

    def _ask(self, what: str, **query: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]
