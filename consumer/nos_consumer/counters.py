"""The counters of a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """What this consumer has done since it started."""

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
    offsets_committed: int = 0
