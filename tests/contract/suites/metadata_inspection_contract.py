"""Contract of `Inspection`: pages of whole tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.ids import BlockId
from nos_ec.core.parts import Composition, UploadId, composed
from nos_ec.core.publishing.slots import ALL_SLOTS, bucket_slot
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import TAILS_BUCKET
from nos_ec.core.versions import Versioning, as_version
from nos_ec.ports.metadata import ObjectColumns, QueueEntry, WaitingRow
from tests.rig.fakes.metadata_bench import MetadataBench, asking, new_landing_id


def paged(page: Callable[[Any, int], Sequence[Any]], after: Any, key: Callable[[Any], Any]) -> Iterator[Any]:
    """All rows, three at a time."""
    while rows := page(after, 3):
        assert len(rows) <= 3
        yield from rows
        after = key(rows[-1])


class InspectionContract:
    """All methods of the port."""

    def test_nothing(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.objects_after(0, 5) == []
        assert metadata.columns_after(0, 5) == ObjectColumns.of([])
        assert metadata.last_id_of_page(0, 5) is None
        assert metadata.uncommon_between(0, 5) == []
        assert metadata.live_bytes_in(BlockId(bytes(16))) == (0, 0)
        assert metadata.objects_with([]) == metadata.objects_with([7]) == {}
        assert metadata.segments_of([]) == metadata.segments_of([7]) == {}
        assert metadata.owners_after(0, 5) == []
        assert metadata.blocks_known([]) == metadata.blocks_known([BlockId(bytes(16))]) == frozenset()
        assert metadata.waiting_after(None, 5) == []
        assert metadata.waiting_with([]) == metadata.waiting_with([new_landing_id()]) == {}
        assert metadata.deletions_after(None, 5) == []

    def test_objects_in_the_order_of_their_ids(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        names = ["z", "a", "m", "empty", "packed"]
        for name in names:
            bench.put(name, 0 if name == "empty" else 10, bucket=f"in-{name}")
        bench.pack([bench.get("packed", bucket="in-packed")])
        bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        expected = [*(bench.get(name, bucket=f"in-{name}") for name in names), bench.get("large")]
        found = list(paged(bench.metadata.objects_after, 0, lambda row: row.object_id))
        assert found == expected
        ids = [row.object_id for row in expected]
        assert bench.metadata.objects_with([ids[4], ids[0], max(ids) + 1]) == {
            ids[0]: expected[0],
            ids[4]: expected[4],
        }

    def test_uncommon_objects(self, bench: MetadataBench) -> None:
        parts = composed({}, Composition(UploadId(bytes(16)), 10, 1, 1, bytes(16)))
        user = encode_attributes({"user": "with a text, and a NUL\0"})
        for name, attributes in (("plain", b""), ("with-attributes", user), ("composed", parts)):
            bench.record([asking(bench.new(name), attributes=attributes)])
        for bucket in (".nos_ec", f"{TAILS_BUCKET}bucket", ".nos_eb", ".nos_ed", "z.nos_ec"):
            bench.put("of-bucket", bucket=bucket)
        lease = bench.lease()
        bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        bench.metadata.delete(bench.put("last").key, bench.now_ms, bench.now_ms + 999)
        rows = bench.metadata.objects_after(0, 99)
        ids = [row.object_id for row in rows]
        uncommon = [one.object_id for one in rows if one.object_id in ObjectColumns.of(rows).uncommon()]
        named = [str(row.key) for row in rows if row.object_id in uncommon]
        assert named == ["bucket/composed", ".nos_ec/of-bucket", f"{TAILS_BUCKET}bucket/of-bucket", "bucket/large"]
        assert bench.metadata.uncommon_between(0, ids[-1]) == uncommon
        assert bench.metadata.uncommon_between(uncommon[0], uncommon[-1] - 1) == uncommon[1:-1]
        assert [bench.metadata.last_id_of_page(0, limit) for limit in (1, 3, 99)] == [ids[0], ids[2], ids[-1]]
        assert [bench.metadata.last_id_of_page(ids[-2], 5), bench.metadata.last_id_of_page(ids[-1], 5)] == [
            ids[-1],
            None,
        ]

    def test_objects_as_columns(self, bench: MetadataBench) -> None:
        bench.put("empty", 0)
        bench.pack([bench.put("packed")])
        bench.pack([bench.put("with words / and \N{SNOWMAN}\n", bucket="a b c")])
        bench.put_all(["queued", "noncurrent", "landed"])
        (queued,) = bench.metadata.due_objects(bench.now_ms, 1, ALL_SLOTS)
        bench.metadata.mark_published([queued], bench.now_ms)
        for _ in range(2):
            attributes = as_version(encode_attributes({"user": "with words / and a NUL\0"}))
            bench.record([asking(bench.new("noncurrent"), versioning=Versioning.ENABLED, attributes=attributes)])
        bench.metadata.delete(bench.put("trashed").key, bench.now_ms, bench.now_ms + 999)
        lease = bench.lease()
        bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        rows = bench.metadata.objects_after(0, 99)
        assert {row.state for row in rows} == set(ObjectState)
        assert {row.is_noncurrent for row in rows} == {False, True}
        assert any(row.trashed_ms for row in rows)
        expected = ObjectColumns.of(rows)
        assert bench.metadata.columns_after(0, 99) == expected
        assert bench.metadata.columns_after(rows[2].object_id, 3) == ObjectColumns.of(rows[3:6])
        assert all(bench.metadata.keys_lead_to(row.object_id - 1, row.object_id) for row in rows)
        assert bench.metadata.keys_lead_to(0, rows[-1].object_id)
        small = ObjectColumns.of([row for row in rows if row.state is not ObjectState.LARGE])
        assert expected.without(ObjectState.LARGE) == small

    def test_segments_of_several_objects(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        made = {}
        for name, parts in (("two", 2), ("three", 3)):
            new = bench.large(name, lease, parts=parts)
            bench.metadata.record_large(new, lease, bench.now_ms)
            row = bench.get(name)
            made[row.object_id] = [(row.version, segment) for segment in new.segments]
        small = bench.put("small").object_id
        assert bench.metadata.segments_of([*made, small]) == made
        assert list(paged(bench.metadata.owners_after, 0, lambda object_id: object_id)) == sorted(made)
        blocks = {segment.extent.block_id for parts in made.values() for _, segment in parts}
        assert bench.metadata.blocks_known([*blocks, BlockId(bytes(16))]) == blocks

    def test_what_waits(self, bench: MetadataBench) -> None:
        rows = [bench.put(name, 10 + index, due_ms=bench.now_ms + index) for index, name in enumerate("abcde")]
        bench.metadata.mark_published(rows[:2], bench.now_ms + 77)
        bench.pack([rows[4]])
        expected = [
            WaitingRow(
                row.landing_id,  # type: ignore[arg-type]
                row.object_id,
                bucket_slot("bucket"),
                bench.now_ms + (77 if index < 2 else index),
                ObjectState.QUEUED if index < 2 else ObjectState.LANDED,
                10 + index,
            )
            for index, row in enumerate(rows[:4])
        ]
        found = list(paged(bench.metadata.waiting_after, None, lambda row: row.landing_id))
        assert found == sorted(expected, key=lambda row: row.landing_id)
        asked = [row.landing_id for row in rows if row.landing_id is not None]
        assert bench.metadata.waiting_with(asked) == {row.landing_id: row for row in found}

    def test_the_deletion_queue(self, bench: MetadataBench) -> None:
        reserved = bench.new("reserved").landing_id
        assert reserved is not None
        rows = [bench.put(name) for name in "abcd"]
        bench.pack(rows[:2])
        gone = bench.delete("c").landing_id
        assert gone is not None
        bench.metadata.doom_landing({gone: None})
        found = {row.landing_id: row for row in paged(bench.metadata.deletions_after, None, lambda row: row.landing_id)}
        assert list(found) == sorted(bench.deletions())
        assert found[reserved] == QueueEntry(reserved, None, None, found[reserved].not_before_ms, doomed=False)
        assert found[reserved].not_before_ms > bench.now_ms
        first = rows[0]
        assert first.landing_id is not None
        entry = found[first.landing_id]
        assert (entry.object_id, entry.version, entry.doomed) == (first.object_id, first.version, False)
        assert found[gone].doomed
