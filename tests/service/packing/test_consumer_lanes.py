"""A consumer with several lanes plans groups ahead for each of them. What no lane has begun can be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Semaphore
from typing import Any, cast

import pytest

from nos_consumer.assemble import consumer_service
from nos_consumer.service import ConsumerService
from nos_ec.composition.packing import StreamedPacking
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId
from nos_ec.engine.packing.lanes import Plan
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.message_log import Message, MessageConsumer
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import CONFIG, WAIT_S_MAX, Bench, set_clock

LANES = 3
AHEAD = 4
"""Windows of groups that fill a block."""
OBJECTS = 700
"""Some 22 groups: more than are planned ahead."""
LANES_CONFIG = CONFIG.replace("stripes_per_block = 8", "stripes_per_block = 16\nstripes_per_group_max = 4").replace(
    "[consumer]\n", f"[consumer]\nlanes = {LANES}\n"
)


class HeldBlocks:
    """A block store that makes no block before `go` is set. begun: how many it was to make, each with a group in it."""

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self.go = Event()
        self.begins = Semaphore(0)
        self.begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def create(self, block_id: BlockId, data: bytes) -> None:
        self.begun += 1
        self.begins.release()
        assert self.go.wait(WAIT_S_MAX)
        self._blocks.create(block_id, data)

    def wait_for_all_lanes(self) -> None:
        for _ in range(LANES):
            assert self.begins.acquire(timeout=WAIT_S_MAX)

    def go_when_withdrawn(self, service: ConsumerService, monkeypatch: pytest.MonkeyPatch) -> None:
        """Continue when the consumer has taken back what no lane has begun."""
        lanes = service.lanes
        withdraw = lanes.withdraw

        def withdrawn() -> list[Plan]:
            plans = withdraw()
            self.go.set()
            return plans

        monkeypatch.setattr(lanes, "withdraw", withdrawn)


class BrokenBlocks:
    """A block store that refuses new blocks while it is broken. tries: how many it refused."""

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self.is_broken = True
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def create(self, block_id: BlockId, data: bytes = b"") -> None:
        if self.is_broken:
            self.tries += 1
            raise Transient("no disk answers")
        self._blocks.create(block_id, data)


@pytest.fixture
def lanes_bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, LANES_CONFIG)
    initialise(bench.settings())
    return bench


@pytest.fixture
def published(lanes_bench: Bench) -> Iterator[System]:
    """A store with objects that are published."""
    with lanes_bench.open() as system:
        lanes_bench.put_some(system, OBJECTS)
        lanes_bench.produce(system)
        yield system


@pytest.fixture
def held(published: System) -> HeldBlocks:
    blocks = HeldBlocks(published.blocks)
    published.blocks = cast(BlockStore, blocks)
    return blocks


def plan_ahead(service: ConsumerService, held: HeldBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn until all lanes write, and as many plans wait as they take. The lanes continue when these are withdrawn."""
    while not service.lanes.full:
        service.turn(flush=True)
    assert service.lanes._windows_pending in range(AHEAD * LANES, AHEAD * LANES + AHEAD)
    assert service.lanes.pending > LANES
    held.wait_for_all_lanes()
    held.go_when_withdrawn(service, monkeypatch)


class Polls:
    """A message log that does not wait, and records how long it should have waited."""

    def __init__(self, messages: MessageConsumer) -> None:
        self._messages = messages
        self.waited_ms = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)

    def poll(self, messages_max: int, wait_ms: int) -> list[Message]:
        self.waited_ms += wait_ms
        return self._messages.poll(messages_max, 0)


def pack_the_rest(bench: Bench, system: System) -> None:
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_a_rebalance_waits_only_for_the_groups_under_way(
    lanes_bench: Bench, published: System, held: HeldBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new owner of a partition waits for it."""
    with consumer_service(published) as service:
        plan_ahead(service, held, monkeypatch)
        second = published.worker.log_consumer("second")
        second.poll(1, 0)
        service._poll()
        assert held.go.is_set()
        assert held.begun == LANES
        assert service.lanes.pending == 0
        assert 0 < service.counters.packed < OBJECTS
        assert service.waiting_objects > 0, "objects of the partitions that it kept"
        second.close()
        while service.counters.packed < OBJECTS:
            service.turn(flush=True)
        assert (service.counters.retried, service.counters.superseded) == (0, 0)
    pack_the_rest(lanes_bench, published)


def test_a_consumer_that_stops_waits_only_for_the_groups_under_way(
    lanes_bench: Bench, published: System, held: HeldBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it planned ahead is delivered again: its offsets are not committed."""
    with consumer_service(published) as service:
        plan_ahead(service, held, monkeypatch)
    assert held.begun == LANES
    assert 0 < service.counters.packed < OBJECTS
    pack_the_rest(lanes_bench, published)


def test_a_store_that_refuses_blocks_is_tried_by_each_lane_once(lanes_bench: Bench, published: System) -> None:
    """What was planned ahead waits with the others until the pause is over, and is tried one by one until a group is
    written."""
    broken = BrokenBlocks(published.blocks)
    published.blocks = cast(BlockStore, broken)
    clock = FakeClock(published.clock.now_ms())
    with consumer_service(published) as service:
        set_clock(service, clock)
        while not service.counters.retried:
            service.turn(flush=True)
        while service.lanes.pending:
            service.turn(flush=True)
        assert 1 <= broken.tries <= LANES
        assert len(service._backlog) == service.waiting_objects > 0
        broken.is_broken = False
        clock.advance(60_000)
        while service.counters.packed < OBJECTS:
            service.turn(flush=True)
        assert service.counters.superseded == 0
    pack_the_rest(lanes_bench, published)


def test_a_consumer_whose_merge_list_is_full_rests_while_nothing_can_be_written(
    lanes_bench: Bench, published: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for something to do all the time, for as long as the store was away."""
    broken = BrokenBlocks(published.blocks)
    published.blocks = cast(BlockStore, broken)
    monkeypatch.setattr(StreamedPacking, "backlog_objects_max", 100)
    with consumer_service(published) as service:
        set_clock(service, FakeClock(published.clock.now_ms()))
        polls = Polls(service._messages)
        service._messages = cast(MessageConsumer, polls)
        while not (service.counters.retried and service.paused and not service.lanes.pending):
            service.turn(flush=True)
        for turns in range(1, 6):
            polls.waited_ms = 0
            for _ in range(turns):
                service.turn(flush=True)
            assert polls.waited_ms == turns * service._options.idle_wait_ms
