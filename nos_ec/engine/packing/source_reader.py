"""Reads the bytes of the objects to pack.

A landing copy that does not answer counts as unread, so that it does not delay a plan for long (read_threads.py defines
after how long), unless its packable is `patient`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from nos_ec.core.errors import Corrupt, NosError, Transient
from nos_ec.core.ids import BlockId, Extent, LandingId, SegmentId, in_log, segment_of
from nos_ec.engine.packable import Packable, crc_checked
from nos_ec.engine.read_threads import ReadThreads, TimedRead, read_all
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore

_EXTENTS_PER_READ_MAX = 32
"""The most extents of one block per `read_many`. This limits how much must be read again after a failure."""

_Outcome = bytes | NosError
_Outcomes = list[tuple[int, _Outcome]]
"""Outcomes of reads, each with the index of its packable."""


class Records(Protocol):
    """Reads records of the landing log for `SourceReader`."""

    def read_records(self, wanted: Sequence[tuple[LandingId, int]]) -> Sequence[bytes | NosError]:
        """Return, for each (id, size), the data of the record, or the error of reading it."""


class SourceReader:
    """Reads the bytes of packables concurrently and checks size and CRC of each. Safe to share between threads.

    `records` reads records of the landing log; without it, records are read like copies, one at a time.
    """

    def __init__(
        self, landing: LandingStore, blocks: BlockStore, threads: ReadThreads, records: Records | None = None
    ) -> None:
        self._landing = landing
        self._blocks = blocks
        self._threads = threads
        self._records = records

    def read(self, packables: Sequence[Packable], grace_s: float = 0.0) -> list[bytes | NosError]:
        """Return, for each packable, its bytes or the error of reading them. Never raises a NosError. No read
        is abandoned during the first `grace_s` seconds."""
        results: list[_Outcome | None] = [None] * len(packables)
        for outcomes in read_all(self._threads, self._reads_of(packables), grace_s):
            for index, outcome in outcomes:
                results[index] = outcome
        return [outcome for outcome in results if outcome is not None]

    def read_one(self, packable: Packable) -> bytes | NosError:
        """Like `read` for one packable, in the caller's thread. Waits up to the store's own time limit."""
        source = packable.source
        try:
            if isinstance(source, Extent):
                data = self._blocks.read(source.block_id, source.offset, source.length)
            else:
                # The size is known, so one operation is enough. A long copy of unknown size would take more.
                data = self._landing.read_range(source, 0, packable.size)
        except NosError as error:
            return error
        return _checked(packable, data)

    def _reads_of(self, packables: Sequence[Packable]) -> list[TimedRead[_Outcomes]]:
        """Return one read per landing copy. Extents of one block are read together, and so are records of one landing
        segment. A segment that does not answer delays no other one, and only its records count as unread."""
        by_block: dict[BlockId, list[int]] = {}
        by_segment: dict[SegmentId, list[int]] = {}
        reads: list[TimedRead[_Outcomes]] = []
        for index, packable in enumerate(packables):
            source = packable.source
            if isinstance(source, Extent):
                by_block.setdefault(source.block_id, []).append(index)
            elif self._records is not None and in_log(source):
                by_segment.setdefault(segment_of(source), []).append(index)
            else:
                late = None if packable.patient else partial(_late, [index])
                reads.append(TimedRead(partial(self._read_landed, packable, index), packable.size, late))
        for indexes in by_segment.values():
            size = sum([packables[i].size for i in indexes])
            late = None if any(packables[i].patient for i in indexes) else partial(_late, indexes)
            reads.append(TimedRead(partial(self._read_records, packables, indexes), size, late))
        for block_id, indexes in by_block.items():
            slices = _sliced(indexes, _EXTENTS_PER_READ_MAX)
            reads.extend(TimedRead(partial(self._read_extents, packables, block_id, some), 0, None) for some in slices)
        return reads

    def _read_landed(self, packable: Packable, index: int) -> tuple[_Outcomes, bool]:
        outcome = self.read_one(packable)
        return [(index, outcome)], isinstance(outcome, Transient)

    def _read_records(self, packables: Sequence[Packable], indexes: list[int]) -> tuple[_Outcomes, bool]:
        assert self._records is not None
        wanted = [(p.source, p.size) for p in (packables[i] for i in indexes) if not isinstance(p.source, Extent)]
        outcomes = [
            (i, found if isinstance(found, NosError) else _checked(packables[i], found))
            for i, found in zip(indexes, self._records.read_records(wanted), strict=True)
        ]
        return outcomes, any(isinstance(outcome, Transient) for _, outcome in outcomes)

    def _read_extents(
        self, packables: Sequence[Packable], block_id: BlockId, indexes: list[int]
    ) -> tuple[_Outcomes, bool]:
        """Read extents of one block. Always report the read as failed, so that it does not count in the mean read time
        of landing copies."""
        if len(indexes) > 1:
            extents = [p.source for p in (packables[i] for i in indexes) if isinstance(p.source, Extent)]
            try:
                found = self._blocks.read_many(block_id, [(extent.offset, extent.length) for extent in extents])
                return [(i, _checked(packables[i], data)) for i, data in zip(indexes, found, strict=True)], True
            except Transient as error:
                return [(i, error) for i in indexes], True  # the block does not answer: do not retry each extent
            except NosError:
                pass  # one bad extent fails them all: read each on its own to find out which
        return [(i, self.read_one(packables[i])) for i in indexes], True


def _late(indexes: Sequence[int], seconds: float) -> _Outcomes:
    return [(index, Transient(f"landing copy: no answer within {seconds:.2g} s")) for index in indexes]


def _checked(packable: Packable, data: bytes) -> bytes | NosError:
    try:
        return crc_checked(
            data, packable.size, packable.crc32c, packable.key, f"source of {packable.key} v{packable.version}"
        )
    except Corrupt as error:
        return error


def _sliced(indexes: Iterable[int], count: int) -> Iterable[list[int]]:
    iterator = iter(indexes)
    while some := list(islice(iterator, count)):
        yield some
