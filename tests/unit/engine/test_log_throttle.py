"""The first lines of a kind are logged, the others counted."""

from __future__ import annotations

from structlog.testing import capture_logs

from nos_ec.engine.log_throttle import LINES_MAX, WINDOW_MS, ThrottledLog
from tests.rig.fakes.clock import FakeClock


def test_ten_thousand_events_make_a_few_lines_and_a_count() -> None:
    clock = FakeClock()
    log = ThrottledLog("test", clock)
    with capture_logs() as lines:
        for number in range(10_000):
            log.error("message skipped", offset=number)
        log.error("other kind")
    assert [line["event"] for line in lines] == ["message skipped"] * LINES_MAX + ["other kind"]
    with capture_logs() as lines:
        clock.advance(WINDOW_MS - 1)
        log.report()
        assert lines == []
        clock.advance(1)
        log.report()
        log.report()
    (line,) = lines
    assert line["event"] == "message skipped: further lines suppressed"
    assert (line["count"], line["named"]) == (10_000 - LINES_MAX, LINES_MAX)


def test_a_new_window_names_events_again() -> None:
    clock = FakeClock()
    log = ThrottledLog("test", clock)
    for number in range(LINES_MAX + 1):
        log.error("message skipped", offset=number)
    clock.advance(WINDOW_MS)
    with capture_logs() as lines:
        log.error("message skipped", offset=99)
    assert [line.get("count", line.get("offset")) for line in lines] == [1, 99]


def test_closing_logs_what_is_left() -> None:
    log = ThrottledLog("test", FakeClock())
    for _ in range(LINES_MAX + 3):
        log.error("message skipped")
    with capture_logs() as lines:
        log.report(closing=True)
        log.report(closing=True)
    assert [line["count"] for line in lines] == [3]
