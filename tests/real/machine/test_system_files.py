"""Files for the system, checked by the system's own programs: man page, rotation of logs, and units."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nos_ec.cli.manual import manual
from tests.rig.documents import DOCS
from tests.rig.programs import need_program

pytestmark = pytest.mark.real
DEPLOY = DOCS.parent / "deploy"
RULES = DEPLOY / "logrotate" / "nos-ec"


@pytest.mark.parametrize("checker", [["mandoc", "-T", "lint"], ["groff", "-man", "-ww", "-Tutf8", "-z"]])
def test_checkers_of_man_pages_are_content(tmp_path: Path, checker: list[str]) -> None:
    need_program(checker[0])
    page = manual((DOCS / "CLI.md").read_text(), "2026-01-31")
    assert complaints(checker, page, tmp_path) == ""
    assert complaints(checker, page.replace(".SH OPTIONS", ".SH OPTIONS\n.nosuchrequest"), tmp_path) != ""


def complaints(checker: list[str], page: str, folder: Path) -> str:
    file = folder / "nos-ec.1"
    file.write_text(page)
    checked = subprocess.run([*checker, str(file)], capture_output=True, text=True, timeout=60, check=False)
    return checked.stdout + checked.stderr


def test_logs_are_rotated_under_a_daemon_that_goes_on_writing(tmp_path: Path) -> None:
    logrotate = need_program("logrotate")
    log, rules, as_installed = tmp_path / "consumer.log", tmp_path / "rules", tmp_path / "as-installed"
    as_installed.write_text(RULES.read_text())
    rules.write_text(RULES.read_text().replace("/var/log/nos-ec/*.log", str(log)))
    for file in (as_installed, rules):
        file.chmod(0o644)  # logrotate refuses files that a group may write, as in some checkouts
    check = [logrotate, "--debug", str(as_installed)]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
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


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Runs systemd's own check, with the program where the units expect it."""
    analyze = need_program("systemd-analyze")
    program = tmp_path / "nos-ec"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copies = []
    for path in sorted((DEPLOY / "systemd").iterdir()):
        copy = tmp_path / path.name.replace("@", "@1")
        copy.write_text(path.read_text().replace("/opt/nos-ec/bin/nos-ec", str(program)))
        copies.append(copy)
    drop_ins = tmp_path / "nos-ec-.service.d"
    drop_ins.mkdir()
    shutil.copy(DEPLOY / "cluster" / "units.conf", drop_ins)
    found = verify(analyze, copies)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    broken = tmp_path / "nos-ec-broken.service"
    broken.write_text(copies[0].read_text() + "\n[Service]\nNoSuchKey=1\n")
    assert "NoSuchKey" in verify(analyze, [broken]).stderr, "the check would pass for nothing"
    (drop_ins / "wrong.conf").write_text("[Service]\nNoSuchSetting=1\n")
    assert verify(analyze, copies[:1]).stderr.count("NoSuchSetting") == 1, "the drop-ins are not read"


def verify(analyze: str, units: list[Path]) -> subprocess.CompletedProcess[str]:
    command = [analyze, "verify", "--man=no", "--generators=no", *map(str, units)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
