"""Daemons that are probed, every few seconds and by more than one, while no broker answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings, without_settings
from tests.rig.chaos.chaos_fleet import UNREACHED
from tests.rig.dev_servers import DevServer, free_port
from tests.rig.patience import patient
from tests.rig.readiness import await_ready, readyz

pytestmark = pytest.mark.real

PROBES = 10
REQUEST_MS = 3000
WAIT_S_MAX = 120
END_S_MAX = 60
"""Two thirds of what systemd waits for (deploy/systemd)."""


@pytest.mark.parametrize("service", ["producer", "consumer"])
def test_concurrent_probes_share_one_check_and_do_not_delay_the_exit(
    tmp_path: Path, kafka: DevServer, service: str
) -> None:
    port = free_port()
    with _daemon(tmp_path, kafka, service, port) as process:
        kafka.put_to_sleep()
        said_before = len((tmp_path / "log").read_text())
        try:
            with ThreadPoolExecutor(PROBES) as pool:
                assert list(pool.map(_ready, [port] * PROBES)) == [503] * PROBES
            lines = (tmp_path / "log").read_text()[said_before:].splitlines()
            looks = sum('"not ready"' in line and '"message log"' in line for line in lines)
            assert looks < PROBES // 2, "each waits for a time limit, one after the other"
            with ThreadPoolExecutor(PROBES) as pool:
                asked = [pool.submit(_ready, port) for _ in range(PROBES)]
                time.sleep(REQUEST_MS / 1000 / 2)
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=END_S_MAX) == 0, (tmp_path / "log").read_text()
                assert {answer.result() for answer in asked} <= {503, None}
        finally:
            kafka.wake()


@contextmanager
def _daemon(folder: Path, kafka: DevServer, service: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that is ready."""
    config = folder / "nos-ec.toml"
    config.write_text(
        f"""
store.root = "store"
log = {{ backend = "kafka", partitions = 3 }}
monitoring.port = {port}
logging.format = "json"
[kafka]
servers = "{kafka.url}"
topic = "probed-{uuid.uuid4().hex[:8]}"
replication = 1
in_sync_min = 1
options = {{ "socket.timeout.ms" = {REQUEST_MS} }}
"""
    )
    initialise(patient(load_settings(config, {})))
    process = _started(folder, config, service)

    def look() -> None:
        """A daemon that cannot reach the broker within this time limit at its start ends, and systemd restarts it."""
        nonlocal process
        if process.poll() is not None:
            assert process.returncode == UNREACHED, (folder / "log").read_text()
            process = _started(folder, config, service)

    try:
        await_ready(port, wait_s=WAIT_S_MAX, look=look)
        yield process
    finally:
        process.kill()
        process.wait()


def _started(folder: Path, config: Path, service: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nos_ec", "--config", str(config), service]
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(command, env=without_settings(os.environ), stdout=log, stderr=log)


def _ready(port: int) -> int | None:
    """The status of /readyz; None without an answer, or when the process ends meanwhile."""
    return readyz(port, timeout_s=WAIT_S_MAX).status
