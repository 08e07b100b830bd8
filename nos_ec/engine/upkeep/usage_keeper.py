"""Keeps the sums of metered buckets: folds changes, and counts buckets that have become metered (docs/adr/0058).

A bucket is metered while it has a document of kind QUOTA, or its owner has a quota of bytes or objects. One process at
a time does this work. Two do no harm, because folding removes exactly what it has added up, and the result of a count
is used once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from threading import Event

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.core.quotas.quota import account_of, account_record, limits_usage
from nos_ec.engine.figures.bucket_count import BucketCount
from nos_ec.engine.figures.quota_use import QuotaUse, UseMetadata, nearest_to_quota
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Buckets, BucketUsage, DocumentKind
from nos_ec.ports.metadata.buckets import METERED_MS

_log = structlog.get_logger(__name__)

FOLD_ROWS = 2000
FOLDS_MAX = 50
"""Batches of a turn, after which other work has its turn."""
LOOK_MS = 10_000
"""How often the metered buckets are searched for some that are not counted yet."""
REVIEW_MS = 600_000
"""How often the documents of all buckets are compared with the metered buckets. Commands that change a document do so
at once; this is for buckets that were deleted, and after a rebuild of the metadata."""
IDLE_WAIT_MS = 1000
FAILED_WAIT_MS = 5000
COUNT_AFTER_MS = METERED_MS + 10_000
"""A bucket is counted so long after it became metered. By then, every process adds its changes, and transactions that
began before have ended."""
COUNT_LOOKS = 4
"""A daemon counts a bucket when it has seen it so often, too: the clock of the process that metered it may be behind,
and its own may jump. So COUNT_AFTER_MS have passed, even if a jump brings one of these looks forward."""
COUNT_PAGES = 20
"""Pages of a turn."""
TRIES_MAX = 5
"""How often a bucket is counted, while 1 % or more is changed meanwhile, before the last result is taken."""
_PAGE_BUCKETS = 1000
SHOWN_BUCKETS = 100
"""Buckets that change most, which have metrics of their own: each is two series in Prometheus."""
SHOWN_QUOTAS = 100
QUOTAS_MS = 60_000
"""How often the quotas are read that are nearly used up."""


@dataclass(frozen=True, slots=True)
class UsageShown:
    """How many buckets are metered; the usage of those that are always shown, and of at most SHOWN_BUCKETS others that
    change most; and the buckets and accounts that use the greatest shares of their quotas, at most SHOWN_QUOTAS."""

    metered: int = 0
    buckets: Sequence[BucketUsage] = ()
    nearest: Sequence[QuotaUse] = ()


class UsageKeeper:
    """One thread runs it. Any thread may read `shown`."""

    def __init__(self, metadata: UseMetadata, clock: Clock, always_shown: Collection[str] = ()) -> None:
        """`always_shown`: the buckets that are shown even if others change more."""
        self._metadata = metadata
        self._clock = clock
        self._always_shown = frozenset(always_shown)
        self._look_ms = self._review_ms = self._quotas_ms = 0
        self._to_count: list[str] = []
        self._count: BucketCount | None = None
        self._tries = 0
        self._looks: dict[str, tuple[int, int]] = {}
        self._looks_min = 0
        self.shown = UsageShown()

    def turn(self) -> bool:
        """Do some work. Returns whether more waits. Raises Transient."""
        folded = 0
        for _ in range(FOLDS_MAX):
            batch = self._metadata.fold_usage(FOLD_ROWS)
            folded += batch
            if batch < FOLD_ROWS:
                break
        now_ms = self._clock.now_ms()
        if not waits(self._review_ms, now_ms, REVIEW_MS):
            self._review(now_ms)
            self._review_ms = now_ms + REVIEW_MS
        if not waits(self._look_ms, now_ms, LOOK_MS):
            self._look(now_ms)
            self._look_ms = now_ms + LOOK_MS
        if self.shown.metered and not waits(self._quotas_ms, now_ms, QUOTAS_MS):
            self.shown = replace(self.shown, nearest=nearest_to_quota(self._metadata, SHOWN_QUOTAS))
            self._quotas_ms = now_ms + QUOTAS_MS
        is_counting = self._count_some(now_ms)
        return is_counting or folded >= FOLD_ROWS * FOLDS_MAX

    def drain(self) -> None:
        """Work until nothing is left that can be done now. Raises Transient."""
        while self.turn():
            pass

    def _review(self, now_ms: int) -> None:
        """Meter exactly the buckets that need it. Metered buckets are read first: one that becomes metered meanwhile
        would otherwise seem not to need it."""
        metered = {one.bucket for one in self._usages()}
        wanted = set(self._wanted())
        for bucket in sorted(wanted - metered):
            self._metadata.meter_bucket(bucket, now_ms)
            kill_point("usage.metered")
        for bucket in sorted(metered - wanted):
            self._metadata.unmeter_bucket(bucket)

    def _look(self, now_ms: int) -> None:
        """Find the buckets that are to be counted, and those that metrics show."""
        looks: dict[str, tuple[int, int]] = {}
        metered, to_count, named, busiest = 0, [], list[BucketUsage](), list[BucketUsage]()
        for one in self._usages():
            metered += 1
            if one.counted_ms is None:
                since_ms, seen = self._looks.get(one.bucket, (one.since_ms, 0))
                looks[one.bucket] = one.since_ms, seen + 1 if since_ms == one.since_ms else 1
                if _is_to_be_counted(one, now_ms) and looks[one.bucket][1] >= self._looks_min:
                    to_count.append(one.bucket)
            else:
                (named if one.bucket in self._always_shown else busiest).append(one)
            if len(busiest) >= 2 * SHOWN_BUCKETS:
                busiest = nlargest(SHOWN_BUCKETS, busiest, key=_activity)
        self._to_count, self._looks = to_count, looks
        shown = [*named, *nlargest(SHOWN_BUCKETS, busiest, key=_activity)]
        self.shown = UsageShown(metered, shown, self.shown.nearest if metered else ())

    def _wanted(self) -> Iterator[str]:
        after = ""
        while page := self._metadata.documents_of(DocumentKind.QUOTA, after, _PAGE_BUCKETS):
            after = page[-1][0]
            yield from (name for name, _ in page)
        for account in self._accounts():
            yield from buckets_of(self._metadata, account)

    def _accounts(self) -> Iterator[str]:
        after = account_record("")
        while page := self._metadata.access_keys(after, _PAGE_BUCKETS):
            for record in page:
                account = account_of(record.access_key)
                if account is None:
                    return
                if limits_usage(record.secret):
                    yield account
            after = page[-1].access_key

    def _usages(self) -> Iterator[BucketUsage]:
        after = ""
        while page := self._metadata.bucket_usages(after, _PAGE_BUCKETS):
            after = page[-1].bucket
            yield from page

    def _count_some(self, now_ms: int) -> bool:
        """Count some pages of a bucket. Returns whether there are more, or more buckets."""
        if self._count is None:
            if not self._to_count:
                return False
            self._count = BucketCount(self._metadata, self._to_count[0])
        for _ in range(COUNT_PAGES):
            if self._count.count_page():
                self._settle(self._count, now_ms)
                return bool(self._to_count)
        return True

    def _settle(self, count: BucketCount, now_ms: int) -> None:
        found, self._count = count.result(), None
        self._tries += 1
        if found.drift is not None and not found.is_close and self._tries < TRIES_MAX:
            return  # it is counted again
        if found.drift is not None:
            if not found.is_close and found.drift.objects:
                _log.warning(
                    "the usage of a bucket is not exact: too much was changed while it was counted",
                    bucket=count.bucket,
                    bytes_off_max=found.drift.bytes,
                    objects_off_max=found.drift.objects,
                )
            self._metadata.settle_usage(count.bucket, found.since_ms, found.correction, now_ms)
            kill_point("usage.counted")
            _log.info("bucket counted", bucket=count.bucket, bytes=found.sums.bytes, objects=found.sums.objects)
        self._to_count = [bucket for bucket in self._to_count if bucket != count.bucket]
        self._tries = 0

    def run(self, stop: Event, may_work: Callable[[], bool]) -> None:
        """Work until `stop` is set, while `may_work` returns true. A failure of the metadata is logged, and the work is
        tried again."""
        self._looks_min = COUNT_LOOKS
        while not stop.is_set():
            try:
                wait_ms = 0 if may_work() and self.turn() else IDLE_WAIT_MS
            except Transient as error:
                _log.warning("usage of buckets not kept; trying again", error=str(error))
                wait_ms = FAILED_WAIT_MS
            except Exception:
                # The thread continues after a bug with one bucket, as if the metadata had failed.
                _log.exception("usage of buckets not kept; trying again")
                self._count, self._to_count = None, []
                wait_ms = FAILED_WAIT_MS
            if wait_ms:
                self._clock.wait(stop, wait_ms)


def _activity(one: BucketUsage) -> int:
    """Return how many objects were added and removed since the bucket is metered. It only grows, so the buckets that
    are shown seldom change."""
    return one.changed.objects


def buckets_of(metadata: Buckets, account: str) -> Iterator[str]:
    """Yield the names of the buckets of an account. Raises Transient."""
    after = ""
    while page := metadata.buckets_of(account, after, _PAGE_BUCKETS):
        after = page[-1].name
        yield from (row.name for row in page)


def _is_to_be_counted(one: BucketUsage, now_ms: int) -> bool:
    return not waits(one.since_ms + COUNT_AFTER_MS, now_ms, COUNT_AFTER_MS)
