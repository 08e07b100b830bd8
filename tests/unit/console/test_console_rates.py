"""What Prometheus says is shown as it is, and a Prometheus that hangs or lies changes nothing else."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nos_ec.console.alerts import RULES, Seen, Verdict, alerts
from nos_ec.console.panels import Panels
from nos_ec.console.rates.prometheus import BYTES_MAX, Prometheus
from nos_ec.console.rates.rates import (
    DAY_POINT_MS,
    MONTH_POINT_MS,
    Told,
    expression,
    read_rate_history,
    read_rates,
    read_rules,
)
from nos_ec.console.svg import lines
from nos_ec.core.errors import Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.monitoring.declarations.metrics import METRICS
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.prometheus import HEAD, Reply, alert, answer, fake_prometheus, hang, rules_of, vector
from tests.rig.waiting import WAIT_S_MAX

NOW_MS = 1_700_000_000_000


@contextmanager
def serving(*answers: bytes | Reply, answer_s_max: float = WAIT_S_MAX) -> Iterator[tuple[Prometheus, list[bytes]]]:
    """Yield what asks a server with these answers, and what that was asked."""
    with fake_prometheus(*answers, answer_s_max=answer_s_max) as (url, asked):
        yield Prometheus(url), asked


def drip(_: bytes, connection: socket.socket) -> bytes:
    """Send a header that never ends, faster than any time-out between two reads."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.01)


def informational(_: bytes, connection: socket.socket) -> bytes:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


@pytest.mark.parametrize("hostile", [drip, informational, hang])
def test_an_answer_that_does_not_end_is_given_up(hostile: Reply) -> None:
    with (
        serving(hostile, answer_s_max=0.2) as (prometheus, _),
        pytest.raises(Transient, match=r"did not answer within 0\.2 s"),
    ):
        prometheus.query("up")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "status 302"),
        (b"HTTP/1.1 503 Away\r\n\r\n", "status 503"),
        (HEAD + b"x" * (BYTES_MAX + 1), "more than 4 MiB"),
        (HEAD + b"[" * 100_000, "as Prometheus does"),
        (HEAD + b"<html>", "as Prometheus does"),
        (HEAD + b'{"status": "error"}', "as Prometheus does"),
        (HEAD + b"[]", "as Prometheus does"),
        (b"\x00" * 100, "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_an_answer_that_is_not_one_of_prometheus_says_so(sent: bytes, said: str) -> None:
    with serving(sent) as (prometheus, asked), pytest.raises(Transient, match=said):
        prometheus.query("up")
    assert len(asked) == 1, "no other address was asked"


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"result": 1},
        {"result": [1]},
        {"result": [{"metric": {}, "value": [1, "1"]}]},
        {"result": [{"metric": [], "value": [1, "1"]}]},
        {"result": [{"metric": {"figure": "known"}, "value": "x"}]},
        {"result": [{"metric": {"figure": "known"}, "value": [1, "1.x"]}]},
        {"groups": [{"rules": [{"name": 1}]}]},
        {"groups": [{"rules": [{"name": "a", "health": "ok", "alerts": [{"labels": {}, "state": "odd"}]}]}]},
    ],
)
def test_data_of_another_form_are_refused(data: object) -> None:
    with serving(answer(data)) as (prometheus, _):
        for read in (
            lambda: read_rates(prometheus, "id"),
            lambda: read_rate_history(prometheus, "id", NOW_MS),
            lambda: read_rules(prometheus, "id"),
        ):
            with pytest.raises(Transient):
                read()


def test_figures_are_shown_as_prometheus_computes_them() -> None:
    figures = {
        "s3-get:count": "12.5", "s3-get:size_bytes": "1e6", "s3-get:p50_s": "0.01", "s3-get:p99_s": "NaN",
        "gc:count": "0", "gc:errors": "0.5", "put:size_bytes": "7", "pack:count": "Inf", "answered": "7", "known": "8",
        "odd": "1",
    }  # fmt: skip
    with serving(vector(*(({"figure": name}, value) for name, value in figures.items()))) as (prometheus, asked):
        found = read_rates(prometheus, "the-id")
    assert asked[0].startswith(b"POST /under/api/v1/query HTTP/1.1\r\n")
    assert (found.answered, found.known) == (7, 8)
    assert list(found.kinds) == ["s3-get", "gc"], "a kind that nothing counts is left out"
    get = found.kinds["s3-get"]
    assert (get.count, get.size_bytes, get.p50_s, get.p99_s, get.errors) == (12.5, 1e6, 0.01, None, 0.0)
    assert found.kinds["gc"].errors == 0.5


def test_a_store_that_prometheus_does_not_know_says_so() -> None:
    with serving(vector()) as (prometheus, _):
        for read in (read_rates, read_rules):
            with pytest.raises(Transient, match="no figures from any process of this store"):
                read(prometheus, "id")


def test_the_history_has_the_hours_of_a_day_and_samples_of_a_month() -> None:
    hour_s = NOW_MS // DAY_POINT_MS * DAY_POINT_MS // 1000

    def series(name: str, values: list[list[Any]]) -> dict[str, Any]:
        return {"metric": {"figure": name}, "values": values}

    day = [series("s3-put:count", [[hour_s - 3600, "1"], [hour_s, "2"], [hour_s + 1, "5"], [1e12, "5"]])]
    day += [series("s3-put:size_bytes", [[hour_s - 3600, str(1 << 20)], [hour_s, str(3 << 20)]])]
    day += [series("s3-put:p99_s", [[hour_s - 3600, "0.25"], [hour_s, "NaN"], [hour_s - 2 * DAY_MS // 1000, "1"]])]
    far_s = (NOW_MS - 20 * DAY_MS) // MONTH_POINT_MS * MONTH_POINT_MS // 1000
    month = [series("gc:count", [[far_s, "1"], [far_s - 32 * DAY_MS, "1"]])]
    with serving(answer({"result": day}), answer({"result": month})) as (prometheus, asked):
        found = read_rate_history(prometheus, "id", NOW_MS)
    assert [at_ms // 1000 for at_ms, _ in found.points] == [hour_s, hour_s - 3600, far_s], (
        "what lies outside is dropped"
    )
    assert [kinds["s3-put"].p99_s for _, kinds in found.points[:2]] == [None, 0.25]
    assert (len(found.day.sizes.shapes), len(found.month.sizes.shapes)) == (1, 0)
    assert b"step=3600" in asked[0]
    assert b"step=43200" in asked[1]


def test_lines_have_gaps_where_nothing_is_known() -> None:
    series: list[tuple[int, dict[str, float | None]]] = [
        (at, {"a": None if at == 3 else float(at), "b": None}) for at in range(8)
    ]
    assert [shape.points.count(",") for shape in lines(series, 1).shapes] == [3, 4]
    assert lines(series[:1], 1).shapes == lines([(0, {"a": None}), (1, {"a": None})], 1).shapes == ()


def test_every_metric_of_an_expression_is_declared() -> None:
    declared = {
        name + suffix for m in METRICS for name in (m.exposed_name,) for suffix in ("", "_bucket", "_count", "_sum")
    }
    named = set(re.findall(r"nos_ec_\w+", expression("id", "5m")))
    assert len(named) > 12
    assert named <= declared


def test_rules_are_told_for_this_store_alone() -> None:
    told = rules_of(
        ("NosEcDaemonDown", "ok", [alert("firing", store="a"), alert("pending", store="a")]),
        ("NosEcGatewayFails", "ok", [alert("firing", store="b")]),
        ("NosEcWritersDie", "ok", [alert("pending", store="a")]),
        ("NosEcMonitoringBlind", "ok", [alert("firing")]),
        ("NosEcReadsTimeOut", "err", []),
        ("NosEcStoresMixed", "unknown", []),
    )
    with serving(vector(({"store": "a"}, "3")), told) as (prometheus, asked):
        found = read_rules(prometheus, "id")
    assert found == {
        "NosEcDaemonDown": Told.FIRING,
        "NosEcGatewayFails": Told.INACTIVE,
        "NosEcWritersDie": Told.PENDING,
        "NosEcMonitoringBlind": Told.FIRING,
    }
    assert asked[1].startswith(b"GET /under/api/v1/rules?type=alert HTTP/1.1\r\n")


def test_processes_of_one_store_with_several_labels_are_an_error() -> None:
    with (
        serving(vector(({"store": "a"}, "3"), ({}, "1"))) as (prometheus, _),
        pytest.raises(Transient, match="several labels"),
    ):
        read_rules(prometheus, "id")


def test_prometheus_judges_what_the_store_does_not_show() -> None:
    told = {"NosEcDaemonDown": Told.FIRING, "NosEcWritersDie": Told.PENDING, "NosEcGatewayFails": Told.INACTIVE}
    found = {one.rule.name: (one.verdict, one.told) for one in alerts(Seen([], [], NOW_MS), told)}
    assert found.pop("NosEcDaemonDown") == (Verdict.FIRING, Told.FIRING)
    assert found.pop("NosEcWritersDie") == (Verdict.FIRING, Told.PENDING)
    assert found.pop("NosEcGatewayFails") == (Verdict.FINE, Told.INACTIVE)
    assert set(found.values()) == {(Verdict.UNKNOWN, None)}
    assert len(found) == len(RULES) - 3


def test_a_page_waits_once_for_a_server_beside_the_store(clock: FakeClock) -> None:
    hung, calls = threading.Event(), [0]

    def fail() -> None:
        calls[0] += 1
        if calls[0] > 1:
            hung.wait()
        raise Transient("away")

    panels = Panels(clock, wait_s_max=120)
    source = panels.source(fail, 1000)
    panels.wait_for(beside=[source])
    assert panels.shown(source).error == "away"
    clock.advance(60_000)
    panels.wait_for(beside=[source])  # would take two minutes
    assert panels.shown(source).error == "away"
    hung.set()
    panels.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
