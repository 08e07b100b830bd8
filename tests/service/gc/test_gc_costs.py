"""What GC and space cost: the parts of a raw byte, amplifications over days, and the way to other targets."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from nos_ec.cli.operator.status import status_data
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.gc.target_costs import TargetCost
from nos_ec.core.ids import BlockId
from nos_ec.engine.figures import header_survey
from nos_ec.engine.figures.header_survey import (
    BLOCKS_MAX,
    HEADERS_NOTE,
    SURVEY_WAIT_MS,
    HeaderSurvey,
    read_headers_found,
)
from nos_ec.engine.figures.usage import DAY_MS
from nos_ec.engine.gc.space import PAGE_BLOCKS
from nos_ec.engine.header_scan import HeaderScan, scan_headers
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import all_blocks
from tests.service.conftest import STRIPE, Bench
from tests.service.gc.test_gc_policies import fresh, holey


def test_what_users_wrote_and_gc_copied_stays_known_after_blocks_are_deleted(bench: Bench) -> None:
    with holey(bench) as system:
        system.operator.store_totals().keep()
        before = system.metadata.totals()
        assert before.copied_bytes_written == 0
        result = gc_service(system).run_once()
        assert result.blocks_deleted > 0
        after = system.metadata.totals()
        assert after.user_bytes_written == before.user_bytes_written, "deleted blocks are counted"
        assert after.copied_bytes_written == result.bytes_moved > 0
        assert after.dead_bytes < before.dead_bytes

        system.clock = LaterClock(200 * DAY_MS)
        system.operator.store_totals().keep()
        system.clock = LaterClock(201 * DAY_MS)
        bench.put_some(system, 200, prefix="later")
        bench.pack(system)
        written = system.metadata.totals().user_bytes_written - after.user_bytes_written
        system.clock = LaterClock(202 * DAY_MS)
    with bench.open() as system:
        system.clock = LaterClock(202 * DAY_MS)
        data, _ = status_data(system, exact=True)
        week = data["cost"]["usage"]["week"]
        assert week["user_bytes"] == written > 0
        assert week["write_amplification"] == 1
        assert week["span_ms"] == pytest.approx(2 * DAY_MS, rel=0.01)


def test_status_shows_the_parts_of_a_raw_byte_and_why_gc_is_behind(bench: Bench) -> None:
    with holey(bench, 'policy = "space-target"\nblocks_max_per_run = 2') as system:
        assert gc_service(system).run_once().behind == "blocks"
    data = json.loads(bench.run("status", "--json").stdout)
    cost = data["cost"]
    assert cost["raw_bytes_per_live_byte"] == pytest.approx(data["raw_bytes_per_user_byte"], abs=1e-5)
    assert sum(cost["parts"].values()) == pytest.approx(cost["raw_bytes_per_live_byte"], abs=1e-5)
    assert cost["parts"]["coding"] == pytest.approx(3 / 8)
    assert cost["headers_surveyed_ms"] is not None
    assert (cost["parts"]["undivided"], cost["parts"]["headers"] > 0, cost["parts"]["padding"] > 0) == (0, True, True)
    assert cost["break_even_space_amplification"] > data["space_amplification"] > 1.2
    assert data["gc_behind"] == "blocks"
    shown = bench.run("status").stdout.decode()
    assert "dead sealed" in shown
    assert "of it padding" in shown
    assert "GC is behind" in shown


def survey_of(system: System, later_ms: int = 0) -> HeaderSurvey:
    return HeaderSurvey(system.metadata, system.blocks, LaterClock(later_ms), random.Random(1))


def test_the_parts_add_up_to_what_lies_in_the_block_store(bench: Bench) -> None:
    """Each of them is what the headers of all blocks say, and all together what the stripes take on all shards."""
    with holey(bench) as system:
        bench.put(system, "large", bench.data(20 * STRIPE))
        bench.put_some(system, 30, prefix="waits")
        survey_of(system, SURVEY_WAIT_MS + 1).run_once()
        headers = padding = 0
        for row in all_blocks(system.metadata):
            for header in scan_headers(system.blocks, row.block_id, row.stripes).headers:
                front = header.header_length + header.names_length
                headers += front
                padding += header.stripe_count * STRIPE - front - header.data_length
        data, _ = status_data(system, exact=True)
        cost, live, factor = data["cost"], data["live_bytes"], 11 / 8
        parts = {part: value * live for part, value in cost["parts"].items()}
        assert data["overhead_bytes"] == headers + padding
        assert cost["padding_bytes"] == padding, "exact where the survey has read all blocks"
        assert parts["headers"] == pytest.approx(factor * headers, rel=1e-3)
        assert parts["padding"] == pytest.approx(factor * padding, rel=1e-3)
        assert parts["coding"] == pytest.approx(3 / 8 * live)
        dead = parts["dead_sealed"] + parts["dead_open"] + parts["dead_condemned"]
        assert dead == pytest.approx(factor * data["dead_bytes"], rel=1e-3)
        assert sum(parts.values()) == pytest.approx(data["raw_bytes"], rel=1e-4)
        # Files of embedded shards hold checksums besides, and take whole blocks of their file system.
        assert data["raw_bytes"] < data["stored_raw_bytes"] < 1.1 * data["raw_bytes"]
        waiting = data["landed_bytes"] + data["queued_bytes"]
        assert cost["landing_bytes_per_live_byte"] == pytest.approx(waiting / live, abs=1e-5)
        assert waiting > 0


def test_headers_and_padding_are_one_part_before_the_first_survey(bench: Bench, system: System) -> None:
    bench.put(system, "large", bench.data(20 * STRIPE))
    cost = status_data(system, exact=True)[0]["cost"]
    assert cost["headers_surveyed_ms"] is cost["padding_bytes"] is None
    assert (cost["parts"]["headers"], cost["parts"]["padding"]) == (0, 0)
    assert cost["parts"]["undivided"] > 0
    shown = bench.run("status").stdout
    assert b"undivided" in shown
    assert b"of it padding" not in shown
    assert survey_of(system).run_once()
    assert not survey_of(system).run_once(), "another process has just done it"
    assert b"undivided" not in bench.run("status").stdout
    stored = system.metadata.note(HEADERS_NOTE)
    for text_of_note in ("[]", "{", "[1, 2, 0, 1]", "[1, -2, 3, 1]", '["a", 2, 3, 1]'):
        assert system.metadata.store_note(HEADERS_NOTE, text_of_note, stored)
        stored = text_of_note
        assert read_headers_found(system.metadata) is None
    assert survey_of(system).run_once(), "a damaged note is written anew"


def test_a_survey_of_headers_reads_few_blocks_and_ends_at_the_first_that_does_not_answer(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(system, "large", bench.data(100 * STRIPE))
    assert len(list(all_blocks(system.metadata))) < BLOCKS_MAX
    with system.metadata._transactions.engines[0].begin() as connection:  # type: ignore[attr-defined]
        connection.execute(MADE_UP, {"count": 5000, "size": 8 * STRIPE, "now_ms": system.clock.now_ms()})
    asked: list[BlockId] = []

    def away(_blocks: Any, block_id: BlockId, _stripes: int) -> HeaderScan:
        asked.append(block_id)
        raise (Transient if len(asked) % 5 == 0 else NotFound)("away")

    with monkeypatch.context() as patch:
        patch.setattr(header_survey, "scan_headers", away)
        survey = survey_of(system)
        with capture_logs() as logs:
            assert not survey.run_once()
        assert [line["event"] for line in logs] == ["survey of headers failed; trying again later"]
        assert len(asked) == 5
        assert not survey.run_once(), "it backs off"
        assert len(asked) == 5
    real = scan_headers
    asked.clear()

    def counted(blocks: Any, block_id: BlockId, stripes: int) -> HeaderScan:
        asked.append(block_id)
        return real(blocks, block_id, stripes)

    monkeypatch.setattr(header_survey, "scan_headers", counted)
    survey_of(system).run_once()
    assert 0 < len(asked) <= BLOCKS_MAX


def test_condemned_blocks_are_a_part_of_their_own_and_not_of_the_space_amplification(bench: Bench) -> None:
    with holey(bench, 'policy = "space-target"\nblock_grace_ms = 1000000000') as system:
        result = gc_service(system).run_once()
        assert (result.blocks_deleted, result.blocks_condemned > 0) == (0, True)
        totals = system.metadata.totals()
        assert totals.space_amplification == pytest.approx(result.space_amplification, abs=1e-5)
        assert totals.condemned_dead_bytes > 0
        cost = totals.raw_cost(system.geometry)
        assert cost is not None
        assert cost.parts["dead_condemned"] > cost.parts["dead_open"] == 0


def test_the_way_to_other_targets_is_near_what_a_run_does(bench: Bench) -> None:
    with holey(bench) as system:
        costs = gc_service(system).target_costs([1.1, 1.2, 1.4])
        assert [cost.is_reached for cost in costs] == [True] * 3
        copied = [cost.copied_bytes for cost in costs]
        assert copied == sorted(copied, reverse=True)
        largest = max(block.size_bytes for block in fresh(system))
        result = gc_service(system).run_once()
        assert result.bytes_moved == pytest.approx(costs[1].copied_bytes, abs=2 * largest)


def test_the_plan_shows_the_way_to_other_targets_when_asked(bench: Bench) -> None:
    with holey(bench):
        pass
    assert "targets" not in json.loads(bench.run("gc", "plan", "--json").stdout)
    shown = json.loads(bench.run("gc", "plan", "--targets", "--json").stdout)["targets"]
    assert [one["target"] for one in shown] == [1.1, 1.2, 1.4]
    assert b"target 1.1: copy" in bench.run("gc", "plan", "--targets").stdout


MADE_UP = text(
    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)"
    " INSERT INTO blocks (block_id, kind, state, writer, epoch, stripes, live_bytes, dead_bytes, overhead_bytes,"
    " live_objects, created_ms, sealed_ms, gc_failures)"
    " SELECT CAST(printf('%016d', i) AS BLOB), 'fresh', 'sealed', CAST('w' AS BLOB), 1, 8, :size - :size * dead / 1000,"
    " :size * dead / 1000, 0, 1, :now_ms, :now_ms - 86400000 * (1 + i * 31 % 400), 0"
    " FROM (SELECT i, i * 7919 % 1000 AS dead FROM n)"
)
"""Rows of sealed blocks of all live shares and ages, in the same shares whatever their number."""


def test_the_way_to_other_targets_reads_a_row_of_each_block_however_many_there_are(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million blocks cost ten times as much as a hundred thousand: as many pages of the same size, each once."""
    bench.config.write_text(bench.config.read_text().replace('policy = "threshold"', 'policy = "space-target"'))
    pages: list[tuple[int, int]] = []
    inner = type(system.metadata).blocks_with_holes

    def counted(self: Any, after: Any, now_ms: int, cool_down_ms_max: int, limit: int) -> Any:
        page = inner(self, after, now_ms, cool_down_ms_max, limit)
        pages.append((len(page), limit))
        return page

    monkeypatch.setattr(type(system.metadata), "blocks_with_holes", counted)
    found: dict[int, list[TargetCost]] = {}
    read: dict[int, int] = {}
    with bench.open() as opened:
        for count in (100_000, 1_000_000):
            with opened.metadata._transactions.engines[0].begin() as connection:  # type: ignore[attr-defined]
                connection.execute(text("DELETE FROM blocks"))
                values = {"count": count, "size": 8 * STRIPE, "now_ms": opened.clock.now_ms()}
                connection.execute(MADE_UP, values)
            pages.clear()
            found[count] = gc_service(opened).target_costs([1.1, 1.4])
            read[count] = sum(rows for rows, _ in pages)
            assert read[count] == count * 999 // 1000, "blocks without dead bytes are not read"
            assert len(pages) == -(-read[count] // PAGE_BLOCKS) + 1, "the last page is empty"
            assert {limit for _, limit in pages} == {PAGE_BLOCKS}
    for small, large in zip(found[100_000], found[1_000_000], strict=True):
        assert large.copied_bytes == pytest.approx(10 * small.copied_bytes, rel=1e-3)
        assert large.freed_bytes == pytest.approx(10 * small.freed_bytes, rel=1e-3)
        assert large.price_days == small.price_days
        assert large.is_reached
