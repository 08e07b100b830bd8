"""The contracts of block store, landing store and landing log on real Ceph pools."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from nos_ec.adapters.rados.block_store import RadosBlockStore
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.removal import remove_namespace
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX
from nos_ec.core.formats.copy_label import CopyLabel, encode_label
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import LandingId
from nos_ec.engine.landing.landing_labels import labels_of
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.segment_medium import SegmentMedium
from tests.contract.suites.block_store_contract import BlockStoreContract
from tests.contract.suites.landing_store_contract import LandingStoreContract
from tests.contract.suites.segment_medium_contract import SegmentMediumContract
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
    """See tests/contract/suites/block_store_contract.py."""

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
    """See tests/contract/suites/landing_store_contract.py."""

    @pytest.fixture
    def open_landing(self, ceph: CephCluster, namespace: str) -> Iterator[Callable[[], LandingStore]]:
        with RadosCluster(ceph.options("front")) as cluster:
            RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
            yield lambda: OwnLandingStore(ceph, namespace)
            landing = RadosLandingStore(cluster, POOL_LANDING, namespace)
            for landing_id in list(landing.list_ids()):
                landing.delete(landing_id)


def test_a_label_is_an_xattr_of_the_copy(ceph: CephCluster, namespace: str) -> None:
    """It has the size that the most attributes make, and is absent without a label."""
    landing_id, without = LandingId(b"\1" * 16), LandingId(b"\2" * 16)
    label = encode_label(landing_id, CopyLabel("bucket", "n" * 1024, 1, 1, 1, bytes(ATTRIBUTES_SIZE_MAX)))
    with RadosCluster(ceph.options("front")) as cluster:
        RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
        landing = RadosLandingStore(cluster, POOL_LANDING, namespace)
        landing.put(landing_id, b"x", label)
        landing.put(without, b"x")
        with cluster.open_pool(POOL_LANDING, namespace) as pool:
            assert pool.xattrs(landing_id.hex())[0] == {"nos_ec.object": label}
            assert pool.xattrs(without.hex())[0] == {}
        assert {one: label.name for one, label in labels_of(landing, [landing_id, without]).items()} == {
            landing_id: "n" * 1024
        }
        landing.delete_many([landing_id, without])
        landing.close()


class TestRadosSegmentLog(SegmentMediumContract):
    """See tests/contract/suites/segment_medium_contract.py."""

    @pytest.fixture
    def open_medium(self, ceph: CephCluster, namespace: str) -> Iterator[Callable[[], SegmentMedium]]:
        with RadosCluster(ceph.options("front")) as cluster:
            RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
            yield lambda: OwnSegmentLog(ceph, namespace)
            remove_namespace(cluster, POOL_LANDING, namespace)
