"""The audit of a store finds deliberate errors; it judges the chaos run and the crash matrix."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from nos_ec.composition.wiring import System
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.lifecycle import BlockKind
from nos_ec.testing.audit import problems

from .conftest import Bench


def _found(system: System) -> list[str]:
    return problems(system.metadata, system.blocks, system.landing)


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


def test_landing_copy_without_an_object(bench: Bench) -> None:
    with bench.open() as system:
        system.landing.put(LandingId(bytes(16)), b"data")
        assert _found(system) == [f"landing copy {bytes(16).hex()} belongs to no object"]


def _run(bench: Bench, statement: str) -> None:
    """Bypasses the store, because none of its operations would do this."""
    engine = create_engine(f"sqlite:///{bench.folder / 'store' / 'metadata.db'}")
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()
