"""A disk that fills up: clear errors, nothing acknowledged is lost, and everything continues once there is space
again."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import make_url

from nos_consumer.assemble import consumer_service
from nos_ec.adapters.local.files.log_file import translated_errors
from nos_ec.adapters.sql.driver.failures import translate
from nos_ec.api.readings import Readings
from nos_ec.cli.app import run
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.errors import NoSpace
from nos_ec.core.ids import BlockId, ObjectKey, in_log
from nos_ec.settings import load_settings
from nos_gc.assemble import gc_collector, gc_service
from tests.rig.at_rest import come_to_rest
from tests.rig.waiting import until
from tests.service.cli.test_endpoints import daemon
from tests.service.conftest import CHUNK, STORE_CONFIG, STRIPE, WAIT_S_MAX, Bench
from tests.service.s3.cell_stores import cells_config, serving_cells
from tests.service.s3.s3_gateway import refused
from tests.service.s3.test_s3_processes import client_of, serving

RESERVE_MIB = 4
LOG_MIB = 16
"""The device of the landing log, which lies on the same disk."""


class SmallDisk:
    """A tmpfs whose size can be changed while it is in use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size_mib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size_mib}m", str(self.folder)], check=True)

    def fill(self, leave_bytes: int = 0) -> None:
        """Use up all space except this much."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue
            ballast.truncate(ballast.tell() - leave_bytes)

    def free(self) -> None:
        (self.folder / "ballast").unlink()

    def use_up_inodes(self) -> None:
        found = os.statvfs(self.folder)
        subprocess.run(["mount", "-o", f"remount,nr_inodes={found.f_files - found.f_ffree}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        reason = f"a small disk cannot be mounted: {mounted.stderr.decode().strip()}; run as root"
        pytest.fail(reason) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def full_bench(disk: SmallDisk) -> Bench:
    bench = Bench(disk.folder)
    bench.config.write_text(
        bench.config.read_text().replace("reserve_bytes = 0", f'reserve_bytes = "{RESERVE_MIB}MiB"')
    )
    initialise(bench.settings())
    return bench


def test_puts_until_the_disk_is_full(full_bench: Bench, disk: SmallDisk) -> None:
    """The log fills up, then the disk. Every acknowledged PUT is there; the refused one left nothing; after deletes,
    PUTs work again."""
    bench = full_bench
    disk.resize(24 + LOG_MIB)
    with bench.open() as system:
        refused = _put_until_refused(bench, system)
        landed = [system.client.store().head(key).landing_id for key in bench.acknowledged]
        in_both = Counter(in_log(landing_id) for landing_id in landed if landing_id is not None)
        assert in_both[True] > 200, "the log was filled first"
        assert in_both[False] > 100, "then the landing store"
        bench.assert_readable(system)
        bench.assert_absent(system, refused)
        assert bench.run("put", "b/more", "-", stdin=bytes(8 * CHUNK)).returncode == 8
        for index, key in enumerate(list(bench.acknowledged)):
            if index % 4:  # most of them: deleting what lies in the log frees no space on the disk
                bench.delete(system, key)
        bench.settle(system)
        bench.put(system, "after", b"deleting and packing have made room")
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def test_a_large_put_on_a_full_disk(full_bench: Bench, disk: SmallDisk) -> None:
    bench = full_bench
    disk.resize(24 + LOG_MIB)
    with bench.open() as system:
        done = bench.run("put", "b/large", "-", stdin=bench.data(120 * STRIPE))
        assert done.returncode == 8, done.stderr
        bench.assert_absent(system, ObjectKey("b", "large"))
        bench.settle(system)
        assert list(system.blocks.list_blocks()) == [], "what was written of it has been collected"
        bench.assert_at_rest(system)


def test_packing_on_a_full_disk(full_bench: Bench, disk: SmallDisk) -> None:
    """The consumer reports it and commits no offset; with space again the same events are packed."""
    bench = full_bench
    with bench.open() as system:
        bench.put_some(system, 300)
        bench.produce(system)
        disk.fill()
        with pytest.raises(NoSpace), consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)
        bench.assert_readable(system)
        disk.free()
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_without_any_space_objects_are_still_read_and_writes_report_it(full_bench: Bench, disk: SmallDisk) -> None:
    """This holds even when no process has the store open: SQLite then has to work without the file that its connections
    share."""
    bench = full_bench
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        bench.put(system, "landed", b"not packed yet")
    disk.fill()
    for key, data in [*bench.acknowledged.items()][-2:]:
        done = bench.run("get", f"{key.bucket}/{key.name}")
        assert (done.returncode, done.stdout) == (0, data), done.stderr
    with bench.open() as system, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(system.client.store().get, bench.acknowledged)) == list(bench.acknowledged.values())
        bench.assert_readable(system)
    for command in (("put", "b/more", "-"), ("rm", "b/landed"), ("producer", "--once"), ("consumer", "--once")):
        done = bench.run(*command, stdin=b"more")
        assert done.returncode == 8, done.stderr
    disk.free()
    with bench.open() as system:
        bench.delete(system, ObjectKey("b", "landed"))
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.parametrize("size", [4 * CHUNK, 6 * STRIPE])
def test_a_tree_that_does_not_fit(full_bench: Bench, disk: SmallDisk, tmp_path: Path, size: int) -> None:
    """What the totals count is there, in order; once there is space, the same command stores the rest."""
    bench = full_bench
    disk.resize(24 + LOG_MIB)
    (tree := tmp_path / "tree").mkdir()
    count = (32 + LOG_MIB << 20) // size
    for index in range(count):
        (tree / f"{index:04}").write_bytes(bench.data(size))
    done = bench.run("put", "-r", "b", str(tree), "--json")
    assert done.returncode == 8, done.stderr
    told = json.loads(done.stdout)
    assert 0 < told["objects"] < count
    assert (told["bytes"], told["complete"]) == (told["objects"] * size, False)
    assert json.loads(done.stderr.splitlines()[-1])["error"] == "NoSpace"
    with bench.open() as system:
        listed = [row.key.name for row in system.client.store().list_objects("b", "", "", count)]
        assert listed == [f"{index:04}" for index in range(told["objects"])]
        disk.resize(160)
        done = bench.run("put", "-r", "b", str(tree), "--json")
        assert json.loads(done.stdout)["objects"] == count, done.stderr
        bench.acknowledged = {ObjectKey("b", path.name): path.read_bytes() for path in tree.iterdir()}
        bench.assert_readable(system)
        assert come_to_rest(system) == []


@pytest.mark.invariant(10)
def test_gc_frees_space_with_its_reserve(full_bench: Bench, disk: SmallDisk) -> None:
    """Packing stops above the reserve, and GC, which may use it, frees the rest."""
    bench = full_bench
    with bench.open() as system:
        keys = bench.put_some(system, 900)
        bench.pack(system)
        for key in keys[: len(keys) * 7 // 8]:
            bench.delete(system, key)
        bench.put_some(system, 60, prefix="new")
        bench.produce(system)
        used_mib = _used_mib(disk.folder)
        disk.resize(used_mib + RESERVE_MIB + 2)
        with pytest.raises(NoSpace, match="reserve"), consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)
        assert gc_service(system).run_once().blocks_deleted > 0
        bench.consume(system)
        bench.assert_readable(system)
        bench.assert_balanced(system)


@pytest.mark.invariant(10)
@pytest.mark.parametrize("policy", ["threshold", "space-target", "price"])
def test_gc_frees_space_on_a_nearly_full_disk(
    full_bench: Bench, disk: SmallDisk, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four fifths of each block are dead, and the live objects of all blocks do not fit the free space, or half of
    it. The blocks are so young that copying would not be worth it on a disk with space."""
    bench = full_bench
    _short_of_space(bench, monkeypatch)
    bench.config.write_text(bench.config.read_text().replace('policy = "threshold"', f'policy = "{policy}"'))
    with bench.open() as system:
        _dig_holes(bench, system, disk)
        disk.resize(_used_mib(disk.folder) + 5)
        free_before = _free_bytes(disk.folder)
        result = gc_service(system).run_once()
        assert result.blocks_deleted > 15
        assert _free_bytes(disk.folder) > 2 * free_before
        bench.assert_readable(system)
        bench.assert_balanced(system)


@pytest.mark.invariant(10)
def test_gc_frees_empty_blocks_where_nothing_can_be_written(
    full_bench: Bench, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no space for a stripe group, and the run does not wait out a grace period of 10 minutes."""
    bench = full_bench
    _short_of_space(bench, monkeypatch)
    with bench.open() as system:
        blocks = _dig_holes(bench, system, disk)
        for block_id in blocks[5:]:
            for placed in system.metadata.placed_in(block_id):
                bench.delete(system, placed.key)
        disk.fill(leave_bytes=512 << 10)
        assert system.blocks.free_bytes() < system.geometry.group_size_max
        assert gc_service(system).run_once().blocks_deleted >= len(blocks) - 5
        bench.assert_readable(system)
        disk.free()
        bench.settle(system)
        bench.assert_balanced(system)


@pytest.mark.invariant(10)
def test_gc_reports_when_no_block_can_be_rewritten(
    full_bench: Bench, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = full_bench
    _short_of_space(bench, monkeypatch)
    with bench.open() as system:
        _dig_holes(bench, system, disk)
        disk.fill(leave_bytes=512 << 10)
        with pytest.raises(NoSpace, match="GC needs"):
            gc_service(system).run_once()
        bench.assert_readable(system)
        disk.free()
        assert gc_service(system).run_once().blocks_condemned > 15
        bench.assert_balanced(system)


def test_a_full_landing_store_is_seen_although_the_block_store_has_space(disk: SmallDisk, tmp_path: Path) -> None:
    """The gateway, whose PUTs are refused, shows it, and so do the figures of the whole store and the alert's limit."""
    bench = Bench(tmp_path, STORE_CONFIG.replace("reserve_bytes = 0", f'reserve_bytes = "{RESERVE_MIB}MiB"'))
    bench.settings().store.root.mkdir()
    (bench.settings().store.root / "landing").symlink_to(disk.folder)
    initialise(bench.settings())
    reserve = RESERVE_MIB << 20
    with bench.open() as system, serving(bench, tmp_path, 1) as gateway, daemon(bench, "producer") as producer:
        bench.put_some(system, 50)
        client, bucket = client_of(system, gateway.url)[1], "photos"
        client.create_bucket(Bucket=bucket)
        assert gateway.health("/readyz") == (200, {"ok": True, "problems": {}})
        disk.fill(leave_bytes=2 * reserve - 4096)
        until(lambda: gateway.get("/readyz")[0] == 503, "PUTs are refused", wait_s=WAIT_S_MAX)
        problems = gateway.health("/readyz")[1]["problems"]
        assert list(problems) == ["free space"]
        assert "landing store" in problems["free space"]
        refused("ServiceUnavailable", 503, client.put_object, Bucket=bucket, Key="a", Body=b"refused")
        assert producer.health("/readyz")[0] == 200, "it needs no space"

        def free() -> tuple[float, float]:
            found = producer.metrics()
            return found[("nos_ec_store_landing_free_bytes",)], found[("nos_ec_store_free_bytes",)]

        until(lambda: free()[0] < 2 * reserve, "the figures are new", wait_s=WAIT_S_MAX)
        assert free()[1] > 4 * reserve
        shown = json.loads(bench.run("status", "--json").stdout)
        assert shown["landing_free_bytes"] < 2 * reserve < 4 * reserve < shown["free_bytes"]
        assert Readings(system, gc_collector(system), 0).status().landing_free_bytes == shown["landing_free_bytes"]
        disk.free()
        until(lambda: gateway.get("/readyz")[0] == 200, "there is space again", wait_s=WAIT_S_MAX)
        client.put_object(Bucket=bucket, Key="a", Body=b"accepted")


def test_init_without_room_for_the_landing_log_says_what_to_do(disk: SmallDisk) -> None:
    """It continues where it stopped, once there is room, or without the log."""
    bench = Bench(disk.folder)
    disk.resize(12)
    refused = bench.run("init")
    assert refused.returncode == 8
    for advice in (b"(16 MiB for each of its files)", b"landing.device_bytes", b'landing.mode to "store"'):
        assert advice in refused.stderr
    plain = Bench(disk.folder, STORE_CONFIG)
    assert plain.run("init").returncode == 0
    assert plain.run("put", "b/object", str(plain.config)).returncode == 0
    disk.resize(64)
    bench = Bench(disk.folder)
    assert bench.run("init").returncode == 0
    assert bench.run("get", "b/object").stdout == STORE_CONFIG.encode()


def test_a_cell_without_space_stops_no_other_one(disk: SmallDisk, tmp_path: Path) -> None:
    """Its PUTs get 503, and all else works in it. New buckets go to the other cell."""
    config = cells_config(tmp_path, a=1, b=1)
    own = f'store.root = "{disk.folder / "b"}"\nlanding.mode = "store"\ngc.reserve_bytes = "{RESERVE_MIB}MiB"'
    config.write_text(config.read_text().replace('store.root = "b"', own))
    settings = load_settings(config, {})
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    with serving_cells(settings) as (cells, gateway):
        ann = gateway.client("ann")
        for bucket, name in (("roomy", "a"), ("full", "b")):
            cells.claim(bucket, "ann", name)
            ann.create_bucket(Bucket=bucket)
            for key in ("kept", "deleted"):
                ann.put_object(Bucket=bucket, Key=key, Body=key.encode())
        disk.fill(leave_bytes=(RESERVE_MIB << 20) - 4096)
        for body in (b"small", bytes(2 << 20)):
            refused("ServiceUnavailable", 503, ann.put_object, Bucket="full", Key="new", Body=body)
        begun = ann.create_multipart_upload(Bucket="full", Key="new")["UploadId"]
        part = {"Bucket": "full", "Key": "new", "UploadId": begun, "PartNumber": 1, "Body": b"part"}
        refused("ServiceUnavailable", 503, ann.upload_part, **part)
        source = {"Bucket": "roomy", "Key": "kept"}
        refused("ServiceUnavailable", 503, ann.copy_object, Bucket="full", Key="new", CopySource=source)
        refused("NoSuchKey", 404, ann.get_object, Bucket="full", Key="new")
        ann.put_object(Bucket="roomy", Key="new", Body=b"new")
        for bucket in ("roomy", "full"):
            assert ann.get_object(Bucket=bucket, Key="kept")["Body"].read() == b"kept"
            ann.put_object_tagging(Bucket=bucket, Key="kept", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
            ann.delete_object(Bucket=bucket, Key="deleted")
        assert [one["Key"] for one in ann.list_objects_v2(Bucket="full")["Contents"]] == ["kept"]
        for number in range(6):
            ann.create_bucket(Bucket=f"new-{number}")
            assert cells.home(f"new-{number}") == "a"
        disk.free()
        ann.put_object(Bucket="full", Key="new", Body=b"again")
        assert ann.get_object(Bucket="full", Key="new")["Body"].read() == b"again"


def _short_of_space(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace of 10 minutes, which may be cut to 50 ms. The bytes of a block are not as evenly dead as its objects."""
    monkeypatch.setattr("nos_ec.composition.packing.SHORT_GRACE_MS", 50)
    monkeypatch.setattr("nos_ec.composition.packing.FLOOR_BYTES", 1 << 20)
    settings = "hole_ratio_min = 0.5\nblock_grace_ms = 600000"
    bench.config.write_text(bench.config.read_text().replace("block_grace_ms = 0", settings))


def _dig_holes(bench: Bench, system: System, disk: SmallDisk) -> list[BlockId]:
    """Pack some 28 blocks, and delete four fifths of the objects in each."""
    disk.resize(160)
    bench.put_some(system, 1800)
    bench.pack(system)
    blocks = [block.block_id for block in system.metadata.list_blocks(None, 999)]
    for block_id in blocks:
        for index, placed in enumerate(system.metadata.placed_in(block_id)):
            if index % 5:
                bench.delete(system, placed.key)
    return blocks


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def _put_until_refused(bench: Bench, system: System) -> ObjectKey:
    for index in range(10_000):
        try:
            bench.put(system, f"{index:05}", bench.data(4 * CHUNK))
        except NoSpace:
            return ObjectKey("b", f"{index:05}")
    raise AssertionError("the disk never filled up")


def _used_mib(folder: Path) -> int:
    stat = os.statvfs(folder)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize // (1 << 20)


@pytest.mark.parametrize("command", [["check", "--plan"], ["scrub", "--plan"], ["metadata", "dump", "--to"]])
def test_a_report_for_which_there_is_no_space_leaves_nothing(
    bench: Bench, disk: SmallDisk, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    with bench.open() as system:
        bench.put_some(system, 3)
    report = disk.folder / "report"
    disk.fill()
    capfd.readouterr()
    code = run(["--config", str(bench.config), *command, str(report), "--json"])
    said, errors = capfd.readouterr()
    error = json.loads(errors.splitlines()[-1])
    assert (code, error["error"], "name a file on another disk" in error["message"]) == (8, "NoSpace", True), errors
    assert [path.name for path in disk.folder.iterdir()] == ["ballast"]
    if command[0] != "metadata":
        assert json.loads(said)["planned"] is None, "what was found is told all the same"
    disk.free()
    assert run(["--config", str(bench.config), *command, str(report), "--json"]) == 0
    assert [path.name for path in disk.folder.iterdir()] == ["report"]


@pytest.mark.parametrize("others", [False, True])
def test_without_a_free_inode_objects_are_read_and_deleted(full_bench: Bench, disk: SmallDisk, others: bool) -> None:
    """This holds whether or not another process has the database open. Operations that need a new file are refused with
    8."""
    bench = full_bench
    with bench.open() as system:
        packed, landed, deleted = (bench.put(system, name, bench.data(CHUNK)) for name in ("packed", "landed", "del"))
        bench.pack(system)
        bench.put(system, "landed", bench.data(CHUNK))
    with bench.open() if others else nullcontext():
        disk.use_up_inodes()
        for key in (packed, landed):
            done = bench.run("get", str(key))
            assert (done.returncode, done.stdout) == (0, bench.acknowledged[key]), done.stderr
        assert bench.run("rm", str(deleted)).returncode == 0
        refused = bench.run("put", "b/large", "-", stdin=bench.data(9 * STRIPE))
        assert refused.returncode == 8
        assert b"no free inodes" in refused.stderr
        refused = bench.run("producer", "--once")
        assert refused.returncode == 8
        assert b"no free inodes" in refused.stderr
        for key in (packed, landed):
            assert bench.run("get", str(key)).returncode == 0, "and again"


def test_a_limit_of_the_size_of_files_is_a_lack_of_space(bench: Bench, system: System) -> None:
    """SQLite reports it, as it does a used-up quota, as an input or output error. The system keeps the log of writes
    from being truncated."""
    bench.put_some(system, 200)
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14));"
        f"sys.argv = ['nos-ec', '--config', {str(bench.config)!r}, 'rm', 'bucket-0/o/00000'];"
        "runpy.run_module('nos_ec', run_name='__main__')"
    )
    done = bench.run_python("-c", limited)
    assert done.returncode == 8, done.stderr
    assert b"File too large" in done.stderr


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC])
def test_errors_of_a_database_on_a_used_up_quota(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine of ours has a quota, so the error of the trial file is the only simulated part."""
    monkeypatch.setattr("nos_ec.adapters.file_system.write_error", lambda _: OSError(code, os.strerror(code)))
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    found = translate(failed, make_url(f"sqlite:///{tmp_path / 'metadata.db'}"))
    assert found is not None
    assert isinstance(found.error, NoSpace)
    with pytest.raises(NoSpace, match=os.strerror(code)), translated_errors(tmp_path / "log.db"):
        raise failed
