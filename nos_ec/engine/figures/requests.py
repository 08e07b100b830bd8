"""Counts the requests of a store's users: how long they take, how many bytes they move, and how they fail.

A request that fails counts only as a failure, because a fast error must not improve the latencies.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from nos_ec.core.errors import (
    Blocklisted,
    ConfigError,
    Conflict,
    Corrupt,
    Encrypted,
    InvalidInput,
    LeaseLost,
    Locked,
    Moved,
    NosError,
    NoSpace,
    NoSuchUpload,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    TooLarge,
    Transient,
)
from nos_ec.core.histogram import Histogram

SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""The bounds reach from a GET served by a page cache to a PUT that barely met its time-outs."""
BYTES_BOUNDS = tuple(1024 * 4**power for power in range(11))
"""1 KiB to 1 GiB, in steps of 4."""

OTHER = "other"

NOTES_MAX = 500
"""The most notes of single requests that are kept before they are added up."""

_forks = 0
"""The number of forks between the process that first imported this module and this process."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


ERROR_KINDS: Mapping[type[NosError], str] = {
    InvalidInput: "invalid_input",
    Encrypted: "encrypted",
    ConfigError: "config",
    NotFound: "not_found",
    NoSuchUpload: "no_such_upload",
    Conflict: "conflict",
    Locked: "locked",
    LeaseLost: "lease_lost",
    PreconditionFailed: "precondition_failed",
    Corrupt: "corrupt",
    Transient: "transient",
    Moved: "moved",
    NoSpace: "no_space",
    QuotaExceeded: "quota_exceeded",
    Blocklisted: "blocklisted",
    TooLarge: "too_large",
}
"""A name for each class of errors. All other errors, such as an error of the stream that a PUT reads, are `other`."""


class Request:
    """One request in progress; a context manager. Leaving it counts the request."""

    __slots__ = ("_all", "_started_s", "_tally", "size")

    def __init__(self, all_: Requests, tally: Tally) -> None:
        """Begin a request that is counted in `tally`. Raises InvalidInput if the store is closed, or was opened by the
        parent process."""
        self._all = all_
        self._tally = tally
        self.size: int | None = None
        """How many bytes the request moved; None if it moves none."""
        # Add it before the check, so that either `close` sees the request, or the request sees the closed store.
        all_.under_way.append(None)
        if all_.closed or all_.forks != _forks:
            all_.end()
            all_.refuse()
        self._started_s: float | None = all_.timer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # No helper functions here: with cold caches, each call adds to the time of every request.
        every, tally, started_s = self._all, self._tally, self._started_s
        if error is None:
            tally.notes.append((None if started_s is None else every.timer() - started_s, self.size))
            if len(tally.notes) >= NOTES_MAX:
                tally.add_up()
        else:
            tally.fail(error)
        every.under_way.pop()
        if every.closed:
            every.wake()

    def leave_out(self, seconds: float) -> None:
        """Subtract the time that the user's side took."""
        if self._started_s is not None:
            self._started_s += seconds

    def leave_untimed(self) -> None:
        """Do not count the time, because it is counted for another part of the same request."""
        self._started_s = None


class Tally:
    """Counts the requests of one operation. Safe to call from several threads.

    A request only adds a note. The notes are added up when figures are read, or when there are many notes, because
    adding one up right after a request takes three times as long, with cold caches.
    """

    __slots__ = ("_failures", "_lock", "_seconds", "_sizes", "notes")

    def __init__(self) -> None:
        self.notes: deque[tuple[float | None, int | None]] = deque()
        """Seconds and bytes of each request that is not added up yet; None is not counted."""
        # Reentrant, because a reader that is garbage-collected while this thread holds the lock counts its bytes.
        self._lock = threading.RLock()
        self._seconds = Histogram(SECONDS_BOUNDS)
        self._sizes = Histogram(BYTES_BOUNDS)
        self._failures: Counter[str] = Counter(dict.fromkeys((*ERROR_KINDS.values(), OTHER), 0))

    def add(self, seconds: float | None, size: int | None) -> None:
        """Count a successful request: its seconds and its bytes; None is not counted."""
        self.notes.append((seconds, size))
        if len(self.notes) >= NOTES_MAX:
            self.add_up()

    def fail(self, error: BaseException) -> None:
        """Count a failed request."""
        with self._lock:
            self._failures[error_kind(error)] += 1

    @property
    def seconds(self) -> Histogram:
        """The seconds of the successful requests."""
        self.add_up()
        return self._seconds

    @property
    def sizes(self) -> Histogram:
        """The bytes of the successful requests."""
        self.add_up()
        return self._sizes

    @property
    def failures(self) -> Mapping[str, int]:
        """Failures by kind of error. Kinds that have not occurred are 0."""
        return self._failures

    def add_up(self) -> None:
        """Add the notes to the histograms."""
        with self._lock, suppress(IndexError):  # no note is left
            while True:
                seconds, size = self.notes.popleft()
                if seconds is not None:
                    self._seconds.add(seconds)
                if size is not None:
                    self._sizes.add(size)


class Requests:
    """Counts the requests of one store in this process. Safe to call from several threads."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.timer = timer
        self.puts, self.gets, self.heads, self.lists, self.deletes, self.changes = (Tally() for _ in range(6))
        self.under_way: list[None] = []
        """One entry for each request in progress. Adding and removing an entry is atomic."""
        self.closed = False
        self.forks = _forks
        """The number of forks when the store was opened."""
        self._idle = threading.Condition()

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """The tallies by the name of the operation."""
        return {
            "put": self.puts,
            "get": self.gets,
            "head": self.heads,
            "list": self.lists,
            "delete": self.deletes,
            "set_attributes": self.changes,
        }

    @property
    def in_this_process(self) -> bool:
        """Whether this process opened the store; False in a process that was forked later."""
        return self.forks == _forks

    def refuse(self) -> NoReturn:
        """Raise InvalidInput with the reason why requests are refused."""
        if not self.in_this_process:
            raise InvalidInput("the store was opened before this process was forked; open it again in this process")
        raise InvalidInput("the store is closed")

    def end(self) -> None:
        """End a request."""
        self.under_way.pop()
        self.wake()

    def wake(self) -> None:
        """Let `close` check again whether requests are in progress."""
        with self._idle:
            self._idle.notify_all()

    def close(self, wait_s: float) -> bool:
        """Refuse new requests, and wait for those in progress. Returns False if some have not ended after `wait_s`."""
        with self._idle:
            self.closed = True
            return self._idle.wait_for(lambda: not self.under_way, wait_s)


def error_kind(error: BaseException) -> str:
    """Return the kind of an error, as in the labels of the metrics."""
    for kind in type(error).__mro__:
        if kind in ERROR_KINDS:
            return ERROR_KINDS[kind]
    return OTHER
