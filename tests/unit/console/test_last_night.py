"""What the page on the last night computes: who is alive, and when the store is full."""

from __future__ import annotations

from dataclasses import replace

from nos_ec.console.last_night import KNOWN_MS_MIN, Growth, daemons, filling
from nos_ec.core.expiry import DAY_MS
from nos_ec.engine.figures.daemons import SILENT_MS, Daemon, ParkedItem
from nos_ec.engine.figures.usage import UsagePoint

NOW_MS = 1_700_000_000_000


def daemon(process: str, seen_ms: int = NOW_MS, ended_ms: int | None = None, *since_ms: int) -> Daemon:
    items = tuple(ParkedItem("object", process, "it fails", one, 1) for one in since_ms)
    return Daemon("gc", process, f"of {process}", 1, seen_ms, ended_ms, 5, items)


def test_only_items_of_living_daemons_are_parked_those_that_failed_first_come_first() -> None:
    found = daemons(
        [
            daemon("new", NOW_MS, None, 9),
            daemon("old", NOW_MS, None, 7, 8),
            daemon("stopped", NOW_MS, NOW_MS, 1),
            daemon("silent", NOW_MS - SILENT_MS - 1, None, 2),
        ],
        NOW_MS,
    )
    assert [one.process for one in found.alive] == ["new", "old"]
    assert [one.process for one in found.gone] == ["stopped", "silent"]
    assert found.versions == ["of new", "of old"]
    assert [one.item.since_ms for one in found.parked] == [7, 8, 9]
    assert found.parked_more == 7


def test_a_service_is_missing_if_none_of_its_daemons_is_alive() -> None:
    old, new = (
        replace(daemon(name, NOW_MS - SILENT_MS - age), service="consumer") for name, age in (("o", 9), ("n", 1))
    )
    stopped = replace(daemon("stopped", NOW_MS, NOW_MS), service="producer")
    gone = [new, old, stopped, daemon("silent gc", 0)]
    found = daemons([daemon("gc that is alive"), *gone], NOW_MS)
    assert [one.process for one in found.silent] == ["n", "o", "silent gc"]
    assert [one.process for one in found.missing] == ["n"], "another GC is alive, and the producer was stopped"
    assert [one.process for one in daemons(gone, NOW_MS).missing] == ["n", "silent gc"]


def point(age_ms: int, stored_bytes: int) -> UsagePoint:
    return UsagePoint(NOW_MS - age_ms, 0, 0, stored_bytes, stored_bytes)


def test_the_store_is_full_when_it_goes_on_growing() -> None:
    points = [point(8 * DAY_MS, 0), point(2 * DAY_MS, 600), point(DAY_MS // 2, 900)]
    found = filling(points, point(0, 1000), free_bytes=5000, reserve_bytes=1000, overhead=0.0)
    assert found.left_bytes == 4000
    assert found.growth == [
        Growth(2 * DAY_MS, 400, 20 * DAY_MS),
        Growth(8 * DAY_MS, 1000, 32 * DAY_MS),
    ]
    with_headers = filling(points, point(0, 1000), free_bytes=5000, reserve_bytes=1000, overhead=0.25)
    assert with_headers.growth == [
        Growth(2 * DAY_MS, 500, 16 * DAY_MS),
        Growth(8 * DAY_MS, 1250, 8 * DAY_MS * 4000 // 1250),
    ]


def test_a_store_that_shrinks_or_is_new_does_not_fill() -> None:
    assert filling([point(DAY_MS, 10)], point(0, 5), 100, 200, 0.0).growth == [Growth(DAY_MS, -5, None)]
    assert filling([], point(0, 5), 100, 0, 0.0).growth == []
    assert filling([point(-1, 5)], point(0, 5), 100, 0, 0.0).growth == []
    assert filling([point(KNOWN_MS_MIN - 1, 1)], point(0, 5), 100, 0, 0.0).growth == []
    assert filling([point(DAY_MS, 1)], point(0, 5), 100, 200, 0.0).growth == [Growth(DAY_MS, 4, 0)]
