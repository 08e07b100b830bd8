"""Counts the rows of a bucket, page by page: its current and noncurrent versions, and parts of uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nos_ec.core.parts import PARTS_BUCKET
from nos_ec.ports.metadata import BucketUsage, SizesPage, Sums, Usage

PAGE_ROWS = 10_000
"""Rows of one statement. A page takes about 10 ms."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted. `drift` is the most by which it may be wrong, because objects were changed meanwhile; None if
    that is unknown, because the bucket is not metered. `correction` is what the sums of a bucket lack that is metered
    since `since_ms`."""

    sums: Sums
    drift: Sums | None
    correction: Sums
    since_ms: int = 0

    @property
    def is_close(self) -> bool:
        """Whether less than 1 % was changed while it was counted."""
        if self.drift is None:
            return False
        return self.drift.bytes * 100 <= self.sums.bytes and self.drift.objects * 100 <= self.sums.objects


class BucketCount:
    """Counts one bucket, while others write to it. Not thread-safe."""

    def __init__(self, metadata: Usage, bucket: str) -> None:
        self.bucket = bucket
        self._metadata = metadata
        self._before = metadata.bucket_usage(bucket)
        self._sums = Sums()
        self._next: tuple[str, int] | None = None
        self._pages: list[Callable[[], SizesPage]] = [self._parts, self._noncurrent, self._current]

    def count_page(self) -> bool:
        """Count the next page. Returns whether that was the last one. Raises Transient."""
        page = self._pages[-1]()
        self._sums += page.sums
        self._next = page.next
        if page.next is None:
            self._pages.pop()
        return not self._pages

    def result(self) -> Counted:
        """Return what was counted, after the last page. Raises Transient."""
        before = self._before
        after: BucketUsage | None = None if before is None else self._metadata.bucket_usage(self.bucket)
        if before is None or after is None or after.since_ms != before.since_ms:
            return Counted(self._sums, None, Sums())
        # What was changed while pages were read is in some of them: half of it is the best guess.
        meanwhile = after.held - before.held
        known = before.held + Sums(meanwhile.bytes // 2, meanwhile.objects // 2)
        return Counted(self._sums, after.changed - before.changed, self._sums - known, before.since_ms)

    def _current(self) -> SizesPage:
        return self._metadata.current_sizes(self.bucket, self._name(), PAGE_ROWS)

    def _noncurrent(self) -> SizesPage:
        return self._metadata.noncurrent_sizes(self.bucket, self._next, PAGE_ROWS)

    def _parts(self) -> SizesPage:
        return self._metadata.current_sizes(PARTS_BUCKET + self.bucket, self._name(), PAGE_ROWS)

    def _name(self) -> str:
        return "" if self._next is None else self._next[0]


def count_bucket(metadata: Usage, bucket: str) -> Counted:
    """Count all rows of a bucket. Raises Transient."""
    count = BucketCount(metadata, bucket)
    while not count.count_page():
        pass
    return count.result()
