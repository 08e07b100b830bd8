"""Reads the headers and rows of the next victims while survivors of earlier ones are written.

9  the rows of `header_blocks` blocks are in memory
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.gc.victims import BlockDecision, decide
from nos_ec.ports.metadata import BlockRow, Placed

Decided = tuple[BlockDecision, list[Placed]]


class ReadAhead:
    """Reads blocks ahead and returns their live objects in the order of the blocks. A context manager: leaving it
    cancels the reads that have not begun and waits for the others."""

    def __init__(self, run: RunContext, blocks: Sequence[BlockRow]) -> None:
        self._run = run
        self._left: Iterator[BlockRow] = iter(blocks)
        self._pool = ThreadPoolExecutor(run.options.header_blocks, thread_name_prefix="gc-headers")
        self._begun: deque[Future[Decided]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def next_block(self) -> Decided:
        """Return the live objects of the next block. Raises Transient if that block cannot be read; the next call
        returns the block after it."""
        self._begin_reads()
        return self._begun.popleft().result()

    def _begin_reads(self) -> None:
        while len(self._begun) < self._run.options.header_blocks:
            block = next(self._left, None)
            if block is None:
                return
            self._begun.append(self._pool.submit(decide, self._run.metadata, self._run.blocks, block))
