"""The contract of `Moves`: which buckets a cell changes and reads, and what a mover records."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nos_ec.adapters.sql.objects import puts
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import Conflict, Locked, Moved, NosError, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, with_lock
from nos_ec.core.parts import Composition, UploadId, composed, part_key, parts_bucket, parts_prefix
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata import (
    AddMarker,
    BucketRecord,
    BucketRow,
    CannedAcl,
    CompletionOf,
    CopiedVersion,
    DeleteVersion,
    DirectoryRow,
    DocumentKind,
    Lease,
    MarkerRow,
    MoveRow,
    MoveState,
    NewLargeObject,
    NewObject,
    ObjectRow,
    PartOf,
    RenameOf,
    Rights,
    UploadRow,
    UploadState,
)
from tests.contract.suites.metadata_lock_contract import change as change_lock
from tests.contract.suites.metadata_lock_contract import put_locked
from tests.contract.suites.metadata_segment_contract import SegmentBench
from tests.contract.suites.metadata_upload_contract import begun, part_of, whole_of
from tests.rig.fakes.metadata_bench import MetadataBench, asking, new_landing_id

GONE, HERE = MoveState.GONE, MoveState.HERE
KEY = ObjectKey("bucket", "k")


def place(state: MoveState, number: int = 1, mover: int = 7) -> MoveRow:
    return MoveRow("bucket", state, "b", number, mover, 5)


OF_MOVERS = {"open_copied_upload", "record_copies", "record_large_copy", "record_markers", "remove_key"}


def methods_that_change_keys() -> set[str]:
    """The methods of the metadata that ask the gate whether they may change keys."""
    found = set()
    for path in Path(puts.__file__).parents[1].rglob("*.py"):
        if path.name in ("base.py", "gate.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(map(_asks, ast.walk(node))):
                found.add(node.name)
    return found


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("_change", "_change_again")
    return isinstance(node, ast.keyword) and node.arg == "gate" and ast.unparse(node.value) == "self._gate"


def methods_without_visible_change(what: str) -> bool:
    """Return whether a change concerns the trash, a lock, an upload or a part, which listings do not show."""
    return what in ("purge_trash", "record_puts of a lock") or "upload" in what or "part" in what


def changes_of(bench: MetadataBench, bucket: str = "bucket") -> dict[int, str]:
    """The log of a bucket, and that of its uploads and parts, as "parts:" and their names."""
    found = {one.change_id: one.name for one in bench.metadata.changed_names(bucket, 2**63 - 1, 100)}
    of_parts = bench.metadata.changed_names(parts_bucket(bucket), 2**63 - 1, 100)
    return found | {one.change_id: f"parts:{one.name}" for one in of_parts}


def contents(bench: MetadataBench) -> dict[str, list[object]]:
    """What users see in the bucket, by name."""
    found: dict[str, list[object]] = {}
    for one in bench.metadata.list_versions("bucket", "", "", ("", None), 100, 60_000).entries:
        assert not isinstance(one, str)
        found.setdefault(one.key.name, []).append((one.version, one.row and (one.row.size, one.row.attributes)))
    return found


def stored(answer: ObjectRow | NosError) -> ObjectRow:
    assert isinstance(answer, ObjectRow), answer
    return answer


def large_part(bench: MetadataBench, upload: UploadRow) -> tuple[NewLargeObject, Lease]:
    """A large part, whose blocks are written, and their lease."""
    lease = bench.lease()
    key = part_key("bucket", upload.upload_id, 1)
    return asking(bench.large("k", lease), key=key, step=PartOf(upload.upload_id)), lease


@pytest.mark.invariant(12)
class MovesContract:
    """All of `Moves`."""

    def test_a_state_is_replaced_by_whoever_knows_it(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.move_row("bucket") is None
        first, second = place(MoveState.LEAVING), place(MoveState.CLOSED)
        metadata.set_move(first, None)
        metadata.set_move(first, None)  # a repetition
        assert metadata.move_row("bucket") == first
        for known in (None, second, replace(first, mover=8)):
            with pytest.raises(Conflict, match="another process has begun to move bucket bucket"):
                metadata.set_move(place(GONE), known)
        metadata.set_move(second, first)
        metadata.set_move(replace(first, bucket="å"), None)
        assert metadata.move_rows("", 10) == [second, replace(first, bucket="å")]
        assert metadata.move_rows("bucket", 10) == [replace(first, bucket="å")]

    def test_moves_that_are_not_complete(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for state in MoveState:
            metadata.set_move(replace(place(state), bucket=state), None)
        names = ["arriving", "closed", "leaving", "rebuilt"]
        assert [row.bucket for row in metadata.unfinished_moves("", 10)] == names
        assert [row.bucket for row in metadata.unfinished_moves("arriving", 1)] == names[1:2]
        for state in (GONE, HERE):
            metadata.create_bucket(state, "ann", CannedAcl.PRIVATE, 5)
        assert [row.bucket for row in metadata.unfinished_moves("", 10)] == sorted([*names, "gone"])
        metadata.forget_bucket("gone")
        assert [row.bucket for row in metadata.unfinished_moves("", 10)] == names

    def test_a_bucket_that_is_forgotten_keeps_its_mark(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.create_bucket("bucket", "ann", CannedAcl.PRIVATE, 5)
        for kind in (DocumentKind.WIDE, DocumentKind.TAGS):
            metadata.set_bucket_document("bucket", kind, b"a,b", 5)
        assert metadata.unserved_bucket("other") == (None, None)
        assert metadata.unserved_bucket("bucket") == (BucketRow("bucket", "ann", 5), b"a,b")
        metadata.forget_bucket("bucket")
        assert metadata.bucket("bucket") is None
        assert metadata.bucket_documents("bucket", list(DocumentKind)) == {DocumentKind.WIDE: b"a,b"}
        metadata.obey_moves(lambda _: None)
        metadata.set_move(place(GONE), None)
        assert metadata.unserved_bucket("bucket") == (None, b"a,b")

    @pytest.mark.parametrize("state", MoveState)
    def test_what_is_allowed_in_each_state(self, bench: MetadataBench, state: MoveState) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        metadata.create_bucket("bucket", "ann", CannedAcl.PRIVATE, 5)
        row = bench.put("k")
        old, older = begun(bench), begun(bench)
        large, lease = large_part(bench, old)
        refused: list[str] = []
        metadata.obey_moves(refused.append)
        metadata.set_move(place(state), None)
        upload = UploadRow(UploadId(bytes(16)), KEY, UploadState.OPEN, now_ms, 0, "ann", b"")

        def put_part() -> None:
            answer = metadata.record_puts([part_of(bench, old, 1), bench.new("k", bucket="another")], now_ms)
            assert not isinstance(answer[1], NosError)
            if isinstance(answer[0], NosError):
                raise answer[0]

        reads: list[Callable[[], Any]] = [
            lambda: metadata.get(KEY),
            lambda: metadata.version(KEY, None),
            lambda: metadata.latest_marker(KEY),
            lambda: metadata.list_objects("bucket", "", "", 10),
            lambda: metadata.list_names("bucket", "", "", 10),
            lambda: metadata.list_entries("bucket", "", "/", "", 10, 1000),
            lambda: metadata.list_summaries("bucket", "", "", "", 10, 1000),
            lambda: metadata.list_versions("bucket", "", "", ("", None), 10, 1000),
            lambda: metadata.list_uploads("bucket", "", None, 10),
            lambda: metadata.upload(old.upload_id, "bucket"),
            lambda: metadata.upload(UploadId(bytes(16)), "bucket"),
            lambda: metadata.bucket("bucket"),
            lambda: metadata.bucket_document("bucket", DocumentKind.TAGS),
            lambda: metadata.bucket_documents("bucket", [DocumentKind.TAGS]),
            lambda: metadata.grants("bucket"),
        ]
        changes: list[Callable[[], Any]] = [
            lambda: bench.put("new"),
            lambda: metadata.set_attributes(row, b""),
            lambda: metadata.set_bucket_document("bucket", DocumentKind.TAGS, b"x", 5),
            lambda: metadata.correct_document("bucket", DocumentKind.TAGS, b"x", 5),
            lambda: metadata.grant("bucket", "bob", Rights.READ, 5),
            lambda: metadata.set_bucket_owner("bucket", "bob", 5),
            lambda: metadata.set_bucket_acl("bucket", CannedAcl.PUBLIC_READ, 5),
            lambda: metadata.create_bucket("bucket", "ann", CannedAcl.PRIVATE, 5),
            lambda: metadata.delete_versions([AddMarker(ObjectKey("bucket", "x"), Versioning.ENABLED)], now_ms),
            lambda: metadata.delete_many([ObjectKey("bucket", "new")], now_ms),
            lambda: metadata.delete(KEY, now_ms, now_ms + 10**9),
            lambda: metadata.undelete(metadata.trash_page(None, 10).rows or [row]),
            lambda: metadata.purge_trash([row], now_ms),
            put_part,
            lambda: metadata.record_large(large, lease, now_ms),
            lambda: metadata.create_upload(upload),
            lambda: metadata.abort_upload(older.upload_id, now_ms),
            lambda: metadata.abort_uploads("bucket", 9, now_ms),
        ]
        is_read = state in (HERE, MoveState.LEAVING, MoveState.CLOSED)
        is_changed = state in (HERE, MoveState.LEAVING)
        for calls, allowed in ((reads, is_read), (changes, is_changed)):
            for number, call in enumerate(calls):
                refused.clear()
                if allowed:
                    call()
                else:
                    with pytest.raises(Moved, match="bucket bucket"):
                        call()
                assert set(refused) == (set() if allowed else {"bucket"}), number
        assert metadata.list_buckets("", 10) == ["another", *(["bucket"] if is_read else [])]
        shown = [one.name for owner in ("ann", "bob") for one in metadata.buckets_of(owner, "", 10)]
        assert shown == (["bucket"] if is_read else [])
        assert metadata.get(ObjectKey("another", "k")).size == 1000

    def test_reads_notice_a_state_that_has_changed_again(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        bench.put("k")
        metadata.obey_moves(lambda _: None)
        for number in range(3):
            here, gone = place(HERE, 2 * number), place(GONE, 2 * number + 1)
            metadata.set_move(here, metadata.move_row("bucket"))
            assert metadata.get(KEY).size == 1000
            with pytest.raises(NotFound):
                metadata.get(ObjectKey("bucket", "none"))
            metadata.set_move(gone, here)
            for name in ("k", "none"):
                with pytest.raises(Moved):
                    metadata.get(ObjectKey("bucket", name))

    def test_of_a_batch_only_what_was_moved_is_refused(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.obey_moves(lambda _: None)
        metadata.set_move(place(GONE), None)
        news = [bench.new("k"), bench.new("k", bucket="other"), bench.new("l")]
        answers = metadata.record_puts(news, bench.now_ms)
        assert [isinstance(one, Moved) for one in answers] == [True, False, True]
        kept = stored(answers[1])
        with pytest.raises(Moved):
            metadata.record_puts([bench.new("k"), bench.new("m", bucket="other")], bench.now_ms, together=True)
        row = replace(kept, key=KEY)
        assert metadata.delete_unchanged([row, kept], bench.now_ms) == [kept]

    def test_a_change_of_state_waits_for_transactions(
        self, bench: MetadataBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        metadata = bench.metadata
        metadata.obey_moves(lambda _: None)
        metadata.set_move(place(MoveState.LEAVING), None)
        inside, go_on, order = threading.Event(), threading.Event(), list[str]()

        def wait(point: str) -> None:
            if point == "metadata.record_puts.before_commit" and not inside.is_set():
                inside.set()
                assert go_on.wait(60)

        monkeypatch.setattr(puts, "kill_point", wait)

        def put() -> None:
            bench.put("k")
            order.append("put")

        def close() -> None:
            metadata.set_move(place(MoveState.CLOSED), place(MoveState.LEAVING))
            order.append("closed")

        threads = [threading.Thread(target=put), threading.Thread(target=close)]
        threads[0].start()
        assert inside.wait(60)
        threads[1].start()
        threads[1].join(0.5)
        assert order == []
        go_on.set()
        for thread in threads:
            thread.join(60)
        assert metadata.get(KEY).size == 1000
        assert sorted(order) == ["closed", "put"]
        with pytest.raises(Moved):
            metadata.delete(KEY, bench.now_ms)

    def test_names_that_change_while_a_bucket_leaves_are_written_down(self, bench: MetadataBench) -> None:
        """Each method that changes what users see of objects does so, in the transaction that changes it."""
        metadata, now_ms = bench.metadata, bench.now_ms
        row = bench.put("attributes")
        for name in ("one", "many 1", "many 2", "unchanged", "version", "from", "from large"):
            bench.put(name)
        trashed = bench.delete(bench.put("undeleted").key.name) and bench.put("undeleted")
        metadata.delete(trashed.key, now_ms, now_ms + 10**9)
        metadata.delete(bench.put("purged").key, now_ms, now_ms + 1)
        in_trash = {one.key.name: one for one in metadata.trash_page(None, 10).rows}
        lease = bench.lease()
        large = bench.large("large", lease)
        renamed = bench.large("to large", lease)
        renamed = replace(renamed, request=replace(renamed.request, step=RenameOf(bench.get("from large"))))
        locked = put_locked(bench, Lock(hold=True), "lock")
        log = SegmentBench(bench)
        rename = asking(bench.new("to"), step=RenameOf(bench.get("from")))
        uploads = [begun(bench, f"upload {number}") for number in range(4)]
        created = replace(uploads[0], upload_id=UploadId(bytes(16)))
        of_upload = [f"parts:{parts_prefix(one.upload_id)}" for one in uploads]
        of_created = f"parts:{parts_prefix(created.upload_id)}"
        part, of_part = large_part(bench, uploads[1])
        of_rename = bench.put("from upload")
        completion = whole_of(bench, uploads[3], 0)
        assert isinstance(completion.step, CompletionOf)
        renaming = asking(completion, step=RenameOf(of_rename, completion=completion.step))
        changes: dict[str, tuple[Callable[[], Any], list[str]]] = {
            "record_puts": (lambda: bench.record([bench.new("put 2"), bench.new("put 1")]), ["put 1", "put 2"]),
            "record_puts of records": (lambda: log.put(log.segment(), "record"), ["record"]),
            "record_puts of a rename": (lambda: bench.record([rename]), ["from", "to"]),
            "record_puts of a lock": (lambda: change_lock(bench, locked, Lock()), ["lock"]),
            "record_large": (lambda: metadata.record_large(large, lease, now_ms), ["large"]),
            "record_large of a rename": (
                lambda: metadata.record_large(renamed, lease, now_ms),
                ["from large", "to large"],
            ),
            "record_puts of a part": (
                lambda: bench.record([part_of(bench, uploads[0], 7)]),
                [f"{of_upload[0]}00007"],
            ),
            "record_puts of a completed upload": (
                lambda: bench.record([whole_of(bench, uploads[0], 1)]),
                [of_upload[0], "upload 0"],
            ),
            "record_puts of a rename of parts": (
                lambda: bench.record([renaming]),
                [of_upload[3], "from upload", "upload 3"],
            ),
            "record_large of a part": (
                lambda: metadata.record_large(part, of_part, now_ms),
                [f"{of_upload[1]}00001"],
            ),
            "create_upload": (lambda: metadata.create_upload(created), [of_created]),
            "abort_upload": (lambda: metadata.abort_upload(uploads[1].upload_id, now_ms), [of_upload[1]]),
            "abort_uploads": (
                lambda: metadata.abort_uploads("bucket", 9, now_ms),
                sorted([of_upload[2], of_created]),
            ),
            "set_attributes": (lambda: metadata.set_attributes(row, b"\x01\x01\x00ab"), ["attributes"]),
            "delete": (lambda: bench.delete("one"), ["one"]),
            "delete_many": (
                lambda: metadata.delete_many([ObjectKey("bucket", f"many {n}") for n in (1, 2)], now_ms),
                ["many 1", "many 2"],
            ),
            "delete_unchanged": (lambda: metadata.delete_unchanged([bench.get("unchanged")], now_ms), ["unchanged"]),
            "delete_versions": (
                lambda: metadata.delete_versions(
                    [
                        AddMarker(ObjectKey("bucket", "marker"), Versioning.ENABLED),
                        DeleteVersion(ObjectKey("bucket", "version"), None),
                    ],
                    now_ms,
                ),
                ["marker", "version"],
            ),
            "undelete": (lambda: metadata.undelete([in_trash["undeleted"]]), ["undeleted"]),
            "purge_trash": (lambda: metadata.purge_trash([in_trash["purged"]], now_ms + 10), ["purged"]),
        }
        methods = {one.partition(" ")[0] for one in changes}
        assert methods == methods_that_change_keys() - OF_MOVERS, "a new one must be tried here"
        metadata.obey_moves(lambda _: None)
        metadata.set_move(place(MoveState.LEAVING), None)
        for what, (call, names) in changes.items():
            before = contents(bench)
            known = changes_of(bench)
            call()
            logged = [name for change_id, name in sorted(changes_of(bench).items()) if change_id not in known]
            now = contents(bench)
            differ = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
            assert logged == names, what
            assert differ <= set(names), what
            assert differ or methods_without_visible_change(what), what
        bench.put("k", bucket="other")
        with pytest.raises(NotFound):
            bench.delete("none")
        assert metadata.last_change("other") == 0
        assert [metadata.next_changed(after) for after in ("", parts_bucket("bucket"))] == [
            parts_bucket("bucket"),
            "bucket",
        ]
        assert "none" not in {one.name for one in metadata.changed_names("bucket", 2**63 - 1, 100)}, "rolled back"

    @pytest.mark.parametrize("state", [HERE, MoveState.CLOSED])
    def test_names_are_not_written_down_in_another_state(self, bench: MetadataBench, state: MoveState) -> None:
        metadata = bench.metadata
        metadata.obey_moves(lambda _: None)
        metadata.set_move(place(state), None)
        with suppress(Moved):
            bench.put("k")
        assert metadata.last_change("bucket") == 0

    def test_only_the_mover_forgets_changes(self, bench: MetadataBench) -> None:
        """It forgets only those that it has read."""
        metadata = bench.metadata
        metadata.obey_moves(lambda _: None)
        first, second = place(MoveState.LEAVING), place(MoveState.LEAVING, mover=8)
        metadata.set_move(first, None)
        metadata.set_move(replace(first, bucket="other"), None)
        for name in ("k", "l", "k"):
            bench.put(name)
        bench.put("k", bucket="other")
        last = metadata.last_change("bucket")
        bench.put("later")
        read = metadata.changed_names("bucket", last, 100)
        assert [one.name for one in read] == ["k", "l", "k"]
        assert metadata.changed_names("bucket", last, 2) == read[:2]
        metadata.set_move(second, first)
        with pytest.raises(Conflict, match="another process has begun to move bucket bucket"):
            metadata.forget_changes(first, read)
        assert metadata.changed_names("bucket", last, 100) == read
        for _ in range(2):
            metadata.forget_changes(second, read)
        assert [one.name for one in metadata.changed_names("bucket", 2**63 - 1, 100)] == ["later"]
        assert [one.name for one in metadata.changed_names("other", 2**63 - 1, 100)] == ["k"]
        assert [metadata.next_changed(after) for after in ("", "bucket", "other")] == ["bucket", "other", None]
        bench.put("k")
        assert metadata.last_change("bucket") > last

    def test_copies_are_recorded_as_they_were(self, bench: MetadataBench) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        arriving = place(MoveState.ARRIVING)
        metadata.keep_journal(1000)
        metadata.set_move(arriving, None)
        metadata.move_as(arriving)
        copies: list[CopiedVersion] = []
        for version, is_noncurrent, size, name in ((40, True, 10, "k"), (50, False, 0, "k"), (60, False, 7, "l")):
            new: NewObject = bench.new(name, max(size, 1))
            assert new.landing_id is not None
            key = ObjectKey("bucket", name)
            row = ObjectRow(
                0, key, version, size, 9, new.md5, ObjectState.PACKED, None, None, 77, is_noncurrent=is_noncurrent
            )
            copies.append(CopiedVersion(row, new.landing_id, now_ms))
        in_trash = bench.new("k", 12)
        assert in_trash.landing_id is not None
        until_ms = now_ms + 10**9
        row = replace(copies[0].row, version=20, size=12, is_noncurrent=False, trash_until_ms=until_ms, trashed_ms=88)
        metadata.record_copies([*copies, CopiedVersion(row, in_trash.landing_id, now_ms)], now_ms)
        (found,) = metadata.trash_page(None, 10, "bucket").rows
        assert (found.version, found.trash_until_ms, found.trashed_ms) == (20, until_ms, 88)
        bench.check_counters()
        assert metadata.purge_trash([found], now_ms) == [found]
        metadata.record_markers([MarkerRow(KEY, 30, 66, is_null=False)])
        metadata.restore_buckets([BucketRecord(BucketRow("bucket", "ann", 5), {}, {})])
        entries: list[Any] = list(metadata.list_versions("bucket", "", "", ("", None), 10, 1000).entries)
        assert [(one.key.name, one.version, one.created_ms, one.row is None) for one in entries] == [
            ("k", 50, 77, False),
            ("k", 40, 77, False),
            ("k", 30, 66, True),
            ("l", 60, 77, False),
        ]
        assert [one.row.is_noncurrent for one in entries if one.row] == [False, True, False]
        due = metadata.due_objects(now_ms, 10, range(256))
        assert sorted(row.version for row in due) == [40, 60]
        late = replace(copies[0], copy=new_landing_id(), row=replace(copies[0].row, key=ObjectKey("bucket", "late")))
        with pytest.raises(NosError, match="not recorded in time"):
            metadata.record_copies([late], now_ms)
        assert metadata.remove_key("bucket", "k", now_ms) == 3
        assert metadata.remove_key("bucket", "k", now_ms) == 0
        assert metadata.journal_after(0, 9) == [], "the same versions may be copied again"
        assert metadata.list_names("bucket", "", "", 10) == ["l"]
        metadata.forget_bucket("bucket")
        bench.check_counters()
        metadata.set_move(place(MoveState.ARRIVING, mover=8), arriving)
        for change in (
            lambda: metadata.remove_key("bucket", "l", now_ms),
            lambda: metadata.record_copies([late], now_ms),
            lambda: metadata.record_markers([MarkerRow(KEY, 30, 66, is_null=False)]),
            lambda: metadata.restore_buckets([BucketRecord(BucketRow("bucket", "ann", 5), {}, {})]),
            lambda: metadata.forget_bucket("bucket"),
            lambda: bench.put("z"),
        ):
            with pytest.raises(Conflict, match="another process has begun to move"):
                change()

    def test_copies_of_parts_and_of_their_object(self, bench: MetadataBench) -> None:
        """The object is recorded, and its upload COMPLETED, in one transaction, if its parts are still there."""
        metadata, now_ms = bench.metadata, bench.now_ms
        metadata.set_move(place(MoveState.ARRIVING), None)
        metadata.move_as(place(MoveState.ARRIVING))
        upload = UploadRow(UploadId(bytes(range(16))), KEY, UploadState.OPEN, 5)
        key = part_key("bucket", upload.upload_id, 1)

        def copied(key: ObjectKey, version: int, attributes: bytes = b"") -> CopiedVersion:
            new = bench.new(key.name, bucket=key.bucket)
            assert new.landing_id is not None
            state, about = ObjectState.PACKED, (new.crc32c, new.md5)
            row = ObjectRow(0, key, version, 1000, *about, state, None, None, 77, attributes=attributes)
            return CopiedVersion(row, new.landing_id, now_ms)

        def state() -> tuple[UploadState, int]:
            found = metadata.upload(upload.upload_id)
            assert found is not None
            return found.state, found.since_ms

        of_upload = composed({}, Composition(upload.upload_id, 1000, 9, 1, bytes(16)))
        for _ in range(2):
            assert metadata.open_copied_upload(upload)
            assert state() == (UploadState.OPEN, 5)
        metadata.record_copies([copied(key, 40)], now_ms)
        assert state() == (UploadState.OPEN, 5), "clients see when it was begun"
        assert metadata.old_uploads(6, 9) == [], "it is not too old while parts are copied"
        assert metadata.abort_uploads("bucket", 9, 7) == 1
        for late in (copied(KEY, 50, of_upload), copied(replace(key, name=key.name[:-1] + "2"), 41)):
            with pytest.raises(Transient, match="was aborted"):
                metadata.record_copies([late], now_ms)
        with pytest.raises(NotFound):
            metadata.get(KEY)
        changed = replace(upload, key=replace(KEY, name="other"), revision=3, owner="ann", attributes=b"\1\1\0ab")
        for one in (changed, upload):
            assert metadata.open_copied_upload(one)
            assert metadata.upload(upload.upload_id) == one
        metadata.record_copies([copied(KEY, 50, of_upload)], now_ms)
        assert state() == (UploadState.COMPLETED, now_ms)
        assert not metadata.open_copied_upload(upload), "a version is composed of it"
        assert metadata.remove_key("bucket", "k", now_ms) == 1
        assert state() == (UploadState.DOOMED, now_ms + PARTS_GRACE_MS)
        doomed = metadata.upload(upload.upload_id)
        assert doomed is not None
        assert metadata.open_copied_upload(upload)
        assert metadata.delete_parts(doomed, [key], now_ms) is None
        assert metadata.get(key).version == 40
        bench.check_counters()

    @pytest.mark.invariant(11)
    @pytest.mark.parametrize("state", MoveState)
    def test_locked_copies_are_removed_only_where_the_bucket_is_not_served(
        self, bench: MetadataBench, state: MoveState
    ) -> None:
        metadata = bench.metadata
        row = bench.put("k")
        metadata.set_attributes(row, with_lock(b"", Lock(hold=True)))
        metadata.set_move(place(state), None)
        metadata.move_as(place(state))
        if state in (GONE, MoveState.ARRIVING, MoveState.REBUILT):
            assert metadata.remove_key("bucket", "k", bench.now_ms) == 1
        else:
            with pytest.raises(Locked):
                metadata.remove_key("bucket", "k", bench.now_ms)
            assert metadata.get(KEY).lock == Lock(hold=True)

    def test_the_directory_follows_moves_in_their_order(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        known = metadata.claim_home("bucket", "ann", "a", 5)
        assert known.moves == 0
        for source, number in (("a", 0), ("a", 2), ("c", 1)):
            with pytest.raises(Conflict):
                metadata.move_home("bucket", source, "b", number)
        metadata.move_home("bucket", "a", "b", 1)
        metadata.move_home("bucket", "a", "b", 1)  # a repetition
        moved = replace(known, home="b", moves=1)
        assert metadata.directory_row("bucket") == moved
        with pytest.raises(Conflict):
            metadata.move_home("bucket", "a", "c", 1)
        assert metadata.record_in_directory(known) == moved
        assert metadata.record_in_directory(replace(moved, owner="bob", moves=0)) == replace(moved, owner="bob")
        assert metadata.directory_row("bucket") == replace(moved, owner="bob")
        later = replace(known, home="c", moves=2)
        assert metadata.record_in_directory(later) == later
        assert metadata.directory_row("bucket") == later
        with pytest.raises(Conflict):
            metadata.move_home("none", "a", "c", 1)

    def test_slices_are_moved_one_by_one(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        known = metadata.claim_home("wide", "ann", "a", 5, ("a", "b", "a"))
        metadata.move_home("wide", "a", "c", 1)
        metadata.move_home("wide", "a", "c", 1)  # a repetition
        moved = metadata.directory_row("wide")
        assert moved == replace(known, home="c", slices=("c", "b", "c"), moves=1, slice_moves=(1, 0, 1))
        assert (moved.moves_of("c"), moved.moves_of("b"), moved.moves_of("a")) == (1, 0, 1)
        for source, target, number in (("a", "d", 1), ("b", "d", 2), ("c", "b", 2), ("c", "d", 1), ("c", "c", 2)):
            with pytest.raises(Conflict):
                metadata.move_home("wide", source, target, number)
        assert metadata.directory_row("wide") == moved
        metadata.move_home("wide", "b", "d", 1)
        metadata.move_home("wide", "c", "a", 2)
        assert metadata.directory_row("wide") == replace(known, slices=("a", "d", "a"), moves=2, slice_moves=(2, 1, 2))
        with pytest.raises(Conflict):
            metadata.move_home("wide", "a", "c", 1)  # a mover that was paused

    def test_each_slice_is_where_it_was_moved_most_often(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        new = DirectoryRow("wide", "a", "ann", 5).with_slices([("a", 0), ("b", 0), ("b", 0)])
        assert metadata.record_in_directory(new) == new
        second = new.moved("b", "c", 1)
        assert metadata.record_in_directory(second) == second
        assert metadata.record_in_directory(replace(new, owner="bob")) == replace(second, owner="bob")
        first = new.moved("a", "d", 2)
        both = first.moved("b", "c", 1)
        assert metadata.record_in_directory(first) == both
        other = DirectoryRow("wide", "b", "eve", 5).with_slices([("b", 0), ("c", 0)])
        assert metadata.record_in_directory(other) == both, "from a creation that was interrupted"
        stale = replace(new, owner="eve", is_deleted=True)
        assert metadata.record_in_directory(stale) == both, "only the first cell says whose the bucket is"
        assert metadata.directory_row("wide") == both
        deleted = replace(both, is_deleted=True)
        assert metadata.record_in_directory(deleted) == deleted
        assert metadata.claim_home("wide", "cid", "a", 8) == deleted
