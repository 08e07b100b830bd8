"""Programs and libraries of the system that a test needs: installed when they are missing, where that is allowed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from ctypes import CDLL

import pytest

from tests.rig.dev_servers import MISSING, SCRIPTS

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

ON_EVERY_MACHINE = frozenset(
    re.findall(
        r"\S+",
        """apt-config apt-get awk base64 basename bash cat chgrp chmod chown chroot cmp cp cut date dirname dpkg
        dpkg-deb find flock getent grep gzip head id ldconfig ldd ln losetup ls make mkdir mktemp mount mv od paste
        python3 readlink rm rmdir sed seq setpriv setsid sh sha256sum sleep sort stat tail tar tee touch tr umount
        uname unshare useradd userdel wc xargs""",
    )
)
"""The programs that tests and scripts start and that a minimal Debian has."""

PACKAGE_OF = {
    "chromium": "chromium",
    "curl": "curl",
    "groff": "groff",
    "haproxy": "haproxy",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "logrotate": "logrotate",
    "mandoc": "mandoc",
    "openssl": "openssl",
    "sqlite3": "sqlite3",
    "systemd-analyze": "systemd",
}
"""{program: the Debian package that it is installed from}."""


def need_program(program: str) -> str:
    """Return the path of one of PACKAGE_OF. Skips the test (fails it, with REQUIRE_REAL=1) when it cannot be
    installed."""
    package = PACKAGE_OF[program]
    if shutil.which(program, path=_PATH) is None:
        _install(package)
    found = shutil.which(program, path=_PATH)
    assert found is not None, f"{package} has no {program}"
    return found


def need_library(name: str, package: str) -> None:
    """Make sure that a shared library is installed that a program of a Python package needs. Skips or fails as
    need_program does."""
    try:
        CDLL(name)
    except OSError:
        _install(package)


def _install(package: str) -> None:
    line = f'name=tests; . "{SCRIPTS}/base.sh"; install_packages {package}'
    installed = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=1000, check=False)
    if installed.returncode == MISSING and os.environ.get("REQUIRE_REAL") != "1":
        pytest.skip(installed.stderr.strip())
    if installed.returncode != 0:
        pytest.fail(installed.stderr.strip(), pytrace=False)
