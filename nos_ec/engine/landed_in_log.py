"""What became of a batch that was given to the landing log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nos_ec.core.errors import Conflict, NosError, Transient
from nos_ec.core.ids import LandingId
from nos_ec.engine.log_segment import LogSegment


class LandedInLog:
    """A `LandedBatch` of the log.

    settle: takes the segments, each as often as a batch was appended to it, and whether a PUT of the batch was
    acknowledged. copies: number of copies in the batch.
    """

    def __init__(self, settle: Callable[[Sequence[LogSegment], bool], None], copies: int) -> None:
        self._settle = settle
        self._outcomes: list[LandingId | NosError] = [Transient("not landed")] * copies
        self.segments: list[LogSegment] = []
        """One for each append, until it is settled."""

    @property
    def outcomes(self) -> Sequence[LandingId | NosError]:
        """For each copy its landing id, or why it did not land."""
        return self._outcomes

    def add(self, indexes: Sequence[int], segment: LogSegment, ids: Sequence[LandingId]) -> None:
        """Note where these copies have landed."""
        for index, landing_id in zip(indexes, ids, strict=True):
            self._outcomes[index] = landing_id
        self.segments.append(segment)

    def refused(self, indexes: Sequence[int], error: NosError) -> None:
        """Note why these copies have not landed."""
        for index in indexes:
            self._outcomes[index] = error

    def first_error(self) -> NosError:
        """Why the first copy that did not land did not."""
        return next(outcome for outcome in self._outcomes if isinstance(outcome, NosError))

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Let the segments be sealed. The log has nothing to undo for what was not recorded: its bytes are given back
        with the segment."""
        segments, self.segments = self.segments, []
        given_up = set(not_recorded)
        acknowledged = any(not isinstance(outcome, NosError) and outcome not in given_up for outcome in self._outcomes)
        self._settle(segments, acknowledged)


def as_transient(error: NosError) -> NosError:
    """The error as a Lander raises it: what concerns one segment or lease may work in another one."""
    return Transient(str(error)) if isinstance(error, Conflict) else error
