"""The input of a rebuild: the stores whose metadata was lost, and a dump."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from nos_ec.core.errors import Corrupt, NotFound, Transient
from nos_ec.core.formats.dump_format import DumpHead, DumpPage, Read, read_dump, read_payloads
from nos_ec.core.ids import LandingId, in_log, segment_of
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Metadata, ObjectColumns, ObjectRow
from nos_ec.ports.segment_medium import SegmentMedium

PAGE_ROWS = 1000
"""Rows that a rebuild has in memory at once."""

SEARCHED_ROWS = 10_000
"""Rows that the database searches at once for large, composed and hidden objects: tens of milliseconds."""

READS_AT_A_TIME = 8
"""Blocks from which a rebuild reads at the same time."""

PUT_MS_MAX = 60_000
"""The longest time, in milliseconds, between the id of a landing copy and the version of its object. The copy of a
slower PUT is reported as uncertain."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class DumpSource:
    """A complete dump. name: a name for people. head: its first frame. rows: how many rows of each table it has. open:
    opens it for reading from its beginning."""

    name: str
    head: DumpHead
    rows: dict[str, int]
    open: Callable[[], AbstractContextManager[Read]]

    def pages(self) -> Iterator[DumpPage]:
        """Yield its pages, in order. Raises Corrupt."""
        with self.open() as read:
            for found in read_dump(read):
                if isinstance(found, DumpPage):
                    yield found

    def payloads(self) -> Iterator[bytes]:
        """Yield its pages, in order, each for `decode_payload`. Raises Corrupt."""
        with self.open() as read:
            yield from read_payloads(read)


class Share(Protocol):
    """Gives work to other processes, each of which has opened the stores for itself."""

    def __call__(self, work: Callable[[RebuildInput, _T], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Yield the result of `work` for each item, in order. Raises what `work` raises, and Transient if a process has
        ended."""


@dataclass(frozen=True, slots=True)
class RebuildInput:
    """The stores whose metadata was lost, and `metadata`, the new database, which is empty at first. share: gives work
    that only reads to other processes; None: this process does it."""

    metadata: Metadata
    blocks: BlockStore
    landing: LandingStore
    medium: SegmentMedium | None
    clock: Clock
    share: Share | None = None

    def in_order(self, work: Callable[[RebuildInput, _T], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Yield the result of `work`, which only reads, for each item, in order. Raises what `work` raises, Transient.

        Several items are taken before the first result is used if other processes do the work."""
        return map(partial(work, self), items) if self.share is None else self.share(work, items)

    def columns_between(self, after: int, last: int) -> Iterator[ObjectColumns]:
        """Yield the rows of objects whose ids are above `after` and at most `last`, in pages of columns. Raises
        Transient."""
        while after < last and (page := self.metadata.columns_after(after, PAGE_ROWS).up_to(last)).object_id:
            after = page.object_id[-1]
            yield page

    def id_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of ids that together have all objects, SEARCHED_ROWS in each: `after` and `last`, as for
        `columns_between`. Raises Transient."""
        after = 0
        while (last := self.metadata.last_id_of_page(after, SEARCHED_ROWS)) is not None:
            yield after, last
            after = last

    def uncommon_objects(self) -> Iterator[Sequence[ObjectRow]]:
        """Yield the existing rows of large and composed objects and of those in hidden buckets, such as parts and
        tails, in pages. Raises Transient."""
        for after, last in self.id_ranges():
            for ids in batches(self.metadata.uncommon_between(after, last), PAGE_ROWS):
                if found := self.metadata.objects_with(ids):
                    yield [found[object_id] for object_id in sorted(found)]

    def read_copy(self, copy: LandingId) -> bytes:
        """Read a landing copy from the landing store or the landing log. Raises NotFound, also if its landing segment
        can lie only in a slot that names no segment; Corrupt, Transient."""
        if not in_log(copy):
            return self.landing.read(copy)
        if self.medium is None:
            raise NotFound(f"landing copy {copy.hex()} is in the landing log, but the store has no landing log")
        try:
            return LogReader(self.medium).read(copy)
        except Transient:
            if segment_of(copy) in self.medium.segments(known_only=True):
                raise
        raise NotFound(f"landing copy {copy.hex()}: no slot of the landing log names its landing segment")

    def bytes_of(self, row: ObjectRow) -> bytes:
        """Read the bytes of a small object. Raises NotFound, Corrupt, Transient."""
        if row.extent is not None:
            data = self.blocks.read(row.extent.block_id, row.extent.offset, row.extent.length)
        elif row.landing_id is not None:
            data = self.read_copy(row.landing_id)
        else:
            raise Corrupt(f"{row.key} v{row.version}: its row has no location", key=row.key)
        return crc_checked(data, row.size, row.crc32c, row.key, f"{row.key} v{row.version}")

    def is_intact(self, copy: LandingId, row: ObjectRow) -> bool:
        """Return whether a landing copy has the bytes of this row. Raises Transient."""
        try:
            crc_checked(self.read_copy(copy), row.size, row.crc32c, row.key, f"landing copy of {row.key}")
        except (Corrupt, NotFound):
            return False
        return True


def batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def prefetched(look: Callable[[_T], _R], blocks: Iterable[_T]) -> Iterator[tuple[_T, _R]]:
    """Yield each block with the result of `look`, in order. Calls `look` in READS_AT_A_TIME threads, and raises what it
    raises."""
    waiting = deque[tuple[_T, Future[_R]]]()
    with ThreadPoolExecutor(READS_AT_A_TIME) as pool:
        for one in blocks:
            waiting.append((one, pool.submit(look, one)))
            if len(waiting) == READS_AT_A_TIME:
                block, future = waiting.popleft()
                yield block, future.result()
        for block, future in waiting:
            yield block, future.result()
