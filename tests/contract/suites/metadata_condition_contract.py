"""Contract of conditions: they are judged on the row that is locked, and what they refuse changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.core.conditions import ABSENT, PRESENT, Condition
from nos_ec.core.errors import NosError, NotFound, PreconditionFailed, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState
from nos_ec.core.versions import Versioning, as_version
from nos_ec.ports.metadata import AddMarker, NewObject, ObjectRow, VersionEntry
from tests.contract.suites.metadata_segment_contract import SegmentBench
from tests.rig.fakes.metadata_bench import MetadataBench, asking

OTHER = Condition(b"another MD5 sum.")


def conditional(new: NewObject, condition: Condition | None) -> NewObject:
    """The same PUT with a condition."""
    return asking(new, condition=condition)


def assert_refused(answer: ObjectRow | NosError, new: NewObject, kind: type[NosError] = PreconditionFailed) -> None:
    """The answer to a PUT whose condition does not hold."""
    assert type(answer) is kind, answer
    assert answer.key == new.key


class ConditionContract:
    """record_puts, record_large and delete, with conditions."""

    @pytest.mark.parametrize("size", [0, 10])
    def test_an_object_that_must_be_absent(self, bench: MetadataBench, size: int) -> None:
        (row,) = bench.record([conditional(bench.new("n", size), ABSENT)])
        again = conditional(bench.new("n", size), ABSENT)
        (answer,) = bench.metadata.record_puts([again], bench.now_ms)
        assert_refused(answer, again)
        assert bench.get("n") == row
        assert set(bench.deletions()) == ({again.landing_id} if size else set()), "its copy stays reserved"
        bench.delete_into_trash("n", 1000)
        assert bench.record([again])[0] == bench.get("n"), "what is in the trash is not there"
        bench.check_counters()

    @pytest.mark.parametrize("size", [0, 10])
    def test_an_object_that_must_have_an_md5(self, bench: MetadataBench, size: int) -> None:
        new = bench.new("n", size)
        (answer,) = bench.metadata.record_puts([conditional(new, Condition(new.md5))], bench.now_ms)
        assert_refused(answer, new, NotFound)
        row = bench.put("n", size)
        (answer,) = bench.metadata.record_puts([conditional(new, OTHER)], bench.now_ms)
        assert_refused(answer, new)
        assert bench.get("n") == row
        (replaced,) = bench.record([conditional(new, Condition(row.md5))])
        assert (replaced.object_id, replaced.version > row.version) == (row.object_id, True)
        assert bench.get("n") == replaced
        bench.check_counters()

    @pytest.mark.parametrize("size", [0, 10])
    def test_conditions_that_are_negated(self, bench: MetadataBench, size: int) -> None:
        new = bench.new("n", size)
        (answer,) = bench.metadata.record_puts([conditional(new, PRESENT)], bench.now_ms)
        assert_refused(answer, new, NotFound)
        other = replace(OTHER, negated=True)
        (first,) = bench.record([conditional(bench.new("n", size), other)])
        own = Condition(first.md5, negated=True)
        again = bench.new("n", size)
        (answer,) = bench.metadata.record_puts([conditional(again, own)], bench.now_ms)
        assert_refused(answer, again)
        assert bench.get("n") == first
        for condition in (PRESENT, other):
            (last,) = bench.record([conditional(bench.new("n", size), condition)])
            assert bench.get("n") == last
        with pytest.raises(PreconditionFailed):
            bench.metadata.delete(last.key, bench.now_ms, condition=Condition(last.md5, negated=True))
        assert bench.metadata.delete(last.key, bench.now_ms, condition=PRESENT) == last
        with pytest.raises(NotFound):
            bench.metadata.delete(last.key, bench.now_ms, condition=PRESENT)
        bench.check_counters()

    def test_an_md5_that_no_object_has(self, bench: MetadataBench) -> None:
        new = conditional(bench.new("n"), Condition(b""))
        (answer,) = bench.metadata.record_puts([new], bench.now_ms)
        assert_refused(answer, new, NotFound)
        bench.put("n")
        (answer,) = bench.metadata.record_puts([new], bench.now_ms)
        assert_refused(answer, new)

    def test_objects_of_one_key_are_judged_in_their_order(self, bench: MetadataBench) -> None:
        md5s = [bytes([i]) * 16 for i in range(4)]
        conditions = [ABSENT, ABSENT, Condition(md5s[0]), Condition(md5s[0])]
        new = [
            asking(replace(bench.new("n"), md5=md5), condition=condition)
            for md5, condition in zip(md5s, conditions, strict=True)
        ]
        answers = bench.metadata.record_puts([bench.new("other"), *new, bench.new("another")], bench.now_ms)
        assert [isinstance(answer, ObjectRow) for answer in answers] == [True, True, False, True, False, True]
        assert_refused(answers[2], new[1])
        assert_refused(answers[4], new[3])
        assert bench.get("n") == answers[3]
        bench.check_counters()

    def test_the_copy_of_what_is_refused_is_due_for_deletion(self, bench: MetadataBench) -> None:
        log = SegmentBench(bench)
        bench.put("n")
        refused = [conditional(bench.new("n", 5), ABSENT), conditional(bench.new("m", 5), PRESENT)]
        record, empty = conditional(log.new(log.segment(), "n"), ABSENT), conditional(bench.new("n", 0), ABSENT)
        recorded, under_way = bench.new("o", 5), bench.new("p", 5)
        answers = bench.metadata.record_puts([*refused, recorded, record, empty], bench.now_ms)
        assert [isinstance(answer, ObjectRow) for answer in answers] == [False, False, True, False, False]
        due = bench.metadata.due_deletions(bench.now_ms, 9)
        assert {one.landing_id for one in due} == {one.landing_id for one in refused}
        assert all((one.row, one.doomed) == (None, False) for one in due)
        again = bench.metadata.record_puts(refused, bench.now_ms)
        assert [type(answer) for answer in again] == [PreconditionFailed, NotFound]
        bench.metadata.doom_landing(dict.fromkeys([one.landing_id for one in due]))
        assert [type(answer) for answer in bench.metadata.record_puts(refused, bench.now_ms)] == [Transient, Transient]
        assert bench.record([under_way])
        bench.check_counters()

    def test_together_one_that_is_refused_refuses_all(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        refused = conditional(bench.new("n"), ABSENT)
        with pytest.raises(PreconditionFailed):
            bench.metadata.record_puts([bench.new("other"), refused], bench.now_ms, together=True)
        assert bench.metadata.list_objects("bucket", "", "", 9) == [row]

    @pytest.mark.parametrize("in_log", [False, True], ids=["copy", "record"])
    @pytest.mark.parametrize("since", ["nothing", "overwritten", "deleted", "in the trash", "packed"])
    def test_what_was_recorded_is_not_judged_again(self, bench: MetadataBench, in_log: bool, since: str) -> None:
        log = SegmentBench(bench)
        segment = log.segment()
        new = conditional(log.new(segment, "n") if in_log else bench.new("n"), ABSENT)
        (first,) = bench.record([new])
        if since == "overwritten":
            bench.put("n")
        elif since == "deleted":
            bench.delete("n")
            bench.put("n")
        elif since == "in the trash":
            bench.delete_into_trash("n", 1000)
            bench.put("n")
        elif since == "packed":
            bench.pack([first])
        now = bench.get("n")
        other = conditional(log.new(segment, "n") if in_log else bench.new("n"), ABSENT)
        again, refused = bench.metadata.record_puts([new, other], bench.now_ms + 5)
        assert isinstance(again, ObjectRow)
        assert (again.object_id, again.version) == (first.object_id, first.version)
        assert_refused(refused, other)
        assert bench.get("n") == now
        bench.check_counters()

    @pytest.mark.parametrize("condition", [ABSENT, OTHER])
    def test_a_large_object_that_is_refused_leaves_dead_blocks(
        self, bench: MetadataBench, condition: Condition
    ) -> None:
        row, lease = bench.put("n"), bench.lease()
        new = bench.large("n", lease, condition=condition)
        for _ in range(2):
            assert isinstance(bench.metadata.record_large(new, lease, bench.now_ms), PreconditionFailed)
        assert bench.get("n") == row
        for segment in new.segments:
            block = bench.metadata.block(segment.extent.block_id)
            assert (block.state, block.live_bytes) == (BlockState.CONDEMNED, 0)
            assert (block.dead_bytes, block.delete_after_ms) == (segment.extent.length, bench.now_ms)
        bench.check_counters()

    def test_a_large_object_whose_condition_holds(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        missing = bench.large("n", lease, condition=OTHER)
        assert isinstance(bench.metadata.record_large(missing, lease, bench.now_ms), NotFound)
        new = bench.large("n", lease, condition=ABSENT)
        for _ in range(2):
            assert bench.metadata.record_large(new, lease, bench.now_ms) is True, "again, as after a lost answer"
        changed = bench.large("n", lease, condition=Condition(new.md5))
        assert bench.metadata.record_large(changed, lease, bench.now_ms) is True
        assert bench.get("n").version == changed.version
        assert bench.metadata.record_large(new, lease, bench.now_ms) is True, "it was recorded, and overwritten since"
        late = bench.large("n", lease, version=1, condition=Condition(changed.md5))
        for _ in range(2):
            answer = bench.metadata.record_large(late, lease, bench.now_ms)
            assert isinstance(answer, Transient), "a newer version was recorded meanwhile"
        assert bench.get("n").version == changed.version
        bench.check_counters()

    @pytest.mark.parametrize("versioning", [None, *Versioning])
    @pytest.mark.parametrize("over", ["small", "empty", "large"])
    @pytest.mark.parametrize("wanted", [None, PRESENT, OTHER], ids=["put", "any", "md5"])
    def test_a_large_object_that_a_conditional_one_overtakes_is_refused(
        self, bench: MetadataBench, wanted: Condition | None, over: str, versioning: Versioning | None
    ) -> None:
        """The large PUT is not the first of the two, because the condition would not have held after it. It is not the
        second one, because its number is the smaller one."""
        metadata, lease, is_enabled = bench.metadata, bench.lease(), versioning is Versioning.ENABLED
        attributes = as_version(b"") if is_enabled else b""
        (first,) = bench.record([asking(replace(bench.new("n"), md5=b"another MD5 sum."), versioning=versioning)])
        large = asking(bench.large("n", lease), versioning=versioning, attributes=attributes)
        bench.now_ms += 1
        if over == "large":
            overtaking = bench.large("n", lease, condition=wanted)
            assert metadata.record_large(asking(overtaking, versioning=versioning), lease, bench.now_ms) is True
        else:
            new = conditional(bench.new("n", 9 if over == "small" else 0), wanted)
            bench.record([asking(new, versioning=versioning)])
        current = bench.get("n")
        assert current.version > large.version > first.version
        for _ in range(2):
            answer = metadata.record_large(large, lease, bench.now_ms)
            if wanted is None:
                assert answer is is_enabled
            else:
                assert isinstance(answer, Transient)
                assert {metadata.block(one.extent.block_id).state for one in large.segments} == {BlockState.CONDEMNED}
        assert bench.get("n") == current
        entries = metadata.list_versions("bucket", "", "", ("", None), 9, 1000).entries
        assert len(entries) == 1 + is_enabled + (is_enabled and wanted is None)
        (last,) = bench.record([asking(bench.new("n"), versioning=versioning)], later_ms=1)
        late = asking(bench.large("n", lease, version=large.version + 2), versioning=versioning, attributes=attributes)
        assert metadata.record_large(late, lease, bench.now_ms) is is_enabled, "it may be just before the last one"
        assert bench.get("n") == last
        bench.check_counters()

    def test_a_large_version_that_a_conditional_marker_overtakes_is_refused(self, bench: MetadataBench) -> None:
        metadata, lease, key = bench.metadata, bench.lease(), ObjectKey("bucket", "n")
        attributes = as_version(b"")
        for condition in (None, PRESENT):
            (row,) = bench.record([asking(bench.new("n"), versioning=Versioning.ENABLED, attributes=attributes)])
            number = metadata.next_version(key, bench.now_ms, of_all=True)
            large = asking(
                bench.large("n", lease, version=number), versioning=Versioning.ENABLED, attributes=attributes
            )
            bench.now_ms += 1
            (marker,) = metadata.delete_versions([AddMarker(key, Versioning.ENABLED, condition)], bench.now_ms)
            assert isinstance(marker, VersionEntry)
            assert marker.version > number > row.version
            answer = metadata.record_large(large, lease, bench.now_ms)
            assert answer is True if condition is None else isinstance(answer, Transient)
            bench.now_ms += 1
        bench.check_counters()

    @pytest.mark.parametrize("until_ms", [None, 10**15], ids=["at once", "into the trash"])
    def test_deleting_what_must_have_an_md5(self, bench: MetadataBench, until_ms: int | None) -> None:
        row = bench.put("n")
        with pytest.raises(PreconditionFailed, match="instead of") as caught:
            bench.metadata.delete(row.key, bench.now_ms, until_ms, OTHER)
        assert caught.value.key == row.key
        assert bench.get("n") == row
        assert bench.metadata.delete(row.key, bench.now_ms, until_ms, Condition(row.md5)) == row
        with pytest.raises(NotFound):
            bench.metadata.delete(row.key, bench.now_ms, until_ms, Condition(row.md5))
        bench.check_counters()
