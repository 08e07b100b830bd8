"""A gateway: a process that PUTs through a store until SIGTERM. A program for test_landing_log_life.py.

usage: gateway_process.py CONFIG, with the settings of its role in the environment

It prints a line for each PUT: ACKNOWLEDGED, REFUSED (there is no space) or FAILED (try again), and the object's name.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import count
from pathlib import Path
from random import Random
from threading import Event

import structlog

from nos_ec.composition.wiring import open_system
from nos_ec.core.errors import NoSpace, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from nos_ec.settings import load_settings

ACKNOWLEDGED, REFUSED, FAILED = "acknowledged", "refused", "failed"
BUCKETS = 3
THREADS = 6
SIZE_BYTES_MAX = 30_000
PAUSE_S = 0.1
"""So that consumers on a small machine keep up."""


def key_of(name: str) -> ObjectKey:
    """The key of the object of that name."""
    return ObjectKey(f"bucket-{int(name.rpartition('-')[2]) % BUCKETS}", name)


def data_of(name: str) -> bytes:
    """What the object of that name holds."""
    chance = Random(name)
    return chance.randbytes(chance.randint(1, SIZE_BYTES_MAX))


def put(store: Store, name: str) -> str:
    """PUT an object. Returns the outcome."""
    try:
        store.put(key_of(name), BytesIO(data_of(name)))
    except NoSpace:
        return REFUSED
    except Transient:
        return FAILED
    return ACKNOWLEDGED


def put_until(stop: Event, store: Store, thread: int) -> None:
    """PUT one object after another. Any other error ends the process."""
    try:
        for number in count():
            name = f"{os.getpid()}-{thread}-{number}"
            os.write(1, f"{put(store, name)} {name}\n".encode())
            if stop.wait(PAUSE_S):
                return
    finally:
        stop.set()


def main(config: str) -> None:
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with open_system(load_settings(Path(config), os.environ)) as system, ThreadPoolExecutor(THREADS) as pool:
        threads = [pool.submit(put_until, stop, system.client.store(), thread) for thread in range(THREADS)]
        stop.wait()
        for thread in threads:
            thread.result()


if __name__ == "__main__":
    main(sys.argv[1])
