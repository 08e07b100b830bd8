"""Real servers, started through the scripts of deploy/dev once a session, and stopped at its end.

A test that needs a server that cannot be had is skipped with the reason, or fails when REQUIRE_REAL=1.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "deploy" / "dev"
MISSING = 3
"""Exit status of the scripts when something is not there and cannot be installed."""
START_S_MAX = 600
"""The first start may have to install and fetch."""


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_server(name: str, folder: Path) -> Iterator[str]:
    """Start the server `name` with its data in `folder`, give its URL, and stop it."""
    environment = os.environ | {
        "NOS_EC_DEV_DIR": str(folder),
        "NOS_EC_DEV_PORT": str(free_port()),
        "NOS_EC_DEV_FAST": "1",
    }

    def script(action: str) -> subprocess.CompletedProcess[str]:
        command = [str(SCRIPTS / f"{name}.sh"), action]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S_MAX)

    started = script("start")
    if started.returncode == MISSING and os.environ.get("REQUIRE_REAL") != "1":
        pytest.skip(started.stderr.strip())
    if started.returncode != 0:
        pytest.fail(f"{name} cannot be started: {started.stderr.strip()}", pytrace=False)
    try:
        yield started.stdout.split()[-1]
    finally:
        stopped = script("stop")
        assert stopped.returncode == 0, stopped.stderr


@pytest.fixture(scope="session")
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("mariadb", tmp_path_factory.mktemp("mariadb"))


@pytest.fixture(scope="session")
def mysql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("mysql", tmp_path_factory.mktemp("mysql"))
