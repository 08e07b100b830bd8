"""GC writes several groups at a time, and reads the headers of several blocks at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind
from nos_ec.engine.figures.header_survey import HeaderSurvey
from nos_ec.ports.block_store import BlockStore
from nos_gc.assemble import gc_service
from tests.service.conftest import Bench
from tests.service.gc.test_gc import FailingAfter, configure, dig_holes, sealed
from tests.service.packing.test_stuck_items import FailingFor

pytestmark = pytest.mark.invariant(10)
MEETING_S = 30


class Meeting:
    """A block store whose first two calls of each named method wait for each other. highest: the most calls at once."""

    def __init__(self, blocks: BlockStore, *methods: str) -> None:
        self._blocks = blocks
        self._barriers = {method: threading.Barrier(2) for method in methods}
        self._met: dict[str, int] = dict.fromkeys(methods, 0)
        self._now: dict[str, int] = dict.fromkeys(methods, 0)
        self.highest: dict[str, int] = dict.fromkeys(methods, 0)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._blocks, name)
        if name not in self._barriers:
            return method

        def met(block_id: BlockId, *arguments: Any) -> Any:
            with self._lock:
                self._met[name] += 1
                turn = self._met[name]
                self._now[name] += 1
                self.highest[name] = max(self.highest[name], self._now[name])
            try:
                if turn <= 2:
                    self._barriers[name].wait(MEETING_S)
                return method(block_id, *arguments)
            finally:
                with self._lock:
                    self._now[name] -= 1

        return met


def test_two_groups_are_written_at_once_and_headers_of_two_blocks_read_at_once(bench: Bench) -> None:
    """Each of two first calls waits for the other, so this fails unless they overlap. A run that spares the reads of
    others would begin with one group."""
    configure(bench, "gc", "lanes = 2")
    configure(bench, "gc", "read_slowdown_max = 0")
    configure(bench, "gc", "hole_ratio_min = 0.4")
    with bench.open() as system:
        dig_holes(bench, system, keep=2)
        survey = HeaderSurvey(system.metadata, system.blocks, system.clock, random.Random(1))
        assert survey.run_once(), "or GC would read headers for it, one after the other"
        meeting = Meeting(system.blocks, "create", "read_many")
        system.blocks = cast(BlockStore, meeting)
        result = gc_service(system).run_once()
        assert meeting.highest["create"] == 2
        assert meeting.highest["read_many"] >= 2
        assert result.blocks_deleted == result.blocks_condemned > 4
        assert not [block for block in sealed(system) if block.kind is BlockKind.FRESH and block.hole_ratio >= 0.4]
        bench.assert_readable(system)
        bench.assert_balanced(system)


class FailingTogether:
    """A block store that refuses the first `count` blocks, once all of them are asked for."""

    def __init__(self, blocks: BlockStore, count: int) -> None:
        self._blocks = blocks
        self._barrier = threading.Barrier(count)
        self._left = iter(range(count))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def create(self, block_id: BlockId, data: bytes) -> None:
        if next(self._left, None) is not None:
            self._barrier.wait(MEETING_S)
            raise Transient("no answer for a moment")
        self._blocks.create(block_id, data)


def test_a_moment_without_a_store_does_not_end_a_run_with_several_lanes(bench: Bench) -> None:
    """All lanes fail at once. That is one failure in a row, not three."""
    configure(bench, "gc", "lanes = 3")
    configure(bench, "gc", "read_slowdown_max = 0")
    configure(bench, "gc", "hole_ratio_min = 0.4")
    with bench.open() as system:
        blocks = dig_holes(bench, system, keep=2)
        system.blocks = cast(BlockStore, FailingTogether(system.blocks, 3))
        result = gc_service(system).run_once()
        assert result.blocks_deleted >= len(blocks)
        assert not {block.block_id for block in blocks} & {block.block_id for block in sealed(system)}
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_a_run_with_little_to_write_leaves_one_block_behind(bench: Bench) -> None:
    configure(bench, "gc", "lanes = 8")
    with bench.open() as system:
        dig_holes(bench, system, keep=8)
        result = gc_service(system).run_once()
        assert 1 < result.stripes_written <= 8
        assert len([block for block in sealed(system) if block.kind is BlockKind.SURVIVOR]) == 1


def test_a_block_that_stops_answering_does_not_disturb_the_groups_of_other_lanes(bench: Bench) -> None:
    """Its objects wait in the merge list and in groups under way beside those of other blocks."""
    configure(bench, "gc", "lanes = 4")
    configure(bench, "gc", "hole_ratio_min = 0.4")
    with bench.open() as system:
        blocks = dig_holes(bench, system, keep=2)
        stuck = {blocks[1].block_id, blocks[5].block_id}
        failing = FailingAfter(system.blocks, "read_many", stuck, after=2)
        failing_one = FailingFor(cast(BlockStore, failing), "read", stuck)
        system.blocks = cast(BlockStore, failing_one)
        result = gc_service(system).run_once()
        assert {block.block_id for block in sealed(system) if block.kind is BlockKind.FRESH} == stuck
        assert result.blocks_parked == 2
        failing.stuck.clear()
        failing_one.stuck.clear()
        bench.assert_readable(system)
        bench.assert_balanced(system)
        left = sum(block.live_objects for block in sealed(system) if block.kind is BlockKind.FRESH)
        assert result.objects_moved + left == len(bench.acknowledged), "no object was moved twice"
