"""Scrubs all packed blocks in the order of their ids, at a limited rate.

The position of a pass is saved in the metadata store every SAVE_MS. So the next run continues a pass that was stopped
or killed. A block that seems damaged is looked at again WAIT_MS later, and only damage that both looks find counts. One
process scrubs at a time, under a lease.

9  in memory: a few rows of blocks, and of one block the rows of its objects and a few MiB of data
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

import structlog

from nos_ec.core.errors import Conflict, Corrupt, LeaseLost, NosError, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.check.blocks import block_name
from nos_ec.engine.check.checker import UNANSWERED_MAX, Checked, Unfinished
from nos_ec.engine.check.second_look import WAIT_MS
from nos_ec.engine.check.short_blocks import ShortBlocks
from nos_ec.engine.figures.events import EventKind, EventLog, Outcome
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.log_throttle import ThrottledLog
from nos_ec.engine.rate_limit import RateLimit
from nos_ec.engine.scrub.blocks import BlockScrub, FirstLook, Look
from nos_ec.engine.scrub.mending import Mending, Scrubbed
from nos_ec.engine.texts import count_text
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Beat, unwatched, waits
from nos_ec.ports.metadata import BlockRow, ScrubPass, ScrubState
from nos_ec.ports.shard_store import ShardStore

_log = structlog.get_logger(__name__)

LEASE_NAME = "scrub"
PAGE_ROWS = 50
SAVE_MS = 5_000
"""The position is saved at most this often, except at the end."""
LOOK_MS = 60_000
"""A daemon checks this often whether a pass is due."""

Report = Callable[[Scrubbed], object]
FirstLooks = Callable[[Iterable[BlockRow]], Iterator[FirstLook]]


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """Options of a scrub. bytes_per_s: bytes to read and write per second; 0 for no limit. repair: whether to mend
    damage. put_ms_max: the longest duration of a PUT. wait_ms: milliseconds between two looks at a block that seems
    damaged."""

    bytes_per_s: int
    repair: bool
    put_ms_max: int
    wait_ms: int = WAIT_MS


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """The result of one run. of_pass: the figures of the pass that the run belongs to, from its beginning. whole:
    whether that pass has ended. torn: shards that lacked data which a killed writer never finished. unfinished: blocks
    that could not be read."""

    of_pass: ScrubPass
    whole: bool = False
    blocks: int = 0
    objects: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    found: int = 0
    mended: int = 0
    torn: int = 0
    unfinished: tuple[Unfinished, ...] = ()

    @property
    def left(self) -> int:
        """How many findings were not mended."""
        return self.found - self.mended


@dataclass(slots=True)
class ScrubCounters:
    """Counts what this process has done since it started. Any thread may read it."""

    blocks: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    mended: int = 0
    left: int = 0
    unread: int = 0
    failures: int = 0
    """Runs that ended with an error."""
    state: ScrubState | None = None
    """The last state that this process has read or stored."""


class _Stopped(Exception):
    """Ends the scrub of the current block, because the run must stop."""


class Scrubber:
    """Runs scrubs in one thread."""

    def __init__(
        self,
        checked: Checked,
        shards: ShardStore | None,
        new_lease: Callable[[str], HeldLease],
        options: ScrubOptions,
        trail: AuditTrail = NO_TRAIL,
        process: str = "",
        first_looks: FirstLooks | None = None,
    ) -> None:
        """first_looks: returns what `BlockScrub.first_look` returns for each block, in order; None: this process
        looks."""
        self._metadata = checked.metadata
        self._events = EventLog(checked.metadata, checked.clock, process)
        self._clock = checked.clock
        self._new_lease = new_lease
        self._options = options
        self._limit = RateLimit(checked.clock, options.bytes_per_s)
        self._rate_limit: Callable[[int], object] = lambda _: None
        self._errors = ThrottledLog(__name__, checked.clock)

        def rate_limit(count_bytes: int) -> None:
            self._rate_limit(count_bytes)

        self._scrub = BlockScrub(checked.metadata, checked.blocks, shards, rate_limit)
        self._first_looks = first_looks or partial(map, self._scrub.first_look)
        self._mending = Mending(
            checked.metadata, checked.landing, shards, checked.clock, options.put_ms_max, rate_limit, trail
        )
        self._short = ShortBlocks()
        self._state = self._saved = ScrubState()
        self._saved_ms = 0
        self._result = ScrubResult(ScrubPass(0))
        self._unanswered = 0
        self.counters = ScrubCounters()

    # --- runs -----------------------------------------------------------------------------------------
    def run_once(
        self,
        stop: Event,
        ms_max: int | None = None,
        report: Report = lambda _: None,
        watch: Callable[[ScrubResult], object] = lambda _: None,
        beat: Beat = unwatched,
        *,
        restart: bool = False,
    ) -> ScrubResult:
        """Continue the unfinished pass, or begin a new one, until its end.

        `stop` and `ms_max` end the run early; the next run continues from there. `ms_max` lets the run finish its
        current block, so that each run makes progress. `report` receives each finding, and `watch` the result so far
        after each block. `restart` gives up an unfinished pass. Raises Conflict when another process scrubs, LeaseLost,
        Transient.
        """
        self._free_lease()
        with self._new_lease(LEASE_NAME) as held, self._events.work(EventKind.SCRUB) as work:
            began_ms = self._clock.now_ms()

            def over() -> bool:
                return ms_max is not None and not waits(began_ms + ms_max, self._clock.now_ms(), ms_max)

            def rate_limit(count_bytes: int) -> None:
                beat(0)
                held.require_not_lost()
                self._limit.spend(count_bytes, stop, beat)
                if stop.is_set():
                    raise _Stopped

            self._rate_limit = rate_limit
            self._begin(restart=restart)
            try:
                self._run(stop, over, report, watch)
                self._report_short(report)
                self._end()
            except _Stopped:
                self._report_short(report)
                self._save()
            finally:
                self._errors.report(closing=True)
            work.ended(_outcome(self._result), _text(self._result))
            return self._result

    def run(self, stop: Event, pass_ms: int, beat: Beat = unwatched) -> None:
        """Scrub until `stop` is set: continue an unfinished pass, or begin one `pass_ms` after the last one began."""
        while not stop.is_set():
            beat(0)
            try:
                if self._due(pass_ms):
                    result = self.run_once(stop, beat=beat)
                    if result.whole:
                        whole = result.of_pass
                        _log.info("scrubbed", blocks=whole.blocks, found=whole.found, mended=whole.mended)
            except NosError as error:
                if isinstance(error, Conflict) and not isinstance(error, LeaseLost):
                    _log.info("another process scrubs")
                else:
                    self.counters.failures += 1
                    _log.error("scrub failed; will retry", error=str(error))
            except Exception:
                self.counters.failures += 1
                # A bug here must not end GC.
                _log.exception("scrub failed")
            beat(LOOK_MS)
            self._clock.wait(stop, LOOK_MS)

    def _due(self, pass_ms: int) -> bool:
        state = self.counters.state = self._metadata.scrub_state()
        if state is None or state.current is not None or state.last is None:
            return True
        return not waits(state.last.began_ms + pass_ms, self._clock.now_ms(), pass_ms)

    def _free_lease(self) -> None:
        """Fence the lease of a scrub that was killed. The lease only ensures that one process scrubs at a time."""
        now_ms = self._clock.now_ms()
        for lease in self._metadata.expired_leases(now_ms):
            if lease.name == LEASE_NAME and self._metadata.fence_lease(lease, now_ms):
                self._events.record_lost([lease.name])

    # --- the position ---------------------------------------------------------------------------------
    def _begin(self, *, restart: bool) -> None:
        stored = self._metadata.scrub_state()
        self._state = stored or ScrubState()
        self._short, self._unanswered = ShortBlocks(), 0
        if self._state.current is None or restart:
            begun = ScrubState(ScrubPass(self._clock.now_ms()), None, self._state.last)
            self._store(begun, stored)
        assert self._state.current is not None
        self._saved = self._state
        self._saved_ms = self._clock.now_ms()
        self._result = ScrubResult(self._state.current)
        self.counters.state = self._state

    def _store(self, new: ScrubState, expected: ScrubState | None) -> None:
        if not self._metadata.store_scrub_state(new, expected):
            raise Conflict("another process has scrubbed meanwhile; let it continue")
        self._state = self._saved = self.counters.state = new
        self._saved_ms = self._clock.now_ms()
        kill_point("scrub.saved")

    def _save(self) -> None:
        if self._state != self._saved:
            self._store(self._state, self._saved)

    def _report_short(self, report: Report) -> None:
        """Report all blocks that lack shards as one finding of this run, because a lost disk takes a shard from every
        block. The saved pass does not count it: `blocks_short` shows when the blocks are whole again."""
        for finding in self._short.findings():
            self._report(Scrubbed(finding), report)
            self._result = replace(self._result, found=self._result.found + 1)

    def _end(self) -> None:
        current = self._state.current
        assert current is not None
        whole = replace(current, ended_ms=max(1, self._clock.now_ms()))
        self._state = ScrubState(None, None, whole)
        self._save()
        self._result = replace(self._result, of_pass=whole, whole=True)

    def _advance(self, block_id: BlockId, look: Look, *, unread: int = 0, found: int = 0, mended: int = 0) -> None:
        """Move the position past a block, and count the work."""
        current, result, counters = self._state.current, self._result, self.counters
        assert current is not None
        current = replace(
            current,
            blocks=current.blocks + 1,
            read_bytes=current.read_bytes + look.read_bytes,
            found=current.found + found,
            mended=current.mended + mended,
            unread=current.unread + unread,
        )
        self._state = replace(self._state, current=current, after=block_id)
        self._result = replace(
            result,
            of_pass=current,
            blocks=result.blocks + 1,
            objects=result.objects + look.objects,
            read_bytes=result.read_bytes + look.read_bytes,
            written_bytes=self._mending.written_bytes,
            found=result.found + found,
            mended=result.mended + mended,
            torn=result.torn + len(look.torn),
        )
        counters.blocks += 1
        counters.read_bytes += look.read_bytes
        counters.written_bytes = self._mending.written_bytes
        counters.mended += mended
        counters.left += found - mended
        counters.unread += unread

    # --- blocks ---------------------------------------------------------------------------------------
    def _run(
        self, stop: Event, over: Callable[[], bool], report: Report, watch: Callable[[ScrubResult], object]
    ) -> None:
        watch(self._result)
        for first in self._first_looks(self._rows()):
            self._rate_limit(0)
            self._scrub_block(first, stop, report)
            if not waits(self._saved_ms + SAVE_MS, self._clock.now_ms(), SAVE_MS):
                self._save()
            watch(self._result)
            if over():
                raise _Stopped

    def _rows(self) -> Iterator[BlockRow]:
        after = self._state.after
        while rows := self._metadata.list_blocks(after, PAGE_ROWS):
            for row in rows:
                self._rate_limit(0)
                yield row
            after = rows[-1].block_id

    def _scrub_block(self, first: FirstLook, stop: Event, report: Report) -> None:
        row = first.row
        try:
            if first.error is not None:
                raise Transient(first.error)
            look = first.look or self._look_again(row, stop)
            found: list[Scrubbed] = []
            lacks = () if look is None else look.short
            if look is not None and look.doubtful:
                second = self._look_again(row, stop)
                look = None if second is None else second.confirmed(look)
                if look is not None:
                    found, lacks = self._mend(row, look)
        except (Transient, Corrupt) as error:
            self._count_unread(row, str(error))
            if self._unanswered > UNANSWERED_MAX:
                self._save()  # otherwise the next run would begin with the same blocks
                raise
            return
        if look is None:
            self._count_unread(row, "it keeps changing")
            return
        if lacks:
            self._short.add(row.block_id, lacks)
        for one in found:
            self._report(one, report)
        self._advance(row.block_id, look, found=len(found), mended=sum(one.mended for one in found))

    def _look_again(self, row: BlockRow, stop: Event) -> Look | None:
        self._clock.wait(stop, self._options.wait_ms)
        self._rate_limit(0)
        return self._scrub.look(row)

    def _mend(self, row: BlockRow, look: Look) -> tuple[list[Scrubbed], tuple[int, ...]]:
        """Mend a block if repairs are on. Returns the outcome of each finding, and the shards that it still lacks."""
        if not self._options.repair:
            return self._mending.without_mending(look), look.short
        return self._mending.mend(row, look)

    def _count_unread(self, row: BlockRow, reason: str) -> None:
        self._unanswered += 1
        unfinished = (*self._result.unfinished, Unfinished(block_name(row.block_id), reason))
        self._result = replace(self._result, unfinished=unfinished)
        self._advance(row.block_id, Look(), unread=1)

    def _report(self, one: Scrubbed, report: Report) -> None:
        report(one)
        damage = f"{one.finding.kind.value}: {one.finding.what}"
        if one.mended:
            self._errors.error("damage mended", damage=damage)
        else:
            self._errors.error("damage found", damage=damage, **({"why": one.why} if one.why else {}))


def _outcome(result: ScrubResult) -> Outcome:
    if result.left or result.of_pass.left or result.of_pass.unread:
        return Outcome.PROBLEMS
    return Outcome.DONE if result.whole else Outcome.STOPPED


def _text(result: ScrubResult) -> str:
    of_pass = result.of_pass
    found = f"{of_pass.mended} mended, {of_pass.left} left, {count_text(of_pass.unread, 'block')} not read"
    return f"{'complete pass' if result.whole else 'pass so far'}: {count_text(of_pass.blocks, 'block')}, {found}"
