"""How long objects live: the survival table of core/packing/lifetimes.py, and what it is counted from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.lifetimes import Counts
from nos_ec.ports.metadata.objects import ObjectRow

SURVIVAL_ROWS_MAX = 20_000
"""Rows of the table, at most; buckets that are new then are not counted. A survey keeps it far below."""

Died = Callable[[Sequence[ObjectRow], int], object]
"""Takes versions whose bytes became dead, as they were before, and the time in Unix milliseconds."""


class SurvivalRow(NamedTuple):
    """The counts of one bucket, or of OTHERS, decayed to the time counted_ms."""

    bucket: str
    counted_ms: int
    counts: Counts


class LivingObject(NamedTuple):
    """A version that takes space, in the trash or not. created_ms: when it was PUT."""

    key: ObjectKey
    created_ms: int


class Survival(Protocol):
    """The survival table. See the package docstring, with one exception: a call with an unknown outcome that is made
    again may count twice. Nothing but the choice of blocks for objects depends on the counts. Safe to call from several
    threads."""

    def watch_deaths(self, died: Died | None) -> None:
        """Call `died` after each transaction of this object that deleted or overwrote versions, or removed them from
        the trash. It runs on the thread that made the call, and must not raise. None: call nothing."""
        ...

    def survival(self) -> list[SurvivalRow]:
        """The whole table. A damaged row is logged and left out."""
        ...

    def count_deaths(self, counts: Mapping[str, Counts], now_ms: int) -> None:
        """Add these counts to those of their buckets. The number of statements does not depend on the buckets. Counts
        of OTHERS are dropped before the first survey."""
        ...

    def count_survey(
        self, counts: Mapping[str, Counts], previous_ms: int | None, now_ms: int, folded: Collection[str] = ()
    ) -> bool:
        """As `count_deaths`, if the last survey is still that of `previous_ms` (None: there was none). Returns whether
        it is; of several processes that survey at once, one gets True. The row of OTHERS has its time.

        folded: buckets whose counts are added to those of OTHERS, and which lose their rows.
        """
        ...

    def last_object_id(self) -> int:
        """The highest object id of all rows; 0 without any. Looks at one row."""
        ...

    def living_between(self, first: int, last: int) -> list[LivingObject]:
        """The versions with object ids from `first` to `last` that take space. Reads only these rows."""
        ...
