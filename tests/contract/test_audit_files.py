"""The audit trail in files: what was recorded is found again, whatever is torn; the folder stays bounded."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nos_ec.adapters.local import audit_files
from nos_ec.adapters.local.audit_files import (
    CURRENT,
    FILES,
    LOG_WAIT_MS,
    OLD_AGAIN_MS,
    AuditFiles,
    TrailLimits,
    TrailReader,
    rotated,
)
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.formats.audit_trail import AuditEntry, AuditKind, CopyEntry, Recorded, audit_line, read_line
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.rig.waiting import WAIT_S_MAX

HOUR_MS = 3_600_000
LIMITS = TrailLimits(FILES * (64 << 10), 24 * HOUR_MS)
BLOCK = AuditEntry(AuditKind.BLOCK_DELETED, "it holds nothing live", block="ab" * 16, seen={"stripes": 3})
PADDING = "x" * 1000


@pytest.fixture
def clock() -> FakeClock:
    return SetClock(1_700_000_000_000)


def numbered(number: int) -> AuditEntry:
    return AuditEntry(AuditKind.SEGMENTS_RELEASED, PADDING, seen={"number": number})


def read(folder: Path, since_ms: int = 0) -> list[Recorded]:
    return list(TrailReader(folder).entries(since_ms, lambda _: True))


def numbers(folder: Path) -> list[int]:
    return [entry.seen["number"] for entry in read(folder)]


def test_entries_are_read_as_they_were_recorded(tmp_path: Path, clock: FakeClock) -> None:
    copy = CopyEntry("cd" * 16, 'b/a "name"\n\u00e9', 7, 1, 4096, 100, 0xDEADBEEF)
    moved = AuditEntry(AuditKind.COPIES_MOVED, "sparse", copies=(copy, CopyEntry("ef" * 16, moved_to="01" * 16)))
    trail = AuditFiles(tmp_path / "a" / "trail", clock, "host 1 gc", LIMITS)
    trail.record([])
    assert not (tmp_path / "a").exists()
    trail.record([BLOCK, moved])
    clock.advance(5)
    AuditFiles(tmp_path / "a" / "trail", clock, "host 2 consumer", LIMITS).record([BLOCK])
    found = read(tmp_path / "a" / "trail")
    assert [(one.at_ms - found[0].at_ms, one.run) for one in found] == [
        (0, "host 1 gc"),
        (0, "host 1 gc"),
        (5, "host 2 consumer"),
    ]
    assert (found[0].kind, found[0].why, found[0].block, found[0].seen) == (
        BLOCK.kind,
        BLOCK.why,
        BLOCK.block,
        BLOCK.seen,
    )
    assert found[1].copies == moved.copies


def test_every_cut_and_every_flipped_byte_of_a_line_is_noticed() -> None:
    line = audit_line(BLOCK, 1, "run")
    assert read_line(line) is not None
    assert all(read_line(line[:end]) is None for end in range(len(line) - 1))
    for index in range(len(line) - 1):
        assert read_line(line[:index] + bytes([line[index] ^ 1]) + line[index + 1 :]) is None
    assert read_line(audit_line(BLOCK, 1, "run").replace(b'"v":1', b'"v":2')) is None


def test_the_format_stays() -> None:
    copy = CopyEntry("cd" * 4, "b/n", 7, 1, 4096, 100, 5)
    entry = AuditEntry(AuditKind.COPIES_DELETED, "why", block="ab" * 4, segments=("01",), copies=(copy,), seen={"a": 1})
    assert audit_line(entry, 12, "host 1 gc") == (
        b'{"v":1,"at_ms":12,"run":"host 1 gc","kind":"copies-deleted","why":"why","block":"abababab","segments":["01"],'
        b'"copies":[{"landing":"cdcdcdcd","object":"b/n","object_id":7,"version":1,"offset":4096,"length":100,"crc32c":5}],'
        b'"seen":{"a":1},"crc32c":839382418}\n'
    )


def test_a_torn_line_is_passed_over_and_the_next_process_goes_on(tmp_path: Path, clock: FakeClock) -> None:
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    trail.record([numbered(1)])
    with (tmp_path / CURRENT).open("ab") as file:
        file.write(audit_line(numbered(2), 1, "run")[:-20])
    reader = TrailReader(tmp_path)
    assert [one.seen["number"] for one in reader.entries(0, lambda _: True)] == [1]
    assert reader.damaged == 0  # it may be being written
    AuditFiles(tmp_path, clock, "run", LIMITS).record([numbered(3)])
    assert [one.seen["number"] for one in reader.entries(0, lambda _: True)] == [1, 3]
    assert reader.damaged == 1
    list(reader.entries(0, lambda _: False))
    assert reader.damaged == 2  # also where nothing is looked for


def test_full_files_are_put_aside_and_the_oldest_go(tmp_path: Path, clock: FakeClock) -> None:
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    for number in range(1000):
        clock.advance(1000)
        trail.record([numbered(number)])
    kept = numbers(tmp_path)
    assert kept == list(range(kept[0], 1000))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert LIMITS.size_bytes_max * 3 // 4 < size <= LIMITS.size_bytes_max + 2000
    times = [time_ms for time_ms, _ in rotated(tmp_path)]
    assert len(times) >= FILES - 2
    since = read(tmp_path, times[-1])
    assert since
    assert len(since) < len(kept) / 2  # older files are not read


def fill(folder: Path, clock: FakeClock, files: int) -> None:
    """Record until this many more files are full."""
    trail = AuditFiles(folder, clock, "run", LIMITS)
    before = len(rotated(folder))
    while len(rotated(folder)) < before + files:
        trail.record([numbered(0)])


def look(folder: Path, clock: FakeClock) -> int:
    """A process records an entry, which looks for old files. Returns how many full files are left."""
    trail = AuditFiles(folder, clock, "run", LIMITS)
    trail.record([AuditEntry(AuditKind.REPAIR, "a short one")])
    assert trail.failures == 0
    return len(rotated(folder))


def test_files_that_are_too_old_go_when_two_looks_agree(tmp_path: Path, clock: FakeClock) -> None:
    fill(tmp_path, clock, 2)
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    clock.advance(LIMITS.keep_ms + HOUR_MS)
    trail.record([numbered(1)])
    assert look(tmp_path, clock) == 2
    clock.advance(OLD_AGAIN_MS - 1)
    assert look(tmp_path, clock) == 2
    clock.advance(HOUR_MS)
    trail.record([numbered(2)])
    assert rotated(tmp_path) == []
    assert read(tmp_path)[-1].seen == {"number": 2}
    assert [path.name for path in tmp_path.iterdir()] == [CURRENT]


def test_files_go_one_after_another_within_two_waits(tmp_path: Path, clock: FakeClock) -> None:
    """As long as a trail is written, a file outlives its time by two waits and an hour at most."""
    for hour in range(200):
        if hour < 100 and hour % 20 == 0:
            fill(tmp_path, clock, 1)
        look(tmp_path, clock)
        limit_ms = clock.now_ms() - LIMITS.keep_ms
        assert all(time_ms >= limit_ms - 2 * OLD_AGAIN_MS - HOUR_MS for time_ms, _ in rotated(tmp_path))
        assert hour != 100 or rotated(tmp_path)
        clock.advance(HOUR_MS)
    assert rotated(tmp_path) == []


def test_a_clock_that_jumps_ahead_for_a_while_deletes_nothing(tmp_path: Path, clock: FakeClock) -> None:
    fill(tmp_path, clock, 3)
    for years in (1, 2, 5):  # it may happen again
        ahead = SetClock(clock.now_ms() + years * 365 * 24 * HOUR_MS)
        for _ in range(12):
            assert look(tmp_path, ahead) == 3
            ahead.advance(HOUR_MS)
        clock.advance(HOUR_MS)
        assert look(tmp_path, clock) == 3
        assert not list(tmp_path.glob("old-*"))
    fill(tmp_path, ahead, 1)
    assert look(tmp_path, clock) == 4
    clock.advance(LIMITS.keep_ms + HOUR_MS)
    look(tmp_path, clock)
    clock.advance(OLD_AGAIN_MS)
    assert look(tmp_path, clock) == 1  # the one that was put aside later than now


def test_a_jump_between_two_looks_deletes_only_what_was_too_old_before(tmp_path: Path, clock: FakeClock) -> None:
    fill(tmp_path, clock, 2)
    clock.advance(LIMITS.keep_ms + HOUR_MS)
    fill(tmp_path, clock, 3)
    assert look(tmp_path, clock) == 5
    clock.advance(365 * 24 * HOUR_MS)
    assert look(tmp_path, clock) == 3
    assert look(tmp_path, clock) == 3


def test_files_that_are_too_old_wait_again_after_a_crash_lost_the_note(tmp_path: Path, clock: FakeClock) -> None:
    fill(tmp_path, clock, 1)
    clock.advance(LIMITS.keep_ms + HOUR_MS)
    assert look(tmp_path, clock) == 1
    (note,) = tmp_path.glob("old-*")
    note.unlink()
    clock.advance(OLD_AGAIN_MS)
    assert look(tmp_path, clock) == 1
    clock.advance(OLD_AGAIN_MS)
    assert look(tmp_path, clock) == 0


def test_a_clock_that_is_set_back_does_not_change_the_order(tmp_path: Path, clock: FakeClock) -> None:
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    for number in range(300):
        trail.record([numbered(number)])
        if number == 100:
            trail = AuditFiles(tmp_path, SetClock(clock.now_ms() - HOUR_MS), "run", LIMITS)
    assert len(rotated(tmp_path)) > 2
    assert numbers(tmp_path) == list(range(300))


def _record_many(folder: Path, first: int) -> None:
    """Runs in a process of its own. Nobody stops with the lock here, however long others have it."""
    audit_files.LOCK_S_MAX = WAIT_S_MAX
    trail = AuditFiles(folder, SystemClock(), f"run {first}", LIMITS)
    for number in range(first, first + 60):
        trail.record([numbered(number)])


def test_processes_share_a_folder(tmp_path: Path) -> None:
    started = [multiprocessing.Process(target=_record_many, args=(tmp_path, 1000 * one)) for one in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join(WAIT_S_MAX)
        assert process.exitcode == 0
    reader = TrailReader(tmp_path)
    found = [one.seen["number"] for one in reader.entries(0, lambda _: True)]
    assert sorted(found) == [1000 * one + number for one in range(4) for number in range(60)]
    assert reader.damaged == 0


def test_a_file_that_is_put_aside_while_it_is_read_is_read_once(tmp_path: Path, clock: FakeClock) -> None:
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    for number in range(100):
        trail.record([numbered(number)])
    entries: Iterator[Recorded] = TrailReader(tmp_path).entries(0, lambda _: True)
    found = [next(entries).seen["number"] for _ in range(10)]
    for number in range(100, 250):
        trail.record([numbered(number)])
    found += [entry.seen["number"] for entry in entries]
    assert found[:100] == list(range(100))
    assert len(set(found)) == len(found)


def test_what_cannot_be_recorded_stops_nobody(
    tmp_path: Path, clock: FakeClock, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    trail = AuditFiles(tmp_path / "file", clock, "run", LIMITS)
    trail.record([BLOCK])
    trail.record([BLOCK])
    assert trail.failures == 2
    said = capfd.readouterr().out
    assert said.count("audit trail not written; deletions continue") == 1
    assert "block-deleted" in said


def test_a_full_disk_leaves_no_half_of_a_line(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    trail.record([numbered(1)])

    def full(fd: int, buffers: list[bytes], offset: int) -> None:
        os.pwrite(fd, buffers[0][:100], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(audit_files, "write_at", full)
        trail.record([numbered(2)])
    assert trail.failures == 1
    trail.record([numbered(3)])
    reader = TrailReader(tmp_path)
    assert [one.seen["number"] for one in reader.entries(0, lambda _: True)] == [1, 3]
    assert reader.damaged == 0


def test_a_stopped_process_with_the_lock_stops_nobody(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for it again for a while, so deletions continue."""
    monkeypatch.setattr(audit_files, "LOCK_S_MAX", 0.05)
    monkeypatch.setattr(audit_files, "LOCK_AGAIN_S", 3600.0)
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        trail.record([numbered(1)])
        assert trail.failures == 1
    finally:
        os.close(fd)
    trail.record([numbered(2)])
    assert trail.failures == 2
    other = AuditFiles(tmp_path, clock, "run", LIMITS)
    other.record([numbered(3)])
    assert numbers(tmp_path) == [3]
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 3601)
    trail.record([numbered(4)])
    assert numbers(tmp_path) == [3, 4]


def test_a_full_file_that_cannot_be_renamed_stays_bounded(
    tmp_path: Path, clock: FakeClock, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost before the file is half the trail, and nothing that was written when it can be renamed."""
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)

    def denied(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", denied)
        written = 0
        while trail.failures == 0:
            trail.record([numbered(written)])
            written += trail.failures == 0
        said = capfd.readouterr().out
        assert said.count("audit trail written, but its full or old files remain") == 1
        assert said.count("audit trail not written; deletions continue") == 1
        assert LIMITS.size_bytes_max // 2 - 2000 < (tmp_path / CURRENT).stat().st_size <= LIMITS.size_bytes_max // 2
        trail.record([numbered(-1)])
        assert trail.failures == 2
        clock.advance(LOG_WAIT_MS)
        trail.record([numbered(-1)])
        assert capfd.readouterr().out.count("Permission denied") == 1
    trail.record([numbered(written)])
    assert trail.failures == 3
    assert look(tmp_path, clock) == 1
    fill(tmp_path, clock, 2)
    assert [entry.seen["number"] for entry in read(tmp_path) if entry.seen][: written + 1] == list(range(written + 1))


def test_an_old_file_that_cannot_be_deleted_is_reported(
    tmp_path: Path, clock: FakeClock, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, clock, 1)
    clock.advance(LIMITS.keep_ms + HOUR_MS)
    look(tmp_path, clock)
    clock.advance(OLD_AGAIN_MS)

    def denied(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", denied)
        assert look(tmp_path, clock) == 1
    assert "audit trail written, but its full or old files remain" in capfd.readouterr().out
    assert look(tmp_path, clock) == 0


def test_text_that_is_not_unicode_stops_no_deletion(tmp_path: Path, clock: FakeClock) -> None:
    trail = AuditFiles(tmp_path, clock, "run", LIMITS)
    trail.record([AuditEntry(AuditKind.REPAIR, "a path with \udcff")])
    assert trail.failures == 1


def _record_as(uid: int, folder: Path, umask: int, entry: AuditEntry) -> None:
    """Record an entry in another process, as that user; its exit code is the number of failures."""

    def child() -> None:
        os.umask(umask)
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        trail = AuditFiles(folder, SystemClock(), f"run of {uid}", LIMITS)
        trail.record([entry])
        os._exit(trail.failures)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0, (uid, process.exitcode)


NOBODY = 65534


@pytest.fixture
def owned() -> Iterator[Path]:
    """A folder of another user, whom the folders above it let in."""
    if os.geteuid():
        reason = "only root can become another user"
        pytest.fail(reason) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        folder = Path(name) / "store"
        folder.mkdir()
        folder.chmod(0o750)
        os.chown(folder, NOBODY, NOBODY)
        yield folder


@pytest.mark.parametrize("name", [".", "a/audit"], ids=["the folder is there", "root makes it"])
@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_the_owner_of_the_folder_writes_behind_root(owned: Path, name: str, umask: int) -> None:
    folder = owned / name
    _record_as(0, folder, umask, numbered(1))
    _record_as(NOBODY, folder, umask, numbered(2))
    assert numbers(folder) == [1, 2]
    for path in (folder.parent if folder != owned else folder, folder, folder / CURRENT):
        assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
    assert (folder / CURRENT).stat().st_mode & 0o777 == folder.stat().st_mode & 0o666
    while not rotated(folder):
        _record_as(0, folder, umask, AuditEntry(AuditKind.REPAIR, "y" * LIMITS.file_bytes))
    _record_as(0, folder, umask, numbered(3))
    _record_as(NOBODY, folder, umask, numbered(4))
    assert [entry.seen["number"] for entry in read(folder) if entry.seen] == [1, 2, 3, 4]


def test_a_group_that_may_write_the_folder_may_write_behind_root(owned: Path) -> None:
    os.chown(owned, 0, NOBODY)
    owned.chmod(0o2770)
    _record_as(0, owned, 0o022, numbered(1))
    _record_as(NOBODY, owned, 0o022, numbered(2))
    assert numbers(owned) == [1, 2]
    assert (owned / CURRENT).stat().st_mode & 0o777 == 0o660


def test_an_empty_file_that_a_crash_left_to_root_is_handed_over(owned: Path) -> None:
    (owned / CURRENT).touch(0o600)
    _record_as(0, owned, 0o022, numbered(1))
    _record_as(NOBODY, owned, 0o022, numbered(2))
    assert numbers(owned) == [1, 2]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_root_gives_away_no_file_that_is_linked_from_the_folder(
    owned: Path, clock: FakeClock, link: Callable[[Path, Path], None]
) -> None:
    secret = owned.parent / "secret"
    secret.touch(0o600)
    link(secret, owned / CURRENT)
    trail = AuditFiles(owned, clock, "run", LIMITS)
    trail.record([BLOCK])
    assert trail.failures == (link is os.symlink)
    assert (secret.stat().st_uid, secret.stat().st_mode & 0o777) == (0, 0o600)


def test_a_root_that_may_give_nothing_away_records_all_the_same(
    owned: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(fd: int, uid: int, gid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", denied)
    trail = AuditFiles(owned / "audit", clock, "run", LIMITS)
    trail.record([numbered(1)])
    assert trail.failures == 0
    assert numbers(owned / "audit") == [1]
