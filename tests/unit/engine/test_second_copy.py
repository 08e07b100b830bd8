"""Where the landing copy of a packed object is looked for."""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest

from nos_ec.core.ids import LandingId, ObjectKey, new_segment_id, record_id, timed_id
from nos_ec.core.states import ObjectState
from nos_ec.engine.objects.second_copy import SecondCopies
from nos_ec.ports.metadata import ObjectRow

NOW_MS = 1_700_000_000_000


class Queue:
    """A deletion queue with one entry."""

    def __init__(self, landing_id: LandingId) -> None:
        self.landing_id = landing_id

    def queued_copy(self, _row: ObjectRow, first: LandingId, last: LandingId) -> LandingId | None:
        return self.landing_id if first <= self.landing_id <= last else None


class Copies:
    """A landing store in which every copy is `data`."""

    def read(self, _landing_id: LandingId) -> bytes:
        return b"data"


def record(opened_ms: int) -> LandingId:
    return record_id(new_segment_id(opened_ms, 1023, 63), 4096, b"\xff" * 4)


@pytest.mark.parametrize(
    ("landing_id", "found"),
    [
        (timed_id(NOW_MS - 1_000, bytes(10)), True),
        (timed_id(NOW_MS - 50_000, bytes(10)), True),
        (timed_id(NOW_MS - 70_000, bytes(10)), False),
        (record(NOW_MS), True),
        (record(NOW_MS - 30 * 86_400_000), True),
        (record(NOW_MS + 3_000), False),
    ],
)
def test_a_copy_is_found_by_its_time(landing_id: LandingId, found: bool) -> None:
    row = ObjectRow(
        1, ObjectKey("b", "n"), 1, 4, google_crc32c.value(b"data"), bytes(16), ObjectState.PACKED, None, None, NOW_MS
    )
    queue: Any = Queue(landing_id)
    copies: Any = Copies()
    assert SecondCopies(queue, copies, 60_000).read(row) == (b"data" if found else None)
