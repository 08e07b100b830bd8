"""Figures about the landing log of a store, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nos_ec.core.errors import Transient
from nos_ec.core.states import SegmentState
from nos_ec.ports.metadata import LandingSegments
from nos_ec.ports.segment_medium import DeviceStates, SegmentMedium


@dataclass(frozen=True, slots=True)
class StateFigures:
    """The number of landing segments in one state, and the bytes of their batches; 0 bytes for OPEN segments, whose end
    is not known."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The figures of one landing log."""

    segments: Mapping[SegmentState, StateFigures]
    free_bytes: int | None
    """The bytes of further segments that fit; None if that is unknown."""
    devices: DeviceStates | None = None
    """The devices of the log; None on Ceph, where it has none."""


def log_figures(metadata: LandingSegments, medium: SegmentMedium, *, in_use: bool) -> LogFigures | None:
    """Return the figures of the landing log, from one query and the medium. None when the log is not in use and has no
    segments; on Ceph, every store has a medium for it. Raises Transient."""
    totals = metadata.segment_totals()
    if not in_use and not totals:
        return None
    devices = medium.devices()
    try:
        free_bytes: int | None = medium.free_bytes()
    except Transient:
        free_bytes = None
    return LogFigures({state: StateFigures(*totals.get(state, (0, 0))) for state in SegmentState}, free_bytes, devices)
