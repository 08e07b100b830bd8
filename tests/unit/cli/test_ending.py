"""How a command's process ends, with and without threads that still run."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import atexit, sys, threading, time
from nos_ec.cli.terminal.ending import end_with

class Kept:
    def __del__(self):
        sys.__stderr__.write("finalized\\n")

kept = Kept()

def run():
    atexit.register(lambda: print("handler"))
    threading.Thread(target=lambda: (time.sleep(0.2), print("worker")), daemon=False).start()
    if {left_behind}:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    print("done")
    return 7

end_with(run)
"""


@pytest.mark.parametrize("left_behind", [True, False])
def test_a_process_that_leaves_a_thread_behind_ends_without_finalization(left_behind: bool) -> None:
    """Otherwise a driver's thread that calls back into Python meanwhile would crash it."""
    program = _PROGRAM.format(left_behind=left_behind)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout.splitlines() == ["done", "worker", "handler"], "nothing that was written is lost"
    assert ended.stderr == ("" if left_behind else "finalized\n")


def test_an_exception_ends_with_a_trace() -> None:
    program = _PROGRAM.format(left_behind=True).replace("return 7", 'raise RuntimeError("bug")')
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("RuntimeError: bug")
