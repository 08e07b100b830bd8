"""What the command line says about a store and its configuration: figures, plans, settings, checks."""

from __future__ import annotations

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec.cli.output import size_text, time_text
from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey

from .conftest import STRIPE, Bench
from .test_cli import Cli


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def test_a_plan_says_where_dead_bytes_wait(cli: Cli, bench: Bench, system: System) -> None:
    """After nearly everything was deleted, "0 blocks" alone looks like a defect."""
    bench.config.write_text(bench.config.read_text().replace("block_grace_ms = 0", "block_grace_ms = 600000"))
    with consumer_service(system) as consumer:
        for name in "abcdefgh":
            bench.put(system, name, bench.data(STRIPE // 2))
        bench.produce(system)
        consumer.drain(make_room=lambda: False)
        for name in "abcdefg":
            system.store().delete(ObjectKey("b", name))
        text = cli.text("gc", "plan")
        assert "0 blocks" in text
        (line,) = [line for line in text.splitlines() if line.startswith("not now: ")]
        assert line.startswith(f"not now: {size_text(7 * STRIPE // 2)} dead in ")
        assert "still open: sealed when full, or when the writer ends" in line
    system.store().delete(ObjectKey("b", "h"))
    assert cli("gc", "plan")["waiting"] == []
    condemned = cli("gc", "run", "--apply")["blocks_condemned"]
    assert condemned
    (waiting,) = cli("gc", "plan")["waiting"]
    assert (waiting["reason"], waiting["blocks"]) == ("condemned", condemned)
    assert waiting["dead_bytes"] == cli("status")["stripes"] * STRIPE
    assert f"deleted by a run after the grace period, the first from {time_text(waiting['until_ms'])}" in cli.text(
        "gc", "plan"
    )


def test_a_loop_without_apply_is_refused(cli: Cli) -> None:
    assert "needs --apply" in cli("gc", "run", "--loop", exits=2)["message"]
    assert cli("gc", "run", "--once")["blocks"] == []
