"""Changes of the attributes of an object, by compare-and-set: several clients may change the same object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event

from nos_ec.core.errors import Transient
from nos_ec.engine.store import READ_TRIES, Store
from nos_ec.gateway.object_headers import encoded
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ObjectRow

WAIT_MS_FIRST = 4
WAIT_MS_MAX = 500
"""The longest wait after the first try that lost, and the longest of all. They double in between."""


class AttributeChanges:
    """Safe to call from several threads."""

    def __init__(self, store: Store, clock: Clock, random: Callable[[], float]) -> None:
        """random: returns numbers from 0 to 1, so that those who lost at the same time do not meet again."""
        self._store = store
        self._clock = clock
        self._random = random

    def replace(
        self, read: Callable[[], tuple[ObjectRow, Mapping[str, str]]], names: tuple[str, ...], value: Mapping[str, str]
    ) -> ObjectRow:
        """Replace the attributes of these names with `value`. read: returns a version and its attributes. Returns that
        version. Raises what it raises, MetadataTooLarge, and Transient if the object changed at each of READ_TRIES
        tries."""
        for tries in range(READ_TRIES):
            row, attributes = read()
            kept = {name: text for name, text in attributes.items() if name not in names}
            if self._store.set_attributes_of(row, encoded(kept | dict(value))):
                return row
            if tries < READ_TRIES - 1:
                wait_ms = self._random() * min(WAIT_MS_FIRST << tries, WAIT_MS_MAX)
                self._clock.wait(Event(), max(1, round(wait_ms)))
        raise Transient(f"{row.key} changed again and again; try again", key=row.key)
