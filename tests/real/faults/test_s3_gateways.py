"""Two S3 gateways of one store on Ceph, Kafka and MariaDB.

What one gateway has answered, the other one knows at once, while consumers pack the objects. Real clients write to one
and read from the other, and every byte is compared.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.real.conftest import or_skip
from tests.rig.s3.s3_clients import CLIENTS, Gateways, clients_python
from tests.rig.s3.two_gateways import TwoGateways

pytestmark = pytest.mark.real

WRITERS = 64
RACES = 4
TURNS = 60
KEYS = 8
SIZES = (0, 1, 5_000, 300_000, 5 << 20)


def _fetch(client: Any, bucket: str, name: str) -> bytes | None:
    try:
        data: bytes = client.get_object(Bucket=bucket, Key=name)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchKey":
            raise
        return None
    return data


def _listed(client: Any, bucket: str) -> dict[str, str]:
    found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {entry["Key"]: entry["ETag"] for entry in found}


def test_one_gateway_knows_at_once_what_the_other_has_answered(gateways: TwoGateways) -> None:
    clients = gateways.clients()
    clients[0].create_bucket(Bucket="turns")
    chance = random.Random(3)
    known: dict[str, bytes] = {}
    for turn in range(TURNS):
        write, read = clients[turn % 2], clients[1 - turn % 2]
        name = f"k {chance.randrange(KEYS)}+ü"
        if chance.random() < 0.25:
            write.delete_object(Bucket="turns", Key=name)
            known.pop(name, None)
        else:
            known[name] = chance.randbytes(chance.choice(SIZES))
            write.put_object(Bucket="turns", Key=name, Body=known[name])
        assert _fetch(read, "turns", name) == known.get(name)
        etags = {one: f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"' for one, data in known.items()}
        assert _listed(read, "turns") == etags
        some = chance.choice([*known, name])
        assert _fetch(read, "turns", some) == known.get(some)
    gateways.await_packed()
    assert {name: _fetch(clients[1], "turns", name) for name in known} == known


def test_of_writers_that_ask_for_no_object_one_wins(gateways: TwoGateways) -> None:
    clients = gateways.clients()
    clients[0].create_bucket(Bucket="races")
    for race in range(RACES):
        name, size = f"race-{race}", (100, 70_000, 300_000, 5 << 20)[race]
        begin = threading.Barrier(WRITERS)

        def put(writer: int, name: str = name, size: int = size, begin: threading.Barrier = begin) -> int:
            body = writer.to_bytes(1, "big") * size
            begin.wait()
            try:
                clients[writer % 2].put_object(Bucket="races", Key=name, Body=body, IfNoneMatch="*")
            except ClientError as error:
                return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
            return 200

        with ThreadPoolExecutor(WRITERS) as pool:
            statuses = list(pool.map(put, range(WRITERS)))
        assert Counter(statuses) == {200: 1, 412: WRITERS - 1}
        wanted = statuses.index(200).to_bytes(1, "big") * size
        assert [_fetch(client, "races", name) == wanted for client in clients] == [True, True]


@pytest.mark.turn(1)
@pytest.mark.parametrize("client", CLIENTS)
def test_client(gateways: TwoGateways, client: str, tmp_path: Path) -> None:
    or_skip(clients_python)
    write, read = gateways.accesses
    or_skip(lambda: CLIENTS[client](Gateways(write, read, tmp_path)))
