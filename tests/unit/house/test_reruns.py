"""Which tests run again, and what the report says about them. Each case is a run of pytest in a separate folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rig.reruns import AGAIN_MAX, FLAKY_MAX

pytest_plugins = ["pytester"]

CONFIGURATION = """
[pytest]
addopts = -ra --strict-markers --import-mode=importlib -p tests.rig.reruns
markers =
    real: needs a server
    timed: in real time
"""

COUNT = '''
import pathlib
import pytest

def run_of(name):
    """How often this test was called, with this time."""
    path = pathlib.Path(name)
    path.write_text(path.read_text() + "." if path.exists() else ".")
    return len(path.read_text())
'''


def flaky(name: str, marker: str = "real") -> str:
    """A test that fails the first time."""
    return f"""
@pytest.mark.{marker}
def test_{name}():
    print("said by {name}")
    assert run_of("{name}") == 2, "first time of {name}"
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without the plugins of libraries, whose import takes longer than everything else."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(CONFIGURATION)
    return pytester.path


def run(pytester: pytest.Pytester, source: str, *options: str) -> tuple[int, str]:
    """(exit code, output) of pytest with these tests in tests/real."""
    path = pytester.path / "tests" / "real" / "test_it.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(COUNT + source)
    interrupts = "KeyboardInterrupt" in source
    done = (pytester.runpytest_subprocess if interrupts else pytester.runpytest_inprocess)(*options)
    return int(done.ret), done.stdout.str()


def closing_line(output: str) -> str:
    """The last line of pytest, without the time."""
    found = re.fullmatch(r"=+ (.*) in [\d.]+s.* =+", output.splitlines()[-1])
    assert found, output
    return found[1]


@pytest.mark.parametrize("marker", ["real", "timed"])
def test_a_test_that_passes_alone_is_flaky_with_its_traceback(
    pytester: pytest.Pytester, folder: Path, marker: str
) -> None:
    code, output = run(pytester, flaky("one", marker) + "def test_other(): pass\n")
    assert code == 0
    assert closing_line(output) == "1 passed, 1 flaky"
    summary = output.partition("FLAKY: failed, and passed when run again alone")[2]
    assert "first time of one" in summary
    assert "said by one" in summary
    assert re.search(r"- second run -+\npassed in \d+\.\d s", summary)
    assert "FLAKY tests/real/test_it.py::test_one" in summary
    assert (folder / "one").read_text() == ".."


def test_a_test_without_a_marker_never_runs_again(pytester: pytest.Pytester, folder: Path) -> None:
    code, output = run(pytester, "def test_one(): assert run_of('one') == 2\n")
    assert code == 1
    assert closing_line(output) == "1 failed"
    assert (folder / "one").read_text() == "."


@pytest.mark.parametrize("kind", ["unit", "contract"])
def test_no_unit_or_contract_test_may_have_a_marker(pytester: pytest.Pytester, folder: Path, kind: str) -> None:
    path = folder / "tests" / kind / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(COUNT + flaky("one"))
    done = pytester.runpytest_inprocess()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert f"no test of {kind} has a marker" in done.stderr.str()


def test_a_test_that_fails_twice_has_failed_with_both_tracebacks(pytester: pytest.Pytester, folder: Path) -> None:
    source = "@pytest.mark.real\ndef test_one(): assert not 1, f'run {run_of(\"one\")}'\n"
    code, output = run(pytester, source)
    assert code == 1
    assert closing_line(output) == "1 failed"
    failures = output.partition("= FAILURES =")[2]
    assert "AssertionError: run 1" in failures
    assert "AssertionError: run 2" in failures
    assert "FLAKY" not in output
    assert (folder / "one").read_text() == ".."


@pytest.mark.parametrize("count", [FLAKY_MAX, FLAKY_MAX + 1])
def test_more_than_two_flaky_tests_fail_the_run(pytester: pytest.Pytester, folder: Path, count: int) -> None:
    code, output = run(pytester, "".join(flaky(f"one_{number}") for number in range(count)))
    if count == FLAKY_MAX:
        assert (code, closing_line(output)) == (0, f"{count} flaky")
    else:
        assert (code, closing_line(output)) == (1, f"1 error, {count} flaky")
        assert f"{count} tests passed only when they ran again; at most {FLAKY_MAX} may" in output
    assert output.count("\nFLAKY tests/real") == count


def test_the_second_run_comes_after_all_others_and_has_separate_servers(
    pytester: pytest.Pytester, folder: Path
) -> None:
    """The session's server is broken by a test; it has stopped before the second run starts another."""
    source = """
@pytest.fixture(scope="session")
def server():
    with open("diary", "a") as diary:
        diary.write("start ")
    server = {"broken": False}
    yield server
    with open("diary", "a") as diary:
        diary.write("stop ")

@pytest.mark.real
def test_one(server):
    assert not server["broken"]
    server["broken"] = run_of("one") == 1
    assert not server["broken"]

@pytest.mark.real
def test_two(server):
    with open("diary", "a") as diary:
        diary.write("two ")
"""
    code, output = run(pytester, source)
    assert (code, closing_line(output)) == (0, "1 passed, 1 flaky")
    assert (folder / "diary").read_text() == "start two stop start stop "


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_failing_fixtures_are_tried_again(pytester: pytest.Pytester, folder: Path, when: str) -> None:
    failing = "assert run_of('fixture') == 2"
    source = f"""
@pytest.fixture
def server():
    {failing if when == "setup" else "pass"}
    yield
    {failing if when == "teardown" else "pass"}

@pytest.mark.real
def test_one(server): pass
"""
    code, output = run(pytester, source)
    assert code == 0
    assert re.fullmatch("(1 passed, )?1 flaky", closing_line(output))
    assert (folder / "fixture").read_text() == ".."


def test_a_test_that_is_skipped_or_ends_pytest_the_second_time_has_failed(
    pytester: pytest.Pytester, folder: Path
) -> None:
    source = """
@pytest.mark.real
def test_skipped():
    if run_of("skipped") == 2:
        pytest.skip("no server")
    assert not 1, "first time of skipped"

@pytest.mark.real
def test_zz_ended():
    if run_of("ended") == 2:
        import os
        os._exit(7)
    assert not 1, "first time of ended"
"""
    code, output = run(pytester, source)
    assert (code, closing_line(output)) == (1, "2 failed")
    failures = output.partition("= FAILURES =")[2]
    assert "first time of skipped" in failures
    assert "first time of ended" in failures
    assert "no result: pytest ended with 7" in failures


def test_no_test_runs_again_when_very_many_fail(pytester: pytest.Pytester, folder: Path) -> None:
    code, output = run(pytester, "".join(flaky(f"one_{number}") for number in range(AGAIN_MAX + 1)))
    assert (code, closing_line(output)) == (1, f"{AGAIN_MAX + 1} failed")
    assert "not tried: more than" in output
    assert (folder / "one_0").read_text() == "."


@pytest.mark.parametrize("option", ["--no-reruns", "-x"])
def test_nothing_runs_again_when_the_run_stops_at_the_first_failure(
    pytester: pytest.Pytester, folder: Path, option: str
) -> None:
    code, output = run(pytester, flaky("one"), option)
    assert (code, closing_line(output)) in [(1, "1 failed"), (2, "1 failed")]
    assert (folder / "one").read_text() == "."


def test_postponed_tests_have_failed_when_the_run_is_interrupted(pytester: pytest.Pytester, folder: Path) -> None:
    code, output = run(pytester, flaky("one") + "def test_two(): raise KeyboardInterrupt\n")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "first time of one" in output
    assert closing_line(output) == "1 failed"
