"""The part of the metadata contract about what producers ask and record. `testing/metadata_contract.py` has the whole
contract."""

from __future__ import annotations

from collections import Counter

import msgspec

from nos_ec.core.formats.messages import NamedVersion
from nos_ec.core.ids import ObjectKey
from nos_ec.core.publishing.republish import Publication
from nos_ec.core.publishing.slots import ALL_SLOTS, bucket_slot
from nos_ec.core.states import ObjectState
from tests.rig.fakes.metadata_bench import MetadataBench, asking, pack_request


class ProducerContract:
    """due_objects, mark_published, waiting_requests, still_landed."""

    def test_due_objects_come_longest_due_first(self, bench: MetadataBench) -> None:
        for name, due_ms in (("c", 30), ("a", 10), ("b", 20), ("later", 99)):
            bench.put(name, due_ms=due_ms)
        bench.packed("packed")
        bench.put("empty", 0)
        assert [row.key.name for row in bench.metadata.due_objects(30, 10, ALL_SLOTS)] == ["a", "b", "c"]
        assert [row.key.name for row in bench.metadata.due_objects(30, 2, ALL_SLOTS)] == ["a", "b"]

    def test_due_objects_come_only_from_the_given_slots(self, bench: MetadataBench) -> None:
        buckets = {bucket_slot(bucket): bucket for bucket in (f"bucket-{i}" for i in range(999))}
        assert buckets.keys() == ALL_SLOTS
        lease = bench.lease()
        for slot, bucket in sorted(buckets.items()):
            bench.put("n", bucket=bucket, due_ms=100 - slot)
            bench.put("later", bucket=bucket, due_ms=101)
            large = bench.large("l", lease)
            bench.metadata.record_large(asking(large, key=ObjectKey(bucket, "l")), lease, 5)
            bench.put("l", bucket=bucket, due_ms=200 - slot)
        for slots in ({3}, {15, 0, 7}, ALL_SLOTS):
            due = bench.metadata.due_objects(100, 99, slots)
            assert [row.key for row in due] == [ObjectKey(buckets[slot], "n") for slot in sorted(slots, reverse=True)]
            assert bench.metadata.due_objects(100, 1, slots) == due[:1]
            overwritten = [ObjectKey(buckets[slot], "l") for slot in sorted(slots, reverse=True)]
            due = bench.metadata.due_objects(200, 99, slots)
            assert [row.key for row in due][-len(slots) :] == overwritten, "a large object had its slot before"
        assert bench.metadata.due_objects(100, 99, frozenset()) == []

    def test_a_busy_slot_leaves_room_for_others_and_fills_the_rest(self, bench: MetadataBench) -> None:
        for i in range(40):
            bench.put(f"many-{i:02}", due_ms=1 + i)
        others = [bucket for bucket in (f"b{i}" for i in range(40)) if bucket_slot(bucket) != bucket_slot("bucket")]
        for i, bucket in enumerate(others[:20]):
            bench.put("few", bucket=bucket, due_ms=60 + i)
        for limit, slots in ((60, ALL_SLOTS), (40, {bucket_slot("bucket")}), (7, {bucket_slot("bucket")})):
            due = bench.metadata.due_objects(100, limit, slots)
            assert [row.key.name for row in due][:40] == [f"many-{i:02}" for i in range(min(limit, 40))]
            assert len(due) == limit
        mixed = Counter(row.key.name[:4] for row in bench.metadata.due_objects(100, 16, ALL_SLOTS))
        assert mixed == {"many": 3, "few": 13}
        assert len(bench.metadata.due_objects(100, 50, ALL_SLOTS)) == 50

    def test_the_oldest_landing_id_is_that_of_an_object_that_waits(self, bench: MetadataBench) -> None:
        assert bench.metadata.oldest_landing_id() is None
        bench.put("empty", 0)
        lease = bench.lease()
        bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        assert bench.metadata.oldest_landing_id() is None, "neither waits"
        rows = sorted(bench.put_all([f"{i}" for i in range(5)]), key=lambda row: row.landing_id or b"")
        bench.metadata.mark_published(rows[:3], bench.now_ms + 9)
        assert bench.metadata.oldest_landing_id() == rows[0].landing_id
        bench.pack([bench.metadata.get(rows[0].key)])
        assert bench.metadata.oldest_landing_id() == rows[1].landing_id, "published"
        bench.delete(rows[1].key.name)
        large = bench.large(rows[2].key.name, lease)
        bench.metadata.record_large(large, lease, bench.now_ms)
        assert bench.metadata.oldest_landing_id() == rows[3].landing_id, "not yet published"
        bench.metadata.delete_many([row.key for row in rows], bench.now_ms)
        assert bench.metadata.oldest_landing_id() is None

    def test_published_objects_are_due_again_later(self, bench: MetadataBench) -> None:
        rows = [bench.put("a", due_ms=10), bench.put("b", due_ms=10)]
        for _ in range(2):
            assert bench.metadata.mark_published(rows, 50) == 2
        assert bench.metadata.due_objects(49, 10, ALL_SLOTS) == []
        again = bench.metadata.due_objects(50, 10, ALL_SLOTS)
        assert [(row.state, row.due_ms) for row in again] == [(ObjectState.QUEUED, 50)] * 2
        assert [row.publication for row in again] == [None] * 2
        assert bench.metadata.mark_published([], 5) == 0

    def test_publications_are_kept_when_their_rows_are_postponed(self, bench: MetadataBench) -> None:
        rows = [bench.put(name, due_ms=10) for name in "abc"]
        spread = Publication(bench.now_ms, True)
        bench.metadata.mark_published(rows[:1], 50, Publication(bench.now_ms - 1, False))
        bench.metadata.mark_published(rows[1:2], 50, spread)
        bench.metadata.postpone(rows, 60)
        due = bench.metadata.due_objects(50, 10, ALL_SLOTS)
        assert [(row.key.name, row.due_ms) for row in due] == [("c", 10)], "only published rows are postponed"
        due = bench.metadata.due_objects(60, 10, ALL_SLOTS)
        assert [(row.due_ms, row.publication) for row in due] == [
            (10, None),
            (60, Publication(bench.now_ms - 1, False)),
            (60, spread),
        ]
        assert bench.metadata.object_facts(rows[1].key).row.publication == spread
        bench.metadata.mark_published(rows[:2], 70)
        assert all(row.publication is None for row in bench.metadata.due_objects(70, 10, ALL_SLOTS)), "refused"
        bench.put("a", due_ms=10)
        bench.metadata.postpone([*rows[:1], bench.get("b")], 80)
        assert len(bench.metadata.due_objects(70, 10, ALL_SLOTS)) == 2, "a was overwritten, c never published"
        bench.metadata.postpone([], 5)

    def test_only_current_versions_in_the_landing_store_are_marked(self, bench: MetadataBench) -> None:
        overwritten, deleted, packed, kept = (bench.put(name) for name in "odpk")
        bench.put("o")
        bench.delete("d")
        bench.pack([packed])
        assert bench.metadata.mark_published([overwritten, deleted, packed, kept], 5) == 1
        assert bench.get("o").state is ObjectState.LANDED
        assert bench.get("p").state is ObjectState.PACKED
        assert bench.get("k").state is ObjectState.QUEUED

    def test_only_current_unpacked_versions_are_still_landed(self, bench: MetadataBench) -> None:
        overwritten, deleted, packed, kept, queued = (bench.put(name) for name in "odpkq")
        bench.put("o")
        bench.delete("d")
        bench.pack([packed])
        bench.metadata.mark_published([queued], 5)
        asked = [pack_request(row) for row in (overwritten, deleted, packed, kept, queued)]
        assert bench.metadata.still_landed(asked) == dict.fromkeys(asked[3:], b"")
        assert bench.metadata.still_landed([]) == {}

    def test_a_request_that_matches_no_row_is_not_still_landed(self, bench: MetadataBench) -> None:
        """One field that differs from the row is enough, so that no object is packed under another one's name."""
        row, other = pack_request(bench.put("å/✓ name")), pack_request(bench.put("other"))
        lies = [
            msgspec.structs.replace(row, **{field: value})
            for field, value in (
                ("object_id", other.object_id),
                ("version", row.version + 1),
                ("key", other.key),
                ("key", ObjectKey("other", row.key.name)),
                ("size", row.size + 1),
                ("crc32c", row.crc32c ^ 1),
                ("landing_id", other.landing_id),
            )
        ]
        assert bench.metadata.still_landed([*lies, row, row, other]) == {row: b"", other: b""}

    def test_named_versions_are_completed_from_their_rows(self, bench: MetadataBench) -> None:
        """Those that are current, in the landing store, and published or due."""
        overwritten, deleted, packed, empty = bench.put("o"), bench.put("d"), bench.put("p"), bench.put("e", 0)
        bench.put("o")
        bench.delete("d")
        bench.pack([packed])
        lease = bench.lease()
        bench.metadata.record_large(bench.large("l", lease), lease, bench.now_ms)
        due, early, queued = bench.put("å/✓", due_ms=50), bench.put("early", due_ms=51), bench.put("q", due_ms=99)
        bench.metadata.mark_published([queued], 1000)
        rows = (overwritten, deleted, packed, empty, bench.get("l"), due, early, queued)
        named = {row.key.name: NamedVersion(row.key, row.version) for row in rows}
        found = bench.metadata.waiting_requests(list(named.values()), 50)
        assert found == {named["å/✓"]: (pack_request(due), b""), named["q"]: (pack_request(queued), b"")}
        assert bench.metadata.waiting_requests(list(named.values()), 51).keys() - found.keys() == {named["early"]}

    def test_a_named_version_that_matches_no_row_is_not_completed(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        name = NamedVersion(row.key, row.version)
        lies = [
            NamedVersion(row.key, row.version + 1),
            NamedVersion(row.key, row.version - 1),
            NamedVersion(ObjectKey("other", "n"), row.version),
            NamedVersion(ObjectKey("bucket", "N"), row.version),
            NamedVersion(ObjectKey("bucket", "n "), row.version),
        ]
        assert bench.metadata.waiting_requests([*lies, name, name], bench.now_ms) == {name: (pack_request(row), b"")}
        assert bench.metadata.waiting_requests(lies, bench.now_ms) == {}
        assert bench.metadata.waiting_requests([], bench.now_ms) == {}
