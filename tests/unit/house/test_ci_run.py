""".ci/run with parts that take no time: what it runs, when it fails, and what it says at the end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLOSING = "=== 3 passed, 1 skipped in 0.01s ==="

MAKEFILE = """
venv:
	@{venv} test "$@" != "{failing}"
lint types:
	@echo "making $@"; test "$@" != "{failing}"
fresh:
	@touch fresh-began; echo "NOS_EC_FRESH_KEEP=$$NOS_EC_FRESH_KEEP"; echo "$(FRESH_COMMAND)"
	@echo "   7 s  make up"; {sleep} test "$@" != "{failing}"
test:
	@echo "REQUIRE_REAL=$$REQUIRE_REAL"; echo "{closing}"; test "$@" != "{failing}"
"""


def run_parts(
    folder: Path, failing: str = "", sleep: str = "", venv: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A copy of the script in a folder where `make` has such parts, one of which fails."""
    for name in (".ci", "deploy/dev"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "Makefile").write_text(MAKEFILE.format(failing=failing, sleep=sleep, venv=venv, closing=CLOSING))
    install = folder / "deploy" / "dev" / "stack.sh"
    install.write_text('#!/bin/sh\necho "stack.sh $*"\n')
    install.chmod(0o755)
    # What the make that runs these tests hands down would change what the ones inside say.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        [str(folder / ".ci" / "run")],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def times(said: str) -> list[str]:
    """The names of the parts in the table, with what it says about them."""
    table = said.partition("how long each part took:\n")[2]
    return re.findall(r"^ *\d+ s  (\w+.*)$", table, re.M)


def test_all_parts_are_run_and_the_last_line_is_the_result_of_the_tests(tmp_path: Path) -> None:
    ran = run_parts(tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert times(ran.stdout) == ["venv", "lint", "types", "fresh", "make up", "tests"]
    assert ran.stdout.splitlines()[-1] == CLOSING
    assert "REQUIRE_REAL=1" in ran.stdout
    kept = (tmp_path / "var" / "ci" / "fresh.log").read_text()
    assert "NOS_EC_FRESH_KEEP=1" in kept
    assert "stack.sh install" in kept
    assert kept.splitlines()[0] not in ran.stdout


@pytest.mark.parametrize(("whole", "turn"), [("0", " 7"), ("1", "")])
def test_the_fresh_machine_does_the_part_of_the_day_or_all(tmp_path: Path, whole: str, turn: str) -> None:
    assert run_parts(tmp_path, NOS_EC_DEV_TURN="7", NOS_EC_DEV_WHOLE=whole).returncode == 0
    kept = (tmp_path / "var" / "ci" / "fresh.log").read_text().splitlines()
    assert kept[1].rstrip() == f"tests/fresh_machine.sh{turn}"


def test_the_fresh_machine_begins_before_the_packages_are_there(tmp_path: Path) -> None:
    ran = run_parts(tmp_path, venv="until [ -e fresh-began ]; do sleep 0.1; done;")
    assert ran.returncode == 0, ran.stdout
    assert times(ran.stdout) == ["venv", "lint", "types", "fresh", "make up", "tests"]


def test_the_fresh_machine_begins_later_if_making_the_packages_may_need_apt(tmp_path: Path) -> None:
    ran = run_parts(tmp_path, venv="test ! -e fresh-began;", PYTHON="false")
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "fresh-began").exists()


COMMANDS = {
    "tests/fresh_package.sh": "",
    "tests/demo_console.py": "",
    "tests/deploy_machine.py": "",
    "bin/make": "",
    ".venv/bin/nos-ec": "cat README.md",
    "var/dev/stack/nos-ec.env": "",
    "README.md": "",
}


def steps(folder: Path, *turn: str) -> list[str]:
    """The steps of tests/fresh_machine.sh where every command does nothing."""
    for name, text in COMMANDS.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if file.suffix else f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    script = shutil.copy(ROOT / "tests" / "fresh_machine.sh", folder / "tests")
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    ran = subprocess.run([script, *turn], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return re.findall(r"^ *\d+ s  (.*)$", ran.stdout, re.M)


def test_a_fresh_machine_does_one_of_its_longest_steps_each_day(tmp_path: Path) -> None:
    whole = steps(tmp_path)
    long = [{"the Debian package"}, {step for step in whole if "mysql" in step}, {"deploy/README.md in a cluster"}]
    assert [len(done) for done in long] == [1, 4, 1]
    assert set.union(*long) < set(whole)
    for turn in range(3):
        others = set.union(*long) - long[turn]
        assert steps(tmp_path, str(20_001 + turn)) == [step for step in whole if step not in others]


@pytest.mark.parametrize(
    ("failing", "says"), [("lint", "making lint"), ("types", "making types"), ("fresh", "NOS_EC_FRESH_KEEP=1")]
)
def test_the_run_fails_with_a_part_beside_the_tests_and_shows_its_output(
    tmp_path: Path, failing: str, says: str
) -> None:
    ran = run_parts(tmp_path, failing)
    assert ran.returncode == 1
    assert says in ran.stdout
    assert f"{failing} FAILED" in times(ran.stdout)
    assert ran.stdout.splitlines()[-1] == CLOSING


def test_the_run_fails_with_the_tests(tmp_path: Path) -> None:
    ran = run_parts(tmp_path, failing="test")
    assert ran.returncode == 2
    assert times(ran.stdout) == ["venv", "lint", "types", "fresh", "make up", "tests FAILED"]
    assert ran.stdout.splitlines()[-1] == CLOSING


def test_nothing_else_begins_without_the_packages(tmp_path: Path) -> None:
    ran = run_parts(tmp_path, failing="venv", sleep="sleep 1000;")
    assert ran.returncode == 2
    assert times(ran.stdout) == ["venv FAILED"]
    assert CLOSING not in ran.stdout
