"""The audit trail: no bytes go before it says so, and it answers who deleted what."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from nos_ec.adapters.local.audit_files import CURRENT, TrailReader
from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.composition.wiring import System
from nos_ec.core.formats.audit_trail import AuditKind, Recorded
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockKind
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import all_blocks
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, TTL_OVER_MS, Bench
from tests.service.faults.test_crash_matrix import kill


def folder_of(bench: Bench) -> Path:
    return bench.folder / "store" / "audit"


def entries(bench: Bench, *kinds: AuditKind) -> list[Recorded]:
    reader = TrailReader(folder_of(bench))
    found = [entry for entry in reader.entries(0, lambda _: True) if not kinds or entry.kind in kinds]
    assert reader.damaged == 0
    return found


class Guard:
    """Lets nothing be deleted that is not in the trail at that moment."""

    def __init__(self, bench: Bench, patch: pytest.MonkeyPatch) -> None:
        self._bench = bench
        self.deleted = {"blocks": 0, "copies": 0, "segments": 0}
        self._guard(patch, LocalBlockStore, "delete", "blocks", lambda one: [one])
        self._guard(patch, LocalLandingStore, "delete", "copies", lambda one: [one])
        self._guard(patch, LocalLandingStore, "delete_many", "copies", list)
        self._guard(patch, DeviceLog, "release", "segments", list)

    def _guard(
        self, patch: pytest.MonkeyPatch, kind: type, method: str, what: str, ids_of: Callable[[Any], Iterable[bytes]]
    ) -> None:
        original = getattr(kind, method)

        def guarded(store: object, ids: Any, *more: Any, **options: Any) -> Any:
            wanted = {one.hex() for one in ids_of(ids)}
            missing = wanted - self._named()
            assert not missing, f"{what} {missing} are deleted, and the audit trail does not know"
            self.deleted[what] += len(wanted)
            return original(store, ids, *more, **options)

        patch.setattr(kind, method, guarded)

    def _named(self) -> set[str]:
        named: set[str] = set()
        for entry in entries(self._bench):
            named.update(entry.segments)
            named.update(copy.landing for copy in entry.copies)
            if entry.block is not None and entry.kind is AuditKind.BLOCK_DELETED:
                named.add(entry.block)
        return named


def live(bench: Bench, system: System) -> None:
    """A life with everything in it: packing, overwriting, deleting, a large object, GC, an abandoned copy."""
    keys = bench.put_some(system, 200)
    bench.pack(system)
    bench.put(system, "large", bench.data(10 * STRIPE))
    bench.put(system, keys[1].name, bench.data(CHUNK), keys[1].bucket)
    for key in (*keys[4:], ObjectKey("b", "large")):
        bench.delete(system, key)
    abandoned = system.new_landing_id()
    system.metadata.reserve_landing([abandoned], 0)
    system.landing.put(abandoned, b"nobody's")
    bench.settle(system)
    system.clock = LaterClock(TTL_OVER_MS)
    bench.settle(system)


def test_nothing_is_deleted_before_the_trail_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(bench, monkeypatch)
    with bench.open() as system:
        live(bench, system)
        bench.assert_readable(system)
    assert guard.deleted["blocks"] > 3
    assert guard.deleted["segments"] > 1
    assert guard.deleted["copies"] >= 1
    records = [copy for entry in entries(bench, AuditKind.COPIES_DELETED) for copy in entry.copies]
    assert len(records) >= 200, "records are given up one by one, before their segments"
    assert len({copy.landing for copy in records}) == len(records), "each once"


@pytest.mark.landing("store")
def test_no_copy_is_deleted_before_the_trail_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(bench, monkeypatch)
    with bench.open() as system:
        live(bench, system)
        bench.assert_readable(system)
    assert guard.deleted["copies"] >= 200


def test_a_block_and_the_copies_in_it_are_found(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    with bench.open() as system:
        key = bench.put(system, 'a "quoted" name', bench.data(CHUNK))
        bench.put(system, "other", bench.data(CHUNK))
        bench.pack(system)
        row = system.client.store().head(key)
        bench.delete(system, key)
        bench.delete(system, ObjectKey("b", "other"))
        bench.settle(system)
    assert row.extent is not None
    block = row.extent.block_id.hex()
    copies, deleted = cli("audit", "--block", block.upper())["entries"]
    assert (copies["kind"], deleted["kind"]) == ("copies-deleted", "block-deleted")
    assert (deleted["seen"]["live_objects"], deleted["seen"]["stripes"]) == (0, 1)
    assert {copy["object"] for copy in copies["copies"]} == {str(key), "b/other"}
    (found,) = cli("audit", "--object", str(key))["entries"]
    (copy,) = found["copies"]
    assert (copy["object_id"], copy["version"], copy["crc32c"]) == (row.object_id, row.version, row.crc32c)
    assert (copy["offset"], copy["length"], found["block"]) == (row.extent.offset, row.extent.length, block)
    assert "CRC" in found["why"]
    said = cli.text("audit", "--object", str(key))
    assert f'of b/a "quoted" name v{row.version}; {CHUNK} bytes at {row.extent.offset}, CRC {row.crc32c:08x}' in said
    assert said.endswith("1 entry\n")


def test_times_kinds_and_counts(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    assert cli("audit") == {"entries": [], "found": 0, "damaged_lines": 0}
    with bench.open() as system:
        live(bench, system)
    everything = cli("audit")
    assert everything["found"] == len(everything["entries"]) == len(entries(bench))
    of_kind = cli("audit", "--kind", "block-deleted")["entries"]
    assert {one["kind"] for one in of_kind} == {"block-deleted"}
    assert cli("audit", "--last", "2", "--kind", "block-deleted")["entries"] == of_kind[-2:]
    assert cli("audit", "--since", "1h")["found"] == everything["found"]
    assert cli("audit", "--until", "1h")["found"] == 0
    assert cli("audit", "--since", "2099-01-01")["found"] == 0
    assert cli("audit", "--until", "2099-01-01T00:00+02:00")["found"] == everything["found"]
    with (folder_of(bench) / CURRENT).open("ab") as file:
        file.write(b"torn\n")
    assert cli("audit", "--last", "1")["damaged_lines"] == 1
    assert "1 damaged line skipped" in cli.text("audit")
    for wrong in (("--since", "yesterday"), ("--block", "12"), ("--object", "b"), ("--last", "0")):
        assert bench.run("audit", *wrong).returncode == 2


def test_repairs_are_in_the_trail(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    plan = bench.folder / "plan"
    with bench.open() as system:
        bench.put_some(system, 3)
        system.landing.put(system.new_landing_id(), b"nobody's")
    assert bench.run("check", "--plan", str(plan)).returncode == 13
    cli = Cli(bench, capfd)
    cli("apply", str(plan))
    cli("apply", str(plan))
    first, again, passed = entries(bench, AuditKind.REPAIR, AuditKind.REPAIR_PASSED_OVER)
    assert [one.kind.value for one in (first, again, passed)] == ["repair", "repair", "repair-passed-over"]
    assert first.seen["action"] == "quarantine-copy"
    assert first.copies == again.copies == passed.copies


def test_shards_that_were_made_again_are_in_the_trail(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.pack(system)
        blocks = {block_id.hex() for block_id in system.blocks.list_blocks()}
    shutil.rmtree(bench.folder / "store" / "blocks" / "shard-05")
    assert bench.run("init", "--new-shard", "5").returncode == 0
    assert bench.run("shards", "rebuild").returncode == 0
    found = entries(bench, AuditKind.SHARDS_WRITTEN)
    assert {entry.block for entry in found} == blocks
    assert {tuple(entry.seen["missing"]) for entry in found} == {(5,)}
    assert found[0].run.endswith("shards rebuild")


def test_a_store_without_a_trail(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text() + "[audit]\nsize_bytes_max = 0\n")
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.pack(system)
    assert not folder_of(bench).exists()
    done = bench.run("audit", "--json")
    assert done.returncode == 2
    assert json.loads(done.stderr)["settings"] == ["audit.folder", "audit.size_bytes_max"]


def test_a_trail_that_cannot_be_written_stops_no_deletion(bench: Bench) -> None:
    folder_of(bench).write_text("no folder")
    with bench.open() as system:
        live(bench, system)
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_a_deletion_that_a_crash_stopped_is_recorded_again(bench: Bench) -> None:
    """An entry without a deletion, never a deletion without an entry."""
    with bench.open() as system:
        key = bench.put(system, "one", bench.data(CHUNK))
        bench.pack(system)
        bench.delete(system, key)
    kill(bench, "audit.recorded", "gc", "run", "--apply")
    (first,) = entries(bench, AuditKind.BLOCK_DELETED)
    with bench.open() as system:
        assert [block_id.hex() for block_id in system.blocks.list_blocks()] == [first.block]
        system.clock = LaterClock(TTL_OVER_MS)
        bench.settle(system)
        assert not list(system.blocks.list_blocks())
    assert [one.block for one in entries(bench, AuditKind.BLOCK_DELETED)] == [first.block] * 2


def test_what_a_scrub_mends_is_in_the_trail(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 40)
        bench.pack(system)
        block = next(row for row in all_blocks(system.metadata) if row.kind is BlockKind.FRESH)
        name = block.block_id.hex()
        (shard,) = (bench.folder / "store" / "blocks" / "shard-03").glob(f"*/{name}")
        whole = shard.read_bytes()
        shard.write_bytes(whole[: len(whole) // 2])
        result = system.operator.scrubber(0).run_once(Event())
    assert result is not None
    assert shard.read_bytes() == whole
    (written,) = entries(bench, AuditKind.SHARDS_WRITTEN)
    assert (written.block, written.seen["replaced"]) == (name, [3])
