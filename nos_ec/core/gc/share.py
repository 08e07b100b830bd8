"""Which blocks of a store belong to which GC worker. Pure.

Several workers may collect in a store at the same time. Each block belongs to one of them, by the last bytes of its id,
which are random. So no worker has to know about the others, and the metadata can select the blocks of one worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.ids import BlockId

WORKERS_MAX = 16
"""The most GC workers of a store."""
TAIL_BYTES = 2
"""How many bytes at the end of a block id decide. They divide the blocks of 16 workers evenly to 0.03 %."""
_TAILS = 1 << 8 * TAIL_BYTES
_AFTER_ALL = b"\xff" * (TAIL_BYTES + 1)
"""Sorts after all tails."""


@dataclass(frozen=True, slots=True)
class Share:
    """The blocks of one worker. Workers have the numbers 0 to workers - 1."""

    worker: int
    workers: int

    @property
    def is_whole(self) -> bool:
        """Return whether all blocks belong to this worker."""
        return self.workers == 1

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """Return the first tail of a block id in this share, and the end: the share has the tails from the first up to,
        but not including, the end. Bytes compare as in SQL."""
        return _tail_at(self.worker, self.workers), _tail_at(self.worker + 1, self.workers)

    def owns(self, block_id: BlockId) -> bool:
        """Return whether a block belongs to this worker."""
        first, end = self.bounds
        return first <= block_id[-TAIL_BYTES:] < end


WHOLE = Share(0, 1)
"""The share of the only worker of a store."""


def owner(block_id: BlockId, workers: int) -> int:
    """Return the number of the worker to which a block belongs in a store with this many workers."""
    return next(worker for worker in range(workers) if Share(worker, workers).owns(block_id))


def _tail_at(worker: int, workers: int) -> bytes:
    tail = -(-worker * _TAILS // workers)
    return tail.to_bytes(TAIL_BYTES) if tail < _TAILS else _AFTER_ALL
