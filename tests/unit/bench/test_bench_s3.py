"""The lean client, the figures and the bars of `bench s3`."""

from __future__ import annotations

import calendar
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from nos_ec.bench.bars import missed, s3_bars
from nos_ec.bench.figures import Run
from nos_ec.bench.s3.s3_bench import Turn, s3_figures
from nos_ec.bench.s3.s3_client import Credentials, S3Client, read_answer, signed_headers
from nos_ec.bench.s3.s3_servers import _in_one_pool
from nos_ec.core.errors import Transient
from tests.rig.waiting import WAIT_S_MAX

KEY = Credentials("AKIA", "secret")


@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("GET", "/bench/000000001.bin", "", b""),
        ("PUT", "/bench/a%20b%2Bc/%C3%BC", "", b"some bytes"),
        ("GET", "/bench", "list-type=2&max-keys=1000&start-after=a%2Fb", b""),
    ],
)
def test_it_signs_as_botocore_does(method: str, path: str, query: str, body: bytes) -> None:
    lines = signed_headers(KEY, time.time(), "127.0.0.1:9488", method, path, query, body).split("\r\n")
    sent = dict(line.split(": ", 1) for line in lines if line)
    url = f"http://127.0.0.1:9488{path}{'?' + query if query else ''}"
    request = AWSRequest(method, url, data=body, headers={"X-Amz-Content-SHA256": sent["x-amz-content-sha256"]})
    request.context["timestamp"] = sent["x-amz-date"]
    auth = S3SigV4Auth(BotoCredentials(KEY.access_key, KEY.secret), "s3", "us-east-1")
    request.headers["X-Amz-Date"] = sent["x-amz-date"]
    request.context["payload_signing_enabled"] = True
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert sent["authorization"].endswith(f"Signature={signature}")
    assert sent["content-length"] == str(len(body))
    assert abs(calendar.timegm(time.strptime(sent["x-amz-date"], "%Y%m%dT%H%M%SZ")) - time.time()) < 60


class Peer:
    """A server that answers each connection with prepared bytes, and then closes it."""

    def __init__(self, *answers: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, args=(answers,), daemon=True)
        self._thread.start()

    def _serve(self, answers: tuple[bytes, ...]) -> None:
        for answer in answers:
            connection, _ = self._socket.accept()
            with connection:
                self.asked.append(connection.recv(1 << 16))
                connection.sendall(answer)

    def close(self) -> None:
        self._thread.join(WAIT_S_MAX)
        self._socket.close()


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.close()


def test_answers_of_known_length_and_in_chunks() -> None:
    class Piecemeal:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def recv(self, size: int) -> bytes:
            piece, self.data = self.data[: min(size, 3)], self.data[min(size, 3) :]
            return piece

    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n3\r\n...\r\n0\r\nT: x\r\n\r\n"
    connections = [Piecemeal(chunked), Piecemeal(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")]
    first, second = (read_answer(cast(socket.socket, one)) for one in connections)
    assert (first.status, first.body) == (200, b"hello...")
    assert (second.status, second.body, second.headers) == (404, b"no", {"content-length": "2"})
    for broken, reason in ((b"", "closed"), (b"HTTP/1.1 200 OK\r\nContent-Le", "closed"), (b"SSH-2.0", "not HTTP")):
        with pytest.raises(ConnectionError, match=reason):
            read_answer(cast(socket.socket, Piecemeal(broken)))


def test_an_idle_connection_that_was_closed_is_replaced(peers: list[Peer]) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
    peers.append(peer := Peer(answer, answer))
    client = S3Client([peer.url], KEY)
    assert [client.get("b", "k") for _ in range(2)] == [b"x", b"x"]
    assert all(asked.startswith(b"GET /b/k HTTP/1.1\r\n") for asked in peer.asked)
    client.close()


def test_a_refusal_and_a_server_that_is_away_are_told(peers: list[Peer]) -> None:
    peers.append(peer := Peer(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\nConnection: close\r\n\r\nslow"))
    client = S3Client([peer.url], KEY)
    with pytest.raises(Transient, match="503: b'slow'"):
        client.put("b", "k", b"x")
    peer.close()
    with pytest.raises(Transient, match="no answer to GET /b/k"):
        client.get("b", "k")


def test_the_pools_of_a_zone_are_namespaces_of_one() -> None:
    zone = {"domain_root": "nosecbench.rgw.meta:root", "other": 1, "list": [{"index_pool": "nosecbench.rgw.index"}]}
    assert _in_one_pool(zone, "p") == {"domain_root": "p:meta.root", "other": 1, "list": [{"index_pool": "p:index"}]}


def turn(puts_per_s: float, gets_per_s: float, cpu_s: float, *, packs: bool) -> Turn:
    def run(per_s: float) -> Run:
        return Run(100, 100, 100 / per_s, {"client": cpu_s, "server": cpu_s}, 0, 0, 0)

    steps = {"put": puts_per_s, "get": gets_per_s, "list": 10.0} | ({"publish": 50.0, "pack": 50.0} if packs else {})
    return Turn({step: run(per_s) for step, per_s in steps.items()}, {step: [0.01] for step in ("put", "get", "list")})


def test_figures_compare_round_by_round() -> None:
    found: dict[str, Any] = s3_figures(
        {
            "gateway": [turn(400, 1000, 0.1, packs=True), turn(200, 500, 0.1, packs=True)],
            "radosgw": [turn(200, 2000, 0.4, packs=False), turn(100, 1000, 0.4, packs=False)],
        }
    )
    over = found["gateway_over_radosgw"]
    assert over["per_s"]["put"] == pytest.approx(2)
    assert over["per_s"]["get"] == pytest.approx(0.5)
    assert over["cpu"]["put"] == pytest.approx(0.25)
    assert over["put_and_pack_cpu"] == pytest.approx(0.75)
    assert found["gateway"]["put_and_pack_cpu_ms_per_object"] == pytest.approx(6)
    assert found["radosgw"]["put_and_pack_cpu_ms_per_object"] == pytest.approx(8)
    assert found["gateway"]["per_s"]["get"] == pytest.approx(750)


def test_bars_depend_on_what_was_measured() -> None:
    figures = {
        "gateway": {"ms": {"list": {"p50": 10.0}}, "osd_reads_per_get": 1},
        "gateway_over_radosgw": {"per_s": {"get": 0.7, "put": 1.6}, "cpu": {"put": 0.8}},
        "gateway_over_radosgw_as_shipped": {"per_s": {"get": 1.4}},
    }
    assert missed(s3_bars(1, on_ceph=False, with_radosgw=False), figures) == []
    told = missed(s3_bars(1, on_ceph=True, with_radosgw=True), figures)
    assert [sentence.partition(" is ")[0] for sentence in told] == [
        "gateway_over_radosgw_as_shipped.per_s.get",
        "gateway_over_radosgw.cpu.put",
    ]
    assert len(missed(s3_bars(3, on_ceph=True, with_radosgw=True), figures)) == 3
