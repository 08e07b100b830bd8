"""A plan mends what can be mended by changes of rows, once, and nothing that has changed since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nos_ec.cli.app import run as start
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.ids import in_log
from nos_ec.engine.check.repairs import GRACE_MS
from nos_ec.testing.audit import all_blocks
from nos_ec.testing.clock import SetClock
from tests.rig.at_rest import end_log

from .conftest import Bench
from .test_check import FIRST_PACKED, FIRST_WAITING, FRESH, check, fill, leak_copy, run
from .test_cli import Cli

WRONG = {
    "recount-block": f"UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1"
    f" WHERE block_id = {FRESH}",
    "wait": f"DELETE FROM waiting WHERE object_id = {FIRST_WAITING}",
    "stop-waiting": "INSERT INTO waiting SELECT randomblob(16), object_id, slot, due_ms, state, size FROM waiting"
    " LIMIT 1",
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


def test_a_copy_without_owner_is_deleted_after_a_grace(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        leak_copy(bench, system)
        before = set(system.landing.list_ids())
        plan = plan_of(bench)
        assert Cli(bench, capfd)("apply", str(plan))["done"] == 1
        assert check(system) == []
        now_ms = system.clock.now_ms()
        _reap(system, now_ms + GRACE_MS // 2)
        assert set(system.landing.list_ids()) == before
        _reap(system, now_ms + GRACE_MS + 60_000)
        (gone,) = before - set(system.landing.list_ids())
        assert not in_log(gone)
        assert check(system) == []
        assert Cli(bench, capfd)("apply", str(plan))["done"] == 0
        bench.assert_readable(system)


def _reap(system: System, now_ms: int) -> None:
    clock, system.clock = system.clock, SetClock(now_ms)
    try:
        system.housekeeping().run_once()
    finally:
        system.clock = clock
        end_log(system)


def test_what_has_changed_since_is_passed_over(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        fill(bench, system)
        for statement in WRONG.values():
            run(bench, statement)
        leak_copy(bench, system)
        plan = plan_of(bench)
        assert sorted(actions(plan)) == ["queue-copy", "recount-block", "stop-waiting", "wait"]
        run(
            bench,
            f"UPDATE blocks SET live_bytes = live_bytes - 1, dead_bytes = dead_bytes + 1 WHERE block_id = {FRESH}",
        )
        run(bench, "DELETE FROM waiting")
        run(bench, "UPDATE objects SET version = version + 1 WHERE state = 'landed'")
        for copy in set(system.landing.list_ids()) - system.metadata.landing_known(list(system.landing.list_ids())):
            system.landing.delete(copy)
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
