"""Events that another program publishes: they name a version, and its row has the rest (docs/MESSAGES.md)."""

from __future__ import annotations

from contextlib import closing

import pytest

from nos_consumer.assemble import consumer_service
from nos_consumer.backlog import CLOCK_MARGIN_MS
from nos_consumer.counters import ConsumerCounters
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.formats.messages import encode_pack_request
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from tests.rig.at_rest import LaterClock
from tests.service.conftest import STRIPE, Bench
from tests.service.packing.foreign import publish_named

pytestmark = pytest.mark.invariant(5)
MINUTE_MS = 60_000


def consume(system: System) -> ConsumerCounters:
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    return consumer.counters


def versions(system: System, keys: list[ObjectKey]) -> list[tuple[ObjectKey, int]]:
    return [(key, system.client.store().head(key).version) for key in keys]


def states(system: System, keys: list[ObjectKey]) -> set[ObjectState]:
    return {system.client.store().head(key).state for key in keys}


def test_objects_that_no_producer_of_ours_published_are_packed(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 100)
    publish_named(system, versions(system, keys))
    counters = consume(system)
    assert (counters.packed, counters.stale, counters.poison) == (100, 0, 0)
    assert states(system, keys) == {ObjectState.PACKED}
    assert bench.produce(system) == 0, "nothing is left to publish"
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_events_of_both_programs_pack_an_object_once(bench: Bench, system: System) -> None:
    """Whichever comes first, and whether or not both are in the same partition."""
    keys = bench.put_some(system, 90)
    publish_named(system, versions(system, keys[:30]))
    assert bench.produce(system) == 90
    publish_named(system, versions(system, keys[30:60]))
    publish_named(system, versions(system, keys[60:]), message_key="another partition, perhaps")
    counters = consume(system)
    assert (counters.packed, counters.superseded, counters.stale) == (90, 0, 90)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_events_that_came_too_late_are_stale(bench: Bench, system: System) -> None:
    deleted, overwritten, packed = bench.put_some(system, 3)
    events = versions(system, [deleted, overwritten, packed])
    bench.delete(system, deleted)
    bench.put(system, overwritten.name, bench.data(99), bucket=overwritten.bucket)
    publish_named(system, versions(system, [packed]))
    assert consume(system).packed == 1
    empty, large = bench.put(system, "empty", b""), bench.put(system, "large", bench.data(9 * STRIPE))
    events += versions(system, [empty, large])
    events += [(ObjectKey("b", "never"), 1), (ObjectKey("no-bucket", "n"), 2**63 - 1)]
    publish_named(system, events)
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
        assert consumer.counters.stale == len(events)
    assert (consumer.counters.packed, consumer.counters.poison) == (0, 0)
    assert system.operator.lag() == 0, "they are acknowledged"
    assert states(system, [overwritten]) == {ObjectState.LANDED}
    bench.settle(system)
    bench.assert_readable(system)


def test_an_event_before_its_time_is_stale_and_the_producer_publishes_later(bench: Bench) -> None:
    """put.min_age_ms holds for everybody. A minute before it counts as in time, because clocks differ."""
    age_ms = 10 * MINUTE_MS
    bench.config.write_text(bench.config.read_text().replace("[put]", f"[put]\nmin_age_ms = {age_ms}"))
    with bench.open() as system:
        keys = bench.put_some(system, 5)
        publish_named(system, versions(system, keys))
        assert consume(system).stale == 5
        assert states(system, keys) == {ObjectState.LANDED}
        system.clock = LaterClock(age_ms - CLOCK_MARGIN_MS)
        publish_named(system, versions(system, keys[:2]))
        assert consume(system).packed == 2
        system.clock = LaterClock(age_ms)
        assert bench.produce(system) == 3
        assert consume(system).packed == 3
        bench.assert_readable(system)


def test_a_metadata_store_that_is_away_loses_no_named_version(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = bench.put_some(system, 10)
    publish_named(system, versions(system, keys))
    publish_named(system, [(ObjectKey("b", "never"), 1)])
    waiting_requests, calls = system.metadata.waiting_requests, 0

    def fails_twice(*asked: object) -> object:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise Transient("away")
        return waiting_requests(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(system.metadata, "waiting_requests", fails_twice)
    with consumer_service(system) as consumer:
        for _ in range(2):
            with pytest.raises(Transient, match="away"):
                consumer.turn(flush=True)
        consumer.drain(make_room=lambda: False)
    assert (consumer.counters.packed, consumer.counters.stale) == (10, 1)


def test_events_of_our_producer_cost_no_further_query(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put_some(system, 10)
    bench.produce(system)
    monkeypatch.setattr(system.metadata, "waiting_requests", None)
    assert consume(system).packed == 10


def test_bad_events_of_version_2_are_dead_letters(bench: Bench, system: System) -> None:
    key = bench.put(system, "it", bench.data(10))
    publish_named(system, [(key, 0), (key, 2**63)])
    counters = consume(system)
    assert (counters.poison, counters.stale) == (2, 0)
    with open_system(system.settings) as other:
        assert other.operator.lag() == 0


def test_events_of_another_store_are_refused_by_name(bench: Bench, system: System) -> None:
    """They are not acknowledged: the other store waits for them."""
    (key,) = bench.put_some(system, 1)
    row = system.client.store().head(key)
    assert row.landing_id is not None
    other = "0123456789abcdef" * 2
    event = encode_pack_request(
        object_id=row.object_id,
        key=key,
        version=row.version,
        size=row.size,
        crc32c=row.crc32c,
        landing_id=row.landing_id,
        store=other,
    )
    with closing(system.worker.publisher()) as publisher:
        publisher.publish([(key.bucket.encode(), event)])
    with pytest.raises(ConfigError, match=f"another store, {other}; this one is {system.store_id}"):
        consume(system)
    assert bench.run("consumer", "--once").returncode == 3
    with closing(system.worker.log_consumer("looks")) as consumer:
        assert consumer.lag() == 1
