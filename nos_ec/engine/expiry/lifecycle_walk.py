"""Applies the lifecycle rules of all buckets (core/expiry.py): deletes expired objects and aborts uploads.

One walk a day visits all buckets with rules in the order of their names, and in each bucket the prefixes of its rules
(lifecycle_bucket.py). A run of GC walks for RUN_MS_MAX, and the next run continues from there. A note in the metadata
holds the position. It is saved every few seconds by compare-and-set, so that only one of several processes continues.
The part that a killed process had not saved is walked again, which changes nothing. A walk begins by forgetting the
numbers of versions that were removed long ago.

A bucket that fails is skipped, and walked again later that day, with waits that double. After FAILURES_MAX failed
buckets in a row the run ends, because the cause is not the buckets. Wide buckets whose rules are in another cell do not
count: while that cell is away, all of them fail, and the buckets of this cell are walked. The walk also corrects the
copies that this cell has of their documents (docs/adr/0073).

9  memory holds the rules of BUCKETS_PAGE buckets (lifecycle_rules.py)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any, Protocol

import structlog

from nos_ec.core.errors import NosError
from nos_ec.core.expiry import ExpiryRule
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.expiry.lifecycle_bucket import START, BucketMetadata, BucketWalk, WalkCounts, WalkPosition
from nos_ec.engine.expiry.lifecycle_rules import FoundRules, LifecycleRules, OtherCells, RuledBucket
from nos_ec.engine.wide.buckets import copy_documents
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import NOTE_CHARS_MAX, Notes

LIFECYCLE_NOTE = "lifecycle"
FLOORS_PAGE = 1000
"""The most numbers of removed versions that one transaction forgets."""
RUN_MS_MAX = 300_000
"""How long a run of GC walks before it collects."""
SAVE_WAIT_MS = 5_000
FAILURES_MAX = 3
FAILED_MAX = 40
"""The most failed buckets that are remembered, to be walked again the same day. The note has no room for more."""
RETRY_MS_FIRST = 60_000
RETRY_MS_MAX = 3_600_000

_log = structlog.get_logger(__name__)


class LifecycleMetadata(BucketMetadata, Notes, Protocol):
    """The parts of the metadata that the walk uses."""


@dataclass(frozen=True, slots=True)
class WalkState:
    """The position of the walk of one day."""

    day: int
    """Days since 1970."""
    started_ms: int
    bucket: str = ""
    """The last bucket that is finished."""
    within: str = ""
    """The bucket that is being walked; `name` and `version` are the `WalkPosition` in it."""
    name: str = ""
    version: int | None = None
    done: WalkCounts = field(default_factory=WalkCounts)
    failed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Buckets to walk again, each with its number of failures and the time of its next try."""
    ended_ms: int | None = None
    """When the last bucket was finished, not counting the failed ones."""


class LifecycleWalk:
    """The daily walk. Several processes may run it at once; each instance belongs to one thread, except its figures."""

    def __init__(
        self,
        metadata: LifecycleMetadata,
        clock: Clock,
        day_ms: int,
        trash_ms: int,
        others: OtherCells | None = None,
    ) -> None:
        """day_ms: the length of a day. trash_ms: how long the trash keeps deleted objects; 0 for no trash. others: the
        other cells, which have the rules of some wide buckets."""
        self.rules = LifecycleRules(metadata, others)
        self._metadata = metadata
        self._clock = clock
        self._day_ms = day_ms
        self._trash_ms = trash_ms
        self.total = WalkCounts()
        """The counts of all runs of this process."""
        self.state: WalkState | None = None
        """The position of the walk when this process last read or changed it."""

    def run_once(self, beat: Beat = unwatched, stop: Event | None = None) -> WalkCounts:
        """Continue the walk of today, or finish the walk of an earlier day. `stop` ends the run early. Raises
        Transient."""
        text = self._metadata.note(LIFECYCLE_NOTE)
        state, now_ms = _loaded(text), self._clock.now_ms()
        today = now_ms // self._day_ms
        if state is None or state.day > today or (state.day < today and state.ended_ms is not None):
            self._forget_floors(beat, stop)
            state = WalkState(today, now_ms)
        self.state = state
        if state.ended_ms is not None and all(
            waits(due_ms, now_ms, RETRY_MS_MAX) for _, due_ms in state.failed.values()
        ):
            return WalkCounts()
        run = _Run(self, self._metadata, self._clock, state, text, partial(_tick, beat, stop))
        try:
            run.walk()
        finally:
            self.state = run.state
            self.total += run.found
        return run.found

    def _forget_floors(self, beat: Beat, stop: Event | None) -> None:
        """Forget the numbers of versions that were removed long ago. Raises Transient."""
        while self._metadata.forget_floors(self._clock.now_ms(), FLOORS_PAGE) == FLOORS_PAGE:
            beat(0)
            if stop is not None and stop.is_set():
                return

    def walk_bucket(self, bucket: str, rules: Sequence[ExpiryRule], *, dry_run: bool = False) -> WalkCounts:
        """Walk one whole bucket, regardless of the walk of the day. dry_run: only count. Raises what
        `LifecycleRules.read` raises, Transient."""
        found = self.rules.read(self.rules.of(bucket))
        return self.of_bucket(bucket, found._replace(rules=rules), dry_run=dry_run).walk()

    def of_bucket(self, bucket: str, found: FoundRules, *, dry_run: bool = False) -> BucketWalk:
        """Return a walk of one bucket."""
        return BucketWalk(
            self._metadata,
            self._clock,
            self._day_ms,
            self._trash_ms,
            bucket,
            found.rules,
            dry_run=dry_run,
            documents=found.documents,
        )


class _Run:
    """One run of the walk."""

    def __init__(
        self,
        lifecycle: LifecycleWalk,
        metadata: LifecycleMetadata,
        clock: Clock,
        state: WalkState,
        text: str | None,
        tick: Callable[[], bool],
    ) -> None:
        self._lifecycle = lifecycle
        self._metadata = metadata
        self._clock = clock
        self._text = text
        self._tick = tick
        self._began_ms = self._saved_ms = clock.now_ms()
        self._failures = 0
        self._superseded = False
        self._has_begun = False
        """Whether this run has made progress. Each run makes some, however short its time is."""
        self.state = state
        self.found = WalkCounts()

    def walk(self) -> None:
        """Walk until the end, or until the run must end."""
        try:
            if self.state.ended_ms is None and self._walk_rest():
                self.state = replace(self.state, ended_ms=self._clock.now_ms())
            if self.state.ended_ms is not None:
                self._walk_failed()
        finally:
            if not self._superseded:
                self._save()

    def _walk_rest(self) -> bool:
        """Walk the remaining buckets. Returns whether all of them were walked."""
        while page := self._lifecycle.rules.page(self.state.bucket):
            for bucket in page:
                if self._must_end():
                    return False
                if not self._walk_one(bucket, self._enter(bucket.name)):
                    return False
                self.state = replace(self.state, bucket=bucket.name)
                self._leave()
                self._has_begun = True
        return True

    def _walk_failed(self) -> None:
        """Walk the failed buckets that are due again, until the run must end."""
        for name, (_, due_ms) in list(self.state.failed.items()):
            if self._must_end():
                return
            if waits(due_ms, self._clock.now_ms(), RETRY_MS_MAX):
                continue
            if not self._walk_one(self._lifecycle.rules.of(name), self._enter(name)):
                return
            self._leave()

    def _enter(self, name: str) -> WalkPosition:
        """Enter a bucket. Returns the position from which to continue in it."""
        after = WalkPosition(self.state.name, self.state.version) if self.state.within == name else START
        self.state = replace(self.state, within=name, name=after.name, version=after.version)
        return after

    def _leave(self) -> None:
        self.state = replace(self.state, within="", name="", version=None)

    def _walk_one(self, bucket: RuledBucket, after: WalkPosition) -> bool:
        """Walk one bucket. Returns False if the run must end before the bucket is finished."""
        ended_early = False

        def on_page(last: WalkPosition, found: WalkCounts) -> bool:
            nonlocal ended_early
            self.found += found
            self._has_begun = True
            self.state = replace(self.state, done=self.state.done + found, name=last.name, version=last.version)
            ended_early = self._must_end()
            return not ended_early

        try:
            found = self._lifecycle.rules.read(bucket)
            is_elsewhere = found.documents is not self._metadata
            if is_elsewhere and copy_documents(
                found.documents, self._metadata, bucket.name, self._clock.now_ms(), is_recorded=False
            ):
                _log.warning("copies of documents corrected, which differed from the first cell", bucket=bucket.name)
            if found.rules:
                self._lifecycle.of_bucket(bucket.name, found).walk(after, on_page)
        except Exception as error:
            self.state = replace(self.state, name=after.name, version=after.version)
            self._fail(bucket.name, error)
            if bucket.mark is None:
                self._failures += 1
                if self._failures == FAILURES_MAX:
                    raise
            return True
        if not ended_early:
            if found.rules:
                self._failures = 0
            self._forget_failure(bucket.name)
        return not ended_early

    def _fail(self, name: str, error: Exception) -> None:
        """Remember a failed bucket."""
        log = _log.warning if isinstance(error, NosError) else _log.exception
        log("lifecycle rules of a bucket not applied; trying again later", bucket=name, error=str(error))
        tries = self.state.failed.get(name, (0, 0))[0] + 1
        due_ms = self._clock.now_ms() + min(RETRY_MS_FIRST << min(tries - 1, 10), RETRY_MS_MAX)
        failed = self.state.failed
        if name in failed or len(failed) < FAILED_MAX:
            failed = failed | {name: (tries, due_ms)}
        one = WalkCounts(failed=1)
        self.found += one
        self.state = replace(self.state, failed=failed, done=self.state.done + one)

    def _forget_failure(self, name: str) -> None:
        left = {other: tries for other, tries in self.state.failed.items() if other != name}
        self.state = replace(self.state, failed=left)

    def _must_end(self) -> bool:
        """Return whether the run must end. Also saves the position every SAVE_WAIT_MS."""
        now_ms = self._clock.now_ms()
        if not waits(self._saved_ms + SAVE_WAIT_MS, now_ms, SAVE_WAIT_MS):
            self._save()
        is_over = self._has_begun and not waits(self._began_ms + RUN_MS_MAX, now_ms, RUN_MS_MAX)
        return self._tick() or is_over or self._superseded

    def _save(self) -> None:
        text = _dumped(self.state)
        if len(text) > NOTE_CHARS_MAX:
            text = _dumped(replace(self.state, failed={}))
        if text != self._text:
            self._superseded = not self._metadata.store_note(LIFECYCLE_NOTE, text, self._text)
            kill_point("lifecycle.saved")
        self._text, self._saved_ms = text, self._clock.now_ms()


def read_walk(notes: Notes) -> WalkState | None:
    """Return the position of the walk, or None if there has been no walk. Raises Transient."""
    return _loaded(notes.note(LIFECYCLE_NOTE))


def _loaded(text: str | None) -> WalkState | None:
    """Decode a note. Returns None also for a malformed note: then the walk of the day starts again."""
    try:
        data: dict[str, Any] = json.loads(text or "null")
        failed = {str(name): (int(tries), int(due_ms)) for name, (tries, due_ms) in data.pop("failed").items()}
        return WalkState(**{**data, "done": WalkCounts(**data["done"]), "failed": failed})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _dumped(state: WalkState) -> str:
    return json.dumps(asdict(state), separators=(",", ":"), ensure_ascii=False)


def _tick(beat: Beat, stop: Event | None) -> bool:
    beat(0)
    return stop is not None and stop.is_set()
