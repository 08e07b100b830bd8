"""A key service that refuses some keys, returns wrong ones, or does not answer in time."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError, Corrupt, NosError, Transient
from nos_ec.gateway.auth import key_service
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.key_service import BACK_OFF_MS, KeyService
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessKey, KeyState
from tests.rig.fakes.clock import FakeClock
from tests.rig.waiting import WAIT_S_MAX
from tests.service.s3.s3_gateway import MASTERS


class Transit:
    """A server with the three calls of the transit engine, whose ciphertexts are the plain keys. `answer` may replace
    an answer: it gets the operation, the KMS key, and the right answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.version = 1
        self.answer: Callable[[str, str, dict[str, str]], tuple[int, bytes]] = self.right
        self.pause_s = 0.0
        transit = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                operation, kms_key = self.path.split("/")[3:]
                fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                transit.asked.append(f"{operation} {kms_key}")
                text = fields.get("plaintext") or fields["ciphertext"].split(":")[2]
                data = {"ciphertext": f"vault:v{transit.version}:{text}"}
                status, body = transit.answer(
                    operation, kms_key, {"plaintext": text} if operation == "decrypt" else data
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    time.sleep(transit.pause_s)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def right(_operation: str, _kms_key: str, data: dict[str, str]) -> tuple[int, bytes]:
        return 200, json.dumps({"data": data}).encode()

    def refuse(self, refused: str, status: int) -> None:
        """Answer with this status for one KMS key."""

        def answer(operation: str, kms_key: str, data: dict[str, str]) -> tuple[int, bytes]:
            right = self.right(operation, kms_key, data)
            return (status, b'{"errors": ["permission denied"]}') if kms_key == refused else right

        self.answer = answer


@pytest.fixture
def transit() -> Iterator[Transit]:
    made = Transit()
    thread = Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def service_of(transit: Transit, clock: FakeClock) -> KeyService:
    return KeyService(transit.url, lambda: "token", None, clock)


def ring_of(system: System, transit: Transit, clock: FakeClock) -> KeyRing:
    return KeyRing(system.metadata, MASTERS, clock, service_of(transit, clock))


@pytest.mark.parametrize(("status", "error"), [(403, Transient), (400, ConfigError)])
def test_a_key_that_is_refused_does_not_stop_the_others(
    system: System, transit: Transit, clock: FakeClock, status: int, error: type[NosError]
) -> None:
    ring = ring_of(system, transit, clock)
    assert [ring.add(os.urandom, name) for name in ("red", "blue", "green")] == [1, 2, 3]
    ring = ring_of(system, transit, clock)
    transit.refuse("red", status)
    transit.asked.clear()
    for _ in range(3):  # the second and third call are not made
        with pytest.raises(error, match=f"{status}"):
            ring.newest_of_kms("red")
    assert ring.newest_of_kms("blue") == (2, ring.key(2))
    assert transit.asked == ["decrypt red", "decrypt blue"]
    transit.answer = transit.right
    with pytest.raises(error):
        ring.newest_of_kms("red")
    clock.advance(BACK_OFF_MS)
    assert ring.newest_of_kms("red") == (1, ring.key(1))
    transit.refuse("red", status)
    transit.version = 2
    with pytest.raises(error):
        ring.wrap_again(os.urandom)
    transit.answer = transit.right
    clock.advance(BACK_OFF_MS)
    assert ring_of(system, transit, clock).wrap_again(os.urandom) == 1, "blue and green were wrapped again before"


def test_a_service_that_is_away_stops_all_calls(system: System, transit: Transit, clock: FakeClock) -> None:
    ring = ring_of(system, transit, clock)
    for name in ("red", "blue"):
        ring.add(os.urandom, name)
    ring = ring_of(system, transit, clock)
    transit.refuse("red", 503)
    transit.asked.clear()
    for name in ("red", "blue"):
        with pytest.raises(Transient, match="503"):
            ring.newest_of_kms(name)
    assert transit.asked == ["decrypt red"]
    clock.advance(BACK_OFF_MS)
    assert ring.newest_of_kms("blue") is not None


@pytest.mark.parametrize("wrong", [bytes(32), bytes(31)])
def test_another_key_is_never_used(system: System, transit: Transit, clock: FakeClock, wrong: bytes) -> None:
    """What it encrypted could not be decrypted after the service returned the right one again."""
    ring = ring_of(system, transit, clock)
    right = (ring.add(os.urandom, "red"), ring.key(1))
    ring = ring_of(system, transit, clock)
    other = {"plaintext": base64.b64encode(wrong).decode()}
    transit.answer = lambda operation, kms_key, _: transit.right(operation, kms_key, other)
    transit.asked.clear()
    for _ in range(2):
        with pytest.raises(Corrupt, match="another key"):
            ring.newest_of_kms("red")
    assert transit.asked == ["decrypt red"]
    with pytest.raises(Corrupt, match="another key"):
        ring.wrap_again(os.urandom)
    transit.answer = transit.right
    clock.advance(BACK_OFF_MS)
    assert ring.newest_of_kms("red") == right


def test_wrapping_again_adds_the_mac_that_older_records_lack(
    system: System, transit: Transit, clock: FakeClock
) -> None:
    name, key = "nos_ec:objects:00001", os.urandom(32)
    sealed = MASTERS.seal(name, f"service red vault:v1:{base64.b64encode(key).decode()}", os.urandom(12))
    system.metadata.add_access_key(AccessKey(name, ROOT_ACCOUNT, sealed, KeyState.DISABLED, 0, ""))
    assert ring_of(system, transit, clock).newest_of_kms("red") == (1, key)
    assert [ring_of(system, transit, clock).wrap_again(os.urandom) for _ in range(2)] == [1, 0]
    record = system.metadata.access_key(name)
    assert record is not None
    assert len(MASTERS.open(name, record.secret).split()) == 4
    assert ring_of(system, transit, clock).newest_of_kms("red") == (1, key)


def test_a_name_that_is_resolved_slowly(transit: Transit, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    released, resolved, resolve = Event(), Event(), socket.getaddrinfo

    def slowly(*arguments: Any, **named: Any) -> Any:
        released.wait(WAIT_S_MAX)
        found = resolve(*arguments, **named)
        resolved.set()
        return found

    monkeypatch.setattr(key_service, "DEADLINE_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    began_s = time.monotonic()
    with pytest.raises(Transient, match="slow to answer"):
        service_of(transit, clock).unwrap("red", "vault:v1:abcd")
    assert time.monotonic() - began_s < WAIT_S_MAX / 2
    released.set()
    assert resolved.wait(WAIT_S_MAX)
    assert transit.asked == []


def test_an_answer_that_comes_byte_by_byte(transit: Transit, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_service, "DEADLINE_S", 0.3)
    transit.pause_s = 0.1
    transit.answer = lambda *_: (200, bytes(2000))
    began_s = time.monotonic()
    with pytest.raises(Transient, match="slow to answer"):
        service_of(transit, clock).wrap("red", os.urandom(32))
    assert time.monotonic() - began_s < WAIT_S_MAX / 2
