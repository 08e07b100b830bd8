"""Invariant 9: the memory of a consumer is bounded by its settings, whatever the backlog."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timed, pytest.mark.invariant(9)]

SCRIPT = Path(__file__).parents[2] / "soak" / "consumer_memory.py"


@pytest.mark.invariant(9)
def test_a_backlog_of_20000_events_stays_below_the_bound(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--events", "20000", "--lanes", "4", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=1200, check=False)
    assert done.returncode == 0, f"{done.stdout.decode()} {done.stderr.decode()}"
    report = json.loads(done.stdout)
    assert report["bound_mib"] == 300
    few, many = report["runs"]
    assert (few["events"], many["events"]) == (2000, 20000)
    for run in report["runs"]:
        assert run["packed"] == run["events"]
        assert 40 < run["peak_rss_mib"] < 300
