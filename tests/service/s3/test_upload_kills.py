"""kill -9 of a gateway and of GC at every step of a multipart upload, and uploads in a rebuild of the metadata."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.findings import FindingKind
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId, parts_bucket
from nos_ec.engine.dump.upload_rows import KEPT_MS
from nos_ec.engine.objects.uploads import StoredPart
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.ports.metadata import CannedAcl, UploadRow, UploadState
from nos_ec.settings import without_settings
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock, end_log
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, TTL_OVER_MS, WAIT_S_MAX, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild

pytestmark = [pytest.mark.timed, pytest.mark.invariant(1)]

MASTER = "12" * 32
PART = 5 << 20
KEY = ObjectKey("photos", "k")
GATEWAY_POINTS = [
    "large.appended",
    "large.recorded",
    "put.landed",
    "metadata.record_puts.before_commit",
    "put.recorded",
    "put.landed:2",
    "metadata.record_puts.before_commit:2",
    "put.recorded:2",
    "upload.completed",
    "upload.aborted",
]
"""While a large part and a small one are stored, the upload is completed without a third one, and another aborted."""
REAPER_POINTS = ["upload.parts_deleted", "upload.parts_deleted:2", "upload.forgotten"]
"""While GC deletes the parts of a deleted object and of an aborted upload."""
UPLOAD_POINTS = [*GATEWAY_POINTS, *REAPER_POINTS]


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@contextmanager
def served(bench: Bench, access_key: str, secret: str, kill_at: str | None) -> Iterator[tuple[Any, Any]]:
    """A gateway process, which dies at a kill point, and a client of it."""
    kill = {} if kill_at is None else {"NOS_EC_KILL_AT": kill_at}
    process = subprocess.Popen(
        [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "s3", "serve", "--json"],
        env={**without_settings(os.environ), "NOS_EC_S3__PORT": "0", "NOS_EC_S3__MASTER_KEY": MASTER, **kill},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        config = Config(retries={"max_attempts": 0, "mode": "standard"}, s3={"addressing_style": "path"})
        client = Session().create_client(
            "s3",
            region_name="eu-north-1",
            endpoint_url=url,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            config=config,
        )
        yield process, client
    finally:
        process.kill()
        process.communicate()


class Life:
    """Two uploads, step by step, as a client continues them after its gateway has died."""

    def __init__(self) -> None:
        rng = random.Random(1)
        self.bodies = {1: rng.randbytes(PART), 2: rng.randbytes(3000), 3: b"left out"}
        self.ids: dict[str, str] = {}
        self.etags: dict[int, str] = {}
        self.steps: list[Callable[[Any], None]] = [
            self.create,
            *[lambda client, number=number: self.store(client, number) for number in self.bodies],
            self.complete,
            self.create_other,
            self.abort_other,
        ]

    def run(self, client: Any) -> None:
        while self.steps:
            self.steps[0](client)
            del self.steps[0]

    def create(self, client: Any) -> None:
        self.ids["k"] = client.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]

    def store(self, client: Any, number: int) -> None:
        of_part = {"Bucket": "photos", "Key": "k", "UploadId": self.ids["k"], "PartNumber": number}
        self.etags[number] = client.upload_part(**of_part, Body=self.bodies[number])["ETag"]

    def complete(self, client: Any) -> None:
        parts = [{"PartNumber": number, "ETag": self.etags[number]} for number in (1, 2)]
        of_upload = {"Bucket": "photos", "Key": "k", "UploadId": self.ids["k"]}
        client.complete_multipart_upload(**of_upload, MultipartUpload={"Parts": parts})

    def create_other(self, client: Any) -> None:
        self.ids["other"] = client.create_multipart_upload(Bucket="photos", Key="other")["UploadId"]

    def abort_other(self, client: Any) -> None:
        with suppress(client.exceptions.NoSuchUpload):
            client.abort_multipart_upload(Bucket="photos", Key="other", UploadId=self.ids["other"])


@pytest.mark.parametrize("point", GATEWAY_POINTS)
def test_gateway_killed(bench: Bench, point: str) -> None:
    with bench.open() as system:
        accounts = Accounts(system.metadata, system.clock, os.urandom)
        made = accounts.create_key(MasterKeys([MASTER]), "root")
        system.metadata.create_bucket("photos", "root", CannedAcl.PRIVATE, 1)
    life = Life()
    with served(bench, made.key.access_key, made.secret, point) as (process, client):
        with pytest.raises(BotoCoreError):
            life.run(client)
        assert process.wait(WAIT_S_MAX) == -signal.SIGKILL
    with served(bench, made.key.access_key, made.secret, None) as (_, client):
        life.run(client)
        got = client.get_object(Bucket="photos", Key="k")
        assert got["Body"].read() == life.bodies[1] + life.bodies[2]
    bench.acknowledged[KEY] = life.bodies[1] + life.bodies[2]
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS + PARTS_GRACE_MS)
        bench.settle(system)
        bench.assert_readable(system)
    with bench.open() as system:
        system.clock = LaterClock(2 * TTL_OVER_MS + 2 * PARTS_GRACE_MS)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)
        states = [row.state for row in system.metadata.uploads_after(None, 9)]
        # One is left that the client does not know, if the gateway died before it told its id.
        assert sorted(states)[0] is UploadState.COMPLETED
        assert UploadState.DOOMED not in states


def composed(system: System, key: ObjectKey, bodies: list[bytes]) -> None:
    """An object that is composed of these parts."""
    uploads = system.client.uploads()
    upload = uploads.create(key, "ann", b"")
    for number, body in enumerate(bodies, 1):
        uploads.put_part(upload, number, BytesIO(body), b"")
    uploads.complete(upload, lambda stored: (stored, {"a": "b"}))


@pytest.mark.parametrize("point", REAPER_POINTS)
def test_gc_killed_while_it_deletes_parts(bench: Bench, point: str) -> None:
    with bench.open() as system:
        uploads = system.client.uploads()
        composed(system, KEY, [bench.data(5 * STRIPE), bench.data(100)])
        bench.acknowledged[KEY] = system.client.store().get(KEY)
        for name in ("one", "other"):
            key = ObjectKey("photos", name)
            upload = uploads.create(key, "ann", b"")
            for number in (1, 2):
                uploads.put_part(upload, number, BytesIO(bench.data(1000)), b"")
            uploads.abort(upload.upload_id, key)
        bench.pack(system)
    done = bench.run("gc", "run", "--apply", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        bench.settle(system)
        bench.assert_readable(system)
        assert len(system.metadata.list_names(parts_bucket("photos"), "", "", 9)) == 2
        assert [row.state for row in system.metadata.uploads_after(None, 9)] == [UploadState.COMPLETED]


@pytest.mark.parametrize("dumped", [True, False], ids=["dump", "no-dump"])
def test_uploads_are_rebuilt(bench: Bench, cli: Cli, dumped: bool) -> None:
    """What was completed before and after the dump, what was open, and parts of which nothing is known."""
    first, second, late, gone = (ObjectKey("photos", name) for name in ("first", "second", "late", "gone"))
    with bench.open() as system:
        uploads = system.client.uploads()
        composed(system, first, [bench.data(5 * STRIPE), bench.data(100)])
        composed(system, gone, [bench.data(300)])
        stray = UploadRow(UploadId(b"\1" * 16), ObjectKey("photos", "stray"), UploadState.COMPLETED, 1)
        system.metadata.restore_uploads([stray])  # as if its object was deleted while the dump was written
        opened = uploads.create(late, "ann", b"")
        uploads.put_part(opened, 1, BytesIO(b"part"), b"")
        bench.pack(system)
        if dumped:
            cli("metadata", "dump")
        composed(system, second, [bench.data(900), bench.data(5 * STRIPE), b""])
        uploads = system.client.uploads()
        uploads.put_part(opened, 2, BytesIO(b"second"), b"")
        if dumped:
            bench.put(system, "gone", b"overwritten", "photos")
        bench.acknowledged |= {key: system.client.store().get(key) for key in (first, second, gone)}
        bench.pack(system)
    lose_database(bench)
    rebuild(bench, cli, *([] if dumped else ["--without-dump"]))
    with bench.open() as system:
        bench.assert_readable_besides_dumps(system)
        states = {row.key: row.state for row in system.metadata.uploads_after(None, 9)}
        trashed = [row.key for row in system.metadata.trash_page(None, 9).rows]
        assert trashed == ([gone] if dumped else [])
        assert states.pop(gone) is UploadState.COMPLETED
        assert states.pop(stray.key, None) is (UploadState.DOOMED if dumped else None)
        assert (states.pop(first), states.pop(second)) == (UploadState.COMPLETED, UploadState.COMPLETED)
        assert list(states.values()) == [UploadState.OPEN if dumped else UploadState.DOOMED]
        assert check(system, read_share=1.0) == []
        uploads = system.client.uploads()
        if dumped:
            found = uploads.find_open(opened.upload_id, late)

            def all_of(stored: Any) -> tuple[list[StoredPart], dict[str, str]]:
                return list(stored), {}

            uploads.complete(found, all_of)
            assert system.client.store().get(late) == b"partsecond"
            bench.acknowledged[late] = b"partsecond"
        gc_service(system).run_once()
        names = system.metadata.list_names(parts_bucket("photos"), opened.upload_id.hex(), "", 9)
        assert len(names) == 2
    with bench.open() as system:
        system.clock = LaterClock(KEPT_MS + 60_000)
        end_log(system)
        gc_service(system).run_once()
        names = system.metadata.list_names(parts_bucket("photos"), opened.upload_id.hex(), "", 9)
        assert len(names) == (2 if dumped else 0)
        bench.assert_readable_besides_dumps(system)


def test_uploads_are_checked(bench: Bench) -> None:
    other = ObjectKey("photos", "other")
    with bench.open() as system:
        metadata = system.metadata
        composed(system, KEY, [bench.data(500), bench.data(100)])
        composed(system, other, [bench.data(500)])
        assert kinds(system) == []
        (first, second) = metadata.list_objects(parts_bucket("photos"), upload_of(system, KEY).hex(), "", 9)
        metadata.delete(second.key, system.clock.now_ms())
        assert kinds(system) == [FindingKind.COMPOSITION_WRONG]
        metadata.delete(first.key, system.clock.now_ms())
        metadata.delete(KEY, system.clock.now_ms())
        assert kinds(system) == []
        row = metadata.upload(upload_of(system, other))
        assert row is not None
        metadata.restore_uploads([replace(row, state=UploadState.DOOMED)])
        assert kinds(system) == [FindingKind.COMPOSITION_WRONG]
        system.clock = LaterClock(PARTS_GRACE_MS)
        gc_service(system).run_once()
        assert len(system.client.store().get(other)) == 500, "it is not deleted while its object is there"
        metadata.restore_uploads([replace(row, upload_id=UploadId(b"\1" * 16))])
        assert set(kinds(system)) == {FindingKind.COMPOSITION_WRONG, FindingKind.UPLOAD_WITHOUT_OBJECT}
        metadata.restore_uploads([replace(row, upload_id=UploadId(b"\1" * 16), state=UploadState.DOOMED)])
        doomed = metadata.upload(row.upload_id)
        assert doomed is not None
        metadata.forget_upload(doomed)
        assert set(kinds(system)) == {FindingKind.COMPOSITION_WRONG, FindingKind.PART_WITHOUT_UPLOAD}


@pytest.mark.parametrize("packed", [False, True])
def test_a_part_that_was_left_out_masks_no_lost_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """A part that remains when the gateway dies right after the completion."""
    with bench.open() as system:
        metadata, uploads = system.metadata, system.client.uploads()
        upload = uploads.create(KEY, "ann", b"")
        for number, size in enumerate((500, 100, 700), 1):
            uploads.put_part(upload, number, BytesIO(bench.data(size)), b"")
        with monkeypatch.context() as patched:
            patched.setattr(metadata, "delete_many", lambda *_: [])
            uploads.complete(upload, lambda stored: (stored[:2], {}))
        if packed:
            bench.pack(system)
        names = metadata.list_objects(parts_bucket("photos"), upload.upload_id.hex(), "", 9)
        assert len(names) == 3
        assert kinds(system) == []
        metadata.delete(names[1].key, system.clock.now_ms())
        (found,) = check(system)
        assert found.kind is FindingKind.COMPOSITION_WRONG
        assert "1 of 2 parts are missing or differ: the first is part 2" in str(found.evidence["error"])


def upload_of(system: System, key: ObjectKey) -> UploadId:
    composition = system.metadata.get(key).composition
    assert composition is not None
    return composition.upload_id


def kinds(system: System) -> list[FindingKind]:
    return [finding.kind for finding in check(system)]
