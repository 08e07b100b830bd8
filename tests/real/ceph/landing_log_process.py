"""A process that PUTs through a landing log on Ceph until it is killed: a program for test_landing_log_rados.py.

usage: landing_log_process.py DATABASE_URL CEPH_CONF USER KEYRING NAMESPACE

It prints a line with SAID, name and landing id of each object whose PUT is acknowledged, among those of its log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random

import google_crc32c

from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.segment_log import RadosSegmentLog
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.errors import NosError
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.ports.metadata import Metadata, NewObject, ObjectRow, PutRequest
from nos_ec.ports.segment_medium import SegmentMedium

SAID = "acknowledged"
STORE_ID = bytes(range(16))
POOL = "nos-ec-landing"
OPTIONS = LogOptions(open_segments=2, segment_age_ms=60_000, lease_ttl_ms=60_000, wait_ms=30_000)
SIZE_BYTES_MAX = 100_000


def data_of(name: str) -> bytes:
    """What the object of that name holds."""
    chance = Random(name)
    return chance.randbytes(chance.randrange(1, SIZE_BYTES_MAX))


def landing_log(metadata: Metadata, medium: SegmentMedium) -> LandingLog:
    """A log of this process."""
    return LandingLog(metadata, medium, SystemClock(), os.urandom, OPTIONS)


def put(metadata: Metadata, log: LandingLog, names: list[str]) -> dict[str, LandingId]:
    """PUT a batch of objects. Returns those that are acknowledged, and where they lie."""
    clock = SystemClock()
    copies = [
        NewCopy(ObjectKey("b", name), data, google_crc32c.value(data)) for name in names for data in [data_of(name)]
    ]
    landed = log.land(copies)
    try:
        new = [
            NewObject(PutRequest(copy.key), len(copy.data), copy.crc32c, bytes(16), outcome, due_ms=0)
            for copy, outcome in zip(copies, landed.outcomes, strict=True)
            if not isinstance(outcome, NosError)
        ]
        rows = metadata.record_puts(new, clock.now_ms())
    finally:
        landed.settle(())
    return {row.key.name: row.landing_id for row in rows if isinstance(row, ObjectRow) and row.landing_id is not None}


def put_until_killed(lane: int, act: Callable[[list[str]], dict[str, LandingId]]) -> None:
    """PUT batches of 1 to 20 objects."""
    chance = Random(lane)
    for batch in count():
        names = [f"{os.getpid()}-{lane}-{batch}-{number}" for number in range(chance.randint(1, 20))]
        lines = [f"{SAID} {name} {landing_id.hex()}\n" for name, landing_id in act(names).items()]
        os.write(1, "".join(lines).encode())


def main(database: str, conf: str, user: str, keyring: str, namespace: str) -> None:
    metadata = open_metadata(database)
    with RadosCluster(RadosOptions(Path(conf), user, Path(keyring), 30_000)) as cluster:
        log = landing_log(metadata, RadosSegmentLog(cluster, POOL, STORE_ID, namespace))
        with ThreadPoolExecutor(3) as pool:
            lanes = [pool.submit(put_until_killed, lane, lambda names: put(metadata, log, names)) for lane in range(3)]
            for lane in lanes:
                lane.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
