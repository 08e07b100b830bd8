"""Segments of the landing log on real Ceph pools: what its objects hold, and failures of OSDs, writers and pools."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.cluster_waits import await_state
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.adapters.rados.client.removal import remove_namespace
from nos_ec.adapters.rados.landing_store import RadosLandingStore
from nos_ec.adapters.rados.pool_checks import check_write_limits
from nos_ec.adapters.rados.segment_log import ALIGN, LIMITS, STATE_XATTR, RadosSegmentLog
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import SegmentHeader, decode_segment_header, encode_segment_header
from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.ports.segment_medium import Buffer, Seal, SegmentWriter
from tests.rig.ceph_cluster import POOL_LANDING, STORE_ID, CephCluster, OwnLandingStore, OwnSegmentLog

pytestmark = pytest.mark.real

START = LIMITS.start
OP_TIMEOUT_MS = 1_000
HASTE_S_MAX = 20.0
"""An operation with OP_TIMEOUT_MS has ended by then, even on a machine that stalls; with the time limit of the other
media, 30 s, none has."""


@pytest.fixture
def namespace(ceph: CephCluster) -> Iterator[str]:
    namespace = uuid.uuid4().hex
    with RadosCluster(ceph.options("front")) as cluster:
        RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
        yield namespace
        remove_namespace(cluster, POOL_LANDING, namespace)


@pytest.fixture
def medium(ceph: CephCluster, namespace: str) -> Iterator[OwnSegmentLog]:
    medium = OwnSegmentLog(ceph, namespace)
    yield medium
    medium.close()


@pytest.fixture
def other(ceph: CephCluster, namespace: str) -> Iterator[OwnSegmentLog]:
    """The same medium as another process opens it."""
    other = OwnSegmentLog(ceph, namespace)
    yield other
    other.close()


@pytest.fixture
def impatient(ceph: CephCluster, namespace: str) -> Iterator[OwnSegmentLog]:
    """The same medium with a short time limit."""
    medium = OwnSegmentLog(ceph, namespace, OP_TIMEOUT_MS)
    yield medium
    medium.close()


def name_of(segment: SegmentId) -> str:
    return f"log.{segment.hex()}"


def new_segment() -> SegmentId:
    return SegmentId(os.urandom(8))


def pages(seed: int, count: int = 1) -> bytes:
    return bytes([seed]) * (count * ALIGN)


def written(medium: RadosSegmentLog, *batches: bytes) -> tuple[SegmentId, SegmentWriter, int]:
    """A segment with these batches, its writer and its end."""
    segment = new_segment()
    writer = medium.create(segment, 1, 1)
    end = START
    for batch in batches:
        writer.append(end, [batch])
        end += len(batch)
    return segment, writer, end


def fill(writer: SegmentWriter, ends: list[int], pause_s: float = 0) -> None:
    """Append pages of 1 until the segment is full. `ends`: its end, and then that of each page."""
    while ends[-1] < LIMITS.segment_bytes:
        writer.append(ends[-1], [pages(1)])
        ends.append(ends[-1] + ALIGN)
        time.sleep(pause_s)


def state(ceph: CephCluster, namespace: str, segment: SegmentId) -> bytes:
    with ceph.admin.open_pool(POOL_LANDING, namespace) as pool:
        return pool.xattr(name_of(segment), STATE_XATTR)


def content(medium: RadosSegmentLog, segment: SegmentId) -> bytes:
    """Return all bytes after the segment header."""
    return medium.read(segment, [(START, 2 * LIMITS.segment_bytes)])[0]


# --- objects -------------------------------------------------------------------------------------------------


def test_what_the_object_of_a_segment_holds(ceph: CephCluster, namespace: str, medium: OwnSegmentLog) -> None:
    segment, _, end = written(medium, pages(1), pages(2, 3))
    header = medium.read(segment, [(0, START)])[0]
    assert header[:4] == b"NLS1"
    assert len(header) == START == ALIGN
    assert header[64:] == bytes(START - 64)
    assert decode_segment_header(header) == SegmentHeader(segment, 0, 1, 1, LIMITS.segment_bytes, STORE_ID)
    assert state(ceph, namespace, segment) == b"open"
    footer: list[Buffer] = [b"a footer", bytearray(b" of "), memoryview(b"three parts")]
    assert medium.seal(segment, footer, records=4) == end == START + 4 * ALIGN
    assert content(medium, segment) == pages(1) + pages(2, 3) + b"a footer of three parts"
    assert state(ceph, namespace, segment) == b"sealed %d 4" % end


def test_landing_copies_and_segments_are_kept_apart(ceph: CephCluster, namespace: str, medium: OwnSegmentLog) -> None:
    landing = OwnLandingStore(ceph, namespace)
    landing_id = LandingId(os.urandom(16))
    landing.put(landing_id, b"x")
    segment, _, _ = written(medium, pages(1))
    assert list(landing.list_ids()) == [landing_id]
    assert list(medium.segments()) == [segment]
    assert landing.delete_many([landing_id, LandingId(segment + bytes(8))]) == {}
    assert medium.release([segment, new_segment()]) == {}
    assert list(landing.list_ids()) == []
    assert list(medium.segments()) == []
    landing.close()


def test_a_namespace_with_segments_is_removed_whole(ceph: CephCluster) -> None:
    namespace = uuid.uuid4().hex
    with RadosCluster(ceph.options("front")) as cluster:
        RadosLandingStore.initialise(cluster, POOL_LANDING, namespace)
        medium = RadosSegmentLog(cluster, POOL_LANDING, STORE_ID, namespace)
        for _ in range(3):
            written(medium, pages(1))
        medium.close()
        remove_namespace(cluster, POOL_LANDING, namespace)
        with cluster.open_pool(POOL_LANDING, namespace) as pool:
            assert list(pool.names()) == []


def test_an_object_that_was_not_created_as_a_segment_is_corrupt(
    ceph: CephCluster, namespace: str, medium: OwnSegmentLog
) -> None:
    foreign, damaged = new_segment(), written(medium, pages(1))[0]
    with ceph.admin.open_pool(POOL_LANDING, namespace) as pool:
        pool.write(name_of(foreign), steps.must_be_new())
        pool.write(name_of(damaged), steps.set_xattr(STATE_XATTR, b"sealed -1 2"))
        pool.write("log.somebody's", steps.must_be_new())
    assert set(medium.segments()) == {foreign, damaged}
    for segment in (foreign, damaged):
        with pytest.raises(Corrupt, match=STATE_XATTR):
            medium.seal(segment, None, 0)


def test_an_append_is_one_operation_and_needs_no_look_up(
    monkeypatch: pytest.MonkeyPatch, namespace: str, medium: OwnSegmentLog
) -> None:
    asked: list[str] = []
    for method in ("xattrs", "size_of", "write"):
        act = getattr(Pool, method)

        def counting(*args: object, _method: str = method, _act: Callable[..., object] = act) -> object:
            asked.append(_method)
            return _act(*args)

        monkeypatch.setattr(Pool, method, counting)
    segment, _, end = written(medium, pages(1), pages(2))
    assert asked == 2 * ["write"], "the first append creates the object"
    assert medium.seal(segment, [b"footer"], 2) == end
    assert asked == 3 * ["write"]
    asked.clear()
    _, writer, end = written(medium)
    writer.append(end, [pages(1)], Seal([b"footer"], 1))
    assert asked == ["write"], "an append that creates and seals"
    segment, _, _ = written(medium)
    assert medium.seal(segment, None, 0) == 0
    assert asked == ["write"], "nobody else can begin it"


def test_a_segment_of_one_batch(ceph: CephCluster, namespace: str, medium: OwnSegmentLog) -> None:
    segment, writer, _ = written(medium)
    assert list(medium.segments()) == []
    writer.append(START, [pages(1), pages(2)], Seal([b"a ", b"footer"], 7))
    header = medium.read(segment, [(0, START)])[0]
    assert decode_segment_header(header) == SegmentHeader(segment, 0, 1, 1, LIMITS.segment_bytes, STORE_ID)
    assert content(medium, segment) == pages(1) + pages(2) + b"a footer"
    assert state(ceph, namespace, segment) == b"sealed %d 7" % (START + 2 * ALIGN)


def test_a_segment_that_an_older_release_began_is_read_and_sealed(
    ceph: CephCluster, namespace: str, medium: OwnSegmentLog
) -> None:
    """It created the object with the header alone, and sealed it with an operation of its own."""
    segment, empty = new_segment(), new_segment()
    header = encode_segment_header(SegmentHeader(segment, 0, 1, 1, LIMITS.segment_bytes, STORE_ID))
    with ceph.admin.open_pool(POOL_LANDING, namespace) as pool:
        for each in (segment, empty):
            made = steps.append(header.ljust(START, b"\0"))
            pool.write(name_of(each), steps.must_be_new(), made, steps.set_xattr(STATE_XATTR, b"open"))
        pool.write(name_of(segment), steps.append(pages(1)))
    assert content(medium, segment) == pages(1)
    assert medium.seal(segment, None, 0) == START + ALIGN
    assert medium.seal(empty, None, 0) == START
    assert state(ceph, namespace, empty) == b"sealed %d 0" % START
    assert medium.release([segment, empty]) == {}


@pytest.mark.parametrize(
    ("offset", "size"),
    [(START, 100), (START, 0), (START + ALIGN, ALIGN), (0, ALIGN), (START, LIMITS.segment_bytes)],
    ids=["part of a page", "nothing", "behind the end", "before the end", "more than fits"],
)
def test_a_batch_at_a_wrong_place_is_not_sent(medium: OwnSegmentLog, offset: int, size: int) -> None:
    segment, writer, _ = written(medium)
    with pytest.raises(ValueError, match="a batch must be a multiple of 4096 bytes"):
        writer.append(offset, [bytes(size)])
    writer.append(START, [pages(1)])
    assert content(medium, segment) == pages(1)


def test_a_full_segment_has_its_footer_in_one_append(medium: OwnSegmentLog) -> None:
    segment, writer, end = written(medium)
    footer = os.urandom(9 << 20)
    while end + len(footer) < LIMITS.segment_bytes:
        size = min(LIMITS.batch_bytes_max, LIMITS.segment_bytes - len(footer) - end)
        writer.append(end, [bytes(size)])
        end += size
    assert medium.seal(segment, [footer], 200_000) == end
    assert content(medium, segment) == bytes(end - START) + footer
    assert end + len(footer) == LIMITS.segment_bytes


def test_what_the_osds_must_accept(ceph: CephCluster) -> None:
    check_write_limits(ceph.admin, object_bytes=128 << 20, write_bytes=90 << 20)
    with pytest.raises(ConfigError, match=r"osd_max_object_size.*config set osd osd_max_object_size 134217729"):
        check_write_limits(ceph.admin, object_bytes=(128 << 20) + 1, write_bytes=1)
    with pytest.raises(ConfigError, match=r"osd_max_write_size.*config set osd osd_max_write_size 91"):
        check_write_limits(ceph.admin, object_bytes=1, write_bytes=(90 << 20) + 1)


# --- writers that are fenced -----------------------------------------------------------------------------------


def test_a_writer_whose_segment_was_sealed_writes_nothing(medium: OwnSegmentLog, other: OwnSegmentLog) -> None:
    segment, writer, end = written(medium, pages(1))
    assert other.seal(segment, None, 0) == end
    for _ in range(2):
        with pytest.raises(Conflict, match="seal"):
            writer.append(end, [pages(2)])
    assert content(other, segment) == pages(1)
    assert medium.seal(segment, [b"a footer"], 1) == end
    assert content(other, segment) == pages(1), "a footer was appended to a segment that another process sealed"


def test_a_writer_whose_segment_was_removed_does_not_create_it_again(
    medium: OwnSegmentLog, other: OwnSegmentLog
) -> None:
    for sealed_by_writer in (True, False):
        segment, writer, end = written(medium, pages(1))
        other.seal(segment, None, 0)
        assert other.release([segment]) == {}
        if sealed_by_writer:
            with pytest.raises(NotFound) as missing:
                medium.seal(segment, [b"a footer"], 1)
            assert missing.value.landing_id is None
        with pytest.raises(Conflict, match="sealed"):
            writer.append(end, [pages(2)])
        assert list(other.segments()) == []
        with pytest.raises(NotFound):
            other.read(segment, [(0, START)])


def test_a_seal_before_the_first_append(
    ceph: CephCluster, namespace: str, medium: OwnSegmentLog, other: OwnSegmentLog
) -> None:
    segment, writer, end = written(medium)
    assert other.seal(segment, None, 3) == 0
    assert state(ceph, namespace, segment) == b"sealed 0 0"
    assert other.read(segment, [(0, START)]) == [b""]
    for _ in range(2):
        with pytest.raises(Conflict, match="seal"):
            writer.append(end, [pages(1)])
    assert medium.seal(segment, [b"a footer"], 1) == other.seal(segment, None, 0) == 0
    assert other.read(segment, [(0, START)]) == [b""]
    assert other.release([segment]) == {}
    assert list(medium.segments()) == []


def test_first_appends_and_seals_at_once_agree_on_the_end(medium: OwnSegmentLog, other: OwnSegmentLog) -> None:
    for _ in range(20):
        segment, writer, end = written(medium)
        with ThreadPoolExecutor(1) as pool:
            sealed = pool.submit(other.seal, segment, None, 0)
            try:
                writer.append(end, [pages(1)])
                end += ALIGN
            except Conflict:
                end = 0
        assert sealed.result() == medium.seal(segment, None, 0) == end
        assert content(other, segment) == (pages(1) if end else b"")


def test_appends_and_seals_at_once_agree_on_the_end(medium: OwnSegmentLog, other: OwnSegmentLog) -> None:
    for _ in range(10):
        segment, writer, end = written(medium, pages(1))
        ends = [end]
        with ThreadPoolExecutor(1) as pool:
            sealed = pool.submit(other.seal, segment, None, 0)
            with pytest.raises(Conflict):
                fill(writer, ends)
        assert sealed.result() == ends[-1]
        assert len(content(other, segment)) == ends[-1] - START


@pytest.mark.parametrize("role", ["reader", "producer", "api"])
def test_a_reader_cannot_write(ceph: CephCluster, namespace: str, medium: OwnSegmentLog, role: str) -> None:
    segment, _, _ = written(medium, pages(1))
    with RadosCluster(ceph.options(role)) as cluster:
        restricted = RadosSegmentLog(cluster, POOL_LANDING, STORE_ID, namespace)
        restricted.probe()
        assert list(restricted.segments()) == [segment]
        assert content(restricted, segment) == pages(1)
        assert restricted.free_bytes() > 0
        for act in (
            lambda: restricted.create(new_segment(), 1, 1).append(START, [pages(1)]),
            lambda: restricted.seal(segment, None, 0),
            lambda: restricted.seal(new_segment(), None, 0),
            lambda: restricted.release([segment]),
        ):
            with pytest.raises(ConfigError, match="caps"):
                act()
        restricted.close()


# --- OSDs that are down ------------------------------------------------------------------------------------------


def test_appends_go_on_while_osds_die_and_none_is_done_twice(
    ceph: CephCluster, namespace: str, medium: OwnSegmentLog
) -> None:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    segment, writer, end = written(medium)
    ends = [end]
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(fill, writer, ends, 0.01)
        for osd in ceph.osds_of(POOL_LANDING, namespace, name_of(segment))[:2]:
            with ceph.osds_killed([osd]):
                wanted = len(ends) + 20
                await_state(partial(has_reached, ends, wanted, filling), "no append was acknowledged")
        written_until = medium.seal(segment, None, 0)
        with pytest.raises(Conflict):
            filling.result()
    assert written_until == ends[-1]
    assert content(medium, segment) == pages(1, len(ends) - 1)


def has_reached(ends: Sequence[int], wanted: int, filling: Future[None]) -> bool:
    return len(ends) >= wanted or filling.done()


def test_an_append_without_an_answer_is_settled_by_the_seal(
    ceph: CephCluster, namespace: str, medium: OwnSegmentLog, impatient: OwnSegmentLog
) -> None:
    """A zombie: its OSD hangs with the append in its queue, the writer gives up, the OSD wakes up."""
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    segment, writer, end = written(impatient, pages(1))
    primary = ceph.osds_of(POOL_LANDING, namespace, name_of(segment))[0]
    begun_s = time.monotonic()
    with ceph.osd_stopped(primary):
        with pytest.raises(Transient, match="ceph health"):
            writer.append(end, [pages(2)])
        with pytest.raises(Transient, match="ceph health"):
            impatient.read(segment, [(0, START)])
        with pytest.raises(Conflict, match="outcome of an append is unknown"):
            writer.append(end, [pages(3)])
        assert time.monotonic() - begun_s < HASTE_S_MAX
    sealed = medium.seal(segment, None, 0)
    time.sleep(1)
    found = content(medium, segment)
    assert medium.seal(segment, None, 7) == sealed == START + len(found)
    assert found in (pages(1), pages(1) + pages(2))


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("batches", [0, 1])
@pytest.mark.parametrize("last", [True, False], ids=["last", "not last"])
def test_an_append_that_creates_or_seals_and_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch, medium: OwnSegmentLog, done: bool, batches: int, last: bool
) -> None:
    segment, writer, end = written(medium, *[pages(1)] * batches)
    before = end if batches else 0
    write = Pool.write

    def losing(pool: Pool, name: str, *changes: steps.Step) -> int:
        if done:
            write(pool, name, *changes)
        raise TimeoutError(110, "lost")

    with monkeypatch.context() as patched:
        patched.setattr(Pool, "write", losing)
        with pytest.raises(Transient):
            writer.append(end, [pages(2)], Seal([b"footer"], batches + 1) if last else None)
    with pytest.raises(Conflict, match="unknown"):
        writer.append(end, [pages(3)])
    assert medium.seal(segment, None, batches) == (end + ALIGN if done else before)
    footer = b"footer" if done and last else b""
    assert content(medium, segment) == pages(1, batches) + (pages(2) if done else b"") + footer
    with pytest.raises(Conflict):
        writer.append(end, [pages(3)])


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_footer_is_left_out_where_it_would_not_follow_the_last_known_batch(
    monkeypatch: pytest.MonkeyPatch, medium: OwnSegmentLog, done: bool
) -> None:
    """An append without an answer, which was done or not; the writer then seals."""
    segment, writer, end = written(medium, pages(1))
    write = Pool.write

    def losing(pool: Pool, name: str, *changes: steps.Step) -> int:
        if done:
            write(pool, name, *changes)
        raise TimeoutError(110, "lost")

    with monkeypatch.context() as patched:
        patched.setattr(Pool, "write", losing)
        with pytest.raises(Transient):
            writer.append(end, [pages(2)])
    footer = [b"a footer of one record"]
    assert medium.seal(segment, footer, 1) == (end + ALIGN if done else end)
    assert content(medium, segment) == pages(1) + (pages(2) if done else footer[0])


def test_a_seal_without_an_answer_is_repeated(
    monkeypatch: pytest.MonkeyPatch, ceph: CephCluster, namespace: str, medium: OwnSegmentLog
) -> None:
    segment, _, end = written(medium, pages(1))
    write = Pool.write

    def losing(pool: Pool, name: str, *changes: steps.Step) -> int:
        write(pool, name, *changes)
        raise TimeoutError(110, "lost")

    with monkeypatch.context() as patched:
        patched.setattr(Pool, "write", losing)
        with pytest.raises(Transient):
            medium.seal(segment, [b"footer"], 1)
    assert medium.seal(segment, [b"footer"], 1) == end
    assert content(medium, segment) == pages(1) + b"footer"
    assert state(ceph, namespace, segment) == b"sealed %d 1" % end


# --- full pools --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pool(ceph: CephCluster) -> Iterator[str]:
    """A pool of its own, initialised as a landing store."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    ceph.admin.command("osd pool create", pool=name, pg_num=1, pool_type="replicated")
    RadosLandingStore.initialise(ceph.admin, name)
    yield name
    ceph.admin.command("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


def test_a_full_pool_refuses_appends_at_once_and_lets_segments_be_sealed_and_released(
    ceph: CephCluster, small_pool: str
) -> None:
    medium = RadosSegmentLog(ceph.admin, small_pool, STORE_ID)
    segment, writer, end = written(medium, pages(1))
    ceph.admin.command("osd pool set-quota", pool=small_pool, field="max_bytes", val=str(ALIGN))
    ends = [end]
    with pytest.raises(NoSpace, match="quota"):
        fill(writer, ends, 0.1)
    assert medium.free_bytes() == 0
    refused = new_segment()
    with pytest.raises(NoSpace, match="quota"):
        medium.create(refused, 1, 1).append(START, [pages(1)])
    assert medium.seal(refused, None, 0) == 0, "the OSDs have refused it, so nothing has to keep it from coming"
    assert RadosSegmentLog(ceph.admin, small_pool, STORE_ID).free_bytes() == 0
    assert medium.read(segment, [(START, ALIGN)]) == [pages(1)]
    assert medium.seal(segment, [b"a footer"], len(ends) - 1) == ends[-1]
    assert content(medium, segment) == pages(1, len(ends)), "a full pool took the footer"
    assert medium.release([segment]) == {}
    assert list(medium.segments()) == []
    medium.close()
