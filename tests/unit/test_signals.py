"""Signals at moments that a test of a whole process hardly ever hits."""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from collections.abc import Iterator

import pytest

from nos_ec.adapters.sql.engine import _unhex
from nos_ec.cli.signals import interrupting
from nos_ec.core.callbacks import CALLED_BACK, called_back


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


def test_what_sqlite_calls_back_is_marked() -> None:
    assert _unhex.__code__ in CALLED_BACK
    assert _unhex("ff00") == b"\xff\x00"
