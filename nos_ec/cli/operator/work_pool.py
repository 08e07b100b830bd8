"""Processes that share the work of a command with --processes. They read the store; the command itself writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import chain
from multiprocessing import forkserver
from multiprocessing.util import Finalize
from threading import Event, Thread
from typing import Annotated, Any, Generic, TypeVar

import typer

from nos_ec.cli.terminal.context import log_for_people
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.formats.dump_format import PackedPage, pack_page, page_rows
from nos_ec.engine.check.blocks import BlockLook, BlockLooks, ReadShare
from nos_ec.engine.check.objects import PageLook
from nos_ec.engine.dump.dumper import RANGE_PAGES, object_pages
from nos_ec.engine.dump.rebuild_input import batches
from nos_ec.engine.rate_limit import RateLimit
from nos_ec.engine.scrub.blocks import BlockScrub, FirstLook
from nos_ec.ports.metadata import BlockRow
from nos_ec.settings import Settings

PROCESSES_MAX = 16
AHEAD = 2
"""Pieces of work that wait or run at a time, for each process. So memory is bounded, and no process waits."""
BLOCKS_AT_A_TIME, OBJECTS_AT_A_TIME = 8, 10_000
"""The most blocks in a piece of work, which takes no further block once its blocks hold this many objects. A block of
small objects has tens of thousands, and takes a tenth of a second or more."""

Processes = Annotated[
    int,
    typer.Option(
        "--processes",
        min=1,
        max=PROCESSES_MAX,
        metavar="N",
        help="Share the reading among N processes. The result is the same.",
    ),
]

_S = TypeVar("_S")
_T = TypeVar("_T")
_R = TypeVar("_R")
_IdRange = tuple[int, int]


class WorkPool(Generic[_S]):
    """Runs functions in other processes, each of which opens the store. `work_pool` and `opening_pool` make it."""

    def __init__(self, executor: ProcessPoolExecutor, processes: int) -> None:
        self._executor = executor
        self.processes = processes
        self._at_a_time = AHEAD * processes

    def in_order(self, work: Callable[[_S, _T], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Yield the result of `work` for each item, in order. Raises what `work` raises, and Transient if a process has
        ended."""
        waiting = deque[Future[_R]]()
        try:
            for item in items:
                waiting.append(self._executor.submit(_run, work, item))
                if len(waiting) == self._at_a_time:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise Transient(
                "a process of this command was killed, maybe because memory ran out; run the command again, or with"
                " fewer --processes"
            ) from error


def packed_pages(pool: WorkPool[System], ranges: Iterable[_IdRange]) -> Iterator[PackedPage]:
    """Return the pages of a dump with the objects in these ranges (`dump_pages`)."""
    return chain.from_iterable(pool.in_order(_pack, ranges))


def counted_pages(pool: WorkPool[System], payloads: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    """Return the tables of the pages of a dump, and how many rows they have (`verify_dump`)."""
    return chain.from_iterable(pool.in_order(_count_rows, batches(payloads, RANGE_PAGES)))


class PoolScrub:
    """Looks at blocks in the processes of a pool, each of which reads a part of `bytes_per_s` (0: no limit)."""

    def __init__(self, pool: WorkPool[System], bytes_per_s: int) -> None:
        self._pool = pool
        self._bytes_per_s = bytes_per_s and max(1, bytes_per_s // pool.processes)

    def first_looks(self, rows: Iterable[BlockRow]) -> Iterator[FirstLook]:
        """See Scrubber."""
        return self._pool.in_order(partial(_scrub_block, self._bytes_per_s), rows)


class PoolLooks:
    """Looks in the processes of a pool. See `nos_ec.engine.check.checker.Looks`."""

    def __init__(self, pool: WorkPool[System], read: ReadShare) -> None:
        self._pool = pool
        self._read = read

    def at_blocks(self, rows: Iterable[BlockRow]) -> Iterator[BlockLook]:
        """See Looks."""
        look = partial(_look_at_blocks, self._read)
        return chain.from_iterable(self._pool.in_order(look, block_pieces(rows)))

    def at_objects(self, ranges: Iterable[_IdRange]) -> Iterator[PageLook]:
        """See Looks."""
        return chain.from_iterable(self._pool.in_order(_look_at_objects, ranges))


def block_pieces(rows: Iterable[BlockRow]) -> Iterator[list[BlockRow]]:
    """Divide blocks into pieces of work that take about as long as a range of objects."""
    piece, objects = list[BlockRow](), 0
    for row in rows:
        piece.append(row)
        objects += row.live_objects
        if len(piece) == BLOCKS_AT_A_TIME or objects >= OBJECTS_AT_A_TIME:
            yield piece
            piece, objects = [], 0
    if piece:
        yield piece


def work_pool(settings: Settings, processes: int) -> AbstractContextManager[WorkPool[System] | None]:
    """Start processes that open the store as other commands do. See `opening_pool`."""
    return opening_pool(open_system, settings, processes)


@contextmanager
def opening_pool(
    opens: Callable[[Settings], AbstractContextManager[_S]], settings: Settings, processes: int
) -> Iterator[WorkPool[_S] | None]:
    """Start this many processes, and end them with the block, at once if it raises. Yields None for one process, which
    is this one. `opens`, a function of a module, opens what the work needs.

    They are not forks of this process, because drivers of databases and of Ceph do not survive a fork, but of a server
    that has only loaded the program, which takes most of a second, once for all of them. It does that while the command
    does what it does alone. The processes start when they are needed, and each opens the stores for itself."""
    if processes == 1:
        yield None
        return
    others = set(multiprocessing.active_children())
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__, opens.__module__])
    forkserver.ensure_running()
    executor = ProcessPoolExecutor(processes, forks, _begin, (opens, settings))
    try:
        yield WorkPool(executor, processes)
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


# --- in the other processes ---------------------------------------------------------------------------
class _Opened:
    """The store that this process has opened for its work."""

    opens: Callable[[], AbstractContextManager[Any]]
    stores: Any = None
    limit: RateLimit | None = None


def _begin(opens: Callable[[Settings], AbstractContextManager[Any]], settings: Settings) -> None:
    """Prepare this process, which ends with the command: Ctrl-C interrupts the command, which then ends this process;
    if the command is killed, this process ends by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_for_people()
    Thread(target=_end_with_command, name="command", daemon=True).start()
    _Opened.opens = partial(opens, settings)


def _end_with_command() -> None:
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os._exit(1)


def _run(work: Callable[[_S, _T], _R], item: _T) -> _R:
    if _Opened.stores is None:
        stack = ExitStack()
        _Opened.stores = stack.enter_context(_Opened.opens())
        Finalize(None, stack.close, exitpriority=1)
    return work(_Opened.stores, item)


def _pack(system: System, ids: _IdRange) -> list[PackedPage]:
    return list(map(pack_page, object_pages(system.metadata, *ids)))


def _count_rows(_system: System, payloads: Sequence[bytes]) -> list[tuple[str, int]]:
    return list(map(page_rows, payloads))


def _look_at_blocks(read: ReadShare, system: System, rows: Sequence[BlockRow]) -> list[BlockLook]:
    return list(map(BlockLooks(system.metadata, system.blocks, read).look, rows))


def _look_at_objects(system: System, ids: _IdRange) -> list[PageLook]:
    return list(system.operator.checked().object_look().pages_between(*ids))


def _scrub_block(bytes_per_s: int, system: System, row: BlockRow) -> FirstLook:
    if _Opened.limit is None:
        _Opened.limit = RateLimit(system.clock, bytes_per_s)
    spend = partial(_Opened.limit.spend, stop=Event())
    return BlockScrub(system.metadata, system.blocks, system.shards, spend).first_look(row)
