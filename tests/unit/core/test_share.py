"""The blocks of GC workers: each block belongs to exactly one of them."""

from __future__ import annotations

import random

import pytest

from nos_ec.core.gc.gc_policy import HYSTERESIS, SPACE_AMP, SealedBlock, SpaceTarget, StoredBytes
from nos_ec.core.gc.share import WHOLE, WORKERS_MAX, Share, owner
from nos_ec.core.ids import BlockId

BLOCK_BYTES = 1_000_000


def block(tail: int) -> BlockId:
    return BlockId(bytes(14) + tail.to_bytes(2))


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, WORKERS_MAX])
def test_each_block_belongs_to_one_worker(workers: int) -> None:
    shares = [Share(worker, workers) for worker in range(workers)]
    counts = dict.fromkeys(range(workers), 0)
    for tail in range(0, 1 << 16, 13):
        (mine,) = [share.worker for share in shares if share.owns(block(tail))]
        assert owner(block(tail), workers) == mine
        counts[mine] += 1
    assert max(counts.values()) <= 1.01 * min(counts.values())
    for tail in (0, (1 << 16) - 1):
        assert sum(share.owns(block(tail)) for share in shares) == 1


@pytest.mark.parametrize("workers", [2, 3, WORKERS_MAX])
def test_the_bounds_of_shares_adjoin(workers: int) -> None:
    bounds = [Share(worker, workers).bounds for worker in range(workers)]
    assert bounds[0][0] == bytes(2)
    assert [end for _, end in bounds[:-1]] == [first for first, _ in bounds[1:]]
    assert bounds[-1][1] > b"\xff\xff"


def test_the_whole_has_all_blocks() -> None:
    assert WHOLE.is_whole
    assert WHOLE.owns(block(0))
    assert WHOLE.owns(block((1 << 16) - 1))
    assert not Share(0, 2).is_whole


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("blocks", [65, 520])
def test_workers_one_after_the_other_end_where_one_does_less_than_a_block_below_the_goal(
    blocks: int, seed: int
) -> None:
    goal = 1 + (SPACE_AMP - 1) * (1 - 2 * HYSTERESIS)
    live, one = _collected(blocks, seed, workers=1)
    for workers in (2, 4):
        assert _collected(blocks, seed, workers) == (live, one)
    assert goal * live - BLOCK_BYTES < one <= goal * live


def _collected(count: int, seed: int, workers: int) -> tuple[int, int]:
    """Let each worker collect its blocks, in any order. Return the live and the stored bytes at the end."""
    rng = random.Random(seed)
    dead = [int(BLOCK_BYTES * min(1, max(0, number / count + rng.gauss(0, 0.05)))) for number in range(count)]
    ids = [BlockId(rng.randbytes(16)) for _ in dead]
    blocks = {one: SealedBlock(one, BLOCK_BYTES - hole, hole, 1.0) for one, hole in zip(ids, dead, strict=True)}
    stored, live = count * BLOCK_BYTES, sum(block.live_bytes for block in blocks.values())
    for worker in rng.sample(range(workers), workers):
        plan = SpaceTarget(floor_days=0).plan(blocks.values(), StoredBytes(stored, live))
        for victim in plan.victims:
            if Share(worker, workers).owns(victim.block_id):
                stored -= blocks.pop(victim.block_id).dead_bytes
    return live, stored
