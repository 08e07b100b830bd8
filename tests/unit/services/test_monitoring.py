"""Health, metrics and systemd's notifications, each tested alone."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Empty
from threading import Event
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.histogram import Histogram
from nos_ec.core.ids import LandingId, timed_id
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.packing.lanes import WRITE_SECONDS_BOUNDS, Lanes
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriteResult
from nos_ec.monitoring.declarations import metrics
from nos_ec.monitoring.declarations.metric import Kind
from nos_ec.monitoring.declarations.metrics import METRICS
from nos_ec.monitoring.endpoint import Endpoint
from nos_ec.monitoring.exposition import Exposition, Sample
from nos_ec.monitoring.health import Answer, Health
from nos_ec.monitoring.monitor import COST_SHARE, Cached, Monitor
from nos_ec.monitoring.sources import waiting_samples
from nos_ec.monitoring.systemd import Notifier, Pulse
from nos_ec.ports.metadata import Metadata
from tests.rig.fakes.clock import FakeClock
from tests.rig.notify_socket import NotifySocket
from tests.rig.waiting import WAIT_S_MAX

DOCS = Path(__file__).parents[3] / "docs"


# --- histogram -----------------------------------------------------------------------------------------------------
def test_histogram_counts_by_inclusive_bounds() -> None:
    histogram = Histogram([1, 2, 5])
    for value in (0.5, 1, 1.5, 5, 9):
        histogram.add(value)
    histogram.add(2, count=3)
    assert histogram.counts == [2, 4, 1, 1]
    assert histogram.cumulative() == [2, 6, 7, 8]
    assert histogram.sum == 23


@pytest.mark.parametrize("bounds", [[], [1, 1], [2, 1]])
def test_histogram_bounds_must_rise(bounds: list[float]) -> None:
    with pytest.raises(ValueError, match="rising"):
        Histogram(bounds)


# --- metrics -------------------------------------------------------------------------------------------------------
def test_the_reference_of_metrics_is_up_to_date() -> None:
    assert (DOCS / "METRICS.md").read_text() == metrics.reference(), "run `make reference`"


def test_every_metric_is_named_once_and_says_what_to_do() -> None:
    names = [metric.exposed_name for metric in METRICS]
    assert len(names) == len(set(names)) > 50
    for metric in METRICS:
        assert metric.meaning.endswith("."), metric.name
        assert metric.advice.endswith("."), metric.name
        assert not metric.name.endswith("_total"), "the text format adds it"
        assert metric.services


def test_samples_become_text() -> None:
    exposition = Exposition(CollectorRegistry())
    seconds = Histogram([0.1, 1])
    seconds.add(0.05)
    seconds.add(3)
    samples = [
        Sample(metrics.PACKED_OBJECTS, 7),
        Sample(metrics.MERGE_LIST_OBJECTS, 3),
        Sample(metrics.STORE_BLOCKS, 2, ("fresh", "sealed")),
        Sample(metrics.GROUP_WRITE_SECONDS, seconds, ("4",)),
    ]
    exposition.add("test", lambda: samples)
    found = read(exposition.text())
    assert found["nos_ec_consumer_packed_objects_total"] == 7
    assert found["nos_ec_consumer_merge_list_objects"] == 3
    assert found['nos_ec_store_blocks{"kind":"fresh","state":"sealed"}'] == 2
    assert found['nos_ec_consumer_group_write_seconds_bucket{"le":"0.1","stripes":"4"}'] == 1
    assert found['nos_ec_consumer_group_write_seconds_bucket{"le":"+Inf","stripes":"4"}'] == 2
    assert found['nos_ec_consumer_group_write_seconds_count{"stripes":"4"}'] == 2
    assert found['nos_ec_consumer_group_write_seconds_sum{"stripes":"4"}'] == pytest.approx(3.05)


def test_a_failing_source_does_not_affect_the_others() -> None:
    exposition = Exposition(CollectorRegistry())

    def away() -> Iterator[Sample]:
        yield Sample(metrics.STORE_LEASES, 1)
        raise Transient("the server is away")

    exposition.add("away", away)
    exposition.add("here", lambda: [Sample(metrics.GC_RUNS, 1)])
    for scrape in (1, 2):
        found = read(exposition.text())
        assert found["nos_ec_gc_runs_total"] == 1
        assert "nos_ec_store_leases" not in found
        assert found['nos_ec_figures_failed_total{"source":"away"}'] == scrape
        assert found['nos_ec_figures_failed_total{"source":"here"}'] == 0


@pytest.mark.parametrize(("since_ms", "expected_s"), [(None, 0), (1_000_000, 2.5), (1_002_500, 0), (1_003_000, 0)])
def test_what_waits_is_as_old_as_its_id_says(since_ms: int | None, expected_s: float) -> None:
    """What is still to come has no negative age: a copy that is not due, a PUT of a machine whose clock is ahead."""

    class Waiting:
        def oldest_landing_id(self) -> LandingId | None:
            return None if since_ms is None else LandingId(timed_id(since_ms, b"\xff" * 10))

        def first_deletion_ms(self) -> int | None:
            return since_ms

    assert [sample.value for sample in waiting_samples(cast(Metadata, Waiting()), 1_002_500)] == [expected_s] * 2


def test_processes_share_no_registry() -> None:
    monitors = [Monitor(name, "ab12", CollectorRegistry(), FakeClock(), 1000) for name in ("producer", "consumer")]
    monitors[0].metrics.add("x", lambda: [Sample(metrics.GC_RUNS, 1)])
    assert b"nos_ec_gc_runs" in monitors[0].metrics.text()
    assert b"nos_ec_gc_runs" not in monitors[1].metrics.text()
    assert b'service="consumer"' in monitors[1].metrics.text()
    assert all(b'store_id="ab12"' in monitor.metrics.text() for monitor in monitors)


def read(text: bytes) -> dict[str, float]:
    """{name{labels}: value} of a text that the client library's parser accepts."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f'"{name}":"{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


# --- cache ---------------------------------------------------------------------------------------------------------
def test_a_cached_figure_is_computed_again_when_it_is_old() -> None:
    clock = FakeClock()
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    cached = Cached(make, clock, 1000)
    assert [cached(), cached()] == [0, 0]
    clock.advance(999)
    assert cached() == 0
    clock.advance(1)
    assert cached() == 1


def test_a_clock_that_is_set_back_keeps_no_figure_for_longer() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    cached = Cached(make, FakeClock(5_000_000), 1000)
    assert cached() == 0
    cached._clock = FakeClock(1_000_000)
    assert cached() == 1
    assert cached() == 1


def test_figures_that_take_long_are_kept_longer() -> None:
    clock = FakeClock()
    made: list[int] = []

    def make() -> int:
        clock.advance(500)
        made.append(1)
        return len(made)

    cached = Cached(make, clock, 1000)
    assert cached() == 1
    clock.advance(COST_SHARE * 500 - 1)
    assert cached() == 1
    clock.advance(1)
    assert cached() == 2


def test_while_one_caller_computes_the_others_get_the_previous_figure() -> None:
    clock = FakeClock()
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        if len(made) == 2:
            begun.set()
            assert go_on.wait(WAIT_S_MAX)
        return made[-1]

    cached = Cached(make, clock, 1000)
    assert cached() == 0
    clock.advance(1000)
    slow: list[int] = []
    thread = threading.Thread(target=lambda: slow.append(cached()))
    thread.start()
    assert begun.wait(WAIT_S_MAX)
    assert [cached(), cached()] == [0, 0], "old, but there"
    go_on.set()
    thread.join(WAIT_S_MAX)
    assert slow == [1]
    assert cached() == 1
    assert made == [0, 1]


def test_a_failure_is_not_cached() -> None:
    answers: list[Exception | int] = [Transient("away"), 5]

    def make() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cached = Cached(make, FakeClock(), 1000)
    with pytest.raises(Transient):
        cached()
    assert cached() == 5


def test_callers_waiting_for_a_first_figure_get_its_failure() -> None:
    server = _ServerAway()
    assert _all_at_once(Cached(server.look, FakeClock(), 1000), server) == ["away"] * 5
    assert server.looks == 1


# --- health --------------------------------------------------------------------------------------------------------
def test_alive_while_every_loop_turns() -> None:
    clock = FakeClock()
    health = Health(clock, stall_ms_max=1000)
    packing, cleaning = health.heart("packing"), health.heart("cleaning")
    assert health.alive().good
    clock.advance(1000)
    packing(0)
    assert health.alive().good
    clock.advance(1)
    assert health.alive().problems.keys() == {"cleaning"}
    cleaning(5000)
    clock.advance(999)
    assert health.alive().good
    clock.advance(2)
    assert health.alive().problems.keys() == {"packing"}, "the other one said that it rests"
    packing(0)
    clock.advance(5000)
    assert health.alive().problems.keys() == {"packing", "cleaning"}


def test_concurrent_readiness_checks_get_the_same_answer() -> None:
    """One check of an unreachable server takes its time limit; ten waiting probes must not take ten of them."""
    health, server = Health(FakeClock(), 1000), _ServerAway()
    health.started()
    health.require("message log", server.look)
    answers = _all_at_once(health.ready, server)
    assert answers == [Answer({"message log": "Transient: away"})] * 5
    assert server.looks == 1
    assert not health.ready().good
    assert server.looks == 2, "asked again once the answer was given"


class _ServerAway:
    """Each check fails at its time limit, which is when `limit` is set."""

    def __init__(self) -> None:
        self.looks = 0
        self.begun, self.limit = threading.Event(), threading.Event()

    def look(self) -> int:
        self.looks += 1
        self.begun.set()
        assert self.limit.wait(WAIT_S_MAX)
        raise Transient("away")


def _all_at_once(ask: Callable[[], object], server: _ServerAway) -> list[object]:
    """The answers to five callers who ask while the check of the first is under way."""
    found: list[object] = []

    def asks() -> None:
        try:
            found.append(ask())
        except Transient as error:
            found.append(str(error))

    threads = [threading.Thread(target=asks) for _ in range(5)]
    threads[0].start()
    assert server.begun.wait(WAIT_S_MAX)
    for thread in threads[1:]:
        thread.start()
    until_all_wait = time.monotonic() + 10
    while not all(_waits(thread) for thread in threads[1:]):
        assert time.monotonic() < until_all_wait
        time.sleep(0.01)
    server.limit.set()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    return found


def _waits(thread: threading.Thread) -> bool:
    """Whether it waits for a look-up of another thread."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not Future.result.__code__:
        frame = frame.f_back
    return frame is not None


def test_ready_while_everything_answers() -> None:
    health = Health(FakeClock(), 1000)
    answers: list[int] = []

    def check() -> None:
        if not answers:
            raise Transient("port 3306 does not answer")

    health.require("metadata", check)
    health.require("log", lambda: 5)
    assert health.ready().problems.keys() == {"process", "metadata"}, "not started yet"
    health.started()
    assert health.ready().problems == {"metadata": "Transient: port 3306 does not answer"}
    answers.append(1)
    assert health.ready().good
    health.stopping()
    assert health.ready().problems == {"process": "stopping"}
    assert health.alive().good


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_where_an_endpoint_listens(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    monitor = Monitor("consumer", "ab12", CollectorRegistry(), FakeClock(), 1000)
    with Endpoint(monitor, host, 0) as endpoint, urllib.request.urlopen(f"{endpoint.url}/livez", timeout=10) as reply:
        assert reply.status == 200


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    monitor = Monitor("consumer", "ab12", CollectorRegistry(), FakeClock(), 1000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*monitoring\.port of this consumer"):
            Endpoint(monitor, "127.0.0.1", port)


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# --- systemd -------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@nos-ec-test-{tmp_path.name}-{id(request)}"
    with NotifySocket(address) as made:
        yield made


def test_states_reach_systemd(systemd: NotifySocket) -> None:
    notifier = Notifier(systemd.environment, pid=1)
    assert notifier.watchdog_ms is None
    assert notifier.send("READY=1", "STATUS=well")
    assert systemd.heard() == "READY=1\nSTATUS=well"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/notify"}])
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    assert not Notifier(environment, pid=1).send("READY=1")


@pytest.mark.parametrize(
    ("environment", "watchdog_ms"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_only_a_watchdog_for_this_process_counts(environment: dict[str, str], watchdog_ms: int | None) -> None:
    assert Notifier(environment, pid=7).watchdog_ms == watchdog_ms


class RealWait(FakeClock):
    """Waits in real time, a hundredth of the requested time: the pulse runs on a separate thread."""

    def wait(self, stop: Event, wait_ms: int) -> bool:
        return stop.wait(wait_ms / 100_000)


def test_the_watchdog_is_fed_only_while_the_loops_turn(systemd: NotifySocket) -> None:
    clock = RealWait()
    health = Health(clock, stall_ms_max=1000)
    beat = health.heart("packing")
    notifier = Notifier({**systemd.environment, "WATCHDOG_USEC": "3000000"}, pid=1)
    with Pulse(notifier, health, clock):
        assert systemd.heard() == "READY=1"
        assert systemd.heard() == "WATCHDOG=1"
        clock.advance(1001)
        silent_from = _silence(systemd)
        assert silent_from, "the watchdog was fed for a loop that hangs"
        beat(0)
        assert systemd.heard() == "WATCHDOG=1"
    assert health.ready().problems == {"process": "stopping"}
    heard = [systemd.heard()]
    while heard[-1] == "WATCHDOG=1":
        heard.append(systemd.heard())
    assert heard[-1] == "STOPPING=1"


def _silence(systemd: NotifySocket) -> bool:
    """True once nothing came for half a second, after what was on its way."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            systemd.heard(0.5)
        except Empty:
            return True
    return False


# --- lanes ---------------------------------------------------------------------------------------------------------
class SlowWriter:
    """Stands in for a StripeWriter: writes when the test lets it."""

    def __init__(self, timer: list[float], result: WriteResult) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._timer, self._result = timer, result

    def write(self, _plan: object) -> WriteResult:
        self.begun.set()
        assert self.go_on.wait(WAIT_S_MAX)
        self._timer[0] += 0.3
        return self._result

    def close(self) -> None:
        pass


@pytest.mark.parametrize("stripe_count", [0, 4])
def test_lanes_count_and_time_the_groups_in_flight(stripe_count: int) -> None:
    """Only groups that were written are timed: one that failed says nothing about writing."""
    seconds = [100.0]
    writer = SlowWriter(seconds, WriteResult(stripe_count=stripe_count))
    lanes = Lanes([cast(StripeWriter, writer)], lambda: seconds[0], Geometry())
    assert (lanes.count, lanes.busy, lanes.busy_s_max()) == (1, 0, 0)
    lanes.submit(GroupPlan(1, 0, 0, (), 0))
    assert writer.begun.wait(WAIT_S_MAX)
    seconds[0] += 2
    assert (lanes.busy, lanes.busy_s_max()) == (1, 2)
    writer.go_on.set()
    assert len(lanes.collect(wait_ms=10_000)) == 1
    lanes.close()
    assert (lanes.busy, lanes.busy_s_max()) == (0, 0)
    timed = {stripes: histogram.counts for stripes, histogram in lanes.write_seconds.items()}
    counts = [int(bound == 5.0) for bound in (*WRITE_SECONDS_BOUNDS, None)]
    assert timed == ({4: counts} if stripe_count else {})
    assert sum(histogram.sum for histogram in lanes.write_seconds.values()) == (pytest.approx(2.3) if timed else 0)


# --- documentation -------------------------------------------------------------------------------------------------
def test_pages_name_only_existing_metrics() -> None:
    """An alert on a metric that does not exist never fires."""
    exposed = {metric.exposed_name for metric in METRICS}
    exposed |= {f"{metric.exposed_name}_bucket" for metric in METRICS if metric.kind is Kind.HISTOGRAM}
    for page, named_min in (("MONITORING", 10), ("OPERATIONS", 5), ("METRICS", 10)):
        named = set(re.findall(r"\bnos_ec_(?!store_\*)[a-z0-9_]+", (DOCS / f"{page}.md").read_text()))
        assert named <= exposed, page
        assert len(named) > named_min, page
