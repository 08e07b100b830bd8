"""The state of the current run, published for other processes as a note in the metadata every few seconds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from nos_ec.ports.metadata import Notes

RUN_NOTE = "gc run"
"""The name of the note of worker 0. Each worker has a note of its own."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of the last run at `seen_ms`.

    bytes_chosen: live bytes of the chosen victims. bytes_per_s: the recent rate of moved object bytes. speed_percent:
    100 while the run works as fast as its limits allow; less while it slows down for reads of users.
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
        """Live bytes that have not been moved yet. An upper bound, because clients delete objects meanwhile."""
        return 0 if self.victims_done >= self.victims else max(0, self.bytes_chosen - self.bytes_moved)

    @property
    def left_ms(self) -> int | None:
        """How long the remaining bytes will take at the recent rate, or None while the rate is unknown."""
        if not self.bytes_left:
            return 0
        return self.bytes_left * 1000 // self.bytes_per_s if self.bytes_per_s else None


def read_run(notes: Notes, worker: int = 0) -> RunState | None:
    """Return the state of the current or last run of a worker, or None if there was no run or another release wrote the
    note. Raises Transient."""
    try:
        data: dict[str, Any] = json.loads(notes.note(_note_of(worker)) or "{}")
        return RunState(**data)
    except (ValueError, TypeError, RecursionError):
        return None


def write_run(notes: Notes, state: RunState, worker: int = 0) -> None:
    """Store the state of a run of a worker, and replace that of an earlier run. Raises Transient."""
    name = _note_of(worker)
    notes.store_note(name, json.dumps(asdict(state), sort_keys=True), notes.note(name))


def _note_of(worker: int) -> str:
    return f"{RUN_NOTE} {worker}" if worker else RUN_NOTE
