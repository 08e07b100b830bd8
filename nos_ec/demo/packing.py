"""Runs several consumer processes that share the work, as consumers on several hosts would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from nos_consumer.counters import ConsumerCounters
from nos_ec.core.errors import Transient
from nos_ec.settings import without_settings

WATCH_S = 0.5
STOP_S_MAX = 30


def pack_in_processes(config: Path, count: int, watch: Callable[[], object]) -> ConsumerCounters:
    """Run `count` processes of `nos-ec consumer --once` until everything is packed, and return the sum of their
    counters.

    `config` is the store's configuration file; the processes' logs are written next to it. `watch` is called from time
    to time. Raises Transient with the end of the log of a process that failed.
    """
    total = ConsumerCounters()
    with _started(config, count) as processes:
        while any(process.poll() is None for process in processes):
            watch()
            time.sleep(WATCH_S)
        for index, process in enumerate(processes):
            assert process.stdout is not None
            if process.returncode != 0:
                log = _log(config, index).read_text(errors="replace")
                raise Transient(f"consumer process {index} ended with {process.returncode}: {log[-500:].strip()}")
            total += msgspec.json.decode(process.stdout.read(), type=ConsumerCounters)
    return total


@contextmanager
def _started(config: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the processes. Processes that still run at the end of the `with` block are stopped."""
    command = [sys.executable, "-m", "nos_ec.cli", "--config", str(config), "consumer", "--once", "--json"]
    # Environment variables would override the file, and so select the configured store instead.
    environment = without_settings(os.environ)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(count):
            with _log(config, index).open("wb") as log:
                processes.append(
                    subprocess.Popen(  # noqa: S603 - our own program, without user input
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
                    )
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _log(config: Path, index: int) -> Path:
    return config.with_name(f"consumer-{index}.log")
