"""SIGINT and SIGTERM at any moment of a command: the documented end, no trace, and nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nos_ec.composition.wiring import System
from tests.service.conftest import STRIPE, WAIT_S_MAX, Bench

ENDED = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}
"""What the parent sees. A shell reports 143 for the second."""

COMMAND = "from nos_ec.cli import main; print('started', flush=True); main()"
"""Reports when our first line runs. Everything before that is Python's start."""

SLOW_GET = """
import time
from nos_ec.engine.objects.store import Store

opened = Store.open

def slow(store, key):
    row, segments = opened(store, key)
    def halting():
        yield next(segments)
        print("halfway", flush=True)
        time.sleep(600)
    return row, halting()

Store.open = slow
from nos_ec.cli import main
main()
"""


def _start(bench: Bench, program: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, "--config", str(bench.config), *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", ENDED)
def test_a_signal_at_any_moment(bench: Bench, system: System, number: signal.Signals) -> None:
    """Including the time when modules are loaded, which is most of a short command."""
    takes_s = WAIT_S_MAX
    for _ in range(3):  # the first one may have to compile modules
        begun = time.monotonic()
        assert bench.run_python("-c", COMMAND, "--config", str(bench.config), "ls").returncode == 0
        takes_s = min(takes_s, time.monotonic() - begun)
    rng = random.Random(number)
    ends = []
    for index in range(16):
        process = _start(bench, COMMAND, "ls")
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(takes_s * (index + rng.random()) / 16)
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert err == b""
        ends.append(process.returncode)
    assert set(ends) <= {0, ENDED[number]}, "done before the signal came, or ended by it"
    assert ends.count(ENDED[number]) > 4


@pytest.mark.parametrize("number", ENDED)
def test_a_get_leaves_no_unfinished_file(bench: Bench, system: System, tmp_path: Path, number: signal.Signals) -> None:
    key = bench.put(system, "large", bench.data(20 * STRIPE))
    (folder := tmp_path / "out").mkdir()
    process = _start(bench, SLOW_GET, "get", str(key), "-o", str(folder / "file"))
    assert process.stdout is not None
    assert process.stdout.readline() == b"halfway\n"
    assert len(list(folder.iterdir())) == 1, "it is being written, under another name"
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT_S_MAX)
    assert (process.returncode, err) == (ENDED[number], b"")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", ENDED)
def test_a_signal_during_a_large_put(bench: Bench, system: System, number: signal.Signals) -> None:
    """The old version stays, and nothing is left behind. The lease is released, so that the next consumer cleans up
    without waiting."""
    key = bench.put(system, "o", bench.data(100))
    process = _start(bench, COMMAND, "put", str(key), "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(bench.data(20 * STRIPE))
    process.stdin.flush()
    deadline = time.monotonic() + WAIT_S_MAX
    while not system.metadata.totals().leases and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT_S_MAX)
    assert (process.returncode, err) == (ENDED[number], b"")
    assert system.metadata.totals().leases == 0
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_a_second_signal_ends_at_once() -> None:
    """It does so although cleaning up takes long."""
    program = """
import time
from nos_ec.cli.terminal.ending import end_with

def run():
    try:
        print("running", flush=True)
        time.sleep(600)
    finally:
        print("cleaning up", flush=True)
        time.sleep(600)

end_with(run)
"""
    for number, ended in ENDED.items():
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        for line in (b"running\n", b"cleaning up\n"):
            assert process.stdout.readline() == line
            process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert (process.returncode, err) == (ended, b"")


def test_an_interrupt_that_a_callback_drops_comes_again() -> None:
    """Python drops exceptions that are raised in finalizers, and an interrupt with them."""
    program = """
import os, signal, time
from nos_ec.cli.terminal.ending import end_with

class Kept:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

def run():
    kept = Kept()
    del kept
    time.sleep(600)

end_with(run)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=WAIT_S_MAX, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_signal_that_is_ignored_stays_ignored(bench: Bench, system: System) -> None:
    """A shell starts background jobs with SIGINT ignored."""
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {COMMAND}"
    process = _start(bench, ignoring, "put", "b/o", "-", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(b"bytes", timeout=WAIT_S_MAX)
    assert (process.returncode, err) == (0, b""), out
