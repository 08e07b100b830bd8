"""Commands of operators to GC: pausing it, and rate limits that replace those in the settings.

They are stored in a note in the metadata, so that they hold on all hosts and survive restarts. A run reads the note
every few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from nos_ec.core.errors import Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.texts import count_text, size_text
from nos_ec.ports.metadata import Notes

CONTROL_NOTE = "gc control"
CHANGE_TRIES = 10
OPERATIONS_MAX = 1_000_000_000
"""The highest limit of operations per second that an operator may set."""


@dataclass(frozen=True, slots=True)
class Control:
    """The commands in force. While `paused` is set, GC does not collect. bytes_per_s, operations_per_s: 0 for no limit,
    None for the limit in the settings."""

    paused: bool = False
    bytes_per_s: int | None = None
    operations_per_s: int | None = None

    @property
    def text(self) -> str:
        """The content of the note: one text for equal commands."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def in_words(self) -> str:
        """What holds, as the end of a sentence that begins with "GC is"."""
        count_bytes, operations = self.bytes_per_s, self.operations_per_s
        parts = (
            "paused" if self.paused else "not paused",
            "bytes are limited by the settings" if count_bytes is None else _bytes_text(count_bytes),
            "operations are limited by the settings" if operations is None else _operations_text(operations),
        )
        return ", ".join(parts)


class GcControl:
    """Reads and changes the commands to GC. Safe to call from several threads."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def read(self) -> Control:
        """Return the commands in force. A malformed note counts as no commands. Raises Transient."""
        return control_of(self._notes.note(CONTROL_NOTE))

    def change(self, changed: Callable[[Control], Control]) -> Control:
        """Change the commands by compare-and-set, and return the new ones. Raises Transient, and what `changed` raises,
        which then changes nothing."""
        for _ in range(CHANGE_TRIES):
            stored = self._notes.note(CONTROL_NOTE)
            new = changed(control_of(stored))
            if self._notes.store_note(CONTROL_NOTE, new.text, stored):
                kill_point("gc.control_changed")
                return new
        raise Transient("other processes keep changing the GC limits; try again")


def control_of(text: str | None) -> Control:
    """Return the commands in a note. A malformed note, as well as none, counts as no commands."""
    try:
        data: dict[str, Any] = json.loads(text or "{}")
        return Control(
            data.get("paused") is True, _limit(data.get("bytes_per_s")), _limit(data.get("operations_per_s"))
        )
    except (ValueError, AttributeError, RecursionError):
        return Control()


def _bytes_text(bytes_per_s: int) -> str:
    return f"at most {size_text(bytes_per_s)}/s" if bytes_per_s else "any number of bytes"


def _operations_text(operations_per_s: int) -> str:
    return f"at most {count_text(operations_per_s, 'operation')}/s" if operations_per_s else "any number of operations"


def _limit(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
