"""Signals at moments that a test of a whole process hardly ever hits."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from nos_ec.adapters.sql.driver.engine import _unhex
from nos_ec.cli.terminal.context import stop_on_signals
from nos_ec.cli.terminal.signals import interrupting
from nos_ec.core.callbacks import CALLED_BACK, called_back
from tests.rig.waiting import WAIT_S_MAX


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers as they were before, afterwards."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


@pytest.mark.usefixtures("handlers")
def test_a_signal_in_a_callback_of_sqlite_interrupts_after_the_statement() -> None:
    """Raised there, it would be an error of the statement, and a command would end with 1 and a trace."""
    times = []

    @called_back
    def signalled(one: int) -> int:
        times.append(one)
        signal.raise_signal(signal.SIGTERM) if len(times) == 1 else None
        return one

    connection = sqlite3.connect(":memory:")
    connection.create_function("signalled", 1, signalled)
    with interrupting():
        assert connection.execute("SELECT signalled(5)").fetchone() == (5,)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)
    connection.close()


@pytest.mark.usefixtures("handlers")
def test_a_signal_anywhere_else_interrupts_at_once() -> None:
    with interrupting(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def send_soon() -> threading.Thread:
    """Send SIGTERM to this process within a few milliseconds."""

    def send() -> None:
        time.sleep(random.uniform(0, 0.002))
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


@pytest.mark.usefixtures("handlers")
def test_an_interrupt_leaves_no_lock_taken() -> None:
    """Cleaning up would wait for that lock for ever, for example when lanes are closed whose threads wait for it."""
    changed = threading.Condition()
    taken: list[bool] = []

    def take() -> None:
        taken.append(changed.acquire(timeout=WAIT_S_MAX))
        if taken[-1]:
            changed.release()

    def work_until_interrupted() -> None:
        send_soon()
        while True:
            with changed:
                pass

    for _ in range(50):
        with interrupting(), pytest.raises(KeyboardInterrupt):
            work_until_interrupted()
        other = threading.Thread(target=take)
        other.start()
        other.join()
        assert taken[-1]


def test_a_daemon_that_waits_stops_whenever_the_signal_comes() -> None:
    """That includes a signal while it holds the lock of the object it waits for. Runs in a separate process, because a
    failure would make it hang."""
    program = """
        import threading
        from nos_ec.cli.terminal.context import stop_on_signals
        from tests.unit.cli.test_signals import send_soon

        for _ in range(100):
            stop = stop_on_signals()
            sender = send_soon()
            while not stop.wait(0):
                pass
            sender.join()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


def test_what_sqlite_calls_back_is_marked() -> None:
    assert _unhex.__code__ in CALLED_BACK
    assert _unhex("ff00") == b"\xff\x00"


@pytest.mark.usefixtures("handlers")
def test_a_second_signal_does_not_kill_a_process_that_another_one_supervises() -> None:
    """systemd signals every process of a unit, and the supervisor signals its processes then."""
    stop = stop_on_signals(again_ends=False)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
        stop.clear()
