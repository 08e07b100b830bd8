"""`nos-ec explain` of a block: for each state, why it is not collected and what GC would do; and the command itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.composition.explaining import block_explainer, object_explainer
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.explain import blocks as explain_blocks
from nos_ec.engine.explain.block_reasons import BlockReason as Why
from nos_ec.engine.explain.blocks import BlockExplanation
from nos_ec.engine.gc.workers import LEASE_NAME
from nos_gc.assemble import gc_collector, gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.sql.sql_plans import caught
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.gc.test_gc import DAY_MS, configure, dig_holes, sealed


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def explained(system: System, block_id: BlockId) -> BlockExplanation:
    return block_explainer(system).explain(block_id)


def planned(system: System) -> set[BlockId]:
    """The blocks that a GC run would collect, by its own plan."""
    return {victim.block.block_id for victim in gc_collector(system).plan().victims}


def of_kind(system: System, kind: BlockKind = BlockKind.FRESH) -> list[BlockId]:
    return [row.block_id for row in system.metadata.list_blocks(None, 999) if row.kind is kind]


# --- blocks that are written ----------------------------------------------------------------------
def test_a_block_from_its_writer_to_recovery(bench: Bench, system: System) -> None:
    bench.put_some(system, 20)
    bench.produce(system)
    with consumer_service(system) as consumer:
        while not consumer.counters.packed:
            consumer.turn(flush=True)
        (block_id,) = of_kind(system)
        found = explained(system, block_id)
        assert (found.reason, found.state, found.would_collect) == (Why.OPEN, BlockState.OPEN, False)
        assert found.writer in found.why
        assert found.writer.startswith("consumer-")
        assert found.writer_until_ms is not None
        assert found.writer_until_ms > system.clock.now_ms()
        bench.end_leases()
        found = explained(system, block_id)
        assert (found.reason, found.writer_until_ms) == (Why.WRITER_DEAD, None)
        assert "fences the writer" in found.next
        (lease,) = system.metadata.list_leases(found.writer)
        assert system.metadata.fence_lease(lease, system.clock.now_ms())
        found = explained(system, block_id)
        assert (found.reason, found.state) == (Why.FENCED, BlockState.FENCED)
        assert "Recovery" in found.next
        system.worker.housekeeping().run_once()
        found = explained(system, block_id)
        assert (found.reason, found.state, found.would_collect) == (Why.TOO_FULL, BlockState.SEALED, False)
        assert found.sealed_ms is not None
        assert "gc.hole_ratio_min" in found.why


def test_a_block_of_a_large_object(bench: Bench, system: System) -> None:
    key = bench.put(system, "large", bench.data(20 * STRIPE))
    block_id = of_kind(system, BlockKind.LARGE)[0]
    assert explained(system, block_id).reason is Why.LARGE
    bench.delete(system, key)
    found = explained(system, block_id)
    assert (found.reason, found.would_collect) == (Why.EMPTY, True)
    assert block_id in planned(system)


# --- what GC would do -----------------------------------------------------------------------------
def test_a_block_that_is_mostly_holes_until_it_is_gone(bench: Bench) -> None:
    configure(bench, "gc", f"block_grace_ms = {DAY_MS}")
    with bench.open() as system:
        dig_holes(bench, system)
        victims = planned(system)
        assert len(victims) > 4
        for block in sealed(system):
            found = explained(system, block.block_id)
            assert found.would_collect == (block.block_id in victims), found.reason
        block_id = next(block.block_id for block in sealed(system) if block.live_objects)
        found = explained(system, block_id)
        assert (found.reason, found.next_ms) == (Why.VICTIM, None)
        assert found.stripes_needed is not None
        assert found.stripes_needed < found.stripes
        assert "The next GC run" in found.next
        assert found.advice is not None
        assert "nos-ec gc run --apply" in found.advice
        with system.lease(LEASE_NAME, 30_000):
            found = explained(system, block_id)
            assert (found.gc_runs, found.advice) == (True, None)
            assert "The current GC run" in found.next
        gc_service(system).run_once()
        found = explained(system, block_id)
        assert (found.reason, found.state) == (Why.CONDEMNED, BlockState.CONDEMNED)
        assert found.grace_ms is not None
        assert DAY_MS - 60_000 < found.grace_ms <= DAY_MS
        assert "ends in 23 h 59 min" in found.next
        assert found.next_ms == found.delete_after_ms
        system.clock = LaterClock(2 * DAY_MS)
        found = explained(system, block_id)
        assert (found.reason, found.grace_ms, found.would_collect) == (Why.GRACE_OVER, 0, True)
        assert found.advice is not None
        gc_service(system).run_once()
        with pytest.raises(NotFound, match=f"block {block_id.hex()} has no row") as refusal:
            explained(system, block_id)
        assert refusal.value.block_id == block_id


def test_a_block_that_gc_failed_to_collect(bench: Bench, system: System) -> None:
    block = dig_holes(bench, system)[0]
    until_ms = system.clock.now_ms() + 1_200_000
    for _ in range(2):
        system.metadata.cool_down_block(block.block_id, until_ms, failed=True)
    found = explained(system, block.block_id)
    assert (found.reason, found.gc_failures, found.next_ms) == (Why.SET_ASIDE, 2, until_ms)
    assert "failed 2 times" in found.why
    assert "in 19 min" in found.next.lower()
    assert found.advice is not None
    assert "--retry" in found.advice


def test_a_block_that_is_packed_densely(bench: Bench) -> None:
    """A tiny object alone in a stripe: nearly all of it is padding, and no fewer stripes would do."""
    with bench.open() as system:
        bench.put(system, "tiny", b"x")
        bench.pack(system)
        (block_id,) = of_kind(system)
        found = explained(system, block_id)
        assert (found.reason, found.would_collect) == (Why.PAYS_NOT, False)
        assert planned(system) == set()
        bench.put_some(system, 40, size_max=CHUNK)
        bench.pack(system)
        wasteful = max(sealed(system), key=lambda row: (row.live_objects, row.block_id))
    configure(bench, "gc", f"hole_ratio_min = {wasteful.waste_ratio - 0.005}")
    with bench.open() as system:
        assert wasteful.block_id not in planned(system)
        found = explained(system, wasteful.block_id)
        assert (found.reason, found.would_collect, found.next_ms) == (Why.DENSE, False, None)
        gc_service(system).run_once()
        found = explained(system, wasteful.block_id)
        assert (found.reason, found.gc_failures) == (Why.DENSE, 0)
        assert found.next_ms == found.gc_not_before_ms, "the run has set it aside"


def test_a_block_for_which_a_run_has_no_time_and_one_that_others_decide(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = dig_holes(bench, system)
    configure(bench, "gc", "blocks_max_per_run = 1")
    with bench.open() as hurried:
        reasons = {explained(hurried, block.block_id).reason for block in blocks}
        assert reasons == {Why.VICTIM, Why.LATER_RUN}
    for number in range(3):
        bench.put(system, f"tiny{number}", b"x")
        bench.pack(system)
    monkeypatch.setattr(explain_blocks, "EXAMINED_MAX", 0)
    monkeypatch.setattr(explain_blocks, "judge_by_row", lambda *_: None)
    monkeypatch.setattr(explain_blocks, "merging_pays", lambda *_: False)
    found = explained(system, blocks[0].block_id)
    assert (found.reason, found.would_collect) == (Why.UNDECIDED, None)


def test_an_explanation_takes_few_statements_whatever_the_number_of_blocks(bench: Bench, system: System) -> None:
    counts = set()
    for _ in range(2):
        for block in dig_holes(bench, system)[:3]:
            with caught(cast(SqlMetadata, system.metadata)) as run:
                assert explained(system, block.block_id).reason is Why.VICTIM
            counts.add(len(run))
    assert max(counts) <= 5


# --- the command ----------------------------------------------------------------------------------
def test_the_command_explains_objects_and_blocks(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        key = bench.put(system, "a b", bench.data(5000))
        bench.put_some(system, 10)
        wanted = asdict(object_explainer(system).explain(key))
    found = cli("explain", "b/a b")
    assert found.keys() == wanted.keys()
    assert (found["reason"], found["state"]) == ("no_producer", "landed")
    text = cli.text("explain", "b/a b")
    assert text.splitlines()[0] == "b/a b"
    assert "no producer holds slot" in text
    assert "what to do: Start `nos-ec producer`." in text
    with bench.open() as system:
        bench.produce(system)
        assert "(no consumer)" in cli.text("explain", "b/a b")
        bench.pack(system)
        (block_id,) = {row.block_id.hex() for row in sealed(system)}
    text = cli.text("explain", "b/a b")
    assert block_id in text
    assert "packed" in text
    found = cli("explain", block_id)
    assert (found["block"], found["reason"]) == (block_id, "too_full")
    assert "why: " in cli.text("explain", block_id.upper())
    assert "GC collects from 75.0% on" in cli.text("explain", block_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOS_EC_GC__POLICY", "price")
        assert "75" not in cli.text("explain", block_id).partition("waste")[2].partition("\n")[0]
    with bench.open() as system:
        bench.put(system, "large", bench.data(100 * STRIPE))
    assert "`nos-ec stat` lists all" in cli.text("explain", "b/large")


def test_the_command_says_what_is_not_there(bench: Bench, cli: Cli) -> None:
    error = cli("explain", "b/none", exits=4)
    assert (error["bucket"], error["name"]) == ("b", "none")
    assert "it is not in the trash: it was never stored, it was deleted permanently" in error["message"]
    error = cli("explain", "ab" * 16, exits=4)
    assert error["block"] == "ab" * 16
    for wrong in ("photos", "0" * 31, "0" * 33):
        assert "32 hexadecimal digits" in cli("explain", wrong, exits=2)["message"]


def test_an_object_and_a_block_are_explained_after_their_object_is_deleted(bench: Bench, system: System) -> None:
    key = bench.put(system, "x", b"data")
    bench.pack(system)
    (block_id,) = of_kind(system)
    bench.delete(system, key)
    found = explained(system, block_id)
    assert (found.reason, found.live_objects, found.dead_bytes) == (Why.EMPTY, 0, 4)
    with pytest.raises(NotFound):
        object_explainer(system).explain(ObjectKey("b", "x"))
