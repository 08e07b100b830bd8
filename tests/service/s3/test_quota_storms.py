"""Many processes fill a bucket with a quota, and are killed and paused: the bound of the quota holds, and the usage is
what the rows say."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nos_ec.composition.wiring import System
from nos_ec.core.quotas.quota import Quota, encode
from nos_ec.engine.figures.bucket_count import count_bucket
from nos_ec.engine.objects.quotas import USED_MS
from nos_ec.ports.metadata import CannedAcl, DocumentKind, Sums
from nos_producer.assemble import producer_service
from tests.rig.at_rest import LaterClock
from tests.service.conftest import SHORT, TTL_OVER_MS, Bench
from tests.service.s3 import quota_storm
from tests.service.s3.quota_storm import BUCKET
from tests.service.s3.test_usage import counting

__all__ = ["counting"]
STORM_S = 30
WRITERS = 3
HARD_BYTES = 600_000


def start(bench: Bench, out: Path, seed: int) -> subprocess.Popen[bytes]:
    """Start a writer, whose output goes to the end of a file."""
    with out.open("ab") as file:
        command = [sys.executable, quota_storm.__file__, str(bench.config), str(seed)]
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


@contextmanager
def producer(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "nos_ec.cli", "--config", str(bench.config), "producer"]
    with (bench.folder / "producer.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | SHORT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def meter(system: System, quota: Quota) -> None:
    """Meter an empty bucket from now on, by its quota."""
    metadata = system.metadata
    metadata.create_bucket(BUCKET, "ann", CannedAcl.PRIVATE, 1)
    metadata.set_bucket_document(BUCKET, DocumentKind.QUOTA, encode(quota), 1)
    assert metadata.meter_bucket(BUCKET, 1)
    assert metadata.settle_usage(BUCKET, 1, Sums(), 1)


def held(system: System) -> Sums:
    found = system.metadata.bucket_usage(BUCKET)
    assert found is not None
    return found.held


def most_stored(lines: list[tuple[float, int]], span_s: float) -> int:
    """The most bytes that were stored in a span of this length."""
    lines = sorted(lines)
    most = total = first = 0
    for at_s, size in lines:
        total += size
        while lines[first][0] < at_s - span_s:
            total -= lines[first][1]
            first += 1
        most = max(most, total)
    return most


def test_usage_and_quota_in_a_storm(counting: Bench) -> None:
    """Writers are killed and paused, and so are the producers that add up their changes, for longer than their
    leases."""
    chance = random.Random(5)
    config = counting.config.read_text()
    counting.config.write_text(config + "\n[trash]\nkeep_days = 1\n")
    outs = [counting.folder / f"writer-{number}.txt" for number in range(WRITERS)]
    over = 0
    with counting.open() as system, ExitStack() as stack:
        meter(system, Quota(hard_bytes=HARD_BYTES))
        producers = [stack.enter_context(producer(counting)) for _ in range(2)]
        writers = [start(counting, out, number) for number, out in enumerate(outs)]
        seeds = iter(range(100, 1000))
        end_s = time.monotonic() + STORM_S
        try:
            while time.monotonic() < end_s:
                number = chance.randrange(WRITERS)
                which = chance.random()
                if which < 0.25:
                    writers[number].kill()
                    writers[number].wait()
                    writers[number] = start(counting, outs[number], next(seeds))
                elif which < 0.6:
                    one = chance.choice([*producers, writers[number]])
                    one.send_signal(signal.SIGSTOP)
                    time.sleep(1.5)
                    one.send_signal(signal.SIGCONT)
                for _ in range(20):
                    time.sleep(0.1)
                    over = max(over, held(system).bytes - HARD_BYTES)
        finally:
            for one in writers:
                one.kill()
                one.wait()
    lines, done = [], Counter[str]()
    for out in outs:
        for line in out.read_text(errors="replace").splitlines():
            words = line.split()
            with suppress(ValueError, IndexError):
                lines.append((float(words[0]), int(words[2] if len(words) == 3 else 0)))
                done[words[1]] += 1
    bound = most_stored(lines, 2 * USED_MS / 1000)
    print(f"over by {over} bytes, bound {bound}, {dict(done)}")

    for name in ("refused", "put", "put_version", "put_many", "delete", "upload"):
        assert done[name] > 0, name
    assert over <= bound
    counting.end_leases()
    with counting.open() as system:
        exact = count_bucket(system.metadata, BUCKET)
        assert (exact.correction, exact.drift) == (Sums(), Sums())
        system.clock = LaterClock(TTL_OVER_MS)
        with producer_service(system) as one_producer:
            one_producer.drain()
        assert held(system) == exact.sums
