"""The clients of the measurement with a cell that is away (tests/soak/cell_away.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nos_ec.bench.s3.s3_client import Credentials
from nos_ec.bench.s3.s3_servers import Server
from tests.soak import cell_away


class Answering(BaseHTTPRequestHandler):
    """Serves GETs. Refuses PUTs: in the bucket `away` as the gateway does, and otherwise wrongly."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200)

    def do_PUT(self) -> None:
        assert len(self.rfile.read(int(self.headers["content-length"]))) == cell_away.SIZE
        self._answer(503 if self.path == "/away/k" else 404)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield Server([f"http://127.0.0.1:{http.server_port}"], Credentials("key", "secret"), [])
        http.shutdown()
        thread.join()


def test_each_request_is_sent_once_and_counted_by_its_answer(server: Server) -> None:
    found = cell_away.send(server, "away", 2000, 0.02, threads_max=4)
    assert (len(found.get_s), len(found.put_s), len(found.refused_s), len(found.wrong)) == (20, 0, 20, 0)
    assert found.served_s == found.get_s
    assert min([*found.get_s, *found.refused_s]) > 0


def test_another_answer_is_a_problem(server: Server) -> None:
    found = cell_away.send(server, "well", 2000, 0.002, threads_max=1)
    assert len(found.get_s) == 2
    assert found.wrong == ["404: b'ok'"] * 2


def test_too_few_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cell_away.main(["--rate", "10", "--seconds", "10"])
    assert "200 requests" in capsys.readouterr().err
