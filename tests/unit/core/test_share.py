"""The blocks of GC workers: each block belongs to exactly one of them."""

from __future__ import annotations

import pytest

from nos_ec.core.gc.share import WHOLE, WORKERS_MAX, Share, owner
from nos_ec.core.ids import BlockId


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
