"""Files for the system, checked by the system's own programs: the man page and the rotation of logs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from nos_ec.cli.manual import manual
from tests.rig.documents import DOCS
from tests.rig.programs import need_program

pytestmark = pytest.mark.real
RULES = DOCS.parent / "deploy" / "logrotate" / "nos-ec"


@pytest.mark.parametrize("checker", [["mandoc", "-T", "lint"], ["groff", "-man", "-ww", "-Tutf8", "-z"]])
def test_checkers_of_man_pages_are_content(tmp_path: Path, checker: list[str]) -> None:
    need_program(checker[0], package=checker[0])
    page = manual((DOCS / "CLI.md").read_text(), "2026-01-31")
    assert complaints(checker, page, tmp_path) == ""
    assert complaints(checker, page.replace(".SH OPTIONS", ".SH OPTIONS\n.nosuchrequest"), tmp_path) != ""


def complaints(checker: list[str], page: str, folder: Path) -> str:
    file = folder / "nos-ec.1"
    file.write_text(page)
    checked = subprocess.run([*checker, str(file)], capture_output=True, text=True, timeout=60, check=False)
    return checked.stdout + checked.stderr


def test_logs_are_rotated_under_a_daemon_that_goes_on_writing(tmp_path: Path) -> None:
    logrotate = need_program("logrotate", package="logrotate")
    log, rules = tmp_path / "consumer.log", tmp_path / "rules"
    rules.write_text(RULES.read_text().replace("/var/log/nos-ec/*.log", str(log)))
    rules.chmod(0o644)
    checked = subprocess.run([logrotate, "--debug", RULES], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "error" not in checked.stderr
    command = f"nos_ec() {{ echo before; read -r _; echo after; }}; nos_ec 2>&1 >>{log}"
    with subprocess.Popen(["bash", "-c", command], stdin=subprocess.PIPE, text=True) as daemon:
        while not log.exists() or not log.read_text():
            time.sleep(0.01)
        rotate = [logrotate, "--force", "--state", str(tmp_path / "state"), str(rules)]
        rotated = subprocess.run(rotate, capture_output=True, text=True, timeout=60, check=False)
        assert rotated.returncode == 0, rotated.stderr
        daemon.communicate("\n", timeout=60)
    assert (tmp_path / "consumer.log.1").read_text() == "before\n"
    assert log.read_text() == "after\n"
