"""The command `nos-ec console`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx

from tests.service.conftest import WAIT_S_MAX, Bench


def test_the_command_does_not_start_without_a_token(bench: Bench) -> None:
    found = bench.run("console", "--json")
    assert found.returncode == 3
    assert "console.token_file" in json.loads(found.stderr.splitlines()[-1])["message"]


def test_the_command_shows_nobody_on_the_network_a_store_without_a_login(bench: Bench) -> None:
    found = bench.run("console", "--json", "--anonymous", "--host", "0.0.0.0")
    assert found.returncode == 3
    assert "only on this machine" in json.loads(found.stderr.splitlines()[-1])["message"]


def test_the_command_serves_until_it_is_stopped(bench: Bench) -> None:
    token = bench.folder / "token"
    token.write_text("a-token-of-more-than-16-characters")
    token.chmod(0o600)
    bench.config.write_text(f'{bench.config.read_text()}\n[console]\ntoken_file = "token"\n')
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "console", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            answer = httpx.get(f"{url}/", headers={"Accept": "text/html"}, follow_redirects=True, timeout=WAIT_S_MAX)
            assert (answer.status_code, answer.url.path) == (200, "/login")
            style = httpx.get(f"{url}/static/console.css", timeout=WAIT_S_MAX)
            assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S_MAX) == 0
        finally:
            process.kill()
