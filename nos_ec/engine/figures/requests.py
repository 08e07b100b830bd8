"""Counts the requests of a store's users: how long they take, how many bytes they move, and how they fail.

A request that fails counts as a failure alone, because an error that comes fast says nothing about latency.
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
    InvalidInput,
    LeaseLost,
    NosError,
    NoSpace,
    NoSuchUpload,
    NotFound,
    PreconditionFailed,
    TooLarge,
    Transient,
)
from nos_ec.core.histogram import Histogram

SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""From a GET out of a page cache to a PUT that just made its time-outs."""
BYTES_BOUNDS = tuple(1024 * 4**power for power in range(11))
"""1 KiB to 1 GiB, in steps of 4."""

OTHER = "other"

NOTES_MAX = 500
"""Notes of single requests that are kept until they are added up."""

_forks = 0
"""How many forks lie between the first process that imported this and this one."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


ERROR_KINDS: Mapping[type[NosError], str] = {
    InvalidInput: "invalid_input",
    ConfigError: "config",
    NotFound: "not_found",
    NoSuchUpload: "no_such_upload",
    Conflict: "conflict",
    LeaseLost: "lease_lost",
    PreconditionFailed: "precondition_failed",
    Corrupt: "corrupt",
    Transient: "transient",
    NoSpace: "no_space",
    Blocklisted: "blocklisted",
    TooLarge: "too_large",
}
"""A name for each class of errors. Everything else, such as an error of the stream that a PUT reads, is `other`."""


class Request:
    """One request under way; a context manager. Leaving it counts it."""

    __slots__ = ("_all", "_started_s", "_tally", "size")

    def __init__(self, all_: Requests, tally: Tally) -> None:
        """A request to be counted in `tally`. Raises InvalidInput when the store is closed, or was opened by the parent
        process."""
        self._all = all_
        self._tally = tally
        self.size: int | None = None
        """Bytes that it moved, if it moves any."""
        # Added first: so either `close` sees the request, or the request sees that the store is closed.
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
        # Written out, because each call here, with cold caches, adds to the time of every request.
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
        """Do not count this time, which the user's side took."""
        if self._started_s is not None:
            self._started_s += seconds

    def leave_untimed(self) -> None:
        """Count no time for it: that of another part of the same request is, or will be, counted."""
        self._started_s = None


class Tally:
    """The requests of one operation so far. Safe to call from several threads.

    A request is only noted. Notes are added up when they are asked for, or when there are many of them, because adding
    one up right after a request, with cold caches, takes three times as long.
    """

    __slots__ = ("_failures", "_lock", "_seconds", "_sizes", "notes")

    def __init__(self) -> None:
        self.notes: deque[tuple[float | None, int | None]] = deque()
        """Time and size of each request that is not added up yet; None is not counted."""
        # Reentrant, because a reader that is garbage-collected while this thread holds the lock counts its bytes.
        self._lock = threading.RLock()
        self._seconds = Histogram(SECONDS_BOUNDS)
        self._sizes = Histogram(BYTES_BOUNDS)
        self._failures: Counter[str] = Counter(dict.fromkeys((*ERROR_KINDS.values(), OTHER), 0))

    def add(self, seconds: float | None, size: int | None) -> None:
        """Count a success: the time it took, and the bytes it moved; None is not counted."""
        self.notes.append((seconds, size))
        if len(self.notes) >= NOTES_MAX:
            self.add_up()

    def fail(self, error: BaseException) -> None:
        """Count a failure."""
        with self._lock:
            self._failures[error_kind(error)] += 1

    @property
    def seconds(self) -> Histogram:
        """Seconds that the successful requests took."""
        self.add_up()
        return self._seconds

    @property
    def sizes(self) -> Histogram:
        """Bytes that they moved."""
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
    """The requests of one store in this process. Safe to call from several threads."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.timer = timer
        self.puts, self.gets, self.heads, self.lists, self.deletes, self.changes = (Tally() for _ in range(6))
        self.under_way: list[None] = []
        """As many entries as requests are under way. Adding and removing one is atomic."""
        self.closed = False
        self.forks = _forks
        """When this was made."""
        self._idle = threading.Condition()

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """By the name of the operation."""
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
        """False in a process that was forked from the one that opened the store."""
        return self.forks == _forks

    def refuse(self) -> NoReturn:
        """Raise InvalidInput, saying why there can be no request."""
        if not self.in_this_process:
            raise InvalidInput("the store was opened before this process was forked; open it again in this process")
        raise InvalidInput("the store is closed")

    def end(self) -> None:
        """Take note that a request is over."""
        self.under_way.pop()
        self.wake()

    def wake(self) -> None:
        """Let `close` look again whether requests are under way."""
        with self._idle:
            self._idle.notify_all()

    def close(self, wait_s: float) -> bool:
        """Refuse new requests, and wait for those under way. Returns False when some are left after `wait_s`."""
        with self._idle:
            self.closed = True
            return self._idle.wait_for(lambda: not self.under_way, wait_s)


def error_kind(error: BaseException) -> str:
    """The kind of an error, as the metrics name it."""
    for kind in type(error).__mro__:
        if kind in ERROR_KINDS:
            return ERROR_KINDS[kind]
    return OTHER
