"""The contract of `Directory`."""

from __future__ import annotations

import threading

import pytest

from nos_ec.ports.metadata import BucketRow, DirectoryRow
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.waiting import WAIT_S_MAX


@pytest.mark.invariant(12)
class DirectoryContract:
    """All of `Directory`."""

    def test_the_home_of_a_bucket_is_claimed_once(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.directory_row("photos") is None
        claimed = DirectoryRow("photos", "a", "ann", 5, is_deleted=True)
        assert metadata.claim_home("photos", "ann", "a", 5) == claimed
        assert metadata.claim_home("photos", "bob", "b", 6) == claimed
        assert metadata.directory_row("photos") == claimed
        assert metadata.buckets_in_directory("ann", "", 10) == [], "its home does not have it yet"
        row = DirectoryRow("photos", "a", "bob", 7)
        assert metadata.record_in_directory(row) == row
        assert metadata.claim_home("photos", "cid", "c", 8) == row
        assert metadata.buckets_in_directory("bob", "", 10) == [BucketRow("photos", "bob", 7)]

    def test_a_deleted_bucket_keeps_its_home(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.record_in_directory(DirectoryRow("photos", "a", "ann", 5))
        gone = DirectoryRow("photos", "a", "ann", 5, is_deleted=True)
        assert metadata.record_in_directory(gone) == gone
        assert metadata.directory_row("photos") == gone
        assert metadata.buckets_in_directory("ann", "", 10) == []
        assert metadata.claim_home("photos", "bob", "b", 6) == gone
        again = DirectoryRow("photos", "a", "bob", 6)
        assert metadata.record_in_directory(again) == again
        assert metadata.buckets_in_directory("bob", "", 10) == [BucketRow("photos", "bob", 6)]

    def test_a_bucket_that_is_recorded_from_another_cell_stays(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        known = metadata.record_in_directory(DirectoryRow("b", "one", "ann", 5))
        rows = [DirectoryRow(name, "two", "bob", 7) for name in ("c", "b", "a")]
        assert [metadata.record_in_directory(row) for row in rows] == [rows[0], known, rows[2]]
        assert metadata.directory_row("b") == known
        assert metadata.directory_row("c") == rows[0]
        changed = DirectoryRow("c", "two", "cid", 7)
        assert metadata.record_in_directory(changed) == changed
        assert metadata.directory_row("c") == changed

    def test_the_slices_of_a_wide_bucket_stay(self, bench: MetadataBench) -> None:
        metadata, slices = bench.metadata, ("a", "b", "b", "c")
        claimed = DirectoryRow("wide", "a", "ann", 5, is_deleted=True, slices=slices)
        assert metadata.claim_home("wide", "ann", "a", 5, slices) == claimed
        assert metadata.claim_home("wide", "bob", "b", 6) == claimed
        wide = metadata.record_in_directory(DirectoryRow("wide", "a", "ann", 5, slices=slices))
        assert wide == DirectoryRow("wide", "a", "ann", 5, slices=slices)
        assert metadata.claim_home("wide", "bob", "b", 6) == wide
        assert metadata.claim_home("wide", "bob", "b", 6, ("b", "c")) == wide
        assert metadata.directory_row("wide") == wide
        assert metadata.directory_page("", 10) == [wide]
        gone = DirectoryRow("wide", "a", "ann", 5, is_deleted=True, slices=slices)
        assert metadata.record_in_directory(DirectoryRow("wide", "a", "ann", 5, is_deleted=True)) == gone
        assert metadata.record_in_directory(DirectoryRow("wide", "b", "bob", 7)) == gone
        assert metadata.claim_home("wide", "bob", "c", 8) == gone
        again = DirectoryRow("wide", "a", "bob", 8, slices=slices)
        assert metadata.record_in_directory(DirectoryRow("wide", "a", "bob", 8)) == again
        assert metadata.directory_row("wide") == again

    def test_a_slice_that_was_entered_first_is_no_other_home(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.record_in_directory(DirectoryRow("wide", "b", "root", 0))
        whole = DirectoryRow("wide", "a", "ann", 5, slices=("a", "b"))
        assert metadata.record_in_directory(whole) == whole
        assert metadata.directory_row("wide") == whole
        elsewhere = DirectoryRow("plain", "c", "root", 0)
        metadata.record_in_directory(elsewhere)
        assert metadata.record_in_directory(DirectoryRow("plain", "a", "ann", 5, slices=("a", "b"))) == elsewhere
        assert metadata.directory_row("plain") == elsewhere

    def test_buckets_are_listed_in_pages_by_owner(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        names = ["a", "b.c", "b-c", "B", "ä", "z" * 255]
        for name in names:
            metadata.record_in_directory(DirectoryRow(name, "one", "ann", 1))
            metadata.record_in_directory(DirectoryRow(f"x{name}"[:255], "two", "bob", 1))
        found: list[str] = []
        while page := metadata.buckets_in_directory("ann", found[-1] if found else "", 2):
            assert len(page) <= 2
            found += [row.name for row in page]
        assert found == sorted(names, key=str.encode)
        everything = metadata.directory_page("", 100)
        assert [row.bucket for row in everything] == sorted(
            {*names, *(f"x{name}"[:255] for name in names)}, key=str.encode
        )
        gone = DirectoryRow("a", "one", "ann", 1, is_deleted=True)
        metadata.record_in_directory(gone)
        assert metadata.directory_page("", 2) == [DirectoryRow("B", "one", "ann", 1), gone]
        assert [row.bucket for row in metadata.directory_page("a", 1)] == ["b-c"]

    def test_of_two_claims_at_once_one_decides(self, bench: MetadataBench) -> None:
        for number in range(5):
            homes: list[str] = []
            barrier = threading.Barrier(4)

            def claim(
                cell: str,
                name: str = f"bucket-{number}",
                homes: list[str] = homes,
                barrier: threading.Barrier = barrier,
            ) -> None:
                barrier.wait(WAIT_S_MAX)
                homes.append(bench.metadata.claim_home(name, "ann", cell, 1).home)

            threads = [threading.Thread(target=claim, args=(cell,)) for cell in "abcd"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(homes) == 4
            assert len(set(homes)) == 1
