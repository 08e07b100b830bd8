"""The usage of buckets, from the command that asks for it to the sums."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from threading import Event

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.quotas.quota import Quota, account_record, encode
from nos_ec.engine.figures import bucket_count
from nos_ec.engine.figures.bucket_count import count_bucket
from nos_ec.engine.upkeep import usage_keeper
from nos_ec.engine.upkeep.usage_keeper import COUNT_AFTER_MS, LOOK_MS, REVIEW_MS, TRIES_MAX, UsageKeeper
from nos_ec.monitoring.declarations.metrics import BUCKET_BYTES, BUCKET_OBJECTS, METERED_BUCKETS, QUOTA_USED_RATIO
from nos_ec.ports.metadata import AccessKey, CannedAcl, DocumentKind, KeyState, SizesPage, Sums
from nos_producer.assemble import producer_service
from nos_producer.samples import producer_samples
from nos_producer.service import ProducerService
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.service.cli.test_cli import Cli
from tests.service.conftest import Bench
from tests.service.s3.s3_gateway import serving


@pytest.fixture
def counting(bench: Bench) -> Bench:
    bench.config.write_text(bench.config.read_text().replace("[store]\n", "[store]\ncount_usage = true\n"))
    return bench


@pytest.fixture
def system(counting: Bench) -> Iterator[System]:
    with counting.open() as system:
        yield system


@pytest.fixture
def cli(counting: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(counting, capfd)


def put(system: System, name: str, size: int, bucket: str = "b") -> None:
    system.client.store().put(ObjectKey(bucket, name), BytesIO(bytes(size)))


def want(system: System, bucket: str = "b") -> None:
    """Ask for the usage of a bucket that exists."""
    assert system.metadata.set_bucket_document(bucket, DocumentKind.QUOTA, b"{}", system.clock.now_ms())


def held(system: System, bucket: str = "b") -> Sums:
    found = system.metadata.bucket_usage(bucket)
    assert found is not None
    assert found.counted_ms is not None
    return found.held


def test_a_bucket_is_metered_counted_and_followed(cli: Cli, counting: Bench) -> None:
    with counting.open() as system:
        put(system, "old", 1000)
    assert cli("usage", "b", exits=4)["message"].startswith("bucket b is not metered")
    assert cli("usage", "b", "--exact")["buckets"][0]["exact"]["bytes"] == 1000
    assert "no bucket is metered" in cli.text("usage")
    assert cli("usage", "b", "--start") == {"bucket": "b", "metered": True}
    assert "being counted" in cli.text("usage", "b")
    with counting.open() as system:
        put(system, "new", 24)
        system.clock = LaterClock(COUNT_AFTER_MS + 1)
        with producer_service(system) as producer:
            producer.drain()
    (found,) = cli("usage", "b")["buckets"]
    assert (found["bytes"], found["objects"]) == (1024, 2)
    (found,) = cli("usage", "--exact")["buckets"]
    assert found["exact"] == {
        "bytes": 1024,
        "objects": 2,
        "off": {"bytes": 0, "objects": 0},
        "changed_meanwhile": {"bytes": 0, "objects": 0},
    }
    assert "1.0 KiB" in cli.text("usage")
    assert cli("usage", "--account", "root") == {"account": "root", "bytes": 1024, "objects": 2}
    assert "the metered buckets of root hold 1.0 KiB in 2 objects" in cli.text("usage", "--account", "root")
    assert cli("usage", "b", "--stop") == {"bucket": "b", "metered": False}
    assert cli("usage") == {"buckets": []}


def test_wrong_uses_are_refused(cli: Cli, bench: Bench) -> None:
    for words in (["--start"], ["b", "--start", "--stop"], ["b", "--stop", "--exact"], ["b", "--account", "ann"]):
        assert cli("usage", *words, exits=2)["error"] == "InvalidInput"
    assert cli("usage", "none", "--start", exits=4)["error"] == "NotFound"
    bench.config.write_text(bench.config.read_text().replace("count_usage = true\n", ""))
    assert "store.count_usage" in cli("usage", "b", "--start", exits=3)["message"]


def test_uploads_of_s3_clients_count_with_their_parts(system: System) -> None:
    with serving(system, system.settings.s3) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        want(system, "photos")
        keeper = UsageKeeper(system.metadata, SetClock(system.clock.now_ms()))
        keeper.drain()
        upload = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
        parts = []
        for number in (1, 2):
            body = bytes(5 << 20) if number == 1 else b"end"
            named = {"Bucket": "photos", "Key": "k", "UploadId": upload, "PartNumber": number}
            parts.append({"PartNumber": number, "ETag": ann.upload_part(**named, Body=body)["ETag"]})
        found = system.metadata.bucket_usage("photos")
        assert found is not None
        assert found.held == Sums((5 << 20) + 3, 2)
        ann.complete_multipart_upload(Bucket="photos", Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
        found = system.metadata.bucket_usage("photos")
        assert found is not None
        assert found.held == count_bucket(system.metadata, "photos").sums
        assert found.held.objects == 3


def test_buckets_are_counted_only_when_all_processes_add_their_changes(system: System) -> None:
    put(system, "k", 7)
    want(system)
    clock = SetClock(system.clock.now_ms())
    keeper = UsageKeeper(system.metadata, clock)
    keeper.drain()
    clock.advance(COUNT_AFTER_MS - 1)
    keeper.drain()
    found = system.metadata.bucket_usage("b")
    assert found is not None
    assert found.counted_ms is None
    clock.advance(10_001)
    keeper.drain()
    assert held(system) == Sums(7, 1)


def test_a_daemon_trusts_no_clock_of_others(system: System) -> None:
    """A bucket that was metered by a process whose clock is a day behind is not counted while processes still remember
    that it is not metered, even if the clock of the daemon jumps meanwhile."""
    put(system, "k", 7)
    now_ms = system.clock.now_ms()
    system.metadata.set_bucket_document("b", DocumentKind.QUOTA, b"{}", now_ms)
    system.metadata.meter_bucket("b", now_ms - 86_400_000)
    stop, waited = Event(), [0]

    class Clock(FakeClock):
        def wait(self, stop: Event, wait_ms: int) -> bool:
            waited[0] += wait_ms
            self.advance(86_400_000 if waited[0] == 5000 else 0)
            found = system.metadata.bucket_usage("b")
            if waited[0] >= 60_000 or (found is not None and found.counted_ms is not None):
                stop.set()
            return super().wait(stop, wait_ms)

    UsageKeeper(system.metadata, Clock(now_ms)).run(stop, lambda: True)
    assert COUNT_AFTER_MS <= waited[0] < 60_000
    assert held(system) == Sums(7, 1)


def test_a_bucket_that_changes_too_much_is_counted_again(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """At last the result is taken, which is off by at most what was changed meanwhile."""
    monkeypatch.setattr(bucket_count, "PAGE_ROWS", 10)
    for n in range(25):
        put(system, f"k{n:02}", 100)
    want(system)
    clock = SetClock(system.clock.now_ms())
    keeper = UsageKeeper(system.metadata, clock)
    keeper.drain()
    clock.advance(COUNT_AFTER_MS + 1)
    counted, plain = [0], system.metadata.current_sizes

    def sizes(bucket: str, after: str, limit: int) -> SizesPage:
        if bucket == "b" and not after:
            counted[0] += 1
            page = plain(bucket, after, limit)
            put(system, "k00", 100 + counted[0])
            return page
        return plain(bucket, after, limit)

    monkeypatch.setattr(system.metadata, "current_sizes", sizes)
    keeper.drain()
    assert counted[0] == TRIES_MAX
    monkeypatch.undo()
    exact = count_bucket(system.metadata, "b").sums
    assert abs(held(system).bytes - exact.bytes) <= 2 * (100 + TRIES_MAX)
    assert held(system).objects == exact.objects == 25


def test_documents_decide_what_is_metered(system: System) -> None:
    """They also decide after a rebuild of the metadata, which restores documents and no sums, and for a deleted
    bucket."""
    put(system, "k", 7)
    want(system)
    clock = SetClock(system.clock.now_ms())
    keeper = UsageKeeper(system.metadata, clock)
    keeper.drain()
    clock.advance(COUNT_AFTER_MS + 1)
    keeper.drain()
    assert held(system) == Sums(7, 1)
    system.client.store().delete(ObjectKey("b", "k"), permanently=True)
    assert held(system) == Sums()
    system.metadata.delete_bucket("b", clock.now_ms())
    clock.advance(REVIEW_MS)
    keeper.drain()
    assert system.metadata.bucket_usage("b") is None


def test_a_bucket_that_becomes_metered_during_a_review_stays_so(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(system, "k", 7)
    plain = system.metadata.documents_of

    def documents(kind: DocumentKind, after: str, limit: int) -> object:
        page = plain(kind, after, limit)
        want(system)
        system.metadata.meter_bucket("b", system.clock.now_ms())
        return page

    monkeypatch.setattr(system.metadata, "documents_of", documents)
    UsageKeeper(system.metadata, SetClock(system.clock.now_ms())).turn()
    assert system.metadata.bucket_usage("b") is not None


def test_only_the_producer_of_one_slot_keeps_usage(system: System) -> None:
    put(system, "k", 7)
    want(system)
    with producer_service(system) as first:
        first.turn()
        assert first._keeps_usage()
        with producer_service(system) as second:
            second.turn()
            assert not second._keeps_usage()
            second.drain()
    assert system.metadata.bucket_usage("b") is None


def test_a_failure_of_the_metadata_is_tried_again(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    put(system, "k", 7)
    want(system)
    plain, failures = system.metadata.fold_usage, [Transient("away"), ValueError("a bug")]

    def failing(limit: int) -> int:
        if failures:
            raise failures.pop(0)
        stop.set()
        return plain(limit)

    monkeypatch.setattr(system.metadata, "fold_usage", failing)
    stop = Event()
    UsageKeeper(system.metadata, FakeClock(system.clock.now_ms())).run(stop, lambda: True)
    assert system.metadata.bucket_usage("b") is not None


def test_metrics_show_the_buckets_that_change_most(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one producer shows them, and never more than a fixed number."""
    monkeypatch.setattr(usage_keeper, "SHOWN_BUCKETS", 2)
    monkeypatch.setattr(usage_keeper, "COUNT_AFTER_MS", 0)
    for number, bucket in enumerate(("b", "idle", "c", "d", "e", "busy")):
        put(system, "k", 7, bucket=bucket)
        want(system, bucket)
        assert system.metadata.meter_bucket(bucket, 1)
        for n in range(number if bucket != "idle" else 0):
            put(system, f"n{n}", 1, bucket=bucket)
    with producer_service(system) as producer:
        assert shown(producer, system) == {"nos_ec_producer_metered_buckets": 0}
        producer.drain()
        system.clock = LaterClock(LOOK_MS)
        keeper = producer._usage
        assert keeper is not None
        keeper._look(system.clock.now_ms())
        assert shown(producer, system) == {
            "nos_ec_producer_metered_buckets": 6,
            "nos_ec_producer_bucket_bytes busy": 12,
            "nos_ec_producer_bucket_objects busy": 6,
            "nos_ec_producer_bucket_bytes e": 11,
            "nos_ec_producer_bucket_objects e": 5,
        }


def test_metrics_show_buckets_that_are_named_and_quotas_that_are_nearly_used(
    counting: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = counting.config.read_text()
    counting.config.write_text(plain.replace("[producer]\n", '[producer]\nshown_buckets = "idle, none"\n'))
    monkeypatch.setattr(usage_keeper, "SHOWN_BUCKETS", 1)
    monkeypatch.setattr(usage_keeper, "SHOWN_QUOTAS", 3)
    monkeypatch.setattr(usage_keeper, "COUNT_AFTER_MS", 0)
    with counting.open() as system:
        limits = {"idle": Quota(), "b": Quota(hard_bytes=20, soft_bytes=1, soft_objects=2), "c": Quota(hard_bytes=100)}
        for bucket, quota in limits.items():
            system.metadata.create_bucket(bucket, "ann", CannedAcl.PRIVATE, 1)
            system.metadata.set_bucket_document(bucket, DocumentKind.QUOTA, encode(quota), 1)
            assert system.metadata.meter_bucket(bucket, 1)
            put(system, "k", 7, bucket=bucket)
        put(system, "l", 7, bucket="b")
        for account, quota in (("ann", Quota(hard_objects=8)), ("bob", Quota(hard_objects=0)), ("eve", Quota(None, 9))):
            record = AccessKey(account_record(account), account, encode(quota), KeyState.DISABLED, 1)
            system.metadata.add_access_key(record)
        with producer_service(system) as producer:
            producer.drain()
            system.clock = LaterClock(LOOK_MS)
            keeper = producer._usage
            assert keeper is not None
            keeper._look(system.clock.now_ms())
            keeper._quotas_ms = 0
            producer.drain()
            assert shown(producer, system) == {
                "nos_ec_producer_metered_buckets": 3,
                "nos_ec_producer_bucket_bytes idle": 7,
                "nos_ec_producer_bucket_objects idle": 1,
                "nos_ec_producer_bucket_bytes b": 14,
                "nos_ec_producer_bucket_objects b": 2,
                "nos_ec_producer_quota_used_ratio bucket b": 1.0,
                "nos_ec_producer_quota_used_ratio account ann": 0.5,
                "nos_ec_producer_quota_used_ratio bucket c": 0.07,
            }


def shown(producer: ProducerService, system: System) -> dict[str, object]:
    """The metrics of metered buckets, with their labels."""
    held = producer._held_slots
    found = producer_samples(producer, held, system.clock.now_ms())
    return {
        " ".join((one.metric.name, *one.labels)): one.value
        for one in found
        if one.metric in (METERED_BUCKETS, BUCKET_BYTES, BUCKET_OBJECTS, QUOTA_USED_RATIO)
    }
