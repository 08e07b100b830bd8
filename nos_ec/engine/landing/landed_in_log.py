"""The outcome of a batch that was landed in the landing log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import structlog

from nos_ec.core.errors import Conflict, NosError, NotFound, Transient
from nos_ec.core.formats.landing_format import NewRecord, voiding
from nos_ec.core.ids import LandingId, segment_of
from nos_ec.engine.landing.log_segment import LogSegment
from nos_ec.ports.segment_medium import SegmentMedium

_log = structlog.get_logger(__name__)


class LandedInLog:
    """A `LandedBatch` of the log.

    It calls `settle` with the segments, each as often as a batch was appended to it; whether a PUT of the batch was
    acknowledged; and whether some of its records were not recorded and are not void. `records` holds the records of the
    batch.
    """

    def __init__(
        self,
        settle: Callable[[Sequence[LogSegment], bool, bool], None],
        records: Sequence[NewRecord],
        medium: SegmentMedium,
    ) -> None:
        self._settle = settle
        self._records = records
        self._medium = medium
        self._outcomes: list[LandingId | NosError] = [Transient("not landed")] * len(records)
        self._landed_twice: set[LandingId] = set()
        """Records whose earlier append failed, but may have written them as well."""
        self._void: set[LandingId] = set()
        self.segments: list[LogSegment] = []
        """One entry for each append, until it is settled."""

    @property
    def outcomes(self) -> Sequence[LandingId | NosError]:
        """Return for each copy its landing id, or the error that kept it from landing."""
        return self._outcomes

    def add_landed(self, indexes: Sequence[int], segment: LogSegment, ids: Sequence[LandingId], *, again: bool) -> None:
        """Note where these copies have landed. `again`: an earlier append of them failed, with an unknown outcome."""
        for index, landing_id in zip(indexes, ids, strict=True):
            self._outcomes[index] = landing_id
        self.segments.append(segment)
        if again:
            self._landed_twice.update(ids)

    def add_refused(self, indexes: Sequence[int], error: NosError) -> None:
        """Note why these copies have not landed."""
        for index in indexes:
            self._outcomes[index] = error

    def first_error(self) -> NosError:
        """Return the error of the first copy that did not land."""
        return next(outcome for outcome in self._outcomes if isinstance(outcome, NosError))

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:
        """Make the records of these PUTs void. Records that a failed append may have written are made void when their
        segment is sealed, which is too late for the answers, so their ids are returned."""
        return [
            outcome
            for outcome, record in zip(self._outcomes, self._records, strict=True)
            if not isinstance(outcome, NosError) and outcome in refused and not self._is_made_void(outcome, record)
        ]

    def _is_made_void(self, landing_id: LandingId, record: NewRecord) -> bool:
        try:
            self._medium.overwrite(segment_of(landing_id), *voiding(landing_id, len(record.data), record.names))
        except NotFound:
            pass  # the segment was released, and the record with it
        except NosError as error:
            _log.warning("record of a refused PUT not voided", record=landing_id.hex(), error=str(error))
            return False
        self._void.add(landing_id)
        return landing_id not in self._landed_twice

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Allow the segments to be sealed. Records without a row are freed with their segment."""
        segments, self.segments = self.segments, []
        given_up = set(not_recorded)
        acknowledged = any(not isinstance(outcome, NosError) and outcome not in given_up for outcome in self._outcomes)
        self._settle(segments, acknowledged, not given_up <= self._void)


def as_transient(error: NosError) -> NosError:
    """Return the error as a Lander raises it: a conflict about one segment or lease may not occur with another one."""
    return Transient(str(error)) if isinstance(error, Conflict) else error
