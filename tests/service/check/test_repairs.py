"""A plan mends what can be mended by changes of rows, once, and nothing that has changed since."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nos_ec.cli.app import run as start
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import Corrupt, Transient
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.formats.operator_plan import Step, read_steps
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.states import BlockState
from nos_ec.engine.check.quarantine import held
from nos_ec.engine.check.repairs import Repairer, planned
from nos_ec.engine.gc.workers import LEASE_NAME
from nos_ec.engine.header_scan import scan_headers
from nos_ec.ports.metadata import BlockRow
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock, end_log
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.rig.fakes.clock import SetClock
from tests.service.check.test_check import (
    FIRST_PACKED,
    FIRST_WAITING,
    FRESH,
    check,
    fill,
    leak_block,
    leak_copy,
    rewrite,
    run,
)
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, TTL_OVER_MS, Bench
from tests.service.gc.test_gc import configure

WRONG = {
    "recount-block": f"UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1"
    f" WHERE block_id = {FRESH}",
    "wait": f"DELETE FROM waiting WHERE object_id = {FIRST_WAITING}",
    "stop-waiting": "INSERT INTO waiting"
    " SELECT randomblob(16), object_id, slot, due_ms, state, size, NULL, 0 FROM waiting LIMIT 1",
    "unqueue-copy": "INSERT INTO landing_deletions SELECT landing_id, NULL, NULL, 1, 0 FROM waiting"
    " ORDER BY object_id DESC LIMIT 1",
}


def plan_of(bench: Bench, name: str = "plan") -> Path:
    """The plan of a check that finds something."""
    plan = bench.folder / name
    assert start(["--config", str(bench.config), "check", "--plan", str(plan)]) == 13
    return plan


def actions(plan: Path) -> list[str]:
    return [json.loads(line)["action"] for line in plan.read_text().splitlines()[1:-1]]


@pytest.mark.parametrize("action", WRONG)
def test_what_is_wrong_with_rows_is_mended(bench: Bench, capfd: pytest.CaptureFixture[str], action: str) -> None:
    with bench.open() as system:
        fill(bench, system)
        blocks = list(all_blocks(system.metadata))
        run(bench, WRONG[action])
        plan = plan_of(bench)
        assert actions(plan) == [action]
        cli = Cli(bench, capfd)
        assert cli("apply", str(plan)) == {"steps": 1, "done": 1, "passed_over": [], "failed": []}
        assert check(system, read_share=1.0) == []
        assert list(all_blocks(system.metadata)) == blocks
        again = cli("apply", str(plan))
        assert (again["done"], [one["action"] for one in again["passed_over"]]) == (0, [action])
        assert "0 of 1 step done\nskipped, because its problem no longer exists" in cli.text("apply", str(plan))
        bench.settle(system)
        bench.assert_readable(system)


@pytest.mark.parametrize("change", ["size = size + 1", "state = 'queued'"])
def test_an_object_that_waits_wrongly_waits_rightly(
    bench: Bench, capfd: pytest.CaptureFixture[str], change: str
) -> None:
    with bench.open() as system:
        fill(bench, system)
        run(bench, f"UPDATE waiting SET {change} WHERE object_id = {FIRST_WAITING}")
        assert Cli(bench, capfd)("apply", str(plan_of(bench)))["done"] == 1
        assert check(system) == []
        bench.settle(system)
        bench.assert_readable(system)


def test_what_nothing_refers_to_is_deleted_after_a_day(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        copies, blocks = set(system.landing.list_ids()), set(system.blocks.list_blocks())
        leak_copy(bench, system)
        leak_block(bench, system)
        cli, plan = Cli(bench, capfd), plan_of(bench)
        assert cli("apply", str(plan))["done"] == 2
        assert check(system, read_share=1.0) == []
        block, copy = held(system.metadata)
        shown = cli("quarantine", "list")["held"]
        assert [one["kind"] for one in shown] == ["block", "landing copy"]
        assert [one["id"] for one in shown] == [block.id.hex(), copy.id.hex()]
        assert shown[0]["stripes"] == 1
        assert "in 23 h 59 min" in cli.text("quarantine", "list")
        now_ms = system.clock.now_ms()
        _reap(system, now_ms + QUARANTINE_MS // 2)
        assert {copy.id} == set(system.landing.list_ids()) - copies
        assert {block.id} == set(system.blocks.list_blocks()) - blocks
        _reap(system, now_ms + QUARANTINE_MS + 60_000)
        assert set(system.landing.list_ids()) <= copies
        assert block.id not in set(system.blocks.list_blocks())
        assert check(system) == []
        assert cli("apply", str(plan))["done"] == 0
        assert cli.text("quarantine", "list") == "nothing is in quarantine\n"
        bench.assert_readable(system)


def test_what_is_released_from_quarantine_stays(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        leak_copy(bench, system)
        leak_block(bench, system)
        cli = Cli(bench, capfd)
        cli("apply", str(plan_of(bench)))
        found = list(held(system.metadata))
        for one in found:
            assert cli("quarantine", "release", one.id.hex())["released"] == one.id.hex()
            assert "not in quarantine" in cli("quarantine", "release", one.id.hex(), exits=4)["message"]
        assert list(held(system.metadata)) == []
        _reap(system, system.clock.now_ms() + QUARANTINE_MS + 60_000)
        assert sorted(finding.kind.value for finding in check(system)) == ["block-without-row", "copy-without-owner"]
        sealed = next(all_blocks(system.metadata))
        assert "not in quarantine" in cli("quarantine", "release", sealed.block_id.hex(), exits=4)["message"]
        assert "32 hexadecimal digits" in cli("quarantine", "release", "odd", exits=2)["message"]


def test_what_is_being_deleted_is_not_released(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        leak_copy(bench, system)
        leak_block(bench, system)
        assert start(["--config", str(bench.config), "apply", str(plan_of(bench))]) == 0
        block, copy = held(system.metadata)
        assert system.metadata.end_quarantine(BlockId(block.id), block.delete_after_ms)
        assert system.metadata.doom_landing({LandingId(copy.id): None})
        cli = Cli(bench, capfd)
        for one in (block, copy):
            assert "too late" in cli("quarantine", "release", one.id.hex(), exits=5)["message"]
        assert list(held(system.metadata)) == []
        _reap(system, block.delete_after_ms + 60_000)
        assert block.id not in set(system.blocks.list_blocks())
        assert copy.id not in set(system.landing.list_ids())


def test_when_space_is_short_blocks_in_quarantine_stay_and_hide_no_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More are in quarantine than a run looks at, and their time ends sooner than the grace periods of the others."""
    configure(bench, "gc", "blocks_max_per_run = 2")
    configure(bench, "gc", 'reserve_bytes = "1MiB"')
    with bench.open() as system:
        keys = bench.put_some(system, 20)
        bench.pack(system)
        now_ms, blocks = system.clock.now_ms(), list(all_blocks(system.metadata))
        for key in keys:
            bench.delete(system, key)
        for block in blocks:
            assert system.metadata.condemn_block(block.block_id, now_ms + 2 * QUARANTINE_MS)
        for _ in range(3):
            leak_block(bench, system)
        assert start(["--config", str(bench.config), "apply", str(plan_of(bench))]) == 0
        monkeypatch.setattr(type(system.blocks), "free_bytes", lambda _: 0)
        assert gc_service(system).run_once().blocks_deleted > 0
        assert len(list(held(system.metadata))) == 3


def _reap(system: System, now_ms: int) -> None:
    clock, system.clock = system.clock, SetClock(now_ms)
    try:
        system.worker.housekeeping().run_once()
        gc_service(system).run_once()
    finally:
        system.clock = clock
        end_log(system)


def test_what_has_changed_since_is_passed_over(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        for statement in WRONG.values():
            run(bench, statement)
        leak_copy(bench, system)
        leak_block(bench, system)
        plan = plan_of(bench)
        assert sorted(actions(plan)) == sorted([*WRONG, "quarantine-block", "quarantine-copy"])
        run(
            bench,
            f"UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1 WHERE block_id = {FRESH}",
        )
        run(bench, "DELETE FROM waiting")
        run(bench, "UPDATE objects SET version = version + 1 WHERE state = 'landed'")
        for copy in set(system.landing.list_ids()) - system.metadata.landing_known(list(system.landing.list_ids())):
            system.landing.delete(copy)
        for block_id in set(system.blocks.list_blocks()) - {row.block_id for row in all_blocks(system.metadata)}:
            system.blocks.delete(block_id)
        rows = system.metadata.objects_after(0, 1000), list(all_blocks(system.metadata))
        assert Cli(bench, capfd)("apply", str(plan))["done"] == 0
        assert (system.metadata.objects_after(0, 1000), list(all_blocks(system.metadata))) == rows
        assert system.metadata.waiting_after(None, 10) == []


def test_lost_rows_are_not_counted_as_dead(bench: Bench) -> None:
    with bench.open() as system:
        fill(bench, system)
        run(bench, f"DELETE FROM objects WHERE object_id = {FIRST_PACKED}")
        assert actions(plan_of(bench)) == []


def test_plans_that_are_refused(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        run(bench, WRONG["wait"])
    cli, plan = Cli(bench, capfd), plan_of(bench)
    assert "the file exists" in cli("check", "--plan", str(plan), exits=2)["message"]
    assert "No such file" in cli("apply", str(bench.folder / "none"), exits=2)["message"]
    whole = plan.read_bytes()
    for changed, said in (
        (b"", "not a plan"),
        (whole[: whole.rindex(b"{")], "cut off"),
        (whole.replace(b"not-waiting", b"no waiting."), "changed"),
        (whole.replace(b'"store_id":"', b'"store_id":"x', 1), "changed"),
    ):
        plan.write_bytes(changed)
        assert said in cli("apply", str(plan), exits=2)["message"]
    (bench.folder / "other").mkdir()
    other = Bench(bench.folder / "other")
    initialise(other.settings())
    plan.write_bytes(whole)
    assert "is for the store" in Cli(other, capfd)("apply", str(plan), exits=2)["message"]


def test_nothing_goes_into_quarantine_while_not_all_was_looked_at(
    bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open() as system:
        fill(bench, system)
        leak_copy(bench, system)
        leak_block(bench, system)
        run(bench, WRONG["recount-block"])

        def away(*_: object) -> None:
            raise Transient("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(type(system.metadata), "columns_after", away)
            assert actions(plan_of(bench)) == ["recount-block"]
        capfd.readouterr()


@pytest.fixture
def sealed(bench: Bench) -> Iterator[tuple[System, BlockRow]]:
    """A store that has been packed, and its block with the most objects."""
    with bench.open() as system:
        fill(bench, system)
        yield system, max(all_blocks(system.metadata), key=lambda row: row.live_objects)


def lose_header(_: Bench, system: System, row: BlockRow) -> None:
    rewrite(system, row, 40)


def lose_names(_: Bench, system: System, row: BlockRow) -> None:
    header = scan_headers(system.blocks, row.block_id, row.stripes).headers[0]
    rewrite(system, row, header.names_offset + 3)


def put_an_older_shard(bench: Bench, system: System, row: BlockRow) -> None:
    """With checksums that fit it, as a disk that was restored from a copy has it."""
    path = next((bench.folder / "store" / "blocks" / "shard-09").rglob(row.block_id.hex()))
    data = bytearray(system.blocks.read(row.block_id, 0, row.size_bytes))
    whole = {one: one.read_bytes() for one in bench.folder.rglob(row.block_id.hex())}
    data[-1] ^= 1
    system.blocks.delete(row.block_id)
    system.blocks.create(row.block_id, data)
    system.blocks.seal(row.block_id)
    older = path.read_bytes()
    for one, content in whole.items():
        one.write_bytes(content)
    path.write_bytes(older)


DAMAGED_BLOCKS: dict[FindingKind, Callable[[Bench, System, BlockRow], None]] = {
    FindingKind.HEADER_DAMAGED: lose_header,
    FindingKind.NAMES_DAMAGED: lose_names,
    FindingKind.SHARDS_CONTRADICT: put_an_older_shard,
}


def scrubbed(bench: Bench, plan: Path, code: int) -> None:
    assert start(["--config", str(bench.config), "scrub", "--rate", "0", "--restart", "--plan", str(plan)]) == code


@pytest.mark.parametrize("kind", DAMAGED_BLOCKS)
def test_objects_leave_a_block_that_nothing_can_mend(
    bench: Bench, capfd: pytest.CaptureFixture[str], sealed: tuple[System, BlockRow], kind: FindingKind
) -> None:
    system, row = sealed
    DAMAGED_BLOCKS[kind](bench, system, row)
    plan, cli = bench.folder / "plan", Cli(bench, capfd)
    scrubbed(bench, plan, 13)
    capfd.readouterr()
    assert actions(plan) == ["rewrite-block"]
    step = json.loads(plan.read_text().splitlines()[1])
    assert step["bytes"] == {"read": row.size_bytes + row.live_bytes, "write": row.live_bytes, "free": row.size_bytes}
    assert cli("apply", str(plan))["done"] == 1
    assert system.metadata.block(row.block_id).state is BlockState.CONDEMNED
    assert cli("apply", str(plan))["done"] == 0
    scrubbed(bench, bench.folder / "again", 0)
    assert check(system, read_share=1.0) == []
    assert not any(one.extent.block_id == row.block_id for one in all_objects(system.metadata) if one.extent)
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_what_cannot_be_read_keeps_a_block_that_is_written_again(
    bench: Bench, capfd: pytest.CaptureFixture[str], sealed: tuple[System, BlockRow]
) -> None:
    system, row = sealed
    lost = max(system.metadata.placed_in(row.block_id), key=lambda one: one.extent.offset)
    rewrite(system, row, lost.extent.offset)
    lose_header(bench, system, row)
    refused = Cli(bench, capfd)("apply", str(plan_of(bench)), exits=12)
    assert "1 step failed" in refused["message"]
    assert [one.key for one in system.metadata.placed_in(row.block_id)] == [lost.key]
    assert system.metadata.block(row.block_id).state is BlockState.SEALED
    with pytest.raises(Corrupt):
        system.client.store().get(lost.key)
    for key in bench.acknowledged.keys() - {lost.key}:
        assert system.client.store().get(key) == bench.acknowledged[key]


def test_a_step_that_fails_stops_no_other(
    bench: Bench, capfd: pytest.CaptureFixture[str], sealed: tuple[System, BlockRow]
) -> None:
    system, row = sealed
    lose_header(bench, system, row)
    leak_copy(bench, system)
    plan, cli = plan_of(bench), Cli(bench, capfd)
    assert actions(plan) == ["rewrite-block", "quarantine-copy"]
    with system.contended_lease(LEASE_NAME):
        refused = cli("apply", str(plan), exits=12)
    assert "1 step failed" in refused["message"]
    assert [finding.kind for finding in check(system)] == [FindingKind.HEADER_DAMAGED]
    assert cli("apply", str(plan))["done"] == 1
    assert check(system) == []


def test_apply_ends_when_nothing_answers(
    bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open() as system:
        fill(bench, system)
        for _ in range(5):
            leak_copy(bench, system)
        plan, tried = plan_of(bench), []

        def away(_: object, step: Step) -> bool:
            tried.append(step)
            raise Transient("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(Repairer, "apply", away)
            assert "no answer" in Cli(bench, capfd)("apply", str(plan), exits=7)["message"]
        assert len(tried) == 3


SLOW_PUT = """
import sys, time
from io import BytesIO
from pathlib import Path
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings

put, go_on = LocalLandingStore.put, Path(sys.argv[2])

def slow(*arguments, **named):
    go_on.with_name("waits").touch()
    while not go_on.exists():
        time.sleep(0.01)
    put(*arguments, **named)

LocalLandingStore.put = slow
with open_system(load_settings(Path(sys.argv[1]), {})) as system:
    system.client.store().put(ObjectKey("b", "slow"), BytesIO(b"late"))
"""


@pytest.mark.timed
@pytest.mark.landing("store")
@pytest.mark.usefixtures("short_leases")
def test_a_copy_that_a_killed_put_wrote_after_its_reservation_is_found_and_removed(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing refers to it: the reaper has given the reservation up, and the PUT died before it could look."""
    go_on, waits = bench.folder / "go-on", bench.folder / "waits"
    with bench.open() as system, ThreadPoolExecutor(1) as pool:
        bench.put_some(system, 5)
        arguments = ("-c", SLOW_PUT, str(bench.config), str(go_on))
        slow = pool.submit(bench.run_python, *arguments, kill_at="put.landed")
        try:
            while not waits.exists() or system.metadata.deletions_after(None, 1):
                assert not slow.done(), slow.result().stderr
                system.worker.housekeeping().run_once()
                time.sleep(0.05)
        finally:
            go_on.touch()
        assert slow.result().returncode == -signal.SIGKILL, slow.result().stderr
        (found,) = check(system)
        assert found.kind is FindingKind.COPY_WITHOUT_OWNER
        assert Cli(bench, capfd)("apply", str(plan_of(bench)))["done"] == 1
        assert check(system) == []
        system.clock = LaterClock(QUARANTINE_MS + TTL_OVER_MS)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.timed
@pytest.mark.invariant(1)
@pytest.mark.parametrize("point", ["writer.appended", "writer.committed", "gc.rewritten", "gc.condemned"])
def test_killed_while_a_block_is_written_again(bench: Bench, point: str) -> None:
    """The next run does what is left of it."""
    with bench.open() as system:
        bench.put_some(system, 60)
        bench.pack(system)
        row = max(all_blocks(system.metadata), key=lambda row: row.live_objects)
        lose_header(bench, system, row)
    plan = bench.folder / "plan"
    assert bench.run("check", "--plan", str(plan)).returncode == 13
    done = bench.run("apply", str(plan), kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.stderr.decode()[-2000:]}"
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        bench.assert_readable(system)
        gc = gc_service(system)
        gc.recover()
        ((_, step),) = read_steps(plan.read_bytes().splitlines(keepends=True))
        Repairer(system.operator.checked(), system.operator.planned_mending(), gc.rewrite).apply(step)
        assert system.metadata.block(row.block_id).state is BlockState.CONDEMNED
        assert check(system, read_share=1.0) == []
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def test_blocks_of_large_objects_are_not_moved(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        bench.put(system, "large", bench.data(16 * STRIPE))
        row = next(all_blocks(system.metadata))
        lose_header(bench, system, row)
        assert actions(plan_of(bench)) == []
        assert not gc_service(system).rewrite(row.block_id)
        capfd.readouterr()
        bench.assert_readable(system)


@pytest.mark.landing("store")
def test_a_copy_whose_object_is_missing_among_what_waits_stays(bench: Bench) -> None:
    """The plan says otherwise: what was lost came back after the check, for example."""
    with bench.open() as system:
        bench.put_some(system, 5)
        (copy, *_) = (one.landing_id for one in system.metadata.waiting_after(None, 10))
        run(bench, "DELETE FROM waiting")
        step = {"landing": copy.hex()}
        found = Finding(FindingKind.COPY_WITHOUT_OWNER, "copy", step | {"bytes": len(system.landing.read(copy))})
        planned_step = planned(found)
        assert planned_step is not None
        repairer = Repairer(system.operator.checked(), system.operator.planned_mending(), lambda _: False, [copy])
        assert not repairer.apply(planned_step)
        assert list(held(system.metadata)) == []
        now_ms = system.clock.now_ms()
        (owner,) = (row for row in all_objects(system.metadata) if row.landing_id == copy)
        system.metadata.delete(owner.key, now_ms, now_ms + 1000)
        assert not repairer.apply(planned_step), "nor when it is in the trash"
        assert list(held(system.metadata)) == []
        nobodys = system.new_landing_id()
        system.landing.put(nobodys, b"nobody's")
        found = Finding(FindingKind.COPY_WITHOUT_OWNER, "copy", {"landing": nobodys.hex(), "bytes": 8})
        planned_step = planned(found)
        assert planned_step is not None
        assert repairer.apply(planned_step)
