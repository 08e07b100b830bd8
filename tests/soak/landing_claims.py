"""What the landing log shows on devices of what published systems claim: the rows of docs/MEASUREMENTS.md.

Loop devices over files in --folder stand for raw devices, so this needs root. There are no rows of objects, except
where whole stores are compared (U4, U7, U8, L3). What is compared is measured in turns of one run; a first turn does
not count, and figures are medians of the rounds. Prints a line of JSON for each row.

    .venv/bin/python tests/soak/landing_claims.py --folder var --rows A1 U6
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice, takewhile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, cast
from unittest.mock import patch

import google_crc32c

from nos_consumer.assemble import consumer_service
from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.bench.callers import call_all
from nos_ec.bench.figures import percentile
from nos_ec.bench.life.life_ways import Alone
from nos_ec.bench.offline import publish
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import NosError
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE, decode_footer, footer_size, scan
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, record_offset, segment_of
from nos_ec.core.states import ObjectState
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.objects.put_batches import PutBatches
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.ports.metadata import NewObject, ObjectRow, Objects, PutRequest
from nos_ec.ports.segment_medium import Buffer, Seal, SegmentMedium, SegmentWriter
from nos_ec.settings import load_settings
from tests.rig.fakes.memory_segments import MemorySegments
from tests.rig.loop_devices import loop_device

KIB, MIB = 1 << 10, 1 << 20
STORE = "00112233445566778899aabbccddeeff"
SLOT = 64 * MIB
SLOTS = 15
RUN_OBJECTS = 64
READERS = 4
READ_BYTES_S = 150e6
"""What catches up while PUTs continue, in A1."""
SLOWED_BYTES_S = MIB
"""What a slowed device takes in a second, in U6: far less than one process can give it."""
VOLUME_BYTES_S, VOLUME_WRITES_S = 125 * MIB, 3000
"""What a volume takes in a second, in A5: the baseline of the cloud volumes that the Delta WAL is made for."""
POLLED, TURN_S, PUT_S = 50, 5.0, 0.02
"""In U7 the consumer takes this many messages at intervals of this many seconds; a PUT follows the last one after this
time."""
BLKIO = Path("/sys/fs/cgroup/blkio")
NOISE = random.Random(1).randbytes(8 * MIB)

Item = tuple[ObjectKey, bytes]
Copy = tuple[LandingId, int]
Found = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """rounds: that count. objects: of a turn. seconds: how long a turn of A1 and the backlog of U7 last."""

    rounds: int
    objects: int
    seconds: float
    backlog_seconds: float
    buckets: int
    kills: int


# --- the log, without rows ----------------------------------------------------------------------------
class CountedMedium:
    """A medium that records the size of each append."""

    def __init__(self, medium: SegmentMedium) -> None:
        self.inner = medium
        self.appends: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> SegmentWriter:
        return CountedWriter(self.inner.create(segment, epoch, first_lsn), self.appends)


class CountedWriter:
    def __init__(self, writer: SegmentWriter, appends: list[int]) -> None:
        self._writer = writer
        self._appends = appends

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        self._writer.append(offset, batch, seal)
        self._appends.append(sum(map(len, batch)))

    def close(self) -> None:
        self._writer.close()


class Landing:
    """A log of this process on devices, and the queue of PUTs before it."""

    def __init__(
        self, folder: Path, devices: Sequence[Path], *, lanes: int = 1, file_bytes: int = 0, copies: int = 1
    ) -> None:
        DeviceLog.initialise(folder, devices, STORE, slot_bytes=SLOT, file_bytes=file_bytes)
        self.folder, self.devices, self._lanes = folder, devices, lanes
        self.medium = DeviceLog(folder, devices, STORE, copies=copies)
        self._counted = CountedMedium(self.medium)
        self.reader = LogReader(self.medium)
        self.log, self._queue = self._open()

    def _open(self) -> tuple[LandingLog, PutQueue]:
        self.segments = MemorySegments()
        options = LogOptions(self._lanes, segment_age_ms=3_600_000, lease_ttl_ms=3_600_000, wait_ms=30_000)
        clock = SystemClock()
        log = LandingLog(self.segments, cast(SegmentMedium, self._counted), clock, os.urandom, options)
        batches = PutBatches(log, cast(Objects, self), clock, LocationCache(clock, 0, 0))
        return log, PutQueue(batches, perf_counter)

    def record_puts(self, new: Sequence[NewObject], now_ms: int, *, together: bool) -> list[ObjectRow]:
        """In place of the metadata's."""
        return [
            ObjectRow(0, one.key, 1, one.size, one.crc32c, one.md5, ObjectState.LANDED, one.landing_id, None, now_ms)
            for one in new
        ]

    def put(self, item: Item) -> Copy:
        key, data = item
        new = NewObject(PutRequest(key), len(data), google_crc32c.value(data), bytes(16), None, due_ms=0)
        row = self._queue.put(new, data)
        assert row.landing_id is not None
        return row.landing_id, len(data)

    def taken_appends(self) -> list[int]:
        """The bytes of each append since this was last called."""
        taken = list(self._counted.appends)
        self._counted.appends.clear()
        return taken

    def release(self, keep: frozenset[SegmentId] = frozenset()) -> None:
        """Seal all, and give back all but these segments."""
        self.log.close()
        assert self.medium.release([segment for segment in self.medium.segments() if segment not in keep]) == {}
        self.log, self._queue = self._open()
        self.put((ObjectKey("first", "first"), b"first"))  # which opens a segment
        self.taken_appends()

    def close(self) -> None:
        self.log.close()
        self.medium.release(list(self.medium.segments()))
        self.medium.close()


@dataclass(frozen=True)
class Puts:
    """What PUTs in a closed loop took. written: bytes of each append. cpu_s: of this process."""

    objects: int
    bytes: int
    seconds: float
    latencies_s: Sequence[float]
    written: Sequence[int]
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.objects / self.seconds

    def ms(self, percent: float) -> float:
        return 1e3 * percentile(self.latencies_s, percent)


def objects(size: int, buckets: int = 32) -> Iterator[Item]:
    """New objects of one size, in this many buckets."""
    for number in count():
        start = number * 4099 % (len(NOISE) - size)
        yield ObjectKey(f"bucket-{number % buckets}", f"{number:09}.bin"), NOISE[start : start + size]


def put_all(landing: Landing, callers: int, items: Iterator[Item], copies: list[Copy] | None = None) -> Puts:
    """Put them, each caller one after the other."""
    totals = [0, 0]

    def put(item: Item) -> None:
        copy = landing.put(item)
        totals[0] += 1
        totals[1] += copy[1]
        if copies is not None:
            copies.append(copy)

    landing.taken_appends()
    began_s, used_s = perf_counter(), time.process_time()
    latencies_s = call_all(callers, items, put, perf_counter)
    took_s, used_s = perf_counter() - began_s, time.process_time() - used_s
    return Puts(len(latencies_s), totals[1], took_s, latencies_s, landing.taken_appends(), used_s)


def rounds(options: Options, one: Callable[[], Found]) -> Found:
    """Medians of the rounds, of which the first does not count."""
    found = [one() for _ in range(options.rounds + 1)][1:]
    return {name: round(median(each[name] for each in found), 3) for name in found[0]}


@contextmanager
def raw(folder: Path, devices: int = 1, slots: int = SLOTS, lanes: int = 1, copies: int = 1) -> Iterator[Landing]:
    """A log on raw devices."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nos-ec-claims-", dir=folder)))
        size = MIB + slots * SLOT
        paths = [
            stack.enter_context(loop_device(place / f"disk-{number}", size, direct=True)) for number in range(devices)
        ]
        landing = Landing(place / "log", paths, lanes=lanes, copies=copies)
        stack.callback(landing.close)
        landing.release()
        yield landing


# --- A: AutoMQ's Delta WAL ----------------------------------------------------------------------------
def a1(folder: Path, options: Options) -> Found:
    """PUTs of 4 KiB by 16 callers, without and with another process that reads what landed before."""
    with raw(folder) as landing:
        copies: list[Copy] = []
        put_all(landing, 16, islice(objects(64 * KIB), 2000), copies)
        old = frozenset(segment_of(landing_id) for landing_id, _ in copies)

        def turn() -> Puts:
            end_s = perf_counter() + options.seconds
            return put_all(landing, 16, takewhile(lambda _: perf_counter() < end_s, objects(4 * KIB)))

        def one() -> Found:
            landing.release(keep=old)
            alone = turn()
            with reading(landing, copies) as read_mb_s:
                beside = turn()
            return {
                "read_mb_per_s": read_mb_s(),
                "rate_beside_over_alone": beside.rate / alone.rate,
                "p99_beside_over_alone": beside.ms(99) / alone.ms(99),
                "cpu_of_a_put_beside_over_alone": beside.cpu_s / beside.objects / (alone.cpu_s / alone.objects),
            }

        return rounds(options, one)


@contextmanager
def reading(landing: Landing, copies: Sequence[Copy]) -> Iterator[Callable[[], float]]:
    """Another process reads these copies again and again. Yield a function that returns, at the end, how many MB a
    second."""
    context = multiprocessing.get_context("spawn")
    began, stop, told = context.Event(), context.Event(), context.Queue()
    arguments = (landing.folder, landing.devices, list(copies), began, stop, told)
    process = context.Process(target=read_until, args=arguments, daemon=True)
    process.start()
    assert began.wait(60)
    found: list[float] = []
    try:
        yield lambda: found[0]
    finally:
        stop.set()
        found.append(told.get(timeout=60))
        process.join(60)


def read_until(folder: Path, devices: list[Path], copies: list[Copy], began: Any, stop: Any, told: Any) -> None:
    """Read runs of records at READ_BYTES_S, as a consumer does."""
    medium = DeviceLog(folder, devices, STORE)
    reader, done = LogReader(medium), 0
    began_s = perf_counter()
    while not stop.is_set():
        for first in range(0, len(copies), RUN_OBJECTS):
            run = copies[first : first + RUN_OBJECTS]
            for outcome in reader.read_records(run):
                if isinstance(outcome, NosError):
                    raise outcome
                done += len(outcome)
            began.set()
            time.sleep(max(0.0, done / READ_BYTES_S - (perf_counter() - began_s)))
            if stop.is_set():
                break
    told.put(done / 1e6 / (perf_counter() - began_s))
    medium.close()


def a2(folder: Path, options: Options) -> Found:
    """A lone PUT of 4 KiB: in the log on a raw device and on a file, and in a file of its own."""
    with raw(folder) as on_raw, tempfile.TemporaryDirectory(prefix="nos-ec-claims-", dir=folder) as place:
        on_file = Landing(Path(place) / "log", [Path(place) / "device"], file_bytes=MIB + 4 * SLOT)
        LocalLandingStore.initialise(Path(place) / "landing")
        files = LocalLandingStore(Path(place) / "landing")

        def put_file(item: Item) -> None:
            files.put(LandingId(bytes(1) + os.urandom(15)), item[1])

        def time_s(put: Callable[[Item], object], item: Item) -> float:
            began_s = perf_counter()
            put(item)
            return perf_counter() - began_s

        def one() -> Found:
            on_raw.release()
            on_file.release()
            ways = (on_raw.put, on_file.put, put_file)
            turns = [[time_s(put, item) for put in ways] for item in islice(objects(4 * KIB), options.objects // 8)]
            raw_s, file_s, own_s = (median(way) for way in zip(*turns, strict=True))
            return {
                "raw_p50_ms": 1e3 * raw_s,
                "raw_over_file_each": raw_s / own_s,
                "log_file_over_file_each": file_s / own_s,
            }

        found = rounds(options, one)
        on_file.close()
        files.close()
        return found


def a3(folder: Path, options: Options) -> Found:
    """Records of 4 KiB: scanned with all checksums, read as they lie, and listed by footers (U3)."""
    with raw(folder) as landing:
        copies: list[Copy] = []
        put_all(landing, 64, islice(objects(4 * KIB), 10 * options.objects), copies)
        landing.log.close()
        ends = [
            (row.segment, row.end, row.records) for row in landing.segments.list_segments(None, 1000) if row.records
        ]

        def read(segment: SegmentId, offset: int, length: int) -> bytes:
            return landing.medium.read(segment, [(offset, length)])[0]

        def one() -> Found:
            began_s = perf_counter()
            size = sum(len(read(segment, at, 4 * MIB)) for segment, end, _ in ends for at in range(PAGE, end, 4 * MIB))
            read_s = perf_counter() - began_s
            began_s, used_s = perf_counter(), time.process_time()
            scanned = {
                one.header.landing_id
                for segment, end, _ in ends
                for one in scan(lambda at, length, segment=segment: read(segment, at, length), segment, PAGE, end)  # type: ignore[misc]
            }
            scan_s, scan_cpu_s = perf_counter() - began_s, time.process_time() - used_s
            began_s, used_s = perf_counter(), time.process_time()
            listed = {
                entry.landing_id
                for segment, end, records in ends
                for entry in decode_footer(read(segment, end, footer_size(records, PAGE)), segment, end)
            }
            footers_s, footers_cpu_s = perf_counter() - began_s, time.process_time() - used_s
            assert {landing_id for landing_id, _ in copies} <= scanned == listed
            return {
                "records": len(scanned),
                "scan_mb_per_s": size / 1e6 / scan_s,
                "scan_over_sequential": read_s / scan_s,
                "scan_cpu_us_per_record": 1e6 * scan_cpu_s / len(scanned),
                "scan_over_footers": scan_s / footers_s,
                "scan_over_footers_cpu": scan_cpu_s / footers_cpu_s,
            }

        return rounds(options, one)


def a5(folder: Path, options: Options) -> Found:
    """PUTs in the log on a volume of 3,000 writes and 125 MiB a second, and bare writes of the same batches there."""
    w1 = [size for size in sizes("W1", options.objects, random.Random(1), 4 * MIB) if size < MIB]  # others pass by
    found: Found = {}
    with ExitStack() as stack:
        landing, bare = stack.enter_context(raw(folder)), stack.enter_context(raw(folder, slots=2))
        stack.enter_context(slowed([*landing.devices, *bare.devices], VOLUME_BYTES_S, VOLUME_WRITES_S))
        for name, drawn in (("64_kib", [64 * KIB] * options.objects), ("w1", w1)):
            items = [(ObjectKey("b", f"{number}"), NOISE[:size]) for number, size in enumerate(drawn)]
            for callers in (16, 64):

                def one(items: Sequence[Item] = items, callers: int = callers) -> Found:
                    landing.release()
                    puts = put_all(landing, callers, iter(items))
                    bare_s = written_s(bare.devices[0], puts.written, landing.log.batches_max)
                    return {"mb_per_s": puts.bytes / 1e6 / puts.seconds, "over_bare": bare_s / puts.seconds}

                found |= {f"{name}_{callers}_{what}": figure for what, figure in rounds(options, one).items()}
    return found


def written_s(device: Path, written: Sequence[int], writers: int) -> float:
    """Measure how long plain writes of this many bytes each take: one after the other, and several at a time."""
    fd = os.open(device, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)
    content = memoryview(mmap.mmap(-1, max(written)))
    places, place = [], MIB
    for size in written:
        place = MIB if place + size > SLOT else place
        places.append((place, size))
        place += size
    began_s = perf_counter()
    call_all(writers, places, lambda at: os.pwrite(fd, content[: at[1]], at[0]), perf_counter)
    took_s = perf_counter() - began_s
    os.close(fd)
    return took_s


def a8(folder: Path, options: Options) -> Found:
    """Processes that PUT with 8 threads, killed in full flow: all that they acknowledged is read and scanned."""
    with raw(folder) as landing:
        landing.log.close()
        chance, acknowledged, missing = random.Random(8), 0, 0
        for _ in range(options.kills):
            landing.medium.release(list(landing.medium.segments()))
            paths = [str(landing.folder), *map(str, landing.devices)]
            command = [sys.executable, "-m", "tests.soak.landing_claims", "--put-until-killed", *paths]
            with tempfile.TemporaryFile() as said:
                process = subprocess.Popen(command, stdout=said)
                deadline_s = perf_counter() + 60
                while not os.fstat(said.fileno()).st_size and perf_counter() < deadline_s:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0.05, 0.6))
                process.kill()
                process.wait()
                said.seek(0)
                lines = [line.split() for line in said.read().splitlines(keepends=True) if line.endswith(b"\n")]
            ids = [LandingId(bytes.fromhex(line[0].decode())) for line in lines]
            data = [NOISE[int(line[1]) : int(line[1]) + int(line[2])] for line in lines]
            found = landing.reader.read_records([(one, len(each)) for one, each in zip(ids, data, strict=True)])
            scanned = {one for segment in landing.medium.segments() for one in scanned_in(landing.medium, segment)}
            missing += sum(one != each for one, each in zip(found, data, strict=True)) + len(set(ids) - scanned)
            acknowledged += len(ids)
        return {"kills": options.kills, "acknowledged": acknowledged, "missing": missing}


def scanned_in(medium: DeviceLog, segment: SegmentId) -> set[LandingId]:
    end = medium.seal(segment, None, 0)
    return {
        one.header.landing_id
        for one in scan(lambda at, length: medium.read(segment, [(at, length)])[0], segment, PAGE, end)
    }


def put_until_killed(folder: Path, devices: Sequence[Path]) -> None:
    """PUT from 8 threads, and print id, place in NOISE and size of each object that is acknowledged."""
    landing = Landing(folder, devices)

    def work(thread: int) -> None:
        chance = random.Random(os.getpid() * 8 + thread)
        while True:
            size = chance.randint(1, 20_000)
            start = chance.randrange(len(NOISE) - size)
            landing_id, _ = landing.put((ObjectKey("bucket", f"{thread}"), NOISE[start : start + size]))
            os.write(1, f"{landing_id.hex()} {start} {size}\n".encode())

    for thread in range(8):
        threading.Thread(target=work, args=(thread,)).start()


# --- U: UCloud's IO acceleration ----------------------------------------------------------------------
CONFIG = """
[store]
root = "store"
[put]
min_age_ms = 0
[reaper]
landing_grace_ms = 0
[consumer]
[landing]
mode = "{mode}"
device_bytes = {device}
segment_bytes = {segment}
"""


@contextmanager
def store(
    folder: Path, *, mode: str = "log", bypass: int = MIB, device: int = 1024 * MIB, segment: int = SLOT
) -> Iterator[System]:
    """A whole embedded store, whose log, if any, is a file."""
    with tempfile.TemporaryDirectory(prefix="nos-ec-claims-", dir=folder) as place:
        config = Path(place) / "nos-ec.toml"
        config.write_text(CONFIG.format(mode=mode, device=device, segment=segment))
        settings = load_settings(config, {})
        initialise(settings)
        with patch("nos_ec.composition.landing.BYPASS_BYTES", bypass), open_system(settings) as system:
            yield system


def u4(folder: Path, options: Options) -> Found:
    """Whole PUTs of W1 by 16 callers: objects from 1 MiB on pass by the log, or all go through it."""
    with store(folder) as passing, store(folder, bypass=64 * MIB) as through:
        numbers = count()

        def put(system: System, drawn: Sequence[int]) -> float:
            items = [(ObjectKey("b", f"{next(numbers)}"), NOISE[:size]) for size in drawn]
            into, began_s = system.client.store(), perf_counter()
            call_all(16, items, lambda item: into.put(item[0], BytesIO(item[1])), perf_counter)
            return sum(drawn) / 1e6 / (perf_counter() - began_s)

        def one() -> Found:
            drawn = list(sizes("W1", options.objects // 8, random.Random(next(numbers)), 4 * MIB))
            passing_mb_s, through_mb_s = put(passing, drawn), put(through, drawn)
            return {"mb_per_s": passing_mb_s, "passing_over_through": passing_mb_s / through_mb_s}

        return rounds(options, one)


def u6(folder: Path, options: Options) -> Found:
    """PUTs of 4 KiB by 128 callers on 1, 2 and 3 devices that the kernel slows down alike, one copy, a lane each."""
    rates: dict[int, list[float]] = {1: [], 2: [], 3: []}
    with ExitStack() as stack:
        landings = {n: stack.enter_context(raw(folder, n, slots=2, lanes=n)) for n in rates}
        with slowed([device for landing in landings.values() for device in landing.devices], SLOWED_BYTES_S):
            for _ in range(options.rounds + 1):
                for devices, landing in landings.items():
                    landing.release()
                    rates[devices].append(put_all(landing, 128, islice(objects(4 * KIB), options.objects)).rate)
    rate = {devices: median(found[1:]) for devices, found in rates.items()}
    return {"puts_per_s": rate[1]} | {f"{n}_devices_over_1": round(rate[n] / rate[1], 2) for n in (2, 3)}


def copies(folder: Path, options: Options) -> Found:
    """PUTs of 64 KiB by 16 and 64 callers on two devices of one disk, with a copy on each and with one copy."""
    with raw(folder, slots=4) as single, raw(folder, 2, slots=4, copies=2) as double:

        def one() -> Found:
            found = {}
            for callers in (16, 64):
                rates = []
                for landing in (single, double):
                    landing.release()
                    rates.append(put_all(landing, callers, islice(objects(64 * KIB), options.objects)).rate)
                found[f"puts_per_s_{callers}"] = rates[0]
                found[f"two_copies_over_one_{callers}"] = rates[1] / rates[0]
            return found

        return rounds(options, one)


@contextmanager
def slowed(devices: Sequence[Path], bytes_s: int, writes_s: int = 0) -> Iterator[None]:
    """Let this process write only so much to each device, and so often; 0: as often as it likes."""
    group = BLKIO / f"nos-ec-claims-{os.getpid()}"
    limits = {"blkio.throttle.write_bps_device": bytes_s, "blkio.throttle.write_iops_device": writes_s}
    group.mkdir()
    try:
        for device in devices:
            number = device.stat().st_rdev
            for limit, value in limits.items():
                (group / limit).write_text(f"{os.major(number)}:{os.minor(number)} {value}")
        (group / "cgroup.procs").write_text(f"{os.getpid()}")
        yield
    finally:
        (BLKIO / "cgroup.procs").write_text(f"{os.getpid()}")
        group.rmdir()


def u7(folder: Path, options: Options) -> Found:
    """A consumer that packs less than is PUT, and then continues alone: what waits, what fails, memory."""
    with store(folder, device=64 * MIB, segment=4 * MIB) as system:
        stop, written = threading.Event(), [0, 0, 0]
        sums: dict[ObjectKey, int] = {}

        def put() -> None:
            into = system.client.store()
            for number, (key, data) in enumerate(objects(32 * KIB)):
                if stop.is_set():
                    return
                key = ObjectKey(key.bucket, f"{number % 20_000}")
                try:
                    into.put(key, BytesIO(data))
                    sums[key] = google_crc32c.value(data)
                    written[0] += 1
                except NosError:
                    written[1] += 1
                time.sleep(PUT_S)

        putter = threading.Thread(target=put)
        putter.start()
        end_s, memory, waiting = perf_counter() + options.backlog_seconds, [], 0
        housekeeping = system.worker.housekeeping()
        with patch("nos_consumer.service.POLL_MESSAGES_MAX", POLLED), consumer_service(system) as consumer:
            while perf_counter() < end_s:
                publish(system)
                consumer.turn(flush=False)
                housekeeping.run_once()
                totals = system.metadata.totals()
                waiting = max(waiting, totals.landed_objects + totals.queued_objects)
                memory.append(resident_mib())
                stop.wait(TURN_S)
            stop.set()
            putter.join()
            began_s = perf_counter()
            while system.metadata.oldest_landing_id() is not None:
                publish(system)
                consumer.turn(flush=True)
                assert perf_counter() - began_s < 600, "the backlog is not packed"
        lander = cast(Any, system.client.puts.batches.lander)
        passed = lander.passed_full
        lander.log.seal()
        while system.metadata.first_deletion_ms() is not None:
            housekeeping.run_once()
        into = system.client.store()
        wrong = sum(google_crc32c.value(into.get(key)) != crc for key, crc in sums.items())
        into.put(ObjectKey("after", "after"), BytesIO(b"after"))
        half = len(memory) // 2
        return {
            "seconds": options.backlog_seconds,
            "puts": written[0],
            "failed_puts": written[1],
            "most_waiting": waiting,
            "passed_by_the_full_log": passed,
            "recovered_in_s": round(perf_counter() - began_s, 1),
            "wrong_reads": wrong,
            "passed_afterwards": lander.passed_full - passed,
            "rss_mib_first_half": max(memory[:half]),
            "rss_mib_second_half": max(memory[half:]),
        }


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / MIB, 1)


def u8(folder: Path, options: Options) -> Found:
    """GETs of landed objects, and a look-up of the row with a bare read of the pages of the record, in turns."""
    found: Found = {}
    for size in (4 * KIB, 64 * KIB):
        with store(folder) as system:
            found |= {f"{size}_{name}": value for name, value in get_landed(system, size, options).items()}
    return found


def get_landed(system: System, size: int, options: Options) -> Found:
    keys, into = [ObjectKey("b", f"{number}") for number in range(options.objects // 4)], system.client.store()
    into.put(ObjectKey("b", "first"), BytesIO(NOISE[:size]))  # the first PUT of a process passes by the log
    call_all(16, keys, lambda key: into.put(key, BytesIO(NOISE[:size])), perf_counter)
    fd = os.open(system.settings.store.root / "landing_log" / "device0", os.O_RDONLY | os.O_DIRECT)
    buffer = memoryview(mmap.mmap(-1, MIB))

    def bare(key: ObjectKey) -> bytes:
        row = system.metadata.get(key)
        assert row.landing_id is not None
        at = record_offset(row.landing_id) + RECORD_HEADER_SIZE
        first = at // PAGE * PAGE
        pages = -(-(at + row.size) // PAGE) * PAGE - first
        os.preadv(fd, [buffer[:pages]], MIB + first)  # all lies in the first slot
        return bytes(buffer[at - first : at - first + row.size])

    def time_s(read: Callable[[ObjectKey], bytes], key: ObjectKey) -> float:
        began_s = perf_counter()
        data = read(key)
        took_s = perf_counter() - began_s
        assert data == NOISE[:size]
        return took_s

    def one() -> Found:
        pairs = [(time_s(bare, key), time_s(into.get, key)) for key in random.Random(1).sample(keys, len(keys))]
        bare_s, ours_s = (median(pair[which] for pair in pairs) for which in (0, 1))
        return {"ours_p50_ms": 1e3 * ours_s, "ours_over_bare": ours_s / bare_s}

    found = rounds(options, one)
    os.close(fd)
    return found


# --- Q: a million queues in one log -------------------------------------------------------------------
def q1(folder: Path, options: Options) -> Found:
    """PUTs of 58 bytes by 16 callers, in 32 buckets and in a million, and what memory a million buckets take."""
    with raw(folder) as landing:
        many = objects(58, 1 << 40)  # each in a bucket of its own

        def one() -> Found:
            landing.release()
            few = put_all(landing, 16, islice(objects(58), 5 * options.objects)).rate
            return {"many_over_few": put_all(landing, 16, islice(many, 5 * options.objects)).rate / few}

        found = rounds(options, one)
        parts, memory_mib = 20, []
        for _ in range(parts):
            landing.release()
            put_all(landing, 16, islice(many, options.buckets // parts))
            memory_mib.append(resident_mib())
        memory = {"rss_mib_after_a_twentieth": memory_mib[0], "rss_mib_at_the_end": memory_mib[-1]}
        return found | {"buckets": options.buckets} | memory


def q2(folder: Path, options: Options) -> Found:
    """PUTs of 58 bytes and of 4 KiB by 24 callers."""
    with raw(folder) as landing:

        def one() -> Found:
            landing.release()
            small = put_all(landing, 24, islice(objects(58), 2 * options.objects)).rate
            pages = put_all(landing, 24, islice(objects(4 * KIB), 2 * options.objects)).rate
            return {"puts_per_s": small, "58_bytes_over_4_kib": small / pages}

        return rounds(options, one)


def q3(folder: Path, options: Options) -> Found:
    """Mean write for PUTs of 4 KiB, and what headers, names and padding add to the bytes of objects (A7)."""
    with raw(folder) as landing:

        def one() -> Found:
            landing.release()
            found = {}
            for callers in (16, 64):
                puts = put_all(landing, callers, islice(objects(4 * KIB), 2 * options.objects))
                found[f"mean_write_kib_{callers}"] = sum(puts.written) / len(puts.written) / KIB
                found[f"overhead_{callers}"] = sum(puts.written) / puts.bytes - 1
            return found

        return rounds(options, one)


def q5(folder: Path, options: Options) -> Found:
    """All records of 4 KiB read and checked, one by one in any order, and in runs."""
    with raw(folder) as landing:
        copies: list[Copy] = []
        put_all(landing, 64, islice(objects(4 * KIB), 4 * options.objects), copies)
        ordered = sorted(copies)
        runs = [ordered[first : first + RUN_OBJECTS] for first in range(0, len(ordered), RUN_OBJECTS)]
        shuffled = random.Random(1).sample(copies, len(copies))

        def read(run: Sequence[Copy]) -> None:
            for outcome in landing.reader.read_records(run):
                if isinstance(outcome, NosError):
                    raise outcome

        def one() -> Found:
            began_s = perf_counter()
            call_all(READERS, shuffled, lambda copy: landing.reader.read_range(copy[0], 0, copy[1]), perf_counter)
            single_s = perf_counter() - began_s
            began_s = perf_counter()
            call_all(READERS, runs, read, perf_counter)
            return {"records": len(copies), "runs_over_single": single_s / (perf_counter() - began_s)}

        return rounds(options, one)


# --- L: Alibaba's local NVMe path ---------------------------------------------------------------------
def l3(folder: Path, options: Options) -> Found:
    """Whole PUTs of 4 KiB by 16 callers, in the log and each with a file and a transaction of its own; and how much of
    the CPU time of a PUT is the log's (L4)."""
    with store(folder) as logged, store(folder, mode="store") as single, raw(folder) as landing:
        single.client.puts.batches.lander = Alone(single.client.puts.batches.lander)
        numbers = count()

        def put(system: System) -> tuple[float, float, float]:
            """PUTs a second, p50 and CPU time of a PUT."""
            keys, into = (
                [ObjectKey("b", f"{next(numbers)}") for _ in range(options.objects // 2)],
                system.client.store(),
            )
            began_s, used_s = perf_counter(), time.process_time()
            took_s = call_all(16, keys, lambda key: into.put(key, BytesIO(NOISE[: 4 * KIB])), perf_counter)
            rate = len(keys) / (perf_counter() - began_s)
            return rate, percentile(took_s, 50), (time.process_time() - used_s) / len(keys)

        def one() -> Found:
            landing.release()
            (ours, ours_p50_s, ours_cpu_s), (theirs, theirs_p50_s, theirs_cpu_s) = put(logged), put(single)
            alone = put_all(landing, 16, islice(objects(4 * KIB), options.objects))
            return {
                "puts_per_s": ours,
                "rate_log_over_single": ours / theirs,
                "p50_log_over_single": ours_p50_s / theirs_p50_s,
                "cpu_single_over_log": theirs_cpu_s / ours_cpu_s,
                "cpu_us": 1e6 * ours_cpu_s,
                "of_which_the_log": alone.cpu_s / alone.objects / ours_cpu_s,
            }

        return rounds(options, one)


ROWS: dict[str, Callable[[Path, Options], Found]] = {
    "A1": a1,
    "A2": a2,
    "A3": a3,
    "A5": a5,
    "A8": a8,
    "U4": u4,
    "U6": u6,
    "copies": copies,
    "U7": u7,
    "U8": u8,
    "Q1": q1,
    "Q2": q2,
    "Q3": q3,
    "Q5": q5,
    "L3": l3,
}
"""A3 has the figure of U3, A2 that of L1, Q3 that of A7, and L3 that of L4."""


def main() -> None:
    """Measure the rows, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn of A1")
    parser.add_argument("--backlog-seconds", type=float, default=600.0, help="of U7")
    parser.add_argument("--buckets", type=int, default=1_000_000, help="of Q1")
    parser.add_argument("--kills", type=int, default=20, help="of A8")
    parser.add_argument("--put-until-killed", nargs="+", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.put_until_killed:
        put_until_killed(given.put_until_killed[0], given.put_until_killed[1:])
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which removes the loop devices
    options = Options(given.rounds, given.objects, given.seconds, given.backlog_seconds, given.buckets, given.kills)
    for name in given.rows:
        load = os.getloadavg()[0]
        print(json.dumps({"row": name, "load": round(load, 1)} | ROWS[name](given.folder, options)), flush=True)


if __name__ == "__main__":
    main()
