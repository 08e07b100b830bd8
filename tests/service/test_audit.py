"""The audit of a store finds deliberate errors; it judges the chaos run and the crash matrix."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from nos_ec.composition.wiring import System, initialise
from nos_ec.core.ids import BlockId, LandingId, new_segment_id
from nos_ec.core.lifecycle import BlockKind, SegmentState
from nos_ec.testing.audit import all_segments, problems

from .conftest import Bench


def _found(system: System) -> list[str]:
    return problems(system.metadata, system.blocks, system.landing, system.medium)


def test_open_block_whose_lease_is_gone(bench: Bench) -> None:
    with bench.open() as system:
        now_ms = int(time.time() * 1000)
        lease = system.metadata.acquire_lease("writer", now_ms, 60_000)
        system.metadata.allocate_block(lease, BlockId(bytes(16)), BlockKind.FRESH, now_ms)
        assert _found(system) == []
        _run(bench, "DELETE FROM leases")
        assert _found(system) == [f"block {bytes(16).hex()} is open, but no process holds its lease 'writer'"]


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE blocks SET dead_bytes = dead_bytes + 1", "is not"),
        ("UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1", "headers and rows say"),
        ("UPDATE objects SET block_offset = block_offset + 1", "live rows that no header confirms"),
        ("DELETE FROM blocks", "has no row"),
    ],
)
def test_wrong_books(bench: Bench, statement: str, complaint: str) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.pack(system)
        assert _found(system) == []
        _run(bench, statement)
        assert any(complaint in line for line in _found(system))


def test_wrong_totals(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.pack(system)
        bench.put_some(system, 3, prefix="waits")
        assert _found(system) == []
        right = system.metadata.totals()
        for name in ("landed_objects", "landed_bytes", "packed_objects", "dead_bytes", "landing_deletions"):
            wrong = replace(right, **{name: getattr(right, name) + 1})
            monkeypatch.setattr(type(system.metadata), "totals", lambda _metadata, wrong=wrong: wrong)
            (line,) = _found(system)
            assert line.startswith("the totals are")


@pytest.mark.parametrize(
    ("statement", "complaints"),
    [
        ("DELETE FROM waiting WHERE object_id = 1", ["the totals are", "what waits is None", "does not claim it"]),
        ("UPDATE waiting SET landing_id = zeroblob(16) WHERE object_id = 1", ["what waits is None", "not claim it"]),
        ("UPDATE waiting SET size = size + 1 WHERE object_id = 1", ["the totals are"]),
        ("UPDATE waiting SET state = 'queued' WHERE object_id = 1", ["the totals are"]),
        ("UPDATE objects SET state = 'empty', landing_id = NULL WHERE object_id = 1", ["the totals are"]),
    ],
)
def test_what_waits_is_wrong(bench: Bench, statement: str, complaints: list[str]) -> None:
    with bench.open() as system:
        bench.put_some(system, 3)
        assert _found(system) == []
        _run(bench, statement)
        found = _found(system)
        assert [any(complaint in line for line in found) for complaint in complaints] == [True] * len(complaints), found


def test_landing_copy_without_an_object(bench: Bench) -> None:
    with bench.open() as system:
        system.landing.put(LandingId(bytes(16)), b"data")
        assert _found(system) == [f"landing copy {bytes(16).hex()} belongs to no object"]


def _logged(folder: Path) -> Bench:
    """A store with a landing log, and some objects in sealed landing segments."""
    bench = Bench(folder)
    bench.config.write_text(f"{bench.config.read_text()}bypass_bytes = 65536\n")
    initialise(bench.settings())
    with bench.open() as system:
        bench.put_some(system, 20)
    return bench


@pytest.mark.parametrize(
    ("statement", "complaints"),
    [
        ("DELETE FROM landing_segments", ["has no row", "lies in no landing segment"]),
        ("UPDATE landing_segments SET state = 'doomed'", ["lies in no landing segment"]),
        ("UPDATE landing_segments SET state = 'open'", ["no process holds the lease 'landing-log-"]),
        ("UPDATE landing_segments SET end_bytes = 4096", ["lies behind the end of its segment, 4096"]),
    ],
)
def test_wrong_books_of_landing_segments(tmp_path: Path, statement: str, complaints: list[str]) -> None:
    bench = _logged(tmp_path)
    with bench.open() as system:
        assert _found(system) == []
        _run(bench, statement)
        found = _found(system)
        assert {any(complaint in line for complaint in complaints) for line in found} == {True}, found
        assert all(any(complaint in line for line in found) for complaint in complaints), found


def test_landing_segments_that_are_lost_or_leak(tmp_path: Path) -> None:
    bench = _logged(tmp_path)
    with bench.open() as system:
        assert system.medium is not None
        leaked = new_segment_id(system.clock.now_ms(), 7)
        system.medium.create(leaked, 1, 0).close()
        assert _found(system) == [f"landing segment {leaked.hex()} has no row"]
        without_log = problems(system.metadata, system.blocks, system.landing)
        assert without_log == ["there are landing segments, but no landing log to look at"]
        lost = {row.segment for row in all_segments(system.metadata)}
        assert system.medium.release([leaked, *lost]) == {}
        found = _found(system)
        missing = [line for line in found if ": not in the log, but it has " in line]
        assert 1 <= len(missing) <= len(lost)
        homeless = [line for line in found if "lies in no landing segment" in line]
        assert len(homeless) == len(found) - len(missing) == len(bench.acknowledged)


def test_an_open_landing_segment_is_right_while_its_log_lives(tmp_path: Path) -> None:
    bench = _logged(tmp_path)
    with bench.open() as system:
        bench.put_some(system, 2)
        assert SegmentState.OPEN in system.metadata.segment_totals()
        assert _found(system) == []
        _run(bench, "DELETE FROM leases")
        assert _found(system) != []


def _run(bench: Bench, statement: str) -> None:
    """Bypasses the store, because none of its operations would do this."""
    engine = create_engine(f"sqlite:///{bench.folder / 'store' / 'metadata.db'}")
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()
