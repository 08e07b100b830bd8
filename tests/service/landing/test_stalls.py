"""A process that is kept from running notices that, and distinguishes it from a long call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import IO

import pytest

pytestmark = pytest.mark.timed

PROGRAM = """
import sys, time
from tests.rig.stalls import Stalls
with Stalls() as stalls:
    for _ in sys.stdin:
        begun_s = time.monotonic()
        print("begun", flush=True)
        sys.stdin.readline()
        ended_s = time.monotonic()
        time.sleep(0.5)
        print(ended_s - begun_s, stalls.took_s(begun_s, ended_s), flush=True)
"""
TRIES = 10


def say(pipe: IO[str], word: str) -> None:
    pipe.write(word + "\n")
    pipe.flush()


def figures(process: subprocess.Popen[str], *, stopped: bool) -> tuple[float, float]:
    """(passed, took) in seconds of a call that waited for 2 s, or during which the process was stopped for so long."""
    assert process.stdin
    assert process.stdout
    say(process.stdin, "begin")
    assert process.stdout.readline() == "begun\n"
    if stopped:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2)
    if stopped:
        os.kill(process.pid, signal.SIGCONT)
    say(process.stdin, "end")
    passed_s, took_s = map(float, process.stdout.readline().split())
    return passed_s, took_s


def test_a_stopped_process_is_a_stall_and_a_long_call_is_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        passed_s, took_s = figures(process, stopped=True)
        assert passed_s - took_s >= 1.5
        # The machine itself may stall, so that a call looks shorter than it was; not each time.
        assert any(took_s > 1 for _, took_s in (figures(process, stopped=False) for _ in range(TRIES)))
