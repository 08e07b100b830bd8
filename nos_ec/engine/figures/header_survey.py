"""How much of the overhead of blocks is headers and names, and how much is padding.

Rows count both in one figure, because no statement of a commit should be longer for a figure. Headers tell them apart.
So every few hours one daemon reads the headers of some blocks, in places chosen at random, and notes what it found. In
a store with few blocks that is all of them. The parts of a cost (core/gc/raw_cost.py) divide the overhead of the rows
in the same ratio, so that they add up to what the rows count, whatever the sample.

9  a survey reads the headers of at most BLOCKS_MAX blocks, one after the other
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import structlog

from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.ids import BlockId, time_of, timed_id
from nos_ec.engine.header_scan import scan_headers
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import BlockRow, Metadata, Notes

_log = structlog.get_logger(__name__)

HEADERS_NOTE = "headers"
SURVEY_WAIT_MS = 3 * 3_600_000
"""Between two surveys, by whichever process."""
RETRY_WAIT_MS = 600_000
"""After a survey that failed or found nothing, in one process."""
PLACES = 4
BLOCKS_MAX = 32


@dataclass(frozen=True, slots=True)
class HeadersFound:
    """What the last survey found in some blocks: bytes of headers and names, and of all overhead. blocks: how many."""

    at_ms: int
    header_bytes: int
    overhead_bytes: int
    blocks: int

    @property
    def share(self) -> float:
        """The share of overhead that is headers and names."""
        return min(1.0, self.header_bytes / self.overhead_bytes)


def read_headers_found(notes: Notes) -> HeadersFound | None:
    """None before the first survey. Looks up one row. Raises Transient."""
    return _loaded(notes.note(HEADERS_NOTE))


class HeaderSurvey:
    """Surveys headers. Several processes may try; one of them does it. Belongs to one thread."""

    def __init__(self, metadata: Metadata, blocks: BlockStore, clock: Clock, rng: random.Random) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._rng = rng
        self._next_ms = 0

    def run_once(self, beat: Beat = unwatched) -> bool:
        """Survey once, if that is due. Returns whether it was done, by this process. A failure is logged, and ends the
        survey, which is tried again later: nothing but a figure depends on it."""
        now_ms = self._clock.now_ms()
        if waits(self._next_ms, now_ms, SURVEY_WAIT_MS):
            return False
        self._next_ms = now_ms + RETRY_WAIT_MS
        try:
            return self._survey(now_ms, beat)
        except NosError as error:
            _log.warning("the headers of some blocks were not surveyed", error=str(error))
            return False

    def _survey(self, now_ms: int, beat: Beat) -> bool:
        stored = self._metadata.note(HEADERS_NOTE)
        last = _loaded(stored)
        if last is not None and waits(last.at_ms + SURVEY_WAIT_MS, now_ms, SURVEY_WAIT_MS):
            self._next_ms = last.at_ms + SURVEY_WAIT_MS
            return False
        header_bytes = overhead_bytes = blocks = 0
        for row in self._sample():
            beat(0)
            found = self._header_bytes(row)
            if found is not None:
                header_bytes += found
                overhead_bytes += row.overhead_bytes
                blocks += 1
        if not overhead_bytes:
            return False
        self._next_ms = now_ms + SURVEY_WAIT_MS
        new = HeadersFound(now_ms, header_bytes, overhead_bytes, blocks)
        return self._metadata.store_note(HEADERS_NOTE, json.dumps(astuple(new)), stored)

    def _sample(self) -> Iterator[BlockRow]:
        """All blocks if they are few, else some of each of a few times at which blocks were made, which their ids begin
        with. Not those that GC could not read."""
        rows = self._metadata.list_blocks(None, BLOCKS_MAX + 1)
        if len(rows) > BLOCKS_MAX:
            first_ms = time_of(rows[0].block_id)
            last_ms = max(first_ms, self._clock.now_ms())
            rows = rows[: BLOCKS_MAX // PLACES]
            for _ in range(PLACES - 1):
                place = BlockId(timed_id(self._rng.randint(first_ms, last_ms), bytes(10)))
                rows += self._metadata.list_blocks(place, BLOCKS_MAX // PLACES)
        yield from {row.block_id: row for row in rows if row.stripes and not row.gc_failures}.values()

    def _header_bytes(self, row: BlockRow) -> int | None:
        """None for a block that is gone or has a damaged header. Raises Transient."""
        try:
            scan = scan_headers(self._blocks, row.block_id, row.stripes)
        except NotFound:
            return None
        if scan.damaged_stripes:
            return None
        return sum(header.header_length + header.names_length for header in scan.headers)


def _loaded(text: str | None) -> HeadersFound | None:
    """None for a text that cannot be understood."""
    try:
        found = HeadersFound(*json.loads(text or "[]"))
    except (ValueError, TypeError, RecursionError):
        return None
    if any(type(value) is not int or value < 0 for value in astuple(found)) or not found.overhead_bytes:
        return None
    return found
