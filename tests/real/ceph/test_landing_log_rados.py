"""The landing log on Ceph: processes that are killed, writers that are fenced, OSDs that do not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import google_crc32c
import pytest

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.adapters.rados.client.removal import remove_namespace
from nos_ec.adapters.rados.client.steps import Step
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.errors import Transient
from nos_ec.core.formats.landing_format import decode_footer, scan
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.log_lease import LEASE_PREFIX
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.landing.trimmer import Trimmer
from nos_ec.ports.metadata import Metadata, NewObject, PutRequest
from tests.real.ceph.landing_log_process import SAID, data_of, landing_log, put
from tests.rig.ceph_cluster import POOL_LANDING, CephCluster, OwnSegmentLog
from tests.rig.dead_logs import recover_logs

pytestmark = [pytest.mark.real, pytest.mark.invariant(1, 8)]

PROGRAM = Path(__file__).with_name("landing_log_process.py")
KILLS = 3
RECORDS_MIN = 300
"""A process is killed when it has acknowledged this many PUTs."""
WAIT_S_MAX = 120.0
OP_TIMEOUT_MS = 1_000


class Host:
    """What outlives a process: the database and the medium."""

    def __init__(self, root: Path, ceph: CephCluster, namespace: str) -> None:
        self.root = root
        self.url = f"sqlite:///{root / 'meta.db'}"
        self.ceph = ceph
        self.namespace = namespace
        migrate(self.url)
        self.metadata: Metadata = open_metadata(self.url)
        self.medium = OwnSegmentLog(ceph, namespace)

    def close(self) -> None:
        self.medium.close()
        self.metadata.close()

    def killed_process(self, number: int) -> dict[str, LandingId]:
        """Run a process, and kill it in full flow. Returns what it has acknowledged."""
        client = self.ceph.options("front")
        command = [sys.executable, str(PROGRAM), self.url, str(client.conf_file), client.user, str(client.keyring_file)]
        said, errors = self.root / f"said.{number}", self.root / f"errors.{number}"
        environment = {"PYTHONPATH": str(PROGRAM.parents[3]), "PATH": ""}
        with said.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen([*command, self.namespace], env=environment, stdout=out, stderr=err)
        try:
            deadline_s = time.monotonic() + WAIT_S_MAX
            while len(acknowledged_in(said)) < RECORDS_MIN:
                assert process.poll() is None, errors.read_text()
                assert time.monotonic() < deadline_s, f"too slow: {errors.read_text()}"
                time.sleep(0.05)
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
        return acknowledged_in(said)

    def check(self, acknowledged: Mapping[str, LandingId]) -> None:
        """Each acknowledged object has a row and reads back, and a scan of the segments finds it."""
        sizes = {name: self.metadata.get(ObjectKey("b", name)) for name in acknowledged}
        assert {name: row.landing_id for name, row in sizes.items()} == acknowledged
        wanted = [(landing_id, sizes[name].size) for name, landing_id in acknowledged.items()]
        assert LogReader(self.medium).read_records(wanted) == [data_of(name) for name in acknowledged]
        found = {landing_id for segment in self.medium.segments() for landing_id in self.scanned(segment)}
        assert set(acknowledged.values()) <= found

    def scanned(self, segment: SegmentId) -> set[LandingId]:
        """The records of a segment as a scan finds them; its footer must name the same."""
        end = self.medium.seal(segment, None, 0)

        def read(offset: int, length: int) -> bytes:
            return self.medium.read(segment, [(offset, length)])[0]

        found = {one.header.landing_id for one in scan(read, segment, self.medium.limits.start, end)}
        footer = read(end, self.medium.limits.segment_bytes)
        if footer:
            assert {entry.landing_id for entry in decode_footer(footer, segment, end)} == found
        return found


def acknowledged_in(said: Path) -> dict[str, LandingId]:
    """What a process has acknowledged; it may have been killed in the middle of a line."""
    lines = [line.split() for line in said.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {line[1]: LandingId(bytes.fromhex(line[2])) for line in lines if line[0] == SAID}


@pytest.fixture
def host(tmp_path: Path, ceph: CephCluster) -> Iterator[Host]:
    namespace = uuid.uuid4().hex
    with RadosCluster(ceph.options("front")) as cluster:
        RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
        host = Host(tmp_path, ceph, namespace)
        yield host
        host.close()
        remove_namespace(cluster, POOL_LANDING, namespace)


def names(prefix: str, count: int = 5) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_killed_processes_lose_nothing_that_was_acknowledged(host: Host) -> None:
    acknowledged: dict[str, LandingId] = {}
    for number in range(KILLS):
        acknowledged |= host.killed_process(number)
    assert len(acknowledged) >= KILLS * RECORDS_MIN
    assert len(host.metadata.list_leases(LEASE_PREFIX)) == KILLS, "each log has a number of its own"
    recover_logs(host.metadata, host.medium)
    assert not host.metadata.list_leases(LEASE_PREFIX)
    assert {row.state for row in host.metadata.list_segments(None, 1000)} == {SegmentState.SEALED}
    host.check(acknowledged)
    print(f"{len(acknowledged)} acknowledged objects in {len(list(host.medium.segments()))} segments, none missing")


def test_a_writer_whose_segments_were_sealed_goes_on_in_others(host: Host, ceph: CephCluster) -> None:
    own = OwnSegmentLog(ceph, host.namespace)
    log = landing_log(host.metadata, own)
    acknowledged = put(host.metadata, log, names("before"))
    before = set(host.medium.segments())
    for segment in before:
        host.medium.seal(segment, None, 0)
    acknowledged |= put(host.metadata, log, names("after"))
    assert len(acknowledged) == 10
    assert not before & {segment_of(acknowledged[name]) for name in names("after")}
    assert log.counters.failed >= 1
    log.close()
    own.close()
    assert {row.state for row in host.metadata.list_segments(None, 1000)} == {SegmentState.SEALED}
    host.check(acknowledged)


def test_a_fenced_log_goes_on_under_a_new_lease(host: Host, ceph: CephCluster) -> None:
    """A process that hung for longer than its lease, while recovery took its segments."""
    own = OwnSegmentLog(ceph, host.namespace)
    log = landing_log(host.metadata, own)
    acknowledged = put(host.metadata, log, names("before"))
    recover_logs(host.metadata, host.medium)
    acknowledged |= put(host.metadata, log, names("after"))
    assert len(acknowledged) == 10
    log.close()
    own.close()
    assert not host.metadata.list_leases(LEASE_PREFIX)
    host.check(acknowledged)


@pytest.mark.parametrize("given_back", [False, True], ids=["sealed", "given back"])
def test_a_process_that_stops_right_before_it_begins_a_segment(
    monkeypatch: pytest.MonkeyPatch, host: Host, ceph: CephCluster, given_back: bool
) -> None:
    """Others fence it, and seal the segment or also give it back, before its first append goes out."""
    own = OwnSegmentLog(ceph, host.namespace)
    log = landing_log(host.metadata, own)
    acknowledged = put(host.metadata, log, names("before"))
    log.seal()
    log.tend()  # makes the next segment
    (spare,) = {row.segment for row in host.metadata.list_segments(None, 10) if row.state is SegmentState.OPEN}
    write = Pool.write

    def stopped(pool: Pool, name: str, *changes: Step) -> int:
        monkeypatch.setattr(Pool, "write", write)
        recover_logs(host.metadata, host.medium)
        if given_back:
            assert Trimmer(host.metadata, host.medium, SystemClock()).run_once().released == 1
        return write(pool, name, *changes)

    monkeypatch.setattr(Pool, "write", stopped)
    data = data_of("late")
    landed = log.land([NewCopy(ObjectKey("b", "late"), data, google_crc32c.value(data))])
    (landing_id,) = landed.outcomes
    assert isinstance(landing_id, bytes)
    assert (segment_of(landing_id) == spare) == given_back
    request = PutRequest(ObjectKey("b", "late"))
    new = NewObject(request, len(data), google_crc32c.value(data), bytes(16), landing_id, due_ms=0)
    (answer,) = host.metadata.record_puts([new], 0)
    assert isinstance(answer, Transient) == given_back
    if given_back:
        assert spare in set(host.medium.segments())
    landed.settle([landing_id] if given_back else [])
    if given_back:
        assert spare not in set(host.medium.segments())
    acknowledged |= put(host.metadata, log, names("after"))
    log.close()
    own.close()
    host.check(acknowledged)
    rows = {row.segment for row in host.metadata.list_segments(None, 10)}
    assert set(host.medium.segments()) == rows, "a segment without a row is never given back"


def test_a_batch_whose_append_gets_no_answer_lands_in_another_segment(host: Host, ceph: CephCluster) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    impatient = OwnSegmentLog(ceph, host.namespace, OP_TIMEOUT_MS)
    log = landing_log(host.metadata, impatient)
    acknowledged = put(host.metadata, log, names("before"))
    segment = segment_of(acknowledged["before-0"])
    with ceph.osd_stopped(ceph.osds_of(POOL_LANDING, host.namespace, f"log.{segment.hex()}")[0]):
        until_it_lands = WAIT_S_MAX + time.monotonic()
        while "during-0" not in acknowledged and time.monotonic() < until_it_lands:
            try:
                acknowledged |= put(host.metadata, log, names("during", 1))
            except Transient:  # all three segments lie on OSDs that wait for the one that hangs
                continue
    assert segment_of(acknowledged["during-0"]) != segment
    log.close()
    impatient.close()
    recover_logs(host.metadata, host.medium)
    host.check(acknowledged)
