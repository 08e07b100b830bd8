"""The lines of the access logs of buckets, and how they are collected and delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

import pytest

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.errors import Transient
from nos_ec.gateway.auth.access import BucketAccess
from nos_ec.gateway.auth.log_target import KeyFormat, LogTarget, decode_target
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.bucket_logging import LogObject
from nos_ec.gateway.server import log_batches
from nos_ec.gateway.server.log_batches import AccessLogs
from nos_ec.gateway.server.log_lines import log_line, operation_name
from nos_ec.gateway.server.record import Record
from nos_ec.ports.metadata import BucketRow
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from tests.rig.waiting import WAIT_S_MAX, until

AT_MS = 1_549_411_238_900
"""2019-02-06 00:00:38.9 UTC."""


def record_of(bucket: str = "photos", target: LogTarget | None = None, **facts: object) -> Record:
    record = Record("3E57", "GET", "192.0.2.3", operation="GetObject", bucket=bucket, key="a b/ü", account="bob")
    record.logged = BucketAccess(BucketRow(bucket, "ann", 5), {}, "private", logging=target or LogTarget("logs", "p/"))
    record.status, record.sent, record.first_byte_s, record.whole_s = 206, 3, 0.004, 0.0271
    for name, value in facts.items():
        setattr(record, name, value)
    return record


def request_of(target: bytes = b"/photos/a%20b/%C3%BC", *headers: tuple[bytes, bytes], method: str = "GET") -> Request:
    path, _, query = target.partition(b"?")
    return Request(method, path, query, [(b"host", b"s3.example.com"), *headers])


def test_a_line_has_the_26_fields_of_s3() -> None:
    headers = [(b"user-agent", b'a "b" c\n'), (b"referer", b"http://x/y z"), (b"authorization", b"AWS4-HMAC-SHA256 x")]
    reply = Reply(206, {"content-range": "bytes 0-2/9000000", "x-amz-version-id": "v 1"}, b"abc")
    request = request_of(b"/photos/a%20b/%C3%BC", *headers)
    found = log_line(record_of(), request, reply, AT_MS, ("ECDHE", "TLSv1.3"), "1.1")
    assert found == (
        b"ann photos [06/Feb/2019:00:00:38 +0000] 192.0.2.3 bob 3E57 REST.GET.OBJECT a%20b/%C3%BC"
        b' "GET /photos/a%20b/%C3%BC HTTP/1.1" 206 - 3 9000000 27 4 "http://x/y z" "a %22b%22 c%0A" v%201 -'
        b" SigV4 ECDHE AuthHeader s3.example.com TLSv1.3 - -\n"
    )


def test_what_is_unknown_is_a_dash() -> None:
    record = record_of(account=None, key="", operation="ListObjectsV2", status=403, code="AccessDenied", sent=0)
    found = log_line(record, request_of(b"/photos?list-type=2"), None, AT_MS, None, "1.0")
    assert found == (
        b"ann photos [06/Feb/2019:00:00:38 +0000] 192.0.2.3 - 3E57 REST.GET.BUCKET -"
        b' "GET /photos?list-type=2 HTTP/1.0" 403 AccessDenied - - 27 4 "-" "-" - - - - - s3.example.com - - -\n'
    )


def test_nothing_that_authenticates_a_request_is_in_the_log() -> None:
    query = b"?X-Amz-Algorithm=A&X%2DAmz-Signature=5ecret&x-amz-security-token=5ecret&X-Amz-Expires=9&versionId=v2"
    found = log_line(record_of(), request_of(b"/photos/k" + query), None, AT_MS, None, "1.1")
    assert b"5ecret" not in found
    assert b"X-Amz-Algorithm=A&X%2DAmz-Signature=REDACTED&x-amz-security-token=REDACTED&X-Amz-Expires=9" in found
    assert b" v2 - SigV4 - QueryString " in found
    old = log_line(record_of(), request_of(b"/photos/k?AWSAccessKeyId=K&Signature=5ecret"), None, AT_MS, None, "1.1")
    assert b"5ecret" not in old
    assert b" SigV2 - QueryString " in old


@pytest.mark.parametrize("start", [b"x-amz-", b"x-amz-copy-source-", b"X-Amz%2D"])
def test_a_key_of_a_customer_in_a_url_is_not_in_the_log(start: bytes) -> None:
    """Such a request is refused, or the key has no effect, but readers of the log could use the key."""
    start += b"server-side-encryption-customer-"
    query = b"?%balgorithm=A&%bkey=5ecret&%bkey-MD5=5ecret" % (start, start, start)
    found = log_line(record_of(), request_of(b"/photos/k" + query), None, AT_MS, None, "1.1")
    assert b"5ecret" not in found
    assert b"customer-algorithm=" in found


def test_no_field_ends_early_whatever_clients_send() -> None:
    nasty = b'"\r\n\x00 \xff' * 999
    headers = [(b"user-agent", nasty), (b"referer", nasty), (b"x-amz-decoded-content-length", nasty)]
    record = record_of(operation="PutObject", key='"\n \udcff')
    found = log_line(record, request_of(b'/"\n\xff?%zz=\xff"', *headers, (b"host", nasty)), Reply(), AT_MS, None, "1.1")
    assert found.index(b"\n") == len(found) - 1
    assert found.count(b'"') == 6
    assert len(b"".join(found.split(b'"')[::2]).split()) == 24  # 3 of 26 fields are in quotes; the time has a space
    assert len(found) < 40_000


@pytest.mark.parametrize(
    ("operation", "method", "name"),
    [
        ("GetObject", "GET", "REST.GET.OBJECT"),
        ("CopyObject", "PUT", "REST.COPY.OBJECT"),
        ("UploadPartCopy", "PUT", "REST.COPY.PART"),
        ("DeleteObjects", "POST", "REST.POST.MULTI_OBJECT_DELETE"),
        ("CompleteMultipartUpload", "POST", "REST.POST.UPLOAD"),
        ("HeadBucket", "HEAD", "REST.HEAD.BUCKET"),
        ("GetBucketVersioning", "GET", "REST.GET.VERSIONING"),
        ("GetBucketLogging", "GET", "REST.GET.LOGGING_STATUS"),
        ("PutBucketPolicy", "PUT", "REST.PUT.BUCKETPOLICY"),
        ("PutBucketLifecycleConfiguration", "PUT", "REST.PUT.LIFECYCLE"),
        ("GetPublicAccessBlock", "GET", "REST.GET.PUBLIC_ACCESS_BLOCK"),
        ("PutObjectTagging", "PUT", "REST.PUT.OBJECT_TAGGING"),
        ("OPTIONS", "OPTIONS", "REST.OPTIONS.PREFLIGHT"),
    ],
)
def test_operations_have_the_names_of_s3(operation: str, method: str, name: str) -> None:
    assert operation_name(operation, method) == name
    assert operation_name(operation, method, is_website=True) == name.replace("REST", "WEBSITE")


@pytest.mark.parametrize(
    ("key_format", "key"),
    [
        (KeyFormat.DEFAULT, "p/2019-02-07-01-00-38-U"),
        (KeyFormat.SIMPLE, "p/2019-02-07-01-00-38-U"),
        (KeyFormat.EVENT, "p/ann/eu/photos/2019/02/06/2019-02-06-00-00-00-U"),
        (KeyFormat.DELIVERY, "p/ann/eu/photos/2019/02/07/2019-02-07-01-00-38-U"),
    ],
)
def test_keys_have_the_formats_of_s3(key_format: KeyFormat, key: str) -> None:
    target = LogTarget("logs", "p/", key_format)
    assert target.key("ann", "eu", "photos", AT_MS, AT_MS + 90_000_000, "U") == key
    assert decode_target(target.encode()) == target


@pytest.mark.parametrize("stored", [b"", b"{}", b'["a", "b"]', b'["a", "b", "c"]', b"[1, 2, 3]"])
def test_a_damaged_target_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_target(stored)


class Target:
    """A store of log objects that fails on demand."""

    def __init__(self) -> None:
        self.stored: list[LogObject] = []
        self.tried: list[LogObject] = []
        self.errors: dict[str, Exception] = {}

    def store(self, log: LogObject) -> None:
        self.tried.append(log)
        if log.target in self.errors:
            raise self.errors[log.target]
        self.stored.append(log)

    def lines(self) -> int:
        return sum(log.body.count(b"\n") for log in self.stored)


@contextmanager
def logs_of(store: Callable[[LogObject], None]) -> Iterator[AccessLogs]:
    numbers = iter(range(10_000))
    logs = AccessLogs(store, "eu", SystemClock(), lambda: f"{next(numbers)}")
    try:
        yield logs
    finally:
        logs.close()


def add(logs: AccessLogs, record: Record | None = None, target: bytes = b"/photos/k") -> None:
    logs.add(record or record_of(), request_of(target), None, None, "1.1")


@pytest.fixture
def target() -> Target:
    return Target()


def test_lines_of_a_bucket_are_delivered_together_at_the_end(target: Target) -> None:
    with logs_of(target.store) as logs:
        for _ in range(100):
            add(logs)
        add(logs, record_of("videos"))
    assert [(log.source, log.body.count(b"\n")) for log in target.stored] == [("photos", 100), ("videos", 1)]
    assert len({log.key for log in target.stored}) == 2
    assert (logs.delivered, logs.dropped, logs._bytes) == (101, 0, {})


def test_nothing_is_started_for_buckets_without_a_log(target: Target) -> None:
    with logs_of(target.store) as logs:
        assert logs._thread is None


def test_lines_are_delivered_when_they_are_old(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 200)
    with logs_of(target.store) as logs:
        add(logs)
        assert not target.stored
        until(lambda: logs.delivered == 1)
        add(logs)
        until(lambda: logs.delivered == 2)
    assert len(target.stored) == 2


def test_lines_are_delivered_when_they_are_many(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_BYTES_MAX", 10_000)
    with logs_of(target.store) as logs:
        for _ in range(100):
            add(logs)
        until(lambda: len(target.stored) >= 2)
        assert all(len(log.body) <= 10_000 for log in target.stored)
    assert target.lines() == logs.delivered == 100


def test_another_owner_target_or_day_gets_an_object_of_its_own(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    by_day = LogTarget("logs", "p/", KeyFormat.EVENT)
    with logs_of(target.store) as logs:
        add(logs)
        add(logs, record_of(target=LogTarget("logs", "q/")))
        of_bob = record_of()
        assert of_bob.logged is not None
        of_bob.logged = replace(of_bob.logged, row=BucketRow("photos", "bob", 5))
        add(logs, of_bob)
        add(logs, record_of(target=by_day))
        monkeypatch.setattr(log_batches, "DAY_MS", log_batches.DAY_MS // 7)
        add(logs, record_of(target=by_day))
    assert len(target.stored) == 5


def test_a_target_that_is_away_is_tried_again_under_the_same_key(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    monkeypatch.setattr(log_batches, "RETRY_MS_MIN", 10)
    target.errors["logs"] = Transient("away")
    with logs_of(target.store) as logs:
        add(logs)
        until(lambda: len(target.tried) > 3)
        add(logs, record_of("videos", LogTarget("others", "")))
        until(lambda: logs.delivered == 1)  # it does not wait for the other one
        del target.errors["logs"]
        until(lambda: logs.delivered == 2)
    assert len({log.key for log in target.tried}) == 2
    assert (logs.dropped, logs._bytes) == (0, {})


def test_a_target_that_is_away_gets_one_attempt_for_all_its_sources(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt may last until a time-out, and all targets share a thread."""
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    monkeypatch.setattr(log_batches, "RETRY_MS_MIN", 60_000)
    target.errors["logs"] = Transient("away")
    with logs_of(target.store) as logs:
        for number in range(50):
            add(logs, record_of(f"photos-{number}"))
        until(lambda: target.tried)
        add(logs, record_of("videos", LogTarget("others", "")))
        until(lambda: logs.delivered == 1)
        assert [log.target for log in target.tried] == ["logs", "others"]
        target.errors.clear()
    assert (logs.delivered, logs.dropped, logs._failing) == (51, 0, {})


def test_at_the_end_targets_that_are_away_come_last(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is little time then, which they may use up."""
    monkeypatch.setattr(log_batches, "RETRY_MS_MIN", 60_000)
    monkeypatch.setattr(log_batches, "BATCH_BYTES_MAX", 0)
    target.errors["logs"] = Transient("away")
    with logs_of(target.store) as logs:
        add(logs)
        until(lambda: target.tried)
        monkeypatch.setattr(log_batches, "BATCH_BYTES_MAX", 1 << 20)
        for number in range(5):
            add(logs, record_of(f"photos-{number}"))
        add(logs, record_of("videos", LogTarget("others", "")))
    assert [log.target for log in target.tried] == ["logs", "others", *["logs"] * 6]
    assert (logs.delivered, logs.dropped) == (1, 6)


def test_lines_that_are_too_old_need_no_attempt_of_their_own(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    monkeypatch.setattr(log_batches, "GIVE_UP_MS", 300)
    monkeypatch.setattr(log_batches, "RETRY_MS_MIN", 400)
    target.errors["logs"] = Transient("away")
    with logs_of(target.store) as logs:
        for number in range(50):
            add(logs, record_of(f"photos-{number}"))
        until(lambda: logs.dropped == 50)
        assert len(target.tried) <= 3
        assert not logs._bytes


@pytest.mark.parametrize(
    "error",
    [S3Error("InvalidTargetBucketForLogging", "none"), S3Error("AccessDenied", "no"), S3Error("NoSuchBucket", "")],
)
def test_what_the_target_refuses_is_dropped_at_once(
    target: Target, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    target.errors["logs"] = error
    with logs_of(target.store) as logs:
        add(logs)
        until(lambda: logs.dropped == 1)
    assert (len(target.tried), logs.delivered, logs._bytes) == (1, 0, {})


@pytest.mark.parametrize("error", [Transient("away"), S3Error("ServiceUnavailable", "away"), ValueError("a bug")])
def test_lines_are_given_up_at_last(target: Target, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    monkeypatch.setattr(log_batches, "RETRY_MS_MIN", 10)
    target.errors["logs"] = error
    with logs_of(target.store) as logs:
        add(logs)
        until(lambda: len(target.tried) > 2)
        assert logs.dropped == 0
        monkeypatch.setattr(log_batches, "GIVE_UP_MS", 1)
        until(lambda: logs.dropped == 1)


def test_memory_is_bounded_and_one_target_leaves_room_for_others(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_batches, "LINES_BYTES_MAX", 100_000)
    target.errors["logs"] = Transient("away")
    with logs_of(target.store) as logs:
        for _ in range(1000):
            add(logs)
        assert logs._bytes["logs"] <= 25_000
        kept = 1000 - logs.dropped
        assert 90 < kept < 110
        add(logs, record_of("videos", LogTarget("others", "")))
        assert logs.dropped == 1000 - kept
        for number in range(1000):
            add(logs, record_of("videos", LogTarget(f"other-{number % 10}", "")))
        assert logs._bytes.total() <= 100_000
        del target.errors["logs"]
    assert logs.delivered + logs.dropped == 2001
    assert target.lines() == logs.delivered


def test_a_process_ends_although_its_target_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "CLOSE_WAIT_S", 0.3)
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    ends, begun = threading.Event(), threading.Event()

    def hang(_: LogObject) -> None:
        begun.set()
        ends.wait(WAIT_S_MAX)

    with logs_of(hang) as logs:
        add(logs)
        assert begun.wait(WAIT_S_MAX)
        add(logs, record_of("videos"))
        began_s = monotonic()
        logs.close()
        assert monotonic() - began_s < WAIT_S_MAX / 2
        assert logs.dropped == 1  # the other one is not known to be lost
        ends.set()
        add(logs)
        assert logs.dropped == 2  # too late


def test_adding_never_waits_for_a_target_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 0)
    ends, begun = threading.Event(), threading.Event()

    def hang(_: LogObject) -> None:
        begun.set()
        ends.wait(WAIT_S_MAX)

    with logs_of(hang) as logs:
        add(logs)
        assert begun.wait(WAIT_S_MAX)
        began_s = monotonic()
        for _ in range(100):
            add(logs)
        assert monotonic() - began_s < WAIT_S_MAX / 2
        ends.set()
    assert logs.delivered == 101
