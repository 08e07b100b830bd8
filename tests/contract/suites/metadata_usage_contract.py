"""Contract of the usage of buckets: the sums of a metered bucket follow each change of its rows."""

from __future__ import annotations

from threading import Thread

from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import PARTS_BUCKET
from nos_ec.core.quotas.quota import Quota, account_record, encode
from nos_ec.core.tails import TAILS_BUCKET
from nos_ec.core.versions import as_version
from nos_ec.engine.figures.bucket_count import BucketCount, count_bucket
from nos_ec.ports.metadata import (
    AccessKey,
    AddMarker,
    CannedAcl,
    DeleteVersion,
    DocumentKind,
    KeyState,
    Metadata,
    QuotaFacts,
    Sums,
)
from tests.contract.suites.metadata_version_contract import ENABLED
from tests.rig.fakes.metadata_bench import MetadataBench, asking

BUCKET = "bucket"


def meter(bench: MetadataBench, bucket: str = BUCKET) -> None:
    """Meter an empty bucket."""
    bench.metadata.count_usage()
    assert bench.metadata.meter_bucket(bucket, bench.now_ms)


def held(metadata: Metadata, bucket: str = BUCKET) -> Sums:
    """What the bucket holds, which must be what its rows say."""
    found = metadata.bucket_usage(bucket)
    assert found is not None
    assert found.held == count_bucket(metadata, bucket).sums
    return found.held


class UsageContract:
    """`Usage`, and the changes that all others add."""

    def test_a_bucket_that_is_not_metered_has_no_usage(self, bench: MetadataBench) -> None:
        meter(bench, "other")
        bench.put("k")
        assert bench.metadata.bucket_usage(BUCKET) is None
        assert bench.metadata.fold_usage(100) == 0
        assert bench.metadata.account_usage("root") == Sums()

    def test_a_store_that_does_not_count_adds_nothing(self, bench: MetadataBench) -> None:
        assert bench.metadata.meter_bucket(BUCKET, bench.now_ms)
        bench.put("k")
        assert bench.metadata.fold_usage(100) == 0

    def test_puts_overwrites_and_deletes_count(self, bench: MetadataBench) -> None:
        meter(bench)
        bench.put("a", 100)
        bench.record([bench.new("b", 20), bench.new("empty", 0), bench.new("b", 30)])
        assert held(bench.metadata) == Sums(130, 3)
        bench.put("a", 7)
        assert held(bench.metadata) == Sums(37, 3)
        bench.metadata.delete(ObjectKey(BUCKET, "a"), bench.now_ms)
        assert held(bench.metadata) == Sums(30, 2)
        bench.metadata.delete_many([ObjectKey(BUCKET, "b"), ObjectKey(BUCKET, "empty")], bench.now_ms)
        assert held(bench.metadata) == Sums()
        found = bench.metadata.bucket_usage(BUCKET)
        assert found is not None
        assert found.changed == Sums(100 + 20 + 20 + 30 + 100 + 7 + 7 + 30, 10)

    def test_a_large_object_counts_with_its_tail_and_its_tail_does_not(self, bench: MetadataBench) -> None:
        meter(bench)
        lease = bench.lease()
        assert bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        bench.put("0" * 32, 50, bucket=TAILS_BUCKET + "0")
        (row,) = bench.metadata.list_objects(BUCKET, "", "", 10)
        assert held(bench.metadata) == Sums(row.size, 1)
        bench.put("large", 1)
        assert held(bench.metadata) == Sums(1, 1)

    def test_what_goes_into_the_trash_and_comes_back_counts_once(self, bench: MetadataBench) -> None:
        meter(bench)
        bench.put("a", 100)
        row = bench.metadata.delete(ObjectKey(BUCKET, "a"), bench.now_ms, bench.now_ms + 1000)
        assert held(bench.metadata) == Sums()
        back = bench.metadata.trash_page(None, 10).rows
        bench.metadata.undelete(back)
        assert held(bench.metadata) == Sums(100, 1)
        bench.metadata.undelete(back)
        assert held(bench.metadata) == Sums(100, 1)
        bench.metadata.delete(row.key, bench.now_ms, bench.now_ms + 1000)
        bench.metadata.purge_trash(bench.metadata.trash_page(None, 10).rows, bench.now_ms + 2000)
        assert held(bench.metadata) == Sums()

    def test_noncurrent_versions_count_and_markers_do_not(self, bench: MetadataBench) -> None:
        meter(bench)
        rows = []
        for size in (10, 20, 30):
            new = asking(bench.new("k", size), versioning=ENABLED, attributes=as_version(b""))
            rows += bench.record([new])
            bench.now_ms += 10
        assert held(bench.metadata) == Sums(60, 3)
        bench.metadata.delete_versions([AddMarker(rows[0].key, ENABLED)], bench.now_ms)
        assert held(bench.metadata) == Sums(60, 3)
        bench.metadata.delete_versions([DeleteVersion(rows[0].key, rows[1].version)], bench.now_ms)
        assert held(bench.metadata) == Sums(40, 2)

    def test_parts_count_in_the_bucket_of_their_upload(self, bench: MetadataBench) -> None:
        meter(bench)
        bench.put("part", 500, bucket=PARTS_BUCKET + BUCKET)
        bench.put("k", 1)
        assert held(bench.metadata) == Sums(501, 2)
        bench.metadata.delete_many([ObjectKey(PARTS_BUCKET + BUCKET, "part")], bench.now_ms)
        assert held(bench.metadata) == Sums(1, 1)

    def test_puts_that_are_recorded_again_count_once(self, bench: MetadataBench) -> None:
        """A PUT is recorded again when the answer to its COMMIT was lost."""
        meter(bench)
        new = [bench.new("a", 5), bench.new("b", 6)]
        bench.record(new)
        bench.record([*new, bench.new("c", 7)])
        assert held(bench.metadata) == Sums(18, 3)

    def test_folding_changes_no_sum(self, bench: MetadataBench) -> None:
        meter(bench)
        meter_two = bench.metadata.meter_bucket("two", bench.now_ms)
        assert meter_two
        for n in range(5):
            bench.put(f"k{n}", 10)
            bench.put(f"k{n}", 1, bucket="two")
        before = bench.metadata.bucket_usages("", 10)
        assert [one.held for one in before] == [Sums(50, 5), Sums(5, 5)]
        assert bench.metadata.fold_usage(3) == 3
        assert bench.metadata.bucket_usages("", 10) == before
        assert bench.metadata.fold_usage(100) == 7
        assert bench.metadata.fold_usage(100) == 0
        assert bench.metadata.bucket_usages("", 10) == before
        assert bench.metadata.bucket_usages(BUCKET, 10) == before[1:]
        assert bench.metadata.bucket_usages("", 1) == before[:1]
        assert bench.metadata.bucket_usage("two") == before[1]

    def test_several_fold_beside_writers(self, bench: MetadataBench) -> None:
        meter(bench)

        def fold() -> None:
            for _ in range(30):
                bench.metadata.fold_usage(5)

        threads = [Thread(target=fold) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(40):
            bench.put(f"k{n}", n)
        for thread in threads:
            thread.join()
        while bench.metadata.fold_usage(100):
            pass
        assert held(bench.metadata) == Sums(sum(range(40)), 40)

    def test_a_bucket_is_counted_from_what_it_held_before(self, bench: MetadataBench) -> None:
        bench.put("old", 1000)
        meter(bench)
        bench.put("new", 1)
        found = bench.metadata.bucket_usage(BUCKET)
        assert found is not None
        assert (found.held, found.counted_ms) == (Sums(1, 1), None)
        counted = count_bucket(bench.metadata, BUCKET)
        bench.put("later", 10)
        assert (counted.sums, counted.drift) == (Sums(1001, 2), Sums())
        assert bench.metadata.settle_usage(BUCKET, counted.since_ms, counted.correction, 77)
        assert held(bench.metadata) == Sums(1011, 3)
        found = bench.metadata.bucket_usage(BUCKET)
        assert found is not None
        assert found.counted_ms == 77

    def test_a_count_is_used_once(self, bench: MetadataBench) -> None:
        """A producer that was paused while it counted finds that another one has counted meanwhile, or that the bucket
        is metered anew. A COMMIT whose answer was lost is repeated."""
        bench.put("old", 1000)
        meter(bench)
        paused = BucketCount(bench.metadata, BUCKET)
        while not paused.count_page():
            pass
        early = paused.result()
        other = count_bucket(bench.metadata, BUCKET)
        assert bench.metadata.settle_usage(BUCKET, other.since_ms, other.correction, 77)
        for found in (early, paused.result(), other):
            assert not bench.metadata.settle_usage(BUCKET, found.since_ms, found.correction, 78)
        assert held(bench.metadata) == Sums(1000, 1)
        assert bench.metadata.unmeter_bucket(BUCKET)
        bench.now_ms += 1
        assert bench.metadata.meter_bucket(BUCKET, bench.now_ms)
        assert not bench.metadata.settle_usage(BUCKET, early.since_ms, early.correction, 79)

    def test_a_bucket_that_is_not_metered_any_more_is_forgotten(self, bench: MetadataBench) -> None:
        meter(bench)
        bench.put("k")
        assert not bench.metadata.meter_bucket(BUCKET, bench.now_ms)
        assert bench.metadata.unmeter_bucket(BUCKET)
        assert not bench.metadata.unmeter_bucket(BUCKET)
        assert bench.metadata.bucket_usage(BUCKET) is None
        assert not bench.metadata.settle_usage(BUCKET, bench.now_ms, Sums(1, 1), 1)
        bench.metadata.fold_usage(10)
        assert bench.metadata.bucket_usages("", 10) == []

    def test_an_account_has_the_sum_of_its_buckets(self, bench: MetadataBench) -> None:
        meter(bench)
        for bucket, owner in ((BUCKET, "ann"), ("two", "ann"), ("three", "bob"), ("four", "ann")):
            assert bench.metadata.create_bucket(bucket, owner, CannedAcl.PRIVATE, bench.now_ms)
            if bucket not in (BUCKET, "four"):
                assert bench.metadata.meter_bucket(bucket, bench.now_ms)
            bench.put("k", 10, bucket=bucket)
        bench.metadata.fold_usage(1)
        assert bench.metadata.account_usage("ann") == Sums(20, 2)
        assert bench.metadata.account_usage("bob") == Sums(10, 1)
        assert bench.metadata.account_usage("eve") == Sums()

    def test_the_quotas_of_a_bucket_and_its_owner_are_known_with_their_usage(self, bench: MetadataBench) -> None:
        meter(bench)
        metadata = bench.metadata
        bench.put("k", 10)
        assert metadata.quota_facts(BUCKET) == QuotaFacts(BUCKET, "root", None, None, None, None)
        metadata.set_bucket_owner(BUCKET, "ann", bench.now_ms)
        metadata.set_bucket_document(BUCKET, DocumentKind.QUOTA, b"{}", bench.now_ms)
        assert metadata.quota_facts(BUCKET) == QuotaFacts(BUCKET, "ann", b"{}", None, None, None)
        metadata.settle_usage(BUCKET, bench.now_ms, Sums(), 1)
        assert metadata.quota_facts(BUCKET) == QuotaFacts(BUCKET, "ann", b"{}", None, Sums(10, 1), None)
        record = AccessKey(account_record("ann"), "ann", b"[]", KeyState.DISABLED, 1)
        metadata.add_access_key(record)
        bench.put("l", 5)
        assert metadata.quota_facts(BUCKET) == QuotaFacts(BUCKET, "ann", b"{}", b"[]", Sums(15, 2), Sums(15, 2))

    def test_rates_need_no_usage(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.count_usage()
        rates = encode(Quota(requests_per_s=5))
        metadata.add_access_key(AccessKey(account_record("ann"), "ann", rates, KeyState.DISABLED, 1))
        metadata.create_bucket("of-ann", "ann", CannedAcl.PRIVATE, bench.now_ms)
        metadata.create_bucket("given", "bob", CannedAcl.PRIVATE, bench.now_ms)
        metadata.set_bucket_owner("given", "ann", bench.now_ms)
        assert metadata.bucket_usages("", 9) == []
        assert metadata.quota_facts("given") == QuotaFacts("given", "ann", None, rates, None, None)

    def test_new_buckets_of_an_account_with_a_quota_are_metered(self, bench: MetadataBench) -> None:
        bench.metadata.count_usage()
        stored = encode(Quota(hard_objects=9))
        bench.metadata.add_access_key(AccessKey(account_record("ann"), "ann", stored, KeyState.DISABLED, 1))
        for name, owner in (("of-ann", "ann"), ("of-bob", "bob"), ("given", "bob")):
            bench.metadata.create_bucket(name, owner, CannedAcl.PRIVATE, bench.now_ms)
        bench.metadata.set_bucket_owner("given", "ann", bench.now_ms)
        assert [one.bucket for one in bench.metadata.bucket_usages("", 9)] == ["given", "of-ann"]

    def test_pages_of_rows_are_summed_up_to_the_end(self, bench: MetadataBench) -> None:
        bench.put_all([f"k{n}" for n in range(5)], 10)
        page = bench.metadata.current_sizes(BUCKET, "", 2)
        assert (page.sums, page.next) == (Sums(20, 2), ("k1", 0))
        page = bench.metadata.current_sizes(BUCKET, "k1", 3)
        assert (page.sums, page.next) == (Sums(30, 3), ("k4", 0))
        assert bench.metadata.current_sizes(BUCKET, "k4", 3) == bench.metadata.current_sizes("none", "", 3)
        new = [
            asking(bench.new(name, size), versioning=ENABLED, attributes=as_version(b""))
            for name in ("v", "w")
            for size in (1, 2, 4)
        ]
        bench.record(new)
        first = bench.metadata.noncurrent_sizes(BUCKET, None, 3)
        assert first.sums == Sums(2 + 1 + 2, 3), "the newest of a name comes first"
        assert first.next is not None
        second = bench.metadata.noncurrent_sizes(BUCKET, first.next, 3)
        assert (second.sums, second.next) == (Sums(1, 1), None)
