"""A gateway of two cells, of which one has its database on a MySQL server that is killed or hangs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.cells import Cells
from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings
from tests.rig.dev_servers import WHOLE, DevServer
from tests.service.s3.cell_stores import cells_config, serving_cells
from tests.service.s3.s3_gateway import Gateway

pytestmark = [pytest.mark.real, pytest.mark.invariant(12)]

NAMES = [f"bucket-{number}" for number in range(8)]
AWAY_S = 15
SERVED_S_MAX = 60
REFUSED_S_MAX = 15
"""9 s on an idle machine."""


@pytest.fixture
def served(tmp_path: Path, durable_mysql: DevServer) -> Iterator[tuple[Cells, Gateway]]:
    config = cells_config(tmp_path, a=1, b=1)
    config.write_text(f'{config.read_text()}store.metadata_url = "{durable_mysql.url}"\n')
    settings = load_settings(config, {})
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    with serving_cells(settings) as found:
        yield found


def kill(server: DevServer) -> Callable[[], object]:
    server.kill(WHOLE)
    return server.start


def hang(server: DevServer) -> Callable[[], object]:
    server.put_to_sleep(WHOLE)
    return lambda: server.wake(WHOLE)


@pytest.mark.parametrize("strike", [kill, hang])
def test_a_database_that_is_away_stops_one_cell_alone(
    served: tuple[Cells, Gateway],
    durable_mysql: DevServer,
    strike: Callable[[DevServer], Callable[[], object]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells, gateway = served
    ann = gateway.client("ann")
    for name in NAMES:
        ann.create_bucket(Bucket=name)
        ann.put_object(Bucket=name, Key="k", Body=b"x" * 1000)
    home = {row.bucket: row.home for row in cells.directory.metadata.directory_page("", 100)}
    of_a, of_b = ([name for name in NAMES if home[name] == cell] for cell in "ab")
    assert of_a
    assert of_b
    stop = threading.Event()
    refusals: list[tuple[float, str]] = []

    def ask_b() -> None:
        client = gateway.client("ann", read_timeout=120)
        while not stop.is_set():
            begun_s, code = time.monotonic(), "served"
            try:
                client.get_object(Bucket=of_b[0], Key="k")["Body"].read()
            except ClientError as error:
                code = error.response["Error"]["Code"]
            refusals.append((time.monotonic() - begun_s, code))
            stop.wait(0.05)

    before_s = times_of(ann, of_a, 3)
    mend = strike(durable_mysql)
    askers = [threading.Thread(target=ask_b) for _ in range(16)]  # twice as many as the gateway has threads
    for asker in askers:
        asker.start()
    during_s = times_of(ann, of_a, AWAY_S)
    assert len(ann.list_buckets()["Buckets"]) == len(NAMES)
    stop.set()
    mend()
    begun_s = time.monotonic()
    for asker in askers:
        asker.join(90)
    while True:
        try:
            assert ann.get_object(Bucket=of_b[0], Key="k")["Body"].read() == b"x" * 1000
            break
        except ClientError:
            assert time.monotonic() - begun_s < SERVED_S_MAX, "not served again"
            time.sleep(0.2)
    with capsys.disabled():
        codes = {code for _, code in refusals}
        print(
            f"\n{strike.__name__}: GET in the other cell {statistics.median(before_s) * 1000:.1f} ms before,"
            f" {statistics.median(during_s) * 1000:.1f} ms meanwhile (p99 {p99(before_s) * 1000:.1f},"
            f" {p99(during_s) * 1000:.1f}); refused after at most {max(s for s, _ in refusals):.1f} s ({codes});"
            f" served again after {time.monotonic() - begun_s:.1f} s"
        )
    assert max(seconds for seconds, _ in refusals) < REFUSED_S_MAX
    assert {code for _, code in refusals} <= {"ServiceUnavailable", "served"}
    assert any(code == "ServiceUnavailable" for _, code in refusals)


def times_of(client: Any, buckets: list[str], for_s: float) -> list[float]:
    """The seconds of each GET and PUT, one after another. Every one must be served."""
    found, end_s = [], time.monotonic() + for_s
    while time.monotonic() < end_s:
        for bucket in buckets:
            begun_s = time.monotonic()
            assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x" * 1000
            client.put_object(Bucket=bucket, Key="new", Body=b"y")
            found.append(time.monotonic() - begun_s)
    return found


def p99(times_s: list[float]) -> float:
    return statistics.quantiles(times_s, n=100)[98]
