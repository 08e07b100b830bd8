"""Races on a metadata store between two threads. Only outcomes that some order of the two can explain are allowed.

Derive from `MetadataRaces` and define a fixture `metadata`, as for the contract. A race has no fixed winner, so each is
run several times; the assertions hold whichever thread wins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.errors import Conflict, LeaseLost, NotFound, PreconditionFailed, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.ports.metadata import (
    ROOT_ACCOUNT,
    BucketRow,
    CannedAcl,
    ExpireMarker,
    ExpireVersion,
    ObjectRow,
    Rights,
    StoredTotals,
    VersionDeletion,
)
from tests.contract.suites import metadata_version_contract as versions
from tests.contract.suites.metadata_contract import MetadataSuite
from tests.contract.suites.metadata_tail_contract import tail_of
from tests.rig.fakes.metadata_bench import MetadataBench, asking

ROUNDS = 12
WRITERS = 64
JOIN_S = 300
"""Long enough for some 400 transactions that each wait for a struggling disk. A thread that takes longer hangs."""


def race(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls at once, each in its own thread. Returns their results, or the exceptions that ended them."""
    gate = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        gate.wait(JOIN_S)
        try:
            results[i] = calls[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "a call hangs"
    return results


class MetadataRaces(MetadataSuite):
    """Races between two threads, and many threads at once."""

    def test_of_several_that_store_a_note_one_succeeds(self, bench: MetadataBench) -> None:
        stored = None
        for turn in range(5):
            won = race(*(partial(bench.metadata.store_note, "n", f"{turn} {i}", stored) for i in range(3)))
            assert sorted(won) == [False, False, True]
            stored = f"{turn} {won.index(True)}"
            assert bench.metadata.note("n") == stored

    def test_of_several_that_store_totals_one_succeeds(self, bench: MetadataBench) -> None:
        totals, stored = bench.metadata.totals(), None
        for i in range(ROUNDS):
            new = [StoredTotals(totals, at_ms=i, cost_ms=number, next_ms=0) for number in range(3)]
            won = race(*(partial(bench.metadata.store_totals, one, stored) for one in new))
            assert sorted(won) == [False, False, True]
            stored = bench.metadata.stored_totals()
            assert stored == new[won.index(True)]

    def test_of_several_that_create_a_bucket_one_succeeds(self, bench: MetadataBench) -> None:
        metadata, owners = bench.metadata, [f"owner{number}" for number in range(4)]
        for again in (False, True):
            for i in range(ROUNDS):
                calls = [partial(metadata.create_bucket, f"b{i}", one, CannedAcl.PRIVATE, 5) for one in owners]
                won = race(*calls)
                assert sorted(won) == [False, False, False, True], again
                row = metadata.bucket(f"b{i}")
                assert row is not None
                assert row.owner == owners[won.index(True)]
                assert metadata.delete_bucket(f"b{i}", 6)

    def test_create_against_delete_of_a_bucket(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for i in range(ROUNDS):
            metadata.create_bucket(f"b{i}", "ann", CannedAcl.PRIVATE, 5)
            deleted, made = race(
                partial(metadata.delete_bucket, f"b{i}", 6),
                partial(metadata.create_bucket, f"b{i}", "bob", CannedAcl.PRIVATE, 7),
            )
            assert deleted is True
            row = metadata.bucket(f"b{i}")
            assert row == (BucketRow(f"b{i}", "bob", 7) if made else None)

    def test_put_against_delete_of_a_bucket(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for i in range(ROUNDS):
            metadata.create_bucket(f"b{i}", "ann", CannedAcl.PRIVATE, 5)
            new = bench.new("n", bucket=f"b{i}")
            deleted, _ = race(partial(metadata.delete_bucket, f"b{i}", 6), partial(bench.record, [new]))
            assert deleted is True or isinstance(deleted, Conflict)
            assert metadata.bucket(f"b{i}") == BucketRow(f"b{i}", "ann", 5), "it holds an object, and has its owner"

    def test_changes_of_a_bucket_that_has_no_row(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for i in range(ROUNDS):
            bench.put("n", bucket=f"b{i}")
            done = race(
                partial(metadata.grant, f"b{i}", "ann", Rights.READ, 5),
                partial(metadata.grant, f"b{i}", "bob", Rights.LIST, 5),
                partial(metadata.set_bucket_acl, f"b{i}", CannedAcl.PUBLIC_READ, 5),
            )
            assert done == [True, True, True]
            assert metadata.grants(f"b{i}") == {"ann": Rights.READ, "bob": Rights.LIST}
            assert metadata.bucket(f"b{i}") == BucketRow(f"b{i}", ROOT_ACCOUNT, 5, CannedAcl.PUBLIC_READ)

    @pytest.mark.parametrize("source", ["landing", "block"])
    @pytest.mark.invariant(5, 6)
    def test_delete_against_commit(self, bench: MetadataBench, source: str) -> None:
        lease = bench.lease()
        for i in range(ROUNDS):
            row = bench.put(f"n{i}") if source == "landing" else bench.packed(f"n{i}")
            block_id = bench.block(lease)
            commit = bench.group(lease, block_id, [row])
            won, deleted = race(partial(bench.metadata.commit_group, commit), partial(bench.delete, row.key.name))
            assert won in (frozenset(), {row.object_id})
            assert deleted.state is (ObjectState.PACKED if won or source == "block" else ObjectState.LANDED)
            block = bench.metadata.block(block_id)
            assert (block.live_bytes, block.dead_bytes) == (0, row.size)
            with pytest.raises(NotFound):
                bench.get(row.key.name)
        assert len(bench.deletions()) == ROUNDS, "each landing copy is queued once, whichever thread won"
        bench.check_counters()

    def test_undelete_against_put(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            old = bench.put(f"n{i}")
            bench.delete_into_trash(f"n{i}", 1000)
            back, new = race(partial(bench.metadata.undelete, [old]), partial(bench.put, f"n{i}"))
            if back.rows == [old]:
                assert (new.object_id, new.version > old.version) == (old.object_id, True), "then it is overwritten"
            else:
                assert (back.rows, new.object_id != old.object_id) == ([], True)
            assert bench.get(f"n{i}") == new
        bench.check_counters()

    @pytest.mark.invariant(5, 6)
    def test_deleting_many_against_commit_and_delete(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for i in range(ROUNDS):
            rows = bench.put_all([f"n{i}-{j}" for j in range(50)], 10)
            block_id = bench.block(lease)
            commit = bench.group(lease, block_id, rows)
            keys = [row.key for row in reversed(rows)]
            won, *deleted = race(
                partial(bench.metadata.commit_group, commit),
                partial(bench.metadata.delete_many, keys, bench.now_ms),
                partial(bench.metadata.delete_many, keys[::2], bench.now_ms),
            )
            assert won <= {row.object_id for row in rows}
            assert sorted(row.key for part in deleted for row in part) == sorted(keys), "each is deleted once"
            block = bench.metadata.block(block_id)
            assert (block.live_bytes, block.dead_bytes) == (0, 500)
        assert len(bench.deletions()) == 50 * ROUNDS, "each landing copy is queued once, whichever thread won"
        bench.check_counters()

    @pytest.mark.invariant(5, 6)
    def test_overwrite_against_commit(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for i in range(ROUNDS):
            row = bench.put(f"n{i}")
            commit = bench.group(lease, bench.block(lease), [row])
            new = bench.new(f"n{i}", 77)
            won, recorded = race(
                partial(bench.metadata.commit_group, commit),
                partial(bench.metadata.record_puts, [new], bench.now_ms),
            )
            assert won in (frozenset(), {row.object_id})
            assert bench.get(f"n{i}") == recorded[0]
            assert (recorded[0].state, recorded[0].size) == (ObjectState.LANDED, 77)
            assert row.landing_id in bench.deletions()
        bench.check_counters()

    @pytest.mark.invariant(8)
    def test_only_one_of_several_processes_gets_a_lease(self, bench: MetadataBench) -> None:
        wanted = [["a", "b", "c"], ["c", "b", "d"], ["d", "a", "c"]]
        for _ in range(ROUNDS):
            taken = race(*(partial(bench.metadata.acquire_leases, names, bench.now_ms, 50) for names in wanted))
            leases = [lease for mine in taken for lease in mine]
            assert sorted(lease.name for lease in leases) == ["a", "b", "c", "d"]
            assert len({lease.epoch for lease in leases}) == 4
            race(*(partial(bench.metadata.release_leases, mine) for mine in taken))
            assert bench.metadata.list_leases("") == []

    @pytest.mark.invariant(8)
    def test_renewing_against_fencing(self, bench: MetadataBench) -> None:
        for _ in range(ROUNDS):
            held = bench.metadata.acquire_leases(["a", "b"], 100, 50)
            renewed, fenced = race(
                partial(bench.metadata.renew_leases, held, 160, 50),
                partial(bench.metadata.fence_lease, held[0], 155),
            )
            assert [lease.name for lease in renewed] == (["b"] if fenced else ["a", "b"])
            assert bench.metadata.list_leases("") == renewed
            bench.metadata.release_leases(renewed)

    @pytest.mark.invariant(8)
    def test_fence_against_commit(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            row = bench.put(f"n{i}")
            lease = bench.lease()
            block_id = bench.block(lease)
            commit = bench.group(lease, block_id, [row])
            won, fenced = race(
                partial(bench.metadata.commit_group, commit),
                partial(bench.metadata.fence_lease, lease, lease.expires_ms),
            )
            block = bench.metadata.block(block_id)
            assert fenced is True
            assert block.state is BlockState.FENCED
            if isinstance(won, LeaseLost):
                assert (block.stripes, bench.get(f"n{i}")) == (0, row)
            else:
                assert won == {row.object_id}
                assert (block.stripes, bench.get(f"n{i}").state) == (1, ObjectState.PACKED)
        bench.check_counters()

    @pytest.mark.invariant(4)
    def test_fence_against_a_tail(self, bench: MetadataBench) -> None:
        """A tail is there before its block is fenced, or never: so GC, which condemns the block later, finds it."""
        for _ in range(ROUNDS):
            lease = bench.lease()
            block_id = bench.block(lease, BlockKind.LARGE)
            tail = tail_of(bench, block_id)
            answer, fenced = race(
                partial(bench.metadata.record_puts, [tail], bench.now_ms),
                partial(bench.metadata.fence_lease, lease, lease.expires_ms),
            )
            assert fenced is True
            assert bench.metadata.block(block_id).state is BlockState.FENCED
            assert isinstance(answer[0], ObjectRow | Conflict)
            found = bench.metadata.rows_of([tail.key])
            assert found == ({tail.key: answer[0]} if isinstance(answer[0], ObjectRow) else {})
        bench.check_counters()

    @pytest.mark.invariant(2)
    def test_doom_against_record_puts(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            new = bench.new(f"n{i}")
            landing_id = new.landing_id
            assert landing_id is not None
            recorded, doomed = race(
                partial(bench.metadata.record_puts, [new], bench.now_ms),
                partial(bench.metadata.doom_landing, {landing_id: None}),
            )
            if doomed:
                assert isinstance(recorded[0], Transient)
                with pytest.raises(NotFound):
                    bench.get(f"n{i}")
            else:
                assert recorded == [bench.get(f"n{i}")]
                assert landing_id not in bench.deletions()

    @pytest.mark.invariant(2)
    def test_doom_against_revert(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            row = bench.put(f"n{i}")
            block_id = bench.pack([row])
            assert row.landing_id is not None
            deletion = bench.deletions()[row.landing_id]
            reverted, doomed = race(
                partial(bench.metadata.revert_to_landing, deletion, bench.now_ms),
                partial(bench.metadata.doom_landing, {row.landing_id: block_id}),
            )
            assert reverted is not bool(doomed), "exactly one of them happened"
            assert bench.get(f"n{i}").state is (ObjectState.LANDED if reverted else ObjectState.PACKED)
        bench.check_counters()

    @pytest.mark.invariant(5)
    def test_two_commits_of_one_object(self, bench: MetadataBench) -> None:
        leases = [bench.lease(), bench.lease()]
        for i in range(ROUNDS):
            row = bench.put(f"n{i}")
            commits = [bench.group(lease, bench.block(lease), [row]) for lease in leases]
            won = race(*(partial(bench.metadata.commit_group, commit) for commit in commits))
            assert sorted(won, key=len) == [frozenset(), {row.object_id}]
        bench.check_counters()

    def test_one_group_committed_twice(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for i in range(ROUNDS):
            row = bench.put(f"n{i}")
            commit = bench.group(lease, bench.block(lease), [row])
            outcomes = race(*[partial(bench.metadata.commit_group, commit)] * 2)
            assert sum(outcome == {row.object_id} for outcome in outcomes) == 1
            assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1
        bench.check_counters()

    def test_two_puts_of_a_new_key(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            new = [bench.new(f"n{i}", 10), bench.new(f"n{i}", 20)]
            recorded = race(*(partial(bench.metadata.record_puts, [one], bench.now_ms) for one in new))
            rows = [row for (row,) in recorded]
            assert sorted(row.version for row in rows) == [bench.now_ms * 1000, bench.now_ms * 1000 + 2]
            assert bench.get(f"n{i}") == max(rows, key=lambda row: row.version)

    def test_of_many_puts_of_an_absent_object_one_succeeds(self, bench: MetadataBench) -> None:
        for name in ("n", "m"):
            new = [asking(bench.new(name, 10 + i), condition=ABSENT) for i in range(WRITERS)]
            answers = race(*(partial(bench.metadata.record_puts, [one], bench.now_ms) for one in new))
            assert all(isinstance(answer, list) for answer in answers), answers
            rows = [row for (row,) in answers if isinstance(row, ObjectRow)]
            assert rows == [bench.get(name)]
            refused = [row for (row,) in answers if not isinstance(row, ObjectRow)]
            assert {type(error) for error in refused} == {PreconditionFailed}
        assert len(bench.deletions()) == 2 * (WRITERS - 1), "the copies of the others stay reserved"
        bench.check_counters()

    def test_of_large_and_small_puts_of_an_absent_object_one_succeeds(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for i in range(ROUNDS):
            large = [bench.large(f"n{i}", lease, condition=ABSENT) for _ in range(3)]
            small = [asking(bench.new(f"n{i}", size), condition=ABSENT) for size in (0, 10, 20)]
            outcomes = race(
                *(partial(bench.metadata.record_large, one, lease, bench.now_ms) for one in large),
                *(partial(bench.metadata.record_puts, [one], bench.now_ms) for one in small),
            )
            rows = [row for (row,) in outcomes[3:] if isinstance(row, ObjectRow)]
            assert outcomes[:3].count(True) + len(rows) == 1, outcomes
            assert bench.get(f"n{i}").size == (rows[0].size if rows else large[0].size)
        bench.check_counters()

    def test_of_many_puts_over_one_version_one_succeeds(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for i in range(ROUNDS):
            bench.now_ms += 1
            held = Condition(bench.put(f"n{i}").md5)
            new = [asking(replace(bench.new(f"n{i}"), md5=bytes([j]) * 16), condition=held) for j in range(6)]
            large = bench.large(f"n{i}", lease, condition=held)
            stored, *answers = race(
                partial(bench.metadata.record_large, large, lease, bench.now_ms),
                *(partial(bench.metadata.record_puts, [one], bench.now_ms) for one in new),
            )
            rows = [row for (row,) in answers if isinstance(row, ObjectRow)]
            assert [stored is True, len(rows)] in ([True, 0], [False, 1])
            assert bench.get(f"n{i}").version == (large.version if stored is True else rows[0].version)
        bench.check_counters()

    def test_two_writers_of_one_name(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            outcomes = race(*[partial(bench.lease, f"w{i}")] * 2)
            assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1

    def test_two_claims_of_the_store_id(self, bench: MetadataBench) -> None:
        claimed = race(*(partial(bench.metadata.claim_store_id, store_id) for store_id in ("one", "other")))
        assert claimed == [bench.metadata.find_store_id()] * 2

    @pytest.mark.invariant(6)
    def test_the_counters_balance_under_many_threads(self, bench: MetadataBench) -> None:
        names = [f"n{i}" for i in range(8)]

        def work(seed: int) -> None:
            lease = bench.lease(f"busy-{seed}")
            for turn in range(6):
                rows = [bench.put(name, 100 + seed) for name in names[seed % 2 :: 2]]
                bench.metadata.commit_group(bench.group(lease, bench.block(lease), rows))
                current = [row for row in bench.metadata.list_objects("bucket", "", "", 99) if row.state.in_landing]
                bench.metadata.commit_group(bench.group(lease, bench.block(lease), current))
                packed = [row for row in bench.metadata.list_objects("bucket", "", "", 99) if row.extent]
                bench.metadata.commit_group(bench.group(lease, bench.block(lease), packed))
                try:
                    bench.metadata.delete(ObjectKey("bucket", names[(seed + turn) % len(names)]), bench.now_ms)
                except NotFound:
                    continue

        outcomes = race(*(partial(work, seed) for seed in range(4)))
        assert outcomes == [None] * 4
        bench.check_counters()

    def test_writers_of_one_key_make_as_many_versions(self, bench: MetadataBench) -> None:
        made = race(*(partial(versions.put, bench, versions.ENABLED) for _ in range(WRITERS)))
        found = [number for number, _, _ in versions.numbers(bench.metadata)]
        assert sorted(row.version for row in made) == sorted(found)
        assert len(set(found)) == WRITERS
        assert bench.get("k").version == found[0] == max(found)
        bench.check_counters()

    def test_puts_and_markers_of_one_key(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            name = f"n{i}"
            calls = [partial(versions.put, bench, versions.ENABLED, name) for _ in range(4)]
            made = race(*calls, *(partial(versions.mark, bench, versions.ENABLED, name) for _ in range(4)))
            found = versions.numbers(bench.metadata, name)
            assert sorted(one.version for one in made) == sorted(number for number, _, _ in found)
            assert found == sorted(found, reverse=True), "as numbered, whichever came first"
            (latest,) = (one for one in found if one[2])
            assert latest == found[0]
            names = bench.metadata.list_names("bucket", name, "", 9)
            assert names.count(name) == (0 if latest[1] else 1), "a marker hides the object"
        bench.check_counters()

    def test_what_is_current_is_removed_beside_a_put(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for i in range(ROUNDS):
            name = f"n{i}"
            rows = [versions.put(bench, versions.ENABLED, name) for _ in range(3)]
            last = versions.mark(bench, versions.ENABLED, name).version if i % 2 else rows[2].version
            calls = [partial(versions.remove, bench, one, name) for one in (last, rows[1].version)]
            *_, new = race(*calls, partial(versions.put, bench, versions.ENABLED, name))
            found = versions.numbers(metadata, name)
            left = {rows[0].version, new.version} | ({rows[2].version} if i % 2 else set())
            assert {number for number, _, _ in found} == left
            assert bench.get(name).version == new.version
            assert found[0] == (new.version, False, True)
        bench.check_counters()

    def test_markers_are_removed_at_once(self, bench: MetadataBench) -> None:
        for i in range(ROUNDS):
            name = f"n{i}"
            row = versions.put(bench, versions.ENABLED, name)
            markers = [versions.mark(bench, versions.ENABLED, name).version for _ in range(2)]
            race(*(partial(versions.remove, bench, one, name) for one in markers))
            assert bench.get(name) == row

    def test_a_version_expires_beside_the_delete_that_makes_it_current(self, bench: MetadataBench) -> None:
        """Whichever comes first: it is never removed while it is current."""
        metadata = bench.metadata
        for i in range(ROUNDS):
            name = f"n{i}"
            row = versions.put(bench, versions.ENABLED, name)
            newer: Callable[..., Any] = versions.mark if i % 2 else versions.put
            last = newer(bench, versions.ENABLED, name).version
            key = ObjectKey("bucket", name)
            asked = [ExpireVersion(key, row.version, row, bench.now_ms)]
            (gone,), _ = race(
                partial(metadata.delete_versions, asked, bench.now_ms),
                partial(versions.remove, bench, last, name),
            )
            found = versions.numbers(metadata, name)
            assert found == ([] if gone is not None else [(row.version, False, True)])
            if gone is None:
                assert bench.get(name) == row
        bench.check_counters()

    def test_markers_and_versions_expire_beside_puts_and_deletes(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for i in range(ROUNDS):
            name = f"n{i}"
            key = ObjectKey("bucket", name)
            row = versions.put(bench, versions.ENABLED, name)
            marker = versions.mark(bench, versions.ENABLED, name)
            lone = versions.mark(bench, versions.ENABLED, f"lone {i}")
            expiry: list[VersionDeletion] = [
                ExpireVersion(key, row.version, row, bench.now_ms),
                ExpireMarker(key, marker.version),
                ExpireMarker(lone.key, lone.version),
            ]
            calls: list[Callable[[], Any]] = [
                partial(metadata.delete_versions, expiry, bench.now_ms),
                partial(versions.put, bench, versions.ENABLED, name),
                partial(versions.mark, bench, versions.ENABLED, name),
                partial(versions.put, bench, versions.SUSPENDED, f"lone {i}"),
            ]
            gone, new, marked, null = race(*calls)
            assert gone[0] is not None, "a version with newer ones"
            left = {new.version, marked.version} | ({marker.version} if gone[1] is None else set())
            assert {number for number, _, _ in versions.numbers(metadata, name)} == left
            assert bench.get(f"lone {i}").version == null.version
            assert len(versions.numbers(metadata, f"lone {i}")) == (1 if gone[2] is not None else 2)
        bench.check_counters()
