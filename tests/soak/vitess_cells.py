"""The cells of a store on different servers: two keyspaces of one Vitess cluster, of which one moves to another MySQL
server while clients use all cells, and a MariaDB server (docs/VITESS.md#several-cells).

`make vitess` runs this, after it has built Vitess.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.wiring import initialise
from nos_ec.core.errors import Transient
from nos_ec.settings import Settings, load_settings
from tests.real.conftest import run_server, start
from tests.rig.vitess_server import VitessServer
from tests.service.s3.cell_stores import cells_config, serving_cells
from tests.soak.vitess_move import WAIT_S_MAX, Client

pytestmark = [pytest.mark.real, pytest.mark.invariant(12)]

NAMES = [f"bucket-{number}" for number in range(12)]


class Bucket:
    """A bucket, to which a client writes objects, and reads each. `wrong`: what must never happen."""

    def __init__(self, s3: Any, name: str) -> None:
        self._s3 = s3
        self.name = name
        self.client = Client(self._put)
        self.wrong: list[str] = []

    def body_of(self, name: str) -> bytes:
        return f"{self.name} {name}".encode() * 50

    def _put(self, name: str) -> None:
        try:
            self._s3.put_object(Bucket=self.name, Key=name, Body=self.body_of(name))
            if self._s3.get_object(Bucket=self.name, Key=name)["Body"].read() != self.body_of(name):
                self.wrong.append(name)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                self.wrong.append(f"{name}: {error}")
            raise Transient(str(error)) from error


@pytest.fixture
def vitess(tmp_path: Path) -> Iterator[VitessServer]:
    server = VitessServer(tmp_path, NOS_EC_DEV_KEYSPACES="3")
    start(server)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def mariadb_url(tmp_path: Path) -> Iterator[str]:
    yield from run_server("mariadb", tmp_path)


def test_a_cell_moves_to_another_server_while_all_are_used(
    vitess: VitessServer, tmp_path: Path, mariadb_url: str
) -> None:
    urls = {"a": vitess.url, "b": vitess.url_of("nos_ec_2"), "c": mariadb_url}
    settings = _settings(tmp_path, urls)
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    with serving_cells(settings) as (cells, gateway):
        for name in NAMES:
            gateway.client("ann").create_bucket(Bucket=name)
        home = {row.bucket: row.home for row in cells.directory.metadata.directory_page("", 100)}
        of_cell = {cell: next(name for name in NAMES if home[name] == cell) for cell in urls}
        buckets = {cell: Bucket(gateway.client("ann"), name) for cell, name in of_cell.items()}
        with ExitStack() as working:
            for bucket in buckets.values():
                working.enter_context(bucket.client.at_work())
            for bucket in buckets.values():
                bucket.client.await_more()
            assert vitess.copy_tables("nos_ec_2", "nos_ec_3") > 0
            for switch in ("switchtraffic", "reversetraffic", "switchtraffic"):
                vitess.move_tables("nos_ec_3", switch)
                for bucket in buckets.values():
                    bucket.client.await_more()
            vitess.move_tables("nos_ec_3", "complete", "--keep-routing-rules")
            buckets["b"].client.await_more()
        _expect(gateway.client("ann"), buckets)
    for cell, bucket in buckets.items():
        client = bucket.client
        print(f"{cell}: {len(client.recorded)} stored, longest {client.longest_s:.2f} s, failures: {client.failures}")
        assert bucket.wrong == []
        assert client.longest_s < WAIT_S_MAX
    assert [buckets[cell].client.failures for cell in "ac"] == [[], []]
    with serving_cells(_settings(tmp_path, urls | {"b": vitess.url_of("nos_ec_3")})) as (_, gateway):
        s3 = gateway.client("ann")
        _expect(s3, buckets)
        s3.put_object(Bucket=buckets["b"].name, Key="after", Body=b"x")


def _settings(folder: Path, urls: dict[str, str]) -> Settings:
    """The settings of a store whose cells have these databases."""
    config = cells_config(folder, **dict.fromkeys(urls, 1))
    text = config.read_text()
    for cell, url in urls.items():
        text = text.replace(f'store.root = "{cell}"', f'store.root = "{cell}"\nstore.metadata_url = "{url}"')
    config.write_text(text)
    return load_settings(config, {})


def _expect(s3: Any, buckets: dict[str, Bucket]) -> None:
    """Each bucket lists and has exactly what was stored."""
    for bucket in buckets.values():
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
        listed = [found["Key"] for page in pages for found in page.get("Contents", [])]
        assert listed == sorted(bucket.client.recorded)
        for name in listed:
            assert s3.get_object(Bucket=bucket.name, Key=name)["Body"].read() == bucket.body_of(name)
