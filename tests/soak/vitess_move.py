"""The tables of a store move to another MySQL server while a client writes (docs/VITESS.md#move-to-other-servers).

`make vitess` runs this, after it has built Vitess.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
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
OBJECTS_BEFORE = 500
WAIT_S_MAX = 10.0
PAUSE_S = 0.02
MORE_S_MAX = 60.0


class Client:
    """Stores one object after another until it is stopped. `recorded`: the names of those that succeeded."""

    def __init__(self, put: Callable[[str], object]) -> None:
        """`put` stores an object of this name. When it raises Transient, it is called again."""
        self._put = put
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
        """Wait until it has recorded two more objects, of which it has begun the second after this call. It must do so
        within MORE_S_MAX."""
        count, deadline_s = len(self.recorded), time.monotonic() + MORE_S_MAX
        while len(self.recorded) < count + 2:
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
                self._put(name)
            except Transient as error:
                self.failures.append(str(error))
                time.sleep(PAUSE_S)
                continue
            self.recorded.append(name)
            break
        self.longest_s = max(self.longest_s, time.monotonic() - start_s)


@pytest.fixture
def vitess(tmp_path: Path) -> Iterator[VitessServer]:
    server = VitessServer(tmp_path, NOS_EC_DEV_KEYSPACES="2")
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
    client = Client(bench.put)
    with client.at_work():
        assert vitess.copy_tables("nos_ec", TARGET) >= OBJECTS_BEFORE
        client.await_more()
        for switch in ("switchtraffic", "reversetraffic", "switchtraffic"):
            vitess.move_tables(TARGET, switch)
            client.await_more()
        vitess.move_tables(TARGET, "complete", "--keep-routing-rules")
        client.await_more()
    print(f"recorded {len(client.recorded)}, longest {client.longest_s:.2f} s, failures: {Counter(client.failures)}")
    assert client.longest_s < WAIT_S_MAX
    expected = sorted([*before, *client.recorded])
    assert sorted(row.key.name for row in all_objects(metadata)) == expected
    with closing(open_metadata(vitess.url_of(TARGET))) as moved:
        assert sorted(row.key.name for row in all_objects(moved)) == expected
    bench.check_counters()
