"""Contract of object locks: nothing deletes a locked version, and both times decide when a lock ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import Conflict, Locked, NosError, NotFound, PreconditionFailed
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode, with_lock
from nos_ec.core.locking.lock_note import note_key
from nos_ec.core.versions import Versioning, as_version
from nos_ec.ports.metadata import (
    AddMarker,
    DeleteVersion,
    ExpireVersion,
    LockOf,
    Metadata,
    NewObject,
    ObjectRow,
    Rebuilt,
    VersionDeletion,
    VersionEntry,
)
from tests.contract.suites.metadata_version_contract import ENABLED, SUSPENDED, mark, numbers
from tests.rig.fakes.metadata_bench import MetadataBench, asking, new_landing_id

FAR_MS = 4_000_000_000_000
COMPLIANCE = Lock(LockMode.COMPLIANCE, FAR_MS)
GOVERNANCE = Lock(LockMode.GOVERNANCE, FAR_MS)
HOLD = Lock(hold=True)
LOCKS = pytest.mark.parametrize("lock", [COMPLIANCE, GOVERNANCE, HOLD], ids=["compliance", "governance", "hold"])


def new_locked(bench: MetadataBench, lock: Lock, name: str = "k", versioning: Versioning | None = None) -> NewObject:
    """A locked object with a version id if versioning is ENABLED."""
    attributes = as_version(b"") if versioning is ENABLED else b""
    return asking(bench.new(name), versioning=versioning, attributes=with_lock(attributes, lock))


def put_locked(bench: MetadataBench, lock: Lock, name: str = "k", versioning: Versioning | None = None) -> ObjectRow:
    """PUT a locked object."""
    return bench.record([new_locked(bench, lock, name, versioning)])[0]


def key(name: str = "k") -> ObjectKey:
    """The key of an object of the bench."""
    return ObjectKey("bucket", name)


def set_lock_time(metadata: Metadata, to_ms: int) -> None:
    """Advance the lock time."""
    assert metadata.advance_lock_time(metadata.lock_times().lock_ms, to_ms)


def change(bench: MetadataBench, row: ObjectRow, lock: Lock, *, bypass: bool = False) -> ObjectRow | NosError:
    """Record a note that changes the lock of a version."""
    note = note_key(row.key, 7)
    new = bench.new(note.name, bucket=note.bucket)
    (answer,) = bench.metadata.record_puts([asking(new, step=LockOf(row, replace(lock, note=7), bypass))], bench.now_ms)
    return answer


@pytest.mark.invariant(11)
class LockContract:
    """`Locks`, and locks in all that deletes."""

    @LOCKS
    def test_nothing_deletes_a_locked_object(self, bench: MetadataBench, lock: Lock) -> None:
        row = put_locked(bench, lock)
        metadata, now_ms = bench.metadata, bench.now_ms
        for until_ms in (None, now_ms + 1000):
            attempts: list[Callable[[int | None], object]] = [
                lambda until_ms: metadata.delete(row.key, now_ms, until_ms),
                lambda until_ms: metadata.delete_many([row.key], now_ms, until_ms),
            ]
            for attempt in attempts:
                with pytest.raises(Locked, match="bucket/k") as refused:
                    attempt(until_ms)
                assert refused.value.keys == {row.key}
            assert metadata.delete_unchanged([row], now_ms, until_ms) == []
            deletions: list[VersionDeletion] = [DeleteVersion(row.key, None), AddMarker(row.key, SUSPENDED)]
            answers = metadata.delete_versions(deletions, now_ms, until_ms)
            assert [type(one) for one in answers] == [Locked, Locked]
        assert metadata.get(row.key) == row

    def test_a_put_does_not_overwrite_it_and_others_of_the_batch_are_recorded(self, bench: MetadataBench) -> None:
        row = put_locked(bench, COMPLIANCE)
        one, other, late = bench.new("a"), bench.new("k"), bench.new("z")
        answers = bench.metadata.record_puts([one, other, late], bench.now_ms)
        assert [type(answer) for answer in answers] == [ObjectRow, Locked, ObjectRow]
        assert bench.metadata.get(row.key) == row
        due = {entry.landing_id for entry in bench.metadata.due_deletions(bench.now_ms, 10)}
        assert other.landing_id in due  # nothing claims its copy
        assert one.landing_id not in due
        again = bench.metadata.record_puts([one, other, late], bench.now_ms)
        assert [type(answer) for answer in again] == [ObjectRow, Locked, ObjectRow]

    def test_puts_that_belong_together_are_refused_together(self, bench: MetadataBench) -> None:
        row = put_locked(bench, HOLD)
        with pytest.raises(Locked):
            bench.metadata.record_puts([bench.new("a"), bench.new("k")], bench.now_ms, together=True)
        assert bench.metadata.get(row.key) == row
        with pytest.raises(NotFound):
            bench.metadata.get(key("a"))

    def test_a_large_put_does_not_overwrite_it(self, bench: MetadataBench) -> None:
        row = put_locked(bench, COMPLIANCE)
        lease = bench.lease()
        new = bench.large("k", lease)
        assert isinstance(bench.metadata.record_large(new, lease, bench.now_ms), Locked)
        assert isinstance(bench.metadata.record_large(new, lease, bench.now_ms), NosError)
        assert bench.metadata.get(row.key) == row

    def test_delete_many_deletes_the_others(self, bench: MetadataBench) -> None:
        kept = [put_locked(bench, HOLD, "b"), put_locked(bench, COMPLIANCE, "d")]
        names = "abcde"
        bench.put_all(["a", "c", "e"])
        with pytest.raises(Locked) as refused:
            bench.metadata.delete_many([key(name) for name in names], bench.now_ms)
        assert refused.value.keys == {row.key for row in kept}
        assert bench.metadata.list_objects("bucket", "", "", 10) == kept

    def test_it_becomes_noncurrent_and_stays(self, bench: MetadataBench) -> None:
        row = put_locked(bench, COMPLIANCE, versioning=ENABLED)
        newer = put_locked(bench, GOVERNANCE, versioning=ENABLED)
        marker = mark(bench)
        found = [(marker.version, True, True), (newer.version, False, False), (row.version, False, False)]
        assert numbers(bench.metadata) == found
        others = bench.put("other")
        deletions = [DeleteVersion(key(), row.version), DeleteVersion(key(), newer.version, bypass=False)]
        answers = bench.metadata.delete_versions([*deletions, DeleteVersion(others.key, None)], bench.now_ms, None)
        assert [type(one) for one in answers] == [Locked, Locked, VersionEntry]
        assert numbers(bench.metadata) == found
        expired = ExpireVersion(key(), row.version, bench.metadata.version(key(), row.version).row, bench.now_ms)
        assert bench.metadata.delete_versions([expired], bench.now_ms) == [None]
        assert numbers(bench.metadata) == found

    def test_a_noncurrent_null_version_is_not_replaced(self, bench: MetadataBench) -> None:
        row = put_locked(bench, COMPLIANCE)
        newer = put_locked(bench, HOLD, versioning=ENABLED)
        metadata = bench.metadata
        (answer,) = metadata.record_puts([bench.new("k")], bench.now_ms)
        assert isinstance(answer, Locked)  # a program that does not know versions
        with pytest.raises(Locked):
            metadata.delete(key(), bench.now_ms)
        other = bench.put("other")
        answers = metadata.delete_versions([AddMarker(key(), SUSPENDED), AddMarker(other.key, ENABLED)], bench.now_ms)
        assert [type(one) for one in answers] == [Locked, VersionEntry]
        lease = bench.lease()
        assert isinstance(metadata.record_large(bench.large("k", lease), lease, bench.now_ms), Locked)
        found = [one for one in numbers(metadata) if one[0] in (row.version, newer.version)]
        assert found == [(newer.version, False, True), (row.version, False, False)]

    def test_only_governance_is_bypassed(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for until_ms in (None, bench.now_ms + 1000):
            for lock in (COMPLIANCE, HOLD, replace(GOVERNANCE, hold=True), GOVERNANCE):
                row = put_locked(bench, lock, versioning=ENABLED)
                (answer,) = metadata.delete_versions(
                    [DeleteVersion(key(), row.version, bypass=True)], bench.now_ms, until_ms
                )
                assert isinstance(answer, VersionEntry if lock == GOVERNANCE else Locked)
        (gone,) = metadata.trash_page(None, 10).rows
        assert gone.lock == Lock()
        assert metadata.purge_trash([gone], bench.now_ms) == [gone]

    def test_a_condition_of_a_deletion_is_judged_first(self, bench: MetadataBench) -> None:
        row = put_locked(bench, GOVERNANCE, versioning=ENABLED)
        other = bench.put("other")

        deletion = DeleteVersion(key(), row.version, Condition(bytes(16)), bypass=True)
        answers = bench.metadata.delete_versions([deletion, DeleteVersion(other.key, None)], bench.now_ms)
        assert [type(one) for one in answers] == [PreconditionFailed, VersionEntry]
        assert bench.metadata.version(key(), row.version).row == row  # with its retention

    def test_a_lock_ends_when_both_times_have_passed(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        at_ms = time.time_ns() // 1_000_000
        before = metadata.lock_times()
        assert before.lock_ms == 0
        assert abs(before.database_ms - at_ms) < 60_000
        past, future = Lock(LockMode.COMPLIANCE, at_ms - 600_000), Lock(LockMode.COMPLIANCE, at_ms + 600_000)
        over, not_over = put_locked(bench, past, "over"), put_locked(bench, future, "not-over")
        for row in (over, not_over):
            with pytest.raises(Locked):  # a clock of the caller that jumps ahead ends nothing
                metadata.delete(row.key, FAR_MS + 1)
        set_lock_time(metadata, past.until_ms - 1)
        with pytest.raises(Locked):
            metadata.delete(over.key, FAR_MS + 1)
        set_lock_time(metadata, past.until_ms)
        assert metadata.delete(over.key, bench.now_ms) == over
        set_lock_time(metadata, FAR_MS)
        with pytest.raises(Locked):  # the database's time has not passed
            metadata.delete(not_over.key, FAR_MS + 1)

    def test_a_note_changes_the_lock_of_its_version_and_goes_with_it(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        current = bench.put("k")
        for lock in (
            HOLD,
            Lock(),
            replace(GOVERNANCE, until_ms=FAR_MS - 1),
            GOVERNANCE,
            replace(GOVERNANCE, hold=True),
        ):
            assert isinstance(change(bench, current, lock), ObjectRow)
            current = metadata.get(key())
            assert current.lock == replace(lock, note=7)
        note = metadata.get(note_key(key(), 7))
        for refused in (COMPLIANCE, Lock(), Lock(LockMode.GOVERNANCE, FAR_MS - 1)):
            assert isinstance(change(bench, current, refused), Locked)
        stale = replace(current, attributes=b"")
        assert isinstance(change(bench, stale, HOLD), Conflict)
        assert isinstance(change(bench, replace(current, version=current.version + 2), HOLD), Conflict)
        assert metadata.get(note.key) == note
        assert isinstance(change(bench, current, Lock(), bypass=True), ObjectRow)
        metadata.delete(key(), bench.now_ms)
        with pytest.raises(NotFound):
            metadata.get(note.key)
        assert isinstance(change(bench, current, HOLD), Conflict)

    def test_compliance_is_only_extended(self, bench: MetadataBench) -> None:
        row = put_locked(bench, COMPLIANCE)
        for lock in (GOVERNANCE, Lock(), HOLD, Lock(LockMode.COMPLIANCE, FAR_MS - 1)):
            assert isinstance(change(bench, row, lock, bypass=True), Locked)
        longer = Lock(LockMode.COMPLIANCE, FAR_MS + 1, hold=True)
        assert isinstance(change(bench, row, longer), ObjectRow)
        assert bench.metadata.get(key()).lock == replace(longer, note=7)

    def test_the_lock_time_advances_by_compare_and_set(self, metadata: Metadata) -> None:
        assert metadata.advance_lock_time(0, 5)
        assert not metadata.advance_lock_time(0, 6)
        assert not metadata.advance_lock_time(5, 4)
        assert metadata.advance_lock_time(5, 6)
        assert metadata.lock_times().lock_ms == 6

    def test_a_rebuild_does_not_drop_it(self, metadata: Metadata) -> None:
        bench = MetadataBench(metadata)
        row = put_locked(bench, COMPLIANCE)
        newer = replace(row, version=row.version + 2, md5=bytes(16), attributes=b"")
        with pytest.raises(Locked):
            metadata.place([Rebuilt(newer, instead_of=row)], bench.now_ms)
        assert metadata.get(row.key) == row
        kept = Rebuilt(replace(row, trash_until_ms=0), instead_of=row)
        other = replace(newer, object_id=row.object_id + 7, landing_id=new_landing_id())
        metadata.place([kept, Rebuilt(other)], bench.now_ms)
        metadata.settle_versions(list(metadata.trash_of([(row.key, row.version)]).values()))
        metadata.order_versions([row.key], bench.now_ms, bench.now_ms)
        assert [number for number, _, _ in numbers(metadata)] == [newer.version, row.version]
