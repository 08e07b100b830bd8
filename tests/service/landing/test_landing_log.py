"""The landing log of an embedded store, through its services and commands."""

from __future__ import annotations

import shutil
import threading
import time
from io import BytesIO
from pathlib import Path

import pytest

from nos_consumer.assemble import drain
from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError, Corrupt, NotFound
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import ObjectKey, in_log, new_segment_id
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.log_segment import RETRY_WAIT_MS
from nos_ec.engine.landing.unknown_segments import UnknownSegments
from tests.rig.at_rest import LaterClock, come_to_rest, end_log
from tests.rig.device_log_work import batch
from tests.rig.fakes.audit import all_objects
from tests.service.conftest import CHUNK, CONFIG, STORE_CONFIG, TTL_OVER_MS, Bench

pytestmark = pytest.mark.invariant(1)

MIB = 1 << 20
RING = 15 * MIB
"""Bytes of the slots of CONFIG."""
BYPASS = 64 << 10


def set_mode(bench: Bench, mode: str) -> None:
    text = bench.config.read_text()
    for old in ("store", "log", "drain"):
        text = text.replace(f'mode = "{old}"', f'mode = "{mode}"')
    bench.config.write_text(text)


def landed_in(system: System) -> tuple[int, int]:
    """How many objects wait in the log, and how many as copies of their own."""
    ids = [row.landing_id for row in all_objects(system.metadata) if row.landing_id is not None]
    records = sum(map(in_log, ids))
    return records, len(ids) - records


def pack_beside_log(bench: Bench, system: System) -> None:
    """Pack and reap while the system's own PUTs continue its log."""
    bench.produce(system)
    drain(system)


def assert_rests(bench: Bench) -> None:
    """After the processes that put have ended: nothing is lost, and all slots are free."""
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)  # entries of segments that were open wait
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)
        assert system.medium is not None
        assert (system.medium.raw_bytes(), landed_in(system)) == (0, (0, 0))


def test_objects_live_in_the_log_and_leave_it_packed(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 60)
    empty = bench.put(system, "empty", b"")
    again = bench.put(system, "again", bench.data(CHUNK))
    bench.put(system, "again", bench.data(2 * CHUNK))
    bench.delete(system, keys[3])
    assert landed_in(system) == (60, 0)
    assert len(list(system.landing.list_ids())) == 1, "the landing copy of the empty object"
    bench.assert_readable(system)
    bench.assert_absent(system, keys[3])
    data = bench.acknowledged[again]
    assert system.client.store().get(again) == data
    assert system.client.store().get(empty) == b""
    bench.pack(system)
    bench.put(system, "again", bench.data(CHUNK))
    bench.assert_readable(system)
    system.__exit__(None, None, None)
    assert_rests(bench)


def test_sealed_segments_are_given_back_while_open_ones_stay(bench: Bench, system: System) -> None:
    bench.put_some(system, 440)
    totals = system.metadata.segment_totals()
    assert totals[SegmentState.SEALED][0] >= 4
    pack_beside_log(bench, system)
    totals = system.metadata.segment_totals()
    assert set(totals) == {SegmentState.OPEN}
    assert system.medium is not None
    assert sum(1 for _ in system.medium.segments()) == totals[SegmentState.OPEN][0] <= 4


def test_three_rings_of_puts_pass_through_one_ring(bench: Bench, system: System) -> None:
    """While it is packed, no PUT finds the log full."""
    written = turn = 0
    while written < 3 * RING:
        keys = bench.put_some(system, 300, prefix=f"turn-{turn % 4}")
        written += sum(len(bench.acknowledged[key]) for key in keys)
        turn += 1
        assert landed_in(system) == (300, 0)
        bench.pack(system)
    bench.assert_readable(system)
    system.__exit__(None, None, None)
    assert_rests(bench)


def test_large_objects_pass_by(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.composition.landing.BYPASS_BYTES", BYPASS)
    with bench.open() as system:
        for name, size in (("first", 1), ("small", BYPASS - 1), ("large", BYPASS), ("larger", 4 * BYPASS)):
            bench.put(system, name, bench.data(size))
        assert landed_in(system) == (1, 3)
        together = {ObjectKey("b", f"{index}"): bench.data(BYPASS + 1 - index % 2) for index in range(6)}
        system.client.store().put_many(list(together.items()))
        bench.acknowledged |= together
        assert landed_in(system) == (1, 9)
        bench.assert_readable(system)
    assert_rests(bench)


def test_an_object_that_may_fit_no_segment_passes_by(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes by whatever a write of its own would cost."""
    monkeypatch.setattr("nos_ec.composition.landing.BYPASS_BYTES", 64 * MIB)
    config = bench.config.read_text().replace("chunk_size = 16384", "chunk_size = 131072")
    bench.config.write_text(config)
    shutil.rmtree(bench.folder / "store")
    assert bench.run("init").returncode == 0
    with bench.open() as system:
        for size in (1, MIB // 8, MIB - 8 * 1024, MIB, 2 * MIB):
            bench.put(system, f"{size}", bench.data(size))
        assert landed_in(system) == (1, 4)
        bench.assert_readable(system)
    assert_rests(bench)


def test_a_process_with_one_put_leaves_no_trace_in_the_log(bench: Bench) -> None:
    with bench.open() as system:
        bench.put(system, "alone", bench.data(CHUNK))
        assert landed_in(system) == (0, 1)
        assert system.metadata.segment_totals() == {}
        assert system.metadata.list_leases("") == []
        bench.put(system, "another", bench.data(CHUNK))
        assert landed_in(system) == (1, 1)
    assert_rests(bench)


def test_a_hundred_short_processes_do_not_use_up_the_log(bench: Bench) -> None:
    """Each takes a slot, and there are 15. What finds none passes by. Slots come back when their objects are packed."""
    for turn in range(100):
        with bench.open() as system:
            bench.put_some(system, 5, size_max=CHUNK, prefix=f"process-{turn}")
    with bench.open() as system:
        assert landed_in(system) == (5 * 15, 5 * 85)
        assert {state: count for state, (count, _) in system.metadata.segment_totals().items()} == {
            SegmentState.SEALED: 15
        }
        assert system.metadata.list_leases("") == []
        bench.pack(system)
        assert system.metadata.segment_totals() == {}
    for turn in range(5):
        with bench.open() as system:
            bench.put_some(system, 5, size_max=CHUNK, prefix=f"later-{turn}")
    with bench.open() as system:
        assert landed_in(system) == (5 * 5, 0)
    assert_rests(bench)


def test_puts_pass_by_a_log_that_is_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They pass by until there is room, and for as long as the log waits before it tries again."""
    monkeypatch.setattr("nos_ec.engine.landing.segment_maker.RETRY_WAIT_MS_MAX", RETRY_WAIT_MS)
    with bench.open() as system:
        bench.put_some(system, 1100)
        records, copies = landed_in(system)
        assert records + copies == 1100
        assert min(records, copies) > 100
        bench.assert_readable(system)
        pack_beside_log(bench, system)
        time.sleep(RETRY_WAIT_MS / 1000)
        bench.put(system, "later", bench.data(CHUNK))
        assert landed_in(system) == (1, 0)
    assert_rests(bench)


def test_drained_under_load_and_filled_again(bench: Bench) -> None:
    """A process that still puts into the log, and one that drains it, work side by side."""
    old = bench.open()
    set_mode(bench, "drain")
    with bench.open() as system:
        with old:
            bench.put_some(old, 200, prefix="old")
            bench.put_some(system, 100, prefix="new")
            assert landed_in(system) == (200, 100)
            bench.assert_readable(system)
            bench.assert_readable(old)
            stop = threading.Event()
            failures: list[BaseException] = []
            load = threading.Thread(target=_load, args=(bench.open, stop, failures))
            load.start()
            try:
                bench.pack(system)
            finally:
                stop.set()
                load.join()
            assert failures == []
            bench.put_some(old, 20, prefix="old")
        system.clock = LaterClock(TTL_OVER_MS)
        bench.pack(system)
        assert system.metadata.segment_totals() == {}
        bench.put_some(system, 20, prefix="drained")
        assert landed_in(system)[0] == 0
    set_mode(bench, "log")
    with bench.open() as system:
        bench.put_some(system, 20, prefix="again")
        assert landed_in(system)[0] == 20
        system.client.store().delete(ObjectKey("load", "load"))
    assert_rests(bench)


def _load(open_one: object, stop: threading.Event, failures: list[BaseException]) -> None:
    """PUTs and GETs of one object, until `stop`; at least a few."""
    assert callable(open_one)
    key, turn = ObjectKey("load", "load"), 0
    try:
        with open_one() as system:
            while turn < 3 or not stop.is_set():
                data = b"%d" % turn
                system.client.store().put(key, BytesIO(data))
                assert system.client.store().get(key) == data
                turn += 1
    except BaseException as error:
        failures.append(error)


def test_events_that_name_moved_records_are_published_again(bench: Bench, system: System) -> None:
    bench.put_some(system, 20)
    bench.produce(system)
    end_log(system)
    bench.copy_forward(system)
    bench.consume(system)
    assert landed_in(system) == (20, 0)
    assert come_to_rest(system) == []
    bench.assert_readable(system)


# --- settings and devices ---------------------------------------------------------------------------
@pytest.fixture
def old_bench(tmp_path: Path, new_plain_store: Path) -> Bench:
    """A store without a log, in which copies wait."""
    folder = tmp_path / "old"
    shutil.copytree(new_plain_store, folder)
    bench = Bench(folder, STORE_CONFIG)
    with bench.open() as system:
        bench.put_some(system, 40)
    return bench


def test_an_old_store_gets_a_log(old_bench: Bench) -> None:
    old_bench.config.write_text(CONFIG)
    refused = old_bench.run("ls")
    assert refused.returncode == 3
    assert b"run `nos-ec init` to create it (16 MiB), or set landing.mode" in refused.stderr
    assert old_bench.run("init").returncode == 0
    assert old_bench.run("init").returncode == 0
    with old_bench.open() as system:
        old_bench.put_some(system, 30, prefix="new")
        assert landed_in(system) == (30, 40)
        old_bench.assert_readable(system)
    assert_rests(old_bench)


@pytest.mark.parametrize("mode", ["log", "drain", "store"])
def test_a_lost_device_is_not_taken_for_lost_objects(bench: Bench, mode: str) -> None:
    with bench.open() as system:
        bench.put(system, "first", bench.data(CHUNK))
        key = bench.put(system, "landed", bench.data(CHUNK))
    device = bench.folder / "store" / "landing_log" / "device0"
    device.rename(bench.folder / "elsewhere")
    set_mode(bench, mode)
    get = ["get", str(key), "-o", str(bench.folder / "copy")]
    for command in (get, ["init"], get):
        refused = bench.run(*command)
        assert refused.returncode == 3, (command, refused)
        assert b"landing" in refused.stderr, command
        assert b"connect" in refused.stderr, command
    assert b"--new-device 0" in bench.run("init").stderr
    assert not device.exists()
    (bench.folder / "elsewhere").rename(device)
    assert_rests(bench)


def test_a_lost_device_of_an_empty_log_is_made_again(bench: Bench) -> None:
    (bench.folder / "store" / "landing_log" / "device0").unlink()
    with pytest.raises(ConfigError, match="init"):
        bench.open()
    assert bench.run("init").returncode == 0
    with bench.open() as system:
        bench.put_some(system, 30)
        with pytest.raises(NotFound):
            system.client.store().get(ObjectKey("b", "no"))
    assert_rests(bench)


def test_a_device_that_is_lost_for_good_is_replaced(bench: Bench) -> None:
    """What lay only there is lost; everything else continues."""
    with bench.open() as system:
        bench.put(system, "first", bench.data(CHUNK))
        kept = bench.put(system, "landed", bench.data(CHUNK))
        pack_beside_log(bench, system)
        lost = bench.put(system, "lost", bench.data(CHUNK))
    (bench.folder / "store" / "landing_log" / "device0").unlink()
    assert bench.run("init", "--new-device", "0").returncode == 0
    with bench.open() as system:
        assert system.client.store().get(kept) == bench.acknowledged[kept]
        with pytest.raises(Corrupt, match="landed"):
            system.client.store().get(lost)
        bench.put(system, "lost", bench.data(CHUNK))
    assert_rests(bench)


def test_a_damaged_record_is_not_taken_for_an_empty_segment(bench: Bench) -> None:
    """Without a row, the segment is given back only if nothing was appended to it."""
    with bench.open() as system:
        assert system.medium is not None
        segment, empty = (new_segment_id(system.clock.now_ms(), number) for number in (7, 8))
        laid = batch(segment, PAGE)
        system.medium.create(segment, 1, 0).append(PAGE, laid.buffers)
        system.medium.create(empty, 1, 0)
    device = bench.folder / "store" / "landing_log" / "device0"
    content = bytearray(device.read_bytes())
    content[content.index(laid.ids[0])] ^= 1
    device.write_bytes(content)
    with bench.open() as system:
        assert system.medium is not None
        unknown = UnknownSegments(system.metadata, system.medium, system.clock)
        assert unknown.run_once() == 1
        assert list(system.medium.segments()) == [segment]
