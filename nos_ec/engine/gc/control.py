"""What operators ask of GC while it runs: to pause, and to keep within other limits than those of the settings.

A note in the metadata says so, so that it holds on all hosts and outlives all processes. A run reads it every few
seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from nos_ec.core.errors import Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import Notes

CONTROL_NOTE = "gc control"
CHANGE_TRIES = 10


@dataclass(frozen=True, slots=True)
class Control:
    """paused: whether GC may not collect. bytes_per_s, operations_per_s: limits instead of those of the settings; 0 for
    no limit, None for that of the settings."""

    paused: bool = False
    bytes_per_s: int | None = None
    operations_per_s: int | None = None


class GcControl:
    """Reads and changes what is asked of GC. Safe to call from several threads."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def read(self) -> Control:
        """What is asked now. A note that cannot be understood asks for nothing. Raises Transient."""
        return _loaded(self._notes.note(CONTROL_NOTE))

    def change(self, changed: Callable[[Control], Control]) -> Control:
        """Change what is asked, by compare-and-set. Returns what is asked now. Raises Transient."""
        for _ in range(CHANGE_TRIES):
            stored = self._notes.note(CONTROL_NOTE)
            new = changed(_loaded(stored))
            if self._notes.store_note(CONTROL_NOTE, json.dumps(asdict(new), sort_keys=True), stored):
                kill_point("gc.control_changed")
                return new
        raise Transient("other processes keep changing what is asked of GC; try again")


def _loaded(text: str | None) -> Control:
    try:
        data: dict[str, Any] = json.loads(text or "{}")
        return Control(
            data.get("paused") is True, _limit(data.get("bytes_per_s")), _limit(data.get("operations_per_s"))
        )
    except (ValueError, AttributeError, RecursionError):
        return Control()


def _limit(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
