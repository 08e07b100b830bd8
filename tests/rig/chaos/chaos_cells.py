"""What a chaos run of a store of several cells does besides: one cell loses its database for a minute.

The store lies in cells of equal kind. Each writer has its buckets in one cell, so every call is one of that cell. The
last bucket of each writer is moved from cell to cell all the time (chaos_moves.py); what becomes of calls in these
buckets says nothing about a cell.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from nos_ec.composition.wiring import System, open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.upkeep.move_recovery import all_unfinished_moves
from nos_ec.ports.metadata import ROOT_ACCOUNT, MoveState
from nos_ec.settings import Settings, load_settings
from tests.rig.chaos.chaos_clients import Call, Clients, History, Verdict, buckets_of, judge
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

MOVING = "-2"
"""How the names of the buckets end that are moved: a third of those of each writer."""

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


def claim_homes(config: Path, cells: Sequence[str], writers: Iterable[int]) -> Mapping[str, str]:
    """Give each writer's buckets their homes before they exist. Returns the homes."""
    homes = {bucket: cell_of(number, cells) for number in writers for bucket in buckets_of(number)}
    if cells:
        with open_system(stores_of(config)[cells[0]]) as directory:
            for bucket, home in homes.items():
                directory.metadata.claim_home(bucket, ROOT_ACCOUNT, home, directory.clock.now_ms())
    return homes


def moving_among(homes: Mapping[str, str]) -> Mapping[str, str]:
    """Return those of the buckets of writers that are moved, with their homes. None of a store without cells is."""
    return {bucket: home for bucket, home in homes.items() if home and bucket.endswith(MOVING)}


def wrong_homes(config: Path, homes: Mapping[str, str]) -> list[str]:
    """Return what is wrong about where buckets are: each must be served by its home, these are known, and no other
    cell."""
    stores = stores_of(config)
    if "" in stores:
        return []
    found = []
    with ExitStack() as stack:
        systems = {name: stack.enter_context(open_system(settings)) for name, settings in stores.items()}
        directory = next(iter(systems.values()))
        for bucket, home in homes.items():
            row = directory.metadata.directory_row(bucket)
            if row is None or row.home != home:
                found.append(f"{bucket}: its home is {row and row.home}, not {home}")
            serving = [name for name, system in systems.items() if _serves(system, bucket)]
            if serving != [home]:
                found.append(f"{bucket}: it is served by the cells {serving}, and its home is {home}")
        for name, system in systems.items():
            found += [
                f"{row.bucket}: it is {row.state} in cell {name}" for row in all_unfinished_moves(system.metadata)
            ]
    return found


def judge_cells(
    systems: Mapping[str, System], histories: Mapping[ObjectKey, History], homes: Mapping[str, str]
) -> Verdict:
    """Judge the objects of each cell, or of the store, which has no name. Raises Transient."""
    verdict = Verdict()
    for name, system in systems.items():
        of_cell = {key: history for key, history in histories.items() if homes[key.bucket] == name}
        verdict.add(judge(system.client.store(), of_cell))
    return verdict


def _serves(system: System, bucket: str) -> bool:
    move = system.metadata.move_row(bucket)
    return (move is None or move.state is MoveState.HERE) and system.metadata.bucket(bucket) is not None


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
    returns all calls so far; `homes` has the buckets that are not moved. Raises ServerFailed, TimeoutError."""
    server, away = servers.last_database, servers.cells[-1]
    assert server is not None
    outage = Outage(random.Random(f"{seed}/outage").choice(("kill", "sleep")))
    first_s = time.monotonic()

    def of(cell: str, *, failed: bool, between: tuple[float, float]) -> list[Call]:
        return [
            call
            for call in calls()
            if homes.get(call.bucket) == cell
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
        return [call for call in calls() if call.puts and homes.get(call.bucket) == away and call.began_s >= since_s]

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
