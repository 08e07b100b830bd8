"""Packed bytes that are lost or damaged while their landing copies exist: the copies are read, and packed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.log_throttle import LINES_MAX
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.engine.retry_queue import NAMED_MAX, RetryFigures
from nos_ec.engine.upkeep.reaper import BACK_OFF, Reaper, ReapResult
from nos_ec.ports.block_store import BlockStore
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock, come_to_rest
from tests.rig.fakes.audit import all_blocks
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import CHUNK, Bench

pytestmark = [pytest.mark.invariant(2), pytest.mark.landing("store")]


def _lose(bench: Bench, system: System) -> None:
    """Remove all files of every block, as when a pool loses a placement group for good."""
    for row in all_blocks(system.metadata):
        for path in (bench.folder / "store" / "blocks").rglob(row.block_id.hex()):
            path.unlink()


def _damage(bench: Bench, system: System) -> None:
    """Overwrite bytes in all chunks of every block."""
    for row in all_blocks(system.metadata):
        for path in (bench.folder / "store" / "blocks").rglob(row.block_id.hex()):
            data = bytearray(path.read_bytes())
            data[CHUNK // 2 :] = bytes(len(data) - CHUNK // 2)
            path.write_bytes(data)


HARM = pytest.mark.parametrize("harm", [_lose, _damage], ids=["lost", "damaged"])


def _packed_with_copies(bench: Bench, system: System, count: int = 10) -> list[ObjectKey]:
    keys = bench.put_some(system, count)
    bench.produce(system)
    bench.consume(system)
    assert {system.client.store().head(key).state for key in keys} == {ObjectState.PACKED}
    return keys


@HARM
def test_lost_blocks_heal_while_landing_copies_are_there(
    bench: Bench, system: System, harm: Callable[[Bench, System], None]
) -> None:
    keys = _packed_with_copies(bench, system)
    harm(bench, system)
    assert system.worker.housekeeping().run_once().reaper.reverted == len(keys)
    assert {system.client.store().head(key).state for key in keys} == {ObjectState.LANDED}
    bench.assert_readable(system)
    assert come_to_rest(system) == []
    bench.assert_readable(system)
    assert {system.client.store().head(key).state for key in keys} == {ObjectState.PACKED}


@HARM
def test_lost_bytes_are_read_from_the_landing_copy(
    bench: Bench, system: System, harm: Callable[[Bench, System], None]
) -> None:
    keys = _packed_with_copies(bench, system)
    harm(bench, system)
    bench.assert_readable(system)
    for key in keys:
        size = len(bench.acknowledged[key])
        for offset, length in ((0, size), (size // 3, size // 3), (size, 5), (size // 2, size)):
            row, segments = system.client.store().open_range(key, offset, length)
            assert b"".join(segments) == bench.acknowledged[key][offset : offset + length]
            assert row.state is ObjectState.PACKED


def test_a_copy_of_a_slow_put_is_found(bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of landing copies are chosen before their bytes are written, which may take as long as a reservation."""
    early = system.new_landing_id()
    system.clock = LaterClock(20_000)
    with monkeypatch.context() as patched:
        patched.setattr(System, "new_landing_id", lambda self: early)
        bench.put(system, "slow", b"bytes")
    bench.produce(system)
    bench.consume(system)
    assert system.client.store().head(ObjectKey("b", "slow")).state is ObjectState.PACKED
    _lose(bench, system)
    assert system.client.store().get(ObjectKey("b", "slow")) == b"bytes"


@HARM
def test_an_object_whose_copy_is_damaged_as_well_stays_where_it_is(
    bench: Bench, system: System, harm: Callable[[Bench, System], None]
) -> None:
    """Pointing to an unreadable copy would gain nothing: the block may come back."""
    keys = _packed_with_copies(bench, system, 2)
    blocks = {path: path.read_bytes() for path in _files(bench)}
    harm(bench, system)
    for path in (bench.folder / "store" / "landing").glob("??/*"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert system.worker.housekeeping().run_once().reaper.reverted == 0
    for key in keys:
        with pytest.raises(Corrupt) as error:
            system.client.store().get(key)
        assert error.value.key == key
    for path, data in blocks.items():
        path.write_bytes(data)
    bench.assert_readable(system)


def _reaper(system: System, blocks: BlockStore | None = None) -> Reaper:
    """Its reads may take as long as the runs of GC inside them, also on a busy machine."""
    patient = ReadThreads(1, time.monotonic, 300.0, 300.0)
    return Reaper(system.metadata, system.landing, blocks or system.blocks, system.clock, 1000, patient)


def _files(bench: Bench) -> list[Path]:
    return [path for path in (bench.folder / "store" / "blocks").glob("shard-*/?/*") if path.is_file()]


class Collected:
    """A block store whose blocks GC collects just before they are read; `also` is called then."""

    def __init__(self, system: System, also: Callable[[], object] = lambda: None) -> None:
        self._system = system
        self._also = also

    def read_many(self, block_id: BlockId, extents: list[tuple[int, int]]) -> list[bytes]:
        """See BlockStore."""
        for _ in range(2):  # blocks are deleted by the run after the one that emptied them
            gc_service(self._system).run_once()
        self._also()
        return self._system.blocks.read_many(block_id, extents)


def test_a_block_that_gc_deleted_is_not_damage(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = _packed_with_copies(bench, system, 60)
    for key in keys[6:]:
        bench.delete(system, key)
    before = {key: system.client.store().head(key).extent for key in keys[:6]}
    reaper = _reaper(system, cast(BlockStore, Collected(system)))
    run_once = reaper.run_once
    monkeypatch.setattr(Reaper, "run_once", lambda *_: ReapResult())  # GC has a reaper of its own
    result = run_once()
    assert (result.reverted, result.postponed) == (0, 6)
    after = {key: system.client.store().head(key) for key in keys[:6]}
    assert all(row.state is ObjectState.PACKED and row.extent != before[key] for key, row in after.items())
    assert "going back" not in "".join(capsys.readouterr())
    bench.assert_readable(system)


def test_entries_that_others_settled_during_a_pause_are_not_damage(
    bench: Bench, system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its list of due entries is old: the objects have moved, and their blocks and landing copies were deleted."""
    keys = _packed_with_copies(bench, system, 60)
    for key in keys[6:]:
        bench.delete(system, key)
    others = system.worker.housekeeping()
    reaper = _reaper(system, cast(BlockStore, Collected(system, others.run_once)))
    result = reaper.run_once()
    assert (result.reverted, result.deleted) == (0, 0)
    assert list(system.landing.list_ids()) == []
    assert "lost or damaged" not in "".join(capsys.readouterr())
    assert reaper.parked.figures().items == 0
    bench.assert_readable(system)


def test_entries_whose_packed_bytes_and_copy_are_lost_are_reported_once_and_wait_longer_each_time(
    bench: Bench, system: System, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = _packed_with_copies(bench, system, 30)
    _lose(bench, system)
    copies = {path: path.read_bytes() for path in (bench.folder / "store" / "landing").glob("??/*")}
    for path in copies:
        path.write_bytes(b"x" * path.stat().st_size)
    reaper = _reaper(system)
    event = "packed bytes and landing copy are lost or damaged"
    assert reaper.run_once().postponed == len(keys)
    assert reaper.parked.figures().items == len(keys)
    lines = "".join(capsys.readouterr()).splitlines()
    assert sum(event in line and "parked" not in line for line in lines) == LINES_MAX
    assert sum("landing copy parked" in line for line in lines) == NAMED_MAX
    for wait_ms in (BACK_OFF.first_ms, 2 * BACK_OFF.first_ms, 4 * BACK_OFF.first_ms):
        clock.advance(wait_ms - 10)
        assert reaper.run_once() == ReapResult()
        clock.advance(10)
        assert reaper.run_once().postponed == len(keys)
    assert event not in "".join(capsys.readouterr()).replace(f"{event}: further", "")
    for path, data in copies.items():
        path.write_bytes(data)
    clock.advance(BACK_OFF.max_ms)
    assert reaper.run_once().reverted == len(keys)
    assert reaper.parked.figures().items == 0
    bench.assert_readable(system)


def test_a_parked_entry_that_another_reaper_settled_is_no_longer_counted(
    bench: Bench, system: System, clock: FakeClock
) -> None:
    _packed_with_copies(bench, system, 3)
    blocks = {path: path.read_bytes() for path in _files(bench)}
    _lose(bench, system)
    copies = list((bench.folder / "store" / "landing").glob("??/*"))
    for path in copies:
        path.write_bytes(b"x" * path.stat().st_size)
    one, another = _reaper(system), _reaper(system)
    assert one.run_once().postponed == 3
    for path, data in blocks.items():
        path.write_bytes(data)
    clock.advance(BACK_OFF.first_ms)
    assert another.run_once().deleted == 3
    assert one.parked.figures().items == 3
    assert one.run_once() == ReapResult()
    assert one.parked.figures().items == 0


def test_a_parked_entry_that_another_reaper_put_off_stays_parked(
    bench: Bench, system: System, clock: FakeClock
) -> None:
    keys = _packed_with_copies(bench, system, 3)
    _lose(bench, system)
    for path in (bench.folder / "store" / "landing").glob("??/*"):
        path.write_bytes(b"x" * path.stat().st_size)
    one, another = _reaper(system), _reaper(system)
    since_ms = clock.now_ms()
    assert one.run_once().postponed == 3
    for _ in range(5):
        clock.advance(BACK_OFF.first_ms)
        another.run_once()
        assert one.run_once() == ReapResult()
        assert one.parked.figures() == RetryFigures(3, since_ms)
    for key in keys:
        bench.delete(system, key)
    clock.advance(BACK_OFF.max_ms)
    assert another.run_once().deleted == 3
    assert another.parked.figures().items == 0
    clock.advance(BACK_OFF.first_ms)
    one.run_once()
    assert one.parked.figures().items == 0
