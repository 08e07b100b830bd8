"""The tables of a store move to another MySQL server while a client writes (docs/VITESS.md#move-to-other-servers).

`make vitess` runs this, after it has built Vitess.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.core.errors import Transient
from tests.real.conftest import start
from tests.rig.fakes.audit import all_objects
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.sql_servers import empty_metadata
from tests.rig.vitess_server import VitessServer

pytestmark = pytest.mark.real

TARGET = "nos_ec_2"
MOVE = ("MoveTables", "--workflow=move", f"--target-keyspace={TARGET}")
DIFF = ("VDiff", "--format=json", "--workflow=move", f"--target-keyspace={TARGET}")
OBJECTS_BEFORE = 500
WAIT_S_MAX = 10.0
COPY_S_MAX = 300.0
PAUSE_S = 0.02
MORE_S_MAX = 60.0


class Client:
    """Records one object after another until it is stopped. `recorded`: the names of those that succeeded."""

    def __init__(self, bench: MetadataBench) -> None:
        self._bench = bench
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.recorded: list[str] = []
        self.failures: list[str] = []
        self.longest_s = 0.0
        """The longest time from the first try of an object to its success, in seconds."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Work meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()

    def await_more(self) -> None:
        """Wait until it has recorded another object, which it must do within MORE_S_MAX."""
        count, deadline_s = len(self.recorded), time.monotonic() + MORE_S_MAX
        while len(self.recorded) == count:
            assert self._thread.is_alive(), "the client ended"
            assert time.monotonic() < deadline_s, f"the client records nothing: {self.failures[-1:]}"
            time.sleep(PAUSE_S)

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            self._record(f"written-{number:06}")
            time.sleep(PAUSE_S)

    def _record(self, name: str) -> None:
        start_s = time.monotonic()
        while not self._stopped.is_set():
            try:
                self._bench.put(name)
            except Transient as error:
                self.failures.append(str(error))
                time.sleep(PAUSE_S)
                continue
            self.recorded.append(name)
            break
        self.longest_s = max(self.longest_s, time.monotonic() - start_s)


@pytest.fixture
def vitess(tmp_path: Path) -> Iterator[VitessServer]:
    server = VitessServer(tmp_path, NOS_EC_DEV_MOVE="1")
    start(server)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def metadata(vitess: VitessServer) -> Iterator[SqlMetadata]:
    with empty_metadata(vitess.url) as metadata:
        yield metadata


def test_nothing_is_lost_while_the_tables_move(vitess: VitessServer, metadata: SqlMetadata) -> None:
    bench = MetadataBench(metadata)
    before = [f"before-{number}" for number in range(OBJECTS_BEFORE)]
    bench.put_all(before)
    client = Client(bench)
    with client.at_work():
        vitess.control(*MOVE, "create", "--source-keyspace=nos_ec", "--all-tables", "--tablet-types=replica,primary")
        _await_copied(vitess)
        client.await_more()
        for switch in ("switchtraffic", "reversetraffic", "switchtraffic"):
            vitess.control(*MOVE, switch)
            client.await_more()
        vitess.control(*MOVE, "complete", "--keep-routing-rules")
        client.await_more()
    print(f"recorded {len(client.recorded)}, longest {client.longest_s:.2f} s, failures: {Counter(client.failures)}")
    assert client.longest_s < WAIT_S_MAX
    expected = sorted([*before, *client.recorded])
    assert sorted(row.key.name for row in all_objects(metadata)) == expected
    with closing(open_metadata(f"{vitess.url.removesuffix('nos_ec')}{TARGET}")) as moved:
        assert sorted(row.key.name for row in all_objects(moved)) == expected
    bench.check_counters()


def _await_copied(vitess: VitessServer) -> None:
    """Wait until the target has copied all tables, and compare them. A stream says `Running` before it begins to copy,
    too, and SwitchTraffic does not refuse that."""
    deadline_s = time.monotonic() + COPY_S_MAX
    while not all("Ended Copy Phase" in logged for logged in _logs_of_streams(vitess)):
        assert time.monotonic() < deadline_s, _logs_of_streams(vitess)
        time.sleep(0.5)
    vitess.control(*DIFF, "create")
    compared: dict[str, object] = {}
    while compared.get("State") != "completed":
        assert time.monotonic() < deadline_s, compared
        time.sleep(0.5)
        compared = json.loads(vitess.control(*DIFF, "show", "last"))
    assert compared["HasMismatch"] is False, compared
    assert int(str(compared["RowsCompared"])) >= OBJECTS_BEFORE, compared


def _logs_of_streams(vitess: VitessServer) -> list[set[str]]:
    """What each stream of the workflow has logged."""
    said = json.loads(vitess.control("Workflow", f"--keyspace={TARGET}", "show", "--workflow=move"))
    return [
        {log["type"] for log in stream["logs"]}
        for workflow in said["workflows"]
        for shard in workflow["shard_streams"].values()
        for stream in shard["streams"]
    ]
