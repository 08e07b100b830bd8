"""The sections: every setting with its default, its bounds and its meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.geometry import Geometry

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_SIZE_PATTERN = re.compile(r"\s*(\d{1,18})\s*([A-Za-z]*)\s*")


def _number(value: object) -> object:
    """TOML's `true` is no 1."""
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    return value


def size_of(value: object) -> object:
    """Bytes: a number, or a string such as "512MiB"."""
    if not isinstance(value, str):
        return _number(value)
    match = _SIZE_PATTERN.fullmatch(value)
    if match is None or match[2] not in UNITS:
        raise ValueError("no size")
    return int(match[1]) * UNITS[match[2]]


def _path(value: object) -> object:
    """An empty path would be the current folder, which nobody means."""
    if value == "":
        raise ValueError("no path")
    return value


def _flag(value: object) -> object:
    """A truth value, or its name in the environment."""
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise ValueError("no truth value")
    return value


def _table(value: object) -> object:
    """A TOML table, or JSON in the environment; `a.b = 1` without quotes, which TOML nests, means the key "a.b"."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError("no table")
    return dict(_flattened("", value))


def _flattened(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, BeforeValidator(_number)]
Ratio = Annotated[float, BeforeValidator(_number)]
Size = Annotated[int, BeforeValidator(size_of)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class StoreSettings(_Section):
    """Where the store is."""

    backend: Literal["local", "ceph"] = Field(
        default="local",
        description="Where blocks and landing copies are: local (folders in root) or ceph (two pools, see [ceph]).",
    )
    root: Annotated[Path, BeforeValidator(_path)] = Field(
        default=Path("var/nos_ec"),
        description="Folder of what is embedded: local blocks and landing copies, the local message log and, unless"
        " metadata_url says otherwise, metadata. A relative path in a file starts at the file's folder, so that cron"
        " and a shell find the same store. Must be on a local file system.",
    )
    metadata_url: SecretStr | None = Field(
        default=None,
        title="a database URL",
        description="SQLAlchemy URL of the metadata database, such as mysql+pymysql://user:password@host:3306/nos_ec."
        " Left out: metadata.db (SQLite) in root. It may hold a password: prefer the environment. ?ssl_ca=/path/ca.pem"
        " encrypts, and refuses a server that is not that host (&ssl_cert= and &ssl_key= for a client's certificate).",
    )
    metadata_replica: Flag = Field(
        default=False,
        description="Read from a metadata server that is read-only, such as a replica. What is read there may be old:"
        " an object stored just now may be missing, an overwritten one may read as before. For a process that only"
        " reads and may be late. false: a read-only server counts as one that does not answer.",
    )

    def url(self) -> str:
        """The metadata URL, password and all: never log it."""
        if self.metadata_url is not None:
            return self.metadata_url.get_secret_value()
        return f"sqlite:///{quote(str(self.root.absolute() / 'metadata.db'))}"


class CephSettings(_Section):
    """The Ceph cluster of `store.backend = "ceph"` (CEPH.md). Each kind of process can have a user of its own: set user
    and keyring_file in the environment of each."""

    conf_file: Annotated[Path, BeforeValidator(_path)] | None = Field(
        default=None,
        title="a path",
        description="The cluster's ceph.conf; `mon_host` is all that is needed in it. A relative path in a file starts"
        " at the file's folder.",
    )
    user: str = Field(
        default="client.nos-ec", min_length=1, max_length=200, description="The whole name, `client.` included."
    )
    keyring_file: Annotated[Path, BeforeValidator(_path)] | None = Field(
        default=None,
        title="a path",
        description="Holds the user's key. Left out, Ceph looks where ceph.conf or its own defaults say. A relative"
        " path in a file starts at the file's folder.",
    )
    admin_keyring_file: Annotated[Path, BeforeValidator(_path)] | None = Field(
        default=None,
        title="a path",
        description="Keyring of client.admin, on a cluster for development only: `nos-ec demo` marks OSDs down with it"
        " to show that reads go on, and has them report at once what they store; `nos-ec bench` reads the OSDs'"
        " counters. No daemon uses it.",
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
        description="RADOS namespace in both pools: keeps several stores in the same pools apart.",
    )
    op_timeout_ms: Count = Field(
        default=10 * _SECOND,
        ge=_SECOND,
        le=_HOUR,
        description="Milliseconds one read or write may take; whole seconds, rounded up. Then it counts as failed and"
        " is tried again.",
    )
    connect_timeout_ms: Count = Field(
        default=15 * _SECOND,
        ge=_SECOND,
        le=_HOUR,
        description="Milliseconds to connect, and for a command to the monitors; rounded up as well.",
    )


class GeometrySettings(_Section):
    """Shape of stripes and blocks. Fixed when the store is initialised; another one is refused later."""

    k: Count = Field(default=8, ge=1, le=32, description="Data chunks a stripe.")
    m: Count = Field(default=3, ge=1, le=8, description="Coding chunks a stripe: how many shards may be lost.")
    chunk_size: Size = Field(
        default=128 << 10,
        ge=16 << 10,
        le=4 << 20,
        description="Bytes of a chunk (Ceph: stripe_unit), a multiple of 4 KiB. Objects up to it are read from one"
        " shard.",
    )
    stripes_per_block: Count = Field(default=32, ge=1, le=1024, description="Stripes of a full block.")
    stripes_per_group_max: Count = Field(
        default=4, ge=1, le=1024, description="Stripes written at once behind one header; at most stripes_per_block."
    )

    def value(self) -> Geometry:
        """The geometry. Raises ConfigError when the fields do not go together."""
        return Geometry(self.k, self.m, self.chunk_size, self.stripes_per_block, self.stripes_per_group_max)


class PutSettings(_Section):
    """What happens to an object when it arrives."""

    min_age_ms: Count = Field(
        default=0,
        ge=0,
        le=30 * _DAY,
        description="Milliseconds an object rests in the landing store before it is packed. 0 packs at once and keeps"
        " the landing store smallest; where many objects are deleted or overwritten soon, an hour"
        " (3600000) saves packing them at all. Safety does not depend on it.",
    )
    reservation_ms: Count = Field(
        default=_HOUR,
        ge=_SECOND,
        le=7 * _DAY,
        description="Milliseconds a PUT may take before its landing copy counts as abandoned. A PUT that takes longer"
        " fails and can be tried again.",
    )
    lease_ttl_ms: Count = Field(
        default=30 * _SECOND,
        ge=_SECOND,
        le=LEASE_MS_MAX,
        description="Milliseconds the writer lease of a large PUT lasts without renewal: how soon the blocks of a"
        " killed one are recovered.",
    )


class GetSettings(_Section):
    """Reading objects."""

    location_cache_objects: Count = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Objects whose place a process remembers, at most, to read them again without asking the database"
        " (some 600 bytes each). 0: none. An overwrite or delete by another process is then seen up to"
        " location_cache_ms late. For a single gateway, or objects that are never overwritten.",
    )
    location_cache_ms: Count = Field(
        default=10 * _SECOND,
        ge=1,
        le=_DAY,
        description="Milliseconds a place is remembered, and how late another process's change may be seen. Less than"
        " gc.block_grace_ms, or blocks go while they are still remembered, which costs a second look.",
    )


class ProducerSettings(_Section):
    """Publishing objects that wait to be packed."""

    batch_objects: Count = Field(default=1000, ge=1, le=100_000, description="Rows scanned and published at a time.")
    republish_ms: Count = Field(
        default=10 * _MINUTE,
        ge=_SECOND,
        le=30 * _DAY,
        description="Milliseconds after which an object that was published and is still not packed comes due again. It"
        " is published again if the consumers have passed its event, or the log lost it. More than consumer.linger_ms,"
        " or healthy objects are published twice.",
    )
    idle_wait_ms: Count = Field(
        default=500, ge=1, le=_HOUR, description="Milliseconds between scans when there was nothing to publish."
    )
    lease_ttl_ms: Count = Field(
        default=30 * _SECOND,
        ge=_SECOND,
        le=LEASE_MS_MAX,
        description="Milliseconds a producer's leases last without renewal: how soon the others take over from a killed"
        " one, and a new one gets its share. More than publishing a batch takes.",
    )


class ConsumerSettings(_Section):
    """Packing published objects into stripes."""

    group: str = Field(default="packer", min_length=1, max_length=200, description="Consumer group of the message log.")
    policy: Literal["best", "nos"] = Field(
        default="best",
        description="Packing policy: best (best fit seeded with the oldest object) or nos (the published merge list,"
        " for comparison).",
    )
    window_objects: Count = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Objects that wait for their place, to choose from. 1000 is near the bound.",
    )
    linger_ms: Count = Field(
        default=_MINUTE,
        ge=0,
        le=_DAY,
        description="Milliseconds an object waits for company, at most; then its stripe is written even if not full.",
    )
    linger_max_ms: Count = Field(
        default=_HOUR,
        ge=0,
        le=_DAY,
        description="Milliseconds an object waits instead of linger_ms while so few wait that their stripe would stay"
        " below linger_fill_min. It is safe in the landing store meanwhile. Less than linger_ms counts as linger_ms.",
    )
    linger_fill_min: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of a stripe that objects must fill to be written after linger_ms. 0: however little waits.",
    )
    lanes: Count = Field(
        default=1, ge=1, le=64, description="Stripe groups written at the same time, each lane into a block of its own."
    )
    read_threads: Count = Field(default=8, ge=1, le=256, description="Landing copies read at the same time.")
    merge_list_bytes_max: Size = Field(
        default=1 << 30,
        ge=1 << 20,
        le=1 << 40,
        description="Bytes of the objects waiting to be packed, at most; beyond it partitions are paused. The objects"
        " themselves stay in the landing store. At least one stripe group.",
    )
    poll_messages_max: Count = Field(
        default=1000, ge=1, le=100_000, description="Messages taken from the log at a time."
    )
    idle_wait_ms: Count = Field(default=500, ge=1, le=_HOUR, description="Milliseconds to wait for messages when idle.")
    lease_ttl_ms: Count = Field(
        default=30 * _SECOND,
        ge=_SECOND,
        le=LEASE_MS_MAX,
        description="Milliseconds a writer lease lasts without renewal: how soon the blocks of a killed consumer (or"
        " GC) are recovered, and how long it may stall before it is fenced.",
    )


class ReaperSettings(_Section):
    """Deleting landing copies of packed objects, and recovery."""

    landing_grace_ms: Count = Field(
        default=10 * _MINUTE,
        ge=0,
        le=30 * _DAY,
        description="Milliseconds a landing copy outlives its packing. The packed bytes are read back and verified in"
        " any case before it goes.",
    )
    batch_objects: Count = Field(
        default=5000,
        ge=1,
        le=100_000,
        description="Landing copies settled at a time. The embedded landing store has 256 folders and syncs each once a"
        " batch: a batch should have many copies for each of them.",
    )
    wait_ms: Count = Field(
        default=5 * _SECOND, ge=1, le=_HOUR, description="Milliseconds between rounds of housekeeping in a daemon."
    )


class GcSettings(_Section):
    """Reclaiming what deletes leave behind."""

    hole_ratio_min: Ratio = Field(
        default=0.75,
        gt=0,
        le=1,
        description="Share of a block that no object uses (dead bytes, and padding and headers as well) from which the"
        " block is collected. Lower saves space and rewrites more: break-even with 3 replicas is near 0.45 for 8+3.",
    )
    block_grace_ms: Count = Field(
        default=10 * _MINUTE,
        ge=0,
        le=30 * _DAY,
        description="Milliseconds between emptying a block and deleting it. Longer than the longest read.",
    )
    block_grace_ms_min: Count = Field(
        default=_MINUTE,
        ge=0,
        le=30 * _DAY,
        description="The same when space is so short that GC could not go on, or PUTs are refused: then emptied blocks"
        " go after this grace."
        " Longer than the longest read, too: more than ceph.op_timeout_ms and get.location_cache_ms together. No more"
        " than block_grace_ms counts.",
    )
    floor_bytes: Size = Field(
        default=16 << 20,
        ge=0,
        le=1 << 50,
        description="Free space that GC leaves alone as long as it can: the metadata may be on the same disk, and needs"
        " some to record what GC does.",
    )
    reserve_bytes: Size = Field(
        default=256 << 20,
        ge=0,
        le=1 << 50,
        description="Free space that only GC may use, so that it can always make progress: packing stops above it, and"
        " PUT above twice as much, so that landed objects can always be packed. At least a few blocks.",
    )
    blocks_max_per_run: Count = Field(
        default=1000, ge=1, le=1_000_000, description="Blocks rewritten in one run, at most."
    )
    cool_down_ms_max: Count = Field(
        default=_DAY,
        ge=0,
        le=30 * _DAY,
        description="Milliseconds GC leaves a block alone that it could not collect, at most, so that the others have"
        " their turn: 10 minutes at first, twice as long after each failure in a row. Lowering it brings those blocks"
        " back sooner, for example after a repair; with 0 none is left alone.",
    )
    wait_ms: Count = Field(
        default=10 * _MINUTE,
        ge=1,
        le=30 * _DAY,
        description="Milliseconds between runs when GC loops by itself instead of being started by cron.",
    )


class LogSettings(_Section):
    """The message log between producers and consumers."""

    backend: Literal["local", "kafka"] = Field(
        default="local", description="local (a file in store.root) or kafka (a topic, see [kafka])."
    )
    partitions: Count = Field(
        default=8,
        ge=1,
        le=1024,
        description="Partitions, which is how many consumers can share the work. Fixed when the store is initialised.",
    )
    session_ms: Count = Field(
        default=10 * _SECOND,
        ge=100,
        le=_HOUR,
        description="Milliseconds after which a consumer that does not poll loses its partitions to the others.",
    )


class KafkaSettings(_Section):
    """The topic of `log.backend = "kafka"` (KAFKA.md)."""

    servers: str | None = Field(
        default=None,
        max_length=4000,
        title="host:port of one or more brokers, separated by commas",
        description="Brokers to begin with; the others are found through them.",
    )
    topic: str = Field(default="nos-ec", min_length=1, max_length=200, description="Topic of the pack requests.")
    dead_letter_topic: str | None = Field(
        default=None,
        max_length=249,
        title="a topic name",
        description="Topic of messages nobody can work on. Left out: `<topic>.dead-letters`.",
    )
    replication: Count = Field(
        default=3, ge=1, le=100, description="Replicas of both topics, when `nos-ec init` makes them."
    )
    in_sync_min: Count = Field(
        default=2,
        ge=1,
        le=100,
        description="Replicas that must have a message before it counts as published, when `nos-ec init` makes them.",
    )
    retention_ms: Count = Field(
        default=7 * _DAY,
        ge=_DAY,
        le=3650 * _DAY,
        description="Milliseconds a pack request is kept, when `nos-ec init` makes the topic. Longer than the longest"
        " stop of all consumers that you plan for.",
    )
    request_timeout_ms: Count = Field(
        default=30 * _SECOND, ge=_SECOND, le=_HOUR, description="Milliseconds one request to the brokers may take."
    )
    poll_interval_ms_max: Count = Field(
        default=5 * _MINUTE,
        ge=_SECOND,
        le=_DAY,
        description="Milliseconds after which a consumer that hangs loses its partitions. Longer than the slowest group"
        " write, with room to spare, and not less than log.session_ms.",
    )
    instance: str | None = Field(
        default=None,
        max_length=200,
        title="a string of 1 to 200 characters",
        description="Static membership: a name for one consumer, kept over restarts; another one for each. Set it in"
        " the environment of each consumer. Left out: a consumer that restarts makes the group share out anew.",
    )
    options: Annotated[dict[str, str | int | bool], BeforeValidator(_table)] = Field(
        default_factory=dict,
        title='a table such as {"security.protocol" = "SASL_SSL"} (JSON in the environment)',
        description="Further settings of librdkafka under its own names: TLS, SASL, tuning. No secrets.",
    )
    secrets: Annotated[dict[str, SecretStr], BeforeValidator(_table)] = Field(
        default_factory=dict,
        title='a table such as {"sasl.password" = "..."} (JSON in the environment)',
        description="Options that are secrets; they are never shown. Prefer the environment.",
    )

    def all_options(self) -> dict[str, str | int | bool]:
        """options and secrets together, passwords and all: never log them."""
        return self.options | {key: value.get_secret_value() for key, value in self.secrets.items()}


class ApiSettings(_Section):
    """The read-only admin API, `nos-ec api` (API.md)."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=200,
        description="Address it listens on. It speaks plain HTTP: put a proxy with TLS before it to let others in.",
    )
    port: Count = Field(default=9480, ge=1, le=65_535, description="TCP port it listens on.")
    token: SecretStr | None = Field(
        default=None,
        title="a string of at least 16 printable characters",
        description="The bearer token every request must bring. Prefer NOS_EC_API__TOKEN in the environment, or"
        " token_file. Without either the API does not start.",
    )
    token_file: Annotated[Path, BeforeValidator(_path)] | None = Field(
        default=None,
        title="a path",
        description="File that holds the token instead; others must not be able to read it. A relative path in a file"
        " starts at the file's folder.",
    )
    anonymous: Flag = Field(
        default=False,
        description="Let everybody on this machine ask without a token. Only with a loopback host, and only requests to"
        " localhost or a loopback address; for trying it out.",
    )


class MonitoringSettings(_Section):
    """Watching the daemons: /livez, /readyz and /metrics of each, on a port of its own. The API has its own section."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=200,
        description="Address the endpoints listen on. They need no password and can change nothing; open them to others"
        " only on a network you trust.",
    )
    producer_port: Count = Field(
        default=0, ge=0, le=65_535, description="TCP port of the producer's endpoint. 0: it has none."
    )
    consumer_port: Count = Field(
        default=0,
        ge=0,
        le=65_535,
        description="TCP port of the consumer's endpoint. 0: it has none. Several consumers on one host need one each:"
        " set it in the environment of each (the systemd units do).",
    )
    gc_port: Count = Field(
        default=0,
        ge=0,
        le=65_535,
        description="TCP port of the endpoint of gc run --loop. 0: it has none. A run from cron never has one.",
    )
    stall_ms_max: Count = Field(
        default=2 * _MINUTE,
        ge=_SECOND,
        le=_DAY,
        description="Milliseconds after which a loop that did not turn counts as stuck: /livez then fails and systemd's"
        " watchdog is not fed. More than the longest write or query you would wait for.",
    )
    figures_ms: Count = Field(
        default=15 * _SECOND,
        ge=0,
        le=_HOUR,
        description="Milliseconds the figures of the whole store are kept between scrapes: they cost a query that grows"
        " with the number of blocks and of objects waiting.",
    )


class LoggingSettings(_Section):
    """What the daemons write to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level written."
    )
    format: Literal["console", "json"] = Field(
        default="console", description="console for eyes, json (one object a line) for machines."
    )


class Settings(_Section):
    """All sections. Every field has a default, so an empty file is a valid one."""

    store: StoreSettings = StoreSettings()
    ceph: CephSettings = CephSettings()
    geometry: GeometrySettings = GeometrySettings()
    put: PutSettings = PutSettings()
    get: GetSettings = GetSettings()
    producer: ProducerSettings = ProducerSettings()
    consumer: ConsumerSettings = ConsumerSettings()
    reaper: ReaperSettings = ReaperSettings()
    gc: GcSettings = GcSettings()
    log: LogSettings = LogSettings()
    kafka: KafkaSettings = KafkaSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    api: ApiSettings = ApiSettings()
    logging: LoggingSettings = LoggingSettings()


def fields_of(section: str) -> dict[str, FieldInfo]:
    """The settings of one section, by key."""
    model = Settings.model_fields[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model.model_fields
