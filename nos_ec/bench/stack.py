"""The bench's own store on the configured servers, and its instruments; everything is removed at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from nos_ec.adapters.rados.cluster import RadosOptions
from nos_ec.bench.cluster import BenchCluster
from nos_ec.bench.meter import Instruments
from nos_ec.bench.processes import Processes, listeners
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import ConfigError
from nos_ec.settings import Settings

ADMIN_KEYRING = "admin.keyring"
"""Where the development cluster keeps its administrator's key: next to ceph.conf."""
IDLE_WAIT_MS = 20
"""How long the bench's consumer waits at a time for its first message. The clock starts with the turn that receives
it."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    """The Ceph user whose key may read counters and create a pool. keyring: None uses ceph.admin_keyring_file, or if
    that is not set, the keyring next to ceph.conf."""

    user: str
    keyring: Path | None


@dataclass(frozen=True, slots=True)
class BenchStack:
    """An empty store and its instruments."""

    system: System
    instruments: Instruments


@contextmanager
def bench_stack(settings: Settings, admin: AdminKey) -> Iterator[BenchStack]:
    """Yield a scratch store next to the configured one. Its namespace, topic and database are removed at the end.

    Landing copies have no grace period, and an idle consumer polls again soon; all else is as configured. Raises
    Transient, or ConfigError unless the settings use Ceph, Kafka and MySQL or MariaDB, and the key is an
    administrator's.
    """
    _require_servers(settings)
    with (
        TemporaryDirectory(prefix="nos-ec-bench-") as folder,
        BenchCluster(admin_options(settings, admin)) as cluster,
        scratch_store(_bench_settings(settings), Path(folder) / "store", "bench") as scratch,
        open_system(scratch) as system,
    ):
        yield BenchStack(system, Instruments(time.perf_counter, _processes(settings, cluster), cluster))


def _require_servers(settings: Settings) -> None:
    url = settings.store.url()
    wrong = [
        f"{key} is {value!r}"
        for key, value, right in (
            ("store.backend", settings.store.backend, "ceph"),
            ("log.backend", settings.log.backend, "kafka"),
        )
        if value != right
    ]
    if url.startswith("sqlite"):
        wrong.append("store.metadata_url is a SQLite file")
    if wrong:
        raise ConfigError(
            f"the bench measures Ceph, Kafka and MySQL or MariaDB, but {', '.join(wrong)}: use --config with the"
            " file of such a store (deploy/dev/nos-ec.toml is the one of `make up`)"
        )


def _bench_settings(settings: Settings) -> Settings:
    return settings.model_copy(
        update={
            "put": settings.put.model_copy(update={"min_age_ms": 0}),
            "consumer": settings.consumer.model_copy(update={"idle_wait_ms": IDLE_WAIT_MS}),
            "reaper": settings.reaper.model_copy(update={"landing_grace_ms": 0}),
        }
    )


def admin_options(settings: Settings, admin: AdminKey) -> RadosOptions:
    """Return how the bench connects. Raises ConfigError if the keyring does not exist."""
    ceph = settings.ceph
    assert ceph.conf_file is not None
    keyring = admin.keyring or ceph.admin_keyring_file or ceph.conf_file.parent / ADMIN_KEYRING
    if not keyring.is_file():
        raise ConfigError(
            f"{keyring} does not exist: name the keyring of a Ceph administrator with --admin-keyring or"
            " ceph.admin_keyring_file; the bench reads the OSDs' counters with it"
        )
    return RadosOptions(ceph.conf_file, admin.user, keyring, ceph.op_timeout_ms, ceph.connect_timeout_ms)


def _processes(settings: Settings, cluster: BenchCluster) -> Processes:
    kafka_ports = [int(server.rpartition(":")[2]) for server in (settings.kafka.servers or "").split(",")]
    sql_port = urlsplit(settings.store.url()).port or 3306
    return Processes(
        {
            "client": [os.getpid()],
            "osds": listeners(cluster.osd_ports()),
            "kafka": listeners(kafka_ports),
            "sql": listeners([sql_port]),
        }
    )
