"""Contract of `Uploads`, and of what recording and releasing objects does to uploads."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.deadlines import PARTS_GRACE_MS, WAIT_MS_MAX
from nos_ec.core.errors import Conflict, NosError, NoSuchUpload, PreconditionFailed
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import Composition, UploadId, composed, part_key
from nos_ec.ports.metadata import (
    CompletionOf,
    MoveRow,
    MoveState,
    NewObject,
    ObjectRow,
    PartOf,
    UploadRow,
    UploadState,
    UploadStep,
)
from tests.rig.fakes.metadata_bench import MetadataBench, asking

OPEN, COMPLETED, DOOMED = UploadState.OPEN, UploadState.COMPLETED, UploadState.DOOMED


def begun(bench: MetadataBench, name: str = "k", *, bucket: str = "bucket", since_ms: int = 5) -> UploadRow:
    """An OPEN upload."""
    row = UploadRow(UploadId(secrets.token_bytes(16)), ObjectKey(bucket, name), OPEN, since_ms, 0, "å✓", b"\1\1\0ab")
    bench.metadata.create_upload(row)
    return row


def part_of(bench: MetadataBench, upload: UploadRow, number: int, size: int = 1000) -> NewObject:
    """A part that has landed."""
    key = part_key(upload.key.bucket, upload.upload_id, number)
    return asking(bench.new(key.name, size, bucket=key.bucket), step=PartOf(upload.upload_id))


def whole_of(
    bench: MetadataBench,
    upload: UploadRow,
    revision: int,
    *,
    condition: Condition | None = None,
    given: Mapping[str, str] | None = None,
) -> NewObject:
    """The object that completes it."""
    composition = Composition(upload.upload_id, 12_345, 9, 2, bytes(range(16)))
    return asking(
        bench.new(upload.key.name, 48, bucket=upload.key.bucket),
        attributes=composed(given or {}, composition),
        condition=condition,
        step=CompletionOf(upload.upload_id, revision),
    )


def recorded(bench: MetadataBench, new: Sequence[NewObject]) -> list[ObjectRow | NosError]:
    """The answers."""
    return bench.metadata.record_puts(new, bench.now_ms)


class UploadContract:
    """All of `Uploads`."""

    def test_an_upload_is_created_once(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.upload(UploadId(bytes(16))) is None
        row = begun(bench)
        metadata.create_upload(row)
        assert metadata.upload(row.upload_id) == row
        assert metadata.uploads_by_id([row.upload_id, UploadId(bytes(16))]) == {row.upload_id: row}
        assert metadata.uploads_by_id([]) == {}

    def test_parts_are_recorded_while_it_is_open(self, bench: MetadataBench) -> None:
        metadata, upload = bench.metadata, begun(bench)
        first, empty = part_of(bench, upload, 1), part_of(bench, upload, 2, size=0)
        rows = recorded(bench, [first, empty])
        assert all(isinstance(row, ObjectRow) for row in rows)
        assert metadata.upload(upload.upload_id) == replace(upload, revision=2)
        assert recorded(bench, [first]) == rows[:1], "recorded before"
        assert metadata.upload(upload.upload_id) == replace(upload, revision=2)
        bench.put("k")
        assert metadata.abort_upload(upload.upload_id, 77)
        (answer,) = recorded(bench, [part_of(bench, upload, 3)])
        assert isinstance(answer, NoSuchUpload)
        bench.check_counters()

    def test_an_upload_that_never_was_takes_no_parts(self, bench: MetadataBench) -> None:
        upload = UploadRow(UploadId(secrets.token_bytes(16)), ObjectKey("bucket", "k"), OPEN, 5)
        one, other = part_of(bench, upload, 1), bench.new("other")
        answers = recorded(bench, [one, other])
        assert isinstance(answers[0], NoSuchUpload)
        assert isinstance(answers[1], ObjectRow)

    def test_large_parts(self, bench: MetadataBench) -> None:
        metadata, upload, lease = bench.metadata, begun(bench), bench.lease()
        step: UploadStep = PartOf(upload.upload_id)
        assert metadata.record_large(asking(bench.large("p", lease), step=step), lease, bench.now_ms)
        assert metadata.upload(upload.upload_id) == replace(upload, revision=1)
        assert metadata.abort_upload(upload.upload_id, 77)
        late = asking(bench.large("q", lease), step=step)
        assert isinstance(metadata.record_large(late, lease, bench.now_ms), NoSuchUpload)
        bench.check_counters()

    def test_completed_by_one_object(self, bench: MetadataBench) -> None:
        metadata, upload = bench.metadata, begun(bench)
        recorded(bench, [part_of(bench, upload, 1), part_of(bench, upload, 2)])
        stale = whole_of(bench, upload, 1)
        (answer,) = recorded(bench, [stale])
        assert isinstance(answer, Conflict), "a part was stored since"
        new = whole_of(bench, upload, 2, given={"a": "b"})
        (row,) = recorded(bench, [new])
        assert isinstance(row, ObjectRow)
        assert (row.users_size, row.tag) == (12_345, (bytes(range(16)), 2))
        assert bench.get("k") == row
        found = metadata.upload(upload.upload_id)
        assert found == UploadRow(upload.upload_id, upload.key, COMPLETED, bench.now_ms, 2, "å✓", b"")
        assert recorded(bench, [new]) == [row], "recorded before"
        for late in (whole_of(bench, upload, 2), part_of(bench, upload, 3)):
            (answer,) = recorded(bench, [late])
            assert isinstance(answer, NoSuchUpload)
        assert not metadata.abort_upload(upload.upload_id, 77)
        assert bench.get("k") == row

    def test_steps_of_one_batch_are_taken_in_order(self, bench: MetadataBench) -> None:
        upload, other = begun(bench), begun(bench, "l")
        answers = recorded(
            bench,
            [
                part_of(bench, upload, 1),
                whole_of(bench, upload, 0),
                whole_of(bench, other, 0),
                part_of(bench, other, 1),
            ],
        )
        assert [type(answer) for answer in answers] == [ObjectRow, Conflict, ObjectRow, NoSuchUpload]
        bench.check_counters()

    def test_a_condition_comes_first(self, bench: MetadataBench) -> None:
        metadata, upload = bench.metadata, begun(bench)
        bench.put("k")
        (answer,) = recorded(bench, [whole_of(bench, upload, 0, condition=ABSENT)])
        assert isinstance(answer, PreconditionFailed)
        assert metadata.upload(upload.upload_id) == upload
        (row,) = recorded(bench, [whole_of(bench, upload, 0)])
        assert isinstance(row, ObjectRow)
        another = bench.new("k")
        (answer,) = recorded(bench, [asking(another, condition=Condition(bytes(range(16))))])
        assert isinstance(answer, PreconditionFailed), "not of two parts"
        (last,) = recorded(bench, [asking(another, condition=Condition(bytes(range(16)), 2))])
        assert isinstance(last, ObjectRow)

    def test_doomed_with_its_object(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        uploads = [begun(bench, name) for name in ("overwritten", "deleted", "purged", "kept")]
        for upload in uploads:
            assert isinstance(recorded(bench, [whole_of(bench, upload, 0)])[0], ObjectRow)
        bench.put("overwritten")
        bench.delete("deleted")
        bench.delete_into_trash("purged", 10)
        bench.delete_into_trash("kept", 10**6)
        state = [found.state for one in uploads if (found := metadata.upload(one.upload_id))]
        assert state == [DOOMED, DOOMED, COMPLETED, COMPLETED]
        expired = metadata.expired_trash(bench.now_ms + 20, 10, None)
        assert len(metadata.purge_trash(expired, bench.now_ms + 20)) == 1
        found = metadata.upload(uploads[2].upload_id)
        assert found is not None
        assert (found.state, found.since_ms) == (DOOMED, bench.now_ms + 20 + PARTS_GRACE_MS)
        bench.check_counters()

    def test_doomed_uploads_in_order(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        rows = [begun(bench, f"k{number}") for number in range(5)]
        for number, row in enumerate(rows[:4]):
            assert metadata.abort_upload(row.upload_id, 100 + number // 2)
        first = metadata.doomed_uploads(101, 3)
        assert [row.since_ms for row in first] == [100, 100, 101]
        rest = metadata.doomed_uploads(101, 3, (first[-1].since_ms, first[-1].upload_id))
        assert {row.upload_id for row in first + rest} == {row.upload_id for row in rows[:4]}
        assert metadata.doomed_uploads(99, 3) == []
        assert len(metadata.doomed_uploads(99 - WAIT_MS_MAX, 9)) == 4, "a wrong clock set their times"
        metadata.forget_upload(replace(first[0], since_ms=99))
        metadata.forget_upload(first[0])
        metadata.forget_upload(rows[4])
        left = {row.upload_id for row in rows if metadata.upload(row.upload_id)}
        assert left == {row.upload_id for row in rows} - {first[0].upload_id}

    def test_parts_are_deleted_only_of_an_upload_that_is_still_doomed(self, bench: MetadataBench) -> None:
        """A mover may bring a bucket back, with these parts, after a page of them was read."""
        metadata, upload = bench.metadata, begun(bench)
        parts = recorded(bench, [part_of(bench, upload, number) for number in (1, 2)])
        keys = [row.key for row in parts if isinstance(row, ObjectRow)]
        assert len(keys) == 2
        assert metadata.abort_upload(upload.upload_id, 5)
        doomed = metadata.upload(upload.upload_id)
        assert doomed is not None
        for state, since_ms in ((OPEN, 5), (COMPLETED, 5), (DOOMED, 6)):
            metadata.restore_uploads([replace(doomed, state=state, since_ms=since_ms)])
            assert metadata.delete_parts(doomed, keys, bench.now_ms) is None
            metadata.forget_upload(doomed)
            assert metadata.upload(upload.upload_id) is not None
        assert set(metadata.rows_of(keys)) == set(keys)
        metadata.restore_uploads([doomed])
        gone = metadata.delete_parts(doomed, [*keys, ObjectKey("bucket", "none")], bench.now_ms)
        assert gone is not None
        assert sorted(row.key.name for row in gone) == [key.name for key in keys]
        assert metadata.delete_parts(doomed, keys, bench.now_ms) == []
        assert metadata.rows_of(keys) == {}
        metadata.forget_upload(doomed)
        assert metadata.upload(upload.upload_id) is None
        bench.check_counters()

    def test_old_uploads(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        rows = [begun(bench, f"k{number}", since_ms=100 - number) for number in range(3)]
        metadata.abort_upload(begun(bench, "x", since_ms=1).upload_id, 1)
        assert metadata.old_uploads(100, 9) == [rows[2], rows[1]]
        assert metadata.old_uploads(100, 1) == [rows[2]]
        for state in MoveState:
            other = begun(bench, "k", bucket=state, since_ms=1)
            metadata.set_move(MoveRow(state, state, "b", 1, 7, 5), None)
            is_changed = state in (MoveState.HERE, MoveState.LEAVING)
            assert metadata.old_uploads(50, 9) == ([other] if is_changed else []), state
            metadata.abort_upload(other.upload_id, 1)

    def test_listed_by_name_and_id(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        rows = [begun(bench, name) for name in ("a", "a", "ab", "b", "å✓")]
        begun(bench, "a", bucket="another")
        metadata.abort_upload(begun(bench, "a").upload_id, 1)
        rows.sort(key=lambda row: (row.key.name.encode(), row.upload_id))
        assert metadata.list_uploads("bucket", "", None, 9) == rows
        assert metadata.list_uploads("bucket", "a", None, 2) == rows[:2]
        assert metadata.list_uploads("bucket", "a", ("a", rows[0].upload_id), 9) == rows[1:3]
        assert metadata.list_uploads("bucket", "", ("ab", UploadId(b"\xff" * 16)), 9) == rows[3:]
        assert metadata.abort_uploads("bucket", 2, 7) == 2
        assert metadata.abort_uploads("bucket", 9, 7) == 3
        assert metadata.abort_uploads("bucket", 9, 7) == 0
        assert len(metadata.list_uploads("another", "", None, 9)) == 1

    def test_pages_and_restoring(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        rows = sorted((begun(bench, f"k{number}") for number in range(3)), key=lambda row: row.upload_id)
        assert metadata.uploads_after(None, 2) == rows[:2]
        assert metadata.uploads_after(rows[1].upload_id, 2) == rows[2:]
        changed = [
            replace(rows[0], state=COMPLETED, revision=9),
            UploadRow(UploadId(b"\1" * 16), rows[0].key, DOOMED, 3),
        ]
        metadata.restore_uploads(changed)
        metadata.restore_uploads([])
        assert metadata.uploads_after(None, 9) == sorted([*changed, *rows[1:]], key=lambda row: row.upload_id)

    def test_buckets_of_parts_are_not_listed(self, bench: MetadataBench) -> None:
        metadata, upload = bench.metadata, begun(bench)
        recorded(bench, [part_of(bench, upload, 1)])
        for bucket in (".nos_ec.parts", ".nos_ec.partt", "b", ".nos"):
            bench.put("n", bucket=bucket)
        assert metadata.list_buckets("", 9) == [".nos", ".nos_ec.parts", ".nos_ec.partt", "b"]
        assert metadata.list_buckets(".nos", 2) == [".nos_ec.parts", ".nos_ec.partt"]
