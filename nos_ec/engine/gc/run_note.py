"""Where a run is, for other processes: a note in the metadata, written every few seconds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from nos_ec.ports.metadata import Notes

RUN_NOTE = "gc run"


@dataclass(frozen=True, slots=True)
class RunState:
    """What the last run has done when it was last heard of.

    bytes_chosen: live bytes of the victims it chose. bytes_per_s: object bytes moved in a second, lately.
    speed_percent: 100 while it works as fast as its limits allow; less while it spares reads of others.
    """

    process: str
    started_ms: int
    seen_ms: int
    ended_ms: int | None
    victims: int
    victims_done: int
    bytes_chosen: int
    bytes_moved: int
    objects_moved: int
    blocks_deleted: int
    bytes_reclaimed: int
    bytes_per_s: int
    speed_percent: int
    stopped: str | None
    behind: str | None

    @property
    def bytes_left(self) -> int:
        """Live bytes that are still to be moved; more than that while objects are deleted meanwhile."""
        return 0 if self.victims_done >= self.victims else max(0, self.bytes_chosen - self.bytes_moved)

    @property
    def left_ms(self) -> int | None:
        """How long the rest will take at the rate of late. None when that is unknown."""
        if not self.bytes_left:
            return 0
        return self.bytes_left * 1000 // self.bytes_per_s if self.bytes_per_s else None


def read_run(notes: Notes) -> RunState | None:
    """Where the last run is, or was when it ended. None if there was none, or one of another release. Raises
    Transient."""
    try:
        data: dict[str, Any] = json.loads(notes.note(RUN_NOTE) or "{}")
        return RunState(**data)
    except (ValueError, TypeError, RecursionError):
        return None


def write_run(notes: Notes, state: RunState) -> None:
    """Store where a run is. Of two runs, the later one counts. Raises Transient."""
    notes.store_note(RUN_NOTE, json.dumps(asdict(state), sort_keys=True), notes.note(RUN_NOTE))
