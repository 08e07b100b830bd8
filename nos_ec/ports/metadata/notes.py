"""Notes: short named texts through which the processes of a store share the limits, the progress and the results of
GC."""

from __future__ import annotations

from typing import Protocol

NOTE_CHARS_MAX = 16_000
"""The longest text of a note, in characters. It must fit into a column of 65,535 bytes."""


class Notes(Protocol):
    """Rows of notes, one for each name. See the package docstring. Safe to call from several threads."""

    def note(self, name: str) -> str | None:
        """Return the text of that name; None if there is none. Looks up one row, whatever the store holds."""

    def store_note(self, name: str, text: str, expected: str | None) -> bool:
        """Store a text if the stored one equals `expected` (None: no text is stored). Returns whether it was stored: if
        several processes expect the same text, only one gets True. `name` has at most 16 characters, `text` at most
        NOTE_CHARS_MAX."""
