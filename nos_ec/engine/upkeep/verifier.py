"""Reads packed objects back and compares them with the CRCs of their rows.

Several blocks are read at once. A block that does not answer does not delay the others: its read is abandoned (see
read_threads.py), and the block is not read again for a while.

9  at most READS_MAX reads of READ_BYTES_MAX bytes are in progress, plus as many abandoned ones as ReadThreads allows
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from nos_ec.core.errors import Corrupt, NosError, NotFound, Transient
from nos_ec.core.ids import BlockId, Extent
from nos_ec.engine.packable import crc_checked
from nos_ec.engine.read_threads import ReadThreads, TimedRead, read_all
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, Clock, waits
from nos_ec.ports.metadata import ObjectRow

READS_MAX = 4
READ_BYTES_MAX = 4 << 20
READ_EXTENTS_MAX = 1024
"""The most bytes and extents of one read. A longer extent is read alone."""
LATE_S, LATE_S_AFTER_FAILURE = 5.0, 1.0
"""How long a read may take before it is abandoned: the second while some blocks are known not to answer, otherwise the
first. No client waits for the reaper, so it can be patient."""
AWAY_MS = 60_000
"""How long a block that did not answer is not read again."""


class PackedObject(NamedTuple):
    """An object to verify: its row and the extent in the row."""

    row: ObjectRow
    extent: Extent


Outcome = NosError | None
"""None if the bytes match, Corrupt if they do not, NotFound if their block is gone, any other error if that is
unknown."""


class _Slice(NamedTuple):
    """Objects of one block that are read together, with their indexes in the caller's list."""

    block_id: BlockId
    objects: list[tuple[int, PackedObject]]
    size: int


class Verifier:
    """Verifies packed objects. Used by one thread."""

    def __init__(self, blocks: BlockStore, threads: ReadThreads, clock: Clock) -> None:
        self._blocks = blocks
        self._threads = threads
        self._clock = clock
        self._away: dict[BlockId, tuple[int, Transient]] = {}
        """Blocks that did not answer: until when they are not read, and the error."""

    def verify(self, objects: Sequence[PackedObject], beat: Beat) -> list[Outcome]:
        """Verify objects, and return the outcome of each. `beat` is called before each round of reads."""
        now_ms = self._clock.now_ms()
        self._away = {block: one for block, one in self._away.items() if waits(one[0], now_ms, AWAY_MS)}
        outcomes: list[Outcome] = [None] * len(objects)
        queue = deque(_slices(objects))
        while queue:
            turn: list[deque[_Slice]] = []
            while queue and len(turn) < min(READS_MAX, self._threads.slots):
                slices = queue.popleft()
                if not self._refuse(slices, outcomes):
                    turn.append(slices)
            beat(0)
            self._read_turn([slices.popleft() for slices in turn], outcomes)
            queue.extend(slices for slices in turn if slices)
        return outcomes

    def _refuse(self, slices: Iterable[_Slice], outcomes: list[Outcome]) -> bool:
        """Return whether the block of these slices is not read now. If so, set the outcomes of their objects."""
        some = list(slices)
        away = self._away.get(some[0].block_id)
        if away is None:
            return False
        for number in (number for one in some for number, _ in one.objects):
            outcomes[number] = away[1]
        return True

    def _read_turn(self, turn: Sequence[_Slice], outcomes: list[Outcome]) -> None:
        """Read slices of different blocks at the same time."""
        reads = [TimedRead(partial(self._read, one), one.size, partial(_late, one)) for one in turn]
        for one, found in zip(turn, read_all(self._threads, reads), strict=True):
            for (number, _), outcome in zip(one.objects, found, strict=True):
                outcomes[number] = outcome
            away = next((outcome for outcome in found if isinstance(outcome, Transient)), None)
            if away is not None:
                self._away[one.block_id] = (self._clock.now_ms() + AWAY_MS, away)

    def _read(self, some: _Slice) -> tuple[list[Outcome], bool]:
        found = self._verify([one for _, one in some.objects])
        return found, any(isinstance(outcome, Transient) for outcome in found)

    def _verify(self, objects: Sequence[PackedObject]) -> list[Outcome]:
        block_id = objects[0].extent.block_id
        try:
            found = self._blocks.read_many(block_id, [(one.extent.offset, one.extent.length) for one in objects])
        except (NotFound, Transient) as error:
            return [error] * len(objects)
        except Corrupt as error:
            # One bad extent fails the whole read: read each alone to find the bad ones.
            return [error] if len(objects) == 1 else [self._verify([one])[0] for one in objects]
        return [_mismatch(one.row, data) for one, data in zip(objects, found, strict=True)]


def _slices(objects: Sequence[PackedObject]) -> list[deque[_Slice]]:
    """Return the objects of each block in order of offset, divided into reads of a limited size."""
    by_block: dict[BlockId, deque[_Slice]] = {}
    for number in sorted(range(len(objects)), key=lambda number: objects[number].extent):
        one = objects[number]
        block_id, length = one.extent.block_id, one.extent.length
        slices = by_block.setdefault(block_id, deque())
        last = slices[-1] if slices else None
        if last is None or last.size + length > READ_BYTES_MAX or len(last.objects) == READ_EXTENTS_MAX:
            slices.append(_Slice(block_id, [(number, one)], length))
        else:
            last.objects.append((number, one))
            slices[-1] = last._replace(size=last.size + length)
    return list(by_block.values())


def _late(some: _Slice, seconds: float) -> list[Outcome]:
    error = Transient(f"block {some.block_id.hex()}: no answer within {seconds:.2g} s", block_id=some.block_id)
    return [error] * len(some.objects)


def _mismatch(row: ObjectRow, data: bytes) -> Corrupt | None:
    try:
        crc_checked(data, row.size, row.crc32c, row.key, f"packed bytes of {row.key} v{row.version}")
    except Corrupt as error:
        return error
    return None
