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


# --- which strikes count --------------------------------------------------------------------------
def phase(failed: int = 0, refused: int = 0) -> cell_away.Phase:
    """A part in which this many requests failed in the healthy cell, and were refused in the other one."""
    well = cell_away.Times([0.01] * 9, [0.02] * 9, [1.0] * failed, [])
    return cell_away.Phase(well, cell_away.Times([], [], [2.0] * refused, []), 0.1)


@pytest.mark.parametrize(
    ("parts", "problems", "uncounted"),
    [
        ([phase(), phase(refused=3)], [], []),
        ([phase(), phase()], ["kill: nothing was refused"], []),
        ([phase(failed=1), phase(), phase(refused=3)], [], []),
        ([phase(refused=1), phase(), phase(refused=3)], [], []),
        ([phase(), phase(1, refused=3), phase()], ["kill: 1 refused in the healthy cell"], []),
        ([phase(), phase(1, refused=3), phase(failed=2), phase(), phase(refused=3)], [], []),
        ([phase(failed=1)] * cell_away.TRIES, [], ["kill"]),
    ],
)
def test_a_strike_counts_if_nothing_fails_without_it(
    monkeypatch: pytest.MonkeyPatch, parts: list[cell_away.Phase], problems: list[str], uncounted: list[str]
) -> None:
    run, left = object.__new__(cell_away.Run), iter(parts)
    run.ratios, run.problems, run.uncounted = {}, [], []
    monkeypatch.setattr(cell_away.Run, "_phase", lambda _run, _name: next(left))
    monkeypatch.setattr(cell_away.Run, "_struck", lambda _run, _name: next(left))
    run.strike("kill")
    assert (run.problems, run.uncounted, list(left)) == (problems, uncounted, [])
