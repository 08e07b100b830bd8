"""Notes: short texts by name, with which the processes of a store tell each other what GC may do, does and has done."""

from __future__ import annotations

from typing import Protocol

NOTE_CHARS_MAX = 16_000
"""The longest text of a note. It must fit into a column of 65,535 bytes."""


class Notes(Protocol):
    """A row for each name. See the package docstring. Safe to call from several threads."""

    def note(self, name: str) -> str | None:
        """The text of that name; None if there is none. Looks up one row, whatever the store holds."""
        ...

    def store_note(self, name: str, text: str, expected: str | None) -> bool:
        """Store a text if `expected` is what is stored; None for nothing. Returns whether it was: of several processes
        that expect the same, one gets True. name: at most 16 characters. text: at most NOTE_CHARS_MAX."""
        ...
