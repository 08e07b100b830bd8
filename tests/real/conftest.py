"""Real servers, started through the scripts of deploy/dev once a session, and stopped at its end.

A test that needs a server that cannot be had is skipped with the reason, or fails when REQUIRE_REAL=1.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nos_ec.testing.ceph_cluster import CephCluster

SCRIPTS = Path(__file__).parents[2] / "deploy" / "dev"
MISSING = 3
"""Exit status of the scripts when something is not there and cannot be installed."""
START_S_MAX = 600
"""The first start may have to install and fetch."""


def free_port() -> int:
    """A port nobody uses now, below those that Linux gives to clients: a server that comes back finds it free."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


class Server:
    """A server with its data in `folder`, on a port of its own, through its script."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.url = ""
        self._environment = os.environ | {
            "NOS_EC_DEV_DIR": str(folder),
            "NOS_EC_DEV_PORT": str(free_port()),
            "NOS_EC_DEV_FAST": "1",
        }

    def start(self) -> None:
        """Start it, or skip (fail, with REQUIRE_REAL=1) when it cannot be had."""
        started = self.script("start")
        if started.returncode == MISSING and os.environ.get("REQUIRE_REAL") != "1":
            pytest.skip(started.stderr.strip())
        if started.returncode != 0:
            pytest.fail(f"{self.name} cannot be started: {started.stderr.strip()}", pytrace=False)
        self.url = started.stdout.split()[-1]

    def stop(self) -> None:
        """Stop it; its data stays."""
        stopped = self.script("stop")
        assert stopped.returncode == 0, stopped.stderr

    def kill(self) -> None:
        """As a crash of the process leaves it."""
        os.kill(int((self.folder / "server.pid").read_text()), signal.SIGKILL)

    def script(self, action: str) -> subprocess.CompletedProcess[str]:
        """Run the server's script."""
        command = [str(SCRIPTS / f"{self.name}.sh"), action]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=START_S_MAX)


def run(name: str, folder: Path) -> Iterator[Server]:
    """Start the server `name`, give it, and stop it."""
    server = Server(name, folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def run_server(name: str, folder: Path) -> Iterator[str]:
    """Start the server `name` with its data in `folder`, give its URL, and stop it."""
    for server in run(name, folder):
        yield server.url


@pytest.fixture(scope="session")
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("mariadb", tmp_path_factory.mktemp("mariadb"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from run("kafka", tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="session")
def mysql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("mysql", tmp_path_factory.mktemp("mysql"))


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephCluster]:
    for conf_file in run_server("ceph", tmp_path_factory.mktemp("ceph")):
        cluster = CephCluster(Path(conf_file), SCRIPTS / "ceph.sh")
        yield cluster
        cluster.close()


@pytest.fixture
def xfail_unless_pages_are_read(ceph: CephCluster, request: pytest.FixtureRequest) -> None:
    """For a test of what reads cost: the gap of an older Ceph, which must show, is an expected failure."""
    if not ceph.reads_pages():
        request.applymarker(pytest.mark.xfail(strict=True, reason="this Ceph or pool reads more than is asked for"))
