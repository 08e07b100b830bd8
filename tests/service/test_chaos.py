"""Everything at once, on one store: clients beside producers, consumers and GC that are killed and stopped at random.

Real processes, kill -9, and SIGSTOP for longer than lease and session (a zombie writer comes back, invariant 8). A
reading must be right at any moment; afterwards everything acknowledged is there, the books balance, nothing is left
over. NOS_EC_DEV_CHAOS_S sets how long it goes on, NOS_EC_DEV_CHAOS_SEED repeats the choices of a run (not its timing).
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Event

import pytest

from nos_ec.core.errors import LeaseLost, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.wiring import System, initialise

from .conftest import CHUNK, CONFIG, STRIPE, Bench

SECONDS = float(os.environ.get("NOS_EC_DEV_CHAOS_S", "45"))
SEED = int(os.environ.get("NOS_EC_DEV_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECONDS_MIN = 20
"""Too short a run kills too little to mean anything."""

LEASE_S = 1.0
"""lease_ttl_ms and session_ms of the test configuration."""
START_S_MAX = 5.0
"""By then a daemon has its signal handlers, also on a busy machine."""
WRITERS, READERS, KEYS_PER_WRITER = 3, 2, 150
LATER_MS = 3_600_000
"""An hour, which the last clean-up is ahead: every lease, reservation, wait and republishing is due by then."""
CODES = {0, 9, -signal.SIGKILL}
"""How a daemon may end: asked to, after its lease was lost, killed by this test."""

ACTORS = {
    "producer-0": ("producer",),
    "producer-1": ("producer",),
    "consumer-0": ("consumer",),
    "consumer-1": ("consumer",),
    "consumer-2": ("consumer",),
    "gc-0": ("gc", "run", "--apply", "--loop"),
}
SETTINGS = {
    "[gc]": "[gc]\nwait_ms = 200\nhole_ratio_min = 0.3",
    "[reaper]": "[reaper]\nwait_ms = 200",
    "[consumer]": "[consumer]\nlinger_ms = 400",
    "[producer]": "[producer]\nidle_wait_ms = 50",
}
SIZES = (0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, STRIPE - 4096, STRIPE, 3 * STRIPE, 4 * STRIPE)
LARGE_SIZES = (4 * STRIPE + 1, 7 * STRIPE, 8 * STRIPE, 8 * STRIPE + 1, 17 * STRIPE + 5)


class LaterClock:
    """The system's time, an hour on."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + LATER_MS

    def wait(self, stop: Event, wait_ms: int) -> bool:
        return stop.wait(wait_ms / 1000)


# --- daemons -----------------------------------------------------------------------------------------
class Fleet:
    """The daemons, started again whenever they end, each with one log file for all its lives."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("NOS_EC_")}
        self._started: dict[str, float] = {}
        self._processes = {name: self._start(name) for name in ACTORS}
        self._stopped: dict[str, float] = {}
        self.kills: list[str] = []
        self.codes: Counter[int] = Counter()

    def log(self, name: str) -> Path:
        return self._bench.folder / f"{name}.log"

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nos_ec", "--config", str(self._bench.config), *ACTORS[name]]
        self._started[name] = time.monotonic()
        with self.log(name).open("ab") as log:
            return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=log)

    def strike(self, rng: random.Random) -> None:
        """Kill one process, or stop it for longer than its lease and its session."""
        name = rng.choice([name for name in ACTORS if name not in self._stopped])
        if rng.random() < 0.6:
            self.kills.append(f"kill {name}")
            self._processes[name].kill()
        else:
            for_s = LEASE_S * rng.uniform(1.5, 3)
            self.kills.append(f"stop {name} {for_s:.1f}s")
            self._processes[name].send_signal(signal.SIGSTOP)
            self._stopped[name] = time.monotonic() + for_s

    def mend(self) -> None:
        """Wake whoever slept long enough, start whoever ended."""
        for name, until in list(self._stopped.items()):
            if time.monotonic() >= until:
                self._processes[name].send_signal(signal.SIGCONT)
                del self._stopped[name]
        for name, process in self._processes.items():
            if process.poll() is not None:
                self.codes[process.returncode] += 1
                self._processes[name] = self._start(name)

    def wake(self) -> None:
        """Wake all sleepers: one that sleeps inside a transaction of SQLite keeps every writer waiting."""
        for name in self._stopped:
            self._processes[name].send_signal(signal.SIGCONT)
        self._stopped.clear()

    def stop(self) -> None:
        """End them all as an operator does, each when it is up: sooner, SIGTERM ends it as it ends any process."""
        for name, process in self._processes.items():
            time.sleep(max(0.0, self._started[name] + START_S_MAX - time.monotonic()))
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes.values():
            try:
                self.codes[process.wait(timeout=45)] += 1
            except subprocess.TimeoutExpired:
                process.kill()
                self.codes[process.wait()] += 1
                raise
        self._processes.clear()

    def abandon(self) -> None:
        """Leave no process behind when the test failed."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def said(self, name: str) -> list[dict[str, object]]:
        """What a daemon logged. Beside it there are the last words of those that ended with an error."""
        lines = self.log(name).read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


# --- clients -----------------------------------------------------------------------------------------
@dataclass(slots=True)
class History:
    """All that was ever asked for one key, in order; None is a deletion.

    A reading that begins now may return what was acknowledged last, or anything asked for since.
    """

    asked: list[bytes | None] = field(default_factory=lambda: [None])
    acknowledged: int = 0


@dataclass(slots=True)
class Totals:
    """Counts over all clients."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1


class Writer:
    """Puts, overwrites and deletes keys that are its own, one after the other."""

    def __init__(self, number: int, system: System, totals: Totals) -> None:
        self._rng = random.Random(f"{SEED}/writer/{number}")
        self._store = system.store()
        self._totals = totals
        buckets = [f"bucket-{number}-{bucket}" for bucket in range(3)]
        keys = [ObjectKey(buckets[index % 3], f"o/{index:04}") for index in range(KEYS_PER_WRITER)]
        self.histories = {key: History() for key in keys}

    def run(self, stop: Event) -> None:
        while not stop.is_set():
            key = self._rng.choice(list(self.histories))
            chance = self._rng.random()
            if chance < 0.3:
                self._change("delete", {key: None}, partial(self._delete, key))
            elif chance < 0.34:
                data = self._rng.randbytes(self._rng.choice(LARGE_SIZES))
                self._put("put large", key, data)
            elif chance < 0.6:
                self._put("put", key, self._rng.randbytes(self._small_size()))
            else:
                batch = self._rng.sample(list(self.histories), 8)
                new = {key: self._rng.randbytes(self._rng.randint(1, 2 * CHUNK)) for key in batch}
                self._change("put batch", dict(new), partial(self._store.put_many, list(new.items())))

    def _small_size(self) -> int:
        if self._rng.random() < 0.3:
            return self._rng.choice([*SIZES, self._store.packed_size_max])
        return self._rng.randint(1, 2 * CHUNK)

    def _put(self, what: str, key: ObjectKey, data: bytes) -> None:
        self._change(what, {key: data}, lambda: self._store.put(key, BytesIO(data)))

    def _delete(self, key: ObjectKey) -> None:
        try:
            self._store.delete(key)
        except NotFound:
            if self.histories[key].asked[self.histories[key].acknowledged] is not None:
                raise

    def _change(self, what: str, new: dict[ObjectKey, bytes | None], act: Callable[[], object]) -> None:
        """Ask until it is acknowledged, as a client does that was told to try again."""
        for key, data in new.items():
            self.histories[key].asked.append(data)
        while True:
            try:
                act()
            except (Transient, LeaseLost) as error:
                self._totals.count(f"{what}: {type(error).__name__}, tried again")
                continue
            break
        for key in new:
            self.histories[key].acknowledged = len(self.histories[key].asked) - 1
        self._totals.count(what)


class Reader:
    """Reads any key at any moment, whole and in ranges, and lists."""

    def __init__(self, number: int, system: System, histories: dict[ObjectKey, History], totals: Totals) -> None:
        self._rng = random.Random(f"{SEED}/reader/{number}")
        self._store = system.store()
        self._histories = histories
        self._totals = totals

    def run(self, stop: Event) -> None:
        keys = list(self._histories)
        while not stop.is_set():
            key = self._rng.choice(keys)
            history = self._histories[key]
            first = history.acknowledged
            found = self._get(key)
            allowed = history.asked[first:]
            self._totals.count("read" if found is not None else "read: not found")
            if found not in allowed:
                size = None if found is None else len(found)
                sizes = [None if data is None else len(data) for data in allowed]
                raise AssertionError(f"{key}: read {size} bytes, which is none of the {sizes} that it could be")

    def _get(self, key: ObjectKey) -> bytes | None:
        try:
            return self._store.get(key)
        except NotFound:
            return None


# --- the test ----------------------------------------------------------------------------------------
def _guarded(run: Callable[[Event], None], stop: Event, totals: Totals) -> Callable[[], None]:
    """A client that fails ends the run, and its error is told."""

    def guarded() -> None:
        try:
            run(stop)
        except BaseException as error:
            with totals.lock:
                totals.failures.append(f"{type(error).__name__}: {error}")
            stop.set()

    return guarded


def _run_clients_and_strike(fleet: Fleet, clients: list[Callable[[Event], None]], totals: Totals) -> None:
    rng = random.Random(f"{SEED}/strikes")
    stop = Event()
    threads = [threading.Thread(target=_guarded(client, stop, totals)) for client in clients]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS
    next_strike = time.monotonic() + 2
    while not stop.is_set() and time.monotonic() < end:
        fleet.mend()
        if time.monotonic() >= next_strike:
            fleet.strike(rng)
            next_strike = time.monotonic() + rng.uniform(1, 3)
        stop.wait(0.05)
    stop.set()
    fleet.wake()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a client hangs"


def _assert_daemons_behaved(fleet: Fleet) -> None:
    assert set(fleet.codes) <= CODES, fleet.codes
    for name in ACTORS:
        text = fleet.log(name).read_text()
        assert "Traceback" not in text, f"{name}: {text[text.index('Traceback') :][:3000]}"
        damaged = re.findall(r".*(?:damaged|no readable header|lost stripes|reads back differently).*", text)
        assert damaged == [], f"{name}: {damaged[:5]}"


def _assert_it_was_chaos(fleet: Fleet, totals: Totals, system: System) -> None:
    """Something was killed, stopped, packed and collected while clients worked: else the run proves nothing."""
    struck = Counter(kill.partition(" ")[0] for kill in fleet.kills)
    assert struck["kill"] >= SECONDS / 10
    assert struck["stop"] >= 1
    assert totals.counts["read"] > 100
    assert totals.counts["put"] > 20
    assert totals.counts["put large"] > 3
    assert totals.counts["delete"] > 20
    collected = [event for event in fleet.said("gc-0") if event["event"] == "collected"]
    assert sum(int(str(event["blocks_deleted"])) for event in collected) > 0
    assert sum(int(str(event["objects_moved"])) for event in collected) > 0
    assert system.metadata.totals().packed_objects > 0


def test_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SECONDS >= SECONDS_MIN, f"NOS_EC_DEV_CHAOS_S: {SECONDS} s prove nothing; use {SECONDS_MIN} at least"
    bench = Bench(tmp_path)
    text = CONFIG + "[logging]\nformat = 'json'\n"
    for section, more in SETTINGS.items():
        text = text.replace(section, more)
    bench.config.write_text(text)
    initialise(bench.settings())
    totals = Totals()
    with capsys.disabled():
        print(f"\nchaos of {SECONDS:.0f} s, NOS_EC_DEV_CHAOS_SEED={SEED}")
    with bench.open() as system, bench.open() as other:
        writers = [Writer(number, system, totals) for number in range(WRITERS)]
        histories = {key: history for writer in writers for key, history in writer.histories.items()}
        readers = [Reader(number, other, histories, totals) for number in range(READERS)]
        fleet = Fleet(bench)
        try:
            _run_clients_and_strike(fleet, [*(w.run for w in writers), *(r.run for r in readers)], totals)
            fleet.stop()
        finally:
            fleet.abandon()
            with capsys.disabled():
                print(", ".join(fleet.kills))
                print(dict(sorted(totals.counts.items())), "exit codes", dict(fleet.codes))
        assert totals.failures == []
        _assert_daemons_behaved(fleet)
        _assert_it_was_chaos(fleet, totals, system)
        acknowledged = {key: history.asked[history.acknowledged] for key, history in histories.items()}
        bench.acknowledged = {key: data for key, data in acknowledged.items() if data is not None}
        bench.assert_readable(system)
        system.clock = LaterClock()
        bench.settle(system)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)
    with capsys.disabled():
        print(f"{len(bench.acknowledged)} objects acknowledged and read back: 0 lost, 0 corrupt")
