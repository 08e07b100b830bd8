"""The times at which objects will expire by the lifecycle rules of their bucket.

The packer packs objects together that expire together, so that all objects of a block die at the same time
(docs/adr/0035). Exports of events use the times as well. For wide buckets whose rules are in another cell, they are
read there (docs/adr/0072), on a separate thread: packing does not wait for that cell.

9  memory holds at most RULES_KNOWN_MAX rules
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Event, Thread
from typing import TypeAlias

import structlog

from nos_ec.core.errors import Corrupt, NosError
from nos_ec.core.expiry import BucketRules, ExpiryRule, tags_of
from nos_ec.engine.expiry.lifecycle_rules import LifecycleRules, OtherCells, RuledBucket
from nos_ec.engine.packable import Packable
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import Buckets, ObjectRow

REFRESH_MS = 300_000
"""The greatest age of the rules that a packer uses."""
RULES_KNOWN_MAX = 20_000
"""About 10 MB. Objects of the remaining buckets are packed by their expected lifetimes."""
FIRST_WAIT_S = 1.0
"""How long the first refresh waits for other cells, which usually takes milliseconds: a process that packs a few
objects and ends would never know their rules otherwise."""
END_WAIT_S = 1.0
"""How long `close` waits for a cell that hangs."""

_Rules: TypeAlias = tuple[str, Sequence[ExpiryRule]]
"""A bucket and its rules."""

_log = structlog.get_logger(__name__)


class KnownExpiry:
    """The rules of all buckets, at most REFRESH_MS old. Belongs to one thread. day_ms: the length of a day in rules.
    others: the other cells, which have the rules of some wide buckets; used by one thread at a time, until `close`."""

    def __init__(self, metadata: Buckets, day_ms: int, others: OtherCells | None = None) -> None:
        self._lifecycle = LifecycleRules(metadata, others)
        self._day_ms = day_ms
        self._next_ms = 0
        self._own: dict[str, BucketRules] = {}
        self._elsewhere = _RulesElsewhere(self._lifecycle, day_ms)

    def expires_ms(self, one: Packable | ObjectRow, born_ms: int, now_ms: int) -> int | None:
        """Return when an object that was PUT at `born_ms` will expire, or None if no known rule applies to it. Uses the
        last known rules while the metadata store, or the first cell of a wide bucket, does not answer."""
        if not waits(self._next_ms, now_ms, REFRESH_MS):
            self._next_ms = now_ms + REFRESH_MS
            self._refresh()
        bucket = one.key.bucket
        rules = self._own.get(bucket) or self._elsewhere.known.get(bucket)
        if rules is None:
            return None
        expiry = rules.expiry(one.key.name, one.size, lambda: tags_of(one.attributes), born_ms)
        return None if expiry is None else expiry.due_ms

    def close(self) -> None:
        """Stop reading in other cells. Idempotent. Waits for END_WAIT_S at most."""
        self._elsewhere.close()

    def _refresh(self) -> None:
        elsewhere: list[RuledBucket] = []
        try:
            found, room = _fitting(self._read(elsewhere), RULES_KNOWN_MAX)
        except NosError as error:
            _log.warning("lifecycle rules not read; packing uses the last known ones", error=str(error))
            return
        self._own = {bucket: BucketRules(rules, self._day_ms) for bucket, rules in found.items()}
        self._elsewhere.refresh(elsewhere, room)

    def _read(self, elsewhere: list[RuledBucket]) -> Iterator[_Rules]:
        """Yield the buckets whose rules are in this cell. Adds the others to `elsewhere`. Raises Transient."""
        after = ""
        while page := self._lifecycle.page(after):
            for bucket in page:
                if bucket.mark is not None:
                    elsewhere.append(bucket)
                    continue
                try:
                    yield bucket.name, self._lifecycle.read(bucket).rules
                except Corrupt as error:
                    _log.warning("lifecycle rules not read", bucket=bucket.name, error=str(error))
            after = page[-1].name


class _RulesElsewhere:
    """The rules of wide buckets that are in other cells. A thread reads them, because a cell that hangs takes seconds
    to fail."""

    def __init__(self, lifecycle: LifecycleRules, day_ms: int) -> None:
        self._lifecycle = lifecycle
        self._day_ms = day_ms
        self._last: dict[str, Sequence[ExpiryRule]] = {}
        """The rules as they were read last. Used only by the thread."""
        self._thread: Thread | None = None
        self._closed = Event()
        self.known: Mapping[str, BucketRules] = {}

    def refresh(self, buckets: Sequence[RuledBucket], room: int) -> None:
        """Begin to read the rules of these buckets, at most `room` rules, unless the last refresh has not ended. The
        first time, wait for them for FIRST_WAIT_S at most."""
        is_first = self._thread is None
        if (is_first and not buckets) or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = Thread(target=self._refresh, args=(buckets, room), name="wide-rules", daemon=True)
        self._thread.start()
        if is_first:
            self._thread.join(FIRST_WAIT_S)

    def close(self) -> None:
        """See `KnownExpiry.close`."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)

    def _refresh(self, buckets: Sequence[RuledBucket], room: int) -> None:
        failures: list[NosError] = []
        self._last, _ = _fitting(self._read(buckets, failures), room)
        self.known = {bucket: BucketRules(rules, self._day_ms) for bucket, rules in self._last.items()}
        if failures:
            _log.warning(
                "lifecycle rules of wide buckets not read in their first cells; packing uses the last known ones",
                buckets=len(failures),
                error=str(failures[0]),
            )

    def _read(self, buckets: Sequence[RuledBucket], failures: list[NosError]) -> Iterator[_Rules]:
        for bucket in buckets:
            if self._closed.is_set():
                return
            try:
                rules = self._lifecycle.read(bucket).rules
            except NosError as error:
                failures.append(error)
                rules = self._last.get(bucket.name, ())
            yield bucket.name, rules


def _fitting(buckets: Iterable[_Rules], room: int) -> tuple[dict[str, Sequence[ExpiryRule]], int]:
    """Return the first of these buckets, up to `room` rules, and the room that is left."""
    found: dict[str, Sequence[ExpiryRule]] = {}
    for bucket, rules in buckets:
        if len(rules) > room:
            _log.warning("too many lifecycle rules; packing ignores those of some buckets", rules_max=RULES_KNOWN_MAX)
            return found, 0
        room -= len(rules)
        if rules:
            found[bucket] = rules
    return found, room
