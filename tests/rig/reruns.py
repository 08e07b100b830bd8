"""A pytest plugin that reruns failed tests on real servers or in real time once, alone, after all others.

The failure of a test with a marker of MARKERS is put off. When the other tests have finished and their servers have
stopped, the tests that were put off run in a separate pytest, with new fixtures and servers, so that they do not meet a
server that the first run broke. A test that passes there is FLAKY, and the first run's traceback is at the end of the
report. A test that fails again has failed, with both tracebacks. More than FLAKY_MAX flaky tests are an error of the
whole run.

Why a plugin and not a library: docs/adr/0014-tests-that-run-again.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

MARKERS = ("real", "timed")
NEVER = ("unit", "contract")
"""Folders of tests that depend on nothing outside. Their tests have none of MARKERS."""
FLAKY_MAX = 2
"""Up to this many flaky tests are only reported. More fail the run."""
AGAIN_MAX = 10
"""If more tests fail than this, something else is wrong, and none of them is rerun."""

PUT_OFF, FLAKY = "put off", "flaky"
"""Outcomes of reports, in addition to pytest's."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("reruns")
    group.addoption("--no-reruns", action="store_true", help=f"a failed test of {MARKERS} does not run once more")
    group.addoption("--reruns-results", type=Path, metavar="FILE", help="this is the second run; write reports to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """In the second run, record its results. In the first run, put failures off, unless the run is to stop after some
    failures or in a debugger."""
    results: Path | None = config.getoption("--reruns-results")
    if results is not None:
        config.pluginmanager.register(SecondRun(config, results))
    elif not config.getoption("--no-reruns") and not config.getoption("maxfail") and not config.getoption("usepdb"):
        config.pluginmanager.register(FirstRun(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse the markers where a test must never run again. Raises pytest.UsageError."""
    for item in items:
        wrong = sorted(set(NEVER) & set(item.path.parent.parts))
        if may_run_again(item) and wrong:
            raise pytest.UsageError(f"{item.nodeid}: no test of {wrong[0]} has a marker of {MARKERS}")


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """The letters and words for the outcomes. A test that is put off does not count yet."""
    if report.outcome == PUT_OFF:
        return "", "A", "AGAIN"
    return (FLAKY, "K", "FLAKY") if report.outcome == FLAKY else None


def may_run_again(item: pytest.Item) -> bool:
    """Whether the test depends on something outside."""
    return any(item.get_closest_marker(name) for name in MARKERS)


class SecondRun:
    """In the second run: writes all reports as lines of JSON."""

    def __init__(self, config: pytest.Config, results: Path) -> None:
        self._config = config
        self._results = results

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the report at once, because the run may be killed."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._results.open("a") as file:
            file.write(json.dumps(data) + "\n")


class FirstRun:
    """In the first run: the failures that were put off, by test, and their outcomes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._put_off: dict[str, list[pytest.TestReport]] = {}
        self._flaky: list[tuple[list[pytest.TestReport], float]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put a failure off, in the process where the test runs."""
        report = yield
        if report.failed and may_run_again(item):
            report.outcome = PUT_OFF  # type: ignore[assignment]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what was put off."""
        if report.outcome == PUT_OFF:
            self._put_off.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Rerun after all tests, and after the servers of this run have stopped. If the run was interrupted, the
        failures stand."""
        if hasattr(self._config, "workerinput"):
            return (yield)  # the process that gathers reports does the rest
        try:
            result = yield
        except BaseException:
            for failures in self._put_off.values():
                self._failed(failures, "the run was interrupted before that")
            raise
        if len(self._put_off) > AGAIN_MAX:
            for failures in self._put_off.values():
                self._failed(failures, f"not tried: more than {AGAIN_MAX} tests failed")
        elif self._put_off:
            self._run_again()
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the flaky tests: how they failed at first, and that they passed then."""
        if not self._flaky:
            return
        terminalreporter.section("FLAKY: failed, and passed when run again alone")
        for failures, seconds in self._flaky:
            terminalreporter.section(failures[0].nodeid, sep="_")
            terminalreporter.write_line(_text(failures))
            terminalreporter.section("second run", sep="-")
            terminalreporter.write_line(f"passed in {seconds:.1f} s")
        for failures, _ in self._flaky:
            terminalreporter.write_line(f"FLAKY {failures[0].nodeid}")

    # --- the second run -------------------------------------------------------------------------------
    def _run_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results"
            results.touch()
            self._say(f"{len(self._put_off)} failed, and run again alone")
            with self._shown():
                code = subprocess.run(self._command(results), cwd=self._config.rootpath, check=False).returncode
            second = list(self._read(results))
        for nodeid, failures in self._put_off.items():
            self._judge(failures, [report for report in second if report.nodeid == nodeid], code)
        if len(self._flaky) > FLAKY_MAX:
            self._log(_error(f"{len(self._flaky)} tests passed only when they ran again; at most {FLAKY_MAX} may"))

    def _command(self, results: Path) -> list[str]:
        """The command of the second run: one test after another, whatever the options of this run, and without a
        summary line."""
        options = ["-q", "--no-header", "--no-summary", "--maxfail=0", "-p", "no:cacheprovider"]
        if self._config.pluginmanager.hasplugin("xdist"):
            options.append("-n0")
        return [sys.executable, "-m", "pytest", *options, "--reruns-results", str(results), "--", *self._put_off]

    def _say(self, sentence: str) -> None:
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.write_line("")
            terminal.write_line(sentence)
            terminal.flush()

    def _shown(self) -> AbstractContextManager[Any]:
        """Show what is printed meanwhile."""
        capture = self._config.pluginmanager.getplugin("capturemanager")
        return nullcontext() if capture is None else capture.global_and_fixture_disabled()

    def _read(self, results: Path) -> Iterator[pytest.TestReport]:
        for line in results.read_text().splitlines():
            yield self._config.hook.pytest_report_from_serializable(config=self._config, data=json.loads(line))

    def _judge(self, failures: list[pytest.TestReport], second: list[pytest.TestReport], code: int) -> None:
        """Report the test once more, with its last outcome."""
        if any(report.failed for report in second):
            for report in second:
                if report.failed:
                    report.sections.insert(0, ("the first run, among other tests", _text(failures)))
                self._log(report)
        elif [report.outcome for report in second] == ["passed"] * 3:
            self._flaky.append((failures, sum(report.duration for report in second)))
            for report in second:
                if report.when == "call":
                    report.outcome = FLAKY  # type: ignore[assignment]
                self._log(report)
        elif any(report.skipped for report in second):
            self._failed(failures, "skipped")
        else:
            self._failed(failures, f"no result: pytest ended with {code}")

    def _failed(self, failures: list[pytest.TestReport], second: str) -> None:
        """Let the first run decide."""
        for report in failures:
            report.outcome = "failed"
            report.sections.append(("second run", second))
            self._log(report)

    def _log(self, report: pytest.TestReport) -> None:
        self._config.hook.pytest_runtest_logreport(report=report)


def _text(failures: list[pytest.TestReport]) -> str:
    """The tracebacks and captured output."""
    parts = []
    for report in failures:
        parts += [f"({report.when})", report.longreprtext]
        parts += [f"--- {title} ---\n{text}" for title, text in report.sections]
    return "\n".join(parts)


def _error(sentence: str) -> pytest.TestReport:
    """An error that belongs to no single test."""
    return pytest.TestReport("flaky tests", ("", None, "flaky tests"), {}, "failed", sentence, "setup")
