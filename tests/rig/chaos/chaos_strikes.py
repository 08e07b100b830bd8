"""What a chaos run does to daemons and servers, and when, and how they come back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.rig.chaos.chaos_fleet import Fleet
from tests.rig.dev_servers import WHOLE, DevServer
from tests.rig.vitess_server import VitessServer

KINDS = (
    "kill consumer",
    "kill producer",
    "kill gc",
    "kill s3",
    "kill osd",
    "kill kafka",
    "kill mysql",
    "sleep consumer",
    "sleep producer",
    "sleep osd",
    "sleep kafka",
    "sleep mysql",
)
VITESS_KINDS = (
    "kill primary",
    "sleep primary",
    "replace primary",
    "kill vtgate",
    "kill etcd",
    "sleep etcd",
)
"""With Vitess, they come instead of the strikes on MySQL."""
CELL_KINDS = ("kill cell", "sleep cell", "kill mover", "sleep mover")
"""With several cells, they come as well: strikes on the database that the last cell has for itself, and on the command
that moves buckets."""
DAEMONS = ("producer-0", "producer-1", "consumer-0", "consumer-1", "consumer-2", "gc-0", "s3-0")
CELL_DAEMONS = ("producer-0", "consumer-0", "consumer-1", "gc-0", "s3-0", "mover-0")
"""With several cells. There are fewer, because all but the gateway and the mover then start a process for each cell."""
OSDS_DOWN_MAX = 2
"""8+3 can be read and written with this many of its 11 OSDs down."""
LEASE_S = 4.0
"""How long leases last in a chaos run. Daemons are stopped for longer."""
FIRST_STRIKE_S = 5.0
"""By then the daemons are working."""
HEAL_S_MAX = 180.0
MOMENT_S_MAX = 15.0
"""How long a strike on a daemon waits for a moment at which it proves most."""
WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Servers:
    """The stack. If the script did not start the Ceph cluster, no part of the cluster is killed. The database is MySQL
    or Vitess.

    With `cells`, the names of the cells, the store is divided into these, and the last one has its database on a server
    of its own.
    """

    ceph: DevServer
    kafka: DevServer
    database: DevServer | VitessServer
    cells: tuple[str, ...] = ()
    last_database: DevServer | None = None

    def all(self) -> tuple[DevServer, ...]:
        """All servers."""
        servers = self.ceph, self.kafka, self.database
        return servers if self.last_database is None else (*servers, self.last_database)

    def daemons(self) -> tuple[str, ...]:
        """The daemons that run on them."""
        return CELL_DAEMONS if self.cells else DAEMONS

    def osds(self) -> int:
        """How many OSDs may be killed; 0 if the script did not start them."""
        count = self.ceph.folder / "osd_count"
        return int(count.read_text()) if count.exists() else 0

    def kinds(self) -> list[str]:
        """The kinds of strikes that are possible."""
        kinds = [kind for kind in KINDS if not kind.endswith("osd") or self.osds()]
        kinds += CELL_KINDS if self.cells else ()
        if not isinstance(self.database, VitessServer):
            return kinds
        return [*(kind for kind in kinds if not kind.endswith("mysql")), *VITESS_KINDS]


@dataclass(frozen=True, slots=True)
class Strike:
    """Something is killed or stopped at_s after the start, and comes back for_s later. A primary that is replaced stays
    a replica."""

    at_s: float
    kind: str
    targets: tuple[str, ...]
    for_s: float

    @property
    def what(self) -> str:
        """The target: consumer, producer, gc, s3, mover, osd, kafka, mysql, cell, or a part of Vitess."""
        return self.kind.partition(" ")[2]

    @property
    def kills(self) -> bool:
        """Whether the strike is a SIGKILL, not a SIGSTOP."""
        return self.kind.startswith("kill")

    def __str__(self) -> str:
        whom = self.kind if self.targets == (WHOLE,) else f"{self.kind.partition(' ')[0]} {' '.join(self.targets)}"
        return f"{self.at_s:.1f} s: {whom} for {self.for_s:.1f} s"


def schedule(
    seed: int, seconds: float, every_s: float, kinds: Sequence[str], osds: int, daemons: Sequence[str] = DAEMONS
) -> Iterator[Strike]:
    """Yield the strikes of a run, which depend on the seed. Each kind comes once per round; each round is shuffled."""
    rng = random.Random(f"{seed}/strikes")
    at_s = FIRST_STRIKE_S
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            if at_s > seconds - every_s / 2:
                return
            for_s = rng.uniform(0.15, 0.4) * every_s
            if kind in ("sleep consumer", "sleep producer", "sleep mover"):
                for_s = LEASE_S * rng.uniform(1.2, 2.5)
            if kind == "sleep primary":
                for_s = rng.uniform(0.2, 1.5) * every_s  # it is replaced after some 10 s
            yield Strike(at_s, kind, _targets(rng, kind, osds, daemons), for_s)
            at_s += every_s


def _targets(rng: random.Random, kind: str, osds: int, all_daemons: Sequence[str]) -> tuple[str, ...]:
    what = kind.partition(" ")[2]
    if what == "osd":
        return tuple(f"osd.{osd}" for osd in rng.sample(range(osds), rng.randint(1, OSDS_DOWN_MAX)))
    if any(kind.endswith(f" {what}") for kind in VITESS_KINDS):
        return (what,)
    daemons = [name for name in all_daemons if name.startswith(what)]
    return (rng.choice(daemons) if daemons else WHOLE,)


class Striker:
    """Carries out strikes, one after another, and brings back what they took down."""

    def __init__(self, servers: Servers, fleet: Fleet, strikes: Iterator[Strike], say: Callable[[str], None]) -> None:
        self._servers = servers
        self._fleet = fleet
        self._strikes = strikes
        self._say = say
        self._next = next(strikes, None)
        self._start_s = time.monotonic()
        self._struck: dict[DevServer, Strike] = {}
        """The servers with a missing part, until it is brought back."""
        self.done: list[str] = []
        self.on_database: list[tuple[str, float]] = []
        """The kind of each strike on the database, and when it had been carried out (time.monotonic)."""

    def begin(self) -> None:
        """Count the times of strikes from now on."""
        self._start_s = time.monotonic()

    def turn(self) -> None:
        """Carry out what is due. A strike on a server waits until the server is whole: with Ceph, until it is clean."""
        self._fleet.mend()
        for server, strike in list(self._struck.items()):
            if self._passed_s() >= strike.at_s + strike.for_s:
                self._bring_back(server)
        due = self._next
        if due is not None and self._passed_s() >= due.at_s and self._possible(due):
            self._next = next(self._strikes, None)
            self._carry_out(replace(due, at_s=self._passed_s()))

    def _passed_s(self) -> float:
        return time.monotonic() - self._start_s

    def _server(self, strike: Strike) -> DevServer | None:
        if strike.targets[0] in self._fleet.all():
            return None
        servers: dict[str, DevServer | None] = {"osd": self._servers.ceph, "kafka": self._servers.kafka}
        servers["cell"] = self._servers.last_database
        return servers.get(strike.what, self._servers.database)

    def _possible(self, strike: Strike) -> bool:
        server = self._server(strike)
        if server is None:
            is_late = self._passed_s() > strike.at_s + MOMENT_S_MAX
            return (self._fleet.is_awake if is_late else self._fleet.may_be_struck)(strike.targets[0])
        return server not in self._struck and server.settled()

    def _carry_out(self, strike: Strike) -> None:
        server = self._server(strike)
        for target in strike.targets:
            if isinstance(server, VitessServer) and strike.kind == "replace primary":
                server.replace_primary()
            elif server is not None:
                (server.kill if strike.kills else server.put_to_sleep)(target)
            elif strike.kills:
                self._fleet.kill(target)
            else:
                self._fleet.put_to_sleep(target, strike.for_s)
        if server is not None:
            self._struck[server] = strike
        if server is self._servers.database:
            self.on_database.append((strike.kind, time.monotonic()))
        self.done.append(str(strike))
        self._say(self.done[-1])

    def _bring_back(self, server: DevServer) -> None:
        """Bring a server back. One that was stopped is also started, because that waits until a cluster is clean and
        restarts daemons that died from the stop."""
        strike = self._struck.pop(server)
        if strike.kind.startswith("sleep"):
            for target in strike.targets:
                server.wake(target)
        server.begin_start()

    def wake_all(self) -> None:
        """Wake everything: a stopped process could not be ended afterwards."""
        self._fleet.wake()
        for server in list(self._struck):
            self._bring_back(server)

    def heal(self) -> None:
        """Bring everything back, and wait until every daemon reports that it is ready. Raises TimeoutError."""
        self._next = None
        self.wake_all()
        await_nothing("all servers to be back", HEAL_S_MAX, self._servers_are_whole)
        await_nothing("all daemons to be ready", HEAL_S_MAX, self._daemons_are_ready)

    def _servers_are_whole(self) -> str:
        self.turn()
        return ", ".join(server.name for server in self._servers.all() if not server.settled())

    def _daemons_are_ready(self) -> str:
        self._fleet.mend()
        return str(self._fleet.not_ready() or "")


def await_nothing(what: str, seconds_max: float, missing: Callable[[], str]) -> None:
    """Wait until nothing is missing any more for `what`. Raises TimeoutError, which names what still is."""
    deadline = time.monotonic() + seconds_max
    while problem := missing():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}: {problem}")
        time.sleep(WAIT_S)
