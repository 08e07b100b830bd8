"""Scrubbing the shards of the embedded block store: each damage is named, mended where it can be, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.blocks.shard_file import Mark, ShardFile, ShardLayout
from nos_ec.adapters.local.blocks.shard_rebuild import LocalShards
from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId
from nos_ec.ports.shard_store import Contradiction, DamagedShard, ScrubbedBlock, ShardPart
from tests.contract.suites.block_store_contract import new_block_id

from .test_shard_rebuild import DATA_AT, SHARDS, SMALL, damage, file_of, files_of, replace_disk, written

LAYOUT = ShardLayout(SMALL)
CHUNK = SMALL.chunk_size
HEAD, MARK, PAGES = ShardPart.HEAD, ShardPart.MARK, ShardPart.PAGES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LocalBlockStore.initialise(tmp_path, SMALL)
    return tmp_path


@pytest.fixture
def blocks(root: Path) -> Iterator[LocalBlockStore]:
    blocks = LocalBlockStore(root, SMALL)
    yield blocks
    blocks.close()


@pytest.fixture
def shards(root: Path) -> LocalShards:
    return LocalShards(root, SMALL)


def sealed(blocks: LocalBlockStore, stripes: int = 4, seed: int = 1) -> BlockId:
    block_id, _ = written(blocks, stripes, seed)
    blocks.seal(block_id)
    return block_id


def scrub(shards: LocalShards, block_id: BlockId) -> ScrubbedBlock:
    return shards.scrub(block_id, 4, lambda _: None)


def mend(shards: LocalShards, block_id: BlockId, *numbers: int) -> tuple[int, ...]:
    with shards.alone():
        return shards.mend(block_id, numbers, lambda _: None).replaced


def rewrite_page(root: Path, block_id: BlockId, shard: int, page: int, data: bytes) -> None:
    """With a checksum that fits."""
    file = ShardFile.open(file_of(root, block_id, shard), LAYOUT, block_id, shard, write=True)
    file.write_pages(page, [data])
    file.close()


def stale(path: Path) -> None:
    """As the shard was when it had one stripe."""
    with path.open("r+b") as file:
        file.truncate(DATA_AT + CHUNK)
        file.seek(512)
        file.write(bytes(12))
        file.seek(PAGE + 4 * CHUNK // PAGE)
        file.write(bytes(PAGE - 4 * CHUNK // PAGE))


def with_zeros(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(DATA_AT + 2 * CHUNK)
        file.write(bytes(PAGE))


def misplaced(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(DATA_AT)
        page = file.read(PAGE)
        file.seek(DATA_AT + PAGE)
        file.write(page)


DAMAGES: list[tuple[Callable[[Path], object], DamagedShard]] = [
    (lambda path: damage(path, DATA_AT + CHUNK + 5), DamagedShard(0, (PAGES,), 1, (1,))),
    (lambda path: damage(path, DATA_AT, 4 * CHUNK), DamagedShard(0, (PAGES,), 16, (0, 1, 2, 3))),
    (lambda path: damage(path, PAGE + 3), DamagedShard(0, (PAGES,), 1, (0,))),
    (with_zeros, DamagedShard(0, (PAGES,), 1, (2,))),
    (misplaced, DamagedShard(0, (PAGES,), 1, (0,))),
    (lambda path: damage(path, 0), DamagedShard(0, (HEAD,))),
    (lambda path: damage(path, 44), DamagedShard(0, (HEAD,))),
    (lambda path: damage(path, 516), DamagedShard(0, (MARK,))),
    (lambda path: os.truncate(path, DATA_AT + 3 * CHUNK), DamagedShard(0, (PAGES,), 4, (3,), 3)),
    (lambda path: os.truncate(path, DATA_AT + 3 * CHUNK + 1), DamagedShard(0, (PAGES,), 4, (3,), 3)),
    (lambda path: os.truncate(path, PAGE), DamagedShard(0, (PAGES,), 16, (0, 1, 2, 3), 0)),
    (lambda path: os.truncate(path, 0), DamagedShard(0, (HEAD, MARK, PAGES), 16, (0, 1, 2, 3))),
    (stale, DamagedShard(0, (MARK, PAGES), 12, (1, 2, 3))),
]


@pytest.mark.parametrize("shard", [0, 5])
@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_a_damaged_shard_is_named_and_made_again(
    root: Path, blocks: LocalBlockStore, shards: LocalShards, number: int, shard: int
) -> None:
    """A data shard and a coding shard."""
    harm, expected = DAMAGES[number]
    block_id, other = sealed(blocks), sealed(blocks, seed=2)
    before = files_of(root, block_id)
    assert scrub(shards, block_id) == ScrubbedBlock(read_bytes=len(SHARDS) * 4 * CHUNK)
    harm(file_of(root, block_id, shard))
    found = scrub(shards, block_id)
    assert found.damaged == (replace(expected, shard=shard),)
    assert (found.missing, found.unreachable, found.contradictions) == ((), (), ())
    assert scrub(shards, other).damaged == ()
    assert mend(shards, block_id, shard) == (shard,)
    assert files_of(root, block_id) == before
    assert scrub(shards, block_id).damaged == ()


def test_a_first_page_that_the_disk_does_not_return_is_damage(
    root: Path, blocks: LocalBlockStore, shards: LocalShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is there: the shard is not merely away."""
    block_id = sealed(blocks)
    before = files_of(root, block_id)
    path = file_of(root, block_id, 2)
    broken, mark = path.stat().st_ino, ShardFile.mark

    def refused(self: ShardFile) -> Mark | None:
        if self.path.stat().st_ino == broken:
            raise OSError(errno.EIO, "the disk does not answer")
        return mark(self)

    with path.open("rb"):  # so that no other file gets its number
        monkeypatch.setattr(ShardFile, "mark", refused)
        found = scrub(shards, block_id)
        assert (found.damaged, found.unreachable) == ((DamagedShard(2, (HEAD, MARK)),), ())
        assert mend(shards, block_id, 2) == (2,)
        assert scrub(shards, block_id).damaged == ()
    assert files_of(root, block_id) == before


def test_damage_on_more_than_m_shards_is_mended_where_each_page_has_k(
    root: Path, blocks: LocalBlockStore, shards: LocalShards
) -> None:
    block_id = sealed(blocks)
    before = files_of(root, block_id)
    for shard in SHARDS:
        damage(file_of(root, block_id, shard), DATA_AT + shard % 4 * CHUNK + shard // 4 * PAGE)
    assert [one.shard for one in scrub(shards, block_id).damaged] == list(SHARDS)
    assert mend(shards, block_id, *SHARDS) == tuple(SHARDS)
    assert files_of(root, block_id) == before


def test_damage_beyond_coding_changes_nothing(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id = sealed(blocks)
    for shard in (0, 2, 5):
        damage(file_of(root, block_id, shard), DATA_AT)
    before = files_of(root, block_id)
    assert [one.shard for one in scrub(shards, block_id).damaged] == [0, 2, 5]
    with pytest.raises(Corrupt, match="stripe 0 cannot be read"):
        mend(shards, block_id, 0, 2, 5)
    assert files_of(root, block_id) == before
    assert not list(root.glob("shard-*/*/*.new"))


@pytest.mark.parametrize("shard", SHARDS)
def test_a_shard_that_contradicts_the_others_is_suspected(
    root: Path, blocks: LocalBlockStore, shards: LocalShards, shard: int
) -> None:
    block_id = sealed(blocks)
    rewrite_page(root, block_id, shard, 6, Random(3).randbytes(PAGE))
    before = files_of(root, block_id)
    found = scrub(shards, block_id)
    assert (found.damaged, found.contradictions) == ((), (Contradiction(1, shard),))
    with pytest.raises(Corrupt, match="contradicts"):
        mend(shards, block_id, shard)
    assert files_of(root, block_id) == before


def test_two_shards_that_contradict_the_others(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id = sealed(blocks)
    for shard in (1, 4):
        rewrite_page(root, block_id, shard, 2, Random(shard).randbytes(PAGE))
    assert scrub(shards, block_id).contradictions == (Contradiction(0, None),)


def test_a_contradiction_beside_damage(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id = sealed(blocks)
    damage(file_of(root, block_id, 3), DATA_AT)
    rewrite_page(root, block_id, 3, 1, Random(3).randbytes(PAGE))
    found = scrub(shards, block_id)
    assert [one.shard for one in found.damaged] == [3]
    assert found.contradictions == (Contradiction(0, 3),)


def test_missing_and_unreachable_shards(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id = sealed(blocks)
    before = files_of(root, block_id)
    replace_disk(root, 1)
    (root / "shard-04").rename(root / "away")
    found = scrub(shards, block_id)
    assert (found.missing, found.unreachable, found.damaged, found.contradictions) == ((1,), (4,), (), ())
    (root / "away").rename(root / "shard-04")
    with shards.alone():
        assert shards.mend(block_id, (), lambda _: None).missing == (1,)
    assert files_of(root, block_id) == before


def test_blocks_of_all_lengths(blocks: LocalBlockStore, shards: LocalShards) -> None:
    empty = new_block_id()
    blocks.create(empty)
    blocks.seal(empty)
    assert shards.scrub(empty, 0, lambda _: None) == ScrubbedBlock()
    for stripes in range(1, 5):
        assert scrub(shards, sealed(blocks, stripes)).read_bytes == len(SHARDS) * stripes * CHUNK


def test_a_block_that_is_gone(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id = sealed(blocks)

    def delete(_: int) -> None:
        blocks.delete(block_id)

    with pytest.raises(NotFound):
        shards.scrub(block_id, 4, delete)
    with pytest.raises(NotFound):
        scrub(shards, block_id)


def test_a_torn_append_looks_unwritten(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    """Two shards have room for the last stripe, but not all of its checksums."""
    block_id, _ = written(blocks, 3)
    for shard in (4, 5):
        path = file_of(root, block_id, shard)
        with path.open("r+b") as file:
            file.seek(PAGE + 2 * CHUNK // PAGE * 4)
            file.write(bytes(CHUNK // PAGE * 4))
    os.truncate(file_of(root, block_id, 5), DATA_AT + 2 * CHUNK)
    blocks.seal(block_id)
    assert [(one.shard, one.unwritten_from) for one in scrub(shards, block_id).damaged] == [(4, 2), (5, 2)]
    assert mend(shards, block_id, 4, 5) == (4, 5)
    assert scrub(shards, block_id).damaged == ()


def test_memory_does_not_grow_with_the_block(tmp_path: Path) -> None:
    geometry = Geometry(k=4, m=2, chunk_size=1 << 20, stripes_per_block=16, stripes_per_group_max=4)
    LocalBlockStore.initialise(tmp_path, geometry)
    blocks, shards = LocalBlockStore(tmp_path, geometry), LocalShards(tmp_path, geometry)
    block_id = new_block_id()
    blocks.create(block_id, bytes(16 * geometry.stripe_size))
    tracemalloc.start()
    found = shards.scrub(block_id, 16, lambda _: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    blocks.close()
    shutil.rmtree(tmp_path / "shard-00")
    assert found.read_bytes == 6 * 16 << 20
    assert peak < 8 << 20
