"""Stores that lost a part, or that were given foreign data: a clear error, and nothing is made worse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.composition.rebuilding import open_lost
from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.errors import ConfigError, Corrupt
from nos_ec.settings import Settings, load_settings
from tests.rig.fakes.audit import all_blocks
from tests.service.conftest import Bench


def _filled(bench: Bench) -> Path:
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        bench.put_some(system, 10, prefix="landed")
    return bench.folder / "store"


def _lose(root: Path, name: str, left: bytes | None) -> None:
    """Remove a SQLite file and everything that belongs to it; `left` takes its place."""
    for path in root.glob(f"{name}*"):
        path.unlink()
    if left is not None:
        (root / name).write_bytes(left)


@pytest.mark.parametrize("left", [None, b""], ids=["gone", "empty"])
def test_lost_metadata_is_not_recreated_over_data(bench: Bench, left: bytes | None) -> None:
    """It would look like a healthy, empty store: the operator must confirm that this is intended."""
    root = _filled(bench)
    _lose(root, "metadata.db", left)
    for _ in range(2):
        with pytest.raises(ConfigError, match="init"):
            open_system(bench.settings())
        with pytest.raises(ConfigError, match="restore the metadata from a backup"):
            initialise(bench.settings())


def _with_database(bench: Bench, path: Path) -> Settings:
    return load_settings(bench.config, {"NOS_EC_STORE__METADATA_URL": f"sqlite:///{path}"})


def _contents(folder: Path) -> dict[str, bytes | None]:
    """All files and folders below `folder`, by path; the files with what they hold."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("packed", [False, True], ids=["landed", "packed"])
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "mark_lost"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["inside", "elsewhere"])
def test_init_with_another_database_changes_nothing(bench: Bench, elsewhere: bool, marked: bool, packed: bool) -> None:
    """The mark in the folder is the proof of whose the devices are, and another database must not replace it."""
    root = bench.folder / "store"
    if elsewhere:
        shutil.rmtree(root)
        bench.config.write_text(bench.config.read_text().replace("[landing]\n", "[landing]\ndevices = '../a, ../b'\n"))
        initialise(bench.settings())
    with bench.open() as system:
        bench.put_some(system, 20)
        if packed:
            bench.pack(system)
    mark = (root / "store-id").read_bytes()
    if not marked:
        (root / "store-id").unlink()
    before = _contents(bench.folder)
    for new_shards, new_devices in (((), ()), ((3,), ()), ((), (0,))):
        with pytest.raises(ConfigError, match="new and empty" if marked or packed else "another store"):
            initialise(_with_database(bench, bench.folder / "empty.db"), new_shards, new_devices)
        assert _contents(bench.folder) == before
    (root / "store-id").write_bytes(mark)
    with bench.open() as system:
        bench.assert_readable(system)


def test_processes_that_create_a_store_together(bench: Bench) -> None:
    """Each finds marks and devices that the others have made meanwhile."""
    root = bench.folder / "store"
    for _ in range(5):
        shutil.rmtree(root)
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(initialise, bench.settings()) for _ in range(4)]:
                done.result()
        with bench.open() as system:
            bench.put_some(system, 2)
            bench.assert_readable(system)


def test_init_in_a_new_folder_takes_no_device_of_another_store(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
    before = _contents(bench.folder)
    device = bench.folder / "store/landing_log/device0"
    changes = {"NOS_EC_STORE__ROOT": str(bench.folder / "new"), "NOS_EC_LANDING__DEVICES": f"blank, {device}"}
    with pytest.raises(ConfigError, match="of another store"):
        initialise(load_settings(bench.config, changes))
    assert _contents(bench.folder) == before


def test_init_changes_no_database_of_another_store(bench: Bench, tmp_path: Path) -> None:
    _filled(bench)
    other = tmp_path / "other.db"
    migrate(f"sqlite:///{other}")
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("INSERT INTO store_info (name, value) VALUES ('store_id', ?)", ("f" * 32,))
        connection.execute(
            "INSERT INTO store_info (name, value) VALUES ('geometry', ?)",
            (json.dumps(asdict(bench.settings().geometry.value())),),
        )
    before = _contents(tmp_path)
    settings = _with_database(bench, other)
    with pytest.raises(ConfigError, match="another store"):
        initialise(settings)
    with pytest.raises(ConfigError, match="has the metadata of a store"), open_lost(settings):
        pass
    assert _contents(tmp_path) == before


def test_restored_metadata_opens_again(bench: Bench) -> None:
    root = _filled(bench)
    saved = {path.name: path.read_bytes() for path in root.glob("metadata.db*")}
    _lose(root, "metadata.db", None)
    with pytest.raises(ConfigError):
        initialise(bench.settings())
    _lose(root, "metadata.db", None)
    for name, data in saved.items():
        (root / name).write_bytes(data)
    with bench.open() as system:
        bench.assert_readable(system)


@pytest.mark.parametrize("name", ["metadata.db", "log.db"])
@pytest.mark.parametrize("damage", ["head", "truncated"])
def test_a_damaged_sqlite_file_is_reported_as_damaged(bench: Bench, name: str, damage: str) -> None:
    root = _filled(bench)
    data = (root / name).read_bytes()
    _lose(root, name, b"garbage" * 10 + data[70:] if damage == "head" else data[:5000])
    with (
        pytest.raises(Corrupt, match=r"restore|remove it and run `nos-ec init`"),
        open_system(bench.settings()) as system,
    ):
        system.check_for_daemon(writes=True)


def test_a_lost_message_log_is_recreated(bench: Bench) -> None:
    """Only work is lost with it: objects that were published and not packed come due again."""
    root = _filled(bench)
    with bench.open() as system:
        bench.produce(system)
    _lose(root, "log.db", None)
    bench.config.write_text(bench.config.read_text().replace("republish_ms = 300000", "republish_ms = 61000"))
    with bench.open() as system:
        bench.settle(system)
        bench.assert_readable(system)
        assert system.metadata.totals().queued_objects == 10


def test_foreign_files_are_left_alone(bench: Bench) -> None:
    root = _filled(bench)
    folders = [
        root,
        *(root / name for name in ("blocks", "landing", "landing_log", "blocks/shard-00", "blocks/locks")),
        *(root / name for name in ("blocks/shard-03/0", "landing/00")),
    ]
    strange = []
    for folder in folders:
        for name in ("notes.txt", "0123", "zz" * 16):
            strange.append(folder / name)
            strange[-1].write_text("not ours")
        (folder / "lost+found").mkdir()
    with bench.open() as system:
        bench.settle(system)
        for key in list(bench.acknowledged)[::2]:
            bench.delete(system, key)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)
    assert all(path.read_text() == "not ours" for path in strange)


def test_an_unreadable_shard_folder_counts_as_lost(bench: Bench) -> None:
    """The reason does not matter: here it is a loop of links, elsewhere permissions or a broken disk."""
    root = _filled(bench)
    for digit in "0123456789abcdef":
        folder = root / "blocks" / "shard-03" / digit
        folder.rename(folder.with_name(f"{digit}.away"))
        folder.symlink_to(folder)
    for command in ("status", "gc run --apply", "ls", "producer --once"):
        done = bench.run(*command.split(), "--json")
        assert done.returncode == 0, done.stderr
    assert json.loads(bench.run("status", "--json").stdout)["free_bytes"] is None
    error = json.loads(bench.run("consumer", "--once", "--json").stderr.splitlines()[-1])
    assert (error["exit_code"], "shard-03" in error["message"]) == (7, True)
    with bench.open() as system:
        bench.assert_readable(system)
        assert len(list(system.blocks.list_blocks())) == len(list(all_blocks(system.metadata)))


@pytest.mark.landing("store")
def test_a_deleted_landing_copy_is_reported_and_harms_no_other_object(bench: Bench) -> None:
    root = _filled(bench)
    lost = next(path for path in (root / "landing").glob("??/*"))
    with bench.open() as system:
        (key,) = [
            key
            for key in bench.acknowledged
            if (row := system.client.store().head(key)).landing_id and row.landing_id.hex() == lost.name
        ]
        lost.unlink()
        with pytest.raises(Corrupt, match="landed bytes are missing"):
            system.client.store().get(key)
        bench.settle(system)
        with pytest.raises(Corrupt, match="queued bytes are missing"):
            system.client.store().get(key)
        bench.put(system, key.name, b"new", key.bucket)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def test_a_dead_writers_block_that_lost_its_end_is_sealed_and_healed(bench: Bench) -> None:
    """More than m shards lost acknowledged stripes: the landing copies are still there, and recovery must not stop."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.produce(system)
    assert bench.run("consumer", "--once", kill_at="writer.committed").returncode == -signal.SIGKILL
    for shard in range(1, 8):
        for path in (bench.folder / "store" / "blocks" / f"shard-{shard:02}").glob("?/*"):
            os.truncate(path, 4096)
    bench.end_leases()
    with bench.open() as system:
        assert system.metadata.totals().packed_objects > 0
        result = system.worker.housekeeping().run_once()
        assert (result.recovery.blocks_sealed, result.reaper.reverted > 0) == (1, True)
        bench.assert_readable(system)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)
