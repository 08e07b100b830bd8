"""One large bucket on Kafka: all consumers get a fair part of it, and nothing is lost or packed twice while its spread
changes and daemons are killed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from nos_ec.composition.backends import remove_log
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.formats.messages import decode_pack_request
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState
from nos_ec.settings import load_settings
from tests.rig.daemons import DaemonProcess, until
from tests.rig.dev_servers import DevServer
from tests.rig.fakes.audit import all_blocks, problems

pytestmark = pytest.mark.real

PARTITIONS = 12
CONSUMERS = 3
BATCH = 100
BIG = "big"
WINDOW = 50
PACKED = "nos_ec_consumer_packed_objects_total"

CONFIG = """
[store]
root = "store"
lease_ttl_ms = 6000
[geometry]
chunk_size = 16384
stripes_per_block = 8
[consumer]
window_objects = {window}
linger_ms = 500
linger_max_ms = 500
[gc]
policy = "threshold"
reserve_bytes = 0
[log]
backend = "kafka"
partitions = {partitions}
session_ms = 6000
[kafka]
servers = "{servers}"
topic = "{topic}"
replication = 1
in_sync_min = 1
"""


class OneBucket:
    """A store with most of its objects in one bucket, and its daemons."""

    def __init__(self, folder: Path, kafka: DevServer) -> None:
        self.config = folder / "nos-ec.toml"
        topic = f"spread-{uuid4().hex[:12]}"
        text = CONFIG.format(window=WINDOW, partitions=PARTITIONS, servers=kafka.url, topic=topic)
        self.config.write_text(text)
        self.settings = load_settings(self.config, {})
        self.objects: dict[ObjectKey, bytes] = {}
        self._rng = random.Random(11)
        self._daemons: list[DaemonProcess] = []
        initialise(self.settings)

    def start(self, kind: str, **environment: str) -> DaemonProcess:
        environment |= {"NOS_EC_DEV_PUBLISHED_OBJECTS": str(BATCH)}
        daemon = DaemonProcess(self.config, kind, f"{kind}-{len(self._daemons)}", **environment)
        self._daemons.append(daemon)
        return daemon

    def start_consumers(self) -> list[DaemonProcess]:
        """Returns them once each has its share of the partitions."""
        consumers = [self.start("consumer") for _ in range(CONSUMERS)]
        share = PARTITIONS // CONSUMERS
        until(lambda: [len(one.partitions()) for one in consumers] == [share] * CONSUMERS, "equal shares")
        return consumers

    def put(self, system: System, count: int) -> None:
        """Nine of ten objects go to the large bucket. No name is used twice: an overwrite would be published again."""
        before = len(self.objects)
        for first in range(before, before + count, 50):
            batch = {
                ObjectKey(BIG if number % 10 else f"small-{number % 70}", f"{number:06}.dat"): (
                    self._rng.randbytes(self._rng.randint(1, 2000))
                )
                for number in range(first, min(before + count, first + 50))
            }
            system.client.store().put_many(list(batch.items()))
            self.objects |= batch
        assert len(self.objects) == before + count

    def packed(self, system: System) -> int:
        return sum(block.live_objects for block in all_blocks(system.metadata))

    def await_packed(self, system: System) -> None:
        until(lambda: self.packed(system) == len(self.objects), "everything is packed")

    def failed_turns(self) -> int:
        """How often a producer could not say whether a batch was published, or could not mark it, and tried again."""
        return sum(daemon.log.read_text().count("publishing failed") for daemon in self._daemons)

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.stop()
        remove_log(self.settings)


@pytest.fixture
def store(tmp_path: Path, kafka: DevServer) -> Iterator[OneBucket]:
    with closing(OneBucket(tmp_path, kafka)) as one:
        yield one


def events(store: OneBucket) -> list[tuple[int, ObjectKey]]:
    """(partition, object) of all events that were ever published, as another consumer group reads them."""
    found: list[tuple[int, ObjectKey]] = []
    with (
        open_system(load_settings(store.config, {"NOS_EC_CONSUMER__GROUP": "reader"})) as system,
        closing(system.worker.log_consumer("reader")) as reader,
    ):
        count = reader.lag()

        def all_read() -> bool:
            messages = reader.poll(10_000, 500)
            found.extend((message.partition, decode_pack_request(message.value).key) for message in messages)
            return len(found) >= count

        until(all_read, f"{count} events are read")
    return found


@pytest.mark.parametrize("how", ["by-itself", "by-setting"])
def test_each_consumer_gets_a_fair_part_of_one_bucket(store: OneBucket, how: str) -> None:
    """Without the spread, one of the three would get nine of ten objects. Before the producer spreads the bucket by
    itself, it may publish two batches to the bucket's home, while it has more rows of other buckets."""
    setting = {"by-setting": {"NOS_EC_LOG__SPREAD_BUCKETS": f'{{"{BIG}": {PARTITIONS}}}'}, "by-itself": {}}[how]
    with open_system(store.settings) as system:
        consumers = store.start_consumers()
        store.put(system, 2000)
        store.start("producer", **setting)
        store.await_packed(system)
        until(lambda: sum(one.metrics()[PACKED] for one in consumers) == 2000, "the figures follow")
        packed = [one.metrics()[PACKED] for one in consumers]
    mean = sum(packed) / CONSUMERS
    assert max(packed) < 1.3 * mean, packed
    big = Counter(place for place, key in events(store) if key.bucket == BIG)
    assert len(big) == PARTITIONS
    at_home_first = 2 * BATCH if how == "by-itself" else 0
    assert max(big.values()) < 1.4 * big.total() / PARTITIONS + at_home_first, big


def test_the_spread_changes_while_daemons_are_killed(store: OneBucket) -> None:
    """Up, down and by itself, each time with a producer killed; and each consumer is killed once."""
    spreads = (1, 12, 5, "auto", 12, 1)
    kills = 0
    with open_system(store.settings) as system:
        consumers = store.start_consumers()
        for number, spread in enumerate(spreads):
            producer = store.start("producer", NOS_EC_LOG__SPREAD_BUCKETS=json.dumps({BIG: spread}))
            before = producer_objects(producer)
            store.put(system, 300)
            until(lambda: producer_objects(producer) > before, "it publishes")  # noqa: B023
            if number % 2 == 0:
                consumers.pop(0).kill()
                consumers.append(store.start("consumer"))
            store.put(system, 100)
            producer.kill()
            kills += 1
        store.start("producer")
        store.await_packed(system)
        for one in consumers:
            one.stop()
        for key, data in store.objects.items():
            assert system.client.store().get(key) == data, str(key)
        system.worker.housekeeping().run_once()
        until(lambda: system.worker.housekeeping().run_once() is not None and not_recovered(system) == [], "recovery")
        assert problems(system.metadata, system.blocks, system.landing, system.medium) == []
        live = sum(block.live_bytes for block in all_blocks(system.metadata))
        assert live == sum(map(len, store.objects.values())), "each object is in one place"
    counts = Counter(key for _, key in events(store))
    assert counts.keys() == store.objects.keys(), "nothing is lost"
    repeated = counts.total() - len(counts)
    unmarked = kills + store.failed_turns()
    assert repeated <= unmarked * BATCH, f"only batches that were not marked are repeated, and {unmarked} were not"
    assert len({place for place, key in events(store) if key.bucket == BIG}) == PARTITIONS


def producer_objects(producer: DaemonProcess) -> float:
    return producer.metrics().get("nos_ec_producer_published_objects_total", 0)


def not_recovered(system: System) -> list[str]:
    """Blocks that a killed consumer left behind."""
    held = {(lease.name, lease.epoch) for lease in system.metadata.list_leases("")}
    still_open = (row for row in all_blocks(system.metadata) if row.state is BlockState.OPEN)
    return [row.writer for row in still_open if (row.writer, row.epoch) not in held]
