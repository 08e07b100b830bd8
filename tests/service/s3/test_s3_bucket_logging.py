"""Access logs of buckets: configurations, and logs of real requests."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import NoSpace, Transient
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.server import log_batches
from nos_ec.ports.metadata import DocumentKind
from tests.service.s3.cell_stores import new_cells, serving_cells
from tests.service.s3.s3_gateway import SETTINGS, Gateway, refused, serving

LINE = re.compile(
    r'(\S+) (\S+) \[([^\]]+)\] (\S+) (\S+) (\S+) (\S+) (\S+) "([^"]*)" (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) "([^"]*)"'
    r' "([^"]*)" (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\S+)'
)
"""As programs that read logs of S3 parse a line."""
OPERATION, KEY, STATUS, CODE, SENT, SIZE, VERSION = 6, 7, 9, 10, 11, 12, 17


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 200)
    monkeypatch.setattr(log_batches, "RETRY_MS_MIN", 50)


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    with serving(system) as found:
        yield found


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    client = gateway.client("ann")
    client.create_bucket(Bucket="photos")
    client.create_bucket(Bucket="logs")
    return client


def enabled(target: str = "logs", prefix: str = "p/", **more: Any) -> dict[str, Any]:
    return {"LoggingEnabled": {"TargetBucket": target, "TargetPrefix": prefix, **more}}


def put(client: Any, bucket: str = "photos", **options: Any) -> None:
    client.put_bucket_logging(Bucket=bucket, BucketLoggingStatus=enabled(**options))


def logged(client: Any, count: int, target: str = "logs") -> list[tuple[str, ...]]:
    """The fields of the lines in the target, as soon as there are this many."""
    end_s = monotonic() + 30
    while True:
        keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=target).get("Contents", [])]
        bodies = [client.get_object(Bucket=target, Key=key)["Body"].read().decode() for key in keys]
        lines = "".join(bodies).splitlines()
        if len(lines) >= count:
            matches = [LINE.fullmatch(line) for line in lines]
            assert all(matches), lines
            return [match.groups() for match in matches if match]
        assert monotonic() < end_s, lines
        sleep(0.1)


def until(holds: Callable[[], object]) -> None:
    end_s = monotonic() + 30
    while not holds():
        assert monotonic() < end_s
        sleep(0.05)


def test_a_configuration_comes_back_as_it_was_set(ann: Any) -> None:
    assert "LoggingEnabled" not in ann.get_bucket_logging(Bucket="photos")
    formats: list[dict[str, Any]] = [
        {},
        {"TargetObjectKeyFormat": {"SimplePrefix": {}}},
        {"TargetObjectKeyFormat": {"PartitionedPrefix": {"PartitionDateSource": "EventTime"}}},
        {"TargetObjectKeyFormat": {"PartitionedPrefix": {"PartitionDateSource": "DeliveryTime"}}},
    ]
    for more in formats:
        put(ann, prefix="a<b>/", **more)
        assert (
            ann.get_bucket_logging(Bucket="photos")["LoggingEnabled"]
            == enabled(prefix="a<b>/", **more)["LoggingEnabled"]
        )
    ann.put_bucket_logging(Bucket="photos", BucketLoggingStatus={})
    assert "LoggingEnabled" not in ann.get_bucket_logging(Bucket="photos")


def test_a_partitioned_prefix_is_by_the_time_of_the_requests_by_default(ann: Any) -> None:
    put(ann, TargetObjectKeyFormat={"PartitionedPrefix": {}})
    found = ann.get_bucket_logging(Bucket="photos")["LoggingEnabled"]["TargetObjectKeyFormat"]
    assert found == {"PartitionedPrefix": {"PartitionDateSource": "EventTime"}}


def test_only_owners_set_a_log_and_only_to_a_bucket_of_the_same_owner(gateway: Gateway, ann: Any) -> None:
    bob = gateway.client("bob")
    bob.create_bucket(Bucket="bobs")
    refused("AccessDenied", 403, bob.put_bucket_logging, Bucket="photos", BucketLoggingStatus=enabled("bobs"))
    refused("AccessDenied", 403, bob.get_bucket_logging, Bucket="photos")
    for target in ("bobs", "missing"):
        wrong = {"Bucket": "photos", "BucketLoggingStatus": enabled(target)}
        refused("InvalidTargetBucketForLogging", 400, ann.put_bucket_logging, **wrong)
    # Root may set it, to a bucket of the same owner.
    root = gateway.client("root")
    put(root)
    refused(
        "InvalidTargetBucketForLogging",
        400,
        root.put_bucket_logging,
        Bucket="photos",
        BucketLoggingStatus=enabled("bobs"),
    )


@pytest.mark.parametrize(
    ("inside", "code", "status"),
    [
        ("<LoggingEnabled/>", "MalformedXML", 400),
        ("<LoggingEnabled><TargetBucket></TargetBucket></LoggingEnabled>", "MalformedXML", 400),
        ("<LoggingEnabled><TargetBucket>logs</TargetBucket><Other/></LoggingEnabled>", "MalformedXML", 400),
        ("<LoggingEnabled/><LoggingEnabled/>", "MalformedXML", 400),
        ("text", "MalformedXML", 400),
        (
            "<LoggingEnabled><TargetBucket>logs</TargetBucket><TargetObjectKeyFormat/></LoggingEnabled>",
            "MalformedXML",
            400,
        ),
        (
            "<LoggingEnabled><TargetBucket>logs</TargetBucket><TargetObjectKeyFormat><PartitionedPrefix>"
            "<PartitionDateSource>Never</PartitionDateSource></PartitionedPrefix></TargetObjectKeyFormat></LoggingEnabled>",
            "MalformedXML",
            400,
        ),
        (
            "<LoggingEnabled><TargetBucket>logs</TargetBucket><TargetPrefix>%s</TargetPrefix></LoggingEnabled>"
            % ("p" * 513),
            "InvalidArgument",
            400,
        ),
        (
            "<LoggingEnabled><TargetBucket>logs</TargetBucket><TargetPrefix>a/../</TargetPrefix></LoggingEnabled>",
            "InvalidArgument",
            400,
        ),
        (
            "<LoggingEnabled><TargetBucket>logs</TargetBucket><TargetGrants><Grant/></TargetGrants></LoggingEnabled>",
            "NotImplemented",
            501,
        ),
    ],
)
def test_wrong_configurations_are_refused(ann: Any, inside: str, code: str, status: int) -> None:
    def send(model: Any, params: dict[str, Any], **_: Any) -> None:
        params["body"] = f"<BucketLoggingStatus>{inside}</BucketLoggingStatus>".encode()

    ann.meta.events.register("before-call.s3.PutBucketLogging", send)
    refused(code, status, ann.put_bucket_logging, Bucket="photos", BucketLoggingStatus={})
    assert "LoggingEnabled" not in ann.get_bucket_logging(Bucket="photos")


def test_requests_to_a_bucket_are_logged_in_another(gateway: Gateway, ann: Any) -> None:
    put(ann)
    ann.put_object(Bucket="photos", Key="a b", Body=b"hello")
    ann.get_object(Bucket="photos", Key="a b", Range="bytes=0-1")["Body"].read()
    ann.head_object(Bucket="photos", Key="a b")
    refused("NoSuchKey", 404, ann.get_object, Bucket="photos", Key="missing")
    refused("AccessDenied", 403, gateway.client("bob").get_object, Bucket="photos", Key="a b")
    refused("AccessDenied", 403, gateway.client(None).list_objects_v2, Bucket="photos")
    ann.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "a b"}]})
    found = logged(ann, 7)
    shown = [(line[OPERATION], line[KEY], line[STATUS], line[CODE], line[SIZE], line[4]) for line in found]
    assert shown == [
        ("REST.PUT.OBJECT", "a%20b", "200", "-", "5", "ann"),
        ("REST.GET.OBJECT", "a%20b", "206", "-", "5", "ann"),
        ("REST.HEAD.OBJECT", "a%20b", "200", "-", "5", "ann"),
        ("REST.GET.OBJECT", "missing", "404", "NoSuchKey", "-", "ann"),
        ("REST.GET.OBJECT", "a%20b", "403", "AccessDenied", "-", "bob"),
        ("REST.GET.BUCKET", "-", "403", "AccessDenied", "-", "-"),
        ("REST.POST.MULTI_OBJECT_DELETE", "-", "200", "-", "-", "ann"),
    ]
    assert all(line[:2] == ("ann", "photos") and line[3] == "127.0.0.1" for line in found)
    assert [line[19] for line in found] == ["SigV4"] * 5 + ["-", "SigV4"]
    assert found[1][SENT] == "2"
    assert found[1][8] == "GET /photos/a%20b HTTP/1.1"
    keys = [entry["Key"] for entry in ann.list_objects_v2(Bucket="logs")["Contents"]]
    assert all(re.fullmatch(r"p/\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d-[0-9A-F]{16}", key) for key in keys)
    assert ann.head_object(Bucket="logs", Key=keys[0])["ContentType"] == "text/plain"


def test_a_request_with_a_wrong_signature_is_logged_too(gateway: Gateway, ann: Any) -> None:
    """It is logged even if nobody else uses the bucket, and without what authenticates it."""
    put(ann)
    url = ann.generate_presigned_url("get_object", {"Bucket": "photos", "Key": "k"})
    parts = urlsplit(url.replace("X-Amz-Expires=3600", "X-Amz-Expires=3601"))
    assert gateway.raw("GET", f"{parts.path}?{parts.query}")[0] == 403
    assert gateway.raw("OPTIONS", "/photos/k", Origin="http://web", Access_Control_Request_Method="GET")[0] == 403
    found = logged(ann, 2)
    assert [line[OPERATION] for line in found] == ["REST.GET.OBJECT", "REST.OPTIONS.PREFLIGHT"]
    assert found[0][CODE] == "SignatureDoesNotMatch"
    assert found[0][4] == "-"
    assert "X-Amz-Signature=REDACTED" in found[0][8]


def test_requests_to_a_website_are_logged(system: System) -> None:
    """Owners of websites read them to count visitors."""
    with serving(system, SETTINGS.model_copy(update={"website_domains": "web.example.com"})) as gateway:
        ann = gateway.client("ann")
        for bucket in ("photos", "logs"):
            ann.create_bucket(Bucket=bucket)
        ann.put_bucket_website(Bucket="photos", WebsiteConfiguration={"IndexDocument": {"Suffix": "i"}})
        ann.put_object(Bucket="photos", Key="i", Body=b"hello", ACL="public-read")
        put(ann)
        host: dict[str, Any] = {"Host": "photos.web.example.com"}
        assert gateway.raw("GET", "/", None, **host)[0] == 200
        assert gateway.raw("HEAD", "/missing%20page", None, **host)[0] == 403
        assert gateway.raw("DELETE", "/i", None, **host)[0] == 405
        assert gateway.raw("OPTIONS", "/i", Origin="http://web", Access_Control_Request_Method="GET", **host)[0] == 403
        assert gateway.raw("GET", "/", None, Host="none.web.example.com")[0] == 404
        found = logged(ann, 4)
    assert [(line[OPERATION], line[KEY], line[STATUS], line[CODE], line[SENT]) for line in found] == [
        ("WEBSITE.GET.OBJECT", "-", "200", "-", "5"),
        ("WEBSITE.HEAD.OBJECT", "missing%20page", "403", "AccessDenied", "-"),
        ("WEBSITE.DELETE.OBJECT", "i", "405", "MethodNotAllowed", found[2][SENT]),
        ("WEBSITE.OPTIONS.PREFLIGHT", "i", "403", "AccessForbidden", found[3][SENT]),
    ]
    assert all((line[1], line[4], line[22]) == ("photos", "-", "photos.web.example.com") for line in found)


def test_versions_and_partitions_are_named(ann: Any) -> None:
    ann.put_bucket_versioning(Bucket="photos", VersioningConfiguration={"Status": "Enabled"})
    put(ann, TargetObjectKeyFormat={"PartitionedPrefix": {"PartitionDateSource": "EventTime"}})
    version = ann.put_object(Bucket="photos", Key="k", Body=b"1")["VersionId"]
    ann.delete_object(Bucket="photos", Key="k", VersionId=version)
    assert [line[VERSION] for line in logged(ann, 2)] == [version, version]
    key = ann.list_objects_v2(Bucket="logs")["Contents"][0]["Key"]
    assert re.fullmatch(r"p/ann/us-east-1/photos/(\d{4})/(\d\d)/(\d\d)/\1-\2-\3-00-00-00-[0-9A-F]{16}", key), key


def test_a_log_in_its_own_bucket_does_not_grow_by_itself(ann: Any) -> None:
    put(ann, target="photos", prefix="logs/")
    put(ann, bucket="logs", target="photos", prefix="of-logs/")
    ann.put_object(Bucket="photos", Key="k", Body=b"1")
    until(lambda: ann.list_objects_v2(Bucket="photos", Prefix="logs/").get("Contents"))
    sleep(1)
    count = len(ann.list_objects_v2(Bucket="photos", Prefix="logs/")["Contents"])
    sleep(1)  # only the listings themselves are logged
    lines = [
        ann.get_object(Bucket="photos", Key=entry["Key"])["Body"].read().decode()
        for entry in ann.list_objects_v2(Bucket="photos", Prefix="logs/")["Contents"]
    ]
    assert len(lines) <= count + 2
    assert "REST.PUT.OBJECT logs/" not in "".join(lines)


def test_a_policy_may_deny_the_delivery_and_name_the_service(gateway: Gateway, ann: Any) -> None:
    allow = {
        "Effect": "Allow",
        "Principal": {"Service": "logging.s3.amazonaws.com"},
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::logs/p/*",
        "Condition": {
            "ArnLike": {"aws:SourceArn": "arn:aws:s3:::photos"},
            "StringEquals": {"aws:SourceAccount": "ann"},
        },
    }
    deny = allow | {"Effect": "Deny", "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:s3:::vid*"}}}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow, deny]})
    ann.put_bucket_policy(Bucket="logs", Policy=policy)
    ann.create_bucket(Bucket="videos")
    put(ann)
    put(ann, bucket="videos")
    ann.list_objects_v2(Bucket="videos")
    ann.list_objects_v2(Bucket="photos")
    sleep(1)
    assert {line[1] for line in logged(ann, 1)} == {"photos"}
    # The service is nobody else: the statement opens nothing to accounts.
    refused("AccessDenied", 403, gateway.client("bob").put_object, Bucket="logs", Key="p/x", Body=b"")


@pytest.mark.parametrize("service", ["s3.amazonaws.com", "logging.s3.amazonaws.com.evil"])
def test_other_services_are_not_supported(ann: Any, service: str) -> None:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::logs/*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    refused("NotImplemented", 501, ann.put_bucket_policy, Bucket="logs", Policy=policy)


def test_nothing_is_delivered_to_a_bucket_that_was_given_away(gateway: Gateway, ann: Any, system: System) -> None:
    put(ann)
    assert system.metadata.set_bucket_owner("logs", "bob", system.clock.now_ms())
    sleep(2.1)  # until gateways notice
    ann.put_object(Bucket="photos", Key="k", Body=b"1")
    sleep(1)
    assert gateway.client("bob").list_objects_v2(Bucket="logs")["KeyCount"] == 0


@pytest.mark.parametrize("error", [NoSpace("full"), Transient("away")])
def test_a_target_that_fails_delays_no_request_and_gets_its_log_later(
    ann: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    put(ann)
    real, failures = ObjectOperations.put_object, list[str]()

    def fails(self: ObjectOperations, call: Any) -> Any:
        if call.bucket == "logs" and len(failures) < 3:
            failures.append(call.key)
            raise error
        return real(self, call)

    monkeypatch.setattr(ObjectOperations, "put_object", fails)
    ann.list_objects_v2(Bucket="photos")
    (line,) = logged(ann, 1)
    assert line[OPERATION] == "REST.GET.BUCKET"
    assert len(failures) == 3
    assert len(set(failures)) == 1


def test_a_repeated_delivery_stores_nothing_twice(ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the first attempt was lost."""
    ann.put_bucket_versioning(Bucket="logs", VersioningConfiguration={"Status": "Enabled"})
    put(ann)
    real, lost = ObjectOperations.put_object, list[str]()

    def loses(self: ObjectOperations, call: Any) -> Any:
        reply = real(self, call)
        if call.bucket == "logs" and not lost:
            lost.append(call.key)
            raise Transient("the answer is lost")
        return reply

    monkeypatch.setattr(ObjectOperations, "put_object", loses)
    ann.list_objects_v2(Bucket="photos")
    until(lambda: lost)
    sleep(1)
    versions = ann.list_object_versions(Bucket="logs")["Versions"]
    assert [version["Key"] for version in versions] == lost


def test_the_rest_is_stored_when_the_gateway_ends(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_AGE_MS", 900_000)
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        ann.create_bucket(Bucket="logs")
        put(ann)
        ann.list_objects_v2(Bucket="photos")
        assert ann.list_objects_v2(Bucket="logs")["KeyCount"] == 0
    with serving(system) as gateway:
        assert len(logged(gateway.client("ann"), 1)) == 1


def test_a_log_obeys_the_lock_and_the_encryption_of_its_bucket(gateway: Gateway, ann: Any) -> None:
    ann.create_bucket(Bucket="kept", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    ann.put_object_lock_configuration(
        Bucket="kept", ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    put(ann, target="kept")
    ann.list_objects_v2(Bucket="photos")
    assert len(logged(ann, 1, "kept")) == 1
    key = ann.list_objects_v2(Bucket="kept")["Contents"][0]["Key"]
    assert ann.get_object_retention(Bucket="kept", Key=key)["Retention"]["Mode"] == "GOVERNANCE"


def test_a_configuration_that_cannot_be_read_stops_the_log_alone(gateway: Gateway, ann: Any) -> None:
    assert gateway.system.metadata.set_bucket_document("photos", DocumentKind.LOGGING, b"?", 5)
    sleep(2.1)
    ann.put_object(Bucket="photos", Key="k", Body=b"1")
    put(ann)
    ann.put_object(Bucket="photos", Key="k", Body=b"1")
    assert [line[OPERATION] for line in logged(ann, 1)] == ["REST.PUT.OBJECT"]


def test_a_slow_request_is_logged_with_its_times(gateway: Gateway, ann: Any) -> None:
    put(ann)
    ann.put_bucket_acl(Bucket="photos", ACL="public-read-write")
    parts = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("PUT", "/photos/k")
    connection.putheader("content-length", "2")
    connection.endheaders(b"a")
    sleep(0.5)
    connection.send(b"b")
    assert connection.getresponse().status == 200
    connection.close()
    found = [line for line in logged(ann, 2) if line[OPERATION] == "REST.PUT.OBJECT"]
    assert int(found[0][13]) >= 500
    assert found[0][SIZE] == "2"


def test_source_and_target_may_be_in_different_cells(tmp_path: Path) -> None:
    with serving_cells(new_cells(tmp_path, a=1, b=1, c=1)) as (cells, gateway):
        ann = gateway.client("ann")
        names = [f"bucket-{number}" for number in range(8)]
        for name in names:
            ann.create_bucket(Bucket=name)
        homes = {row.bucket: row.home for row in cells.directory.metadata.directory_page("", 1000)}
        source = names[0]
        target = next(name for name in names if homes[name] != homes[source])
        put(ann, bucket=source, target=target)
        ann.put_object(Bucket=source, Key="k", Body=b"1")
        assert [line[OPERATION] for line in logged(ann, 1, target)] == ["REST.PUT.OBJECT"]
        missing = {"Bucket": source, "BucketLoggingStatus": enabled("missing")}
        refused("InvalidTargetBucketForLogging", 400, ann.put_bucket_logging, **missing)
