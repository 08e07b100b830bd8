"""Estimates how much of the overhead of blocks is headers and names, and how much is padding.

Rows count both in one figure, so that a commit does not need longer statements for a mere figure. Headers show the
parts. So every few hours one daemon reads the headers of some random blocks, and stores what it found in a note. In a
store with few blocks it reads all of them. The parts of a cost (core/gc/raw_cost.py) divide the overhead of the rows in
the same ratio, so that they add up to the overhead of the rows, whatever the sample.

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
"""The time between two surveys of any processes."""
RETRY_WAIT_MS = 600_000
"""How long a process waits after a survey that failed or found no overhead."""
PLACES = 4
BLOCKS_MAX = 32


@dataclass(frozen=True, slots=True)
class HeadersFound:
    """The result of the last survey."""

    at_ms: int
    header_bytes: int
    """Bytes of headers and names in the surveyed blocks."""
    overhead_bytes: int
    """All overhead in the surveyed blocks."""
    blocks: int
    """How many blocks were surveyed."""

    @property
    def share(self) -> float:
        """The share of overhead that is headers and names."""
        return min(1.0, self.header_bytes / self.overhead_bytes)


def read_headers_found(notes: Notes) -> HeadersFound | None:
    """Return the result of the last survey, or None before the first. Reads one row. Raises Transient."""
    return _loaded(notes.note(HEADERS_NOTE))


class HeaderSurvey:
    """Surveys headers. If several processes try, one of them does it. Belongs to one thread."""

    def __init__(self, metadata: Metadata, blocks: BlockStore, clock: Clock, rng: random.Random) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._rng = rng
        self._next_ms = 0

    def run_once(self, beat: Beat = unwatched) -> bool:
        """Survey once, if a survey is due. Returns whether this process did it. A failure is logged, and the survey is
        tried again later: only a figure depends on it."""
        now_ms = self._clock.now_ms()
        if waits(self._next_ms, now_ms, SURVEY_WAIT_MS):
            return False
        self._next_ms = now_ms + RETRY_WAIT_MS
        try:
            return self._survey(now_ms, beat)
        except NosError as error:
            _log.warning("survey of headers failed; trying again later", error=str(error))
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
        """Yield all blocks if they are few; otherwise some blocks from the start of the store and from a few random
        times of creation, with which block ids begin. Blocks that GC could not read are left out."""
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
        """Return the bytes of headers and names, or None if the block is gone or has a damaged header. Raises
        Transient."""
        try:
            scan = scan_headers(self._blocks, row.block_id, row.stripes)
        except NotFound:
            return None
        if scan.damaged_stripes:
            return None
        return sum(header.header_length + header.names_length for header in scan.headers)


def _loaded(text: str | None) -> HeadersFound | None:
    """Decode a note. Returns None for a malformed one."""
    try:
        found = HeadersFound(*json.loads(text or "[]"))
    except (ValueError, TypeError, RecursionError):
        return None
    if any(type(value) is not int or value < 0 for value in astuple(found)) or not found.overhead_bytes:
        return None
    return found
