"""Long groups whose writer, store or database fails in the middle: late appends, stalls, hangs, rebuilds from dumps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from nos_ec.adapters.local.blocks.shard_file import ShardLayout
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, LeaseLost, NotFound, Transient
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockState, ObjectState
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing import stripe_writer
from nos_ec.engine.packing.stripe_writer import COMMIT_TRIES
from nos_ec.ports.block_store import BlockStore
from nos_ec.settings import without_settings
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.read_threads import LateByRequest
from tests.rig.long_groups import STRIPES, WINDOW, long_bench, long_plan, put_for
from tests.rig.preloaded import Preloaded
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli, _wait_until_halted
from tests.service.conftest import TTL_OVER_MS, WAIT_S_MAX, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.packing.test_long_groups import assert_written, before_reading, begin_in, planned
from tests.service.packing.test_stripe_writer import Writer, _finish

WINDOWS = STRIPES // WINDOW


@pytest.fixture
def bench(tmp_path: Path, preloaded: Preloaded) -> Bench:
    return long_bench(tmp_path, preloaded)


@pytest.fixture
def writer(bench: Bench) -> Iterator[Writer]:
    with bench.open() as system:
        yield Writer(bench, system)


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def before_append(patch: pytest.MonkeyPatch, system: System, number: int, act: Callable[..., None]) -> None:
    """Call `act` with the block, the stripe and the bytes, before the append of this number, from 1 on, takes
    effect."""
    store = type(system.blocks)
    append, count = store.append, 0

    def later(self: BlockStore, block_id: BlockId, at_stripe: int, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == number:
            act(block_id, at_stripe, data)
        append(self, block_id, at_stripe, data)

    patch.setattr(store, "append", later)


def plan_of(writer: Writer, *sizes: int) -> GroupPlan[Packable]:
    """A group of objects of these sizes."""
    keys = [writer.bench.put(writer.system, f"o/{size}", writer.bench.data(size)) for size in sizes]
    plan = long_plan(writer.system, keys, STRIPES)
    assert len(plan.placed) == len(sizes)
    return plan


def first_size(writer: Writer) -> int:
    """The size of an object that leaves most of its last chunk empty, so that it is next to the front."""
    return 9 * writer.system.geometry.chunk_size + 100


def test_objects_as_large_as_can_be_packed_reach_over_two_windows(writer: Writer) -> None:
    """None reaches over three: it is shorter than a window."""
    geometry = writer.system.geometry
    largest = size_max(geometry)
    assert largest < geometry.group_size_max
    plan = plan_of(writer, first_size(writer), largest, largest - 1)
    ends = [(one.offset, one.offset + one.candidate.size - 1) for one in plan.placed]
    windows = [last // geometry.group_size_max - first // geometry.group_size_max for first, last in ends]
    assert windows == [0, 1, 1]
    assert len(writer.writer.write(plan).packed) == 3
    (block,) = all_blocks(writer.system.metadata)
    assert_written(writer, plan, block.block_id, 0)
    writer.bench.assert_readable(writer.system)
    _finish(writer)


# --- appends that come late -----------------------------------------------------------------------------------


@pytest.mark.invariant(3, 7)
@pytest.mark.parametrize("lost", [False, True], ids=["database", "rebuilt"])
@pytest.mark.parametrize("window", [1, WINDOWS - 1])
def test_an_append_that_takes_effect_after_it_was_given_up(bench: Bench, cli: Cli, window: int, lost: bool) -> None:
    """The last one completes the group, but the group was never committed. Its objects are written again."""
    given_up: list[tuple[BlockId, int, bytes]] = []

    def fail(block_id: BlockId, at_stripe: int, data: bytes) -> None:
        given_up.append((block_id, at_stripe, bytes(data)))
        raise Transient("time-out")

    with bench.open() as system:
        writer = Writer(bench, system)
        plan = planned(writer)
        with pytest.MonkeyPatch.context() as patch:
            before_append(patch, system, window, fail)
            assert writer.writer.write(plan).retry_short
        ((block_id, at_stripe, data),) = given_up
        assert len(writer.writer.write(plan).packed) == len(plan.placed)
        system.blocks.append(block_id, at_stripe, data)
        if not lost:
            _finish(writer)
            assert check(system, read_share=1.0) == []
            with pytest.raises((Conflict, NotFound)):
                system.blocks.append(block_id, at_stripe, data)
            return
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli, "--without-dump")
    assert (said["unfinished_blocks"], said["unread_blocks"]) == (window < WINDOWS - 1, 0)
    assert to_look_at["block"] == set()
    with bench.open() as rebuilt:
        assert check(rebuilt, read_share=1.0) == []
        rebuilt.clock = LaterClock(TTL_OVER_MS)
        bench.settle(rebuilt)
        bench.assert_readable(rebuilt)
        bench.assert_at_rest(rebuilt)


# --- writers that stall ---------------------------------------------------------------------------------------


@pytest.mark.invariant(8)
@pytest.mark.parametrize("where", ["reading", "appending"])
@pytest.mark.parametrize("collected", [False, True], ids=["recovered", "collected"])
def test_a_writer_that_is_suspended_while_others_recover_its_block(
    bench: Bench, writer: Writer, where: str, collected: bool
) -> None:
    """It resumes when the block is sealed, or even deleted: nothing more gets into it, and it does not come back."""
    system, plan = writer.system, planned(writer)

    def others(*_: object) -> None:
        with bench.open() as other:
            other.clock = LaterClock(TTL_OVER_MS)
            assert other.worker.housekeeping().run_once()
            (row,) = all_blocks(other.metadata)
            assert (row.state, row.stripes, row.live_bytes) == (BlockState.SEALED, 2 * WINDOW, 0)
            for rounds in range(2, 5) if collected else ():
                other.clock = LaterClock(rounds * TTL_OVER_MS)
                gc_service(other).run_once()
            assert (list(other.blocks.list_blocks()) == []) == collected

    with pytest.MonkeyPatch.context() as patch:
        if where == "reading":
            before_reading(patch, writer, begin_in(writer, plan, 2)[0], others)
        else:
            before_append(patch, system, 2, others)
        try:
            result = writer.writer.write(plan)
        except LeaseLost:
            pass
        else:
            assert isinstance(result.cause, (Conflict, NotFound))
            assert (len(result.retry), result.packed) == (len(plan.placed), ())
    if collected:
        assert list(system.blocks.list_blocks()) == []
    else:
        (block_id,) = system.blocks.list_blocks()
        assert system.blocks.stripes(block_id) == 2 * WINDOW
    writer.writer.close()
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_balanced(system)


@pytest.mark.timed
@pytest.mark.invariant(8)
@pytest.mark.parametrize("collected", [False, True], ids=["recovered", "collected"])
@pytest.mark.parametrize("point", ["writer.window_appended:2", "writer.before_append:3", "writer.appended:4"])
def test_a_process_that_is_stopped_while_others_recover_its_block(bench: Bench, point: str, collected: bool) -> None:
    with bench.open() as system:
        put_for(bench, system, STRIPES)
    program = (
        "import sys; from unittest.mock import patch; from signal import SIGSTOP\n"
        "from tests.rig.long_groups import main\n"
        "with patch('signal.SIGKILL', SIGSTOP): main(*sys.argv[1:])"
    )
    environment = without_settings(os.environ) | {"NOS_EC_KILL_AT": point}
    command = [sys.executable, "-c", program, str(bench.config), "new"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        _wait_until_halted(process)
        for rounds in range(1, 4 if collected else 2):
            with bench.open() as other:
                other.clock = LaterClock(rounds * TTL_OVER_MS)
                other.worker.housekeeping().run_once()
                if collected:
                    gc_service(other).run_once()
                blocks = list(other.blocks.list_blocks())
        assert (blocks == []) == collected
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=WAIT_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, (out, err)
    with bench.open() as system:
        assert list(system.blocks.list_blocks()) == blocks
        system.clock = LaterClock(4 * TTL_OVER_MS)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.parametrize("window", [1, 2, WINDOWS - 1])
def test_a_source_that_hangs_is_left_when_the_time_of_the_group_is_over(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    writer.clock = FakeClock(writer.system.clock.now_ms())
    writer.writer = writer.make(writer.lease)
    plan = planned(writer)
    victim, end = begin_in(writer, plan, window)[0], Event()
    monkeypatch.setattr(stripe_writer, "LONG_GROUP_MS_MAX", 500)

    def hang() -> None:
        threads.hang()
        end.wait(60)

    with closing(LateByRequest(4)) as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer.writer._sources, "_threads", threads)
        before_reading(patch, writer, victim, hang)
        began_s = time.monotonic()
        result = writer.writer.write(plan)
        assert time.monotonic() - began_s < 30
        end.set()
    assert [failure.packable for failure in result.unread] == [victim]
    assert (len(result.retry), result.retry_short, result.cause) == (len(plan.placed) - 1, True, None)
    (block,) = all_blocks(writer.system.metadata)
    assert (block.state, writer.system.blocks.stripes(block.block_id)) == (BlockState.FENCED, window * WINDOW)
    monkeypatch.undo()
    _finish(writer)


def test_a_source_that_is_alone_in_a_later_window_does_not_stand_for_the_store(writer: Writer) -> None:
    """The objects of earlier windows could be read. Otherwise one bad copy of a large object would pause all
    packing."""
    largest = size_max(writer.system.geometry)
    plan = plan_of(writer, first_size(writer), largest, largest - 1)
    (victim,) = begin_in(writer, plan, 1)

    def fail() -> None:
        raise Transient("away")

    with pytest.MonkeyPatch.context() as patch:
        before_reading(patch, writer, victim, fail)
        result = writer.writer.write(plan)
    assert [failure.packable for failure in result.unread] == [victim]
    assert (len(result.retry), result.retry_short, result.cause) == (2, True, None)
    _finish(writer)


# --- rebuilds -------------------------------------------------------------------------------------------------


@pytest.mark.invariant(7)
@pytest.mark.parametrize("committed", [False, True], ids=["unfinished", "committed"])
def test_a_rebuild_from_a_dump_in_which_the_block_is_open(bench: Bench, cli: Cli, committed: bool) -> None:
    """The dump has a short group. The long one that follows it was written after the dump."""
    dump = bench.folder / "dump"
    with bench.open() as system:
        writer = Writer(bench, system)
        assert writer.writer.write(planned(writer, 1, "first")).packed
        plan = planned(writer, STRIPES - 1)
        cli("metadata", "dump", "--to", str(dump))
        (block,) = all_blocks(system.metadata)
        assert (block.state, block.stripes) == (BlockState.OPEN, 1)
        if not committed:
            writer.blocks.hook = lambda method: (
                writer.blocks.before.update(append=[Transient("time-out")])
                if method == "append" and writer.blocks.calls["append"] == 2
                else None
            )
        result = writer.writer.write(plan)
        assert (len(result.packed) == len(plan.placed)) == committed
        assert system.blocks.stripes(block.block_id) == (STRIPES if committed else 1 + WINDOW)
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli, "--from", str(dump))
    assert (said["unfinished_blocks"], said["unread_blocks"], said["gone"]) == (not committed, 0, 0)
    assert to_look_at["block"] == set()
    in_group = {placed.candidate.payload.key for placed in plan.placed}
    with bench.open() as rebuilt:
        assert check(rebuilt, read_share=1.0) == []
        states = {row.state for row in all_objects(rebuilt.metadata) if row.key in in_group}
        assert states == {ObjectState.PACKED if committed else ObjectState.LANDED}
        rebuilt.clock = LaterClock(TTL_OVER_MS)
        bench.settle(rebuilt)
        bench.assert_readable(rebuilt)
        bench.assert_at_rest(rebuilt)


@pytest.mark.invariant(1, 3)
@pytest.mark.parametrize("source", ["landing", "block"])
def test_a_rebuild_moves_no_row_to_a_window_that_was_torn(bench: Bench, cli: Cli, source: str) -> None:
    """The power was cut in the last append, so the last stripe is there, and one before it is not. The header, which
    names all objects, is in the first window."""
    dump = bench.folder / "dump"
    with bench.open() as system:
        writer = Writer(bench, system)
        plan = planned(writer)
        if source == "block":
            placed = [one.candidate.payload.key for one in plan.placed]
            copies = {key: system.client.store().head(key).landing_id for key in placed}
            for first in range(0, len(placed), 6):
                assert writer.writer.write(long_plan(system, placed[first : first + 6], WINDOW)).packed
            writer.writer.close()
            moved = [key for key in placed if system.client.store().head(key).extent]
            for key in moved:
                system.landing.delete(LandingId(copies[key] or b""))
            plan = long_plan(system, moved, STRIPES)
        cli("metadata", "dump", "--to", str(dump))
        before = set(system.blocks.list_blocks())
        writer.metadata.before["commit_group"] = [Transient("power cut")] * COMMIT_TRIES
        assert not writer.writer.write(plan).packed
        (block_id,) = set(system.blocks.list_blocks()) - before
        assert system.blocks.stripes(block_id) == plan.stripe_count > WINDOW
        tear(bench, system, block_id, plan.stripe_count - 2)
    lose_database(bench)
    rebuild(bench, cli, "--from", str(dump))
    with bench.open() as rebuilt:
        bench.assert_readable(rebuilt)
        for rounds in range(1, 4):
            rebuilt.clock = LaterClock(rounds * TTL_OVER_MS)
            bench.settle(rebuilt)
        bench.assert_readable(rebuilt)


def tear(bench: Bench, system: System, block_id: BlockId, stripe: int) -> None:
    """A stripe of a block never got to any shard."""
    layout, name = ShardLayout(system.geometry), block_id.hex()
    start, end = layout.size(stripe), layout.size(stripe + 1)
    for path in (bench.folder / "store" / "blocks").glob(f"shard-*/{name[-1]}/{name}"):
        with path.open("r+b") as file:
            file.seek(start)
            file.write(bytes(end - start))
