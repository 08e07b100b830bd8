"""Decides which PUTs bypass the landing log: large ones, empty ones, all of them while it has no room, and the first
one of a process if it comes alone.

A log costs its process a lease and a segment. A process that PUTs one object and ends would pay for them, and leave a
segment with one record behind. So the log is opened for the second batch, or for a first one of several objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.core.ids import LandingId
from nos_ec.engine.landing.lander import LandedBatch, Lander, NewCopy


class LogBypass:
    """A `Lander` over the log and the landing store. Safe to call from several threads.

    bypass_bytes: objects of this size or more go to the store: in a batch they cost what they cost alone.
    """

    def __init__(self, log: Lander, store: Lander, bypass_bytes: int) -> None:
        self.log = log
        self._store = store
        self._bypass_bytes = bypass_bytes
        self._numbers = count()
        """Of the batches, from 0."""
        self._pool = ThreadPoolExecutor(max(log.batches_max, store.batches_max), thread_name_prefix="log-bypass")
        self.passed_full = 0
        """PUTs that bypassed it because it had no room."""

    @property
    def batches_max(self) -> int:
        """Those of the log, or as many as the store wants, as a batch may be for it."""
        return max(self.log.batches_max, self._store.batches_max)

    @property
    def batch_bytes_max(self) -> int:
        """That of the log."""
        return self.log.batch_bytes_max

    @property
    def batch_objects_max(self) -> int:
        """That of the log."""
        return self.log.batch_objects_max

    def land(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Land each copy where it belongs, in both places at once. Raises NoSpace or Transient when nothing landed."""
        if next(self._numbers) == 0 and len(batch) == 1:
            return self._land_first(batch)
        by = [index for index, copy in enumerate(batch) if self._bypasses(copy)]
        if not by:
            return self._land_in_log(batch)
        if len(by) == len(batch):
            return self._store.land(batch)
        passing = frozenset(by)
        rest = [index for index in range(len(batch)) if index not in passing]
        under_way = self._pool.submit(self._store.land, [batch[index] for index in by])
        parts: list[tuple[list[int], LandedBatch | NosError]] = []
        try:
            parts.append((rest, _outcome(self._land_in_log, [batch[index] for index in rest])))
            parts.append((by, _result(under_way)))
        except BaseException:
            for _, part in parts:
                _give_up(part)
            under_way.add_done_callback(_give_up_result)
            raise
        return _BothLanded(len(batch), parts)

    def close(self) -> None:
        """End its threads. No PUT may be under way."""
        self._pool.shutdown()

    def _bypasses(self, copy: NewCopy) -> bool:
        """Large objects bypass the log, and empty ones, whose records would keep their segments for EMPTY_COPY_MS."""
        return not copy.data or len(copy.data) >= self._bypass_bytes

    def _land_first(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Land the object of a process that may never PUT another one. The log may have room when the store has not."""
        landed = self._store.land(batch)
        if self._bypasses(batch[0]) or not isinstance(landed.outcomes[0], NoSpace):
            return landed
        landed.settle(())
        return self._land_in_log(batch)

    def _land_in_log(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """What the log has no room for goes to the store."""
        try:
            landed = self.log.land(batch)
        except NoSpace:
            self.passed_full += len(batch)
            return self._store.land(batch)
        refused = [index for index, outcome in enumerate(landed.outcomes) if isinstance(outcome, NoSpace)]
        if not refused:
            return landed
        self.passed_full += len(refused)
        try:
            rest = _outcome(self._store.land, [batch[index] for index in refused])
        except BaseException:
            _give_up(landed)
            raise
        return _BothLanded(len(batch), [(range(len(batch)), landed), (refused, rest)])


class _BothLanded:
    """A batch of which each place has a part: the indexes of the copies that it was to land. The last part that names
    an index counts for it. Raises the error of the first part when nothing landed."""

    def __init__(self, size: int, parts: Sequence[tuple[Sequence[int], LandedBatch | NosError]]) -> None:
        errors = [part for _, part in parts if isinstance(part, NosError)]
        if len(errors) == len(parts):
            raise errors[0]
        found: dict[int, LandingId | NosError] = {}
        for indexes, part in parts:
            of_part = [part] * len(indexes) if isinstance(part, NosError) else part.outcomes
            found |= zip(indexes, of_part, strict=True)
        self._outcomes = [found[index] for index in range(size)]
        self._landed = [part for _, part in parts if not isinstance(part, NosError)]

    @property
    def outcomes(self) -> Sequence[LandingId | NosError]:
        """For each copy its landing id, or why it did not land."""
        return self._outcomes

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:
        """Make the refused PUTs of each part void."""
        return [landing_id for part in self._landed for landing_id in part.void(refused)]

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Settle each part with its own ids."""
        for part in self._landed:
            own = {outcome for outcome in part.outcomes if not isinstance(outcome, NosError)}
            part.settle([landing_id for landing_id in not_recorded if landing_id in own])


def _outcome(land: Callable[[Sequence[NewCopy]], LandedBatch], batch: Sequence[NewCopy]) -> LandedBatch | NosError:
    try:
        return land(batch)
    except NosError as error:
        return error


def _result(under_way: Future[LandedBatch]) -> LandedBatch | NosError:
    try:
        return under_way.result()
    except NosError as error:
        return error


def _give_up_result(done: Future[LandedBatch]) -> None:
    if not done.cancelled() and done.exception() is None:
        _give_up(done.result())


def _give_up(part: LandedBatch | NosError) -> None:
    """The caller never learns what has landed, so nothing of it is recorded."""
    if not isinstance(part, NosError):
        part.settle([outcome for outcome in part.outcomes if not isinstance(outcome, NosError)])
