"""The landing log on devices: its contract on files, its files and superblocks, full and lost devices, damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nos_ec.adapters.local.devices import device_lives, device_set, devices, slot_table
from nos_ec.adapters.local.devices.device_file import DeviceFile
from nos_ec.adapters.local.devices.device_format import SLOTS_AT, decode_superblock
from nos_ec.adapters.local.devices.device_log import DeviceLog, DeviceWriter
from nos_ec.core.errors import ConfigError, Conflict, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import NONCE_SIZE, lay_out_footer
from nos_ec.core.ids import SegmentId
from nos_ec.ports.segment_medium import DeviceStates, SegmentMedium
from tests.contract.suites.segment_medium_contract import SegmentMediumContract, new_segment
from tests.rig.device_log_work import STORE, batch
from tests.rig.open_files import open_files

OTHER_STORE = "ff" * 16
SLOT = 256 << 10
SLOTS = 8
FILE = SLOTS_AT + SLOTS * SLOT
START = 4096


def make(root: Path, devices: int = 1, new_devices: tuple[int, ...] = ()) -> list[Path]:
    """A log on files in this folder. Returns their paths."""
    paths = [root / f"device-{number}" for number in range(devices)]
    initialise(root, paths, new_devices)
    return paths


def initialise(root: Path, paths: list[Path], new_devices: tuple[int, ...] = ()) -> None:
    DeviceLog.initialise(root / "log", paths, STORE, slot_bytes=SLOT, file_bytes=FILE, new_devices=new_devices)


def opened(root: Path, paths: list[Path], copies: int = 1) -> DeviceLog:
    return DeviceLog(root / "log", paths, STORE, copies=copies)


class TestOneFile(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path) -> Callable[[], SegmentMedium]:
        paths = make(tmp_path)
        return lambda: opened(tmp_path, paths)


class TestTwoCopiesOnThreeFiles(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path) -> Callable[[], SegmentMedium]:
        paths = make(tmp_path, 3)
        return lambda: opened(tmp_path, paths, copies=2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DeviceLog]:
    with closing(opened(tmp_path, make(tmp_path))) as log:
        yield log


def written(log: DeviceLog, batches: int = 1) -> tuple[SegmentId, DeviceWriter, int]:
    """A segment with this many batches of two pages, its writer, and its end."""
    segment = new_segment()
    writer = log.create(segment, 1, 0)
    end = START
    for _ in range(batches):
        laid = batch(segment, end)
        writer.append(end, laid.buffers)
        end += laid.size
    return segment, writer, end


def batch_at(segment: SegmentId, offset: int) -> bytes:
    return b"".join(batch(segment, offset).buffers)


def overwrite(path: Path, segment: SegmentId, offset: int, data: bytes) -> None:
    """Change bytes of a segment on one device, wherever its slot is."""
    content = path.read_bytes()
    headers = range(SLOTS_AT, FILE, SLOT)
    (start,) = [at for at in headers if content[at + 8 : at + 16] == segment]
    with path.open("r+b") as file:
        file.seek(start + offset)
        file.write(data)


# --- files and superblocks --------------------------------------------------------------------------
def test_a_file_is_written_out_and_keeps_its_size(tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    assert path.stat().st_size == FILE
    assert path.stat().st_blocks * 512 >= FILE, "it is sparse"
    before = path.read_bytes()
    make(tmp_path)
    assert path.read_bytes() == before
    with closing(opened(tmp_path, [path])) as log:
        assert log.free_bytes() == SLOTS * (SLOT - 4096)


def test_a_device_that_grew_changes_nothing(tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    os.truncate(path, FILE + 10 * SLOT)
    make(tmp_path)
    with closing(opened(tmp_path, [path])) as log:
        assert log.free_bytes() == SLOTS * (SLOT - 4096)


def test_a_device_that_shrank_is_refused(tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    os.truncate(path, FILE - 4096)
    with pytest.raises(ConfigError, match="was initialised with"):
        opened(tmp_path, [path])


def test_a_file_that_a_killed_init_left_is_completed(tmp_path: Path) -> None:
    (tmp_path / "device-0").write_bytes(bytes(2 << 20))
    (path,) = make(tmp_path)
    assert path.stat().st_size == FILE
    opened(tmp_path, [path]).close()


@pytest.mark.parametrize("at", [0, 500_000, 2 << 20])
def test_data_of_somebody_else_is_left_alone(tmp_path: Path, at: int) -> None:
    content = bytearray(3 << 20)
    content[at : at + 4] = b"data"
    path = tmp_path / "device-0"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds data"):
        make(tmp_path)
    assert path.read_bytes() == content
    with pytest.raises(ConfigError):
        opened(tmp_path, [path])


def test_a_device_of_another_store_is_refused(tmp_path: Path) -> None:
    paths = make(tmp_path)
    before = paths[0].read_bytes()
    for act in (
        lambda: DeviceLog(tmp_path / "log", paths, OTHER_STORE),
        lambda: DeviceLog.initialise(tmp_path / "log", paths, OTHER_STORE, slot_bytes=SLOT, file_bytes=FILE),
    ):
        with pytest.raises(ConfigError, match="another store"):
            act()
    assert paths[0].read_bytes() == before


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    paths = make(tmp_path)
    for slot_bytes, file_bytes in ((2 * SLOT, FILE), (5000, FILE), (4096, FILE), (SLOT, FILE + 1)):
        with pytest.raises(ConfigError):
            DeviceLog.initialise(tmp_path / "log", paths, STORE, slot_bytes=slot_bytes, file_bytes=file_bytes)
    new = [tmp_path / "small"]
    with pytest.raises(ConfigError, match="room for 1 slots"):
        DeviceLog.initialise(tmp_path / "log2", new, STORE, slot_bytes=SLOT, file_bytes=SLOTS_AT + SLOT)


def test_what_was_never_initialised_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nos-ec init"):
        opened(tmp_path, [tmp_path / "absent"])
    (tmp_path / "zeros").write_bytes(bytes(FILE))
    with pytest.raises(ConfigError, match="nos-ec init"):
        opened(tmp_path, [tmp_path / "zeros"])


def test_a_device_is_named_once(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    (tmp_path / "again").symlink_to(paths[0])
    with pytest.raises(ConfigError, match="once"):
        opened(tmp_path, [*paths, tmp_path / "again"])
    with pytest.raises(ConfigError, match="once"):
        initialise(tmp_path, [*paths, tmp_path / "again"])
    with pytest.raises(ConfigError, match="3 copies"):
        opened(tmp_path, paths, copies=3)


def test_one_damaged_superblock_does_no_harm(tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    log = opened(tmp_path, [path])
    segment, _, end = written(log)
    log.close()  # with an open segment: three generations have been written
    content = path.read_bytes()
    first, second = (decode_superblock(content[at : at + 4096]) for at in (0, 4096))
    assert {first.generation, second.generation} == {2, 3}
    for damaged in ([0], [4096], [0, 4096]):
        hurt = bytearray(content)
        for at in damaged:
            hurt[at + 30] ^= 4
        path.write_bytes(hurt)
        if len(damaged) == 2:
            with pytest.raises(ConfigError, match="checksum does not match"):
                opened(tmp_path, [path])
            continue
        with closing(opened(tmp_path, [path])) as log:
            assert log.read(segment, [(START, end - START)]) == [batch_at(segment, START)]


def test_a_clean_end_is_known(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    log, reader = opened(tmp_path, paths), opened(tmp_path, paths)
    assert log.was_clean
    segment, _, _ = written(log)
    log.close()
    reader.close()
    log, reader = opened(tmp_path, paths), opened(tmp_path, paths)
    assert not log.was_clean
    log.seal(segment, None, 0)
    log.close()
    again = opened(tmp_path, paths)
    assert not again.was_clean, "somebody still uses it"
    again.close()
    reader.close()
    with closing(opened(tmp_path, paths)) as log:
        assert log.was_clean


def test_without_o_direct_the_page_cache_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, **options: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        assert flags & os.O_DSYNC or not flags & os.O_RDWR or "device" not in str(path) or flags & os.O_CREAT
        return real_open(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    paths = make(tmp_path)
    assert not DeviceFile(paths[0]).direct
    with closing(opened(tmp_path, paths)) as log:
        segment, _, end = written(log)
        assert log.read(segment, [(START, end - START)]) == [batch_at(segment, START)]


# --- counts of operations (the rows of docs/MEASUREMENTS.md) ----------------------------------------
@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is read from devices and written to them: kind and bytes of each operation."""
    found: list[tuple[str, int]] = []
    read, write = DeviceFile.read, DeviceFile.write

    def noted_read(file: DeviceFile, offset: int, length: int) -> bytes:
        found.append(("read", length))
        return read(file, offset, length)

    def noted_write(file: DeviceFile, offset: int, data: memoryview) -> None:
        found.append(("write", len(data)))
        write(file, offset, data)

    monkeypatch.setattr(DeviceFile, "read", noted_read)
    monkeypatch.setattr(DeviceFile, "write", noted_write)
    return found


def test_a_start_reads_the_headers_of_slots_whatever_they_hold(
    tmp_path: Path, operations: list[tuple[str, int]]
) -> None:
    """Row A3: also after a crash, which leaves segments open."""
    paths = make(tmp_path)
    starts = []
    for segments in (0, 1, SLOTS - 1):
        operations.clear()
        log = opened(tmp_path, paths)
        starts.append(list(operations))
        for _ in range(segments):
            written(log, batches=10)
        log.close()
    assert starts[0] == starts[1] == starts[2]
    assert {kind for kind, _ in starts[0]} == {"read"}
    assert len(starts[0]) <= SLOTS + 2, "a page of each slot, and the superblocks"
    assert sum(length for _, length in starts[0]) <= (SLOTS + 2) * 4096


@pytest.mark.parametrize("copies", [1, 2])
def test_a_segment_is_given_back_with_one_page_a_copy(
    tmp_path: Path, operations: list[tuple[str, int]], copies: int
) -> None:
    """Row A9: however many records it holds."""
    with closing(opened(tmp_path, make(tmp_path, 2), copies)) as log:
        for batches in (1, 25):
            segment, _, _ = written(log, batches)
            log.seal(segment, None, 0)
            operations.clear()
            assert log.release([segment]) == {}
            assert operations == [("write", 4096)] * copies


# --- slots ------------------------------------------------------------------------------------------
def test_a_full_device(log: DeviceLog) -> None:
    segments = [written(log)[0] for _ in range(SLOTS)]
    assert log.free_bytes() == 0
    for _ in range(2):
        with pytest.raises(NoSpace, match="no slot is free"):
            log.create(new_segment(), 1, 0)
    log.probe()
    assert log.release([segments[3]]) == {}
    assert log.free_bytes() == SLOT - 4096
    segment, _, end = written(log)
    assert log.read(segment, [(START, end - START)]) == [batch_at(segment, START)]
    assert sorted(log.segments()) == sorted([*segments[:3], *segments[4:], segment])


def test_batches_in_the_wrong_place_are_refused(log: DeviceLog) -> None:
    segment = new_segment()
    writer = log.create(segment, 1, 0)
    for offset, size in ((START + 8, 4096), (START, 100), (0, 4096), (SLOT - 4096, 4096), (START, 0), (START, SLOT)):
        with pytest.raises(ValueError, match="batch of"):
            writer.append(offset, [bytes(size)])
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append(START, [bytes(4096)])


def test_a_batch_that_a_scan_could_miss_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "device"]
    DeviceLog.initialise(tmp_path / "log", paths, STORE, slot_bytes=SLOT, file_bytes=FILE, window_bytes=16384)
    with closing(opened(tmp_path, paths)) as log:
        segment = new_segment()
        writer = log.create(segment, 1, 0)
        writer.append(START, [bytes(8192)])
        with pytest.raises(ValueError, match="too large for the window"):
            writer.append(START + 8192, [bytes(16384)])


def test_what_an_earlier_life_left_in_a_slot_is_not_found(log: DeviceLog) -> None:
    """Neither its records nor its trailer belong to the next segment."""
    for _ in range(2 * SLOTS):
        segment, _, end = written(log, batches=5)
        footer = lay_out_footer(segment, end, 0, 1, batch(segment, START).entries, bytes(NONCE_SIZE), 4096)
        assert log.seal(segment, footer, 5) == end
        assert log.release([segment]) == {}
        short, writer, end = written(log, batches=1)
        writer.close()
        log._writers.clear()
        assert log.seal(short, None, 0) == end
        assert log.release([short]) == {}


def test_a_torn_batch_and_a_hole(tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    log = opened(tmp_path, [path])
    torn, _, torn_end = written(log, batches=4)
    holed, _, holed_end = written(log, batches=4)
    log.close()
    overwrite(path, torn, torn_end - 4096, bytes(4096))
    overwrite(path, holed, START + 8192, bytes(2 * 8192))
    with closing(opened(tmp_path, [path])) as log:
        assert log.seal(torn, None, 0) == torn_end - 8192
        assert log.seal(holed, None, 0) == holed_end
        assert log.read(holed, [(holed_end - 8192, 8192)]) == [batch_at(holed, holed_end - 8192)]


def test_a_footer_without_a_trailer_ends_the_scan(tmp_path: Path) -> None:
    (path,) = make(tmp_path)
    log = opened(tmp_path, [path])
    segment, _, end = written(log, batches=2)
    footer = lay_out_footer(segment, end, 0, 1, batch(segment, START).entries, bytes(NONCE_SIZE), 4096)
    assert log.seal(segment, footer, 2) == end
    log.close()
    overwrite(path, segment, SLOT - 4096, bytes(56))
    with closing(opened(tmp_path, [path])) as log:
        assert log.seal(segment, None, 0) == end


def test_an_append_that_failed_leaves_the_end_to_a_scan(log: DeviceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, writer, end = written(log, batches=2)
    laid = batch(segment, end)
    with monkeypatch.context() as patched:
        patched.setattr(DeviceFile, "write", failing)
        with pytest.raises(Transient, match="Input/output error"):
            writer.append(end, laid.buffers)
    log.probe()
    assert log.seal(segment, laid.buffers, 2) == end
    (behind,) = log.read(segment, [(end, 4096)])
    assert behind == bytes(4096), "no footer is written after an unknown end"


def test_a_writer_that_was_stopped_holds_up_seal_and_release(log: DeviceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_table, "LOCK_WAIT_S_MAX", 0.05)
    segment, writer, end = written(log)
    writer._begin()
    with pytest.raises(Transient, match="stopped process"):
        log.seal(segment, None, 0)
    failed = log.release([segment])
    assert list(failed) == [segment]
    assert isinstance(failed[segment], Transient)
    writer._finish(None)
    with pytest.raises(Conflict):
        writer.append(end, batch(segment, end).buffers)
    assert log.seal(segment, None, 0) == end
    assert log.release([segment]) == {}


# --- several devices --------------------------------------------------------------------------------
def failing(*_: object) -> object:
    raise OSError(5, "Input/output error")


def broken(patched: pytest.MonkeyPatch, path: Path, names: tuple[str, ...] = ("read", "write")) -> None:
    """Let all reads and writes of one device fail."""
    for name in names:
        real = getattr(DeviceFile, name)

        def act(file: DeviceFile, *args: object, real: Callable[..., object] = real) -> object:
            return failing() if file.path == path else real(file, *args)

        patched.setattr(DeviceFile, name, act)


def test_segments_spread_over_devices(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    with closing(opened(tmp_path, paths)) as log:
        segments = [written(log)[0] for _ in range(6)]
        assert [path.read_bytes().count(b"NLS1") for path in paths] == [4, 4, 4], (
            "each header page has its header twice"
        )
        assert log.free_bytes() == (3 * SLOTS - 6) * (SLOT - 4096)
        assert log.release(segments) == {}


def test_devices_may_be_named_in_another_order(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    with closing(opened(tmp_path, paths, copies=2)) as log, closing(opened(tmp_path, paths[::-1], copies=2)) as other:
        segment, _, end = written(log)
        for copy in range(2):
            assert other.read(segment, [(START, end - START)], copy) == [batch_at(segment, START)]


def test_a_damaged_copy_leaves_the_other(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        segment, _, end = written(log)
        overwrite(paths[0], segment, START + 100, b"damage")
        found = [log.read(segment, [(START, end - START)], copy) for copy in range(2)]
        assert sorted(each == [batch_at(segment, START)] for each in found) == [False, True]


def test_a_device_is_lost_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path, 3)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        segments = [written(log) for _ in range(3)]
        with monkeypatch.context() as patched:
            broken(patched, paths[1])
            failed = 0
            for segment, writer, end in segments:
                try:
                    writer.append(end, batch(segment, end).buffers)
                except Transient:
                    failed += 1
                assert log.read(segment, [(START, 8192)]) == [batch_at(segment, START)]
                assert log.read(segment, [(START, 8192)], 1) == [batch_at(segment, START)]
                assert log.seal(segment, None, 0) >= end
            assert failed == 2, "two of three segments have a copy there"
            further, _, end = written(log)
            assert log.free_bytes() == (SLOTS - 3) * (SLOT - 4096)
            log.probe()
            held = log.release([segment for segment, _, _ in segments])
            assert len(held) == 2, "the device may return with their copies"
            assert set(log.segments()) == {*held, further}
        log.probe()
        assert log.release([*(segment for segment, _, _ in segments), further]) == {}
        assert log.free_bytes() == 3 * SLOTS // 2 * (SLOT - 4096)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("call", ["read", "write"])
def test_a_copy_that_cannot_be_changed_does_not_keep_the_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, call: str
) -> None:
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        segment, _, _ = written(log)
        before = batch_at(segment, START)
        with monkeypatch.context() as patched:
            broken(patched, paths[lost], (call,))
            with pytest.raises(Transient, match="changing segment"):
                log.overwrite(segment, START, before[:4], b"void")
        assert [before in path.read_bytes() for path in paths] == [lost == 0, lost == 1]
        log.overwrite(segment, START, before[:4], b"void")
        assert not any(before in path.read_bytes() for path in paths)


def test_the_loss_of_a_device_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log, capture_logs() as lines:
        assert log.devices() == DeviceStates(2, ())
        for _ in range(3):
            with monkeypatch.context() as patched:
                broken(patched, paths[1], ("write",))
                for _ in range(3):
                    states = log.devices()
            assert states.working == 1
            assert [str(paths[1]) in lost for lost in states.lost] == [True]
            assert log.devices().working == 2
        events = [(line["event"], line["log_level"], line["device"]) for line in lines]
        lost, back = "device of the landing log is lost", "device of the landing log works again"
        assert events == [(lost, "warning", 1), *[(back, "info", 1)] * 3]
        monkeypatch.setattr(device_set, "_LOG_WAIT_S", 0)
        with monkeypatch.context() as patched:
            broken(patched, paths[1], ("write",))
            log.devices()
        assert lines[-1]["event"] == lost


def test_a_device_that_is_not_there_is_logged_at_the_start(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    paths[1].unlink()
    with capture_logs() as lines, closing(opened(tmp_path, paths)) as log:
        assert log.devices() == DeviceStates(1, (f"{paths[1]} is missing",))
    assert [(line["log_level"], line["devices"]) for line in lines] == [("warning", [f"{paths[1]} is missing"])]
    with closing(opened(tmp_path, paths[:1])) as log:
        assert log.devices() == DeviceStates(1, ("one is not configured",))


def test_too_few_devices_take_no_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        segment, writer, end = written(log)
        with monkeypatch.context() as patched:
            broken(patched, paths[0])
            with pytest.raises(Transient):
                writer.append(end, batch(segment, end).buffers)
            for _ in range(2):
                with pytest.raises(Transient, match="1 of 2 devices work") as refused:
                    log.create(new_segment(), 1, 0)
                assert not isinstance(refused.value, NoSpace)
                assert str(paths[0]) in str(refused.value)
            with pytest.raises(Transient, match="1 of 2 devices work"):
                log.probe()
            assert log.free_bytes() == 0
        written(log)  # finds out by itself that the device is back


def test_looking_for_a_lost_device_again_and_again_leaves_no_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk often can be opened and read, but not written."""
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths)) as log:
        with monkeypatch.context() as patched:
            broken(patched, paths[0], ("write",))
            log.probe()
            before = open_files(tmp_path)
            for _ in range(10):
                log.probe()
            assert open_files(tmp_path) == before
        log.probe()
        assert log.free_bytes() == 2 * SLOTS * (SLOT - 4096)


def test_a_device_is_lost_before_the_start(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    log = opened(tmp_path, paths, copies=2)
    open_one, _, open_end = written(log)
    sealed, _, sealed_end = written(log, batches=2)
    log.seal(sealed, None, 2)
    log.close()
    paths[0].rename(tmp_path / "elsewhere")
    with closing(opened(tmp_path, paths, copies=2)) as log:
        assert sorted(log.segments()) == sorted([open_one, sealed])
        assert log.seal(open_one, None, 0) == open_end
        assert log.seal(sealed, None, 0) == sealed_end
        for copy in range(2):
            assert log.read(sealed, [(START, 8192)], copy) == [batch_at(sealed, START)]
        with pytest.raises(NotFound):
            log.read(new_segment(), [(START, 8192)])
        with pytest.raises(Transient, match="is missing"):
            log.create(new_segment(), 1, 0)
        for _ in range(2):
            assert list(log.release([sealed])) == [sealed], "forgetting it would leave it on the lost device"
        (tmp_path / "elsewhere").rename(paths[0])
        written(log)
        assert sealed in set(log.segments()), "the device that returned still has it, so that it can be released"
        assert log.release([sealed]) == {}
        assert sealed not in set(log.segments())


def test_with_one_copy_a_lost_device_is_not_taken_for_a_released_segment(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    log = opened(tmp_path, paths)
    segments = [written(log)[0] for _ in range(2)]
    log.close()
    paths[0].rename(tmp_path / "elsewhere")
    with closing(opened(tmp_path, paths)) as log:
        outcomes = []
        for segment in segments:
            try:
                outcomes.append(log.read(segment, [(START, 8192)]) == [batch_at(segment, START)])
            except Transient:
                outcomes.append(False)
        assert sorted(outcomes) == [False, True]
        with pytest.raises(Transient, match="cannot be read"):
            list(log.segments())
        written(log)  # new segments go to the device that works


def test_a_segment_on_lost_devices_alone_is_given_back_when_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths)) as log:
        segments = [written(log)[0] for _ in range(2)]
        with monkeypatch.context() as patched:
            broken(patched, paths[0])
            (lost,) = log.release(segments)
        assert list(log.segments()) == [lost]
    paths[0].rename(tmp_path / "elsewhere")
    with closing(opened(tmp_path, paths)) as log:
        assert list(log.release([lost])) == [lost]
    (tmp_path / "elsewhere").rename(paths[0])
    with closing(opened(tmp_path, paths)) as log:
        assert log.release([lost]) == {}
        assert list(log.segments()) == []


def test_a_device_is_added(tmp_path: Path) -> None:
    paths = make(tmp_path, 1)
    with closing(opened(tmp_path, paths)) as before:
        segment, _, end = written(before)
        paths = make(tmp_path, 2)
        with closing(opened(tmp_path, paths)) as log:
            assert log.read(segment, [(START, end - START)]) == [batch_at(segment, START)]
            assert log.free_bytes() == (2 * SLOTS - 1) * (SLOT - 4096)
            written(log)
    make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        written(log)


def test_a_device_that_was_added_later_is_not_overlooked(tmp_path: Path) -> None:
    with closing(opened(tmp_path, make(tmp_path, 1))) as before:
        first, _, _ = written(before)
        with closing(opened(tmp_path, make(tmp_path, 2))) as log:
            added, _, _ = written(log)
        assert before.read(first, [(START, 8192)]) == [batch_at(first, START)]
        with pytest.raises(Transient, match="not configured"):
            before.read(added, [(START, 8192)])
        with pytest.raises(Transient, match="not configured"):
            before.seal(added, None, 0)
        assert list(before.release([added, first])) == [added]


def test_a_lost_device_is_replaced_only_by_name(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        segment, _, end = written(log)
        log.seal(segment, None, 1)
    paths[1].unlink()
    with pytest.raises(ConfigError, match="device 1 of the landing log is missing"):
        make(tmp_path, 2)
    assert not paths[1].exists()
    with pytest.raises(ConfigError, match="device 0 of the landing log is not missing"):
        make(tmp_path, 2, new_devices=(0,))
    make(tmp_path, 2, new_devices=(1,))
    with closing(opened(tmp_path, paths, copies=2)) as log:
        assert log.read(segment, [(START, end - START)], 1) == [batch_at(segment, START)]
        written(log)
    with pytest.raises(ConfigError, match="device 1 of the landing log is not missing"):
        make(tmp_path, 2, new_devices=(1,))


@pytest.mark.parametrize("count", [1, 2])
def test_a_device_that_was_replaced_is_refused_when_it_returns(tmp_path: Path, count: int) -> None:
    paths = make(tmp_path, count)
    for _ in range(2):
        paths[-1].rename(tmp_path / "old")
        if count == 1:
            DeviceLog.initialise(
                tmp_path / "log", paths, STORE, slot_bytes=SLOT, file_bytes=FILE, new_devices=(0,), devices_min=1
            )
        else:
            make(tmp_path, count, new_devices=(1,))
        paths[-1].rename(tmp_path / "new")
        (tmp_path / "old").rename(paths[-1])
        for use in (lambda: opened(tmp_path, paths), lambda: make(tmp_path, count)):
            with pytest.raises(ConfigError, match="was replaced by another one"):
                use()
        (tmp_path / "new").rename(paths[-1])
        with closing(opened(tmp_path, paths)) as log:
            written(log)
    make(tmp_path, count)


def test_a_device_that_was_replaced_is_not_used_by_a_process_that_waits_for_one(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    paths[1].rename(tmp_path / "old")
    make(tmp_path, 2, new_devices=(1,))
    paths[1].rename(tmp_path / "new")
    with closing(opened(tmp_path, paths, copies=2)) as log:
        (tmp_path / "old").rename(paths[1])
        with pytest.raises(Transient, match="1 of 2 devices work"):
            log.probe()
        (tmp_path / "new").rename(paths[1])
        log.probe()
        written(log)


@pytest.mark.parametrize("point", ["device_log.superblock_written", "device_log.replacement_recorded"])
def test_a_replacement_that_was_killed_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    paths = make(tmp_path, 2)
    paths[1].rename(tmp_path / "old")

    def killed(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        for module in (devices, device_lives):
            patched.setattr(module, "kill_point", killed)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path, 2, new_devices=(1,))
    make(tmp_path, 2)
    with closing(opened(tmp_path, paths, copies=2)) as log:
        written(log)
    (tmp_path / "old").rename(paths[1])
    with pytest.raises(ConfigError, match="was replaced by another one"):
        opened(tmp_path, paths)


def test_a_damaged_list_of_replaced_devices_is_named(tmp_path: Path) -> None:
    paths = make(tmp_path)
    (tmp_path / "log/replaced").write_text("[")
    with pytest.raises(ConfigError, match="replaced is damaged"):
        opened(tmp_path, paths)
