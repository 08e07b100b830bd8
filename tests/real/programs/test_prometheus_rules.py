"""What promtool says about the alerts and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from nos_ec.monitoring.declarations.metrics import METRICS
from tests.rig.prometheus import RULES, TEST_FILES, VITESS_RULES, dashboard_expressions, run_promtool

SAMPLE = RULES.parent / "prometheus.yml"
RECORDED = Path(__file__).parents[2] / "golden" / "prometheus" / "recorded_test.yml"

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("with_promtool")]


def test_the_rules_and_the_sample_configuration_are_right() -> None:
    rules = (RULES, VITESS_RULES)
    for check in (("rules", "--lint=all", "--lint-fatal", *rules), ("config", "--syntax-only", SAMPLE)):
        checked = run_promtool("check", *check)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_fires_for_its_fault_alone() -> None:
    tested = run_promtool("test", "rules", *(RULES.parent / name for name in TEST_FILES))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_alerts_fire_for_recorded_faults_and_for_nothing_else(tmp_path: Path) -> None:
    """An hour of uneven traffic on Ceph; then an OSD is killed, the disk nearly full, and consumers and GC stopped for
    half an hour; then all is well again. tests/real/faults/test_alerts.py has recorded it."""
    shutil.copy(RECORDED, tmp_path)
    shutil.copy(RULES, tmp_path)
    tested = run_promtool("test", "rules", tmp_path / RECORDED.name)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    expected = [line for line in RECORDED.read_text().splitlines() if "exp_samples" in line]
    fired = [set(re.findall(r'alertname="(\w+)"', line)) for line in expected]
    assert fired[0] == fired[2] == set()
    assert fired[1] >= {"NosEcPackingStandsStill", "NosEcGcNotRunning", "NosEcShardLost", "NosEcSpaceLow"}


def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    tests = yaml.safe_load((RULES.parent / "rules_test.yml").read_text())
    tests["tests"] = [one for one in tests["tests"] if "NosEcShardLost" in json.dumps(one)]
    (tmp_path / "rules_test.yml").write_text(yaml.safe_dump(tests))
    wrong = RULES.read_text().replace('{state=~"degraded|undersized"}', '{state=~"degraded"}')
    assert wrong != RULES.read_text()
    (tmp_path / "rules.yml").write_text(wrong)
    tested = run_promtool("test", "rules", tmp_path / "rules_test.yml")
    assert tested.returncode == 1
    assert "NosEcShardLost" in tested.stdout + tested.stderr


def test_each_query_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    rules = [f"- {{record: 'panel:{i}', expr: {query(one)}}}" for i, one in enumerate(dashboard_expressions())]
    path = tmp_path / "panels.yml"
    for more, returncode in (([], 0), (["- {record: 'panel:wrong', expr: 'sum by (store) rate(x[5m]'}"], 1)):
        path.write_text("groups:\n- name: panels\n  rules:\n  " + "\n  ".join([*rules, *more]) + "\n")
        checked = run_promtool("check", "rules", path)
        assert checked.returncode == returncode, checked.stdout + checked.stderr
        assert len(rules) > len(METRICS)


def query(expression: str) -> str:
    """In YAML, with an interval in place of Grafana's variable."""
    return json.dumps(expression.replace("$__rate_interval", "1m"))
