"""Rows that come due again: they are published again only when their event is lost, and never delay others."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import TooLarge, Transient
from nos_ec.core.formats.messages import decode_pack_request, partition_for
from nos_ec.core.ids import ObjectKey
from nos_producer.service import ProducerOptions, ProducerService
from nos_producer.slots import HeldSlots
from tests.service.packing.test_producers import PARTITIONS, REPUBLISH_MS, TTL_MS, Member, Team

HOUR_MS = 3_600_000


@pytest.fixture
def team(system: System) -> Team:
    return Team(system)


def pass_time(team: Team, member: Member, time_ms: int) -> None:
    """Process everything that comes due meanwhile."""
    for _ in range(time_ms // (TTL_MS // 3)):
        team.clock.advance(TTL_MS // 3)
        team.drain([member])


def test_hours_without_consumers_publish_nothing_again(team: Team, system: System) -> None:
    """8 hours would be 48 times the backlog. Meanwhile new objects are published at once."""
    keys = team.put(system, 60, "a")
    began_ms = team.clock.now_ms()
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), began_ms)
    one = team.hire()
    team.drain([one])
    pass_time(team, one, 4 * HOUR_MS)
    keys += team.put(system, 10, "b")
    team.clock.advance(4 * HOUR_MS)
    team.drain([one])
    pass_time(team, one, HOUR_MS)
    assert Counter(team.published) == Counter(keys)
    assert one.service.counters.postponed > 100
    assert team.questions < 9 * HOUR_MS / 10_000


def test_an_event_that_the_group_passed_is_published_again_once(team: Team, system: System) -> None:
    """However far behind the group is, the row still says when it was published."""
    first, began_ms = team.put(system, 20, "a"), team.clock.now_ms()
    behind_ms = 3 * HOUR_MS
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), max(began_ms, team.clock.now_ms() - behind_ms))
    one = team.hire()
    team.drain([one])
    pass_time(team, one, HOUR_MS)
    second = team.put(system, 20, "b")
    team.drain([one])
    pass_time(team, one, behind_ms - HOUR_MS)
    assert Counter(team.published) == Counter(first + second)
    pass_time(team, one, 2 * REPUBLISH_MS)
    assert Counter(team.published) == Counter(first * 2 + second), "still three hours behind"


def test_each_partition_is_judged_separately(team: Team, system: System) -> None:
    keys, began_ms = team.put(system, 60, "a"), team.clock.now_ms()
    team.on_passed = lambda: {0: began_ms, 1: team.clock.now_ms()}  # 2 cannot tell
    one = team.hire()
    team.drain([one])
    pass_time(team, one, REPUBLISH_MS)
    again = [key for key in keys if partition_for(key.bucket, PARTITIONS) == 1]
    assert 0 < len(again) < len(keys)
    assert Counter(team.published) == Counter(keys + again)


def test_nothing_is_published_again_while_progress_is_unknown(team: Team, system: System) -> None:
    def cannot_tell() -> dict[int, int]:
        raise Transient("no broker")

    keys = team.put(system, 30, "a")
    team.on_passed = cannot_tell
    one = team.hire()
    team.drain([one])
    pass_time(team, one, HOUR_MS)
    keys += team.put(system, 10, "b")
    team.drain([one])
    assert Counter(team.published) == Counter(keys)
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), team.clock.now_ms())
    pass_time(team, one, REPUBLISH_MS)
    assert Counter(team.published) >= Counter(keys[:30] * 2)


def test_an_event_that_is_too_large_does_not_stop_the_others(team: Team, system: System) -> None:
    """One of each batch, until the topic's limit is raised. It is published soon after."""
    large = ObjectKey("bucket-0", "large")
    system.client.store().put_many([(large, b"some bytes")])
    keys = team.put(system, 40, "a")
    team.refuse = lambda _, value: TooLarge("too large") if decode_pack_request(value).key == large else None
    one = team.hire()
    team.drain([one])
    assert Counter(team.published) == Counter(keys)
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [1, 0]
    pass_time(team, one, REPUBLISH_MS // 2)
    assert 2 <= one.service.counters.refused <= 10, "each try waits longer than the one before"
    team.refuse = lambda _key, _value: None
    pass_time(team, one, REPUBLISH_MS)
    assert team.published.count(large) == 1
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [0, 0]


def test_an_object_that_is_deleted_while_it_is_parked_is_forgotten(team: Team, system: System) -> None:
    large = ObjectKey("bucket-0", "large")
    system.client.store().put_many([(large, b"some bytes")])
    team.refuse = lambda _, value: TooLarge("too large") if decode_pack_request(value).key == large else None
    one = team.hire()
    team.drain([one])
    system.client.store().delete(large)
    pass_time(team, one, 4 * REPUBLISH_MS)
    team.put(system, 1, "a")
    team.drain([one])
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [0, 0]


@pytest.mark.parametrize("alone", [False, True], ids=["among-others", "whole-batches"])
def test_a_partition_that_accepts_nothing_does_not_stop_the_others(team: Team, system: System, alone: bool) -> None:
    """Its rows are tried now and then, and published when it is back. This also holds when a batch has no other rows,
    so that publishing fails as a whole while the rest of the log still answers."""
    keys = team.put(system, 60, "a")
    away = [key for key in keys if partition_for(key.bucket, PARTITIONS) == 1]
    tried: list[bytes] = []

    def refuse(key: bytes, _value: bytes) -> Transient | None:
        if partition_for(key.decode(), PARTITIONS) != 1:
            return None
        tried.append(key)
        if alone:
            raise Transient("no leader")
        return Transient("no leader")

    team.refuse = refuse
    team.on_passed = lambda: {0: team.clock.now_ms(), 2: team.clock.now_ms()}
    one = team.hire(batch_objects=1 if alone else 7)
    team.drain([one])
    assert Counter(team.published) == Counter(set(keys) - set(away))
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [0, 1]
    tries = len(tried)
    pass_time(team, one, 60_000)
    assert len(tried) - tries <= 4 * 7
    team.refuse = lambda _key, _value: None
    team.on_passed = lambda: dict.fromkeys(range(PARTITIONS), 0)
    pass_time(team, one, REPUBLISH_MS)
    assert Counter(team.published) == Counter(keys)
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [0, 0]


def test_nothing_is_parked_while_the_whole_log_is_away(team: Team, system: System) -> None:
    """Then nothing is written to the metadata for a whole backlog."""

    def refuse(_key: bytes, _value: bytes) -> Transient | None:
        raise Transient("no broker")

    def cannot_tell() -> dict[int, int]:
        raise Transient("no broker")

    keys = team.put(system, 20, "a")
    team.refuse, team.on_passed = refuse, cannot_tell
    one = team.hire()
    for _ in range(3):
        with pytest.raises(Transient, match="no broker"):
            one.service.turn()
    assert [retry_queue.figures().items for retry_queue in one.service.retry_queues] == [0, 0]
    team.refuse = lambda _key, _value: None
    team.drain([one])
    assert Counter(team.published) == Counter(keys)


def test_the_backlog_of_the_embedded_log_does_not_grow_without_consumers(team: Team, system: System) -> None:
    """The whole path: the lag is the number of objects after hours, and again when the events are lost."""
    team.put(system, 50, "a")
    held = HeldSlots(system.metadata, team.clock, TTL_MS, "real")
    options = ProducerOptions(REPUBLISH_MS, PARTITIONS, store_id="", batch_objects=7)
    with (
        closing(system.worker.publisher()) as publisher,
        closing(system.worker.group_progress("test")) as progress,
        closing(system.worker.log_consumer("m")) as consumer,
    ):
        service = ProducerService(system.metadata, publisher, progress, team.clock, held, options)
        service.drain()
        for _ in range(20):
            team.clock.advance(REPUBLISH_MS)
            service.drain()
        assert consumer.lag() == 50
        taken = 0
        while taken < 50:
            messages = consumer.poll(100, 100)
            taken += len(messages)
            consumer.commit({message.partition: message.offset + 1 for message in messages})
        assert consumer.lag() == 0
        held.release()
