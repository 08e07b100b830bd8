"""Quotas of buckets and accounts, from the command that sets them to the PUT that is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import structlog

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt, InvalidInput, QuotaExceeded
from nos_ec.core.ids import ObjectKey
from nos_ec.core.quotas.quota import LIMIT_MAX, RATE_LEASE_PREFIX, Quota, decode, encode
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.quotas import USED_MS, Quotas
from nos_ec.engine.upkeep.usage_keeper import COUNT_AFTER_MS, UsageKeeper
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.server.rate_limits import KNOWN_MS
from nos_ec.ports.metadata import CannedAcl, DocumentKind, ObjectRow, PutRequest
from tests.rig.fakes.clock import SetClock
from tests.service.cli.test_cli import Cli
from tests.service.conftest import Bench
from tests.service.s3.s3_gateway import refused, serving
from tests.service.s3.test_usage import cli, counting, put, system

__all__ = ["cli", "counting", "system"]
LARGE = 3 << 20
"""The size of an object that gets blocks of its own."""


def count(system: System) -> None:
    """Let a producer count the buckets, as if they had been metered long ago."""
    clock = SetClock(system.clock.now_ms())
    keeper = UsageKeeper(system.metadata, clock)
    keeper.drain()
    clock.advance(COUNT_AFTER_MS + 1)
    keeper.drain()


@pytest.fixture
def limited(cli: Cli, counting: Bench) -> Iterator[System]:
    """A store whose bucket b holds 3 objects of 1000 bytes, of 5000 bytes or 10 objects that it may hold."""
    with counting.open() as system:
        for name in "xyz":
            put(system, name, 1000)
        assert cli("s3", "quota", "set", "b", "--bytes", "5000", "--objects", "10")["quota"]["hard_bytes"] == 5000
        count(system)
    with counting.open() as system:  # the other one remembers that there was no quota
        yield system


def held(system: System) -> int:
    found = system.metadata.bucket_usage("b")
    assert found is not None
    return found.held.bytes


def test_puts_beyond_a_quota_are_refused(limited: System) -> None:
    put(limited, "fits", 2000)
    with pytest.raises(QuotaExceeded, match="bucket b is 5000 bytes") as caught:
        put(limited, "one-more", 1)
    assert caught.value.key == ObjectKey("b", "one-more")
    assert held(limited) == 5000
    put(limited, "elsewhere", 9000, bucket="c")
    limited.client.store().put(ObjectKey("b", "empty"), BytesIO())


def test_the_number_of_objects_is_limited_also_for_bulk_loads(limited: System) -> None:
    store = limited.client.store()
    rows = [(ObjectKey("b", f"n{n}"), b"1") for n in range(8)]
    with pytest.raises(QuotaExceeded, match="10 objects"):
        store.put_many(rows)
    assert len(store.put_many(rows[:7])) == 7
    with pytest.raises(QuotaExceeded):
        store.put_many(rows[7:])


def test_a_large_object_is_refused_before_or_while_it_is_read(limited: System) -> None:
    """Nothing stays of it."""
    store = limited.client.store()
    with pytest.raises(QuotaExceeded):
        store.put(ObjectKey("b", "large"), BytesIO(bytes(LARGE)))
    assert held(limited) == 3000
    put(limited, "fits", 2000)


def test_what_is_deleted_makes_room(limited: System, monkeypatch: pytest.MonkeyPatch) -> None:
    put(limited, "fits", 2000)
    limited.client.store().delete(ObjectKey("b", "fits"))
    now_ms = limited.clock.now_ms
    with pytest.raises(QuotaExceeded):
        put(limited, "again", 2000)
    monkeypatch.setattr(limited.clock, "now_ms", lambda: now_ms() + USED_MS)
    put(limited, "again", 2000)


def test_a_rename_that_keeps_the_old_version_takes_room(limited: System) -> None:
    """Otherwise a bucket with versions could be filled by renaming an object again and again."""
    store = limited.client.store()
    put(limited, "fits", 2000)
    row = store.head(ObjectKey("b", "fits"))

    def rename(new: str, versioning: Versioning | None) -> ObjectRow:
        request = PutRequest(ObjectKey("b", new), versioning=versioning, length=row.size)
        return store.rename(row, request, lambda it: store.put_request(it, BytesIO(bytes(row.size))))

    with pytest.raises(QuotaExceeded):
        rename("new", Versioning.ENABLED)
    rename("new", None)
    assert held(limited) == 5000


def test_a_put_that_fails_gives_its_room_back(limited: System) -> None:
    class Broken:
        def read(self, size: int) -> bytes:
            raise OSError(f"no {size} bytes")

    for _ in range(5):
        with pytest.raises(OSError, match="bytes"):
            limited.client.store().put(ObjectKey("b", "broken"), Broken())
    put(limited, "fits", 2000)


def test_processes_exceed_a_quota_by_what_they_store_in_five_seconds(limited: System) -> None:
    clock = SetClock(limited.clock.now_ms())
    quotas = [Quotas(limited.metadata, clock) for _ in range(2)]
    key, refusals = ObjectKey("b", "k"), 0

    def try_to_put(quota: Quotas, number: int) -> None:
        with quota.admitted(key, 500, 0):
            put_plain(limited, f"{number}")

    for number in range(8):
        try:
            try_to_put(quotas[number % 2], number)
        except QuotaExceeded:
            refusals += 1
    assert (refusals, held(limited)) == (1, 6500), "neither knows of what the other has stored since it looked"
    clock.advance(USED_MS)
    for quota in quotas:
        with pytest.raises(QuotaExceeded):
            try_to_put(quota, 9)


def put_plain(system: System, name: str) -> None:
    """Store 500 bytes, whatever the quota is."""
    store = system.client.store()
    store._quotas = None
    store.put(ObjectKey("b", name), BytesIO(bytes(500)))


def test_s3_clients_get_quota_exceeded(cli: Cli, system: System) -> None:
    with serving(system, system.settings.s3) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos")
        cli("s3", "quota", "set", "photos", "--bytes", "6MiB")
        count(system)
        upload = ann.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
        named: dict[str, Any] = {"Bucket": "photos", "Key": "k", "UploadId": upload}
        etag = ann.upload_part(**named, PartNumber=1, Body=bytes(6 << 20))["ETag"]
        for call in (
            lambda: ann.upload_part(**named, PartNumber=2, Body=b"x"),
            lambda: ann.put_object(Bucket="photos", Key="other", Body=b"x"),
            lambda: ann.put_object(Bucket="photos", Key="other", Body=bytes(LARGE)),
        ):
            refused("QuotaExceeded", 403, call)
        parts = [{"PartNumber": 1, "ETag": etag}]
        ann.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
        assert ann.head_object(Bucket="photos", Key="k")["ContentLength"] == 6 << 20
        assert "Contents" in ann.list_objects_v2(Bucket="photos")


def test_an_account_has_a_quota_for_all_its_buckets(cli: Cli, counting: Bench) -> None:
    with counting.open() as system:
        system.metadata.create_bucket("one", "ann", CannedAcl.PRIVATE, 1)
        put(system, "before", 700, bucket="one")
        cli("s3", "quota", "set", "--account", "ann", "--bytes", "1000", "--soft-bytes", "800")
        system.metadata.create_bucket("two", "ann", CannedAcl.PRIVATE, 1)
        count(system)
    with counting.open() as system:
        shown = cli("s3", "quota", "show", "--account", "ann")
        assert shown["used"] == {"bytes": 700, "objects": 1}
        assert "hard limit of bytes: 1000 B" in cli.text("s3", "quota", "show", "--account", "ann")
        with structlog.testing.capture_logs() as logs:
            put(system, "k", 200, bucket="two")
            put(system, "l", 1, bucket="two")
        assert [one["of"] for one in logs if one["event"] == "soft quota exceeded"] == ["account ann"]
        with pytest.raises(QuotaExceeded, match="account ann"):
            put(system, "m", 200, bucket="one")
        assert cli("put", "one/m", __file__, exits=8)["error"] == "QuotaExceeded"
        accounts = Accounts(system.metadata, system.clock, bytes)
        assert list(accounts.keys()) == []
        assert accounts.encrypt_again(MasterKeys(["12" * 32])) == 0
        cli("s3", "quota", "remove", "--account", "ann")
        cli("s3", "quota", "remove", "--account", "ann")
        assert cli("s3", "quota", "show", "--account", "ann", exits=4)["error"] == "NotFound"


def test_rates_alone_meter_no_bucket(cli: Cli, system: System) -> None:
    system.metadata.create_bucket("one", "ann", CannedAcl.PRIVATE, 1)
    put(system, "k", 700, bucket="one")
    cli("s3", "quota", "set", "--account", "ann", "--requests-per-s", "5")
    count(system)
    assert system.metadata.bucket_usages("", 9) == []
    cli("s3", "quota", "set", "--account", "ann", "--requests-per-s", "5", "--objects", "9")
    count(system)
    assert system.metadata.account_usage("ann").objects == 1


def test_s3_clients_are_told_to_slow_down(cli: Cli, system: System) -> None:
    with serving(system, system.settings.s3) as gateway:
        cli("s3", "quota", "set", "--account", "ann", "--requests-per-s", "1", "--bytes-per-s", "1MiB")
        ann, bob = gateway.client("ann"), gateway.client("bob")
        ann.create_bucket(Bucket="photos")
        error = refused("SlowDown", 503, ann.list_buckets)
        assert error.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "1"
        for _ in range(20):
            bob.list_buckets()
        names = [one.name for one in system.metadata.list_leases("")]
        of_writers = [name for name in names if not name.startswith(RATE_LEASE_PREFIX)]
        assert len(names) == len(of_writers) + 1
        assert system.metadata.totals().leases == len(of_writers)
    assert "requests a second: 1" in cli.text("s3", "quota", "show", "--account", "ann")


def test_a_client_at_its_rate_waits_until_its_bytes_are_paid_back(
    cli: Cli, system: System, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore's own retries, with a clock that only its waits advance: each by a second, as Retry-After says."""
    waits: list[float] = []

    def wait(wished_s: float) -> None:
        waits.append(wished_s)
        clock.advance(1000)

    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=wait))
    cli("s3", "quota", "set", "--account", "ann", "--bytes-per-s", "50KiB")  # before the gateway reads the quotas
    with serving(system, system.settings.s3) as gateway:
        ann = gateway.client("ann", retries={"total_max_attempts": 9, "mode": "standard"})
        ann.create_bucket(Bucket="photos")
        ann.put_object(Bucket="photos", Key="k", Body=bytes(290 << 10))
        assert waits == []
        assert ann.get_object(Bucket="photos", Key="k")["ResponseMetadata"]["RetryAttempts"] == len(waits) == 5
        cli("s3", "quota", "remove", "--account", "ann")
        clock.advance(KNOWN_MS)
        ann.list_buckets()
        assert len(waits) == 5, "a removed rate applies no longer"


def test_anonymous_requests_have_rates_of_their_own(cli: Cli, system: System) -> None:
    with serving(system, system.settings.s3) as gateway:
        cli("s3", "quota", "set", "--anonymous", "--requests-per-s", "2", "--bytes-per-s", "1000")
        ann = gateway.client("ann")
        ann.create_bucket(Bucket="photos", ACL="public-read-write")
        puts = [gateway.raw("PUT", f"/photos/{n}", b"x", Expect="100-continue")[0] for n in range(2)]
        assert puts == [200, 200], "a request that is answered again with its body counts once"
        time.sleep(1)
        assert gateway.raw("PUT", "/photos/k", bytes(200_000))[0] == 200
        status, body, headers = gateway.raw("GET", "/photos/0")
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"<Code>SlowDown</Code>" in body
        assert ann.get_object(Bucket="photos", Key="k")["ContentLength"] == 200_000
    assert "requests a second: 2" in cli.text("s3", "quota", "show", "--anonymous")
    assert cli("s3", "quota", "remove", "--anonymous")["quota"] is None
    for words in (["--bytes", "5"], ["--account", "ann", "--requests-per-s", "5"]):
        assert cli("s3", "quota", "set", "--anonymous", *words, exits=2)["error"] == "InvalidInput"


def test_forms_and_requests_for_tokens_count_for_their_account(cli: Cli, system: System) -> None:
    with serving(system, system.settings.s3) as gateway:
        cli("s3", "quota", "set", "--account", "ann", "--bytes-per-s", "1000")
        ann, sts = gateway.client("ann"), gateway.client("ann", service="sts")
        ann.create_bucket(Bucket="photos")
        assert sts.get_caller_identity()["Account"]
        form = ann.generate_presigned_post("photos", "k")
        assert httpx.post(form["url"], data=form["fields"], files={"file": bytes(200_000)}).status_code == 204
        reply = httpx.post(form["url"], data=form["fields"], files={"file": b"x"})
        assert (reply.status_code, "SlowDown" in reply.text) == (503, True)
        refused("Throttling", 400, sts.get_caller_identity)
        refused("SlowDown", 503, ann.list_buckets)


def test_quotas_are_shown_replaced_and_removed(cli: Cli, limited: System) -> None:
    shown = cli("s3", "quota", "show", "b")
    assert shown["used"] == {"bytes": 3000, "objects": 3}
    assert (shown["quota"]["hard_bytes"], shown["quota"]["soft_bytes"]) == (5000, None)
    text = cli.text("s3", "quota", "show", "b")
    assert "hard limit of objects: 10" in text
    assert "used: 3" in text
    assert "usage b --stop" not in text
    assert "has a quota" in cli("usage", "b", "--stop", exits=2)["message"]
    assert cli("usage", "b", "--start")["metered"]
    assert cli("s3", "quota", "set", "b", "--soft-objects", "2")["quota"]["hard_bytes"] is None
    assert cli("s3", "quota", "remove", "b") == {"bucket": "b", "quota": None}
    assert cli("s3", "quota", "show", "b", exits=4)["error"] == "NotFound"
    assert [one["bucket"] for one in cli("usage")["buckets"]] == ["b"]


def test_wrong_quotas_are_refused(cli: Cli, bench: Bench) -> None:
    for words in (
        ["set", "b"],
        ["set", "--bytes", "5"],
        ["set", "b", "--account", "ann", "--bytes", "5"],
        ["set", "--account", "root", "--bytes", "5"],
        ["set", "b", "--bytes", "5", "--soft-bytes", "6"],
        ["set", "b", "--objects", "-1"],
        ["set", "b", "--objects", str(1 << 63)],
        ["set", "b", "--bytes", "9223372036854775808"],
        ["set", "b", "--requests-per-s", "5"],
        ["set", "--account", "ann", "--requests-per-s", "0"],
    ):
        assert cli("s3", "quota", *words, exits=2)["error"] == "InvalidInput"
    assert cli("s3", "quota", "set", "none", "--bytes", "5", exits=4)["error"] == "NotFound"
    bench.config.write_text(bench.config.read_text().replace("count_usage = true\n", ""))
    assert "store.count_usage" in cli("s3", "quota", "set", "b", "--bytes", "5", exits=3)["message"]


def test_a_damaged_quota_is_logged_and_not_applied(limited: System) -> None:
    limited.metadata.set_bucket_document("b", DocumentKind.QUOTA, b'{"hard_bytes": "x"}', 1)
    with structlog.testing.capture_logs() as logs:
        put(limited, "k", 9000)
    assert "quota not applied" in [one["event"] for one in logs]


@pytest.mark.parametrize("quota", [Quota(), Quota(1, 2, 3, 4, 5, 6), Quota(hard_objects=LIMIT_MAX)])
def test_a_quota_is_stored(quota: Quota) -> None:
    assert decode(encode(quota)) == quota
    assert quota.has_limits == (quota != Quota())


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[]",
        b"null",
        b'{"x": 1}',
        b'{"hard_bytes": -1}',
        b'{"hard_bytes": 1.5}',
        b'{"hard_bytes": true}',
        b'{"hard_bytes": NaN}',
        b'{"hard_bytes": 9223372036854775808}',
        b'{"soft_bytes": 2, "hard_bytes": 1}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_quota_is_damage(stored: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(stored)


def test_limits_have_a_range() -> None:
    for quota in (Quota(hard_bytes=LIMIT_MAX + 1), Quota(soft_objects=-1), Quota(soft_objects=2, hard_objects=1)):
        with pytest.raises(InvalidInput):
            quota.require_valid()
