"""Placement on a real cluster: what it knows, where it puts blocks, what an OSD that dies or hangs costs a writer."""

from __future__ import annotations

import os
import random
import string
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.cluster_waits import await_clean
from nos_ec.adapters.rados.placement.cluster_view import ClusterView
from nos_ec.adapters.rados.placement.group_states import GroupStates
from nos_ec.adapters.rados.placement.object_hash import object_hash, placement_group
from nos_ec.adapters.rados.placement.pool_placement import RadosPlacement
from nos_ec.composition.backends import remove_objects
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.ids import BlockId
from nos_ec.core.placement import ClusterMap, Condition, Fullness, Grade, GroupState, condition
from nos_ec.settings import Settings, load_settings
from tests.real.faults.write_flow import Work, WriteFlow, prepare
from tests.rig import waiting
from tests.rig.ceph_cluster import POOL_BLOCKS, POOL_LANDING, CephCluster
from tests.rig.fakes.audit import problems

pytestmark = pytest.mark.real
until = partial(waiting.until, wait_s=60)

NAMESPACE = "placement"
SILENCE_S_MAX = 20.0
"""The cluster is one machine's: an OSD that dies must cost seconds. Twice what is usual here (docs/MEASUREMENTS.md)."""
LANES = 2
GROUPS = 32
"""The number of groups of the pool that deploy/dev creates."""


def new_id() -> BlockId:
    return BlockId(os.urandom(16))


def group_of(block_id: BlockId) -> int:
    return placement_group(block_id.hex(), NAMESPACE, GROUPS)


def _all(view: ClusterView) -> list[Condition]:
    return [condition(known(view), group) for group in range(GROUPS)]


@pytest.fixture
def placement(ceph: CephCluster) -> Iterator[RadosPlacement]:
    with (
        RadosCluster(ceph.options("gc")) as cluster,
        closing(RadosPlacement(cluster, POOL_BLOCKS, NAMESPACE, new_id)) as placement,
    ):
        yield placement


@pytest.fixture
def view(ceph: CephCluster) -> Iterator[ClusterView]:
    """The view of a clean cluster. Renewed by the log alone: no periodic renewal comes during a test."""
    await_clean(ceph.admin)
    with (
        RadosCluster(ceph.options("consumer")) as cluster,
        closing(ClusterView(cluster, POOL_BLOCKS, refresh_s=600)) as view,
    ):
        yield view


def _known_to(placement: RadosPlacement) -> ClusterMap:
    assert placement._view is not None
    return known(placement._view)


def known(view: ClusterView) -> ClusterMap:
    found = view.current_map(10)
    assert found is not None
    return found


# --- what it knows ----------------------------------------------------------------------------------------------


def test_the_group_of_an_object_is_the_one_the_cluster_says(ceph: CephCluster) -> None:
    rng = random.Random(4)
    letters = string.ascii_letters + string.digits + "äß€._-"
    for length in range(1, 61):
        name = "".join(rng.choices(letters, k=length))
        namespace = "".join(rng.choices(letters, k=rng.choice([0, 0, 3, 12, 40])))
        arguments = {"nspace": namespace} if namespace else {}
        found = ceph.admin.command("osd map", pool=POOL_BLOCKS, object=name, **arguments)
        pool_id = found["pool_id"]
        assert found["raw_pgid"] == f"{pool_id}.{object_hash(name, namespace):x}"
        groups = ceph.admin.command("osd pool get", pool=POOL_BLOCKS, var="pg_num")["pg_num"]
        assert found["pgid"] == f"{pool_id}.{placement_group(name, namespace, groups):x}"


def test_the_map_is_what_the_cluster_has(ceph: CephCluster, view: ClusterView) -> None:
    until(lambda: len(known(view).groups) == known(view).group_count)
    cluster = known(view)
    assert sorted(cluster.osds) == ceph.osds()
    assert all(osd.is_up and osd.is_in and 0 < osd.fill_ratio < 1 for osd in cluster.osds.values())
    assert (cluster.group_count, cluster.writable_min) == (GROUPS, 9)
    assert {condition(cluster, group).grade for group in range(GROUPS)} == {Grade.CLEAN}
    block_id = new_id()
    group = placement_group(block_id.hex(), NAMESPACE, cluster.group_count)
    assert sorted(cluster.groups[group].acting) == sorted(ceph.osds_of(POOL_BLOCKS, NAMESPACE, block_id.hex()))


@pytest.mark.parametrize("role", ["front", "consumer", "gc", "reader"])
def test_the_keys_may_read_the_cluster_map(ceph: CephCluster, role: str) -> None:
    with RadosCluster(ceph.options(role)) as cluster, closing(ClusterView(cluster, POOL_BLOCKS)) as view:
        until(lambda: bool(known(view).groups) and any(osd.fill_ratio for osd in known(view).osds.values()))


def test_a_dead_osd_shows_in_the_states_of_the_groups(ceph: CephCluster) -> None:
    """The keys of all processes that export these states can read them."""
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    await_clean(ceph.admin)
    pools = {"blocks": POOL_BLOCKS, "landing": POOL_LANDING}
    with ExitStack() as stack:
        clients = [stack.enter_context(RadosCluster(ceph.options(role))) for role in ("producer", "gc", "reader")]
        views = [stack.enter_context(closing(GroupStates(client, pools))) for client in clients]
        totals = {holds: sum(states.values()) for holds, states in views[0].states().items()}
        assert totals["blocks"] == GROUPS

        def counted(state: GroupState) -> list[int]:
            found = [view.states() for view in views]
            assert all(sum(one[holds].values()) == total for one in found for holds, total in totals.items())
            return [one[holds][state] for one in found for holds in totals]

        until(lambda: counted(GroupState.COMPLETE) == [*totals.values()] * len(views))
        with ceph.osds_killed([3]):
            until(lambda: all(counted(GroupState.UNDERSIZED)))
            assert not any(counted(GroupState.INACTIVE))
            until(lambda: all(view.osds_down() == [3] for view in views))
        until(lambda: counted(GroupState.COMPLETE) == [*totals.values()] * len(views))


def test_the_log_reveals_a_dead_osd(ceph: CephCluster, view: ClusterView, placement: RadosPlacement) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    placement.new_block_id()  # from now on it asks; what it gives out before it knows the groups is not remembered
    until(lambda: bool(_known_to(placement).groups))
    begun = [placement.new_block_id() for _ in range(60)]
    assert all(placement.healthy(block_id) for block_id in begun)
    until(lambda: bool(known(view).groups))
    groups = known(view).groups.values()
    dies = min(known(view).osds, key=lambda osd: sum(osd in group.acting for group in groups))
    assert any(dies not in group.acting for group in groups), "groups that stay clean"
    with ceph.osds_killed([dies]):
        until(lambda: not known(view).osds[dies].is_up)
        hit = {block_id for block_id in begun if condition(known(view), group_of(block_id)).missing}
        assert hit
        until(lambda: {block_id for block_id in begun if not placement.healthy(block_id)} == hit)
        # Few groups are clean now; what is chosen among the others is not left again at once.
        with closing(ClusterView(ceph.admin, POOL_BLOCKS, refresh_s=0.5)) as fresh:
            until(lambda: {now.grade for now in _all(fresh)} == {Grade.CLEAN, Grade.DEGRADED})
            assert all(now.missing <= 1 for now in _all(fresh))
            chosen = [placement.new_block_id() for _ in range(40)]
            time.sleep(6)
            assert all(placement.healthy(block_id) for block_id in chosen)


def test_an_osd_that_is_nearly_full_is_known(ceph: CephCluster, view: ClusterView) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    ceph.admin.command("osd set-nearfull-ratio", ratio=0.0001)
    try:
        until(lambda: {osd.fullness for osd in known(view).osds.values()} == {Fullness.NEARLY})
        assert condition(known(view), 0).grade is Grade.DEGRADED
    finally:
        ceph.admin.command("osd set-nearfull-ratio", ratio=0.85)
    until(lambda: {osd.fullness for osd in known(view).osds.values()} == {Fullness.ROOMY})


# --- a writer in full flow --------------------------------------------------------------------------------------


@pytest.fixture
def settings(ceph: CephCluster, tmp_path: Path) -> Iterator[Callable[[int], Settings]]:
    """Makes the settings of a store on the cluster, with this time limit per operation."""
    made: list[Settings] = []

    def make(op_timeout_ms: int) -> Settings:
        config = tmp_path / "nos-ec.toml"
        options = ceph.options("consumer")
        config.write_text(
            f"""
            [store]
            backend = "ceph"
            root = "{tmp_path}"
            [ceph]
            conf_file = "{options.conf_file}"
            user = "{options.user}"
            keyring_file = "{options.keyring_file}"
            namespace = "{uuid.uuid4().hex}"
            op_timeout_ms = {op_timeout_ms}
            [gc]
            policy = "threshold"
            reserve_bytes = 0
            """
        )
        made.append(load_settings(config, {}))
        return made[-1]

    yield make
    for each in made:
        remove_objects(each)


def prepared(made: Settings) -> Work:
    """A new store with objects to write."""
    initialise(_patient(made))
    with open_system(_patient(made)) as system:
        return prepare(system, groups=1500)


def settle_and_check(made: Settings, work: Work) -> None:
    """Recovery of abandoned blocks; then everything reads back and block counters add up."""
    with open_system(_patient(made)) as system:
        until(lambda: _recovered(system))
        store = system.client.store()
        for key, data in work.data.items():
            assert store.get(key) == data
        assert problems(system.metadata, system.blocks, system.landing, system.medium) == []


def _patient(made: Settings) -> Settings:
    """With a time limit that a busy machine meets: the short one is for the writers."""
    return made.model_copy(update={"ceph": made.ceph.model_copy(update={"op_timeout_ms": 30_000})})


def _recovered(system: System) -> bool:
    system.worker.housekeeping().run_once()
    return not system.metadata.fenced_blocks(1)


def test_an_osd_that_dies_costs_a_writer_seconds(
    ceph: CephCluster, settings: Callable[[int], Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    made = settings(10_000)
    work = prepared(made)
    with open_system(made) as system:
        flow = WriteFlow(system, work, LANES)
        flow.start()
        begun = time.monotonic()
        time.sleep(3)
        died = time.monotonic()
        with ceph.maps_change_as_usual(), ceph.osds_killed([5]):
            noticed = time.monotonic()
            time.sleep(5)
            end = time.monotonic()
            flow.stop()
        _print(capsys, "an OSD killed with SIGKILL", flow, begun, died, noticed, end)
        assert flow.flow.silence_s(died, end) < SILENCE_S_MAX
    settle_and_check(made, work)


def test_an_osd_that_hangs_costs_a_writer_seconds(
    ceph: CephCluster, settings: Callable[[int], Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    """The time limit is to the cluster's patience with an OSD (osd_heartbeat_grace, 6 s here) as the default one is to
    Ceph's 20 s: half of it. So a group times out, is written elsewhere, as a rule in vain as 11 of 12 OSDs are in every
    group here, and its last try outlasts the OSD."""
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    made = settings(3_000)
    work = prepared(made)
    with open_system(made) as system:
        flow = WriteFlow(system, work, LANES)
        flow.start()
        begun = time.monotonic()
        time.sleep(3)
        hung = time.monotonic()
        with ceph.maps_change_as_usual(), ceph.osd_hung(7):
            ceph.await_down(7)
            noticed = time.monotonic()
            time.sleep(5)
            end = time.monotonic()
            flow.stop()
        _print(capsys, "an OSD stopped with SIGSTOP", flow, begun, hung, noticed, end)
        assert flow.flow.silence_s(hung, end) < SILENCE_S_MAX
    settle_and_check(made, work)


def _print(
    capsys: pytest.CaptureFixture[str],
    what: str,
    writers: WriteFlow,
    begun: float,
    happened: float,
    noticed: float,
    end: float,
) -> None:
    flow = writers.flow
    with capsys.disabled():
        print(
            f"\n{what}: noticed after {noticed - happened:.1f} s; longest silence of {LANES} lanes"
            f" {flow.silence_s(happened, end):.1f} s; groups/s {flow.rate(begun, happened):.0f} before,"
            f" {flow.rate(noticed, end):.0f} once it was noticed; groups given back: {flow.given_back}"
        )
