"""Caches the rows of recently read objects, so that reading an object again needs no query for its location.

The cache weakens one guarantee: a row is trusted until it reaches the maximum age, so readers see an overwrite or
delete by another process with that delay. Until then they get the old version, complete and checked, while its bytes
exist.
Readers never get wrong bytes: a packed extent and a landing copy belong to one version forever, and a reader that finds
them gone, or different from the row, looks the row up again.

Kept here:
  a  at most `objects_max` rows, none older than `age_ms_max`
  b  after `forget_rows`, no row from an earlier look-up is returned, even if that look-up is still running
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from nos_ec.core.ids import ObjectKey
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ObjectRow

LOCATION_CACHE_MS = 10_000
"""How long a location is cached, and so how late the change of another process may be seen. Blocks that were emptied
live longer, so that a read from an old location finds its bytes."""
_STRIPES = 256
"""The number of change counters, to which keys are mapped by hash. When a key changes, running look-ups of all keys
with the same counter are not cached."""


class LocationCache:
    """A cache of rows, disabled if `objects_max` is 0. Safe to call from several threads. `get` is Metadata.get."""

    def __init__(self, clock: Clock, objects_max: int, age_ms_max: int) -> None:
        self._clock = clock
        self._objects_max = objects_max
        self._age_ms_max = age_ms_max
        self._lock = threading.Lock()
        self._rows: OrderedDict[ObjectKey, tuple[ObjectRow, int]] = OrderedDict()
        """Each row with the time of its look-up, the most recently requested row last."""
        self._changes = [0] * _STRIPES

    def __len__(self) -> int:
        return len(self._rows)

    def find_row(self, key: ObjectKey, get: Callable[[ObjectKey], ObjectRow]) -> ObjectRow:
        """Return a cached row if it is younger than the maximum age, otherwise look it up. Raises NotFound,
        Transient."""
        if not self._objects_max:
            return get(key)
        now_ms = self._clock.now_ms()
        with self._lock:
            row, since_ms = self._rows.get(key, (None, 0))
            if row is not None and 0 <= now_ms - since_ms < self._age_ms_max:
                self._rows.move_to_end(key)
                return row
        return self.look_up_row(key, get)

    def look_up_row(self, key: ObjectKey, get: Callable[[ObjectKey], ObjectRow]) -> ObjectRow:
        """Look up the row in the metadata, and cache it. Raises NotFound, Transient."""
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

    def forget_rows(self, keys: Iterable[ObjectKey]) -> None:
        """Drop the rows of these keys. Call this after every change of them, even if its outcome is unknown."""
        if not self._objects_max:
            return
        with self._lock:
            for key in keys:
                self._changes[hash(key) % _STRIPES] += 1
                self._rows.pop(key, None)
