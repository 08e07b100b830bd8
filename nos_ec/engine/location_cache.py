"""Rows of objects that were read lately, so that reading one again asks no database where it is.

What it weakens: a row is believed for up to its age. An overwrite or delete by another process is seen that much later,
and until then the old version is read, whole and checked, for as long as its bytes are there. It never makes bytes
wrong: a packed extent and a landing copy hold one version for ever, and a reader who finds them gone, or not what
the row says, looks the row up.

Kept here:
  a  no more than `objects_max` rows, none older than `age_ms_max`
  b  after `forget`, no row that was looked up before it is given again, also not by a look-up still under way
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from nos_ec.core.ids import ObjectKey
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ObjectRow

_STRIPES = 256
"""Counts of changes, shared by the keys of one hash: a change keeps 1 in so many look-ups under way from being kept."""


class LocationCache:
    """Remembers rows; none with `objects_max` 0. Safe to call from several threads. `get` is that of the metadata."""

    def __init__(self, clock: Clock, objects_max: int, age_ms_max: int) -> None:
        self._clock = clock
        self._objects_max = objects_max
        self._age_ms_max = age_ms_max
        self._lock = threading.Lock()
        self._rows: OrderedDict[ObjectKey, tuple[ObjectRow, int]] = OrderedDict()
        """Each with when it was looked up; the one that was asked for last stands last."""
        self._changes = [0] * _STRIPES

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: ObjectKey, get: Callable[[ObjectKey], ObjectRow]) -> ObjectRow:
        """The row, perhaps a remembered one. Raises NotFound, Transient."""
        if not self._objects_max:
            return get(key)
        now_ms = self._clock.now_ms()
        with self._lock:
            row, since_ms = self._rows.get(key, (None, 0))
            if row is not None and 0 <= now_ms - since_ms < self._age_ms_max:
                self._rows.move_to_end(key)
                return row
        return self.look_up(key, get)

    def look_up(self, key: ObjectKey, get: Callable[[ObjectKey], ObjectRow]) -> ObjectRow:
        """The row as the metadata has it now; it is remembered. Raises NotFound, Transient."""
        if not self._objects_max:
            return get(key)
        stripe = hash(key) % _STRIPES
        with self._lock:
            self._rows.pop(key, None)
            changes = self._changes[stripe]
        since_ms = self._clock.now_ms()
        row = get(key)
        with self._lock:
            if self._changes[stripe] == changes:
                self._rows[key] = (row, since_ms)
                self._rows.move_to_end(key)
                if len(self._rows) > self._objects_max:
                    self._rows.popitem(last=False)
        return row

    def forget(self, keys: Iterable[ObjectKey]) -> None:
        """To be called after every change of these keys, also one whose outcome is unknown."""
        if not self._objects_max:
            return
        with self._lock:
            for key in keys:
                self._changes[hash(key) % _STRIPES] += 1
                self._rows.pop(key, None)
