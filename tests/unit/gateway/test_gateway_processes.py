"""What the processes of a gateway report, how it is added up, and when one that ends is replaced."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from nos_ec.composition.processes import BACK_OFF_MS_MAX
from nos_ec.core.errors import Transient
from nos_ec.core.histogram import Histogram
from nos_ec.gateway.server.connection_counts import ConnectionCounts
from nos_ec.gateway.server.record import Record
from nos_ec.gateway.server.reports import Report, Sums, report_of
from nos_ec.gateway.server.request_counters import RequestCounters
from nos_ec.gateway.server.samples import gateway_samples
from nos_ec.gateway.server.supervisor import START_MS_MAX, Supervisor
from nos_ec.monitoring.declarations.metrics import INFO, SHARD_READS, SOURCE_FAILURES
from nos_ec.monitoring.declarations.s3_metrics import (
    S3_ERRORS,
    S3_RECEIVED_BYTES,
    S3_RESTARTS,
    S3_SECONDS,
    S3_UNDER_WAY,
)
from nos_ec.monitoring.exposition import Sample
from tests.rig import waiting
from tests.rig.fakes.clock import FakeClock

WAIT_S = 60
until = partial(waiting.until, wait_s=WAIT_S)


def tally_of(requests: int, under_way: int = 0) -> RequestCounters:
    counters = RequestCounters()
    for number in range(requests):
        record = Record(str(number), "PUT", operation="PutObject", status=200, received=10)
        if number == 0:
            record.status, record.code = 503, "SlowDown"
        record.first_byte_s, record.whole_s = 0.001, 0.5
        counters.add(record)
    counters.under_way = under_way
    return counters


def report(requests: int, under_way: int = 0) -> Report:
    return Report("id", list(gateway_samples(tally_of(requests, under_way))), {}, {})


def values(samples: list[Sample]) -> dict[tuple[str, ...], float | list[int]]:
    return {
        (sample.metric.name, *sample.labels): sample.value.counts
        if isinstance(sample.value, Histogram)
        else sample.value
        for sample in samples
    }


def test_a_report_arrives_as_it_was_sent() -> None:
    sent = Report("id", list(gateway_samples(tally_of(3, 2))), {"loop": "stuck"}, {"metadata": "Transient: away"})
    got = report_of(sent.line())
    assert (got.store_id, got.stalled, got.problems) == ("id", sent.stalled, sent.problems)
    assert values(got.samples) == values(sent.samples)
    assert values(got.samples)[S3_RECEIVED_BYTES.name, "PutObject"] == 30
    (seconds,) = (sample.value for sample in got.samples if sample.metric is S3_SECONDS)
    assert isinstance(seconds, Histogram)
    assert seconds.sum == pytest.approx(1.5)
    assert sent.line().count(b"\n") == 1


def test_what_the_supervisor_says_itself_is_not_reported() -> None:
    own = [Sample(INFO, 1, ("s3", "1", "id")), Sample(SOURCE_FAILURES, 0, ("process",))]
    others = [Sample(SOURCE_FAILURES, 2, ("reads",)), Sample(SHARD_READS, 5)]
    assert report_of(Report("id", [*own, *others], {}, {}).line()).samples == others


def test_figures_are_sums_and_those_of_ended_processes_stay() -> None:
    sums = Sums()
    alone = values(list(sums.samples([report(3, 1), report(4, 2)])))
    assert alone[S3_RECEIVED_BYTES.name, "PutObject"] == 70
    assert alone[S3_ERRORS.name, "PutObject", "SlowDown", "503"] == 2
    assert alone[S3_UNDER_WAY.name,] == 3
    counts = alone[S3_SECONDS.name, "PutObject"]
    assert isinstance(counts, list)
    assert sum(counts) == 7
    sums.add_ended(report(3, 1))
    sums.add_ended(report(2))
    after = values(list(sums.samples([report(4, 2)])))
    assert after[S3_RECEIVED_BYTES.name, "PutObject"] == 90
    assert after[S3_UNDER_WAY.name,] == 2, "an ended process serves nothing"
    assert values(list(sums.samples([])))[S3_RECEIVED_BYTES.name, "PutObject"] == 50, "asking twice counts once"


def test_histograms_are_added_only_if_they_count_the_same() -> None:
    first, second = Histogram([1, 2]), Histogram([1, 2])
    first.add(1)
    second.add(5, 2)
    both = first.plus(second)
    assert (both.counts, both.sum) == ([1, 0, 2], 11)
    assert (first.counts, second.counts) == ([1, 0, 0], [0, 0, 2])
    with pytest.raises(ValueError, match="cannot be added"):
        first.plus(Histogram([1, 3]))
    with pytest.raises(ValueError, match="2 counts for 2 bounds"):
        Histogram.of([1, 2], [1, 2], 3)


# --- the supervisor, with small programs in place of gateways -------------------------------------
SERVES = """
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(sys.argv[2].encode())
channel.recv(1)
"""


class Programs:
    """Starts one of these programs each time, the last one again and again."""

    def __init__(self, *programs: str) -> None:
        self.programs = list(programs)
        self.started = 0

    def __call__(self, number: int, channel: socket.socket) -> subprocess.Popen[bytes]:
        program = self.programs[min(self.started, len(self.programs) - 1)]
        self.started += 1
        words = [sys.executable, "-c", program, str(channel.fileno()), report(1).line().decode()]
        return subprocess.Popen(words, pass_fds=[channel.fileno()])


@pytest.fixture
def counts() -> Iterator[ConnectionCounts]:
    """The counters of two processes."""
    with ConnectionCounts.create(2) as made:
        yield made


@pytest.fixture
def only() -> Iterator[ConnectionCounts]:
    """The counters of a single process."""
    with ConnectionCounts.create(1) as made:
        yield made


class WallClock(FakeClock):
    """Its time stands still unless a test moves it, but waiting takes time, as the programs do."""

    def wait(self, stop: threading.Event, wait_ms: int) -> bool:
        return stop.wait(wait_ms / 1000)


def restarts(supervisor: Supervisor) -> float:
    (value,) = (sample.value for sample in supervisor.samples() if sample.metric is S3_RESTARTS)
    assert not isinstance(value, Histogram)
    return value


def test_a_process_that_cannot_start_ends_the_gateway_with_its_exit_code(counts: ConnectionCounts) -> None:
    supervisor = Supervisor(Programs("raise SystemExit(3)"), counts, WallClock(), 1000)
    assert supervisor.begin(threading.Event()) == 3
    supervisor.end()


def test_processes_that_end_are_replaced_ever_more_slowly(counts: ConnectionCounts) -> None:
    clock, programs = WallClock(), Programs(SERVES, "pass")
    supervisor = Supervisor(programs, counts, clock, 10**9)
    assert supervisor.begin(threading.Event()) is None
    assert supervisor.store_id == "id"
    supervisor.require_ready()
    waits_ms = (1000, 2000, 4000, 8000, 16_000, 32_000, BACK_OFF_MS_MAX, BACK_OFF_MS_MAX)
    for ended, back_off_ms in enumerate(waits_ms, 1):
        supervisor.look()

        def noticed(known: int = ended) -> bool:
            supervisor.look()
            return restarts(supervisor) == known

        until(noticed)
        started = programs.started
        clock.advance(back_off_ms - 1)
        supervisor.look()
        assert programs.started == started, back_off_ms
        clock.advance(1)
    supervisor.end()


def test_a_lack_of_processes_is_waited_out(counts: ConnectionCounts) -> None:
    clock, programs = WallClock(), Programs(SERVES)
    lacks = True

    def start(number: int, channel: socket.socket) -> subprocess.Popen[bytes]:
        if lacks and programs.started:
            raise BlockingIOError("Resource temporarily unavailable")
        return programs(number, channel)

    supervisor = Supervisor(start, counts, clock, 10**9)
    assert supervisor.begin(threading.Event()) is None
    supervisor.look()
    supervisor.require_ready()
    lacks = False
    supervisor.look()
    assert programs.started == 1, "not before the back-off is over"
    clock.advance(1000)
    supervisor.look()
    assert programs.started == 2
    supervisor.end()


def test_one_ready_process_is_enough_and_none_is_not(only: ConnectionCounts) -> None:
    supervisor = Supervisor(Programs(SERVES), only, WallClock(), 10**9)
    with pytest.raises(Transient, match="no process serves"):
        supervisor.require_ready()
    assert supervisor.begin(threading.Event()) is None
    supervisor.require_ready()
    supervisor.end()
    with pytest.raises(Transient):
        supervisor.require_ready()


def test_a_silent_process_is_killed_but_one_that_starts_has_time(counts: ConnectionCounts) -> None:
    clock = WallClock()
    supervisor = Supervisor(Programs(SERVES, "import time; time.sleep(600)"), counts, clock, 5000)
    assert supervisor.begin(threading.Event()) is None
    supervisor.look()
    counts.set_count(0, 5)
    counts.set_count(1, 7)
    clock.advance(5001)
    supervisor.look()

    def replaced() -> bool:
        supervisor.look()
        return restarts(supervisor) == 1

    until(replaced)
    assert counts.least_of_others(1) is None, "it leaves its share to the other"
    assert counts.least_of_others(0) == 7
    supervisor.end()
    assert counts.least_of_others(0) is None


def test_a_process_that_never_serves_is_killed(only: ConnectionCounts) -> None:
    clock = WallClock()
    supervisor = Supervisor(Programs("import time; time.sleep(600)"), only, clock, 5000)
    supervisor.look()
    clock.advance(START_MS_MAX)
    supervisor.look()
    assert restarts(supervisor) == 0
    clock.advance(1)

    def replaced() -> bool:
        supervisor.look()
        return restarts(supervisor) == 1

    until(replaced)
    supervisor.end()
