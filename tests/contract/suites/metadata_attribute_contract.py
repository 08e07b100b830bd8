"""Contract of attributes: they come into a row with a PUT, and leave it with the version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX, encode_attributes
from nos_ec.core.formats.messages import NamedVersion
from nos_ec.core.publishing.slots import ALL_SLOTS
from tests.rig.fakes.metadata_bench import MetadataBench, asking, pack_request

SOME = encode_attributes({"content-type": "image/jpeg", "été": "\0 '\"%s"})
MOST = bytes(range(256)) * (ATTRIBUTES_SIZE_MAX // 256)


class AttributeContract:
    """Every method that returns rows, or what is to be packed."""

    def test_new_rows_have_them_or_none(self, bench: MetadataBench) -> None:
        given = {"a": SOME, "b": b"", "c": MOST, "empty": SOME}
        new = [
            asking(bench.new(name, 0 if name == "empty" else 10), attributes=having) for name, having in given.items()
        ]
        rows = bench.record(new)
        assert [row.attributes for row in rows] == list(given.values())
        assert bench.record(new[:3]) == rows[:3], "again, as after an answer that was lost"
        assert [bench.get(name) for name in given] == rows
        assert bench.metadata.list_objects("bucket", "", "", 10) == rows
        assert sorted(bench.metadata.due_objects(bench.now_ms, 10, ALL_SLOTS), key=lambda row: row.key) == rows[:3]
        assert bench.metadata.delete(rows[0].key, bench.now_ms).attributes == SOME
        assert bench.metadata.delete_many([rows[2].key], bench.now_ms)[0].attributes == MOST

    def test_an_overwrite_replaces_them(self, bench: MetadataBench) -> None:
        names = ["a", "b", "c", "d"]
        bench.record([asking(bench.new(name), attributes=SOME) for name in names[:2]])
        bench.put_all(names[2:])
        given = [MOST, b"", SOME, b""]
        rows = bench.record([asking(bench.new(n), attributes=having) for n, having in zip(names, given, strict=True)])
        assert [row.attributes for row in rows] == given
        assert [bench.get(name) for name in names] == rows
        bench.put_all(names)
        assert [bench.get(name).attributes for name in names] == [b""] * 4

    def test_two_puts_of_a_key_at_once(self, bench: MetadataBench) -> None:
        bench.record([asking(bench.new("a"), attributes=MOST), asking(bench.new("a"), attributes=SOME)])
        assert bench.get("a").attributes == SOME

    def test_large_objects_have_them(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for having in (SOME, b"", MOST):
            bench.now_ms += 1
            new = asking(bench.large("large", lease), attributes=having)
            for _ in range(2):
                assert bench.metadata.record_large(new, lease, bench.now_ms) is True
            assert bench.get("large").attributes == having
        bench.put("large")
        assert bench.get("large").attributes == b""

    def test_whoever_packs_is_told(self, bench: MetadataBench) -> None:
        given = {"a": SOME, "b": b"", "c": MOST}
        rows = bench.record([asking(bench.new(name), attributes=having) for name, having in given.items()])
        expected = {pack_request(row): row.attributes for row in rows}
        gone = pack_request(replace(rows[0], version=1))
        assert bench.metadata.still_landed([*expected, gone, *expected, gone]) == expected
        named = {NamedVersion(row.key, row.version): (pack_request(row), row.attributes) for row in rows}
        assert bench.metadata.waiting_requests(list(named), bench.now_ms) == named
        block_id = bench.pack(rows)
        assert [one.attributes for one in bench.metadata.placed_in(block_id)] == list(given.values())
        assert [bench.get(name).attributes for name in given] == list(given.values())

    @pytest.mark.parametrize("state", ["landed", "queued", "packed", "empty", "large"])
    def test_they_are_replaced_in_place(self, bench: MetadataBench, state: str) -> None:
        if state == "large":
            lease = bench.lease()
            assert bench.metadata.record_large(bench.large("n", lease), lease, bench.now_ms)
        else:
            bench.put("n", 0 if state == "empty" else 10)
        bench.put("other")
        if state == "queued":
            bench.metadata.mark_published([bench.get("n")], bench.now_ms)
        if state == "packed":
            bench.pack([bench.get("n")])
        row, other = bench.get("n"), bench.get("other")
        for attributes in (SOME, MOST, b"", b"", SOME):
            row = bench.get("n")
            for _ in range(2):
                assert bench.metadata.set_attributes(row, attributes), "again, as after an answer that was lost"
            assert bench.get("n") == replace(row, attributes=attributes)
            assert bench.metadata.list_objects("bucket", "n", "", 9) == [replace(row, attributes=attributes)]
        assert bench.get("other") == other
        bench.check_counters()

    def test_only_those_of_the_current_version_are_replaced(self, bench: MetadataBench) -> None:
        first = bench.put("n")
        second = bench.put("n")
        assert not bench.metadata.set_attributes(first, SOME)
        assert not bench.metadata.set_attributes(replace(second, attributes=MOST), SOME), "somebody changed them"
        assert bench.get("n") == second
        bench.delete_into_trash("n", 1000)
        assert not bench.metadata.set_attributes(second, SOME)
        bench.put("n")
        assert not bench.metadata.set_attributes(second, SOME)
        assert bench.get("n").attributes == b""
        assert [row.attributes for row in bench.metadata.trash_page(None, 9).rows] == [b""]
        bench.delete("n")
        assert not bench.metadata.set_attributes(second, SOME)

    def test_whoever_packs_is_told_the_new_ones(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        bench.metadata.mark_published([row], bench.now_ms)
        request, lease = pack_request(row), bench.lease()
        group = bench.group(lease, bench.block(lease), [row])
        assert bench.metadata.set_attributes(row, SOME)
        assert bench.metadata.still_landed([request]) == {request: SOME}
        named = NamedVersion(row.key, row.version)
        assert bench.metadata.waiting_requests([named], bench.now_ms) == {named: (request, SOME)}
        assert bench.metadata.commit_group(group) == {row.object_id}, "a plan from before wins as well"
        assert bench.get("n").attributes == SOME
        assert [one.attributes for one in bench.metadata.placed_in(group.block_id)] == [SOME]
        bench.delete_into_trash("n", 1000)
        assert bench.metadata.undelete(bench.metadata.trash_page(None, 9).rows).rows[0].attributes == SOME

    def test_a_segment_of_a_large_object_is_placed_without(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        new = asking(bench.large("large", lease), attributes=SOME)
        assert bench.metadata.record_large(new, lease, bench.now_ms) is True
        for segment in new.segments:
            assert [one.attributes for one in bench.metadata.placed_in(segment.extent.block_id)] == [b""]
