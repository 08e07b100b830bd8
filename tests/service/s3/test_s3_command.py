"""`nos-ec s3 serve` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from nos_ec.settings import without_settings
from tests.service.conftest import WAIT_S_MAX, Bench

MASTER = "12" * 32


@pytest.mark.usefixtures("system")
def test_the_command_serves_until_it_is_stopped(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "master"
    file.write_text(MASTER)
    file.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "s3", "serve", "--json"],
        env={**without_settings(os.environ), "NOS_EC_S3__PORT": "0", "NOS_EC_S3__MASTER_KEY_FILE": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        refused = httpx.get(url, timeout=WAIT_S_MAX)
        assert refused.status_code == 403
        assert "<Code>AccessDenied</Code>" in refused.text
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode == 0, log.decode()
        assert MASTER not in log.decode()
    finally:
        process.kill()
        process.communicate()


def test_the_command_does_not_start_without_a_master_key(bench: Bench) -> None:
    found = bench.run("s3", "serve", "--json")
    assert found.returncode == 3
    assert "NOS_EC_S3__MASTER_KEY" in json.loads(found.stderr.splitlines()[-1])["message"]
