"""`nos-ec s3 serve` as a daemon: one process or several, their monitoring, and how they end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.settings import without_settings
from tests.rig import waiting
from tests.rig.dev_servers import free_port
from tests.rig.notify_socket import NotifySocket
from tests.service.cli.test_endpoints import UNEQUAL, Daemon, expected_names, shown_names
from tests.service.conftest import WAIT_S_MAX, Bench
from tests.service.s3.s3_gateway import Gateway

pytestmark = pytest.mark.timed
MASTER, OTHER_MASTER = "12" * 32, "34" * 32
until = partial(waiting.until, wait_s=20)


class Served(Daemon):
    """A running gateway, the daemon's endpoint, and the lines of its log as they come."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        super().__init__(process, port)
        assert process.stdout is not None
        self.url: str = json.loads(process.stdout.readline())["url"]
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            assert line.startswith(b"{"), line
            assert line.endswith(b"}\n"), line
            self.log.append(json.loads(line))

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in list(self.log) if line.get("event") == event]

    def workers(self) -> list[int]:
        """Return the pids of its processes."""
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if (stat := stat_of(pid)) and stat[1] == str(self.process.pid)]


@contextmanager
def serving(bench: Bench, folder: Path, processes: int, **environment: str) -> Iterator[Served]:
    file = folder / "master"
    file.write_text(MASTER)
    file.chmod(0o600)
    port = free_port()
    settings = {
        "NOS_EC_S3__PORT": "0",
        "NOS_EC_S3__PROCESSES": str(processes),
        "NOS_EC_S3__MASTER_KEY_FILE": str(file),
        "NOS_EC_MONITORING__PORT": str(port),
        "NOS_EC_LOGGING__FORMAT": "json",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "s3", "serve"],
        env={**without_settings(os.environ), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    served = None
    try:
        served = Served(process, port)
        yield served
    finally:
        left = served.workers() if served is not None else []
        process.kill()
        process.wait(WAIT_S_MAX)
        for pid in left:
            end_process(pid)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def end_process(pid: int) -> None:
    """End a process that a failed test has left."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def stat_of(pid: int) -> list[str]:
    """The fields of proc(5)'s stat that follow the name: state, parent's pid and others. Empty if there is no such
    process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether the process still runs. A zombie counts as ended."""
    stat = stat_of(pid)
    return bool(stat) and stat[0] != "Z"


def is_gone(pid: int) -> bool:
    return not alive(pid)


def sockets_of(pid: int) -> int:
    """How many a process has open."""
    return sum(str(file.readlink()).startswith("socket:") for file in Path(f"/proc/{pid}/fd").iterdir())


def client_of(system: System, url: str) -> tuple[Gateway, Any]:
    gateway = Gateway(system, url)
    made = Accounts(system.metadata, system.clock, os.urandom).create_key(MasterKeys([MASTER]), "ann")
    return gateway, gateway.client_of(made.key.access_key, made.secret)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_master_key_that_fits_no_access_key_is_refused(
    bench: Bench, system: System, tmp_path: Path, processes: int
) -> None:
    """With such a key, every signed request would get 500. The file may have further master keys, of which one fits."""
    accounts = Accounts(system.metadata, system.clock, os.urandom)
    accounts.create_key(MasterKeys([MASTER]), "ann")
    refused = bench.run_python(
        "-c",
        "import os, sys; from nos_ec.cli.app import run;"
        f" os.environ.update(NOS_EC_S3__MASTER_KEY={OTHER_MASTER!r}, NOS_EC_S3__PORT='0',"
        f" NOS_EC_S3__PROCESSES='{processes}'); sys.exit(run(['--config', {str(bench.config)!r}, 's3', 'serve']))",
    )
    assert refused.returncode == 3, refused.stderr
    assert b"another master key" in refused.stderr
    with serving(bench, tmp_path, processes) as gateway:
        assert gateway.health("/readyz") == (200, {"ok": True, "problems": {}})
        assert accounts.encrypt_again(MasterKeys([OTHER_MASTER, MASTER])) == 1
        until(lambda: gateway.get("/readyz")[0] == 503, "it does not know the new one")
        assert "another master key" in json.dumps(gateway.health("/readyz")[1]["problems"])


def test_a_gateway_is_not_ready_without_its_newest_encryption_key(bench: Bench, system: System, tmp_path: Path) -> None:
    KeyRing(system.metadata, MasterKeys([OTHER_MASTER]), system.clock).add(os.urandom)
    with serving(bench, tmp_path, 1) as gateway:
        assert gateway.get("/readyz")[0] == 503
        assert "a key that encrypts objects" in json.dumps(gateway.health("/readyz")[1]["problems"])


def get_often(gateway: Gateway, count: int) -> None:
    """`count` GETs of photos/k, each on a connection of its own, eight at a time."""
    statuses: Counter[int] = Counter()

    def get() -> None:
        for _ in range(count // 8):
            statuses[gateway.raw("GET", "/photos/k")[0]] += 1

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert statuses == {200: count}


@pytest.mark.parametrize("processes", [1, 3])
def test_a_gateway_is_monitored_and_drained(bench: Bench, system: System, tmp_path: Path, processes: int) -> None:
    with (
        NotifySocket(str(tmp_path / "notify")) as notified,
        serving(bench, tmp_path, processes, NOS_EC_S3__ACCESS_LOG="true", **notified.environment) as served,
    ):
        assert notified.heard() == "READY=1"
        until(lambda: served.metrics()["nos_ec_s3_processes",] == processes, "all processes serve")
        until(lambda: served.get("/readyz")[0] == 200, "ready")
        assert served.health("/livez") == (200, {"ok": True, "problems": {}})
        assert len(served.workers()) == (0 if processes == 1 else processes)
        gateway, client = client_of(system, served.url)
        client.create_bucket(Bucket="photos")
        client.put_object(Bucket="photos", Key="k", Body=b"hello", ACL="public-read")
        get_often(gateway, 80)
        gateway.raw("GET", "/photos/none")

        def count(found: dict[tuple[str, ...], float]) -> float:
            return found.get(("nos_ec_s3_request_seconds_count", "GetObject"), 0)

        until(lambda: count(served.metrics()) == 81, "every request is counted once")
        found = served.metrics()
        assert shown_names(found) == expected_names("s3"), UNEQUAL
        assert found["nos_ec_s3_first_byte_seconds_count", "GetObject"] == 81
        assert found["nos_ec_s3_sent_bytes_total", "GetObject"] > 80 * 5
        assert found["nos_ec_s3_errors_total", "AccessDenied", "GetObject", "403"] == 1
        assert found["nos_ec_s3_requests_under_way",] == 0
        assert found["nos_ec_s3_process_restarts_total",] == 0
        assert sum(name[0] == "nos_ec_info" for name in found) == 1
        until(lambda: len(served.lines("access")) == 83, "every request is logged once")
        workers = served.workers()
        assert served.stop() == 0
        assert notified.heard() == "STOPPING=1"
        assert not any(alive(pid) for pid in workers)
        with pytest.raises(httpx.TransportError):
            httpx.get(served.url)


@pytest.mark.parametrize("processes", [1, 2])
def test_requests_under_way_are_finished_before_the_end(
    bench: Bench, system: System, tmp_path: Path, processes: int
) -> None:
    with serving(bench, tmp_path, processes) as served:
        _, client = client_of(system, served.url)
        client.create_bucket(Bucket="photos", ACL="public-read-write")
        host, port = served.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S_MAX)
        connection.putrequest("PUT", "/photos/slow")
        connection.putheader("Content-Length", "10")
        connection.endheaders(b"hello")
        until(lambda: served.metrics()["nos_ec_s3_requests_under_way",] == 1, "the PUT is under way")
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.get("/readyz")[0] == 503, "it stops")
        connection.send(b"world")
        assert connection.getresponse().status == 200
        connection.close()
        assert served.process.wait(WAIT_S_MAX) == 0
    assert system.client.store().head(ObjectKey("photos", "slow")).size == 10


def test_a_process_that_dies_is_replaced_and_its_counts_stay(bench: Bench, system: System, tmp_path: Path) -> None:
    with serving(bench, tmp_path, 2) as served:
        gateway, client = client_of(system, served.url)
        client.create_bucket(Bucket="photos")
        client.put_object(Bucket="photos", Key="k", Body=b"hello", ACL="public-read")
        until(lambda: served.metrics()["nos_ec_s3_processes",] == 2, "both serve")
        get_often(gateway, 40)
        counted = ("nos_ec_s3_request_seconds_count", "GetObject")
        restarts = ("nos_ec_s3_process_restarts_total",)
        until(lambda: served.metrics().get(counted) == 40, "all are counted")
        for expected in (1, 2):
            killed = served.workers()[0]
            os.kill(killed, signal.SIGKILL)
            until(partial(is_gone, killed), "it is dead")
            get_often(gateway, 8)
            until(partial(lambda known: served.metrics()[restarts] == known, expected), "its end is noticed")
            until(lambda: served.metrics()["nos_ec_s3_processes",] == 2, "it is replaced")
            assert killed not in served.workers()
            known = 40 + 8 * expected
            until(partial(lambda known: served.metrics()[counted] == known, known), "nothing is forgotten")
        (first, second) = served.lines("a process of the gateway has ended; starting another")
        assert (first["exit_code"], first["in_ms"]) == (-signal.SIGKILL, 1000)
        assert second["in_ms"] in (1000, 2000), "the back-off is of each place"
        assert served.stop() == 0


def test_connections_that_a_client_opens_at_once_are_spread(bench: Bench, tmp_path: Path) -> None:
    with serving(bench, tmp_path, 2) as served, ExitStack() as stack:
        until(lambda: served.metrics()["nos_ec_s3_processes",] == 2, "both serve")
        before = {pid: sockets_of(pid) for pid in served.workers()}
        host, port = served.url.removeprefix("http://").split(":")
        opened = [stack.enter_context(socket.create_connection((host, int(port)), WAIT_S_MAX)) for _ in range(32)]
        for connection in opened:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        for connection in opened:
            assert connection.recv(4096).startswith(b"HTTP/1.1 "), "it is answered"
        shares = [sockets_of(pid) - count for pid, count in before.items()]
        assert sum(shares) == 32
        assert min(shares) >= 8, shares
        assert served.stop() == 0


def test_no_process_survives_its_supervisor(bench: Bench, system: System, tmp_path: Path) -> None:
    with serving(bench, tmp_path, 2) as served:
        until(lambda: served.metrics()["nos_ec_s3_processes",] == 2, "both serve")
        workers = served.workers()
        served.process.kill()
        served.process.wait(WAIT_S_MAX)
        until(lambda: not any(alive(pid) for pid in workers), "they end by themselves")
        with pytest.raises(httpx.TransportError):
            httpx.get(served.url)


def test_a_process_that_hangs_is_replaced(bench: Bench, system: System, tmp_path: Path) -> None:
    with serving(bench, tmp_path, 2, NOS_EC_DEV_STALL_MS="3000") as served:
        until(lambda: served.metrics()["nos_ec_s3_processes",] == 2, "both serve")
        stuck = served.workers()[0]
        os.kill(stuck, signal.SIGSTOP)
        until(lambda: not alive(stuck), "it is killed")
        until(lambda: len(served.workers()) == 2, "it is replaced")
        assert served.lines("a process of the gateway hangs; killing it")[0]["process"] == stuck
        assert served.stop() == 0


def test_a_configuration_that_no_process_can_serve_ends_the_command(bench: Bench, tmp_path: Path) -> None:
    """There is no store yet, which only the processes find out."""
    environment = {"NOS_EC_S3__MASTER_KEY": MASTER, "NOS_EC_S3__PORT": "0", "NOS_EC_S3__PROCESSES": "2"}
    ran = subprocess.run(
        [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "s3", "serve", "--json"],
        env={**without_settings(os.environ), **environment, "NOS_EC_STORE__ROOT": str(tmp_path / "none")},
        capture_output=True,
        timeout=WAIT_S_MAX,
    )
    assert ran.returncode == 3, ran.stderr
    assert "nos-ec init" in json.loads(ran.stderr.splitlines()[-1])["message"]


@pytest.mark.parametrize("processes", [1, 2])
def test_access_logs_of_all_processes_are_stored_at_the_end(
    bench: Bench, system: System, tmp_path: Path, processes: int
) -> None:
    with serving(bench, tmp_path, processes) as served:
        until(lambda: served.get("/readyz")[0] == 200, "ready")
        gateway, client = client_of(system, served.url)
        for bucket in ("photos", "logs"):
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket="photos", Key="k", Body=b"hello", ACL="public-read")
        target = {"LoggingEnabled": {"TargetBucket": "logs", "TargetPrefix": "of-photos/"}}
        client.put_bucket_logging(Bucket="photos", BucketLoggingStatus=target)
        threading.Event().wait(2.1)  # until the other process notices
        get_often(gateway, 40)
        assert client.list_objects_v2(Bucket="logs")["KeyCount"] == 0
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(WAIT_S_MAX) == 0
    store = system.client.store()
    logs = [store.get(row.key).decode() for row in store.list_objects("logs", "of-photos/", "", 100)]
    lines = [line for log in logs for line in log.splitlines()]
    assert 1 <= len(logs) <= processes  # a process that served no request stores nothing
    assert sum(" REST.GET.OBJECT k " in line for line in lines) == 40
