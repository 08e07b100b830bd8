"""Random histories of requests in a bucket with object lock, encrypted and not, near its quota, and of other programs,
with clocks that jump ahead: no locked version is lost, each keeps its bytes, and a rebuild of the metadata keeps both.

`tests/service/objects/test_locked_histories.py` does the same below the gateway.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_consumer.assemble import drain
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.ports.metadata import ExpireVersion
from nos_gc.assemble import gc_service
from tests.service.cli.test_cli import Cli
from tests.service.conftest import Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.s3.s3_gateway import MASTERS, Gateway, serving
from tests.service.s3.test_quotas import count
from tests.service.s3.test_usage import cli, counting

__all__ = ["cli", "counting"]
pytestmark = [pytest.mark.invariant(11)]

BUCKET = "locked"
KEYS = ["x", "y", "z"]
FAR_MS = 4_000_000_000_000
FAR = datetime.datetime(2096, 1, 1, tzinfo=datetime.UTC)
FARTHER = datetime.datetime(2097, 1, 1, tzinfo=datetime.UTC)
STEPS, JUMP = 90, 50
OBJECTS_MAX = 45
"""The quota of the bucket, in objects."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A locked version: its bytes, and its lock. `until` is None without a retention."""

    key: str
    body: bytes
    mode: str | None = None
    until: datetime.datetime | None = None
    hold: bool = False


class History:
    """Operations on KEYS. `kept` has the versions that must exist, by their ids."""

    def __init__(self, bench: Bench, system: System, client: Any, rng: random.Random) -> None:
        self.bench = bench
        self.system = system
        self.client = client
        self.rng = rng
        self.kept: dict[str, Kept] = {}
        self.bodies: dict[str, bytes] = {}
        """The bytes of each version that this history stored."""
        self.refusals = 0

    def step(self) -> str:
        """Do something. Returns its name."""
        common = [self.put, self.upload, self.copy, self.rename, self.delete_version, self.change, self.change]
        others = [self.delete, self.delete_many, self.tag, self.library, self.expire, self.undelete]
        chosen: Callable[[], None] = self.rng.choice([*common, *others, self.pack])
        try:
            chosen()
        except (ClientError, NosError):
            self.refusals += 1
        return chosen.__name__

    def key(self) -> str:
        return self.rng.choice(KEYS)

    def any_version(self) -> dict[str, str]:
        """The key and the id of a version."""
        found = self.versions()
        if not found:
            return {"Bucket": BUCKET, "Key": "x", "VersionId": f"{5:016x}"}
        version = self.rng.choice(sorted(found))
        return {"Bucket": BUCKET, "Key": found[version], "VersionId": version}

    def versions(self) -> dict[str, str]:
        """The keys of all versions, by their ids."""
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
        return {one["VersionId"]: one["Key"] for page in pages for one in page.get("Versions", [])}

    def options(self) -> tuple[dict[str, Any], Kept]:
        """Headers of a PUT, and the lock that they set."""
        body = self.rng.randbytes(self.rng.choice([5, 900, 70_000]))
        mode = self.rng.choice([None, None, "GOVERNANCE", "COMPLIANCE"])
        hold = self.rng.random() < 0.2
        more: dict[str, Any] = {"ServerSideEncryption": "AES256"} if self.rng.random() < 0.5 else {}
        if mode is not None:
            more |= {"ObjectLockMode": mode, "ObjectLockRetainUntilDate": FAR}
        if hold:
            more["ObjectLockLegalHoldStatus"] = "ON"
        return more, Kept("", body, mode, None if mode is None else FAR, hold)

    def stored(self, version: str, key: str, lock: Kept) -> None:
        self.bodies[version] = lock.body
        if lock.mode is not None or lock.hold:
            self.kept[version] = Kept(key, lock.body, lock.mode, lock.until, lock.hold)

    def put(self) -> None:
        key, (more, lock) = self.key(), self.options()
        self.stored(self.client.put_object(Bucket=BUCKET, Key=key, Body=lock.body, **more)["VersionId"], key, lock)

    def upload(self) -> None:
        key, (more, lock) = self.key(), self.options()
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key=key, **more)["UploadId"]
        named = {"Bucket": BUCKET, "Key": key, "UploadId": upload}
        part = self.client.upload_part(**named, PartNumber=1, Body=lock.body)
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        done = self.client.complete_multipart_upload(**named, MultipartUpload=parts)
        self.stored(done["VersionId"], key, lock)

    def copy(self) -> None:
        source, key, (more, lock) = self.any_version(), self.key(), self.options()
        done = self.client.copy_object(Bucket=BUCKET, Key=key, CopySource=source, MetadataDirective="REPLACE", **more)
        body = self.bodies[source["VersionId"]]
        self.stored(done["VersionId"], key, Kept(key, body, lock.mode, lock.until, lock.hold))

    def rename(self) -> None:
        old, key = self.key(), self.key()
        body = self.client.get_object(Bucket=BUCKET, Key=old)["Body"].read()
        self.client.rename_object(Bucket=BUCKET, Key=key, RenameSource=old)
        head = self.client.head_object(Bucket=BUCKET, Key=key)
        self.bodies[head["VersionId"]] = body

    def delete(self) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=self.key())

    def delete_version(self) -> None:
        version, bypass = self.any_version(), self.rng.random() < 0.5
        self.client.delete_object(**version, BypassGovernanceRetention=bypass)
        self.gone(version["VersionId"], bypass)

    def delete_many(self) -> None:
        bypass = self.rng.random() < 0.3
        named = [{"Key": key, "VersionId": version} for version, key in self.versions().items()]
        named = self.rng.sample(named, min(len(named), 5))
        if named:
            many = {"Objects": named}
            answer = self.client.delete_objects(Bucket=BUCKET, Delete=many, BypassGovernanceRetention=bypass)
            for one in answer.get("Deleted", []):
                self.gone(one["VersionId"], bypass)

    def gone(self, version: str, bypass: bool) -> None:
        kept = self.kept.pop(version, None)
        if kept is not None:
            assert bypass
            assert (kept.mode, kept.hold) == ("GOVERNANCE", False)

    def change(self) -> None:
        version, bypass = self.any_version(), self.rng.random() < 0.5
        before = self.kept.get(version["VersionId"], Kept(version["Key"], self.bodies.get(version["VersionId"], b"")))
        if self.rng.random() < 0.4:
            hold = self.rng.random() < 0.5
            self.client.put_object_legal_hold(**version, LegalHold={"Status": "ON" if hold else "OFF"})
            after = Kept(before.key, before.body, before.mode, before.until, hold)
        else:
            mode = self.rng.choice([None, "GOVERNANCE", "COMPLIANCE"])
            until = None if mode is None else self.rng.choice([FAR, FARTHER])
            retention = {} if mode is None else {"Mode": mode, "RetainUntilDate": until}
            self.client.put_object_retention(**version, Retention=retention, BypassGovernanceRetention=bypass)
            is_extended = mode == before.mode and (until or FAR) >= (before.until or FAR)
            assert before.mode is None or is_extended or (bypass and before.mode == "GOVERNANCE")
            after = Kept(before.key, before.body, mode, until, before.hold)
        self.kept.pop(version["VersionId"], None)
        if after.mode is not None or after.hold:
            self.kept[version["VersionId"]] = after

    def tag(self) -> None:
        self.client.put_object_tagging(**self.any_version(), Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})

    def library(self) -> None:
        """The Python library and the command line, which have no rights to ask for."""
        store = self.system.client.store()
        store.delete_many([ObjectKey(BUCKET, key) for key in KEYS], permanently=self.rng.random() < 0.5)

    def expire(self) -> None:
        rows = [
            row for key in KEYS for page in noncurrent_of(ObjectKey(BUCKET, key), self.system.metadata) for row in page
        ]
        wanted = [ExpireVersion(row.key, row.version, row, FAR_MS) for row in rows[:4]]
        self.system.metadata.delete_versions(wanted, FAR_MS, self.rng.choice([None, FAR_MS]))

    def undelete(self) -> None:
        trash = self.system.client.trash()
        trash.undelete(trash.find(ObjectKey(BUCKET, self.key())))

    def jump(self) -> None:
        seen_ms = self.system.metadata.lock_times().lock_ms
        self.system.metadata.advance_lock_time(seen_ms, seen_ms + FAR_MS)

    def pack(self) -> None:
        self.bench.produce(self.system)
        drain(self.system)
        gc_service(self.system).run_once()

    def check(self) -> None:
        """Every locked version exists."""
        assert self.kept.keys() <= self.versions().keys()


def check_bodies(client: Any, kept: dict[str, Kept]) -> None:
    """Every locked version has its bytes and its lock, and cannot be deleted."""
    for version, wanted in kept.items():
        named = {"Bucket": BUCKET, "Key": wanted.key, "VersionId": version}
        found = client.get_object(**named)
        assert found["Body"].read() == wanted.body
        lock = found.get("ObjectLockMode"), found.get("ObjectLockRetainUntilDate")
        assert lock == (wanted.mode, wanted.until)
        assert (found.get("ObjectLockLegalHoldStatus") == "ON") == wanted.hold
        with pytest.raises(ClientError, match="AccessDenied"):
            client.delete_object(**named)


@pytest.mark.parametrize("trash_days", [0, 1])
def test_no_locked_version_is_lost(counting: Bench, cli: Cli, trash_days: int) -> None:
    seed = int(os.environ.get("NOS_EC_DEV_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    with counting.config.open("a") as config:
        config.write(f"\n[trash]\nkeep_days = {trash_days}\n")
    try:
        live(counting, cli, random.Random(seed))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def live(counting: Bench, cli: Cli, rng: random.Random) -> None:
    """A history, and then the loss of the database."""
    with counting.open() as system, serving(system) as gateway:
        KeyRing(system.metadata, MASTERS, system.clock).add(os.urandom)
        client = gateway.client("ann")
        client.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
        cli("s3", "quota", "set", BUCKET, "--objects", str(OBJECTS_MAX))
        count(system)
    with counting.open() as system, serving(system) as gateway:
        client = gateway.client("ann")
        history = History(counting, system, client, rng)
        for number in range(STEPS):
            if number == JUMP:  # new retentions until FAR are refused after it
                history.jump()
            name = history.step()
            try:
                history.check()
            except AssertionError as error:
                raise AssertionError(f"after {name}") from error
        assert history.kept
        assert history.refusals
        counting.pack(system)
        check_bodies(client, history.kept)
    lose_database(counting)
    rebuild(counting, cli, "--without-dump")
    with counting.open() as system, serving(system) as gateway:
        check_bodies(Gateway(system, gateway.url).client("ann"), history.kept)
