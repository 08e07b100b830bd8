"""How many plans the lanes take."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import cast

import pytest

from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.lanes import Lanes
from nos_ec.engine.packable import Packable
from nos_ec.engine.stripe_writer import StripeWriter, WriteResult


class FailingWriter:
    """Stands in for a StripeWriter on a broken disk: each group fails at once."""

    def __init__(self) -> None:
        self.failed = threading.Semaphore(0)

    def write(self, _plan: object) -> WriteResult:
        self.failed.release()
        return WriteResult()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("count", [1, 3])
def test_results_that_nobody_has_collected_keep_the_lanes_full(count: int) -> None:
    """Otherwise one round of planning would try the whole backlog on a disk that refuses everything."""
    writer = FailingWriter()
    lanes = Lanes([cast(StripeWriter, writer)] * count, perf_counter)
    for submitted in range(2 * count):
        assert not lanes.full, submitted
        lanes.submit(cast(GroupPlan[Packable], object()))
        assert writer.failed.acquire(timeout=10)
    assert lanes.full
    while lanes.pending:
        lanes.collect(wait_ms=10_000)
    assert not lanes.full
    lanes.close()
