"""Access to a Ceph cluster with an administrator's key: bare handles on pools, temporary pools, and the OSDs'
counters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from nos_ec.adapters.rados.client import binding
from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.client.cluster_waits import await_clean
from nos_ec.adapters.rados.client.removal import remove_namespace
from nos_ec.core.errors import ConfigError, NosError
from nos_ec.core.gc.raw_cost import REPLICAS

POOL_PREFIX = "nos-ec-bench-"
"""Prefix of the names of temporary pools."""
POOL_GROUPS = 32
"""Placement groups of a temporary pool, as in a small development pool."""
SETTLE_S = 0.5
SETTLE_LOOKS_MAX = 120
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OsdCounters:
    """The work of all OSDs together since they started, from the counters of `perf dump`.

    `client_writes` are write operations of clients (osd.op_w, and osd.op_rw: conditional writes). `store_writes` are
    transactions of the OSDs' stores, including their own bookkeeping (bluestore.state_prepare_lat). `allocated_bytes`
    is the space that BlueStore occupies now. `store_reads` has, by OSD, reads of its store (bluestore.read_lat), and
    `read_bytes` is the number of bytes that these reads returned, from cache or disk.
    """

    client_writes: int
    store_writes: int
    allocated_bytes: int
    store_reads: Mapping[int, int]
    read_bytes: int


class BenchCluster:
    """A connection with an administrator's key. Raises ConfigError, Transient."""

    def __init__(self, options: RadosOptions) -> None:
        self._options = options
        self._cluster = RadosCluster(options)
        try:
            self._osds = {osd["osd"]: osd for osd in self._cluster.command("osd dump")["osds"] if osd["up"]}
            self._require_admin()
        except BaseException:
            self._cluster.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def _require_admin(self) -> None:
        try:
            self.counters()
        except NosError as error:
            raise ConfigError(
                f"{self._options.user} may not read the OSDs' counters ({error}): the bench needs a key with"
                " administrator caps; name its keyring with --admin-keyring or ceph.admin_keyring_file"
            ) from error

    # --- bare access ----------------------------------------------------------------------------------
    @contextmanager
    def bare_pools(self, namespace: str, *names: str) -> Iterator[list[Any]]:
        """Yields the binding's own handles on one namespace of the pools, over a separate connection.

        Raises the binding's OSErrors, because a benchmark that can no longer reach its pools cannot continue.
        """
        options = self._options
        rados = binding.load().Rados(name=options.user, clustername="ceph")
        rados.conf_read_file(str(options.conf_file))
        if options.keyring_file is not None:
            rados.conf_set("keyring", str(options.keyring_file))
        rados.conf_set("rados_osd_op_timeout", str(-(-options.op_timeout_ms // 1000)))
        handles: list[Any] = []
        try:
            rados.connect()
            for name in names:
                handles.append(rados.open_ioctx(name))
                handles[-1].set_namespace(namespace)
            yield handles
        finally:
            for handle in handles:
                handle.close()
            rados.shutdown()

    @contextmanager
    def plain_pool(self, blocks_pool: str) -> Iterator[str]:
        """Yields a temporary pool with the erasure-code profile of `blocks_pool`, but without allow_ec_optimizations.

        Raises ConfigError if the cluster does not allow pools to be deleted. The error names the pool that remains.
        """
        with self._coded_pool("plain", self._details(blocks_pool)["erasure_code_profile"]) as name:
            yield name

    @contextmanager
    def objects_pool(self, blocks_pool: str, stripe_unit: int) -> Iterator[str]:
        """Yields a temporary pool like `blocks_pool`, with allow_ec_optimizations, but with this stripe unit in bytes.

        Raises ConfigError as `plain_pool` does, and if the cluster does not support allow_ec_optimizations.
        """
        like = self._cluster.command(
            "osd erasure-code-profile get", name=self._details(blocks_pool)["erasure_code_profile"]
        )
        profile = f"{POOL_PREFIX}{stripe_unit}-{os.urandom(4).hex()}"
        values = [f"{key}={value}" for key, value in (like | {"stripe_unit": stripe_unit}).items()]
        self._cluster.command("osd erasure-code-profile set", name=profile, profile=values)
        try:
            with self._coded_pool(f"objects-{stripe_unit}", profile) as name:
                self._cluster.command("osd pool set", pool=name, var="allow_ec_optimizations", val="true")
                yield name
        finally:
            with suppress(ConfigError):  # it fails if its pool could not be deleted; that error is raised
                self._cluster.command("osd erasure-code-profile rm", name=profile)

    @contextmanager
    def replicated_pool(self, purpose: str, application: str) -> Iterator[str]:
        """Yields a temporary pool of REPLICAS. Raises ConfigError if the cluster does not allow pools to be deleted."""
        with self._pool(purpose, application, pool_type="replicated", size=REPLICAS) as name:
            yield name

    def _coded_pool(self, purpose: str, profile: str) -> AbstractContextManager[str]:
        return self._pool(purpose, "nos_ec", pool_type="erasure", erasure_code_profile=profile)

    @contextmanager
    def _pool(self, purpose: str, application: str, **arguments: str | int) -> Iterator[str]:
        name = f"{POOL_PREFIX}{purpose}-{os.urandom(4).hex()}"
        self._cluster.command("osd pool create", pool=name, pg_num=POOL_GROUPS, pgp_num=POOL_GROUPS, **arguments)
        try:
            self._cluster.command("osd pool application enable", pool=name, app=application)
            await_clean(self._cluster)
            yield name
        finally:
            self._delete_pool(name)

    def remove_namespace(self, pool: str, namespace: str) -> None:
        """Remove all objects of a namespace. Raises ConfigError, Transient."""
        remove_namespace(self._cluster, pool, namespace)

    def _delete_pool(self, name: str) -> None:
        try:
            self._cluster.command("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)
        except ConfigError as error:
            raise ConfigError(
                f"the bench could not delete its pool {name} ({error}): delete it by hand, and use --no-naive or"
                " --no-pools on a cluster where mon_allow_pool_delete is not set"
            ) from error

    def pool_size(self, name: str) -> int:
        """Return the number of copies, or chunks, that a pool keeps of each object."""
        return int(self._details(name)["size"])

    def _details(self, name: str) -> Mapping[str, Any]:
        """Return the monitors' description of a pool."""
        pools = self._cluster.command("osd pool ls", detail="detail")
        return next(pool for pool in pools if pool["pool_name"] == name)

    # --- counters -------------------------------------------------------------------------------------
    def osd_ports(self) -> list[int]:
        """Return the TCP ports of the running OSDs."""
        return [
            int(address["addr"].rpartition(":")[2])
            for osd in self._osds.values()
            for address in osd["public_addrs"]["addrvec"]
        ]

    def counters(self) -> OsdCounters:
        """Return the current counters. Sends one command per OSD."""
        dumps = {osd: self._cluster.command_osd(osd, "perf dump") for osd in self._osds}
        stores = {osd: _without_prefix(dump["bluestore"]) for osd, dump in dumps.items()}
        return OsdCounters(
            client_writes=sum(dump["osd"]["op_w"] + dump["osd"]["op_rw"] for dump in dumps.values()),
            store_writes=sum(store["state_prepare_lat"]["avgcount"] for store in stores.values()),
            allocated_bytes=sum(store["allocated"] for store in stores.values()),
            store_reads={osd: store["read_lat"]["avgcount"] for osd, store in stores.items()},
            read_bytes=sum(store["buffer_hit_bytes"] + store["buffer_miss_bytes"] for store in stores.values()),
        )

    def settled_counters(self) -> OsdCounters:
        """Return the counters once deleted space is freed: when the allocation is the same twice in a row."""
        return _settled(self.counters, lambda found: found.allocated_bytes)

    def database_bytes(self) -> int:
        """Compact the RocksDB tables of all OSDs, and return their bytes."""
        for osd in self._osds:
            self._cluster.command_osd(osd, "compact")  # returns before it is done
        return _settled(self._tables_bytes, lambda found: found)

    def _tables_bytes(self) -> int:
        files = [file for osd in self._osds for file in self._cluster.command_osd(osd, "bluefs files list")]
        return sum(file["size"] for file in files if file["name"].endswith(".sst"))


def _settled(look: Callable[[], T], figure: Callable[[T], int]) -> T:
    """Return the result of `look` once its figure is the same twice in a row, or after SETTLE_LOOKS_MAX calls."""
    found = look()
    for _ in range(SETTLE_LOOKS_MAX):
        time.sleep(SETTLE_S)
        before, found = found, look()
        if figure(found) == figure(before):
            break
    return found


def _without_prefix(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the prefix that older releases give BlueStore's counters, as in bluestore_allocated."""
    return {name.removeprefix("bluestore_"): value for name, value in counters.items()}
