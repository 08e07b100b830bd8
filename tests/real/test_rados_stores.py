"""The contracts of block store, landing store and landing log on real Ceph pools."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from nos_ec.adapters.rados.block_store import RadosBlockStore
from nos_ec.adapters.rados.cluster import RadosCluster
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.adapters.rados.removal import remove_namespace
from nos_ec.core.geometry import Geometry
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.segment_medium import SegmentMedium
from nos_ec.testing.block_store_contract import BlockStoreContract
from nos_ec.testing.landing_store_contract import LandingStoreContract
from nos_ec.testing.segment_medium_contract import SegmentMediumContract
from tests.rig.ceph_cluster import POOL_BLOCKS, POOL_LANDING, CephCluster, OwnBlockStore, OwnLandingStore, OwnSegmentLog

pytestmark = pytest.mark.real


COST_TESTS = {
    "test_a_range_inside_a_chunk_is_one_shard_read",
    "test_reads_cost_whole_pages",
    "test_a_longer_range_reads_each_shard_once",
}


def test_the_cost_tests_exist_under_these_names() -> None:
    assert set(dir(BlockStoreContract)) >= COST_TESTS


@pytest.fixture
def namespace() -> str:
    """Each test has a separate namespace."""
    return uuid.uuid4().hex


class TestRadosBlockStore(BlockStoreContract):
    """See nos_ec/testing/block_store_contract.py."""

    @pytest.fixture(autouse=True)
    def gap_of_an_older_ceph(self, request: pytest.FixtureRequest) -> None:
        """Tests of read costs are expected to fail there, and must."""
        if request.function.__name__ in COST_TESTS:
            request.getfixturevalue("xfail_unless_pages_are_read")

    @pytest.fixture
    def open_blocks(self, ceph: CephCluster, namespace: str) -> Iterator[Callable[[], BlockStore]]:
        geometry = Geometry()
        with RadosCluster(ceph.options("consumer")) as cluster:
            RadosBlockStore.initialise(cluster, POOL_BLOCKS, geometry, namespace)
            yield lambda: OwnBlockStore(ceph, namespace, geometry)
            blocks = RadosBlockStore(cluster, POOL_BLOCKS, geometry, namespace)
            for block_id in list(blocks.list_blocks()):
                blocks.delete(block_id)


class TestRadosLandingStore(LandingStoreContract):
    """See nos_ec/testing/landing_store_contract.py."""

    @pytest.fixture
    def open_landing(self, ceph: CephCluster, namespace: str) -> Iterator[Callable[[], LandingStore]]:
        with RadosCluster(ceph.options("front")) as cluster:
            RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
            yield lambda: OwnLandingStore(ceph, namespace)
            landing = RadosLandingStore(cluster, POOL_LANDING, namespace)
            for landing_id in list(landing.list_ids()):
                landing.delete(landing_id)


class TestRadosSegmentLog(SegmentMediumContract):
    """See nos_ec/testing/segment_medium_contract.py."""

    @pytest.fixture
    def open_medium(self, ceph: CephCluster, namespace: str) -> Iterator[Callable[[], SegmentMedium]]:
        with RadosCluster(ceph.options("front")) as cluster:
            RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
            yield lambda: OwnSegmentLog(ceph, namespace)
            remove_namespace(cluster, POOL_LANDING, namespace)
