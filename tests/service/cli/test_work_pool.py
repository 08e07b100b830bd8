"""Commands with --processes: the same result as with one process, and a clean end if a process is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.cli.app import run as start
from nos_ec.cli.operator.work_pool import block_pieces, work_pool
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Corrupt, Transient
from nos_ec.core.formats.dump_format import DumpContent, DumpHead, DumpPage, read_dump
from nos_ec.engine.check import objects
from nos_ec.engine.dump import dumper, rebuild_input, rebuild_reads, rebuilder
from nos_ec.engine.dump.rebuild_input import RebuildInput
from nos_ec.ports.metadata import ObjectColumns
from tests.service.check.test_check import FIRST_PACKED, FIRST_WAITING, LARGE, K, fill, run
from tests.service.cli.test_cli import Cli, cli  # noqa: F401
from tests.service.conftest import WAIT_S_MAX, Bench
from tests.service.dump.test_rebuild import lose_database
from tests.service.dump.test_rebuild_kills import around_a_dump, found

DAMAGE = (
    f"UPDATE objects SET version = version + 1 WHERE object_id = {FIRST_PACKED} + 40",
    f"UPDATE objects SET size = size + 1 WHERE object_id = {LARGE}",
    "UPDATE objects SET size = 7 WHERE state = 'empty'",
    f"DELETE FROM waiting WHERE object_id = {FIRST_WAITING}",
    "UPDATE objects SET state = 'queued' WHERE object_id = (SELECT max(object_id) FROM objects WHERE state = 'packed')",
    "UPDATE blocks SET dead_bytes = dead_bytes + 1 WHERE block_id = (SELECT max(block_id) FROM blocks)",
    f"UPDATE objects SET block_id = zeroblob(16) WHERE object_id = {FIRST_PACKED} + 6",
)


def filled(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)


def checked(bench: Bench, capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a check reports, which exits with 13."""
    capfd.readouterr()
    assert start(["--config", str(bench.config), "check", "--json", *arguments]) == 13
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def content(path: Path) -> list[DumpContent]:
    """The pages and the end of a dump."""
    with path.open("rb") as file:
        return [one for one in read_dump(file.read) if not isinstance(one, DumpHead)]


@pytest.mark.parametrize("arguments", [(), ("--read-data", "100%")])
def test_a_check_finds_the_same_in_the_same_order(
    bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> None:
    filled(bench)
    for one in DAMAGE:
        run(bench, one)
    monkeypatch.setattr(objects, "PAGE_ROWS", 3)
    monkeypatch.setattr(objects, "RANGE_PAGES", 2)
    alone = checked(bench, capfd, *arguments)
    assert {K.ROW_INVALID, K.PARTS_WRONG, K.NOT_WAITING, K.BLOCK_COUNTERS, K.BLOCK_ROW_MISSING} <= alone["kinds"].keys()
    assert checked(bench, capfd, *arguments, "--processes", "3") == alone
    assert multiprocessing.active_children() == []


def test_a_dump_has_the_same_pages(
    bench: Bench,
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    filled(bench)
    monkeypatch.setattr(dumper, "PAGE_ROWS", 7)
    monkeypatch.setattr(dumper, "RANGE_PAGES", 1)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    cli("metadata", "dump", "--to", str(alone))
    made = cli("metadata", "dump", "--to", str(shared), "--processes", "2")["dumped"]
    pages = [one for one in content(alone) if isinstance(one, DumpPage) and one.table == "objects"]
    assert len(pages) > 10
    assert content(shared) == content(alone)
    stored = cli("metadata", "dump", "--processes", "2")["dumped"]
    assert stored["rows"]["objects"] == made["rows"]["objects"] == sum(page.rows for page in pages)


def test_a_range_ends_where_it_should(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        ids = system.metadata.columns_after(0, 9999).object_id
        pages = dumper.object_pages(system.metadata, ids[3], ids[40])
        assert [one for page in pages for one in page.columns["object_id"]] == list(ids[4:41])


def test_a_range_is_read_with_one_query_for_each_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further one, beyond the end of the range, would cost a tenth to a fifth more."""
    for module in (dumper, objects, rebuild_input):
        monkeypatch.setattr(module, "PAGE_ROWS", 7)
    with bench.open() as system:
        fill(bench, system)
        ids = system.metadata.columns_after(0, 9999).object_id
        asked: list[int] = []
        columns_after = type(system.metadata).columns_after

        def counted(metadata: SqlMetadata, after: int, limit: int) -> ObjectColumns:
            asked.append(after)
            return columns_after(metadata, after, limit)

        monkeypatch.setattr(SqlMetadata, "columns_after", counted)
        checked_parts = system.operator.checked()
        lost = RebuildInput(system.metadata, system.blocks, checked_parts.landing, None, system.clock)
        for read in (
            lambda *ids: dumper.object_pages(system.metadata, *ids),
            checked_parts.object_look().pages_between,
            lost.columns_between,
        ):
            asked.clear()
            for _ in read(ids[3], ids[17]):
                pass
            assert asked == [ids[3], ids[10]]


def test_blocks_of_many_objects_are_pieces_of_their_own(bench: Bench) -> None:
    """Otherwise one process would look at all blocks of a store of 2 x 10^5 small objects."""
    with bench.open() as system:
        fill(bench, system)
        row = system.metadata.list_blocks(None, 1)[0]
    objects_of = (3, 20_000, 9_999, 1, *[0] * 9)
    rows = [replace(row, live_objects=objects) for objects in objects_of]
    pieces = list(block_pieces(rows))
    assert [[one.live_objects for one in piece] for piece in pieces] == [[3, 20_000], [9_999, 1], [0] * 8, [0]]


def _kill(system: System, item: int) -> int:
    assert system.store_id
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def _fail(system: System, item: int) -> int:
    assert system.store_id
    raise Corrupt(f"item {item}")


def _sleep(_system: System, item: int) -> int:
    if item:
        time.sleep(WAIT_S_MAX)
    return os.getpid()


def _work(bench: Bench, work: Callable[[System, int], int]) -> None:
    with bench.open() as system, work_pool(system.settings, 2) as pool:
        assert pool is not None
        list(pool.in_order(work, range(9)))


def test_a_killed_process_is_reported(bench: Bench) -> None:
    with pytest.raises(Transient, match="was killed"):
        _work(bench, _kill)
    assert multiprocessing.active_children() == []


def test_errors_are_raised(bench: Bench) -> None:
    with pytest.raises(Corrupt, match="item 0"):
        _work(bench, _fail)
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_all(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(bench)
    assert multiprocessing.active_children() == []


def _interrupted(bench: Bench) -> None:
    begun_s = 0.0
    try:
        with bench.open() as system, work_pool(system.settings, 2) as pool:
            assert pool is not None
            assert next(pool.in_order(_sleep, range(2))) != os.getpid()
            begun_s = time.monotonic()
            raise KeyboardInterrupt
    finally:
        assert time.monotonic() - begun_s < WAIT_S_MAX / 2


def test_processes_end_with_their_command(bench: Bench) -> None:
    """They do not wait forever for work if the command is killed."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    with bench.open() as system:
        command = context.Process(target=_command, args=(system.settings, sending))
        command.start()
        assert receiving.poll(WAIT_S_MAX)
        worker = receiving.recv()
        command.kill()
        command.join()
    deadline_s = time.monotonic() + WAIT_S_MAX
    while Path(f"/proc/{worker}/cmdline").exists() and b"spawn" in Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _command(settings: Any, sending: Any) -> None:
    with work_pool(settings, 2) as pool:
        assert pool is not None
        sending.send(next(pool.in_order(_sleep, [0])))
        time.sleep(WAIT_S_MAX)


@pytest.mark.parametrize("repair", [False, True])
def test_a_scrub_finds_and_mends_the_same(bench: Bench, cli: Cli, tmp_path: Path, repair: bool) -> None:  # noqa: F811
    filled(bench)
    shards = sorted(
        path for path in (bench.folder / "store" / "blocks").rglob("*") if path.is_file() and path.suffix != ".json"
    )
    for path in shards[::7]:
        damaged = bytearray(path.read_bytes())
        if damaged:
            damaged[len(damaged) // 2] ^= 1
            path.write_bytes(damaged)
    before = tmp_path / "before"
    shutil.copytree(bench.folder / "store", before)
    results = []
    for processes in ("1", "3"):
        shutil.rmtree(bench.folder / "store")
        shutil.copytree(before, bench.folder / "store")
        results.append(scrubbed(bench, cli, "--processes", processes, *(() if repair else ("--no-repair",))))
    alone, shared = results
    assert alone["problems_found"] > 1
    assert alone["complete"]
    assert bool(alone["mended"]) is repair
    for result in results:
        for name in ("began_ms", "ended_ms"):
            assert result["pass"].pop(name)
    assert shared == alone


def rebuilt(bench: Bench, cli: Cli, *arguments: str) -> tuple[Any, ...]:  # noqa: F811
    """What a rebuild reports and lists, and the rows that it makes."""
    lose_database(bench)
    listed = bench.folder / "list"
    report = cli("metadata", "rebuild", "--list", str(listed), *arguments)["rebuilt"]
    return report, listed.read_text(), *found(bench)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumper, "PAGE_ROWS", 20)
    monkeypatch.setattr(rebuild_input, "SEARCHED_ROWS", 30)
    monkeypatch.setattr(rebuilder, "BLOCKS_AT_A_TIME", 3)


@pytest.mark.usefixtures("small_pages")
def test_a_rebuild_makes_the_same_rows(bench: Bench, cli: Cli) -> None:  # noqa: F811
    around_a_dump(bench, cli)
    alone = rebuilt(bench, cli)
    report, listed, objects, _ = alone
    assert report["to_look_at"]["gone"]
    assert report["placed"]["moved"]
    assert listed
    assert objects
    assert rebuilt(bench, cli, "--processes", "3") == alone
    assert rebuilt(bench, cli, "--without-dump", "--processes", "2") == rebuilt(bench, cli, "--without-dump")
    assert multiprocessing.active_children() == []


class _Calls:
    made = 0


def _killed_page(stores: RebuildInput, work: tuple[bytes, bool]) -> rebuild_reads.PageToLoad:
    _Calls.made += 1
    if _Calls.made == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return rebuild_reads.page_to_load(stores, work)


def _killed_range(_stores: RebuildInput, _ids: tuple[int, int]) -> rebuild_reads.PlacesOfRange:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(("part", "killed"), [("page_to_load", _killed_page), ("places_of_range", _killed_range)])
def test_a_rebuild_continues_after_a_killed_process(
    bench: Bench,
    cli: Cli,  # noqa: F811
    part: str,
    killed: Callable[..., Any],
) -> None:
    around_a_dump(bench, cli)
    _, *alone = rebuilt(bench, cli)
    lose_database(bench)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuilder, part, killed)
        error = cli("metadata", "rebuild", "--processes", "2", exits=7)
    assert "was killed" in error["message"]
    assert multiprocessing.active_children() == []
    listed = bench.folder / "list"
    report = cli("metadata", "rebuild", "--list", str(listed), "--processes", "2")["rebuilt"]
    assert [listed.read_text(), *found(bench)] == alone
    if part == "places_of_range":
        assert report["loaded"] == 0, "the pages were loaded again"


def scrubbed(bench: Bench, cli: Cli, *arguments: str) -> dict[str, Any]:  # noqa: F811
    """What a scrub reports, whether or not it leaves damage."""
    assert start(["--config", str(bench.config), "scrub", "--rate", "0", "--json", *arguments]) in (0, 13)
    found: dict[str, Any] = json.loads(cli._capfd.readouterr().out.splitlines()[-1])
    return found
