"""Contract of `Versions`: what becomes noncurrent, what becomes current again, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.conditions import ABSENT, PRESENT, Condition
from nos_ec.core.errors import Conflict, NosError, NotFound, PreconditionFailed, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import FLOOR_MS, Versioning, as_null_version, as_version
from nos_ec.ports.metadata import (
    AddMarker,
    CannedAcl,
    DeleteVersion,
    ExpireMarker,
    ExpireVersion,
    MarkerRow,
    Metadata,
    ObjectRow,
    VersionEntry,
)
from tests.rig.fakes.metadata_bench import MetadataBench, asking

ENABLED, SUSPENDED = Versioning.ENABLED, Versioning.SUSPENDED
KEY = ObjectKey("bucket", "k")
_TO_THE_END = 10_000


def put(
    bench: MetadataBench,
    versioning: Versioning | None,
    name: str = "k",
    size: int = 1000,
    condition: Condition | None = None,
) -> ObjectRow:
    """PUT an object into a bucket with this versioning."""
    attributes = {None: b"", ENABLED: as_version(b""), SUSPENDED: as_null_version(b"")}[versioning]
    new = asking(bench.new(name, size), versioning=versioning, attributes=attributes, condition=condition)
    return bench.record([new])[0]


def mark(bench: MetadataBench, versioning: Versioning = ENABLED, name: str = "k") -> VersionEntry:
    """Delete an object by a marker."""
    (made,) = bench.metadata.delete_versions([AddMarker(ObjectKey("bucket", name), versioning)], bench.now_ms)
    assert isinstance(made, VersionEntry)
    assert made.row is None
    return made


def remove(bench: MetadataBench, version: int | None, name: str = "k") -> VersionEntry | NosError | None:
    """Delete one version."""
    (gone,) = bench.metadata.delete_versions([DeleteVersion(ObjectKey("bucket", name), version)], bench.now_ms)
    return gone


def listed(metadata: Metadata, prefix: str = "", delimiter: str = "", limit: int = 2) -> list[VersionEntry | str]:
    """All pages of a listing."""
    found: list[VersionEntry | str] = []
    after: tuple[str, int | None] | None = ("", None)
    while after is not None:
        page = metadata.list_versions("bucket", prefix, delimiter, after, limit, _TO_THE_END)
        assert len(page.entries) <= limit
        found += page.entries
        after = page.next_after
    assert found == list(metadata.list_versions("bucket", prefix, delimiter, ("", None), 999, _TO_THE_END).entries)
    return found


def numbers(metadata: Metadata, name: str = "k") -> list[tuple[int, bool, bool]]:
    """(version, whether it is a marker, whether it is the latest) of a key, in order."""
    entries = listed(metadata)
    rows = [one for one in entries if isinstance(one, VersionEntry) and one.key.name == name]
    return [(one.version, one.row is None, one.is_latest) for one in rows]


class VersionContract:
    """PUT and DELETE with versioning, and all of `Versions`."""

    def test_a_marker_of_the_same_number_stops_nothing(self, bench: MetadataBench) -> None:
        """A program that knows no versions stores an object within the millisecond of a DELETE."""
        put(bench, Versioning.ENABLED)
        mark(bench, Versioning.ENABLED)
        bench.now_ms += 10
        mark(bench, Versioning.ENABLED)
        same = put(bench, None)
        for _ in range(2):
            bench.now_ms += 10
            put(bench, Versioning.ENABLED)
            mark(bench, Versioning.ENABLED)
        assert (same.version, False, False) in numbers(bench.metadata)

    def test_a_null_version_that_a_delete_replaces_goes_into_the_trash(self, bench: MetadataBench) -> None:
        old = put(bench, None)
        bench.now_ms += 10
        put(bench, Versioning.ENABLED)
        bench.now_ms += 10
        bench.metadata.delete(ObjectKey("bucket", "k"), bench.now_ms, bench.now_ms + 10**6)
        trashed = bench.metadata.trash_page(None, 10, "", "").rows
        assert [row.version for row in trashed] == [old.version]

    def test_a_marker_is_refused_for_what_has_changed(self, bench: MetadataBench) -> None:
        seen = put(bench, Versioning.SUSPENDED)
        assert bench.metadata.set_attributes(seen, encode_attributes({**decode_attributes(seen.attributes), "a": "b"}))
        one = AddMarker(seen.key, Versioning.SUSPENDED, seen=seen)
        (answer,) = bench.metadata.delete_versions([one], bench.now_ms)
        assert isinstance(answer, PreconditionFailed)
        now = bench.metadata.get(seen.key)
        (answer,) = bench.metadata.delete_versions([AddMarker(seen.key, Versioning.SUSPENDED, seen=now)], bench.now_ms)
        assert isinstance(answer, VersionEntry)

    def test_what_is_overwritten_becomes_noncurrent(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        rows = [put(bench, None), put(bench, ENABLED), put(bench, ENABLED)]
        assert len({row.object_id for row in rows}) == 3
        assert rows[0].version < rows[1].version < rows[2].version
        assert bench.get("k") == rows[2]
        assert numbers(metadata) == [
            (rows[2].version, False, True),
            (rows[1].version, False, False),
            (rows[0].version, False, False),
        ]
        for row in rows[1:]:
            assert metadata.version(KEY, row.version).row == row
        entry = metadata.version(KEY, None)
        assert (entry.row, entry.is_null, entry.is_latest) == (rows[0], True, False)
        with pytest.raises(NotFound):
            metadata.version(KEY, rows[0].version)
        with pytest.raises(NotFound):
            metadata.version(KEY, 77)
        assert metadata.list_objects("bucket", "", "", 9) == [rows[2]]
        assert metadata.list_entries("bucket", "", "/", "", 9, _TO_THE_END).objects == [rows[2]]
        found = metadata.objects_with([row.object_id for row in rows])
        assert [found[row.object_id].is_noncurrent for row in rows] == [True, True, False]
        assert metadata.listed_as_noncurrent(rows) == {rows[0].object_id, rows[1].object_id}
        assert [one[1:] for one in metadata.noncurrent_after(None, 9)] == [
            (row.version, row.object_id) for row in (rows[1], rows[0])
        ]
        assert len(metadata.noncurrent_after((KEY, rows[1].version), 9)) == 1
        assert not metadata.trash_page(None, 9).rows
        assert metadata.totals().trash_objects == 0
        bench.check_counters()

    def test_noncurrent_versions_are_packed_and_moved(self, bench: MetadataBench) -> None:
        first, second = put(bench, ENABLED), put(bench, ENABLED)
        block_id = bench.pack([first, second])
        now = bench.metadata.same_version(first)
        assert now is not None
        assert (now.state, now.is_noncurrent) == (ObjectState.PACKED, True)
        assert bench.metadata.version(KEY, first.version).row == now
        assert [one.trash_until_ms for one in bench.metadata.placed_in(block_id)] == [None, None]
        assert bench.metadata.same_version(replace(first, version=5)) is None
        bench.check_counters()
        assert isinstance(remove(bench, first.version), VersionEntry)
        assert bench.metadata.same_version(first) is None
        bench.check_counters()

    def test_a_marker_hides_the_object(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        first = put(bench, ENABLED)
        marker = mark(bench)
        assert (marker.is_null, marker.is_latest, marker.version > first.version) == (False, True, True)
        with pytest.raises(NotFound):
            bench.get("k")
        assert metadata.list_objects("bucket", "", "", 9) == []
        assert metadata.latest_marker(KEY) == marker
        assert metadata.version(KEY, marker.version) == marker
        assert numbers(metadata) == [(marker.version, True, True), (first.version, False, False)]
        second = put(bench, ENABLED, condition=ABSENT)
        assert second.version > marker.version
        assert metadata.latest_marker(KEY) == replace(marker)
        assert metadata.version(KEY, marker.version) == replace(marker, is_latest=False)
        assert [one.version for one in metadata.markers_after(None, 9)] == [marker.version]
        assert metadata.markers_after((KEY, marker.version), 9) == []

    def test_markers_of_keys_without_an_object(self, bench: MetadataBench) -> None:
        first, second = mark(bench), mark(bench)
        assert first.version < second.version
        assert numbers(bench.metadata) == [(second.version, True, True), (first.version, True, False)]
        assert remove(bench, second.version) == replace(second, is_latest=False)
        assert remove(bench, second.version) is None
        assert bench.metadata.latest_marker(KEY) == first
        row = put(bench, ENABLED)
        assert row.version > first.version

    def test_the_next_older_version_becomes_current(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        first, second, third = (put(bench, ENABLED) for _ in range(3))
        gone = remove(bench, third.version)
        assert isinstance(gone, VersionEntry)
        assert (gone.row, gone.is_latest) == (third, True)
        assert bench.get("k") == second
        assert numbers(metadata) == [(second.version, False, True), (first.version, False, False)]
        marker = mark(bench)
        remove(bench, marker.version)
        assert bench.get("k") == second
        assert metadata.noncurrent_after(None, 9)[0][1:] == (first.version, first.object_id)
        marker = mark(bench)
        remove(bench, second.version)
        assert metadata.latest_marker(KEY) == marker
        with pytest.raises(NotFound):
            bench.get("k")
        remove(bench, marker.version)
        assert bench.get("k") == first
        remove(bench, first.version)
        assert listed(metadata) == []
        bench.check_counters()

    def test_a_suspended_bucket_replaces_the_null_version(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        null, own = put(bench, None), put(bench, ENABLED)
        again = put(bench, SUSPENDED)
        assert metadata.version(KEY, None).row == again
        assert metadata.same_version(null) is None, "it is released"
        assert numbers(metadata) == [(again.version, False, True), (own.version, False, False)]
        over = put(bench, SUSPENDED)
        assert over.object_id == again.object_id, "nobody needs what it overwrites"
        marker = mark(bench, SUSPENDED)
        assert marker.is_null
        assert numbers(metadata) == [(marker.version, True, True), (own.version, False, False)]
        assert metadata.version(KEY, None) == marker
        another = mark(bench, SUSPENDED)
        assert numbers(metadata) == [(another.version, True, True), (own.version, False, False)]
        last = put(bench, SUSPENDED)
        assert numbers(metadata) == [(last.version, False, True), (own.version, False, False)]
        assert last.version > another.version
        bench.check_counters()
        remove(bench, None)
        assert bench.get("k") == own

    def test_programs_without_versions_keep_those_with_ids(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        own = put(bench, ENABLED)
        null = put(bench, None)
        assert numbers(metadata) == [(null.version, False, True), (own.version, False, False)]
        over = put(bench, None)
        assert over.object_id == null.object_id
        bench.metadata.delete(KEY, bench.now_ms)
        (marker, kept) = numbers(metadata)
        assert (marker[1:], kept[0]) == ((True, True), own.version)
        row = put(bench, None)
        assert bench.metadata.delete_many([KEY], bench.now_ms) == [row]
        assert len(numbers(metadata)) == 2
        row = put(bench, ENABLED)
        assert bench.metadata.delete_many([KEY], bench.now_ms) == [row]
        assert bench.metadata.delete_many([KEY], bench.now_ms) == []
        with pytest.raises(NotFound):
            bench.get("k")
        bench.check_counters()

    def test_the_trash_takes_versions_that_are_deleted(self, bench: MetadataBench) -> None:
        metadata, until_ms = bench.metadata, bench.now_ms + 1000
        first, second = put(bench, ENABLED), put(bench, ENABLED)
        deletions = [DeleteVersion(KEY, first.version), DeleteVersion(KEY, second.version)]
        metadata.delete_versions(deletions, bench.now_ms, until_ms)
        assert listed(metadata) == []
        assert {row.object_id for row in metadata.trash_page(None, 9).rows} == {first.object_id, second.object_id}
        assert metadata.undelete([first]).rows == [first]
        assert numbers(metadata) == [(first.version, False, True)]
        expired = metadata.expired_trash(until_ms, 9)
        assert metadata.purge_trash(expired, until_ms) == [second]
        bench.check_counters()

    def test_conditions_of_deletions(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        first, second = put(bench, ENABLED), put(bench, ENABLED, size=2000)
        wrong, right = replace(PRESENT, size=1), replace(PRESENT, size=2000, modified_s=bench.now_ms // 1000)
        other_time = replace(PRESENT, modified_s=1)
        answers = metadata.delete_versions(
            [
                DeleteVersion(KEY, second.version, wrong),
                AddMarker(KEY, ENABLED, other_time),
                AddMarker(KEY, ENABLED, Condition(bytes(16))),
                DeleteVersion(KEY, 99, right),
                DeleteVersion(KEY, first.version, replace(PRESENT, size=1000)),
                AddMarker(KEY, ENABLED, right),
                AddMarker(KEY, ENABLED, right),
            ],
            bench.now_ms,
        )
        kinds: Sequence[type] = [type(one) for one in answers]
        assert kinds == [
            *[PreconditionFailed] * 3,
            NotFound,
            VersionEntry,
            VersionEntry,
            NotFound,
        ]
        with pytest.raises(PreconditionFailed):
            bench.metadata.delete(put(bench, None, "plain").key, bench.now_ms, condition=wrong)

    def test_large_versions(self, bench: MetadataBench) -> None:
        metadata, lease = bench.metadata, bench.lease()
        attributes = as_version(b"")
        older = asking(bench.large("k", lease), versioning=ENABLED, attributes=attributes)
        newer = asking(bench.large("k", lease, version=older.version + 10), versioning=ENABLED, attributes=attributes)
        assert metadata.record_large(newer, lease, bench.now_ms) is True
        assert metadata.record_large(older, lease, bench.now_ms) is True, (
            "it began first, and is a version all the same"
        )
        assert metadata.record_large(older, lease, bench.now_ms) is True, "again, as after a Transient"
        assert numbers(metadata) == [(newer.version, False, True), (older.version, False, False)]
        row = metadata.version(KEY, older.version).row
        assert row is not None
        assert row.is_noncurrent
        assert metadata.segments(row.object_id, row.version) == list(older.segments)
        for taken in (newer.version, older.version):
            for versioning, told in ((ENABLED, attributes), (SUSPENDED, as_null_version(b"")), (None, b"")):
                same = asking(bench.large("k", lease, version=taken), versioning=versioning, attributes=told)
                answer = metadata.record_large(same, lease, bench.now_ms)
                assert isinstance(answer, Transient), f"two versions cannot have one number: {versioning}"
        marker = mark(bench)
        assert metadata.next_version(KEY, 0, of_all=True) == marker.version + 2
        late = asking(bench.large("k", lease, version=older.version + 6), versioning=ENABLED, attributes=attributes)
        assert metadata.record_large(late, lease, bench.now_ms) is True
        assert metadata.latest_marker(KEY) == marker
        plain = asking(
            bench.large("k", lease, version=marker.version + 2), versioning=SUSPENDED, attributes=as_null_version(b"")
        )
        assert metadata.record_large(plain, lease, bench.now_ms) is True
        assert len(numbers(metadata)) == 5
        again = bench.large("k", lease)
        assert metadata.record_large(again, lease, bench.now_ms) is True
        assert len(numbers(metadata)) == 5, "the null version was replaced"
        for number, *_ in numbers(metadata):
            remove(bench, None if number == again.version else number)
        assert listed(metadata) == []
        bench.check_counters()

    @pytest.mark.parametrize("removed", ["version", "marker", "null version"])
    @pytest.mark.parametrize("then", ["put", "put of a null version", "mark", "delete", "put large"])
    def test_a_number_is_given_once(self, bench: MetadataBench, removed: str, then: str) -> None:
        """This holds even if the clock that made the number of the first version is ahead."""
        bench.now_ms += 10_000
        put(bench, ENABLED)
        bench.now_ms -= 10_000
        versioning = SUSPENDED if removed == "null version" else ENABLED
        gone = mark(bench) if removed == "marker" else put(bench, versioning)
        assert remove(bench, None if removed == "null version" else gone.version) is not None
        bench.now_ms += 1
        if then == "put large":
            assert bench.metadata.next_version(KEY, bench.now_ms, of_all=True) > gone.version
        elif then == "mark":
            assert mark(bench).version > gone.version
        elif then == "delete":
            bench.metadata.delete(KEY, bench.now_ms)
            assert numbers(bench.metadata)[0][0] > gone.version
        else:
            assert put(bench, ENABLED if then == "put" else SUSPENDED).version > gone.version
        assert gone.version not in [one[0] for one in numbers(bench.metadata)]

    def test_the_number_of_the_last_version_is_given_once(self, bench: MetadataBench) -> None:
        bench.now_ms += 10_000
        last = put(bench, ENABLED)
        bench.now_ms -= 10_000
        remove(bench, last.version)
        assert numbers(bench.metadata) == []
        marker = mark(bench)
        assert marker.version > last.version
        remove(bench, marker.version)
        assert bench.metadata.next_version(KEY, bench.now_ms, of_all=True) > marker.version
        assert put(bench, ENABLED).version > marker.version

    def test_a_number_that_was_removed_by_a_rule_is_given_once(self, bench: MetadataBench) -> None:
        bench.now_ms += 10_000
        marker = mark(bench)
        bench.now_ms -= 10_000
        assert bench.metadata.delete_versions([ExpireMarker(KEY, marker.version)], bench.now_ms) != [None]
        versions = [put(bench, ENABLED) for _ in range(3)]
        assert marker.version < versions[0].version
        begun = bench.metadata.next_version(KEY, bench.now_ms, of_all=True)
        seen = bench.metadata.version(KEY, versions[1].version).row
        expired = ExpireVersion(KEY, versions[1].version, seen, bench.now_ms + 1)
        assert bench.metadata.delete_versions([expired], bench.now_ms) != [None]
        assert begun > versions[2].version

    def test_a_large_object_does_not_take_a_number_that_was_removed(self, bench: MetadataBench) -> None:
        """While the large one was under way, small PUTs got this number and others."""
        metadata, lease = bench.metadata, bench.lease()
        put(bench, ENABLED)
        number = metadata.next_version(KEY, 0, of_all=True)
        bench.now_ms -= 10_000
        same, newer = put(bench, ENABLED), put(bench, ENABLED)
        assert same.version == number
        remove(bench, same.version)
        large = asking(bench.large("k", lease, version=number), versioning=ENABLED, attributes=as_version(b""))
        assert isinstance(metadata.record_large(large, lease, bench.now_ms), Transient)
        assert numbers(metadata)[0][0] == newer.version
        bench.check_counters()

    def test_a_version_is_newer_than_all_that_are_there(self, bench: MetadataBench) -> None:
        """This holds even if the current one, which was undeleted, is older than those."""
        first = put(bench, ENABLED)
        metadata, until_ms = bench.metadata, bench.now_ms + 10**6
        metadata.delete_versions([DeleteVersion(KEY, first.version)], bench.now_ms, until_ms)
        bench.now_ms += 10_000
        marker = mark(bench)
        bench.now_ms -= 10_000
        metadata.undelete(metadata.trash_page(None, 10).rows)
        assert [one[0] for one in numbers(metadata)] == [marker.version, first.version]
        assert metadata.next_version(KEY, bench.now_ms, of_all=True) > marker.version
        assert put(bench, ENABLED).version > marker.version

    def test_undeleting_what_is_there_forbids_no_number(self, bench: MetadataBench) -> None:
        rows = [put(bench, ENABLED) for _ in range(2)]
        assert bench.metadata.undelete(rows).rows != []
        assert bench.metadata.floors_after(None, 2) == []

    def test_numbers_that_were_removed_are_remembered_for_a_week(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        gone = [put(bench, ENABLED, name) for name in "abc"]
        for row in gone:
            remove(bench, row.version, row.key.name)
        assert metadata.floors_after(None, 2) == [(row.key, row.version) for row in gone[:2]]
        assert metadata.floors_after(gone[1].key, 2) == [(gone[2].key, gone[2].version)]
        metadata.restore_floors([(gone[0].key, gone[0].version + 1), (gone[1].key, 1)])
        assert metadata.floors_after(None, 2) == [(gone[0].key, gone[0].version + 1), (gone[1].key, gone[1].version)]
        assert metadata.forget_floors(bench.now_ms + FLOOR_MS, 2) == 0
        assert metadata.forget_floors(bench.now_ms + FLOOR_MS + 1, 2) == 2
        assert metadata.forget_floors(bench.now_ms + FLOOR_MS + 1, 2) == 1
        assert metadata.floors_after(None, 2) == []
        old = put(bench, ENABLED)
        metadata.delete_versions([DeleteVersion(KEY, old.version)], bench.now_ms + FLOOR_MS + 1)
        assert metadata.floors_after(None, 2) == [], "no clock gives its number again"

    def test_attributes_of_a_noncurrent_version_may_change(self, bench: MetadataBench) -> None:
        first, _ = put(bench, ENABLED), put(bench, ENABLED)
        changed = as_version(b"\1\1\0ab")
        assert bench.metadata.set_attributes(first, changed)
        row = bench.metadata.version(KEY, first.version).row
        assert row is not None
        assert row.attributes == changed

    def test_listings_of_versions(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        names = ["a", "d/1", "d/2", "e", "e!", "é"]
        for name in names:
            for _ in range(3):
                put(bench, ENABLED, name)
        mark(bench, name="e")
        mark(bench, name="d/1")
        entries = [one for one in listed(metadata) if isinstance(one, VersionEntry)]
        assert [one.key.name for one in entries] == [
            name for name in names for _ in range(4 if name in ("e", "d/1") else 3)
        ]
        assert [one.key.name for one in entries if one.is_latest] == names
        for limit in (1, 3, 5):
            assert listed(metadata, limit=limit) == entries
        folded = listed(metadata, delimiter="/", limit=1)
        assert [one if isinstance(one, str) else one.key.name for one in folded] == [
            *["a"] * 3, "d/", *["e"] * 4, *["e!"] * 3, *["é"] * 3
        ]  # fmt: skip
        inside = listed(metadata, prefix="d/", delimiter="/")
        assert len(inside) == 7
        page = metadata.list_versions("bucket", "", "", ("e", None), 1, _TO_THE_END)
        assert [one.key.name for one in page.entries if isinstance(one, VersionEntry)] == ["e!"]
        assert metadata.list_versions("bucket", "", "/", ("d/", None), 1, 0).entries != []

    def test_a_bucket_with_versions_is_not_empty(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.create_bucket("bucket", "ann", CannedAcl.PRIVATE, 1)
        marker = mark(bench)
        with pytest.raises(Conflict, match="versions"):
            metadata.delete_bucket("bucket", 2)
        remove(bench, marker.version)
        assert metadata.delete_bucket("bucket", 2)

    def test_a_page_of_a_dump_may_take_several_transactions(self, bench: MetadataBench) -> None:
        metadata, keys = bench.metadata, [ObjectKey("bucket", f"n{number:03}") for number in range(401)]
        numbers = [(key, number) for number, key in enumerate(keys, 1)]
        metadata.restore_floors(numbers)
        assert metadata.floors_after(None, 999) == numbers
        markers = [MarkerRow(key, number, 1, is_null=False) for key, number in numbers]
        metadata.restore_markers(markers)
        assert metadata.markers_after(None, 999) == markers

    def test_markers_are_restored(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        mark(bench)
        mark(bench, SUSPENDED)
        rows = metadata.markers_after(None, 9)
        for one in rows:
            remove(bench, None if one.is_null else one.version)
        for _ in range(2):
            metadata.restore_markers(rows)
        assert metadata.markers_after(None, 9) == rows
        assert [one.is_null for one in rows] == [True, False]
