"""Placement on Ceph without Ceph: strange or missing answers, and how they are handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.adapters.rados.client.cluster import LogWatch, LogWatcher, RadosCluster
from nos_ec.adapters.rados.placement import cluster_map
from nos_ec.adapters.rados.placement import pool_placement as placement_module
from nos_ec.adapters.rados.placement.cluster_view import RELEVANT_LINE, ClusterView
from nos_ec.adapters.rados.placement.object_hash import placement_group
from nos_ec.adapters.rados.placement.pool_placement import REMEMBERED_BLOCKS, RadosPlacement
from nos_ec.core.errors import ConfigError, NosError, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.placement import NO_OSD, ClusterMap, Fullness
from tests.rig import waiting

POOL = "blocks"
GROUPS = 8
until = partial(waiting.until, wait_s=60)


class Monitors:
    """Stands in for a RadosCluster: answers commands as configured, and pushes log lines."""

    def __init__(self) -> None:
        self.up = [1, 1, 1, 1]
        self.failing: set[str] = set()
        self.bugs = 0
        self.asked: list[str] = []
        self.watcher: LogWatcher | None = None

    def command(self, prefix: str, **_: object) -> Any:
        self.asked.append(prefix)
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError("of the binding")
        if prefix in self.failing:
            raise Transient("no answer")
        return {"osd dump": self.dump, "osd df": self.df, "pg dump": self.brief}[prefix]()

    def dump(self) -> Any:
        osds = [{"osd": number, "up": up, "in": 1, "state": ["exists"]} for number, up in enumerate(self.up)]
        pool = {"pool_name": POOL, "pool": 5, "object_hash": 2, "pg_num": GROUPS, "min_size": 2}
        return {"osds": osds, "pools": [pool]}

    def df(self) -> Any:
        return {"nodes": [{"id": number, "utilization": 10.0 * number} for number in range(4)]}

    def brief(self) -> Any:
        acting = [[group % 4, (group + 1) % 4, (group + 2) % 4] for group in range(GROUPS)]
        mine = [{"pgid": f"5.{group:x}", "state": "active+clean", "acting": acting[group]} for group in range(GROUPS)]
        return {"pg_stats": [*mine, {"pgid": "50.1", "state": "down", "acting": [NO_OSD]}]}

    def watch_log(self, watcher: LogWatcher) -> LogWatch:
        if "log" in self.failing:
            raise Transient("no log")
        self.watcher = watcher
        return LogWatch(self._unwatch)

    def _unwatch(self) -> None:
        self.watcher = None

    def push(self, line: str) -> None:
        assert self.watcher is not None
        self.watcher("cluster", "[INF]", line)


@pytest.fixture
def monitors() -> Monitors:
    return Monitors()


@pytest.fixture
def cluster(monitors: Monitors) -> RadosCluster:
    return cast(RadosCluster, monitors)


def ids() -> Callable[[], BlockId]:
    numbers = iter(range(1_000_000))
    return lambda: BlockId(next(numbers).to_bytes(16, "big"))


@pytest.fixture
def placement(cluster: RadosCluster) -> Iterator[RadosPlacement]:
    with closing(RadosPlacement(cluster, POOL, "", ids())) as placement:
        yield placement


def ready(placement: RadosPlacement, monitors: Monitors) -> None:
    """Wait until it knows the groups: ids that are given out before that are not remembered."""
    placement.new_block_id()
    until(lambda: bool(known(placement).groups) and monitors.watcher is not None)


def known(placement: RadosPlacement) -> ClusterMap:
    assert placement._view is not None
    return placement._view.current_map() or ClusterMap(1, 1)


# --- the view ---------------------------------------------------------------------------------------------------


def test_nothing_is_requested_before_a_block_is_needed(placement: RadosPlacement, monitors: Monitors) -> None:
    assert placement.healthy(BlockId(bytes(16)))
    assert monitors.asked == []


def test_a_line_of_the_log_renews_the_map_at_once(
    placement: RadosPlacement, monitors: Monitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Periodic renewal would take longer than the test waits."""
    monkeypatch.setattr(placement_module, "ClusterView", partial(ClusterView, refresh_s=600))
    ready(placement, monitors)
    block_id = placement.new_block_id()
    group = placement_group(block_id.hex(), "", GROUPS)
    assert placement.healthy(block_id)
    monitors.up[group % 4] = 0
    monitors.push("pgmap v17: nothing to do with us")
    monitors.push(f"osd.{group % 4} marked down")
    until(lambda: not placement.healthy(block_id))


def test_without_a_manager_the_map_of_the_monitors_is_used(placement: RadosPlacement, monitors: Monitors) -> None:
    ready(placement, monitors)
    block_id = placement.new_block_id()
    monitors.failing = {"osd df", "pg dump"}
    monitors.up[placement_group(block_id.hex(), "", GROUPS) % 4] = 0
    monitors.push("osd.0 marked down")
    until(lambda: not placement.healthy(block_id))


def test_without_monitors_blocks_are_placed_by_the_last_map_or_anywhere(
    placement: RadosPlacement, monitors: Monitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_module, "FIRST_MAP_WAIT_S", 600)
    monitors.failing = {"osd dump", "log"}
    begun = time.monotonic()
    block_id = placement.new_block_id()
    assert placement.healthy(block_id)
    assert time.monotonic() - begun < 60, "that there is no map yet is known as soon as the question failed"


def test_a_map_is_renewed_by_the_clock_when_the_log_cannot_be_watched(
    cluster: RadosCluster, monitors: Monitors
) -> None:
    monitors.failing = {"log"}
    with closing(ClusterView(cluster, POOL, refresh_s=0.05)):
        until(lambda: monitors.asked.count("pg dump") > 2)


def test_the_map_is_renewed_after_an_error_that_is_a_bug(cluster: RadosCluster, monitors: Monitors) -> None:
    """Otherwise blocks would be placed for ever by an old map, or each block would wait for the first map."""
    monitors.bugs = 1
    with closing(ClusterView(cluster, POOL, refresh_s=0.05)) as view:
        until(lambda: bool((view.current_map() or ClusterMap(1, 1)).groups))
    assert not monitors.bugs


def test_closing_ends_the_thread_and_the_watch(cluster: RadosCluster, monitors: Monitors) -> None:
    placement = RadosPlacement(cluster, POOL, "", ids())
    ready(placement, monitors)
    placement.close()
    placement.close()
    assert monitors.watcher is None
    assert not [thread for thread in threading.enumerate() if thread.name == "cluster-view"]


def test_a_block_begun_in_a_bad_place_is_left_once_it_is_worse_than_at_its_best(
    cluster: RadosCluster, monitors: Monitors
) -> None:
    monitors.up = [0, 1, 1, 1]
    with closing(RadosPlacement(cluster, POOL, "", ids(), candidates=1)) as placement:
        ready(placement, monitors)
        block_id = next(new for new in iter(placement.new_block_id, None) if _has_osd_0(new))
        assert placement.healthy(block_id), "no better than it was, and no worse"
        _change(placement, monitors, [1, 1, 1, 1])
        assert placement.healthy(block_id)
        _change(placement, monitors, [0, 1, 1, 1])
        assert not placement.healthy(block_id)


def _has_osd_0(block_id: BlockId) -> bool:
    return placement_group(block_id.hex(), "", GROUPS) % 4 != 1


def _change(placement: RadosPlacement, monitors: Monitors, up: list[int]) -> None:
    """Let OSDs come or go, and wait until the map shows it."""
    monitors.up = up
    monitors.push("osd.0 changed")
    until(lambda: [osd.is_up for osd in known(placement).osds.values()] == [one == 1 for one in up])


def test_the_number_of_remembered_conditions_is_bounded(placement: RadosPlacement, monitors: Monitors) -> None:
    ready(placement, monitors)
    first = placement.new_block_id()
    for _ in range(REMEMBERED_BLOCKS):
        placement.new_block_id()
    assert len(placement._begun_as) == REMEMBERED_BLOCKS
    assert placement.healthy(first), "a block that is forgotten is left only when it cannot be written"


@pytest.mark.parametrize(
    ("line", "relevant"),
    [
        ("osd.3 marked itself down and dead", True),
        ("osd.3 failed (root=default,host=a) (connection refused reported by osd.1)", True),
        ("Health check failed: 1 osds down (OSD_DOWN)", True),
        ("Health check cleared: PG_DEGRADED (was: Degraded data redundancy: 32 pgs undersized)", True),
        ("Health check failed: 12 nearfull osd(s) (OSD_NEARFULL)", True),
        ("osdmap e51: 12 total, 11 up, 12 in", False),
        ("mgrmap e7: x(active, since 2m)", False),
        ("from='client.4 ' entity='client.admin' cmd='df'", False),
    ],
)
def test_log_lines_that_report_a_change(line: str, relevant: bool) -> None:
    assert bool(RELEVANT_LINE.search(line)) is relevant


# --- the answers ------------------------------------------------------------------------------------------------


def test_answers_as_a_map(monitors: Monitors) -> None:
    dump = monitors.dump()
    dump["osds"][2]["state"] = ["exists", "up", "nearfull"]
    dump["osds"][3]["state"] = ["exists", "up", "nearfull", "full"]
    found = cluster_map.with_osds(ClusterMap(1, 1), dump, POOL)
    found = cluster_map.with_fills(found, monitors.df())
    found = cluster_map.with_groups(found, monitors.brief(), 5)
    assert (found.group_count, found.writable_min, sorted(found.groups)) == (GROUPS, 2, list(range(GROUPS)))
    assert [osd.fill_ratio for osd in found.osds.values()] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [osd.fullness for osd in found.osds.values()] == [
        Fullness.ROOMY, Fullness.ROOMY, Fullness.NEARLY, Fullness.FULL
    ]  # fmt: skip
    again = cluster_map.with_osds(found, dump, POOL)
    assert again == found, "fill ratios and groups stay until they are asked for again"


def test_a_pool_that_is_missing_or_maps_by_another_rule(monitors: Monitors) -> None:
    with pytest.raises(ConfigError, match="no longer exists"):
        cluster_map.with_osds(ClusterMap(1, 1), monitors.dump(), "other")
    dump = monitors.dump()
    dump["pools"][0]["object_hash"] = 1
    with pytest.raises(ConfigError, match="object_hash 1"):
        cluster_map.with_osds(ClusterMap(1, 1), dump, POOL)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["osds", "pools", "nodes", "pg_stats", "osd", "up", "in", "state", "id", "utilization", "pgid", "acting",
             "pool_name", "pool", "pg_num", "min_size", "object_hash"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_any_answer_gives_a_map_or_one_of_our_errors(answer: Any) -> None:
    for decode in (
        lambda: cluster_map.with_osds(ClusterMap(1, 1), answer, POOL),
        lambda: cluster_map.with_fills(ClusterMap(1, 1), answer),
        lambda: cluster_map.with_groups(ClusterMap(1, 1), answer, 5),
        lambda: cluster_map.pool_id(answer, POOL),
    ):
        try:
            decode()
        except NosError:
            continue
