"""The sections: every setting with its default, its bounds and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field, PrivateAttr, SecretStr
from pydantic.fields import FieldInfo

from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, K_MAX, M_MAX, STRIPES_PER_BLOCK_MAX, Geometry
from nos_ec.core.packing.splits import SPLIT_BYTES
from nos_ec.settings.audit import AuditSettings
from nos_ec.settings.gc import GcSettings
from nos_ec.settings.landing import LandingSettings
from nos_ec.settings.s3 import S3Settings
from nos_ec.settings.scrub import ScrubSettings
from nos_ec.settings.secret_files import read_secret
from nos_ec.settings.section import DAY, HOUR, MINUTE, SECOND, Section
from nos_ec.settings.shards import ShardSettings
from nos_ec.settings.trash import TrashSettings
from nos_ec.settings.values import Count, Flag, NonEmptyPath, Size, Spread, Table

_GEOMETRY = Geometry()
REQUEST_TIMEOUT = "socket.timeout.ms"
"""The time limit of a request among the options of librdkafka."""
_URL_FILE = "store.metadata_url_file"


class StoreSettings(Section):
    """The places where the store keeps its data."""

    backend: Literal["local", "ceph"] = Field(
        default="local",
        description="Store of blocks and landing copies: local (folders in root) or ceph (two pools, see [ceph]).",
    )
    root: NonEmptyPath = Field(
        default=Path("var/nos_ec"),
        description="Folder of the embedded parts: local blocks and landing copies, the local message log and, unless"
        " metadata_url is set, the metadata database. A relative path in a file starts at the file's folder, so that"
        " cron and a shell find the same store. Must be on a local file system.",
    )
    metadata_url: SecretStr | None = Field(
        default=None,
        title="a database URL",
        description="SQLAlchemy URL of the metadata database, such as mysql+pymysql://user:password@host:3306/nos_ec."
        " If unset: metadata.db (SQLite) in root. The URL may contain a password, so prefer the environment."
        " ?ssl_ca=/path/ca.pem encrypts the connection, and refuses a server whose certificate is not for that host"
        " (&ssl_cert= and &ssl_key= set a client certificate).",
    )
    metadata_url_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File that contains the metadata URL, as an alternative to metadata_url: a credential of systemd,"
        " for example. Other users must not be able to read it. A relative path in a file starts at the file's folder.",
    )
    metadata_replica: Flag = Field(
        default=False,
        description="Allow reading from a read-only metadata server, such as a replica. Its data may be out of date: a"
        " new object may be missing, and an overwritten one may still have its old content. Set it only for a process"
        " that only reads and tolerates this. If false, a read-only server counts as unavailable.",
    )
    directory: str | None = Field(
        default=None,
        title="the name of a cell",
        description="Cell whose database holds the directory, which says in which cell a bucket is, and the access"
        " keys. Required if there are cells (CELLS.md), and never changed afterwards.",
    )
    count_usage: Flag = Field(
        default=False,
        description="Count the bytes and objects of buckets for which an operator asks for it (S3.md). Set it alike for"
        " gateways, library programs, producers, GC and the console; a program without it makes the counts wrong. If"
        " false, changes cost nothing more.",
    )
    journal_rows_max: Count = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Keep a journal of deletes, so that what was deleted since the last dump stays deleted when the"
        " metadata is rebuilt (OPERATIONS.md), and let this many of its rows wait in the database to be written into"
        " the store, about 300 bytes each: 4000000 holds an hour of 1000 deletes a second. When it is full, deletes"
        " continue without entries. Set it alike for gateways, library programs, GC and the console: what a program"
        " without it deletes may come back. 0: no journal, and deletes cost nothing more.",
    )
    lease_ttl_ms: Count = Field(
        default=30 * SECOND,
        ge=SECOND,
        le=LEASE_MS_MAX,
        description="How long the lease of a process lasts without renewal, in milliseconds. It determines how soon"
        " the others take over from a killed producer and recover the blocks of a killed consumer, GC or large PUT,"
        " and how long a process may stall before it is fenced.",
    )

    @property
    def has_own_url(self) -> bool:
        """Whether a setting names the metadata database, instead of the default in root."""
        return self.metadata_url is not None or self.metadata_url_file is not None

    @property
    def url_setting(self) -> str:
        """The dotted name of the setting for the metadata database."""
        return "store.metadata_url" if self.metadata_url_file is None else _URL_FILE

    def url(self) -> str:
        """Return the metadata URL. It includes the password, so never log it. Raises ConfigError if its file cannot be
        read, or can be read by every user."""
        if self.metadata_url is not None:
            return self.metadata_url.get_secret_value()
        if self.metadata_url_file is not None:
            advice = "write the URL with its password into it, readable only for the user of this process"
            return read_secret(self.metadata_url_file, _URL_FILE, advice)
        return f"sqlite:///{quote(str(self.root.absolute() / 'metadata.db'))}"


class CephSettings(Section):
    """The Ceph cluster of `store.backend = "ceph"` (CEPH.md). Each kind of process can have its own user: set user and
    keyring_file in its environment."""

    conf_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="The cluster's ceph.conf; only `mon_host` is required in it. A relative path in a file starts at"
        " the file's folder.",
    )
    user: str = Field(
        default="client.nos-ec", min_length=1, max_length=200, description="Full name of the user, including `client.`."
    )
    keyring_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="Keyring with the user's key. If unset, Ceph searches the places that ceph.conf or its own"
        " defaults name. A relative path in a file starts at the file's folder.",
    )
    admin_keyring_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="Keyring of client.admin, only for a development cluster: `nos-ec demo` uses it to mark OSDs down,"
        " to show that reads continue, and to make OSDs report at once how much they store; `nos-ec bench` uses it to"
        " read the OSDs' counters. No daemon uses it.",
    )
    blocks_pool: str = Field(
        default="nos-ec-blocks", min_length=1, max_length=200, description="Erasure-coded pool of the blocks."
    )
    landing_pool: str = Field(
        default="nos-ec-landing", min_length=1, max_length=200, description="Replicated pool of the landing copies."
    )
    namespace: str = Field(
        default="",
        max_length=200,
        title="a string of at most 200 characters",
        description="RADOS namespace in both pools. It separates several stores in the same pools.",
    )
    op_timeout_ms: Count = Field(
        default=10 * SECOND,
        ge=SECOND,
        le=HOUR,
        description="Time limit of one read or write, in milliseconds, rounded up to whole seconds. After that, the"
        " operation counts as failed and is retried. Connecting, and each command to the monitors, may take half as"
        " long again.",
    )

    @property
    def connect_timeout_ms(self) -> int:
        """The time limit for connecting, and for each command to the monitors, in milliseconds."""
        return self.op_timeout_ms * 3 // 2


class GeometrySettings(Section):
    """Shape of stripes and blocks. Fixed when the store is initialised; a different geometry is refused later."""

    k: Count = Field(default=_GEOMETRY.k, ge=1, le=K_MAX, description="Data chunks per stripe.")
    m: Count = Field(
        default=_GEOMETRY.m, ge=1, le=M_MAX, description="Coding chunks per stripe: how many shards may be lost."
    )
    chunk_size: Size = Field(
        default=_GEOMETRY.chunk_size,
        ge=CHUNK_SIZE_MIN,
        le=CHUNK_SIZE_MAX,
        description="Bytes per chunk (Ceph: stripe_unit), a multiple of 4 KiB. Objects up to this size are read from"
        " one shard, unless it pays to split them (consumer.split_bytes).",
    )
    stripes_per_block: Count = Field(
        default=_GEOMETRY.stripes_per_block, ge=1, le=STRIPES_PER_BLOCK_MAX, description="Stripes in a full block."
    )
    stripes_per_group_max: Count = Field(
        default=_GEOMETRY.stripes_per_group_max,
        ge=1,
        le=STRIPES_PER_BLOCK_MAX,
        description="Maximum number of stripes that are written, and kept in memory, at once; at most"
        " stripes_per_block. Larger objects get blocks of their own. A group of more stripes is written in several"
        " steps.",
    )

    def value(self) -> Geometry:
        """Return the geometry. Raises ConfigError if the fields are inconsistent."""
        return Geometry(self.k, self.m, self.chunk_size, self.stripes_per_block, self.stripes_per_group_max)


class PutSettings(Section):
    """Storing objects, and how long they stay in the landing store."""

    min_age_ms: Count = Field(
        default=0,
        ge=0,
        le=30 * DAY,
        description="Minimum time an object stays in the landing store before it is packed, in milliseconds. 0 packs"
        " objects at once and keeps the landing store smallest. If many objects are soon deleted or overwritten, an"
        " hour (3600000) avoids packing them at all. The last objects of a nearly empty landing segment are packed"
        " sooner. Safety does not depend on this setting.",
    )
    reservation_ms: Count = Field(
        default=HOUR,
        ge=SECOND,
        le=7 * DAY,
        description="How long a PUT may take, in milliseconds, before its landing copy counts as abandoned. A PUT that"
        " takes longer fails and can be retried.",
    )


class GetSettings(Section):
    """Reading objects."""

    location_cache_objects: Count = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Maximum number of objects whose location a process caches, so that reading them again needs no"
        " database query (some 600 bytes each). 0: no cache. With a cache, an overwrite or delete by another process"
        " is seen up to 10 s late. Meant for a single gateway, or for objects that are never overwritten.",
    )


class ProducerSettings(Section):
    """Publishing objects that wait to be packed."""

    republish_ms: Count = Field(
        default=10 * MINUTE,
        ge=SECOND,
        le=30 * DAY,
        description="Time in milliseconds after which an object that was published but is still not packed becomes due"
        " again. It is published again if the consumers have passed its event, or if the log has lost it. Keep it"
        " above consumer.linger_ms, or healthy objects are published twice.",
    )
    shown_buckets: str = Field(
        default="",
        title="buckets, separated by commas",
        max_length=4000,
        description="Buckets that always have metrics of their usage while they are metered (S3.md), besides the 100"
        " that change most. Each is two series in Prometheus.",
    )

    @property
    def shown(self) -> frozenset[str]:
        """The buckets that always have metrics."""
        return frozenset(name for part in self.shown_buckets.split(",") if (name := part.strip()))


class ConsumerSettings(Section):
    """Packing published objects into stripes."""

    group: str = Field(default="packer", min_length=1, max_length=200, description="Consumer group of the message log.")
    policy: Literal["best", "nos"] = Field(
        default="best",
        description="Packing policy: best (best fit, seeded with the oldest object) or nos (the published merge list,"
        " for comparison).",
    )
    window_objects: Count = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Number of waiting objects that the packer chooses from. 1000 comes near the proven bound. Large"
        " objects count by size: the window has at most 512 MiB with the default geometry, and three quarters of"
        " merge_list_bytes_max.",
    )
    split_bytes: Size = Field(
        default=SPLIT_BYTES,
        ge=0,
        le=CHUNK_SIZE_MAX,
        description="How many bytes of a chunk may be left empty to save one shard read. A larger gap is filled by an"
        " object that continues in the next chunk, if sizes leave many such gaps. 0: split wherever that fills a"
        " chunk; a chunk or more: never split. `nos-ec simulate packing --split-bytes` shows the effect of several"
        " values.",
    )
    linger_ms: Count = Field(
        default=MINUTE,
        ge=0,
        le=DAY,
        description="Longest time an object waits for others to share its stripe, in milliseconds. After that, the"
        " stripe is written even if it is not full.",
    )
    linger_max_ms: Count = Field(
        default=HOUR,
        ge=0,
        le=DAY,
        description="Longest time an object waits, in milliseconds, while too few objects wait to fill half of a"
        " stripe; it then replaces linger_ms. Meanwhile the objects are safe in the landing store. A value"
        " below linger_ms counts as linger_ms.",
    )
    lanes: Count = Field(
        default=1, ge=1, le=64, description="Stripe groups that are written at the same time, each into its own block."
    )
    merge_list_bytes_max: Size = Field(
        default=1 << 30,
        ge=1 << 20,
        le=1 << 40,
        description="Maximum total size of the objects waiting to be packed, in bytes. Above it, partitions are"
        " paused. The objects themselves stay in the landing store. Use at least one stripe group.",
    )

    @property
    def read_threads(self) -> int:
        """How many landing copies are read at the same time: enough to keep the lanes busy. 16 for 6 lanes are what a
        pool of 12 OSDs needs (docs/CAPACITY.md)."""
        return max(8, 4 + 2 * self.lanes)


class ReaperSettings(Section):
    """Deleting landing copies of packed objects, and recovery."""

    landing_grace_ms: Count = Field(
        default=10 * MINUTE,
        ge=0,
        le=30 * DAY,
        description="How long a landing copy is kept after its object is packed, in milliseconds. Before the copy is"
        " deleted, the packed bytes are always read back and verified.",
    )


class LogSettings(Section):
    """The message log between producers and consumers."""

    backend: Literal["local", "kafka"] = Field(
        default="local", description="local (a file in store.root) or kafka (a topic, see [kafka])."
    )
    partitions: Count = Field(
        default=8,
        ge=1,
        le=1024,
        description="Partitions; they limit how many consumers share the work. Fixed when the store is initialised.",
    )
    spread: Spread = Field(
        default="auto",
        title='"auto" or a whole number, 1 to 1024',
        description="Number of partitions for the events of one bucket, and so of consumers that can pack it at the"
        " same time; at most `partitions`. With 1, the objects of a bucket share stripes. auto: 1, but all partitions"
        " while the bucket has most of the backlog, and more of it than one consumer takes at a time (4 x"
        " consumer.window_objects). To change it, restart the producers; waiting events stay where they are.",
    )
    spread_buckets: Annotated[dict[str, Spread], Table] = Field(
        default_factory=dict,
        title='a table of buckets such as {"photos" = 12, "mail" = "auto"} (JSON in the environment)',
        description="`spread` for individual buckets.",
    )
    session_ms: Count = Field(
        default=10 * SECOND,
        ge=100,
        le=HOUR,
        description="Milliseconds after which a consumer whose process died loses its partitions to the others. On the"
        " embedded log, this also holds for a consumer that does not poll; on Kafka, such a consumer loses them after"
        " five minutes.",
    )


class KafkaSettings(Section):
    """The topic of `log.backend = "kafka"` (KAFKA.md)."""

    servers: str | None = Field(
        default=None,
        max_length=4000,
        title="host:port of one or more brokers, separated by commas",
        description="Brokers to connect to first; the others are found through them.",
    )
    topic: str = Field(default="nos-ec", min_length=1, max_length=200, description="Topic of the pack requests.")
    replication: Count = Field(
        default=3, ge=1, le=100, description="Replicas of both topics, used when `nos-ec init` creates them."
    )
    in_sync_min: Count = Field(
        default=2,
        ge=1,
        le=100,
        description="Number of replicas that must have a message before it counts as published. `nos-ec init` creates"
        " the topics with this value, and refuses existing topics with a lower one.",
    )
    retention_ms: Count = Field(
        default=7 * DAY,
        ge=DAY,
        le=3650 * DAY,
        description="How long a pack request is kept, in milliseconds. `nos-ec init` creates the topic with this"
        " value, and refuses an existing topic with a lower one. Keep it above the longest planned outage of all"
        " consumers.",
    )
    instance: str | None = Field(
        default=None,
        max_length=200,
        title="a string of 1 to 200 characters",
        description="Static membership: a unique name for one consumer, which it keeps across restarts. Set it in the"
        " environment of each consumer. If unset, every restart of a consumer makes the group rebalance.",
    )
    options: Annotated[dict[str, str | int | bool], Table] = Field(
        default_factory=dict,
        title='a table such as {"security.protocol" = "SASL_SSL"} (JSON in the environment)',
        description="More librdkafka settings under their own names: TLS, SASL, tuning. Secrets belong in `secrets`."
        " socket.timeout.ms (30000) is the time limit of a broker request, and of publishing.",
    )
    secrets: Annotated[dict[str, SecretStr], Table] = Field(
        default_factory=dict,
        title='a table such as {"sasl.password" = "..."} (JSON in the environment)',
        description="librdkafka settings that are secret; they are never shown. Prefer the environment.",
    )

    @property
    def request_timeout_ms(self) -> int:
        """The time limit of a broker request, and of publishing, in milliseconds. Raises ValueError for an option that
        is not a number, which `checks` refuses."""
        return int(self.options.get(REQUEST_TIMEOUT, 30 * SECOND))

    def all_options(self) -> dict[str, str | int | bool]:
        """Return options and secrets together. They include passwords, so never log them."""
        return self.options | {key: value.get_secret_value() for key, value in self.secrets.items()}


class ApiSettings(Section):
    """The read-only admin API, `nos-ec api` (API.md)."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=200,
        description="Address that the API listens on. It serves plain HTTP: put a TLS proxy in front of it before you"
        " give other machines access.",
    )
    port: Count = Field(default=9480, ge=1, le=65_535, description="TCP port that the API listens on.")
    token: SecretStr | None = Field(
        default=None,
        title="a string of at least 16 printable characters",
        description="Bearer token that every request must send. Prefer NOS_EC_API__TOKEN in the environment, or"
        " token_file. Without either, the API does not start unless anonymous is true.",
    )
    token_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File that contains the token, as an alternative to token. Other users must not be able to read"
        " it. A relative path in a file starts at the file's folder.",
    )
    anonymous: Flag = Field(
        default=False,
        description="Allow every user of this machine to send requests without a token. Works only with a loopback"
        " host, and only for requests to localhost or a loopback address; meant for trying the API.",
    )


class ConsoleSettings(Section):
    """The pages that show a store in a browser, `nos-ec console` (CONSOLE.md)."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=200,
        description="Address that the console listens on. It serves plain HTTP: put a TLS proxy in front of it before"
        " you give other machines access.",
    )
    port: Count = Field(default=9490, ge=1, le=65_535, description="TCP port that the console listens on.")
    token_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File that contains the token with which operators log in. Other users must not be able to read it."
        " A new token ends the sessions of those who used the old one. A relative path in a file starts at the file's"
        " folder.",
    )
    operators_file: NonEmptyPath | None = Field(
        default=None,
        title="a path",
        description="File with a line NAME:TOKEN for each operator who logs in with a token of their own, in 4 KiB at"
        " most. Other users must not be able to read it. A relative path in a file starts at the file's folder.",
    )
    changes: bool = Field(
        default=False,
        description="Whether operators of operators_file may pause, resume and limit GC and bring objects back from the"
        " trash. Needs an audit trail. Everyone else can only look.",
    )
    hosts: str = Field(
        default="",
        max_length=4000,
        title="names such as console.example.net, separated by commas",
        description="Names of the TLS proxies in front of the console, as browsers know them. A request under any other"
        " name is refused, unless it names localhost or a loopback address.",
    )
    prometheus_url: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        title="a URL such as http://127.0.0.1:9090",
        description="The Prometheus that scrapes the daemons of the store. The console then shows rates, durations and"
        " errors of all processes, and the alerts of Prometheus. It sends no password.",
    )


class MonitoringSettings(Section):
    """Monitoring the daemons: /livez, /readyz and /metrics of each, on its own port. The API has its own section."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=200,
        description="Address that the endpoints listen on. They need no password and cannot change anything; expose"
        " them only to a network you trust.",
    )
    port: Count = Field(
        default=0,
        ge=0,
        le=65_535,
        description="TCP port of the endpoint of a producer, a consumer, gc run --loop or s3 serve. 0: no endpoint."
        " Runs from cron never have one. Each daemon of a host needs a port of its own, so set it in the environment of"
        " each (the systemd units do).",
    )


class LoggingSettings(Section):
    """Logs of the daemons, which they write to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest severity that is logged."
    )
    format: Literal["console", "json"] = Field(
        default="console", description="console for people, json (one object per line) for programs."
    )


class Settings(Section):
    """All sections. Every setting has a default, so an empty file is valid.

    A file with tables `[cells.NAME]` describes a store of several cells: `cells` has the settings of each, and the
    sections are only what the cells have in common (CELLS.md).
    """

    store: StoreSettings = StoreSettings()
    ceph: CephSettings = CephSettings()
    geometry: GeometrySettings = GeometrySettings()
    landing: LandingSettings = LandingSettings()
    put: PutSettings = PutSettings()
    get: GetSettings = GetSettings()
    producer: ProducerSettings = ProducerSettings()
    consumer: ConsumerSettings = ConsumerSettings()
    reaper: ReaperSettings = ReaperSettings()
    gc: GcSettings = GcSettings()
    trash: TrashSettings = TrashSettings()
    shards: ShardSettings = ShardSettings()
    scrub: ScrubSettings = ScrubSettings()
    audit: AuditSettings = AuditSettings()
    log: LogSettings = LogSettings()
    kafka: KafkaSettings = KafkaSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    api: ApiSettings = ApiSettings()
    console: ConsoleSettings = ConsoleSettings()
    s3: S3Settings = S3Settings()
    logging: LoggingSettings = LoggingSettings()

    _cells: dict[str, Cell] = PrivateAttr(default_factory=dict)
    _cell: str | None = PrivateAttr(default=None)
    _whole: _Whole | None = PrivateAttr(default=None)

    @property
    def cells(self) -> Mapping[str, Cell]:
        """The cells of the store by name, in the order of the file. Empty if the store is not divided into cells, and
        in the settings of one cell."""
        return self._cells

    @property
    def cell(self) -> str | None:
        """The name of the cell that these settings describe; None if the store is not divided into cells."""
        return self._cell

    @property
    def whole(self) -> Settings:
        """The settings of the whole store, if these are those of one of its cells; else these."""
        return self if self._whole is None else self._whole.settings

    def of_cell(self, name: str) -> Settings:
        """Return the settings of one cell, which describe it like a store of its own. Raises ConfigError."""
        if (cell := self._cells.get(name)) is not None:
            return cell.settings
        if not self._cells:
            raise ConfigError(f"there is no cell {name!r}, because the settings have no [cells.{name}] (docs/CELLS.md)")
        raise ConfigError(f"there is no cell {name!r}; the settings have the cells {', '.join(self._cells)}")

    def with_cells(self, cells: Mapping[str, Cell]) -> Settings:
        """Return these settings as those of a store with these cells."""
        whole = self.model_copy()
        whole._cells = dict(cells)
        for name, cell in cells.items():
            cell.settings._cell, cell.settings._whole = name, _Whole(whole)
        return whole


@dataclass(frozen=True, slots=True)
class _Whole:
    """The settings of the store of a cell. All are equal: comparing the settings of a cell must not compare the store,
    which has them."""

    settings: Settings = field(compare=False)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a store: its own settings, and its share of new buckets relative to the other cells (0: it gets
    none)."""

    settings: Settings
    weight: int


def fields_of(section: str) -> dict[str, FieldInfo]:
    """Return the settings of one section, by key."""
    model = Settings.model_fields[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model.model_fields
