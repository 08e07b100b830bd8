"""Real servers, started through the scripts of deploy/dev when a process first needs them, and stopped after its last
test of tests/real: the idle daemons of Ceph alone take a tenth of a core.

A test that needs a server that cannot be had is skipped with the reason, or fails when REQUIRE_REAL=1.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig.ceph_cluster import CephCluster
from tests.rig.dev_servers import MISSING, SCRIPTS, START_S_MAX, DevServer, ServerFailed, ServerMissing, free_port
from tests.rig.patience import PATIENCE_MS
from tests.rig.prometheus import promtool
from tests.rig.s3.embedded_gateway import embedded_gateway
from tests.rig.s3.s3_clients import clients_python
from tests.rig.s3.s3_gateway import Access
from tests.rig.s3.two_gateways import TwoGateways, two_gateways


def start(server: DevServer) -> None:
    """Start it, or skip (fail, with REQUIRE_REAL=1) when it is not available."""
    or_skip(server.start)


def or_skip(install: Callable[[], object]) -> None:
    """Call it; skip (fail, with REQUIRE_REAL=1) when a server or program is not available."""
    try:
        install()
    except ServerMissing as missing:
        if os.environ.get("REQUIRE_REAL") != "1":
            pytest.skip(str(missing))
        pytest.fail(str(missing), pytrace=False)
    except ServerFailed as failed:
        pytest.fail(str(failed), pytrace=False)


class Stack:
    """All servers at once through stack.sh, with their data in `folder` and on separate ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = os.environ | {
            "NOS_EC_DEV_DIR": str(folder),
            "NOS_EC_DEV_CEPH_PORT": str(free_port()),
            "NOS_EC_DEV_KAFKA_PORT": str(free_port()),
            "NOS_EC_DEV_DATABASE_PORT": str(free_port()),
            "NOS_EC_DEV_CEPH_OSDS": "11",
            "NOS_EC_DEV_FAST": "1",
        }

    def script(self, action: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it with some environment added."""
        command = [str(SCRIPTS / "stack.sh"), action]
        return subprocess.run(
            command, env=self._environment | environment, capture_output=True, text=True, timeout=START_S_MAX
        )

    def up(self, **environment: str) -> str:
        """Start it, or skip (fail, with REQUIRE_REAL=1) when it is not available. Returns its output."""
        started = self.script("up", **environment)
        if started.returncode == MISSING and os.environ.get("REQUIRE_REAL") != "1":
            pytest.skip(started.stderr.strip())
        assert started.returncode == 0, started.stderr
        return started.stdout

    def pids(self) -> dict[str, int]:
        """The recorded pid of each daemon, by name."""
        files = [*self.folder.glob("*/server.pid"), *self.folder.glob("ceph/run/*.pid")]
        return {file.stem if file.stem != "server" else file.parent.name: int(file.read_text()) for file in files}

    def processes(self) -> set[int]:
        """Processes that have the folder in their command line, whatever the scripts recorded."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command_line = (process / "cmdline").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            if str(self.folder).encode() in command_line:
                found.add(int(process.name))
        return found


def run(name: str, folder: Path, *, fast: bool = True, **environment: str) -> Iterator[DevServer]:
    """Start the server `name`, yield it, and stop it."""
    server = DevServer(name, folder, fast=fast, **environment)
    start(server)
    try:
        yield server
    finally:
        server.stop()


def run_server(name: str, folder: Path) -> Iterator[str]:
    """Start the server `name` with its data in `folder`, yield its URL, and stop it."""
    for server in run(name, folder):
        yield server.url


@pytest.fixture(scope="package")
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("mariadb", tmp_path_factory.mktemp("mariadb"))


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Its controller waits for it as long as a cluster's would, so that it survives a stall of the machine. It creates
    topics that a client looks up, as Kafka does by default."""
    folder = tmp_path_factory.mktemp("kafka")
    properties = folder / "more.properties"
    properties.write_text("broker.session.timeout.ms=9000\nauto.create.topics.enable=true\n")
    yield from run("kafka", folder, NOS_EC_DEV_KAFKA_PROPERTIES=str(properties))


@pytest.fixture(scope="package")
def mysql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("mysql", tmp_path_factory.mktemp("mysql"))


@pytest.fixture(scope="module")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A separate one for the module, which is restarted in an orderly way."""
    yield from run("mysql", tmp_path_factory.mktemp("mysql"))


@pytest.fixture
def durable_mysql(tmp_path: Path) -> Iterator[DevServer]:
    """One that may be killed: the shared server would lose its last commits."""
    yield from run("mysql", tmp_path, fast=False)


@pytest.fixture(scope="package")
def ceph_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    yield from run("ceph", tmp_path_factory.mktemp("ceph"))


@pytest.fixture(scope="package")
def ceph(ceph_server: DevServer) -> Iterator[CephCluster]:
    cluster = CephCluster(Path(ceph_server.url), SCRIPTS / "ceph.sh")
    yield cluster
    cluster.close()


@pytest.fixture
def stack_config(tmp_path: Path, ceph: CephCluster, kafka: DevServer, mysql_url: str) -> Path:
    """A configuration on all three servers. Its store is not initialised: use a scratch store, or set `namespace`,
    `topic` and database."""
    client = ceph.options("consumer")
    path = tmp_path / "nos-ec.toml"
    path.write_text(
        f"""
[store]
backend = "ceph"
metadata_url = "{mysql_url}"
[ceph]
conf_file = "{client.conf_file}"
user = "{client.user}"
keyring_file = "{client.keyring_file}"
admin_keyring_file = "{ceph.folder / "admin.keyring"}"
op_timeout_ms = {PATIENCE_MS}
[log]
backend = "kafka"
session_ms = 6000
[kafka]
servers = "{kafka.url}"
replication = 1
in_sync_min = 1
"""
    )
    return path


@pytest.fixture
def xfail_unless_pages_are_read(ceph: CephCluster, request: pytest.FixtureRequest) -> None:
    """For a test of read costs: on an older Ceph, its failure is expected and must occur."""
    if not ceph.reads_pages():
        request.applymarker(pytest.mark.xfail(strict=True, reason="this Ceph or pool reads more than is asked for"))


@pytest.fixture(scope="package")
def with_promtool() -> None:
    """Prometheus' programs are installed."""
    or_skip(promtool)


@pytest.fixture(scope="module")
def s3_access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """A gateway of an embedded store, for real clients, which are installed."""
    or_skip(clients_python)
    with embedded_gateway(tmp_path_factory.mktemp("embedded")) as access:
        yield access


@pytest.fixture(scope="module")
def gateways(
    ceph: CephCluster, kafka: DevServer, mariadb_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoGateways]:
    """Two gateways on all servers."""
    with two_gateways(ceph, kafka.url, mariadb_url, tmp_path_factory.mktemp("gateways")) as running:
        yield running


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    yield stack
    stopped = stack.script("down")
    assert stopped.returncode == 0, stopped.stderr
