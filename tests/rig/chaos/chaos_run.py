"""Chaos on the real stack: clients and daemons work while daemons, OSDs, Kafka and the SQL server are killed. Some
clients use S3, through a gateway that is a daemon like the others.

In the middle PUTs change to the landing log, and back through mode drain. At the end everything is healed and comes to
rest, every key is read and compared, and the store is audited.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from nos_ec.adapters.sql.driver.databases import create_database
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings
from tests.rig.at_rest import come_to_rest
from tests.rig.chaos.chaos_clients import Clients, History, Reader, Totals, Verdict, Workload, Writer, always, judge
from tests.rig.chaos.chaos_fleet import CODES, UNREACHED, Actor, Fleet
from tests.rig.chaos.chaos_gateway import Gateway, ModeChanges, set_mode
from tests.rig.chaos.chaos_s3 import ACTOR as S3_ACTOR
from tests.rig.chaos.chaos_s3 import FIRST_WRITER, S3Objects, address, gateway_actor
from tests.rig.chaos.chaos_strikes import DAEMONS, LEASE_S, WAIT_S, Servers, Striker, await_nothing, schedule
from tests.rig.dev_servers import free_port
from tests.rig.patience import patient
from tests.rig.s3.s3_gateway import Access, create_key
from tests.rig.vitess_server import VitessServer

RESTART_WAIT_S = 1.0
"""How long a daemon stays away before it is restarted, as with systemd."""
DRAIN_S_MAX = 180.0
RESUME_S_MAX = {"kill primary": 30.0}
"""How long it may take after a strike until a PUT succeeds that began after it."""
RUN_SHARE_MAX = 4
"""A run continues until GC has moved and deleted something, for at most this many times its planned length: slow
clients take a while to make holes."""

ARGUMENTS = {"producer": ("producer",), "consumer": ("consumer",), "gc": ("gc", "run", "--apply", "--loop")}

CHUNK, STRIPE = 128 << 10, 1 << 20
WORKLOAD = Workload(
    keys=100,
    size_max=CHUNK,
    edge_sizes=(0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, STRIPE - 4096, STRIPE),
    large_sizes=(4 * STRIPE, 4 * STRIPE + 1, 8 * STRIPE, 9 * STRIPE),
    tries_max=2,
    pause_s=0.05,
    retry_wait_s=0.5,
)
GATEWAYS = 2
WRITERS, READERS = 2, 1
"""Of each gateway."""
S3_WRITERS, S3_READERS = 2, 1
S3_ACCOUNT = "root"
"""It may read what the other writers store, too."""
READ_PAUSE_S = 0.05

CONFIG = """
[store]
backend = "ceph"
root = "root"
metadata_url = "{metadata_url}"
lease_ttl_ms = {lease_ms}
[ceph]
conf_file = "{conf_file}"
user = "client.nos-ec-front"
keyring_file = "{keyrings}/client.nos-ec-front.keyring"
namespace = "{tag}"
op_timeout_ms = 10000
[geometry]
stripes_per_block = 4
[put]
reservation_ms = 60000
[landing]
mode = "store"
segment_age_ms = 5000
[producer]
republish_ms = 20000
[consumer]
lanes = 3
window_objects = 100
linger_ms = 1000
linger_max_ms = 1000
[reaper]
landing_grace_ms = 1000
[gc]
policy = "threshold"
hole_ratio_min = 0.3
block_grace_ms = 2000
wait_ms = 1000
reserve_bytes = 0
read_slowdown_max = 0
[log]
backend = "kafka"
partitions = 6
session_ms = 3000
[kafka]
servers = "{servers}"
topic = "{tag}"
replication = 1
in_sync_min = 1
options = {{ "socket.timeout.ms" = 5000 }}
[logging]
format = "json"
"""
"""Short leases, grace periods and waits, so that a run of a minute passes through everything."""


# --- a run --------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Report:
    """What a run did and found. modes: what landing.mode changed to. logged_objects: how many objects were written to
    the landing log. resumed_s: the longest time from a strike on the database, by its kind, until a PUT succeeded that
    began after it, or the clients ended. problems: everything that must not happen. leaked: blocks and copies without
    an owner, block counters that are wrong, work left over."""

    seed: int
    seconds: float
    strikes: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    logged_objects: int = 0
    clients: dict[str, int] = field(default_factory=dict)
    s3_clients: dict[str, int] = field(default_factory=dict)
    resumed_s: dict[str, float] = field(default_factory=dict)
    exit_codes: dict[int, int] = field(default_factory=dict)
    packed_objects: int = 0
    gc_moved_objects: int = 0
    gc_deleted_blocks: int = 0
    healed_s: float = 0.0
    drained_s: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    leaked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing lost, corrupt or leaked, and nothing else wrong."""
        return not (self.verdict.lost or self.verdict.corrupt or self.leaked or self.problems)

    def as_json(self) -> str:
        """The whole report, in one line."""
        return json.dumps({"ok": self.ok} | asdict(self))


def configure(folder: Path, servers: Servers) -> Path:
    """Write the configuration of a new store on the servers into `folder`, and create that store. Returns the file."""
    tag = f"chaos-{uuid.uuid4().hex[:12]}"
    url = servers.database.url
    if not isinstance(servers.database, VitessServer):  # has one keyspace
        url = urlunsplit(urlsplit(url)._replace(path="/" + tag.replace("-", "_")))
        create_database(url)
    conf_file = Path(servers.ceph.url)
    config = folder / "nos-ec.toml"
    config.write_text(
        CONFIG.format(
            metadata_url=url,
            conf_file=conf_file,
            keyrings=conf_file.parent,
            servers=servers.kafka.url,
            tag=tag,
            lease_ms=int(LEASE_S * 1000),
        )
    )
    initialise(patient(load_settings(config, {})))
    return config


def _actors(keyrings: Path, gateway: Access) -> dict[str, Actor]:
    """The daemons of each kind. Each has its kind's key of least privilege, and its own port."""
    actors = {S3_ACTOR: gateway_actor(gateway)}
    for name in DAEMONS:
        if name == S3_ACTOR:
            continue
        kind, port = name.partition("-")[0], free_port()
        environment = {
            "NOS_EC_CEPH__USER": f"client.nos-ec-{kind}",
            "NOS_EC_CEPH__KEYRING_FILE": str(keyrings / f"client.nos-ec-{kind}.keyring"),
            "NOS_EC_MONITORING__PORT": str(port),
        }
        actors[name] = Actor(ARGUMENTS[kind], environment, port)
    return actors


def run_chaos(
    folder: Path, servers: Servers, *, seed: int, seconds: float, every_s: float, say: Callable[[str], None]
) -> Report:
    """Run once on servers that are already started, with a new store. Files of the run go into `folder`. However the
    run ends, none of its processes is left; when it raises, parts of the servers may be missing. Raises ServerFailed
    when a server does not come back, NosError when the store cannot be inspected.
    """
    config = configure(folder, servers)
    report = Report(seed, seconds)
    with ExitStack() as stack:
        gateways = [stack.enter_context(closing(Gateway(config))) for _ in range(GATEWAYS)]
        access = Access(address(), *create_key(config, S3_ACCOUNT))
        fleet = Fleet(config, _actors(Path(servers.ceph.url).parent, access), restart_wait_s=RESTART_WAIT_S)
        stack.callback(fleet.abandon)
        strikes = schedule(seed, seconds, every_s, servers.kinds(), servers.osds())
        with gateways[0].use() as store:
            s3 = S3Objects(access, store.packed_size_max)
        s3_writers = S3Writers(s3, seed)
        striker = Striker(servers, fleet, strikes, say)
        stack.callback(striker.wake_all)
        histories = _run_clients(config, gateways, s3_writers, striker, fleet, report, say)
        for gateway in gateways:
            gateway.close()
        report.logged_objects = sum(gateway.logged_objects for gateway in gateways)
        _heal_and_drain(config, striker, report, say)
        fleet.stop()
        _ask_fleet(fleet, report)
        set_mode(config, "store")
        _inspect(stack.enter_context(open_system(patient(load_settings(config, {})))), histories, report, say)
    return report


class S3Writers:
    """The clients that write through S3, in buckets that they have created."""

    def __init__(self, objects: S3Objects, seed: int) -> None:
        self.objects = objects
        self.totals = Totals()
        numbers = range(FIRST_WRITER, FIRST_WRITER + S3_WRITERS)
        self.writers = [Writer(number, seed, always(objects), WORKLOAD, self.totals) for number in numbers]
        objects.create_buckets(bucket for writer in self.writers for bucket in writer.buckets)

    def readers(self, seed: int, histories: Mapping[ObjectKey, History]) -> list[Reader]:
        """Clients that read everybody's objects through S3."""
        numbers = range(FIRST_WRITER, FIRST_WRITER + S3_READERS)
        return [Reader(number, seed, always(self.objects), histories, self.totals, READ_PAUSE_S) for number in numbers]


def _run_clients(
    config: Path,
    gateways: Sequence[Gateway],
    s3: S3Writers,
    striker: Striker,
    fleet: Fleet,
    report: Report,
    say: Callable[[str], None],
) -> Mapping[ObjectKey, History]:
    """Let clients work, strikes happen and the mode change for the length of the run. Returns what the clients know."""
    totals = Totals()
    writers = [
        Writer(number, report.seed, gateways[number % GATEWAYS].use, WORKLOAD, totals)
        for number in range(GATEWAYS * WRITERS)
    ]
    writers += s3.writers
    histories = {key: history for writer in writers for key, history in writer.histories.items()}
    readers = [
        Reader(number, report.seed, gateways[number % GATEWAYS].use, histories, totals, READ_PAUSE_S)
        for number in range(GATEWAYS * READERS)
    ]
    readers += s3.readers(report.seed, histories)
    clients = Clients([*(writer.run for writer in writers), *(reader.run for reader in readers)], totals)
    changes = ModeChanges(config, fleet, gateways, report.seconds, say, clients.stopped)
    start_s = time.monotonic()
    clients.start()
    try:
        while (
            not clients.stopped.is_set() and (passed_s := time.monotonic() - start_s) < RUN_SHARE_MAX * report.seconds
        ):
            changing = changes.turn(passed_s)
            if passed_s >= report.seconds and not changing and all(_collected(fleet)):
                break
            striker.turn()
            clients.stopped.wait(WAIT_S)
    finally:
        clients.stopped.set()
        striker.wake_all()  # what sleeps inside a transaction would keep the clients waiting
    clients.stop(fleet.mend)
    report.clients = dict(sorted(totals.counts.items()))
    report.s3_clients = dict(sorted(s3.totals.counts.items()))
    if not {"put", "put batch", "delete", "read"} <= report.s3_clients.keys():
        report.problems.append(f"S3 clients did little: {report.s3_clients}")
    report.strikes = striker.done
    _note_resumed(striker, [*totals.puts, *s3.totals.puts], report)
    report.modes = changes.done
    report.problems += totals.failures
    return histories


def _note_resumed(striker: Striker, puts: Sequence[tuple[float, float]], report: Report) -> None:
    """Note how long it took after each strike on the database until a PUT succeeded that began after it."""
    end_s = time.monotonic()
    for kind, struck_s in striker.on_database:
        resumed_s = min((ended_s for began_s, ended_s in puts if began_s >= struck_s), default=end_s) - struck_s
        report.resumed_s[kind] = max(report.resumed_s.get(kind, 0.0), round(resumed_s, 1))
    report.problems += [
        f"PUTs resumed only {resumed_s} s after: {kind}"
        for kind, resumed_s in report.resumed_s.items()
        if resumed_s > RESUME_S_MAX.get(kind, resumed_s)
    ]


def _heal_and_drain(config: Path, striker: Striker, report: Report, say: Callable[[str], None]) -> None:
    """Wait until the daemons are healthy again, have packed everything and emptied the landing log, without help."""

    def waiting() -> str:
        striker.turn()
        try:
            totals, segments = metadata.totals(), metadata.segment_totals()
        except Transient as error:
            return f"an answer from the database: {error}"
        if left := totals.landed_objects + totals.queued_objects:
            return f"{left} objects are still to be packed"
        return f"the landing log is not empty: {segments}" if segments else ""

    start_s = time.monotonic()
    try:
        striker.heal()
        report.healed_s = round(time.monotonic() - start_s, 1)
        say(f"clients stopped; all servers and daemons healthy after {report.healed_s} s")
        with closing(open_metadata(load_settings(config, {}).store.url())) as metadata:
            await_nothing("all objects to be packed and an empty log", DRAIN_S_MAX, waiting)
        report.drained_s = round(time.monotonic() - start_s, 1)
        say(f"all objects packed, and the landing log empty, after {report.drained_s} s")
    except TimeoutError as error:
        report.problems.append(str(error))


def _ask_fleet(fleet: Fleet, report: Report) -> None:
    report.exit_codes = dict(sorted(fleet.codes.items()))
    report.problems += fleet.misbehaviour(CODES | {UNREACHED})
    report.gc_moved_objects, report.gc_deleted_blocks = _collected(fleet)


def _collected(fleet: Fleet) -> tuple[int, int]:
    """The numbers of objects that GC moved and blocks that it deleted, as far as it has logged them."""
    return fleet.sum_said("gc", "collected", "objects_moved"), fleet.sum_said("gc", "collected", "blocks_deleted")


def _inspect(
    system: System, histories: Mapping[ObjectKey, History], report: Report, say: Callable[[str], None]
) -> None:
    """Read all keys before and after the last clean-up, and audit what is left after it."""
    before = judge(system.client.store(), histories)
    report.leaked = come_to_rest(system)
    report.verdict = judge(system.client.store(), histories)
    if before != report.verdict:
        report.problems.append(f"before the last clean-up the keys read differently: {before}")
    report.packed_objects = system.metadata.totals().packed_objects
    if not (report.packed_objects and report.gc_moved_objects and report.gc_deleted_blocks):
        report.problems.append("nothing was packed, moved or deleted: the run proves nothing")
    if report.modes[-2:] != ["log", "drain"] or not report.logged_objects:
        report.problems.append(f"only {report.logged_objects} objects went to the log, in modes {report.modes}")
    verdict = report.verdict
    say(
        f"{verdict.objects} objects under {verdict.keys} keys read and compared: {len(verdict.lost)} lost,"
        f" {len(verdict.corrupt)} corrupt, {len(report.leaked)} leaked"
    )
