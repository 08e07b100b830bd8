"""Entries of the audit trail: each has a bounded line, and together they name everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nos_ec.adapters.local.audit_files import LINE_BYTES_MAX
from nos_ec.core.formats.audit_trail import COPIES_MAX, SEGMENTS_MAX, AuditEntry, AuditKind, audit_line
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId
from nos_ec.core.states import ObjectState, SegmentState
from nos_ec.engine.audit_entries import abandoned_copies, copies_moved, segments_released
from nos_ec.ports.metadata import LandedMove, ObjectRow, SegmentRow

LONGEST_NAME = "\x01" * 1024
"""Of an object: each byte takes six in JSON."""


def landing_id(number: int) -> LandingId:
    return LandingId(number.to_bytes(16))


def moved(count: int) -> list[AuditEntry]:
    key = ObjectKey("b", LONGEST_NAME)
    rows = [
        ObjectRow(one, key, 1, 1, 0, bytes(16), ObjectState.LANDED, landing_id(one), None, 0) for one in range(count)
    ]
    moves = {one: LandedMove(one, 1, landing_id(one), landing_id(count + one)) for one in range(count)}
    return copies_moved(rows, moves)


def abandoned(count: int) -> list[AuditEntry]:
    return abandoned_copies(map(landing_id, range(count)))


@pytest.mark.parametrize(
    ("made", "kind"), [(moved, AuditKind.COPIES_MOVED), (abandoned, AuditKind.COPIES_DELETED)], ids=["moved", "failed"]
)
@pytest.mark.parametrize("count", [0, 1, COPIES_MAX, COPIES_MAX + 1, 3 * COPIES_MAX])
def test_many_copies_take_several_entries(made: Callable[[int], list[AuditEntry]], kind: AuditKind, count: int) -> None:
    entries = made(count)
    assert [copy.landing for entry in entries for copy in entry.copies] == [landing_id(n).hex() for n in range(count)]
    assert len(entries) == -(-count // COPIES_MAX)
    for entry in entries:
        assert entry.kind is kind
        assert len(audit_line(entry, 1, "run")) < LINE_BYTES_MAX


@pytest.mark.parametrize("count", [0, 1, SEGMENTS_MAX, SEGMENTS_MAX + 1])
def test_many_segments_take_several_entries(count: int) -> None:
    segments = [SegmentId(one.to_bytes(8)) for one in range(count)]
    rows = {one: SegmentRow(one, SegmentState.SEALED, 1, 2, 3, 4, 5) for one in segments}
    entries = segments_released(segments, rows, "why")
    assert [one for entry in entries for one in entry.segments] == [one.hex() for one in segments]
    for entry in entries:
        assert 0 < len(entry.segments) <= SEGMENTS_MAX
        assert tuple(entry.seen) == entry.segments
