"""What the landing log of a store holds, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nos_ec.core.errors import Transient
from nos_ec.core.states import SegmentState
from nos_ec.ports.metadata import LandingSegments
from nos_ec.ports.segment_medium import DeviceStates, SegmentMedium


@dataclass(frozen=True, slots=True)
class StateFigures:
    """Landing segments in one state, and the bytes of the batches in them; 0 for OPEN ones, whose end is not known."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogFigures:
    """All landing segments by state, the bytes of further segments that fit (None while that is not known), and the
    devices of the log (None without any: Ceph)."""

    segments: Mapping[SegmentState, StateFigures]
    free_bytes: int | None
    devices: DeviceStates | None = None


def log_figures(metadata: LandingSegments, medium: SegmentMedium, *, in_use: bool) -> LogFigures | None:
    """One statement, and what the medium knows. None when the log is not in use and has no segments (on Ceph there is a
    place for it in every store). Raises Transient."""
    totals = metadata.segment_totals()
    if not in_use and not totals:
        return None
    devices = medium.devices()
    try:
        free_bytes: int | None = medium.free_bytes()
    except Transient:
        free_bytes = None
    return LogFigures({state: StateFigures(*totals.get(state, (0, 0))) for state in SegmentState}, free_bytes, devices)
