"""The paths that load balancers ask on the port of the gateway."""

from __future__ import annotations

import csv
import json
import re
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.gateway.server import probes
from nos_ec.gateway.server.http_server import GatewayServer, make_service, open_gateway_listener
from nos_ec.monitoring.health import Health
from tests.rig.dev_servers import free_port
from tests.rig.programs import need_program
from tests.rig.waiting import until
from tests.service.conftest import WAIT_S_MAX
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, health_of, serving

PATHS = ("/-/livez", "/-/readyz")
HOST = "photos.s3.example.com"
GOOD, BAD = (200, b'{"ok": true}\n'), (503, b'{"ok": false}\n')


def asked(gateway: Gateway) -> list[tuple[int, bytes]]:
    """What both paths answer."""
    return [gateway.raw("GET", path)[:2] for path in PATHS]


def refuse() -> None:
    raise Transient("metadata at secret.example.com does not answer")


def test_both_paths_need_no_signature(gateway: Gateway) -> None:
    assert asked(gateway) == [GOOD, GOOD]
    for path in PATHS:
        assert gateway.raw("GET", path, Authorization="AWS4-HMAC-SHA256 nonsense")[:2] == GOOD
        status, body, headers = gateway.raw("HEAD", path)
        assert (status, body, headers["content-length"]) == (200, b"", str(len(GOOD[1])))
        assert headers["cache-control"] == "no-store"
        assert gateway.raw("GET", f"{path}?list-type=2")[:2] == GOOD


def test_they_answer_as_the_monitoring_port_does_without_reasons(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "ROUND_S", 0.0)
    health = Health(system.clock, 60_000)
    with serving(system, health=health) as gateway:
        assert asked(gateway) == [GOOD, BAD], "it has not started"
        health.started()
        assert asked(gateway) == [GOOD, GOOD]
        health.require("metadata", refuse)
        assert (asked(gateway), "metadata" in health.ready().problems) == ([GOOD, BAD], True)
        health.require("metadata", lambda: None)
        health.stopping()
        assert asked(gateway) == [GOOD, BAD]
    hanging = health_of(system)
    with serving(system, health=hanging) as gateway:
        hanging.heart("stuck")(-120_000)
        assert asked(gateway) == [BAD, GOOD]


def test_everybody_waits_for_one_round_of_checks(system: System, caplog: pytest.LogCaptureFixture) -> None:
    """`/-/livez` answers however many ask, and while the round hangs. Some give up meanwhile."""
    health, begun, goes_on, rounds = health_of(system), threading.Event(), threading.Event(), []

    def hang() -> None:
        rounds.append(1)
        begun.set()
        assert goes_on.wait(WAIT_S_MAX)

    health.require("metadata", hang)
    answers: list[tuple[int, bytes]] = []
    with serving(system, health=health) as gateway:
        askers = [
            threading.Thread(target=lambda: answers.append(gateway.raw("GET", "/-/readyz")[:2])) for _ in range(20)
        ]
        for asker in askers:
            asker.start()
        assert begun.wait(WAIT_S_MAX)
        assert gateway.raw("GET", "/-/livez")[:2] == GOOD
        parts = urlsplit(gateway.url)
        for _ in range(5):
            with socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S_MAX) as connection:
                connection.sendall(b"GET /-/readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        goes_on.set()
        for asker in askers:
            asker.join()
    assert (answers, len(rounds) <= 2) == ([GOOD] * 20, True)
    assert caplog.records == []


def test_they_are_not_limited_logged_or_counted(system: System) -> None:
    settings = SETTINGS.model_copy(update={"requests_max": 1, "threads": 1, "access_log": True})
    service, listener = make_service(system, MASTERS, settings), open_gateway_listener(settings)
    with (
        GatewayServer(service, settings, lambda: "1", listener, health_of(system)) as server,
        structlog.testing.capture_logs() as logged,
    ):
        gateway = Gateway(system, server.url)
        server.counters.under_way = 1
        assert gateway.raw("GET", "/photos")[0] == 503
        before = len(logged)
        assert asked(gateway) == [GOOD, GOOD]
        assert (len(logged), server.counters.under_way) == (before, 1)
        server.counters.under_way = 0
    assert [line["path"] for line in logged if line["event"] == "access" and "/-/" in str(line)] == []


def test_they_hide_no_object_and_no_bucket(gateway: Gateway, ann: Any) -> None:
    """No bucket has such a name, and in a host that names a bucket the paths are keys."""
    for name in PATHS:
        ann.put_object(Bucket="photos", Key=name[1:], Body=name.encode(), ACL="public-read")
        assert gateway.raw("GET", f"/photos{name}")[:2] == (200, name.encode())
        assert gateway.raw("GET", name, Host=HOST)[:2] == (200, name.encode())
        assert gateway.raw("GET", name, Host="s3.example.com")[:2] == GOOD
        for method in ("PUT", "DELETE", "POST", "OPTIONS"):
            of_another = gateway.raw(method, name.replace("-", "~", 1))
            found = gateway.raw(method, name)
            assert (found[0], b"<Code>" in found[1]) == (of_another[0], True)
            assert 400 <= found[0] < 500
        assert b"<Code>" in gateway.raw("GET", name, b"a body")[1]
        for other in (f"{name}/", name[:-1], name.replace("-", "%2D")):
            assert b"<Code>" in gateway.raw("GET", other)[1]


def test_behind_a_proxy_the_host_that_the_client_sent_counts(system: System) -> None:
    settings = SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1"})
    with serving(system, settings) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        ann.put_object(Bucket="photos", Key="-/livez", Body=b"x", ACL="public-read")
        assert gateway.raw("GET", "/-/livez", X_Forwarded_Host=HOST)[:2] == (200, b"x")
        assert gateway.raw("GET", "/-/livez", X_Forwarded_Host="s3.example.com")[:2] == GOOD


@pytest.mark.parametrize("head", ["HEAD /-/livez HTTP/1.0\r\n\r\n", "GET /-/livez HTTP/1.0\r\n\r\n"])
def test_a_load_balancer_that_sends_no_host(gateway: Gateway, head: str) -> None:
    """HAProxy's checks are of HTTP/1.0 unless it is told otherwise."""
    parts = urlsplit(gateway.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S_MAX) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert answer.endswith(GOOD[1] if head.startswith("GET") else b"\r\n\r\n")


def test_a_connection_stays_open(gateway: Gateway) -> None:
    parts = urlsplit(gateway.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S_MAX) as connection:
        for _ in range(3):
            connection.sendall(b"GET /-/readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}\n"):
                answer += connection.recv(4096)
            assert json.loads(answer.rpartition(b"\r\n\r\n")[2]) == {"ok": True}


def test_haproxy_as_the_documentation_configures_it(system: System, tmp_path: Path) -> None:
    """It takes a gateway out that hangs, and signatures hold although it names another host to the gateways."""
    haproxy, port = need_program("haproxy"), free_port()
    sample = re.search(r"For HAProxy:\n\n```\n(.*?)```", Path("docs/S3.md").read_text(), re.DOTALL)
    assert sample is not None
    settings = SETTINGS.model_copy(update={"trusted_proxies": "127.0.0.1"})
    hanging = health_of(system)
    with serving(system, settings, hanging) as one, serving(system, settings) as other:
        backend = sample[1].replace("X-Forwarded-Proto https", "X-Forwarded-Proto http")
        for number, gateway in ((1, one), (2, other)):
            backend = backend.replace(f"10.0.0.1{number}:9488", f"127.0.0.1:{urlsplit(gateway.url).port}")
        config = tmp_path / "haproxy.cfg"
        waits = "".join(f"    timeout {what} 30s\n" for what in ("connect", "client"))
        front = f"frontend s3\n    mode http\n    bind 127.0.0.1:{port}\n    default_backend nos-ec\n"
        status = tmp_path / "status"
        config.write_text(f"global\n    stats socket {status}\ndefaults\n{waits}{front}{backend}")
        with subprocess.Popen([haproxy, "-db", "-f", str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                until(lambda: _states(status) == {"gateway-1": "UP", "gateway-2": "UP"})
                ann = Gateway(system, f"http://127.0.0.1:{port}").client("ann")
                ann.create_bucket(Bucket="photos")
                hanging.heart("stuck")(-120_000)
                until(lambda: _states(status) == {"gateway-1": "DOWN", "gateway-2": "UP"})
                for number in range(4):
                    ann.put_object(Bucket="photos", Key=str(number), Body=b"x")
            finally:
                process.terminate()


def _states(status: Path) -> dict[str, str]:
    """What HAProxy says about each gateway, once its checks have answered."""
    if not status.exists():
        return {}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S_MAX)
        connection.connect(str(status))
        connection.sendall(b"show stat\n")
        lines = b"".join(iter(lambda: connection.recv(4096), b"")).decode().removeprefix("# ").splitlines()
    rows = [row for row in csv.DictReader(filter(None, lines)) if row["svname"].startswith("gateway")]
    return {row["svname"]: row["status"] for row in rows if row["check_status"] and "INI" not in row["check_status"]}
