"""Workloads of events (core/gc/gc_events.py): events of a trace, which are replayed, and events that a store expects.

A trace has no survival table. Its lines record when objects are stored and die; objects that no line deletes stay
alive, or live until they expire. The store begins empty.

A file with a survival table is an export of a store, which does not record deleted objects. So the simulation continues
from the time of the export. It begins with the objects that live then, with their ages. Later arrivals are like recent
ones: each bucket keeps its rate, and sizes, prefixes and times to expiry are drawn at random from recent objects.
Lifetimes are drawn from the table; for objects of the export, from their ages on. "Recent" means within the half-life
of a bucket's objects, limited to _RECENT_DAYS. Each recent object stands for 1 / S stored objects, where S is the share
that reaches its age, so that objects that have died since are counted as well.

9  At most EVENTS_MAX objects are kept in memory, with 60 bytes each, and with their names while the file is read.
"""

from __future__ import annotations

import gzip
import random
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, cast

from nos_ec.bench.gc.workloads import Law, Life, Objects
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_events import LINE_BYTES_MAX, DeleteEvent, ExportBegun, KnownSurvival, PutEvent, parse_event
from nos_ec.core.packing.lifetimes import SurvivalTable
from nos_ec.ports.metadata.survival import SURVIVAL_ROWS_MAX

EVENTS_MAX = 10_000_000
"""Maximum number of objects in a file, and of objects that arrive in a simulation."""
DAYS = 365.0
"""How long a store is simulated from an export, by default."""
LIVE_BLOCKS_MIN = 20
ARRIVING_BLOCKS_MIN = 100
_DAY_MS = 86_400_000
_NEVER = 1e9
"""The day of death of objects that never die."""
_RECENT_DAYS = (0.25, 30.0)


@dataclass(slots=True)
class EventLog:
    """The contents of a file. `objects` are in order of birth; times are in days since the first event, or since the
    start of the export if there is a table. `days` is the time from there to the last event. `since_days` is the first
    day of an export that is limited by --since. `unknown_deletes` counts deletes of objects that no line has stored."""

    objects: Objects
    days: float
    table: SurvivalTable | None = None
    since_days: float | None = None
    one_in: int = 1
    unknown_deletes: int = 0
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = sum(self.objects.size)


def read_events(path: Path, stdin: BinaryIO | None = None, objects_max: int = EVENTS_MAX) -> EventLog:
    """Read a file, gzipped if its name ends in .gz, or stdin if it is given. Raises InvalidInput with the number of the
    line."""
    name = "standard input" if stdin is not None else str(path)
    try:
        if stdin is not None:
            return _read(_lines(stdin, name), name, objects_max)
        with cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(_lines(file, name), name, objects_max)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInput(f"{name}: the gzip file is damaged or cut off: {error}") from error
    except OSError as error:
        raise InvalidInput(f"{name}: {error.strerror}") from error


def event_workload(log: EventLog, seed: int, days: float | None) -> EventWorkload | ExpectedWorkload:
    """Return the workload of a file. `days` is for an export; None means DAYS. Raises InvalidInput."""
    if log.table is None:
        return EventWorkload(log)
    return ExpectedWorkload(log, log.table, random.Random(seed), days or DAYS)


def live_blocks(workload: EventWorkload | ExpectedWorkload, block_bytes: int) -> int:
    """Return how many blocks the live bytes of a workload fill. Raises InvalidInput if too few blocks live or arrive
    for meaningful figures."""
    arriving = workload.live_bytes / workload.mean_days * workload.days
    enough = int(min(workload.live_bytes / LIVE_BLOCKS_MIN, arriving / ARRIVING_BLOCKS_MIN))
    if block_bytes > enough:
        raise InvalidInput(
            f"{workload.live_bytes / block_bytes:.1f} blocks live and {arriving / block_bytes:.1f} arrive, fewer than"
            f" {LIVE_BLOCKS_MIN} and {ARRIVING_BLOCKS_MIN}; "
            + (f"give --block-bytes {enough} or less, or events of more days" if enough else "give more events")
        )
    return round(workload.live_bytes / block_bytes)


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise InvalidInput(f"{name}, line {number}: it is longer than {LINE_BYTES_MAX:,} bytes")
        if line.strip():
            yield number, line


def _read(lines: Iterable[tuple[int, bytes]], name: str, objects_max: int) -> EventLog:
    reading = _Reading(objects_max)
    for number, line in lines:
        try:
            reading.add_line(line)
        except InvalidInput as error:
            raise InvalidInput(f"{name}, line {number}: {error}") from error
    try:
        return reading.event_log()
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error


class _Reading:
    """Collects lines. The lines of one name must be in the order of time; the file as a whole need not be."""

    def __init__(self, objects_max: int) -> None:
        self._objects_max = objects_max
        self._begun: ExportBegun | None = None
        self._table: SurvivalTable | None = None
        self._objects = Objects()
        """Times are in milliseconds until `event_log` converts them."""
        self._buckets: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._current: dict[tuple[int, str], int] = {}
        self._last_ms = 0
        self._unknown_deletes = 0

    def add_line(self, line: bytes) -> None:
        """Parse and add a line. Raises InvalidInput."""
        match parse_event(line):
            case PutEvent() as put:
                self._put(put)
            case DeleteEvent(time_ms, bucket, name):
                self._last_ms = max(self._last_ms, time_ms)
                number = self._current.pop((self._bucket(bucket), name), None)
                if number is None:
                    self._unknown_deletes += 1
                else:
                    self._dies(number, time_ms)
            case KnownSurvival(bucket, counts):
                if self._table is None:
                    self._table = SurvivalTable(buckets_max=SURVIVAL_ROWS_MAX)
                self._table.add(bucket, counts)
            case ExportBegun() as begun:
                if self._begun is not None:
                    raise InvalidInput("a second line of the event export")
                self._begun = begun

    def _put(self, put: PutEvent) -> None:
        if len(self._objects) == self._objects_max:
            raise InvalidInput(
                f"there are more than {self._objects_max:,} objects; take a sample, as `nos-ec export events --one-in"
                " N` does"
            )
        self._last_ms = max(self._last_ms, put.time_ms)
        bucket, number = self._bucket(put.bucket), len(self._objects)
        known = [time for time in (put.expires_ms, put.deleted_ms) if time is not None]
        prefix = self._prefixes.setdefault(put.name.rpartition("/")[0], len(self._prefixes))
        life = Life(bucket, min(known, default=_NEVER * _DAY_MS), prefix, put.expires_ms is not None)
        self._objects.add(put.time_ms, life, put.size)
        if put.deleted_ms is None:
            replaced = self._current.get((bucket, put.name))
            if replaced is not None:
                self._dies(replaced, put.time_ms)
            self._current[bucket, put.name] = number

    def _dies(self, number: int, time_ms: int) -> None:
        """Record the death of an object, unless it has expired before."""
        if time_ms < self._objects.born[number]:
            raise InvalidInput("it is older than an earlier line of the same name; sort the lines by time_ms")
        if time_ms < self._objects.dies[number]:
            self._objects.dies[number] = time_ms
            self._objects.expires[number] = 0

    def _bucket(self, name: str) -> int:
        return self._buckets.setdefault(name, len(self._buckets))

    def event_log(self) -> EventLog:
        """Return everything, in order and in days. Raises InvalidInput."""
        read, begun = self._objects, self._begun
        self._current.clear()
        if not any(read.size):
            raise InvalidInput("it has no object of more than 0 bytes")
        if self._table is None:
            return EventLog(
                self._in_days(min(read.born)),
                (self._last_ms - min(read.born)) / _DAY_MS,
                unknown_deletes=self._unknown_deletes,
            )
        if begun is None:
            raise InvalidInput("the line of the event export is missing, which says when the survival table was read")
        for n in range(len(read)):  # A clock may have been ahead: nothing is stored after the export.
            read.born[n] = min(read.born[n], begun.time_ms)
        since_days = None if begun.since_ms is None else (begun.since_ms - begun.time_ms) / _DAY_MS
        return EventLog(self._in_days(begun.time_ms), 0.0, self._table, since_days, begun.one_in, self._unknown_deletes)

    def _in_days(self, origin_ms: float) -> Objects:
        read, found = self._objects, Objects()
        found.buckets, found.prefixes = list(self._buckets), list(self._prefixes)
        for n in sorted(range(len(read)), key=read.born.__getitem__):
            if read.size[n]:
                dies = _NEVER if read.dies[n] >= _NEVER * _DAY_MS else (read.dies[n] - origin_ms) / _DAY_MS
                life = Life(read.bucket[n], dies, read.prefix[n], bool(read.expires[n]))
                found.add((read.born[n] - origin_ms) / _DAY_MS, life, read.size[n])
        return found


class EventWorkload:
    """The workload of a trace; see `Workload`. `live_bytes` is the mean over all days, `bytes_per_day` the rate of
    arrivals. Raises InvalidInput if all events have the same time."""

    history_days = 0.0
    growth = 0.0

    def __init__(self, log: EventLog) -> None:
        if log.days <= 0:
            raise InvalidInput("all events have the same time; give events of several days")
        self._log = log
        self._next = 0
        self.days = log.days
        self.measured_days = log.days / 2
        self.bytes_per_day: float | None = log.size_bytes / log.days
        objects = log.objects
        lives = zip(objects.size, objects.born, objects.dies, strict=True)
        self.live_bytes = sum(size * (min(dies, log.days) - born) for size, born, dies in lives) / log.days
        self.mean_days = self.live_bytes * log.days / log.size_bytes

    def begin(self, objects: Objects, count: int) -> None:
        """Name the buckets. The store begins empty."""
        del count
        objects.buckets, objects.prefixes = self._log.objects.buckets, self._log.objects.prefixes

    def arrive(self, objects: Objects, begins: float, days: float, bytes_per_day: float) -> None:
        """Add the objects of the trace; `bytes_per_day` is ignored."""
        del bytes_per_day
        until, read = begins + days, self._log.objects
        while self._next < len(read) and read.born[self._next] < until:
            n = self._next
            life = Life(read.bucket[n], read.dies[n], read.prefix[n], bool(read.expires[n]))
            objects.add(read.born[n], life, read.size[n])
            self._next += 1

    def survival(self) -> SurvivalTable:
        """Return an empty table."""
        return SurvivalTable()

    def laws(self) -> list[Law]:
        """Return an empty list, because a trace has no laws."""
        return []


@dataclass(slots=True)
class _Recent:
    """The recent arrivals of a bucket: the numbers of objects, the running sum of their weights, and their rates."""

    numbers: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    objects_per_day: float = 0.0
    bytes_per_day: float = 0.0


class ExpectedWorkload:
    """The workload of an export; see the module docstring and `Workload`. `live_bytes` is the value at the beginning.
    Raises InvalidInput if no object has arrived recently, or too many would arrive."""

    history_days = 0.0
    growth = 0.0

    def __init__(self, log: EventLog, table: SurvivalTable, rng: random.Random, days: float) -> None:
        self._log = log
        self._table = table
        self._rates = table.death_rates()
        self._rng = rng
        self._recent = self._find_recent()
        self._cumulative = list(accumulate(one.objects_per_day for one in self._recent))
        self._carried = 0.0
        self._living = [n for n in range(len(log.objects)) if log.objects.dies[n] > 0]
        self.days = days
        self.measured_days = days / 2
        self.bytes_per_day: float | None = sum(one.bytes_per_day for one in self._recent)
        self.live_bytes = float(sum(log.objects.size[n] for n in self._living))
        if not self._living or not self._recent:
            raise InvalidInput(f"none of its live objects was stored in the {_RECENT_DAYS[1]:g} days before the export")
        arriving = self._cumulative[-1] * days
        if arriving > EVENTS_MAX:
            raise InvalidInput(
                f"{arriving:,.0f} objects would arrive in {days:g} days, more than {EVENTS_MAX:,}; simulate fewer"
                " --days, or take a sample with `nos-ec export events --one-in N`"
            )
        self.mean_days = self.live_bytes / sum(one.bytes_per_day for one in self._recent)

    def begin(self, objects: Objects, count: int) -> None:
        """Add the objects of the export."""
        del count
        read = self._log.objects
        objects.buckets, objects.prefixes = read.buckets, read.prefixes
        for n in self._living:
            objects.add(read.born[n], self._life(n, 0.0, -read.born[n], read.dies[n]), read.size[n])

    def arrive(self, objects: Objects, begins: float, days: float, bytes_per_day: float) -> None:
        """See `Workload`."""
        read = self._log.objects
        self._carried += bytes_per_day * days
        drawn: list[int] = []
        while self._carried > 0:
            drawn.append(self._draw())
            self._carried -= read.size[drawn[-1]]
        for place, n in enumerate(drawn):
            born = begins + days * (place + 0.5) / len(drawn)
            expires = born + read.dies[n] - read.born[n] if read.expires[n] else _NEVER
            objects.add(born, self._life(n, born, 0.0, expires), read.size[n])

    def survival(self) -> SurvivalTable:
        """Return a copy of the store's table, in which the caller may continue to count."""
        table = SurvivalTable(buckets_max=SURVIVAL_ROWS_MAX)
        for bucket, counts in self._table.rows().items():
            table.add(bucket, counts)
        return table

    def laws(self) -> list[Law]:
        """Return an empty list, because the bound is for equal objects with unknown expiry."""
        return []

    def _life(self, n: int, now: float, age: float, known: float) -> Life:
        """Draw the life of an object like `n`. `known` is the time at which it is deleted at the latest."""
        read = self._log.objects
        drawn = now + self._rates.remaining_days(read.buckets[read.bucket[n]], age, 1 - self._rng.random())
        return Life(read.bucket[n], min(drawn, known), read.prefix[n], bool(read.expires[n]) and known <= drawn)

    def _draw(self) -> int:
        one = self._recent[self._pick(self._cumulative)]
        return one.numbers[self._pick(one.weights)]

    def _pick(self, cumulative: list[float]) -> int:
        return min(bisect_right(cumulative, self._rng.random() * cumulative[-1]), len(cumulative) - 1)

    def _find_recent(self) -> list[_Recent]:
        objects, lifetimes = self._log.objects, self._table.lifetimes()
        oldest = -objects.born[0] if self._log.since_days is None else -self._log.since_days
        longest = max(min(_RECENT_DAYS[1], oldest), _RECENT_DAYS[0])
        spans = [
            min(max(lifetimes.half_life_days(bucket, 0.0), _RECENT_DAYS[0]), longest) for bucket in objects.buckets
        ]
        found = [_Recent() for _ in objects.buckets]
        for n, bucket in enumerate(objects.bucket):
            age = -objects.born[n]
            if age <= spans[bucket]:
                one = found[bucket]
                weight = 1 / self._rates.survival(objects.buckets[bucket], age)
                one.numbers.append(n)
                one.weights.append(weight + (one.weights[-1] if one.weights else 0.0))
                one.objects_per_day += weight / spans[bucket]
                one.bytes_per_day += weight * objects.size[n] / spans[bucket]
        return [one for one in found if one.numbers]
