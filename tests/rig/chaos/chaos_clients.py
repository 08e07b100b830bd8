"""The clients of a chaos run. They put, overwrite, delete and read, and know what each read may return.

The model of one key is every operation ever requested for it, in order, and which of them was acknowledged last. A read
that begins now returns the result of that operation or of any requested since, because an operation that was never
acknowledged may have taken effect.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from threading import Event
from typing import Any, Protocol

from nos_ec.core.errors import LeaseLost, NosError, NotFound, Transient
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.engine.objects.store import Store


class Objects(Protocol):
    """What clients do with a store: a `Store`, or a gateway of one. See there. All of it raises NotFound, Transient."""

    @property
    def packed_size_max(self) -> int:
        """Bytes of the largest object that is packed."""

    def put(self, key: ObjectKey, stream: Any) -> object:
        """Store an object."""

    def put_many(self, objects: Sequence[tuple[ObjectKey, bytes]]) -> object:
        """Store several small ones."""

    def delete(self, key: ObjectKey) -> object:
        """Delete one."""

    def get(self, key: ObjectKey) -> bytes:
        """Read one."""


Use = Callable[[], AbstractContextManager[Objects]]
"""Gives the store to use for one operation."""
Value = tuple[int, bytes] | None
"""The size and SHA-256 of an object, because a long run writes more bytes than memory holds. None: no object."""


def always(store: Objects) -> Use:
    """Use this store for every operation."""
    return lambda: nullcontext(store)


def value_of(data: bytes) -> Value:
    """The value of an object of these bytes."""
    return len(data), hashlib.sha256(data).digest()


@dataclass(slots=True)
class History:
    """Every value ever requested for one key, in order. `acknowledged` is the index of the last acknowledged one."""

    asked: list[Value] = field(default_factory=lambda: [None])
    acknowledged: int = 0

    def allowed(self, since: int) -> list[Value]:
        """The values that a read may return if it began when `since` was the acknowledged index."""
        return self.asked[since:]


@dataclass(frozen=True, slots=True)
class Call:
    """One try of an operation on a bucket: when it began and ended (time.monotonic), and the error that clients may
    get, if any."""

    what: str
    bucket: str
    began_s: float
    ended_s: float
    error: str = ""

    @property
    def puts(self) -> bool:
        """Whether it is a PUT that was acknowledged."""
        return self.what.startswith("put") and not self.error


@dataclass(slots=True)
class Totals:
    """Counts over all clients, all calls, and what must not have happened."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """Count one more of `what`. Safe to call from several threads."""
        with self.lock:
            self.counts[what] += 1

    def fail(self, what: str) -> None:
        """Note a failure. Safe to call from several threads."""
        with self.lock:
            self.failures.append(what)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a writer does. Sizes are in bytes: most are random up to size_max, some are from edge_sizes or large_sizes.

    tries_max: how often an operation is tried before it stays unacknowledged. pause_s: the pause after each change.
    retry_wait_s: the wait before the next try. batch_in_bucket: whether the objects of a batch are in one bucket.
    """

    keys: int
    size_max: int
    edge_sizes: Sequence[int]
    large_sizes: Sequence[int]
    tries_max: int
    pause_s: float = 0.0
    retry_wait_s: float = 0.0
    batch_objects: int = 8
    batch_in_bucket: bool = False


def buckets_of(number: int) -> list[str]:
    """The buckets of a writer."""
    return [f"bucket-{number}-{bucket}" for bucket in range(3)]


class Writer:
    """Puts, overwrites and deletes its own keys, one after another."""

    def __init__(
        self,
        number: int,
        seed: int,
        use: Use,
        workload: Workload,
        totals: Totals,
    ) -> None:
        self._rng = random.Random(f"{seed}/writer/{number}")
        self._use = use
        self._workload = workload
        self._totals = totals
        buckets = buckets_of(number)
        keys = [ObjectKey(buckets[index % 3], f"o/{index:04}") for index in range(workload.keys)]
        self.histories = {key: History() for key in keys}
        self.buckets = buckets

    def run(self, stop: Event) -> None:
        """Change keys until `stop` is set."""
        keys = list(self.histories)
        while not stop.is_set():
            with self._use() as store:
                self._change_one_of(keys, store)
            stop.wait(self._workload.pause_s)

    def _change_one_of(self, keys: Sequence[ObjectKey], store: Objects) -> None:
        key = self._rng.choice(keys)
        chance = self._rng.random()
        if chance < 0.3:
            self._change("delete", {key: None}, partial(self._delete, key, store))
        elif chance < 0.34:
            data = self._rng.randbytes(self._rng.choice(self._workload.large_sizes))
            self._change("put large", {key: value_of(data)}, lambda: store.put(key, BytesIO(data)))
        elif chance < 0.6:
            data = self._rng.randbytes(self._small_size(store))
            self._change("put", {key: value_of(data)}, lambda: store.put(key, BytesIO(data)))
        else:
            among = [one for one in keys if one.bucket == key.bucket] if self._workload.batch_in_bucket else keys
            batch = self._rng.sample(among, self._workload.batch_objects)
            new = [(key, self._rng.randbytes(self._rng.randint(1, self._workload.size_max))) for key in batch]
            values = {key: value_of(data) for key, data in new}
            self._change("put batch", values, partial(store.put_many, new))

    def _small_size(self, store: Objects) -> int:
        if self._rng.random() < 0.3:
            return self._rng.choice([*self._workload.edge_sizes, store.packed_size_max])
        return self._rng.randint(1, self._workload.size_max)

    def _delete(self, key: ObjectKey, store: Objects) -> None:
        """Delete a key. NotFound is a valid answer only if the key may have been absent before, which may also be the
        effect of an earlier try whose answer was lost."""
        history = self.histories[key]
        try:
            store.delete(key)
        except NotFound:
            may_be_absent = None in history.allowed(history.acknowledged)[:-1]
            if not may_be_absent and not self._asked_before:
                raise

    def _change(self, what: str, new: Mapping[ObjectKey, Value], act: Callable[[], object]) -> None:
        """Try a change until it is acknowledged, as a client does that is told to try again, or give up."""
        for key, value in new.items():
            self.histories[key].asked.append(value)
        for attempt in range(1, self._workload.tries_max + 1):
            self._asked_before = attempt > 1
            called = partial(Call, what, next(iter(new)).bucket, time.monotonic())
            try:
                act()
            except (Transient, LeaseLost) as error:
                self._totals.calls.append(called(time.monotonic(), str(error)))
                self._totals.count(f"{what}: {type(error).__name__}")
                time.sleep(self._workload.retry_wait_s)  # also at the end: what it waits for has to start first
                continue
            for key in new:
                self.histories[key].acknowledged = len(self.histories[key].asked) - 1
            self._totals.count(what)
            self._totals.calls.append(called(time.monotonic()))
            return
        self._totals.count(f"{what}: given up")

    _asked_before = False
    """Whether the current operation was already sent and may have taken effect."""


class Reader:
    """Reads any key at any time."""

    def __init__(
        self,
        number: int,
        seed: int,
        use: Use,
        histories: Mapping[ObjectKey, History],
        totals: Totals,
        pause_s: float = 0.0,
    ) -> None:
        self._rng = random.Random(f"{seed}/reader/{number}")
        self._use = use
        self._histories = histories
        self._totals = totals
        self._pause_s = pause_s

    def run(self, stop: Event) -> None:
        """Read until `stop` is set. Raises AssertionError for a result that cannot be right, Corrupt."""
        keys = list(self._histories)
        while not stop.is_set():
            self._read(self._rng.choice(keys))
            stop.wait(self._pause_s)

    def _read(self, key: ObjectKey) -> None:
        history = self._histories[key]
        called = partial(Call, "read", key.bucket, time.monotonic())
        try:
            with self._use() as store:
                since = history.acknowledged
                found = read_value(store, key)
        except Transient as error:
            self._totals.calls.append(called(time.monotonic(), str(error)))
            self._totals.count("read: Transient")
            return
        self._totals.calls.append(called(time.monotonic()))
        allowed = history.allowed(since)
        self._totals.count("read" if found is not None else "read: not found")
        if found not in allowed:
            raise AssertionError(f"{key}: read {_sizes([found])}, but it could only be {_sizes(allowed)}")


def read_value(store: Objects, key: ObjectKey) -> Value:
    """The value of an object now. Raises Corrupt, Transient."""
    try:
        return value_of(store.get(key))
    except NotFound:
        return None


def _sizes(values: Sequence[Value]) -> str:
    return ", ".join("nothing" if value is None else f"{value[0]} bytes" for value in values)


@dataclass(slots=True)
class Verdict:
    """The state of the keys after a run. objects: the existing ones. lost: acknowledged, but gone. corrupt: unreadable,
    or with another value than the last ones requested."""

    keys: int = 0
    objects: int = 0
    uncertain: int = 0
    lost: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Add what was found about other keys."""
        self.keys += other.keys
        self.objects += other.objects
        self.uncertain += other.uncertain
        self.lost += other.lost
        self.corrupt += other.corrupt


def judge(store: Store, histories: Mapping[ObjectKey, History]) -> Verdict:
    """Read every key and compare it with its allowed values. No other object may exist. Raises Transient."""
    verdict = Verdict()
    present = set()
    for key, history in histories.items():
        allowed = history.allowed(history.acknowledged)
        verdict.keys += 1
        verdict.uncertain += len(allowed) > 1
        try:
            found = read_value(store, key)
        except Transient:
            raise
        except NosError as error:
            verdict.corrupt.append(f"{key}: {type(error).__name__}: {error}")
            present.add(key)
            continue
        if found is not None:
            verdict.objects += 1
            present.add(key)
        if found not in allowed:
            (verdict.lost if found is None else verdict.corrupt).append(
                f"{key}: {_sizes([found])} instead of {_sizes(allowed)}"
            )
    buckets = [bucket for bucket in store.list_buckets("", 10_000) if bucket != RESERVED_BUCKET]  # that has the dumps
    listed = {row.key for bucket in buckets for row in store.list_objects(bucket, "", "", 1_000_000)}
    verdict.corrupt += [f"{key}: is listed, but cannot exist" for key in sorted(listed - present)]
    verdict.lost += [f"{key}: exists, but is not listed" for key in sorted(present - listed)]
    return verdict


CLIENT_END_S_MAX = 180.0
"""A client ends after its current operation, which tries several times."""
END_POLL_S = 0.05


class Clients:
    """Runs clients on threads. If one fails, the run ends and its error is reported."""

    def __init__(self, clients: Sequence[Callable[[Event], None]], totals: Totals) -> None:
        self._totals = totals
        self.stopped = Event()
        self._threads = [threading.Thread(target=self._run, args=(client,), daemon=True) for client in clients]

    def start(self) -> None:
        """Start all clients."""
        for thread in self._threads:
            thread.start()

    def stop(self, mend: Callable[[], None]) -> None:
        """Let each client finish its current operation; mend: called all the while, so that nothing it needs stays
        away. A client that hangs is a failure."""
        self.stopped.set()
        deadline = time.monotonic() + CLIENT_END_S_MAX
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            mend()
            time.sleep(END_POLL_S)
        if any(thread.is_alive() for thread in self._threads):
            self._totals.fail("a client hangs")

    def _run(self, client: Callable[[Event], None]) -> None:
        try:
            client(self.stopped)
        except BaseException as error:
            self._totals.fail(f"{type(error).__name__}: {error}")
            self.stopped.set()
