"""kill -9 at every named step of the landing log, then recovery: every acknowledged record reads back."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.errors import Conflict
from nos_ec.core.formats.landing_format import scan
from nos_ec.core.ids import LandingId, ObjectKey, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.log_lease import LEASE_PREFIX
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.landing.log_recovery import LogRecovery
from nos_ec.engine.landing.trimmer import Trimmer
from nos_ec.ports.clock import unwatched
from nos_ec.ports.metadata import Metadata
from tests.rig.dead_logs import recover_logs
from tests.rig.fakes.folder_medium import FolderMedium
from tests.rig.fakes.memory_medium import JOINED
from tests.rig.preloaded import Preloaded
from tests.service.conftest import WAIT_S_MAX
from tests.service.landing.landing_process import data_of

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
JOINED_LOG_POINTS = [
    "landing_log.segment_opened",
    "landing_log.segment_created",
    "landing_log.segment_created:2",
    "landing_log.appended",
    "landing_log.appended:9",
    "landing_log.sealed_by_append",
    "landing_log.sealed_by_append:2",
    "landing_log.sealed_in_medium",
    "landing_log.sealed",
    "landing_log.sealed:2",
]
"""Where appends create and seal segments."""
SEGMENT_SEAL_POINTS = ["segment_seal.empty_sealed", "segment_seal.released"]
"""While a segment is sealed that its log had not begun."""
PROGRAM = Path(__file__).with_name("landing_process.py")
BATCHES = 15


class Host:
    """What outlives a process: the database and the medium."""

    def __init__(self, root: Path, template: Path, preloaded: Preloaded) -> None:
        self._preloaded = preloaded
        self._joined: list[str] = []
        self.url = f"sqlite:///{root / 'meta.db'}"
        self.folder = root / "log"
        self.folder.mkdir()
        shutil.copy(template, root / "meta.db")
        self.metadata: Metadata = open_metadata(self.url)
        self.medium = FolderMedium(self.folder)

    def join(self) -> None:
        """Let appends create and seal segments."""
        self.medium = FolderMedium(self.folder, JOINED)
        self._joined = ["joined"]

    def run(self, kill_at: str = "", what: str = str(BATCHES)) -> tuple[int, dict[ObjectKey, LandingId]]:
        """Run a process. Returns its exit code and what it has acknowledged."""
        arguments = [str(PROGRAM), self.url, str(self.folder), what, *(self._joined if what.isdecimal() else [])]
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
            end = rows[segment].end or self.medium.limits.segment_bytes  # not sealed, or empty

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


@pytest.mark.parametrize(
    ("point", "joined"),
    [(point, False) for point in LANDING_LOG_POINTS] + [(point, True) for point in JOINED_LOG_POINTS],
)
def test_killed(host: Host, point: str, joined: bool) -> None:
    if joined:
        host.join()
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


@pytest.mark.invariant(8)
def test_recovery_is_killed_where_a_log_had_not_begun_its_segment(host: Host) -> None:
    host.join()
    code, acknowledged = host.run("landing_log.segment_created")
    assert (code, acknowledged) == (-signal.SIGKILL, {})
    (row,) = host.metadata.list_segments(None, 10)
    assert list(host.medium.segments()) == []
    assert host.run(SEGMENT_SEAL_POINTS[0], "recover")[0] == -signal.SIGKILL
    assert list(host.medium.segments()) == [row.segment]
    writer = host.medium.create(row.segment, row.epoch, 0)  # the log was not dead after all
    with pytest.raises(Conflict):
        writer.append(host.medium.limits.start, [bytes(512)])
    assert [one.state for one in host.metadata.list_segments(None, 10)] == [SegmentState.OPEN]
    LogRecovery(host.metadata, host.medium, SystemClock()).run_once(unwatched, fenced=True)
    assert Trimmer(host.metadata, host.medium, SystemClock()).run_once().released == 1
    assert list(host.medium.segments()) == []
    assert host.metadata.list_segments(None, 10) == []


def test_a_seal_that_was_overtaken_is_killed(host: Host) -> None:
    """Others have sealed the segment, given it back and forgotten it."""
    host.join()
    assert host.run(SEGMENT_SEAL_POINTS[1], "overtaken")[0] == -signal.SIGKILL
    assert list(host.medium.segments()) == []


@pytest.mark.parametrize("joined", [False, True])
def test_a_process_that_ends_leaves_no_work(host: Host, joined: bool) -> None:
    if joined:
        host.join()
    code, acknowledged = host.run()
    assert code == 0
    host.check(acknowledged)
    assert {row.state for row in host.metadata.list_segments(None, 1000)} == {SegmentState.SEALED}
    assert not host.metadata.list_leases(LEASE_PREFIX)
