"""A disk of one shard that turns read-only: packing and large PUTs wait for it, and create hardly any blocks. A whole
store that turns read-only can be read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from tests.rig.at_rest import come_to_rest, end_log
from tests.rig.fakes.audit import all_blocks
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import CHUNK, Bench, set_clock

SHARD = "blocks/shard-05"


class ShardDisk:
    """A tmpfs under one shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True)


@pytest.fixture
def disk(bench: Bench) -> Iterator[ShardDisk]:
    folder = bench.folder / "store" / SHARD
    kept = bench.folder / "kept"
    folder.rename(kept)
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        reason = f"a small disk cannot be mounted: {mounted.stderr.decode().strip()}; run as root"
        pytest.fail(reason) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    yield ShardDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def system(bench: Bench, disk: ShardDisk) -> Iterator[System]:
    with bench.open() as opened:
        yield opened


def test_a_consumer_backs_off(bench: Bench, disk: ShardDisk, system: System) -> None:
    """In ten seconds of its clock it tries four times, at first with one or two groups, and with one block each."""
    bench.put_some(system, 400)
    end_log(system)
    bench.produce(system)
    clock = FakeClock(system.clock.now_ms())
    with consumer_service(system) as service:
        set_clock(service, clock)
        disk.remount("ro")
        for _ in range(100):
            service.turn(flush=True)
            while service.lanes.pending:
                service.turn(flush=True)
            clock.advance(100)
        blocks = len(list(all_blocks(system.metadata)))
        assert 4 <= blocks <= 5
        assert _block_files(bench) <= blocks * 11
        assert service.counters.packed == 0

        disk.remount("rw")
        clock.advance(60_000)
        while service.counters.packed < 400:
            service.turn(flush=True)
    assert come_to_rest(system) == []
    bench.assert_readable(system)


def test_a_large_put_is_refused_after_one_block(bench: Bench, disk: ShardDisk, system: System) -> None:
    disk.remount("ro")
    with pytest.raises(Transient, match="shard-05"):
        system.client.store().put(ObjectKey("b", "large"), BytesIO(bytes(200 * CHUNK)))
    assert len(list(all_blocks(system.metadata))) == 1
    disk.remount("rw")
    assert come_to_rest(system) == []


def _block_files(bench: Bench) -> int:
    return sum(path.is_file() for path in (bench.folder / "store" / "blocks").glob("shard-*/*/*"))


@pytest.fixture
def whole(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A store on a separate file system."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        reason = f"a small disk cannot be mounted: {mounted.stderr.decode().strip()}; run as root"
        pytest.fail(reason) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)
    subprocess.run(["cp", "-a", f"{request.getfixturevalue('new_store')}/.", disk], check=True)
    yield Bench(disk)
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_on_a_read_only_file_system_is_read(whole: Bench, killed: bool) -> None:
    """Nothing is written for it. killed: a process that had the database open left its write-ahead log behind."""
    bench = whole
    with bench.open() as system:
        packed = bench.put(system, "packed", bench.data(CHUNK))
        bench.pack(system)
        landed = bench.put(system, "landed", bench.data(CHUNK))
    if killed:
        assert bench.run("put", "b/last", "-", stdin=b"last", kill_at="put.recorded").returncode == -signal.SIGKILL
        assert (bench.folder / "store" / "metadata.db-wal").stat().st_size
    ShardDisk(bench.folder).remount("ro")
    for key in (packed, landed):
        done = bench.run("get", str(key))
        assert (done.returncode, done.stdout) == (0, bench.acknowledged[key]), done.stderr
    assert bench.run("get", "b/last").returncode == (0 if killed else 4)
    assert bench.run("status").returncode == 0
    for command in (("put", "b/new", "-"), ("rm", "b/packed"), ("producer", "--once"), ("consumer", "--once")):
        refused = bench.run(*command, stdin=b"new")
        assert refused.returncode == 7, refused.stderr
        assert b"read-only" in refused.stderr
    ShardDisk(bench.folder).remount("rw")
    assert bench.run("put", "b/new", "-", stdin=b"new").returncode == 0
