"""Contract of what lifecycle rules ask of `Versions`: nothing goes that is needed again by the time of the delete."""

from __future__ import annotations

from dataclasses import replace

from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning, as_version
from nos_ec.ports.metadata import DeleteVersion, ExpireMarker, ExpireVersion, ObjectRow, VersionDeletion, VersionEntry
from tests.contract.suites.metadata_version_contract import ENABLED, KEY, SUSPENDED, listed, mark, numbers, put, remove
from tests.rig.fakes.metadata_bench import MetadataBench

HOUR_MS = 3_600_000


def hourly(bench: MetadataBench, count: int) -> list[ObjectRow]:
    """Versions that were stored an hour apart, the last one just now."""
    rows = []
    for _ in range(count):
        bench.now_ms += HOUR_MS
        rows.append(put(bench, ENABLED))
    return rows


def apply(bench: MetadataBench, *deletions: VersionDeletion, until_ms: int | None = None) -> list[bool]:
    """Whether each of them removed its version."""
    answers = bench.metadata.delete_versions(deletions, bench.now_ms, until_ms)
    assert all(one is None or isinstance(one, VersionEntry) for one in answers)
    return [one is not None for one in answers]


def expire(row: ObjectRow, since_ms: int, newer: int = 0) -> ExpireVersion:
    """What the walk asks for."""
    return ExpireVersion(row.key, row.version, row, since_ms, newer)


class ExpiredVersionContract:
    """`ExpireVersion` and `ExpireMarker`."""

    def test_a_noncurrent_version_expires(self, bench: MetadataBench) -> None:
        first, second, third = hourly(bench, 3)
        (gone,) = bench.metadata.delete_versions([expire(first, bench.now_ms)], bench.now_ms)
        assert isinstance(gone, VersionEntry)
        assert (gone.version, gone.is_null, gone.is_latest) == (first.version, False, False)
        assert gone.row is not None
        assert gone.row.object_id == first.object_id
        assert numbers(bench.metadata) == [(third.version, False, True), (second.version, False, False)]
        assert apply(bench, expire(first, bench.now_ms)) == [False], "again"
        bench.check_counters()

    def test_it_goes_by_the_time_of_its_successor(self, bench: MetadataBench) -> None:
        first, second, third = hourly(bench, 3)
        assert apply(bench, expire(first, second.created_ms - 1)) == [False]
        assert apply(bench, expire(second, third.created_ms - 1)) == [False]
        assert apply(bench, expire(first, second.created_ms), expire(second, third.created_ms)) == [True, True]
        assert numbers(bench.metadata) == [(third.version, False, True)]

    def test_a_marker_is_a_successor(self, bench: MetadataBench) -> None:
        (first,) = hourly(bench, 1)
        bench.now_ms += HOUR_MS
        marker = mark(bench)
        assert apply(bench, expire(first, marker.created_ms - 1)) == [False]
        assert apply(bench, expire(first, marker.created_ms)) == [True]
        assert numbers(bench.metadata) == [(marker.version, True, True)], "and is not noncurrent itself"
        assert apply(bench, ExpireVersion(KEY, marker.version, None, bench.now_ms)) == [False]

    def test_a_noncurrent_marker_expires(self, bench: MetadataBench) -> None:
        (first,) = hourly(bench, 1)
        marker = mark(bench)
        (last,) = hourly(bench, 1)
        assert apply(bench, ExpireVersion(KEY, marker.version, first, bench.now_ms)) == [False], "no version"
        assert apply(bench, ExpireVersion(KEY, first.version, None, bench.now_ms)) == [False], "no marker"
        assert apply(bench, ExpireVersion(KEY, marker.version, None, last.created_ms - 1)) == [False]
        assert apply(bench, ExpireVersion(KEY, marker.version, None, last.created_ms)) == [True]
        assert [number for number, *_ in numbers(bench.metadata)] == [last.version, first.version]

    def test_some_newer_ones_are_kept(self, bench: MetadataBench) -> None:
        rows = hourly(bench, 5)
        late = bench.now_ms
        asked = [expire(row, late, 2) for row in rows]
        assert apply(bench, *asked) == [True, True, False, False, False]
        marker = mark(bench)
        assert apply(bench, *asked) == [False, False, True, False, False], "what was current is noncurrent now"
        remove(bench, marker.version)
        assert apply(bench, *asked) == [False] * 5
        assert bench.get("k").version == rows[4].version
        bench.check_counters()

    def test_what_became_current_stays(self, bench: MetadataBench) -> None:
        first, second = hourly(bench, 2)
        remove(bench, second.version)
        assert apply(bench, expire(first, bench.now_ms)) == [False]
        assert bench.get("k").version == first.version
        put(bench, ENABLED)
        assert apply(bench, expire(first, second.created_ms - 1)) == [False], "it is noncurrent since now"

    def test_what_was_tagged_anew_stays(self, bench: MetadataBench) -> None:
        first, _ = hourly(bench, 2)
        assert bench.metadata.set_attributes(first, as_version(b"\1\1\0ab"))
        assert apply(bench, expire(first, bench.now_ms)) == [False]
        now = bench.metadata.version(KEY, first.version).row
        assert now is not None
        assert apply(bench, expire(now, bench.now_ms)) == [True]

    def test_a_null_version_is_meant_by_its_number(self, bench: MetadataBench) -> None:
        null = put(bench, SUSPENDED)
        hourly(bench, 1)
        remove(bench, None)
        bench.now_ms += HOUR_MS
        other = put(bench, SUSPENDED)
        hourly(bench, 1)
        assert apply(bench, expire(null, bench.now_ms)) == [False]
        assert apply(bench, expire(other, bench.now_ms)) == [True]

    def test_what_has_expired_goes_into_the_trash(self, bench: MetadataBench) -> None:
        first, second = hourly(bench, 2)
        assert apply(bench, expire(first, bench.now_ms), until_ms=bench.now_ms + HOUR_MS) == [True]
        (row,) = bench.metadata.trash_page(None, 9).rows
        assert row.object_id == first.object_id
        remove(bench, second.version)
        assert bench.metadata.undelete([row]).rows != []
        assert numbers(bench.metadata) == [(first.version, False, True)]
        bench.check_counters()

    def test_a_version_that_was_undeleted_below_a_marker(self, bench: MetadataBench) -> None:
        older, row = hourly(bench, 2)
        bench.metadata.delete_versions([DeleteVersion(KEY, row.version)], bench.now_ms, bench.now_ms + HOUR_MS)
        bench.now_ms += HOUR_MS
        marker = mark(bench)
        assert bench.metadata.undelete(bench.metadata.trash_page(None, 9).rows).rows != []
        assert bench.get("k").version == row.version
        assert apply(bench, expire(row, bench.now_ms)) == [False], "it is current"
        assert apply(bench, ExpireMarker(KEY, marker.version)) == [False]
        assert apply(bench, expire(older, row.created_ms - 1)) == [False]
        assert apply(bench, expire(older, row.created_ms, 2)) == [False]
        assert apply(bench, expire(older, row.created_ms, 1)) == [True]
        asked = replace(expire(row, marker.created_ms), version=marker.version, seen=None)
        assert apply(bench, replace(asked, since_ms=marker.created_ms - 1), asked) == [False, True]
        assert numbers(bench.metadata) == [(row.version, False, True)]

    def test_a_marker_goes_when_it_is_alone(self, bench: MetadataBench) -> None:
        first, _ = hourly(bench, 2)
        marker = mark(bench)
        asked = ExpireMarker(KEY, marker.version)
        assert apply(bench, asked) == [False], "it hides versions"
        remove(bench, first.version)
        second = numbers(bench.metadata)[1][0]
        other = mark(bench)
        remove(bench, second)
        assert apply(bench, asked, ExpireMarker(KEY, other.version)) == [False, False], "another one is there"
        remove(bench, marker.version)
        assert apply(bench, ExpireMarker(KEY, other.version + 1)) == [False], "not of this number"
        assert apply(bench, ExpireMarker(ObjectKey("bucket", "l"), other.version)) == [False]
        assert apply(bench, ExpireMarker(KEY, other.version)) == [True]
        assert listed(bench.metadata) == []

    def test_an_object_needs_its_marker_no_more_but_keeps_it(self, bench: MetadataBench) -> None:
        marker = mark(bench)
        row = put(bench, ENABLED)
        assert apply(bench, ExpireMarker(KEY, marker.version)) == [False], "it is noncurrent now"
        assert apply(bench, ExpireMarker(KEY, row.version)) == [False], "it is not a marker"
        assert len(numbers(bench.metadata)) == 2

    def test_null_markers_expire_too(self, bench: MetadataBench) -> None:
        marker = mark(bench, Versioning.SUSPENDED)
        assert apply(bench, ExpireMarker(KEY, marker.version)) == [True]
        assert listed(bench.metadata) == []
