"""Lands several PUTs and records their rows: one batch of the lander, one transaction of the metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from nos_ec.core.errors import Conflict, NosError, NoSuchUpload, NotFound, PreconditionFailed, Transient
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.landing.lander import LandedBatch, Lander, NewCopy, not_voided
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import NewObject, ObjectRow, Objects

REFUSALS = (PreconditionFailed, NotFound, NoSuchUpload, Conflict)
"""Why a transaction does not record a PUT. After any other error it is not certain that it was not committed."""


Put = tuple[NewObject, bytes]
"""A small object, which has no landing id yet, and its bytes."""


class PutBatches:
    """Stores batches of PUTs. Safe to call from several threads."""

    def __init__(self, lander: Lander, metadata: Objects, clock: Clock, locations: LocationCache) -> None:
        self.lander = lander
        self._metadata = metadata
        self._clock = clock
        self._locations = locations

    def store_puts(self, puts: Sequence[Put], *, together: bool = False) -> list[ObjectRow | NosError]:
        """Make objects durable, in the order of `puts` where keys repeat. Returns for each object its row, or the error
        of this object alone: PreconditionFailed or NotFound if its condition did not hold, or Transient, after which
        its outcome may be unknown and the PUT should be repeated.

        together: store either all objects or none, and raise the first error. Otherwise Transient is only returned,
        never raised. After any other error nothing is stored.

        A rebuild of the metadata finds only the bytes that landed, not the decision of the transaction. So a condition
        is judged before the bytes land, and again in the transaction. If a PUT is refused only there, its bytes are
        made void before the answer; if that fails, the answer is Transient.
        """
        try:
            current = self._current(puts)
        except Transient as error:
            if together:
                raise
            return [*_each(error, len(puts))]
        refused = _refused(puts, current)
        if together and refused:
            raise refused[min(refused)]
        rest = [index for index in range(len(puts)) if index not in refused]
        stored = self._store([self._after(puts[index], current) for index in rest], together=together) if rest else []
        answers: dict[int, ObjectRow | NosError] = {**refused, **dict(zip(rest, stored, strict=True))}
        return [answers[index] for index in range(len(puts))]

    def _current(self, puts: Sequence[Put]) -> Mapping[ObjectKey, ObjectRow]:
        """Return the current versions of the keys of conditional PUTs."""
        keys = {new.key for new, _ in puts if new.condition is not None}
        return self._metadata.rows_of(keys) if keys else {}

    def _after(self, put: Put, current: Mapping[ObjectKey, ObjectRow]) -> Put:
        """Return the PUT with a time after the version that its condition was judged on, so that a rebuild orders the
        two correctly even if the clocks of their processes differ."""
        new, data = put
        row = None if new.condition is None else current.get(new.key)
        if row is None or put_ms_of(row.version) < self._clock.now_ms():
            return put
        return replace(new, put_ms=put_ms_of(row.version) + 1), data

    def _store(self, puts: Sequence[Put], *, together: bool) -> list[ObjectRow | NosError]:
        # 1. Land the bytes.
        landed = self._land(puts, together=together)
        places = landed.outcomes
        given_up = {place for place in places if isinstance(place, bytes)}
        kept: Collection[LandingId] = ()
        try:
            # 2. Record the rows.
            answers = self._record([new for new, _ in puts], places, together=together)
            placed = [(p, a) for p, a in zip(places, answers, strict=True) if isinstance(p, bytes)]
            # 3. Make the bytes of refused PUTs void.
            given_up -= {place for place, answer in placed if isinstance(answer, ObjectRow)}
            kept = _void(landed, {place for place, answer in placed if isinstance(answer, REFUSALS)})
        except REFUSALS as error:  # raised for PUTs that are stored together: nothing is recorded
            if _void(landed, given_up):
                raise not_voided(error) from error
            raise
        finally:
            # 4. Report the copies without a row to the lander.
            landed.settle(given_up)
        kill_point("put.recorded")
        return [
            not_voided(answer) if isinstance(answer, NosError) and place in kept else answer
            for place, answer in zip(places, answers, strict=True)
        ]

    def _land(self, puts: Sequence[Put], *, together: bool) -> LandedBatch:
        copies = [NewCopy(new.key, data, new.crc32c, new.attributes, new.put_ms) for new, data in puts]
        try:
            landed = self.lander.land(copies)
        except Transient as error:
            if together:
                raise
            return _NotLanded(_each(error, len(copies)))
        kill_point("put.landed")
        return landed

    def _record(
        self, new: Sequence[NewObject], places: Sequence[LandingId | NosError], *, together: bool
    ) -> list[ObjectRow | NosError]:
        landed: dict[int, NewObject] = {}
        answers: dict[int, ObjectRow | NosError] = {}
        for index, (one, place) in enumerate(zip(new, places, strict=True)):
            if not isinstance(place, NosError):
                # `replace` takes several times as long, and this runs for every PUT.
                landed[index] = NewObject(one.request, one.size, one.crc32c, one.md5, place, one.due_ms, one.put_ms)
            elif together:
                raise place
            else:
                answers[index] = place
        if landed:
            answers |= zip(landed, self._record_landed(list(landed.values()), together=together), strict=True)
        return [answers[index] for index in range(len(new))]

    def _record_landed(self, new: Sequence[NewObject], *, together: bool) -> Sequence[ObjectRow | NosError]:
        try:
            return self._metadata.record_puts(new, self._clock.now_ms(), together=together)
        except Transient as error:
            if together:
                raise
            return _each(error, len(new))
        finally:
            self._locations.forget_rows(one.key for one in new)


def _refused(puts: Sequence[Put], current: Mapping[ObjectKey, ObjectRow]) -> dict[int, NosError]:
    """Return the errors of the PUTs whose condition does not hold at present, by index. If an earlier PUT of the batch
    has the same key, the condition is judged only in the transaction."""
    refused: dict[int, NosError] = {}
    stored = set[ObjectKey]()
    for index, (new, _) in enumerate(puts):
        if new.condition is not None and new.key not in stored:
            row = current.get(new.key)
            refusal = new.condition.refusal(new.key, None if row is None else row.tag)
            if refusal is not None:
                refused[index] = refusal
                continue
        stored.add(new.key)
    return refused


def _void(landed: LandedBatch, refused: Collection[LandingId]) -> Collection[LandingId]:
    """Make the refused copies void. Returns the copies for which this failed."""
    if not refused:
        return ()
    kill_point("put.refused")
    kept = landed.void(refused)
    kill_point("put.voided")
    return kept


def _each(error: Transient, count: int) -> list[NosError]:
    """Return one copy of the error per object, because several threads will raise it."""
    errors = [error, *(copy(error) for _ in range(1, count))]
    for other in errors[1:]:
        other.__cause__ = error.__cause__
    return list(errors)


@dataclass(frozen=True, slots=True)
class _NotLanded:
    """The outcome of a batch without a copy that landed."""

    outcomes: Sequence[NosError]

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:  # noqa: ARG002
        """Return none, because nothing has landed."""
        return []

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Do nothing."""
