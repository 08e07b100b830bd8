"""A process with a landing log, or one that cleans up after it: a program for the crash matrix.

usage: landing_process.py DATABASE FOLDER BATCHES [joined]
       landing_process.py DATABASE FOLDER recover|overtaken

It puts batches of three objects, and prints a line with bucket, name and landing id of each that is acknowledged.
joined: appends create and seal segments, as on Ceph, also where it cleans up. recover: it seals what dead logs left.
overtaken: it seals a segment that others have sealed and forgotten meanwhile.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

import google_crc32c

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.errors import NosError
from nos_ec.core.ids import ObjectKey, new_segment_id
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.segment_seal import SegmentSeal
from nos_ec.ports.metadata import NewObject, ObjectRow, PutRequest
from nos_ec.ports.segment_medium import MediumLimits
from tests.rig.dead_logs import recover_logs
from tests.rig.fakes.folder_medium import FolderMedium
from tests.rig.fakes.memory_medium import JOINED, SMALL

OPTIONS = LogOptions(open_segments=2, segment_age_ms=60_000, lease_ttl_ms=30_000, wait_ms=10_000)


def data_of(name: str) -> bytes:
    """What the object of that name holds."""
    chance = Random(name)
    return chance.randbytes(chance.randrange(1, 3000))


def clean_up(database: str, folder: str, how: str) -> None:
    metadata, medium = open_metadata(database), FolderMedium(Path(folder), JOINED)
    if how == "recover":
        recover_logs(metadata, medium)
    else:
        assert SegmentSeal(metadata, medium).seal(new_segment_id(1, 9)) == 0
    metadata.close()


def main(database: str, folder: str, batches: int, limits: MediumLimits) -> None:
    clock = SystemClock()
    metadata = open_metadata(database)
    log = LandingLog(metadata, FolderMedium(Path(folder), limits), clock, os.urandom, OPTIONS)
    for batch in range(batches):
        keys = [ObjectKey("b", f"{os.getpid()}-{batch}-{number}") for number in range(3)]
        copies = [NewCopy(key, data, google_crc32c.value(data)) for key in keys for data in [data_of(key.name)]]
        landed = log.land(copies)
        new = [
            NewObject(PutRequest(copy.key), len(copy.data), copy.crc32c, bytes(16), outcome, due_ms=0)
            for copy, outcome in zip(copies, landed.outcomes, strict=True)
            if not isinstance(outcome, NosError)
        ]
        rows = metadata.record_puts(new, clock.now_ms())
        for row in rows:
            if isinstance(row, ObjectRow) and row.landing_id is not None:
                print(row.key.bucket, row.key.name, row.landing_id.hex(), flush=True)
        landed.settle(())
    log.close()
    metadata.close()


if __name__ == "__main__":
    if sys.argv[3].isdecimal():
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), JOINED if "joined" in sys.argv else SMALL)
    else:
        clean_up(*sys.argv[1:])
