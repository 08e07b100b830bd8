"""Everything at once, on one store: clients beside producers, consumers and GC that are killed and stopped at random.

Real processes, kill -9, and SIGSTOP for longer than lease and session (a zombie writer comes back, invariant 8). A
reading must be right at any moment; afterwards everything acknowledged is there, block counters add up, nothing is left
over. Every other writer uses the landing log, and one more S3, through a gateway that is killed as well. With three
cells, an operator moves buckets from cell to cell, and the commands are killed and stopped, too.

NOS_EC_DEV_CHAOS_S sets how long it runs, NOS_EC_DEV_CHAOS_SEED repeats the choices of a run (not its timing).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings
from tests.rig.at_rest import come_to_rest
from tests.rig.chaos.chaos_cells import claim_homes, judge_cells, moving_among, stores_of, wrong_homes
from tests.rig.chaos.chaos_clients import Clients, History, Reader, Totals, Workload, Writer, always
from tests.rig.chaos.chaos_fleet import CODES, Actor, Fleet
from tests.rig.chaos.chaos_gateway import LibraryStore, open_library
from tests.rig.chaos.chaos_moves import ACTOR as MOVER
from tests.rig.chaos.chaos_moves import Moves, incomplete
from tests.rig.chaos.chaos_run import ARGUMENTS, create_stores
from tests.rig.chaos.chaos_s3 import ACTOR as S3_ACTOR
from tests.rig.chaos.chaos_s3 import FIRST_WRITER, S3Objects, address, gateway_actor
from tests.rig.chaos.chaos_strikes import await_nothing
from tests.rig.s3.s3_gateway import Access, create_key
from tests.rig.sampling import sampled
from tests.service.conftest import CHUNK, CONFIG, SHORT, SHORT_MS, STRIPE, WAIT_S_MAX

pytestmark = [pytest.mark.every_time, pytest.mark.timed, pytest.mark.invariant(1)]

SECONDS = float(os.environ.get("NOS_EC_DEV_CHAOS_S", sampled("25", "45")))
SEED = int(os.environ.get("NOS_EC_DEV_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECONDS_MIN = 20
"""A shorter run kills too little to mean anything."""
SECONDS_MAX = max(270, 6 * SECONDS)
"""On a busy machine it continues until enough has happened, for this long."""

LEASE_S = SHORT_MS / 1000
WRITERS, READERS = 3, 2

GC_WORKERS = random.Random(SEED).choice([1, 3])
"""With several, two processes take turns with their work."""
COUNTS = {"producer": 2, "consumer": 3, "gc": 1 if GC_WORKERS == 1 else 2}
CELL_COUNTS = {"producer": 1, "consumer": 2, "gc": 1}
"""With several cells there are fewer daemons, because each has a process for each cell."""
S3_NUMBERS = range(FIRST_WRITER, FIRST_WRITER + 1)
"""The numbers of the writers that use S3."""
S3_CHANGES_MIN = 10
"""The gateway is killed again after this many changes have succeeded: a busy machine takes long to start it."""
CASES: Sequence[Sequence[str]] = [(), ("a", "b", "c")]
"""The cells of the store."""
SETTINGS = {
    "reservation_ms = 30000": f"reservation_ms = {SHORT_MS}",
    "lease_ttl_ms = 30000": f"lease_ttl_ms = {SHORT_MS}",
    "[gc]": f"[gc]\nworkers = {GC_WORKERS}\nwait_ms = 200\nhole_ratio_min = 0.3\nread_slowdown_max = 0",
    "[consumer]": "[consumer]\nlanes = 3\nlinger_ms = 400\nlinger_max_ms = 400",
}
WORKLOAD = Workload(
    keys=150,
    size_max=2 * CHUNK,
    edge_sizes=(0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, STRIPE - 4096, STRIPE, 3 * STRIPE, 4 * STRIPE),
    large_sizes=(4 * STRIPE + 1, 7 * STRIPE, 8 * STRIPE, 8 * STRIPE + 1, 17 * STRIPE + 5),
    tries_max=1000,
    retry_wait_s=0.02,
)


def configure(folder: Path, cells: Sequence[str]) -> Path:
    """Create a store, or its cells. Returns its configuration."""
    text = CONFIG + "segment_age_ms = 2000\n[logging]\nformat = 'json'\n"
    for section, more in SETTINGS.items():
        text = text.replace(section, more)
    if cells:
        text = text.replace('root = "store"', f'directory = "{cells[0]}"')
        text += "".join(f'[cells.{name}]\nstore.root = "{name}"\n' for name in cells)
    config = folder / "nos-ec.toml"
    config.write_text(text)
    create_stores(config)
    return config


def actors(access: Access, moves: Moves) -> dict[str, Actor]:
    """The daemons, a gateway, and with several cells the operator who moves buckets."""
    counts = CELL_COUNTS if moves.homes else COUNTS
    found = {
        f"{kind}-{number}": Actor(ARGUMENTS[kind], SHORT) for kind, count in counts.items() for number in range(count)
    }
    found[S3_ACTOR] = gateway_actor(access, **SHORT)
    return found | ({MOVER: Actor(moves, SHORT)} if moves.homes else {})


@dataclass(slots=True)
class Run:
    """What works in a run: stores whose PUTs use the landing log or not, S3, and an operator."""

    logged: LibraryStore
    other: LibraryStore
    s3: S3Objects
    moves: Moves
    working: Clients = field(init=False)
    totals: Totals = field(default_factory=Totals)
    s3_totals: Totals = field(default_factory=Totals)
    changes_before: int = 0
    """How many changes through S3 had succeeded when the gateway was last killed."""

    def clients(self) -> Mapping[ObjectKey, History]:
        """Start all clients, once the buckets exist that S3 uses, and those that are moved. Returns what they know."""
        uses = [always(self.logged), always(self.other)]
        workload = replace(WORKLOAD, batch_in_bucket=bool(self.moves.homes))
        writers = [Writer(number, SEED, uses[number % 2], workload, self.totals) for number in range(WRITERS)]
        s3_writers = [Writer(number, SEED, always(self.s3), workload, self.s3_totals) for number in S3_NUMBERS]
        histories = {key: history for one in writers + s3_writers for key, history in one.histories.items()}
        readers = [Reader(number, SEED, uses[number % 2], histories, self.totals) for number in range(READERS)]
        readers.append(Reader(FIRST_WRITER, SEED, always(self.s3), histories, self.s3_totals))
        self.s3.create_buckets({*self.moves.homes, *(bucket for one in s3_writers for bucket in one.buckets)})
        self.moves.begin()
        runs = [*(one.run for one in writers + s3_writers), *(one.run for one in readers)]
        self.working = Clients(runs, self.totals)
        self.working.start()
        return histories


def _strike(fleet: Fleet, rng: random.Random, run: Run) -> str:
    """Kill one process, or stop it for longer than its lease and its session. The gateway is only killed: a client that
    gave up waiting would not know what became of its request. Returns what was done."""
    with run.s3_totals.lock:
        changes = sum(run.s3_totals.counts[what] for what in ("put", "put large", "put batch", "delete"))
    has_worked = changes >= run.changes_before + S3_CHANGES_MIN
    names = [name for name in fleet.all() if fleet.may_be_struck(name) and (name != S3_ACTOR or has_worked)]
    name = MOVER if MOVER in names else rng.choice(names)  # a bucket is not moved most of the time
    if name == S3_ACTOR:
        run.changes_before = changes
    if rng.random() < 0.6 or name == S3_ACTOR:
        fleet.kill(name)
        return f"kill {name}"
    for_s = LEASE_S * rng.uniform(1.5, 3)
    fleet.put_to_sleep(name, for_s)
    return f"stop {name} {for_s:.1f}s"


def _run_clients_and_strike(fleet: Fleet, run: Run) -> list[str]:
    """Returns what was done to which process. The last move of a bucket is complete afterwards."""
    rng = random.Random(f"{SEED}/strikes")
    strikes: list[str] = []
    clients = run.working
    end, last_end = time.monotonic() + SECONDS, time.monotonic() + SECONDS_MAX
    next_strike = time.monotonic() + 2
    while not clients.stopped.is_set() and time.monotonic() < last_end:
        fleet.mend()
        if time.monotonic() >= end and not _missing(fleet, strikes, run):
            break
        if time.monotonic() >= next_strike:
            strikes.append(_strike(fleet, rng, run))
            next_strike = time.monotonic() + rng.uniform(1, 3)
        clients.stopped.wait(0.05)
    fleet.wake()
    clients.stop(fleet.mend)
    run.moves.finish()

    def moving() -> str:
        fleet.mend()
        return run.moves.unfinished

    await_nothing("the last move of a bucket", WAIT_S_MAX, moving)
    return strikes


def _missing(fleet: Fleet, strikes: list[str], run: Run) -> list[str]:
    """What has not been seen often enough: things killed, stopped, moved and collected while clients worked. With any
    of it missing the run proves nothing."""
    seen = Counter(strike.partition(" ")[0] for strike in strikes)
    seen.update(" ".join(strike.split()[:2]) for strike in strikes)
    with run.totals.lock, run.s3_totals.lock:
        seen.update(run.totals.counts)
        seen.update({f"s3 {what}": count for what, count in run.s3_totals.counts.items()})
    seen.update({f"move {what}": count for what, count in run.moves.counts.items()})
    wanted = {"kill": SECONDS / 10, "stop": 1, "read": 100, "put": 20, "put large": 4, "delete": 20}
    wanted |= {f"kill {S3_ACTOR}": 1, "s3 read": 20, "s3 put": 10, "s3 put large": 1, "s3 delete": 10}
    if run.moves.homes:
        wanted |= {f"kill {MOVER}": 1, "move completed": 1, "move interrupted": 1}
    missing = [f"{what}: {seen[what]} of {count}" for what, count in wanted.items() if seen[what] < count]
    missing += [
        f"gc: no {figure}"
        for figure in ("blocks_deleted", "objects_moved")
        if not missing and not fleet.sum_said("gc", "collected", figure)
    ]
    return missing


@pytest.mark.parametrize("cells", sampled(CASES[:1], CASES), ids=lambda cells: f"{len(cells) or 1} cells")
def test_chaos(tmp_path: Path, say: Callable[[str], None], cells: Sequence[str]) -> None:
    assert SECONDS >= SECONDS_MIN, f"NOS_EC_DEV_CHAOS_S: {SECONDS} s prove nothing; use {SECONDS_MIN} at least"
    config = configure(tmp_path, cells)
    homes = claim_homes(config, cells, [*range(WRITERS), *S3_NUMBERS])
    moves = Moves(moving_among(homes), cells, SEED)
    access = Access(address(), *create_key(config, "root"))
    say(f"\nchaos of {SECONDS:.0f} s, NOS_EC_DEV_CHAOS_SEED={SEED}, {len(cells)} cells")
    with ExitStack() as stack:
        modes = [{"NOS_EC_LANDING__MODE": mode} for mode in ("log", "store")]
        logged, other = (stack.enter_context(closing(open_library(load_settings(config, mode)))) for mode in modes)
        run = Run(logged, other, S3Objects(access, logged.packed_size_max), moves)
        fleet = Fleet(config, actors(access, moves), restart_wait_s=0)
        stack.callback(fleet.abandon)
        histories = run.clients()
        strikes = _run_clients_and_strike(fleet, run)
        fleet.stop()
        say(", ".join(strikes))
        say(f"S3: {dict(sorted(run.s3_totals.counts.items()))}; moves of buckets: {dict(moves.counts)}")
        say(f"{dict(sorted(run.totals.counts.items()))} exit codes {dict(fleet.codes)}")
        assert run.totals.failures + run.s3_totals.failures == []
        assert fleet.misbehaviour(CODES) + moves.problems == []
        assert _missing(fleet, strikes, run) == []
        assert all(system.metadata.totals().packed_objects > 0 for system in logged.systems.values())
        assert logged.logged_objects > 0
        homes = {**homes, **moves.homes}
        assert wrong_homes(config, homes) + (incomplete(config) if cells else []) == []
        before = judge_cells(logged.systems, histories, homes)
    with ExitStack() as stack:
        systems = {name: stack.enter_context(open_system(settings)) for name, settings in stores_of(config).items()}
        left = [what for system in systems.values() for what in come_to_rest(system)]
        after = judge_cells(systems, histories, homes)
    assert before == after
    assert (after.uncertain, after.lost, after.corrupt) == (0, [], [])
    assert left == []
    say(f"{after.objects} objects acknowledged and read back: 0 lost, 0 corrupt")
