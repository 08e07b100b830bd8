"""Learns lifetimes in a simulation, with the survival table of the core."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from nos_ec.bench.gc.workloads import Objects
from nos_ec.core.packing.lifetimes import SurvivalTable, is_sampled

SURVEY_DAYS = 20.0
"""How often watched objects are counted and the expected lifetimes are computed again."""


class Watch:
    """The survival table, and the objects that it watches. Deaths are counted at the next survey, together with the
    exposure of the living objects. If they were counted at once, a bucket would look short-lived until then."""

    def __init__(self, objects: Objects, dead: bytearray, table: SurvivalTable) -> None:
        self.now = table.lifetimes()
        """The lifetimes that are expected at present."""
        self._objects = objects
        self._dead = dead
        self._table = table
        self._watched: list[int] = []
        self._last = 0.0

    def born(self, numbers: Iterable[int]) -> None:
        """Watch a sample of these new objects."""
        self._watched += [n for n in numbers if is_sampled(hashlib.md5(b"%d" % n, usedforsecurity=False).digest())]

    def survey(self, now: float, *, force: bool = False) -> bool:
        """Count exposure and deaths of the watched objects since the last survey. Returns False if it is too early."""
        if now - self._last < SURVEY_DAYS and not force:
            return False
        dead, last = self._dead, self._last
        born, dies, bucket, names = self._objects.born, self._objects.dies, self._objects.bucket, self._objects.buckets
        observe = self._table.observe
        self._table.decay(now - last)
        for n in self._watched:
            begun = born[n]
            ended = dies[n] if dead[n] else now
            observe(names[bucket[n]], last - begun, ended - begun, died=bool(dead[n]))
        self._watched = [n for n in self._watched if not dead[n]]
        self._last = now
        self.now = self._table.lifetimes()
        return True
