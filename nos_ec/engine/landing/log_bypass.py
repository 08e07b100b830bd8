"""Decides which PUTs bypass the landing log: large and empty ones, all of them while the log is full, and the first one
of a process if it comes alone.

A log costs its process a lease and a segment. A process that PUTs one object and ends would pay for them, and leave a
segment with one record. So the log is opened for the second batch, or for a first one of several objects.
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

    Objects of `bypass_bytes` or more go to the store: a batch would not make them cheaper.
    """

    def __init__(self, log: Lander, store: Lander, bypass_bytes: int) -> None:
        self.log = log
        self._store = store
        self._bypass_bytes = bypass_bytes
        self._numbers = count()
        """Numbers the batches, from 0."""
        self._pool = ThreadPoolExecutor(max(log.batches_max, store.batches_max), thread_name_prefix="log-bypass")
        self.passed_full = 0
        """PUTs that bypassed the log because it was full."""

    @property
    def batches_max(self) -> int:
        """Return the larger limit of the two: a batch may go to the log or to the store."""
        return max(self.log.batches_max, self._store.batches_max)

    @property
    def batch_bytes_max(self) -> int:
        """Return the limit of the log, in bytes."""
        return self.log.batch_bytes_max

    @property
    def batch_objects_max(self) -> int:
        """Return the limit of the log."""
        return self.log.batch_objects_max

    def land(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Land each copy where it belongs, in both places at once. Raise NoSpace or Transient if no copy landed."""
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
        """End the threads. No PUT may be under way."""
        self._pool.shutdown()

    def _bypasses(self, copy: NewCopy) -> bool:
        """Return whether a copy bypasses the log: large ones do, and empty ones, whose records would keep their
        segments for EMPTY_COPY_MS."""
        return not copy.data or len(copy.data) >= self._bypass_bytes

    def _land_first(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Land the object of a process that may never PUT another one. If the store is full, the log may still have
        space."""
        landed = self._store.land(batch)
        if self._bypasses(batch[0]) or not isinstance(landed.outcomes[0], NoSpace):
            return landed
        landed.settle(())
        return self._land_in_log(batch)

    def _land_in_log(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Land a batch in the log. Copies for which the log is full go to the store."""
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
    """The outcome of a batch that was divided between log and store. Each part lists the indexes of its copies; if an
    index is in several parts, the last one counts. Raises the error of the first part if no copy landed."""

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
        """Return for each copy its landing id, or the error that kept it from landing."""
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
    """Settle a part whose outcome the caller will never learn, so that nothing of it is recorded."""
    if not isinstance(part, NosError):
        part.settle([outcome for outcome in part.outcomes if not isinstance(outcome, NosError)])
