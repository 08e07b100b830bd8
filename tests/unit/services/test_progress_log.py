from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from nos_consumer.counters import REPORT_WAIT_MS, ConsumerCounters, ProgressLog

Lines = list[structlog.typing.EventDict]
NONE: frozenset[int] = frozenset()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The log lines, whatever log level an earlier command in this process has set."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as logged:
        yield logged
    structlog.configure(**before)


def test_progress_is_logged_now_and_then_and_only_what_changed(lines: Lines) -> None:
    counters = ConsumerCounters()
    progress_log = ProgressLog(0)
    for now_ms in range(0, 3 * REPORT_WAIT_MS, 100):
        if now_ms < REPORT_WAIT_MS + 1000:
            counters.packed += 2
            counters.packed_bytes += 100
        progress_log.turn(now_ms, NONE, counters, waiting=7)
    first = 2 * (REPORT_WAIT_MS // 100 + 1)
    assert [line["packed"] for line in lines] == [first, counters.packed - first], "none while nothing is packed"
    assert lines[0] == {
        "event": "progress",
        "log_level": "info",
        "packed": first,
        "packed_bytes": 50 * first,
        "waiting": 7,
    }


def test_partitions_are_logged_when_they_change(lines: Lines) -> None:
    progress_log = ProgressLog(0)
    for held in (NONE, frozenset({2, 1}), frozenset({1, 2}), frozenset({1}), NONE):
        progress_log.turn(0, held, ConsumerCounters(), waiting=0)
    assert [line["partitions"] for line in lines] == [[1, 2], [1], []]


def test_nothing_is_logged_twice(lines: Lines) -> None:
    counters = ConsumerCounters(packed=3)
    progress_log = ProgressLog(0)
    progress_log.report(counters, waiting=0)
    progress_log.report(counters, waiting=0)
    counters.failed += 1
    progress_log.report(counters, waiting=0)
    assert [(line.get("packed"), line.get("failed")) for line in lines] == [(3, None), (None, 1)]


def test_progress_is_logged_after_the_clock_was_set_back(lines: Lines) -> None:
    progress_log = ProgressLog(10 * REPORT_WAIT_MS)
    progress_log.turn(0, NONE, ConsumerCounters(packed=1), waiting=0)
    assert [line["packed"] for line in lines] == [1]
