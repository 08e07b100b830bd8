"""Daemons of a store of several cells: a process for each, which do not disturb each other (docs/CELLS.md)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nos_ec.cli.app import run
from nos_ec.cli.commands import cell_daemons
from nos_ec.cli.commands.cell_daemons import _CellDaemon, _port_of, _refusal
from nos_ec.core.errors import ConfigError
from nos_ec.settings import load_settings, without_settings
from tests.rig.dev_servers import free_port
from tests.rig.fakes.clock import FakeClock
from tests.rig.notify_socket import NotifySocket
from tests.rig.readiness import await_ready
from tests.rig.waiting import until
from tests.service.conftest import CONFIG, WAIT_S_MAX

pytestmark = pytest.mark.timed

NAMES = ["a", "b"]
CELLS = (
    CONFIG.replace('root = "store"', 'directory = "a"')
    + '[logging]\nformat = "json"\n'
    + "".join(f'[cells.{name}]\nstore.root = "cell-{name}"\n' for name in NAMES)
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "nos-ec.toml"
    file.write_text(CELLS)
    assert run(["--config", str(file), "init"]) == 0
    return file


class Daemon:
    """A running daemon of two cells."""

    def __init__(self, config: Path, *words: str, **environment: str) -> None:
        self.ports = free_ports()
        self._log = config.parent / "log"
        section = "API" if words == ("api",) else "MONITORING"
        ports = {f"NOS_EC_{section}__PORT": str(self.ports[0])}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nos_ec", "--config", str(config), *words],
                env={**without_settings(os.environ), **ports, **environment},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log that say this."""
        text = self._log.read_text()
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and "\n" in line]
        return [line for line in lines if line.get("event") == event]

    def pids(self, cell: str) -> list[int]:
        """Return the processes that were started for a cell."""
        return [line["process"] for line in self.events(f"started the process of cell {cell}")]

    def await_ready(self, number: int) -> None:
        await_ready(self.ports[number], wait_s=WAIT_S_MAX, look=self._look)

    def _look(self) -> None:
        assert self.process.poll() is None, "the daemon ended"

    def end(self) -> None:
        """Kill the daemon, whose processes then end, too."""
        self.process.kill()
        self.process.wait()
        pids = [pid for name in NAMES for pid in self.pids(name)]
        until(lambda: not any(map(is_alive, pids)), "the processes have ended")


def free_ports() -> tuple[int, int]:
    """Return two ports that follow each other."""
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port, port + 1


@contextmanager
def running(config: Path, *words: str, **environment: str) -> Iterator[Daemon]:
    daemon = Daemon(config, *words, **environment)
    try:
        yield daemon
    finally:
        daemon.end()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def store_of(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S_MAX) as reply:
        text = reply.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith("nos_ec_info{"))
    return str(line.partition('store_id="')[2].partition('"')[0])


def test_a_process_that_dies_is_replaced_and_the_others_run_on(config: Path) -> None:
    with (
        NotifySocket(str(config.parent / "systemd")) as systemd,
        running(config, "consumer", **systemd.environment) as consumer,
    ):
        consumer.await_ready(0)
        consumer.await_ready(1)
        assert systemd.heard() == "READY=1"
        assert len({store_of(port) for port in consumer.ports}) == 2
        (a,), (b,) = consumer.pids("a"), consumer.pids("b")
        os.kill(b, signal.SIGKILL)
        until(lambda: len(consumer.pids("b")) == 2, "cell b is served again")
        consumer.await_ready(1)
        assert consumer.pids("a") == [a]
        assert is_alive(a)
        # systemd signals all processes of a unit, so the supervisor sends its processes a second signal.
        os.kill(a, signal.SIGTERM)
        os.kill(consumer.process.pid, signal.SIGTERM)
        assert consumer.process.wait(WAIT_S_MAX) == 0
        assert not any(is_alive(pid) for name in NAMES for pid in consumer.pids(name))


def test_no_process_outlives_the_supervisor(config: Path) -> None:
    with running(config, "producer") as producer:
        producer.await_ready(0)
        producer.await_ready(1)
        pids = [*producer.pids("a"), *producer.pids("b")]
        producer.process.kill()
        until(lambda: not any(map(is_alive, pids)), "the processes have ended")


def test_a_cell_that_cannot_be_opened_is_tried_again_and_the_others_are_served(config: Path) -> None:
    database = config.parent / "cell-a" / "metadata.db"
    database.rename(config.parent / "away")
    with running(config, "gc", "run", "--apply", "--loop") as gc:
        gc.await_ready(1)
        until(lambda: gc.events("the process of cell a has ended; starting another"), "cell a is tried")
        (config.parent / "away").rename(database)
        gc.await_ready(0)
        (b,) = gc.pids("b")
        assert is_alive(b)
        assert gc.process.poll() is None


def test_settings_that_no_cell_can_be_served_with_end_the_daemon(config: Path) -> None:
    with running(config, "api") as api:  # it lacks a token
        assert api.process.wait(WAIT_S_MAX) == 3
        assert api.events("the process of cell a has ended; starting another")
        assert api.events("the process of cell b has ended; starting another")


def test_a_refusal_counts_while_its_cell_has_never_been_served(tmp_path: Path) -> None:
    def ends(cell: str, code: int) -> _CellDaemon:
        daemon = stack.enter_context(_CellDaemon(cell, [], dict(os.environ), tmp_path / cell, FakeClock()))
        daemon._command = [sys.executable, "-c", f"raise SystemExit({code})"]
        daemon.look()
        assert daemon.child.process is not None
        daemon.child.process.wait(WAIT_S_MAX)
        return daemon

    with ExitStack() as stack:
        wrong, also_wrong, away, usage = ends("a", 3), ends("b", 3), ends("c", 7), ends("d", 2)
        assert _refusal([wrong, also_wrong]) is None
        for daemon in (wrong, also_wrong, away, usage):
            daemon.look()
        assert _refusal([wrong, also_wrong]) == 3
        assert _refusal([wrong, away]) is None
        assert _refusal([wrong, away, usage]) == 2
        says = stack.enter_context(socket_to(tmp_path / "b"))
        says.send(b"READY=1")
        also_wrong.look()
        assert _refusal([wrong, also_wrong]) is None


def test_each_cell_has_an_api(config: Path) -> None:
    with running(config, "api", NOS_EC_API__TOKEN="t" * 32) as api:
        for number in range(2):
            api.await_ready(number)
        for port in api.ports:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/status", headers={"Authorization": f"Bearer {'t' * 32}"}
            )
            with urllib.request.urlopen(request, timeout=WAIT_S_MAX) as reply:
                assert json.loads(reply.read())["packed_objects"] == 0
        api.process.terminate()
        assert api.process.wait(WAIT_S_MAX) == 0


def test_the_ports_of_the_cells_must_exist(config: Path) -> None:
    settings = load_settings(config, {"NOS_EC_MONITORING__PORT": "65535", "NOS_EC_API__PORT": "65535"})
    assert _port_of(settings, "monitoring", 0) == {"NOS_EC_MONITORING__PORT": "65535"}
    assert _port_of(settings, "api", 0) == {"NOS_EC_API__PORT": "65535"}
    with pytest.raises(ConfigError, match="set a lower one"):
        _port_of(settings, "api", 1)
    assert _port_of(load_settings(config, {}), "monitoring", 1) == {}


def test_two_cells_with_the_same_port_are_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = config.read_text().replace("[cells.b]\n", "[cells.b]\nmonitoring.port = 9601\napi.port = 9701\n")
    config.write_text("[monitoring]\nport = 9601\n[api]\nport = 9701\n" + text)
    for words, port in ((("consumer",), 9601), (("api",), 9701)):
        assert run(["--config", str(config), *words]) == 3
        assert f"the servers of the cells a and b would both have port {port}" in capsys.readouterr().err


def test_a_process_whose_loops_make_no_progress_is_killed(tmp_path: Path) -> None:
    clock = FakeClock()
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with _CellDaemon("a", [], dict(os.environ), tmp_path / "a", clock) as daemon, socket_to(tmp_path / "a") as says:
        daemon._command = sleeps
        daemon.look()
        process = daemon.child.process
        assert process is not None
        clock.advance(cell_daemons._START_MS_MAX)
        daemon.look()
        assert process.poll() is None  # it may still open its cell
        says.send(b"READY=1")
        daemon.look()
        clock.advance(cell_daemons._WATCHDOG_MS)
        daemon.look()
        assert process.poll() is None
        clock.advance(1)
        daemon.look()
        assert process.wait(WAIT_S_MAX) == -signal.SIGKILL
        daemon.look()
        assert daemon.child.process is None


@contextmanager
def socket_to(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.connect(str(path))
        yield found
