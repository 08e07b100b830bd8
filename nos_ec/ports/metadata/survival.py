"""The lifetimes of objects: the survival table of core/packing/lifetimes.py, and the rows that it is counted from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.lifetimes import Counts
from nos_ec.ports.metadata.objects import ObjectRow

SURVIVAL_ROWS_MAX = 20_000
"""The maximum number of rows of the table; while it is reached, new buckets are not counted. A survey keeps the table
far smaller."""

Died = Callable[[Sequence[ObjectRow], int], object]
"""A callback that takes versions whose bytes became dead, as their rows were before, and the time in Unix
milliseconds."""


class SurvivalRow(NamedTuple):
    """The counts of one bucket, or of OTHERS, decayed to the time counted_ms."""

    bucket: str
    counted_ms: int
    counts: Counts


class LivingObject(NamedTuple):
    """A version that takes space, in the trash or not. `created_ms` is the time of its PUT. `size` is that of its row:
    of a composed object, only its manifest; its parts are rows of their own."""

    key: ObjectKey
    created_ms: int
    size: int


class Survival(Protocol):
    """The survival table. See the package docstring, with one exception: repeating a call with an unknown outcome may
    count twice. Only the choice of blocks for objects depends on the counts. Safe to call from several threads."""

    def watch_deaths(self, died: Died | None) -> None:
        """Call `died` after each transaction of this object that deleted or overwrote versions, or removed them from
        the trash. It runs on the thread that made the call, and must not raise. None: make no such calls."""

    def survival(self) -> list[SurvivalRow]:
        """Return the whole table. A damaged row is logged and left out."""

    def count_deaths(self, counts: Mapping[str, Counts], now_ms: int) -> None:
        """Add these counts to the counts of their buckets. The number of statements does not depend on the number of
        buckets. Counts of OTHERS are dropped before the first survey."""

    def count_survey(
        self, counts: Mapping[str, Counts], previous_ms: int | None, now_ms: int, folded: Collection[str] = ()
    ) -> bool:
        """Add counts as `count_deaths` does, if the last survey is still the one of `previous_ms` (None: there was
        none). Returns whether it is; if several processes survey at once, only one gets True. The row of OTHERS keeps
        the time of the survey.

        The counts of the buckets in `folded` are added to OTHERS, and the rows of these buckets are removed.
        """

    def last_object_id(self) -> int:
        """Return the highest object id of all rows; 0 without any. Looks at one row."""

    def living_between(self, first: int, last: int) -> list[LivingObject]:
        """Return the versions that take space and have object ids from `first` to `last`. Reads only these rows."""
