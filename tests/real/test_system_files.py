"""Files for the system, checked by the system's own programs: the man page and the rotation of logs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nos_ec.cli.manual import manual
from tests.rig.documents import DOCS
from tests.rig.programs import need_program

pytestmark = pytest.mark.real


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
