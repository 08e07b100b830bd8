"""What every metadata store must do: at least one test for each sentence of `nos_ec.ports.metadata`.

Derive from `MetadataContract` and define a fixture `metadata`: an empty metadata store, not bound to a geometry, that
nothing else uses. Numbers in names and comments are those of docs/INVARIANTS.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import ConfigError, Conflict, InvalidInput, LeaseLost, NosError, NotFound, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import Extent, LandingId, ObjectKey
from nos_ec.core.publishing.slots import ALL_SLOTS, LEASE_PREFIX
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.ports.metadata import (
    GroupCommit,
    LandingDeletion,
    Lease,
    Metadata,
    Move,
    NewObject,
    ObjectRow,
    PutRequest,
    StoredTotals,
)
from tests.contract.suites.metadata_attribute_contract import AttributeContract
from tests.contract.suites.metadata_block_contract import BlockContract
from tests.contract.suites.metadata_bucket_contract import AccessKeyContract, BucketContract
from tests.contract.suites.metadata_condition_contract import ConditionContract
from tests.contract.suites.metadata_directory_contract import DirectoryContract
from tests.contract.suites.metadata_entries_contract import EntriesContract
from tests.contract.suites.metadata_expired_version_contract import ExpiredVersionContract
from tests.contract.suites.metadata_explanation_contract import ExplanationContract
from tests.contract.suites.metadata_inspection_contract import InspectionContract
from tests.contract.suites.metadata_journal_contract import JournalContract
from tests.contract.suites.metadata_lock_contract import LockContract
from tests.contract.suites.metadata_moves_contract import MovesContract
from tests.contract.suites.metadata_notes_contract import NotesContract
from tests.contract.suites.metadata_outbox_contract import OutboxContract
from tests.contract.suites.metadata_producer_contract import ProducerContract
from tests.contract.suites.metadata_rebuild_contract import RebuildContract
from tests.contract.suites.metadata_repair_contract import RepairContract
from tests.contract.suites.metadata_scrubbing_contract import ScrubbingContract
from tests.contract.suites.metadata_segment_contract import LandingSegmentContract
from tests.contract.suites.metadata_survival_contract import SurvivalContract
from tests.contract.suites.metadata_tail_contract import TailContract
from tests.contract.suites.metadata_trash_contract import TrashContract
from tests.contract.suites.metadata_upload_contract import UploadContract
from tests.contract.suites.metadata_usage_contract import UsageContract
from tests.contract.suites.metadata_version_contract import VersionContract
from tests.rig.fakes.audit import counted_totals
from tests.rig.fakes.metadata_bench import GEOMETRY, HEADER, TTL_MS, MetadataBench, new_block_id, new_landing_id

SIZE = GEOMETRY.stripe_size


class MetadataSuite:
    """Base of the suites on a metadata store."""

    @pytest.fixture
    def bench(self, metadata: Metadata) -> MetadataBench:
        """The metadata store under test, bound to a geometry, with shorthands."""
        return MetadataBench(metadata)


class IdentityContract:
    """bind_geometry, is_new, claim_store_id, find_store_id."""

    def test_geometry_is_bound_once(self, bench: MetadataBench) -> None:
        bench.metadata.bind_geometry(GEOMETRY)
        with pytest.raises(ConfigError, match="k=4"):
            bench.metadata.bind_geometry(Geometry(k=4, m=2))

    def test_blocks_cannot_be_counted_before_the_geometry_is_bound(self, metadata: Metadata) -> None:
        with pytest.raises(ConfigError, match="nos-ec init"):
            metadata.seal_reconciled(new_block_id(), 0, 0, 0, 0, 1)

    def test_metadata_is_new_until_its_geometry_is_bound(self, metadata: Metadata) -> None:
        assert metadata.is_new()
        metadata.claim_store_id("an id")
        assert metadata.is_new(), "`nos-ec init` died between the two: its next run must treat it as new"
        metadata.bind_geometry(GEOMETRY)
        assert not metadata.is_new()

    def test_the_first_claimed_id_stays(self, metadata: Metadata) -> None:
        assert metadata.find_store_id() is None
        assert metadata.claim_store_id("first") == "first"
        assert metadata.claim_store_id("second") == "first"
        assert metadata.find_store_id() == "first"


def assert_too_late(answer: ObjectRow | NosError, new: NewObject) -> None:
    """The answer to a PUT whose reservation is over."""
    assert isinstance(answer, Transient), answer
    assert "longer than its reservation" in str(answer)
    assert answer.key == new.key


class PutContract:
    """reserve_landing, record_puts, next_version."""

    def test_a_reservation_is_queued_for_deletion(self, bench: MetadataBench) -> None:
        landing_id = new_landing_id()
        bench.metadata.reserve_landing([landing_id], 500)
        bench.metadata.reserve_landing([landing_id], 900)
        assert bench.deletions() == {landing_id: LandingDeletion(landing_id, None, None, False, None)}
        assert bench.metadata.due_deletions(499, 10) == []
        assert len(bench.metadata.due_deletions(500, 10)) == 1, "reserving again must not move the time"

    def test_a_put_becomes_current_and_leaves_the_queue(self, bench: MetadataBench) -> None:
        new = bench.new("å/✓ name", 123)
        (row,) = bench.record([new])
        assert row == bench.metadata.get(new.key)
        assert (row.key, row.size, row.crc32c, row.md5) == (new.key, new.size, new.crc32c, new.md5)
        assert (row.state, row.landing_id, row.extent) == (ObjectState.LANDED, new.landing_id, None)
        assert (row.version, row.created_ms) == (bench.now_ms * 1000, bench.now_ms)
        assert bench.deletions() == {}

    def test_an_empty_object_needs_no_landing_copy(self, bench: MetadataBench) -> None:
        row = bench.put("empty", 0)
        assert (row.state, row.landing_id, row.extent, row.size) == (ObjectState.EMPTY, None, None, 0)
        assert bench.metadata.due_objects(2**60, 10, ALL_SLOTS) == []
        bench.put("empty", 10)
        assert bench.put("empty", 0).state is ObjectState.EMPTY
        assert bench.metadata.due_objects(2**60, 10, ALL_SLOTS) == []

    def test_an_object_whose_copy_and_size_disagree_is_a_bug(self, bench: MetadataBench) -> None:
        with pytest.raises(ValueError, match="landing copy"):
            bench.metadata.record_puts([NewObject(PutRequest(ObjectKey("b", "n")), 5, 0, bytes(16), None, 0)], 1)

    def test_versions_grow_even_when_the_clock_stands_still(self, bench: MetadataBench) -> None:
        first, second = bench.put("n"), bench.put("n")
        assert (second.object_id, second.version) == (first.object_id, first.version + 2)
        bench.now_ms += 1
        assert bench.put("n").version == bench.now_ms * 1000
        bench.now_ms -= 10_000
        assert bench.put("n").version == (bench.now_ms + 10_000) * 1000 + 2

    def test_next_version(self, bench: MetadataBench) -> None:
        key = ObjectKey("bucket", "n")
        assert bench.metadata.next_version(key, 7) == 7000
        row = bench.put("n")
        assert bench.metadata.next_version(key, 7) == row.version + 2
        assert bench.metadata.next_version(key, 7, conditional=True) == row.version + 1
        assert bench.metadata.next_version(key, bench.now_ms + 1) == (bench.now_ms + 1) * 1000

    def test_an_overwritten_landing_copy_is_queued_for_immediate_deletion(self, bench: MetadataBench) -> None:
        old = bench.put("n")
        bench.put("n")
        assert old.landing_id is not None
        assert bench.metadata.due_deletions(bench.now_ms - 1, 10) == []
        assert bench.metadata.due_deletions(bench.now_ms, 10) == [
            LandingDeletion(old.landing_id, old.object_id, old.version, False, None)
        ]

    @pytest.mark.invariant(6)
    def test_an_overwritten_extent_is_dead(self, bench: MetadataBench) -> None:
        old = bench.packed("n", 700)
        bench.put("n", 800)
        assert old.extent is not None
        block = bench.metadata.block(old.extent.block_id)
        assert (block.live_bytes, block.dead_bytes, block.live_objects) == (0, 700, 0)
        bench.check_counters()

    def test_a_batch_is_recorded_in_order(self, bench: MetadataBench) -> None:
        bench.put("n-7")
        rows = bench.put_all([f"n-{i}" for i in range(200)])
        assert [row.key.name for row in rows] == [f"n-{i}" for i in range(200)]
        assert [bench.get(row.key.name) for row in rows[:10]] == rows[:10]

    def test_a_later_put_in_a_batch_overwrites_an_earlier_one(self, bench: MetadataBench) -> None:
        first, second = bench.new("n", 10), bench.new("n", 20)
        rows = bench.record([first, second])
        assert rows[1] == bench.get("n")
        assert (rows[1].size, rows[1].version) == (20, rows[0].version + 2)
        assert list(bench.deletions()) == [first.landing_id]

    @pytest.mark.invariant(2)
    def test_a_doomed_reservation_records_nothing(self, bench: MetadataBench) -> None:
        late = bench.new("late")
        assert late.landing_id is not None
        assert bench.metadata.doom_landing({late.landing_id: None}) == {late.landing_id}
        for _ in range(2):
            (refused,) = bench.metadata.record_puts([late], bench.now_ms)
            assert_too_late(refused, late)
        bench.metadata.forget_landing([late.landing_id])
        (refused,) = bench.metadata.record_puts([late], bench.now_ms)
        assert_too_late(refused, late)
        assert bench.metadata.list_objects("bucket", "", "", 10) == []

    @pytest.mark.invariant(2)
    def test_puts_that_are_too_late_stop_no_others(self, bench: MetadataBench) -> None:
        """Neither those of other keys nor those of their own key, before them and after."""
        old = bench.put("overwritten")
        new = [bench.new(name, size) for size, name in enumerate(["late", "a", "overwritten", "a", "b", "b", "b"], 1)]
        too_late = [new[0], new[2], new[3], new[5]]
        ids = [one.landing_id for one in too_late if one.landing_id is not None]
        assert bench.metadata.doom_landing(dict.fromkeys(ids)) == set(ids)
        for later_ms in range(2):
            answers = bench.metadata.record_puts(new, bench.now_ms + later_ms)
            for one, answer in zip(new, answers, strict=True):
                if one in too_late:
                    assert_too_late(answer, one)
                else:
                    assert isinstance(answer, ObjectRow)
                    assert (answer.key, answer.size, answer.landing_id) == (one.key, one.size, one.landing_id)
            assert bench.get("overwritten") == old
            assert [bench.get("a"), bench.get("b")] == [answers[1], answers[6]]
            assert [row.key.name for row in bench.metadata.list_objects("bucket", "", "", 10)] == [
                "a",
                "b",
                "overwritten",
            ]
        assert bench.deletions().keys() == {*ids, new[4].landing_id}

    @pytest.mark.invariant(2)
    def test_puts_that_are_recorded_together(self, bench: MetadataBench) -> None:
        """All of them or none, also when one that is too late comes second to its key."""
        fine, late = [bench.new("a"), bench.new("b")], bench.new("a")
        assert late.landing_id is not None
        assert bench.metadata.doom_landing({late.landing_id: None}) == {late.landing_id}
        for _ in range(2):
            with pytest.raises(Transient, match="longer than its reservation"):
                bench.metadata.record_puts([*fine, late], bench.now_ms, together=True)
            assert bench.metadata.list_objects("bucket", "", "", 10) == []
        rows = bench.metadata.record_puts(fine, bench.now_ms, together=True)
        assert rows == [bench.get("a"), bench.get("b")]

    @pytest.mark.invariant(5)
    def test_recording_again_changes_nothing(self, bench: MetadataBench) -> None:
        new = bench.new("n")
        first = bench.record([new])
        assert bench.record([new], later_ms=5) == first
        bench.pack(first)
        (again,) = bench.record([new], later_ms=5)
        assert again == bench.get("n")
        assert again.state is ObjectState.PACKED

    @pytest.mark.invariant(5)
    def test_recording_again_does_not_bring_an_old_version_back(self, bench: MetadataBench) -> None:
        new = bench.new("n")
        (first,) = bench.record([new])
        newer = bench.put("n")
        (again,) = bench.record([new], later_ms=5)
        assert (again.object_id, again.version) == (first.object_id, first.version)
        assert bench.get("n") == newer
        bench.delete("n")
        bench.record([new], later_ms=5)
        with pytest.raises(NotFound):
            bench.get("n")

    def test_recording_nothing(self, bench: MetadataBench) -> None:
        assert bench.metadata.record_puts([], 1) == []
        bench.metadata.reserve_landing([], 1)


class LargeContract:
    """record_large, segments."""

    def test_a_large_object_is_current_and_its_blocks_sealed(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        new = bench.large("big", lease)
        assert bench.metadata.record_large(new, lease, bench.now_ms) is True
        row = bench.get("big")
        assert (row.version, row.size, row.crc32c, row.md5) == (new.version, new.size, new.crc32c, new.md5)
        assert (row.state, row.landing_id, row.extent) == (ObjectState.LARGE, None, None)
        assert bench.metadata.segments(row.object_id, row.version) == list(new.segments)
        for segment in new.segments:
            block = bench.metadata.block(segment.extent.block_id)
            assert (block.state, block.kind, block.stripes) == (BlockState.SEALED, BlockKind.LARGE, 1)
            assert (block.live_bytes, block.live_objects, block.dead_bytes) == (20_000, 1, 0)
        bench.check_counters()

    def test_recording_a_large_object_again_changes_nothing(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        new = bench.large("big", lease)
        assert [bench.metadata.record_large(new, lease, bench.now_ms) for _ in range(3)] == [True] * 3
        bench.put("big")
        assert not bench.metadata.record_large(new, lease, bench.now_ms), "it counts as the first of the two"
        bench.check_counters()

    @pytest.mark.parametrize("winner", ["small", "large"])
    def test_the_older_of_two_concurrent_puts_is_dead(self, bench: MetadataBench, winner: str) -> None:
        lease = bench.lease()
        older = bench.large("n", lease)
        if winner == "small":
            bench.put("n")
        else:
            assert bench.metadata.record_large(bench.large("n", lease), lease, bench.now_ms)
        current = bench.get("n")
        assert not bench.metadata.record_large(older, lease, bench.now_ms)
        assert bench.get("n") == current
        for segment in older.segments:
            block = bench.metadata.block(segment.extent.block_id)
            assert (block.state, block.live_bytes, block.dead_bytes) == (BlockState.SEALED, 0, 20_000)
        bench.check_counters()

    def test_a_large_object_releases_what_it_overwrites(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        landed, packed = bench.put("n"), bench.packed("p")
        large = bench.large("l", lease)
        assert bench.metadata.record_large(large, lease, bench.now_ms) is True
        gone = bench.get("l")
        for name in "npl":
            assert bench.metadata.record_large(bench.large(name, lease), lease, bench.now_ms) is True
        assert landed.landing_id in bench.deletions()
        assert packed.extent is not None
        assert bench.metadata.block(packed.extent.block_id).live_bytes == 0
        assert bench.metadata.segments(gone.object_id, gone.version) == []
        assert bench.metadata.block(large.segments[0].extent.block_id).hole_ratio == 1.0
        bench.check_counters()

    @pytest.mark.invariant(8)
    def test_a_writer_that_lost_its_lease_records_nothing(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        new = bench.large("big", lease)
        bench.metadata.fence_lease(lease, lease.expires_ms)
        with pytest.raises(LeaseLost):
            bench.metadata.record_large(new, lease, bench.now_ms)
        other = bench.lease()
        with pytest.raises(LeaseLost):
            bench.metadata.record_large(new, other, bench.now_ms)
        with pytest.raises(NotFound):
            bench.get("big")

    def test_impossible_figures_are_a_bug(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        new = bench.large("big", lease)
        for wrong in ({"size": 1}, {"block_stripes": [1]}, {"block_stripes": [0, 1]}):
            fields = {name: getattr(new, name) for name in new.__dataclass_fields__} | wrong
            with pytest.raises(ValueError, match="object bucket/big"):
                bench.metadata.record_large(type(new)(**fields), lease, 1)


class LookUpContract:
    """get, segments, delete, list_objects, list_buckets."""

    def test_missing_objects(self, bench: MetadataBench) -> None:
        for ask in (bench.get, bench.delete):
            with pytest.raises(NotFound) as refused:
                ask("nothing")
            assert refused.value.key == ObjectKey("bucket", "nothing")
        assert bench.metadata.segments(1, 1) == []

    def test_delete_releases_the_bytes_of_every_state(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        landed, packed, empty = bench.put("n"), bench.packed("p"), bench.put("e", 0)
        queued = bench.put("q")
        bench.metadata.mark_published([queued], 5)
        bench.metadata.record_large(bench.large("l", lease), lease, bench.now_ms)
        large = bench.get("l")
        assert bench.delete("n") == landed
        assert bench.delete("p") == packed
        assert bench.delete("e") == empty
        assert bench.delete("q").state is ObjectState.QUEUED
        assert bench.delete("l") == large
        assert bench.metadata.segments(large.object_id, large.version) == []
        assert {landed.landing_id, queued.landing_id} <= bench.deletions().keys()
        assert all(block.live_bytes == 0 == block.live_objects for block in bench.metadata.list_blocks(None, 99))
        bench.check_counters()
        with pytest.raises(NotFound):
            bench.get("p")

    @pytest.mark.invariant(6)
    def test_deleting_many_does_what_deleting_each_does(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        landed, packed, empty = bench.put("n"), bench.packed("p"), bench.put("e", 0)
        bench.metadata.record_large(bench.large("l", lease), lease, bench.now_ms)
        large, kept = bench.get("l"), bench.packed("kept")
        names = ["l", "nothing", "p", "e", "n", "p", "nothing"]
        keys = [ObjectKey("bucket", name) for name in names]
        assert bench.metadata.delete_many(keys, bench.now_ms) == [large, packed, empty, landed]
        assert bench.metadata.list_objects("bucket", "", "", 99) == [kept]
        assert bench.metadata.segments(large.object_id, large.version) == []
        assert landed.landing_id in bench.deletions()
        assert sum(block.live_objects for block in bench.metadata.list_blocks(None, 99)) == 1
        bench.check_counters()
        assert bench.metadata.delete_many(keys, bench.now_ms) == [], "again, as after a Transient"
        assert bench.metadata.delete_many([], bench.now_ms) == []

    @pytest.mark.invariant(6)
    def test_only_versions_that_have_not_changed_are_deleted(self, bench: MetadataBench) -> None:
        names = ["landed", "overwritten", "changed", "gone", "again"]
        rows = [*map(bench.put, names), bench.packed("p")]
        new = bench.put("overwritten")
        assert bench.metadata.set_attributes(rows[2], b"")
        changed = replace(rows[2], attributes=encode_attributes({"a": "b"}))
        assert bench.metadata.set_attributes(rows[2], changed.attributes)
        bench.delete("gone")
        bench.delete("again")
        again = bench.put("again")
        gone = bench.metadata.delete_unchanged(rows, bench.now_ms)
        assert sorted(row.key.name for row in gone) == ["landed", "p"]
        assert bench.metadata.list_objects("bucket", "", "", 99) == [again, changed, new]
        assert bench.metadata.delete_unchanged(rows, bench.now_ms) == []
        assert bench.metadata.delete_unchanged([], bench.now_ms) == []
        until_ms = bench.now_ms + 1000
        assert bench.metadata.delete_unchanged([changed], bench.now_ms, until_ms) == [changed]
        assert [row.object_id for row in bench.metadata.trash_page(None, 9).rows] == [changed.object_id]
        bench.check_counters()

    @pytest.mark.invariant(6)
    def test_a_thousand_objects_of_many_blocks_go_at_once(self, bench: MetadataBench) -> None:
        rows = bench.put_all([f"{i:04}" for i in range(1000)], 10)
        for first in range(0, 900, 100):
            bench.pack(rows[first : first + 100])
        keys = [row.key for row in reversed(rows)]
        assert [row.key for row in bench.metadata.delete_many(keys, bench.now_ms)] == keys
        assert bench.metadata.list_objects("bucket", "", "", 9) == []
        assert [block.dead_bytes for block in bench.metadata.list_blocks(None, 99)] == [1000] * 9
        bench.check_counters()

    def test_an_object_id_is_never_used_twice(self, bench: MetadataBench) -> None:
        first = bench.put("n")
        bench.delete("n")
        assert bench.put("n").object_id > first.object_id

    def test_listing_is_in_byte_order_and_starts_after_a_name(self, bench: MetadataBench) -> None:
        # U+FFFF sorts before U+10000 in UTF-8 and after it in UTF-16. A collation would merge case, accents and blanks.
        names = ["A", "a", "a ", "ä", "z", "é", "e", "\uffff", "\U00010000", "a%", "a_", "ab"]
        bench.put_all(names)
        bench.put("a", bucket="Bucket")
        ordered = sorted(names, key=str.encode)
        assert [row.key.name for row in bench.metadata.list_objects("bucket", "", "", 99)] == ordered
        for i, name in enumerate(ordered):
            page = bench.metadata.list_objects("bucket", "", name, 3)
            assert [row.key.name for row in page] == ordered[i + 1 : i + 4]
            assert bench.metadata.list_names("bucket", "", name, 3) == ordered[i + 1 : i + 4]

    def test_listing_by_prefix(self, bench: MetadataBench) -> None:
        names = ["a", "a/", "a/1", "a/2", "a%1", "a0", "b", "\U0010ffff", "\U0010ffff1"]
        bench.put_all(names)
        for prefix in ("a", "a/", "a/1", "a%", "\U0010ffff", "c", ""):
            expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
            found = [row.key.name for row in bench.metadata.list_objects("bucket", prefix, "", 99)]
            assert found == expected, prefix
            assert bench.metadata.list_names("bucket", prefix, "", 99) == expected, prefix
        assert [row.key.name for row in bench.metadata.list_objects("bucket", "a/", "a/1", 9)] == ["a/2"]
        assert bench.metadata.list_objects("bucket", "a/", "b", 9) == []
        with pytest.raises(InvalidInput):
            bench.metadata.list_objects("bucket", "\ud800", "", 9)

    def test_buckets_are_listed_in_byte_order(self, bench: MetadataBench) -> None:
        for bucket in ("b", "B", "\uffff", "\U00010000", "c"):
            bench.put("one", bucket=bucket)
            bench.put("two", bucket=bucket)
        assert bench.metadata.list_buckets("", 99) == ["B", "b", "c", "\uffff", "\U00010000"]
        assert bench.metadata.list_buckets("B", 2) == ["b", "c"]
        bench.metadata.delete(ObjectKey("c", "one"), 1)
        bench.metadata.delete(ObjectKey("c", "two"), 1)
        assert bench.metadata.list_buckets("b", 1) == ["\uffff"]


class LeaseContract:
    """Leases (invariant 8)."""

    def test_a_lease_that_is_held_cannot_be_acquired_even_after_it_expired(self, bench: MetadataBench) -> None:
        lease = bench.metadata.acquire_lease("w", 100, 50)
        assert (lease.name, lease.expires_ms) == ("w", 150)
        for now_ms, says in (
            (100, "'w' is held until 1970-01-01T00:00:00.*longer"),
            (151, "'w' was held until .*fence"),
        ):
            with pytest.raises(Conflict, match=says):
                bench.metadata.acquire_lease("w", now_ms, 50)
        with pytest.raises(InvalidInput):
            bench.metadata.acquire_lease("", 1, 1)

    def test_the_refusal_of_a_lease_names_its_holder(self, bench: MetadataBench) -> None:
        for holder in ("process 4711 on host-a", "process 5 on host-b"):
            lease = bench.metadata.acquire_lease("gc", 60_000, 30_000, holder)
            with pytest.raises(Conflict, match=f"held by {holder} until 1970-01-01T00:01:30.*, 20 s from now"):
                bench.metadata.acquire_lease("gc", 70_000, 30_000, "process 6 on host-c")
            with pytest.raises(Conflict, match=f"was held by {holder} until .* has run out"):
                bench.metadata.acquire_lease("gc", 90_000, 30_000)
            bench.metadata.release_lease(lease)
        bench.metadata.acquire_lease("gc", 60_000, 30_000)
        with pytest.raises(Conflict, match="'gc' is held until"):
            bench.metadata.acquire_lease("gc", 60_000, 30_000)

    def test_epochs_increase_across_all_names(self, bench: MetadataBench) -> None:
        epochs = []
        for name in ("a", "b", "a", "c"):
            lease = bench.lease(name)
            epochs.append(lease.epoch)
            bench.metadata.release_lease(lease)
        assert epochs == sorted(set(epochs))

    def test_renewing(self, bench: MetadataBench) -> None:
        lease = bench.metadata.acquire_lease("w", 100, 50)
        renewed = bench.metadata.renew_lease(lease, 200, 50)
        assert renewed == Lease("w", lease.epoch, 250)
        assert bench.metadata.expired_leases(249) == []
        assert bench.metadata.expired_leases(250) == [renewed]
        bench.metadata.release_lease(renewed)
        with pytest.raises(LeaseLost):
            bench.metadata.renew_lease(renewed, 1, 1)
        other = bench.metadata.acquire_lease("w", 1, 1)
        with pytest.raises(LeaseLost):
            bench.metadata.renew_lease(renewed, 1, 1)
        assert other.epoch > lease.epoch

    def test_several_leases_at_once(self, bench: MetadataBench) -> None:
        other = bench.metadata.acquire_lease("b", 100, 50)
        taken = bench.metadata.acquire_leases(["c", "b", "a"], 200, 50)
        assert [(lease.name, lease.expires_ms) for lease in taken] == [("c", 250), ("a", 250)]
        assert len({lease.epoch for lease in taken} | {other.epoch}) == 3
        assert min(lease.epoch for lease in taken) > other.epoch
        assert bench.metadata.acquire_leases(["a", "b", "c"], 999, 50) == [], "expired is not free"
        assert bench.metadata.acquire_leases([], 999, 50) == []
        bench.metadata.release_lease(taken[0])
        again = bench.metadata.acquire_lease("c", 100, 50)
        assert bench.metadata.renew_leases(taken, 300, 50) == [Lease("a", taken[1].epoch, 350)]
        assert bench.metadata.renew_leases(taken[:1], 300, 50) == []
        assert bench.metadata.renew_leases([], 300, 50) == []
        assert bench.metadata.list_leases("") == [Lease("a", taken[1].epoch, 350), other, again]
        with pytest.raises(InvalidInput):
            bench.metadata.acquire_leases(["d", ""], 1, 1)

    def test_releasing_several_leases(self, bench: MetadataBench) -> None:
        held, kept = [bench.lease(), bench.lease()], bench.lease()
        blocks = [bench.block(lease) for lease in (*held, kept)]
        for _ in range(2):
            bench.metadata.release_leases(held)
            bench.metadata.release_leases([])
        states = [bench.metadata.block(block_id).state for block_id in blocks]
        assert states == [BlockState.FENCED, BlockState.FENCED, BlockState.OPEN]
        assert bench.metadata.list_leases("") == [kept]

    def test_leases_are_listed_by_prefix(self, bench: MetadataBench) -> None:
        names = ["a", "a-1", "a-2", "a.", "a-\U0010ffff", "A-1"]
        for name in names:
            bench.lease(name)
        assert [lease.name for lease in bench.metadata.list_leases("a-")] == ["a-1", "a-2", "a-\U0010ffff"]
        assert len(bench.metadata.list_leases("")) == len(names)

    def test_releasing_fences_open_blocks(self, bench: MetadataBench) -> None:
        lease, bystander = bench.lease(), bench.lease()
        left, sealed, other = bench.block(lease), bench.block(lease), bench.block(bystander)
        bench.metadata.seal_block(lease, sealed, 5)
        for _ in range(2):
            bench.metadata.release_lease(lease)
        assert bench.metadata.block(left).state is BlockState.FENCED
        assert bench.metadata.block(sealed).state is BlockState.SEALED
        assert bench.metadata.block(other).state is BlockState.OPEN

    def test_only_an_expired_lease_can_be_fenced(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id = bench.block(lease)
        assert not bench.metadata.fence_lease(lease, lease.expires_ms - 1)
        renewed = bench.metadata.renew_lease(lease, bench.now_ms + 5, TTL_MS)
        assert not bench.metadata.fence_lease(lease, lease.expires_ms)
        assert bench.metadata.block(block_id).state is BlockState.OPEN
        assert bench.metadata.fence_lease(renewed, renewed.expires_ms)
        assert bench.metadata.block(block_id).state is BlockState.FENCED
        assert not bench.metadata.fence_lease(renewed, renewed.expires_ms)
        assert bench.metadata.expired_leases(2**60) == []


class CommitContract:
    """commit_group (invariants 3, 5, 6, 8)."""

    def test_a_group_from_the_landing_store(self, bench: MetadataBench) -> None:
        rows = [bench.put(name, 500) for name in "abc"]
        bench.metadata.mark_published(rows[:1], 5)
        lease = bench.lease()
        block_id = bench.block(lease)
        commit = bench.group(lease, block_id, rows, stripes=2)
        assert bench.metadata.commit_group(commit) == {row.object_id for row in rows}
        for row, move in zip(rows, commit.moves, strict=True):
            moved = bench.get(row.key.name)
            assert (moved.state, moved.landing_id) == (ObjectState.PACKED, None)
            assert moved.extent == Extent(block_id, move.offset, 500)
            assert (moved.version, moved.crc32c) == (row.version, row.crc32c)
        block = bench.metadata.block(block_id)
        assert (block.stripes, block.live_bytes, block.dead_bytes, block.live_objects) == (2, 1500, 0, 3)
        assert block.overhead_bytes == 2 * SIZE - 1500
        assert bench.metadata.due_objects(2**60, 10, ALL_SLOTS) == []
        bench.check_counters()

    def test_landing_copies_of_winners_are_queued(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        bench.pack([row])
        assert row.landing_id is not None
        assert bench.metadata.due_deletions(bench.now_ms + 4, 10) == []
        expected = LandingDeletion(row.landing_id, row.object_id, row.version, False, bench.get("n"))
        assert bench.metadata.due_deletions(bench.now_ms + 5, 10) == [expected]

    @pytest.mark.invariant(5)
    def test_losers_count_as_dead_bytes_and_raise_no_error(self, bench: MetadataBench) -> None:
        rows = [bench.put(name, 300) for name in "wodp"]
        lease = bench.lease()
        block_id = bench.block(lease)
        commit = bench.group(lease, block_id, rows)
        bench.put("o", 300)
        bench.delete("d")
        bench.pack([rows[3]])
        assert bench.metadata.commit_group(commit) == {rows[0].object_id}
        block = bench.metadata.block(block_id)
        assert (block.live_bytes, block.dead_bytes, block.live_objects) == (300, 900, 1)
        bench.check_counters()

    @pytest.mark.invariant(5)
    def test_a_repeated_event_moves_nothing_twice(self, bench: MetadataBench) -> None:
        row = bench.put("n", 300)
        lease = bench.lease()
        block_id = bench.block(lease)
        twice = bench.group(lease, block_id, [row, row])
        assert bench.metadata.commit_group(twice) == {row.object_id}
        moved = bench.get("n")
        assert moved.extent is not None
        assert moved.extent.offset == twice.moves[0].offset
        assert bench.metadata.commit_group(bench.group(lease, block_id, [row], at=1)) == frozenset()
        assert bench.get("n") == moved
        assert bench.metadata.block(block_id).dead_bytes == 600
        bench.check_counters()

    @pytest.mark.invariant(5)
    def test_the_current_one_of_two_versions_in_a_group_wins(self, bench: MetadataBench) -> None:
        old, new = bench.put("n", 300), bench.put("n", 400)
        lease = bench.lease()
        for order in ([old, new], [new, old]):
            block_id = bench.block(lease)
            current = bench.get("n")
            commit = bench.group(lease, block_id, [current if row is new else row for row in order])
            assert bench.metadata.commit_group(commit) == {new.object_id}
            block = bench.metadata.block(block_id)
            assert (block.live_bytes, block.dead_bytes) == (400, 300)
        bench.check_counters()

    @pytest.mark.invariant(6)
    def test_gc_moves_from_block_to_block(self, bench: MetadataBench) -> None:
        rows = [bench.put(name, 400) for name in "abcd"]
        first, second = bench.pack(rows[:2]), bench.pack(rows[2:])
        packed = [bench.get(name) for name in "abcd"]
        bench.delete("d")
        lease = bench.lease()
        target = bench.block(lease, BlockKind.SURVIVOR)
        won = bench.metadata.commit_group(bench.group(lease, target, packed))
        assert won == {row.object_id for row in packed[:3]}
        assert [bench.metadata.block(one).dead_bytes for one in (first, second, target)] == [800, 800, 400]
        assert [bench.metadata.block(one).live_bytes for one in (first, second, target)] == [0, 0, 1200]
        assert len(bench.deletions()) == 4, "a move between blocks queues no landing copy"
        bench.check_counters()

    @pytest.mark.invariant(5)
    def test_a_move_matches_only_the_place_it_names(self, bench: MetadataBench) -> None:
        row = bench.packed("n", 400)
        lease = bench.lease()
        block_id = bench.block(lease)
        offset = HEADER
        wrong_block = Move(row.object_id, row.version, new_block_id(), offset, 400)
        assert row.extent is not None
        wrong_version = Move(row.object_id, row.version - 1, row.extent.block_id, offset, 400)
        from_landing = Move(row.object_id, row.version, None, offset, 400)
        for at, move in enumerate((wrong_block, wrong_version, from_landing)):
            placed = Move(move.object_id, move.version, move.from_block, at * SIZE + offset, 400)
            assert bench.metadata.commit_group(GroupCommit(lease, block_id, at, 1, [placed], 5, 4)) == frozenset()
        assert bench.get("n") == row
        assert bench.metadata.block(block_id).dead_bytes == 1200
        bench.check_counters()

    @pytest.mark.invariant(5)
    def test_landing_copies_and_packed_objects_in_one_group(self, bench: MetadataBench) -> None:
        landed, lost, packed = bench.put("landed", 400), bench.put("lost", 300), bench.packed("packed", 200)
        lease = bench.lease()
        block_id = bench.block(lease)
        commit = bench.group(lease, block_id, [landed, lost, packed])
        bench.delete("lost")
        queued = set(bench.deletions())
        assert bench.metadata.commit_group(commit) == {landed.object_id, packed.object_id}
        assert set(bench.deletions()) - queued == {landed.landing_id}
        block = bench.metadata.block(block_id)
        assert (block.live_bytes, block.dead_bytes, block.live_objects) == (600, 300, 2)
        bench.check_counters()

    def test_the_group_that_fills_a_block_seals_it(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id = bench.block(lease)
        full = GEOMETRY.stripes_per_block
        bench.metadata.commit_group(bench.group(lease, block_id, [bench.put("first")], stripes=full - 1))
        assert bench.metadata.block(block_id).state is BlockState.OPEN
        last = bench.group(lease, block_id, [bench.put("last")], at=full - 1)
        bench.metadata.commit_group(last)
        assert bench.metadata.block(block_id).state is BlockState.SEALED
        with pytest.raises(Conflict, match="sealed"):
            bench.metadata.commit_group(last)
        bench.metadata.seal_block(lease, block_id, bench.now_ms + 9)
        bench.metadata.release_lease(lease)
        block = bench.metadata.block(block_id)
        assert (block.state, block.stripes, block.live_objects) == (BlockState.SEALED, full, 2)
        bench.check_counters()

    def test_committing_again_is_a_conflict_and_changes_nothing(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id = bench.block(lease)
        commit = bench.group(lease, block_id, [bench.put("n")])
        bench.metadata.commit_group(commit)
        before = bench.metadata.block(block_id)
        with pytest.raises(Conflict, match="ends at stripe 1"):
            bench.metadata.commit_group(commit)
        assert bench.metadata.block(block_id) == before
        ahead = bench.group(lease, block_id, [bench.put("m")], at=3)
        with pytest.raises(Conflict, match="ends at stripe 1"):
            bench.metadata.commit_group(ahead)
        assert bench.get("m").state is ObjectState.LANDED

    @pytest.mark.parametrize("how", ["lease fenced", "lease released", "block fenced", "another epoch"])
    @pytest.mark.invariant(8)
    def test_a_fenced_writer_commits_nothing(self, bench: MetadataBench, how: str) -> None:
        row = bench.put("n")
        lease = bench.lease("w")
        block_id = bench.block(lease)
        commit = bench.group(lease, block_id, [row])
        if how == "lease fenced":
            assert bench.metadata.fence_lease(lease, lease.expires_ms)
        elif how == "block fenced":
            bench.metadata.fence_block(lease, block_id)
        else:
            bench.metadata.release_lease(lease)
        if how == "another epoch":
            commit = bench.group(bench.lease("w"), block_id, [row])
        with pytest.raises(LeaseLost):
            bench.metadata.commit_group(commit)
        assert bench.get("n") == row
        assert bench.metadata.block(block_id).stripes == 0

    def test_a_sealed_block_accepts_no_commit(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id = bench.block(lease)
        bench.metadata.seal_block(lease, block_id, 5)
        with pytest.raises(Conflict, match="sealed"):
            bench.metadata.commit_group(bench.group(lease, block_id, [bench.put("n")]))
        with pytest.raises(NotFound):
            bench.metadata.commit_group(bench.group(lease, new_block_id(), [bench.put("n")]))

    @pytest.mark.parametrize("move", [(HEADER, 0), (-1, 10), (SIZE - 5, 10), (SIZE * 2, 10), (HEADER, SIZE)], ids=str)
    def test_an_impossible_group_is_a_bug(self, bench: MetadataBench, move: tuple[int, int]) -> None:
        lease = bench.lease()
        block_id = bench.block(lease)
        with pytest.raises(ValueError, match="outside its group"):
            bench.metadata.commit_group(GroupCommit(lease, block_id, 0, 1, [Move(1, 1, None, *move)], 5, 4))
        with pytest.raises(ValueError, match="do not lie within a block"):
            bench.metadata.commit_group(GroupCommit(lease, block_id, 7, 2, [], 5, 4))

    @pytest.mark.invariant(3)
    def test_a_move_whose_size_differs_from_the_row_is_a_bug(self, bench: MetadataBench) -> None:
        row = bench.put("n", 100)
        lease = bench.lease()
        block_id = bench.block(lease)
        wrong = Move(row.object_id, row.version, None, HEADER, 99)
        with pytest.raises(ValueError, match="has 100 bytes"):
            bench.metadata.commit_group(GroupCommit(lease, block_id, 0, 1, [wrong], 5, 4))
        assert bench.metadata.block(block_id).stripes == 0

    def test_an_empty_group_counts_as_overhead(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id = bench.block(lease)
        assert bench.metadata.commit_group(bench.group(lease, block_id, [])) == frozenset()
        assert bench.metadata.block(block_id).overhead_bytes == SIZE


class LandingContract:
    """The deletion queue (invariant 2)."""

    def test_due_deletions_come_longest_due_first(self, bench: MetadataBench) -> None:
        ids = [new_landing_id() for _ in range(3)]
        for landing_id, not_before_ms in zip(ids, (30, 10, 20), strict=True):
            bench.metadata.reserve_landing([landing_id], not_before_ms)
        assert [one.landing_id for one in bench.metadata.due_deletions(30, 9)] == [ids[1], ids[2], ids[0]]
        assert [one.landing_id for one in bench.metadata.due_deletions(30, 1)] == [ids[1]]
        bench.metadata.postpone_deletion([ids[1]], 40)
        bench.metadata.postpone_deletion([], 40)
        assert [one.landing_id for one in bench.metadata.due_deletions(39, 9)] == [ids[2], ids[0]]
        for _ in range(2):
            bench.metadata.forget_landing([ids[2], ids[0]])
        assert list(bench.deletions()) == [ids[1]]

    def test_the_first_deletion_is_the_one_that_is_due_first(self, bench: MetadataBench) -> None:
        assert bench.metadata.first_deletion_ms() is None
        ids = [new_landing_id() for _ in range(3)]
        for landing_id, due_ms in zip(ids, (20, 10, 30), strict=True):
            bench.metadata.reserve_landing([landing_id], due_ms)
        assert bench.metadata.first_deletion_ms() == 10
        bench.metadata.postpone_deletion([ids[1]], 40)
        assert bench.metadata.first_deletion_ms() == 20
        bench.metadata.forget_landing(ids[:1])
        assert bench.metadata.first_deletion_ms() == 30

    def test_a_deletion_carries_the_row_only_if_the_version_matches(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        bench.pack([row])
        assert row.landing_id is not None
        assert bench.deletions()[row.landing_id].row == bench.get("n")
        bench.put("n")
        assert bench.deletions()[row.landing_id].row is None

    @pytest.mark.invariant(2)
    def test_a_copy_is_deleted_only_if_its_version_is_packed_where_it_was_verified(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        block_id = bench.pack([row])
        assert row.landing_id is not None
        for elsewhere in (None, new_block_id()):
            assert bench.metadata.doom_landing({row.landing_id: elsewhere}) == frozenset()
        assert not bench.deletions()[row.landing_id].doomed
        for _ in range(2):
            assert bench.metadata.doom_landing({row.landing_id: block_id}) == {row.landing_id}
        assert bench.deletions()[row.landing_id].doomed
        assert bench.metadata.doom_landing({row.landing_id: None}) == {row.landing_id}, "it already is"

    @pytest.mark.invariant(2)
    def test_a_copy_stays_if_gc_moved_its_object_after_the_verification(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        first = bench.pack([row])
        second = bench.pack([bench.get("n")])
        assert row.landing_id is not None
        assert bench.metadata.doom_landing({row.landing_id: first}) == frozenset()
        assert bench.metadata.doom_landing({row.landing_id: second}) == {row.landing_id}

    @pytest.mark.invariant(2)
    def test_an_unneeded_copy_is_deleted(self, bench: MetadataBench) -> None:
        reserved = new_landing_id()
        bench.metadata.reserve_landing([reserved], 5)
        deleted, overwritten = bench.put("d"), bench.put("o")
        bench.delete("d")
        bench.put("o")
        assert deleted.landing_id is not None
        assert overwritten.landing_id is not None
        ids = {reserved, deleted.landing_id, overwritten.landing_id}
        assert bench.metadata.doom_landing({**dict.fromkeys(ids), new_landing_id(): None}) == ids
        assert bench.metadata.doom_landing({}) == frozenset()

    @pytest.mark.invariant(2)
    def test_a_copy_that_a_row_needs_is_never_deleted(self, bench: MetadataBench) -> None:
        row = bench.put("n")
        assert row.landing_id is not None
        bench.metadata.reserve_landing([row.landing_id], 5)
        assert bench.metadata.doom_landing({row.landing_id: None}) == frozenset()

    def test_reverting_to_the_landing_copy(self, bench: MetadataBench) -> None:
        row = bench.put("n", 600)
        block_id = bench.pack([row])
        (deletion,) = bench.deletions().values()
        bench.now_ms += 10
        assert bench.metadata.revert_to_landing(deletion, bench.now_ms)
        assert bench.get("n") == row
        assert bench.metadata.due_objects(bench.now_ms, 9, ALL_SLOTS) == [row]
        assert bench.metadata.due_objects(bench.now_ms - 1, 9, ALL_SLOTS) == []
        assert bench.deletions() == {}
        block = bench.metadata.block(block_id)
        assert (block.live_bytes, block.dead_bytes, block.live_objects) == (0, 600, 0)
        assert not bench.metadata.revert_to_landing(deletion, bench.now_ms)
        assert bench.get("n") == row
        bench.pack([row])
        bench.check_counters()

    @pytest.mark.parametrize("how", ["doomed", "moved", "overwritten", "deleted"])
    def test_reverting_is_refused_when_the_row_has_changed(self, bench: MetadataBench, how: str) -> None:
        row = bench.put("n")
        block_id = bench.pack([row])
        (deletion,) = bench.deletions().values()
        if how == "doomed":
            bench.metadata.doom_landing({deletion.landing_id: block_id})
        elif how == "moved":
            bench.pack([bench.get("n")])
        elif how == "overwritten":
            bench.put("n")
        else:
            bench.delete("n")
        assert not bench.metadata.revert_to_landing(deletion, bench.now_ms)
        assert deletion.landing_id in bench.deletions()
        bench.check_counters()

    def test_the_queued_copy_of_a_packed_object(self, bench: MetadataBench) -> None:
        landed, other = bench.put("n"), bench.put("other")
        assert landed.landing_id is not None
        lowest, highest = LandingId(bytes(16)), LandingId(b"\xff" * 16)
        assert bench.metadata.queued_copy(landed, lowest, highest) is None, "it is the object's only copy"
        block_id = bench.pack([landed, other])
        packed = bench.get("n")
        for first, last in ((lowest, highest), (landed.landing_id, landed.landing_id)):
            assert bench.metadata.queued_copy(packed, first, last) == landed.landing_id
        below, above = (
            LandingId((int.from_bytes(landed.landing_id, "big") + step).to_bytes(16, "big")) for step in (-1, 1)
        )
        assert bench.metadata.queued_copy(packed, above, highest) is None
        assert bench.metadata.queued_copy(packed, lowest, below) is None
        assert bench.metadata.queued_copy(replace(packed, version=packed.version + 1), lowest, highest) is None
        bench.metadata.doom_landing({landed.landing_id: block_id})
        assert bench.metadata.queued_copy(packed, lowest, highest) is None, "it may be deleted already"

    def test_known_and_needed_copies(self, bench: MetadataBench) -> None:
        reserved, stranger = new_landing_id(), new_landing_id()
        bench.metadata.reserve_landing([reserved], 5)
        landed, packed = bench.put("n"), bench.put("p")
        bench.pack([packed])
        assert landed.landing_id is not None
        assert packed.landing_id is not None
        known = {reserved, landed.landing_id, packed.landing_id}
        assert bench.metadata.landing_known([*known, stranger]) == known
        assert bench.metadata.landing_needed([*known, stranger]) == known
        assert bench.metadata.landing_known([]) == bench.metadata.landing_needed([]) == frozenset()
        assert bench.metadata.doom_landing({reserved: None}) == {reserved}
        assert bench.metadata.landing_known([*known, stranger]) == known
        assert bench.metadata.landing_needed([*known, stranger]) == known - {reserved}


class FiguresContract:
    """totals."""

    def test_totals(self, bench: MetadataBench) -> None:
        assert bench.metadata.totals().blocks == {}
        lease = bench.lease()
        bench.put("l", 10)
        queued = bench.put("q", 20)
        bench.metadata.mark_published([queued], 5)
        bench.put("e", 0)
        bench.pack([bench.put("p", 30), bench.put("d", 40)])
        bench.delete("d")
        bench.metadata.record_large(bench.large("big", lease), lease, 5)
        totals = bench.metadata.totals()
        assert totals.blocks == {(BlockKind.FRESH, BlockState.SEALED): 1, (BlockKind.LARGE, BlockState.SEALED): 2}
        assert (totals.stripes, totals.live_bytes, totals.dead_bytes) == (3, 40_030, 40)
        assert totals.overhead_bytes == 3 * SIZE - 40_070
        assert (totals.landed_objects, totals.landed_bytes) == (1, 10)
        assert (totals.queued_objects, totals.queued_bytes) == (1, 20)
        assert (totals.packed_objects, totals.landing_deletions, totals.leases) == (1, 2, 2)
        assert (totals.large_objects, totals.large_bytes) == (1, 40_000), "one, though it has two blocks"
        bench.metadata.record_large(bench.large("big", lease), lease, 6)
        assert bench.metadata.totals().large_objects == 1
        bench.delete("big")
        totals = bench.metadata.totals()
        assert (totals.large_objects, totals.large_bytes, totals.live_bytes) == (0, 0, 30)
        bench.lease(LEASE_PREFIX + "slots-00")
        assert bench.metadata.totals().leases == 2, "a producer is not a writer"
        assert bench.metadata.totals() == counted_totals(bench.metadata)

    def test_totals_are_stored_by_compare_and_set(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        bench.pack([bench.put("p", 30)])
        first = StoredTotals(metadata.totals(), at_ms=5, cost_ms=6, next_ms=7)
        second = replace(first, totals=replace(first.totals, blocks={}, live_bytes=2**60), next_ms=8)
        assert metadata.stored_totals() is None
        assert not metadata.store_totals(second, first), "nothing was stored"
        assert not metadata.store_totals(None, first)
        assert metadata.store_totals(first, None)
        assert metadata.stored_totals() == first
        assert not metadata.store_totals(second, None), "something was stored"
        assert not metadata.store_totals(second, second)
        assert metadata.store_totals(second, first)
        assert not metadata.store_totals(second, first)
        assert metadata.stored_totals() == second
        assert not metadata.store_totals(None, first)
        assert not metadata.store_totals(None, None)
        assert metadata.store_totals(None, second)
        assert metadata.stored_totals() is None


class MetadataContract(
    MetadataSuite,
    IdentityContract,
    PutContract,
    AttributeContract,
    LargeContract,
    ConditionContract,
    LookUpContract,
    EntriesContract,
    TrashContract,
    BucketContract,
    DirectoryContract,
    MovesContract,
    AccessKeyContract,
    UploadContract,
    TailContract,
    VersionContract,
    LockContract,
    OutboxContract,
    UsageContract,
    JournalContract,
    ExpiredVersionContract,
    ProducerContract,
    LeaseContract,
    CommitContract,
    BlockContract,
    LandingContract,
    LandingSegmentContract,
    InspectionContract,
    RepairContract,
    ExplanationContract,
    ScrubbingContract,
    NotesContract,
    SurvivalContract,
    RebuildContract,
    FiguresContract,
):
    """The whole contract."""
