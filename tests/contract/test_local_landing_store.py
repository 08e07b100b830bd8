"""The embedded landing store: its contract, kills, full disks, folders that are not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.core.errors import ConfigError, Conflict, NoSpace, NotFound, Transient
from nos_ec.core.ids import LandingId, new_segment_id, record_id
from nos_ec.ports.landing_store import LandingStore
from tests.contract.suites.landing_store_contract import LandingStoreContract, new_landing_id
from tests.rig.small_disk import small_disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "deep" / "landing"
    LocalLandingStore.initialise(root)
    return root


class TestLocalLandingStore(LandingStoreContract):
    @pytest.fixture
    def open_landing(self, root: Path) -> Callable[[], LandingStore]:
        return lambda: LocalLandingStore(root)


class TestLocalLandingStoreOnSlowReads(TestLocalLandingStore):
    """The system may return fewer bytes than were asked for, although more follow."""

    @pytest.fixture(autouse=True)
    def a_third_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last bytes of each read come one at a time."""
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, -(-size // 3), offset))


def _file(root: Path, landing_id: LandingId) -> Path:
    return root / landing_id.hex()[-2:] / landing_id.hex()


PUT = """
import sys
from pathlib import Path
from nos_ec.adapters.local.landing_store import LocalLandingStore
LocalLandingStore(Path(sys.argv[1])).put(bytes.fromhex(sys.argv[2]), b"bytes" * 1000)
"""


def _killed_put(root: Path, landing_id: LandingId, kill_at: str) -> None:
    command = [sys.executable, "-c", PUT, str(root), landing_id.hex()]
    done = subprocess.run(command, env={**os.environ, "NOS_EC_KILL_AT": kill_at}, check=False)
    assert done.returncode == -signal.SIGKILL, "the kill point did not fire"


INITIALISE = """
import sys
from pathlib import Path
from nos_ec.adapters.local.landing_store import LocalLandingStore
for number in range(60):
    print("ready", flush=True)
    sys.stdin.readline()
    root = Path(sys.argv[1], str(number))
    LocalLandingStore.initialise(root)
    LocalLandingStore(root)
"""


def test_processes_that_create_a_store_at_once_all_succeed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INITIALISE, str(tmp_path)]
    creators = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    while all(one.stdout is not None and one.stdout.readline() == "ready\n" for one in creators):
        for one in creators:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
    assert [(one.communicate()[1], one.returncode) for one in creators] == [("", 0)] * len(creators)


def test_a_record_of_a_log_that_is_not_known_is_not_taken_for_a_lost_copy(root: Path) -> None:
    """A process that was started before the store had a landing log has the landing store alone."""
    record = record_id(new_segment_id(1, 0), 4096, bytes(4))
    landing = LocalLandingStore(root)
    with pytest.raises(Transient, match="restart the process"):
        landing.read(record)
    with pytest.raises(Transient, match="restart the process"):
        landing.read_range(record, 0, 1)


def test_a_put_killed_before_its_rename_leaves_nothing(root: Path) -> None:
    landing_id, landing = new_landing_id(), LocalLandingStore(root)
    _killed_put(root, landing_id, "landing_store.written")
    assert list(landing.list_ids()) == []
    with pytest.raises(NotFound):
        landing.read(landing_id)
    assert landing.raw_bytes() > 0, "what is left is counted"
    with pytest.raises(Conflict, match="use a new id"):
        landing.put(landing_id, b"again")
    landing.delete(landing_id)
    assert landing.raw_bytes() == 0
    assert not any((root / landing_id.hex()[-2:]).iterdir())


def test_a_put_killed_after_its_rename_is_whole(root: Path) -> None:
    landing_id, landing = new_landing_id(), LocalLandingStore(root)
    _killed_put(root, landing_id, "landing_store.renamed")
    assert landing.read(landing_id) == b"bytes" * 1000
    assert list(landing.list_ids()) == [landing_id]


def test_opening_leaves_a_put_in_flight_alone(root: Path) -> None:
    landing_id = new_landing_id()
    path = _file(root, landing_id)
    path.with_name(path.name + ".put").write_bytes(b"half")
    LocalLandingStore.initialise(root)
    LocalLandingStore(root).close()
    assert path.with_name(path.name + ".put").read_bytes() == b"half"


def test_a_delete_during_a_put_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing_id, landing = new_landing_id(), LocalLandingStore(root)
    fsync = os.fsync

    def delete_then_sync(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        landing.delete(landing_id)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", delete_then_sync)
    with pytest.raises(Transient):
        landing.put(landing_id, b"bytes")
    assert landing.raw_bytes() == 0
    assert list(landing.list_ids()) == []


def test_a_put_syncs_the_file_then_names_it_then_syncs_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing_id, steps = new_landing_id(), []
    fsync, rename = os.fsync, Path.rename

    def traced_fsync(fd: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        fsync(fd)

    def traced_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(Path, "rename", traced_rename)
    landing = LocalLandingStore(root)
    landing.put(landing_id, b"bytes")
    name = landing_id.hex()
    assert steps == [f"sync {name}.put", "rename", f"sync {name[-2:]}"]
    steps.clear()
    landing.delete(landing_id)
    assert steps == [f"sync {name[-2:]}"]


def _ids_in(folder: int, count: int) -> list[LandingId]:
    return [LandingId(new_landing_id()[:-1] + bytes([folder])) for _ in range(count)]


def test_deleting_many_syncs_each_folder_once_after_its_last_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing, steps = LocalLandingStore(root), []
    ids = [*_ids_in(0xAB, 3), *_ids_in(0xCD, 2)]
    for landing_id in ids:
        landing.put(landing_id, b"bytes")
    fsync = os.fsync

    def traced(fd: int) -> None:
        folder = Path(f"/proc/self/fd/{fd}").readlink()
        steps.append((folder.name, len(list(folder.iterdir()))))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", traced)
    assert landing.delete_many([ids[0], ids[3], *ids[1:]]) == {}
    assert sorted(steps) == [("ab", 0), ("cd", 0)]


def test_deleting_many_reports_which_copies_may_remain(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = LocalLandingStore(root)
    unsynced, stuck, gone = _ids_in(0xAB, 2), _ids_in(0xCD, 1), _ids_in(0xCD, 2)
    for landing_id in (*unsynced, *gone):
        landing.put(landing_id, b"bytes")
    _file(root, stuck[0]).mkdir()
    fsync = os.fsync

    def failing(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "ab":
            raise OSError(5, "Input/output error")
        fsync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        failed = landing.delete_many([*unsynced, *stuck, *gone])
    assert failed.keys() == {*unsynced, *stuck}
    assert all("Input/output error" in str(failed[landing_id]) for landing_id in unsynced)
    assert landing.delete_many([*unsynced, *gone]) == {}, "trying again is safe"


def test_a_failed_sync_fails_the_put(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    landing_id, landing = new_landing_id(), LocalLandingStore(root)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(Transient, match="Input/output error"):
            landing.put(landing_id, b"bytes")
    assert landing.raw_bytes() == 0


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        root = disk.folder / "landing"
        LocalLandingStore.initialise(root)
        landing = LocalLandingStore(root)
        kept, refused = new_landing_id(), new_landing_id()
        landing.put(kept, b"kept" * 5000)
        used = landing.raw_bytes()
        disk.fill()
        with pytest.raises(NoSpace, match="add space"):
            landing.put(refused, bytes(100_000))
        assert landing.raw_bytes() == used, "a failed put gives its space back"
        with pytest.raises(NotFound):
            landing.read(refused)
        assert landing.read(kept) == b"kept" * 5000
        landing.delete(kept)
        assert landing.raw_bytes() == 0, "deleting needs no space"
        disk.clear()
        landing.put(new_landing_id(), bytes(100_000))


def test_a_missing_folder_is_not_a_missing_copy(root: Path) -> None:
    landing_id, landing = new_landing_id(), LocalLandingStore(root)
    landing.put(landing_id, b"bytes")
    root.rename(root.with_name("unmounted"))
    for ask in (
        lambda: landing.read(landing_id),
        lambda: landing.read_range(landing_id, 0, 1),
        lambda: landing.put(new_landing_id(), b""),
        lambda: landing.delete(landing_id),
        lambda: _raise_any(landing.delete_many([landing_id])),
        lambda: list(landing.list_ids()),
        landing.raw_bytes,
    ):
        with pytest.raises(Transient, match="disk"):
            ask()


def _raise_any(failed: Mapping[LandingId, Transient]) -> None:
    for error in failed.values():
        raise error


def test_foreign_files_are_not_listed(root: Path) -> None:
    for name in ("README", "abcd", "zz" * 16):
        (root / "ab" / name).write_bytes(b"")
    assert list(LocalLandingStore(root).list_ids()) == []


def test_opening_needs_an_initialised_store(tmp_path: Path) -> None:
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match="nos-ec init"):
            LocalLandingStore(root)


def test_opening_refuses_an_unknown_format(root: Path) -> None:
    (root / "store.json").write_text('{"format": "nos-ec local landing store", "version": 3}')
    for act in (LocalLandingStore, LocalLandingStore.initialise):
        with pytest.raises(ConfigError, match="release that wrote it"):
            act(root)
    (root / "store.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        LocalLandingStore(root)


def test_a_store_of_version_1_is_read_and_gets_footers_once_it_is_initialised(root: Path) -> None:
    (root / "store.json").write_text('{"format": "nos-ec local landing store", "version": 1}')
    old, before, after = (new_landing_id() for _ in range(3))
    _file(root, old).write_bytes(b"bytes")
    opened = LocalLandingStore(root)
    opened.put(before, b"bytes", b"label")
    assert _file(root, before).read_bytes() == b"bytes", "as processes of version 1 read it"
    LocalLandingStore.initialise(root)
    opened = LocalLandingStore(root)
    opened.put(after, b"bytes", b"label")
    assert opened.labels([old, before, after]) == {old: b"", before: b"", after: b"label"}
    assert [opened.read(one) for one in (old, before, after)] == [b"bytes"] * 3


def test_initialising_again_changes_nothing(root: Path) -> None:
    landing_id = new_landing_id()
    LocalLandingStore(root).put(landing_id, b"bytes")
    LocalLandingStore.initialise(root)
    assert LocalLandingStore(root).read(landing_id) == b"bytes"
