"""The database is lost, and not all of the store can be read, or is there: nothing that may be an object is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.devices.device_format import SLOTS_AT, decode_superblock
from nos_ec.composition.wiring import initialise
from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import GroupHeader, peek_length
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId, ObjectKey, SegmentId
from nos_ec.core.states import BlockState
from nos_ec.engine import header_scan
from nos_ec.engine.check.quarantine import held
from nos_ec.engine.dump import recovered_entries
from nos_ec.engine.dump.stored import newest_dump
from nos_ec.ports.metadata import QUARANTINE
from tests.rig.at_rest import end_log
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.service.check.test_check import check
from tests.service.check.test_repairs import actions, plan_of
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STORE_CONFIG, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild, there
from tests.service.dump.test_rebuild_kills import kill

pytestmark = pytest.mark.invariant(7)


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def around_a_dump(bench: Bench, cli: Cli) -> tuple[set[str], set[BlockId]]:
    """Objects that are packed before a dump and after it. Returns those of the dump, and the blocks put since."""
    with bench.open() as system:
        old = {str(key) for key in bench.put_some(system, 60, prefix="old")}
        bench.pack(system)
        before = set(system.blocks.list_blocks())
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        bench.put_some(system, 60, prefix="new")
        bench.pack(system)
        end_log(system)
        return old, set(system.blocks.list_blocks()) - before


def assert_kept(bench: Bench, blocks: set[BlockId]) -> None:
    """GC leaves them alone."""
    done = bench.run("gc", "run", "--apply")
    assert done.returncode == 0, done.stderr.decode()
    with bench.open() as system:
        assert blocks <= set(system.blocks.list_blocks())


def test_blocks_whose_names_cannot_be_read_are_kept(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer release may have written the names."""
    old, new_blocks = around_a_dump(bench, cli)

    def newer(*_: Any) -> Any:
        raise Corrupt("names: unknown kind of record")

    with monkeypatch.context() as patched:
        patched.setattr(header_scan, "decode_names", newer)
        lose_database(bench)
        _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["block"] == {block.hex() for block in new_blocks}
    with bench.open() as system:
        assert there(system) == old
        assert {one.id for one in held(system.metadata)} == new_blocks
    assert_kept(bench, new_blocks)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["block"] == set()
    with bench.open() as system:
        bench.assert_readable(system)


def test_a_block_of_which_a_part_cannot_be_read_is_kept(
    bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, new_blocks = around_a_dump(bench, cli)
    names = recovered_entries._names

    def damaged(blocks: LocalBlockStore, header: GroupHeader) -> Any:
        return names(blocks, header) if header.first_stripe else None

    monkeypatch.setattr(recovered_entries, "_names", damaged)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["block"] == {block.hex() for block in new_blocks}
    with bench.open() as system:
        kept = [row for row in all_blocks(system.metadata) if row.block_id in new_blocks]
        assert {row.writer for row in kept} == {QUARANTINE}
        assert BlockState.SEALED in {row.state for row in kept}
    assert_kept(bench, new_blocks)


def test_blocks_that_cannot_be_opened_stop_nothing(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new_blocks = around_a_dump(bench, cli)

    def damaged(_: LocalBlockStore, block_id: BlockId) -> int:
        raise Corrupt("odd attribute", block_id=block_id)

    with monkeypatch.context() as patched:
        patched.setattr(LocalBlockStore, "seal", damaged)
        patched.setattr(LocalBlockStore, "stripes", damaged)
        lose_database(bench)
        _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["block"] == {block.hex() for block in new_blocks}
    assert to_look_at["gone"] == set()
    with bench.open() as system:
        assert there(system) == old
        for row in all_objects(system.metadata):
            assert system.client.store().get(row.key) == bench.acknowledged[row.key]
    assert_kept(bench, new_blocks)


def test_a_landing_segment_that_cannot_be_sealed_is_kept(
    bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open() as system:
        bench.put_some(system, 40)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        end_log(system)
        assert system.medium is not None
        segments = set(system.medium.segments())
        medium = type(system.medium)

    def damaged(*_: Any) -> int:
        raise Corrupt("odd attribute")

    with monkeypatch.context() as patched:
        patched.setattr(medium, "seal", damaged)
        lose_database(bench)
        _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["segment"] == {segment.hex() for segment in segments}
    assert to_look_at["gone"] == set()
    with bench.open() as system:
        bench.assert_readable(system)


def damage_record(bench: Bench, cli: Cli, part: str) -> SegmentId:
    """Store objects after a dump, and damage the record of one of them. Returns its landing segment."""
    with bench.open() as system:
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        keys = bench.put_some(system, 40)
        end_log(system)
        (segment,) = (row.segment for row in system.metadata.list_segments(None, 10))
        row = system.metadata.get(keys[7])
    assert row.landing_id is not None
    device = bench.folder / "store" / "landing_log" / "device0"
    content = bytearray(device.read_bytes())
    at = content.index(row.landing_id) - 16
    names_at = at + RECORD_HEADER_SIZE + row.size + -row.size % 8
    content[{"header": at + 20, "data": at + RECORD_HEADER_SIZE, "names": names_at + 12}[part]] ^= 1
    device.write_bytes(content)
    lose_database(bench)
    del bench.acknowledged[keys[7]]
    return segment


def assert_segment_kept(bench: Bench, segment: SegmentId) -> None:
    with bench.open() as system:
        bench.assert_readable(system)
        bench.pack(system)
        assert system.medium is not None
        assert segment in system.medium.segments(), "it is not given back"
        bench.assert_readable(system)


@pytest.mark.parametrize("part", ["header", "data", "names"])
def test_a_landing_segment_with_a_damaged_record_is_kept(bench: Bench, cli: Cli, part: str) -> None:
    """Its other records are adopted, and it is named: the damaged one may be an acknowledged object."""
    segment = damage_record(bench, cli, part)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["segment"] == {segment.hex()}
    assert_segment_kept(bench, segment)


@pytest.mark.parametrize("point", ["rebuild.segments_read", "rebuild.counted"])
def test_a_landing_segment_with_a_damaged_record_is_kept_by_a_resumed_rebuild(
    bench: Bench, cli: Cli, point: str
) -> None:
    """Records are not read again once all rows are placed."""
    segment = damage_record(bench, cli, "data")
    kill(bench, point, "metadata", "rebuild", "--from", str(bench.folder / "dump"))
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["segment"] == {segment.hex()}
    assert_segment_kept(bench, segment)


def test_a_newer_dump_that_cannot_be_found_is_said(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front of its first block is damaged: another dump is used, and that is logged."""
    with bench.open() as system:
        bench.put_some(system, 40)
        bench.pack(system)
        cli("metadata", "dump")
        cli("metadata", "dump")
        newest = max(system.blocks.list_blocks())
    read = LocalBlockStore.read

    def damaged(blocks: LocalBlockStore, block_id: BlockId, offset: int, length: int) -> bytes:
        if block_id == newest and not offset:
            raise Corrupt("no shard has it")
        return read(blocks, block_id, offset, length)

    with bench.open() as system:
        monkeypatch.setattr(LocalBlockStore, "read", damaged)
        with capture_logs() as lines:
            source = newest_dump(system.blocks, system.clock.now_ms(), lambda *_: None)
    assert source is not None
    assert [line["block"] for line in lines if line["log_level"] == "error"] == [newest.hex()]


def test_blocks_of_many_objects_are_not_taken_for_dumps(bench: Bench, cli: Cli) -> None:
    """Their headers are longer than all that is read of a block to find out whether a dump is in it."""
    bench.config.write_text(bench.config.read_text().replace("window_objects = 50", "window_objects = 400"))
    with bench.open() as system:
        cli("metadata", "dump")
        system.client.store().put_many([(ObjectKey("bucket", f"{number}"), b"x") for number in range(400)])
        bench.pack(system)
        newest = max(system.blocks.list_blocks())
        assert peek_length(system.blocks.read(newest, 0, PAGE), newest, 0) > 2 * PAGE
        with capture_logs() as lines:
            source = newest_dump(system.blocks, system.clock.now_ms(), lambda *_: None)
    assert source is not None
    assert lines == []


def test_a_device_that_is_away_keeps_what_lies_on_it(bench: Bench, cli: Cli) -> None:
    """The number of copies was raised since, so that the log can be listed without the device."""
    devices = [bench.folder / f"device{number}" for number in range(2)]
    config = bench.config.read_text() + f'devices = "{devices[0]}, {devices[1]}"\n'
    bench.config.write_text(config)
    initialise(bench.settings())
    with bench.open() as system:
        bench.put_some(system, 40)
        end_log(system)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        (segment,) = (row.segment for row in system.metadata.list_segments(None, 10))
    (device,) = (path for path in devices if path.read_bytes().count(segment))
    bench.config.write_text(config + "copies = 2\n")
    device.rename(bench.folder / "away")
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["gone"] == set()
    (bench.folder / "away").rename(device)
    with bench.open() as system:
        bench.assert_readable(system)
        bench.pack(system)
        bench.assert_readable(system)


def wipe_slot(device: Path, segment: SegmentId) -> int:
    """Overwrite the slot of a landing segment, so that it does not show whose it is. Return its number."""
    content = device.read_bytes()
    slot_bytes = decode_superblock(content[:PAGE]).slot_bytes
    slot = (content.index(segment, SLOTS_AT) - SLOTS_AT) // slot_bytes
    with device.open("r+b") as file:
        file.seek(SLOTS_AT + slot * slot_bytes)
        file.write(b"!" * slot_bytes)
    return slot


def test_a_slot_that_names_no_landing_segment_does_not_stop_a_rebuild(bench: Bench, cli: Cli) -> None:
    """Each landing segment has another copy."""
    devices = [bench.folder / f"device{number}" for number in range(2)]
    bench.config.write_text(bench.config.read_text() + f'devices = "{devices[0]}, {devices[1]}"\ncopies = 2\n')
    initialise(bench.settings())
    with bench.open() as system:
        bench.put_some(system, 40, prefix="old")
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        bench.put_some(system, 40, prefix="new")
        end_log(system)
        segment = system.metadata.list_segments(None, 10)[0].segment
    slot = wipe_slot(devices[1], segment)
    lose_database(bench)
    cli("metadata", "rebuild", "--dry-run", "--from", str(bench.folder / "dump"))
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["segment"] == {f"slot {slot} of device 1 of the landing log"}
    assert to_look_at["gone"] == set()
    with bench.open() as system:
        bench.assert_readable(system)
        assert actions(plan_of(bench)) == ["free-slot"]
        assert cli("apply", str(bench.folder / "plan"))["done"] == 1
        assert check(system, read_share=1.0) == []
        bench.assert_readable(system)


def test_an_object_whose_landing_copy_may_be_in_such_a_slot_does_not_stop_a_rebuild(bench: Bench, cli: Cli) -> None:
    """It was packed, and its landing copy queued for deletion, when the dump was made; its block is gone since."""
    with bench.open() as system:
        old = bench.put_some(system, 40, prefix="old")
        end_log(system)
        (segment,) = (row.segment for row in system.metadata.list_segments(None, 10))
        bench.produce(system)
        bench.consume(system)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        for key in old:
            bench.delete(system, key)
        bench.put_some(system, 40, prefix="new")
        end_log(system)
    bench.run("gc", "run", "--apply")
    (device,) = bench.settings().landing.paths(bench.settings().store.root)
    slot = wipe_slot(device, segment)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["segment"] == {f"slot {slot} of device 0 of the landing log"}
    assert to_look_at["gone"] == {str(key) for key in old}
    with bench.open() as system:
        bench.assert_readable(system)


def test_a_landing_log_that_is_not_there_is_missed(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 40)
        end_log(system)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        (device,) = system.settings.landing.paths(system.settings.store.root)
    lose_database(bench)
    log_config = bench.config.read_text()
    away = device.rename(bench.folder / "away")
    bench.config.write_text(STORE_CONFIG)
    refused = cli("metadata", "rebuild", "--from", str(bench.folder / "dump"), exits=3)
    assert "connect its devices" in refused["message"]
    away.rename(device)
    bench.config.write_text(log_config)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert not any(to_look_at.values())
    with bench.open() as system:
        bench.assert_readable(system)
