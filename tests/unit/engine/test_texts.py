"""Times as `nos-ec explain` says them."""

from __future__ import annotations

import pytest

from nos_ec.engine.texts import moment, span, when

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (999, "999 ms"),
        (1000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3_600_000, "1 h"),
        (3_659_000, "1 h"),
        (7_500_000, "2 h 5 min"),
        (86_400_000, "1 day"),
        (2 * 86_400_000 + 4 * 3_600_000 + 60_000, "2 days 4 h"),
        (2 * 86_400_000 + 60_000, "2 days"),
    ],
)
def test_a_span_has_its_two_largest_units(ms: int, text: str) -> None:
    assert span(ms) == text


def test_a_moment_is_said_from_now_and_as_a_date() -> None:
    assert moment(NOW_MS) == "2023-11-14T22:13:20+00:00"
    assert when(NOW_MS, NOW_MS) == "0 s ago (2023-11-14T22:13:20+00:00)"
    assert when(NOW_MS + 61_000, NOW_MS) == "in 1 min 1 s (2023-11-14T22:14:21+00:00)"
    assert when(NOW_MS - 61_000, NOW_MS) == "1 min 1 s ago (2023-11-14T22:12:19+00:00)"
