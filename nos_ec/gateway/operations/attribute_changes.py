"""Changes the attributes of an object by compare-and-set, because several clients may change the same object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event

from nos_ec.core.errors import Transient
from nos_ec.engine.objects.reading import READ_TRIES
from nos_ec.engine.objects.store import Store
from nos_ec.engine.retry_queue import BackOff
from nos_ec.gateway.message.object_headers import encoded
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ObjectRow

BACK_OFF = BackOff(first_ms=4, max_ms=500)
"""The longest waits after tries at which another change won."""


class AttributeChanges:
    """Replaces attributes of objects. Safe to call from several threads."""

    def __init__(self, store: Store, clock: Clock, random: Callable[[], float]) -> None:
        """`random` returns numbers from 0 to 1, so that requests that conflicted do not all retry at the same time."""
        self._store = store
        self._clock = clock
        self._random = random

    def replace(
        self, read: Callable[[], tuple[ObjectRow, Mapping[str, str]]], names: tuple[str, ...], value: Mapping[str, str]
    ) -> ObjectRow:
        """Replace the attributes of these names with `value`, and return the version. `read` returns the version and
        its attributes. Raises the errors of `read`, MetadataTooLarge, and Transient if the object changed during each
        of READ_TRIES tries."""

        def attempt() -> tuple[ObjectRow, bool]:
            row, attributes = read()
            kept = {name: text for name, text in attributes.items() if name not in names}
            return row, self._store.set_attributes_of(row, encoded(kept | dict(value)))

        return self.repeat(attempt)

    def repeat(self, attempt: Callable[[], tuple[ObjectRow, bool]]) -> ObjectRow:
        """Repeat a change until no other one has come before it, and return the version. `attempt` returns the version,
        and whether the change was made. Raises the errors of `attempt`, and Transient after READ_TRIES tries."""
        for tries in range(1, READ_TRIES + 1):
            row, is_done = attempt()
            if is_done:
                return row
            if tries < READ_TRIES:
                wait_ms = self._random() * BACK_OFF.wait_ms(tries)
                self._clock.wait(Event(), max(1, round(wait_ms)))
        raise Transient(f"{row.key} changed again and again; try again", key=row.key)
