"""Sets up the ways that `bench s3` compares: starts their processes and creates their buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from nos_ec.bench.life.life_ways import landing_settings
from nos_ec.bench.meter import Instruments
from nos_ec.bench.s3.s3_bench import AS_SHIPPED, BUCKET, ENGINE, GATEWAY, RADOSGW, SMALL_BUCKET, EngineObjects, Way
from nos_ec.bench.s3.s3_client import S3Client
from nos_ec.bench.s3.s3_servers import Server, gateways, rados_gateways
from nos_ec.bench.stack import AdminKey, admin_options, bench_stores
from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError
from nos_ec.settings import Settings


@dataclass(frozen=True, slots=True)
class S3Ways:
    """An empty store, and the ways to use it and radosgw."""

    system: System
    ways: Mapping[str, Way]


@contextmanager
def s3_ways(settings: Settings, admin: AdminKey, processes: int, programs: Sequence[str] | None) -> Iterator[S3Ways]:
    """Yields the ways. `processes` is the number of gateway processes. `programs` are words before the names of Ceph's
    programs in a command; None leaves radosgw out. Raises ConfigError, Transient."""
    if programs is not None and settings.store.backend != "ceph":
        text = "radosgw needs Ceph, and this store is embedded; leave out --radosgw"
        raise ConfigError(text, settings=("store.backend",))
    with ExitStack() as stack:
        stores = stack.enter_context(bench_stores({"s3": landing_settings(settings, settings.landing.mode)}, admin))
        system, instruments = stores.systems["s3"], stores.instruments
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nos-ec-bench-s3-")))
        server = stack.enter_context(gateways(system.settings, folder, processes))
        ways = {
            GATEWAY: _way(stack, server, instruments, packs=True),
            ENGINE: Way(EngineObjects(system.client.store()), instruments, packs=True),
        }
        if programs is not None:
            options, pool = admin_options(settings, admin), settings.ceph.blocks_pool
            zone = stack.enter_context(rados_gateways(instruments.cluster, options, programs, pool, folder))
            for name, tcp_nodelay in ((RADOSGW, True), (AS_SHIPPED, False)):
                one = stack.enter_context(zone.serve(tcp_nodelay=tcp_nodelay))
                ways[name] = _way(stack, one, instruments, packs=False)
        yield S3Ways(system, ways)


def _way(stack: ExitStack, server: Server, instruments: Instruments, *, packs: bool) -> Way:
    """Return a way over S3, after creating its buckets."""
    client = stack.enter_context(closing(S3Client(server.urls, server.credentials)))
    for bucket in (BUCKET, SMALL_BUCKET):
        client.create_bucket(bucket)
    return Way(client, replace(instruments, processes=instruments.processes.with_group("server", server.pids)), packs)
