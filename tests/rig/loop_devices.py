"""Raw block devices for tests: loop devices over files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def loop_device(file: Path, size_bytes: int, *, direct: bool = False) -> Iterator[Path]:
    """A block device over a new file of zeros. Skips (fails, with REQUIRE_REAL=1) where this machine allows none.
    direct: past the page cache of the file."""
    file.write_bytes(bytes(size_bytes))
    made = _losetup(f"--direct-io={'on' if direct else 'off'}", "--find", "--show", str(file))
    if made.returncode:
        reason = f"a loop device cannot be made: {made.stderr.strip()}; run as root"
        pytest.fail(reason) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        _losetup("--detach", str(device)).check_returncode()


def grow(device: Path, file: Path, size_bytes: int) -> None:
    """Let the device have this size."""
    os.truncate(file, size_bytes)
    _losetup("--set-capacity", str(device)).check_returncode()


def _losetup(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["losetup", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(arguments, 1, "", str(error))
