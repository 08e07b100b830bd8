"""Deletes the objects that have expired by the rules of their bucket (core/expiry.py), and aborts uploads by them.

One walk a day passes along all buckets with rules, by name, and in each along the prefixes of its rules. Every object
below these is looked at once, whatever the number of rules. An object is deleted as the version that was looked at: one
that was overwritten or tagged anew meanwhile stays. A run of GC walks for RUN_MS_MAX; the next run goes on from there.
Where the walk is, a note in the metadata says. It is saved every few seconds, by compare-and-set: of several processes
that walk, one goes on. What a killed process had not saved is walked again, which changes nothing.

In a bucket with versions, what has expired gets a delete marker, as a DELETE without a version id gives it.

A bucket that fails is passed over, and walked again later that day, after waits that double. After FAILURES_MAX buckets
in succession the run ends: then it is not the buckets.

9  a page of rows is in memory, and the rules of BUCKETS_PAGE buckets
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any, Protocol

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.expiry import BucketRules, ExpiryRule, decode_rules, tags_of
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import UploadId
from nos_ec.core.versions import Versioning
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import (
    NOTE_CHARS_MAX,
    AddMarker,
    Buckets,
    DocumentKind,
    Notes,
    ObjectRow,
    Objects,
    Uploads,
    Versions,
)

LIFECYCLE_NOTE = "lifecycle"
PAGE_ROWS = 1_000
BUCKETS_PAGE = 20
MARKERS_AT_A_TIME = 100
"""Made by one transaction: each takes several statements."""
RUN_MS_MAX = 300_000
"""How long a run of GC walks. It collects as well."""
SAVE_WAIT_MS = 5_000
FAILURES_MAX = 3
FAILED_MAX = 40
"""Failed buckets that are remembered, to be walked again before the next day. The note has no room for more."""
RETRY_MS_FIRST = 60_000
RETRY_MS_MAX = 3_600_000

_log = structlog.get_logger(__name__)


class LifecycleMetadata(Objects, Uploads, Buckets, Notes, Versions, Protocol):
    """The parts of the metadata that the walk needs."""


@dataclass(frozen=True, slots=True)
class Expired:
    """examined: objects that were looked at. objects, bytes: of those that had expired, and were deleted. uploads: how
    many were aborted. failed: buckets that failed."""

    examined: int = 0
    objects: int = 0
    bytes: int = 0
    uploads: int = 0
    failed: int = 0

    def __add__(self, other: Expired) -> Expired:
        return Expired(*(mine + its for mine, its in zip(_values(self), _values(other), strict=True)))


@dataclass(frozen=True, slots=True)
class WalkState:
    """Where the walk of a day is. day: days since 1970. bucket: the last one that it is done with. within, name: the
    bucket that it is in, and the last name there that was looked at. failed: buckets to be walked again, each with how
    often it has failed, and when it is due. ended_ms: None while it goes on."""

    day: int
    started_ms: int
    bucket: str = ""
    within: str = ""
    name: str = ""
    done: Expired = Expired()
    failed: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended_ms: int | None = None


class LifecycleWalk:
    """Safe to run in several processes at once; one object belongs to one thread, except its figures."""

    def __init__(self, metadata: LifecycleMetadata, clock: Clock, day_ms: int, trash_ms: int) -> None:
        """day_ms: the length of a day. trash_ms: how long the trash keeps what has expired; 0 for no trash."""
        self._metadata = metadata
        self._clock = clock
        self._day_ms = day_ms
        self._trash_ms = trash_ms
        self.total = Expired()
        """Of all runs of this process."""
        self.state: WalkState | None = None
        """Where the walk was when this process last looked."""

    def run_once(self, beat: Beat = unwatched, stop: Event | None = None) -> Expired:
        """Go on with the walk of today, or end that of an earlier day. `stop` ends it early. Raises Transient."""
        text = self._metadata.note(LIFECYCLE_NOTE)
        state, now_ms = _loaded(text), self._clock.now_ms()
        today = now_ms // self._day_ms
        if state is None or state.day > today or (state.day < today and state.ended_ms is not None):
            state = WalkState(today, now_ms)
        self.state = state
        if state.ended_ms is not None and not any(due <= now_ms for _, due in state.failed.values()):
            return Expired()
        run = _Run(self, self._metadata, self._clock, state, text, partial(_tick, beat, stop))
        try:
            run.walk()
        finally:
            self.state = run.state
            self.total += run.found
        return run.found

    def rules(self) -> Iterator[tuple[str, list[ExpiryRule] | None]]:
        """All buckets with rules; None for rules that cannot be read. Raises Transient."""
        after = ""
        while page := self._metadata.documents_of(DocumentKind.LIFECYCLE, after, BUCKETS_PAGE):
            for name, body in page:
                try:
                    yield name, decode_rules(body)
                except NosError as error:
                    _log.error("lifecycle rules not read", bucket=name, error=str(error))
                    yield name, None
            after = page[-1][0]

    def walk_bucket(
        self,
        bucket: str,
        rules: Sequence[ExpiryRule],
        after: str = "",
        on_page: Callable[[str, Expired], bool] = lambda _name, _found: True,
        *,
        dry_run: bool = False,
    ) -> Expired:
        """Delete what has expired, from the first name behind `after` on, and abort uploads before that. on_page: is
        told the last name that was looked at and what the page had; False ends the walk. dry_run: only count. Raises
        Transient."""
        at_ms, ours = self._clock.now_ms(), BucketRules(rules, self._day_ms)
        total = Expired(uploads=self._abort(bucket, ours, at_ms, dry_run)) if not after else Expired()
        if total.uploads and not on_page("", total):
            return total
        for prefix in ours.walked(at_ms):
            place = after if _utf8(after) > _utf8(prefix) else ""
            if place and not place.startswith(prefix):
                continue
            while page := self._metadata.list_objects(bucket, prefix, place, PAGE_ROWS):
                place = page[-1].key.name
                due = [row for row in page if _is_due(ours, row, at_ms)]
                gone = due if dry_run else self._delete(bucket, due)
                found = Expired(len(page), len(gone), sum(row.users_size for row in gone))
                total += found
                if not on_page(place, found):
                    return total
                if len(page) < PAGE_ROWS:
                    break
        return total

    def _delete(self, bucket: str, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        """All at once; if that fails for one of them, one by one."""
        if not rows:
            return []
        try:
            gone = self._delete_now(bucket, rows)
        except Transient:
            raise
        except NosError as error:
            if len(rows) == 1:
                _log.error("expired object not deleted", key=str(rows[0].key), error=str(error))
                return []
            gone = [one for row in rows for one in self._delete(bucket, [row])]
        kill_point("lifecycle.deleted")
        return gone

    def _delete_now(self, bucket: str, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._trash_ms if self._trash_ms else None
        said = self._metadata.bucket_document(bucket, DocumentKind.VERSIONING)
        if said is None:
            return self._metadata.delete_unchanged(rows, now_ms, until_ms)
        versioning = Versioning(said.decode())
        gone: list[ObjectRow] = []
        for first in range(0, len(rows), MARKERS_AT_A_TIME):
            batch = rows[first : first + MARKERS_AT_A_TIME]
            markers = [AddMarker(row.key, versioning, seen=row) for row in batch]
            answers = self._metadata.delete_versions(markers, now_ms, until_ms)
            gone += [row for row, answer in zip(batch, answers, strict=True) if not isinstance(answer, NosError)]
        return gone

    def _abort(self, bucket: str, rules: BucketRules, at_ms: int, dry_run: bool) -> int:
        aborted = 0
        for prefix in rules.aborted():
            after: tuple[str, UploadId] | None = None
            while page := self._metadata.list_uploads(bucket, prefix, after, PAGE_ROWS):
                after = (page[-1].key.name, page[-1].upload_id)
                for row in page:
                    expiry = rules.abort(row.key.name, row.since_ms)
                    if expiry is not None and expiry.due_ms <= at_ms:
                        aborted += dry_run or self._metadata.abort_upload(row.upload_id, self._clock.now_ms())
                        kill_point("lifecycle.aborted")
        return aborted


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
        """Whether this run has got further: it does, however short its time is."""
        self.state = state
        self.found = Expired()

    def walk(self) -> None:
        """Until its end, or until the time is over."""
        try:
            ended = self.state.ended_ms is not None or self._walk_rest()
            if ended and self._walk_failed():
                self.state = replace(self.state, ended_ms=self.state.ended_ms or self._clock.now_ms())
        finally:
            if not self._superseded:
                self._save()

    def _walk_rest(self) -> bool:
        """Returns whether all buckets were walked."""
        while page := self._metadata.documents_of(DocumentKind.LIFECYCLE, self.state.bucket, BUCKETS_PAGE):
            for name, body in page:
                if self._must_end():
                    return False
                after = self.state.name if self.state.within == name else ""
                self.state = replace(self.state, within=name, name=after)
                if not self._walk_one(name, body, after):
                    return False
                self.state = replace(self.state, bucket=name, within="", name="")
                self._has_begun = True
        return True

    def _walk_failed(self) -> bool:
        """Those that are due again. Returns False if the run must end."""
        for name, (_, due_ms) in list(self.state.failed.items()):
            if self._must_end():
                return False
            if waits(due_ms, self._clock.now_ms(), RETRY_MS_MAX):
                continue
            body = self._metadata.bucket_document(name, DocumentKind.LIFECYCLE)
            if body is not None and not self._walk_one(name, body, ""):
                return False
            if body is None:
                self._forget_failure(name)
        return True

    def _walk_one(self, name: str, body: bytes, after: str) -> bool:
        """Returns False if the run must end before the bucket does."""
        ended_early = False

        def on_page(last: str, found: Expired) -> bool:
            nonlocal ended_early
            self.found += found
            self._has_begun = True
            done = self.state.done + found
            is_walk = self.state.within == name
            self.state = replace(self.state, done=done, name=last if is_walk else self.state.name)
            ended_early = self._must_end()
            return not ended_early

        try:
            self._lifecycle.walk_bucket(name, decode_rules(body), after, on_page)
        except Exception as error:
            self._fail(name, error)
            return True
        if not ended_early:
            self._failures = 0
            self._forget_failure(name)
        return not ended_early

    def _fail(self, name: str, error: Exception) -> None:
        """Remember it. Raises the error if it is one of several in succession."""
        say = _log.warning if isinstance(error, NosError) else _log.exception
        say("the lifecycle of a bucket could not be applied; trying again later", bucket=name, error=str(error))
        tries = self.state.failed.get(name, (0, 0))[0] + 1
        due_ms = self._clock.now_ms() + min(RETRY_MS_FIRST << min(tries - 1, 10), RETRY_MS_MAX)
        failed = self.state.failed
        if name in failed or len(failed) < FAILED_MAX:
            failed = failed | {name: (tries, due_ms)}
        one = Expired(failed=1)
        self.found += one
        self.state = replace(self.state, failed=failed, done=self.state.done + one)
        self._failures += 1
        if self._failures == FAILURES_MAX:
            raise error

    def _forget_failure(self, name: str) -> None:
        left = {other: told for other, told in self.state.failed.items() if other != name}
        self.state = replace(self.state, failed=left)

    def _must_end(self) -> bool:
        """Also saves where the walk is, now and then."""
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


def _is_due(rules: BucketRules, row: ObjectRow, now_ms: int) -> bool:
    expiry = rules.expiry(row.key.name, row.users_size, lambda: tags_of(row.attributes), row.created_ms)
    return expiry is not None and expiry.due_ms <= now_ms


def read_walk(notes: Notes) -> WalkState | None:
    """Where the walk is. None if there was none. Raises Transient."""
    return _loaded(notes.note(LIFECYCLE_NOTE))


def _loaded(text: str | None) -> WalkState | None:
    """None also for a note that cannot be understood: then the walk of the day begins anew."""
    try:
        data: dict[str, Any] = json.loads(text or "null")
        failed = {str(name): (int(tries), int(due_ms)) for name, (tries, due_ms) in data.pop("failed").items()}
        return WalkState(**{**data, "done": Expired(**data["done"]), "failed": failed})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _dumped(state: WalkState) -> str:
    return json.dumps(asdict(state), separators=(",", ":"), ensure_ascii=False)


def _tick(beat: Beat, stop: Event | None) -> bool:
    beat(0)
    return stop is not None and stop.is_set()


def _values(found: Expired) -> tuple[int, ...]:
    return found.examined, found.objects, found.bytes, found.uploads, found.failed


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
