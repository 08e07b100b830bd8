"""A bucket whose events are spread over partitions: nothing is lost or repeated, whenever the spread changes."""

from __future__ import annotations

from collections import Counter

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import TooLarge, Transient
from nos_ec.core.formats.messages import partition_for, partition_for_key
from nos_ec.core.ids import ObjectKey
from nos_producer.spreading import HOLD_MS, REVIEW_WAIT_MS, SpreadOptions
from tests.service.packing.test_producers import PARTITIONS, REPUBLISH_MS, Team
from tests.service.packing.test_republishing import HOUR_MS, pass_time

BACKLOG_MIN = 40
BIG = "bucket-big"


@pytest.fixture
def team(system: System) -> Team:
    return Team(system)


def put(team: Team, system: System, count: int, prefix: str, bucket: str = BIG) -> list[ObjectKey]:
    keys = [ObjectKey(bucket, f"{prefix}/{number:05}") for number in range(count)]
    system.client.store().put_many([(key, b"some bytes") for key in keys])
    return keys


def partitions_of(team: Team, bucket: str = BIG) -> set[int]:
    return {place for key, place in zip(team.published, team.partitions, strict=True) if key.bucket == bucket}


def automatic(backlog_min: int = BACKLOG_MIN) -> SpreadOptions:
    return SpreadOptions(backlog_min, None)


# --- events that wait while the spread changes --------------------------------------------------------
@pytest.mark.parametrize("spreads", [(1, 3, 1), (3, 1, 3), (2, 3, 2), (1, None, 3)], ids=str)
def test_changing_the_spread_while_events_wait_repeats_nothing(
    team: Team, system: System, spreads: tuple[int | None, ...]
) -> None:
    """Hours without consumers, and each producer has another setting. Every row comes due many times."""
    began_ms = team.clock.now_ms()
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms)
    keys: list[ObjectKey] = []
    for number, spread in enumerate(spreads):
        one = team.hire(spread=SpreadOptions(BACKLOG_MIN, spread), batch_objects=100)
        keys += put(team, system, 100, f"{number}") + put(team, system, 5, f"{number}", "another")
        team.drain([one])
        pass_time(team, one, 2 * HOUR_MS)
        one.held.release()
    assert Counter(team.published) == Counter(keys)
    assert partitions_of(team) == set(range(PARTITIONS))


def test_an_event_that_waits_in_another_partition_is_not_repeated(team: Team, system: System) -> None:
    """The group has passed the home partition of the bucket, which is all that counts when it is not spread. But two
    thirds of the events wait elsewhere, and the producer that comes back knows nothing of them."""
    began_ms, home = team.clock.now_ms(), partition_for(BIG, PARTITIONS)
    keys = put(team, system, 60, "a")
    one = team.hire(spread=SpreadOptions(default=3))
    team.drain([one])
    one.held.release()
    at_home = [key for key, place in zip(team.published, team.partitions, strict=True) if place == home]
    assert 10 < len(at_home) < 35
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms) | {home: team.clock.now_ms()}
    two = team.hire(spread=SpreadOptions(default=1))
    pass_time(team, two, REPUBLISH_MS)
    assert Counter(team.published) == Counter(keys + at_home), "those in the home partition are lost"


def test_a_lost_event_of_a_spread_bucket_is_published_again(team: Team, system: System) -> None:
    """Once the group has passed all partitions, and not while one of them cannot tell."""
    keys = put(team, system, 60, "a")
    one = team.hire(spread=SpreadOptions(default=3))
    team.drain([one])
    home = partition_for(BIG, PARTITIONS)
    at_home = Counter({key: 1 for key, place in zip(team.published, team.partitions, strict=True) if place == home})
    team.on_passed = lambda: {number: team.clock.now_ms() for number in range(PARTITIONS) if number != (home + 1) % 3}
    pass_time(team, one, REPUBLISH_MS)
    assert Counter(team.published) == Counter(keys) + at_home
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), team.clock.now_ms())
    pass_time(team, one, REPUBLISH_MS)
    assert Counter(team.published) >= Counter(keys * 2)


def test_an_event_that_is_refused_waits_in_its_own_partition(team: Team, system: System) -> None:
    """A partition away holds up the third of the bucket that goes there, and one event too large only itself."""
    keys = put(team, system, 60, "a")
    home = partition_for(BIG, PARTITIONS)
    team.refuse = lambda key, value: (
        Transient("no leader")
        if partition_for_key(key, PARTITIONS) != home
        else TooLarge("")
        if b"/00000" in value
        else None
    )
    team.on_passed = lambda: {home: team.clock.now_ms()}
    one = team.hire(spread=SpreadOptions(default=2))
    team.drain([one])
    assert 10 < len(team.published) < 45
    assert set(team.partitions) == {home}
    team.refuse = lambda _key, _value: None
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), 0)
    pass_time(team, one, REPUBLISH_MS)
    assert Counter(team.published) == Counter(keys)
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [0, 0]


def test_turns_that_publish_nothing_are_not_remembered(team: Team, system: System) -> None:
    """Such as those in which every event is refused, for days."""
    put(team, system, 1, "kept")
    one = team.hire(spread=automatic())
    for _ in range(100):
        one.service.spreading.add_published([], team.clock.now_ms())
    assert len(one.service.spreading._recent) == 0


# --- spread by itself ---------------------------------------------------------------------------------
def test_a_bucket_with_most_of_the_backlog_is_spread_and_others_stay(team: Team, system: System) -> None:
    began_ms = team.clock.now_ms()
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms)
    one = team.hire(spread=automatic())
    put(team, system, BACKLOG_MIN - 1, "few")
    put(team, system, 10, "few", "another")
    team.drain([one])
    assert one.service.spreading.spread_buckets == 0
    for turn in range(6):
        team.clock.advance(REVIEW_WAIT_MS)
        put(team, system, 5, f"more-{turn}")
        put(team, system, 1, f"more-{turn}", "another")
        team.drain([one])
    assert one.service.spreading.spread_buckets == 1
    assert partitions_of(team) == set(range(PARTITIONS))
    assert len(partitions_of(team, "another")) == 1


def test_a_backlog_that_is_still_in_the_rows_is_spread_from_the_first_event(team: Team, system: System) -> None:
    """After a day without a producer, most events would otherwise be published before the producer has noticed."""
    put(team, system, 600, "a")
    one = team.hire(spread=automatic(), batch_objects=20)
    team.drain([one])
    counts = Counter(team.partitions)
    assert max(counts.values()) < 1.3 * 600 / PARTITIONS


def test_a_small_store_with_one_bucket_stays_in_one_partition(team: Team, system: System) -> None:
    """All the backlog is this bucket's, but one consumer keeps up with it."""
    lag_ms = 20_000
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), team.clock.now_ms() - lag_ms)
    one = team.hire(spread=automatic(), batch_objects=100)
    for turn in range(60):
        team.clock.advance(1000)
        put(team, system, BACKLOG_MIN // 25, f"{turn}")
        team.drain([one])
    assert len(team.published) >= 60
    assert partitions_of(team) == {partition_for(BIG, PARTITIONS)}


def test_two_large_buckets_stay_where_they_are(team: Team, system: System) -> None:
    """Neither has most of the backlog: they are in partitions of their own, or share one with both consumers busy."""
    began_ms = team.clock.now_ms()
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms)
    one = team.hire(spread=automatic())
    for turn in range(30):
        team.clock.advance(REVIEW_WAIT_MS)
        put(team, system, 5, f"{turn}")
        put(team, system, 5, f"{turn}", "another")
        team.drain([one])
    assert one.service.spreading.spread_buckets == 0
    assert len(partitions_of(team)) == len(partitions_of(team, "another")) == 1


def test_a_bucket_returns_home_when_its_backlog_is_gone_for_a_while(team: Team, system: System) -> None:
    put(team, system, 200, "a")
    one = team.hire(spread=automatic(), batch_objects=20)
    began_ms = team.clock.now_ms()
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms)
    team.drain([one])
    pass_time(team, one, 2 * HOLD_MS)
    assert one.service.spreading.spread_buckets == 1, "its backlog waits"
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), team.clock.now_ms())
    team.clock.advance(HOLD_MS // 2)
    published = len(team.published)
    put(team, system, 30, "b")
    team.drain([one])
    assert set(team.partitions[published:]) == set(range(PARTITIONS)), "not at once, or it would be back soon"
    team.clock.advance(HOLD_MS)
    published = len(team.published)
    put(team, system, 9, "c")
    team.drain([one])
    assert one.service.spreading.spread_buckets == 0
    assert set(team.partitions[published:]) == {partition_for(BIG, PARTITIONS)}


def test_without_an_answer_of_the_log_everything_stays_as_it_is(team: Team, system: System) -> None:
    def cannot_tell() -> dict[int, int]:
        raise Transient("no broker")

    put(team, system, 200, "a")
    one = team.hire(spread=automatic(), batch_objects=20)
    team.drain([one])
    assert one.service.spreading.spread_buckets == 1
    team.on_passed = cannot_tell
    pass_time(team, one, 3 * HOLD_MS)
    assert one.service.spreading.spread_buckets == 1
    two = team.hire(spread=automatic())
    one.held.release()
    put(team, system, 200, "b")
    team.drain([two])
    assert two.service.spreading.spread_buckets == 0


def test_a_fixed_spread_is_never_changed(team: Team, system: System) -> None:
    options = SpreadOptions(BACKLOG_MIN, None, {BIG: 2, "one": 1})
    for bucket in (BIG, "one"):
        put(team, system, 300, "a", bucket)
        one = team.hire(spread=options, batch_objects=20)
        team.drain([one])
        one.held.release()
        assert one.service.spreading.spread_buckets == 0
    assert len(partitions_of(team)) == 2
    assert len(partitions_of(team, "one")) == 1


def test_what_a_producer_remembers_is_limited(team: Team, system: System) -> None:
    """The limit holds however many buckets there are, and however long nothing is packed."""
    began_ms = team.clock.now_ms()
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms)
    one = team.hire(spread=automatic(), batch_objects=100)
    for turn in range(40):
        for number in range(25):
            put(team, system, 1, f"{turn}", f"bucket-{turn}-{number}")
        team.drain([one])
    spreading = one.service.spreading
    assert spreading.spread_buckets == 0
    assert spreading._recent_rows <= 3 * BACKLOG_MIN
    assert len(spreading._recent_counts) <= 3 * BACKLOG_MIN
    assert spreading._recent_rows == sum(batch.rows for batch in spreading._recent)
