"""One flipped bit in a file of an embedded store is noticed or does no harm, and nothing is lost because of it.

SQLite's files (metadata, messages) are excluded, because they have no checksums of their own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nos_ec.adapters.local.devices.device_format import HEADER_COPY_AT, SLOTS_AT, SUPERBLOCKS
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt, NosError, Transient
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from nos_ec.core.geometry import PAGE
from tests.rig.at_rest import end_log
from tests.service.conftest import CHUNK, STRIPE, Bench

pytestmark = pytest.mark.invariant(1)

SEED = int(os.environ.get("NOS_EC_DEV_FLIP_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
PER_REGION = int(os.environ.get("NOS_EC_DEV_FLIPS", "1"))
"""How many bits of each region are flipped; 0: all of them."""
SLOT = 1 << 20
FOOTER_BYTES = 120
SHARDS = 2
"""How many shards of each kind have their block files damaged: all have the same format."""


def regions(folder: Path) -> Iterator[tuple[Path, range]]:
    """Yield byte ranges of files that are neither SQLite's nor shared memory: headers, and short files as a whole."""
    device = folder / "landing_log" / "device0"
    yield from ((device, range(at, at + 72)) for at in SUPERBLOCKS)
    content = device.read_bytes()
    for slot in range(SLOTS_AT, len(content) - SLOT + 1, SLOT):
        if any(content[slot : slot + PAGE]):
            for at in (0, HEADER_COPY_AT):
                yield device, range(slot + at, slot + at + SEGMENT_HEADER_SIZE)
            yield device, range(slot + PAGE, slot + PAGE + RECORD_HEADER_SIZE + 200)
            yield device, range(slot + SLOT - PAGE, slot + SLOT - PAGE + 56)
        else:
            yield device, range(slot, slot + SEGMENT_HEADER_SIZE)
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path == device or path.name.startswith("slots-shm") or ".db" in path.name:
            continue
        size = path.stat().st_size
        if path.parent.parent.parent.name == "blocks":
            if int(path.parent.parent.name.removeprefix("shard-")) < SHARDS:
                yield path, range(min(size, 200))
                yield path, range(PAGE, min(size, PAGE + 200))
                yield path, range(2 * PAGE, size)
        elif path.parent.parent.name == "landing":
            yield path, range(size - min(size, FOOTER_BYTES), size)
        elif size:
            yield path, range(min(size, 512))


def bits(region: range, rng: random.Random) -> list[int]:
    every = range(8 * region.start, 8 * region.stop)
    return list(every) if PER_REGION == 0 else sorted(rng.sample(every, min(PER_REGION, len(every))))


def byte_of(path: Path, bit: int) -> int | None:
    """Return the byte of the file that contains the bit; None when the file is no longer that long."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(bit // 8)
        return next(iter(file.read(1)), None)
    return None


def flip(path: Path, bit: int) -> int | None:
    """Returns the byte as it is now; None when the file is no longer that long."""
    found = byte_of(path, bit)
    if found is None:
        return None
    with path.open("r+b") as file:
        file.seek(bit // 8)
        file.write(bytes([found ^ 1 << bit % 8]))
    return found ^ 1 << bit % 8


def is_harmless(bench: Bench, system: System) -> bool:
    """Check that every object is listed, and either reads as before or is reported as damaged. Returns whether all are
    as before."""
    store, harmless = system.client.store(), True
    for key, data in bench.acknowledged.items():
        try:
            assert store.get(key) == data, f"{key} reads as other bytes"
        except (Corrupt, Transient):
            harmless = False
    assert bench._listed(store) >= bench.acknowledged.keys(), "an object is missing"
    return harmless


def test_no_flipped_bit_is_turned_into_a_loss(bench: Bench) -> None:
    print(f"NOS_EC_DEV_FLIP_SEED={SEED}")
    rng = random.Random(SEED)
    with bench.open() as system:
        bench.put_some(system, 30)
        bench.put(system, "large", bench.data(5 * STRIPE))
        bench.pack(system)
        bench.put_some(system, 20, prefix="waits")
        bench.put(system, "copy", bench.data(3 * STRIPE))
        end_log(system)
    outcomes: dict[str, int] = {}
    folder = bench.folder / "store"
    for path, region in list(regions(folder)):
        for bit in bits(region, rng):
            changed = flip(path, bit)
            where = f"{path.relative_to(folder)}, bit {bit % 8} of byte {bit // 8}"
            if changed is None:
                continue
            try:
                with bench.open() as system:
                    outcome = "harmless" if is_harmless(bench, system) else "damaged"
                    bench.put_some(system, 2, CHUNK, prefix="more")
                    system.worker.housekeeping().run_once()
                    end_log(system)
            except NosError as error:
                outcome = type(error).__name__
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if byte_of(path, bit) == changed:
                flip(path, bit)
            try:
                with bench.open() as system:
                    assert is_harmless(bench, system), "an object is damaged"
            except (AssertionError, NosError) as error:
                raise AssertionError(f"{where}: {outcome}, and when it is as it was: {error}") from error
    print(outcomes)
    assert outcomes["harmless"]
