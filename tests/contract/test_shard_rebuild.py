"""Rebuilding the shards of the embedded block store: what is made again, and what is left alone."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.blocks.shard_file import Pages, ShardFile
from nos_ec.adapters.local.blocks.shard_rebuild import LocalShards
from nos_ec.core.errors import Conflict, Corrupt, NotFound, Transient
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId
from nos_ec.ports.shard_store import RebuiltBlock
from tests.contract.suites.block_store_contract import new_block_id

SMALL = Geometry(k=4, m=2, chunk_size=16 * 1024, stripes_per_block=4, stripes_per_group_max=4)
SHARDS = range(6)
DATA_AT = 2 * PAGE


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


def written(blocks: LocalBlockStore, stripes: int, seed: int = 1) -> tuple[BlockId, bytes]:
    data = Random(seed).randbytes(stripes * blocks.geometry.stripe_size)
    block_id = new_block_id()
    blocks.create(block_id, data)
    return block_id, data


def file_of(root: Path, block_id: BlockId, shard: int) -> Path:
    name = block_id.hex()
    return root / f"shard-{shard:02d}" / name[-1] / name


def files_of(root: Path, block_id: BlockId) -> dict[int, bytes]:
    return {shard: file_of(root, block_id, shard).read_bytes() for shard in SHARDS}


def replace_disk(root: Path, *lost: int) -> None:
    for shard in lost:
        shutil.rmtree(root / f"shard-{shard:02d}")
    LocalBlockStore.initialise(root, SMALL, lost)


def damage(path: Path, at: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0xFF for byte in old))


def rebuild_all(shards: LocalShards) -> dict[BlockId, RebuiltBlock]:
    with shards.alone():
        return {block_id: shards.rebuild(block_id, lambda _: None) for block_id in shards.short_blocks()}


@pytest.mark.parametrize("lost", [c for n in (1, 2) for c in combinations(SHARDS, n)])
def test_lost_shards_come_back_byte_for_byte(
    root: Path, blocks: LocalBlockStore, shards: LocalShards, lost: tuple[int, ...]
) -> None:
    block_id, data = written(blocks, 3)
    blocks.seal(block_id)
    before = files_of(root, block_id)
    replace_disk(root, *lost)
    assert blocks.blocks_short() == {len(lost): 1}
    done = rebuild_all(shards)[block_id]
    assert (done.missing, done.replaced, done.damaged) == (lost, (), ())
    shard_bytes = 3 * SMALL.chunk_size
    assert done.read_bytes == len(SHARDS) * shard_bytes, "the others, and those that were written"
    assert done.written_bytes == len(lost) * shard_bytes
    assert files_of(root, block_id) == before
    assert blocks.blocks_short() == {}
    assert list(shards.short_blocks()) == []
    assert blocks.read(block_id, 0, len(data)) == data


def test_blocks_of_all_lengths(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    made = [written(blocks, 4), written(blocks, 1, seed=2)]
    empty = new_block_id()
    blocks.create(empty)
    blocks.seal(empty)
    replace_disk(root, 0, 5)
    assert {block_id for block_id, done in rebuild_all(shards).items() if done.missing == (0, 5)} == {
        empty,
        *(block_id for block_id, _ in made),
    }
    replace_disk(root, 2, 3)
    for block_id, data in made:
        assert blocks.read(block_id, 0, len(data)) == data
    assert blocks.stripes(empty) == 0


def test_an_open_block_is_sealed_first(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, data = written(blocks, 2)
    replace_disk(root, 1)
    rebuild_all(shards)
    with pytest.raises(Conflict, match="sealed"):
        blocks.append(block_id, 2, bytes(SMALL.stripe_size))
    assert blocks.stripes(block_id) == 2
    replace_disk(root, 2, 4)
    assert blocks.read(block_id, 0, len(data)) == data


def test_a_whole_block_is_left_alone(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _ = written(blocks, 2)
    with shards.alone():
        assert shards.rebuild(block_id, lambda _: None) == RebuiltBlock()
    blocks.append(block_id, 2, bytes(SMALL.stripe_size))


def test_a_block_whose_end_is_in_doubt_is_not_sealed(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    """A torn append, whose last stripe four shards have room for but only three have."""
    block_id, _data = written(blocks, 2)
    replace_disk(root, 0)
    for shard in (4, 5):
        os.truncate(file_of(root, block_id, shard), DATA_AT + SMALL.chunk_size)
    os.truncate(file_of(root, block_id, 3), DATA_AT + SMALL.chunk_size)
    with file_of(root, block_id, 3).open("r+b") as file:
        file.truncate(DATA_AT + 2 * SMALL.chunk_size)
    file_of(root, block_id, 0).touch()
    file_of(root, block_id, 0).unlink()
    shutil.copy(file_of(root, block_id, 3), file_of(root, block_id, 4))
    with shards.alone(), pytest.raises(Corrupt, match="not sealed"):
        shards.rebuild(block_id, lambda _: None)
    assert not file_of(root, block_id, 0).exists()


def test_damaged_shards_are_replaced_too(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _data = written(blocks, 4)
    before = files_of(root, block_id)
    replace_disk(root, 3)
    damage(file_of(root, block_id, 5), DATA_AT + 5 * PAGE)
    done = rebuild_all(shards)[block_id]
    assert (done.missing, done.replaced, done.damaged) == ((3,), (5,), ())
    assert files_of(root, block_id) == before


def test_scattered_damage_is_decoded_page_by_page(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _data = written(blocks, 4)
    before = files_of(root, block_id)
    replace_disk(root, 3)
    for number, shard in enumerate((0, 1, 2, 4, 5)):
        damage(file_of(root, block_id, shard), DATA_AT + number * PAGE)
    done = rebuild_all(shards)[block_id]
    assert (done.missing, done.replaced) == ((3,), (0, 1, 2, 4, 5))
    assert files_of(root, block_id) == before


def test_a_damaged_head_and_a_torn_end_are_replaced(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _data = written(blocks, 4)
    before = files_of(root, block_id)
    replace_disk(root, 3)
    damage(file_of(root, block_id, 1), 4)
    done = rebuild_all(shards)[block_id]
    assert (done.missing, done.replaced) == ((3,), (1,))
    os.truncate(file_of(root, block_id, 0), DATA_AT + SMALL.chunk_size)
    replace_disk(root, 2)
    assert rebuild_all(shards)[block_id].replaced == (0,)
    assert files_of(root, block_id) == before


def test_what_too_few_shards_have_is_left_out_and_the_rest_is_rebuilt(
    root: Path, blocks: LocalBlockStore, shards: LocalShards
) -> None:
    block_id, data = written(blocks, 4)
    whole = files_of(root, block_id)
    replace_disk(root, 3)
    last = SMALL.chunk_size * 4 // PAGE - 1
    damage(file_of(root, block_id, 1), DATA_AT + 5 * PAGE)
    for shard in (0, 1):
        damage(file_of(root, block_id, shard), DATA_AT + PAGE)
        damage(file_of(root, block_id, shard), DATA_AT + last * PAGE)
    before = {shard: file_of(root, block_id, shard).read_bytes() for shard in SHARDS if shard != 3}
    with shards.alone():
        done = shards.rebuild(block_id, lambda _: None)
    assert (done.missing, done.replaced, done.damaged, done.unreadable) == ((3,), (), (1,), (0, 3))
    after = files_of(root, block_id)
    made = after.pop(3)
    assert after == before
    assert len(made) == len(whole[3])
    gaps = {at // PAGE for at in range(DATA_AT, len(made), PAGE) if made[at : at + PAGE] != whole[3][at : at + PAGE]}
    assert gaps == {DATA_AT // PAGE + 1, DATA_AT // PAGE + last}
    stripe = SMALL.stripe_size
    assert blocks.read(block_id, stripe, 2 * stripe) == data[stripe : 3 * stripe]
    for lost in (0, 3 * stripe):
        with pytest.raises(Corrupt):
            blocks.read(block_id, lost, stripe)
    bad = [one for one in shards.scrub(block_id, 4, lambda _: None).damaged if one.shard == 3]
    assert [(one.pages, one.stripes) for one in bad] == [(2, (0, 3))]
    file_of(root, block_id, 5).unlink()
    with shards.alone():  # the gaps stay gaps
        assert shards.rebuild(block_id, lambda _: None).unreadable == (0, 3)
    assert file_of(root, block_id, 3).read_bytes() == made


@pytest.mark.parametrize("away", ["folder", "page"])
def test_nothing_is_left_out_that_may_come_back(
    root: Path, blocks: LocalBlockStore, shards: LocalShards, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    block_id, _ = written(blocks, 4)
    replace_disk(root, 3)
    damage(file_of(root, block_id, 0), DATA_AT)
    if away == "folder":
        (root / "shard-01").rename(root / "away")
    else:
        read = ShardFile.read_pages

        def refused(self: ShardFile, first: int, count: int) -> Pages:
            if self.shard == 1 and first == 0:
                raise OSError(errno.EIO, "the disk does not answer")
            return read(self, first, count)

        monkeypatch.setattr(ShardFile, "read_pages", refused)
    with shards.alone(), pytest.raises(Corrupt, match="stripe 0 cannot be read: more than 2 shards"):
        shards.rebuild(block_id, lambda _: None)
    assert not file_of(root, block_id, 3).exists()


def test_a_block_with_too_few_shards_is_named_and_the_others_are_rebuilt(
    root: Path, blocks: LocalBlockStore, shards: LocalShards
) -> None:
    bad, _ = written(blocks, 4)
    good, _data = written(blocks, 4, seed=2)
    replace_disk(root, 3)
    for shard in (0, 1):
        file_of(root, bad, shard).unlink()
    with shards.alone():
        assert set(shards.short_blocks()) == {bad, good}
        with pytest.raises(Corrupt, match=rf"{bad.hex()}: stripe 0 cannot be read: more than 2 shards"):
            shards.rebuild(bad, lambda _: None)
        assert shards.rebuild(good, lambda _: None).missing == (3,)
    assert blocks.blocks_short() == {3: 1}
    assert not list(root.glob("shard-*/*/*.new"))


def test_shards_that_contradict_each_other_are_refused(
    root: Path, blocks: LocalBlockStore, shards: LocalShards
) -> None:
    """Only a bug can do that: the checksums of all pages are right."""
    block_id, _ = written(blocks, 4)
    other = LocalShards(root, SMALL)
    file = other._folders.open_shard(block_id, 5, write=True)
    assert file is not None
    file.write_pages(0, [bytes(PAGE)])
    file.close()
    replace_disk(root, 3)
    with shards.alone(), pytest.raises(Corrupt, match="stripe 0: shard 5 contradicts"):
        shards.rebuild(block_id, lambda _: None)
    assert not file_of(root, block_id, 3).exists()


def test_the_seal_is_completed_on_shards_that_were_away(
    root: Path, blocks: LocalBlockStore, shards: LocalShards
) -> None:
    block_id, _ = written(blocks, 2)
    (root / "shard-02").rename(root / "away")
    blocks.seal(block_id)
    (root / "away").rename(root / "shard-02")
    replace_disk(root, 0)
    rebuild_all(shards)
    assert len({path.read_bytes()[512:524] for path in root.glob(f"shard-*/*/{block_id.hex()}")}) == 1


def test_a_deletion_meanwhile_wins(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _ = written(blocks, 4)
    replace_disk(root, 3)
    with shards.alone(), pytest.raises(NotFound):
        shards.rebuild(block_id, lambda _: blocks.delete(block_id))
    assert not [path for path in root.glob("shard-*/*/*") if path.is_file()]


def test_a_block_that_is_being_deleted_stays_deleted(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _ = written(blocks, 4)
    replace_disk(root, 3)
    file = shards._folders.open_shard(block_id, 1, write=True)
    assert file is not None
    file.write_gone()
    file.close()
    with shards.alone(), pytest.raises(NotFound):
        shards.rebuild(block_id, lambda _: None)


def test_unfinished_files_are_never_taken_for_shards(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    """The next run removes the temporary files of a killed one, also when their block is whole or gone."""
    short, data = written(blocks, 4)
    whole, _ = written(blocks, 4, seed=2)
    gone = new_block_id()
    replace_disk(root, 3)
    with shards.alone():
        shards.rebuild(whole, lambda _: None)
    for block_id in (short, whole, gone):
        path = file_of(root, block_id, 3)
        path.with_name(path.name + ".new").write_bytes(b"half")
    assert blocks.blocks_short() == {1: 1}
    assert set(blocks.list_blocks()) == {short, whole}
    assert blocks.read(short, 0, len(data)) == data
    with shards.alone():
        assert set(shards.short_blocks()) == {short, whole, gone}
        for block_id in (short, whole):
            shards.rebuild(block_id, lambda _: None)
        with pytest.raises(NotFound):
            shards.rebuild(gone, lambda _: None)
    assert blocks.blocks_short() == {}
    assert not list(root.glob("shard-*/*/*.new"))


def test_an_interrupted_rebuild_leaves_nothing(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _ = written(blocks, 4)
    replace_disk(root, 3)

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with shards.alone(), pytest.raises(KeyboardInterrupt):
        shards.rebuild(block_id, stop)
    assert not list(root.glob("shard-*/*/*.new"))
    assert rebuild_all(shards)[block_id].missing == (3,)


def test_one_process_at_a_time(shards: LocalShards) -> None:
    with shards.alone(), pytest.raises(Conflict, match="another process is rebuilding"), shards.alone():
        pass
    with shards.alone():
        pass


def test_shards_that_are_away_are_left_for_later(root: Path, blocks: LocalBlockStore, shards: LocalShards) -> None:
    block_id, _ = written(blocks, 4)
    replace_disk(root, 3)
    (root / "shard-00").rename(root / "away")
    assert blocks.blocks_short() == {2: 1}
    assert rebuild_all(shards)[block_id].missing == (3,)
    assert blocks.blocks_short() == {1: 1}
    assert list(shards.short_blocks()) == []
    (root / "away").rename(root / "shard-00")
    assert blocks.blocks_short() == {}


def test_a_shard_that_does_not_read_back_is_not_installed(
    root: Path, blocks: LocalBlockStore, shards: LocalShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nos_ec.adapters.local.blocks.shard_file import ShardFile

    block_id, _ = written(blocks, 4)
    replace_disk(root, 3)

    def lying(file: ShardFile) -> None:
        damage(file.path, DATA_AT + 3 * PAGE)

    monkeypatch.setattr(ShardFile, "drop_cached", lying)
    with shards.alone(), pytest.raises(Transient, match="does not read back"):
        shards.rebuild(block_id, lambda _: None)
    assert not file_of(root, block_id, 3).exists()


def test_memory_does_not_grow_with_the_block(tmp_path: Path) -> None:
    """Blocks of 2 and of 64 stripes of 2 MiB take the same memory, some windows of all shards."""
    geometry = Geometry(k=4, m=2, chunk_size=512 * 1024, stripes_per_block=64, stripes_per_group_max=2)
    LocalBlockStore.initialise(tmp_path, geometry)
    blocks = LocalBlockStore(tmp_path, geometry)
    shards = LocalShards(tmp_path, geometry)
    peaks = []
    for stripes in (2, 64):
        block_id, data = written(blocks, stripes)
        del data
        file_of(tmp_path, block_id, 1).unlink()
        tracemalloc.start()
        with shards.alone():
            shards.rebuild(block_id, lambda _: None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    blocks.close()
    assert peaks[1] < 1.1 * peaks[0] + 100_000
    assert max(peaks) < 8 << 20
