"""Chaos on the real stack: clients and daemons work while daemons, OSDs, Kafka and the SQL server are killed. Some
clients use S3, through a gateway that is a daemon like the others. In a store of several cells, an operator moves
buckets from cell to cell, and the commands are killed, too.

In the middle PUTs change to the landing log, and back through mode drain. At the end everything is healed and comes to
rest, every key is read and compared, and the store is audited.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from nos_ec.adapters.sql.driver.databases import create_database
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings
from tests.rig.at_rest import come_to_rest
from tests.rig.chaos.chaos_cells import (
    TABLE,
    Outage,
    cell_of,
    claim_homes,
    lose_database,
    moving_among,
    stores_of,
    wrong_homes,
)
from tests.rig.chaos.chaos_clients import (
    Call,
    Clients,
    History,
    Reader,
    Totals,
    Use,
    Verdict,
    Workload,
    Writer,
    always,
    judge,
)
from tests.rig.chaos.chaos_fleet import CODES, UNREACHED, Actor, Fleet
from tests.rig.chaos.chaos_gateway import Gateway, ModeChanges, set_mode
from tests.rig.chaos.chaos_moves import ACTOR as MOVER
from tests.rig.chaos.chaos_moves import Moves, incomplete
from tests.rig.chaos.chaos_s3 import ACTOR as S3_ACTOR
from tests.rig.chaos.chaos_s3 import FIRST_WRITER, S3Objects, address, gateway_actor
from tests.rig.chaos.chaos_strikes import LEASE_S, WAIT_S, Servers, Striker, await_nothing, schedule
from tests.rig.dev_servers import DevServer, free_port
from tests.rig.patience import patient
from tests.rig.s3.s3_gateway import Access, create_key
from tests.rig.vitess_server import VitessServer

RESTART_WAIT_S = 1.0
"""How long a daemon stays away before it is restarted, as with systemd."""
DRAIN_S_MAX = 180.0
MOVE_S_MAX = 180.0
"""How long the last move, its dumps and its purge may take once everything is healthy."""
RESUME_S_MAX = {"kill primary": 30.0}
"""How long it may take after a strike until a PUT succeeds that began after it."""
RUN_SHARE_MAX = 4
"""A run continues until GC has moved and deleted something, and S3 clients have succeeded with all of S3_CALLS, for at
most this many times its planned length: on a busy machine, clients take a while to do this."""
S3_CALLS = frozenset(["put", "put batch", "delete", "read"])

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
CELL_WORKLOAD = replace(WORKLOAD, batch_in_bucket=True)
"""A batch is stored in one cell."""
GATEWAYS = 2
READERS = 1
"""Of each gateway."""
S3_READERS = 1
LIBRARY_WRITERS, S3_WRITERS = range(2 * GATEWAYS), range(FIRST_WRITER, FIRST_WRITER + 2)
"""The numbers of the writers."""
S3_ACCOUNT = "root"
"""It may read what the other writers store, too."""
READ_PAUSE_S = 0.05

CONFIG = """
[store]
{directory}
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
    an owner, block counters that are wrong, work left over. outage: of a cell's database, in a store of several cells.
    moves: how many moves of buckets were completed, interrupted and given up there, and how often a daemon let a bucket
    take changes again."""

    seed: int
    seconds: float
    strikes: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    logged_objects: int = 0
    clients: dict[str, int] = field(default_factory=dict)
    s3_clients: dict[str, int] = field(default_factory=dict)
    resumed_s: dict[str, float] = field(default_factory=dict)
    outage: Outage | None = None
    moves: dict[str, int] = field(default_factory=dict)
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
    conf_file = Path(servers.ceph.url)
    config = folder / "nos-ec.toml"
    cells = ""
    for name in servers.cells:
        server = servers.last_database if name == servers.cells[-1] else servers.database
        assert server is not None
        cells += TABLE.format(name=name, tag=tag, url=_new_database(server, f"{tag}-{name}"))
    config.write_text(
        CONFIG.format(
            directory=f'directory = "{servers.cells[0]}"' if cells else "",
            metadata_url=_new_database(servers.database, tag),
            conf_file=conf_file,
            keyrings=conf_file.parent,
            servers=servers.kafka.url,
            tag=tag,
            lease_ms=int(LEASE_S * 1000),
        )
        + cells
    )
    create_stores(config)
    return config


def create_stores(config: Path) -> None:
    """Create the store of a configuration, or its cells. Raises Transient."""
    for name, settings in stores_of(config).items():
        initialise(patient(settings))
        if name:
            enter_cell(load_settings(config, {}), name)


def _new_database(server: DevServer | VitessServer, name: str) -> str:
    """Create a database on a server, except on Vitess, which has one keyspace. Returns its URL."""
    if isinstance(server, VitessServer):
        return server.url
    url = urlunsplit(urlsplit(server.url)._replace(path="/" + name.replace("-", "_")))
    create_database(url)
    return url


def _actors(servers: Servers, gateway: Access, moves: Moves) -> dict[str, Actor]:
    """The daemons of each kind. Each has its kind's key of least privilege, and its own port, or one for each cell."""
    keyrings = Path(servers.ceph.url).parent

    def key_of(role: str) -> dict[str, str]:
        return {
            "NOS_EC_CEPH__USER": f"client.nos-ec-{role}",
            "NOS_EC_CEPH__KEYRING_FILE": str(keyrings / f"client.nos-ec-{role}.keyring"),
        }

    actors = {S3_ACTOR: gateway_actor(gateway)}
    for name in servers.daemons():
        if name == S3_ACTOR:
            continue
        if name == MOVER:
            actors[name] = Actor(moves, key_of("admin"))
            continue
        kind = name.partition("-")[0]
        ports = {f"NOS_EC_CELLS__{cell.upper()}__MONITORING__PORT": free_port() for cell in servers.cells}
        ports = ports or {"NOS_EC_MONITORING__PORT": free_port()}
        environment = key_of(kind) | {variable: str(port) for variable, port in ports.items()}
        actors[name] = Actor(ARGUMENTS[kind], environment, tuple(ports.values()))
    return actors


def run_chaos(
    folder: Path, servers: Servers, *, seed: int, seconds: float, every_s: float, say: Callable[[str], None]
) -> Report:
    """Run once on servers that are already started, with a new store. Files of the run go into `folder`. However the
    run ends, none of its processes is left; when it raises, parts of the servers may be missing. Raises ServerFailed
    when a server does not come back, NosError when the store cannot be inspected.
    """
    config = configure(folder, servers)
    homes = claim_homes(config, servers.cells, (*LIBRARY_WRITERS, *S3_WRITERS))
    moves = Moves(moving_among(homes), servers.cells, seed)
    report = Report(seed, seconds)
    with ExitStack() as stack:
        gateways = [stack.enter_context(closing(Gateway(config))) for _ in range(GATEWAYS)]
        access = Access(address(), *create_key(config, S3_ACCOUNT))
        fleet = Fleet(config, _actors(servers, access, moves), restart_wait_s=RESTART_WAIT_S)
        stack.callback(fleet.abandon)
        strikes = schedule(seed, seconds, every_s, servers.kinds(), servers.osds(), servers.daemons())
        with gateways[0].use() as store:
            s3 = S3Objects(access, store.packed_size_max)
        striker = Striker(servers, fleet, strikes, say)
        stack.callback(striker.wake_all)
        histories = _run_clients(Run(config, servers, homes, moves, gateways, s3, striker, fleet, say), report)
        for gateway in gateways:
            gateway.close()
        report.logged_objects = sum(gateway.logged_objects for gateway in gateways)
        _heal_and_drain(config, striker, moves, report, say)
        fleet.stop()
        _ask_fleet(fleet, report)
        set_mode(config, "store")
        if servers.cells:
            _ask_moves(config, moves, fleet, report)
        homes = {**homes, **moves.homes}
        report.problems += wrong_homes(config, homes)
        _inspect(config, histories, homes, report, say)
    return report


@dataclass(frozen=True, slots=True)
class Run:
    """What works in a run. homes: the cells of the buckets when it begins."""

    config: Path
    servers: Servers
    homes: Mapping[str, str]
    moves: Moves
    gateways: Sequence[Gateway]
    s3: S3Objects
    striker: Striker
    fleet: Fleet
    say: Callable[[str], None]

    def writers(self, seed: int, totals: Totals, s3_totals: Totals) -> list[Writer]:
        """Clients that write through the library, and through S3 in buckets that are created here. So are those that
        are moved."""
        workload = CELL_WORKLOAD if self.servers.cells else WORKLOAD
        writers = [Writer(number, seed, self._gateway(number), workload, totals) for number in LIBRARY_WRITERS]
        s3 = [Writer(number, seed, always(self.s3), workload, s3_totals) for number in S3_WRITERS]
        self.s3.create_buckets({*self.moves.homes, *(bucket for writer in s3 for bucket in writer.buckets)})
        self.moves.begin()
        return writers + s3

    def readers(
        self, seed: int, histories: Mapping[ObjectKey, History], totals: Totals, s3_totals: Totals
    ) -> list[Reader]:
        """Clients that read everybody's objects through the library and S3. With several cells, each reads those of one
        cell, so that a cell that is away does not keep them from reading elsewhere."""
        count = max(1, len(self.servers.cells))

        def some(number: int) -> Mapping[ObjectKey, History]:
            cell = cell_of(number, self.servers.cells)
            return {key: history for key, history in histories.items() if self.homes[key.bucket] == cell}

        readers = [
            Reader(number, seed, self._gateway(number), some(number), totals, READ_PAUSE_S)
            for number in range(max(count, GATEWAYS * READERS))
        ]
        return readers + [
            Reader(number, seed, always(self.s3), some(number), s3_totals, READ_PAUSE_S)
            for number in range(FIRST_WRITER, FIRST_WRITER + max(count, S3_READERS))
        ]

    def _gateway(self, number: int) -> Use:
        return self.gateways[number % GATEWAYS].use


def _run_clients(run: Run, report: Report) -> Mapping[ObjectKey, History]:
    """Let clients work, strikes happen and the mode change for the length of the run. With several cells, one of them
    loses its database before that. Returns what the clients know."""
    striker, fleet, gateways, say = run.striker, run.fleet, run.gateways, run.say
    totals, s3_totals = Totals(), Totals()
    writers = run.writers(report.seed, totals, s3_totals)
    histories = {key: history for writer in writers for key, history in writer.histories.items()}
    readers = run.readers(report.seed, histories, totals, s3_totals)
    clients = Clients([*(writer.run for writer in writers), *(reader.run for reader in readers)], totals)
    changes = ModeChanges(run.config, fleet, gateways, report.seconds, say, clients.stopped)

    def calls() -> list[Call]:
        return [*totals.calls, *s3_totals.calls]

    clients.start()
    try:
        if run.servers.cells:
            stay = {bucket: home for bucket, home in run.homes.items() if bucket not in run.moves.homes}
            report.outage = lose_database(run.servers, fleet, clients, calls, stay, report.seed, say)
            report.problems += report.outage.problems
        start_s = time.monotonic()
        striker.begin()
        while (
            not clients.stopped.is_set() and (passed_s := time.monotonic() - start_s) < RUN_SHARE_MAX * report.seconds
        ):
            changing = changes.turn(passed_s)
            has_all = s3_totals.counts.keys() >= S3_CALLS
            if passed_s >= report.seconds and not changing and has_all and all(_collected(fleet)):
                break
            striker.turn()
            clients.stopped.wait(WAIT_S)
    finally:
        clients.stopped.set()
        striker.wake_all()  # what sleeps inside a transaction would keep the clients waiting
    clients.stop(fleet.mend)
    report.clients = dict(sorted(totals.counts.items()))
    report.s3_clients = dict(sorted(s3_totals.counts.items()))
    if not report.s3_clients.keys() >= S3_CALLS:
        report.problems.append(f"S3 clients did little: {report.s3_clients}")
    report.strikes = striker.done
    _note_resumed(striker, [call for call in calls() if call.puts], report)
    report.modes = changes.done
    report.problems += totals.failures
    return histories


def _note_resumed(striker: Striker, puts: Sequence[Call], report: Report) -> None:
    """Note how long it took after each strike on the database until a PUT succeeded that began after it."""
    end_s = time.monotonic()
    for kind, struck_s in striker.on_database:
        resumed_s = min((put.ended_s for put in puts if put.began_s >= struck_s), default=end_s) - struck_s
        report.resumed_s[kind] = max(report.resumed_s.get(kind, 0.0), round(resumed_s, 1))
    report.problems += [
        f"PUTs resumed only {resumed_s} s after: {kind}"
        for kind, resumed_s in report.resumed_s.items()
        if resumed_s > RESUME_S_MAX.get(kind, resumed_s)
    ]


def _heal_and_drain(config: Path, striker: Striker, moves: Moves, report: Report, say: Callable[[str], None]) -> None:
    """Wait until the daemons are healthy again, have packed everything and emptied the landing log, without help. The
    last move is completed before."""

    def waiting() -> str:
        striker.turn()
        try:
            found = [(metadata.totals(), metadata.segment_totals()) for metadata in databases]
        except Transient as error:
            return f"an answer from the database: {error}"
        if left := sum(totals.landed_objects + totals.queued_objects for totals, _ in found):
            return f"{left} objects are still to be packed"
        segments = [segments for _, segments in found if segments]
        return f"the landing log is not empty: {segments}" if segments else ""

    def moving() -> str:
        striker.turn()
        return moves.unfinished

    start_s = time.monotonic()
    try:
        striker.heal()
        report.healed_s = round(time.monotonic() - start_s, 1)
        say(f"clients stopped; all servers and daemons healthy after {report.healed_s} s")
        moves.finish()
        await_nothing("the last move of a bucket", MOVE_S_MAX, moving)
        with ExitStack() as stack:
            databases = [
                stack.enter_context(closing(open_metadata(settings.store.url())))
                for settings in stores_of(config).values()
            ]
            await_nothing("all objects to be packed and an empty log", DRAIN_S_MAX, waiting)
        report.drained_s = round(time.monotonic() - start_s, 1)
        say(f"all objects packed, and the landing log empty, after {report.drained_s} s")
    except TimeoutError as error:
        report.problems.append(str(error))


def _ask_fleet(fleet: Fleet, report: Report) -> None:
    report.exit_codes = dict(sorted(fleet.codes.items()))
    report.problems += fleet.misbehaviour(CODES | {UNREACHED})
    report.gc_moved_objects, report.gc_deleted_blocks = _collected(fleet)


def _ask_moves(config: Path, moves: Moves, fleet: Fleet, report: Report) -> None:
    served_again = sum(
        str(line.get("event", "")).startswith("a bucket takes changes again")
        for name in fleet.all()
        for line in fleet.said(name)
    )
    report.moves = {**moves.counts, "served again": served_again}
    report.problems += moves.problems + incomplete(config)
    if not moves.counts["completed"]:
        report.problems.append("no bucket was moved: the run proves little")


def _collected(fleet: Fleet) -> tuple[int, int]:
    """The numbers of objects that GC moved and blocks that it deleted, as far as it has logged them."""
    return fleet.sum_said("gc", "collected", "objects_moved"), fleet.sum_said("gc", "collected", "blocks_deleted")


def _inspect(
    config: Path,
    histories: Mapping[ObjectKey, History],
    homes: Mapping[str, str],
    report: Report,
    say: Callable[[str], None],
) -> None:
    """Read all keys before and after the last clean-up, and audit what is left after it, in each cell."""
    for name, settings in stores_of(config).items():
        of_cell = {key: history for key, history in histories.items() if homes[key.bucket] == name}
        with open_system(patient(settings)) as system:
            before = judge(system.client.store(), of_cell)
            report.leaked += [f"cell {name}: {what}" if name else what for what in come_to_rest(system)]
            after = judge(system.client.store(), of_cell)
            packed = system.metadata.totals().packed_objects
        if before != after:
            report.problems.append(f"before the last clean-up the keys read differently: {before}")
        if not packed:
            report.problems.append(f"nothing was packed in cell {name}" if name else "nothing was packed")
        report.packed_objects += packed
        report.verdict.add(after)
    if not (report.packed_objects and report.gc_moved_objects and report.gc_deleted_blocks):
        report.problems.append("nothing was packed, moved or deleted: the run proves nothing")
    if report.modes[-2:] != ["log", "drain"] or not report.logged_objects:
        report.problems.append(f"only {report.logged_objects} objects went to the log, in modes {report.modes}")
    verdict = report.verdict
    say(
        f"{verdict.objects} objects under {verdict.keys} keys read and compared: {len(verdict.lost)} lost,"
        f" {len(verdict.corrupt)} corrupt, {len(report.leaked)} leaked"
    )
