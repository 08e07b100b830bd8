"""The embedded block store: its contract on several geometries, lost shards, damage, kills, full disks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import combinations
from pathlib import Path
from random import Random

import google_crc32c
import pytest

from nos_ec.adapters.local.blocks import block_locks
from nos_ec.adapters.local.blocks.block_store import WINDOW_BYTES, LocalBlockStore
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NoSpace, NotFound, Transient
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId
from nos_ec.ports.block_store import BlockStore
from tests.contract.suites.block_store_contract import BlockStoreContract, new_block_id
from tests.rig.open_files import open_files
from tests.rig.small_disk import small_disk

SMALL = Geometry(k=8, m=3, chunk_size=16 * 1024, stripes_per_block=8, stripes_per_group_max=4)
DATA_AT = 2 * PAGE
"""Offset of the first chunk in a shard file of SMALL."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "deep" / "blocks"
    LocalBlockStore.initialise(root, SMALL)
    return root


@pytest.fixture
def blocks(root: Path) -> Iterator[LocalBlockStore]:
    blocks = LocalBlockStore(root, SMALL)
    yield blocks
    blocks.close()


@pytest.mark.parametrize(
    "geometry",
    [
        SMALL,
        Geometry(k=4, m=2, chunk_size=16 * 1024, stripes_per_block=8),
        Geometry(k=8, m=4, chunk_size=64 * 1024, stripes_per_block=4),
    ],
    ids=["8+3", "4+2", "8+4"],
)
class TestLocalBlockStore(BlockStoreContract):
    @pytest.fixture
    def open_blocks(self, tmp_path: Path, geometry: Geometry) -> Callable[[], BlockStore]:
        LocalBlockStore.initialise(tmp_path / "store", geometry)
        return lambda: LocalBlockStore(tmp_path / "store", geometry)


class TestDefaultGeometry(BlockStoreContract):
    @pytest.fixture
    def open_blocks(self, tmp_path: Path) -> Callable[[], BlockStore]:
        LocalBlockStore.initialise(tmp_path / "store", Geometry())
        return lambda: LocalBlockStore(tmp_path / "store", Geometry())

    def test_a_64_kib_object_is_one_shard_read_of_64_kib(self, blocks: BlockStore, block_id: BlockId) -> None:
        blocks.append(block_id, 0, self.stripes_of(blocks, 1))
        blocks.read(block_id, 3 * 128 * 1024 + 32 * 1024, 64 * 1024)
        assert (blocks.counters().shard_reads, blocks.counters().shard_bytes) == (1, 64 * 1024)


# --- tools --------------------------------------------------------------------------------------------


def _data(stripes: int, seed: int = 0, geometry: Geometry = SMALL) -> bytes:
    return Random(seed).randbytes(stripes * geometry.stripe_size)


def _written(blocks: LocalBlockStore, stripes: int, seed: int = 0) -> tuple[BlockId, bytes]:
    block_id, data = new_block_id(), _data(stripes, seed, blocks.geometry)
    blocks.create(block_id)
    blocks.append(block_id, 0, data)
    return block_id, data


def _file(root: Path, block_id: BlockId, shard: int) -> Path:
    return root / f"shard-{shard:02d}" / block_id.hex()[-1] / block_id.hex()


def _damage(path: Path, offset: int, length: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(length)
        file.seek(offset)
        file.write(bytes(byte ^ 0x5A for byte in old))


def _unmount(root: Path, *shards: int) -> None:
    for shard in shards:
        (root / f"shard-{shard:02d}").rename(root / f"away-{shard:02d}")


def _mount(root: Path) -> None:
    for folder in root.glob("away-*"):
        folder.rename(root / folder.name.replace("away", "shard"))


# --- lost and damaged shards (invariant 1) ------------------------------------------------------------


@pytest.mark.parametrize(
    "geometry",
    [
        SMALL,
        Geometry(k=4, m=2, chunk_size=16 * 1024, stripes_per_block=8),
        Geometry(k=8, m=4, chunk_size=16 * 1024, stripes_per_block=4),
        Geometry(k=1, m=1, chunk_size=16 * 1024, stripes_per_block=4),
        Geometry(k=5, m=3, chunk_size=20 * 1024, stripes_per_block=4),
    ],
    ids=["8+3", "4+2", "8+4", "1+1", "5+3"],
)
def test_any_m_lost_shards_are_reconstructed(tmp_path: Path, geometry: Geometry) -> None:
    root = tmp_path / "store"
    LocalBlockStore.initialise(root, geometry)
    blocks = LocalBlockStore(root, geometry)
    block_id, data = _written(blocks, 2)
    middle = geometry.chunk_size // 2 + 5
    for lost in combinations(range(geometry.k + geometry.m), geometry.m):
        _unmount(root, *lost)
        assert blocks.read(block_id, 0, len(data)) == data, lost
        assert blocks.read(block_id, middle, 9000) == data[middle : middle + 9000], lost
        assert blocks.stripes(block_id) == 2
        assert list(blocks.list_blocks()) == [block_id]
        _mount(root)
    before = blocks.counters().degraded_reads
    blocks.read(block_id, 0, len(data))
    assert blocks.counters().degraded_reads == before > 0
    blocks.close()


def test_more_than_m_lost_shards_are_corrupt_and_name_the_folders(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    _unmount(root, 0, 1, 2, 8)
    with pytest.raises(Corrupt, match=r"more than 3 shards are lost .*shard-00.*shard-08"):
        blocks.read(block_id, 0, 1)
    assert blocks.read(block_id, 3 * SMALL.chunk_size, 100) == data[3 * SMALL.chunk_size :][:100], "its shard is there"
    with pytest.raises(Transient, match="shard-00"):
        blocks.stripes(block_id)
    with pytest.raises(Transient, match="more than m = 3"):
        LocalBlockStore(root, SMALL)
    with pytest.raises(Transient, match="shard-00"):
        blocks.seal(block_id)
    _mount(root)
    assert blocks.read(block_id, 0, len(data)) == data


def test_a_block_store_opens_and_reads_with_m_folders_lost(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 2)
    _unmount(root, 2, 7, 10)
    reopened = LocalBlockStore(root, SMALL)
    assert reopened.read(block_id, 0, len(data)) == data
    assert reopened.seal(block_id) == 2
    with pytest.raises(Transient, match="shard-"):
        reopened.free_bytes()
    reopened.close()
    _mount(root)
    with pytest.raises(Conflict):
        blocks.append(block_id, 2, _data(1))


def test_nothing_is_written_while_a_shard_folder_is_lost(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    _unmount(root, 5)
    lost = r"shard-05 is missing: mount its disk, or if it is lost for good, run `nos-ec init --new-shard 5`"
    with pytest.raises(Transient, match=lost):
        blocks.create(new_block_id())
    with pytest.raises(Transient, match=lost):
        blocks.append(block_id, 1, _data(1))
    with pytest.raises(Transient, match=lost):
        blocks.probe()
    _mount(root)
    blocks.probe()
    assert list(blocks.list_blocks()) == [block_id]
    blocks.append(block_id, 1, _data(1))
    assert blocks.read(block_id, 0, len(data)) == data


def test_an_unusable_shard_folder_is_named(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    _unmount(root, 5)
    (root / "shard-05").write_bytes(b"a file, not a folder")
    with pytest.raises(Transient, match="shard-05"):
        blocks.append(block_id, 1, _data(1))
    assert blocks.read(block_id, 0, len(data)) == data


def test_a_replaced_shard_takes_new_blocks_but_no_appends_to_old_ones(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    _unmount(root, 5)
    assert blocks.blocks_short() == {1: 1}
    assert blocks.missing_shards(block_id) == [5]
    with pytest.raises(ConfigError, match="init --new-shard 5"):
        LocalBlockStore.initialise(root, SMALL)
    assert not (root / "shard-05").exists(), "an empty folder would be written to"
    LocalBlockStore.initialise(root, SMALL, [5])
    assert blocks.read(block_id, 0, len(data)) == data
    with pytest.raises(Conflict, match=r"shards \[5\]: seal it"):
        blocks.append(block_id, 1, _data(1))
    assert blocks.seal(block_id) == 1
    other_id, other = _written(blocks, 2, seed=9)
    assert blocks.read(other_id, 0, len(other)) == other
    assert blocks.blocks_short() == {1: 1}
    assert (blocks.missing_shards(block_id), blocks.missing_shards(other_id)) == ([5], [])
    with pytest.raises(ConfigError, match=r"shard 5 .* is not missing"):
        LocalBlockStore.initialise(root, SMALL, [5])
    with pytest.raises(ConfigError, match=r"no shard 99: .* has shards 0 to \d+$"):
        LocalBlockStore.initialise(root, SMALL, [99])
    LocalBlockStore.initialise(root, SMALL)


def test_more_than_m_missing_shards_are_not_recreated(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    _unmount(root, 0, 1, 2, 3)
    for named in ([], [0], [0, 1, 2, 3]):
        with pytest.raises(ConfigError, match="more than m = 3"):
            LocalBlockStore.initialise(root, SMALL, named)
    assert not (root / "shard-00").exists()
    _mount(root)
    assert LocalBlockStore(root, SMALL).read(block_id, 0, len(data)) == data


def test_an_empty_mount_point_is_a_missing_shard(root: Path) -> None:
    _unmount(root, 2)
    (root / "shard-02").mkdir()
    with pytest.raises(ConfigError, match="--new-shard 2"):
        LocalBlockStore.initialise(root, SMALL)
    assert not any((root / "shard-02").iterdir())


def test_a_disk_in_the_wrong_place_is_refused(root: Path, tmp_path: Path) -> None:
    LocalBlockStore.initialise(tmp_path / "other", SMALL)
    (root / "shard-04").rename(tmp_path / "spare")
    (tmp_path / "other" / "shard-04").rename(root / "shard-04")
    for act in (LocalBlockStore, LocalBlockStore.initialise):
        with pytest.raises(ConfigError, match=r"shard-04 is shard 4 of store \w+, not shard 4 of store"):
            act(root, SMALL)
    (root / "shard-04").rename(tmp_path / "other" / "shard-04")
    (root / "shard-03").rename(root / "shard-04")
    (tmp_path / "spare").rename(root / "shard-03")
    for act in (LocalBlockStore, LocalBlockStore.initialise):
        with pytest.raises(ConfigError, match=r"is shard 4 of store .*, not shard 3"):
            act(root, SMALL)


def test_a_block_store_of_an_earlier_version_opens_and_gets_identities(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    content = json.loads((root / "store.json").read_text())
    del content["id"]
    (root / "store.json").write_text(json.dumps(content))
    for path in root.glob("shard-*/identity.json"):
        path.unlink()
    assert LocalBlockStore(root, SMALL).read(block_id, 0, len(data)) == data
    LocalBlockStore.initialise(root, SMALL)
    assert len(list(root.glob("shard-*/identity.json"))) == 11
    assert LocalBlockStore(root, SMALL).read(block_id, 0, len(data)) == data
    _unmount(root, 5)
    with pytest.raises(ConfigError, match="--new-shard 5"):
        LocalBlockStore.initialise(root, SMALL)


def test_a_damaged_page_is_found_and_decoded(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 2)
    _damage(_file(root, block_id, 0), DATA_AT + 5000)
    before = blocks.counters()
    assert blocks.read(block_id, 0, 4096) == data[:4096], "the page next to it is good"
    assert blocks.counters().degraded_reads == before.degraded_reads
    assert blocks.read(block_id, 4096, 4096) == data[4096:8192]
    assert blocks.counters().degraded_reads == before.degraded_reads + 1
    assert blocks.read(block_id, 0, len(data)) == data


def test_damage_on_every_shard_is_reconstructed_page_by_page(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 2)
    for shard in range(11):
        page = shard // 3
        _damage(_file(root, block_id, shard), DATA_AT + page * PAGE + shard, 300)
    assert blocks.read(block_id, 0, len(data)) == data
    assert blocks.stripes(block_id) == 2


def test_damage_to_more_than_m_shards_of_one_page_is_corrupt(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 2)
    for shard in (1, 4, 8, 10):
        _damage(_file(root, block_id, shard), DATA_AT + PAGE)
    with pytest.raises(Corrupt, match="stripe 0"):
        blocks.read(block_id, SMALL.chunk_size + PAGE, 1)
    assert blocks.read(block_id, SMALL.chunk_size, PAGE) == data[SMALL.chunk_size :][:PAGE]
    assert blocks.read(block_id, SMALL.stripe_size, SMALL.stripe_size) == data[SMALL.stripe_size :]


@pytest.mark.parametrize("seed", range(12))
def test_scattered_damage_loses_no_page_that_k_shards_have(root: Path, blocks: LocalBlockStore, seed: int) -> None:
    """A range reads back exactly when each of its pages is good or can be decoded from k shards."""
    random = Random(seed)
    block_id, data = _written(blocks, 2)
    damaged = {page: set(random.sample(range(11), random.choice([0, 1, 3, 3, 4, 6]))) for page in range(8)}
    for page, shards in damaged.items():
        for shard in shards:
            _damage(_file(root, block_id, shard), DATA_AT + page * PAGE + random.randrange(PAGE))
    lost = {(page, shard) for page, shards in damaged.items() if len(shards) > 3 for shard in shards if shard < 8}
    chunk_pages, pages = SMALL.chunk_size // PAGE, len(data) // PAGE
    place = [(n // (8 * chunk_pages) * chunk_pages + n % chunk_pages, n // chunk_pages % 8) for n in range(pages)]
    for _ in range(150):
        first = random.randrange(pages)
        last = random.choice([first, random.randrange(first, pages)])
        offset, end = first * PAGE + random.randrange(PAGE), last * PAGE + PAGE
        if lost.intersection(place[first : last + 1]):
            with pytest.raises(Corrupt):
                blocks.read(block_id, offset, end - offset)
        else:
            assert blocks.read(block_id, offset, end - offset) == data[offset:end]


@pytest.mark.parametrize("offset", [PAGE, DATA_AT, DATA_AT + 3 * PAGE])
@pytest.mark.parametrize("how", ["flip", "zero", "cut", "swap"])
def test_damage_of_any_kind_on_m_shards(root: Path, blocks: LocalBlockStore, offset: int, how: str) -> None:
    block_id, data = _written(blocks, 2)
    paths = [_file(root, block_id, shard) for shard in (0, 3, 9)]
    contents = [path.read_bytes() for path in paths]
    for number, path in enumerate(paths):
        old = contents[number]
        match how:
            case "flip":
                _damage(path, offset, 200)
            case "zero":
                path.write_bytes(old[:offset] + bytes(len(old) - offset))
            case "cut":
                path.write_bytes(old[: offset + 1])
            case _:
                path.write_bytes(contents[(number + 1) % 3])
    assert blocks.read(block_id, 0, len(data)) == data
    assert blocks.counters().degraded_reads == 1
    assert blocks.stripes(block_id) == 2


def test_a_read_error_is_a_lost_shard_but_a_lack_of_files_is_not(
    root: Path, blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id, data = _written(blocks, 1)
    bad, code = _file(root, block_id, 2), errno.EIO
    real_open = os.open

    def failing_open(path: Path, flags: int, *rest: int) -> int:
        if Path(path) == bad:
            raise OSError(code, os.strerror(code))
        return real_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", failing_open)
    assert blocks.read(block_id, 0, len(data)) == data
    assert blocks.counters().degraded_reads == 1
    code = errno.EMFILE
    with pytest.raises(Transient, match="limit on open files"):
        blocks.read(block_id, 0, len(data))


@pytest.mark.parametrize("broken_from", [0, PAGE, DATA_AT])
def test_a_disk_that_opens_files_but_cannot_read_them_is_a_lost_shard(
    blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch, broken_from: int
) -> None:
    block_id, data = _written(blocks, 2)
    real_pread, broken = os.pread, {"shard-02"}

    def failing_pread(fd: int, length: int, offset: int) -> bytes:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if offset >= broken_from and any(shard in path for shard in broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", failing_pread)
    assert blocks.read(block_id, 0, len(data)) == data
    assert blocks.stripes(block_id) == 2
    assert blocks.seal(block_id) == 2
    broken |= {"shard-00", "shard-03", "shard-10"}
    with pytest.raises(Corrupt, match=r"unreachable: .*shard-00.*shard-10"):
        blocks.read(block_id, 0, len(data))


def test_errors_of_too_many_disks_do_not_shorten_a_seal(
    root: Path, blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If fewer than k shards answer, nothing shows that a stripe was not written."""
    block_id, data = _written(blocks, 2)
    real_pread, broken = os.pread, set[str]()

    def failing_pread(fd: int, length: int, offset: int) -> bytes:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if offset >= DATA_AT and any(shard in path for shard in broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", failing_pread)
    broken |= {"shard-01", "shard-02", "shard-03", "shard-04"}
    for act in (blocks.stripes, blocks.seal):
        with pytest.raises(Transient, match="Input/output error"):
            act(block_id)
    broken.discard("shard-02")
    _file(root, block_id, 0).rename(root / "away")
    with pytest.raises(Transient, match="Input/output error"):
        blocks.seal(block_id)
    (root / "away").rename(_file(root, block_id, 0))
    assert blocks.stripes(block_id) == blocks.seal(block_id) == 2
    assert blocks.read(block_id, 0, len(data)) == data


def test_a_listing_with_too_many_lost_shards_does_not_end_as_if_it_were_whole(
    root: Path, blocks: LocalBlockStore
) -> None:
    block_id, _ = _written(blocks, 1)
    shards = blocks.geometry.k + blocks.geometry.m
    _unmount(root, *range(blocks.geometry.m))
    assert list(blocks.list_blocks()) == [block_id]
    _unmount(root, *range(blocks.geometry.m, shards))
    with pytest.raises(Transient, match="shard-00 is missing"):
        list(blocks.list_blocks())


def test_shards_that_this_process_may_not_read_are_not_lost(
    root: Path, blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id, data = _written(blocks, 2)
    real_open, refused = os.open, {"shard-01", "shard-02", "shard-05", "shard-09"}

    def refusing_open(path: Path, flags: int, *rest: int) -> int:
        if any(shard in str(path) for shard in refused):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing_open)
    with pytest.raises(Transient, match="shard-01"):
        blocks.read(block_id, 0, len(data))
    refused.remove("shard-05")
    assert blocks.read(block_id, 0, len(data)) == data
    _unmount(root, 0)
    with pytest.raises(Transient, match="shard-01"):
        blocks.read(block_id, 0, len(data))
    refused.clear()
    assert blocks.read(block_id, 0, len(data)) == data


def test_degraded_reads_by_many_threads(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 4)
    _unmount(root, 0, 4, 9)

    def read(seed: int) -> bool:
        random = Random(seed)
        pairs = [sorted((random.randrange(len(data)), random.randrange(len(data)))) for _ in range(25)]
        return all(blocks.read(block_id, a, b - a) == data[a:b] for a, b in pairs)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(16)))


def test_files_are_not_kept_open(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    before = open_files(root)
    for _ in range(20):
        blocks.read(block_id, 0, len(data))
        _written(blocks, 1)
    with pytest.raises(Corrupt):
        blocks.read(block_id, len(data), 1)
    with pytest.raises(Conflict):
        blocks.append(block_id, 5, data[: SMALL.stripe_size])
    assert open_files(root) == before


# --- torn appends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", range(12))
@pytest.mark.parametrize("cut", [0, 100, SMALL.chunk_size])
def test_a_torn_append_counts_as_far_as_it_can_be_read(
    root: Path, blocks: LocalBlockStore, written: int, cut: int
) -> None:
    """`written` shards have all of the append's two stripes, the others only its first `cut` bytes."""
    block_id, data = _written(blocks, 2)
    more = _data(2, seed=1)
    blocks.append(block_id, 2, more)
    for shard in range(written, 11):
        os.truncate(_file(root, block_id, shard), DATA_AT + 2 * SMALL.chunk_size + cut)
    stripes = 4 if written >= 8 else 3 if cut == SMALL.chunk_size else 2
    assert blocks.stripes(block_id) == stripes
    if written < 11:
        for at_stripe in (2, 3, 4):
            if (written, at_stripe) != (0, 2 + cut // SMALL.chunk_size) or cut == 100:
                with pytest.raises(Conflict):
                    blocks.append(block_id, at_stripe, _data(1, seed=2))
    assert blocks.seal(block_id) == stripes
    assert blocks.read(block_id, 0, stripes * SMALL.stripe_size) == (data + more)[: stripes * SMALL.stripe_size]
    with pytest.raises(Conflict):
        blocks.append(block_id, stripes, _data(1))


def test_remains_of_an_append_after_a_power_cut_do_not_count_as_data(root: Path, blocks: LocalBlockStore) -> None:
    """Files that were extended, but whose bytes did not reach the disk, are full of zeros."""
    block_id, data = _written(blocks, 1)
    for shard in range(11):
        os.truncate(_file(root, block_id, shard), DATA_AT + 3 * SMALL.chunk_size)
    assert blocks.stripes(block_id) == 1
    with pytest.raises(Corrupt):
        blocks.read(block_id, SMALL.stripe_size, 1)
    assert blocks.seal(block_id) == 1
    assert blocks.read(block_id, 0, len(data)) == data


SCRIPT = """
import sys
from pathlib import Path
from random import Random
from nos_ec.adapters.local.blocks import block_store
from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.core.geometry import Geometry
geometry = Geometry(k=8, m=3, chunk_size=16 * 1024, stripes_per_block=8, stripes_per_group_max=4)
block_store.WINDOW_BYTES = int(sys.argv[4])
blocks = LocalBlockStore(Path(sys.argv[1]), geometry)
block_id = bytes.fromhex(sys.argv[2])
match sys.argv[3]:
    case "create":
        blocks.create(block_id)
    case "append":
        blocks.append(block_id, 2, Random(1).randbytes(2 * geometry.stripe_size))
    case "seal":
        blocks.seal(block_id)
    case "delete":
        blocks.delete(block_id)
"""


def _killed(root: Path, block_id: BlockId, step: str, kill_at: str, window_bytes: int = WINDOW_BYTES) -> None:
    command = [sys.executable, "-c", SCRIPT, str(root), block_id.hex(), step, str(window_bytes)]
    done = subprocess.run(command, env={**os.environ, "NOS_EC_KILL_AT": kill_at}, check=False)
    assert done.returncode == -signal.SIGKILL, "the kill point did not fire"


@pytest.mark.parametrize("nth", [1, 7, 8, 10])
def test_an_append_killed_between_shards(root: Path, blocks: LocalBlockStore, nth: int) -> None:
    block_id, data = _written(blocks, 2)
    _killed(root, block_id, "append", f"block_store.shard_written:{nth}")
    stripes = 4 if nth >= 8 else 2
    assert blocks.stripes(block_id) == stripes
    with pytest.raises(Conflict, match="seal it"):
        blocks.append(block_id, stripes, _data(1))
    assert blocks.seal(block_id) == blocks.stripes(block_id) == stripes
    whole = data + _data(2, seed=1)
    assert blocks.read(block_id, 0, stripes * SMALL.stripe_size) == whole[: stripes * SMALL.stripe_size]
    if stripes == 2:
        with pytest.raises(Corrupt):
            blocks.read(block_id, len(data), SMALL.stripe_size)


@pytest.mark.parametrize(("nth", "stripes"), [(7, 2), (8, 3), (10, 3), (17, 3), (18, 4)])
def test_an_append_killed_between_windows(root: Path, blocks: LocalBlockStore, nth: int, stripes: int) -> None:
    """The two stripes are coded and written one after the other, each to all shards."""
    block_id, data = _written(blocks, 2)
    _killed(root, block_id, "append", f"block_store.shard_written:{nth}", window_bytes=1)
    assert blocks.stripes(block_id) == stripes
    with pytest.raises(Conflict, match="seal it"):
        blocks.append(block_id, stripes, _data(1))
    assert blocks.seal(block_id) == stripes
    whole = data + _data(2, seed=1)
    assert blocks.read(block_id, 0, stripes * SMALL.stripe_size) == whole[: stripes * SMALL.stripe_size]


APPENDER = """
import os, sys
from pathlib import Path
from random import Random
from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.core.errors import Conflict
from nos_ec.core.geometry import Geometry
geometry = Geometry(k=8, m=3, chunk_size=16 * 1024, stripes_per_block=1024, stripes_per_group_max=4)
blocks = LocalBlockStore(Path(sys.argv[1]), geometry)
block_id = bytes.fromhex(sys.argv[2])
for stripe in range(0, 1024, 2):
    data = b"".join(Random(stripe + i).randbytes(geometry.stripe_size) for i in (0, 1))
    if stripe == 1022:
        sys.stdin.read()
    try:
        blocks.append(block_id, stripe, data)
    except Conflict:
        sys.exit(0)
    os.write(1, b"%d\\n" % (stripe + 2))
sys.exit(1)
"""
"""Appends until an append is refused. Before the block is full, it waits for the end of its input, in case the test is
slow."""
LONG = Geometry(k=8, m=3, chunk_size=16 * 1024, stripes_per_block=1024, stripes_per_group_max=4)


@pytest.mark.parametrize("end", ["seal", "kill 3", "kill 10", "kill 11", "kill 12"])
def test_an_appending_process_is_sealed_or_killed_at_any_moment(tmp_path: Path, end: str) -> None:
    """Acknowledged stripes are there; an unacknowledged append is there in whole stripes or not at all."""
    root, block_id = tmp_path / "store", new_block_id()
    LocalBlockStore.initialise(root, LONG)
    blocks = LocalBlockStore(root, LONG)
    blocks.create(block_id)
    command = [sys.executable, "-c", APPENDER, str(root), block_id.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as appender:
        assert appender.stdin
        assert appender.stdout
        acknowledged = [int(appender.stdout.readline()) for _ in range(3)]
        if end == "seal":
            stripes = blocks.seal(block_id)
        else:
            time.sleep(int(end.removeprefix("kill ")) / 1000)
            appender.kill()
        appender.stdin.close()
        acknowledged += [int(line) for line in appender.stdout]
    if end == "seal":
        assert appender.returncode == 0, "the append after the seal was refused"
        assert stripes == acknowledged[-1]
    else:
        assert appender.returncode == -signal.SIGKILL
        stripes = blocks.seal(block_id)
        assert acknowledged[-1] <= stripes <= acknowledged[-1] + 2
    for stripe in range(stripes):
        expected = Random(stripe).randbytes(LONG.stripe_size)
        assert blocks.read(block_id, stripe * LONG.stripe_size, LONG.stripe_size) == expected
    blocks.close()


@pytest.mark.parametrize("nth", [1, 5])
def test_a_create_killed_between_shards(root: Path, blocks: LocalBlockStore, nth: int) -> None:
    block_id = new_block_id()
    _killed(root, block_id, "create", f"block_store.shard_created:{nth}")
    assert list(blocks.list_blocks()) == [block_id]
    assert blocks.stripes(block_id) == 0
    with pytest.raises(Conflict):
        blocks.create(block_id)
    with pytest.raises(Conflict):
        blocks.append(block_id, 0, _data(1))
    assert blocks.seal(block_id) == 0
    blocks.delete(block_id)
    assert list(blocks.list_blocks()) == []
    assert blocks.raw_bytes() == 0


def test_a_seal_killed_between_shards_holds_and_can_be_completed(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 2)
    _killed(root, block_id, "seal", "block_store.shard_sealed:1")
    with pytest.raises(Conflict, match="sealed"):
        blocks.append(block_id, 2, _data(1))
    assert blocks.seal(block_id) == 2
    _unmount(root, 0, 1, 2)
    reopened = LocalBlockStore(root, SMALL)
    assert reopened.stripes(block_id) == 2
    assert reopened.read(block_id, 0, len(data)) == data
    reopened.close()


@pytest.mark.parametrize("nth", [1, 4, 11])
def test_a_delete_killed_between_shards_can_be_completed(root: Path, blocks: LocalBlockStore, nth: int) -> None:
    block_id, data = _written(blocks, 2)
    _killed(root, block_id, "delete", f"block_store.shard_deleted:{nth}")
    assert list(blocks.list_blocks()) == ([block_id] if nth < 11 else [])
    for ask in (
        lambda: blocks.seal(block_id),
        lambda: blocks.stripes(block_id),
        lambda: blocks.append(block_id, 2, data),
    ):
        with pytest.raises(NotFound):
            ask()
    if nth <= 3:
        assert blocks.read(block_id, 0, len(data)) == data, "as long as k shards are there"
    else:
        with pytest.raises(NotFound):
            blocks.read(block_id, 0, len(data))
    blocks.delete(block_id)
    assert list(blocks.list_blocks()) == []
    assert blocks.raw_bytes() == 0


def test_a_delete_with_a_lost_shard_is_completed_when_it_is_back(root: Path, blocks: LocalBlockStore) -> None:
    block_id, _ = _written(blocks, 1)
    _unmount(root, 4)
    with pytest.raises(Transient, match="shard-04"):
        blocks.delete(block_id)
    assert blocks.raw_bytes() == 0
    _mount(root)
    assert list(blocks.list_blocks()) == [block_id]
    blocks.delete(block_id)
    assert list(blocks.list_blocks()) == []


# --- sealing ------------------------------------------------------------------------------------------


def test_a_seal_gives_the_same_answer_when_shards_decay(root: Path, blocks: LocalBlockStore) -> None:
    block_id, _ = _written(blocks, 3)
    assert blocks.seal(block_id) == 3
    for shard in range(5):
        os.truncate(_file(root, block_id, shard), DATA_AT)
    for shard in range(5, 10):
        _damage(_file(root, block_id, shard), 512)
    assert blocks.stripes(block_id) == blocks.seal(block_id) == 3


def test_a_damaged_mark_still_refuses_appends(root: Path, blocks: LocalBlockStore) -> None:
    block_id, _ = _written(blocks, 1)
    blocks.seal(block_id)
    for shard in range(11):
        _damage(_file(root, block_id, shard), 519)
    with pytest.raises(Conflict, match="sealed"):
        blocks.append(block_id, 1, _data(1))
    assert blocks.stripes(block_id) == 1
    assert blocks.seal(block_id) == 1


def test_a_block_with_a_damaged_head_accepts_no_append(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    _damage(_file(root, block_id, 6), 10)
    with pytest.raises(Conflict, match=r"\[6\]"):
        blocks.append(block_id, 1, _data(1))
    assert blocks.read(block_id, 0, len(data)) == data


def test_a_stopped_writer_does_not_block_the_others(
    root: Path, blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id, data = _written(blocks, 1)
    monkeypatch.setattr(block_locks, "LOCK_WAIT_S_MAX", 0.05)
    lock = root / "locks" / f"{google_crc32c.value(block_id) % 256:02x}"
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for act in (lambda: blocks.seal(block_id), lambda: blocks.append(block_id, 1, _data(1))):
            with pytest.raises(Transient, match="stopped process"):
                act()
        assert blocks.read(block_id, 0, len(data)) == data, "reading needs no lock"
    assert blocks.seal(block_id) == 1


# --- durability ---------------------------------------------------------------------------------------


def _synced(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[Path]:
    """The files and folders that `act` syncs."""
    synced: list[Path] = []
    fsync, lock = os.fsync, threading.Lock()

    def traced(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        fsync(fd)
        with lock:
            synced.append(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", traced)
        act()
    return sorted(synced)


def test_every_step_syncs_everything_it_wrote(
    root: Path, blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id = new_block_id()
    files = [_file(root, block_id, shard) for shard in range(11)]
    folders = [file.parent for file in files]
    assert _synced(monkeypatch, lambda: blocks.create(block_id)) == sorted(files + folders)
    assert _synced(monkeypatch, lambda: blocks.append(block_id, 0, _data(1))) == files
    assert _synced(monkeypatch, lambda: blocks.seal(block_id)) == files
    assert _synced(monkeypatch, lambda: blocks.delete(block_id)) == folders
    full = _data(blocks.geometry.stripes_per_block)
    assert _synced(monkeypatch, lambda: blocks.create(block_id, full)) == sorted(2 * files + folders), (
        "stripes and seal"
    )


def test_a_failed_sync_fails_the_append(root: Path, blocks: LocalBlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    block_id, data = _written(blocks, 1)
    fsync = os.fsync

    def failing(fd: int) -> None:
        if "shard-07" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(Transient, match=r"shard-07.*Input/output error"):
            blocks.append(block_id, 1, _data(1))
    assert blocks.seal(block_id) == 2, "the torn append can be read"
    assert blocks.read(block_id, 0, len(data)) == data


def test_full_disks(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        root = disk.folder / "blocks"
        LocalBlockStore.initialise(root, SMALL)
        blocks = LocalBlockStore(root, SMALL)
        block_id, data = _written(blocks, 2)
        sealed_id, _ = _written(blocks, 1)
        disk.fill()
        with pytest.raises(NoSpace, match=r"shard-\d\d.*add space"):
            blocks.append(block_id, 2, _data(2, seed=1))
        for content in (b"", _data(1)):
            with pytest.raises(NoSpace):
                blocks.create(new_block_id(), content)
        assert set(blocks.list_blocks()) == {block_id, sealed_id}, "something is left of a block that was refused"
        assert blocks.read(block_id, 0, len(data)) == data
        assert blocks.seal(block_id) == 2, "sealing needs no space"
        blocks.probe()
        assert blocks.seal(sealed_id) == 1
        blocks.delete(sealed_id)
        disk.clear()
        other_id, other = _written(blocks, 4, seed=3)
        assert blocks.read(other_id, 0, len(other)) == other
        blocks.close()


@pytest.mark.parametrize("room_pages", [1, 9, 40, 90])
def test_an_append_that_fills_the_disk_halfway(tmp_path: Path, room_pages: int) -> None:
    """Room for a part of the append (2 stripes, 88 pages of chunks and some of checksums) on all shards but the
    last."""
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        root = disk.folder / "blocks"
        LocalBlockStore.initialise(root, SMALL)
        blocks = LocalBlockStore(root, SMALL)
        block_id, data = _written(blocks, 2)
        more = _data(2, seed=1)
        disk.fill(leave_bytes=room_pages * PAGE)
        if room_pages < 88:
            with pytest.raises(NoSpace):
                blocks.append(block_id, 2, more)
        else:
            blocks.append(block_id, 2, more)
        stripes = blocks.seal(block_id)
        assert 2 <= stripes <= 4
        assert blocks.read(block_id, 0, stripes * SMALL.stripe_size) == (data + more)[: stripes * SMALL.stripe_size]
        disk.clear()
        _written(blocks, 4)
        blocks.close()


# --- opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        Geometry(k=4, m=2, chunk_size=16 * 1024, stripes_per_block=8),
        Geometry(k=8, m=3, chunk_size=32 * 1024, stripes_per_block=8),
        Geometry(k=8, m=3, chunk_size=16 * 1024, stripes_per_block=16),
    ],
)
def test_a_different_geometry_is_refused_and_both_are_named(root: Path, other: Geometry) -> None:
    for act in (LocalBlockStore, LocalBlockStore.initialise):
        with pytest.raises(ConfigError) as caught:
            act(root, other)
        message = str(caught.value)
        assert "k=8 m=3 chunk_size=16384 stripes_per_block=8" in message
        assert f"k={other.k} m={other.m} chunk_size={other.chunk_size}" in message
        assert "configure the store's geometry" in message


def test_opening_needs_an_initialised_store(tmp_path: Path) -> None:
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match="nos-ec init"):
            LocalBlockStore(root, SMALL)


def test_opening_refuses_a_damaged_or_unknown_store_file(root: Path) -> None:
    path = root / "store.json"
    content = path.read_text()
    path.write_text(content.replace('"version": 1', '"version": 2'))
    with pytest.raises(ConfigError, match="release that wrote it"):
        LocalBlockStore(root, SMALL)
    for broken in ("{", "[]", "", "null"):
        path.write_text(broken)
        with pytest.raises(ConfigError, match=r"store\.json"):
            LocalBlockStore(root, SMALL)


def test_a_half_initialised_block_store_does_not_open(root: Path) -> None:
    (root / "store.json").unlink()
    with pytest.raises(ConfigError, match="nos-ec init"):
        LocalBlockStore(root, SMALL)
    LocalBlockStore.initialise(root, SMALL)
    LocalBlockStore(root, SMALL).close()


def test_a_lost_geometry_is_not_invented(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    content = (root / "store.json").read_bytes()
    (root / "store.json").unlink()
    with pytest.raises(ConfigError, match="restore the file"):
        LocalBlockStore.initialise(root, SMALL)
    (root / "store.json").write_bytes(content)
    assert LocalBlockStore(root, SMALL).read(block_id, 0, len(data)) == data


def test_one_of_many_initialisers_creates_the_block_store(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: LocalBlockStore.initialise(tmp_path / "store", SMALL), range(6)))
    with closing(LocalBlockStore(tmp_path / "store", SMALL)) as blocks:
        _written(blocks, 1)


def test_initialising_again_changes_nothing(root: Path, blocks: LocalBlockStore) -> None:
    block_id, data = _written(blocks, 1)
    LocalBlockStore.initialise(root, SMALL)
    assert blocks.read(block_id, 0, len(data)) == data


def test_foreign_files_are_not_listed(root: Path, blocks: LocalBlockStore) -> None:
    for name in ("README", "abcd", "zz" * 16):
        (root / "shard-00" / "a" / name).write_bytes(b"")
    assert list(blocks.list_blocks()) == []
