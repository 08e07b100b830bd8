"""PUTs that are gathered: the first is a batch of its own, all others are the second. A program for the crash matrix.
The first lands in the landing store, also in mode log.

usage: gathered_puts.py CONFIG SIZE       each line of standard input names an object; those that are acknowledged are
       written to standard output. All bytes of an object are the last byte of its name.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

from nos_ec.adapters.local.devices import device_log
from nos_ec.composition import landing
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.landing import copy_lander
from nos_ec.engine.objects import put_queue
from nos_ec.settings import load_settings
from tests.rig.fakes.faulty import Faults, faulty


def data_of(name: str, size: int) -> bytes:
    """The bytes of an object."""
    return name[-1].encode() * size


def main(config: str, size: int) -> None:
    names = sys.stdin.read().split()
    copy_lander.BATCHES_MAX = device_log.WRITES_MAX = landing.APPENDS = 1  # so that all that wait make one batch
    put_queue.CALM_S = 60.0  # so that they wait for the first, however long the others take to come on a busy machine
    faults = Faults()
    with open_system(load_settings(Path(config), os.environ)) as system, ThreadPoolExecutor(len(names)) as pool:
        system.metadata = faulty(system.metadata, faults)
        store = system.client.store()

        def put(name: str) -> None:
            store.put(ObjectKey("b", name), BytesIO(data_of(name, size)))
            os.write(1, f"{name}\n".encode())

        def gather(method: str) -> None:
            while (
                method == "reserve_landing"
                and faults.calls[method] == 1
                and system.client.puts.waiting < len(names) - 1
            ):
                time.sleep(0.001)

        faults.hook = gather
        list(pool.map(put, names))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
