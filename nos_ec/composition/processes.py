"""What processes are called."""

from __future__ import annotations

import os
import socket
import sys
from datetime import UTC, datetime

from nos_ec.composition.audit import command_of
from nos_ec.ports.clock import Clock


def process_name() -> str:
    """This process, for operators."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def member_name(service: str, chance: bytes) -> str:
    """A name for a process of a service, as unique as `chance`, and readable for operators."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}-{chance.hex()}"


def run_name(clock: Clock) -> str:
    """This process, its start and its command, for the audit trail."""
    started = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")
    return f"{socket.gethostname()} {os.getpid()} {started} {command_of(sys.argv)}"
