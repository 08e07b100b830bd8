"""Damage to the landing log's devices: unreadable data is not treated as missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from nos_ec.adapters.local.devices import device_lives
from nos_ec.adapters.local.devices.device_file import DeviceFile
from nos_ec.adapters.local.devices.device_format import HEADER_COPY_AT, SLOTS_AT, SUPERBLOCKS, decode_superblock
from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.core.errors import ConfigError, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import SegmentId
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.ports.segment_medium import UnreadableSlot
from tests.contract.suites.segment_medium_contract import new_segment
from tests.rig.device_log_work import STORE, batch

pytestmark = pytest.mark.invariant(1)

SLOT = 64 << 10
SLOTS = 4
FILE = SLOTS_AT + SLOTS * SLOT
BATCHES = 3
BITS_APART = 7
"""tests/unit/adapters/test_device_format.py tries every bit; here a few are tried."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A device with a segment in slot 0, whose writer is gone, and three slots that were never used."""
    path = tmp_path / "device"
    DeviceLog.initialise(tmp_path / "log", [path], STORE, slot_bytes=SLOT, file_bytes=FILE)
    return path


@contextmanager
def opened(path: Path) -> Iterator[DeviceLog]:
    with closing(DeviceLog(path.parent / "log", [path], STORE)) as log:
        yield log


def written(log: DeviceLog) -> tuple[SegmentId, int]:
    """A segment with some batches, and its end."""
    segment, end = new_segment(), PAGE
    with closing(log.create(segment, 1, 0)) as writer:
        for _ in range(BATCHES):
            laid = batch(segment, end)
            writer.append(end, laid.buffers)
            end += laid.size
    return segment, end


def change(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, bit: int, offset: int = SLOTS_AT) -> None:
    """Change a bit, counted from a byte of the device; by default from the first slot."""
    at = offset + bit // 8
    with path.open("r+b") as file:
        file.seek(at)
        (found,) = file.read(1)
    change(path, at, bytes([found ^ 1 << bit % 8]))


def fail_reads(patch: pytest.MonkeyPatch, start: int, size: int) -> None:
    """Let reads that begin in a range of a device fail, as those of a bad sector."""
    read = DeviceFile.read

    def failing(file: DeviceFile, offset: int, length: int) -> bytes:
        if start <= offset < start + size:
            raise OSError(5, "Input/output error")
        return read(file, offset, length)

    patch.setattr(DeviceFile, "read", failing)


def is_whole(log: DeviceLog, segment: SegmentId, end: int) -> bool:
    at = PAGE
    while at < end:
        laid = batch(segment, at)
        if log.read(segment, [(at, laid.size)]) != [b"".join(laid.buffers)]:
            return False
        at += laid.size
    return True


def fill(log: DeviceLog) -> list[SegmentId]:
    """Take every free slot."""
    taken = []
    with suppress(NoSpace):
        while True:
            taken.append(written(log)[0])
    return taken


def unreadable(log: DeviceLog) -> list[UnreadableSlot]:
    return list(log.devices().unreadable)


def forget_second_header(path: Path) -> None:
    """Write a page with one header, as older releases did."""
    change(path, SLOTS_AT + HEADER_COPY_AT, bytes(SEGMENT_HEADER_SIZE))


@pytest.mark.parametrize("is_old", [False, True], ids=["two headers", "one header"])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["open", "sealed"])
def test_no_bit_of_a_header_page_loses_a_segment(path: Path, is_sealed: bool, is_old: bool) -> None:
    with opened(path) as log:
        segment, end = written(log)
        if is_sealed:
            log.seal(segment, None, BATCHES)
    if is_old:
        forget_second_header(path)
    for bit in (bit for at in (0, HEADER_COPY_AT) for bit in range(8 * at, 8 * (at + SEGMENT_HEADER_SIZE), BITS_APART)):
        flip(path, bit)
        with opened(path) as log:
            assert is_whole(log, segment, end)
            taken = fill(log)
            assert len(taken) == SLOTS - 1, "the slot was taken"
            assert is_whole(log, segment, end)
            assert set(log.segments()) == {segment, *taken}
            assert log.seal(segment, None, 0) == end
            assert log.release(taken) == {}
        flip(path, bit)


def test_a_damaged_page_of_a_slot_that_was_never_used_is_cleared(path: Path) -> None:
    with opened(path) as log:
        written(log)
    flip(path, 100, SLOTS_AT + 2 * SLOT)
    with opened(path) as log:
        assert not unreadable(log)
        assert len(fill(log)) == SLOTS - 1


def test_a_slot_whose_last_segment_was_released_is_not_taken_while_its_page_is_damaged(path: Path) -> None:
    with opened(path) as log:
        segment, _ = written(log)
        assert log.release([segment]) == {}
        flip(path, 100)
        assert len(fill(log)) == SLOTS - 1, "the page is looked at again before the slot is taken"
        assert unreadable(log) == [UnreadableSlot(0, 0, segment)]
    with opened(path) as log:
        assert unreadable(log) == [UnreadableSlot(0, 0, segment)]
        assert log.free_bytes() == 0
        assert log.settle_slot(UnreadableSlot(0, 0, segment), None)
        assert not log.settle_slot(UnreadableSlot(0, 0, segment), None), "it is not unreadable any more"
        assert not unreadable(log)
        assert len(fill(log)) == 1


def test_a_header_is_written_again(path: Path) -> None:
    with opened(path) as log:
        segment, end = written(log)
    forget_second_header(path)
    flip(path, 100)
    with opened(path) as log:
        (found,) = unreadable(log)
        assert found == UnreadableSlot(0, 0, segment)
        assert not log.settle_slot(UnreadableSlot(0, 0, new_segment()), 1), "another one was found"
        assert log.settle_slot(found, 1)
        assert not unreadable(log)
    with opened(path) as log:
        assert not unreadable(log)
        assert is_whole(log, segment, end)
        assert log.release([segment]) == {}
        assert len(fill(log)) == SLOTS


def test_a_segment_is_released_although_its_header_cannot_be_read(path: Path) -> None:
    with opened(path) as log:
        segment, _ = written(log)
    forget_second_header(path)
    flip(path, 100)
    with opened(path) as log:
        assert log.release([segment]) == {}
        assert len(fill(log)) == SLOTS


def test_an_open_segment_whose_header_is_damaged_goes_on(path: Path) -> None:
    with opened(path) as log:
        segment, end = new_segment(), PAGE
        writer = log.create(segment, 1, 0)
        for _ in range(BATCHES):
            laid = batch(segment, end)
            writer.append(end, laid.buffers)
            end += laid.size
            forget_second_header(path)
            flip(path, 100)
            with log._locked_table():
                log._load(again=True)
        assert is_whole(log, segment, end)
        assert log.seal(segment, None, BATCHES) == end


def test_a_slot_without_any_readable_record_hides_no_segment(path: Path) -> None:
    with opened(path) as log:
        segment, end = written(log)
        other, _ = written(log)
    change(path, SLOTS_AT, b"damage".ljust(end, b"!"))
    with opened(path) as log:
        assert unreadable(log) == [UnreadableSlot(0, 0, None)]
        for act in (
            lambda: log.read(segment, [(PAGE, PAGE)]),
            lambda: log.seal(segment, None, 0),
            lambda: list(log.segments()),
        ):
            with pytest.raises(Transient, match="1 slots cannot be read"):
                act()
        assert list(log.segments(known_only=True)) == [other]
        assert list(log.release([segment])) == [segment]
        assert len(fill(log)) == SLOTS - 2
        assert log.settle_slot(UnreadableSlot(0, 0, None), None)
        with pytest.raises(NotFound):
            log.read(segment, [(PAGE, PAGE)])
        assert log.release([segment]) == {}


@pytest.mark.parametrize("is_content_readable", [True, False])
def test_an_error_of_one_page_hides_no_other_slot(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_content_readable: bool
) -> None:
    """A bad sector is not a lost device."""
    with opened(path) as log:
        segment, end = written(log)
        others = [written(log) for _ in range(2)]
    with monkeypatch.context() as patched:
        fail_reads(patched, SLOTS_AT, PAGE if is_content_readable else SLOT)
        with opened(path) as log:
            assert all(is_whole(log, *other) for other in others)
            assert unreadable(log) == [UnreadableSlot(0, 0, segment if is_content_readable else None)]
            if is_content_readable:
                assert is_whole(log, segment, end)
            else:
                with pytest.raises(Transient):
                    log.read(segment, [(PAGE, PAGE)])
            assert len(fill(log)) == 1
            patched.undo()
            assert not unreadable(log), "the sector can be read again"
            assert is_whole(log, segment, end)


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("failing_bytes", [PAGE, SLOT])
def test_a_page_that_could_not_be_read_and_then_has_zeros_frees_no_segment(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing_bytes: int, is_reloaded: bool
) -> None:
    """A disk replaces a bad sector with one of zeros."""
    with opened(path) as log:
        segment, end = written(log)
    with monkeypatch.context() as patched:
        fail_reads(patched, SLOTS_AT, failing_bytes)
        log = DeviceLog(path.parent / "log", [path], STORE)
    with closing(log):
        change(path, SLOTS_AT, bytes(PAGE))
        with log._locked_table():
            log._load(again=is_reloaded)
        log.probe()
        assert unreadable(log) == [UnreadableSlot(0, 0, segment)]
        assert len(fill(log)) == SLOTS - 1, "the slot was taken"
        assert is_whole(log, segment, end)
        assert log.settle_slot(UnreadableSlot(0, 0, segment), 1), "the header is written again"
        assert not unreadable(log)
    with opened(path) as log:
        assert is_whole(log, segment, end)


def test_a_blank_slot_that_could_not_be_read_is_free_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as log:
        written(log)
    with monkeypatch.context() as patched:
        fail_reads(patched, SLOTS_AT + SLOT, SLOT)
        log = DeviceLog(path.parent / "log", [path], STORE)
        assert unreadable(log) == [UnreadableSlot(0, 1, None)]
    with closing(log):
        assert not unreadable(log)
        assert len(fill(log)) == SLOTS - 1


# --- superblocks --------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", SUPERBLOCKS)
def test_no_bit_of_a_superblock_hides_a_device_that_was_added(tmp_path: Path, at: int) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for known in (paths[:1], paths):
        DeviceLog.initialise(tmp_path / "log", known, STORE, slot_bytes=SLOT, file_bytes=FILE)
    with closing(DeviceLog(tmp_path / "log", paths, STORE)) as log:
        segments = [written(log)[0] for _ in range(2)]
        log.seal(segments[0], None, 0)
    for bit in range(0, 72 * 8, BITS_APART):
        flip(paths[0], bit, at)
        with closing(DeviceLog(tmp_path / "log", paths[:1], STORE)) as log:
            assert not log.was_clean
            (away,) = (segment for segment in segments if not is_there(log, segment))
            with pytest.raises(Transient):
                log.read(away, [(PAGE, PAGE)])
        flip(paths[0], bit, at)


def is_there(log: DeviceLog, segment: SegmentId) -> bool:
    with suppress(Transient):
        return bool(log.read(segment, [(PAGE, PAGE)]))
    return False


def test_a_damaged_superblock_is_written_again(path: Path) -> None:
    with opened(path) as log:
        assert log.was_clean
    flip(path, 100, SUPERBLOCKS[0])
    with opened(path) as log:
        assert not log.was_clean, "the damaged one may have been newer"
    with opened(path) as log:
        assert log.was_clean
    content = path.read_bytes()
    assert decode_superblock(content[PAGE:]).generation + 1 == decode_superblock(content[:PAGE]).generation


def test_two_damaged_superblocks_are_not_taken_for_data_of_somebody_else(path: Path) -> None:
    for at in SUPERBLOCKS:
        flip(path, 100, at)
    with pytest.raises(ConfigError, match="both of its superblocks are damaged") as refused, opened(path):
        pass
    assert "dd if=" not in str(refused.value), "what it holds can still be read"


def test_a_bad_sector_under_a_superblock_leaves_the_other_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as log:
        segment, end = written(log)
    fail_reads(monkeypatch, 0, PAGE)
    with opened(path) as log:
        assert is_whole(log, segment, end)


# --- copies -------------------------------------------------------------------------------------------
def test_a_copy_that_missed_a_write_leaves_the_other_one(tmp_path: Path) -> None:
    """The first copy has a record of an earlier segment where this segment's record should be."""
    paths = [tmp_path / "a", tmp_path / "b"]
    DeviceLog.initialise(tmp_path / "log", paths, STORE, slot_bytes=SLOT, file_bytes=FILE)
    with closing(DeviceLog(tmp_path / "log", paths, STORE, copies=2)) as log:
        segment, other = new_segment(), new_segment()
        laid = batch(segment, PAGE)
        log.create(segment, 1, 0).append(PAGE, laid.buffers)
        (stale,) = (each for each in paths if log._places(segment)[0][0] == paths.index(each))
        before = b"".join(batch(other, PAGE).buffers)
        content = stale.read_bytes()
        change(stale, content.index(b"".join(laid.buffers)), before)
        reader = LogReader(log)
        data = b"".join(laid.buffers)[RECORD_HEADER_SIZE:][:5000]
        assert reader.read(laid.ids[0]) == data
        assert reader.read_records([(laid.ids[0], 5000)]) == [data]
        assert reader.read_range(laid.ids[0], 100, 50) == data[100:150]
        change(paths[1 - paths.index(stale)], content.index(b"".join(laid.buffers)), before)
        with pytest.raises(NotFound):
            reader.read(laid.ids[0])


def test_no_bit_of_the_list_of_replaced_devices_is_believed(tmp_path: Path) -> None:
    device_lives.record_lives(tmp_path, {0: 1, 3: 2})
    path = tmp_path / device_lives.FILE
    assert device_lives.read_lives(tmp_path) == {0: 1, 3: 2}
    for bit in range(8 * len(path.read_bytes())):
        flip(path, bit, 0)
        with pytest.raises(ConfigError, match="is damaged"):
            device_lives.read_lives(tmp_path)
        flip(path, bit, 0)
    path.write_bytes(b'{"0": 1}\n')
    assert device_lives.read_lives(tmp_path) == {0: 1}, "as older releases wrote it"
