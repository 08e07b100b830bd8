"""A plan mends what can be mended by changes of rows, once, and nothing that has changed since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nos_ec.cli.app import run as start
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import Transient
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.engine.check.quarantine import held
from nos_ec.engine.check.repairs import Repairer, planned
from nos_ec.testing.audit import all_blocks
from nos_ec.testing.clock import SetClock
from nos_gc.assemble import gc_service
from tests.rig.at_rest import end_log

from .conftest import Bench
from .test_check import FIRST_PACKED, FIRST_WAITING, FRESH, check, fill, leak_block, leak_copy, run
from .test_cli import Cli
from .test_gc import configure

WRONG = {
    "recount-block": f"UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1"
    f" WHERE block_id = {FRESH}",
    "wait": f"DELETE FROM waiting WHERE object_id = {FIRST_WAITING}",
    "stop-waiting": "INSERT INTO waiting SELECT randomblob(16), object_id, slot, due_ms, state, size FROM waiting"
    " LIMIT 1",
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
        assert cli("apply", str(plan)) == {"steps": 1, "done": 1, "passed_over": []}
        assert check(system, read_share=1.0) == []
        assert list(all_blocks(system.metadata)) == blocks
        again = cli("apply", str(plan))
        assert (again["done"], [one["action"] for one in again["passed_over"]]) == (0, [action])
        assert "0 of 1 step done\npassed over, because it no longer holds" in cli.text("apply", str(plan))
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
        system.housekeeping().run_once()
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
            patch.setattr(type(system.metadata), "objects_after", away)
            assert actions(plan_of(bench)) == ["recount-block"]
        capfd.readouterr()


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
        repairer = Repairer(system.checked(), lambda *_: False)
        assert not repairer.apply(planned_step)
        assert list(held(system.metadata)) == []
        nobodys = system.new_landing_id()
        system.landing.put(nobodys, b"nobody's")
        found = Finding(FindingKind.COPY_WITHOUT_OWNER, "copy", {"landing": nobodys.hex(), "bytes": 8})
        planned_step = planned(found)
        assert planned_step is not None
        assert repairer.apply(planned_step)
