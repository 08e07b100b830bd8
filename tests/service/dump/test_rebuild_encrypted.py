"""Encrypted objects through packing, check, scrub, a dump and a rebuild, none of which have keys."""

from __future__ import annotations

import os
from hashlib import md5
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.states import ObjectState
from nos_ec.gateway.auth.key_ring import KeyRing
from tests.rig.at_rest import end_log
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.s3.s3_gateway import MASTERS, serving

pytestmark = pytest.mark.invariant(7)

SMALL, LONG, LARGE = 5_000, 140_000, 9_000_000
"""Sizes of an object in one segment, of one in several, and of one with blocks of its own."""
PART = 5 << 20


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def put(system: System, prefix: str) -> dict[str, bytes]:
    """Put an encrypted object of each size."""
    found = {f"{prefix}-{size}": os.urandom(size) for size in (SMALL, LONG, LARGE)}
    with serving(system) as gateway:
        root = gateway.client("root")
        root.create_bucket(Bucket="photos")
        for name, data in found.items():
            root.put_object(Bucket="photos", Key=name, Body=data, ServerSideEncryption="AES256")
        found[f"{prefix}-parts"] = upload(root, f"{prefix}-parts")
    return found


def upload(client: Any, name: str) -> bytes:
    """Upload an encrypted object in three parts, of which the last one is empty."""
    bodies = [os.urandom(size) for size in (PART, PART + 7, 0)]
    of = {"Bucket": "photos", "Key": name}
    of["UploadId"] = client.create_multipart_upload(**of, ServerSideEncryption="AES256")["UploadId"]
    parts = []
    for number, body in ((1, b"an older part"), (1, bodies[0]), (2, bodies[1]), (3, bodies[2])):
        part = client.upload_part(**of, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    client.complete_multipart_upload(**of, MultipartUpload={"Parts": parts[1:]})
    return b"".join(bodies)


def assert_readable(system: System, objects: dict[str, bytes]) -> None:
    with serving(system) as gateway:
        root = gateway.client("root")
        for name, data in objects.items():
            got = root.get_object(Bucket="photos", Key=name)
            assert got["Body"].read() == data
            if not name.endswith("parts"):
                assert got["ETag"] == f'"{md5(data).hexdigest()}"'
            else:
                md5s = b"".join(md5(part).digest() for part in (data[:PART], data[PART:], b""))
                assert got["ETag"] == f'"{md5(md5s).hexdigest()}-3"'
                assert root.head_object(Bucket="photos", Key=name, PartNumber=3)["ContentLength"] == 0
            assert got["ServerSideEncryption"] == "AES256"
            got = root.get_object(Bucket="photos", Key=name, Range="bytes=4000-4999")
            assert got["Body"].read() == data[4000:5000]


@pytest.mark.parametrize("dumped", [True, False])
def test_encrypted_objects_come_back(bench: Bench, cli: Cli, dumped: bool) -> None:
    with bench.open() as system:
        KeyRing(system.metadata, MASTERS, system.clock).add(os.urandom)
        objects = put(system, "packed")
        bench.pack(system)
        cli("metadata", "dump")
        objects |= put(system, "packed-later")
        bench.pack(system)
        rows = system.client.store().list_objects("photos", "", "", 9)
        assert {row.state for row in rows} == {ObjectState.PACKED, ObjectState.LARGE}
        assert_readable(system, objects)
        objects |= put(system, "landed")
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli, *([] if dumped else ["--without-dump"]))
    with bench.open() as system:
        assert_readable(system, objects)
        assert check(system, read_share=1.0) == []
    cli("scrub")
