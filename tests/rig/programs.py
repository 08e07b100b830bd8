"""Programs of the system that a test needs: installed when they are missing, where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.rig.dev_servers import MISSING, SCRIPTS

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def need_program(program: str, package: str) -> str:
    """The path of a program of a Debian package. Skips (fails, with REQUIRE_REAL=1) when it cannot be installed."""
    if shutil.which(program, path=_PATH) is None:
        line = f'name=tests; . "{SCRIPTS}/base.sh"; install_packages {package}'
        installed = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=1000, check=False)
        if installed.returncode == MISSING and os.environ.get("REQUIRE_REAL") != "1":
            pytest.skip(installed.stderr.strip())
        if installed.returncode != 0:
            pytest.fail(installed.stderr.strip(), pytrace=False)
    found = shutil.which(program, path=_PATH)
    assert found is not None, f"{package} has no {program}"
    return found
