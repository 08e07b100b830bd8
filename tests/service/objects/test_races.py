"""Steps of two processes in the one harmful order, which the chaos test meets only by chance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from threading import Event
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError, Conflict, LeaseLost, NotFound, Transient
from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import BlockKind
from nos_ec.engine.check.quarantine import release
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import GroupCommit, Lease, Metadata
from nos_gc.assemble import gc_service
from tests.rig.fakes.audit import all_blocks
from tests.service.conftest import CHUNK, SHORT_OVER_MS, STRIPE, WAIT_S_MAX, Bench

pytestmark = [pytest.mark.landing("store"), pytest.mark.timed, pytest.mark.usefixtures("short_leases")]


class Meanwhile:
    """A port with something that happens once, before or after the first call of one method."""

    def __init__(self, port: object, method: str, act: Callable[[], object], *, before: bool = False) -> None:
        self._port = port
        self._method = method
        self._before = before
        self._act: Callable[[], object] | None = act

    @property
    def happened(self) -> bool:
        return self._act is None

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        if name != self._method:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._before:
                self._happen()
            try:
                return real(*args, **kwargs)
            finally:
                self._happen()

        return call

    def _happen(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


def metadata_meanwhile(system: System, method: str, act: Callable[[], object], *, before: bool = False) -> Meanwhile:
    """Let `act` happen once, before or after the first call of this method of the system's metadata."""
    made = Meanwhile(system.metadata, method, act, before=before)
    system.metadata = cast(Metadata, made)
    return made


class Replaced:
    """A port with one method replaced."""

    def __init__(self, port: object, method: str, act: Callable[..., object]) -> None:
        self._port = port
        self._method = method
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return self._act if name == self._method else getattr(self._port, name)


class NoRenewal:
    """Metadata of a process that is stopped: its leases are not renewed."""

    def __init__(self, port: Metadata) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def renew_lease(self, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
        return lease


def blocks_meanwhile(system: System, method: str, act: Callable[[], object]) -> BlockStore:
    """The system's block store; `act` happens before the first call of the method."""
    return cast(BlockStore, Meanwhile(system.blocks, method, act, before=True))


# --- readers -----------------------------------------------------------------------------------------
@pytest.mark.invariant(4)
@pytest.mark.parametrize("size", [100, 3 * CHUNK, 9 * STRIPE], ids=["small", "packed", "large"])
@pytest.mark.parametrize("was", [100, 9 * STRIPE], ids=["was-small", "was-large"])
def test_an_object_overwritten_under_a_reader_is_read_again(bench: Bench, system: System, was: int, size: int) -> None:
    """Between the look-up of the row and the read, the object is overwritten and its old blocks are collected."""
    key = bench.put(system, "o", bench.data(was))
    bench.pack(system)

    def overwrite() -> None:
        with bench.open() as other:
            bench.put(other, "o", bench.data(size))
            bench.settle(other)

    meanwhile = metadata_meanwhile(system, "get", overwrite)
    assert system.client.store().get(key) == bench.acknowledged[key]
    assert meanwhile.happened


@pytest.mark.invariant(4)
def test_a_large_object_overwritten_halfway_through_a_read(bench: Bench, system: System) -> None:
    """Bytes that were handed out cannot be taken back: `open` raises, `get` starts again."""
    key = bench.put(system, "o", bench.data(20 * STRIPE))
    _, segments = system.client.store().open(key)
    first = next(segments)
    assert bench.acknowledged[key].startswith(first)
    bench.put(system, "o", bench.data(20 * STRIPE))
    bench.settle(system)
    with pytest.raises(Conflict, match="read it again"):
        next(segments)
    assert system.client.store().get(key) == bench.acknowledged[key]


def test_a_deleted_object_is_not_found_halfway_through_a_get(bench: Bench, system: System) -> None:
    key = bench.put(system, "o", bench.data(20 * STRIPE))

    def delete() -> None:
        with bench.open() as other:
            bench.delete(other, key)
            bench.settle(other)

    meanwhile = metadata_meanwhile(system, "segments", delete)
    with pytest.raises(NotFound):
        system.client.store().get(key)
    assert meanwhile.happened


# --- recovery ----------------------------------------------------------------------------------------
def _fence_a_block_that_was_never_created(bench: Bench, system: System) -> BlockId:
    """The state after a writer dies between the row and the block."""
    block_id = system.new_block_id()
    with system.lease("dead writer", 60_000) as held:
        system.metadata.allocate_block(held.lease, block_id, BlockKind.FRESH, system.clock.now_ms())
    assert [row.block_id for row in system.metadata.fenced_blocks(10)] == [block_id]
    return block_id


def _recover_and_collect(bench: Bench) -> None:
    with bench.open() as other:
        bench.settle(other)


@pytest.mark.parametrize("method", ["fenced_blocks", "block"])
def test_a_slow_recovery_does_not_bring_a_collected_block_back(bench: Bench, system: System, method: str) -> None:
    """Another recovery seals the block, and GC deletes it and its row, while this one is about to create it."""
    _fence_a_block_that_was_never_created(bench, system)
    meanwhile = metadata_meanwhile(system, method, lambda: _recover_and_collect(bench))
    system.worker.housekeeping().run_once()
    assert meanwhile.happened
    assert list(system.blocks.list_blocks()) == []
    bench.assert_at_rest(system)


def test_a_block_collected_while_recovery_reads_it(bench: Bench, system: System) -> None:
    system.blocks.create(_fence_a_block_that_was_never_created(bench, system))
    system.blocks = cast(BlockStore, Meanwhile(system.blocks, "seal", lambda: _recover_and_collect(bench)))
    system.worker.housekeeping().run_once()
    bench.assert_at_rest(system)


# --- writers that sleep too long ---------------------------------------------------------------------
def _sleep_through_everything(bench: Bench) -> None:
    """What others do while a writer is suspended: fence it, recover its blocks, collect them."""
    time.sleep(SHORT_OVER_MS / 1000)
    with bench.open() as other:
        other.worker.housekeeping().run_once()
        gc_service(other).run_once()


@pytest.mark.invariant(8)
def test_a_consumer_suspended_during_its_fencing_leaves_no_block(bench: Bench, system: System) -> None:
    """Between the row of its block and the block; without renewal, as when the whole process is suspended."""
    bench.put_some(system, 60)
    bench.produce(system)
    system.metadata = cast(Metadata, NoRenewal(system.metadata))
    system.blocks = blocks_meanwhile(system, "create", lambda: _sleep_through_everything(bench))
    with pytest.raises(LeaseLost):
        bench.consume(system)
    with bench.open() as other:
        bench.settle(other)
        bench.assert_readable(other)
        bench.assert_at_rest(other)


@pytest.mark.invariant(8)
def test_a_large_put_suspended_during_its_fencing_leaves_no_block(bench: Bench, system: System) -> None:
    old = bench.put(system, "o", bench.data(9 * STRIPE))
    system.metadata = cast(Metadata, NoRenewal(system.metadata))
    system.blocks = blocks_meanwhile(system, "create", lambda: _sleep_through_everything(bench))
    with pytest.raises(LeaseLost):
        system.client.store().put(old, BytesIO(bench.data(20 * STRIPE)))
    with bench.open() as other:
        bench.settle(other)
        bench.assert_readable(other)
        bench.assert_at_rest(other)


def test_a_put_suspended_past_its_reservation_leaves_no_copy(bench: Bench, system: System) -> None:
    system.landing = cast(
        LandingStore, Meanwhile(system.landing, "put", lambda: _sleep_through_everything(bench), before=True)
    )
    with pytest.raises(Transient, match="PUT it again"):
        system.client.store().put(ObjectKey("b", "o"), BytesIO(b"x" * 100))
    assert list(system.landing.list_ids()) == []
    bench.assert_at_rest(system)


@contextmanager
def _stopped_before(bench: Bench, forget: str, work: Callable[[System], object]) -> Iterator[Callable[[], None]]:
    """Another process does some work after all leases have expired, and stops before it first calls `forget`. Yields a
    function that begins this; the process continues at the end of the block."""
    stopped, go_on = Event(), Event()

    def stop() -> None:
        stopped.set()
        assert go_on.wait(WAIT_S_MAX)

    with bench.open() as other, ThreadPoolExecutor(1) as pool:
        metadata_meanwhile(other, forget, stop, before=True)
        working: list[Future[object]] = []

        def begin() -> None:
            time.sleep(SHORT_OVER_MS / 1000)
            working.append(pool.submit(work, other))
            assert stopped.wait(WAIT_S_MAX)

        try:
            yield begin
        finally:
            go_on.set()
        working[0].result(WAIT_S_MAX)


def test_a_put_whose_reservation_is_being_reaped_leaves_no_copy(bench: Bench, system: System) -> None:
    """Its copy is written, and the PUT fails, after the reaper has deleted the copy and before it forgets the entry."""
    with _stopped_before(bench, "forget_landing", lambda other: other.worker.housekeeping().run_once()) as reap:
        system.landing = cast(LandingStore, Meanwhile(system.landing, "put", reap, before=True))
        with pytest.raises(Transient, match="PUT it again"):
            system.client.store().put(ObjectKey("b", "o"), BytesIO(b"x" * 100))
    assert list(system.landing.list_ids()) == []
    bench.assert_at_rest(system)


def test_a_writer_whose_block_is_being_deleted_leaves_no_block(bench: Bench, system: System) -> None:
    """Its block is created, and the writer fails, after GC has deleted the block and before it forgets the row."""
    with _stopped_before(bench, "forget_block", lambda other: gc_service(other).run_once()) as collect:
        system.metadata = cast(Metadata, NoRenewal(system.metadata))
        system.blocks = blocks_meanwhile(system, "create", collect)
        with pytest.raises(LeaseLost):
            system.client.store().put(ObjectKey("b", "o"), BytesIO(bench.data(20 * STRIPE)))
    assert list(system.blocks.list_blocks()) == []
    bench.assert_at_rest(system)


# --- quarantine --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("step", "before", "released"),
    [("condemned_blocks", False, True), ("end_quarantine", True, True), ("end_quarantine", False, False)],
)
def test_a_block_is_released_from_quarantine_or_deleted(
    bench: Bench, system: System, step: str, before: bool, released: bool
) -> None:
    """It is released after GC has found it due, and before or after GC begins to delete it."""
    block_id, now_ms = system.new_block_id(), system.clock.now_ms()
    system.blocks.create(block_id, bytes(STRIPE))
    assert system.metadata.quarantine_block(block_id, 1, BlockAccount(0, STRIPE, 0, 0, ()), now_ms, now_ms - 1)
    with _release_meanwhile(bench, system, step, block_id, before=before) as answers:
        assert gc_service(system).run_once().blocks_deleted == int(not released)
    assert answers == [released]
    assert (block_id in set(system.blocks.list_blocks())) is released
    assert list(all_blocks(system.metadata)) == []


@pytest.mark.parametrize(
    ("step", "before", "released"),
    [("due_deletions", False, True), ("doom_landing", True, True), ("doom_landing", False, False)],
)
def test_a_copy_is_released_from_quarantine_or_deleted(
    bench: Bench, system: System, step: str, before: bool, released: bool
) -> None:
    """It is released after the reaper has found it due, and before or after the reaper dooms it."""
    copy = system.new_landing_id()
    system.landing.put(copy, b"nobody's")
    assert system.metadata.quarantine_copy(copy, system.clock.now_ms() - 1)
    with _release_meanwhile(bench, system, step, copy, before=before) as answers:
        system.worker.housekeeping().run_once()
    assert answers == [released]
    assert (copy in set(system.landing.list_ids())) is released
    assert system.metadata.deletions_after(None, 9) == []


@contextmanager
def _release_meanwhile(
    bench: Bench, system: System, step: str, held_id: bytes, *, before: bool
) -> Iterator[list[bool]]:
    """Another process releases it before or after a step of this one. Yields its answers."""
    answers: list[bool] = []
    with bench.open() as other:
        meanwhile = metadata_meanwhile(system, step, lambda: answers.append(_released(other, held_id)), before=before)
        yield answers
        assert meanwhile.happened


def _released(system: System, held_id: bytes) -> bool:
    """False if it is being deleted."""
    try:
        assert release(system.metadata, held_id), "it is in quarantine"
    except Conflict:
        return False
    return True


# --- time --------------------------------------------------------------------------------------------
class ShiftedClock:
    """The time of the system, shifted."""

    def __init__(self, by_ms: int) -> None:
        self._by_ms = by_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._by_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        return stop.wait(wait_ms / 1000)


def test_a_clock_that_jumps_back_costs_time_and_never_data(bench: Bench, system: System) -> None:
    """Set an hour ahead, then corrected in the middle of everything: later writes still win."""
    system.clock = ShiftedClock(3_600_000)
    keys = bench.put_some(system, 120)
    bench.pack(system)
    bench.put_some(system, 40, prefix="landed")
    large = bench.put(system, "large", bench.data(9 * STRIPE))
    with system.lease("somebody", 1000):
        system.clock = ShiftedClock(0)
        bench.put(system, "large", bench.data(10 * STRIPE))
        for key in keys[::3]:
            bench.put(system, key.name, bench.data(100), key.bucket)
        for key in keys[1::3]:
            bench.delete(system, key)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_balanced(system)
    assert system.client.store().get(large) == bench.acknowledged[large]
    system.clock = ShiftedClock(2 * 3_600_000)
    bench.settle(system)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


@pytest.mark.invariant(8)
def test_two_writers_of_one_name(bench: Bench, system: System) -> None:
    """The second cannot begin before the first is fenced; then the first can commit nothing more (invariant 8)."""
    bench.put_some(system, 60)
    bench.produce(system)
    with system.lease("twin", 1000), pytest.raises(Conflict, match="twin"):
        system.lease("twin", 1000).__enter__()
    first = system.metadata.acquire_lease("twin", system.clock.now_ms() - 5000, 1000)
    block_id = system.new_block_id()
    system.metadata.allocate_block(first, block_id, BlockKind.FRESH, system.clock.now_ms())
    system.worker.housekeeping().run_once()
    with system.lease("twin", 60_000) as held:
        assert held.lease.epoch > first.epoch
        with pytest.raises(LeaseLost):
            system.metadata.commit_group(GroupCommit(first, block_id, 0, 1, [], 0, 0))
        with pytest.raises(LeaseLost):
            system.metadata.allocate_block(first, system.new_block_id(), BlockKind.FRESH, system.clock.now_ms())
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_a_lease_outlives_any_failure_to_renew_it_once(bench: Bench, system: System) -> None:
    """The error may look permanent, such as that of a file that cannot be opened for a moment. The same holds for its
    release."""
    failures: list[str] = []

    def fail(*_: object) -> Lease:
        failures.append("renewal")
        if len(failures) == 1:
            raise ConfigError("the file cannot be opened for a moment")
        return held.lease

    system.metadata = cast(Metadata, Replaced(system.metadata, "renew_lease", fail))
    held = system.lease("writer", 300)
    with held:
        deadline = time.monotonic() + WAIT_S_MAX
        while len(failures) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(failures) >= 3
    assert not held.lost
    assert system.metadata.totals().leases == 0
