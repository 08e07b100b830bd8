"""Creates and opens the adapters that the settings name. It knows no use cases; the sides combine adapters and engine.

The adapters for Ceph and Kafka are imported only when they are needed: their client libraries may be missing on a
machine that runs the embedded store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.blocks.shard_rebuild import LocalShards
from nos_ec.adapters.local.files.durable import make_folder
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.adapters.local.message_log import LocalMessageLog
from nos_ec.adapters.local.notification_files import NotificationFiles
from nos_ec.adapters.local.placement import AnyPlace, NoGroups
from nos_ec.adapters.local.store_mark import OWNER_FILE, claim_root, find_owner, require_root_of
from nos_ec.composition.landing import open_devices
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.ids import BlockId
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.message_log import DeadLetter, GroupProgress, MessageConsumer, MessagePublisher, NotificationPublisher
from nos_ec.ports.placement import Placement
from nos_ec.ports.placement_groups import PlacementGroups
from nos_ec.ports.segment_medium import SegmentMedium
from nos_ec.ports.shard_store import ShardStore
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.adapters.kafka.cluster import KafkaTopic
    from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
    from nos_ec.adapters.rados.client.pool import Pool


_ANY_STORE = bytes(16)
POLL_INTERVAL_MS_MAX = 300_000
"""The time after which a consumer that hangs loses its partitions, in milliseconds: well above the slowest write of a
group, because a member that gives up partitions first finishes the groups in flight."""
OF_CONNECTION = ("ceph.conf_file", "ceph.user", "ceph.keyring_file")
OF_METADATA = ("ceph.namespace", "store.metadata_url")
OF_LOG = ("kafka.servers", "kafka.topic", "log.partitions", "kafka.options")


@contextmanager
def settings_named(*names: str) -> Iterator[None]:
    """Add the names of the settings to check to errors raised in the block, because adapters do not know the settings.
    The other attributes of the error, and settings that it already names, are kept."""
    try:
        yield
    except (ConfigError, Transient) as error:
        raise type(error)(
            f"{error} [settings: {', '.join(names)}]",
            key=error.key,
            block_id=error.block_id,
            landing_id=error.landing_id,
            settings=tuple(dict.fromkeys((*names, *error.settings))),
        ) from error


@dataclass(frozen=True, slots=True)
class Log:
    """An open message log: factories for its clients. `consumer` takes the name of the member and its static instance
    ("" for none), and returns a member of the configured group. `progress` takes a name for operators, and returns the
    GroupProgress of that group."""

    publisher: Callable[[], MessagePublisher]
    consumer: Callable[[str, str], MessageConsumer]
    progress: Callable[[str], GroupProgress]
    notifications: Callable[[], NotificationPublisher]


@dataclass(frozen=True, slots=True)
class Objects:
    """The open block store and landing store, the medium of the landing log (None without one), the placement of
    blocks, and all placement groups. `shards` rebuilds shards; None if the store does that itself (Ceph)."""

    blocks: BlockStore
    shards: ShardStore | None
    landing: LandingStore
    medium: SegmentMedium | None
    placement: Placement
    groups: PlacementGroups


def make_root(settings: Settings) -> None:
    """Create the folder for the embedded parts, if there are any. Raises ConfigError."""
    store = settings.store
    if store.backend != "local" and settings.log.backend != "local" and store.has_own_url:
        return
    try:
        make_folder(store.root)
    except OSError as error:
        message = f"store.root {store.root} cannot be created: {error.strerror}"
        raise ConfigError(message, settings=("store.root",)) from error


# --- blocks and landing copies --------------------------------------------------------------------
def initialise_objects(settings: Settings, new_shards: Collection[int] = ()) -> None:
    """Create the block store and the landing store, or check the existing ones. new_shards: shards of the embedded
    block store that are lost for good and must be created again. Raises ConfigError, NoSpace, Transient."""
    geometry = settings.geometry.value()
    if settings.store.backend == "local":
        root = settings.store.root
        LocalBlockStore.initialise(root / "blocks", geometry, new_shards)
        LocalLandingStore.initialise(root / "landing")
        return
    if new_shards:
        raise ConfigError("--new-shard works only with the embedded block store; on Ceph, replace the OSD instead")
    from nos_ec.adapters.rados.block_store import RadosBlockStore
    from nos_ec.adapters.rados.client.cluster import RadosCluster
    from nos_ec.adapters.rados.landing_store import RadosLandingStore

    ceph = settings.ceph
    with ExitStack() as stack:
        with settings_named(*OF_CONNECTION):
            cluster = stack.enter_context(RadosCluster(rados_options(settings)))
        with settings_named("ceph.blocks_pool", "ceph.namespace", "geometry"):
            RadosBlockStore.initialise(cluster, ceph.blocks_pool, geometry, ceph.namespace)
        with settings_named("ceph.landing_pool", "ceph.namespace"):
            RadosLandingStore.initialise(cluster, ceph.landing_pool, ceph.namespace)


def mark_objects(settings: Settings, store_id: str) -> None:
    """Record durably in the block store and the landing store that they belong to the metadata with this id. Raises
    ConfigError when they belong to other metadata, NoSpace, Transient."""
    if settings.store.backend == "local":
        claim_root(settings.store.root, store_id)
        return
    from nos_ec.adapters.rados.client.cluster import RadosCluster
    from nos_ec.adapters.rados.store_mark import claim_for

    with RadosCluster(rados_options(settings)) as cluster:
        for_each_pool(settings, cluster, lambda pool: claim_for(pool, store_id))


def require_marks(settings: Settings, store_id: str) -> None:
    """Raise ConfigError unless the block store and the landing store exist and belong to the metadata with this id.
    With the metadata of another store, all data would look lost and be treated as lost. Raises Transient."""
    if settings.store.backend == "local":
        require_root_of(settings.store.root, store_id)
        return
    from nos_ec.adapters.rados.client.cluster import RadosCluster

    with settings_named(*OF_CONNECTION):
        cluster = RadosCluster(rados_options(settings))
    with cluster:
        _require_owner(settings, cluster, store_id)


def find_mark(settings: Settings) -> str:
    """Return the id of the metadata that the block store and the landing store belong to. Raises ConfigError,
    Transient."""
    if settings.store.backend == "local":
        found = find_owner(settings.store.root)
        if found is None:
            root = settings.store.root
            raise ConfigError(
                f"{root} is not marked as a store: put its file {OWNER_FILE} back, or correct store.root",
                settings=("store.root",),
            )
        return found
    from nos_ec.adapters.rados.client.cluster import RadosCluster
    from nos_ec.adapters.rados.store_mark import owner_of

    ceph = settings.ceph
    with settings_named(*OF_CONNECTION):
        cluster = RadosCluster(rados_options(settings))
    with cluster, settings_named("ceph.blocks_pool"), cluster.open_pool(ceph.blocks_pool, ceph.namespace) as pool:
        return owner_of(pool)


def _require_owner(settings: Settings, cluster: RadosCluster, store_id: str) -> None:
    from nos_ec.adapters.rados.store_mark import require_owner

    for_each_pool(settings, cluster, lambda pool: require_owner(pool, store_id))


def for_each_pool(settings: Settings, cluster: RadosCluster, act: Callable[[Pool], None]) -> None:
    """Open the pool of blocks, then the pool of landing copies, and call `act` with each. Errors name the setting of
    the pool."""
    ceph = settings.ceph
    for setting, pool_name in (("ceph.blocks_pool", ceph.blocks_pool), ("ceph.landing_pool", ceph.landing_pool)):
        with settings_named(setting, *OF_METADATA), cluster.open_pool(pool_name, ceph.namespace) as pool:
            act(pool)


def open_objects(
    settings: Settings, stack: ExitStack, new_block_id: Callable[[], BlockId], store_id: str | None
) -> Objects:
    """Open the block store and the landing store; `stack` closes them. `new_block_id` returns a random id. `store_id`
    is the id of the metadata that they must belong to; None for any. Raises ConfigError, Transient."""
    geometry = settings.geometry.value()
    if settings.store.backend == "local":
        root = settings.store.root
        if store_id is not None:
            require_root_of(root, store_id)
        return Objects(
            stack.enter_context(closing(LocalBlockStore(root / "blocks", geometry))),
            LocalShards(root / "blocks", geometry),
            stack.enter_context(closing(LocalLandingStore(root / "landing"))),
            None if store_id is None else open_devices(settings, stack, store_id),
            AnyPlace(new_block_id),
            NoGroups(),
        )
    from nos_ec.adapters.rados.block_store import RadosBlockStore
    from nos_ec.adapters.rados.client.cluster import RadosCluster
    from nos_ec.adapters.rados.landing_store import RadosLandingStore
    from nos_ec.adapters.rados.placement.group_states import GroupStates
    from nos_ec.adapters.rados.placement.pool_placement import RadosPlacement
    from nos_ec.adapters.rados.segment_log import RadosSegmentLog

    ceph = settings.ceph
    with settings_named(*OF_CONNECTION):
        cluster = stack.enter_context(RadosCluster(rados_options(settings)))
    with settings_named("ceph.blocks_pool", "ceph.namespace", "geometry"):
        blocks = stack.enter_context(closing(RadosBlockStore(cluster, ceph.blocks_pool, geometry, ceph.namespace)))
    with settings_named("ceph.landing_pool", "ceph.namespace"):
        landing = stack.enter_context(closing(RadosLandingStore(cluster, ceph.landing_pool, ceph.namespace)))
        raw_id = _ANY_STORE if store_id is None else bytes.fromhex(store_id)
        medium = stack.enter_context(closing(RadosSegmentLog(cluster, ceph.landing_pool, raw_id, ceph.namespace)))
    if settings.landing.mode == "log":
        with settings_named("landing.mode"):
            medium.check_write_limits(cluster)
    if store_id is not None:
        _require_owner(settings, cluster, store_id)
    placement = stack.enter_context(closing(RadosPlacement(cluster, ceph.blocks_pool, ceph.namespace, new_block_id)))
    pools = {"blocks": ceph.blocks_pool, "landing": ceph.landing_pool}
    groups = stack.enter_context(closing(GroupStates(cluster, pools)))
    return Objects(blocks, None, landing, medium, placement, groups)


def remove_objects(settings: Settings) -> None:
    """Remove the namespace of a scratch store, with all its objects, from both pools. Raises ConfigError, Transient."""
    from nos_ec.adapters.rados.client.cluster import RadosCluster
    from nos_ec.adapters.rados.client.removal import remove_namespace

    ceph = settings.ceph
    with RadosCluster(rados_options(settings)) as cluster:
        for pool in (ceph.blocks_pool, ceph.landing_pool):
            remove_namespace(cluster, pool, ceph.namespace)


def admin_cluster(settings: Settings) -> RadosCluster:
    """Connect to a development cluster as client.admin. Raises ConfigError, Transient."""
    from nos_ec.adapters.rados.client.cluster import RadosCluster

    keyring_file = settings.ceph.admin_keyring_file
    return RadosCluster(replace(rados_options(settings), user="client.admin", keyring_file=keyring_file))


def rados_options(settings: Settings) -> RadosOptions:
    """Return how to reach the Ceph cluster. Raises ConfigError."""
    from nos_ec.adapters.rados.client.cluster import RadosOptions

    ceph = settings.ceph
    if ceph.conf_file is None:
        raise ConfigError('ceph.conf_file is not set, but store.backend is "ceph"', settings=("ceph.conf_file",))
    return RadosOptions(ceph.conf_file, ceph.user, ceph.keyring_file, ceph.op_timeout_ms, ceph.connect_timeout_ms)


# --- the message log ------------------------------------------------------------------------------
def initialise_log(settings: Settings) -> None:
    """Create the message log, or check the existing one. Raises ConfigError, Transient."""
    if settings.log.backend == "local":
        LocalMessageLog.initialise(settings.store.root / "log.db", settings.log.partitions)
        return
    from nos_ec.adapters.kafka.message_log import KafkaMessageLog

    kafka = settings.kafka
    with settings_named(*OF_LOG):
        KafkaMessageLog.initialise(
            kafka_topic(settings),
            replication=kafka.replication,
            in_sync_min=kafka.in_sync_min,
            retention_ms=kafka.retention_ms,
        )


def open_log(settings: Settings, clock: Clock) -> Log:
    """Open the message log. A lost local log is created again, because it holds only hints. Raises ConfigError,
    Transient."""
    group, session_ms = settings.consumer.group, settings.log.session_ms
    if settings.log.backend == "local":
        local = LocalMessageLog.initialise(settings.store.root / "log.db", settings.log.partitions)
        return Log(
            lambda: local.publisher(clock),
            lambda member, _: local.consumer(group=group, member=member, clock=clock, session_ms=session_ms),
            lambda _: local.progress(group=group, clock=clock),
            lambda: NotificationFiles(settings.store.root / "notifications"),
        )
    from nos_ec.adapters.kafka.message_log import KafkaMessageLog

    with settings_named(*OF_LOG):
        kafka = KafkaMessageLog(kafka_topic(settings))
    poll_interval_ms_max = max(POLL_INTERVAL_MS_MAX, session_ms)
    return Log(
        kafka.publisher,
        lambda member, instance: kafka.consumer(
            group=group,
            member=member,
            session_ms=session_ms,
            poll_interval_ms_max=poll_interval_ms_max,
            instance=instance,
        ),
        lambda name: kafka.progress(group=group, name=name),
        kafka.publisher,
    )


def read_dead_letters(settings: Settings, count_max: int) -> list[DeadLetter]:
    """Return the newest messages that consumers could not process, in order of arrival. Changes nothing. Raises
    ConfigError, Corrupt, Transient."""
    if settings.log.backend == "local":
        with settings_named("store.root"):
            return LocalMessageLog(settings.store.root / "log.db").dead_letters(count_max)
    from nos_ec.adapters.kafka import dead_letter_reader

    with settings_named(*OF_LOG):
        return dead_letter_reader.read_dead_letters(kafka_topic(settings), count_max)


def remove_log(settings: Settings) -> None:
    """Remove the topics of a scratch store. Raises ConfigError, Transient."""
    from nos_ec.adapters.kafka.message_log import KafkaMessageLog

    KafkaMessageLog.remove(kafka_topic(settings))


def kafka_topic(settings: Settings) -> KafkaTopic:
    """Return the topic, and how to reach its cluster. Raises ConfigError."""
    from nos_ec.adapters.kafka.cluster import KafkaTopic

    kafka = settings.kafka
    return KafkaTopic(
        servers=kafka.servers or "",
        name=kafka.topic,
        partitions=settings.log.partitions,
        request_timeout_ms=kafka.request_timeout_ms,
        options=kafka.all_options(),
    )
