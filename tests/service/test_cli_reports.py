"""What the command line says about a store and its configuration: figures, plans, settings, checks."""

from __future__ import annotations

import re

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec.api.access import Token
from nos_ec.cli.output import size_text, time_text
from nos_ec.cli.status import _percent
from nos_ec.composition.wiring import System
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.settings.masking import MASK

from .conftest import STRIPE, Bench
from .test_api import AUTHORISED, TOKEN, Api, app_of, fill, serve
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


def test_the_hole_ratio_is_the_same_everywhere(cli: Cli, bench: Bench, system: System) -> None:
    fill(bench, system)
    status = cli("status")
    with serve(app_of(system, Token(TOKEN)), **AUTHORISED) as client:
        api = Api(client)
        found = api("/v1/status")
        pages = api("/v1/blocks", limit=1000)["blocks"]
        metrics = dict(re.findall(r"^nos_ec_store_(\w+)_bytes ([0-9.e+]+)$", client.get("/metrics").text, re.MULTILINE))
    live, dead = float(metrics["live"]), float(metrics["dead"])
    assert 0 < dead < live
    hole_ratio = round(dead / (live + dead), 6)
    assert (status["hole_ratio"], found["hole_ratio"]) == (hole_ratio, hole_ratio)
    assert hole_ratio == round(
        sum(b["dead_bytes"] for b in pages) / sum(b["live_bytes"] + b["dead_bytes"] for b in pages), 6
    )
    for page in pages:
        row = system.metadata.block(BlockId(bytes.fromhex(page["block"])))
        assert page["hole_ratio"] == round(row.hole_ratio, 6)
    parts = ("utilisation", "dead_ratio", "overhead_ratio")
    assert sum(status[part] for part in parts) == pytest.approx(1, abs=1e-5)
    assert [status[part] for part in parts] == [found[part] for part in parts]
    text = cli.text("status")
    size = live + dead + status["overhead_bytes"]
    assert f"{dead / size:.2%}  {size_text(dead)}, hole ratio {dead / (live + dead):.2%}" in text


def test_shares_are_rounded_once() -> None:
    assert f"{round(0.1234499996, 6):.2%}" == "12.35%", "what rounding to six digits first would make of it"
    assert _percent(1_234_499_996, 10**10) == "12.34%"
    assert _percent(0, 0) == "-"


def test_settings_are_shown_whole_and_without_passwords(
    cli: Cli, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not cut at the width of a terminal that is not there."""
    monkeypatch.setenv("COLUMNS", "40")
    long = "/srv/" + "long-name-" * 30
    servers = ",".join(f"broker-{number}.example.org:9092" for number in range(20))
    monkeypatch.setenv("NOS_EC_STORE__ROOT", long)
    monkeypatch.setenv("NOS_EC_KAFKA__SERVERS", servers)
    monkeypatch.setenv("NOS_EC_KAFKA__OPTIONS", '{"x.[red]": "[bold]y", "ssl.key.pem": "hunter2"}')
    monkeypatch.setenv("NOS_EC_KAFKA__SECRETS", '{"sasl.password": "hunter2"}')
    monkeypatch.setenv("NOS_EC_API__TOKEN", "hunter2-hunter2-hunter2")
    monkeypatch.setenv(
        "NOS_EC_STORE__METADATA_URL", "mysql+pymysql://nos:hunter2@db.example.org:3306/nos_ec?ssl_ca=/a.pem"
    )
    text = cli.text("config", "show")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)
    assert lines["store.root"] == long
    assert lines["kafka.servers"] == servers
    assert lines["store.metadata_url"] == f"mysql+pymysql://nos:{MASK}@db.example.org:3306/nos_ec?ssl_ca=/a.pem"
    assert "'x.[red]': '[bold]y'" in lines["kafka.options"], "not taken for markup"
    assert "hunter2" not in text
    assert cli("config", "show")["store"]["metadata_url"] == lines["store.metadata_url"]
    assert "hunter2" not in str(cli("config", "show"))
