"""Landing copies that cannot be read for a while, or ever: they delay no other object, and no offset for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, Lock
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from nos_consumer import unread
from nos_consumer.assemble import consumer_service
from nos_consumer.pause import BACK_OFF
from nos_consumer.service import ConsumerService
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.formats.messages import encode_pack_request
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.retry_queue import NAMED_MAX
from nos_ec.ports.landing_store import LandingStore
from tests.rig.at_rest import come_to_rest
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import Bench, set_clock

pytestmark = pytest.mark.landing("store")

STILL_TURNS = 300
"""Turns without progress, 20 ms or more each, after which none will come by itself: the clock of the tests stands
still."""


class Copies:
    """A landing store that fails the reads of some copies, at once or after `answer` is set, and counts them."""

    def __init__(self, landing: LandingStore) -> None:
        self._landing = landing
        self._lock = Lock()
        self.stuck: set[LandingId] = set()
        self.hanging = False
        self.answer = Event()
        self.reads: Counter[LandingId] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._landing, name)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        with self._lock:
            self.reads[landing_id] += 1
            stuck, hanging = landing_id in self.stuck, self.hanging
        if stuck and hanging:
            self.answer.wait()
            with self._lock:
                stuck = landing_id in self.stuck
        if stuck:
            raise Transient(f"landing copy {landing_id.hex()}: no answer")
        return self._landing.read_range(landing_id, offset, length)

    def reads_of_stuck(self) -> int:
        with self._lock:
            return sum(self.reads[landing_id] for landing_id in self.stuck)


@pytest.fixture
def copies(system: System) -> Iterator[Copies]:
    made = Copies(system.landing)
    system.landing = cast(LandingStore, made)
    yield made
    made.answer.set()  # or the threads never end


@pytest.fixture
def clock(system: System) -> FakeClock:
    return FakeClock(system.clock.now_ms())


@pytest.fixture
def service(system: System, copies: Copies, clock: FakeClock) -> Iterator[ConsumerService]:
    """A consumer whose clock stands still."""
    with consumer_service(system) as made:
        set_clock(made, clock)
        yield made
        copies.answer.set()


def _stick(system: System, copies: Copies, keys: list[ObjectKey]) -> None:
    for key in keys:
        landing_id = system.metadata.get(key).landing_id
        assert landing_id is not None
        copies.stuck.add(landing_id)


def _turn_until(service: ConsumerService, done: Callable[[], bool]) -> None:
    still = 0
    while not done():
        moved = service.turn(flush=True)
        still = 0 if moved else still + 1
        assert still < STILL_TURNS, f"nothing moves any more: {service.counters}"


def _turn_until_still(service: ConsumerService, clock: FakeClock) -> None:
    """Until all waits are over, and nothing is in flight."""
    for _ in range(20):
        clock.advance(BACK_OFF.max_ms)
        service.turn(flush=True)
    _turn_until(service, lambda: not service.lanes.pending and not service.unread._probes)


def _lag(system: System) -> int:
    watcher = system.worker.log_consumer("watcher")
    try:
        return watcher.lag()
    finally:
        watcher.close()


@pytest.mark.parametrize("hanging", [False, True])
def test_copies_that_cannot_be_read_do_not_stop_the_others(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService, hanging: bool
) -> None:
    """8 % of them, as many in each group. Time stands still: whatever waits for a pause to end would wait for ever."""
    keys = bench.put_some(system, 400)
    stuck = keys[::12]
    _stick(system, copies, stuck)
    copies.hanging = hanging
    bench.produce(system)
    with capture_logs() as logs:
        _turn_until(service, lambda: service.counters.packed == len(keys) - len(stuck))
        _turn_until(service, lambda: len(service.unread) == len(stuck))
    parked = [line for line in logs if line["event"] == "object parked"]
    assert len(parked) == min(NAMED_MAX, len(stuck)), "each is named once"
    assert all("answer" in line["reason"] for line in parked)
    assert copies.reads_of_stuck() == len(stuck), "they were read again before their time"

    copies.stuck.clear()
    copies.answer.set()
    clock.advance(unread.BACK_OFF.max_ms)
    _turn_until(service, lambda: service.counters.packed == len(keys))
    assert len(service.unread.retry_queue) == 0
    _turn_until_still(service, clock)
    assert _lag(system) == 0


def test_a_copy_that_is_slow_is_packed_in_the_end(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    """It is left behind by the first plan, and waited for by the second."""
    (key,) = _few_with_stuck_ones(bench, system, copies, 1)
    copies.hanging = True
    bench.produce(system)
    _turn_until(service, lambda: service.counters.packed == 20)
    (packable,) = (packable for packable, _ in service.unread.retry_queue)
    assert packable.key == key
    copies.stuck.clear()
    copies.answer.set()
    clock.advance(unread.BACK_OFF.first_ms)
    _turn_until(service, lambda: service.counters.packed == 21)


@pytest.mark.invariant(5)
def test_an_event_whose_copy_is_never_read_does_not_hold_up_its_partition(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    """The event is given up after some minutes; the row stays queued, and the object parked."""
    (key,) = _few_with_stuck_ones(bench, system, copies, 1)
    bench.produce(system)
    _turn_until(service, lambda: service.counters.packed == 20)
    _turn_until_still(service, clock)
    assert service.counters.given_up == 1
    assert _lag(system) == 0
    assert system.metadata.get(key).state is ObjectState.QUEUED
    reads = copies.reads_of_stuck()
    assert unread.HELD_FAILURES_MAX <= reads <= 25

    copies.stuck.clear()
    clock.advance(unread.BACK_OFF.max_ms)
    _turn_until(service, lambda: service.counters.packed == 21)
    assert len(service.unread.retry_queue) == 0


def test_an_object_that_was_given_up_and_is_published_again_is_tried_as_before(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    (key,) = _few_with_stuck_ones(bench, system, copies, 1)
    bench.produce(system)
    _turn_until(service, lambda: service.counters.packed == 20)
    _turn_until_still(service, clock)
    reads, stale = copies.reads_of_stuck(), service.counters.stale
    publisher = system.worker.publisher()
    publisher.publish([(key.bucket.encode(), _event(system, key))])
    publisher.close()
    _turn_until(service, lambda: service.counters.stale == stale + 1)
    assert copies.reads_of_stuck() == reads
    assert len(service.unread) == 1


def test_when_no_copy_can_be_read_packing_pauses_longer_and_longer(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    keys = bench.put_some(system, 400)
    _stick(system, copies, keys)
    bench.produce(system)
    with capture_logs() as logs:
        _turn_until(service, lambda: service.counters.retried > 0 and not service.lanes.pending)
        for _ in range(40):
            for _ in range(3):
                service.turn(flush=True)
            clock.advance(500)
    pauses = [line["wait_ms"] for line in logs if line["event"] == "packing paused"]
    assert pauses == [1000, 2000, 4000, 8000, 16000][: len(pauses)]
    assert len(pauses) >= 4

    copies.stuck.clear()
    clock.advance(BACK_OFF.max_ms)
    _turn_until(service, lambda: service.counters.packed == len(keys))
    assert len(service.unread.retry_queue) == 0, "what is parked is tried as soon as anything can be read"


@pytest.mark.invariant(9)
def test_more_than_can_be_parked_are_given_up_or_wait(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    service.unread.retry_queue._items_max = 5
    _few_with_stuck_ones(bench, system, copies, 9, readable=60)
    bench.produce(system)
    _turn_until(service, lambda: service.counters.packed == 60)
    _turn_until(service, lambda: service.counters.given_up == 4)
    assert len(service.unread.retry_queue) == 5
    assert service.waiting_objects == 0


def test_an_object_that_is_deleted_while_it_is_parked_is_forgotten(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    (key,) = _few_with_stuck_ones(bench, system, copies, 1)
    bench.produce(system)
    _turn_until(service, lambda: len(service.unread) == 1)
    bench.delete(system, key)
    clock.advance(unread.BACK_OFF.first_ms)
    _turn_until(service, lambda: len(service.unread.retry_queue) == 0)
    assert copies.reads_of_stuck() == 1, "an unneeded copy was read"
    _turn_until_still(service, clock)
    assert _lag(system) == 0


def test_revoked_partitions_take_their_parked_objects_along(
    bench: Bench, system: System, copies: Copies, clock: FakeClock, service: ConsumerService
) -> None:
    """Their new owner receives the events again."""
    _few_with_stuck_ones(bench, system, copies, 40, readable=400)
    bench.produce(system)
    _turn_until(service, lambda: service.counters.packed == 400 and len(service.unread) == 40)
    second = system.worker.log_consumer("second")
    while len(service._messages.assignment()) == system.settings.log.partitions:
        second.poll(1, 0)
        service.turn(flush=True)
    kept = service._messages.assignment()
    assert {partition for packable, _ in service.unread.retry_queue for partition, _ in packable.tickets} <= kept
    assert len(service.unread) == len(service.unread.retry_queue) == len(service._backlog)
    assert 0 < len(service.unread) < 40
    second.close()
    copies.stuck.clear()
    clock.advance(unread.BACK_OFF.max_ms)
    _turn_until(service, lambda: system.metadata.totals().packed_objects == 440)
    _turn_until_still(service, clock)
    assert _lag(system) == 0


def test_a_consumer_that_packs_once_names_what_it_could_not_read(bench: Bench, system: System, copies: Copies) -> None:
    (key,) = _few_with_stuck_ones(bench, system, copies, 1)
    bench.produce(system)
    with consumer_service(system) as once:
        once._options = replace(once._options, drain_idle_ms=500)
        with pytest.raises(Transient, match=f"1 object is not packed.*{key}.*no answer"):
            once.drain(make_room=lambda: False)
    assert system.metadata.totals().packed_objects == 20
    copies.stuck.clear()
    bench.consume(system)
    assert system.metadata.totals().packed_objects == 21
    assert come_to_rest(system) == []
    bench.assert_readable(system)


def _event(system: System, key: ObjectKey) -> bytes:
    row = system.metadata.get(key)
    assert row.landing_id is not None
    return encode_pack_request(
        object_id=row.object_id,
        key=key,
        version=row.version,
        size=row.size,
        crc32c=row.crc32c,
        landing_id=row.landing_id,
    )


def _few_with_stuck_ones(
    bench: Bench, system: System, copies: Copies, stuck: int, readable: int = 20
) -> list[ObjectKey]:
    bench.put_some(system, readable)
    keys = bench.put_some(system, stuck, size_max=2000, prefix="stuck")
    _stick(system, copies, keys)
    return keys
