"""How the gateway treats its clients: limits, clients that go away, refused bodies, the access log, the counters."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import logging
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.server import http_protocol
from nos_ec.gateway.server.app import SMALL_BODY_BYTES
from nos_ec.gateway.server.http_server import GatewayServer, make_service, open_gateway_listener
from nos_ec.gateway.server.record import CLIENT_CLOSED, UNKNOWN
from nos_ec.gateway.server.request_counters import RequestCounters
from tests.rig.waiting import until
from tests.service.conftest import CHUNK, WAIT_S_MAX, Bench
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, Gateway, health_of, refused

QUICK = SETTINGS.model_copy(update={"requests_max": 3, "access_log": True})


class Serving(Gateway):
    """A gateway that serves 3 requests at a time and logs each. `ann` owns the bucket `photos`."""

    def __init__(self, system: System, server: GatewayServer) -> None:
        super().__init__(system, server.url)
        self.counters: RequestCounters = server.counters
        self.ann = self.client("ann")
        self.ann.create_bucket(Bucket="photos")

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S_MAX)


@pytest.fixture
def serving(system: System) -> Iterator[Serving]:
    ids = itertools.count(1)
    service, listener = make_service(system, MASTERS, QUICK), open_gateway_listener(QUICK)
    with GatewayServer(service, QUICK, lambda: f"{next(ids):016X}", listener, health_of(system)) as server:
        yield Serving(system, server)


def lines_of(capture: Any) -> list[dict[str, Any]]:
    return [entry for entry in capture if entry["event"] == "access"]


# --- limits ---------------------------------------------------------------------------------------
def test_slow_uploads_hold_up_no_others(gateway: Gateway) -> None:
    """This holds however many there are: each lets others run while it waits for its client."""
    ann, parts = gateway.client("ann"), urlsplit(gateway.url)
    ann.create_bucket(Bucket="photos", ACL="public-read-write")
    size, begun = SMALL_BODY_BYTES + 1000, 100_000
    slow: dict[str, http.client.HTTPConnection] = {}
    for number in range(3 * SETTINGS.threads):
        name = f"slow{number}"
        slow[name] = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S_MAX)
        slow[name].putrequest("PUT", f"/photos/{name}")
        slow[name].putheader("Content-Length", str(size))
        slow[name].putheader("x-amz-acl", "public-read")
        slow[name].endheaders(body_of(name, size)[:begun])
    for number in range(3):
        ann.put_object(Bucket="photos", Key=f"quick{number}", Body=bytes(2 * size))
    assert [row["Key"] for row in ann.list_objects_v2(Bucket="photos")["Contents"]] == ["quick0", "quick1", "quick2"]
    for name, connection in slow.items():
        connection.send(body_of(name, size)[begun:])
    for name, connection in slow.items():
        assert connection.getresponse().status == 200
        connection.close()
        assert ann.get_object(Bucket="photos", Key=name)["Body"].read() == body_of(name, size)


def body_of(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def test_more_requests_than_allowed_are_told_to_slow_down(serving: Serving) -> None:
    stalled = []
    for number in range(3):
        connection = serving.connect()
        connection.putrequest("PUT", f"/photos/slow{number}")
        connection.putheader("Content-Length", "10")
        connection.endheaders(b"abc")
        stalled.append(connection)
    until(lambda: serving.counters.under_way == 3, "three requests are under way")
    status, body, headers = serving.raw("GET", "/photos/k")
    assert (status, headers["retry-after"], headers["content-type"]) == (503, "1", "application/xml")
    assert b"<Code>SlowDown</Code>" in body
    refused("SlowDown", 503, serving.ann.put_object, Bucket="photos", Key="k", Body=b"x" * 1000)
    for connection in stalled:
        connection.close()
    until(lambda: serving.counters.under_way == 0, "they have ended")
    serving.ann.put_object(Bucket="photos", Key="k", Body=b"x")
    assert serving.counters.errors[UNKNOWN, "SlowDown", "503"] == 2


def test_more_connections_than_allowed_are_answered_and_then_closed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving.ann.put_object(Bucket="photos", Key="k", Body=b"x", ACL="public-read")
    monkeypatch.setattr(http_protocol, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(http_protocol, "CROWD_MAX", 1)
    serving.ann.close()
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(4):
            connection = serving.connect()
            stack.callback(connection.close)
            connection.connect()
            found.append(connection)
            time.sleep(0.05)
        outcomes = []
        for connection in found:
            try:
                connection.request("GET", "/photos/k")
                answer = connection.getresponse()
                outcomes.append((answer.status, answer.getheader("connection")))
                answer.read()
            except (ConnectionError, http.client.HTTPException):
                outcomes.append((0, None))
    assert outcomes.count((0, None)) >= 1, "the last one is closed at once"
    assert (503, "close") in outcomes
    assert all(outcome in [(200, None), (503, "close"), (0, None)] for outcome in outcomes)
    until(lambda: serving.raw("GET", "/photos/k")[0] == 200, "the crowd is gone")


# --- clients that do not wait ---------------------------------------------------------------------
@pytest.mark.parametrize("size", [3 << 20, 50 << 20])
def test_a_client_that_sends_a_large_body_reads_why_it_is_refused(serving: Serving, size: int) -> None:
    for _ in range(3):
        status, body, headers = serving.raw("PUT", "/photos/k", bytes(size))
        assert (status, b"<Code>AccessDenied</Code>" in body, headers["connection"]) == (403, True, "close")
    connection = serving.connect()
    connection.putrequest("PUT", "/photos/k")
    connection.putheader("Content-Length", str(size))
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()
    until(lambda: serving.counters.under_way == 0, "nothing is left")


@contextlib.contextmanager
def large_answer(serving: Serving, monkeypatch: pytest.MonkeyPatch, pieces: Any) -> Iterator[http.client.HTTPResponse]:
    """Return the begun answer of a GET whose bytes come from `pieces`. The connection is closed after the block."""
    serving.ann.put_object(Bucket="photos", Key="k", Body=b"x", ACL="public-read")
    row = serving.system.client.store().head(ObjectKey("photos", "k"))
    monkeypatch.setattr(
        Store, "head", lambda *_: replace(row, size=100 << 20, state=ObjectState.LARGE, landing_id=None)
    )
    monkeypatch.setattr(Store, "open_version", pieces)
    connection = serving.connect()
    with contextlib.closing(connection):
        connection.request("GET", "/photos/k")
        with connection.getresponse() as answer:
            yield answer


def test_a_client_that_cuts_a_get_is_no_error_of_ours(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        with large_answer(serving, monkeypatch, lambda *_: itertools.repeat(bytes(1 << 20), 100)) as answer:
            answer.read(1 << 20)
        monkeypatch.undo()
    until(lambda: serving.counters.errors["GetObject", CLIENT_CLOSED, "200"] == 5, "the cut GETs are counted")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_answer_that_fails_on_the_way_does_not_look_whole(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pieces(*_: Any) -> Iterator[bytes]:
        yield bytes(1 << 20)
        raise Corrupt("a shard is lost")

    with structlog.testing.capture_logs() as logged:
        with (
            large_answer(serving, monkeypatch, pieces) as answer,
            pytest.raises((http.client.IncompleteRead, ConnectionError)),
        ):
            answer.read()
        until(lambda: serving.counters.under_way == 0, "the request has ended")
    assert serving.counters.errors["GetObject", "InternalError", "500"] == 1
    assert [line["error"] for line in logged if line["event"] == "request failed"] == ["a shard is lost"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [(line["status"], line["code"]) for line in lines_of(logged)][-1] == (500, "InternalError")


# --- the access log and the counters --------------------------------------------------------------
def test_each_request_is_logged_and_counted(bench: Bench, serving: Serving) -> None:
    data = bench.data(CHUNK)
    with structlog.testing.capture_logs() as logged:
        serving.ann.put_object(Bucket="photos", Key="a/ä\n\x1b[2J", Body=data)
        serving.ann.get_object(Bucket="photos", Key="a/ä\n\x1b[2J")["Body"].read()
        refused("NoSuchKey", 404, serving.ann.get_object, Bucket="photos", Key="none")
        assert serving.raw("GET", "/photos/k", User_Agent="x" * 500)[0] == 403
        assert serving.raw("PATCH", "/photos/k")[0] == 405
        until(lambda: len(lines_of(logged)) == 5, "all are logged")
    put, get, missing, anonymous, wrong = lines_of(logged)
    for line in (put, get):
        assert (line["bucket"], line["key"], line["account"]) == ("photos", "a/ä\\n\\x1b[2J", "ann")
        assert (line["status"], line["code"], line["remote"]) == (200, "", "127.0.0.1")
        assert 0 < line["first_byte_ms"] <= line["ms"]
        assert "Botocore" in line["agent"]
    assert (put["method"], put["operation"], put["sent"]) == ("PUT", "PutObject", 0)
    assert put["received"] >= CHUNK
    assert (get["method"], get["operation"], get["received"], get["sent"]) == ("GET", "GetObject", 0, CHUNK)
    assert (missing["status"], missing["code"]) == (404, "NoSuchKey")
    assert (anonymous["account"], anonymous["code"], len(anonymous["agent"])) == (None, "AccessDenied", 200)
    assert (wrong["operation"], wrong["status"]) == (UNKNOWN, 405)
    assert len({line["request_id"] for line in lines_of(logged)}) == 5
    json.dumps(lines_of(logged))
    gets, puts = serving.counters.operations["GetObject"], serving.counters.operations["PutObject"]
    assert (gets.whole_s.cumulative()[-1], gets.first_byte_s.cumulative()[-1]) == (3, 3)
    assert (puts.received, gets.received) == (put["received"], 0)
    assert gets.sent == CHUNK + missing["sent"] + anonymous["sent"]
    assert serving.counters.errors == {
        ("GetObject", "NoSuchKey", "404"): 1,
        ("GetObject", "AccessDenied", "403"): 1,
        (UNKNOWN, "MethodNotAllowed", "405"): 1,
    }


def test_the_access_log_has_nothing_that_lets_others_in(serving: Serving) -> None:
    made = serving.accounts.create_key(MASTERS, "ann")
    client = serving.client_of(made.key.access_key, made.secret)
    url = client.generate_presigned_url("put_object", {"Bucket": "photos", "Key": "k"}, 60)
    signature = url.rpartition("Signature=")[2]
    assert len(signature) == 64
    with structlog.testing.capture_logs() as logged:
        assert serving.raw("PUT", url.removeprefix(serving.url), b"x")[0] == 200
        assert serving.raw("PUT", url.removeprefix(serving.url).replace("photos/k", "photos/l"), b"x")[0] == 403
        client.get_object(Bucket="photos", Key="k")["Body"].read()
        until(lambda: len(lines_of(logged)) == 3, "all are logged")
    text = json.dumps(logged).lower()
    for word in (signature, made.secret.lower(), "signature=", "authorization", "x-amz-"):
        assert word not in text


def test_requests_are_counted_one_by_one_under_load(serving: Serving) -> None:
    serving.ann.put_object(Bucket="photos", Key="k", Body=b"x", ACL="public-read")
    outcomes: list[int] = []

    def get() -> None:
        outcomes.extend(serving.raw("GET", "/photos/k")[0] for _ in range(20))

    threads = [threading.Thread(target=get) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert len(outcomes) == 120
    assert set(outcomes) <= {200, 503}
    until(lambda: serving.counters.under_way == 0, "all have ended")
    served = serving.counters.operations["GetObject"].whole_s.cumulative()[-1]
    assert (served, serving.counters.errors[UNKNOWN, "SlowDown", "503"]) == (outcomes.count(200), outcomes.count(503))
