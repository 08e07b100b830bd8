"""Failures of Ceph itself: OSDs that die or hang, unsuitable pools and keys, quotas; and the cost of reads."""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import pytest

from nos_ec.adapters.rados.block_store import RadosBlockStore
from nos_ec.adapters.rados.client import binding, steps
from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.client.cluster_waits import await_state
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.adapters.rados.known_ends import END_XATTR
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.core.errors import Blocklisted, ConfigError, Conflict, Corrupt, NoSpace, Transient
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId, LandingId
from tests.rig.ceph_cluster import POOL_BLOCKS, POOL_LANDING, CephCluster, OwnBlockStore, OwnLandingStore

pytestmark = pytest.mark.real

GEOMETRY = Geometry()
STRIPE = GEOMETRY.stripe_size
OP_TIMEOUT_MS = 1_000
HASTE_S_MAX = 20.0
"""An action of two operations with OP_TIMEOUT_MS each has ended by then, even on a machine that stalls; with the time
limit of the other block stores, 30 s, none has."""
PATIENCE_S = 60.0
"""Longer than the time limit of any block store here: an operation that timed out is repeated."""

T = TypeVar("T")


@pytest.fixture(scope="module")
def namespace(ceph: CephCluster) -> Iterator[str]:
    """A namespace for the tests of this module. It is emptied at the end, because the figures of a pool include all its
    stores."""
    namespace = uuid.uuid4().hex
    with RadosCluster(ceph.options("consumer")) as cluster:
        RadosBlockStore.initialise(cluster, POOL_BLOCKS, GEOMETRY, namespace)
        RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
        yield namespace
        blocks = RadosBlockStore(cluster, POOL_BLOCKS, GEOMETRY, namespace)
        for block_id in list(blocks.list_blocks()):
            blocks.delete(block_id)
        landing = RadosLandingStore(cluster, POOL_LANDING, namespace)
        assert landing.delete_many(list(landing.list_ids())) == {}


@pytest.fixture
def blocks(ceph: CephCluster, namespace: str) -> Iterator[OwnBlockStore]:
    blocks = OwnBlockStore(ceph, namespace, GEOMETRY)
    yield blocks
    blocks.close()


@pytest.fixture
def impatient(ceph: CephCluster, namespace: str) -> Iterator[OwnBlockStore]:
    """The same block store with a short time limit."""
    blocks = OwnBlockStore(ceph, namespace, GEOMETRY, OP_TIMEOUT_MS)
    yield blocks
    blocks.close()


@pytest.fixture
def consumer(ceph: CephCluster) -> Iterator[RadosCluster]:
    with RadosCluster(ceph.options("consumer")) as cluster:
        yield cluster


def stripes(seed: int, count: int = 1) -> bytes:
    return Random(seed).randbytes(count * STRIPE)


def patiently(act: Callable[[], T]) -> T:
    """The result of `act`. A busy or recovering cluster may not answer in time, which says nothing about what is
    tested: then it is repeated, for a while."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except Transient as error:
            if "ceph health" not in str(error) or time.monotonic() > deadline:
                raise


def read_until(blocks: RadosBlockStore, block_id: BlockId, deadline: float) -> None:
    """OSDs continue to read until they learn of a change, and may then drop a read, which times out."""
    while time.monotonic() < deadline:
        patiently(lambda: blocks.read(block_id, 0, 1))
        time.sleep(0.1)


def await_over_quota(ceph: CephCluster, pool_name: str) -> None:
    """The monitors take some seconds to notice; the OSDs learn of it a moment later."""

    def noticed() -> bool:
        pools = ceph.admin.command("osd dump")["pools"]
        return any(pool["pool_name"] == pool_name and "full_quota" in pool["flags_names"] for pool in pools)

    await_state(noticed, f"the monitors do not notice that pool {pool_name} is over its quota")


def fill(blocks: RadosBlockStore, block_id: BlockId, at_stripe: int) -> None:
    """Append until the block is full."""
    for stripe in range(at_stripe, GEOMETRY.stripes_per_block):
        blocks.append(block_id, stripe, stripes(stripe))
        time.sleep(0.5)


def new_block(blocks: RadosBlockStore, *appends: bytes) -> BlockId:
    block_id = BlockId(os.urandom(16))
    blocks.create(block_id)
    at_stripe = 0
    for data in appends:
        blocks.append(block_id, at_stripe, data)
        at_stripe += len(data) // STRIPE
    return block_id


def osd_reads(ceph: CephCluster, read: Callable[[], bool], expected: tuple[int, int]) -> tuple[int, int]:
    """(OSDs that read, bytes they read) for one call. OSDs read for themselves now and then: so the least of some
    tries, and of as many as it takes within PATIENCE_S while it is more than expected."""
    deadline = time.monotonic() + PATIENCE_S
    tries: list[tuple[int, int]] = []
    while not tries or (min(tries) > expected and time.monotonic() < deadline):
        before = ceph.store_reads()
        assert read()
        after = ceph.store_reads()
        reads = sum(after[osd][0] > before[osd][0] for osd in after)
        tries.append((reads, sum(after[osd][1] - before[osd][1] for osd in after)))
    return min(tries)


# --- what reads cost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, PAGE), (STRIPE, PAGE), (3 * (128 << 10) + (32 << 10), 64 << 10), (4 * (128 << 10) - (32 << 10), 64 << 10)],
    ids=["header", "second header", "64 KiB in a chunk", "64 KiB over two chunks"],
)
def test_the_counters_are_what_the_osds_counted(
    ceph: CephCluster, blocks: OwnBlockStore, offset: int, length: int
) -> None:
    data = stripes(1, 2)
    block_id = new_block(blocks, data)
    before = blocks.counters()
    assert blocks.read(block_id, offset, length) == data[offset : offset + length]
    after = blocks.counters()
    counted = (after.shard_reads - before.shard_reads, after.shard_bytes - before.shard_bytes)
    assert osd_reads(ceph, lambda: len(blocks.read(block_id, offset, length)) == length, counted) == counted


@pytest.mark.usefixtures("xfail_unless_pages_are_read")
def test_all_headers_of_a_block_are_read_from_one_osd(ceph: CephCluster, blocks: OwnBlockStore) -> None:
    data = stripes(2, 32)
    block_id = new_block(blocks, data)
    extents = [(stripe * STRIPE, PAGE) for stripe in range(32)]
    headers = [data[at : at + length] for at, length in extents]
    cost = (1, 32 * PAGE)
    assert osd_reads(ceph, lambda: blocks.read_many(block_id, extents) == headers, cost) == cost


@pytest.mark.usefixtures("xfail_unless_pages_are_read")
def test_extents_that_lie_close_together_are_one_read(ceph: CephCluster, blocks: OwnBlockStore) -> None:
    data = stripes(4)
    block_id = new_block(blocks, data)
    extents = [(PAGE + at, 3000) for at in range(0, 96 << 10, 3 * PAGE)]
    pieces = [data[at : at + length] for at, length in extents]
    before = blocks.counters()
    assert blocks.read_many(block_id, extents) == pieces
    after = blocks.counters()
    counted = (after.shard_reads - before.shard_reads, after.shard_bytes - before.shard_bytes)
    assert counted == (1, PAGE * 22)

    def store_reads() -> int:
        before_reads = sum(reads for reads, _ in ceph.store_reads().values())
        assert blocks.read_many(block_id, extents) == pieces
        return sum(reads for reads, _ in ceph.store_reads().values()) - before_reads

    assert min(store_reads() for _ in range(3)) < len(extents)


def test_more_extents_than_one_batch_holds_come_back_in_order(blocks: OwnBlockStore) -> None:
    data = stripes(3, 8)
    block_id = new_block(blocks, data)
    random = Random(3)
    extents = [(random.randrange(7 * STRIPE), random.choice([0, 1, 5000, STRIPE])) for _ in range(700)]
    assert blocks.read_many(block_id, extents) == [data[at : at + length] for at, length in extents]
    with pytest.raises(Corrupt, match="past the end"):
        blocks.read_many(block_id, [*extents, (8 * STRIPE - 1, 2)])


# --- OSDs that are down -----------------------------------------------------------------------------------------


def test_reads_and_appends_continue_with_one_osd_down(ceph: CephCluster, namespace: str, blocks: OwnBlockStore) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    data = {new_block(blocks, stripes(seed)): stripes(seed) for seed in range(6)}
    first = next(iter(data))
    landing = OwnLandingStore(ceph, namespace)
    with ceph.osds_killed(ceph.osds_of(POOL_BLOCKS, namespace, first.hex())[:1]):
        for block_id, written in data.items():
            assert blocks.read(block_id, 0, STRIPE) == written
            assert blocks.read_many(block_id, [(0, PAGE), (5 * (128 << 10), 100)])[0] == written[:PAGE]
            blocks.append(block_id, 1, written)
            assert blocks.read(block_id, STRIPE, STRIPE) == written
            assert blocks.seal(block_id) == 2
        landing_id = LandingId(os.urandom(16))
        landing.put(landing_id, b"x" * 70_000)
        assert landing.read(landing_id) == b"x" * 70_000
    for block_id, written in data.items():
        assert blocks.read(block_id, 0, 2 * STRIPE) == written * 2
    landing.close()


def test_operations_on_an_inactive_placement_group_time_out_and_lose_nothing(
    ceph: CephCluster, namespace: str, blocks: OwnBlockStore, impatient: OwnBlockStore
) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    block_id = patiently(lambda: new_block(impatient, stripes(1)))
    osds = ceph.osds_of(POOL_BLOCKS, namespace, block_id.hex())
    landing_ids = [LandingId(os.urandom(16)) for _ in range(100)]
    landing = OwnLandingStore(ceph, namespace)
    hasty_landing = OwnLandingStore(ceph, namespace, OP_TIMEOUT_MS)
    for landing_id in landing_ids:
        landing.put(landing_id, b"x")
    # Three OSDs of the block's group, so that 8 are left, of which two are of a copy's group, so that 1 is left.
    of_copy = [osd for osd in ceph.osds_of(POOL_LANDING, namespace, landing_ids[0].hex()) if osd in osds][:2]
    with ceph.osds_killed([*of_copy, next(osd for osd in osds if osd not in of_copy)]):
        for act in (
            lambda: impatient.read(block_id, 0, PAGE),
            lambda: impatient.append(block_id, 1, stripes(2)),
            lambda: impatient.seal(block_id),
            lambda: list(impatient.list_blocks()),
            lambda: list(hasty_landing.list_ids()),
        ):
            begun = time.monotonic()
            with pytest.raises(Transient, match="ceph health"):
                act()
            assert time.monotonic() - begun < HASTE_S_MAX
        failed = hasty_landing.delete_many(landing_ids)
        assert landing_ids[0] in failed
        assert len(failed) < len(landing_ids)
        assert all("ceph health" in str(error) for error in failed.values())
    assert set(landing.list_ids()) & set(landing_ids) <= failed.keys()
    assert landing.delete_many(landing_ids) == {}
    assert not set(landing.list_ids()) & set(landing_ids)
    landing.close()
    hasty_landing.close()
    # The timed-out append was never sent, or is refused from now on: either way nothing comes after the seal.
    sealed = patiently(lambda: blocks.seal(block_id))
    assert sealed == 1 == blocks.stripes(block_id)
    assert blocks.read(block_id, 0, STRIPE) == stripes(1)
    for handle in (blocks, impatient):
        with pytest.raises(Conflict, match="sealed"):
            patiently(partial(handle.append, block_id, 1, stripes(2)))


def test_an_append_that_timed_out_never_lands_after_the_seal(
    ceph: CephCluster, namespace: str, blocks: OwnBlockStore, impatient: OwnBlockStore
) -> None:
    """A zombie: its OSD hangs with the append in its queue, the writer gives up, the block is sealed, the OSD wakes."""
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    block_id = patiently(lambda: new_block(impatient, stripes(1)))
    primary = ceph.osds_of(POOL_BLOCKS, namespace, block_id.hex())[0]
    with ceph.osd_stopped(primary), pytest.raises(Transient, match="ceph health"):
        impatient.append(block_id, 1, stripes(2))
    sealed = blocks.seal(block_id)
    time.sleep(1)
    assert blocks.seal(block_id) == blocks.stripes(block_id) == sealed
    assert blocks.read(block_id, 0, sealed * STRIPE) == (stripes(1) + stripes(2))[: sealed * STRIPE]
    with pytest.raises(Corrupt, match="past the end"):
        blocks.read(block_id, sealed * STRIPE, 1)
    for handle in (blocks, impatient):
        with pytest.raises(Conflict, match="sealed"):
            patiently(partial(handle.append, block_id, sealed, stripes(3)))


def test_reads_that_time_out_are_counted(
    ceph: CephCluster, namespace: str, blocks: OwnBlockStore, impatient: OwnBlockStore
) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    block_id = patiently(lambda: new_block(impatient, stripes(1)))
    before = impatient.counters().timed_out_reads
    primary = ceph.osds_of(POOL_BLOCKS, namespace, block_id.hex())[0]
    with ceph.osd_stopped(primary), pytest.raises(Transient, match="ceph health"):
        impatient.read(block_id, 0, STRIPE)
    assert impatient.counters().timed_out_reads == before + 1
    assert blocks.read(block_id, 0, STRIPE) == stripes(1)
    assert blocks.counters().timed_out_reads == 0


def test_a_writer_makes_no_look_ups_between_appends(
    monkeypatch: pytest.MonkeyPatch, namespace: str, ceph: CephCluster, blocks: OwnBlockStore
) -> None:
    looked_up: list[str] = []
    look_up = Pool.xattrs

    def counting(pool: Pool, name: str) -> tuple[dict[str, bytes], int]:
        looked_up.append(name)
        return look_up(pool, name)

    monkeypatch.setattr(Pool, "xattrs", counting)
    block_id = new_block(blocks, stripes(1), stripes(2, 2), stripes(3))
    assert looked_up == []
    other = OwnBlockStore(ceph, namespace, GEOMETRY)
    other.append(block_id, 4, stripes(4))
    assert len(looked_up) == 1
    other.append(block_id, 5, stripes(5))
    assert len(looked_up) == 1
    other.close()
    with pytest.raises(Conflict, match="another writer"):
        blocks.append(block_id, 4, stripes(6))
    assert blocks.read(block_id, 4 * STRIPE, 2 * STRIPE) == stripes(4) + stripes(5)
    assert blocks.seal(block_id) == 6


def test_a_process_on_the_blocklist_can_do_nothing_and_gets_no_partial_listing(
    ceph: CephCluster, namespace: str
) -> None:
    with RadosCluster(ceph.options("consumer")) as cluster:
        blocks = RadosBlockStore(cluster, POOL_BLOCKS, GEOMETRY, namespace)
        block_id = new_block(blocks, stripes(1))
        addresses = re.findall(r"[\d.]+:\d+/\d+", cast(Any, cluster)._rados.get_addrs())
        assert addresses
        for address in addresses:
            ceph.admin.command("osd blocklist", blocklistop="add", addr=address)
        try:
            ceph.await_map()
            acts: list[Callable[[], object]] = [
                lambda: blocks.read(block_id, 0, 1),
                lambda: list(blocks.list_blocks()),
                lambda: blocks.append(block_id, 1, stripes(2)),
                lambda: blocks.seal(block_id),
                lambda: blocks.create(BlockId(os.urandom(16))),
                blocks.probe,
            ]
            for act in acts:
                with pytest.raises(Blocklisted, match="restart the process"):
                    patiently(act)
        finally:
            for address in addresses:
                ceph.admin.command("osd blocklist", blocklistop="rm", addr=address)
        blocks.close()


# --- pools and keys that do not fit -----------------------------------------------------------------------------


@pytest.fixture
def extra_pool(ceph: CephCluster) -> Iterator[Callable[..., str]]:
    """Makes pools of the blocks' profile, and deletes them at the end."""
    made: list[str] = []

    def make(**settings: str) -> str:
        name = f"test-{uuid.uuid4().hex[:8]}"
        profile = ceph.admin.command("osd pool get", pool=POOL_BLOCKS, var="erasure_code_profile")
        ceph.admin.command(
            "osd pool create",
            pool=name,
            pg_num=1,
            pool_type="erasure",
            erasure_code_profile=profile["erasure_code_profile"],
        )
        made.append(name)
        for var, val in settings.items():
            ceph.admin.command("osd pool set", pool=name, var=var, val=val)
        return name

    yield make
    for name in made:
        sure = {"yes_i_really_really_mean_it": True}
        ceph.admin.command("osd pool delete", pool=name, pool2=name, **sure)


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (Geometry(k=8, m=4), r"is 8\+3, but the configuration says 8\+4"),
        (Geometry(k=4, m=2), r"is 8\+3, but the configuration says 4\+2"),
        (Geometry(chunk_size=64 << 10), r"stripe_unit\) of 131072 bytes, but the configuration says 65536"),
    ],
)
def test_a_geometry_that_differs_from_the_pools(consumer: RadosCluster, geometry: Geometry, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RadosBlockStore.initialise(consumer, POOL_BLOCKS, geometry, "other")


def test_a_geometry_that_differs_from_the_block_stores(consumer: RadosCluster, namespace: str) -> None:
    other = Geometry(stripes_per_block=16)
    for open_blocks in (RadosBlockStore, RadosBlockStore.initialise):
        with pytest.raises(ConfigError, match=r"stripes_per_block=32.*stripes_per_block=16"):
            open_blocks(consumer, POOL_BLOCKS, other, namespace)


def test_pools_of_the_wrong_kind(consumer: RadosCluster) -> None:
    with pytest.raises(ConfigError, match=r"not erasure-coded.*stripe_unit=131072"):
        RadosBlockStore(consumer, POOL_LANDING, GEOMETRY)
    with pytest.raises(ConfigError, match="replicated pool"):
        RadosLandingStore(consumer, POOL_BLOCKS)


def test_a_pool_that_accepts_partial_stripes(
    ceph: CephCluster, consumer: RadosCluster, extra_pool: Callable[..., str]
) -> None:
    name = extra_pool(allow_ec_overwrites="true")
    with pytest.raises(ConfigError, match="allow_ec_overwrites"):
        RadosBlockStore.initialise(consumer, name, GEOMETRY)


def test_missing_pools_and_stores(consumer: RadosCluster) -> None:
    for open_blocks in (RadosBlockStore, RadosBlockStore.initialise):
        with pytest.raises(ConfigError, match="no pool nowhere"):
            open_blocks(consumer, "nowhere", GEOMETRY)
    with pytest.raises(ConfigError, match="nos-ec init"):
        RadosBlockStore(consumer, POOL_BLOCKS, GEOMETRY, "never-initialised")
    with pytest.raises(ConfigError, match="nos-ec init"):
        RadosLandingStore(consumer, POOL_LANDING, "never-initialised")


def test_a_deleted_pool_is_not_mistaken_for_lost_objects(ceph: CephCluster, extra_pool: Callable[..., str]) -> None:
    name = extra_pool()
    RadosBlockStore.initialise(ceph.admin, name, GEOMETRY)
    blocks = RadosBlockStore(ceph.admin, name, GEOMETRY)
    block_id = new_block(blocks, stripes(1))
    ceph.admin.command("osd pool delete", pool=name, pool2=name, **{"yes_i_really_really_mean_it": True})
    with pytest.raises(ConfigError, match="was deleted"):
        read_until(blocks, block_id, time.monotonic() + 30)
    with pytest.raises(ConfigError, match="was deleted"):
        blocks.delete(block_id)
    blocks.close()


def test_an_unanswered_operation_fails_when_its_pool_is_deleted(
    ceph: CephCluster, extra_pool: Callable[..., str]
) -> None:
    """An OSD may silently drop an operation on a pool that is being deleted, as if it hung."""
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    name = extra_pool()
    RadosBlockStore.initialise(ceph.admin, name, GEOMETRY)
    blocks = RadosBlockStore(ceph.admin, name, GEOMETRY)
    block_id = new_block(blocks, stripes(1))
    with ceph.osd_stopped(ceph.osds_of(name, "", block_id.hex())[0]):
        ceph.admin.command("osd pool delete", pool=name, pool2=name, **{"yes_i_really_really_mean_it": True})
        with pytest.raises(ConfigError, match="was deleted"):
            blocks.read(block_id, 0, 1)
    blocks.close()


def test_wrong_keys(ceph: CephCluster, tmp_path: Path) -> None:
    right = ceph.options("consumer")
    assert right.keyring_file is not None
    key = right.keyring_file.read_text()
    forged = tmp_path / "forged.keyring"
    forged.write_text(key.replace(key.split("key = ")[1].split()[0], "AQBEjWBnAAAAABAAfc8ZqVzLQy1ZzZ2yCwCNZg=="))
    for user, keyring in [
        (right.user, forged),
        ("client.nobody-at-all", right.keyring_file),
        (right.user, tmp_path / "absent.keyring"),
    ]:
        with pytest.raises(ConfigError, match="key"):
            RadosCluster(RadosOptions(right.conf_file, user, keyring))


def test_an_unreachable_cluster(ceph: CephCluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        RadosCluster(RadosOptions(tmp_path / "ceph.conf", "client.x"))
    (tmp_path / "ceph.conf").write_text("[global]\nmon_host = [v2:127.0.0.1:1]\n")
    begun = time.monotonic()
    with pytest.raises(Transient, match="mon_host"):
        RadosCluster(
            RadosOptions(
                tmp_path / "ceph.conf",
                "client.nos-ec-gc",
                ceph.options("gc").keyring_file,
                connect_timeout_ms=1_500,
            )
        )
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("role", ["reader", "producer", "api"])
def test_a_reader_cannot_write(ceph: CephCluster, namespace: str, blocks: OwnBlockStore, role: str) -> None:
    block_id = new_block(blocks, stripes(1))
    with RadosCluster(ceph.options(role)) as cluster:
        restricted = RadosBlockStore(cluster, POOL_BLOCKS, GEOMETRY, namespace)
        landing = RadosLandingStore(cluster, POOL_LANDING, namespace)
        assert restricted.read(block_id, 0, PAGE) == stripes(1)[:PAGE]
        assert restricted.free_bytes() > 0
        assert landing.free_bytes() > 0
        for act in (
            lambda: restricted.append(block_id, 1, stripes(2)),
            lambda: restricted.create(BlockId(os.urandom(16))),
            lambda: restricted.seal(block_id),
            lambda: restricted.delete(block_id),
            lambda: landing.put(LandingId(os.urandom(16)), b"x"),
            lambda: landing.delete(LandingId(os.urandom(16))),
            lambda: landing.delete_many([LandingId(os.urandom(16))]),
        ):
            with pytest.raises(ConfigError, match="caps"):
                act()


def test_our_keys_give_no_access_to_other_pools(
    ceph: CephCluster, consumer: RadosCluster, extra_pool: Callable[..., str]
) -> None:
    name = extra_pool()
    with pytest.raises(ConfigError, match="caps"):
        RadosBlockStore.initialise(consumer, name, GEOMETRY)


# --- full pools, foreign objects --------------------------------------------------------------------------------


@pytest.mark.usefixtures("ceph")
@pytest.mark.parametrize("hosts", ["mon.invalid", "127.0.0.1:1,mon.invalid:3300", "mon1.invalid mon.invalid"])
def test_names_of_monitors_that_cannot_be_resolved_may_be_resolved_later(tmp_path: Path, hosts: str) -> None:
    """librados refuses them with the error of a wrong key, after which no unit would start the process again."""
    options = _options_without_cluster(tmp_path, hosts)
    with pytest.raises(Transient, match=r"mon_host .*mon\.invalid cannot be resolved"):
        RadosCluster(options)


@pytest.mark.usefixtures("ceph")
@pytest.mark.parametrize("hosts", ["[v2:mon.invalid:3300]", "127.0.0.1:port"])
def test_a_mon_host_that_no_name_server_mends_is_configuration(tmp_path: Path, hosts: str) -> None:
    with pytest.raises(ConfigError, match="mon_host"):
        RadosCluster(_options_without_cluster(tmp_path, hosts))


def _options_without_cluster(folder: Path, hosts: str) -> RadosOptions:
    (folder / "ceph.conf").write_text(f"[global]\nmon_host = {hosts}\n")
    (folder / "keyring").write_text("[client.x]\n\tkey = AQBSdFhhAAAAABAAx3vZ0Zc5cKzJ3l3rV9b8Qw==\n")
    return RadosOptions(folder / "ceph.conf", "client.x", folder / "keyring", 1000, 1000)


@pytest.mark.usefixtures("ceph")
@pytest.mark.parametrize("shut", ["ceph.conf", "keyring"])
def test_a_file_in_a_folder_that_may_not_be_entered(shut: str) -> None:
    with TemporaryDirectory() as name:
        (folder := Path(name)).chmod(0o755)
        options = _options_without_cluster(folder, "127.0.0.1:1")
        (closed := folder / "closed").mkdir()
        (folder / shut).rename(closed / shut)
        closed.chmod(0)
        conf = shut == "ceph.conf"
        options = replace(options, conf_file=closed / shut) if conf else replace(options, keyring_file=closed / shut)
        binding.load()
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match=rf"closed/{shut} cannot be read \(Permission denied\)"):
                RadosCluster(options)
        finally:
            os.seteuid(0)


def test_a_full_pool_refuses_appends_at_once_and_lets_blocks_be_sealed_and_deleted(
    ceph: CephCluster, extra_pool: Callable[..., str]
) -> None:
    name = extra_pool()
    RadosBlockStore.initialise(ceph.admin, name, GEOMETRY)
    blocks = RadosBlockStore(ceph.admin, name, GEOMETRY)
    block_id = new_block(blocks, stripes(1))
    ceph.admin.command("osd pool set-quota", pool=name, field="max_bytes", val=str(STRIPE))
    await_over_quota(ceph, name)
    with pytest.raises(NoSpace, match="quota"):
        fill(blocks, block_id, 1)
    with pytest.raises(NoSpace, match="quota"):
        blocks.create(BlockId(os.urandom(16)))
    assert blocks.read(block_id, 0, STRIPE) == stripes(1)
    assert RadosBlockStore(ceph.admin, name, GEOMETRY).free_bytes() == 0
    assert blocks.seal(block_id) == blocks.stripes(block_id)
    blocks.delete(block_id)
    assert list(blocks.list_blocks()) == []
    blocks.close()


def test_foreign_objects_are_skipped_and_damaged_ends_are_corrupt(
    ceph: CephCluster, namespace: str, blocks: OwnBlockStore
) -> None:
    with ceph.admin.open_pool(POOL_BLOCKS, namespace) as pool:
        pool.write("somebody's", steps.must_be_new())
        foreign, damaged = BlockId(os.urandom(16)), new_block(blocks, stripes(1))
        pool.write(foreign.hex(), steps.must_be_new())
        pool.write(damaged.hex(), steps.set_xattr(END_XATTR, b"open 99999"))
        listed = set(blocks.list_blocks())
        assert {foreign, damaged} <= listed
        for block_id in (foreign, damaged):
            for act in (blocks.stripes, blocks.seal):
                with pytest.raises(Corrupt, match=END_XATTR):
                    act(block_id)
        with pytest.raises(Corrupt, match=END_XATTR):
            blocks.append(damaged, 1, stripes(2))
        pool.write(damaged.hex(), steps.set_xattr(END_XATTR, b"open 7"))
        with pytest.raises(Corrupt, match="7 stripes"):
            blocks.stripes(damaged)
        pool.write("somebody's", steps.remove())
    for block_id in (foreign, damaged):
        blocks.delete(block_id)


def test_the_pool_itself_refuses_partial_stripes(ceph: CephCluster, namespace: str) -> None:
    """Why an append must never be shorter: it would be the last one to the object."""
    with ceph.admin.open_pool(POOL_BLOCKS, namespace) as pool:
        pool.write("short", steps.append(b"x" * 5000))
        with pytest.raises(OSError) as refused:  # noqa: PT011
            pool.write("short", steps.append(b"y" * 5000))
        assert refused.value.errno == errno.EOPNOTSUPP
        pool.write("short", steps.remove())
