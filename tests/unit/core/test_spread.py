"""The partitions and keys of a bucket whose events are spread."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.bench.simulate import simulate
from nos_ec.bench.workloads import sizes
from nos_ec.core.formats.messages import partition_for, partition_for_key
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.packer import size_max
from nos_ec.core.publishing.spread import message_key, spread_partition
from nos_ec.settings.sections import ConsumerSettings

NAMES = {
    "numbers": [f"{number}" for number in range(12_000)],
    "padded": [f"photos/img_{number:08}.jpg" for number in range(12_000)],
    "hex": [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(12_000)],
    "days": [f"2026/{number // 400:02}/{number % 400}" for number in range(12_000)],
}


def partition(key: ObjectKey, spread: int, partitions: int) -> int:
    return spread_partition(key, partition_for(key.bucket, partitions), spread, partitions)


@given(st.text(min_size=1, max_size=20), st.integers(1, 64))
def test_without_spread_the_key_is_the_bucket_byte_for_byte(bucket: str, partitions: int) -> None:
    home = partition_for(bucket, partitions)
    assert spread_partition(ObjectKey("b", "any"), home, 1, partitions) == home
    assert message_key(bucket, home, partitions) == bucket.encode()


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 12, 48, 257])
def test_each_partition_has_a_key_that_the_partitioner_sends_there(partitions: int) -> None:
    """The embedded log and every Kafka client with the default partitioner choose that partition by the key alone."""
    keys = [message_key("größte", number, partitions) for number in range(partitions)]
    assert [partition_for_key(key, partitions) for key in keys] == list(range(partitions))
    assert len(set(keys)) == partitions


def test_the_keys_that_other_programs_may_rely_on() -> None:
    """docs/KAFKA.md lists them. A change of the rule would make this test fail."""
    assert [message_key("photos", number, 12) for number in range(12)] == [
        *(b"photos#6", b"photos#14", b"photos#8", b"photos#9", b"photos#40", b"photos#36"),
        *(b"photos#4", b"photos#19", b"photos#11", b"photos", b"photos#1", b"photos#2"),
    ]
    assert [partition(ObjectKey("photos", f"{n}.jpg"), 4, 12) for n in range(6)] == [10, 0, 9, 0, 11, 9]


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize(("spread", "partitions"), [(12, 12), (5, 12), (3, 8), (48, 48), (99, 8)])
def test_the_events_are_even_over_as_many_partitions_as_asked(names: list[str], spread: int, partitions: int) -> None:
    counts = Counter(partition(ObjectKey("photos", name), spread, partitions) for name in names)
    used, home = min(spread, partitions), partition_for("photos", partitions)
    assert set(counts) == {(home + number) % partitions for number in range(used)}
    mean = len(names) / used
    assert max(counts.values()) < mean + 5 * mean**0.5, "as even as chance makes it"


def test_a_partition_that_there_is_not_is_refused() -> None:
    for number in (-1, 12):
        with pytest.raises(ValueError, match="of 12"):
            message_key("photos", number, 12)


@pytest.mark.parametrize("workload", ["W1", "W2", "W6"])
def test_three_consumers_of_one_bucket_fill_stripes_as_well_as_one(workload: str) -> None:
    """Each packs what its four of twelve partitions get, from a window of its own: utilisation within 0.2 points."""
    geometry, consumer = Geometry(), ConsumerSettings(window_objects=300)
    drawn = list(sizes(workload, 24_000, random.Random(5), size_max(geometry)))
    parts: dict[int, list[int]] = {}
    for number, size in enumerate(drawn):
        parts.setdefault(partition(ObjectKey("photos", f"{number}.jpg"), 12, 12) % 3, []).append(size)
    runs = [simulate(part, consumer, geometry, timer=lambda: 0.0, names=False) for part in parts.values()]
    apart = sum(run.user_bytes for run in runs) / (sum(run.stripes for run in runs) * geometry.stripe_size)
    together = simulate(drawn, consumer, geometry, timer=lambda: 0.0, names=False).utilisation
    assert len(runs) == 3
    assert abs(apart - together) < 0.002, (apart, together)
