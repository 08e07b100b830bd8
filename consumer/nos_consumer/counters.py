"""The counters of a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """Counts the work of this consumer since it started. split: objects in one chunk more than the fewest possible. The
    `empty_*_bytes` count the bytes of the written stripes that hold no object (core/packing/empty_bytes.py)."""

    messages: int = 0
    stale: int = 0
    poison: int = 0
    packed: int = 0
    packed_bytes: int = 0
    superseded: int = 0
    failed: int = 0
    retried: int = 0
    given_up: int = 0
    groups: int = 0
    stripes: int = 0
    split: int = 0
    empty_front_bytes: int = 0
    empty_gap_bytes: int = 0
    empty_end_bytes: int = 0
    offsets_committed: int = 0
