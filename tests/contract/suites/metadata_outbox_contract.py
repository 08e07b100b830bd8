"""Contract of the outbox: each change of a bucket with notifications adds its event, in the order of the changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.notifications.configuration import REMOVED, Notification, encode
from nos_ec.core.notifications.origin import LIFECYCLE, Origin, caused_by
from nos_ec.core.publishing.slots import ALL_SLOTS, bucket_slot
from nos_ec.core.versions import as_version
from nos_ec.ports.metadata import (
    AddMarker,
    CannedAcl,
    DeleteVersion,
    DocumentKind,
    Metadata,
    OutboxOptions,
    VersionEntry,
)
from tests.contract.suites.metadata_version_contract import ENABLED
from tests.rig.fakes.metadata_bench import MetadataBench, asking

ALL = Notification(
    "all", "changes", ("s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*", "s3:ObjectTagging:*")
)
BUCKET = "bucket"


def watch(bench: MetadataBench, *notifications: Notification, events_max: int = 1000) -> None:
    """Make the store send these notifications of the bucket."""
    bench.metadata.send_events(OutboxOptions(events_max, "here"))
    bench.metadata.create_bucket(BUCKET, "ann", CannedAcl.PRIVATE, bench.now_ms)
    assert bench.metadata.set_bucket_document(
        BUCKET, DocumentKind.NOTIFICATION, encode(notifications or [ALL]), bench.now_ms
    )


def events(metadata: Metadata) -> list[tuple[str, str, int]]:
    """(name of the event, key, sequencer) of all events, in the order in which they are sent."""
    return [
        (one["eventName"], one["s3"]["object"]["key"], int(one["s3"]["object"]["sequencer"], 16))
        for one in records(metadata)
    ]


def records(metadata: Metadata) -> list[dict[str, Any]]:
    """The records of all messages."""
    found = []
    for topic, slot in metadata.outbox_queues(ALL_SLOTS):
        for one in metadata.outbox_events(topic, slot, 1000):
            found += json.loads(one.body)["Records"]
    return found


def names(metadata: Metadata) -> list[str]:
    """The names of all events."""
    return [name for name, _, _ in events(metadata)]


class OutboxContract:
    """`Outbox`, and the events of all changes."""

    def test_a_bucket_without_notifications_adds_nothing(self, bench: MetadataBench) -> None:
        watch(bench)
        bench.record([bench.new("k", bucket="other")])
        bench.metadata.delete(ObjectKey("other", "k"), bench.now_ms)
        assert bench.metadata.outbox_queues(ALL_SLOTS) == []
        assert bench.metadata.outbox_size(10) == 0
        assert bench.metadata.oldest_event_ms() is None

    def test_a_store_that_does_not_send_adds_nothing(self, bench: MetadataBench) -> None:
        bench.metadata.create_bucket(BUCKET, "ann", CannedAcl.PRIVATE, bench.now_ms)
        bench.metadata.set_bucket_document(BUCKET, DocumentKind.NOTIFICATION, encode([ALL]), bench.now_ms)
        bench.put("k")
        assert bench.metadata.outbox_size(10) == 0

    def test_a_put_adds_an_event_with_the_facts_of_its_request(self, bench: MetadataBench) -> None:
        watch(bench)
        with caused_by(Origin("s3:ObjectCreated:Copy", "ann", "10.0.0.9", "F00D")):
            new = bench.new("a b/ü", 123)
        (row,) = bench.record([new])
        (queue,) = bench.metadata.outbox_queues(ALL_SLOTS)
        assert queue == ("changes", bucket_slot(BUCKET))
        (event,) = bench.metadata.outbox_events(*queue, 10)
        assert (event.key, event.sequencer) == ("bucket/a b/ü".encode(), row.version)
        (record,) = records(bench.metadata)
        assert record["eventName"] == "ObjectCreated:Copy"
        assert record["awsRegion"] == "here"
        assert record["userIdentity"] == {"principalId": "ann"}
        assert record["requestParameters"] == {"sourceIPAddress": "10.0.0.9"}
        assert record["responseElements"] == {"x-amz-request-id": "F00D"}
        assert record["s3"]["configurationId"] == "all"
        assert record["s3"]["object"] == {
            "key": "a+b/%C3%BC",
            "size": 123,
            "eTag": row.md5.hex(),
            "sequencer": f"{row.version:016X}",
        }

    def test_a_put_that_is_recorded_again_adds_no_second_event(self, bench: MetadataBench) -> None:
        watch(bench)
        new = bench.new("k")
        bench.record([new])
        bench.metadata.record_puts([new], bench.now_ms)
        assert names(bench.metadata) == ["ObjectCreated:Put"]

    def test_the_objects_of_one_batch_have_events_each(self, bench: MetadataBench) -> None:
        watch(bench)
        rows = bench.record([bench.new("a"), bench.new("other", bucket="other"), bench.new("a"), bench.new("b", 0)])
        assert sorted(events(bench.metadata)) == sorted(
            ("ObjectCreated:Put", row.key.name, row.version) for row in rows if row.key.bucket == BUCKET
        )

    def test_changes_of_a_key_have_rising_sequencers_although_the_clock_stands(self, bench: MetadataBench) -> None:
        watch(bench)
        for _ in range(3):
            bench.record([bench.new("k")])
            bench.record([bench.new("k")])
            bench.metadata.delete(ObjectKey(BUCKET, "k"), bench.now_ms)
        bench.record([bench.new("k")])
        bench.metadata.delete_many([ObjectKey(BUCKET, "k")], bench.now_ms, bench.now_ms + 1000)
        bench.record([bench.new("k")])
        found = events(bench.metadata)
        put, delete = "ObjectCreated:Put", "ObjectRemoved:Delete"
        assert [name for name, _, _ in found] == [put, put, delete] * 3 + [put, delete, put]
        numbers = [number for _, _, number in found]
        assert numbers == sorted(set(numbers))

    def test_a_clock_that_is_behind_does_not_reorder_events(self, bench: MetadataBench) -> None:
        watch(bench)
        bench.record([bench.new("k")])
        bench.metadata.delete(ObjectKey(BUCKET, "k"), bench.now_ms + 5000)
        (row,) = bench.record([bench.new("k")])
        numbers = [number for _, _, number in events(bench.metadata)]
        assert numbers == sorted(set(numbers))
        assert row.version == numbers[-1] > (bench.now_ms + 5000) * 1000

    def test_versions_and_markers(self, bench: MetadataBench) -> None:
        watch(bench)
        key = ObjectKey(BUCKET, "k")
        (row,) = bench.record([asking(bench.new("k"), versioning=ENABLED, attributes=as_version(b""))])
        (marker,) = bench.metadata.delete_versions([AddMarker(key, ENABLED)], bench.now_ms)
        assert isinstance(marker, VersionEntry)
        bench.metadata.delete_versions([DeleteVersion(key, row.version)], bench.now_ms)
        bench.metadata.delete_versions([DeleteVersion(key, row.version)], bench.now_ms)
        found = records(bench.metadata)
        assert [(one["eventName"], one["s3"]["object"]["versionId"]) for one in found] == [
            ("ObjectCreated:Put", f"{row.version:016x}"),
            ("ObjectRemoved:DeleteMarkerCreated", f"{marker.version:016x}"),
            ("ObjectRemoved:Delete", f"{row.version:016x}"),
        ]
        assert int(found[1]["s3"]["object"]["sequencer"], 16) == marker.version

    def test_a_library_delete_of_a_version_adds_the_event_of_its_marker(self, bench: MetadataBench) -> None:
        watch(bench)
        bench.record([asking(bench.new("k"), versioning=ENABLED, attributes=as_version(b""))])
        bench.metadata.delete(ObjectKey(BUCKET, "k"), bench.now_ms)
        assert names(bench.metadata) == ["ObjectCreated:Put", "ObjectRemoved:DeleteMarkerCreated"]

    def test_expiry_has_events_of_its_own(self, bench: MetadataBench) -> None:
        watch(bench)
        rows = bench.record([bench.new("a"), bench.new("b")])
        with caused_by(Origin(LIFECYCLE)):
            bench.metadata.delete_unchanged([rows[0]], bench.now_ms)
            bench.metadata.delete_versions([AddMarker(ObjectKey(BUCKET, "b"), ENABLED)], bench.now_ms)
        assert names(bench.metadata)[2:] == ["LifecycleExpiration:Delete", "LifecycleExpiration:DeleteMarkerCreated"]

    def test_only_a_request_that_sets_tags_has_an_event_of_tags(self, bench: MetadataBench) -> None:
        watch(bench)
        row = bench.put("k")
        attributes = as_version(b"")
        bench.metadata.set_attributes(row, attributes)
        with caused_by(Origin("s3:ObjectTagging:Put", "ann", "", "1")):
            assert bench.metadata.set_attributes(bench.get("k"), attributes)
            assert not bench.metadata.set_attributes(row, b"")
        assert names(bench.metadata) == ["ObjectCreated:Put", "ObjectTagging:Put"]

    def test_refused_changes_have_no_event(self, bench: MetadataBench) -> None:
        watch(bench)
        with pytest.raises(NotFound):
            bench.metadata.delete(ObjectKey(BUCKET, "none"), bench.now_ms)
        assert bench.metadata.delete_many([ObjectKey(BUCKET, "none")], bench.now_ms) == []
        assert bench.metadata.outbox_size(10) == 0

    def test_filters_choose_topics(self, bench: MetadataBench) -> None:
        watch(
            bench,
            Notification("1", "pictures", ("s3:ObjectCreated:Put",), "in/", ".png"),
            Notification("2", "gone", ("s3:ObjectRemoved:*",)),
        )
        bench.record([bench.new(name) for name in ("in/a.png", "in/a.gif", "out/a.png")])
        bench.metadata.delete_many([ObjectKey(BUCKET, "in/a.gif")], bench.now_ms)
        assert bench.metadata.outbox_queues(ALL_SLOTS) == [
            ("gone", bucket_slot(BUCKET)),
            ("pictures", bucket_slot(BUCKET)),
        ]
        assert bench.metadata.outbox_queues(ALL_SLOTS - {bucket_slot(BUCKET)}) == []
        assert sorted(key for _, key, _ in events(bench.metadata)) == ["in/a.gif", "in/a.png"]

    def test_a_changed_configuration_counts_at_once_in_its_process(self, bench: MetadataBench) -> None:
        watch(bench)
        bench.put("a")
        bench.metadata.set_bucket_document(BUCKET, DocumentKind.NOTIFICATION, None, bench.now_ms)
        bench.put("b")
        assert [key for _, key, _ in events(bench.metadata)] == ["a"]

    def test_sent_events_are_forgotten(self, bench: MetadataBench) -> None:
        watch(bench)
        for name in "abc":
            bench.put(name)
        (queue,) = bench.metadata.outbox_queues(ALL_SLOTS)
        page = bench.metadata.outbox_events(*queue, 2)
        assert [one.key for one in page] == [b"bucket/a", b"bucket/b"]
        assert bench.metadata.oldest_event_ms() == bench.now_ms
        for _ in range(2):
            bench.metadata.forget_events([one.event_id for one in page])
            assert [one.key for one in bench.metadata.outbox_events(*queue, 2)] == [b"bucket/c"]
        assert bench.metadata.outbox_size(10) == 1

    def test_each_configuration_is_told_of_a_gap(self, bench: MetadataBench) -> None:
        watch(bench, Notification("1", "created", ("s3:ObjectCreated:*",)), Notification("2", "gone", REMOVED))
        bench.metadata.create_bucket("another", "ann", CannedAcl.PRIVATE, bench.now_ms)
        bench.metadata.set_bucket_document("another", DocumentKind.NOTIFICATION, encode([ALL]), bench.now_ms)
        bench.metadata.set_bucket_document("another", DocumentKind.TAGS, b"tags", bench.now_ms)
        assert bench.metadata.add_gaps(bench.now_ms) == 3
        queues = bench.metadata.outbox_queues(ALL_SLOTS)
        found = [
            (topic, json.loads(one.body))
            for topic, slot in queues
            for one in bench.metadata.outbox_events(topic, slot, 9)
        ]
        assert [(topic, one["Event"], one["Bucket"], one["ConfigurationId"]) for topic, one in found] == [
            ("changes", "nos_ec:Gap", "another", "all"),
            ("created", "nos_ec:Gap", BUCKET, "1"),
            ("gone", "nos_ec:Gap", BUCKET, "2"),
        ]

    def test_a_full_outbox_refuses_changes_of_buckets_with_notifications_only(self, bench: MetadataBench) -> None:
        watch(bench, events_max=2)
        row = bench.put("a")
        bench.put("b")
        bench.metadata.send_events(OutboxOptions(2, "here"))  # as in a process that has not looked yet
        for refused in (
            lambda: bench.metadata.require_event_room([BUCKET, "other"]),
            lambda: bench.metadata.delete(row.key, bench.now_ms),
            lambda: bench.metadata.delete_many([row.key], bench.now_ms),
            lambda: bench.metadata.delete_unchanged([row], bench.now_ms),
            lambda: bench.metadata.delete_versions([AddMarker(row.key, ENABLED)], bench.now_ms),
            lambda: bench.metadata.set_attributes(row, as_version(b"")),
        ):
            with pytest.raises(Transient, match="outbox has 2 events, too many of them for changes,"):
                refused()
        bench.metadata.require_event_room(["other"])
        bench.record([bench.new("c")])  # it was admitted before
        assert bench.metadata.outbox_size(10) == 3
        (queue,) = bench.metadata.outbox_queues(ALL_SLOTS)
        bench.metadata.forget_events([one.event_id for one in bench.metadata.outbox_events(*queue, 10)])
        bench.metadata.send_events(OutboxOptions(2, "here"))
        bench.metadata.require_event_room([BUCKET])
        bench.metadata.delete(row.key, bench.now_ms)

    def test_a_topic_that_nobody_reads_stops_no_changes_for_others(self, bench: MetadataBench) -> None:
        """The changes of a bucket whose topic is gone may fill the outbox; other owners must not suffer."""
        watch(bench, events_max=8)
        other = Notification("other", "other", ("s3:ObjectCreated:*",))
        bench.metadata.create_bucket("another", "bob", CannedAcl.PRIVATE, bench.now_ms)
        bench.metadata.set_bucket_document("another", DocumentKind.NOTIFICATION, encode([other]), bench.now_ms)
        bench.record([bench.new("k", bucket="another")])
        for number in range(7):
            bench.put(f"{number}")
        for number in range(3):
            bench.metadata.send_events(OutboxOptions(8, "here"))  # look again
            with pytest.raises(Transient, match="too many of them for changes,"):
                bench.metadata.require_event_room([BUCKET])
            bench.metadata.require_event_room(["another"])
            bench.record([bench.new(f"{number}", bucket="another")])
        bench.metadata.send_events(OutboxOptions(8, "here"))
        with pytest.raises(Transient, match="too many of them for other,"):
            bench.metadata.require_event_room(["another"])

    def test_a_topic_that_is_not_allowed_any_more_gets_no_events(self, bench: MetadataBench) -> None:
        watch(bench, ALL, Notification("2", "second", ("s3:ObjectCreated:*",), prefix="b"))
        bench.put("b1")
        bench.metadata.send_events(OutboxOptions(1000, "here", frozenset(["second", "third"])))
        bench.put("a2")
        bench.put("b2")
        assert sorted(key for _, key, _ in events(bench.metadata)) == ["b1", "b1", "b2"]
        bench.metadata.send_events(OutboxOptions(1000, "here", frozenset(["third"])))
        bench.put("b3")
        assert len(events(bench.metadata)) == 3
        assert bench.metadata.add_gaps(bench.now_ms) == 0
