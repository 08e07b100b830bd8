"""Checks a whole store: finds all contradictions from metadata, headers and listings alone.

9  rows and listings are read in pages; the memory in use does not grow with the number of objects
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Protocol

from nos_ec.core.errors import Corrupt, NotFound, Transient
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockState
from nos_ec.engine.check.blocks import NAMED_MAX, BlockCheck, BlockLook, BlockLooks, ReadShare, block_name
from nos_ec.engine.check.copies import CopyCheck
from nos_ec.engine.check.log import LogCheck
from nos_ec.engine.check.objects import ObjectCheck, ObjectLook, PageLook, Ranges
from nos_ec.engine.check.second_look import WAIT_MS, SecondLook
from nos_ec.engine.check.short_blocks import ShortBlocks
from nos_ec.engine.check.uploads import manifest_of
from nos_ec.engine.header_scan import names_in
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import BlockRow, Metadata
from nos_ec.ports.segment_medium import SegmentMedium

PAGE_ROWS = 500
BUSY_MAX = 1000
"""Blocks that are checked again at the end, because they kept changing."""
UNANSWERED_MAX = 10
"""Blocks that did not answer, or whose rows cannot be read; after this many, the check of blocks is given up."""

Tick = Callable[[str, int], object]
"""Takes the part that is being checked, and how much of it is done."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The parts of a store that a check examines. `medium` is the medium of the landing log; None for a store without a
    landing log. `misfits` yields the files that users of their folder may not be able to use."""

    metadata: Metadata
    blocks: BlockStore
    landing: LandingStore
    medium: SegmentMedium | None
    clock: Clock
    misfits: Callable[[], Iterator[Path]] = lambda: iter(())

    def object_look(self) -> ObjectLook:
        """Return what looks at rows of objects."""
        return ObjectLook(self.metadata, partial(manifest_of, blocks=self.blocks, landing=self.landing))


class Looks(Protocol):
    """Looks at most of a store. What seems wrong is checked again by the process that checks the store."""

    def at_blocks(self, rows: Iterable[BlockRow]) -> Iterator[BlockLook]:
        """Return what `BlockLooks.look` returns for each block, in order. Raises Transient."""

    def at_objects(self, ranges: Ranges) -> Iterator[PageLook]:
        """Return the pages that `ObjectLook.pages_between` yields for these ranges, in order. Raises Transient."""


class OwnLooks:
    """Looks in this process. See Looks."""

    def __init__(self, checked: Checked, read: ReadShare) -> None:
        self._blocks = BlockLooks(checked.metadata, checked.blocks, read)
        self._objects = checked.object_look()

    def at_blocks(self, rows: Iterable[BlockRow]) -> Iterator[BlockLook]:
        """See Looks."""
        return map(self._blocks.look, rows)

    def at_objects(self, ranges: Ranges) -> Iterator[PageLook]:
        """See Looks."""
        return chain.from_iterable(starmap(self._objects.pages_between, ranges))


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A part of the store that could not be checked, and the reason."""

    part: str
    reason: str


@dataclass(slots=True)
class CheckFigures:
    """How much was checked. The last four count work that daemons have yet to do, which is not a problem: blocks of
    dead writers to recover, condemned blocks to delete, entries of the deletion queue that are due, expired leases."""

    blocks: int = 0
    objects: int = 0
    copies: int = 0
    waiting: int = 0
    queue_entries: int = 0
    landing_segments: int = 0
    header_bytes: int = 0
    data_bytes: int = 0
    blocks_fenced: int = 0
    blocks_condemned: int = 0
    deletions_due: int = 0
    leases_expired: int = 0


class Checker:
    """One check of a store. `read` selects the blocks and copies whose data is read too. wait_ms: see SecondLook.
    looks: how to look at blocks and objects; None: in this process."""

    def __init__(
        self,
        checked: Checked,
        read: ReadShare,
        *,
        wait_ms: int = WAIT_MS,
        tick: Tick = lambda _part, _done: None,
        looks: Looks | None = None,
    ) -> None:
        self._checked = checked
        self._read = read
        self._tick = tick
        self._looks = looks or OwnLooks(checked, read)
        self._second = SecondLook(checked.clock, wait_ms)
        self._blocks = BlockCheck(checked.metadata, checked.blocks, read)
        self._unknown: set[BlockId] = set()
        """Blocks without a row that hold objects. Each is reported once."""
        self.figures = CheckFigures()
        self.unfinished: list[Unfinished] = []
        """The parts that could not be checked. Unless it is empty, a problem that was not found may still exist."""

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong, as it is found. Afterwards, `unfinished` has parts that cannot be checked."""
        parts: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
            ("block store", self._check_stored_blocks),
            ("blocks", self._check_blocks),
            ("objects", self._check_objects),
            ("landing copies", self._check_copies),
            ("landing log", self._check_log),
            ("leases", self._check_leases),
            ("files", self._check_files),
        )
        for part, look in parts:
            try:
                yield from look()
            except (Transient, Corrupt) as error:  # Corrupt: rows that cannot be read
                self.unfinished.append(Unfinished(part, str(error)))

    # --- blocks ---------------------------------------------------------------------------------------
    def _check_stored_blocks(self) -> Iterator[Finding]:
        """Yield the blocks of the block store that have no row. A row is written before its block and removed after
        it."""
        self._checked.blocks.free_bytes()  # raises while a shard is away; a listing does not
        listed = self._checked.blocks.list_blocks()
        while page := list(islice(listed, PAGE_ROWS)):
            known = self._checked.metadata.blocks_known(page)
            for block_id in page:
                if block_id not in known:
                    yield from self._doubt_row(block_id)
        yield from self._second.settle()

    def _doubt_row(self, block_id: BlockId) -> Iterator[Finding]:
        if block_id not in self._unknown:
            yield from self._second.doubt(partial(self._without_row, block_id))

    def _without_row(self, block_id: BlockId) -> Iterable[Finding]:
        """Report a block without a row, if it exists or objects lie in it."""
        placed = self._checked.metadata.placed_in(block_id)
        try:
            stripes: int | None = self._checked.blocks.stripes(block_id)
        except NotFound:
            stripes = None
        if self._blocks.row(block_id) is not None:
            return
        if placed:
            self._unknown.add(block_id)
            seen = {"objects": len(placed), "named": [str(one.key) for one in placed[:NAMED_MAX]], "stripes": stripes}
            yield Finding(FindingKind.BLOCK_ROW_MISSING, block_name(block_id), seen)
        elif stripes is not None:
            size = stripes * self._checked.blocks.geometry.stripe_size
            names = names_in(self._checked.blocks, block_id, stripes)
            seen = {"block": block_id.hex(), "stripes": stripes, "bytes": size}
            named: dict[str, object] = {"objects": len(names), "named": names[:NAMED_MAX]}
            yield Finding(FindingKind.BLOCK_WITHOUT_ROW, block_name(block_id), seen | named)

    def _check_blocks(self) -> Iterator[Finding]:
        short, busy, unanswered = ShortBlocks(), list[BlockRow](), 0
        for look in self._looks.at_blocks(self._rows()):
            row = look.row
            self._count_block(row)
            self.figures.header_bytes += look.figures.header_bytes
            self.figures.data_bytes += look.figures.data_bytes
            if look.error is not None:
                unanswered += 1
                if unanswered > UNANSWERED_MAX:
                    raise Transient(look.error)
                self.unfinished.append(Unfinished(block_name(row.block_id), look.error))
                continue
            if look.found is None:
                busy.append(row)
                if len(busy) > BUSY_MAX:
                    raise Transient(f"more than {BUSY_MAX} blocks keep changing")
            if look.missing:
                short.add(row.block_id, look.missing)
            yield from look.found or ()
            if row.state is BlockState.OPEN:
                yield from self._second.doubt(partial(self._without_writer, row.block_id))
        yield from self._second.settle()
        for row in busy:
            found = self._blocks.findings(row)
            if found is None:
                self.unfinished.append(Unfinished(block_name(row.block_id), "it keeps changing"))
            yield from found or ()
        self.figures.header_bytes += self._blocks.figures.header_bytes
        self.figures.data_bytes += self._blocks.figures.data_bytes
        yield from short.findings()

    def _rows(self) -> Iterator[BlockRow]:
        after: BlockId | None = None
        while page := self._checked.metadata.list_blocks(after, PAGE_ROWS):
            yield from page
            after = page[-1].block_id

    def _count_block(self, row: BlockRow) -> None:
        figures = self.figures
        figures.blocks += 1
        figures.blocks_fenced += row.state is BlockState.FENCED
        figures.blocks_condemned += row.state is BlockState.CONDEMNED
        self._tick("blocks", figures.blocks)

    def _without_writer(self, block_id: BlockId) -> Iterable[Finding]:
        """Report an open block whose writer holds no lease: one transaction ends the lease and the state."""
        before = self._blocks.row(block_id)
        if before is None or before.state is not BlockState.OPEN:
            return
        held = {(lease.name, lease.epoch) for lease in self._checked.metadata.list_leases(before.writer)}
        after = self._blocks.row(block_id)
        if after is not None and after.state is BlockState.OPEN and (before.writer, before.epoch) not in held:
            seen = {"writer": after.writer, "epoch": after.epoch, "stripes": after.stripes}
            yield Finding(FindingKind.BLOCK_WITHOUT_WRITER, block_name(block_id), seen)

    # --- the rest -------------------------------------------------------------------------------------
    def _check_objects(self) -> Iterator[Finding]:
        metadata, look = self._checked.metadata, self._checked.object_look()
        check = ObjectCheck(metadata, look, self._looks.at_objects, self._second, self._doubt_row)
        yield from check.findings()
        self.figures.objects = check.objects

    def _check_copies(self) -> Iterator[Finding]:
        checked, figures = self._checked, self.figures
        now_ms = checked.clock.now_ms()
        check = CopyCheck(checked.metadata, checked.landing, checked.medium, self._second, self._read, now_ms)
        yield from check.findings()
        figures.copies, figures.waiting = check.copies, check.waiting
        figures.queue_entries, figures.deletions_due = check.queued, check.due
        figures.data_bytes += check.data_bytes

    def _check_log(self) -> Iterator[Finding]:
        if self._checked.medium is not None:
            now_ms = self._checked.clock.now_ms()
            check = LogCheck(self._checked.metadata, self._checked.medium, self._second, now_ms)
            yield from check.findings()
            self.figures.landing_segments = check.segments

    def _check_files(self) -> Iterator[Finding]:
        count, named = 0, list[str]()
        for path in self._checked.misfits():
            count += 1
            if len(named) < NAMED_MAX:
                named.append(str(path))
        if count:
            yield Finding(FindingKind.FILES_UNUSABLE, "files of the store", {"files": count, "named": named})

    def _check_leases(self) -> Iterator[Finding]:
        """Count expired leases. They are not a problem: a consumer or GC run fences them."""
        self.figures.leases_expired = len(self._checked.metadata.expired_leases(self._checked.clock.now_ms()))
        yield from ()
