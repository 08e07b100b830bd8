"""Contract of `Trash`: a deleted object has no key there, is treated like any other object, and comes back or
expires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nos_ec.core.errors import NotFound
from nos_ec.core.formats.messages import NamedVersion
from nos_ec.core.ids import ObjectKey
from nos_ec.core.publishing.slots import ALL_SLOTS
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import Metadata, ObjectRow, TrashMark, Undeleted
from tests.rig.fakes.metadata_bench import MetadataBench, asking, pack_request

DAY_MS = 86_400_000


def in_trash(metadata: Metadata, bucket: str = "", prefix: str = "") -> Iterator[ObjectRow]:
    """All rows in the trash, two at a time."""
    before: TrashMark | None = None
    while True:
        page = metadata.trash_page(before, 2, bucket, prefix)
        assert len(page.rows) <= 2
        yield from page.rows
        before = page.before
        if before is None:
            return


class TrashContract:
    """`delete` and `delete_many` with a time, and all of `Trash`."""

    def test_what_is_deleted_into_the_trash_has_no_key(self, bench: MetadataBench) -> None:
        lease, until_ms = bench.lease(), bench.now_ms + DAY_MS
        names = ["empty", "landed", "packed", "large"]
        landed, packed, empty = bench.put("landed"), bench.packed("packed"), bench.put("empty", 0)
        bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        rows = [empty, landed, packed, bench.get("large")]
        queue = bench.deletions()
        assert bench.metadata.delete(ObjectKey("bucket", "empty"), bench.now_ms, until_ms) == empty
        keys = [ObjectKey("bucket", name) for name in [*names[1:], "landed", "nothing"]]
        assert bench.metadata.delete_many(keys, bench.now_ms, until_ms) == rows[1:]
        assert bench.metadata.delete_many(keys, bench.now_ms, until_ms) == [], "again, as after a Transient"
        for name in names:
            with pytest.raises(NotFound):
                bench.get(name)
            with pytest.raises(NotFound):
                bench.metadata.delete(ObjectKey("bucket", name), bench.now_ms, until_ms)
            with pytest.raises(NotFound):
                bench.metadata.object_facts(ObjectKey("bucket", name))
        assert bench.metadata.list_objects("bucket", "", "", 9) == []
        assert bench.metadata.list_names("bucket", "", "", 9) == []
        assert bench.metadata.list_buckets("", 9) == []
        assert bench.deletions() == queue, "nothing is released"
        assert bench.metadata.segments(rows[3].object_id, rows[3].version) != []
        found = list(in_trash(bench.metadata))
        assert found == sorted(rows, key=lambda row: -row.object_id)
        assert {row.trash_until_ms for row in found} == {until_ms}
        assert bench.metadata.objects_after(0, 9) == sorted(rows, key=lambda row: row.object_id)
        assert {row.trash_until_ms for row in bench.metadata.objects_after(0, 9)} == {until_ms}
        bench.check_counters()

    def test_it_is_published_packed_and_moved_like_the_living(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        bench.metadata.delete(row.key, bench.now_ms, bench.now_ms + DAY_MS)
        assert bench.metadata.due_objects(bench.now_ms, 9, ALL_SLOTS) == [row]
        assert bench.metadata.mark_published([row], bench.now_ms) == 1
        assert bench.metadata.still_landed([pack_request(row)]) == {pack_request(row): b""}
        named = NamedVersion(row.key, row.version)
        assert bench.metadata.waiting_requests([named], bench.now_ms) == {}, (
            "an event without an id names a current version"
        )
        bench.pack([row])
        (packed,) = in_trash(bench.metadata)
        block_id = bench.pack([packed])
        (moved,) = in_trash(bench.metadata)
        assert moved.extent is not None
        assert (moved.state, moved.extent.block_id) == (ObjectState.PACKED, block_id)
        assert [one.key for one in bench.metadata.placed_in(block_id)] == [row.key]
        bench.check_counters()
        assert bench.metadata.undelete([moved]).rows == [moved] == [bench.get("n")]

    def test_a_key_is_free_again(self, bench: MetadataBench) -> None:
        old = bench.packed("n", 100)
        bench.delete_into_trash("n", DAY_MS)
        new = bench.put("n", 200)
        assert new.object_id != old.object_id
        assert bench.put("n", 300).object_id == new.object_id
        bench.delete_into_trash("n", DAY_MS)
        lease = bench.lease()
        bench.metadata.record_large(bench.large("n", lease), lease, bench.now_ms)
        bench.delete_into_trash("n", 2 * DAY_MS)
        assert [row.size for row in in_trash(bench.metadata)] == [40_000, 300, 100]
        last = bench.packed("n", 400)
        assert bench.metadata.list_objects("bucket", "", "", 9) == [last]
        assert bench.metadata.delete_many([last.key], bench.now_ms) == [last], "for good"
        assert [row.size for row in in_trash(bench.metadata)] == [40_000, 300, 100]
        bench.check_counters()

    @pytest.mark.invariant(5)
    def test_recording_again_does_not_bring_it_back(self, bench: MetadataBench) -> None:
        """Neither does it say that the PUT came too late, so that the client would repeat it."""
        new = bench.new("n")
        (first,) = bench.record([new])
        bench.delete_into_trash("n", DAY_MS)
        for packed in (False, True):
            if packed:
                bench.pack([first])
            (again,) = bench.record([new], later_ms=5)
            assert (again.object_id, again.version) == (first.object_id, first.version)
        assert bench.metadata.list_objects("bucket", "", "", 9) == []
        assert [row.object_id for row in in_trash(bench.metadata)] == [first.object_id]

    def test_undeleting(self, bench: MetadataBench) -> None:
        rows = bench.put_all([f"{i}" for i in range(5)])
        bench.pack(rows[:2])
        rows = [bench.get(row.key.name) for row in rows]
        bench.metadata.delete_many([row.key for row in rows], bench.now_ms, bench.now_ms + DAY_MS)
        newer = bench.put("3")
        wanted = [rows[4], rows[0], rows[3], rows[1]]
        assert bench.metadata.undelete(wanted) == Undeleted([rows[4], rows[0], rows[1]], frozenset())
        again = bench.metadata.undelete([rows[0], rows[3]])
        assert again == Undeleted([rows[0]], frozenset([rows[0].object_id])), "as after a Transient"
        assert bench.metadata.undelete([]) == Undeleted([], frozenset())
        assert bench.metadata.list_objects("bucket", "", "", 9) == [rows[0], rows[1], newer, rows[4]]
        assert [row.trash_until_ms for row in bench.metadata.objects_with([rows[0].object_id]).values()] == [None]
        assert list(in_trash(bench.metadata)) == [rows[3], rows[2]]
        gone = bench.metadata.purge_trash(list(in_trash(bench.metadata)), bench.now_ms)
        assert bench.metadata.undelete(gone).rows == []
        bench.put("0")
        assert bench.metadata.undelete([rows[0]]).rows == [], "its row has another version now"
        bench.check_counters()

    def test_one_of_two_versions_of_a_key_comes_back(self, bench: MetadataBench) -> None:
        rows = []
        for size in (10, 20):
            rows.append(bench.put("n", size))
            bench.delete_into_trash("n", DAY_MS)
        assert bench.metadata.undelete(rows).rows == rows[:1] == [bench.get("n")]
        assert list(in_trash(bench.metadata)) == rows[1:]

    @pytest.mark.invariant(6)
    def test_what_is_purged_is_released(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        landed, packed, empty = bench.put("n"), bench.packed("p", 700), bench.put("e", 0)
        bench.metadata.record_large(bench.large("l", lease), lease, bench.now_ms)
        large = bench.get("l")
        rows = [landed, packed, empty, large]
        bench.metadata.delete_many([row.key for row in rows], bench.now_ms, bench.now_ms + 5)
        kept = bench.packed("p", 300)
        assert bench.metadata.expired_trash(bench.now_ms + 4, 9) == []
        assert bench.metadata.expired_trash(bench.now_ms + 5, 2) == rows[:2] == [landed, packed]
        first = TrashMark(bench.now_ms + 5, rows[0].object_id)
        assert bench.metadata.expired_trash(bench.now_ms + 5, 1, first) == [rows[1]]
        expired = bench.metadata.expired_trash(bench.now_ms + 5, 9)
        assert bench.metadata.purge_trash(expired, bench.now_ms) == expired == sorted(rows, key=lambda r: r.object_id)
        assert bench.metadata.purge_trash(expired, bench.now_ms) == []
        assert bench.metadata.segments(large.object_id, large.version) == []
        assert landed.landing_id in bench.deletions()
        assert list(in_trash(bench.metadata)) == []
        assert bench.metadata.list_objects("bucket", "", "", 9) == [kept]
        assert sum(block.live_objects for block in bench.metadata.list_blocks(None, 99)) == 1
        bench.check_counters()

    def test_only_what_is_in_the_trash_until_the_same_time_is_purged(self, bench: MetadataBench) -> None:
        rows = bench.put_all(["back", "again", "overwritten", "gone"])
        bench.metadata.delete_many([row.key for row in rows], bench.now_ms, bench.now_ms + 5)
        expired = bench.metadata.expired_trash(bench.now_ms + 9, 9)
        bench.metadata.undelete(rows[:3])
        bench.delete_into_trash("again", DAY_MS)
        bench.put("overwritten")
        assert bench.metadata.purge_trash(expired, bench.now_ms) == rows[3:]
        assert list(in_trash(bench.metadata)) == rows[1:2]
        assert [row.key.name for row in bench.metadata.list_objects("bucket", "", "", 9)] == ["back", "overwritten"]

    def test_the_trash_is_in_the_order_of_its_times(self, bench: MetadataBench) -> None:
        rows = [bench.put(f"{index}", bucket=f"b{index % 2}") for index in range(7)]
        later_ms = [30, 10, 50, 20, 20, 70, 60]
        for row, after_ms in zip(rows, later_ms, strict=True):
            bench.metadata.delete(row.key, bench.now_ms, bench.now_ms + after_ms)
        bench.put("living")
        found = [(row.key.name, (row.trash_until_ms or 0) - bench.now_ms) for row in in_trash(bench.metadata)]
        assert found == [("5", 70), ("6", 60), ("2", 50), ("0", 30), ("4", 20), ("3", 20), ("1", 10)]
        assert [row.key.name for row in in_trash(bench.metadata, "b0")] == ["6", "2", "0", "4"]
        assert [row.key.name for row in in_trash(bench.metadata, "b0", "4")] == ["4"]
        assert list(in_trash(bench.metadata, "b2")) == []
        expired = bench.metadata.expired_trash(bench.now_ms + 50, 4)
        assert [row.key.name for row in expired] == ["1", "3", "4", "0"]
        assert len(bench.metadata.expired_trash(2**62, 9)) == 7

    def test_attributes_come_back(self, bench: MetadataBench) -> None:
        (row,) = bench.record([asking(bench.new("n"), attributes=b"some")])
        bench.delete_into_trash("n", DAY_MS)
        assert [one.attributes for one in in_trash(bench.metadata)] == [b"some"]
        assert bench.metadata.undelete([row]).rows[0].attributes == b"some" == bench.get("n").attributes

    def test_packed_bytes_that_are_lost_go_back_to_their_copy(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        bench.delete_into_trash("n", DAY_MS)
        bench.pack([row])
        (deletion,) = bench.deletions().values()
        assert bench.metadata.revert_to_landing(deletion, bench.now_ms)
        assert list(in_trash(bench.metadata)) == [row]
        bench.check_counters()
        bench.metadata.undelete([row])
        assert bench.get("n") == row
