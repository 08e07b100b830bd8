"""The names of processes, and the threads on which they run loops."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event, Thread

from nos_ec.composition.audit import command_of
from nos_ec.ports.clock import Clock


def process_name() -> str:
    """Return a name of this process for operators."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def member_name(service: str, chance: bytes) -> str:
    """Return a name for a process of a service, as unique as the random bytes `chance`, and readable for operators."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}-{chance.hex()}"


def run_name(clock: Clock) -> str:
    """Return a name for the audit trail: this process, when it started, and its command."""
    started = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")
    return f"{socket.gethostname()} {os.getpid()} {started} {command_of(sys.argv)}"


@contextmanager
def background_loop(name: str, loop: Callable[[Event], object], end_wait_s: float | None = None) -> Iterator[None]:
    """Run a loop on a thread within the `with` block. On exit, set the event of the loop, and wait for its end, but at
    most `end_wait_s` if that is given."""
    stop = Event()
    thread = Thread(target=loop, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(end_wait_s)
