"""Everything at once, on one store: clients beside producers, consumers and GC that are killed and stopped at random.

Real processes, kill -9, and SIGSTOP for longer than lease and session (a zombie writer comes back, invariant 8). A
reading must be right at any moment; afterwards everything acknowledged is there, block counters add up, nothing is left
over. Every other writer uses the landing log, and one more S3, through a gateway that is killed as well.
NOS_EC_DEV_CHAOS_S sets how long it runs, NOS_EC_DEV_CHAOS_SEED repeats the choices of a run (not its timing).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nos_ec.composition.wiring import initialise, open_system
from nos_ec.settings import load_settings
from tests.rig.at_rest import come_to_rest, landing_log_of
from tests.rig.chaos.chaos_clients import Clients, Reader, Totals, Workload, Writer, always, judge
from tests.rig.chaos.chaos_fleet import CODES, Actor, Fleet
from tests.rig.chaos.chaos_s3 import ACTOR as S3_ACTOR
from tests.rig.chaos.chaos_s3 import FIRST_WRITER, S3Objects, address, gateway_actor
from tests.rig.s3.s3_gateway import Access, create_key
from tests.rig.sampling import sampled
from tests.service.conftest import CHUNK, CONFIG, SHORT, SHORT_MS, STRIPE, Bench

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
ACTORS = {
    "producer-0": Actor(("producer",), SHORT),
    "producer-1": Actor(("producer",), SHORT),
    "consumer-0": Actor(("consumer",), SHORT),
    "consumer-1": Actor(("consumer",), SHORT),
    "consumer-2": Actor(("consumer",), SHORT),
    **{
        f"gc-{number}": Actor(("gc", "run", "--apply", "--loop"), SHORT)
        for number in range(1 if GC_WORKERS == 1 else 2)
    },
}
"""Besides a gateway, which is only killed: a client that gave up waiting would not know what became of its request."""
S3_WRITERS = 1
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


def _strike(fleet: Fleet, rng: random.Random) -> str:
    """Kill one process, or stop it for longer than its lease and its session. Returns what was done."""
    name = rng.choice([name for name in fleet.all() if name not in fleet.asleep()])
    if rng.random() < 0.6 or name == S3_ACTOR:
        fleet.kill(name)
        return f"kill {name}"
    for_s = LEASE_S * rng.uniform(1.5, 3)
    fleet.put_to_sleep(name, for_s)
    return f"stop {name} {for_s:.1f}s"


def _run_clients_and_strike(fleet: Fleet, clients: Clients, totals: Totals, s3_totals: Totals) -> list[str]:
    """Returns what was done to which process."""
    rng = random.Random(f"{SEED}/strikes")
    strikes: list[str] = []
    clients.start()
    end, last_end = time.monotonic() + SECONDS, time.monotonic() + SECONDS_MAX
    next_strike = time.monotonic() + 2
    while not clients.stopped.is_set() and time.monotonic() < last_end:
        fleet.mend()
        if time.monotonic() >= end and not _missing(fleet, strikes, totals, s3_totals):
            break
        if time.monotonic() >= next_strike:
            strikes.append(_strike(fleet, rng))
            next_strike = time.monotonic() + rng.uniform(1, 3)
        clients.stopped.wait(0.05)
    fleet.wake()
    clients.stop(fleet.mend)
    return strikes


def _missing(fleet: Fleet, strikes: list[str], totals: Totals, s3_totals: Totals) -> list[str]:
    """What has not been seen often enough: things killed, stopped and collected while clients worked. With any of it
    missing the run proves nothing."""
    seen = Counter(strike.partition(" ")[0] for strike in strikes)
    seen[f"kill {S3_ACTOR}"] = strikes.count(f"kill {S3_ACTOR}")
    with totals.lock, s3_totals.lock:
        seen.update(totals.counts)
        seen.update({f"s3 {what}": count for what, count in s3_totals.counts.items()})
    wanted = {"kill": SECONDS / 10, "stop": 1, "read": 100, "put": 20, "put large": 4, "delete": 20}
    wanted |= {f"kill {S3_ACTOR}": 1, "s3 read": 20, "s3 put": 10, "s3 put large": 1, "s3 delete": 10}
    missing = [f"{what}: {seen[what]} of {count}" for what, count in wanted.items() if seen[what] < count]
    missing += [
        f"gc: no {figure}"
        for figure in ("blocks_deleted", "objects_moved")
        if not missing and not fleet.sum_said("gc", "collected", figure)
    ]
    return missing


def test_chaos(tmp_path: Path, say: Callable[[str], None]) -> None:
    assert SECONDS >= SECONDS_MIN, f"NOS_EC_DEV_CHAOS_S: {SECONDS} s prove nothing; use {SECONDS_MIN} at least"
    bench = Bench(tmp_path)
    text = CONFIG + "segment_age_ms = 2000\n[logging]\nformat = 'json'\n"
    for section, more in SETTINGS.items():
        text = text.replace(section, more)
    bench.config.write_text(text)
    initialise(bench.settings())
    totals, s3_totals = Totals(), Totals()
    access = Access(address(), *create_key(bench.config, "root"))
    say(f"\nchaos of {SECONDS:.0f} s, NOS_EC_DEV_CHAOS_SEED={SEED}")
    by_store = load_settings(bench.config, {"NOS_EC_LANDING__MODE": "store"})
    with bench.open() as system, open_system(by_store) as other:
        uses = [always(system.client.store()), always(other.client.store())]
        s3 = S3Objects(access, system.client.store().packed_size_max)
        s3_numbers = range(FIRST_WRITER, FIRST_WRITER + S3_WRITERS)
        s3_writers = [Writer(number, SEED, always(s3), WORKLOAD, s3_totals) for number in s3_numbers]
        writers = [Writer(number, SEED, uses[number % 2], WORKLOAD, totals) for number in range(WRITERS)]
        writers += s3_writers
        histories = {key: history for writer in writers for key, history in writer.histories.items()}
        readers = [Reader(number, SEED, uses[number % 2], histories, totals) for number in range(READERS)]
        readers.append(Reader(FIRST_WRITER, SEED, always(s3), histories, s3_totals))
        clients = Clients([*(w.run for w in writers), *(r.run for r in readers)], totals)
        fleet = Fleet(bench.config, ACTORS | {S3_ACTOR: gateway_actor(access, **SHORT)}, restart_wait_s=0)
        try:
            s3.create_buckets(bucket for writer in s3_writers for bucket in writer.buckets)
            strikes = _run_clients_and_strike(fleet, clients, totals, s3_totals)
            fleet.stop()
        finally:
            fleet.abandon()
        say(", ".join(strikes))
        say(f"S3: {dict(sorted(s3_totals.counts.items()))}")
        say(f"{dict(sorted(totals.counts.items()))} exit codes {dict(fleet.codes)}")
        assert totals.failures == []
        assert fleet.misbehaviour(CODES) == []
        assert _missing(fleet, strikes, totals, s3_totals) == []
        assert system.metadata.totals().packed_objects > 0
        log = landing_log_of(system)
        assert log is not None
        assert log.counters.records > 0
        before = judge(system.client.store(), histories)
    with bench.open() as system:
        left = come_to_rest(system)
        after = judge(system.client.store(), histories)
    assert before == after
    assert (after.uncertain, after.lost, after.corrupt) == (0, [], [])
    assert left == []
    say(f"{after.objects} objects acknowledged and read back: 0 lost, 0 corrupt")
