"""Kill -9 of a process that works on the landing log's devices, at every step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.rig.device_log_work import KILL_POINTS, Step, check, check_open, initialise, open_log, told

pytestmark = pytest.mark.invariant(1)


def killed_work(root: Path, point: str) -> tuple[list[Step], list[Step]]:
    """Work that dies at a kill point: the steps that it began, and those that it did."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.rig.device_log_work", str(root)],
        env={**os.environ, "NOS_EC_KILL_AT": point},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, "the kill point did not fire"
    return told(done.stdout)


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, point: str) -> None:
    begun, done = killed_work(tmp_path, point)
    check(tmp_path, begun, done)


@pytest.mark.parametrize("point", [point for point in KILL_POINTS if "file" not in point and "super" not in point])
def test_processes_that_live_on_see_what_a_killed_one_left(tmp_path: Path, point: str) -> None:
    """The table of slots survives the kill, perhaps in the middle of a change."""
    initialise(tmp_path)
    with closing(open_log(tmp_path)) as log:
        assert list(log.segments()) == []
        begun, done = killed_work(tmp_path, point)
        check_open(log, begun, done)
