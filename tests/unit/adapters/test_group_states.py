"""Counting placement groups while the monitors answer, answer late, or not at all, without a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.placement import group_states
from nos_ec.adapters.rados.placement.group_states import GroupStates
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.placement import NO_OSD, Group, GroupState, group_state
from nos_ec.monitoring.sources import group_samples
from tests.rig.waiting import until

WAIT_S_MAX = 60.0
POOLS = {"blocks": "ec", "landing": "replicated"}


@pytest.mark.parametrize(
    ("words", "acting", "state"),
    [
        ("active+clean", [1, 2, 3], "complete"),
        ("active+clean+scrubbing+deep", [1, 2, 3], "complete"),
        ("active+clean+remapped", [1, 2, 3], "complete"),
        ("active+remapped+backfilling", [1, 2, 3], "complete"),
        ("active+recovery_wait+degraded", [1, 2, 3], "degraded"),
        ("active+clean+inconsistent", [1, 2, 3], "degraded"),
        ("active+undersized+degraded", [1, 2], "undersized"),
        ("active+undersized", [1, 2], "undersized"),
        ("active+clean", [1, NO_OSD, 3], "undersized"),
        ("stale+active+clean", [1, 2, 3], "inactive"),
        ("undersized+degraded+peered", [1], "inactive"),
        ("peering", [1, 2, 3], "inactive"),
        ("down", [NO_OSD], "inactive"),
        ("unknown", [], "inactive"),
    ],
)
def test_a_group_is_in_one_state_by_its_words(words: str, acting: list[int], state: str) -> None:
    assert group_state(Group(frozenset(words.split("+")), tuple(acting))) is GroupState(state)


class Monitors:
    """Stands in for a RadosCluster. While `hung`, it answers only once `go_on` is called."""

    def __init__(self) -> None:
        self.groups = {"5.0": "active+clean", "5.1f": "active+undersized+degraded", "6.0": "active+clean", "55.0": ""}
        self.osds = {3: 1, 7: 0, 12: 1, 4: 0}
        self.failure: Exception | None = None
        self.asked = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def pool_id(self, name: str) -> int:
        return {"ec": 5, "replicated": 6}[name]

    def command(self, prefix: str, dumpcontents: list[str] | None = None) -> Any:
        if prefix == "osd dump":
            return {"osds": [{"osd": number, "up": up} for number, up in self.osds.items()]}
        assert (prefix, dumpcontents) == ("pg dump", ["pgs_brief"])
        self.asked += 1
        assert self.go_on.wait(WAIT_S_MAX)
        if self.failure is not None:
            raise self.failure
        return {"pg_stats": [{"pgid": name, "state": words, "acting": []} for name, words in self.groups.items()]}


@pytest.fixture
def monitors() -> Iterator[Monitors]:
    monitors = Monitors()
    yield monitors
    monitors.go_on.set()


@pytest.fixture
def states(monitors: Monitors, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupStates]:
    """Every figure is stale at once."""
    monkeypatch.setattr(group_states, "STALE_AFTER_S", 0.0)
    monkeypatch.setattr(group_states, "FRESH_WAIT_S", WAIT_S_MAX)
    states = GroupStates(cast(RadosCluster, monitors), POOLS)
    yield states
    monitors.go_on.set()
    states.close()


def counts(complete: int = 0, degraded: int = 0, undersized: int = 0, inactive: int = 0) -> dict[GroupState, int]:
    return dict(zip(GroupState, (complete, degraded, undersized, inactive), strict=True))


def test_each_state_of_each_pool_is_counted(monitors: Monitors, states: GroupStates) -> None:
    assert states.states() == {"blocks": counts(complete=1, undersized=1), "landing": counts(complete=1)}
    samples = {sample.labels: sample.value for sample in group_samples(states.states())}
    assert len(samples) == 8
    assert samples["blocks", "undersized"] == samples["landing", "complete"] == 1
    assert samples["landing", "inactive"] == 0


def test_osds_that_are_down_are_told_by_number(monitors: Monitors, states: GroupStates) -> None:
    assert states.osds_down() == [4, 7]
    monitors.osds = {3: 1}
    assert states.osds_down() == []
    monitors.osds = {3: "x"} | {"?": 0}  # type: ignore[dict-item]
    assert states.osds_down() == [], "the last answer"


def test_a_group_that_peers_for_a_moment_counts_as_before(monitors: Monitors, states: GroupStates) -> None:
    """Ceph moves groups all the time, and an alert for each of them would wake somebody."""
    before = states.states()
    for peering in ("peering", "remapped+peering"):
        monitors.groups |= {"5.0": peering, "5.1f": peering}
        assert states.states() == before
        monitors.groups |= {"5.0": "active+clean", "5.1f": "active+undersized+degraded"}
        assert states.states() == before
    monitors.groups |= {"5.0": "down", "6.0": "peering"}
    assert states.states() == before
    monitors.groups["6.0"] = "active+clean"
    assert states.states() == {"blocks": counts(undersized=1, inactive=1), "landing": counts(complete=1)}
    monitors.groups["5.0"] = "active+clean"
    assert states.states() == before


def test_a_group_that_was_never_active_is_inactive_at_once(monitors: Monitors, states: GroupStates) -> None:
    monitors.groups = {"5.0": "unknown", "6.0": "active+clean"}
    assert states.states()["blocks"] == counts(inactive=1)
    monitors.groups["5.1"] = "creating+peering"
    assert states.states()["blocks"] == counts(inactive=2)


def test_nobody_asks_until_somebody_wants_to_know_and_then_not_too_often(
    monitors: Monitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("STALE_AFTER_S", "FRESH_WAIT_S"):
        monkeypatch.setattr(group_states, limit, WAIT_S_MAX)
    states = GroupStates(cast(RadosCluster, monitors), POOLS)
    assert monitors.asked == 0
    assert states.states() == states.states()
    assert monitors.asked == 1
    states.close()
    states.close()
    with pytest.raises(ValueError, match="closed"):
        states.states()


def test_nobody_waits_for_a_monitor_that_hangs(
    monitors: Monitors, states: GroupStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = states.states()
    monkeypatch.setattr(group_states, "FRESH_WAIT_S", 0.01)
    monitors.go_on.clear()
    monitors.groups = {}
    began = time.monotonic()
    for _ in range(10):
        assert states.states() == known, "the last figures"
    assert time.monotonic() - began < WAIT_S_MAX / 2
    monitors.go_on.set()
    until(lambda: states.states() != known, wait_s=WAIT_S_MAX)


def test_figures_that_nobody_renews_are_not_given_for_long(
    monitors: Monitors, states: GroupStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = states.states()
    monitors.failure = Transient("no monitor answers")
    assert states.states() == known
    monkeypatch.setattr(group_states, "KNOWN_FOR_S", 0.0)
    with pytest.raises(Transient, match="no monitor answers"):
        states.states()
    monitors.failure = None
    monkeypatch.undo()
    assert states.states() == known


@pytest.mark.parametrize(
    ("failure", "raised"), [(ConfigError("no pool"), ConfigError), (RuntimeError("of the binding"), Transient)]
)
def test_a_failure_is_given_to_those_who_have_no_figures(
    monitors: Monitors, states: GroupStates, failure: Exception, raised: type[Exception]
) -> None:
    monitors.failure = failure
    with pytest.raises(raised, match=str(failure)):
        states.states()
    monitors.failure = None
    assert states.states()["landing"] == counts(complete=1)
