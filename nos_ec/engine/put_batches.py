"""Lands several PUTs and records their rows: one batch of the lander, one transaction of the metadata."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.versions import Versioning
from nos_ec.engine.lander import LandedBatch, Lander, NewCopy
from nos_ec.engine.location_cache import LocationCache
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import NewObject, ObjectRow, Objects, TailOf, UploadStep


@dataclass(frozen=True, slots=True)
class NewPut:
    """A small object to store. due_ms: when the producer should publish it. attributes: see core.attributes. condition:
    what must hold of the version that it would overwrite. step: what it is to a multipart upload, or to a large
    object. versioning: that of the bucket."""

    key: ObjectKey
    data: bytes
    crc32c: int
    md5: bytes
    due_ms: int
    attributes: bytes = b""
    condition: Condition | None = None
    step: UploadStep | TailOf | None = None
    versioning: Versioning | None = None


class PutBatches:
    """Stores batches of PUTs. Safe to call from several threads."""

    def __init__(self, lander: Lander, metadata: Objects, clock: Clock, locations: LocationCache) -> None:
        self.lander = lander
        self._metadata = metadata
        self._clock = clock
        self._locations = locations

    def store(self, puts: Sequence[NewPut], *, together: bool = False) -> list[ObjectRow | NosError]:
        """Make objects durable, in the order of `puts` where keys repeat. Returns for each its row, or why it alone is
        not stored; an outcome may be unknown, so a repeated PUT is right. PreconditionFailed or NotFound: its condition
        did not hold.

        together: store all of them or none; raises the first error. Otherwise raises no Transient. After any other
        error nothing is stored.
        """
        landed = self._land(puts, together=together)
        outcomes = iter(landed.outcomes)
        places = [next(outcomes) if put.data else None for put in puts]
        given_up = {place for place in places if isinstance(place, bytes)}
        try:
            answers = self._record(puts, places, together=together)
            given_up -= {
                place
                for place, answer in zip(places, answers, strict=True)
                if isinstance(place, bytes) and isinstance(answer, ObjectRow)
            }
        finally:
            landed.settle(given_up)
        kill_point("put.recorded")
        return answers

    def _land(self, puts: Sequence[NewPut], *, together: bool) -> LandedBatch:
        copies = [NewCopy(put.key, put.data, put.crc32c, put.attributes) for put in puts if put.data]
        if not copies:
            return _NotLanded([])
        try:
            landed = self.lander.land(copies)
        except Transient as error:
            if together:
                raise
            return _NotLanded(_each(error, len(copies)))
        kill_point("put.landed")
        return landed

    def _record(
        self, puts: Sequence[NewPut], places: Sequence[LandingId | NosError | None], *, together: bool
    ) -> list[ObjectRow | NosError]:
        new: dict[int, NewObject] = {}
        answers: dict[int, ObjectRow | NosError] = {}
        for index, (put, place) in enumerate(zip(puts, places, strict=True)):
            if not isinstance(place, NosError):
                new[index] = _new_object(put, place)
            elif together:
                raise place
            else:
                answers[index] = place
        if new:
            answers |= zip(new, self._record_landed(list(new.values()), together=together), strict=True)
        return [answers[index] for index in range(len(puts))]

    def _record_landed(self, new: Sequence[NewObject], *, together: bool) -> Sequence[ObjectRow | NosError]:
        try:
            return self._metadata.record_puts(new, self._clock.now_ms(), together=together)
        except Transient as error:
            if together:
                raise
            return _each(error, len(new))
        finally:
            self._locations.forget(one.key for one in new)


def _new_object(put: NewPut, place: LandingId | None) -> NewObject:
    size = len(put.data)
    told = (put.attributes, put.condition, put.step, put.versioning)
    return NewObject(put.key, size, put.crc32c, put.md5, place, put.due_ms, *told)


def _each(error: Transient, count: int) -> list[NosError]:
    """The error once for each object, as several threads will raise it."""
    errors = [error, *(copy(error) for _ in range(1, count))]
    for other in errors[1:]:
        other.__cause__ = error.__cause__
    return list(errors)


@dataclass(frozen=True, slots=True)
class _NotLanded:
    """A batch of which nothing landed."""

    outcomes: Sequence[NosError]

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Do nothing."""
