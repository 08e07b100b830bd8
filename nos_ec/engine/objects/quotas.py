"""Admits PUTs within the quotas of their bucket and its owner (docs/adr/0058).

A process reads the usage of a bucket with a quota at most every USED_MS. To that it adds what it has admitted since,
and what is in flight. A PUT that takes longer than USED_MS is judged again while it is read, because other processes do
not know of it until it is recorded. So a quota may be exceeded by what all other processes store in USED_MS, and no
more. What is overwritten or deleted makes room when the usage is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import structlog

from nos_ec.core.errors import Corrupt, QuotaExceeded
from nos_ec.core.ids import ObjectKey
from nos_ec.core.quotas.quota import Quota, decode, metered_bucket
from nos_ec.engine.objects.streams import ByteStream
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import QuotaFacts, Sums, Usage
from nos_ec.ports.metadata.buckets import NOTHING

_log = structlog.get_logger(__name__)

USED_MS = 5000
"""How long the usage of a bucket or account with a quota is used before it is read again."""
FACTS_MS = 10_000
"""How long a process remembers that neither the bucket nor its owner has a quota."""
WARN_MS = 3_600_000
"""How often the log repeats that a soft limit is exceeded."""
_SCOPES_MAX = 10_000


@dataclass(slots=True)
class _Scope:
    """A bucket or an account: `used` is what it held when it was read last, with the read of this number; None while it
    is being counted.
    `stored_ever` only grows, by what this process stores; `used` includes the first part of that, `in_used`."""

    name: str
    quota: Quota = field(default_factory=Quota)
    read_number: int = 0
    used: Sums | None = None
    stored_ever: Sums = NOTHING
    in_used: Sums = NOTHING
    in_flight: Sums = NOTHING
    warned_ms: int = 0

    @property
    def stored(self) -> Sums:
        """What this process has stored since `used` was read."""
        return self.stored_ever - self.in_used

    def require_room(self, more: Sums, key: ObjectKey) -> None:
        """Raise QuotaExceeded if `more` exceeds a hard limit."""
        if self.used is None:
            return
        after = self.used + self.stored + self.in_flight + more
        for held, limit, what in (
            (after.bytes, self.quota.hard_bytes, "bytes"),
            (after.objects, self.quota.hard_objects, "objects"),
        ):
            if limit is not None and held > limit:
                raise QuotaExceeded(
                    f"{key}: the quota of {self.name} is {limit} {what}, and it would use {held}", key=key
                )

    def warn(self, now_ms: int) -> None:
        """Log that a soft limit is exceeded, from time to time."""
        if self.used is None or waits(self.warned_ms + WARN_MS, now_ms, WARN_MS):
            return
        held = self.used + self.stored
        soft_bytes, soft_objects = self.quota.soft_bytes, self.quota.soft_objects
        if (soft_bytes is not None and held.bytes > soft_bytes) or (
            soft_objects is not None and held.objects > soft_objects
        ):
            self.warned_ms = now_ms
            _log.warning("soft quota exceeded", of=self.name, bytes=held.bytes, objects=held.objects)


@dataclass(slots=True)
class _Known:
    """The scopes of a bucket that have limits, as of `read_ms`. A thread has begun to read them again at `begun_ms`."""

    read_ms: int
    begun_ms: int
    keep_ms: int
    scopes: list[_Scope]

    def is_usable(self, now_ms: int) -> bool:
        """Return whether this is new enough, or a thread reads it again and it is not much older."""
        if waits(self.read_ms + self.keep_ms, now_ms, self.keep_ms):
            return True
        late_ms = self.keep_ms + USED_MS
        return waits(self.begun_ms + USED_MS, now_ms, USED_MS) and waits(self.read_ms + late_ms, now_ms, late_ms)


class Admission:
    """The room that a PUT takes: what it has announced, or has sent if that is more."""

    def __init__(
        self, quotas: Quotas, bucket: str, scopes: list[_Scope], key: ObjectKey, announced: Sums, now_ms: int
    ) -> None:
        self._quotas = quotas
        self._bucket = bucket
        self._scopes = scopes
        self._key = key
        self.room = announced
        self._read = 0
        self._judged_ms = now_ms

    def stream(self, rest: ByteStream) -> ByteStream:
        """Return the stream, whose bytes take room when they are read. Its `read` raises QuotaExceeded."""
        self._rest = rest
        return self

    def read(self, size: int, /) -> bytes | None:
        """See `ByteStream`."""
        piece = self._rest.read(size)
        self._judged_ms = self._quotas.judge_again(self._bucket, self._key, self._judged_ms)
        if piece:
            self._read += len(piece)
            if self._read > self.room.bytes:
                more = Sums(self._read - self.room.bytes)
                self._quotas.take(self._scopes, more, self._key)
                self.room += more
        return piece


class Quotas:
    """The quotas that PUTs of this process meet. Safe to call from several threads."""

    def __init__(self, metadata: Usage, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()
        self._reads = 0

    @contextmanager
    def admitted(self, key: ObjectKey, size: int, objects: int = 1) -> Iterator[Admission | None]:
        """Hold the room of a PUT of `size` bytes, 0 if that is not known yet; None if nothing limits it. Raises
        QuotaExceeded, Transient."""
        bucket = metered_bucket(key.bucket)
        scopes = [] if bucket is None else self._scopes_of(bucket)
        if bucket is None or not scopes:
            yield None
            return
        admission = Admission(self, bucket, scopes, key, Sums(size, objects), self._clock.now_ms())
        self.take(scopes, admission.room, key)
        stored = False
        try:
            yield admission
            stored = True
        finally:
            self._settle(scopes, admission.room, stored=stored)

    def take(self, scopes: list[_Scope], more: Sums, key: ObjectKey) -> None:
        """Take room in all of these scopes, or in none. Raises QuotaExceeded."""
        with self._lock:
            for scope in scopes:
                scope.require_room(more, key)
            for scope in scopes:
                scope.in_flight += more

    def judge_again(self, bucket: str, key: ObjectKey, judged_ms: int) -> int:
        """If a PUT was judged longer than USED_MS ago, read the usage again, and raise QuotaExceeded if others have
        taken its room. Returns when it was judged last. Raises Transient."""
        now_ms = self._clock.now_ms()
        if waits(judged_ms + USED_MS, now_ms, USED_MS):
            return judged_ms
        scopes = self._scopes_of(bucket)
        with self._lock:
            for scope in scopes:
                scope.require_room(NOTHING, key)
        return now_ms

    def _settle(self, scopes: list[_Scope], room: Sums, *, stored: bool) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            for scope in scopes:
                scope.in_flight -= room
                if stored:
                    scope.stored_ever += room
                    scope.warn(now_ms)

    def _scopes_of(self, bucket: str) -> list[_Scope]:
        now_ms = self._clock.now_ms()
        with self._lock:
            known = self._known.get(bucket)
            if known is not None and known.is_usable(now_ms):
                return known.scopes
            if known is not None:
                known.begun_ms = now_ms  # this thread reads it; others use what is known until then
            self._reads += 1
            number = self._reads
            before = {scope.name: scope.stored_ever for scope in (known.scopes if known is not None else ())}
        facts = self._metadata.quota_facts(bucket)
        with self._lock:
            scopes = [
                self._scope(name, quota, used, before.get(name), number)
                for name, quota, used in _limits(facts)
                if quota.limits_usage
            ]
            self._known[bucket] = _Known(now_ms, now_ms, USED_MS if scopes else FACTS_MS, scopes)
            self._known.move_to_end(bucket)
            while len(self._known) > _SCOPES_MAX:
                self._known.popitem(last=False)
            return scopes

    def _scope(self, name: str, quota: Quota, used: Sums | None, in_used: Sums | None, number: int) -> _Scope:
        """Return the scope with what was read. `in_used` was stored before that, so `used` has it. For an account whose
        other buckets were known before, that is not known: then what it has stored counts twice until the next time.
        Two threads may read an account by two of its buckets, and the one that began first may end last: what it has
        read is not used."""
        scope = self._scopes.setdefault(name, _Scope(name))
        if number > scope.read_number:
            scope.quota, scope.used, scope.read_number = quota, used, number
            scope.in_used = scope.in_used if in_used is None else in_used
        self._scopes.move_to_end(name)
        while len(self._scopes) > _SCOPES_MAX:
            self._scopes.popitem(last=False)
        return scope


def _limits(facts: QuotaFacts) -> Iterator[tuple[str, Quota, Sums | None]]:
    """Yield the name, quota and usage of the bucket and of its owner."""
    for name, stored, used in (
        (f"bucket {facts.bucket}", facts.bucket_quota, facts.bucket_used),
        (f"account {facts.account}", facts.account_quota, facts.account_used),
    ):
        if stored is not None:
            try:
                yield name, decode(stored), used
            except Corrupt as error:
                _log.error("quota not applied", of=name, error=str(error))
