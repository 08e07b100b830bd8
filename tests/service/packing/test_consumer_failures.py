"""A consumer whose metadata store or message log fails for a moment, at the moments that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event, Lock
from typing import Any, cast

import pytest

from nos_consumer.assemble import consumer_service
from nos_consumer.service import ConsumerService
from nos_ec.composition.wiring import System
from nos_ec.composition.worker_side import WorkerSide
from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.ids import BlockId
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.message_log import MessageConsumer
from nos_ec.ports.metadata import Metadata
from tests.rig.at_rest import HOUR_MS, LaterClock
from tests.service.conftest import WAIT_S_MAX, Bench, set_clock

pytestmark = pytest.mark.landing("store")


class FailsFirst:
    """A port with one method that raises Transient the first `count` times."""

    def __init__(self, port: object, method: str, count: int) -> None:
        self._port = port
        self._method = method
        self._lock = Lock()
        self.left = count

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(self._port, name)
        if name != self._method:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self.left:
                    self.left -= 1
                    raise Transient(f"{name} failed for a moment")
            return real(*args, **kwargs)

        return call


class FailsInRevocation:
    """A message log whose commits fail while partitions are being revoked. `begun` is set when that begins."""

    def __init__(self, port: MessageConsumer) -> None:
        self._port = port
        self._revoking = False
        self.begun = Event()
        self.failed = 0
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def on_revoke(self, callback: Callable[[frozenset[int]], None]) -> None:
        def revoked(partitions: frozenset[int]) -> None:
            self._revoking = True
            self.begun.set()
            try:
                callback(partitions)
            finally:
                self._revoking = False

        self._port.on_revoke(revoked)

    def commit(self, offsets: Mapping[int, int]) -> None:
        if self._revoking and not self.failed:
            self.failed += 1
            raise Transient("commit failed for a moment")
        try:
            self._port.commit(offsets)
        except Conflict:
            self.refused += 1
            raise


class WaitsToAppend:
    """A block store that appends nothing before `go` is set."""

    def __init__(self, port: BlockStore, go: Event) -> None:
        self._port = port
        self._go = go

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def append(self, block_id: BlockId, at_stripe: int, data: bytes) -> None:
        assert self._go.wait(WAIT_S_MAX)
        self._port.append(block_id, at_stripe, data)


def _turn_until_still(service: ConsumerService) -> None:
    """As a daemon does: a turn that fails is followed by the next one. A turn that waits for a lane makes no progress
    either."""
    still = 0
    while still < 20:
        try:
            moved = service.turn(flush=True)
        except Transient:
            moved = True
        still = 0 if moved or service.waiting_objects or service.lanes.pending else still + 1


def test_messages_are_not_forgotten_when_they_cannot_be_looked_up(bench: Bench, system: System) -> None:
    """They were polled already, so the log will not deliver them again: if they were forgotten, they would hold the
    offsets for ever."""
    bench.put_some(system, 120)
    bench.produce(system)
    failing = FailsFirst(system.metadata, "still_landed", 3)
    system.metadata = cast(Metadata, failing)
    with consumer_service(system) as service:
        _turn_until_still(service)
        assert failing.left == 0
        assert service.counters.packed == 120
        assert service.counters.messages == 120
        watcher = system.worker.log_consumer("watcher")
        assert watcher.lag() == 0
        watcher.close()


def test_a_pause_after_a_failure_ends_when_the_clock_is_set_back(bench: Bench, system: System) -> None:
    bench.put_some(system, 30)
    bench.produce(system)
    system.blocks = cast(BlockStore, FailsFirst(system.blocks, "create", 1))
    with consumer_service(system) as service:
        while not service.counters.retried:
            service.turn(flush=True)
        set_clock(service, LaterClock(-HOUR_MS))
        while service.waiting_objects or service.lanes.pending:
            assert service.turn(flush=True) or service.lanes.pending, "it waits until the clock is where it was"
        assert service.counters.packed == 30


@pytest.mark.parametrize("failures", [0, 1])
def test_only_a_copy_that_should_be_there_counts_as_lost(bench: Bench, system: System, failures: int) -> None:
    """A copy that is gone because its object was overwritten is normal; the alert is for copies that fail."""
    kept, overwritten, lost = bench.put_some(system, 3)
    bench.produce(system)
    with consumer_service(system) as service:
        while service.counters.messages < 3:
            service.turn(flush=False)
        bench.put(system, overwritten.name, b"newer", overwritten.bucket)
        assert system.worker.housekeeping().run_once().reaper.deleted == 1
        landing_id = system.metadata.get(lost).landing_id
        assert landing_id is not None
        system.landing.delete(landing_id)
        failing = FailsFirst(system.metadata, "still_landed", failures)
        service._backlog._metadata = cast(Metadata, failing)
        while service.waiting_objects or service.lanes.pending:
            service.turn(flush=True)
        assert failing.left == 0
        counters = service.counters
        assert (counters.packed, counters.superseded, counters.failed) == (1, 1, 1)
    assert system.metadata.get(kept).extent is not None


def test_a_failed_revocation_does_not_stop_later_commits(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions are lost in any case; their offsets must not spoil the commits of those that stay."""
    bench.put_some(system, 120)
    bench.produce(system)
    first = FailsInRevocation(system.worker.log_consumer("first"))
    second = system.worker.log_consumer("second")
    watcher = system.worker.log_consumer("watcher")
    system.blocks = cast(BlockStore, WaitsToAppend(system.blocks, first.begun))
    monkeypatch.setattr(WorkerSide, "log_consumer", lambda self, member: first)
    with consumer_service(system) as service:
        service.turn(flush=True)
        service.turn(flush=True)
        second.poll(1, 0)
        _turn_until_still(service)
        assert first.failed == 1
        assert 0 < len(first.assignment()) < system.settings.log.partitions
        bench.put_some(system, 120, prefix="later")
        bench.produce(system)
        _turn_until_still(service)
        assert first.refused == 0, "it commits offsets of partitions that it gave up"
        second.close()
        _turn_until_still(service)
        assert watcher.lag() == 0
    watcher.close()
    with bench.open() as other:
        monkeypatch.undo()
        bench.settle(other)
        bench.assert_readable(other)
        bench.assert_at_rest(other)
