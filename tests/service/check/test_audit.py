"""The audit of a store finds deliberate errors; it judges the chaos run and the crash matrix. What it finds is mostly
what a check finds (test_check.py)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind, SegmentState
from tests.rig.fakes.audit import problems
from tests.service.check.test_check import run
from tests.service.conftest import Bench


def _found(system: System) -> list[str]:
    return problems(system.metadata, system.blocks, system.landing, system.medium)


def test_open_block_whose_lease_is_gone(bench: Bench) -> None:
    with bench.open() as system:
        now_ms = int(time.time() * 1000)
        lease = system.metadata.acquire_lease("writer", now_ms, 60_000)
        system.metadata.allocate_block(lease, BlockId(bytes(16)), BlockKind.FRESH, now_ms)
        assert _found(system) == []
        run(bench, "DELETE FROM leases")
        (line,) = _found(system)
        assert line.startswith(f"block-without-writer: block {bytes(16).hex()} {{'writer': 'writer', ")


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


def test_what_cannot_be_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as system:

        def away(*_: object) -> None:
            raise Transient("no answer")

        monkeypatch.setattr(type(system.landing), "list_ids", away)
        assert _found(system) == ["landing copies cannot be looked at: no answer"]


def test_an_open_landing_segment_is_right_while_its_log_lives(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 22)
        assert SegmentState.OPEN in system.metadata.segment_totals()
        assert _found(system) == []
        without_log = problems(system.metadata, system.blocks, system.landing)
        assert without_log == ["there are landing segments, but no landing log to look at"]
        run(bench, "DELETE FROM leases")
        assert _found(system) != []
