"""Events: their lines, reading them, and the simulation of traces and exports."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nos_ec.bench.gc.events import EventWorkload, ExpectedWorkload, event_workload, live_blocks, read_events
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.simulation import simulate_gc
from nos_ec.bench.gc.workloads import Objects, gc_workload
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_events import (
    LINE_BYTES_MAX,
    DeleteEvent,
    Event,
    ExportBegun,
    KnownSurvival,
    Names,
    PutEvent,
    event_line,
    parse_event,
)
from nos_ec.core.gc.gc_policy import SpaceTarget
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.lifetimes import AGE_RANGES, Counts, SurvivalTable

DAY_MS = 86_400_000
NOON_MS = 1_780_000_000_000
PUT: dict[str, Any] = {"event": "put", "time_ms": NOON_MS, "bucket": "b", "name": "a/1", "size": 5}


def written(folder: Path, events: Iterable[Event], name: str = "events.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"".join(map(event_line, events)))
    return path


def put(day: float, name: str, size: int = 10, **known: float) -> PutEvent:
    times = {field: NOON_MS + round(value * DAY_MS) for field, value in known.items()}
    return PutEvent(NOON_MS + round(day * DAY_MS), "b", name, size, **times)


def delete(day: float, name: str) -> DeleteEvent:
    return DeleteEvent(NOON_MS + round(day * DAY_MS), "b", name)


def lives(objects: Objects) -> list[tuple[float, float, int]]:
    return [(objects.born[n], objects.dies[n], objects.size[n]) for n in range(len(objects))]


@pytest.mark.parametrize(
    "event",
    [
        ExportBegun(NOON_MS),
        ExportBegun(NOON_MS, NOON_MS - 5, 7),
        KnownSurvival("", Counts([1.5] * AGE_RANGES, [2.0] * AGE_RANGES)),
        PutEvent(NOON_MS, "b", "ä/\n", 0),
        PutEvent(NOON_MS, "b", "n", 1, NOON_MS, NOON_MS + 1),
        DeleteEvent(0, "b", "n"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_a_line(event: Event) -> None:
    line = event_line(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert parse_event(line) == event


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xff", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "event None: give one of export, survival, put, delete"),
        (json.dumps(PUT | {"event": ["put"]}).encode(), "give one of"),
        (json.dumps(PUT | {"size": -1}).encode(), "size is -1"),
        (json.dumps(PUT | {"size": True}).encode(), "size is True"),
        (json.dumps(PUT | {"size": 1.5}).encode(), "whole number"),
        (json.dumps(PUT | {"time_ms": 1 << 60}).encode(), "time_ms is"),
        (json.dumps(PUT | {"bucket": ""}).encode(), "bucket is ''"),
        (json.dumps(PUT | {"expires_ms": 5}).encode(), "expires_ms is 5"),
        (json.dumps(PUT | {"deleted": 5}).encode(), "no field 'deleted'"),
        (json.dumps({**PUT, "event": "delete"}).encode(), "no field 'size'"),
        (json.dumps({"event": "put"}).encode(), "time_ms is missing"),
        (json.dumps({"event": "export", "version": 2, "time_ms": 1, "one_in": 1}).encode(), "version 2"),
        (json.dumps({"event": "survival", "bucket": "", "deaths": [1], "exposure_days": [1]}).encode(), "17 numbers"),
    ],
    ids=range(17),
)
def test_a_bad_line_says_what_is_wrong_and_where(line: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(event_line(put(0, "n")) + b"\n" + line + b"\n")
    with pytest.raises(InvalidInput) as found:
        read_events(path)
    assert says in str(found.value)
    assert str(found.value).startswith(f"{path}, line 3: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no object of more than 0 bytes"),
        (event_line(put(0, "n", 0)), "no object of more than 0 bytes"),
        (event_line(put(0, "n" * LINE_BYTES_MAX)), "line 1: it is longer than"),
        (event_line(ExportBegun(1)) * 2, "line 2: a second line"),
        (event_line(KnownSurvival("", Counts())) + event_line(put(0, "n")), "line of the event export is missing"),
        (event_line(put(3, "n")) + event_line(delete(2, "n")), "line 2: it is older than an earlier line"),
    ],
    ids=range(6),
)
def test_a_bad_file_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(content)
    with pytest.raises(InvalidInput, match=says):
        read_events(tmp_path / "events")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(event_line(put(n, str(n))) for n in range(500)), mtime=0)
    for name, content in (("cut.gz", whole[: len(whole) // 2]), ("none.gz", b"no gzip"), ("bad.gz", whole[:60] * 3)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidInput, match=name):
            read_events(tmp_path / name)
    with pytest.raises(InvalidInput, match="missing"):
        read_events(tmp_path / "missing")
    with pytest.raises(InvalidInput, match="more than 9 objects; take a sample"):
        read_events(written(tmp_path, [put(n, str(n)) for n in range(10)]), objects_max=9)


def test_what_the_lines_of_a_trace_say(tmp_path: Path) -> None:
    """Deleted, overwritten, expired, deleted before it expires, empty, and deleted without having been stored."""
    events: list[Event] = [
        put(1, "deleted", 1),
        delete(3, "deleted"),
        put(2, "overwritten", 2),
        put(5, "overwritten", 3),
        put(0, "expires", 4, expires_ms=7),
        put(0, "early", 5, expires_ms=9),
        delete(8, "early"),
        put(1, "empty", 0),
        delete(4, "unknown"),
        put(6, "known", 6, deleted_ms=6.5),
        delete(10, "expires"),
    ]
    path = written(tmp_path, events)
    log = read_events(path)
    expected = [(0, 7, 4), (0, 8, 5), (1, 3, 1), (2, 5, 2), (5, 1e9, 3), (6, 6.5, 6)]
    assert lives(log.objects) == expected
    assert list(log.objects.expires) == [1, 0, 0, 0, 0, 0]
    assert (log.days, log.unknown_deletes, log.table, log.size_bytes) == (10, 1, None, 21)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert lives(read_events(tmp_path / "packed.gz").objects) == expected
    assert lives(read_events(Path("-"), io.BytesIO(path.read_bytes())).objects) == expected
    found = event_workload(log, 1, None)
    assert isinstance(found, EventWorkload)
    assert found.live_bytes == pytest.approx((7 * 4 + 8 * 5 + 2 * 1 + 3 * 2 + 5 * 3 + 0.5 * 6) / 10)


def drawn_events(name: str, days: float, a_day: float, size: int) -> list[Event]:
    """A workload that begins with an empty store, as a trace that deletes what dies."""
    workload, objects, events = gc_workload(name, 1), Objects(), list[Event]()
    workload.begin(objects, 0)
    workload.arrive(objects, 0.0, days, a_day)
    for n in range(len(objects)):
        bucket, name = objects.buckets[objects.bucket[n]], f"{objects.prefixes[objects.prefix[n]]}{n}"
        events.append(PutEvent(NOON_MS + round(objects.born[n] * DAY_MS), bucket, name, size))
        if objects.dies[n] < days:
            events.append(DeleteEvent(NOON_MS + math.ceil(objects.dies[n] * DAY_MS), bucket, name))
    return events


def test_a_trace_gives_the_figures_of_its_workload(tmp_path: Path) -> None:
    """The lines in any order of names; objects of 1000 bytes in blocks of 32000 instead of 1 in 32."""
    options = GcOptions(SpaceTarget(1.2, floor_days=0), blocks=60, block_bytes=32, days=600)
    workload = gc_workload("D", 1)
    events = drawn_events("D", 600, 60 * 32 / workload.mean_days, 1000)
    log = read_events(written(tmp_path, events))
    again = event_workload(log, 1, None)
    blocks = live_blocks(again, 32_000)
    found = simulate_gc(again, GcOptions(options.policy, blocks=blocks, block_bytes=32_000))
    drawn = simulate_gc(workload, options)
    assert found.user_bytes == pytest.approx(1000 * drawn.user_bytes, rel=0.02)
    assert found.space_amplification == pytest.approx(drawn.space_amplification, rel=0.01)
    assert found.write_amplification == pytest.approx(drawn.write_amplification, rel=0.05)
    assert found.write_amplification > 1.3


def exported(count: int, rng: random.Random) -> list[Event]:
    """What a store exports in the equilibrium of workload B: objects of mixed sizes that live, and the survival table
    of all, those that have died among them."""
    workload, objects, table = gc_workload("B", 3), Objects(), SurvivalTable()
    workload.begin(objects, count)
    history = 300.0
    workload.arrive(objects, 0.0, history, count / workload.mean_days)
    for n in range(len(objects)):
        begun, ended = objects.born[n], min(objects.dies[n], history)
        table.observe(
            objects.buckets[objects.bucket[n]], -min(begun, 0.0), ended - begun, died=objects.dies[n] < history
        )
    events: list[Event] = [ExportBegun(NOON_MS)]
    events += [KnownSurvival(bucket, counts) for bucket, counts in table.rows().items()]
    for n in range(len(objects)):
        if objects.dies[n] >= history:
            time_ms = NOON_MS + round((objects.born[n] - history) * DAY_MS)
            events.append(PutEvent(time_ms, objects.buckets[objects.bucket[n]], str(n), rng.randrange(500, 1500)))
    return events


def test_an_export_goes_on_as_its_workload_does(tmp_path: Path) -> None:
    """The export has none of the objects that died, and yet as much arrives, lives and is copied as in the workload."""
    count, block_bytes = 250 * 64, 64_000
    log = read_events(written(tmp_path, exported(count, random.Random(1))))
    workload = event_workload(log, 1, 400.0)
    assert isinstance(workload, ExpectedWorkload)
    assert live_blocks(workload, block_bytes) == pytest.approx(250, rel=0.03)
    # 31 objects arrive on a day, a fifth of them for hours: that few tell the rate within a fifth or so.
    assert workload.mean_days == pytest.approx(gc_workload("B", 1).mean_days, rel=0.25)
    policy = SpaceTarget(1.2, floor_days=0)
    found = simulate_gc(workload, GcOptions(policy, blocks=250, block_bytes=block_bytes))
    drawn = simulate_gc(gc_workload("B", 1), GcOptions(policy, blocks=250, block_bytes=64, days=400))
    assert found.live_blocks == pytest.approx(drawn.live_blocks, rel=0.1)
    assert found.space_amplification == pytest.approx(drawn.space_amplification, rel=0.01)
    assert found.write_amplification == pytest.approx(drawn.write_amplification, rel=0.1)
    repeated = event_workload(log, 1, 400.0)
    assert simulate_gc(repeated, GcOptions(policy, blocks=250, block_bytes=block_bytes)) == found


def test_an_export_knows_what_expires_and_what_is_in_the_trash(tmp_path: Path) -> None:
    """Objects that arrive expire as soon after their PUT as those that they are like."""
    counts = Counts([0.0] * AGE_RANGES, [1e6] * AGE_RANGES)
    events: list[Event] = [ExportBegun(NOON_MS), KnownSurvival("b", counts)]
    events += [put(-n / 10, f"t{n}", expires_ms=30 - n / 10) for n in range(100)]
    events += [put(-n / 10, f"d{n}", deleted_ms=3) for n in range(100)]
    workload = event_workload(read_events(written(tmp_path, events)), 1, 50.0)
    objects = Objects()
    workload.begin(objects, 0)
    assert len(objects) == 200
    assert all(dies <= 30 for dies in objects.dies)
    assert sum(objects.dies[n] == 3 for n in range(200)) == 100
    workload.arrive(objects, 0.0, 10.0, 100.0)
    new = range(200, len(objects))
    assert len(new) == pytest.approx(100, abs=1)
    expiring = [n for n in new if objects.expires[n]]
    assert 30 < len(expiring) < 70
    assert all(objects.dies[n] == pytest.approx(objects.born[n] + 30) for n in expiring)


def test_large_objects_have_blocks_of_their_own(tmp_path: Path) -> None:
    """GC copies nothing of a trace of large objects, and their dead blocks are deleted at once."""
    rng, events, living = random.Random(2), list[Event](), list[str]()
    for n in range(4000):
        events.append(put(n / 10, str(n), 70))
        living.append(str(n))
        if len(living) > 400:
            events.append(delete(n / 10, living.pop(rng.randrange(len(living)))))
    policy = SpaceTarget(1.05, floor_days=0)
    found = {}
    for large_bytes in (60, None):
        workload = event_workload(read_events(written(tmp_path, events)), 1, None)
        options = GcOptions(policy, blocks=live_blocks(workload, 280), block_bytes=280, large_bytes=large_bytes)
        found[large_bytes] = simulate_gc(workload, options)
    assert found[60].copied_bytes == 0
    assert found[60].space_amplification == pytest.approx(1)
    assert found[None].copied_bytes > 0


def test_events_that_say_too_little_or_too_much_are_refused(tmp_path: Path) -> None:
    known = KnownSurvival("b", Counts([0.0] * AGE_RANGES, [1e6] * AGE_RANGES))
    one_time = read_events(written(tmp_path, [put(0, "a"), put(0, "b")]))
    with pytest.raises(InvalidInput, match="all events have the same time"):
        event_workload(one_time, 1, None)
    old = read_events(written(tmp_path, [ExportBegun(NOON_MS), known, put(-90, "a")]))
    with pytest.raises(InvalidInput, match="in the 30 days before the export"):
        event_workload(old, 1, None)
    busy = read_events(written(tmp_path, [ExportBegun(NOON_MS), known, *(put(-0.1, str(n)) for n in range(9000))]))
    with pytest.raises(InvalidInput, match="fewer --days, or take a sample"):
        event_workload(busy, 1, 1000.0)
    small = event_workload(read_events(written(tmp_path, [put(n, str(n)) for n in range(500)])), 1, None)
    assert live_blocks(small, 40) == pytest.approx(250 / 4, rel=0.05)
    with pytest.raises(InvalidInput, match="give --block-bytes 50 or less"):
        live_blocks(small, 1000)


def test_hashed_names_keep_prefixes_together() -> None:
    names, others = Names("one store", keep=False), Names("another", keep=False)
    one, two, three = (names.name(ObjectKey("b", name)) for name in ("x/y/1", "x/y/2", "x/z/1"))
    assert len({one, two, three}) == 3
    assert one.rpartition("/")[0] == two.rpartition("/")[0] != three.rpartition("/")[0]
    assert "/" not in names.name(ObjectKey("b", "bare"))
    assert names.name(ObjectKey("c", "x/y/1")).rpartition("/")[0] != one.rpartition("/")[0]
    assert names.bucket("b") != others.bucket("b") != "b"
    assert names.bucket("") == ""
    kept = Names("one store", keep=True)
    assert (kept.bucket("b"), kept.name(ObjectKey("b", "x/y/1"))) == ("b", "x/y/1")
