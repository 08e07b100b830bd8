"""What is cached about the places of objects, and for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nos_ec.core.errors import NotFound
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.ports.metadata import ObjectRow
from tests.rig.fakes.clock import FakeClock

AGE_MS = 1_000


class Rows:
    """The one method of the metadata that is used; counts its calls."""

    def __init__(self) -> None:
        self.versions: dict[ObjectKey, int] = {}
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def get(self, key: ObjectKey) -> ObjectRow:
        self.asked += 1
        if key not in self.versions:
            raise NotFound(str(key))
        row = ObjectRow(1, key, self.versions[key], 1, 0, b"", ObjectState.LANDED, LandingId(bytes(16)), None, 0)
        self.meanwhile()
        return row


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def cache_of(clock: FakeClock, objects_max: int = 2) -> LocationCache:
    return LocationCache(clock, objects_max, AGE_MS)


def key(name: str) -> ObjectKey:
    return ObjectKey("b", name)


def test_a_row_is_looked_up_once_until_it_is_too_old(rows: Rows, clock: FakeClock) -> None:
    rows.versions[key("n")] = 1
    cache = cache_of(clock)
    assert [cache.find_row(key("n"), rows.get).version for _ in range(3)] == [1, 1, 1]
    assert rows.asked == 1
    rows.versions[key("n")] = 2
    clock.advance(AGE_MS - 1)
    assert cache.find_row(key("n"), rows.get).version == 1, "another process's change, not seen yet"
    clock.advance(1)
    assert cache.find_row(key("n"), rows.get).version == 2


def test_nothing_is_cached_when_the_cache_is_off(rows: Rows, clock: FakeClock) -> None:
    rows.versions[key("n")] = 1
    cache = cache_of(clock, objects_max=0)
    cache.find_row(key("n"), rows.get)
    cache.forget_rows([key("n")])
    cache.find_row(key("n"), rows.get)
    assert (rows.asked, len(cache)) == (2, 0)


def test_the_least_recently_used_row_is_dropped_first(rows: Rows, clock: FakeClock) -> None:
    rows.versions.update({key(name): 1 for name in "abc"})
    cache = cache_of(clock)
    for name in "abac":
        cache.find_row(key(name), rows.get)
    assert (rows.asked, len(cache)) == (3, 2)
    cache.find_row(key("a"), rows.get)
    assert rows.asked == 3
    cache.find_row(key("b"), rows.get)
    assert rows.asked == 4


def test_forgotten_rows_are_dropped_at_once(rows: Rows, clock: FakeClock) -> None:
    rows.versions[key("n")] = 1
    cache = cache_of(clock)
    cache.find_row(key("n"), rows.get)
    rows.versions[key("n")] = 2
    cache.forget_rows([key("n"), key("unknown")])
    assert cache.find_row(key("n"), rows.get).version == 2


def test_a_change_during_a_look_up_prevents_caching(rows: Rows, clock: FakeClock) -> None:
    rows.versions[key("n")] = 1
    cache = cache_of(clock)

    def overwrite() -> None:
        rows.versions[key("n")] = 2
        cache.forget_rows([key("n")])

    rows.meanwhile = overwrite
    assert cache.find_row(key("n"), rows.get).version == 1, "looked up before the overwrite was acknowledged"
    rows.meanwhile = lambda: None
    assert cache.find_row(key("n"), rows.get).version == 2


def test_absence_is_not_cached(rows: Rows, clock: FakeClock) -> None:
    cache = cache_of(clock)
    with pytest.raises(NotFound):
        cache.find_row(key("n"), rows.get)
    rows.versions[key("n")] = 1
    assert cache.find_row(key("n"), rows.get).version == 1


def test_a_deleted_row_is_dropped_when_it_is_looked_up_again(rows: Rows, clock: FakeClock) -> None:
    rows.versions[key("n")] = 1
    cache = cache_of(clock)
    cache.find_row(key("n"), rows.get)
    del rows.versions[key("n")]
    with pytest.raises(NotFound):
        cache.look_up_row(key("n"), rows.get)
    assert len(cache) == 0


def test_nothing_lasts_longer_when_the_clock_is_set_back(rows: Rows) -> None:
    rows.versions[key("n")] = 1
    cache = cache_of(FakeClock(1_000_000))
    cache.find_row(key("n"), rows.get)
    cache._clock = FakeClock(1)
    cache.find_row(key("n"), rows.get)
    assert rows.asked == 2
