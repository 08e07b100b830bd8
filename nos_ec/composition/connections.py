"""The checks of `config check --connect`: they try every server and folder that the settings name, and change nothing.

Opening the store and /readyz make the same checks. Here they run one by one, so that all problems are found at once and
each has a name. They also work before `nos-ec init`; then the checks of an initialised store are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.connection_check import look_at_log, missing_shards, try_folder
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.adapters.local.store_mark import find_owner
from nos_ec.adapters.sql.connection_check import DatabaseCheck
from nos_ec.adapters.sql.driver.engine import is_missing, parse_url
from nos_ec.composition.backends import (
    OF_CONNECTION,
    OF_LOG,
    OF_METADATA,
    kafka_topic,
    rados_options,
    settings_named,
)
from nos_ec.composition.connection_check import Check, NotTried
from nos_ec.composition.landing import is_configured, open_devices
from nos_ec.composition.ownership import compare_owner
from nos_ec.core.errors import FREE_SPACE, ConfigError, NoSpace
from nos_ec.engine.space_reserve import PUT_RESERVES
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.adapters.rados.client.cluster import RadosCluster
    from nos_ec.adapters.rados.client.pool import Pool

DATABASE_LIMIT_MS = 15_000
FOLDER_LIMIT_MS = 15_000
MARGIN_MS = 5_000
"""The time that a check may take in addition to the time limits of its requests, in milliseconds."""
_PROBE_BYTES = 4096
NOT_INITIALISED = "the store is not initialised; run `nos-ec init`"


class Connections:
    """The checks of one configuration. A context manager, which closes the connections that they opened."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._stack = ExitStack()
        self._store_id: str | None = None
        self.initialised: bool | None = None
        """Whether the metadata belongs to an initialised store; None while that is not known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self._stack.close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Close nothing, because a check that is still running may use it. The connections end with the process."""
        self._stack.pop_all()

    def checks(self) -> Iterator[Check]:
        """Yield all checks, in the order in which to try them."""
        yield from self._database()
        yield from self._local() if self._settings.store.backend == "local" else self._ceph()
        yield from self._local_log() if self._settings.log.backend == "local" else self._kafka()
        yield Check("audit trail", FOLDER_LIMIT_MS, self._audit)

    def _audit(self) -> str:
        settings = self._settings
        folder = settings.audit.folder_in(settings.store.root, settings.store.backend)
        if folder is None:
            why = "audit.folder is not set" if settings.audit.size_bytes_max else "audit.size_bytes_max is 0"
            raise NotTried(f"no audit trail is kept: {why}")
        with settings_named("audit.folder"):
            try_folder(folder)
        return f"{folder} can be written"

    # --- the metadata -----------------------------------------------------------------------------
    def _database(self) -> Iterator[Check]:
        store = self._settings.store
        opened: list[DatabaseCheck] = []

        def connect() -> str:
            with settings_named("store.metadata_url"):
                parsed = parse_url(store.url())
                if is_missing(parsed):
                    self.initialised = False
                    raise NotTried(f"{parsed.database} does not exist: {NOT_INITIALISED}")
                check = DatabaseCheck(store.url(), replica=store.metadata_replica)
                found = check.connect()
            self._stack.callback(check.close)
            opened.append(check)
            return found

        def schema() -> str:
            with settings_named("store.metadata_url"):
                found = opened[0].schema()
            if found is None:
                self.initialised = False
                raise NotTried(f"the database has no tables: {NOT_INITIALISED}")
            return found

        def identity() -> str:
            with settings_named("geometry", "store.metadata_url"):
                self._store_id = opened[0].store(self._settings.geometry.value())
            self.initialised = self._store_id is not None
            if self._store_id is None:
                raise NotTried(NOT_INITIALISED)
            return f"store {self._store_id}"

        limit_ms, needs = DATABASE_LIMIT_MS, ("database",)
        named = settings_named("store.metadata_url")
        yield Check("database", limit_ms, connect)
        yield Check("database session", limit_ms, named(lambda: opened[0].session()), needs)
        yield Check("database clock", limit_ms, lambda: opened[0].clock(self._clock), needs)
        yield Check("database schema", limit_ms, schema, needs)
        yield Check("database rights", limit_ms, named(lambda: opened[0].rights()), ("database schema",))
        yield Check("database store", limit_ms, identity, ("database schema",))

    def _compare_owner(self, where: str, owner: str | None) -> str:
        """Check that data and metadata belong to the same store."""
        if self.initialised is None:
            raise NotTried("needs: database store")
        if not self.initialised and owner is None:
            raise NotTried(NOT_INITIALISED)
        with settings_named(*OF_METADATA):
            compare_owner(where, owner, self._store_id, is_new=not self.initialised)
        return f"{where} belongs to store {owner}"

    # --- the embedded stores ----------------------------------------------------------------------
    def _local(self) -> Iterator[Check]:
        settings = self._settings
        root, geometry = settings.store.root, settings.geometry.value()

        def folder() -> str:
            with settings_named("store.root"):
                try_folder(root)
            return f"{root} can be written" if root.exists() else f"{root} can be created"

        def blocks() -> str:
            self._require_initialised(root / "blocks")
            with settings_named("store.root"), closing(LocalBlockStore(root / "blocks", geometry)) as store:
                store.probe()
                missing = missing_shards(root / "blocks", geometry)
                return f"{geometry.k} + {geometry.m} shards, {len(missing)} missing, each can be written"

        def landing() -> str:
            self._require_initialised(root / "landing")
            with settings_named("store.root"), closing(LocalLandingStore(root / "landing")) as store:
                store.probe()
            return f"{root / 'landing'} can be written"

        def space() -> str:
            self._require_initialised(root / "blocks")
            with (
                closing(LocalBlockStore(root / "blocks", geometry)) as store,
                closing(LocalLandingStore(root / "landing")) as copies,
            ):
                return self._free_space(store.free_bytes(), copies.free_bytes())

        yield Check("folder", FOLDER_LIMIT_MS, folder)
        yield Check("block store", FOLDER_LIMIT_MS, blocks, ("folder",))
        yield Check("landing store", FOLDER_LIMIT_MS, landing, ("folder",))
        if is_configured(settings.landing):
            yield Check("landing log", FOLDER_LIMIT_MS, self._devices, ("folder", "database store"))
        yield Check("free space", FOLDER_LIMIT_MS, space, ("block store", "landing store"))
        yield Check(
            "store identity", FOLDER_LIMIT_MS, lambda: self._compare_owner(str(root), find_owner(root)), ("folder",)
        )

    def _devices(self) -> str:
        """Open the devices of the landing log as a process does, and write a page that has no other use."""
        settings = self._settings
        if self._store_id is None:
            raise NotTried(NOT_INITIALISED)
        with settings_named("landing.devices"), ExitStack() as stack:
            medium = open_devices(settings, stack, self._store_id)
            if medium is None:
                raise NotTried(NOT_INITIALISED)
            medium.probe()
            copies = settings.landing.copies
            paths = settings.landing.paths(settings.store.root)
            return f"devices: {len(paths)}, copies: {copies}, {medium.free_bytes()} bytes free"

    def _require_initialised(self, folder: Path) -> None:
        if not self.initialised and not folder.exists():
            raise NotTried(NOT_INITIALISED)

    def _free_space(self, blocks_bytes: int, landing_bytes: int) -> str:
        reserve_bytes = self._settings.gc.reserve_bytes
        free = f"{blocks_bytes} bytes free in the block store, {landing_bytes} in the landing store"
        if min(blocks_bytes, landing_bytes) < PUT_RESERVES * reserve_bytes:
            raise NoSpace(
                f"{free}, and PUTs are refused below {PUT_RESERVES * reserve_bytes}: {FREE_SPACE}, or add space",
                settings=("gc.reserve_bytes",),
            )
        return f"{free}, reserve {reserve_bytes}"

    def _local_log(self) -> Iterator[Check]:
        path = self._settings.store.root / "log.db"

        def look() -> str:
            with settings_named("store.root"):
                if self._settings.store.backend != "local":
                    try_folder(path.parent)
                found = look_at_log(path, self._settings.log.partitions)
            if found is None and self.initialised:
                return f"{path} does not exist; it is created when needed, and waiting objects are published again"
            if found is None:
                raise NotTried(NOT_INITIALISED)
            return found

        yield Check("message log", FOLDER_LIMIT_MS, look)

    # --- Ceph -------------------------------------------------------------------------------------
    def _ceph(self) -> Iterator[Check]:
        ceph, geometry = self._settings.ceph, self._settings.geometry.value()
        opened: list[RadosCluster] = []
        pools: dict[str, Pool] = {}

        def connect() -> str:
            with settings_named(*OF_CONNECTION):
                from nos_ec.adapters.rados.client.cluster import RadosCluster

                cluster = self._stack.enter_context(RadosCluster(rados_options(self._settings)))
                opened.append(cluster)
                fsid = (cluster.command("fsid") or {}).get("fsid", "?")
            return f"cluster {fsid} accepts {ceph.user}"

        def blocks() -> str:
            from nos_ec.adapters.rados.pool_checks import check_blocks_pool

            with settings_named("ceph.blocks_pool", "ceph.namespace", "geometry"):
                pool = opened[0].open_pool(ceph.blocks_pool, ceph.namespace)
                check_blocks_pool(opened[0], pool, geometry)
            pools["blocks"] = pool
            return f"pool {ceph.blocks_pool}, {geometry.k}+{geometry.m}, chunks of {geometry.chunk_size} bytes"

        def landing() -> str:
            from nos_ec.adapters.rados.pool_checks import check_landing_pool

            with settings_named("ceph.landing_pool", "ceph.namespace"):
                pool = opened[0].open_pool(ceph.landing_pool, ceph.namespace)
                check_landing_pool(opened[0], pool)
            pools["landing"] = pool
            return f"pool {ceph.landing_pool}, replicated"

        def landing_log() -> str:
            from nos_ec.adapters.rados.segment_log import LIMITS, RadosSegmentLog

            RadosSegmentLog.check_write_limits(opened[0])
            return f"OSDs accept objects and writes of {LIMITS.segment_bytes} bytes"

        def access(name: str, size_bytes: int) -> str:
            from nos_ec.adapters.rados.connection_check import try_access

            with settings_named("ceph.user", "ceph.keyring_file", f"ceph.{name}_pool"):
                return try_access(pools[name], ceph.namespace, size_bytes)

        def space() -> str:
            from nos_ec.adapters.rados.free_space import pool_room

            free = [max(0, pool_room(opened[0], name).size_bytes) for name in (ceph.blocks_pool, ceph.landing_pool)]
            with settings_named("ceph.blocks_pool", "ceph.landing_pool"):
                return self._free_space(*free)

        def clocks() -> str:
            from nos_ec.adapters.rados.connection_check import monitors_apart_s

            return f"monitors at most {monitors_apart_s(opened[0]):.3f} s apart; they do not report the time itself"

        def identity() -> str:
            from nos_ec.adapters.rados.store_mark import find_owner

            result = ""
            for name, pool in pools.items():
                where = f"pool {pool.name}" + (f", namespace {ceph.namespace}," if ceph.namespace else "")
                with settings_named(f"ceph.{name}_pool"):
                    result = self._compare_owner(where, find_owner(pool))
            return result

        command_ms = ceph.connect_timeout_ms + MARGIN_MS
        object_ms = 3 * ceph.op_timeout_ms + MARGIN_MS
        needs, both = ("Ceph",), ("Ceph blocks pool", "Ceph landing pool")
        yield Check("Ceph", 2 * command_ms, connect)
        yield Check("Ceph blocks pool", 3 * command_ms, blocks, needs)
        yield Check("Ceph landing pool", 2 * command_ms, landing, needs)
        yield Check("Ceph blocks access", object_ms, lambda: access("blocks", geometry.stripe_size), both[:1])
        yield Check("Ceph landing access", object_ms, lambda: access("landing", _PROBE_BYTES), both[1:])
        if self._settings.landing.mode == "log":
            yield Check("Ceph landing log", 2 * command_ms, landing_log, needs)
        yield Check("free space", 2 * command_ms, space, both)
        yield Check("Ceph clocks", command_ms, clocks, needs)
        yield Check("store identity", object_ms, identity, both)

    # --- Kafka ------------------------------------------------------------------------------------
    def _kafka(self) -> Iterator[Check]:
        settings = self._settings
        group = settings.consumer.group

        def topics() -> str:
            with settings_named(*OF_LOG):
                from nos_ec.adapters.kafka.connection_check import try_topics

                kafka = settings.kafka
                found = try_topics(
                    kafka_topic(settings), in_sync_min=kafka.in_sync_min, retention_ms=kafka.retention_ms
                )
                if found is None and self.initialised is False:
                    raise NotTried(f"topic {settings.kafka.topic} does not exist: {NOT_INITIALISED}")
                if found is None:
                    missing = f"topic {settings.kafka.topic} does not exist"
                    raise ConfigError(f"message log: {missing}; run `nos-ec init`, or correct its name")
            return found

        def rights() -> str:
            from nos_ec.adapters.kafka.connection_check import rights as rights_of

            with settings_named(*OF_LOG, "consumer.group"):
                return rights_of(kafka_topic(settings), group)

        def notified() -> str:
            from nos_ec.adapters.kafka.connection_check import try_notification_topics

            with settings_named(*OF_LOG):
                return try_notification_topics(kafka_topic(settings), settings.s3.topics)

        def lag() -> str:
            from nos_ec.adapters.kafka.message_log import KafkaMessageLog

            with settings_named(*OF_LOG, "consumer.group"):
                log = KafkaMessageLog(kafka_topic(settings))
                with closing(log.consumer(group=group, member="config-check")) as consumer:
                    return f"group {group}: {consumer.lag()} messages to go"

        limit_ms = 2 * settings.kafka.request_timeout_ms + MARGIN_MS
        yield Check("Kafka topics", limit_ms, topics)
        yield Check("Kafka rights", limit_ms, rights, ("Kafka topics",))
        yield Check("Kafka group", 2 * limit_ms, lag, ("Kafka topics",))
        if settings.s3.topics:
            yield Check("Kafka topics of notifications", limit_ms, notified, ("Kafka topics",))
