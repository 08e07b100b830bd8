"""Several callers at once on the versions of one key or two, and the histories of what they were answered.

A round leaves some kinds of calls out, so that those which are left meet more often (A. Groce et al., Swarm Testing,
2012). What callers ask for depends on what they know, so it depends on the timing too.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Barrier, Lock
from typing import Any

from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.errors import NosError, NotFound, PreconditionFailed, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning, as_null_version, as_version
from nos_ec.ports.metadata import (
    AddMarker,
    DeleteVersion,
    ExpireMarker,
    ExpireVersion,
    Lease,
    Metadata,
    ObjectRow,
    VersionDeletion,
    VersionEntry,
)
from tests.rig.fakes.metadata_bench import MetadataBench, asking
from tests.rig.sql.version_histories import STEPS_MAX, Event
from tests.rig.sql.version_model import (
    ENABLED,
    LOST,
    SUSPENDED,
    Answer,
    Delete,
    Expire,
    Found,
    Get,
    GetVersion,
    Mark,
    Put,
    PutLarge,
    Remove,
    RemoveLoneMarker,
    Step,
    Undelete,
)

BUCKET = "bucket"
THREADS = 4
STEPS_EACH = 3
"""Steps of a thread."""
STEPS_BEFORE_MAX = 4
"""Up to this many are taken before the threads begin, one after the other."""
assert THREADS * STEPS_EACH + STEPS_BEFORE_MAX <= STEPS_MAX

BELIEVED: Sequence[Sequence[Versioning | None]] = [
    [ENABLED],
    [SUSPENDED],
    [None],
    [ENABLED, SUSPENDED],
    [ENABLED, ENABLED, SUSPENDED, None],
]
"""What the callers of a round believe of the bucket: the caches of gateways differ after a change."""
ATTRIBUTES = {None: b"", ENABLED: as_version(b""), SUSPENDED: as_null_version(b"")}
DELETIONS = ("mark", "remove", "expire")
"""What one transaction may do several of."""
KINDS = ("put", "put large", "delete", *DELETIONS, "undelete", "pack", "get", "get version")
MAKING = ("put", "put large", "mark")
"""What can do something to a key that is new."""
KINDS_EACH = 3, 6
"""How many of them a round has, at least and at most. PUTs are in each."""

AHEAD_MS = 10_000
"""How far the clocks of every other thread are ahead in half of the rounds. No round takes that long."""
LATE_MS = 2**60
"""All has been noncurrent, or in the trash, for long enough then."""
PAUSE_S_MAX = 0.01
"""Between the beginning and the end of a large PUT."""
BEGIN_S_MAX = 60
"""Until all threads have begun. They do so at once, unless one has failed or the machine stands still."""


class Callers:
    """What all rounds on one store share. counts: of steps by class that did something, of all that were answered, of
    those whose transactions were ended, and of groups packed. A number that only one of several threads may get comes
    from `itertools.count`, which is atomic."""

    def __init__(self, metadata: Metadata) -> None:
        self.bench = MetadataBench(metadata)
        self.leases = [self.bench.lease() for _ in range(THREADS + 1)]
        self._clock_ms = count(self.bench.now_ms + 1)
        self.tags = count(1)
        self.calls = count(1)
        self.counts: Counter[str] = Counter()

    def now_ms(self, ahead_ms: int = 0) -> int:
        """Return a time, in milliseconds, that no other call gets from the same clock. ahead_ms: how far this clock is
        ahead."""
        return next(self._clock_ms) + ahead_ms


@dataclass
class _Known:
    """What the callers have learnt of a key: numbers of its versions and markers, numbers of its markers alone, tags of
    its versions, and rows of its small objects."""

    numbers: list[int] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    rows: list[ObjectRow] = field(default_factory=list)

    def learn(self, answer: Found, result: object) -> None:
        """Learn of what was made."""
        self.numbers.append(answer.number)
        if answer.tag:
            self.tags.append(answer.tag)
        else:
            self.markers.append(answer.number)
        if isinstance(result, ObjectRow):
            self.rows.append(result)


class _Caller:
    """The choices of one thread, its lease, and how far its clock is ahead."""

    def __init__(
        self, seed: str, lease: Lease, names: Sequence[str], believed: Sequence[Versioning | None], ahead_ms: int
    ) -> None:
        self.rng = random.Random(seed)
        self.lease = lease
        self.ahead_ms = ahead_ms
        self._names = names
        self._believed = believed

    def is_one_of(self, odds: int) -> bool:
        """Return True at random, once in `odds` calls on average."""
        return self.rng.randrange(odds) == 0

    def name(self) -> str:
        """A key."""
        return self.rng.choice(self._names)

    def names(self, steps_max: int) -> list[str]:
        """The keys of a call of several steps. Most have one."""
        several = self.rng.randint(2, 3) if self.is_one_of(3) else 1
        return self.rng.choices(self._names, k=min(several, steps_max))

    def versioning(self) -> Versioning | None:
        """What it believes of the bucket now."""
        return self.rng.choice(self._believed)

    def marking(self) -> Versioning:
        """Likewise. Only callers that know of versions add markers."""
        return self.rng.choice([one for one in self._believed if one is not None])

    def number(self, known: _Known) -> int | None:
        """One of the last versions; None: the null version."""
        return self.rng.choice([None, *known.numbers[-3:]])


class Round:
    """One round, on keys of its own whose names begin with `prefix`. histories: by name."""

    def __init__(self, callers: Callers, seed: str, prefix: str) -> None:
        rng = random.Random(seed)
        names = [f"{prefix}-{number}" for number in range(rng.choice([1, 1, 1, 2]))]
        self.histories: dict[str, list[Event]] = {name: [] for name in names}
        self._callers, self._bench, self._metadata = callers, callers.bench, callers.bench.metadata
        self._known = {name: _Known() for name in names}
        self._kinds = ["put", *rng.sample(KINDS, rng.randint(*KINDS_EACH))]
        self._steps_before = rng.randint(0, STEPS_BEFORE_MAX)
        believed = rng.choice(BELIEVED)
        if not any(believed):
            self._kinds = [kind for kind in self._kinds if kind != "mark"]
        ahead_ms = rng.choice([0, AHEAD_MS])
        self._threads = [
            _Caller(f"{seed}/{i}", lease, names, believed, ahead_ms * (i % 2)) for i, lease in enumerate(callers.leases)
        ]
        self._behind_ms = callers.now_ms()
        self._lock = Lock()
        self._ways: dict[str, Callable[[_Caller, int], int]] = {
            "put": self._put,
            "put large": self._put_large,
            "delete": self._delete,
            "mark": self._mark,
            "remove": self._remove,
            "expire": self._expire,
            "undelete": self._undelete,
            "pack": self._pack,
            "get": self._get,
            "get version": self._get_version,
        }

    def run(self, pool: ThreadPoolExecutor) -> None:
        """Make the histories, in THREADS threads of the pool. Raises what a method may not raise."""
        *threads, first = self._threads
        self._take(first, self._steps_before)
        gate = Barrier(len(threads))

        def work(caller: _Caller) -> None:
            gate.wait(BEGIN_S_MAX)
            self._take(caller, STEPS_EACH)

        for done in [pool.submit(work, caller) for caller in threads]:
            done.result()

    def _take(self, caller: _Caller, steps: int) -> None:
        while steps > 0:
            kind = caller.rng.choice(self._kinds)
            if kind not in MAKING and not any(known.numbers for known in self._known.values()):
                kind = "put"
            steps -= self._ways[kind](caller, steps)

    # --- one call each; all return how many steps it was, at most `steps_max` -----------------------------
    def _put(self, caller: _Caller, steps_max: int) -> int:
        versioning = caller.versioning()
        steps: list[tuple[str, Step]] = []
        new = []
        for name in caller.names(steps_max):
            over = self._over(caller, name)
            step = Put(versioning, next(self._callers.tags), over)
            condition = _condition(over)
            asked = {"versioning": versioning, "condition": condition, "attributes": ATTRIBUTES[versioning]}
            new.append(asking(replace(self._bench.new(name, bucket=BUCKET), md5=_md5(step.tag)), **asked))
            steps.append((name, step))
        now_ms = self._callers.now_ms(caller.ahead_ms)
        return self._call(steps, lambda: self._metadata.record_puts(new, now_ms))

    def _put_large(self, caller: _Caller, _steps_max: int) -> int:
        name, versioning, tag = caller.name(), caller.versioning(), next(self._callers.tags)
        over = self._over(caller, name)
        condition = _condition(over)
        called_ns, begun_ms = time.monotonic_ns(), self._callers.now_ms(caller.ahead_ms)
        number = self._metadata.next_version(
            _key(name), begun_ms, of_all=versioning is not None, conditional=condition is not None
        )
        large = self._bench.large(name, caller.lease, version=number, condition=condition)
        large = asking(replace(large, md5=_md5(tag)), versioning=versioning, attributes=ATTRIBUTES[versioning])
        time.sleep(caller.rng.random() * PAUSE_S_MAX)
        now_ms = self._callers.now_ms(caller.ahead_ms)

        def record() -> list[Found | NosError]:
            recorded = self._metadata.record_large(large, caller.lease, now_ms)
            if isinstance(recorded, Transient):
                raise recorded
            return [recorded if isinstance(recorded, NosError) else Found(number if recorded else LOST, tag)]

        return self._call([(name, PutLarge(versioning, number, tag, over))], record, called_ns)

    def _over(self, caller: _Caller, name: str) -> int | None:
        """The condition of a PUT (see `Put.over`). Most have none."""
        return caller.rng.choice([0, *self._known[name].tags[-3:]]) if caller.is_one_of(3) else None

    def _delete(self, caller: _Caller, _steps_max: int) -> int:
        name = caller.name()
        step = Delete(caller.is_one_of(3), self._callers.now_ms(caller.ahead_ms))
        until_ms = LATE_MS if step.in_trash else None
        return self._call([(name, step)], lambda: [self._metadata.delete(_key(name), step.now_ms, until_ms)])

    def _mark(self, caller: _Caller, steps_max: int) -> int:
        return self._delete_versions(caller, "mark", steps_max)

    def _remove(self, caller: _Caller, steps_max: int) -> int:
        return self._delete_versions(caller, "remove", steps_max)

    def _expire(self, caller: _Caller, steps_max: int) -> int:
        return self._delete_versions(caller, "expire", steps_max)

    def _delete_versions(self, caller: _Caller, kind: str, steps_max: int) -> int:
        """Several deletions in one transaction, the first one of this kind. The caller's clock may be behind."""
        in_trash = caller.is_one_of(3)
        kinds = [one for one in DELETIONS if one in self._kinds]
        steps: list[tuple[str, Step]] = []
        deletions: list[VersionDeletion] = []
        for name in caller.names(steps_max):
            step, deletion = self._deletion(caller, name, caller.rng.choice(kinds) if steps else kind, in_trash)
            steps.append((name, step))
            deletions.append(deletion)
        now_ms = self._behind_ms if caller.is_one_of(2) else self._callers.now_ms(caller.ahead_ms)
        until_ms = LATE_MS if in_trash else None
        return self._call(steps, lambda: self._metadata.delete_versions(deletions, now_ms, until_ms))

    def _deletion(self, caller: _Caller, name: str, kind: str, in_trash: bool) -> tuple[Step, VersionDeletion]:
        known, key = self._known[name], _key(name)
        row = caller.rng.choice(known.rows) if known.rows else None
        if kind == "mark":
            seen, versioning = row if caller.is_one_of(3) else None, caller.marking()
            step = Mark(versioning, None if seen is None else tag_of(seen), in_trash)
            return step, AddMarker(key, versioning, seen=seen)
        if kind == "expire" and row is not None and caller.is_one_of(2):
            newer = caller.rng.randint(0, 1)
            expired = ExpireVersion(key, row.version, row, LATE_MS, newer)
            return Expire(row.version, tag_of(row), newer, in_trash), expired
        if kind == "expire" and known.markers:
            number = caller.rng.choice(known.markers)
            if caller.is_one_of(2):
                return RemoveLoneMarker(number), ExpireMarker(key, number)
            return Expire(number, 0, 0, in_trash), ExpireVersion(key, number, None, LATE_MS)
        asked = caller.number(known)
        return Remove(asked, in_trash), DeleteVersion(key, asked)

    def _undelete(self, caller: _Caller, steps_max: int) -> int:
        name = caller.name()
        if not self._known[name].rows:
            return self._get(caller, steps_max)
        row = caller.rng.choice(self._known[name].rows)
        return self._call([(name, Undelete(tag_of(row)))], lambda: self._metadata.undelete([row]).rows or [None])

    def _pack(self, caller: _Caller, steps_max: int) -> int:
        """Move the bytes of up to two versions. No answer, and nothing that the histories tell, depends on it."""
        known = self._known[caller.name()].rows
        some = caller.rng.sample(known, min(2, len(known)))
        found = self._metadata.objects_with([row.object_id for row in some]).values() if some else ()
        rows = [row for row in found if row.state.in_landing or row.extent is not None]
        if not rows:
            return self._get(caller, steps_max)
        try:
            group = self._bench.group(caller.lease, self._bench.block(caller.lease), rows)
            won = self._metadata.commit_group(group)
        except Transient:
            self._count("ended")
        else:
            self._count("packed", len(won))
        return 1

    def _get(self, caller: _Caller, _steps_max: int) -> int:
        name = caller.name()
        return self._call([(name, Get())], lambda: [self._metadata.get(_key(name))])

    def _get_version(self, caller: _Caller, _steps_max: int) -> int:
        name = caller.name()
        number = caller.number(self._known[name])
        return self._call([(name, GetVersion(number))], lambda: [self._metadata.version(_key(name), number)])

    # --- answers ------------------------------------------------------------------------------------------
    def _call(
        self, steps: Sequence[tuple[str, Step]], call: Callable[[], Sequence[Any]], called_ns: int | None = None
    ) -> int:
        """Add the steps of one transaction to the histories of their keys, with its answers. Returns how many.
        called_ns: when they began, if that was before now.

        Steps of a transaction that ends as a Transient are left out: on a server that is well, it was rolled back. Had
        it changed something all the same, no order would explain what others find."""
        number = next(self._callers.calls)
        called_ns = called_ns or time.monotonic_ns()
        try:
            results = call()
        except Transient:
            self._count("ended", len(steps))
            return len(steps)
        except NotFound:
            results = [None]
        answered_ns = time.monotonic_ns()
        with self._lock:
            for (name, step), result in zip(steps, results, strict=True):
                answer = _answer(result)
                self._callers.counts["answered"] += 1
                self._callers.counts[type(step).__name__] += answer is not None
                self.histories[name].append(Event(step, answer, called_ns, answered_ns, number))
                if answer is not None and answer.number != LOST and isinstance(step, Put | PutLarge | Mark):
                    self._known[name].learn(answer, result)
        return len(steps)

    def _count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._callers.counts[what] += times


def tag_of(row: ObjectRow) -> int:
    """The tag of a version that a caller stored: its MD5."""
    return int.from_bytes(row.md5)


def _md5(tag: int) -> bytes:
    return tag.to_bytes(16)


def _condition(over: int | None) -> Condition | None:
    """See `Put.over`."""
    if over is None:
        return None
    return Condition(_md5(over)) if over else ABSENT


def _key(name: str) -> ObjectKey:
    return ObjectKey(BUCKET, name)


def _answer(result: object) -> Answer:
    """What a method of the metadata answered, as the model has it. Raises what is neither an answer nor a refusal."""
    if isinstance(result, ObjectRow):
        return Found(result.version, tag_of(result))
    if isinstance(result, VersionEntry):
        return Found(result.version, 0 if result.row is None else tag_of(result.row))
    if result is None or isinstance(result, Found):
        return result
    if isinstance(result, NotFound | PreconditionFailed):
        return None
    raise result if isinstance(result, Exception) else AssertionError(result)
