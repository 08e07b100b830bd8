"""Notifications of buckets, from the request of a client to the topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote_plus

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import NosError, Transient
from nos_ec.core.expiry import ExpiryRule
from nos_ec.core.ids import ObjectKey
from nos_producer import notifications
from nos_producer.assemble import producer_service
from nos_producer.notifications import FAILED_WAIT_MS_MAX, NotificationSender
from nos_producer.slots import HeldSlots
from tests.rig.fakes.clock import SetClock
from tests.service.conftest import Bench
from tests.service.s3.s3_gateway import Gateway, refused, serving
from tests.service.s3.test_s3_forms import Poster

SETTINGS = """
[s3]
port = 0
notification_topics = "changes, gone"
notification_events_max = 50
"""
ARN = "arn:aws:sns:::"
EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectTagging:*", "s3:LifecycleExpiration:*"]


@pytest.fixture
def system(bench: Bench) -> Iterator[System]:
    bench.config.write_text(bench.config.read_text() + SETTINGS)
    with bench.open() as system:
        yield system


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    with serving(system, system.settings.s3) as gateway:
        yield gateway


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    client = gateway.client("ann")
    client.create_bucket(Bucket="photos")
    return client


def configuration(
    topic: str = "changes", events: Sequence[str] = EVENTS, entry_id: str = "one", **filters: str
) -> dict[str, Any]:
    """One entry of a configuration."""
    rules = [{"Name": name, "Value": value} for name, value in filters.items()]
    chosen = {"Filter": {"Key": {"FilterRules": rules}}} if rules else {}
    return {"Id": entry_id, "TopicArn": ARN + topic, "Events": list(events), **chosen}


def configure(client: Any, *entries: Mapping[str, Any], bucket: str = "photos") -> None:
    """Set the notifications of a bucket."""
    client.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": list(entries)}
    )


def sent(bench: Bench, system: System, topic: str = "changes") -> list[dict[str, Any]]:
    """Let a producer send everything, and return all records in the file of this topic."""
    with producer_service(system) as producer:
        producer.drain()
    path = bench.folder / "store" / "notifications" / f"{topic}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for line in lines for record in json.loads(line)["Records"]]


def named(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(event, key) of these records."""
    return [(one["eventName"], unquote_plus(one["s3"]["object"]["key"])) for one in records]


def test_all_changes_arrive_in_their_order(bench: Bench, system: System, ann: Any) -> None:
    configure(ann, configuration())
    put = ann.put_object(Bucket="photos", Key="a b/ü", Body=b"12345")
    ann.copy_object(Bucket="photos", Key="copy", CopySource="photos/a b/ü")
    tags = {"TagSet": [{"Key": "k", "Value": "v"}]}
    ann.put_object_tagging(Bucket="photos", Key="copy", Tagging=tags)
    ann.delete_object_tagging(Bucket="photos", Key="copy")
    upload = ann.create_multipart_upload(Bucket="photos", Key="parts")["UploadId"]
    part = ann.upload_part(Bucket="photos", Key="parts", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = ann.complete_multipart_upload(Bucket="photos", Key="parts", UploadId=upload, MultipartUpload=parts)
    ann.put_object(Bucket="photos", Key="large", Body=bytes(300_000))
    ann.delete_object(Bucket="photos", Key="a b/ü")
    ann.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "copy"}, {"Key": "parts"}]})
    records = sent(bench, system)
    assert named(records)[:7] == [
        ("ObjectCreated:Put", "a b/ü"),
        ("ObjectCreated:Copy", "copy"),
        ("ObjectTagging:Put", "copy"),
        ("ObjectTagging:Delete", "copy"),
        ("ObjectCreated:CompleteMultipartUpload", "parts"),
        ("ObjectCreated:Put", "large"),
        ("ObjectRemoved:Delete", "a b/ü"),
    ]
    assert sorted(named(records)[7:]) == [("ObjectRemoved:Delete", "copy"), ("ObjectRemoved:Delete", "parts")]
    first = records[0]
    assert first["s3"]["object"]["eTag"] == put["ETag"].strip('"')
    assert first["s3"]["object"]["size"] == 5
    assert first["userIdentity"] == {"principalId": "ann"}
    assert first["requestParameters"] == {"sourceIPAddress": "127.0.0.1"}
    assert first["responseElements"]["x-amz-request-id"] == put["ResponseMetadata"]["RequestId"]
    assert records[4]["s3"]["object"]["eTag"] == done["ETag"].strip('"')
    assert records[4]["s3"]["object"]["size"] == 1
    assert records[5]["s3"]["object"]["size"] == 300_000
    assert system.metadata.outbox_size(10) == 0


def test_forms_and_copies_of_an_object_to_itself(bench: Bench, system: System, gateway: Gateway, ann: Any) -> None:
    configure(ann, configuration())
    poster = Poster(gateway)
    assert poster.post(poster.fields())[0] == 204
    ann.copy_object(Bucket="photos", Key="k", CopySource="photos/k", MetadataDirective="REPLACE", Metadata={"a": "b"})
    found = sent(bench, system)
    assert named(found) == [("ObjectCreated:Post", "k"), ("ObjectCreated:Copy", "k")]
    assert [one["userIdentity"] for one in found] == [{"principalId": "ann"}] * 2
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    gateway.raw("PUT", "/photos/open", b"x")
    assert sent(bench, system)[2]["userIdentity"] == {"principalId": "Anonymous"}


def test_parts_of_an_upload_may_be_stored_while_the_outbox_is_full(bench: Bench, system: System, ann: Any) -> None:
    """They cause no events; to complete the upload would."""
    configure(ann, configuration())
    upload = ann.create_multipart_upload(Bucket="photos", Key="parts")["UploadId"]
    for number in range(50):
        ann.put_object(Bucket="photos", Key=f"{number}", Body=b"1")
    system.metadata._events._next_look_s = 0.0  # type: ignore[attr-defined]
    part = ann.upload_part(Bucket="photos", Key="parts", UploadId=upload, PartNumber=1, Body=b"x")
    wanted = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    named_upload = {"Bucket": "photos", "Key": "parts", "UploadId": upload, "MultipartUpload": wanted}
    refused("ServiceUnavailable", 503, ann.complete_multipart_upload, **named_upload)
    sent(bench, system)
    system.metadata._events._next_look_s = 0.0  # type: ignore[attr-defined]
    ann.complete_multipart_upload(**named_upload)
    assert named(sent(bench, system))[50:] == [("ObjectCreated:CompleteMultipartUpload", "parts")]


def test_versions_have_their_ids(bench: Bench, system: System, ann: Any) -> None:
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    configure(ann, configuration())
    version = ann.put_object(Bucket="photos", Key="k", Body=b"1")["VersionId"]
    marker = ann.delete_object(Bucket="photos", Key="k")["VersionId"]
    ann.delete_object(Bucket="photos", Key="k", VersionId=version)
    records = sent(bench, system)
    assert [(one["eventName"], one["s3"]["object"]["versionId"]) for one in records] == [
        ("ObjectCreated:Put", version),
        ("ObjectRemoved:DeleteMarkerCreated", marker),
        ("ObjectRemoved:Delete", version),
    ]


def test_filters_and_topics(bench: Bench, system: System, ann: Any) -> None:
    configure(
        ann,
        configuration(prefix="in/", suffix=".png", entry_id="1"),
        configuration("gone", ["s3:ObjectRemoved:Delete"], prefix="out/", entry_id="2"),
    )
    for key in ("in/a.png", "in/a.gif", "out/b.png"):
        ann.put_object(Bucket="photos", Key=key, Body=b"1")
    ann.delete_object(Bucket="photos", Key="out/b.png")
    assert named(sent(bench, system)) == [("ObjectCreated:Put", "in/a.png")]
    assert named(sent(bench, system, "gone")) == [("ObjectRemoved:Delete", "out/b.png")]


def test_filters_are_url_encoded(bench: Bench, system: System, ann: Any) -> None:
    """S3 documents it like this: + is a space, and a plus sign is encoded."""
    configure(
        ann,
        configuration(prefix="a+b/", entry_id="1"),
        configuration(prefix="%c3%A9", suffix="%2B+", entry_id="2"),
        configuration(prefix="100%25", entry_id="3"),
        configuration(prefix="as it is", entry_id="4"),
    )
    wanted = ["a b/1", "é 1+ ", "100%", "as it is"]
    for key in (*wanted, "a+b/1", "é 1", "%C3%A9 + ", "100", "as+it+is"):
        ann.put_object(Bucket="photos", Key=key, Body=b"1")
    assert sorted(key for _, key in named(sent(bench, system))) == sorted(wanted)
    found = ann.get_bucket_notification_configuration(Bucket="photos")["TopicConfigurations"]
    assert found[1]["Filter"]["Key"]["FilterRules"][0]["Value"] == "%c3%A9", "it comes back as it was sent"


# Each family of characters that a message, a line or a log could break on.
HOSTILE = [
    "\x01\x1f\x7f",
    "a\nb\r\tc",
    "q\"uo'te\\",
    "<&>{}[]",
    "\u00e9\u202e\u2028\u2029\ufeff\uffff",
    "\U0001f600",
    "+ %2F%20//",
    "k" * 1024,
]


def test_hostile_keys_arrive_as_they_are(bench: Bench, system: System, ann: Any) -> None:
    configure(ann, configuration())
    for key in HOSTILE:
        ann.put_object(Bucket="photos", Key=key, Body=b"1")
        ann.delete_object(Bucket="photos", Key=key)
    found = named(sent(bench, system))
    assert len(found) == 2 * len(HOSTILE)
    for key in HOSTILE:
        assert [event for event, of in found if of == key] == ["ObjectCreated:Put", "ObjectRemoved:Delete"]


def test_the_sequencers_of_a_key_rise_whatever_happens_to_it(bench: Bench, system: System, ann: Any) -> None:
    """They rise without versions, with them, and in a suspended bucket. The removal of a marker by its id is not
    ordered."""
    configure(ann, configuration())
    k = {"Bucket": "photos", "Key": "k"}
    ann.put_object(**k)
    ann.delete_object(**k)
    ann.delete_object(**k)
    ann.put_object(**k)
    for status in ("Enabled", "Suspended"):
        ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": status})
        ann.put_object(**k)
        marker = ann.delete_object(**k)["VersionId"]
        if status == "Enabled":
            ann.delete_object(**k, VersionId=marker)
        ann.put_object(**k)
    found = sent(bench, system)
    assert [event.partition(":")[2] for event, _ in named(found)] == [
        *("Put", "Delete", "Put"),
        *("Put", "DeleteMarkerCreated", "Delete", "Put"),
        *("Put", "DeleteMarkerCreated", "Put"),
    ]
    sequencers = [one["s3"]["object"]["sequencer"] for number, one in enumerate(found) if number != 5]
    assert sequencers == sorted(set(sequencers))


def test_expired_objects(bench: Bench, system: System, ann: Any) -> None:
    configure(ann, configuration())
    ann.put_object(Bucket="photos", Key="old", Body=b"1")
    system.clock = SetClock(system.clock.now_ms() + 10 * 86_400_000)
    walk = system.worker.lifecycle_walk()
    walk.walk_bucket("photos", [ExpiryRule("all", days=1)])
    found = sent(bench, system)
    assert named(found) == [("ObjectCreated:Put", "old"), ("LifecycleExpiration:Delete", "old")]
    assert found[1]["userIdentity"] == {"principalId": "nos_ec"}


def test_the_library_sends_too(bench: Bench, system: System, ann: Any) -> None:
    configure(ann, configuration())
    bench.put(system, "k", b"1", bucket="photos")
    bench.delete(system, ObjectKey("photos", "k"))
    assert named(sent(bench, system)) == [("ObjectCreated:Put", "k"), ("ObjectRemoved:Delete", "k")]


def test_a_configuration_comes_back_and_can_be_removed(bench: Bench, system: System, ann: Any) -> None:
    entry = configuration(prefix="in/")
    queue: dict[str, Any] = {"Id": "q", "QueueArn": "arn:aws:sqs:here:12:gone", "Events": ["s3:ObjectRemoved:*"]}
    queue["Filter"] = {"Key": {"FilterRules": [{"Name": "prefix", "Value": "x&y"}]}}
    wanted = {"TopicConfigurations": [entry], "QueueConfigurations": [queue]}
    ann.put_bucket_notification_configuration(Bucket="photos", NotificationConfiguration=wanted)
    found = ann.get_bucket_notification_configuration(Bucket="photos")
    assert {name: found[name] for name in wanted} == wanted
    configure(ann)
    assert "TopicConfigurations" not in ann.get_bucket_notification_configuration(Bucket="photos")
    ann.put_object(Bucket="photos", Key="in/k", Body=b"1")
    assert sent(bench, system) == []


@pytest.mark.parametrize("left", ["", "gone"])
def test_what_waits_for_a_topic_that_is_removed_is_sent_and_nothing_more(bench: Bench, left: str) -> None:
    """This holds even if no topic is left."""
    settings = bench.config.read_text()
    bench.config.write_text(settings + SETTINGS)
    with bench.open() as system, serving(system, system.settings.s3) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        configure(ann, configuration())
        ann.put_object(Bucket="photos", Key="before", Body=b"1")
    bench.config.write_text(settings + SETTINGS.replace("changes, gone", left))
    with bench.open() as system, serving(system, system.settings.s3) as gateway:
        gateway.client("ann").put_object(Bucket="photos", Key="after", Body=b"1")
        assert named(sent(bench, system)) == [("ObjectCreated:Put", "before")]
        assert system.metadata.outbox_size(10) == 0


@pytest.mark.parametrize(
    ("entries", "code", "status"),
    [
        ([configuration("another")], "InvalidArgument", 400),
        ([configuration(events=["s3:ObjectRestore:Post"])], "InvalidArgument", 400),
        ([{**configuration(), "TopicArn": "changes"}], "InvalidArgument", 400),
        ([configuration(), configuration()], "InvalidArgument", 400),
        ([configuration(), configuration(entry_id="two", prefix="a")], "InvalidArgument", 400),
        ([configuration(prefix="a b"), configuration(entry_id="two", prefix="a+b%2F")], "InvalidArgument", 400),
        ([configuration(Middle="a")], "InvalidArgument", 400),
        ([configuration(prefix="100%")], "InvalidArgument", 400),
        ([configuration(suffix="%C3")], "InvalidArgument", 400),
    ],
    ids=["topic", "event", "arn", "id", "overlap", "overlap-encoded", "filter", "stray-percent", "not-utf-8"],
)
def test_wrong_configurations(gateway: Gateway, ann: Any, entries: list[Any], code: str, status: int) -> None:
    refused(
        code,
        status,
        ann.put_bucket_notification_configuration,
        Bucket="photos",
        NotificationConfiguration={"TopicConfigurations": entries},
    )
    bob = gateway.client("bob").put_bucket_notification_configuration
    refused("AccessDenied", 403, bob, Bucket="photos", NotificationConfiguration={})


def test_a_full_outbox_answers_503_and_other_buckets_go_on(bench: Bench, system: System, ann: Any) -> None:
    ann.create_bucket(Bucket="quiet")
    configure(ann, configuration())
    for number in range(50):
        ann.put_object(Bucket="photos", Key=f"{number}", Body=b"1")
    system.metadata._events._next_look_s = 0.0  # type: ignore[attr-defined]
    refused("ServiceUnavailable", 503, ann.put_object, Bucket="photos", Key="more", Body=b"1")
    refused("ServiceUnavailable", 503, ann.delete_object, Bucket="photos", Key="1")
    ann.put_object(Bucket="quiet", Key="k", Body=b"1")
    assert ann.get_object(Bucket="photos", Key="1")["Body"].read() == b"1"
    assert len(sent(bench, system)) == 50
    system.metadata._events._next_look_s = 0.0  # type: ignore[attr-defined]
    ann.put_object(Bucket="photos", Key="more", Body=b"1")
    assert named(sent(bench, system))[50:] == [("ObjectCreated:Put", "more")]


class Topics:
    """Topics, of which some fail, and some take all but the messages of some keys."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, str]] = []
        self.failing: set[str] = set()
        self.refused: set[bytes] = set()

    def publish_to(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, NosError]:
        if topic in self.failing:
            return dict.fromkeys(range(len(messages)), Transient("no such topic"))
        failures: dict[int, NosError] = {}
        for index, (key, value) in enumerate(messages):
            if key in self.refused and not any(messages[before][0] == key for before in failures):
                failures[index] = Transient("refused")
            else:
                record = json.loads(value)["Records"][0]
                self.taken.append((topic, key.decode(), record["eventName"]))
        return failures

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def sending(system: System, topics: Topics, clock: SetClock) -> Iterator[NotificationSender]:
    """A sender of all slots."""
    held = HeldSlots(system.metadata, clock, 10**9, None)
    held.keep()
    try:
        yield NotificationSender(system.metadata, topics, clock, held, 50)
    finally:
        held.release()


def test_a_topic_that_fails_waits_and_stops_no_other(system: System, ann: Any) -> None:
    configure(
        ann,
        configuration(events=["s3:ObjectCreated:*"], entry_id="1"),
        configuration("gone", ["s3:ObjectRemoved:*"], "2"),
    )
    for key in "ab":
        ann.put_object(Bucket="photos", Key=key, Body=b"1")
        ann.delete_object(Bucket="photos", Key=key)
        ann.put_object(Bucket="photos", Key=key, Body=b"1")
    topics, clock = Topics(), SetClock(system.clock.now_ms())
    topics.failing = {"changes"}
    with sending(system, topics, clock) as sender:
        assert sender.drain() == 2
        assert {topic for topic, _, _ in topics.taken} == {"gone"}
        assert (sender.counters.sent, sender.counters.failures, sender.counters.waiting) == (2, 1, 4)
        assert sender.turn() == 0
        assert sender.counters.failures == 1, "it must wait"
        topics.failing, topics.taken = set(), []
        topics.refused = {b"photos/a"}
        clock.advance(FAILED_WAIT_MS_MAX)
        assert sender.turn() == 2
        # The second event of `a` has arrived; it is sent again, after the first.
        assert [key for _, key, _ in topics.taken] == ["photos/a", "photos/b", "photos/b"]
        topics.refused, topics.taken = set(), []
        clock.advance(FAILED_WAIT_MS_MAX)
        assert sender.drain() == 2
        assert [key for _, key, _ in topics.taken] == ["photos/a", "photos/a"]
        assert system.metadata.outbox_size(10) == 0


def test_many_events_that_fail_stop_no_others_of_their_queue(
    system: System, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of one partition that has lost its leader."""
    monkeypatch.setattr(notifications, "BATCH_EVENTS", 5)
    configure(ann, configuration())
    poison = [f"bad{number}" for number in range(8)]
    for key in [*poison, *(f"good{number}" for number in range(12)), *poison]:
        ann.put_object(Bucket="photos", Key=key, Body=b"1")
    topics, clock = Topics(), SetClock(system.clock.now_ms())
    topics.refused = {f"photos/{key}".encode() for key in poison}
    with sending(system, topics, clock) as sender:
        for _ in range(20):
            sender.turn()
            clock.advance(1000)
        good = [key for _, key, _ in topics.taken if "good" in key]
        assert sorted(good) == sorted(f"photos/good{number}" for number in range(12))
        assert len(good) == sender.counters.sent == 12
        ann.put_object(Bucket="photos", Key="late", Body=b"1")
        clock.advance(notifications.HELD_READ_MS)
        assert sender.turn() == 1, "later events continue"
        topics.refused, topics.taken = set(), []
        clock.advance(FAILED_WAIT_MS_MAX)
        assert sender.drain() == 16
        assert [key for _, key, _ in topics.taken].count("photos/bad3") == 2
        assert (system.metadata.outbox_size(10), sender._held) == (0, {})


def test_failing_events_are_tried_again_less_and_less_often(system: System, ann: Any) -> None:
    configure(ann, configuration())
    ann.put_object(Bucket="photos", Key="bad", Body=b"1")
    topics, clock = Topics(), SetClock(system.clock.now_ms())
    topics.refused = {b"photos/bad"}
    with sending(system, topics, clock) as sender:
        for _ in range(600):
            sender.turn()
            clock.advance(1000)
        assert 10 < sender.counters.failures < 20


def test_no_more_failing_events_are_held_than_there_is_memory_for(
    system: System, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "BATCH_EVENTS", 5)
    monkeypatch.setattr(notifications, "HELD_EVENTS_MAX", 10)
    configure(ann, configuration())
    for number in range(30):
        ann.put_object(Bucket="photos", Key=f"bad{number}", Body=b"1")
    topics, clock = Topics(), SetClock(system.clock.now_ms())
    topics.failing = {"changes"}
    with sending(system, topics, clock) as sender:
        for _ in range(20):
            sender.turn()
            clock.advance(FAILED_WAIT_MS_MAX)
            assert all(len(held.keys) <= 15 for held in sender._held.values())
        topics.failing = set()
        assert sender.drain() == 30
