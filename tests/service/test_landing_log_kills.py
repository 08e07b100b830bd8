"""kill -9 at every named step of the landing log, then recovery: every acknowledged record reads back."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.migrate import migrate
from nos_ec.core.ids import LandingId, ObjectKey, segment_of
from nos_ec.core.landing_format import scan
from nos_ec.core.lifecycle import SegmentState
from nos_ec.engine.log_lease import LEASE_PREFIX
from nos_ec.engine.log_reader import LogReader
from nos_ec.ports.metadata import Metadata
from nos_ec.testing.folder_medium import FolderMedium
from tests.rig.dead_logs import recover_logs
from tests.rig.preloaded import Preloaded

from .conftest import WAIT_S_MAX
from .landing_process import data_of

pytestmark = pytest.mark.invariant(1)

LANDING_LOG_POINTS = [
    "landing_log.segment_opened",
    "landing_log.segment_opened:2",
    "landing_log.segment_created",
    "landing_log.segment_created:2",
    "landing_log.appended",
    "landing_log.appended:9",
    "landing_log.sealed_in_medium",
    "landing_log.sealed_in_medium:2",
    "landing_log.sealed",
    "landing_log.sealed:2",
]
PROGRAM = Path(__file__).with_name("landing_process.py")
BATCHES = 15


class Host:
    """What outlives a process: the database and the medium."""

    def __init__(self, root: Path, template: Path, preloaded: Preloaded) -> None:
        self._preloaded = preloaded
        self.url = f"sqlite:///{root / 'meta.db'}"
        self.folder = root / "log"
        self.folder.mkdir()
        shutil.copy(template, root / "meta.db")
        self.metadata: Metadata = open_metadata(self.url)
        self.medium = FolderMedium(self.folder)

    def run(self, kill_at: str = "") -> tuple[int, dict[ObjectKey, LandingId]]:
        """Run a process. Returns its exit code and what it has acknowledged."""
        arguments = [str(PROGRAM), self.url, str(self.folder), str(BATCHES)]
        done = self._preloaded.run(arguments, os.environ | {"NOS_EC_KILL_AT": kill_at}, b"", WAIT_S_MAX)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        acknowledged = {}
        for line in done.stdout.decode().splitlines():
            bucket, name, landing_id = line.split()
            acknowledged[ObjectKey(bucket, name)] = LandingId(bytes.fromhex(landing_id))
        return done.returncode, acknowledged

    def check(self, acknowledged: dict[ObjectKey, LandingId]) -> None:
        """Each acknowledged object reads back, is found by a scan, and lies in a segment that has a row."""
        reader = LogReader(self.medium)
        rows = {row.segment: row for row in self.metadata.list_segments(None, 1000)}
        for key, landing_id in acknowledged.items():
            row = self.metadata.get(key)
            assert row.landing_id == landing_id
            assert reader.read_range(landing_id, 0, row.size) == data_of(key.name)
            assert segment_of(landing_id) in rows
        found = set()
        for segment in self.medium.segments():
            end = rows[segment].end or self.medium.limits.segment_bytes

            def read(offset: int, length: int, segment: bytes = segment) -> bytes:
                return self.medium.read(segment, [(offset, length)])[0]  # type: ignore[arg-type]

            found |= {one.header.landing_id for one in scan(read, segment, self.medium.limits.start, end)}
        assert set(acknowledged.values()) <= found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database, to copy."""
    path = tmp_path_factory.mktemp("template") / "meta.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def host(tmp_path: Path, template: Path, preloaded: Preloaded) -> Iterator[Host]:
    host = Host(tmp_path, template, preloaded)
    yield host
    host.metadata.close()


@pytest.mark.parametrize("point", LANDING_LOG_POINTS)
def test_killed(host: Host, point: str) -> None:
    code, acknowledged = host.run(point)
    assert code == -signal.SIGKILL, f"{point} never fired"
    host.check(acknowledged)
    code, more = host.run()  # beside the dead one, whose lease has not expired
    assert code == 0
    assert len(more) == 3 * BATCHES
    recover_logs(host.metadata, host.medium)
    host.check(acknowledged | more)
    states = {row.state for row in host.metadata.list_segments(None, 1000)}
    assert states == {SegmentState.SEALED}
    assert not host.metadata.list_leases(LEASE_PREFIX)


def test_a_process_that_ends_leaves_no_work(host: Host) -> None:
    code, acknowledged = host.run()
    assert code == 0
    host.check(acknowledged)
    assert {row.state for row in host.metadata.list_segments(None, 1000)} == {SegmentState.SEALED}
    assert not host.metadata.list_leases(LEASE_PREFIX)
