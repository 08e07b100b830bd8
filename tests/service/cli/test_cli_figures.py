"""What commands say about themselves and their work: summaries, hints, figures."""

from __future__ import annotations

import json

import pytest

from nos_ec.cli.app import run
from nos_ec.composition.wiring import System
from tests.service.conftest import CHUNK, Bench


@pytest.mark.parametrize(
    "group", [(), ("gc",), ("config",), ("bench",), ("shards",), ("simulate",), ("trash",), ("metadata",)], ids=" ".join
)
def test_summaries_are_not_cut(
    group: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal has 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*group, "--help"]) == 0
    listed = capfd.readouterr().out.partition("Commands:")[2]
    assert listed.strip()
    assert "..." not in listed


def test_simulate_reads_sizes_from_stdin(bench: Bench) -> None:
    (bench.folder / "sizes").write_text("100\n4000\n\n# none\n700\n" * 300)
    given = bench.run("simulate", "--sizes", str(bench.folder / "sizes"), "--json")
    piped = bench.run("simulate", "--sizes", "-", "--json", stdin=(bench.folder / "sizes").read_bytes())
    assert (given.returncode, piped.returncode) == (0, 0), piped.stderr
    changing = {"sizes", "objects_per_s"}
    figures = [{k: v for k, v in json.loads(done.stdout).items() if k not in changing} for done in (given, piped)]
    assert figures[0] == figures[1]
    for wrong, says in ((b"1\nx\n", "standard input, line 2"), (b"", "no sizes"), (b"\xff", "not text")):
        done = bench.run("simulate", "--sizes", "-", "--json", stdin=wrong)
        assert done.returncode == 2
        assert says in json.loads(done.stderr)["message"]


def test_simulate_tells_raw_bytes_per_user_byte(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """The figures are those of the configured geometry."""
    bench.config.write_text(bench.config.read_text().replace("[geometry]", "[geometry]\nk = 4\nm = 2"))
    command = ["--config", str(bench.config), "simulate", "--workload", "W2", "--objects", "3000", "--window", "100"]
    assert run([*command, "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    for name in ("", "_with_names"):
        raw = figures[f"raw_bytes_per_user_byte{name}"]
        assert raw * figures[f"utilisation{name}"] == pytest.approx(6 / 4)
    assert 1.5 < figures["raw_bytes_per_user_byte"] < figures["raw_bytes_per_user_byte_with_names"] < 3
    assert run(command) == 0
    assert "3.000 with three replicas" in " ".join(capfd.readouterr().out.split())


def test_simulate_gc(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """Figures as JSON; for people, in lines that fit a terminal."""
    small = ["--blocks", "30", "--block-objects", "16", "--days", "90"]
    command = ["--config", str(bench.config), "simulate", "gc", *small]
    assert run([*command, "--workload", "A", "--space-amp", "1.4", "--seed", "3", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert (figures["workload"], figures["policy"], figures["streams"], figures["seed"]) == ("A", "space-target", 4, 3)
    assert figures["target_space_amplification"] == 1.4
    assert 1 < figures["space_amplification"] <= 1.4
    assert 1 < figures["write_amplification"] < 3
    assert 1.9 < figures["bound_write_amplification"] < 2.3
    assert figures["raw_bytes_per_live_byte"] == pytest.approx(11 / 8 * figures["space_amplification"], abs=1e-5)
    assert [set(period) for period in figures["periods"]] == [
        {"until_day", "space_amplification", "write_amplification", "live_blocks"}
    ] * 10
    for options in (["--policy", "price"], ["--policy", "threshold"], ["--workload", "D"]):
        assert run([*command, "--workload", "C", *options]) == 0
        text = capfd.readouterr().out
        assert "write amplification" in text
        assert max(map(len, text.splitlines())) <= 80
        assert ("no bound is known" in text) == ("D" in options)
    for wrong in (["--space-amp", "1"], ["--workload", "W1"], ["--days", "0"], ["--hole-ratio-min", "2"]):
        policy = ["--policy", "threshold"] if "--hole-ratio-min" in wrong else []
        assert run([*command, *wrong, *policy, "--json"]) == 2
        assert json.loads(capfd.readouterr().err)["error"] == "InvalidInput"


def test_a_consumer_says_that_a_producer_comes_first(
    bench: Bench, system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "c"):
        bench.put(system, name, bench.data(CHUNK))
    consume = ["--config", str(bench.config), "consumer", "--once"]
    assert run(consume) == 0
    assert "2 landed objects not published yet: run `nos-ec producer --once`" in capfd.readouterr().out
    bench.produce(system)
    assert run([*consume, "--json"]) == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (told["packed"], told["unpublished"]) == (2, 0)
