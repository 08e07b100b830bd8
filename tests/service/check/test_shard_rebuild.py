"""Lost disks of the embedded block store are replaced, and their shards rebuilt, while everything else continues."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from threading import Event

import pytest

from nos_consumer.assemble import drain
from nos_ec.adapters.local.blocks.shard_file import ShardLayout
from nos_ec.cli.app import run
from nos_ec.composition.operator_side import OperatorSide
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, LeaseLost, Transient
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.engine.upkeep.shard_rebuild import RebuildResult, ShardRebuild
from nos_gc.assemble import gc_service, rebuild_thread
from nos_producer.assemble import producer_service
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

SHARDS = range(11)


def shard(bench: Bench, number: int) -> Path:
    return bench.folder / "store" / "blocks" / f"shard-{number:02d}"


def replace_disk(bench: Bench, *numbers: int) -> None:
    """Take disks away while others write to them, and put empty ones in their place."""
    for number in numbers:
        away = bench.folder / f"away-{number}"
        shard(bench, number).rename(away)
    new = [word for number in numbers for word in ("--new-shard", str(number))]
    made = bench.run("init", *new)
    assert made.returncode == 0, made.stderr
    for number in numbers:
        shutil.rmtree(bench.folder / f"away-{number}")


def rebuilt(system: System) -> RebuildResult:
    rebuild = system.operator.shard_rebuild(0)
    assert rebuild is not None
    return rebuild.run_once(Event())


def packed(bench: Bench, count: int = 60) -> None:
    with bench.open() as system:
        bench.put_some(system, count)
        bench.pack(system)


@contextmanager
def going_on(bench: Bench) -> Iterator[dict[str, int]]:
    """Run PUTs with overwrites and DELETEs, packing, and GC during the block. Yield how often each has succeeded."""
    stop, errors = threading.Event(), []
    done = dict.fromkeys(("put", "pack", "gc"), 0)

    def client(system: System, turn: int) -> None:
        for index in range(10):
            size = 10 * STRIPE if index == 0 and turn % 4 == 0 else bench.rng.randint(1, 2 * CHUNK)
            bench.put(system, f"load/{(turn * 7 + index) % 90}", bench.data(size))
        if turn % 3 == 0:
            key = ObjectKey("b", f"load/{(turn * 7) % 90}")
            if key in bench.acknowledged:
                bench.delete(system, key)

    def packer(system: System, _: int) -> None:
        with producer_service(system) as producer:
            producer.drain()
        drain(system)

    def collector(system: System, _: int) -> None:
        gc_service(system).run_once()

    def loop(name: str, act: Callable[[System, int], None]) -> None:
        turn = 0
        try:
            with bench.open() as system:
                while not stop.is_set():
                    turn += 1
                    try:
                        act(system, turn)
                        done[name] += 1
                    except (Transient, Conflict, LeaseLost):  # no disk, or a block that was sealed meanwhile
                        stop.wait(0.02)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [
        threading.Thread(target=loop, args=item) for item in (("put", client), ("pack", packer), ("gc", collector))
    ]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S_MAX)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.invariant(1)
def test_three_of_eleven_replaced_under_load_and_then_any_other_three_lost(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace("[gc]", "[gc]\nhole_ratio_min = 0.2"))
    packed(bench)
    with bench.open() as system, going_on(bench) as done:
        for number in (1, 6, 9):
            before = dict(done)
            replace_disk(bench, number)
            result = rebuilt(system)
            assert (result.unreadable, result.failed, result.unwritten) == (0, 0, 0), result
            assert result.missing > 0
            until = threading.Event()
            for _ in range(int(WAIT_S_MAX / 0.05)):
                if all(done[name] > before[name] for name in done):
                    break
                until.wait(0.05)
            assert all(done[name] > before[name] for name in done), "the load continues after a disk was replaced"
    with bench.open() as system:
        bench.settle(system)
        rebuilt(system)
        assert system.blocks.blocks_short() == {}
        bench.assert_readable(system)
        bench.assert_balanced(system)
        combos = list(combinations(SHARDS, 3))
        chosen = [(0, 1, 2), (1, 6, 9), (8, 9, 10), *random.Random(5).sample(combos, 12)]
        assert set(SHARDS) == {number for three in chosen for number in three}
        for three in chosen:
            for number in three:
                shard(bench, number).rename(bench.folder / f"gone-{number}")
            bench.assert_readable(system)
            for number in three:
                (bench.folder / f"gone-{number}").rename(shard(bench, number))


def test_the_command(bench: Bench) -> None:
    packed(bench)
    assert b"0 blocks rebuilt: 0 shards" in bench.run("shards", "rebuild").stdout
    replace_disk(bench, 3, 7)
    status = json.loads(bench.run("status", "--json").stdout)
    count = status["blocks_short"]
    assert count > 0
    assert status["blocks_short_by_shards"] == [{"shards": 2, "blocks": count}]
    assert f"({count} lack{'s' if count == 1 else ''} 2 shards)".encode() in bench.run("status").stdout
    ran = bench.run("shards", "rebuild", "--rate", "1GiB", "--max-duration", "600", "--json")
    assert ran.returncode == 0, ran.stderr
    data = json.loads(ran.stdout)["rebuilt"]
    assert (data["blocks"], data["missing"], data["short"], data["stopped"]) == (count, 2 * count, [], False)
    assert json.loads(bench.run("status", "--json").stdout)["blocks_short_by_shards"] == []
    assert bench.run("shards", "rebuild", "--rate", "fast").returncode == 2


def test_a_block_that_cannot_be_rebuilt_is_named(bench: Bench) -> None:
    packed(bench, 200)
    with bench.open() as system:
        victim = next(iter(system.blocks.list_blocks()))
        assert len(list(system.blocks.list_blocks())) > 1
    for number in (0, 1, 2):
        next(shard(bench, number).glob(f"*/{victim.hex()}")).unlink()
    replace_disk(bench, 5)
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 6
    assert f"not rebuilt: block {victim.hex()}: only 7 shards are left, 8 are needed".encode() in ran.stdout or (
        f"not rebuilt: block {victim.hex()}: stripe 0 cannot be read".encode() in ran.stdout
    )
    assert b"blocks short of a shard: 1 (1 lacks 4 shards)" in ran.stdout


def test_a_lost_stripe_does_not_stop_the_rest_of_its_block(bench: Bench) -> None:
    packed(bench, 200)
    with bench.open() as system:
        layout = ShardLayout(system.geometry)
        victim = max(system.blocks.list_blocks(), key=lambda one: len(system.metadata.placed_in(one)))
        damaged = [next(shard(bench, number).glob(f"*/{victim.hex()}")) for number in (0, 1, 2)]
    for path in damaged:
        flip(path, layout.data_offset)
    replace_disk(bench, 5)
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 6
    assert f"not rebuilt: block {victim.hex()}: stripes 0: too many".encode() in ran.stdout
    assert b"blocks short of a shard: 0" in ran.stdout
    for path in damaged:
        flip(path, layout.data_offset)
    assert bench.run("scrub").returncode == 0  # the damage is gone, and the gap can be filled
    replace_disk(bench, 0, 1, 2)
    with bench.open() as system:
        bench.assert_readable(system)


def test_a_lost_stripe_without_objects_is_no_loss(bench: Bench) -> None:
    """An append that was cut short ends with such a stripe."""
    packed(bench, 200)
    with bench.open() as system:
        layout = ShardLayout(system.geometry)
        victim = max(system.blocks.list_blocks(), key=lambda one: len(system.metadata.placed_in(one)))
        for one in system.metadata.placed_in(victim):
            if one.extent.offset + one.extent.length > STRIPE:
                bench.delete(system, one.key)
        last = system.metadata.block(victim).stripes - 1
    assert last > 0
    for number in range(6):
        flip(next(shard(bench, number).glob(f"*/{victim.hex()}")), layout.data_offset + last * CHUNK)
    replace_disk(bench, 7)
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 0, ran.stdout
    assert b"damaged" not in ran.stdout
    with bench.open() as system:
        bench.assert_readable(system)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        found = file.read(1)
        file.seek(at)
        file.write(bytes([found[0] ^ 0xFF]))


def test_damage_is_reported_and_repaired(bench: Bench) -> None:
    packed(bench)
    with bench.open() as system:
        victim = next(iter(system.blocks.list_blocks()))
    path = next(shard(bench, 2).glob(f"*/{victim.hex()}"))
    whole = path.read_bytes()
    path.write_bytes(whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:])
    replace_disk(bench, 5)
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 0, ran.stderr
    assert f"block {victim.hex()}: shard 2 was damaged; it was replaced".encode() in ran.stdout
    assert path.read_bytes() == whole


def test_a_second_process_is_refused(bench: Bench) -> None:
    with bench.open() as system:
        assert system.shards is not None
        with system.shards.alone():
            assert bench.run("shards", "rebuild").returncode == 5


def test_a_run_ends_in_time_and_the_next_one_continues(bench: Bench) -> None:
    packed(bench)
    replace_disk(bench, 4)
    with bench.open() as system:
        assert system.shards is not None
        short = sum(system.shards.blocks_short().values())
        clock = FakeClock()
        began = clock.now_ms()
        rebuild = ShardRebuild(system.shards, system.metadata, clock, STRIPE, 1_000_000)
        first = rebuild.run_once(Event(), ms_max=100)
        assert first.stopped
        assert first.blocks < short
        runs = 1
        while (last := rebuild.run_once(Event(), ms_max=2_000)).stopped:
            runs += 1
            assert runs < 1000
        assert last.short == {}
        assert rebuild.counters.missing == short
        moved = rebuild.counters.read_bytes + rebuild.counters.written_bytes
        assert clock.now_ms() - began >= moved // 1_000 - runs, "never faster than the rate"


def test_the_daemon_rebuilds_in_the_background(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_gc.assemble.REBUILD_WAIT_MS", 20)
    packed(bench)
    replace_disk(bench, 4)
    with bench.open() as system, rebuild_thread(system):
        for _ in range(int(WAIT_S_MAX / 0.05)):
            if not system.blocks.blocks_short():
                break
            Event().wait(0.05)
        assert system.blocks.blocks_short() == {}
        packed(bench, 10)


def test_dead_blocks_and_unfinished_ones_are_left_to_others(bench: Bench) -> None:
    """A block of a writer that died while it created it has too few shards, but nothing in it was acknowledged."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.produce(system)
    killed = bench.run("consumer", "--once", kill_at="block_store.shard_created:3")
    assert killed.returncode < 0
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 0, ran.stderr
    assert b"1 block left to recovery or GC" in ran.stdout
    unknown = BlockId(bytes(16))
    shard(bench, 0).joinpath("0", unknown.hex()).write_bytes(b"not a shard")
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 0, ran.stderr
    assert b"2 blocks left to recovery or GC" in ran.stdout


def test_a_deletion_that_was_killed_is_not_undone(bench: Bench) -> None:
    packed(bench)
    with bench.open() as system:
        for key in list(bench.acknowledged):
            bench.delete(system, key)
    replace_disk(bench, 4)
    for kill_at in (None, "block_store.shard_deleted:3"):
        bench.run("gc", "run", "--apply", kill_at=kill_at)
    ran = bench.run("shards", "rebuild")
    assert ran.returncode == 0, ran.stderr
    with bench.open() as system:
        bench.settle(system)
        assert list(system.blocks.list_blocks()) == []
        bench.assert_balanced(system)


def test_a_store_that_recovers_itself_has_nothing_to_rebuild(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ceph is such a store."""
    monkeypatch.setattr(OperatorSide, "shard_rebuild", lambda *_: None)
    assert run(["--config", str(bench.config), "shards", "rebuild"]) == 0
    assert capfd.readouterr().out == "nothing to rebuild: " + (
        "Ceph recovers lost shards itself; `ceph status` shows its progress\n"
    )
    with bench.open() as system, rebuild_thread(system):
        pass
