"""Collects the lines of the access logs of buckets, and stores them as objects, many lines at a time.

The event loop adds lines, and one thread stores them, so a target bucket that is away or full never delays a request.
Memory is bounded: lines for which there is no room are dropped and counted. Delivery is best effort, as with S3: a
process that is killed loses the lines that it has not stored yet, at most those of BATCH_AGE_MS.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import NamedTuple

import structlog

from nos_ec.core.errors import NosError
from nos_ec.gateway.auth.log_target import KeyFormat, LogTarget
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.bucket_logging import LogObject
from nos_ec.gateway.server.log_lines import log_line
from nos_ec.gateway.server.record import Record
from nos_ec.ports.clock import Clock, waits
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request

BATCH_AGE_MS = 900_000
"""How long lines wait for others. S3 delivers most within a few hours."""
BATCH_BYTES_MAX = 4 << 20
LINES_BYTES_MAX = 32 << 20
"""Maximum memory of all lines of a process, including those whose delivery failed."""
TARGET_SHARE = 4
"""The lines for one target bucket may take at most this fraction of the memory (one in TARGET_SHARE), so that a bucket
that is away leaves room for the others."""
LINE_BYTES = 64
BATCH_BYTES = 1024
"""Memory that a line and a batch take in addition to their text."""
RETRY_MS_MIN, RETRY_MS_MAX = 1_000, 300_000
GIVE_UP_MS = 4 * 3_600_000
CLOSE_WAIT_S = 10.0
"""How long a process that ends stores lines."""
DAY_MS = 86_400_000

_log = structlog.get_logger(__name__)


class _Topic(NamedTuple):
    """What the lines of a batch have in common: the bucket, its owner, the target, and the day if keys have it."""

    source: str
    owner: str
    target: LogTarget
    day: int


@dataclass(slots=True)
class _Batch:
    topic: _Topic
    began_ms: int
    event_ms: int
    size: int = BATCH_BYTES
    lines: list[bytes] = field(default_factory=list)
    key: str = ""


class AccessLogs:
    """The lines of one process that are not stored yet. `add` may be called by one thread, and `close` by another."""

    def __init__(
        self,
        store: Callable[[LogObject], None],
        region: str,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        """`store` stores a log object. `new_id` returns a different text for each object."""
        self._store = store
        self._region = region
        self._clock = clock
        self._new_id = new_id
        self._changed = Condition()
        self._open: dict[_Topic, _Batch] = {}
        self._waiting: list[tuple[int, int, _Batch]] = []
        """Batches that get no more lines: when they are due, a number that makes the order unique, and the batch."""
        self._number = 0
        self._failing: dict[str, tuple[int, int]] = {}
        """Target buckets whose last attempt failed: when the next one is due, and how many have failed in a row."""
        self._bytes: Counter[str] = Counter()
        """Memory by target bucket."""
        self._thread: Thread | None = None
        self._closing = False
        self.delivered = 0
        """Number of lines that were stored."""
        self.dropped = 0
        """Number of lines that were given up."""

    def add(
        self, record: Record, request: Request, reply: Reply | None, tls: tuple[str, str] | None, http: str
    ) -> None:
        """Add the line of a request to a bucket that is logged. See `log_line`."""
        assert record.logged is not None
        target = record.logged.logging
        assert target is not None
        now_ms = self._clock.now_ms()
        received_ms = now_ms - round(record.whole_s * 1000)
        line = log_line(record, request, reply, received_ms, tls, http)
        day = received_ms // DAY_MS if target.key_format is KeyFormat.EVENT else 0
        topic = _Topic(record.bucket, record.logged.row.owner, target, day)
        with self._changed:
            batch = self._open.get(topic)
            size = len(line) + LINE_BYTES + (BATCH_BYTES if batch is None else 0)
            is_full = self._bytes[target.bucket] + size > LINES_BYTES_MAX // TARGET_SHARE
            if is_full or self._bytes.total() + size > LINES_BYTES_MAX or self._closing:
                self.dropped += 1
                return
            if batch is None:
                batch = self._open[topic] = _Batch(topic, now_ms, received_ms)
                self._changed.notify()
            self._bytes[target.bucket] += size
            batch.lines.append(line)
            batch.size += len(line) + LINE_BYTES
            if batch.size >= BATCH_BYTES_MAX:
                self._finish(batch)
                self._changed.notify()
            if self._thread is None:
                self._thread = Thread(target=self._work, name="access-logs", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Store the lines that wait, for at most CLOSE_WAIT_S, and drop the others. Call it after the last request."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is None:
            return
        self._thread.join(CLOSE_WAIT_S)
        with self._changed:
            left = [*self._open.values(), *(batch for _, _, batch in self._waiting)]
            self._open.clear()
            self._waiting.clear()
        for batch in left:
            self._drop(batch, "the process ends")

    def _finish(self, batch: _Batch) -> None:
        """Let a batch get no more lines. The caller holds the lock."""
        del self._open[batch.topic]
        self._put_back(batch, self._due_ms(batch))

    def _due_ms(self, batch: _Batch) -> int:
        """Return when the target of a batch may be tried again; 0 unless it fails."""
        return self._failing.get(batch.topic.target.bucket, (0, 0))[0]

    def _put_back(self, batch: _Batch, due_ms: int) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (due_ms, self._number, batch))

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            self._deliver(batch)

    def _next(self) -> _Batch | None:
        """Wait for a batch that is due, and return it; None at the end."""
        with self._changed:
            while True:
                now_ms = self._clock.now_ms()
                self._finish_old(now_ms)
                if self._waiting and (self._closing or not waits(self._waiting[0][0], now_ms, RETRY_MS_MAX)):
                    batch = heapq.heappop(self._waiting)[2]
                    if self._closing or not waits(due_ms := self._due_ms(batch), now_ms, RETRY_MS_MAX):
                        return batch
                    # An attempt may last until a server's time-out, and delay the batches for other targets. So a
                    # target that fails gets one attempt at a time, not one for each batch.
                    if waits(batch.began_ms + GIVE_UP_MS, now_ms, GIVE_UP_MS):
                        self._put_back(batch, due_ms)
                    else:
                        self._drop(batch, "its target could not be reached")
                    continue
                if self._closing:
                    return None
                oldest = next(iter(self._open.values()), None)
                times = [] if oldest is None else [oldest.began_ms + BATCH_AGE_MS]
                times += [due_ms for due_ms, _, _ in self._waiting[:1]]
                self._changed.wait((min(times) - now_ms) / 1000 if times else None)

    def _finish_old(self, now_ms: int) -> None:
        """Finish the open batches that are old enough. They are in the order in which they began, so only those are
        looked at, however many there are."""
        while self._open:
            batch = next(iter(self._open.values()))
            if not self._closing and waits(batch.began_ms + BATCH_AGE_MS, now_ms, BATCH_AGE_MS):
                return
            self._finish(batch)

    def _deliver(self, batch: _Batch) -> None:
        topic = batch.topic
        if not batch.key:
            now_ms, unique = self._clock.now_ms(), self._new_id()
            batch.key = topic.target.key(topic.owner, self._region, topic.source, batch.event_ms, now_ms, unique)
        log = LogObject(topic.source, topic.owner, topic.target.bucket, batch.key, b"".join(batch.lines))
        try:
            self._store(log)
        except Exception as error:
            self._failed(batch, error)
            return
        with self._changed:
            self._failing.pop(topic.target.bucket, None)
            self._forget(batch)
            self.delivered += len(batch.lines)

    def _failed(self, batch: _Batch, error: Exception) -> None:
        """Try a batch again later, or drop it: at the end, after GIVE_UP_MS, or if the target bucket refuses it."""
        is_refused = isinstance(error, S3Error) and error.status < 500
        target = batch.topic.target.bucket
        now_ms = self._clock.now_ms()
        with self._changed:
            _, failures = self._failing.get(target, (0, 0))
            if not is_refused:
                due_ms = now_ms + min(RETRY_MS_MAX, RETRY_MS_MIN * 2**failures)
                self._failing[target] = due_ms, min(failures + 1, 10)
            is_kept = not is_refused and not self._closing and waits(batch.began_ms + GIVE_UP_MS, now_ms, GIVE_UP_MS)
            if is_kept:
                self._put_back(batch, self._due_ms(batch))
        if not isinstance(error, NosError | S3Error) and not failures:
            _log.error("storing an access log failed", exc_info=error, bucket=batch.topic.source)
        if not is_kept:
            self._drop(batch, str(error))

    def _drop(self, batch: _Batch, reason: str) -> None:
        with self._changed:
            self._forget(batch)
            self.dropped += len(batch.lines)
        topic, lines = batch.topic, len(batch.lines)
        _log.warning(
            "part of an access log is lost", bucket=topic.source, target=topic.target.bucket, lines=lines, reason=reason
        )

    def _forget(self, batch: _Batch) -> None:
        self._bytes[batch.topic.target.bucket] -= batch.size
        if not self._bytes[batch.topic.target.bucket]:
            del self._bytes[batch.topic.target.bucket]
            self._failing.pop(batch.topic.target.bucket, None)
