"""Reads from many blocks, several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from nos_ec.core.ids import BlockId

READS_AT_A_TIME = 8

_T = TypeVar("_T")


def prefetched(look: Callable[[BlockId], _T], block_ids: Iterable[BlockId]) -> Iterator[tuple[BlockId, _T]]:
    """Yield each block with the result of `look`, in order. Calls `look` in READS_AT_A_TIME threads, and raises what it
    raises."""
    waiting = deque[tuple[BlockId, Future[_T]]]()
    with ThreadPoolExecutor(READS_AT_A_TIME) as pool:
        for block_id in block_ids:
            waiting.append((block_id, pool.submit(look, block_id)))
            if len(waiting) == READS_AT_A_TIME:
                block, future = waiting.popleft()
                yield block, future.result()
        for block, future in waiting:
            yield block, future.result()
