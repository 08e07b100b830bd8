"""A statement that changes rows must reach each of them, wherever another transaction moves it in an index meanwhile.

Under READ COMMITTED InnoDB walks an index entry by entry and waits where one is locked. An entry that another
transaction moves behind the walk is passed over, although its row matched before and matches after. So what has to
reach a row must look for it by a key that never changes, whichever index the planner likes better.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nos_ec.adapters.sql import blocks
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.core.lifecycle import BlockState
from nos_ec.testing.metadata_bench import MetadataBench
from nos_ec.testing.metadata_races import JOIN_S

WAITS_S = 0.3
"""Long enough for a statement to reach the row that is locked."""


class SqlRaces:
    """Give a fixture `store`, an empty SqlMetadata on a server that locks rows."""

    @pytest.fixture
    def bench(self, store: SqlMetadata) -> MetadataBench:
        """The store under test with shorthands around it."""
        return MetadataBench(store)

    @pytest.mark.parametrize("way", ["fence_lease", "release_lease", "release_leases"])
    def test_all_open_blocks_are_fenced_whatever_commits_into_them_8(
        self, store: SqlMetadata, bench: MetadataBench, way: str
    ) -> None:
        """The first group of a block takes it from a million parts of holes to none."""
        row = bench.put("n")
        lease = bench.lease()
        first, second = sorted(bench.block(lease) for _ in range(2))
        ways: dict[str, Callable[[], Any]] = {
            "fence_lease": partial(store.fence_lease, lease, lease.expires_ms),
            "release_lease": partial(store.release_lease, lease),
            "release_leases": partial(store.release_leases, [lease]),
        }
        fencing = threading.Thread(target=ways[way])
        with store._engine.connect() as connection:
            blocks.lock(connection, first)
            fencing.start()
            time.sleep(WAITS_S)
            assert fencing.is_alive(), "it does not wait for the row"
            store.commit_group(bench.group(lease, second, [row]))
        fencing.join(JOIN_S)
        assert [(one.state, one.stripes) for one in map(store.block, (first, second))] == [
            (BlockState.FENCED, 0),
            (BlockState.FENCED, 1),
        ]
        bench.check_books()
