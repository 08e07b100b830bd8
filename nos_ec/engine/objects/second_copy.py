"""Finds the second copy of a packed object: its landing copy, which exists until the reaper deletes it."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.ids import LandingId, record_ids_between, timed_ids_between
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import LandingQueue, ObjectRow

_PUT_MS_USUAL = 2_000
"""Nearly every PUT is recorded within this time after its landing id was made. The search also allows this much in the
other direction, for a clock that was set back during the PUT."""


def copy_ranges(row: ObjectRow, put_ms_max: int) -> Iterator[tuple[LandingId, LandingId]]:
    """Yield the ranges of ids, ends included, that may contain the copy of this version, the likeliest first."""
    last_ms = row.created_ms + _PUT_MS_USUAL
    for first, last in (
        # In the landing store, if the PUT took the usual time.
        timed_ids_between(row.created_ms - _PUT_MS_USUAL, last_ms),
        # In the landing log, in a segment that was opened at any time before.
        record_ids_between(0, last_ms),
        # In the landing store, if the PUT took as long as it may.
        timed_ids_between(row.created_ms - max(_PUT_MS_USUAL, put_ms_max), last_ms),
    ):
        yield LandingId(first), LandingId(last)


class SecondCopies:
    """Finds and reads second copies. put_ms_max: the longest duration of a PUT in milliseconds.

    A row does not name the copy that it came from. But the id of a copy in the landing store begins with the time when
    it was created, which is the time of the row minus the duration of the PUT. The id of a record in the landing log
    begins with the time when its segment was opened. That may be much earlier, because a segment that is prepared in
    advance stays OPEN until a PUT uses it. So the search covers every segment that was open at the time of the PUT;
    there are few. A record that was copied to a later segment is not found; it can be read again once the reaper points
    the row back to it.
    """

    def __init__(self, metadata: LandingQueue, landing: LandingStore, put_ms_max: int) -> None:
        self._metadata = metadata
        self._landing = landing
        self._put_ms_max = put_ms_max

    def read(self, row: ObjectRow) -> bytes | None:
        """Return the checked bytes of this version, or None when its copy is gone or damaged.

        Takes one or two look-ups in the metadata, rarely three. Raises Transient.
        """
        landing_id = self.find(row)
        return None if landing_id is None else self._read(row, landing_id)

    def find(self, row: ObjectRow) -> LandingId | None:
        """Return the id of the queued copy of this version without reading it; None if there is none. Raises
        Transient."""
        for first, last in copy_ranges(row, self._put_ms_max):
            landing_id = self._metadata.queued_copy(row, first, last)
            if landing_id is not None:
                return landing_id
        return None

    def _read(self, row: ObjectRow, landing_id: LandingId) -> bytes | None:
        try:
            return crc_checked(
                self._landing.read(landing_id), row.size, row.crc32c, row.key, f"landing copy of {row.key}"
            )
        except (Corrupt, NotFound):
            return None
