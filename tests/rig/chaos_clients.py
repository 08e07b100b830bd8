"""Clients of a chaos run: they put, overwrite, delete and read, and know what each reading may give.

The model of one key is all that was ever asked for it, in order, and which of it was acknowledged last. A reading
that begins now gives that, or anything asked for since: an operation that was never acknowledged may have happened.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from threading import Event

from nos_ec.core.errors import LeaseLost, NosError, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.store import Store

Value = tuple[int, bytes] | None
"""Size and SHA-256 of an object: a long run asks for more bytes than memory holds. None: there is no object."""


def value_of(data: bytes) -> Value:
    """The value of an object of these bytes."""
    return len(data), hashlib.sha256(data).digest()


@dataclass(slots=True)
class History:
    """All that was ever asked for one key, in order. `acknowledged` is the index of what was acknowledged last."""

    asked: list[Value] = field(default_factory=lambda: [None])
    acknowledged: int = 0

    def allowed(self, since: int) -> list[Value]:
        """What a reading may give that began when `since` was the acknowledged index."""
        return self.asked[since:]


@dataclass(slots=True)
class Totals:
    """Counts over all clients, and what must not have happened."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """One more of `what`. Safe to call from several threads."""
        with self.lock:
            self.counts[what] += 1

    def fail(self, what: str) -> None:
        """Note a failure. Safe to call from several threads."""
        with self.lock:
            self.failures.append(what)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a writer does. Sizes in bytes: most are random up to size_max, some one of edge_sizes or large_sizes.

    tries_max: how often an operation is asked for before it stays unacknowledged; pause_s: rest after each change;
    retry_wait_s: before it is asked for again.
    """

    keys: int
    size_max: int
    edge_sizes: Sequence[int]
    large_sizes: Sequence[int]
    tries_max: int
    pause_s: float = 0.0
    retry_wait_s: float = 0.0
    batch_objects: int = 8


class Writer:
    """Puts, overwrites and deletes keys that are its own, one after the other."""

    def __init__(
        self,
        number: int,
        seed: int,
        store: Store,
        workload: Workload,
        totals: Totals,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """pool: writes the landing copies of a batch concurrently."""
        self._pool = pool
        self._rng = random.Random(f"{seed}/writer/{number}")
        self._store = store
        self._workload = workload
        self._totals = totals
        buckets = [f"bucket-{number}-{bucket}" for bucket in range(3)]
        keys = [ObjectKey(buckets[index % 3], f"o/{index:04}") for index in range(workload.keys)]
        self.histories = {key: History() for key in keys}

    def run(self, stop: Event) -> None:
        """Change keys until `stop` is set."""
        keys = list(self.histories)
        while not stop.is_set():
            self._change_one_of(keys, stop)
            stop.wait(self._workload.pause_s)

    def _change_one_of(self, keys: Sequence[ObjectKey], stop: Event) -> None:
        key = self._rng.choice(keys)
        chance = self._rng.random()
        if chance < 0.3:
            self._change("delete", {key: None}, partial(self._delete, key), stop)
        elif chance < 0.34:
            self._put("put large", key, self._rng.randbytes(self._rng.choice(self._workload.large_sizes)), stop)
        elif chance < 0.6:
            self._put("put", key, self._rng.randbytes(self._small_size()), stop)
        else:
            batch = self._rng.sample(keys, self._workload.batch_objects)
            new = [(key, self._rng.randbytes(self._rng.randint(1, self._workload.size_max))) for key in batch]
            values = {key: value_of(data) for key, data in new}
            self._change("put batch", values, partial(self._store.put_many, new, self._pool), stop)

    def _small_size(self) -> int:
        if self._rng.random() < 0.3:
            return self._rng.choice([*self._workload.edge_sizes, self._store.packed_size_max])
        return self._rng.randint(1, self._workload.size_max)

    def _put(self, what: str, key: ObjectKey, data: bytes, stop: Event) -> None:
        self._change(what, {key: value_of(data)}, lambda: self._store.put(key, BytesIO(data)), stop)

    def _delete(self, key: ObjectKey) -> None:
        """Not there is an answer only where the key may have been absent before, which a lost answer makes it, too."""
        history = self.histories[key]
        try:
            self._store.delete(key)
        except NotFound:
            may_be_absent = None in history.allowed(history.acknowledged)[:-1]
            if not may_be_absent and not self._asked_before:
                raise

    def _change(self, what: str, new: Mapping[ObjectKey, Value], act: Callable[[], object], stop: Event) -> None:
        """Ask until it is acknowledged, as a client does that was told to try again, or gives up."""
        for key, value in new.items():
            self.histories[key].asked.append(value)
        for attempt in range(1, self._workload.tries_max + 1):
            self._asked_before = attempt > 1
            try:
                act()
            except (Transient, LeaseLost) as error:
                self._totals.count(f"{what}: {type(error).__name__}")
                stop.wait(self._workload.retry_wait_s)
                continue
            for key in new:
                self.histories[key].acknowledged = len(self.histories[key].asked) - 1
            self._totals.count(what)
            return
        self._totals.count(f"{what}: given up")

    _asked_before = False
    """Whether the operation at hand was sent already, and may have happened."""


class Reader:
    """Reads any key at any moment."""

    def __init__(
        self,
        number: int,
        seed: int,
        store: Store,
        histories: Mapping[ObjectKey, History],
        totals: Totals,
        pause_s: float = 0.0,
    ) -> None:
        self._rng = random.Random(f"{seed}/reader/{number}")
        self._store = store
        self._histories = histories
        self._totals = totals
        self._pause_s = pause_s

    def run(self, stop: Event) -> None:
        """Read until `stop` is set. Raises AssertionError for a reading that cannot be right, Corrupt."""
        keys = list(self._histories)
        while not stop.is_set():
            self._read(self._rng.choice(keys))
            stop.wait(self._pause_s)

    def _read(self, key: ObjectKey) -> None:
        history = self._histories[key]
        since = history.acknowledged
        try:
            found = read_value(self._store, key)
        except Transient:
            self._totals.count("read: Transient")
            return
        allowed = history.allowed(since)
        self._totals.count("read" if found is not None else "read: not found")
        if found not in allowed:
            raise AssertionError(f"{key}: read {_sizes([found])}, and it could only be {_sizes(allowed)}")


def read_value(store: Store, key: ObjectKey) -> Value:
    """The value of an object now. Raises Corrupt, Transient."""
    try:
        return value_of(store.get(key))
    except NotFound:
        return None


def _sizes(values: Sequence[Value]) -> str:
    return ", ".join("nothing" if value is None else f"{value[0]} bytes" for value in values)


@dataclass(slots=True)
class Verdict:
    """What became of the keys after a run. `objects`: those that are there. lost: acknowledged and gone. corrupt:
    cannot be read, or reads as something that was not asked for last."""

    keys: int = 0
    objects: int = 0
    uncertain: int = 0
    lost: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)


def judge(store: Store, histories: Mapping[ObjectKey, History]) -> Verdict:
    """Read every key and compare it with what it may be; no other object may be there. Raises Transient."""
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
    listed = {
        row.key for bucket in store.list_buckets("", 10_000) for row in store.list_objects(bucket, "", "", 1_000_000)
    }
    verdict.corrupt += [f"{key}: is listed, and cannot be there" for key in sorted(listed - present)]
    verdict.lost += [f"{key}: is there, and not listed" for key in sorted(present - listed)]
    return verdict


CLIENT_END_S_MAX = 180.0
"""A client ends after the operation it is at, which tries several times."""


class Clients:
    """Runs clients on threads. One that fails ends the run, and its error is told."""

    def __init__(self, clients: Sequence[Callable[[Event], None]], totals: Totals) -> None:
        self._totals = totals
        self.stopped = Event()
        self._threads = [threading.Thread(target=self._run, args=(client,), daemon=True) for client in clients]

    def start(self) -> None:
        """Start them all."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each finish what it is at. One that hangs is a failure."""
        self.stopped.set()
        deadline = time.monotonic() + CLIENT_END_S_MAX
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._totals.fail("a client hangs")

    def _run(self, client: Callable[[Event], None]) -> None:
        try:
            client(self.stopped)
        except BaseException as error:
            self._totals.fail(f"{type(error).__name__}: {error}")
            self.stopped.set()
