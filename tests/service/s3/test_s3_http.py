"""The gateway's HTTP, byte by byte: what proxies and servers could understand differently, and clients that dawdle."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.gateway.server import http_protocol
from nos_ec.gateway.server.http_server import GatewayServer, make_service, open_gateway_listener
from tests.rig.programs import need_program
from tests.service.conftest import WAIT_S_MAX
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, health_of

GOOD = b"GET /photos/k HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Wire:
    """A gateway with the public object photos/k, whose bytes are `public`."""

    gateway: Gateway
    client: Any

    def open(self) -> socket.socket:
        port = int(self.gateway.url.rsplit(":", 1)[1])
        return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX)

    def answer(self, *parts: bytes) -> bytes:
        """All that is answered, to the end of the connection."""
        with self.open() as connection:
            for part in parts:
                connection.sendall(part)
            return rest_of(connection)

    def keys(self) -> list[str]:
        return [row["Key"] for row in self.client.list_objects_v2(Bucket="photos").get("Contents", [])]


def rest_of(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return found


@pytest.fixture
def wire(system: System) -> Iterator[Wire]:
    ids = itertools.count(1)
    service, listener = make_service(system, MASTERS, SETTINGS), open_gateway_listener(SETTINGS)
    with GatewayServer(service, SETTINGS, lambda: f"{next(ids):016X}", listener, health_of(system)) as server:
        gateway = Gateway(system, server.url)
        client = gateway.client("ann")
        client.create_bucket(Bucket="photos", ACL="public-read-write")
        client.put_object(Bucket="photos", Key="k", Body=b"public", ACL="public-read")
        yield Wire(gateway, client)


def put(*headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"PUT /photos/new HTTP/1.1", b"Host: x", *headers, b"", body])


REFUSED = {
    "length and transfer encoding": put(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "transfer encoding and length": put(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
    "two lengths": put(b"Content-Length: 5", b"Content-Length: 6", body=b"hello!"),
    "the same length twice": put(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"),
    "a list of lengths": put(b"Content-Length: 5, 5", body=b"hello"),
    "a signed length": put(b"Content-Length: +5", body=b"hello"),
    "a negative length": put(b"Content-Length: -5", body=b"hello"),
    "a length of hexadecimal digits": put(b"Content-Length: 0x5", body=b"hello"),
    "a length of 2^64": put(b"Content-Length: 18446744073709551621", body=b"hello"),
    "an encoding after chunked": put(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "an encoding that is almost chunked": put(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "white space before the colon": put(b"Content-Length : 5", body=b"hello"),
    "white space in a name": put(b"Content Length: 5", body=b"hello"),
    "a continued line": put(b"X-A: 1", b" Content-Length: 5", body=b"hello"),
    "a line feed alone": b"PUT /photos/new HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello",
    "a NUL in a value": put(b"X-A: 1\x002", b"Content-Length: 5", body=b"hello"),
    "a carriage return in a value": put(b"X-A: 1\rContent-Length: 9", b"Content-Length: 5", body=b"hello"),
    "no host": b"GET /photos/k HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /photos/k HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a path beyond ASCII": "GET /photos/ä HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "a space in the path": b"GET /photos/a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "another protocol": b"GET /photos/k SIP/2.0\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a tunnel": b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n",
    "a header of 70 KiB": put(b"X-A: " + b"a" * (70 << 10)),
    "headers of 70 KiB": put(*[b"X-%d: %s" % (number, b"a" * 1000) for number in range(70)]),
    "headers of 70 KiB that do not end": b"GET /photos/k HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * (70 << 10),
    "a target of 70 KiB that does not end": b"GET /photos/" + b"a" * (70 << 10),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_clear_request_is_refused_and_the_connection_closed(wire: Wire, what: str) -> None:
    answer = wire.answer(REFUSED[what] + GOOD)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows is not a request"
    assert b"<Code>BadRequest</Code>" in answer
    assert wire.keys() == ["k"]


CHUNKED = (
    b"x-amz-content-sha256: UNSIGNED-PAYLOAD",
    b"x-amz-decoded-content-length: 5",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
)


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5\r\nhello0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"5;" + b"a" * (400 << 10),
        b"5\r\nhello\r\n0\r\nx-a: " + b"a" * (70 << 10) + b"\r\n\r\n",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_wrong_chunks_end_the_connection_and_store_nothing(wire: Wire, body: bytes) -> None:
    head = put(*CHUNKED)
    for answer in (wire.answer(head, body, GOOD), wire.answer(head + body + GOOD)):
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 411")), answer[:200]
        assert answer.count(b"HTTP/1.1 ") == 1
    assert wire.keys() == ["k"]


def test_trailers_are_no_headers(wire: Wire) -> None:
    """A proxy that removes headers from requests may leave trailers alone."""
    said = b"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    head = put(said, b"x-amz-decoded-content-length: 5", b"Transfer-Encoding: chunked", b"Connection: close")
    inner = b"5\r\nhello\r\n0\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\nx-amz-meta-sneaked: 1\r\n\r\n" % (len(inner), inner)
    assert wire.answer(head + body).startswith(b"HTTP/1.1 200")
    found = wire.client.get_object(Bucket="photos", Key="new")
    assert (found["Body"].read(), found["Metadata"]) == (b"hello", {})


def test_the_target_is_taken_as_it_was_sent(wire: Wire) -> None:
    named = {"Bucket": "photos", "ACL": "public-read"}
    for key, target in (("a//b", "a//b"), ("a#b", "a%23b"), ("a+b c", "a%2Bb%20c"), ("%41", "%2541"), ("?", "%3F")):
        wire.client.put_object(Key=key, Body=key.encode(), **named)
        answer = wire.answer(f"GET /photos/{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert answer.endswith(b"\r\n\r\n" + key.encode())


def test_a_target_with_its_host(wire: Wire) -> None:
    """Servers must accept it (RFC 9112, section 3.2.2), and its host then counts."""
    wire.client.put_object(Bucket="photos", Key="seen", Body=b"seen", ACL="public-read")
    for target, host in (
        ("http://x/photos/seen", "x"),
        ("HTTP://x/photos/seen?versionId=null", "other"),
        ("https://photos.s3.example.com:1/seen", "x"),
    ):
        answer = wire.answer(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert answer.endswith(b"\r\n\r\nseen")
    for target in ("http://x", "http://x?list-type=2"):
        answer = wire.answer(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert b"<Code>AccessDenied</Code>" in answer, answer
    for target in ("http:///photos/seen", "http://a@x/photos/seen", "ftp://x/photos/seen"):
        answer = wire.answer(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400"), answer


def test_white_space_around_a_value_is_no_part_of_it(wire: Wire) -> None:
    head = put(b"Content-Length:  5 \t", b"x-amz-meta-a: \t b  c\t ", b"Connection: close", body=b"hello")
    assert wire.answer(head).startswith(b"HTTP/1.1 200")
    assert wire.client.head_object(Bucket="photos", Key="new")["Metadata"] == {"a": "b  c"}


def test_requests_that_come_together_are_answered_in_turn(wire: Wire) -> None:
    last = GOOD.replace(b"Host", b"Connection: close\r\nHost")
    answer = wire.answer(GOOD * 5 + put(b"Content-Length: 5", body=b"hello") + last)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 7
    assert answer.count(b"\r\n\r\npublic") == 6
    assert wire.keys() == ["k", "new"]


def test_a_client_cannot_queue_requests_without_end(wire: Wire) -> None:
    found = b""
    with wire.open() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(GOOD * 5000)
        while piece := connection.recv(1 << 16):
            found += piece
    assert found.count(b"HTTP/1.1 200") <= http_protocol.PIPELINE_MAX + 1
    assert wire.keys() == ["k"]


def test_garbage_behind_a_request_never_becomes_a_part_of_its_answer(wire: Wire) -> None:
    wire.client.put_object(Bucket="photos", Key="large", Body=bytes(8 << 20), ACL="public-read")
    with wire.open() as connection:
        connection.sendall(b"GET /photos/large HTTP/1.1\r\nHost: x\r\n\r\n")
        begun = connection.recv(1 << 16)
        assert begun.startswith(b"HTTP/1.1 200")
        connection.sendall(b"garbage\r\n\r\n")
        try:
            found = begun + rest_of(connection)
        except ConnectionError:
            found = begun
    assert b"400" not in found.partition(b"\r\n\r\n")[2]


OFFER = b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk"


@pytest.mark.parametrize("step", [1, 7, 100, 10_000])
def test_an_offer_of_another_protocol_is_ignored_and_the_body_read(wire: Wire, step: int) -> None:
    """This holds however the bytes are split."""
    last = b"GET /photos/new HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    inner = b"5\r\nhello\r\n0\r\n\r\n"
    framing = b"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER", b"x-amz-decoded-content-length: 5"
    chunked = [*framing, b"Transfer-Encoding: chunked"], b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
    asked = b"\r\n".join([b"GET /photos/k HTTP/1.1", b"Host: x", *OFFER, b"", b""])
    for said, body in ([b"Content-Length: 5"], b"hello"), chunked:
        sent = asked + put(*OFFER, *said, b"x-amz-meta-a: b", b"x-amz-acl: public-read", body=body) + last
        answer = wire.answer(*[sent[at : at + step] for at in range(0, len(sent), step)])
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b"HTTP/1.1 ") == 3, answer
        assert b"\r\n\r\npublicHTTP/1.1" in answer
        assert answer.endswith(b"\r\n\r\nhello")
        assert b"x-amz-meta-a: b\r\n" in answer
        wire.client.delete_object(Bucket="photos", Key="new")


@pytest.mark.parametrize("what", [name for name, sent in REFUSED.items() if sent.startswith(b"PUT")])
def test_an_offer_of_another_protocol_lets_nothing_pass(wire: Wire, what: str) -> None:
    head, _, rest = REFUSED[what].partition(b"\r\n")
    answer = wire.answer(head + b"\r\n" + b"\r\n".join(OFFER) + b"\r\n" + rest + GOOD)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert wire.keys() == ["k"]


def test_an_offer_from_a_client_that_waits_before_it_sends_its_body(wire: Wire) -> None:
    with wire.open() as connection:
        connection.sendall(put(*OFFER, b"Expect: 100-continue", b"Content-Length: 5", b"Connection: close"))
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        assert rest_of(connection).startswith(b"HTTP/1.1 200 OK\r\n")
    assert wire.keys() == ["k", "new"]


def test_offers_of_curl(wire: Wire, tmp_path: Path) -> None:
    curl = need_program("curl")
    for size in 0, 5, 100_000, 1 << 20:  # the last ones wait for 100 Continue
        (sent := tmp_path / "sent").write_bytes(random.Random(size).randbytes(size))
        url, found = f"{wire.gateway.url}/photos/of-curl-{size}", tmp_path / "found"
        options = [curl, "--http2", "--silent", "--show-error", "--fail", "--max-time", str(WAIT_S_MAX)]
        subprocess.run([*options, "--upload-file", sent, "--header", "x-amz-acl: public-read", url], check=True)
        subprocess.run([*options, "--output", found, url], check=True)
        assert found.read_bytes() == sent.read_bytes()


def test_offers_of_java(wire: Wire) -> None:
    need_program("javac")  # without a compiler, `java` runs no source file
    program = str(Path(__file__).parents[2] / "rig/s3_programs/PutAndGet.java")
    command = [need_program("java"), program, f"{wire.gateway.url}/photos"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
    assert ran.returncode == 0, ran.stderr
    assert wire.keys()[-1] == "of-java-5"


def test_head_and_body_are_sent_together(wire: Wire) -> None:
    with wire.open() as connection:
        for _ in range(3):
            connection.sendall(GOOD)
            assert connection.recv(1 << 16).endswith(b"\r\n\r\npublic")
            connection.sendall(GOOD.replace(b"GET", b"HEAD"))
            assert connection.recv(1 << 16).endswith(b"\r\n\r\n")


def test_a_client_of_http_1_0_is_served(wire: Wire) -> None:
    answer = wire.answer(b"GET /photos/k HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"public")


@pytest.mark.parametrize(
    "sent", [b"", b"GET /photos/k HTTP/1.1\r\nHost: x\r\nX-", GOOD], ids=["nothing", "half", "one"]
)
def test_idle_connections_are_closed(wire: Wire, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_protocol, "IDLE_WAIT_S", 3.0 if sent == GOOD else 0.4)  # a request has to arrive in time
    with wire.open() as connection:
        connection.sendall(sent)
        answer = rest_of(connection)
    assert answer.endswith(b"public" if sent == GOOD else b"")


def test_a_head_that_trickles_in_is_given_up(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "IDLE_WAIT_S", 0.4)
    with wire.open() as connection:
        connection.sendall(b"GET /photos/k HTTP/1.1\r\n")
        ended = False
        deadline = time.monotonic() + WAIT_S_MAX
        while not ended and time.monotonic() < deadline:
            time.sleep(0.02)
            try:
                connection.sendall(b"X-A: 1\r\n")
            except ConnectionError:
                ended = True
    assert ended
