"""A store of small stripes in a temporary folder, and ways to run the services on it."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from nos_consumer.assemble import consumer_service, drain
from nos_consumer.service import ConsumerService
from nos_ec.adapters.local.devices.device_format import HEADER_COPY_AT, SLOTS_AT
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import NotFound
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey, SegmentId
from nos_ec.engine.objects.store import Store
from nos_ec.ports.clock import Clock, unwatched
from nos_ec.settings import Settings, without_settings
from nos_producer.assemble import producer_service
from tests.conftest import memory_folder
from tests.rig.at_rest import end_log, left_over, settle
from tests.rig.fakes.audit import problems
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.rig.preloaded import Preloaded
from tests.service.s3.s3_gateway import Gateway, serving

WAIT_S_MAX = 120.0
"""Longer than a machine that is ten times as busy takes: what has not happened by then never does."""

CHUNK = 16 * 1024
STRIPE = 8 * CHUNK

CONFIG = """
[store]
root = "store"
lease_ttl_ms = 30000
[geometry]
chunk_size = 16384
stripes_per_block = 8
[put]
reservation_ms = 30000
[producer]
republish_ms = 300000
[consumer]
window_objects = 50
split_bytes = 0
[reaper]
landing_grace_ms = 0
[gc]
policy = "threshold"
block_grace_ms = 0
reserve_bytes = 0
[log]
partitions = 3
session_ms = 30000
[landing]
mode = "log"
device_bytes = "16MiB"
segment_bytes = "1MiB"
"""
"""With leases, reservations and sessions that last longer than any stall of a busy machine, and a landing log of 15
segments. At this price many objects are split."""
STORE_CONFIG = CONFIG.replace('mode = "log"', 'mode = "store"')
"""Without a landing log."""
TTL_OVER_MS = 61_000
"""When leases and reservations of CONFIG that are not renewed have expired."""

SHORT_MS = 1000
SHORT = {
    "NOS_EC_PUT__RESERVATION_MS": str(SHORT_MS),
    "NOS_EC_STORE__LEASE_TTL_MS": str(SHORT_MS),
    "NOS_EC_LOG__SESSION_MS": str(SHORT_MS),
}
"""For processes that are to stall: the others consider them dead SHORT_MS later."""
SHORT_OVER_MS = SHORT_MS + 100
"""When a lease, a session and a reservation of SHORT have expired."""


class PreparedStores:
    """Copies of stores that many tests begin with, so that each is filled once in a session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, str], tuple[dict[ObjectKey, bytes], Any]] = {}
        """By function and configuration: what is acknowledged, and the state of the random numbers."""

    def fill(self, bench: Bench, make: Callable[[Bench], object]) -> None:
        """Give `bench`, whose store is new, what `make` does in a store: from a copy, if one with the same
        configuration was made before. `make` leaves the store closed."""
        name = (make.__name__, bench.config.read_text())
        if name in self._made:
            shutil.rmtree(bench.folder / "store")
            copy_files(self._copy_of(name), bench.folder)
        else:
            make(bench)
            self._copy_of(name).mkdir()
            copy_files(bench.folder, self._copy_of(name))
            self._made[name] = dict(bench.acknowledged), bench.rng.getstate()
        acknowledged, state = self._made[name]
        bench.acknowledged = dict(acknowledged)
        bench.rng.setstate(state)

    def _copy_of(self, name: tuple[str, str]) -> Path:
        return self._folder / hashlib.sha256("".join(name).encode()).hexdigest()


def copy_files(source: Path, target: Path) -> None:
    """Copy what is in a folder, in a fourth of the time that shutil takes. A sparse file stays sparse."""
    subprocess.run(["cp", "-r", f"{source}/.", target], check=True)


class Bench:
    """A store, and a dict of the acknowledged objects."""

    def __init__(
        self,
        folder: Path,
        config: str = CONFIG,
        preloaded: Preloaded | None = None,
        prepared: PreparedStores | None = None,
    ) -> None:
        self.folder = folder
        self.preloaded = preloaded
        self.prepared = prepared
        self.config = folder / "nos-ec.toml"
        self.config.write_text(config)
        self.acknowledged: dict[ObjectKey, bytes] = {}
        self.rng = random.Random(7)

    def settings(self) -> Settings:
        from nos_ec.settings import load_settings

        return load_settings(self.config, {})

    def open(self) -> System:
        return open_system(self.settings())

    # --- clients ----------------------------------------------------------------------------------
    def data(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    def put(self, system: System, name: str, data: bytes, bucket: str = "b") -> ObjectKey:
        key = ObjectKey(bucket, name)
        system.client.store().put(key, BytesIO(data))
        self.acknowledged[key] = data
        return key

    def put_some(self, system: System, count: int, size_max: int = 2 * CHUNK, prefix: str = "o") -> list[ObjectKey]:
        """`count` objects in a few buckets, acknowledged in batches."""
        new = {
            ObjectKey(f"bucket-{index % 5}", f"{prefix}/{index:05}"): self.data(self.rng.randint(1, size_max))
            for index in range(count)
        }
        pairs = list(new.items())
        for first in range(0, count, 100):
            system.client.store().put_many(pairs[first : first + 100])
        self.acknowledged.update(new)
        return list(new)

    def delete(self, system: System, key: ObjectKey) -> None:
        system.client.store().delete(key)
        del self.acknowledged[key]

    def prepare(self, make: Callable[[Bench], object]) -> None:
        """Do `make(self)`, from a copy if another test has done the same before. To be called first."""
        if self.prepared is None:
            make(self)
        else:
            self.prepared.fill(self, make)

    # --- services ---------------------------------------------------------------------------------
    def produce(self, system: System) -> int:
        with producer_service(system) as producer:
            return producer.drain()

    def consume(self, system: System) -> None:
        """Pack without housekeeping: landing copies stay."""
        with consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)

    def pack(self, system: System) -> None:
        """Pack and reap. The system's own log ends before, because what lies in open segments is not reaped."""
        end_log(system)
        self.produce(system)
        drain(system)

    def copy_forward(self, system: System) -> None:
        """Write all records of the landing log again, and give their segments back."""
        assert system.medium is not None
        segments = set(system.medium.segments())
        forward = system.worker._copy_forward(system.medium)
        for segment in segments:
            forward._copy(segment, unwatched)
        system.worker.housekeeping().run_once()
        assert not segments & set(system.medium.segments())

    def run(
        self, *arguments: str, kill_at: str | None = None, stdin: bytes = b"", timeout: float = WAIT_S_MAX
    ) -> subprocess.CompletedProcess[bytes]:
        """The real command in a separate process."""
        program = ("-m", "nos_ec", "--config", str(self.config))
        return self.run_python(*program, *arguments, kill_at=kill_at, stdin=stdin, timeout=timeout)

    def run_python(
        self, *arguments: str, kill_at: str | None = None, stdin: bytes = b"", timeout: float = WAIT_S_MAX
    ) -> subprocess.CompletedProcess[bytes]:
        """Another program, with the settings of the configuration alone. It dies at `kill_at`."""
        environment = without_settings(os.environ)
        if kill_at:
            # Its leases are long, because it may stall. Its session may end while it lives: no process would notice.
            environment |= {"NOS_EC_LOG__SESSION_MS": str(SHORT_MS), "NOS_EC_KILL_AT": kill_at}
        if arguments[0] != "-c" and self.preloaded is not None:
            return self.preloaded.run(arguments, environment, stdin, timeout)
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, timeout=timeout, check=False)

    def end_leases(self) -> None:
        """Let all leases expire, as they do a while after their holders died."""
        with self.open() as system:
            for lease in system.metadata.list_leases(""):
                system.metadata.renew_lease(lease, 0, 1)

    # --- checks -----------------------------------------------------------------------------------
    def settle(self, system: System) -> None:
        """Let every service do its outstanding work, as it would in time."""
        settle(system)

    def assert_readable(self, system: System) -> None:
        """Invariant 1: every acknowledged object reads back; nothing else is there."""
        store = system.client.store()
        self._assert_read_back(store)
        assert self._listed(store) == self.acknowledged.keys()

    def assert_readable_besides_dumps(self, system: System) -> None:
        """The same of a store that keeps dumps of its metadata."""
        store = system.client.store()
        self._assert_read_back(store)
        assert {key for key in self._listed(store) if key.bucket != RESERVED_BUCKET} == self.acknowledged.keys()

    def _assert_read_back(self, store: Store) -> None:
        for key, data in self.acknowledged.items():
            assert hashlib.sha256(store.get(key)).digest() == hashlib.sha256(data).digest(), str(key)

    def _listed(self, store: Store) -> set[ObjectKey]:
        buckets = store.list_buckets("", 1000)
        return {row.key for bucket in buckets for row in store.list_objects(bucket, "", "", 1_000_000)}

    def assert_absent(self, system: System, key: ObjectKey) -> None:
        with pytest.raises(NotFound):
            system.client.store().head(key)

    def assert_balanced(self, system: System) -> None:
        """Invariant 6, and no leak of blocks or landing copies."""
        assert problems(system.metadata, system.blocks, system.landing, system.medium) == []

    def assert_at_rest(self, system: System) -> None:
        """Balanced, and nothing is left to do: no lease, no queue, no landing copy, no dead block."""
        assert left_over(system) == []


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell starts background jobs with SIGINT ignored; the programs under test must not inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer in this process notices sooner that nothing is left."""
    monkeypatch.setattr("nos_consumer.assemble.IDLE_WAIT_MS", 20)


@pytest.fixture(autouse=True)
def fresh_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways in this process remember no access keys, grants or documents of buckets."""
    monkeypatch.setattr("nos_ec.gateway.server.http_server.ACCESS_CACHE_MS", 0)


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that is not open, to be copied: creating one takes longer than many tests."""
    return _new_store(tmp_path_factory, CONFIG)


@pytest.fixture(scope="session")
def new_plain_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `new_store`, without a landing log."""
    return _new_store(tmp_path_factory, STORE_CONFIG)


def _new_store(tmp_path_factory: pytest.TempPathFactory, config: str) -> Path:
    """The device of its landing log is sparse, so that 16 MiB of zeros are not copied for each test."""
    made = Bench(tmp_path_factory.mktemp("made"), config)
    initialise(made.settings())
    new = tmp_path_factory.mktemp("new")
    subprocess.run(["cp", "-r", "--sparse=always", f"{made.folder}/.", new], check=True)
    return new


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """Runs programs without loading all modules for each of them."""
    template = Preloaded()
    yield template
    template.close()


@pytest.fixture(scope="session")
def prepared_stores() -> Iterator[PreparedStores]:
    """Stores that several tests begin with."""
    with memory_folder() as folder:
        yield PreparedStores(folder)


@pytest.fixture
def bench(
    tmp_path: Path, preloaded: Preloaded, prepared_stores: PreparedStores, request: pytest.FixtureRequest
) -> Bench:
    """A store with a landing log; one without for tests that are marked `landing("store")`: they are about copies."""
    marker = request.node.get_closest_marker("landing")
    plain = marker is not None and marker.args == ("store",)
    new = request.getfixturevalue("new_plain_store" if plain else "new_store")
    copy_files(new, tmp_path)
    return Bench(tmp_path, STORE_CONFIG if plain else CONFIG, preloaded, prepared_stores)


@pytest.fixture
def whole_chunks(bench: Bench) -> None:
    """For tests that count reads or stripes: no object is split that fits in a chunk."""
    bench.config.write_text(bench.config.read_text().replace("split_bytes = 0", f"split_bytes = {CHUNK}"))


@pytest.fixture
def short_leases(bench: Bench) -> None:
    """For writers in this process that are suspended: their leases, reservations and sessions expire after SHORT_MS."""
    bench.config.write_text(bench.config.read_text().replace("= 30000\n", f"= {SHORT_MS}\n"))


def set_clock(service: ConsumerService, clock: Clock) -> None:
    """Give a running consumer another clock; its lease and its lanes keep theirs."""
    for part in (service, service._backlog, service._offsets, service._pause, service.unread.retry_queue):
        part._clock = clock


@pytest.fixture
def system(bench: Bench) -> Iterator[System]:
    with bench.open() as opened:
        yield opened


@pytest.fixture
def clock(system: System) -> FakeClock:
    """From now on the clock of the system, which only the test advances."""
    clock = SetClock(system.clock.now_ms())
    system.clock = clock
    return clock


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    """A running S3 gateway."""
    with serving(system) as running:
        yield running


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    """A client of the account `ann`, who owns the bucket `photos`."""
    client = gateway.client("ann")
    client.create_bucket(Bucket="photos")
    return client


def damage_slots(bench: Bench, segments: Iterable[SegmentId]) -> None:
    """Flip a bit in the headers of landing segments, in both copies of each page; no process may have the log open."""
    path = bench.folder / "store" / "landing_log" / "device0"
    content = bytearray(path.read_bytes())
    for segment in segments:
        (at,) = (at for at in range(SLOTS_AT, len(content), PAGE) if content.startswith(segment, at + 8))
        content[at + 30] ^= 4
        content[at + HEADER_COPY_AT + 30] ^= 4
    path.write_bytes(content)
