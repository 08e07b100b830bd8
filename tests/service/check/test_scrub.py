"""A scrub names exactly what was damaged, mends what can be mended, and changes nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import create_engine, text

from nos_ec.cli.app import run as start
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, LeaseLost
from nos_ec.core.findings import FindingKind
from nos_ec.core.geometry import PAGE
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.check.checker import Checked
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.scrub.mending import Scrubbed
from nos_ec.engine.scrub.scrubber import LEASE_NAME, LOOK_MS, Scrubber, ScrubOptions, ScrubResult
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BlockRow, ScrubState
from nos_gc.assemble import gc_service, scrub_thread
from tests.rig.at_rest import LaterClock, end_log
from tests.rig.fakes.audit import all_blocks
from tests.rig.fakes.clock import FakeClock
from tests.service.check.test_check import a_block, fill, rewrite
from tests.service.check.test_shard_rebuild import flip, going_on
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

K = FindingKind
DATA_AT = 2 * PAGE


def scrubber(system: System, *, repair: bool = True, clock: Clock | None = None) -> Scrubber:
    checked = Checked(system.metadata, system.blocks, system.landing, system.medium, clock or system.clock)
    put_ms_max = system.settings.put.reservation_ms
    options = ScrubOptions(0, repair, put_ms_max, wait_ms=10)
    return Scrubber(checked, system.shards, system.contended_lease, options)


def scrub(system: System, *, repair: bool = True) -> tuple[list[Scrubbed], ScrubResult]:
    """A whole pass."""
    told: list[Scrubbed] = []
    result = scrubber(system, repair=repair).run_once(Event(), report=told.append)
    assert result.whole
    assert result.unfinished == ()
    assert (result.found, result.mended) == (len(told), sum(one.mended for one in told))
    return told, result


def kinds(told: list[Scrubbed]) -> list[tuple[FindingKind, bool]]:
    return [(one.finding.kind, one.mended) for one in told]


def shard_of(bench: Bench, row: BlockRow, shard: int) -> Path:
    name = row.block_id.hex()
    return bench.folder / "store" / "blocks" / f"shard-{shard:02d}" / name[-1] / name


def everything(bench: Bench) -> dict[str, object]:
    """All that a store holds: the files of blocks, and the rows but for leases and the state of scrubs."""
    files = (bench.folder / "store" / "blocks").rglob("shard-*/**/*")
    held: dict[str, object] = {str(path): path.read_bytes() for path in files if path.is_file()}
    engine = create_engine(f"sqlite:///{bench.folder / 'store' / 'metadata.db'}")
    with engine.connect() as connection:
        for table in ("objects", "segments", "blocks", "waiting", "landing_deletions", "landing_segments"):
            held[table] = sorted(map(repr, connection.execute(text(f"SELECT * FROM {table}"))))
    engine.dispose()
    return held


def all_read(bench: Bench, system: System) -> None:
    for key, data in bench.acknowledged.items():
        assert system.client.store().get(key) == data


def test_a_sound_store(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        before = everything(bench)
        told, result = scrub(system)
        assert told == []
        sealed = list(all_blocks(system.metadata))
        assert result.blocks == len(sealed)
        assert result.objects == sum(len(system.metadata.placed_in(row.block_id)) for row in sealed)
        stripes = sum(row.stripes for row in sealed)
        assert result.read_bytes == stripes * 11 * CHUNK + sum(row.live_bytes for row in sealed)
        assert everything(bench) == before


def cut(path: Path) -> None:
    os.truncate(path, DATA_AT + CHUNK + 100)


def make_stale(path: Path) -> None:
    """As it was when the block had one stripe."""
    with path.open("r+b") as file:
        file.truncate(DATA_AT + CHUNK)
        file.seek(512)
        file.write(bytes(12))
        file.seek(PAGE + 4 * CHUNK // PAGE)
        file.write(bytes(PAGE - 4 * CHUNK // PAGE))


SHARD_DAMAGES: dict[str, tuple[int, Callable[[Path], object], list[str]]] = {
    "data page": (3, lambda path: flip(path, DATA_AT + 5000), ["pages"]),
    "header page": (0, lambda path: flip(path, DATA_AT + 40), ["pages"]),
    "coding page": (9, lambda path: flip(path, DATA_AT + 5000), ["pages"]),
    "checksum": (5, lambda path: flip(path, PAGE + 1), ["pages"]),
    "head": (10, lambda path: flip(path, 8), ["head"]),
    "mark": (1, lambda path: flip(path, 513), ["mark"]),
    "cut data shard": (2, cut, ["pages"]),
    "cut coding shard": (8, cut, ["pages"]),
    "stale data shard": (4, make_stale, ["mark", "pages"]),
    "stale coding shard": (10, make_stale, ["mark", "pages"]),
}


@pytest.mark.parametrize("name", SHARD_DAMAGES)
def test_a_damaged_shard_is_made_again(bench: Bench, name: str) -> None:
    shard, harm, parts = SHARD_DAMAGES[name]
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        before = everything(bench)
        harm(shard_of(bench, row, shard))
        damaged = everything(bench)
        assert damaged != before
        told, _ = scrub(system, repair=False)
        assert kinds(told) == [(K.SHARD_DAMAGED, False)]
        finding = told[0].finding
        assert finding.what == f"shard {shard} of block {row.block_id.hex()}"
        assert finding.evidence["parts"] == parts
        assert everything(bench) == damaged, "without repair nothing changes"
        told, result = scrub(system)
        assert kinds(told) == [(K.SHARD_DAMAGED, True)]
        assert told[0].finding == finding
        assert result.written_bytes == row.stripes * CHUNK
        assert everything(bench) == before, "byte for byte"
        assert scrub(system)[0] == []


def test_damage_in_several_blocks_and_a_missing_shard(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        rows = list(all_blocks(system.metadata))
        before = everything(bench)
        for number, row in enumerate(rows):
            flip(shard_of(bench, row, number % 11), DATA_AT)
        shard_of(bench, rows[0], 7).unlink()
        told, _ = scrub(system)
        assert kinds(told) == [(K.SHARD_DAMAGED, True)] * len(rows)
        assert everything(bench) == before


def test_while_another_process_rebuilds_shards_are_left(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        flip(shard_of(bench, row, 0), DATA_AT)
        damaged = everything(bench)
        assert system.shards is not None
        told: list[Scrubbed] = []
        with system.shards.alone():
            scrubber(system, clock=FakeClock()).run_once(Event(), report=told.append)
        assert [(one.finding.kind, one.mended) for one in told] == [(K.SHARD_DAMAGED, False)]
        assert "another process is rebuilding" in told[0].why
        assert everything(bench) == damaged
        assert kinds(scrub(system)[0]) == [(K.SHARD_DAMAGED, True)]


def test_shards_that_cannot_be_mended(bench: Bench) -> None:
    """More than m shards are damaged in one stripe, where an object lies that has no landing copy."""
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        for shard in range(4):
            flip(shard_of(bench, row, shard), DATA_AT + CHUNK - 1)
        damaged = everything(bench)
        told, _ = scrub(system)
        lost = [one for one in told if one.finding.kind is K.DATA_DAMAGED]
        assert kinds(told)[:4] == [(K.SHARD_DAMAGED, False)] * 4
        assert all("cannot be read" in one.why for one in told[:4])
        assert len(told) == 4 + len(lost)
        assert all(one.why == "its landing copy is gone" and not one.mended for one in lost)
        assert everything(bench) == damaged


def test_a_lost_disk_is_one_problem(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        blocks = len(list(all_blocks(system.metadata)))
        disk = bench.folder / "store" / "blocks" / "shard-03"
        disk.rename(bench.folder / "away")
        told, result = scrub(system)
        assert kinds(told) == [(K.BLOCKS_SHORT, False)]
        assert result.of_pass.found == 0, "the pass does not remember what a rebuild mends"
        assert told[0].finding.evidence["lack"] == [{"shards": [3], "blocks": blocks}]
        (bench.folder / "away").rename(disk)
        assert scrub(system)[0] == []


# --- damage on which all shards agree -----------------------------------------------------------------


def test_a_header(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        rewrite(system, row, 40)
        told, _ = scrub(system)
        assert kinds(told) == [(K.HEADER_DAMAGED, False)]


def test_names(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        header = scan_headers(system.blocks, row.block_id, row.stripes).headers[0]
        rewrite(system, row, header.first_stripe * STRIPE + header.names_offset + 3)
        told, _ = scrub(system)
        assert kinds(told) == [(K.NAMES_DAMAGED, False)]
        assert told[0].finding.what == f"block {row.block_id.hex()}"
        assert told[0].finding.evidence["stripes"] == [header.first_stripe]
        all_read(bench, system)


def test_an_object_without_landing_copy(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        victim = system.metadata.placed_in(row.block_id)[0]
        rewrite(system, row, victim.extent.offset)
        damaged = everything(bench)
        told, _ = scrub(system)
        assert [(one.finding.kind, one.finding.what, one.why) for one in told] == [
            (K.DATA_DAMAGED, f"object {victim.key}", "its landing copy is gone")
        ]
        assert everything(bench) == damaged


@pytest.mark.invariant(2)
@pytest.mark.parametrize("alone", [False, True], ids=["record", "copy"])
def test_an_object_goes_back_to_its_landing_copy(bench: Bench, *, alone: bool) -> None:
    with bench.open() as system:
        if alone:
            bench.put(system, "alone", bench.data(3 * STRIPE))
        else:
            bench.put_some(system, 40)
        end_log(system)
        bench.produce(system)
        bench.consume(system)
        row = a_block(system)
        victim = system.metadata.placed_in(row.block_id)[0]
        rewrite(system, row, victim.extent.offset + victim.extent.length - 1)
        told, _ = scrub(system, repair=False)
        assert kinds(told) == [(K.DATA_DAMAGED, False)]
        told, _ = scrub(system)
        assert [(one.finding.kind, one.finding.what, one.mended) for one in told] == [
            (K.DATA_DAMAGED, f"object {victim.key}", True)
        ]
        assert [one.object_id for one in system.metadata.waiting_after(None, 10)] == [victim.object_id]
        all_read(bench, system)
        assert scrub(system)[0] == []
        bench.pack(system)
        all_read(bench, system)
        assert scrub(system)[0] == []


def test_a_segment_of_a_large_object(bench: Bench) -> None:
    with bench.open() as system:
        bench.put(system, "large", bench.data(20 * STRIPE))
        row = list(all_blocks(system.metadata))[1]
        rewrite(system, row, 3 * STRIPE)
        told, _ = scrub(system)
        assert [(one.finding.kind, one.finding.what, one.mended) for one in told] == [
            (K.DATA_DAMAGED, "object b/large", False)
        ]


# --- during other work --------------------------------------------------------------------------------


def test_beside_work_nothing_sound_is_named_and_what_is_damaged_is_mended(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace("[gc]", "[gc]\nhole_ratio_min = 0.2"))
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        with going_on(bench) as done:
            while not all(done.values()):
                assert scrub(system)[0] == []
            for name in ("data page", "coding page", "cut data shard", "head", "stale coding shard"):
                shard, harm, _ = SHARD_DAMAGES[name]
                rows = [row for row in all_blocks(system.metadata) if row.state is BlockState.SEALED]
                row = max(rows, key=lambda row: row.live_objects)
                try:
                    harm(shard_of(bench, row, shard))
                except (FileNotFoundError, IndexError):
                    continue  # collected meanwhile
                for one in scrub(system)[0]:
                    assert one.finding.what == f"shard {shard} of block {row.block_id.hex()}"
                    assert one.mended, name
            assert scrub(system)[0] == []
        all_read(bench, system)


# --- passes -------------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_is_continued(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        rows = list(all_blocks(system.metadata))
        assert len(rows) > 2
        flip(shard_of(bench, rows[0], 0), DATA_AT)
        flip(shard_of(bench, rows[-1], 0), DATA_AT)
        stop, told = Event(), list[Scrubbed]()

        def after_first(result: ScrubResult) -> None:
            if result.blocks:
                stop.set()

        result = scrubber(system).run_once(stop, report=told.append, watch=after_first)
        assert not result.whole
        assert (result.blocks, len(told)) == (1, 1)
        state = system.metadata.scrub_state()
        assert state is not None
        assert state.current is not None
        assert (state.after, state.current.blocks, state.last) == (rows[0].block_id, 1, None)
        told, result = scrub(system)
        assert (result.blocks, len(told)) == (len(rows) - 1, 1)
        assert (result.of_pass.blocks, result.of_pass.mended) == (len(rows), 2)
        assert system.metadata.scrub_state() == ScrubState(last=result.of_pass)
        assert scrub(system)[1].blocks == len(rows)


def test_one_scrub_at_a_time(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        with system.contended_lease(LEASE_NAME), pytest.raises(Conflict, match="held by process"):
            scrub(system)
        scrub(system)


def test_the_daemon_scrubs_in_the_background(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        before = everything(bench)
        flip(shard_of(bench, row, 9), DATA_AT)
        with scrub_thread(system):
            for _ in range(int(WAIT_S_MAX / 0.05)):
                state = system.metadata.scrub_state()
                if state is not None and state.last is not None:
                    break
                Event().wait(0.05)
        assert state is not None
        assert state.last is not None
        assert (state.last.found, state.last.mended, state.current) == (1, 1, None)
        assert everything(bench) == before


def test_when_a_daemon_begins_a_pass(bench: Bench) -> None:
    """`pass_ms` after the last one began, and at once while one is not over."""

    class Waits(FakeClock):
        """Ends the loop after some waits of a daemon, and notes when passes ended."""

        def __init__(self) -> None:
            super().__init__()
            self.left = 5
            self.ended: list[int] = []

        def wait(self, stop: Event, wait_ms: int) -> bool:
            if wait_ms == LOOK_MS:
                state = system.metadata.scrub_state()
                assert state is not None
                assert state.last is not None
                self.ended.append(state.last.ended_ms - began_ms)
                self.left -= 1
                if not self.left:
                    stop.set()
            return super().wait(stop, wait_ms)

    with bench.open() as system:
        clock = Waits()
        began_ms = clock.now_ms()
        scrubber(system, clock=clock).run(Event(), 2 * LOOK_MS)
        assert clock.ended == [0, 0, 2 * LOOK_MS, 2 * LOOK_MS, 4 * LOOK_MS]


class Once(LaterClock):
    """Ends the loop of a daemon after its first turn."""

    def wait(self, stop: Event, wait_ms: int) -> bool:
        stop.set()
        return super().wait(stop, wait_ms)


def test_a_lost_lease_is_a_failure_and_another_process_is_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bench.open() as system:
        one = scrubber(system, clock=Once(0))
        with system.contended_lease(LEASE_NAME):
            one.run(Event(), LOOK_MS)
        assert one.counters.failures == 0
        assert "another process scrubs" in capsys.readouterr().out

        def lost(*_: object, **__: object) -> ScrubResult:
            raise LeaseLost("lease scrub: fenced")

        monkeypatch.setattr(one, "run_once", lost)
        one.run(Event(), LOOK_MS)
        assert one.counters.failures == 1
        assert "another process scrubs" not in capsys.readouterr().out


def test_status_tells_of_scrubs(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(bench.config), "status"]
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
        assert start(words) == 0
        assert re.search(r"^scrub +never$", capsys.readouterr().out, re.MULTILINE)
        rewrite(system, row, 40)
        scrub(system)
        assert start(words) == 0
        assert re.search(r"^scrub +complete pass ended .*: 0 mended, 1 left$", capsys.readouterr().out, re.MULTILINE)
        stop = Event()
        scrubber(system).run_once(stop, watch=lambda result: stop.set() if result.blocks else None)
        assert start(words) == 0
        assert re.search(r"^scrub .* left; now at 1 of \d+ blocks: ", capsys.readouterr().out, re.MULTILINE)
        assert start([*words, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)["scrub"]
        assert (data["current"]["blocks"], data["last"]["found"]) == (1, 1)


def test_the_command(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        row = a_block(system)
    words = ["--config", str(bench.config), "scrub", "--rate", "0"]
    assert start(words) == 0
    shown = capsys.readouterr().out
    assert "problems     none" in shown
    assert "it is complete" in shown
    flip(shard_of(bench, row, 9), DATA_AT)
    assert start([*words, "--no-repair"]) == 13
    captured = capsys.readouterr()
    assert f"shard-damaged: shard 9 of block {row.block_id.hex()}" in captured.out
    assert "1 problem not mended" in captured.err
    assert start([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kinds"], data["mended"], data["complete"]) == ({"shard-damaged": 1}, 1, True)
    assert data["problems"][0]["mended"] is True
    assert data["looked_at"]["written_bytes"] == row.stripes * CHUNK
    assert start([*words, "--json", "--max-duration", "1000"]) == 0
    assert json.loads(capsys.readouterr().out)["problems_found"] == 0
    assert start([*words, "--rate", "fast"]) == 2


def test_what_is_not_repaired_is_planned(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        bench.put_some(system, 40)
        end_log(system)
        bench.produce(system)
        bench.consume(system)
        row = a_block(system)
        victim = system.metadata.placed_in(row.block_id)[0]
        rewrite(system, row, victim.extent.offset)
    whole = everything(bench)
    for shard in (3, 9):
        flip(shard_of(bench, row, shard), DATA_AT + 2 * CHUNK - 1)
    damaged = everything(bench)
    plan = tmp_path / "plan"
    words = ["--config", str(bench.config)]
    assert start([*words, "scrub", "--rate", "0", "--no-repair", "--plan", str(plan)]) == 13
    assert everything(bench) == damaged
    steps = [json.loads(line) for line in plan.read_text().splitlines()[1:-1]]
    assert [step["action"] for step in steps] == ["mend"] * 3
    assert {step["target"]["what"] for step in steps} == {
        f"shard 3 of block {row.block_id.hex()}",
        f"shard 9 of block {row.block_id.hex()}",
        f"object {victim.key}",
    }
    capsys.readouterr()
    assert start([*words, "apply", str(plan), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["steps"], done["done"], len(done["passed_over"])) == (3, 2, 1), "one step has mended both shards"
    files = {name: data for name, data in whole.items() if isinstance(data, bytes)}
    assert {name: data for name, data in everything(bench).items() if isinstance(data, bytes)} == files
    assert start([*words, "scrub", "--rate", "0"]) == 0
    assert start([*words, "apply", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["done"] == 0
    with bench.open() as system:
        all_read(bench, system)


def test_counters_that_are_wrong_are_planned(bench: Bench, tmp_path: Path) -> None:
    with bench.open() as system:
        fill(bench, system)
        gc_service(system).run_once()
    engine = create_engine(f"sqlite:///{bench.folder / 'store' / 'metadata.db'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE blocks SET dead_bytes = dead_bytes + 1 WHERE kind = 'fresh'"))
    engine.dispose()
    plan = tmp_path / "plan"
    words = ["--config", str(bench.config)]
    assert start([*words, "scrub", "--rate", "0", "--plan", str(plan)]) == 13
    assert start([*words, "apply", str(plan)]) == 0
    assert start([*words, "scrub", "--rate", "0"]) == 0


def test_an_append_that_was_torn_is_made_whole(bench: Bench) -> None:
    """Its stripe counts, because k shards have it. It must still be readable when m others are lost."""
    with bench.open() as system:
        lease = system.metadata.acquire_lease("dead", 0, 1)
        block_id = system.new_block_id()
        system.metadata.allocate_block(lease, block_id, BlockKind.FRESH, system.clock.now_ms())
        system.blocks.create(block_id, bytes(STRIPE))
        name = block_id.hex()
        paths = sorted((bench.folder / "store" / "blocks").glob(f"shard-*/{name[-1]}/{name}"))
        whole = [path.read_bytes() for path in paths]
        for path in paths[4:6]:
            with path.open("r+b") as file:
                file.seek(PAGE)
                file.write(bytes(CHUNK // PAGE * 4))  # no checksums
        system.worker.housekeeping().run_once()
        row = system.metadata.block(block_id)
        assert (row.state, row.stripes) == (BlockState.SEALED, 1)
        told, result = scrub(system)
        assert (told, result.found, result.torn) == ([], 0, 2)
        told, result = scrub(system)
        assert (told, result.torn) == ([], 0)
        assert [path.read_bytes()[PAGE:] for path in paths[4:6]] == [data[PAGE:] for data in whole[4:6]]
        for path in paths[:3]:
            path.unlink()
        assert system.blocks.read(block_id, 0, STRIPE) == bytes(STRIPE)


def test_blocks_that_cannot_be_read_because_disks_are_away_are_not_judged(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        bench.pack(system)
        folders = sorted((bench.folder / "store" / "blocks").glob("shard-*"))[:4]
        for folder in folders:
            folder.rename(folder.with_name(f"away-{folder.name}"))
        told: list[Scrubbed] = []
        result = scrubber(system).run_once(Event(), report=told.append)
        assert told == []
        assert "shards 0, 1, 2, 3 are on disks that are away" in result.unfinished[0].reason
        for folder in folders:
            folder.with_name(f"away-{folder.name}").rename(folder)


def test_each_run_gets_on_however_short_it_is(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 200)
        bench.pack(system)
        blocks = len(list(all_blocks(system.metadata)))
        assert blocks > 1
        runs = [scrubber(system).run_once(Event(), ms_max=1) for _ in range(blocks + 1)]
        assert [run.of_pass.blocks for run in runs[:2]] == [1, 2]
        assert any(run.whole for run in runs)
