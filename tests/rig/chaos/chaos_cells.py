"""What a chaos run of a store of several cells does besides: one cell loses its database for a minute.

The store lies in cells of equal kind. Each writer has all its buckets in one cell, so every call is one of that cell.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from nos_ec.composition.wiring import open_system
from nos_ec.ports.metadata import ROOT_ACCOUNT
from nos_ec.settings import Settings, load_settings
from tests.rig.chaos.chaos_clients import Call, Clients, buckets_of
from tests.rig.chaos.chaos_fleet import Fleet
from tests.rig.chaos.chaos_strikes import WAIT_S, Servers, await_nothing
from tests.rig.dev_servers import WHOLE

OUTAGE_S = 60.0
WARM_UP_CALLS = 30
"""At least this many calls of each cell must have succeeded before its database is taken away."""
WARM_UP_S_MAX = 180.0
CALLS_MIN = 50
"""At least this many calls of each other cell must succeed meanwhile: fewer would prove nothing."""
RESUME_S_MAX = 120.0
"""How long it may take until a PUT into the cell succeeds, once its database is back."""

TABLE = """
[cells.{name}]
store.root = "{name}"
store.metadata_url = "{url}"
ceph.namespace = "{tag}-{name}"
kafka.topic = "{tag}-{name}"
"""
"""Added to the configuration for each cell."""


def stores_of(config: Path) -> Mapping[str, Settings]:
    """The settings of each cell, by its name, or of the store, which then has no name."""
    settings = load_settings(config, {})
    return {name: settings.of_cell(name) for name in settings.cells} or {"": settings}


def cell_of(number: int, cells: Sequence[str]) -> str:
    """The cell of a writer's buckets."""
    return cells[number % len(cells)] if cells else ""


def claim_homes(config: Path, servers: Servers, writers: Iterable[int]) -> Mapping[str, str]:
    """Give each writer's buckets their homes before they exist. Returns the homes."""
    homes = {bucket: cell_of(number, servers.cells) for number in writers for bucket in buckets_of(number)}
    if servers.cells:
        with open_system(stores_of(config)[servers.cells[0]]) as directory:
            for bucket, home in homes.items():
                directory.metadata.claim_home(bucket, ROOT_ACCOUNT, home, directory.clock.now_ms())
    return homes


def wrong_homes(config: Path, servers: Servers, homes: Mapping[str, str]) -> list[str]:
    """The buckets that the directory has in another cell than at the start of the run."""
    if not servers.cells:
        return []
    with open_system(stores_of(config)[servers.cells[0]]) as directory:
        rows = {bucket: directory.metadata.directory_row(bucket) for bucket in homes}
    found = {bucket: None if row is None else row.home for bucket, row in rows.items()}
    return [
        f"{bucket}: its home is {found[bucket]}, not {home}" for bucket, home in homes.items() if found[bucket] != home
    ]


@dataclass(slots=True)
class Outage:
    """What the loss of a cell's database did. refused: failed calls of that cell; others may wait for the database.
    elsewhere: calls of the other cells that succeeded meanwhile. p99_ms: of these, before and meanwhile. resumed_s:
    from the return of the database until a PUT into the cell succeeded."""

    kind: str = ""
    refused: int = 0
    elsewhere: int = 0
    p99_ms: list[float] = field(default_factory=list)
    resumed_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def lose_database(
    servers: Servers,
    fleet: Fleet,
    clients: Clients,
    calls: Callable[[], Sequence[Call]],
    homes: Mapping[str, str],
    seed: int,
    say: Callable[[str], None],
) -> Outage:
    """Let the last cell lose its database for OUTAGE_S: kill the server, or stop it (SIGSTOP); the seed decides.
    Meanwhile no call of another cell may fail, and afterwards the cell must be served again without help. `calls`
    returns all calls so far. Raises ServerFailed, TimeoutError."""
    server, away = servers.last_database, servers.cells[-1]
    assert server is not None
    outage = Outage(random.Random(f"{seed}/outage").choice(("kill", "sleep")))
    first_s = time.monotonic()

    def of(cell: str, *, failed: bool, between: tuple[float, float]) -> list[Call]:
        return [
            call
            for call in calls()
            if homes[call.bucket] == cell
            and bool(call.error) == failed
            and call.ended_s > between[0]
            and call.began_s < between[1]
        ]

    def missing() -> str:
        fleet.mend()
        found = {name: len(of(name, failed=False, between=(first_s, time.monotonic()))) for name in servers.cells}
        few = {name: count for name, count in found.items() if count < WARM_UP_CALLS}
        if clients.stopped.is_set():
            return ""  # a client has failed, which is reported
        return f"calls of each cell: {found}" if few else str(fleet.not_ready() or "")

    await_nothing("clients and daemons to work in all cells", WARM_UP_S_MAX, missing)
    began_s = time.monotonic()
    say(f"{outage.kind} the database of cell {away} for {OUTAGE_S:.0f} s")
    (server.kill if outage.kind == "kill" else server.put_to_sleep)(WHOLE)
    while time.monotonic() < began_s + OUTAGE_S and not clients.stopped.is_set():
        fleet.mend()
        clients.stopped.wait(WAIT_S)
    ended_s = time.monotonic()
    if outage.kind == "sleep":
        server.wake(WHOLE)
    server.begin_start()

    def not_resumed() -> str:
        fleet.mend()
        return "" if clients.stopped.is_set() or _puts_since(ended_s) else "no PUT has succeeded"

    def _puts_since(since_s: float) -> list[Call]:
        return [call for call in calls() if call.puts and homes[call.bucket] == away and call.began_s >= since_s]

    await_nothing(f"{server.name} to be back", RESUME_S_MAX, lambda: "" if server.settled() else "it starts")
    await_nothing(f"cell {away} to be served again", RESUME_S_MAX, not_resumed)
    outage.resumed_s = round(time.monotonic() - ended_s, 1)
    outage.refused = len(of(away, failed=True, between=(began_s, ended_s)))
    before: list[float] = []
    meanwhile: list[float] = []
    for cell in servers.cells[:-1]:
        outage.problems += [
            f"while cell {away} had no database, {call.what} in {call.bucket} of cell {cell} failed: {call.error}"
            for call in of(cell, failed=True, between=(began_s, ended_s))
        ]
        served = of(cell, failed=False, between=(began_s, ended_s))
        if len(served) < CALLS_MIN:
            outage.problems.append(f"only {len(served)} calls of cell {cell} meanwhile, which proves nothing")
        outage.elsewhere += len(served)
        meanwhile += [call.ended_s - call.began_s for call in served]
        before += [call.ended_s - call.began_s for call in of(cell, failed=False, between=(first_s, began_s))]
    if any(
        began_s < call.began_s and call.ended_s < ended_s for call in of(away, failed=False, between=(began_s, ended_s))
    ):
        outage.problems.append(f"cell {away} was served without its database, so that this proves nothing")
    outage.p99_ms = [round(quantiles(times, n=100)[98] * 1000, 1) for times in (before, meanwhile) if len(times) > 1]
    say(
        f"cell {away}: {outage.refused} calls failed, served again {outage.resumed_s} s after its database came back;"
        f" the other cells served {outage.elsewhere} calls meanwhile, p99 {outage.p99_ms} ms before and meanwhile"
    )
    return outage
