"""Sets up a temporary store on the configured servers, and the instruments of a benchmark. Everything is removed at the
end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from nos_ec.adapters.rados.client.cluster import RadosOptions
from nos_ec.bench.meter import Instruments
from nos_ec.bench.servers.cluster import BenchCluster
from nos_ec.bench.servers.processes import Processes, listeners
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import ConfigError
from nos_ec.settings import Settings

ADMIN_KEYRING = "admin.keyring"
"""The file next to ceph.conf in which the development cluster keeps its administrator's key."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    """The Ceph user whose key may read counters and create a pool. If `keyring` is None, ceph.admin_keyring_file is
    used, or if that is not set, the keyring next to ceph.conf."""

    user: str
    keyring: Path | None


@dataclass(frozen=True, slots=True)
class BenchStores:
    """Several empty stores on the same servers, by name, and their instruments."""

    systems: Mapping[str, System]
    instruments: Instruments


@contextmanager
def bench_stores(settings: Mapping[str, Settings], admin: AdminKey) -> Iterator[BenchStores]:
    """Yields a temporary store for each of these settings, at least one, next to the configured one. Their namespaces,
    topics and databases are removed at the end. All must name the same servers. They may also name embedded parts,
    which are then on the disk of the first `store.root`.

    Landing copies and emptied blocks have no grace period, and objects are due at once. The other settings are as
    given. Raises Transient, or ConfigError, also unless the key is an administrator's.
    """
    first = next(iter(settings.values()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_folder(first.store.root)))
        osds = None
        if first.store.backend == "ceph":
            osds = stack.enter_context(BenchCluster(admin_options(first, admin)))
        systems = {}
        for name, one in settings.items():
            scratch = stack.enter_context(scratch_store(_bench_settings(one), folder / name, "bench"))
            systems[name] = stack.enter_context(open_system(scratch))
        yield BenchStores(systems, Instruments(time.perf_counter, _processes(first, osds), osds))


def require_servers(settings: Settings) -> None:
    """Raise ConfigError unless the settings use Ceph, Kafka and MySQL or MariaDB."""
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
            " file of such a store"
        )


def _folder(root: Path) -> TemporaryDirectory[str]:
    """Create a temporary folder on the disk of `root`, which need not exist. Raises ConfigError."""
    place = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
    try:
        return TemporaryDirectory(prefix="nos-ec-bench-", dir=place)
    except OSError as error:
        text = f"the bench cannot create a folder in {place} ({error.strerror}): set another store.root for it"
        raise ConfigError(text, settings=("store.root",)) from error


def _bench_settings(settings: Settings) -> Settings:
    return settings.model_copy(
        update={
            "put": settings.put.model_copy(update={"min_age_ms": 0}),
            "reaper": settings.reaper.model_copy(update={"landing_grace_ms": 0}),
            "gc": settings.gc.model_copy(update={"block_grace_ms": 0}),
        }
    )


def admin_options(settings: Settings, admin: AdminKey) -> RadosOptions:
    """Return the options of the administrator's connection. Raises ConfigError if the keyring does not exist."""
    ceph = settings.ceph
    assert ceph.conf_file is not None
    keyring = admin.keyring or ceph.admin_keyring_file or ceph.conf_file.parent / ADMIN_KEYRING
    if not keyring.is_file():
        raise ConfigError(
            f"{keyring} does not exist: name the keyring of a Ceph administrator with --admin-keyring or"
            " ceph.admin_keyring_file; the bench reads the OSDs' counters with it"
        )
    return RadosOptions(ceph.conf_file, admin.user, keyring, ceph.op_timeout_ms, ceph.connect_timeout_ms)


def _processes(settings: Settings, osds: BenchCluster | None) -> Processes:
    """Return this process, and the servers that the settings name."""
    groups: dict[str, list[int]] = {"client": [os.getpid()]}
    if osds is not None:
        groups["osds"] = listeners(osds.osd_ports())
    if settings.log.backend == "kafka":
        ports = [int(server.rpartition(":")[2]) for server in (settings.kafka.servers or "").split(",")]
        groups["kafka"] = listeners(ports)
    url = settings.store.url()
    if not url.startswith("sqlite"):
        groups["sql"] = listeners([urlsplit(url).port or 3306])
    return Processes(groups)
